"""TD3, DDPG and PRDC as in d3rlpy 2.8.1: six updates and actions are bitwise equal."""

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from parity_tests.reference.common import (
    ACTION_DIM,
    CPU,
    ROWS,
    STATE_DIM,
    UPDATES,
    adam,
    assert_same_actions,
    assert_same_log,
    assert_same_weights,
    columns_of,
    polyak,
    same_draws,
)
from parity_tests.reference.d3rlpy import huber_of_quantiles, implicit, middles, stepped, tried
from shared.data.transitions import Batch
from shared.frameworks.torch_data import take
from shared.frameworks.twins import load_twin

SMALL: dict[str, Any] = {"actor_hidden_dims": (40, 30), "critic_hidden_dims": (50, 20), "batch_size": 64}
OTHER: dict[str, Any] = {"discount": 0.9, "tau": 0.1, "actor_lr": 1e-3, "critic_lr": 1e-4}
NOISE: dict[str, Any] = {"policy_noise": 0.5, "noise_clip": 0.3}
FAR: dict[str, Any] = {"alpha": 10.0, "state_weight": 0.3, "search": "brute"}
QR: dict[str, Any] = {"critic": "qr", "n_quantiles": 5}
IQN: dict[str, Any] = {"critic": "iqn", "n_quantiles": 7, "n_greedy_quantiles": 4, "embed_size": 9}
CASES = {
    "DDPG": ("online/ddpg", {}),
    "DDPG, two critics": ("online/ddpg", SMALL | OTHER | {"n_critics": 2}),
    "TD3": ("online/td3", {}),
    "TD3, every third": ("online/td3", SMALL | OTHER | NOISE | {"policy_freq": 3, "n_critics": 3}),
    "TD3, each": ("online/td3", {"policy_freq": 1, "n_critics": 1}),
    **{
        f"{title}, {kind['critic']}, {n} critics": (name, SMALL | OTHER | kind | {"n_critics": n})
        for title, name in (("DDPG", "online/ddpg"), ("TD3", "online/td3"))
        for kind, n in ((QR, 3), (IQN, 1), (IQN, 3))
    },
    "PRDC": ("prdc", {}),
    "PRDC, every third": ("prdc", SMALL | OTHER | NOISE | FAR | {"policy_freq": 3, "n_critics": 3}),
    "PRDC, each": ("prdc", {"policy_freq": 1, "n_critics": 1}),
}
of_each_case = pytest.mark.parametrize(("name", "settings"), CASES.values(), ids=CASES)


