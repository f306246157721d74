"""The ladder's batches reach both sides of every decision in a twin, because a side that is never taken is untested."""

from collections.abc import Callable, Iterator
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from parity_tests.engine.interpreter import interpreted
from parity_tests.engine.precision import both_in
from parity_tests.ladder.rungs import forward, inputs
from parity_tests.ladder.scene import DATASETS, Scene
from parity_tests.ladder.sides import Sides, TorchSides, jax_sides, missing
from parity_tests.pair import Pair
from parity_tests.pairs import PAIRS

# Sides that no batch can reach, by a piece of the line and the operation, with the reason
UNREACHABLE = {
    ("logsumexp(", "abs"): "JAX's function asks for the sign of a sum of exponentials, which are positive",
    ("logsumexp(", "sign"): "likewise",
    ("- logsumexp(", "select_n"): "JAX's function asks whether the largest summand is finite, and these are"
    " logarithms of densities",
    ("take_along_axis(", "select_n"): "JAX counts an index below 0 from the end, and a place of a maximum is none",
    ("= pick(", "select_n"): "likewise",
    ("search.nearest(keys)", "select_n"): "likewise, and nor is the number of a row that was found",
    ("earned[batch.indices]", "select_n"): "likewise, and nor is the number of a row that was drawn",
    ("take(batch.rows, columns)", "select_n"): "likewise",
    ("weight[members]", "select_n"): "likewise, and nor is the number of a critic",
    ("noise.crops", "select_n"): "likewise, and rows and columns of pixels are clipped to the image first",
    ("updates // hp.num_updates_on_epoch", "select_n"): "a number of updates is not below 0",
    ("updates // hp.num_updates_on_epoch", "sign"): "likewise",
    ("updates // hp.eval_freq", "select_n"): "likewise",
    ("updates // hp.eval_freq", "sign"): "likewise",
    ("updates % hp.ema_period", "select_n"): "likewise",
    ("[noise.number]", "select_n"): "likewise, and nor is a step's number",
    ("search.nearest(keys)", "argmin: never several places"): "the ladder's rows are one block of the search; its own"
    " tests have several",
    ("timestep_emb(", "select_n"): "likewise, and steps are counted from 0",
    ("std(", "select_n"): "JAX asks whether there are more numbers than `ddof`",
    ("q.var(", "select_n"): "likewise",
    ("minimum(updates, hp.max_timesteps)", "min"): "these batches end before XQL's schedule does;"
    " the trajectory passes its end",
    ("optax.adam", "select_n"): "optax's count of steps stops at the largest integer",
    ("adam.update(", "select_n"): "likewise",
    ("ADAM.update(", "select_n"): "likewise",
    ("adam(part, state.hp).update(", "select_n"): "likewise",
    ("adam(state.hp).update(", "select_n"): "likewise",
    ("adamw(hp).update(", "select_n"): "likewise",
    ("clamp(exp(", "clamp: never below"): "an exponential is never below 0",
    ("softplus(log_w[:offline])", "select_n"): "a softplus is a straight line above 20, and a ratio is not e^20",
    ("= logsumexp(offline_log_w", "select_n"): "JAX's function asks whether the largest summand is finite, and"
    " these are logarithms of positive ratios",
    ("write(state.priorities,", "select_n"): "JAX counts an index below 0 from the end, and a place in a tree is none",
}


def scenes(pair: Pair) -> Iterator[Scene]:
    """Every variant on every dataset, computed by programs that have not been traced before."""

    def engine(function: Callable) -> Callable:
        return interpreted(function)

    for dataset in DATASETS:
        for variant in pair.variants:
            yield Scene.create(pair, pair.jax, variant, dataset, engine=engine)


def decide(scene: Scene) -> None:
    """Runs everything that decides: outputs, losses without their gradients, and updates."""
    forward(scene)
    state = scene.state()
    ours, given = inputs(scene)
    for name, loss in scene.losses().items():
        getattr(scene.trainer, name)(*(given[x] for x in loss.inputs))
        parts = [getattr(state, part) for part in loss.of]
        by = parts[0] if len(parts) == 1 else tuple(parts)
        scene.run(getattr(type(state), name), state, by, *(ours[x] for x in loss.inputs))
    draws = scene.draws()
    for step in range(scene.updates + 1, scene.updates + 4):
        indices, noise = next(draws)
        state, _ = scene.update(state, step, indices, scene.jax_noise(noise))
        scene.trainer.update(scene.torch_batch(indices), noise)


def unexcused(found: Sides, file: str) -> list[str]:
    """The sides that no batch took although it could, with the text of the line."""
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    texts = [(what, lines[int(what.split()[1].rstrip(":")) - 1].strip()) for what in missing(found)]
    return [
        f"{what} | {text}"
        for what, text in texts
        if not any(place in text and f" {operation}" in what for place, operation in UNREACHABLE)
    ]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "td3_bc" else pytest.mark.thorough) for name in PAIRS]
)
def test_both_sides_are_taken(name: str) -> None:
    """Every absolute value, clamp, maximum, minimum, choice and rectifier takes both sides in some batch."""
    pair = PAIRS[name]
    jax_file, torch_file = str(pair.jax.__file__), str(pair.torch.__file__)
    with both_in("float64"):
        staged = list(scenes(pair))
    with both_in("float64"), jax_sides(jax_file) as ours, TorchSides(torch_file) as theirs:
        for scene in staged:
            decide(scene)
    assert ours
    assert theirs.found
    assert not unexcused(ours, jax_file)
    assert not unexcused(theirs.found, torch_file)


def test_a_side_that_is_never_taken_is_told() -> None:
    """It is reported for both frameworks, with the line that decides."""
    here, x = __file__, np.array([1.0, 2.0])
    with jax_sides(here) as ours, TorchSides(here) as theirs:
        interpreted(lambda x: jnp.abs(x) + jnp.maximum(x, 1.5))(x)
        torch.clamp(torch.tensor(x), -1.0, 1.5)
    assert [what.partition(": ")[2] for what in missing(ours)] == ["abs: never negative"]
    assert [what.partition(": ")[2] for what in missing(theirs.found)] == ["clamp: never below"]
