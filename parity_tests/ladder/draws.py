"""Measures random draws that share no bits with PyTorch's.

A figure is 0 if nothing is wrong, and at least 1 if something is. The same mistake gives the same figures in two files
that split their keys in different ways.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import jax
import numpy as np

from parity_tests.engine.interpreter import interpreted, watched
from shared.errors import InputError
from shared.frameworks.exchange import Named
from shared.frameworks.jax_layers import is_key

# An update's indices and noise
Draw = tuple[Any, Any]
# An update's arrays by field: `indices`, `noise.target`; masks for several layers are several arrays
Leaves = dict[str, list[np.ndarray]]

# With 32 indices each, an end of the ladder's 200 rows is missed with a probability of one in a thousand million.
DRAWN_UPDATES = 128
# The largest number of values to judge; of larger samples, such as masks, only the first values count.
ENOUGH = 100_000
# The probability of calling two samples of one distribution different
CHANCE = 1e-9
# A mean of independent numbers, or their correlation, is off by this many standard errors with that probability.
STANDARD_ERRORS = 6.0
# A sample with fewer numbers does not determine the error of its variance well enough.
MANY = 1000
# Up to this many clipped numbers, or zeros and ones, may agree by chance.
FEW = 32

FAULTS = {
    "repeats": "updates draw what others drew: fold `step` into the key",
    "purity": "the same key and step give other numbers when asked again: draw from `key` alone",
    "key": "another key gives the same numbers: draw from `key`",
    "range": "the indices must reach from 0 to dataset_size - 1: `randint` leaves its upper bound out",
    "spread": "the numbers are distributed otherwise than PyTorch's",
    "ties": "the numbers go with others of the same update, or of the same draw: give each a key of its own",
    "reuse": "a key is used twice, for rows and noise say: split it, and give each draw a key of its own",
}
FAULTLESS = {name: np.zeros({"range": 2, "spread": 3}.get(name, ())) for name in FAULTS}


def faultless(reference: Sequence[Draw]) -> dict[str, Named]:
    """The figures of a port that draws correctly; `reference` contains PyTorch's draws, update by update."""
    _, noise = reference[0]
    return {name: FAULTLESS for name, leaves in _leaves(reference[0], noise._fields).items() if leaves}


def faults(drawn: Sequence[Draw], reference: Sequence[Draw], num_rows: int) -> dict[str, Named]:
    """The figures of updates' draws, for `indices` and for each field of the noise, such as `noise.target`.

    Fields that PyTorch does not draw in the first update are left out. A random key may stand for numbers drawn later.

    Args:
        drawn: The draws of `DRAWN_UPDATES` updates, then of the first one again, then under another key.
        reference: PyTorch's draws for the same updates.
        num_rows: The dataset's number of rows.

    Raises:
        InputError: Something is missing, or has another shape than PyTorch's.
    """
    fields = reference[0][1]._fields
    theirs = [_leaves(draw, fields) for draw in reference]
    *ours, again, elsewhere = [_leaves(draw, fields) for draw in drawn]
    found, numbers = faultless(reference), {}
    for name in found:
        # CQL clones behaviour only in its first updates, so later ones may draw nothing for it.
        mine, like = zip(*((a[name], b[name]) for a, b in zip(ours, theirs, strict=True) if b[name]), strict=True)
        keyed = name != "indices" and all(_is_key(leaves) for leaves in mine)
        if not keyed:
            _check_shapes(name, mine, like)
        found[name] = FAULTLESS | _of_keys(mine, again[name], elsewhere[name])
        # A field that is drawn only once has too few numbers to judge their distribution.
        if not keyed and not found[name]["repeats"]:
            numbers[name] = mine
            found[name] |= _of_numbers(mine, like, num_rows if name == "indices" else None)
    for name in (*_tied(numbers), *(name for name in numbers if _repeats_itself(numbers[name]))):
        found[name]["ties"] = np.ones(())
    return found


def reuses_key(draw: Callable[[], Any]) -> bool:
    """Whether a draw uses a key twice, which JAX itself can detect; samples show it only if shapes and kinds agree."""

    def drawn_for_nothing() -> None:
        # JAX checks everything that is traced, and XLA compiles nothing that is not returned.
        draw()

    try:
        # For a whole jitted function, JAX also detects keys that are taken out of one array twice.
        with jax.debug_key_reuse(True):
            jax.jit(drawn_for_nothing)()
    except jax.errors.KeyReuseError:
        return True
    return False


def shares_a_key(one: Callable[[], Any], other: Callable[[], Any]) -> bool:
    """Whether two draws that split the same keys share one: one of them gets its bits, and the other uses it too."""
    (bits, uses), (other_bits, other_uses) = _keys_of(one), _keys_of(other)
    return bool(bits & other_uses or other_bits & uses)


def _keys_of(draw: Callable[[], Any]) -> tuple[set[int], set[int]]:
    """The keys that a draw takes random bits from, and all keys that it uses, including those for new keys."""
    bits: set[int] = set()
    uses: set[int] = set()

    def watch(calls: Sequence[Any], operands: Sequence[Any], results: Sequence[Any]) -> None:
        operation = calls[-1].primitive.name
        if operation in ("random_bits", "random_split", "random_fold_in"):
            keys = np.ravel(operands[0]).tolist()
            uses.update(keys)
            bits.update(keys if operation == "random_bits" else ())

    with watched(watch):
        interpreted(draw)()
    return bits, uses


