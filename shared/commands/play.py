"""`corl-twins play RUN --episodes 3 --video out.mp4`: runs a trained policy in its environment."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from shared.commands.common import Parser, at_least, check_free
from shared.envs.evaluation import Evaluation, Evaluator
from shared.envs.film import film
from shared.envs.scores import rounded
from shared.errors import InputError, reason
from shared.frameworks import saved_run
from shared.frameworks.saved_run import SavedRun


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the command line; `--help` explains it.

    Raises:
        InputError: The command line cannot be used.
    """
    parser = Parser(
        prog="corl-twins play",
        description="Lets a run's policy act in the environment that scored it, and prints what each episode earns.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder, or a .pt or .msgpack checkpoint")
    parser.add_argument("--episodes", type=at_least(1), default=3, metavar="N", help="how many (default: 3)")
    parser.add_argument(
        "--seed",
        type=at_least(0),
        metavar="N",
        help="decides the start states, and what a policy samples (default: the run's evaluations')",
    )
    parser.add_argument("--video", dest="output", type=Path, metavar="FILE", help="film them into an .mp4 or a .gif")
    parser.add_argument("--overwrite", action="store_true", help="replace a file that is there already")
    return parser.parse_args(arguments)


def play(source: SavedRun, episodes: int, seed: int | None, video: Path | None) -> Evaluation:
    """Runs the episodes, and films them if `video` is given.

    Raises:
        InputError: The checkpoint cannot be used, or there is no renderer.
    """
    if video is None:
        return _played(source, source.evaluator(episodes, seed), seed)
    try:
        with film(video) as make:
            return _played(source, source.evaluator(episodes, seed, num_envs=1, make=make), seed)
    except OSError as error:
        raise InputError(f"cannot write {video} ({reason(error)}): name another file") from error


def _played(source: SavedRun, evaluator: Evaluator, seed: int | None) -> Evaluation:
    try:
        return evaluator(source.policy(seed))
    finally:
        evaluator.close()


def main(arguments: Sequence[str]) -> None:
    """Runs the command.

    Raises:
        InputError: The command line or the run cannot be used.
    """
    options = parse_arguments(arguments)
    source = SavedRun.open(saved_run.find(options.run))
    if options.output is not None:
        check_free(options.output, options.overwrite)
    played = play(source, options.episodes, options.seed, options.output)
    measure = source.scale
    scores = measure(played.outcomes)
    for number, (earned, steps, score) in enumerate(zip(played.returns, played.lengths, scores, strict=True), start=1):
        named = f", {measure.words} {rounded(score)[0]}" if measure.bounds is not None else ""
        print(f"episode {number}: return {rounded(earned)[0]} in {steps} steps{named}")
    print(f"{measure.words}: {rounded(scores.mean())[0]} on average")
    if options.output is not None:
        print(options.output)
