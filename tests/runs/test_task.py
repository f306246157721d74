"""Datasets and environments combined as a config says, and refused if they do not fit."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.data import transitions
from shared.data.episodes import Episodes
from shared.data.nsteps import extract_n_steps
from shared.data.returns import extract_returns
from shared.data.rewards import CorlRewards, Rewards
from shared.data.transitions import Batch
from shared.envs.evaluation import Evaluator
from shared.errors import InputError
from shared.runs import evaluators
from shared.runs.fields import positive
from shared.runs.settings import EvalSeedConfig, TransitionsConfig
from shared.runs.task import Extract, Preparation, Task, load_task

WriteHDF5 = Callable[..., Path]


@dataclasses.dataclass(frozen=True)
class Config(TransitionsConfig):
    """The settings of a run on transitions, with a bounded field."""

    n_episodes: int = 1
    batch_size: int = positive(256)


@pytest.fixture
def load() -> Iterator[Callable[..., Task]]:
    """`load_task`, with the environments closed after the test."""
    tasks = []

    def load_and_remember(config: Config, *args: Any, **kwargs: Any) -> Task:
        tasks.append(load_task(config, *args, **kwargs))
        return tasks[-1]

    yield load_and_remember
    for loaded in tasks:
        loaded.evaluator.close()


def test_a_task_holds_normalised_transitions_and_an_evaluator_that_agrees(
    write_hdf5: WriteHDF5, load: Callable[..., Task]
) -> None:
    path = write_hdf5({"env_id": "d4rl/hopper-v2", "medium_return_mean": 1500.0})
    loaded = load(Config(env=str(path)))
    plain = transitions.extract_transitions(transitions.read_hdf5(path))
    mean, std = transitions.state_statistics(plain.observations)
    np.testing.assert_array_equal(loaded.dataset.observations, (plain.observations - mean) / std)
    np.testing.assert_array_equal(loaded.dataset.next_observations, (plain.next_observations - mean) / std)
    np.testing.assert_array_equal(loaded.dataset.rewards, plain.rewards)
    np.testing.assert_array_equal(loaded.dataset.terminals, plain.terminals)
    np.testing.assert_array_equal(loaded.mean, mean)
    np.testing.assert_array_equal(loaded.std, std)
    assert (loaded.state_dim, loaded.action_dim, loaded.max_action) == (11, 3, 1.0)
    assert loaded.attributes["medium_return_mean"] == 1500.0
    assert loaded.fingerprint == {
        "name": str(path),
        "transitions": len(plain.rewards),
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    assert loaded.evaluator.fingerprint["env"] == "d4rl/hopper-v2"
    seen = []
    loaded.evaluator(lambda observations: seen.append(observations) or np.zeros((1, 3)))
    # Hopper starts at a height of 1.25 m, at most 5 mm off.
    np.testing.assert_allclose(seen[0][0, 0] * std[0] + mean[0], 1.25, atol=0.01)


def test_without_normalisation_the_statistics_are_neutral(write_hdf5: WriteHDF5, load: Callable[..., Task]) -> None:
    path = write_hdf5()
    loaded = load(Config(env=str(path)), Preparation(normalise=False))
    np.testing.assert_array_equal(
        loaded.dataset.observations, transitions.extract_transitions(transitions.read_hdf5(path))[0]
    )
    assert loaded.mean.tolist() == [0] * 11
    assert loaded.std.tolist() == [1] * 11


@dataclasses.dataclass(frozen=True)
class Negated(Rewards):
    """Rewards times -1; records its inputs."""

    calls: list[str]

    def modified(self, dataset: Batch, env: str, episodes: Episodes | None = None) -> Batch:
        """Records the family and checks the episodes."""
        self.calls.append(env)
        assert episodes is None or episodes.lengths.tolist() == [10, 9] * 3  # a time limit's row is dropped
        return dataset._replace(rewards=-dataset.rewards)


def test_rewards_are_modified_before_states_are_normalised(write_hdf5: WriteHDF5, load: Callable[..., Task]) -> None:
    path = write_hdf5()
    plain = transitions.extract_transitions(transitions.read_hdf5(path))
    kind = Negated([])
    modified = load(Config(env=str(path), eval_env="Hopper-v5"), Preparation(rewards=kind))
    assert modified.dataset.rewards.tolist() == (-plain.rewards).tolist()
    assert kind.calls == ["Hopper-v5"]  # a file's own name says nothing about its family


@dataclasses.dataclass(frozen=True)
class Scaled(Config):
    """The settings of a run whose states and rewards may be scaled."""

    eval_env: str = "d4rl/hopper-v2"
    normalize_reward: bool = False


def test_states_are_scaled_in_place_of_normalised(write_hdf5: WriteHDF5, load: Callable[..., Task]) -> None:
    path = write_hdf5()
    plain = transitions.extract_transitions(transitions.read_hdf5(path)).observations
    loaded = load(Scaled(env=str(path), observation_scaler="min_max"))
    np.testing.assert_allclose(loaded.dataset.observations.min(axis=0), -1, rtol=1e-6)
    np.testing.assert_allclose(loaded.dataset.observations.max(axis=0), 1, rtol=1e-6)
    np.testing.assert_allclose(loaded.evaluator.mean, (plain.min(axis=0) + plain.max(axis=0)) / 2, rtol=1e-5)
    standard = load(Scaled(env=str(path), observation_scaler="standard"), Preparation(normalise=False))
    np.testing.assert_allclose(standard.std, transitions.state_statistics(plain)[1], rtol=1e-5)


def test_actions_are_scaled_and_the_evaluator_takes_scaled_ones(
    write_hdf5: WriteHDF5, load: Callable[..., Task]
) -> None:
    """Actions of next states are scaled too. Without a scaler, actions from -1 to 1 are unchanged."""
    path = write_hdf5()
    raw = transitions.read_hdf5(path)
    config = Scaled(env=str(path), action_scaler="min_max")
    loaded = load(config, Preparation(Extract.SARSA))
    plain = transitions.extract_sarsa(raw, None)
    mean, std = loaded.action_mean, loaded.action_std
    np.testing.assert_allclose(loaded.dataset.actions.min(axis=0), -1, rtol=1e-6)
    np.testing.assert_allclose(loaded.dataset.actions.max(axis=0), 1, rtol=1e-6)
    for name in ("actions", "next_actions"):
        np.testing.assert_allclose(getattr(loaded.dataset, name) * std + mean, getattr(plain, name), atol=1e-6)
    assert (std != 1).all()
    unscaled = load(Scaled(env=str(path)))
    assert (loaded.max_action, unscaled.max_action) == (1.0, 1.0)
    plain_actions = transitions.extract_transitions(raw).actions
    np.testing.assert_array_equal(unscaled.dataset.actions.view(np.uint32), plain_actions.view(np.uint32))
    assert (unscaled.action_mean.tolist(), unscaled.action_std.tolist()) == ([0] * 3, [1] * 3)
    played = loaded.evaluator(lambda observations: np.full((1, 3), 0.7, np.float32))
    expected = unscaled.evaluator(lambda observations: np.full((1, 3), np.float32(0.7)) * std + mean)
    assert played.returns.tolist() == expected.returns.tolist()


def test_rewards_are_scaled_before_anything_is_made_of_them(write_hdf5: WriteHDF5, load: Callable[..., Task]) -> None:
    """Prepared rewards, the returns that an extraction sums up, and the rewards of steps in the environment."""
    path = write_hdf5()
    scaler = {"reward_scaler": "shift", "reward_shift": -1.0, "reward_multiplier": 2.0}
    config = Discounted(env=str(path), discount=0.5, **scaler)
    loaded = load(config, Preparation(Extract.RETURNS))
    raw = transitions.read_hdf5(path)
    expected = extract_returns(raw | {"rewards": 2 * (raw["rewards"] - 1)}, discount=0.5)
    np.testing.assert_array_equal(loaded.dataset.rewards, expected.rewards)
    np.testing.assert_array_equal(loaded.dataset.returns, expected.returns)
    assert loaded.step_reward(3.0) == 4.0
    np.testing.assert_array_equal(
        load(Scaled(env=str(path))).dataset.rewards, transitions.extract_transitions(raw).rewards
    )


@dataclasses.dataclass(frozen=True)
class Discounted(Scaled):
    """The settings of a run whose transitions may have several steps."""

    discount: float = 0.9


def test_transitions_of_several_steps(write_hdf5: WriteHDF5, load: Callable[..., Task]) -> None:
    """They sum scaled rewards; their states are scaled like any others."""
    path = write_hdf5()
    loaded = load(Discounted(env=str(path), n_steps=3, reward_scaler="multiply", reward_multiplier=2.0))
    expected = extract_n_steps(transitions.read_hdf5(path), n_steps=3, discount=0.9)
    np.testing.assert_allclose(loaded.dataset.rewards, 2 * expected.rewards, rtol=1e-6)
    np.testing.assert_array_equal(loaded.dataset.terminals, expected.terminals)
    states = loaded.dataset.next_observations * loaded.std + loaded.mean
    np.testing.assert_allclose(states, expected.next_observations, atol=1e-5)


def test_several_steps_where_they_cannot_be() -> None:
    """Each is refused in a line that says what to set."""
    config = Discounted(env="mini/hopper-medium-expert", n_steps=2)
    with pytest.raises(InputError, match="set n_steps to 1"):
        load_task(config, Preparation(Extract.SARSA))
    with pytest.raises(InputError, match="set normalize_reward to false"):
        load_task(config, Preparation(rewards=CorlRewards()))


def test_rewards_are_scaled_once(write_hdf5: WriteHDF5) -> None:
    with pytest.raises(InputError, match="set normalize_reward to false"):
        load_task(Scaled(env=str(write_hdf5()), normalize_reward=True, reward_scaler="standard"))
    with pytest.raises(InputError, match="reward_low has no effect with reward_scaler none"):
        load_task(Scaled(env=str(write_hdf5()), reward_low=0.0))


def test_a_d4rl_dataset_is_scored_where_it_was_recorded(
    write_hdf5: WriteHDF5, load: Callable[..., Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_hdf5({}, timeouts=None)
    monkeypatch.setenv("D4RL_DATASET_DIR", str(path.parent))
    path.rename(path.parent / "hopper_medium-v2.hdf5")
    kind = Negated([])
    loaded = load(Config(env="hopper-medium-v2"), Preparation(rewards=kind))
    assert kind.calls == ["hopper-medium-v2"]
    assert loaded.evaluator.fingerprint["env"] == "d4rl/hopper-v2"
    assert loaded.evaluator.fingerprint["d4rl_exact"]
    assert not load(Config(env="hopper-medium-v2", eval_env="Hopper-v5")).evaluator.fingerprint["d4rl_exact"]


def test_without_timeouts_the_time_limit_is_the_environments(write_hdf5: WriteHDF5, load: Callable[..., Task]) -> None:
    arrays = {"observations": np.zeros((1500, 11)), "actions": np.zeros((1500, 3)), "rewards": np.arange(1500.0)}
    path = write_hdf5(**arrays, terminals=np.zeros(1500), timeouts=None)
    kept = load(Config(env=str(path)), Preparation(normalise=False)).dataset.rewards
    assert sorted(set(range(1500)) - set(kept.tolist())) == [999, 1499]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"eval_env": "d4rl/walker2d-v2"},
            "states of size 11 and actions of size 3, environment 'd4rl/walker2d-v2' 17 and 6",
        ),
        ({"eval_env": "d4rl/hoper-v2"}, "unknown environment 'd4rl/hoper-v2'"),
        ({"buffer_size": 50}, "the dataset has 57 transitions; set buffer_size to at least that, not 50"),
        ({"batch_size": -1}, "batch_size must be greater than 0, not -1"),
        ({"env": "hopper-huge-v2"}, "unknown dataset 'hopper-huge-v2'"),
        ({"env": "none.hdf5"}, "the dataset 'none.hdf5' does not exist"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(write_hdf5: WriteHDF5, changes: dict[str, Any], message: str) -> None:
    config = dataclasses.replace(Config(env=str(write_hdf5())), **changes)
    with pytest.raises(InputError) as caught:
        load_task(config)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_environments_of_a_refused_task_are_closed(write_hdf5: WriteHDF5, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    class Watched(Evaluator):
        def close(self) -> None:
            closed.append(self)
            super().close()

    monkeypatch.setattr(evaluators, "Evaluator", Watched)
    with pytest.raises(InputError):
        load_task(Config(env=str(write_hdf5()), eval_env="d4rl/walker2d-v2"))
    assert len(closed) == 1


def test_evaluations_have_a_seed_of_their_own_if_asked(write_hdf5: WriteHDF5, load: Callable[..., Task]) -> None:
    path = str(write_hdf5())
    assert load(Config(env=path, seed=3)).evaluator.fingerprint["seed"] == 3

    @dataclasses.dataclass(frozen=True)
    class Seeded(EvalSeedConfig, TransitionsConfig):
        """The settings of a run whose evaluations have their own seed."""

    assert load(Seeded(env=path, seed=3, eval_seed=69)).evaluator.fingerprint["seed"] == 69


def test_a_file_that_names_no_environment_needs_one(write_hdf5: WriteHDF5, load: Callable[..., Task]) -> None:
    path = write_hdf5({})
    with pytest.raises(InputError, match="names no environment: set eval_env"):
        load_task(Config(env=str(path)))
    assert load(Config(env=str(path), eval_env="d4rl/hopper-v2")).state_dim == 11


def test_loading_writes_nothing(write_hdf5: WriteHDF5, load: Callable[..., Task], tmp_path: Path) -> None:
    path = write_hdf5()
    before = path.stat().st_mtime_ns
    load(Config(env=str(path)))
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mtime_ns == before