def _leaves(draw: Draw, fields: Sequence[str]) -> Leaves:
    """The arrays of a draw; a key is represented by its numbers."""
    indices, noise = draw
    found = {"indices": indices}
    for name in fields:
        value: Any = noise.get(name) if isinstance(noise, Mapping) else getattr(noise, name, None)
        found[f"noise.{name}"] = jax.random.key_data(value) if is_key(value) else value
    return {name: [np.asarray(leaf) for leaf in jax.tree.leaves(value)] for name, value in found.items()}


def _is_key(leaves: list[np.ndarray]) -> bool:
    return len(leaves) == 1 and leaves[0].dtype == np.uint32


def _check_shapes(name: str, ours: Sequence[list[np.ndarray]], theirs: Sequence[list[np.ndarray]]) -> None:
    for mine, like in zip(ours, theirs, strict=True):
        found, expected = ([leaf.shape for leaf in leaves] for leaves in (mine, like))
        whole = name != "indices" or all(np.issubdtype(leaf.dtype, np.integer) for leaf in mine)
        if found != expected or not whole:
            raise InputError(
                f"draw_noise gives {name} {_shown(found)}{'' if whole else ' of fractions'}: expected "
                f"{_shown(expected)}{' of whole numbers' if name == 'indices' else ''}"
            )


def _shown(shapes: Sequence[tuple[int, ...]]) -> str:
    return ", ".join(map(str, shapes)) or "nothing"


def _of_keys(series: Sequence[list[np.ndarray]], again: list[np.ndarray], elsewhere: list[np.ndarray]) -> Named:
    """Whether the numbers depend on the key and on the update's number, and on nothing else."""
    by_leaf = list(zip(*series, strict=True))
    repeated = max((len(leaves) - len({leaf.tobytes() for leaf in leaves}) for leaves in by_leaf), default=0)
    same, other = (
        [a.tobytes() == b.tobytes() for a, b in zip(series[0], leaves, strict=True)] for leaves in (again, elsewhere)
    )
    return {"repeats": np.asarray(float(repeated)), "purity": _flag(not all(same)), "key": _flag(any(other))}


def _flag(wrong: bool) -> np.ndarray:
    return np.asarray(float(wrong))


def _of_numbers(
    ours: Sequence[list[np.ndarray]], theirs: Sequence[list[np.ndarray]], num_rows: int | None
) -> dict[str, np.ndarray]:
    """Whether the distributions equal PyTorch's; indices, marked by `num_rows`, must also reach both ends."""
    samples = [[_sample(leaves) for leaves in zip(*series, strict=True)] for series in (ours, theirs)]
    if num_rows is not None:
        ((mine,), _) = samples
        ends = np.array([mine.min(), num_rows - 1 - mine.max()], float)
        if ends.any():
            return {"range": ends}
    spreads = [spread(mine, like) for mine, like in zip(*samples, strict=True)]
    return {"spread": next((spread for spread in spreads if spread.any()), FAULTLESS["spread"])}


def _sample(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([*map(np.ravel, arrays)])[:ENOUGH]


def spread(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Compares two samples: zeros if they may have one distribution, by a Kolmogorov-Smirnov test, mean and variance.

    That test is insensitive to the tails, which contribute much of the variance. If the samples differ, the result is 1
    and the deviations of mean and standard deviation, in units of PyTorch's standard deviation.
    """
    points = np.concatenate([ours, theirs])
    below = [np.searchsorted(np.sort(sample), points, side="right") / len(sample) for sample in (ours, theirs)]
    limit = math.sqrt(math.log(2.0 / CHANCE) / 2.0 * (1.0 / len(ours) + 1.0 / len(theirs)))
    if np.isfinite(ours).all() and np.abs(below[0] - below[1]).max() <= limit and _same_moments(ours, theirs):
        return FAULTLESS["spread"]
    moved, wider = (ours.mean() - theirs.mean()) / theirs.std(), ours.std() / theirs.std() - 1.0
    return np.array([1.0, moved, wider])


def _same_moments(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Whether mean and variance differ by no more than chance allows; small samples always pass."""
    if min(len(ours), len(theirs)) < MANY:
        return True
    for power in (1, 2):
        a, b = ((sample - theirs.mean()) ** power for sample in (ours, theirs))
        if abs(a.mean() - b.mean()) > STANDARD_ERRORS * math.sqrt(a.var() / len(a) + b.var() / len(b)):
            return False
    return True


def _repeats_itself(series: Sequence[list[np.ndarray]]) -> bool:
    """Whether an array repeats fractional numbers along its first axis, as when critics share a draw."""
    arrays = [leaf for leaves in series for leaf in leaves if leaf.ndim > 1 and leaf.dtype.kind == "f"]
    return any(len({*parts}) < len(parts) for parts in map(_telling_parts, arrays))


def _telling_parts(array: np.ndarray) -> list[bytes]:
    """The parts of an array that cannot agree by chance, which a few clipped numbers often do."""
    inside = (array > array.min()) & (array < array.max())
    few = array[0].size < FEW
    return [part.tobytes() for part, free in zip(array, inside, strict=True) if free.any() or not few]


def _tied(numbers: Mapping[str, Sequence[list[np.ndarray]]]) -> Iterator[str]:
    """The later one of each pair of draws that are correlated number by number, as draws from one key are."""
    leaves = [(name, leaves) for name, series in numbers.items() for leaves in zip(*series, strict=True)]
    for (_, ours), (name, others) in combinations(leaves, 2):
        # Draws of two shapes begin with the same numbers, and fields drawn in some updates are drawn in the first ones.
        pairs = [(np.ravel(a)[: b.size], np.ravel(b)[: a.size]) for a, b in zip(ours, others, strict=False)]
        a, b = (_sample(arrays) for arrays in zip(*pairs, strict=True))
        if abs(np.corrcoef(a, b)[0, 1]) > STANDARD_ERRORS / math.sqrt(len(a)):
            yield name
