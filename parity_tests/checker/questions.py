"""What the checker asks a port at each rung, and what PyTorch answers.

A question holds everything that is needed to answer it: weights and moments to start from, inputs, and the reference's
numbers. It is put to the file that is checked and, where that fails, to our own twin with one mistake after another.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import torch

from parity_tests import ladder
from parity_tests.checker.port import NotWrittenError, Parts, Port, reference_parts
from parity_tests.ladder import TRAJECTORY_UPDATES, Scene, reference_gradients
from parity_tests.pair import Pair
from parity_tests.pairs import PAIRS
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
# The corners are for what single numbers show; a step from there is no further test.
DATASETS = {rung: ("bundled", "cornered") if rung in ("forward", "loss", "gradient") else ("bundled",) for rung in TOLERANCES}
UPDATES = 3


@dataclass(frozen=True, eq=False)
class Question:
    """One rung under one variant's settings on one dataset.

    Attributes:
        rung: The rung's name.
        where: The variant and the dataset, for messages.
        config: Settings.
        sizes: S and A.
        starts: Weights and moments to start from: one set, or one for each update.
        inputs: What the file's functions are given by name, for each update.
        expected: PyTorch's figures.
    """

    rung: str
    where: str
    config: Any
    sizes: tuple[int, int]
    starts: list[Parts]
    inputs: list[Inputs]
    expected: Figures


@cache
def questions(name: str, rung: str, variants: tuple[str, ...]) -> tuple[Question, ...]:
    """All questions of a rung."""
    return tuple(_questions(PAIRS[name], rung, variants))


def _questions(pair: Pair, rung: str, variants: tuple[str, ...]) -> Iterator[Question]:
    for variant in variants:
        for dataset in DATASETS[rung]:
            where = f"settings {variant!r}, {dataset} data"
            yield ASKED[rung](Scene.create(pair, pair.jax, variant, dataset, rung != "trajectory"), where)
        if rung == "forward":
            scene = Scene.create(pair, pair.jax, variant, "bundled")
            if _stretch_deviations(scene.trainer):
                yield _forward(scene, f"settings {variant!r}, deviations at their bounds")


def _stretch_deviations(trainer: Any) -> bool:
    """Brings log-deviations that are parameters below, between and above their bounds; False if there are none."""
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


def _weights(scene: Scene, where: str) -> Question:
    parts = _parts(scene)
    return Question("weights", where, scene.jax_config, scene.sizes, [parts], [], parts)


def _forward(scene: Scene, where: str) -> Question:
    indices, _ = next(scene.draws())
    with torch.no_grad():
        outputs = scene.pair.outputs(scene.trainer, scene.torch_batch(indices))
    expected = {name: {"": value.numpy()} for name, value in outputs.items() if name not in scene.pair.corners}
    inputs = [{"batch": scene.jax_batch(indices)}]
    return Question("forward", where, scene.jax_config, scene.sizes, [_parts(scene)], inputs, expected)


def _loss(scene: Scene, where: str) -> Question:
    ours, given = ladder.inputs(scene)
    expected = {}
    for name, loss in scene.losses().items():
        value, _ = getattr(scene.trainer, name)(*(given[x] for x in loss.inputs))
        expected[name] = {"": value.detach().numpy()}
    inputs = [{"config": scene.jax_config, **ours}]
    return Question("loss", where, scene.jax_config, scene.sizes, [_parts(scene)], inputs, expected)


def _gradient(scene: Scene, where: str) -> Question:
    ours, given = ladder.inputs(scene)
    expected = {}
    for name, loss in scene.losses().items():
        parts = reference_gradients(scene.trainer, name, loss.of, [given[x] for x in loss.inputs])
        expected |= {f"{name} by {part}": gradient for part, gradient in parts.items()}
    inputs = [{"config": scene.jax_config, **ours}]
    return Question("gradient", where, scene.jax_config, scene.sizes, [_parts(scene)], inputs, expected)


def _updates(scene: Scene, where: str, rung: str) -> Question:
    """Each update from PyTorch's own state: this is no trajectory."""
    draws, starts, inputs, expected = scene.draws(), [], [], {}
    for step in range(scene.updates + 1, scene.updates + 1 + UPDATES):
        indices, noise = next(draws)
        starts.append(_parts(scene))
        inputs.append(_given(scene, indices, noise, step))
        metrics = scene.trainer.update(scene.torch_batch(indices), noise)
        if rung == "update":
            expected |= {f"{name} after update {step}": part for name, part in _parts(scene).items()}
        else:
            expected[f"update {step}"] = {name: np.asarray(value) for name, value in metrics.items()}
    return Question(rung, where, scene.jax_config, scene.sizes, starts, inputs, expected)


