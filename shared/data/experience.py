"""The experience of an online run: the steps of one environment, as rows, and their files."""

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
    """N steps of an environment, one after the other; float32 but for the two flags.

    Attributes:
        observations: (N, S); images (N, C, H, W) are bytes.
        actions: (N, A), as the environment got them; (N,) int64 where actions are finite.
        rewards: (N,).
        next_observations: Of the same shape.
        terminals: (N,) bool, where the robot fell or the goal was reached.
        timeouts: (N,) bool, where the time limit, or the run, cut the episode; never where `terminals` is set.
        qpos: (N, Q), the simulator's positions before the step; Q is 0 outside MuJoCo.
        qvel: (N, V), its velocities.
    """

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_observations: np.ndarray
    terminals: np.ndarray
    timeouts: np.ndarray
    qpos: np.ndarray
    qvel: np.ndarray


# What a step calls each column
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
    """The columns of a named tuple; no type says that a tuple is one."""
    return kind._fields


class KeptSteps(Generic[R]):
    """Steps an environment and keeps every step, in memory and in files.

    Attributes:
        size: Steps so far.
        action_dim: A.
    """

    def __init__(self, stepper: Stepper, capacity: int, kind: type[R], setting: str = "max_timesteps") -> None:
        """Room for `capacity` steps; call `begin` before the first.

        Args:
            stepper: The environment.
            capacity: Steps at most.
            kind: A named tuple of columns, such as `Rows`.
            setting: The one that decides the capacity, for messages.
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
        # How many steps the files of each folder hold; others that lie there are not this experience's
        self._saved: dict[Path, int] = {}

    @property
    def observation(self) -> np.ndarray:
        """(S,) float32, or (C, H, W) bytes, where the environment stands."""
        return self._stepper.observation

    @property
    def over(self) -> bool:
        """Whether the last step ended its episode."""
        last = self.size - 1
        return self.size > 0 and bool(self._rows.terminals[last] or self._rows.timeouts[last])

    def begin(self, *seeds: int) -> None:
        """Starts an episode that follows, like those after it, from these numbers alone."""
        self._stepper.begin(*seeds)

    def intervals(self, config: Any, began: int | None) -> Iterator[tuple[int, int]]:
        """From each evaluation of an online run to the next: the steps before, and at the end.

        Each begins with a new episode, whose start follows from the seed and the number of steps. Where a run was
        stopped within an interval, its steps are taken once more, and nothing is learnt from that.

        Args:
            config: Has `seed`, `max_timesteps` and `eval_freq`.
            began: The steps before the interval that a run was stopped in; None: it was not.
        """
        start = self.size if began is None else began
        while start < config.max_timesteps:
            self.begin(config.seed, start)
            for action in self._rows.actions[start : self.size]:
                self._stepper.step(action)
            yield start, (start := min(start + config.eval_freq, config.max_timesteps))

    def _given(self, action: np.ndarray) -> np.ndarray:
        """A policy's action as the environment takes it."""
        return self._stepper.units.given(np.asarray(action, self._stepper.actions.dtype))

    def _keep(self, step: Step) -> None:
        for name, column in zip(_names(self._kind), self._rows, strict=True):
            column[self.size] = getattr(step, _OF_A_STEP[name])
        self.size += 1

    def rows(self, first: int = 0) -> R:
        """The steps from number `first` on."""
        return self._kind(*(column[first : self.size] for column in self._rows))

    def transitions(self, first: int = 0) -> Batch:
        """The same as an algorithm learns from them, the last step of an episode included, in the policy's units."""
        batch = Batch(*(getattr(self.rows(first), name) for name in Batch._fields))
        return batch._replace(actions=self._stepper.units.learnt(batch.actions))

    def save(self, folder: Path) -> None:
        """Writes the steps that were not yet saved to the folder as `experience_<size>.npz`, sealed and atomically."""
        saved = self._saved.get(folder, 0)
        if saved < self.size:
            content = io.BytesIO()
            np.savez(content, **dict(zip(_names(self._kind), self.rows(saved), strict=True)))
            write_atomically(folder / f"experience_{self.size}.npz", sealed_zip(content.getbuffer()))
            self._saved[folder] = self.size

    def load(self, folder: Path, size: int) -> None:
        """Goes back to where a run stood after `size` steps, by what it saved in the folder; `begin` comes next.

        Raises:
            InputError: There is no room for them, or the files are not there or do not fit.
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
    """The experience of an online run, or of a run that records a policy."""

    def __init__(
        self,
        env_id: str,
        capacity: int,
        frame_stack: int = 1,
        max_episode_steps: int | None = None,
        units: ActionUnits | None = None,
    ) -> None:
        """Room for `capacity` steps; call `begin` before the first.

        Args:
            env_id: The environment.
            capacity: Steps at most.
            frame_stack: Of images, how many frames an observation shows.
            max_episode_steps: An episode is cut after so many, as a `Stepper` does it.
            units: From a policy's actions to the environment's; None: they are the same.

        Raises:
            InputError: The environment is unknown, or shows no images to stack.
        """
        stepper = Stepper(env_id, frame_stack=frame_stack, max_episode_steps=max_episode_steps, units=units)
        super().__init__(stepper, capacity, Rows)

    def step(self, action: np.ndarray) -> None:
        """Takes an action of the policy, (A,) or one of finite actions, and keeps what comes of it.

        After an episode's end the next one begins.
        """
        self._keep(self._stepper.step(self._given(action)))

    def cut(self) -> None:
        """Marks the last step as the end of its episode, which `begin` is about to leave: a timeout, if no terminal."""
        last = self.size - 1
        self._rows.timeouts[last] = not self._rows.terminals[last]

    def play(self, policy: Callable[..., np.ndarray], exploration: Sequence[np.ndarray], random_steps: int) -> None:
        """A step for each row of what exploration draws; the first `random_steps` of all are uniform actions.

        Args:
            policy: From an observation (1, S) and standard normal noise (1, A) to an action (1, A).
            exploration: Uniform numbers in [-1, 1), (n, A), and standard normal ones (n, A).
            random_steps: Counted from the run's first step.
        """
        # One copy to NumPy's memory: a device array costs as much again for each row that is taken from it.
        for uniform, normal in zip(*map(np.asarray, exploration), strict=True):
            random = self.size < random_steps
            action = (
                self._stepper.units.bound * uniform if random else policy(self._stepper.observation[None], normal[None])
            )
            self.step(np.reshape(action, uniform.shape))

    def follow(self, policy: Callable[..., np.ndarray], *columns: np.ndarray) -> None:
        """A step for each row of the columns, (n, ...) each.

        Args:
            policy: From an observation (1, S) and a row of each column, (1, ...), to an action, (1, A) or (1,).
            columns: What the policy is given besides, such as its random draws.
        """
        for row in zip(*map(np.asarray, columns), strict=True):
            action = policy(self._stepper.observation[None], *(np.asarray(value)[None] for value in row))
            self.step(np.asarray(action)[0])


def load_rows(folder: Path, size: int, kind: type[R]) -> R:
    """The first `size` steps of a run, by the files that it saved in the folder; later ones are left out.

    They lie beside a checkpoint; beside a run's last one, in the folder of those before it.

    Args:
        folder: Where the files lie.
        size: Steps.
        kind: The named tuple of columns that was saved.

    Raises:
        InputError: The files are not there, or one of them is damaged.
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
    """The experience files of a folder, by the number of steps up to their end."""
    found = ((_FILE.fullmatch(path.name), path) for path in Path(folder).glob("experience_*.npz"))
    return {int(match[1]): path for match, path in found if match}
