"""A small behaviour cloning, on every tenth row of the bundled dataset: what a trap does to a training."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.nn.initializers import Initializer

from shared import names
from shared.data import transitions
from shared.data.transitions import Batch
from shared.frameworks.jax_layers import Linear

UPDATES = 300
BATCH_SIZE = 64
WIDTH = 32
ADAM = optax.adam(1e-3)

Params = list[dict[str, Array]]
Loss = Callable[[Params, Any], Array]


@cache
def _rows() -> Batch:
    raw = transitions.read_hdf5(names.dataset_path("mini/hopper-medium-expert"))
    learnt, _, _ = transitions.normalise_states(transitions.extract_transitions(raw))
    return Batch(*(column[::10] for column in learnt))


def rows() -> Batch:
    """The rows learnt from, in JAX's default float type; states (N, 11), actions (N, 3)."""
    return Batch(*(jnp.asarray(column, float) for column in _rows()))


def batches(seed: int = 0) -> Batch:
    """The batches of all updates, (UPDATES, BATCH_SIZE, ...) each column."""
    indices = np.random.default_rng(seed).integers(len(_rows().rewards), size=(UPDATES, BATCH_SIZE))
    return Batch(*(column[indices] for column in rows()))


@partial(jax.jit, static_argnums=(0, 1, 2), static_argnames=("sizes", "kernel_init", "bias_init"))
def fresh(
    sizes: tuple[int, ...] = (11, WIDTH, 3),
    kernel_init: Initializer = Linear.kernel_init,
    bias_init: Initializer | None = None,
) -> Params:
    """A fresh network's layers, with PyTorch's initialisation unless told otherwise."""
    layers = [Linear(size, kernel_init, bias_init) for size in sizes[1:]]
    keys = jax.random.split(jax.random.key(0), len(layers))
    return [
        layer.init(key, jnp.zeros((1, size)))["params"]
        for layer, key, size in zip(layers, keys, sizes[:-1], strict=True)
    ]


def network(
    params: Params,
    inputs: Array,
    activation: Callable[[Array], Array] = jax.nn.relu,
    product: Callable[[Array, Array], Array] = jnp.matmul,
) -> Array:
    """Layers with an activation between them: (B, in) to (B, out)."""
    *hidden, last = params
    for layer in hidden:
        inputs = activation(product(inputs, layer["kernel"]) + layer["bias"])
    return product(inputs, last["kernel"]) + last["bias"]


def squared_error(params: Params, batch: Batch, **settings: Any) -> Array:
    """Behaviour cloning's loss: the mean squared distance between the policy's actions and the data's."""
    actions = jnp.tanh(network(params, batch.observations, **settings))
    assert actions.shape == batch.actions.shape
    return jnp.square(actions - batch.actions).mean()


@partial(jax.jit, static_argnames=("loss", "optimizer"))
def fit(params: Any, inputs: Any, loss: Loss, optimizer: optax.GradientTransformation = ADAM) -> Any:
    """The parameters after a step of the optimiser down the loss for each of the inputs."""

    def update(state: tuple, batch: Any) -> tuple[tuple, None]:
        params, moments = state
        change, moments = optimizer.update(jax.grad(loss)(params, batch), moments, params)
        return (optax.apply_updates(params, change), moments), None

    (params, _), _ = jax.lax.scan(update, (params, optimizer.init(params)), inputs)
    return params


def cloned(
    loss: Callable[..., Array] = squared_error,
    params: Params | None = None,
    inputs: Any = None,
    optimizer: optax.GradientTransformation = ADAM,
    **switches: Any,
) -> float:
    """The squared error over all rows after a training; `switches` are those of `network`, for loss and error alike."""
    start, inputs = fresh() if params is None else params, batches() if inputs is None else inputs
    # The bare function where it can be: `fit` is compiled once for each.
    trained = fit(start, inputs, partial(loss, **switches) if switches else loss, optimizer)
    return float(squared_error(trained, rows(), **switches))
