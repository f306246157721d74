"""Environments that show images, as networks see them: bytes, channels first, the last few frames together."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.wrappers import FrameStackObservation

from shared.errors import InputError


def pictured(env: gymnasium.Env) -> gymnasium.Env:
    """The environment with images (C, H, W) of bytes; one that shows no images as it is.

    An image is a box of bytes or of bits, of three axes, or of two where it is grey. A set bit becomes 255.
    """
    return _Pictures(env) if is_image(env.observation_space) else env


def is_image(space: gymnasium.Space) -> bool:
    """Whether observations of a space are images, wherever their channels stand."""
    return isinstance(space, Box) and len(space.shape) in (2, 3) and space.dtype in (np.uint8, np.bool_)


def channels_first(images: np.ndarray, in_front: int) -> np.ndarray:
    """Images (..., C, H, W) of such, of (..., H, W, C), or of grey ones (..., H, W).

    Height and width are the two axes that are equal. Where that does not tell, the shorter one of the first and the
    last axis is that of the channels.

    Args:
        images: They have two or three axes behind those in front.
        in_front: How many axes stand in front of an image's own: 0 for one image, 1 for rows of them.
    """
    if images.ndim == in_front + 2:
        return np.expand_dims(images, in_front)
    first, middle, last = images.shape[in_front:]
    if middle == last or (first != middle and last >= first):
        return images
    return np.moveaxis(images, -1, -3)


def as_bytes(images: np.ndarray) -> np.ndarray:
    """Images of bytes or of bits as bytes; a set bit is 255."""
    return images.astype(np.uint8) * np.uint8(255) if images.dtype == np.bool_ else images


class _Pictures(gymnasium.ObservationWrapper):
    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        shape = channels_first(np.empty(env.observation_space.shape or ()), 0).shape
        self.observation_space = Box(0, 255, shape, np.uint8)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """An image (C, H, W)."""
        return as_bytes(channels_first(observation, 0))


def stacked(env: gymnasium.Env, frame_stack: int) -> gymnasium.Env:
    """The environment with images (F * C, H, W) of the last F frames, the oldest first; black before the first frame.

    Args:
        env: As `pictured` returns it.
        frame_stack: F.

    Raises:
        InputError: It shows no images, and F is more than 1.
    """
    if frame_stack == 1:
        return env
    if len(shape := env.observation_space.shape or ()) != 3:
        raise InputError("only images can be stacked: set frame_stack to 1")
    channels, *size = shape
    space = Box(0, 255, (frame_stack * channels, *size), np.uint8)
    frames = FrameStackObservation(env, frame_stack, padding_type="zero")
    return gymnasium.wrappers.TransformObservation(frames, lambda frames: frames.reshape(space.shape), space)
