"""Several seeds of a run in one process: each trains as if it were alone, but they meet for programs that serve all.

Each seed's `train` has its own thread, but only one thread runs at a time: from its start or its last meeting to its
next meeting or its end. Therefore code that a seed calls need not be thread-safe, and its output comes in order. Each
seed leaves the same folder as a run with this seed alone. If nobody calls `meet`, as in PyTorch, the seeds run one
after another.
"""

import dataclasses
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

import numpy as np
from tqdm import tqdm

from shared.envs.scores import rounded
from shared.errors import InputError, RunError, Stopped
from shared.runs.curves import AVERAGED, LABELS
from shared.runs.memory import check_size
from shared.runs.stopping import StopRequest

T = TypeVar("T")

_LAST_SEED = 2**32 - 1
# Least memory of a seed's settings and thread, in bytes
_SEED = 1024


class _Meeting(NamedTuple):
    """A meeting, where each seed waits until `together` has turned the parts of all seeds into answers."""

    order: int
    part: Any
    together: Callable[[list[Any]], Sequence[Any]]


class _Seed:
    """A seed's training: `meeting` is set while it waits for one, `outcome` or `error` when it has ended."""

    def __init__(self, train: Callable[[Any], Any], config: Any, group: "_Group") -> None:
        self.number, self._group = config.seed, group
        self.meeting: _Meeting | None = None
        self.outcome: Any = None
        self.error: BaseException | None = None
        self._answers: SimpleQueue[Any] = SimpleQueue()
        self._turns: SimpleQueue[None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, args=(train, config), daemon=True)

    def start(self) -> None:
        """Runs the seed to its first meeting, or to its end."""
        self._thread.start()
        self._turns.get()

    def go_on(self, answer: Any) -> None:
        """Runs the seed to its next meeting, or to its end; an answer that is an exception is raised in its thread."""
        self.meeting = None
        self._answers.put(answer)
        self._turns.get()

    def check(self) -> None:
        """Prints an error that only concerns this seed; raises an error that concerns all."""
        if isinstance(self.error, RunError):
            tqdm.write(f"seed {self.number}: {self.error}", file=sys.stderr)
        elif self.error and not isinstance(self.error, Stopped):
            raise self.error

    def wait(self, meeting: _Meeting) -> Any:
        """Hands the turn back, from the seed's thread, and waits for the answer."""
        self.meeting = meeting
        self._turns.put(None)
        answer = self._answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _work(self, train: Callable[[Any], Any], config: Any) -> None:
        _here.seed, _here.group = self, self._group
        try:
            self.outcome = train(config)
        except BaseException as error:
            self.error = error
        self._turns.put(None)


class _Group:
    """All seeds, and their shared objects: pairs of a key and the object made for it.

    `stopping` is whether a stop had been requested at the last meeting; None before the first.
    """

    def __init__(self, train: Callable[[Any], Any], configs: Sequence[Any]) -> None:
        self.seeds = [_Seed(train, config, self) for config in configs]
        self.made: list[tuple[Any, Any]] = []
        self.stopping: bool | None = None

    def waiting(self) -> list[_Seed]:
        """The seeds that wait at a meeting."""
        return [seed for seed in self.seeds if seed.meeting]


_here = threading.local()


def _group() -> _Group | None:
    """The group of seeds that this thread belongs to."""
    return getattr(_here, "group", None)


def count() -> int:
    """The number of seeds that train in this process."""
    group = _group()
    return 1 if group is None else len(group.seeds)


def label() -> str:
    """The prefix of a line that one of several seeds prints; empty for a single seed."""
    seed = getattr(_here, "seed", None)
    return "" if seed is None else f"seed {seed.number}: "


def agreed(stopping: bool) -> bool:
    """Whether a seed should stop now: all seeds stop at the same meeting, or none does."""
    group = _group()
    return stopping if group is None or group.stopping is None else group.stopping


def once(of: Any, make: Callable[[], T]) -> T:
    """The result of `make`, which the first seed calls and the others share.

    Args:
        of: The key: the same object for all who mean the same result.
        make: Makes the result, which no seed may modify.
    """
    group = _group()
    if group is None:
        return make()
    for known, made in group.made:
        if known is of:
            return made
    made = make()
    group.made.append((of, made))
    return made


def meet(order: int, part: T, together: Callable[[list[T]], Sequence[Any]]) -> Any:
    """Waits for the other seeds, and returns this seed's answer.

    If seeds have come to different places, as after an interrupted save, those that are behind run first.

    Args:
        order: How far this seed has come.
        part: The seed's contribution.
        together: Maps the parts of all seeds at this place to their answers, in order. Only the first seed's function
            is called; the others must pass an equivalent one.
    """
    return _here.seed.wait(_Meeting(order, part, together))


