"""Measures the distance between the scores of two sides: both frameworks, or ours and published ones."""

from collections.abc import Sequence

import numpy as np
from scipy import stats

from shared.commands.reporting.published import CORL
from shared.commands.statistics import CONFIDENCE

_FAR = 2.0


def interval(scores: Sequence[float]) -> str:
    """The mean of seeds (n,) with Student's interval, which contains the true mean in 95% of cases."""
    mean = np.mean(scores)
    if len(scores) < 2:
        return f"{mean:.1f} (1 seed)"
    half = stats.t.ppf((1 + CONFIDENCE) / 2, len(scores) - 1) * stats.sem(scores)
    return f"{mean:.1f} [{mean - half:.1f}, {mean + half:.1f}]"


def shown(difference: float, error: float) -> str:
    """A difference of means, also in standard errors; a difference of more than two of these has no known reason."""
    count = abs(difference) / error if error else np.inf if difference else 0.0
    return f"{difference:+.1f}, {count:.1f}" + (": nobody knows why yet" if count > _FAR else "")


def of_frameworks(torch: Sequence[float], jax: Sequence[float]) -> str:
    """JAX minus PyTorch, for seeds (n,) and (m,); empty if one side has a single seed, and no standard error."""
    if min(len(torch), len(jax)) < 2:
        return ""
    return shown(float(np.mean(jax) - np.mean(torch)), float(np.hypot(stats.sem(torch), stats.sem(jax))))


def of_corl(scores: Sequence[float], title: str, dataset: str) -> tuple[str, str]:
    """CORL's published score, and ours minus CORL's; both empty if CORL has none."""
    found = CORL.scores.get(title, {}).get(dataset)
    if found is None or len(scores) < 2:
        return CORL.score(title, dataset), ""
    mean, deviation = found
    # CORL's deviation is the population's, over four seeds.
    theirs = deviation / np.sqrt(CORL.seeds - 1)
    return CORL.score(title, dataset), shown(float(np.mean(scores) - mean), float(np.hypot(stats.sem(scores), theirs)))
