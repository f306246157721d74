"""The rungs: each one checks one aspect of a pair and returns how far apart the twins are.

A rung takes a `Scene` (both twins at the same weights, a batch, the same noise) and returns errors by name. Nothing in
this file depends on an algorithm: the names that both twins share, and a short adapter (`pair.py`), provide the facts.
"""

import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice, product
from types import ModuleType
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import torch

from parity_tests.engine.interpreter import interpreted
from parity_tests.errors import error, errors
from parity_tests.ladder.draws import DRAWN_UPDATES, faults, reuses_key, shares_a_key
from parity_tests.ladder.online import explored as jax_explored
from parity_tests.ladder.online import gone_online, online, to_jax_draws, torch_explored
from parity_tests.ladder.scene import Scene, Statics
from parity_tests.ladder.starting import start
from parity_tests.ladder.stretching import FAR
from parity_tests.pair import Pair
from shared.errors import InputError
from shared.frameworks import jax_side
from shared.frameworks.exchange import Named, named, parameters, part_names, to_jax, to_torch, torch_part
from shared.runs.task import Preparation

Errors = dict[str, float]

TRAJECTORY_UPDATES = 50


def compare_states(state: Any, trainer: Any) -> Errors:
    """The errors of every part of the JAX state against the PyTorch twin's part of the same name."""
    parts = {name: errors(named(getattr(state, name)), torch_part(trainer, name)) for name in part_names(state)}
    return {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}


def weights(scene: Scene) -> Errors:
    """From PyTorch to flax and back, for every part, including Adam's moments."""
    state = scene.state()
    back = scene.pair.torch.create_trainer(scene.config, *scene.sizes)
    to_torch(state, back)
    returned = {f"back: {name}": error for name, error in compare_states(state, back).items()}
    return compare_states(state, scene.trainer) | returned


def forward(scene: Scene) -> Errors:
    """Every network's output, and in double precision also with outputs far beyond all bounds."""
    if torch.get_default_dtype() != torch.float64:
        return _forward(scene)
    far = {f"at the bounds: {name}": error for name, error in _forward(scene.stretched(FAR)).items()}
    return _forward(scene) | far


def _forward(scene: Scene) -> Errors:
    indices, _ = next(scene.draws())
    with torch.no_grad():
        reference = scene.pair.outputs(scene.trainer, scene.torch_batch(indices))
    ours = scene.run(scene.pair.outputs, scene.state(), scene.jax_batch(indices))
    return errors(ours, reference)


def inputs(scene: Scene) -> tuple[dict[str, Any], dict[str, Any]]:
    """The inputs of losses, by name, for the JAX twin and for the PyTorch twin."""
    indices, noise = next(scene.draws())
    extra = scene.pair.extra_inputs(np.random.default_rng(0), len(indices))
    reference = given_of(scene.pair, scene.torch_batch(indices), noise)
    reference |= {name: torch.as_tensor(value, dtype=torch.get_default_dtype()) for name, value in extra.items()}
    ours = given_of(scene.pair, scene.jax_batch(indices), scene.jax_noise(noise))
    return ours | {name: jnp.asarray(value, dtype=float) for name, value in extra.items()}, reference


def given_of(pair: Pair, batch: Any, noise: Any) -> dict[str, Any]:
    """Batch and noise by name, and the columns of the batch that losses take as arguments."""
    asked, given = {name for loss in pair.losses.values() for name in loss.inputs}, pair.given(batch, noise)
    return given | {name: getattr(given["batch"], name) for name in sorted(asked & set(batch._fields))}


def _differentiated(state: Any, parts: Sequence[str]) -> Any:
    """The first argument of a JAX loss: one part, or a tuple of several."""
    return getattr(state, parts[0]) if len(parts) == 1 else tuple(getattr(state, part) for part in parts)


@cache
def value_and_gradient(state: Any, loss: str) -> Callable:
    """One of the JAX twin's losses with its second output and its gradient, as a function of state and inputs."""
    return jax.value_and_grad(getattr(state, loss), argnums=1, has_aux=True)


def loss_of(state: Any, loss: str, parts: Sequence[str]) -> tuple[Callable, Any, Any]:
    """A loss with its gradient, the state, and the parts that it is differentiated by."""
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
    leaves = [leaf for part in parts.values() for leaf in part.values()]
    # Zeros for a part that the loss leaves out under these settings, as in JAX
    gradients = iter(torch.autograd.grad(value, leaves, materialize_grads=True))
    return {part: {key: next(gradients).numpy() for key in parts[part]} for part in parts}


