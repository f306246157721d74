"""Shared parts of the derivations of d3rlpy's algorithms for finite actions: critics, their loss, and six updates."""

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from parity_tests.reference.common import (
    ACTION_DIM,
    CPU,
    ROWS,
    UPDATES,
    adam,
    assert_same_actions,
    assert_same_log,
    same_draws,
)
from parity_tests.reference.d3rlpy import huber_of_quantiles, implicit, middles
from parity_tests.reference.images import layers, shape_of
from shared.data.transitions import Batch
from shared.frameworks.torch_data import take

Made = TypeVar("Made")


def optimizer_of(parameters: Iterable[nn.Parameter], config: Any) -> torch.optim.Adam:
    """Adam with the epsilon of the settings."""
    found = adam(parameters, config.learning_rate)
    found.param_groups[0]["eps"] = config.adam_eps
    return found


class Critics:
    """d3rlpy's critics and targets, drawn in its order; `corners` records whether errors were below and above 1."""

    def __init__(self, config: Any) -> None:
        self.config, self.step = config, 0
        self.kind = getattr(config, "critic", "mean")
        self.critics, self.targets = ([self.network() for _ in range(config.n_critics)] for _ in range(2))
        self.copy()
        self.corners: set[bool] = set()

    def network(self) -> nn.Sequential:
        """Layers, then a head: for each action a mean or quantiles, or weights of features and an embedding."""
        c = self.config
        outputs = ACTION_DIM * (c.n_quantiles if self.kind == "qr" else 1)
        body, head = layers(c, outputs)
        return nn.Sequential(body, head, *([nn.Linear(c.embed_size, c.hidden_dims[-1])] if self.kind == "iqn" else []))

    def quantiles(self, network: nn.Sequential, s: Tensor, learns: bool = True) -> tuple[Tensor, Tensor | None]:
        """The quantiles of all actions (B, A, K) and their fractions (B, K), which are drawn for implicit quantiles."""
        c, outputs = self.config, network[:2](s)
        if self.kind == "mean":
            return outputs[:, :, None], None
        if self.kind == "qr":
            return outputs.view(len(s), ACTION_DIM, -1), middles(c.n_quantiles).repeat(len(s), 1)
        even = torch.linspace(0, 1, c.n_greedy_quantiles).repeat(len(s), 1)
        t = torch.rand(len(s), c.n_quantiles) if learns else even
        return implicit(network, s, t).transpose(1, 2), t

    def copy(self) -> None:
        """Copies every weight to the targets."""
        for target, critic in zip(self.targets, self.critics, strict=True):
            for old, new in zip(target.parameters(), critic.parameters(), strict=True):
                old.data.copy_(new.data)

    def copy_when_due(self) -> None:
        """Copies after the first update, and every `target_update_period` updates later."""
        if self.step % self.config.target_update_period == 0:
            self.copy()
        self.step += 1

    def best(self, networks: list[nn.Sequential], s: Tensor, learns: bool = False) -> Tensor:
        """The action with the greatest mean value, (B,)."""
        return torch.stack([self.quantiles(network, s, learns)[0].mean(2) for network in networks]).mean(0).argmax(1)

    def td_loss(self, s: Tensor, a: Tensor, r: Tensor, s2: Tensor, d: Tensor, a2: Tensor) -> Tensor:
        """The sum of all critics' Huber losses for next actions `a2` (B,); each quantile weighs its errors."""
        rows = torch.arange(len(a))
        with torch.no_grad():
            v = torch.stack([self.quantiles(target, s2)[0][rows, a2] for target in self.targets])
            # All quantiles of the critic with the smallest mean
            v = v[v.mean(2).argmin(0), rows]
            y = r[:, None] + self.config.discount * v * (1 - d)[:, None]
        losses = []
        for critic in self.critics:
            z, t = self.quantiles(critic, s)
            # (B, target's quantiles, critic's quantiles)
            u = y[:, :, None] - z[rows, a][:, None, :]
            self.corners |= set((u.detach().abs() < 1).flatten().tolist())
            losses.append(huber_of_quantiles(u, t).mean())
        return torch.stack(losses).sum()


def both(twin: ModuleType, derived: Callable[[Any], Made], settings: dict[str, Any]) -> tuple[Any, Made]:
    """A fresh twin and its derivation, from the same seed."""
    config = twin.TrainConfig(device="cpu", **settings)
    torch.manual_seed(7)
    trainer = twin.create_trainer(config, shape_of(settings), ACTION_DIM, 1.0)
    torch.manual_seed(7)
    return trainer, derived(config)


def assert_six_updates(twin: ModuleType, choices: Batch, trainer: Any, reference: Any) -> None:
    """Checks that both draw the same batches and log the same numbers."""
    logs, expected = [], []
    same_draws()
    for _ in range(UPDATES):
        indices, noise = twin.draw_noise(trainer.hp, ROWS, CPU)
        logs.append(trainer.update(take(choices, indices), noise))
    same_draws()
    for _ in range(UPDATES):
        rows = np.random.randint(0, ROWS, size=reference.config.batch_size)
        expected.append(reference.update(*(column[rows] for column in choices)))
    assert_same_log(logs, expected)
    assert trainer.total_it == UPDATES


def assert_acts(trainer: Any, choices: Batch, expected: Tensor) -> None:
    """Checks that the policy gives these integers, (B,)."""
    actions = trainer.act(choices.observations.numpy())
    assert actions.dtype == np.int64
    assert_same_actions(actions, expected)
