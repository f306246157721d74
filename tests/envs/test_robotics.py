"""Gymnasium-Robotics' environments in D4RL's layout; the mazes against steps recorded in D4RL's own."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from benchmarks.environments import replay
from shared.envs import mazes
from shared.envs.evaluation import Evaluator
from shared.envs.registry import fingerprint, is_d4rl_exact, make_env
from shared.envs.robotics import ENV_OF, ENVS
from shared.envs.scores import scale
from shared.errors import InputError
from shared.names import D4RL_FACTS
from shared.runs.task import load_task
from tests.runs.test_task import Config

RECORDED = Path(__file__).parent / "data" / "d4rl_maze_steps.npz"
MAZES = tuple(name for name in ENVS if "maze" in name)
ANT_MAZES = tuple(name for name in MAZES if "ant" in name)
POINT_MAZES = tuple(name for name in MAZES if "maze2d" in name)
HANDS = tuple(name for name in ENVS if "maze" not in name)
REPLAYED = ("antmaze-umaze", "antmaze-medium", "antmaze-large", "maze2d-umaze", "maze2d-medium", "maze2d-large-dense")


@pytest.mark.parametrize("env_id", ENVS)
def test_sizes_and_time_limits_are_d4rls(env_id: str) -> None:
    """Observations and actions as large as in every dataset scored here, within -1 and 1, and D4RL's time limit."""
    env = make_env(env_id)
    facts = [D4RL_FACTS[name] for name in D4RL_FACTS if ENV_OF.get(name) == env_id]
    assert {(f["obs_dim"], f["act_dim"], f["max_episode_steps"]) for f in facts} == {
        (*env.observation_space.shape, *env.action_space.shape, env.spec.max_episode_steps)
    }
    assert env.reset(seed=0)[0].shape == env.observation_space.shape
    assert (env.action_space.low == -1).all()
    assert (env.action_space.high == 1).all()


@pytest.mark.parametrize("env_id", ["robotics/antmaze-medium", "robotics/maze2d-umaze", *HANDS])
def test_a_seed_decides_the_episode(env_id: str) -> None:
    """Start, goal and every step; another seed gives another start."""

    def episode(seed: int) -> np.ndarray:
        env = make_env(env_id)
        rows = [env.reset(seed=seed)[0]]
        rng = np.random.default_rng(0)
        for _ in range(5):
            observation, reward, *_ = env.step(rng.uniform(-1, 1, env.action_space.shape).astype(np.float32))
            rows.append(np.append(observation[1:], reward))
        return np.array(rows)

    np.testing.assert_array_equal(episode(1), episode(1))
    assert (episode(1)[0] != episode(2)[0]).any()


@pytest.mark.parametrize("env_id", ["robotics/antmaze-umaze", "robotics/maze2d-umaze-dense", "robotics/pen"])
def test_no_return_here_is_a_d4rl_score(env_id: str) -> None:
    """Its scale has another name, and the fingerprint says so."""
    evaluator = Evaluator(env_id, 1, 0, max_steps=3)
    evaluator(lambda observations: np.zeros((1, evaluator.action_dim)))
    assert scale(env_id).metric == "normalized_return_not_d4rl"
    assert not is_d4rl_exact(env_id)
    assert not evaluator.fingerprint["d4rl_exact"]
    assert fingerprint(env_id, make_env(env_id))["total_mass"] > 0
    evaluator.close()


