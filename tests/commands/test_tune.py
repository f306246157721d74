"""`corl-twins tune`: the options of a search, its record of trials, and how trials are made."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from shared.__main__ import main
from shared.commands import tune
from shared.commands.reporting.evaluations import read_run
from shared.commands.sweeping.plan import validated
from shared.commands.sweeping.processes import order
from shared.commands.tuning import on_ray
from shared.commands.tuning.picture import draw_trials
from shared.commands.tuning.plan import Search
from shared.commands.tuning.record import FILE, Record, Trial
from shared.errors import InputError
from shared.frameworks.twins import ROOT
from shared.runs import resuming
from shared.runs.configs import dump
from tests.commands.test_sweep import DATASET, wait_until

SHORT = {"max_timesteps": "4", "eval_freq": "1", "n_episodes": "1", "batch_size": "8", "device": "cpu"}
SPACE = {"alpha": {"low": "0.5", "high": "8", "log": "true"}, "batch_size": {"low": "8", "high": "16"}}


WAY = on_ray.Way(number=1, early=True, together=1, environment={})


def asked(folder: Path, **changes: Any) -> dict[str, Any]:
    """A search in the form of its file: TD3+BC in PyTorch."""
    settings = {name: value for name, value in SHORT.items() if name != "batch_size"}
    whole = {"algorithm": "td3_bc", "framework": "torch", "datasets": [DATASET], "settings": settings, "search": SPACE}
    return {**whole, "folder": str(folder), **changes}


def planned(folder: Path, **changes: Any) -> Search:
    folder.mkdir(exist_ok=True)
    return validated(Search, asked(folder, **changes), "")


def test_a_trial_has_the_same_runs_with_other_values(tmp_path: Path) -> None:
    """Intervals are whole numbers if both ends are; a choice is the text of a flag."""
    search = planned(
        tmp_path, seeds="2", search={**SPACE, "actor_hidden_dims": [["8", "8"], ["4"]]} | {"tau": ["0.1", "0.2"]}
    )
    assert isinstance(search.search["batch_size"].low, int)
    assert isinstance(search.search["alpha"].low, float)
    assert (search.search["alpha"].log, search.search["batch_size"].log) == (True, False)
    runs = search.runs({"alpha": 1.25, "batch_size": 9, "tau": "0.2"})
    assert [cell.config.seed for cell in runs] == [0, 1]
    assert {(cell.config.alpha, cell.config.batch_size, cell.config.tau) for cell in runs} == {(1.25, 9, 0.2)}


def test_the_examples_are_searches() -> None:
    """The one in the help, and the one on the page."""
    page = (ROOT / "docs" / "guides" / "sweeps.md").read_text()
    shown = page.partition("# search.yaml\n")[2].partition("```")[0]
    for text in (tune._EXAMPLE.partition("a file:\n")[2].partition("\nA trial")[0], shown):
        values = yaml.load(text, yaml.BaseLoader)
        validated(Search, {"folder": "runs", **values}, "").check()


FAULTS = {
    "nothing to search": ({"search": {}}, "search: dictionary should have at least 1 item"),
    "one choice": ({"search": {"tau": ["0.1"]}}, "search"),
    "no interval": ({"search": {"tau": {"low": "0.2", "high": "0.1"}}}, "low must be less than high"),
    "a logarithm of 0": ({"search": {"tau": {"low": "0", "high": "1", "log": "true"}}}, "low must be above 0"),
    "an end beyond the bound": ({"search": {"tau": {"low": "0.1", "high": "2"}}}, "tau"),
    "a choice of the wrong kind": ({"search": {"tau": ["0.1", "much"]}}, "tau must be a number, not 'much'"),
    "given and searched": ({"search": {"eval_freq": ["1", "2"]}}, "eval_freq is given and searched"),
    "given and searched by two names": ({"search": {"eval_interval": ["1", "2"]}}, "are the same setting"),
    "an unknown algorithm": ({"algorithm": "td3bc"}, "unknown algorithm 'td3bc'; nearest: td3_bc"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_searches_are_refused(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line, before anything starts."""
    changes, message = FAULTS[fault]
    file = tmp_path / "search.yaml"
    file.write_text(yaml.safe_dump(asked(tmp_path / "tuned", **changes)))
    assert main(["tune", str(file)]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "tuned").exists()


