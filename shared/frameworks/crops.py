"""Batches whose images an update moves at random, in either framework.

Yarats et al., Image Augmentation Is All You Need, 2020, https://arxiv.org/abs/2004.13649
"""

from collections.abc import Callable
from typing import Any

from shared.data.transitions import Batch


def cropped(crop: Callable[[Any, Any, int], Any], batch: Batch, crops: Any, padding: int) -> Batch:
    """The batch with each image moved its own way, before and after the step; all passes see the same.

    Args:
        crop: The framework's own.
        batch: Its observations are images, (B, C, H, W).
        crops: Row and column where padded images are cropped, (2, B, 2), observations first; None: nothing moves.
        padding: Pixels on each side.
    """
    if crops is None:
        return batch
    now, then = crops
    observations = crop(batch.observations, now, padding)
    return batch._replace(observations=observations, next_observations=crop(batch.next_observations, then, padding))
