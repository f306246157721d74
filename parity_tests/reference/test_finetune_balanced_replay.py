"""Balanced replay: six updates in each phase and a whole loop agree in float64; planted mistakes are caught."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from corl_torch.finetune import balanced_replay as twin
from parity_tests.engine.precision import both_in
from parity_tests.reference import finetune
from parity_tests.reference.balanced_replay import Derivation
from parity_tests.reference.common import ACTION_DIM, CPU, STATE_DIM, UPDATES, assert_same_log, same_draws
from parity_tests.reference.finetune import LIMIT, Line, Lived, assert_close_life, patched, run_of, write_dataset
from shared.data.transitions import Batch
from shared.envs.stepping import Stepper
from shared.frameworks.torch_data import take
from shared.frameworks.torch_ring import Ring
from shared.runs import preparation

# Rows of the dataset and of the environment, and the capacity of the loop's ring, which is full before the end
ROWS, SEEN, CAPACITY, DATA = 300, 40, 12, finetune.ROWS
SMALL: dict[str, Any] = {"hidden_dim": 16, "batch_size": 16, "cql_n_actions": 3, "n_ensemble": 3, "buffer_size": ROWS}
SETTINGS: dict[str, dict[str, Any]] = {
    "default": SMALL,
    "other": SMALL
    | {"n_ensemble": 2, "batch_size": 17, "discount": 0.9, "actor_lr": 1e-2, "critic_lr": 3e-3, "cql_alpha": 2.0}
    | {"tau": 0.1, "density_lr": 1e-2, "density_temperature": 2.0, "online_share": 0.3}
    | {"learning_starts": 7, "critic_n_hiddens": 1},
}


def columns(rows: int, shift: float) -> Batch:
    """Random transitions around a shifted mean, a tenth of them terminal."""
    rng = np.random.default_rng(rows)
    found = (
        shift + rng.normal(size=(rows, STATE_DIM)),
        rng.uniform(-1, 1, (rows, ACTION_DIM)),
        rng.normal(size=rows),
        shift + rng.normal(size=(rows, STATE_DIM)),
        rng.random(rows) < 0.1,
    )
    return Batch(*(torch.as_tensor(column, dtype=torch.float64) for column in found))


def assert_same_agent(trainer: twin.BalancedReplay, theirs: Derivation) -> None:
    """Checks all members' weights, all priorities and the tree's sums, within 1e-12."""
    parts = [(trainer.actor.base_network, [m.policy for m in theirs.members])]
    for k, critic, target in ((0, trainer.critic_1, trainer.critic_1_target), (1, trainer.critic_2,
                                                                               trainer.critic_2_target)):  # fmt: skip
        parts += [(critic.network, [m.critics[k] for m in theirs.members])]
        parts += [(target.network, [m.targets[k] for m in theirs.members])]
    for network, members in parts:
        for layer, others in zip(network[::2], zip(*members, strict=True), strict=True):
            close(layer.weight, torch.stack([weight for weight, _ in others]))
            close(layer.bias[:, 0], torch.stack([bias for _, bias in others]))
    for layer, (weight, bias) in zip(trainer.density.network[::2], theirs.ratio, strict=True):
        close(layer.weight.T, weight)
        close(layer.bias, bias)
    close(trainer.log_temperature(), torch.cat([m.log_alpha for m in theirs.members]))
    tree, number = trainer.priorities(), len(theirs.priorities)
    # A differentiated tree would keep the graph of each update.
    assert not tree.requires_grad
    leaves = tree[len(tree) // 2 :]
    close(leaves[:number], torch.as_tensor(theirs.priorities))
    assert not leaves[number:].any()
    close(tree[1], torch.as_tensor(theirs.priorities.sum()))


def close(ours: Tensor, theirs: Tensor) -> None:
    """Checks that two tensors agree within 1e-12 of the largest entry."""
    scale = max(1.0, float(theirs.detach().abs().max()))
    assert float((ours - theirs).detach().abs().max()) <= 1e-12 * scale


@pytest.mark.parametrize("name", SETTINGS)
def test_both_phases(name: str) -> None:
    """Weights, priorities and logs agree within 1e-12, in six updates before the switch and six after it."""
    with both_in("float64"):
        phases: dict[str, Any] = {"offline_iterations": UPDATES, "online_iterations": UPDATES}
        config = twin.TrainConfig(device="cpu", **phases, **SETTINGS[name])
        torch.manual_seed(2)
        trainer = twin.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
        earlier = 3 * (name == "other")
        trainer.total_it += earlier
        trainer.earlier += earlier
        data, seen = columns(ROWS, 0.0), columns(SEEN, 0.3)
        theirs, logs, expected = Derivation(config, trainer, ROWS, SEEN), [], []
        trainer.begin(ROWS)
        for place in range(SEEN):
            trainer.enter(ROWS + place, ROWS)
            theirs.enter(place)
        same_draws()
        for step in range(2 * UPDATES):
            indices, noise = twin.draw_noise(config, ROWS, ACTION_DIM, CPU, SEEN if step >= UPDATES else None)
            online = step >= UPDATES
            batch = trainer.balanced(data, seen, indices, noise) if online else take(data, indices)
            logs.append(trainer.update(batch, noise))
        same_draws()
        both = [torch.cat(pair) for pair in zip(data, seen, strict=True)]
        for step in range(2 * UPDATES):
            if step < UPDATES:
                chosen = np.random.randint(0, ROWS, size=config.batch_size)
                expected.append(theirs.offline([column[chosen] for column in data]))
            else:
                log, _ = theirs.online(lambda places: tuple(column[places] for column in both), SEEN)
                expected.append(log)
        assert_same_log(logs, expected, tolerance=1e-12)
        assert 0.0 < np.mean([float(log["online_share"]) for log in logs[UPDATES:]]) < 1.0
        assert_same_agent(trainer, theirs)
        assert trainer.total_it == 2 * UPDATES + earlier


def test_the_first_online_batches_hold_the_share() -> None:
    """It holds for a thousand draws, with one more row of the environment than the warm-up leaves."""
    config = twin.TrainConfig(device="cpu", batch_size=1000, learning_starts=SEEN - 1, buffer_size=ROWS, hidden_dim=8)
    trainer = twin.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    trainer.begin(ROWS)
    for place in range(SEEN):
        trainer.enter(ROWS + place, ROWS)
    same_draws()
    indices, noise = twin.draw_noise(config, ROWS, ACTION_DIM, CPU, SEEN)
    batch = trainer.balanced(columns(ROWS, 0.0), columns(SEEN, 0.0), indices, noise)
    assert float(batch.seen.mean()) == pytest.approx(0.75, abs=0.05)
    assert int(batch.places.max()) == ROWS + SEEN - 1


def test_the_bound_is_greatest_at_the_ratio_of_densities() -> None:
    """The densities are those of two coins; at their ratio the bound is twice the Jensen-Shannon divergence."""
    online, offline = torch.tensor([0.8, 0.2]), torch.tensor([0.3, 0.7])

    def bound(w: Tensor) -> Tensor:
        return (online * torch.log(2 * w / (w + 1)) - offline * torch.log((w + 1) / 2)).sum()

    w = (online / offline).requires_grad_()
    best = bound(w)
    (slope,) = torch.autograd.grad(best, w)
    best = best.detach()
    middle = (online + offline) / 2
    divergence = (online * torch.log(online / middle) + offline * torch.log(offline / middle)).sum()
    assert slope.abs().max() < 1e-6
    assert float(best) == pytest.approx(float(divergence), rel=1e-5)
    assert all(bound(w.detach() * factor) < best for factor in (0.9, 1.1))
    # f* is a supremum, which for the slope at w is attained at w.
    y = torch.linspace(0.01, 20.0, 5000, dtype=torch.float64)
    f = y * torch.log(2 * y / (y + 1)) + torch.log(2 / (y + 1))
    for ratio in (0.2, 1.0, 3.0):
        assert float((y * math.log(2 * ratio / (ratio + 1)) - f).max()) == pytest.approx(
            math.log((ratio + 1) / 2), abs=1e-5
        )


def test_the_density_ratio_has_a_slope_everywhere() -> None:
    """The inputs include those for which a softplus is 0 in either precision, e^x, or a straight line."""
    density = twin.Density(1, 1, 4)
    outputs = torch.tensor([-900.0, -100.0, -41.0, -40.0, -39.0, -5.0, 0.0, 5.0, 30.0]).requires_grad_()
    density.network = torch.nn.Identity()
    empty = torch.empty(len(outputs), 0)
    log_w = density(outputs[:, None], empty)
    expected = torch.where(outputs.double() < -30, outputs.double(), torch.log(torch.log1p(outputs.double().exp())))
    torch.testing.assert_close(log_w.double(), expected, rtol=1e-6, atol=1e-6)
    (slope,) = torch.autograd.grad(log_w.sum(), outputs)
    assert torch.isfinite(slope).all()
    torch.testing.assert_close(slope[:5], torch.ones(5))
    assert (slope > 0).all()


def test_weights_start_where_the_seed_says() -> None:
    """Weights are uniform by the number of inputs: critics 1, critics 2, policies, then the density ratio's layers."""
    config = twin.TrainConfig(device="cpu", hidden_dim=6, critic_n_hiddens=1, n_ensemble=2, buffer_size=6)
    torch.manual_seed(7)
    trainer = twin.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    torch.manual_seed(7)
    inputs = STATE_DIM + ACTION_DIM
    critic, policy = [inputs, 6, 1], [STATE_DIM, 6, 6, 6, 2 * ACTION_DIM]
    networks = [trainer.critic_1.network, trainer.critic_2.network, trainer.actor.base_network]
    for network, sizes in zip(networks, (critic, critic, policy), strict=True):
        for layer, before, after in zip(network[::2], sizes[:-1], sizes[1:], strict=True):
            bound = 1 / math.sqrt(before)
            assert torch.equal(layer.weight, torch.empty(2, before, after).uniform_(-bound, bound))
            assert torch.equal(layer.bias, torch.empty(2, 1, after).uniform_(-bound, bound))
    for layer, before, after in zip(trainer.density.network[::2], [inputs, 6, 6], [6, 6, 1], strict=True):
        expected = torch.nn.Linear(before, after)
        assert torch.equal(layer.weight, expected.weight)
        assert torch.equal(layer.bias, expected.bias)
    assert torch.equal(trainer.log_temperature(), torch.zeros(2))
    # Two buffers of six rows, in a tree with a power of two as the number of leaves
    assert torch.equal(trainer.priorities(), torch.zeros(32))
    for name in ("critic_1", "critic_2"):
        pairs = zip(getattr(trainer, name).parameters(), getattr(trainer, f"{name}_target").parameters(), strict=True)
        assert all(torch.equal(a, b) and a is not b for a, b in pairs)


