"""The data of an off-policy evaluation: a dataset, and a saved policy's action in each of its states."""

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from corl_torch import bcq, dt, td3_bc
from corl_torch.evaluation import fqe
from corl_torch.online import dqn
from parity_tests.pairs.evaluation_fqe import POLICY
from shared.data import sources
from shared.data.measures import find_episodes
from shared.data.transitions import extract_transitions
from shared.errors import InputError
from shared.frameworks.evaluated_policy import load_evaluation_task, with_policy
from shared.frameworks.saved_run import SavedRun
from shared.runs.configs import dump

STATE_DIM, ACTION_DIM = 11, 3
# Statistics that no dataset has
STATISTICS = {
    "state_mean": np.full(STATE_DIM, 0.1, np.float32),
    "state_std": np.full(STATE_DIM, 2.0, np.float32),
    "action_mean": np.full(ACTION_DIM, 0.25, np.float32),
    "action_std": np.array([0.5, 1.0, 2.0], np.float32),
}


def run_folder(folder: Path, twin: Any = td3_bc, **settings: Any) -> Path:
    """A run's files, without the training."""
    config = twin.TrainConfig(device="cpu", **settings)
    torch.manual_seed(config.seed)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(dump(config))
    twin.save(twin.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0), folder / "checkpoint.pt", **STATISTICS)
    return folder


def finished(folder: Path, evaluation: dict[str, Any], at: int) -> Path:
    """The folder of a run that ended with this evaluation at the given second."""
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps({"evaluation": evaluation}))
    os.utime(folder / "result.json", (at, at))
    return folder


def config(policy: Path | str = POLICY, **settings: Any) -> fqe.TrainConfig:
    """The settings of a run that judges a policy."""
    return fqe.TrainConfig(policy=str(policy), **settings)


def test_the_policy_acts_in_its_own_units(tmp_path: Path) -> None:
    """Its states are scaled by its own statistics, and so are the data's actions; rewards are unchanged."""
    folder = run_folder(tmp_path / "run", action_scaler="min_max")
    task = load_evaluation_task(config(folder))
    raw = extract_transitions(sources.read("mini/hopper-mostly-expert").raw)
    mean, std, action_mean, action_std = STATISTICS.values()
    act = SavedRun.open(folder / "checkpoint.pt").trainer().act
    data = task.dataset
    np.testing.assert_allclose(data.observations * std + mean, raw.observations, atol=1e-5)
    np.testing.assert_allclose(data.actions * action_std + action_mean, raw.actions, atol=1e-6)
    np.testing.assert_array_equal(data.rewards, raw.rewards)
    np.testing.assert_array_equal(data.terminals, raw.terminals)
    np.testing.assert_allclose(data.next_actions, act((raw.next_observations - mean) / std), atol=1e-5)
    episodes = find_episodes(sources.read("mini/hopper-mostly-expert").raw)
    found = task.evaluator(lambda observations, actions: actions[:, 0])
    ours = act((raw.observations - mean) / std)[: episodes.size]
    np.testing.assert_allclose(found.outcomes, ours[episodes.starts, 0], atol=1e-5)
    # In the data's units
    apart = np.square(ours * action_std + action_mean - raw.actions[: episodes.size]).sum(axis=1).mean()
    assert found.measures["action_difference"] == pytest.approx(apart, rel=1e-5)
    assert task.evaluator.fingerprint["return_threshold"] == np.median(episodes.returns)


def test_a_policy_that_samples_draws_once_for_each_row(tmp_path: Path) -> None:
    """With the seed of its evaluations: first in the states, then in the next ones."""
    source = SavedRun.open(run_folder(tmp_path / "run", bcq, seed=5) / "checkpoint.pt")
    states = np.repeat(np.linspace(-1, 1, STATE_DIM, dtype=np.float32)[None], 4, axis=0)
    first, second = source.actions(states, states)
    assert len(np.unique(np.concatenate([first, second]), axis=0)) == 8
    rng = np.random.default_rng(5)
    noise = np.stack([source.draw(rng) for _ in range(8)]).astype(np.float32)
    act = source.trainer().act
    np.testing.assert_array_equal(first, act(states, noise[:4]))
    np.testing.assert_array_equal(second, act(states, noise[4:]))


