"""Environments with the physics of D4RL's own.

D4RL recorded its locomotion data with MuJoCo 2.1.0. Two things have changed in the simulator since:

- A capsule's mass and inertia are exact since MuJoCo 2.1.1. Before, a capsule counted as a cylinder that is longer by
  half a radius at each end, which weighs less. The same action therefore moves the robot differently.
- Since MuJoCo 3.5, the contact margins of two touching geoms are added, whereas the larger one counted before.

The environments `d4rl/halfcheetah-v2`, `d4rl/hopper-v2`, `d4rl/walker2d-v2` and `d4rl/ant-v2` are Gymnasium's v4
classes with both changes undone. A stock environment is a different task: a policy can lose a fifth of its return
there.
"""

from typing import Any

import gymnasium
import mujoco
import numpy as np
from gymnasium.envs.mujoco import MujocoEnv
from gymnasium.envs.mujoco.ant_v4 import AntEnv
from gymnasium.envs.mujoco.half_cheetah_v4 import HalfCheetahEnv
from gymnasium.envs.mujoco.hopper_v4 import HopperEnv
from gymnasium.envs.mujoco.walker2d_v4 import Walker2dEnv
from packaging.version import Version

_MARGINS_ADD_UP = Version("3.5.0")
_ANT_CONTACT_FORCES = 84  # 14 bodies with 6 components each; mujoco_py never filled them in


def _geom_mass_and_inertia(kind: int, size: np.ndarray, density: float) -> tuple[float, np.ndarray]:
    """MuJoCo 2.1.0's mass (kg) and principal inertia (3,) of one geom about its own centre (kg m^2)."""
    radius = size[0]
    if kind == mujoco.mjtGeom.mjGEOM_SPHERE:
        mass = density * 4 / 3 * np.pi * radius**3
        return mass, np.full(3, 0.4 * mass * radius**2)
    if kind == mujoco.mjtGeom.mjGEOM_CAPSULE:
        length = 2 * size[1] + radius
        mass = density * np.pi * radius**2 * length
        across = mass * (3 * radius**2 + length**2) / 12
        return mass, np.array([across, across, mass * radius**2 / 2])
    raise NotImplementedError(f"no MuJoCo 2.1.0 inertia for geom type {kind}")


def _rotation(quaternion: np.ndarray) -> np.ndarray:
    """Rotation matrix (3, 3) of a quaternion (4,)."""
    matrix = np.empty(9)
    mujoco.mju_quat2Mat(matrix, quaternion)
    return matrix.reshape(3, 3)


def _set_body_inertia(model: mujoco.MjModel, body: int, density: float) -> None:
    """Writes the mass, centre of mass, principal axes and inertia of one body, combined from its geoms."""
    geoms = np.flatnonzero(model.geom_bodyid == body)
    parts = [_geom_mass_and_inertia(model.geom_type[g], model.geom_size[g], density) for g in geoms]
    masses = np.array([mass for mass, _ in parts])
    centre = masses @ model.geom_pos[geoms] / masses.sum()
    inertia = np.zeros((3, 3))
    for geom, (mass, principal) in zip(geoms, parts, strict=True):
        axes = _rotation(model.geom_quat[geom])
        offset = model.geom_pos[geom] - centre
        inertia += axes @ np.diag(principal) @ axes.T + mass * (offset @ offset * np.eye(3) - np.outer(offset, offset))
    moments, axes = np.linalg.eigh(inertia)
    axes[:, 2] *= np.sign(np.linalg.det(axes))  # a reflection has no quaternion
    model.body_mass[body] = masses.sum()
    model.body_ipos[body] = centre
    model.body_inertia[body] = moments
    mujoco.mju_mat2Quat(model.body_iquat[body], axes.ravel())


def _restore_inertias(model: mujoco.MjModel, density: float, total_mass: float | None) -> None:
    """Gives every body its MuJoCo 2.1.0 inertia, then scales all of them to `total_mass` if there is one."""
    for body in range(1, model.nbody):
        _set_body_inertia(model, body, density)
    if total_mass is not None:
        scale = total_mass / model.body_mass.sum()
        model.body_mass *= scale
        model.body_inertia *= scale
    # The compiler's shortcuts only hold for its own inertia frames: which frames coincide, and the bounding boxes.
    model.body_sameframe[:] = mujoco.mjtSameFrame.mjSAMEFRAME_NONE
    model.geom_sameframe[:] = mujoco.mjtSameFrame.mjSAMEFRAME_NONE
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_MIDPHASE


def _restore_margins(model: mujoco.MjModel, version: str) -> None:
    """Halves the contact margins if this MuJoCo adds them, because all geoms of an environment have the same margin."""
    if Version(version) >= _MARGINS_ADD_UP:
        model.geom_margin *= 0.5


def restore_physics(
    model: mujoco.MjModel, data: mujoco.MjData, density: float, total_mass: float | None = None
) -> None:
    """Makes a robot of spheres and capsules step as it did in MuJoCo 2.1.0.

    Args:
        model: The model, changed in place.
        data: The data of this model.
        density: Density of all geoms, in kg/m^3.
        total_mass: Total mass in kg, if the model's file fixes it.
    """
    _restore_inertias(model, density, total_mass)
    _restore_margins(model, mujoco.__version__)
    mujoco.mj_setConst(model, data)


class _D4RLPhysics(MujocoEnv):
    """A mixin for Gymnasium's classes: MuJoCo 2.1.0's physics, and actions clipped to their bounds as in D4RL."""

    density = 1000.0  # kg/m^3, MuJoCo's default
    total_mass: float | None = None  # kg, if the model's file fixes it
    # Gymnasium only declares them as spaces
    observation_space: gymnasium.spaces.Box
    action_space: gymnasium.spaces.Box

    def __init__(self, **kwargs: Any) -> None:
        # Gymnasium's default camera stays at the robot's start.
        super().__init__(**{"camera_name": "track"} | kwargs)
        restore_physics(self.model, self.data, self.density, self.total_mass)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.float64, bool, bool, dict[str, np.float64]]:
        return super().step(np.clip(action, self.action_space.low, self.action_space.high))


class D4RLHalfCheetah(_D4RLPhysics, HalfCheetahEnv):
    """HalfCheetah as in D4RL: observations (17,), actions (6,)."""

    total_mass = 14.0


class D4RLHopper(_D4RLPhysics, HopperEnv):
    """Hopper as in D4RL: observations (11,), actions (3,)."""


class D4RLWalker2d(_D4RLPhysics, Walker2dEnv):
    """Walker2d as in D4RL: observations (17,), actions (6,)."""


class D4RLAnt(_D4RLPhysics, AntEnv):
    """Ant as in D4RL: observations (111,) of which the last 84, the contact forces, are always 0; actions (8,)."""

    density = 5.0

    def __init__(self, **kwargs: Any) -> None:
        """Takes the arguments of Gymnasium's class."""
        super().__init__(**kwargs)
        size = self.observation_space.shape[0] + _ANT_CONTACT_FORCES
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float64)

    def _get_obs(self) -> np.ndarray:
        return np.concatenate([super()._get_obs(), np.zeros(_ANT_CONTACT_FORCES)])
