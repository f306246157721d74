"""Records whole episodes of a policy in parts; a part that is on disk is not recorded again."""

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
"""Episodes in a part, which are stepped together, so that one call of the policy serves all."""


class Recorder:
    """Records one policy in one environment, in parts with separate seeds.

    Attributes:
        seed: Determines the start states and the noise, together with a part's number.
    """

    def __init__(
        self, env_id: str, load: Callable[[], Acting], seed: int, folder: Path, units: ActionUnits | None = None
    ) -> None:
        """Records nothing yet.

        Args:
            env_id: The environment; without its own time limit, episodes are cut after `MAX_EPISODE_STEPS`.
            load: Loads the policy, when there is something to record.
            seed: Determines the start states and the noise, 0 or more.
            folder: The folder of the parts' files.
            units: Converts the policy's actions to the environment's; None if they are the same.
        """
        self._env_id, self._load, self._folder, self._units = env_id, load, folder, units
        self._policy: Acting | None = None
        self._limit = time_limit(env_id) or MAX_EPISODE_STEPS
        self.seed = seed

    def part(self, number: int) -> list[Rows]:
        """The `EPISODES` episodes of a part, from disk if they are there and undamaged."""
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
        """Records episodes until D4RL's reader would keep `size` of their rows.

        The reader drops each timeout row and the last row of a file, so those do not count.

        Args:
            size: Number of rows, 1 or more.
            words: Description for the progress bar.
        """
        episodes, missing = [], size + 1
        # A bar that is redrawn would flood a log file, so only terminals get one.
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
            # Finished episodes keep their rows, because a compiled policy is traced once per shape.
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
    """Reads the episodes in a part's file.

    Raises:
        InputError: The file is truncated, damaged or has other contents.
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
    """Concatenates episodes."""
    return Rows(*(np.concatenate(columns) for columns in zip(*episodes, strict=True)))


def split(rows: Rows) -> list[Rows]:
    """Splits rows into episodes; the last row must end an episode."""
    ends = np.flatnonzero(rows.terminals | rows.timeouts) + 1
    return [Rows(*(column[begin:end] for column in rows)) for begin, end in zip([0, *ends[:-1]], ends, strict=True)]


def spread(episodes: list[Rows], size: int) -> list[Rows]:
    """Selects whole episodes, evenly spread over all, with at most `size` rows in total."""
    lengths = [len(episode.rewards) for episode in episodes]
    share, seen, kept, chosen = min(1.0, size / sum(lengths)), 0, 0, []
    for episode, length in zip(episodes, lengths, strict=True):
        seen += length
        if kept + length <= round(share * seen):
            kept += length
            chosen.append(episode)
    return chosen


def returns_of(episodes: list[Rows]) -> np.ndarray:
    """The undiscounted return of each episode, float64 (len(episodes),)."""
    return np.array([episode.rewards.sum(dtype=np.float64) for episode in episodes])


def described(rewards: Sequence[np.ndarray]) -> dict[str, Any]:
    """The attributes of one part of a file, computed from the rewards (n,) of each episode."""
    returns = [values.sum(dtype=np.float64) for values in rewards]
    return {
        "return_mean": float(np.mean(returns)),
        "return_std": float(np.std(returns)),
        "episodes": len(rewards),
        "rows": sum(map(len, rewards)),
    }
