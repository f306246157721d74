"""Made-up images for pairs that learn from images: each shows the vector of a dataset row."""

from collections.abc import Mapping

import numpy as np

# A frame's channels and sides, so large that the last convolution's output has more than one pixel
CHANNELS = 2
SIDES = {"minatar": (6, 5), "nature": (44, 40), "impala": (17, 12), "resnet": (20, 17)}
# How strongly the numbers of a state change a pixel: some pixels become black or white
CONTRAST = 60.0


def pictures(states: np.ndarray, encoder: str) -> np.ndarray:
    """Renders states (N, S) as images (N, C, H, W) of bytes; each pixel is a weighted sum of the state's numbers."""
    shape = CHANNELS, *SIDES[encoder]
    weights = np.random.default_rng(5).normal(size=(states.shape[1], int(np.prod(shape))))
    pixels = 128.0 + CONTRAST * states @ weights / np.sqrt(states.shape[1])
    return np.clip(pixels, 0.0, 255.0).astype(np.uint8).reshape(len(states), *shape)


def pictured(raw: Mapping[str, np.ndarray], encoder: str) -> dict[str, np.ndarray]:
    """Replaces the states in a dataset's arrays by images."""
    states = raw["observations"]
    return {**raw, "observations": pictures((states - states.mean(axis=0)) / states.std(axis=0), encoder)}
