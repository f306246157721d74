"""The plumbing of the JAX twins. `shared/frameworks/torch_side.py` holds the same names for PyTorch.

Beyond those: evaluation beside the training, PyTorch's initialisers and corner cases, a network that carries its
weights, and weight conversion.
"""

import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeGuard, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import serialization, struct, traverse_util
from jax import Array
from jax.nn.initializers import Initializer, variance_scaling

from shared.envs.evaluation import ContextPolicy
from shared.errors import InputError, RunError
from shared.files import cache_folder, write_atomically
from shared.frameworks import jax_parts
from shared.runs import seeds
from shared.runs.run import Run
from shared.seals import BLANK, read_verified, sealed

T = TypeVar("T")
# A dataclass of hyper-parameters
H = TypeVar("H", bound=Any)

# ---- device, dataset, metrics --------------------------------------------------------------------------------------


_DEVICE = re.compile(r"(cpu|cuda|gpu|tpu)(?::(\d{1,4}))?")


def resolve_device(name: str) -> jax.Device:
    """The device that a config's `device` names: `auto` is JAX's first choice, `cuda:1` the second GPU.

    CORL's files say `cuda` everywhere, so a machine without a GPU says so on standard error and uses the CPU.

    Raises:
        InputError: JAX does not know the device, finds none of that number, or `JAX_PLATFORMS` leaves it out.
    """
    default = default_device()
    if name == "auto":
        return default
    known = _DEVICE.fullmatch(name)
    if known is None:
        raise InputError(f"device {name!r} is not one that JAX knows: use auto, cpu, cuda or tpu")
    platform, number = known[1], int(known[2] or 0)
    devices = _devices(platform)
    if not devices:
        print(f"device {name} is not available here: using cpu", file=sys.stderr)
        platform, number, devices = "cpu", 0, _devices("cpu")
    if not devices:
        raise InputError(
            f"device {platform} is left out by JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS')}: unset it, or use auto"
        )
    if number >= len(devices):
        raise InputError(f"device {name} is not here: JAX finds {len(devices)} of its kind, counted from 0")
    return devices[number]


def default_device() -> jax.Device:
    """JAX's first choice; whoever uses JAX first asks for it.

    Raises:
        InputError: `JAX_PLATFORMS` names what is not here.
    """
    try:
        return jax.devices()[0]
    except (RuntimeError, AssertionError):  # the latter for cuda without a GPU
        asked = os.environ.get("JAX_PLATFORMS")
        if not asked:
            raise
        raise InputError(f"JAX finds no device for JAX_PLATFORMS={asked}: unset it, or set it to cpu") from None


def _devices(platform: str) -> Sequence[jax.Device]:
    """All of this kind; none where there is no such platform."""
    try:
        return jax.devices(platform)
    except RuntimeError:
        return []


def enable_compilation_cache() -> None:
    """Keeps compiled programs on disk, so that a second start of the same run does not compile again.

    Small ones too: a run has some sixty, which together take seconds to compile.

    The folder is `$JAX_COMPILATION_CACHE_DIR`, else `corl-twins/jax` in the user's cache folder.
    """
    cache = cache_folder() / "corl-twins" / "jax"
    jax.config.update("jax_compilation_cache_dir", os.environ.get("JAX_COMPILATION_CACHE_DIR", str(cache)))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def narrow(config: Any, hyperparameters: type[H]) -> H:
    """The part of a config that an update depends on, small and hashable: another seed compiles nothing anew."""
    return hyperparameters(**{field.name: getattr(config, field.name) for field in fields(hyperparameters)})


class PackedDataset(struct.PyTreeNode):
    """A dataset as one array with a row per transition, (N, 2S + A + 2) for a `Batch`: a batch is a single gather.

    Attributes:
        rows: The columns, flattened and side by side.
        kind: The named tuple that a batch is.
        shapes: The shape of each column's rows.
    """

    rows: Array
    kind: type = struct.field(pytree_node=False)
    shapes: tuple[tuple[int, ...], ...] = struct.field(pytree_node=False)

    def __len__(self) -> int:
        return self.rows.shape[0]


