"""`corl-twins datasets thin`: keeps fewer episodes of a policy, and says so in the attributes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from shared.__main__ import main
from shared.data import sources
from shared.names import dataset_path

LENGTHS = {"medium": [3, 5, 2, 4, 6], "expert": [7, 8, 9]}


@pytest.fixture
def collected(tmp_path: Path) -> Path:
    """A file of five medium episodes and three of an expert; a row's number is its reward and its state."""
    ends = np.cumsum([*LENGTHS["medium"], *LENGTHS["expert"]]) - 1
    rows = np.arange(ends[-1] + 1, dtype=np.float32)
    path = tmp_path / "whole.hdf5"
    with h5py.File(path, "w") as file:
        file["observations"] = np.stack([rows] * 11, axis=1)
        file["actions"] = np.zeros((len(rows), 3), np.float32)
        file["rewards"] = rows
        file["terminals"] = np.isin(rows, ends)
        file["timeouts"] = np.zeros(len(rows), bool)
        file.attrs.update({"env_id": "d4rl/hopper-v2", "command": "corl-twins collect hopper-medium-expert"})
        for name, steps in (("medium", 10), ("expert", 20)):
            facts = {"episodes": len(LENGTHS[name]), "rows": sum(LENGTHS[name]), "training_steps": steps}
            file.attrs.update({f"{name}_{fact}": value for fact, value in facts.items()})
            file.attrs[f"{name}_return_mean"] = file.attrs[f"{name}_return_std"] = -1.0
    return path


def test_episodes_are_spread_evenly_and_the_others_stay(collected: Path, tmp_path: Path) -> None:
    """Of five medium episodes the first and the third, rows 0 to 2 and 8 to 9, and all the expert's, 20 to 43."""
    output = tmp_path / "thin.hdf5"
    main(["datasets", "thin", str(collected), "medium=2", "--output", str(output)])
    with h5py.File(output) as file:
        expected = [0, 1, 2, 8, 9, *range(20, 44)]
        assert file["rewards"][:].tolist() == expected
        assert file["observations"][:, 5].tolist() == expected
        facts = {name: file.attrs[f"medium_{name}"] for name in ("episodes", "rows", "return_mean", "return_std")}
        assert facts == {"episodes": 2, "rows": 5, "return_mean": 10.0, "return_std": 7.0}
        assert (file.attrs["expert_episodes"], file.attrs["expert_rows"]) == (3, 24)
        assert file.attrs["source_command"] == "corl-twins collect hopper-medium-expert"
        assert file.attrs["source_sha256"] == sources.read(str(collected)).sha256


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("medium=6", "has 5 episodes of medium, not 6"),
        ("bad=1", "no part bad; its parts are medium, expert"),
        ("medium=0", "not of the form medium=8"),
        ("medium", "not of the form medium=8"),
    ],
)
def test_what_cannot_be_kept_is_refused(
    collected: Path, tmp_path: Path, word: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, with nothing written."""
    assert main(["datasets", "thin", str(collected), word, "--output", str(tmp_path / "thin.hdf5")]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["whole.hdf5"]


def test_a_file_that_is_there_stays(collected: Path) -> None:
    content = collected.read_bytes()
    assert main(["datasets", "thin", str(collected), "medium=2", "--output", str(collected)]) == 2
    assert collected.read_bytes() == content


def test_a_file_that_names_no_policies_is_refused(
    write_hdf5: Callable[[], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["datasets", "thin", str(write_hdf5()), "medium=2", "--output", str(tmp_path / "thin.hdf5")]) == 2
    assert "it was not collected here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("medium_episodes", 6, "the dataset has 8 episodes, its parts 9"),
        ("medium_episodes", -1, "no part medium; its parts are expert"),
        ("medium_episodes", "five", "no part medium; its parts are expert"),
        ("medium_training_steps", "ten", "no part medium; its parts are expert"),
    ],
)
def test_attributes_that_do_not_fit_are_refused(
    collected: Path, tmp_path: Path, attribute: str, value: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with h5py.File(collected, "r+") as file:
        file.attrs[attribute] = value
    assert main(["datasets", "thin", str(collected), "medium=2", "--output", str(tmp_path / "thin.hdf5")]) == 2
    assert message in capsys.readouterr().err


def test_the_bundled_set_is_what_its_command_makes(tmp_path: Path) -> None:
    """Array for array; the bytes around them depend on HDF5's version."""
    made, bundled = tmp_path / "made.hdf5", dataset_path("mini/hopper-mostly-expert")
    with h5py.File(bundled) as file:
        *_, name, share = str(file.attrs["command"]).split()
    main(["datasets", "thin", name, share, "--output", str(made)])
    for key, values in sources.read(str(bundled)).raw.items():
        np.testing.assert_array_equal(sources.read(str(made)).raw[key], values)
