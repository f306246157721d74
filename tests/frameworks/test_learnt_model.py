"""A learned model for an algorithm: found, trained or refused; and the ring that its rollouts fill."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from parity_tests.pairs.imagined import MODEL
from shared.data.transitions import Batch
from shared.errors import InputError, RunError
from shared.frameworks import jax_ring, learnt_model, torch_ring
from shared.frameworks.jax_data import to_device
from shared.frameworks.twins import load_twin
from shared.runs.configs import from_settings
from tests.runs.stopped_runs import config, train

pytestmark = pytest.mark.usefixtures("in_haste")

SIDES = ["torch", "jax"]
# Settings of a model that is trained in a moment
QUICK: dict[str, Any] = {"hidden_dims": (8,), "dynamics_weight_decay": (1e-4, 1e-4), "n_ensemble": 2} | {
    "n_elites": 1,
    "batch_size": 8192,
    "max_timesteps": 2,
    "eval_freq": 1,
    "n_rollouts": 10,
    "rollout_length": 3,
}


def test_a_model_is_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same folder and with the same seed; a second run reuses it, so its model is bitwise equal."""
    side = "torch"

    def quick(kind: Any, algorithm: str, settings: dict[str, Any], where: str) -> Any:
        return from_settings(kind, algorithm, {**settings, **QUICK}, where)

    monkeypatch.setattr(learnt_model, "from_settings", quick)
    first = train(side, "model_based/mopo", tmp_path, dynamics="", max_timesteps=4)
    (model,) = tmp_path.glob("Dynamics-*")
    assert f"s1-{side}" in model.name
    before = {path: path.stat().st_mtime_ns for path in model.rglob("*")}
    second = train(side, "model_based/mopo", tmp_path, dynamics="", max_timesteps=4, discount=0.9)
    assert first != second
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("Dynamics-*/**/*")} == before
    task, found = learnt_model.load_model_based_task(
        config(side, "model_based/mopo", tmp_path, dynamics=str(model)), side
    )
    assert found.sizes == (11, 3, 2, 1)
    assert len(task.fingerprint["dynamics"]) == 64
    assert (task.dataset.terminals == 0.0).all()
    task.evaluator.close()


