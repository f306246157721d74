"""The online phase of the JAX twins of `finetune/`: one compiled call for each step in the environment.

`shared/frameworks/torch_ring.py` lists what a twin of this family provides and calls in both frameworks. In JAX the
twin's file also has these:

- `train_interval(state, key, dataset, start, num_updates, size, ...)` is the scan of the offline phase. Batches come
  from the first `size` rows. This number is traced, so the replay buffer can grow without another compilation.
- `next_action(state, key, step, observation)`, compiled, returns the action (1, A) of the step of this number, or a
  chunk of actions (1, h, A) that begins with it.
- `train_online(state, key, ring, start, rows, observation, ...)` is compiled, and donates state and ring. It stores the
  rows (n, W) from the environment, makes the updates `start + 1` to `start + n`, and then acts on the current
  observation. It returns `(state, ring, action, history)`. If the policy chooses chunks, the action is None, and
  `next_action` is called where a chunk begins.

`Online.play` calls them for an interval between two evaluations. State and ring stay on the device meanwhile. Each
interval begins with `next_action`, so that a run that is resumed there computes the same bits.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shared.data.online import OnlineExperience
from shared.data.transitions import Batch
from shared.frameworks.jax_data import PackedDataset
from shared.frameworks.jax_ring import Ring, push
from shared.frameworks.jax_seeds import Stack
from shared.heap import keep_freed_memory, share_one_heap
from shared.runs import seeds
from shared.runs.run import Run

# Calls whose metrics are collected on the device before they are fetched together
_WAITING = 256

_push = jax.jit(push, donate_argnames="ring")

# This must happen before JAX starts threads, so online code imports this module early. Other code must not import it,
# because threads that share a heap wait for each other, which slows down a scan of many updates.
share_one_heap()


def room(config: Any, rows: int) -> int:
    """The capacity of a ring that starts with `rows` rows: as many as the run will store, at most `buffer_size`."""
    return min(config.buffer_size, rows + config.online_iterations)


class Online:
    """Runs the online phase of a JAX twin; several seeds act in turn and update in one program."""

    def __init__(
        self,
        run: Run,
        config: Any,
        experience: OnlineExperience,
        key: Array,
        next_action: Callable[..., Array],
        train_online: Callable[..., tuple[Any, Ring, Array, Sequence[Mapping[str, Array]]]],
        as_rows: Callable[[Batch], Any] = lambda batch: batch,
        statics: Callable[[int, int], Sequence[Any]] = lambda start, updates: (),
        shared: Sequence[Any] = (),
        steps_of: Callable[[OnlineExperience, int], Any] = OnlineExperience.transitions,
    ) -> None:
        """Stores the arguments; `play` runs the phase.

        Args:
            run: The run, which may be asked to stop.
            config: A `FinetuneConfig`.
            experience: The environment, and the transitions collected in it.
            key: The key of the seed's draws.
            next_action: The twin's function.
            train_online: The twin's function.
            as_rows: Converts transitions to the ring's kind of rows.
            statics: Maps the updates before a call and the updates in it to the last arguments of `train_online`, which
                are static.
            shared: The arguments before these: arrays that all seeds share, such as a dataset in addition to the ring.
            steps_of: Maps the experience and a number to the steps from this number on, which `as_rows` converts.
        """
        self._config, self._experience, self._key = config, experience, key
        self._next_action, self._train, self._as_rows = next_action, train_online, as_rows
        self._steps_of = steps_of
        self._statics, self._shared = statics, tuple(shared)
        self._run, self._metrics = run, _Means()
        self._ring: Ring | None = None
        keep_freed_memory()

    def begin(self, dataset: PackedDataset, keeps_dataset: bool = True) -> None:
        """Creates the ring from the dataset and a resumed run's transitions; further calls do nothing."""
        if self._ring is None:
            ring = Ring.create(dataset, room(self._config, len(dataset) if keeps_dataset else 0), keeps_dataset)
            if self._experience.size:
                ring = _push(ring, self._packed(0))
            self._ring = ring
            self._metrics = _Means(self._run.unfinished if self._run.step > self._config.switch else None)

    def play(self, state: Any, start: int, end: int) -> tuple[Any, int]:
        """Makes the environment steps and updates `start + 1` to `end`, or fewer if the run should stop.

        Returns:
            The state, and the number of updates done.
        """
        assert self._ring is not None, "begin comes first"
        per_call = self._config.updates_per_call
        caller = _Alone(self._train, state, self._ring) if seeds.count() == 1 else _Together(self, state, self._ring)
        action: Array | None = None
        for at in range(start, end, per_call):
            if at > start and self._run.stopping:
                end = at
                break
            updates, first = min(per_call, end - at), self._experience.size
            for number in range(updates):
                if not len(self._experience.queue):
                    chosen = self._act(caller.state, at + number) if action is None else action
                    self._experience.choose(np.asarray(chosen).reshape(-1, self._experience.action_dim))
                self._experience.play()
                # An action is only for the step that follows its update.
                action = None
            action, history = caller(
                at, self._key, self._packed(first), self._observation(), self._shared, tuple(self._statics(at, updates))
            )
            self._metrics.add(history)
            self._run.advance(updates)
        state, self._ring = caller.end(end)
        return state, end

    def means(self) -> dict[str, float]:
        """Returns the mean of each metric over the updates that reported it, and starts a new interval."""
        metrics, self._metrics = self._metrics, _Means()
        return metrics.means()

    def content(self) -> dict[str, dict[str, float]]:
        """The sums behind `means`, for the checkpoint of a run that is stopped in an interval."""
        return self._metrics.content()

    def _observation(self) -> np.ndarray:
        return self._experience.observation[None]

    def _act(self, state: Any, step: int) -> Array:
        return self._next_action(state, self._key, step, self._observation())

    def _packed(self, first: int) -> np.ndarray:
        """The steps from number `first` on, as rows of the ring, (n, W)."""
        columns = self._as_rows(self._steps_of(self._experience, first))
        return np.concatenate([np.reshape(column, (len(column), -1)) for column in columns], axis=1)


