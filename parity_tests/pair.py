"""A pair as the ladder sees it: what cannot be read off the names that both twins share.

Most pairs need the fields of `Pair` and a method or two. `FinitePair` is for actions that are one of a few. What one
pair alone does otherwise is a method that its own adapter overrides.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import ModuleType
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from parity_tests.families import Family
from parity_tests.losses import Loss, losses_of
from shared.data import transitions
from shared.data.transitions import Batch
from shared.frameworks.twins import load_twin


@dataclass(frozen=True)
class Facts:
    """What the checks without a reference (`test_properties.py`) must know of a pair.

    Attributes:
        rewarded: The loss in which the batch's rewards are learnt from; empty: none, and it bootstraps no target.
        target_inputs: What `td_target` is given.
        rate: The setting by which targets follow their networks; those without one become copies.
        lagging: Targets that follow their network as it was before the step.
        first_delayed: The first update in which the actor learns, of those that come each `policy_freq`.
        imitation: From actor and batch to the loss of mere behaviour cloning, where the actor must do more than that.
        sharp: Temperatures and weights at which values count after few updates.
    """

    rewarded: str = ""
    target_inputs: Sequence[str] = ("batch", "noise")
    rate: str = "tau"
    lagging: Sequence[str] = ()
    first_delayed: int | None = None
    imitation: Callable[[Any, Any], Any] | None = None
    sharp: Mapping[str, Any] = field(default_factory=dict)


def squared_error(actor: Any, batch: Any) -> Any:
    """Behaviour cloning of a deterministic policy."""
    return jnp.square(actor(batch.observations) - batch.actions).mean()


def unlikelihood(actor: Any, batch: Any) -> Any:
    """Behaviour cloning of a normal policy: the data's negative log-likelihood, constants left out."""
    mean, std = actor(batch.observations)
    return (jnp.square(batch.actions - mean) / (2.0 * jnp.square(std)) + jnp.log(std)).sum(axis=-1).mean()


