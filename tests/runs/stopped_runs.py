"""Shared parts of tests of runs that end early: short runs, and the comparison of two runs with equal settings."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
from flax import serialization

from parity_tests.pairs import PAIRS
from shared.frameworks.twins import load_twin
from shared.runs.settings import RunConfig

# Entries that depend on the machine's speed, and on how many seeds run at once
_TIMES = {"updates_per_second", "seconds", "seeds_at_once"}
# Entries of a checkpoint that belong to its own run
OWN = {"settings", "progress", "seal"}
# Further settings with which a pair learns from an environment's first steps on; DQN waits for more than a batch.
_AT_ONCE = {"online/dqn": {"batch_size": 1}, "sac": {"random_steps": 1, "update_every": 2}}


def config(side: str, name: str, folder: Path, **settings: Any) -> Any:
    """Settings of a short run with small networks."""
    twin = load_twin(side, name)
    short = {"batch_size": 8, "eval_freq": 4, "n_episodes": 2, "device": "cpu", "seed": 1}
    small = PAIRS[name].variants["default"] | PAIRS[name].lasting(settings.pop("max_timesteps", 12))
    given = (
        small
        | short
        | dict(PAIRS[name].settings.get("run", {}))
        | _AT_ONCE.get(name, {})
        | {"runs_path": str(folder)}
        | settings
    )
    if not issubclass(twin.TrainConfig, RunConfig):  # no environment, no episodes in it
        del given["n_episodes"]
    return twin.TrainConfig(**given)


def train(side: str, name: str, folder: Path, **settings: Any) -> Path:
    """Trains to the end; returns the run's folder."""
    twin = load_twin(side, name)
    return twin.train(config(side, name, folder, **settings)).folder


def only_run(folder: Path) -> Path:
    """The only run's folder."""
    (run,) = folder.iterdir()
    return run


def rows(run: Path) -> list[dict[str, Any]]:
    """A run's metrics, without times."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [{key: value for key, value in line.items() if key not in _TIMES} for line in lines]


def read(checkpoint: Path) -> dict[str, Any]:
    """A checkpoint's content, by the framework's own reader."""
    if checkpoint.suffix == ".pt":
        content = torch.load(checkpoint, weights_only=True)
        return jax.tree.map(lambda leaf: leaf.numpy() if torch.is_tensor(leaf) else leaf, content)
    return serialization.msgpack_restore(checkpoint.read_bytes())


def last_checkpoint(run: Path) -> Path:
    """The final checkpoint of a finished run."""
    (found,) = run.glob("checkpoint.*")
    return found


def assert_same_bits(ours: Path, theirs: Path) -> None:
    """Compares two finished runs: every number of their last checkpoints, every metric and evaluation, the scores."""
    assert_same_state(ours, theirs)
    assert rows(ours) == rows(theirs)
    first, second = (json.loads((run / "result.json").read_text()) for run in (ours, theirs))
    assert {key: first[key] for key in first.keys() - _TIMES} == {key: second[key] for key in second.keys() - _TIMES}


def assert_same_state(ours: Path, theirs: Path) -> None:
    """Compares every number of the last checkpoints of two finished runs."""
    first, second = (_shared(read(last_checkpoint(run))) for run in (ours, theirs))
    assert jax.tree.structure(first) == jax.tree.structure(second)
    pairs = zip(jax.tree_util.tree_leaves_with_path(first), jax.tree.leaves(second), strict=True)
    for (path, leaf), expected in pairs:
        np.testing.assert_array_equal(leaf, expected, err_msg=jax.tree_util.keystr(path))


def _shared(content: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key not in OWN}
