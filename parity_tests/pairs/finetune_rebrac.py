"""ReBRAC, offline to online, on the ladder."""

from dataclasses import replace
from typing import Any

import numpy as np

from parity_tests.families import Family
from parity_tests.pair import Pair
from parity_tests.pairs import rebrac
from shared.data.returns import extract_returns, online_rows

# The offline twin's ladder has the depths, and full size those of the defaults: fewer layers are compiled sooner.
SHALLOW = rebrac.SMALL | {"actor_n_hiddens": 1, "critic_n_hiddens": 1}


def call_statics(config: Any, start: int, num_updates: int) -> dict[str, int]:
    """The phase of the first update in a call, and how many steps of the warm-up lie before it."""
    idle = sum(step < config.switch + config.learning_starts for step in range(start, start + num_updates))
    return {"phase": (start + idle) % config.policy_freq, "idle": idle}


class Adapter(Pair):
    """What is particular to this pair."""

    outputs = staticmethod(rebrac.PAIR.outputs)

    update_statics = staticmethod(rebrac.PAIR.update_statics)

    def interval_statics(self, config: Any, start: int, num_updates: int) -> dict[str, Any]:
        return {"phase": start % config.policy_freq, "ring": None}

    call_statics = staticmethod(call_statics)

    def load(self, raw: dict[str, np.ndarray], frame_stack: int = 1) -> Any:
        return extract_returns(raw)

    as_rows = staticmethod(online_rows)


PAIR = Adapter(
    name="finetune/rebrac",
    title="ReBRAC, offline to online",
    family=Family.FINETUNING,
    use="The pull towards the data fades over the online phase.",
    paper="Tarasov et al. 2023",
    url="https://arxiv.org/abs/2305.09836",
    benchmark_updates=50,
    variants={
        "default": SHALLOW,
        # The switch comes with the first warm update; the weight falls after the warm-up's steps, which end within a
        # call. A quarter of a batch is new.
        "other": dict(rebrac.PAIR.variants["other"])
        | SHALLOW
        | {"offline_iterations": 30, "online_iterations": 8, "min_decay_coef": 0.3, "online_share": 0.25}
        | {"learning_starts": 3}
        | {"use_calibration": True, "expl_noise": 0.2},
        # The weight is at its least from the first warm update on; exploration reaches the bounds.
        "plain": dict(rebrac.PAIR.variants["plain"])
        | {"offline_iterations": 20, "online_iterations": 5, "online_share": 0.75, "expl_noise": 1.0},
    },
    # When the actor steps is proven of the offline twin, and its phase by the shipped path.
    facts=replace(rebrac.PAIR.facts, first_delayed=None),
)
