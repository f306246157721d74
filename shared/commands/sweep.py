"""`corl-twins sweep FILE`: trains many algorithms on many datasets with many seeds, and completes missing runs.

Each run is an ordinary run with an ordinary folder. Calling the same command again starts the missing runs, resumes
those that were interrupted, and leaves the others alone.
"""

import argparse
import json
import os
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from shared.commands.common import Parser, at_least
from shared.commands.reporting.planned import note_planned
from shared.commands.reporting.runs import gather, outcome_lines
from shared.commands.sweeping.alone import alone_in
from shared.commands.sweeping.cluster import LOCAL, Share
from shared.commands.sweeping.flags import RAYS_OWN, add_flags
from shared.commands.sweeping.on_ray import OnRay
from shared.commands.sweeping.plan import Cell, batches, cells, read
from shared.commands.sweeping.processes import Ended, Processes, last_words
from shared.envs.scores import rounded
from shared.errors import InputError
from shared.runs.configs import read_yaml
from shared.runs.curves import AVERAGED, LABELS, places
from shared.runs.machine import on_threads
from shared.runs.progress import say, warn
from shared.runs.resuming import RunStatus, run_status

_EXAMPLE = """\
a file:
  algorithms: [iql, td3_bc]        # or with changes of their own, iql: {grid: {inverse_temperature: [0.5, 3]}}
  datasets: [mini/hopper-mostly-expert, hopper-medium-v2]
  frameworks: [torch, jax]         # default: [jax]
  seeds: 5                         # 0 to 4; or the seeds themselves, [0, 7]
  settings: {max_timesteps: 20000}
  grid: {discount: [0.99, 0.995]}  # every combination is a run
  folder: runs/first               # default: sweeps/ and the file's name
"""


