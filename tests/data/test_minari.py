"""Minari's datasets, recorded here by its own collector in real environments, and compared with every step seen."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import minari
import numpy as np
import pytest
from gymnasium.wrappers import RescaleAction

from shared.data import cache, minari_sets, sources, transitions
from shared.data.transitions import Batch
from shared.envs.evaluation import Evaluator
from shared.envs.registry import make_env, time_limit
from shared.errors import InputError
from shared.runs.task import load_task
from tests.runs.test_task import Config

# Minari asks for these facts about a dataset that is to be published.
pytestmark = pytest.mark.filterwarnings("ignore:`(description|eval_env)` is set:UserWarning")


class Episode(NamedTuple):
    """An episode in Minari's form."""

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminations: np.ndarray
    truncations: np.ndarray


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder for Minari's datasets."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))


@pytest.fixture
def record() -> Iterator[Callable[..., list[list[Any]]]]:
    """Records a dataset, and returns each step as (o, a, r, o', terminated, truncated)."""
    open_envs = []

    def collect(key: str, env_id: str | gymnasium.Env, lengths: list[int], **settings: Any) -> list[list[Any]]:
        """Random actions; episode k is stopped after `lengths[k]` steps if it has not ended by itself."""
        made = gymnasium.make(env_id, **settings) if isinstance(env_id, str) else env_id
        env = minari.DataCollector(made)
        open_envs.append(env)
        env.action_space.seed(0)
        steps = []
        for seed, length in enumerate(lengths):
            observation, _ = env.reset(seed=seed)
            for _ in range(length):
                action = env.action_space.sample()
                following, reward, terminated, truncated, _ = env.step(action)
                steps.append([observation, action, reward, following, terminated, truncated])
                observation = following
                if terminated or truncated:
                    break
        env.create_dataset(
            dataset_id=key, algorithm_name="random", author="tests", author_email="none", code_permalink=""
        )
        return steps

    yield collect
    for env in open_envs:
        env.close()


def columns(steps: list[list[Any]]) -> list[np.ndarray]:
    return [np.array(column) for column in zip(*steps, strict=True)]


def test_every_step_is_a_transition_into_what_came_after_it(record: Callable[..., list[list[Any]]]) -> None:
    steps = record("mujoco/hopper/tests-v0", "Hopper-v5", [1000, 15, 1000, 10])
    observations, actions, rewards, following, terminals, truncations = columns(steps)
    assert terminals.sum() >= 2, "the robot must have fallen in the long episodes"
    assert not truncations.any(), "and been stopped, by us, in the short ones"
    read = sources.read("minari:mujoco/hopper/tests-v0")
    dataset = transitions.extract_transitions(read.raw, read.max_episode_steps)
    for name, actual, seen in zip(
        Batch._fields, dataset, (observations, actions, rewards, following, terminals), strict=True
    ):
        assert actual.dtype == np.float32, name
        np.testing.assert_array_equal(actual, seen.astype(np.float32), err_msg=name)
    assert read.attributes == {"env_id": "Hopper-v5"}
    ends = np.flatnonzero(terminals | read.raw["timeouts"])
    assert len(ends) == 4
    assert not (read.raw["timeouts"] & terminals).any()


def test_a_time_limit_is_no_terminal(record: Callable[..., list[list[Any]]]) -> None:
    steps = record("pendulum-v0", "Pendulum-v1", [1000, 1000], max_episode_steps=20)
    assert [bool(step[5]) for step in steps] == [False] * 19 + [True] + [False] * 19 + [True]
    read = sources.read("minari:pendulum-v0")
    dataset = transitions.extract_transitions(read.raw)
    assert dataset.terminals.tolist() == [0] * 40  # nothing is dropped and nothing ends
    np.testing.assert_array_equal(dataset.next_observations, columns(steps)[3])
    assert np.flatnonzero(read.raw["timeouts"]).tolist() == [19, 39]
    assert read.max_episode_steps == 20
    # The action after the time limit is unknown.
    sarsa, known = transitions.extract_sarsa(read.raw), np.delete(np.arange(40), [19, 39])
    for name, column in zip(Batch._fields, sarsa, strict=False):
        np.testing.assert_array_equal(column, getattr(dataset, name)[known])
    np.testing.assert_array_equal(sarsa.next_actions, dataset.actions[known + 1])


