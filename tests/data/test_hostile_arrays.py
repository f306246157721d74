"""Datasets that nobody would record: whatever arrays a file contains, the result is finite transitions or one line."""

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shared.data import hdf5, rewards, sequences, sources, transitions
from shared.envs.registry import make_env
from shared.errors import InputError

KEYS = ("observations", "actions", "rewards", "terminals", "timeouts")
quick = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

dtypes = st.one_of(
    hnp.floating_dtypes(endianness="?"),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.boolean_dtypes(),
    hnp.complex_number_dtypes(),
    hnp.byte_string_dtypes(max_len=3),
)
rows = st.integers(0, 6)


# The data that algorithms learn from
PREPARATIONS: list[Callable[[dict[str, np.ndarray]], Any]] = [
    lambda raw: transitions.normalise_states(transitions.extract_transitions(raw, 3))[0],
    lambda raw: rewards.CorlRewards().modified(transitions.extract_transitions(raw, 3), "hopper"),
    lambda raw: rewards.BestEpisodes(0.5, 0.99).modified(transitions.extract_transitions(raw, 3), "hopper"),
    lambda raw: transitions.extract_sarsa(raw, 3),
    lambda raw: sequences.normalise_states(sequences.split_trajectories(raw), raw["observations"])[0],
]


def columns(draw: Callable, number: int) -> dict[str, np.ndarray]:
    """Arrays, some of them correct and some of any type and shape."""
    good = {"observations": (number, 3), "actions": (number, 2)}
    found = {}
    for key in KEYS:
        kind = draw(st.sampled_from(["right", "right", "right", "numbers", "any", "missing"]))
        shape = good.get(key, (number,))
        if kind == "missing":
            continue
        if kind == "any":
            shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6))
        if kind == "right":
            found[key] = draw(hnp.arrays(np.float32, shape, elements=st.floats(-(2.0**49), 2.0**49, width=32)))
        else:
            found[key] = draw(hnp.arrays(draw(dtypes), shape))
    return found


@st.composite
def files(draw: Callable) -> dict[str, np.ndarray]:
    """The arrays of a file with any number of rows."""
    return columns(draw, draw(rows))


def used(path: Path) -> None:
    """Reads the file, and prepares the data of every algorithm."""
    raw = transitions.read_hdf5(path)
    hdf5.read_attributes(path)
    for prepare in PREPARATIONS:
        one_line(partial(finite, prepare, raw))


def finite(prepare: Callable[[dict[str, np.ndarray]], Any], raw: dict[str, np.ndarray]) -> None:
    """Checks that every number of the data is finite, and that none overflowed with a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset = prepare(raw)
    for name, column in dataset._asdict().items():
        # Finite actions and images keep a type of their own.
        kept = {("actions", 1): np.int64, ("observations", 4): np.uint8, ("next_observations", 4): np.uint8}
        assert column.dtype == kept.get((name, column.ndim), np.float32), name
        assert np.isfinite(column).all(), name


def one_line(read: Callable[[], Any]) -> None:
    """Checks that a reader returns a result or raises a one-line error."""
    try:
        read()
    except InputError as error:
        lines = str(error).splitlines()
    else:
        return
    assert len(lines) == 1, lines


@quick
@given(content=files())
@example(content={key: np.full((4, 2) if key in KEYS[:2] else 4, 1e300) for key in KEYS})
@example(content={key: np.full((4, 2) if key in KEYS[:2] else 4, 3e38, np.float32) for key in KEYS})
@example(content={"observations": np.zeros((4, 2), np.float32), **{key: np.zeros(4, np.int8) for key in KEYS[1:]}})
def test_any_arrays_give_finite_transitions_or_one_line(content: dict[str, np.ndarray], tmp_path: Path) -> None:
    path = tmp_path / "any.hdf5"
    with h5py.File(path, "w") as file:
        for key, values in content.items():
            file[key] = values
    one_line(lambda: used(path))


@quick
@given(content=st.binary(max_size=3000), start=st.sampled_from([b"", b"\x89HDF\r\n\x1a\n"]))
def test_any_bytes_give_one_line(content: bytes, start: bytes, tmp_path: Path) -> None:
    path = tmp_path / "any.hdf5"
    path.write_bytes(start + content)
    with pytest.raises(InputError) as caught:
        transitions.read_hdf5(path)
    assert len(str(caught.value).splitlines()) == 1


@quick
@given(name=st.text(st.characters(exclude_categories=())))
@example(name="a\nb.hdf5")
@example(name="a\0b.hdf5")
@example(name="x" * 5000 + ".hdf5")
@example(name="minari:")
@example(name="minari:../../x")
@example(name="minari:\0")
@example(name="mini/../mini/hopper-medium-expert")
def test_any_name_gives_a_result_or_one_line(name: str) -> None:
    """A dataset's name, or an environment's, which may come from a file's own attribute."""
    for read in (sources.read, make_env):
        one_line(partial(read, name))
