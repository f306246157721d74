"""Encoders of images: equal forward and backward passes in both frameworks, and sizes of fresh weights."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen as nn
from jax import Array

from parity_tests.engine.interpreter import interpreted
from parity_tests.engine.precision import both_in
from parity_tests.errors import error
from shared.errors import InputError
from shared.frameworks import jax_encoders, torch_encoders
from shared.frameworks.jax_checkpoints import params_from_torch, params_to_torch
from shared.frameworks.jax_layers import Network
from shared.runs.encoders import ENCODERS, NO_ENCODER, Impala, ResNet, features

# Not square, and not divisible by the strides; where images are pooled, one side is even at first and one odd
SHAPES = {"nature": (3, 55, 45), "minatar": (3, 8, 6), "small impala": (3, 14, 11), "small resnet": (3, 27, 22)}
ROWS = 5


@pytest.fixture(autouse=True)
def small_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Residual networks with few layers, as full-size ones compile slowly; groups contain several channels."""
    monkeypatch.setitem(ENCODERS, "small impala", Impala(channels=(8, 12), blocks=2))
    monkeypatch.setitem(ENCODERS, "small resnet", ResNet(width=16, units=(1, 2), groups=8))


def images(encoder: str) -> np.ndarray:
    """Random bytes, including a black and a white image."""
    found = np.random.default_rng(0).integers(0, 256, (ROWS, *SHAPES[encoder]), dtype=np.uint8)
    found[0], found[1] = 0, 255
    return found


def reference(encoder: str) -> torch.nn.Sequential:
    """PyTorch's layers with weights close to fresh ones."""
    torch.manual_seed(0)
    layers, width = torch_encoders.convolutions(encoder, SHAPES[encoder])
    network = torch.nn.Sequential(*layers)
    with torch.no_grad():
        for parameter in network.parameters():  # biases of 0 and scales of 1 would hide mistakes
            parameter += 0.1 * torch.randn_like(parameter)
    assert network(torch.as_tensor(images(encoder))).shape == (ROWS, width)
    return network


def in_jax(network: torch.nn.Sequential, encoder: str, layers: Sequence[Callable]) -> Network:
    """JAX's layers with the same weights."""
    module = nn.Sequential(layers)
    like = jax.eval_shape(lambda key: Network.create(module, key, images(encoder)).params, jax.random.key(0))
    return Network(params_from_torch(arrays(network.named_parameters()), like), module)


def arrays(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, np.ndarray]:
    """Tensors by name, as NumPy arrays."""
    return {name: tensor.detach().numpy() for name, tensor in tensors}


@pytest.mark.parametrize("encoder", SHAPES)
def test_encoders_agree(encoder: str) -> None:
    """Outputs and gradients, up to rounding."""
    with both_in("float64"):
        network, shown = reference(encoder), images(encoder)
        expected = network(torch.as_tensor(shown))
        weights = torch.as_tensor(np.random.default_rng(1).normal(size=expected.shape), dtype=expected.dtype)
        names, parameters = zip(*network.named_parameters(), strict=True)
        gradients = torch.autograd.grad((weights * torch.tanh(expected)).sum(), parameters)

        @interpreted
        @partial(jax.value_and_grad, has_aux=True)
        def loss(ours: Network) -> tuple[Array, Array]:
            output = ours(shown)
            return (weights.numpy() * jnp.tanh(output)).sum(), output

        ours = in_jax(network, encoder, jax_encoders.convolutions(encoder))
        (_, output), gradient = loss(ours)
        assert error(output, expected.detach()) <= 1e-12
        found = params_to_torch(gradient.params)
        for name, value in arrays(zip(names, gradients, strict=True)).items():
            assert error(found[name], value) <= 1e-10, name


