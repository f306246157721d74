"""What the checker asks a port at each rung, and what PyTorch answers.

A question holds everything that is needed to answer it: weights and moments to start from, inputs, and the reference's
numbers. It is put to the file that is checked and, where that fails, to our own twin with one mistake after another.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import islice
from typing import Any

import numpy as np
import torch

from parity_tests import ladder
from parity_tests.checker.port import NotWrittenError, Parts, Port, reference_parts
from parity_tests.ladder import TRAJECTORY_UPDATES, Scene, reference_gradients
from parity_tests.pairs import MISTAKES, PAIRS
from parity_tests.states import Named, errors, torch_part
from shared.errors import InputError

# What a rung yields: numbers by name, in groups that are right or wrong together; None: not written yet
Figures = dict[str, Named | None]
Inputs = dict[str, Any]

# The tolerances of the ladder's own rungs are for twins written line by line alike. A right port may write the same
# number another way (log(1 - tanh^2) for a stable form, a mean of means), which costs digits; the mistakes of the
# library are off by 1e-6 at least (LayerNorm's epsilon, the norm's in the clipped gradient).
TOLERANCES = {
    "weights": 0.0,
    "forward": 1e-10,
    "loss": 1e-9,
    "gradient": 1e-8,
    "update": 1e-8,
    "log": 1e-8,
    "trajectory": 1e-7,
}
UPDATES = 3


@dataclass(frozen=True, eq=False)
class Given:
    """What a port is given.

    Attributes:
        config: Settings.
        sizes: S and A.
        starts: Weights and moments to start from: one set, or one for each update.
        inputs: What the file's functions are given by name, for each update.
    """

    config: Any
    sizes: tuple[int, int]
    starts: list[Parts]
    inputs: list[Inputs]


@dataclass(frozen=True, eq=False)
class Question:
    """One rung under one variant's settings on one dataset.

    Attributes:
        rung: The rung's name.
        where: The variant and the dataset, for messages.
        given: What it is to be answered from.
        expected: PyTorch's figures.
    """

    rung: str
    where: str
    given: Given
    expected: Figures


def questions(name: str, rung: str, variants: tuple[str, ...]) -> list[Question]:
    """All questions of a rung.

    A trajectory, which is slow to compile, is asked for under the default settings, and under those that a mistake of
    the library needs to show there.
    """
    if rung == "trajectory":
        shown = {"default", *(mistake.variant for mistake in MISTAKES[name] if mistake.rung == rung)}
        variants = tuple(v for v in variants if v in shown) or variants
    return [question for variant in variants for question in _questions(name, variant)[rung]()]


@cache
def _questions(name: str, variant: str) -> Mapping[str, Callable[[], tuple[Question, ...]]]:
    """For each rung what makes its questions, once, when they are first asked."""
    pair = PAIRS[name]

    def scene(dataset: str = "bundled", warm: bool = True) -> tuple[Scene, str]:
        where = f"settings {variant!r}, {dataset} data"
        return Scene.create(pair, pair.jax, variant, dataset, warm), where

    # The corners are the same under all settings.
    datasets = ("bundled", "cornered") if variant == "default" else ("bundled",)

    @cache
    def updates() -> tuple[Question, Question]:
        return _updates(*scene())

    return {
        "weights": cache(lambda: (_weights(*scene()),)),
        "forward": cache(lambda: (*(_forward(*scene(x)) for x in datasets), *_stretched(scene()[0], variant))),
        "loss": cache(lambda: tuple(_loss(*scene(x)) for x in datasets)),
        "gradient": cache(lambda: tuple(_gradient(*scene(x)) for x in datasets)),
        "update": lambda: updates()[:1],
        "log": lambda: updates()[1:],
        "trajectory": cache(lambda: (_trajectory(*scene(warm=False)),)),
    }


def _stretched(scene: Scene, variant: str) -> tuple[Question, ...]:
    """Outputs where log-deviations that are parameters lie below, between and above their bounds."""
    if not _stretch_deviations(scene.trainer):
        return ()
    return (_forward(scene, f"settings {variant!r}, deviations at their bounds"),)


def _stretch_deviations(trainer: Any) -> bool:
    """Whether there are such parameters, which are changed in place."""
    if not hasattr(trainer, "actor"):
        return False
    found = [value for name, value in trainer.actor.named_parameters() if name.endswith("log_std")]
    for value in found:
        value.data = torch.linspace(-25.0, 5.0, len(value))
    return bool(found)


def _parts(scene: Scene) -> Parts:
    return {name: torch_part(scene.trainer, name) for name in reference_parts(scene.pair)}


def _given(scene: Scene, indices: Any, noise: Any, step: int) -> Inputs:
    """What an update is given: what a step's number decides is a bool and known when the program is compiled."""
    return {
        "config": scene.jax_config,
        "batch": scene.jax_batch(indices),
        "noise": scene.jax_noise(noise),
        "step": np.asarray(step),
        **scene.pair.update_statics(scene.config, step),
    }


