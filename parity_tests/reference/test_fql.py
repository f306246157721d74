"""FQL in its authors' arrangement, in bare arrays: one loss, one gradient, one Adam. Six updates agree within 1e-12."""

import math
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from corl_jax import fql as jax_twin
from corl_torch import fql
from parity_tests.reference.common import (
    ACTION_DIM,
    ROWS,
    STATE_DIM,
    six_updates,
)
from shared.data.transitions import Batch

# The relative tolerance of logs, and the absolute one of weights and actions
LOG, WEIGHTS = 1e-12, 1e-12
SMALL: dict[str, Any] = {"actor_hidden_dims": (40, 30), "critic_hidden_dims": (30, 40), "batch_size": 64}
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {"batch_size": 16},
    "the smaller critic": SMALL | {"q_agg": "min", "distill_coef": 300.0, "flow_steps": 4},
    "scaled by its size": SMALL | {"normalize_q": True, "distill_coef": 0.3, "learning_rate": 1e-3, "tau": 0.1},
    "both, the norms exchanged": SMALL
    | {"q_agg": "min", "normalize_q": True, "actor_ln": True, "critic_ln": False, "discount": 0.9}
    | {"actor_hidden_dims": (20, 30, 20), "critic_hidden_dims": (30, 20, 30), "distill_coef": 1.0, "flow_steps": 7},
    "one step": SMALL | {"flow_steps": 1, "actor_ln": True, "actor_hidden_dims": (50,)},
}
# A layer's weight and bias, or a norm's scale and shift
Layer = tuple[Tensor, Tensor]


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    """Makes a mistake a thousand million times larger than rounding."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


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


class Reference:
    """The textbook update."""

    def __init__(self, config: Any, trainer: Any, bound: float) -> None:
        self.c, self.bound = config, bound
        self.q = [layers_of(trainer.critic.q1), layers_of(trainer.critic.q2)]
        self.q_t = [layers_of(trainer.critic_target.q1), layers_of(trainer.critic_target.q2)]
        self.v, self.mu = layers_of(trainer.flow.net), layers_of(trainer.actor.net)
        for layers, has_norms in ((self.q[0], config.critic_ln), (self.v, config.actor_ln), (self.mu, config.actor_ln)):
            hidden = len(config.critic_hidden_dims if layers is self.q[0] else config.actor_hidden_dims)
            assert [weight.dim() for weight, _ in layers] == [*([2, 1] if has_norms else [2]) * hidden, 2]
        self.leaves = [leaf.requires_grad_() for layer in chain(*self.q, self.v, self.mu) for leaf in layer]
        self.moments = [(torch.zeros_like(leaf), torch.zeros_like(leaf)) for leaf in self.leaves]
        self.updates = 0
        # The branches that the batches reach
        self.reached: set[str] = set()

    def inside(self, a: Tensor, what: str) -> Tensor:
        """Clips actions to their bounds, beyond which they are constants."""
        self.reached |= {f"{what} {bool(beyond)}" for beyond in (a.abs() > self.bound).flatten()}
        edge = torch.full_like(a, self.bound)
        return torch.where(a > edge, edge, torch.where(a < -edge, -edge, a))

    def transported(self, s: Tensor, x: Tensor) -> Tensor:
        """The end point of the flow from x."""
        n = self.c.flow_steps
        for i in range(n):
            x = x + (1 / n) * run(self.v, s, x, torch.full((len(x), 1), i / n))
        return self.inside(x, "flow beyond")

    def target(self, r: Tensor, s2: Tensor, d: Tensor, z: Tensor) -> Tensor:
        """The target of both critics, (B, 1)."""
        a2 = self.inside(run(self.mu, s2, z), "next action beyond")
        q = torch.cat([run(q, s2, a2) for q in self.q_t], 1)
        self.reached |= {f"least {int(place)}" for place in q.argmin(1)} | {f"done {bool(x)}" for x in d}
        chosen = q.sum(1, keepdim=True) / 2 if self.c.q_agg == "mean" else q.min(1, keepdim=True).values
        return r + self.c.discount * (1 - d) * chosen

    def losses(self, batch: tuple[Tensor, ...], draws: tuple[Tensor, ...]) -> dict[str, Tensor]:
        """All terms of the one loss, at the same weights."""
        (s, a, r, s2, d), (z1, x0, t, z2) = batch, draws
        with torch.no_grad():
            y, end = self.target(r, s2, d, z1), self.transported(s, z2)
        error = torch.cat([run(q, s, a) - y for q in self.q], 1)
        velocity = run(self.v, s, x0 + t * (a - x0), t)
        u = run(self.mu, s, z2)
        inner = self.inside(u, "action beyond")
        q = sum(run(fixed(q), s, inner) for q in self.q) / 2
        assert isinstance(q, Tensor)
        self.reached |= {f"positive {bool(x > 0)}" for x in q}
        size = q.detach().abs().mean() if self.c.normalize_q else 1.0
        return {
            "critic_loss": (error**2).sum() / error.numel(),
            "flow_loss": ((a - x0 - velocity) ** 2).sum() / a.numel(),
            "distill_loss": ((end - u) ** 2).sum() / a.numel(),
            "q_loss": -q.mean() / size,
        }

    def update(self, batch: tuple[Tensor, ...], draws: tuple[Tensor, ...]) -> dict[str, Tensor]:
        """The target follows the old critics; then one step of everything."""
        found, tau = self.losses(batch, draws), self.c.tau
        found["actor_loss"] = self.c.distill_coef * found["distill_loss"] + found["q_loss"]
        slopes = torch.autograd.grad(found["critic_loss"] + found["flow_loss"] + found["actor_loss"], self.leaves)
        self.q_t = [mixed(old, new, tau) for old, new in zip(self.q_t, self.q, strict=True)]
        self.updates += 1
        for place, (leaf, g) in enumerate(zip(self.leaves, slopes, strict=True)):
            m, v = self.moments[place]
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            self.moments[place] = m, v
            unbiased = m / (1 - 0.9**self.updates), v / (1 - 0.999**self.updates)
            leaf.data -= self.c.learning_rate * unbiased[0] / (unbiased[1].sqrt() + 1e-8)
        return found


def drawn(config: Any) -> tuple[Tensor, ...]:
    """An update's draws; its times are (B, 1)."""
    size = config.batch_size, ACTION_DIM
    return torch.randn(size), torch.randn(size), torch.rand(config.batch_size)[:, None], torch.randn(size)


