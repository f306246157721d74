"""An online run's experience: the steps of one environment, as rows, and their files."""

import io
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from shared.data.transitions import Batch
from shared.envs.boxes import ActionUnits
from shared.envs.spaces import axes, kept_as
from shared.envs.stepping import Step, Stepper
from shared.errors import InputError
from shared.files import write_atomically
from shared.seals import read_verified, sealed_zip

R = TypeVar("R", bound=tuple)
_FILE = re.compile(r"experience_(\d+)\.npz")


class Rows(NamedTuple):
    """N consecutive environment steps; float32 except for the two flags.

    Attributes:
        observations: (N, S); images (N, C, H, W) are bytes.
        actions: (N, A), as given to the environment; (N,) int64 if actions are finite.
        rewards: (N,).
        next_observations: The same shape as `observations`.
        terminals: (N,) bool, true if the robot fell or the goal was reached.
        timeouts: (N,) bool, true if the time limit, or the run, cut the episode; never together with `terminals`.
        qpos: (N, Q), the simulator's positions before the step; Q is 0 outside MuJoCo.
        qvel: (N, V), the simulator's velocities before the step.
    """

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_observations: np.ndarray
    terminals: np.ndarray
    timeouts: np.ndarray
    qpos: np.ndarray
    qvel: np.ndarray


# A step's names for the columns
_OF_A_STEP = {
    "observations": "observation",
    "actions": "action",
    "rewards": "reward",
    "next_observations": "next_observation",
    "terminals": "terminal",
    "timeouts": "timeout",
    "qpos": "qpos",
    "qvel": "qvel",
    "paid": "paid",
    "goals": "goal",
}


def _names(kind: Any) -> tuple[str, ...]:
    """The columns of a named tuple, whose type cannot be expressed."""
    return kind._fields


class KeptSteps(Generic[R]):
    """Steps an environment and stores every step, in memory and in files.

    Attributes:
        size: Number of steps so far.
        action_dim: A.
    """

    def __init__(self, stepper: Stepper, capacity: int, kind: type[R], setting: str = "max_timesteps") -> None:
        """Allocates memory for `capacity` steps; call `begin` before the first step.

        Args:
            stepper: The environment.
            capacity: The most steps.
            kind: A named tuple of columns, such as `Rows`.
            setting: The setting that determines the capacity, for messages.
        """
        self._stepper, self._kind, self._setting = stepper, kind, setting
        self.action_dim = stepper.actions.size
        self.size = 0
        (positions, velocities), seen = stepper.physics_dims, kept_as(stepper.state_dim)
        observations = (capacity, *axes(stepper.state_dim))
        columns: dict[str, np.ndarray] = {
            "observations": np.zeros(observations, seen),
            "actions": np.zeros((capacity, *stepper.actions.shape), stepper.actions.dtype),
            "rewards": np.zeros(capacity, np.float32),
            "next_observations": np.zeros(observations, seen),
            "terminals": np.zeros(capacity, bool),
            "timeouts": np.zeros(capacity, bool),
            "qpos": np.zeros((capacity, positions), np.float32),
            "qvel": np.zeros((capacity, velocities), np.float32),
            "paid": np.zeros(capacity),
            "goals": np.zeros(capacity, bool),
        }
        self._rows: Any = kind(*(columns[name] for name in _names(kind)))
        # Steps in this experience's files, by folder; other files in a folder may belong to other experiences
        self._saved: dict[Path, int] = {}

    @property
    def observation(self) -> np.ndarray:
        """The current observation, (S,) float32 or (C, H, W) bytes."""
        return self._stepper.observation

    @property
    def over(self) -> bool:
        """Whether the last step ended its episode."""
        last = self.size - 1
        return self.size > 0 and bool(self._rows.terminals[last] or self._rows.timeouts[last])

    def begin(self, *seeds: int) -> None:
        """Starts an episode; it and all later ones only depend on these numbers."""
        self._stepper.begin(*seeds)

    def intervals(self, config: Any, began: int | None) -> Iterator[tuple[int, int]]:
        """Yields the interval before each evaluation of an online run: the steps before it, and at its end.

        Each interval begins with a new episode, whose start only depends on the seed and the number of steps. If a run
        was stopped within an interval, its steps are repeated without learning from them.

        Args:
            config: Has `seed`, `max_timesteps` and `eval_freq`.
            began: The steps before the interval in which the run was stopped; None if it was not stopped in one.
        """
        start = self.size if began is None else began
        while start < config.max_timesteps:
            self.begin(config.seed, start)
            for action in self._rows.actions[start : self.size]:
                self._stepper.step(action)
            yield start, (start := min(start + config.eval_freq, config.max_timesteps))

    def _given(self, action: np.ndarray) -> np.ndarray:
        """Converts a policy's action to the environment's."""
        return self._stepper.units.given(np.asarray(action, self._stepper.actions.dtype))

    def _keep(self, step: Step) -> None:
        for name, column in zip(_names(self._kind), self._rows, strict=True):
            column[self.size] = getattr(step, _OF_A_STEP[name])
        self.size += 1

    def rows(self, first: int = 0) -> R:
        """The stored steps from number `first` on."""
        return self._kind(*(column[first : self.size] for column in self._rows))

    def transitions(self, first: int = 0) -> Batch:
        """The steps from number `first` on as transitions, including ends of episodes, in the policy's units."""
        batch = Batch(*(getattr(self.rows(first), name) for name in Batch._fields))
        return batch._replace(actions=self._stepper.units.learnt(batch.actions))

    def save(self, folder: Path) -> None:
        """Writes the steps that the folder lacks to `experience_<size>.npz`, sealed and atomically."""
        saved = self._saved.get(folder, 0)
        if saved < self.size:
            content = io.BytesIO()
            np.savez(content, **dict(zip(_names(self._kind), self.rows(saved), strict=True)))
            write_atomically(folder / f"experience_{self.size}.npz", sealed_zip(content.getbuffer()))
            self._saved[folder] = self.size

    def load(self, folder: Path, size: int) -> None:
        """Restores the first `size` steps of a run from its files in a folder; call `begin` next.

        Raises:
            InputError: The capacity is too small, or the files are missing or do not match.
        """
        if size > len(self._rows.rewards):
            raise InputError(f"the checkpoint has {size} environment steps: set {self._setting} to at least that")
        for column, values in zip(self._rows, load_rows(folder, size, self._kind), strict=True):
            if column.shape[1:] != values.shape[1:]:
                raise InputError(f"{folder} holds another environment's experience: set env to its own")
            column[:size] = values
        self.size = self._saved[folder] = size

    def close(self) -> None:
        """Closes the environment."""
        self._stepper.close()


