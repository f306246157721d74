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
from shared.data.episodes import of_each_transition, of_transitions
from shared.data.held_out import hold_out
from shared.data.nsteps import extract_n_steps
from shared.data.online import OnlineExperience
from shared.data.returns import extract_ended, extract_episodes
from shared.data.transitions import Batch
from shared.envs import genuine
from shared.envs.boxes import ActionBox, ActionUnits
from shared.envs.evaluation import Evaluator
from shared.envs.registry import is_registered, least_memory, time_limit
from shared.envs.scores import env_of, scale
from shared.envs.spaces import Actions, Shape, axes, kept_as, shape_of, size_of_statistics
from shared.envs.stepping import Stepper
from shared.errors import InputError
from shared.runs import memory, own_data, seeds
from shared.runs.actions import action_units
from shared.runs.encoders import check_readable, frame_stack_of
from shared.runs.episodes import cut_after, tell_of_cut
from shared.runs.fields import check
from shared.runs.origin import Origin, Statistics, origin_of
from shared.runs.own_data import NO_PROMPTS, Prompts
from shared.runs.progress import say
from shared.runs.scoring import Scorer
from shared.runs.settings import DatasetConfig, RewardsConfig, RunConfig, TransitionsConfig
from shared.runs.validation import (
    DEFAULT_SHARE,
    NO_ENVIRONMENT,
    HeldOut,
    ValidatedEvaluator,
    ValidationEvaluator,
    thinned,
)


