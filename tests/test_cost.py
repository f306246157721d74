"""The table of test costs, for a made-up file and for one of pytest's own."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.results import ROOT
from shared.runs.machine import hardware
from tests import cost

MADE_UP = """<?xml version="1.0" encoding="utf-8"?>
<testsuites name="pytest tests"><testsuite name="pytest" tests="8" time="30.4" timestamp="2026-11-22T04:00:00">
<properties><property name="hardware" value="Abacus, 3 cores"/><property name="workers" value="2 workers"/></properties>
<testcase classname="parity_tests.ladder.test_ladder" name="test_twins_agree[sac_n-a-b-float64-update]" time="8.0"/>
<testcase classname="parity_tests.ladder.test_ladder" name="test_twins_agree[sac-a-b-float64-update]" time="4.0"/>
<testcase classname="parity_tests.ladder.test_ladder" name="test_twins_agree[sac-a-b-float32-shipped path]" time="2.0"/>
<testcase classname="parity_tests.ladder.test_run" name="test_runs_agree[iql-update]" time="1.0"/>
<testcase classname="tests.runs.test_resume" name="test_resume[torch-sac_n]" time="16.0"><skipped/></testcase>
<testcase classname="tests.runs.test_resume.TestCut" name="test_cut[rucksac-sacrifice]" time="0.5"/>
<testcase classname="tests.test_seals" name="test_seal" time="0.5"/>
<testcase classname="" name="tests.data.test_broken" time="0.0"><error/></testcase>
</testsuite></testsuites>
"""


@pytest.fixture
def made_up(tmp_path: Path) -> Path:
    """A file with 32 seconds in total."""
    path = tmp_path / "made_up.xml"
    path.write_text(MADE_UP)
    return path


def rows(view: str, *files: Path) -> list[str]:
    """A table's rows below its header."""
    return cost.table(view, [test for file in files for test in cost.read(file).tests]).splitlines()[2:]


def test_rooms_and_files_what_costs_most_first(made_up: Path) -> None:
    assert rows("room", made_up) == [
        "| tests/runs | 2 | 16.5 | 51.6% |",
        "| parity_tests/ladder | 4 | 15.0 | 46.9% |",
        "| tests | 1 | 0.5 | 1.6% |",
        "| tests/data | 1 | 0.0 | 0.0% |",
        "| all | 8 | 32.0 | 100% |",
    ]
    assert rows("room", made_up, made_up)[-1] == "| all | 16 | 64.0 | 100% |"
    assert rows("file", made_up)[:2] == [
        "| tests/runs/test_resume.py | 2 | 16.5 | 51.6% |",
        "| parity_tests/ladder/test_ladder.py | 3 | 14.0 | 43.8% |",
    ]


def test_a_pair_is_named_by_its_whole_name(made_up: Path) -> None:
    """`sac_n` is not `sac`, and neither is any word that starts or ends with it."""
    assert rows("pair", made_up)[:4] == [
        "| sac_n | 2 | 24.0 | 75.0% |",
        "| sac | 2 | 6.0 | 18.8% |",
        "| iql | 1 | 1.0 | 3.1% |",
        f"| {cost.NONE} | 3 | 1.0 | 3.1% |",
    ]


def test_rungs_are_those_of_the_ladders_file(made_up: Path) -> None:
    assert rows("rung", made_up)[:3] == [
        f"| {cost.NONE} | 5 | 18.0 | 56.2% |",
        "| update | 2 | 12.0 | 37.5% |",
        "| shipped path | 1 | 2.0 | 6.2% |",
    ]


def test_the_heading_says_how_it_was_measured(made_up: Path) -> None:
    lines = cost.report([cost.read(made_up)]).splitlines()
    assert "while workers and other jobs share the cores" in lines[2]
    assert lines[4] == "- made_up.xml: Abacus, 3 cores; 2 workers; 2026-11-22; 30 s wall, 8 tests"


@pytest.mark.parametrize("content", [None, "no xml", "<testsuites/>"], ids=["no file", "no XML", "no tests"])
def test_what_is_no_file_of_pytests_is_refused_in_a_line(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / "other.xml"
    if content is not None:
        path.write_text(content)
    monkeypatch.setattr("sys.argv", ["cost", str(path)])
    with pytest.raises(SystemExit) as stopped:
        cost.main()
    assert stopped.value.code == 2
    assert f"write it with `pytest --junitxml={path}`" in capsys.readouterr().err


@pytest.mark.thorough
def test_pytest_notes_the_hardware(tmp_path: Path) -> None:
    path = tmp_path / "own.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--junitxml={path}"]
    subprocess.run([*command, "tests/test_seals.py"], check=True, capture_output=True, cwd=ROOT)
    suite = cost.read(path)
    assert f"{hardware()['cores']} cores; 1 worker; 20" in suite.line
    assert {test.file for test in suite.tests} == {"tests/test_seals.py"}


def test_workers_are_xdists(request: pytest.FixtureRequest) -> None:
    noted = {}
    conftest = request.config.pluginmanager.get_plugin(str(ROOT / "conftest.py"))
    plugins = SimpleNamespace(get_plugins=lambda: [SimpleNamespace(add_global_property=noted.__setitem__)])
    conftest.pytest_configure(SimpleNamespace(pluginmanager=plugins, option=SimpleNamespace(tx=["popen"] * 4)))
    assert noted["workers"] == "4 workers"
