"""Checks for learned models only: roll-outs of both twins, draws before training, and loading a saved model."""

from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from parity_tests.engine.precision import both_in
from parity_tests.errors import error
from parity_tests.ladder.scene import Scene
from parity_tests.pairs import PAIRS
from parity_tests.pairs.model_based_dynamics import MODES
from shared.data.dynamics import Draws
from shared.envs.terminations import hopper
from shared.errors import InputError

PAIR = PAIRS["model_based/dynamics"]
STEPS, ROWS = 5, 24
SHORT: dict[str, Any] = dict(PAIR.variants["default"]) | {
    "env": "mini/hopper-medium-replay",
    "max_timesteps": 2,
    "eval_freq": 1,
    "device": "cpu",
}


@pytest.mark.parametrize("mode", MODES)
def test_roll_outs_agree(mode: str) -> None:
    """Five steps from given states by given draws differ by at most 1e-10, including terminals and penalties."""
    with both_in("float64"):
        scene = Scene.create(PAIR, PAIR.jax, "other", "bundled")
        rows = scene.torch_batch(np.arange(ROWS)).holdout
        ours, theirs = scene.state().model(hopper), scene.trainer.model(hopper)
        reached = [rows.observations[:ROWS].numpy()] * 2
        rng, members = np.random.default_rng(3), scene.config.n_ensemble
        for step in range(STEPS):
            actions = rng.uniform(-1.0, 1.0, size=(ROWS, rows.actions.shape[1]))
            draws = rng.normal(size=(members, ROWS, reached[0].shape[1] + 1)), rng.integers(3, size=ROWS)
            with_draws = [Draws(*map(jnp.asarray, draws)), Draws(*map(torch.as_tensor, draws))]
            found = ours.step(jnp.asarray(reached[0]), jnp.asarray(actions), with_draws[0], 0.7, mode)
            expected = theirs.step(torch.as_tensor(reached[1]), torch.as_tensor(actions), with_draws[1], 0.7, mode)
            for name, value in expected._asdict().items():
                assert error(getattr(found, name), value) <= 1e-10, f"step {step}: {name}"
            reached = [np.asarray(side.next_observations) for side in (found, expected)]
        assert np.isfinite(reached[0]).all()


@pytest.mark.parametrize("twin", [PAIR.torch, PAIR.jax], ids=["torch", "jax"])
def test_what_is_drawn_before_training(twin: ModuleType) -> None:
    """A permutation, and a separate bootstrap for each member, from all training rows."""
    hp = PAIR.torch.TrainConfig(device="cpu")

    def split(seed: int) -> Any:
        torch.manual_seed(seed)
        np.random.seed(seed)
        return twin.draw_split(*([jax.random.key(seed)] if twin is PAIR.jax else []), hp, 600)

    drawn, other = split(0), split(1)
    assert sorted(np.concatenate([drawn.training, drawn.holdout])) == list(range(600))
    assert drawn.holdout.shape == (120,)
    assert drawn.bootstrap.shape == (7, 480)
    assert (drawn.bootstrap.min(), drawn.bootstrap.max()) == (0, 479)
    assert len({row.tobytes() for row in drawn.bootstrap}) == 7
    # With replacement, 1 - 1/e of the rows are drawn: 303 of 480, with a deviation below 7.
    assert all(abs(len(set(row.tolist())) - 303) < 40 for row in drawn.bootstrap)
    assert not np.array_equal(drawn.training, other.training)
    assert not np.array_equal(drawn.bootstrap, other.bootstrap)
    assert not np.array_equal(drawn.training, np.sort(drawn.training))


def test_members_are_shuffled_apart() -> None:
    """In each epoch, every member has its own order of the rows, which contains each row once."""
    hp = PAIR.torch.TrainConfig(device="cpu")
    shuffle = PAIR.torch.Shuffle(50)
    theirs = [PAIR.torch.draw_noise(hp, shuffle, torch.device("cpu"))[0].numpy() for _ in range(3)]
    ours = [np.asarray(PAIR.jax.draw_noise(jax.random.key(0), step, hp, 50)[0]) for step in range(3)]
    for orders in (theirs[1:], ours):
        assert len({row.tobytes() for order in orders for row in order}) == 7 * len(orders)
        assert all((np.sort(order, axis=1) == np.arange(50)).all() for order in orders)
    assert (theirs[0] == np.arange(50)).all()


@pytest.mark.thorough
@pytest.mark.parametrize("twin", [PAIR.torch, PAIR.jax], ids=["torch", "jax"])
def test_a_saved_model_is_loaded_again(twin: ModuleType, tmp_path: Path) -> None:
    """It is loaded by run folder or checkpoint path, predicts the same as the run's model, and knows its task."""
    run = twin.train(twin.TrainConfig(runs_path=str(tmp_path), **SHORT))
    model = twin.load_dynamics(run.folder, device="cpu")
    suffix = ".pt" if twin is PAIR.torch else ".msgpack"
    again = twin.load_dynamics(run.folder / f"checkpoint{suffix}", device="cpu")
    early = twin.load_dynamics(run.folder / "checkpoints" / f"step_1{suffix}", device="cpu")
    assert model.terminated is hopper
    rng = np.random.default_rng(0)
    given = [rng.normal(size=(9, size)).astype(np.float32) for size in (11, 3)]
    draws = rng.normal(size=(3, 9, 12)), rng.integers(2, size=9)
    hp = PAIR.torch.TrainConfig(**SHORT)
    steps = [twin.predict(each, hp, *given, *draws) for each in (model, again, early)]
    assert all(np.array_equal(a, b) for a, b in zip(steps[0], steps[1], strict=True))
    assert not np.array_equal(steps[0].rewards, steps[2].rewards)
    with pytest.raises(InputError, match="there is no checkpoint"):
        twin.load_dynamics(tmp_path / "nowhere")


def test_a_checkpoint_of_another_algorithm_is_no_model() -> None:
    """A one-line error says so."""
    policy = Path(__file__).parents[1] / "pairs" / "policies" / "hopper.pt"
    with pytest.raises(InputError, match="is of online/td3, not of model_based/dynamics"):
        PAIR.torch.load_dynamics(policy)