@pytest.mark.parametrize(
    ("dataset_id", "sizes"), [("antmaze-umaze-v2", (29, 8)), ("maze2d-umaze-v1", (4, 2)), ("pen-human-v1", (45, 24))]
)
def test_a_d4rl_dataset_is_scored_here_by_default(
    dataset_id: str, sizes: tuple[int, int], write_hdf5: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_hdf5({}, observations=np.zeros((60, sizes[0])), actions=np.zeros((60, sizes[1])))
    monkeypatch.setenv("D4RL_DATASET_DIR", str(path.parent))
    path.rename(path.parent / Path(D4RL_FACTS[dataset_id]["url_path"]).name)
    task = load_task(Config(env=dataset_id, n_episodes=1))
    assert task.evaluator.fingerprint["env"] == ENV_OF[dataset_id]
    task.evaluator.close()


@pytest.mark.parametrize("env_id", ["robotics/antmaze-umaze", "robotics/pen"])
def test_without_the_package_one_line_names_the_fix(env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium_robotics", None)
    with pytest.raises(InputError, match=r"needs Gymnasium-Robotics: pip install 'corl-twins\[robotics\]'$") as caught:
        make_env(env_id)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("env_id", ["robotics/maze2d-umaze", "robotics/door"])
def test_making_one_says_nothing(env_id: str, capfd: pytest.CaptureFixture[str]) -> None:
    """It prints neither notices nor warnings."""
    make_env(env_id)
    assert capfd.readouterr() == ("", "")


def test_mazes_leave_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gymnasium-Robotics itself would write each maze to a file and leave it there."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for env_id in MAZES:
        make_env(env_id).close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", REPLAYED)
def test_mazes_step_as_recorded(name: str) -> None:
    """docs/guides/environments.md gives the differences; maze2d hits walls, and reaches its maximum speed."""
    with np.load(RECORDED) as file:
        observation, reward, ends_differ = replay(file, name)
    assert observation.max() <= 1e-6
    assert reward.max() <= 1e-9
    assert not ends_differ.any()


@pytest.mark.parametrize(("name", "median"), [("pen", 1e-7), ("door", 1e-7), ("relocate", 1e-7), ("hammer", 5e-3)])
def test_hands_step_as_recorded_where_nothing_is_touched(name: str, median: float) -> None:
    """That is most steps except the hammer's; contacts are today's. Rewards and ends are D4RL's."""
    with np.load(RECORDED.with_name("d4rl_hand_steps.npz")) as file:
        observation, reward, ends_differ = replay(file, name)
    assert np.median(observation) <= median
    assert np.median(reward) <= 1e-6
    assert not ends_differ.any()


@pytest.mark.parametrize("name", REPLAYED)
def test_walls_stand_where_the_recorded_ones_do(name: str) -> None:
    """Exactly the blocks of D4RL's maze."""
    env = make_env(f"robotics/{name}").unwrapped
    ours = env.model.geom_pos[env.model.geom_type == mujoco.mjtGeom.mjGEOM_BOX, :2] - env._origin
    with np.load(RECORDED) as file:
        theirs = file[f"{name}_walls"]
    assert len(ours) == len(theirs)
    assert np.abs(ours[:, None] - theirs).max(axis=2).min(axis=1).max() <= 1e-9


@pytest.mark.parametrize("name", REPLAYED)
def test_starts_and_goals_are_drawn_where_the_recorded_ones_lie(name: str) -> None:
    """The recorded first state and goal are within the range of ours, so both have the same origin and axes."""
    env = make_env(f"robotics/{name}").unwrapped
    starts, goals = zip(*((env.reset(seed=seed)[0], env._goal) for seed in range(300)), strict=True)
    with np.load(RECORDED) as file:
        goal, qpos = file[f"{name}_goal"], file[f"{name}_qpos"][0]
    assert (np.abs(np.array(goals)[:, None] - goal).max(axis=2).min(axis=0) <= 0.2).all()
    start = np.array(starts)[:, : len(qpos)]
    assert (np.abs(start - qpos)[:, :2].max(axis=1) <= 0.2).any()


@pytest.mark.parametrize(
    ("env_id", "cell"),
    [("robotics/antmaze-umaze", (0, 8)), ("robotics/antmaze-medium", (20, 20)), ("robotics/antmaze-large", (32, 24))],
)
def test_antmaze_starts_at_the_origin_and_draws_a_goal_for_each_episode(env_id: str, cell: tuple[int, int]) -> None:
    """As in version 2: up to 1 and up to 0.5 beyond the corner cell's centre along each axis."""
    env = make_env(env_id).unwrapped
    starts, goals = zip(*((env.reset(seed=seed)[0], env._goal) for seed in range(400)), strict=True)
    within = np.array(goals) - cell
    assert (within >= 0).all()
    assert (within <= 1.5).all()
    assert (within.max(axis=0) > 1.3).all()
    np.testing.assert_allclose(within.mean(axis=0), 0.75, atol=0.06)
    noise = np.array(starts) - [0, 0, 0.75, 1, *np.zeros(25)]
    assert (np.abs(noise[:, :15]) <= 0.1).all()
    assert (np.abs(noise[:, :15]).max(axis=0) > 0.09).all()
    np.testing.assert_allclose(noise[:, 15:].std(axis=0), 0.1, rtol=0.2)


@pytest.mark.parametrize("env_id", ANT_MAZES)
def test_antmaze_rewards_and_ends_at_the_goal_alone(env_id: str) -> None:
    """A reward of 1 and the end within 0.5 of the goal; otherwise 0, even for an ant on its back."""
    env = make_env(env_id).unwrapped
    standing, _ = env.reset(seed=0)
    qpos, qvel = standing[:15], np.zeros(14)
    for distance, expected in ((0.45, (1.0, True, False)), (0.55, (0.0, False, False))):
        env.set_state(qpos, qvel, qpos[:2])
        settled = env.step(np.zeros(8))[0][:2]
        env.set_state(qpos, qvel, np.add(settled, [distance, 0]))
        assert env.step(np.zeros(8))[1:4] == expected
    qpos[3:7] = 0, 1, 0, 0
    env.set_state(qpos, qvel, [50, 50])
    assert env.step(np.zeros(8))[1:4] == (0.0, False, False)


@pytest.mark.parametrize(("env_id", "cells"), list(zip(POINT_MAZES, (7, 26, 46, 7, 26, 46), strict=True)))
def test_maze2d_starts_in_any_free_cell(env_id: str, cells: int) -> None:
    """Within 0.1 of the integers by which D4RL counts cells, including the goal's own; the goal never moves."""
    env = make_env(env_id).unwrapped
    starts, goals = zip(*((env.reset(seed=seed)[0], env._goal) for seed in range(600)), strict=True)
    rounded = np.round(np.array(starts)[:, :2])
    assert len(np.unique(rounded, axis=0)) == cells
    assert (np.abs(np.array(starts)[:, :2] - rounded) <= 0.1).all()
    np.testing.assert_allclose(np.array(starts)[:, 2:].std(axis=0), 0.1, rtol=0.15)
    assert {tuple(goal) for goal in goals} == {
        {"umaze": (1, 1), "medium": (6, 6), "large": (7, 9)}[env_id.split("-")[1]]
    }
    assert tuple(goals[0]) in {tuple(row) for row in rounded}


@pytest.mark.parametrize("env_id", POINT_MAZES)
def test_maze2d_rewards_each_step_near_the_goal_and_goes_on(env_id: str) -> None:
    """1 within 0.5 of it, or exp(-distance); only the time limit ends an episode."""
    env = make_env(env_id).unwrapped
    env.reset(seed=0)
    goal = env._goal
    for distance, sparse in ((0.45, 1.0), (0.55, 0.0)):
        env.set_state(goal, np.zeros(2), np.add(goal, [distance, 0]))
        reward = np.exp(-distance) if "dense" in env_id else sparse
        assert env.step(np.zeros(2))[1] == pytest.approx(reward, abs=1e-6)
    whole = make_env(env_id)
    whole.reset(seed=0)
    limit = whole.spec.max_episode_steps
    ends = [whole.step(np.zeros(2, np.float32))[2:4] for _ in range(limit)]
    assert ends == [(False, False)] * (limit - 1) + [(False, True)]


def palm_to_object(env: Any, task: str) -> float:
    """The distance from the palm to the object, in the simulator."""
    hand = env.unwrapped
    if task == "door":
        return np.linalg.norm(hand.data.site_xpos[hand.grasp_site_id] - hand.data.site_xpos[hand.handle_site_id])
    return np.linalg.norm(hand.data.site_xpos[hand.S_grasp_site_id] - hand.data.xpos[hand.obj_body_id])


def d4rl_reward(env: Any, task: str) -> float:
    """D4RL's reward for the simulator's state, computed as its environments do."""
    hand = env.unwrapped
    data = hand.data
    if task == "door":
        angle = data.qpos[hand.door_hinge_addrs]
        bonus = 2 * (angle > 0.2) + 8 * (angle > 1.0) + 10 * (angle > 1.35)
        return -0.1 * palm_to_object(env, task) - 0.1 * (angle - 1.57) ** 2 - 1e-5 * (data.qvel**2).sum() + bonus
    place = data.xpos[hand.obj_body_id]
    if task == "hammer":
        head, nail, goal = (data.site_xpos[i] for i in (hand.tool_site_id, hand.target_obj_site_id, hand.goal_site_id))
        left = np.linalg.norm(nail - goal)
        cost = 0.1 * palm_to_object(env, task) + np.linalg.norm(head - nail) + 10 * left
        cost += 0.01 * np.linalg.norm(data.qvel)
        return 2 * (place[2] > 0.04 and head[2] > 0.04) + 25 * (left < 0.02) + 75 * (left < 0.01) - cost
    if task == "relocate":
        target, palm = data.site_xpos[hand.target_obj_site_id], data.site_xpos[hand.S_grasp_site_id]
        left, reward = np.linalg.norm(place - target), -0.1 * palm_to_object(env, task)
        if place[2] > 0.04:
            reward += 1 - 0.5 * np.linalg.norm(palm - target) - 0.5 * left
        return reward + 10 * (left < 0.1) + 20 * (left < 0.05)
    left = np.linalg.norm(place - data.site_xpos[hand.eps_ball_site_id])
    pen, wanted = (
        data.site_xpos[top] - data.site_xpos[bottom]
        for top, bottom in ((hand.obj_t_site_id, hand.obj_b_site_id), (hand.tar_t_site_id, hand.tar_b_site_id))
    )
    alike = pen @ wanted / np.linalg.norm(pen) / np.linalg.norm(wanted)
    bonus = 10 * (left < 0.075 and alike > 0.9) + 50 * (left < 0.075 and alike > 0.95)
    return alike - left + bonus - 5 * (place[2] < 0.075)


@pytest.mark.parametrize("env_id", HANDS)
def test_hands_earn_d4rls_rewards(env_id: str) -> None:
    """Gymnasium-Robotics would reward the palm for being far from the object."""
    env, task = make_env(env_id), env_id.removeprefix("robotics/")
    rng = np.random.default_rng(0)
    for seed in range(3):
        env.reset(seed=seed)
        for _ in range(40):
            reward = env.step(rng.uniform(-1, 1, env.action_space.shape).astype(np.float32))[1]
            assert reward == pytest.approx(d4rl_reward(env, task), abs=1e-9)


@pytest.mark.parametrize("env_id", HANDS)
def test_observations_of_hands_are_laid_out_as_d4rls(env_id: str) -> None:
    """The joints first, then the object, where the reward's correction looks up the palm's distance."""
    env, task = make_env(env_id), env_id.removeprefix("robotics/")
    env.reset(seed=0)
    observation = env.step(np.full(env.action_space.shape, 0.3, np.float32))[0]
    hand = env.unwrapped
    joints = hand.data.qpos[1:-2] if task == "door" else hand.data.qpos[:-6]
    np.testing.assert_array_equal(observation[: len(joints)], joints)
    if task == "pen":
        np.testing.assert_array_equal(observation[24:27], hand.data.xpos[hand.obj_body_id])
    else:
        between = observation[33:36] - observation[36:39] if task == "hammer" else None
        between = {"door": observation[35:38], "relocate": observation[30:33]}.get(task, between)
        assert np.linalg.norm(between) == pytest.approx(palm_to_object(env, task))


def test_a_dropped_pen_ends_the_episode() -> None:
    """At the first step in which it is below 7.5 cm, with D4RL's penalty of 5."""
    env, rng, dropped = make_env("robotics/pen"), np.random.default_rng(0), 0
    for seed in range(8):
        env.reset(seed=seed)
        action, over = rng.uniform(-1, 1, 24).astype(np.float32), False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(action)
            assert terminated == (observation[26] < 0.075)
            assert not terminated or reward < -3
            dropped, over = dropped + terminated, terminated or truncated
    assert 0 < dropped < 8


@pytest.mark.parametrize("env_id", [name for name in HANDS if name != "robotics/pen"])
def test_other_tasks_end_at_the_time_limit_alone(env_id: str) -> None:
    """After 200 steps, whatever has happened; `info` contains D4RL's key for success."""
    env = make_env(env_id)
    env.reset(seed=0)
    steps = [env.step(np.ones(env.action_space.shape, np.float32)) for _ in range(200)]
    assert [step[2:4] for step in steps] == [(False, False)] * 199 + [(False, True)]
    assert {step[4]["goal_achieved"] for step in steps} <= {True, False}


def test_stock_mazes_fail_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the replay would notice if the ant were Gymnasium's."""
    monkeypatch.setattr(mazes.physics, "restore_physics", lambda *_, **__: None)
    with pytest.raises(AssertionError):
        test_mazes_step_as_recorded("antmaze-umaze")
