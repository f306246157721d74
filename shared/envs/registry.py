"""Environments by name: those registered here, such as `d4rl/hopper-v2`, and all others that Gymnasium knows."""

import difflib
import warnings
from typing import Any

import gymnasium
import mujoco

from shared.envs import genuine, minatar, ogbench, robotics, silhouettes
from shared.envs.images import pictured
from shared.envs.physics import D4RLAnt, D4RLHalfCheetah, D4RLHopper, D4RLWalker2d
from shared.errors import InputError

MAX_EPISODE_STEPS = 1000

_D4RL_CLASSES = {
    "d4rl/halfcheetah-v2": D4RLHalfCheetah,
    "d4rl/hopper-v2": D4RLHopper,
    "d4rl/walker2d-v2": D4RLWalker2d,
    "d4rl/ant-v2": D4RLAnt,
}
D4RL_ENVS = tuple(_D4RL_CLASSES)

for _id, _class in _D4RL_CLASSES.items():
    # By its name, not as an object: what records an environment (Minari) writes its specification down.
    gymnasium.register(_id, entry_point=f"{_class.__module__}:{_class.__name__}", max_episode_steps=MAX_EPISODE_STEPS)
minatar.register()
silhouettes.register()
ogbench.register()


def is_d4rl_exact(env_id: str) -> bool:
    """Whether `env_id` steps as D4RL's environment did, so that a return in it has a D4RL score."""
    return silhouettes.of_states(env_id) in _D4RL_CLASSES or env_id in genuine.DATASETS


def is_registered(env_id: str) -> bool:
    """Whether `make_env` knows the name; what it takes to make the environment may still be missing."""
    return env_id in gymnasium.registry


def make_env(env_id: str, **options: Any) -> gymnasium.Env:
    """Makes one of the `d4rl/...`, `silhouettes/...`, `robotics/...` or `gym/...` environments or any of Gymnasium's.

    Args:
        env_id: For example `d4rl/hopper-v2`, `robotics/antmaze-umaze` from Gymnasium-Robotics, `gym/hopper-medium-v2`
            for D4RL's own, or `Hopper-v5` for today's stock environment.
        options: For the environment, such as `render_mode`.

    Returns:
        The environment with its time limit; it has not been reset. Images are bytes with their channels first.

    Raises:
        InputError: No environment of that name is registered, or a package that it needs is missing.
    """
    if env_id not in gymnasium.registry:
        raise InputError(f"unknown environment {env_id!r}; {_nearest(env_id)}")
    with warnings.catch_warnings():
        # Choosing an older version is a decision that the user made by typing it.
        warnings.filterwarnings("ignore", message=".*is out of date", category=DeprecationWarning)
        try:
            return pictured(gymnasium.make(env_id, disable_env_checker=True, **options))
        except (gymnasium.error.Error, ImportError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"environment {env_id!r} cannot be made here ({reason}); {_nearest(env_id)}") from error


def _nearest(env_id: str) -> str:
    """A hint that names the ids most like `env_id`, other than itself."""
    # What Gymnasium no longer ships is still listed, with a function that raises in place of a path. Once imported,
    # Gymnasium-Robotics puts its own there, which need mujoco_py.
    makeable = {
        spec.id.lower(): spec.id
        for spec in gymnasium.registry.values()
        if isinstance(spec.entry_point, str) and not spec.entry_point.startswith("gymnasium_robotics.envs.mujoco")
    }
    ids = {name: known for name, known in makeable.items() if known not in (env_id, *D4RL_ENVS)}
    ids |= {known.partition("/")[2]: known for known in (*D4RL_ENVS, *robotics.ENVS)}
    close = [ids[name] for name in difflib.get_close_matches(env_id.lower(), ids, n=3, cutoff=0.5)]
    return f"use {' or '.join(close) or ', '.join(D4RL_ENVS)}"


def fingerprint(env: gymnasium.Env) -> dict[str, Any]:
    """What a score depends on besides the policy.

    Returns:
        `env` (its id), `mujoco` (version), `total_mass` (kg, None outside MuJoCo) and `d4rl_exact`.
    """
    model = getattr(env.unwrapped, "model", None)
    assert env.spec is not None, "it was made by its id"
    return {
        "env": env.spec.id,
        "mujoco": getattr(env.unwrapped, "mujoco_version", mujoco.__version__),
        "total_mass": None if model is None else float(model.body_mass.sum()),
        "d4rl_exact": is_d4rl_exact(env.spec.id),
    }


def least_memory(env_id: str) -> int:
    """Bytes that each environment of this name takes at least: its simulator's model, 0 outside MuJoCo.

    Raises:
        InputError: As `make_env`.
    """
    env = make_env(env_id)
    model = getattr(env.unwrapped, "model", None)
    env.close()
    return getattr(model, "nbuffer", 0)


def time_limit(env_id: str) -> int | None:
    """After how many steps a registered environment ends an episode; None if it does not, or is not registered."""
    spec = gymnasium.registry.get(env_id)
    return None if spec is None else spec.max_episode_steps