LAYERS = {
    # PyTorch's own initialisation, whose biases are not 0
    "nature": (lambda: torch.nn.Conv2d(16, 48, 3), lambda: jax_encoders.Conv(48, 3), (144**-0.5, (144 * 3) ** -0.5)),
    # Glorot's uniform initialisation
    "impala": (
        lambda: torch_encoders.Same(16, 48),
        lambda: jax_encoders.same(48),
        ((6 / (144 + 432)) ** 0.5, (2 / (144 + 432)) ** 0.5),
    ),
    # LeCun's normal initialisation, truncated at two deviations and widened to variance 1 / fan-in
    "resnet": (
        lambda: torch_encoders.Standardised(16, 48, 3),
        lambda: jax_encoders.Standardised(48, 3),
        (2 / 0.8796 / 12, 1 / 12),
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("encoder", LAYERS)
def test_fresh_weights(encoder: str) -> None:
    """Maximum and deviation of an encoder's kernels, and its biases."""
    theirs, ours, (greatest, deviation) = LAYERS[encoder]
    torch.manual_seed(0)
    params = ours().init(jax.random.key(0), np.zeros((1, 16, 5, 5), np.float32))["params"]
    for weights in (arrays(theirs().named_parameters()), params_to_torch(params)):
        assert 0.97 * greatest < np.abs(weights["weight"]).max() <= 1.0001 * greatest
        assert abs(weights["weight"].std() / deviation - 1.0) < 0.03
        assert ("bias" in weights) == (encoder != "resnet")
        if "bias" in weights:
            assert 0.9 * greatest * (encoder == "nature") <= np.abs(weights["bias"]).max() <= greatest
            assert weights["bias"].any() == (encoder == "nature")
    norm = jax_encoders.GroupNorm(4).init(jax.random.key(0), np.zeros((1, 16, 5, 5), np.float32))["params"]
    assert (norm["scale"].tolist(), norm["bias"].tolist()) == ([1.0] * 16, [0.0] * 16)


def flaxs_own(encoder: str, weights: dict[str, np.ndarray], shown: np.ndarray) -> np.ndarray:
    """jaxrl_m's network, made of flax's own layers, which expect channels last; features in the order of ours."""
    convolution, group_norm = {"use_bias": False}, {"num_groups": 8, "epsilon": 1e-5}

    def apply(layer: nn.Module, name: str, x: Any, kernel: np.ndarray | None = None) -> Any:
        weight = weights[f"{name}.weight"] if kernel is None else kernel
        own = {"kernel": weight.transpose(2, 3, 1, 0)} if weight.ndim == 4 else {"scale": weight}
        bias = {"bias": weights[f"{name}.bias"]} if f"{name}.bias" in weights else {}
        return layer.apply({"params": {**own, **bias}}, x)

    def standardised(name: str, x: Any, stride: int = 1) -> Any:
        kernel = weights[f"{name}.weight"]
        outputs, _, side, _ = kernel.shape
        flat = kernel.reshape(outputs, -1)
        flat = (flat - flat.mean(1, keepdims=True)) / np.sqrt(flat.var(1, keepdims=True) + 1e-10)
        layer = nn.Conv(outputs, (side, side), stride, [(side // 2, side // 2)] * 2, **convolution)
        return apply(layer, name, x, flat.reshape(kernel.shape))

    def normalised(name: str, x: Any) -> Any:
        return nn.relu(apply(nn.GroupNorm(**group_norm), name, x))

    x = jnp.asarray(shown, float).transpose(0, 2, 3, 1) / 255
    if encoder == "small impala":
        place = 1
        for channels in (8, 12):
            x = apply(nn.Conv(channels, (3, 3)), f"{place}", x)
            x, place = nn.max_pool(x, (3, 3), (2, 2), "SAME"), place + 2
            for _ in range(2):
                inner = apply(nn.Conv(channels, (3, 3)), f"{place}.convolved.1", nn.relu(x))
                x, place = x + apply(nn.Conv(channels, (3, 3)), f"{place}.convolved.3", nn.relu(inner)), place + 1
        return np.asarray(nn.relu(x).transpose(0, 3, 1, 2).reshape(len(x), -1))
    x = nn.max_pool(standardised("1", x, 2), (3, 3), (2, 2), [(1, 1), (1, 1)])
    for place, stride in ((3, 1), (4, 2), (5, 1)):
        before = normalised(f"{place}.norm", x)
        residual = standardised(f"{place}.projection", before, stride) if place != 5 else x
        x = normalised(f"{place}.convolved.1", standardised(f"{place}.convolved.0", before))
        x = normalised(f"{place}.convolved.4", standardised(f"{place}.convolved.3", x, stride))
        x = residual + standardised(f"{place}.convolved.6", x)
    return np.asarray(normalised("6", x).mean((1, 2)))


@pytest.mark.thorough
@pytest.mark.parametrize("encoder", ["small impala", "small resnet"])
def test_residual_networks_are_jaxrl_ms(encoder: str) -> None:
    """A second derivation, from flax's own layers with channels last."""
    with both_in("float64"):
        network, shown = reference(encoder), images(encoder)
        derived = flaxs_own(encoder, arrays(network.named_parameters()), shown)
        assert error(network(torch.as_tensor(shown)).detach(), derived) <= 1e-12


@pytest.mark.parametrize(
    ("encoder", "shape", "width", "weights"),
    [
        ("impala", (3, 64, 64), 2048, 97_600),
        ("impala", (4, 84, 84), 3872, 97_744),
        ("resnet", (3, 64, 64), 2048, 13_938_496),
    ],
)
def test_sizes_are_jaxrl_ms(encoder: str, shape: tuple[int, int, int], width: int, weights: int) -> None:
    """The numbers of features and weights of its networks with these names, counted there."""
    with torch.device("meta"):  # shapes alone
        layers, found = torch_encoders.convolutions(encoder, shape)
    parameters = list(torch.nn.Sequential(*layers).parameters())
    module, shown = nn.Sequential(jax_encoders.convolutions(encoder)), np.zeros((1, *shape), np.uint8)
    output, variables = jax.eval_shape(lambda key: module.init_with_output(key, shown), jax.random.key(0))
    assert (features(encoder, shape), found, output.shape) == (width, width, (1, width))
    sizes = [sorted(map(prod, (each.shape for each in found))) for found in (jax.tree.leaves(variables), parameters)]
    assert sizes[0] == sizes[1]
    assert sum(sizes[0]) == weights


OFFSETS = np.array([[0, 4], [2, 2], [4, 1], [3, 3], [1, 0]])


def test_crops_are_equal() -> None:
    """They are bitwise equal to images that NumPy pads with two pixels of their edges and crops; bytes stay bytes."""
    shown = images("minatar")
    height, width = shown.shape[2:]
    padded = np.pad(shown, ((0, 0), (0, 0), (2, 2), (2, 2)), mode="edge")
    cut = [image[:, y : y + height, x : x + width] for image, (y, x) in zip(padded, OFFSETS, strict=True)]
    expected = np.stack(cut)
    theirs = torch_encoders.crop(torch.as_tensor(shown), torch.as_tensor(OFFSETS), 2).numpy()
    ours = jax_encoders.crop(jnp.asarray(shown), jnp.asarray(OFFSETS), 2)
    assert theirs.dtype == ours.dtype == np.uint8
    np.testing.assert_array_equal(theirs, expected)
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize(
    ("encoder", "shape", "told"),
    [
        ("nature", (1, 84, 35), "images of 84 by 35 are too small for encoder nature: set another one"),
        ("minatar", (1, 2, 10), "images of 2 by 10 are too small for encoder minatar"),
        ("minatar", 4, "observations are vectors, which encoder minatar cannot read: set encoder to none"),
        (NO_ENCODER, (1, 10, 10), r"observations are images \(1, 10, 10\): set encoder to nature or minatar or "),
    ],
)
def test_what_an_encoder_cannot_read(encoder: str, shape: int | tuple[int, int, int], told: str) -> None:
    with pytest.raises(InputError, match=told):
        features(encoder, shape)


@pytest.mark.parametrize(
    ("encoder", "shape", "expected"),
    [
        ("nature", (4, 84, 84), 3136),
        ("nature", (1, 36, 36), 64),
        ("minatar", (6, 10, 10), 1024),
        ("impala", (1, 1, 17), 96),
        ("small resnet", (1, 1, 1), 128),
        (NO_ENCODER, 7, 7),
    ],
)
def test_features_are_counted(encoder: str, shape: int | tuple[int, int, int], expected: int) -> None:
    """Those of Nature's and MinAtar's own images, of the smallest images, and of vectors."""
    assert features(encoder, shape) == torch_encoders.convolutions(encoder, shape)[1] == expected
