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
from tests.runs.stopped_runs import config, last_checkpoint, read, rows, train
from tests.runs.test_resume import disturb

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


@pytest.fixture(scope="module", params=[(side, name) for side in SIDES for name in NAMES], ids="-".join)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, Path]:
    """A twin's framework and name, and an undisturbed run of it."""
    side, name = request.param
    return side, name, train(side, name, tmp_path_factory.mktemp(side), **PLAYED)


@pytest.mark.thorough
def test_learning_follows_the_steps(whole: tuple[str, str, Path]) -> None:
    """Updates 4 to 12; TD3's policy learns in the odd ones, as if updates had been made from the first step on."""
    side, name, run = whole
    policy = {"online/ddpg": 9, "online/td3": 4}[name]
    assert steps_of(side, name, run) == [policy, 9]
    assert [row["step"] for row in rows(run) if "critic_loss" in row] == [4, 8, 12]
    assert read(last_checkpoint(run))["dataset"] == {"name": "d4rl/hopper-v2"}
    # Each interval starts a new episode.
    begun = load_rows(run, 12, Rows).qpos[::4]
    assert len(np.unique(begun, axis=0)) == 3


@pytest.mark.thorough
def test_a_longer_run_goes_on_with_its_experience(whole: tuple[str, str, Path], tmp_path: Path) -> None:
    """From a checkpoint of another run; scores and losses at the end are the same as in one longer run."""
    side, name, reference = whole
    first = train(side, name, tmp_path / "first", max_timesteps=8, **PLAYED)
    disturb()
    load_model = str(last_checkpoint(first))
    run = train(side, name, tmp_path / "second", load_model=load_model, **PLAYED)
    assert steps_of(side, name, run) == steps_of(side, name, reference)
    assert rows(run)[-1] == rows(reference)[-1]
    with pytest.raises(InputError, match="has 8 environment steps: set max_timesteps to more"):
        train(side, name, tmp_path / "third", load_model=load_model, max_timesteps=8, **PLAYED)


def test_a_model_of_a_dataset_has_no_experience_to_go_on_with(tmp_path: Path) -> None:
    """One line says which files must be next to it."""
    run = train("torch", "online/td3", tmp_path / "dataset")
    with pytest.raises(InputError, match=r"no whole experience in .*: it must lie beside its checkpoint"):
        train("torch", "online/td3", tmp_path / "played", load_model=str(last_checkpoint(run)), **PLAYED)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("n_steps", 3), ("observation_scaler", "standard"), ("reward_low", 0.0), ("buffer_size", 1000)],
)
def test_settings_of_datasets_are_refused(setting: str, value: Any, tmp_path: Path) -> None:
    """Each by name, before anything is written."""
    with pytest.raises(InputError, match=f"{setting} is for datasets, and env is an environment, 'd4rl/hopper-v2'"):
        train("torch", "online/td3", tmp_path, **PLAYED, **{setting: value})
    assert not list(tmp_path.iterdir())
