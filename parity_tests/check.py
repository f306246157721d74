"""Checks somebody's JAX port of an algorithm against our PyTorch twin: `corl-twins check my_td3_bc.py`.

docs/check.md says what the file must hold.
"""

import argparse
import sys
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from parity_tests.checker.answers import answer
from parity_tests.checker.figures import TOLERANCES, Figures, compare
from parity_tests.checker.loading import NotWrittenError, load_module
from parity_tests.checker.naming import RUNGS, Diagnosis, diagnose, place
from parity_tests.checker.port import Port
from parity_tests.checker.questions import questions
from parity_tests.checker.template import template
from parity_tests.pair import Mistake
from parity_tests.pairs import PAIRS
from parity_tests.precision import both_in
from shared.commands.common import Parser, ended
from shared.errors import InputError


@dataclass(frozen=True)
class Climbed:
    """How a rung went.

    Attributes:
        rung: Its name.
        error: The largest error of all numbers.
        worst: Which number that is, and in which question.
        unwritten: What could not be compared since it is not written yet.
        diagnoses: What is wrong, where it fails.
        holds: Whether all that is written is within the tolerance.
    """

    rung: str
    error: float
    worst: str
    unwritten: tuple[str, ...]
    diagnoses: tuple[Diagnosis, ...] = ()
    holds: bool = True


def climb(port: Port, variants: tuple[str, ...]) -> Iterator[Climbed]:
    """Climbs rung by rung, up to the first that fails.

    Raises:
        InputError: The file does not do what its contract says.
        NotWrittenError: What the next rung needs is not written yet.
    """
    for rung in RUNGS:
        given = rung != "draws" or port.has("draw_noise")
        asked = questions(port.pair.name, rung, variants) if given else []
        answers = [answer(port, question) for question in asked]
        climbed = _judged(rung, asked, answers)
        if not climbed.holds:
            yield Climbed(**vars(climbed) | {"diagnoses": tuple(diagnose(port, rung, asked, answers, variants))})
            return
        yield climbed


def _judged(rung: str, asked: Sequence, answers: Sequence[Figures]) -> Climbed:
    worst, where = 0.0, ""
    unwritten: dict[str, None] = {}
    for question, figures in zip(asked, answers, strict=True):
        unwritten |= dict.fromkeys(group for group, values in figures.items() if values is None)
        for group, values in compare(rung, figures, question.expected).items():
            for name, value in values.items():
                if not where or not value <= worst:
                    worst, where = value, f"{group} {name}".strip() + f" ({question.where})"
    return Climbed(rung, worst, where, tuple(unwritten), holds=worst <= TOLERANCES[rung])


# ---- in words ------------------------------------------------------------------------------------------------------


def line(climbed: Climbed) -> str:
    """A rung in one line: its largest error and where that is."""
    if climbed.rung == "draws" and not climbed.worst:
        return f"{climbed.rung:<11} not given"
    what = f"{climbed.error:8.1e}  {climbed.worst}" if climbed.worst else "nothing to compare"
    verdict = "holds" if climbed.holds else "FAILS"
    unwritten = f"; not written yet: {', '.join(climbed.unwritten)}" if climbed.unwritten else ""
    limit = "" if climbed.holds else f"; tolerance {TOLERANCES[climbed.rung]:g}"
    return f"{climbed.rung:<11} {verdict}  {what}{limit}{unwritten}"


def explained(name: str, rung: str, diagnosis: Diagnosis) -> str:
    """A diagnosis in words, with what differs in our twin."""
    groups = diagnosis.groups if len(diagnosis.groups) <= 4 else (*diagnosis.groups[:3], "others")
    subject = f"Your {rung} ({', '.join(groups)})"
    if not diagnosis.mistakes:
        hints = "".join(f"\n  It may help: {hint}." for hint in diagnosis.hints)
        return f"  {subject}: no mistake of the library gives these numbers.{hints}"
    if len(diagnosis.mistakes) == 1:
        head = f"  {subject}: just what the reference gives with this mistake in it."
    else:
        head = f"  {subject}: just what the reference gives with any of these mistakes in it; no rung tells them apart."
    return "\n".join([head, *(_change(name, mistake) for mistake in diagnosis.mistakes)])


def _change(name: str, mistake: Mistake) -> str:
    old, new = (textwrap.indent(textwrap.dedent(text).strip("\n"), f"    {sign} ") for text, sign in
                ((mistake.old, "-"), (mistake.new, "+")))  # fmt: skip
    return f"  * {mistake.name} ({place(name, mistake)})\n{old}\n{new}".rstrip()


def check(path: Path, name: str, variants: tuple[str, ...]) -> int:
    """Climbs the ladder with a file and prints each rung; returns the command's exit status."""
    port = Port(path.name, load_module(path), PAIRS[name])
    done, fails = [], False
    unwritten: dict[str, None] = {}
    try:
        for climbed in climb(port, variants):
            print(line(climbed), flush=True)
            for diagnosis in climbed.diagnoses:
                print(explained(name, climbed.rung, diagnosis), flush=True)
            done.append(climbed.rung)
            unwritten |= dict.fromkeys(group.partition(" by ")[0] for group in climbed.unwritten)
            fails = not climbed.holds
    except NotWrittenError as missing:
        unwritten[str(missing)] = None
    left = RUNGS[len(done) :]
    if left and unwritten:
        print(f"{left[0]:<11} not climbed yet: write {', '.join(unwritten)}")
    elif left:
        print(f"not climbed: {', '.join(left)}")
    if not fails and not unwritten:
        print(f"{path.name} is {name}: all rungs hold")
    return 1 if fails or unwritten else 0


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line; `--help` explains it.

    Raises:
        InputError: It cannot be used.
    """
    parser = Parser(
        prog="corl-twins check",
        description="Climbs the parity ladder with a JAX file of your own against our PyTorch twin. THE FILE IS "
        "EXECUTED, like any that you import: check only what you trust. It exits with 0 when all rungs hold, with 1 "
        "when one fails or something is not written yet, with 2 when the file cannot be used. docs/check.md says what "
        "it must hold.",
    )
    parser.add_argument("file", nargs="?", type=Path, help="the file to check")
    parser.add_argument("--algorithm", choices=list(PAIRS), help="what it is a port of")
    parser.add_argument("--template", choices=list(PAIRS), help="print a file to start from, and check nothing")
    parser.add_argument("--settings", help="climb under one of the ladder's settings only, `default` say")
    options = parser.parse_args(arguments)
    if not options.template and not (options.file and options.algorithm):
        parser.error("give a file and its --algorithm, or --template")
    return options


def _variants(name: str, settings: str | None) -> tuple[str, ...]:
    known = tuple(PAIRS[name].variants)
    if settings is not None and settings not in known:
        raise InputError(f"--settings {settings} is none of {name}'s: choose from {', '.join(known)}")
    return known if settings is None else (settings,)


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit status.

    Raises:
        InputError: The command line or the file cannot be used.
    """
    options = parse_arguments(arguments)
    with both_in("float64"), warnings.catch_warnings():
        # PyTorch takes the copies of a trainer for optimisers that somebody has tampered with.
        warnings.filterwarnings("ignore", message="Seems like `optimizer.step")
        if options.template:
            print(template(PAIRS[options.template]), end="")
            return 0
        return check(options.file, options.algorithm, _variants(options.algorithm, options.settings))


if __name__ == "__main__":
    sys.exit(ended(main, sys.argv[1:]))
