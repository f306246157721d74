"""The experience of an online run: rows, files, the copy on the device, and the first updates."""

from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
import torch

from shared.data.experience import Experience, Rows, load_rows
from shared.data.transitions import Batch
from shared.errors import InputError
from shared.frameworks import jax_data, torch_data
from shared.frameworks.twins import load_twin

SHORT = {
    "env": "d4rl/hopper-v2",
    "max_timesteps": 40,
    "eval_freq": 20,
    "random_steps": 16,
    "update_every": 8,
    "batch_size": 4,
    "hidden_dim": 8,
    "n_episodes": 2,
    "device": "cpu",
    "seed": 3,
}


def lived(steps: int, *seeds: int, capacity: int = 50) -> Experience:
    """Some steps with random actions in Hopper."""
    experience = Experience("d4rl/hopper-v2", capacity)
    experience.begin(*seeds)
    rng = np.random.default_rng(0)
    for _ in range(steps):
        experience.step(rng.uniform(-1, 1, 3))
    return experience


def same(first: Rows, second: Rows) -> None:
    """Checks that every number is equal."""
    for name, ours, theirs in zip(Rows._fields, first, second, strict=True):
        np.testing.assert_array_equal(ours, theirs, err_msg=name)


# ---- rows ----------------------------------------------------------------------------------------------------------


def test_rows_follow_from_one_another() -> None:
    """A row's next state is the next row's state unless an episode ends; the simulator's state is the row's own."""
    rows = lived(50, 0, 0).rows()
    over = rows.terminals | rows.timeouts
    assert over.any()
    assert not over.all()
    within = np.flatnonzero(~over[:-1])
    np.testing.assert_array_equal(rows.next_observations[within], rows.observations[within + 1])
    for row in np.flatnonzero(over[:-1]):
        assert (rows.next_observations[row] != rows.observations[row + 1]).any()
    state = np.concatenate([rows.qpos[:, 1:], rows.qvel.clip(-10, 10)], axis=1)
    np.testing.assert_allclose(state, rows.observations, rtol=0, atol=1e-6)


def test_an_episode_follows_from_its_seeds_alone() -> None:
    """Whatever happened before it."""
    first, other = lived(20, 1, 100), lived(7, 2, 0)
    other.begin(1, 100)
    rng = np.random.default_rng(0)
    for _ in range(20):
        other.step(rng.uniform(-1, 1, 3))
    same(first.rows(), other.rows(7))
    assert (lived(1, 1, 101).rows().observations != first.rows().observations[:1]).any()


def test_what_is_cut_is_a_timeout_but_for_a_fall() -> None:
    """No other row is a timeout."""
    for steps in range(1, 40):
        experience = lived(steps, 0, 0)
        before = experience.rows().timeouts.copy()
        assert not before.any()
        experience.cut()
        rows = experience.rows()
        assert rows.timeouts[-1] != rows.terminals[-1]
        assert rows.timeouts.sum() <= 1


def test_a_time_limit_is_no_terminal_and_the_learner_keeps_its_row() -> None:
    """HalfCheetah's episodes end after 1000 steps; the state after the last step is its true next state."""
    experience = Experience("d4rl/halfcheetah-v2", 1001)
    experience.begin(0)
    for _ in range(1001):
        experience.step(np.zeros(6))
    rows = experience.rows()
    assert np.flatnonzero(rows.timeouts).tolist() == [999]
    batch = experience.transitions()
    assert len(batch.rewards) == 1001
    assert not batch.terminals.any()
    assert (batch.next_observations[999] != batch.observations[1000]).any()