@dataclass(frozen=True)
class Task:
    """What a run learns from and what scores it.

    Attributes:
        dataset: A `Batch` of transitions, or `Trajectories`, as the algorithm sees them; float32 NumPy arrays. For an
            algorithm that makes its own data: room for it, all zeros.
        evaluator: Runs episodes, and normalises states with the same `mean` and `std`. Or it measures values, or
            actions, on the dataset, where that is all there is.
        shape: Of an observation: S, or (C, H, W) of images.
        action_dim: A; of finite actions, how many there are.
        max_action: Bound of every action component, as the algorithm sees them: 1, but for runs begun before actions
            were learnt in units of their box.
        mean: (S,), 0 without normalisation; (1,) of images.
        std: (S,), 1 without normalisation; (1,) of images.
        action_mean: (A,), added to a policy's actions; 0 where they are the environment's already.
        action_std: (A,), multiplies them before; 1 where they are the environment's already.
        attributes: What the dataset's file says about itself, such as `expert_return_mean`.
        fingerprint: Name, number of transitions and SHA-256 of the dataset's file; the environment's name alone if
            there is none.
        step_reward: From a reward of the environment to what is learnt from, as the dataset's rewards were modified.
        box: What the environment's actions never leave; None of finite actions.
        held_out: Transitions of held-out episodes, as the algorithm would learn from them; None if there are none.
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
    box: ActionBox | None = None
    held_out: Any = None

    @property
    def units(self) -> ActionUnits:
        """From a policy's actions to the environment's."""
        return ActionUnits(self.action_mean, self.action_std, self.max_action, self.box)

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
    model: Origin | None = None,
) -> Task:
    """Loads the dataset that the config names and makes the environment that scores it.

    In CORL's order: transitions are extracted, prepared (rewards modified, or the best trajectories kept), then states
    are normalised. A reward scaler of d3rlpy's goes before all that, so that returns too are those of scaled rewards.
    An observation scaler takes the place of normalisation. Actions are learnt in units of their box, and an action
    scaler takes the range of those that are learnt from in its place. Where the run begins with a checkpoint, its
    statistics of states and its units of actions are used.

    Args:
        config: A `DatasetConfig` with `buffer_size`; of a `RewardsConfig` the rewards may be scaled.
        prepare: From the transitions and a name to the transitions that are learnt from. The name tells the family: it
            is D4RL's of a dataset, or that of the environment of another one. The keyword `episodes` gives the complete
            episodes, or None where CORL's own cuts count. None leaves the transitions as they are.
        normalize: Whether states are normalised to mean 0 and standard deviation 1.
        eval_seed: Decides the start states of evaluations; None: the config's `seed`.
        source: Anything with D4RL's `get_dataset()`, read in place of the dataset that `config.env` then only names.
        extract: From a file's arrays and the environment's time limit to the transitions.
        step_rewards: From the transitions as extracted and that name to what is done with the reward of a step in the
            environment. None leaves the reward as it is.
        finite: Whether the algorithm chooses one of finite actions; else it gives a vector.
        model: A learnt model of the environment, in whose units states and actions are; None: there is none.

    Raises:
        InputError: A setting, the dataset or the environment cannot be used, or they do not fit.
    """
    check(config)
    memory.check_settings(config)
    origin = model or origin_of(config)
    read = partial(_transitions, config, prepare, normalize, source, extract, step_rewards, finite, origin)
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
    origin: Origin | None,
) -> "_Learnt":
    opened = _open(config, source, finite)
    if getattr(config, "n_steps", 1) > 1:
        extract = _several_steps(config, prepare, extract)
    limit = opened.limit
    raw, held_out = _divided(config, opened.read.raw, limit)
    episodes = None if names.has_published_results(config.env) else of_transitions(raw, limit)
    if episodes is not None and extract is extract_ended:
        extract = extract_episodes  # Cal-QL's rule looks for what the file says
    shown = transitions.extract_transitions
    if transitions.shows_images(raw):
        extract, shown = _images(config, normalize, extract), _images(config, normalize, shown)
    unseen = held_out is not opened.read.raw
    if (scale := _reward_scale(config, raw, limit)) is not None:
        raw = {**raw, "rewards": scale(raw["rewards"].astype(np.float32, copy=False))}
        if held_out is not None and unseen:
            held_out = {**held_out, "rewards": scale(held_out["rewards"].astype(np.float32, copy=False))}
    dataset = extract(raw, limit)
    if len(dataset.rewards) > config.buffer_size:
        raise InputError(
            f"the dataset has {len(dataset.rewards)} transitions; set buffer_size to at least that, not "
            f"{config.buffer_size}"
        )
    step_reward = scale if step_rewards is None else step_rewards(dataset, opened.family, episodes=episodes)
    extracted = dataset
    if prepare is not None:
        dataset = prepare(dataset, opened.family, episodes=episodes)
        if episodes is not None:
            own_data.tell_of_preparation(extracted, dataset, episodes)
    mean, std = _no_statistics(raw)
    if (statistics := _statistics(config, normalize, origin)) is not None and not transitions.shows_images(raw):
        dataset, mean, std = transitions.normalise_states(dataset, statistics)
    learnt = _Learnt(opened, dataset, mean, std, origin, step_reward)
    if held_out is None:
        return learnt
    measured = shown(held_out, limit)
    numbers = of_each_transition(held_out, limit)
    rows = thinned(HeldOut(measured.observations, measured.actions, measured.rewards, numbers, unseen))
    learnt = learnt._replace(measured=_normalised(rows, learnt))
    if not unseen:
        return learnt
    others = extract(held_out, limit)
    if prepare is not None:
        others = _as_prepared(others, extracted, dataset)
    return learnt._replace(held_out=None if others is None else _normalised(others, learnt))


def _as_prepared(others: Any, before: Any, after: Any) -> Any:
    """Held-out transitions whose rewards are modified as those that are learnt from; None where that is not known.

    All rules are a factor and a shift, which two transitions tell.
    """
    if type(before) is not type(after) or len(before.rewards) != len(after.rewards):
        return None
    low, high = int(before.rewards.argmin()), int(before.rewards.argmax())
    spread = float(before.rewards[high] - before.rewards[low])
    factor = float(after.rewards[high] - after.rewards[low]) / spread if spread else 1.0
    shift = float(after.rewards[low]) - factor * float(before.rewards[low])
    return others._replace(rewards=(factor * others.rewards + shift).astype(np.float32))


def _normalised(rows: Any, learnt: "_Learnt") -> Any:
    """Held-out rows whose states are as those that are learnt from; images stay as they are."""
    if rows.observations.ndim > 2:
        return rows
    states = {name: getattr(rows, name) for name in ("observations", "next_observations") if hasattr(rows, name)}
    return rows._replace(
        **{name: transitions.normalise(column, learnt.mean, learnt.std) for name, column in states.items()}
    )


def _divided(
    config: Any, raw: dict[str, np.ndarray], limit: int | None
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray] | None]:
    """The rows that are learnt from, and those that a policy is measured on; None where it is not measured."""
    alone = config.eval_env == NO_ENVIRONMENT
    share = getattr(config, "validation_share", 0.0)
    asked = share is not None
    share = share if asked else DEFAULT_SHARE * alone
    parts = hold_out(raw, limit, share) if share else None
    if parts is not None:
        return parts
    if share:
        reason = "fewer than two episodes of the dataset are complete, so none can be held out"
        if asked:
            raise InputError(f"{reason}: set validation_share to 0")
        say(f"{reason}: actions are measured on the rows that are learnt from")
    return raw, raw if alone else None


def _statistics(config: Any, normalize: bool, origin: Origin | None) -> Statistics | None:
    """What states are normalised by; None: they stay as they are."""
    own: Statistics | None = transitions.state_statistics if normalize else None
    if config.observation_scaler != "none":
        own = partial(scalers.state_statistics, config.observation_scaler)
    return own if origin is None else origin.statistics(own or _neutral)


def _neutral(observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Statistics that leave states as they are."""
    size = observations.shape[1]
    return np.zeros(size, np.float32), np.ones(size, np.float32)


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
    if learnt.opened.env_id != NO_ENVIRONMENT:
        # A policy with a context is so costly that rows of episodes which wait for an environment would be a waste.
        memory.check_size("n_episodes", config.n_episodes, config.n_episodes * least_memory(learnt.opened.env_id))
    limits = {"num_envs": config.n_episodes, "max_steps": config.episode_len}
    task = _task(config, learnt, config.seed if eval_seed is None else eval_seed, **limits)
    return replace(task, prompts=prompts)


