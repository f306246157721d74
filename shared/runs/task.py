"""A task: the dataset as an algorithm sees it, and the evaluator that scores what was learnt from it."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from shared import names
from shared.data import scalers, sequences, sources, transitions
from shared.data.cache import Source
from shared.data.episodes import of_transitions
from shared.data.nsteps import extract_n_steps
from shared.data.online import OnlineExperience
from shared.data.returns import extract_ended, extract_episodes
from shared.data.transitions import Batch
from shared.envs import genuine
from shared.envs.evaluation import Evaluator
from shared.envs.registry import is_registered, least_memory, time_limit
from shared.envs.scores import env_of, scale
from shared.envs.spaces import Shape, axes, kept_as, shape_of, size_of_statistics
from shared.envs.stepping import Stepper
from shared.errors import InputError
from shared.runs import memory, own_data, seeds
from shared.runs.encoders import check_readable, frame_stack_of
from shared.runs.fields import check
from shared.runs.own_data import NO_PROMPTS, Prompts
from shared.runs.scoring import Scorer
from shared.runs.settings import DatasetConfig, RewardsConfig, RunConfig, TransitionsConfig


@dataclass(frozen=True)
class Task:
    """What a run learns from and what scores it.

    Attributes:
        dataset: A `Batch` of transitions, or `Trajectories`, as the algorithm sees them; float32 NumPy arrays. For an
            algorithm that makes its own data: room for it, all zeros.
        evaluator: Runs episodes, and normalises states with the same `mean` and `std`. Or it measures values on the
            dataset, where that is all there is.
        shape: Of an observation: S, or (C, H, W) of images.
        action_dim: A; of finite actions, how many there are.
        max_action: Bound of every action component, as the algorithm sees them; 1 for finite actions.
        mean: (S,), 0 without normalisation; (1,) of images.
        std: (S,), 1 without normalisation; (1,) of images.
        action_mean: (A,), 0 without an action scaler.
        action_std: (A,), 1 without an action scaler.
        attributes: What the dataset's file says about itself, such as `expert_return_mean`.
        fingerprint: Name, number of transitions and SHA-256 of the dataset's file; the environment's name alone if
            there is none.
        step_reward: From a reward of the environment to what is learnt from, as the dataset's rewards were modified.
        prompts: What a sequence model is asked for; nothing of other algorithms.
    """

    dataset: Any
    evaluator: Scorer
    shape: Shape
    action_dim: int
    max_action: float
    mean: np.ndarray
    std: np.ndarray
    action_mean: np.ndarray
    action_std: np.ndarray
    attributes: dict[str, Any]
    fingerprint: dict[str, Any]
    step_reward: Callable[[float], float] = lambda reward: reward
    prompts: Prompts = NO_PROMPTS

    @property
    def state_dim(self) -> int:
        """S, for an algorithm that learns from vectors."""
        assert isinstance(self.shape, int), "one without encoders is never given images"
        return self.shape


def load_task(
    config: Any,
    prepare: Callable[..., Any] | None = None,
    normalize: bool = True,
    eval_seed: int | None = None,
    source: Any = None,
    extract: Callable[[dict[str, np.ndarray], int | None], Any] = transitions.extract_transitions,
    step_rewards: Callable[..., Callable[[float], float]] | None = None,
    finite: bool = False,
) -> Task:
    """Loads the dataset that the config names and makes the environment that scores it.

    In CORL's order: transitions are extracted, prepared (rewards modified, or the best trajectories kept), then states
    are normalised. A reward scaler of d3rlpy's goes before all that, so that returns too are those of scaled rewards.
    An observation scaler takes the place of normalisation. An action scaler takes the actions that are learnt from.

    Args:
        config: A `DatasetConfig` with `buffer_size`; of a `RewardsConfig` the rewards may be scaled.
        prepare: From the transitions and a name to the transitions that are learnt from. The name tells the family: it
            is the dataset's, or the environment's for a file of one's own. The keyword `episodes` gives the complete
            episodes, or None where CORL's own cuts count. None leaves the transitions as they are.
        normalize: Whether states are normalised to mean 0 and standard deviation 1.
        eval_seed: Decides the start states of evaluations; None: the config's `seed`.
        source: Anything with D4RL's `get_dataset()`, read in place of the dataset that `config.env` then only names.
        extract: From a file's arrays and the environment's time limit to the transitions.
        step_rewards: From the transitions as extracted and that name to what is done with the reward of a step in the
            environment. None leaves the reward as it is.
        finite: Whether the algorithm chooses one of finite actions; else it gives a vector.

    Raises:
        InputError: A setting, the dataset or the environment cannot be used, or they do not fit.
    """
    check(config)
    memory.check_settings(config)
    read = partial(_transitions, config, prepare, normalize, source, extract, step_rewards, finite)
    learnt = seeds.once(load_task, read)
    task = _task(config, learnt, config.seed if eval_seed is None else eval_seed)
    return task if learnt.step_reward is None else replace(task, step_reward=learnt.step_reward)


def _transitions(
    config: Any,
    prepare: Callable | None,
    normalize: bool,
    source: Any,
    extract: Callable,
    step_rewards: Callable[..., Callable[[float], float]] | None,
    finite: bool,
) -> "_Learnt":
    opened = _open(config, source, finite)
    if getattr(config, "n_steps", 1) > 1:
        extract = _several_steps(config, prepare, extract)
    raw = opened.read.raw
    if transitions.shows_images(raw):
        extract = _images(config, normalize, extract)
    limit = opened.limit
    episodes = None if names.has_published_results(config.env) else of_transitions(raw, limit)
    if episodes is not None and extract is extract_ended:
        extract = extract_episodes  # Cal-QL's rule looks for what the file says
    if (scale := _reward_scale(config, raw, limit)) is not None:
        raw = {**raw, "rewards": scale(raw["rewards"].astype(np.float32, copy=False))}
    dataset = extract(raw, limit)
    if len(dataset.rewards) > config.buffer_size:
        rows = len(dataset.rewards)
        raise InputError(
            f"the dataset has {rows} transitions; set buffer_size to at least that, not {config.buffer_size}"
        )
    step_reward = scale if step_rewards is None else step_rewards(dataset, opened.family, episodes=episodes)
    if prepare is not None:
        extracted, dataset = dataset, prepare(dataset, opened.family, episodes=episodes)
        if episodes is not None:
            own_data.tell_of_preparation(extracted, dataset, episodes)
    mean, std = _no_statistics(raw)
    if config.observation_scaler != "none":
        statistics = partial(scalers.state_statistics, config.observation_scaler)
        dataset, mean, std = transitions.normalise_states(dataset, statistics)
    elif normalize:
        dataset, mean, std = transitions.normalise_states(dataset)
    return _learnt(config, opened, dataset, mean, std, step_reward)


def _several_steps(config: Any, prepare: Callable | None, extract: Callable) -> Callable:
    """The extraction of transitions over several steps, for an algorithm that learns from rewards and states alone."""
    if extract is not transitions.extract_transitions:
        raise InputError("this algorithm learns from the data's next actions: set n_steps to 1")
    if prepare is not None:
        raise InputError(
            "rewards are summed over n_steps as they are: set normalize_reward to false, or a reward_scaler"
        )
    return partial(extract_n_steps, n_steps=config.n_steps, discount=config.discount)


def _images(config: Any, normalize: bool, extract: Callable) -> Callable:
    """The extraction of transitions whose observations are images."""
    if config.observation_scaler != "none":
        raise InputError("images are scaled by their encoder alone: set observation_scaler to none")
    if normalize:
        raise InputError("images are scaled by their encoder alone: set normalize to false")
    return partial(extract, frame_stack=frame_stack_of(config))


def _reward_scale(config: Any, raw: dict[str, np.ndarray], limit: int | None) -> Callable[[Any], Any] | None:
    """What the config's reward scaler does; None without one."""
    if not isinstance(config, RewardsConfig):
        return None
    scalers.check_rewards(config)
    if config.reward_scaler == "none":
        return None
    if getattr(config, "normalize_reward", False):
        raise InputError("rewards are scaled by reward_scaler or by normalize_reward: set normalize_reward to false")
    return scalers.reward_scale(config, raw, limit)


