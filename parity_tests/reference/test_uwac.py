"""UWAC as in the paper and as in the authors' code: six updates and the actions, in double precision.

The authors repeat each row for every pass, and leave the spectral norm to PyTorch. The twin computes a first layer once
for all passes. Therefore sums may be rounded differently: `NEAR` is the largest difference.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import dropout, mse_loss, relu
from torch.nn.utils import spectral_norm

from corl_torch import uwac
from parity_tests.engine.precision import both_in
from parity_tests.reference.common import (
    ACTION_DIM,
    STATE_DIM,
    adam,
    at_the_weights_of,
    mlp,
    six_updates,
)
from shared.data.transitions import Batch

# Measured after six updates: 1.5e-14 in weights, 8e-16 in logs
NEAR = 1e-12
WIDTHS: dict[str, Any] = {"actor_hidden_dims": (40, 30), "critic_hidden_dims": (50, 20), "vae_hidden_dims": (64, 48)}
SMALL = WIDTHS | {"batch_size": 64, "n_target_samples": 4, "n_passes": 5, "n_action_samples": 6}
AUTHORS: dict[str, Any] = {"copy_targets": False, "variance_at_best": False}
OTHER: dict[str, Any] = {"lam": 0.3, "tau": 0.1, "discount": 0.9, "kl_weight": 2.0, "drop_rate": 0.3}
CLIPPED: dict[str, Any] = SMALL | OTHER | {"clip_bottom": 0.2, "clip_top": 0.6, "spectral_norm": False}
RATES: dict[str, Any] = {"actor_lr": 1e-3, "critic_lr": 2e-3, "vae_lr": 1e-2, "alpha_lr": 0.1}
SHARP: dict[str, Any] = {"mmd_kernel": "laplacian", "mmd_sigma": 0.5, "n_mmd_action_samples": 3}
INVERSE: dict[str, Any] = {
    "exp_weight": False,
    "variance_scale": 0.02,
    "q_penalty": 0.5,
    "critic_hidden_dims": (50, 20, 10),
}
PENALTY: dict[str, Any] = {"exp_penalty": True, "q_penalty": 0.1, "variance_scale": 30.0, "weigh_actor": False}
SETTINGS: dict[str, dict[str, Any]] = {
    "the paper's": SMALL | {"imitation_steps": 0},
    "the authors'": SMALL | AUTHORS | {"imitation_steps": 3},
    "widths": AUTHORS | {"batch_size": 16, "n_target_samples": 2, "n_passes": 3, "imitation_steps": 2},
    "inverse weight": CLIPPED | RATES | SHARP | INVERSE | {"imitation_steps": 2},
    "exponential penalty": CLIPPED | AUTHORS | PENALTY | {"imitation_steps": 1},
    "heaviest": SMALL | RATES | {"imitation_steps": 1, "initial_alpha": math.exp(10), "alpha_threshold": 0.01},
    "lightest": SMALL | RATES | {"imitation_steps": 1, "initial_alpha": math.exp(-5), "alpha_threshold": 5.0},
}
# Networks with the authors' widths take a third of the time for all cases.
CASES = [
    pytest.param(settings, id=name, marks=pytest.mark.thorough if name == "widths" else ())
    for name, settings in SETTINGS.items()
]


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    """Rounding is then far below any mistake."""
    with both_in("float64"):
        yield


class Q(nn.Module):
    """The authors' critic: dropout that is always on, PyTorch's spectral norm, a row for each pass."""

    def __init__(self, critic: uwac.Critic, directions: Any, config: uwac.TrainConfig) -> None:
        super().__init__()
        self.c = config
        self.plain: list[Any] = []
        widths = (STATE_DIM + ACTION_DIM, *config.critic_hidden_dims, 1)
        layers = at_the_weights_of(critic, mlp(*widths))[::2]
        for layer, direction in zip(layers, directions, strict=True):
            if config.spectral_norm:
                spectral_norm(layer)
                layer.weight_u.copy_(direction.u.data)
                layer.weight_v.copy_(direction.v.data)
            self.plain.append(layer)
        self.layers = nn.ModuleList(self.plain)

    def once(self, x: Tensor) -> Tensor:
        """One pass, (rows, 1)."""
        for layer in self.layers[:-1]:
            x = dropout(relu(layer(x)), self.c.drop_rate, training=True)
        return self.layers[-1](x)

    def many(self, s: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of K passes, (rows, 1) each."""
        rows = torch.cat([s, a], 1).repeat_interleave(self.c.n_passes, dim=0)
        q = self.once(rows).reshape(len(s), self.c.n_passes)
        mean = q.sum(1, keepdim=True) / self.c.n_passes
        return mean, ((q - mean) ** 2).sum(1, keepdim=True) / (self.c.n_passes - 1)

    def learnt(self) -> list[tuple[Tensor, Tensor]]:
        """Weight and bias of each layer."""
        return [(getattr(layer, "weight_orig", layer.weight), layer.bias) for layer in self.plain]

    @torch.no_grad()
    def with_masks(self, x: Tensor, kept: Sequence[Tensor]) -> Tensor:
        """The critic's value with these masks, without a power iteration."""
        weights = [
            (w / (layer.weight_u @ w @ layer.weight_v), b) if self.c.spectral_norm else (w, b)
            for layer, (w, b) in zip(self.plain, self.learnt(), strict=True)
        ]
        for (w, b), mask in zip(weights[:-1], kept, strict=True):
            x = relu(x @ w.T + b) * mask / (1 - self.c.drop_rate)
        return x @ weights[-1][0].T + weights[-1][1]


