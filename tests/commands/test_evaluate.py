"""`corl-twins evaluate`: the value of a run's policy, estimated from a dataset."""

from pathlib import Path
from typing import Any

import pytest

from parity_tests.pairs.evaluation_fqe import POLICY
from shared.__main__ import main
from shared.commands import evaluate
from shared.commands.reporting import evaluations
from shared.errors import InputError
from shared.frameworks.saved_run import SavedRun

pytestmark = pytest.mark.usefixtures("in_haste")

SHORT = ["--max_timesteps", "4", "--eval_freq", "2", "--critic_hidden_dims", "[8]", "--device", "cpu"]


def result(seed: int, **values: float) -> dict[str, Any]:
    """A run's `result.json`."""
    facts = {"policy": {"path": "run/checkpoint.pt"}, "dataset": "a.hdf5", "episodes": 3, "return_threshold": 10.0}
    return {"seed": seed, "evaluation": facts, **dict.fromkeys(evaluate._MEASURES, 1.0), **values}


def test_a_table_has_a_line_for_each_measure() -> None:
    lines = evaluate.table([result(0, final=12.5)]).splitlines()
    assert lines[0] == "policy of run/checkpoint.pt by a.hdf5"
    assert lines[1] == "3 episodes, of which those with a return of 10 or more succeed"
    assert lines[2].split() == ["initial-state", "value", "12.5"]
    assert len(lines) == 2 + len(evaluate._MEASURES)


def test_several_seeds_have_columns_and_a_mean() -> None:
    lines = evaluate.table([result(4, final=12.0), result(5, final=14.0)]).splitlines()
    assert lines[2].split() == ["seed", "4", "5", "mean"]
    assert lines[3].split()[-3:] == ["12", "14", "13"]


def test_a_policy_is_judged_by_what_it_learnt_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its runs, one per seed, use the settings given after the policy, and can be drawn like any others."""
    given = [str(POLICY), "--method", "fqe", "--framework", "torch", "--runs_path", str(tmp_path), *SHORT]
    assert main(["evaluate", *given, "--seeds", "2", "--discount", "0.9"]) == 0
    printed = capsys.readouterr().out
    assert f"policy of {POLICY} by mini/hopper-mostly-expert" in printed
    assert "TD error" in printed
    (first, second) = sorted(tmp_path.iterdir())
    assert "torch" in first.name
    assert "discount: 0.9" in (second / "config.yaml").read_text()
    found = evaluations.read_run(first)
    assert found is not None
    assert found.metric == "initial_state_value"
    assert list(found.values) == [2, 4]


FAULTS = {
    "no such run": (["nowhere", "--method", "fqe"], "there is no checkpoint at nowhere"),
    "no such method": ([str(POLICY), "--method", "fqq"], "unknown method 'fqq'; nearest: fqe"),
    "no method": ([str(POLICY)], "required: --method"),
    "another setting": ([str(POLICY), "--method", "fqe", "--n_episodes", "3"], "unknown argument '--n_episodes'"),
    "another dataset": ([str(POLICY), "--method", "fqe", "--env", "mini/walker2d-medium-expert"], "set env to a data"),
    "no dataset": ([str(POLICY), "--method", "fqe", "--env", "d4rl/hopper-v2"], "d4rl/hopper-v2"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_used_ends_with_one_line(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And with exit code 2; no run's folder is left."""
    monkeypatch.chdir(tmp_path)
    arguments, word = FAULTS[fault]
    try:
        status: Any = main(["evaluate", *arguments])
    except SystemExit as ended:
        status = ended.code
    told = capsys.readouterr().err
    assert status == 2
    assert word in told
    assert told.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_run_without_a_dataset_needs_one_named() -> None:
    """The run was trained in an environment."""
    source = SavedRun.open(POLICY)
    assert evaluate.dataset_of(source) == "mini/hopper-mostly-expert"
    online = type(source)(source.path, "torch", "online/td3", type(source.config)(env="d4rl/hopper-v2"), {})
    with pytest.raises(InputError, match="learned in d4rl/hopper-v2, not from a dataset: name one with --env"):
        evaluate.dataset_of(online)
