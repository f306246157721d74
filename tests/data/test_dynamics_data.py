"""The data of a dynamics model: the rows kept, their next states, the scaler, and windows of episodes."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from shared.data import sources
from shared.data.dynamics import extract_known, find_windows, fit_scaler, held_out_rows
from shared.data.transitions import Batch, extract_transitions
from shared.errors import InputError


def rows(terminals: list[int], timeouts: list[int] | None = None, size: int = 12) -> dict[str, np.ndarray]:
    """A file's arrays with distinguishable rows."""
    number = np.arange(size, dtype=np.float64)
    raw = {
        "observations": np.stack([number, 10.0 * number], axis=1),
        "actions": number[:, None],
        "rewards": number,
        "terminals": np.isin(number, terminals),
    }
    return raw if timeouts is None else raw | {"timeouts": np.isin(number, timeouts)}


def by_the_reference(raw: dict[str, np.ndarray], limit: int, following: np.ndarray | None) -> list[tuple[int, float]]:
    """Rows and next states by OfflineRL-Kit's rule, row by row."""
    kept, counter = [], 0
    for i in range(len(raw["rewards"]) - 1):
        final = bool(raw["timeouts"][i]) if "timeouts" in raw else counter == limit - 1
        if final:
            counter = 0
            continue
        if raw["terminals"][i]:
            counter = 0
            if following is None:
                continue
        kept.append((i, float(raw["observations"][i + 1, 0] if following is None else following[i, 0])))
        counter += 1
    return kept


@pytest.mark.parametrize("with_next", [False, True])
@pytest.mark.parametrize("timeouts", [None, [2, 7], [3, 11]])
@pytest.mark.parametrize("terminals", [[], [3], [3, 4, 9], [0, 11]])
@pytest.mark.parametrize("limit", [3, 4])
def test_rows_whose_next_state_is_known(
    terminals: list[int], timeouts: list[int] | None, with_next: bool, limit: int
) -> None:
    raw = rows(terminals, timeouts)
    following = raw["observations"] + 0.5 if with_next else None
    found = extract_known(raw, "hopper-medium-v2", limit, following)
    expected = by_the_reference(raw, limit, following)
    assert list(zip(found.rewards.tolist(), found.next_observations[:, 0].tolist(), strict=True)) == expected
    assert found.terminals.tolist() == [float(i in terminals) for i, _ in expected]
    assert all(column.dtype == np.float32 for column in found)


def test_other_tasks_have_d4rls_rule_and_minaris_rows_are_all_kept() -> None:
    raw = rows([3], [7])
    for ours, theirs in zip(extract_known(raw, "pen-human-v1"), extract_transitions(raw), strict=True):
        assert np.array_equal(ours, theirs)
    known = raw | {"next_observations": raw["observations"] + 1.0}
    assert len(extract_known(known, "Hopper-v5").rewards) == 12


def test_of_ones_own_tasks_no_jump_is_learnt() -> None:
    """The next row after a terminal is another episode's, whatever the task."""
    raw = rows([3], [7])
    assert extract_known(raw, "Reach-v0", own=True).rewards.tolist() == [0, 1, 2, 4, 5, 6, 8, 9, 10]
    after = raw["observations"] + 0.5
    found = extract_known(raw, "Reach-v0", next_observations=after, own=True)
    assert found.next_observations[3].tolist() == after[3].tolist()


def test_a_file_of_nothing_but_ends_is_refused() -> None:
    with pytest.raises(InputError, match="no transition with a known next state"):
        extract_known(rows(list(range(12)), []), "d4rl/hopper-v2")


def test_next_states_of_a_file(tmp_path: Path) -> None:
    raw = rows([3], [7])
    path = tmp_path / "hopper.hdf5"
    with h5py.File(path, "w") as file:
        for key, values in raw.items():
            file[key] = values
    source = sources.read(str(path))
    assert sources.next_observations(str(path), source) is None
    assert sources.next_observations("minari:mujoco/hopper/medium-v0", source) is None
    with h5py.File(path, "a") as file:
        file["next_observations"] = raw["observations"] + 1.0
    found = sources.next_observations(str(path), source)
    assert found is not None
    assert np.array_equal(found, raw["observations"] + 1.0)
    for wrong in (raw["observations"][1:], np.full((12, 2), np.nan)):
        with h5py.File(path, "a") as file:
            del file["next_observations"]
            file["next_observations"] = wrong
        with pytest.raises(InputError, match="next_observations must be finite numbers of the shape"):
            sources.next_observations(str(path), source)


def test_windows_lie_within_episodes() -> None:
    dataset = extract_known(rows([3], [8]), "d4rl/hopper-v2")
    # Rows 0 to 2, 4 to 7 and 9 to 10 remain.
    assert dataset.rewards.tolist() == [0, 1, 2, 4, 5, 6, 7, 9, 10]
    expected = {1: [0, 1, 2, 4, 5, 6, 7, 9, 10], 2: [0, 1, 4, 5, 6, 9], 3: [0, 4, 5], 4: [4]}
    for length, first in expected.items():
        starts, found = find_windows(dataset, length)
        assert (dataset.rewards[starts].tolist(), found) == (first, length)
    for length in (5, 9, 10, 100):
        starts, found = find_windows(dataset, length)
        assert (dataset.rewards[starts].tolist(), found) == ([4], 4)
    # With the first episode as the longest
    starts, found = find_windows(extract_known(rows([], [8]), "d4rl/hopper-v2"), 100)
    assert (starts.tolist(), found) == ([0], 8)


def test_a_terminal_ends_a_window_though_the_next_state_is_the_next_row() -> None:
    dataset = extract_known(rows([3], []), "d4rl/hopper-v2", None, rows([3])["observations"] + [1.0, 10.0])
    starts, length = find_windows(dataset, 8)
    assert (dataset.rewards[starts].tolist(), length) == ([4], 7)


def test_the_scaler_is_of_the_rows_given_and_leaves_constants() -> None:
    rng = np.random.default_rng(0)
    columns = [rng.normal(size=size).astype(np.float32) for size in ((30, 3), (30, 2), (30,), (30, 3), (30,))]
    columns[1][:, 1] = 0.25
    mean, std = fit_scaler(Batch(*columns), np.arange(20))
    inputs = np.concatenate([columns[0], columns[1]], axis=1)[:20]
    assert np.array_equal(mean, inputs.mean(axis=0))
    assert np.allclose(std[:4], np.sqrt(np.square(inputs - inputs.mean(axis=0)).mean(axis=0))[:4], rtol=1e-6)
    assert std[4] == 1.0
    assert mean.dtype == std.dtype == np.float32


def test_a_thousand_rows_are_held_out_at_most() -> None:
    assert [held_out_rows(0.2, rows) for rows in (9, 400, 402, 4999, 5000, 10**6)] == [1, 80, 80, 999, 1000, 1000]
