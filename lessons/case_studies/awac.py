"""An AWAC that was behaviour cloning."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from lessons.cloning import fit
from lessons.measured import Figure

Loss = Callable[[Array, Array, Array], Array]


def log_prob(mean: Array, actions: Array) -> Array:
    return -0.5 * jnp.square(actions - mean).sum(axis=-1)  # (B,), a normal distribution's but for a constant


def wrong(mean: Array, actions: Array, advantages: Array) -> Array:
    weights = jnp.minimum(jnp.exp(advantages / 0.3333), 100.0)  # (B, 1), since the critics' values are (B, 1)
    return -(log_prob(mean, actions) * weights).mean()  # (B,) * (B, 1) is (B, B)


def right(mean: Array, actions: Array, advantages: Array) -> Array:
    weights = jnp.minimum(jnp.exp(advantages / 0.3333), 100.0).squeeze(-1)
    log_probs = log_prob(mean, actions)
    assert log_probs.shape == weights.shape
    return -(log_probs * weights).mean()


def check(loss: Loss) -> None:
    mean, actions, advantages = _batch()
    gradient = jax.jit(jax.grad(loss))
    here, there = gradient(mean, actions, advantages), gradient(mean, actions, jnp.roll(advantages, 1))
    assert not np.allclose(here, there, rtol=1e-6), "whose advantage is whose makes no difference"


def _batch() -> tuple[Array, Array, Array]:
    """A policy's mean (A,), the same in every state; half of the data's actions near -0.5, half near 0.5 and better."""
    rng, good = np.random.default_rng(0), np.arange(64) % 2
    actions = (good - 0.5)[:, None] + 0.1 * rng.normal(size=(64, 3))
    return jnp.full(3, 0.1), jnp.asarray(actions), jnp.asarray(good - 0.5)[:, None]


def _cosine(loss: Loss) -> float:
    """Of the loss's gradient and behaviour cloning's."""
    mean, actions, advantages = _batch()
    ours = jax.grad(loss)(mean, actions, advantages)
    cloning = jax.grad(lambda mean: -log_prob(mean, actions).mean())(mean)
    return float(ours @ cloning / (jnp.linalg.norm(ours) * jnp.linalg.norm(cloning)))


def _learnt(loss: Loss) -> float:
    """The mean action after a training: the data's is 0, the good ones' 0.5."""
    mean, actions, advantages = _batch()
    steps = jnp.zeros(300)
    return float(fit(mean, steps, lambda mean, _: loss(mean, actions, advantages), optax.adam(0.01)).mean())


def measure() -> list[Figure]:
    return [
        Figure("cosine of the policy's gradient and behaviour cloning's", *map(_cosine, (wrong, right))),
        Figure("learnt action; the data's mean is 0, the better half's 0.5", *map(_learnt, (wrong, right))),
    ]
