"""What is timed: each twin's own loop over updates, data on the device, nothing logged, nothing evaluated."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from shared import jax_side, torch_side
from shared.data import Batch

# The size of HalfCheetah's and Walker2d's states and actions; CORL's defaults give the rest.
STATE_DIM, ACTION_DIM, ROWS = 17, 6, 100_000


@dataclass(frozen=True)
class Algorithm:
    """One pair as the benchmark sees it.

    Attributes:
        updates: Updates in a block; some seconds' worth.
        interval_statics: The further arguments of the JAX twin's `train_interval`.
    """

    updates: int
    interval_statics: Mapping[str, int]


ALGORITHMS = {
    "td3_bc": Algorithm(updates=500, interval_statics={"phase": 0}),
    "cql": Algorithm(updates=20, interval_statics={"phase": 0, "bc_updates": 0}),
}


def made_up_dataset() -> Batch:
    """Rows of the benchmark's size, float32."""
    rng = np.random.default_rng(0)
    columns = (
        rng.normal(size=(ROWS, STATE_DIM)),
        rng.uniform(-1.0, 1.0, size=(ROWS, ACTION_DIM)),
        rng.normal(size=ROWS),
        rng.normal(size=(ROWS, STATE_DIM)),
        rng.random(ROWS) < 0.01,
    )
    return Batch(*(column.astype(np.float32) for column in columns))


def torch_eager(name: str) -> Callable[[], None]:
    """A block of the PyTorch twin's updates, as its `train` makes them."""
    twin = importlib.import_module(f"corl_torch.{name}")
    config = twin.TrainConfig()
    trainer = twin.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    device = torch_side.resolve_device(config.device)
    dataset = torch_side.to_device(made_up_dataset(), device)

    def block() -> None:
        for _ in range(ALGORITHMS[name].updates):
            indices, noise = twin.draw_noise(config, ROWS, ACTION_DIM, device)
            metrics = trainer.update(torch_side.take(dataset, indices), noise)
        next(iter(metrics.values())).item()  # waits for the device

    return block


def jax_interval(name: str) -> tuple[Callable, tuple]:
    """The JAX twin's compiled interval, without its arguments' values filled in, and those arguments."""
    twin = importlib.import_module(f"corl_jax.{name}")
    state = twin.create_train_state(jax.random.key(0), twin.TrainConfig(), STATE_DIM, ACTION_DIM, 1.0)
    dataset = jax_side.to_device(made_up_dataset())
    algorithm = ALGORITHMS[name]
    interval = partial(twin.train_interval, num_updates=algorithm.updates, **algorithm.interval_statics)
    return interval, (state, jax.random.key(1), dataset, 0)


def jax_scan(name: str) -> Callable[[], None]:
    """A block of the JAX twin's updates, as its `train` makes them: one scan."""
    interval, (state, *rest) = jax_interval(name)
    holder = {"state": state}

    def block() -> None:
        holder["state"], metrics = interval(holder["state"], *rest)
        jax.block_until_ready((holder["state"], metrics))

    return block


SIDES: dict[str, Callable[[str], Callable[[], Any]]] = {"PyTorch eager": torch_eager, "JAX scan": jax_scan}