def gradient(scene: Scene) -> Errors:
    """Every parameter's gradient, relative to the largest entry of its network's gradient."""
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
    """The errors of state and metrics, over enough updates to include every kind of step."""
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
    """Parameters, targets and moments after one step from a warm state, for three steps in different phases.

    If a twin changes something at the switch to the environment, its state after that is compared too.
    """
    return _one_update(scene)[0] | gone_online(scene)


def log(scene: Scene) -> Errors:
    """Every metric that a run logs, over the same steps."""
    return _one_update(scene)[1]


def trajectory(scene: Scene) -> Errors:
    """The whole state after 50 steps, which each twin makes on its own."""
    state = scene.state()
    for step, (indices, noise) in enumerate(islice(scene.draws(), TRAJECTORY_UPDATES), start=scene.updates + 1):
        state, _ = scene.update(state, step, indices, scene.jax_noise(noise))
        scene.trainer.update(scene.torch_batch(indices), noise)
    return compare_states(state, scene.trainer)


# Two consecutive intervals: the number of earlier updates, and the interval's length. Start and length of the first fit
# no period. The second begins with the first update of a period.
INTERVALS = ((1, 11), (12, 4))


def shipped_path(scene: Scene) -> Errors:
    """Compares the loop that `train` runs with single updates."""
    (first, length), (second, rest) = INTERVALS
    found, state = interval(scene, scene.state(), first, length)
    statics = [scene.pair.interval_statics(scene.config, start, length) for start in (first, second)]
    # A second interval adds something only if an update depends on its number, and XLA takes long to compile it.
    if scene.engine is interpreted and statics[0] != statics[1]:
        later, _ = interval(scene, state, second, rest)
        found |= {f"second interval: {name}": error for name, error in later.items()}
    return found | (online(scene) if scene.pair.explores else {}) | scene.pair.shipped(scene)


def interval(scene: Scene, state: Any, start: int, num_updates: int) -> tuple[Errors, Any]:
    """The errors after an interval, and its state."""
    # The scene's engine computes what `train` runs; single updates are always computed operation by operation.
    key, singly = jax.random.key(1), replace(scene, engine=interpreted)
    expected, singles = state, []
    for step in range(start + 1, start + num_updates + 1):
        statics = scene.pair.draw_statics(scene.config, step)
        indices, noise = scene.jax_draw(key, step - 1, statics)
        expected, metrics = singly.update(expected, step, indices, noise)
        singles.append(metrics)
    statics = scene.pair.interval_statics(scene.config, start, num_updates)
    statics |= {"num_updates": num_updates}
    # A compiled interval donates its state's memory.
    given = jax.tree.map(jnp.copy, state)
    after, history = scene.run(scene.jax_twin.train_interval, given, key, scene.jax_dataset, start, **statics)
    found = errors(jax_side.mean_metrics(history), jax_side.mean_metrics(singles))
    for name in part_names(after):
        parts = errors(named(getattr(after, name)), named(getattr(expected, name)))
        found |= {f"{name}.{leaf}": value for leaf, value in parts.items()}
    return found, expected


def draws(scene: Scene) -> Errors:
    """Updates' indices and noise: the PyTorch twin's kinds, shapes and distributions, and never the same twice."""
    first, *_ = scene.pair.draw_inputs(scene.dataset, scene.sizes[1])
    rows = len(first) if isinstance(first, tuple) else first
    chosen = rows + scene.pair.further_rows - scene.pair.unchosen_rows(scene.config)
    found = _draws(scene, chosen, _offline(scene)) | _other_draws(scene) | _drawn_once(scene)
    if scene.pair.further_rows:
        drawn = [scene.jax_draw(jax.random.key(2), step, {})[0] for step in range(DRAWN_UPDATES)]
        # The ends in between: the dataset's last row and the first one after it
        found["ends within"] = float(not {rows - 1, rows} <= set(np.ravel(drawn).tolist()))
    if scene.pair.two_buffers:
        mixed = _draws(scene, rows + SEEN, lambda config, step: {"online_size": SEEN})
        found |= {f"online {name}": value for name, value in mixed.items()}
        steps = range(DRAWN_UPDATES)
        drawn = [scene.jax_draw(jax.random.key(2), step, {"online_size": SEEN})[0] for step in steps]
        reference, _ = next(scene.draws(lambda config, step: {"online_size": SEEN}))
        # The buffer from which each row of a batch comes
        found["online places"] = float(not np.array_equal(np.asarray(drawn[0]) < rows, reference.numpy() < rows))
        # The ends in between: the last row of one buffer and the first one of the other
        found["online ends"] = float(not {rows - 1, rows} <= set(np.ravel(drawn).tolist()))
    return found | (_explorations(scene) if scene.pair.explores else {})


