"""The `d4rl/...` environments against steps recorded in D4RL's own, on MuJoCo 2.1.0.

There are two such files: one of uniform actions, in which no robot runs, and one of robots at the speeds of good
policies. `tests/envs/record_steps.py` records them.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import gymnasium
import mujoco
import numpy as np
import pytest

from shared.envs import physics
from shared.envs.registry import D4RL_ENVS, fingerprint, make_env
from shared.errors import InputError

RECORDED = Path(__file__).parent / "data" / "d4rl_v2_steps.npz"
FAST = RECORDED.with_name("d4rl_v2_fast_steps.npz")
STOCK = {
    "d4rl/halfcheetah-v2": "HalfCheetah-v4",
    "d4rl/hopper-v2": "Hopper-v4",
    "d4rl/walker2d-v2": "Walker2d-v4",
    "d4rl/ant-v2": "Ant-v4",
}
EXACT_REWARDS = tuple(env_id for env_id in STOCK if env_id != "d4rl/ant-v2")


class Errors(NamedTuple):
    """Per recorded step: largest |observation error|, |reward error|, and whether the end differs."""

    observation: np.ndarray
    reward: np.ndarray
    done: np.ndarray


def replay(env_id: str, name: str, recorded: Path = RECORDED) -> Errors:
    """Sets each recorded state in `env_id`, takes the recorded action, and compares the results with the recording."""
    env = make_env(env_id)
    env.reset(seed=0)
    with np.load(recorded) as file:
        columns = [file[f"{name}_{key}"] for key in ("qpos", "qvel", "act", "obs", "rew", "done")]
    rows = []
    for qpos, qvel, action, next_observation, next_reward, done in zip(*columns, strict=True):
        env.unwrapped.set_state(qpos, qvel)
        observation, reward, terminated, _, _ = env.unwrapped.step(action)
        error = np.abs(observation - next_observation[: len(observation)]).max()  # stock Ant has 27 of 111 entries
        rows.append((error, abs(reward - next_reward), terminated != done))
    return Errors(*np.array(rows).T)


def name_of(env_id: str) -> str:
    """`d4rl/hopper-v2` -> `hopper`, the prefix of its arrays in the recorded file."""
    return env_id.removeprefix("d4rl/").removesuffix("-v2")


def check_observations(errors: Errors) -> None:
    """Fails unless states advance as recorded, up to the differences between runs of the old simulator."""
    assert errors.observation.max() <= 1e-4
    assert np.median(errors.observation) <= 1e-6
    assert not errors.done.any()


def check_rewards(errors: Errors) -> None:
    """Fails unless rewards are as recorded."""
    assert errors.reward.max() <= 1e-6


@pytest.mark.parametrize("env_id", STOCK)
def test_observations_and_ends_are_the_recorded_ones(env_id: str) -> None:
    """Measured maximum and median: HalfCheetah 3e-6, 5e-7; Hopper 1e-7, 4e-8; Walker2d 1e-6, 3e-7; Ant 9e-7, 4e-7."""
    check_observations(replay(env_id, name_of(env_id)))


@pytest.mark.parametrize("env_id", EXACT_REWARDS)
def test_rewards_are_the_recorded_ones(env_id: str) -> None:
    """Measured: 8e-8 at most."""
    check_rewards(replay(env_id, name_of(env_id)))


@pytest.mark.parametrize(
    ("env_id", "speed"),
    [("d4rl/halfcheetah-v2", 6.5), ("d4rl/hopper-v2", 4.0), ("d4rl/walker2d-v2", 4.0), ("d4rl/ant-v2", 3.5)],
)
def test_fast_steps_are_the_recorded_ones(env_id: str, speed: float) -> None:
    """At the forward speeds of good policies in m/s; rewards too, even Ant's, because each step began from a set state.

    Recorded with linear policies trained for speed, pushed at the start of an episode. Measured observation errors,
    maximum and median: HalfCheetah 3e-6, 4e-7; Hopper 9e-8, 4e-8; Walker2d 1e-6, 1e-7; Ant 6e-7, 5e-7; rewards 2e-7 at
    most.
    """
    with np.load(FAST) as file:
        assert file[f"{name_of(env_id)}_qvel"][:, 0].max() > speed
    errors = replay(env_id, name_of(env_id), FAST)
    check_observations(errors)
    check_rewards(errors)


def test_ant_rewards_are_the_recorded_ones_up_to_the_torso_position_before_the_step() -> None:
    """Measured: median 4.8e-4, maximum 6.1e-2; the old simulator compared with itself has a median of 4.9e-4.

    Ant's reward is the torso's progress by `xpos`. `xpos` lags one substep behind the joint positions while an episode
    runs, and is fresh after `set_state`. So a recorded state alone cannot give the recorded reward.
    """
    errors = replay("d4rl/ant-v2", "ant")
    assert np.median(errors.reward) <= 6e-4
    assert errors.reward.max() <= 0.1


def test_ant_rewards_follow_from_the_joint_positions() -> None:
    """The rest of Ant's reward in a running episode: alive bonus 1, half the squared action, no contact cost."""
    env = make_env("d4rl/ant-v2")
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(20):
        action = rng.uniform(-1, 1, 8)
        _, reward, _, _, info = env.step(action)
        assert reward == pytest.approx(info["x_velocity"] + 1 - 0.5 * (action**2).sum(), abs=1e-12)


