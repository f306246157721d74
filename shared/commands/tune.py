"""`corl-twins tune FILE`: searches for the best settings of an algorithm.

Optuna chooses the values, and ASHA stops poor trials early, both on Ray. Each trial consists of ordinary runs, and
calling the command again continues the search.
"""

import argparse
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from tqdm import tqdm

from shared.commands.common import Parser, at_least
from shared.commands.sweeping.alone import alone_in
from shared.commands.sweeping.cluster import LOCAL, Cluster, Share
from shared.commands.sweeping.flags import RAYS_OWN, add_flags
from shared.commands.sweeping.plan import in_text, validated
from shared.commands.tuning.on_ray import Way, optuna_sampler, search_on
from shared.commands.tuning.picture import draw_trials
from shared.commands.tuning.plan import Search
from shared.commands.tuning.record import Record, Trial
from shared.envs.scores import rounded
from shared.files import write_atomically
from shared.runs.configs import read_yaml
from shared.runs.machine import on_threads
from shared.runs.progress import say, warn

# Files in the search's folder: its best settings, and its picture
BEST, PICTURE = "best.yaml", "trials.png"
_EXAMPLE = """\
a file:
  algorithm: iql
  datasets: [mini/hopper-medium-replay]
  framework: jax                   # or torch
  seeds: 3                         # of each trial: 0 to 2; or the seeds themselves, [0, 7]
  settings: {max_timesteps: 20000}
  search:
    inverse_temperature: {low: 0.5, high: 10, log: true}
    batch_size: {low: 64, high: 512}
    iql_tau: [0.7, 0.8, 0.9]
  folder: runs/tuned               # default: tuned/ and the file's name

A trial's score is the mean over its runs of their last three evaluations. One whose loss or evaluation is not finite
has diverged: it counts as a trial, is worse than every other, and is not made again.
"""


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the command line; `--help` explains it.

    Raises:
        InputError: The command line cannot be used.
    """
    parser = Parser(
        prog="corl-twins tune",
        description="Searches for the settings with which an algorithm does best: Optuna chooses them, and ASHA stops\n"
        "poor trials early. Call it again to continue, or to add trials.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="YAML file of the search")
    parser.add_argument("--trials", type=at_least(1), default=20, metavar="N", help="trials in total (default: 20)")
    parser.add_argument(
        "--early", action=argparse.BooleanOptionalAction, default=True, help="stop poor trials early (default: yes)"
    )
    parser.add_argument("--jobs", type=at_least(1), metavar="N", help="trials at a time (default: any number)")
    parser.add_argument("--threads", type=at_least(1), default=1, metavar="N", help="threads of each run (default: 1)")
    parser.add_argument(
        "--together", type=at_least(1), default=1, metavar="N", help="seeds of a JAX run in one program (default: 1)"
    )
    ray = parser.add_argument_group("on a Ray cluster", argument_default=argparse.SUPPRESS)
    ray.add_argument("--ray", default=LOCAL, metavar="ADDRESS", help="HOST:PORT or auto (default: this machine alone)")
    add_flags(ray)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit status, which is 1 if trials failed, or if the time was too short.

    Raises:
        InputError: The search cannot be used; nothing was started then.
    """
    options = parse_arguments(arguments)
    given = {"folder": f"tuned/{options.file.stem}"} | read_yaml(options.file)
    search = validated(Search, given, f"{options.file}: ")
    search.check()
    with alone_in(search.folder):
        return _finish(search, options)


def _finish(search: Search, options: argparse.Namespace) -> int:
    """Makes the missing trials, and prints the best one."""
    record = Record(search)
    missing = options.trials - len(record.ended)
    say(f"{options.trials} trials in {search.folder}: {len(record.ended)} ended, {max(0, missing)} to do")
    failed = _make(search, record, options) if missing > 0 else 0
    if record.best:
        _keep(search, record)
    elif record.ended:
        warn(f"all {len(record.ended)} trials have diverged: narrow the search in another folder")
    if failed:
        warn(f"trials that failed: {failed}; mend the cause, narrow the search, or call this again")
    if left := max(0, options.trials - len(record.ended) - failed):
        warn(f"trials for which the time was too short: {left}; call this again")
    return 1 if failed or left else 0


def _make(search: Search, record: Record, options: argparse.Namespace) -> int:
    """Makes trials; returns the number that failed."""
    # SIGTERM has the same effect as Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    failed = 0
    bar = tqdm(total=options.trials, initial=len(record.ended), unit="trial", disable=None, smoothing=0.1)

    def tell(trial: Trial, why: str) -> None:
        nonlocal failed
        bar.update()
        if why:
            failed += 1
            warn(f"failed: {in_words(trial.values)}: {why}")
            return
        early = f", stopped after {trial.share:.0%} of its updates" if trial.share < 1 else ""
        came = "diverged" if trial.score is None else f"{rounded(trial.score)[0]}{early}"
        say(f"trial {len(record.ended)} of {options.trials}: {in_words(trial.values)}: {came}")

    given = {name: getattr(options, name) for name in RAYS_OWN if name in options}
    share = Share(cpus=options.threads, jobs=options.jobs, **given)
    way = Way(options.trials, options.early, options.together, on_threads(options.threads))
    sampler = optuna_sampler(search, record)
    with bar, Cluster(options.ray, share) as cluster:
        search_on(cluster, search, record, sampler, way, tell)
    return failed


def _keep(search: Search, record: Record) -> None:
    """Prints the best trial, and writes its settings and a picture of all trials."""
    best = record.best
    assert best is not None, "a trial has ended"
    assert best.score is not None, "a trial that has diverged is never the best"
    path = search.folder / BEST
    settings = {name: yaml.safe_load(in_text(value)) for name, value in (search.settings | best.values).items()}
    write_atomically(path, yaml.safe_dump(settings, sort_keys=False).encode())
    say(f"best of {len(record.ended)}: {in_words(best.values)}: {rounded(best.score)[0]}")
    try:
        write_atomically(search.folder / PICTURE, draw_trials(search, record.scored, best))
    except Exception as error:  # a missing picture does no harm
        warn(f"cannot draw {search.folder / PICTURE} ({error})")
    command = f"corl-twins train {search.framework} {search.algorithm} --env {search.datasets[0]}"
    say(f"its settings: {command} --config_path {path}")


def in_words(values: dict[str, Any]) -> str:
    """Formats values of settings, with four digits for numbers."""
    shown = (f"{value:.4g}" if isinstance(value, float) else value for value in values.values())
    return ", ".join(f"{name} {value}" for name, value in zip(values, shown, strict=True))
