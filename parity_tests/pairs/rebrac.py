"""ReBRAC on the ladder."""

from typing import Any

import numpy as np

from parity_tests.families import Family
from parity_tests.pair import Pair
from shared.data.transitions import extract_sarsa

SMALL = {"hidden_dim": 64}


class Adapter(Pair):
    """This pair's overrides."""

    def outputs(self, twin: Any, batch: Any) -> dict[str, Any]:
        return {
            "actor": twin.actor(batch.observations),
            "critic": twin.critic(batch.observations, batch.actions),
        }

    def update_statics(self, config: Any, step: int) -> dict[str, Any]:
        return {"delayed": (step - 1) % config.policy_freq == 0}

    def interval_statics(self, config: Any, start: int, num_updates: int) -> dict[str, Any]:
        return {"phase": start % config.policy_freq}

    def load(self, raw: dict[str, np.ndarray], frame_stack: int = 1) -> Any:
        return extract_sarsa(raw)


PAIR = Adapter(
    name="rebrac",
    title="ReBRAC",
    family=Family.CONSTRAINT,
    use="An extended TD3+BC with the best scores in this family, but more numbers to tune.",
    paper="Tarasov et al. 2023",
    url="https://arxiv.org/abs/2305.09836",
    benchmark_updates=40,
    variants={
        "default": SMALL,
        "other": SMALL
        | {"policy_freq": 3, "discount": 0.9, "tau": 0.1, "policy_noise": 0.5, "noise_clip": 0.3}
        | {"actor_bc_coef": 0.1, "critic_bc_coef": 0.01, "actor_lr": 3e-4, "critic_lr": 5e-4},
        # Other depths, the norms exchanged, an unscaled Q term, noise that reaches the bounds
        "plain": SMALL
        | {"actor_n_hiddens": 1, "critic_n_hiddens": 2, "actor_ln": True, "critic_ln": False}
        | {"normalize_q": False, "policy_freq": 1, "policy_noise": 1.0, "noise_clip": 2.0},
    },
)
