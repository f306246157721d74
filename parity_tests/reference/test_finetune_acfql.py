"""ACFQL, offline to online: six updates in each phase and a whole loop agree in float64; planted mistakes are caught.

The networks and the update come from the offline derivation. It uses bare arrays, which is why the last bits differ.
"""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor

from corl_jax.finetune import acfql as jax_twin
from corl_torch.finetune import acfql
from parity_tests.engine.precision import both_in
from parity_tests.reference import finetune
from parity_tests.reference.common import ACTION_DIM, CPU, STATE_DIM, UPDATES, assert_same_log, same_draws
from parity_tests.reference.finetune import (
    ANTMAZE_ID,
    CAPACITY,
    LIMIT,
    TABLE,
    Line,
    Lived,
    assert_close_life,
    patched,
    run_of,
    write_dataset,
)
from parity_tests.reference.test_acfql import (
    SMALL,
    Reference,
    assert_both_sides,
    assert_same_acfql,
    chunks_of,
    drawn,
    moved,
    rows_of,
)
from parity_tests.reference.test_fql import LOG, WEIGHTS, StopError, assert_glorot
from shared.data.online import OnlineExperience
from shared.data.returns import EndedBatch
from shared.data.transitions import Batch
from shared.envs import families
from shared.runs.configs import read_file

BEST = {"actor_type": "best-of-n", "n_action_samples": 3, "horizon_length": 3, "flow_steps": 2, "q_agg": "min"}
# The offline derivation has the default widths.
SETTINGS: dict[str, dict[str, Any]] = {
    "default": SMALL,
    "the best of n": SMALL
    | BEST
    | {"actor_ln": True, "critic_ln": False, "learning_rate": 1e-3, "discount": 0.9, "tau": 0.1},
}


class Derivation(Reference):
    """The textbook update, and the chunk of a step."""

    def chunk(self, states: Tensor) -> Tensor:
        """The chunks (E, h, A) for states (E, S), each from the same fresh draw of noise."""
        many = () if self.distils else (self.c.n_action_samples,)
        noise = torch.randn(1, *many, self.c.horizon_length, ACTION_DIM)
        chosen = self.choose(states, noise.expand(len(states), *noise.shape[1:])).detach()
        return chosen.reshape(len(states), self.c.horizon_length, ACTION_DIM)


@pytest.mark.parametrize(("settings", "bound"), [*zip(SETTINGS.values(), (1.0, 2.0), strict=True)], ids=SETTINGS)
def test_both_phases(dataset: Batch, settings: dict[str, Any], bound: float) -> None:
    """Weights, logs and chunks agree within 1e-12, in six updates before the switch and six after it.

    Each online update draws from one more row; then the buffer is full, and the oldest rows are overwritten.
    """
    with both_in("float64"):
        config, rows = acfql.TrainConfig(device="cpu", **settings), rows_of(dataset, bound)
        torch.manual_seed(7)
        trainer = acfql.create_trainer(config, STATE_DIM, ACTION_DIM, bound)
        moved(trainer, bound)
        reference, logs, expected, chunks, others = Derivation(config, trainer, bound), [], [], [], []
        # The rows that each update may use: a few before the switch, and a window that moves once it is full
        full, growth = 2000, 2
        windows = [slice(max(0, n - full), n) for n in full - growth + np.maximum(0, np.arange(-UPDATES, UPDATES))]
        states = rows.observations[:50]
        same_draws()
        for update, window in enumerate(windows):
            if update >= UPDATES:
                draw = acfql.draw_exploration(config, ACTION_DIM, CPU)
                noise = draw.chunk.expand(len(states), *draw.chunk.shape[1:])
                chunks.append(trainer.explore(states, acfql.Exploration(noise)))
            size, first = window.stop - window.start, window.start
            # Row k is stored at place k modulo the capacity.
            buffer = EndedBatch(*(column[:full].clone() for column in rows))
            for whole, column in zip(buffer, rows, strict=True):
                whole[:first] = column[full : window.stop] if first else column[:0]
            indices, noise = acfql.draw_noise(config, size, ACTION_DIM, CPU)
            logs.append(trainer.update(acfql.take_chunks(buffer, indices, config, size, first), noise))
        same_draws()
        for update, window in enumerate(windows):
            if update >= UPDATES:
                others.append(reference.chunk(states))
            held = EndedBatch(*(column[window] for column in rows))
            expected.append(reference.update(chunks_of(held, config), drawn(config)))
        assert_same_log(logs, expected, LOG)
        assert_same_acfql(trainer, reference)
        torch.testing.assert_close(torch.cat(chunks), torch.cat(others), rtol=0.0, atol=WEIGHTS)
        assert not any(chunk.requires_grad for chunk in chunks)
        assert trainer.total_it == 2 * UPDATES
        acting = np.random.default_rng(3).standard_normal((len(states), *acfql.noise_shape(config, ACTION_DIM)))
        right = reference.choose(states, torch.tensor(acting)).detach().numpy()
        found = trainer.act(states.numpy(), acting)
        np.testing.assert_allclose(found, right.reshape(found.shape), rtol=0.0, atol=WEIGHTS)
        assert_both_sides(reference)


