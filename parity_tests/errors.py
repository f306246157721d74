"""Measures how far apart two states are."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def error(ours: ArrayLike, reference: ArrayLike, scale: float | None = None) -> float:
    """The largest difference, relative to `scale` or to the reference's largest entry; inf if the shapes differ."""
    ours, reference = np.asarray(ours, np.float64), np.asarray(reference, np.float64)
    if ours.shape != reference.shape or not np.isfinite(ours).all():
        return np.inf
    difference = np.abs(ours - reference).max(initial=0.0)
    scale = np.abs(reference).max(initial=0.0) if scale is None else scale
    return float(difference / scale) if scale else float(difference)


def errors(ours: Mapping[str, Any], reference: Mapping[str, Any], together: bool = False) -> dict[str, float]:
    """The error of each entry; `together` measures all of them relative to the largest entry of any.

    A name that only one side has counts as an infinite error.
    """
    scale = max(np.abs(np.asarray(value)).max(initial=0.0) for value in reference.values()) if together else None
    common = ours.keys() & reference.keys()
    alone = ours.keys() ^ reference.keys()
    return {name: error(ours[name], reference[name], scale) for name in sorted(common)} | dict.fromkeys(alone, np.inf)
