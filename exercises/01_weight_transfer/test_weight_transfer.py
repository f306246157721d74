"""Both networks at the same weights: the same shapes, the same outputs."""

from types import ModuleType

import jax
import numpy as np
import torch


def weights(fragment: ModuleType) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in fragment.network().state_dict().items()}


def test_shapes_are_those_of_the_flax_network(exercise: ModuleType, fragment: ModuleType) -> None:
    """As `Net().init` makes them."""
    expected = exercise.Net().init(jax.random.key(0), np.zeros((1, 8)))["params"]
    found = exercise.transfer(weights(fragment))
    assert jax.tree.map(np.shape, found) == jax.tree.map(np.shape, expected), "shapes differ from those of Net().init"


def test_the_hidden_layer_computes_what_pytorch_s_does(exercise: ModuleType, fragment: ModuleType) -> None:
    """Its kernel is square, so that shapes say nothing about it."""
    inputs = np.random.default_rng(0).normal(size=(5, 8))
    with torch.no_grad():
        reference = fragment.network()[0](torch.as_tensor(inputs)).numpy()
    layer = exercise.transfer(weights(fragment))["Dense_0"]
    ours = inputs @ layer["kernel"] + layer["bias"]
    np.testing.assert_allclose(ours, reference, rtol=1e-12, err_msg="the hidden layer's outputs differ")


def test_the_network_computes_what_pytorch_s_does(exercise: ModuleType, fragment: ModuleType) -> None:
    """From its inputs to its outputs."""
    inputs = np.random.default_rng(1).normal(size=(5, 8))
    with torch.no_grad():
        reference = fragment.network()(torch.as_tensor(inputs)).numpy()
    ours = exercise.Net().apply({"params": exercise.transfer(weights(fragment))}, inputs)
    np.testing.assert_allclose(ours, reference, rtol=1e-12, err_msg="the network's outputs differ")
