"""Trajectories, windows of them, and policies that are prompted with a return."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from corl_jax import dt as jax_dt
from corl_torch import dt
from parity_tests.engine.interpreter import interpreted
from shared.data import sequences, transitions
from shared.data.sequences import PromptedPolicy, Trajectories
from shared.envs.evaluation import ContextPolicy, Evaluator
from shared.envs.registry import make_env
from shared.errors import InputError
from shared.frameworks import jax_checkpoints, jax_data, jax_side, torch_data, torch_side
from shared.runs.run import Run
from shared.runs.settings import DeterministicConfig, OfflineConfig
from shared.runs.task import Extract, Preparation, load_task

WriteHDF5 = Callable[..., Path]
CPU = torch.device("cpu")
HOPPER = "d4rl/hopper-v2"
LENGTHS = [1, 7, 3, 20, 2]
SMALL = {"embedding_dim": 16, "num_heads": 2, "num_layers": 2, "seq_len": 4, "episode_len": 30}


def file_rows(lengths: list[int], tail: int = 0) -> dict[str, np.ndarray]:
    """A file's arrays: trajectories of these lengths, ended in turn by a terminal and a timeout, and an open tail."""
    rng, size = np.random.default_rng(0), sum(lengths) + tail
    ends = np.cumsum(lengths) - 1
    return {
        "observations": rng.normal(3.0, 2.0, size=(size, 11)).astype(np.float32),
        "actions": rng.uniform(-1, 1, size=(size, 3)).astype(np.float32),
        "rewards": rng.normal(1, 1, size=size).astype(np.float32),
        "terminals": np.isin(np.arange(size), ends[::2]),
        "timeouts": np.isin(np.arange(size), ends[1::2]),
    }


@dataclasses.dataclass(frozen=True)
class Config(DeterministicConfig, OfflineConfig):
    """The settings of a run of a sequence model."""

    name: str = "DT"
    n_episodes: int = 3
    episode_len: int = 30
    reward_scale: float | None = 1.0
    target_returns: tuple[float, ...] | None = None
    max_timesteps: int = 2
    eval_freq: int = 1


WHOLE = Preparation(Extract.TRAJECTORIES)


# ---- trajectories --------------------------------------------------------------------------------------------------


def test_rows_become_trajectories() -> None:
    """Row by row, as in CORL's loop; no row is lost at a timeout, only the open tail is."""
    raw = file_rows(LENGTHS, tail=4)
    raw["timeouts"][0] = True  # a terminal that is a timeout too closes once
    found = sequences.split_trajectories(raw)
    assert sequences.trajectory_lengths(found).tolist() == LENGTHS
    np.testing.assert_array_equal(found.observations, raw["observations"][:-4])
    np.testing.assert_array_equal(found.actions, raw["actions"][:-4])
    assert found.timesteps.tolist() == [t for length in LENGTHS for t in range(length)]
    assert found.remaining.tolist() == [length - t for length in LENGTHS for t in range(length)]
    first = 0
    for length in LENGTHS:
        total, expected = np.float32(0), []
        for reward in raw["rewards"][first : first + length][::-1]:
            total = np.float32(reward + total)
            expected.insert(0, total)
        assert found.returns[first : first + length].tolist() == expected
        first += length
    assert {column.dtype for column in found} == {np.dtype(np.float32)}
    never = np.zeros(sum(LENGTHS) + 4, bool)
    with pytest.raises(InputError, match="no complete trajectory"):
        sequences.split_trajectories(raw | {"terminals": never, "timeouts": never})


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_statistics_are_those_of_all_rows(kind: type) -> None:
    observations = file_rows(LENGTHS)["observations"].astype(kind)
    observations[:, 0] = 2.0
    mean, std = sequences.state_statistics(observations)
    np.testing.assert_array_equal(mean, observations.mean(axis=0).astype(np.float32))
    np.testing.assert_allclose(std, observations.std(axis=0) + 1e-6, rtol=1e-6)
    assert std[0] == np.float32(1e-6)
    assert mean.dtype == std.dtype == np.float32


