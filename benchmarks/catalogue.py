"""Lists every algorithm with the facts that help to choose one: when to use it, its cost, its score."""

import json
from typing import Any

from benchmarks import results, seeds
from parity_tests.families import Family
from parity_tests.listing import of_family, short
from parity_tests.pair import Pair
from shared.frameworks.twins import page_of

COLUMNS = ["algorithm", "when to use it", "GFLOP an update", "data", "score in PyTorch, in JAX", "paper"]


def table() -> str:
    """A Markdown heading and table for each family, for the site."""
    costs, scores = _costs(), _scores()
    parts = []
    for family in Family:
        rows = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
        rows += [_row(pair, costs, scores) for pair in of_family(family)]
        parts.append(f"## {family.title}\n\n{family.case}\n\n" + "\n".join(rows))
    return "\n\n".join(parts)


def choices() -> str:
    """A Markdown table for the README: one row for each algorithm with default runs over many seeds."""
    scores = {
        found["algorithm"]: found
        for found in (json.loads(path.read_text()) for path in results.files("seeds"))
        if seeds.is_default(found) and len(found["frameworks"]["torch"]["seeds"]) >= seeds.MANY
    }
    rows = ["| algorithm | when to use it | data | score in PyTorch, in JAX |", "|---|---|---|---|"]
    for family in Family:
        for pair in of_family(family):
            if found := scores.get(pair.name):
                name = f"[{short(pair)}](docs/algorithms/{page_of(pair.name)}.md)"
                rows.append(f"| {name} | {pair.use} | {seeds.data(found)} | {_means(found)} |")
    return "\n".join(rows)


def _row(pair: Pair, costs: dict[str, float], scores: dict[str, tuple[str, str]]) -> str:
    cost = f"{costs[pair.name]:.2f}" if pair.name in costs else ""
    data, means = scores.get(pair.name, ("", ""))
    cells = [f"[{short(pair)}]({page_of(pair.name)}.md)", pair.use, cost, data, means]
    return f"| {' | '.join([*cells, f'[{pair.paper}]({pair.url})'])} |"


def _costs() -> dict[str, float]:
    """GFLOP in an update under the reference's default settings, by algorithm; the same on every machine."""
    summaries = [json.loads(path.read_text()) for path in results.files("shipped")]
    found = [item for summary in summaries for item in summary["algorithms"].items()]
    return {name: timed["gflop_per_update"] for name, timed in found}


def _scores() -> dict[str, tuple[str, str]]:
    """The data of default runs and their mean scores over seeds in both frameworks, by algorithm."""
    summaries = [json.loads(path.read_text()) for path in results.files("seeds")]
    return {found["algorithm"]: (seeds.data(found), _means(found)) for found in summaries if seeds.is_default(found)}


def _means(summary: dict[str, Any]) -> str:
    return ", ".join(f"{summary['frameworks'][framework]['mean']:.1f}" for framework in seeds.FRAMEWORKS)