def test_the_deviation_is_bounded() -> None:
    """It is between e^-20 and e^2."""
    actor = twin.Actor(STATE_DIM, ACTION_DIM, 1.0, 8, 2)
    actor.base_network[-1].bias.data[..., ACTION_DIM:] = torch.linspace(-40.0, 20.0, ACTION_DIM)
    std = actor(torch.zeros(1, STATE_DIM))[1].detach()
    assert float(std.min()) == pytest.approx(math.exp(-20.0), rel=1e-6)
    assert float(std.max()) == pytest.approx(math.exp(2.0), rel=1e-6)


def test_the_policy_acts() -> None:
    """It acts by the ensemble's mean in evaluation and by a sample in training, within the largest action."""
    with both_in("float64"):
        config = twin.TrainConfig(device="cpu", **SMALL)
        trainer = twin.create_trainer(config, STATE_DIM, ACTION_DIM, 2.0)
        theirs, states = Derivation(config, trainer, 1, 1), columns(5, 0.0).observations
        mean, _ = theirs.mixed(states)
        close(torch.as_tensor(trainer.act(states.numpy())), 2.0 * torch.tanh(mean))
        same_draws()
        ours = trainer.explore(states[:1], twin.draw_exploration(config, ACTION_DIM, CPU))
        same_draws()
        close(ours, 2.0 * theirs.act(states[:1]))
        same_draws()
        _, noise = twin.draw_noise(config, ROWS, ACTION_DIM, CPU)
        value, _ = twin.sample_each(trainer.actor, states, noise.current[:, :5])
        assert 1.0 < float(value.detach().abs().max()) <= 2.0


