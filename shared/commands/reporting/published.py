"""CORL's published scores, by algorithm and dataset.

They are those of the tables in CORL's README (https://github.com/corl-team/CORL, commit eeeeef2). `corl_scores.json`
holds the mean and the population's deviation of four seeds' last evaluations, as D4RL's normalised scores.
"""

import json
from pathlib import Path

_SCORES = json.loads((Path(__file__).parent / "corl_scores.json").read_text())
ALGORITHMS = tuple(_SCORES)
# What CORL's tables call the algorithms whose runs have another name
_TITLES = {"TD3_BC": "TD3+BC", "rebrac": "ReBRAC"}


def name_of(algorithm: str) -> str:
    """What CORL's tables call the algorithm of a run; runs of settings that vary have no counterpart there."""
    return _TITLES.get(algorithm, algorithm)


def score(title: str, dataset: str) -> str:
    """A published score of an algorithm of these tables; empty where CORL has none."""
    found = _SCORES.get(title, {}).get(dataset)
    return f"{found[0]:.1f} ± {found[1]:.1f} (4)" if found else ""
