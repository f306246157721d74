"""`python -m benchmarks.loops [td3_bc ...]`: are the timed loops as fast as the loop that ships?

Three loops make updates on the data of a pair's default run: the benchmark's rung, a bare loop written out here, and
the twin's own `train`. They take turns of a few tenths of a second, so that the median of their ratios is valid on a
shared machine. A rung more than 5% from `train` is an error, because it charges a framework for work that no run does,
or spares it some.
"""

import argparse
import contextlib
import inspect
import io
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest import mock

import jax
from tqdm import tqdm

from benchmarks.blocks import Processes
from benchmarks.results import called, numerics, write_rows
from benchmarks.rungs import EAGER, RUNGS, SHIPPED
from benchmarks.subjects import UPDATES, Subject
from parity_tests.pair import Pair
from parity_tests.pairs import PAIRS
from shared.envs.spaces import Shape
from shared.errors import InputError
from shared.frameworks import jax_data, torch_data, torch_side
from shared.frameworks.twins import FRAMEWORKS
from shared.runs.machine import hardware, load, versions
from shared.runs.record import Record
from shared.runs.run import Run
from shared.runs.task import Task

# How far a loop's speed may differ from that of the run's own loop
TOLERANCE = 0.05
# The largest number of turns, the approximate time for them, and the least number however long they take
TURNS, SECONDS, LEAST = 40, 10, 9
# The number of turns in one of the benchmark's blocks
PARTS = {"torch": 10, "jax": 3}
SIDES = {"torch": EAGER, "jax": SHIPPED}
# The runs of other pairs do more than update: they act, roll out a model, or need a model or a policy first.
COMPARED = [name for name in PAIRS if name != "sac" and not name.startswith(("online/", "evaluation/", "model_based/"))]


@dataclass(frozen=True)
class OfTask(Subject):
    """An algorithm on the data of its default run."""

    task: Any = None

    @property
    def columns(self) -> Any:
        """The run's own dataset."""
        return self.task.dataset

    @property
    def shape(self) -> Shape:
        """The shape of an observation."""
        return self.task.shape

    @property
    def action_dim(self) -> int:
        """The number of action components, or of finite actions."""
        return self.task.action_dim

    @property
    def max_action(self) -> float:
        """The bound of each component."""
        return self.task.max_action


class Enough(InputError):
    """Enough turns are taken, so the run ends without a message."""


class Turns:
    """Lets other loops take turns with a run's own, a few updates each, and times them all."""

    def __init__(self, updates: int, others: Callable[[Task], Mapping[str, Callable[[], Any]]]) -> None:
        self.updates = updates
        self.others: Mapping[str, Callable[[], Any]] = {}
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self._make = others
        self._left = updates
        self._begun: float | None = None
        self._end = 0.0

    def begin(self, task: Task) -> None:
        """Makes and compiles the other loops for a run's data."""
        self.others = self._make(task)
        for block in self.others.values():
            block()
        self._end = time.perf_counter() + SECONDS

    def after(self, updates: int) -> None:
        """Counts the run's further updates; when its turn is over, the others have theirs.

        Raises:
            Enough: After `TURNS` turns, or after `SECONDS` and `LEAST` turns.
        """
        self._left -= updates
        if self._left > 0:
            return
        if self._begun is not None:
            self.seconds["train"].append(time.perf_counter() - self._begun)
            for name, block in self.others.items():
                begin = time.perf_counter()
                block()
                self.seconds[name].append(time.perf_counter() - begin)
        taken = len(self.seconds["train"])
        if taken == TURNS or (taken >= LEAST and time.perf_counter() > self._end):
            raise Enough("")
        self._left, self._begun = self.updates, time.perf_counter()

    def rates(self) -> dict[str, float]:
        """Updates per second of each loop, by its name: the median over the turns, which saw the same machine."""
        return {name: self.updates / statistics.median(seconds) for name, seconds in self.seconds.items()}

    def over(self, name: str) -> float:
        """The speed of a loop divided by the speed of the run's own loop: the median over the turns."""
        turns = zip(self.seconds["train"], self.seconds[name], strict=True)
        return statistics.median(ours / other for ours, other in turns)


def train(twin: ModuleType, settings: dict[str, Any], turns: Turns) -> None:
    """Runs a twin's own `train` without saving or evaluating, because the other loops do neither."""

    class Timed(Run):
        """Reports its updates to `turns`."""

        def __init__(self, config: Any, task: Task, *rest: Any) -> None:
            super().__init__(config, task, *rest)
            turns.begin(task)

        def evaluate(self, *args: Any, **named: Any) -> None:
            """Does nothing."""

        def save(self, *args: Any, **named: Any) -> None:
            """Does nothing."""

        def advance(self, updates: int, steps: int | None = None) -> None:
            """Advances as a run does."""
            super().advance(updates, steps)
            turns.after(updates)

    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(mock.patch.object(twin, "Run", Timed))
        stack.enter_context(mock.patch.object(Record, "summarise"))
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(contextlib.suppress(Enough))
        twin.train(twin.TrainConfig(**settings, n_episodes=1, runs_path=folder))


