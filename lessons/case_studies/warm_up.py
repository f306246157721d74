"""A warm-up that decays to zero."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from lessons.cloning import UPDATES, cloned
from lessons.measured import Figure

Optimizer = Callable[[float, int], optax.GradientTransformation]


def wrong(rate: float, warmup: int) -> optax.GradientTransformation:
    return optax.chain(
        optax.scale_by_schedule(optax.cosine_decay_schedule(1.0, warmup)),  # 1 at first, 0 from `warmup` on
        optax.adamw(rate),  # takes out any scale of its gradients that changes slowly
    )


def right(rate: float, warmup: int) -> optax.GradientTransformation:
    return optax.adamw(lambda step: rate * jnp.minimum((step + 1) / warmup, 1.0))


def check(optimizer: Optimizer) -> None:
    rates = applied_rates(optimizer(1.0, 10), 30)
    assert rates[0] < 0.5 * rates[9], "the warm-up does not rise"
    assert rates[29] > 0.5 * rates[9], "the rate does not stay"


def applied_rates(optimizer: optax.GradientTransformation, steps: int) -> np.ndarray:
    """What a weight of 0 moves by in each step under a gradient of 1: no decay of the weight is in it."""

    def step(moments: optax.OptState, _: None) -> tuple[optax.OptState, jax.Array]:
        change, moments = optimizer.update(jnp.ones(()), moments, jnp.zeros(()))
        return moments, -change

    _, rates = jax.lax.scan(step, optimizer.init(jnp.zeros(())), length=steps)
    return np.asarray(rates)


def measure() -> list[Figure]:
    warmup = 10_000
    rates = [applied_rates(optimizer(1.0, warmup), 2 * warmup) for optimizer in (wrong, right)]
    at = {"1": 0, "1,000": 999, "5,000": 4_999, "9,000": 8_999, "10,000": 9_999, "11,000": 10_999}
    short = [cloned(optimizer=optimizer(1e-3, UPDATES // 3)) for optimizer in (wrong, right)]
    return [
        *(
            Figure(f"rate of update {name}, warm-up of 10,000", *(float(r[step]) for r in rates))
            for name, step in at.items()
        ),
        Figure(f"error of a policy cloned in {UPDATES} updates, warm-up of {UPDATES // 3}", *short),
    ]
