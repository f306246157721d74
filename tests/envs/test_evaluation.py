"""The evaluator against a plain loop over single episodes."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import gymnasium
import mujoco
import numpy as np
import pytest

from shared.envs.evaluation import ChunkedPolicy, ContextPolicy, Evaluation, Evaluator, Policy, SampledPolicy
from shared.envs.registry import make_env
from shared.errors import InputError

HOPPER = "d4rl/hopper-v2"
EPISODES = 10
SEED = 3
MEAN = np.linspace(-0.5, 1.0, 11).astype(np.float32)
STD = np.linspace(0.5, 2.0, 11).astype(np.float32)


class Network:
    """A nonlinear float32 policy whose matrix products round differently for other shapes; records its inputs."""

    def __init__(self, state_dim: int = 11, action_dim: int = 3) -> None:
        """Uses the same weights every time."""
        rng = np.random.default_rng(0)
        shapes = (state_dim, 64), (64, 64), (64, action_dim)
        self.layers = [(rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32) for shape in shapes]
        self.seen: list[np.ndarray] = []

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        """Actions (n, action_dim) in (-1, 1)."""
        self.seen.append(observations)
        hidden = np.tanh(np.tanh(observations @ self.layers[0]) @ self.layers[1])
        return np.tanh(hidden @ self.layers[2])


def evaluate(
    policy: Policy | ContextPolicy, seed: int = SEED, episodes: int = EPISODES, num_envs: int | None = None
) -> Evaluation:
    """Runs one evaluation in Hopper with normalised observations."""
    evaluator = Evaluator(HOPPER, episodes, seed, MEAN, STD, num_envs)
    outcome = evaluator(policy)
    evaluator.close()
    return outcome


def plain_loop(policy: Policy) -> tuple[list[float], list[int]]:
    """Returns and lengths of the same episodes, one after another in one environment."""
    env, returns, lengths = make_env(HOPPER), [], []
    for episode, seed in enumerate(np.random.SeedSequence(SEED).generate_state(EPISODES)):
        observation, _ = env.reset(seed=int(seed))
        rewards, over = [], False
        while not over:
            rows = np.zeros((EPISODES, 11), np.float32)  # a matrix product rounds by the number of rows
            rows[episode] = (observation - MEAN) / STD
            observation, reward, fell, timeout, _ = env.step(policy(rows)[episode])
            rewards.append(reward)
            over = fell or timeout
        returns.append(np.cumsum(rewards)[-1])
        lengths.append(len(rewards))
    return returns, lengths


def test_equals_a_plain_loop() -> None:
    """Exactly, so no reset counts as a step: these episodes fall early and at different times."""
    outcome = evaluate(Network())
    returns, lengths = plain_loop(Network())
    assert outcome.returns.tolist() == returns
    assert outcome.lengths.tolist() == lengths
    assert len(set(lengths)) > 1
    assert max(lengths) < 300
    assert outcome.returns.dtype == np.float64


@pytest.mark.parametrize("num_envs", [1, 3, 10])
def test_returns_do_not_depend_on_how_many_are_stepped_together(num_envs: int) -> None:
    """Exactly, because an episode keeps its row, and the policy always gets the same number of rows."""
    policy = Network()
    outcome, alone = evaluate(policy, num_envs=num_envs), evaluate(Network())
    assert outcome.returns.tolist() == alone.returns.tolist()
    assert outcome.lengths.tolist() == alone.lengths.tolist()
    assert {rows.shape for rows in policy.seen} == {(EPISODES, 11)}
    assert {rows.dtype for rows in policy.seen} == {np.dtype(np.float32)}


@pytest.mark.parametrize("num_envs", [1, 10])
def test_the_policy_is_called_once_per_step(num_envs: int) -> None:
    """Not once per episode and step."""
    policy = Network()
    lengths = evaluate(policy, num_envs=num_envs).lengths
    assert len(policy.seen) == (lengths.sum() if num_envs == 1 else lengths.max())


def test_rows_given_to_the_policy_stay_as_they_were() -> None:
    """A policy may keep them: each step has its own array, although an episode's row changes while it runs."""
    policy = Network()
    lengths = evaluate(policy).lengths
    for episode, length in enumerate(lengths):
        rows = np.array([rows[episode] for rows in policy.seen])
        assert (rows[1:length] != rows[: length - 1]).any(axis=1).all()
        assert (rows[length + 1 :] == rows[length : length + 1]).all()


