"""The same optimiser in optax, from where PyTorch's stands."""

from typing import Any

import jax.numpy as jnp
import optax
from torch import nn, optim

# A layer's parameters: {"kernel": (3, 2), "bias": (2,)}
Params = dict[str, Any]
ADAM = optax.adam(1e-3, eps=1e-7)


def transfer(layer: nn.Linear, optimizer: optim.Adam) -> optax.OptState:
    """PyTorch's moments as the state of `ADAM`.

    PyTorch keeps them in `optimizer.state[parameter]`: `exp_avg`, `exp_avg_sq` and `step`.
    """
    moments = {"kernel": optimizer.state[layer.weight], "bias": optimizer.state[layer.bias]}
    mu = {
        "kernel": jnp.asarray(moments["kernel"]["exp_avg"].numpy().T),
        "bias": jnp.asarray(moments["bias"]["exp_avg"].numpy()),
    }
    # TODO: the second moments and the number of steps
    adam, learning_rate = ADAM.init(mu)
    return adam._replace(mu=mu), learning_rate


def step(params: Params, gradient: Params, opt_state: optax.OptState) -> tuple[Params, optax.OptState]:
    """One step of Adam."""
    change, opt_state = ADAM.update(gradient, opt_state)
    return optax.apply_updates(params, change), opt_state
