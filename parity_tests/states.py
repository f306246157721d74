"""Twins at the same weights: conversion between the two frameworks' states, and comparison of what they hold."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from torch import nn

from shared.jax_side import Network, params_from_torch, params_to_torch

Named = dict[str, np.ndarray]


def part_names(state: Any) -> list[str]:
    """The names of a JAX state's parts: networks, targets, temperatures and optimisers, without its static fields."""
    return [name for name, field in state.__dataclass_fields__.items() if field.metadata.get("pytree_node", True)]


def parameters(part: nn.Module | torch.Tensor) -> dict[str, torch.Tensor]:
    """The trained tensors of a torch part by name: of a module, or of a bare one (a temperature, say)."""
    return {"constant": part} if isinstance(part, torch.Tensor) else dict(part.named_parameters())


def named(part: Any) -> Named:
    """A part's numbers under PyTorch's names and in PyTorch's layout, whichever framework it comes from.

    Optimisers give their moments, `m/<parameter>` and `v/<parameter>`, and their number of steps.
    """
    if isinstance(part, nn.Module | torch.Tensor):
        # Copies: JAX may keep NumPy's memory as it is, and torch's optimisers write into theirs.
        return {name: value.detach().numpy().copy() for name, value in parameters(part).items()}
    if isinstance(part, Network):
        return params_to_torch(part.params)
    if isinstance(part, jax.Array):
        return {"constant": np.asarray(part)}
    if isinstance(part, torch.optim.Optimizer):
        raise TypeError("a torch optimiser does not know its parameters' names: use torch_moments")
    adam = adam_of(part)
    m, v = named(adam.mu), named(adam.nu)
    return {**_prefixed("m/", m), **_prefixed("v/", v), "steps": np.asarray(adam.count)}


def torch_moments(optimizer: torch.optim.Optimizer, part: nn.Module | torch.Tensor) -> Named:
    """The moments of a part's optimiser, as `named` gives those of an optax state; zeros before any step."""
    moments: Named = {"steps": np.asarray(0)}
    for name, parameter in parameters(part).items():
        state = optimizer.state.get(parameter, {})
        zeros = torch.zeros_like(parameter.detach())
        moments[f"m/{name}"] = state.get("exp_avg", zeros).numpy().copy()
        moments[f"v/{name}"] = state.get("exp_avg_sq", zeros).numpy().copy()
        moments["steps"] = np.asarray(int(state.get("step", 0)))
    return moments


def torch_part(trainer: Any, name: str) -> Named:
    """The part of a torch trainer that carries this name, as `named` gives it."""
    part = getattr(trainer, name)
    if isinstance(part, torch.optim.Optimizer):
        return torch_moments(part, getattr(trainer, name.removesuffix("_optimizer")))
    return named(part)


def to_jax(trainer: Any, like: Any) -> Any:
    """A JAX state with the structure of `like` that holds the trainer's weights, targets and moments."""
    return like.replace(**{name: _filled(torch_part(trainer, name), getattr(like, name)) for name in part_names(like)})


def _filled(values: Named, like: Any) -> Any:
    if isinstance(like, Network):
        return like.replace(params=params_from_torch(values, like.params))
    if isinstance(like, jax.Array):
        return jnp.asarray(values["constant"], like.dtype)
    adam = adam_of(like)
    m = {name.removeprefix("m/"): value for name, value in values.items() if name.startswith("m/")}
    v = {name.removeprefix("v/"): value for name, value in values.items() if name.startswith("v/")}
    return with_moments(like, _filled(m, adam.mu), _filled(v, adam.nu), values["steps"])


def with_moments(opt_state: optax.OptState, m: Any, v: Any, steps: np.ndarray) -> optax.OptState:
    """An optimiser's state with other moments, trees like those in it, after so many steps."""
    adam, count = adam_of(opt_state), jnp.asarray(steps, jnp.int32)
    moments = adam._replace(mu=m, nu=v)

    def fill(part: Any) -> Any:
        # A schedule in the same chain counts the same steps, in an array of its own: a donated state holds none twice.
        return (moments if part is adam else part)._replace(count=jnp.copy(count)) if _counts(part) else part

    return jax.tree.map(fill, opt_state, is_leaf=_counts)


def _counts(part: Any) -> bool:
    return "count" in getattr(part, "_fields", ())


def _is_adam(part: Any) -> bool:
    return isinstance(part, optax.ScaleByAdamState)


def adam_of(opt_state: optax.OptState) -> optax.ScaleByAdamState:
    """The one part of an optimiser's state that holds moments."""
    (adam,) = filter(_is_adam, jax.tree.leaves(opt_state, is_leaf=_is_adam))
    return adam


def _prefixed(prefix: str, values: Named) -> Named:
    return {prefix + name: value for name, value in values.items()}


def error(ours: np.ndarray, reference: np.ndarray, scale: float | None = None) -> float:
    """The largest difference, relative to `scale` or else to the reference's largest entry; inf for other shapes."""
    ours, reference = np.asarray(ours, np.float64), np.asarray(reference, np.float64)
    if ours.shape != reference.shape or not np.isfinite(ours).all():
        return np.inf
    difference = np.abs(ours - reference).max(initial=0.0)
    scale = np.abs(reference).max(initial=0.0) if scale is None else scale
    return float(difference / scale) if scale else float(difference)


def errors(ours: Mapping[str, Any], reference: Mapping[str, Any], together: bool = False) -> dict[str, float]:
    """The error of each entry; `together` measures all of them against the largest entry of any.

    A name that only one side has is an infinite error.
    """
    scale = max(np.abs(np.asarray(value)).max(initial=0.0) for value in reference.values()) if together else None
    common = ours.keys() & reference.keys()
    alone = ours.keys() ^ reference.keys()
    return {name: error(ours[name], reference[name], scale) for name in sorted(common)} | dict.fromkeys(alone, np.inf)
