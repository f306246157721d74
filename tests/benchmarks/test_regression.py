"""The check on speed: which blocks count as slower, which as disturbed, and one real pair of blocks."""

import json
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks import regression, results
from benchmarks.blocks import Processes, prepare
from benchmarks.regression import ATTEMPTS, TOLERANCE, Busy, pairs, ratio, verdict
from benchmarks.results import BLOCKS, DISTURBED, Block
from benchmarks.rungs import EAGER, SHIPPED
from shared.runs.machine import hardware


class Recorded:
    """Blocks as recorded, in place of a process that times them."""

    def __init__(self, others: Callable[[int], float]) -> None:
        self.others, self.timed = others, 0

    def run(self, function: Callable[..., Any], name: str, rung: str) -> Block | None:
        """The next block; eager takes twice as long."""
        if function is prepare:
            return None
        self.timed += 1
        return Block({EAGER: 2.0, SHIPPED: 1.0}[rung], self.others(self.timed))


def test_a_tenth_may_be_lost() -> None:
    assert verdict("td3_bc", 2.0, 2.0 * (1 - TOLERANCE) + 1e-9)[1]
    line, kept = verdict("td3_bc", 2.0, 2.0 * (1 - TOLERANCE) - 1e-9)
    assert not kept
    assert line.endswith("SLOWER")


def test_disturbed_pairs_are_measured_again() -> None:
    """Blocks 1 and 4 ran while another job did, so pairs 1 and 2 do not count."""
    recorded = Recorded(lambda number: DISTURBED if number in (1, 4) else 0.0)
    assert ratio(pairs(recorded, "td3_bc")) == 2.0
    assert recorded.timed == 2 * (BLOCKS + 2)


def test_a_busy_machine_tells_nothing() -> None:
    recorded = Recorded(lambda number: 0.5)
    with pytest.raises(Busy, match=f"0 of {BLOCKS * ATTEMPTS}"):
        pairs(recorded, "td3_bc")


@pytest.mark.thorough
def test_each_algorithm_has_its_own_process() -> None:
    """In which all its blocks are timed."""
    with closing(Processes()) as processes:
        first = [processes.run(process_of, "any_percent_bc") for _ in range(2)]
        second = processes.run(process_of, "td3_bc")
    assert first[0] == first[1] != second


def process_of(name: str) -> int:
    """The id of the process in which this is called."""
    return os.getpid()


def test_a_machine_without_results_is_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    monkeypatch.setattr("sys.argv", ["regression"])
    with pytest.raises(SystemExit) as stopped:
        regression.main()
    assert stopped.value.code == 2
    assert "pytest --benchmark-only" in capsys.readouterr().err


def test_what_ships_stands_in_where_the_ladder_has_no_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    """Otherwise the ladder's row counts. An algorithm with neither is reported, with the command that measures it."""
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    monkeypatch.setattr(regression, "pairs", lambda processes, name: [(Block(2.0, 0.0), Block(1.0, 0.0))])
    for kind, names, before in (("updates", ["cql"], 2.0), ("shipped", ["cql", "iql"], 1.5)):
        rungs = {rung: {"updates_per_second": {"max": rate}} for rung, rate in ((EAGER, 1.0), (SHIPPED, before))}
        rows = {"algorithms": {name: {"rungs": rungs} for name in names}}
        results.results_file(kind, hardware()).write_text(json.dumps(rows))
    told = {"cql": (0, "2.00 in the results file"), "iql": (0, "1.50 in the results file")}
    told["dt"] = (2, "run `pytest --benchmark-only -k '[dt-'` once")
    for name, (code, words) in told.items():
        monkeypatch.setattr("sys.argv", ["regression", name])
        with pytest.raises(SystemExit) as stopped:
            regression.main()
        assert stopped.value.code == code
        assert words in "".join(capsys.readouterr())
