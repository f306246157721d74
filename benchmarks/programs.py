"""`python -m benchmarks.programs`: XLA's program for an interval of updates, as counts that no clock disturbs.

Each operation is a separate request to the device: a fusion of elementwise work, a matrix product, a copy. On a GPU
each one is a kernel launch; a small network's speed depends on their number more than on their size.
"""

import argparse
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.jax_rungs import interval
from benchmarks.results import numerics, write
from benchmarks.subjects import UPDATES, Subject
from benchmarks.work import full_precision
from shared.runs.machine import versions

# The updates in the compiled interval, and the rows that it learns from. Neither changes an update, except for a
# dynamics ensemble, whose update is an epoch over all rows.
INTERVAL, ROWS = 200, 1000

_COMPUTATION = re.compile(r"(?P<entry>ENTRY )?%?(?P<name>[\w.-]+) \(")
_INSTRUCTION = re.compile(r" +(?:ROOT )?%?[\w.-]+ = .*? (?P<operation>[a-z][a-z0-9-]*)\(")
_FUSION = re.compile(r" fusion\(.*calls=%?(?P<body>[\w.-]+)")
# Small loops, and work that is split among threads
_CALL = re.compile(r" call\(.*to_apply=%?(?P<body>[\w.-]+)")
_LOOP = re.compile(r'body=%?(?P<body>[\w.-]+).*"known_trip_count":\{"n":"(?P<turns>\d+)"')
# Names and views of existing data
_NOTHING = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast"}


def operations(program: str) -> Counter[str]:
    """Counts how often each operation runs in a compiled program, multiplied by the turns of its loops.

    Args:
        program: The text of the optimised program.

    Raises:
        ValueError: The program does not say how many turns one of its loops has.
    """
    computations = {}
    for text in re.split(r"\n{2,}", program.strip()):
        first, *lines = text.splitlines()
        if found := _COMPUTATION.match(first):
            computations[found["name"]] = lines
            if found["entry"]:
                entry = found["name"]
    return _run(entry, computations)


def _run(name: str, computations: Mapping[str, Sequence[str]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for line in computations[name]:
        found = _INSTRUCTION.match(line)
        if not found or found["operation"] in _NOTHING:
            continue
        if called := _CALL.search(line):
            total += _run(called["body"], computations)
            continue
        total[_kind(line, found["operation"], computations)] += 1
        if found["operation"] == "while":
            if not (loop := _LOOP.search(line)):
                raise ValueError(f"a loop of {name} has no known number of turns")
            inner = _run(loop["body"], computations)
            total.update({operation: count * int(loop["turns"]) for operation, count in inner.items()})
    return total


def _kind(line: str, operation: str, computations: Mapping[str, Sequence[str]]) -> str:
    """The kind of an operation; a fusion that contains a matrix product counts as one."""
    fused = _FUSION.search(line)
    return "dot" if fused and any(" dot(" in inner for inner in computations[fused["body"]]) else operation


def per_update(name: str) -> dict[str, float]:
    """An algorithm's operations per update, averaged over an interval, under CORL's defaults."""
    train, arguments = interval(Subject(name, INTERVAL, rows=ROWS))
    program: Any = train.func
    found = operations(program.lower(*arguments, **train.keywords).compile().as_text())
    kinds = {"all": found.total(), "fusions": found["fusion"], "products": found["dot"], "copies": found["copy"]}
    return {kind: count / INTERVAL for kind, count in kinds.items()}


def table(summary: dict[str, Any]) -> str:
    """Formats a results file as a Markdown table."""
    lines = ["| algorithm | operations per update | fusions | matrix products | copies |", "|---|---|---|---|---|"]
    for name, found in summary["algorithms"].items():
        lines.append(f"| {name} | {' | '.join(f'{count:.1f}' for count in found.values())} |")
    return "\n".join(lines)


def main() -> None:
    """Compiles, prints the table and writes `benchmarks/results/programs-<machine>.json`."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    full_precision()
    measured = {
        "versions": versions("jax", "jaxlib", "flax", "optax"),
        **numerics(),
        "updates": INTERVAL,
        "algorithms": {name: per_update(name) for name in UPDATES},
    }
    print(table(measured))
    write("programs", "programs", measured)


if __name__ == "__main__":
    main()