def test_a_task_of_trajectories(write_hdf5: WriteHDF5) -> None:
    """Normalised states, scaled returns; the tail counts only in the statistics; episodes are cut at `episode_len`."""
    raw = file_rows(LENGTHS, tail=4)
    path = write_hdf5(**raw)
    task = load_task(Config(env=str(path), reward_scale=0.01), WHOLE)
    plain = sequences.split_trajectories(raw)
    mean, std = sequences.state_statistics(raw["observations"])
    np.testing.assert_array_equal(task.mean, mean)
    np.testing.assert_array_equal(task.std, std)
    np.testing.assert_array_equal(task.dataset.observations, (plain.observations - mean) / std)
    np.testing.assert_array_equal(task.dataset.returns, plain.returns * np.float32(0.01))
    np.testing.assert_array_equal(task.dataset.actions, plain.actions)
    assert (task.state_dim, task.action_dim) == (11, 3)
    assert task.fingerprint["transitions"] == sum(LENGTHS)
    assert task.evaluator.fingerprint["seed"] == 42
    assert load_task(Config(env=str(path), eval_seed=5), WHOLE).evaluator.fingerprint["seed"] == 5
    still = PromptedPolicy(lambda *windows: np.zeros((3, 2, 3)), 0.0, 1.0, 2, 3)
    assert task.evaluator(still).lengths.tolist() == [30, 30, 30]


def test_states_are_scaled_by_all_rows_of_the_file(write_hdf5: WriteHDF5) -> None:
    path = write_hdf5()
    observations = transitions.read_hdf5(path)["observations"]
    task = load_task(Config(env=str(path), observation_scaler="min_max"), WHOLE)
    task.evaluator.close()
    np.testing.assert_allclose(task.mean, (observations.min(axis=0) + observations.max(axis=0)) / 2, rtol=1e-5)
    np.testing.assert_allclose(task.dataset.observations.max(axis=0), 1, rtol=1e-6)


def test_trajectories_longer_than_the_table_are_refused(write_hdf5: WriteHDF5) -> None:
    """One step longer than `episode_len` still fits, as in CORL."""
    path = write_hdf5(**file_rows(LENGTHS))
    assert load_task(Config(env=str(path), episode_len=19), WHOLE).state_dim == 11
    with pytest.raises(InputError, match="has 20 steps: set episode_len to at least 19") as caught:
        load_task(Config(env=str(path), episode_len=18), WHOLE)
    assert "\n" not in str(caught.value)
    config = dt.TrainConfig(**SMALL | {"episode_len": 19, "batch_size": 200}, device="cpu")
    trajectories = sequences.split_trajectories(file_rows(LENGTHS))
    last = torch.full((1,), int(np.argmax(trajectories.timesteps)))
    windows = dt.take_windows(torch_data.to_device(trajectories, CPU), last, config.seq_len)
    assert windows.timesteps.max() == config.episode_len + config.seq_len - 1


# ---- windows -------------------------------------------------------------------------------------------------------


def plain_window(rows: Trajectories, first: int, seq_len: int) -> tuple[np.ndarray, ...]:
    """A window cut by hand."""
    inside = min(seq_len, int(rows.remaining[first]))
    window = [np.zeros((seq_len, *column.shape[1:]), np.float32) for column in rows[:3]]
    for filled, column in zip(window, rows[:3], strict=True):
        filled[:inside] = column[first : first + inside]
    return (*window, rows.timesteps[first] + np.arange(seq_len), (np.arange(seq_len) < inside).astype(np.float32))


