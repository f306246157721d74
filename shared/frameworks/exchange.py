"""Converts a twin's state between frameworks: weights, targets, temperatures, moments, schedules and step counts.

It only relies on names: both twins give a part the same name, and the optimiser of `x` is `x_optimizer`. The common
format is NumPy arrays under PyTorch's names and in PyTorch's layout.
"""

import warnings
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from shared.envs.spaces import Shape
from shared.frameworks.jax_checkpoints import params_from_torch, params_to_torch
from shared.frameworks.jax_layers import Network

Named = dict[str, np.ndarray]


def part_names(state: Any) -> list[str]:
    """The names of a JAX state's parts: networks, targets, temperatures and optimisers, but not static fields."""
    return [name for name, field in state.__dataclass_fields__.items() if field.metadata.get("pytree_node", True)]


def parameters(part: nn.Module | torch.Tensor) -> dict[str, torch.Tensor]:
    """The trainable tensors of a PyTorch module by name, or of a single tensor, such as a temperature."""
    return {"constant": part} if isinstance(part, torch.Tensor) else dict(part.named_parameters())


def named(part: Any) -> Named:
    """Converts a part of either framework to arrays under PyTorch's names and in PyTorch's layout.

    Adam's state becomes its moments, `m/<parameter>` and `v/<parameter>`, and its number of steps. Gradient descent's
    state becomes its momentum, `m/<parameter>`.
    """
    if isinstance(part, nn.Module | torch.Tensor):
        # Copies, because JAX may share NumPy's memory, and PyTorch's optimisers write into theirs.
        return {name: value.detach().cpu().numpy().copy() for name, value in parameters(part).items()}
    if isinstance(part, Network):
        return params_to_torch(part.params)
    if isinstance(part, jax.Array | np.ndarray | int):
        return {"constant": np.asarray(part)}
    if isinstance(part, Optimizer):
        raise TypeError("a torch optimiser does not know its parameters' names: use torch_moments")
    if trace := _momentum(part):
        return _prefixed("m/", named(trace[0].trace))
    adam = _adam(part)
    m, v = named(adam.mu), named(adam.nu)
    return {**_prefixed("m/", m), **_prefixed("v/", v), "steps": np.asarray(adam.count)}


def torch_moments(optimizer: Optimizer, part: nn.Module | torch.Tensor) -> Named:
    """The moments in a part's optimizer, in the form of `named`; zeros before the first step."""
    descends = isinstance(optimizer, torch.optim.SGD)
    moments: Named = {} if descends else {"steps": np.asarray(0)}
    for name, parameter in parameters(part).items():
        state = optimizer.state.get(parameter, {})
        zeros = torch.zeros_like(parameter.detach())
        if descends:
            moments[f"m/{name}"] = state.get("momentum_buffer", zeros).cpu().numpy().copy()
            continue
        moments[f"m/{name}"] = state.get("exp_avg", zeros).cpu().numpy().copy()
        moments[f"v/{name}"] = state.get("exp_avg_sq", zeros).cpu().numpy().copy()
        moments["steps"] = np.asarray(int(state.get("step", 0)))
    return moments


def torch_part(trainer: Any, name: str) -> Named:
    """The trainer's part of this name, converted by `named`."""
    part = getattr(trainer, name)
    return torch_moments(part, _stepped(trainer, name)) if isinstance(part, Optimizer) else named(part)


# ---- from PyTorch to JAX -------------------------------------------------------------------------------------------


def to_jax(trainer: Any, like: Any) -> Any:
    """A JAX state with the structure of `like` and the trainer's weights, targets and moments."""
    return like.replace(**{name: _filled(torch_part(trainer, name), getattr(like, name)) for name in part_names(like)})


def blank_state(twin: ModuleType, config: Any, state_dim: Shape, action_dim: int, max_action: float = 1.0) -> Any:
    """A JAX state of zeros, for its structure, because initialising the weights takes seconds."""
    sizes = state_dim, action_dim, max_action
    shapes = jax.eval_shape(lambda key: twin.create_train_state(key, config, *sizes), jax.random.key(0))
    return jax.tree.map(lambda leaf: jax.device_put(np.zeros(leaf.shape, leaf.dtype)), shapes)


