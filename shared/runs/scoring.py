"""What a run asks of whoever scores it.

That is an environment with its episodes (`Evaluator`), or a dataset (`DatasetEvaluator`, `RolloutEvaluator`).
"""

from typing import Any, Protocol

import numpy as np

from shared.envs.scores import Scale


class Scored(Protocol):
    """The outcome of one evaluation."""

    @property
    def outcomes(self) -> np.ndarray:
        """(n_episodes,), one number for each episode; their mean is the score."""
        ...

    def row(self) -> dict[str, Any]:
        """What a run's metrics say of it, the outcomes included."""
        ...


class Scorer(Protocol):
    """Scores what a run has learnt, each time in the same way.

    Attributes:
        fingerprint: What a score depends on besides what was learnt.
        scale: What outcomes are reported as.
        outcomes: Under which name a row of metrics has them.
        measures: What else a row has of each evaluation, and the result of the last one.
        has_goals: Whether an episode succeeds or fails.
    """

    fingerprint: dict[str, Any]
    scale: Scale
    outcomes: str
    measures: tuple[str, ...]
    has_goals: bool

    def __call__(self, policy: Any, /) -> Scored:
        """Scores a policy, a value function, or a model."""
        ...

    def close(self) -> None:
        """Ends what it holds."""
        ...
