"""D4RL's reference scores, the environment of each of its datasets, and the scale on which returns are reported."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, SupportsFloat

import numpy as np
from numpy.typing import ArrayLike

from shared.envs import robotics
from shared.envs.families import env_like, known
from shared.envs.registry import is_d4rl_exact
from shared.errors import InputError
from shared.names import D4RL_FACTS, nearest


class Reference(NamedTuple):
    """D4RL's reference scores for a dataset.

    `min_score` and `max_score` are the undiscounted returns that count as 0 and 100. `env_id` is an environment with
    the same physics as the data's, or None if there is none.
    """

    min_score: float
    max_score: float
    max_episode_steps: int
    env_id: str | None


def _env_id(dataset_id: str) -> str | None:
    env_id = env_like(dataset_id)
    return env_id if env_id is not None and is_d4rl_exact(env_id) else None


def reference(dataset_id: str) -> Reference:
    """Looks up one of D4RL's 136 datasets, for example `hopper-medium-v2`.

    The numbers are from D4RL's own table (`d4rl.infos`).

    Raises:
        InputError: D4RL has no such dataset.
    """
    _check(dataset_id)
    info = D4RL_FACTS[dataset_id]
    return Reference(info["ref_min_score"], info["ref_max_score"], info["max_episode_steps"], _env_id(dataset_id))


def _check(dataset_id: str) -> None:
    if dataset_id not in D4RL_FACTS:
        raise InputError(f"unknown D4RL dataset {dataset_id!r}; {nearest(dataset_id, D4RL_FACTS)}")


def env_of(dataset_id: str) -> str:
    """The environment that scores a policy learned from `dataset_id`, for example `d4rl/hopper-v2`.

    If none has D4RL's physics, this is Gymnasium-Robotics' in D4RL's layout, whose returns are not D4RL scores.

    Raises:
        InputError: D4RL has no such dataset, or there is no such environment.
    """
    _check(dataset_id)
    env_id = env_like(dataset_id)
    if env_id is None:
        raise InputError(
            f"no environment here is like {dataset_id!r}'s: set eval_env to a registered one, or to none to learn from "
            "the data alone, or set eval_backend to d4rl for D4RL's own"
        )
    return env_id


def score(returns: ArrayLike, dataset_id: str) -> np.ndarray:
    """Converts undiscounted returns of any shape to D4RL scores, float64, in D4RL's order of operations.

    Raises:
        InputError: D4RL has no such dataset.
    """
    return _between(returns, *reference(dataset_id)[:2])


def _between(returns: ArrayLike, low: float, high: float) -> np.ndarray:
    return (np.asarray(returns, np.float64) - low) / (high - low) * 100


def rounded(*values: SupportsFloat, digits: int = 1) -> list[str]:
    """Numbers in print, all with the same number of decimals.

    That number is `digits`. Returns and scores, which have one, get more if all are small: the largest of them has two
    significant digits.
    """
    numbers = [float(value) + 0.0 for value in values]  # no -0.0
    largest = max((abs(number) for number in numbers if math.isfinite(number)), default=0.0)
    decimals = 1 - math.floor(math.log10(largest)) if digits == 1 and 0 < largest < 1 else 0
    return [f"{number:.{max(digits, decimals)}f}" for number in numbers]


REFERENCES = ("ref_min_score", "ref_max_score")
"""D4RL's keys for the returns that count as 0 and 100."""


class Scale(NamedTuple):
    """The scale on which a run reports the outcomes of episodes.

    `metric` names the values in files, and `words` in print. `bounds` are the outcomes that count as 0 and 100; without
    them, outcomes are reported unchanged. `of` names the outcomes: undiscounted returns, or successes, each 0 or 1.
    `places` is the number of decimal places in print. For errors, `lower_is_better` is true.
    """

    metric: str
    words: str
    bounds: tuple[float, float] | None = None
    of: str = "returns"
    lower_is_better: bool = False
    places: int = 1

    def best(self, values: Sequence[float]) -> float:
        """The best of at least one reported value."""
        return (min if self.lower_is_better else max)(values)

    def __call__(self, outcomes: ArrayLike) -> np.ndarray:
        """Converts outcomes of any shape to reported values, float64."""
        return np.asarray(outcomes, np.float64) if self.bounds is None else _between(outcomes, *self.bounds)

    def told(self, outcomes: np.ndarray) -> str:
        """Formats an evaluation's outcomes (n_episodes,) for printing."""
        spread = " +- ".join(rounded(outcomes.mean(), outcomes.std(), digits=self.places))
        if self.bounds is None:
            return f"{self.words} {spread}"
        score = f"{self.words} {rounded(self(outcomes).mean())[0]}"
        return f"{score}, return {spread}" if self.of == "returns" else score

    def references(self) -> dict[str, float]:
        """The bounds under their keys in files; empty without bounds."""
        return {} if self.bounds is None else dict(zip(REFERENCES, self.bounds, strict=True))


SUCCESS = Scale("success_percent", "success in %", (0.0, 1.0), of="successes")


def scale(env_id: str, stated: Mapping[str, Any] | None = None) -> Scale:
    """The scale for outcomes measured in `env_id`.

    Only an environment with D4RL's physics gives D4RL scores, even if it shows images. Gymnasium-Robotics' environments
    share D4RL's scale but not its physics, so their scores are normalised returns, with a name that says so. For
    environments without D4RL scores, a file may state the returns that count as 0 and 100. OGBench's episodes succeed
    or fail, and so do all episodes in which a policy is given a goal.

    Args:
        env_id: The environment.
        stated: The attributes of a file from this environment, which may include `REFERENCES`, or what a run has stored
            about its environment.

    Raises:
        InputError: The file states only one of the two, or they are not a range.
    """
    facts, stated = known(env_id), stated or {}
    if (facts is not None and facts.outcome == "success") or stated.get("sets_goals"):
        return SUCCESS
    if is_d4rl_exact(env_id):
        assert facts is not None, "the table has D4RL's environments"
        return Scale("d4rl_normalized_score", "D4RL score", facts.bounds)
    if env_id in robotics.ENVS:
        assert facts is not None, "the table has them"
        return Scale("normalized_return_not_d4rl", "normalised return (not D4RL: Gymnasium-Robotics)", facts.bounds)
    if not any(name in stated for name in REFERENCES):
        return Scale("return_mean", "return")
    return Scale("normalized_return", "normalised return", _range(stated))


def _range(stated: Mapping[str, Any]) -> tuple[float, float]:
    try:
        low, high = (float(stated[name]) for name in REFERENCES)
    except (KeyError, TypeError, ValueError):
        low = high = 0.0
    if not -np.inf < low < high < np.inf:
        found = ", ".join(f"{name} {stated.get(name)!r}"[:60] for name in REFERENCES)
        raise InputError(f"the dataset's returns for 0 and 100 are no range ({found}): correct these attributes")
    return low, high
