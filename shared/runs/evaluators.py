"""Evaluators: the interface that a run uses, and the choice of the one that scores a run on a dataset.

`Evaluator` runs episodes in an environment. The others use rows of a dataset: `ValidationEvaluator` measures a policy's
actions on them, `DatasetEvaluator` its values, and `RolloutEvaluator` a dynamics model.
"""

from typing import Any, Protocol

import numpy as np

from shared.data.goals import GoalTransitions
from shared.envs.boxes import ActionUnits
from shared.envs.evaluation import Evaluator
from shared.envs.registry import least_memory
from shared.envs.scores import Scale
from shared.envs.spaces import shape_of
from shared.errors import InputError
from shared.runs import memory
from shared.runs.actions import with_actions_in
from shared.runs.episodes import cut_after, tell_of_cut
from shared.runs.preparation import Prepared, SequenceSettings
from shared.runs.settings import DatasetConfig
from shared.runs.validation import NO_ENVIRONMENT, ValidatedEvaluator, ValidationEvaluator


class AnyEvaluation(Protocol):
    """The outcome of one evaluation."""

    @property
    def outcomes(self) -> np.ndarray:
        """(n_episodes,), one number for each episode; their mean is the score."""
        ...

    def row(self) -> dict[str, Any]:
        """Its entries in a row of the run's metrics, including the outcomes."""
        ...


class AnyEvaluator(Protocol):
    """Evaluates a policy, a value function or a model in the same way every time.

    Attributes:
        fingerprint: Everything that an evaluation depends on, apart from the policy.
        scale: The scale on which outcomes are reported.
        outcomes: The key of the outcomes in a row of metrics.
        measures: Keys of further entries; the result includes their values in the last row.
        has_goals: Whether an episode either succeeds or fails.
    """

    fingerprint: dict[str, Any]
    scale: Scale
    outcomes: str
    measures: tuple[str, ...]
    has_goals: bool

    def __call__(self, policy: Any, /) -> AnyEvaluation:
        """Runs one evaluation."""
        ...

    def close(self) -> None:
        """Closes its environments."""
        ...


def environment_evaluator(config: DatasetConfig, prepared: Prepared) -> Evaluator | None:
    """Creates the evaluator in a dataset's environment, or returns None if the dataset has no environment.

    Raises:
        InputError: The environment is unknown, or its observations or actions do not match the dataset's.
    """
    opened, attributes = prepared.opened, prepared.opened.read.attributes
    if opened.env_id == NO_ENVIRONMENT:
        return None
    # Returns that the file states are of the environment that the file names.
    stated = attributes if attributes.get("env_id") == opened.env_id else None
    cut = cut_after(config.max_episode_steps, opened.env_id, opened.read.raw)
    longest, together = cut, None
    if isinstance(config, SequenceSettings):
        # A policy with a context is too costly to also compute actions for episodes that wait for a free environment.
        memory.check_size("n_episodes", config.n_episodes, config.n_episodes * least_memory(opened.env_id))
        longest, together = min(config.episode_len, cut or config.episode_len), config.n_episodes
    evaluator = Evaluator(
        opened.env_id,
        config.n_episodes,
        config.evaluation_seed,
        prepared.mean,
        prepared.std,
        together,
        longest,
        stated=stated,
        frame_stack=opened.frame_stack,
    )
    note_cut(evaluator, cut)
    if unfit := _unfit_goals(isinstance(prepared.dataset, GoalTransitions), evaluator):
        evaluator.close()
        raise InputError(f"environment {opened.env_id!r} {unfit}")
    if misfit := _misfit(prepared.dataset, attributes.get("n_actions"), evaluator):
        evaluator.close()
        raise InputError(
            f"dataset {config.env!r} has {misfit[0]}, environment {opened.env_id!r} {misfit[1]}: "
            "set eval_env to the one it was recorded in"
        )
    return evaluator


def run_evaluator(
    config: DatasetConfig, prepared: Prepared, units: ActionUnits, evaluator: Evaluator | None
) -> AnyEvaluator:
    """The evaluator of a run, which uses the environment, held-out rows, or both."""
    if prepared.measured is None:
        assert evaluator is not None, "without an environment there are rows to measure on"
        return evaluator
    fingerprint = {"env": NO_ENVIRONMENT, "dataset": config.env}
    rows = with_actions_in(units, prepared.measured)
    validator = ValidationEvaluator(rows, units.std, config.n_episodes, fingerprint)
    return validator if evaluator is None else ValidatedEvaluator(evaluator, validator)


def note_cut(evaluator: Evaluator, steps: int | None) -> None:
    """Records a time limit that the environment itself doesn't have, because later commands need it."""
    if steps is not None:
        tell_of_cut(evaluator.fingerprint["env"], steps)
        evaluator.fingerprint["max_episode_steps"] = steps


def _unfit_goals(wanted: bool, evaluator: Evaluator) -> str | None:
    """Says what is wrong if only the algorithm or only the environment has goals; otherwise None."""
    if wanted == evaluator.sets_goals:
        return None
    if wanted:
        return "sets no goals: set eval_env to one that does, such as ogbench/pointmaze-medium-v0, or to none"
    return "sets a goal in each episode: use a goal_conditioned algorithm, or a dataset with rewards"


def _misfit(dataset: Any, n_actions: int | None, evaluator: Evaluator) -> tuple[str, str] | None:
    """Describes the dataset's and the environment's spaces if they don't match, otherwise returns None."""
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
    theirs = f"actions 0 to {there.size - 1}" if there.finite else str(there.size)
    if there.first:
        theirs += f", which it numbers from {there.first} (subtract that in the file)"
    return ours, f"{evaluator.state_dim} and {theirs}"
