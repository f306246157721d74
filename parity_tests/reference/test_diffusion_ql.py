"""Diffusion-QL in its authors' arrangement, in bare arrays, the chain by Bayes' rule. Six updates agree within 1e-12.

Draws are in the authors' order: each step of a chain draws after its mean, and step 0 draws what it does not use.
"""

import math
from collections.abc import Iterator
from itertools import chain, pairwise
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from corl_jax import diffusion_ql as jax_twin
from corl_torch import diffusion_ql
from parity_tests.reference.common import (
    ACTION_DIM,
    CPU,
    ROWS,
    STATE_DIM,
    UPDATES,
    assert_same_log,
    same_draws,
)
from parity_tests.reference.test_fql import layers_of, mixed
from shared.data.transitions import Batch
from shared.frameworks.torch_data import take

# The relative tolerance of logs, and the absolute one of weights and actions
LOG, WEIGHTS = 1e-11, 1e-12
SMALL: dict[str, Any] = {"actor_hidden_dims": (40, 30), "critic_hidden_dims": (30, 40), "batch_size": 64}
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {"batch_size": 16, "n_action_samples": 4},
    "clipped": SMALL
    | {"beta_schedule": "linear", "diffusion_steps": 8, "n_target_actions": 10, "clip_grad": 0.1}
    | {"eta": 3.0, "discount": 0.9, "tau": 0.1, "ema_decay": 0.9, "n_action_samples": 3},
    "cosine": SMALL
    | {"beta_schedule": "cosine", "clip_grad": None, "actor_lr": 1e-3, "critic_lr": 1e-4, "max_timesteps": 30}
    | {"ema_period": 3, "n_action_samples": 6},
    "authors": SMALL
    | {"opt_decay_schedule": "by_evaluation", "eval_freq": 4, "num_updates_on_epoch": 3, "max_timesteps": 200}
    | {"ema_start": 12, "ema_period": 2, "diffusion_steps": 3, "n_target_actions": 2, "n_action_samples": 2},
    "constant, one step": SMALL
    | {"opt_decay_schedule": "none", "diffusion_steps": 1, "actor_hidden_dims": (50,), "ema_period": 2}
    | {"n_action_samples": 3},
}
# Updates made before the six, because the rates and the average depend on the number of updates
BEFORE = 10
# States in which the policies act
STATES = 300


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    """Makes a mistake a thousand million times larger than rounding."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def run(layers: list[tuple[Tensor, Tensor]], *inputs: Tensor) -> Tensor:
    """A network on inputs (B, ...) side by side, (B, O)."""
    x = torch.cat(inputs, 1)
    for weight, bias in layers[:-1]:
        h = x @ weight.T + bias
        x = h * torch.tanh(torch.log1p(torch.exp(h)))
    weight, bias = layers[-1]
    return x @ weight.T + bias


def schedule(name: str, n: int) -> list[float]:
    """The variance that each step adds."""
    if name == "vp":
        return [1 - math.exp(-0.1 / n - 0.5 * 9.9 * (2 * t - 1) / n**2) for t in range(1, n + 1)]
    if name == "linear":
        return [1e-4 + (0.02 - 1e-4) * i / max(n - 1, 1) for i in range(n)]
    left = [math.cos((i / n + 0.008) / 1.008 * math.pi / 2) ** 2 for i in range(n + 1)]
    return [min(1 - after / before, 0.999) for before, after in pairwise(left)]


class Reference:
    """The authors' update and actions."""

    def __init__(self, config: Any, trainer: Any, bound: float) -> None:
        self.c, self.bound, self.n = config, bound, BEFORE
        self.eps = [layers_of(trainer.actor.time), layers_of(trainer.actor.net)]
        self.eps_t = [layers_of(trainer.actor_target.time), layers_of(trainer.actor_target.net)]
        self.q = [layers_of(trainer.critic.q1), layers_of(trainer.critic.q2)]
        self.q_t = [layers_of(trainer.critic_target.q1), layers_of(trainer.critic_target.q2)]
        self.beta = schedule(config.beta_schedule, config.diffusion_steps)
        self.left = [math.prod(1 - beta for beta in self.beta[: i + 1]) for i in range(len(self.beta))]
        self.moments: dict[str, list[tuple[Tensor, Tensor]]] = {}
        self.coins: list[float] = []
        # The branches that batches reach
        self.reached: set[str] = set()

    def reach(self, what: str, where: Tensor) -> None:
        """Notes the branches of all rows."""
        self.reached |= {f"{what} {x}" for x in where.flatten().tolist()}

    def found(self, eps: list[Any], s: Tensor, x: Tensor, t: Tensor) -> Tensor:
        """The noise found in x before steps t (B,)."""
        e = torch.tensor([10000 ** (-k / 7) for k in range(8)])
        time = torch.cat([torch.sin(t[:, None] * e), torch.cos(t[:, None] * e)], 1)
        return run(eps[1], x, run(eps[0], time), s)

    def posterior(self, i: int, a: Tensor, x: Tensor) -> tuple[Tensor, float]:
        """Mean and variance before step i by Bayes' rule, if x came after it and the action is a."""
        if i == 0:
            return a, 0.0
        beta, spread = self.beta[i], 1 - self.left[i - 1]
        variance = 1 / (1 / spread + (1 - beta) / beta)
        return variance * (math.sqrt(self.left[i - 1]) * a / spread + math.sqrt(1 - beta) * x / beta), variance

    def sampled(self, eps: list[Any], s: Tensor, normals: Iterator[Tensor], what: str) -> Tensor:
        """The actions at the ends of chains."""
        x = next(normals)
        for i in reversed(range(self.c.diffusion_steps)):
            left = self.left[i]
            noise = self.found(eps, s, x, torch.full((len(s),), float(i)))
            a = x / math.sqrt(left) - math.sqrt(1 / left - 1) * noise
            self.reach(what, a.abs() > self.bound)
            edge = torch.full_like(a, self.bound)
            mean, variance = self.posterior(i, torch.where(a > edge, edge, torch.where(a < -edge, -edge, a)), x)
            x = mean + math.sqrt(variance) * next(normals)
        return x

    def drawn(self, rows: int) -> Iterator[Tensor]:
        """Normal numbers, as many as asked for."""
        while True:
            yield torch.randn(rows, ACTION_DIM)

    @torch.no_grad()
    def target(self, r: Tensor, s2: Tensor, d: Tensor) -> Tensor:
        """The target of both critics, (B,)."""
        many = s2.repeat_interleave(self.c.n_target_actions, 0)
        a2 = self.sampled(self.eps_t, many, self.drawn(len(many)), "next action beyond")
        values = [run(q, many, a2).reshape(len(s2), -1) for q in self.q_t]
        best = [value.max(1).values for value in values]
        self.reach("least", best[0] < best[1])
        if self.c.n_target_actions > 1:
            self.reach("best", values[0].argmax(1) == 0)
        self.reach("done", d > 0)
        return r + (1 - d) * self.c.discount * torch.minimum(*best)

    def step(self, name: str, loss: Tensor, layers: list[Any], lr: float) -> None:
        """One step of Adam, whose gradient is clipped to a norm."""
        leaves = [*chain(*chain(*layers))]
        slopes = torch.autograd.grad(loss, leaves)
        norm = math.sqrt(sum(float((slope**2).sum()) for slope in slopes))
        if self.c.clip_grad is not None:
            self.reached |= {f"{name} clipped {norm + 1e-6 > self.c.clip_grad}"}
            slopes = tuple(slope * min(1.0, self.c.clip_grad / (norm + 1e-6)) for slope in slopes)
        moments = self.moments.setdefault(name, [(torch.zeros_like(x), torch.zeros_like(x)) for x in leaves])
        k = self.n - BEFORE + 1
        for place, (leaf, g) in enumerate(zip(leaves, slopes, strict=True)):
            m, v = moments[place]
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            moments[place] = m, v
            leaf.data -= lr * (m / (1 - 0.9**k)) / ((v / (1 - 0.999**k)).sqrt() + 1e-8)

    def rate(self, initial: float) -> float:
        """The learning rate now."""
        c = self.c
        if c.opt_decay_schedule == "none":
            return initial
        if c.opt_decay_schedule == "by_evaluation":
            share = (self.n // c.eval_freq) / (c.max_timesteps / c.num_updates_on_epoch)
        else:
            share = self.n / c.max_timesteps
        return initial * math.cos(math.pi * share / 2) ** 2

    def update(self, dataset: Batch) -> dict[str, Tensor]:
        """Critics, policy, its average, target critics."""
        c, size = self.c, self.c.batch_size
        rows = torch.randint(0, ROWS, (size,))
        s, a, r, s2, d = (column[rows] for column in dataset)
        y = self.target(r, s2, d)
        for layer in chain(*self.eps, *self.q):
            for leaf in layer:
                leaf.requires_grad_()
        critic_loss = sum(((run(q, s, a)[:, 0] - y) ** 2).sum() / size for q in self.q)
        assert isinstance(critic_loss, Tensor)
        self.step("critic", critic_loss, self.q, self.rate(c.critic_lr))
        t = torch.randint(0, c.diffusion_steps, (size,))
        n = torch.randn(size, ACTION_DIM)
        left = torch.tensor(self.left)[t][:, None]
        x = torch.sqrt(left) * a + torch.sqrt(1 - left) * n
        bc_loss = ((self.found(self.eps, s, x, t) - n) ** 2).sum() / a.numel()
        u = self.sampled(self.eps, s, self.drawn(size), "action beyond")
        q1, q2 = (run(q, s, u) for q in self.q)
        self.coins.append(np.random.uniform())
        first = self.coins[-1] > 0.5
        self.reached |= {f"first {first}"}
        one, other = (q1, q2) if first else (q2, q1)
        self.reach("positive", other > 0)
        q_loss = -one.sum() / other.detach().abs().sum()
        actor_loss = bc_loss + c.eta * q_loss
        self.step("actor", actor_loss, self.eps, self.rate(c.actor_lr))
        if due := self.n % c.ema_period == 0 and self.n >= c.ema_start:
            self.eps_t = [mixed(old, new, 1 - c.ema_decay) for old, new in zip(self.eps_t, self.eps, strict=True)]
        self.reached |= {f"average {due}"}
        self.q_t = [mixed(old, new, c.tau) for old, new in zip(self.q_t, self.q, strict=True)]
        self.n += 1
        return {"critic_loss": critic_loss, "actor_loss": actor_loss, "bc_loss": bc_loss, "q_loss": q_loss}

    @torch.no_grad()
    def chosen(self, s: Tensor, normals: Tensor, waiting: Tensor) -> Tensor:
        """The actions that exponential waiting times (B, n) select by the softmax; normals (B, n, T, A) by step."""
        many = s.repeat_interleave(self.c.n_action_samples, 0)
        drawn = [*normals.reshape(len(many), -1, ACTION_DIM).unbind(1)][::-1]
        a = self.sampled(self.eps, many, iter([*drawn, torch.zeros_like(drawn[0])]), "acting beyond")
        least = torch.minimum(*(run(q, many, a) for q in self.q_t)).reshape(len(s), -1)
        return a.reshape(len(s), -1, ACTION_DIM)[torch.arange(len(s)), (least.softmax(1) / waiting).argmax(1)]


def moved(trainer: Any) -> None:
    """Moves biases, averages and targets away from their initial values, and values apart."""
    for network in (trainer.actor, trainer.actor_target, trainer.critic, trainer.critic_target):
        for parameter in network.parameters():
            parameter.data += (0.3 if parameter.dim() == 1 else 0.05) * torch.randn_like(parameter)
    for critics in (trainer.critic, trainer.critic_target):
        for q in (critics.q1, critics.q2):
            q[-1].weight.data *= 3.0
            q[-1].bias.data.zero_()


@pytest.mark.parametrize("bound", [1.0, 2.0])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_diffusion_ql(dataset: Batch, settings: dict[str, Any], bound: float) -> None:
    """All weights, logs, draws and actions are equal, and the batches reached both sides of each branch."""
    config = diffusion_ql.TrainConfig(device="cpu", **settings)
    dataset = Batch(*(column.double() for column in dataset))
    dataset = dataset._replace(actions=bound * dataset.actions)
    torch.manual_seed(7)
    trainer = diffusion_ql.create_trainer(config, STATE_DIM, ACTION_DIM, bound)
    moved(trainer)
    assert trainer.total_it == 0
    trainer.total_it = BEFORE
    reference = Reference(config, trainer, bound)
    same_draws()
    logs, coins = [], []
    for _ in range(UPDATES):
        indices, noise = diffusion_ql.draw_noise(config, ROWS, ACTION_DIM, CPU)
        coins.append(noise.coin.item())
        logs.append(trainer.update(take(dataset, indices), noise))
    after = torch.get_rng_state(), np.random.uniform()
    same_draws()
    assert_same_log(logs, [reference.update(dataset) for _ in range(UPDATES)], LOG)
    assert coins == [coin - 0.5 for coin in reference.coins]
    assert torch.equal(after[0], torch.get_rng_state())
    assert after[1] == np.random.uniform()
    assert trainer.total_it == reference.n == BEFORE + UPDATES
    pairs = [(trainer.actor, reference.eps), (trainer.actor_target, reference.eps_t)]
    pairs += [(trainer.critic, reference.q), (trainer.critic_target, reference.q_t)]
    for mine, other in pairs:
        for a, b in zip(mine.parameters(), chain(*chain(*other)), strict=True):
            torch.testing.assert_close(a, b, rtol=0.0, atol=WEIGHTS)
    observations, n = dataset.observations[:STATES], config.n_action_samples
    normals = torch.randn(STATES, n, config.diffusion_steps, ACTION_DIM)
    waiting = torch.empty(STATES, n).exponential_()
    given = torch.cat([normals.flatten(2), -waiting.log()[..., None]], -1)
    found = trainer.act(observations.numpy(), given.numpy())
    right = reference.chosen(observations, normals, waiting)
    np.testing.assert_allclose(found, right.numpy(), rtol=0.0, atol=WEIGHTS)
    assert_both_sides(reference)


def assert_both_sides(reference: Reference) -> None:
    """Checks the branches that the settings can reach."""
    config = reference.c
    what = ["next action beyond", "action beyond", "acting beyond", "least", "done", "positive", "first"]
    what += ["best"] * (config.n_target_actions > 1) + ["average"] * (config.ema_period > 1)
    expected = {f"{x} {way}" for x in what for way in (True, False)} | {"average True"}
    assert expected <= reference.reached
    clipped = {x for x in reference.reached if " clipped " in x}
    assert bool(clipped) == (config.clip_grad is not None)


def test_the_coin_decides_by_its_sign(dataset: Batch) -> None:
    """At exactly 0, which is the authors' 0.5, the policy learns from the second critic."""
    config = diffusion_ql.TrainConfig(device="cpu", batch_size=16)
    trainer = diffusion_ql.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    indices, noise = diffusion_ql.draw_noise(config, ROWS, ACTION_DIM, CPU)
    batch = take(Batch(*(column.double() for column in dataset)), indices)
    found = {}
    for coin in (-0.4, 0.0, 1e-9, 0.4):
        loss, _ = trainer.q_loss(batch, noise._replace(coin=torch.tensor(coin)))
        found[coin] = loss.item()
    assert found[-0.4] == found[0.0] != found[1e-9] == found[0.4]


def test_the_coin_in_jax_is_fair() -> None:
    """It is uniform from -0.5 to 0.5, which the ladder's few updates do not show."""
    hp = jax_twin.TrainConfig(batch_size=1)
    draw = jax.jit(jax.vmap(lambda step: jax_twin.draw_noise(jax.random.key(0), step, hp, ROWS, ACTION_DIM)[1].coin))
    coins = np.asarray(draw(np.arange(10_000)))
    assert -0.5 <= coins.min() < -0.499
    assert 0.499 < coins.max() < 0.5
    assert abs(coins.mean()) < 0.012


def test_the_rates_of_a_whole_run() -> None:
    """The cosine ends at 0. Moved at evaluations alone, a run of 2000 epochs ends with 2.997e-4 of 3e-4."""
    config = diffusion_ql.TrainConfig()
    ends = {}
    for way in ("cosine", "by_evaluation", "none"):
        hp = diffusion_ql.TrainConfig(opt_decay_schedule=way)
        ends[way] = [diffusion_ql.learning_rate(hp, 3e-4, updates) for updates in (0, 1_000_000, config.max_timesteps)]
    assert ends["cosine"] == pytest.approx([3e-4, 1.5e-4, 0.0])
    assert ends["by_evaluation"] == pytest.approx([3e-4, 2.99926e-4, 2.99704e-4], rel=1e-6)
    assert ends["none"] == [3e-4] * 3


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_what_acting_draws(temperature: float) -> None:
    """For each of two samples it draws the noise of each step, and a Gumbel number with the temperature."""
    settings: dict[str, Any] = {"n_action_samples": 2, "diffusion_steps": 3, "selection_temperature": temperature}
    found = diffusion_ql.draw_acting_noise(np.random.default_rng(3), diffusion_ql.TrainConfig(**settings), ACTION_DIM)
    rng = np.random.default_rng(3)
    normal, gumbel = rng.standard_normal((2, 3 * ACTION_DIM)), rng.gumbel(size=(2, 1))
    np.testing.assert_array_equal(found, np.concatenate([normal, temperature * gumbel], axis=1))


def test_weights_start_where_the_seed_says() -> None:
    """Time, trunk, then both critics, with PyTorch's defaults; average and target are copies."""
    config = diffusion_ql.TrainConfig(device="cpu", actor_hidden_dims=(40, 30), critic_hidden_dims=(20, 10))
    torch.manual_seed(7)
    trainer = diffusion_ql.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    torch.manual_seed(7)
    both = STATE_DIM + ACTION_DIM
    widths = [(16, 32, 16), (both + 16, 40, 30, ACTION_DIM), (both, 20, 10, 1), (both, 20, 10, 1)]
    expected = [p for dims in widths for a, b in pairwise(dims) for p in nn.Linear(a, b).parameters()]
    for pair in ((trainer.actor, trainer.critic), (trainer.actor_target, trainer.critic_target)):
        found = [*chain(*(network.parameters() for network in pair))]
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    # The schedule's shares follow from the settings, and are in no checkpoint.
    assert trainer.actor.state_dict().keys() == dict(trainer.actor.named_parameters()).keys()
