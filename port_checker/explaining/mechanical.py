"""Mechanical changes to our twin, one of which may give somebody's numbers."""

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from parity_tests.mutants.operators import Mutant
from parity_tests.mutants.planting import planted
from parity_tests.mutants.twins import mutants_of, source_of
from parity_tests.pair import Pair
from parity_tests.pairs import PAIRS
from port_checker.explaining.changes import Change
from port_checker.explaining.reference import figures_of
from port_checker.finding.figures import Figures, wrong_in
from port_checker.finding.port import OwnTwin
from port_checker.finding.questions import Question

# Draws are handed to a port at every rung except their own, and no rung of the checker tests initial weights.
OUTSIDE = re.compile(r"draw_noise.*|create_train_state.*|train_.*|act|take_.*")
NETWORKS = ("__call__", "setup")


def candidates(pair: Pair, rung: str, group: str) -> Iterator[Mutant]:
    """The mutants of the functions that a group of a rung's figures may depend on."""
    for mutant in mutants_of(pair.name):
        if is_concerned(mutant.function.rpartition(".")[2], pair, rung, group):
            yield mutant


def is_concerned(function: str, pair: Pair, rung: str, group: str) -> bool:
    """Whether a group of a rung's figures may depend on a function of the JAX twin."""
    own = group.partition(" by ")[0]
    if not function or OUTSIDE.fullmatch(function):
        return False
    if rung == "forward":
        return function not in ("update", *pair.losses)
    if rung in ("loss", "gradient"):
        return function not in (*NETWORKS, "update") and (function == own or function not in pair.losses)
    return function not in (*NETWORKS, *pair.losses)


def mechanical(
    name: str, rung: str, group: str, asked: Sequence[Question], answers: Sequence[Figures], seconds: float
) -> tuple[Change, ...]:
    """The mechanical changes that give all of a group's numbers."""
    end, pair, source, found = time.process_time() + seconds, PAIRS[name], source_of(name), []
    pairs = [(q, figures) for q, figures in zip(asked, answers, strict=True) if figures.get(group)]
    # Numbers that our twin does not give come first.
    pairs.sort(key=lambda pair: group not in wrong_in(rung, pair[1], pair[0].expected))
    for mutant in candidates(pair, rung, group):
        if time.process_time() > end:
            break
        with suppress(Exception):
            # Many mutants do not run at all.
            twin = planted(f"a mutant of {name}", mutant.applied(source))
            if _gives(OwnTwin(twin.__name__, twin, pair), group, pairs):
                found.append(_told(pair, mutant))
    return tuple(dict.fromkeys(found))[:3]


def _gives(twin: OwnTwin, group: str, pairs: Sequence[tuple[Question, Figures]]) -> bool:
    for question, figures in pairs:
        theirs = figures_of(twin, question)
        if theirs is None or not theirs.get(group):
            return False
        if wrong_in(question.rung, {group: figures[group]}, {group: theirs[group] or {}}):
            return False
    return True


def _told(pair: Pair, mutant: Mutant) -> Change:
    file = str(pair.jax.__file__)
    place = "/".join(file.rsplit("/", 2)[1:])
    return Change(f"in `{mutant.function}`", f"{place}:{mutant.line}", mutant.old, mutant.new)
