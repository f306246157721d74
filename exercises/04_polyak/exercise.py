"""A target network that follows its network, in JAX."""

from typing import Any

# Parameters by layer: {"Dense_0": {"kernel": ..., "bias": ...}, ...}
Params = dict[str, dict[str, Any]]


def make_target(params: Params) -> Params:
    """A copy of the parameters."""
    return params


def soft_update(target: Params, params: Params, tau: float) -> Params:
    """The target, a step of size tau nearer to the parameters."""
    for layer in target:
        target[layer]["kernel"] = tau * target[layer]["kernel"] + (1.0 - tau) * params[layer]["kernel"]
    return target
