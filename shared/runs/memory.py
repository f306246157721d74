"""Sizes beyond memory: refused before a run begins, and told in a line where memory runs out in the middle of one.

Settings have the same names in all algorithms, so what they take is estimated here by name. An estimate is of the least
that any twin holds at one time. So no run is refused that would fit, and one that is let through may still not fit.
"""

import errno
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple

from shared.errors import InputError, RunError
from shared.runs.machine import gpu_memory, memory

_FLOAT = 4  # bytes
# Of networks whose config does not say it
_WIDTH, _LAYERS = 256, 2
# Of each weight: itself, and the two moments of its optimiser
_COPIES = 3
# What an evaluation holds of each episode, besides its observation: a seed, the return, the length
_EPISODE = 56
# What PyTorch's, XLA's, cuBLAS's and MuJoCo's complaints have in common with nothing else
_COMPLAINTS = (
    "RESOURCE_EXHAUSTED",
    "can't allocate memory",
    "not enough memory",
    "ut of memory",
    "ALLOC_FAILED",
    "ould not allocate",
)


class _Part(NamedTuple):
    """A part of what a run holds: bytes, and the settings that it grows with."""

    needed: int
    settings: tuple[str, ...]


def check_settings(config: Any) -> None:
    """Whether this machine could hold what a run holds besides its data: networks, an update, an evaluation.

    Raises:
        InputError: It could not; the line names the setting to lower.
    """
    for part in _parts(config):
        name = _farthest(config, part.settings)
        check_size(name, getattr(config, name), part.needed, getattr(config, "device", "auto"))


def check_size(name: str, value: int, needed: int, device: str = "cpu") -> None:
    """Whether this machine could hold so much.

    Args:
        name: The setting that asks for it.
        value: Of the setting.
        needed: Bytes, at least.
        device: Where it would lie, as a config names it: what is too much for the CPU, a GPU perhaps has.

    Raises:
        InputError: It could not.
    """
    there = memory()
    if needed > there and device != "cpu":
        there = max(there, gpu_memory())
    if needed > there:
        raise InputError(f"{name} {value} needs at least {_gib(needed)}, this machine has {_gib(there)}: lower {name}")


def is_exhausted(error: BaseException | None) -> bool:
    """Whether an exception says that memory ran out: Python's, the system's, or one of a package."""
    if isinstance(error, InputError | RunError):
        return False
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or any(complaint in str(error) for complaint in _COMPLAINTS)


def advice(config: Any) -> str:
    """What to say of a run for which memory was not enough."""
    settings = tuple(name for part in _parts(config) for name in part.settings)
    return f"out of memory: lower {_farthest(config, settings)}"


def _gib(size: int) -> str:
    return f"{min(size, 2**80) / 2**30:,.1f} GiB"  # a number of any length may be typed


def _farthest(config: Any, settings: tuple[str, ...]) -> str:
    """Of these settings the one that lies farthest above its default."""
    return max(settings, key=lambda name: Fraction(getattr(config, name), getattr(type(config), name, 1)))


def _parts(config: Any) -> Iterator[_Part]:
    """The widest layer of an update, the weights, the widest layer of an evaluation."""
    return _of_transformer(config) if hasattr(config, "seq_len") else _of_perceptrons(config)


def _of_perceptrons(config: Any) -> Iterator[_Part]:
    """Two layers are held together, where there are two: the second is computed from the first."""
    width, critics = getattr(config, "hidden_dim", _WIDTH), getattr(config, "n_critics", 1)
    layers = getattr(config, "critic_n_hiddens", _LAYERS)
    layers = min(layers, _LAYERS)
    rows = getattr(config, "batch_size", 1) * getattr(config, "cql_n_actions", 1)
    batch, widths, ensemble = (_named(config, name) for name in ("batch_size", "hidden_dim", "n_critics"))
    if batch:
        repeated = _named(config, "cql_n_actions")
        yield _Part(_FLOAT * rows * critics * width * layers, (*batch, *widths, *ensemble, *repeated))
    if widths:
        yield _Part(_FLOAT * _COPIES * critics * width**2 * (layers - 1), widths + ensemble)
    if episodes := _named(config, "n_episodes"):
        yield _Part(config.n_episodes * (_FLOAT * width + _EPISODE), (*episodes, *widths))


def _named(config: Any, name: str) -> tuple[str, ...]:
    """The setting, where there is one of this name."""
    return (name,) if hasattr(config, name) else ()


def _of_transformer(config: Any) -> Iterator[_Part]:
    """A layer is that of the MLP, or the attention weights; the last one is computed for the states alone."""
    width, steps = config.embedding_dim, config.seq_len
    weights = 12 * width**2 * config.num_layers + (config.episode_len + steps) * width
    queries = 3 * steps if config.num_layers > 1 else steps
    layer = _FLOAT * queries * max(4 * width, 3 * steps * config.num_heads)
    yield _Part(config.batch_size * layer, ("batch_size", "seq_len", "embedding_dim", "num_heads"))
    yield _Part(_FLOAT * _COPIES * weights, ("embedding_dim", "num_layers", "seq_len", "episode_len"))
    yield _Part(config.n_episodes * (layer + _EPISODE), ("n_episodes", "seq_len", "embedding_dim", "num_heads"))
