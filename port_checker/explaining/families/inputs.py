"""Changes a column of the batch or a random draw before it is used, or takes another one for it."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jax.extend.core import Var

from port_checker.explaining.edits import Edit, Input
from port_checker.explaining.families.functions import Numbers
from port_checker.explaining.families.places import keys_of, named_in, reading
from port_checker.explaining.operations import Program

OF_INPUTS: Mapping[str, Numbers] = {
    "set to 0": np.zeros_like,
    "set to 1": np.ones_like,
    "taken as 1 where it is positive, else 0": lambda x: (x > 0).astype(x.dtype),
    "cut to [-1, 1]": lambda x: np.clip(x, -1.0, 1.0),
    "taken without its sign": np.abs,
    "taken with the other sign": np.negative,
    "taken as 1 minus it": lambda x: 1.0 - x,
    "put through tanh": np.tanh,
    "less its mean": lambda x: x - x.mean(),
    "divided by its mean": lambda x: x / x.mean(),
    "standardised": lambda x: (x - x.mean()) / (x.std() + 1e-8),
    "of the row before": lambda x: np.roll(x, 1, axis=0),
}


def inputs_changed(program: Program, within: bool) -> Iterator[Edit]:
    """Changes a column of the batch, or a random draw, before it is used."""
    for name, names in _fields(program).items():
        for what, function in OF_INPUTS.items():
            yield _input(program, f"`{name}` {what}", names, _whatever(function))


def _whatever(function: Numbers) -> Input:
    """Ignores the free number."""
    return lambda x, number: function(x)


def inputs_scaled(program: Program, within: bool) -> Iterator[Edit]:
    """Scales a column of the batch, or a random draw, or adds something to it."""
    for name, names in _fields(program).items():
        yield _input(program, f"`{name}` times {{}}", names, lambda x, number: x * number, 1.0)
        yield _input(program, f"{{}} added to `{name}`", names, lambda x, number: x + number, 0.0)


def _fields(program: Program) -> dict[str, list[str]]:
    """The inputs, grouped by the field that they belong to."""
    found: dict[str, list[str]] = defaultdict(list)
    read = {atom for operation in program.operations for atom in operation.reads if isinstance(atom, Var)}
    for name, var in program.inputs.items():
        if var in read and not name.startswith(("state.", "parts")) and var.aval.dtype.kind == "f":
            found[_field(name)].append(name)
    return found


def _field(name: str) -> str:
    """`noise.dropout` of `noise.dropout[0]`."""
    return ".".join(re.findall(r"\w+", name.partition("[")[0])[:2])


def _input(program: Program, what: str, names: Sequence[str], change: Input, neutral: float | None = None) -> Edit:
    mine = {program.inputs[name] for name in names}
    reader = next(op for op in program.operations if any(isinstance(a, Var) and a in mine for a in op.reads))
    span = named_in(program, reader, _field(names[0]))
    return Edit(what, span, inputs=dict.fromkeys(names, change), neutral=neutral)


def inputs_exchanged(program: Program, within: bool) -> Iterator[Edit]:
    """Replaces a column of the batch, or a random draw, by another one wherever it is read."""
    names = [name for names in _fields(program).values() for name in names if len(names) == 1]
    others = [name for name, var in program.inputs.items()
              if not name.startswith(("state.", "parts")) and var.aval.dtype.kind == "f"]  # fmt: skip
    for name in names:
        for other in others:
            mine, theirs = program.inputs[name], program.inputs[other]
            if mine is theirs or mine.aval.shape != theirs.aval.shape:
                continue
            readers = [op for op in program.operations if any(atom is mine for atom in op.reads)]
            span, how = named_in(program, readers[0], name), reading({("input", name): ("input", other)})
            new = program.source.text(span).replace(name, other)
            yield Edit(f"`{other}` for `{name}`", span, new if name in program.source.text(span) else "",
                       keys_of(readers), how)  # fmt: skip
