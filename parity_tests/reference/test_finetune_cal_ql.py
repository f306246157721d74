"""Cal-QL: six updates in each phase and a whole loop over two buffers are bitwise equal; mistakes are caught.

An update is CQL's derivation, except for the critics' loss, which is written again here with the lower bound.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from corl_torch.finetune import cal_ql
from parity_tests.reference import finetune, test_finetune_cql
from parity_tests.reference.common import (
    ACTION_DIM,
    CPU,
    ROWS,
    STATE_DIM,
    UPDATES,
    assert_same_bits,
    assert_same_log,
    same_draws,
)
from parity_tests.reference.finetune import (
    ANTMAZE_ID,
    LIMIT,
    Line,
    Lived,
    assert_same_life,
    patched,
    run_of,
    write_dataset,
)
from parity_tests.reference.test_cql import assert_bounded_deviation, assert_bounded_multiplier
from parity_tests.reference.test_finetune_cql import (
    EARLIER,
    TwoPhases,
    assert_acts,
    assert_seeded_weights,
)
from shared import names
from shared.data import returns
from shared.data.returns import CalibrationBatch
from shared.data.transitions import Batch
from shared.envs.scores import reference as scores_of
from shared.frameworks.torch_data import take
from shared.frameworks.torch_ring import take_both
from shared.runs.configs import read_file

SETTINGS: dict[str, dict[str, Any]] = {
    "full size": {"cql_alpha_online": 2.0},
    "antmaze": test_finetune_cql.SETTINGS["antmaze"] | {"offline_share": 0.3},
    "other": test_finetune_cql.SETTINGS["other"] | {"offline_share": 0.75},
}
DATA, CAPACITY = finetune.ROWS, 12


class Calibrated(TwoPhases):
    """CORL's trainer, which stops calibrating at the switch."""

    def learn(self, rows: tuple[Tensor, ...]) -> dict[str, Any]:
        """The update of CORL's loop index t on a batch (s, a, r, s', d, returns)."""
        s, a, r, s2, d, mc = rows
        self.mc, self.calibrates = mc[:, None], self.t < self.c.offline_iterations
        return self.next(s, a, r[:, None], s2, d[:, None])

    def critic_loss(
        self, alpha: Tensor, n: int, s: Tensor, a: Tensor, r: Tensor, s2: Tensor, d: Tensor
    ) -> tuple[Tensor, dict[str, Any]]:
        """Both critics' loss and its log; also makes a step of the Lagrange multiplier."""
        c = self.c
        q1, q2 = self.q(self.q1, s, a), self.q(self.q2, s, a)
        a2, log_pi2 = self.policy(s2, n if c.cql_max_target_backup else None)
        v = torch.min(self.q(self.q1_t, s2, a2), self.q(self.q2_t, s2, a2))
        if c.cql_max_target_backup:
            v, best = torch.max(v, dim=-1)
            log_pi2 = torch.gather(log_pi2, -1, best.unsqueeze(-1)).squeeze(-1)
        if c.backup_entropy:
            v = v - alpha * log_pi2
        y = (r + (1.0 - d) * c.discount * v).detach()
        td_1, td_2 = mse_loss(q1, y), mse_loss(q2, y)
        random = a.new_empty((len(s), n, ACTION_DIM), requires_grad=False).uniform_(-1, 1)
        current, log_current = (x.detach() for x in self.policy(s, n))
        following, log_following = (x.detach() for x in self.policy(s2, n))
        log = {"qf1_loss": td_1, "qf2_loss": td_2, "average_qf1": q1.mean(), "average_qf2": q2.mean()}
        log["average_target_q"] = v.mean()
        gaps = []
        for i, network, q in ((1, self.q1, q1), (2, self.q2, q2)):
            at_random, at_current, at_next = (self.q(network, s, x) for x in (random, current, following))
            bound = self.mc.repeat(1, n)
            log[f"bound_rate_cql_q{i}_current_actions"] = torch.sum(at_current < bound) / bound.numel()
            log[f"bound_rate_cql_q{i}_next_actions"] = torch.sum(at_next < bound) / bound.numel()
            if self.calibrates:
                at_current, at_next = torch.maximum(at_current, bound), torch.maximum(at_next, bound)
            columns = [at_random, q.unsqueeze(1), at_next, at_current]
            log[f"cql_std_q{i}"] = torch.std(torch.cat(columns, 1), dim=1).mean()
            log |= {f"cql_q{i}_rand": at_random.mean(), f"cql_q{i}_current_actions": at_current.mean()}
            log[f"cql_q{i}_next_actions"] = at_next.mean()
            if c.cql_importance_sample:
                columns = [at_random - np.log(0.5**ACTION_DIM), at_next - log_following, at_current - log_current]
            ood = torch.logsumexp(torch.cat(columns, 1) / c.cql_temp, dim=1) * c.cql_temp
            gaps.append(torch.clamp(ood - q, c.cql_clip_diff_min, c.cql_clip_diff_max).mean())
        penalties, alpha_prime, alpha_prime_loss = self.weighed(gaps)
        log |= {"cql_qf1_diff": gaps[0], "cql_qf2_diff": gaps[1], "alpha_prime": alpha_prime}
        log |= {"cql_min_qf1_loss": penalties[0], "cql_min_qf2_loss": penalties[1]}
        return td_1 + td_2 + penalties[0] + penalties[1], log | {"alpha_prime_loss": alpha_prime_loss}


