"""The parts of a checkpoint that a run inherits if it starts with it, and its messages about them."""

import dataclasses
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from corl_torch import dt, td3_bc
from shared.data import transitions
from shared.frameworks.saved_run import SavedRun
from shared.frameworks.twins import load_twin
from shared.runs.origin import origin_of
from shared.runs.task import Extract, Preparation, load_task
from tests.boxed_envs import write
from tests.runs.stopped_runs import last_checkpoint, train

pytestmark = pytest.mark.usefixtures("in_haste")


def elsewhere(path: Path) -> Path:
    """The same dataset in another part of the state space."""
    other = path.with_name(f"other_{path.name}")
    other.write_bytes(path.read_bytes())
    with h5py.File(other, "r+") as file:
        file["observations"][:] = 3 * file["observations"][:] + 1
    return other


def begun_with(checkpoint: Path | str, env: Path, twin: Any = td3_bc, **settings: Any) -> Any:
    """Settings of a run that starts with a checkpoint."""
    return twin.TrainConfig(env=str(env), load_model=str(checkpoint), device="cpu", n_episodes=1, **settings)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("side", "settings"),
    [("jax", {"normalize": True}), ("torch", {"normalize": False}), ("torch", {"observation_scaler": "min_max"})],
)
def test_states_are_normalised_as_the_networks_know_them(
    side: str, settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the run's own statistics would be; the policy's return is unchanged, and later runs inherit them too."""
    path = write(tmp_path, "Unit")
    first = SavedRun.open(last_checkpoint(train(side, "td3_bc", tmp_path / "first", env=str(path))))
    assert "states are normalised" not in capsys.readouterr().out
    own = {"env": str(elsewhere(path)), "load_model": str(first.path)} | settings
    second = SavedRun.open(last_checkpoint(train(side, "td3_bc", tmp_path / "second", **own)))
    assert capsys.readouterr().out.count(f"states are normalised by the statistics in {first.path}") == 1
    np.testing.assert_array_equal(second.statistics(), first.statistics())
    task = load_task(load_twin(side, "td3_bc").TrainConfig(**own, n_episodes=2, seed=first.config.seed))
    raw = transitions.extract_transitions(transitions.read_hdf5(Path(own["env"])))
    mean, std = first.statistics()
    np.testing.assert_array_equal(task.dataset.observations, (raw.observations - mean) / std)
    np.testing.assert_array_equal(task.dataset.next_observations, (raw.next_observations - mean) / std)
    evaluators = task.evaluator, first.evaluator(2)
    np.testing.assert_array_equal(*(evaluator(first.policy()).returns for evaluator in evaluators))
    for evaluator in evaluators:
        evaluator.close()


def test_nothing_is_said_where_nothing_contradicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As in a run that continues with its own data."""
    path = write(tmp_path, "Twice")
    first = last_checkpoint(train("torch", "td3_bc", tmp_path / "first", env=str(path)))
    capsys.readouterr()
    task = load_task(begun_with(first, path))
    task.evaluator.close()
    assert capsys.readouterr() == ("", "")
    np.testing.assert_array_equal(task.units.std, [2, 2])


def test_actions_are_in_the_units_that_the_networks_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another box's units; the environment's box is still respected."""
    first = last_checkpoint(train("torch", "td3_bc", tmp_path / "first", env=str(write(tmp_path, "Twice"))))
    capsys.readouterr()
    path = write(tmp_path, "Unit")
    task = load_task(begun_with(first, path))
    assert f"actions are in the units of {first}" in capsys.readouterr().out
    raw = transitions.extract_transitions(transitions.read_hdf5(path))
    np.testing.assert_array_equal(task.dataset.actions, raw.actions / 2)
    task.evaluator(lambda observations: np.ones((1, 2), np.float32))  # the environment would refuse 2
    task.evaluator.close()


def test_a_checkpoint_of_before_acts_as_it_did(tmp_path: Path) -> None:
    """Its networks' bound was the environment's, and it contains no box."""
    path, checkpoint = write(tmp_path, "Twice"), tmp_path / "checkpoint.pt"
    config = td3_bc.TrainConfig(env=str(path), device="cpu")
    facts: dict[str, Any] = {"id": "boxed/Twice-v0", "state_dim": 3, "action_dim": 2, "max_action": 2.0}
    zeros, ones = np.zeros(3, np.float32), np.ones(3, np.float32)
    torch.manual_seed(0)
    trainer = td3_bc.create_trainer(config, 3, 2, 2.0)
    td3_bc.save(trainer, checkpoint, environment=facts, state_mean=zeros, state_std=ones,
                settings=dataclasses.asdict(config), action_mean=zeros[:2], action_std=ones[:2])  # fmt: skip
    task = load_task(begun_with(checkpoint, path))
    assert task.max_action == 2
    np.testing.assert_array_equal(
        task.dataset.actions, transitions.extract_transitions(transitions.read_hdf5(path)).actions
    )
    task.evaluator.close()
    saved = SavedRun.open(checkpoint)
    assert saved.units.bound == 2
    assert saved.units.are_neutral
    states = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    np.testing.assert_array_equal(saved.trainer().act(states), trainer.act(states))


def test_a_file_without_statistics_brings_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For example CORL's; nor does an unreadable file, which whatever loads it reports."""
    path = write(tmp_path, "Twice")
    trainer = td3_bc.create_trainer(td3_bc.TrainConfig(device="cpu"), 3, 2, 1.0)
    td3_bc.save(trainer, tmp_path / "corl.pt")
    for name in ("corl.pt", "none.pt"):
        task = load_task(begun_with(tmp_path / name, path))
        task.evaluator.close()
        assert (task.max_action, task.units.std.tolist()) == (1, [2, 2])
    assert capsys.readouterr() == ("", "")


def test_auto_knows_the_names_that_one_algorithm_had(tmp_path: Path) -> None:
    """A run of IQL from the time when `inverse_temperature` was `beta`."""
    run = train("torch", "iql", tmp_path, env=str(write(tmp_path, "Twice")))
    config = SavedRun.open(last_checkpoint(run)).config
    (run / "result.json").unlink()
    (run / "config.yaml").write_text((run / "config.yaml").read_text().replace("inverse_temperature:", "beta:"))
    assert origin_of(dataclasses.replace(config, resume="auto")) is not None
    assert origin_of(dataclasses.replace(config, resume="auto", inverse_temperature=1.0)) is None


def test_trajectories_are_normalised_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "Uneven")
    first = SavedRun.open(last_checkpoint(train("torch", "dt", tmp_path / "first", env=str(path), episode_len=8)))
    config = begun_with(first.path, elsewhere(path), dt, episode_len=8)
    task = load_task(config, Preparation(Extract.TRAJECTORIES))
    task.evaluator.close()
    assert capsys.readouterr().out.count("states are normalised by the statistics in") == 1
    np.testing.assert_array_equal((task.mean, task.std), first.statistics())
    assert np.abs(task.dataset.actions).max() <= 1