def to_device(dataset: Any) -> PackedDataset:
    """The dataset on JAX's default device, packed, in JAX's default float type; once for all seeds that share it."""
    return seeds.once(dataset, lambda: _packed(dataset))


def _packed(dataset: Any) -> PackedDataset:
    columns = [np.reshape(column, (len(column), math.prod(np.shape(column)[1:]))) for column in dataset]
    rows = jnp.asarray(np.concatenate(columns, axis=1), dtype=float)
    return PackedDataset(rows, type(dataset), tuple(np.shape(column)[1:] for column in dataset))


def take(dataset: PackedDataset, indices: Array) -> Any:
    """The rows `indices`, (B,) for a batch or (B, K) for windows, of the dataset: a tuple of its kind."""
    ends = np.cumsum([math.prod(shape) for shape in dataset.shapes])
    columns = jnp.split(dataset.rows[indices], ends[:-1], axis=-1)
    pairs = zip(columns, dataset.shapes, strict=True)
    return dataset.kind(*(column.reshape(*indices.shape, *shape) for column, shape in pairs))


def store(dataset: PackedDataset, columns: Any, at: int) -> PackedDataset:
    """The dataset with rows from number `at` on overwritten by NumPy columns (n, ...); the one given is used up.

    Raises:
        IndexError: There is no room for them, where XLA would write them further up.
    """
    if at + len(columns[0]) > len(dataset):
        raise IndexError(f"{len(columns[0])} rows at {at} do not fit into {len(dataset)}")
    return _overwrite(dataset, _packed(columns).rows, at)


@partial(jax.jit, donate_argnames="dataset")
def _overwrite(dataset: PackedDataset, rows: Array, at: Array) -> PackedDataset:
    return dataset.replace(rows=jax.lax.dynamic_update_slice(dataset.rows, rows, (at, 0)))


