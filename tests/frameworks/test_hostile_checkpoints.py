"""Checkpoints of the right format with wrong content are refused in one line, before anything is changed.

Each entry of a whole checkpoint, at any depth, is removed or replaced. It must be possible to train on from any file
that is accepted.
"""

import copy
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from flax import serialization

from parity_tests.pairs import PAIRS
from shared.errors import InputError
from shared.frameworks import jax_checkpoints, torch_checkpoints
from shared.frameworks.exchange import blank_state
from shared.frameworks.saved_run import SavedRun
from tests.runs.stopped_runs import only_run, read, train
from tests.runs.test_checkpoints import ACTION_DIM, STATE_DIM, STATISTICS, numbers, proceed, settings, trained
from tests.runs.test_resume import evaluation_fails

pytestmark = pytest.mark.usefixtures("in_haste")

CASES = 80
REMOVED = object()
FACTS = {
    **STATISTICS,
    "step": 3,
    "settings": {"seed": 0},
    "dataset": {"name": "x"},
    "environment": {"id": "d4rl/hopper-v2", "state_dim": STATE_DIM, "action_dim": ACTION_DIM, "max_action": 1.0},
    "versions": {"numpy": "2.0"},
    "progress": {"metrics_size": 0, "updates": 3, "seconds": 1.0, "evaluating": 0.5},
}


def places(content: Any, where: tuple = ()) -> Iterator[tuple]:
    """The keys that lead to every entry, at any depth."""
    if where:
        yield where
    if isinstance(content, dict | list | tuple):
        items = content.items() if isinstance(content, dict) else enumerate(content)
        for key, value in items:
            yield from places(value, (*where, key))


def replacements(value: Any) -> list[Any]:
    """Possible replacements of an entry."""
    found = [REMOVED, None, True, -1, 7, 0.5, math.nan, math.inf, "text", b"bytes", [], {}, [1, 2], {"a": 1}]
    if isinstance(value, torch.Tensor):
        found += [value.to(torch.complex64), value.to(torch.int64), value * math.nan, value[None], value.flatten()[:-1]]
    if isinstance(value, np.ndarray):
        found += [value.astype(np.complex64), value.astype(np.int64), value * np.nan, value[None], value.ravel()[:-1]]
    return found


def replaced(content: Any, where: tuple, value: Any) -> Any:
    """A copy with one entry replaced."""
    first, *rest = where
    if isinstance(content, tuple):
        changed = replaced(list(content), where, value)
        return tuple(changed)
    content = copy.copy(content)
    if rest:
        content[first] = replaced(content[first], tuple(rest), value)
    elif value is REMOVED:
        del content[first]
    else:
        content[first] = value
    return content


def entry(content: Any, where: tuple) -> Any:
    """The entry at the end of these keys."""
    for key in where:
        content = content[key]
    return content


def corpus(content: Any) -> Iterator[tuple[tuple, Any, Any]]:
    """A sample of all replacements, the same each time: the place, the replacement, and the resulting content."""
    rng, found = random.Random(0), list(places(content))
    for _ in range(CASES):
        where = rng.choice(found)
        value = rng.choice(replacements(entry(content, where)))
        yield where, value, replaced(content, where, value)


def refused(load: Callable[[], None], what: str) -> bool:
    """Whether loading ends in one line; any other end except success fails the test."""
    try:
        load()
    except InputError as error:
        message = str(error)
        return ("\n" not in message and len(message) < 500) or pytest.fail(message)
    except Exception as error:
        pytest.fail(f"{what}: {type(error).__name__}: {error}")
    return False


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["td3_bc", "iql"])
def test_torch_loads_what_it_can_train_on_and_refuses_the_rest(name: str, tmp_path: Path) -> None:
    """A refused file leaves the trainer as it was."""
    pair, path = PAIRS[name], tmp_path / "checkpoint.pt"
    history = [{"loss": torch.ones(())}] * 2
    pair.torch.save(trained(pair, 2), path, **FACTS, history=history)
    content = torch.load(path, weights_only=True)
    outcomes = set()
    trainer = trained(pair, 1, seed=9)
    for where, value, changed in corpus(content):
        before, updates = numbers(trainer), trainer.total_it
        torch.save(changed, path)

        def load() -> None:
            loaded = pair.torch.load(trainer, str(path))
            if "generators" in loaded:
                torch_checkpoints.restore_generators(loaded["generators"])
            proceed(pair, trainer, 1)

        outcome = refused(load, f"{where} = {value!r}")
        outcomes.add(outcome)
        if outcome:
            assert all(torch.equal(a, b) for a, b in zip(before, numbers(trainer), strict=True)), (where, value)
            assert trainer.total_it == updates
    assert outcomes == {True, False}


