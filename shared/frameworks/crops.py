"""Random shifts of a batch's images, in either framework.

Yarats et al., Image Augmentation Is All You Need, 2020, https://arxiv.org/abs/2004.13649
"""

from collections.abc import Callable
from typing import Any

from shared.data.transitions import Batch


def cropped(crop: Callable[[Any, Any, int], Any], batch: Batch, crops: Any, padding: int) -> Batch:
    """Shifts each image of a batch, before and after the step, by its own offset; all uses of the batch see the same.

    Args:
        crop: The framework's `crop`.
        batch: A batch with images (B, C, H, W) as observations.
        crops: Row and column where padded images are cropped, (2, B, 2), observations first; None for no shifts.
        padding: Pixels on each side.
    """
    if crops is None:
        return batch
    now, then = crops
    observations = crop(batch.observations, now, padding)
    return batch._replace(observations=observations, next_observations=crop(batch.next_observations, then, padding))
