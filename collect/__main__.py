"""`python -m collect hopper-medium-expert` makes that bundled dataset again."""

import argparse
import shlex
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium

from collect.rollouts import Episode, record, returns_of, write_dataset
from collect.training import Snapshot, TrainSettings, load_actor, rate, train
from shared.envs import fingerprint, make_env
from shared.errors import InputError

_DATASETS = {
    "halfcheetah-medium-expert": "d4rl/halfcheetah-v2",
    "hopper-medium-expert": "d4rl/hopper-v2",
    "walker2d-medium-expert": "d4rl/walker2d-v2",
}
_NUMBERS = (
    ("steps", 250_000, "environment steps of training, and as many updates"),
    ("random_steps", 5_000, "steps of uniform actions before learning begins"),
    ("batch_size", 128, "transitions of one update"),
    ("evaluate_every", 5_000, "steps between snapshots of the policy"),
    ("evaluation_episodes", 5, "episodes that rate a snapshot"),
    ("transitions", 25_000, "rows of each policy that D4RL's reader keeps"),
)
_OUTPUT_FOLDER = Path("datasets/mini")
_MEDIUM_SHARE = 1 / 3  # of the expert's return, as in D4RL
_FINALISTS = 5
_FINAL_EPISODES = 40
_LICENCE = "Apache-2.0"
_PLACES = ("output", "work_dir")  # options that do not decide what is in the file


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Reads the command line; `--help` explains it."""
    parser = argparse.ArgumentParser(
        prog="python -m collect",
        description="Trains soft actor-critic in one of the environments that step as D4RL's did, then records whole "
        "episodes of a medium policy (about a third of the expert's return) and of the expert into one HDF5 file of "
        "D4RL's v2 layout. The defaults make the bundled file again.",
    )
    parser.add_argument("dataset", choices=_DATASETS, metavar="dataset", help=f"one of {', '.join(_DATASETS)}")
    parser.add_argument(
        "--seed", type=_at_least(0), default=0, help="decides training, episodes and thereby the file (default: 0)"
    )
    for name, default, meaning in _NUMBERS:
        explanation = f"{meaning} (default: {default:,})"
        parser.add_argument(f"--{name}", type=_at_least(1), default=default, metavar="N", help=explanation)
    parser.add_argument("--output", type=Path, help=f"file to write (default: {_OUTPUT_FOLDER}/<dataset>.hdf5)")
    parser.add_argument(
        "--work_dir",
        type=Path,
        help="folder for snapshots; with one that holds the same training, only the episodes are recorded again "
        "(default: a temporary folder)",
    )
    options = parser.parse_args(arguments)
    options.output = options.output or _OUTPUT_FOLDER / f"{options.dataset}.hdf5"
    return options


def _at_least(least: int) -> Callable[[str], int]:
    """A type of whole numbers for argparse, which prints what is raised."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if number < least:
            raise argparse.ArgumentTypeError(f"{number} is less than {least}")
        return number

    return parse


def collect(options: argparse.Namespace, work_dir: Path) -> None:
    """Trains (or reuses what is in `work_dir`), chooses both policies, records them and writes `options.output`.

    Raises:
        InputError: Training is too short to leave two policies to choose from.
    """
    if options.steps < 2 * options.evaluate_every:
        raise InputError("training would leave fewer than 2 snapshots; raise --steps or lower --evaluate_every")
    settings = TrainSettings(
        env=_DATASETS[options.dataset],
        seed=options.seed,
        steps=options.steps,
        random_steps=options.random_steps,
        batch_size=options.batch_size,
        evaluate_every=options.evaluate_every,
        evaluation_episodes=options.evaluation_episodes,
    )
    snapshots = train(settings, work_dir)
    env = make_env(settings.env)
    attributes = _provenance(env, options)
    episodes: list[Episode] = []
    for seed, (name, snapshot) in enumerate(choose_policies(env, snapshots, work_dir).items(), start=options.seed):
        recorded = list(record(env, load_actor(env, work_dir, snapshot.step), seed, options.transitions))
        attributes |= _describe(name, snapshot, recorded, seed)
        episodes += recorded
    write_dataset(options.output, episodes, attributes)
    for name, value in attributes.items():
        print(f"{name}: {value}")


def choose_policies(env: gymnasium.Env, snapshots: list[Snapshot], work_dir: Path) -> dict[str, Snapshot]:
    """Picks the best policy, and an earlier one with about a third of its return.

    The few evaluations during training only nominate finalists; more episodes decide between those. A medium policy
    must fall in most episodes, for a robot that stands still to the time limit earns a third too; where no robot ever
    falls (HalfCheetah), this says nothing and is left out.

    Returns:
        `medium` and `expert`, in this order.
    """
    best = sorted(snapshots[1:], key=lambda s: -s.return_mean)[:_FINALISTS]
    expert = max((_evaluate(env, s, work_dir) for s in best), key=lambda s: s.return_mean)
    goal = _MEDIUM_SHARE * expert.return_mean

    def distance(snapshot: Snapshot) -> float:
        return abs(snapshot.return_mean - goal)

    earlier = [s for s in snapshots if s.step < expert.step]
    nominated = sorted(_falling(earlier), key=distance)[:_FINALISTS]
    medium = min(_falling([_evaluate(env, s, work_dir) for s in nominated]), key=distance)
    return {"medium": medium, "expert": expert}


def _falling(snapshots: list[Snapshot]) -> list[Snapshot]:
    return [s for s in snapshots if s.fall_rate > 0.5] or snapshots


def _evaluate(env: gymnasium.Env, snapshot: Snapshot, work_dir: Path) -> Snapshot:
    return rate(env, load_actor(env, work_dir, snapshot.step), snapshot.step, _FINAL_EPISODES)


def _provenance(env: gymnasium.Env, options: argparse.Namespace) -> dict[str, Any]:
    """Attributes of the file that do not depend on the policies."""
    given = {key: value for key, value in vars(options).items() if key not in (*_PLACES, "dataset")}
    flags = [part for key, value in given.items() for part in (f"--{key}", str(value))]
    facts = fingerprint(env)
    return {
        "env_id": facts["env"],
        "total_mass": facts["total_mass"],
        "algorithm": "SAC",
        "policy": "stochastic",
        "command": shlex.join(["python", "-m", "collect", options.dataset, *flags]),
        "training_seed": options.seed,
        "licence": _LICENCE,
        **{f"{package}_version": version(package) for package in ("mujoco", "gymnasium", "numpy", "jax")},
    }


def _describe(name: str, snapshot: Snapshot, episodes: list[Episode], seed: int) -> dict[str, Any]:
    """Attributes of the file about one of its policies."""
    returns = returns_of(episodes)
    return {
        f"{name}_return_mean": float(returns.mean()),
        f"{name}_return_std": float(returns.std()),
        f"{name}_episodes": len(episodes),
        f"{name}_rows": sum(len(episode.rewards) for episode in episodes),
        f"{name}_training_steps": snapshot.step,
        f"{name}_seed": seed,
    }


def main(arguments: list[str]) -> int:
    """Runs the command; returns its exit status."""
    options = parse_arguments(arguments)
    folder = nullcontext(options.work_dir) if options.work_dir else tempfile.TemporaryDirectory()
    try:
        with folder as work_dir:
            Path(work_dir).mkdir(parents=True, exist_ok=True)
            collect(options, Path(work_dir))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
