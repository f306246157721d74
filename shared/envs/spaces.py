"""What an environment shows and takes: a vector of numbers, and either a vector or one of a number of actions."""

from typing import NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import ArrayLike

from shared.errors import InputError


class Actions(NamedTuple):
    """The actions of an environment, as policies and datasets have them.

    Attributes:
        size: A, the components of a vector; of finite actions, how many there are.
        bound: Upper bound of a vector's first component; 1 for finite actions.
        finite: Whether an action is a whole number from 0 to A - 1.
        first: What the environment calls action 0.
    """

    size: int
    bound: float = 1.0
    finite: bool = False
    first: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a single action: (A,) for a vector, () for a whole number."""
        return () if self.finite else (self.size,)

    @property
    def dtype(self) -> type:
        """Of an action that is kept."""
        return np.int64 if self.finite else np.float32

    def given(self, action: ArrayLike) -> int | np.ndarray:
        """A single action as the environment takes it."""
        return self.first + int(np.asarray(action)) if self.finite else np.asarray(action)


def spaces_of(env_id: str, env: gymnasium.Env) -> tuple[int, Actions]:
    """The size of an environment's observations, S, and its actions.

    Raises:
        InputError: The observations are no vector, or the actions neither a vector nor finite.
    """
    observations, actions = env.observation_space, env.action_space
    if not isinstance(observations, Box) or len(observations.shape) != 1:
        raise _unfit(env_id, "observations", observations, "not a vector of real numbers")
    if isinstance(actions, Discrete):
        return observations.shape[0], Actions(int(actions.n), finite=True, first=int(actions.start))
    if not isinstance(actions, Box) or len(actions.shape) != 1:
        raise _unfit(env_id, "actions", actions, "neither a vector of real numbers nor finite")
    return observations.shape[0], Actions(actions.shape[0], float(actions.high[0]))


def _unfit(env_id: str, what: str, space: gymnasium.Space, reason: str) -> InputError:
    return InputError(f"cannot evaluate in {env_id!r}: its {what} are {space}, {reason}")
