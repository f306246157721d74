"""Runs on images of algorithms with continuous actions, on a dataset and in an environment."""

from pathlib import Path
from typing import Any

import h5py
import pytest

from shared.commands import datasets, play
from shared.commands import train as train_command
from shared.commands.common import ended
from shared.data.experience import Rows, load_rows
from shared.errors import Stopped
from shared.frameworks.saved_run import SavedRun
from shared.names import dataset_path
from tests.runs.stopped_runs import assert_same_bits, last_checkpoint, only_run, rows, train
from tests.runs.test_resume import disturb, stop_after

pytestmark = pytest.mark.usefixtures("in_haste")

SEEN: dict[str, Any] = {"encoder": "nature", "frame_stack": 3, "crop_padding": 4}
IN_ENVIRONMENT = SEEN | {"env": "silhouettes/hopper-v2", "hidden_dim": 16, "random_steps": 3, "update_every": 4}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drawn dataset with two whole episodes of the bundled one."""
    folder = tmp_path_factory.mktemp("pictures")
    with h5py.File(dataset_path("mini/hopper-medium-replay")) as whole, h5py.File(folder / "states.hdf5", "w") as few:
        ends = whole["terminals"][:].nonzero()[0]
        for name in ("observations", "actions", "rewards", "terminals", "timeouts"):
            few[name] = whole[name][: ends[1] + 1]
        few.attrs["env_id"] = "d4rl/hopper-v2"
    drawn = folder / "pictures.hdf5"
    assert ended(datasets.main, ["draw", str(folder / "states.hdf5"), "--output", str(drawn)]) == 0
    return drawn


def test_a_drawn_dataset_shows_the_states_and_holds_all_else(pictures: Path) -> None:
    """It names the environment that shows them, and its source."""
    with h5py.File(pictures) as drawn, h5py.File(pictures.with_name("states.hdf5")) as states:
        assert drawn["observations"].shape == (len(states["rewards"]), 1, 64, 64)
        for name in ("actions", "rewards", "terminals", "timeouts"):
            assert (drawn[name][:] == states[name][:]).all()
        assert drawn.attrs["env_id"] == "silhouettes/hopper-v2"
        assert drawn.attrs["command"] == f"corl-twins datasets draw {pictures.with_name('states.hdf5')}"
        assert len(drawn.attrs["source_sha256"]) == 64


@pytest.mark.parametrize(
    ("of", "message"),
    [
        ("mini/cartpole-expert", "states of CartPole-v1 cannot be drawn"),
        ("pictures", "states of silhouettes/hopper-v2 cannot be drawn"),
        ("mini/hopper-medium-replay", "exists: name another file for the output"),
    ],
)
def test_what_cannot_be_drawn_is_told(
    of: str, message: str, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With exit code 2; no file is written or replaced."""
    output, given = tmp_path / "drawn.hdf5", str(pictures) if of == "pictures" else of
    if "exists" in message:
        output.write_text("mine")
    assert ended(datasets.main, ["draw", given, "--output", str(output)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not output.exists() or output.read_text() == "mine"


@pytest.mark.thorough
@pytest.mark.parametrize(("side", "algorithm", "own"), [("jax", "any_percent_bc", {"frac": 1.0}), ("torch", "iql", {})])
def test_a_policy_learns_from_pictures(
    side: str, algorithm: str, own: dict[str, Any], pictures: Path, tmp_path: Path
) -> None:
    """A stopped run ends like an undisturbed one; its policy can be played, and scores are D4RL's."""
    settings = SEEN | {"env": str(pictures), "normalize": False} | own
    reference = train(side, algorithm, tmp_path / "whole", **settings)
    with stop_after(3), pytest.raises(Stopped):
        train(side, algorithm, tmp_path / "cut", **settings)
    run = only_run(tmp_path / "cut")
    disturb()
    assert train(side, algorithm, tmp_path / "cut", resume=str(run), **settings) == run
    assert_same_bits(run, reference)
    source = SavedRun.open(last_checkpoint(run))
    assert source.sizes[0] == (3, 64, 64)
    assert play.play(source, 2, None, None).returns.shape == (2,)
    assert '"d4rl_normalized_score"' in (run / "result.json").read_text()


@pytest.mark.thorough
@pytest.mark.parametrize("side", ["torch", "jax"])
def test_sac_learns_from_what_it_sees(side: str, tmp_path: Path) -> None:
    """It stores stacks of pictures, and its updates start after the random steps."""
    run = train(side, "sac", tmp_path, max_timesteps=8, **IN_ENVIRONMENT)
    assert [row["step"] for row in rows(run) if "actor_loss" in row] == [4, 8]
    seen = load_rows(run, 8, Rows).observations
    assert seen.shape == (8, 3, 64, 64)
    assert not seen[0, :2].any()
    assert (seen[1, 1] == seen[0, 2]).all()


@pytest.mark.thorough
def test_sac_goes_on_with_what_it_saw(tmp_path: Path) -> None:
    """From a checkpoint of another run, as one longer run would have."""
    reference = train("torch", "sac", tmp_path / "whole", **IN_ENVIRONMENT)
    first = train("torch", "sac", tmp_path / "first", max_timesteps=8, **IN_ENVIRONMENT)
    disturb()
    given = IN_ENVIRONMENT | {"load_model": str(last_checkpoint(first))}
    run = train("torch", "sac", tmp_path / "second", **given)
    assert rows(run)[-1] == rows(reference)[-1]


@pytest.mark.parametrize(
    ("algorithm", "settings", "message"),
    [
        ("any_percent_bc", ["--encoder", "minatar"], "set normalize to false"),
        ("any_percent_bc", ["--normalize", "false"], "set encoder to nature or minatar"),
        ("td3_bc", [], "which this algorithm cannot read: set env to another"),
    ],
)
def test_what_does_not_fit_pictures_is_told(
    algorithm: str,
    settings: list[str],
    message: str,
    pictures: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With exit code 2, before anything is written."""
    with pytest.raises(SystemExit) as ending:
        train_command.main(
            ["torch", algorithm, "--env", str(pictures), "--runs_path", str(tmp_path / "runs"), *settings]
        )
    assert ending.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "runs").exists()
