"""Ports that read images: convolutions in either layout, images flattened in either order, and mistakes in them."""

from collections.abc import Callable

import numpy as np
import pytest

from parity_tests.engine.precision import both_in
from port_checker.check import CHANNELS_LAST, EITHER_ORDER
from port_checker.finding.layout import find_layout, flattens
from tests.port_checker.conftest import PORTS, check_here

PORT = PORTS / "channels_last_bc.py"
Checked = Callable[..., tuple[int, str]]

# Three kernels of 2 by 2 for two channels, followed by images of 2 by 4
TENSORS = {
    "net.0.weight": np.arange(24.0).reshape(3, 2, 2, 2),
    "net.0.bias": np.arange(24.0, 27.0),
    "net.2.weight": np.arange(100.0, 220.0).reshape(5, 24),
    "net.2.bias": np.arange(27.0, 32.0),
}


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("as_flax", [False, True])
def test_kernels_of_convolutions_are_matched(as_flax: bool, channels_last: bool) -> None:
    """(out, in, height, width), or flax's (height, width, in, out); after them, features in either order."""
    kernel = TENSORS["net.0.weight"].transpose(2, 3, 1, 0) if as_flax else TENSORS["net.0.weight"]
    fresh = {
        "Conv_0": {"kernel": kernel, "bias": np.zeros(3)},
        "Dense_0": {"kernel": np.zeros((24, 5)), "b": np.zeros(5)},
    }
    with both_in("float64"):
        layout = find_layout("actor", TENSORS, fresh, None, channels_last)
        tree = layout.to_tree(TENSORS)
        back = layout.to_torch(tree, "weights")
    np.testing.assert_array_equal(tree["Conv_0"]["kernel"], kernel)
    # An image of 2 by 4 with three channels, as numbers that identify their position
    image = np.arange(24.0).reshape(3, 2, 4)
    flat = image.transpose(1, 2, 0).ravel() if channels_last else image.ravel()
    np.testing.assert_array_equal(flat @ tree["Dense_0"]["kernel"], TENSORS["net.2.weight"] @ image.ravel())
    assert all((back[name] == values).all() for name, values in TENSORS.items())


def test_which_parts_flatten_images() -> None:
    """Those with a layer directly after convolutions that takes several pixels of each channel."""
    assert flattens(TENSORS)
    assert not flattens(TENSORS | {"net.2.weight": np.zeros((5, 3))})
    assert not flattens({name: values for name, values in TENSORS.items() if values.ndim < 4})


@pytest.mark.thorough
def test_a_port_with_channels_last_holds() -> None:
    """It uses flax's own convolutions, and does not say in which order it flattens."""
    status, told = check_here(PORT, "discrete/bc", "images")
    assert (status, told.splitlines()[-1]) == (
        0,
        "channels_last_bc.py is discrete/bc: all checks pass under the settings 'images'",
    ), told
    assert f"; {CHANNELS_LAST}\n" in told


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("old", "new", "rung", "said"),
    [
        pytest.param(
            "reshape(len(x), -1)",
            "swapaxes(1, 2).reshape(len(x), -1)",
            "forward",
            EITHER_ORDER,
            marks=pytest.mark.thorough,
            id="sides exchanged",
        ),
        pytest.param(
            "config.logit_penalty * jnp", "jnp", "loss", "* `hp.logit_penalty` left out", id="weight forgotten"
        ),
    ],
)
def test_mistakes_are_found(checked: Checked, old: str, new: str, rung: str, said: str) -> None:
    """In the order itself, and after it: the wrong expression is named for such ports too."""
    status, told = checked(PORT, (old, new), algorithm="discrete/bc", settings="images")
    assert status == 1, told
    assert f"{rung:<11} FAILS" in told, told
    assert said in told, told
