"""AWAC, offline to online, on the ladder."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import Pair
from parity_tests.pairs import awac
from parity_tests.pairs.finetune_iql import FILLED


class Adapter(Pair):
    """This pair's overrides."""

    outputs = staticmethod(awac.PAIR.outputs)

    def draw_inputs(self, dataset: Any, action_dim: int) -> tuple:
        return (FILLED, action_dim)

    def interval_statics(self, config: Any, start: int, num_updates: int) -> dict[str, Any]:
        return {"size": FILLED}


PAIR = Adapter(
    name="finetune/awac",
    title="AWAC, offline to online",
    family=Family.FINETUNING,
    use="Few settings, and a policy that forgets little at the switch.",
    paper="Nair et al. 2020",
    url="https://arxiv.org/abs/2006.09359",
    benchmark_updates=50,
    variants=awac.PAIR.variants,
)
