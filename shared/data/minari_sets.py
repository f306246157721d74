"""Minari's datasets as rows: one for each step, with its next observation.

An episode of T actions has T + 1 observations, so rows must be built for each episode separately. If episodes were
concatenated first, each episode would shift the following observations by one more row.
"""

import contextlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import registry
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Discrete

from shared.data.cache import Source, cached
from shared.data.transitions import checked_arrays
from shared.envs.images import channels_first, is_image
from shared.envs.recorded import import_owner, open_set, owner_of, settings_of, spec_of
from shared.errors import InputError
from shared.files import home
from shared.names import MINARI


def read(name: str) -> Source:
    """Reads a dataset from Minari's folder, `$MINARI_DATASETS_PATH` or `~/.minari/datasets`; downloads it if missing.

    Args:
        name: For example `minari:mujoco/hopper/medium-v0`.

    Returns:
        Rows with `next_observations`. `terminals` are Minari's terminations, and `timeouts` mark the last row of every
        other episode. The attribute `env_id` names the environment to evaluate in, if the dataset states it. This is
        the environment's own name, or the dataset's if settings or wrappers differ. Without wrappers, `recorded_in` is
        its own name.

    Raises:
        InputError: Minari is not installed, or the dataset cannot be found, downloaded or read. Or its observations are
            neither vectors nor images, or its actions neither vectors nor finite.
    """
    dataset = open_set(name)
    files = sorted(path for path in Path(dataset.storage.data_path).rglob("*") if path.is_file())
    # Not cached, because packages that are missing now may be installed later
    return cached(files, lambda: _flat(name, dataset))._replace(attributes=_attributes(name, spec_of(dataset)))


def _flat(name: str, dataset: Any) -> Source:
    observations, actions = dataset.observation_space, dataset.action_space
    finite = isinstance(actions, Discrete)
    if not (is_image(observations) or _is_vector(observations)):
        raise InputError(f"cannot use {name!r}: its observations are {observations}, neither vectors nor images")
    if not (finite or _is_vector(actions)):
        raise InputError(f"cannot use {name!r}: its actions are {actions}, not vectors of real numbers")
    try:
        raw = join(dataset.iterate_episodes(), actions.start if finite else 0)
    except (OSError, RuntimeError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{name!r} is damaged: delete its folder and load it again ({reason})") from error
    spec = dataset.env_spec
    return Source(raw, {}, None if spec is None else spec.max_episode_steps)


def _is_vector(space: Any) -> bool:
    return isinstance(space, Box) and len(space.shape) == 1


def join(episodes: Iterable[Any], first: int = 0) -> dict[str, np.ndarray]:
    """Converts episodes to rows, one after the other.

    Args:
        episodes: Each with `observations` (T + 1, S), or images (T + 1, ...), `actions` (T, A), or (T,) if they are
            finite, `rewards`, `terminations` and `truncations` (T,).
        first: The number of the first finite action.

    Returns:
        observations, next_observations (N, S), or images (N, C, H, W), actions (N, A) or (N,), rewards, terminals and
        timeouts (N,), checked.

    Raises:
        InputError: An episode's arrays do not match, or the values cannot be used.
    """
    parts = [_rows(number, episode) for number, episode in enumerate(episodes)]
    if not parts:
        raise InputError("the dataset holds no episode")
    raw = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    following = raw.pop("next_observations")
    raw["actions"] = raw["actions"] - first
    # Every next observation except an episode's last is also an observation, so it is checked twice.
    following = checked_arrays({**raw, "observations": following}, "next observations")["observations"]
    return {**checked_arrays(raw, "the dataset"), "next_observations": following}


def _rows(number: int, episode: Any) -> dict[str, np.ndarray]:
    observations, steps = np.asarray(episode.observations), len(episode.actions)
    if observations.ndim > 2:
        observations = channels_first(observations, 1)
    if len(observations) != steps + 1 or steps == 0:
        raise InputError(f"episode {number} has {len(observations)} observations for {steps} actions, not one more")
    terminals = np.asarray(episode.terminations, bool)
    timeouts = np.zeros(steps, bool)
    timeouts[-1] = not terminals[-1]
    return {
        "observations": observations[:-1],
        "next_observations": observations[1:],
        "actions": np.asarray(episode.actions),
        "rewards": np.asarray(episode.rewards),
        "terminals": terminals,
        "timeouts": timeouts,
    }


def _attributes(name: str, spec: EnvSpec | None) -> dict[str, Any]:
    """The environment to evaluate in: its own name if that recreates it, else the dataset's."""
    if spec is None:
        return {}
    owner, registered = owner_of(spec), None
    with contextlib.suppress(InputError):  # a missing package, if another environment may be named
        import_owner(spec, spec.id)
        registered = registry.get(spec.id)
    if registered is not None and settings_of(spec) == settings_of(registered):
        return {"env_id": spec.id if owner is None else f"{owner}:{spec.id}"}
    # Wrappers may change observations, actions and rewards.
    return {"env_id": name} | ({} if spec.additional_wrappers else {"recorded_in": spec.id})


def path(name: str) -> Path:
    """The folder of a dataset, which is downloaded if it is missing.

    Raises:
        InputError: As for `read`.
    """
    return Path(open_set(name).storage.data_path).parent


def local() -> dict[str, tuple[str, str]]:
    """Minari's datasets on this machine, by name: the number of rows and the sizes of states and actions, as declared.

    Empty without Minari.
    """
    if not Path(os.environ.get("MINARI_DATASETS_PATH") or home() / ".minari" / "datasets").is_dir():
        return {}  # Minari would create the folder
    try:
        import minari
    except ImportError:
        return {}
    return {f"{MINARI}{key}": _declared(facts) for key, facts in minari.list_local_datasets().items()}


def _declared(facts: dict[str, Any]) -> tuple[str, str]:
    spaces = [json.loads(facts[key]) for key in ("observation_space", "action_space")]
    sizes = [str(space["shape"][0]) if space["type"] == "Box" else space["type"] for space in spaces]
    return f"{facts['total_steps']:,}", "+".join(sizes)
