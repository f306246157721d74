"""Balanced replay, offline to online, on the ladder."""

from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

from parity_tests.families import Family
from parity_tests.pair import Pair

# The numbers of sampled actions, members and action components differ, so that no axis can be mistaken for another.
SMALL = {"cql_n_actions": 5, "hidden_dim": 16, "n_ensemble": 2, "buffer_size": 200, "critic_n_hiddens": 2}
# Rows of the environment in the ladder's draws, which are the dataset's rows under other numbers
SEEN = 50
# Updates before the ladder's losses
WARM = 30


def goes_online(config: Any) -> bool:
    """Whether the updates after the warm ones are online, as in most variants."""
    return config.offline_iterations <= WARM


def take(twin: Any, dataset: Any, indices: Any, config: Any) -> Any:
    """A batch of either phase; in an online batch, the compared rows are its own rows, each half in reverse order."""
    if not goes_online(config):
        return twin.take(dataset, indices)
    size = len(dataset) if hasattr(dataset, "rows") else len(dataset.rewards)
    half, end = len(indices) // 2, len(indices)
    # The frameworks have different names for flipping.
    backwards = np.concatenate([np.arange(half)[::-1], np.arange(half, end)[::-1]])
    rows, compared = twin.take(dataset, indices % size), twin.take(dataset, indices[backwards] % size)
    return twin.BalancedBatch(
        *rows,
        places=indices,
        seen=rows.rewards * 0.0 + 1.0 * (indices >= size),
        compared_observations=compared.observations,
        compared_actions=compared.actions,
    )


def summed(priorities: np.ndarray) -> np.ndarray:
    """A tree of sums over its leaves, from the last pair to the first."""
    tree = np.concatenate([np.zeros_like(priorities), priorities])
    for node in range(len(priorities) - 1, 0, -1):
        tree[node] = tree[2 * node] + tree[2 * node + 1]
    return tree


def entered(state: Any, places: np.ndarray, rows: int) -> Any:
    """Gives new rows a priority such that they have a share of the whole at the first update."""
    leaves = np.array(state.priorities)[len(state.priorities) // 2 :]
    share, hp = state.hp.online_share, state.hp
    leaves[places] = rows * share / ((1.0 - share) * (1 + hp.learning_starts))
    return state.replace(priorities=jnp.asarray(summed(leaves)))


def drawn_batch(state: Any, twin: Any, held: Any, indices: Any, noise: Any, ring: Any) -> Any:
    """Draws rows by their share of the sum of priorities, without a tree."""
    leaves = np.asarray(state.priorities)[len(state.priorities) // 2 :]
    bounds = np.cumsum(leaves, dtype=np.float64)
    places = np.searchsorted(bounds, np.asarray(noise.row) * bounds[-1], side="right")
    rows, seen = type(held)(*(column[places] for column in held)), len(held.rewards) - RING
    return twin.BalancedBatch(
        *rows,
        places=jnp.asarray(places),
        seen=jnp.asarray(places >= seen, dtype=rows.rewards.dtype),
        compared_observations=held.observations[indices],
        compared_actions=held.actions[indices],
    )


# The capacity of the ladder's ring for the environment
RING = 3


def begins(trainer: Any, rows: int) -> None:
    """Gives every row of the dataset the priority 1."""
    leaves = np.where(np.arange(len(trainer.priorities()) // 2) < rows, 1.0, 0.0)
    tree = trainer.priorities()
    tree.copy_(tree.new_tensor(summed(leaves)))


def corner(trainer: Any) -> None:
    """Makes the density network so certain that a softplus is 0 or a straight line, and makes members differ."""
    for parameter in trainer.density.network[-1].parameters():
        parameter.data *= 1000.0
    temperatures = trainer.log_temperature.constant.data
    temperatures += torch.linspace(-0.5, 0.5, len(temperatures), dtype=temperatures.dtype)


class Adapter(Pair):
    """This pair's overrides."""

    def outputs(self, twin: Any, batch: Any) -> dict[str, Any]:
        return {
            "mean": twin.actor(batch.observations)[0],
            "std": twin.actor(batch.observations)[1],
            "critic_1": twin.critic_1(batch.observations, batch.actions),
            "critic_2": twin.critic_2(batch.observations, batch.actions),
            "density": twin.density(batch.observations, batch.actions),
        }

    corner = staticmethod(corner)

    def uses(self, loss: str, config: Any) -> bool:
        return goes_online(config) != loss.startswith("each_")

    def extra_inputs(self, rng: np.random.Generator, size: int) -> dict[str, Any]:
        return {"log_prob": rng.normal(size=size), "each_log_prob": rng.normal(size=(2, size))}

    def draw_statics(self, config: Any, step: int) -> dict[str, Any]:
        return {"online_size": SEEN if step > config.offline_iterations else None}

    def update_statics(self, config: Any, step: int) -> dict[str, Any]:
        return {"online": step > config.offline_iterations}

    def interval_statics(self, config: Any, start: int, num_updates: int) -> dict[str, Any]:
        return {"ring": None}

    def call_statics(self, config: Any, start: int, num_updates: int) -> dict[str, Any]:
        return {
            "idle": sum(step < config.switch + config.learning_starts for step in range(start, start + num_updates))
        }

    def take(self, twin: ModuleType, dataset: Any, indices: Any, config: Any) -> Any:
        return take(twin, dataset, indices, config)

    begins = staticmethod(begins)

    entered = staticmethod(entered)

    drawn_batch = staticmethod(drawn_batch)


PAIR = Adapter(
    name="finetune/balanced_replay",
    title="Balanced replay",
    family=Family.FINETUNING,
    use="The data differs from the policy's own steps: online updates start with the rows that are most similar.",
    paper="Lee et al. 2021",
    url="https://arxiv.org/abs/2107.00591",
    benchmark_updates=6,
    variants={
        # The switch comes after the intervals and among the warm updates, so that the rest are online.
        "default": SMALL | {"offline_iterations": 16, "learning_starts": 2},
        "offline": SMALL,
        "other": SMALL
        | {"offline_iterations": 16, "learning_starts": 0, "online_share": 0.4, "density_temperature": 2.0}
        | {"cql_alpha": 3.0, "batch_size": 31, "n_ensemble": 1, "critic_n_hiddens": 1, "density_lr": 1e-3},
    },
    settings={
        "run": {"buffer_size": 50_000, "learning_starts": 0},
        "timed": {"learning_starts": 0},
        "full size": {"buffer_size": 1000, "n_ensemble": 2},
    },
)