def _trajectories(config: Any, reward_scale: float | None, source: Any) -> tuple["_Learnt", Prompts]:
    opened = _open(config, source, finite=False)
    raw, held_out = _divided(config, opened.read.raw, opened.limit)
    dataset = sequences.split_trajectories(raw, opened.limit)
    longest = int(sequences.trajectory_lengths(dataset).max())
    if longest > config.episode_len + 1:
        raise InputError(f"a trajectory of the dataset has {longest} steps: set episode_len to at least {longest - 1}")
    scaler, observations = config.observation_scaler, raw["observations"]
    own = sequences.state_statistics if scaler == "none" else partial(scalers.state_statistics, scaler)
    origin = origin_of(config)
    statistics = own if origin is None else origin.statistics(own)
    dataset, mean, std = sequences.normalise_states(dataset, observations, statistics)
    prompts = own_data.prompts(config, reward_scale, dataset.returns[dataset.timesteps == 0])
    dataset = dataset._replace(returns=dataset.returns * np.float32(prompts.reward_scale))
    learnt = _Learnt(opened, dataset, mean, std, origin, None)
    if held_out is None:
        return learnt, prompts
    measured = sequences.split_trajectories(held_out, opened.limit)
    numbers, rewards = np.cumsum(measured.timesteps == 0), held_out["rewards"][: len(measured.actions)]
    unseen = held_out is not opened.read.raw
    rows = HeldOut(measured.observations, measured.actions, rewards, numbers, unseen)
    return learnt._replace(measured=_normalised(rows, learnt)), prompts


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
        if not isinstance(task.evaluator, Evaluator):
            raise InputError("this algorithm goes on in the environment: set eval_env to its name, not to none")
        memory.check_size("online_iterations", steps, steps * 4 * (2 * task.state_dim + task.action_dim + 4))
    except InputError:
        task.evaluator.close()
        raise
    where = task.evaluator.fingerprint
    cut = where.get("max_episode_steps")
    stepper = Stepper(where["env"], task.mean, task.std, task.step_reward, max_episode_steps=cut, units=task.units)
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
    cut = cut_after(config, config.env)
    frame_stack = frame_stack_of(config)
    evaluator = Evaluator(config.env, config.n_episodes, config.seed, max_steps=cut, frame_stack=frame_stack)
    _note_cut(evaluator, cut)
    rows, state_dim, action_dim = config.max_timesteps, evaluator.state_dim, evaluator.action_dim
    try:
        _check_kind(f"environment {config.env!r}", evaluator.actions.finite, finite)
        check_readable(config, state_dim, f"observations of environment {config.env!r}")
        memory.check_size("max_timesteps", rows, rows * 2 * _bytes(state_dim) + rows * 4 * (action_dim + 2))
        evaluator.units = units = action_units(config, evaluator.actions, origin=origin_of(config))
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
        max_action=units.bound,
        mean=np.zeros(size_of_statistics(state_dim), np.float32),
        std=np.ones(size_of_statistics(state_dim), np.float32),
        action_mean=np.resize(units.mean, action_dim),
        action_std=np.resize(units.std, action_dim),
        attributes={},
        fingerprint={"name": config.env},
        box=units.box,
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
    """A dataset as read, and what its names tell.

    `env_id` is the environment that scores what is learnt from it, `family` the name that tells the family. `limit` is
    the time limit under which it was recorded, in steps, if anybody knows it.
    """

    read: Source
    env_id: str
    family: str
    limit: int | None


