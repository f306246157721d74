"""Estimates of a run's memory: settings that cannot fit are refused, and running out of memory ends in one line.

Settings have the same names in all algorithms, so memory is estimated from them by name, without building a network.
The estimate is a lower bound for every twin. Therefore no run is refused that would fit, but a run that passes may
still not fit.
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
# Settings with the hidden widths of the network that acts
_ACTING = ("actor_hidden_dims", "hidden_dims", "hidden_dim")
# Settings with the number of layers of width `hidden_dim`
_DEPTHS = ("critic_n_hiddens", "actor_n_hiddens")
# Defaults for networks whose config has no such settings
_WIDTH, _LAYERS = 256, 2
# Copies of each weight: the weight itself, and the optimiser's two moments
_COPIES = 3
# Bytes that an evaluation keeps for each episode, in addition to its observation: a seed, the return, the length
_EPISODE = 56
# Phrases that only occur in PyTorch's, XLA's, cuBLAS's and MuJoCo's out-of-memory errors
_COMPLAINTS = (
    "RESOURCE_EXHAUSTED",
    "can't allocate memory",
    "not enough memory",
    "ut of memory",
    "ALLOC_FAILED",
    "ould not allocate",
)


class _Part(NamedTuple):
    """A part of a run's memory: its size in bytes, and the settings that it grows with."""

    needed: int
    settings: tuple[str, ...]


class _Network(NamedTuple):
    """A network's hidden layers.

    Attributes:
        settings: The settings for widths and number of layers.
        width: Summed width of two adjacent layers, which are in memory together because the second reads the first.
        weights: Number of weights between the layers.
        several: The settings that say how many such networks there are.
    """

    settings: tuple[str, ...]
    width: int
    weights: int
    several: tuple[str, ...]


def check_settings(config: Any) -> None:
    """Checks that settings are within bounds, and that their networks, batch and episodes can fit in memory.

    Raises:
        InputError: A setting is out of bounds or needs too much memory; the message names it.
    """
    check(config)
    for part in _parts(config):
        name = _farthest(config, part.settings)
        check_size(name, getattr(config, name), part.needed, config.device)


def check_size(name: str, value: int | tuple[int, ...], needed: int, device: str = "cpu") -> None:
    """Checks that this machine has enough memory for a setting.

    Args:
        name: The name of the setting.
        value: The value of the setting.
        needed: A lower bound of its memory in bytes.
        device: The device that needs the memory, as a config names it; unless it is the CPU, a GPU's memory counts too.

    Raises:
        InputError: This machine has less memory.
    """
    there = memory()
    if needed > there and device != "cpu":
        there = max(there, gpu_memory())
    if needed > there:
        shown = f"[{','.join(map(str, value))}]" if isinstance(value, tuple) else value
        raise InputError(f"{name} {shown} needs at least {_gib(needed)}, this machine has {_gib(there)}: lower {name}")


def is_exhausted(error: BaseException | None) -> bool:
    """Whether an exception means that memory ran out, whether Python, the system or a package raised it."""
    if isinstance(error, InputError | RunError):
        return False
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or any(complaint in str(error) for complaint in _COMPLAINTS)


def advice(config: Any) -> str:
    """Returns advice for a run that ran out of memory."""
    settings = tuple(name for part in _parts(config) for name in part.settings)
    return f"out of memory: lower {_farthest(config, settings)}"


def _gib(size: int) -> str:
    return f"{min(size, 2**80) / 2**30:,.1f} GiB"  # users may type numbers of any length


def _farthest(config: Any, settings: tuple[str, ...]) -> str:
    """The setting that exceeds its default by the largest factor."""
    return max(
        settings, key=lambda name: Fraction(_largest(getattr(config, name)), _largest(getattr(type(config), name, 1)))
    )


def _parts(config: Any) -> Iterator[_Part]:
    """Yields the widest layer of an update, the weights, and the widest layer of an evaluation."""
    return _of_transformer(config) if hasattr(config, "seq_len") else _of_perceptrons(config)


def _of_perceptrons(config: Any) -> Iterator[_Part]:
    """Yields an update's batch in every network, the weights, and an evaluation's episodes."""
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
    """Yields the networks that the settings describe, or one network of the usual size if they describe none."""
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
    """The value of a setting, or the largest of several values."""
    return max(value) if isinstance(value, tuple) else value


def _named(config: Any, name: str) -> tuple[str, ...]:
    """The name in a tuple if the config has this setting, otherwise an empty tuple."""
    return (name,) if hasattr(config, name) else ()


def _of_transformer(config: Any) -> Iterator[_Part]:
    """Estimates a transformer, whose largest layer is the MLP or the attention; the last layer only computes states."""
    width, steps = config.embedding_dim, config.seq_len
    weights = 12 * width**2 * config.num_layers + (config.episode_len + steps) * width
    queries = 3 * steps if config.num_layers > 1 else steps
    layer = _FLOAT * queries * max(4 * width, 3 * steps * config.num_heads)
    yield _Part(config.batch_size * layer, ("batch_size", "seq_len", "embedding_dim", "num_heads"))
    yield _Part(_FLOAT * _COPIES * weights, ("embedding_dim", "num_layers", "seq_len", "episode_len"))
    yield _Part(config.n_episodes * (layer + _EPISODE), ("n_episodes", "seq_len", "embedding_dim", "num_heads"))