@pytest.mark.parametrize("module", ["ray", "optuna"])
def test_a_missing_library_is_named(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "search.yaml"
    file.write_text(yaml.safe_dump(asked(tmp_path / "tuned")))
    monkeypatch.setitem(sys.modules, module, None)  # importing it now fails
    assert main(["tune", str(file), "--ray", "127.0.0.1:1"]) == 2
    said = capsys.readouterr().err
    assert "pip install 'corl-twins[sweep]'" in said
    assert said.count("\n") == 1


def test_what_has_ended_is_remembered(tmp_path: Path) -> None:
    """Unfinished trials come first; a trial that was stopped early is best only if there is no other."""
    search = planned(tmp_path)
    record = Record(search)
    assert (record.best, record.ended, record.unfinished) == (None, [], [])
    values = [{"alpha": 0.5 + number, "batch_size": 8 + number} for number in range(4)]
    record.end(record.begin(values[0]), 50.0, 0.25)
    assert record.best.values == values[0]
    record.begin(values[1])
    record.end(record.begin(values[2]), -3.0, 1.0)
    record.end(record.begin(values[3]), 40.0, 1.0)
    again = Record(search)
    assert [trial.values for trial in again.ended] == [values[0], values[2], values[3]]
    assert again.unfinished == [values[1]]
    assert again.best == Trial(values=values[3], score=40.0, share=1.0)
    # A second call that is killed before it has started them all forgets none.
    again.begin({"alpha": 7.5, "batch_size": 9})
    assert Record(search).unfinished == [{"alpha": 7.5, "batch_size": 9}, values[1]]
    again.end(again.begin(values[1]), 1.0, 1.0)
    assert Record(search).unfinished == [{"alpha": 7.5, "batch_size": 9}]


def test_a_trial_that_diverged_is_a_trial(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is not made again, Optuna learns that it is worse than every other, and it is never the best."""
    search = planned(tmp_path)
    record = Record(search)
    values = [{"alpha": 0.5 + number, "batch_size": 8 + number} for number in range(2)]
    record.end(record.begin(values[0]), None, 0.25)
    assert (record.best, len(record.ended)) == (None, 1)
    record.end(record.begin(values[1]), -1000.0, 1.0)
    again = Record(search)
    assert (len(again.ended), again.unfinished) == (2, [])
    assert again.best.values == values[1]
    told = on_ray.optuna_sampler(search, again)._ot_study
    assert [trial.value < -1000.0 for trial in told.trials] == [True, False]
    assert told.best_trial.params == values[1]
    options = tune.parse_arguments([str(tmp_path / "search.yaml"), "--trials", "2"])
    assert tune._finish(search, options) == 0
    assert "best of 2: alpha 1.5, batch_size 9: -1000.0" in capsys.readouterr().out


def test_a_trial_ends_where_a_run_diverges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its report is below every score. It raises nothing, so neither Tune nor a second call tries it again."""
    search = planned(tmp_path, search={"alpha": ["1", "2"]})
    heard: list[dict[str, float]] = []
    made: list[Any] = []
    monkeypatch.setattr("ray.tune.report", heard.append)

    def run(self: Any, cells: Any) -> Any:
        made.append(cells)
        (cell,) = cells
        folder = tmp_path / f"{resuming.run_name(cell.config)}-torch-0123abcd"
        folder.mkdir()
        (folder / "config.yaml").write_text(dump(cell.config))
        rows = [{"step": 1, "d4rl_normalized_score": 5.0}, {"step": 2, "critic_loss": None, "diverged": "it is nan"}]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return on_ray.Ended(cells, 1, tmp_path / "log")

    monkeypatch.setattr(on_ray.Processes, "_run", run)
    on_ray.make_trial({"alpha": "1"}, search, WAY)
    assert heard == [{"share": 0.25, "parts": 1.0, "score": on_ray._WORST}]
    assert len(made) == 1
    on_ray.make_trial({"alpha": "1"}, search, WAY)
    assert len(made) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is damaged: remove it, or name another folder"),
        ('{"searched": {}, "trials": [{"values": {}, "score": NaN}]}', "is damaged"),
        (
            '{"searched": {}, "trials": []}',
            "is of a search with other algorithm, datasets, framework, search, seeds, settings",
        ),
    ],
)
def test_another_searchs_trials_are_refused(content: str, message: str, tmp_path: Path) -> None:
    search = planned(tmp_path)
    (tmp_path / FILE).write_text(content)
    with pytest.raises(InputError, match=message):
        Record(search)


