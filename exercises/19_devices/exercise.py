"""The same in JAX: all seeds in one program, spread over the devices."""

from functools import partial

import jax
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def fresh(seed: Array, width: int) -> Array:
    """A seed's first weights, (S,)."""
    return jax.random.normal(jax.random.key(seed), (width,))


def train(weights: Array, key: Array, states: Array, rewards: Array, num_updates: int) -> tuple[Array, Array]:
    """One seed's weights after so many updates, and the rows that it drew, (U, 8)."""
    rows = jax.random.randint(key, (num_updates, 8), 0, len(rewards))

    def update(weights: Array, batch: Array) -> tuple[Array, None]:
        errors = states[batch] @ weights - rewards[batch]
        return weights - 0.1 * (errors[:, None] * states[batch]).mean(0), None

    return jax.lax.scan(update, weights, rows)[0], rows


def place(seeds: Array, states: Array, rewards: Array, mesh: Mesh) -> tuple[Array, Array, Array]:
    """Seeds (N,) and the dataset on the devices of a mesh, whose only axis is `seeds`."""
    return jax.device_put((seeds, states, rewards), NamedSharding(mesh, PartitionSpec("seeds")))


@partial(jax.jit, static_argnames="num_updates")
def train_all(seeds: Array, states: Array, rewards: Array, num_updates: int) -> tuple[Array, Array]:
    """The weights (N, S) and the rows (N, U, 8) of all seeds; the arguments are those that `place` returns."""
    weights, key = jax.vmap(lambda seed: fresh(seed, states.shape[1]))(seeds), jax.random.key(0)
    one = partial(train, num_updates=num_updates)
    return jax.vmap(one, in_axes=(0, None, None, None))(weights, key, states, rewards)
