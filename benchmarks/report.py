"""`corl-twins tables`: every results file as a table; `--write` puts them into the README and the docs.

For the docs it also draws two charts of each machine's rungs, and the learning curves of runs over seeds.

A page has a place for a table between two comments, `<!-- updates -->` and `<!-- /updates -->`. The word is a key of
`TABLES`. An algorithm's name or a side may follow the word, and the table then covers only that. Everything between the
comments is replaced: no figure is typed by hand.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import (
    apart,
    catalogue,
    chart,
    environments,
    goals,
    growth,
    images,
    judged,
    lookups,
    loops,
    online,
    programs,
    results,
    searches,
    seeds,
    starts,
    tricks,
    whole_runs,
)
from benchmarks.results import ROOT, files
from parity_tests import likeness, listing
from parity_tests.pairs import PAIRS
from shared.commands import statistics
from shared.commands.common import Parser
from shared.errors import InputError
from shared.files import write_atomically

DOCS = ROOT / "docs"
# The pages in `side_by_side` are made when the site is built.
PAGES = [
    *(ROOT / "README.md", DOCS / "index.md"),
    *(path for path in sorted(DOCS.glob("*/*.md")) if path.parent.name != "side_by_side"),
]
FIGURES = DOCS / "figures"
# The path from a page to the figures
_FIGURES = "../figures"
# A table's place on a page: its kind, and the algorithm or side that it covers
PLACE = re.compile(r"(<!-- (\w+)(?: ([\w/]+))? -->\n)(.*?)(<!-- /\2 -->)", re.DOTALL)

# Charts of growing cost: the end of the file's name, the value drawn, and its title
GROWN = {
    "": ("updates_per_second", "Updates per second"),
    "-peak": ("share", "Share of the machine's peak"),
    "-memory": ("gib", "Memory"),
}


def measured(summary: dict[str, Any]) -> str:
    """Describes where and how a results file was made."""
    machine = summary["hardware"]
    device = (machine["gpus"] or [machine["cpu"]])[0]
    return f"`{summary['command']}` on {device}, {machine['cores']} cores, {summary['date']}"


def summaries_of(kind: str) -> list[dict[str, Any]]:
    """The results files of a kind, one for each machine or algorithm."""
    return [json.loads(path.read_text()) for path in files(kind)]


def of_each_machine(
    kind: str, table: Callable[[Any], str], told: Callable[[dict[str, Any]], str], _: str | None
) -> str:
    """A table for each machine's results file of a kind, below a line that says how it was measured."""
    return "\n".join(f"{told(summary)}:\n\n{table(summary)}\n" for summary in summaries_of(kind))


def benchmarked(summary: dict[str, Any]) -> str:
    """Describes where and how updates were timed, with versions and load."""
    versions, load = summary["versions"], summary["load_before"]
    return f"{measured(summary)}; torch {versions['torch']}, jax {versions['jax']}, load {load:.1f} before"


def row_by_row(summary: dict[str, Any]) -> str:
    """Where, by which commands, when and with which versions a file of rows was made, and the highest load."""
    rows = [found["measured"] for found in summary["algorithms"].values()]
    machine, load = summary["hardware"], max(row["load_before"] for row in rows)
    libraries = [f"{name} {_each(row['versions'][name] for row in rows)}" for name in ("torch", "jax")]
    commands = _each(f"`{_without_choice(row['command'])}`" for row in rows)
    device = (machine["gpus"] or [machine["cpu"]])[0]
    place = f"{commands} on {device}, {machine['cores']} cores, {_each(row['date'] for row in rows)}"
    return f"{place}; {', '.join(libraries)}, load up to {load:.1f} before"


def _each(values: Iterable[str]) -> str:
    return ", ".join(sorted(set(values)))


def _without_choice(command: str) -> str:
    """A benchmark's command without the algorithms and rungs selected."""
    module = re.match(r"python -m benchmarks\.\w+", command)
    return module[0] if module else "pytest --benchmark-only"


def updates(name: str | None) -> str:
    """Updates per second on every machine that measured them: a summary of all algorithms, or every rung of one."""
    found = []
    for path in files("updates"):
        summary = json.loads(path.read_text())
        if name is not None:
            summary["algorithms"] = {key: rows for key, rows in summary["algorithms"].items() if key == name}
        if summary["algorithms"]:
            table = results.short_table(summary) if name is None else results.table(summary)
            found.append(f"{row_by_row(summary)}:\n\n{table}\n")
    return "\n".join(found)