def bare_torch(subject: Subject) -> Callable[[], Any] | None:
    """PyTorch's loop as a reader would write it; None if a draw or a batch depends on more than settings and sizes."""
    twin = subject.pair.torch
    config, device = twin.TrainConfig(**subject.settings), torch_side.resolve_device("cpu")
    sizes = {"dataset_size": len(subject.columns[0]), "action_dim": subject.action_dim}
    asked = [name for name in inspect.signature(twin.draw_noise).parameters if name not in ("hp", "device")]
    if not set(asked) <= sizes.keys() or type(subject.pair).take is not Pair.take:
        return None
    trainer = twin.create_trainer(config, subject.shape, subject.action_dim, subject.max_action)
    dataset = subject.pair.ready(twin, torch_data.to_device(subject.columns, device), config)

    def block() -> None:
        for _ in range(subject.updates):
            indices, noise = twin.draw_noise(config, *(sizes[name] for name in asked), device)
            metrics = trainer.update(twin.take(dataset, indices), noise)
        next(iter(metrics.values())).item()

    return block


def bare_jax(subject: Subject) -> Callable[[], Any]:
    """JAX's loop as a reader would write it: it calls the compiled interval, and waits for its metrics."""
    twin = subject.pair.jax
    config, key = twin.TrainConfig(**subject.settings), jax.random.key(0)
    statics = subject.pair.interval_statics(config, 0, subject.updates)
    sizes = subject.shape, subject.action_dim, subject.max_action
    states = [twin.create_train_state(key, config, *sizes)]
    dataset = subject.pair.ready(twin, jax_data.to_device(subject.columns), config)

    def block() -> None:
        state, history = twin.train_interval(states.pop(), key, dataset, 0, subject.updates, *statics.values())
        states.append(state)
        jax.block_until_ready(history)

    return block


BARE = {"torch": bare_torch, "jax": bare_jax}


def measured(name: str, side: str) -> dict[str, dict[str, float]]:
    """Updates per second of each loop, and its ratio to `train`, by name; should run in a separate process."""
    pair = PAIRS[name]
    timed = {**pair.settings.get("timed", {}), "device": "cpu"}
    config = getattr(pair, side).TrainConfig(**timed)

    def alike(updates: int) -> bool:
        """Whether the second turn of a run reuses the first one's program, as intervals of real runs do."""
        first, second = (pair.interval_statics(config, start, updates) for start in (0, updates))
        return first == second

    # A few tenths of a second, because JAX's loop waits for its metrics after each turn. No program is compiled for a
    # phase in a period that is much longer.
    least = max(1, UPDATES[name] // PARTS[side])
    updates = next(filter(alike, range(least, 4 * least)), least)

    def others(task: Task) -> dict[str, Callable[[], Any]]:
        subject = OfTask(name, updates, timed, task=task)
        loops = {"rung": RUNGS[SIDES[side]].make(subject), "bare": BARE[side](subject)}
        return {kind: loop for kind, loop in loops.items() if loop}

    turns = Turns(updates, others)
    phase = "offline_iterations" if pair.explores else "max_timesteps"
    train(getattr(pair, side), {**timed, "eval_freq": updates, phase: updates * (TURNS + 1)}, turns)
    return {kind: {"updates_per_second": rate, "over_train": turns.over(kind)} for kind, rate in turns.rates().items()}


def apart(loops: Mapping[str, Mapping[str, float]]) -> str:
    """Describes the loops that are too far from the run's own; empty if there are none."""
    faults = [
        f"{kind} makes {found['over_train']:.2f} of the {loops['train']['updates_per_second']:.1f} updates/s of train"
        for kind, found in loops.items()
        if abs(found["over_train"] - 1.0) > TOLERANCE
    ]
    return "; ".join(faults)


def table(summary: dict[str, Any]) -> str:
    """Formats a results file as a Markdown table."""
    lines = [
        "| algorithm | framework | `train`, updates/s | timed loop | bare loop | timed / `train` | bare / `train` |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in summary["algorithms"].items():
        for side, framework in FRAMEWORKS.items():
            found = {kind: row[side].get(kind) for kind in ("train", "rung", "bare")}
            cells = [f"{loop['updates_per_second']:.1f}" if loop else "" for loop in found.values()]
            cells += [f"{loop['over_train']:.2f}" if loop else "" for loop in (found["rung"], found["bare"])]
            lines.append(f"| {name} | {framework} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measures, prints the table, writes `loops-<machine>.json`, and fails if two loops are too far apart."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "algorithms", nargs="*", metavar="ALGORITHM", help="pairs (default: all whose runs only make updates)"
    )
    names = parser.parse_args().algorithms or COMPARED
    if unknown := [name for name in names if name not in COMPARED]:
        parser.error(f"{', '.join(unknown)}: choose from {', '.join(COMPARED)}")
    facts = {**called("loops"), "load_before": load(), "versions": versions("torch", "jax", "jaxlib"), **numerics()}
    rows: dict[str, dict[str, Any]] = {}
    for name in tqdm(names, unit="pair", disable=None):
        rows[name] = {"measured": facts}
        for side in SIDES:
            with contextlib.closing(Processes()) as processes:
                rows[name][side] = processes.run(measured, name, side)
    summary = {"hardware": hardware(), "algorithms": rows}
    print(table(summary))
    print(write_rows("loops", summary).name)
    faults = [f"{name}, {side}: {text}" for name, row in rows.items() for side in SIDES if (text := apart(row[side]))]
    if faults:
        sys.exit("\n".join([f"more than {TOLERANCE:.0%} apart:", *faults]))


if __name__ == "__main__":
    main()