class Reference:
    """d3rlpy's networks, drawn in its order, with its updates and actions; PRDC also has rows to search."""

    def __init__(self, config: Any, bound: float, rows: Batch | None = None) -> None:
        self.config, self.bound, self.step, self.rows = config, bound, 0, rows
        s, a = STATE_DIM, ACTION_DIM
        self.kind = getattr(config, "critic", "mean")
        self.pi, _ = (nn.Sequential(*tried(config.actor_hidden_dims, (s,), a)) for _ in range(2))
        self.critics, _ = ([self.critic() for _ in range(config.n_critics)] for _ in range(2))
        self.pi_t, self.critics_t = copy.deepcopy((self.pi, self.critics))
        self.pi_adam = adam(self.pi.parameters(), config.actor_lr)
        self.q_adam = adam([p for critic in self.critics for p in critic.parameters()], config.critic_lr)
        # The bounds at which noise and actions were clipped
        self.clipped: set[str] = set()
        # Whether errors of quantiles were below and above 1
        self.corners: set[bool] = set()

    def critic(self) -> nn.Sequential:
        """Layers, then a head: a mean, quantiles, or weights of features and an embedding."""
        c = self.config
        outputs = c.n_quantiles if self.kind == "qr" else 1
        layers = tried(c.critic_hidden_dims, (STATE_DIM, ACTION_DIM), outputs)
        embedding = [nn.Linear(c.embed_size, c.critic_hidden_dims[-1])] if self.kind == "iqn" else []
        return nn.Sequential(*layers, *embedding)

    def quantiles(self, critic: nn.Sequential, s: Tensor, a: Tensor, learns: bool = True) -> tuple[Tensor, Tensor]:
        """Quantiles of actions (B, A) and their fractions, (B, K) each; implicit ones learn at random fractions."""
        c, inputs = self.config, torch.cat([s, a], 1)
        if self.kind != "iqn":
            z = critic(inputs)
            return z, middles(z.shape[1]).repeat(len(s), 1)
        even = torch.linspace(0, 1, c.n_greedy_quantiles).repeat(len(s), 1)
        t = torch.rand(len(s), c.n_quantiles) if learns else even
        return implicit(critic, inputs, t).squeeze(2), t

    def loss(self, critic: nn.Sequential, s: Tensor, a: Tensor, y: Tensor) -> Tensor:
        """The critic's loss against targets (B, K')."""
        z, t = self.quantiles(critic, s, a)
        if self.kind == "mean":
            return mse_loss(z, y)
        u = y[:, :, None] - z[:, None, :]
        self.corners |= set((u.detach().abs() < 1).flatten().tolist())
        return huber_of_quantiles(u, t).mean()

    def note(self, name: str, inputs: Tensor, bound: float) -> Tensor:
        """Clips the inputs, and records the bounds that they reach."""
        self.clipped |= {f"{name} above"} if (inputs > bound).any() else set()
        self.clipped |= {f"{name} below"} if (inputs < -bound).any() else set()
        self.clipped |= {f"{name} within"} if (inputs.abs() < bound).any() else set()
        return inputs.clamp(-bound, bound)

    def update(self, s: Tensor, a: Tensor, r: Tensor, s2: Tensor, d: Tensor) -> dict[str, Tensor]:
        """A step of the critics; then of policy and targets, which TD3 delays."""
        c = self.config
        with torch.no_grad():
            a2 = self.bound * torch.tanh(self.pi_t(s2))
            if hasattr(c, "policy_noise"):
                noise = c.policy_noise * self.bound * torch.randn_like(a2)
                a2 = self.note("action", a2 + self.note("noise", noise, c.noise_clip * self.bound), self.bound)
            v = torch.stack([self.quantiles(critic, s2, a2)[0] for critic in self.critics_t])
            # All quantiles of the critic with the smallest mean
            v = v[v.mean(2).argmin(0), torch.arange(len(s))]
            y = r + c.discount * v * (1 - d)
        losses = [self.loss(critic, s, a, y) for critic in self.critics]
        log = {"critic_loss": stepped(self.q_adam, torch.stack(losses).sum())}
        if self.step % getattr(c, "policy_freq", 1) == 0:
            p = self.bound * torch.tanh(self.pi(s))
            q = self.quantiles(self.critics[0], s, p, learns=False)[0].mean(1)
            if self.rows is None:
                log["actor_loss"] = stepped(self.pi_adam, -q.mean())
            else:
                log["dc_loss"] = mse_loss(p, self.nearest(s, p.detach()))
                weight = c.alpha / q.detach().abs().mean()
                log["actor_loss"] = stepped(self.pi_adam, log["dc_loss"] - weight * q.mean())
            for target, source in zip([*self.critics_t, self.pi_t], [*self.critics, self.pi], strict=True):
                polyak(target, source, c.tau)
        self.step += 1
        return log

    def nearest(self, s: Tensor, a: Tensor) -> Tensor:
        """The actions of the rows with the nearest weighted states and actions, in double precision."""
        assert self.rows is not None
        beta = self.config.state_weight
        rows = torch.cat([beta * self.rows.observations, self.rows.actions], 1).double()
        keys = torch.cat([beta * s, a], 1).double()
        return self.rows.actions[[int(((rows - key) ** 2).sum(1).argmin()) for key in keys]]

    def networks(self) -> list[nn.Module]:
        """All networks."""
        return [self.pi, self.pi_t, *self.critics, *self.critics_t]


def networks_of(trainer: Any) -> list[nn.Module]:
    """The twin's networks, in the same order."""
    return [trainer.actor, trainer.actor_target, *trainer.critic.members, *trainer.critic_target.members]


