"""The layout of a port's weights: found by shapes and names, or given by its `from_torch`."""

import numpy as np
import pytest

from parity_tests.engine.precision import both_in
from port_checker.finding.layout import find_layout
from shared.errors import InputError

TENSORS = {
    "net.0.weight": np.ones((4, 4)),
    "net.0.bias": np.ones(4),
    "net.2.weight": np.ones((2, 4)),
    "net.2.bias": np.ones(2),
}


def tree(*names: str, shapes: tuple = ((4, 4), (4,), (4, 2), (2,))) -> dict[str, np.ndarray]:
    return {name: np.zeros(shape) for name, shape in zip(names, shapes, strict=True)}


def test_numbers_come_back_as_they_went() -> None:
    values = {name: np.random.default_rng(0).normal(size=value.shape) for name, value in TENSORS.items()}
    with both_in("float64"):
        layout = find_layout("actor", TENSORS, tree("w1", "b1", "w2", "b2"), None)
        weights = layout.to_tree(values)
        back = layout.to_torch(weights, "weights")
    np.testing.assert_array_equal(weights["w1"], values["net.0.weight"].T)
    assert all((back[name] == values[name]).all() for name in TENSORS)


def test_the_other_kernels_tell_which_way_a_square_one_is() -> None:
    with both_in("float64"):
        shapes = ((4, 4), (4,), (2, 4), (2,))
        weights = find_layout("actor", TENSORS, tree("w1", "b1", "w2", "b2", shapes=shapes), None).to_tree(
            {**TENSORS, "net.0.weight": np.arange(16.0).reshape(4, 4)}
        )
    np.testing.assert_array_equal(weights["w1"], np.arange(16.0).reshape(4, 4))


def test_layers_that_cannot_be_told_apart_are_asked_for() -> None:
    tensors = TENSORS | {"net.1.weight": np.ones((4, 4)), "net.1.bias": np.ones(4)}
    weights = tree("first", "b0", "out", "b2") | {"second": np.zeros((4, 4)), "b1": np.zeros(4)}
    with pytest.raises(InputError, match=r"which of state.actor's first, second is which of .* define from_torch"):
        find_layout("actor", tensors, weights, None)


def test_a_layer_norm_has_a_scale_in_flax() -> None:
    """Wherever it is among the layers: its scale is no bias, although all three have one shape."""
    tensors = {"net.0.bias": np.zeros(4), "net.1.weight": np.ones(4), "net.1.bias": np.full(4, 2.0)}
    weights = tree("layers_0/bias", "layers_2/bias", "layers_2/scale", shapes=((4,), (4,), (4,)))
    with both_in("float64"):
        found = find_layout("critic", tensors, weights, None).to_tree(tensors)
    assert [found[name][0] for name in weights] == [0.0, 2.0, 1.0]


def transposed(part: str, weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"out": weights["net.2.weight"].T, "hidden": weights["net.0.weight"].T, "c": weights["net.0.bias"],
            "d": weights["net.2.bias"]}  # fmt: skip


def test_a_file_may_say_how_its_weights_are_laid_out() -> None:
    values = {name: np.random.default_rng(0).normal(size=value.shape) for name, value in TENSORS.items()}
    with both_in("float64"):
        layout = find_layout("actor", TENSORS, tree("hidden", "c", "out", "d"), transposed)
        back = layout.to_torch(layout.to_tree(values), "weights")
    assert all((back[name] == values[name]).all() for name in TENSORS)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"d": np.zeros(2)}, "must hold each of PyTorch's numbers once"),
        ({"d": np.zeros(3)}, r"expected d \(2,\), found d \(3,\)"),
        ({"e": np.zeros(3)}, r"expected hidden \(4, 4\), found e \(3,\)"),
    ],
)
def test_a_wrong_from_torch_is_described(changed: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(InputError, match=message):
        find_layout("actor", TENSORS, tree("hidden", "c", "out", "d"), lambda *x: transposed(*x) | changed)
