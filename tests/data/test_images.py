"""Datasets of images: every frame is stored once, stacks are made on reading, and unsuitable data get one line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from numpy.testing import assert_array_equal

from corl_jax import td3_bc
from corl_jax.discrete import cql
from shared.data import minari_sets, nsteps, sources, transitions
from shared.data.images import Stacks, stacked_rows
from shared.data.transitions import Batch
from shared.envs.images import pictured
from shared.envs.spaces import spaces_of
from shared.errors import InputError
from shared.frameworks import jax_data, torch_data
from shared.runs.task import Preparation, load_task

WriteHDF5 = Callable[..., Path]
SIZE, SHAPE = 12, (2, 4, 3)
# Three episodes: one ends in a terminal row, one by its time limit, and the last one is unfinished.
TERMINALS, TIMEOUTS = np.arange(SIZE) == 4, np.arange(SIZE) == 8
BLACK = np.zeros(SHAPE, np.uint8)


def frames(dtype: type = np.uint8) -> np.ndarray:
    """Images (N, C, H, W), none of them black."""
    rng = np.random.default_rng(0)
    images = rng.integers(1, 256, (SIZE, *SHAPE)) if dtype is np.uint8 else rng.random((SIZE, *SHAPE)) < 0.5
    return images.astype(dtype)


def raw_images(**others: Any) -> dict[str, np.ndarray]:
    """A dataset's arrays."""
    rewards = np.arange(SIZE, dtype=np.float32)
    columns = {"observations": frames(), "actions": np.arange(SIZE) % 2, "rewards": rewards}
    return {**columns, "terminals": TERMINALS, "timeouts": TIMEOUTS, **others}


def stack_of(*rows: int | None) -> np.ndarray:
    """The frames of these rows, stacked along the channels; None is black."""
    images = frames()
    return np.concatenate([BLACK if row is None else images[row] for row in rows])


@pytest.fixture
def image_file(write_hdf5: WriteHDF5) -> Callable[..., str]:
    """Writes a dataset of images and returns its file's name."""

    def write(**others: Any) -> str:
        return str(write_hdf5(attributes={"env_id": "MinAtar/SpaceInvaders-v1"}, **raw_images(**others)))

    return write


def test_rows_and_stacks() -> None:
    """Every row's stack, the oldest frame first: black before an episode's first frame, and after a terminal row.

    Rows that a time limit ended and the last row are dropped.
    """
    shown, following = stacked_rows(raw_images(), TERMINALS | TIMEOUTS, 3)
    firsts = {row: 0 if row < 5 else 5 if row < 9 else 9 for row in range(SIZE)}

    def stack(row: int, first: int) -> np.ndarray:
        return stack_of(*(r if r >= first else None for r in range(row - 2, row + 1)))

    for row, first in firsts.items():
        assert_array_equal(shown[row], stack(row, first))
        # A time limit ended row 8, and the state after row 11 is unknown.
        ended = row in (4, 8, 11)
        assert_array_equal(following[row], stack_of(None, None, None) if ended else stack(row + 1, first))
    dataset = transitions.extract_transitions(raw_images(), frame_stack=3)
    kept = np.array([0, 1, 2, 3, 4, 5, 6, 7, 9, 10])
    assert_array_equal(dataset.observations[:], shown[kept])
    assert_array_equal(dataset.next_observations[:], following[kept])
    assert_array_equal(dataset.actions, kept % 2)
    assert_array_equal(dataset.terminals, kept == 4)


@pytest.mark.parametrize("shape", [(84, 84), (84, 84, 4), (210, 160, 3), (12, 8, 8)])
def test_channels_stand_first_wherever_they_stood(shape: tuple[int, ...], image_file: Callable[..., str]) -> None:
    """In a file and in an environment: a box with these axes, and rows of it."""
    rows = np.random.default_rng(0).integers(0, 256, (SIZE, *shape), np.uint8)
    expected = rows[:, None] if len(shape) == 2 else rows if shape == (12, 8, 8) else np.moveaxis(rows, 3, 1)
    assert_array_equal(sources.read(image_file(observations=rows)).raw["observations"], expected)
    shown = pictured(Shows(rows))
    assert shown.observation_space.shape == expected.shape[1:]
    assert spaces_of("any", shown)[0] == expected.shape[1:]
    for row in expected:
        assert_array_equal(shown.reset()[0], row)


