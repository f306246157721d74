"""Training from data alone, with measurements on held-out episodes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import jax
import numpy as np
import pytest
import torch

from parity_tests.ladder.scene import Scene
from parity_tests.pair import GoalPair
from parity_tests.pairs import PAIRS
from shared.commands import export, play
from shared.data.held_out import hold_out
from shared.data.sequences import PromptedPolicy
from shared.data.transitions import read_hdf5
from shared.errors import InputError
from shared.frameworks import saved_run, torch_held_out
from shared.frameworks.held_out import is_measured
from shared.frameworks.saved_run import SavedRun
from shared.frameworks.twins import load_twin
from shared.runs.settings import OfflineConfig
from shared.runs.task import Extract, Preparation, load_task
from tests.runs.stopped_runs import OWN, assert_same_bits, last_checkpoint, only_run, read, rows, train

pytestmark = pytest.mark.usefixtures("in_haste")

EPISODES, LENGTH, HELD_OUT = 20, 6, [5, 15]


def file_of(path: Path, **columns: Any) -> str:
    """A file of twenty episodes that names no environment; the first component of a state is its episode's number."""
    rng, rows = np.random.default_rng(0), EPISODES * LENGTH
    content = {
        "observations": rng.normal(size=(rows, 4)).astype(np.float32),
        "actions": rng.uniform(-1.5, 1.5, size=(rows, 2)).astype(np.float32),
        "rewards": rng.normal(size=rows).astype(np.float32),
        "terminals": np.zeros(rows, bool),
        "timeouts": np.arange(rows) % LENGTH == LENGTH - 1,
    } | columns
    content["observations"][:, 0] = np.arange(rows) // LENGTH
    with h5py.File(path, "w") as file:
        for name, column in content.items():
            file[name] = column
    return str(path)


@pytest.fixture
def logged(tmp_path: Path) -> str:
    """A dataset with vectors of actions."""
    return file_of(tmp_path / "logged.hdf5")


@pytest.fixture
def chosen(tmp_path: Path) -> str:
    """A dataset with three actions."""
    return file_of(tmp_path / "chosen.hdf5", actions=np.arange(EPISODES * LENGTH) % 3)


def config(dataset: str, **settings: Any) -> Any:
    """The settings of TD3+BC, without an environment."""
    twin = load_twin("torch", settings.pop("algorithm", "td3_bc"))
    return twin.TrainConfig(**{"env": dataset, "eval_env": "none"} | settings)


# ---- held-out episodes ---------------------------------------------------------------------------------------------