class Experience(KeptSteps[Rows]):
    """The experience of an online run, or of a run that records a policy's episodes."""

    def __init__(
        self,
        env_id: str,
        capacity: int,
        frame_stack: int = 1,
        max_episode_steps: int | None = None,
        units: ActionUnits | None = None,
    ) -> None:
        """Allocates memory for `capacity` steps; call `begin` before the first step.

        Args:
            env_id: The environment.
            capacity: The most steps.
            frame_stack: Number of frames in an observation of images.
            max_episode_steps: The step after which a `Stepper` cuts an episode.
            units: Converts the policy's actions to the environment's; None if they are the same.

        Raises:
            InputError: The environment is unknown, or has no images to stack.
        """
        stepper = Stepper(env_id, frame_stack=frame_stack, max_episode_steps=max_episode_steps, units=units)
        super().__init__(stepper, capacity, Rows)

    def step(self, action: np.ndarray) -> None:
        """Takes an action of the policy, (A,) or a finite one, and stores the step.

        After the end of an episode, the next one begins.
        """
        self._keep(self._stepper.step(self._given(action)))

    def cut(self) -> None:
        """Marks the last step as its episode's end, before `begin` leaves it: as a timeout, unless it is terminal."""
        last = self.size - 1
        self._rows.timeouts[last] = not self._rows.terminals[last]

    def play(self, policy: Callable[..., np.ndarray], exploration: Sequence[np.ndarray], random_steps: int) -> None:
        """Takes a step for each row of exploration draws; the run's first `random_steps` actions are uniform.

        Args:
            policy: Maps an observation (1, S) and standard normal noise (1, A) to an action (1, A).
            exploration: Uniform numbers in [-1, 1), (n, A), and standard normal ones (n, A).
            random_steps: Number of uniform actions, counted from the run's first step.
        """
        # Copied to NumPy once, because taking each row from a device array would cost as much.
        for uniform, normal in zip(*map(np.asarray, exploration), strict=True):
            random = self.size < random_steps
            action = (
                self._stepper.units.bound * uniform if random else policy(self._stepper.observation[None], normal[None])
            )
            self.step(np.reshape(action, uniform.shape))

    def follow(self, policy: Callable[..., np.ndarray], *columns: np.ndarray) -> None:
        """Takes a step for each row of the columns, (n, ...) each.

        Args:
            policy: Maps an observation (1, S) and a row of each column, (1, ...), to an action, (1, A) or (1,).
            columns: The policy's further inputs, such as its random draws.
        """
        for row in zip(*map(np.asarray, columns), strict=True):
            action = policy(self._stepper.observation[None], *(np.asarray(value)[None] for value in row))
            self.step(np.asarray(action)[0])


def load_rows(folder: Path, size: int, kind: type[R]) -> R:
    """Reads the first `size` steps of a run from its files in a folder; later steps are left out.

    The files are next to a checkpoint. For a run's final checkpoint, they are in the folder of the earlier ones.

    Args:
        folder: The folder of the checkpoint.
        size: The number of steps.
        kind: The named tuple of columns that was saved.

    Raises:
        InputError: Files are missing or damaged.
    """
    files = experience_files(folder) or experience_files(folder / "checkpoints")
    wanted = sorted((number, path) for number, path in files.items() if number <= size)
    try:
        parts = [np.load(io.BytesIO(read_verified(path)), allow_pickle=False) for _, path in wanted]
        columns = [np.concatenate([part[name] for part in parts]) for name in _names(kind)]
    except InputError:
        raise
    except Exception as error:  # NumPy and zipfile raise a dozen unrelated types on damaged bytes
        raise InputError(f"no whole experience in {folder}: it must lie beside its checkpoint") from error
    if len(columns[0]) != size:
        raise InputError(f"the experience in {folder} has {len(columns[0])} steps, its checkpoint {size}")
    return kind(*columns)


def experience_files(folder: Path) -> dict[int, Path]:
    """The experience files in a folder, by the number of steps up to their end."""
    found = ((_FILE.fullmatch(path.name), path) for path in Path(folder).glob("experience_*.npz"))
    return {int(match[1]): path for match, path in found if match}
