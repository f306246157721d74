"""Ends of episodes that depend on a state alone: each family's bounds, in NumPy, PyTorch and JAX."""

import math

import jax
import numpy as np
import pytest
import torch

from shared.envs.families import termination

# The family's function, a state in which an episode continues, and for some components values that end it or do not
CASES = {
    "halfcheetah-medium-v2": ([0.0] * 5, {0: ([100.0, -100.0, math.nan, math.inf], [99.0, -99.0])}),
    "hopper-medium-v2": (
        [1.2] + [0.0] * 4,
        {
            0: ([0.7, -1.0, math.nan, math.inf], [0.71, 150.0]),
            1: ([0.2, -0.2, math.nan], [0.19, -0.19]),
            # There is no lower bound.
            3: ([100.0, math.nan, -math.inf], [99.0, -500.0]),
        },
    ),
    "Ant-v5": ([0.5] + [0.0] * 4, {0: ([0.19, 1.01, math.nan], [0.2, 1.0]), 3: ([math.inf], [1e6])}),
    "walker2d-medium-v2": (
        [1.2] + [0.0] * 4,
        {0: ([0.8, 2.0, math.nan], [0.81, 1.99]), 1: ([1.0, -1.0], [0.9, -0.9]), 3: ([100.0, -100.0], [99.0, -99.0])},
    ),
    "Humanoid-v5": ([1.4] + [0.0] * 4, {0: ([0.9, 2.1, math.nan], [1.0, 2.0]), 3: ([math.nan, math.inf], [1e6])}),
    "pen-cloned-v1": ([0.1] * 30, {26: ([0.07, math.nan], [0.075, 1.0]), 3: ([math.nan], [1e6])}),
    "door-cloned-v1": ([0.0] * 5, {0: ([], [1e9, math.nan])}),
    "InvertedPendulum-v5": ([0.0] * 4, {1: ([0.21, -0.21, math.nan], [0.19, -0.2]), 0: ([math.inf], [9.0])}),
    # Sines and cosines of a straight double pole; if it is bent by 90 degrees, its tip is at 0.6
    "InvertedDoublePendulum-v5": ([0.0, 0.0, 0.0, 1.0, 1.0, 0.0], {4: ([0.0, math.nan], [0.7]), 3: ([0.8], [0.9])}),
    "MountainCarContinuous-v0": ([0.5, -0.1], {1: ([0.0, 0.1, math.nan], [-0.2]), 0: ([math.nan], [0.44])}),
}


@pytest.mark.parametrize("task", CASES)
def test_bounds(task: str) -> None:
    alive, changes = CASES[task]
    states, expected = [alive], [False]
    for component, (ending, going_on) in changes.items():
        for values, ends in ((ending, True), (going_on, False)):
            for value in values:
                state = list(alive)
                state[component] = value
                states.append(state)
                expected.append(ends)
    rule, together = termination(task), np.array([states, states])
    assert rule(np.array(states)).tolist() == expected
    for found in (rule(together), rule(torch.as_tensor(together)), jax.jit(rule)(together)):
        assert np.asarray(found).dtype == np.bool_
        assert np.asarray(found).tolist() == [expected, expected]