def test_whole_episodes_are_held_out_and_not_learnt_from(logged: str) -> None:
    """They are spread over the file, and the statistics are those of the other episodes."""
    task = load_task(config(logged))
    raw = read_hdf5(Path(logged))
    learnt = ~np.isin(np.arange(EPISODES * LENGTH) // LENGTH, HELD_OUT)
    inside = learnt & ~raw["timeouts"]
    assert len(task.dataset.actions) == inside.sum()
    np.testing.assert_allclose(task.units.given(task.dataset.actions), raw["actions"][inside], atol=1e-6)
    np.testing.assert_allclose(task.mean, raw["observations"][inside].mean(axis=0), rtol=1e-5)
    seen = []
    task.evaluator(lambda observations: seen.append(observations) or np.zeros((len(observations), 2)))
    episodes = np.unique(np.round(seen[0][:, 0] * task.std[0] + task.mean[0]))
    assert episodes.tolist() == HELD_OUT


def test_the_share_is_a_setting(logged: str) -> None:
    raw = read_hdf5(Path(logged))
    parts = hold_out(raw, None, 0.5)
    assert parts is not None
    assert np.unique(parts[1]["observations"][:, 0]).tolist() == list(range(1, 20, 2))
    task = load_task(config(logged, validation_share=0.0))
    assert task.evaluator.fingerprint | {"held_out": False, "episodes": EPISODES} == task.evaluator.fingerprint
    assert len(task.dataset.actions) == EPISODES * (LENGTH - 1)


def test_one_episode_cannot_be_spared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By default a line says so; a share that was requested is refused."""
    path = file_of(tmp_path / "one.hdf5", timeouts=np.zeros(EPISODES * LENGTH, bool))
    assert not load_task(config(path)).evaluator.fingerprint["held_out"]
    assert "fewer than two episodes" in capsys.readouterr().out
    with pytest.raises(InputError, match="set validation_share to 0"):
        load_task(config(path, validation_share=0.2))


# ---- measurements --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scaler", ["none", "min_max"])
def test_the_action_error_is_in_units_of_the_data(logged: str, scaler: str) -> None:
    """For a policy that is off by 0.3 in one of two components, however actions are scaled."""
    task = load_task(config(logged, action_scaler=scaler))
    raw = read_hdf5(Path(logged))
    rows = np.isin(np.arange(EPISODES * LENGTH) // LENGTH, HELD_OUT) & ~raw["timeouts"]
    actions = (raw["actions"][rows] + [0.3, 0.0] - task.action_mean) / task.action_std
    outcome = task.evaluator(lambda observations: actions)
    np.testing.assert_allclose(outcome.outcomes, [0.15, 0.15], rtol=1e-5)
    assert task.max_action == 1.0


def test_finite_actions_agree_or_not(chosen: str) -> None:
    task = load_task(config(chosen, algorithm="discrete/bc"), Preparation(normalise=False, finite=True))
    assert task.action_dim == 3
    # Rows 30 to 34 and 90 to 94: actions 0 1 2 0 1, each time
    assert task.evaluator(lambda observations: np.zeros(len(observations), int)).outcomes.tolist() == [0.6, 0.6]


def test_a_sequence_model_is_led_through_what_was_done(logged: str) -> None:
    """It sees the data's actions instead of its own, and the remaining part of the return that it is prompted with."""
    settings = config(logged, algorithm="dt", episode_len=LENGTH, n_episodes=1, reward_scale=1.0)
    task = load_task(settings, Preparation(Extract.TRAJECTORIES))
    seen: list[tuple[np.ndarray, ...]] = []

    def predict(*windows: np.ndarray) -> np.ndarray:
        seen.append(tuple(window.copy() for window in windows))
        return windows[1] + 0.25

    outcome = task.evaluator(PromptedPolicy(predict, 10.0, 1.0, LENGTH, 2))
    raw, first = read_hdf5(Path(logged)), HELD_OUT[0] * LENGTH
    here = slice(first, first + LENGTH)
    last_observations, last_actions, last_returns, _ = seen[-1]
    given = task.units.given
    np.testing.assert_allclose(given(last_actions[0, :-1]), raw["actions"][here][:-1], atol=1e-6)
    np.testing.assert_allclose(last_returns[0], 10.0 - np.append(0, np.cumsum(raw["rewards"][here])[:-1]), rtol=1e-5)
    assert np.ptp(last_observations[0, :, 0]) < 1e-6
    np.testing.assert_allclose(
        outcome.outcomes, [np.abs(raw["actions"][here] - given(np.full(2, 0.25))).mean()], rtol=1e-5
    )


def assert_same_networks(ours: Path, theirs: Path) -> None:
    """Checks that two finished runs have the same networks; their metrics may differ."""
    first, second = ({**read(last_checkpoint(run)), **dict.fromkeys(OWN)} for run in (ours, theirs))
    for leaf, expected in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(leaf, expected)


# ---- runs ----------------------------------------------------------------------------------------------------------


def test_a_run_ends_without_an_environment(logged: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It can be exported, and judged on the data by name alone; playing it would need an environment."""
    run = train("torch", "td3_bc", tmp_path / "runs", env=logged, eval_env="none")
    assert f"corl-twins evaluate {run} --method fqe" in capsys.readouterr().out.splitlines()[-1]
    evaluated = [row for row in rows(run) if "errors" in row]
    assert [row["step"] for row in evaluated] == [4, 8, 12]
    result = json.loads((run / "result.json").read_text())
    assert (result["metric"], result["final"]) == ("action_error", evaluated[-1]["action_error"])
    assert result["best"] == min(row["action_error"] for row in evaluated)
    assert result["evaluation"]["held_out"]
    export.main([str(run), "--format", "npz"])
    with pytest.raises(InputError, match="learnt from data alone"):
        play.main([str(run)])
    judged = train("torch", "evaluation/fqe", tmp_path / "runs", env=logged, policy="")
    assert json.loads((judged / "result.json").read_text())["evaluation"]["policy"]["path"].startswith(str(run))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("side", "name"), [("torch", "td3_bc"), ("jax", "td3_bc"), ("torch", "discrete/cql"), ("jax", "discrete/cql")]
)
def test_losses_on_held_out_rows_leave_no_trace(
    side: str, name: str, logged: str, chosen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have the names of those in training, and the run ends with the same bits as without them."""
    given = {"env": chosen if name.startswith("discrete/") else logged, "eval_env": "none"}
    run = train(side, name, tmp_path / "measured", **given)
    found = [{key.partition("/")[2]: row[key] for key in row if key.startswith("held_out/")} for row in rows(run)]
    names = [{key for key in row if key.endswith("loss") and "/" not in key} for row in rows(run)]
    names = [losses for losses in names if losses]
    measured = [row for row in found if row]
    assert len(measured) == 3
    assert all({*others, "mean_q"} <= row.keys() for row, others in zip(measured, names, strict=True))
    monkeypatch.setattr("shared.runs.run.Run.held_out", None)
    assert_same_networks(run, train(side, name, tmp_path / "plain", **given))


# Algorithms that learn only from a dataset's rows, without windows of them and without goals
OFFLINE = [
    name
    for name, pair in PAIRS.items()
    if issubclass(pair.torch.TrainConfig, OfflineConfig) and name != "dt" and not isinstance(pair, GoalPair)
]


@pytest.mark.parametrize("name", OFFLINE)
def test_every_algorithms_losses_are_measured(name: str) -> None:
    """The same losses at any time in a run, in both frameworks; in neither if its batches are more than rows."""
    scene = Scene.create(PAIRS[name], PAIRS[name].jax, "default", "made-up", warm=False)
    measure = torch_held_out.Measures(scene.dataset, torch.device("cpu"))
    early = measure.losses(scene.pair.torch, scene.trainer)
    scene.trainer.total_it = 10**6
    found = measure.losses(scene.pair.torch, scene.trainer)
    assert early.keys() == found.keys()
    assert np.isfinite([*found.values()]).all()
    known = dict.fromkeys(["key", "step", "hp", "dataset_size"])
    assert is_measured(scene.jax_twin, scene.state().update, scene.dataset, known) == bool(found)


def test_the_loss_on_held_out_rows_is_theirs(logged: str, tmp_path: Path) -> None:
    """In behaviour cloning, the squared distance to their actions, up to the effect of an update or two."""
    run = train("torch", "any_percent_bc", tmp_path / "runs", env=logged, eval_env="none", frac=1.0)
    last = [row["held_out/actor_loss"] for row in rows(run) if "held_out/actor_loss" in row][-1]
    source = SavedRun.open(saved_run.find(run))
    raw, inside = read_hdf5(Path(logged)), np.isin(np.arange(EPISODES * LENGTH) // LENGTH, HELD_OUT)
    inside &= ~raw["timeouts"]
    mean, std = source.statistics()
    (actions,) = source.actions(((raw["observations"][inside] - mean) / std).astype(np.float32))
    squared = np.square((actions - raw["actions"][inside]) / source.units.std).mean()
    assert last == pytest.approx(squared, rel=0.5)


def test_it_goes_on_where_it_stopped(logged: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"env": logged, "eval_env": "none"}
    whole = train("torch", "td3_bc", tmp_path / "whole", **given)
    with monkeypatch.context() as patch:
        patch.setattr("shared.runs.record.Record.write_result", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train("torch", "td3_bc", tmp_path / "cut", **given)
    cut = only_run(tmp_path / "cut")
    assert train("torch", "td3_bc", tmp_path / "cut", **given, resume="auto") == cut
    assert_same_bits(cut, whole)


@pytest.mark.thorough
def test_it_is_measured_beside_an_environment(write_hdf5: Callable[..., Path], tmp_path: Path) -> None:
    """The environment scores the run, and its rows also have the error."""
    run = train("jax", "any_percent_bc", tmp_path / "runs", env=str(write_hdf5()), validation_share=0.3)
    result = json.loads((run / "result.json").read_text())
    assert result["metric"] == "d4rl_normalized_score"
    assert result["final_action_error"] == [row["action_error"] for row in rows(run) if "returns" in row][-1]
    assert result["evaluation"]["held_out"] == {"rows": 18, "episodes": 2}


def test_what_needs_an_environment_says_so(logged: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="set eval_env to its name, not to none"):
        train("torch", "finetune/iql", tmp_path / "runs", env=logged, eval_env="none")
    with pytest.raises(InputError, match="names no environment: set eval_env to one, or to none"):
        train("torch", "td3_bc", tmp_path / "runs", env=logged)
    with pytest.raises(InputError, match="a model must know when its episodes end"):
        train("torch", "model_based/mopo", tmp_path / "runs", env=logged, eval_env="none")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "side"), [("dt", "torch"), ("dt", "jax"), ("bcq", "torch"), ("plas", "torch"), ("discrete/bc", "jax")]
)
def test_every_kind_of_policy_learns_from_data_alone(
    name: str, side: str, logged: str, chosen: str, tmp_path: Path
) -> None:
    """Sequence models, policies that sample, with an encoder of actions, and of finite actions."""
    given = {"episode_len": LENGTH, "target_returns": (1.0, 0.0), "n_episodes": 2} if name == "dt" else {}
    dataset = chosen if name.startswith("discrete/") else logged
    run = train(side, name, tmp_path / "runs", env=dataset, eval_env="none", max_timesteps=4, **given)
    source = SavedRun.open(saved_run.find(run))
    assert (source.env_id, source.sizes[1]) == ("none", 3 if dataset == chosen else 2)
    assert np.isfinite(json.loads((run / "result.json").read_text())["final"])