def speed(_: str | None) -> str:
    """Updates per second of the default code and of PyTorch's best, with a column for each machine."""
    summaries = summaries_of("updates")
    machines = "\n".join(f"- {row_by_row(summary)}" for summary in summaries)
    return f"{machines}\n\n{results.side_by_side(summaries)}\n"


def shipped(_: str | None) -> str:
    """Updates per second of the default code, on every machine that measured it alone."""
    summaries = summaries_of("shipped")
    return "\n".join(f"{row_by_row(summary)}:\n\n{results.shipped_table(summary)}\n" for summary in summaries)


def seeds_of(name: str | None) -> str:
    """Whole runs over seeds, for one algorithm or all; default runs first."""
    found: dict[bool, list[str]] = {True: [], False: []}
    for path in files("seeds"):
        summary = json.loads(path.read_text())
        if name in (None, summary["algorithm"]):
            verdict = f"The means are {summary['means_apart']:.1f} apart, the pooled standard deviation is "
            verdict += f"{summary['pooled_std']:.1f}."
            verdict += f" In `{summary['dataset']['name']}` itself, {data_scores(summary)}."
            text = f"{measured(summary)}:\n\n{seeds.table(summary)}\n\n{verdict}\n{curves(path, summary)}"
            found[seeds.is_default(summary)].append(text)
    return "\n".join([*found[True], *found[False]])


def data_scores(summary: dict[str, Any]) -> str:
    """The scores of a dataset's own episodes, by policy."""
    return " and ".join(f"{policy} scores {score:.1f}" for policy, score in summary["data_policies"].items())


def means(summary: dict[str, Any]) -> str:
    """Two cells with each framework's mean score over seeds, and its deviation."""
    sides = (summary["frameworks"][framework] for framework in seeds.FRAMEWORKS)
    return " | ".join(f"{side['mean']:.1f} +- {side['std']:.1f}" for side in sides)


def minutes(summary: dict[str, Any]) -> str:
    """A cell with the minutes that each framework's runs took."""
    sides = (summary["frameworks"][framework] for framework in seeds.FRAMEWORKS)
    return ", ".join(f"{np.mean(side['seconds_total']) / 60:.1f}" for side in sides)


def has_curves(summary: dict[str, Any]) -> bool:
    """Whether runs over seeds kept all their scores; those before 2026-11-23 kept only the last ones."""
    return "curves" in summary["frameworks"]["torch"]


def curves(path: Path, summary: dict[str, Any]) -> str:
    """The learning curves of runs over seeds, as a picture on their page; empty if they were not kept."""
    if not has_curves(summary):
        return ""
    name = PAIRS[summary["algorithm"]].title
    text = f"Scores of {name} over the updates, each seed's and their mean, in both frameworks"
    return f"\n![{text}]({_FIGURES}/{path.stem}.svg)\n"


def timed_runs(_: str | None) -> str:
    """Whole runs, timed from the start of their processes to the end."""
    summaries = summaries_of("runs")
    return "\n".join(f"{measured(summary)}:\n\n{whole_runs.table(summary)}\n" for summary in summaries)


def compiled(_: str | None) -> str:
    """The operations in compiled updates."""
    summaries = summaries_of("programs")
    return "\n".join(
        f"{measured(summary)}, jaxlib {summary['versions']['jaxlib']}:\n\n{programs.table(summary)}\n"
        for summary in summaries
    )


def tried(_: str | None) -> str:
    """The gain from each trick."""
    summaries = summaries_of("tricks")
    return "\n".join(f"{measured(summary)}:\n\n{tricks.table(summary)}\n" for summary in summaries)


