"""LB-SAC on the ladder."""

from typing import Any

import numpy as np

from parity_tests.families import Family
from parity_tests.pair import Pair
from parity_tests.pairs.ensemble import FLOAT32, FLOAT64, OTHER, SMALL, outputs
from shared.data.transitions import extract_transitions


class Adapter(Pair):
    """This pair's overrides."""

    corners = ("bounded std",)

    outputs = staticmethod(outputs)

    def load(self, raw: dict[str, np.ndarray], frame_stack: int = 1) -> Any:
        # States are never normalised.
        return extract_transitions(raw)


PAIR = Adapter(
    name="lb_sac",
    title="LB-SAC",
    family=Family.UNCERTAINTY,
    use="SAC-N with fewer but larger updates, for a GPU.",
    paper="Nikulin et al. 2022",
    url="https://arxiv.org/abs/2211.11092",
    benchmark_updates=2,
    variants={
        "default": SMALL,
        # Only one of the two flags, to detect mistaking one for the other
        "other": OTHER | {"edac_init": True},
        "layer norm": SMALL | {"critic_ln": True, "edac_init": True},
    },
    settings={
        # A tenth of the default batch size, because the warm updates would take minutes, and heads that start small.
        # With PyTorch's own heads, the actions for the made-up rows are very close to their bounds. There float32 has
        # no digits left for the policy's gradient, which is 5e-3 apart (float64: 1e-11).
        "full size": {"batch_size": 1000, "edac_init": True},
    },
    tolerances={
        "float32": FLOAT32,
        "float64": FLOAT64,
    },
)
