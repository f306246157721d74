"""Wraps somebody's file in the few methods that the checker calls: the contract that docs/port/check.md describes.

The file's functions get their arguments by name, in any order, and declare only those that they need. A function may
also be a method of the state, which is how our own twins meet the contract.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import islice
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parity_tests.losses import state_of
from parity_tests.pair import Pair
from port_checker.finding.fields import (
    Optimizer,
    argument,
    called,
    field,
    is_train_state,
    replaced,
    weights_of,
    with_weights,
)
from port_checker.finding.layout import Layout, find_layout, flattens
from port_checker.finding.loading import NotWrittenError, described, unwritten
from port_checker.finding.settings import understood
from port_checker.finding.tracing import Traced, trajectory
from shared.errors import InputError
from shared.frameworks.exchange import Named, blank_state, part_names
from shared.frameworks.part_names import by_part, spellings

# Maps the parts' names, a network's or an optimiser's, to their tensors under PyTorch's names
Parts = dict[str, Named]
# S, A and the bound of every action component
Sizes = tuple[int, int, float]


def reference_parts(pair: Pair) -> list[str]:
    """The names of a state's parts, as in both twins."""
    return part_names(state_of(pair.jax))


def joint_name(parts: Sequence[str]) -> str:
    """The joint name of several parts that one loss is differentiated by: `critics` for critic_1, critic_2."""
    return f"{parts[0].rpartition('_')[0] or parts[0]}s" if len(parts) > 1 else parts[0]


