"""Spaces: observations are vectors or images, and actions are vectors or finite."""

from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from numpy.typing import ArrayLike

from shared.envs.boxes import ActionBox
from shared.errors import InputError

Shape = int | tuple[int, int, int]
"""The shape of an observation: the size S of a vector, or channels, height and width (C, H, W) of an image."""


def axes(shape: Shape) -> tuple[int, ...]:
    """The axes of an observation: (S,) or (C, H, W)."""
    return (shape,) if isinstance(shape, int) else shape


def size_of_statistics(shape: Shape) -> int:
    """The size of an observation's statistics: S for a vector, and 1 for an image, which is not normalised."""
    return shape if isinstance(shape, int) else 1


def shape_of(observations: Any) -> Shape:
    """The shape of one observation in a column (N, S) or (N, C, H, W)."""
    if len(observations.shape) == 2:
        return observations.shape[1]
    _, channels, height, width = observations.shape
    return channels, height, width


def kept_as(shape: Shape) -> Any:
    """The dtype in which observations are stored: float32, or bytes for images."""
    return np.float32 if isinstance(shape, int) else np.uint8


class Actions(NamedTuple):
    """An environment's actions, as policies and datasets represent them.

    Attributes:
        size: A, the number of a vector's components; for finite actions, their number.
        bound: Upper bound of a vector's first component; 1 for finite actions.
        finite: Whether an action is an integer from 0 to A - 1.
        first: The environment's number for action 0.
        box: The bounds of a vector's components; None for finite actions.
    """

    size: int
    bound: float = 1.0
    finite: bool = False
    first: int = 0
    box: ActionBox | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a single action: (A,) for a vector, () for an integer."""
        return () if self.finite else (self.size,)

    @property
    def dtype(self) -> type:
        """The dtype in which actions are stored."""
        return np.int64 if self.finite else np.float32

    def given(self, action: ArrayLike) -> int | np.ndarray:
        """Converts a single action to the environment's form; vectors are clipped to the box."""
        if self.finite:
            return self.first + int(np.asarray(action))
        return np.asarray(action) if self.box is None else self.box.clipped(np.asarray(action))


def sets_goals(env: gymnasium.Env) -> bool:
    """Whether an environment's observations contain a goal, as `Dict` spaces with a `desired_goal` do."""
    return isinstance(env.observation_space, Dict) and {"observation", "desired_goal"} <= set(env.observation_space)


def spaces_of(env_id: str, env: gymnasium.Env, with_goals: bool = False) -> tuple[Shape, Actions]:
    """The shape of an environment's observations, and its actions.

    Args:
        env_id: Its name, for messages.
        env: The environment.
        with_goals: Whether the environment may set goals. Then its shape is that of a state, and of a goal.

    Raises:
        InputError: The observations are neither a vector nor an image, or the actions neither a vector nor finite. Or a
            goal is not a whole observation.
    """
    states, actions = env.observation_space, env.action_space
    if sets_goals(env):
        assert isinstance(states, Dict)
        if not with_goals:
            raise InputError(
                f"{env_id!r} sets a goal in each episode: use a goal_conditioned algorithm, or another environment"
            )
        spaces = states.spaces
        states, goals = spaces["observation"], spaces["desired_goal"]
        if states.shape != goals.shape:
            raise InputError(
                f"cannot evaluate in {env_id!r}: its goals have shape {goals.shape}, and its observations "
                f"{states.shape}: goals must be whole observations, because they are states of the data"
            )
    shape = _shape_of(env_id, states)
    if isinstance(actions, Discrete):
        return shape, Actions(int(actions.n), finite=True, first=int(actions.start))
    if not isinstance(actions, Box) or len(actions.shape) != 1 or not np.issubdtype(actions.dtype, np.floating):
        raise _unfit(env_id, "actions", actions, "neither a vector of real numbers nor finite")
    return shape, Actions(actions.shape[0], float(actions.high[0]), box=ActionBox.of(actions.low, actions.high))


def _shape_of(env_id: str, space: gymnasium.Space) -> Shape:
    if isinstance(space, Box) and (len(space.shape) == 1 or (len(space.shape) == 3 and space.dtype == np.uint8)):
        return shape_of(np.empty((0, *space.shape)))
    raise _unfit(env_id, "observations", space, "neither a vector of real numbers nor an image of bytes or bits")


def _unfit(env_id: str, what: str, space: gymnasium.Space, reason: str) -> InputError:
    return InputError(f"cannot evaluate in {env_id!r}: its {what} are {space}, {reason}")
