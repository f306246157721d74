"""BCQ of finite actions on the ladder."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import FinitePair

SMALL = {"hidden_dims": (64, 48), "target_update_period": 2, "learning_rate": 1e-3}


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """Values, the hidden layer that the imitator may share, and the imitator's logits."""
    q, features = twin.critic(batch.observations)
    return {"critic": q, "features": features, "imitator": twin.imitator(batch.observations, features)}


def corner(trainer: Any) -> None:
    """Makes targets prefer other actions than the critics do, and critics differ from each other by more than 1."""
    for member in trainer.critic_target.members:
        member.head.weight.data.mul_(-3.0)
    for number, member in enumerate(trainer.critic.members):
        member.head.bias.data.add_(0.5 * number)


class Adapter(FinitePair):
    """This pair's overrides."""

    records_on_cpu = False

    outputs = staticmethod(outputs)

    corner = staticmethod(corner)

    def update_statics(self, config: Any, step: int) -> dict[str, Any]:
        return {"copied": (step - 1) % config.target_update_period == 0}

    def interval_statics(self, config: Any, start: int, num_updates: int) -> dict[str, Any]:
        return {"phase": start % config.target_update_period}


PAIR = Adapter(
    name="discrete/bcq",
    title="BCQ, finite actions",
    family=Family.FINITE,
    use="The data comes from narrow policies: it chooses only among actions that are likely in the data.",
    paper="Fujimoto et al. 2019",
    url="https://arxiv.org/abs/1910.01708",
    benchmark_updates=500,
    variants={
        "default": SMALL,
        # The form of d3rlpy 2.8.1, with several critics
        "own encoder": SMALL
        | {"share_encoder": False, "penalize_log_probs": True, "n_critics": 3, "target_update_period": 3}
        | {"discount": 0.9, "learning_rate": 3e-3, "adam_eps": 3e-4, "logit_penalty": 0.1, "likelihood_threshold": 0.6},
        # The threshold itself is not above the threshold, so no action may be chosen
        "no flexibility": SMALL | {"likelihood_threshold": 1.0},
        "ensemble": SMALL
        | {"n_critics": 2, "target_update_period": 5, "penalize_log_probs": True, "logit_penalty": 0.2},
        "images": SMALL | {"encoder": "minatar", "frame_stack": 2, "hidden_dims": (24,), "adam_eps": 3e-3},
    },
)
