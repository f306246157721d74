"""A dataset on the device, in PyTorch. `shared/frameworks/jax_data.py` holds the same names for JAX."""

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from shared.data.images import moved

# A named tuple of columns, such as a `Batch`
Rows = TypeVar("Rows", bound=tuple)


# What stays as it is: finite actions, and images and their places in a dataset
_KEPT = (torch.int64, torch.int32, torch.uint8)


def to_device(dataset: Rows, device: torch.device) -> Rows:
    """The dataset as tensors on `device`, shapes and kind of tuple kept: of torch's default dtype, or whole numbers.

    Stacks of images stay stacks: both columns of them share their frames.
    """
    dtype = torch.get_default_dtype()

    def move(column: np.ndarray) -> Tensor:
        tensor = torch.as_tensor(column)
        return tensor.to(device, tensor.dtype if tensor.dtype in _KEPT else dtype)

    return type(dataset)(*moved(dataset, move))


def take(dataset: Rows, indices: Tensor) -> Rows:
    """The rows `indices`, (B,) for a batch or (B, K) for windows, of the dataset: a tuple of its kind."""
    return type(dataset)(*(column[indices] for column in dataset))


def index_tensor(indices: np.ndarray, device: torch.device) -> Tensor:
    """NumPy's indices (B,) on the device; the host goes on before a GPU has them."""
    return torch.as_tensor(indices).to(device, non_blocking=True)


def store(dataset: Rows, columns: Rows, at: int) -> Rows:
    """The dataset with rows from number `at` on overwritten by NumPy columns (n, ...), in place."""
    for whole, column in zip(dataset, columns, strict=True):
        whole[at : at + len(column)] = torch.as_tensor(column, dtype=whole.dtype)
    return dataset