def moved(trainer: Any, bound: float) -> None:
    """Moves biases, norms and targets away from their initial values, and actions to both sides of their bounds."""
    for network in (trainer.actor, trainer.flow, trainer.critic, trainer.critic_target):
        for parameter in network.parameters():
            parameter.data += (0.3 if parameter.dim() == 1 else 0.02) * torch.randn_like(parameter)
    for policy in (trainer.actor, trainer.flow):
        policy.net[-1].bias.data += torch.linspace(-1.4 * bound, 1.4 * bound, ACTION_DIM)


@pytest.mark.parametrize("bound", [1.0, 2.0])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_fql(dataset: Batch, settings: dict[str, Any], bound: float) -> None:
    """All weights, logs and actions are equal."""
    config = fql.TrainConfig(device="cpu", **settings)
    dataset = Batch(*(column.double() for column in dataset))
    dataset = dataset._replace(actions=bound * dataset.actions)
    torch.manual_seed(7)
    trainer = fql.create_trainer(config, STATE_DIM, ACTION_DIM, bound)
    moved(trainer, bound)
    reference = Reference(config, trainer, bound)
    six_updates(fql, config, trainer, dataset, lambda batch: reference.update(batch, drawn(config)), LOG)
    assert_same_fql(trainer, reference)
    assert_both_sides(reference)
    noise_of_acting = torch.randn(ROWS, ACTION_DIM)
    found = trainer.act(dataset.observations.numpy(), noise_of_acting.numpy())
    right = reference.inside(run(reference.mu, dataset.observations, noise_of_acting), "acting beyond")
    np.testing.assert_allclose(found, right.detach().numpy(), rtol=0.0, atol=WEIGHTS)


