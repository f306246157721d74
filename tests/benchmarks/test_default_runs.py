"""Default runs learn, according to the results files of several seeds for each of them."""

import json
from typing import Any

import pytest

from benchmarks import results, seeds
from shared.frameworks.twins import FRAMEWORKS

# The average of every run's last three evaluations, as a share of the score of the data's better policy
REACHED = {
    **dict.fromkeys(("any_percent_bc", "td3_bc", "iql", "awac"), 0.9),
    **dict.fromkeys(("cql", "rebrac", "dt", "sac_n", "edac", "lb_sac"), 0.8),
}
# A replay's training ended at the expert, which scores 100; the mean of its episodes is that of a far weaker policy.
EXPERT = {"mini/pendulum-replay": 100.0}


def default_runs(name: str) -> dict[str, Any]:
    """The results file of an algorithm's default runs."""
    every = [json.loads(path.read_text()) for path in results.files("seeds")]
    (summary,) = [found for found in every if found["algorithm"] == name and seeds.is_default(found)]
    return summary


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", REACHED)
def test_every_seed_reaches_its_share_of_the_better_policy(name: str, framework: str) -> None:
    summary = default_runs(name)
    scores = summary["frameworks"][framework]["mean_of_last_3"]
    assert len(scores) >= 5
    better = EXPERT.get(summary["dataset"]["name"], max(summary["data_policies"].values()))
    assert min(scores) >= REACHED[name] * better
    # After the first third of the run, no evaluation lies below the weaker policy.
    assert min(seeds.later_scores(summary["frameworks"][framework])) >= min(summary["data_policies"].values())
