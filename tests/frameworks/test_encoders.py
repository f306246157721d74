"""Encoders of images: equal in both frameworks, forwards and backwards, and mistakes that the comparison finds."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen as nn
from jax import Array

from parity_tests.errors import error
from parity_tests.precision import both_in
from shared.errors import InputError
from shared.frameworks import jax_encoders, torch_encoders
from shared.frameworks.jax_checkpoints import params_from_torch, params_to_torch
from shared.frameworks.jax_layers import Network
from shared.runs.encoders import FILTERS, NO_ENCODER, features

# Neither square nor of sizes that strides divide
SHAPES = {"nature": (3, 55, 45), "minatar": (3, 8, 6)}
FORWARD, BACKWARD = {"float64": 1e-12, "float32": 2e-6}, {"float64": 1e-10, "float32": 1e-4}
ROWS = 5


def images(encoder: str) -> np.ndarray:
    """Random bytes, black and white among them."""
    found = np.random.default_rng(0).integers(0, 256, (ROWS, *SHAPES[encoder]), dtype=np.uint8)
    found[0], found[1] = 0, 255
    return found


def reference(encoder: str) -> torch.nn.Sequential:
    """PyTorch's layers with fresh weights."""
    torch.manual_seed(0)
    layers, width = torch_encoders.convolutions(encoder, SHAPES[encoder])
    network = torch.nn.Sequential(*layers)
    assert network(torch.as_tensor(images(encoder))).shape == (ROWS, width)
    return network


def in_jax(network: torch.nn.Sequential, encoder: str, layers: Sequence[Callable]) -> Network:
    """JAX's layers at the same weights."""
    module = nn.Sequential(layers)
    like = jax.eval_shape(lambda key: Network.create(module, key, images(encoder)).params, jax.random.key(0))
    return Network(params_from_torch(arrays(network.named_parameters()), like), module)


def arrays(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, np.ndarray]:
    """Tensors by name as NumPy's."""
    return {name: tensor.detach().numpy() for name, tensor in tensors}


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("encoder", FILTERS)
def test_encoders_agree(encoder: str, precision: str) -> None:
    """Outputs and gradients, at a distance that rounding explains."""
    with both_in(precision):
        network, shown = reference(encoder), images(encoder)
        expected = network(torch.as_tensor(shown))
        weights = torch.as_tensor(np.random.default_rng(1).normal(size=expected.shape), dtype=expected.dtype)
        names, parameters = zip(*network.named_parameters(), strict=True)
        gradients = torch.autograd.grad((weights * torch.tanh(expected)).sum(), parameters)

        @jax.jit
        def loss(ours: Network) -> tuple[Array, Array]:
            output = ours(shown)
            return (weights.numpy() * jnp.tanh(output)).sum(), output

        ours = in_jax(network, encoder, jax_encoders.convolutions(encoder))
        (_, output), gradient = jax.value_and_grad(loss, has_aux=True)(ours)
        assert error(output, expected.detach()) <= FORWARD[precision]
        found = params_to_torch(gradient.params)
        for name, value in arrays(zip(names, gradients, strict=True)).items():
            assert error(found[name], value) <= BACKWARD[precision], name


MISTAKES = {
    "padding as flax has it by default": ('"VALID"', '"SAME"'),
    "kernels turned": ("images, kernel, strides", "images, kernel.swapaxes(0, 1), strides"),
    "kernels mirrored": ("images, kernel, strides", "images, kernel[::-1, ::-1], strides"),
    "channels of kernels in another order": ("images, kernel, strides", "images, kernel[:, :, ::-1], strides"),
    "strides forgotten": ("strides, layout = (self.stride, self.stride),", "strides, layout = (1, 1),"),
    "bias forgotten": ("return convolved + bias[:, None, None]", "return convolved"),
    "flattened with channels last": ("images.reshape(", "images.transpose(0, 2, 3, 1).reshape("),
    "flattened with sides exchanged": ("images.reshape(", "images.swapaxes(2, 3).reshape("),
    "divided in whole numbers": ("jnp.asarray(images, dtype=float) / 255.0", "jnp.asarray(images // 255, dtype=float)"),
    "not divided": ("jnp.asarray(images, dtype=float) / 255.0", "jnp.asarray(images, dtype=float)"),
    "divided by 256": ("jnp.asarray(images, dtype=float) / 255.0", "jnp.asarray(images, dtype=float) / 256.0"),
    "no activation": ("(Conv(*each), nn.relu)", "(Conv(*each), jnp.asarray)"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_found(mistake: str) -> None:
    """In the larger encoder, where every one of them matters."""
    old, new = MISTAKES[mistake]
    source = Path(jax_encoders.__file__).read_text()
    assert source.count(old) == 1
    changed = ModuleType("changed")
    exec(compile(source.replace(old, new), "changed", "exec"), vars(changed))
    with both_in("float64"):
        network = reference("nature")
        expected = network(torch.as_tensor(images("nature"))).detach()
        ours = in_jax(network, "nature", changed.convolutions("nature"))
        output = jax.jit(lambda network, shown: network(shown))(ours, images("nature"))
        assert output.shape != expected.shape or error(output, expected) > 1e-3


@pytest.mark.parametrize("encoder", FILTERS)
def test_fresh_weights_are_pytorchs(encoder: str) -> None:
    """Uniform between the same bounds, weights and biases."""
    layers, _ = torch_encoders.convolutions(encoder, SHAPES[encoder])
    module = nn.Sequential(jax_encoders.convolutions(encoder))
    params = jax.jit(module.init)(jax.random.key(0), images(encoder))["params"]
    convolved = [layer for layer in layers if isinstance(layer, torch.nn.Conv2d)]
    for ours, layer in zip(params.values(), convolved, strict=True):
        bound = float(np.prod(layer.weight.shape[1:])) ** -0.5
        for mine, other in ((ours["kernel"], layer.weight), (ours["bias"], layer.bias)):
            assert mine.size == other.numel()
            for values in (np.asarray(mine), other.detach().numpy()):
                assert 0.7 * bound < np.abs(values).max() <= bound
                assert abs(values.std() / (bound / 3**0.5) - 1.0) < (0.05 if values.size > 1000 else 0.5)


@pytest.mark.parametrize(
    ("encoder", "shape", "told"),
    [
        ("nature", (1, 10, 10), "images of 10 by 10 are too small for encoder nature: set another one"),
        ("nature", (1, 84, 35), "images of 84 by 35 are too small for encoder nature"),
        ("minatar", (1, 2, 10), "images of 2 by 10 are too small for encoder minatar"),
        ("minatar", 4, "observations are vectors, which encoder minatar cannot read: set encoder to none"),
        (NO_ENCODER, (1, 10, 10), r"observations are images \(1, 10, 10\): set encoder to nature or minatar"),
    ],
)
def test_what_an_encoder_cannot_read(encoder: str, shape: int | tuple[int, int, int], told: str) -> None:
    with pytest.raises(InputError, match=told):
        features(encoder, shape)


@pytest.mark.parametrize(
    ("encoder", "shape", "expected"),
    [("nature", (4, 84, 84), 3136), ("nature", (1, 36, 36), 64), ("minatar", (6, 10, 10), 1024), (NO_ENCODER, 7, 7)],
)
def test_features_are_counted(encoder: str, shape: int | tuple[int, int, int], expected: int) -> None:
    """Those of Nature's and MinAtar's own images, of the smallest ones, and of vectors."""
    assert features(encoder, shape) == torch_encoders.convolutions(encoder, shape)[1] == expected