@dataclass(frozen=True, eq=False)
class Pair:
    """An adapter. Networks, targets, optimisers and temperatures are found by their names, equal in both twins.

    Attributes:
        name: The algorithm's name, that of its files (`shared.frameworks.twins`).
        title: The name in tables.
        family: The heading under which tables list it.
        use: When to choose it among its family, or what it is there; a sentence.
        paper: Authors and year, in tables.
        url: Of the paper.
        benchmark_updates: Updates in a timed block: a second or two of them.
        variants: Settings under which the ladder is climbed, by name; `default` holds none.
        settings: Settings where the defaults do not serve, by purpose. These are a short `run`, an update of
            `full size`, a `timed` one, the program whose operations are `counted`, and updates `on device` alone, for
            CUDA graphs.
        tolerances: By precision and rung, where the ladder's own cannot be had; `recording` is a CUDA graph's.
        facts: For the checks without a reference.
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
    facts: Facts = Facts()

    # How outputs begin that take more than a network's weights and a batch, which a file to be checked need not give
    corners: ClassVar[Sequence[str]] = ()
    # The score of an evaluation in a row of a run's metrics
    metric: ClassVar[str] = "return_mean"
    # Rows that indices choose from besides the dataset's, numbered on from those
    further_rows: ClassVar[int] = 0
    # Functions that draw of a dataset's rows before the first update, as NumPy's arrays, and what they are told besides
    drawn_once: ClassVar[Mapping[str, tuple]] = {}
    # Look-ups by index, and calls of the host, in one update; the mean where updates differ
    gathers: ClassVar[float] = 1
    host_calls: ClassVar[float] = 0
    # Updates of an interval whose program is counted: its loops make them all, but for a few
    counted_updates: ClassVar[int] = 200
    # Whether the scanned loop itself draws, what would be too large to draw ahead
    draws_inside: ClassVar[bool] = False
    # Whether recording a CUDA graph can be tried on a CPU, where PyTorch's `one_hot` looks at its numbers
    records_on_cpu: ClassVar[bool] = True
    # The precision in which PyTorch's compiled updates are compared. In double precision PyTorch 2.13's compiled Adam
    # leaves some parameters without axes where they are.
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
        """Whether a run goes on in the environment."""
        return hasattr(self.jax, "train_online")

    @property
    def two_buffers(self) -> bool:
        """Whether experience has a buffer of its own beside the dataset's, so that a batch is a mix of both."""
        return "online_size" in inspect.signature(self.torch.draw_noise).parameters

    @property
    def other_draws(self) -> Sequence[str]:
        """Further functions that draw, which a run calls between updates."""
        return ("draw_exploration",) if hasattr(self.jax, "draw_exploration") and not self.explores else ()

    def lasting(self, updates: int) -> dict[str, int]:
        """Settings of a run of so many updates: of two phases, the online one has the last third."""
        if not hasattr(self.torch.TrainConfig, "switch"):
            return {"max_timesteps": updates}
        config = self.torch.TrainConfig(**self.variants["default"])
        before = config.switch - config.offline_iterations
        return {"offline_iterations": 2 * updates // 3 - before, "online_iterations": updates - 2 * updates // 3}

    # ---- data ------------------------------------------------------------------------------------------------------

    def load(self, raw: dict[str, np.ndarray], frame_stack: int = 1) -> Any:
        """From a dataset file's arrays to the named tuple of columns that the pair learns from, (N, ...) each.

        Here they are transitions with normalised states, or with images, whose frames are stacked.
        """
        if transitions.shows_images(raw):
            return transitions.extract_transitions(raw, frame_stack=frame_stack)
        return transitions.normalise_states(transitions.extract_transitions(raw))[0]

    def ready(self, twin: ModuleType, dataset: Any, config: Any) -> Any:
        """What a twin's loop takes: the dataset on the device, or what is made of it once before training."""
        return dataset

    def take(self, twin: ModuleType, dataset: Any, indices: Any, config: Any) -> Any:
        """A batch."""
        return twin.take(dataset, indices)

    def prepared(self, twin: ModuleType) -> dict[str, Any]:
        """What a twin makes of datasets, or of the numbers of steps, beforehand, by name; both twins make the same."""
        return {}

    # ---- what an update draws and is told --------------------------------------------------------------------------

    def draw_inputs(self, dataset: Any, action_dim: int) -> tuple:
        """What `draw_noise` is told of the dataset's columns and A, between config and device."""
        return len(dataset[0]), action_dim

    def torch_draw_inputs(self, dataset: Any, action_dim: int) -> tuple:
        """Likewise for the PyTorch twin, where CORL's draws need to know more."""
        return self.draw_inputs(dataset, action_dim)

    def torch_draws(self, config: Any, dataset: Any, action_dim: int, device: Any) -> Callable[..., tuple]:
        """The PyTorch twin's `draw_noise` for these columns; what is left to give are the arguments of a step."""
        return partial(self.torch.draw_noise, config, *self.torch_draw_inputs(dataset, action_dim), device)

    def draw_statics(self, config: Any, step: int) -> dict[str, Any]:
        """The further arguments of `draw_noise` in the update of this number (from 1)."""
        return {}

    def update_statics(self, config: Any, step: int) -> dict[str, Any]:
        """Likewise the static arguments of the JAX `update`."""
        return {}

    def number(self, step: int) -> tuple:
        """What the JAX `update` takes after the noise, in the update of this number (from 1)."""
        return ()

    def interval_statics(self, config: Any, start: int, num_updates: int) -> dict[str, Any]:
        """The static arguments of `train_interval`, from the updates before an interval and its length."""
        return {}

    def drawn_inside(self, twin: ModuleType, noise: Any, hp: Any) -> Any:
        """What is drawn from a key that the noise of the JAX twin holds; the noise as it is where it holds none."""
        return noise

    # ---- what is compared ------------------------------------------------------------------------------------------

    def outputs(self, twin: Any, batch: Any) -> dict[str, Any]:
        """Every network's output by name, from a state of either twin, since networks can be called on both sides."""
        raise NotImplementedError

    def networks_of(self, outputs: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs that a file to be checked must give."""
        return {name: value for name, value in outputs.items() if not name.startswith(tuple(self.corners))}

    def predicted(self, twin: Any, batch: Any) -> dict[str, Any]:
        """What a learnt model says of steps, from a twin's state and a batch; such a pair has no policy."""
        return {}

    def corner(self, trainer: Any) -> None:
        """Moves numbers of a PyTorch twin, in place, to where a loss decides otherwise than after a few updates."""

    @cached_property
    def losses(self) -> Mapping[str, Loss]:
        """Each loss by its function's name."""
        return losses_of(self.torch, self.jax)

    def uses(self, loss: str, config: Any) -> bool:
        """Whether an update under this config differentiates the loss at all."""
        return True

    def given(self, batch: Any, noise: Any) -> dict[str, Any]:
        """The inputs of losses by name, from an update's batch and noise; of one minibatch if it takes several."""
        return {"batch": batch, "noise": noise}

    def extra_inputs(self, rng: np.random.Generator, size: int) -> dict[str, Any]:
        """Further inputs of losses, by name, for batches of a size."""
        return {}

    def shipped(self, scene: Any) -> dict[str, float]:
        """How far the JAX twin's further programs are from their parts, by name."""
        return {}

    def replays(self, patch: Any) -> None:
        """Patches both twins so that the JAX one's run gets what else the PyTorch one draws."""

    def begins(self, trainer: Any, rows: int) -> None:
        """What a PyTorch trainer makes of the number of the dataset's rows before the first update, in place."""

    # ---- in the environment ----------------------------------------------------------------------------------------

    def explored(self, rng: np.random.Generator, rows: int, action_dim: int) -> dict[str, Any]:
        """What `explore` is given of these, by name."""
        return {}

    def torch_phase(self, trainer: Any) -> tuple:
        """What the PyTorch trainer's draws for the next update depend on besides."""
        return ()

    def call_statics(self, config: Any, start: int, num_updates: int) -> dict[str, Any]:
        """The static arguments of `train_online`, as `interval_statics` has those of an interval."""
        return {}

    def as_rows(self, steps: Batch) -> Any:
        """From the environment's steps to the rows that are kept."""
        return steps

    def entered(self, state: Any, places: np.ndarray, rows: int) -> Any:
        """A JAX state after rows were stored at these places, which count on from the dataset's rows."""
        return state

    def drawn_batch(self, state: Any, twin: ModuleType, held: Any, indices: Any, noise: Any) -> Any:
        """An online batch, from the columns of both buffers, indices and noise."""
        return type(held)(*(column[indices] for column in held))


class FinitePair(Pair):
    """A pair that chooses one of finitely many actions."""

    def load(self, raw: dict[str, np.ndarray], frame_stack: int = 1) -> Any:
        """As `Pair.load`; in place of a vector comes the number of its largest component."""
        return super().load(raw | {"actions": raw["actions"].argmax(axis=1)}, frame_stack)

    def draw_inputs(self, dataset: Any, action_dim: int) -> tuple:
        """Without A: no noise is added to actions."""
        return (len(dataset[0]),)