@pytest.mark.parametrize("seq_len", [1, 4, 25])
def test_windows_of_every_row(seq_len: int) -> None:
    """Both twins cut the same windows as by hand, up to the last row of the last trajectory."""
    rows = sequences.split_trajectories(file_rows(LENGTHS))
    expected = [
        np.stack(column)
        for column in zip(*(plain_window(rows, first, seq_len) for first in range(sum(LENGTHS))), strict=True)
    ]
    indices = np.arange(sum(LENGTHS))
    ours = dt.take_windows(torch_data.to_device(rows, CPU), torch.as_tensor(indices), seq_len)
    theirs = jax_dt.take_windows(jax_data.to_device(rows), jnp.asarray(indices), seq_len)
    for mine, other, column in zip(ours, theirs, expected, strict=True):
        np.testing.assert_array_equal(mine.numpy(), column)
        np.testing.assert_array_equal(other, column)
    assert not ours.timesteps.is_floating_point()
    assert jnp.issubdtype(theirs.timesteps.dtype, jnp.integer)


def test_every_row_is_as_likely() -> None:
    """Including the last rows of short trajectories: 20,000 windows, each count within five standard deviations."""
    rows = sequences.split_trajectories(file_rows(LENGTHS))
    settings, size = SMALL | {"batch_size": 20_000, "seq_len": 1, "embedding_dim": 2, "num_layers": 1}, sum(LENGTHS)
    rates = {"attention_dropout": 0.0, "residual_dropout": 0.0, "embedding_dropout": 0.0}
    torch_side.seed_everything(0)
    ours, _ = dt.draw_noise(dt.TrainConfig(**settings | rates), sequences.trajectory_lengths(rows), CPU)
    hp = jax_side.narrow(jax_dt.TrainConfig(**settings), jax_dt.Hyperparameters)
    theirs, _ = jax_dt.draw_noise(jax.random.key(0), jnp.asarray(0), hp, size)
    for indices in (ours.numpy(), np.asarray(theirs)):
        counts = np.bincount(indices, minlength=size)
        assert len(counts) == size
        assert np.abs(counts - 20_000 / size).max() < 5 * np.sqrt(20_000 / size)


@pytest.mark.thorough
def test_dropout_masks_are_alike() -> None:
    """Both twins draw masks of the same shapes, rates and scale, and no two masks are equal."""
    settings = SMALL | {"batch_size": 64, "embedding_dropout": 0.3, "attention_dropout": 0.2, "residual_dropout": 0.1}
    ours = dt.draw_dropout(dt.TrainConfig(**settings), CPU)
    hp = jax_side.narrow(jax_dt.TrainConfig(**settings), jax_dt.Hyperparameters)
    theirs = interpreted(lambda key: jax_dt.draw_dropout(key, hp))(jax.random.key(0))
    leaves = [np.asarray(mask) for mask in jax.tree.leaves(theirs)]
    assert [mask.shape for mask in leaves] == [tuple(mask.shape) for mask in jax.tree.leaves(ours)]
    for masks in (leaves, [mask.numpy() for mask in jax.tree.leaves(ours)]):
        for rate, mask in zip([0.3, *[0.2, 0.1, 0.1] * 2], masks, strict=True):
            assert set(np.unique(mask)) == {0.0, np.float32(1 / (1 - rate))}
            assert abs((mask == 0).mean() - rate) < 0.02
        firsts = [mask.ravel()[:1000] == 0 for mask in masks]
        assert all((firsts[i] != firsts[j]).any() for i in range(len(firsts)) for j in range(i))
    none = dict.fromkeys(("embedding_dropout", "attention_dropout", "residual_dropout"), 0.0)
    hp = jax_side.narrow(jax_dt.TrainConfig(**settings | none), jax_dt.Hyperparameters)
    assert jax_dt.draw_dropout(jax.random.key(0), hp) == jax_dt.no_dropout(hp)
    assert dt.draw_dropout(dt.TrainConfig(**settings | none), CPU) == dt.no_dropout(dt.TrainConfig(**settings))