def _from_here(scene: Scene, inputs: Inputs) -> Given:
    """At the scene's weights."""
    return Given(scene.jax_config, scene.sizes, [_parts(scene)], [{"config": scene.jax_config, **inputs}])


def _weights(scene: Scene, where: str) -> Question:
    parts = _parts(scene)
    return Question("weights", where, _from_here(scene, {}), parts)


def _forward(scene: Scene, where: str) -> Question:
    indices, _ = next(scene.draws())
    with torch.no_grad():
        outputs = scene.pair.outputs(scene.trainer, scene.torch_batch(indices))
    expected = {name: {"": value.numpy()} for name, value in outputs.items() if name not in scene.pair.corners}
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
    expected = {}
    for name, loss in scene.losses().items():
        parts = reference_gradients(scene.trainer, name, loss.of, [given[x] for x in loss.inputs])
        expected |= {f"{name} by {part}": gradient for part, gradient in parts.items()}
    return Question("gradient", where, _from_here(scene, ours), expected)


def _updates(scene: Scene, where: str) -> tuple[Question, Question]:
    """Weights and moments after each of some updates, and its metrics.

    Each update starts from PyTorch's own state: this is no trajectory.
    """
    draws, given, states, metrics = scene.draws(), Given(scene.jax_config, scene.sizes, [], []), {}, {}
    for step in range(scene.updates + 1, scene.updates + 1 + UPDATES):
        indices, noise = next(draws)
        given.starts.append(_parts(scene))
        given.inputs.append(_given(scene, indices, noise, step))
        log = scene.trainer.update(scene.torch_batch(indices), noise)
        metrics[f"update {step}"] = {name: np.asarray(value) for name, value in log.items()}
        states |= {f"{name} after update {step}": part for name, part in _parts(scene).items()}
    return Question("update", where, given, states), Question("log", where, given, metrics)


def _trajectory(scene: Scene, where: str) -> Question:
    given = Given(scene.jax_config, scene.sizes, [_parts(scene)], [])
    for step, (indices, noise) in enumerate(islice(scene.draws(), TRAJECTORY_UPDATES), start=scene.updates + 1):
        given.inputs.append(_given(scene, indices, noise, step))
        scene.trainer.update(scene.torch_batch(indices), noise)
    return Question("trajectory", where, given, _parts(scene))


# ---- answers -------------------------------------------------------------------------------------------------------


def answer(port: Port, question: Question) -> Figures:
    """The port's figures; a group is None where its function is not written yet.

    Raises:
        InputError: The file does not do what its contract says.
        NotWrittenError: Without the missing function there is nothing to tell.
    """
    return ANSWERS[question.rung](port, question)


def _started(port: Port, given: Given, number: int = 0) -> Any:
    return port.state(given.config, given.sizes, given.starts[number])


def _read(port: Port, given: Given, state: Any) -> Parts:
    return port.read(state, given.config, given.sizes, given.starts[0])


def _answer_weights(port: Port, question: Question) -> Figures:
    return _read(port, question.given, _started(port, question.given))


