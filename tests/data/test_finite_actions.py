"""Datasets of finite actions: whole numbers (N,) from the file to the batch, and one line for unsuitable data."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.spaces import Discrete

from shared.data import nsteps, sources, transitions
from shared.errors import InputError
from shared.frameworks import jax_data, torch_data
from shared.frameworks.twins import load_twin
from shared.runs.online import load_online_task
from shared.runs.task import Preparation, load_task
from tests.runs.test_task import Config, Discounted, Scaled

WriteHDF5 = Callable[..., Path]
ACTIONS = np.arange(60) % 2
STATES = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
OF_CARTPOLE: dict[str, Any] = {"attributes": {"env_id": "CartPole-v1"}, "observations": STATES, "actions": ACTIONS}


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
def test_whole_numbers_stay_whole_up_to_the_batch(write_hdf5: WriteHDF5, dtype: type) -> None:
    """As int64 in NumPy and PyTorch and as JAX's int, in a batch of single steps and of several."""
    raw = sources.read(str(write_hdf5(**OF_CARTPOLE | {"actions": ACTIONS.astype(dtype)}))).raw
    dataset = transitions.extract_transitions(raw)
    kept = np.flatnonzero(~raw["timeouts"][:-1])
    assert dataset.actions.dtype == np.int64
    np.testing.assert_array_equal(dataset.actions, ACTIONS[kept])
    indices = np.array([3, 0, 8])
    ours = torch_data.take(torch_data.to_device(dataset, torch.device("cpu")), torch.as_tensor(indices))
    theirs = jax_data.take(jax_data.to_device(dataset), jnp.asarray(indices))
    assert (ours.actions.dtype, theirs.actions.dtype) == (torch.int64, jnp.int32)
    for actions in (ours.actions.numpy(), theirs.actions):
        np.testing.assert_array_equal(actions, ACTIONS[kept][indices])
    assert ours.observations.dtype == torch.float32
    assert theirs.observations.dtype == jnp.float32
    several = nsteps.extract_n_steps(raw, n_steps=3, discount=0.9)
    np.testing.assert_array_equal(several.actions, ACTIONS[kept])
    assert several.actions.dtype == np.int64


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (ACTIONS.astype(np.float32), "write it as (rows, size), or as whole numbers"),
        (ACTIONS - 1, "actions holds -1, first in row 0: count them from 0"),
        (np.where(np.arange(60) == 5, 2**25, ACTIONS), "actions holds 33554432, first in row 5: count them from 0"),
    ],
)
def test_what_counts_no_actions_is_refused(write_hdf5: WriteHDF5, actions: np.ndarray, message: str) -> None:
    with pytest.raises(InputError) as caught:
        sources.read(str(write_hdf5(actions=actions)))
    assert message in str(caught.value)


@pytest.mark.parametrize("stated", [1, "two", True])
def test_a_number_of_actions_that_the_data_break_is_refused(write_hdf5: WriteHDF5, stated: object) -> None:
    """A file that states none can still be read."""
    path = write_hdf5(**OF_CARTPOLE | {"attributes": {"env_id": "CartPole-v1", "n_actions": stated}})
    with pytest.raises(InputError, match=f"states n_actions {stated!r} and holds the action 1: correct the attribute"):
        sources.read(str(path))


@pytest.mark.parametrize(("bounds", "score"), [({}, None), ({"ref_min_score": 20.0, "ref_max_score": 500.0}, 50.0)])
def test_returns_are_scored_between_those_that_the_file_states(
    write_hdf5: WriteHDF5, bounds: dict[str, float], score: float | None
) -> None:
    """Only in the environment that the file names."""
    path = write_hdf5(**OF_CARTPOLE | {"attributes": {"env_id": "CartPole-v1", **bounds}})
    for eval_env in ("", "CartPole-v0"):
        task = load_task(Config(env=str(path), eval_env=eval_env), Preparation(normalise=False, finite=True))
        scored = score is not None and not eval_env
        assert task.evaluator.scale.metric == ("normalized_return" if scored else "return_mean")
        assert task.evaluator.scale(260.0) == (score if scored else 260.0)
        task.evaluator.close()


@pytest.mark.parametrize("bounds", [(1.0, 1.0), ("a", 1.0), (1.0, float("inf"))])
def test_returns_that_are_no_range_are_refused(write_hdf5: WriteHDF5, bounds: tuple[object, object]) -> None:
    stated = dict(zip(("ref_min_score", "ref_max_score"), bounds, strict=True))
    path = write_hdf5(**OF_CARTPOLE | {"attributes": {"env_id": "CartPole-v1", **stated}})
    with pytest.raises(InputError, match="returns for 0 and 100 are no range") as caught:
        load_task(Config(env=str(path)), Preparation(normalise=False, finite=True))
    assert "\n" not in str(caught.value)


