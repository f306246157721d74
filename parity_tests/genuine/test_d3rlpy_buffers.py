"""Replay buffers that the genuine d3rlpy 2.8.1 wrote, read by us: its own transitions, but for a file's last row."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.data import sources
from shared.data.transitions import extract_transitions

pytestmark = pytest.mark.d3rlpy


@pytest.mark.parametrize("ends_by", ["timeout", "terminal"])
def test_its_buffers_hold_the_same_transitions(ends_by: str, tmp_path: Path) -> None:
    """Of a file that ends in a terminal, D4RL's rule drops the last row, which d3rlpy keeps."""
    d3rlpy = pytest.importorskip("d3rlpy", reason="the genuine d3rlpy is not installed: make test-d3rlpy")
    rng = np.random.default_rng(0)
    arrays = {"observations": rng.normal(size=(40, 5)), "actions": rng.uniform(-1, 1, (40, 2))}
    arrays = {name: values.astype(np.float32) for name, values in arrays.items()}
    terminals, timeouts = np.isin(np.arange(40), [7, 19, 20]), np.isin(np.arange(40), [12, 30])
    (timeouts if ends_by == "timeout" else terminals)[-1] = True
    flags = {"rewards": rng.normal(size=40).astype(np.float32), "terminals": terminals, "timeouts": timeouts}
    buffer: Any = d3rlpy.dataset.MDPDataset(**arrays, **flags)
    path = tmp_path / "buffer.h5"
    with path.open("w+b") as file:
        buffer.dump(file)
    expected = [
        buffer.transition_picker(episode, step)
        for episode in buffer.episodes
        for step in range(episode.transition_count)
    ]
    expected = expected[: None if ends_by == "timeout" else -1]
    ours = extract_transitions(sources.read(str(path)).raw)
    assert len(ours.rewards) == len(expected)
    for name, of in (("observations", "observation"), ("actions", "action")):
        np.testing.assert_array_equal(getattr(ours, name), [getattr(each, of) for each in expected])
    np.testing.assert_array_equal(ours.rewards, [each.reward[0] for each in expected])
    np.testing.assert_array_equal(ours.terminals, [each.terminal for each in expected])
    goes_on = ours.terminals == 0
    following = np.array([each.next_observation for each in expected])
    np.testing.assert_array_equal(ours.next_observations[goes_on], following[goes_on])
