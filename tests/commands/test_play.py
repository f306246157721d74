"""`corl-twins play`: the returns of a run's policy, and a film of it if a renderer is available."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import imageio.v2 as imageio
import numpy as np
import pytest
import torch

from corl_jax import bcq as jax_bcq
from corl_torch import bcq, dt, td3_bc
from shared.commands import play
from shared.commands.common import ended
from shared.envs.film import choose_renderer
from shared.envs.registry import D4RL_ENVS, make_env
from shared.envs.scores import rounded
from shared.errors import InputError
from shared.frameworks.saved_run import SavedRun, find
from shared.runs.configs import dump

STATE_DIM, ACTION_DIM, EVERY = 11, 3, 5  # Hopper makes 125 steps a second, a film shows 25
STATISTICS = {"state_mean": np.full(STATE_DIM, 0.1, np.float32), "state_std": np.full(STATE_DIM, 2.0, np.float32)}


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs the command; returns its exit code and its output."""

    def run(*arguments: Any) -> tuple[int, str, str]:
        capsys.readouterr()
        status = ended(play.main, [str(argument) for argument in arguments])
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def renders() -> None:
    """Skips the test if there is neither a screen nor EGL nor OSMesa."""
    try:
        choose_renderer()
    except InputError as error:
        pytest.skip(str(error))


def run_folder(folder: Path, twin: Any = td3_bc, **settings: Any) -> Path:
    """A run's files, without the training."""
    config = twin.TrainConfig(device="cpu", **settings)
    torch.manual_seed(3)
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(dump(config))
    twin.save(twin.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0), folder / "checkpoint.pt", **STATISTICS)
    return folder


def lengths(printed: str) -> list[int]:
    """The steps of each episode."""
    return [int(line.split(" steps")[0].split()[-1]) for line in printed.splitlines() if " steps" in line]


def played_alike(said: Callable, folder: Path) -> str:
    """The command's output for a run whose last evaluation had these three episodes."""
    status, printed, _ = said(folder)
    assert status == 0
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    found = [float(line.split("return ")[1].split()[0]) for line in printed.splitlines()[:3]]
    np.testing.assert_allclose(found, last["returns"], atol=0.06)
    assert lengths(printed) == last["lengths"]
    return printed


