"""The plumbing of the JAX twins. `shared/frameworks/torch_side.py` holds the same names for PyTorch.

Beyond those: the cache of compiled programs, and evaluation beside the training.
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
# What a policy needs: a network, or several by name
Acting = Network | Mapping[str, Network]

# ---- device, metrics -----------------------------------------------------------------------------------------------


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


@jax.jit
def mean_metrics(history: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """The mean of each metric over the updates that reported it.

    Each mapping's values may be scalars or, out of a scan, arrays with one entry per update. This is a program of its
    own. As the end of the program that trains, it has slowed the scan before it on a CPU.
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
    """`Run.evaluate` on the CPU, beside the next interval, which may train there too: environments take one core.

    Args:
        run: Evaluates.
        step: Updates done.
        act: The compiled policy: from the network and whatever it sees to actions.
        network: What acts, or several networks; the next interval may use them up.
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


def _on(device: jax.Device, act: Callable[..., Array], network: Acting) -> Callable[..., Array]:
    """`act` with a copy of what acts, on a device, for any thread."""
    network = jax.device_put(network, device, may_alias=False)
    double = jax.enable_x64.value

    def policy(*inputs: np.ndarray) -> Array:
        # Both are set for a thread, and a program is compiled for both.
        with jax.default_device(device), jax.enable_x64(double):
            return act(network, *inputs)

    return policy
