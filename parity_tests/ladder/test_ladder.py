"""Every pair climbs every rung, under every variant of its settings: each fact once.

Each kind of climb finds something that no other finds:

- Double precision on made-up rows that reach every bound and branch, under every variant: whether the twins compute
  the same. Of 14,000 mutants of the JAX twins, all but 22 that were ever noticed were noticed here. The dear rungs are
  climbed under other settings than the defaults only where they were the first to notice a mutant (`noticed.yaml`).
- Double precision on the bundled rows: those 22, so only the rungs of the five pairs that they belong to (`REAL_ROWS`).
- Single precision on the bundled rows: an update under every variant, and the policy that acts. This finds a formula
  that cancels, or a number of a fixed type.
- XLA's programs, in single precision: the loop that `train` runs under the default settings. NumPy computes everything
  above, operation by operation (`interpreter.py`).
- XLA's update at full size: everything that depends on the sizes of the reference's defaults.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
import yaml

from parity_tests.engine.interpreter import interpreted
from parity_tests.ladder.rungs import DEAR, RUNGS, tolerance
from parity_tests.ladder.scene import FULL_SIZE, Engine, Scene
from parity_tests.pair import Pair
from parity_tests.pairs import PAIRS

thorough = pytest.mark.thorough
# The rungs that take more than half of the time. They find mistakes in weights, draws and the loop around an update.
SLOW = ("start", "draws", "shipped path")
# The loop that `train` runs, which XLA compiles
COMPILED = "shipped path"
# The rungs at which a mutant was noticed only on the bundled rows, and not on the made-up ones
REAL_ROWS = {
    ("crr", "act"),
    ("finetune/cql", "loss"),
    ("finetune/cal_ql", "loss"),
    ("model_based/dynamics", "trajectory"),
    ("model_based/mopo", "shipped path"),
}
# By pair and rung, the other variants under which a dear rung was the first to notice a mutant
NOTICED: dict[str, dict[str, list[str]]] = yaml.safe_load(Path(__file__).with_name("noticed.yaml").read_text())


def cases() -> Iterator:
    """The rungs that NumPy computes, by variant, dataset and precision."""
    for name, pair in PAIRS.items():
        for variant in pair.variants:
            default = variant == "default"
            for rung in RUNGS:
                if default or rung not in DEAR or name not in NOTICED or variant in NOTICED[name].get(rung, []):
                    marks = [] if default and rung not in SLOW else [thorough]
                    yield _case(name, variant, "cornered", "float64", rung, *marks)
                if (name, rung) in REAL_ROWS:
                    yield _case(name, variant, "bundled", "float64", rung, thorough)
            if not default:  # the default settings are compared at full size
                yield _case(name, variant, "bundled", "float32", "update", thorough)
        yield _case(name, "default", "bundled", "float32", "act", thorough)


def _case(name: str, variant: str, dataset: str, precision: str, rung: str, *marks: pytest.MarkDecorator) -> Any:
    case = f"{name}-{variant}-{dataset}-{precision}-{rung}"
    return pytest.param(name, variant, dataset, precision, rung, id=case, marks=marks)


def climb(pair: Pair, variant: str, dataset: str, precision: str, rung: str, engine: Engine = interpreted) -> None:
    """Fails if the twins are further apart than the rung allows, tensor by tensor."""
    scene = Scene.create(pair, pair.jax, variant, dataset, RUNGS[rung].warm, engine)
    limit = tolerance(pair, rung, precision)
    found = RUNGS[rung].climb(scene)
    assert found
    too_far = {what: value for what, value in found.items() if not value <= limit}
    worst = dict(sorted(too_far.items(), key=lambda item: -item[1])[:5])
    assert not too_far, f"{rung}, tolerance {limit:g}: {len(too_far)} of {len(found)} too far, worst {worst}"


@pytest.mark.parametrize(("name", "variant", "dataset", "precision", "rung"), [*cases()], indirect=["precision"])
def test_twins_agree(name: str, variant: str, dataset: str, precision: str, rung: str) -> None:
    """The twins are within the rung's tolerance of each other."""
    climb(PAIRS[name], variant, dataset, precision, rung)


@thorough
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("name", PAIRS)
def test_what_is_compiled_is_what_was_proven(name: str, precision: str) -> None:
    """XLA's program of an interval, called as `train` calls it, equals the single updates of the rungs above."""
    climb(PAIRS[name], "default", "bundled", precision, COMPILED, as_it_is)


def as_it_is(function: Engine) -> Engine:
    """No engine at all, because the function compiles itself."""
    return function


@thorough
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("name", PAIRS)
def test_twins_agree_at_full_size(name: str, precision: str) -> None:
    """Updates under the reference's default settings, compiled by XLA; extreme rewards preserve digits to compare."""
    climb(PAIRS[name], FULL_SIZE, "extreme", precision, "update", jax.jit)
