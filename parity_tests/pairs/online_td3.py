"""TD3 on the ladder, with a dataset and with experience from an environment."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import Pair
from parity_tests.pairs import quantiles

SMALL = {"env": "mini/hopper-mostly-expert", "actor_hidden_dims": (64, 48), "critic_hidden_dims": (48, 64)}
# The rows of experience so far, fewer than a dataset has, so that a draw beyond them is noticed.
FILLED = 150


def corner(trainer: Any) -> None:
    """Moves actions close to their bounds, which the noise crosses, and makes critics differ."""
    for actor in (trainer.actor, trainer.actor_target):
        actor.net[-1].weight.data.mul_(20.0)
    for member in trainer.critic_target.members:
        quantiles.last_layer(member).weight.data.mul_(20.0)


class Adapter(Pair):
    """This pair's overrides."""

    records_on_cpu = False

    def outputs(self, twin: Any, batch: Any) -> dict[str, Any]:
        return {
            "actor": twin.actor(batch.observations),
            "critic": twin.critic(batch.observations, batch.actions),
        }

    corner = staticmethod(corner)

    def draw_inputs(self, dataset: Any, action_dim: int) -> tuple:
        return (FILLED, action_dim)

    def update_statics(self, config: Any, step: int) -> dict[str, Any]:
        return {"delayed": (step - 1) % config.policy_freq == 0}

    def interval_statics(self, config: Any, start: int, num_updates: int) -> dict[str, Any]:
        return {"size": FILLED, "phase": start % config.policy_freq}


PAIR = Adapter(
    name="online/td3",
    title="TD3, online",
    family=Family.ONLINE,
    use="Deterministic policies; TD3+BC and ReBRAC are based on it.",
    paper="Fujimoto et al. 2018",
    url="https://arxiv.org/abs/1802.09477",
    benchmark_updates=120,
    variants={
        "default": SMALL,
        "other": SMALL
        | {"policy_freq": 3, "n_critics": 3, "discount": 0.9, "tau": 0.1}
        | {"policy_noise": 0.5, "noise_clip": 0.3, "actor_lr": 1e-3, "critic_lr": 1e-4},
        "each": SMALL | {"policy_freq": 1, "n_critics": 1, "tau": 0.1},
        **{name: SMALL | settings for name, settings in quantiles.CONTINUOUS.items()},
    },
)
