"""The checker's questions to a port at each rung, and PyTorch's answers.

A question contains everything that is needed to answer it: the initial weights and moments, inputs, and the
reference's numbers. It is put to the file and, if that fails, to our own twin with one mistake after another.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

import jax
import numpy as np
import torch

from parity_tests.ladder import rungs as ladder
from parity_tests.ladder.draws import DRAWN_UPDATES, Draw, faultless
from parity_tests.ladder.rungs import TRAJECTORY_UPDATES, reference_gradients
from parity_tests.ladder.scene import Scene
from parity_tests.ladder.stretching import FAR
from parity_tests.mutants.planted import mistakes_of
from parity_tests.pairs import PAIRS
from port_checker.finding.figures import Expected
from port_checker.finding.port import Parts, Sizes, reference_parts
from shared.frameworks.exchange import Named, torch_part

Inputs = dict[str, Any]

UPDATES = 3


@dataclass(frozen=True, eq=False)
class Given:
    """The inputs for an answer.

    Attributes:
        config: Settings.
        sizes: S, A and the bound of every action component.
        start: The initial weights and moments.
        inputs: The arguments of the file's functions by name; in a trajectory, one mapping for each update.
    """

    config: Any
    sizes: Sizes
    start: Parts
    inputs: list[Inputs]


@dataclass(frozen=True, eq=False)
class Question:
    """One rung under one variant's settings on one dataset.

    Attributes:
        rung: The rung's name.
        where: The variant and the dataset, for messages.
        given: The inputs.
        expected: PyTorch's figures.
        drawn: PyTorch's indices and noise for each update, if the question is about draws.
    """

    rung: str
    where: str
    given: Given
    expected: Expected
    drawn: Sequence[Draw] = ()


def questions(name: str, rung: str, variants: tuple[str, ...], left: frozenset[str] = frozenset()) -> list[Question]:
    """All questions of a rung; the settings in `left` keep their defaults.

    A trajectory is slow to compile. Therefore it is checked only under the default settings, and under settings that a
    planted mistake needs to show up there.
    """
    if rung == "trajectory":
        shown = {"default", *(mistake.variant for mistake in mistakes_of(name) if mistake.rung == rung)}
        variants = tuple(v for v in variants if v in shown) or variants
    return [question for variant in variants for question in _questions(name, variant, left)[rung]()]


@cache
def _questions(name: str, variant: str, left: frozenset[str]) -> Mapping[str, Callable[[], tuple[Question, ...]]]:
    """Functions that make each rung's questions, once, when they are first needed."""
    pair = PAIRS[name]

    def scene(dataset: str = "bundled", warm: bool = True) -> tuple[Scene, str]:
        where = f"settings {variant!r}, {dataset} data"
        return Scene.create(pair, pair.jax, variant, dataset, warm, left=left), where

    def far() -> tuple[Scene, str]:
        return scene()[0].stretched(FAR), f"settings {variant!r}, outputs beyond their bounds"

    # The corners are the same under all settings.
    datasets = ("bundled", "made-up") if variant == "default" else ("bundled",)

    @cache
    def updates() -> list[tuple[Question, Question]]:
        # Gradients on made-up rows are large enough for clipping to take effect.
        return [asked for dataset in datasets for asked in _updates(*scene(dataset))]

    return {
        "weights": cache(lambda: (_weights(*scene()),)),
        "forward": cache(lambda: (*(_forward(*scene(x)) for x in datasets), _forward(*far()))),
        "loss": cache(lambda: tuple(_loss(*scene(x)) for x in datasets)),
        "gradient": cache(lambda: tuple(_gradient(*scene(x)) for x in datasets)),
        "update": lambda: tuple(update for update, _ in updates()),
        "log": lambda: tuple(log for _, log in updates()),
        "trajectory": cache(lambda: (_trajectory(*scene(warm=False)),)),
        "draws": cache(lambda: (_draws(*scene(warm=False)),)),
    }


def _parts(scene: Scene) -> Parts:
    return {name: torch_part(scene.trainer, name) for name in reference_parts(scene.pair)}


def update_inputs(scene: Scene, indices: Any, noise: Any, step: int) -> Inputs:
    """The arguments of an update; flags derived from the step's number are bools, known at compile time."""
    return {
        "config": scene.jax_config,
        "batch": scene.jax_batch(indices),
        "noise": scene.jax_noise(noise),
        "step": np.asarray(step),
        **scene.pair.update_statics(scene.config, step),
    }


