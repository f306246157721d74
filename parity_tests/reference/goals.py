"""Batches with goals by OGBench's own bookkeeping, and its one optimiser over all networks, in bare arrays."""

import math
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from parity_tests.reference.common import ACTION_DIM, CPU, STATE_DIM, UPDATES, assert_same_log, same_draws
from shared.data.goals import GoalTransitions, extract_goals
from shared.frameworks.torch_data import to_device

# The relative tolerance of logs, and the absolute one of weights and actions
LOG, WEIGHTS = 1e-12, 1e-12
# Rows of the file's trajectories, whose last rows are only next states
LENGTHS = (40, 2, 77, 25, 3)
# A layer's weight and bias, or a norm's scale and shift
Layer = tuple[Tensor, Tensor]
Batch = dict[str, Tensor]


def rows_of_a_file() -> dict[str, np.ndarray]:
    """A file of OGBench's: whole trajectories, whose last rows are marked."""
    rng, size = np.random.default_rng(3), sum(LENGTHS)
    ends = np.zeros(size, bool)
    ends[np.cumsum(LENGTHS) - 1] = True
    return {
        "observations": rng.normal(size=(size, STATE_DIM)).astype(np.float32),
        "actions": np.clip(rng.normal(size=(size, ACTION_DIM)), -1.0, 1.0).astype(np.float32),
        "rewards": np.zeros(size, np.float32),
        "terminals": np.zeros(size, bool),
        "timeouts": ends,
    }


class File:
    """OGBench's compact dataset: all rows stay, `valids` are not ends, and `terminals` mark the last two rows."""

    def __init__(self, config: Any) -> None:
        raw = rows_of_a_file()
        self.c, self.s, self.a = config, raw["observations"].astype(float), raw["actions"].astype(float)
        ends = raw["timeouts"]
        self.valid = np.flatnonzero(~ends)
        self.final = np.flatnonzero(ends | np.append(ends[1:], False))

    def last(self, i: np.ndarray) -> np.ndarray:
        """The first marked row from i on."""
        return self.final[np.searchsorted(self.final, i)]

    def anywhere(self) -> np.ndarray:
        """Any states, (B,)."""
        return self.valid[np.random.randint(len(self.valid), size=self.c.batch_size)]

    def later(self, i: np.ndarray, geometric: bool) -> np.ndarray:
        """Later states of the same trajectories."""
        if geometric:
            return np.minimum(i + np.random.geometric(p=1 - self.c.discount, size=len(i)), self.last(i))
        u = np.random.rand(len(i))
        first = np.minimum(i + 1, self.last(i))
        return np.round(first * u + self.last(i) * (1 - u)).astype(int)

    def goals(self, i: np.ndarray, of: str) -> np.ndarray:
        """The goals of the states i: `value` or `actor` ones."""
        here, trajectory = getattr(self.c, f"{of}_p_curgoal"), getattr(self.c, f"{of}_p_trajgoal")
        chosen = self.anywhere()
        later = self.later(i, getattr(self.c, f"{of}_geom_sample"))
        if here == 1.0:
            return i
        chosen = np.where(np.random.rand(len(i)) < trajectory / (1 - here), later, chosen)
        return np.where(np.random.rand(len(i)) < here, i, chosen)

    def batch(self) -> Batch:
        """The next batch; columns of numbers are (B, 1)."""
        i = self.anywhere()
        g, h = self.goals(i, "value"), self.goals(i, "actor")
        np.random.rand()  # whether to crop images
        return self.columns(i, g) | {"h": torch.tensor(self.s[h])}

    def columns(self, i: np.ndarray, g: np.ndarray) -> Batch:
        """The states i with actions, next states, value goals g, rewards and masks."""
        there = torch.tensor(i == g).double()[:, None]
        columns = {"s": self.s[i], "a": self.a[i], "n": self.s[i + 1], "g": self.s[g]}
        reward = there - 1 if self.c.gc_negative else there
        return {name: torch.tensor(column) for name, column in columns.items()} | {"r": reward, "m": 1 - there}


def layers_of(network: nn.Sequential) -> list[Layer]:
    """Copies of a network's weights, layer by layer."""
    copies = [parameter.detach().clone() for parameter in network.parameters()]
    return list(zip(copies[::2], copies[1::2], strict=True))


def run(layers: list[Layer], *inputs: Tensor) -> Tensor:
    """A network on inputs (B, ...) side by side, (B, O)."""
    x = torch.cat(inputs, 1)
    for weight, bias in layers[:-1]:
        if weight.dim() == 1:
            centred = x - x.mean(1, keepdim=True)
            x = weight * centred / ((centred**2).mean(1, keepdim=True) + 1e-6) ** 0.5 + bias
        else:
            h = x @ weight.T + bias
            x = h * (1 + torch.tanh((h + 0.044715 * h**3) * math.sqrt(2 / math.pi))) / 2
    weight, bias = layers[-1]
    return x @ weight.T + bias


def fixed(layers: list[Layer]) -> list[Layer]:
    """The layers as constants."""
    return [(weight.detach(), bias.detach()) for weight, bias in layers]


def mixed(old: list[Layer], new: list[Layer], tau: float) -> list[Layer]:
    """A weighted mean of the old layers and a share tau of the new ones."""
    return [
        (tau * weight.detach() + (1 - tau) * before, tau * bias.detach() + (1 - tau) * shift)
        for (before, shift), (weight, bias) in zip(old, new, strict=True)
    ]