# ---- the loop ------------------------------------------------------------------------------------------------------


def derived_life(c: twin.TrainConfig, raw: dict[str, np.ndarray], theirs: Derivation) -> Lived:
    """The loop over two replay buffers, the second of which overwrites its oldest rows."""
    s, s2 = raw["observations"][:-1], raw["observations"][1:]
    mean, std = (s.mean(0), s.std(0) + 1e-3) if c.normalize else (np.zeros(STATE_DIM), np.ones(STATE_DIM))
    done, r = raw["terminals"][:-1].astype(np.float32), raw["rewards"][:-1]
    episodes = np.split(r.astype(np.float64), np.flatnonzero(done) + 1)[:-1]
    spread = np.ptp([episode.sum() for episode in episodes])
    if c.normalize_reward:
        r = r / np.float32(spread) * np.float32(1000)
        r = r * np.float32(c.reward_scale) + np.float32(c.reward_bias)
    data = [(s - mean) / std, raw["actions"][:-1], r, (s2 - mean) / std, done]
    data = [np.asarray(column, np.float32) for column in data]
    ring = [np.zeros((CAPACITY, *column.shape[1:]), np.float32) for column in data]
    size, pointer, moves, env, batches = 0, 0, 0, Line(), []
    state = ((env.reset()[0] - mean) / std).astype(np.float32)

    def rows_at(places: np.ndarray) -> tuple[Tensor, ...]:
        both = (np.concatenate(pair)[places] for pair in zip(data, ring, strict=True))
        return tuple(torch.as_tensor(column, dtype=torch.float64) for column in both)

    for t in range(c.offline_iterations + c.online_iterations):
        if t < c.offline_iterations:
            rows = rows_at(np.random.randint(0, DATA, size=c.batch_size))
            batches.append(rows)
            theirs.offline(rows)
            continue
        moves += 1
        action = theirs.act(torch.tensor(state[None], dtype=torch.float64))[0].numpy().astype(np.float32)
        after, reward, ended, *_ = env.step(action)
        after = (after - mean) / std
        learnt = reward / spread * 1000 * c.reward_scale + c.reward_bias if c.normalize_reward else reward
        kept = (state, action, learnt, after, ended and moves < LIMIT)
        for whole, value in zip(ring, kept, strict=True):
            whole[pointer] = value
        theirs.enter(pointer)
        pointer, size = (pointer + 1) % CAPACITY, min(size + 1, CAPACITY)
        state = after.astype(np.float32)
        if ended or moves == LIMIT:
            state, moves = ((env.reset()[0] - mean) / std).astype(np.float32), 0
        if t >= c.offline_iterations + c.learning_starts:
            batches.append(theirs.online(rows_at, size)[1])
    return Lived(batches, ring)


