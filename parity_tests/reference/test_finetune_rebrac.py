"""ReBRAC, offline to online: six updates in each phase and a whole loop agree in float64; mistakes are caught.

The networks come from the offline derivation. It uses bare JAX arrays, which is why the last bits differ.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from corl_jax.finetune import rebrac as jax_twin
from corl_torch.finetune import rebrac
from parity_tests.engine.precision import both_in
from parity_tests.reference import finetune, test_rebrac
from parity_tests.reference.common import ACTION_DIM, CPU, ROWS, STATE_DIM, UPDATES, assert_same_log, same_draws
from parity_tests.reference.finetune import (
    ANTMAZE_ID,
    LIMIT,
    Line,
    Lived,
    assert_close_life,
    patched,
    run_of,
    write_dataset,
)
from parity_tests.reference.test_rebrac import arrays_of, assert_corls_start, compare, held_by, pi, updating
from shared.data.returns import ReturnsBatch
from shared.frameworks.torch_data import take, to_device
from shared.frameworks.torch_ring import take_both
from shared.runs.configs import read_file

# The capacity of the replay buffer for experience, which is full before the online phase ends
CAPACITY, DATA = 12, finetune.ROWS
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "other": {"policy_freq": 3, "normalize_q": False, "actor_bc_coef": 0.1, "critic_bc_coef": 0.01, "discount": 0.9}
    | {"tau": 0.1, "online_share": 0.3, "expl_noise": 0.4, "min_decay_coef": 0.8, "use_calibration": True},
}


class Derivation:
    """ReBRAC's updates by CORL's loop index, from a fresh trainer's weights."""

    def __init__(self, c: rebrac.TrainConfig, trainer: rebrac.ReBRAC) -> None:
        self.c, self.held = c, held_by(trainer)

    def act(self, state: np.ndarray) -> np.ndarray:
        """Adds NumPy's noise to the policy's action; CORL draws it again for a next action that has no weight."""
        noise = np.random.normal(0.0, self.c.expl_noise, ACTION_DIM)
        np.random.normal(0.0, self.c.expl_noise, ACTION_DIM)
        return np.clip(np.asarray(pi(self.held.actor, jnp.asarray(state))) + noise, -1.0, 1.0)

    def weights(self, i: int) -> tuple[float, float]:
        """The weights of both distances."""
        c = self.c
        if i < c.offline_iterations:
            return c.actor_bc_coef, c.critic_bc_coef
        left = (c.online_iterations + c.offline_iterations - i + c.learning_starts) / c.online_iterations
        return c.actor_bc_coef * max(c.min_decay_coef, left), 0.0

    def update(self, i: int, rows: tuple[np.ndarray, ...]) -> dict[str, Any]:
        """Makes one update on a batch (s, a, r, s', d, a', G); returns its log."""
        c = self.c
        normal = torch.randn(c.batch_size, ACTION_DIM).numpy()
        uniform = torch.empty(c.batch_size, ACTION_DIM).uniform_(-1, 1).numpy()
        update = updating(c, i % c.policy_freq == 0)
        betas = self.weights(i)
        self.held, log = update(self.held, tuple(rows), normal, uniform, betas)
        return log | dict(zip(("actor_bc_coef", "critic_bc_coef"), betas, strict=True))


def drawn(c: rebrac.TrainConfig, data: tuple, ring: tuple, size: int, online: bool) -> tuple[np.ndarray, ...]:
    """A batch drawn as in CORL: the dataset's rows, then the environment's rows."""
    new = int(c.online_share * c.batch_size) if online else 0
    old = np.random.randint(0, len(data[0]), size=c.batch_size - new)
    if not online:
        return tuple(column[old] for column in data)
    chosen = np.random.randint(0, size, size=new)
    return tuple(np.concatenate([x[old], y[chosen]]) for x, y in zip(data, ring, strict=True))


# Other networks and rates, and a later decay of the weight
FURTHER: dict[str, Any] = {
    "other": {"batch_size": 64, "hidden_dim": 64, "actor_ln": True, "critic_ln": False, "critic_n_hiddens": 1}
    | {"actor_lr": 1e-3, "noise_clip": 0.3, "policy_noise": 0.4, "learning_starts": 2}
}


