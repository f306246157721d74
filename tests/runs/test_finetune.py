"""Runs of two phases: intervals, records and results; if stopped in either phase, they end with the same bits."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.envs.evaluation import Evaluation
from shared.envs.scores import scale
from shared.errors import InputError, Stopped
from shared.frameworks.twins import load_twin
from shared.runs.phases import PhaseResults, Phases
from shared.runs.seeds import train_seeds
from tests.runs.stopped_runs import assert_same_bits, config, last_checkpoint, only_run, read, rows, train
from tests.runs.test_resume import stop_after

pytestmark = pytest.mark.usefixtures("in_haste")

NAME = "finetune/iql"
# Sixteen offline updates and sixty-four steps, during which several episodes end
TWO_PHASES = {"offline_iterations": 16, "online_iterations": 64, "eval_freq": 16, "n_episodes": 1}


@dataclasses.dataclass(frozen=True)
class Config:
    """The settings that determine a run's intervals."""

    eval_freq: int = 4
    offline_iterations: int = 6
    switch: int = 6
    max_timesteps: int = 13
    updates_per_call: int = 1
    log_freq: int | None = None


# ---- intervals and records -----------------------------------------------------------------------------------------


def test_an_interval_ends_at_the_switch() -> None:
    phases = Phases(Config())
    assert list(phases.intervals(0)) == [(0, 4), (4, 6), (6, 8), (8, 12), (12, 13)]
    assert list(phases.intervals(9)) == [(9, 12), (12, 13)]
    assert [step for step in range(15) if phases.is_due(step)] == [4, 6, 8, 12, 13]
    assert [phases.counted(step) for step in (1, 6, 7)] == [
        {"offline_iter": 0},
        {"offline_iter": 5},
        {"online_iter": 0},
    ]
    assert [list(phases.steps_since_evaluation(step)) for step in (8, 12, 13)] == [[1, 2], [3, 4, 5, 6], [7]]