def load_trajectories(
    config: Any, reward_scale: float | None, eval_seed: int | None = None, source: Any = None
) -> Task:
    """Loads whole trajectories, for algorithms that learn from sequences; otherwise as `load_task`.

    As in CORL the statistics of the states are those of all rows of the file, those after the last trajectory included.

    Args:
        config: A `DatasetConfig` with `episode_len`, where an evaluated
            episode is cut. The dataset's episodes may be a step longer, as those of D4RL's antmaze are.
        reward_scale: Factor on returns-to-go; None: as the task's `prompts` say, which are CORL's or the data's.
        eval_seed: Decides the start states of evaluations; None: the config's `seed`.
        source: As in `load_task`.

    Raises:
        InputError: A setting, the dataset or the environment cannot be used, or the two do not fit.
    """
    check(config)
    memory.check_settings(config)
    learnt, prompts = seeds.once(load_trajectories, lambda: _trajectories(config, reward_scale, source))
    # A policy with a context is so costly that rows of episodes which wait for an environment would be a waste.
    memory.check_size("n_episodes", config.n_episodes, config.n_episodes * least_memory(learnt.opened.env_id))
    limits = {"num_envs": config.n_episodes, "max_steps": config.episode_len}
    task = _task(config, learnt, config.seed if eval_seed is None else eval_seed, **limits)
    return replace(task, prompts=prompts)