class _Alone:
    """The calls of a single seed."""

    def __init__(self, train_online: Callable, state: Any, ring: Ring) -> None:
        self._train, self.state, self._ring = train_online, state, ring

    def __call__(
        self, at: int, key: Array, rows: np.ndarray, observation: np.ndarray, shared: tuple, statics: tuple
    ) -> tuple[Array, Any]:
        given = (key, self._ring, at, rows, observation, *shared, *statics)
        self.state, self._ring, action, history = self._train(self.state, *given)
        return action, history

    def end(self, at: int) -> tuple[Any, Ring]:
        """The state and the ring after the interval."""
        return self.state, self._ring


class _Together:
    """The calls of one of several seeds: their states and rings stay stacked on the device between calls."""

    def __init__(self, owner: Online, state: Any, ring: Ring) -> None:
        self._owner, self._train = owner, owner._train
        self._stack = seeds.once(self._train, Stack)
        self._stack.bring(owner, (state, ring))

    @property
    def state(self) -> Any:
        """A copy of this seed's state."""
        return self._stack.copy_of(self._owner)[0]

    def __call__(
        self, at: int, key: Array, rows: np.ndarray, observation: np.ndarray, shared: tuple, statics: tuple
    ) -> tuple[Array, Any]:
        call = partial(_call_all, self._stack, self._train, at, shared, statics)
        # Odd orders are for the end of an interval, which comes before the first call of the next.
        return seeds.meet(2 * at, (self._owner, key, rows, observation), call)

    def end(self, at: int) -> tuple[Any, Ring]:
        """Copies of this seed's state and ring."""
        return seeds.meet(2 * at - 1, self._owner, self._stack.taken_apart)


def _call_all(
    stack: Stack, train_online: Callable, at: int, shared: tuple, statics: tuple, parts: Sequence[tuple]
) -> list[tuple[Array, Any]]:
    owners, keys, rows, observations = zip(*parts, strict=True)
    states, rings = stack.of(owners)
    given = stack.placed((jnp.stack(keys), np.stack(rows), np.stack(observations)))
    (states, rings), answers = _vmapped(train_online, (states, rings), given, at, shared, statics)
    stack.keep((states, rings))
    answers = jax.device_get(answers)
    return [jax.tree.map(lambda values, i=i: values[i], answers) for i in range(len(owners))]


@partial(jax.jit, static_argnames=("train_online", "statics"), donate_argnames="carried")
def _vmapped(
    train_online: Callable, carried: tuple, given: tuple, at: Array, shared: tuple, statics: tuple
) -> tuple[tuple, tuple]:
    def one(state: Any, ring: Ring, key: Array, rows: Array, observation: Array) -> tuple[tuple, tuple]:
        state, ring, action, history = train_online(state, key, ring, at, rows, observation, *shared, *statics)
        return (state, ring), (action, history)

    return jax.vmap(one)(*carried, *given)


class _Means:
    """Means of metrics, summed on the host, because sums on the device need a program for each set of names."""

    def __init__(self, content: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        """Starts with the sums in a stopped run's checkpoint, if there is one."""
        self._waiting: list[Any] = []
        content = content or {"sums": {}, "counts": {}}
        self._sums: dict[str, float] = defaultdict(float, content["sums"])
        self._counts: dict[str, int] = defaultdict(int, content["counts"])

    def add(self, history: Sequence[Mapping[str, Array]]) -> None:
        """Adds the metrics of a call."""
        self._waiting.append(history)
        if len(self._waiting) >= _WAITING:
            self._fetch()

    def _fetch(self) -> None:
        for history in jax.device_get(self._waiting):
            for metrics in history:
                for name, values in metrics.items():
                    self._sums[name] += float(np.sum(values, dtype=np.float64))
                    self._counts[name] += np.size(values)
        self._waiting.clear()

    def content(self) -> dict[str, dict[str, Any]]:
        """The sums and counts, as a checkpoint stores them."""
        self._fetch()
        return {"sums": dict(self._sums), "counts": dict(self._counts)}

    def means(self) -> dict[str, float]:
        """The mean of each metric over the updates that reported it."""
        self._fetch()
        return {name: self._sums[name] / self._counts[name] for name in sorted(self._sums)}
