"""Runs of DQN, in an environment of finite actions and on a dataset of them, in both frameworks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import jax
import numpy as np
import pytest

from shared.commands import play
from shared.commands import train as train_command
from shared.data.experience import Rows, load_rows
from shared.envs.evaluation import SampledPolicy
from shared.errors import InputError, Stopped
from shared.frameworks import jax_checkpoints
from shared.frameworks.saved_run import SavedRun
from shared.frameworks.twins import load_twin
from shared.runs.seeds import train_seeds
from tests.runs.stopped_runs import assert_same_bits, config, last_checkpoint, only_run, read, rows, train
from tests.runs.test_resume import disturb, stop_after

pytestmark = pytest.mark.usefixtures("in_haste")

DQN = "online/dqn"
of_each_side = pytest.mark.parametrize("side", ["torch", "jax"])
# Learning starts with the fourth of twelve steps.
PLAYED: dict[str, Any] = {"env": "CartPole-v1", "learning_starts": 3}
GAME, INVADERS = "MinAtar/SpaceInvaders-v1", "mini/spaceinvaders-medium"
OF_IMAGES: dict[str, Any] = {"encoder": "minatar", "frame_stack": 2, "hidden_dims": (16,)}


@pytest.fixture
def steps(tmp_path: Path) -> str:
    """A dataset with CartPole's sizes, in which no episode is longer than ten steps."""
    rng, size = np.random.default_rng(0), 100
    path = tmp_path / "steps.hdf5"
    with h5py.File(path, "w") as file:
        file["observations"] = rng.normal(size=(size, 4)).astype(np.float32)
        file["actions"] = rng.integers(2, size=size)
        file["rewards"] = np.ones(size, np.float32)
        file["terminals"] = np.arange(size) % 20 == 9
        file["timeouts"] = np.arange(size) % 20 == 19
        file.attrs["env_id"] = "CartPole-v1"
    return str(path)


def optimizer_steps(side: str, run: Path) -> int:
    """The number of steps that the optimiser has made."""
    twin, path, given = load_twin(side, DQN), str(last_checkpoint(run)), config(side, DQN, run, **PLAYED)
    if side == "torch":
        trainer = twin.create_trainer(given, 4, 2, 1.0)
        twin.load(trainer, path)
        return int(next(iter(trainer.critic_optimizer.state.values()))["step"])
    state = twin.create_train_state(jax.random.key(0), given, 4, 2, 1.0)
    return int(jax.tree.leaves(jax_checkpoints.load_checkpoint(path, DQN, state)["state"].critic_optimizer)[0])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("side", "settings", "updates"),
    [
        ("torch", {}, 9),
        ("torch", {"update_interval": 3, "n_updates": 2}, 6),
        ("jax", {"update_interval": 3, "n_updates": 2}, 6),
        ("jax", {"batch_size": 5}, 7),
    ],
)
def test_learning_follows_the_steps(side: str, settings: dict[str, Any], updates: int, tmp_path: Path) -> None:
    """The number of updates follows from the settings; an interval too short for a block changes nothing."""
    run = train(side, DQN, tmp_path, **PLAYED | settings)
    assert optimizer_steps(side, run) == updates
    content = read(last_checkpoint(run))
    assert (content["total_it"], content["step"]) == (updates, 12)
    assert [row["step"] for row in rows(run) if "loss" in row] == ([4, 8, 12] if updates == 9 else [8, 12])
    # Each interval starts a new episode.
    seen = load_rows(run, 12, Rows)
    assert len(np.unique(seen.observations[::4], axis=0)) == 3
    assert seen.actions.dtype == np.int64
    assert set(seen.actions.tolist()) == {0, 1}


@of_each_side
def test_epsilon_decides_how_much_is_random(side: str, tmp_path: Path) -> None:
    """The fresh critic's actions at 0, and random ones at 1."""
    idle = PLAYED | {"learning_starts": 12}
    shares = ({"epsilon_start": share, "epsilon_end": share} for share in (0.0, 1.0))
    greedy, random = (train(side, DQN, tmp_path / str(i), **idle, **share) for i, share in enumerate(shares))
    found = SavedRun.open(last_checkpoint(greedy)).trainer()
    shares = [
        (found.act(seen.observations) == seen.actions).mean()
        for seen in (load_rows(run, 12, Rows) for run in (greedy, random))
    ]
    assert shares[0] == 1.0 > shares[1]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("side", "settings"), [("torch", {"env": GAME} | OF_IMAGES), ("jax", {})], ids=["images", "vectors"]
)
def test_a_longer_run_goes_on_with_its_experience(side: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """From a checkpoint of another run; scores and losses at the end are the same as in one longer run."""
    settings = PLAYED | settings
    reference = train(side, DQN, tmp_path / "whole", **settings)
    first = train(side, DQN, tmp_path / "first", max_timesteps=8, **settings)
    disturb()
    load_model = str(last_checkpoint(first))
    run = train(side, DQN, tmp_path / "second", load_model=load_model, **settings)
    assert read(last_checkpoint(run))["total_it"] == read(last_checkpoint(reference))["total_it"] == 9
    assert rows(run)[-1] == rows(reference)[-1]
    with pytest.raises(InputError, match="has 8 environment steps: set max_timesteps to more"):
        train(side, DQN, tmp_path / "third", load_model=load_model, max_timesteps=8, **settings)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("side", "settings"),
    [("torch", {"n_steps": 3, "double": True}), ("jax", {"env": INVADERS} | OF_IMAGES)],
    ids=["three steps", "images"],
)
def test_a_stopped_run_on_a_dataset_ends_as_one_that_was_not(
    side: str, settings: dict[str, Any], steps: str, tmp_path: Path
) -> None:
    """Stopped between two evaluations; with the same seed, the same bits."""
    settings = {"env": steps} | settings
    reference = train(side, DQN, tmp_path / "whole", **settings)
    assert read(last_checkpoint(reference))["total_it"] == 12
    with stop_after(3), pytest.raises(Stopped):
        train(side, DQN, tmp_path / "cut", **settings)
    run = only_run(tmp_path / "cut")
    disturb()
    assert train(side, DQN, tmp_path / "cut", resume="auto", **settings) == run
    assert_same_bits(run, reference)


