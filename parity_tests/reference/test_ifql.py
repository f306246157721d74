"""IFQL in its authors' arrangement, in bare arrays: one loss, one gradient, one Adam. Six updates agree within 1e-12.

The layers come from FQL's derivation.
"""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from corl_jax import ifql as jax_twin
from corl_torch import ifql
from parity_tests.reference.common import ACTION_DIM, STATE_DIM, six_updates
from parity_tests.reference.test_fql import (
    LOG,
    WEIGHTS,
    assert_actions_are_cut,
    assert_glorot,
    layers_of,
    mixed,
    run,
)
from shared.data.transitions import Batch

SMALL: dict[str, Any] = {"actor_hidden_dims": (40, 30), "critic_hidden_dims": (30, 40), "batch_size": 64}
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {"batch_size": 16, "n_action_samples": 4},
    "a lower expectile": SMALL | {"iql_tau": 0.3, "n_action_samples": 8, "flow_steps": 4},
    "the mean, one step": SMALL
    | {"iql_tau": 0.5, "n_action_samples": 3, "flow_steps": 1, "actor_ln": True, "actor_hidden_dims": (50,)},
    "the norms exchanged": SMALL
    | {"actor_ln": True, "critic_ln": False, "discount": 0.9, "tau": 0.1, "learning_rate": 1e-3}
    | {"actor_hidden_dims": (20, 30, 20), "critic_hidden_dims": (30, 20, 30), "n_action_samples": 2, "flow_steps": 7},
}
# States in which the policies act
STATES = 500


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    """Makes a mistake a thousand million times larger than rounding."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Reference:
    """The textbook update, and the best of the flow's actions."""

    def __init__(self, config: Any, trainer: Any, bound: float) -> None:
        self.c, self.bound = config, bound
        self.v, self.u = layers_of(trainer.value.net), layers_of(trainer.flow.net)
        self.q = [layers_of(trainer.critic.q1), layers_of(trainer.critic.q2)]
        self.q_t = [layers_of(trainer.critic_target.q1), layers_of(trainer.critic_target.q2)]
        critics = config.critic_ln, len(config.critic_hidden_dims)
        actor = config.actor_ln, len(config.actor_hidden_dims)
        for layers, (has_norms, hidden) in ((self.v, critics), (self.q[0], critics), (self.u, actor)):
            assert [weight.dim() for weight, _ in layers] == [*([2, 1] if has_norms else [2]) * hidden, 2]
        self.leaves = [leaf.requires_grad_() for layer in chain(self.v, *self.q, self.u) for leaf in layer]
        self.moments = [(torch.zeros_like(leaf), torch.zeros_like(leaf)) for leaf in self.leaves]
        self.updates = 0
        # The branches that batches and actions reach
        self.reached: set[str] = set()

    def reach(self, what: str, where: Tensor) -> None:
        """Notes the branches of all rows."""
        self.reached |= {f"{what} {x}" for x in where.flatten().tolist()}

    def least(self, critics: list[Any], s: Tensor, a: Tensor, what: str) -> Tensor:
        """The smaller value of both critics, (B, 1)."""
        q = torch.cat([run(q, s, a) for q in critics], 1)
        self.reach(what, q[:, 0] < q[:, 1])
        return torch.where(q[:, 0] < q[:, 1], q[:, 0], q[:, 1])[:, None]

    def losses(self, batch: tuple[Tensor, ...], draws: tuple[Tensor, ...]) -> dict[str, Tensor]:
        """All terms of the one loss, at the same weights."""
        (s, a, r, s2, d), (x0, t) = batch, draws
        with torch.no_grad():
            worth, y = self.least(self.q_t, s, a, "target"), r + self.c.discount * (1 - d) * run(self.v, s2)
        gap = worth - run(self.v, s)
        self.reach("gain", gap > 0)
        self.reach("done", d > 0)
        above, below = gap.clamp(min=0), gap.clamp(max=0)
        error = torch.cat([run(q, s, a) - y for q in self.q], 1)
        velocity = run(self.u, s, x0 + t * (a - x0), t)
        return {
            "value_loss": (self.c.iql_tau * above**2 + (1 - self.c.iql_tau) * below**2).sum() / len(s),
            "critic_loss": (error**2).sum() / len(s),
            "flow_loss": ((a - x0 - velocity) ** 2).sum() / a.numel(),
        }

    def update(self, batch: tuple[Tensor, ...], draws: tuple[Tensor, ...]) -> dict[str, Tensor]:
        """The target follows the old critics; then one step of everything."""
        found = self.losses(batch, draws)
        slopes = torch.autograd.grad(sum(found.values(), torch.zeros(())), self.leaves)
        self.q_t = [mixed(old, new, self.c.tau) for old, new in zip(self.q_t, self.q, strict=True)]
        self.updates += 1
        for place, (leaf, g) in enumerate(zip(self.leaves, slopes, strict=True)):
            m, v = self.moments[place]
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            self.moments[place] = m, v
            unbiased = m / (1 - 0.9**self.updates), v / (1 - 0.999**self.updates)
            leaf.data -= self.c.learning_rate * unbiased[0] / (unbiased[1].sqrt() + 1e-8)
        return found

    def transported(self, s: Tensor, x: Tensor) -> Tensor:
        """The end point of the flow from x, within the bounds."""
        n = self.c.flow_steps
        for i in range(n):
            x = x + (1 / n) * run(self.u, s, x, torch.full((len(x), 1), i / n))
        self.reach("beyond", x.abs() > self.bound)
        return x.clamp(-self.bound, self.bound)

    @torch.no_grad()
    def best(self, s: Tensor, z: Tensor) -> Tensor:
        """For each state, the best of the actions from noise (B, n, A), one sample after the other."""
        best, highest = torch.zeros(len(s), ACTION_DIM), torch.full((len(s), 1), -torch.inf)
        for number in range(z.shape[1]):
            action = self.transported(s, z[:, number])
            q = self.least(self.q, s, action, "acting")
            best, highest = torch.where(q > highest, action, best), torch.maximum(q, highest)
        return best