def meet_at_the_end() -> None:
    """Waits until all seeds that have not failed arrive here; a single seed does not wait."""
    if _group() is not None:
        meet(sys.maxsize, None, lambda parts: parts)


def last_in_common(saved: Sequence[Sequence[int]]) -> int | None:
    """The step from which several resumed seeds can continue together.

    If a process is killed while its seeds save, some seeds have one more checkpoint than others.

    Args:
        saved: The steps of each seed's checkpoints, in ascending order.

    Returns:
        The last step that is among the last two of every seed. A seed with fewer than two checkpoints also has step 0,
        the beginning. None if the seeds are further apart, as after one has failed: each then continues from its own
        last checkpoint.
    """
    recent = [{*steps[-2:], *([0] if len(steps) < 2 else [])} for steps in saved]
    return max(set.intersection(*recent), default=None)


def train_seeds(train: Callable[[Any], T], config: Any, number: int) -> list[T]:
    """Trains with the seeds `config.seed`, `config.seed + 1` and so on.

    If a seed fails, its error is printed and the others continue; Ctrl-C and SIGTERM end all of them.

    Args:
        train: An algorithm's function from a config to a `Run`.
        config: The config of the first seed.
        number: The number of seeds.

    Returns:
        Each seed's `Run`.

    Raises:
        InputError: The settings cannot be used, or do not work with several seeds.
        RunError: A seed failed; raised when the others have ended.
        Stopped: A signal ended all seeds.
    """
    if number < 1 or config.seed + number - 1 > _LAST_SEED:
        raise InputError(f"--seeds must be between 1 and {_LAST_SEED + 1 - config.seed} with seed {config.seed}")
    if number == 1:
        return [train(config)]
    check_size("--seeds", number, number * _SEED)
    if config.resume not in ("", "auto"):
        raise InputError("--resume with a folder continues one run: write --resume auto, or leave --seeds out")
    group = _Group(train, [dataclasses.replace(config, seed=config.seed + i) for i in range(number)])
    _here.group = group
    try:
        _train(group)
    finally:
        _here.group = None
    if failed := [str(seed.number) for seed in group.seeds if seed.error]:
        raise RunError(f"{len(failed)} of {number} seeds failed, as said above: {', '.join(failed)}")
    return [seed.outcome for seed in group.seeds]


def _train(group: _Group) -> None:
    """Trains all seeds to their ends; an error that concerns all is raised in every waiting seed, and here."""
    with StopRequest(lambda: "each seed keeps its checkpoints; --resume auto goes on from them") as stop:
        try:
            for seed in group.seeds:
                stop.obey()
                seed.start()
                seed.check()
            while waiting := group.waiting():
                if any(isinstance(seed.error, Stopped) for seed in group.seeds):
                    stop.obey()
                _hold_meeting(waiting, group, stop)
            if any(isinstance(seed.error, Stopped) for seed in group.seeds):
                stop.obey()
        except BaseException as error:
            for seed in group.waiting():
                seed.go_on(error)
            raise


def _hold_meeting(waiting: Sequence[_Seed], group: _Group, stop: StopRequest) -> None:
    """Lets the seeds that are furthest behind meet; they learn of a stop here, and still save their answers."""
    met = [(seed, seed.meeting) for seed in waiting if seed.meeting]
    first = min(meeting.order for _, meeting in met)
    present = [(seed, meeting) for seed, meeting in met if meeting.order == first]
    answers = present[0][1].together([meeting.part for _, meeting in present])
    group.stopping = stop.number is not None
    for (seed, _), answer in zip(present, answers, strict=True):
        seed.go_on(answer)
        seed.check()


def summary(results: Sequence[Mapping[str, Any]]) -> str:
    """Summarizes the seeds' `result.json` in one line."""
    every = [result[f"mean_of_last_{AVERAGED}"] for result in results]
    scores = [score for score in every if score is not None]
    numbers = iter(rounded(*scores))
    shown = ", ".join("no score" if score is None else next(numbers) for score in every)
    deviation = f", standard deviation {rounded(np.std(scores, ddof=1))[0]}" if len(scores) > 1 else ""
    spread = f"mean {rounded(np.mean(scores))[0]}{deviation}" if scores else "no mean"
    metric = LABELS[results[0]["metric"]]
    return f"{len(every)} seeds, {metric} over the last evaluations, {AVERAGED} at most: {shown}; {spread}"
