"""The board: which rungs of the ladder a step has made green. A step stands in for the JAX twin of `corl_jax`."""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import NamedTuple

import jax

from parity_tests.engine.precision import both_in
from parity_tests.ladder.operation_counts import count, drawn, equations, program, scans
from parity_tests.ladder.rungs import RUNGS, Errors, interval
from parity_tests.ladder.scene import Scene
from parity_tests.pairs import PAIRS
from shared.frameworks import jax_data

PAIR = PAIRS["td3_bc"]
NUMBERS = range(1, 11)
# Two blocks and a rest: as short as an interval can be that asks for all of a scan. Step 9 compiles each update anew.
INTERVAL = 5


def step_module(number: int) -> ModuleType:
    """A step's file."""
    return importlib.import_module(f"lessons.ten_steps.step_{number:02d}")


@cache
def as_twin(number: int) -> ModuleType:
    """A step as the ladder takes a twin: with a way to fetch a batch, which early steps do not need themselves."""
    step = step_module(number)
    twin = ModuleType(step.__name__, step.__doc__)
    vars(twin).update({"take": jax_data.take} | vars(step))
    return twin


def critics_updated(scene: Scene) -> Errors:
    """Of the rung `update`, the critics and their optimisers."""
    found = RUNGS["update"].climb(scene)
    parts = [f"critic_{number}{what}." for number in (1, 2) for what in ("", "_optimizer")]
    return {name: value for name, value in found.items() if name.startswith(tuple(parts))}


def one_loop(scene: Scene) -> Errors:
    """What a program of many updates should hold none of; counts in place of errors."""
    shorter, longer = (program(PAIR, scene.jax_twin, num_updates) for num_updates in (4, 8))
    loops = scans(longer)
    found = count(loops[-1].params["jaxpr"].jaxpr if loops else longer)
    return {
        "operations that each further update adds": (len(equations(longer)) - len(equations(shorter))) / 4,
        "branches": float(found["cond"]),
        "random draws within the loop": float(drawn(found)),
        "arrays of the old state that are kept": float(kept_arrays(scene)),
    }


def shipped_path(scene: Scene) -> Errors:
    """The loop that `train` runs against single updates, over a few of them: some steps' loops are traced in full."""
    return interval(scene, scene.state(), 1, INTERVAL)[0]


def kept_arrays(scene: Scene) -> int:
    """How many arrays of a fresh state are still there after an interval: of a donated one, none."""
    twin = scene.jax_twin
    state = twin.create_train_state(jax.random.key(0), scene.jax_config, *scene.sizes)
    twin.train_interval(state, jax.random.key(1), scene.jax_dataset, 1, INTERVAL, phase=1)
    return sum(not leaf.is_deleted() for leaf in jax.tree.leaves(state))


@dataclass(frozen=True)
class Row:
    """One line of the board.

    Attributes:
        needs: What a step must define before the row can be climbed: a name, or a method's dotted name.
        climb: From a scene to errors by name.
        tolerance: The largest error that is green, in double precision.
        warm: Whether the scene's weights are those of a warm state.
    """

    needs: str
    climb: Callable[[Scene], Errors]
    tolerance: float
    warm: bool = True


def _rung(name: str, needs: str) -> Row:
    return Row(needs, RUNGS[name].climb, RUNGS[name].float64, RUNGS[name].warm)


ROWS = {
    "weights": _rung("weights", "create_train_state"),
    "forward": _rung("forward", "create_train_state"),
    "loss": _rung("loss", "TD3_BC.actor_loss"),
    "gradient": _rung("gradient", "TD3_BC.actor_loss"),
    "update, the critics": Row("TD3_BC.update", critics_updated, RUNGS["update"].float64),
    "log": _rung("log", "TD3_BC.update"),
    "update": _rung("update", "TD3_BC.update"),
    "trajectory": _rung("trajectory", "TD3_BC.update"),
    "draws": _rung("draws", "draw_noise"),
    "shipped path": Row("train_interval", shipped_path, RUNGS["shipped path"].float64),
    "one loop": Row("train_interval", one_loop, 0.0),
}
# The rows that each step makes green; all others stay as they are.
GREEN: dict[int, Sequence[str]] = {
    1: ["weights"],
    2: ["forward"],
    3: ["loss"],
    4: ["gradient"],
    5: ["update, the critics"],
    6: ["log"],
    7: ["update", "trajectory"],
    8: ["draws"],
    9: ["shipped path"],
    10: ["one loop"],
}


class Result(NamedTuple):
    """What climbing a row found.

    Attributes:
        worst: The name of the largest error; empty if the step does not define what the row needs.
        error: That error; infinite where shapes differ or something is missing.
        green: Whether it is within the row's tolerance.
    """

    worst: str
    error: float
    green: bool


MISSING = Result("", float("inf"), False)


@cache
def climb(number: int, name: str) -> Result:
    """Climbs one row with one step in place of the JAX twin, in double precision, on the bundled rows."""
    row, twin = ROWS[name], as_twin(number)
    if not _defines(twin, row.needs):
        return MISSING
    with both_in("float64"):
        found = row.climb(Scene.create(PAIR, twin, "default", "bundled", row.warm))
    worst = max(found, key=found.__getitem__)
    return Result(worst, found[worst], found[worst] <= row.tolerance)


def _defines(module: ModuleType, dotted: str) -> bool:
    first, _, second = dotted.partition(".")
    return hasattr(module, first) and (not second or hasattr(getattr(module, first), second))


def in_words(result: Result) -> str:
    """A result as a line of the board has it."""
    if result == MISSING:
        return "not there yet"
    if result.green:
        return "green"
    if result.error == float("inf"):
        return f"red, {result.worst} is missing or of another shape"
    return (
        f"red, {result.worst}: {result.error:.2g}"
        if result.error < 100.0
        else f"red, {result.worst}: {result.error:.0f}"
    )


def board(number: int) -> str:
    """All rows for one step, one a line."""
    lines = [step_module(number).__doc__ or ""]
    for name in ROWS:
        result = climb(number, name)
        lines.append(f"{name:20} {in_words(result)}{' (new)' if name in GREEN[number] else ''}")
    return "\n".join(lines)
