"""Made-up images for the ladder's pairs that read them: each shows a vector of a dataset's rows."""

from collections.abc import Mapping

import numpy as np

# Channels of a frame, and its sides: so large that the last layer of convolutions is more than a pixel wide
CHANNELS = 2
SIDES = {"minatar": (6, 5), "nature": (44, 40), "impala": (17, 12), "resnet": (20, 17)}
# How far the numbers of a state move a pixel: some reach black or white
CONTRAST = 60.0


def pictures(states: np.ndarray, encoder: str) -> np.ndarray:
    """Images (N, C, H, W) of bytes, of states (N, S): each pixel is a sum of the state's numbers."""
    shape = CHANNELS, *SIDES[encoder]
    weights = np.random.default_rng(5).normal(size=(states.shape[1], int(np.prod(shape))))
    pixels = 128.0 + CONTRAST * states @ weights / np.sqrt(states.shape[1])
    return np.clip(pixels, 0.0, 255.0).astype(np.uint8).reshape(len(states), *shape)


def pictured(raw: Mapping[str, np.ndarray], encoder: str) -> dict[str, np.ndarray]:
    """A dataset's arrays, with images in place of states."""
    states = raw["observations"]
    return {**raw, "observations": pictures((states - states.mean(axis=0)) / states.std(axis=0), encoder)}
