"""Common code of the PyTorch twins. `shared/frameworks/jax_side.py` has the same names for JAX."""

import random
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from shared.errors import InputError, reason

# A named tuple of columns, such as a `Batch`
Rows = TypeVar("Rows", bound=tuple)


def resolve_device(name: str) -> torch.device:
    """The device that a config's `device` names: `auto` is the GPU if there is one, else the CPU.

    CORL's files always say `cuda`, so on a machine without a GPU this prints a line to stderr and uses the CPU.

    Raises:
        InputError: PyTorch does not know the device, or cannot compute on it here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with warnings.catch_warnings(action="ignore"):  # about deprecated names
        device = _parsed(name)
        if device.type == "cuda" and not torch.cuda.is_available():
            if device.index:
                raise InputError(f"device {name} is not here, because PyTorch finds no GPU: use auto or cpu")
            print(f"device {name} is not available here: using cpu", file=sys.stderr)
            return torch.device("cpu")
        _try(device)
    return device


def _parsed(name: str) -> torch.device:
    try:
        return torch.device(name.replace("gpu", "cuda"))  # JAX's name for it
    except RuntimeError:
        raise InputError(f"device {name!r} is not one that PyTorch knows: use auto, cpu or cuda") from None


def _try(device: torch.device) -> None:
    """Adds two numbers on the device, to check that it works.

    Raises:
        InputError: It does not work.
    """
    try:
        torch.ones(1, device=device).add(1).item()
    except Exception as error:  # each device raises its own type
        raise InputError(f"device {device} cannot compute here ({reason(error)}): use auto, cpu or cuda") from None


def seed_everything(seed: int, deterministic: bool = False) -> None:
    """Seeds NumPy's global generator (batch indices), Python's and torch's, as CORL does before it builds networks.

    Args:
        seed: The seed of all three.
        deterministic: Whether torch should refuse operations that are not deterministic.
    """
    np.random.seed(seed)
    random.seed(seed)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(deterministic)


@torch.no_grad()
def on_arrays(policy: Callable[..., Tensor], network: nn.Module, *arrays: np.ndarray) -> np.ndarray:
    """Calls a network's policy with NumPy arrays: floats become the network's type, integers stay."""
    weight = next(network.parameters())
    tensors = (torch.as_tensor(array, device=weight.device) for array in arrays)
    inputs = (tensor.to(weight.dtype) if tensor.is_floating_point() else tensor for tensor in tensors)
    return policy(network, *inputs).cpu().numpy()


def mean_metrics(history: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
    """The mean of each metric over the updates that reported it, with one device sync for a whole interval."""
    names = {name for metrics in history for name in metrics}
    return {name: torch.stack([m[name] for m in history if name in m]).mean().item() for name in sorted(names)}
