"""Checks somebody's JAX port of an algorithm against our PyTorch twin: `corl-twins check my_td3_bc.py`.

docs/port/check.md lists what the file must contain. The command runs this module in a separate process
(`process.py`); tests call it directly.
"""

import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from parity_tests.engine.precision import both_in
from parity_tests.pairs import PAIRS
from port_checker.arguments import LOADING, Tell, parse_arguments
from port_checker.explaining.changes import Change
from port_checker.explaining.naming import RUNGS, Diagnosis, change_of, diagnose
from port_checker.finding.answers import answer
from port_checker.finding.figures import TOLERANCES, Figures, compare
from port_checker.finding.loading import Ground, NotWrittenError, load_module
from port_checker.finding.port import Port
from port_checker.finding.questions import Question, questions
from port_checker.finding.recognition import likelier
from port_checker.finding.template import template
from port_checker.finding.torch_port import TorchPort
from port_checker.finding.unread import distinct, unread
from shared.errors import InputError

# The notes printed for a port that flattens images
CHANNELS_LAST = "images are flattened (H, W, C), and weights put in that order"
EITHER_ORDER = "whether images are flattened (C, H, W) or (H, W, C): for another order define from_torch(part, weights)"


@dataclass(frozen=True)
class Climbed:
    """The result of one rung.

    Attributes:
        rung: The rung's name.
        error: The largest error over all numbers.
        worst: The number with the largest error, and the question that it belongs to.
        unwritten: The groups that could not be compared because they are not written yet.
        holds: Whether everything that is written is within the tolerance.
        told: A note to print with the result.
        diagnose: Finds the mistake, which takes seconds.
    """

    rung: str
    error: float
    worst: str
    unwritten: tuple[str, ...]
    holds: bool = True
    told: str = ""
    diagnose: Callable[[], Sequence[Diagnosis]] = tuple

    @cached_property
    def diagnoses(self) -> tuple[Diagnosis, ...]:
        """The mistakes found, if the rung fails."""
        return tuple(self.diagnose())


def climb(port: Port, variants: tuple[str, ...], asks: Callable[[str], None] = lambda what: None) -> Iterator[Climbed]:
    """Climbs rung by rung, up to the first one that fails.

    Args:
        port: The file.
        variants: The settings under which it is checked.
        asks: Called with a description of each question before it is asked.

    Raises:
        InputError: The file does not do what its contract says.
        NotWrittenError: The next rung needs something that is not written yet.
    """
    for rung in RUNGS:
        asks(rung)
        climbed = _by_what_it_reads(port, partial(_climb, port, rung, variants, asks), variants)
        yield climbed
        if not climbed.holds:
            return


def _by_what_it_reads(port: Port, climbs: Callable[[], Climbed], variants: tuple[str, ...]) -> Climbed:
    """Climbs a rung, and again with default values for the settings that a failing file never reads."""
    refused = climbed = None
    try:
        climbed = climbs()
    except InputError as error:
        refused = error
    if not port.left and not (climbed and climbed.holds):
        port.left = unread(port, variants)
        with suppress(InputError):
            otherwise = climbs() if port.left else None
            if otherwise and (otherwise.holds or refused):
                return otherwise
        port.left = frozenset()
    if refused:
        raise refused
    assert climbed
    return climbed


def _climb(port: Port, rung: str, variants: tuple[str, ...], asks: Callable[[str], None]) -> Climbed:
    variants = distinct(port, variants)
    given = rung != "draws" or port.has("draw_noise")
    asked = questions(port.pair.name, rung, variants, port.left) if given else []
    answers = _answers(port, rung, asked, asks)
    climbed = _judged(rung, asked, answers)
    if rung == "forward" and not climbed.holds and any(port.flattens(question.given.start) for question in asked):
        port.assume(channels_last=True)
        otherwise = _judged(rung, asked, _answers(port, rung, asked, asks))
        port.assume(channels_last=otherwise.holds)
        climbed = replace(otherwise, told=CHANNELS_LAST) if otherwise.holds else replace(climbed, told=EITHER_ORDER)
    if climbed.holds:
        return climbed
    asks(f"{rung}: which mistake gives these numbers")
    return replace(climbed, diagnose=partial(diagnose, port, rung, asked, answers, variants))


def _answers(port: Port, rung: str, asked: Sequence[Question], asks: Callable[[str], None]) -> list[Figures]:
    found = []
    for question in asked:
        asks(f"{rung}: {question.where}")
        found.append(answer(port, question))
    return found


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
    """Describes a rung's result in one line: its largest error and where it occurs."""
    if not climbed.worst:
        nothing = f"not written yet: {', '.join(climbed.unwritten)}" if climbed.unwritten else "not given"
        return f"{climbed.rung:<11} {nothing}"
    what = f"{climbed.error:8.1e}  {climbed.worst}"
    verdict = "holds" if climbed.holds else "FAILS"
    unwritten = f"; not written yet: {', '.join(climbed.unwritten)}" if climbed.unwritten else ""
    limit = "" if climbed.holds else f"; tolerance {TOLERANCES[climbed.rung]:g}"
    return f"{climbed.rung:<11} {verdict}  {what}{limit}{unwritten}{climbed.told and f'; {climbed.told}'}"


