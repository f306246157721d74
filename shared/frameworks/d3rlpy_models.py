"""Converts models that d3rlpy has saved (`.pt` of its `save_model`) to our checkpoints.

Such a file contains networks and optimisers, but no settings, no statistics of states and no number of updates. Its
layers have the same order as ours, so tensors are matched by position, and their shapes are checked as usual.
"""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from shared.frameworks.torch_parts import MisfitError

# The networks that each of d3rlpy's optimisers updates, in order
_OPTIMIZERS = {
    "actor_optim": ("policy", "perturbation"),
    "critic_optim": ("q_funcs", "value_func"),
    "optim": ("q_funcs", "imitator"),
    "vae_optim": ("vae_encoder", "vae_decoder"),
    "temp_optim": ("log_temp",),
    "alpha_optim": ("log_alpha",),
}
# d3rlpy's IQL maps a parameter to the log standard deviation between these bounds, by a sigmoid.
_LOG_STD = (-5.0, 2.0)


class _Weight(NamedTuple):
    """One of d3rlpy's tensors, and its optimiser's moments, which are empty before the first step."""

    value: Tensor
    moments: Mapping[str, Tensor]


def is_model(content: Mapping[str, Any]) -> bool:
    """Whether d3rlpy wrote a file with these contents."""
    return bool({"q_funcs", "imitator"} & content.keys()) and "algorithm" not in content


def translated(
    content: Mapping[str, Any], parts: Mapping[str, Any], names: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """Converts d3rlpy's networks and optimisers to the states of our parts, as a checkpoint after 0 updates has them.

    Args:
        content: The contents of d3rlpy's file, by key.
        parts: Our modules and optimisers by the keys of our checkpoints. Parts that d3rlpy lacks stay unchanged.
        names: For each of our modules, d3rlpy's keys of the networks that it consists of: `q_funcs`, or `q_funcs.0` for
            the first critic alone.

    Raises:
        MisfitError: The file is damaged, or its networks have other layers.
    """
    try:
        weights = _weights(content)
    except (AttributeError, KeyError, TypeError, IndexError) as error:
        raise MisfitError(f"it is not as d3rlpy writes it ({type(error).__name__})") from None
    matched = {
        name: _matched(name, parts[name], [weight for key in keys for weight in weights.get(key, [])])
        for name, keys in names.items()
    }
    states: dict[str, Any] = {name: part.state_dict() for name, part in parts.items()}
    moments: dict[int, Mapping[str, Tensor]] = {}
    for name, found in matched.items():
        states[name] |= {key: weight.value for key, weight in found.items()}
        moments |= {id(tensor): found[key].moments for key, tensor in parts[name].named_parameters() if key in found}
    for name, part in parts.items():
        if isinstance(part, torch.optim.Optimizer):
            parameters = [parameter for group in part.param_groups for parameter in group["params"]]
            known = {number: moments.get(id(parameter), {}) for number, parameter in enumerate(parameters)}
            states[name]["state"] = {number: found for number, found in known.items() if found}
    return {**states, "total_it": 0}


def _weights(content: Mapping[str, Any]) -> dict[str, list[_Weight]]:
    """The tensors of each network, in order; a single critic's tensors are also found under its number."""
    moments: dict[tuple[str, int], Mapping[str, Tensor]] = {}
    own = {name: list(network.items()) for name, network in content.items() if "optim" not in network}
    for optimizer, networks in _OPTIMIZERS.items():
        if optimizer in content:
            found, stepped = content[optimizer]["optim"], [name for name in networks if name in own]
            if len(stepped) > 1:
                # The last network may begin with layers of the first: both contain them, but one optimiser step moves
                # them once.
                own[stepped[-1]] = own[stepped[-1]][_shared(own[stepped[0]], own[stepped[-1]]) :]
            places = [(name, place) for name in stepped for place in range(len(own[name]))]
            moments |= {places[number]: state for number, state in found["state"].items()}
    weights: dict[str, list[_Weight]] = {}
    for name, network in own.items():
        for place, (key, value) in enumerate(network):
            weight = _Weight(value, moments.get((name, place), {}))
            weights.setdefault(name, []).append(weight)
            if (member := key.partition(".")[0]).isdigit():
                weights.setdefault(f"{name}.{member}", []).append(weight)
    return weights


def _shared(first: Sequence[tuple[str, Tensor]], last: Sequence[tuple[str, Tensor]]) -> int:
    """The number of equal tensors at the beginning of both networks."""
    same = (torch.equal(one, other) for (_, one), (_, other) in zip(first, last, strict=False))
    return sum(takewhile(bool, same))


def _matched(name: str, part: nn.Module, weights: Sequence[_Weight]) -> dict[str, _Weight]:
    """Matches d3rlpy's tensors with a part's tensors; returns them by our names."""
    ours = part.state_dict()
    if len(weights) != len(ours):
        raise MisfitError(f"{name} has {len(weights)} tensors there and {len(ours)} here")
    return {key: _as_ours(key, weight) for key, weight in zip(ours, weights, strict=True)}


def _as_ours(key: str, weight: _Weight) -> _Weight:
    if not isinstance(weight.value, Tensor):
        return weight
    if key == "constant":
        # A single number has two axes in d3rlpy and none here.
        return _Weight(weight.value.squeeze(), {name: moment.squeeze() for name, moment in weight.moments.items()})
    if key != "log_std":
        return weight
    low, high = _LOG_STD
    # The optimiser's moments for d3rlpy's parameter do not apply to ours.
    return _Weight(low + (high - low) * weight.value.flatten().sigmoid(), {})
