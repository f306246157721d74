"""`corl-twins collect pointmaze-medium-navigate`: whole trajectories of scripted policies, always the same."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from shared import names
from shared.commands import collect
from shared.commands.collecting import oracles
from shared.commands.common import ended
from shared.data import sources
from shared.data.goals import extract_goals
from tests import ogbench_files

pytestmark = ogbench_files.NEEDS_OGBENCH
BUNDLED = [name for name in names.bundled() if name.removeprefix("mini/") in oracles.names()]
MAZE = "pointmaze-medium-navigate"


def arrays(path: Path) -> dict[str, np.ndarray]:
    with h5py.File(path) as file:
        return {name: file[name][:] for name in file}


@pytest.mark.thorough
def test_a_collection_can_be_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oracles, "_EPISODES", 5)
    paths = [tmp_path / name for name in ("one.hdf5", "two.hdf5")]
    for path in paths:
        assert ended(collect.main, [MAZE, "--size", "1500", "--seed", "3", "--output", str(path)]) == 0
    one, two = map(arrays, paths)
    assert all(np.array_equal(one[name], two[name]) for name in one)
    assert len(one["rewards"]) == 2002
    found = extract_goals(sources.read(str(paths[0])).raw)
    assert np.unique(found.last).tolist() == [999, 1999]
    told = capsys.readouterr().out
    assert "command: corl-twins collect pointmaze-medium-navigate --size 1500 --seed 3" in told
    assert "random_success: 0.0" in told


def test_options_of_a_training_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(collect.main, [MAZE, "--steps", "5"]) == 2
    assert capsys.readouterr().err == (
        f"error: {MAZE} is made by a scripted policy, without training: leave out --steps\n"
    )


@pytest.mark.parametrize("name", BUNDLED)
def test_the_bundled_sets_are_small_and_random_play_reaches_nothing(name: str) -> None:
    path = names.dataset_path(name)
    assert path.stat().st_size < 3_000_000
    attributes = sources.read(name).attributes
    assert attributes["env_id"] == f"ogbench/{name.removeprefix('mini/').rpartition('-')[0]}-v0"
    assert attributes["goals_reached"] > 0.9
    assert attributes["random_success"] == 0.0
    _, lengths = np.unique(extract_goals(sources.read(name).raw).last, return_counts=True)
    assert (lengths == 1000).all()
