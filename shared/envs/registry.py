"""Environments by name: those registered here, such as `d4rl/hopper-v2`, and all others that Gymnasium knows."""

import difflib
import inspect
import re
import warnings
from collections.abc import Iterable
from typing import Any

import gymnasium
import mujoco
from gymnasium.wrappers import TimeLimit

from shared.envs import genuine, minatar, ogbench, recorded, robotics, silhouettes
from shared.envs.families import known
from shared.envs.guarded import Guarded
from shared.envs.images import pictured
from shared.envs.physics import D4RLAnt, D4RLHalfCheetah, D4RLHopper, D4RLWalker2d
from shared.errors import InputError, reason
from shared.modules import module_of
from shared.names import MINARI, OGBENCH, is_file_name

MAX_EPISODE_STEPS = 1000
# An environment with the module that registers it, in Gymnasium's notation
_IN_A_MODULE = re.compile(r"(?P<module>[^\W\d]\w*(\.\w+)*):(?P<name>[^:]+)")

_D4RL_CLASSES = {
    "d4rl/halfcheetah-v2": D4RLHalfCheetah,
    "d4rl/hopper-v2": D4RLHopper,
    "d4rl/walker2d-v2": D4RLWalker2d,
    "d4rl/ant-v2": D4RLAnt,
}
D4RL_ENVS = tuple(_D4RL_CLASSES)

for _id, _class in _D4RL_CLASSES.items():
    # By name, because Minari stores the specification of an environment that it records.
    gymnasium.register(_id, entry_point=f"{_class.__module__}:{_class.__name__}", max_episode_steps=MAX_EPISODE_STEPS)
minatar.register()
silhouettes.register()
ogbench.register()


def is_d4rl_exact(env_id: str) -> bool:
    """Whether `env_id` has the physics of D4RL's environment, so that its returns have D4RL scores."""
    return silhouettes.of_states(env_id) in _D4RL_CLASSES or env_id in genuine.DATASETS


def is_registered(env_id: str) -> bool:
    """Whether a name is an environment's and not a dataset's, even if a package that it needs is missing.

    Raises:
        InputError: The name is `module:Id`, but there is no such module, or it registers no such environment.
    """
    if env_id.startswith((MINARI, OGBENCH)) or is_file_name(env_id):
        return False
    if _IN_A_MODULE.fullmatch(env_id):
        return bool(registered_name(env_id))
    return env_id in gymnasium.registry


def registered_name(env_id: str) -> str:
    """The name of an environment in Gymnasium's registry, after importing the module that `module:Id` names.

    Raises:
        InputError: There is no such module or environment; the message suggests one.
    """
    found = _IN_A_MODULE.fullmatch(env_id)
    if found is None:
        if env_id.endswith(":"):
            raise InputError(f"environment {env_id!r} has no id after its module: write {env_id}Name-v0, for example")
        if env_id not in gymnasium.registry:
            raise InputError(
                f"unknown environment {env_id!r}; {nearest_env(env_id)}, or write module:{env_id}, of the module that "
                "registers it"
            )
        return env_id
    module, name = found["module"], found["name"]
    module_of(module, f"environment {env_id!r}")
    if name not in gymnasium.registry:
        close = difflib.get_close_matches(name, gymnasium.registry, n=3, cutoff=0.7)
        instead = f": use {' or '.join(f'{module}:{other}' for other in close)}" if close else ""
        raise InputError(f"the module {module!r} registers no environment {name!r}{instead}")
    return name


def make_env(env_id: str, max_episode_steps: int | None = None, **options: Any) -> gymnasium.Env:
    """Creates a `d4rl/...`, `silhouettes/...`, `robotics/...` or `gym/...` environment or any of Gymnasium's.

    Args:
        env_id: For example `d4rl/hopper-v2`, `robotics/antmaze-umaze` from Gymnasium-Robotics, `gym/hopper-medium-v2`
            for D4RL's own, or `Hopper-v5` for today's stock environment. `module:Id` is registered by that module, and
            `minari:NAME` is the environment in which that Minari dataset was recorded.
        max_episode_steps: The step after which an episode is cut, unless the environment ends it before.
        options: Arguments of the environment, such as `render_mode`.

    Returns:
        The environment with its time limit; it has not been reset. Images are bytes with channels first.

    Raises:
        InputError: No environment of that name is registered, or a package that it needs is missing.
    """
    made = recorded.make(env_id, **options) if env_id.startswith(MINARI) else _made(env_id, options)
    is_ours = made.spec is None or recorded.owner_of(made.spec) is None
    env = pictured(made if is_ours else Guarded(made, env_id))
    return env if max_episode_steps is None else TimeLimit(env, max_episode_steps)


