"""Behaviour cloning of finite actions on the ladder."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import FinitePair

SMALL = {"hidden_dims": (64, 48)}


class Adapter(FinitePair):
    """This pair's overrides."""

    def outputs(self, twin: Any, batch: Any) -> dict[str, Any]:
        return {"actor": twin.actor(batch.observations)}


PAIR = Adapter(
    name="discrete/bc",
    title="BC, finite actions",
    family=Family.FINITE,
    use="A baseline for the others: it copies the data's most likely action.",
    paper="Pomerleau 1991",
    url="https://doi.org/10.1162/neco.1991.3.1.88",
    benchmark_updates=1000,
    variants={
        "default": SMALL,
        # The form of d3rlpy 2.8.1
        "log-probabilities": SMALL
        | {"penalize_log_probs": True, "logit_penalty": 0.1, "learning_rate": 3e-3, "adam_eps": 3e-4},
        "images": SMALL | {"encoder": "minatar", "frame_stack": 2, "hidden_dims": (24,), "adam_eps": 3e-3},
    },
)
