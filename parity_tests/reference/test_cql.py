"""CQL: six updates in six settings are bitwise equal."""

import copy
import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform
from torch.nn.functional import mse_loss

from corl_torch import cql
from parity_tests.reference.common import (
    ACTION_DIM,
    CPU,
    ROWS,
    STATE_DIM,
    UPDATES,
    adam,
    assert_same_actions,
    assert_same_bits,
    assert_same_log,
    assert_same_weights,
    at_the_weights_of,
    columns_of,
    mlp,
    polyak,
    same_draws,
)
from shared.data.transitions import Batch
from shared.frameworks.torch_data import take


def networks(depth: int) -> list[nn.Sequential]:
    """Critic 1 with this many hidden layers, critic 2 and the policy, in the order in which they are drawn."""
    critic_2, policy = [STATE_DIM + ACTION_DIM, 256, 256, 256, 1], [STATE_DIM, 256, 256, 256, 2 * ACTION_DIM]
    return [mlp(STATE_DIM + ACTION_DIM, *[256] * depth, 1), mlp(*critic_2), mlp(*policy)]


def networks_of(trainer: Any) -> list[nn.Sequential]:
    """The twin's networks, in the same order."""
    return [trainer.critic_1.network, trainer.critic_2.network, trainer.actor.base_network]


class ReferenceCQL:
    """CQL's update, term by term, from the weights of a trainer of this pair or of one that extends it."""

    def __init__(
        self, config: Any, trainer: Any, built: Sequence[nn.Sequential], bound: float = 1.0, multiplier: float = 1.0
    ) -> None:
        self.c, self.bound, self.cut = config, bound, {"low": False, "high": False}
        self.q1, self.q2, self.base = map(at_the_weights_of, networks_of(trainer), built)
        self.multiplier = nn.Parameter(torch.tensor(multiplier))
        self.offset = nn.Parameter(torch.tensor(-1.0))
        self.q1_t, self.q2_t = copy.deepcopy((self.q1, self.q2))
        self.log_alpha, self.log_alpha_prime = nn.Parameter(torch.tensor(0.0)), nn.Parameter(torch.tensor(1.0))
        self.actor_adam = adam([*self.base.parameters(), self.multiplier, self.offset], config.actor_lr)
        self.q1_adam, self.q2_adam = (adam(q.parameters(), config.critic_lr) for q in (self.q1, self.q2))
        self.alpha_adam = adam([self.log_alpha], config.actor_lr)
        self.alpha_prime_adam = adam([self.log_alpha_prime], config.critic_lr)

    def policy(self, s: Tensor, repeat: int | None = None) -> tuple[Tensor, Tensor]:
        """A fresh sample and its log-probability."""
        if repeat is not None:
            s = s.unsqueeze(1).repeat(1, repeat, 1)
        mean, log_std = torch.split(self.base(s), ACTION_DIM, dim=-1)
        std = torch.exp(torch.clamp(self.multiplier * log_std + self.offset, -20.0, 2.0))
        squashed = TransformedDistribution(Normal(mean, std), TanhTransform(cache_size=1), validate_args=False)
        sample = squashed.rsample()
        return self.bound * sample, torch.sum(squashed.log_prob(sample), dim=-1)

    @staticmethod
    def q(network: nn.Module, s: Tensor, a: Tensor) -> Tensor:
        """The values of one or of several actions per state."""
        if a.ndim == 2:
            return network(torch.cat([s, a], -1)).squeeze(-1)
        rows = s.unsqueeze(1).repeat(1, a.shape[1], 1).reshape(-1, STATE_DIM)
        return network(torch.cat([rows, a.reshape(-1, ACTION_DIM)], -1)).squeeze(-1).reshape(len(s), -1)

    def update(self, step: int, s: Tensor, a: Tensor, r: Tensor, s2: Tensor, d: Tensor) -> dict[str, Any]:
        """One update: all draws in order, then the steps; returns CORL's log of it."""
        c, n = self.c, self.c.cql_n_actions
        a_pi, log_pi = self.policy(s)
        alpha, alpha_loss = torch.tensor(c.alpha_multiplier), torch.tensor(0.0)
        if c.tune_temperature:
            alpha_loss = -(self.log_alpha * (log_pi + -float(ACTION_DIM)).detach()).mean()
            alpha = self.log_alpha.exp() * c.alpha_multiplier
        if step <= c.bc_steps:
            _, own = self.policy(s)
            policy_loss = (alpha * log_pi - own).mean()
        else:
            policy_loss = (alpha * log_pi - torch.min(self.q(self.q1, s, a_pi), self.q(self.q2, s, a_pi))).mean()
        log = {"log_pi": log_pi.mean(), "policy_loss": policy_loss, "alpha_loss": alpha_loss, "alpha": alpha.detach()}
        critic_loss, critics_log = self.critic_loss(alpha, n, s, a, r.squeeze(1), s2, d.squeeze(1))
        if c.tune_temperature:
            self.step(alpha_loss, self.alpha_adam)
        self.step(policy_loss, self.actor_adam)
        self.step(critic_loss, self.q1_adam, self.q2_adam)
        if step % c.target_update_period == 0:
            polyak(self.q1_t, self.q1, c.tau)
            polyak(self.q2_t, self.q2, c.tau)
        return log | critics_log

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
        gaps = []
        log = {"qf1_loss": td_1, "qf2_loss": td_2, "average_qf1": q1.mean(), "average_qf2": q2.mean()}
        log["average_target_q"] = v.mean()
        for i, network, q in ((1, self.q1, q1), (2, self.q2, q2)):
            at_random, at_current, at_next = (self.q(network, s, x) for x in (random, current, following))
            columns = [at_random, q.unsqueeze(1), at_next, at_current]
            log[f"cql_std_q{i}"] = torch.std(torch.cat(columns, 1), dim=1).mean()
            log |= {f"cql_q{i}_rand": at_random.mean(), f"cql_q{i}_current_actions": at_current.mean()}
            log[f"cql_q{i}_next_actions"] = at_next.mean()
            if c.cql_importance_sample:
                columns = [at_random - np.log(0.5**ACTION_DIM), at_next - log_following, at_current - log_current]
            ood = torch.logsumexp(torch.cat(columns, 1) / c.cql_temp, dim=1) * c.cql_temp
            self.cut["low"] |= bool((ood - q < c.cql_clip_diff_min).any())
            self.cut["high"] |= bool((ood - q > c.cql_clip_diff_max).any())
            gaps.append(torch.clamp(ood - q, c.cql_clip_diff_min, c.cql_clip_diff_max).mean())
        penalties, alpha_prime, alpha_prime_loss = self.weighed(gaps)
        log |= {"cql_qf1_diff": gaps[0], "cql_qf2_diff": gaps[1], "alpha_prime": alpha_prime}
        log |= {
            "cql_min_qf1_loss": penalties[0],
            "cql_min_qf2_loss": penalties[1],
            "alpha_prime_loss": alpha_prime_loss,
        }
        return td_1 + td_2 + penalties[0] + penalties[1], log

    def weighed(self, gaps: list[Tensor]) -> tuple[list[Tensor], Tensor, Tensor]:
        """The conservative terms, and the Lagrange multiplier and its loss after a step."""
        c = self.c
        if not c.cql_lagrange:
            return [gap * c.cql_alpha for gap in gaps], torch.tensor(0.0), torch.tensor(0.0)
        alpha_prime = torch.clamp(torch.exp(self.log_alpha_prime), min=0.0, max=1e6)
        penalties = [alpha_prime * c.cql_alpha * (gap - c.cql_target_action_gap) for gap in gaps]
        loss = (-penalties[0] - penalties[1]) * 0.5
        self.alpha_prime_adam.zero_grad()
        loss.backward(retain_graph=True)
        self.alpha_prime_adam.step()
        return penalties, alpha_prime, loss

    @staticmethod
    def step(loss: Tensor, *optimizers: torch.optim.Adam) -> None:
        """Makes a step, after clearing gradients left by other losses."""
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()


