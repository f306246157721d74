"""How cost grows: which points are measured, and that each one matches its label in the tables and charts."""

import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from benchmarks import growth, memory, starts
from benchmarks.growth import AXES, DEFAULTS, Point
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