def test_weights_start_alike() -> None:
    """Every parameter has the deviation of the PyTorch twin's initial weights; biases are 0, norms 1."""
    settings = SMALL | {"embedding_dim": 64, "episode_len": 500}
    torch.manual_seed(0)
    reference = dt.create_trainer(dt.TrainConfig(**settings, device="cpu"), 11, 3, 1.0).model
    config = jax_dt.TrainConfig(**settings)
    state = interpreted(lambda key: jax_dt.create_train_state(key, config, 11, 3, 1.0))(jax.random.key(0))
    ours = jax_checkpoints.params_to_torch(state.model.params)
    assert ours.keys() == dict(reference.named_parameters()).keys()
    for name, parameter in reference.named_parameters():
        theirs = parameter.detach().numpy()
        if theirs.std() == 0:
            np.testing.assert_array_equal(ours[name], theirs)
        else:
            assert ours[name].std() == pytest.approx(theirs.std(), rel=5 / np.sqrt(theirs.size)), name
    packed = np.abs(ours["blocks.1.attention.in_proj_weight"]).max()
    assert packed == pytest.approx(np.sqrt(1.5 / 64), rel=1e-3)


# ---- policies ------------------------------------------------------------------------------------------------------


class Recorder(ContextPolicy):
    """Pushes forward until it falls, and records its inputs."""

    def __init__(self) -> None:
        self.told: list[tuple[np.ndarray, ...]] = []

    def __call__(self, observations: np.ndarray, returns: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Each episode pushes in a different way."""
        self.told.append((observations, returns, lengths))
        return np.linspace(0.1, 0.9, len(observations))[:, None] * np.ones((1, 3))


@pytest.mark.parametrize("num_envs", [1, 4])
@pytest.mark.parametrize("max_steps", [None, 15])
def test_a_context_policy_is_told_how_far_each_episode_has_come(num_envs: int, max_steps: int | None) -> None:
    """Compared with a plain loop over episodes: the same rewards so far, the same number of steps, cut in time."""
    policy = Recorder()
    outcome = Evaluator(HOPPER, 4, 7, num_envs=num_envs, max_steps=max_steps)(policy)
    env = make_env(HOPPER)
    for episode, seed in enumerate(np.random.SeedSequence(7).generate_state(4)):
        env.reset(seed=int(seed))
        action, total, length, over = np.linspace(0.1, 0.9, 4)[episode] * np.ones(3), 0.0, 0, False
        told = {int(lengths[episode]): returns[episode] for _, returns, lengths in policy.told}
        while not over and length != max_steps:
            assert told[length] == total
            _, reward, terminated, truncated, _ = env.step(action)
            total, length, over = total + reward, length + 1, terminated or truncated
        assert (outcome.returns[episode], outcome.lengths[episode]) == (total, length)
    assert (outcome.lengths == 15).all() if max_steps else outcome.lengths.max() > 15


@pytest.fixture(scope="module")
def predict() -> Callable[..., np.ndarray]:
    """A model whose actions depend on all its inputs."""
    torch.manual_seed(0)
    trainer = dt.create_trainer(dt.TrainConfig(**SMALL, device="cpu"), 11, 3, 1.0)
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return trainer.act


def test_a_prompted_policy_sees_what_corls_does(predict: Callable[..., np.ndarray]) -> None:
    """Each step: at most the last K steps, with this step's action still 0 and the return that is still missing.

    Compared with a loop that feeds one episode's history as it grows, without padding, in the real environment.
    """
    seq_len, prompt, scale, steps = SMALL["seq_len"], 3600.0, 0.001, 12
    policy = PromptedPolicy(predict, prompt, scale, seq_len, 3)
    taken = []

    class Watched(ContextPolicy):
        def __call__(self, *told: np.ndarray) -> np.ndarray:
            taken.append(policy(*told))
            return taken[-1]

    evaluator = Evaluator(HOPPER, 3, 7, mean=0.5, std=2.0, max_steps=steps)
    outcome = evaluator(Watched())
    env = make_env(HOPPER)
    for episode, seed in enumerate(np.random.SeedSequence(7).generate_state(3)):
        states, actions, returns = np.zeros((steps + 1, 11)), np.zeros((steps, 3)), np.zeros(steps + 1)
        states[0], returns[0] = (env.reset(seed=int(seed))[0] - 0.5) / 2.0, prompt * scale
        for t in range(outcome.lengths[episode]):
            now = slice(max(0, t + 1 - seq_len), t + 1)
            action = predict(*(x[now][None] for x in (states, actions, returns)), np.arange(steps)[now][None])[0, -1]
            np.testing.assert_allclose(taken[t][episode], action, atol=1e-5)
            state, reward, *_ = env.step(taken[t][episode])
            states[t + 1], actions[t], returns[t + 1] = (state - 0.5) / 2.0, action, returns[t] - scale * reward
    assert outcome.lengths.max() > 2 * seq_len


def test_the_action_of_a_step_ignores_what_comes_after(predict: Callable[..., np.ndarray]) -> None:
    """Including that step's own action, which is why windows that are not full yet need no mask."""
    rng, t = np.random.default_rng(0), 1
    windows = [rng.normal(size=(2, 4, *size)).astype(np.float32) for size in ((11,), (3,), ())]
    timesteps = np.arange(4)[None].repeat(2, axis=0)
    before = predict(*windows, timesteps)
    for window in windows:
        window[:, t + 1 :] += 1.0
    windows[1][:, t] += 1.0
    timesteps[:, t + 1 :] = 20
    after = predict(*windows, timesteps)
    for window in windows:
        window[:, :t] += 1.0
    np.testing.assert_array_equal(after[:, : t + 1], before[:, : t + 1])
    assert (after[:, t + 1 :] != before[:, t + 1 :]).any()
    assert (predict(*windows, timesteps)[:, t] != before[:, t]).all()


def test_a_run_is_scored_by_its_first_prompt(write_hdf5: WriteHDF5, tmp_path: Path) -> None:
    """Further prompts are logged under their own names, and count for nothing else."""
    config = Config(env=str(write_hdf5(**file_rows(LENGTHS))), runs_path=str(tmp_path / "runs"), reward_scale=0.001)
    task = load_task(config, WHOLE)

    def policy(strength: float) -> PromptedPolicy:
        return PromptedPolicy(lambda *windows: np.full((3, 2, 3), strength), 0.0, 1.0, 2, 3)

    with Run(config, task, "dt", "jax", "cpu") as run:
        for step in (1, 2):
            run.advance(1)
            run.evaluate(step, policy(0.1 * step), prompt=3600.0)
            run.evaluate(step, policy(0.9), prompt=1800.0)
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 1, 2, 2]
    for first, second in (rows[:2], rows[2:]):
        assert first["eval/3600.0_return_mean"] == first["return_mean"]
        assert first["eval/3600.0_d4rl_normalized_score"] == first["d4rl_normalized_score"]
        assert "return_mean" not in second
        assert second["eval/1800.0_return_mean"] == pytest.approx(np.mean(second["eval/1800.0_returns"]))
    scores = [rows[0]["d4rl_normalized_score"], rows[2]["d4rl_normalized_score"]]
    assert len({*scores, rows[1]["eval/1800.0_d4rl_normalized_score"]}) == 3
    assert run.result["final"] == pytest.approx(scores[1])
    assert run.result["mean_of_last_3"] == pytest.approx(np.mean(scores))


# ---- checkpoints ---------------------------------------------------------------------------------------------------


# ---- settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("twin", [dt, jax_dt], ids=["torch", "jax"])
def test_heads_that_do_not_divide_the_width_are_refused(twin: Any) -> None:
    with pytest.raises(InputError, match="embedding_dim must be a multiple of num_heads"):
        twin.train(twin.TrainConfig(num_heads=3))
