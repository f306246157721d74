"""RLPD: six updates in each phase and a whole loop agree in float64, critic by critic; planted mistakes are caught."""

import copy
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from corl_jax.finetune import rlpd as jax_twin
from corl_torch.finetune import rlpd
from parity_tests.engine.precision import both_in
from parity_tests.reference import finetune
from parity_tests.reference.common import (
    ACTION_DIM,
    CPU,
    ROWS,
    STATE_DIM,
    UPDATES,
    adam,
    assert_same_log,
    at_the_weights_of,
    polyak,
    same_draws,
)
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
from shared.data.transitions import Batch
from shared.errors import InputError
from shared.frameworks.exchange import to_torch
from shared.frameworks.torch_data import take
from shared.frameworks.torch_ring import take_either
from shared.runs.configs import read_file

# The capacity of the replay buffer for experience, which is full before the loop ends
CAPACITY, DATA = 12, finetune.ROWS
SMALL: dict[str, Any] = {"hidden_dims": (24, 20), "batch_size": 16, "critic_updates": 3, "learning_starts": 0}
SETTINGS: dict[str, dict[str, Any]] = {
    "default": SMALL,
    "other": SMALL
    | {"hidden_dims": (30,), "n_critics": 4, "n_target_critics": 3, "batch_size": 17, "critic_updates": 2}
    | {"discount": 0.9, "tau": 0.1, "actor_lr": 1e-3, "critic_lr": 3e-3, "temperature_lr": 1e-2}
    | {"backup_entropy": False, "target_entropy": 0.0, "initial_temperature": 0.3, "critic_ln": False},
}


def layers(inputs: int, config: rlpd.TrainConfig, *outputs: int, norm: bool = False) -> nn.Sequential:
    """Linear layers with LayerNorm if wanted and ReLU, then the output layers."""
    found: list[nn.Module] = []
    for before, after in pairwise([inputs, *config.hidden_dims]):
        found += [nn.Linear(before, after), *([nn.LayerNorm(after, eps=1e-6)] if norm else []), nn.ReLU()]
    return nn.Sequential(*found, *(nn.Linear(config.hidden_dims[-1], output) for output in outputs))