@pytest.mark.parametrize(
    ("actor_type", "shape"), [("distill-ddpg", (2, ACTION_DIM)), ("best-of-n", (3, 2, ACTION_DIM))]
)
def test_what_an_evaluation_draws(actor_type: str, shape: tuple[int, ...]) -> None:
    """It draws a standard normal number for each component of each action of a chunk, or of several chunks."""
    config = acfql.TrainConfig(actor_type=actor_type, horizon_length=2, n_action_samples=3)
    found = acfql.draw_acting_noise(np.random.default_rng(3), config, ACTION_DIM)
    np.testing.assert_array_equal(found, np.random.default_rng(3).standard_normal(shape))


def test_weights_start_uniform() -> None:
    """The same check as for the offline twin."""
    torch.manual_seed(7)
    config = acfql.TrainConfig(
        device="cpu", actor_ln=True, actor_hidden_dims=(300, 200), critic_hidden_dims=(200, 100), horizon_length=3
    )
    trainer, chunk = acfql.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0), 3 * ACTION_DIM
    assert_glorot(trainer.actor.net, STATE_DIM + chunk, (300, 200), chunk)
    assert_glorot(trainer.flow.net, STATE_DIM + chunk + 1, (300, 200), chunk)
    for q in (trainer.critic.q1, trainer.critic.q2):
        assert_glorot(q, STATE_DIM + chunk, (200, 100), 1)
    assert not torch.equal(trainer.critic.q1[0].weight, trainer.critic.q2[0].weight)


# ---- the loop ------------------------------------------------------------------------------------------------------

LOOPS: dict[str, dict[str, Any]] = {
    # Locomotion's rewards stay unchanged.
    "default": {"learning_starts": 0},
    "all that can be otherwise": SETTINGS["the best of n"]
    | {"normalize": True, "eval_env": ANTMAZE_ID, "learning_starts": 4, "chunks_across_newest": True},
    "sparse rewards": {"sparse_rewards": True, "eval_env": ANTMAZE_ID, "horizon_length": 2, "learning_starts": 1},
    "rewards as they are": {"normalize_reward": False, "eval_env": ANTMAZE_ID, "horizon_length": 1}
    | {"learning_starts": 19},
}
OFFLINE, ONLINE = 6, 20


def settings_of(twin: ModuleType, folder: Path, settings: dict[str, Any]) -> tuple[Any, dict[str, np.ndarray]]:
    """Settings for a short run with twenty online steps, and the dataset to learn from, except for rewards."""
    raw = write_dataset(folder / "line.hdf5")
    # Some of the data's actions reach their bounds, and some rewards say that AntMaze's goal is reached.
    reaching, rewards = np.clip(1.5 * raw["actions"], -1.0, 1.0), raw["rewards"].copy()
    rewards[::4] = 1.0
    with h5py.File(folder / "line.hdf5", "a") as file:
        file["actions"][...], file["rewards"][...] = reaching, rewards
    sizes = {"actor_hidden_dims": (20,), "critic_hidden_dims": (30,), "batch_size": 16}
    config = twin.TrainConfig(
        env=str(folder / "line.hdf5"),
        runs_path=str(folder / "runs"),
        device="cpu",
        buffer_size=CAPACITY,
        offline_iterations=OFFLINE,
        online_iterations=ONLINE,
        eval_freq=13,
        n_episodes=1,
        **settings | sizes,
    )
    cut = np.where(np.abs(reaching) > 1 - 1e-5, np.sign(reaching) * np.float32(1 - 1e-5), reaching)
    return config, raw | {"actions": cut, "rewards": rewards}


def learnt(config: Any, reward: Any) -> Any:
    """The rewards to learn from."""
    if config.normalize_reward and config.eval_env:
        reward = reward - 1.0
    return np.where(reward == 0.0, 0.0, -1.0) if config.sparse_rewards else reward


