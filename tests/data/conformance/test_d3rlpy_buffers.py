"""Replay buffers written by the genuine d3rlpy 2.8.1: we read its own transitions, except for a file's last row."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.data import sources
from shared.data.transitions import extract_transitions
from tests.data.conformance.conftest import example, flags

pytestmark = pytest.mark.d3rlpy


@pytest.mark.parametrize("ends_by", ["timeouts", "terminals"])
def test_its_buffers_hold_the_same_transitions(d3rlpy: Any, ends_by: str, tmp_path: Path) -> None:
    """If a file ends in a terminal, D4RL's rule drops the last row, which d3rlpy keeps."""
    arrays = example(40, terminals=flags(40, 7, 19, 20), timeouts=flags(40, 12, 30))
    arrays[ends_by][-1] = True
    buffer, path = d3rlpy.dataset.MDPDataset(**arrays), tmp_path / "buffer.h5"
    with path.open("w+b") as file:
        buffer.dump(file)
    expected = [
        buffer.transition_picker(episode, step)
        for episode in buffer.episodes
        for step in range(episode.transition_count)
    ]
    expected = expected[: None if ends_by == "timeouts" else -1]
    ours = extract_transitions(sources.read(str(path)).raw)
    assert len(ours.rewards) == len(expected)
    for name, of in (("observations", "observation"), ("actions", "action")):
        np.testing.assert_array_equal(getattr(ours, name), [getattr(each, of) for each in expected])
    np.testing.assert_array_equal(ours.rewards, [each.reward[0] for each in expected])
    np.testing.assert_array_equal(ours.terminals, [each.terminal for each in expected])
    goes_on = ours.terminals == 0
    following = np.array([each.next_observation for each in expected])
    np.testing.assert_array_equal(ours.next_observations[goes_on], following[goes_on])
