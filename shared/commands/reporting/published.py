"""Published scores by algorithm and dataset: CORL's and OfflineRL-Kit's READMEs, FQL's and OGBench's papers."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Scores = Mapping[str, Mapping[str, Sequence[float]]]
# Names in the tables of algorithms whose runs have another name
_TITLES = {"TD3_BC": "TD3+BC", "rebrac": "ReBRAC", "rebrac-finetune": "ReBRAC"}


class Published(NamedTuple):
    """The scores of one source.

    Attributes:
        whose: The source, for the head of a column.
        note: An explanation that readers need.
        seeds: The number of seeds of each score.
        digits: The number of decimal places, as published.
        scores: Mean and deviation, by an algorithm's title and a dataset.
    """

    whose: str
    note: str
    seeds: int
    digits: int
    scores: Scores

    def score(self, title: str, dataset: str) -> str:
        """The score of an algorithm in these tables; empty if there is none."""
        found = self.scores.get(title, {}).get(dataset)
        return _shown(found, self.digits, self.seeds) if found else ""


def _shown(score: Sequence[float], digits: int, seeds: int) -> str:
    mean, deviation = (f"{number:.{digits}f}" for number in score)
    return f"{mean} ± {deviation} ({seeds})"


def _read(name: str) -> Any:
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
    "FQL's paper has eight seeds and reports the mean of the last three evaluations for OGBench, and otherwise the "
    "last one. It used OGBench 1.1, which judged success after the action. Its BC, IQL and ReBRAC have different "
    "networks from these.",
    8,
    0,
    _read("fql_scores"),
)
"""Table 3 of Park et al., Flow Q-Learning, 2025 (https://arxiv.org/abs/2502.02538); for D4RL, only IFQL and FQL."""

KIT = Published(
    "OfflineRL-Kit's",
    "OfflineRL-Kit's published figures are of four seeds, each of them the mean of the last ten evaluations.",
    4,
    1,
    _read("offlinerl_kit_scores"),
)
"""The table in OfflineRL-Kit's README (https://github.com/yihaosun1124/OfflineRL-Kit, commit e3ce697)."""

OGBENCH = Published(
    "OGBench's",
    "OGBench's published figures are of eight seeds, the mean of the last three evaluations of five tasks. We have "
    "them from another project's copy of its tables. CRL was computed in another way then.",
    8,
    0,
    _read("ogbench_scores"),
)
"""Tables 2 and 5 of Park et al., OGBench, 2024 (https://arxiv.org/abs/2410.20092), for its datasets with states."""

SOURCES = (CORL, FQL, KIT, OGBENCH)


class PublishedPhases(NamedTuple):
    """The results of one source for algorithms that learn offline first and then online.

    Attributes:
        note: An explanation that readers need.
        seeds: The number of seeds of each result.
        digits: The number of decimal places, as published, of scores `before` and `after` the online phase and of the
            training `regret`, if the source has it.
        results: Mean and deviation of each of them, by an algorithm's title and a dataset.
    """

    note: str
    seeds: int
    digits: Mapping[str, int]
    results: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]

    def shown(self, title: str, dataset: str) -> list[str]:
        """An algorithm's results on a dataset, in the order of `digits`; empty if there are none."""
        found = self.results.get(title, {}).get(dataset)
        return [_shown(found[name], digits, self.seeds) for name, digits in self.digits.items()] if found else []


PHASES = (
    PublishedPhases(
        "CORL's published figures are of four seeds, with the population's deviation.",
        4,
        {"before": 1, "after": 1, "regret": 2},
        _read("corl_finetune_scores"),
    ),
    PublishedPhases(
        "FQL's paper has eight seeds. Its RLPD makes one update a step and has two critics.",
        8,
        {"before": 0, "after": 0},
        _read("fql_finetune_scores"),
    ),
)
"""CORL's README, and table 4 of FQL's paper, after a million updates and a million steps in the environment."""


def name_of(algorithm: str) -> str:
    """The name of a run's algorithm in the tables; runs with varied settings have no counterpart there."""
    return _TITLES.get(algorithm, algorithm)
