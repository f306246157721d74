"""Every pair climbs every rung, under every variant of its settings.

The default settings meet every precision on every dataset. Every other variant meets each precision and each dataset
once. Of thousands of mutants none was noticed on the bundled rows that had not been noticed on the made-up ones.

The JAX twin's functions are computed by NumPy, operation by operation (`interpreter.py`). What XLA compiles is held to
the same single updates. Compiled are the loop that `train` runs under the default settings, an update under every other
variant, and updates at full size. XLA takes longer to compile the loop, which holds several kinds of updates, than to
compile one.
"""

from collections.abc import Iterator

import jax
import pytest

from parity_tests.engine.compilation import hardly_optimised
from parity_tests.engine.interpreter import interpreted
from parity_tests.ladder.rungs import RUNGS, tolerance
from parity_tests.ladder.scene import FULL_SIZE, Engine, Scene
from parity_tests.pair import Pair
from parity_tests.pairs import PAIRS

thorough = pytest.mark.thorough
# Of these rungs the default settings are enough on the spot.
DEAR = ("trajectory", "start", "shipped path", "draws")
# In single precision a saturated tanh leaves no digits to compare; extreme rewards leave them.
MADE_UP = {"float64": "cornered", "float32": "extreme"}
# In single precision XLA's loop is compared; NumPy's would take the same steps as in double precision.
COMPILED = "shipped path"
# There XLA's updates are compared, too, but under the default settings, whose loop is compiled.
COMPILED_ALONE = ("update", "log")


def datasets(variant: str, precision: str, rung: str) -> tuple[str, ...]:
    """Those on which a rung is climbed."""
    if precision == "float32" and (rung == COMPILED or (rung in COMPILED_ALONE and variant != "default")):
        return ()
    if RUNGS[rung].one_dataset:
        return (MADE_UP[precision],)
    if variant == "default":
        return ("bundled", MADE_UP[precision])
    return (MADE_UP[precision],) if precision == "float64" else ("bundled",)


def cases() -> Iterator:
    """The rungs that NumPy computes; in double precision on the made-up rows, which reach most, they come first."""
    for name, pair in PAIRS.items():
        for variant in pair.variants:
            for precision in ("float64", "float32"):
                for rung in RUNGS:
                    if getattr(RUNGS[rung], precision) is None:
                        continue
                    for dataset in datasets(variant, precision, rung):
                        first = (precision, dataset) == ("float64", "cornered")
                        marks = () if first and (rung not in DEAR or variant == "default") else thorough
                        case = f"{name}-{variant}-{dataset}-{precision}-{rung}"
                        yield pytest.param(name, variant, dataset, precision, rung, id=case, marks=marks)


def test_every_pair_climbs_every_rung_on_the_spot() -> None:
    """In double precision, at least once, without being asked for the thorough tests."""
    climbed = {(case.values[0], case.values[4]) for case in cases() if not case.marks}
    assert climbed == {(name, rung) for name in PAIRS for rung in RUNGS}


def climb(pair: Pair, variant: str, dataset: str, precision: str, rung: str, engine: Engine = interpreted) -> None:
    """Fails where the twins are further apart than the rung allows, tensor by tensor."""
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
    """XLA's program of an interval, called as `train` calls it: the single updates of the rungs above."""
    climb(PAIRS[name], "default", "bundled", precision, COMPILED, as_it_is)


@thorough
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize(
    ("name", "variant"), [(name, v) for name, pair in PAIRS.items() for v in pair.variants if v != "default"]
)
def test_updates_under_other_settings_are_compiled_right(name: str, variant: str, precision: str) -> None:
    """XLA's program of each kind of update, compiled in haste, against PyTorch's: the state and what is logged."""
    with hardly_optimised():
        for rung in COMPILED_ALONE:
            climb(PAIRS[name], variant, "bundled", precision, rung, jax.jit)


def as_it_is(function: Engine) -> Engine:
    """No engine at all: the function compiles itself."""
    return function


@thorough
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize(
    ("rung", "engine"), [("gradient", interpreted), ("update", jax.jit)], ids=["gradient", "update"]
)
@pytest.mark.parametrize("name", PAIRS)
def test_twins_agree_at_full_size(name: str, rung: str, engine: Engine, precision: str) -> None:
    """Under CORL's default settings; updates as XLA compiles them."""
    climb(PAIRS[name], FULL_SIZE, MADE_UP[precision], precision, rung, engine)
