"""Names the mistake that gives somebody's numbers: planted mistakes are tried first, then mechanical changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from parity_tests.ladder.draws import FAULTS
from parity_tests.mutants.planted import Mistake, edit_of, mistakes_of, with_mistake
from parity_tests.pairs import PAIRS
from port_checker.explaining.changes import Change
from port_checker.explaining.edits import FAR
from port_checker.explaining.frames import NotExplainedError
from port_checker.explaining.metrics import wrong_metrics
from port_checker.explaining.probes import Told, probe
from port_checker.explaining.reference import figures_of, flat, shaken
from port_checker.finding.answers import answer
from port_checker.finding.figures import TOLERANCES, Figures, wrong_in
from port_checker.finding.loading import NotWrittenError
from port_checker.finding.port import OwnTwin, Port
from port_checker.finding.questions import Question, questions
from shared.errors import InputError
from shared.frameworks.exchange import Named
from shared.frameworks.twins import ROOT

RUNGS = tuple(TOLERANCES)


@dataclass(frozen=True)
class Diagnosis:
    """A diagnosis for some of a rung's figures.

    Attributes:
        groups: The groups of figures that it explains.
        mistakes: Planted mistakes that give just these figures; several if nothing distinguishes them.
        changes: Other changes to our twin that give them.
        hints: Hints from the figures themselves, in words.
    """

    groups: tuple[str, ...]
    mistakes: tuple[Mistake, ...] = ()
    changes: tuple[Change, ...] = ()
    hints: tuple[str, ...] = ()


def candidates(name: str, rung: str) -> list[Mistake]:
    """The mistakes that a port may have if its earlier rungs hold.

    A mistake that is named for an earlier rung fails there (`test_mistakes` checks this), so the port cannot have it.
    Neither can the port have a mistake in code that it does not need, such as the training loop. Draws are handed to a
    port at every rung except their own.
    """
    later = RUNGS[RUNGS.index(rung) :]
    return [m for m in mistakes_of(name) if m.rung in later and (m.rung == "draws") == (rung == "draws")]


@cache
def planted(mistake: Mistake) -> Port:
    """Our twin with the mistake planted, as a port."""
    return OwnTwin(mistake.name, with_mistake(mistake), PAIRS[mistake.pair])


def diagnose(
    port: Port, rung: str, asked: Sequence[Question], answers: Sequence[Figures], variants: tuple[str, ...]
) -> list[Diagnosis]:
    """Diagnoses a rung that fails: all its figures at once, or else each wrong group.

    Args:
        port: The file.
        rung: The first rung that fails.
        asked: All questions of the rung.
        answers: The file's figures for each.
        variants: The variants of settings under which the ladder is climbed.
    """
    found = _diagnosed(port, rung, asked, answers, variants)
    if rung != "log":
        return found
    # All metrics are one group, so the wrong ones are named here.
    return [replace(one, groups=tuple(wrong_metrics(asked, answers))) for one in found]


def _diagnosed(
    port: Port, rung: str, asked: Sequence[Question], answers: Sequence[Figures], variants: tuple[str, ...]
) -> list[Diagnosis]:
    name, wrong = port.pair.name, wrong_groups(rung, asked, answers)
    given = {m: reproduced(m, asked, answers, wrong) for m in candidates(name, rung)}
    given = {m: found for m, found in given.items() if found[0] or found[1]}
    if rung in FURTHER_ASKED:
        given = _elsewhere_too(port, given, asked, wrong)
    whole = [m for m, (everything, _) in given.items() if everything]
    if whole:
        return [Diagnosis(tuple(wrong), _told_apart(port, rung, whole, variants))]
    named = {group: tuple(m for m, (_, groups) in given.items() if group in groups) for group in wrong}
    unnamed = [group for group in wrong if not named[group]]
    if rung == "draws":
        told = {group: Told(hints=_faults(group, asked, answers)) for group in unnamed}
    else:
        told = _probed(port, rung, unnamed, asked, answers)
    found = [Diagnosis((group,), mistakes=mistakes) for group, mistakes in named.items() if mistakes]
    return _once([*found, *(Diagnosis((group,), (), *told[group]) for group in unnamed)])


def _probed(
    port: Port, rung: str, groups: Sequence[str], asked: Sequence[Question], answers: Sequence[Figures]
) -> dict[str, Told]:
    """Runs the probes; their failures are ignored, because a file may do what no probe expects and is wrong anyway."""
    try:
        return probe(port, rung, groups, asked, answers)
    except NotExplainedError as error:
        return dict.fromkeys(groups, Told(hints=(str(error),)))
    except Exception:
        return dict.fromkeys(groups, Told())


# The rungs at which other weights than the ladder's can be used without further changes
FURTHER_ASKED = ("forward", "loss", "gradient")


def _elsewhere_too(
    port: Port, given: Mapping[Mistake, tuple[bool, set[str]]], asked: Sequence[Question], wrong: Sequence[str]
) -> dict[Mistake, tuple[bool, set[str]]]:
    """Keeps the mistakes, and the groups of each, that also give the file's figures at other weights."""
    found = dict(given)
    for question in (shaken(asked[0], strength) for strength in (0.3, 1.0)) if given else ():
        figures = figures_of(port, question)
        if figures is None:
            continue
        for mistake, (whole, groups) in list(found.items()):
            theirs = figures_of(planted(mistake), question)
            other = set(wrong) if theirs is None else {x for x in wrong if not _alike(figures.get(x), theirs.get(x))}
            found[mistake] = whole and not other, groups - other
    return found