def _trajectories(config: Any, reward_scale: float | None, source: Any) -> tuple["_Learnt", Prompts]:
    opened = _open(config, source, finite=False)
    dataset = sequences.split_trajectories(opened.read.raw, opened.limit)
    longest = int(sequences.trajectory_lengths(dataset).max())
    if longest > config.episode_len + 1:
        raise InputError(f"a trajectory of the dataset has {longest} steps: set episode_len to at least {longest - 1}")
    scaler, observations = config.observation_scaler, opened.read.raw["observations"]
    own = sequences.state_statistics if scaler == "none" else partial(scalers.state_statistics, scaler)
    dataset, mean, std = sequences.normalise_states(dataset, observations, own)
    prompts = own_data.prompts(config, reward_scale, dataset.returns[dataset.timesteps == 0])
    dataset = dataset._replace(returns=dataset.returns * np.float32(prompts.reward_scale))
    return _learnt(config, opened, dataset, mean, std), prompts


def training_environment(config: Any, task: Task) -> OnlineExperience:
    """Where a run goes on that has learnt from a dataset: its own copy of the environment that scores it.

    States are normalised by the dataset's statistics, rewards modified by its returns; neither is ever taken anew.

    Args:
        config: Has `switch`, `online_iterations` and `seed`.
        task: Of the run.

    Raises:
        InputError: This machine could not hold so many steps.
    """
    steps = config.online_iterations
    try:
        memory.check_size("online_iterations", steps, steps * 4 * (2 * task.state_dim + task.action_dim + 4))
    except InputError:
        task.evaluator.close()
        raise
    stepper = Stepper(task.evaluator.fingerprint["env"], task.mean, task.std, task.step_reward)
    return OnlineExperience(stepper, config.seed, steps, config.switch)


