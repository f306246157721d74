"""The experience of an offline run that continues online: steps, episodes and their successes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shared.data.experience import KeptSteps, experience_files
from shared.data.returns import EndedBatch
from shared.data.transitions import Batch
from shared.envs.stepping import Stepper
from shared.errors import InputError


class OnlineRows(NamedTuple):
    """N steps in the environment of an offline run that continues online.

    Attributes:
        observations: (N, S) float32, normalised like the dataset's.
        actions: (N, A) float32, as given to the environment.
        rewards: (N,) float32, modified like the dataset's.
        next_observations: (N, S) float32, as returned by the step, also at an episode's end.
        terminals: (N,) bool; false at the time limit, even if the robot falls on that step.
        timeouts: (N,) bool.
        paid: (N,) float64, the environment's own rewards.
        goals: (N,) bool, true if the goal was reached.
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
    """A finished training episode.

    Attributes:
        step: Number of the episode's last step, counted from the first online step.
        earned: The return, by the environment's own rewards.
        length: The number of steps.
        success: Whether a step reached the goal.
        regret: The share of episodes without success up to and including this one.
    """

    step: int
    earned: float
    length: int
    success: bool
    regret: float


class OnlineExperience(KeptSteps[OnlineRows]):
    """The environment in which an offline run continues online, and every step in it.

    Episode k starts from a state that only depends on the seed and k. Therefore a resumed run does not need the
    simulator's state: it restarts the unfinished episode and repeats its actions.

    Attributes:
        episodes: The finished episodes.
        queue: (n, A), chosen actions that `play` has not taken yet; a run that is stopped saves them in its checkpoint.
    """

    def __init__(self, stepper: Stepper, seed: int, capacity: int, switch: int) -> None:
        """Starts the first episode.

        Args:
            stepper: The environment, which normalises states and modifies rewards like the dataset's.
            seed: The seed of the start states.
            capacity: The number of steps in all.
            switch: Updates before the first step.
        """
        super().__init__(stepper, capacity, OnlineRows, "online_iterations")
        self._seed, self._switch = seed, switch
        self.episodes: list[Episode] = []
        self._first = self._failures = 0
        self.queue = self._no_actions()
        self.begin(seed, 0)

    def step(self, action: np.ndarray) -> None:
        """Takes an action (A,) of the policy and stores the step; after the end of an episode, the next one begins."""
        self._keep(self._stepper.step(self._given(action), then=(self._seed, len(self.episodes) + 1)))
        if self.over:
            self._end(self.size)

    def choose(self, actions: np.ndarray) -> None:
        """Stores a policy's actions (n, A), for `play` to take one after the other without asking the policy."""
        self.queue = np.asarray(actions)

    def play(self) -> None:
        """Takes the first action of the queue; the end of an episode empties the queue."""
        action, self.queue = self.queue[0], self.queue[1:]
        self.step(action)
        if self.over:
            self.queue = self._no_actions()

    def _no_actions(self) -> np.ndarray:
        return np.zeros((0, self.action_dim), np.float32)

    def last(self) -> Batch:
        """The last step, as a batch of one."""
        return self.transitions(self.size - 1)

    def in_order(self, first: int = 0) -> EndedBatch:
        """The steps from number `first` on as transitions, with the ends of episodes."""
        rows = self.rows(first)
        return EndedBatch(*self.transitions(first), rows.terminals | rows.timeouts)

    def _end(self, step: int) -> None:
        """Adds the episode that ended with this step, counted from 1."""
        rows = slice(self._first, step)
        success = bool(self._rows.goals[rows].any())
        self._failures += not success
        regret = self._failures / (len(self.episodes) + 1)
        # Summed in order, as the rewards came
        earned = float(np.cumsum(self._rows.paid[rows])[-1])
        self.episodes.append(Episode(step, earned, step - self._first, success, regret))
        self._first = step

    def go_on_from(self, path: str, content: Mapping[str, Any]) -> None:
        """Restores the experience of a run at a checkpoint, even in the middle of an episode.

        Files with later steps, which no checkpoint followed, are removed, because these steps are repeated.

        Args:
            path: The path of the checkpoint.
            content: Its contents, including the number of its update, and the queue if there is one.

        Raises:
            InputError: As for `load`, or the queue is of other actions.
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
        self.queue = np.asarray(content.get("queue", self._no_actions()))
        if self.queue.shape[1:] != (self.action_dim,):
            raise InputError(f"checkpoint {path} is of other actions: set env to its own")
        self.begin(self._seed, len(self.episodes))
        for action in self._rows.actions[self._first : size]:
            self._stepper.step(action)
