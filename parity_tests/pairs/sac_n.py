"""SAC-N on the ladder."""

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
    name="sac_n",
    title="SAC-N",
    family=Family.UNCERTAINTY,
    use="It uses the minimum of many critics, so you only tune their number.",
    paper="An et al. 2021",
    url="https://arxiv.org/abs/2110.01548",
    benchmark_updates=32,
    variants={"default": SMALL, "other": OTHER},
    tolerances={
        "float32": FLOAT32,
        "float64": FLOAT64,
    },
)