def test_ant_has_the_contact_forces_that_d4rl_never_filled_in() -> None:
    """111 entries, the last 84 of them 0, in a reset, in a step and in the recorded steps."""
    env = make_env("d4rl/ant-v2")
    first, _ = env.reset(seed=0)
    second = env.step(np.ones(8, np.float32))[0]
    with np.load(RECORDED) as file:
        recorded = file["ant_obs"]
    assert env.observation_space.shape == first.shape == second.shape == recorded.shape[1:] == (111,)
    assert not np.any([first[27:], second[27:], *recorded[:, 27:]])


@pytest.mark.parametrize(("env_id", "stock"), STOCK.items())
def test_stock_environments_fail_the_check(env_id: str, stock: str) -> None:
    """So the check above would notice if nothing were corrected."""
    errors = replay(stock, name_of(env_id))
    with pytest.raises(AssertionError):
        check_observations(errors)
    if env_id in EXACT_REWARDS:
        with pytest.raises(AssertionError):
            check_rewards(errors)


def without_inertias(patch: pytest.MonkeyPatch) -> None:
    """Leaves masses and inertias as today's MuJoCo computes them."""
    patch.setattr(physics, "_restore_inertias", lambda *_: None)


def without_total_mass(patch: pytest.MonkeyPatch) -> None:
    """Leaves HalfCheetah as heavy as its density makes it."""
    patch.setattr(physics.D4RLHalfCheetah, "total_mass", None)


def without_density(patch: pytest.MonkeyPatch) -> None:
    """Gives Ant MuJoCo's default density."""
    patch.setattr(physics.D4RLAnt, "density", 1000.0)


def without_constants(patch: pytest.MonkeyPatch) -> None:
    """Leaves the constants that MuJoCo derived from the masses before they were corrected."""
    patch.setattr(mujoco, "mj_setConst", lambda *_: None)


def without_parallel_axes(patch: pytest.MonkeyPatch) -> None:
    """Adds up the inertias of a body's geoms as if they shared one centre."""
    for name in ("eye", "outer"):
        patch.setattr(np, name, lambda *_: np.zeros((3, 3)))


def with_stale_shortcuts(patch: pytest.MonkeyPatch) -> None:
    """Lets MuJoCo believe that its own inertia frames are still there."""
    restore = physics._restore_inertias

    def keep(model: mujoco.MjModel, *arguments: float | None) -> None:
        shortcuts = model.body_sameframe.copy(), model.geom_sameframe.copy(), model.opt.disableflags
        restore(model, *arguments)
        model.body_sameframe[:], model.geom_sameframe[:], model.opt.disableflags = shortcuts

    patch.setattr(physics, "_restore_inertias", keep)


def with_stale_bounding_boxes(patch: pytest.MonkeyPatch) -> None:
    """Lets MuJoCo look for contacts in bounding boxes in its own inertia frames."""
    restore = physics._restore_inertias

    def keep(model: mujoco.MjModel, *arguments: float | None) -> None:
        flags = model.opt.disableflags
        restore(model, *arguments)
        model.opt.disableflags = flags

    patch.setattr(physics, "_restore_inertias", keep)


