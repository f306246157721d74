"""The rewards of steps in the environment are changed alike in both twins, as the dataset's are.

The derivations hold the PyTorch twins to that. A run in haste draws few online rows, and may miss it.
"""

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from parity_tests.pairs import PAIRS
from shared.data.transitions import Batch
from shared.errors import InputError
from shared.runs.settings import FinetuneConfig
from shared.runs.task import load_task

ENVS = ("antmaze-umaze-v2", "hopper-medium-v2", "pen-cloned-v1")
REWARDS = (0.0, 0.25, 1.0, -2.5)
NAMES = [name for name, pair in PAIRS.items() if issubclass(pair.torch.TrainConfig, FinetuneConfig)]
# Where a config has these, others than the neutral ones
RULE = {"reward_scale": 10.0, "reward_bias": -5.0}


class LoadedError(Exception):
    """Ends a run where it would load its task."""


def rows() -> Batch:
    """Two episodes of different returns, (4, 1)."""
    column = np.zeros((4, 1), np.float32)
    rewards, terminals = np.array([[1.0, 2.0, 0.5, 0.25], [0, 1, 0, 1]], np.float32)
    return Batch(column, column, rewards, column + 1.0, terminals)


def changed(twin: ModuleType, env: str, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> list[float] | str:
    """What a run of the twin makes of `REWARDS` in its environment, or why it refuses to."""
    asked: dict[str, Any] = {}

    def note(*given: Any, **named: Any) -> None:
        asked.update(inspect.signature(load_task).bind(*given, **named).arguments)
        raise LoadedError

    monkeypatch.setattr(twin, "load_task", note)
    names = {field for field in RULE if hasattr(twin.TrainConfig, field)}
    config = twin.TrainConfig(env=env, **{name: RULE[name] for name in names}, **settings)
    with pytest.raises(LoadedError):
        twin.train(config)
    change: Callable[[Batch, str], Callable[[float], float]] | None = asked.get("step_rewards")
    if change is None:
        return list(REWARDS)
    try:
        return [float(change(rows(), env)(reward)) for reward in REWARDS]
    except InputError as error:
        return str(error)


@pytest.mark.parametrize("name", NAMES)
def test_both_twins_change_them_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each family of environments, and not at all where the settings say so."""
    pair = PAIRS[name]
    found = {env: changed(pair.torch, env, monkeypatch, normalize_reward=True) for env in ENVS}
    assert found == {env: changed(pair.jax, env, monkeypatch, normalize_reward=True) for env in ENVS}
    assert found[ENVS[0]] != list(REWARDS)
    for twin in (pair.torch, pair.jax):
        assert changed(twin, ENVS[0], monkeypatch, normalize_reward=False) == list(REWARDS)