def _from_here(scene: Scene, inputs: Inputs) -> Given:
    """Starts from the scene's weights."""
    return Given(scene.jax_config, scene.sizes, _parts(scene), [{"config": scene.jax_config, **inputs}])


def _weights(scene: Scene, where: str) -> Question:
    parts = _parts(scene)
    return Question("weights", where, _from_here(scene, {}), parts)


def _forward(scene: Scene, where: str) -> Question:
    indices, _ = next(scene.draws())
    with torch.no_grad():
        outputs = scene.pair.outputs(scene.trainer, scene.torch_batch(indices))
    expected = {name: {"": value.numpy()} for name, value in scene.pair.networks_of(outputs).items()}
    return Question("forward", where, _from_here(scene, {"batch": scene.jax_batch(indices)}), expected)


def _loss(scene: Scene, where: str) -> Question:
    ours, given = ladder.inputs(scene)
    expected = {}
    for name, loss in scene.losses().items():
        value, _ = getattr(scene.trainer, name)(*(given[x] for x in loss.inputs))
        expected[name] = {"": value.detach().numpy()}
    return Question("loss", where, _from_here(scene, ours), expected)


def _gradient(scene: Scene, where: str) -> Question:
    ours, given = ladder.inputs(scene)
    expected: dict[str, Named] = {}
    for name, loss in scene.losses().items():
        parts = reference_gradients(scene.trainer, name, loss.of, [given[x] for x in loss.inputs])
        expected |= {f"{name} by {part}": gradient for part, gradient in parts.items()}
    return Question("gradient", where, _from_here(scene, ours), expected)


def _updates(scene: Scene, where: str) -> list[tuple[Question, Question]]:
    """Weights and moments after single updates in different phases, and their metrics.

    Each update starts from PyTorch's own state, so this is not a trajectory.
    """
    draws, asked = scene.draws(), []
    for step in range(scene.updates + 1, scene.updates + 1 + UPDATES):
        indices, noise = next(draws)
        given = Given(scene.jax_config, scene.sizes, _parts(scene), [update_inputs(scene, indices, noise, step)])
        metrics = scene.trainer.update(scene.torch_batch(indices), noise)
        logged = {"metrics": {name: np.asarray(value) for name, value in metrics.items()}}
        here = f"{where}, update {step}"
        asked.append((Question("update", here, given, _parts(scene)), Question("log", here, given, logged)))
    return asked


def _trajectory(scene: Scene, where: str) -> Question:
    given = Given(scene.jax_config, scene.sizes, _parts(scene), [])
    for step, (indices, noise) in enumerate(islice(scene.draws(), TRAJECTORY_UPDATES), start=scene.updates + 1):
        given.inputs.append(update_inputs(scene, indices, noise, step))
        scene.trainer.update(scene.torch_batch(indices), noise)
    return Question("trajectory", where, given, _parts(scene))


def _draws(scene: Scene, where: str) -> Question:
    """The draws of several updates, then of the first one again, and under another key."""
    inputs = [draw_inputs(scene, 0, step) for step in range(1, 1 + DRAWN_UPDATES)]
    inputs += [draw_inputs(scene, 0, 1), draw_inputs(scene, 1, 1)]
    reference = list(islice(scene.draws(), DRAWN_UPDATES))
    return Question("draws", where, Given(scene.jax_config, scene.sizes, {}, inputs), faultless(reference), reference)


def draw_inputs(scene: Scene, seed: int, step: int) -> Inputs:
    """The arguments of `draw_noise` for this seed and update number."""
    names = list(inspect.signature(scene.pair.jax.draw_noise).parameters)
    sizes = scene.pair.draw_inputs(scene.dataset, scene.sizes[1])
    key, number = jax.random.key(seed), np.asarray(step)
    ours = {"key": key, "step": number, "config": scene.jax_config, "dataset_size": sizes[0]}
    # Our twins use other names for some arguments.
    twins = dict(zip(names, (key, number, scene.jax_config, *sizes), strict=False))
    return {**ours, "action_dim": scene.sizes[1], **twins, **scene.pair.draw_statics(scene.config, step)}
