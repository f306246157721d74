"""JAX's random bits in NumPy: the generator Threefry of Salmon et al. (2011), two words of 32 bits at a time.

XLA would compile one program for each shape. Here a key is a single 64-bit number, with its first word in the upper
half. Therefore an array of keys can be indexed and reshaped like any other array.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)


def is_key(aval: Any) -> bool:
    """Whether an array of this kind contains keys of this generator, which is JAX's default."""
    return str(aval.dtype) == "key<fry>"


def packed(keys: Any) -> np.ndarray:
    """Converts JAX's keys to numbers; numbers are returned unchanged."""
    if isinstance(keys, np.ndarray):
        return keys
    words = np.asarray(jax.random.key_data(keys)).astype(np.uint64)
    return np.asarray(words[..., 0] << np.uint64(32) | words[..., 1])


def unpacked(keys: np.ndarray) -> jax.Array:
    """Converts numbers to JAX's keys."""
    return jax.random.wrap_key_data(jnp.asarray(np.stack(_words(keys), axis=-1)), impl="threefry2x32")


def random_bits(keys: np.ndarray, bit_width: int, shape: Sequence[int]) -> np.ndarray:
    """Random bits of this shape for each key, (*keys.shape, *shape), as unsigned integers of this width."""
    first, second = _numbered(keys, shape)
    if bit_width == 64:
        return _joined(first, second)
    return (first ^ second).astype(f"uint{bit_width}")


def random_split(keys: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """New keys of this shape for each key."""
    return _joined(*_numbered(keys, shape))


def random_fold_in(keys: np.ndarray, number: np.ndarray) -> np.ndarray:
    """A new key for each pair of a key and an integer."""
    return _joined(*_hashed(keys, np.zeros_like(number, np.uint32), number.astype(np.uint32)))


def _words(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return (keys >> np.uint64(32)).astype(np.uint32), keys.astype(np.uint32)


def _joined(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.asarray(first.astype(np.uint64) << np.uint64(32) | second)


def _numbered(keys: np.ndarray, shape: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Both words of the hash of the numbers 0, 1, ... under each key, arranged in this shape."""
    numbers = np.arange(np.prod(shape, dtype=np.int64), dtype=np.uint32).reshape(shape)
    keys = keys.reshape((*keys.shape, *[1] * len(shape)))
    return _hashed(keys, np.zeros_like(numbers), numbers)


def _hashed(keys: np.ndarray, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Threefry with two words and twenty rounds."""
    low, high = _words(keys)
    schedule = (low, high, low ^ high ^ _PARITY)
    x, y = np.atleast_1d(first + low), np.atleast_1d(second + high)
    for block in range(5):
        for rotation in _ROTATIONS[block % 2]:
            x = x + y
            y = x ^ (y << np.uint32(rotation) | y >> np.uint32(32 - rotation))
        x = x + schedule[(block + 1) % 3]
        y = y + schedule[(block + 2) % 3] + np.uint32(block + 1)
    shape = np.broadcast_shapes(keys.shape, first.shape)
    return x.reshape(shape), y.reshape(shape)
