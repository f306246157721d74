"""An interval between evaluations as short compiled calls, between which a run hears Ctrl-C and SIGTERM."""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import jax
import numpy as np

from shared.frameworks.jax_side import mean_metrics
from shared.runs.run import Run

Metrics = Sequence[Mapping[str, Any]]


class History:
    """The metrics of all updates since the last logged row, call by call.

    While one call computes, the one before is fetched. So the device never waits for the host, and no more than two
    calls are under way when a run is asked to end.
    """

    def __init__(self, run: Run) -> None:
        """Begins with what a resumed run had in the interval that it was stopped in."""
        self._run = run
        self._calls: list[Metrics] = _from_checkpoint(run.unfinished)
        self._under_way: deque[tuple[int, Metrics]] = deque()

    def add(self, updates: int, found: Metrics) -> None:
        """Takes a call's metrics, and waits for the call before."""
        self._under_way.append((updates, found))
        if updates:
            self._run.started()
        while len(self._under_way) > 1:
            self._fetch()

    def _fetch(self) -> None:
        updates, under_way = self._under_way.popleft()
        found: Metrics = jax.device_get(under_way)
        at, due = self._run.counted, self._run.logged(updates)
        self._run.advance(updates)
        for step in due:
            one_by_one = _one_by_one(found)
            part, found = one_by_one[: step - at], one_by_one[step - at :]
            # On the host: the device has the next call to do.
            columns = _by_name([*self._calls, part])
            self._run.log_between(step, {name: column.mean(dtype=np.float64) for name, column in columns.items()})
            self._calls, at = [], step
        if found:
            self._calls.append(found)

    def means(self) -> dict[str, Any]:
        """The mean of each metric over the updates that reported it; the next interval begins with none."""
        means = mean_metrics(_joined(self._fetched()))
        self._calls = []
        return means

    def _fetched(self) -> list[Metrics]:
        while self._under_way:
            self._fetch()
        return self._calls

    def content(self) -> list[list[dict[str, Any]]]:
        """For the checkpoint of a run that is stopped here: a list for each call."""
        return [[dict(metrics) for metrics in call] for call in self._fetched()]


def resumed(run: Run) -> list[Mapping[str, Any]]:
    """The metrics of the interval in which a run was stopped, for a twin that fetches nothing in between.

    The run takes from this list at each `log_freq`.
    """
    history = [metrics for call in _from_checkpoint(run.unfinished) for metrics in call]
    run.take_from(history, mean_metrics)
    return history


def as_saved(history: Metrics) -> list[list[dict[str, Any]]]:
    """A history as a checkpoint holds it."""
    return [[dict(metrics) for metrics in jax.device_get(history)]]


def _from_checkpoint(content: Any) -> list[Any]:
    """MessagePack knows lists, but flax writes them as mappings by number."""
    if isinstance(content, Mapping):
        if "sums" in content:  # of the online phase
            return []
        content = [content[key] for key in sorted(content, key=int)]
    if not content:
        return []
    if isinstance(content[0], list | tuple) or all(key.isdecimal() for key in content[0]):
        return [_from_checkpoint(call) for call in content]
    return list(content)


def _joined(calls: Sequence[Metrics]) -> Metrics:
    """Joins the metrics of several calls of one program, in order; other entries are joined by name alone."""
    if len({tuple(map(frozenset, call)) for call in calls}) != 1:
        return [_by_name(calls)]
    return [
        {name: _column(call[place][name] for call in calls) for name in metrics}
        for place, metrics in enumerate(calls[0])
    ]


def _by_name(calls: Sequence[Metrics]) -> dict[str, np.ndarray]:
    every = [metrics for call in calls for metrics in call]
    names = sorted({name for metrics in every for name in metrics})
    return {name: _column(metrics[name] for metrics in every if name in metrics) for name in names}


def _one_by_one(call: Metrics) -> list[dict[str, Any]]:
    """A call's metrics, update by update.

    What a scan returns is a mapping for each place in its block, whose values are all of one shape. Updates that filled
    no block follow as scalars.
    """
    updates: list[dict[str, Any]] = []
    for shape, group in groupby(call, key=lambda metrics: np.shape(next(iter(metrics.values())))):
        places = [{name: np.ravel(values) for name, values in metrics.items()} for metrics in group]
        updates += [
            {name: values[block] for name, values in metrics.items()}
            for block in range(math.prod(shape))
            for metrics in places
        ]
    return updates


def _column(values: Iterable[Any]) -> np.ndarray:
    return np.concatenate([np.ravel(value) for value in values])