def leaves_of(networks: Iterable[list[Layer]]) -> list[Tensor]:
    """The networks' weights, from now on with gradients."""
    return [leaf.requires_grad_() for layers in networks for layer in layers for leaf in layer]


class Adam:
    """One optimiser over all weights; weights without a gradient stay as they are."""

    def __init__(self, leaves: list[Tensor], rate: float) -> None:
        self.leaves, self.rate, self.updates = leaves, rate, 0
        self.moments = [(torch.zeros_like(leaf), torch.zeros_like(leaf)) for leaf in leaves]

    def step(self, loss: Tensor) -> None:
        """One step down the gradient of the loss."""
        slopes = torch.autograd.grad(loss, self.leaves, allow_unused=True)
        self.updates += 1
        for place, (leaf, g) in enumerate(zip(self.leaves, slopes, strict=True)):
            if g is None:
                continue
            m, v = self.moments[place]
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            self.moments[place] = m, v
            unbiased = m / (1 - 0.9**self.updates), v / (1 - 0.999**self.updates)
            leaf.data -= self.rate * unbiased[0] / (unbiased[1].sqrt() + 1e-8)


class Policy:
    """A policy of normal actions."""

    def __init__(self, actor: Any, bound: float) -> None:
        self.mu, self.bound = layers_of(actor.net), bound
        self.rho = None if actor.log_std is None else actor.log_std.detach().clone().requires_grad_()
        assert all(weight.dim() == 2 for weight, _ in self.mu)

    def leaves(self) -> list[Tensor]:
        """Its weights."""
        return leaves_of([self.mu]) + ([] if self.rho is None else [self.rho])

    def deviation(self) -> Tensor:
        """The deviations, (A,), or 1."""
        if self.rho is None:
            return torch.ones_like(self.mu[-1][1])
        low, high = torch.full_like(self.rho, -5.0), torch.full_like(self.rho, 2.0)
        return torch.where(self.rho < low, low, torch.where(self.rho > high, high, self.rho)).exp()

    def log_density(self, s: Tensor, g: Tensor, a: Tensor) -> Tensor:
        """The logarithm of the density of actions, (B,)."""
        sigma = self.deviation()
        error = (a - run(self.mu, s, g)) / sigma
        return -(error**2 / 2 + sigma.log()).sum(1) - a.shape[1] * math.log(2 * math.pi) / 2

    def inside(self, a: Tensor) -> Tensor:
        """Actions within their bounds, beyond which they are constants."""
        edge = torch.full_like(a, self.bound)
        return torch.where(a > edge, edge, torch.where(a < -edge, -edge, a))


def moved(trainer: Any, names: Iterable[str], bound: float) -> None:
    """Moves biases, norms and targets away from their initial values, and actions to both sides of their bounds."""
    for parameter in chain(*(getattr(trainer, name).parameters() for name in names)):
        parameter.data += (0.1 if parameter.dim() == 1 else 0.02) * torch.randn_like(parameter)
    trainer.actor.net[-1].bias.data += torch.linspace(-1.4 * bound, 1.4 * bound, ACTION_DIM)
    if trainer.actor.log_std is not None:
        trainer.actor.log_std.data = torch.linspace(-6.0, 3.0, ACTION_DIM)


def six_updates(twin: Any, config: Any, trainer: Any, take: Any, reference: Any) -> None:
    """Checks that updates of the twin and of a derivation draw the same numbers, and log the same."""
    dataset = extract_goals(rows_of_a_file())
    s, a, n = (column.astype(float) for column in dataset[:3])
    columns = to_device(GoalTransitions(s, a, n, dataset.last), CPU)
    inputs = [dataset.last, *([ACTION_DIM] if "action_dim" in twin.draw_noise.__code__.co_varnames else [])]
    logs: list[Mapping[str, Any]] = []
    same_draws()
    for _ in range(UPDATES):
        indices, noise = twin.draw_noise(config, *inputs, CPU)
        logs.append(trainer.update(take(columns, indices, config.gc_negative), noise))
    state = torch.get_rng_state(), np.random.random_sample()
    same_draws()
    expected = [reference.update() for _ in range(UPDATES)]
    assert torch.equal(state[0], torch.get_rng_state())
    assert state[1] == np.random.random_sample()
    assert_same_log(logs, expected, LOG)
    assert trainer.total_it == UPDATES


def assert_same_layers(ours: Iterable[nn.Module], theirs: Iterable[list[Layer]]) -> None:
    """Checks all weights of all networks."""
    for mine, other in zip(ours, theirs, strict=True):
        for a, b in zip(mine.parameters(), chain(*other), strict=True):
            torch.testing.assert_close(a, b, rtol=0.0, atol=WEIGHTS)


def assert_same_policy(trainer: Any, policy: Policy) -> None:
    """Checks the policy's weights, and its actions, some of them beyond their bounds."""
    assert_same_layers([trainer.actor.net], [policy.mu])
    if policy.rho is not None:
        torch.testing.assert_close(trainer.actor.log_std, policy.rho, rtol=0.0, atol=WEIGHTS)
    s = torch.tensor(rows_of_a_file()["observations"]).double()
    free = run(policy.mu, s, s.flip(0)).detach()
    assert 0 < (free.abs() > policy.bound).double().mean() < 1
    found = trainer.act(s.numpy(), s.flip(0).numpy())
    assert found == pytest.approx(policy.inside(free).numpy(), rel=0.0, abs=WEIGHTS)
