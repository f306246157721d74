"""The rungs: each climbs one step of a pair and returns how far the twins are apart there.

A rung takes a `Scene` (both twins at the same weights, a batch, the same noise) and returns errors by name. Nothing in
this file knows an algorithm: names that both twins share, and a short adapter (`pair.py`), tell what there is.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from parity_tests.draws import DRAWN_UPDATES, faults
from parity_tests.errors import errors
from parity_tests.interpreter import interpreted
from parity_tests.scene import Scene
from shared.frameworks import jax_side
from shared.frameworks.exchange import Named, named, parameters, part_names, to_jax, to_torch, torch_part

Errors = dict[str, float]

TRAJECTORY_UPDATES = 50


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
    ours = scene.run(scene.pair.outputs, scene.state(), scene.jax_batch(indices))
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


@cache
def value_and_gradient(state: Any, loss: str) -> Callable:
    """One of the JAX twin's losses, with its second output, and its gradient, as a function of the state and more."""
    return jax.value_and_grad(getattr(state, loss), argnums=1, has_aux=True)


def loss_of(state: Any, loss: str, parts: Sequence[str]) -> tuple[Callable, Any, Any]:
    """A loss with its gradient, the state and what it is differentiated by."""
    return value_and_gradient(state.__class__, loss), state, _differentiated(state, parts)


def loss(scene: Scene) -> Errors:
    """Every loss."""
    state, values, reference = scene.state(), {}, {}
    ours_given, given = inputs(scene)
    for name, loss in scene.losses().items():
        value, _ = getattr(scene.trainer, name)(*(given[x] for x in loss.inputs))
        reference[name] = value.detach()
        (values[name], _), _ = scene.run(*loss_of(state, name, loss.of), *(ours_given[x] for x in loss.inputs))
    return errors(values, reference)


def reference_gradients(trainer: Any, loss: str, of: Sequence[str], given: Sequence[Any]) -> dict[str, Named]:
    """The torch twin's gradient of a loss at these inputs, part by part."""
    value, _ = getattr(trainer, loss)(*given)
    parts = {part: parameters(getattr(trainer, part)) for part in of}
    gradients = iter(torch.autograd.grad(value, [p for part in parts.values() for p in part.values()]))
    return {part: {key: next(gradients).numpy() for key in parts[part]} for part in parts}


def gradient(scene: Scene) -> Errors:
    """Every parameter's gradient, against the largest entry of its network's gradient."""
    state = scene.state()
    found: Errors = {}
    ours_given, given = inputs(scene)
    for name, loss in scene.losses().items():
        reference = reference_gradients(scene.trainer, name, loss.of, [given[x] for x in loss.inputs])
        _, ours = scene.run(*loss_of(state, name, loss.of), *(ours_given[x] for x in loss.inputs))
        for part, leaf in zip(reference, ours if len(reference) > 1 else [ours], strict=True):
            leaves = errors(named(leaf), reference[part], together=True)
            found |= {f"{name} by {part}.{key}": value for key, value in leaves.items()}
    return found


def _one_update(scene: Scene) -> tuple[Errors, Errors]:
    """The errors of the state and of the metrics, over as many updates as bring every kind of step."""
    state = scene.state()
    draws = scene.draws()
    worst: Errors = {}
    log: Errors = {}
    for step in range(scene.updates + 1, scene.updates + 4):
        state = to_jax(scene.trainer, state)  # each update from the reference's own state: this is no trajectory
        indices, noise = next(draws)
        state, metrics = scene.update(state, step, indices, scene.jax_noise(noise))
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
        state, _ = scene.update(state, step, indices, scene.jax_noise(noise))
        scene.trainer.update(scene.torch_batch(indices), noise)
    return compare_states(state, scene.trainer)


def shipped_path(scene: Scene, start: int = 1, num_updates: int = 9) -> Errors:
    """The loop that `train` runs against single updates, from a phase and over a length that fit no period."""
    # What `train` runs is computed by the scene's engine, the single updates always one operation after the other.
    key, singly = jax.random.key(1), replace(scene, engine=interpreted)
    expected, singles = scene.state(), []
    for step in range(start + 1, start + num_updates + 1):
        statics = scene.pair.draw_statics(scene.config, step)
        indices, noise = scene.jax_draw(key, step - 1, statics)
        expected, metrics = singly.update(expected, step, indices, noise)
        singles.append(metrics)
    statics = scene.pair.interval_statics(scene.config, start, num_updates)
    statics |= {"num_updates": num_updates}
    state, history = scene.run(scene.jax_twin.train_interval, scene.state(), key, scene.jax_dataset, start, **statics)
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
    found: Errors = {}
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
