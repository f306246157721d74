"""JAX's convolutions: XLA's operation and a matrix product give equal results; and where each is used."""

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from parity_tests.engine.precision import both_in
from parity_tests.errors import error
from shared.frameworks import jax_encoders
from shared.frameworks.jax_layers import Network
from tests.frameworks.test_encoders import changed, images, in_jax, reference

KERNELS = [(8, 4, 0), (4, 2, 0), (3, 1, 0), (3, 1, 1), (3, 2, 1), (7, 2, 3), (1, 2, 0)]
"""Sides, strides and padding of those in the encoders."""
STRIDES = "row : row + stride * rows : stride, column : column + stride * columns : stride"
MISTAKES = {
    "XLA's with padding as flax has it by default": ('[(padding, padding)] * 2, ("NCHW"', '"SAME", ("NCHW"'),
    "XLA's with kernels turned": ("(images, kernel, strides", "(images, kernel.swapaxes(0, 1), strides"),
    "XLA's with kernels mirrored": ("(images, kernel, strides", "(images, kernel[::-1, ::-1], strides"),
    "XLA's with channels in another order": ("(images, kernel, strides", "(images, kernel[:, :, ::-1], strides"),
    "XLA's without strides": ("layout = (stride, stride),", "layout = (1, 1),"),
    "the product without strides": (STRIDES, "row : row + rows, column : column + columns"),
    "the product within the image": ("((0, 0), (padding, padding), (padding, padding), (0, 0))", "((0, 0),) * 4"),
    "the product padded with white": (
        "(padding, padding), (0, 0)))",
        "(padding, padding), (0, 0)), constant_values=1)",
    ),
    "the product of channels before neighbours": (
        "left @ kernel.reshape",
        "left @ kernel.transpose(2, 0, 1, 3).reshape",
    ),
    "squares of the kernel with columns first": (
        "squares(kernel, stride), 1",
        "squares(kernel.swapaxes(0, 1), stride).swapaxes(0, 1), 1",
    ),
    "squares that are taken apart": (".swapaxes(1, 2)\n", "\n"),
    "squares of an image that the last kernel does not reach": (
        "images[:, :height, :width]",
        "images[:, -height:, -width:]",
    ),
}


def of_both_forms(encoders: ModuleType, kernel: int, stride: int, padding: int) -> list[Any]:
    """A convolution of random images, with the gradients of both inputs, as XLA's operation and as a product."""
    rng = np.random.default_rng(0)
    given = rng.normal(size=(2, 3, 17, 14)), rng.normal(size=(kernel, kernel, 3, 4))
    found = []
    for form in (encoders.as_convolution, encoders.as_product):

        def total(images: Array, weights: Array, form: Any = form) -> tuple[Array, Array]:
            output = form(images, weights, stride, padding)
            return jnp.tanh(output).sum(), output

        (_, output), gradients = jax.jit(jax.value_and_grad(total, argnums=(0, 1), has_aux=True))(*given)
        found.append([output, *gradients])
    return found


@pytest.mark.parametrize(("kernel", "stride", "padding"), KERNELS)
def test_a_product_is_a_convolution(kernel: int, stride: int, padding: int) -> None:
    """Whether or not a stride divides the image, with and without black pixels around it."""
    with both_in("float64"):
        for theirs, ours in zip(*of_both_forms(jax_encoders, kernel, stride, padding), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_either_form_are_found(mistake: str) -> None:
    """With strides and with pixels around the image; strides divide the second kernel's sides, but not the first's."""
    encoders = changed(*MISTAKES[mistake])
    with both_in("float64"):
        both = [of_both_forms(encoders, kernel, stride, padding) for kernel, stride, padding in ((3, 2, 1), (4, 2, 1))]
    assert any(ours[0].shape != theirs[0].shape or error(ours[0], theirs[0]) > 1e-6 for theirs, ours in both)


def test_a_loop_on_the_cpu_convolves_by_products() -> None:
    """XLA's own operation is slow there, so the compiled forward and backward passes contain none."""
    network = in_jax(reference("nature"), "nature", jax_encoders.convolutions("nature"))

    def step(ours: Network, _: None) -> tuple[Network, None]:
        gradient = jax.grad(lambda ours: ours(images("nature")).sum())(ours)
        return jax.tree.map(jnp.subtract, ours, gradient), None

    program = jax.jit(lambda ours: jax.lax.scan(step, ours, None, length=3)).lower(network).compile().as_text()
    assert " while(" in program
    assert " convolution(" not in program