def both(name: str, settings: dict[str, Any], bound: float, rows: Batch | None = None) -> tuple[Any, Reference]:
    """A fresh twin and its derivation, from the same seed."""
    twin = load_twin("torch", name)
    config = twin.TrainConfig(device="cpu", **settings)
    torch.manual_seed(7)
    trainer = twin.create_trainer(config, STATE_DIM, ACTION_DIM, bound)
    torch.manual_seed(7)
    return trainer, Reference(config, bound, rows if name == "prdc" else None)


@pytest.mark.parametrize("bound", [1.0, 2.0])
@of_each_case
def test_six_updates(dataset: Batch, name: str, settings: dict[str, Any], bound: float) -> None:
    """Critics, policy and targets are equal; stretched last layers make noisy actions clipped."""
    twin = load_twin("torch", name)
    trainer, reference = both(name, settings, bound, dataset)
    for policy in (trainer.actor.net, trainer.actor_target.net, reference.pi, reference.pi_t):
        policy[-1].weight.data.mul_(20.0)
    logs, expected = [], []
    # DDPG draws only its batch.
    sizes = (ROWS,) if name == "online/ddpg" else (ROWS, ACTION_DIM)
    batch = partial(take, dataset)
    if name == "prdc":
        batch = partial(twin.take_constrained, twin.constrained(dataset, trainer.hp))
    same_draws()
    for _ in range(UPDATES):
        indices, noise = twin.draw_noise(trainer.hp, *sizes, CPU)
        logs.append(trainer.update(batch(indices), noise))
    drawn = torch.get_rng_state()
    same_draws()
    for _ in range(UPDATES):
        expected.append(reference.update(*columns_of(dataset, reference.config.batch_size)))
    assert_same_log(logs, expected)
    assert torch.equal(drawn, torch.get_rng_state())
    assert_same_weights(networks_of(trainer), reference.networks())
    observations = dataset.observations
    with torch.no_grad():
        actions = bound * torch.tanh(reference.pi(observations))
    assert_same_actions(trainer.act(observations.numpy()), actions)
    clipped = {f"{what} {side}" for what in ("action", "noise") for side in ("above", "below", "within")}
    assert reference.clipped == (set() if name == "online/ddpg" else clipped)
    if name != "prdc":
        values = [reference.quantiles(critic, observations, actions, learns=False)[0] for critic in reference.critics]
        assert torch.equal(trainer.critic(observations, actions), torch.stack(values))
    assert reference.corners == (set() if reference.kind == "mean" else {True, False})
    assert trainer.total_it == UPDATES


@pytest.mark.parametrize("bound", [1.0, 2.0])
@pytest.mark.parametrize("name", ["online/ddpg", "online/td3"])
def test_exploration(dataset: Batch, name: str, bound: float) -> None:
    """The action is the policy's with scaled normal noise, clipped; a step draws from NumPy's generator."""
    trainer, reference = both(name, {}, bound)
    observations = dataset.observations.numpy()
    with torch.no_grad():
        greedy = bound * torch.tanh(reference.pi(dataset.observations)).numpy()
    rng = np.random.RandomState(3)
    uniform = rng.uniform(-1, 1, (len(observations), ACTION_DIM))
    noise = rng.normal(0.0, 0.5, (len(observations), ACTION_DIM))
    np.random.seed(3)
    drawn = load_twin("torch", name).draw_exploration(len(observations), ACTION_DIM)
    np.testing.assert_array_equal(drawn.uniform, uniform)
    expected = np.clip(greedy + bound * noise, -bound, bound)
    np.testing.assert_allclose(trainer.explore(0.5, observations, drawn.normal), expected, rtol=1e-6)
    assert (expected == bound).any()
    assert (expected == -bound).any()


@of_each_case
def test_weights_start_where_the_seed_says(name: str, settings: dict[str, Any]) -> None:
    """The order is d3rlpy's, including its draws between layers and for targets, which then become copies."""
    trainer, reference = both(name, settings, 1.0)
    assert_same_weights(networks_of(trainer), reference.networks())