def _trajectory(scene: Scene, where: str) -> Question:
    start, inputs = _parts(scene), []
    for step, (indices, noise) in enumerate(islice(scene.draws(), TRAJECTORY_UPDATES), start=scene.updates + 1):
        inputs.append(_given(scene, indices, noise, step))
        scene.trainer.update(scene.torch_batch(indices), noise)
    return Question("trajectory", where, scene.jax_config, scene.sizes, [start], inputs, _parts(scene))


ASKED: Mapping[str, Callable[[Scene, str], Question]] = {
    "weights": _weights,
    "forward": _forward,
    "loss": _loss,
    "gradient": _gradient,
    "update": lambda scene, where: _updates(scene, where, "update"),
    "log": lambda scene, where: _updates(scene, where, "log"),
    "trajectory": _trajectory,
}


# ---- answers -------------------------------------------------------------------------------------------------------


def answer(port: Port, question: Question) -> Figures:
    """The port's figures; a group is None where its function is not written yet.

    Raises:
        InputError: The file does not do what its contract says.
        NotWrittenError: Without the missing function there is nothing to tell.
    """
    return ANSWERS[question.rung](port, question)


def _started(port: Port, question: Question, number: int = 0) -> Any:
    return port.state(question.config, question.sizes, question.starts[number])


def _read(port: Port, question: Question, state: Any) -> Parts:
    return port.read(state, question.config, question.sizes, question.starts[0])


def _answer_weights(port: Port, question: Question) -> Figures:
    return _read(port, question, _started(port, question))


def _answer_forward(port: Port, question: Question) -> Figures:
    found = port.outputs(_started(port, question), question.inputs[0]["batch"])
    shapes = {name: np.shape(value[""]) for name, value in question.expected.items()}
    wrong = [f"{name!r} {np.shape(value)}" for name, value in found.items() if shapes.get(name) != np.shape(value)]
    if wrong:
        expected = ", ".join(f"{name!r} {shape}" for name, shape in shapes.items())
        raise InputError(f"outputs gives {', '.join(wrong)}: expected {expected}")
    return {name: {"": found[name]} if name in found else None for name in shapes}


def _answer_loss(port: Port, question: Question) -> Figures:
    state, found = _started(port, question), {}
    for name in question.expected:
        try:
            value = port.loss(name, state, question.inputs[0], port.differentiated(name, state))
            found[name] = {"": np.asarray(value)}
        except NotWrittenError:
            found[name] = None
    return found


def _answer_gradient(port: Port, question: Question) -> Figures:
    state, found = _started(port, question), {}
    layouts = port.layouts(question.config, question.sizes, question.starts[0])
    for name in {group.split(" by ")[0]: None for group in question.expected}:
        parts = port.pair.losses[name].of
        try:
            trees = port.gradient(name, state, question.inputs[0])
        except NotWrittenError:
            found |= dict.fromkeys((f"{name} by {part}" for part in parts), None)
            continue
        for part, tree in zip(parts, trees, strict=True):
            found[f"{name} by {part}"] = layouts[part].to_torch(tree, f"the gradient by {part}")
    return found


def _answer_update(port: Port, question: Question) -> Figures:
    found = {}
    for number, given in enumerate(question.inputs):
        state, _ = port.update(_started(port, question, number), given)
        parts = _read(port, question, state)
        found |= {f"{name} after update {int(given['step'])}": part for name, part in parts.items()}
    return found


def _answer_log(port: Port, question: Question) -> Figures:
    """Metrics under the reference's names; a file may log others, or none."""
    found = {}
    for number, given in enumerate(question.inputs):
        group = f"update {int(given['step'])}"
        _, metrics = port.update(_started(port, question, number), given)
        found[group] = {name: np.asarray(metrics[name]) for name in question.expected[group] if name in metrics}
    return found


def _answer_trajectory(port: Port, question: Question) -> Figures:
    return _read(port, question, port.trajectory(_started(port, question), question.inputs))


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


def agrees(rung: str, ours: Figures, theirs: Figures) -> bool:
    """Whether they are the same figures within the rung's tolerance."""
    compared = compare(rung, ours, theirs)
    return all(value <= TOLERANCES[rung] for group in compared.values() for value in group.values())