def test_exploration_is_uniform_first_then_the_policys() -> None:
    """The switch comes at the right step, even in the middle of a block."""
    experience, asked = lived(0, 0), []

    def policy(observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
        asked.append((observation.shape, noise.shape))
        return 0.25 + 0.0 * noise

    uniform, normal = np.full((10, 3), -0.5), np.zeros((10, 3))
    experience.play(policy, (uniform, normal), random_steps=4)
    actions = experience.rows().actions[:, 0]
    assert actions.tolist() == [-0.5] * 4 + [0.25] * 6
    assert asked == [((1, 11), (1, 3))] * 6


# ---- files ---------------------------------------------------------------------------------------------------------


def test_what_is_saved_comes_back_up_to_any_save(tmp_path: Path) -> None:
    """Each save writes only new rows; rows saved after a checkpoint are ignored."""
    experience = lived(10, 0, 0)
    experience.save(tmp_path)
    rng = np.random.default_rng(1)
    for size in (20, 30):
        while experience.size < size:
            experience.step(rng.uniform(-1, 1, 3))
        experience.save(tmp_path)
        experience.save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {f"experience_{size}.npz" for size in (10, 20, 30)}
    same(load_rows(tmp_path, 30, Rows), experience.rows())
    back = Experience("d4rl/hopper-v2", 50)
    back.load(tmp_path, 20)
    assert back.size == 20
    same(back.rows(), Rows(*(column[:20] for column in experience.rows())))


def damage(path: Path) -> None:
    """Cuts the file in half."""
    path.write_bytes(path.read_bytes()[:500])


@pytest.mark.parametrize("fault", [Path.unlink, damage])
def test_lost_experience_is_answered_in_one_line(fault: Callable[[Path], None], tmp_path: Path) -> None:
    """A missing file, and half a file."""
    experience = lived(10, 0, 0)
    experience.save(tmp_path)
    fault(tmp_path / "experience_10.npz")
    with pytest.raises(InputError, match="experience") as caught:
        Experience("d4rl/hopper-v2", 50).load(tmp_path, 10)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("env", "capacity", "word"), [("d4rl/hopper-v2", 9, "max_timesteps"), ("d4rl/ant-v2", 50, "another environment")]
)
def test_experience_that_does_not_fit_is_refused(env: str, capacity: int, word: str, tmp_path: Path) -> None:
    """There is no room for all steps, or the experience is from another environment."""
    lived(10, 0, 0).save(tmp_path)
    with pytest.raises(InputError, match=word):
        Experience(env, capacity).load(tmp_path, 10)


# ---- on the device -------------------------------------------------------------------------------------------------


def columns(rows: int, offset: float) -> Batch:
    """Columns whose numbers are all different."""
    sizes = ((5,), (2,), (), (5,), ())
    return Batch(*(np.arange(rows * int(np.prod(s))).reshape(rows, *s) + offset + i for i, s in enumerate(sizes)))


@pytest.mark.parametrize("side", ["torch", "jax"])
def test_rows_are_stored_where_they_belong(side: str) -> None:
    """And nowhere else, with either side's device code."""
    plumbing, device = (torch_data, [torch.device("cpu")]) if side == "torch" else (jax_data, [])
    dataset = plumbing.to_device(columns(9, 0.0), *device)
    dataset = plumbing.store(dataset, columns(3, 1000.0), 4)
    indices = np.arange(9)
    taken = plumbing.take(dataset, torch.as_tensor(indices) if side == "torch" else jax.numpy.asarray(indices))
    for found, old, new in zip(taken, columns(9, 0.0), columns(3, 1000.0), strict=True):
        expected = old.astype(np.float32)
        expected[4:7] = new
        np.testing.assert_array_equal(np.asarray(found), expected)
    with pytest.raises((IndexError, RuntimeError)):
        plumbing.store(dataset, columns(3, 0.0), 7)


# ---- a run ---------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.usefixtures("in_haste")
@pytest.mark.parametrize("side", ["torch", "jax"])
def test_no_update_before_the_random_steps_are_over(side: str, tmp_path: Path) -> None:
    """With blocks of 8 in intervals of 20, blocks that end after 16 steps or fewer bring no update.

    Each evaluation cuts the episode, as D4RL's flags say, in the files too.
    """
    twin = load_twin(side, "sac")
    run = twin.train(twin.TrainConfig(**SHORT, runs_path=str(tmp_path)))
    assert run.result["updates"] == 40 - 16
    rows = load_rows(run.folder, 40, Rows)
    assert (np.abs(rows.actions) <= 1).all()
    assert (rows.terminals | rows.timeouts)[[19, 39]].all()
    assert np.flatnonzero(rows.timeouts).tolist() == [i for i in (19, 39) if not rows.terminals[i]]
