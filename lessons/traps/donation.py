"""A state that was given away."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import torch

from lessons.measured import Error, Figure

PYTORCH = "a network is modified in place, and every reference to it sees the change"
JAX = "`donate_argnames` gives the arrays away, and other references to them become invalid"
SHOWS = "an exception at the first use, or at the first call if a target and its network are the same arrays"
TAU = 0.005


def reference(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    state["critic"] -= 0.1
    state["target"].lerp_(state["critic"], TAU)
    return state


@partial(jax.jit, donate_argnames="state")
def update(state: dict[str, jax.Array]) -> dict[str, jax.Array]:
    critic = state["critic"] - 0.1
    return {"critic": critic, "target": (1.0 - TAU) * state["target"] + TAU * critic}


def wrong(critic: jax.Array) -> float:
    state = {"critic": critic, "target": critic}
    after = update(state)
    return float(after["critic"].sum() - state["critic"].sum())


def right(critic: jax.Array) -> float:
    state = {"critic": critic, "target": jnp.copy(critic)}
    before = float(critic.sum())
    after = update(state)
    return float(after["critic"].sum()) - before


def _fails(call: Callable[..., Any], *inputs: Any) -> float:
    """1 where the call raises what XLA raises, else 0."""
    try:
        call(*inputs)
    except (RuntimeError, ValueError):
        return 1.0
    return 0.0


def _lost() -> float:
    """The share of a state's arrays that nobody can read after its update."""
    state = {"critic": jnp.zeros(3), "target": jnp.ones(3)}
    update(state)
    return sum(leaf.is_deleted() for leaf in state.values()) / len(state)


def measure() -> list[Error | Figure]:
    return [
        Error("share of the old state's arrays that cannot be read", _lost(), 0.0, 0.0),
        Error("the code above fails", _fails(wrong, jnp.zeros(3)), _fails(right, jnp.zeros(3)), 0.0),
    ]
