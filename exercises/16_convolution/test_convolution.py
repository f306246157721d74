"""Both networks at the same weights: the padding, the kernel, the flattened features, and all together."""

from types import ModuleType
from typing import Any

import jax
import numpy as np
import torch
from torch.nn.functional import conv2d

RNG = np.random.default_rng(0)
IMAGES, MAPS = RNG.normal(size=(5, 3, 6, 8)), RNG.normal(size=(5, 4, 3, 4))


def weights(fragment: ModuleType) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in fragment.network().state_dict().items()}


def channels_last(images: np.ndarray) -> np.ndarray:
    return images.transpose(0, 2, 3, 1)


def applied(exercise: ModuleType, params: Any, inputs: np.ndarray, method: str) -> np.ndarray:
    return np.asarray(exercise.Net().apply({"params": params}, channels_last(inputs), method=method))


def test_shapes_are_those_of_the_flax_network(exercise: ModuleType, fragment: ModuleType) -> None:
    """As `Net().init` makes them."""
    expected = exercise.Net().init(jax.random.key(0), channels_last(IMAGES))["params"]
    found = exercise.transfer(weights(fragment))
    assert jax.tree.map(np.shape, found) == jax.tree.map(np.shape, expected), "shapes differ from those of Net().init"


def test_the_padding_is_pytorch_s(exercise: ModuleType, fragment: ModuleType) -> None:
    """All weights of the convolution are 1, so that their order is of no account."""
    network = fragment.network()
    network[0].weight.data.fill_(1.0)
    with torch.no_grad():
        reference = channels_last(network[:2](torch.as_tensor(IMAGES)).numpy())
    params = exercise.transfer({name: value.numpy() for name, value in network.state_dict().items()})
    wrong = "the feature maps of a kernel of ones differ"
    np.testing.assert_allclose(applied(exercise, params, IMAGES, "maps"), reference, rtol=1e-10, err_msg=wrong)


def test_the_kernel_is_pytorch_s(exercise: ModuleType, fragment: ModuleType) -> None:
    """Without any padding. The kernel is square, so that shapes say nothing about it."""
    found = weights(fragment)
    reference = conv2d(torch.as_tensor(IMAGES), torch.as_tensor(found["0.weight"])).numpy()
    kernel, layout = exercise.transfer(found)["conv"]["kernel"], ("NHWC", "HWIO", "NHWC")
    ours = jax.lax.conv_general_dilated(channels_last(IMAGES), kernel, (1, 1), "VALID", dimension_numbers=layout)
    wrong = "the kernel's height and width are exchanged, or its channels"
    np.testing.assert_allclose(ours, channels_last(reference), rtol=1e-10, err_msg=wrong)


def test_the_head_reads_the_features_that_it_learnt_on(exercise: ModuleType, fragment: ModuleType) -> None:
    """From equal feature maps: either the features or the head's weights stand in the other's order."""
    with torch.no_grad():
        reference = fragment.network()[2:](torch.as_tensor(MAPS)).numpy()
    params = exercise.transfer(weights(fragment))
    wrong = "the features are flattened in another order than the head's weights"
    np.testing.assert_allclose(applied(exercise, params, MAPS, "outputs"), reference, rtol=1e-10, err_msg=wrong)


def test_the_network_computes_what_pytorch_s_does(exercise: ModuleType, fragment: ModuleType) -> None:
    """From its images to its outputs."""
    with torch.no_grad():
        reference = fragment.network()(torch.as_tensor(IMAGES)).numpy()
    params = exercise.transfer(weights(fragment))
    wrong = "the network's outputs differ"
    np.testing.assert_allclose(applied(exercise, params, IMAGES, "__call__"), reference, rtol=1e-10, err_msg=wrong)
