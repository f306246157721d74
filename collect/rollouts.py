"""Whole episodes of a policy, and the file of D4RL's layout that they go into."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import h5py
import numpy as np

from collect.sac import Params, act


class Episode(NamedTuple):
    """T steps from a reset to a fall or the time limit; the last row has one of the two flags, never both.

    float32 arrays but for the flags: observations (T, S), actions (T, A), rewards (T,), next_observations (T, S),
    terminals (T,) and timeouts (T,) bool, and each row's simulator state qpos (T, Q) and qvel (T, V).
    """

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_observations: np.ndarray
    terminals: np.ndarray
    timeouts: np.ndarray
    qpos: np.ndarray
    qvel: np.ndarray


def play_episode(env: gymnasium.Env, actor: Params, rng: np.random.Generator) -> Episode:
    """One episode of the stochastic policy; `rng` decides the start state and the actions."""
    observation, _ = env.reset(seed=int(rng.integers(2**31)))
    data, rows, over = env.unwrapped.data, [], False
    while not over:
        noise = rng.standard_normal(env.action_space.shape).astype(np.float32)
        action = np.asarray(act(actor, observation.astype(np.float32), noise))
        qpos, qvel = data.qpos.copy(), data.qvel.copy()
        next_observation, reward, fell, timeout, _ = env.step(action)
        # D4RL's collector asked for the time limit first: a fall on the last step counts as a timeout.
        flags = fell and not timeout, timeout
        rows.append((observation, action, reward, next_observation, *flags, qpos, qvel))
        observation, over = next_observation, fell or timeout
    dtypes = Episode(*[np.float32] * 4, bool, bool, *[np.float32] * 2)
    return Episode(*(np.array(column, dtype) for column, dtype in zip(zip(*rows, strict=True), dtypes, strict=True)))


def play_episodes(env: gymnasium.Env, actor: Params, seed: int, count: int) -> list[Episode]:
    """`count` episodes of the stochastic policy; the same for the same seed."""
    rng = np.random.default_rng(seed)
    return [play_episode(env, actor, rng) for _ in range(count)]


def record(env: gymnasium.Env, actor: Params, seed: int, transitions: int) -> Iterator[Episode]:
    """Episodes until a learner has `transitions` rows.

    D4RL's reader drops each timeout row and the last row of a file, so those do not count.
    """
    rng = np.random.default_rng(seed)
    missing = transitions + 1
    while missing > 0:
        episode = play_episode(env, actor, rng)
        missing -= len(episode.rewards) - int(episode.timeouts.sum())
        yield episode


def returns_of(episodes: list[Episode]) -> np.ndarray:
    """Undiscounted return of each episode, float64 (len(episodes),)."""
    return np.array([episode.rewards.sum(dtype=np.float64) for episode in episodes])


def write_dataset(path: Path, episodes: list[Episode], attributes: dict[str, Any]) -> None:
    """Writes episodes one after the other as D4RL's v2 locomotion files hold them, and the file's attributes.

    A file that is there is replaced when the new one is complete.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with h5py.File(unfinished, "w") as file:
            file.attrs.update(attributes)
            for name, parts in zip(Episode._fields, zip(*episodes, strict=True), strict=True):
                key = f"infos/{name}" if name in ("qpos", "qvel") else name
                _write_array(file, key, np.concatenate(parts))
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _write_array(file: h5py.File, key: str, array: np.ndarray) -> None:
    """One chunk per column: numbers of one kind side by side compress best."""
    chunks = (len(array), *(1 for _ in array.shape[1:]))
    file.create_dataset(key, data=array, chunks=chunks, compression="gzip", compression_opts=9, shuffle=True)
