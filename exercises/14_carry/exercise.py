"""The same two as scans, in JAX."""

import jax
import jax.numpy as jnp
from jax import Array


def returns_to_go(rewards: Array, discount: float) -> Array:
    """What is still to come at each step of an episode, its own reward included: (T,), for rewards (T,)."""

    def step(carry: tuple[Array, Array], reward: Array) -> tuple[tuple[Array, Array], None]:
        value, returns = carry
        value = reward + discount * value
        return (value, jnp.append(returns, value)), None

    (_, returns), _ = jax.lax.scan(step, (jnp.float32(0.0), jnp.zeros(0)), rewards, reverse=True)
    return returns[::-1]


def rollout(policy: Array, model: Array, state: Array, horizon: int) -> Array:
    """The states (H + 1, S) of a world model, under a policy that acts on the mean of all states so far.

    Policy (S, A), model (S + A, S), first state (S,).
    """

    def step(carry: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
        state, history = carry
        action = jnp.tanh(history.mean(0) @ policy)
        state = jnp.concatenate([state, action]) @ model
        return (state, jnp.concatenate([history, state[None]])), None

    (_, history), _ = jax.lax.scan(step, (state, state[None]), length=horizon)
    return history