class _Learnt(NamedTuple):
    """What does not depend on the seed: the source, what is learnt from it, its statistics, and what that begins with.

    Actions are the dataset's own still; otherwise as in a `Task`.
    """

    opened: _Opened
    dataset: Any
    mean: np.ndarray
    std: np.ndarray
    origin: Origin | None
    step_reward: Callable[[float], float] | None
    measured: HeldOut | None = None
    held_out: Any = None


def _in_units(config: Any, learnt: _Learnt, there: Actions) -> tuple[ActionUnits, Any]:
    """The units of the run's actions, and the dataset with its actions in them."""
    dataset = learnt.dataset
    units = action_units(config, there, dataset.actions, learnt.opened.read.raw["actions"], learnt.origin)
    return units, _with_actions_in(units, dataset)


def _with_actions_in(units: ActionUnits, rows: Any) -> Any:
    """Rows of vectors of actions in these units; others as they are."""
    if units.are_neutral:
        return rows
    columns = [name for name in ("actions", "next_actions") if hasattr(rows, name)]
    return rows._replace(**{name: units.learnt(getattr(rows, name)) for name in columns})


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
    recorded_in = str(read.attributes.get("env_id", "")) if env_id == NO_ENVIRONMENT else env_id
    limit = read.max_episode_steps or time_limit(recorded_in)
    read = own_data.looked_through(config, read, limit)
    return _Opened(read, env_id, told_by(config.env, read.attributes, recorded_in), limit)


def _scoring_env(config: Any, attributes: dict[str, Any]) -> str:
    """The environment that scores what is learnt under a config from a dataset with these attributes."""
    if config.eval_backend == "d4rl":
        if config.eval_env == NO_ENVIRONMENT:
            raise InputError("eval_backend is of an environment, and eval_env is none: leave one of them out")
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
    opened = learnt.opened
    alone = opened.env_id == NO_ENVIRONMENT
    evaluator = None if alone else _environment(config, learnt, seed, **limits)
    there = _actions_of_data(learnt) if evaluator is None else evaluator.actions
    try:
        units, dataset = seeds.once(_in_units, lambda: _in_units(config, learnt, there))
    except InputError:
        if evaluator is not None:
            evaluator.close()
        raise
    if evaluator is not None:
        evaluator.units = units
    return Task(
        dataset=dataset,
        evaluator=_scorer(config, learnt, units, evaluator),
        shape=shape_of(dataset.observations),
        action_dim=there.size,
        max_action=units.bound,
        mean=learnt.mean,
        std=learnt.std,
        action_mean=np.resize(units.mean, there.size),
        action_std=np.resize(units.std, there.size),
        attributes=opened.read.attributes,
        fingerprint={"name": config.env, "transitions": len(dataset.actions), "sha256": opened.read.sha256},
        box=units.box,
        held_out=None if learnt.held_out is None else _with_actions_in(units, learnt.held_out),
    )


