"""Targets: where they move to, and that nothing else moves."""

from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import torch

TAU = 0.1


def params(seed: int) -> dict[str, dict[str, jax.Array]]:
    rng = np.random.default_rng(seed)
    shapes = {"Dense_0": (3, 4), "Dense_1": (4, 2)}
    return {
        layer: {"kernel": jnp.asarray(rng.normal(size=shape)), "bias": jnp.asarray(rng.normal(size=shape[1]))}
        for layer, shape in shapes.items()
    }


def torch_network(tree: dict[str, dict[str, jax.Array]]) -> torch.nn.Module:
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    for module, layer in zip(network, tree.values(), strict=True):
        module.weight.data = torch.as_tensor(np.array(layer["kernel"].T))
        module.bias.data = torch.as_tensor(np.array(layer["bias"]))
    return network


def test_the_target_moves_as_pytorch_s(exercise: ModuleType, fragment: ModuleType) -> None:
    """Kernels and biases."""
    target, network = torch_network(params(1)), torch_network(params(2))
    fragment.soft_update(target, network, TAU)
    ours = exercise.soft_update(params(1), params(2), TAU)
    for module, layer in zip(target, ours.values(), strict=True):
        theirs = module.weight.detach().numpy().T
        np.testing.assert_allclose(layer["kernel"], theirs, rtol=1e-12, err_msg="a target's kernel differs")
        theirs = module.bias.detach().numpy()
        np.testing.assert_allclose(layer["bias"], theirs, rtol=1e-12, err_msg="a target's bias differs")


def test_nothing_else_moves(exercise: ModuleType) -> None:
    """Neither the network that the target was made from, nor the target as it was before."""
    online = params(1)
    target = exercise.make_target(online)
    exercise.soft_update(target, params(2), TAU)
    for name, tree in (("network", online), ("old target", target)):
        for layer, values in params(1).items():
            for leaf, before in values.items():
                np.testing.assert_array_equal(tree[layer][leaf], before, err_msg=f"the {name} changed in place")


def test_the_target_shares_no_array_with_its_network(exercise: ModuleType) -> None:
    """Or XLA refuses to have the state donated."""
    online = params(1)
    both = jax.tree.leaves((online, exercise.make_target(online)))
    assert len({leaf.unsafe_buffer_pointer() for leaf in both}) == len(both), "target and network share an array"