def test_a_run_is_scored_where_the_dataset_was_recorded(record: Callable[..., list[list[Any]]]) -> None:
    record("mujoco/hopper/tests-v0", "Hopper-v5", [30, 30])
    task = load_task(Config(env="minari:mujoco/hopper/tests-v0"))
    task.evaluator.close()
    assert task.evaluator.fingerprint["env"] == "Hopper-v5"
    assert (task.state_dim, task.action_dim) == (11, 3)
    assert len(task.fingerprint["sha256"]) == 64


def test_an_environment_that_its_name_does_not_make_again_is_made_as_it_was_recorded(
    record: Callable[..., list[list[Any]]],
) -> None:
    record("hopper-v0", "Hopper-v5", [10], forward_reward_weight=2.0, max_episode_steps=7)
    task = load_task(Config(env="minari:hopper-v0"))
    assert task.evaluator.fingerprint["env"] == "minari:hopper-v0"
    task.evaluator.close()
    env: Any = make_env("minari:hopper-v0")
    assert env.unwrapped._forward_reward_weight == 2.0
    assert time_limit("minari:hopper-v0") == 7
    env.close()


def test_wrappers_are_applied_in_evaluation(record: Callable[..., list[list[Any]]]) -> None:
    """Actions of 0.1 become torques of 0.2, so the returns are those of the wrapped environment."""
    record("stretched-v0", RescaleAction(gymnasium.make("Pendulum-v1"), -1.0, 1.0), [20])
    task = load_task(Config(env="minari:stretched-v0"))
    found = task.evaluator(lambda observations: np.full((len(observations), 1), 0.1, np.float32))
    task.evaluator.close()
    plain = Evaluator("Pendulum-v1", 1, 0)
    expected = plain(lambda observations: np.full((len(observations), 1), 0.2, np.float32))
    plain.close()
    np.testing.assert_allclose(found.returns, expected.returns, rtol=1e-6)
    assert (task.max_action, plain.max_action) == (1.0, 2.0)


class Plain(gymnasium.ActionWrapper):
    """A wrapper that does not record how it was made."""

    def action(self, action: np.ndarray) -> np.ndarray:
        """Pushes the other way."""
        return -action


def test_a_wrapper_that_cannot_be_made_again_is_refused_in_one_line(record: Callable[..., list[list[Any]]]) -> None:
    record("turned-v0", Plain(gymnasium.make("Pendulum-v1")), [20])
    with pytest.raises(InputError, match=r"Pendulum-v1 under Plain, cannot be made again .*set eval_env"):
        load_task(Config(env="minari:turned-v0"))
    load_task(Config(env="minari:turned-v0", eval_env="Pendulum-v1")).evaluator.close()


def test_an_environment_of_another_package_is_imported_from_it(record: Callable[..., list[list[Any]]]) -> None:
    """By its own name, in a process that knows nothing of it."""
    record("glide-v0", "tests.own_envs:own/Glide-v0", [20])
    del gymnasium.registry["own/Glide-v0"]
    del sys.modules["tests.own_envs"]
    task = load_task(Config(env="minari:glide-v0"))
    task.evaluator.close()
    assert task.evaluator.fingerprint["env"] == "tests.own_envs:own/Glide-v0"


