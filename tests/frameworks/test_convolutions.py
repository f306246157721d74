"""JAX's convolutions: XLA's operation and a matrix product give equal results; and where each is used."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from parity_tests.engine.precision import both_in
from shared.frameworks import jax_encoders
from shared.frameworks.jax_layers import Network
from tests.frameworks.test_encoders import images, in_jax, reference

KERNELS = [(8, 4, 0), (3, 1, 0), (3, 1, 1), (3, 2, 1), (7, 2, 3), (1, 2, 0)]
"""Sides, strides and padding of those in the encoders."""


@pytest.mark.thorough
@pytest.mark.parametrize(("kernel", "stride", "padding"), KERNELS)
def test_a_product_is_a_convolution(kernel: int, stride: int, padding: int) -> None:
    """With the gradients of both inputs; whether or not a stride divides the image, and with black pixels around it."""
    rng = np.random.default_rng(0)
    given, found = (rng.normal(size=(2, 3, 17, 14)), rng.normal(size=(kernel, kernel, 3, 4))), []
    with both_in("float64"):
        for form in (jax_encoders.as_convolution, jax_encoders.as_product):

            def total(images: Array, weights: Array, form: Any = form) -> tuple[Array, Array]:
                output = form(images, weights, stride, padding)
                return jnp.tanh(output).sum(), output

            (_, output), gradients = jax.jit(jax.value_and_grad(total, argnums=(0, 1), has_aux=True))(*given)
            found.append([output, *gradients])
        for theirs, ours in zip(*found, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


def test_a_loop_on_the_cpu_convolves_by_products() -> None:
    """XLA's own operation is slow there, so the compiled forward and backward passes contain none."""
    network = in_jax(reference("nature"), "nature", jax_encoders.convolutions("nature"))

    def step(ours: Network, _: None) -> tuple[Network, None]:
        gradient = jax.grad(lambda ours: ours(images("nature")).sum())(ours)
        return jax.tree.map(jnp.subtract, ours, gradient), None

    program = jax.jit(lambda ours: jax.lax.scan(step, ours, None, length=3)).lower(network).compile().as_text()
    assert " while(" in program
    assert " convolution(" not in program
