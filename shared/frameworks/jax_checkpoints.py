"""Checkpoints of the JAX twins, and weights under PyTorch's names and in PyTorch's layout.

`shared/frameworks/torch_checkpoints.py` has the same names for PyTorch's checkpoints.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization, traverse_util

from shared.errors import InputError, RunError
from shared.files import write_atomically
from shared.frameworks import jax_parts
from shared.frameworks.jax_held_out import Measures
from shared.frameworks.jax_layers import Params
from shared.frameworks.part_names import by_part
from shared.runs import seeds
from shared.runs.checkpoints import READERS
from shared.runs.run import Run
from shared.seals import BLANK, read_verified, sealed

T = TypeVar("T")

# Our names for lists of modules, to which flax appends a number
_LIST = re.compile(r"(members|backbones|readers)_")


def _torch_name(path: Sequence[str]) -> str:
    """PyTorch's name of a parameter: `('net', 'layers_0', 'kernel')` is `net.0.weight`; `members_0` is `members.0`."""
    leaf = {"kernel": "weight", "scale": "weight", "embedding": "weight"}.get(path[-1], path[-1])
    names = (part.removeprefix("layers_") for part in path[:-1])
    return ".".join([*(_LIST.sub(r"\1.", name) for name in names), leaf])


def _as_flax(path: Sequence[str], values: np.ndarray) -> np.ndarray:
    """Converts PyTorch's layout to flax's: transposes kernels of two axes, but not an ensemble's (E, in, out).

    Convolution kernels are (out, in, height, width) in PyTorch and (height, width, in, out) in flax. `_as_torch` does
    the reverse.
    """
    if path[-1] == "kernel" and values.ndim == 4:
        return values.transpose(2, 3, 1, 0)
    return values.T if path[-1] == "kernel" and values.ndim == 2 else values


def _as_torch(path: Sequence[str], values: np.ndarray) -> np.ndarray:
    return values.transpose(3, 2, 0, 1) if path[-1] == "kernel" and values.ndim == 4 else _as_flax(path, values)


def params_from_torch(state_dict: Mapping[str, Any], like: Params) -> Params:
    """Converts a PyTorch `state_dict` to flax parameters with the structure and dtypes of `like`.

    Raises:
        KeyError: the state dict lacks a parameter, or has one that `like` lacks.
        ValueError: a shape differs.
    """
    flat = traverse_util.flatten_dict(like)
    names = {path: _torch_name(path) for path in flat}
    if surplus := set(state_dict) - set(names.values()):
        raise KeyError(f"no place for {sorted(surplus)}")
    params = {}
    for path, name in names.items():
        values = _as_flax(path, np.asarray(state_dict[name]))
        if values.shape != flat[path].shape:
            raise ValueError(f"{name}: shape {values.shape}, expected {flat[path].shape}")
        params[path] = jnp.asarray(values, flat[path].dtype)
    return traverse_util.unflatten_dict(params)


def params_to_torch(params: Params) -> dict[str, np.ndarray]:
    """Converts flax parameters to NumPy arrays under PyTorch's names and in PyTorch's layout."""
    flat = traverse_util.flatten_dict(params)
    return {_torch_name(path): _as_torch(path, np.asarray(values)) for path, values in flat.items()}


def save_checkpoint(path: Path, algorithm: str, state: Any, total_it: int, **facts: Any) -> None:
    """Writes a train state as sealed MessagePack (data only, no code), atomically.

    Args:
        path: The path, such as `checkpoint.msgpack`.
        algorithm: Name of the algorithm, such as `td3_bc`.
        state: The train state.
        total_it: The number of updates so far.
        facts: Further arrays and plain values, by name.

    Raises:
        RunError: A number in the state is not finite.
        OSError: The file cannot be written.
    """
    state = jax.device_get(state)
    for key_path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if jnp.issubdtype(leaf.dtype, jnp.floating) and not np.isfinite(leaf).all():
            raise RunError(f"{jax.tree_util.keystr(key_path).lstrip('.')} is not finite")
    content = {"algorithm": algorithm, "total_it": total_it, "state": serialization.to_state_dict(state), **facts}
    # In place, because the seal must stay the last entry, and flax would sort a copy.
    write_atomically(path, sealed(serialization.msgpack_serialize({**content, "seal": BLANK}, in_place=True)))


def read_checkpoint(path: str) -> dict[str, Any]:
    """Reads the contents of a checkpoint, by key; it only reads data and runs no code.

    Raises:
        InputError: The file is missing, damaged, or not a checkpoint.
    """
    if path.endswith(".pt"):
        raise InputError(f"checkpoint {path} is of a run in PyTorch: run `corl-twins convert` on it, with --to jax")
    try:
        content = serialization.msgpack_restore(read_verified(Path(path)))
    except FileNotFoundError:
        raise InputError(f"checkpoint {path} does not exist: check load_model") from None
    except InputError:
        raise
    except Exception:  # MessagePack raises a dozen unrelated types on damaged bytes
        content = None
    if not isinstance(content, dict) or not {"algorithm", "total_it", "state"} <= content.keys():
        raise InputError(f"checkpoint {path} cannot be read: is it a .msgpack file of a JAX run?")
    from shared.runs.facts import check_facts

    check_facts(content, path)
    return content


def load_checkpoint(
    path: str, algorithm: str | Sequence[str], state: Any, optional: Sequence[str] = ()
) -> dict[str, Any]:
    """Reads a checkpoint from `save_checkpoint`, and converts its state to a train state with the structure of `state`.

    Parts may have their names from before a renaming.

    Args:
        path: The `.msgpack` file.
        algorithm: The algorithm, or several, from which the file may be.
        state: A train state with the expected structure.
        optional: Parts that another algorithm's file lacks; they are taken from `state`.

    Returns:
        The contents of the file, by key, with the train state under `state`.

    Raises:
        InputError: The file is missing, damaged, from another algorithm, or has other shapes.
    """
    content = read_checkpoint(path)
    fitting = [algorithm] if isinstance(algorithm, str) else list(algorithm)
    if content["algorithm"] not in fitting:
        raise InputError(f"checkpoint {path} is of {content['algorithm']}, not of {' or '.join(fitting)}")
    try:
        own = serialization.to_state_dict(state)
        saved = {name: own[name] for name in optional} | by_part(content["state"], own)
        restored = serialization.from_state_dict(state, saved)
        jax_parts.check(restored, saved, state)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise InputError(f"checkpoint {path} does not fit this run's networks: {reason}") from None
    return {**content, "state": jax.tree.map(jnp.asarray, restored)}


def restore(
    run: Run,
    load: Callable[[str], Mapping[str, Any]],
    state: T,
    go_on: Callable[[str, Mapping[str, Any]], None] = lambda path, content: None,
) -> tuple[T, int]:
    """Loads the checkpoint that the run starts from, if there is one; see `Run.restore`.

    Returns:
        The loaded state, or else the given one, and the number of updates made before this run.
    """
    if run.held_out is not None:
        run.measures = Measures(run.held_out)
    saved = run.saved_steps
    if seeds.count() == 1 or saved is None:
        content = run.restore(load, go_on=go_on)
    else:
        # Only the same program gives the same bits, so all seeds must continue together from a common step.
        last = seeds.meet(-1, saved, lambda parts: [seeds.last_in_common(parts)] * len(parts))
        content = run.restore(load, last, go_on)
    return (content["state"], content["total_it"] - run.step) if content else (state, 0)


READERS[".msgpack"] = read_checkpoint
