"""d3rlpy's scalers, against its formulas computed by hand."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from shared.data import scalers
from shared.errors import InputError


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a reward scaler."""

    reward_scaler: str
    reward_multiplier: float = 1.0
    reward_low: float | None = None
    reward_high: float | None = None
    reward_shift: float = 0.0
    multiply_first: bool = False


REWARDS = np.array([-2, 0, 1, 5], np.float32)
# The rows with rewards 100, 77 and 50 begin no transition. Its episodes return -2, 6 and 0.
RAW = {
    "observations": np.zeros((7, 1), np.float32),
    "actions": np.zeros((7, 1), np.float32),
    "rewards": np.array([-2, 100, 0, 1, 5, 77, 50], np.float32),
    "terminals": np.array([0, 0, 0, 0, 1, 0, 0]),
    "timeouts": np.array([0, 1, 0, 0, 0, 1, 0]),
}


def scaled(settings: Settings, rewards: Any = REWARDS) -> Any:
    """Rewards scaled by the statistics of `RAW`, whose transitions have the rewards `REWARDS`."""
    scalers.check_rewards(settings)
    return scalers.reward_scale(settings, RAW, None)(rewards)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (Settings("multiply", 3.0), [-6, 0, 3, 15]),
        (Settings("clip", 10.0, -1, 2), [-10, 0, 10, 20]),  # bounds apply to the reward before scaling
        (Settings("clip", reward_low=0.5), [0.5, 0.5, 1, 5]),
        (Settings("clip", reward_high=0.5), [-2, 0, 0.5, 0.5]),
        (Settings("min_max", 14.0), [0, 4, 6, 14]),
        (Settings("return", 16.0), [-4, 0, 2, 10]),
        (Settings("shift", 10.0, reward_shift=-5), [-70, -50, -40, 0]),
        (Settings("shift", 10.0, reward_shift=-5, multiply_first=True), [-25, -5, 5, 45]),
    ],
    ids=lambda value: value.reward_scaler if isinstance(value, Settings) else "",
)
def test_rewards(settings: Settings, expected: list[float]) -> None:
    """A dataset's rewards stay float32, and the reward of a step is scaled in the same way."""
    found = scaled(settings)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose([scaled(settings, reward) for reward in REWARDS.tolist()], expected, rtol=1e-6)


def test_standard_rewards_have_the_population_deviation() -> None:
    expected = 2 * (REWARDS - 1) / (np.sqrt((9 + 1 + 0 + 16) / 4) + 1e-3)
    np.testing.assert_allclose(scaled(Settings("standard", 2.0)), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings("none", 2.0), "reward_multiplier has no effect with reward_scaler none"),
        (Settings("min_max", reward_low=0.0), "reward_low has no effect with reward_scaler min_max"),
        (Settings("clip", reward_low=0.0, reward_shift=1.0), "set a reward_scaler shift beside it"),
        (Settings("none", multiply_first=True), "multiply_first has no effect"),
        (Settings("clip"), "set reward_low, reward_high above it, or both"),
        (Settings("clip", reward_low=1.0, reward_high=1.0), "set reward_low, reward_high above it, or both"),
    ],
)
def test_settings_without_effect_are_refused(settings: Settings, message: str) -> None:
    with pytest.raises(InputError, match=message):
        scalers.check_rewards(settings)


@pytest.mark.parametrize(("scaler", "what"), [("min_max", "rewards"), ("return", "returns")])
def test_an_empty_range_of_rewards_is_refused(scaler: str, what: str) -> None:
    with pytest.raises(InputError, match=f"all {what} of the dataset are 0 and so have no range"):
        scalers.reward_scale(Settings(scaler), RAW | {"rewards": np.zeros(7, np.float32)}, None)


def test_states() -> None:
    """`min_max` maps the minimum to -1 and the maximum to 1; `standard` divides by the deviation plus 1e-3."""
    states = np.array([[0, -3], [4, 5], [2, 1]], np.float32)
    middle, half = scalers.state_statistics("min_max", states)
    np.testing.assert_array_equal((states - middle) / half, [[-1, -1], [1, 1], [0, 0]])
    mean, std = scalers.state_statistics("standard", states)
    np.testing.assert_array_equal(mean, [2, 1])
    np.testing.assert_allclose(std, np.sqrt([8 / 3, 32 / 3]) + 1e-3, rtol=1e-6)
    assert {array.dtype for array in (middle, half, mean, std)} == {np.dtype(np.float32)}


def test_a_million_states_are_added_up_in_double_precision() -> None:
    """Added one by one in float32, their mean would be off by about 1e-4."""
    states = np.full((1_000_000, 2), 0.1, np.float32)
    mean, _ = scalers.state_statistics("standard", states)
    assert mean[0] == states[0, 0]
    assert abs(states.mean(axis=0)[0] - states[0, 0]) > 1e-5


def test_a_constant_component_has_no_range() -> None:
    states = np.array([[0, 7], [4, 7]], np.float32)
    with pytest.raises(
        InputError, match=r"component 1 of the states is always 7 .* set observation_scaler to standard"
    ):
        scalers.state_statistics("min_max", states)
    mean, std = scalers.state_statistics("standard", states)
    np.testing.assert_array_equal(((states - mean) / std)[:, 1], [0, 0])


def test_returns_are_those_of_complete_episodes_transitions() -> None:
    """The reward of a row that the time limit ended counts only if the file contains the state after the row."""
    raw = {
        "rewards": np.array([1, 2, 4, 8, 16, 32], np.float32),
        "terminals": np.array([0, 1, 0, 0, 0, 0]),
        "timeouts": np.array([0, 0, 0, 1, 0, 0]),
    }
    np.testing.assert_array_equal(scalers.episode_returns(raw, None), [3, 4])
    np.testing.assert_array_equal(scalers.episode_returns(raw | {"next_observations": raw["rewards"]}, None), [3, 12])
    never = np.zeros(6)
    with pytest.raises(InputError, match="no episode of the dataset is complete"):
        scalers.episode_returns(raw | {"terminals": never, "timeouts": never}, None)


def test_actions_reach_from_minus_one_to_one() -> None:
    """Component by component; constant actions have no range, and d3rlpy returns NaN for them."""
    actions = np.array([[0.5, -2.0], [1.5, 0.0], [1.0, 2.0]], np.float32)
    mean, std = scalers.action_statistics(actions)
    np.testing.assert_array_equal((actions - mean) / std, [[-1, -1], [1, 0], [0, 1]])
    with pytest.raises(InputError, match="component 1 of the actions is always 3 and so has no range: set action_scal"):
        scalers.action_statistics(np.array([[0.0, 3.0], [1.0, 3.0]], np.float32))
