"""IFQL, offline to online, on the ladder."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import Pair
from parity_tests.pairs import ifql
from parity_tests.pairs.finetune_iql import FILLED

# Fewer layers compile faster; the offline twin's checks cover other depths, and the full-size check the default ones.
SHALLOW = {"actor_hidden_dims": (24,), "critic_hidden_dims": (32,), "flow_steps": 3, "n_action_samples": 5}


class Adapter(Pair):
    """This pair's overrides."""

    corners = ifql.PAIR.corners

    outputs = staticmethod(ifql.PAIR.outputs)

    def draw_inputs(self, dataset: Any, action_dim: int) -> tuple:
        return (FILLED, action_dim)

    def interval_statics(self, config: Any, start: int, num_updates: int) -> dict[str, Any]:
        return {"size": FILLED}


PAIR = Adapter(
    name="finetune/ifql",
    title="IFQL, offline to online",
    family=Family.FINETUNING,
    use="The data's actions have several modes, and the policy explores with the best of the flow's actions.",
    paper="Park et al. 2025",
    url="https://arxiv.org/abs/2502.02538",
    benchmark_updates=10,
    variants={
        "default": SHALLOW,
        "other": dict(ifql.PAIR.variants["other"])
        | {"actor_hidden_dims": (16, 24), "critic_hidden_dims": (24, 16), "flow_steps": 2},
    },
)
