"""ACFQL, offline to online, on the ladder."""

from typing import Any

import jax.numpy as jnp
import torch

from parity_tests.families import Family
from parity_tests.pair import Pair
from parity_tests.pairs import acfql
from parity_tests.pairs.finetune_iql import FILLED
from shared.data.chunks import Chunks
from shared.data.returns import EndedBatch
from shared.data.transitions import Batch

# The row from which stored rows are counted, so that some chunks contain the last stored row and then the first one.
FIRST = 60

# Fewer layers compile faster; the offline twin's checks cover other depths, and the full-size check the default ones.
# Learning starts within a call of the online phase.
SHALLOW = {"actor_hidden_dims": (24,), "critic_hidden_dims": (32,), "horizon_length": 3, "flow_steps": 3}
SHALLOW |= {"n_action_samples": 5, "learning_starts": 3}


class Adapter(Pair):
    """This pair's overrides."""

    outputs = staticmethod(acfql.outputs)

    load = acfql.Adapter.load

    unchosen_rows = acfql.Adapter.unchosen_rows

    uses = acfql.Adapter.uses

    def take(self, twin: Any, dataset: Any, indices: Any, config: Any) -> Any:
        return twin.take_chunks(dataset, indices, config, FILLED, FIRST)

    def draw_inputs(self, dataset: Any, action_dim: int) -> tuple:
        return (FILLED, action_dim)

    def interval_statics(self, config: Any, start: int, num_updates: int) -> dict[str, Any]:
        return {"size": FILLED, "first": FIRST}

    def call_statics(self, config: Any, start: int, num_updates: int) -> dict[str, Any]:
        return {
            "idle": sum(step < config.switch + config.learning_starts for step in range(start, start + num_updates))
        }

    def as_rows(self, steps: Batch) -> Any:
        return EndedBatch(*steps, last=steps.terminals)

    def drawn_batch(self, state: Any, twin: Any, held: Any, indices: Any, noise: Any, ring: Any) -> Any:
        # Rows in the order of their age: the oldest is the next to be overwritten.
        first = 0 if state.hp.chunks_across_newest else ring.pointer
        columns = EndedBatch(*(torch.roll(column[: ring.size], -first, dims=0) for column in ring.rows))
        chosen = torch.as_tensor(indices.__array__().copy())
        chunks = self.torch.take_chunks(columns, chosen, state.hp, ring.size, 0)
        return Chunks(*(jnp.asarray(column.numpy()) for column in chunks))


PAIR = Adapter(
    name="finetune/acfql",
    title="ACFQL, offline to online",
    family=Family.FINETUNING,
    use="Rewards are rare and far away, and exploration must keep a direction for several steps.",
    paper="Li et al. 2025",
    url="https://arxiv.org/abs/2507.07969",
    benchmark_updates=10,
    variants={
        "default": SHALLOW,
        # Also chunks of the newest and the oldest rows
        "best of n": dict(acfql.PAIR.variants["best of n"])
        | {"actor_hidden_dims": (16, 24), "critic_hidden_dims": (24, 16), "chunks_across_newest": True}
        | {"learning_starts": 0},
        "h = 1": dict(acfql.PAIR.variants["h = 1"])
        | {"actor_hidden_dims": (16,), "critic_hidden_dims": (24,), "flow_steps": 2, "learning_starts": 1},
    },
    settings={"run": {"learning_starts": 0}, "timed": {"learning_starts": 0}},
)
