"""FQL, offline to online, on the ladder."""

from parity_tests.families import Family
from parity_tests.pair import Pair
from parity_tests.pairs import fql
from parity_tests.pairs.finetune_iql import FILLED

# The offline twin's ladder has the depths, and full size those of the defaults: fewer layers are compiled sooner.
SHALLOW = {"actor_hidden_dims": (24,), "critic_hidden_dims": (32,), "flow_steps": 3}

PAIR = Pair(
    name="finetune/fql",
    title="FQL, offline to online",
    family=Family.FINETUNING,
    use="The data's actions have several modes; the policy explores by its own noise.",
    paper="Park et al. 2025",
    url="https://arxiv.org/abs/2502.02538",
    benchmark_updates=10,
    outputs=fql.PAIR.outputs,
    losses=fql.PAIR.losses,
    variants={
        "default": SHALLOW,
        "other": dict(fql.PAIR.variants["other"])
        | {"actor_hidden_dims": (16, 24), "critic_hidden_dims": (24, 16), "flow_steps": 2},
    },
    draw_inputs=lambda dataset, action_dim: (FILLED, action_dim),
    interval_statics=lambda config, start, num_updates: {"size": FILLED},
    explores=True,
    facts=fql.PAIR.facts,
)
