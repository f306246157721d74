"""PRDC on the ladder. The search for the nearest rows to the policy's actions covers the whole dataset."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import Pair

SMALL = {"env": "mini/hopper-mostly-expert", "actor_hidden_dims": (64, 48), "critic_hidden_dims": (48, 64)}


def corner(trainer: Any) -> None:
    """Moves actions close to their bounds, which the noise crosses, and makes critics differ."""
    for actor in (trainer.actor, trainer.actor_target):
        actor.net[-1].weight.data.mul_(20.0)
    for member in trainer.critic_target.members:
        member[-1].weight.data.mul_(20.0)


class Adapter(Pair):
    """This pair's overrides."""

    # The nearest rows are searched only in updates of the policy.
    gathers = 1.5
    host_calls = 0.5

    def outputs(self, twin: Any, batch: Any) -> dict[str, Any]:
        return {
            "actor": twin.actor(batch.observations),
            "critic": twin.critic(batch.observations, batch.actions),
        }

    corner = staticmethod(corner)

    def update_statics(self, config: Any, step: int) -> dict[str, Any]:
        return {"delayed": (step - 1) % config.policy_freq == 0}

    def interval_statics(self, config: Any, start: int, num_updates: int) -> dict[str, Any]:
        return {"phase": start % config.policy_freq}

    def take(self, twin: Any, dataset: Any, indices: Any, config: Any) -> Any:
        return twin.take_constrained(dataset, indices)

    def ready(self, twin: Any, dataset: Any, config: Any) -> Any:
        return twin.constrained(dataset, config)


PAIR = Adapter(
    name="prdc",
    title="PRDC",
    family=Family.CONSTRAINT,
    use="It pulls the policy to the data's nearest state-action pair instead of the action in the same state.",
    paper="Ran et al. 2023",
    url="https://arxiv.org/abs/2306.06569",
    benchmark_updates=120,
    variants={
        "default": SMALL,
        "other": SMALL
        | {"policy_freq": 3, "n_critics": 3, "discount": 0.9, "tau": 0.1}
        | {
            "alpha": 10.0,
            "state_weight": 0.3,
            "search": "brute",
            "policy_noise": 0.5,
            "noise_clip": 0.3,
            "actor_lr": 1e-3,
            "critic_lr": 1e-4,
        },
        "each": SMALL | {"policy_freq": 1, "n_critics": 1, "tau": 0.1},
    },
    settings={
        "on device": {"search": "brute"},
    },
)