def test_jax_loads_what_it_can_train_on_and_refuses_the_rest(tmp_path: Path) -> None:
    """Everything that it loads has the shapes and types for which the updates are compiled."""
    name = "edac"
    pair, path = PAIRS[name], tmp_path / "checkpoint.msgpack"
    state = blank_state(pair.jax, pair.jax.TrainConfig(**settings(pair)), STATE_DIM, ACTION_DIM)
    jax_checkpoints.save_checkpoint(path, name, state, 2, **FACTS)
    content = serialization.msgpack_restore(path.read_bytes())
    like = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), state)
    outcomes = set()
    for where, value, changed in corpus(content):
        path.write_bytes(serialization.msgpack_serialize(changed))

        def load() -> None:
            found = jax_checkpoints.load_checkpoint(str(path), name, state)
            assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), found["state"]) == like
            assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found["state"]))
            assert found["total_it"] >= 0

        outcomes.add(refused(load, f"{where} = {value!r}"))
    assert outcomes == {True, False}


def test_bytes_for_a_name_are_unknown(tmp_path: Path) -> None:
    """MessagePack allows them as keys."""
    pair, path = PAIRS["td3_bc"], tmp_path / "checkpoint.msgpack"
    state = blank_state(pair.jax, pair.jax.TrainConfig(**settings(pair)), STATE_DIM, ACTION_DIM)
    jax_checkpoints.save_checkpoint(path, "td3_bc", state, 2, **FACTS)
    content = serialization.msgpack_restore(path.read_bytes())
    content["state"]["actor"]["params"]["surplus"] = np.zeros(1, np.float32)
    # A text of seven letters, as seven bytes
    path.write_bytes(serialization.msgpack_serialize(content).replace(b"\xa7surplus", b"\xc4\x07surplus"))
    with pytest.raises(InputError, match="does not fit this run's networks"):
        jax_checkpoints.load_checkpoint(str(path), "td3_bc", state)


# ---- whole runs ----------------------------------------------------------------------------------------------------

Change = Callable[[dict[str, Any]], None]

# Possible replacements of an entry that a run writes, and the word that the message must contain
BROKEN: dict[str, tuple[Change, str]] = {
    "no progress": (lambda content: content.update(progress={}), "progress.metrics_size"),
    "text for the count": (lambda content: content.update(total_it="many"), "total_it"),
    "no deviation": (lambda content: content.update(state_std=0 * content["state_std"]), "state_std"),
    "no number": (lambda content: content.update(state_mean=np.nan * content["state_mean"]), "state_mean"),
    "versions": (lambda content: content.update(versions=3), "versions"),
    "negative step": (lambda content: content.update(step=-1), "step"),
}


def write(path: Path, content: dict[str, Any]) -> None:
    """Writes a file without a seal, as if from a stranger."""
    if path.suffix == ".pt":
        tensors = jax.tree.map(lambda leaf: torch.as_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf, content)
        torch.save(tensors, path)
    else:
        content.pop("seal", None)
        path.write_bytes(serialization.msgpack_serialize(content))


@pytest.mark.thorough
@pytest.mark.parametrize("side", ["torch", "jax"])
def test_a_run_goes_on_from_no_broken_checkpoint(side: str, tmp_path: Path) -> None:
    """Resumed by name, loaded as a model, or played: each ends in one line that names the entry."""
    with evaluation_fails(1), pytest.raises(ZeroDivisionError):
        train(side, "td3_bc", tmp_path)
    run = only_run(tmp_path)
    (path,) = (run / "checkpoints").iterdir()
    whole = read(path)
    for name, (change, word) in BROKEN.items():
        content = copy.copy(whole)
        change(content)
        write(path, content)
        with pytest.raises(InputError, match=word):
            train(side, "td3_bc", tmp_path, resume=str(run))
        with pytest.raises(InputError, match=word):
            train(side, "td3_bc", tmp_path / name, load_model=str(path))
        assert not (tmp_path / name).exists()
        with pytest.raises(InputError, match=word):
            SavedRun.open(path)
    write(path, whole)
    train(side, "td3_bc", tmp_path, resume=str(run))
