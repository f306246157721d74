"""SAC of finite actions on the ladder."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import FinitePair

SMALL = {"hidden_dims": (64, 48), "target_update_period": 2, "actor_lr": 1e-3, "critic_lr": 1e-3}


def corner(trainer: Any) -> None:
    """Makes targets disagree with the critics, and critics differ from each other by more than 1."""
    for member in trainer.critic_target.members:
        member[-1].weight.data.mul_(-3.0)
    for number, member in enumerate(trainer.critic.members):
        member[-1].bias.data.add_(0.5 * number)


class Adapter(FinitePair):
    """This pair's overrides."""

    records_on_cpu = False
    compiled_in = "float32"

    def outputs(self, twin: Any, batch: Any) -> dict[str, Any]:
        return {
            "actor": twin.actor(batch.observations),
            "critic": twin.critic(batch.observations),
        }

    corner = staticmethod(corner)

    def uses(self, loss: str, config: Any) -> bool:
        return loss != "temp_loss" or config.temperature_lr > 0.0

    def update_statics(self, config: Any, step: int) -> dict[str, Any]:
        return {"copied": (step - 1) % config.target_update_period == 0}

    def interval_statics(self, config: Any, start: int, num_updates: int) -> dict[str, Any]:
        return {"phase": start % config.target_update_period}


PAIR = Adapter(
    name="discrete/sac",
    title="SAC, finite actions",
    family=Family.FINITE,
    use="The data is broad, like a replay buffer, because nothing holds the policy to it.",
    paper="Christodoulou 2019",
    url="https://arxiv.org/abs/1910.07207",
    benchmark_updates=300,
    variants={
        "default": SMALL | {"initial_temperature": 0.5, "temperature_lr": 1e-2},
        # The form of d3rlpy 2.8.1, with several critics
        "huber": SMALL
        | {"huber": True, "n_critics": 3, "target_update_period": 3, "discount": 0.9, "entropy_share": 0.5}
        | {"actor_lr": 3e-3, "critic_lr": 2e-3, "temperature_lr": 3e-3, "initial_temperature": 0.2},
        "constant temperature": SMALL
        | {"temperature_lr": 0.0, "initial_temperature": 2.0, "n_critics": 1, "target_update_period": 5},
        "images": SMALL | {"encoder": "minatar", "frame_stack": 2, "hidden_dims": (24,)},
    },
)
