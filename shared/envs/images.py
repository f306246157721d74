"""Environments that show images, as networks see them: bytes, channels first, the last few frames together."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.wrappers import FrameStackObservation

from shared.errors import InputError


def pictured(env: gymnasium.Env) -> gymnasium.Env:
    """The environment with images (C, H, W) of bytes; one that shows no images as it is.

    An image is a box of three axes, of bytes or of bits. A set bit becomes 255.
    """
    return _Pictures(env) if is_image(env.observation_space) else env


def is_image(space: gymnasium.Space) -> bool:
    """Whether observations of a space are images, wherever their channels stand."""
    return isinstance(space, Box) and len(space.shape) == 3 and space.dtype in (np.uint8, np.bool_)


def channels_first(images: np.ndarray) -> np.ndarray:
    """Images (..., C, H, W) of such or of (..., H, W, C): the shorter one of these axes is that of the channels."""
    return np.moveaxis(images, -1, -3) if images.shape[-1] < images.shape[-3] else images


def as_bytes(images: np.ndarray) -> np.ndarray:
    """Images of bytes or of bits as bytes; a set bit is 255."""
    return images.astype(np.uint8) * np.uint8(255) if images.dtype == np.bool_ else images


class _Pictures(gymnasium.ObservationWrapper):
    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        shape = channels_first(np.empty(env.observation_space.shape or ())).shape
        self.observation_space = Box(0, 255, shape, np.uint8)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """An image (C, H, W)."""
        return as_bytes(channels_first(observation))


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
