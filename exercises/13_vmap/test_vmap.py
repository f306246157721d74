"""Ten critics, ten rows: every critic sees every row, in a program as long as that of one critic."""

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

RNG = np.random.default_rng(0)
STATES, ACTIONS = RNG.normal(size=(10, 4)), RNG.normal(size=(10, 2))
WIDTHS = ((6, 8), (8, 8), (8, 1))


def critics() -> list[Any]:
    rng = np.random.default_rng(1)

    def layer(width_in: int, width_out: int) -> dict[str, jax.Array]:
        shapes = {"kernel": (width_in, width_out), "bias": (width_out,)}
        return {name: jnp.asarray(rng.normal(size=shape)) for name, shape in shapes.items()}

    return [tuple(layer(*widths) for widths in WIDTHS) for _ in range(10)]


def test_the_weights_are_stacked(exercise: ModuleType) -> None:
    """Once, before the values are computed, and not in their program."""
    found = [leaf.shape for leaf in jax.tree.leaves(exercise.stack(critics()))]
    expected = [(10, *leaf.shape) for leaf in jax.tree.leaves(critics()[0])]
    wrong = (
        f"stack gives {len(found)} leaves, the first {found[0]}, in place of {len(expected)}, the first {expected[0]}"
    )
    assert found == expected, wrong


def test_the_values_are_pytorch_s(exercise: ModuleType, fragment: ModuleType) -> None:
    """Of its batched ensemble at the same weights."""
    layers = [
        tuple(torch.as_tensor(np.stack([critic[i][name] for critic in critics()])) for name in ("kernel", "bias"))
        for i in range(len(WIDTHS))
    ]
    theirs = fragment.values(layers, torch.as_tensor(STATES), torch.as_tensor(ACTIONS)).numpy()
    ours = jax.jit(exercise.values)(exercise.stack(critics()), STATES, ACTIONS)
    assert ours.shape == (10, 10), f"ten critics and ten rows give values {ours.shape} in place of (10, 10)"
    np.testing.assert_allclose(ours, theirs, rtol=1e-10, err_msg="the critics' values differ")


def operations(jaxpr: Any) -> list[str]:
    """The names of a program's operations, with those of the programs within."""
    found = []
    for equation in jaxpr.eqns:
        inner = [part.jaxpr for part in equation.params.values() if hasattr(part, "jaxpr")]
        found += [equation.primitive.name, *(name for part in inner for name in operations(part))]
    return found


def test_no_loop_is_in_the_program(exercise: ModuleType) -> None:
    """Neither written out nor as a scan."""
    one = operations(jax.make_jaxpr(exercise.value)(critics()[0], STATES, ACTIONS).jaxpr)
    ten = operations(jax.make_jaxpr(exercise.values)(exercise.stack(critics()), STATES, ACTIONS).jaxpr)
    assert len(ten) < 2 * len(one), f"ten critics take {len(ten)} operations where one takes {len(one)}"
    assert not {"scan", "while"} & set(ten), "the critics are computed one after another"
