"""Which mistake gives somebody's numbers: those of the library are planted into our twin until one does."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from parity_tests.checker.answers import answer
from parity_tests.checker.figures import TOLERANCES, Figures, wrong_in
from parity_tests.checker.loading import NotWrittenError
from parity_tests.checker.port import OwnTwin, Port
from parity_tests.checker.questions import Question, questions
from parity_tests.draws import FAULTS
from parity_tests.pair import Mistake, with_mistake
from parity_tests.pairs import MISTAKES, PAIRS
from shared.errors import InputError

RUNGS = tuple(TOLERANCES)


@dataclass(frozen=True)
class Diagnosis:
    """What is wrong with some of a rung's figures.

    Attributes:
        groups: Which of them.
        mistakes: The library's mistakes that give just these figures; more than one where nothing tells them apart.
        hints: What the figures themselves show, in words.
    """

    groups: tuple[str, ...]
    mistakes: tuple[Mistake, ...]
    hints: tuple[str, ...] = ()


def candidates(name: str, rung: str) -> list[Mistake]:
    """The mistakes that can be a port's whose rungs before this one hold.

    A mistake that is named for an earlier rung fails there (`test_mistakes` holds it to that), so it cannot be the
    port's; neither can one that lies in what no port needs to have: the loop, the run. What is drawn is handed to a
    port at every rung but its own.
    """
    later = RUNGS[RUNGS.index(rung) :]
    return [m for m in MISTAKES[name] if m.rung in later and (m.rung == "draws") == (rung == "draws")]


@cache
def planted(name: str, mistake: Mistake) -> Port:
    """Our twin with the mistake in it, as a port."""
    return OwnTwin(mistake.name, with_mistake(PAIRS[name], mistake), PAIRS[name])


def diagnose(
    port: Port, rung: str, asked: Sequence[Question], answers: Sequence[Figures], variants: tuple[str, ...]
) -> list[Diagnosis]:
    """What is wrong with a rung that fails: for all of its figures at once, or else for each wrong group.

    Args:
        port: The file.
        rung: The first rung that fails.
        asked: All questions of the rung.
        answers: The file's figures for each.
        variants: The settings under which the ladder is climbed.
    """
    name, wrong = port.pair.name, wrong_groups(rung, asked, answers)
    given = {m: reproduced(name, m, asked, answers, wrong) for m in candidates(name, rung)}
    whole = [m for m, (everything, _) in given.items() if everything]
    if whole:
        return [Diagnosis(tuple(wrong), _told_apart(port, rung, whole, variants))]
    found = []
    for group in wrong:
        mistakes = tuple(m for m, (_, groups) in given.items() if group in groups)
        hints = _faults if rung == "draws" else _hints
        found.append(Diagnosis((group,), mistakes, () if mistakes else hints(group, asked, answers)))
    return found


def wrong_groups(rung: str, asked: Sequence[Question], answers: Sequence[Figures]) -> list[str]:
    """The names of the groups that are not within the tolerance in some question."""
    found: dict[str, None] = {}
    for question, figures in zip(asked, answers, strict=True):
        found |= dict.fromkeys(wrong_in(rung, figures, question.expected))
    return list(found)


def reproduced(
    name: str, mistake: Mistake, asked: Sequence[Question], answers: Sequence[Figures], wrong: Sequence[str]
) -> tuple[bool, set[str]]:
    """Whether our twin with the mistake gives these figures in every question, and which of the wrong groups it gives.

    Groups that are not written yet are left out.
    """
    whole, groups = True, set(wrong)
    for question, figures in zip(asked, answers, strict=True):
        try:
            theirs = answer(planted(name, mistake), question)
        except (InputError, NotWrittenError):
            return False, set()
        written = {group: values for group, values in theirs.items() if values is not None and figures.get(group)}
        other = set(wrong_in(question.rung, figures, written))
        whole, groups = whole and not other, groups - other
        if not whole and not groups:
            break
    return whole, groups


def _told_apart(port: Port, rung: str, mistakes: Sequence[Mistake], variants: tuple[str, ...]) -> tuple[Mistake, ...]:
    """Those that also give the file's figures at the rungs above; all, where that tells nothing."""
    for above in RUNGS[RUNGS.index(rung) + 1 :]:
        if len(mistakes) == 1:
            break
        asked = questions(port.pair.name, above, variants)
        try:
            answers = [answer(port, question) for question in asked]
        except (InputError, NotWrittenError):
            break
        wrong = wrong_groups(above, asked, answers)
        mistakes = [m for m in mistakes if reproduced(port.pair.name, m, asked, answers, wrong)[0]] or mistakes
    return tuple(mistakes)


def _faults(group: str, asked: Sequence[Question], answers: Sequence[Figures]) -> tuple[str, ...]:
    """What is wrong with draws, in words."""
    found = [values for figures in answers if (values := figures[group])]
    return tuple(words for fault, words in FAULTS.items() if any(values[fault].any() for values in found))


def _hints(group: str, asked: Sequence[Question], answers: Sequence[Figures]) -> tuple[str, ...]:
    """What the wrong numbers themselves show: that they are no numbers, rounded, or a multiple of the right ones."""
    pairs = list(_pairs(group, asked, answers))
    if not pairs:
        return ()
    ours, theirs = (np.concatenate(values) for values in zip(*pairs, strict=True))
    if not np.isfinite(ours).all():
        return ("some of your numbers are not finite",)
    scale = np.abs(theirs).max()
    if np.abs(ours - theirs).max() <= 1e-5 * scale:
        return ("differences of this size come from single precision or a small constant: is a dtype fixed somewhere?",)
    ratio = (ours @ theirs) / (theirs @ theirs)
    if np.abs(ours - ratio * theirs).max() <= 1e-9 * scale:
        return (f"your numbers are the reference's times {ratio:.6g}",)
    return ()


def _pairs(
    group: str, asked: Sequence[Question], answers: Sequence[Figures]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The group's numbers beside the right ones, (n,) each, where the file has them in the same shape."""
    for question, figures in zip(asked, answers, strict=True):
        ours = figures.get(group) or {}
        for name, value in question.expected.get(group, {}).items():
            if name in ours and np.shape(ours[name]) == np.shape(value):
                yield np.ravel(ours[name]), np.ravel(value)


def place(name: str, mistake: Mistake) -> str:
    """Where in our twin the mistake is planted, as `corl_jax/td3_bc.py:181`."""
    path = Path(PAIRS[name].jax.__file__)
    before = path.read_text(encoding="utf-8").partition(mistake.old)[0]
    return f"{path.parent.name}/{path.name}:{before.count(chr(10)) + 1}"