def drawn(config: Any) -> tuple[Tensor, ...]:
    """An update's draws; its times are (B, 1)."""
    return torch.randn(config.batch_size, ACTION_DIM), torch.rand(config.batch_size)[:, None]


def moved(trainer: Any, bound: float) -> None:
    """Moves biases, norms and targets away from their initial values, and actions to both sides of their bounds."""
    for network in (trainer.value, trainer.critic, trainer.critic_target, trainer.flow):
        for parameter in network.parameters():
            parameter.data += (0.3 if parameter.dim() == 1 else 0.02) * torch.randn_like(parameter)
    trainer.flow.net[-1].bias.data += torch.linspace(-1.4 * bound, 1.4 * bound, ACTION_DIM)
    # Values differ by little more than the state, so advantages have either sign.
    for critics in (trainer.critic, trainer.critic_target):
        for q in (critics.q1, critics.q2):
            q[-1].bias.data.zero_()
    trainer.value.net[-1].bias.data.zero_()


@pytest.mark.parametrize("bound", [1.0, 2.0])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_ifql(dataset: Batch, settings: dict[str, Any], bound: float) -> None:
    """All weights, logs and actions are equal, and the batches reached both sides of each branch."""
    config = ifql.TrainConfig(device="cpu", **settings)
    dataset = Batch(*(column.double() for column in dataset))
    dataset = dataset._replace(actions=bound * dataset.actions)
    torch.manual_seed(7)
    trainer = ifql.create_trainer(config, STATE_DIM, ACTION_DIM, bound)
    moved(trainer, bound)
    reference = Reference(config, trainer, bound)
    six_updates(ifql, config, trainer, dataset, lambda batch: reference.update(batch, drawn(config)), LOG)
    assert_same_ifql(trainer, reference)
    observations = dataset.observations[:STATES]
    noise = torch.randn(STATES, config.n_action_samples, ACTION_DIM)
    found = trainer.act(observations.numpy(), noise.numpy())
    np.testing.assert_allclose(found, reference.best(observations, noise).numpy(), rtol=0.0, atol=WEIGHTS)
    assert_both_sides(reference)


def assert_same_ifql(trainer: Any, reference: Reference) -> None:
    """Checks all weights of all networks."""
    ours = [trainer.value.net, trainer.flow.net]
    ours += [trainer.critic.q1, trainer.critic.q2, trainer.critic_target.q1, trainer.critic_target.q2]
    for mine, other in zip(ours, [reference.v, reference.u, *reference.q, *reference.q_t], strict=True):
        for a, b in zip(mine.parameters(), chain(*other), strict=True):
            torch.testing.assert_close(a, b, rtol=0.0, atol=WEIGHTS)


def assert_both_sides(reference: Reference) -> None:
    """Checks that batches and actions reached both sides of each branch."""
    what = ("target", "acting", "gain", "done", "beyond")
    assert reference.reached == {f"{x} {way}" for x in what for way in (True, False)}


def test_a_tie_counts_as_a_gain() -> None:
    """An advantage of exactly 0 has the weight of a positive one."""
    trainer = ifql.create_trainer(ifql.TrainConfig(device="cpu", iql_tau=0.75), STATE_DIM, ACTION_DIM, 1.0)
    assert trainer.expectile_weight(torch.tensor([-1.0, 0.0, 1.0])).tolist() == [0.25, 0.75, 0.75]


def test_what_acting_draws() -> None:
    """It draws standard normal numbers for each component of each sampled action."""
    config = ifql.TrainConfig(n_action_samples=2)
    found = ifql.draw_acting_noise(np.random.default_rng(3), config, ACTION_DIM)
    np.testing.assert_array_equal(found, np.random.default_rng(3).standard_normal((2, ACTION_DIM)))


def test_weights_start_uniform() -> None:
    """Weights are within Glorot's bound, biases and shifts are 0, scales are 1, and the target is a copy."""
    assert_uniform_start(ifql)


def assert_uniform_start(twin: ModuleType) -> None:
    """Checks the initial weights of each network in an IFQL twin."""
    torch.manual_seed(7)
    config = twin.TrainConfig(device="cpu", actor_ln=True, actor_hidden_dims=(300, 200), critic_hidden_dims=(200, 100))
    trainer = twin.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    both = STATE_DIM + ACTION_DIM
    assert_glorot(trainer.value.net, STATE_DIM, (200, 100), 1)
    assert_glorot(trainer.critic.q1, both, (200, 100), 1)
    assert_glorot(trainer.critic.q2, both, (200, 100), 1)
    assert_glorot(trainer.flow.net, both + 1, (300, 200), ACTION_DIM)
    assert not torch.equal(trainer.critic.q1[0].weight, trainer.critic.q2[0].weight)
    for ours, target in zip(trainer.critic.parameters(), trainer.critic_target.parameters(), strict=True):
        assert torch.equal(ours, target)


@pytest.mark.parametrize("twin", [ifql, jax_twin], ids=["torch", "jax"])
def test_a_run_learns_from_actions_short_of_their_bounds(
    twin: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are short by 1e-5, although some of the bundled data's actions reach their bounds."""
    assert_actions_are_cut(twin, tmp_path, monkeypatch)
