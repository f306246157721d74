"""ReBRAC, offline to online, on the ladder."""

from typing import Any

import numpy as np

from parity_tests.families import Family
from parity_tests.pair import Pair
from parity_tests.pairs import rebrac
from shared.data.returns import extract_returns, online_rows

# Fewer layers compile faster; the offline twin's checks cover other depths, and the full-size check the default ones.
SHALLOW = rebrac.SMALL | {"actor_n_hiddens": 1, "critic_n_hiddens": 1}


def call_statics(config: Any, start: int, num_updates: int) -> dict[str, int]:
    """The phase of the first update in a call, and the number of warm-up steps before it."""
    idle = sum(step < config.switch + config.learning_starts for step in range(start, start + num_updates))
    return {"phase": (start + idle) % config.policy_freq, "idle": idle}


class Adapter(Pair):
    """This pair's overrides."""

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
        # The switch comes with the first update after the warm ones. The weight falls after the warm-up's steps, which
        # end within a call. A quarter of a batch is new.
        "other": dict(rebrac.PAIR.variants["other"])
        | SHALLOW
        | {"offline_iterations": 30, "online_iterations": 8, "min_decay_coef": 0.3, "online_share": 0.25}
        | {"learning_starts": 3}
        | {"use_calibration": True, "expl_noise": 0.2},
        # The weight has its smallest value from the first update after the warm ones on; exploration reaches the
        # bounds.
        "plain": dict(rebrac.PAIR.variants["plain"])
        | {"offline_iterations": 20, "online_iterations": 5, "online_share": 0.75, "expl_noise": 1.0},
    },
    # The offline twin's checks cover when the actor steps, and the shipped path covers its phase.
)
