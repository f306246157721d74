"""Mutants' names, the reasons why some survive, and the complaints about those that do; `make mutants` tries them."""

import ast
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from parity_tests.mutants import climbing, memory
from parity_tests.mutants.__main__ import complaints, sample, tried, untried
from parity_tests.mutants.operators import Mutant, mutants
from parity_tests.mutants.reasons import reason, reasons
from parity_tests.mutants.twins import SIDES, SURVIVED, mutants_of, source_of
from parity_tests.pairs import PAIRS
from shared.frameworks.twins import ROOT

TRIVIAL = "any_percent_bc"


def names(found: list[Mutant]) -> list[str]:
    """The names of mutants in the order of their places."""
    return [mutant.name for mutant in found]


def named(start: str, name: str = TRIVIAL, side: str = "jax") -> Mutant:
    """The first mutant of a twin whose name begins with `start`."""
    return next(mutant for mutant in mutants_of(name, side) if mutant.name.startswith(start))


@pytest.mark.parametrize("side", SIDES)
def test_names_stay_when_a_file_is_laid_out_anew(side: str) -> None:
    """Comments are removed, and every line is broken differently."""
    source = source_of("td3_bc", side)
    assert names(mutants(ast.unparse(ast.parse(source)), SIDES[side])) == names(mutants_of("td3_bc", side))


@pytest.mark.parametrize("side", SIDES)
def test_names_stay_when_a_local_variable_is_renamed(side: str) -> None:
    """A function's local variable and a method's argument are renamed."""
    source, count = re.subn(
        r"(?<!\.)\b(weight|batch|smoothing|target_key)\b(?!=)", r"other_\1", source_of("td3_bc", side)
    )
    assert count > 10
    assert names(mutants(source, SIDES[side])) == names(mutants_of("td3_bc", side))


def test_names_change_with_what_is_computed() -> None:
    """Only the names of that statement's mutants change."""
    source = source_of("td3_bc")
    other = source.replace("(1.0 - batch.terminals) * hp.discount", "(1.0 - batch.terminals) * hp.tau")
    before, after = set(names(mutants_of("td3_bc"))), set(names(mutants(other)))
    assert before - after
    assert all(name.startswith("TD3_BC.td_target: ") and "discount" in name for name in before - after)


@pytest.mark.thorough
def test_every_reason_is_of_a_mutant_of_todays_twins() -> None:
    """Its pattern is valid, and matches at least one mutant."""
    every = [(name, side, mutant) for name in PAIRS for side in SIDES for mutant in names(mutants_of(name, side))]
    assert [each.mutants for each in reasons() if not any(each.covers(*mutant) for mutant in every)] == []


@pytest.mark.thorough
def test_a_mutant_is_noticed_and_another_computes_the_same() -> None:
    """The second mutant has a reason."""
    operand, order = (
        named("BC.actor_loss: v1 - v2.actions -> v1"),
        named("BC.actor_loss: v1 - v2.actions -> v2.actions -"),
    )
    assert climbing.noticed(TRIVIAL, operand).startswith("loss")
    assert not reason(TRIVIAL, "jax", operand.name)
    assert climbing.noticed(TRIVIAL, order, shortly=True) == SURVIVED
    assert reason(TRIVIAL, "jax", order.name)


@pytest.mark.thorough
def test_a_derivation_that_loads_its_twin_by_name_meets_the_mutant() -> None:
    """`load_twin` remembers the twins that it has loaded. In a process of its own, because pytest runs in it."""
    script = (
        "from parity_tests.mutants import deriving, twins\n"
        "mutant = next(m for m in twins.mutants_of('online/ddpg', 'torch') if m.name.startswith('DDPG.actor_loss'))\n"
        "deriving.climb('online/ddpg', [mutant], lambda mutant, step: print('noticed by', step))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "noticed by test_" in done.stdout, done.stdout + done.stderr


def test_what_survives_needs_a_reason_and_what_is_noticed_has_none() -> None:
    """Both kinds of mistakes are reported."""
    noticed, same = named("BC.actor_loss: v1 - v2.actions -> v1"), named("BC.actor_loss: v1 - v2.actions -> v2.")
    assert not list(complaints(TRIVIAL, "jax", {noticed.name: "loss", same.name: SURVIVED}))
    assert len(list(complaints(TRIVIAL, "jax", {noticed.name: SURVIVED, same.name: "loss"}))) == 2


def test_a_mutant_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried again after its function or a test changes, but not after another function changes."""
    monkeypatch.setattr(memory, "FOLDER", tmp_path)
    chosen = [named("BC.actor_loss: "), named("create_train_state: ")]
    assert [job[2] for job in untried(TRIVIAL, "jax", chosen)] == [names(chosen)]
    for mutant in chosen:
        memory.keep(TRIVIAL, "jax", mutant, SURVIVED)
    assert not list(untried(TRIVIAL, "jax", chosen))
    assert tried({(TRIVIAL, "jax"): chosen}) == {(TRIVIAL, "jax"): dict.fromkeys(names(chosen), SURVIVED)}

    changed = source_of(TRIVIAL).replace(".mean(), {}", ".sum(), {}")
    assert changed != source_of(TRIVIAL)
    monkeypatch.setattr(memory, "source_of", lambda name, side: changed)
    assert [job[2] for job in untried(TRIVIAL, "jax", chosen)] == [names(chosen[:1])]


def test_a_sample_is_drawn_by_its_seed() -> None:
    """The sample contains five mutants of each of a few twins."""
    twins = [(name, "jax") for name in (TRIVIAL, "td3_bc", "iql")]
    drawn = sample(twins, 10, random.Random(3))
    assert [len(found) for found in drawn.values()] == [5, 5]
    assert drawn == sample(twins, 10, random.Random(3)) != sample(twins, 10, random.Random(4))