# Settings at full size would be extremely slow.
SMALL: dict[str, Any] = {"batch_size": 32, "cql_n_actions": 3}
OTHER: dict[str, Any] = SMALL | {"actor_lr": 1e-3, "critic_lr": 1e-4, "discount": 0.9, "tau": 0.1}
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "Lagrange": SMALL
    | {"cql_lagrange": True, "cql_max_target_backup": True, "cql_clip_diff_min": -200.0, "critic_n_hiddens": 5},
    "unweighted": OTHER | {"cql_importance_sample": False, "cql_temp": 2.0, "backup_entropy": True, "bc_steps": 3},
    "max backup": OTHER
    | {"cql_max_target_backup": True, "backup_entropy": True, "target_update_period": 2, "orthogonal_init": False}
    | {"policy_log_std_multiplier": 0.5, "alpha_multiplier": 0.3},
    "fixed temperature": SMALL | {"tune_temperature": False, "cql_clip_diff_min": 5.5, "cql_clip_diff_max": 6.5},
    "fixed temperature, Lagrange": OTHER
    | {"tune_temperature": False, "alpha_multiplier": 0.3, "cql_lagrange": True, "cql_alpha": 5.0}
    | {"cql_target_action_gap": 0.8, "backup_entropy": True},
}
# Factors for the critics' last layers that move gaps beyond both of their bounds
STRETCHED = {"fixed temperature": 100.0}
# Cases in which the largest action is not 1
WIDE = {"unweighted": 2.0, "max backup": 2.0}