# The number of rows of experience, if it has its own buffer
SEEN = 50


def _offline(scene: Scene) -> Statics:
    """The arguments of draws from the dataset alone, as in the first updates of a variant."""

    def statics(config: Any, step: int) -> dict[str, Any]:
        given = scene.pair.draw_statics(config, step)
        return {name: value for name, value in given.items() if name != "online_size"}

    return statics


def _draws(scene: Scene, num_rows: int, statics_of: Statics) -> Errors:
    """The faults in the draws of updates on this many rows."""
    steps = range(scene.updates + 1, scene.updates + 1 + DRAWN_UPDATES)
    inputs = scene.pair.draw_inputs(scene.dataset, scene.sizes[1])

    def drawn(key: Any, step: Any, hp: Any, *inputs: Any, **statics: Any) -> tuple[Any, Any]:
        indices, noise = scene.jax_twin.draw_noise(key, step, hp, *inputs, **statics)
        # An update draws the rest from a key in its noise.
        return indices, scene.pair.drawn_inside(scene.jax_twin, noise, hp)

    def draw(seed: int, step: int) -> tuple[Any, Any]:
        statics = statics_of(scene.config, step)
        return scene.drawing(drawn, *inputs, **statics)(jax.random.key(seed), step - 1)

    ours, reference = [draw(2, step) for step in steps], list(islice(scene.draws(statics_of), DRAWN_UPDATES))
    found: Errors = {}
    for what, figures in faults([*ours, draw(2, steps[0]), draw(3, steps[0])], reference, num_rows).items():
        found |= {f"{what} {name}": float(np.abs(value).max()) for name, value in figures.items()}
    # Both twins must leave out the same draws.
    given = [[[value is None for value in noise] for _, noise in drawn] for drawn in (ours, reference)]
    found["noise that is None"] = float(given[0] != given[1])
    first = statics_of(scene.config, steps[0])
    once = partial(drawn, jax.random.key(2), steps[0] - 1, scene.hp, *inputs, **first)
    found["keys used twice"] = float(reuses_key(once))
    if scene.pair.explores:
        # The step in the environment with the same number as the update
        explore = partial(scene.jax_twin.draw_exploration, jax.random.key(2), steps[0] - 1, scene.hp, scene.sizes[1])
        found["exploration draws from a key of the update"] = float(shares_a_key(once, explore))
    return found


# So many steps that a bound moved by a twentieth shows up in as many draws as there are updates
WIDE = 512
# A step with finite actions draws only a few numbers, which may repeat; this many steps together do not repeat.
TOGETHER = 32