@pytest.mark.thorough
@pytest.mark.parametrize("settings", [PLAYED, {"env": INVADERS} | OF_IMAGES], ids=["environment", "images"])
def test_each_of_several_seeds_is_its_own_run(settings: dict[str, Any], tmp_path: Path) -> None:
    """Each has the metrics of its run alone, whether they update together or not."""
    twin = load_twin("jax", DQN)
    together = train_seeds(twin.train, config("jax", DQN, tmp_path / "runs", **settings), 2)
    alone = rows(train("jax", DQN, tmp_path / "alone", **settings | {"seed": 2}))
    for found, expected in zip(rows(together[1].folder), alone, strict=True):
        assert found.keys() == expected.keys()
        assert found.get("loss", 0.0) == pytest.approx(expected.get("loss", 0.0), rel=1e-5)
        assert found.get("returns") == expected.get("returns")


@of_each_side
def test_evaluations_may_be_random_in_part(side: str, tmp_path: Path) -> None:
    """The run's are, and so is what `play` shows of it; other seeds play differently."""
    run = train(side, DQN, tmp_path, eval_epsilon=1.0, **PLAYED)
    source = SavedRun.open(last_checkpoint(run))
    assert isinstance(source.policy(), SampledPolicy)
    returns = [play.play(source, 2, seed, None).returns.tolist() for seed in (None, 7)]
    assert returns[0] == rows(run)[-1]["returns"] != returns[1]


@pytest.mark.parametrize(
    ("algorithm", "settings", "message"),
    [
        (DQN, ["--env", "d4rl/hopper-v2"], "actions of environment 'd4rl/hopper-v2' are vectors"),
        (DQN, ["--env", "mini/hopper-medium-replay"], "actions of dataset 'mini/hopper-medium-replay' are vectors"),
        ("online/td3", ["--env", "CartPole-v1"], "actions of environment 'CartPole-v1' are finite"),
        ("td3_bc", ["--env", "STEPS"], "are finite"),
        ("dt", ["--env", "STEPS"], "are finite"),
        (DQN, ["--env", "STEPS", "--eval_env", "MountainCar-v0"], "set eval_env to the one it was recorded in"),
        (DQN, ["--env", "STEPS", "--action_scaler", "min_max"], "finite actions have no scale"),
        (DQN, ["--env", "CartPole-v1", "--n_steps", "3"], "n_steps is for datasets"),
        (DQN, ["--env", "FrozenLake-v1"], "its observations are Discrete(16)"),
        (DQN, ["--env", INVADERS], "are images (6, 10, 10): set encoder to nature or minatar"),
        (DQN, ["--env", GAME, "--encoder", "none"], "are images (6, 10, 10): set encoder to nature or minatar"),
        (DQN, ["--env", GAME, "--encoder", "nature"], "images of 10 by 10 are too small for encoder nature"),
        (DQN, ["--env", "STEPS", "--encoder", "minatar"], "are vectors, which encoder minatar cannot read"),
        (DQN, ["--env", "CartPole-v1", "--encoder", "minatar"], "are vectors, which encoder minatar cannot read"),
        (DQN, ["--env", "CartPole-v1", "--frame_stack", "2"], "only images can be stacked"),
        (DQN, ["--env", INVADERS, "--encoder", "minatar", "--frame_stack", "9999"], "frame_stack 9999 is more than"),
    ],
)
def test_what_does_not_fit_ends_in_one_line(
    algorithm: str,
    settings: list[str],
    message: str,
    steps: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With exit code 2, before anything is written."""
    given = [steps if value == "STEPS" else value for value in settings]
    arguments = ["torch", algorithm, "--runs_path", str(tmp_path / "runs"), *given]
    with pytest.raises(SystemExit) as ending:
        train_command.main(arguments)
    assert ending.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "runs").exists()


def test_an_action_that_the_environment_lacks_is_told(
    write_hdf5: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, with exit code 2."""
    states = np.zeros((60, 4), np.float32)
    path = write_hdf5({"env_id": "CartPole-v1"}, observations=states, actions=np.arange(60) % 3)
    with pytest.raises(SystemExit) as ending:
        train_command.main(["torch", DQN, "--env", str(path)])
    assert ending.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "has states of size 4 and the action 2, environment 'CartPole-v1' 4 and actions 0 to 1" in line