def test_values_do_not_depend_on_how_many_rows_are_valued_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither do the policy's actions."""
    monkeypatch.setattr("shared.runs.valuation._ROWS", 1000)
    monkeypatch.setattr("shared.frameworks.saved_run._ROWS", 1000)
    few = load_evaluation_task(config())
    outcome = few.evaluator(lambda observations, actions: observations[:, 0] + actions[:, 1])
    monkeypatch.undo()
    many = load_evaluation_task(config())
    expected = many.evaluator(lambda observations, actions: observations[:, 0] + actions[:, 1])
    np.testing.assert_allclose(few.dataset.next_actions, many.dataset.next_actions, atol=1e-6)
    assert outcome.measures == pytest.approx(expected.measures, rel=1e-5)


def finite_hopper(folder: Path) -> Path:
    """A file with Hopper's states and three finite actions."""
    with h5py.File(path := folder / "finite.hdf5", "w") as file:
        raw = sources.read("mini/hopper-mostly-expert").raw
        for key, values in (raw | {"actions": raw["actions"].argmax(axis=1)}).items():
            file[key] = values
        file.attrs["env_id"] = "d4rl/hopper-v2"
    return path


FAULTS: dict[str, tuple[Callable[[Path], fqe.TrainConfig], str]] = {
    "missing": (lambda folder: config(folder / "none"), "there is no checkpoint at"),
    "a sequence model": (
        lambda folder: config(run_folder(folder / "run", dt, env="mini/hopper-mostly-expert")),
        "is of a sequence model, which acts",
    ),
    "no policy": (
        lambda folder: config(run_folder(folder / "run", fqe)),
        "learns no policy: name the run that it judg",
    ),
    "other sizes": (
        lambda folder: config(env="mini/walker2d-medium-expert"),
        "states of size 17 and actions of size 6, the policy of .* 11 and 3: set env to a dataset of its kind",
    ),
    "finite actions in the data": (
        lambda folder: config(env=str(finite_hopper(folder))),
        "dataset '.*' has finite actions, and only vectors can be judged: set env to another",
    ),
    "a policy of finite actions": (
        lambda folder: config(run_folder(folder / "run", dqn, env="mini/hopper-mostly-expert")),
        "the policy of .* has finite actions, and only vectors can be judged: set policy to another",
    ),
    "no success": (lambda folder: config(return_threshold=1e6), "no episode reaches a return_threshold of 1e[+]06"),
    "no number": (lambda folder: config(return_threshold=float("nan")), "return_threshold must be"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_judged_is_refused(fault: str, tmp_path: Path) -> None:
    """In one line, with nothing written."""
    make, word = FAULTS[fault]
    given = dataclasses.replace(make(tmp_path), runs_path=str(tmp_path / "runs"))
    with pytest.raises(InputError, match=word) as error:
        fqe.train(given)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "runs").exists()


def test_without_a_name_the_latest_run_in_the_same_environment_is_judged(tmp_path: Path) -> None:
    """Not a run elsewhere, one that judged another run's policy, a damaged one, or an unfinished one."""
    given = config("", runs_path=str(tmp_path))
    with pytest.raises(InputError, match=r"no finished run below .* acts in d4rl/hopper-v2: train one, or set policy"):
        with_policy(given)
    finished(tmp_path / "older", {"env": "d4rl/hopper-v2"}, at=1)
    found = finished(tmp_path / "found", {"env": "d4rl/hopper-v2"}, at=2)
    finished(tmp_path / "elsewhere", {"env": "d4rl/walker2d-v2"}, at=3)
    finished(tmp_path / "judge", {"env": "d4rl/hopper-v2", "policy": {}}, at=4)
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "result.json").write_text("{")
    assert with_policy(given) == config(found, runs_path=str(tmp_path))
    assert with_policy(config("named")) == config("named")


def test_a_dataset_without_an_environment_needs_a_named_policy(write_hdf5: Callable[..., Path]) -> None:
    with pytest.raises(InputError, match=r"names no environment: .*; or set policy to a run"):
        with_policy(config("", env=str(write_hdf5({}))))


def test_the_policy_is_a_part_of_what_is_learnt_from(tmp_path: Path) -> None:
    """So a run does not continue with another policy that has replaced it."""
    first, second = (run_folder(tmp_path / str(seed), td3_bc, seed=seed) for seed in (1, 2))
    one, other = load_evaluation_task(config(first)).fingerprint, load_evaluation_task(config(second)).fingerprint
    assert one["sha256"] == other["sha256"]
    assert one["policy"] != other["policy"]
