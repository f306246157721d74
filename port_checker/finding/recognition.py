"""Guesses which algorithm a file is a port of, if it cannot be the one that it is checked as."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
from torch import nn

from parity_tests.ladder.scene import Scene
from parity_tests.pair import Pair
from parity_tests.pairs import PAIRS
from port_checker.finding.fields import called, field, weights_of
from port_checker.finding.port import Port, reference_parts
from shared.errors import InputError
from shared.frameworks.exchange import named, torch_part
from shared.frameworks.part_names import spelling_of


def likelier(port: Port) -> list[str]:
    """The other algorithms whose names and network sizes the file has, if it lacks its own; several if they tie."""
    words = set(re.findall(r"\w+", Path(port.file).read_text(encoding="utf-8", errors="replace")))
    near = [pair for pair in PAIRS.values() if _found(pair, words) == len(_names(pair)) and _as_large(port, pair)]
    found = _found(port.pair, words)
    most = max((len(_names(pair)) for pair in near), default=0)
    if port.pair in near or most < found:
        return []
    return [pair.name for pair in near if len(_names(pair)) == most]


@cache
def _sizes(name: str, left: frozenset[str]) -> dict[str, int]:
    """The number of weights in each of the reference's networks, under the default settings except those in `left`."""
    pair = PAIRS[name]
    trainer = Scene.create(pair, pair.jax, "default", "bundled", warm=False, left=left).trainer
    return {part: _numbers(torch_part(trainer, part)) for part in _networks(pair)}


def _as_large(port: Port, pair: Pair) -> bool:
    """Whether the file's networks are as large as the reference's; true if the file has not created a state yet."""
    try:
        if port.created is None:
            return True
        found = {
            part: _numbers(weights_of(field(port.created, called(port.created, part, _networks(pair)))))
            for part in _networks(pair)
        }
        # A file may get other sizes than the ladder's, or have its own.
        return found in (_sizes(pair.name, left) for left in (frozenset(), frozenset(pair.variants["default"])))
    except InputError:
        return False


def _numbers(tree: Any) -> int:
    tree = named(tree) if isinstance(tree, nn.Module | torch.Tensor) else tree
    return sum(np.size(leaf) for leaf in jax.tree.leaves(tree))


def _names(pair: Pair) -> set[str]:
    """The names that a port has to take over from the reference."""
    return {*pair.losses, *_networks(pair)}


def _found(pair: Pair, words: set[str]) -> int:
    """How many of the pair's names are among the words, in any spelling."""
    return sum(spelling_of(name, words, _names(pair)) in words for name in _names(pair))


def _networks(pair: Pair) -> list[str]:
    return [name for name in reference_parts(pair) if not name.endswith("_optimizer")]
