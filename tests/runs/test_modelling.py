"""A dynamics model's task: its settings, and the rollouts that score it."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corl_torch.model_based.dynamics import TrainConfig, train
from shared.commands import train as train_command
from shared.data.dynamics import Step
from shared.errors import InputError
from shared.runs.modelling import load_model_task
from shared.runs.rollouts import NEAR

SMALL: dict[str, Any] = {
    "env": "mini/hopper-medium-replay",
    "hidden_dims": (8,),
    "dynamics_weight_decay": (1e-4, 1e-4),
    "n_ensemble": 3,
} | {
    "n_elites": 2,
    "n_rollouts": 20,
    "rollout_length": 4,
    "batch_size": 2048,
    "device": "cpu",
}


def oracle(off: float, reward: float = 0.0, ends: bool = False) -> Any:
    """A model that knows the dataset's next states, except for this many deviations at each step."""
    task = load_model_task(TrainConfig(**SMALL))
    data, std = task.dataset, task.dataset.observations.std(axis=0)
    known = {actions.tobytes(): row for row, actions in enumerate(data.actions)}
    assert len(known) == len(data.actions)

    def predict(observations: np.ndarray, actions: np.ndarray, normals: np.ndarray, chosen: np.ndarray) -> Step:
        assert normals.shape == (3, len(actions), observations.shape[1] + 1)
        assert set(chosen.tolist()) == {0, 1}
        rows = [known[action.tobytes()] for action in actions]
        # The previous state's error continues, and grows.
        before = observations - data.observations[rows]
        rewards = data.rewards[rows] + reward
        terminals = np.full(len(rows), ends)
        following = data.next_observations[rows] + before + off * std
        return Step(following, rewards, terminals, rewards, np.full(len(rows), 0.25))

    return task.evaluator(predict)


def test_a_perfect_model_follows_all_episodes() -> None:
    found = oracle(0.0)
    assert (found.outcomes == 4.0).all()
    assert found.measures["one_step_error"] == pytest.approx(0.0, abs=1e-6)
    assert found.measures["reward_error"] == pytest.approx(0.0, abs=1e-6)
    assert (found.measures["ended"], found.measures["penalty"]) == (0.0, 0.25)


def test_a_roll_out_follows_until_its_state_is_far() -> None:
    found = oracle(0.4 * NEAR, reward=-2.0, ends=True)
    # After the third step its error is 1.2 times the limit.
    assert (found.outcomes == 2.0).all()
    assert found.errors == pytest.approx(0.4 * NEAR * np.arange(1, 5), rel=1e-4)
    assert found.measures["last_step_error"] == found.errors[-1]
    assert found.measures["reward_error"] == pytest.approx(2.0, rel=1e-5)
    assert found.measures["ended"] == 1.0


def test_what_is_no_number_is_far() -> None:
    found = oracle(float("nan"))
    assert (found.outcomes == 0.0).all()
    assert np.isfinite(found.errors).all()


REFUSED = {
    "dynamics_weight_decay has 2 numbers: give one for each of hidden_dims": {"hidden_dims": (8, 8)},
    "n_elites 4 are more than all members: set it to 3 at most": {"n_elites": 4},
    "holdout_ratio 0.0 of .* holds out 0": {"holdout_ratio": 0.0},
    "has finite actions": {"env": "mini/cartpole-expert"},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_learnt_from_is_refused(message: str) -> None:
    with pytest.raises(InputError, match=message):
        train(TrainConfig(**SMALL | REFUSED[message]))


def test_roll_outs_are_no_longer_than_the_longest_episode(capsys: pytest.CaptureFixture[str]) -> None:
    """Episodes may be short if nobody has set the length, as in an algorithm that trains its own model."""
    task = load_model_task(TrainConfig(**SMALL | {"rollout_length": 5000}))
    longest = task.evaluator.fingerprint["rollout_length"]
    assert 4 < longest < 5000
    assert f"roll-outs of an evaluation have {longest} steps: no episode has 5000 on end" in capsys.readouterr().out


@pytest.mark.thorough
@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_a_model_that_diverges_ends_with_one_line(
    framework: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {**SMALL, "hidden_dims": [8], "dynamics_weight_decay": [1e-4, 1e-4], "learning_rate": 1e30}
    flags = [f"--{name}={value}" for name, value in (settings | {"runs_path": tmp_path}).items()]
    with pytest.raises(SystemExit, match="1"):
        train_command.main([framework, "model_based/dynamics", *flags])
    assert re.fullmatch(r"error: \w+ is (nan|inf) at epoch 5; nothing was saved yet\n", capsys.readouterr().err)


def test_a_run_draws_its_model(tmp_path: Path) -> None:
    """A picture next to the curve, and a row for each member's error."""
    run = train(TrainConfig(runs_path=str(tmp_path), max_timesteps=2, eval_freq=1, **SMALL))
    assert (run.folder / "model.png").read_bytes().startswith(b"\x89PNG")
    assert (run.folder / "learning_curve.png").is_file()
    assert run.result["metric"] == "steps_followed"
    assert {f"final_{name}" for name in ("one_step_error", "penalty", "ended")} <= run.result.keys()
