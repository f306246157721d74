"""Environments of finite actions: how they are evaluated and stepped, and which other spaces are refused."""

from collections.abc import Iterator

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space

from shared.data.experience import Experience, load_rows
from shared.envs.evaluation import Evaluator, epsilon_greedy
from shared.envs.scores import scale
from shared.envs.spaces import Actions, spaces_of
from shared.errors import InputError


def against_the_pole(observations: np.ndarray) -> np.ndarray:
    """Pushes the cart under the pole."""
    return (observations[:, 2] + observations[:, 3] > 0).astype(np.int64)


def to_the_left(observations: np.ndarray) -> np.ndarray:
    """Always pushes to the left."""
    return np.zeros(len(observations), np.int64)


def evaluate(policy: object, n_episodes: int = 10) -> np.ndarray:
    """Returns in CartPole."""
    evaluator = Evaluator("CartPole-v1", n_episodes, seed=0)
    try:
        return evaluator(policy).returns
    finally:
        evaluator.close()


def test_returns_are_those_of_the_environment_itself() -> None:
    """Stepped by hand from the same start states; reported as plain returns, as there are no reference scores."""
    seeds, env, expected = np.random.SeedSequence(0).generate_state(10), gymnasium.make("CartPole-v1"), []
    for seed in seeds:
        observation, over, earned = env.reset(seed=int(seed))[0], False, 0.0
        while not over:
            action = int(against_the_pole(observation[None].astype(np.float32))[0])
            observation, reward, fell, late, _ = env.step(action)
            over, earned = fell or late, earned + float(reward)
        expected.append(earned)
    returns = evaluate(against_the_pole)
    np.testing.assert_array_equal(returns, expected)
    assert scale("CartPole-v1")[1:4] == ("return", None, "returns")
    np.testing.assert_array_equal(scale("CartPole-v1")(returns), returns)


def test_a_share_of_the_steps_is_random() -> None:
    """None of them at 0, all of them at 1, whatever the policy; each episode has its own draws."""
    policy = epsilon_greedy(against_the_pole, 0.0, 2, seed=1)
    np.testing.assert_array_equal(evaluate(policy), evaluate(against_the_pole))
    first, second = (evaluate(epsilon_greedy(each, 1.0, 2, seed=1)) for each in (against_the_pole, to_the_left))
    assert first.mean() < 40 < evaluate(epsilon_greedy(against_the_pole, 0.3, 2, seed=1)).mean()
    np.testing.assert_array_equal(first[:3], evaluate(epsilon_greedy(against_the_pole, 1.0, 2, seed=1), 3))
    np.testing.assert_array_equal(first, second)


def test_the_share_is_that_of_epsilon() -> None:
    """Over many steps, with each action equally often."""
    policy = epsilon_greedy(lambda observations: np.full(len(observations), 7), 0.3, 3, seed=0)
    steps = np.stack([policy(np.zeros((10, 4)), np.zeros(10), np.full(10, step)) for step in range(3000)])
    shares = [(steps == action).mean() for action in (7, 0, 1, 2)]
    np.testing.assert_allclose(shares, [0.7, 0.1, 0.1, 0.1], atol=0.01)


@pytest.mark.parametrize("actions", [np.zeros((10, 2)), np.zeros((10, 1), int), np.zeros(3, int), np.zeros(10)])
def test_what_is_no_action_is_refused(actions: np.ndarray) -> None:
    """A vector, too few, or numbers that are not whole."""
    with pytest.raises(ValueError, match="the policy returned actions of"):
        evaluate(lambda observations: actions)


class Stub(gymnasium.Env):
    """Ends after three steps, and records its actions."""

    observation_space: Space = Box(-1.0, 1.0, (2,))
    action_space: Space = Discrete(3, start=1)
    given: list[object]

    def reset(self, **_: object) -> tuple:
        """Returns the start."""
        self.given = []
        return np.zeros(2, np.float32), {}

    def step(self, action: object) -> tuple:
        """Pays the action."""
        self.given.append(action)
        return np.zeros(2, np.float32), float(action), len(self.given) == 3, False, {}  # type: ignore[arg-type] # int


@pytest.fixture
def stub() -> Iterator[str]:
    """Registers the environment and yields its name."""
    gymnasium.register("Stub-v0", entry_point=Stub)
    yield "Stub-v0"
    del gymnasium.registry["Stub-v0"]


def test_actions_may_be_counted_from_another_number(stub: str) -> None:
    """Policies and experience count from 0, and the environment from its own start."""
    evaluator = Evaluator(stub, 2, seed=0)
    np.testing.assert_array_equal(evaluator(lambda observations: np.array([0, 2])).returns, [3.0, 9.0])
    assert (evaluator.action_dim, evaluator.max_action) == (3, 1.0)
    assert evaluator.actions == Actions(3, finite=True, first=1)


def test_steps_are_kept_as_whole_numbers(stub: str, tmp_path: object) -> None:
    """In memory and in files; the policy gets a row of each column."""
    experience = Experience(stub, 6)
    experience.begin(0)
    seen = []

    def policy(observations: np.ndarray, chosen: np.ndarray, noise: np.ndarray) -> np.ndarray:
        seen.append((observations.shape, chosen.shape, float(noise[0])))
        return chosen

    experience.follow(policy, np.array([0, 1, 2, 2]), np.array([0.1, 0.2, 0.3, 0.4]))
    assert seen == [((1, 2), (1,), noise) for noise in (0.1, 0.2, 0.3, 0.4)]
    rows = experience.rows()
    assert (rows.actions.dtype, rows.actions.tolist()) == (np.int64, [0, 1, 2, 2])
    assert (rows.rewards.tolist(), rows.terminals.tolist()) == ([1, 2, 3, 3], [False, False, True, False])
    experience.save(tmp_path)  # type: ignore[arg-type] # pytest's
    again = load_rows(tmp_path, 4, type(rows)).actions  # type: ignore[arg-type]
    assert (again.dtype, again.tolist()) == (np.int64, [0, 1, 2, 2])
    experience.close()


@pytest.mark.parametrize(
    ("observations", "actions", "message"),
    [
        (Discrete(4), Discrete(2), "its observations are Discrete(4), neither a vector of real numbers nor an image"),
        (Box(0, 255, (4, 4), np.uint8), Discrete(2), "nor an image of bytes or bits"),
        (Box(-1, 1, (2,)), MultiDiscrete([2, 2]), "neither a vector of real numbers nor finite"),
        (Box(-1, 1, (2,)), Box(-1, 1, (2, 2)), "neither a vector of real numbers nor finite"),
    ],
)
def test_other_spaces_are_refused(observations: Space, actions: Space, message: str) -> None:
    """In one line."""
    env = Stub()
    env.observation_space, env.action_space = observations, actions
    with pytest.raises(InputError) as caught:
        spaces_of("Stub-v0", env)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