def derived(config: Any, raw: dict[str, np.ndarray], reference: Derivation) -> Lived:
    """The authors' loop, with the transitions in a list: a chunk is played to its end, but not beyond an episode's."""
    mean, std = np.zeros(STATE_DIM, np.float32), np.ones(STATE_DIM, np.float32)
    if config.normalize:
        mean, std = raw["observations"][:-1].mean(0), raw["observations"][:-1].std(0) + 1e-3
    seen, rewards = (raw["observations"] - mean) / std, learnt(config, raw["rewards"])
    ends = raw["terminals"]
    life = [(seen[i], raw["actions"][i], rewards[i], seen[i + 1], ends[i], ends[i]) for i in range(finetune.ROWS)]
    chunk: list[np.ndarray] = []
    batches, env, moves = [], Line(), 0
    state = ((env.reset()[0] - mean) / std).astype(np.float32)
    for t in range(1, OFFLINE + ONLINE + 1):
        if t > OFFLINE:
            # Noise is drawn in every step.
            chosen = reference.chunk(torch.tensor(state[None]).double())[0]
            chunk = chunk or [action.float().numpy() for action in chosen]
            action = chunk.pop(0)
            after, reward, fell, *_ = env.step(action)
            after, moves = ((after - mean) / std).astype(np.float32), moves + 1
            over = fell or moves == LIMIT
            life.append((state, action, learnt(config, reward), after, fell and moves < LIMIT, over))
            state = after
            if over:
                state, chunk, moves = ((env.reset()[0] - mean) / std).astype(np.float32), [], 0
        if OFFLINE < t <= OFFLINE + config.learning_starts:
            continue
        batch = chunks_of(EndedBatch(*columns_of(held(life, config.chunks_across_newest))), config)
        s, a, r, s2, m, valid = batch
        batches.append((s, a.reshape(len(s), -1, ACTION_DIM), r[:, -1], s2, 1.0 - m[:, -1], valid))
        reference.update(batch, drawn(config))
    ring = [np.asarray(column) for column in columns_of(held(life, places=True))]
    return Lived(batches, ring)


def held(life: list[tuple], places: bool) -> list[tuple]:
    """The newest rows, by their age, or by their places in a ring."""
    newest = life[-CAPACITY:]
    turn = len(life) % CAPACITY if places and len(newest) == CAPACITY else 0
    return newest[len(newest) - turn :] + newest[: len(newest) - turn]


def columns_of(rows: list[tuple]) -> list[Tensor]:
    """The columns of rows that are stored in single precision."""
    return [torch.tensor(np.array(column, np.float32)).double() for column in zip(*rows, strict=True)]


def life(folder: Path, settings: dict[str, Any]) -> tuple[Lived, Any, Callable[[], tuple[Lived, Derivation]]]:
    """A run of the twin that overwrites the ring, its trainer, and a function that runs the derivation."""
    config, raw = settings_of(acfql, folder, settings)
    update, trainers = acfql.ACFQL.update, []

    def noting(self: Any, *given: Any) -> Any:
        trainers.append(self)
        return update(self, *given)

    with both_in("float64"), patched((acfql.ACFQL, "update", noting)):
        ours, fresh, as_it_was = run_of(acfql, acfql.ACFQL, config)

    def theirs() -> tuple[Lived, Derivation]:
        with both_in("float64"):
            as_it_was()
            reference = Derivation(config, fresh, 1.0)
            return derived(config, raw, reference), reference

    return ours, trainers[-1], theirs


@pytest.mark.parametrize("settings", LOOPS.values(), ids=LOOPS)
def test_the_online_loop(settings: dict[str, Any], tmp_path: Path) -> None:
    """The buffer and batches equal the derivation's, and in the end all weights do.

    Actions of steps may be on their bound, the data's never are.
    """
    ours, trainer, derive = life(tmp_path, settings)
    theirs, reference = derive()
    assert_close_life(ours, theirs)
    assert_same_acfql(trainer, reference)
    assert trainer.total_it == OFFLINE + ONLINE
    reached = np.abs(ours.ring[1]).max(axis=1) == 1.0
    assert reached.any()
    assert not reached[ONLINE - (CAPACITY - finetune.ROWS) : finetune.ROWS].any()


def _played_on(self: OnlineExperience) -> None:
    """Keeps the rest of a chunk over the end of an episode."""
    action, rest = self.queue[0], self.queue[1:]
    self.step(action)
    self.queue = rest