REFUSED = {
    "set observation_scaler to none": {"observation_scaler": "standard"},
    "set action_scaler to none": {"action_scaler": "min_max"},
    "states of size 11 and actions of size 3 of d4rl/hopper-v2, dataset .* 17 and 6": {
        "env": "mini/halfcheetah-medium-expert"
    },
    "has finite actions": {"env": "mini/cartpole-expert"},
    "there is no checkpoint": {"dynamics": "nowhere"},
    "is of online/td3, not of model_based/dynamics": {"dynamics": str(MODEL.parent / "hopper.pt")},
    "rollout_batch_size 1000000000000 needs at least": {"rollout_batch_size": 10**12},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_fit_is_refused(message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        train("torch", "model_based/mopo", tmp_path, **REFUSED[message])


@pytest.mark.parametrize("side", SIDES)
def test_a_conservative_term_needs_rows_of_either_kind(side: str, tmp_path: Path) -> None:
    """The mean over no rows would be undefined; nothing is started, not even a model."""
    with pytest.raises(InputError, match=r"real_ratio 0\.1 leaves a batch no row of the dataset: set it to more"):
        train(side, "model_based/combo", tmp_path, real_ratio=0.1)
    with pytest.raises(InputError, match=r"real_ratio 1 leaves a batch no row of the model: set it to less, or rho_s"):
        train(side, "model_based/combo", tmp_path, real_ratio=1.0, rho_s="model")
    assert not list(tmp_path.iterdir())
    learnt_model.check_shares(1.0, 1, 1)


def test_roll_outs_that_explode_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one line, and without a score."""
    monkeypatch.setattr(learnt_model, "LARGEST", 0.5)
    with pytest.raises(RunError, match=r"the model's roll-outs reach \d.* before update 4: set rollout_length to less"):
        train("torch", "model_based/mopo", tmp_path)
    assert not list(tmp_path.glob("*/result.json"))


def test_what_is_no_number_explodes() -> None:
    for value in (float("nan"), float("inf"), 2e6):
        with pytest.raises(RunError):
            learnt_model.check_roll_outs(5, {"rollout_largest": value})
    learnt_model.check_roll_outs(5, {"rollout_largest": 1e6})
    learnt_model.check_roll_outs(5, {})


def test_intervals_are_cut_at_multiples() -> None:
    found = list(learnt_model.pieces([(0, 5), (5, 10), (12, 13)], 4))
    assert found == [(0, 4), (4, 5), (5, 8), (8, 10), (12, 13)]
    assert list(learnt_model.pieces([(0, 3)], 10)) == [(0, 3)]


# ---- the ring ------------------------------------------------------------------------------------------------------

CAPACITY = 12


def rows(number: int, first: int) -> Batch:
    """Distinguishable rows."""
    count = np.arange(first, first + number, dtype=np.float32)
    return Batch(np.stack([count, -count], 1), count[:, None], count, np.stack([count, count], 1), count)


def test_both_rings_hold_the_same_rows_in_the_same_order() -> None:
    """Blocks in which some rows do not count, going round the ring more than once; and again after a checkpoint."""
    rng, kind = np.random.default_rng(0), rows(3, 0)
    theirs = torch_ring.Ring(Batch(*map(torch.as_tensor, kind)), CAPACITY, keeps_dataset=False)
    ours, held, place = jax_ring.Ring.create(to_device(kind), CAPACITY, keeps_dataset=False), [0.0] * CAPACITY, 0
    for block in range(8):
        given, kept = rows(12, 100 * block), rng.random((3, 4)) < 0.6
        counted = [column[kept.ravel()] for column in given]
        theirs.extend(Batch(*map(torch.as_tensor, counted)))
        shaped = (jnp.asarray(column).reshape(3, 4, *column.shape[1:]) for column in given)
        ours = jax_ring.push_kept(ours, Batch(*shaped), jnp.asarray(kept))
        for value in counted[2]:
            held[place] = float(value)
            place = (place + 1) % CAPACITY
        assert theirs.rows.rewards.tolist() == held
        assert ours.rows[:, 3].tolist() == held
        assert int(ours.size) == theirs.size
        mine, other = ours.content(), theirs.content()
        assert np.array_equal(mine["rows"], other["rows"])
        assert mine["pointer"] == other["pointer"] == place
        again = torch_ring.Ring(Batch(*map(torch.as_tensor, kind)), CAPACITY, keeps_dataset=False)
        again.go_on_from("file", {"synthetic": other})
        assert all(torch.equal(a, b) for a, b in zip(again.rows, theirs.rows, strict=True))
        assert (again.size, again.content()["pointer"]) == (theirs.size, place)
        refilled = jax_ring.Ring.create(to_device(kind), CAPACITY, keeps_dataset=False).refilled(
            "file", {"synthetic": mine}
        )
        assert np.array_equal(refilled.rows, ours.rows)
        assert (int(refilled.size), int(refilled.pointer)) == (theirs.size, place)
    assert theirs.size == CAPACITY


SPOILT: dict[str, Any] = {
    "none": None,
    "wide": {"rows": np.zeros((3, 8), np.float32), "pointer": 0},
    "long": {"rows": np.zeros((13, 7), np.float32), "pointer": 0},
    "empty": {"rows": np.zeros((0, 7), np.float32), "pointer": 0},
    "nan": {"rows": np.full((3, 7), np.nan, np.float32), "pointer": 0},
    "whole numbers": {"rows": np.zeros((3, 7), int), "pointer": 0},
    "beyond": {"rows": np.zeros((3, 7), np.float32), "pointer": 12},
    "half": {"rows": np.zeros((3, 7), np.float32), "pointer": 0.5},
}


@pytest.mark.parametrize("fault", SPOILT)
def test_a_spoilt_ring_is_refused(fault: str) -> None:
    kind, content = rows(3, 0), {"synthetic": SPOILT[fault]}
    with pytest.raises(InputError, match="holds no roll-outs of 7 numbers a row, 12 rows at most"):
        torch_ring.Ring(Batch(*map(torch.as_tensor, kind)), CAPACITY, keeps_dataset=False).go_on_from("x", content)
    with pytest.raises(InputError, match="holds no roll-outs of 7 numbers a row, 12 rows at most"):
        jax_ring.Ring.create(to_device(kind), CAPACITY, keeps_dataset=False).refilled("x", content)


@pytest.mark.thorough
def test_a_run_says_what_its_roll_outs_gave(tmp_path: Path) -> None:
    """Under the same names in both frameworks."""
    names = []
    for side in SIDES:
        run = load_twin(side, "model_based/mopo").train(config(side, "model_based/mopo", tmp_path, max_timesteps=4))
        lines = (run.folder / "metrics.jsonl").read_text()
        names.append([name for name in ("rollout_transitions", "rollout_reward", "rollout_largest") if name in lines])
    assert names[0] == names[1] != []
