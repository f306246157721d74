"""A pair without an adapter: two files, described by the names in the contract.

`shared/frameworks/contract.py` lists what both files contain. If these names leave something open, the JAX file adds a
function or a constant with a name from `Pair`. If such a line is missing, the error message names it.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import ModuleType
from typing import Any
from unittest import mock

import jax
import numpy as np
import torch

from parity_tests.families import Family
from parity_tests.ladder.rungs import preparation_of
from parity_tests.ladder.scene import BATCH_SIZE, WARM_UPDATES, cornered_rows
from parity_tests.losses import file_of, state_of
from parity_tests.pair import GoalPair, Pair
from parity_tests.pairs import PAIRS
from shared.data import returns, transitions
from shared.envs.spaces import shape_of
from shared.errors import InputError
from shared.frameworks import jax_data, torch_data
from shared.frameworks.contract import JaxTwin, TorchTwin
from shared.frameworks.exchange import blank_state
from shared.frameworks.jax_layers import Network
from shared.names import nearest
from shared.runs.extraction import Extract
from shared.runs.fields import check
from shared.runs.preparation import Preparation

# The functions that the JAX file may define, with the method of `Pair` that each one replaces
LINES = {
    **{name: name for name in ("outputs", "extra_inputs", "draw_inputs", "torch_draw_inputs", "drawn_inside")},
    **{name: name for name in ("draw_statics", "update_statics", "interval_statics", "number")},
    # A twin may have a `load` of its own, for checkpoints.
    "load_columns": "load",
}
# Constants of the JAX file: a pair of this repository whose adapter serves this one too, and two fields of `Pair`
LIKE, VARIANTS, TOLERANCES = "PARITY_LIKE", "PARITY_VARIANTS", "PARITY_TOLERANCES"
# Settings with a period that determines the phase in which an interval begins
PERIODS = ("policy_freq", "target_update_period")
# For each kind of training data, the function that reads its columns from a file's arrays
LOADERS: Mapping[Extract, Callable[[dict[str, np.ndarray]], Any]] = {
    Extract.SARSA: transitions.extract_sarsa,
    Extract.RETURNS: returns.extract_returns,
}
# Settings, by the name of the variant
Variants = Mapping[str, dict[str, Any]]
# The width of hidden layers, small to keep the ladder quick
WIDTH = 32
# A larger whole number counts updates, as the length of a schedule does. The checks make few updates, in which so long
# a schedule would hardly change, so it becomes this short.
LONG, SHORT = 1000, 40
# The dimension of the made-up rows' actions
A = 3


def own_pair(torch_twin: ModuleType, jax_twin: ModuleType, name: str) -> Pair:
    """Makes a pair from two modules.

    Raises:
        InputError: A module lacks a name of the contract, or something that its names leave open.
    """
    _check_names(torch_twin, TorchTwin)
    _check_names(jax_twin, JaxTwin)
    like = getattr(jax_twin, LIKE, None)
    if like is not None and like not in PAIRS:
        raise InputError(f"{file_of(jax_twin)}: {LIKE} = {like!r} is no pair; {nearest(str(like), PAIRS)}")
    said = {LINES[line]: staticmethod(vars(jax_twin)[line]) for line in LINES if _is_defined(jax_twin, line)}
    sort = OwnGoalPair if _preparation_of(jax_twin).extract is Extract.GOALS else OwnPair
    base = sort(name, name, Family.IMITATION, "", "", "", 1) if like is None else PAIRS[like]
    kind = type("Own", (type(base),), {"torch": torch_twin, "jax": jax_twin, **said})
    fields = {field.name: getattr(base, field.name) for field in dataclasses.fields(Pair)}
    pair: Pair = kind(**fields | {"name": name})
    if (variants := getattr(jax_twin, VARIANTS, None)) is not None:
        _check_variants(jax_twin, variants)
    else:
        variants = _known_to_both(pair.variants if like is not None else _variants(torch_twin), torch_twin, jax_twin)
    tolerances = getattr(jax_twin, TOLERANCES, pair.tolerances)
    pair = dataclasses.replace(pair, variants=variants, tolerances=tolerances)
    assert pair.losses, "files without a loss are refused"
    return pair


def _preparation_of(twin: ModuleType) -> Preparation:
    """How the JAX twin's run prepares its data."""
    asks = "load_task" in twin.train.__code__.co_names
    return preparation_of(twin, twin.TrainConfig()) if asks else Preparation()


