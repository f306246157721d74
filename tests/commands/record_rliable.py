"""Records rliable's statistics of three made-up sets of scores: `python tests/commands/record_rliable.py`.

It writes `data/rliable.json`, which `test_statistics.py` compares our statistics with. Only this script needs `pip
install rliable 'pandas<3'`.
"""

import json
from importlib.metadata import version
from pathlib import Path

import numpy as np
from rliable import library, metrics

RESAMPLES = 50_000
FILE = Path(__file__).parent / "data" / "rliable.json"


def scores() -> dict[str, dict[str, np.ndarray]]:
    """Scores (runs, tasks) of two algorithms each: similar tasks, skewed and heavy-tailed ones, few runs with ties."""
    rng = np.random.default_rng(0)
    difficulty = rng.uniform(20.0, 90.0, size=6)
    return {
        "alike": {"first": rng.normal(difficulty, 8.0, (5, 6)), "second": rng.normal(difficulty + 3.0, 8.0, (5, 6))},
        "skewed": {"first": rng.lognormal(3.0, 1.0, (10, 8)), "second": rng.lognormal(3.2, 0.8, (8, 8))},
        "tied": {"first": 10.0 * rng.integers(2, 10, (4, 9)), "second": 10.0 * rng.integers(3, 9, (3, 9))},
    }


def asked(first: np.ndarray, second: np.ndarray) -> dict[str, object]:
    """Statistics of two algorithms by rliable; an interval is a list of both bounds."""
    np.random.seed(0)  # noqa: NPY002  # its bootstrap draws from the global generator
    thresholds = np.linspace(0.0, 100.0, 6)

    def interval(data: object, statistic: object) -> np.ndarray:
        return library.get_interval_estimates({"it": data}, statistic, reps=RESAMPLES)[1]["it"]

    def iqm(matrix: np.ndarray) -> np.ndarray:
        return np.array([metrics.aggregate_iqm(matrix)])

    def better(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        # The result of rliable's own function, which takes a millisecond for each task of each resample
        above = (ours[:, None] > theirs) + 0.5 * (ours[:, None] == theirs)
        return np.array([above.mean()])

    improvement = metrics.probability_of_improvement(first, second)
    assert np.isclose(better(first, second), improvement)
    profile, _ = library.create_performance_profile({"it": first}, thresholds, reps=1)
    found = {
        "iqm": iqm(first)[0],
        "iqm_interval": interval(first, iqm)[:, 0],
        "improvement": improvement,
        "improvement_interval": interval((first, second), better)[:, 0],
        "thresholds": thresholds,
        "profile": profile["it"],
    }
    return {name: np.asarray(value).tolist() for name, value in found.items()}


def main() -> None:
    """Writes the file."""
    found = {
        name: {"first": of["first"].tolist(), "second": of["second"].tolist(), **asked(of["first"], of["second"])}
        for name, of in scores().items()
    }
    content = {"rliable": version("rliable"), "resamples": RESAMPLES, "scores": found}
    FILE.write_text(json.dumps(content) + "\n")


if __name__ == "__main__":
    main()
