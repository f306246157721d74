"""How mutants are planted: patience in processor time, and tests that run against a mutant instead of the twin."""

import math
import sys
import time
from dataclasses import replace

import pytest
import torch

from corl_torch import any_percent_bc
from parity_tests.mutants import deriving
from parity_tests.mutants.operators import Mutant
from parity_tests.mutants.planting import EndlessError, limited, lines_of, planted
from parity_tests.mutants.twins import mutants_of

pytestmark = pytest.mark.thorough


def test_waiting_uses_up_no_patience() -> None:
    with limited(0.2):
        time.sleep(0.5)


def work(seconds: float) -> None:
    begin = time.process_time()
    while time.process_time() - begin < seconds:
        pass


def test_a_loop_without_an_end_is_ended() -> None:
    with pytest.raises(EndlessError), limited(0.2):
        work(math.inf)


def test_patience_ends_with_the_test() -> None:
    with limited(0.1):
        pass
    work(0.2)


def test_lines_are_those_of_the_planted_source() -> None:
    twin = planted("a twin", "def one():\n    return 1\n\n\ndef two():\n    return 2\n")
    with lines_of("a twin") as lines:
        twin.two()
    assert lines == {6}


def test_a_derivation_meets_the_mutant_and_afterwards_the_twin() -> None:
    chosen = {
        "BC.update: self.total_it += 1 -> pass": True,
        "BC.actor_loss: v1 - v2.actions -> v2.actions - v1 | return (square(v1 - v2.actions).mean(), {})": False,
    }
    found: dict[str, str] = {}

    def tell(mutant: Mutant, step: str) -> None:
        found[mutant.name] = step

    deriving.climb("any_percent_bc", [m for m in mutants_of("any_percent_bc", "torch") if m.name in chosen], tell)
    assert {name: bool(step) for name, step in found.items()} == chosen
    assert sys.modules[any_percent_bc.__name__] is any_percent_bc


def test_a_mutant_without_an_end_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deriving, "PATIENCE", 5.0)
    of_the_twin = mutants_of("any_percent_bc", "torch")
    (mutant,) = [m for m in of_the_twin if m.name.startswith("BC.update: self.total_it += 1 -> pass")]
    found: list[str] = []
    loop = replace(mutant, new="while True: pass")
    deriving.climb("any_percent_bc", [loop], lambda _, step: found.append(step))
    assert found[0].endswith(" does not end")


def test_a_derivation_that_fails_whatever_the_twin_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = mutants_of("any_percent_bc", "torch")[-1]

    def spoil(mutant: Mutant, step: str) -> None:
        monkeypatch.setattr(torch, "equal", lambda *tensors: False)

    with pytest.raises(AssertionError, match="pytest ended"):
        deriving.climb("any_percent_bc", [mutant], spoil)
