"""The environment that a Minari set was recorded in, as its specification says: settings, time limit and wrappers.

It is named as the set is, `minari:NAME`, where the environment's own name would make another one.
"""

import copy
import re
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from shared.envs.modules import module_of
from shared.errors import InputError, reason
from shared.names import MINARI

_KEY = re.compile(r"\w[\w/-]*-v\d+")


def open_set(name: str) -> Any:
    """Minari's dataset of a name such as `minari:mujoco/hopper/medium-v0`; one that is not here is downloaded.

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
    # Minari passes on what its host's library, h5py or the file system raise; no list of these would stay complete.
    except Exception as error:
        raise InputError(
            f"cannot load {name!r} ({reason(error)}): see `minari list local` and `minari list remote`, or put its "
            "folder where Minari looks, $MINARI_DATASETS_PATH or ~/.minari/datasets"
        ) from error


def spec_of(dataset: Any) -> EnvSpec | None:
    """The spec of the environment for a set's evaluation; by default the one that it was recorded in."""
    return dataset._eval_env_spec or dataset.env_spec  # Minari has no public name for the first


def find_spec(name: str) -> EnvSpec:
    """As `spec_of`, by the set's name.

    Raises:
        InputError: The set cannot be loaded, or does not say in what it was recorded.
    """
    spec = spec_of(open_set(name))
    if spec is None:
        raise InputError(f"{name} names no environment: set eval_env")
    return spec


def import_owner(spec: EnvSpec, env_id: str) -> None:
    """Imports the module of an environment, and so its packages; most register it then.

    Raises:
        InputError: It is missing.
    """
    if (owner := owner_of(spec)) is not None:
        module_of(owner, f"environment {env_id!r}")


def owner_of(spec: EnvSpec) -> str | None:
    """The module that an environment comes from; None of those known here, and of one of a program's own file."""
    made_by = spec.entry_point
    module = made_by.partition(":")[0] if isinstance(made_by, str) else getattr(made_by, "__module__", "__main__")
    return None if module.partition(".")[0] in ("gymnasium", "shared", "__main__") else module


def settings_of(spec: EnvSpec) -> tuple[Any, ...]:
    """The settings of a spec that change how its environment steps, apart from its id; rendering does not count."""
    own = {key: value for key, value in spec.kwargs.items() if key != "render_mode"}
    # Those of this project's are put on again by whoever makes the environment.
    wrappers = [wrapper for wrapper in spec.additional_wrappers if not wrapper.entry_point.startswith("shared.")]
    return own, spec.max_episode_steps, wrappers


def make(name: str, **options: Any) -> gymnasium.Env:
    """Makes the environment of a set under the wrappers that it was recorded under.

    Args:
        name: Such as `minari:mujoco/hopper/medium-v0`.
        options: Of `gymnasium.make`, and for the environment.

    Raises:
        InputError: The set or a package is missing, or a wrapper cannot be made again.
    """
    spec = find_spec(name)
    import_owner(spec, name)
    again = copy.deepcopy(spec)
    again.kwargs.pop("render_mode", None)
    try:
        return gymnasium.make(again, disable_env_checker=True, **options)
    except Exception as error:  # whatever somebody's environment or wrapper raises
        wrappers = ", ".join(wrapper.name for wrapper in spec.additional_wrappers)
        under = f" under {wrappers}" if wrappers else ""
        raise InputError(
            f"the environment of {name}, {spec.id}{under}, cannot be made again ({reason(error)}): set eval_env to one "
            "that acts like it"
        ) from error
