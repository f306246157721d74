"""Statistics that compare two frameworks from a handful of seeds.

Interquartile means, probabilities of improvement and bootstrapped intervals follow Agarwal et al. 2021, "Deep
Reinforcement Learning at the Edge of the Statistical Precipice", https://arxiv.org/abs/2108.13264. Twins should be
equal, but a test that finds no difference does not show that. Therefore two one-sided Welch tests (Schuirmann 1987)
test equivalence. Their null hypothesis is that the means differ by more than a margin.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from shared.envs.scores import rounded

CONFIDENCE = 0.95
MARGIN = 10.0
"""The default for the largest difference of two mean scores that counts as equal."""
_RESAMPLES = 2000
MANY_RESAMPLES = 50_000
"""For published numbers: with so many resamples, the bounds of another draw agree within one percent."""
# Resamples in a batch, so that thousands of runs do not need gigabytes
_BATCH = 2000


class Interval(NamedTuple):
    """An estimate and the bounds of its confidence interval; the bounds are NaN for a single seed."""

    estimate: Any
    low: Any
    high: Any

    def shown(self, digits: int = 1) -> str:
        """The estimate with its bounds, or with the reason for their absence."""
        if np.isnan(self.low):
            return f"{rounded(self.estimate, digits=digits)[0]} (1 seed)"
        estimate, low, high = rounded(self.estimate, self.low, self.high, digits=digits)
        return f"{estimate} [{low}, {high}]"


Tasks = Sequence[np.ndarray]
"""Scores (..., n) of one algorithm, an array for each task; the number of seeds n may differ between tasks."""


def interquartile_mean(scores: ArrayLike, axis: int = -1) -> np.ndarray:
    """The mean of the middle half of scores (..., n) along an axis."""
    return stats.trim_mean(scores, 0.25, axis=axis)


def mean(scores: ArrayLike, axis: int = -1) -> np.ndarray:
    """The mean of scores (..., n) along an axis."""
    return np.mean(np.asarray(scores), axis=axis)


def probability_of_improvement(first: ArrayLike, second: ArrayLike, axis: int = -1) -> np.ndarray:
    """How often a score in (..., n) exceeds one in (..., m); ties count one half."""
    ours, theirs = (np.moveaxis(np.asarray(scores), axis, -1) for scores in (first, second))
    ours, theirs = ours[..., :, None], theirs[..., None, :]
    return np.mean((ours > theirs) + 0.5 * (ours == theirs), axis=(-2, -1))


def bootstrapped(
    statistic: Callable[..., np.ndarray], *samples: ArrayLike, resamples: int = _RESAMPLES, seed: int = 0
) -> Interval:
    """A statistic of one or more samples with its percentile interval; each sample is resampled independently.

    Args:
        statistic: A function of the samples and an `axis`.
        samples: (..., n) each, seeds last. A single seed cannot be resampled, so there are no bounds then.
        resamples: The number of resamples.
        seed: The seed of the resampling.
    """
    arrays = tuple(np.asarray(sample, np.float64) for sample in samples)
    estimate = statistic(*arrays, axis=-1)
    if min(array.shape[-1] for array in arrays) < 2:
        nothing = np.full_like(estimate, np.nan)
        return Interval(estimate, nothing, nothing)
    interval = stats.bootstrap(
        arrays,
        statistic,
        n_resamples=resamples,
        batch=_BATCH,
        confidence_level=CONFIDENCE,
        method="percentile",
        vectorized=True,
        axis=-1,
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(estimate, interval.low, interval.high)


def interquartile_mean_of_tasks(tasks: Tasks) -> np.ndarray:
    """The mean (...) of the middle half of all runs on all tasks, where each task has the same weight.

    This equals the interquartile mean after repeating scores until all tasks have the same number.
    """
    sizes = [scores.shape[-1] for scores in tasks]
    scores = np.concatenate(tasks, axis=-1)
    if len(set(sizes)) == 1:
        return interquartile_mean(scores)
    common = math.lcm(*sizes)
    total, cut = common * len(tasks), common * len(tasks) // 4
    repeats = np.repeat([common // size for size in sizes], sizes)
    order = np.argsort(scores, axis=-1)
    end = np.cumsum(repeats[order], axis=-1)
    # Of each score's repetitions, those between the first and the last quarter
    kept = np.clip(end, cut, total - cut) - np.clip(end - repeats[order], cut, total - cut)
    return np.sum(kept * np.take_along_axis(scores, order, axis=-1), axis=-1) / (total - 2 * cut)


def improvement_on_tasks(first: Tasks, second: Tasks) -> np.ndarray:
    """The probability of improvement (...), averaged over tasks that both have in the same order."""
    return np.mean([probability_of_improvement(a, b) for a, b in zip(first, second, strict=True)], axis=0)


def performance_profile(tasks: Tasks, thresholds: np.ndarray) -> np.ndarray:
    """The share (t, ...) of runs that score more than each threshold (t,), averaged over tasks."""
    return np.stack([np.mean([np.mean(task > bound, axis=-1) for task in tasks], axis=0) for bound in thresholds])


def stratified(
    statistic: Callable[..., np.ndarray], *algorithms: Tasks, resamples: int = _RESAMPLES, seed: int = 0
) -> Interval:
    """A statistic of algorithms on tasks with its percentile interval; each task's seeds are resampled separately.

    Args:
        statistic: A function of the tasks of each algorithm, with any number of axes before the seeds.
        algorithms: Their scores (n,) by task. If a task has a single seed, there are no bounds.
        resamples: The number of resamples.
        seed: The seed of the resampling.
    """

    def of_samples(*samples: np.ndarray, axis: int) -> np.ndarray:
        left = iter(samples)
        return statistic(*([next(left) for _ in tasks] for tasks in algorithms))

    return bootstrapped(of_samples, *(task for tasks in algorithms for task in tasks), resamples=resamples, seed=seed)


def shown_margin(first: ArrayLike, second: ArrayLike) -> float:
    """The smallest margin within which scores (n,) and (m,) show equal means; NaN for fewer than 2 seeds.

    Two one-sided tests show a margin if it includes both bounds of an interval for the difference. The interval's
    confidence is lower than that of one test, because both sides may err.
    """
    if min(np.size(first), np.size(second)) < 2:
        return float("nan")
    found = stats.ttest_ind(first, second, equal_var=False).confidence_interval(2 * CONFIDENCE - 1)
    return float(max(abs(found.low), abs(found.high)))


def p_not_equivalent(first: ArrayLike, second: ArrayLike, margin: float) -> float:
    """The probability of means this close if the true ones differed by at least `margin`; NaN for fewer than 2 seeds.

    Args:
        first: Scores (n,).
        second: Scores (m,).
        margin: The largest difference of means that counts as equal, in units of the scores, greater than 0.
    """
    first, second = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if min(len(first), len(second)) < 2:
        return float("nan")
    above = stats.ttest_ind(first + margin, second, equal_var=False, alternative="greater")
    below = stats.ttest_ind(first - margin, second, equal_var=False, alternative="less")
    return float(max(above.pvalue, below.pvalue))


def equivalence(first: ArrayLike, second: ArrayLike, margin: float) -> str:
    """Says whether the means of scores (n,) and (m,) are shown to be equal within a margin."""
    p = p_not_equivalent(first, second, margin)
    shown = "shown" if p < 1 - CONFIDENCE else "not shown"
    return shown if np.isnan(p) else f"{shown} ({f'p = {p:.3f}' if p >= 0.001 else 'p < 0.001'})"
