"""The contract of an algorithm's file, by framework and kind; `make lint` has mypy check every twin (PEP 544).

Names are the same in both frameworks. Types are loose where algorithms differ, as in the columns of a batch and the
draws of an update. The static arguments of a JAX `update` are what depends on the update's number. Losses are methods
of the trainer and of the state, under the same names, which the adapter in `parity_tests/pairs/` lists.

`held_out.py` measures the networks that it finds in the trainer or the state: `actor`, and `critic` or `critic_1` and
`critic_2`. A file with finite actions has `value(q, actions)`. An actor that returns a mean and a standard deviation is
a normal distribution. It is squashed by tanh if the file has `sample` or `raw_sample`, unless the file has its own
`log_prob(actor, observations, actions)`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shared.runs.run import Run


class Trainer(Protocol):
    """PyTorch: everything that an update reads and writes."""

    total_it: int

    @property
    def hp(self) -> Any:
        """The settings that an update depends on."""

    def update(self, batch: Any, noise: Any) -> Mapping[str, Any]:
        """Makes one update; returns the metrics, on the device."""

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint, under the reference's keys."""


class TorchTwin(Protocol):
    """A file of `corl_torch/`."""

    @property
    def Hyperparameters(self) -> type[Any]:
        """The settings that an update depends on."""

    @property
    def TrainConfig(self) -> type[Any]:
        """The settings of a run, a dataclass that includes those that an update depends on."""

    @property
    def Noise(self) -> type[Any]:
        """A named tuple of an update's random draws, except for its batch."""

    @property
    def draw_noise(self) -> Callable[..., tuple[Any, Any]]:
        """(settings, sizes ..., device) to the batch's indices and the noise, drawn in the reference's order."""

    @property
    def create_trainer(self) -> Callable[[Any, Any, int, float], Trainer]:
        """(settings, size of an observation, A, bound of actions) to fresh networks."""

    @property
    def save(self) -> Callable[..., None]:
        """(trainer, path, **facts) writes a checkpoint."""

    @property
    def load(self) -> Callable[..., dict[str, Any]]:
        """(trainer, path) loads a checkpoint, and returns its contents."""

    @property
    def train(self) -> Callable[[Any], Run]:
        """A whole run under a `TrainConfig`."""


class Explorer(Trainer, Protocol):
    """PyTorch: a trainer that continues online in the environment."""

    def explore(self, observations: Any, noise: Any) -> Any:
        """Exploring actions (E, A), or chunks of them (E, h, A), for normalised observations (E, S)."""


class TorchFinetune(TorchTwin, Protocol):
    """A file of `corl_torch/finetune/`: a dataset first, then the environment."""

    @property
    def create_trainer(self) -> Callable[[Any, Any, int, float], Explorer]:
        """As in `TorchTwin`."""

    @property
    def draw_exploration(self) -> Callable[..., Any]:
        """(settings, A, device) to the random draws of one environment step."""


class TorchOnline(TorchTwin, Protocol):
    """A file of `corl_torch/online/`: it learns in the environment, or from a dataset if the settings name one."""

    @property
    def draw_exploration(self) -> Callable[[int, int], Any]:
        """(steps, A) to the random draws of this many environment steps."""


class Estimator(Trainer, Protocol):
    """PyTorch: a trainer that evaluates a policy."""

    def value(self, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Values (B,) of actions (B, A) in observations (B, S)."""


class TorchEvaluation(TorchTwin, Protocol):
    """A file of `corl_torch/evaluation/`."""

    @property
    def create_trainer(self) -> Callable[[Any, Any, int, float], Estimator]:
        """As in `TorchTwin`."""


class State(Protocol):
    """JAX: everything that an update reads and writes, a pytree; its fields have the trainer's names."""

    @property
    def hp(self) -> Any:
        """The settings that an update depends on, static."""

    @property
    def update(self) -> Callable[..., tuple[Any, Mapping[str, Any]]]:
        """(batch, noise, ...) to the state after one update, and the metrics; pure."""


class JaxTwin(Protocol):
    """A file of `corl_jax/`."""

    @property
    def Hyperparameters(self) -> type[Any]:
        """As in PyTorch, but hashable, because programs are compiled for them."""

    @property
    def TrainConfig(self) -> type[Any]:
        """As in PyTorch: the same fields, with the same defaults."""

    @property
    def Noise(self) -> type[Any]:
        """As in PyTorch."""

    @property
    def draw_noise(self) -> Callable[..., tuple[Any, Any]]:
        """(key, update's number from 0, settings, sizes ...) to indices and noise, fixed by key and number."""

    @property
    def create_train_state(self) -> Callable[[Any, Any, Any, int, float], State]:
        """(key, settings, size of an observation, A, bound of actions) to fresh networks."""

    @property
    def train_interval(self) -> Callable[..., tuple[Any, Any]]:
        """(state, key, dataset, updates before, updates, ...) to the state after a scan of updates, and the metrics."""

    @property
    def train(self) -> Callable[[Any], Run]:
        """A whole run under a `TrainConfig`."""


class JaxFinetune(JaxTwin, Protocol):
    """A file of `corl_jax/finetune/`; `shared/frameworks/jax_online.py` calls these."""

    @property
    def draw_exploration(self) -> Callable[..., Any]:
        """(key, step's number, settings, A) to the random draws of one environment step."""

    @property
    def next_action(self) -> Callable[..., Any]:
        """(state, key, step, observation) to an action (1, A), or to a chunk of actions (1, h, A)."""

    @property
    def train_online(self) -> Callable[..., tuple[Any, Any, Any, Any]]:
        """(state, key, ring, updates before, rows, observation, ...) to (state, ring, action or None, metrics)."""


class JaxOnline(JaxTwin, Protocol):
    """A file of `corl_jax/online/`."""

    @property
    def draw_exploration(self) -> Callable[..., Any]:
        """(key, first step, steps, A) to the random draws of this many environment steps."""


class JaxEvaluation(JaxTwin, Protocol):
    """A file of `corl_jax/evaluation/`."""

    @property
    def value(self) -> Callable[..., Any]:
        """(critics, observations, actions) to values (B,)."""


KINDS: Mapping[str, Mapping[str, type]] = {
    "torch": {"finetune": TorchFinetune, "online": TorchOnline, "evaluation": TorchEvaluation, "": TorchTwin},
    "jax": {"finetune": JaxFinetune, "online": JaxOnline, "evaluation": JaxEvaluation, "": JaxTwin},
}


def kind_of(framework: str, path: Path) -> type:
    """The protocol that a file must fulfil, which depends on its folder below `corl_torch` or `corl_jax`."""
    kinds = KINDS[framework]
    return kinds.get(path.parent.name, kinds[""])
