"""Bookkeeping of an offline run that continues in its environment: steps, episodes and their successes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shared.data.experience import KeptSteps, experience_files
from shared.data.transitions import Batch
from shared.envs.stepping import Stepper


class OnlineRows(NamedTuple):
    """N steps of the environment that an offline run goes on in.

    Attributes:
        observations: (N, S) float32, normalised as the dataset's.
        actions: (N, A) float32, as the environment got them.
        rewards: (N,) float32, modified as the dataset's.
        next_observations: (N, S) float32, what the step returned, at an episode's end too.
        terminals: (N,) bool; the time limit sets none, nor does a fall on the last step that it allows.
        timeouts: (N,) bool.
        paid: (N,) float64, the environment's own rewards.
        goals: (N,) bool, where the goal was reached.
    """

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_observations: np.ndarray
    terminals: np.ndarray
    timeouts: np.ndarray
    paid: np.ndarray
    goals: np.ndarray


class Episode(NamedTuple):
    """A training episode that is over.

    Attributes:
        step: Environment steps until its end, from the online phase's first.
        earned: Its return, as the environment pays.
        length: Its steps.
        success: Whether a step of it reached the goal.
        regret: The share of episodes without success, of all up to this one.
    """

    step: int
    earned: float
    length: int
    success: bool
    regret: float


class OnlineExperience(KeptSteps[OnlineRows]):
    """The environment that an offline run continues in, and every step in it.

    Episode k starts from a state that follows from the seed and k alone. So a run that was cut needs no simulator's
    state: it begins the episode that went on once more and takes the same actions.

    Attributes:
        episodes: Those that are over.
    """

    def __init__(self, stepper: Stepper, seed: int, capacity: int, switch: int) -> None:
        """Stands at the start of the first episode.

        Args:
            stepper: The environment, which normalises states and modifies rewards as the dataset's were.
            seed: Decides the start states.
            capacity: Steps in all.
            switch: Updates before the first step.
        """
        super().__init__(stepper, capacity, OnlineRows, "online_iterations")
        self._seed, self._switch = seed, switch
        self.episodes: list[Episode] = []
        self._first = self._failures = 0
        self.begin(seed, 0)

    def step(self, action: np.ndarray) -> None:
        """Takes an action (A,) of the policy and keeps what comes of it; after an episode's end the next one begins."""
        self._keep(self._stepper.step(self._given(action), then=(self._seed, len(self.episodes) + 1)))
        if self.over:
            self._end(self.size)

    def last(self) -> Batch:
        """The last step, as a batch of one."""
        return self.transitions(self.size - 1)

    def _end(self, step: int) -> None:
        """Enters the episode that ended with the step of this number, from 1."""
        rows = slice(self._first, step)
        success = bool(self._rows.goals[rows].any())
        self._failures += not success
        regret = self._failures / (len(self.episodes) + 1)
        # Added up one after the other, as they came.
        earned = float(np.cumsum(self._rows.paid[rows])[-1])
        self.episodes.append(Episode(step, earned, step - self._first, success, regret))
        self._first = step

    def go_on_from(self, path: str, content: Mapping[str, Any]) -> None:
        """Goes back to where the run stood whose checkpoint this is, in the middle of an episode too.

        Files of later steps, which were not followed by a checkpoint, are removed: those steps come again.

        Args:
            path: The checkpoint.
            content: What it holds: the number of its update, with all else.

        Raises:
            InputError: As `load`.
        """
        size = max(0, content["step"] - self._switch)
        folder = Path(path).parent
        self.episodes, self._first, self._failures, self.size = [], 0, 0, 0
        if size:
            self.load(folder, size)
        for number, file in experience_files(folder).items():
            if number > size:
                file.unlink()
        for end in np.flatnonzero(self._rows.terminals[:size] | self._rows.timeouts[:size]) + 1:
            self._end(int(end))
        self.begin(self._seed, len(self.episodes))
        for action in self._rows.actions[self._first : size]:
            self._stepper.step(action)
