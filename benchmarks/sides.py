"""What is timed: each twin's own loop over updates, data on the device, nothing logged, nothing evaluated."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from parity_tests.pairs import PAIRS
from shared import jax_side, torch_side

# The size of HalfCheetah's and Walker2d's states and actions; CORL's defaults give the rest.
STATE_DIM, ACTION_DIM, ROWS = 17, 6, 100_000


# Updates in a block: some seconds' worth
UPDATES = {"any_percent_bc": 1500, "td3_bc": 500, "awac": 200, "cql": 20, "iql": 400, "dt": 30, "sac": 500}


def made_up_rows() -> dict[str, np.ndarray]:
    """A dataset file's rows of the benchmark's size, float32."""
    rng, size = np.random.default_rng(0), ROWS + 1
    return {
        "observations": rng.normal(size=(size, STATE_DIM)).astype(np.float32),
        "actions": rng.uniform(-1.0, 1.0, size=(size, ACTION_DIM)).astype(np.float32),
        "rewards": rng.normal(size=size).astype(np.float32),
        "terminals": rng.random(size) < 0.01,
        "timeouts": np.arange(size) == size - 1,
    }


def torch_eager(name: str) -> Callable[[], None]:
    """A block of the PyTorch twin's updates, as its `train` makes them."""
    pair = PAIRS[name]
    config, columns = pair.torch.TrainConfig(), pair.load(made_up_rows())
    trainer = pair.torch.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    device = torch_side.resolve_device(config.device)
    dataset = torch_side.to_device(columns, device)
    draw = pair.torch_draws(config, columns, ACTION_DIM, device)

    def block() -> None:
        for _ in range(UPDATES[name]):
            indices, noise = draw()
            metrics = trainer.update(pair.take(pair.torch, dataset, indices, config), noise)
        next(iter(metrics.values())).item()  # waits for the device

    return block


def jax_interval(name: str) -> tuple[Callable, tuple]:
    """The JAX twin's compiled interval, without its arguments' values filled in, and those arguments."""
    pair = PAIRS[name]
    config, updates = pair.jax.TrainConfig(), UPDATES[name]
    state = pair.jax.create_train_state(jax.random.key(0), config, STATE_DIM, ACTION_DIM, 1.0)
    dataset = jax_side.to_device(pair.load(made_up_rows()))
    statics = pair.interval_statics(config, 0, updates)
    interval = partial(pair.jax.train_interval, num_updates=updates, **statics)
    return interval, (state, jax.random.key(1), dataset, 0)


def jax_scan(name: str) -> Callable[[], None]:
    """A block of the JAX twin's updates, as its `train` makes them: one scan."""
    interval, (state, *rest) = jax_interval(name)
    holder = {"state": state}

    def block() -> None:
        holder["state"], history = interval(holder["state"], *rest)
        jax.block_until_ready((holder["state"], jax_side.mean_metrics(history)))

    return block


SIDES: dict[str, Callable[[str], Callable[[], Any]]] = {"PyTorch eager": torch_eager, "JAX scan": jax_scan}
