"""Opening a dataset: its arrays, its environment, the family of its task, and its time limit."""

from typing import Any, NamedTuple

from shared import names
from shared.data import sources
from shared.data.cache import Source
from shared.envs import genuine
from shared.envs.registry import is_registered, time_limit
from shared.envs.scores import env_of
from shared.envs.spaces import shape_of
from shared.errors import InputError
from shared.runs import own_data
from shared.runs.encoders import check_readable
from shared.runs.settings import DatasetConfig, RecordConfig
from shared.runs.validation import NO_ENVIRONMENT

_NEEDED = "set eval_env to one, or to none to learn from the data alone"


class Opened(NamedTuple):
    """A dataset, and the facts that follow from its name and its file.

    Attributes:
        name: The dataset's name.
        read: The file's arrays and attributes.
        env_id: The environment in which policies are scored, or `none`.
        family: The name that determines the task's family: the dataset's name in D4RL, otherwise the environment's.
        limit: The time limit of the recording in steps, or None if it is unknown.
        frame_stack: The number of frames in an observation of images.
    """

    name: str
    read: Source
    env_id: str
    family: str
    limit: int | None
    frame_stack: int


def open_dataset(config: DatasetConfig, finite: bool) -> Opened:
    """Reads the dataset that a config names.

    Args:
        config: The settings of the run.
        finite: Whether the algorithm's actions are finite; otherwise they are vectors.

    Raises:
        InputError: The dataset cannot be read, names no environment, or is of a kind that the algorithm cannot use.
    """
    read = sources.read(config.env)
    check_actions(f"dataset {config.env!r}", read.raw["actions"].ndim == 1, finite)
    check_readable(config.reader, shape_of(read.raw["observations"]), f"observations of dataset {config.env!r}")
    env_id = _scoring_env(config, read.attributes)
    recorded_in = str(read.attributes.get("env_id", "")) if env_id == NO_ENVIRONMENT else env_id
    limit = read.max_episode_steps or time_limit(recorded_in)
    read = own_data.looked_through(config.env, read, limit, config.limits_as_terminals)
    family = _family(config.env, read.attributes, recorded_in)
    return Opened(config.env, read, env_id, family, limit, config.reader.frame_stack)


def check_actions(what: str, finite: bool, wanted: bool) -> None:
    """Checks that actions are of the kind that the algorithm needs.

    Raises:
        InputError: They are of the other kind.
    """
    kinds = {False: "vectors", True: "finite ones"}
    if finite != wanted:
        raise InputError(
            f"actions of {what} are {kinds[finite]}, this algorithm's are {kinds[wanted]}: set env to another"
        )


def scoring_env(config: RecordConfig) -> str:
    """The environment that scores a run with these settings; reads the dataset only if nothing else names it.

    Raises:
        InputError: The dataset is missing, or names no environment.
    """
    if is_registered(config.env):  # an algorithm that collects its own data
        return config.env
    if not isinstance(config, DatasetConfig):  # off-policy evaluation, which has no such settings
        return own_env(config.env, sources.read(config.env).attributes)
    told = config.eval_env or config.eval_backend == "d4rl" or config.env in names.D4RL_FACTS
    return _scoring_env(config, {} if told else sources.read(config.env).attributes)


def own_env(name: str, attributes: dict[str, Any], needed: str = _NEEDED) -> str:
    """The environment that a dataset's file names, or else our closest match to D4RL's.

    Args:
        name: The name of the dataset.
        attributes: The attributes of its file.
        needed: Advice for the message if no environment is named.

    Raises:
        InputError: The dataset names no environment.
    """
    if "env_id" in attributes:
        return str(attributes["env_id"])
    if name not in names.D4RL_FACTS:
        hint = ", or write the file's attribute 'env_id'" if names.is_file_name(name) else ""
        raise InputError(f"{name} names no environment: {needed}{hint}")
    return env_of(name)


def _scoring_env(config: DatasetConfig, attributes: dict[str, Any]) -> str:
    """The environment that scores policies learnt with this config from a dataset with these attributes."""
    if config.eval_backend == "d4rl":
        if config.eval_env == NO_ENVIRONMENT:
            raise InputError("eval_backend is of an environment, and eval_env is none: leave one of them out")
        return genuine.env_id(config.eval_env or config.env)
    return config.eval_env or own_env(config.env, attributes)


def _family(name: str, attributes: dict[str, Any], env_id: str) -> str:
    """The name that determines the family of a dataset's task; for your own file, the environment's name."""
    if name in names.D4RL_FACTS:
        return name
    if names.is_own(name):
        return env_id
    return str(attributes.get("recorded_in", attributes.get("env_id", env_id)))
