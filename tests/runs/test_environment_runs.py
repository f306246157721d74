"""Runs of TD3 and DDPG in an environment; other tests check them on a dataset, like every twin."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from shared.data.experience import Rows, load_rows
from shared.errors import InputError
from shared.frameworks import jax_checkpoints
from shared.frameworks.twins import load_twin
from tests.runs.stopped_runs import assert_same_bits, config, last_checkpoint, only_run, read, rows, train
from tests.runs.test_resume import disturb, evaluation_fails

pytestmark = pytest.mark.usefixtures("in_haste")

SIDES, NAMES = ("torch", "jax"), ("online/ddpg", "online/td3")
# Learning starts with the fourth of twelve steps.
PLAYED: dict[str, Any] = {"env": "d4rl/hopper-v2", "random_steps": 3}


def steps_of(side: str, name: str, run: Path) -> list[int]:
    """The number of steps that each optimiser has made: the policy's and the critics'."""
    twin, path = load_twin(side, name), str(last_checkpoint(run))
    given = config(side, name, run, **PLAYED)
    if side == "torch":
        trainer = twin.create_trainer(given, 11, 3, 1.0)
        twin.load(trainer, path)
        optimizers = trainer.actor_optimizer, trainer.critic_optimizer
        return [int(next(iter(optimizer.state.values()))["step"]) for optimizer in optimizers]
    state = twin.create_train_state(jax.random.key(0), given, 11, 3, 1.0)
    state = jax_checkpoints.load_checkpoint(path, name, state)["state"]
    return [int(jax.tree.leaves(moments)[0]) for moments in (state.actor_optimizer, state.critic_optimizer)]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", NAMES)
def test_learning_follows_the_steps(side: str, name: str, tmp_path: Path) -> None:
    """Updates 4 to 12; TD3's policy learns in the odd ones, as if updates had been made from the first step on."""
    run = train(side, name, tmp_path, **PLAYED)
    policy = {"online/ddpg": 9, "online/td3": 4}[name]
    assert steps_of(side, name, run) == [policy, 9]
    assert [row["step"] for row in rows(run) if "critic_loss" in row] == [4, 8, 12]
    assert read(last_checkpoint(run))["dataset"] == {"name": "d4rl/hopper-v2"}
    # Each interval starts a new episode.
    begun = load_rows(run, 12, Rows).qpos[::4]
    assert len(np.unique(begun, axis=0)) == 3


@pytest.mark.thorough
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", NAMES)
def test_a_stopped_run_ends_as_one_that_was_not(side: str, name: str, tmp_path: Path) -> None:
    """After an error in an evaluation; with the same seed, the same bits, also with blocks of several steps."""
    settings = PLAYED | {"update_every": 2}
    reference = train(side, name, tmp_path / "whole", **settings)
    with evaluation_fails(2), pytest.raises(ZeroDivisionError):
        train(side, name, tmp_path / "cut", **settings)
    run = only_run(tmp_path / "cut")
    disturb()
    train(side, name, tmp_path / "cut", **settings, resume="auto")
    assert_same_bits(run, reference)


@pytest.mark.thorough
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", NAMES)
def test_a_longer_run_goes_on_with_its_experience(side: str, name: str, tmp_path: Path) -> None:
    """From a checkpoint of another run; scores and losses at the end are the same as in one longer run."""
    reference = train(side, name, tmp_path / "whole", **PLAYED)
    first = train(side, name, tmp_path / "first", max_timesteps=8, **PLAYED)
    disturb()
    load_model = str(last_checkpoint(first))
    run = train(side, name, tmp_path / "second", load_model=load_model, **PLAYED)
    assert steps_of(side, name, run) == steps_of(side, name, reference)
    assert rows(run)[-1] == rows(reference)[-1]
    with pytest.raises(InputError, match="has 8 environment steps: set max_timesteps to more"):
        train(side, name, tmp_path / "third", load_model=load_model, max_timesteps=8, **PLAYED)


@pytest.mark.parametrize("side", SIDES)
def test_a_model_of_a_dataset_has_no_experience_to_go_on_with(side: str, tmp_path: Path) -> None:
    """One line says which files must be next to it."""
    run = train(side, "online/td3", tmp_path / "dataset")
    with pytest.raises(InputError, match=r"no whole experience in .*: it must lie beside its checkpoint"):
        train(side, "online/td3", tmp_path / "played", load_model=str(last_checkpoint(run)), **PLAYED)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("n_steps", 3), ("observation_scaler", "standard"), ("reward_low", 0.0), ("buffer_size", 1000)],
)
def test_settings_of_datasets_are_refused(setting: str, value: Any, tmp_path: Path) -> None:
    """Each by name, before anything is written."""
    with pytest.raises(InputError, match=f"{setting} is for datasets, and env is an environment, 'd4rl/hopper-v2'"):
        train("torch", "online/td3", tmp_path, **PLAYED, **{setting: value})
    assert not list(tmp_path.iterdir())
