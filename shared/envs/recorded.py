"""The environment in which a Minari dataset was recorded, from its specification: settings, time limit and wrappers.

It has the dataset's name, `minari:NAME`, if the environment's own name would create a different one.
"""

import copy
import re
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from shared.errors import InputError, reason
from shared.modules import module_of
from shared.names import MINARI

_KEY = re.compile(r"\w[\w/-]*-v\d+")


def open_set(name: str) -> Any:
    """Opens the Minari dataset of a name such as `minari:mujoco/hopper/medium-v0`; downloads it if it is missing.

    Raises:
        InputError: Minari is not installed, or the dataset cannot be found or downloaded.
    """
    try:
        import minari
    except ImportError as error:
        raise InputError(f"{name} needs Minari: pip install 'corl-twins[minari]'") from error
    key = name.removeprefix(MINARI)
    if not _KEY.fullmatch(key):
        raise InputError(f"{name!r} is no name of a dataset: write it like minari:mujoco/hopper/medium-v0")
    try:
        return minari.load_dataset(key, download=True)
    # Minari passes on errors of its host's library, h5py or the file system, so no list would stay complete.
    except Exception as error:
        raise InputError(
            f"cannot load {name!r} ({reason(error)}): see `minari list local` and `minari list remote`, or put its "
            "folder where Minari looks, $MINARI_DATASETS_PATH or ~/.minari/datasets"
        ) from error


def spec_of(dataset: Any) -> EnvSpec | None:
    """The spec of the environment in which a dataset's policies are evaluated; by default the recording's."""
    return dataset._eval_env_spec or dataset.env_spec  # Minari has no public name for it


def find_spec(name: str) -> EnvSpec:
    """Like `spec_of`, by the dataset's name.

    Raises:
        InputError: The dataset cannot be loaded, or does not state its environment.
    """
    spec = spec_of(open_set(name))
    if spec is None:
        raise InputError(f"{name} names no environment: set eval_env to one")
    return spec


def import_owner(spec: EnvSpec, env_id: str) -> None:
    """Imports the module of an environment, and therefore its packages, which usually register it.

    Raises:
        InputError: The module is missing.
    """
    if (owner := owner_of(spec)) is not None:
        module_of(owner, f"environment {env_id!r}")


def owner_of(spec: EnvSpec) -> str | None:
    """The module that an environment comes from; None for Gymnasium, this project, and the running script."""
    made_by = spec.entry_point
    module = made_by.partition(":")[0] if isinstance(made_by, str) else getattr(made_by, "__module__", "__main__")
    return None if module.partition(".")[0] in ("gymnasium", "shared", "__main__") else module


def settings_of(spec: EnvSpec) -> tuple[Any, ...]:
    """The settings of a spec that change how its environment steps; its id and rendering do not count."""
    own = {key: value for key, value in spec.kwargs.items() if key != "render_mode"}
    # This project's own wrappers are added again whenever the environment is created.
    wrappers = [wrapper for wrapper in spec.additional_wrappers if not wrapper.entry_point.startswith("shared.")]
    return own, spec.max_episode_steps, wrappers


def make(name: str, **options: Any) -> gymnasium.Env:
    """Creates the environment of a dataset with the wrappers of its recording.

    Args:
        name: The dataset's name, such as `minari:mujoco/hopper/medium-v0`.
        options: Arguments of `gymnasium.make`, and of the environment.

    Raises:
        InputError: The dataset or a package is missing, or a wrapper cannot be recreated.
    """
    spec = find_spec(name)
    import_owner(spec, name)
    again = copy.deepcopy(spec)
    again.kwargs.pop("render_mode", None)
    try:
        return gymnasium.make(again, disable_env_checker=True, **options)
    except Exception as error:  # a user's environment or wrapper may raise anything
        wrappers = ", ".join(wrapper.name for wrapper in spec.additional_wrappers)
        under = f" under {wrappers}" if wrappers else ""
        raise InputError(
            f"the environment of {name}, {spec.id}{under}, cannot be made again ({reason(error)}): set eval_env to one "
            "that acts like it"
        ) from error
