"""The same optimiser in optax, from where PyTorch's stands."""

from typing import Any

import jax.numpy as jnp
import optax
from torch import nn, optim

# A layer's parameters: {"kernel": (3, 2), "bias": (2,)}
Params = dict[str, Any]
# optax's default epsilon, 1e-8, is PyTorch's.
ADAM = optax.adam(1e-3)


def transfer(layer: nn.Linear, optimizer: optim.Adam) -> optax.OptState:
    """PyTorch's moments as the state of `ADAM`.

    PyTorch keeps them in `optimizer.state[parameter]`: `exp_avg`, `exp_avg_sq` and `step`.
    """
    moments = {"kernel": optimizer.state[layer.weight], "bias": optimizer.state[layer.bias]}

    def read(name: str) -> Params:
        # The moments of a transposed kernel are transposed.
        return {leaf: jnp.asarray(values[name].numpy().T) for leaf, values in moments.items()}

    count = jnp.asarray(int(moments["bias"]["step"]), jnp.int32)
    adam, learning_rate = ADAM.init(read("exp_avg"))
    return adam._replace(mu=read("exp_avg"), nu=read("exp_avg_sq"), count=count), learning_rate


def step(params: Params, gradient: Params, opt_state: optax.OptState) -> tuple[Params, optax.OptState]:
    """One step of Adam."""
    change, opt_state = ADAM.update(gradient, opt_state)
    return optax.apply_updates(params, change), opt_state
