"""Consecutive updates, as the checker computes them."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from port_checker.finding.tracing import Traced, trajectory


def test_updates_that_count_by_a_number_are_traced_once() -> None:
    """As with flax's TrainState, whose fresh `step` is Python's 0."""
    traces = []

    def update(state: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        traces.append(state)
        return {"step": state["step"] + 1, "weights": state["weights"] + given["gradient"]}, {}

    after = trajectory(Traced(), update, {"step": 0, "weights": jnp.zeros(2)}, [{"gradient": np.ones(2)}] * 5)
    assert len(traces) == 1
    assert int(after["step"]) == 5
    np.testing.assert_array_equal(after["weights"], [5, 5])