def _is_defined(twin: ModuleType, line: str) -> bool:
    """Whether the file itself defines this name, because twins also import functions with such names."""
    return getattr(vars(twin).get(line), "__module__", None) == twin.__name__


def _check_names(twin: ModuleType, protocol: type) -> None:
    names = [name for name in vars(protocol) if not name.startswith("_")]
    missing = [name for name in names if not hasattr(twin, name)]
    if missing:
        says = inspect.getdoc(vars(protocol)[missing[0]])
        others = f"; nor {', '.join(missing[1:])}" if missing[1:] else ""
        raise InputError(f"{file_of(twin)} has no {missing[0]} ({says}){others}: define what a twin must hold")


def _check_variants(twin: ModuleType, variants: Variants) -> None:
    if "default" not in variants:
        raise InputError(f"{file_of(twin)}: {VARIANTS} has no settings called default: add `'default': {{}}`")
    known = {field.name for field in dataclasses.fields(twin.TrainConfig)}
    if unknown := [name for settings in variants.values() for name in settings if name not in known]:
        raise InputError(f"{file_of(twin)}: {VARIANTS}: {unknown[0]} is not a setting; {nearest(unknown[0], known)}")


def _known_to_both(variants: Variants, *twins: ModuleType) -> Variants:
    """Leaves out settings that one file lacks, so that the check of settings can tell which."""
    known = set.intersection(*({field.name for field in dataclasses.fields(twin.TrainConfig)} for twin in twins))
    return {
        variant: {name: value for name, value in settings.items() if name in known}
        for variant, settings in variants.items()
    }


def _missing(twin: ModuleType, why: str, line: str) -> InputError:
    return InputError(f"{file_of(twin)}: {why}: add the line `{line}`, or `{LIKE} = NAME` of a landed pair like it")


# ---- settings ------------------------------------------------------------------------------------------------------


def _variants(twin: ModuleType) -> dict[str, dict[str, Any]]:
    """The defaults, and all numbers that updates depend on, slightly changed to expose code that ignores a setting."""
    config = twin.TrainConfig()
    narrow: dict[str, Any] = {"hidden_dim": WIDTH} if hasattr(config, "hidden_dim") else {}
    for field in dataclasses.fields(config):
        if field.name.endswith("hidden_dims"):
            narrow[field.name] = (WIDTH,) * len(getattr(config, field.name))
    moved = dict(narrow)
    for field in dataclasses.fields(twin.Hyperparameters):
        value = getattr(config, field.name)
        if field.name in (*narrow, "batch_size") or type(value) not in (int, float) or not np.isfinite(value):
            continue
        # A setting of 0 is switched off, and might need other data if it were not.
        moved_number = (SHORT if value > LONG else value + 1) if type(value) is int else float(f"{0.8 * value:.6g}")
        other = moved_number if value else value
        try:
            check(dataclasses.replace(config, **{field.name: other}))
        except InputError:
            continue
        moved |= {field.name: other} if other != value else {}
    return {"default": narrow} | ({"moved": moved} if moved != narrow else {})


# ---- the pair ------------------------------------------------------------------------------------------------------