def _other_draws(scene: Scene) -> Errors:
    """Draws for steps in the environment: PyTorch's distributions, regardless of which steps are drawn together."""
    found: Errors = {}
    finite = scene.dataset.actions.ndim == 1
    width, together = (scene.sizes[1], TOGETHER) if finite else (WIDE, 1)

    def apart(columns: Any) -> list[tuple[None, Any]]:
        """Splits columns (n, ...) of steps into rows, of several steps each if one step has too few numbers."""
        parts = [np.asarray(column).reshape(-1, *(together,) * finite, *np.shape(column)[1:]) for column in columns]
        return [(None, type(columns)(*row)) for row in zip(*parts, strict=True)]

    for name in scene.pair.other_draws:
        draw = getattr(scene.jax_twin, name)

        def columns_of(seed: int, first: int, steps: int, draw: Callable = draw) -> Any:
            return draw(jax.random.key(seed), first, steps, width)

        def drawn(seed: int, first: int, rows: int, columns_of: Callable = columns_of) -> list[tuple[None, Any]]:
            return apart(columns_of(seed, first * together, rows * together))

        reference = apart(getattr(scene.pair.torch, name)(DRAWN_UPDATES * together, width))
        ours = drawn(2, 0, DRAWN_UPDATES)
        for what, figures in faults([*ours, *drawn(2, 0, 1), *drawn(3, 0, 1)], reference, 0).items():
            found |= {f"{name} {what} {fault}": float(np.abs(value).max()) for fault, value in figures.items()}
        alone = drawn(2, DRAWN_UPDATES // 2, 1)[0][1]
        same = all(map(np.array_equal, alone, ours[DRAWN_UPDATES // 2][1]))
        found[f"{name} of one step and of many"] = float(not same)
        found[f"{name} uses a key twice"] = float(reuses_key(partial(columns_of, 2, 0, 1)))
    return found


# Rows of a dataset for draws that are made once
ROWS = 20


def _drawn_once(scene: Scene) -> Errors:
    """Draws made once for a dataset before the first update: PyTorch's distributions, and different for another key."""
    found: Errors = {}
    for name, further in scene.pair.drawn_once.items():
        ours, theirs = (getattr(twin, name) for twin in (scene.jax_twin, scene.pair.torch))
        keys = [*range(DRAWN_UPDATES), 0, DRAWN_UPDATES]
        told = ROWS, *further
        drawn = [(None, ours(jax.random.key(seed), scene.hp, *told)) for seed in keys]
        reference = [(None, theirs(scene.config, *told)) for _ in range(DRAWN_UPDATES)]
        for what, figures in faults(drawn, reference, 0).items():
            found |= {f"{name} {what} {fault}": float(np.abs(value).max()) for fault, value in figures.items()}
    return found


def _explorations(scene: Scene) -> Errors:
    """Draws of single steps in the environment: PyTorch's distributions, and no number that an update draws too."""

    def drawn(seed: int, step: int) -> tuple[None, Any]:
        return None, jax_explored(scene, jax.random.key(seed), step, WIDE)

    reference = [(None, torch_explored(scene, WIDE)) for _ in range(DRAWN_UPDATES)]
    ours = [drawn(2, step) for step in range(DRAWN_UPDATES)]
    found: Errors = {}
    for what, figures in faults([*ours, drawn(2, 0), drawn(3, 0)], reference, 0).items():
        found |= {f"exploration {what} {fault}": float(np.abs(value).max()) for fault, value in figures.items()}
    first = partial(scene.jax_twin.draw_exploration, jax.random.key(2), 0, scene.hp, WIDE)
    found["exploration uses a key twice"] = float(reuses_key(first))
    return found


def act(scene: Scene) -> Errors:
    """The actions of the evaluated policy and of the exploring one; also a policy's value, or a model's predictions."""
    indices, _ = next(scene.draws())
    given, ours = scene.torch_batch(indices), scene.jax_batch(indices)
    noise = {"noise": _acting_noise(scene, len(indices))}
    noise |= scene.pair.explored(np.random.default_rng(0), len(indices), scene.sizes[1])
    if hasattr(scene.config, "expl_noise"):
        noise["expl_noise"] = np.asarray(scene.config.expl_noise)
    predicted = scene.run(scene.pair.predicted, scene.state(), ours)
    found = errors(predicted, scene.pair.predicted(scene.trainer, given))
    if sampling := getattr(scene.jax_twin, "draw_acting_noise", None):
        found["noise"] = error(sampling(np.random.default_rng(0), scene.hp, scene.sizes[1]), noise["noise"][0])
    for way in ("act",) if scene.pair.explores else ("act", "explore", "value"):
        theirs = getattr(scene.trainer, way, None)
        if inspect.ismethod(theirs):  # a network may have such a name, too
            policy = getattr(scene.jax_twin, way)
            of, *names = inspect.signature(policy).parameters
            reference = theirs(*(_given(name, given, noise) for name in names))
            inputs = [jnp.asarray(_given(name, ours, noise)) for name in names]
            found[way] = error(scene.run(policy, getattr(scene.state(), of), *inputs), reference)
    if scene.pair.explores:
        draws = torch_explored(scene, scene.sizes[1], rows=len(indices))
        reference, state = scene.trainer.explore(given.observations, draws), scene.state()
        explored = scene.run(type(state).explore, state, ours.observations, to_jax_draws(scene, draws))
        found["explore"] = error(explored, reference)
    return found


def _acting_noise(scene: Scene, rows: int) -> np.ndarray:
    """The noise of policies that sample: drawn by the twin's own function, or else normal with an action's shape."""
    rng, action_dim = np.random.default_rng(0), scene.sizes[1]
    if not hasattr(scene.pair.torch, "draw_acting_noise"):
        return rng.normal(size=(rows, action_dim))
    return np.stack([scene.pair.torch.draw_acting_noise(rng, scene.hp, action_dim) for _ in range(rows)])


def _given(name: str, batch: Any, noise: dict[str, np.ndarray]) -> np.ndarray:
    # Any states can be goals.
    column = "next_observations" if name == "goals" else name
    return noise[name] if name in noise else np.asarray(getattr(batch, column))


# A dataset of each kind for which rewards are modified
KINDS = ("hopper-medium-v2", "antmaze-umaze-v2", "pen-human-v1")
# Non-neutral values for settings that some configs have
RULE = {"reward_scale": 10.0, "reward_bias": -5.0}


def rewards(scene: Scene) -> Errors:
    """Modified rewards, for each kind of dataset; if one twin rejects a kind, so must the other.

    Everything else that twins precompute from a dataset is compared too.
    """
    found = errors(scene.pair.prepared(scene.jax_twin), scene.pair.prepared(scene.pair.torch))
    for kind, asked in product(KINDS, (False, True)):
        ours, theirs = (_changed(twin, scene, kind, asked) for twin in (scene.jax_twin, scene.pair.torch))
        found[f"{kind} {asked}"] = error(ours, theirs)
    return found


class _AskedError(Exception):
    """Ends a run at the point where it would load its task."""


def preparation_of(twin: ModuleType, config: Any) -> Preparation:
    """How a run prepares its dataset, recorded where it would load its task."""
    found: list[Preparation] = []

    def note(config: Any, preparation: Preparation) -> None:
        found.append(preparation)
        raise _AskedError

    with mock.patch.object(twin, "load_task", note), contextlib.suppress(_AskedError):
        twin.train(config)
    return found[0]


def _changed(twin: ModuleType, scene: Scene, kind: str, asked: bool) -> np.ndarray:
    """The rewards that a twin learns from, in a dataset or online.

    The result is a huge number if the twin rejects the rewards, and 0 if it never changes any.
    """
    if not hasattr(scene.config, "normalize_reward"):
        return np.zeros(1)
    rule = {name: value for name, value in RULE.items() if hasattr(scene.config, name)}
    preparation = preparation_of(twin, replace(scene.config, normalize_reward=asked, **rule))
    try:
        return np.asarray(preparation.rewards.change(scene.dataset, kind)(scene.dataset.rewards))
    except InputError:
        return np.full(1, 2.0**62)


@dataclass(frozen=True)
class Rung:
    """One rung: its function, and the errors allowed, relative to a tensor's largest entry.

    Attributes:
        climb: Computes errors by name from a scene.
        float64: The tolerance in double precision.
        float32: The tolerance in single precision; None if the rung is not used there.
        warm: Whether it starts from a warm state.
        one_dataset: Whether one dataset is enough.
    """

    climb: Callable[[Scene], Errors]
    float64: float
    float32: float | None
    warm: bool = True
    one_dataset: bool = False


# Measured on these twins in float64: forward 2e-14, loss 1e-15, gradient 4e-13, update 2e-12, trajectory 6e-13.
RUNGS: Mapping[str, Rung] = {
    "weights": Rung(weights, 0.0, None),
    "forward": Rung(forward, 1e-12, None),
    "loss": Rung(loss, 1e-12, None),
    "gradient": Rung(gradient, 1e-10, None),
    "update": Rung(update, 1e-10, 1e-5),
    "log": Rung(log, 1e-10, None),
    "trajectory": Rung(trajectory, 1e-9, None, warm=False),
    "draws": Rung(draws, 0.0, None, warm=False, one_dataset=True),
    "act": Rung(act, 1e-12, 2e-6),
    "rewards": Rung(rewards, 0.0, None, warm=False, one_dataset=True),
    "start": Rung(start, 0.0, None, warm=False, one_dataset=True),
    "shipped path": Rung(shipped_path, 1e-10, 1e-5),
}
# Expensive rungs, which run with the default settings alone unless all tests run
DEAR = ("trajectory", "start", "shipped path", "draws")


def tolerance(pair: Pair, rung: str, precision: str) -> float:
    """The largest error allowed for a pair's twins at a rung."""
    return pair.tolerances.get(precision, {}).get(rung, getattr(RUNGS[rung], precision))
