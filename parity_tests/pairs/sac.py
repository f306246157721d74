"""SAC on the ladder."""

from typing import Any

import numpy as np

from parity_tests.families import Family
from parity_tests.pair import Pair
from parity_tests.pairs import quantiles

# Learning begins within the first block of the short runs, after a few uniform actions.
SMALL = {"hidden_dim": 64, "random_steps": 3, "update_every": 5}
# The rows of experience so far, fewer than a dataset has, so that a draw beyond them is noticed.
FILLED = 150


def corner(trainer: Any) -> None:
    """Moves actions so close to their lower bound that a softplus is the identity, and makes targets differ."""
    trainer.actor.net[-1].bias.data[0] -= 12.0
    for critic in (trainer.critic_1_target, trainer.critic_2_target):
        quantiles.last_layer(critic.net).weight.data.mul_(20.0)


class Adapter(Pair):
    """This pair's overrides."""

    compiled_in = "float32"

    def outputs(self, twin: Any, batch: Any) -> dict[str, Any]:
        return {
            "mean": twin.actor(batch.observations)[0],
            "log_std": twin.actor(batch.observations)[1],
            "critic_1": twin.critic_1(batch.observations, batch.actions),
            "critic_2": twin.critic_2(batch.observations, batch.actions),
        }

    corner = staticmethod(corner)

    def extra_inputs(self, rng: np.random.Generator, size: int) -> dict[str, Any]:
        return {"log_prob": rng.normal(size=size)}

    def draw_inputs(self, dataset: Any, action_dim: int) -> tuple:
        return (FILLED, action_dim)

    def interval_statics(self, config: Any, start: int, num_updates: int) -> dict[str, Any]:
        return {"size": FILLED}


PAIR = Adapter(
    name="sac",
    title="SAC, online",
    family=Family.ONLINE,
    use="Try this one first for vector actions: it tunes its own exploration.",
    paper="Haarnoja et al. 2018",
    url="https://arxiv.org/abs/1812.05905",
    benchmark_updates=100,
    variants={
        "default": SMALL,
        # With such a large rate, the temperature moves away from 1, and deviations move towards their clamp.
        "fast": SMALL | {"discount": 0.9, "tau": 0.1, "learning_rate": 1e-2},
        "quantiles": SMALL | {"critic": "qr", "n_quantiles": 5, "learning_rate": 3e-3},
        "implicit": SMALL | {"critic": "iqn", "n_quantiles": 6, "n_greedy_quantiles": 4, "embed_size": 8},
        "images": SMALL | {"encoder": "minatar", "frame_stack": 2, "crop_padding": 2, "hidden_dim": 24},
    },
)