def load_environment(config: Any, finite: bool = False) -> Task:
    """The task of an algorithm that makes its own data, in the environment that scores it; states as they are.

    Args:
        config: Has `env`, which names the environment, `max_timesteps`, `n_episodes` and `seed`. Settings of how a
            dataset is read must be at their defaults.
        finite: Whether the algorithm chooses one of finite actions; else it gives a vector.

    Raises:
        InputError: A setting or the environment cannot be used.
    """
    check(config)
    memory.check_settings(config)
    _check_no_dataset(config)
    evaluator = Evaluator(config.env, config.n_episodes, config.seed, frame_stack=frame_stack_of(config))
    rows, state_dim, action_dim = config.max_timesteps, evaluator.state_dim, evaluator.action_dim
    try:
        _check_kind(f"environment {config.env!r}", evaluator.actions.finite, finite)
        check_readable(config, state_dim, f"observations of environment {config.env!r}")
        memory.check_size("max_timesteps", rows, rows * 2 * _bytes(state_dim) + rows * 4 * (action_dim + 2))
    except InputError:
        evaluator.close()
        raise
    seen = (rows, *axes(state_dim)), kept_as(state_dim)
    room = Batch(
        observations=np.zeros(*seen),
        actions=np.zeros((rows, *evaluator.actions.shape), evaluator.actions.dtype),
        rewards=np.zeros(rows, np.float32),
        next_observations=np.zeros(*seen),
        terminals=np.zeros(rows, np.float32),
    )
    return Task(
        dataset=room,
        evaluator=evaluator,
        shape=state_dim,
        action_dim=action_dim,
        max_action=evaluator.max_action,
        mean=np.zeros(size_of_statistics(state_dim), np.float32),
        std=np.ones(size_of_statistics(state_dim), np.float32),
        action_mean=np.zeros(action_dim, np.float32),
        action_std=np.ones(action_dim, np.float32),
        attributes={},
        fingerprint={"name": config.env},
    )


def _bytes(state_dim: Shape) -> int:
    """Of an observation."""
    return math.prod(axes(state_dim)) * np.dtype(kept_as(state_dim)).itemsize


def _check_no_dataset(config: Any) -> None:
    """No setting is given that only a dataset has, of an algorithm that may learn from one."""
    for field in fields(TransitionsConfig):
        of_datasets = not hasattr(RunConfig, field.name) and field.name != "max_timesteps"
        if of_datasets and getattr(config, field.name, field.default) != field.default:
            raise InputError(f"{field.name} is for datasets, and env is an environment, {config.env!r}: leave it out")


class _Opened(NamedTuple):
    """A dataset as read, the environment that scores what is learnt from it, and the name that tells the family."""

    read: Source
    env_id: str
    family: str

    @property
    def limit(self) -> int | None:
        """Steps after which an episode is cut where the dataset does not mark it; None where nobody knows."""
        return self.read.max_episode_steps or time_limit(self.env_id)


class _Learnt(NamedTuple):
    """What does not depend on the seed: the source, what is learnt from it, and its statistics; as in a `Task`."""

    opened: _Opened
    dataset: Any
    mean: np.ndarray
    std: np.ndarray
    action_mean: np.ndarray
    action_std: np.ndarray
    step_reward: Callable[[float], float] | None


def _learnt(
    config: Any,
    opened: _Opened,
    dataset: Any,
    mean: np.ndarray,
    std: np.ndarray,
    step_reward: Callable[[float], float] | None = None,
) -> _Learnt:
    """Scales the actions, where the config asks for it."""
    action_mean, action_std = np.zeros((), np.float32), np.ones((), np.float32)
    if _scales_actions(config):
        if dataset.actions.ndim == 1:
            raise InputError("finite actions have no scale: set action_scaler to none")
        action_mean, action_std = scalers.action_statistics(dataset.actions)
        columns = [name for name in ("actions", "next_actions") if hasattr(dataset, name)]
        scaled = {name: (getattr(dataset, name) - action_mean) / action_std for name in columns}
        dataset = dataset._replace(**scaled)
    return _Learnt(opened, dataset, mean, std, action_mean, action_std, step_reward)


def _scales_actions(config: Any) -> bool:
    return getattr(config, "action_scaler", "none") != "none"


def _check_kind(what: str, finite: bool, wanted: bool) -> None:
    """Whether actions are of the kind that the algorithm gives.

    Raises:
        InputError: They are not.
    """
    kinds = {False: "vectors", True: "finite ones"}
    if finite != wanted:
        raise InputError(
            f"actions of {what} are {kinds[finite]}, this algorithm's are {kinds[wanted]}: set env to another"
        )


def _open(config: Any, source: Any, finite: bool) -> _Opened:
    read = sources.read(config.env) if source is None else sources.from_object(source)
    _check_kind(f"dataset {config.env!r}", read.raw["actions"].ndim == 1, finite)
    check_readable(config, shape_of(read.raw["observations"]), f"observations of dataset {config.env!r}")
    env_id = _scoring_env(config, read.attributes)
    opened = _Opened(read, env_id, env_id if names.is_file_name(config.env) else config.env)
    return opened._replace(read=own_data.looked_through(config, read, opened.limit))


