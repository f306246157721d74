"""Summaries of several seeds: their curves, and the gain of the online phase next to the score before it."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import results
from benchmarks.seeds import (
    equivalence,
    gains,
    kept_as,
    later_scores,
    lowest_later,
    over_the_data,
    summarise,
    whole_run,
)


def summary(algorithm: str, **sides: Any) -> dict[str, Any]:
    """A results file with two runs per framework."""
    common = {"seconds_total": [60.0, 120.0]}
    return {"algorithm": algorithm, "frameworks": {name: common | side for name, side in sides.items()}}


def test_a_gain_is_the_score_after_the_online_phase_less_the_one_before() -> None:
    """Runs without an online phase have no row."""
    torch = {"before_online": [10.0, 20.0], "after_online": [30.0, 19.0]}
    jax = {"before_online": [10.0, 20.0], "after_online": [10.0, 40.5]}
    summaries = [summary("iql", torch={}, jax={}), summary("finetune/iql", torch=torch, jax=jax)]
    assert gains(summaries).splitlines()[2:] == [
        "| IQL, offline to online | torch | 10.0 to 30.0, 20.0 to 19.0 | +9.5 | 1 of 2 | 1.5 |",
        "| IQL, offline to online | jax | 10.0 to 10.0, 20.0 to 40.5 | +10.2 | 1 of 2 | 1.5 |",
    ]


def test_curves_are_kept_of_every_seed() -> None:
    """In the order of the seeds, at the updates at which all runs were evaluated."""
    around = {"framework": "torch", "updates": 20, "switch": 10, "seconds": {"total": 60.0, "to_first_update": 5.0}}
    runs = [
        around | {"seed": 0, "mean_of_last_3": 2.0, "curve": {10: 1.0, 20: 3.0}},
        around | {"seed": 1, "mean_of_last_3": 5.0, "curve": {10: 4.0, 20: 6.0}},
    ]
    found = summarise(runs)
    assert (found["steps"], found["curves"], found["switch"]) == ([10, 20], [[1.0, 3.0], [4.0, 6.0]], 10)
    with pytest.raises(AssertionError, match="the same updates"):
        summarise([runs[0], runs[1] | {"curve": {20: 6.0}}])


def test_runs_with_settings_of_their_own_replace_no_default_runs() -> None:
    assert kept_as("plas", 16_000, []) == "seeds-plas-16000-updates"
    assert kept_as("plas", 16_000, ["--vae_tanh", "false"]) == "forms-plas---vae_tanh false"


def test_later_scores_are_those_after_the_first_third() -> None:
    """Those of all runs; an evaluation exactly at the third does not count."""
    found = {"updates": 30, "steps": [5, 10, 20, 30], "curves": [[1.0, 2, 3, 4], [5.0, 6, 7.25, 8]]}
    assert later_scores(found) == [3, 4, 7.25, 8]
    assert lowest_later(found) == "3.0"
    assert lowest_later({"updates": 30}) == "not kept"


def test_equivalence_is_shown_by_close_means_and_small_deviations_alone() -> None:
    near, far, wide = [50.0, 51, 49, 50.5], [80.0, 81, 79, 80], [20.0, 80, 50, 51]
    shown = {"near": near, "far": far, "wide": wide}
    words = {
        name: equivalence(summary("iql", torch={"mean_of_last_3": near}, jax={"mean_of_last_3": scores}))
        for name, scores in shown.items()
    }
    assert words["near"] == "shown (p < 0.001)"
    assert words["far"] == "not shown (p = 1.000)"
    assert words["wide"].startswith("not shown (p = 0.")


def test_scores_stand_over_the_datas_weakest_policy() -> None:
    """For one framework, or for both; runs in an environment alone have no such policy."""
    runs = summary("online/td3", torch={"mean_of_last_3": [40.0, 50.0]}, jax={"mean_of_last_3": [30.0, 60.0]})
    with_data = runs | {"data_policies": {"expert": 90.0, "medium": 35.5}}
    assert [over_the_data(with_data, "torch"), over_the_data(with_data, "torch", "jax")] == ["+4.5", "-5.5"]
    assert over_the_data(runs | {"data_policies": {}}, "torch") == "no data"


@pytest.mark.thorough
def test_a_run_that_has_ended_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leftovers of a stopped run are removed, and a finished run is read. No other checkout's package runs."""
    folder, other = tmp_path / "runs", tmp_path / "other" / "shared" / "__init__.py"
    (folder / "BC-stopped").mkdir(parents=True)
    other.parent.mkdir(parents=True)
    other.write_text("raise AssertionError('of another checkout')")
    monkeypatch.setenv("PYTHONPATH", str(other.parent.parent))
    flags = ["--max_timesteps", "20", "--eval_freq", "10", "--n_episodes", "1"]
    made = whole_run("torch", "any_percent_bc", flags, {}, folder)
    assert not (folder / "BC-stopped").exists()
    assert list(made["curve"]) == [10, 20]
    monkeypatch.setattr(subprocess, "run", lambda *args, **named: pytest.fail("made again"))
    assert whole_run("torch", "any_percent_bc", flags, {}, folder) == made


@pytest.mark.parametrize("kept", [["--kept", "/home/me/runs"], ["--kept=/home/me/runs"], []])
def test_a_command_names_no_folder_of_ours(kept: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A results file says how to measure again, but the folder exists only on this machine."""
    monkeypatch.setattr("sys.argv", ["seeds.py", "cql", *kept, "--jobs", "2"])
    assert results.called("seeds")["command"] == "python -m benchmarks.seeds cql --jobs 2"