def test_it_earns_what_the_evaluation_counted(said: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real run, given by its folder alone: the returns of its last evaluation, from the same start states."""
    settings = {"max_timesteps": 20, "eval_freq": 20, "n_episodes": 3, "batch_size": 8}
    run = td3_bc.train(td3_bc.TrainConfig(device="cpu", runs_path=str(tmp_path), seed=4, **settings))
    monkeypatch.chdir(tmp_path)
    printed = played_alike(said, run.folder)
    assert printed.splitlines()[3] == f"D4RL score: {rounded(run.result['final'])[0]} on average"
    assert said(run.folder, "--seed", 5)[1] != printed


@pytest.mark.thorough
@pytest.mark.parametrize("twin", [td3_bc, jax_bcq])
def test_scaled_actions_and_sampled_ones_are_played_as_they_were_evaluated(
    twin: Any, said: Callable, write_hdf5: Callable[..., Path], tmp_path: Path
) -> None:
    """From the run's folder alone, because its checkpoint stores the scale of the actions."""
    settings = {"max_timesteps": 4, "eval_freq": 4, "n_episodes": 3, "batch_size": 8, "seed": 4}
    if twin is not td3_bc:
        settings |= {"n_action_samples": 2}
    actions = np.random.default_rng(0).uniform(-0.1, 0.4, size=(60, ACTION_DIM)).astype(np.float32)
    paths = {"env": str(write_hdf5(actions=actions)), "eval_env": "d4rl/hopper-v2", "runs_path": str(tmp_path)}
    run = twin.train(twin.TrainConfig(device="cpu", action_scaler="min_max", **paths, **settings))
    assert (SavedRun.open(find(run.folder)).action_statistics()[1] < 0.5).all()
    played_alike(said, run.folder)


def test_a_run_that_goes_on_shows_its_last_checkpoint(tmp_path: Path) -> None:
    """If both frameworks have a final checkpoint, the run's own is used; the other was converted."""
    run = tmp_path / "TD3_BC-x-s0-jax-0123abcd"
    (run / "checkpoints").mkdir(parents=True)
    for name in ("step_9.msgpack", "step_10.msgpack", "step_11.msgpack.partial"):
        (run / "checkpoints" / name).touch()
    assert find(run) == run / "checkpoints" / "step_10.msgpack"
    (run / "checkpoint.pt").touch()
    assert find(run) == run / "checkpoint.pt"
    (run / "checkpoint.msgpack").touch()
    assert find(run) == find(run / "checkpoint") == run / "checkpoint.msgpack"
    assert find(run, "torch") == run / "checkpoint.pt"


def test_a_checkpoint_alone_knows_its_settings(said: Callable, tmp_path: Path) -> None:
    """The checkpoints that a run keeps are in a folder without its config.yaml."""
    config = td3_bc.TrainConfig(device="cpu", env="walker2d-medium-v2", eval_env="d4rl/hopper-v2")
    trainer = td3_bc.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    path = tmp_path / "elsewhere" / "checkpoint_5.pt"
    td3_bc.save(trainer, path, **STATISTICS, settings=dataclasses.asdict(config))
    status, printed, _ = said(path, "--episodes", 1)
    assert (status, len(lengths(printed))) == (0, 1)


def test_a_transformer_is_asked_for_a_return(said: Callable, tmp_path: Path) -> None:
    folder = run_folder(tmp_path, dt, env="mini/hopper-mostly-expert", embedding_dim=8, seq_len=4, episode_len=7)
    status, printed, _ = said(folder, "--episodes", 2)
    assert (status, lengths(printed)) == (0, [7, 7])


def test_a_policy_that_samples_does_so_by_the_seed(said: Callable, tmp_path: Path) -> None:
    """The run's seed, if none is named."""
    folder = run_folder(tmp_path, bcq, n_action_samples=3)
    status, printed, _ = said(folder, "--episodes", 2)
    assert (status, said(folder, "--episodes", 2)[1]) == (0, printed)
    source = SavedRun.open(folder / "checkpoint.pt")
    starts = np.zeros((2, source.sizes[0]), np.float32), np.zeros(2), np.zeros(2, np.int64)
    run, same, other = (source.policy(seed)(*starts) for seed in (None, source.evaluation_seed, 9))
    np.testing.assert_array_equal(run, same)
    assert (run != other).all()
    expected = source.evaluator(2, 9)(source.policy(9))
    assert lengths(said(folder, "--episodes", 2, "--seed", 9)[1]) == expected.lengths.tolist()


@pytest.mark.thorough
@pytest.mark.usefixtures("renders")
@pytest.mark.parametrize("name", ["out.mp4", "out.gif"])
def test_a_film_shows_every_episode(name: str, said: Callable, tmp_path: Path) -> None:
    """It starts at each episode's start, lasts as long as the episodes do, and something moves."""
    folder, film = run_folder(tmp_path), tmp_path / name
    status, printed, _ = said(folder, "--episodes", 2, "--video", film)
    assert (status, printed.splitlines()[-1]) == (0, str(film))
    pictures = list(imageio.get_reader(film).iter_data())
    assert len(pictures) == sum(1 + steps // EVERY for steps in lengths(printed))
    assert pictures[0].shape[:2] == (480, 480)
    assert np.abs(pictures[0].astype(int) - pictures[-1]).max() > 50
    assert said(folder, "--episodes", 2)[1] == "".join(printed.splitlines(keepends=True)[:-1])
    assert {path.name for path in tmp_path.iterdir()} == {"config.yaml", "checkpoint.pt", name}


@pytest.mark.usefixtures("renders")
@pytest.mark.parametrize("env_id", D4RL_ENVS)
def test_the_camera_follows_the_robot(env_id: str) -> None:
    """However far it has run, it is in the picture: robots have a warm colour, but floor and sky do not."""
    env = make_env(env_id, render_mode="rgb_array")
    env.reset(seed=0)
    robot = env.unwrapped
    for distance in (0.0, 20.0):
        robot.set_state(robot.init_qpos + distance * (np.arange(robot.model.nq) == 0), robot.init_qvel)
        red, _, blue = np.moveaxis(env.render().astype(int), 2, 0)
        assert (red - blue > 40).mean() > 0.005, distance
    env.close()


def test_a_film_that_fails_on_the_way_ends_in_one_line(
    said: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever error the writer raises, and even if closing it raises again; no part of the film is left."""

    class Writer:
        def append_data(self, picture: Any) -> None:
            raise RuntimeError("no\nencoder")

        def close(self) -> None:
            raise RuntimeError("no encoder")

    monkeypatch.setattr("shared.envs.film.choose_renderer", lambda: None)
    monkeypatch.setattr("shared.envs.film._open", lambda *_: Writer())
    monkeypatch.setattr("gymnasium.envs.mujoco.MujocoEnv.render", lambda self: np.zeros((2, 2, 3), np.uint8))
    status, printed, error = said(run_folder(tmp_path), "--video", tmp_path / "x.gif")
    assert (status, printed, error.count("\n")) == (2, "", 1)
    assert "cannot film (no encoder): leave out --video" in error
    assert {path.name for path in tmp_path.iterdir()} == {"config.yaml", "checkpoint.pt"}


@pytest.mark.thorough
def test_without_a_renderer_one_line_says_so(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    command = [
        sys.executable,
        "-m",
        "shared",
        "play",
        str(folder),
        "--episodes",
        "1",
        "--video",
        str(tmp_path / "x.gif"),
    ]
    # Without a screen, EGL's drivers or, as on most machines, OSMesa
    nowhere = {"DISPLAY": "", "__EGL_VENDOR_LIBRARY_DIRS": "/nonexistent", "MUJOCO_GL": "egl"}
    done = subprocess.run(command, env=os.environ | nowhere, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: nothing here renders: ")
    assert done.stderr.endswith("install libegl1 or libosmesa6, or leave out --video\n")
    assert done.stderr.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"config.yaml", "checkpoint.pt"}


def no_statistics(folder: Path) -> list[Any]:
    config = td3_bc.TrainConfig(device="cpu")
    td3_bc.save(td3_bc.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0), folder / "checkpoint.pt")
    return [folder]


def other_statistics(folder: Path) -> list[Any]:
    config, statistics = td3_bc.TrainConfig(device="cpu"), {key: value[:5] for key, value in STATISTICS.items()}
    td3_bc.save(td3_bc.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0), folder / "checkpoint.pt", **statistics)
    return [folder]


def a_damaged_result(folder: Path) -> list[Any]:
    (folder / "result.json").write_text('{"metric": 3}')
    return [folder]


def a_film_that_is_there(folder: Path) -> list[Any]:
    (folder / "mine.gif").write_bytes(b"mine")
    return [folder, "--video", folder / "mine.gif"]


REFUSED = {
    no_statistics: "does not hold the statistics of its states",
    other_statistics: "holds statistics of other states",
    a_damaged_result: "result.json is damaged",
    a_film_that_is_there: "mine.gif is there already",
    lambda folder: [folder, "--video", folder / "x.avi"]: "end its name in .mp4 or .gif",
    lambda folder: [folder / "other"]: "there is no checkpoint at",
    lambda folder: [folder, "--episodes", "0"]: "0 is less than 1",
    lambda folder: [folder, "--seed", "x"]: "'x' is not a whole number",
}


@pytest.mark.parametrize(("spoil", "message"), REFUSED.items())
def test_what_cannot_be_used_is_refused(
    spoil: Callable[[Path], list[Any]], message: str, said: Callable, tmp_path: Path
) -> None:
    arguments = spoil(run_folder(tmp_path))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    status, _, printed = said(*arguments)
    assert (status, printed.count("\n")) == (2, 1)
    assert message in printed
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
