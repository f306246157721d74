"""The online phase of the JAX twins of `finetune/`: one compiled call for each step in the environment.

`shared/frameworks/torch_ring.py` says what a twin of this family provides and calls in both frameworks. In JAX these
come on top, all of them in the twin's file:

- `train_interval(state, key, dataset, start, num_updates, size, ...)` is the offline phase's scan. Batches come from
  the first `size` rows, a number that is traced: the experience grows, the program stays.
- `next_action(state, key, step, observation)`, compiled, is the action (1, A) of the step of this number.
- `train_online(state, key, ring, start, rows, observation, ...)` is compiled, with state and ring donated. It stores
  the rows (n, W) that the environment gave, and makes the updates `start + 1` to `start + n`. Then it acts on where the
  environment now stands. It returns `(state, ring, action, history)`.

`Online.play` calls them for an interval between two evaluations. Nothing of state or ring leaves the device meanwhile.
Each interval begins with `next_action`, so that a run which is resumed there computes the same bits.
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

# Calls whose metrics wait on the device; they are fetched together.
_WAITING = 256

_push = jax.jit(push, donate_argnames="ring")

# Whoever goes online imports this module before JAX has any thread. Nobody else may: where threads share a heap, they
# wait for each other, and a scan of many updates takes longer.
share_one_heap()


def room(config: Any, rows: int) -> int:
    """How many rows a ring needs that begins with so many: no more than the run ever stores, nor than `buffer_size`."""
    return min(config.buffer_size, rows + config.online_iterations)


class Online:
    """Plays the online phase of a JAX twin; several seeds step one after the other and update in one program."""

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
    ) -> None:
        """Plays nothing yet.

        Args:
            run: May be asked to end.
            config: A `FinetuneConfig`.
            experience: The environment, and what was lived through in it.
            key: Of the seed's draws.
            next_action: The twin's.
            train_online: The twin's.
            as_rows: From transitions to the kind of row that the ring holds.
            statics: From the updates before a call and their number in it to what `train_online` takes last, known
                when it is compiled.
            shared: What it takes before those, arrays that all seeds share: a dataset beside the ring, say.
        """
        self._config, self._experience, self._key = config, experience, key
        self._next_action, self._train, self._as_rows = next_action, train_online, as_rows
        self._statics, self._shared = statics, tuple(shared)
        self._run, self._metrics = run, _Means()
        self._ring: Ring | None = None
        keep_freed_memory()

    def begin(self, dataset: PackedDataset, keeps_dataset: bool = True) -> None:
        """Makes the ring, once, of the dataset and of what a resumed run had lived through; later calls do nothing."""
        if self._ring is None:
            ring = Ring.create(dataset, room(self._config, len(dataset) if keeps_dataset else 0), keeps_dataset)
            if self._experience.size:
                ring = _push(ring, self._packed(0))
            self._ring = ring
            self._metrics = _Means(self._run.unfinished if self._run.step > self._config.switch else None)

    def play(self, state: Any, start: int, end: int) -> tuple[Any, int]:
        """The environment steps and updates `start + 1` to `end`, or fewer, if the run is asked to end meanwhile.

        Returns:
            The state, and how far it has come.
        """
        assert self._ring is not None, "begin comes first"
        per_call = self._config.updates_per_call
        caller = _Alone(self._train, state, self._ring) if seeds.count() == 1 else _Together(self, state, self._ring)
        action = self._act(state, start)
        for at in range(start, end, per_call):
            if at > start and self._run.stopping:
                end = at
                break
            updates, first = min(per_call, end - at), self._experience.size
            for number in range(updates):
                if number:
                    action = self._act(caller.state, at + number)
                self._experience.step(np.asarray(action)[0])
            action, history = caller(
                at, self._key, self._packed(first), self._observation(), self._shared, tuple(self._statics(at, updates))
            )
            self._metrics.add(history)
            self._run.advance(updates)
        state, self._ring = caller.end(end)
        return state, end

    def means(self) -> dict[str, float]:
        """Of each metric since the last evaluation, over the updates that reported it; the next interval has none."""
        metrics, self._metrics = self._metrics, _Means()
        return metrics.means()

    def content(self) -> dict[str, dict[str, float]]:
        """For the checkpoint of a run that is stopped here: what `means` is made of."""
        return self._metrics.content()

    def _observation(self) -> np.ndarray:
        return self._experience.observation[None]

    def _act(self, state: Any, step: int) -> Array:
        return self._next_action(state, self._key, step, self._observation())

    def _packed(self, first: int) -> np.ndarray:
        """The steps from number `first` on as the ring's rows, (n, W)."""
        columns = self._as_rows(self._experience.transitions(first))
        return np.concatenate([np.reshape(column, (len(column), -1)) for column in columns], axis=1)


