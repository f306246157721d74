"""The experience of an offline run's online phase: rows, episodes, and continuing an episode that was cut."""

from pathlib import Path

import numpy as np
import pytest

from parity_tests.reference.finetune import ENV_ID, LIMIT
from shared.data.experience import experience_files
from shared.data.online import OnlineExperience
from shared.data.rewards import CorlRewards, Rewards, ScaledRewards
from shared.data.transitions import Batch
from shared.envs.goals import has_goals, is_goal
from shared.envs.stepping import Stepper
from shared.errors import InputError

HOPPER = "d4rl/hopper-v2"


def lived(steps: int, env_id: str = HOPPER, seed: int = 3) -> OnlineExperience:
    """Some steps with random actions."""
    experience = OnlineExperience(Stepper(env_id, 0.5, 2.0, lambda reward: reward - 1), seed, 80, 5)
    go_on(experience, steps)
    return experience


def go_on(experience: OnlineExperience, steps: int) -> None:
    """Takes steps whose noise is determined by their number."""
    while experience.size < steps:
        experience.step(np.random.default_rng(experience.size).uniform(-1, 1, experience.action_dim))


def test_rows_are_normalised_and_rewards_modified_once() -> None:
    rows, raw = lived(30).rows(), OnlineExperience(Stepper(HOPPER), 3, 80, 5)
    go_on(raw, 30)
    np.testing.assert_allclose(rows.observations, (raw.rows().observations - 0.5) / 2, atol=1e-6)
    np.testing.assert_array_equal(rows.paid, raw.rows().paid)
    np.testing.assert_array_equal(rows.rewards, (rows.paid - 1).astype(np.float32))


def test_of_the_ends_only_a_fall_before_the_limit_is_a_terminal() -> None:
    """Of three episodes the first falls, the second is cut, and the third falls on its last permitted step."""
    experience = lived(3 + LIMIT + LIMIT + 1, ENV_ID)
    rows = experience.rows()
    assert np.flatnonzero(rows.terminals).tolist() == [2]
    assert np.flatnonzero(rows.timeouts).tolist() == [2 + LIMIT, 2 + 2 * LIMIT]
    assert [(episode.step, episode.length) for episode in experience.episodes] == [(3, 3), (8, 5), (13, 5)]
    assert experience.episodes[1].earned == pytest.approx(rows.paid[3:8].sum())


def test_regret_is_the_share_of_finished_episodes_without_success() -> None:
    experience = lived(13, ENV_ID)
    experience._rows.goals[:] = False
    experience._rows.goals[5] = True
    experience.episodes, experience._first, experience._failures = [], 0, 0
    for end in (3, 8, 13):
        experience._end(end)
    assert [episode.success for episode in experience.episodes] == [False, True, False]
    assert [episode.regret for episode in experience.episodes] == [1.0, 0.5, pytest.approx(2 / 3)]


@pytest.mark.parametrize("cut", [0, 7, 31])
def test_it_goes_on_in_the_middle_of_an_episode(cut: int, tmp_path: Path) -> None:
    """The steps are bitwise equal, and files that no checkpoint followed are gone."""
    whole, saved = lived(45), lived(cut)
    saved.save(tmp_path)
    go_on(saved, 40)
    saved.save(tmp_path)
    back = OnlineExperience(Stepper(HOPPER, 0.5, 2.0, lambda reward: reward - 1), 3, 80, 5)
    go_on(back, 11)
    back.go_on_from(str(tmp_path / "step_5.pt"), {"step": 5 + cut})
    assert max(experience_files(tmp_path), default=0) == cut
    assert not back.over or cut == 0
    go_on(back, 45)
    for ours, theirs in zip(back.rows(), whole.rows(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert back.episodes == whole.episodes


def chosen(number: int, size: int = 4) -> np.ndarray:
    """A policy's chunk of actions."""
    return np.random.default_rng(number).uniform(-1, 1, (size, 3)).astype(np.float32)


def test_a_chunk_is_played_to_its_end_or_the_episodes() -> None:
    """Of a chunk of four, an episode of three steps takes three, and the next one begins with a new chunk."""
    experience, asked = lived(0, ENV_ID), []
    while experience.size < 11:
        if not len(experience.queue):
            asked.append(experience.size)
            experience.choose(np.zeros((4, experience.action_dim)))
        experience.play()
    assert asked == [0, 3, 7, 8]
    assert len(experience.queue) == 1


def test_steps_know_the_ends_of_episodes() -> None:
    """Falls and time limits."""
    experience = lived(3 + LIMIT + 1, ENV_ID)
    found = experience.in_order(2)
    assert found.last.tolist() == [True, False, False, False, False, True, False]
    assert found.terminals.tolist() == [True, *[False] * 6]
    for ours, theirs in zip(found[:5], experience.transitions(2), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_it_goes_on_in_the_middle_of_a_chunk(tmp_path: Path) -> None:
    """The rest of the chunk comes from the checkpoint; actions of another size are refused."""
    saved = lived(6)
    saved.choose(chosen(1))
    saved.play()
    saved.save(tmp_path)
    back = lived(11)
    back.choose(chosen(2))
    back.go_on_from(str(tmp_path / "step_12.pt"), {"step": 12, "queue": saved.queue})
    np.testing.assert_array_equal(back.queue, chosen(1)[1:])
    back.go_on_from(str(tmp_path / "step_12.pt"), {"step": 12})
    assert back.queue.shape == (0, 3)
    with pytest.raises(InputError, match="is of other actions: set env to its own"):
        back.go_on_from(str(tmp_path / "step_12.pt"), {"step": 12, "queue": chosen(1)[:, :2]})


def test_a_seed_has_its_own_episodes() -> None:
    assert not np.array_equal(lived(1, seed=3).rows().observations, lived(1, seed=4).rows().observations)


@pytest.mark.parametrize(
    ("kind", "env", "expected"),
    [
        (CorlRewards(), "antmaze-umaze-v2", -0.5),
        (CorlRewards(), "pen-cloned-v1", 0.5),
        (CorlRewards(), "hopper-medium-v2", 250.0),
        (ScaledRewards(factor=10.0, shift=-5.0), "antmaze-umaze-v2", 0.0),
        (ScaledRewards(factor=10.0, shift=-5.0), "hopper-medium-v2", 2495.0),
    ],
)
def test_a_steps_reward_is_modified_as_the_datasets(kind: Rewards, env: str, expected: float) -> None:
    rewards = np.array([0.5, 1.0, 0.5, 3.0], np.float32)
    dataset = Batch(None, None, rewards, None, np.array([0, 1, 0, 1], np.float32))
    assert kind.change(dataset, env)(0.5) == expected == pytest.approx(kind.modified(dataset, env).rewards[0])


def test_goals() -> None:
    """Known from the environment's name, or from its rewards."""
    assert has_goals("antmaze-umaze-v2")
    assert has_goals("robotics/pen")
    assert not has_goals("d4rl/hopper-v2")
    assert not is_goal(1.0, {"goal_achieved": False})
    assert is_goal(0.0, {"goal_achieved": True})
    assert (is_goal(0.5, {}), is_goal(0.0, {})) == (True, False)