@pytest.mark.parametrize(
    ("interval", "period", "most", "lengths"),
    [
        (5000, 2, 100, {100}),
        (150, 2, 100, {50}),
        (1234, 1, 100, {100, 34}),
        (5000, 8000, 100, {5000}),
        (4, 1, 100, {4}),
    ],
)
def test_calls_have_one_length_where_they_can(interval: int, period: int, most: int, lengths: set[int]) -> None:
    """Each length is a program; a period is never cut, because the place in it is compiled."""
    phases = Phases(Config(eval_freq=interval, switch=10**6, max_timesteps=2 * interval))
    calls = list(phases.calls(0, period, most))
    assert [start for start, _ in calls] == [0, *(end for _, end in calls[:-1])]
    assert {end - start for start, end in calls} == lengths
    later = calls[len(calls) // 2]
    assert next(phases.calls(later[0], period, most)) == later


def test_a_call_that_was_cut_goes_on_within_it() -> None:
    """For runs that an earlier version stopped; a step in the environment is a call of its own."""
    phases = Phases(Config())
    assert list(phases.calls(1, 1, 2)) == [(1, 2), (2, 4), (4, 6), (6, 8), (8, 12), (12, 13)]
    assert list(phases.calls(9, 1, 2)) == [(9, 12), (12, 13)]


def test_updates_before_both_phases_are_of_neither() -> None:
    """A VAE's, for example: the run counts them like all others, and CORL's numbers begin after them."""
    phases = Phases(Config(switch=8, max_timesteps=15))
    assert list(phases.intervals(0)) == [(0, 4), (4, 8), (8, 12), (12, 15)]
    assert [phases.counted(step) for step in (2, 3, 8, 9)] == [
        {},
        {"offline_iter": 0},
        {"offline_iter": 5},
        {"online_iter": 0},
    ]


def succeeded(*episodes: bool) -> Evaluation:
    """An evaluation in which only the successes matter."""
    return Evaluation(np.zeros(len(episodes)), np.zeros(len(episodes)), np.array(episodes))


def test_the_two_regrets_are_kept_apart() -> None:
    """Evaluations before the switch are in neither."""
    phase_results = PhaseResults(Phases(Config()), scale("robotics/pen"), has_goals=True)
    assert phase_results.of_evaluation(4, succeeded(True, True)) == {"success_rate": 1.0}
    assert phase_results.of_evaluation(8, succeeded(False, False)) == {"success_rate": 0.0, "eval/regret": 1.0}
    assert phase_results.of_evaluation(12, succeeded(True, False)) == {"success_rate": 0.5, "eval/regret": 0.75}
    result = phase_results.result([4, 8, 12], [1.0, 2.0, 3.0])
    assert (result["before_online"], result["after_online"]) == (1.0, 3.0)
    assert (result["evaluation_regret"], result["training_regret"]) == (0.75, None)
    assert (result["success_rate_before_online"], result["success_rate_after_online"]) == (1.0, 0.5)


def test_where_there_is_no_goal_there_is_no_regret() -> None:
    phase_results = PhaseResults(Phases(Config()), scale("d4rl/hopper-v2"), has_goals=False)
    assert phase_results.of_evaluation(8, succeeded(True)) == {}
    assert phase_results.result([4, 8], [1.0, 2.0]) == {
        "updates_per_call": 1,
        "before_online": 1.0,
        "after_online": 2.0,
    }


# ---- runs ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["torch", "jax"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, in_haste: None) -> tuple[str, Path]:
    """An undisturbed run of either twin."""
    return request.param, train(request.param, NAME, tmp_path_factory.mktemp(request.param), **TWO_PHASES)


@pytest.mark.thorough
def test_a_run_tells_of_both_phases(whole: tuple[str, Path]) -> None:
    """Each record states its phase; episodes are recorded at their steps; the result has both scores."""
    _, run = whole
    found = rows(run)
    assert all(("online_iter" in row) == (row["step"] > 16) for row in found)
    assert [row["step"] for row in found] == sorted(row["step"] for row in found)
    evaluated = [row for row in found if "returns" in row]
    assert [row["step"] for row in evaluated] == [16, 32, 48, 64, 80]
    episodes = [row for row in found if "train/episode_return" in row]
    assert episodes
    assert sum(row["train/episode_length"] for row in episodes) == episodes[-1]["step"] - 16
    result = json.loads((run / "result.json").read_text())
    scores = [row["d4rl_normalized_score"] for row in evaluated]
    assert [result["before_online"], result["after_online"]] == [scores[0], scores[-1]]
    assert result["updates"] == 80


def stopped_after(updates: int, side: str, name: str, folder: Path, **settings: Any) -> Path:
    """The folder of a run that a signal stops after so many updates."""
    with stop_after(updates), pytest.raises(Stopped):
        train(side, name, folder, **TWO_PHASES, **settings)
    return only_run(folder)


@pytest.mark.parametrize("stopped", [5, 37])
def test_stopped_in_either_phase_it_ends_as_one_that_was_not(
    whole: tuple[str, Path], stopped: int, tmp_path: Path
) -> None:
    """Even in the middle of an episode; offline, JAX stops at the end of the call, which here is the interval's."""
    side, reference = whole
    run = stopped_after(stopped, side, NAME, tmp_path)
    assert len(list((run / "checkpoints").glob("step_37.*"))) == (stopped == 37)
    np.random.seed(99)
    assert train(side, NAME, tmp_path, **TWO_PHASES, resume="auto") == run
    assert_same_bits(run, reference)


@pytest.mark.thorough
@pytest.mark.parametrize("side", ["torch", "jax"])
def test_stopped_within_a_chunk_it_plays_the_rest(side: str, tmp_path: Path) -> None:
    """The policy is not asked again before that, and the run ends with the bits of one that was not stopped."""
    name, chunks = "finetune/acfql", {"horizon_length": 30}
    reference = train(side, name, tmp_path / "whole", **TWO_PHASES, **chunks)
    run = stopped_after(38, side, name, tmp_path / "stopped", **chunks)
    (checkpoint,) = (run / "checkpoints").glob("step_38.*")
    assert 0 < len(read(checkpoint)["queue"]) < 30
    np.random.seed(99)
    assert train(side, name, tmp_path / "stopped", **TWO_PHASES, **chunks, resume="auto") == run
    assert_same_bits(run, reference)


@pytest.mark.thorough
def test_seeds_step_one_after_the_other_and_update_together(tmp_path: Path) -> None:
    """Each has the same experience as its run alone, up to rounding."""
    given = config("jax", NAME, tmp_path / "together", **TWO_PHASES)
    runs = [run.folder for run in train_seeds(load_twin("jax", NAME).train, given, 2)]
    alone = train("jax", NAME, tmp_path / "alone", **TWO_PHASES, seed=2)
    for ours, theirs in zip(rows(runs[1]), rows(alone), strict=True):
        assert ours.keys() == theirs.keys()
        assert ours["step"] == theirs["step"]
        if "q_loss" in ours:
            assert ours["q_loss"] == pytest.approx(theirs["q_loss"], rel=1e-2)


@pytest.mark.thorough
def test_several_updates_in_a_call(tmp_path: Path) -> None:
    """The same number of steps comes before them, and the result says so."""
    run = train("jax", NAME, tmp_path, **TWO_PHASES, updates_per_call=6)
    result = json.loads((run / "result.json").read_text())
    assert (result["updates"], result["updates_per_call"]) == (80, 6)


@pytest.mark.thorough
def test_a_warm_up_has_no_update(tmp_path: Path) -> None:
    """Its steps count, also for the decay of ReBRAC's weight; an interval with only such steps has no loss."""
    given = TWO_PHASES | {"learning_starts": 19, "hidden_dim": 8, "batch_size": 4, "actor_bc_coef": 1.0}
    run = train("torch", "finetune/rebrac", tmp_path, **given)
    weights = {row["step"]: row["actor_bc_coef"] for row in rows(run) if "actor_bc_coef" in row}
    falling = [max(0.5, 1.0 - (step - 35) / 64) for step in range(35, 80)]
    expected = {16: 1.0, 48: np.mean(falling[:13]), 64: np.mean(falling[13:29]), 80: np.mean(falling[29:])}
    assert weights == pytest.approx(expected, rel=1e-6)
    result = json.loads((run / "result.json").read_text())
    assert result["updates"] == 80


# ---- starting points -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["torch", "jax"])
def offline(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, in_haste: None
) -> tuple[str, str]:
    """A framework, and the last checkpoint of a run of offline IQL in it."""
    env = {"env": "mini/hopper-medium-replay", "n_episodes": 1, "eval_freq": 12, "max_timesteps": 12}
    run = train(request.param, "iql", tmp_path_factory.mktemp(f"offline-{request.param}"), **env)
    return request.param, str(last_checkpoint(run))


@pytest.mark.thorough
def test_an_offline_run_goes_on_online(offline: tuple[str, str], tmp_path: Path) -> None:
    """Its schedule's rate is 0 at its end and rises from there; no update on the data is needed before."""
    side, model = offline
    settings = {"env": "mini/hopper-medium-replay", "n_episodes": 1, "eval_freq": 12, "load_model": model}
    run = train(side, NAME, tmp_path, **settings, offline_iterations=0, online_iterations=12)
    assert json.loads((run / "result.json").read_text())["before_online"] is None
    assert "q_loss" in rows(run)[-2]


@pytest.mark.thorough
def test_the_weight_falls_from_the_first_online_update_whatever_was_before(tmp_path: Path) -> None:
    """ReBRAC's offline run provides its networks; its number of updates does not count."""
    env = {"env": "mini/hopper-medium-replay", "n_episodes": 1, "eval_freq": 12, "hidden_dim": 8, "batch_size": 4}
    env |= {"actor_n_hiddens": 1, "critic_n_hiddens": 1}
    offline = train("jax", "rebrac", tmp_path, **env, max_timesteps=12)
    settings = {"offline_iterations": 0, "online_iterations": 12, "load_model": str(last_checkpoint(offline))}
    run = train("jax", "finetune/rebrac", tmp_path / "online", **env, **settings, actor_bc_coef=1.0, min_decay_coef=0.0)
    (found,) = (row for row in rows(run) if "actor_bc_coef" in row)
    assert found["actor_bc_coef"] == pytest.approx(np.mean(1.0 - np.arange(12) / 12), rel=1e-6)
    assert found["critic_bc_coef"] == 0.0


def test_without_a_period_nothing_begins(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="set it to 1 or more"):
        train("torch", NAME, tmp_path, offline_iterations=0, online_iterations=4)


@pytest.mark.thorough
def test_other_networks_are_refused_in_a_line(offline: tuple[str, str], tmp_path: Path) -> None:
    """Dropout in a policy changes the numbers of its layers, and a deviation adds a parameter."""
    side, model = offline
    with pytest.raises(InputError, match="does not fit this run's networks") as caught:
        train(side, NAME, tmp_path / "online", iql_deterministic=True, load_model=model)
    assert "\n" not in str(caught.value)