@pytest.mark.parametrize("name", SETTINGS)
def test_both_phases(name: str) -> None:
    """Weights and logs agree within 1e-12, in six updates before the switch and six after it."""
    with both_in("float64"):
        phases = {"offline_iterations": UPDATES, "online_iterations": UPDATES}
        config = rebrac.TrainConfig(device="cpu", **phases | SETTINGS[name] | FURTHER.get(name, {}))
        trainer = rebrac.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
        for policy in (trainer.actor, trainer.actor_target) if name in FURTHER else ():
            # Actions close to their bounds, so that smoothing exceeds them
            policy.net[-1].weight.data.mul_(200.0)
        rng = np.random.default_rng(1)
        data = ReturnsBatch(*test_rebrac.rows(), rng.normal(size=ROWS))
        seen = ReturnsBatch(*(column[: ROWS // 10][::-1].copy() for column in data))
        reference, logs, expected = Derivation(config, trainer), [], []
        columns, further, (offline, _) = to_device(data, CPU), to_device(seen, CPU), rebrac.shares(config)
        same_draws()
        for step in range(2 * UPDATES):
            size = len(seen.rewards) if step >= UPDATES else None
            indices, noise = rebrac.draw_noise(config, ROWS, ACTION_DIM, CPU, size)
            batch = take(columns, indices) if size is None else take_both(columns, further, indices, offline)
            logs.append(trainer.update(batch, noise))
        same_draws()
        for i in range(2 * UPDATES):
            expected.append(reference.update(i, drawn(config, data, seen, len(seen.rewards), i >= UPDATES)))
        assert_same_log(logs, expected, tolerance=1e-12)
        for key, part in (("actor", trainer.actor), ("actor_t", trainer.actor_target)):
            compare(arrays_of(part.net), getattr(reference.held, key), key)
        for key, part in (("critic", trainer.critic), ("critic_t", trainer.critic_target)):
            both = jax.tree.map(lambda *pair: jnp.stack(pair), arrays_of(part.q1), arrays_of(part.q2))
            compare(both, getattr(reference.held, key), key)
        assert trainer.total_it == 2 * UPDATES
        states = data.observations[:100]
        np.testing.assert_allclose(trainer.act(states), pi(reference.held.actor, states), rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("side", ["torch", "jax"])
def test_weights_start_as_in_corl(side: str) -> None:
    """The same check as for the offline twin."""
    assert_corls_start(rebrac, jax_twin, side)


def test_a_step_draws_twice_as_much_as_it_uses() -> None:
    """It draws NumPy's noise, whose second half CORL keeps for a next action."""
    config = rebrac.TrainConfig(device="cpu")
    np.random.seed(3)
    found = [rebrac.draw_exploration(config, ACTION_DIM, CPU).action for _ in range(2)]
    np.random.seed(3)
    drawn = np.random.normal(size=(2, 2, 1, ACTION_DIM))
    np.testing.assert_array_equal(torch.stack(found), drawn[:, 0])


# ---- the loop ------------------------------------------------------------------------------------------------------


def derived_life(c: rebrac.TrainConfig, raw: dict[str, np.ndarray], reference: Derivation) -> Lived:
    """CORL's loop over two replay buffers; the next actions in the second one have no weight."""
    s, s2 = raw["observations"][:-1], raw["observations"][1:]
    mean, std = (s.mean(0), s.std(0) + 1e-3) if c.normalize else (np.zeros(STATE_DIM), np.ones(STATE_DIM))
    factor = 100.0 if c.normalize_reward else 1.0
    done, r = raw["terminals"][:-1].astype(np.float32), raw["rewards"][:-1]
    returns, earned = np.zeros(DATA), 0.0
    for j in reversed(range(DATA)):
        returns[j] = earned = r[j].item() + c.discount * (1.0 - float(done[j])) * earned
    columns = ((s - mean) / std, raw["actions"][:-1], factor * r, (s2 - mean) / std, done, raw["actions"][1:], returns)
    data = tuple(np.asarray(column, np.float32) for column in columns)
    ring = tuple(np.zeros((CAPACITY, *column.shape[1:]), np.float32) for column in data)
    size, pointer, moves, env, batches = 0, 0, 0, Line(), []
    state = ((env.reset()[0] - mean) / std).astype(np.float32)
    for i in range(c.offline_iterations + c.online_iterations):
        if i >= c.offline_iterations:
            moves += 1
            action = reference.act(state).astype(np.float32)
            after, reward, ended, *_ = env.step(action)
            after = (after - mean) / std
            kept = (state, action, factor * reward, after, ended and moves < LIMIT)
            for whole, value in zip(ring[:5], kept, strict=True):
                whole[pointer] = value
            pointer, size = (pointer + 1) % CAPACITY, min(size + 1, CAPACITY)
            state = after.astype(np.float32)
            if ended or moves == LIMIT:
                state, moves = ((env.reset()[0] - mean) / std).astype(np.float32), 0
            if i < c.offline_iterations + c.learning_starts:
                continue
        rows = drawn(c, data, ring, size, i >= c.offline_iterations)
        batches.append(rows)
        reference.update(i, tuple(column.astype(np.float64) for column in rows))
    return Lived(batches, list(ring))


def life(folder: Path, settings: dict[str, Any]) -> tuple[Lived, Callable[[], Lived]]:
    """A short run of the twin, with twenty online steps that overwrite the ring, and a function for the derivation."""
    raw = write_dataset(folder / "line.hdf5")
    with h5py.File(folder / "line.hdf5", "a") as file:
        file.attrs["env_id"] = ANTMAZE_ID
    config = rebrac.TrainConfig(
        env=str(folder / "line.hdf5"),
        runs_path=str(folder / "runs"),
        device="cpu",
        buffer_size=max(CAPACITY, DATA),
        offline_iterations=6,
        online_iterations=20,
        eval_freq=13,
        n_episodes=1,
        batch_size=16,
        hidden_dim=32,
        **settings,
    )
    with both_in("float64"), patched((rebrac, "room", lambda config, rows: CAPACITY)):
        ours, fresh, as_it_was = run_of(rebrac, rebrac.ReBRAC, config)

    def theirs() -> Lived:
        with both_in("float64"):
            as_it_was()
            begun = beginning(settings, fresh)
            if begun not in LIVED:
                LIVED[begun] = derived_life(config, raw, Derivation(config, fresh))
            return LIVED[begun]

    return ours, theirs


# The derivation's loops by their starting points, so that mistakes with the same starting point can reuse them.
LIVED: dict[tuple, Lived] = {}


def beginning(settings: dict[str, Any], fresh: rebrac.ReBRAC) -> tuple:
    """Everything that determines a loop: the settings, the weights and both generators."""
    weights = [p.detach().numpy().tobytes() for part in (fresh.actor, fresh.critic) for p in part.parameters()]
    return repr(settings), *weights, repr(np.random.get_state()), torch.get_rng_state().numpy().tobytes()


LOOPS: dict[str, dict[str, Any]] = {
    "default": {},
    "all that can be otherwise": SETTINGS["other"]
    | {"normalize": True, "normalize_reward": True, "learning_starts": 3, "expl_noise": 1.0, "critic_bc_coef": 1.0},
}


@pytest.mark.parametrize("settings", LOOPS.values(), ids=LOOPS)
def test_the_online_loop(settings: dict[str, Any], tmp_path: Path) -> None:
    """The twin's replay buffers and batches equal the derivation's."""
    ours, theirs = life(tmp_path, settings)
    assert_close_life(ours, theirs())


def test_corls_file_loads(tmp_path: Path) -> None:
    """The settings keep CORL's names."""
    text = (
        "dataset_name: pen-cloned-v1\ngamma: 0.9\neval_every: 50000\neval_episodes: 100\ntrain_seed: 0\neval_seed: 42\n"
    )
    text += (
        "num_offline_updates: 1000000\nnum_online_updates: 500000\nnum_warmup_steps: 0\nreplay_buffer_size: 2000000\n"
    )
    text += "mixing_ratio: 0.5\nmin_decay_coef: 0.5\nexpl_noise: 0.0\nnormalize_q: true\nnormalize_states: false\n"
    text += (
        "normalize_reward: false\nuse_calibration: false\nreset_opts: false\nproject: CORL\ngroup: rebrac-finetune\n"
    )
    text += "actor_bc_coef: 0.05\ncritic_bc_coef: 0.5\nactor_learning_rate: 0.0003\nname: rebrac-finetune\n"
    (tmp_path / "pen.yaml").write_text(text)
    config = read_file(rebrac.TrainConfig, "finetune/rebrac", tmp_path / "pen.yaml")
    assert (config.max_timesteps, config.discount, config.eval_freq) == (1_500_000, 0.9, 50_000)
    assert (config.seed, config.n_episodes, config.env) == (0, 100, "pen-cloned-v1")
