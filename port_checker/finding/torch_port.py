"""A port in PyTorch, written from the JAX twin: a trainer whose losses and update answer a JAX port's questions.

Both twins give the same numbers, so the questions and the diagnoses are the same.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from port_checker.finding.fields import called
from port_checker.finding.layout import Layout, find_layout
from port_checker.finding.port import Parts, Port, Sizes
from shared.errors import InputError
from shared.frameworks.exchange import Named, advance, named, parameters, torch_moments
from shared.frameworks.jax_data import PackedDataset, take
from shared.frameworks.jax_neighbours import BruteForce, Tree


class TorchPort(Port):
    """A file with `create_trainer`. Every change is made to a copy of the trainer, so states are values here too."""

    array = torch.Tensor

    def has(self, name: str) -> bool:
        """Whether the file itself defines this function; draws are not checked, because they depend on no key."""
        return name != "draw_noise" and super().has(name)

    # ---- states

    def _create(self, given: Mapping[str, Any]) -> Any:
        return self.call("create_trainer", given)

    def state(self, config: Any, sizes: Sizes, parts: Parts) -> Any:
        """The file's trainer with the reference's weights and moments."""
        trainer = copy.deepcopy(self.fresh(config, sizes))
        for name, layout in self.layouts(config, sizes, parts).items():
            part = parameters(self._part(trainer, name))
            _fill(part, layout.to_tree(parts[name]))
            if moments := parts.get(f"{name}_optimizer"):
                _fill_moments(self._optimizer(trainer, name), part, layout, moments)
        for schedule in vars(trainer).values():
            if isinstance(schedule, LRScheduler):
                advance(schedule)
        return trainer

    def layouts(self, config: Any, sizes: Sizes, parts: Parts) -> dict[str, Layout]:
        """The layout of the reference's tensors in each network of the trainer."""
        if (config, sizes) not in self._layouts:
            trainer = self.fresh(config, sizes)
            networks = [name for name in self._held(trainer, config, parts) if not name.endswith("_optimizer")]
            self._layouts[config, sizes] = {
                name: find_layout(
                    called(trainer, name, self.networks), parts[name], named(self._part(trainer, name)), None
                )
                for name in networks
            }
        return self._layouts[config, sizes]

    def read(self, state: Any, config: Any, sizes: Sizes, parts: Parts) -> Parts:
        """The trainer's weights and moments under the reference's names."""
        found = dict(parts)
        for name, layout in self.layouts(config, sizes, parts).items():
            part = self._part(state, name)
            found[name] = layout.to_torch(named(part), name)
            if f"{name}_optimizer" in parts:
                moments = torch_moments(self._optimizer(state, name), part)
                kinds = {kind for kind in ("m", "v") if any(key.startswith(f"{kind}/") for key in moments)}
                values = {key: value for key, value in moments.items() if key == "steps"}
                for kind in kinds:
                    tree = {key.removeprefix(f"{kind}/"): x for key, x in moments.items() if key.startswith(f"{kind}/")}
                    values |= {f"{kind}/{key}": x for key, x in layout.to_torch(tree, name).items()}
                found[f"{name}_optimizer"] = values
        return found

    def _optimizer(self, trainer: Any, name: str) -> Optimizer:
        """The optimiser that updates a part, under any name, even if it updates other parts too."""
        first = next(iter(parameters(self._part(trainer, name)).values()))
        for optimizer in vars(trainer).values():
            if isinstance(optimizer, Optimizer) and any(
                first is x for group in optimizer.param_groups for x in group["params"]
            ):
                return optimizer
        raise InputError(f"no optimiser of the trainer steps {name}: expected one among its attributes")

    # ---- rungs

    def plain_outputs(self, state: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        """Every network's output by its name in the adapter."""
        with torch.no_grad():
            found = super().plain_outputs(state, _as_torch(given))
        return {name: value.numpy() for name, value in found.items()}

    def loss(self, name: str, state: Any, given: Mapping[str, Any], parts: Sequence[Any]) -> Any:
        """A loss at the trainer's weights."""
        return self._value(name, state, given).detach().numpy()

    def _value(self, name: str, trainer: Any, given: Mapping[str, Any]) -> torch.Tensor:
        inputs = self._by_twins_names(name, _as_torch(given))
        found = self.call(name, {"state": trainer, "trainer": trainer, **inputs, **self._arguments(trainer)}, trainer)
        value = found[0] if isinstance(found, tuple) else found
        if not isinstance(value, torch.Tensor) or value.shape != ():
            what = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            raise InputError(f"{name} gives {what}: expected a tensor without axes, or a tuple of it and anything")
        return value

    def gradient(self, name: str, state: Any, given: Mapping[str, Any]) -> list[Any]:
        """A loss's gradient by each of its parts, with one entry for each tensor's name."""
        parts = [parameters(part) for part in self.differentiated(name, state)]
        tensors = [tensor for part in parts for tensor in part.values()]
        with self._running(name):
            found = iter(torch.autograd.grad(self._value(name, state, given), tensors, allow_unused=True))
        return [{key: _numbers(next(found), tensor) for key, tensor in part.items()} for part in parts]

    def update(self, state: Any, given: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
        """The next trainer, and the metrics if there are any; `total_it` is set to the number of earlier updates."""
        trainer = copy.deepcopy(state)
        if hasattr(trainer, "total_it"):
            trainer.total_it = int(given["step"]) - 1
        inputs = {"state": trainer, "trainer": trainer, **_as_torch(given), **self._arguments(trainer)}
        found = self.call("update", inputs, trainer)
        metrics = found[-1] if isinstance(found, tuple) else found
        if not isinstance(metrics, Mapping):
            metrics = {}
        return trainer, {name: np.asarray(torch.as_tensor(value).detach()) for name, value in metrics.items()}

    def trajectory(self, state: Any, inputs: Sequence[Mapping[str, Any]]) -> Any:
        """The trainer after several updates."""
        for given in inputs:
            state, _ = self.update(state, given)
        return state


def _as_torch(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with arrays converted to tensors, packed rows to columns, and searches to searches by tensors."""

    def tensor(leaf: Any) -> Any:
        if isinstance(leaf, PackedDataset):
            return jax.tree.map(tensor, take(leaf, jnp.arange(len(leaf))))
        if isinstance(leaf, Tree | BruteForce):
            return _Search(leaf)
        return torch.tensor(np.asarray(leaf)) if isinstance(leaf, jax.Array | np.ndarray) else leaf

    def whole(leaf: Any) -> bool:
        return isinstance(leaf, PackedDataset | Tree | BruteForce)

    return {
        name: value if name == "step" else jax.tree.map(tensor, value, is_leaf=whole) for name, value in given.items()
    }


class _Search:
    """A search among JAX's rows, asked by tensors."""

    def __init__(self, search: Tree | BruteForce) -> None:
        self._search = search

    def nearest(self, keys: torch.Tensor) -> torch.Tensor:
        """The indices (B,) of the rows that are nearest to the keys (B, D)."""
        return torch.tensor(np.asarray(self._search.nearest(jnp.asarray(keys.detach().numpy()))))


def _numbers(gradient: torch.Tensor | None, like: torch.Tensor) -> np.ndarray:
    return np.zeros(like.shape) if gradient is None else gradient.numpy()


@torch.no_grad()
def _fill(part: Mapping[str, torch.Tensor], values: Named) -> None:
    for name, tensor in part.items():
        tensor.copy_(torch.tensor(np.asarray(values[name])))


def _fill_moments(optimizer: Optimizer, part: Mapping[str, torch.Tensor], layout: Layout, values: Named) -> None:
    """Sets Adam's moments and steps, or the momentum of gradient descent; before Adam's first step there are none."""
    kinds = {"m": "exp_avg", "v": "exp_avg_sq"} if "steps" in values else {"m": "momentum_buffer"}
    if not int(values.get("steps", 1)):
        return
    for kind, key in kinds.items():
        tree = layout.to_tree({n.removeprefix(f"{kind}/"): x for n, x in values.items() if n.startswith(f"{kind}/")})
        for name, tensor in part.items():
            optimizer.state[tensor][key] = torch.tensor(np.asarray(tree[name]))
            if "steps" in values:
                optimizer.state[tensor]["step"] = torch.tensor(float(values["steps"]))
