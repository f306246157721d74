"""Validation: how far a policy's actions are from the data's, on episodes that were held out of its training.

It replaces an environment's scores if there is no environment (`--eval_env none`). With an environment, it can be
measured in addition.
"""

import shlex
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shared.data.sequences import PromptedPolicy
from shared.envs.evaluation import ContextPolicy, Evaluation, Evaluator, Policy
from shared.envs.scores import Scale
from shared.runs.curves import places

NO_ENVIRONMENT = "none"
"""The value of `eval_env` for a run without an environment."""

DEFAULT_SHARE = 0.1
"""Share of the episodes that is held out if there is no environment."""

METRIC = "action_error"

# Rows in one evaluation: enough for two significant digits, few enough to cost less than training
_MOST = 10_000
# Rows in a batch, all of one size so that a compiled policy sees one shape
_AT_ONCE = 1_000


class HeldOut(NamedTuple):
    """The n rows on which a policy is measured, in its units; the rows of an episode are consecutive.

    Attributes:
        observations: (n, S) float32, normalised; or `Stacks` of images.
        actions: (n, A) float32, or (n,) integers if actions are finite.
        rewards: (n,), as in the file.
        episodes: (n,), the episode of each row, in ascending order.
        unseen: Whether the rows were held out of training.
        goals: (n, S), the goal that the policy is given in each row; None without goals.
    """

    observations: Any
    actions: np.ndarray
    rewards: np.ndarray
    episodes: np.ndarray
    unseen: bool
    goals: np.ndarray | None = None


def thinned(rows: HeldOut) -> HeldOut:
    """Selects evenly spaced rows, at most as many as an evaluation measures."""
    size = len(rows.actions)
    if size <= _MOST:
        return rows
    chosen = np.linspace(0, size - 1, _MOST).astype(int)
    columns = {name: column for name, column in rows._asdict().items() if name != "unseen" and column is not None}
    return rows._replace(**{name: column.take(chosen, axis=0) for name, column in columns.items()})


class Validation(NamedTuple):
    """The outcome of one measurement.

    Attributes:
        outcomes: (E,), the action error of each episode.
    """

    outcomes: np.ndarray

    def row(self) -> dict[str, Any]:
        """The entries in a row of the run's metrics."""
        return {"errors": self.outcomes.tolist()}