class Derivation:
    """The authors' update from a trainer's weights, with one network for each critic."""

    def __init__(self, config: rlpd.TrainConfig, trainer: rlpd.RLPD, bound: float) -> None:
        self.c, self.bound = config, bound
        heads = [nn.Linear(config.hidden_dims[-1], ACTION_DIM) for _ in range(2)]
        self.pi = at_the_weights_of(trainer.actor, nn.ModuleList([layers(STATE_DIM, config), *heads]))
        self.critics = [self.member(trainer.critic, number) for number in range(config.n_critics)]
        self.targets = copy.deepcopy(self.critics)
        self.log_alpha = nn.Parameter(torch.tensor(math.log(config.initial_temperature)))
        self.pi_adam = adam(self.pi.parameters(), config.actor_lr)
        self.q_adam = adam([p for q in self.critics for p in q.parameters()], config.critic_lr)
        self.alpha_adam = adam([self.log_alpha], config.temperature_lr)
        # The critics chosen for targets so far
        self.chosen: set[tuple[int, ...]] = set()

    def member(self, critic: rlpd.Critic, number: int) -> nn.Sequential:
        """One critic as a separate network; PyTorch's layers have transposed weights."""
        q = layers(STATE_DIM + ACTION_DIM, self.c, 1, norm=self.c.critic_ln)
        for mine, other in zip(critic.parameters(), q.parameters(), strict=True):
            value = mine.data[number]
            other.data.copy_(value.T if other.ndim == 2 else value.squeeze(0))
        return q

    def policy(self, s: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
        """The action for noise e (B, A), and its log-probability (B,), precise even for a deviation of e^-20."""
        trunk, loc, log_scale = self.pi
        hidden = trunk(s)
        log_sigma = log_scale(hidden).clip(-20, 2)
        u = loc(hidden) + log_sigma.exp() * e
        # The slope of tanh is 4 / (e^u + e^-u)^2.
        log_slope = math.log(4) - 2 * u.abs() - 2 * torch.log1p(torch.exp(-2 * u.abs()))
        log_normal = -(e**2) / 2 - log_sigma - math.log(2 * math.pi) / 2
        return self.bound * torch.tanh(u), (log_normal - log_slope).sum(1)

    def act(self, s: Tensor, uniform: bool) -> Tensor:
        """The action of a step; both kinds of noise are always drawn."""
        drawn, noise = 2.0 * torch.rand(1, ACTION_DIM) - 1.0, torch.randn(1, ACTION_DIM)
        return (self.bound * drawn if uniform else self.policy(s, noise)[0]).detach()

    def update(self, rows: tuple[Tensor, ...]) -> dict[str, Any]:
        """U minibatches, with all draws made before the first; then policy and temperature on the last minibatch."""
        c, log = self.c, {}
        noise, lots, last = self.draw()
        for i in range(c.critic_updates):
            s, a, r, s2, d = (column[i * c.batch_size : (i + 1) * c.batch_size] for column in rows)
            with torch.no_grad():
                a2, log_pi2 = self.policy(s2, noise[i])
                members = tuple(sorted(range(c.n_critics), key=lots[i].tolist().__getitem__)[: c.n_target_critics])
                self.chosen.add(members)
                q2 = torch.stack([self.targets[k](torch.cat([s2, a2], 1))[:, 0] for k in members]).min(0).values
                if c.backup_entropy:
                    q2 = q2 - self.log_alpha.exp() * log_pi2
                y = r + c.discount * (1 - d) * q2
            q = torch.stack([critic(torch.cat([s, a], 1))[:, 0] for critic in self.critics])
            loss = sum(((value - y) ** 2).mean() for value in q) / c.n_critics
            step(self.q_adam, loss)
            for target, critic in zip(self.targets, self.critics, strict=True):
                polyak(target, critic, c.tau)
            log = {"critic_loss": loss, "q": q.mean()}
        a_pi, log_pi = self.policy(s, last)
        q_pi = sum(critic(torch.cat([s, a_pi], 1))[:, 0] for critic in self.critics) / c.n_critics
        alpha = self.log_alpha.exp().detach()
        actor_loss = (alpha * log_pi - q_pi).mean()
        step(self.pi_adam, actor_loss)
        entropy = -log_pi.detach().mean()
        goal = -ACTION_DIM / 2 if c.target_entropy is None else c.target_entropy
        alpha_loss = self.log_alpha.exp() * (entropy - goal)
        step(self.alpha_adam, alpha_loss)
        return log | {"alpha": alpha, "actor_loss": actor_loss, "entropy": entropy, "alpha_loss": alpha_loss}

    def draw(self) -> tuple[Tensor, Tensor, Tensor]:
        """An update's noise, in the twin's order."""
        c = self.c
        noise = torch.randn(c.critic_updates, c.batch_size, ACTION_DIM)
        return noise, torch.rand(c.critic_updates, c.n_critics), torch.randn(c.batch_size, ACTION_DIM)


def step(optimizer: torch.optim.Optimizer, loss: Any) -> None:
    """One step down the gradient of the loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def columns(rows: int, shift: float, bound: float) -> Batch:
    """Random transitions around a shifted mean, a tenth of them terminal."""
    rng = np.random.default_rng(rows)
    found = (
        shift + rng.normal(size=(rows, STATE_DIM)),
        bound * rng.uniform(-1, 1, (rows, ACTION_DIM)),
        rng.normal(size=rows),
        shift + rng.normal(size=(rows, STATE_DIM)),
        rng.random(rows) < 0.1,
    )
    return Batch(*(torch.as_tensor(column, dtype=torch.float64) for column in found))


def mixed(config: rlpd.TrainConfig, data: Any, seen: Any, size: int | None) -> list[Any]:
    """An update's columns, mixed as the authors do: even rows are the data's, odd ones the environment's."""
    number = config.critic_updates * config.batch_size
    old = np.random.randint(0, len(data[0]), size=number)
    if size is None:
        return [column[old] for column in data]
    new = np.random.randint(0, size, size=number // 2)
    found = [column[old] for column in data]
    for column, other in zip(found, seen, strict=True):
        column[1::2] = other[new]
    return found


def assert_same_agent(trainer: rlpd.RLPD, theirs: Derivation) -> None:
    """Checks that all weights agree within 1e-10."""
    for ours, members in ((trainer.critic, theirs.critics), (trainer.critic_target, theirs.targets)):
        for number, member in enumerate(members):
            for mine, other in zip(theirs.member(ours, number).parameters(), member.parameters(), strict=True):
                torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-10)
    for mine, other in zip(trainer.actor.parameters(), theirs.pi.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(trainer.log_temperature(), theirs.log_alpha, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "bound"), [("default", 1.0), ("other", 2.0)])
def test_both_phases(name: str, bound: float) -> None:
    """Weights, logs and actions agree within 1e-10, in six updates on the data alone and six on both."""
    with both_in("float64"):
        config = rlpd.TrainConfig(device="cpu", **SETTINGS[name])
        torch.manual_seed(2)
        trainer = rlpd.create_trainer(config, STATE_DIM, ACTION_DIM, bound)
        # Deviations within and beyond their bounds, and different scales and biases for each critic
        trainer.actor.log_std.bias.data += torch.linspace(-21.0, 3.0, ACTION_DIM)
        for part in (trainer.critic, trainer.critic_target):
            for parameter in part.parameters():
                parameter.data += 0.1 * torch.linspace(-1.0, 1.0, parameter.numel()).reshape(parameter.shape).sin()
        data, seen = columns(ROWS, 0.0, bound), columns(ROWS // 10, 0.3, bound)
        theirs, logs, expected = Derivation(config, trainer, bound), [], []
        same_draws()
        for number in range(2 * UPDATES):
            size = len(seen.rewards) - 1 if number >= UPDATES else None
            indices, noise = rlpd.draw_noise(config, ROWS, ACTION_DIM, CPU, size)
            batch = take(data, indices) if size is None else take_either(data, seen, indices)
            logs.append(trainer.update(batch, noise))
        drawn = torch.get_rng_state()
        same_draws()
        for number in range(2 * UPDATES):
            expected.append(theirs.update(tuple(mixed(config, data, seen, None if number < UPDATES else 299))))
        assert torch.equal(drawn, torch.get_rng_state())
        assert_same_log(logs, expected, tolerance=1e-10)
        assert_same_agent(trainer, theirs)
        assert trainer.total_it == 2 * UPDATES
        assert len(theirs.chosen) > 4
        states = data.observations[:50]
        trunk, loc, _ = theirs.pi
        right = bound * torch.tanh(loc(trunk(states)))
        np.testing.assert_allclose(trainer.act(states.numpy()), right.detach(), rtol=0.0, atol=1e-10)
        assert len(theirs.critics) == (10 if name == "default" else 4)


@pytest.mark.parametrize("total_it", [9, 10])
def test_first_actions_are_uniform(total_it: int) -> None:
    """They are uniform up to the last step before learning starts; with a bound of 2, all kinds exceed 1."""
    with both_in("float64"):
        config = rlpd.TrainConfig(device="cpu", **SMALL | {"offline_iterations": 3, "learning_starts": 7})
        trainer = rlpd.create_trainer(config, STATE_DIM, ACTION_DIM, 2.0)
        trainer.total_it = total_it
        theirs, states, found = Derivation(config, trainer, 2.0), columns(5, 0.0, 1.0).observations, []
        same_draws()
        for state in states:
            found.append(trainer.explore(state[None], rlpd.draw_exploration(config, ACTION_DIM, CPU)))
        same_draws()
        for state, ours in zip(states, found, strict=True):
            right = theirs.act(state[None], uniform=total_it < 10)
            torch.testing.assert_close(ours, right, rtol=0.0, atol=1e-10)
        assert 1.0 < float(torch.cat(found).abs().max()) <= 2.0


def test_each_minibatch_is_half_of_either_kind() -> None:
    """Even rows are the data's and odd ones the environment's, so that each critic step sees both."""
    config = rlpd.TrainConfig(device="cpu", batch_size=6, critic_updates=5)
    for online_size in (None, 9):
        indices, _ = rlpd.draw_noise(config, 50, ACTION_DIM, CPU, online_size)
        expected = np.resize([False, online_size is not None], (5, 6))
        np.testing.assert_array_equal(indices.reshape(5, 6) >= 50, expected)


@pytest.mark.parametrize("side", ["torch", "jax"])
def test_weights_start_uniform(side: str) -> None:
    """Each critic starts by Glorot's rule, with neutral norms; with the paper's sizes the counts are the paper's."""
    config = rlpd.TrainConfig(device="cpu", initial_temperature=0.5)
    trainer = rlpd.create_trainer(config, 29, 8, 1.0)
    if side == "jax":
        state = jax_twin.create_train_state(
            jax.random.key(7), jax_twin.TrainConfig(initial_temperature=0.5), 29, 8, 1.0
        )
        to_torch(state, trainer)
    assert sum(p.numel() for p in trainer.critic.parameters()) == 768_010
    assert sum(p.numel() for p in trainer.actor.parameters()) == 77_584
    linear = [layer.weight for layer in (*trainer.actor.trunk[::2], trainer.actor.mean, trainer.actor.log_std)]
    critics = [layer for layer in trainer.critic.net if isinstance(layer, rlpd.VectorizedLinear)]
    for weight in [*linear, *(member for layer in critics for member in layer.weight)]:
        bound = math.sqrt(6 / sum(weight.shape))
        assert 0.95 * bound < weight.abs().max() <= bound
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)
    for layer in critics:
        assert len({member.detach().numpy().tobytes() for member in layer.weight}) == 10
    for name, parameter in [*trainer.actor.named_parameters(), *trainer.critic.named_parameters()]:
        is_norm = name.startswith(("net.1.", "net.4.")) and name.endswith("weight")
        if name.endswith("bias") or is_norm:
            assert torch.equal(parameter, torch.full_like(parameter, float(is_norm))), name
    for ours, target in zip(trainer.critic.parameters(), trainer.critic_target.parameters(), strict=True):
        assert torch.equal(ours, target)
        assert ours is not target
    assert float(trainer.log_temperature()) == pytest.approx(math.log(0.5))


def test_the_critics_of_a_target_are_those_asked_for() -> None:
    """Both twins use exactly these critics, with their norms."""
    config: dict[str, Any] = {"device": "cpu", "hidden_dims": (9,), "n_critics": 5}
    trainer = rlpd.create_trainer(rlpd.TrainConfig(**config), STATE_DIM, ACTION_DIM, 1.0)
    state = jax_twin.create_train_state(jax.random.key(0), jax_twin.TrainConfig(**config), STATE_DIM, ACTION_DIM, 1.0)
    s, a, *_ = (column.float() for column in columns(7, 0.0, 1.0))
    for members in ([3, 1], [4], [0, 2, 4, 1, 3]):
        found = rlpd.values_of(trainer.critic, torch.tensor(members), s, a)
        torch.testing.assert_close(found, trainer.critic(s, a)[members])
        inputs = jnp.asarray(s.numpy()), jnp.asarray(a.numpy())
        ours = jax_twin.values_of(state.critic, jnp.asarray(members), *inputs)
        np.testing.assert_allclose(ours, state.critic(*inputs)[np.asarray(members)], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("side", ["torch", "jax"])
def test_more_critics_in_a_target_than_there_are_are_refused(side: str) -> None:
    """The error is one line."""
    twin = rlpd if side == "torch" else jax_twin
    with pytest.raises(InputError, match=r"^n_target_critics is 3: set at most n_critics, 2$"):
        twin.train(twin.TrainConfig(n_critics=2, n_target_critics=3))


def test_the_authors_names_are_understood(tmp_path: Path) -> None:
    """The names of their settings and flags are understood."""
    text = (
        "env_name: antmaze-umaze-v2\nmax_steps: 300000\nutd_ratio: 20\nnum_qs: 10\nnum_min_qs: 1\npretrain_steps: 0\n"
    )
    text += "start_training: 5000\neval_interval: 5000\neval_episodes: 10\ntemp_lr: 0.0003\ncritic_layer_norm: true\n"
    text += "init_temperature: 1.0\nbackup_entropy: false\ntarget_entropy: null\nhidden_dims: [256, 256, 256]\n"
    (tmp_path / "maze.yaml").write_text(text)
    config = read_file(rlpd.TrainConfig, "finetune/rlpd", tmp_path / "maze.yaml")
    assert (config.max_timesteps, config.critic_updates, config.n_critics) == (300_000, 20, 10)
    assert (config.n_target_critics, config.learning_starts, config.critic_ln) == (1, 5_000, True)
    assert (config.eval_freq, config.n_episodes, config.seed, config.batch_size) == (5_000, 10, 42, 256)
    assert (config.online_iterations, config.offline_iterations) == (300_000, 0)


# ---- the loop ------------------------------------------------------------------------------------------------------


def derived_life(c: rlpd.TrainConfig, raw: dict[str, np.ndarray], theirs: Derivation, added: float) -> Lived:
    """The loop over two replay buffers, the second of which overwrites its oldest rows."""
    s, s2 = raw["observations"][:-1], raw["observations"][1:]
    mean, std = (s.mean(0), s.std(0) + 1e-3) if c.normalize else (np.zeros(STATE_DIM), np.ones(STATE_DIM))
    done = raw["terminals"][:-1].astype(np.float32)
    inside = np.clip(raw["actions"][:-1], -1 + 1e-5, 1 - 1e-5)
    data = [(s - mean) / std, inside, raw["rewards"][:-1] + np.float32(added), (s2 - mean) / std, done]
    data = [np.asarray(column, np.float32) for column in data]
    ring = [np.zeros((CAPACITY, *column.shape[1:]), np.float32) for column in data]
    size, pointer, moves, env, batches = 0, 0, 0, Line(), []
    state = ((env.reset()[0] - mean) / std).astype(np.float32)
    for t in range(c.offline_iterations + c.online_iterations):
        early = t < c.offline_iterations + c.learning_starts
        if t >= c.offline_iterations:
            moves += 1
            action = theirs.act(torch.tensor(state[None], dtype=torch.float64), early)[0].numpy().astype(np.float32)
            after, reward, ended, *_ = env.step(action)
            after = (after - mean) / std
            for whole, value in zip(ring, (state, action, reward + added, after, ended and moves < LIMIT), strict=True):
                whole[pointer] = value
            pointer, size = (pointer + 1) % CAPACITY, min(size + 1, CAPACITY)
            state = after.astype(np.float32)
            if ended or moves == LIMIT:
                state, moves = ((env.reset()[0] - mean) / std).astype(np.float32), 0
            if early:
                continue
        rows = mixed(c, data, ring, size if t >= c.offline_iterations else None)
        batches.append(tuple(torch.as_tensor(column, dtype=torch.float64) for column in rows))
        theirs.update(batches[-1])
    return Lived(batches, ring)


def life(folder: Path, settings: dict[str, Any]) -> tuple[Lived, Callable[[], Lived]]:
    """A short run of the twin that overwrites the ring, and a function that runs the derivation."""
    raw = write_dataset(folder / "line.hdf5")
    # Some of the data's actions reach their bounds.
    raw["actions"] = np.clip(1.5 * raw["actions"], -1.0, 1.0)
    with h5py.File(folder / "line.hdf5", "a") as file:
        file["actions"][...] = raw["actions"]
    config = rlpd.TrainConfig(
        env=str(folder / "line.hdf5"),
        runs_path=str(folder / "runs"),
        device="cpu",
        eval_freq=13,
        n_episodes=1,
        **settings,
    )
    with both_in("float64"), patched((rlpd, "room", lambda config, rows: CAPACITY)):
        ours, fresh, as_it_was = run_of(rlpd, rlpd.RLPD, config)

    def theirs() -> Lived:
        with both_in("float64"):
            derivation = Derivation(config, fresh, 1.0)
            # The derivation's networks were also drawn before they got their weights.
            as_it_was()
            added = -1.0 if config.normalize_reward and config.eval_env else 0.0
            return derived_life(config, raw, derivation, added)

    return ours, theirs


LOOPS: dict[str, dict[str, Any]] = {
    # Online from the start; locomotion's rewards stay unchanged.
    "default": SMALL | {"online_iterations": 20, "learning_starts": 5},
    "all that can be otherwise": SETTINGS["other"]
    | {
        "offline_iterations": 6,
        "online_iterations": 20,
        "learning_starts": 3,
        "normalize": True,
        "eval_env": ANTMAZE_ID,
    },
    "rewards as they are": SMALL | {"online_iterations": 8, "normalize_reward": False, "eval_env": ANTMAZE_ID},
}


@pytest.mark.parametrize("settings", LOOPS.values(), ids=LOOPS)
def test_the_online_loop(settings: dict[str, Any], tmp_path: Path) -> None:
    """The twin's replay buffers and batches equal the derivation's."""
    ours, theirs = life(tmp_path, settings)
    expected = theirs()
    updates = settings["online_iterations"] - settings["learning_starts"] + settings.get("offline_iterations", 0)
    assert len(expected.batches) == updates
    assert_close_life(ours, expected)
