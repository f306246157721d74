"""Adapters for the parity ladder: the facts about a pair that the names in its twins do not show.

Most pairs need only the fields of `Pair` and a method or two. `FinitePair` is for finite actions. If a pair differs in
some other respect, its adapter overrides the method in question.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import torch

from parity_tests.families import Family
from parity_tests.losses import Loss, losses_of
from shared.data import goals, transitions
from shared.data.transitions import Batch
from shared.frameworks.twins import load_twin

# Rows of a trajectory, for the rows of one episode to have goals in several
_TRAJECTORY = 23


@dataclass(frozen=True, eq=False)
class Pair:
    """The adapter of a pair.

    Networks, targets, optimisers and temperatures are found by their names, which are the same in both twins.

    Attributes:
        name: The algorithm's name, which is also that of its files (`shared.frameworks.twins`).
        title: The name in tables.
        family: The family under which tables list it.
        use: When to choose it from its family, or why it is here; one sentence.
        paper: Authors and year, for tables.
        url: The paper's address.
        benchmark_updates: Updates in a timed block, which should take a second or two.
        variants: Named sets of settings for the ladder, one of them `default`.
        settings: Settings for purposes that the defaults do not suit. These are a short `run`, an update of `full
            size`, a `timed` one, the program whose operations are `counted`, and updates `on device` alone, for CUDA
            graphs.
        tolerances: By precision and rung, if this pair cannot meet the ladder's own; `recording` is for CUDA graphs.
    """

    name: str
    title: str
    family: Family
    use: str
    paper: str
    url: str
    benchmark_updates: int
    variants: Mapping[str, dict[str, Any]] = field(default_factory=lambda: {"default": {}})
    settings: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    tolerances: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    # Prefixes of outputs that need more than a network's weights and a batch; a checked file may omit them
    corners: ClassVar[Sequence[str]] = ()
    # The metric with the score of an evaluation
    metric: ClassVar[str] = "return_mean"
    # The number of further rows that indices may choose, numbered after the dataset's rows
    further_rows: ClassVar[int] = 0
    # Functions that draw NumPy arrays for a dataset's rows before the first update, with their further arguments
    drawn_once: ClassVar[Mapping[str, tuple]] = {}
    # Lookups by index, and calls of the host, in one update; the mean if updates differ
    gathers: ClassVar[float] = 1
    host_calls: ClassVar[float] = 0
    # Scans within one update, such as a chain of steps and its backward pass
    inner_scans: ClassVar[int] = 0
    # The updates in an interval whose operations are counted; almost all of them are in its loops
    counted_updates: ClassVar[int] = 200
    # Whether draws happen inside the scanned loop, because they would be too large to draw ahead
    draws_inside: ClassVar[bool] = False
    # Whether recording a CUDA graph can be tried on a CPU, where PyTorch's `one_hot` reads its values
    records_on_cpu: ClassVar[bool] = True
    # The precision for comparing PyTorch's compiled updates. In double precision, PyTorch 2.13's compiled Adam does not
    # update some parameters without axes.
    compiled_in: ClassVar[str] = "float64"

    # ---- the twins -------------------------------------------------------------------------------------------------

    @property
    def torch(self) -> ModuleType:
        """The PyTorch twin."""
        return load_twin("torch", self.name)

    @property
    def jax(self) -> ModuleType:
        """The JAX twin."""
        return load_twin("jax", self.name)

    @property
    def explores(self) -> bool:
        """Whether a run continues in the environment."""
        return hasattr(self.jax, "train_online")

    @property
    def two_buffers(self) -> bool:
        """Whether experience has its own replay buffer, so that a batch mixes it with the dataset."""
        return "online_size" in inspect.signature(self.torch.draw_noise).parameters

    @property
    def other_draws(self) -> Sequence[str]:
        """Further functions that draw, which a run calls between updates."""
        return ("draw_exploration",) if hasattr(self.jax, "draw_exploration") and not self.explores else ()

    def lasting(self, updates: int) -> dict[str, int]:
        """Settings for a run of this many updates; if there are two phases, the online phase has the last third."""
        if not hasattr(self.torch.TrainConfig, "switch"):
            return {"max_timesteps": updates}
        config = self.torch.TrainConfig(**self.variants["default"])
        before = config.switch - config.offline_iterations
        return {"offline_iterations": 2 * updates // 3 - before, "online_iterations": updates - 2 * updates // 3}

    # ---- data ------------------------------------------------------------------------------------------------------

    def load(self, raw: dict[str, np.ndarray], frame_stack: int = 1) -> Any:
        """Converts a dataset file's arrays to the named tuple of columns that the pair learns from, (N, ...) each.

        By default these are transitions with normalised states, or with images whose frames are stacked.
        """
        if transitions.shows_images(raw):
            return transitions.extract_transitions(raw, frame_stack=frame_stack)
        return transitions.normalise_states(transitions.extract_transitions(raw))[0]

    def ready(self, twin: ModuleType, dataset: Any, config: Any) -> Any:
        """The data that a twin's loop takes: the dataset on the device, or something computed from it once."""
        return dataset

    def take(self, twin: ModuleType, dataset: Any, indices: Any, config: Any) -> Any:
        """Takes a batch."""
        return twin.take(dataset, indices)

    def prepared(self, twin: ModuleType) -> dict[str, Any]:
        """The data that a twin precomputes from datasets or step numbers, by name; both twins must give the same."""
        return {}

    # ---- draws and arguments of an update --------------------------------------------------------------------------

    def draw_inputs(self, dataset: Any, action_dim: int) -> tuple:
        """The arguments of `draw_noise` between config and device, from the dataset's columns and A."""
        return len(dataset[0]), action_dim

    def torch_draw_inputs(self, dataset: Any, action_dim: int) -> tuple:
        """The same for the PyTorch twin, if CORL's draws need more arguments."""
        return self.draw_inputs(dataset, action_dim)

    def unchosen_rows(self, config: Any) -> int:
        """The number of the dataset's last rows that indices never choose under this config."""
        return 0

    def torch_draws(self, config: Any, dataset: Any, action_dim: int, device: Any) -> Callable[..., tuple]:
        """The PyTorch twin's `draw_noise` for these columns, which then takes only the arguments of a step."""
        return partial(self.torch.draw_noise, config, *self.torch_draw_inputs(dataset, action_dim), device)

    def draw_statics(self, config: Any, step: int) -> dict[str, Any]:
        """The further arguments of `draw_noise` in the update with this number (from 1)."""
        return {}

    def update_statics(self, config: Any, step: int) -> dict[str, Any]:
        """The static arguments of the JAX `update` in the update with this number (from 1)."""
        return {}

    def number(self, step: int) -> tuple:
        """The arguments of the JAX `update` after the noise, in the update with this number (from 1)."""
        return ()

    def interval_statics(self, config: Any, start: int, num_updates: int) -> dict[str, Any]:
        """The static arguments of `train_interval`, for an interval that starts after `start` updates."""
        return {}

    def drawn_inside(self, twin: ModuleType, noise: Any, hp: Any) -> Any:
        """Replaces a key in the JAX twin's noise by the numbers drawn from it; noise without a key stays the same."""
        return noise

    # ---- what is compared ------------------------------------------------------------------------------------------

    def outputs(self, twin: Any, batch: Any) -> dict[str, Any]:
        """Every network's output by name, for a state of either twin, because both twins' networks are callable."""
        raise NotImplementedError

    def networks_of(self, outputs: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs that a checked file must give."""
        return {name: value for name, value in outputs.items() if not name.startswith(tuple(self.corners))}

    def predicted(self, twin: Any, batch: Any) -> dict[str, Any]:
        """A learned model's predictions, from a twin's state and a batch; such a pair has no policy."""
        return {}

    def corner(self, trainer: Any) -> None:
        """Moves numbers of a PyTorch twin, in place, to where a loss takes other branches than after warm-up."""

    @cached_property
    def losses(self) -> Mapping[str, Loss]:
        """Each loss by its function's name."""
        return losses_of(self.torch, self.jax)

    def uses(self, loss: str, config: Any) -> bool:
        """Whether an update under this config differentiates the loss at all."""
        return True

    def given(self, batch: Any, noise: Any) -> dict[str, Any]:
        """The inputs of losses by name, from an update's batch and noise; one minibatch if it takes several."""
        return {"batch": batch, "noise": noise}

    def extra_inputs(self, rng: np.random.Generator, size: int) -> dict[str, Any]:
        """Further inputs of losses, by name, for batches of this size."""
        return {}

    def shipped(self, scene: Any) -> dict[str, float]:
        """The errors of the JAX twin's further programs against their parts, by name."""
        return {}

    def replays(self, patch: Any) -> None:
        """Patches both twins so that the JAX twin's run gets the PyTorch twin's other draws."""

    def begins(self, trainer: Any, rows: int) -> None:
        """Changes a PyTorch trainer in place, before the first update, for a dataset with this many rows."""

    # ---- in the environment ----------------------------------------------------------------------------------------

    def explored(self, rng: np.random.Generator, rows: int, action_dim: int) -> dict[str, Any]:
        """The arguments of `explore` that depend on these, by name."""
        return {}

    def torch_phase(self, trainer: Any) -> tuple:
        """The PyTorch trainer's state that its draws for the next update depend on."""
        return ()

    def call_statics(self, config: Any, start: int, num_updates: int) -> dict[str, Any]:
        """The static arguments of `train_online`, the counterpart of `interval_statics`."""
        return {}

    def as_rows(self, steps: Batch) -> Any:
        """Converts the environment's steps to the rows that are stored."""
        return steps

    def entered(self, state: Any, places: np.ndarray, rows: int) -> Any:
        """A JAX state after rows were stored at these places, which are numbered after the dataset's rows."""
        return state

    def drawn_batch(self, state: Any, twin: ModuleType, held: Any, indices: Any, noise: Any, ring: Any) -> Any:
        """An online batch, from the columns of both replay buffers, indices, noise and the PyTorch twin's ring."""
        return type(held)(*(column[indices] for column in held))


class GoalPair(Pair):
    """A pair that learns to reach goals, which are rows of its dataset."""

    def load(self, raw: dict[str, np.ndarray], frame_stack: int = 1) -> Any:
        """Loads transitions with the ends of their trajectories; the made-up rows are cut into several."""
        ends = np.arange(1, len(raw["rewards"]) + 1) % _TRAJECTORY == 0
        return goals.extract_goals(raw | {"timeouts": raw["timeouts"] | ends})

    def take(self, twin: ModuleType, dataset: Any, indices: Any, config: Any) -> Any:
        """Takes a batch with its goals; rows alone, on which only outputs are looked at, are their own goals."""
        take, kinds = (twin.take_hierarchy, 5) if hasattr(twin, "take_hierarchy") else (twin.take_goals, 3)
        if indices.ndim == 1:
            indices = torch.stack([indices] * kinds)
        return take(dataset, indices, config.gc_negative)

    def draw_inputs(self, dataset: Any, action_dim: int) -> tuple:
        """The ends of trajectories, hashable, because traces are remembered by these; and A, if the twin takes it."""
        last, *others = self.torch_draw_inputs(dataset, action_dim)
        return tuple(last.tolist()), *others

    def torch_draw_inputs(self, dataset: Any, action_dim: int) -> tuple:
        """The ends of trajectories, and A, if the twin takes it."""
        takes_actions = "action_dim" in inspect.signature(self.torch.draw_noise).parameters
        return np.asarray(dataset.last), *([action_dim] if takes_actions else [])


class FinitePair(Pair):
    """A pair that chooses one of finitely many actions."""

    def load(self, raw: dict[str, np.ndarray], frame_stack: int = 1) -> Any:
        """Loads the data as `Pair.load` does, with the index of the largest component in place of an action vector."""
        return super().load(raw | {"actions": raw["actions"].argmax(axis=1)}, frame_stack)

    def draw_inputs(self, dataset: Any, action_dim: int) -> tuple:
        """Without A, because no noise is added to actions."""
        return (len(dataset[0]),)
