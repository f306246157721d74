"""The ladder's checks of twins that continue in the environment: their draws, their replay buffer, and one call."""

import copy
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from parity_tests.engine.interpreter import interpreted
from parity_tests.errors import error, errors
from parity_tests.ladder.scene import Scene
from shared.frameworks import jax_ring, torch_ring
from shared.frameworks.exchange import named, part_names, torch_part

Errors = dict[str, float]

# The room in a ring beyond the dataset's rows, so small that the ring is full after a few calls
ROOM = 3
# Rows in each call, enough to overwrite the ring's first ones
CALLS = (1, 1, 2, 1)
# XLA takes seconds for each kind of call, and a run makes calls with one step.
COMPILED_CALLS = (1, 1)


def torch_explored(scene: Scene, action_dim: int, rows: int = 1) -> Any:
    """The PyTorch twin's draws for this many steps in the environment, stacked along the first axis."""
    draw = scene.pair.torch.draw_exploration
    drawn = [draw(scene.config, action_dim, torch.device("cpu")) for _ in range(rows)]
    return type(drawn[0])(*jax.tree.map(lambda *draws: torch.cat(draws), *map(tuple, drawn)))


def explored(scene: Scene, key: Any, step: int, action_dim: int) -> Any:
    """The JAX twin's draws for the step with this number."""
    return scene.drawing(scene.jax_twin.draw_exploration, action_dim)(key, step)


def to_jax_draws(scene: Scene, draws: Any) -> Any:
    """Converts the PyTorch twin's draws for a step to the JAX twin's."""
    return scene.jax_twin.Exploration(*jax.tree.map(lambda draw: jnp.asarray(draw.numpy()), tuple(draws)))


def online(scene: Scene) -> Errors:
    """Compares a few calls of the program that a run calls for each step in the environment with its parts.

    The ring must contain the same rows on both sides. Stored rows can be drawn at once. The action depends on the
    weights after the update. A program that chooses none leaves the choice to `next_action`.
    """
    given, key, single = scene.state(), jax.random.key(1), replace(scene, engine=interpreted)
    columns, rows, apart = torch_side_columns(scene), len(scene.dataset[0]), scene.pair.two_buffers
    capacity = ROOM if apart else rows + ROOM
    ring = jax_ring.Ring.create(scene.jax_dataset, capacity, keeps_dataset=not apart)
    reference = torch_ring.Ring(columns, capacity, keeps_dataset=not apart)
    rng, start, found = np.random.default_rng(3), scene.config.switch, Errors()
    expected, shared, stored = given, [scene.jax_dataset] if apart else [], 0
    for call, count in enumerate(CALLS if scene.engine is interpreted else COMPILED_CALLS):
        new = type(scene.dataset)(*(rng.normal(size=(count, *column.shape[1:])) for column in scene.dataset))
        packed = np.concatenate([np.reshape(column, (count, -1)) for column in new], axis=1)
        reference.push(new)
        expected = scene.pair.entered(expected, rows + (stored + np.arange(count)) % capacity, rows)
        stored += count
        observation = jnp.asarray(rng.normal(size=(1, scene.sizes[0])), dtype=float)
        held = type(scene.dataset)(*(jnp.asarray(column.numpy()) for column in reference.rows))
        if apart:
            held = type(held)(*map(jnp.concatenate, zip(map(np.asarray, columns), held, strict=True)))
        sizes = (rows, scene.sizes[1], reference.size) if apart else (reference.size, scene.sizes[1])
        statics = scene.pair.call_statics(scene.config, start, count)
        if of_a_call := getattr(scene.jax_twin, "of_a_call", None):
            given_by_run = of_a_call(scene.jax_config, start, count)
            found[f"call {call}: what is known beforehand"] = float(given_by_run != tuple(statics.values()))
        # Warm-up steps count, but nothing is learned in them.
        if (idle := statics.get("idle", 0)) and hasattr(expected, "total_it"):
            expected = expected.replace(total_it=expected.total_it + idle)
        for step in range(start + idle + 1, start + count + 1):
            of_draw = scene.pair.draw_statics(scene.config, step)
            # The ring's current size is among the sizes.
            of_draw.pop("online_size", None)
            indices, noise = scene.drawing(scene.jax_twin.draw_noise, *sizes, **of_draw)(key, step - 1)
            batch = scene.pair.drawn_batch(expected, scene.jax_twin, held, indices, noise, reference)
            update = scene.pair.update_statics(scene.config, step)
            expected, _ = single.run(type(expected).update, expected, batch, noise, *scene.pair.number(step), **update)
        # A compiled call donates the memory of its state and its ring.
        copies = jax.tree.map(jnp.copy, (given, ring))
        given, ring, action, _ = scene.run(
            scene.jax_twin.train_online, copies[0], key, copies[1], start, jnp.asarray(packed, dtype=float),
            observation, *shared, **statics,
        )  # fmt: skip
        start += count
        found |= {f"call {call}: {name}": value for name, value in _states(given, expected).items()}
        whole = np.concatenate([np.reshape(column, (capacity, -1)) for column in reference.rows], axis=1)
        found[f"call {call}: ring"] = error(np.asarray(ring.rows), whole)
        found[f"call {call}: size"] = float(int(ring.size) != reference.size)
        draws = explored(scene, key, start, scene.sizes[1])
        if action is None:
            action = scene.run(scene.jax_twin.next_action, given, key, start, observation)
        acted = single.run(type(expected).explore, expected, observation, draws)
        found[f"call {call}: action"] = error(action, np.asarray(acted))
    return found


def gone_online(scene: Scene) -> Errors:
    """The errors of the states right after the switch to the environment, if anything changes there."""
    state, trainer = scene.state(), copy.deepcopy(scene.trainer)
    if not hasattr(trainer, "go_online"):
        return {}
    trainer.go_online()
    after = scene.run(type(state).go_online, state)
    pairs = {part: errors(named(getattr(after, part)), torch_part(trainer, part)) for part in part_names(after)}
    return {f"switch: {part}.{leaf}": value for part, values in pairs.items() for leaf, value in values.items()}


def torch_side_columns(scene: Scene) -> Any:
    """The dataset as stored by the PyTorch twin."""
    return type(scene.dataset)(
        *(torch.as_tensor(np.asarray(c), dtype=torch.get_default_dtype()) for c in scene.dataset)
    )


def _states(ours: Any, theirs: Any) -> Errors:
    pairs = {name: errors(named(getattr(ours, name)), named(getattr(theirs, name))) for name in part_names(ours)}
    return {f"{part}.{leaf}": value for part, values in pairs.items() for leaf, value in values.items()}
