"""Environments with image observations in the form that networks need: bytes, channels first, stacked frames."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.wrappers import FrameStackObservation

from shared.errors import InputError


def pictured(env: gymnasium.Env) -> gymnasium.Env:
    """Converts an environment's images to bytes (C, H, W); returns an environment without images unchanged.

    An image is a box of bytes or of bits, with three axes, or with two if it is grey. A set bit becomes 255.
    """
    return _Pictures(env) if is_image(env.observation_space) else env


def is_image(space: gymnasium.Space) -> bool:
    """Whether observations in a space are images, with channels first or last, or grey."""
    return isinstance(space, Box) and len(space.shape) in (2, 3) and space.dtype in (np.uint8, np.bool_)


def channels_first(images: np.ndarray, in_front: int) -> np.ndarray:
    """Converts images (..., C, H, W), (..., H, W, C) or grey ones (..., H, W) to (..., C, H, W).

    Height and width are the two axes that are equal. If that is ambiguous, the shorter of the first and the last axis
    is the channels.

    Args:
        images: Images with two or three axes, after `in_front` others.
        in_front: The number of axes before an image's own: 0 for one image, 1 for rows of images.
    """
    if images.ndim == in_front + 2:
        return np.expand_dims(images, in_front)
    first, middle, last = images.shape[in_front:]
    if middle == last or (first != middle and last >= first):
        return images
    return np.moveaxis(images, -1, -3)


def as_bytes(images: np.ndarray) -> np.ndarray:
    """Converts images of bytes or bits to bytes; a set bit becomes 255."""
    return images.astype(np.uint8) * np.uint8(255) if images.dtype == np.bool_ else images


class _Pictures(gymnasium.ObservationWrapper):
    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        shape = channels_first(np.empty(env.observation_space.shape or ()), 0).shape
        self.observation_space = Box(0, 255, shape, np.uint8)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """Converts an observation to an image (C, H, W)."""
        return as_bytes(channels_first(observation, 0))


def stacked(env: gymnasium.Env, frame_stack: int) -> gymnasium.Env:
    """Stacks an environment's last F frames to images (F * C, H, W), the oldest first; black before the first frame.

    Args:
        env: An environment that `pictured` has returned.
        frame_stack: F.

    Raises:
        InputError: The environment has no images, and F is more than 1.
    """
    if frame_stack == 1:
        return env
    if len(shape := env.observation_space.shape or ()) != 3:
        raise InputError("only images can be stacked: set frame_stack to 1")
    channels, *size = shape
    space = Box(0, 255, (frame_stack * channels, *size), np.uint8)
    frames = FrameStackObservation(env, frame_stack, padding_type="zero")
    return gymnasium.wrappers.TransformObservation(frames, lambda frames: frames.reshape(space.shape), space)