def test_optuna_is_told_what_is_known(tmp_path: Path) -> None:
    """It suggests unfinished trials first, and then other values than in its first call."""
    search = planned(tmp_path, search={**SPACE, "tau": ["0.1", "0.2"]})
    first = on_ray.optuna_sampler(search, Record(search))
    drawn = [first.suggest(str(number)) for number in range(3)]
    for values in drawn:
        assert 0.5 <= values["alpha"] <= 8
        assert values["batch_size"] in range(8, 17)
        assert values["tau"] in ("0.1", "0.2")
    record = Record(search)
    record.end(record.begin(drawn[0]), 3.0, 1.0)
    record.begin(drawn[1])
    second = on_ray.optuna_sampler(search, Record(search))
    assert [(trial.params, trial.value) for trial in second._ot_study.trials if trial.state.is_finished()] == [
        (drawn[0], 3.0)
    ]
    assert second.suggest("a") == drawn[1]
    assert second.suggest("b") not in drawn


class Stopped(BaseException):
    """Raised as Tune raises it to end a trial."""


@pytest.mark.thorough
def test_a_trial_makes_its_runs_and_reports_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it is ended in the middle, its run saves its state; the next attempt continues and makes nothing twice."""
    search = planned(
        tmp_path, seeds="2", settings={**SHORT, "max_timesteps": "60", "eval_freq": "20"}, search={"alpha": ["1", "2"]}
    )
    heard: list[dict[str, float]] = []

    def stop(report: dict[str, float]) -> None:
        heard.append(report)
        raise Stopped

    monkeypatch.setattr("ray.tune.report", stop)
    with pytest.raises(Stopped):
        on_ray.make_trial({"alpha": "2"}, search, WAY)
    (folder,) = (path.parent for path in tmp_path.glob("*/config.yaml"))
    assert 0 < heard[0]["share"] <= 0.5
    monkeypatch.setattr("ray.tune.report", heard.append)
    on_ray.make_trial({"alpha": "2"}, search, WAY)
    folders = sorted(path.parent for path in tmp_path.glob("*/result.json"))
    assert len(folders) == 2
    assert folder in folders
    shares = [report["share"] for report in heard[1:]]
    assert shares == sorted(set(shares))
    assert heard[-1]["share"] == 1
    assert heard[-1]["parts"] == on_ray._PARTS
    assert heard[-1]["score"] == pytest.approx(np.mean([read_run(folder).score() for folder in folders]))
    before = len(heard)
    monkeypatch.setattr(on_ray.Processes, "_run", lambda self, cells: pytest.fail("made again"))
    on_ray.make_trial({"alpha": "2"}, search, WAY)
    assert heard[before:] == [heard[-1]]


def test_to_look_at_a_run_takes_it_from_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that starts at the same moment must get its files."""
    search = planned(tmp_path)
    monkeypatch.setattr(resuming, "MetricsFile", lambda path: pytest.fail("taken"))
    (cell,) = search.runs({"alpha": 1.0, "batch_size": 8})
    share, score = on_ray.so_far([cell])
    assert share == 0
    assert np.isnan(score)
    folder = tmp_path / f"{resuming.run_name(cell.config)}-torch-0123abcd"
    folder.mkdir()
    (folder / "config.yaml").write_text(dump(cell.config))
    rows = [{"step": step, "d4rl_normalized_score": 10.0 * step} for step in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert on_ray.so_far([cell]) == (0.75, 20.0)


def test_a_run_that_fails_ends_its_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the run's own last words, even if its process exits with 0 and leaves no result."""
    search = planned(tmp_path, search={"alpha": ["1", "2"]})

    class Ending:
        """A pool's process that has ended."""

        status = 1

        def run(self, cells: Any) -> Any:
            (log := tmp_path / "log").write_text("first\nno room on the disk\n")
            return on_ray.Ended(cells, self.status, log)

    ending = Ending()
    monkeypatch.setattr(on_ray.Processes, "_run", lambda self, cells: ending.run(cells))
    for ending.status in (1, 0):
        with pytest.raises(RuntimeError, match="no room on the disk"):
            on_ray.make_trial({"alpha": "1"}, search, WAY)


def test_the_run_that_printed_last_says_why(tmp_path: Path) -> None:
    """A trial of two runs, the second of which failed; and one whose worker died before any run."""
    search = planned(tmp_path, seeds="2", search={"alpha": ["1", "2"]})
    assert on_ray.why_it_failed(search, {"alpha": "1"}) == "its worker died"
    (tmp_path / "logs").mkdir()
    for second, cell in enumerate(search.runs({"alpha": "1"})):
        (log := order((cell,), {}, tmp_path / "logs").log).write_text(f"first\nof seed {cell.config.seed}\n")
        os.utime(log, (second, second))
    assert on_ray.why_it_failed(search, {"alpha": "1"}) == "of seed 1"
    os.utime(log, (-1, -1))
    assert on_ray.why_it_failed(search, {"alpha": "1"}) == "of seed 0"
    assert on_ray.why_it_failed(search, {"alpha": "2"}) == "its worker died"


@pytest.mark.thorough
def test_a_trial_that_fails_is_told(tmp_path: Path) -> None:
    """It has no score, and the next call makes it again."""
    file = tmp_path / "search.yaml"
    missing = str(tmp_path / "missing.hdf5")
    Path(missing).touch()
    file.write_text(yaml.safe_dump(asked(tmp_path / "tuned", datasets=[missing], search={"alpha": ["1", "2"]})))
    command = [sys.executable, "-m", "shared", "tune", str(file), "--trials", "1", "--attempts", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1
    failed, rest = done.stderr.splitlines()
    assert failed.startswith("failed: alpha ")
    assert missing in failed
    assert rest == "trials that failed: 1; mend the cause, narrow the search, or call this again"
    (trial,) = json.loads((tmp_path / "tuned" / FILE).read_text())["trials"]
    assert trial["score"] is None


def test_a_search_is_drawn(tmp_path: Path) -> None:
    """More settings than fit in a row, names that are not formulas, and a choice of text."""
    search = planned(tmp_path, search={**SPACE, "tau": ["0.1", "0.2"], "name": ["$a", "b$"]})
    values = [
        {"alpha": 1.5, "batch_size": 9, "tau": "0.2", "name": "$a"},
        {"alpha": 3, "batch_size": 8, "tau": "0.1", "name": "b$"},
    ]
    trials = [Trial(values=values[0], score=3.0, share=1.0), Trial(values=values[1], score=1.0, share=0.25)]
    assert draw_trials(search, trials, trials[0]).startswith(b"\x89PNG")


@pytest.mark.thorough
@pytest.mark.timeout(1200)  # a process for each run, on two cores that may have other work
def test_a_search_that_is_killed_goes_on(tmp_path: Path) -> None:
    """On its own Ray: finished trials are not made again, and the best one's settings make a run."""
    file = tmp_path / "search.yaml"
    folder = tmp_path / "tuned"
    content = asked(
        folder, settings={**SHORT, "max_timesteps": "40", "eval_freq": "10"}, search={"alpha": SPACE["alpha"]}
    )
    file.write_text(yaml.safe_dump(content))
    command = [sys.executable, "-m", "shared", "tune", str(file), "--trials", "3", "--jobs", "2"]

    def ended() -> list[dict[str, Any]]:
        trials = json.loads((folder / FILE).read_text())["trials"] if (folder / FILE).exists() else []
        return [trial for trial in trials if trial["score"] is not None]

    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: len(ended()) > 0, 500)
    finally:
        first.kill()
        first.communicate()
    before = ended()
    results = {path: path.stat().st_mtime_ns for path in folder.glob("*/result.json")}
    assert len(before) < 3
    again = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (again.returncode, again.stderr) == (0, ""), again.stderr
    lines = again.stdout.splitlines()
    assert lines[0] == f"3 trials in {folder}: {len(before)} ended, {3 - len(before)} to do"
    trials = ended()
    assert trials[: len(before)] == before
    assert len(trials) == 3
    assert all(path.stat().st_mtime_ns == then for path, then in results.items())
    best = max((trial for trial in trials if trial["share"] == 1), key=lambda trial: trial["score"])
    assert yaml.safe_load((folder / "best.yaml").read_text())["alpha"] == best["values"]["alpha"]
    assert (folder / "trials.png").read_bytes().startswith(b"\x89PNG")
    assert lines[-1] == f"its settings: corl-twins train torch td3_bc --env {DATASET} --config_path {folder}/best.yaml"
    given = ["train", *lines[-1].split()[4:], "--runs_path", str(tmp_path / "runs")]
    assert main(given) == 0
