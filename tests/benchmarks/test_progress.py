"""`pytest --benchmark-only`: the blocks that it times, its progress lines, and the file that it writes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report, results
from benchmarks.progress import Case, Progress
from benchmarks.results import SHIPPED_BLOCKS, WHAT_SHIPS, WHOLE_LADDER, Block, Climb, Results
from benchmarks.rungs import EAGER, SHIPPED, rungs_of
from benchmarks.subjects import UPDATES, subject

# Both sessions share a process, so the second one reuses the first one's imports. They read fewer folders than pytest
# looks into by itself, since it takes seconds to read them all.
SESSIONS = """
import pytest

FOLDERS = "testpaths=tests/benchmarks benchmarks"
for flags in ([], ["--all-rungs", "-k", "[iql-"]):
    options = ["-p", "no:cacheprovider", "--collect-only", "--quiet", "--benchmark-only", "-o", FOLDERS]
    assert pytest.main([*options, *flags]) == 0
    print("the end")
"""


@pytest.fixture(scope="module")
def collected() -> list[list[str]]:
    """The blocks that two command lines select, in order, such as `iql-block 0-JAX scan`."""
    # A worker of pytest-xdist knows that it is one from the environment, and would not time anything.
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-c", SESSIONS]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=report.ROOT, env=own)
    sessions = done.stdout.split("the end\n")[:2]
    tests = [[line for line in listed.splitlines() if "::" in line] for listed in sessions]
    assert all(test.startswith("benchmarks/test_updates.py::test_updates[") for test in tests[0] + tests[1])
    return [[test.partition("[")[2].removesuffix("]") for test in each] for each in tests]


def expected(climb: Climb, name: str) -> list[str]:
    """An algorithm's blocks, with the rungs taking turns."""
    return [f"{name}-block {block}-{rung}" for block in range(climb.blocks) for rung in climb.rungs(name)]


@pytest.mark.thorough
def test_typed_as_it_stands_it_times_what_ships(collected: list[list[str]]) -> None:
    assert collected[0] == [block for name in UPDATES for block in expected(WHAT_SHIPS, name)]
    assert WHAT_SHIPS.rungs("iql") == [EAGER, SHIPPED]


@pytest.mark.thorough
def test_the_whole_ladder_of_one_pair(collected: list[list[str]]) -> None:
    assert collected[1] == expected(WHOLE_LADDER, "iql")
    assert WHOLE_LADDER.rungs("iql") == rungs_of(subject("iql"))


def test_a_line_says_which_block_how_fast_and_how_long_still() -> None:
    """First blocks are ready after 8 s; each block itself takes 2 s."""
    cases = [Case("iql", block, rung) for block in range(2) for rung in (EAGER, SHIPPED)]
    now, written = [0.0], []
    progress = Progress(cases, written.append, lambda: now[0])
    for case, disturbed in zip(cases, (False, False, True, False), strict=True):
        progress.begin(case)
        now[0] += 2.0 if case.block else 10.0
        progress.end(case, 2.0, 300.0, disturbed)
    assert "".join(written).splitlines()[1:] == [
        "iql, PyTorch eager, block 1 of 2 (compiles first): 300.0 updates/s; about 0:14 left",
        "iql, JAX scan, block 1 of 2 (compiles first): 300.0 updates/s; about 0:04 left",
        "iql, PyTorch eager, block 2 of 2: 300.0 updates/s (disturbed by other jobs); about 0:02 left",
        "iql, JAX scan, block 2 of 2: 300.0 updates/s; about 0:00 left",
    ]


def measured(climb: Climb, seconds: float = 1.0) -> Results:
    """Results in which every block took the same time."""
    gathered = Results("pytest", climb)
    gathered.peak = 100.0
    for name in UPDATES:
        gathered.gflop[name] = 1.0
        for rung in climb.rungs(name):
            for _ in range(climb.blocks):
                gathered.add(name, rung, Block(seconds, 0.0))
    return gathered


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for results files."""
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    return tmp_path


def rungs_in(path: Path) -> dict[str, Any]:
    """A results file's rungs of IQL."""
    return json.loads(path.read_text())["algorithms"]["iql"]["rungs"]


def test_what_ships_replaces_nothing_of_the_ladder(folder: Path) -> None:
    ladder, shipped = measured(WHOLE_LADDER).write(), measured(WHAT_SHIPS, 0.5).write()
    assert sorted(folder.iterdir()) == sorted([ladder, shipped])
    assert list(rungs_in(ladder)) == rungs_of(subject("iql"))
    assert list(rungs_in(shipped)) == [EAGER, SHIPPED]
    rates = [rungs_in(path)[SHIPPED]["updates_per_second"]["max"] for path in (ladder, shipped)]
    assert rates == [UPDATES["iql"], 2 * UPDATES["iql"]]
    assert results.files("updates") == [ladder]
    assert report.shipped(None).count("| iql |") == 1


def test_a_row_joins_the_others(folder: Path) -> None:
    """With its own date and load; an algorithm with missing blocks leaves its row as it was."""
    first, again = measured(WHAT_SHIPS), measured(WHAT_SHIPS, 0.5)
    first.load_before, again.load_before, again.peak = 0.5, 7.0, 200.0
    path = first.write()
    whole = json.loads(path.read_text())["algorithms"]
    for name in set(UPDATES) - {"iql", "cql"}:
        del again.blocks[name]
    again.blocks["cql"][EAGER].pop()
    assert again.write() == path
    joined = json.loads(path.read_text())["algorithms"]
    assert {name for name in joined if joined[name] != whole[name]} == {"iql"}
    assert joined.keys() == whole.keys()
    assert joined["iql"]["measured"]["load_before"] == 7.0
    assert joined["iql"]["measured"]["matmul_peak_gflops"] == 200.0
    assert "load up to 7.0 before" in report.shipped(None)
    del again.blocks["iql"]
    assert again.write() is None


@pytest.mark.parametrize("rung", [EAGER, "JAX, host batches"])
def test_a_row_needs_every_block(folder: Path, rung: str) -> None:
    """The others' rows are written."""
    gathered = measured(WHOLE_LADDER)
    assert gathered.complete(UPDATES)
    gathered.blocks["iql"][rung].pop()
    assert not gathered.complete(UPDATES)
    assert json.loads(gathered.write().read_text())["algorithms"].keys() == set(UPDATES) - {"iql"}


def test_a_table_says_how_many_blocks_were_undisturbed() -> None:
    """A side alone is over nothing."""
    gathered = Results("pytest", WHAT_SHIPS)
    gathered.peak, gathered.gflop["iql"] = 100.0, 1.0
    for others in (0.5, *[0.0] * (SHIPPED_BLOCKS - 1)):
        gathered.add("iql", EAGER, Block(2.0, others))
        gathered.add("iql", SHIPPED, Block(1.0, 0.5))
    row = gathered.table().splitlines()[-1]
    del gathered.blocks["iql"][EAGER]
    assert gathered.table().splitlines()[-1].endswith("| not measured |")
    assert f"| **2.00** | {SHIPPED_BLOCKS - 1} of {SHIPPED_BLOCKS}, 0 of {SHIPPED_BLOCKS} | 20" in row
