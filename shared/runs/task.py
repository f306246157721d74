"""A task: the training data of an algorithm, and the evaluator that scores it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from shared.data.online import OnlineExperience
from shared.envs.boxes import ActionBox, ActionUnits
from shared.envs.evaluation import Evaluator
from shared.envs.spaces import Actions, Shape, shape_of
from shared.envs.stepping import Stepper
from shared.errors import InputError
from shared.runs import memory, seeds
from shared.runs.actions import action_units, with_actions_in
from shared.runs.evaluators import AnyEvaluator, environment_evaluator, run_evaluator
from shared.runs.extraction import Extract
from shared.runs.opening import Opened, open_dataset
from shared.runs.origin import Origin, origin_of
from shared.runs.own_data import NO_PROMPTS, Prompts
from shared.runs.preparation import AS_CORL, Preparation, Prepared, prepare
from shared.runs.settings import DatasetConfig, FinetuneConfig

# Including the names with which a twin describes its preparation
__all__ = ["Extract", "Preparation", "Task", "load_task", "training_environment"]


@dataclass(frozen=True)
class Task:
    """The training data of a run and its evaluator.

    Attributes:
        dataset: A `Batch` of transitions, or `Trajectories`, as the algorithm uses them; float32 NumPy arrays. For an
            algorithm that collects its own data: zeros of the size that it needs.
        evaluator: Runs episodes, and normalises states with the same `mean` and `std`. Without an environment, it
            measures values or actions on the dataset.
        shape: The shape of an observation: S, or (C, H, W) for images.
        action_dim: A; for finite actions, their number.
        max_action: Bound of every action component, as the algorithm uses them: 1, except in runs begun before actions
            were learnt in units of their box.
        mean: (S,), 0 without normalisation; (1,) for images.
        std: (S,), 1 without normalisation; (1,) for images.
        action_mean: (A,), added to a policy's actions after `action_std`; 0 if they already are the environment's.
        action_std: (A,), multiplies a policy's actions; 1 if they already are the environment's.
        attributes: The attributes of the dataset's file, such as `expert_return_mean`.
        fingerprint: Name, number of transitions and SHA-256 of the dataset's file; only the environment's name without
            a dataset.
        step_reward: Maps the environment's rewards to those that the algorithm learns from, like the dataset's rewards.
        box: The bounds of the environment's actions; None for finite actions.
        held_out: Transitions of held-out episodes, as the algorithm would learn from them; None if there are none.
        prompts: A sequence model's target returns; empty for other algorithms.
    """

    dataset: Any
    evaluator: AnyEvaluator
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
    prompts: Prompts = NO_PROMPTS

    @property
    def units(self) -> ActionUnits:
        """The conversion of a policy's actions to the environment's."""
        return ActionUnits(self.action_mean, self.action_std, self.max_action, self.box)

    @property
    def state_dim(self) -> int:
        """S, for an algorithm that only uses vectors."""
        assert isinstance(self.shape, int), "one without encoders is never given images"
        return self.shape


def load_task(config: DatasetConfig, preparation: Preparation = AS_CORL, origin: Origin | None = None) -> Task:
    """Loads and prepares the dataset that the config names, and creates the evaluator.

    Actions are in units of their box; an action scaler uses the range of the training data's actions instead. If the
    run starts from a checkpoint, its state statistics and its action units are used.

    Args:
        config: The settings of the run.
        preparation: How the algorithm prepares the dataset.
        origin: Decides the units of states and actions; None uses the checkpoint that the run starts from.

    Raises:
        InputError: A setting, the dataset or the environment cannot be used, or they do not fit.
    """
    memory.check_settings(config)
    prepared = seeds.once(load_task, partial(_prepared, config, preparation, origin))
    evaluator = environment_evaluator(config, prepared)
    there = _actions_of_data(prepared.opened) if evaluator is None else evaluator.actions
    try:
        units, dataset = seeds.once(_in_units, partial(_in_units, config, prepared, there))
    except InputError:
        if evaluator is not None:
            evaluator.close()
        raise
    if evaluator is not None:
        evaluator.units = units
    read = prepared.opened.read
    return Task(
        dataset=dataset,
        evaluator=run_evaluator(config, prepared, units, evaluator),
        shape=shape_of(dataset.observations),
        action_dim=there.size,
        max_action=units.bound,
        mean=prepared.mean,
        std=prepared.std,
        action_mean=np.resize(units.mean, there.size),
        action_std=np.resize(units.std, there.size),
        attributes=read.attributes,
        fingerprint={"name": config.env, "transitions": len(dataset.actions), "sha256": read.sha256},
        step_reward=prepared.step_reward,
        box=units.box,
        held_out=None if prepared.held_out is None else with_actions_in(units, prepared.held_out),
        prompts=prepared.prompts,
    )


def _prepared(config: DatasetConfig, preparation: Preparation, origin: Origin | None) -> Prepared:
    opened = open_dataset(config, preparation.finite)
    return prepare(config, opened, preparation, origin or origin_of(config))


def _in_units(config: DatasetConfig, prepared: Prepared, there: Actions) -> tuple[ActionUnits, Any]:
    """The units of the run's actions, and the dataset with its actions in these units."""
    recorded = prepared.opened.read.raw["actions"]
    units = action_units(config, there, prepared.dataset.actions, recorded, prepared.origin)
    return units, with_actions_in(units, prepared.dataset)


def _actions_of_data(opened: Opened) -> Actions:
    """The action space of a dataset without an environment."""
    actions = opened.read.raw["actions"]
    if actions.ndim == 2:
        return Actions(actions.shape[1])
    return Actions(int(opened.read.attributes.get("n_actions", actions.max() + 1)), finite=True)


def training_environment(config: FinetuneConfig, task: Task) -> OnlineExperience:
    """The environment in which a run continues online, a separate copy of the one that evaluates it.

    States use the dataset's statistics and rewards use its returns. Neither is recomputed online.

    Args:
        config: The settings of the run.
        task: The task of the run.

    Raises:
        InputError: The steps do not fit in this machine's memory, or there is no environment.
    """
    steps = config.online_iterations
    try:
        if not isinstance(task.evaluator, Evaluator):
            raise InputError("this algorithm continues in the environment: set eval_env to its name, not to none")
        memory.check_size("online_iterations", steps, steps * 4 * (2 * task.state_dim + task.action_dim + 4))
    except InputError:
        task.evaluator.close()
        raise
    where = task.evaluator.fingerprint
    cut = where.get("max_episode_steps")
    stepper = Stepper(where["env"], task.mean, task.std, task.step_reward, max_episode_steps=cut, units=task.units)
    return OnlineExperience(stepper, config.seed, steps, config.switch)
