"""The rungs: each climbs one step of a pair and returns how far the twins are apart there.

A rung takes a `Scene` (both twins at the same weights, a batch, the same noise) and returns errors by name. Nothing in
this file knows an algorithm: names that both twins share, and a short adapter (`pair.py`), tell what there is.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import islice
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from parity_tests.draws import DRAWN_UPDATES, faults
from parity_tests.errors import errors
from parity_tests.pair import Pair
from parity_tests.pairs import PAIRS
from shared import names
from shared.data import transitions
from shared.frameworks import jax_side, torch_side
from shared.frameworks.exchange import Named, named, parameters, part_names, to_jax, to_torch, torch_part

Errors = dict[str, float]

# Weights and moments from fresh are no test in float32: Adam's first step is lr * g / (|g| + eps), a sign function
# where g is near eps. Some 30 steps later it is smooth.
WARM_UPDATES = 30
TRAJECTORY_UPDATES = 50
# Small, to keep the ladder quick; the variant FULL_SIZE has CORL's defaults instead.
BATCH_SIZE = 32
FULL_SIZE = "full size"
DATASET_SIZE = 200


def bundled_rows() -> dict[str, np.ndarray]:
    """Rows of the bundled dataset's file around the end of an episode."""
    raw = transitions.read_hdf5(names.dataset_path("mini/hopper-medium-expert"))
    end = int(np.flatnonzero(raw["terminals"])[0])
    first = max(0, end - DATASET_SIZE // 2)
    rows = {key: values[first : first + DATASET_SIZE + 1].copy() for key, values in raw.items()}
    rows["timeouts"][-1] = True
    return rows


def cornered_rows(state_dim: int = 11, action_dim: int = 3) -> dict[str, np.ndarray]:
    """Made-up rows that reach the corners: terminals, actions at their bounds, extreme rewards, states, and ties."""
    rng, size = np.random.default_rng(0), DATASET_SIZE + 1
    observations = rng.normal(size=(size, state_dim))
    observations[::7] *= 10.0
    rows = {
        "observations": observations,
        "actions": np.clip(rng.normal(size=(size, action_dim)), -1.0, 1.0),
        "rewards": rng.choice([-100.0, -1.0, 0.0, 1.0, 1000.0], size=size),
        "terminals": rng.random(size) < 0.3,
    }
    for column in rows.values():
        column[1::10] = column[:-1:10]
    return rows | {"timeouts": np.arange(size) == size - 1}


DATASETS = {"bundled": bundled_rows, "cornered": cornered_rows}


@dataclass(frozen=True)
class Scene:
    """Both twins at the same weights, and what they are given.

    Attributes:
        pair: The adapter.
        jax_twin: The JAX module; a planted mistake is a changed one.
        config: Of the torch module; the JAX module's has the same fields.
        dataset: The pair's named tuple of NumPy columns.
        sizes: S and A.
        trainer: The torch twin, after `updates` updates.
        updates: Updates done.
    """

    pair: Pair
    jax_twin: ModuleType
    config: Any
    dataset: Any
    sizes: tuple[int, int]
    trainer: Any
    updates: int = 0

    @classmethod
    def create(cls, pair: Pair, jax_twin: ModuleType, variant: str, dataset: str, warm: bool = True) -> "Scene":
        """Twins under a variant's settings: fresh, or after `WARM_UPDATES` updates of the torch twin."""
        scene = _scene(pair.name, variant, dataset, warm, torch.get_default_dtype())
        torch_side.seed_everything(1)
        return replace(scene, jax_twin=jax_twin, trainer=copy.deepcopy(scene.trainer))

    def advanced(self, updates: int) -> "Scene":
        """The scene after further updates of the torch twin, which is changed in place."""
        for indices, noise in islice(self.draws(), updates):
            self.trainer.update(self.torch_batch(indices), noise)
        return replace(self, updates=self.updates + updates)

    def draws(self) -> Any:
        """Endlessly (indices, noise) as the torch twin draws them, from the next update on."""
        step = self.updates
        draw = self.pair.torch_draws(self.config, self.dataset, self.sizes[1], torch.device("cpu"))
        while True:
            step += 1
            yield draw(**self.pair.draw_statics(self.config, step))

    def jax_draw(self, key: Any, step: int, statics: dict[str, Any]) -> tuple[Any, Any]:
        """Indices and noise as the JAX twin draws them; the number of an update starts at 0 in its draws."""
        hp = jax_side.narrow(self.jax_config, self.jax_twin.Hyperparameters)
        inputs = self.pair.draw_inputs(self.dataset, self.sizes[1])
        return self.jax_twin.draw_noise(key, step, hp, *inputs, **statics)

    def torch_batch(self, indices: Any) -> Any:
        """A batch as the torch twin takes it."""
        return self.pair.take(self.pair.torch, self._torch_dataset, torch.as_tensor(np.asarray(indices)), self.config)

    def jax_batch(self, indices: Any) -> Any:
        """A batch as the JAX twin takes it."""
        return self.pair.take(self.jax_twin, self.jax_dataset, jnp.asarray(np.asarray(indices)), self.jax_config)

    @cached_property
    def _torch_dataset(self) -> Any:
        return torch_side.to_device(self.dataset, torch.device("cpu"))

    @cached_property
    def jax_dataset(self) -> Any:
        """The dataset, packed."""
        return jax_side.to_device(self.dataset)

    def jax_noise(self, noise: Any) -> Any:
        """The torch twin's noise as the JAX twin's."""
        return self.jax_twin.Noise(*jax.tree.map(lambda draw: jnp.asarray(draw.numpy()), tuple(noise)))

    @cached_property
    def jax_config(self) -> Any:
        """The JAX twin's config with the same values."""
        return self.jax_twin.TrainConfig(**vars(self.config))

    def state(self) -> Any:
        """The JAX twin's state at the torch twin's present weights."""
        return to_jax(self.trainer, _fresh_state(self.jax_twin, self.jax_config, self.sizes, jax.config.jax_enable_x64))

    def losses(self) -> dict[str, Any]:
        """The pair's losses that this config uses."""
        return {name: loss for name, loss in self.pair.losses.items() if loss.used(self.config)}


# Made once, since many rungs start from the same place; the precision is an argument because it decides the dtypes.


@cache
def _scene(name: str, variant: str, dataset: str, warm: bool, dtype: torch.dtype) -> Scene:
    pair = PAIRS[name]
    columns = pair.load(DATASETS[dataset]())
    settings = pair.full_size if variant == FULL_SIZE else {"batch_size": BATCH_SIZE} | pair.variants[variant]
    config = pair.torch.TrainConfig(device="cpu", **settings)
    torch_side.seed_everything(0)
    sizes = columns.observations.shape[1], columns.actions.shape[1]
    trainer = pair.torch.create_trainer(config, *sizes, 1.0)
    scene = Scene(pair, pair.jax, config, columns, sizes, trainer)
    return scene.advanced(WARM_UPDATES) if warm else scene


@cache
def _fresh_state(twin: ModuleType, config: Any, sizes: tuple[int, int], x64: bool) -> Any:
    return twin.create_train_state(jax.random.key(0), config, *sizes, 1.0)


# Compiled once for each twin and set of static arguments: scenes of equal shapes and settings share the programs.


@cache
def compiled_gradient(state: type, loss: str) -> Callable:
    """The gradient of one of the JAX twin's losses, with its second output, as a function of the state and more."""
    return jax.jit(jax.grad(getattr(state, loss), argnums=1, has_aux=True))


@cache
def compiled_update(state: type, **statics: Any) -> Callable:
    """The JAX twin's `update` under these static arguments."""
    return jax.jit(partial(state.update, **statics))


def forget_programs() -> None:
    """Drops every compiled program: some thousands of them exhaust the memory maps that Linux grants a process."""
    for cached in (_fresh_state, compiled_gradient, compiled_update):
        cached.cache_clear()
    jax.clear_caches()


@contextmanager
def hardly_optimised() -> Iterator[None]:
    """Programs of this time are compiled sooner and run more slowly; rounding differs, and none is kept in memory."""
    forget_programs()
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", False)
        forget_programs()


def compare_states(state: Any, trainer: Any) -> Errors:
    """Every part of the JAX state against the torch twin's part of the same name."""
    parts = {name: errors(named(getattr(state, name)), torch_part(trainer, name)) for name in part_names(state)}
    return {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}


def weights(scene: Scene) -> Errors:
    """Torch to flax and back: every part, moments included."""
    state = scene.state()
    back = scene.pair.torch.create_trainer(scene.config, *scene.sizes, 1.0)
    to_torch(state, back)
    returned = {f"back: {name}": error for name, error in compare_states(state, back).items()}
    return compare_states(state, scene.trainer) | returned


def forward(scene: Scene) -> Errors:
    """Every network's output."""
    indices, _ = next(scene.draws())
    with torch.no_grad():
        reference = scene.pair.outputs(scene.trainer, scene.torch_batch(indices))
    ours = scene.pair.outputs(scene.state(), scene.jax_batch(indices))
    return errors(ours, reference)


def inputs(scene: Scene) -> tuple[dict[str, Any], dict[str, Any]]:
    """What losses are given, by name: the torch twin's and the JAX twin's."""
    indices, noise = next(scene.draws())
    extra = scene.pair.extra_inputs(np.random.default_rng(0), len(indices))
    reference = {"batch": scene.torch_batch(indices), "noise": noise}
    reference |= {name: torch.as_tensor(value, dtype=torch.get_default_dtype()) for name, value in extra.items()}
    ours = {"batch": scene.jax_batch(indices), "noise": scene.jax_noise(noise)}
    return ours | {name: jnp.asarray(value, dtype=float) for name, value in extra.items()}, reference


def _differentiated(state: Any, parts: Sequence[str]) -> Any:
    """The first argument of a JAX loss: one part, or a tuple of several."""
    return getattr(state, parts[0]) if len(parts) == 1 else tuple(getattr(state, part) for part in parts)


def loss(scene: Scene) -> Errors:
    """Every loss."""
    state, values, reference = scene.state(), {}, {}
    ours_given, given = inputs(scene)
    for name, loss in scene.losses().items():
        value, _ = getattr(scene.trainer, name)(*(given[x] for x in loss.inputs))
        reference[name] = value.detach()
        by = _differentiated(state, loss.of)
        values[name], _ = getattr(state, name)(by, *(ours_given[x] for x in loss.inputs))
    return errors(values, reference)


def reference_gradients(trainer: Any, loss: str, of: Sequence[str], given: Sequence[Any]) -> dict[str, Named]:
    """The torch twin's gradient of a loss at these inputs, part by part."""
    value, _ = getattr(trainer, loss)(*given)
    parts = {part: parameters(getattr(trainer, part)) for part in of}
    gradients = iter(torch.autograd.grad(value, [p for part in parts.values() for p in part.values()]))
    return {part: {key: next(gradients).numpy() for key in parts[part]} for part in parts}


def gradient(scene: Scene) -> Errors:
    """Every parameter's gradient, against the largest entry of its network's gradient."""
    state, found = scene.state(), {}
    ours_given, given = inputs(scene)
    for name, loss in scene.losses().items():
        reference = reference_gradients(scene.trainer, name, loss.of, [given[x] for x in loss.inputs])
        by = _differentiated(state, loss.of)
        ours, _ = compiled_gradient(type(state), name)(state, by, *(ours_given[x] for x in loss.inputs))
        for part, leaf in zip(reference, ours if len(reference) > 1 else [ours], strict=True):
            leaves = errors(named(leaf), reference[part], together=True)
            found |= {f"{name} by {part}.{key}": value for key, value in leaves.items()}
    return found


def _one_update(scene: Scene) -> tuple[Errors, Errors]:
    """The errors of the state and of the metrics, over as many updates as bring every kind of step."""
    state = scene.state()
    draws, worst, log = scene.draws(), {}, {}
    for step in range(scene.updates + 1, scene.updates + 4):
        state = to_jax(scene.trainer, state)  # each update from the reference's own state: this is no trajectory
        indices, noise = next(draws)
        statics = scene.pair.update_statics(scene.config, step)
        update = compiled_update(type(state), **statics)
        state, metrics = update(state, scene.jax_batch(indices), scene.jax_noise(noise))
        reference = scene.trainer.update(scene.torch_batch(indices), noise)
        for found, total in ((compare_states(state, scene.trainer), worst), (errors(metrics, reference), log)):
            total |= {name: max(value, total.get(name, 0.0)) for name, value in found.items()}
    return worst, log


def update(scene: Scene) -> Errors:
    """Parameters, targets and moments after one step from a warm state, for three steps of different phase."""
    return _one_update(scene)[0]


def log(scene: Scene) -> Errors:
    """Every metric that a run logs, over the same steps."""
    return _one_update(scene)[1]


def trajectory(scene: Scene) -> Errors:
    """The whole state after 50 steps, each twin on its own."""
    state = scene.state()
    for step, (indices, noise) in enumerate(islice(scene.draws(), TRAJECTORY_UPDATES), start=scene.updates + 1):
        statics = scene.pair.update_statics(scene.config, step)
        update = compiled_update(type(state), **statics)
        state, _ = update(state, scene.jax_batch(indices), scene.jax_noise(noise))
        scene.trainer.update(scene.torch_batch(indices), noise)
    return compare_states(state, scene.trainer)


def shipped_path(scene: Scene, start: int = 1, num_updates: int = 9) -> Errors:
    """The loop that `train` runs against single updates, from a phase and over a length that fit no period."""
    twin, key = scene.jax_twin, jax.random.key(1)
    expected, singles = scene.state(), []
    for step in range(start + 1, start + num_updates + 1):
        statics = scene.pair.draw_statics(scene.config, step)
        indices, noise = scene.jax_draw(key, step - 1, statics)
        update = compiled_update(type(expected), **scene.pair.update_statics(scene.config, step))
        expected, metrics = update(expected, scene.jax_batch(indices), noise)
        singles.append(metrics)
    statics = scene.pair.interval_statics(scene.config, start, num_updates)
    state, history = twin.train_interval(scene.state(), key, scene.jax_dataset, start, num_updates, **statics)
    found = errors(jax_side.mean_metrics(history), jax_side.mean_metrics(singles))
    for name in part_names(state):
        parts = errors(named(getattr(state, name)), named(getattr(expected, name)))
        found |= {f"{name}.{leaf}": value for leaf, value in parts.items()}
    return found


def draws(scene: Scene) -> Errors:
    """Updates' indices and noise: of the torch twin's kinds, shapes and distributions, never the same twice."""
    steps = range(scene.updates + 1, scene.updates + 1 + DRAWN_UPDATES)

    def draw(seed: int, step: int) -> tuple[Any, Any]:
        return scene.jax_draw(jax.random.key(seed), step - 1, scene.pair.draw_statics(scene.config, step))

    ours, reference = [draw(2, step) for step in steps], list(islice(scene.draws(), DRAWN_UPDATES))
    num_rows, *_ = scene.pair.draw_inputs(scene.dataset, scene.sizes[1])
    found = {}
    for what, figures in faults([*ours, draw(2, steps[0]), draw(3, steps[0])], reference, num_rows).items():
        found |= {f"{what} {name}": float(np.abs(value).max()) for name, value in figures.items()}
    # Neither twin draws what the other does without.
    given = [[[value is None for value in noise] for _, noise in drawn] for drawn in (ours, reference)]
    return found | {"noise that is None": 0.0 if given[0] == given[1] else np.inf}


@dataclass(frozen=True)
class Rung:
    """One rung: how it is climbed, and how far the twins may be apart, relative to a tensor's largest entry.

    Attributes:
        climb: From a scene to errors by name.
        float64: Tolerance in double precision.
        float32: Tolerance in single precision; None where the rung says nothing there.
        warm: Whether it starts from a warm state.
    """

    climb: Callable[[Scene], Errors]
    float64: float
    float32: float | None
    warm: bool = True


# Measured on these twins in float64: forward 2e-14, loss 1e-15, gradient 4e-13, update 2e-12, trajectory 6e-13.
RUNGS: Mapping[str, Rung] = {
    "weights": Rung(weights, 0.0, 0.0),
    "forward": Rung(forward, 1e-12, 2e-6),
    "loss": Rung(loss, 1e-12, 1e-5),
    "gradient": Rung(gradient, 1e-10, 1e-4),
    "update": Rung(update, 1e-10, 1e-5),
    "log": Rung(log, 1e-10, 1e-4),
    "trajectory": Rung(trajectory, 1e-9, None, warm=False),
    "draws": Rung(draws, 0.0, 0.0, warm=False),
    "shipped path": Rung(shipped_path, 1e-10, 1e-5),
}
