"""Environments for D4RL's antmaze, maze2d and Adroit without its own package: Gymnasium-Robotics, in D4RL's layout.

In `robotics/antmaze-umaze` or `robotics/pen`, observations, actions, rewards, starts and ends of episodes are as in
D4RL. However, robots and simulator are Gymnasium-Robotics', so returns are not D4RL scores.
"""

import contextlib
import importlib
import io

import gymnasium

from shared.errors import InputError
from shared.names import D4RL_FACTS

# D4RL's time limits, in steps.
_LIMITS = {
    "antmaze-umaze": 700,
    "antmaze-medium": 1000,
    "antmaze-large": 1000,
    "maze2d-umaze": 300,
    "maze2d-medium": 600,
    "maze2d-large": 800,
    "maze2d-umaze-dense": 300,
    "maze2d-medium-dense": 600,
    "maze2d-large-dense": 800,
    "pen": 100,
    "door": 200,
    "hammer": 200,
    "relocate": 200,
}


def _make(name: str, render_mode: str | None = None) -> gymnasium.Env:
    """Creates `robotics/<name>`, with Gymnasium's `render_mode`.

    Raises:
        InputError: Gymnasium-Robotics is not installed.
    """
    try:
        # It prints a warning that Adroit's rewards changed, but shared.envs.adroit changes them back.
        with contextlib.redirect_stderr(io.StringIO()):
            importlib.import_module("gymnasium_robotics")
    except ImportError as error:
        raise InputError(f"'robotics/{name}' needs Gymnasium-Robotics: pip install 'corl-twins[robotics]'") from error
    from shared.envs import adroit, mazes

    family, *words = name.split("-")
    if family == "antmaze":
        return mazes.AntMaze(words[0], render_mode=render_mode)
    if family == "maze2d":
        return mazes.PointMaze(words[0], dense="dense" in words, render_mode=render_mode)
    return adroit.Hand(name, render_mode)


for _name, _limit in _LIMITS.items():
    gymnasium.register(
        f"robotics/{_name}", entry_point=f"{__name__}:_make", kwargs={"name": _name}, max_episode_steps=_limit
    )

ENVS = tuple(f"robotics/{name}" for name in _LIMITS)


def _env_of(dataset_id: str) -> str | None:
    """A dataset's environment with the same time limit, which maze2d's version 0 and long horizons lack."""
    name = max((name for name in _LIMITS if dataset_id.startswith(f"{name}-")), key=len, default=None)
    if name is None or _LIMITS[name] != D4RL_FACTS[dataset_id]["max_episode_steps"]:
        return None
    return f"robotics/{name}"


ENV_OF = {dataset_id: env_id for dataset_id in D4RL_FACTS if (env_id := _env_of(dataset_id)) is not None}
"""Our environment with the same layout, by the name of a D4RL dataset."""