class _Alone:
    """One seed's calls."""

    def __init__(self, train_online: Callable, state: Any, ring: Ring) -> None:
        self._train, self.state, self._ring = train_online, state, ring

    def __call__(
        self, at: int, key: Array, rows: np.ndarray, observation: np.ndarray, shared: tuple, statics: tuple
    ) -> tuple[Array, Any]:
        given = (key, self._ring, at, rows, observation, *shared, *statics)
        self.state, self._ring, action, history = self._train(self.state, *given)
        return action, history

    def end(self, at: int) -> tuple[Any, Ring]:
        """The state that the next interval begins with."""
        return self.state, self._ring


class _Together:
    """The calls of one of several seeds: states and rings stay stacked on the device from call to call."""

    def __init__(self, owner: Online, state: Any, ring: Ring) -> None:
        self._owner, self._train = owner, owner._train
        self._stack = seeds.once(self._train, Stack)
        self._stack.bring(owner, (state, ring))

    @property
    def state(self) -> Any:
        """A copy of the seed's own."""
        return self._stack.copy_of(self._owner)[0]

    def __call__(
        self, at: int, key: Array, rows: np.ndarray, observation: np.ndarray, shared: tuple, statics: tuple
    ) -> tuple[Array, Any]:
        call = partial(_call_all, self._stack, self._train, at, shared, statics)
        # Odd orders are those of an interval's end, which comes before the next one's first call.
        return seeds.meet(2 * at, (self._owner, key, rows, observation), call)

    def end(self, at: int) -> tuple[Any, Ring]:
        """Copies of what the seed has."""
        return seeds.meet(2 * at - 1, self._owner, self._stack.taken_apart)


def _call_all(
    stack: Stack, train_online: Callable, at: int, shared: tuple, statics: tuple, parts: Sequence[tuple]
) -> list[tuple[Array, Any]]:
    owners, keys, rows, observations = zip(*parts, strict=True)
    states, rings = stack.of(owners)
    given = stack.placed((jnp.stack(keys), np.stack(rows), np.stack(observations)))
    (states, rings), answers = _vmapped(train_online, (states, rings), given, at, shared, statics)
    stack.keep((states, rings))
    actions, history = jax.device_get(answers)
    return [(actions[i], jax.tree.map(lambda values, i=i: values[i], history)) for i in range(len(owners))]


@partial(jax.jit, static_argnames=("train_online", "statics"), donate_argnames="carried")
def _vmapped(
    train_online: Callable, carried: tuple, given: tuple, at: Array, shared: tuple, statics: tuple
) -> tuple[tuple, tuple]:
    def one(state: Any, ring: Ring, key: Array, rows: Array, observation: Array) -> tuple[tuple, tuple]:
        state, ring, action, history = train_online(state, key, ring, at, rows, observation, *shared, *statics)
        return (state, ring), (action, history)

    return jax.vmap(one)(*carried, *given)


class _Means:
    """The means of metrics, gathered call by call: for a sum on the device each set of names would be a program."""

    def __init__(self, content: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        """Begins with what `content` gave before a run was stopped, if it was."""
        self._waiting: list[Any] = []
        content = content or {"sums": {}, "counts": {}}
        self._sums: dict[str, float] = defaultdict(float, content["sums"])
        self._counts: dict[str, int] = defaultdict(int, content["counts"])

    def add(self, history: Sequence[Mapping[str, Array]]) -> None:
        """Takes the metrics of a call."""
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
        """As a checkpoint holds it."""
        self._fetch()
        return {"sums": dict(self._sums), "counts": dict(self._counts)}

    def means(self) -> dict[str, float]:
        """Of each metric over the updates that reported it."""
        self._fetch()
        return {name: self._sums[name] / self._counts[name] for name in sorted(self._sums)}