class Port:
    """A file to be checked, or one of our own twins.

    Attributes:
        name: Its name in messages.
        module: The executed file.
        pair: The pair that it is a port of.
        file: The path of the file.
        asked: The names of the settings and arguments that it has used so far.
        left: The settings left at their defaults because the file never reads them.

    Args:
        runs: Called with the name of the file's function that runs from now on.
    """

    def __init__(
        self, name: str, module: ModuleType, pair: Pair, runs: Callable[[str], None] = lambda what: None
    ) -> None:
        self.name, self.module, self.pair = name, module, pair
        self._runs, self._now = runs, ""
        self.file = getattr(module, "__file__", module.__name__)
        self._fresh: dict[Any, Any] = {}
        self._layouts: dict[Any, dict[str, Layout]] = {}
        self._channels_last = False
        self._traced = Traced()
        self.asked: set[str] = set()
        self.left: frozenset[str] = frozenset()
        self.settings = understood(pair.jax.TrainConfig, pair.name, getattr(module, "TrainConfig", None), self.asked)

    # The type of parts that are not networks
    array: type = jax.Array

    # ---- calls into the file

    def call(self, name: str, given: Mapping[str, Any], state: Any = None) -> Any:
        """Calls a function of the file, or a method of its state, with the available arguments that it declares.

        Raises:
            InputError: There is no such function, it needs another argument, or it raises an exception.
            NotWrittenError: It raises NotImplementedError.
        """
        function = self._find(name, state)
        wanted = inspect.signature(function).parameters.values()
        named = [p for p in wanted if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        known, given = ", ".join(given), self._by_any_name(given)
        self.asked.update(p.name for p in named)
        given |= {name: self.settings(x) for name, x in given.items() if isinstance(x, self.pair.jax.TrainConfig)}
        unknown = [p.name for p in named if p.default is p.empty and p.name not in given]
        if unknown:
            raise InputError(f"{name} asks for {', '.join(unknown)}: arguments go by name, out of {known}")
        with self._running(name):
            return function(**{p.name: given[p.name] for p in named if p.name in given})

    def _by_any_name(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The available arguments, with parts of the state also under their other spellings."""
        parts = [name for name in given if name in self.networks]
        return {other: given[name] for name in parts for other in spellings(name)} | dict(given)

    def has(self, name: str) -> bool:
        """Whether the file itself defines this function."""
        return callable(getattr(self.module, name, None))

    def _find(self, name: str, state: Any) -> Callable:
        method = None if isinstance(state, Mapping) else getattr(state, name, None)
        found = getattr(self.module, name, None) or method
        if not callable(found):
            raise InputError(f"{self.name} has no function {name}: expected {self.expected(name)}")
        return found

    def expected(self, name: str) -> str:
        """The signature of a function of the contract and its result, in words."""
        if name in self.pair.losses:
            loss = self.pair.losses[name]
            return f"{name}({', '.join([joint_name(loss.of), 'state', *loss.inputs])}) that gives a scalar"
        return {
            "create_train_state": "create_train_state(key, config, state_dim, action_dim, max_action), a state",
            "outputs": "outputs(state, batch) that gives each network's output by name",
            "update": "update(state, batch, noise, ...) that gives the next state",
            "draw_noise": "draw_noise(key, step, config, dataset_size, action_dim) that gives (indices, noise)",
        }[name]

    @contextmanager
    def _running(self, what: str) -> Iterator[None]:
        outer = self._now
        self._enter(what)
        try:
            yield
        except (InputError, NotWrittenError, jax.errors.KeyReuseError):
            raise
        except (Exception, SystemExit) as error:
            if (function := unwritten(error, self.file)) is not None:
                raise NotWrittenError(function) from None
            raise InputError(f"{what} stops with {described(error, self.file)}") from None
        finally:
            self._enter(outer)

    def _enter(self, what: str) -> None:
        self._now = what
        self._runs(what)

    # ---- states

    @property
    def created(self) -> Any:
        """The first state that the file has created; None before that."""
        return next(iter(self._fresh.values()), None)

    def fresh(self, config: Any, sizes: Sizes) -> Any:
        """The state that the file creates under this config."""
        if (config, sizes) not in self._fresh:
            given = dict(zip(("state_dim", "action_dim", "max_action"), sizes, strict=True))
            self._fresh[config, sizes] = self._create({"config": config, **given})
        return self._fresh[config, sizes]

    def _create(self, given: Mapping[str, Any]) -> Any:
        state = self.call("create_train_state", {"key": jax.random.key(0), **given})
        if any(leaf is state for leaf in jax.tree.leaves(state)):
            raise InputError(
                f"create_train_state gives {type(state).__name__}, which JAX takes for a single leaf: make the "
                f"state a NamedTuple, a flax.struct.dataclass or a dict"
            )
        return state

    def state(self, config: Any, sizes: Sizes, parts: Parts) -> Any:
        """The file's state with PyTorch's weights and moments."""
        state = self.fresh(config, sizes)
        parts = self._held(state, config, parts)
        layouts = self.layouts(config, sizes, parts)
        for name, layout in layouts.items():
            filled = with_weights(self._part(state, name), layout.to_tree(parts[name]))
            state = replaced(state, {self._called(state, name): filled})
        for optimizer in self.optimizers(state, parts):
            state = self._filled(optimizer, state, layouts, parts)
        return state

    def _called(self, state: Any, name: str) -> str:
        return called(state, name, reference_parts(self.pair))

    def _part(self, state: Any, name: str) -> Any:
        """A part of the file's state, by the reference's name."""
        return field(state, self._called(state, name))

    def _arguments(self, state: Any) -> dict[str, Any]:
        """The state's networks by the reference's names, as the file's functions take them."""
        return {name: argument(self._part(state, name)) for name in self.networks if self._has(state, name)}

    def _has(self, state: Any, name: str) -> bool:
        names = state if isinstance(state, Mapping) else dir(state)
        return self._called(state, name) in names

    def _held(self, state: Any, config: Any, parts: Parts) -> Parts:
        """Drops parts that a file may lack because no loss used under these settings is differentiated by them."""
        used = {part for name, loss in self.pair.losses.items() if self.pair.uses(name, config) for part in loss.of}
        learnt = {part for loss in self.pair.losses.values() for part in loss.of}
        spared = {part for part in learnt - used if not self._has(state, part)}
        return {name: values for name, values in parts.items() if name.removesuffix("_optimizer") not in spared}

    def layouts(self, config: Any, sizes: Sizes, parts: Parts) -> dict[str, Layout]:
        """The layout of PyTorch's tensors in each network of the file's state."""
        if (config, sizes) not in self._layouts:
            state = self.fresh(config, sizes)
            parts = self._held(state, config, parts)
            networks = {name: self._part(state, name) for name in parts if not name.endswith("_optimizer")}

            def own(part: str, weights: Named) -> Any:
                return self.call("from_torch", {"part": part, "weights": weights, "config": config})

            way = own if self.has("from_torch") else None
            self._layouts[config, sizes] = {
                name: find_layout(self._called(state, name), parts[name], weights_of(part), way, self._channels_last)
                for name, part in networks.items()
            }
        return self._layouts[config, sizes]

    def flattens(self, parts: Parts) -> bool:
        """Whether the checker has to find out in which order the file flattens images."""
        networks = (values for name, values in parts.items() if not name.endswith("_optimizer"))
        return not self.has("from_torch") and any(map(flattens, networks))

    def assume(self, channels_last: bool) -> None:
        """Sets the order in which images are flattened: (H, W, C), as flax's convolutions leave them, or (C, H, W)."""
        self._channels_last = channels_last
        self._layouts.clear()

    def optimizers(self, state: Any, parts: Parts) -> list[Optimizer]:
        """One optimiser per part: in its own field, in a TrainState, or shared by parts that a loss trains together.

        Raises:
            InputError: A part has none.
        """
        joint = {joint_name(loss.of): tuple(loss.of) for loss in self.pair.losses.values() if len(loss.of) > 1}
        own = {name: self._called(state, name) for name in parts if name.endswith("_optimizer")}
        names = {*(state if isinstance(state, Mapping) else dir(state))} - {*own.values()}
        found = [Optimizer(f"{name}_optimizer", of) for name, of in joint.items() if f"{name}_optimizer" in names]
        for optimizer, place in own.items():
            name = optimizer.removesuffix("_optimizer")
            if any(name in optimizer.of for optimizer in found):
                continue
            inside = is_train_state(self._part(state, name))
            found.append(Optimizer(self._called(state, name) if inside else place, (name,)))
        return found

    def _filled(self, optimizer: Optimizer, state: Any, layouts: Mapping[str, Layout], parts: Parts) -> Any:
        """The state with PyTorch's moments in this optimiser."""
        values = {part: parts[f"{part}_optimizer"] for part in optimizer.of}
        if "steps" not in values[optimizer.of[0]]:
            momentum = [layouts[part].to_tree(_of_kind(values[part], "m")) for part in optimizer.of]
            return optimizer.with_momentum(state, momentum)
        m, v = ([layouts[part].to_tree(_of_kind(values[part], kind)) for part in optimizer.of] for kind in ("m", "v"))
        return optimizer.with_moments(state, m, v, values[optimizer.of[0]]["steps"])

    def read(self, state: Any, config: Any, sizes: Sizes, parts: Parts) -> Parts:
        """The state's weights and moments under PyTorch's names; parts that it may lack are the reference's.

        Raises:
            InputError: They have other shapes than the state that the file creates.
        """
        layouts = self.layouts(config, sizes, parts)
        held = self._held(state, config, parts)
        found = {name: values for name, values in parts.items() if name not in held}
        found |= {name: layout.to_torch(weights_of(self._part(state, name)), name) for name, layout in layouts.items()}
        for optimizer in self.optimizers(state, held):
            m, v, steps = optimizer.moments(state)
            kinds = [("m", iter(jax.tree.leaves(m))), *([] if v is None else [("v", iter(jax.tree.leaves(v)))])]
            for part in optimizer.of:
                layout = layouts[part]
                values = {} if v is None else {"steps": np.asarray(steps)}
                for kind, leaves in kinds:
                    named = layout.to_torch(list(islice(leaves, layout.num_leaves)), optimizer.field)
                    values |= {f"{kind}/{name}": value for name, value in named.items()}
                found[f"{part}_optimizer"] = values
        return found

    # ---- rungs

    def outputs(self, state: Any, given: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Every network's output by its name in the adapter."""
        return {name: np.asarray(value) for name, value in self.plain_outputs(state, given).items()}

    def plain_outputs(self, state: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        """The same as JAX arrays, for callers that trace it."""
        if self.has("outputs"):
            found = self.call("outputs", {"state": state, **given, **self._arguments(state)})
        elif all(callable(part) or isinstance(part, self.array) for part in self._arguments(state).values()):
            with self._running("a network"):
                found = self.pair.outputs(state, given["batch"])
        else:
            raise InputError(f"{self.name} has no function outputs: expected {self.expected('outputs')}")
        if not isinstance(found, Mapping):
            raise InputError(f"outputs gives {type(found).__name__}: expected {self.expected('outputs')}")
        found = by_part(found, self.networks)
        return self.pair.networks_of(found)

    # Losses and updates are traced, as under jit, and computed by NumPy. JAX would also compile them operation by
    # operation, which takes longer than everything else.

    def loss(self, name: str, state: Any, given: Mapping[str, Any], parts: Sequence[Any]) -> jax.Array:
        """Computes a loss with these values for the parts that it is differentiated by.

        Raises:
            InputError: Its arguments do not include these parts, or it gives no scalar.
        """
        with self._running(name):
            return self._traced(name, partial(self.plain_loss, name), state, dict(given), list(parts))

    def plain_loss(self, name: str, state: Any, given: Mapping[str, Any], parts: Sequence[Any]) -> jax.Array:
        """The same without tracing, for callers that trace it."""
        of = self.pair.losses[name].of
        by = {**dict(zip(of, parts, strict=True)), joint_name(of): parts[0] if len(of) == 1 else tuple(parts)}
        by["params"] = by[joint_name(of)]
        asked = list(inspect.signature(self._find(name, state)).parameters)
        if not self._by_any_name(by).keys() & set(asked):
            if not asked or asked[0] in {"state", "config", *given}:
                raise InputError(f"{name} asks for none of {', '.join(by)}, which it is differentiated by")
            # If no argument has such a name, the first one gets the parts: `vae` for BCQ's encoder and decoder
            by[asked[0]] = by["params"]
        given = self._by_twins_names(name, given)
        found = self.call(name, {"state": state, **given, **self._arguments(state), **by}, state)
        value = found[0] if isinstance(found, tuple) else found
        if jnp.shape(value) != ():
            raise InputError(f"{name} gives an array of shape {jnp.shape(value)}: expected a scalar, or (scalar, aux)")
        return jnp.asarray(value)

    def _by_twins_names(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """A loss's inputs, also under our twin's names: its `batch` may be another than an update's."""
        kind = state_of(self.pair.jax)
        twins = [*inspect.signature(getattr(kind, name)).parameters][2:]
        inputs = zip(twins, self.pair.losses[name].inputs, strict=True)
        return {**given, **{ours: given[theirs] for ours, theirs in inputs}}

    def gradient(self, name: str, state: Any, given: Mapping[str, Any]) -> list[Any]:
        """A loss's gradient by each of its parts, as trees."""

        def gradient(state: Any, given: Mapping[str, Any]) -> list[Any]:
            return jax.grad(partial(self.plain_loss, name, state, given))(self.differentiated(name, state))

        with self._running(name):
            return self._traced(f"gradient of {name}", gradient, state, dict(given))

    def differentiated(self, name: str, state: Any) -> list[Any]:
        """The parts that a loss is differentiated by, taken from the state."""
        return [argument(self._part(state, part)) for part in self.pair.losses[name].of]

    def update(self, state: Any, given: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
        """The next state, and the metrics if there are any."""
        with self._running("update"):
            return self._traced("update", self.plain_update, state, dict(given))

    def plain_update(self, state: Any, given: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
        """The same without tracing."""
        found = self.call("update", {"state": state, **given, **self._arguments(state)}, state)
        after, metrics = found if type(found) is tuple and len(found) == 2 else (found, {})
        if type(after) is not type(state) or not isinstance(metrics, Mapping):
            raise InputError(f"update gives {type(after).__name__}: expected the next state, or (state, metrics)")
        return after, dict(metrics)

    def draws(self, given: Mapping[str, Any]) -> tuple[Any, Any]:
        """An update's indices and noise."""
        found = self.call("draw_noise", given)
        if not isinstance(found, tuple) or len(found) != 2:
            raise InputError(f"draw_noise gives {type(found).__name__}: expected (indices, noise)")
        return found

    def trajectory(self, state: Any, inputs: Sequence[Mapping[str, Any]]) -> Any:
        """The state after several updates, traced once for each combination of static arguments."""
        with self._running("update"):
            return trajectory(self._traced, self.plain_update, state, inputs)

    @cached_property
    def networks(self) -> list[str]:
        """The parts that are not optimisers."""
        return [name for name in reference_parts(self.pair) if not name.endswith("_optimizer")]


class OwnTwin(Port):
    """One of our own twins, all of which can be traced, so that nothing is compiled.

    Mistakes are planted in twins, and hundreds of them are asked at each rung.
    """

    def fresh(self, config: Any, sizes: Sizes) -> Any:
        """A state with the structure that the file creates, filled with zeros."""
        if (config, sizes) not in self._fresh:
            with self._running("create_train_state"):
                self._fresh[config, sizes] = blank_state(self.module, config, *sizes)
        return self._fresh[config, sizes]

    def outputs(self, state: Any, given: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Every network's output by its name in the adapter."""
        with self._running("a network"):
            found = self._traced("outputs", self.pair.outputs, state, given["batch"])
        return {name: np.asarray(value) for name, value in self.pair.networks_of(found).items()}


def _of_kind(values: Named, kind: str) -> Named:
    return {name.removeprefix(f"{kind}/"): value for name, value in values.items() if name.startswith(f"{kind}/")}
