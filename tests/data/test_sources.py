"""Datasets as objects with D4RL's `get_dataset()`, and names that may or may not use the network."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.data import sources
from shared.errors import InputError
from shared.runs.task import Preparation, load_task
from tests.runs.test_task import Config

WriteHDF5 = Callable[..., Path]


class Environment:
    """Like one of D4RL's environments, with a dataset and a time limit in a private attribute."""

    def __init__(self, max_episode_steps: int | None = None, **arrays: Any) -> None:
        rng = np.random.default_rng(0)
        content = {
            "observations": rng.normal(size=(60, 11)),
            "actions": rng.uniform(-1, 1, size=(60, 3)),
            "rewards": np.arange(60.0)[:, None],
            "terminals": np.arange(60) % 20 == 9,
            "timeouts": np.arange(60) % 20 == 19,
            "next_observations": np.zeros((60, 11)),
            "metadata/algorithm": "SAC",
        }
        self._arrays = {key: values for key, values in (content | arrays).items() if values is not None}
        if max_episode_steps is not None:
            self._max_episode_steps = max_episode_steps

    def get_dataset(self) -> dict[str, Any]:
        """Arrays under the keys of D4RL's files."""
        return self._arrays


def test_an_object_is_read_as_its_file_would_be() -> None:
    with sources.given("hopper-medium-v2", sources.from_object(Environment())):
        task = load_task(Config(env="hopper-medium-v2"), Preparation(normalise=False))
    task.evaluator.close()
    assert task.evaluator.fingerprint["env"] == "d4rl/hopper-v2"
    assert sorted(set(range(60)) - set(task.dataset.rewards.tolist())) == [19, 39, 59]
    assert task.dataset.next_observations.any(), "D4RL's next observation is the next row's, whatever the array says"
    assert task.fingerprint["transitions"] == 57
    assert len(task.fingerprint["sha256"]) == 64


def test_without_timeouts_the_objects_own_time_limit_counts() -> None:
    env = Environment(10, timeouts=None, terminals=np.zeros(60))
    with sources.given("my-own", sources.from_object(env)):
        task = load_task(Config(env="my-own", eval_env="d4rl/hopper-v2"), Preparation(normalise=False))
    task.evaluator.close()
    assert sorted(set(range(60)) - set(task.dataset.rewards.tolist())) == [9, 19, 29, 39, 49, 59]


def test_an_object_of_no_known_name_needs_an_environment() -> None:
    given = sources.given("my-own", sources.from_object(Environment()))
    with given, pytest.raises(InputError, match="my-own names no environment: set eval_env"):
        load_task(Config(env="my-own"))


def test_the_fingerprint_of_an_object_is_that_of_its_arrays() -> None:
    changed = np.arange(60.0)
    changed[7] += 1
    kinds = [Environment(), Environment(rewards=changed[:, None]), Environment(timeouts=None)]
    kinds.append(Environment(rewards=np.arange(60, dtype=np.float32)))
    assert len({sources.from_object(env).sha256 for env in kinds}) == 4
    assert sources.from_object(Environment(more=1)).sha256 == sources.from_object(Environment()).sha256


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (object(), r"a source must have D4RL's get_dataset\(\), object has none"),
        (Environment(actions=None), "Environment has no array 'actions'"),
        (Environment(rewards=np.zeros(59)), "Environment has arrays of unequal length"),
        (Environment(observations=[[object()]] * 60), "observations holds object"),
    ],
)
def test_an_object_that_cannot_be_used_is_refused(source: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        sources.from_object(source)


def test_only_a_dataset_that_is_not_here_touches_the_network(
    write_hdf5: WriteHDF5, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(*_: Any) -> None:
        raise AssertionError("the network was touched")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "getaddrinfo", connect)
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path))
    path = write_hdf5()
    (tmp_path / "hopper_medium-v2.hdf5").write_bytes(path.read_bytes())
    for name in ("mini/hopper-medium-expert", "hopper-medium-v2", str(path)):
        load_task(Config(env=name)).evaluator.close()
    with pytest.raises(AssertionError, match="the network was touched"):
        sources.read("hopper-expert-v2")