class ValidationEvaluator:
    """Measures a policy's action error, as an `Evaluator` measures its return.

    The action error of a row is the mean absolute difference between the policy's action and the data's, over the
    components and in the data's units. For finite actions it is 1 if they differ and 0 if they agree.

    Attributes:
        scale: The scale on which outcomes are reported.
        outcomes: The key of the outcomes in a row of metrics.
        measures: The names of further measurements.
        has_goals: Always False, because only an environment can say if a goal is reached.
        fingerprint: Everything that the measurement depends on, apart from the policy.
    """

    outcomes = "errors"
    measures: tuple[str, ...] = ()
    has_goals = False

    def __init__(self, rows: HeldOut, action_std: np.ndarray, n_episodes: int, fingerprint: dict[str, Any]) -> None:
        """Stores the rows and describes them in the fingerprint.

        Args:
            rows: Whole episodes for a policy that remembers them, otherwise `thinned` rows.
            action_std: () or (A,), the size of the policy's unit of action in the data's units.
            n_episodes: The most episodes on which to measure a policy that remembers them.
            fingerprint: Everything that the measurement depends on; the constructor adds the numbers of rows and
                episodes.
        """
        self._rows, self._action_std, self._n_episodes = rows, action_std, n_episodes
        where = "on held-out rows" if rows.unseen else "on the rows learnt from"
        self.scale = Scale(METRIC, f"action error {where}", lower_is_better=True, places=places(METRIC))
        _, self._starts, self._lengths = np.unique(rows.episodes, return_index=True, return_counts=True)
        counts = {"held_out": rows.unseen, "rows": len(rows.actions), "episodes": len(self._starts)}
        self.fingerprint = fingerprint | counts
        self._closed = self._is_prompted = False

    def __call__(self, policy: Policy | ContextPolicy) -> Validation:
        """Measures a policy.

        Raises:
            RuntimeError: Another thread has closed the evaluator.
        """
        if isinstance(policy, PromptedPolicy):
            return self._led_through(policy)
        errors = np.empty(len(self._rows.actions))
        size = min(len(errors), _AT_ONCE)
        for first in range(0, len(errors), size):
            # The last batch overlaps the one before it, so that all batches have the same size.
            rows = slice(first := min(first, len(errors) - size), first + size)
            self._check_open()
            beginning = (np.zeros(size), np.zeros(size, int)) if isinstance(policy, ContextPolicy) else ()
            goals = () if self._rows.goals is None else (self._rows.goals[rows],)
            actions = np.asarray(policy(self._rows.observations[rows], *goals, *beginning))
            errors[rows] = self._errors(actions, self._rows.actions[rows])
        return Validation(np.add.reduceat(errors, self._starts) / self._lengths)

    def _led_through(self, policy: PromptedPolicy) -> Validation:
        """Measures a policy that remembers its episode; it sees the recorded actions in place of its own."""
        self._is_prompted = True
        number = min(self._n_episodes, len(self._starts))
        chosen = np.linspace(0, len(self._starts) - 1, number).astype(int)
        starts, lengths = self._starts[chosen], self._lengths[chosen]
        returns, sums = np.zeros(number), np.zeros(number)
        for step in range(int(lengths.max())):
            self._check_open()
            rows = starts + np.minimum(step, lengths - 1)
            actions = policy(self._rows.observations[rows], returns.copy(), np.full(number, step))
            policy.correct(self._rows.actions[rows])
            going_on = step < lengths
            sums += going_on * self._errors(actions, self._rows.actions[rows])
            returns += going_on * self._rows.rewards[rows]
        return Validation(sums / lengths)

    def _errors(self, actions: np.ndarray, recorded: np.ndarray) -> np.ndarray:
        """The error of each row, (n,) float64."""
        if actions.shape != recorded.shape:
            raise ValueError(f"the policy returned actions of shape {actions.shape}, not {recorded.shape}")
        if recorded.ndim == 1:
            return (actions != recorded).astype(np.float64)
        apart = np.abs(actions.astype(np.float64) - recorded) * self._action_std
        return apart.mean(axis=1)

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the evaluator is closed")

    def then(self, folder: Path) -> str:
        """The next step that a run's last line suggests, because an action error does not say what a policy earns."""
        if self._rows.actions.ndim == 1 or self._is_prompted:
            return "no environment has scored this policy: to see what it earns, set eval_env to its name"
        command = f"corl-twins evaluate {shlex.quote(str(folder))} --method fqe"
        return f"no environment has scored this policy: to estimate what it earns by the data alone, run {command}"

    def close(self) -> None:
        """Stops a measurement in another thread."""
        self._closed = True


class Both(NamedTuple):
    """An environment's outcome, which scores the run, and the action error on held-out episodes."""

    evaluation: Evaluation
    validation: Validation

    @property
    def outcomes(self) -> np.ndarray:
        """The environment's outcomes."""
        return self.evaluation.outcomes

    @property
    def successes(self) -> np.ndarray:
        """Whether each of the environment's episodes succeeded."""
        return self.evaluation.successes

    def row(self) -> dict[str, Any]:
        """The entries in a row of the run's metrics."""
        return {**self.evaluation.row(), METRIC: float(self.validation.outcomes.mean())}


class ValidatedEvaluator:
    """Scores a policy in an environment, and also measures it on held-out episodes."""

    def __init__(self, evaluator: Evaluator, validator: ValidationEvaluator) -> None:
        """Combines both evaluators; the attributes are the environment's, plus the action error."""
        self._evaluator, self._validator = evaluator, validator
        self.scale, self.outcomes, self.has_goals = evaluator.scale, evaluator.outcomes, evaluator.has_goals
        self.measures = (*evaluator.measures, METRIC)
        held_out = {name: validator.fingerprint[name] for name in ("rows", "episodes")}
        self.fingerprint = evaluator.fingerprint | {"held_out": held_out}

    def __call__(self, policy: Policy | ContextPolicy) -> Both:
        """Scores and measures a policy."""
        return Both(self._evaluator(policy), self._validator(policy))

    def close(self) -> None:
        """Closes both evaluators."""
        self._validator.close()
        self._evaluator.close()
