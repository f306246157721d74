"""IQL, offline to online, on the ladder."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import Pair
from parity_tests.pairs import iql

# The rows stored so far, fewer than a dataset has, so that a draw beyond them is noticed.
FILLED = 150


class Adapter(Pair):
    """This pair's overrides."""

    corners = iql.PAIR.corners

    outputs = staticmethod(iql.PAIR.outputs)

    drawn_inside = staticmethod(iql.PAIR.drawn_inside)

    def draw_inputs(self, dataset: Any, action_dim: int) -> tuple:
        return (FILLED, action_dim)

    def interval_statics(self, config: Any, start: int, num_updates: int) -> dict[str, Any]:
        return {"size": FILLED}

    extra_inputs = staticmethod(iql.PAIR.extra_inputs)


PAIR = Adapter(
    name="finetune/iql",
    title="IQL, offline to online",
    family=Family.FINETUNING,
    use="The most stable start; it improves slowly online.",
    paper="Kostrikov et al. 2021",
    url="https://arxiv.org/abs/2110.06169",
    benchmark_updates=100,
    variants={
        "default": {},
        # The switch is within the ladder's trajectory, and the learning rate rises after it. Weights reach their cap,
        # and the noise of exploration its bound.
        "other": {"discount": 0.9, "tau": 0.1, "inverse_temperature": 20.0, "iql_tau": 0.9, "iql_deterministic": True}
        | {"offline_iterations": 40, "value_lr": 1e-3, "critic_lr": 1e-4, "actor_lr": 1e-3, "expl_noise": 0.5},
        "dropout": {"actor_dropout": 0.1},
    },
)
