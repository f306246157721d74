"""A dataset on the device, in PyTorch. `shared/frameworks/jax_data.py` holds the same names for JAX."""

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

# A named tuple of columns, such as a `Batch`
Rows = TypeVar("Rows", bound=tuple)


def to_device(dataset: Rows, device: torch.device) -> Rows:
    """The dataset as tensors on `device`, shapes and kind of tuple kept: of torch's default dtype, or whole numbers."""
    tensors = (torch.as_tensor(column) for column in dataset)
    dtype = torch.get_default_dtype()
    return type(dataset)(
        *(tensor.to(device, tensor.dtype if tensor.dtype == torch.int64 else dtype) for tensor in tensors)
    )


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
