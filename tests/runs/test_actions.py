"""The box of a run's actions: from the environment, from settings or from data; its messages and refusals."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.envs.boxes import ActionBox
from shared.envs.spaces import Actions
from shared.errors import InputError
from shared.runs.actions import action_box, action_units
from shared.runs.settings import TransitionsConfig
from shared.runs.task import Preparation, load_task
from tests.boxed_envs import write

FREE = ActionBox(np.full(2, -np.inf, np.float32), np.full(2, np.inf, np.float32))
UNEVEN = ActionBox(np.float32([0, -1]), np.float32([5, 1]))
RECORDED = np.float32([[0.5, -1], [4, 1], [2, 0]])


@dataclasses.dataclass(frozen=True)
class Config(TransitionsConfig):
    """The settings of a run on a dataset."""

    n_episodes: int = 1


def test_a_task_learns_in_units_of_the_box(tmp_path: Path) -> None:
    """The bound of its policy is 1, and its evaluator converts actions back."""
    paths = {name: write(tmp_path, name) for name in ("Unit", "Twice", "Uneven")}
    tasks = {name: load_task(Config(env=str(path)), Preparation(normalise=False)) for name, path in paths.items()}
    unit = tasks["Unit"].dataset.actions
    for name, task in tasks.items():
        assert (task.max_action, task.evaluator.units.bound) == (1.0, 1.0)
        np.testing.assert_allclose(task.dataset.actions, unit, atol=1e-6)
        found = task.evaluator(lambda observations: np.full((1, 2), 0.5, np.float32))
        np.testing.assert_allclose(found.returns, 0, atol=1e-5, err_msg=name)
        task.evaluator.close()
    np.testing.assert_array_equal(tasks["Twice"].dataset.actions, unit)


def test_the_data_bound_what_the_environment_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    """In the components without bounds, as one line says; a constant component gets some width."""
    assert action_box(None, UNEVEN, 2, RECORDED) is UNEVEN
    assert not capsys.readouterr().out
    for there in (FREE, None):
        found = action_box(None, there, 2, RECORDED)
        assert (found.low.tolist(), found.high.tolist()) == ([0.5, -1], [4, 1])
        (line,) = capsys.readouterr().out.splitlines()
        assert "no bounds (component 0, 1)" in line
        assert "0.5 to 4, -1 to 1" in line
    half = ActionBox(np.float32([-np.inf, -1]), np.float32([9, 1]))
    assert action_box(None, half, 2, RECORDED).low.tolist() == [0.5, -1]
    still = action_box(None, FREE, 2, np.float32([[3, 1], [3, 2]]))
    assert (still.low.tolist(), still.high.tolist()) == ([2, 1], [4, 2])
    with pytest.raises(InputError, match="set action_low and action_high"):
        action_box(None, FREE, 2)


def test_settings_go_before_environment_and_data(capsys: pytest.CaptureFixture[str]) -> None:
    """One number for all components, or one for each."""
    found = action_box(Config(action_low=(-2.0,), action_high=(1.0, 3.0)), FREE, 2, None)
    assert (found.low.tolist(), found.high.tolist()) == ([-2, -2], [1, 3])
    within = action_box(Config(action_high=(0.5,)), UNEVEN, 2, RECORDED[2:] / 9)
    assert (within.low.tolist(), within.high.tolist()) == ([0, -1], [0.5, 0.5])
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"action_low": (-2.0,)}, "action_low is -2 in component 0, where the environment takes 0 to 5: set it within"),
        ({"action_high": (2.0,)}, "action_high is 2 in component 1, where the environment takes -1 to 1"),
        ({"action_low": (0.5, 0.0), "action_high": (0.5,)}, "action_low must lie below action_high"),
        ({"action_low": (0.0, 0.0, 0.0)}, "action_low has 3 numbers: give one for all components, or 2"),
    ],
)
def test_bounds_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        action_box(Config(**settings), UNEVEN, 2, RECORDED)


def test_finite_actions_have_neither_bounds_nor_scale() -> None:
    finite = Actions(3, finite=True)
    assert action_units(Config(), finite).are_neutral
    with pytest.raises(InputError, match="finite actions have no bounds: leave action_low out"):
        action_units(Config(action_low=(0.0,)), finite)
    with pytest.raises(InputError, match="finite actions have no scale"):
        action_units(Config(action_scaler="min_max"), finite)


def test_data_outside_of_the_box_are_told_of_once(capsys: pytest.CaptureFixture[str]) -> None:
    """But not if it is only rounding; the rows are kept."""
    action_box(None, UNEVEN, 2, RECORDED * np.float32(1.00001))
    assert capsys.readouterr() == ("", "")
    action_box(None, UNEVEN, 2, RECORDED * 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("2 of 3 actions of the dataset lie outside the environment's bounds, by up to 3")
