"""MOBILE as in its authors' code (commit 4882dce), written from the equations, with bare arrays and a loop over elites.

Draws are in the authors' order. Losses, weights, and all rows of the ring agree within 1e-12 in double precision.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from corl_torch.model_based import mobile
from parity_tests.reference.common import (
    ACTION_DIM,
    CPU,
    ROWS,
    STATE_DIM,
    UPDATES,
    assert_same_log,
    assert_same_weights,
    mlp,
    same_draws,
)
from parity_tests.reference.test_fql import Layer, layers_of, mixed
from parity_tests.reference.test_model_based_mopo import (
    SMALL,
    Made,
    assert_ends,
    assert_falling_rate,
    rows_of,
)
from shared.data.dynamics import ModelSizes, Step
from shared.data.transitions import Batch
from shared.frameworks.torch_ring import Ring

TOLERANCE = 1e-12
MEMBERS, ELITES = 6, (4, 0, 5, 2)
SIZES = ModelSizes(STATE_DIM, ACTION_DIM, MEMBERS, len(ELITES))
OWN: dict[str, Any] = SMALL | {"n_state_samples": 3, "penalty_coef": 2.0}
CASES: dict[str, dict[str, Any]] = {
    "default": {"n_state_samples": 10, "penalty_coef": 1.0},
    "mostly real, with entropy": {
        "real_ratio": 0.75,
        "discount": 0.9,
        "tau": 0.1,
        "backup_entropy": True,
        "nonnegative_targets": False,
    },
    "best of several": {
        "n_target_actions": 10,
        "backup_entropy": True,
        "n_critics": 3,
        "tune_temperature": False,
        "fixed_temperature": 0.6,
        "real_ratio": 0.0,
    },
    "a target entropy, fast": {
        "target_entropy": -60.0,
        "temperature_lr": 1.0,
        "critic_lr": 1e-2,
        "rollout_length": 5,
        "backup_entropy": True,
    },
    "no penalty": {"penalty_coef": 0.0, "target_entropy": 0.0, "n_state_samples": 1, "n_critics": 1},
    "nothing but the dataset": {"real_ratio": 1.0, "rollout_freq": 1, "hidden_dims": (20, 20, 20)},
}
# Cases in which a reward is the largest number in the roll-outs
HARSH = [CASES["mostly real, with entropy"]]
of_each_case = pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
bounds = pytest.mark.parametrize("bound", [1.0, 2.0])


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    """Makes a mistake a thousand million times larger than rounding."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(name="rows")
def doubles(dataset: Batch) -> Batch:
    """The dataset in double precision."""
    return Batch(*(column.double() for column in dataset))


