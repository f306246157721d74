"""Behaviour cloning on the ladder."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import Pair


class Adapter(Pair):
    """This pair's overrides."""

    def outputs(self, twin: Any, batch: Any) -> dict[str, Any]:
        return {"actor": twin.actor(batch.observations)}

    def draw_inputs(self, dataset: Any, action_dim: int) -> tuple:
        return (len(dataset[0]),)


PAIR = Adapter(
    name="any_percent_bc",
    title="BC, the best trajectories or all",
    family=Family.IMITATION,
    use="A baseline for all others: it copies all of the data's actions, or only the best episodes.",
    paper="Pomerleau 1991; Chen et al. 2021",
    url="https://arxiv.org/abs/2106.01345",
    benchmark_updates=300,
    variants={"default": {}, "images": {"encoder": "minatar", "frame_stack": 2, "crop_padding": 2}},
)
