"""Saving takes less than 2% of an interval of default length, with default networks."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from corl_jax import td3_bc as jax_td3_bc
from corl_torch import td3_bc
from shared.data.experience import Experience
from shared.data.transitions import Batch
from shared.frameworks import jax_checkpoints, jax_data, torch_data

pytestmark = pytest.mark.thorough

SHARE = 0.02
ROWS, STATE_DIM, ACTION_DIM = 1000, 17, 6


def columns() -> Batch:
    """Transitions of HalfCheetah's size."""
    rng = np.random.default_rng(0)
    sizes = (ROWS, STATE_DIM), (ROWS, ACTION_DIM), (ROWS,), (ROWS, STATE_DIM), (ROWS,)
    return Batch(*(rng.normal(size=size).astype(np.float32) for size in sizes))


def best_of_three(action: Callable[[], Any]) -> float:
    """The lowest of three times in seconds, because other jobs can only slow it down."""
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def torch_costs(folder: Path) -> tuple[float, float]:
    """Seconds for 50 updates, and for a save."""
    config = td3_bc.TrainConfig(device="cpu")
    trainer = td3_bc.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    dataset = torch_data.to_device(columns(), torch.device("cpu"))

    def learn() -> None:
        for _ in range(50):
            indices, noise = td3_bc.draw_noise(config, ROWS, ACTION_DIM, torch.device("cpu"))
            trainer.update(torch_data.take(dataset, indices), noise)

    return best_of_three(learn), best_of_three(partial(td3_bc.save, trainer, folder / "step_1.pt"))


def jax_costs(folder: Path) -> tuple[float, float]:
    """Seconds for 50 updates, without compilation, and for a save."""
    config = jax_td3_bc.TrainConfig()
    state = jax_td3_bc.create_train_state(jax.random.key(0), config, STATE_DIM, ACTION_DIM, 1.0)
    dataset = jax_data.to_device(columns())

    def learn() -> None:
        # The state is donated, so each call gets a copy.
        given = jax.tree.map(jnp.copy, state)
        jax.block_until_ready(jax_td3_bc.train_interval(given, jax.random.key(1), dataset, 0, 50, 0))

    path = folder / "step_1.msgpack"
    return best_of_three(learn), best_of_three(partial(jax_checkpoints.save_checkpoint, path, "td3_bc", state, 1))


@pytest.mark.parametrize("costs", [torch_costs, jax_costs])
def test_a_checkpoint_costs_little(costs: Callable[[Path], tuple[float, float]], tmp_path: Path) -> None:
    """With TD3+BC, whose updates are among the cheapest."""
    learning, saving = costs(tmp_path)
    interval = learning / 50 * td3_bc.TrainConfig().eval_freq
    assert saving < SHARE * interval, f"{saving:.3f} s of {interval:.1f}"


def test_a_long_experience_costs_no_more_than_a_short_one(tmp_path: Path) -> None:
    """Of a million steps only the last five thousand are written, for which a tenth of a second is plenty."""
    experience = Experience("d4rl/hopper-v2", 1_000_000)
    experience.size = 995_000
    experience.save(tmp_path)
    experience.size = 1_000_000
    begin = time.perf_counter()
    experience.save(tmp_path)
    seconds = time.perf_counter() - begin
    sizes = sorted(path.stat().st_size for path in tmp_path.iterdir())
    assert sizes[0] * 150 < sizes[1]
    # Compared with 5000 updates and steps of MuJoCo, which take tens of seconds at the README's rates.
    assert seconds < 0.5