def parse_arguments(arguments: Sequence[str]) -> tuple[argparse.Namespace, dict[str, str]]:
    """Parses the command line; unknown arguments are settings of all runs. `--help` explains it.

    Raises:
        InputError: The command line cannot be used.
    """
    parser = Parser(
        prog="corl-twins sweep",
        usage="%(prog)s [FILE] [--algorithms A ...] [--datasets D ...] [--seeds N ...] [--setting VALUE ...]",
        description="Trains each algorithm on each dataset, in each framework, with each seed. Called again, it\n"
        "makes only the missing runs. A flag overrides the file.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("file", metavar="FILE", help="YAML file of the sweep, before all flags; optional")
    parser.add_argument("--algorithms", nargs="+", metavar="A", help="such as iql td3_bc finetune/iql")
    parser.add_argument("--datasets", nargs="+", metavar="D", help="names that --env accepts")
    parser.add_argument("--frameworks", nargs="+", metavar="F", help="torch and jax, or one of them (default: jax)")
    parser.add_argument("--seeds", nargs="+", metavar="N", help="how many, or the seeds themselves (default: 1)")
    parser.add_argument("--grid", action="append", metavar="SETTING=V,V", help="values of a setting; may be repeated")
    parser.add_argument("--folder", metavar="FOLDER", help="folder for all runs")
    how = parser.add_argument_group("how it is run")
    how.add_argument("--jobs", type=at_least(1), metavar="N", help="runs at a time (default: 1; on Ray any number)")
    how.add_argument(
        "--threads",
        type=at_least(1),
        metavar="N",
        help="threads of each run (default: OMP_NUM_THREADS, or the cores per job; on Ray 1)",
    )
    how.add_argument(
        "--together", type=at_least(1), default=1, metavar="N", help="seeds of a JAX run in one program (default: 1)"
    )
    how.add_argument(
        "--list", action="store_true", default=False, help="print the runs and their progress, but start none"
    )
    ray = parser.add_argument_group("on a Ray cluster")
    ray.add_argument(
        "--ray",
        nargs="?",
        const=LOCAL,
        metavar="ADDRESS",
        help="run on the cluster at HOST:PORT, or auto; without ADDRESS, on a local Ray",
    )
    add_flags(ray)
    # Without a file, argparse would take the value of a setting for it.
    given = arguments if arguments and not arguments[0].startswith("-") else ["", *arguments]
    options, others = parser.parse_known_args(given)
    if "ray" not in options and (bad := [name for name in RAYS_OWN if name in options]):
        raise InputError(f"--{bad[0]} is for a Ray cluster: add --ray, or leave it out")
    return options, _settings(others)


def _settings(arguments: Sequence[str]) -> dict[str, str]:
    """Parses settings given as flags, `--name value` or `--name=value`."""
    found: dict[str, str] = {}
    waiting = iter(arguments)
    for flag in waiting:
        name, equals, value = flag.partition("=")
        if not name.startswith("--"):
            raise InputError(f"unknown argument {flag!r}; --help explains")
        following = value if equals else next(waiting, None)
        if following is None:
            raise InputError(f"{flag} needs a value; --help explains")
        found[name.removeprefix("--")] = following
    return found


def asked(options: argparse.Namespace, settings: dict[str, str]) -> tuple[dict[str, Any], str]:
    """The values from the file and the flags, by name, and the prefix of messages about them.

    Raises:
        InputError: The file cannot be read, or a grid has no values.
    """
    file = Path(options.file) if options.file else None
    values = {"folder": f"sweeps/{file.stem if file else 'sweep'}"} | (read_yaml(file) if file else {})
    for name in ("algorithms", "datasets", "frameworks", "folder"):
        values |= {name: getattr(options, name)} if name in options else {}
    if "seeds" in options:
        values["seeds"] = options.seeds[0] if len(options.seeds) == 1 else options.seeds
    if settings:
        values["settings"] = {**_mapping(values, "settings"), **settings}
    if "grid" in options:
        pairs = [text.partition("=") for text in options.grid]
        if bad := [name for name, _, several in pairs if not several]:
            raise InputError(f"--grid {bad[0]}: write the setting and its values, such as inverse_temperature=0.5,3")
        values["grid"] = {**_mapping(values, "grid"), **{name: several.split(",") for name, _, several in pairs}}
    return values, f"{file}: " if file else ""


def _mapping(values: dict[str, Any], name: str) -> dict[str, Any]:
    return found if isinstance(found := values.get(name), dict) else {}


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit status, which is 1 if a run failed, or is still running elsewhere.

    Raises:
        InputError: The sweep cannot be used; no process was started then.
    """
    options, settings = parse_arguments(arguments)
    plan = read(*asked(options, settings))
    wanted = cells(plan)
    if options.list:
        for cell in wanted:
            print(f"{run_status(cell.config, cell.algorithm, cell.framework)[0].value}: {cell.label}")
        return 0
    with alone_in(plan.folder):
        note_planned(plan.folder, wanted)
        return _finish(wanted, plan.folder, options)


def _finish(wanted: Sequence[Cell], folder: Path, options: argparse.Namespace) -> int:
    """Makes the missing runs, and prints the outcome."""
    states = [run_status(cell.config, cell.algorithm, cell.framework)[0] for cell in wanted]
    counts = Counter(states)
    missing = [cell for cell, state in zip(wanted, states, strict=True) if state is RunStatus.MISSING]
    runs = f"{len(wanted)} run{'s' * (len(wanted) > 1)}"
    say(f"{runs} in {folder}: {counts[RunStatus.FINISHED]} finished, {len(missing)} to do")
    outcomes = _make(missing, len(wanted), folder, options) if missing else Counter()
    going_on = counts[RunStatus.GOING_ON] + outcomes[RunStatus.GOING_ON]
    failed, left = outcomes[RunStatus.MISSING], len(missing) - outcomes.total()
    if going_on:
        warn(f"runs that go on in other processes: {going_on}; call this again after their end")
    if failed:
        warn(f"runs that failed: {failed}; mend the cause and call this again")
    if left:
        warn(f"runs for which the time was too short: {left}; call this again")
    if going_on or failed or left:
        return 1
    for line in outcome_lines(gather([folder])):
        say(line)
    finished = "the run is finished" if len(wanted) == 1 else f"all {len(wanted)} runs are finished"
    say(f"{finished}: corl-twins plot {folder} --stats compares them")
    return 0


def _make(missing: Sequence[Cell], number: int, folder: Path, options: argparse.Namespace) -> Counter[RunStatus]:
    """Makes runs; returns the number of runs by outcome."""
    # SIGTERM has the same effect as Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    outcomes: Counter[RunStatus] = Counter()
    bar = tqdm(total=number, initial=number - len(missing), unit="run", disable=None, smoothing=0.1)

    def tell(ended: Ended) -> None:
        for cell in ended.cells:
            outcome = RunStatus.GOING_ON if ended.status is None else _told(cell, ended)
            outcomes[outcome] += 1
            bar.update(outcome is not RunStatus.GOING_ON)

    with bar, _machines(options, folder) as machines:
        machines.run(batches(missing, options.together), tell)
    return outcomes


def _machines(options: argparse.Namespace, folder: Path) -> Processes | OnRay:
    """The backend for the runs: this machine, or a Ray cluster."""
    jobs = getattr(options, "jobs", None)
    if "ray" in options:
        threads = getattr(options, "threads", 1)
        given = {name: getattr(options, name) for name in RAYS_OWN if name in options}
        return OnRay(options.ray, Share(cpus=threads, jobs=jobs, **given), on_threads(threads), folder)
    asked = os.environ.get("OMP_NUM_THREADS", "")
    default = int(asked) if asked.isdecimal() and int(asked) else max(1, (os.cpu_count() or 1) // (jobs or 1))
    threads = getattr(options, "threads", default)
    return Processes(jobs or 1, on_threads(threads), folder / "logs")


def _told(cell: Cell, ended: Ended) -> RunStatus:
    """Prints the outcome of a run whose process has ended; returns `MISSING` if it failed."""
    state, folder = run_status(cell.config, cell.algorithm, cell.framework)
    # If a process makes several runs, one failure determines the exit status of all.
    ended_badly = ended.status and len(ended.cells) == 1
    if ended_badly or folder is None or state is not RunStatus.FINISHED:
        warn(f"failed: {cell.label}: {last_words(ended.log)} (exit status {ended.status}, see {ended.log})")
        return RunStatus.MISSING
    result = json.loads((folder / "result.json").read_text())
    last = result[f"mean_of_last_{AVERAGED}"]
    metric = result["metric"]
    score = "no score" if last is None else f"{LABELS[metric]} {rounded(last, digits=places(metric))[0]}"
    say(f"done: {cell.label}: {score}, {result['seconds']['total'] / 60:.1f} minutes")
    return RunStatus.FINISHED
