"""D4RL's planar robots as images from a camera beside the robot, under names such as `silhouettes/hopper-v2`.

Hopper, HalfCheetah and Walker2d move in a plane. Their limbs are capsules, so an image consists of a few thick strokes.
They are drawn from the state alone, without a graphics library. Therefore a dataset of states can be converted to
images that equal the environment's, pixel by pixel. Steps, rewards, ends and scores are D4RL's.

The camera moves with the robot, because a dataset does not contain the distance that the robot has covered. A single
image shows no speed, so an observation should stack a few.
"""

from functools import cache
from typing import Any

import gymnasium
import mujoco
import numpy as np
from gymnasium.spaces import Box

from shared.envs.physics import D4RLHalfCheetah, D4RLHopper, D4RLWalker2d
from shared.errors import InputError

PREFIX = "silhouettes/"
"""The prefix of the environments' names."""

_OF_STATES = "d4rl/"
_ROBOTS: dict[str, Any] = {"halfcheetah-v2": D4RLHalfCheetah, "hopper-v2": D4RLHopper, "walker2d-v2": D4RLWalker2d}
ENVS = tuple(PREFIX + robot for robot in _ROBOTS)
_MAX_EPISODE_STEPS = 1000
SIDE = 64
"""Side of an image in pixels."""
# Size of the visible part of the world, in metres: along each side, and below the ground
_VIEW, _BELOW = 2.0, 0.25
# Brightness of the ground, and of the first and the last limb, so that a left leg differs from a right one
_GROUND, _FIRST, _LAST = 64.0, 255.0, 128.0
# Images in a batch
_TOGETHER = 64


def of_states(env_id: str) -> str:
    """The environment with states instead of images: `d4rl/hopper-v2` for `silhouettes/hopper-v2`; others unchanged."""
    return env_id.replace(PREFIX, _OF_STATES, 1) if env_id.startswith(PREFIX) else env_id


def shown(env_id: str) -> str:
    """The environment with images instead of states: `silhouettes/hopper-v2` for `d4rl/hopper-v2`."""
    return env_id.replace(_OF_STATES, PREFIX, 1)


class Camera:
    """Draws a robot's states."""

    def __init__(self, model: mujoco.MjModel) -> None:
        """Prepares a camera beside this robot.

        Args:
            model: A planar robot, whose first coordinate is its forward position.
        """
        self._model, self._data = model, mujoco.MjData(model)
        self._limbs = np.flatnonzero(model.geom_type == mujoco.mjtGeom.mjGEOM_CAPSULE)
        self._radius, half = model.geom_size[self._limbs, :2].T
        self._half = half[:, None]
        pixel = _VIEW / SIDE
        centres = ((np.arange(SIDE) + 0.5) * pixel).astype(np.float32)
        self._x, self._z = (centres - _VIEW / 2)[None, :], (_VIEW - _BELOW - centres)[:, None]
        self._levels = np.linspace(_FIRST, _LAST, len(self._limbs))

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        """The images (N, 1, 64, 64), bytes, of D4RL's observations (N, S), which lack the first position."""
        images = np.empty((len(observations), 1, SIDE, SIDE), np.uint8)
        for first in range(0, len(observations), _TOGETHER):
            strokes = np.stack([self._strokes(observation) for observation in observations[first : first + _TOGETHER]])
            images[first : first + _TOGETHER, 0] = self._drawn(strokes)
        return images

    def _strokes(self, observation: np.ndarray) -> np.ndarray:
        """Each limb's ends (L, 2, 2) in a state, horizontal and vertical, relative to the robot's trunk."""
        self._data.qpos[0], self._data.qpos[1:] = 0.0, observation[: self._model.nq - 1]
        mujoco.mj_kinematics(self._model, self._data)
        centres = self._data.geom_xpos[self._limbs]
        along = self._data.geom_xmat[self._limbs, 2::3] * self._half
        ends = np.stack([centres - along, centres + along], axis=1)
        return ends[..., [0, 2]].astype(np.float32)

    def _drawn(self, strokes: np.ndarray) -> np.ndarray:
        """Images (n, 64, 64) of limbs (n, L, 2, 2), later ones in front, with edges blurred by one pixel."""
        image = np.where(self._z < 0.0, _GROUND, 0.0) * np.ones((len(strokes), SIDE, SIDE), np.float32)
        for (start, end), radius, level in zip(strokes.transpose(1, 2, 3, 0), self._radius, self._levels, strict=True):
            across, up = self._x - start[0, :, None, None], self._z - start[1, :, None, None]
            dx, dz = (end - start)[:, :, None, None]
            share = np.clip((across * dx + up * dz) / (dx**2 + dz**2), 0.0, 1.0)
            distance = np.sqrt((across - share * dx) ** 2 + (up - share * dz) ** 2)
            cover = np.clip(0.5 + (radius - distance) * SIDE / _VIEW, 0.0, 1.0)
            image += cover * (level - image)
        return np.rint(image).astype(np.uint8)


class _Silhouettes(gymnasium.ObservationWrapper):
    def __init__(self, env: gymnasium.Env, model: mujoco.MjModel) -> None:
        super().__init__(env)
        self.observation_space = Box(0, 255, (1, SIDE, SIDE), np.uint8)
        self._camera = Camera(model)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """The image (1, 64, 64) of a state (S,)."""
        return self._camera(observation[None])[0]


def _make(robot: str, render_mode: str | None = None) -> gymnasium.Env:
    """Creates an environment with images instead of states."""
    env = _ROBOTS[robot](render_mode=render_mode)
    return _Silhouettes(env, env.model)


@cache
def camera(env_id: str) -> Camera:
    """The camera for the states of an environment such as `d4rl/hopper-v2`.

    Raises:
        InputError: The environment is not a planar robot with states.
    """
    robot = env_id.removeprefix(_OF_STATES)
    if robot not in _ROBOTS:
        robots = " or ".join(_OF_STATES + robot for robot in _ROBOTS)
        raise InputError(f"states of {env_id} cannot be drawn: take a dataset of {robots}")
    env = _ROBOTS[robot]()
    env.close()
    return Camera(env.model)


def register() -> None:
    """Registers the environments with Gymnasium."""
    for robot in _ROBOTS:
        gymnasium.register(
            PREFIX + robot,
            entry_point=f"{__name__}:_make",
            kwargs={"robot": robot},
            max_episode_steps=_MAX_EPISODE_STEPS,
        )
