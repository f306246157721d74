"""D4RL-Atari's datasets: four files per name, read with care, and one line for unreadable files."""

import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from corl_torch.discrete import bc
from shared import names
from shared.commands import datasets
from shared.commands.common import ended
from shared.data import sources
from shared.errors import InputError
from shared.runs.task import Preparation, load_task

NAME, FOLDER = "space-invaders-medium-v1", "SpaceInvaders/2/10"
SIZE, SIDE = 12, 36
RNG = np.random.default_rng(0)
# Two lost games, and the start of a third one
ROWS: dict[str, Any] = {
    "observation": RNG.integers(1, 256, (SIZE, SIDE, SIDE), np.uint8),
    "action": RNG.integers(0, 6, SIZE, np.int32),
    "reward": RNG.choice([0.0, 5.0, 30.0], SIZE).astype(np.float32),
    "terminal": np.isin(np.arange(SIZE), (4, 9)).astype(np.uint8),
}

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes the four files as gzip streams, as NumPy does; a keyword replaces an array or a whole file."""
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path))

    def write_all(**changes: Any) -> Path:
        folder = tmp_path / FOLDER
        folder.mkdir(parents=True)
        for name, content in (ROWS | changes).items():
            if content is not None:
                written = content if isinstance(content, bytes) else gzip.compress(as_npy(content))
                (folder / f"{name}.gz").write_bytes(written)
        return folder

    return write_all


def as_npy(array: np.ndarray) -> bytes:
    """The bytes that `numpy.save` writes."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_rows_are_those_of_the_files(write: Write) -> None:
    """Single frames with a channel axis; a lost game is a terminal, and there are no time limits."""
    write()
    source = sources.read(NAME)
    assert_array_equal(source.raw["observations"], ROWS["observation"][:, None])
    assert source.raw["observations"].dtype == np.uint8
    for key, name in (("actions", "action"), ("rewards", "reward"), ("terminals", "terminal")):
        assert_array_equal(source.raw[key], ROWS[name])
    assert not source.raw["timeouts"].any()
    assert source.max_episode_steps is None
    assert len(source.sha256) == 64


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("breakout-mixed-v0", "Breakout/1/1"),
        ("up-n-down-expert-v4", "UpNDown/5/50"),
        ("ms-pacman-epoch-7-v2", "MsPacman/3/7"),
    ],
)
def test_a_name_tells_game_run_and_epoch(name: str, folder: str) -> None:
    assert names.is_known(name)
    assert names.atari_folder(name) == names.d4rl_folder() / folder
    with pytest.raises(InputError, match=f"is missing observation.gz, .*put d4rl-atari's files into .*{folder}, or"):
        sources.read(name)


@pytest.mark.parametrize(
    "name",
    [
        "breakout-mixed-v5", "breakout-random-v0", "breakout-epoch-0-v0", "breakout-epoch-51-v0", "breakot-mixed-v0",
        "Breakout-mixed-v0", "breakout-mixed-v0.hdf5", "hopper-medium-v2",
    ],
)  # fmt: skip
def test_other_names_are_not_of_atari(name: str) -> None:
    assert not names.is_atari(name)


def test_a_typing_error_is_told_the_nearest_name() -> None:
    with pytest.raises(InputError, match="unknown dataset 'breakot-mixed-v0'; nearest: breakout-mixed-v0"):
        sources.read("breakot-mixed-v0")


def declared(*shape: int) -> bytes:
    """A file that declares this many bytes but contains none."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return gzip.compress(file.getvalue())


WHOLE = gzip.compress(as_npy(ROWS["reward"]), mtime=0)
# The subject of each fault, the files written, and the line that reports it
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "two files missing": ({"action": None, "reward": None}, "is missing action.gz, reward.gz: put"),
    "no gzip": ({"reward": b"no gzip"}, "reward.gz is damaged, or no array .*fetch it again"),
    "truncated": ({"reward": WHOLE[:-12]}, "reward.gz is damaged"),
    "another checksum": ({"reward": WHOLE[:-8] + bytes(4) + WHOLE[-4:]}, "reward.gz is damaged.*CRC"),
    "bytes behind": ({"reward": gzip.compress(as_npy(ROWS["reward"]) + b"\0")}, "bytes after the array"),
    "objects": ({"reward": gzip.compress(as_npy(np.array([{}, None])))}, "reward.gz is damaged"),
    "a bomb": ({"terminal": declared(999_999_999)}, "terminal.gz declares 999,999,999 bytes, and .* are stored"),
    "too large": ({"terminal": declared(10**6, 10**6)}, "terminal.gz declares 1,000,000,000,000 bytes, more than"),
    "frames of floats": ({"observation": np.zeros((SIZE, SIDE, SIDE), np.float32)}, "observation.gz holds an array"),
    "unequal lengths": ({"reward": ROWS["reward"][:-1]}, "SpaceInvaders/2/10 has arrays of unequal length"),
    "actions of floats": ({"action": ROWS["reward"]}, "SpaceInvaders/2/10: actions has shape"),
    "NaN": ({"reward": np.full(SIZE, np.nan)}, "rewards holds NaN"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told_in_one_line(fault: str, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """And the command ends with exit code 2."""
    changes, line = FAULTS[fault]
    write(**changes)
    with pytest.raises(InputError, match=line) as error:
        sources.read(NAME)
    assert "\n" not in str(error.value)
    assert ended(datasets.main, ["show", NAME]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_commands_know_the_names(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`show` describes a set, and `download` says where it is or should be."""
    folder = write()
    monkeypatch.chdir(tmp_path)
    assert ended(datasets.main, ["show", NAME]) == 0
    assert f"12 of 1x{SIDE}x{SIDE} + 1 of 5 actions (uint8)" in capsys.readouterr().out
    assert ended(datasets.main, ["download", NAME]) == 0
    assert capsys.readouterr().out == f"{folder}\n"
    assert ended(datasets.main, ["download", "pong-mixed-v0"]) == 2
    assert str(tmp_path / "Pong/1/1") in capsys.readouterr().err


class Screen(gymnasium.Env):
    """Grey frames, as in the sets' own environment, and six actions."""

    observation_space = gymnasium.spaces.Box(0, 255, (SIDE, SIDE, 1), np.uint8)
    action_space = gymnasium.spaces.Discrete(6)

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        """A black frame."""
        return np.zeros((SIDE, SIDE, 1), np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Pays 1, with a black frame."""
        return np.zeros((SIDE, SIDE, 1), np.uint8), 1.0, True, False, {}


def test_a_task_scores_where_it_is_told(write: Write) -> None:
    """A set names no environment; with `eval_env` its stacks can be trained on."""
    write()
    gymnasium.register("Screen-v0", entry_point=Screen)
    shown = {"env": NAME, "encoder": "nature", "frame_stack": 4, "device": "cpu"}
    try:
        with pytest.raises(InputError, match="space-invaders-medium-v1 names no environment: set eval_env"):
            load_task(bc.TrainConfig(**shown), Preparation(normalise=False, finite=True))
        task = load_task(bc.TrainConfig(**shown, eval_env="Screen-v0"), Preparation(normalise=False, finite=True))
        assert task.shape == (4, SIDE, SIDE)
        assert task.action_dim == 6
        assert_array_equal(task.dataset.observations[3], ROWS["observation"][:4])
        task.evaluator.close()
    finally:
        del gymnasium.registry["Screen-v0"]
