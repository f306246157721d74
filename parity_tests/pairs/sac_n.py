"""SAC-N on the ladder."""

from parity_tests.families import Family
from parity_tests.pair import Facts, Pair
from parity_tests.pairs.ensemble import FLOAT32, FLOAT64, LOSSES, OTHER, SMALL, outputs
from shared.data.transitions import extract_transitions

PAIR = Pair(
    name="sac_n",
    title="SAC-N",
    family=Family.UNCERTAINTY,
    use="Many critics and their minimum, nothing else to tune but their number.",
    paper="An et al. 2021",
    url="https://arxiv.org/abs/2110.01548",
    benchmark_updates=32,
    outputs=outputs,
    corners=("bounded std",),
    losses=LOSSES,
    variants={"default": SMALL, "other": OTHER},
    # States are never normalised.
    load=extract_transitions,
    float32=FLOAT32,
    float64=FLOAT64,
    facts=Facts(rewarded="critic_loss"),
)