def life(folder: Path, settings: dict[str, Any]) -> tuple[Lived, Callable[[], Lived]]:
    """A short run of the twin, with twenty online steps that overwrite the ring, and a function for the derivation."""
    raw = write_dataset(folder / "line.hdf5")
    config = twin.TrainConfig(
        env=str(folder / "line.hdf5"),
        runs_path=str(folder / "runs"),
        device="cpu",
        offline_iterations=6,
        online_iterations=20,
        eval_freq=13,
        n_episodes=1,
        **settings | {"buffer_size": DATA},
    )
    with both_in("float64"), patched((twin, "room", lambda config, rows: CAPACITY)):
        ours, fresh, as_it_was = run_of(twin, twin.BalancedReplay, config)

    def theirs() -> Lived:
        with both_in("float64"):
            as_it_was()
            return derived_life(config, raw, Derivation(config, fresh, DATA, CAPACITY))

    return ours, theirs


LOOPS: dict[str, dict[str, Any]] = {
    "default": SMALL | {"learning_starts": 0},
    "all that can be otherwise": SETTINGS["other"]
    | {"learning_starts": 3, "normalize_reward": True, "reward_scale": 0.003, "reward_bias": -0.7}
    | {"normalize": False},
}


@pytest.mark.parametrize("settings", LOOPS.values(), ids=LOOPS)
def test_the_online_loop(settings: dict[str, Any], tmp_path: Path) -> None:
    """Both replay buffers and all batches equal the derivation's: rows by priority, and compared rows."""
    ours, theirs = life(tmp_path, settings)
    expected = theirs()
    assert len(expected.batches) == 26 - settings["learning_starts"]
    assert_close_life(ours, expected)


# ---- mistakes ------------------------------------------------------------------------------------------------------

take_step, ratios, enter, mixture = Stepper.step, twin.BalancedReplay.ratios, twin.BalancedReplay.enter, twin.mixture
density_loss, softplus = twin.BalancedReplay.density_loss, torch.nn.functional.softplus


class FromTheWrongEnd(Ring):
    """Writes in reverse order."""

    def push(self, columns: Any) -> None:
        """Writes each row before the previous one."""
        super().push(columns)
        self.pointer = (self.pointer - 2) % len(self.rows[0])


def timeout_as_terminal(self: Stepper, action: Any, then: Any = None) -> Any:
    """Stores a time limit as a terminal."""
    step = take_step(self, action, then)
    return step._replace(terminal=step.terminal or step.timeout)


def next_state_of_the_reset(self: Stepper, action: Any, then: Any = None) -> Any:
    """Stores the environment's state after a reset as the next state."""
    return take_step(self, action, then)._replace(next_observation=self.observation)


