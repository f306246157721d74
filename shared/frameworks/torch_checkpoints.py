"""Checkpoints of the PyTorch twins, and the states of random generators.

`shared/frameworks/jax_checkpoints.py` has the same names for JAX.
"""

import codecs
import io
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shared.errors import InputError, RunError
from shared.files import write_atomically
from shared.frameworks import d3rlpy_models, torch_parts
from shared.frameworks.part_names import by_part
from shared.frameworks.torch_side import mean_metrics
from shared.runs.checkpoints import READERS
from shared.runs.run import Run
from shared.seals import read_verified, sealed_zip


def generator_states() -> dict[str, Any]:
    """The states of NumPy's global generator, Python's and torch's, in a form that a checkpoint can store."""
    _, words, *rest = np.random.get_state(legacy=True)
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {
        "numpy": (torch.as_tensor(np.asarray(words).astype(np.int64)), *rest),
        "python": random.getstate(),
        "torch": torch.get_rng_state(),
        "cuda": cuda,
    }


def restore_generators(states: Mapping[str, Any]) -> None:
    """Restores the generators' states; the GPUs' states only if there are as many GPUs as before."""
    words, *rest = states["numpy"]
    np.random.set_state(("MT19937", words.numpy().astype(np.uint32), *rest))
    if "python" in states:  # SAC's older checkpoints lack it, and SAC does not draw from it
        random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    if len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(states["cuda"])


