"""Splits an interval between evaluations into short compiled calls, so that a run reacts to Ctrl-C and SIGTERM."""

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
    """The metrics of all updates since the last logged row, in the order of calls.

    A call's metrics are fetched while the next call computes. Therefore the device never waits for the host, and at
    most two calls are queued when a run should stop.
    """

    def __init__(self, run: Run) -> None:
        """Starts with the metrics of the interval in which a resumed run was stopped."""
        self._run = run
        self._calls: list[Metrics] = _from_checkpoint(run.unfinished)
        self._under_way: deque[tuple[int, Metrics]] = deque()

    def add(self, updates: int, found: Metrics) -> None:
        """Adds a call's metrics, and waits for the previous call."""
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
            # On the host, because the device is busy with the next call
            columns = _by_name([*self._calls, part])
            self._run.log_between(step, {name: column.mean(dtype=np.float64) for name, column in columns.items()})
            self._calls, at = [], step
        if found:
            self._calls.append(found)

    def means(self) -> dict[str, Any]:
        """Returns the mean of each metric over the updates that reported it, and starts a new interval."""
        means = mean_metrics(_joined(self._fetched()))
        self._calls = []
        return means

    def _fetched(self) -> list[Metrics]:
        while self._under_way:
            self._fetch()
        return self._calls

    def content(self) -> list[list[dict[str, Any]]]:
        """The history for a checkpoint in the middle of an interval: a list for each call."""
        return [[dict(metrics) for metrics in call] for call in self._fetched()]


def resumed(run: Run) -> list[Mapping[str, Any]]:
    """The metrics of the interval in which a run was stopped, for a twin that does not fetch metrics in between.

    The run consumes this list at each `log_freq`.
    """
    history = [metrics for call in _from_checkpoint(run.unfinished) for metrics in call]
    run.take_from(history, mean_metrics)
    return history


def as_saved(history: Metrics) -> list[list[dict[str, Any]]]:
    """Converts a history to the form that a checkpoint stores."""
    return [[dict(metrics) for metrics in jax.device_get(history)]]


def _from_checkpoint(content: Any) -> list[Any]:
    """Restores lists from a checkpoint, because flax writes them as mappings by number."""
    if isinstance(content, Mapping):
        if "sums" in content:  # from the online phase
            return []
        content = [content[key] for key in sorted(content, key=int)]
    if not content:
        return []
    if isinstance(content[0], list | tuple) or all(key.isdecimal() for key in content[0]):
        return [_from_checkpoint(call) for call in content]
    return list(content)


def _joined(calls: Sequence[Metrics]) -> Metrics:
    """Joins the metrics of several calls in order: entry by entry if all calls have the same entries, else by name."""
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
    """Splits a call's metrics into single updates.

    A scan returns a mapping for each place in its block, with values of equal shape. Updates outside of complete blocks
    follow as scalars.
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
