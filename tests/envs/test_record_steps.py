"""The script that records steps for `test_physics.py`, run with our own environments instead of D4RL's."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

from shared.envs.registry import D4RL_ENVS, make_env
from tests.envs import record_steps
from tests.envs.record_steps import network_policy, random_policy, read_weights, record, save
from tests.envs.test_physics import name_of, replay


@pytest.mark.parametrize("env_id", D4RL_ENVS)
def test_what_is_recorded_replays_without_error(env_id: str, tmp_path: Path) -> None:
    """Over several episodes, including Ant's rewards, because a step depends only on the recorded values.

    Measured: no difference except in six steps after a reset, 2e-14 at most, where the solver's first guess is
    different.
    """
    env = make_env(env_id)
    path = tmp_path / "steps.npz"
    save(path, name_of(env_id), record(env, random_policy(env, 0), steps=150, seed=0))
    errors = replay(env_id, name_of(env_id), path)
    assert len(errors.reward) == 150
    assert max(errors.observation.max(), errors.reward.max()) <= 1e-12
    assert not errors.done.any()


def test_rows_are_those_of_the_episodes(tmp_path: Path) -> None:
    """Falls are marked, time limits are not; each episode has its own start; a push is visible."""
    env = make_env("d4rl/hopper-v2")
    columns = record(env, random_policy(env, 0), steps=120, seed=0)
    assert {key: values.shape for key, values in columns.items()} == {
        "qpos": (120, 6),
        "qvel": (120, 6),
        "act": (120, 3),
        "obs": (120, 11),
        "rew": (120,),
        "done": (120,),
    }
    falls = np.flatnonzero(columns["done"])
    assert len(falls) > 1
    starts = columns["qpos"][[0, *(falls[:-1] + 1)]]
    assert len(np.unique(starts[:, 0])) == len(starts)
    assert (np.abs(starts[:, 1] - 1.25) <= 0.005).all()
    pushed = record(env, random_policy(env, 0), steps=1, seed=0, push=3.0)["qvel"] - columns["qvel"][0]
    np.testing.assert_allclose(pushed, [[3, 0, 0, 0, 0, 0]], atol=1e-12)
    still = make_env("d4rl/halfcheetah-v2")
    assert not record(still, lambda observation: np.zeros(6, np.float32), 1001, 0)["done"].any()


@pytest.mark.parametrize(("info", "fell"), [({"TimeLimit.truncated": True}, False), ({}, True)])
def test_one_flag_for_both_ends_is_understood(info: dict[str, bool], fell: bool) -> None:
    """As in `gym`'s result for D4RL's environments: `done`, with the reason in `info`."""
    env = SimpleNamespace(step=lambda action: (np.zeros(1), 1.0, True, info))
    assert record_steps._step(env, np.zeros(1))[1:] == (1.0, fell, True)


def test_a_file_keeps_what_it_holds(tmp_path: Path) -> None:
    """Each call adds an environment."""
    save(tmp_path / "steps.npz", "hopper", {"qpos": np.zeros(2)})
    save(tmp_path / "steps.npz", "ant", {"qpos": np.ones(3)})
    save(tmp_path / "steps.npz", "ant", {"qpos": np.ones(4)})
    with np.load(tmp_path / "steps.npz") as file:
        assert {key: values.shape for key, values in file.items()} == {"hopper_qpos": (2,), "ant_qpos": (4,)}


def test_the_policy_of_a_d4rl_file_acts_by_its_mean(tmp_path: Path) -> None:
    """ReLU layers, then a tanh; weights are stored (out, in)."""
    rng = np.random.default_rng(0)
    sizes = {"fc0": (8, 11), "fc1": (8, 8), "last_fc": (3, 8), "last_fc_log_std": (3, 8)}
    weights = {name: (rng.normal(size=size), rng.normal(size=size[0])) for name, size in sizes.items()}
    path = tmp_path / "hopper_expert-v2.hdf5"
    with h5py.File(path, "w") as file:
        for name, (weight, bias) in weights.items():
            file[f"metadata/policy/{name}/weight"], file[f"metadata/policy/{name}/bias"] = weight, bias
        file["metadata/policy/nonlinearity"] = b"relu"
    observation = rng.normal(size=11)
    hidden = observation
    for name in ("fc0", "fc1"):
        hidden = np.maximum(weights[name][0] @ hidden + weights[name][1], 0)
    expected = np.tanh(weights["last_fc"][0] @ hidden + weights["last_fc"][1])
    found = network_policy(read_weights(path))(observation)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert found.dtype == np.float32


def test_a_policy_without_hidden_layers(tmp_path: Path) -> None:
    """For example a linear one in an .npz file."""
    np.savez(tmp_path / "linear.npz", **{"last_fc/weight": np.eye(2), "last_fc/bias": np.ones(2)})
    found = network_policy(read_weights(tmp_path / "linear.npz"))(np.array([0.0, -1.0]))
    np.testing.assert_allclose(found, np.tanh([1.0, 0.0]), atol=1e-7)


def test_it_needs_nothing_of_this_project(tmp_path: Path) -> None:
    """It runs next to D4RL, where this project is not installed."""
    script = Path(record_steps.__file__)
    done = subprocess.run([sys.executable, str(script), "--help"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0
    assert "--policy" in done.stdout
    lines = script.read_text().splitlines()
    assert not [line for line in lines if line.startswith(("from shared", "import shared", "from tests"))]
