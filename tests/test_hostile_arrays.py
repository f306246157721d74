"""Datasets that nobody would record: whatever arrays a file holds, finite transitions come out, or one line."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shared import data, hdf5, rewards, sequences, sources
from shared.envs import make_env
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


def columns(draw: Callable, number: int) -> dict[str, np.ndarray]:
    """Arrays of which some are as they should be, and some of any type and shape."""
    good = {"observations": (number, 3), "actions": (number, 2)}
    found = {}
    for key in KEYS:
        kind = draw(st.sampled_from(["right", "right", "right", "numbers", "any", "missing"]))
        shape = good.get(key, (number,))
        if kind == "missing":
            continue
        if kind == "any":
            shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6))
        dtype = np.dtype(np.float32) if kind == "right" else draw(dtypes)
        finite = {"allow_nan": False, "allow_infinity": False} if dtype.kind == "f" and kind == "right" else None
        elements = hnp.from_dtype(dtype, **finite) if finite else None
        found[key] = draw(hnp.arrays(dtype, shape, elements=elements))
    return found


@st.composite
def files(draw: Callable) -> dict[str, np.ndarray]:
    """The arrays of a file."""
    return columns(draw, draw(rows))


def used(path: Path) -> None:
    """Reads the file, and makes of it what every algorithm learns from."""
    raw = data.read_hdf5(path)
    hdf5.read_attributes(path)
    preparations: list[Callable[[], Any]] = [
        lambda: data.normalise_states(data.extract_transitions(raw, 3))[0],
        lambda: data.normalise_states(rewards.modify_rewards(data.extract_transitions(raw, 3), "hopper"))[0],
        lambda: rewards.keep_best(data.extract_transitions(raw, 3), 0.5, 0.99),
        lambda: data.extract_sarsa(raw, 3),
        lambda: sequences.normalise_states(sequences.split_trajectories(raw), raw["observations"])[0],
    ]
    for prepare in preparations:
        one_line(lambda: finite(prepare()))


def finite(dataset: Any) -> None:
    """Every number that is learnt from is one."""
    for name, column in dataset._asdict().items():
        assert column.dtype == np.float32
        assert np.isfinite(column).all(), name


def one_line(read: Callable[[], Any]) -> None:
    """A result, without a warning, or one line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            read()
    except InputError as error:
        assert len(str(error).splitlines()) == 1, str(error)


@quick
@given(content=files())
@example(content={key: np.full((4, 2) if key in KEYS[:2] else 4, 1e300) for key in KEYS})
@example(content={key: np.full((4, 2) if key in KEYS[:2] else 4, 3e38, np.float32) for key in KEYS})
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
        data.read_hdf5(path)
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
def test_any_name_gives_one_line(name: str) -> None:
    """Of a dataset and of an environment, which a file's own attribute may be."""
    for read in (sources.read, make_env):
        with pytest.raises(InputError) as caught:
            read(name)
        assert len(str(caught.value).splitlines()) == 1
