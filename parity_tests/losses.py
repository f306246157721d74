"""A pair's losses, read off the signatures of its twins.

A loss is a method of the PyTorch trainer and of the JAX train state whose name ends in `_loss`. In JAX its first
argument is what it is differentiated by.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from shared.errors import InputError
from shared.frameworks.exchange import part_names


@dataclass(frozen=True)
class Loss:
    """One loss function of a pair.

    Attributes:
        of: The parts of the state that it is differentiated by: the JAX function's first argument.
        inputs: The names of its other arguments: `batch`, `noise`, a column of the batch, or a name in the pair's
            `extra_inputs`.
    """

    of: Sequence[str]
    inputs: Sequence[str] = ("batch", "noise")


def losses_of(torch_twin: ModuleType, jax_twin: ModuleType) -> dict[str, Loss]:
    """The losses that both twins have, by name.

    Raises:
        InputError: There is none, or a signature doesn't say what its loss is differentiated by.
    """
    state, trainer = state_of(jax_twin), trainer_of(torch_twin)
    parts = part_names(state)
    found = {}
    # A method that only one twin has helps its losses.
    for name in [name for name in vars(state) if name.endswith("_loss") and hasattr(trainer, name)]:
        first, *inputs = list(inspect.signature(vars(state)[name]).parameters)[1:]
        if of := _differentiated(vars(state)[name], first, parts):
            found[name] = Loss(of, tuple(inputs))
        elif "Network" in str(inspect.signature(vars(state)[name]).parameters[first].annotation):
            unpack = f"unpack it by the names of its parts, `a, b = {first}`"
            raise InputError(f"{file_of(jax_twin)}: {name} is differentiated by `{first}`: {unpack}")
    if not found:
        both = f"{state.__name__} in {file_of(jax_twin)} and {trainer.__name__} in {file_of(torch_twin)}"
        raise InputError(f"{both} have no loss in common: give both a method whose name ends in _loss")
    return found


def state_of(twin: ModuleType) -> type[Any]:
    """The class of a JAX twin's train state."""
    return _returned(twin, "create_train_state")


def trainer_of(twin: ModuleType) -> type[Any]:
    """The class of a PyTorch twin's trainer."""
    return _returned(twin, "create_trainer")


def file_of(twin: ModuleType) -> str:
    """The name of a twin's file, for messages."""
    return str(twin.__file__).rpartition("/")[2]


def _returned(twin: ModuleType, create: str) -> type[Any]:
    kind = inspect.signature(getattr(twin, create)).return_annotation
    kind = vars(twin).get(kind, kind) if isinstance(kind, str) else kind
    if not inspect.isclass(kind) or kind is inspect.Signature.empty:
        raise InputError(f"{file_of(twin)}: {create} doesn't say what it returns: annotate it, `-> MyClass:`")
    return kind


def _differentiated(loss: Callable, first: str, parts: Sequence[str]) -> tuple[str, ...]:
    """The parts that a loss's first argument stands for: the one of its name, what it is unpacked to, or singulars."""
    if first in parts:
        return (first,)
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(loss)))):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id == first:
            (target,) = node.targets
            names = tuple(ast.unparse(each) for each in getattr(target, "elts", []))
            if names and set(names) <= set(parts):
                return names
    return tuple(part for part in parts if part.removeprefix(f"{first.removesuffix('s')}_").isdigit())