def _alike(ours: Named | None, theirs: Named | None) -> bool:
    """Whether two groups are equal within the tolerance for other weights; missing or infinite ones count as equal."""
    mine, other = flat(ours), flat(theirs)
    if mine is None or other is None or not (np.isfinite(mine).all() and np.isfinite(other).all()):
        return True
    return mine.shape == other.shape and np.abs(mine - other).max(initial=0.0) <= FAR * np.abs(other).max(initial=1e-9)


def _once(diagnoses: Sequence[Diagnosis]) -> list[Diagnosis]:
    """Merges groups with the same diagnosis."""
    groups: dict[tuple, tuple[str, ...]] = {}
    for one in diagnoses:
        key = one.mistakes, one.changes, one.hints
        groups[key] = (*groups.get(key, ()), *one.groups)
    return [Diagnosis(of, *key) for key, of in groups.items()]


def wrong_groups(rung: str, asked: Sequence[Question], answers: Sequence[Figures]) -> list[str]:
    """The names of the groups that exceed the tolerance in some question."""
    found: dict[str, None] = {}
    for question, figures in zip(asked, answers, strict=True):
        found |= dict.fromkeys(wrong_in(rung, figures, question.expected))
    return list(found)


def reproduced(
    mistake: Mistake, asked: Sequence[Question], answers: Sequence[Figures], wrong: Sequence[str]
) -> tuple[bool, set[str]]:
    """Whether the twin with the mistake gives these figures in every question, and which of the wrong groups it gives.

    Groups that are not written yet are left out.
    """
    whole, groups = True, set(wrong)
    for question, figures in zip(asked, answers, strict=True):
        try:
            theirs = answer(planted(mistake), question)
        except (InputError, NotWrittenError):
            return False, set()
        written = {group: values for group, values in theirs.items() if values is not None and figures.get(group)}
        other = set(wrong_in(question.rung, figures, written))
        whole, groups = whole and not other, groups - other
        if not whole and not groups:
            break
    return whole, groups


def _told_apart(port: Port, rung: str, mistakes: Sequence[Mistake], variants: tuple[str, ...]) -> tuple[Mistake, ...]:
    """Keeps the mistakes that also give the file's figures at higher rungs; all of them if that decides nothing."""
    for above in RUNGS[RUNGS.index(rung) + 1 :]:
        if len(mistakes) == 1:
            break
        asked = questions(port.pair.name, above, variants, port.left)
        try:
            answers = [answer(port, question) for question in asked]
        except (InputError, NotWrittenError):
            break
        wrong = wrong_groups(above, asked, answers)
        mistakes = [m for m in mistakes if reproduced(m, asked, answers, wrong)[0]] or mistakes
    return tuple(mistakes)


def _faults(group: str, asked: Sequence[Question], answers: Sequence[Figures]) -> tuple[str, ...]:
    """Describes the faults found in draws."""
    found = [values for figures in answers if (values := figures[group])]
    return tuple(words for fault, words in FAULTS.items() if any(values[fault].any() for values in found))


def change_of(mistake: Mistake) -> Change:
    """The change that the mistake makes in our twin, with its place, such as `corl_jax/td3_bc.py:181`."""
    path, edit = Path(str(PAIRS[mistake.pair].jax.__file__)).relative_to(ROOT), edit_of(mistake)
    return Change(mistake.name, f"{path.as_posix()}:{edit.line}", edit.old, edit.new)
