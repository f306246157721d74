"""Shared parts of the derivations of FQL and IFQL, offline to online: a short run, its derived loop, JAX's start."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import h5py
import numpy as np
import pytest
from torch import Tensor

from parity_tests.engine.precision import both_in
from parity_tests.reference.common import ACTION_DIM
from parity_tests.reference.finetune import (
    ANTMAZE_ID,
    CAPACITY,
    TABLE,
    Line,
    assert_close_life,
    derived,
    run_of,
    write_dataset,
)
from parity_tests.reference.test_fql import StopError
from shared.envs import families


def settings_of(twin: ModuleType, folder: Path, settings: dict[str, Any]) -> tuple[Any, dict[str, np.ndarray]]:
    """Settings for a short run with twenty online steps, and the dataset to learn from, except for rewards."""
    raw = write_dataset(folder / "line.hdf5")
    # Some of the data's actions reach their bounds.
    reaching = np.clip(1.5 * raw["actions"], -1.0, 1.0)
    with h5py.File(folder / "line.hdf5", "a") as file:
        file["actions"][...] = reaching
    sizes = {"actor_hidden_dims": (20,), "critic_hidden_dims": (30,), "batch_size": 16}
    config = twin.TrainConfig(
        env=str(folder / "line.hdf5"),
        runs_path=str(folder / "runs"),
        device="cpu",
        buffer_size=CAPACITY,
        offline_iterations=6,
        online_iterations=20,
        eval_freq=13,
        n_episodes=1,
        **settings | sizes,
    )
    cut = np.where(np.abs(reaching) > 1 - 1e-5, np.sign(reaching) * np.float32(1 - 1e-5), reaching)
    return config, raw | {"actions": cut}


def assert_same_loop(
    twin: ModuleType, trainer: type, derivation: Callable, drawn: Callable, folder: Path, settings: dict[str, Any]
) -> None:
    """Checks that a run which overwrites its ring stores and draws what the derivation does.

    Actions of steps may be on their bound, the data's never are.

    Args:
        twin: The PyTorch twin.
        trainer: Its trainer's class.
        derivation: Makes the derivation from settings, a trainer and the bound of actions.
        drawn: Draws an update's noise.
        folder: Where the run goes.
        settings: What differs from the defaults.
    """
    config, raw = settings_of(twin, folder, settings)
    with both_in("float64"):
        ours, fresh, as_it_was = run_of(twin, trainer, config)
    with both_in("float64"):
        as_it_was()
        reference = derivation(config, fresh, 1.0)

        def update(*rows: Tensor) -> None:
            reference.update(tuple(column.double() for column in rows), drawn(config))

        added = -1.0 if config.normalize_reward and config.eval_env else 0.0
        theirs = derived(config, raw, lambda state: reference.act(state.double()).float(), update, added)
    assert_close_life(ours, theirs)
    reached = np.abs(ours.ring[1]).max(axis=1) == 1.0
    assert reached.any()
    assert not reached[20 - (CAPACITY - 60) : 60].any()


def assert_jax_sets_out_alike(jax_twin: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that only the data's actions are clipped, and that 1 is subtracted from AntMaze's rewards, online too."""
    found: list[Any] = []

    def stop(run: Any, config: Any, experience: Any, *given: Any) -> None:
        found.append(experience)
        raise StopError

    config, raw = settings_of(jax_twin, folder, {"eval_env": ANTMAZE_ID})
    monkeypatch.setattr(jax_twin, "create_train_state", lambda *given: None)
    monkeypatch.setattr(jax_twin, "to_device", found.append)
    monkeypatch.setattr(jax_twin, "Online", stop)
    monkeypatch.setattr(families, "TABLE", TABLE)
    with pytest.raises(StopError):
        jax_twin.train(config)
    data, experience = found
    np.testing.assert_array_equal(data.actions, raw["actions"][:-1])
    np.testing.assert_array_equal(data.rewards, raw["rewards"][:-1] - np.float32(1.0))
    action, env = np.ones(ACTION_DIM, np.float32), Line()
    env.reset()
    experience.step(action)
    np.testing.assert_array_equal(experience.last().actions, action[None])
    np.testing.assert_array_equal(experience.last().rewards, np.float32(env.step(action)[1] - 1.0))
