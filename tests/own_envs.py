"""A small package of a user's own environments, which importing it registers, as Gymnasium expects.

Tests name them `tests.own_envs:own/...`. Nothing else imports this file, so an environment is known only if it was
requested under such a name.
"""

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict


class Glide(gymnasium.Env):
    """A point on a line that glides where it is pushed: observations (2,), position and speed, actions (1,).

    A step pays 1 minus the distance from 0. With `edge`, an episode ends if the point leaves -edge to edge.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 20}

    def __init__(self, edge: float = np.inf, render_mode: str | None = None) -> None:
        self.observation_space = Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)
        self.render_mode, self._edge = render_mode, edge
        self._state = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Starts an episode near 0."""
        super().reset(seed=seed)
        self._state = self.np_random.uniform(-0.1, 0.1, 2)
        return self._state.astype(np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Advances by a tenth of a second."""
        place, speed = self._state
        self._state = np.array([place + 0.1 * speed, speed + 0.1 * float(np.asarray(action)[0])])
        fell = bool(abs(self._state[0]) > self._edge)
        return self._state.astype(np.float32), 1.0 - float(abs(self._state[0])), fell, False, {}

    def render(self) -> np.ndarray:
        """A picture (16, 16, 3) of bytes that shows the point."""
        picture = np.zeros((16, 16, 3), np.uint8)
        picture[8, int(np.clip(8 + 8 * self._state[0], 0, 15))] = 255
        return picture


class Reach(Glide):
    """The same point, which is to reach a place and speed, or with `partly` only a place.

    Observations have Gymnasium-Robotics' layout. A step pays -1 until the point is within 0.3 of the goal.
    """

    def __init__(self, partly: bool = False, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        space = self.observation_space
        goals = Box(-np.inf, np.inf, (1,), np.float32) if partly else space
        self.observation_space = Dict({"observation": space, "achieved_goal": goals, "desired_goal": goals})
        self._goal = np.zeros(goals.shape, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        """Starts an episode near 0, with a goal on either side of it, at rest."""
        state, info = super().reset(seed=seed)
        self._goal[0] = self.np_random.uniform(-0.5, 0.5)
        return self._seen(state), info

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Advances like the other environment; `is_success` says whether the point is near the goal."""
        state, *_ = super().step(action)
        near = bool(np.abs(state[: self._goal.size] - self._goal).max() < 0.3)
        return self._seen(state), float(near) - 1.0, False, False, {"is_success": float(near)}

    def _seen(self, state: np.ndarray) -> dict[str, np.ndarray]:
        goal = self._goal.copy()
        return {"observation": state, "achieved_goal": state[: goal.size], "desired_goal": goal}


def over_the_edge(states: Any) -> Any:
    """Whether an episode of `own/Ledge-v0` ends, from states (..., 2)."""
    return abs(states[..., 0]) > 0.3


def fell(states: Any) -> Any:
    """Whether an episode ends, from states with at least nine numbers."""
    return states[..., 8] > 0.0


gymnasium.register("own/Glide-v0", f"{__name__}:Glide", max_episode_steps=12)
gymnasium.register("own/Ledge-v0", f"{__name__}:Glide", max_episode_steps=40, kwargs={"edge": 0.3})
gymnasium.register("own/Boundless-v0", f"{__name__}:Glide")
gymnasium.register("own/Reach-v0", f"{__name__}:Reach", max_episode_steps=12)
gymnasium.register("own/ReachPlace-v0", f"{__name__}:Reach", max_episode_steps=12, kwargs={"partly": True})
# Names that contain those of robots
gymnasium.register("own/Plant-v0", f"{__name__}:Glide", max_episode_steps=12)
gymnasium.register("own/OpenValve-v0", f"{__name__}:Glide", max_episode_steps=12)
