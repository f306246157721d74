"""The dataset reader against D4RL's and CORL's rules, applied row by row, and on bad files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shared import names
from shared.data import transitions
from shared.data.transitions import Batch
from shared.errors import InputError

WriteHDF5 = Callable[..., Path]


def extract_row_by_row(raw: dict[str, np.ndarray], max_episode_steps: int) -> list[tuple[int, bool]]:
    """The rows that become transitions, and whether each is terminal, written as in the specification."""
    kept, counter = [], 0
    for row in range(len(raw["rewards"]) - 1):
        final = bool(raw["timeouts"][row]) if "timeouts" in raw else counter == max_episode_steps - 1
        if final:
            counter = 0
            continue
        kept.append((row, bool(raw["terminals"][row])))
        if raw["terminals"][row]:
            counter = 0
        counter += 1
    return kept


@st.composite
def raw_files(draw: st.DrawFn) -> dict[str, np.ndarray]:
    """Arrays whose values identify their row, with any flags, with and without timeouts."""
    rows = draw(st.integers(2, 40))
    raw = {
        "observations": np.arange(rows * 2, dtype=np.float64).reshape(rows, 2),
        "actions": np.arange(rows, dtype=np.float32)[:, None],
        "rewards": np.arange(rows, dtype=np.float64) / 3,
        "terminals": draw(
            hnp.arrays(draw(st.sampled_from([bool, np.float32])), rows, elements=st.sampled_from([0, 1]))
        ),
    }
    if draw(st.booleans()):
        raw["timeouts"] = draw(hnp.arrays(bool, rows))
    return raw


# A busy machine is not the reader's fault.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(raw=raw_files(), max_episode_steps=st.integers(1, 12))
def test_extraction_equals_the_rule_row_by_row(raw: dict[str, np.ndarray], max_episode_steps: int) -> None:
    kept = extract_row_by_row(raw, max_episode_steps)
    if not kept:
        with pytest.raises(InputError, match="holds no transition"):
            transitions.extract_transitions(raw, max_episode_steps)
        return
    rows, terminals = (np.array(column) for column in zip(*kept, strict=True))
    expected = Batch(
        raw["observations"][rows], raw["actions"][rows], raw["rewards"][rows], raw["observations"][rows + 1], terminals
    )
    dataset = transitions.extract_transitions(raw, max_episode_steps)
    for name, actual, wanted in zip(Batch._fields, dataset, expected, strict=True):
        assert actual.dtype == np.float32, name
        np.testing.assert_array_equal(actual, wanted.astype(np.float32), err_msg=name)
    *same, next_actions = transitions.extract_sarsa(raw, max_episode_steps)
    for actual, wanted in zip(same, dataset, strict=True):
        np.testing.assert_array_equal(actual, wanted)
    assert next_actions.dtype == np.float32
    np.testing.assert_array_equal(next_actions, raw["actions"][rows + 1])


def test_no_timeouts_and_no_time_limit_is_refused() -> None:
    raw = {"observations": np.zeros((3, 1)), "actions": np.zeros((3, 1)), "rewards": np.zeros(3)}
    with pytest.raises(InputError, match="no array 'timeouts'"):
        transitions.extract_transitions(raw | {"terminals": np.zeros(3)})


def test_reads_what_the_file_holds(write_hdf5: WriteHDF5) -> None:
    raw = transitions.read_hdf5(write_hdf5(rewards=np.arange(60.0)[:, None], **{"infos/qpos": np.zeros((60, 6))}))
    shapes = {key: values.shape for key, values in raw.items()}
    assert shapes == {
        "observations": (60, 11),
        "actions": (60, 3),
        "rewards": (60,),
        "terminals": (60,),
        "timeouts": (60,),
    }
    assert raw["rewards"].dtype == np.float64
    assert "timeouts" not in transitions.read_hdf5(write_hdf5(timeouts=None))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"observations": None}, "no array 'observations'"),
        ({"rewards": None, "rewards/inner": np.zeros(60)}, "no array 'rewards'"),
        ({"observations": np.pad([[np.nan]], ((17, 42), (4, 6)))}, "holds NaN or an infinity, first in row 17"),
        ({"rewards": np.r_[np.zeros(59), -np.inf]}, "rewards holds NaN or an infinity, first in row 59"),
        ({"actions": np.zeros((59, 3))}, "unequal length .*actions 59"),
        ({"actions": np.zeros(60)}, r"actions has shape \(60,\)"),
        ({"rewards": np.zeros((60, 2))}, r"rewards has shape \(60, 2\)"),
        ({"observations": np.zeros((60, 2, 2))}, r"observations have shape \(60, 2, 2\)"),
        ({"terminals": np.array([b"no"] * 60)}, "terminals holds .*write it as numbers"),
        (
            {key: np.zeros((1, 3)) for key in ("observations", "actions")}
            | {key: np.zeros(1) for key in ("rewards", "terminals", "timeouts")},
            "fewer than two rows",
        ),
    ],
)
def test_a_bad_file_is_refused_in_one_line(write_hdf5: WriteHDF5, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        transitions.read_hdf5(write_hdf5(**arrays))
    assert "\n" not in str(caught.value)


def test_damage_inside_a_compressed_array_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.hdf5"
    with h5py.File(path, "w") as file:
        noise = np.random.default_rng(0).normal(size=(60, 11))
        array = file.create_dataset("observations", data=noise, compression="gzip")
        chunk = array.id.get_chunk_info(0)
    content = bytearray(path.read_bytes())
    content[chunk.byte_offset + 50 : chunk.byte_offset + 150] = bytes(100)
    path.write_bytes(content)
    with pytest.raises(InputError, match="truncated or not an HDF5 file"):
        transitions.read_hdf5(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.hdf5", tmp_path):
        with pytest.raises(InputError, match="put the file there"):
            transitions.read_hdf5(path)


def test_statistics_are_numpys_float32_reduction() -> None:
    observations = np.random.default_rng(0).normal(3, 2, size=(20_000, 4)).astype(np.float32)
    mean, std = transitions.state_statistics(observations)
    total = np.zeros(4, np.float32)
    for row in observations:
        total += row
    np.testing.assert_array_equal(mean, total / np.float32(20_000))
    assert mean.dtype == std.dtype == np.float32
    few = observations[:100]
    np.testing.assert_allclose(
        transitions.state_statistics(few)[1], few.astype(np.float64).std(axis=0) + 1e-3, rtol=1e-5
    )
    normalised = transitions.normalise(observations, mean, std)
    assert normalised.dtype == np.float32
    np.testing.assert_array_equal(normalised, (observations - mean) / std)


def test_actions_are_cut_short_of_their_bound() -> None:
    """In float32, whatever the bound; actions inside stay as they are."""
    actions = np.array([[-2.0, -1.9999], [0.5, 2.0]], np.float32)
    rows = np.zeros(2, np.float32)
    dataset = Batch(rows, actions, rows, rows, rows)
    found = transitions.cut_actions(dataset, 2.0)
    edge = np.float32(2.0 * (1.0 - 1e-5))
    assert edge < 2.0
    np.testing.assert_array_equal(found.actions, np.array([[-edge, -1.9999], [0.5, edge]], np.float32))
    assert found.actions.dtype == np.float32
    assert actions[1, 1] == 2.0


def test_paths_of_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("hopper_medium-v2.hdf5", "own.h5"):
        (tmp_path / name).touch()
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path))
    assert names.dataset_path("hopper-medium-v2") == tmp_path / "hopper_medium-v2.hdf5"
    assert names.dataset_path(str(tmp_path / "own.h5")) == tmp_path / "own.h5"
    monkeypatch.delenv("D4RL_DATASET_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(InputError, match=r"\.d4rl/datasets/hopper_medium-v2\.hdf5, or set D4RL_DATASET_DIR"):
        names.dataset_path("hopper-medium-v2")


def test_bundled_datasets_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mini").mkdir()
    (tmp_path / "mini" / "hopper-x.hdf5").touch()
    monkeypatch.setattr(names, "BUNDLED", tmp_path)
    monkeypatch.chdir(tmp_path / "mini")
    assert names.dataset_path("mini/hopper-x") == tmp_path / "mini" / "hopper-x.hdf5"
    with pytest.raises(InputError, match=r"unknown dataset 'mini/hoper-x'; nearest: mini/hopper-x"):
        names.dataset_path("mini/hoper-x")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hopper-medum-v2", "unknown dataset 'hopper-medum-v2'; nearest: hopper-medium-v2"),
        ("nowhere/own.hdf5", "the dataset 'nowhere/own.hdf5' does not exist: check its path"),
    ],
)
def test_a_dataset_that_is_not_there_is_named(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        names.dataset_path(name)
