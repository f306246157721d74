"""Whole episodes of a policy, recorded part by part; a part that is on disk is not recorded again."""

import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from shared.commands.collecting.agents import Acting
from shared.data.experience import Experience, Rows
from shared.envs.boxes import ActionUnits
from shared.envs.registry import MAX_EPISODE_STEPS, time_limit
from shared.errors import InputError
from shared.files import write_atomically
from shared.runs.progress import warn
from shared.seals import read_verified, sealed_zip

EPISODES = 10
"""Episodes of a part: they are stepped together, so that the policy is asked once for all of them."""


class Recorder:
    """Records one policy in one environment: part after part, each from a seed of its own.

    Attributes:
        seed: Decides, with a part's number, the start states and the noise.
    """

    def __init__(
        self, env_id: str, load: Callable[[], Acting], seed: int, folder: Path, units: ActionUnits | None = None
    ) -> None:
        """Records nothing yet.

        Args:
            env_id: The environment; one without a time limit is cut after `MAX_EPISODE_STEPS`.
            load: Makes the policy, if there is something to record.
            seed: As above, 0 or more.
            folder: Where parts lie.
            units: From the policy's actions to the environment's; None: they are the same.
        """
        self._env_id, self._load, self._folder, self._units = env_id, load, folder, units
        self._policy: Acting | None = None
        self._limit = time_limit(env_id) or MAX_EPISODE_STEPS
        self.seed = seed

    def part(self, number: int) -> list[Rows]:
        """The `EPISODES` episodes of a part, from disk if they are there and whole."""
        path = self._folder / f"part_{number}.npz"
        if path.exists():
            try:
                return _read(path)
            except InputError as error:
                warn(f"{error}; its episodes are recorded again")
        content = io.BytesIO()
        np.savez(content, **joined(self._play(number))._asdict())
        write_atomically(path, sealed_zip(content.getbuffer()))
        return _read(path)

    def record(self, size: int, words: str) -> list[Rows]:
        """As many episodes as it takes until D4RL's reader keeps `size` rows of them.

        It drops each timeout row and the last row of a file, so those do not count.

        Args:
            size: Rows, 1 or more.
            words: Beside the progress bar.
        """
        episodes, missing = [], size + 1
        # A bar redrawn into a log file would flood it, so there is one on terminals only.
        with tqdm(total=size, desc=words, unit=" rows", disable=None) as bar:
            for episode in self._episodes():
                episodes.append(episode)
                kept = int((~episode.timeouts).sum())
                bar.update(min(kept, missing))
                missing -= kept
                if missing <= 0:
                    return episodes
        raise AssertionError("parts never end")

    def _episodes(self) -> Iterator[Rows]:
        number = 0
        while True:
            yield from self.part(number)
            number += 1

    def _play(self, number: int) -> list[Rows]:
        self._policy = self._policy or self._load()
        rng = np.random.default_rng([self.seed, number])
        episodes = [Experience(self._env_id, self._limit, units=self._units) for _ in range(EPISODES)]
        for index, episode in enumerate(episodes):
            episode.begin(self.seed, number, index)
        while not all(episode.over for episode in episodes):
            # Those that are over keep their row: a compiled policy is traced once per shape.
            observations = np.stack([episode.observation for episode in episodes])
            for episode, action in zip(episodes, self._policy(observations, rng), strict=True):
                if not episode.over:
                    episode.step(action)
                if episode.size == self._limit:
                    episode.cut()
        for episode in episodes:
            episode.close()
        return [episode.rows() for episode in episodes]


def _read(path: Path) -> list[Rows]:
    """The episodes of a part's file.

    Raises:
        InputError: It is cut or damaged, or holds something else.
    """
    try:
        content = np.load(io.BytesIO(read_verified(path)), allow_pickle=False)
        episodes = split(Rows(*(content[name] for name in Rows._fields)))
    except (InputError, OSError):
        raise
    except Exception as error:  # NumPy and zipfile raise a dozen unrelated types on damaged bytes
        raise InputError(f"{path} is damaged") from error
    if len(episodes) != EPISODES:
        raise InputError(f"{path} does not hold {EPISODES} episodes")
    return episodes


def joined(episodes: list[Rows]) -> Rows:
    """Episodes one after the other."""
    return Rows(*(np.concatenate(columns) for columns in zip(*episodes, strict=True)))


def split(rows: Rows) -> list[Rows]:
    """The episodes of rows whose last one ends an episode."""
    ends = np.flatnonzero(rows.terminals | rows.timeouts) + 1
    return [Rows(*(column[begin:end] for column in rows)) for begin, end in zip([0, *ends[:-1]], ends, strict=True)]


def spread(episodes: list[Rows], size: int) -> list[Rows]:
    """Whole episodes of `size` rows at most in all, evenly spread over all of them."""
    lengths = [len(episode.rewards) for episode in episodes]
    share, seen, kept, chosen = min(1.0, size / sum(lengths)), 0, 0, []
    for episode, length in zip(episodes, lengths, strict=True):
        seen += length
        if kept + length <= round(share * seen):
            kept += length
            chosen.append(episode)
    return chosen


def returns_of(episodes: list[Rows]) -> np.ndarray:
    """Undiscounted return of each episode, float64 (len(episodes),)."""
    return np.array([episode.rewards.sum(dtype=np.float64) for episode in episodes])


def described(rewards: Sequence[np.ndarray]) -> dict[str, Any]:
    """The attributes of one part of a file, given the rewards (n,) of each episode."""
    returns = [values.sum(dtype=np.float64) for values in rewards]
    return {
        "return_mean": float(np.mean(returns)),
        "return_std": float(np.std(returns)),
        "episodes": len(rewards),
        "rows": sum(map(len, rewards)),
    }
