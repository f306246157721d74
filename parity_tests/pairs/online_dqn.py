"""DQN on the ladder, with a dataset and with experience from an environment."""

from typing import Any

import numpy as np

from parity_tests.families import Family
from parity_tests.pair import FinitePair
from parity_tests.pairs import quantiles

SMALL = {"env": "CartPole-v1", "hidden_dims": (64, 48), "target_update_period": 2, "learning_rate": 1e-3}
# The rows of experience so far, fewer than a dataset has, so that a draw beyond them is noticed.
FILLED = 150


def explored(rng: Any, rows: int, action_dim: int) -> dict[str, Any]:
    """Uniform numbers on both sides of epsilon, and of its ends."""
    uniform, epsilon = rng.random(rows), rng.random(rows)
    uniform[0] = epsilon[0] = 0.5
    return {"random": rng.integers(action_dim, size=rows), "uniform": uniform, "epsilon": epsilon}


def schedules(twin: Any) -> dict[str, Any]:
    """The shares of random actions and the numbers of updates over the steps of a run."""
    config = twin.TrainConfig(
        batch_size=8, epsilon_start=0.9, epsilon_end=0.2, epsilon_steps=20, update_interval=4, n_updates=2
    )
    later = twin.TrainConfig(batch_size=8, learning_starts=11)
    return {
        "epsilons": twin.epsilons(config, 5, 30),
        "updates": np.array([[twin.updates_until(each, step) for step in range(40)] for each in (config, later)]),
    }


class Adapter(FinitePair):
    """This pair's overrides."""

    corners = ("acting",)
    records_on_cpu = False

    outputs = staticmethod(quantiles.outputs)

    corner = staticmethod(quantiles.corner)

    def draw_inputs(self, dataset: Any, action_dim: int) -> tuple:
        return (FILLED,)

    def update_statics(self, config: Any, step: int) -> dict[str, Any]:
        return {"copied": (step - 1) % config.target_update_period == 0}

    def interval_statics(self, config: Any, start: int, num_updates: int) -> dict[str, Any]:
        return {
            "size": FILLED,
            "phase": start % config.target_update_period,
        }

    explored = staticmethod(explored)

    prepared = staticmethod(schedules)


PAIR = Adapter(
    name="online/dqn",
    title="DQN, online",
    family=Family.FINITE,
    use="It learns while it acts, or from data. Double DQN, QR-DQN and IQN are settings.",
    paper="Mnih et al. 2015",
    url="https://doi.org/10.1038/nature14236",
    benchmark_updates=500,
    variants={
        "default": SMALL,
        "double": SMALL
        | {"double": True, "target_update_period": 3, "n_critics": 3}
        | {"discount": 0.9, "learning_rate": 3e-3, "adam_eps": 3e-4},
        **{name: SMALL | settings for name, settings in quantiles.VARIANTS.items()},
        "images": SMALL | quantiles.VARIANTS["images"] | {"encoder": "nature", "frame_stack": 1, "n_critics": 1},
        "ensemble": SMALL | {"n_critics": 2, "target_update_period": 5},
    },
)
