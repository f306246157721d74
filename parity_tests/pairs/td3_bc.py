"""TD3+BC on the ladder."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import Pair


class Adapter(Pair):
    """This pair's overrides."""

    def outputs(self, twin: Any, batch: Any) -> dict[str, Any]:
        return {
            "actor": twin.actor(batch.observations),
            "critic_1": twin.critic_1(batch.observations, batch.actions),
            "critic_2": twin.critic_2(batch.observations, batch.actions),
        }

    def update_statics(self, config: Any, step: int) -> dict[str, Any]:
        return {"delayed": step % config.policy_freq == 0}

    def interval_statics(self, config: Any, start: int, num_updates: int) -> dict[str, Any]:
        return {"phase": start % config.policy_freq}


PAIR = Adapter(
    name="td3_bc",
    title="TD3+BC",
    family=Family.CONSTRAINT,
    use="TD3 with a pull towards the data's actions, and only one number to tune.",
    paper="Fujimoto & Gu 2021",
    url="https://arxiv.org/abs/2106.06860",
    benchmark_updates=120,
    variants={
        "default": {},
        "other": {"policy_freq": 3, "discount": 0.9, "tau": 0.1, "alpha": 1.0, "policy_noise": 0.5, "noise_clip": 0.3},
    },
)
