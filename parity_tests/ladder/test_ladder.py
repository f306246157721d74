"""Every pair climbs every rung, under every variant of its settings: each fact once.

Each kind of climb finds something that no other finds:

- Double precision on made-up rows that reach every bound and branch, under every variant: whether the twins compute
  the same. Of 14,000 mutants of the JAX twins, all but 22 that were ever noticed were noticed here.
- Double precision on the bundled rows: those 22, so only the rungs of the five pairs that they belong to (`REAL_ROWS`).
- Single precision on the bundled rows, under the default settings: a formula that cancels, or a number of a fixed type.
- XLA's programs, in single precision: the loop that `train` runs under the default settings, and an update under every
  other variant. NumPy computes everything above, operation by operation (`interpreter.py`). XLA takes longer to compile
  the loop, which contains several kinds of updates, than to compile one update.
- XLA's update at full size: everything that depends on the sizes of the reference's defaults.
"""

from collections.abc import Iterator
from typing import Any

import jax
import pytest

from parity_tests.engine.compilation import hardly_optimised
from parity_tests.engine.interpreter import interpreted
from parity_tests.ladder.rungs import DEAR, RUNGS, tolerance
from parity_tests.ladder.scene import FULL_SIZE, Engine, Scene
from parity_tests.pair import Pair
from parity_tests.pairs import PAIRS

thorough = pytest.mark.thorough
# In single precision XLA's loop is compared, because NumPy's would take the same steps as in double precision.
COMPILED = "shipped path"
# XLA's updates are compared too, under all settings except the default ones.
COMPILED_ALONE = ("update", "log")
# The rungs at which a mutant was noticed only on the bundled rows, and not on the made-up ones
REAL_ROWS = {
    ("crr", "act"),
    ("finetune/cql", "loss"),
    ("finetune/cal_ql", "loss"),
    ("model_based/dynamics", "trajectory"),
    ("model_based/mopo", "shipped path"),
}


def cases() -> Iterator:
    """The rungs that NumPy computes, by variant, dataset and precision."""
    for name, pair in PAIRS.items():
        for rung, facts in RUNGS.items():
            for variant in pair.variants:
                dear = rung in DEAR and variant != "default"
                yield _case(name, variant, "cornered", "float64", rung, *([thorough] if dear else []))
                if (name, rung) in REAL_ROWS:
                    yield _case(name, variant, "bundled", "float64", rung, thorough)
            if facts.float32 is not None and rung != COMPILED:
                yield _case(name, "default", "bundled", "float32", rung, thorough)


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


@thorough
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize(
    ("name", "variant"), [(name, v) for name, pair in PAIRS.items() for v in pair.variants if v != "default"]
)
def test_updates_under_other_settings_are_compiled_right(name: str, variant: str, precision: str) -> None:
    """XLA's program for each kind of update, compiled quickly, equals PyTorch's update in state and metrics."""
    with hardly_optimised():
        for rung in COMPILED_ALONE:
            climb(PAIRS[name], variant, "bundled", precision, rung, jax.jit)


def as_it_is(function: Engine) -> Engine:
    """No engine at all, because the function compiles itself."""
    return function


@thorough
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("name", PAIRS)
def test_twins_agree_at_full_size(name: str, precision: str) -> None:
    """Updates under the reference's default settings, compiled by XLA; extreme rewards preserve digits to compare."""
    climb(PAIRS[name], FULL_SIZE, "extreme", precision, "update", jax.jit)
