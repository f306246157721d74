"""EDAC on the ladder."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import Facts, Pair
from parity_tests.pairs.ensemble import FLOAT32, FLOAT64, LOSSES, OTHER, SMALL, outputs
from shared.data.transitions import extract_transitions


def corner(trainer: Any) -> None:
    """A critic whose units are silent but in the rows of extreme states: elsewhere its gradient has no direction."""
    trainer.critic.critic[2].bias.data[0] -= 3.0


PAIR = Pair(
    name="edac",
    title="EDAC",
    family=Family.UNCERTAINTY,
    use="SAC-N with a tenth of its critics, which are made to differ.",
    paper="An et al. 2021",
    url="https://arxiv.org/abs/2110.01548",
    benchmark_updates=24,
    outputs=outputs,
    corners=("bounded std",),
    losses=LOSSES,
    variants={"default": SMALL, "other": OTHER | {"eta": 3.0}},
    corner=corner,
    # States are never normalised.
    load=extract_transitions,
    float32=FLOAT32,
    float64=FLOAT64,
    facts=Facts(rewarded="critic_loss"),
)
