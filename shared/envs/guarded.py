"""Environments of other packages and of users' own, whose faults are reported in one line."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from shared.errors import InputError, RunError, reason

_RETURNS = {
    "reset": "an observation and a dictionary",
    "step": "observation, reward, terminated, truncated and a dictionary",
}


class Guarded(gymnasium.Wrapper):
    """Passes everything on, and says which environment fails if `reset` or `step` raises an error."""

    def __init__(self, env: gymnasium.Env, env_id: str) -> None:
        super().__init__(env)
        self._id = env_id

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode.

        Raises:
            RunError: The environment raised an error, or did not return an observation and a dictionary.
        """
        with self._named("reset"):
            observation, info = self.env.reset(seed=seed, options=options)
            return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Makes a step; a reward may be an array of one number.

        Raises:
            RunError: The environment raised an error, or did not return Gymnasium's five values.
        """
        with self._named("step"):
            observation, reward, terminated, truncated, info = self.env.step(action)
            return observation, np.asarray(reward).item(), terminated, truncated, info

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        try:
            yield
        except (InputError, RunError):
            raise
        except Exception as error:  # a user's environment may raise anything
            at = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(at.filename).name}, line {at.lineno}"
            raise RunError(
                f"environment {self._id!r} failed in {what} ({type(error).__name__} in {place}: {reason(error)}); "
                f"Gymnasium's {what} returns {_RETURNS[what]}"
            ) from error