def _filled(values: Named, like: Any) -> Any:
    if isinstance(like, Network):
        return like.replace(params=params_from_torch(values, like.params))
    if isinstance(like, jax.Array):
        return jnp.asarray(values["constant"], like.dtype)
    if trace := _momentum(like):
        momentum = trace[0]._replace(trace=_filled(_under("m/", values), trace[0].trace))
        return jax.tree.map(lambda part: momentum if part is trace[0] else part, like, is_leaf=_is_trace)
    adam, count = _adam(like), jnp.asarray(values["steps"], jnp.int32)
    moments = adam._replace(mu=_filled(_under("m/", values), adam.mu), nu=_filled(_under("v/", values), adam.nu))

    def fill(part: Any) -> Any:
        # Schedules in the chain count the same steps, but need a copy: a donated state must not contain an array twice.
        return (moments if part is adam else part)._replace(count=jnp.copy(count)) if _counts(part) else part

    return jax.tree.map(fill, like, is_leaf=_counts)


# ---- from JAX to PyTorch -------------------------------------------------------------------------------------------


def to_torch(state: Any, trainer: Any) -> None:
    """Copies a JAX state's weights, targets and moments into a fresh trainer, and advances the trainer's schedules.

    PyTorch's trainer also counts its updates, in `total_it`; a JAX state does so only if an update depends on it.
    """
    for name in part_names(state):
        values, part = named(getattr(state, name)), getattr(trainer, name)
        if isinstance(part, int):
            setattr(trainer, name, int(values["constant"]))
        elif isinstance(part, Optimizer):
            _fill_moments(part, _stepped(trainer, name), values)
        else:
            _fill_parameters(part, values)
    for schedule in vars(trainer).values():
        if isinstance(schedule, LRScheduler):
            advance(schedule)


@torch.no_grad()
def _fill_parameters(part: nn.Module | torch.Tensor, values: Mapping[str, np.ndarray]) -> None:
    for name, parameter in parameters(part).items():
        parameter.copy_(torch.tensor(values[name]))


def _fill_moments(optimizer: Optimizer, part: nn.Module | torch.Tensor, values: Mapping[str, np.ndarray]) -> None:
    names = list(enumerate(parameters(part)))
    if isinstance(optimizer, torch.optim.SGD):
        # A zero momentum has the same first step as none.
        momentum = {number: {"momentum_buffer": torch.tensor(values[f"m/{name}"])} for number, name in names}
        optimizer.load_state_dict(optimizer.state_dict() | {"state": momentum})
        return
    steps = int(values["steps"])
    state = {
        number: {
            "step": torch.tensor(float(steps)),
            "exp_avg": torch.tensor(values[f"m/{name}"]),
            "exp_avg_sq": torch.tensor(values[f"v/{name}"]),
        }
        for number, name in names
    }
    # PyTorch's optimisers have no state before their first step.
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state if steps else {}})


def advance(schedule: LRScheduler) -> None:
    """Advances a fresh schedule to its optimiser's step, one by one, because PyTorch computes rates recursively."""
    steps = max((int(state["step"]) for state in schedule.optimizer.state.values()), default=0)
    with warnings.catch_warnings():
        # PyTorch warns that the optimiser has made no step, but it has, in the other framework.
        warnings.simplefilter("ignore", UserWarning)
        for _ in range(steps):
            schedule.step()


# ---- optimisers ----------------------------------------------------------------------------------------------------


def _stepped(trainer: Any, optimizer: str) -> nn.Module | torch.Tensor:
    """The module or tensor that the optimizer of this name updates."""
    return getattr(trainer, optimizer.removesuffix("_optimizer"))


def _counts(part: Any) -> bool:
    return "count" in getattr(part, "_fields", ())


def _is_adam(part: Any) -> bool:
    return isinstance(part, optax.ScaleByAdamState)


def _adam(opt_state: optax.OptState) -> optax.ScaleByAdamState:
    (adam,) = filter(_is_adam, jax.tree.leaves(opt_state, is_leaf=_is_adam))
    return adam


def _is_trace(part: Any) -> bool:
    return isinstance(part, optax.TraceState)


def _momentum(opt_state: optax.OptState) -> list[optax.TraceState]:
    """The states of gradient descent with momentum; empty for other optimizers."""
    return list(filter(_is_trace, jax.tree.leaves(opt_state, is_leaf=_is_trace)))


def _prefixed(prefix: str, values: Named) -> Named:
    return {prefix + name: value for name, value in values.items()}


def _under(prefix: str, values: Named) -> Named:
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