# The functions with which NumPy 1 and later versions pickle arrays of numbers
_ARRAYS = [
    *((np.empty(0).__reduce__()[0], f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
    *(np.ndarray, np.dtype, *map(type, map(np.dtype, (np.float32, np.float64))), codecs.encode),
]


def save_checkpoint(path: Path, algorithm: str, parts: Mapping[str, Any]) -> None:
    """Writes a sealed file that plain `torch.load` reads, atomically.

    Args:
        path: The path, such as `checkpoint.pt`.
        algorithm: Name of the algorithm, such as `td3_bc`.
        parts: Entries under CORL's keys: modules and optimisers, stored as their `state_dict`s, arrays, stored as
            tensors, and plain values. An entry `history` contains the metrics of single updates. The states of the
            random generators are added.

    Raises:
        RunError: A number in the state is not finite.
        OSError: The file cannot be written.
    """
    content = {"algorithm": algorithm, **{name: _storable(part) for name, part in parts.items()}}
    if "history" in parts:
        content["history"] = _stacked(parts["history"])
    for name, tensor in _tensors(content):
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise RunError(f"{name} is not finite")
    buffer = io.BytesIO()
    torch.save({**content, "generators": generator_states()}, buffer)
    write_atomically(path, sealed_zip(buffer.getbuffer()))


def _storable(part: Any) -> Any:
    if hasattr(part, "state_dict"):
        return part.state_dict()
    return torch.as_tensor(part) if isinstance(part, np.ndarray) else part


def _stacked(history: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Stacks each metric's values to one tensor, because writing thousands of single numbers would take long."""
    names = sorted({name for metrics in history for name in metrics})
    return {name: torch.stack([metrics[name] for metrics in history if name in metrics]) for name in names}


def _tensors(content: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yields all tensors in a checkpoint, with their paths of keys."""
    if isinstance(content, Tensor):
        yield name, content
    elif isinstance(content, Mapping | list | tuple):
        items = content.items() if isinstance(content, Mapping) else enumerate(content)
        for key, value in items:
            yield from _tensors(value, f"{name}.{key}" if name else str(key))


def restore(
    run: Run,
    load: Callable[[str], dict[str, Any]],
    device: torch.device,
    go_on: Callable[[str, Mapping[str, Any]], None] = lambda path, content: None,
) -> list[dict[str, Tensor]]:
    """Loads the checkpoint that the run starts from, if there is one; see `Run.restore`.

    Returns:
        The metrics since the last logged row, if the run was stopped between two rows. The run consumes this list at
        each `log_freq`.
    """
    if run.held_out is not None:
        from shared.frameworks.torch_held_out import Measures  # which imports this module

        run.measures = Measures(run.held_out, device)
    content = run.restore(load, go_on=go_on)
    history: list[dict[str, Tensor]] = []
    if run.step:
        restore_generators(content["generators"])
        values = {name: stacked.to(device).unbind() for name, stacked in content.get("history", {}).items()}
        history += [{name: value} for name, column in values.items() for value in column]
    run.take_from(history, mean_metrics)
    return history


def load_checkpoint(
    path: str,
    algorithm: str | Sequence[str],
    parts: Mapping[str, Any],
    optional: Sequence[str] = (),
    pickled: Sequence[type] = (),
    numbers: Sequence[str] = (),
    d3rlpy: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Any]:
    """Loads one of our checkpoints, or one of CORL's, into `parts`, in place, after checking all of it.

    Args:
        path: The `.pt` file.
        algorithm: The algorithm, or several, from which the file may be.
        parts: Modules and optimisers by the file's key, as for `save_checkpoint`. Keys in files from before a renaming
            may differ.
        optional: Keys that CORL's files lack; such a part stays unchanged if the file has none.
        pickled: Classes that CORL pickled whole, under its script's name; apart from NumPy's arrays, no others are
            allowed.
        numbers: Further keys, of finite numbers, which the caller loads itself.
        d3rlpy: Names in d3rlpy's files of each module (`d3rlpy_models.translated`); None if d3rlpy's networks differ.

    Returns:
        The contents of the file, by key.

    Raises:
        InputError: The file is missing, damaged, from another algorithm, has other shapes, or contains unexpected
            entries.
    """
    # CORL's files are scripts, so the classes that they pickle are named after __main__.
    content = read_checkpoint(path, [(cls, f"__main__.{cls.__name__}") for cls in pickled])
    fitting = [algorithm] if isinstance(algorithm, str) else list(algorithm)
    if d3rlpy_models.is_model(content):
        content = _of_d3rlpy(path, content, fitting[0], parts, d3rlpy)
    if (found := content.get("algorithm", fitting[0])) not in fitting:
        raise InputError(f"checkpoint {path} is of {found}, not of {' or '.join(fitting)}")
    content = by_part(content, parts)
    if missing := [name for name in [*parts, *numbers, "total_it"] if name not in content and name not in optional]:
        raise InputError(f"checkpoint {path} is not of {fitting[0]}: it has no {', '.join(missing)}")
    states = {name: _state(content[name]) for name in parts if name in content}
    _check_all(path, parts, states, content, numbers)
    for name, state in states.items():
        parts[name].load_state_dict(state)
    return content


def _of_d3rlpy(
    path: str,
    content: Mapping[str, Any],
    algorithm: str,
    parts: Mapping[str, Any],
    names: Mapping[str, Sequence[str]] | None,
) -> dict[str, Any]:
    if names is None:
        raise InputError(f"checkpoint {path} is d3rlpy's, whose networks {algorithm} does not have: train it anew")
    try:
        return d3rlpy_models.translated(content, parts, names)
    except torch_parts.MisfitError as error:
        raise InputError(f"checkpoint {path} of d3rlpy does not fit this run's networks: {error}") from None


def _state(saved: Any) -> Any:
    return saved.state_dict() if isinstance(saved, nn.Module) else saved


def _check_all(
    path: str, parts: Mapping[str, Any], states: Mapping[str, Any], content: Mapping[str, Any], numbers: Sequence[str]
) -> None:
    """Raises an InputError for the first entry that a run could not have written."""
    name = ""
    try:
        for name, state in states.items():
            torch_parts.check(parts[name], state)
        for name in numbers:
            torch_parts.check_finite(content[name])
        for name, check in (("generators", torch_parts.check_generators), ("history", torch_parts.check_history)):
            if name in content:
                check(content[name])
    except torch_parts.MisfitError as error:
        raise InputError(f"checkpoint {path} does not fit this run's networks: {name} {error}") from None


def read_checkpoint(path: str, allowed: Sequence[tuple[type, str]] = ()) -> dict[str, Any]:
    """Reads a checkpoint of ours or of CORL's, by key, on the CPU; it only reads data and runs no code.

    Args:
        path: The `.pt` file.
        allowed: Classes that it may contain, in addition to NumPy's arrays, with their names in the file.

    Raises:
        InputError: The file is missing, damaged, or not a checkpoint.
    """
    if path.endswith(".msgpack"):
        raise InputError(f"checkpoint {path} is of a run in JAX: run `corl-twins convert` on it, with --to torch")
    try:
        content = io.BytesIO(read_verified(Path(path)))
        with torch.serialization.safe_globals([*_ARRAYS, *allowed]):
            content = torch.load(content, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise InputError(f"checkpoint {path} does not exist: check load_model") from None
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"checkpoint {path} cannot be read ({error.strerror}): check load_model") from None
    except Exception:  # PyTorch raises a dozen unrelated types, and some messages explain how to run a file's code
        raise InputError(
            f"checkpoint {path} cannot be read: it is damaged or holds more than data, and no code is run from a file; "
            "take a .pt file that a run of ours or of CORL's has saved"
        ) from None
    if not isinstance(content, dict):
        raise InputError(f"checkpoint {path} holds no networks by name: is it a run's checkpoint?")
    from shared.runs.facts import check_facts

    check_facts(content, path)
    return content


READERS[".pt"] = read_checkpoint
