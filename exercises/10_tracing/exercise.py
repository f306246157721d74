"""The same in JAX, compiled."""

import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient


def actor_loss(
    policy: Array, critic: Array, states: Array, actions: Array, step: Array, bc_steps: int, normalize: bool
) -> Array:
    """Imitation before update `bc_steps`, the critic's value from there on, divided by its own size if `normalize`.

    Policy (S, A), critic (S + A,), states (B, S), actions (B, A).
    """
    chosen = jnp.tanh(states @ policy)
    if step < bc_steps:
        return jnp.square(chosen - actions).mean()
    q = jnp.concatenate([states, chosen], axis=-1) @ critic
    if normalize:
        q = q / stop_gradient(jnp.abs(q).mean())
    return -q.mean()


@jax.jit
def update(
    policy: Array, critic: Array, states: Array, actions: Array, step: Array, bc_steps: int, normalize: bool
) -> Array:
    """The policy after a step of gradient descent; `step` updates were made before it."""
    gradient = jax.grad(actor_loss)(policy, critic, states, actions, step, bc_steps, normalize)
    return policy - 0.1 * gradient
