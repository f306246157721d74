"""The adapter for D4RL's environments around the genuine `gym`, tested with gym environments that need no MuJoCo."""

from types import ModuleType

import numpy as np
import pytest

from shared.envs.genuine import GymEnv

pytestmark = pytest.mark.d4rl


@pytest.fixture
def gym(d4rl: ModuleType) -> ModuleType:
    """Installed along with the genuine package."""
    return pytest.importorskip("gym", reason="the old gym is not installed: make test-d4rl")


@pytest.mark.parametrize("one_flag", [False, True], ids=["five values from a step", "four values from a step"])
def test_pendulum_steps_as_gyms_own(gym: ModuleType, one_flag: bool) -> None:
    """Start, observations, rewards and the time limit, for both ways in which `gym` reports the end of an episode."""
    plain = gym.make("Pendulum-v1", disable_env_checker=True)
    wrapped = gym.make("Pendulum-v1", disable_env_checker=True)
    env = GymEnv(gym.wrappers.StepAPICompatibility(wrapped, output_truncation_bool=False) if one_flag else wrapped)
    assert (env.observation_space.shape, env.action_space.shape) == ((3,), (1,))
    assert env.action_space.high[0] == 2.0
    np.testing.assert_array_equal(env.reset(seed=5)[0], plain.reset(seed=5)[0])
    rng = np.random.default_rng(0)
    for step in range(1, 201):
        action = rng.uniform(-2, 2, 1).astype(np.float32)
        theirs, ours = plain.step(action), env.step(action)
        np.testing.assert_array_equal(ours[0], theirs[0])
        assert ours[1] == theirs[1]
        assert ours[2:4] == (False, step == 200)
    assert env.model is None


def test_seeds_decide_the_start(gym: ModuleType) -> None:
    """Equal seeds give the same start, and another seed another one."""
    env = GymEnv(gym.make("MountainCarContinuous-v0", disable_env_checker=True))
    first, again, other = (env.reset(seed=seed)[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert first[0] != other[0]


def test_spaces_that_are_no_boxes_are_left_to_the_evaluator(gym: ModuleType) -> None:
    """It refuses them in one line."""
    assert GymEnv(gym.make("CartPole-v1", disable_env_checker=True)).action_space.n == 2
