"""Shared parts of the derivations for online twins: a deterministic environment, and the loop.

The loop is CORL's, with separate arrays. It steps the environment, normalises, stores, draws and passes batches to a
derivation's update. A run of the twin must have stored the same rows and drawn the same batches.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

import gymnasium
import h5py
import numpy as np
import pytest
import torch
from torch import Tensor

from parity_tests.reference.common import ACTION_DIM, STATE_DIM
from shared.envs import families

# An environment with scaled rewards, and its time limit
ENV_ID, LIMIT = "reference/hopper-line", 5
# The same environment with shifted rewards
ANTMAZE_ID = "reference/antmaze-line"
# Rows of the dataset, and of the ring, which is full before the online phase ends
ROWS, CAPACITY = 60, 72


class Line(gymnasium.Env):
    """Moves by its actions; of three episodes, one ends early, one by the time limit, and one at the last step."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (STATE_DIM,), np.float64)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (ACTION_DIM,), np.float32)

    def __init__(self) -> None:
        self.episode, self.moves, self.state = -1, 0, np.zeros(STATE_DIM)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """Starts in a state that depends only on the episode's number."""
        self.episode, self.moves = self.episode + 1, 0
        self.state = np.sin(np.arange(STATE_DIM) + 0.1 * self.episode)
        return self.state.copy(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Gives rewards in double precision that single precision would round."""
        self.moves += 1
        self.state = 0.9 * self.state + 0.1 * np.resize(np.asarray(action, np.float64), STATE_DIM)
        fell = self.moves == (3, 99, LIMIT)[self.episode % 3]
        return self.state.copy(), float(1.0 + self.state.sum() / 3.0), fell, False, {}


for _name in (ENV_ID, ANTMAZE_ID):
    gymnasium.register(_name, entry_point=f"{__name__}:Line", max_episode_steps=LIMIT)
# A run treats them as the tasks that they are named after, and modifies their rewards accordingly.
TABLE = MappingProxyType(
    {**families.TABLE, ENV_ID: families.TABLE["Hopper-v5"], ANTMAZE_ID: families.TABLE["antmaze-umaze-v2"]}
)


class Lived(NamedTuple):
    """The result of a loop: the batch (s, a, r, s', d) of every update, and the ring's columns at the end."""

    batches: list[tuple[Tensor, ...]]
    ring: list[np.ndarray]


def write_dataset(path: Path) -> dict[str, np.ndarray]:
    """Writes a file with a few episodes, each ended by a fall, and returns its content."""
    rng, size = np.random.default_rng(4), ROWS + 1
    raw = {
        "observations": rng.normal(1.0, 2.0, size=(size, STATE_DIM)).astype(np.float32),
        "actions": rng.uniform(-1, 1, size=(size, ACTION_DIM)).astype(np.float32),
        "rewards": rng.normal(size=size).astype(np.float32),
        "terminals": np.arange(size) % 12 == 11,
        "timeouts": np.zeros(size, bool),
    }
    with h5py.File(path, "w") as file:
        for name, values in raw.items():
            file[name] = values
        file.attrs["env_id"] = ENV_ID
    return raw


def run_of(twin: ModuleType, trainer_class: Any, config: Any) -> tuple[Lived, Any, Callable[[], None]]:
    """Runs the PyTorch twin.

    Returns:
        The result, a copy of the fresh trainer, and a function that restores the generators' states of that moment.
    """
    batches, rings, fresh, generators = [], [], [], []

    with patched((families, "TABLE", TABLE)), pytest.MonkeyPatch.context() as patch:
        create, update, ring = twin.create_trainer, trainer_class.update, twin.Ring

        def recording_create(*args: Any) -> Any:
            trainer = create(*args)
            fresh.append(copy.deepcopy(trainer))
            generators.append((np.random.get_state(), torch.get_rng_state()))
            return trainer

        def recording_update(self: Any, batch: Any, *args: Any) -> Any:
            batches.append(tuple(column.clone() for column in batch))
            return update(self, batch, *args)

        def recording_ring(*args: Any, **named: Any) -> Any:
            rings.append(ring(*args, **named))
            return rings[-1]

        patch.setattr(twin, "create_trainer", recording_create)
        patch.setattr(trainer_class, "update", recording_update)
        patch.setattr(twin, "Ring", recording_ring)
        twin.train(config)

    def as_it_was() -> None:
        np.random.set_state(generators[0][0])
        torch.set_rng_state(generators[0][1])

    return Lived(batches, [np.asarray(column) for column in rings[0].rows]), fresh[0], as_it_was


def derived(
    config: Any,
    raw: dict[str, np.ndarray],
    act: Callable[[Tensor], Tensor],
    update: Callable[..., Any],
    added: float | None = None,
) -> Lived:
    """CORL's loop over one ring: `act` draws and makes an action (1, A) for a state (1, S), `update` takes a batch.

    If a number is `added` to rewards, they are not scaled, regardless of the config.
    """
    states, following = raw["observations"][:-1], raw["observations"][1:]
    mean, std = np.zeros(STATE_DIM, np.float32), np.ones(STATE_DIM, np.float32)
    if getattr(config, "normalize", True):  # AWAC always does
        mean, std = states.mean(0), states.std(0) + 1e-3
    done, rewards = raw["terminals"][:-1].astype(np.float32), raw["rewards"][:-1]
    episodes = np.split(rewards.astype(np.float64), np.flatnonzero(done) + 1)[:-1]
    returns = [episode.sum() for episode in episodes]
    spread = max(returns) - min(returns)
    # Only CQL and Cal-QL have these settings.
    factor, shift = getattr(config, "reward_scale", 1.0), getattr(config, "reward_bias", 0.0)
    scaled = config.normalize_reward and added is None
    if scaled:
        rewards = rewards / np.float32(spread) * np.float32(1000)
        rewards = rewards * np.float32(factor) + np.float32(shift)
    rewards = rewards + np.float32(added or 0.0)
    columns = [(states - mean) / std, raw["actions"][:-1], rewards, (following - mean) / std, done]
    ring = [np.zeros((CAPACITY, *column.shape[1:]), np.float32) for column in columns]
    for whole, column in zip(ring, columns, strict=True):
        whole[:ROWS] = column
    size, pointer, batches = ROWS, ROWS, []
    env, moves = Line(), 0
    state, _ = env.reset()
    state = (state - mean) / std
    for t in range(config.max_timesteps):
        if t >= config.switch:
            moves += 1
            action = act(torch.tensor(state[None], dtype=torch.float32))[0].numpy()
            after, reward, ended, *_ = env.step(action)
            after = (after - mean) / std
            real = ended and moves < LIMIT
            learnt = reward / spread * 1000 * factor + shift if scaled else reward + (added or 0.0)
            for whole, value in zip(ring, (state, action, learnt, after, real), strict=True):
                whole[pointer] = value
            pointer, size = (pointer + 1) % CAPACITY, min(size + 1, CAPACITY)
            state = after
            if ended or moves == LIMIT:
                state, moves = env.reset()[0], 0
                state = (state - mean) / std
        indices = np.random.randint(0, size, size=config.batch_size)
        s, a, r, s2, d = (torch.tensor(column[indices]) for column in ring)
        batches.append((s, a, r, s2, d))
        update(s, a, r[:, None], s2, d[:, None])
    return Lived(batches, ring)


def assert_same_life(ours: Lived, theirs: Lived) -> None:
    """Checks that all batches and rows are bitwise equal."""
    assert len(ours.batches) == len(theirs.batches)
    for step, (mine, other) in enumerate(zip(ours.batches, theirs.batches, strict=True), start=1):
        for column, (a, b) in enumerate(zip(mine, other, strict=True)):
            assert torch.equal(a, b), f"update {step}: column {column} of its batch"
    for column, (a, b) in enumerate(zip(ours.ring, theirs.ring, strict=True)):
        np.testing.assert_array_equal(a, b, err_msg=f"column {column} of the ring")


def assert_close_life(ours: Lived, theirs: Lived) -> None:
    """Checks that all batches and rows are equal in single precision, because the policies' last bits are rounded."""
    assert len(ours.batches) == len(theirs.batches)
    for step, (mine, other) in enumerate(zip(ours.batches, theirs.batches, strict=True), start=1):
        for column, (a, b) in enumerate(zip(mine, other, strict=True)):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6, err_msg=f"update {step}: column {column}")
    for column, (a, b) in enumerate(zip(ours.ring, theirs.ring, strict=True)):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6, err_msg=f"column {column} of the ring")


@contextmanager
def patched(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Replaces attributes for a while, to plant a mistake in code that all twins share."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, value in changes:
            patch.setattr(owner, name, value)
        yield
