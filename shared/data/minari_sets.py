"""Minari's datasets as rows: one for each step, with the observation that came after it.

An episode of T actions holds T + 1 observations, so actions and observations must be cut into rows episode by episode.
If they were joined first and cut afterwards, each episode's observations would lie one row further from its actions.
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
    """Reads a dataset from Minari's folder, `$MINARI_DATASETS_PATH` or `~/.minari/datasets`; downloads a missing one.

    Args:
        name: For example `minari:mujoco/hopper/medium-v0`.

    Returns:
        Rows with `next_observations`; `terminals` are Minari's terminations, `timeouts` mark the last row of every
        other episode. The attribute `env_id` is the environment to evaluate in, where the set says it. That is its
        own name, or the set's where its settings or wrappers are others. Without wrappers `recorded_in` is its own.

    Raises:
        InputError: Minari is not installed, or the dataset cannot be found, downloaded or read. Or its observations
            are neither vectors of numbers nor images, or its actions neither vectors nor finite.
    """
    dataset = open_set(name)
    files = sorted(path for path in Path(dataset.storage.data_path).rglob("*") if path.is_file())
    # Packages that are missing now may be here when the copy is read.
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
    """Episodes, one after the other, as rows.

    Args:
        episodes: Each with `observations` (T + 1, S), or images (T + 1, ...), `actions` (T, A), or (T,) where they are
            finite, `rewards`, `terminations` and `truncations` (T,).
        first: What finite actions are counted from.

    Returns:
        observations, next_observations (N, S), or images (N, C, H, W), actions (N, A) or (N,), rewards, terminals and
        timeouts (N,), checked.

    Raises:
        InputError: An episode's arrays do not fit together, or the values cannot be used.
    """
    parts = [_rows(number, episode) for number, episode in enumerate(episodes)]
    if not parts:
        raise InputError("the dataset holds no episode")
    raw = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    following = raw.pop("next_observations")
    raw["actions"] = raw["actions"] - first
    # Every next observation but an episode's last is also an observation.
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
    """The environment to evaluate in, by its own name where that makes it again, else by the set's."""
    if spec is None:
        return {}
    owner, registered = owner_of(spec), None
    with contextlib.suppress(InputError):  # the package is missing, and another environment may be named
        import_owner(spec, spec.id)
        registered = registry.get(spec.id)
    if registered is not None and settings_of(spec) == settings_of(registered):
        return {"env_id": spec.id if owner is None else f"{owner}:{spec.id}"}
    # Wrappers may change all that an environment shows, takes and pays.
    return {"env_id": name} | ({} if spec.additional_wrappers else {"recorded_in": spec.id})


def path(name: str) -> Path:
    """The folder of a dataset, downloaded if it is not here.

    Raises:
        InputError: As `read`.
    """
    return Path(open_set(name).storage.data_path).parent


def local() -> dict[str, tuple[str, str]]:
    """Minari's datasets on this machine by name: their rows and the sizes of states and actions, as they declare them.

    There are none without Minari.
    """
    if not Path(os.environ.get("MINARI_DATASETS_PATH") or home() / ".minari" / "datasets").is_dir():
        return {}  # asked, Minari would make the folder
    try:
        import minari
    except ImportError:
        return {}
    return {f"{MINARI}{key}": _declared(facts) for key, facts in minari.list_local_datasets().items()}


def _declared(facts: dict[str, Any]) -> tuple[str, str]:
    spaces = [json.loads(facts[key]) for key in ("observation_space", "action_space")]
    sizes = [str(space["shape"][0]) if space["type"] == "Box" else space["type"] for space in spaces]
    return f"{facts['total_steps']:,}", "+".join(sizes)
