"""Implicit quantiles: both frameworks' layer compared with the paper's formula, number by number."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from shared.frameworks.jax_layers import ImplicitQuantiles as JaxQuantiles
from shared.frameworks.jax_layers import Linear, Network
from shared.frameworks.torch_layers import ImplicitQuantiles as TorchQuantiles

STATE_DIM, WIDTH, ACTION_DIM, COSINES, ROWS, GREEDY = 3, 5, 2, 4, 6, 7


def by_hand(weights: dict[str, np.ndarray], states: np.ndarray, fractions: np.ndarray) -> np.ndarray:
    """Quantiles (B, A, K): each fraction's cosines pi t, 2 pi t, ... weight the features of its row."""
    found = np.zeros((len(states), ACTION_DIM, fractions.shape[1]))
    for row, state in enumerate(states):
        features = state @ weights["hidden"] + weights["hidden_bias"]
        for place, fraction in enumerate(fractions[row]):
            cosines = np.array([math.cos(math.pi * number * fraction) for number in range(1, COSINES + 1)])
            gates = np.maximum(cosines @ weights["embedding"] + weights["embedding_bias"], 0)
            found[row, :, place] = (features * gates) @ weights["head"] + weights["head_bias"]
    return found


def in_torch(weights: dict[str, np.ndarray], *inputs: np.ndarray) -> np.ndarray:
    """The PyTorch layer's quantiles with these weights."""
    layer = TorchQuantiles(nn.Linear(STATE_DIM, WIDTH), WIDTH, ACTION_DIM, COSINES, GREEDY)
    for name in ("hidden", "embedding", "head"):
        part: Any = getattr(layer, name)
        part.weight.data = torch.as_tensor(weights[name].T)
        part.bias.data = torch.as_tensor(weights[f"{name}_bias"])
    return layer(*map(torch.as_tensor, inputs)).detach().numpy()


def in_jax(weights: dict[str, np.ndarray], *inputs: np.ndarray) -> np.ndarray:
    """The JAX layer's quantiles with these weights."""
    params = {
        name: {"kernel": jnp.asarray(weights[name]), "bias": jnp.asarray(weights[f"{name}_bias"])}
        for name in ("hidden", "embedding", "head")
    }
    return np.asarray(Network(params, JaxQuantiles(Linear(WIDTH), ACTION_DIM, COSINES, GREEDY))(*inputs))


@pytest.mark.thorough
@pytest.mark.parametrize("layer", [in_torch, in_jax])
def test_quantiles_are_those_of_the_formula(layer: Any) -> None:
    """At each row's own fractions, including both ends, and at even ones if none are given."""
    rng = np.random.default_rng(0)
    sizes = {"hidden": (STATE_DIM, WIDTH), "embedding": (COSINES, WIDTH), "head": (WIDTH, ACTION_DIM)}
    weights = {name: rng.normal(size=size) for name, size in sizes.items()}
    weights |= {f"{name}_bias": rng.normal(size=size[1]) for name, size in sizes.items()}
    states, fractions = rng.normal(size=(ROWS, STATE_DIM)), rng.random((ROWS, 3))
    fractions[0, :2] = 0.0, 1.0
    even = np.tile(np.arange(GREEDY) / (GREEDY - 1), (ROWS, 1))
    with jax.enable_x64(True):
        np.testing.assert_allclose(layer(weights, states, fractions), by_hand(weights, states, fractions), rtol=1e-12)
        np.testing.assert_allclose(layer(weights, states), by_hand(weights, states, even), rtol=1e-12)