class OwnPair(Pair):
    """A pair described by its files' names, their signatures and one traced update."""

    def load(self, raw: dict[str, np.ndarray], frame_stack: int = 1) -> Any:
        """Prepares the data as a run of the JAX twin does; states are always normalised."""
        preparation = self._preparation
        if preparation.finite:
            raw = raw | {"actions": raw["actions"].argmax(axis=1)}
        if preparation.extract is Extract.TRANSITIONS:
            return super().load(raw, frame_stack)
        if preparation.extract in LOADERS:
            return LOADERS[preparation.extract](raw)
        why = f"train learns from {preparation.extract.name.lower()}"
        raise _missing(self.jax, why, "load_columns = lambda raw, frame_stack: ...")

    @cached_property
    def _preparation(self) -> Preparation:
        return _preparation_of(self.jax)

    def draw_inputs(self, dataset: Any, action_dim: int) -> tuple:
        """The inputs that the JAX twin's arguments name, between the settings and the flags of a step."""
        known = {"dataset_size": len(dataset[0]), "action_dim": action_dim}
        asked = list(inspect.signature(self.jax.draw_noise).parameters)[3:]
        theirs = list(inspect.signature(self.torch.draw_noise).parameters)
        given = [name for name in asked if name in theirs[: theirs.index("device")]]
        if unknown := [name for name in given if name not in known]:
            line = "draw_inputs = lambda dataset, action_dim: (...)"
            raise _missing(self.jax, f"draw_noise takes {unknown[0]}", line)
        return tuple(known[name] for name in given)

    # ---- what a step's number decides

    def interval_statics(self, config: Any, start: int, num_updates: int) -> dict[str, Any]:
        """`phase`, if the twin needs it: the updates before the interval, modulo the period in the settings."""
        asked = list(inspect.signature(self.jax.train_interval).parameters)[5:]
        periods = [getattr(config, name) for name in PERIODS if hasattr(config, name)]
        if asked not in ([], ["phase"]) or len(periods) < len(asked):
            line = f"interval_statics = lambda config, start, num_updates: {{{asked[0]!r}: ...}}"
            raise _missing(self.jax, f"train_interval takes {', '.join(asked)}", line)
        return {name: start % period for name, period in zip(asked, periods, strict=False)}

    def update_statics(self, config: Any, step: int) -> dict[str, Any]:
        """The static arguments that `train_interval` passes to `update` at this update."""
        return self._handed(config, step)["update"]

    def draw_statics(self, config: Any, step: int) -> dict[str, Any]:
        """The static arguments that `train_interval` passes to `draw_noise` at this update."""
        return self._handed(config, step)["draw_noise"]

    def _handed(self, config: Any, step: int) -> dict[str, dict[str, Any]]:
        statics = self.interval_statics(config, step - 1, 1)
        key = config, tuple(sorted(statics.items()))
        if key not in self._intervals:
            self._intervals[key] = self._watched(config, statics)
        return self._intervals[key]

    @cached_property
    def _intervals(self) -> dict[Any, dict[str, dict[str, Any]]]:
        return {}

    def _watched(self, config: Any, statics: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Traces an interval of one update, and records the arguments of its functions that are not arrays."""
        found: dict[str, list[dict[str, Any]]] = {"update": [], "draw_noise": []}
        state, interval = state_of(self.jax), inspect.unwrap(self.jax.train_interval)
        dataset = self.load(cornered_rows(1.0))
        own = self.jax.TrainConfig(**vars(config))
        first = {"update": 3, "draw_noise": 3 + len(self.draw_inputs(dataset, A))}

        def watching(name: str, function: Callable) -> Callable:
            signature = inspect.signature(function)

            def watch(*args: Any, **named: Any) -> Any:
                given = list(signature.bind(*args, **named).arguments.items())[first[name] :]
                found[name].append(dict(given))
                return function(*args, **named)

            return watch

        held = self.ready(self.jax, jax_data.to_device(dataset), own)
        blank = blank_state(self.jax, own, shape_of(dataset.observations), A)
        with (
            mock.patch.object(state, "update", watching("update", vars(state)["update"])),
            mock.patch.object(self.jax, "draw_noise", watching("draw_noise", self.jax.draw_noise)),
        ):
            jax.eval_shape(lambda key, start: interval(blank, key, held, start, 1, **statics), jax.random.key(0), 0)
        return {name: self._told(name, given) for name, given in found.items()}

    def _told(self, name: str, given: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The arguments that are the same in all calls."""
        if not given:
            raise InputError(f"{file_of(self.jax)}: train_interval doesn't call {name}: what it does is not compared")
        arrays = [key for call in given for key, value in call.items() if isinstance(value, jax.Array)]
        if arrays or any(call != given[0] for call in given):
            line = f"{name.removesuffix('_noise')}_statics = lambda config, step: {{...}}"
            raise _missing(self.jax, f"the step's number decides {', '.join(given[0])} of {name}", line)
        return given[0]

    # ---- what is compared

    def outputs(self, twin: Any, batch: Any) -> dict[str, Any]:
        """Every network's output, for the columns of the batch that its arguments name."""
        found: dict[str, Any] = {}
        for field in dataclasses.fields(state_of(self.jax)):
            if field.type is Network and not field.name.endswith("_target"):
                network = getattr(twin, field.name)
                names = self._arguments(field.name, network, batch)
                output = network(*(getattr(batch, self._column(field.name, name)) for name in names))
                several = (
                    {f"{field.name}[{i}]": x for i, x in enumerate(output)}
                    if isinstance(output, tuple)
                    else {field.name: output}
                )
                found |= {name: value for name, value in several.items() if value is not None}
        return found

    def _arguments(self, part: str, network: Any, batch: Any) -> list[str]:
        call = network.forward if isinstance(network, torch.nn.Module) else type(network.module).__call__
        parameters = [p for p in inspect.signature(call).parameters.values() if p.name != "self"]
        names = [p.name for p in parameters if p.default is p.empty or p.name in batch._fields]
        if unknown := [name for name in names if self._column(part, name) not in batch._fields]:
            line = "outputs = lambda twin, batch: {'NAME': twin.NAME(...)}"
            raise _missing(self.jax, f"{part} takes {unknown[0]}, which is no column of a batch", line)
        return names

    def _column(self, part: str, name: str) -> str:
        """The batch's column for a network's argument of this name."""
        return name

    def extra_inputs(self, rng: np.random.Generator, size: int) -> dict[str, Any]:
        """Inputs with the shapes and the largest size that losses get in the PyTorch twin's updates."""
        config = self.torch.TrainConfig(device="cpu", **{"batch_size": BATCH_SIZE} | dict(self.variants["default"]))
        given = {name: value for inputs in self.called(config).values() for name, value in inputs.items()}
        return {
            name: rng.normal(size=np.shape(value), scale=max(1.0, float(np.abs(value).max())))
            for name, value in given.items()
        }

    def uses(self, loss: str, config: Any) -> bool:
        """Whether the PyTorch twin's updates call a loss under this config."""
        return loss in self.called(config)

    def called(self, config: Any) -> dict[str, dict[str, np.ndarray]]:
        """The losses that the PyTorch twin's updates call under this config, with arrays that are not in the batch."""
        if config not in self._calls:
            self._calls[config] = self._observed(config)
        return self._calls[config]

    @cached_property
    def _calls(self) -> dict[Any, dict[str, dict[str, np.ndarray]]]:
        return {}

    def _observed(self, config: Any) -> dict[str, dict[str, np.ndarray]]:
        dataset = self.load(cornered_rows(1.0))
        trainer = self.torch.create_trainer(config, shape_of(dataset.observations), A, 1.0)
        found: dict[str, dict[str, np.ndarray]] = {}

        def watching(name: str, loss: Callable) -> Callable:
            def watch(*args: Any, **named: Any) -> Any:
                given = dict(zip(self.losses[name].inputs, args, strict=False)) | named
                arrays = {n: x for n, x in given.items() if n not in ("batch", "noise", *dataset._fields)}
                found[name] = {n: np.asarray(torch.as_tensor(x).detach()) for n, x in arrays.items()}
                return loss(*args, **named)

            return watch

        for name in self.losses:
            setattr(trainer, name, watching(name, getattr(trainer, name)))
        held = self.ready(self.torch, torch_data.to_device(dataset, torch.device("cpu")), config)
        draw = self.torch_draws(config, dataset, A, torch.device("cpu"))
        for step in range(1, WARM_UPDATES + 4):
            indices, noise = draw(**self.draw_statics(config, step))
            trainer.update(self.take(self.torch, held, indices, config), noise)
        if not found:
            raise InputError(
                f"{file_of(self.torch)}: update calls none of {', '.join(self.losses)}: let it call its losses"
            )
        return found


class OwnGoalPair(OwnPair):
    """The same for files that learn to reach goals."""

    load, take = GoalPair.load, GoalPair.take
    draw_inputs, torch_draw_inputs = GoalPair.draw_inputs, GoalPair.torch_draw_inputs

    def _column(self, part: str, name: str) -> str:
        """A policy's `goals` are the batch's for policies, and other networks get its goals for values."""
        if name != "goals":
            return name
        return "actor_goals" if "actor" in part else "value_goals"
