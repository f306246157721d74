"""Helpers for derivations of d3rlpy's algorithms: networks in its order of draws, quantiles, its VAE, steps."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import mse_loss

from parity_tests.reference.common import ACTION_DIM, STATE_DIM, adam, mlp

Z = 2 * ACTION_DIM


def tried(widths: Sequence[int], inputs: Sequence[int], *outputs: int) -> list[nn.Sequential | nn.Linear]:
    """d3rlpy's network: hidden layers, through which it runs random rows of these sizes, then its heads."""
    body = mlp(sum(inputs), *widths, end=nn.ReLU())
    for size in inputs:
        torch.rand(2, size)
    return [body, *(nn.Linear(widths[-1], output) for output in outputs)]


def stepped(optimizer: torch.optim.Optimizer, loss: Tensor) -> Tensor:
    """Makes a gradient step on the loss, and returns the loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def middles(count: int) -> Tensor:
    """The middles of K equal parts of [0, 1], (K,)."""
    return (torch.arange(count) / count + torch.arange(1, count + 1) / count) / 2


def implicit(network: nn.Sequential, inputs: Tensor, t: Tensor) -> Tensor:
    """The outputs of body, head and embedding for inputs (B, I) at fractions (B, K): (B, K, outputs)."""
    body, head, embedding = network
    cosines = torch.cos(t[:, :, None] * (math.pi * torch.arange(1, embedding.in_features + 1)))
    return head(body(inputs)[:, None, :] * torch.relu(embedding(cosines)))


def huber_of_quantiles(u: Tensor, t: Tensor | None) -> Tensor:
    """The Huber loss of errors (B, K', K), weighted by fractions (B, K) if given: summed over K, mean over K', (B,)."""
    loss = torch.where(u.detach().abs() < 1, u**2 / 2, u.abs() - 0.5)
    if t is not None:
        loss = torch.where(u.detach() < 0, 1 - t[:, None, :], t[:, None, :]) * loss
    return loss.sum(2).mean(1)


class Vae:
    """d3rlpy's VAE, drawn from torch's generator; `spread` records whether deviations exceeded both of their bounds."""

    def __init__(self, config: Any, bound: float) -> None:
        self.config, self.bound, self.spread = config, bound, False
        self.encoder = nn.ModuleList(tried(config.vae_hidden_dims, (STATE_DIM, ACTION_DIM), Z, Z))
        self.decoder = nn.Sequential(*tried(config.vae_hidden_dims, (STATE_DIM, Z), ACTION_DIM))
        self.adam = adam([*self.encoder.parameters(), *self.decoder.parameters()], config.vae_lr)

    def decode(self, s: Tensor, z: Tensor) -> Tensor:
        """The actions of codes."""
        a = self.decoder(torch.cat([s, z], 1))
        return self.bound * (torch.tanh(a) if self.config.vae_tanh else a)

    def learn(self, s: Tensor, a: Tensor) -> Tensor:
        """The loss, after a gradient step of encoder and decoder."""
        body, mean, log_std = self.encoder
        h = body(torch.cat([s, a], 1))
        wide = log_std(h)
        self.spread |= bool((wide > 15).any() and (wide < -4).any())
        code = Normal(mean(h), wide.clamp(-4, 15).exp())
        error = mse_loss(self.decode(s, code.rsample()), a)
        prior = Normal(torch.zeros_like(code.loc), torch.ones_like(code.scale))
        return stepped(self.adam, error + self.config.kl_weight * kl_divergence(code, prior).mean())
