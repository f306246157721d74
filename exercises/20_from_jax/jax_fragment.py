"""The pieces of a policy in JAX, and one update of a policy, a critic and its target."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.lax import stop_gradient

# A batch: states (B, S), actions (B, A), rewards (B,), next states (B, S)
Batch = tuple[Array, Array, Array, Array]

# How the kernel of a policy's last layer is initialised; its bias is 0
HEAD_INIT = jax.nn.initializers.variance_scaling(0.01, "fan_avg", "uniform")


def block(inputs: Array) -> Array:
    """GELU, then a fresh LayerNorm over the last axis: (B, W) to (B, W)."""
    outputs, _ = nn.LayerNorm().init_with_output(jax.random.key(0), nn.gelu(inputs))
    return outputs


def cut(actions: Array) -> Array:
    """Actions, clipped to [-1, 1]."""
    return jnp.clip(actions, -1.0, 1.0)


def q(critic: Array, states: Array, actions: Array) -> Array:
    """The values (B,) under a critic (S + A,)."""
    width = states.shape[1]
    return states @ critic[:width] + actions @ critic[width:] - jnp.square(actions).sum(axis=-1)


def losses(policy: Array, critic: Array, target: Array, batch: Batch) -> Array:
    """The sum of the critic's and the policy's losses, for a policy (S, A)."""
    states, actions, rewards, next_states = batch
    next_q = stop_gradient(q(target, next_states, cut(next_states @ policy)))
    critic_loss = jnp.square(q(critic, states, actions) - rewards - 0.99 * next_q).mean()
    return critic_loss - q(stop_gradient(critic), states, cut(states @ policy)).mean()


def update(policy: Array, critic: Array, target: Array, batch: Batch) -> tuple[Array, Array, Array]:
    """Policy and critic after one step at rate 0.1, and the target after a step of size 0.1."""
    by_policy, by_critic = jax.grad(losses, argnums=(0, 1))(policy, critic, target, batch)
    target = 0.9 * target + 0.1 * critic
    return policy - 0.1 * by_policy, critic - 0.1 * by_critic, target
