"""EDAC on the ladder."""

from typing import Any

import numpy as np

from parity_tests.families import Family
from parity_tests.pair import Pair
from parity_tests.pairs.ensemble import FLOAT32, FLOAT64, OTHER, SMALL, outputs
from shared.data.transitions import extract_transitions


def corner(trainer: Any) -> None:
    """Silences a critic's units except in rows with extreme states: elsewhere its gradient has no direction."""
    trainer.critic.critic[2].bias.data[0] -= 3.0


class Adapter(Pair):
    """This pair's overrides."""

    corners = ("bounded std",)

    outputs = staticmethod(outputs)

    corner = staticmethod(corner)

    def load(self, raw: dict[str, np.ndarray], frame_stack: int = 1) -> Any:
        # States are never normalised.
        return extract_transitions(raw)


PAIR = Adapter(
    name="edac",
    title="EDAC",
    family=Family.UNCERTAINTY,
    use="SAC-N with a tenth of the critics, which are trained to differ.",
    paper="An et al. 2021",
    url="https://arxiv.org/abs/2110.01548",
    benchmark_updates=24,
    variants={"default": SMALL, "other": OTHER | {"eta": 3.0}},
    tolerances={
        "float32": FLOAT32,
        "float64": FLOAT64,
    },
)
