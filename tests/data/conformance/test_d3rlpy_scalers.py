"""The genuine d3rlpy 2.8.1's scalers and steps and ours: the same statistics of a dataset, and the same results."""

from typing import Any

import numpy as np
import pytest

from shared.data import scalers
from shared.data.nsteps import extract_n_steps
from shared.data.transitions import extract_transitions
from shared.runs.settings import TransitionsConfig
from tests.data.conformance.conftest import example, flags

pytestmark = pytest.mark.d3rlpy

ROWS = 40
# Both read the same transitions from it, because a time limit ends the last row.
RAW = example(ROWS, terminals=flags(ROWS, 7, 19, 20), timeouts=flags(ROWS, 12, 30, ROWS - 1))


def fitted(d3rlpy: Any, scaler: Any) -> Any:
    """The library's scaler with the dataset's statistics, as its algorithms use it."""
    dataset = d3rlpy.dataset.MDPDataset(**RAW)
    scaler.fit_with_transition_picker(dataset.episodes, dataset.transition_picker)
    return scaler


@pytest.mark.parametrize(
    ("theirs", "named", "settings"),
    [
        ("MultiplyRewardScaler", {"multiplier": 3.0}, {"reward_scaler": "multiply", "reward_multiplier": 3.0}),
        (
            "ClipRewardScaler",
            {"low": -0.5, "high": 0.4, "multiplier": 2.0},
            {"reward_scaler": "clip", "reward_low": -0.5, "reward_high": 0.4, "reward_multiplier": 2.0},
        ),
        ("MinMaxRewardScaler", {"multiplier": 3.0}, {"reward_scaler": "min_max", "reward_multiplier": 3.0}),
        ("StandardRewardScaler", {"multiplier": 3.0}, {"reward_scaler": "standard", "reward_multiplier": 3.0}),
        ("ReturnBasedRewardScaler", {"multiplier": 1000.0}, {"reward_scaler": "return", "reward_multiplier": 1000.0}),
        (
            "ConstantShiftRewardScaler",
            {"shift": -5, "multiplier": 10.0, "multiply_first": True},
            {"reward_scaler": "shift", "reward_shift": -5.0, "reward_multiplier": 10.0, "multiply_first": True},
        ),
        (
            "ConstantShiftRewardScaler",
            {"shift": -5, "multiplier": 10.0},
            {"reward_scaler": "shift", "reward_shift": -5.0, "reward_multiplier": 10.0},
        ),
    ],
)
def test_rewards(d3rlpy: Any, theirs: str, named: dict[str, Any], settings: dict[str, Any]) -> None:
    """To float32's precision, since they round at different places when they add in double precision."""
    scaler = fitted(d3rlpy, getattr(d3rlpy.preprocessing, theirs)(**named))
    rewards = extract_transitions(RAW).rewards
    ours = scalers.reward_scale(TransitionsConfig(**settings), RAW, None)(rewards)
    np.testing.assert_allclose(ours, scaler.transform_numpy(rewards), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize(("theirs", "scaler"), [("Standard", "standard"), ("MinMax", "min_max")])
def test_states(d3rlpy: Any, theirs: str, scaler: str) -> None:
    """To float32's precision, since midpoint and half-range round differently from minimum and maximum."""
    states = extract_transitions(RAW).observations
    mean, std = scalers.state_statistics(scaler, states)
    library = fitted(d3rlpy, getattr(d3rlpy.preprocessing, f"{theirs}ObservationScaler")())
    np.testing.assert_allclose((states - mean) / std, library.transform_numpy(states), rtol=2e-6, atol=1e-6)


def test_actions(d3rlpy: Any) -> None:
    """There and back, to the same precision."""
    actions = extract_transitions(RAW).actions
    mean, std = scalers.action_statistics(actions)
    library = fitted(d3rlpy, d3rlpy.preprocessing.MinMaxActionScaler())
    scaled = (actions - mean) / std
    np.testing.assert_allclose(scaled, library.transform_numpy(actions), rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose(scaled * std + mean, library.reverse_transform_numpy(scaled), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("n_steps", [1, 2, 3, 30])
def test_several_steps(d3rlpy: Any, n_steps: int) -> None:
    """The same targets for any values; the library stores the number of steps instead of their discount."""
    discount = 0.9
    picker = d3rlpy.dataset.MultiStepTransitionPicker(n_steps=n_steps, gamma=discount)
    episodes = d3rlpy.dataset.MDPDataset(**RAW).episodes
    theirs = [picker(episode, row) for episode in episodes for row in range(episode.transition_count)]
    ours = extract_n_steps(RAW, n_steps=n_steps, discount=discount)
    assert len(theirs) == len(ours.rewards)
    for row, their in enumerate(theirs):
        np.testing.assert_array_equal(ours.observations[row], their.observation)
        np.testing.assert_allclose(ours.rewards[row], their.reward[0], rtol=1e-6)
        counts = discount ** (their.interval - 1) * (1.0 - their.terminal)
        np.testing.assert_allclose(1.0 - ours.terminals[row], counts, atol=1e-7)
        if not their.terminal:
            np.testing.assert_array_equal(ours.next_observations[row], their.next_observation)