@pytest.mark.parametrize(
    ("env_id", "mistake"),
    [
        ("d4rl/walker2d-v2", without_inertias),
        ("d4rl/halfcheetah-v2", without_total_mass),
        ("d4rl/ant-v2", without_density),
        *((env_id, without_constants) for env_id in ("d4rl/hopper-v2", "d4rl/walker2d-v2")),
        ("d4rl/halfcheetah-v2", without_parallel_axes),
        ("d4rl/hopper-v2", with_stale_shortcuts),
        ("d4rl/halfcheetah-v2", with_stale_bounding_boxes),
    ],
)
def test_each_correction_is_needed(
    env_id: str, mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the check above would notice if one part of the correction were dropped."""
    mistake(monkeypatch)
    with pytest.raises(AssertionError):
        check_observations(replay(env_id, name_of(env_id)))


@pytest.mark.parametrize(("version", "factor"), [("3.4.0", 1.0), ("3.5.0", 0.5), ("3.10.1", 0.5), ("4.0.0", 0.5)])
def test_margins_are_halved_where_mujoco_adds_them_up(version: str, factor: float) -> None:
    """From MuJoCo 3.5 on."""
    model = make_env("Hopper-v4").unwrapped.model
    before = model.geom_margin.copy()
    physics._restore_margins(model, version)
    assert before.any()
    np.testing.assert_array_equal(model.geom_margin, factor * before)


@pytest.mark.parametrize("env_id", D4RL_ENVS)
def test_actions_are_clipped_to_their_bounds(env_id: str) -> None:
    """D4RL clips before the simulator and the control cost see an action."""
    env = make_env(env_id)
    steps = []
    for size in (1.0, 3.0):
        env.reset(seed=0)
        steps.append(env.step(np.full(env.action_space.shape, size, np.float32)))
    np.testing.assert_array_equal(steps[0][0], steps[1][0])
    assert steps[0][1] == steps[1][1]


@pytest.mark.parametrize("env_id", D4RL_ENVS)
def test_episodes_end_after_1000_steps(env_id: str) -> None:
    """The time limit is D4RL's, and counts as a truncation."""
    assert make_env(env_id).spec.max_episode_steps == 1000
    if env_id == "d4rl/halfcheetah-v2":
        env = make_env(env_id)
        env.reset(seed=0)
        ends = [env.step(np.zeros(6, np.float32))[2:4] for _ in range(1000)]
        assert ends == [(False, False)] * 999 + [(False, True)]


@pytest.mark.parametrize("env_id", [*D4RL_ENVS, "Hopper-v4", "Hopper-v5"])
def test_making_an_environment_says_nothing(env_id: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Neither Gymnasium's deprecation warning nor a compiler warning of MuJoCo's reaches the user."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_env(env_id)
    assert capfd.readouterr() == ("", "")


def test_only_the_deprecation_warning_is_kept_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any other warning of Gymnasium's still reaches the user."""
    make = gymnasium.make

    def warn_and_make(*arguments: object, **options: object) -> gymnasium.Env:
        warnings.warn("something else is old", DeprecationWarning, stacklevel=2)
        return make(*arguments, **options)

    monkeypatch.setattr(gymnasium, "make", warn_and_make)
    with pytest.warns(DeprecationWarning, match="something else is old"):
        make_env("Hopper-v4")


@pytest.mark.parametrize(
    ("env_id", "nearest"),
    [("hopper-v2", "d4rl/hopper-v2"), ("d4rl/hoper-v2", "d4rl/hopper-v2"), ("Hoper-v5", "Hopper-v5"), ("?", "d4rl/")],
)
def test_unknown_environments_are_answered_with_the_nearest(env_id: str, nearest: str) -> None:
    """One line names the environments that the user may have meant."""
    with pytest.raises(InputError, match=nearest) as caught:
        make_env(env_id)
    assert "\n" not in str(caught.value)


def test_environments_that_gymnasium_no_longer_ships_are_refused_in_one_line() -> None:
    """Gymnasium still lists Hopper-v2, but making it fails."""
    with pytest.raises(InputError, match=r"cannot be made here .*; use d4rl/hopper-v2") as caught:
        make_env("Hopper-v2")
    assert "\n" not in str(caught.value)


def test_hints_name_only_what_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gymnasium lists its v2 and v3 robots without shipping them; Gymnasium-Robotics lists some that need more."""
    monkeypatch.setitem(
        gymnasium.registry,
        "Hopper-v3",
        gymnasium.envs.registration.EnvSpec("Hopper-v3", "gymnasium_robotics.envs.mujoco.hopper_v3:HopperEnv"),
    )
    with pytest.raises(InputError) as caught:
        make_env("Hoper-v3")
    assert "Hopper-v4" in str(caught.value)
    assert "Hopper-v3" not in str(caught.value)


@pytest.mark.parametrize(
    ("env_id", "mass", "exact"),
    [
        ("d4rl/halfcheetah-v2", 14.0, True),
        ("d4rl/hopper-v2", 15.264999, True),
        ("d4rl/walker2d-v2", 22.698007, True),
        ("d4rl/ant-v2", 0.878710, True),
        ("Hopper-v4", 15.820013, False),
        ("Pendulum-v1", None, False),
    ],
)
def test_fingerprint_names_what_a_score_depends_on(env_id: str, mass: float | None, exact: bool) -> None:
    """Total masses distinguish the old inertias from today's; outside MuJoCo there is none."""
    found = fingerprint(env_id, make_env(env_id))
    assert found.pop("total_mass") == pytest.approx(mass, abs=1e-6)
    assert found == {"env": env_id, "mujoco": mujoco.__version__, "d4rl_exact": exact}
