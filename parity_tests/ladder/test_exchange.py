"""A checkpoint of either twin can be resumed in the other: one more update has the same result in both.

One pair of each family is enough here, because the rung `weights` converts every part of every pair.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parity_tests.engine.precision import both_in
from parity_tests.ladder.rungs import RUNGS, Errors, compare_states
from parity_tests.ladder.scene import Scene
from parity_tests.pairs import ONE_OF_EACH, PAIRS
from shared.commands import convert
from shared.frameworks import jax_checkpoints
from shared.frameworks.exchange import blank_state, to_torch
from shared.runs.configs import dump

# IQL's learning rate follows a schedule, which has its own counter in PyTorch.
CASES = [(name, "default") for name in ONE_OF_EACH] + [("iql", "other")]
UPDATES = 3
SIZES = {"id": "d4rl/hopper-v2", "state_dim": 11, "action_dim": 3, "max_action": 1.0}
FACTS = {"environment": SIZES, "state_mean": np.zeros(11, np.float32), "state_std": np.ones(11, np.float32)}


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    """After so few updates Adam magnifies rounding errors, which are too large in single precision."""
    with both_in("float64"):
        yield


def scene_of(name: str, variant: str, folder: Path) -> Scene:
    """Creates twins after a few updates of the PyTorch twin, and writes the settings to the folder."""
    scene = Scene.create(PAIRS[name], PAIRS[name].jax, variant, "bundled", warm=False).advanced(UPDATES)
    (folder / "config.yaml").write_text(dump(scene.config))
    return scene


def update(scene: Scene, state: Any, step: int, draw: Any) -> Any:
    """The JAX twin's state after one more update."""
    indices, noise = draw
    return scene.update(state, step, indices, scene.jax_noise(noise))[0]


def too_far(found: Errors) -> Errors:
    """The errors beyond the ladder's tolerance for an update."""
    return {name: error for name, error in found.items() if not error <= RUNGS["update"].float64}


def fresh_trainer(scene: Scene) -> Any:
    """The PyTorch twin with other weights."""
    return scene.pair.torch.create_trainer(scene.config, *scene.sizes)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "variant"), CASES)
def test_a_torch_checkpoint_goes_on_in_jax(name: str, variant: str, tmp_path: Path) -> None:
    """The conversion is exact; then each twin makes the same update."""
    scene = scene_of(name, variant, tmp_path)
    scene.pair.torch.save(scene.trainer, tmp_path / "checkpoint.pt", **FACTS)
    convert.main([str(tmp_path / "checkpoint"), "--to", "jax"])
    fresh = blank_state(scene.pair.jax, scene.jax_config, *scene.sizes)
    content = jax_checkpoints.load_checkpoint(str(tmp_path / "checkpoint.msgpack"), name, fresh)
    state = content["state"]
    assert content["total_it"] == scene.trainer.total_it
    assert not any(compare_states(state, scene.trainer).values())
    draw = next(scene.draws())
    state = update(scene, state, scene.updates + 1, draw)
    scene.trainer.update(scene.torch_batch(draw[0]), draw[1])
    assert not too_far(compare_states(state, scene.trainer))


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_a_jax_checkpoint_goes_on_in_torch(name: str, variant: str, tmp_path: Path) -> None:
    """The conversion is exact for a state on which JAX has made updates, and the next update is the same."""
    scene = scene_of(name, variant, tmp_path)
    state, first = scene.state(), scene.updates + 1
    *draws, last = islice(scene.draws(), UPDATES + 1)
    for step, draw in enumerate(draws, start=first):
        state = update(scene, state, step, draw)
    total_it = scene.updates + UPDATES
    jax_checkpoints.save_checkpoint(tmp_path / "checkpoint.msgpack", name, state, total_it, **FACTS)
    convert.main([str(tmp_path), "--to", "torch"])
    trainer = fresh_trainer(scene)
    scene.pair.torch.load(trainer, str(tmp_path / "checkpoint.pt"))
    assert trainer.total_it == total_it
    assert not any(compare_states(state, trainer).values())
    state = update(scene, state, first + UPDATES, last)
    trainer.update(scene.torch_batch(last[0]), last[1])
    assert not too_far(compare_states(state, trainer))


def test_a_schedule_is_where_it_would_have_been(tmp_path: Path) -> None:
    """The next learning rate follows from the last one, and is bitwise the same as without a conversion."""
    scene = scene_of("iql", "other", tmp_path)
    trainer = fresh_trainer(scene)
    to_torch(scene.state(), trainer)
    assert trainer.actor_lr_schedule.state_dict() == scene.trainer.actor_lr_schedule.state_dict()
    here, there = (each.actor_optimizer.param_groups[0]["lr"] for each in (trainer, scene.trainer))
    assert here == there < scene.config.actor_lr
