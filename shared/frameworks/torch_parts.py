"""Checks the parts of a PyTorch checkpoint, modules, optimisers and schedules, before any of them is loaded.

PyTorch only checks a module's names and shapes. It loads any state of an optimiser or a schedule, and fails some
updates later.
"""

import math
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

# Entries that may be missing: of an optimiser before its first step, or of a parameter without a gradient
_MOMENTS = {"step", "exp_avg", "exp_avg_sq"}
_MOMENTUM = {"momentum_buffer"}
_SETTINGS = {"params", "lr", "betas", "eps", "weight_decay", "amsgrad"}
_SETTINGS_OF_DESCENT = {"params", "lr", "momentum", "dampening", "weight_decay", "nesterov"}


class MisfitError(ValueError):
    """A part of a checkpoint is not what a run could have written; the message says how it differs."""


def check(part: Any, saved: Any) -> None:
    """Checks that a saved state can be loaded into a part.

    Args:
        part: A module, any kind of Adam, gradient descent with momentum, or a learning rate schedule.
        saved: Its `state_dict` in the checkpoint.

    Raises:
        MisfitError: It cannot be loaded.
    """
    if not isinstance(saved, Mapping):
        raise MisfitError(f"is a {type(saved).__name__}")
    if isinstance(part, nn.Module):
        _check_module(part.state_dict(), saved)
    elif isinstance(part, torch.optim.Optimizer):
        _check_optimizer(part, saved)
    else:
        _check_schedule(part, saved)


def _check_module(ours: Mapping[str, Tensor], saved: Mapping[str, Any]) -> None:
    if saved.keys() != ours.keys():
        raise MisfitError(f"has other names: {', '.join(sorted(map(str, saved.keys() ^ ours.keys())))}")
    for name, tensor in ours.items():
        _check_tensor(name, saved[name], tensor)


def _check_tensor(name: str, saved: Any, like: Tensor) -> None:
    """Checks a finite tensor of this shape: real numbers in any precision, or else the same type as ours."""
    if not isinstance(saved, Tensor):
        raise MisfitError(f"{name} is no tensor")
    if saved.dtype != like.dtype and not (saved.is_floating_point() and like.is_floating_point()):
        raise MisfitError(f"{name} is of {saved.dtype}, not of {like.dtype}")
    if saved.shape != like.shape:
        raise MisfitError(f"{name} has shape {tuple(saved.shape)}, not {tuple(like.shape)}")
    if not saved.isfinite().all():
        raise MisfitError(f"{name} is not finite")


def _check_optimizer(ours: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    groups, moments = saved.get("param_groups"), saved.get("state")
    if not isinstance(groups, list) or not isinstance(moments, Mapping) or len(groups) != len(ours.param_groups):
        raise MisfitError("is no optimiser's state")
    descends = isinstance(ours, torch.optim.SGD)
    params = [param for group in ours.param_groups for param in group["params"]]
    numbers = []
    for group, saved_group in zip(ours.param_groups, groups, strict=True):
        numbers += _parameters(group, saved_group, _SETTINGS_OF_DESCENT if descends else _SETTINGS)
    if not moments.keys() <= set(numbers):
        raise MisfitError("has moments of no parameter")
    for number, param in zip(numbers, params, strict=True):
        if number in moments:
            _check_moments(number, moments[number], param, _MOMENTUM if descends else _MOMENTS)


def _check_moments(number: Any, saved: Any, param: Tensor, expected: set[str]) -> None:
    if not isinstance(saved, Mapping) or not saved.keys() >= expected:
        raise MisfitError(f"has no moments of parameter {number}")
    for name, value in saved.items():
        if name == "step":
            _check_number("step", value.item() if isinstance(value, Tensor) and value.numel() == 1 else value)
        else:
            _check_tensor(f"{name} of parameter {number}", value, param)


def _parameters(ours: Mapping[str, Any], saved: Any, expected: set[str]) -> list[int]:
    """The numbers of a group's parameters; also checks its settings, if the file has them."""
    if not isinstance(saved, Mapping) or not saved.keys() >= expected:
        raise MisfitError("has a group without parameters or without settings")
    for name, value in ours.items():
        if name != "params" and name in saved:
            _check_like(name, saved[name], value)
    numbers = saved["params"]
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        raise MisfitError("has no list of its parameters")
    if len(set(numbers)) != len(numbers) or len(numbers) != len(ours["params"]):
        raise MisfitError("has another number of parameters")
    return numbers


def _check_schedule(ours: Any, saved: Mapping[str, Any]) -> None:
    state = ours.state_dict()
    # Entries of a saved schedule replace attributes and could replace methods.
    if missing := state.keys() - saved.keys() - {"_is_initial"}:
        raise MisfitError(f"has no {', '.join(sorted(missing))}")
    if methods := [name for name in saved if callable(getattr(type(ours), str(name), None))]:
        raise MisfitError(f"is no schedule's state: it has {methods[0]}")
    for name in state.keys() & saved.keys():
        _check_like(name, saved[name], state[name])


def _check_like(name: str, saved: Any, ours: Any) -> None:
    """Checks that a saved value has the structure of ours: a number, a switch, or a list of the same length."""
    if isinstance(ours, bool) or ours is None:
        if not (saved is None or isinstance(saved, bool)):
            raise MisfitError(f"{name} is no switch")
    elif isinstance(ours, list | tuple):
        if not isinstance(saved, list | tuple) or len(saved) != len(ours):
            raise MisfitError(f"{name} is no list of {len(ours)}")
        for mine, theirs in zip(ours, saved, strict=True):
            _check_like(name, theirs, mine)
    else:
        _check_number(name, saved)


def _check_number(name: str, value: Any) -> None:
    try:
        check_finite(value)
    except MisfitError as error:
        raise MisfitError(f"{name} {error}") from None
    if value < 0:
        raise MisfitError(f"{name} is less than 0")


def check_finite(value: Any) -> None:
    """Checks that a value is a finite number of any sign.

    Raises:
        MisfitError: It is not.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise MisfitError("is no finite number")


def check_generators(states: Any) -> None:
    """Checks that random generators can be set to these states, by setting new generators to them.

    Raises:
        MisfitError: They cannot.
    """
    try:
        words, *rest = states["numpy"]
        np.random.RandomState().set_state(("MT19937", words.numpy().astype(np.uint32), *rest))
        if "python" in states:
            random.Random().setstate(states["python"])
        torch.Generator().set_state(states["torch"])
        if not all(isinstance(state, Tensor) and state.dtype == torch.uint8 for state in states["cuda"]):
            raise TypeError("states of GPUs")
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        raise MisfitError(f"hold no states of generators ({type(error).__name__})") from None


def check_history(history: Any) -> None:
    """Checks that this contains the metrics of single updates, by name.

    Raises:
        MisfitError: It does not.
    """
    if not isinstance(history, Mapping):
        raise MisfitError(f"is a {type(history).__name__}")
    for name, values in history.items():
        if not isinstance(name, str) or not isinstance(values, Tensor) or not values.ndim:
            raise MisfitError(f"{name} is no row of numbers")
        _check_tensor(name, values, torch.empty(values.shape))
