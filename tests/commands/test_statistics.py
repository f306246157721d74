"""Statistics of seeds, compared with known results."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from shared.commands.statistics import (
    MANY_RESAMPLES,
    bootstrapped,
    improvement_on_tasks,
    interquartile_mean,
    interquartile_mean_of_tasks,
    mean,
    p_not_equivalent,
    performance_profile,
    probability_of_improvement,
    stratified,
)

RLIABLE = json.loads((Path(__file__).parent / "data" / "rliable.json").read_text())


@pytest.mark.parametrize("name", RLIABLE["scores"])
def test_figures_are_those_of_rliable(name: str) -> None:
    """For three made-up matrices of scores; `record_rliable.py` recorded the library's results."""
    assert RLIABLE["resamples"] == MANY_RESAMPLES
    theirs = {key: np.array(value) for key, value in RLIABLE["scores"][name].items()}
    first, second = list(theirs["first"].T), list(theirs["second"].T)
    profile = performance_profile(first, theirs["thresholds"])
    np.testing.assert_allclose(profile, theirs["profile"], rtol=1e-12)
    for what, found in (
        ("iqm", stratified(interquartile_mean_of_tasks, first, resamples=MANY_RESAMPLES)),
        ("improvement", stratified(improvement_on_tasks, first, second, resamples=MANY_RESAMPLES)),
    ):
        np.testing.assert_allclose(found.estimate, theirs[what], rtol=1e-12, err_msg=what)
        bounds = np.stack([found.low, found.high])
        np.testing.assert_allclose(bounds, theirs[f"{what}_interval"], rtol=0.01, err_msg=what)


def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end() -> None:
    scores = np.array([[-1000.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1000.0], np.arange(8.0)])
    assert interquartile_mean(scores).tolist() == [3.5, 3.5]


def test_the_probability_of_improvement_counts_pairs() -> None:
    """2 of 6 pairs are better and 1 is a tie; this is Mann and Whitney's U over the number of pairs."""
    first, second = np.array([1.0, 3.0]), np.array([2.0, 3.0, 9.0])
    assert probability_of_improvement(first, second) == pytest.approx(1.5 / 6)
    assert stats.mannwhitneyu(first, second).statistic / 6 == pytest.approx(1.5 / 6)
    assert probability_of_improvement(np.stack([first, -first]), np.stack([second, second])).tolist() == [0.25, 0.0]


def test_an_interval_covers_the_mean_about_as_often_as_it_says() -> None:
    """At 20 seeds a percentile interval is a little too short: in the long run 92% of them cover the mean."""
    rng = np.random.default_rng(0)
    found = [bootstrapped(mean, rng.normal(5.0, 2.0, size=20)) for _ in range(200)]
    assert 0.87 < np.mean([interval.low < 5.0 < interval.high for interval in found]) < 0.98
    assert all(interval.low < interval.estimate < interval.high for interval in found)


def test_one_seed_has_no_interval() -> None:
    estimate, low, high = bootstrapped(mean, [3.0])
    assert estimate == 3.0
    assert np.isnan(low)
    assert np.isnan(high)
    assert np.isnan(p_not_equivalent([3.0], [3.0, 3.1], 1.0))


def test_equivalence_is_rarely_shown_where_the_means_are_a_margin_apart() -> None:
    """The test's type I error is 5%, and equal means are found equal once there are enough seeds."""
    rng = np.random.default_rng(0)

    def shown(apart: float, seeds: int) -> float:
        samples = rng.normal(size=(200, 2, seeds))
        return float(np.mean([p_not_equivalent(first + apart, second, 1.0) < 0.05 for first, second in samples]))

    assert 0.02 < shown(1.0, 20) < 0.08
    assert shown(0.0, 20) > 0.7
    assert shown(0.0, 3) < 0.2  # finding no difference among three seeds shows nothing
