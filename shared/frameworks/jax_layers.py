"""PyTorch's layers, initialisers and corner cases in JAX, and a network that contains its weights."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeGuard

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from jax import Array
from jax.nn.initializers import Initializer, variance_scaling

Params = Mapping[str, Any]


def torch_bias(fan_in: int) -> Callable[..., Array]:
    """PyTorch's default initialiser for a bias: U(-1/sqrt(fan_in), 1/sqrt(fan_in)), with its layer's fan-in."""

    def init(key: Array, shape: Sequence[int], dtype: Any = None) -> Array:
        return jax.random.uniform(key, shape, dtype, -(fan_in**-0.5), fan_in**-0.5)

    return init


def xavier_uniform(gain: float) -> Initializer:
    """`torch.nn.init.xavier_uniform_`: U(-b, b) with b = gain * sqrt(6 / (fan_in + fan_out))."""
    return variance_scaling(gain**2, "fan_avg", "uniform")


def linear(inputs: Array, kernel: Array, bias: Array) -> Array:
    """Maps (..., in) to (..., out) by a kernel (in, out) and a bias (out,).

    Leading axes are flattened for the product, because on CPUs XLA multiplies matrices faster than arrays of three
    axes.
    """
    rows = inputs.reshape(-1, inputs.shape[-1])
    return (rows @ kernel).reshape(*inputs.shape[:-1], kernel.shape[-1]) + bias


class Linear(nn.Module):
    """`torch.nn.Linear` with PyTorch's initialisation; the kernel is (in, out), PyTorch's weight transposed.

    `bias_init=None` is PyTorch's default, which depends on the fan-in; flax does not pass this to a bias initialiser.
    """

    features: int
    # U(-1/sqrt(fan_in), 1/sqrt(fan_in)): PyTorch's Kaiming-uniform with a = sqrt(5)
    kernel_init: Initializer = variance_scaling(1 / 3, "fan_in", "uniform")
    bias_init: Initializer | None = None

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """Maps (..., in) to (..., features)."""
        fan_in = inputs.shape[-1]
        kernel = self.param("kernel", self.kernel_init, (fan_in, self.features), inputs.dtype)
        bias = self.param("bias", self.bias_init or torch_bias(fan_in), (self.features,), inputs.dtype)
        return linear(inputs, kernel, bias)


class ImplicitQuantiles(nn.Module):
    """Quantiles of each action's return at any fraction: a fraction's cosines weigh the features of the state.

    The cosines start at frequency 1, as in d3rlpy. The paper's also include frequency 0, which acts as a bias.

    Dabney et al., Implicit Quantile Networks for Distributional Reinforcement Learning, 2018,
    https://arxiv.org/abs/1806.06923
    """

    hidden: nn.Module
    action_dim: int
    embed_size: int
    # Number of fractions if none are given
    n_greedy: int

    @nn.compact
    def __call__(self, observations: Array, fractions: Array | None = None) -> Array:
        """The quantiles (B, A, K) in observations (B, S) at fractions (B, K), by default at even ones from 0 to 1."""
        features = self.hidden(observations)
        if fractions is None:
            fractions = jnp.linspace(0.0, 1.0, self.n_greedy, dtype=features.dtype)
        frequencies = jnp.pi * jnp.arange(1, self.embed_size + 1, dtype=features.dtype)
        embedding = Linear(features.shape[-1], name="embedding")
        weights = nn.relu(embedding(jnp.cos(fractions[..., None] * frequencies)))
        return Linear(self.action_dim, name="head")(features[:, None] * weights).swapaxes(1, 2)


class Scalar(nn.Module):
    """A single trainable number."""

    value: float

    @nn.compact
    def __call__(self) -> Array:
        """The number, as an array without axes."""
        return self.param("constant", lambda _: jnp.asarray(self.value, dtype=float))


class Network(struct.PyTreeNode):
    """A flax module together with its weights: a pytree that can be called, differentiated and averaged."""

    params: Params
    module: nn.Module = struct.field(pytree_node=False)

    @classmethod
    def create(cls, module: nn.Module, key: Array, *inputs: Any) -> Self:
        """Initialises the weights for inputs of these shapes."""
        return cls(module.init(key, *inputs)["params"], module)

    def __call__(self, *inputs: Any) -> Any:
        """Applies the module."""
        return self.module.apply({"params": self.params}, *inputs)


def pick(actions: Array, chosen: Array) -> Array:
    """Selects in each row of the actions (B, n, A) the one at index `chosen` (B,); returns (B, A)."""
    return jnp.take_along_axis(actions, chosen[:, None, None], axis=1).squeeze(1)


# ---- dropout -------------------------------------------------------------------------------------------------------


def is_key(dropout: Any) -> TypeGuard[Array]:
    """Whether noise contains a random key instead of the numbers drawn from it."""
    return isinstance(dropout, Array) and jnp.issubdtype(dropout.dtype, jax.dtypes.prng_key)


def dropout_mask(key: Array, rate: float, shape: Sequence[int]) -> Array:
    """A mask to multiply by: 0 with probability `rate`, else 1 / (1 - rate)."""
    return jax.random.bernoulli(key, 1.0 - rate, shape) / (1.0 - rate)


# ---- PyTorch's corner cases ----------------------------------------------------------------------------------------


def clamp(inputs: Array, low: float, high: float) -> Array:
    """`torch.clamp`: its gradient is 1 even at the bounds, whereas `jnp.clip`'s is one half."""
    return jnp.where(inputs < low, low, jnp.where(inputs > high, high, inputs))


def softplus(inputs: Array) -> Array:
    """`torch.nn.functional.softplus`: the identity above 20, where ln(1 + e^x) still differs by 2e-9."""
    return jnp.where(inputs > 20.0, inputs, jax.nn.softplus(inputs))