class Shows(gymnasium.Env):
    """Shows rows of images, one per episode."""

    def __init__(self, rows: np.ndarray) -> None:
        self.observation_space = Box(0, 255, rows.shape[1:], np.uint8)
        self.action_space = Discrete(2)
        self._rows = iter(rows)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Returns the next row."""
        return next(self._rows), {}


def test_stacks_share_their_frames() -> None:
    """A dataset of stacks stores each frame once for both columns, on each device too."""
    dataset = transitions.extract_transitions(raw_images(), frame_stack=4)
    assert dataset.observations.frames is dataset.next_observations.frames
    assert len(dataset.observations.frames) == SIZE + 1
    ours = torch_data.to_device(dataset, torch.device("cpu"))
    theirs = jax_data.to_device(dataset).images
    assert ours.observations.frames is ours.next_observations.frames
    assert theirs["observations"].frames is theirs["next_observations"].frames
    assert ours.observations.frames.dtype == torch.uint8
    assert theirs["observations"].frames.dtype == jnp.uint8


@pytest.mark.parametrize("frame_stack", [1, 3])
def test_batches_are_equal_in_both_frameworks(frame_stack: int) -> None:
    """Bytes on both sides, in one row and in windows of rows."""
    dataset = transitions.extract_transitions(raw_images(), frame_stack=frame_stack)
    tensors, packed = torch_data.to_device(dataset, torch.device("cpu")), jax_data.to_device(dataset)
    assert len(packed) == len(dataset.rewards)
    for indices in (np.array([9, 0, 4, 4]), np.array([[1, 2], [3, 8]])):
        ours = torch_data.take(tensors, torch.as_tensor(indices))
        theirs = jax_data.take(packed, jnp.asarray(indices))
        for name in Batch._fields:
            expected = getattr(dataset, name)[indices]
            assert_array_equal(getattr(ours, name).numpy(), expected)
            assert_array_equal(getattr(theirs, name), expected)
        assert (ours.observations.dtype, theirs.observations.dtype) == (torch.uint8, jnp.uint8)
        assert (ours.rewards.dtype, theirs.rewards.dtype) == (torch.float32, jnp.float32)


def test_rows_are_overwritten() -> None:
    """On both devices, for columns of images as for all others."""
    columns = Batch(frames(), np.arange(SIZE), np.zeros(SIZE), frames()[::-1].copy(), np.zeros(SIZE))
    new = Batch(*(column[:2] for column in columns))._replace(rewards=np.array([7.0, 8.0]))
    ours = torch_data.store(torch_data.to_device(columns, torch.device("cpu")), new, 5)
    theirs = jax_data.take(jax_data.store(jax_data.to_device(columns), new, 5), jnp.arange(SIZE))
    for name in Batch._fields:
        expected = getattr(columns, name).copy()
        expected[5:7] = getattr(new, name)
        assert_array_equal(getattr(ours, name).numpy(), expected)
        assert_array_equal(getattr(theirs, name), expected)


def test_several_steps() -> None:
    """The observation several rows later within the episode; after a terminal row it is black."""
    dataset = nsteps.extract_n_steps(raw_images(), n_steps=3, discount=0.9, frame_stack=2)
    assert_array_equal(dataset.observations[1], stack_of(0, 1))
    assert_array_equal(dataset.next_observations[1], stack_of(3, 4))
    # Row 2's three steps end in the terminal state, those of row 6 in the last one before the time limit.
    assert_array_equal(dataset.next_observations[2], stack_of(None, None))
    assert_array_equal(dataset.next_observations[6], stack_of(7, 8))
    assert dataset.terminals[2] == 1.0
    assert dataset.terminals[6] == pytest.approx(1.0 - 0.9)


def test_a_stack_deeper_than_every_episode_is_refused() -> None:
    """It would always contain black frames; the longest episode has five rows."""
    transitions.extract_transitions(raw_images(), frame_stack=5)
    with pytest.raises(InputError, match="frame_stack 6 is more than the 5 rows of the longest episode: lower it"):
        transitions.extract_transitions(raw_images(), frame_stack=6)


def test_what_comes_after_a_time_limit_where_it_is_known() -> None:
    """As in Minari's datasets: no row is dropped, and the last next observation occurs in no other row."""
    after = 255 - frames()
    dataset = transitions.extract_transitions(raw_images(next_observations=after), frame_stack=2)
    assert len(dataset.rewards) == SIZE
    assert_array_equal(dataset.next_observations[8], np.concatenate([frames()[8], after[8]]))
    assert_array_equal(dataset.next_observations[11], np.concatenate([frames()[11], after[11]]))
    assert_array_equal(dataset.next_observations[4], stack_of(None, None))
    assert_array_equal(dataset.next_observations[2], stack_of(2, 3))