def _scoring_env(config: Any, attributes: dict[str, Any]) -> str:
    """The environment that scores what is learnt under a config from a dataset with these attributes."""
    if config.eval_backend == "d4rl":
        return genuine.env_id(config.eval_env or config.env)
    return config.eval_env or own_env(config.env, attributes)


def scoring_env(config: Any) -> str:
    """The environment that scores a run of these settings; the dataset is read where it alone can tell.

    Raises:
        InputError: The dataset is missing, or names no environment.
    """
    if is_registered(config.env):  # by who makes the data in it
        return config.env
    if not isinstance(config, DatasetConfig):  # nor does what judges a policy name one
        return own_env(config.env, sources.read(config.env).attributes)
    told = config.eval_env or config.eval_backend == "d4rl" or config.env in names.D4RL_FACTS
    return _scoring_env(config, {} if told else sources.read(config.env).attributes)


def _no_statistics(raw: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean 0 and standard deviation 1 for every component of the state."""
    size = size_of_statistics(shape_of(raw["observations"]))
    return np.zeros(size, np.float32), np.ones(size, np.float32)


def _task(config: Any, learnt: _Learnt, seed: int, **limits: Any) -> Task:
    opened, dataset = learnt.opened, learnt.dataset
    attributes = opened.read.attributes
    # What the file states are returns of the environment that it names.
    stated = attributes if attributes.get("env_id") == opened.env_id else None
    limits |= {"action_mean": learnt.action_mean, "action_std": learnt.action_std}
    limits |= {"reported": scale(opened.env_id, stated)}
    limits["frame_stack"] = frame_stack_of(config)
    evaluator = Evaluator(opened.env_id, config.n_episodes, seed, learnt.mean, learnt.std, **limits)
    if misfit := _misfit(dataset, attributes.get("n_actions"), evaluator):
        evaluator.close()
        raise InputError(
            f"dataset {config.env!r} has {misfit[0]}, environment {opened.env_id!r} {misfit[1]}: "
            "set eval_env to the one it was recorded in"
        )
    action_dim = evaluator.action_dim
    return Task(
        dataset=dataset,
        evaluator=evaluator,
        shape=evaluator.state_dim,
        action_dim=action_dim,
        max_action=1.0 if _scales_actions(config) else evaluator.max_action,
        mean=learnt.mean,
        std=learnt.std,
        action_mean=np.resize(learnt.action_mean, action_dim),
        action_std=np.resize(learnt.action_std, action_dim),
        attributes=attributes,
        fingerprint={"name": config.env, "transitions": len(dataset.actions), "sha256": opened.read.sha256},
    )


def _misfit(dataset: Any, n_actions: int | None, evaluator: Evaluator) -> tuple[str, str] | None:
    """In words, of what size or kind the dataset's steps are, and those of its environment; None where they fit."""
    states, there = shape_of(dataset.observations), evaluator.actions
    if dataset.actions.ndim == 2:
        ours = f"states of size {states} and actions of size {dataset.actions.shape[1]}"
        fits = dataset.actions.shape[1:] == there.shape
    elif n_actions is None:
        largest = int(dataset.actions.max())
        ours, fits = f"states of size {states} and the action {largest}", there.finite and largest < there.size
    else:
        ours, fits = f"states of size {states} and {n_actions} actions", there.finite and n_actions == there.size
    if fits and states == evaluator.state_dim:
        return None
    return ours, f"{evaluator.state_dim} and {f'actions 0 to {there.size - 1}' if there.finite else there.size}"


def own_env(name: str, attributes: dict[str, Any]) -> str:
    """The environment that a dataset's file names, else the one most like that in which D4RL recorded it."""
    if "env_id" in attributes:
        return str(attributes["env_id"])
    if name not in names.D4RL_FACTS:
        hint = ", or write the file's attribute 'env_id'" if names.is_file_name(name) else ""
        raise InputError(f"{name} names no environment: set eval_env{hint}")
    return env_of(name)
