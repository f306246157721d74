"""Environments that show images: bytes with channels first, stacks of frames, MinAtar's games, and refused images."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import imageio.v2 as imageio
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from numpy.testing import assert_array_equal

from shared.data.experience import Experience, load_rows
from shared.envs import film
from shared.envs.evaluation import Evaluator
from shared.envs.registry import make_env
from shared.envs.stepping import Stepper
from shared.errors import InputError

GAME = "MinAtar/SpaceInvaders-v1"


class Frames(gymnasium.Env):
    """Shows one frame after another, in several layouts and types; an episode has four steps."""

    action_space = Discrete(2)

    def __init__(self, shape: tuple[int, ...], dtype: type) -> None:
        self.observation_space = Box(0, 1 if dtype is np.bool_ else 255, shape, dtype)
        self._frames = np.random.default_rng(0).integers(0, 2 if dtype is np.bool_ else 256, (5, *shape)).astype(dtype)

    def reset(self, **_: Any) -> tuple:
        """Returns the first frame."""
        self._steps = 0
        return self._frames[0], {}

    def step(self, action: Any) -> tuple:
        """Returns the next frame."""
        self._steps += 1
        return self._frames[self._steps], 1.0, self._steps == 4, False, {}

    @property
    def frames(self) -> np.ndarray:
        """All five frames."""
        return self._frames


@pytest.fixture(params=[((6, 5, 2), np.uint8), ((2, 6, 5), np.uint8), ((6, 5, 3), np.bool_)], ids=str)
def kind(request: pytest.FixtureRequest) -> Iterator[tuple[str, np.ndarray]]:
    """The name of an environment, and its frames as bytes with channels first."""
    shape, dtype = request.param
    frames = Frames(shape, dtype).frames
    gymnasium.register("Frames-v0", entry_point=lambda **_: Frames(shape, dtype))
    frames = frames if shape[0] == 2 else np.moveaxis(frames, -1, 1)
    yield "Frames-v0", frames.astype(np.uint8) * (255 if dtype is np.bool_ else 1)
    del gymnasium.registry["Frames-v0"]


def test_images_have_their_channels_first(kind: tuple[str, np.ndarray]) -> None:
    """Whatever the environment's own layout; a bit is 0 or 255."""
    env_id, frames = kind
    env = make_env(env_id)
    assert env.observation_space == Box(0, 255, frames.shape[1:], np.uint8)
    shown = [env.reset()[0], *(env.step(0)[0] for _ in range(4))]
    assert_array_equal(shown, frames)
    assert all(each.dtype == np.uint8 for each in shown)


@pytest.mark.parametrize("frame_stack", [1, 3])
def test_a_policy_sees_the_last_frames(kind: tuple[str, np.ndarray], frame_stack: int) -> None:
    """The oldest first, and black before the first frame: in an evaluation, and in recorded steps."""
    env_id, frames = kind
    black = np.zeros((frame_stack - 1, *frames.shape[1:]), np.uint8)
    expected = [np.concatenate(np.concatenate([black, frames])[step : step + frame_stack]) for step in range(5)]
    seen: list[np.ndarray] = []

    def policy(observations: np.ndarray) -> np.ndarray:
        seen.append(observations[0])
        return np.zeros(len(observations), np.int64)

    evaluator = Evaluator(env_id, 1, seed=0, frame_stack=frame_stack)
    assert evaluator.state_dim == expected[0].shape
    assert evaluator(policy).returns.tolist() == [4.0]
    assert_array_equal(seen, expected[:4])
    assert seen[0].dtype == np.uint8
    experience = Experience(env_id, 4, frame_stack)
    experience.begin(0)
    for _ in range(4):
        experience.step(np.array(0))
    rows = experience.rows()
    assert_array_equal(rows.observations, expected[:4])
    assert_array_equal(rows.next_observations, expected[1:])
    assert rows.observations.dtype == rows.next_observations.dtype == np.uint8
    evaluator.close()
    experience.close()


def test_steps_are_kept_in_files(kind: tuple[str, np.ndarray], tmp_path: Path) -> None:
    """The files store them as bytes."""
    env_id, frames = kind
    experience = Experience(env_id, 4)
    experience.begin(0)
    for _ in range(4):
        experience.step(np.array(1))
    experience.save(tmp_path)
    again = load_rows(tmp_path, 4, type(experience.rows()))
    assert_array_equal(again.observations, frames[:4])
    assert again.observations.dtype == np.uint8
    experience.close()


def test_vectors_are_not_stacked() -> None:
    for make in (lambda: Evaluator("CartPole-v1", 1, 0, frame_stack=2), lambda: Stepper("CartPole-v1", frame_stack=2)):
        with pytest.raises(InputError, match="only images can be stacked: set frame_stack to 1"):
            make()


def trace(env: gymnasium.Env, seed: int) -> list[np.ndarray]:
    """The observations of an episode with fixed actions."""
    shown = [env.reset(seed=seed)[0]]
    shown += [env.step(1)[0] for _ in range(30)]
    return shown


def test_a_game_follows_from_its_seed_alone() -> None:
    """Otherwise the previous episode's last action would stick to the next one's first step, in one of ten steps."""
    used, fresh = make_env(GAME), [make_env(GAME) for _ in range(12)]
    assert used.observation_space == Box(0, 255, (6, 10, 10), np.uint8)
    for seed, env in enumerate(fresh):
        assert_array_equal(trace(used, seed), trace(env, seed))


def test_games_have_all_actions_or_those_that_matter_and_a_time_limit() -> None:
    """Version 0 and version 1."""
    every, few = (make_env(f"MinAtar/SpaceInvaders-v{version}") for version in (0, 1))
    assert (every.action_space, few.action_space) == (Discrete(6), Discrete(4))
    assert every.spec is not None
    assert every.spec.max_episode_steps == 1000


def test_a_game_without_its_package_says_what_to_install() -> None:
    """In one line; other environments do not need the package."""
    code = (
        "import sys; sys.modules['minatar'] = None; from shared.envs.registry import make_env; make_env('CartPole-v1');"
        f"make_env('{GAME}')"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr
    assert told.strip().splitlines()[-1].endswith("needs its package: pip install 'corl-twins[minatar]'")


def test_a_game_can_be_filmed(tmp_path: Path) -> None:
    """With the package's own pictures, large enough to be seen."""
    with film.film(tmp_path / "game.gif") as make:
        trace(make(GAME), seed=0)
    frames = imageio.mimread(tmp_path / "game.gif")
    assert len(frames) > 10
    assert frames[0].shape[:2] == (240, 240)
    assert len({frame.tobytes() for frame in frames}) > 5