def test_large_datasets_are_read_once(
    record: Callable[..., list[list[Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "LARGE", 20)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    record("pendulum-v0", "Pendulum-v1", [20, 20])
    first = sources.read("minari:pendulum-v0")
    monkeypatch.setattr(minari_sets, "join", lambda _: pytest.fail("the flat copy was not used"))
    second = sources.read("minari:pendulum-v0")
    assert second._replace(raw={}) == first._replace(raw={})
    np.testing.assert_array_equal(second.raw["next_observations"], first.raw["next_observations"])


def episode(seen: int = 4, **arrays: Any) -> Episode:
    flags = np.zeros(3, bool)
    content = Episode(np.zeros((seen, 2)), np.zeros((3, 1)), np.zeros(3), flags, flags)
    return content._replace(**arrays)


@pytest.mark.parametrize(
    ("episodes", "message"),
    [
        ([], "no episode"),
        ([episode(3)], "episode 0 has 3 observations for 3 actions, not one more"),
        ([episode(), episode(5)], "episode 1 has 5 observations for 3 actions"),
        ([episode(1, actions=np.zeros((0, 1)))], "episode 0 has 1 observations for 0 actions"),
        ([episode(rewards=np.zeros(2))], "unequal length .*rewards 2"),
        ([episode(observations=np.r_[np.zeros((3, 2)), np.full((1, 2), np.nan)])], "next observations.*NaN"),
        ([episode(rewards=np.array([0, np.inf, 0]))], "rewards holds NaN or an infinity, first in row 1"),
    ],
)
def test_episodes_that_do_not_fit_are_refused(episodes: list[Episode], message: str) -> None:
    with pytest.raises(InputError, match=message):
        minari_sets.join(episodes)


def test_both_ends_on_one_step_are_a_terminal() -> None:
    last = np.array([False, False, True])
    raw = minari_sets.join([episode(terminations=last, truncations=last), episode(truncations=last), episode()])
    assert np.flatnonzero(raw["terminals"]).tolist() == [2]
    assert np.flatnonzero(raw["timeouts"]).tolist() == [5, 8]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("minari:hopper", "is no name of a dataset: write it like minari:mujoco/hopper/medium-v0"),
        ("minari:../../etc/hopper-v0", "is no name of a dataset"),
        ("minari:/etc/hopper-v0", "is no name of a dataset"),
    ],
)
def test_bad_names_are_refused_before_anything_is_asked(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        sources.read(name)


def test_a_set_that_cannot_be_downloaded_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot load 'minari:mujoco/hopper/medium-v0' ") as caught:
        sources.read("minari:mujoco/hopper/medium-v0")
    assert "\n" not in str(caught.value)
    assert "put its folder where Minari looks" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_without_minari_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(InputError, match=r"needs Minari: pip install 'corl-twins\[minari\]'"):
        sources.read("minari:pendulum-v0")
    assert minari_sets.local() == {}


def test_a_set_of_other_observations_is_refused(record: Callable[..., list[list[Any]]]) -> None:
    record("lake-v0", "FrozenLake-v1", [5])
    with pytest.raises(InputError, match="its observations are Discrete"):
        sources.read("minari:lake-v0")


def test_finite_actions_are_whole_numbers(record: Callable[..., list[list[Any]]]) -> None:
    _, actions, *_ = columns(record("cart-v0", "CartPole-v1", [5, 9]))
    read = sources.read("minari:cart-v0")
    np.testing.assert_array_equal(read.raw["actions"], actions)
    dataset = transitions.extract_transitions(read.raw)
    assert (dataset.actions.dtype, dataset.actions.shape) == (np.int64, (14,))
    assert read.attributes == {"env_id": "CartPole-v1"}


def test_finite_actions_may_be_counted_from_another_number() -> None:
    episode = Episode(np.zeros((3, 2)), np.array([1, 3]), np.zeros(2), np.zeros(2, bool), np.zeros(2, bool))
    np.testing.assert_array_equal(minari_sets.join([episode], first=1)["actions"], [0, 2])


@pytest.mark.parametrize("damage", [b"", b"no HDF5 at all"])
def test_a_damaged_set_is_one_line(record: Callable[..., list[list[Any]]], tmp_path: Path, damage: bytes) -> None:
    record("pendulum-v0", "Pendulum-v1", [5])
    (tmp_path / "pendulum-v0" / "data" / "main_data.hdf5").write_bytes(damage)
    with pytest.raises(InputError, match="is damaged: delete its folder") as caught:
        sources.read("minari:pendulum-v0")
    assert "\n" not in str(caught.value)


def test_local_sets_are_listed(
    record: Callable[..., list[list[Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert minari_sets.local() == {}
    record("pendulum-v0", "Pendulum-v1", [5])
    assert minari_sets.local() == {"minari:pendulum-v0": ("5", "3+1")}
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "none"))
    assert minari_sets.local() == {}
    assert not (tmp_path / "none").exists()
