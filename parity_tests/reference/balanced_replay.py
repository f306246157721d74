"""The second derivation of balanced replay, in other forms than the twins.

Because there is no reference code, this derivation follows the equations of the paper. A member has its own matrices.
The variance of the mixture is a difference of moments. The bound is written with f' and f* of w. Rows are drawn from a
running sum of priorities, without a tree.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Normal, TanhTransform

from parity_tests.reference.common import ACTION_DIM

Layers = list[tuple[Tensor, Tensor]]


def layers_of(network: Any, member: int) -> Layers:
    """A member's matrices (in, out) and shifts (out,), as leaves of a separate graph."""
    own = [(layer.weight[member], layer.bias[member, 0]) for layer in network[::2]]
    return [(weight.detach().clone().requires_grad_(), bias.detach().clone().requires_grad_()) for weight, bias in own]


def run(layers: Layers, *inputs: Tensor) -> Tensor:
    """Runs the layers, with ReLU between them."""
    x = torch.cat(inputs, dim=-1)
    for weight, bias in layers[:-1]:
        x = torch.relu(x @ weight + bias)
    return x @ layers[-1][0] + layers[-1][1]


@dataclass
class Member:
    """One agent: its policy, its critics and their targets, and the logarithm of its temperature."""

    policy: Layers
    critics: list[Layers]
    targets: list[Layers]
    log_alpha: Tensor

    def moments(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """The mean and deviation of its normal distribution."""
        mean, log_std = torch.split(run(self.policy, s), ACTION_DIM, dim=-1)
        return mean, torch.exp(torch.clamp(log_std, -20, 2))

    def draw(self, s: Tensor, eps: Tensor) -> tuple[Tensor, Tensor]:
        """An action and its log-density; n of each if eps is (B, n, A)."""
        mean, std = self.moments(s)
        return squashed(mean, std, eps) if eps.ndim == 2 else squashed(mean[:, None], std[:, None], eps)

    def least(self, critics: Sequence[Layers], s: Tensor, a: Tensor) -> Tensor:
        """The smaller value of two critics."""
        return torch.minimum(*(run(q, s, a)[..., 0] for q in critics))


def squashed(mean: Tensor, std: Tensor, eps: Tensor) -> tuple[Tensor, Tensor]:
    """A draw squashed by tanh, and its log-density."""
    u = mean + std * eps
    slope = TanhTransform().log_abs_det_jacobian(u, torch.tanh(u))
    return torch.tanh(u), (Normal(mean, std).log_prob(u) - slope).sum(-1)


def normal(*shape: int) -> Tensor:
    """Standard normal draws."""
    return torch.randn(shape)


class Derivation:
    """The paper's agent, starting from a fresh trainer's weights."""

    def __init__(self, c: Any, trainer: Any, rows: int, places: int) -> None:
        self.c, self.rows, self.t = c, rows, 0
        self.members = []
        for i in range(c.n_ensemble):
            critics = [layers_of(critic.network, i) for critic in (trainer.critic_1, trainer.critic_2)]
            targets = [layers_of(critic.network, i) for critic in (trainer.critic_1_target, trainer.critic_2_target)]
            policy = layers_of(trainer.actor.base_network, i)
            self.members.append(Member(policy, critics, targets, torch.zeros(1, requires_grad=True)))
        own = [(layer.weight.T, layer.bias) for layer in trainer.density.network[::2]]
        self.ratio = [(w.detach().clone().requires_grad_(), b.detach().clone().requires_grad_()) for w, b in own]
        self.priorities = np.concatenate([np.ones(rows), np.zeros(places)])
        adam = torch.optim.Adam
        self.steps = {
            "alpha": adam([m.log_alpha for m in self.members], lr=c.actor_lr),
            "policy": adam([x for m in self.members for layer in m.policy for x in layer], lr=c.actor_lr),
            "critics": adam([x for m in self.members for q in m.critics for la in q for x in la], lr=c.critic_lr),
            "ratio": adam([x for layer in self.ratio for x in layer], lr=c.density_lr),
        }

    def step(self, name: str, loss: Tensor) -> None:
        """Makes a gradient step on the loss, for this optimiser's parameters only."""
        optimizer = self.steps[name]
        parameters = optimizer.param_groups[0]["params"]
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = gradient
        optimizer.step()

    def move_targets(self) -> None:
        """Moves all targets with the rate tau."""
        tau = self.c.tau
        with torch.no_grad():
            for m in self.members:
                for target, critic in zip(m.targets, m.critics, strict=True):
                    for (w, b), (new_w, new_b) in zip(target, critic, strict=True):
                        w.copy_((1 - tau) * w + tau * new_w)
                        b.copy_((1 - tau) * b + tau * new_b)

    # ---- offline ----

    def offline(self, rows: Sequence[Tensor]) -> dict[str, Any]:
        """A CQL update of every member on the same rows."""
        c, (s, a, r, s2, d) = self.c, rows
        e, b, n = c.n_ensemble, c.batch_size, c.cql_n_actions
        eps, eps2 = normal(e, b, ACTION_DIM), normal(e, b, ACTION_DIM)
        uniform = torch.empty(e, b, n, ACTION_DIM).uniform_(-1, 1)
        current, following = normal(e, b, n, ACTION_DIM), normal(e, b, n, ACTION_DIM)
        found = [
            self.member(i, s, a, r, s2, d, (eps[i], eps2[i], uniform[i], current[i], following[i])) for i in range(e)
        ]
        losses, logs = zip(*found, strict=True)
        alphas = torch.stack([m.log_alpha.detach().exp() for m in self.members])
        log: dict[str, Any] = {name: np.mean([entry[name] for entry in logs]) for name in logs[0]}
        log["policy_loss"] = sum(policy for policy, _, _ in losses)
        log["alpha_loss"] = sum(alpha for _, _, alpha in losses)
        log["alpha"] = torch.prod(alphas) ** (1 / e)
        for name, part in (("policy", 0), ("critics", 1), ("alpha", 2)):
            self.step(name, sum(member[part] for member in losses))
        self.move_targets()
        return log

    def member(self, i: int, s: Tensor, a: Tensor, r: Tensor, s2: Tensor, d: Tensor, draws: tuple) -> tuple:
        """A member's losses for policy, critics and temperature, and their logs."""
        c, m, (eps, eps2, uniform, current, following) = self.c, self.members[i], draws
        n = c.cql_n_actions
        pi, log_pi = m.draw(s, eps)
        policy = (m.log_alpha.detach().exp() * log_pi - m.least(m.critics, s, pi)).mean()
        alpha = -(m.log_alpha * (log_pi.detach() - ACTION_DIM)).mean()
        with torch.no_grad():
            y = r + c.discount * (1 - d) * m.least(m.targets, s2, m.draw(s2, eps2)[0])
            (now, log_now), (later, log_later) = m.draw(s, current), m.draw(s2, following)
        log: dict[str, torch.Tensor] = {}
        repeated, critics = s[:, None].expand(-1, n, -1), torch.zeros(())
        for number, q in enumerate(m.critics, start=1):
            value = run(q, s, a)[:, 0]
            sampled = [
                run(q, repeated, uniform)[..., 0] + ACTION_DIM * math.log(2.0),
                run(q, repeated, now)[..., 0] - log_now,
                run(q, repeated, later)[..., 0] - log_later,
            ]
            push = torch.logsumexp(torch.cat(sampled, 1), 1).mean() - value.mean()
            error = ((value - y) ** 2).mean()
            critics = critics + error + c.cql_alpha * push
            own = {f"qf{number}_loss": error, f"average_qf{number}": value.mean(), f"cql_qf{number}_diff": push}
            log |= {name: x.item() for name, x in own.items()}
        log |= {"average_target_q": y.mean().item(), "log_pi": log_pi.mean().item()}
        return (policy, critics, alpha), log

    # ---- online ----

    def mixed(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """The mean and deviation of the even mixture of the members' distributions."""
        means, stds = zip(*(m.moments(s) for m in self.members), strict=True)
        mean = sum(means) / len(means)
        second = sum(std**2 + mu**2 for mu, std in zip(means, stds, strict=True)) / len(means)
        return mean, torch.sqrt(second - mean**2)

    def value(self, targets: bool, s: Tensor, a: Tensor) -> Tensor:
        """The members' mean of their smaller values."""
        values = [m.least(m.targets if targets else m.critics, s, a) for m in self.members]
        return sum(values) / len(values)

    def w(self, s: Tensor, a: Tensor) -> Tensor:
        """The density ratio."""
        return torch.log1p(torch.exp(run(self.ratio, s, a)[:, 0]))

    def enter(self, place: int) -> None:
        """Gives a new row of the environment its priority."""
        c = self.c
        self.priorities[self.rows + place] = c.online_share / (1 - c.online_share) * self.rows / (1 + c.learning_starts)

    def choose(self, uniform: Tensor) -> np.ndarray:
        """The row at which the running sum of priorities first exceeds this share of the total."""
        sums = np.cumsum(self.priorities)
        return np.array([int(np.flatnonzero(sums > float(u) * sums[-1])[0]) for u in uniform])

    def online(self, rows_at: Callable[[np.ndarray], tuple[Tensor, ...]], seen: int) -> tuple[dict[str, Any], tuple]:
        """An online update; returns its log, and its rows in the twin's form."""
        c, half = self.c, self.c.batch_size // 2
        old = np.random.randint(0, self.rows, size=half)
        new = np.random.randint(0, seen, size=c.batch_size - half) + self.rows
        eps, eps2 = normal(c.batch_size, ACTION_DIM), normal(c.batch_size, ACTION_DIM)
        places = self.choose(torch.rand(c.batch_size))
        (s, a, r, s2, d), of_old, of_new = rows_at(places), rows_at(old), rows_at(new)
        shown = (s, a, r, s2, d, torch.as_tensor(places), torch.as_tensor(places >= self.rows).to(r))
        shown += tuple(torch.cat([of_old[column], of_new[column]]) for column in (0, 1))
        log_alpha = sum(m.log_alpha for m in self.members) / c.n_ensemble
        alpha = log_alpha.detach().exp()
        pi, log_pi = squashed(*self.mixed(s), eps)
        policy = (alpha * log_pi - self.value(False, s, pi)).mean()
        with torch.no_grad():
            next_pi, next_log_pi = squashed(*self.mixed(s2), eps2)
            y = r + c.discount * (1 - d) * (self.value(True, s2, next_pi) - alpha * next_log_pi)
        values = [[run(m.critics[k], s, a)[:, 0] for m in self.members] for k in range(2)]
        errors = [[((value - y) ** 2).mean() for value in critic] for critic in values]
        temperature = -(log_alpha * (log_pi.detach() - ACTION_DIM)).mean()
        w_old, w_new = self.w(of_old[0], of_old[1]), self.w(of_new[0], of_new[1])
        bound = torch.log(2 * w_new / (w_new + 1)).mean() - torch.log((w_old + 1) / 2).mean()
        self.step("ratio", -bound)
        with torch.no_grad():
            power = 1 / c.density_temperature
            fresh = self.w(s, a) ** power / (self.w(of_old[0], of_old[1]) ** power).mean()
        self.priorities[places] = fresh.numpy()
        self.step("alpha", temperature)
        self.step("policy", policy)
        self.step("critics", sum(sum(critic) for critic in errors))
        self.move_targets()
        log = {"log_pi": log_pi.mean(), "policy_loss": policy, "alpha": alpha, "alpha_loss": temperature}
        log |= {"density_loss": -bound, "priority": fresh.mean(), "online_share": shown[6].mean()}
        log |= {f"qf{k + 1}_loss": sum(errors[k]) / c.n_ensemble for k in range(2)}
        log |= {f"average_qf{k + 1}": torch.stack(values[k]).mean() for k in range(2)}
        return log | {"average_target_q": y.mean()}, shown

    def act(self, s: Tensor) -> Tensor:
        """A sampled action of the ensemble."""
        with torch.no_grad():
            return squashed(*self.mixed(s), normal(len(s), ACTION_DIM))[0]