def _made(env_id: str, options: dict[str, Any]) -> gymnasium.Env:
    """Creates a registered environment."""
    name = registered_name(env_id)
    with warnings.catch_warnings():
        # Users who type an older version mean it.
        warnings.filterwarnings("ignore", message=".*is out of date", category=DeprecationWarning)
        # Without this mode, a film ends in one line.
        warnings.filterwarnings("ignore", message=".*not in the possible render_modes")
        try:
            env = gymnasium.make(name, disable_env_checker=True, **options)
            _check_seeds(env, env_id)
            return env
        except InputError:
            raise
        except (gymnasium.error.Error, ImportError) as error:
            raise InputError(
                f"environment {env_id!r} cannot be made here ({str(error).splitlines()[0]}); {nearest_env(env_id)}"
            ) from error
        except Exception as error:
            if recorded.owner_of(gymnasium.spec(name)) is None:
                raise
            # a user's environment may raise anything
            words = f"{type(error).__name__}: {reason(error)}"
            raise InputError(f"environment {env_id!r} cannot be made ({words}): mend it, or name another") from error


def _check_seeds(env: gymnasium.Env, env_id: str) -> None:
    """Checks that episodes can be started from a seed.

    Raises:
        InputError: The environment's `reset` takes none.
    """
    taken = inspect.signature(env.unwrapped.reset).parameters.values()
    if not any(parameter.name == "seed" or parameter.kind is parameter.VAR_KEYWORD for parameter in taken):
        raise InputError(
            f"the reset of environment {env_id!r} takes no seed, so no evaluation could be repeated: write it as "
            "reset(self, *, seed=None, options=None)"
        )


def nearest_env(env_id: str, others: Iterable[str] = ()) -> str:
    """A hint with the ids that are most similar to `env_id`, except for itself, and with similar ones of `others`."""
    # Environments that Gymnasium no longer includes are still listed, with a function that raises as entry point. If
    # Gymnasium-Robotics is imported, it replaces these by its own, which need mujoco_py.
    makeable = {
        spec.id.lower(): spec.id
        for spec in gymnasium.registry.values()
        if isinstance(spec.entry_point, str) and not spec.entry_point.startswith("gymnasium_robotics.envs.mujoco")
    }
    ids = {name: known for name, known in makeable.items() if known not in (env_id, *D4RL_ENVS)}
    ids |= {known.partition("/")[2]: known for known in (*D4RL_ENVS, *robotics.ENVS)}
    ids |= {name.lower(): name for name in others}
    close = [ids[name] for name in difflib.get_close_matches(env_id.lower(), ids, n=3, cutoff=0.5)]
    return f"use {' or '.join(close) or ', '.join(D4RL_ENVS)}"


def full_name(env_id: str) -> str:
    """The name with which a process that has imported nothing creates an environment: `module:Id` for users' own.

    Args:
        env_id: The id of an environment that `make_env` has created.
    """
    spec = gymnasium.registry.get(env_id)
    owner = None if spec is None else recorded.owner_of(spec)
    return env_id if owner is None else f"{owner}:{env_id}"


def fingerprint(env_id: str, env: gymnasium.Env) -> dict[str, Any]:
    """Everything that a score depends on, apart from the policy.

    Args:
        env_id: The argument of `make_env`.
        env: The environment that it returned.

    Returns:
        `env` (its id), `mujoco` (version), `total_mass` (kg, None outside MuJoCo) and `d4rl_exact`.
    """
    model = getattr(env.unwrapped, "model", None)
    return {
        "env": full_name(env_id),
        "mujoco": getattr(env.unwrapped, "mujoco_version", mujoco.__version__),
        "total_mass": None if model is None else float(model.body_mass.sum()),
        "d4rl_exact": is_d4rl_exact(env_id),
    }


def least_memory(env_id: str) -> int:
    """The least memory of an environment, in bytes: the size of its simulator's model, 0 outside MuJoCo.

    Raises:
        InputError: As for `make_env`.
    """
    env = make_env(env_id)
    model = getattr(env.unwrapped, "model", None)
    env.close()
    return getattr(model, "nbuffer", 0)


def time_limit(env_id: str) -> int | None:
    """An environment's time limit in steps; None if it has none, or if it is unknown here."""
    try:
        is_minari = env_id.startswith(MINARI)
        spec = recorded.find_spec(env_id) if is_minari else gymnasium.registry.get(registered_name(env_id))
    except InputError:
        return None
    facts = known(env_id)
    own = None if spec is None else spec.max_episode_steps
    return own if own is not None or facts is None else facts.max_episode_steps