def test_a_task_of_finite_actions(write_hdf5: WriteHDF5) -> None:
    """The environment gives their number, because a dataset may lack the last one."""
    path = write_hdf5(**OF_CARTPOLE | {"actions": 0 * ACTIONS})
    task = load_task(Config(env=str(path)), Preparation(normalise=False, finite=True))
    assert (task.state_dim, task.action_dim, task.max_action) == (4, 2, 1.0)
    assert (task.action_mean.tolist(), task.action_std.tolist()) == ([0, 0], [1, 1])
    task.evaluator.close()
    several = load_task(Discounted(env=str(path), eval_env="", n_steps=3), Preparation(normalise=False, finite=True))
    assert several.dataset.actions.dtype == np.int64
    several.evaluator.close()


VECTORS = {name: values for name, values in OF_CARTPOLE.items() if name != "actions"}
MISFITS: dict[str, tuple[dict[str, Any], bool, str]] = {
    "finite": (OF_CARTPOLE, False, "are finite ones, this algorithm's are vectors: set env to another"),
    "vectors": (VECTORS, True, "are vectors, this algorithm's are finite ones: set env to another"),
    "an action too many": (
        OF_CARTPOLE | {"actions": ACTIONS + 1},
        True,
        "states of size 4 and the action 2, environment 'CartPole-v1' 4 and actions 0 to 1: set eval_env",
    ),
    "another number of actions": (
        OF_CARTPOLE | {"attributes": {"env_id": "CartPole-v1", "n_actions": 3}},
        True,
        "states of size 4 and 3 actions, environment 'CartPole-v1' 4 and actions 0 to 1: set eval_env",
    ),
    "an environment of vectors": (
        OF_CARTPOLE | {"attributes": {"env_id": "d4rl/hopper-v2"}},
        True,
        "states of size 4 and the action 1, environment 'd4rl/hopper-v2' 11 and 3: set eval_env",
    ),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_another_kind_of_actions_is_refused_in_one_line(write_hdf5: WriteHDF5, misfit: str) -> None:
    """By the algorithm or by the environment."""
    arrays, finite, message = MISFITS[misfit]
    path = write_hdf5(**arrays)
    with pytest.raises(InputError) as caught:
        load_task(Config(env=str(path)), Preparation(normalise=False, finite=finite))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_task_in_an_environment_of_finite_actions() -> None:
    """The buffer stores whole numbers; an environment of the other kind is refused."""
    task = load_online_task(Scaled(env="CartPole-v1", max_timesteps=5, eval_env=""), finite=True)
    assert [(column.shape, column.dtype) for column in task.dataset[:2]] == [((5, 4), "float32"), ((5,), "int64")]
    task.evaluator.close()
    for env, finite in (("CartPole-v1", False), ("d4rl/hopper-v2", True)):
        with pytest.raises(InputError, match=f"actions of environment '{env}' are .*: set env to another"):
            load_online_task(Scaled(env=env, eval_env=""), finite=finite)


def test_a_run_that_ends_before_its_learning_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """A run that makes at least one update prints nothing."""
    twin = load_twin("torch", "online/dqn")
    for steps, told in ((50, True), (51, False)):
        config = twin.TrainConfig(env="CartPole-v1", max_timesteps=steps, learning_starts=50)
        load_online_task(config, finite=True).evaluator.close()
        warned = "50 steps learns nothing: learning begins after learning_starts (50)" in capsys.readouterr().err
        assert warned == told


def test_finite_actions_have_no_scale(write_hdf5: WriteHDF5) -> None:
    config = Scaled(env=str(write_hdf5(**OF_CARTPOLE)), eval_env="", action_scaler="min_max")
    with pytest.raises(InputError, match="finite actions have no scale: set action_scaler to none"):
        load_task(config, Preparation(normalise=False, finite=True))


class Numbered(CartPoleEnv):
    """CartPole, whose actions are 1 and 2."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = Discrete(2, start=1)


def test_actions_that_an_environment_numbers_from_1_are_told(write_hdf5: WriteHDF5) -> None:
    gymnasium.register("lab/Numbered-v0", Numbered)
    path = write_hdf5(**OF_CARTPOLE | {"actions": ACTIONS + 1, "attributes": {"env_id": "lab/Numbered-v0"}})
    with pytest.raises(InputError, match=r"actions 0 to 1, which it numbers from 1 \(subtract that in the file\)"):
        load_task(Config(env=str(path)), Preparation(normalise=False, finite=True))
