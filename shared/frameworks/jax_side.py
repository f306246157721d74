"""Common code of the JAX twins. `shared/frameworks/torch_side.py` has the same names for PyTorch.

The cache of compiled programs and the evaluation beside training only exist here.
"""

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shared.envs.evaluation import ContextPolicy
from shared.errors import InputError
from shared.files import cache_folder
from shared.frameworks.jax_layers import Network
from shared.runs.run import Run

T = TypeVar("T")
# A dataclass of hyper-parameters
H = TypeVar("H", bound=Any)
# The networks of a policy: one, or several by name
Acting = Network | Mapping[str, Network]

# ---- device, metrics -----------------------------------------------------------------------------------------------


_DEVICE = re.compile(r"(cpu|cuda|gpu|tpu)(?::(\d{1,4}))?")


def resolve_device(name: str) -> jax.Device:
    """The device that a config's `device` names: `auto` is JAX's default, `cuda:1` the second GPU.

    CORL's files always say `cuda`, so on a machine without a GPU this prints a line to stderr and uses the CPU.

    Raises:
        InputError: JAX does not know the device, has none of that number, or `JAX_PLATFORMS` excludes it.
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
        if number:
            raise InputError(f"device {name} is not here, because JAX finds none of its kind: use auto or cpu")
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
    """JAX's default device; call this before any other use of JAX.

    Raises:
        InputError: `JAX_PLATFORMS` names a platform that is not available.
    """
    try:
        return jax.devices()[0]
    except (RuntimeError, AssertionError):  # the latter for cuda without a GPU
        asked = os.environ.get("JAX_PLATFORMS")
        if not asked:
            raise
        raise InputError(f"JAX finds no device for JAX_PLATFORMS={asked}: unset it, or set it to cpu") from None


def _devices(platform: str) -> Sequence[jax.Device]:
    """All devices of a platform; empty if it is not available."""
    try:
        return jax.devices(platform)
    except RuntimeError:
        return []


def enable_compilation_cache() -> None:
    """Keeps compiled programs on disk, so that a second start of the same run does not compile again.

    Small programs are kept too, because a run has about sixty of them, which together take seconds to compile.

    The folder is `$JAX_COMPILATION_CACHE_DIR`, else `corl-twins/jax` in the user's cache folder.
    """
    cache = cache_folder() / "corl-twins" / "jax"
    jax.config.update("jax_compilation_cache_dir", os.environ.get("JAX_COMPILATION_CACHE_DIR", str(cache)))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def narrow(config: Any, hyperparameters: type[H]) -> H:
    """The settings that an update depends on, hashable, so that other seeds need no compilation."""
    return hyperparameters(**{field.name: getattr(config, field.name) for field in fields(hyperparameters)})


@jax.jit
def mean_metrics(history: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """The mean of each metric over the updates that reported it.

    A mapping's values may be scalars or, from a scan, arrays with one entry per update. This is a separate program
    because, at the end of the training program, it slowed down the scan before it on a CPU.
    """
    names = sorted({name for metrics in history for name in metrics})
    values = {name: jnp.concatenate([jnp.ravel(m[name]) for m in history if name in m]) for name in names}
    return {name: reports.mean() for name, reports in values.items() if reports.size}


# ---- evaluation ----------------------------------------------------------------------------------------------------


def evaluate(
    run: Run,
    step: int,
    act: Callable[..., Array],
    network: Acting,
    prompt: float | None = None,
    asking: Callable[..., ContextPolicy] = lambda policy: policy,
) -> None:
    """Calls `Run.evaluate` on the CPU, beside the next interval even if that trains there: environments use one core.

    Args:
        run: The run, which evaluates.
        step: Number of updates done.
        act: The compiled policy, from its networks and its inputs to actions.
        network: The policy's network, or several, which the next interval may donate.
        prompt: The target return to prompt the policy with, if it takes one.
        asking: Wraps `act`, with its network, into a policy that takes prompts.
    """
    device = _last_cpu()
    policy = partial(act, network) if device is None else _on(device, act, network)
    run.evaluate(step, asking(policy), prompt, beside=device is not None)


def _last_cpu() -> jax.Device | None:
    """The CPU device for evaluations; if XLA simulates several, the one that trains last."""
    try:
        return jax.devices("cpu")[-1]
    except RuntimeError:  # JAX_PLATFORMS excludes it
        return None


def _on(device: jax.Device, act: Callable[..., Array], network: Acting) -> Callable[..., Array]:
    """Binds `act` to a copy of its networks on a device, for use in any thread."""
    network = jax.device_put(network, device, may_alias=False)
    double = jax.enable_x64.value

    def policy(*inputs: np.ndarray) -> Array:
        # Both settings are per thread, and programs are compiled for both.
        with jax.default_device(device), jax.enable_x64(double):
            return act(network, *inputs)

    return policy