def scores(_: str | None) -> str:
    """One row for each file of whole runs, with CORL's published score if there is one."""
    summaries = summaries_of("seeds")
    corls = [_corl(summary) for summary in summaries]
    heads = ["algorithm", "dataset", "updates", "seeds", "PyTorch [95%]", "JAX [95%]"]
    heads += ["JAX less PyTorch, in standard errors"]
    heads += ["CORL's", "PyTorch less CORL's, in standard errors"] if any(map(any, corls)) else []
    heads += ["lowest over the data's weakest policy", "minutes a run, PyTorch and JAX"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for summary, corl in zip(summaries, corls, strict=True):
        sides = [summary["frameworks"][framework] for framework in seeds.FRAMEWORKS]
        found = [side["mean_of_last_3"] for side in sides]
        cells = [summary["algorithm"], summary["dataset"]["name"], str(sides[0]["updates"]), str(len(found[0]))]
        cells += [*map(apart.interval, found), apart.of_frameworks(*found)]
        cells += corl if any(map(any, corls)) else []
        cells += [seeds.over_the_data(summary, *seeds.FRAMEWORKS), minutes(summary)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _corl(summary: dict[str, Any]) -> tuple[str, str]:
    torch = summary["frameworks"]["torch"]["mean_of_last_3"]
    return apart.of_corl(torch, PAIRS[summary["algorithm"]].title, summary["dataset"]["name"])


def compared(_: str | None) -> str:
    """Default runs of five seeds or more, and whether they show that both frameworks score the same."""
    lines = [
        f"| algorithm | data | seeds | PyTorch | JAX | equal within {statistics.MARGIN:g} points "
        "| lowest evaluation after a third | minutes a run, PyTorch and JAX |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for summary in summaries_of("seeds"):
        sides = [summary["frameworks"][framework] for framework in seeds.FRAMEWORKS]
        number = len(sides[0]["seeds"])
        if number >= seeds.MANY and seeds.is_default(summary):
            lines.append(
                f"| {PAIRS[summary['algorithm']].title} | {seeds.data(summary)} | {number} | {means(summary)} "
                f"| {seeds.equivalence(summary)} "
                f"| {', '.join(map(seeds.lowest_later, sides))} | {minutes(summary)} |"
            )
    return "\n".join(lines) + "\n"


def forms(name: str | None) -> str:
    """Default runs next to runs with other settings, for all algorithms that have such runs, or for one."""
    others = summaries_of("forms")
    named = {summary["algorithm"] for summary in others} & ({name} if name else set(PAIRS))
    defaults = summaries_of("seeds")
    rows = [found for found in defaults if found["algorithm"] in named and seeds.is_default(found)]
    rows += [found for found in others if found["algorithm"] in named]
    if not rows:
        return ""
    lines = [
        "| algorithm | settings | seeds | PyTorch | JAX | lowest evaluation after a third |",
        "|---|---|---|---|---|---|",
    ]
    for summary in sorted(rows, key=lambda found: found["algorithm"]):
        settings = " ".join(summary.get("settings", []))
        sides = [summary["frameworks"][framework] for framework in seeds.FRAMEWORKS]
        lines.append(
            f"| {PAIRS[summary['algorithm']].title} | {f'`{settings}`' if settings else 'the default'} "
            f"| {len(sides[0]['seeds'])} | {means(summary)} | {', '.join(map(seeds.lowest_later, sides))} |"
        )
    return "\n".join(lines) + "\n"


def gained(_: str | None) -> str:
    """The gain in score from the online phase, for every algorithm that has one."""
    return seeds.gains(summaries_of("seeds")) + "\n"


def replayed(_: str | None) -> str:
    """How far our environments are from steps recorded in D4RL's own."""
    summaries = summaries_of("environments")
    return "\n".join(
        f"{measured(summary)}; MuJoCo {summary['versions']['mujoco']}, Gymnasium-Robotics "
        f"{summary['versions']['gymnasium-robotics']}, recorded in {summary['recorded_in']}:\n\n"
        f"{environments.table(summary)}\n"
        for summary in summaries
    )


def grown(_: str | None) -> str:
    """How cost grows, on every machine that measured it, with its charts."""
    found = []
    for path in files("growth"):
        summary = json.loads(path.read_text())
        of = f"of {summary['algorithm']}, by what is changed"
        pictures = [f"![{words} {of}]({_FIGURES}/{path.stem}{end}.svg)" for end, (_, words) in GROWN.items()]
        found.append("\n\n".join([f"{benchmarked(summary)}:", *pictures, growth.table(summary)]) + "\n")
    return "\n".join(found)


def left_idle(_: str | None) -> str:
    """The share of the machine's peak that each algorithm reaches, on every machine that timed the default code."""
    found = []
    for path in files("shipped"):
        summary = json.loads(path.read_text())
        picture = (
            f"![Share of the matmul peak of every algorithm, by the work of an update]({_FIGURES}/{path.stem}-peak.svg)"
        )
        found.append(f"{row_by_row(summary)}:\n\n{picture}\n")
    return "\n".join(found)


def begun(_: str | None) -> str:
    """How long starts take, on every machine that measured them, with a chart."""
    found = []
    for path in files("starts"):
        summary = json.loads(path.read_text())
        text = f"Seconds to the first update and memory of {summary['algorithm']}, by the rows"
        picture = f"![{text}]({_FIGURES}/{path.stem}.svg)"
        found.append("\n\n".join([f"{benchmarked(summary)}:", picture, starts.table(summary)]) + "\n")
    return "\n".join(found)


def charts() -> dict[str, str]:
    """Every chart in the docs as SVG, by its file's name."""
    found: dict[str, str] = {}
    for path in files("updates"):
        summary = json.loads(path.read_text())
        # On a GPU, ratios over PyTorch eager measure only kernel launches.
        drawn = chart.over_best if summary["hardware"]["gpus"] else chart.staircases
        found[path.stem] = drawn(summary)
        if chart.many_seeds(summary):
            found[f"{path.stem}-seeds"] = chart.seeds(summary)
    for path in files("seeds"):
        if has_curves(summary := json.loads(path.read_text())):
            found[path.stem] = chart.learning(summary)
    for path in files("growth"):
        summary = json.loads(path.read_text())
        found |= {f"{path.stem}{end}": chart.growth(summary, value) for end, (value, _) in GROWN.items()}
    found |= {f"{path.stem}-peak": chart.peaks(json.loads(path.read_text())) for path in files("shipped")}
    return found | {path.stem: chart.starts(json.loads(path.read_text())) for path in files("starts")}


def alike(_: str | None) -> str:
    """How many lines the twins share."""
    return likeness.table() + "\n"


TABLES: dict[str, Callable[[str | None], str]] = {
    "speed": speed,
    "updates": updates,
    "shipped": shipped,
    "loops": partial(of_each_machine, "loops", loops.table, row_by_row),
    "corrections": partial(of_each_machine, "lookups", lookups.table, measured),
    "seeds": seeds_of,
    "runs": timed_runs,
    "programs": compiled,
    "tricks": tried,
    "scores": scores,
    "defaults": compared,
    "forms": forms,
    "gains": gained,
    "environments": replayed,
    "online": partial(of_each_machine, "online", online.table, row_by_row),
    "images": partial(of_each_machine, "images", images.table, benchmarked),
    "goals": partial(of_each_machine, "goals", goals.table, benchmarked),
    "searches": partial(of_each_machine, "searches", searches.table, benchmarked),
    "judged": partial(of_each_machine, "judged", judged.table, measured),
    "growth": grown,
    "peaks": left_idle,
    "starts": begun,
    "likeness": alike,
    "pairs": lambda _: listing.table() + "\n",
    "algorithms": lambda _: catalogue.table() + "\n",
    "choices": lambda _: catalogue.choices() + "\n",
    "pages": lambda _: listing.toctree() + "\n",
}


def filled(page: str) -> str:
    """A page with its places filled; a place without a results file stays empty.

    Raises:
        KeyError: A place has an unknown kind.
    """
    return PLACE.sub(lambda place: place[1] + "\n" + TABLES[place[2]](place[3]) + "\n" + place[5], page)


def write_pages() -> None:
    """Fills the tables of the README and the docs, and draws each machine's charts.

    Raises:
        InputError: The pages do not exist, as in an installed package.
    """
    if not DOCS.is_dir():
        raise InputError("--write fills the README and the docs, which only a clone of the repository has")
    for page in PAGES:
        page.write_text(filled(page.read_text()))
    for name, drawn in charts().items():
        write_atomically(FIGURES / f"{name}.svg", drawn.encode())


def main(arguments: Sequence[str]) -> None:
    """Prints every table, or writes them into the pages.

    Raises:
        InputError: The command line is invalid, or there are no pages to write.
    """
    parser = Parser(
        prog="corl-twins tables",
        description="Prints every results file as tables: scores, speed, and how alike the twins are.",
    )
    parser.add_argument("--write", action="store_true", help="fill the tables of README.md and docs/ in a clone")
    if parser.parse_args(arguments).write:
        write_pages()
    else:
        print("\n".join(table(None) for table in TABLES.values()))