def _answer_forward(port: Port, question: Question) -> Figures:
    found = port.outputs(_started(port, question.given), question.given.inputs[0]["batch"])
    shapes = {name: np.shape(value[""]) for name, value in question.expected.items()}
    wrong = [f"{name!r} {np.shape(value)}" for name, value in found.items() if shapes.get(name) != np.shape(value)]
    if wrong:
        expected = ", ".join(f"{name!r} {shape}" for name, shape in shapes.items())
        raise InputError(f"outputs gives {', '.join(wrong)}: expected {expected}")
    return {name: {"": found[name]} if name in found else None for name in shapes}


def _answer_loss(port: Port, question: Question) -> Figures:
    state, found = _started(port, question.given), {}
    for name in question.expected:
        try:
            value = port.loss(name, state, question.given.inputs[0], port.differentiated(name, state))
            found[name] = {"": np.asarray(value)}
        except NotWrittenError:
            found[name] = None
    return found


def _answer_gradient(port: Port, question: Question) -> Figures:
    given = question.given
    state, found = _started(port, given), {}
    layouts = port.layouts(given.config, given.sizes, given.starts[0])
    for name in {group.partition(" by ")[0]: None for group in question.expected}:
        parts = port.pair.losses[name].of
        try:
            trees = port.gradient(name, state, given.inputs[0])
        except NotWrittenError:
            found |= dict.fromkeys((f"{name} by {part}" for part in parts), None)
            continue
        for part, tree in zip(parts, trees, strict=True):
            found[f"{name} by {part}"] = layouts[part].to_torch(tree, f"the gradient by {part}")
    return found


# Kept for the rung that asks for the metrics of the same updates, under as many settings as any pair has
@lru_cache(maxsize=4)
def _updated(port: Port, given: Given) -> tuple[Figures, Figures]:
    """The port's weights and moments after each update, and its metrics."""
    states, metrics = {}, {}
    for number, inputs in enumerate(given.inputs):
        state, log = port.update(_started(port, given, number), inputs)
        states |= {f"{name} after update {inputs['step']}": part for name, part in _read(port, given, state).items()}
        metrics[f"update {inputs['step']}"] = {name: np.asarray(value) for name, value in log.items()}
    return states, metrics


def _answer_update(port: Port, question: Question) -> Figures:
    return _updated(port, question.given)[0]


def _answer_log(port: Port, question: Question) -> Figures:
    """Metrics under the reference's names; a file may log others, or none."""
    logged = _updated(port, question.given)[1]
    return {
        group: {name: value for name, value in logged[group].items() if name in expected}
        for group, expected in question.expected.items()
    }


def _answer_trajectory(port: Port, question: Question) -> Figures:
    state = port.trajectory(_started(port, question.given), question.given.inputs)
    return _read(port, question.given, state)


ANSWERS: Mapping[str, Callable[[Port, Question], Figures]] = {
    "weights": _answer_weights,
    "forward": _answer_forward,
    "loss": _answer_loss,
    "gradient": _answer_gradient,
    "update": _answer_update,
    "log": _answer_log,
    "trajectory": _answer_trajectory,
}


# ---- comparison ----------------------------------------------------------------------------------------------------


def compare(rung: str, ours: Figures, theirs: Figures) -> dict[str, dict[str, float]]:
    """The error of each number of each group that is written, relative to its tensor, or a gradient's network."""
    found = {}
    for group, reference in theirs.items():
        values = ours.get(group, {})
        if values is None:
            continue
        if rung == "log":
            reference = {name: value for name, value in reference.items() if name in values}
        found[group] = errors(values, reference, together=rung == "gradient")
    return found


def wrong_in(rung: str, ours: Figures, theirs: Figures) -> list[str]:
    """The groups whose figures are not the same within the rung's tolerance."""
    compared = compare(rung, ours, theirs).items()
    return [group for group, values in compared if not all(value <= TOLERANCES[rung] for value in values.values())]
