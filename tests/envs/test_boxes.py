"""Boxes of actions: mapped actions never leave them, and actions between -1 and 1 are unchanged."""

from collections.abc import Iterator
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from shared.data.experience import Experience, Rows, load_rows
from shared.envs.boxes import NEUTRAL, ActionBox, ActionUnits
from shared.envs.evaluation import Evaluator
from tests.boxed_envs import BOXES, Tune


def box(name: str) -> ActionBox:
    """The box of one of the environments."""
    return ActionBox.of(*(np.array(bound, np.float32) for bound in BOXES[name]))


def units(name: str) -> ActionUnits:
    """The units in which policies act there."""
    return ActionUnits(*box(name).middle_and_half(), box=box(name))


def test_the_units_of_a_box_reach_from_end_to_end() -> None:
    """Exactly: a policy's -1 and 1 are the bounds, and values beyond them because of rounding are clipped."""
    rng = np.random.default_rng(0)
    low, high = np.sort(rng.normal(scale=rng.uniform(0.1, 50, 4000), size=(2, 4000)).astype(np.float32), axis=0)
    many = ActionBox(low, high)
    stretched = ActionUnits(*many.middle_and_half(), box=many)
    assert ((np.ones(4000, np.float32) * stretched.std + stretched.mean) > high).any()
    for actions in (np.ones(4000, np.float32), -np.ones(4000, np.float32), rng.uniform(-1, 1, 4000).astype(np.float32)):
        given = stretched.given(actions)
        assert given.dtype == np.float32
        assert ((low <= given) & (given <= high)).all()
        np.testing.assert_allclose(stretched.learnt(given), actions, atol=2e-5 * np.abs(low / stretched.std).max())
    np.testing.assert_allclose(units("Uneven").given(np.float32([-1, 1])), [0.0, 3.1], rtol=1e-6)


def test_actions_between_minus_1_and_1_are_the_very_array() -> None:
    """No bit can change, because nothing is computed."""
    actions = np.linspace(-1.5, 1.5, 8, dtype=np.float32).reshape(4, 2)
    assert units("Unit").are_neutral
    for neutral in (units("Unit"), NEUTRAL):
        assert neutral.given(actions) is actions
        assert neutral.learnt(actions) is actions
    assert not units("Twice").are_neutral


def test_bounds_without_meaning_are_none() -> None:
    """Gymnasium's spaces use infinity, or the largest number of their precision."""
    largest = np.finfo(np.float32).max
    found = ActionBox.of(np.float32([-1, -largest, -np.inf]), np.float32([1, largest, 3]))
    assert not found.is_finite
    assert found.low.tolist() == [-1, -np.inf, -np.inf]
    assert found.high.tolist() == [1, np.inf, 3]
    assert box("Uneven").is_finite


def test_a_component_without_width_has_units() -> None:
    middle, half = ActionBox(np.float32([2, 0]), np.float32([2, 4])).middle_and_half()
    assert (middle.tolist(), half.tolist()) == ([2, 2], [1, 2])


@pytest.fixture
def exact() -> Iterator[str]:
    """An environment whose bounds are not representable in single precision."""
    gymnasium.register("boxed/Exact-v0", lambda: Tune([-0.1, -0.7], [0.3, 0.1], np.float64), max_episode_steps=3)
    yield "boxed/Exact-v0"
    del gymnasium.registry["boxed/Exact-v0"]


def test_an_evaluation_stays_within_bounds_of_double_precision(exact: str) -> None:
    """In single precision 0.1 and 0.3 are larger, so the environment would refuse them."""
    evaluator = Evaluator(exact, 1, seed=0)
    assert evaluator.actions.box is not None
    evaluator.units = ActionUnits(*evaluator.actions.box.middle_and_half(), box=evaluator.actions.box)
    for value in (-1, 1):
        evaluator(lambda observations, value=value: np.full((1, 2), value, np.float32))
    evaluator.units = NEUTRAL
    evaluator(lambda observations: np.full((1, 2), 9, np.float32))


def test_random_actions_cover_the_box_and_files_hold_the_environments(tmp_path: Path) -> None:
    """Training uses the policy's units, and so does a run that continues."""
    experience = Experience("boxed/Uneven-v0", 200, units=units("Uneven"))
    experience.begin(0)
    uniform = np.random.default_rng(0).uniform(-1, 1, (200, 2)).astype(np.float32)
    uniform[:2] = [[-1, -1], [1, 1]]
    experience.play(lambda observations, noise: noise, (uniform, uniform), 200)
    low, high = box("Uneven").low, box("Uneven").high
    kept = experience.rows().actions
    np.testing.assert_allclose(kept.min(axis=0), low, atol=1e-6)
    np.testing.assert_allclose(kept.max(axis=0), high, atol=1e-6)
    np.testing.assert_allclose(kept.mean(axis=0), (low + high) / 2, atol=0.2)
    np.testing.assert_allclose(experience.transitions().actions, uniform, atol=1e-6)
    experience.save(tmp_path)
    np.testing.assert_array_equal(load_rows(tmp_path, 200, Rows).actions, kept)
    experience.close()