def assert_same_fql(trainer: Any, reference: Reference) -> None:
    """Checks all weights of all networks."""
    ours = [trainer.critic.q1, trainer.critic.q2, trainer.critic_target.q1, trainer.critic_target.q2]
    theirs = [*reference.q, *reference.q_t, reference.v, reference.mu]
    for mine, other in zip([*ours, trainer.flow.net, trainer.actor.net], theirs, strict=True):
        for a, b in zip(mine.parameters(), chain(*other), strict=True):
            torch.testing.assert_close(a, b, rtol=0.0, atol=WEIGHTS)


def assert_both_sides(reference: Reference) -> None:
    """Checks that the batches reached both sides of each bound."""
    what = ("flow beyond", "next action beyond", "action beyond", "done", "positive")
    assert reference.reached == {f"{x} {way}" for x in what for way in (True, False)} | {"least 0", "least 1"}


def test_what_acting_draws() -> None:
    """It draws a standard normal number for each component of the action."""
    found = fql.draw_acting_noise(np.random.default_rng(3), fql.TrainConfig(), ACTION_DIM)
    np.testing.assert_array_equal(found, np.random.default_rng(3).standard_normal(ACTION_DIM))


def test_weights_start_uniform() -> None:
    """Weights are within Glorot's bound, biases and shifts are 0, scales are 1, and the target is a copy."""
    assert_uniform_start(fql)


def assert_uniform_start(twin: ModuleType) -> None:
    """Checks the initial weights of each network in an FQL twin."""
    torch.manual_seed(7)
    config = twin.TrainConfig(device="cpu", actor_ln=True, actor_hidden_dims=(300, 200), critic_hidden_dims=(200, 100))
    trainer = twin.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    networks = [trainer.actor.net, trainer.flow.net, trainer.critic.q1, trainer.critic.q2]
    inputs = [STATE_DIM + ACTION_DIM, STATE_DIM + ACTION_DIM + 1, *[STATE_DIM + ACTION_DIM] * 2]
    hidden = [*[config.actor_hidden_dims] * 2, *[config.critic_hidden_dims] * 2]
    outputs = [ACTION_DIM, ACTION_DIM, 1, 1]
    for network, first, dims, last in zip(networks, inputs, hidden, outputs, strict=True):
        assert_glorot(network, first, dims, last)
    assert not torch.equal(trainer.critic.q1[0].weight, trainer.critic.q2[0].weight)
    for ours, target in zip(trainer.critic.parameters(), trainer.critic_target.parameters(), strict=True):
        assert torch.equal(ours, target)


def assert_glorot(network: nn.Sequential, first: int, dims: tuple[int, int], last: int) -> None:
    """Checks the initial weights of a network with these widths."""
    layers = layers_of(network)
    linear = [weight for weight, _ in layers if weight.dim() == 2]
    assert [weight.shape for weight in linear] == [(dims[0], first), (dims[1], dims[0]), (last, dims[1])]
    for weight, bias in layers:
        assert not bias.any()
        if weight.dim() == 1:
            assert torch.equal(weight, torch.ones_like(weight))
        else:
            bound = math.sqrt(6 / sum(weight.shape))
            assert 0.95 * bound < weight.abs().max() <= bound
            assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)


class StopError(Exception):
    """Ends a run at the point that a test checks."""


@pytest.mark.parametrize("twin", [fql, jax_twin], ids=["torch", "jax"])
def test_a_run_learns_from_actions_short_of_their_bounds(
    twin: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are short by 1e-5, although some of the bundled data's actions reach their bounds."""
    assert_actions_are_cut(twin, tmp_path, monkeypatch)


def assert_actions_are_cut(twin: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks the actions that a run of a twin learns from."""
    found: list[Batch] = []

    def stop(dataset: Batch, *device: Any) -> None:
        found.append(dataset)
        raise StopError

    monkeypatch.setattr(twin, "to_device", stop)
    sizes: dict[str, Any] = {"actor_hidden_dims": (8,), "critic_hidden_dims": (8,), "n_episodes": 1}
    config = twin.TrainConfig(env="mini/hopper-medium-expert", device="cpu", runs_path=str(folder), **sizes)
    with pytest.raises(StopError):
        twin.train(config)
    assert np.abs(found[0].actions).max() == np.float32(1.0 - 1e-5)
