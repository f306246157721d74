"""ACFQL on the ladder."""

from typing import Any

import numpy as np

from parity_tests.families import Family
from parity_tests.pair import Pair
from shared.data.chunks import extract_in_order
from shared.data.transitions import normalise_states
from shared.frameworks.jax_data import PackedDataset

SMALL = {"actor_hidden_dims": (32, 24), "critic_hidden_dims": (24, 32), "horizon_length": 3, "n_action_samples": 5}


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """Every network's output, and the flow's end points; arbitrary columns of the batch serve as noise and times."""
    return {
        "actor": twin.actor(batch.observations, batch.actions),
        "flow": twin.flow(batch.observations, batch.actions, batch.observations[:, 0]),
        "critic": twin.critic(batch.observations, batch.actions),
    }


class Adapter(Pair):
    """This pair's overrides."""

    outputs = staticmethod(outputs)

    def load(self, raw: dict[str, np.ndarray], frame_stack: int = 1) -> Any:
        dataset: Any = extract_in_order(raw)
        return normalise_states(dataset)[0]

    def unchosen_rows(self, config: Any) -> int:
        return config.horizon_length - 1

    def take(self, twin: Any, dataset: Any, indices: Any, config: Any) -> Any:
        rows = len(dataset) if isinstance(dataset, PackedDataset) else len(dataset.rewards)
        # The ladder takes all rows for some comparisons, and no chunk begins in the last ones.
        return twin.take_chunks(dataset, indices.clip(max=rows - 1 - self.unchosen_rows(config)), config)

    def uses(self, loss: str, config: Any) -> bool:
        return loss != "actor_loss" or config.actor_type == "distill-ddpg"


PAIR = Adapter(
    name="acfql",
    title="ACFQL",
    family=Family.CONSTRAINT,
    use="Rewards are rare and far away, and the data's actions go together over several steps.",
    paper="Li et al. 2025",
    url="https://arxiv.org/abs/2507.07969",
    benchmark_updates=10,
    variants={
        "default": SMALL,
        # The best of n by the smaller value, the norms exchanged, deeper networks
        "best of n": SMALL
        | {"actor_hidden_dims": (16, 24, 16), "critic_hidden_dims": (24, 16, 24), "actor_type": "best-of-n"}
        | {"q_agg": "min", "actor_ln": True, "critic_ln": False, "horizon_length": 2}
        | {"flow_steps": 3, "discount": 0.9, "tau": 0.1, "learning_rate": 1e-3},
        # An action at a time, as FQL
        "h = 1": SMALL
        | {"horizon_length": 1, "q_agg": "min", "flow_steps": 3, "distill_coef": 0.3}
        | {"sparse_rewards": True},
    },
)
