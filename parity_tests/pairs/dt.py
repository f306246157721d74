"""Decision Transformer on the ladder."""

from typing import Any

import numpy as np

from parity_tests.families import Family
from parity_tests.pair import Pair
from shared.data import sequences

SMALL = {"embedding_dim": 16, "num_heads": 2, "seq_len": 6}


def load(raw: dict[str, np.ndarray]) -> sequences.Trajectories:
    """Trajectories with normalised states and scaled returns."""
    dataset, _, _ = sequences.normalise_states(sequences.split_trajectories(raw), raw["observations"])
    return dataset._replace(returns=dataset.returns * np.float32(0.001))


def outputs(twin: Any, batch: sequences.Windows) -> dict[str, Any]:
    """The actions without dropout, also in the padding of windows."""
    return {"actions": twin.model(*batch[:4], PAIR.torch.no_dropout(twin.hp))}


class Adapter(Pair):
    """This pair's overrides."""

    # The windows and the timesteps' embeddings
    gathers = 2
    draws_inside = True

    outputs = staticmethod(outputs)

    def draw_inputs(self, dataset: Any, action_dim: int) -> tuple:
        return (len(dataset.actions),)

    def torch_draw_inputs(self, dataset: Any, action_dim: int) -> tuple:
        return (sequences.trajectory_lengths(dataset),)

    def take(self, twin: Any, dataset: Any, indices: Any, config: Any) -> Any:
        return twin.take_windows(dataset, indices, config.seq_len)

    def load(self, raw: dict[str, np.ndarray], frame_stack: int = 1) -> Any:
        return load(raw)

    def drawn_inside(self, twin: Any, noise: Any, hp: Any) -> Any:
        return twin.Noise(twin.draw_dropout(noise.dropout, hp))


PAIR = Adapter(
    name="dt",
    title="Decision Transformer",
    family=Family.IMITATION,
    use="It imitates actions that led to the return you ask for, and needs whole episodes.",
    paper="Chen et al. 2021",
    url="https://arxiv.org/abs/2106.01345",
    benchmark_updates=16,
    variants={
        "default": SMALL | {"num_layers": 2, "clip_grad": 0.02, "warmup_steps": 32, "learning_rate": 1e-3},
        "no dropout": SMALL
        | {"attention_dropout": 0.0, "residual_dropout": 0.0, "embedding_dropout": 0.0}
        | {"num_layers": 1, "num_heads": 1, "clip_grad": None, "warmup_steps": 40}
        | {"betas": (0.8, 0.95), "weight_decay": 0.1},
        # No gradient is as long as that.
        "far clip": SMALL | {"num_layers": 1, "clip_grad": 1000.0, "warmup_steps": 32},
    },
    tolerances={
        # The gradient of the keys' biases is rounding alone, and Adam turns it into steps. The packed bias differs by
        # 1.0e-5 in one update. It differs by more in the eleven updates of an interval, which is rounded in another
        # order.
        "float32": {"update": 1e-4, "shipped path": 1e-4},
    },
)