def _without_limits(self: OnlineExperience, first: int = 0) -> EndedBatch:
    """Marks only terminals as ends."""
    return EndedBatch(*self.transitions(first), self.rows(first).terminals)


MISTAKES = {
    "chunk played on in the next episode": (OnlineExperience, "play", _played_on),
    "time limit is no end": (OnlineExperience, "in_order", _without_limits),
    "chunks of the newest and the oldest rows": (acfql, "first_row", lambda ring, hp: 0),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_loop_is_caught(mistake: str, tmp_path: Path) -> None:
    """The loop with a mistake doesn't agree with the derivation."""
    with patched(MISTAKES[mistake]):
        ours, _, derive = life(tmp_path, {"learning_starts": 0, "horizon_length": 4})
    with pytest.raises(AssertionError):
        assert_close_life(ours, derive()[0])


def test_the_jax_run_sets_out_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the data's actions are clipped; rewards are modified in the data and online; ends of episodes are known."""
    found: list[Any] = []

    def stop(run: Any, config: Any, experience: Any, *given: Any, **named: Any) -> None:
        found.extend((experience, named["steps_of"]))
        raise StopError

    config, raw = settings_of(jax_twin, tmp_path, {"eval_env": ANTMAZE_ID})
    monkeypatch.setattr(jax_twin, "create_train_state", lambda *given: None)
    monkeypatch.setattr(jax_twin, "to_device", found.append)
    monkeypatch.setattr(jax_twin, "Online", stop)
    monkeypatch.setattr(families, "TABLE", TABLE)
    with pytest.raises(StopError):
        jax_twin.train(config)
    data, experience, steps_of = found
    np.testing.assert_array_equal(data.actions, raw["actions"][:-1])
    np.testing.assert_array_equal(data.rewards, raw["rewards"][:-1] - np.float32(1.0))
    action, env = np.ones(ACTION_DIM, np.float32), Line()
    env.reset()
    for _ in range(3 + LIMIT):
        experience.step(action)
    steps = steps_of(experience, 0)
    np.testing.assert_array_equal(steps.actions, np.tile(action, (3 + LIMIT, 1)))
    np.testing.assert_array_equal(steps.rewards[0], np.float32(env.step(action)[1] - 1.0))
    assert np.flatnonzero(steps.terminals).tolist() == [2]
    assert np.flatnonzero(steps.last).tolist() == [2, 2 + LIMIT]


@pytest.mark.parametrize("twin", [acfql, jax_twin], ids=["torch", "jax"])
def test_rewards_may_become_sparse(twin: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the data and online, both frameworks learn from -1, and from 0 where AntMaze's goal is reached."""
    tasks: list[Any] = []

    def stop(config: Any, task: Any) -> None:
        tasks.append(task)
        raise StopError

    config, raw = settings_of(twin, tmp_path, {"eval_env": ANTMAZE_ID, "sparse_rewards": True})
    monkeypatch.setattr(twin, "training_environment", stop)
    monkeypatch.setattr(families, "TABLE", TABLE)
    with pytest.raises(StopError):
        twin.train(config)
    (task,) = tasks
    np.testing.assert_array_equal(task.dataset.rewards, np.where(raw["rewards"][:-1] == 1.0, 0.0, -1.0))
    assert (task.step_reward(1.0), task.step_reward(0.0)) == (0.0, -1.0)


def test_the_authors_names_are_understood(tmp_path: Path) -> None:
    """The names of their flags are understood."""
    text = "env_name: pen-cloned-v1\noffline_steps: 1000000\nonline_steps: 500000\nlr: 0.0003\nsparse: true\n"
    text += "alpha: 300.0\neval_interval: 100000\neval_episodes: 50\nlayer_norm: true\nactor_layer_norm: false\n"
    text += "buffer_size: 2000000\nvalue_hidden_dims: [512, 512]\nactor_num_samples: 4\nstart_training: 5000\n"
    (tmp_path / "pen.yaml").write_text(text)
    config = read_file(acfql.TrainConfig, "finetune/acfql", tmp_path / "pen.yaml")
    assert (config.max_timesteps, config.offline_iterations, config.env) == (1_500_000, 1_000_000, "pen-cloned-v1")
    assert (config.eval_freq, config.n_episodes, config.critic_hidden_dims) == (100_000, 50, (512, 512))
    assert (config.n_action_samples, config.distill_coef, config.learning_starts) == (4, 300.0, 5000)
    assert config.sparse_rewards
