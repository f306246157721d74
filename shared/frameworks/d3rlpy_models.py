"""Models that d3rlpy has saved (`.pt` of its `save_model`), as checkpoints of ours.

Such a file holds networks and optimisers. It holds no settings, no statistics of states and no number of updates. Its
layers stand in the order of ours, so tensors are matched by their places, and their shapes are checked as any other's.
"""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from shared.frameworks.torch_parts import MisfitError

# Which networks each of its optimisers moves, in their order
_OPTIMIZERS = {
    "actor_optim": ("policy", "perturbation"),
    "critic_optim": ("q_funcs", "value_func"),
    "optim": ("q_funcs", "imitator"),
    "vae_optim": ("vae_encoder", "vae_decoder"),
    "temp_optim": ("log_temp",),
    "alpha_optim": ("log_alpha",),
}
# Its IQL holds a number from which a sigmoid makes the log standard deviation, between these.
_LOG_STD = (-5.0, 2.0)


class _Weight(NamedTuple):
    """A tensor of d3rlpy's, and what its optimiser remembers of it: nothing before the first step."""

    value: Tensor
    moments: Mapping[str, Tensor]


def is_model(content: Mapping[str, Any]) -> bool:
    """Whether a file's content is what d3rlpy writes."""
    return bool({"q_funcs", "imitator"} & content.keys()) and "algorithm" not in content


def translated(
    content: Mapping[str, Any], parts: Mapping[str, Any], names: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """The states of our parts by the file's keys, as a checkpoint of ours holds them, at update 0.

    Args:
        content: What d3rlpy has written, by key.
        parts: Our modules and optimisers by the keys of our checkpoints. A part that d3rlpy lacks stays as it is.
        names: For each of our modules, d3rlpy's keys of the networks that it consists of: `q_funcs`, or `q_funcs.0` for
            its first member.

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
    """Each network's own tensors, in order; a critic's are also found by the member's number."""
    moments: dict[tuple[str, int], Mapping[str, Tensor]] = {}
    own = {name: list(network.items()) for name, network in content.items() if "optim" not in network}
    for optimizer, networks in _OPTIMIZERS.items():
        if optimizer in content:
            found, stepped = content[optimizer]["optim"], [name for name in networks if name in own]
            if len(stepped) > 1:
                # The first layers of the last network may be the first one's: they stand in both, and are moved once.
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
    """How many tensors at the beginning of both networks are the same."""
    same = (torch.equal(one, other) for (_, one), (_, other) in zip(first, last, strict=False))
    return sum(takewhile(bool, same))


def _matched(name: str, part: nn.Module, weights: Sequence[_Weight]) -> dict[str, _Weight]:
    """A part's tensors by our names."""
    ours = part.state_dict()
    if len(weights) != len(ours):
        raise MisfitError(f"{name} has {len(weights)} tensors there and {len(ours)} here")
    return {key: _as_ours(key, weight) for key, weight in zip(ours, weights, strict=True)}


def _as_ours(key: str, weight: _Weight) -> _Weight:
    if not isinstance(weight.value, Tensor):
        return weight
    if key == "constant":
        # A single number has two axes there and none here.
        return _Weight(weight.value.squeeze(), {name: moment.squeeze() for name, moment in weight.moments.items()})
    if key != "log_std":
        return weight
    low, high = _LOG_STD
    # The moments of another number would be of no use.
    return _Weight(low + (high - low) * weight.value.flatten().sigmoid(), {})
