"""Default runs learn: what the results files of several seeds say about each of them."""

import json
from typing import Any

import pytest

from benchmarks import results, seeds

# Of the score of the data's better policy: what every run's last three evaluations reach on average. PyTorch's runs of
# CQL and ReBRAC are not among them. Of five seeds, one of CQL reaches 0.78. An evaluation each of both lies below the
# weaker policy.
REACHED = {
    ("any_percent_bc", "torch"): 0.9,
    ("any_percent_bc", "jax"): 0.9,
    ("td3_bc", "torch"): 0.9,
    ("td3_bc", "jax"): 0.9,
    ("iql", "torch"): 0.9,
    ("iql", "jax"): 0.9,
    ("cql", "jax"): 0.8,
    ("rebrac", "jax"): 0.8,
}
RUNS = pytest.mark.parametrize(("name", "framework"), REACHED)


def default_runs(name: str) -> dict[str, Any]:
    """The results file of an algorithm's default runs."""
    every = [json.loads(path.read_text()) for path in results.files("seeds")]
    (summary,) = [found for found in every if found["algorithm"] == name and seeds.is_default(found)]
    return summary


@RUNS
def test_every_seed_reaches_its_share_of_the_better_policy(name: str, framework: str) -> None:
    summary = default_runs(name)
    scores = summary["frameworks"][framework]["mean_of_last_3"]
    assert len(scores) >= 5
    assert min(scores) >= REACHED[name, framework] * max(summary["data_policies"].values())


@RUNS
def test_no_later_evaluation_lies_below_the_weaker_policy(name: str, framework: str) -> None:
    """After the first third of the run."""
    summary = default_runs(name)
    assert min(seeds.later_scores(summary["frameworks"][framework])) >= min(summary["data_policies"].values())
