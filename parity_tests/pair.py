"""A pair as the ladder sees it: what cannot be read off the names that both twins share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np

from parity_tests.families import Family
from shared.data import transitions
from shared.data.transitions import Batch
from shared.frameworks.twins import load_twin


@dataclass(frozen=True)
class Loss:
    """One loss function of a pair.

    Attributes:
        of: The parts that it is differentiated by, in the JAX function's first argument.
        inputs: Its further arguments, by name: `batch`, `noise`, a column of the batch, or a name in the pair's
            `extra_inputs`.
        used: Whether an update under this config differentiates it at all.
    """

    of: Sequence[str]
    inputs: Sequence[str] = ("batch", "noise")
    used: Callable[[Any], bool] = lambda config: True


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


def no_statics(config: Any, step: int) -> dict[str, Any]:
    """For twins in which nothing depends on the number of an update."""
    return {}


def load_transitions(raw: dict[str, np.ndarray], frame_stack: int = 1) -> Batch:
    """Transitions with normalised states; or with images, whose frames are stacked."""
    if transitions.shows_images(raw):
        return transitions.extract_transitions(raw, frame_stack=frame_stack)
    return transitions.normalise_states(transitions.extract_transitions(raw))[0]


def load_choices(raw: dict[str, np.ndarray], frame_stack: int = 1) -> Batch:
    """Likewise, of finite actions: in place of a vector stands the number of its largest component."""
    return load_transitions(raw | {"actions": raw["actions"].argmax(axis=1)}, frame_stack)


@dataclass(frozen=True)
class Pair:
    """An adapter. Networks, targets, optimisers and temperatures are found by their names, equal in both twins.

    Attributes:
        name: The algorithm's name, that of its files (`shared.frameworks.twins`).
        title: What tables call it.
        family: Where tables list it.
        use: When to choose it among its family, or what it is there; a sentence.
        paper: Authors and year, in tables.
        url: Of the paper.
        benchmark_updates: Updates in a timed block: a second or two of them.
        facts: For the checks without a reference.
        outputs: From a twin's state and a batch to every network's output, by name. It works on either framework, since
            networks can be called on both sides.
        predicted: From a twin's state and a batch to what a learnt model says of steps; such a pair has no policy.
        corners: Outputs that take more than a network's weights and a batch, which a file to be checked need not give.
        losses: Each loss by its function's name.
        variants: Settings under which the ladder is climbed, by name; `default` holds none.
        corner: Moves numbers of a torch twin, in place, to where a loss decides otherwise than after a few updates.
        extra_inputs: From a generator and a batch size to further inputs of losses, by name.
        draw_inputs: From the dataset's columns and A to what `draw_noise` is told of them, between config and device.
        torch_draw_inputs: Likewise for the PyTorch twin, where CORL's draws need to know more; None: the same.
        torch_phase: From the PyTorch trainer to what its draws for the next update depend on besides.
        draw_statics: From a config and an update's number (from 1) to the further arguments of `draw_noise`.
        other_draws: Names of further functions that draw, which a run calls between updates.
        further_rows: How many rows indices choose from besides the dataset's: they are numbered on from those.
        drawn_once: Names of functions that draw of a dataset's rows before the first update, as NumPy's arrays.
        drawn_with: What such a function is told besides the number of rows, by its name.
        replays: Patches both twins so that the JAX one's run gets what else the PyTorch one draws.
        shipped: From a scene to how far the JAX twin's further programs are from their parts, by name.
        metric: Under which name a row of a run's metrics has the score of an evaluation.
        explored: From a generator, a number of rows and A to what `explore` is given of these, by name.
        explores: Whether a run goes on in the environment: both twins have `draw_exploration` and `explore`, the JAX
            twin `train_online`.
        two_buffers: Whether what it lives through there has a buffer of its own beside the dataset's. A batch is then a
            mix of both. `draw_noise` also takes `online_size`, and `train_online` also takes the dataset.
        as_rows: From the environment's steps, a `Batch`, to the rows that are kept.
        begins: What a PyTorch trainer makes of the number of the dataset's rows before the first update, in place.
        entered: From a JAX state, places of rows that were just stored and the dataset's size to the state after that.
            Places count on from the dataset's rows.
        drawn_batch: From a JAX state, its twin, the columns of both buffers, indices and noise to an online batch. Its
            rows follow from the state; None: they are those at the indices.
        update_statics: Likewise to the static arguments of the JAX `update`.
        numbered: Whether the JAX `update` takes its number (from 1), behind the noise.
        interval_statics: From a config, the updates before an interval and its length to those of `train_interval`.
        call_statics: Likewise to those of `train_online`.
        take: From a twin, its dataset on the device, indices and config to a batch.
        ready: From a twin, its dataset on the device and config to what its loop takes. That is what is made of the
            dataset once before training.
        load: From a dataset file's arrays to the named tuple of columns that the pair learns from, (N, ...) each.
        prepared: From a twin to what it makes of datasets, or of the numbers of steps, beforehand, by name; both twins
            make the same.
        gathers: Look-ups by index in one update, the batch's own included; the mean where updates differ.
        host_calls: Calls of the host in one update, likewise.
        counted_updates: Updates of an interval whose program is counted: its loops make them all, but for a few.
        counted: Settings of that program, where the defaults' innermost loop is none on the ladder's few rows.
        in_a_run: Settings of a short run, where an update of the defaults is too long for a test.
        full_size: Settings of the ladder's variant of full size, where a default is too large for a test.
        timed: Settings under which updates are timed, where CORL's defaults begin with others than those that count.
        on_device: Settings under which an update asks the host for nothing, where the defaults' updates do.
        drawn_inside: Where the noise holds a key: from JAX twin, noise and hyperparameters to what is drawn from it.
        draws_inside: Whether the scanned loop itself draws, what would be too large to draw ahead.
        records_on_cpu: Whether the recording of a CUDA graph can be tried on a CPU. There, and there alone, PyTorch's
            `one_hot` looks at the numbers that it is given.
        compiled_in: The precision in which PyTorch's compiled updates are compared. In double precision PyTorch 2.13's
            compiled Adam leaves some parameters without axes where they are.
        float32: A rung's tolerance in single precision, by its name, where the ladder's own cannot be had.
        float64: Likewise in double precision, and under `recording` that of a CUDA graph's updates.
    """

    name: str
    title: str
    family: Family
    use: str
    paper: str
    url: str
    benchmark_updates: int
    outputs: Callable[[Any, Any], dict[str, Any]]
    losses: Mapping[str, Loss]
    predicted: Callable[[Any, Any], dict[str, Any]] = lambda twin, batch: {}
    corners: Sequence[str] = ()
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"default": {}})
    corner: Callable[[Any], None] = lambda trainer: None
    extra_inputs: Callable[[np.random.Generator, int], dict[str, Any]] = lambda rng, size: {}
    draw_inputs: Callable[[Any, int], tuple] = lambda dataset, action_dim: (len(dataset[0]), action_dim)
    torch_draw_inputs: Callable[[Any, int], tuple] | None = None
    torch_phase: Callable[[Any], tuple] = lambda trainer: ()
    draw_statics: Callable[[Any, int], dict[str, Any]] = no_statics
    other_draws: Sequence[str] = ()
    further_rows: int = 0
    drawn_once: Sequence[str] = ()
    drawn_with: Mapping[str, tuple] = field(default_factory=dict)
    replays: Callable[[Any], None] = lambda patch: None
    shipped: Callable[[Any], dict[str, float]] = lambda scene: {}
    metric: str = "return_mean"
    explored: Callable[[np.random.Generator, int, int], dict[str, Any]] = lambda rng, rows, action_dim: {}
    explores: bool = False
    two_buffers: bool = False
    as_rows: Callable[[Batch], Any] = lambda steps: steps
    begins: Callable[[Any, int], None] = lambda trainer, rows: None
    entered: Callable[[Any, np.ndarray, int], Any] = lambda state, places, rows: state
    drawn_batch: Callable[..., Any] | None = None
    update_statics: Callable[[Any, int], dict[str, Any]] = no_statics
    numbered: bool = False
    interval_statics: Callable[[Any, int, int], dict[str, Any]] = lambda config, start, num_updates: {}
    call_statics: Callable[[Any, int, int], dict[str, Any]] = lambda config, start, num_updates: {}
    take: Callable[[ModuleType, Any, Any, Any], Any] = lambda twin, dataset, indices, config: twin.take(
        dataset, indices
    )
    ready: Callable[[ModuleType, Any, Any], Any] = lambda twin, dataset, config: dataset
    load: Callable[..., Any] = load_transitions
    prepared: Callable[[ModuleType], dict[str, Any]] = lambda twin: {}
    gathers: float = 1
    host_calls: float = 0
    counted_updates: int = 200
    counted: Mapping[str, Any] = field(default_factory=dict)
    in_a_run: Mapping[str, Any] = field(default_factory=dict)
    full_size: Mapping[str, Any] = field(default_factory=dict)
    timed: Mapping[str, Any] = field(default_factory=dict)
    on_device: Mapping[str, Any] = field(default_factory=dict)
    drawn_inside: Callable[[ModuleType, Any, Any], Any] | None = None
    draws_inside: bool = False
    records_on_cpu: bool = True
    compiled_in: str = "float64"
    float32: Mapping[str, float] = field(default_factory=dict)
    float64: Mapping[str, float] = field(default_factory=dict)
    facts: Facts = Facts()

    def torch_draws(self, config: Any, dataset: Any, action_dim: int, device: Any) -> Callable[..., tuple]:
        """The PyTorch twin's `draw_noise` for these columns; what is left to give are the arguments of a step."""
        inputs = (self.torch_draw_inputs or self.draw_inputs)(dataset, action_dim)
        return partial(self.torch.draw_noise, config, *inputs, device)

    def number(self, step: int) -> tuple:
        """What the JAX `update` takes behind the noise, in the update of this number (from 1)."""
        return (np.asarray(step),) if self.numbered else ()

    def lasting(self, updates: int) -> dict[str, int]:
        """Settings of a run of so many updates: of two phases, the online one has the last third."""
        if not hasattr(self.torch.TrainConfig, "switch"):
            return {"max_timesteps": updates}
        config = self.torch.TrainConfig(**self.variants["default"])
        before = config.switch - config.offline_iterations
        return {"offline_iterations": 2 * updates // 3 - before, "online_iterations": updates - 2 * updates // 3}

    @property
    def torch(self) -> ModuleType:
        """The PyTorch twin."""
        return load_twin("torch", self.name)

    @property
    def jax(self) -> ModuleType:
        """The JAX twin."""
        return load_twin("jax", self.name)
