"""How cost grows: which points are measured, and that each one matches its label in the tables and charts."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from benchmarks import chart, growth, memory, starts
from benchmarks.growth import AXES, DEFAULTS, Point
from benchmarks.rungs import EAGER, SHIPPED
from parity_tests.pairs import PAIRS
from shared.data.transitions import extract_transitions, read_hdf5


def test_the_defaults_are_the_algorithms() -> None:
    """A point without changes is the algorithm with its defaults, and each axis includes that value."""
    config = PAIRS[growth.NAME].jax.TrainConfig()
    for name in ("batch_size", "n_critics", "hidden_dim"):
        assert getattr(config, name) == DEFAULTS[name]
    assert all(DEFAULTS[name] in values for name, values in AXES.items())


def test_one_thing_is_changed_at_a_time() -> None:
    """The defaults are measured once per framework; several seeds at once only with JAX."""
    found = growth.points()
    assert sum(not point.changed for point in found) == 2
    assert all(len(point.changed) <= 1 for point in found)
    assert {point.side for point in found if "seeds" in point.changed} == {"jax"}
    assert len(found) == 2 + 2 * sum(len(values) - 1 for name, values in AXES.items() if name != "seeds") + 2


def test_a_point_is_what_it_says() -> None:
    """Settings reach the algorithm, rows its dataset, and seeds the program."""
    subject = Point("jax", {"batch_size": 16}).subject(4)
    assert (subject.settings, subject.rows, subject.updates) == ({"batch_size": 16}, DEFAULTS["rows"], 4)
    subject = Point("jax", {"rows": 50}).subject(4)
    assert (subject.settings, len(subject.columns.rewards)) == ({}, 50)
    assert Point("jax", {"seeds": 4}).rung().seeds == 4
    assert Point("torch").rung() is growth.RUNGS[growth.EAGER]
    assert Point("jax").rung() is growth.RUNGS[growth.SHIPPED]


@pytest.mark.thorough
def test_a_point_is_measured() -> None:
    """A small one: the work is known by hand, while rates and memory depend on the machine."""
    found = growth.in_its_own_process(Point("jax", {"n_critics": 2, "hidden_dim": 8, "batch_size": 4, "rows": 100}))
    assert 0 < found["gflop_per_update"] < 1e-3
    rates = found["updates_per_second"]
    assert 0 < rates["min"] <= rates["median"] <= rates["max"]
    assert found["updates_per_block"] == 100
    assert found["matmul_peak_gflops"] > 1
    assert 0.05 < found["gib"] < 4


def made_up() -> dict[str, Any]:
    """A results file in which every point has another rate."""
    points = []
    for number, point in enumerate(growth.points(), start=1):
        rates = {"min": 1.0, "median": 2.0, "max": 100.0 + number}
        work = {"gflop_per_update": 1.0, "matmul_peak_gflops": 100.0 if number == 3 else 10.0, "gib": 2.0}
        points.append({"side": point.side, "changed": dict(point.changed), "updates_per_second": rates, **work})
    return {"algorithm": growth.NAME, "points": points}


def test_points_stand_along_their_axis() -> None:
    """In the order of the values; the defaults are a point on each axis."""
    summary = made_up()
    default = growth.along(summary, "rows", "jax")[DEFAULTS["rows"]]
    assert not default["changed"]
    for name, values in AXES.items():
        found = growth.along(summary, name, "jax")
        assert list(found) == list(values)
        assert found[DEFAULTS[name]] is default
    lines = growth.table(summary).splitlines()[2:]
    assert len(lines) == sum(map(len, AXES.values()))
    rate = growth.along(summary, "batch_size", "jax")[16]["updates_per_second"]["max"]
    assert f"| `batch_size` | 16 | 1.00 | {rate - 1:.1f} | {rate:.1f} | **{rate / (rate - 1):.2f}** |" in lines[0]
    # The peak is the highest value measured.
    last = growth.along(summary, "seeds", "jax")[16]
    assert growth.share_of_peak(summary, last) == last["updates_per_second"]["max"] / 100
    assert f"| {growth.share_of_peak(summary, last):.0%} |" in lines[-1]


@pytest.mark.parametrize("value", ["updates_per_second", "share", "gib"])
def test_growth_is_drawn(value: str) -> None:
    """One panel for each thing that is changed."""
    drawn = chart.growth(made_up(), value)
    assert all(f">{name}<" in drawn for name in AXES)


def test_shares_of_the_peak_are_drawn_by_work() -> None:
    """The least work is at the top, and each row shows the GFLOP of an update."""
    rungs = {EAGER: {"share_of_matmul_peak": 0.2}, SHIPPED: {"share_of_matmul_peak": 0.5}}
    work = {"awr": 143.2, "iql": 0.5378}
    found = {name: {"gflop_per_update": gflop, "rungs": rungs} for name, gflop in work.items()}
    drawn = chart.peaks({"algorithms": found})
    assert drawn.index(">iql, 0.54<") < drawn.index(">awr, 140<")


def test_made_up_rows_are_a_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has as many rows as requested, in whatever parts they are written, in trajectories of 1,000."""
    monkeypatch.setattr(starts, "_PART", 700)
    starts.write_rows(path := tmp_path / "made-up.hdf5", 2500)
    with h5py.File(path) as file:
        rewards = file["rewards"][:]
    assert np.unique(rewards).size > 2400
    raw = read_hdf5(path)
    assert np.flatnonzero(raw["timeouts"]).tolist() == [999, 1999]
    assert extract_transitions(raw).observations.shape == (2497, starts.STATE_DIM)


def test_starts_have_a_row_each() -> None:
    seconds = {("torch", "first"): 1.0, ("torch", "later"): 0.5, ("jax", "first"): 3.0, ("jax", "later"): 2.0}
    found = [
        {"rows": rows, "side": side, "start": start, "seconds_to_first_update": rows + least, "gib": rows + least}
        for rows in (10, 1000)
        for (side, start), least in seconds.items()
    ]
    assert starts.table({"starts": found}).splitlines()[2:] == [
        "| 10 | 11.0 s, 10.5 s | 13.0 s, 12.0 s | 11.0, 13.0 |",
        "| 1,000 | 1001.0 s, 1000.5 s | 1003.0 s, 1002.0 s | 1001.0, 1003.0 |",
    ]
    assert "JAX, later start" in chart.starts({"starts": found})


def test_the_memory_is_the_commands_own(tmp_path: Path) -> None:
    """It excludes the process that starts the command; this one has both frameworks loaded."""
    half = "import time; kept = bytearray(200 * 2**20); kept[::4096] = b'x' * len(kept[::4096]); time.sleep(0.5)"
    assert 0.19 < memory.watched([sys.executable, "-c", half], tmp_path, os.environ) < 0.25
    with pytest.raises(subprocess.CalledProcessError):
        memory.watched([sys.executable, "-c", "raise SystemExit(3)"], tmp_path, os.environ)


def test_a_peak_can_be_forgotten() -> None:
    """Whatever the process has used before. It runs in a process of its own, as a measurement of a point does."""
    subprocess.run([sys.executable, "-c", _FORGETS], check=True)


_FORGETS = """
from benchmarks import memory

before = memory.peak()
kept = b"x" * 2**29
assert memory.peak() > before + 0.4
del kept
assert memory.peak() > before + 0.4
memory.forget_peak()
assert memory.peak() < before + 0.1
"""
