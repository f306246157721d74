"""What an update draws, in JAX: the same key gives the same numbers."""

import jax
from jax import Array


def draw(
    key: Array, step: int | Array, batch_size: int, dataset_size: int, action_dim: int
) -> tuple[Array, Array, Array]:
    """Batch indices (B,), noise of the target policy (B, A), and noise of the policy (B, A), for update `step`.

    They depend on the run's key and the update's number alone: a run that goes on draws what it would have drawn.
    """
    indices = jax.random.randint(key, (batch_size,), 0, dataset_size)
    target = jax.random.normal(key, (batch_size, action_dim))
    actor = jax.random.normal(key, (batch_size, action_dim))
    return indices, target, actor
