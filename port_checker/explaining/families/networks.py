"""Calls another network, or uses two networks in place of one."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jax.extend.core import Literal, Var

from port_checker.explaining.edits import Edit, How
from port_checker.explaining.families.places import calls_of, keys_of, reading, short
from port_checker.explaining.operations import Atom, Operation, Program, Read


def other_networks(program: Program, within: bool) -> Iterator[Edit]:
    """Calls another network with the same layers: in one call, in all calls of one network, or for all targets."""
    weights = _weights(program)
    used = {var: part for part, leaves in weights.items() for var in leaves.values()}
    calls: dict[str, list[list[Operation]]] = defaultdict(list)
    for operations in calls_of(program).values():
        parts = {used[atom] for op in operations for atom in op.reads if isinstance(atom, Var) and atom in used}
        if len(parts) == 1:
            calls[parts.pop()].append(operations)
    for part, of in calls.items():
        for other in weights:
            if _alike(weights, part, other):
                for some in [*([call] for call in of), *([of] if len(of) > 1 else [])]:
                    yield _exchange(program, weights, {part: other}, [op for call in some for op in call])
    twins = {part: _twin(part) for part in calls if _alike(weights, part, _twin(part))}
    if len(twins) > 1:
        yield _exchange(program, weights, twins, [op for part in twins for call in calls[part] for op in call])
    for operations in _by_line(calls):
        parts = {used[atom] for op in operations for atom in op.reads if isinstance(atom, Var) and atom in used}
        if len(parts) > 1 and parts <= twins.keys() and len(parts) < len(twins):
            yield _exchange(program, weights, {part: twins[part] for part in parts}, operations)


def _twin(part: str) -> str:
    """A target's network, or a network's target."""
    return part.removesuffix("_target") if part.endswith("_target") else f"{part}_target"


def _by_line(calls: Mapping[str, list[list[Operation]]]) -> list[list[Operation]]:
    """The operations of calls to several networks on the same line."""
    lines: dict[tuple, list[Operation]] = defaultdict(list)
    for of in calls.values():
        for call in of:
            lines[call[0].span[0], call[0].key[0][-1]].extend(call)
    return list(lines.values())


def _weights(program: Program) -> dict[str, dict[str, Atom]]:
    found: dict[str, dict[str, Atom]] = defaultdict(dict)
    for name, var in program.inputs.items():
        part, params, path = name.partition(".params")
        if params and "optimizer" not in part:
            found[part][path] = var
    return found


def _alike(weights: Mapping[str, Mapping[str, Atom]], part: str, other: str) -> bool:
    shapes = [{path: var.aval.shape for path, var in weights.get(name, {}).items()} for name in (part, other)]
    return part != other and shapes[0] == shapes[1]


def _exchange(
    program: Program, weights: Mapping[str, Mapping[str, Atom]], parts: Mapping[str, str], operations: list[Operation]
) -> Edit:
    """Runs these operations with the weights of other networks."""
    pairs = {
        ("input", f"{old}.params{path}"): ("input", f"{new}.params{path}")
        for old, new in parts.items()
        for path in weights[old]
    }
    mine = {program.inputs[name] for _, name in pairs}
    readers = [op for op in operations if any(isinstance(atom, Var) and atom in mine for atom in op.reads)]
    said = " and ".join(f"`{short(new)}` for `{short(old)}`" for old, new in parts.items())
    return Edit(said, readers[0].span, "", keys_of(readers), reading(pairs))


def two_networks(program: Program, within: bool) -> Iterator[Edit]:
    """Uses the minimum, mean or sum of two networks' values where only one network's value is needed."""
    weights = _weights(program)
    used = {var: part for part, leaves in weights.items() for var in leaves.values()}
    for operations in calls_of(program).values():
        parts = {used[atom] for op in operations for atom in op.reads if isinstance(atom, Var) and atom in used}
        if len(parts) != 1:
            continue
        (part,) = parts
        for other in weights:
            if not _alike(weights, part, other):
                continue
            for what, function in (("minimum", np.minimum), ("mean", lambda x, y: (x + y) / 2.0), ("sum", np.add)):
                how = _combined(keys_of(operations), part, other, function)
                said = f"the {what} of `{short(part)}` and `{short(other)}` for `{short(part)}`"
                yield Edit(said, operations[-1].span, "", (operations[-1].key,), how)


def _combined(keys: tuple, part: str, other: str, function: Callable) -> How:
    def how(program: Program, op: Operation, read: Read, number: float) -> Sequence[np.ndarray]:
        found: dict[Atom, np.ndarray] = {}

        def theirs(atom: Any) -> np.ndarray:
            if isinstance(atom, Literal):
                return read(atom)
            if atom in found:
                return found[atom]
            name = program.named.get(atom, "")
            return read(program.inputs[other + name.removeprefix(part)] if name.startswith(f"{part}.params") else atom)

        for key in keys:
            one = program.operations[program.by_key[key]]
            found.update(zip(one.writes, one.compute(*map(theirs, one.reads)), strict=True))
        return [function(mine, found[var])
                for mine, var in zip(op.compute(*map(read, op.reads)), op.writes, strict=True)]  # fmt: skip

    return how