def left_out(port: Port, variants: tuple[str, ...]) -> str:
    """Names the settings left at their defaults, and the variants that differ in nothing else."""
    gone = [repr(name) for name in variants if name not in distinct(port, variants)]
    skipped = f"; nothing else is left of {', '.join(gone)}" if gone else ""
    names = ", ".join(sorted(port.left))
    return f"settings    left at their defaults, since {port.name} never reads them: {names}{skipped}"


def explained(rung: str, diagnosis: Diagnosis) -> str:
    """Describes a diagnosis, with the lines of our twin that differ."""
    groups = diagnosis.groups if len(diagnosis.groups) <= 4 else (*diagnosis.groups[:3], "others")
    subject = f"Your {rung} ({', '.join(groups)})"
    if diagnosis.changes:
        several = "any of these changes in it; nothing tells them apart"
        which = several if len(diagnosis.changes) > 1 else "this change in it"
        head = f"  {subject} is just what the reference gives with {which}."
        return "\n".join([head, *map(told_change, diagnosis.changes)])
    if not diagnosis.mistakes:
        hints = "".join(f"\n  It may help: {hint}." for hint in diagnosis.hints)
        return f"  {subject}: no known mistake gives these numbers.{hints}"
    if len(diagnosis.mistakes) == 1:
        head = f"  {subject} is just what the reference gives with this mistake in it."
    else:
        head = (
            f"  {subject} is just what the reference gives with any of these mistakes in it; no check tells them apart."
        )
    return "\n".join([head, *(told_change(change_of(mistake)) for mistake in diagnosis.mistakes)])


def told_change(change: Change) -> str:
    """Describes a change, with the old lines and the new ones."""
    old, new = (textwrap.indent(textwrap.dedent(text).strip("\n"), f"    {sign} ") for text, sign in
                ((change.old, "-"), (change.new, "+")))  # fmt: skip
    return f"  * {change.what} ({change.place})\n{old}\n{new}".rstrip()


def check(path: Path, name: str, variants: tuple[str, ...], tell: Tell) -> int:
    """Climbs the ladder with a file and reports each rung; returns the command's exit status."""
    ground = Ground()
    tell("running", LOADING)
    module = load_module(path)
    kind = TorchPort if hasattr(module, "create_trainer") else Port
    port = kind(path.name, module, PAIRS[name], partial(tell, "running"))
    tell("running", "")
    ground.check(path)
    try:
        return _climbed(port, variants, ground, tell)
    except InputError as error:
        # If the file changed the process's state, that shows up as other errors first.
        ground.check(path)
        if others := likelier(port):
            raise InputError(
                f"{path.name} looks like a port of {' or '.join(others)}, check it with --algorithm {others[0]}. As "
                f"{name}: {error}"
            ) from None
        raise


def _climbed(port: Port, variants: tuple[str, ...], ground: Ground, tell: Tell) -> int:
    done, fails = [], False
    unwritten: dict[str, None] = {}
    try:
        for climbed in climb(port, variants, partial(tell, "asked")):
            ground.check(Path(port.name))
            tell("line", line(climbed))
            for diagnosis in climbed.diagnoses:
                tell("line", explained(climbed.rung, diagnosis))
            done.append(climbed.rung)
            unwritten |= dict.fromkeys(group.partition(" by ")[0] for group in climbed.unwritten)
            fails = not climbed.holds
    except NotWrittenError as missing:
        unwritten[str(missing)] = None
    if port.left:
        tell("line", left_out(port, variants))
    left = RUNGS[len(done) :]
    if left and unwritten:
        tell("line", f"{left[0]:<11} not checked yet: write {', '.join(unwritten)}")
    elif left:
        tell("line", f"not checked: {', '.join(left)}")
    if not fails and not unwritten:
        settings = ", ".join(map(repr, distinct(port, variants)))
        tell("line", f"{port.name} is {port.pair.name}: all checks pass under the settings {settings}")
    return 1 if fails or unwritten else 0


def _variants(name: str, settings: Sequence[str] | None) -> tuple[str, ...]:
    known = tuple(PAIRS[name].variants)
    for unknown in set(settings or ()) - set(known):
        raise InputError(f"--settings {unknown} is none of {name}'s: choose from {', '.join(map(repr, known))}")
    return tuple(dict.fromkeys(settings or known))


def _printed(kind: str, value: Any) -> None:
    """Prints messages of the kind "line"."""
    if kind == "line":
        print(value, flush=True)


def main(arguments: Sequence[str], tell: Tell = _printed) -> int:
    """Runs the check in this process; returns the command's exit status.

    Raises:
        InputError: The command line or the file cannot be used.
    """
    options = parse_arguments(arguments)
    with both_in("float64"), warnings.catch_warnings():
        # PyTorch mistakes copies of a trainer for optimisers that somebody has tampered with.
        warnings.filterwarnings("ignore", message="Seems like `optimizer.step")
        if options.template:
            tell("line", template(PAIRS[options.template]).removesuffix("\n"))
            return 0
        return check(options.file, options.algorithm, _variants(options.algorithm, options.settings), tell)