def returns_of(
    c: Any, s: np.ndarray, s2: np.ndarray, r: np.ndarray, d: np.ndarray, limit: int, failure: float
) -> np.ndarray:
    """CORL's loop over the transitions: when a trajectory ends, its returns are summed from the end."""
    found: list[float] = []
    begun: list[int] = []
    for t in range(len(r)):
        begun.append(t)
        elsewhere = t + 1 < len(r) and np.linalg.norm(s[t + 1] - s2[t]) > 1e-6
        if not (d[t] or t == len(r) - 1 or elsewhere or len(begun) == limit):
            continue
        if c.is_sparse_reward and r[t] == failure:
            found += [failure / (1 - c.discount)] * len(begun)
        else:
            backwards, after = [], 0.0
            for k in reversed(begun):
                after = float(r[k]) + c.discount * after * (1 - float(d[k]))
                backwards.append(after)
            found += backwards[::-1]
        begun = []
    return np.asarray(found, np.float32)


def drawn(c: cal_ql.TrainConfig, data: Any, ring: Any, size: int, online: bool) -> tuple[Tensor, ...]:
    """A batch drawn as in CORL: the dataset's rows, then the environment's rows."""
    old = int(c.batch_size * c.offline_share) if online else c.batch_size
    chosen = np.random.randint(0, len(data[0]), size=old)
    rows = [column[chosen] for column in data]
    if online:
        chosen = np.random.randint(0, size, size=c.batch_size - old)
        rows = [np.concatenate([x, column[chosen]]) for x, column in zip(rows, ring, strict=True)]
    return tuple(torch.as_tensor(x) for x in rows)


def with_returns(dataset: Batch) -> CalibrationBatch:
    """The dataset with made-up returns."""
    returns = np.random.default_rng(1).normal(size=ROWS)
    return CalibrationBatch(*dataset, torch.as_tensor(returns, dtype=torch.float32))