def swapped(self: twin.BalancedReplay, batch: twin.BalancedBatch) -> Any:
    """Mistakes the dataset's rows for the environment's."""
    offline, _ = twin.shares(self.hp)
    s, a = (torch.roll(column, -offline, 0) for column in (batch.compared_observations, batch.compared_actions))
    return density_loss(self, batch._replace(compared_observations=s, compared_actions=a))


def over_the_environment(self: twin.BalancedReplay, batch: twin.BalancedBatch) -> Tensor:
    """Normalises ratios over the environment's rows."""
    offline, _ = twin.shares(self.hp)
    s, a = (torch.roll(column, -offline, 0) for column in (batch.compared_observations, batch.compared_actions))
    return ratios(self, batch._replace(compared_observations=s, compared_actions=a))


def without_temperature(self: twin.BalancedReplay, batch: twin.BalancedBatch) -> Tensor:
    """Computes ratios without the temperature."""
    offline, _ = twin.shares(self.hp)
    mean = torch.exp(self.density(batch.compared_observations[:offline], batch.compared_actions[:offline])).mean()
    return (torch.exp(self.density(batch.observations, batch.actions)) / mean).detach()


def without_their_distance(actor: twin.Actor, observations: Tensor) -> tuple[Tensor, Tensor]:
    """Computes the deviation without the distance of the members' means."""
    means, stds = actor(observations)
    return means.mean(0), torch.sqrt(torch.square(stds).mean(0))


def conservative(self: twin.BalancedReplay, batch: twin.BalancedBatch, noise: twin.Noise) -> Any:
    """Keeps CQL's conservative term online."""
    loss, log = critic_loss(self, batch, noise)
    random = torch.zeros(self.hp.n_ensemble, self.hp.batch_size, 1, self.action_dim)
    sampled = (random, torch.zeros(random.shape[:-1]))
    q = self.critic_1(batch.observations, batch.actions)
    rows = Batch(*batch[:5])
    gap = self.gap(self.critic_1, rows, q, random, (sampled, sampled))
    return loss + self.hp.cql_alpha * gap.sum(), log


critic_loss = twin.BalancedReplay.critic_loss


def all_rows_alike(tree: Tensor, number: int, value: float) -> None:
    """Gives places without a row a priority too."""
    _fill(tree, len(tree) // 2, value)


_fill = twin.fill
MISTAKES: dict[str, tuple[Any, str, Any]] = {
    "time limit stored as terminal": (Stepper, "step", timeout_as_terminal),
    "reset's state stored as the next one": (Stepper, "step", next_state_of_the_reset),
    "reward of an online step not scaled": (preparation, "_step_reward", lambda *_: lambda reward: reward),
    "buffer overwritten from the wrong end": (twin, "Ring", FromTheWrongEnd),
    "dataset's rows taken for the environment's": (twin.BalancedReplay, "density_loss", swapped),
    "temperature forgotten": (twin.BalancedReplay, "ratios", without_temperature),
    "normalised over the environment's rows": (twin.BalancedReplay, "ratios", over_the_environment),
    "priorities not written back": (
        twin.BalancedReplay, "ratios", lambda self, batch: self.priorities()[len(self.priorities()) // 2 + batch.places]
    ),
    "new rows without priority": (twin.BalancedReplay, "enter", lambda self, place, size: enter(self, 0, size)),
    "places without a row drawn": (twin, "fill", all_rows_alike),
    "members' distance left out of the deviation": (twin, "mixture", without_their_distance),
    "the greatest member's value": (
        twin, "pessimistic",
        lambda one, other, s, a: torch.minimum(one(s, a), other(s, a)).max(0).values,
    ),
    "one critic of each pair": (twin, "pessimistic", lambda one, other, s, a: one(s, a).mean(0)),
    "conservative online": (twin.BalancedReplay, "critic_loss", conservative),
}  # fmt: skip


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Lived:
    """The derivation's loop, which no mistake in the twin changes."""
    return life(tmp_path_factory.mktemp("right"), LOOPS["all that can be otherwise"])[1]()


@pytest.mark.thorough
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_loop_is_caught(mistake: str, theirs: Lived, tmp_path: Path) -> None:
    """The comparison fails, if the run finishes at all: a place without a row may be outside the ring."""
    with pytest.raises((AssertionError, IndexError)), patched(MISTAKES[mistake]):
        assert_close_life(life(tmp_path, LOOPS["all that can be otherwise"])[0], theirs)
