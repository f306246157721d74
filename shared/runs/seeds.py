"""Several seeds of one run in one process: each trains as if it were alone, and they meet where one program serves all.

A seed's `train` runs in a thread of its own, but only one thread runs at a time. It runs from its start, or from the
last meeting, to the next meeting, or to its end. So nothing that it calls needs to know of threads, and its output
comes in order. Each seed leaves the folder that its run alone would leave. Where nobody calls `meet`, as in PyTorch,
the seeds run one after another.
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
# Bytes of a seed's settings and thread, at least
_SEED = 1024


class _Meeting(NamedTuple):
    """A meeting of seeds: each waits until `together` has turned everybody's part into answers."""

    order: int
    part: Any
    together: Callable[[list[Any]], Sequence[Any]]


class _Seed:
    """One seed's training; `meeting` is set while it waits for one, `outcome` or `error` at its end."""

    def __init__(self, train: Callable[[Any], Any], config: Any, group: "_Group") -> None:
        self.number, self._group = config.seed, group
        self.meeting: _Meeting | None = None
        self.outcome: Any = None
        self.error: BaseException | None = None
        self._answers: SimpleQueue[Any] = SimpleQueue()
        self._turns: SimpleQueue[None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, args=(train, config), daemon=True)

    def start(self) -> None:
        """Lets it train to its first meeting, or to its end."""
        self._thread.start()
        self._turns.get()

    def go_on(self, answer: Any) -> None:
        """Lets it train to its next meeting, or to its end; an answer that is an exception is raised where it waits."""
        self.meeting = None
        self._answers.put(answer)
        self._turns.get()

    def check(self) -> None:
        """Tells of an error that is its own; raises one that concerns the others, too."""
        if isinstance(self.error, RunError):
            tqdm.write(f"seed {self.number}: {self.error}", file=sys.stderr)
        elif self.error and not isinstance(self.error, Stopped):
            raise self.error

    def wait(self, meeting: _Meeting) -> Any:
        """Within its thread: gives the turn back until there is an answer."""
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
    """All seeds, and what they share: pairs of whose it is and what was made of it.

    `stopping` says whether the last meeting found them asked to end; None before the first.
    """

    def __init__(self, train: Callable[[Any], Any], configs: Sequence[Any]) -> None:
        self.seeds = [_Seed(train, config, self) for config in configs]
        self.made: list[tuple[Any, Any]] = []
        self.stopping: bool | None = None

    def waiting(self) -> list[_Seed]:
        """Those who are at a meeting."""
        return [seed for seed in self.seeds if seed.meeting]


_here = threading.local()


def _group() -> _Group | None:
    """For whose seeds this thread works."""
    return getattr(_here, "group", None)


def count() -> int:
    """How many seeds train in this process."""
    group = _group()
    return 1 if group is None else len(group.seeds)


def label() -> str:
    """The prefix of a line that one of several seeds prints; empty for a single seed."""
    seed = getattr(_here, "seed", None)
    return "" if seed is None else f"seed {seed.number}: "


def agreed(stopping: bool) -> bool:
    """Whether a seed that may have been asked to end does so now: all do at the same meeting, or none."""
    group = _group()
    return stopping if group is None or group.stopping is None else group.stopping


def once(of: Any, make: Callable[[], T]) -> T:
    """The result of `make`, which the first seed calls and the others share.

    Args:
        of: Any object that is the same one for all who mean the same thing.
        make: Makes it; no seed may write into it.
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
    """Waits for the other seeds; returns this one's answer.

    Where seeds have come to different places, as after an interrupted save, those that are behind go on first.

    Args:
        order: How far this seed has come.
        part: What it brings.
        together: From the parts of all who are equally far to their answers, in order; called once, with the first
            seed's. The others bring one that would do the same.
    """
    return _here.seed.wait(_Meeting(order, part, together))


def meet_at_the_end() -> None:
    """Waits until all seeds that have not failed have come here; a seed alone does not wait."""
    if _group() is not None:
        meet(sys.maxsize, None, lambda parts: parts)


def last_in_common(saved: Sequence[Sequence[int]]) -> int | None:
    """The step from which several resumed seeds go on together.

    A process that is killed while its seeds save has saved some of them once more than others.

    Args:
        saved: The steps of each seed's checkpoints, in rising order.

    Returns:
        The last step that all have among their last two; 0, which is the beginning, where one has not saved yet. None
        where seeds are further apart, as after one has failed: each then goes on from its own last.
    """
    recent = [{*steps[-2:], *([0] if len(steps) < 2 else [])} for steps in saved]
    return max(set.intersection(*recent), default=None)


def train_seeds(train: Callable[[Any], T], config: Any, number: int) -> list[T]:
    """Trains with the seeds `config.seed`, `config.seed + 1` and so on.

    A seed whose run fails says so and leaves the others alone; Ctrl-C and SIGTERM end them all.

    Args:
        train: An algorithm's, from a config to a `Run`.
        config: Of the first seed.
        number: Seeds in all.

    Returns:
        Each seed's `Run`.

    Raises:
        InputError: The settings cannot be used, or not with several seeds.
        RunError: A seed failed; raised when the others are done.
        Stopped: The user, or the machine, ended them.
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
    """All to their ends; what concerns them all is raised in those who wait, and here."""
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
    """Of those who are least far; who is asked to end hears it now, and saves what the meeting gave."""
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
