"""D4RL's own environments, if the old `gym`, `mujoco_py` and `d4rl` are installed: `gym/hopper-medium-v2`.

They are created through `gym`, and behave like Gymnasium's. These packages are only imported on demand.
"""

import contextlib
import importlib
import io
import os
import threading
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np

from shared.errors import InputError
from shared.names import D4RL_FACTS, nearest

# `import d4rl` stops at the first family that cannot be imported, and skips the families after it.
_MODULES = {
    "d4rl.gym_mujoco": ("halfcheetah", "hopper", "walker2d", "ant"),
    "d4rl.locomotion": ("antmaze",),
    "d4rl.pointmaze": ("maze2d",),
    "d4rl.hand_manipulation_suite": ("pen", "door", "hammer", "relocate"),
    "d4rl.kitchen": ("kitchen",),
}
_MODULE_OF = {family: module for module, families in _MODULES.items() for family in families}
# NumPy's global generator and standard output belong to the process, so evaluations in several threads take turns.
_RESETTING = threading.Lock()


class GymEnv(gymnasium.Env):
    """Wraps an environment of any version of the old `gym` in Gymnasium's interface; it must have box spaces.

    A seeded reset determines the whole episode, even if D4RL draws from elsewhere than the environment's generator. It
    restores NumPy's global generator, from which training draws.
    """

    def __init__(self, env: Any) -> None:
        """Wraps an environment that `gym.make` has returned."""
        self._env = env
        self.observation_space = _box(env.observation_space)
        self.action_space = _box(env.action_space)

    @property
    def model(self) -> Any:
        """The simulator's model, or None."""
        return getattr(self._env.unwrapped, "model", None)

    @property
    def mujoco_version(self) -> str | None:
        """The version of MuJoCo under `mujoco_py`, such as 2.1.0; None without `mujoco_py`."""
        try:
            import mujoco_py
        except Exception:  # a broken installation may raise anything
            return None
        return ".".join(str(mujoco_py.functions.mj_version()))  # 210

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Begins an episode; `gym` has no `options`."""
        with _RESETTING:
            if seed is None:
                outcome = self._reset()
            else:
                with _global_draws(seed):
                    outcome = self._reset(**self._seed(seed))
        return outcome if isinstance(outcome, tuple) else (outcome, {})

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Takes a step; before version 0.26, `gym` returned one flag for any end, and time limits in `info`."""
        observation, reward, *ends, info = self._env.step(action)
        if len(ends) == 1:
            timeout = bool(info.get("TimeLimit.truncated", False))
            ends = [bool(ends[0]) and not timeout, timeout]
        return observation, float(reward), bool(ends[0]), bool(ends[1]), info

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()

    def _reset(self, **seed: int) -> Any:
        with contextlib.redirect_stdout(io.StringIO()):
            return self._env.reset(**seed)

    def _seed(self, seed: int) -> dict[str, int]:
        """Seeds the environment, or returns the seed as an argument for `reset` in newer versions of `gym`."""
        if not hasattr(self._env, "seed"):
            return {"seed": seed}
        self._env.seed(seed)
        inner = self._env.unwrapped
        while (inner := getattr(inner, "wrapped_env", None)) is not None:  # D4RL's proxies do not pass seeds on
            inner.seed(seed)
        return {}


def _box(space: Any) -> Any:
    """Converts a `gym` box to Gymnasium's; other spaces stay unchanged, and the evaluator refuses them."""
    if type(space).__name__ != "Box":
        return space
    return gymnasium.spaces.Box(space.low, space.high, space.shape, space.dtype)


@contextlib.contextmanager
def _global_draws(seed: int) -> Iterator[None]:
    """Seeds NumPy's global generator, from which D4RL's antmaze draws its goals, and restores it afterwards."""
    before = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(before)


def _make(dataset_id: str) -> GymEnv:
    """Creates D4RL's own environment of a dataset.

    Raises:
        InputError: `gym`, `d4rl` or a package that they need is missing or broken.
    """
    os.environ.setdefault("D4RL_SUPPRESS_IMPORT_ERROR", "1")
    try:
        import gym

        importlib.import_module(_MODULE_OF[dataset_id.partition("-")[0]])
        with contextlib.redirect_stdout(io.StringIO()):  # D4RL's antmaze prints each goal
            return GymEnv(gym.make(dataset_id))
    # mujoco_py raises bare exceptions, and compiles on import, so no list of possible errors would be complete.
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(
            f"D4RL's own {dataset_id!r} cannot be made here ({reason}): install gym, mujoco_py and d4rl as "
            "docs/guides/environments.md says, or leave eval_backend out"
        ) from error


def env_id(dataset_id: str) -> str:
    """The id of D4RL's own environment of a dataset, for example `gym/hopper-medium-v2`.

    Raises:
        InputError: D4RL has no such dataset.
    """
    if dataset_id not in D4RL_FACTS:
        raise InputError(
            f"{dataset_id!r} is no environment of D4RL's: set eval_env to one; {nearest(dataset_id, D4RL_FACTS)}"
        )
    return f"gym/{dataset_id}"


DATASETS = {env_id(name): name for name in D4RL_FACTS}
"""The ids of D4RL's own environments, with their datasets."""

for _id, _name in DATASETS.items():
    gymnasium.register(_id, entry_point=f"{__name__}:_make", kwargs={"dataset_id": _name})