class Linear(NamedTuple):
    """A model whose members are linear in their inputs; its steps in roll-outs are by a formula, as in MOPO's test.

    In these steps, the largest number is a state below 0, or else a reward below 0.
    """

    less: float
    weights: Tensor
    log_variances: Tensor
    elites: Tensor
    mean: Tensor
    std: Tensor

    @classmethod
    def drawn(cls, less: float) -> "Linear":
        """Members that are far apart."""
        rng = np.random.default_rng(3)
        shape = MEMBERS, STATE_DIM + ACTION_DIM, STATE_DIM + 1
        columns = rng.normal(size=shape), rng.normal(size=shape), ELITES, rng.normal(size=shape[1])
        arrays = (torch.as_tensor(np.asarray(column)) for column in (*columns, rng.uniform(0.5, 2.0, shape[1])))
        weights, log_variances, *others = arrays
        return cls(less, 0.3 * weights, 0.1 * log_variances, *others)

    def dynamics(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Means and log-variances of changes and rewards (E, B, S + 1)."""
        return inputs @ self.weights, inputs @ self.log_variances - 1.0

    def step(self, observations: Tensor, actions: Tensor, draws: Any, coef: float, mode: str) -> Step:
        """The formula's step; it must not be told of a penalty."""
        assert coef == 0.0
        assert draws.normals.shape == (MEMBERS, len(observations), STATE_DIM + 1)
        step = Made().step(observations, actions, draws._replace(normals=draws.normals[:4]), coef, mode)
        return step._replace(rewards=step.rewards - self.less, raw_rewards=step.raw_rewards - self.less)


class Reference:
    """The authors' program, starting from the current generator states."""

    def __init__(self, config: Any, trainer: Any, data: Batch, model: Linear, bound: float) -> None:
        self.c, self.data, self.model, self.bound = config, data, model, bound
        self.pi = layers_of(trainer.actor)
        self.q = [layers_of(member) for member in trainer.critic.members]
        self.q_t = [layers_of(member) for member in trainer.critic_target.members]
        self.log_alpha = torch.zeros(())
        self.alpha = 1.0 if config.tune_temperature else config.fixed_temperature
        self.capacity = config.rollout_batch_size * config.rollout_length * config.model_retain_epochs
        self.held: list[tuple[Tensor, ...]] = []
        self.next = self.updates = self.ends = 0
        self.moments: dict[str, list[tuple[Tensor, Tensor]]] = {}
        self.cut: list[bool] = []

    def hidden(self, layers: list[Layer], x: Tensor) -> Tensor:
        """The last hidden layer."""
        for weight, bias in layers:
            x = torch.relu(x @ weight.T + bias)
        return x

    def act(self, s: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions (B, A) and log-probabilities (B,)."""
        *trunk, (mu, mu_bias), (sigma, sigma_bias) = self.pi
        h = self.hidden(trunk, s)
        log_std = torch.clamp(h @ sigma.T + sigma_bias, -5.0, 2.0)
        u = h @ mu.T + mu_bias + torch.exp(log_std) * noise
        a = torch.tanh(u)
        normal = -0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi)
        return self.bound * a, (normal - torch.log(self.bound * (1 - a**2) + 1e-6)).sum(-1)

    def values(self, critics: list[list[Layer]], s: Tensor, a: Tensor) -> Tensor:
        """The values of all critics (N, B)."""
        found = []
        for *trunk, (weight, bias) in critics:
            found.append((self.hidden(trunk, torch.cat([s, a], -1)) @ weight.T + bias)[..., 0])
        return torch.stack(found)

    def roll_out(self) -> None:
        """Adds roll-outs from dataset states to the ring, row by row."""
        states = self.data.observations[np.random.randint(0, ROWS, size=self.c.rollout_batch_size)]
        for _ in range(self.c.rollout_length):
            if not len(states):
                break
            actions, _ = self.act(states, torch.randn(len(states), ACTION_DIM))
            normals = torch.as_tensor(np.random.normal(size=(MEMBERS, len(states), STATE_DIM + 1)))
            chosen = torch.as_tensor(np.random.choice(np.arange(len(ELITES)), size=len(states)))
            step = self.model.step(states, actions, mobile.Draws(normals, chosen), 0.0, "aleatoric")
            for row in zip(states, actions, step.raw_rewards, step.next_observations, step.terminals, strict=True):
                self.held[self.next : self.next + 1] = [row]
                self.next = (self.next + 1) % self.capacity
            self.ends += int(step.terminals.sum())
            states = step.next_observations[~step.terminals]

    def batch(self) -> tuple[int, list[Tensor]]:
        """The number of real rows, and these rows, then the model's."""
        real = int(self.c.batch_size * self.c.real_ratio)
        places = np.random.randint(0, ROWS, size=real)
        chosen = np.random.randint(0, len(self.held), size=self.c.batch_size - real)
        rows = [tuple(column[place] for column in self.data) for place in places]
        rows += [self.held[place] for place in chosen]
        return real, [torch.stack([x.double() for x in column]) for column in zip(*rows, strict=True)]

    def penalty(self, s: Tensor, a: Tensor, real: int) -> Tensor:
        """The deviation of the elites' values, (B,), in the authors' loop; real rows are set to 0 at the end."""
        n, size = self.c.n_state_samples, len(s)
        x = (torch.cat([s, a], 1) - self.model.mean) / self.model.std
        samples = []
        for _ in range(n):
            noise = torch.randn(len(ELITES), size, STATE_DIM + 1)
            for place, member in enumerate(ELITES):
                mean = x @ self.model.weights[member]
                deviation = torch.exp((x @ self.model.log_variances[member] - 1.0) / 2)
                samples.append(s + (mean + deviation * noise[place])[:, :STATE_DIM])
        states = torch.cat(samples)
        actions, _ = self.act(states, torch.randn(len(states), ACTION_DIM))
        v = self.values(self.q_t, states, actions).min(0).values.reshape(n, len(ELITES), size)
        each = v.sum(0) / n
        spread = ((each - each.sum(0) / len(ELITES)) ** 2).sum(0) / (len(ELITES) - 1)
        return torch.cat([torch.zeros(real), spread.sqrt()[real:]])

    @torch.no_grad()
    def target(self, real: int, s: Tensor, a: Tensor, r: Tensor, s2: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        """The penalised targets (B,) before they are raised, and the penalties (B,)."""
        pen, m = self.penalty(s, a, real), self.c.n_target_actions
        repeated = s2.repeat_interleave(m, 0)
        a2, log_prob = self.act(repeated, torch.randn(len(repeated), ACTION_DIM))
        v = self.values(self.q_t, repeated, a2).reshape(-1, len(s), m).max(2).values.min(0).values
        if self.c.backup_entropy and m == 1:
            v = v - self.alpha * log_prob
        return (r - self.c.penalty_coef * pen) + self.c.discount * (1 - d) * v, pen

    def descend(self, name: str, loss: Tensor, weights: list[Tensor], lr: float) -> list[Tensor]:
        """Adam's next step on all weights of a loss."""
        old = self.moments.get(name, [(torch.zeros_like(x), torch.zeros_like(x)) for x in weights])
        new, after, t = [], [], self.updates + 1
        for x, g, (m, v) in zip(weights, torch.autograd.grad(loss, weights), old, strict=True):
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            new.append((m, v))
            after.append((x - lr * (m / (1 - 0.9**t)) / (torch.sqrt(v / (1 - 0.999**t)) + 1e-8)).detach())
        self.moments[name] = new
        return after

    def update(self) -> dict[str, Any]:
        """One step of the program, including the roll-outs before it."""
        c = self.c
        if self.updates % c.rollout_freq == 0:
            self.roll_out()
        real, (s, a, r, s2, d) = self.batch()
        y, pen = self.target(real, s, a, r, s2, d)
        found: dict[str, Any] = {"penalty": pen.sum() / len(s)}
        if c.nonnegative_targets:
            self.cut += (y < 0).tolist()
            found["raised_targets"] = sum(self.cut[-len(s) :]) / len(s)
            y = torch.where(y > 0, y, 0.0)
        self.q = [leaves(q) for q in self.q]
        loss = ((self.values(self.q, s, a) - y) ** 2).sum() / (len(self.q) * len(s))
        found["critic_loss"] = loss
        layers, depth = (
            layered(self.descend("q", loss, flat([layer for q in self.q for layer in q]), c.critic_lr)),
            len(self.q[0]),
        )
        self.q = [layers[depth * i : depth * (i + 1)] for i in range(len(self.q))]
        self.pi = leaves(self.pi)
        now, log_prob = self.act(s, torch.randn(len(s), ACTION_DIM))
        loss = -self.values(self.q, s, now).min(0).values.mean() + self.alpha * log_prob.mean()
        epoch, epochs = self.updates // c.num_updates_on_epoch, c.max_timesteps / c.num_updates_on_epoch
        rate = c.actor_lr * (1 + math.cos(math.pi * epoch / epochs)) / 2
        self.pi = layered(self.descend("pi", loss, flat(self.pi), rate))
        found |= {"actor_loss": loss, "entropy": -log_prob.mean()}
        if c.tune_temperature:
            wanted = c.target_entropy if c.target_entropy else -ACTION_DIM
            log_alpha = self.log_alpha.clone().requires_grad_()
            loss = -(log_alpha * (log_prob.detach() + wanted)).mean()
            (self.log_alpha,) = self.descend("alpha", loss, [log_alpha], c.temperature_lr)
            self.alpha = min(math.exp(self.log_alpha), 1.0)
            found |= {"alpha_loss": loss, "alpha": self.alpha}
        self.q_t = [mixed(old, new, c.tau) for old, new in zip(self.q_t, self.q, strict=True)]
        self.updates += 1
        return found


def flat(layers: list[Layer]) -> list[Tensor]:
    """Weights and biases, layer by layer."""
    return [x for layer in layers for x in layer]


def layered(weights: list[Tensor]) -> list[Layer]:
    """The layers of weights and biases."""
    return list(zip(weights[::2], weights[1::2], strict=True))


def leaves(layers: list[Layer]) -> list[Layer]:
    """Weights that have a gradient."""
    return [(weight.clone().requires_grad_(), bias.clone().requires_grad_()) for weight, bias in layers]


def moved(trainer: Any) -> None:
    """Moves deviations to both sides of their bounds, and targets away from their networks."""
    trainer.actor.dist_net.sigma.bias.data += torch.linspace(-7.0, 3.0, ACTION_DIM)
    for parameter in trainer.critic_target.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)


@bounds
@of_each_case
def test_six_updates_and_their_roll_outs(rows: Batch, settings: dict[str, Any], bound: float) -> None:
    """Logs, weights, and rows of the ring are equal within 1e-12, and both sides draw the same."""
    config = mobile.TrainConfig(device="cpu", **OWN | settings)
    torch.manual_seed(7)
    trainer = mobile.create_trainer(config, STATE_DIM, ACTION_DIM, bound)
    model = Linear.drawn(90.0 if settings in HARSH else 0.0)
    moved(trainer)
    reference = Reference(config, trainer, rows, model, bound)
    capacity = config.rollout_batch_size * config.rollout_length * config.model_retain_epochs
    ring, logs = Ring(rows, capacity, keeps_dataset=False), []
    same_draws()
    for number in range(UPDATES):
        if number % config.rollout_freq == 0:
            before = ring.size
            rolled = mobile.imagine(trainer, model, rows, ring, SIZES)
            if before + float(rolled["rollout_transitions"]) <= capacity:
                latest = Batch(*(column[before : ring.size] for column in ring.rows))
                numbers = torch.cat([latest.rewards, latest.next_observations.flatten()])
                figures = len(latest.rewards), latest.rewards.mean(), abs(numbers).max()
                names = "rollout_transitions", "rollout_reward", "rollout_largest"
                assert_same_log([rolled], [dict(zip(names, figures, strict=True))], TOLERANCE)
        indices, noise = mobile.draw_noise(config, ROWS, ring.size, len(ELITES), STATE_DIM, ACTION_DIM, CPU)
        batch = mobile.take_modelled(mobile.Sources(rows, ring.rows, model), indices, mobile.shares(config)[0])
        logs.append(trainer.update(batch, noise))
    after = torch.rand(1), np.random.random()
    same_draws()
    expected = [reference.update() for _ in range(UPDATES)]
    assert after == (torch.rand(1), np.random.random())
    assert_same_log(logs, expected, TOLERANCE)
    assert ring.content()["pointer"] == reference.next
    for ours, theirs in zip(rows_of(ring), reference.held, strict=True):
        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, other.double(), rtol=TOLERANCE, atol=TOLERANCE)
    networks = [(trainer.actor, reference.pi)]
    networks += list(zip(trainer.critic.members, reference.q, strict=True))
    networks += list(zip(trainer.critic_target.members, reference.q_t, strict=True))
    for network, layers in networks:
        for mine, other in zip(network.parameters(), flat(layers), strict=True):
            torch.testing.assert_close(mine.detach(), other.detach(), rtol=TOLERANCE, atol=TOLERANCE)
    assert float(trainer.temperature()) == pytest.approx(float(reference.alpha), rel=TOLERANCE)
    assert trainer.log_temperature.constant.item() == pytest.approx(float(reference.log_alpha), rel=TOLERANCE)
    assert trainer.total_it == UPDATES
    assert reference.ends > 0
    if config.nonnegative_targets:
        assert set(reference.cut) == {False, True}
    if config.target_entropy == -60.0:
        assert float(trainer.temperature()) < 0.5
    elif config.tune_temperature:
        assert reference.log_alpha > 0.0
    *trunk, (mu, bias), _ = reference.pi
    mean = bound * torch.tanh(reference.hidden(trunk, rows.observations) @ mu.T + bias)
    np.testing.assert_allclose(trainer.act(rows.observations.numpy()), mean.detach(), rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("n_critics", [2, 3])
def test_weights_start_where_the_seed_says(n_critics: int) -> None:
    """The policy is drawn first, then one critic after the other, and nothing else; targets are copies."""
    config = mobile.TrainConfig(device="cpu", n_critics=n_critics, **SMALL)
    same_draws()
    trainer = mobile.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    after = torch.rand(1)
    same_draws()
    last = config.hidden_dims[-1]
    policy = [mlp(STATE_DIM, *config.hidden_dims), nn.Linear(last, ACTION_DIM), nn.Linear(last, ACTION_DIM)]
    critics = [mlp(STATE_DIM + ACTION_DIM, *config.hidden_dims, 1) for _ in range(n_critics)]
    assert torch.equal(after, torch.rand(1))
    assert_same_weights([trainer.actor.backbone, *trainer.actor.dist_net.children()], policy)
    assert_same_weights(list(trainer.critic.members), critics)
    assert_same_weights(list(trainer.critic_target.members), critics)


def test_the_rate_falls_epoch_by_epoch() -> None:
    """It is 0 at the end of the run."""
    assert_falling_rate(mobile)


def test_a_roll_out_that_is_over_takes_no_draws() -> None:
    """The model takes none either."""
    assert_ends(mobile)