def _environment(config: Any, learnt: _Learnt, seed: int, **limits: Any) -> Evaluator:
    """What scores policies in the environment, whose observations and actions are the dataset's."""
    opened, attributes = learnt.opened, learnt.opened.read.attributes
    # What the file states are returns of the environment that it names.
    stated = attributes if attributes.get("env_id") == opened.env_id else None
    limits |= {"reported": scale(opened.env_id, stated)}
    limits["frame_stack"] = frame_stack_of(config)
    cut = cut_after(config, opened.env_id, opened.read.raw)
    limits["max_steps"] = min((steps for steps in (cut, limits.get("max_steps")) if steps), default=None)
    evaluator = Evaluator(opened.env_id, config.n_episodes, seed, learnt.mean, learnt.std, **limits)
    _note_cut(evaluator, cut)
    if misfit := _misfit(learnt.dataset, attributes.get("n_actions"), evaluator):
        evaluator.close()
        raise InputError(
            f"dataset {config.env!r} has {misfit[0]}, environment {opened.env_id!r} {misfit[1]}: "
            "set eval_env to the one it was recorded in"
        )
    return evaluator


def _actions_of_data(learnt: _Learnt) -> Actions:
    """The actions of a dataset whose environment nobody knows."""
    actions = learnt.opened.read.raw["actions"]
    if actions.ndim == 2:
        return Actions(actions.shape[1])
    return Actions(int(learnt.opened.read.attributes.get("n_actions", actions.max() + 1)), finite=True)


def _scorer(config: Any, learnt: _Learnt, units: ActionUnits, evaluator: Evaluator | None) -> Scorer:
    """The environment, what is measured on held-out rows, or both."""
    if learnt.measured is None:
        assert evaluator is not None, "without an environment there are rows to measure on"
        return evaluator
    fingerprint = {"env": NO_ENVIRONMENT, "dataset": config.env}
    rows = _with_actions_in(units, learnt.measured)
    validator = ValidationEvaluator(rows, units.std, config.n_episodes, fingerprint)
    return validator if evaluator is None else ValidatedEvaluator(evaluator, validator)


def _note_cut(evaluator: Evaluator, steps: int | None) -> None:
    """Whoever plays in the environment later must know of a time limit that is not its own."""
    if steps is not None:
        tell_of_cut(evaluator.fingerprint["env"], steps)
        evaluator.fingerprint["max_episode_steps"] = steps


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


def told_by(name: str, attributes: dict[str, Any], env_id: str) -> str:
    """The name that tells what is known of a dataset's task: D4RL's, else that of an environment.

    Args:
        name: Of the dataset.
        attributes: What it says about itself, such as the environment that it was recorded in.
        env_id: The environment that scores, which counts for a file of one's own.
    """
    if name in names.D4RL_FACTS:
        return name
    if names.is_own(name):
        return env_id
    return str(attributes.get("recorded_in", attributes.get("env_id", env_id)))


_NEEDED = "set eval_env to one, or to none to learn from the data alone"


def own_env(name: str, attributes: dict[str, Any], needed: str = _NEEDED) -> str:
    """The environment that a dataset's file names, else the one most like that in which D4RL recorded it.

    Args:
        name: Of the dataset.
        attributes: Of its file.
        needed: What to do where there is none.

    Raises:
        InputError: There is none.
    """
    if "env_id" in attributes:
        return str(attributes["env_id"])
    if name not in names.D4RL_FACTS:
        hint = ", or write the file's attribute 'env_id'" if names.is_file_name(name) else ""
        raise InputError(f"{name} names no environment: {needed}{hint}")
    return env_of(name)
