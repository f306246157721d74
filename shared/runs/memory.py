"""Sizes beyond memory: refused before a run begins, and told in a line where memory runs out in the middle of one.

Settings have the same names in all algorithms, so what they take is estimated here by name, and no network is made. An
estimate is of the least that any twin holds at one time. So no run is refused that would fit, and one that is let
through may still not fit.
"""

import dataclasses
import errno
import re
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

from shared.errors import InputError, RunError
from shared.runs.fields import check
from shared.runs.machine import gpu_memory, memory

_FLOAT = 4  # bytes
# Where the widths stand of the network that acts
_ACTING = ("actor_hidden_dims", "hidden_dims", "hidden_dim")
# Where it stands how many layers there are of the width `hidden_dim`
_DEPTHS = ("critic_n_hiddens", "actor_n_hiddens")
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


class _Network(NamedTuple):
    """A network's hidden layers.

    Attributes:
        settings: Those that say how wide and how many they are.
        width: Of two layers that follow each other: both are held, since the second is computed from the first.
        weights: Between them.
        several: The settings that say how many such networks there are.
    """

    settings: tuple[str, ...]
    width: int
    weights: int
    several: tuple[str, ...]


def check_settings(config: Any) -> None:
    """Whether settings are within bounds, and this machine could hold what they ask for: networks, a batch, episodes.

    Raises:
        InputError: They are not, or it could not; the line names the setting.
    """
    check(config)
    for part in _parts(config):
        name = _farthest(config, part.settings)
        check_size(name, getattr(config, name), part.needed, config.device)


def check_size(name: str, value: int | tuple[int, ...], needed: int, device: str = "cpu") -> None:
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
        shown = f"[{','.join(map(str, value))}]" if isinstance(value, tuple) else value
        raise InputError(f"{name} {shown} needs at least {_gib(needed)}, this machine has {_gib(there)}: lower {name}")


def is_exhausted(error: BaseException | None) -> bool:
    """Whether an exception says that memory ran out: Python's, the system's, or one of a package."""
    if isinstance(error, InputError | RunError):
        return False
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or any(complaint in str(error) for complaint in _COMPLAINTS)


def advice(config: Any) -> str:
    """Advice for a run that has run out of memory."""
    settings = tuple(name for part in _parts(config) for name in part.settings)
    return f"out of memory: lower {_farthest(config, settings)}"


def _gib(size: int) -> str:
    return f"{min(size, 2**80) / 2**30:,.1f} GiB"  # a number of any length may be typed


def _farthest(config: Any, settings: tuple[str, ...]) -> str:
    """Of these settings the one that lies farthest above its default."""
    return max(
        settings, key=lambda name: Fraction(_largest(getattr(config, name)), _largest(getattr(type(config), name, 1)))
    )


def _parts(config: Any) -> Iterator[_Part]:
    """The widest layer of an update, the weights, the widest layer of an evaluation."""
    return _of_transformer(config) if hasattr(config, "seq_len") else _of_perceptrons(config)


def _of_perceptrons(config: Any) -> Iterator[_Part]:
    """An update's batch in every network, the weights, an evaluation's episodes."""
    batch, episodes = _named(config, "batch_size"), _named(config, "n_episodes")
    if batch:
        batch += _named(config, "cql_n_actions")
    for network in _networks(config):
        number = prod(getattr(config, name) for name in network.several)
        if batch:
            rows = prod(getattr(config, name) for name in batch)
            yield _Part(_FLOAT * number * rows * network.width, (*batch, *network.settings, *network.several))
        if network.settings:
            yield _Part(_FLOAT * _COPIES * number * network.weights, (*network.settings, *network.several))
    if episodes:
        acting = next((name for name in _ACTING if hasattr(config, name)), None)
        width = _WIDTH if acting is None else _largest(getattr(config, acting))
        yield _Part(config.n_episodes * (_FLOAT * width + _EPISODE), (*episodes, *([acting] if acting else [])))


def _networks(config: Any) -> Iterator[_Network]:
    """Those whose settings say it; one of the usual size where none does."""
    names = [field.name for field in dataclasses.fields(config) if re.search(r"hidden_dims?$", field.name)]
    for name in names:
        hidden = getattr(config, name)
        many = ("n_critics", "n_ensemble") if name.startswith(("critic", "hidden")) else ()
        several = tuple(each for each in many if hasattr(config, each))
        if isinstance(hidden, tuple):
            pairs = list(pairwise(hidden)) or [(hidden[0], 0)]
            yield _Network((name,), max(map(sum, pairs)), sum(first * second for first, second in pairs), several)
            continue
        for deep in [found for setting in _DEPTHS if (found := _named(config, setting))] or [()]:
            depth = getattr(config, deep[0]) if deep else _LAYERS
            yield _Network((name, *deep), min(depth, _LAYERS) * hidden, (depth - 1) * hidden**2, several)
    if not names:
        yield _Network((), _LAYERS * _WIDTH, _WIDTH**2, ())


def _largest(value: Any) -> int:
    """The number that a setting is, or the largest of several."""
    return max(value) if isinstance(value, tuple) else value


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
