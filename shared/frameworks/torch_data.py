"""A dataset on the device, in PyTorch. `shared/frameworks/jax_data.py` has the same names for JAX."""

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from shared.data.images import moved

# A named tuple of columns, such as a `Batch`
Rows = TypeVar("Rows", bound=tuple)


# Types that are kept: of finite actions, and of images and their places in a dataset
_KEPT = (torch.int64, torch.int32, torch.uint8)


def to_device(dataset: Rows, device: torch.device) -> Rows:
    """Moves a dataset to `device` as tensors of torch's default dtype, or of integers; keeps shapes and tuple.

    Stacks of images stay stacks, and both columns of them keep sharing their frames.
    """
    dtype = torch.get_default_dtype()

    def move(column: np.ndarray) -> Tensor:
        tensor = torch.as_tensor(column)
        return tensor.to(device, tensor.dtype if tensor.dtype in _KEPT else dtype)

    return type(dataset)(*moved(dataset, move))


def take(dataset: Rows, indices: Tensor) -> Rows:
    """A batch of the rows `indices`, (B,), or (B, K) for windows."""
    return type(dataset)(*(column[indices] for column in dataset))


def index_tensor(indices: np.ndarray, device: torch.device) -> Tensor:
    """Copies NumPy's indices (B,) to the device, without waiting for a GPU."""
    return torch.as_tensor(indices).to(device, non_blocking=True)


def store(dataset: Rows, columns: Rows, at: int) -> Rows:
    """Overwrites the dataset's rows from `at` on by NumPy columns (n, ...), in place."""
    for whole, column in zip(dataset, columns, strict=True):
        whole[at : at + len(column)] = torch.as_tensor(column, dtype=whole.dtype)
    return dataset