@pytest.mark.parametrize("name", SETTINGS)
def test_cql(dataset: Batch, name: str) -> None:
    """CQL: the policy, both critics and their targets, both temperatures, and what each update logs."""
    config, bound = cql.TrainConfig(device="cpu", **SETTINGS[name]), WIDE.get(name, 1.0)
    torch.manual_seed(7)
    trainer = cql.create_trainer(config, STATE_DIM, ACTION_DIM, bound)
    for critic in (trainer.critic_1, trainer.critic_2, trainer.critic_1_target, trainer.critic_2_target):
        critic.network[-1].weight.data.mul_(STRETCHED.get(name, 1.0))
    built, multiplier = networks(config.critic_n_hiddens), config.policy_log_std_multiplier
    reference = ReferenceCQL(config, trainer, built, bound, multiplier)
    logs = []
    same_draws()
    for step in range(1, UPDATES + 1):
        indices, noise = cql.draw_noise(config, ROWS, ACTION_DIM, CPU, step <= config.bc_steps)
        logs.append(trainer.update(take(dataset, indices), noise))
    same_draws()
    expected = [reference.update(step, *columns_of(dataset, config.batch_size)) for step in range(1, UPDATES + 1)]
    assert_same_log(logs, expected)
    assert set(reference.cut.values()) == {name in STRETCHED}
    parts = {"critic_1": reference.q1, "critic_2": reference.q2}
    parts |= {"critic_1_target": reference.q1_t, "critic_2_target": reference.q2_t}
    temperatures = {"log_temperature": reference.log_alpha, "log_alpha_prime": reference.log_alpha_prime}
    assert_same_bits(trainer, parts | temperatures)
    own = {"base_network": reference.base, "log_std_multiplier": reference.multiplier}
    assert_same_bits(trainer.actor, own | {"log_std_offset": reference.offset})
    means = reference.base(dataset.observations)[:, :ACTION_DIM]
    assert_same_actions(trainer.act(dataset.observations.numpy()), bound * torch.tanh(means))
    assert trainer.total_it == UPDATES


def started(network: nn.Sequential, orthogonal: bool) -> nn.Sequential:
    """Replaces PyTorch's initial weights by CORL's, layer by layer."""
    *hidden, last = (layer for layer in network if isinstance(layer, nn.Linear))
    for layer in hidden if orthogonal else ():
        nn.init.orthogonal_(layer.weight, gain=math.sqrt(2.0))
        nn.init.zeros_(layer.bias)
    (nn.init.orthogonal_ if orthogonal else nn.init.xavier_uniform_)(last.weight, gain=1e-2)
    nn.init.zeros_(last.bias)
    return network


@pytest.mark.parametrize("orthogonal", [True, False])
def test_weights_start_where_the_seed_says(orthogonal: bool) -> None:
    """Critic 1 is built first; the policy is never orthogonal."""
    config = cql.TrainConfig(device="cpu", orthogonal_init=orthogonal, critic_n_hiddens=2)
    torch.manual_seed(7)
    trainer = cql.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    torch.manual_seed(7)
    expected = [
        started(mlp(STATE_DIM + ACTION_DIM, 256, 256, 1), orthogonal),
        started(mlp(STATE_DIM + ACTION_DIM, 256, 256, 256, 1), orthogonal),
        started(mlp(STATE_DIM, 256, 256, 256, 2 * ACTION_DIM), False),
    ]
    assert_same_weights(networks_of(trainer), expected)
    assert_same_weights([trainer.critic_1_target, trainer.critic_2_target], expected[:2])
    scalars = (
        trainer.actor.log_std_multiplier,
        trainer.actor.log_std_offset,
        trainer.log_temperature,
        trainer.log_alpha_prime,
    )
    assert [scalar().item() for scalar in scalars] == [1.0, -1.0, 0.0, 1.0]


def assert_bounded_deviation(twin: ModuleType, states: Tensor) -> None:
    """The logarithm of a policy's deviation is between -20 and 2."""
    actor = twin.create_trainer(twin.TrainConfig(device="cpu"), STATE_DIM, ACTION_DIM, 1.0).actor
    actor.base_network[-1].weight.data.mul_(30_000.0)
    free = actor.base_network(states)[:, ACTION_DIM:] - 1.0
    assert free.min() < -25.0
    assert free.max() > 5.0
    assert torch.equal(actor(states)[1], free.clamp(-20.0, 2.0).exp())


def test_the_deviation_is_bounded(dataset: Batch) -> None:
    """The bound is CORL's."""
    assert_bounded_deviation(cql, dataset.observations)


def assert_bounded_multiplier(twin: ModuleType, dataset: Any) -> None:
    """Checks that the Lagrange multiplier ends at a million, beyond which it is not learned, and has no lower bound."""
    config = twin.TrainConfig(device="cpu", cql_lagrange=True, **SMALL)
    for start, expected in ((-5.0, math.exp(-5.0)), (13.0, math.exp(13.0)), (15.0, 1e6)):
        trainer = twin.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
        trainer.log_alpha_prime.constant.data.fill_(start)
        indices, noise = twin.draw_noise(config, ROWS, ACTION_DIM, CPU)
        log = trainer.update(take(dataset, indices), noise)
        assert log["alpha_prime"].item() == pytest.approx(expected, rel=1e-6)
        penalty = expected * config.cql_alpha * (log["cql_qf1_diff"].item() - config.cql_target_action_gap)
        assert log["cql_min_qf1_loss"].item() == pytest.approx(penalty, rel=1e-5)
        assert (trainer.log_alpha_prime().item() == start) == (start > math.log(1e6))


def test_the_multiplier_is_bounded(dataset: Batch) -> None:
    """The bound is CORL's."""
    assert_bounded_multiplier(cql, dataset)
