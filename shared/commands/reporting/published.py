"""Published scores, by algorithm and dataset: those of CORL's README, and those of FQL's paper."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

Scores = Mapping[str, Mapping[str, Sequence[float]]]
# What tables call the algorithms whose runs have another name
_TITLES = {"TD3_BC": "TD3+BC", "rebrac": "ReBRAC"}


class Published(NamedTuple):
    """The scores of one source.

    Attributes:
        whose: Whose they are, in a column's head.
        note: What one must know to read them.
        seeds: How many each is of.
        digits: Behind the point, as they were published.
        scores: Mean and deviation by an algorithm's title and a dataset.
    """

    whose: str
    note: str
    seeds: int
    digits: int
    scores: Scores

    def score(self, title: str, dataset: str) -> str:
        """Of an algorithm of these tables; empty where there is none."""
        found = self.scores.get(title, {}).get(dataset)
        if not found:
            return ""
        mean, deviation = (f"{number:.{self.digits}f}" for number in found)
        return f"{mean} ± {deviation} ({self.seeds})"


def _read(name: str) -> Scores:
    return json.loads((Path(__file__).parent / f"{name}.json").read_text())


CORL = Published(
    "CORL's",
    "CORL's published figures are last evaluations of four seeds, with the population's deviation.",
    4,
    1,
    _read("corl_scores"),
)
"""The tables in CORL's README (https://github.com/corl-team/CORL, commit eeeeef2), as D4RL's normalised scores."""

FQL = Published(
    "FQL's paper",
    "The figures of FQL's paper are of eight seeds: in OGBench the mean of the last three evaluations, elsewhere the "
    "last one. They are of OGBench 1.1, which judged success after the action. Its BC, IQL and ReBRAC have other "
    "networks than these.",
    8,
    0,
    _read("fql_scores"),
)
"""Table 3 of Park et al., Flow Q-Learning, 2025 (https://arxiv.org/abs/2502.02538); of D4RL's sets, FQL's own alone."""

SOURCES = (CORL, FQL)


def name_of(algorithm: str) -> str:
    """What the tables call the algorithm of a run; runs of settings that vary have no counterpart there."""
    return _TITLES.get(algorithm, algorithm)
