"""One program for an interval, with the draws outside its loop."""

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

RNG = np.random.default_rng(0)
STATES, REWARDS, WEIGHTS = RNG.normal(size=(50, 3)), RNG.normal(size=50), np.zeros(3)


def trained(exercise: ModuleType) -> Any:
    return lambda key: exercise.train(jnp.asarray(WEIGHTS), key, jnp.asarray(STATES), jnp.asarray(REWARDS), 20, 8)


def test_the_result_is_pytorch_s(exercise: ModuleType, fragment: ModuleType) -> None:
    """On the batches that `draw` gives."""
    key = jax.random.key(0)
    indices = np.stack([np.asarray(exercise.draw(key, step, 8, 50)) for step in range(20)])
    theirs = fragment.train(*(torch.as_tensor(x) for x in (WEIGHTS, STATES, REWARDS, indices)))
    weights, loss = trained(exercise)(key)
    np.testing.assert_allclose(weights, theirs[0].numpy(), rtol=1e-12, err_msg="the weights differ")
    np.testing.assert_allclose(loss, theirs[1].item(), rtol=1e-12, err_msg="the mean loss differs")


def loops(jaxpr: Any) -> list[Any]:
    """The bodies of the program's scans."""
    found = []
    for equation in jaxpr.eqns:
        inner = [value.jaxpr for value in equation.params.values() if hasattr(value, "jaxpr")]
        found += inner if equation.primitive.name == "scan" else [body for part in inner for body in loops(part)]
    return found


def test_the_interval_is_one_program(exercise: ModuleType) -> None:
    """Nothing in it waits for a number: it can be traced as a whole."""
    try:
        program = jax.make_jaxpr(trained(exercise))(jax.random.key(0))
    except jax.errors.ConcretizationTypeError:
        raise AssertionError("a loss is fetched from the device at every update") from None
    assert len(loops(program.jaxpr)) == 1, "the updates are not one scan"


def test_nothing_is_drawn_in_the_loop(exercise: ModuleType) -> None:
    """Random numbers are made faster all at once than one batch after another."""
    try:
        program = jax.make_jaxpr(trained(exercise))(jax.random.key(0))
    except jax.errors.ConcretizationTypeError:
        raise AssertionError("a loss is fetched from the device at every update") from None
    for body in loops(program.jaxpr):
        assert "random_" not in str(body), "there are draws in the scan's body"
        assert "threefry" not in str(body), "there are draws in the scan's body"