def test_each_call_replays_the_same_starts() -> None:
    """Two evaluations by one evaluator differ only in the policy."""
    evaluator, policy = Evaluator(HOPPER, EPISODES, SEED, MEAN, STD), Network()
    first = evaluator(policy)
    second = evaluator(policy)
    assert first.returns.tolist() == second.returns.tolist()
    assert len(set(first.returns)) == EPISODES


def test_an_episodes_start_depends_on_seed_and_number_only() -> None:
    """Not on the number of episodes; another seed gives other starts."""
    few, many, other = Network(), Network(), Network()
    evaluate(few, episodes=3)
    evaluate(many, episodes=10)
    evaluate(other, episodes=3, seed=SEED + 1)
    np.testing.assert_array_equal(few.seen[0], many.seen[0][:3])
    assert (few.seen[0] != other.seen[0]).any(axis=1).all()


def sampled(seed: int = SEED) -> tuple[SampledPolicy, list[np.ndarray]]:
    """A policy of actions and noise, and a list that records the noise."""
    seen: list[np.ndarray] = []

    def act(observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
        seen.append(noise)
        return np.clip(Network()(observations) + noise.mean(axis=1), -1, 1)

    return SampledPolicy(act, lambda rng: rng.standard_normal((2, 3)), seed), seen


def test_what_a_policy_samples_depends_on_seed_episode_and_step_only() -> None:
    """Not on how many episodes are stepped together, nor on earlier evaluations."""
    (policy, seen), (other, other_seen) = sampled(), sampled()
    together, one_by_one = evaluate(policy), evaluate(other, num_envs=1)
    np.testing.assert_array_equal(together.returns, one_by_one.returns)
    assert evaluate(policy).returns.tolist() == together.returns.tolist()
    assert evaluate(sampled(seed=4)[0]).returns.tolist() != together.returns.tolist()
    assert seen[0].dtype == np.float32
    first = np.stack([*seen[0], *seen[1]])
    assert len(np.unique(first)) == first.size
    np.testing.assert_array_equal(seen[0][0], other_seen[0][0])
    later = other_seen[one_by_one.lengths[0] + 1]
    np.testing.assert_array_equal(later[1], seen[1][1])


def chunked(length: int, seed: int = SEED) -> tuple[ChunkedPolicy, list[np.ndarray]]:
    """A policy of chunks, and a list that records the noise."""
    seen: list[np.ndarray] = []

    def act(observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
        seen.append(noise)
        return np.clip(Network()(observations)[:, None] + noise, -1, 1)

    return ChunkedPolicy(act, lambda rng: rng.standard_normal((length, 3)), seed, length), seen


def test_chunks_are_played_to_their_end_or_the_episodes() -> None:
    """A new chunk is chosen when one is played and when an episode begins, by what is seen at that time."""
    policy, seen = chunked(3)
    rng, states = np.random.default_rng(0), np.random.default_rng(1).normal(size=(9, 2, 11)).astype(np.float32)
    # The second episode ends after its fourth step, and another begins in its place.
    lengths = np.array([[0, 0], [1, 1], [2, 2], [3, 3], [4, 0], [5, 1], [6, 2], [7, 3], [8, 4]])
    starts = [(0, 0), (0, 0), (0, 0), (3, 3), (3, 4), (3, 4), (6, 4), (6, 7), (6, 7)]
    found = np.stack([policy(states[step], rng.normal(size=2), lengths[step]) for step in range(9)])
    calls = {first: number for number, first in enumerate(sorted({first for pair in starts for first in pair}))}
    assert len(seen) == len(calls)
    for step, pair in enumerate(starts):
        for episode, first in enumerate(pair):
            noise = seen[calls[first]][episode, step - first]
            expected = np.clip(Network()(states[first])[episode] + noise, -1, 1)
            np.testing.assert_array_equal(found[step, episode], expected)


def test_the_draws_of_chunks_depend_on_seed_episode_and_chunk_only() -> None:
    """Not on how many episodes are stepped together; whoever chooses in every step draws as a `SampledPolicy`."""
    (policy, seen), (other, other_seen) = chunked(4), chunked(4)
    together, one_by_one = evaluate(policy), evaluate(other, num_envs=1)
    np.testing.assert_array_equal(together.returns, one_by_one.returns)
    assert evaluate(chunked(4, seed=4)[0]).returns.tolist() != together.returns.tolist()
    # Alone, the first episode asks in its fifth step again; before that, those that wait ask.
    np.testing.assert_array_equal(seen[1][0], other_seen[4][0])
    single = SampledPolicy(lambda o, noise: Network()(o) + noise[:, 0], lambda rng: rng.standard_normal((1, 3)), SEED)
    each = ChunkedPolicy(
        lambda o, z: (Network()(o) + z[:, 0])[:, None], lambda rng: rng.standard_normal((1, 3)), SEED, 1
    )
    assert evaluate(each).returns.tolist() == evaluate(single).returns.tolist()


def test_observations_are_normalised_in_float64_and_then_rounded() -> None:
    """As in CORL."""
    policy = Network()
    evaluate(policy, episodes=1)
    observation, _ = make_env(HOPPER).reset(seed=int(np.random.SeedSequence(SEED).generate_state(1)[0]))
    expected = ((observation - MEAN.astype(np.float64)) / STD.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(policy.seen[0][0], expected)


def test_facts_about_the_task() -> None:
    """Sizes, the bound of the actions, and the facts that a score depends on."""
    evaluator = Evaluator("d4rl/walker2d-v2", 4, 7)
    assert (evaluator.state_dim, evaluator.action_dim, evaluator.max_action) == (17, 6, 1.0)
    assert isinstance(evaluator.max_action, float)
    mass = evaluator.fingerprint.pop("total_mass")
    assert mass == pytest.approx(22.698007, abs=1e-6)
    assert evaluator.fingerprint == {
        "env": "d4rl/walker2d-v2",
        "mujoco": mujoco.__version__,
        "d4rl_exact": True,
        "episodes": 4,
        "seed": 7,
    }


def test_actions_of_another_shape_are_refused() -> None:
    """A policy that returns an action for only one episode would otherwise be broadcast or misread."""
    with pytest.raises(ValueError, match=r"\(3,\), not \(10, 3\)"):
        evaluate(lambda observations: np.zeros(3, np.float32))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((HOPPER, 0, 0), "0 episodes.*at least 1"),
        ((HOPPER, 1, -1), "0 or more"),
        ((HOPPER, 1, 0, 0.0, 1.0, 0), "0 environments.*at least 1"),
        (("d4rl/hoper-v2", 1, 0), "d4rl/hopper-v2"),
        (("FrozenLake-v1", 1, 0), "observations are Discrete"),
    ],
)
def test_what_cannot_be_evaluated_is_answered_in_one_line(arguments: tuple, message: str) -> None:
    """With advice on how to fix it."""
    with pytest.raises(InputError, match=message) as caught:
        Evaluator(*arguments)
    assert "\n" not in str(caught.value)


class Told(gymnasium.Wrapper):
    """Records the calls that it receives."""

    def __init__(self, env: gymnasium.Env, told: list[str]) -> None:
        """Stores them in `told`."""
        super().__init__(env)
        self.told = told

    def step(self, action: np.ndarray) -> tuple:
        """Steps the environment."""
        self.told.append("step")
        return super().step(action)

    def close(self) -> None:
        """Closes the environment."""
        self.told.append("close")
        super().close()


def test_closing_ends_an_evaluation_in_another_thread_first() -> None:
    """At its next step, without an outcome; no environment is closed while it is stepped, and none is stepped later."""
    told, begun, closing = [], threading.Event(), threading.Event()
    evaluator = Evaluator(HOPPER, 2, SEED, make=lambda env_id: Told(make_env(env_id), told))

    def still(observations: np.ndarray) -> np.ndarray:
        begun.set()
        assert closing.wait(60)
        return np.zeros((2, 3), np.float32)

    with ThreadPoolExecutor() as pool:
        evaluation = pool.submit(evaluator, still)
        assert begun.wait(60)
        closed = pool.submit(evaluator.close)
        end = time.monotonic() + 60
        while not evaluator._closed and time.monotonic() < end:
            time.sleep(0.001)
        assert told == []
        closing.set()
        closed.result()
        with pytest.raises(RuntimeError, match="the environments are closed"):
            evaluation.result()
    assert told == ["step", "step", "close", "close"]
    with pytest.raises(RuntimeError, match="the environments are closed"):
        evaluator(still)
