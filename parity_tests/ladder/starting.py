"""The rung for fresh states: all other rungs copy weights across, and never see the initial ones."""

import math
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from parity_tests.engine.interpreter import interpreted
from parity_tests.ladder.draws import spread
from parity_tests.ladder.scene import Scene
from parity_tests.losses import state_of
from parity_tests.pair import Pair
from shared.frameworks.exchange import Named, named, part_names, torch_part

# The number of fresh states: many seeds with few units if settings determine the widths, otherwise fewer seeds. With
# fewer than eight units, an orthogonal layer's numbers would pass for uniform ones. With fewer than 270 seeds, a
# layer's only bias would not reveal a bound that is a tenth too wide.
MANY_SEEDS, FEW_UNITS, FEW_SEEDS = 288, 8, 32
# The largest number of entries judged in a tensor
ENOUGH = 500
# How far the standard deviations of two samples may differ, in standard errors
STANDARD_ERRORS = 6.0
# A sample counts as uniform if its fourth moment is below this many squares of its second: 1.8, compared with 3 for a
# normal one. The ends of n uniform numbers are within 25 / n of their bounds, except once in a thousand million times.
UNIFORM, ENDS = 2.2, 25.0
# How much rounding may change an orthogonal layer's length
ROUNDING = 1e-6


def start(scene: Scene) -> dict[str, float]:
    """Compares fresh weights and moments: constants, distributions, and which parts share the same numbers.

    A figure is 0 if nothing is wrong and 1 if something is.
    """
    small = _few_units(scene.config)
    seeds = MANY_SEEDS if small else FEW_SEEDS
    theirs, once = _fresh(scene.pair, replace(scene.config, **small), scene.sizes, seeds), []
    config = replace(scene.jax_config, **small)

    def create(key: Any) -> Any:
        state = scene.jax_twin.create_train_state(key, config, *scene.sizes)
        leaves = jax.tree.leaves(state)
        once.append(len(leaves) == len({id(leaf) for leaf in leaves}))
        return state

    keys = jax.random.split(jax.random.key(0), len(theirs))
    together = jax.tree.map(np.asarray, interpreted(jax.vmap(create))(keys))
    ours = []
    for i in range(len(theirs)):
        state = jax.tree.map(lambda leaf, i=i: np.asarray(leaf[i]), together)
        ours.append({part: _some(named(getattr(state, part))) for part in theirs[0]})
    # `train_interval` donates its state, and JAX refuses to donate an array twice.
    found = {"arrays held twice": float(not all(once))}
    for part, leaves in theirs[0].items():
        for leaf in leaves:
            samples = [np.stack([parts[part][leaf] for parts in side]) for side in (ours, theirs)]
            same = [_equal_parts(side[0], part, leaf) for side in (ours, theirs)]
            found[f"{part}.{leaf}"] = float(not _alike(*samples) or same[0] != same[1])
    return found


def _few_units(config: Any) -> dict[str, Any]:
    """The settings for the widths of all hidden layers, with few units in each."""
    lists = {field.name for field in fields(config) if field.name.endswith("hidden_dims")}
    few = {name: (FEW_UNITS,) * len(getattr(config, name)) for name in lists}
    return few | ({"hidden_dim": FEW_UNITS} if hasattr(config, "hidden_dim") else {})


def _equal_parts(parts: dict[str, Named], part: str, leaf: str) -> list[str]:
    """The parts that start with the same numbers in this tensor, as a target does and a second critic does not."""
    like = parts[part][leaf]
    return [other for other, values in parts.items() if leaf in values and np.array_equal(values[leaf], like)]


@lru_cache(maxsize=16)
def _fresh(pair: Pair, config: Any, sizes: tuple[int, int, float], seeds: int) -> list[dict[str, Named]]:
    """The parts of this many fresh PyTorch twins."""
    trainers = [pair.torch.create_trainer(config, *sizes) for _ in range(seeds)]
    parts = part_names(state_of(pair.jax))
    return [{part: _some(torch_part(trainer, part)) for part in parts} for trainer in trainers]


def _some(values: Named) -> Named:
    """At most `ENOUGH` numbers of each tensor, evenly spaced."""
    return {name: np.ravel(value)[:: 1 + np.size(value) // ENOUGH] for name, value in values.items()}


def _alike(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Whether two samples, (seeds, ...) each, may have the same distribution; constants must be equal."""
    if np.ptp(theirs) == 0.0 or np.ptp(ours) == 0.0:
        return np.array_equal(ours, theirs)
    drawn_anew = len({values.tobytes() for values in ours}) == len(ours)
    alike = _as_wide(ours, theirs) and _as_long(ours, theirs)
    return drawn_anew and alike and not spread(ours.ravel(), theirs.ravel()).any()


def _as_wide(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Whether two samples may have the same width: by their ends if they are uniform, else by standard deviation."""
    kurtosis = np.mean((theirs - theirs.mean()) ** 4) / theirs.var() ** 2
    if kurtosis < UNIFORM:
        return abs(math.log(np.ptp(ours) / np.ptp(theirs))) <= ENDS / theirs.size
    standard_error = math.sqrt((kurtosis - 1.0) / (2.0 * theirs.size))
    return abs(math.log(ours.std() / theirs.std())) <= STANDARD_ERRORS * standard_error


def _as_long(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Whether the tensors of two samples may have the same mean length; all orthogonal layers have exactly the same."""
    mine, like = (np.linalg.norm(sample.reshape(len(sample), -1), axis=1) for sample in (ours, theirs))
    standard_error = math.sqrt(mine.var() / len(mine) + like.var() / len(like))
    return abs(mine.mean() - like.mean()) <= STANDARD_ERRORS * standard_error + ROUNDING * like.mean()