class Reference:
    """The authors' update and policy, with a twin's weights."""

    def __init__(self, trainer: uwac.UWAC, config: uwac.TrainConfig, bound: float) -> None:
        self.c, self.bound, self.step = config, bound, 0
        self.reached: set[str] = set()
        s, a = STATE_DIM, ACTION_DIM

        def headed(ours: nn.Module, inputs: int, widths: Sequence[int], outputs: int) -> nn.ModuleList:
            heads = [nn.Linear(widths[-1], outputs) for _ in range(2)]
            return at_the_weights_of(ours, nn.ModuleList([mlp(inputs, *widths, end=nn.ReLU()), *heads]))

        self.pi = headed(trainer.actor, s, config.actor_hidden_dims, a)
        self.encoder = headed(trainer.encoder, s + a, config.vae_hidden_dims, 2 * a)
        self.decoder = at_the_weights_of(trainer.decoder, mlp(s + 2 * a, *config.vae_hidden_dims, a))
        pairs = ((trainer.critic, trainer.directions), (trainer.critic_target, trainer.target_directions))
        self.q, self.q_t = (
            [Q(c, d, config) for c, d in zip(critics.members, directions.members, strict=True)]
            for critics, directions in pairs
        )
        self.log_alpha = torch.tensor(math.log(config.initial_alpha), requires_grad=True)
        self.vae_adam = adam([*self.encoder.parameters(), *self.decoder.parameters()], config.vae_lr)
        self.pi_adam = adam(self.pi.parameters(), config.actor_lr)
        self.q_adams = [adam([p for layer in q.learnt() for p in layer], config.critic_lr) for q in self.q]
        self.alpha_adam = adam([self.log_alpha], config.alpha_lr)

    def normal(self, network: nn.ModuleList, x: Tensor, low: float, high: float) -> Normal:
        """The normal distribution given by the encoder or the policy."""
        h = network[0](x)
        wide = network[2](h)
        self.meets(wide, low, high, "encoder" if network is self.encoder else "policy")
        return Normal(network[1](h), wide.clamp(low, high).exp())

    def meets(self, values: Tensor, low: float, high: float, what: str) -> None:
        """Records the sides of the bounds on which values are."""
        sides = {"below": values < low, "above": values > high, "within": (values > low) & (values < high)}
        self.reached |= {f"{what} {side}" for side, hit in sides.items() if hit.any()}

    def weight(self, variance: Tensor) -> Tensor:
        """The weight of a variance, (rows, 1)."""
        c = self.c
        w = (-c.variance_scale * variance).exp() if c.exp_weight else c.variance_scale / variance
        self.meets(w, c.clip_bottom, c.clip_top, "weight")
        return w.clamp(c.clip_bottom, c.clip_top)

    def learn_vae(self, s: Tensor, a: Tensor) -> Tensor:
        """A step of the generative model."""
        e = torch.as_tensor(np.random.normal(0, 1, (len(s), 2 * ACTION_DIM)))
        code = self.normal(self.encoder, torch.cat([s, a], 1), -4, 15)
        made = self.bound * self.decoder(torch.cat([s, code.loc + code.scale * e], 1)).tanh()
        prior = Normal(torch.zeros_like(code.loc), torch.ones_like(code.scale))
        loss = mse_loss(made, a) + self.c.kl_weight * kl_divergence(code, prior).mean()
        self.vae_adam.zero_grad()
        loss.backward()
        self.vae_adam.step()
        return loss

    @torch.no_grad()
    def target(self, r: Tensor, s2: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        """The critics' target and its variance, (rows, 1) each."""
        c, n = self.c, self.c.n_target_samples
        s2 = s2.repeat_interleave(n, dim=0)
        pi = self.normal(self.pi, s2, -5, 2)
        a2 = self.bound * (pi.loc + pi.scale * torch.randn(len(s2), ACTION_DIM)).tanh()
        (q1, v1), (q2, v2) = (q.many(s2, a2) for q in self.q_t)
        mixed = (c.lam * torch.min(q1, q2) + (1 - c.lam) * torch.max(q1, q2)).reshape(-1, n)
        variance = (v1 + v2).reshape(-1, n)
        best, place = mixed.max(1, keepdim=True)
        own = variance.gather(1, place)
        largest = variance.max(1, keepdim=True)[0]
        self.reached |= {"another action's variance"} if (own != largest).any() else set()
        return r + (1 - d) * c.discount * best, own if c.variance_at_best else largest

    def mmd(self, s: Tensor, u: Tensor) -> Tensor:
        """The MMD of the policy's samples (rows, m, A), (rows,)."""
        c, m = self.c, self.c.n_mmd_action_samples
        z = torch.as_tensor(self.codes).clamp(-0.5, 0.5)
        raw = self.decoder(torch.cat([s[:, None].expand(-1, m, -1), z], 2)).detach()

        def k(x: Tensor, y: Tensor) -> Tensor:
            pairs = [(x[:, i] - y[:, j]) for i in range(m) for j in range(m)]
            far = [(p**2 if c.mmd_kernel == "gaussian" else p.abs()).sum(1) for p in pairs]
            return torch.stack([(-f / (2 * c.mmd_sigma)).exp() for f in far]).mean(0)

        return (k(raw, raw) + k(u, u) - 2 * k(raw, u) + 1e-6).sqrt()

    def update(self, s: Tensor, a: Tensor, r: Tensor, s2: Tensor, d: Tensor) -> dict[str, Tensor]:
        """An update: all losses, then their gradients, then all steps."""
        c, m = self.c, self.c.n_mmd_action_samples
        found = {"vae_loss": self.learn_vae(s, a)}
        y, variance = self.target(r, s2, d)
        w = self.weight(variance)
        penalty = variance.exp() if c.exp_penalty else variance
        losses = []
        for q in self.q:
            value = q.once(torch.cat([s, a], 1))
            self.meets(value, 0, 0, "value")
            losses.append((((value - y) * w) ** 2).mean() + c.q_penalty * (relu(value) * penalty).mean())
        found |= {"critic_loss": losses[0] + losses[1], "weight": w.mean()}
        self.codes = np.random.normal(0, 1, (len(s), m, 2 * ACTION_DIM))
        pi = self.normal(self.pi, s.repeat_interleave(m, dim=0), -5, 2)
        u = (pi.loc + pi.scale * torch.randn(len(s) * m, ACTION_DIM)).reshape(len(s), m, -1)
        excess = self.log_alpha.exp() * (self.mmd(s, u) - c.alpha_threshold)
        (q1, v1), (q2, v2) = (q.many(s, self.bound * u[:, 0].tanh()) for q in self.q)
        wp = self.weight((v1 + v2).detach()) if c.weigh_actor else 1.0
        loss = excess.mean() if self.step < c.imitation_steps else (excess - (torch.min(q1, q2) * wp)[:, 0]).mean()
        found |= {"actor_loss": loss, "alpha_loss": -excess.mean()}
        self.give(self.log_alpha, -loss)
        for p in self.pi.parameters():
            self.give(p, loss)
        for q, own in zip(self.q, losses, strict=True):
            for layer in q.learnt():
                for p in layer:
                    self.give(p, own)
        for optimizer in (*self.q_adams, self.pi_adam, self.alpha_adam):
            optimizer.step()
        self.meets(self.log_alpha.detach(), -5, 10, "alpha")
        self.log_alpha.data.clamp_(-5, 10)
        for target, source in zip(self.q_t, self.q, strict=True):
            for olds, news in zip(target.learnt(), source.learnt(), strict=True):
                for old, new in zip(olds, news, strict=True):
                    old.data.mul_(1 - c.tau).add_(new.data * c.tau)
        self.step += 1
        return found | {"alpha": self.log_alpha.detach().exp()}

    @staticmethod
    def give(parameter: Tensor, loss: Tensor) -> None:
        """Sets the gradient of this parameter only."""
        (parameter.grad,) = torch.autograd.grad(loss, parameter, retain_graph=True)

    @torch.no_grad()
    def best(self, s: Tensor, noise: Tensor) -> Tensor:
        """The best action of each row by critic 1, for noise (rows, n, A + K H)."""
        c, chosen = self.c, []
        for row, draws in zip(s, noise, strict=True):
            values, actions = [], []
            for draw in draws:
                pi = self.normal(self.pi, row[None], -5, 2)
                action = self.bound * (pi.loc + pi.scale * draw[:ACTION_DIM]).tanh()
                units = draw[ACTION_DIM:].reshape(c.n_passes, -1).split(c.critic_hidden_dims, dim=1)
                passes = torch.cat([row[None], action], 1).repeat(c.n_passes, 1)
                values.append(self.q[0].with_masks(passes, units).mean())
                actions.append(action[0])
            chosen.append(actions[int(torch.stack(values).argmax())])
        return torch.stack(chosen)


def fresh(settings: dict[str, Any], bound: float = 1.0) -> tuple[uwac.UWAC, uwac.TrainConfig]:
    """A fresh twin and its config."""
    config = uwac.TrainConfig(device="cpu", **settings)
    torch.manual_seed(7)
    return uwac.create_trainer(config, STATE_DIM, ACTION_DIM, bound), config


def assert_near(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> None:
    """Checks that two lists of tensors agree within `NEAR`."""
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine.detach(), other.detach(), rtol=NEAR, atol=NEAR)


@pytest.mark.parametrize("bound", [1.0, pytest.param(2.0, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("settings", CASES)
def test_uwac(dataset: Batch, settings: dict[str, Any], bound: float) -> None:
    """Networks, directions, targets and logs agree; stretched layers make deviations and values reach their bounds."""
    trainer, config = fresh(settings, bound)
    trainer.encoder.log_std.weight.data.mul_(100.0)
    trainer.actor.log_std.weight.data.mul_(10000.0)
    trainer.actor.mean.weight.data.mul_(1000.0)
    for critic in (*trainer.critic.members, *trainer.critic_target.members):
        critic.net[-1].weight.data.mul_(100.0)
        critic.net[-1].bias.data.sub_(0.1)
    rows = Batch(*(column.double() for column in dataset))
    reference = Reference(trainer, config, bound)
    six_updates(uwac, config, trainer, rows, lambda rows: reference.update(*rows), NEAR)
    for ours, theirs in ((trainer.encoder, reference.encoder), (trainer.decoder, reference.decoder)):
        assert_near([*ours.parameters()], [*theirs.parameters()])
    assert_near([*trainer.actor.parameters()], [*reference.pi.parameters()])
    judges = ((trainer.critic, trainer.directions), (trainer.critic_target, trainer.target_directions))
    for (critics, directions), qs in zip(judges, (reference.q, reference.q_t), strict=True):
        for critic, layers, q in zip(critics.members, directions.members, qs, strict=True):
            assert_near([*critic.parameters()], [p for layer in q.learnt() for p in layer])
            if config.spectral_norm:
                assert_near([layer.u for layer in layers], [layer.weight_u for layer in q.plain])
                assert_near([layer.v for layer in layers], [layer.weight_v for layer in q.plain])
    assert_near([trainer.log_alpha()], [reference.log_alpha])
    observations = rows.observations[:20]
    acting = np.stack([uwac.draw_acting_noise(np.random.default_rng(k), config, ACTION_DIM) for k in range(20)])
    best = reference.best(observations, torch.as_tensor(acting, dtype=torch.float64))
    assert_near([torch.as_tensor(trainer.act(observations.numpy(), acting))], [best])
    must = {f"{what} {side}" for what in ("encoder", "policy") for side in ("below", "within", "above")}
    must |= {"another action's variance", "value below", "value above"}
    must |= {f"weight {side}" for side in ("below", "above", "within")} if "clip_top" in settings else set()
    assert must <= reference.reached
    assert ("alpha below" in reference.reached) == (config.initial_alpha < 1.0)
    assert ("alpha above" in reference.reached) == (config.initial_alpha > 1.0)


def test_what_acting_draws() -> None:
    """It draws each action's noise, then which units each pass keeps, nine in ten."""
    config = uwac.TrainConfig(n_action_samples=50, n_passes=3, critic_hidden_dims=(30, 20))
    found = uwac.draw_acting_noise(np.random.default_rng(3), config, ACTION_DIM)
    rng = np.random.default_rng(3)
    np.testing.assert_array_equal(found[:, :ACTION_DIM], rng.standard_normal((50, ACTION_DIM), np.float32))
    np.testing.assert_array_equal(found[:, ACTION_DIM:], rng.random((50, 150), np.float32) >= 0.1)
    assert found.dtype == np.float32
    assert found[:, ACTION_DIM:].mean() == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize("copies", [True, False])
def test_how_weights_start(copies: bool) -> None:
    """Weights are within the authors' bounds, directions have length 1, and target critics are copies or new."""
    trainer, config = fresh({"copy_targets": copies, "initial_alpha": 3.0, "critic_hidden_dims": (64, 100)})

    def fills(values: Tensor, bound: float) -> bool:
        values = values.detach()
        return 0.9 * bound < float(values.abs().max()) <= bound and abs(float(values.mean())) < 0.3 * bound

    judges = ((trainer.critic, trainer.directions), (trainer.critic_target, trainer.target_directions))
    for critics, directions in judges:
        for critic, layers in zip(critics.members, directions.members, strict=True):
            for layer, width in zip(critic.net, config.critic_hidden_dims, strict=False):
                assert layer.weight.shape[0] == width
                assert fills(layer.weight, width**-0.5)
                assert torch.equal(layer.bias, torch.full((width,), 0.1))
            assert fills(critic.net[-1].weight, 3e-3)
            assert 0.0 < abs(critic.net[-1].bias.item()) <= 3e-3
            lengths = [float((direction**2).sum()) for layer in layers for direction in (layer.u, layer.v)]
            assert lengths == pytest.approx([1.0] * 6)
            assert layers[-1].u.item() == 1.0
            assert float(layers[1].u.detach().mean().abs()) < 0.05
    for layer, width in zip(trainer.actor.net[::2], config.actor_hidden_dims, strict=True):
        assert fills(layer.weight, width**-0.5)
        assert torch.equal(layer.bias, torch.full((width,), 0.1))
    for layer in (trainer.actor.mean, trainer.actor.log_std):
        assert fills(layer.weight, 1e-3)
    biases = torch.cat([trainer.actor.mean.bias, trainer.actor.log_std.bias])
    assert -1e-3 <= biases.min().item() < 0.0 < biases.max().item() <= 1e-3
    assert fills(trainer.encoder.net[0].weight, (STATE_DIM + ACTION_DIM) ** -0.5)
    assert fills(trainer.decoder.net[0].weight, (STATE_DIM + 2 * ACTION_DIM) ** -0.5)
    assert fills(trainer.decoder.net[2].weight, config.vae_hidden_dims[0] ** -0.5)
    ours, theirs = ([p for part in judge for p in part.parameters() if len(p.unique()) > 1] for judge in judges)
    assert all(torch.equal(mine, other) == copies for mine, other in zip(ours, theirs, strict=True))
    assert trainer.log_alpha().item() == pytest.approx(math.log(3.0))


def test_a_layer_of_two_outputs_has_a_direction_in_both() -> None:
    """A single output has only one direction."""
    torch.manual_seed(0)
    two, one = uwac.LayerDirections(3, 2).u, uwac.LayerDirections(3, 1).u
    assert two.shape == (2,)
    assert 0.0 < two.abs().min() <= two.abs().max() < 1.0
    assert torch.equal(one, torch.ones(1))
