"""The same two as scans, in JAX."""

import jax
import jax.numpy as jnp
from jax import Array


def returns_to_go(rewards: Array, discount: float) -> Array:
    """What is still to come at each step of an episode, its own reward included: (T,), for rewards (T,)."""

    def step(value: Array, reward: Array) -> tuple[Array, Array]:
        value = reward + discount * value
        return value, value

    # The first carry is of the dtype that the steps give; a scan in reverse collects in the order of its inputs.
    _, returns = jax.lax.scan(step, jnp.zeros((), rewards.dtype), rewards, reverse=True)
    return returns


def rollout(policy: Array, model: Array, state: Array, horizon: int) -> Array:
    """The states (H + 1, S) of a world model, under a policy that acts on the mean of all states so far.

    Policy (S, A), model (S + A, S), first state (S,).
    """

    def step(carry: tuple[Array, Array], count: Array) -> tuple[tuple[Array, Array], None]:
        state, history = carry
        # `count` rows are filled, the others are zeros.
        action = jnp.tanh(history.sum(0) / count @ policy)
        state = jnp.concatenate([state, action]) @ model
        return (state, history.at[count].set(state)), None

    history = jnp.zeros((horizon + 1, len(state))).at[0].set(state)
    (_, history), _ = jax.lax.scan(step, (state, history), jnp.arange(1, horizon + 1))
    return history
