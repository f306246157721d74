"""A decoder without its tanh."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from lessons.cloning import fit
from lessons.measured import Figure

Squashing = Callable[..., Array]


def wrong(output: Array, with_squash: bool = True) -> Array:
    return output if with_squash else jnp.tanh(output)


def right(output: Array, with_squash: bool = True) -> Array:
    return jnp.tanh(output) if with_squash else output


def check(decode: Squashing) -> None:
    actions = decode(jnp.linspace(-3.0, 3.0, 7))
    assert (jnp.abs(actions) <= 1.0).all(), "a decoded action lies outside of its bounds"


def _rows() -> tuple[Array, Array]:
    """Codes (B, Z) with the prior's distribution, and actions (B, A) within 1 that stand for them."""
    rng = np.random.default_rng(0)
    codes = rng.normal(size=(256, 6))
    return jnp.asarray(codes), jnp.tanh(jnp.asarray(codes @ rng.normal(size=(6, 3))))


def _trained(decode: Squashing) -> tuple[Array, Array]:
    """The weights (Z, A) of a linear decoder after a training, and its mean squared error."""
    codes, actions = _rows()

    def loss(weights: Array, _: Array) -> Array:
        return jnp.square(decode(codes @ weights) - actions).mean()

    weights = fit(jnp.zeros((6, 3)), jnp.zeros(500), loss, optax.adam(0.05))
    return weights, loss(weights, jnp.zeros(()))


def _error(decode: Squashing) -> float:
    return float(_trained(decode)[1])


def _largest(decode: Squashing) -> float:
    """The largest component of an action that a code with components of 2 or -2 is decoded to."""
    weights, _ = _trained(decode)
    signs = jnp.stack(jnp.meshgrid(*[jnp.array([-2.0, 2.0])] * 6), axis=-1).reshape(-1, 6)
    return float(jnp.abs(jax.vmap(lambda code: decode(code @ weights))(signs)).max())


def measure() -> list[Figure]:
    return [
        Figure("error of the decoded actions after 500 updates", *map(_error, (wrong, right))),
        Figure("largest action within the policy's reach; the bound is 1", *map(_largest, (wrong, right))),
    ]
