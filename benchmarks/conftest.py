"""Chooses the rungs to time, and collects and prints the measurements as a results file for this machine."""

import shlex
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.progress import Case, Progress
from benchmarks.results import WHAT_SHIPS, WHOLE_LADDER, Climb, Results
from benchmarks.subjects import UPDATES
from benchmarks.work import full_precision


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds a flag without a value: pytest would take a separate value for a path, and then never read this file."""
    parser.addoption("--all-rungs", action="store_true", help="benchmarks: time every variant, not just the default")


def pytest_configure(config: pytest.Config) -> None:
    """Turns off pytest-benchmark's own table: it shows seconds of blocks with different numbers of updates."""
    config.option.benchmark_quiet = True


def _climb(config: pytest.Config) -> Climb:
    # If pytest reads this file late (`pytest .`), it knows the flag's name but has no value for it.
    return WHOLE_LADDER if config.getoption("all_rungs", False) else WHAT_SHIPS


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Makes a test for each block, in an order in which the rungs take turns."""
    if "case" in metafunc.fixturenames:
        climb = _climb(metafunc.config)
        cases = [
            Case(name, turn, rung) for name in UPDATES for turn in range(climb.blocks) for rung in climb.rungs(name)
        ]
        metafunc.parametrize("case", cases, ids=[f"{case.name}-block {case.block}-{case.rung}" for case in cases])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects thousands of other tests at once with `--benchmark-only`, which would skip them one by one."""
    if config.getoption("benchmark_only"):
        chosen = [item for item in items if "benchmark" in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Prints no dot for a timed block, because it has its own line."""
    timed = report.when == "call" and report.passed and "test_updates[" in report.nodeid
    return ("passed", "", "") if timed else None


def _write(config: pytest.Config, text: str) -> None:
    with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(text, end="", flush=True)


@pytest.fixture(scope="session")
def progress(request: pytest.FixtureRequest) -> Progress:
    """The progress of the selected blocks."""
    items: list[Any] = request.session.items
    cases = [item.callspec.params["case"] for item in items if "progress" in item.fixturenames]
    return Progress(cases, lambda text: _write(request.config, text))


@pytest.fixture(scope="session")
def results(request: pytest.FixtureRequest) -> Iterator[Results]:
    """The session's measurements, printed at its end; complete algorithms are also written to results files."""
    full_precision()
    gathered = Results(shlex.join(["pytest", *sys.argv[1:]]), _climb(request.config))
    yield gathered
    if gathered.blocks:
        place = gathered.write() or "not written: blocks are missing"
        _write(request.config, f"\n\n{gathered.table()}\n\n{place}\n")
