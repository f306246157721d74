"""Eight seeds on four devices: each trains as it would alone, and nothing is sent between devices."""

import contextlib
import re
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import Mesh

# JAX refuses if it has already started.
with contextlib.suppress(RuntimeError):
    jax.config.update("jax_num_cpu_devices", 4)

RNG = np.random.default_rng(0)
STATES, REWARDS, SEEDS = RNG.normal(size=(40, 3)), RNG.normal(size=40), np.arange(3, 11)
TALK = re.compile(r"\b(all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(")


def placed(exercise: ModuleType) -> Any:
    devices = jax.devices("cpu")
    if len(devices) < 4:
        pytest.skip("JAX has already started with fewer devices: run this folder on its own")
    return exercise.place(*map(jnp.asarray, (SEEDS, STATES, REWARDS)), Mesh(np.array(devices[:4]), "seeds"))


def test_every_seed_learns_as_pytorch_does(exercise: ModuleType, fragment: ModuleType) -> None:
    """From its first weights, on the rows that it drew."""
    weights, rows = exercise.train_all(*placed(exercise), num_updates=5)
    for i, seed in enumerate(SEEDS):
        given = exercise.fresh(seed, 3), STATES, REWARDS, rows[i]
        theirs = fragment.train(*(torch.as_tensor(np.array(x)) for x in given))
        np.testing.assert_allclose(weights[i], theirs, rtol=1e-10, err_msg=f"the weights of seed {seed} differ")


def test_every_seed_draws_its_own_rows(exercise: ModuleType) -> None:
    """They are those that it draws alone."""
    _, rows = exercise.train_all(*placed(exercise), num_updates=5)
    different = len({np.asarray(each).tobytes() for each in rows})
    assert different == len(SEEDS), f"eight seeds draw {different} different lists of batches"
    _, (alone,) = exercise.train_all(jnp.asarray(SEEDS[5:6]), STATES, REWARDS, num_updates=5)
    assert (alone == rows[5]).all(), "a seed draws other rows when other seeds train with it"


def test_each_device_has_two_seeds(exercise: ModuleType) -> None:
    """Of the result, so that the next interval can begin where this one ended."""
    weights, _ = exercise.train_all(*placed(exercise), num_updates=5)
    held = [shard.data.shape for shard in weights.addressable_shards]
    assert held == [(2, 3)] * 4, f"the devices hold weights of shapes {held}"


def test_nothing_is_sent_between_devices(exercise: ModuleType) -> None:
    """The compiled program has no operation that does so."""
    program = exercise.train_all.lower(*placed(exercise), num_updates=5).compile().as_text()
    found = sorted(set(TALK.findall(program)))
    assert not found, f"the program talks between devices, by {', '.join(found)}"