@pytest.mark.parametrize("dtype", [np.uint8, np.bool_])
def test_a_file_of_images(image_file: Callable[..., str], dtype: type) -> None:
    """Bytes stay the same, and bits become 0 and 255."""
    images = frames(dtype)
    raw = sources.read(image_file(observations=images)).raw
    assert raw["observations"].dtype == np.uint8
    assert_array_equal(raw["observations"], images if dtype is np.uint8 else np.where(images, 255, 0))


def test_channels_of_minaris_images_come_first() -> None:
    """Whether they come first or last in the environment."""

    class Episode:
        observations = np.moveaxis(frames(), 1, -1)
        actions = np.arange(SIZE - 1) % 2
        rewards = np.zeros(SIZE - 1)
        terminations = np.arange(SIZE - 1) == SIZE - 2
        truncations = np.zeros(SIZE - 1, bool)

    raw = minari_sets.join([Episode()])
    assert_array_equal(raw["observations"], frames()[:-1])
    assert_array_equal(raw["next_observations"], frames()[1:])


@pytest.mark.parametrize(
    ("images", "told"),
    [
        (frames().astype(np.float32), "have shape (12, 2, 4, 3) and type float32; write vectors as (rows, size)"),
        (frames()[..., :0], "have shape (12, 2, 4, 0) and type uint8"),
    ],
)
def test_what_is_no_image_is_refused(image_file: Callable[..., str], images: np.ndarray, told: str) -> None:
    with pytest.raises(InputError) as caught:
        sources.read(image_file(observations=images))
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "of_images", "told"),
    [
        ({}, True, r"observations of dataset .* are images \(2, 4, 3\): set encoder to nature or minatar"),
        ({"encoder": "minatar", "observation_scaler": "standard"}, True, "set observation_scaler to none"),
        ({"encoder": "nature"}, False, "are vectors, which encoder nature cannot read: set encoder to none"),
        ({"crop_padding": 4}, False, "are vectors, and only images can be cropped: set crop_padding to 0"),
        ({"frame_stack": 4}, False, "only images can be stacked: set frame_stack to 1"),
    ],
)
def test_settings_that_do_not_fit(
    image_file: Callable[..., str], settings: dict[str, Any], of_images: bool, told: str
) -> None:
    """Images, or the vectors of the default dataset."""
    config = cql.TrainConfig(**({"env": image_file()} if of_images else {}), **settings)
    with pytest.raises(InputError, match=told):
        load_task(config, Preparation(normalise=False, finite=True))


def test_an_algorithm_without_encoders_reads_no_images(image_file: Callable[..., str]) -> None:
    """Whatever its actions are; the line does not name a setting that the algorithm lacks."""
    config = td3_bc.TrainConfig(env=image_file(actions=np.zeros((SIZE, 3))))
    with pytest.raises(InputError, match="are images, which this algorithm cannot read: set env to another"):
        load_task(config)


def test_stacks_are_read_as_any_array() -> None:
    """By a single row, a slice or a mask."""
    stacks = Stacks(frames(), np.array([[0, 1], [1, 2], [5, 3]]))
    assert_array_equal(stacks[2], np.concatenate([frames()[5], frames()[3]]))
    assert_array_equal(stacks[:2], np.stack([stacks[0], stacks[1]]))
    assert_array_equal(stacks[np.array([True, False, True])], np.stack([stacks[0], stacks[2]]))
    assert_array_equal(stacks.take(np.array([2]))[0], stacks[2])
    assert (len(stacks), stacks.shape, stacks.dtype) == (3, (3, 4, 4, 3), np.uint8)
