"""Rungs that compile side by side, and the results that are written of those that are ready."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import results, together
from benchmarks.cuda_graphs import MOST_RECORDINGS, recorded_updates
from benchmarks.results import WHAT_SHIPS
from benchmarks.rungs import COMPILED, EAGER, SHIPPED, rungs_of
from benchmarks.subjects import in_a_block, subject

ASKED = [EAGER, COMPILED, SHIPPED, "JAX scan, 16 seeds"]


@pytest.mark.parametrize(
    ("ready", "kind"),
    [
        (ASKED, "updates"),
        ([EAGER, COMPILED, SHIPPED], "updates"),
        ([EAGER, SHIPPED, "JAX scan, 16 seeds"], "shipped"),
        ([EAGER], "shipped"),
    ],
)
def test_a_ladder_has_all_of_pytorch(ready: list[str], kind: str) -> None:
    """Without it there is no comparison with PyTorch's best; a JAX rung may be missing."""
    climb = together.climb_of("iql", ready, ASKED)
    assert climb.kind == kind
    assert climb.rungs("iql") == (ready if kind == "updates" else WHAT_SHIPS.rungs("iql"))


def test_a_rung_that_does_not_exist_is_not_missing() -> None:
    assert together.climb_of("cql", [EAGER, SHIPPED], [EAGER, COMPILED, SHIPPED]).kind == "updates"


class Executor:
    """Stands in for an algorithm's process."""

    def __init__(self, answer: Callable[[str], float]) -> None:
        self.answer = answer

    def submit(self, function: Callable, name: str, rung: str) -> "Executor":
        """Prepares at once."""
        self.rung = rung
        return self

    def result(self) -> float:
        """The outcome of the preparation."""
        return self.answer(self.rung)


def workers(answer: Callable[[str], float]) -> together.Workers:
    """Two algorithms' processes, which give this answer."""
    made = together.Workers([])
    made._executors = {name: Executor(answer) for name in ("iql", "td3_bc")}
    return made


def test_a_rung_that_fails_costs_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    def answer(rung: str) -> float:
        if rung == COMPILED:
            raise RuntimeError("no compiler\nand more")
        return 1.0

    kept = [rung for rung in ASKED if rung != COMPILED]
    assert workers(answer).prepare(ASKED, 60.0) == {"iql": kept, "td3_bc": kept}
    assert f"iql, {COMPILED}: RuntimeError: no compiler\n" in capsys.readouterr().out


def test_nothing_begins_after_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rung takes ten seconds here, and none begins after fifteen."""
    clocks = {"seconds": 0.0}
    monkeypatch.setattr(together.time, "perf_counter", lambda: clocks["seconds"])

    def answer(rung: str) -> float:
        clocks["seconds"] += 10.0
        return 1.0

    made = workers(answer)
    del made._executors["td3_bc"]
    assert made.prepare(ASKED, 15.0) == {"iql": ASKED[:2]}


def test_an_unknown_algorithm_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["together", "iqll"])
    with pytest.raises(SystemExit) as exit:
        together.main()
    assert exit.value.code == 2
    assert "unknown: iqll; there are acfql" in capsys.readouterr().err


def test_a_row_of_what_ships_holds_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although many seeds are ready; compiled PyTorch is not."""
    timed: list[Any] = []
    made = workers(lambda rung: 1.0)
    monkeypatch.setattr(together, "Workers", lambda names: made)
    monkeypatch.setattr(made, "prepare", lambda rungs, seconds: {"iql": [rung for rung in rungs if rung != COMPILED]})
    monkeypatch.setattr(made, "measure", lambda name, rungs, results: timed.append((name, rungs, results.climb)))
    monkeypatch.setattr(made, "close", lambda: None)
    monkeypatch.setattr(sys, "argv", ["together", "iql", "--rungs", *ASKED])
    together.main()
    assert timed == [("iql", [EAGER, SHIPPED], WHAT_SHIPS)]


def test_a_broken_process_costs_no_other(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A failed recording leaves its process without a GPU."""
    timed: list[str] = []

    def measure(name: str, rungs: list[str], results: results.Results) -> None:
        if name == "iql":
            raise RuntimeError("an illegal memory access\nand more")
        timed.append(name)

    made = workers(lambda rung: 1.0)
    monkeypatch.setattr(together, "Workers", lambda names: made)
    monkeypatch.setattr(made, "measure", measure)
    monkeypatch.setattr(made, "close", lambda: None)
    monkeypatch.setattr(sys, "argv", ["together", "iql", "td3_bc", "--rungs", *ASKED])
    together.main()
    assert timed == ["td3_bc"]
    assert "iql: not measured: RuntimeError: an illegal memory access\n" in capsys.readouterr().out


@pytest.mark.thorough
def test_what_is_ready_is_timed_and_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In processes of their own, as on a user's machine."""
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "argv", ["together", "any_percent_bc", "--rungs", EAGER, SHIPPED])
    together.main()
    (path,) = tmp_path.iterdir()
    row: dict[str, Any] = json.loads(path.read_text())["algorithms"]["any_percent_bc"]
    assert list(row["rungs"]) == [EAGER, SHIPPED]
    assert row["rungs"][EAGER]["blocks"] == results.SHIPPED_BLOCKS
    assert row["measured"]["precision"]["jax"] == "highest"


@pytest.mark.parametrize(("on_processor", "on_gpu"), [(1, 10), (16, 100), (150, 150), (4000, 300)])
def test_a_block_on_a_gpu(on_processor: int, on_gpu: int) -> None:
    assert in_a_block(on_processor, on_gpu=True) == on_gpu
    assert in_a_block(on_processor, on_gpu=False) == on_processor


def test_graphs_are_for_updates_that_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """CRR copies its targets every 100 updates, discrete CQL every 8,000."""
    graph = "PyTorch, a CUDA graph an update"
    assert graph not in rungs_of(subject("crr"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert recorded_updates(1, subject("crr")) == MOST_RECORDINGS
    assert graph in rungs_of(subject("crr"))
    assert graph not in rungs_of(subject("discrete/cql"))
