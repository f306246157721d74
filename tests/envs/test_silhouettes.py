"""Flat robots as images: the picture of a state, and a dataset's pictures equal the environment's."""

from pathlib import Path

import imageio.v2 as imageio
import mujoco
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from shared.data.transitions import read_hdf5
from shared.envs import silhouettes
from shared.envs.evaluation import Evaluator
from shared.envs.registry import make_env
from shared.envs.scores import scale
from shared.errors import InputError
from shared.names import dataset_path

ROBOTS = ("halfcheetah-v2", "hopper-v2", "walker2d-v2")
# Metres per pixel, and how far the lowest one is below the ground
PIXEL, BELOW = 2.0 / silhouettes.SIDE, 0.25


@pytest.mark.parametrize("robot", ROBOTS)
def test_pictures_of_a_datasets_states_are_the_environments(robot: str) -> None:
    """At the start and later; everything else is as in the environment of states."""
    shows, of_states = make_env(f"silhouettes/{robot}"), make_env(f"d4rl/{robot}")
    draw, rng = silhouettes.camera(f"d4rl/{robot}"), np.random.default_rng(0)
    seen, state = shows.reset(seed=3)[0], of_states.reset(seed=3)[0]
    pictures, states = [seen], [state]
    for _ in range(20):
        action = rng.uniform(-1, 1, shows.action_space.shape).astype(np.float32)
        seen, *ours = shows.step(action)
        state, *theirs = of_states.step(action)
        assert ours[:3] == theirs[:3]
        pictures.append(seen)
        states.append(state)
    # In single precision, as in a dataset
    assert_array_equal(pictures, draw(np.array(states, np.float64)))
    assert np.abs(np.array(pictures, int) - draw(np.array(states, np.float32))).max() <= 1
    assert len(np.unique([picture.tobytes() for picture in pictures])) == len(pictures)
    assert shows.observation_space.contains(seen)


@pytest.mark.parametrize("robot", ROBOTS)
def test_limbs_stand_where_the_simulator_has_them(robot: str) -> None:
    """A limb in front has the right brightness; the sky is black, the ground grey. The camera follows."""
    env = make_env(f"d4rl/{robot}")
    env.reset(seed=1)
    for _ in range(8):
        state = env.step(env.action_space.sample() * 0 + 0.5)[0]
    model, data = env.unwrapped.model, env.unwrapped.data
    assert abs(data.qpos[0]) > 1e-3
    picture = silhouettes.camera(f"d4rl/{robot}")(state[None])[0, 0]
    limbs = np.flatnonzero(model.geom_type == mujoco.mjtGeom.mjGEOM_CAPSULE)
    centres = data.geom_xpos[limbs] - [data.qpos[0], 0.0, 0.0]
    columns = np.floor((centres[:, 0] + 1.0) / PIXEL).astype(int)
    rows = np.floor((2.0 - BELOW - centres[:, 2]) / PIXEL).astype(int)
    levels = np.linspace(255.0, 128.0, len(limbs))
    # No later limb hides the last one.
    assert picture[rows[-1], columns[-1]] == pytest.approx(levels[-1], abs=1)
    assert (picture[rows, columns] >= 128).all()
    assert picture[0].max() == 0
    assert (picture[-int(BELOW / PIXEL) + 2 :, [0, -1]] == 64).all()


def test_an_evaluator_sees_stacks_and_reports_d4rls_score() -> None:
    evaluator = Evaluator("silhouettes/hopper-v2", n_episodes=2, seed=0, frame_stack=3)
    assert evaluator.state_dim == (3, silhouettes.SIDE, silhouettes.SIDE)
    assert scale("silhouettes/hopper-v2") == scale("d4rl/hopper-v2")
    assert scale("silhouettes/hopper-v2").metric == "d4rl_normalized_score"
    sights = []

    def policy(observations: np.ndarray) -> np.ndarray:
        sights.append(observations)
        return np.zeros((2, 3), np.float32)

    states = Evaluator("d4rl/hopper-v2", n_episodes=2, seed=0)
    assert_array_equal(evaluator(policy).outcomes, states(lambda _: np.zeros((2, 3), np.float32)).outcomes)
    # The frames before the first picture are empty.
    assert not sights[0][:, :2].any()
    assert_array_equal(sights[1][:, 1], sights[0][:, 2])
    evaluator.close()
    states.close()


def test_other_states_cannot_be_drawn() -> None:
    with pytest.raises(InputError, match=r"states of d4rl/ant-v2 cannot be drawn: take a dataset of d4rl/"):
        silhouettes.camera("d4rl/ant-v2")


def test_the_page_shows_what_is_drawn() -> None:
    """Eight states of each robot, one row of pictures per robot, at twice the size."""
    strips = []
    for robot in ("hopper", "walker2d", "halfcheetah"):
        states = read_hdf5(dataset_path(f"mini/{robot}-medium-expert"))["observations"][100:196:12]
        strips.append(np.concatenate(list(silhouettes.camera(f"d4rl/{robot}-v2")(states)[:, 0]), axis=1))
    drawn = np.kron(np.concatenate(strips), np.ones((2, 2)))
    page = imageio.imread(Path(__file__).resolve().parents[2] / "docs" / "figures" / "silhouettes.png")
    assert page.shape == drawn.shape
    assert np.abs(page - drawn).max() <= 1