@pytest.mark.parametrize("name", SETTINGS)
def test_both_phases(dataset: Batch, name: str) -> None:
    """Weights, both temperatures and logs are equal, in six updates before the switch and six after it."""
    phases: dict[str, Any] = {"offline_iterations": UPDATES, "online_iterations": UPDATES}
    config = cal_ql.TrainConfig(device="cpu", **phases, **SETTINGS[name])
    trainer = cal_ql.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    earlier = EARLIER.get(name, 0)
    trainer.total_it, trainer.earlier = trainer.total_it + earlier, trainer.earlier + earlier
    reference, logs, expected = Calibrated(config, trainer), [], []
    data = with_returns(dataset)
    seen = CalibrationBatch(*(column[: ROWS // 10].flip(0) for column in data))
    offline, _ = cal_ql.shares(config)
    same_draws()
    for step in range(1, 2 * UPDATES + 1):
        size = len(seen.rewards) if step > UPDATES else None
        indices, noise = cal_ql.draw_noise(config, ROWS, ACTION_DIM, CPU, size, earlier + step <= config.bc_steps)
        batch = take(data, indices) if size is None else take_both(data, seen, indices, offline)
        logs.append(trainer.update(batch, noise))
    same_draws()
    old, new = ([column.numpy() for column in columns] for columns in (data, seen))
    for step in range(2 * UPDATES):
        expected.append(reference.learn(drawn(config, old, new, len(seen.rewards), step >= UPDATES)))
    assert_same_log(logs, expected)
    assert_same_bits(trainer, reference.parts())
    assert any(0.0 < log["bound_rate_cql_q1_next_actions"] < 1.0 for log in logs)


def test_what_is_worth_its_return_is_not_below_it(dataset: Batch) -> None:
    """Actions of the policy whose value equals the return do not count as below it."""
    config = cal_ql.TrainConfig(device="cpu", **SETTINGS["other"])
    trainer = cal_ql.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    for parameter in trainer.critic_1.network[-1].parameters():
        parameter.data.zero_()
    indices, noise = cal_ql.draw_noise(config, ROWS, ACTION_DIM, CPU)
    batch = take(with_returns(dataset), indices)._replace(returns=torch.zeros(config.batch_size))
    log = trainer.update(batch, noise)
    assert all(log[f"bound_rate_cql_q1_{which}_actions"] == 0.0 for which in ("current", "next"))


@pytest.mark.parametrize("orthogonal", [True, False])
def test_weights_start_where_the_seed_says(orthogonal: bool) -> None:
    """The same check as for CQL."""
    assert_seeded_weights(cal_ql, orthogonal)


def test_the_deviation_is_bounded(dataset: Batch) -> None:
    """The same check as for CQL."""
    assert_bounded_deviation(cal_ql, dataset.observations)


def test_the_multiplier_is_bounded(dataset: Batch) -> None:
    """The same check as for CQL."""
    assert_bounded_multiplier(cal_ql, with_returns(dataset))


def test_the_policy_acts(dataset: Batch) -> None:
    """The same check as for CQL."""
    assert_acts(cal_ql, dataset)


# ---- returns -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparse", [False, True])
def test_returns(sparse: bool) -> None:
    """Returns equal CORL's for all kinds of trajectory ends; antmaze's failed trajectories are recognised."""
    rng, size, limit = np.random.default_rng(3), 400, 9
    raw = {
        "observations": rng.normal(size=(size, 2)).astype(np.float32),
        "actions": np.zeros((size, 1), np.float32),
        "rewards": (rng.random(size) < 0.2).astype(np.float32),
        "terminals": rng.random(size) < 0.05,
        "timeouts": rng.random(size) < 0.05,
    }
    config = cal_ql.TrainConfig(normalize_reward=True, reward_scale=10.0, reward_bias=-5.0, is_sparse_reward=sparse)
    ours = cal_ql.CalibratedRewards(config).modified(returns.extract_ended(raw, limit), "antmaze-umaze-v2")
    s, _, r, s2, d, _ = ours
    assert scores_of("antmaze-umaze-v2").min_score == 0.0
    theirs = returns_of(config, s, s2, r, d, limit, failure=-5.0)
    np.testing.assert_array_equal(ours.returns, theirs)
    assert (np.min(theirs) == -500.0) == sparse


def test_a_failure_is_the_least_reward_as_it_is_learnt_from() -> None:
    """In this maze the smallest score is not 0; with this factor the scaled score is an integer, so it is exact."""
    env, discount = "maze2d-umaze-v1", 0.9
    least, factor = scores_of(env).min_score, 20.0
    assert least * factor == 477.0
    raw = {
        "observations": np.arange(7.0, dtype=np.float32)[:, None],
        "actions": np.zeros((7, 1), np.float32),
        "rewards": np.asarray([least, 1.0, least, 0.0, 0.0, 0.0, 0.0], np.float32),
        "terminals": np.asarray([False, False, True, False, False, True, False]),
        "timeouts": np.zeros(7, bool),
    }
    scaled: dict[str, Any] = {
        "normalize_reward": True,
        "reward_scale": factor,
        "reward_bias": 0.0,
        "is_sparse_reward": True,
    }
    kind = cal_ql.CalibratedRewards(cal_ql.TrainConfig(discount=discount, **scaled))
    ours = kind.modified(returns.extract_ended(raw), env)
    np.testing.assert_array_equal(ours.returns, np.asarray([477.0 / (1.0 - discount)] * 3 + [0.0] * 3, np.float32))


# ---- the loop ------------------------------------------------------------------------------------------------------


def derived_life(c: cal_ql.TrainConfig, raw: dict[str, np.ndarray], reference: Calibrated) -> Lived:
    """CORL's loop over two replay buffers; experience has returns of 0."""
    s, s2 = raw["observations"][:-1], raw["observations"][1:]
    mean, std = np.zeros(STATE_DIM, np.float32), np.ones(STATE_DIM, np.float32)
    if c.normalize:
        mean, std = s.mean(0), s.std(0) + 1e-3
    factor, shift = (c.reward_scale, c.reward_bias) if c.normalize_reward else (1.0, 0.0)
    done, r = raw["terminals"][:-1].astype(np.float32), raw["rewards"][:-1]
    r = r * np.float32(factor) + np.float32(shift)
    mc = returns_of(c, s, s2, r, done, LIMIT, failure=np.nan)
    data = ((s - mean) / std, raw["actions"][:-1], r, (s2 - mean) / std, done, mc)
    ring = tuple(np.zeros((CAPACITY, *column.shape[1:]), np.float32) for column in data)
    size, pointer, moves, env, batches = 0, 0, 0, Line(), []
    state = (env.reset()[0] - mean) / std
    for t in range(c.offline_iterations + c.online_iterations):
        if t >= c.offline_iterations:
            moves += 1
            action = reference.act(torch.tensor(state[None], dtype=torch.float32))[0].numpy()
            after, reward, ended, *_ = env.step(action)
            after = (after - mean) / std
            kept = (state, action, reward * factor + shift, after, ended and moves < LIMIT, 0.0)
            for whole, value in zip(ring, kept, strict=True):
                whole[pointer] = value
            pointer, size = (pointer + 1) % CAPACITY, min(size + 1, CAPACITY)
            state = after
            if ended or moves == LIMIT:
                state, moves = (env.reset()[0] - mean) / std, 0
        batches.append(drawn(c, data, ring, size, t >= c.offline_iterations))
        reference.learn(batches[-1])
    return Lived(batches, list(ring))


def life(folder: Path, settings: dict[str, Any]) -> tuple[Lived, Callable[[], Lived]]:
    """A short run of the twin, with twenty online steps that overwrite the ring, and a function for the derivation."""
    raw = write_dataset(folder / "line.hdf5")
    with h5py.File(folder / "line.hdf5", "a") as file:
        file.attrs["env_id"] = ANTMAZE_ID
    config = cal_ql.TrainConfig(
        env=str(folder / "line.hdf5"),
        runs_path=str(folder / "runs"),
        device="cpu",
        buffer_size=DATA,
        offline_iterations=6,
        online_iterations=20,
        eval_freq=13,
        n_episodes=1,
        **settings,
    )
    # CORL's rules apply as for D4RL's names.
    corls = (names, "has_published_results", lambda name: True)
    with patched((cal_ql, "room", lambda config, rows: CAPACITY), corls):
        ours, fresh, as_it_was = run_of(cal_ql, cal_ql.CalQL, config)

    def theirs() -> Lived:
        reference = Calibrated(config, fresh)
        as_it_was()
        return derived_life(config, raw, reference)

    return ours, theirs


LOOP = SETTINGS["antmaze"] | {"normalize_reward": True, "reward_scale": 0.3, "reward_bias": -0.7}


@pytest.mark.parametrize("settings", [LOOP, SETTINGS["other"] | {"normalize": False}], ids=["antmaze", "other"])
def test_the_online_loop(settings: dict[str, Any], tmp_path: Path) -> None:
    """The twin's replay buffers and batches equal the derivation's."""
    ours, theirs = life(tmp_path, settings)
    assert_same_life(ours, theirs())


def test_corls_file_loads(tmp_path: Path) -> None:
    """Its keys are understood, including an infinity as YAML writes it."""
    text = "env: antmaze-umaze-v2\nmixing_ratio: 0.5\nis_sparse_reward: true\ncql_clip_diff_max: .inf\n"
    text += "cql_clip_diff_min: -200\noffline_iterations: 1000000\nonline_iterations: 1000000\nname: CQL\n"
    (tmp_path / "umaze.yaml").write_text(text)
    config = read_file(cal_ql.TrainConfig, "finetune/cal_ql", tmp_path / "umaze.yaml")
    assert (config.max_timesteps, config.cql_clip_diff_min, config.cql_lagrange) == (2_000_000, -200.0, True)
