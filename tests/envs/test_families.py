"""Facts about environments that are known from their names, and whether they are true."""

import gymnasium
import numpy as np
import pytest

from shared import names
from shared.data.rewards import is_antmaze, is_locomotion
from shared.envs import terminations
from shared.envs.families import TABLE, known, termination
from shared.envs.goals import has_goals
from shared.envs.registry import make_env, time_limit
from shared.envs.scores import scale
from shared.errors import InputError

STEPS = 3000
# Gymnasium has only the names of its old versions. D4RL's own environments need the old `gym`.
HERE = [name for name, spec in gymnasium.registry.items() if isinstance(spec.entry_point, str) and name[:4] != "gym/"]
# Gymnasium-Robotics, if a test has imported it, adds robots that need mujoco_py.
HERE = [name for name in HERE if "/" in name or not name.endswith(("-v2", "-v3"))]
# Gymnasium-Robotics registers them once it is imported.
ADROIT = [f"gymnasium_robotics:{name}" for name in TABLE if name.startswith("AdroitHand") and name.endswith("v1")]
# Gymnasium can make this one only with MuJoCo 2.
RULED = [name for name in HERE if name in TABLE and TABLE[name].terminated is not None and name != "Pusher-v4"]
WITH_A_RULE = [*RULED, *ADROIT]


def _stepped(env_id: str) -> tuple[np.ndarray, np.ndarray]:
    """The states (N, S) after random steps, in a model's single precision, and where episodes ended (N,)."""
    env = make_env(env_id)
    env.action_space.seed(0)
    env.reset(seed=0)
    states, ends = [], []
    for _ in range(STEPS):
        state, _, terminated, truncated, _ = env.step(env.action_space.sample())
        states.append(state)
        ends.append(bool(terminated))
        if terminated or truncated:
            env.reset()
    env.close()
    return np.array(states), np.array(ends)


@pytest.mark.thorough
@pytest.mark.parametrize("env_id", WITH_A_RULE)
def test_a_rule_ends_the_episodes_that_the_environment_ends(env_id: str) -> None:
    """No more and no fewer, over the same random steps; a start after an end is not counted."""
    states, ends = _stepped(env_id)
    found = termination(env_id)(states)
    assert int((found & ~ends).sum()) == 0
    assert int((~found & ends).sum()) == 0


@pytest.mark.parametrize("env_id", ["InvertedPendulum-v5", "Hopper-v5"])
def test_some_random_episodes_do_end(env_id: str) -> None:
    """Otherwise the test above would show nothing."""
    assert _stepped(env_id)[1].sum() > 50


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("Humanoid-v5", "humanoid"),
        ("HumanoidStandup-v5", "humanoidstandup"),
        ("InvertedPendulum-v4", "invertedpendulum"),
        ("Pendulum-v1", "pendulum"),
        ("antmaze-umaze-v2", "antmaze"),
        ("gym/ant-medium-v2", "ant"),
        ("robotics/pen", "pen"),
        ("silhouettes/hopper-v2", "hopper"),
        ("gymnasium:Walker2d-v5", "walker2d"),
        ("ogbench/pointmaze-giant-singletask-v0", "ogbench"),
    ],
)
def test_a_family_is_told_by_the_whole_name(name: str, family: str) -> None:
    facts = known(name)
    assert facts is not None
    assert facts.family == family


@pytest.mark.parametrize(
    "name",
    [
        "own/Plant-v0",
        "own/OpenValve-v0",
        "tests.own_envs:own/Plant-v0",
        "my-hopper-v0",
        "Hopper",
        "mini/hopper-of-mine",
    ],
)
def test_nothing_is_known_of_names_that_contain_a_known_one(name: str) -> None:
    assert known(name) is None
    assert not any(asked(name) for asked in (is_locomotion, is_antmaze, has_goals))
    assert scale(name).bounds is None
    with pytest.raises(InputError, match=r"set termination to none .* or to module:function"):
        termination(name)


def test_a_pendulum_has_no_goal() -> None:
    """Although its name starts like that of a pen."""
    assert not has_goals("Pendulum-v1")


@pytest.mark.parametrize(
    "env_id", ["ogbench/antmaze-giant-singletask-v0", "robotics/antmaze-umaze", "AdroitHandPen-v1"]
)
def test_where_states_do_not_show_the_goal_they_do_not_tell_the_end(env_id: str) -> None:
    with pytest.raises(InputError, match="nothing tells from a state"):
        termination(env_id)


@pytest.mark.parametrize("name", names.D4RL_FACTS)
def test_every_dataset_of_d4rls_has_its_row(name: str) -> None:
    """The families that CORL's programs find in the names; none of these names contains another family's."""
    words = ("halfcheetah", "hopper", "walker2d")
    assert is_locomotion(name) == any(word in name for word in words)
    assert is_antmaze(name) == ("antmaze" in name)
    assert known(name) == known(f"gym/{name}")
    assert time_limit(f"gym/{name}") == names.D4RL_FACTS[name]["max_episode_steps"]


def test_the_tables_time_limits_are_the_environments() -> None:
    # The genuine D4RL is not installed, and other tests of the same process register made-up environments.
    left_out = ("gym/", "reference/")
    ours = {name: facts for name, facts in TABLE.items() if facts.max_episode_steps and name in gymnasium.registry}
    limits = {name: gymnasium.spec(name).max_episode_steps for name in ours if not name.startswith(left_out)}
    assert len(limits) > 15
    assert limits == {name: ours[name].max_episode_steps for name in limits}


@pytest.mark.parametrize("given", ["none", "tests.own_envs:over_the_edge"])
def test_a_rule_of_ones_own(given: str) -> None:
    states = np.array([[0.0, 1.0], [0.4, 0.0]])
    expected = [False, given != "none"]
    assert termination("own/Ledge-v0", given)(states).tolist() == expected
    # The setting overrides what is known.
    assert termination("Hopper-v5", "none") is terminations.never


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("over_the_edge", "write it as module:function"),
        ("nowhere_at_all:rule", "needs the module 'nowhere_at_all', which is not here"),
        ("tests.own_envs:rule", "has no function 'rule'"),
    ],
)
def test_a_rule_that_is_not_there_is_answered_with_the_fix(given: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        termination("own/Ledge-v0", given)