@jax.jit
def mean_metrics(history: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """The mean of each metric over the updates that reported it.

    Each mapping's values may be scalars or, out of a scan, arrays with one entry per update. A program of its own: as
    the end of the program that trains, it slows the scan before it on a CPU (IQL's by a sixteenth).
    """
    names = sorted({name for metrics in history for name in metrics})
    values = {name: jnp.concatenate([jnp.ravel(m[name]) for m in history if name in m]) for name in names}
    return {name: reports.mean() for name, reports in values.items() if reports.size}


# ---- networks ------------------------------------------------------------------------------------------------------

Params = Mapping[str, Any]


def torch_bias(fan_in: int) -> Callable[..., Array]:
    """PyTorch's default for a bias: U(-1/sqrt(fan_in), 1/sqrt(fan_in)), with its layer's fan-in."""

    def init(key: Array, shape: Sequence[int], dtype: Any = None) -> Array:
        return jax.random.uniform(key, shape, dtype, -(fan_in**-0.5), fan_in**-0.5)

    return init


def xavier_uniform(gain: float) -> Initializer:
    """`torch.nn.init.xavier_uniform_`: U(-b, b) with b = gain * sqrt(6 / (fan_in + fan_out))."""
    return variance_scaling(gain**2, "fan_avg", "uniform")


def linear(inputs: Array, kernel: Array, bias: Array) -> Array:
    """Maps (..., in) to (..., out) by a kernel (in, out) and a bias (out,).

    All leading axes are one in the product: on a CPU, XLA multiplies matrices faster than arrays of three axes.
    """
    rows = inputs.reshape(-1, inputs.shape[-1])
    return (rows @ kernel).reshape(*inputs.shape[:-1], kernel.shape[-1]) + bias


class Linear(nn.Module):
    """`torch.nn.Linear` with PyTorch's initialisation; the kernel is (in, out), PyTorch's weight transposed.

    `bias_init=None` is PyTorch's default, which needs the fan-in that flax does not tell a bias.
    """

    features: int
    # U(-1/sqrt(fan_in), 1/sqrt(fan_in)): PyTorch's Kaiming-uniform with a = sqrt(5)
    kernel_init: Initializer = variance_scaling(1 / 3, "fan_in", "uniform")
    bias_init: Initializer | None = None

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """Maps (..., in) to (..., features)."""
        fan_in = inputs.shape[-1]
        kernel = self.param("kernel", self.kernel_init, (fan_in, self.features), inputs.dtype)
        bias = self.param("bias", self.bias_init or torch_bias(fan_in), (self.features,), inputs.dtype)
        return linear(inputs, kernel, bias)


class Network(struct.PyTreeNode):
    """A flax module together with its weights: a pytree that can be called, differentiated and averaged."""

    params: Params
    module: nn.Module = struct.field(pytree_node=False)

    @classmethod
    def create(cls, module: nn.Module, key: Array, *inputs: Any) -> Self:
        """Initialises the weights for inputs of these shapes."""
        return cls(module.init(key, *inputs)["params"], module)

    def __call__(self, *inputs: Any) -> Any:
        """Applies the module."""
        return self.module.apply({"params": self.params}, *inputs)


# ---- dropout -------------------------------------------------------------------------------------------------------


def is_key(dropout: Any) -> TypeGuard[Array]:
    """Whether noise carries a random key in place of what is drawn from it."""
    return isinstance(dropout, Array) and jnp.issubdtype(dropout.dtype, jax.dtypes.prng_key)


def dropout_mask(key: Array, rate: float, shape: Sequence[int]) -> Array:
    """A mask to multiply by: 0 at the rate given, else 1 / (1 - rate)."""
    return jax.random.bernoulli(key, 1.0 - rate, shape) / (1.0 - rate)


# ---- PyTorch's corner cases ----------------------------------------------------------------------------------------


def clamp(inputs: Array, low: float, high: float) -> Array:
    """`torch.clamp`: its gradient is 1 at the bounds too, where `jnp.clip` has one half."""
    return jnp.where(inputs < low, low, jnp.where(inputs > high, high, inputs))


def softplus(inputs: Array) -> Array:
    """`torch.nn.functional.softplus`: the identity above 20, where ln(1 + e^x) still differs by 2e-9."""
    return jnp.where(inputs > 20.0, inputs, jax.nn.softplus(inputs))


# ---- weights and checkpoints ---------------------------------------------------------------------------------------


def _torch_name(path: Sequence[str]) -> str:
    """`('net', 'layers_0', 'kernel')` is PyTorch's `net.0.weight`."""
    leaf = {"kernel": "weight", "scale": "weight", "embedding": "weight"}.get(path[-1], path[-1])
    return ".".join([*(part.removeprefix("layers_") for part in path[:-1]), leaf])


def _transposed(path: Sequence[str], values: np.ndarray) -> np.ndarray:
    """A kernel of two axes is stored the other way round; an ensemble's (E, in, out) is not."""
    return values.T if path[-1] == "kernel" and values.ndim == 2 else values


def params_from_torch(state_dict: Mapping[str, Any], like: Params) -> Params:
    """A torch `state_dict` as flax parameters with the structure and dtypes of `like`.

    Raises:
        KeyError: the state dict lacks a parameter, or has one that `like` has not.
        ValueError: a shape differs.
    """
    flat = traverse_util.flatten_dict(like)
    names = {path: _torch_name(path) for path in flat}
    if surplus := set(state_dict) - set(names.values()):
        raise KeyError(f"no place for {sorted(surplus)}")
    params = {}
    for path, name in names.items():
        values = _transposed(path, np.asarray(state_dict[name]))
        if values.shape != flat[path].shape:
            raise ValueError(f"{name}: shape {values.shape}, expected {flat[path].shape}")
        params[path] = jnp.asarray(values, flat[path].dtype)
    return traverse_util.unflatten_dict(params)


def params_to_torch(params: Params) -> dict[str, np.ndarray]:
    """Flax parameters under PyTorch's names and in PyTorch's layout, as NumPy arrays."""
    flat = traverse_util.flatten_dict(params)
    return {_torch_name(path): _transposed(path, np.asarray(values)) for path, values in flat.items()}


def save_checkpoint(path: Path, algorithm: str, state: Any, total_it: int, **facts: Any) -> None:
    """Writes a train state as sealed MessagePack (data only, no code), atomically.

    Args:
        path: Such as `checkpoint.msgpack`.
        algorithm: Such as `td3_bc`.
        state: The train state.
        total_it: The updates behind it.
        facts: Further arrays, and plain values, by name.

    Raises:
        RunError: A number of the state is not finite.
        OSError: The file cannot be written.
    """
    state = jax.device_get(state)
    for key_path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if jnp.issubdtype(leaf.dtype, jnp.floating) and not np.isfinite(leaf).all():
            raise RunError(f"{jax.tree_util.keystr(key_path).lstrip('.')} is not finite")
    content = {"algorithm": algorithm, "total_it": total_it, "state": serialization.to_state_dict(state), **facts}
    # In place, since the seal must stay last and a copy would be sorted.
    write_atomically(path, sealed(serialization.msgpack_serialize({**content, "seal": BLANK}, in_place=True)))


def read_checkpoint(path: str) -> dict[str, Any]:
    """What a checkpoint holds, by key; only data are read, no code is run.

    Raises:
        InputError: The file is missing, damaged, or no checkpoint.
    """
    try:
        content = serialization.msgpack_restore(read_verified(Path(path)))
    except FileNotFoundError:
        raise InputError(f"checkpoint {path} does not exist: check --load_model") from None
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
    """Reads what `save_checkpoint` wrote, of one of these algorithms, its state into one of the same structure.

    Args:
        path: The `.msgpack` file.
        algorithm: Which algorithm the file must be of, or several.
        state: A state of that structure.
        optional: Parts that another algorithm's file lacks; they stay as they are in `state`.

    Returns:
        What the file holds, by key; `state` as the train state that it was.

    Raises:
        InputError: The file is missing, damaged, of another algorithm or of other shapes.
    """
    content = read_checkpoint(path)
    fitting = [algorithm] if isinstance(algorithm, str) else list(algorithm)
    if content["algorithm"] not in fitting:
        raise InputError(f"checkpoint {path} is of {content['algorithm']}, not of {' or '.join(fitting)}")
    try:
        own = serialization.to_state_dict(state)
        saved = {name: own[name] for name in optional} | content["state"]
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
    """Loads what the run begins with, if there is anything; see `Run.restore`.

    Returns:
        That state, or the fresh one given, and the updates that were made before this run.
    """
    saved = run.saved_steps
    if seeds.count() == 1 or saved is None:
        content = run.restore(load, go_on=go_on)
    else:
        # The same bits come of the same program, which has as many seeds as before from the same step on.
        last = seeds.meet(-1, saved, lambda parts: [seeds.last_in_common(parts)] * len(parts))
        content = run.restore(load, last, go_on)
    return (content["state"], content["total_it"] - run.step) if content else (state, 0)


# ---- evaluation ----------------------------------------------------------------------------------------------------


def evaluate(
    run: Run,
    step: int,
    act: Callable[..., Array],
    network: Network,
    prompt: float | None = None,
    asking: Callable[..., ContextPolicy] = lambda policy: policy,
) -> None:
    """`Run.evaluate` on the CPU, beside the next interval, which may train there too: environments take one core.

    Args:
        run: Evaluates.
        step: Updates done.
        act: The compiled policy: from the network and whatever it sees to actions.
        network: What acts; the next interval may use it up.
        prompt: The return to ask for, if the policy asks for one.
        asking: Makes the policy out of `act` with its network given, for one that does.
    """
    device = _last_cpu()
    policy = partial(act, network) if device is None else _on(device, act, network)
    run.evaluate(step, asking(policy), prompt, beside=device is not None)


def _last_cpu() -> jax.Device | None:
    """The CPU; where XLA simulates several, the one that trains last."""
    try:
        return jax.devices("cpu")[-1]
    except RuntimeError:  # JAX_PLATFORMS leaves it out
        return None


def _on(device: jax.Device, act: Callable[..., Array], network: Network) -> Callable[..., Array]:
    """`act` with a copy of the network, on a device, for any thread."""
    network = jax.device_put(network, device, may_alias=False)
    double = jax.enable_x64.value

    def policy(*inputs: np.ndarray) -> Array:
        # Both are set for a thread, and a program is compiled for both.
        with jax.default_device(device), jax.enable_x64(double):
            return act(network, *inputs)

    return policy
