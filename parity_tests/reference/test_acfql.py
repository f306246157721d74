"""ACFQL in its authors' arrangement, in bare arrays: one loss, gradient and Adam. Six updates agree within 1e-12."""

from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from corl_jax import acfql as jax_twin
from corl_torch import acfql
from parity_tests.reference.common import (
    ACTION_DIM,
    CPU,
    ROWS,
    STATE_DIM,
    UPDATES,
    assert_same_log,
    same_draws,
)
from parity_tests.reference.test_fql import (
    LOG,
    WEIGHTS,
    assert_actions_are_cut,
    assert_glorot,
    double_precision,
    fixed,
    layers_of,
    mixed,
    run,
)
from shared.data.returns import EndedBatch
from shared.data.transitions import Batch

__all__ = ["double_precision"]

SMALL: dict[str, Any] = {"actor_hidden_dims": (40, 30), "critic_hidden_dims": (30, 40), "batch_size": 64}
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {"batch_size": 16, "flow_steps": 3},
    "the best of n": SMALL | {"actor_type": "best-of-n", "n_action_samples": 4, "horizon_length": 3, "flow_steps": 4},
    "the smaller critic": SMALL | {"q_agg": "min", "distill_coef": 0.3, "horizon_length": 4, "discount": 0.8},
    "the best of n by the smaller": SMALL
    | {"actor_type": "best-of-n", "q_agg": "min", "n_action_samples": 3, "horizon_length": 2, "flow_steps": 1}
    | {"actor_ln": True, "critic_ln": False, "learning_rate": 1e-3, "tau": 0.1},
    "an action at a time": SMALL | {"horizon_length": 1, "flow_steps": 2},
}
# States in which the policies are compared
STATES = 200


def chunks_of(dataset: EndedBatch, config: Any) -> tuple[Tensor, ...]:
    """A batch by the authors' table: rewards, masks and validity after each of the h rows, not only after the last."""
    h, size = config.horizon_length, len(dataset.rewards)
    j = np.random.randint(size - h + 1, size=config.batch_size)
    rewards, masks, valid = (torch.zeros(len(j), h) for _ in range(3))
    for row, start in enumerate(j):
        total, mask, ended = 0.0, 1.0, False
        for k in range(h):
            valid[row, k] = 0.0 if ended else 1.0
            total += config.discount**k * float(dataset.rewards[start + k])
            mask = min(mask, 1.0 - float(dataset.terminals[start + k]))
            ended = ended or bool(dataset.last[start + k])
            rewards[row, k], masks[row, k] = total, mask
    a = torch.cat([dataset.actions[j + k] for k in range(h)], 1)
    return dataset.observations[j], a, rewards, dataset.next_observations[j + h - 1], masks, valid


class Reference:
    """The textbook update, on chunks whose actions are side by side, (B, h A)."""

    def __init__(self, config: Any, trainer: Any, bound: float) -> None:
        self.c, self.bound = config, bound
        self.distils = config.actor_type == "distill-ddpg"
        self.q = [layers_of(trainer.critic.q1), layers_of(trainer.critic.q2)]
        self.q_t = [layers_of(trainer.critic_target.q1), layers_of(trainer.critic_target.q2)]
        self.v, self.mu = layers_of(trainer.flow.net), layers_of(trainer.actor.net)
        # The best of n never trains the policy's own network.
        learning = [*self.q, self.v, *([self.mu] if self.distils else [])]
        self.leaves = [leaf.requires_grad_() for layer in chain(*learning) for leaf in layer]
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

    def one(self, critics: list[Any], s: Tensor, a: Tensor) -> Tensor:
        """The value of chunks, (B, 1): the mean over the critics, or the smaller one."""
        q = torch.cat([run(q, s, a) for q in critics], 1)
        if self.c.q_agg == "mean":
            return q.sum(1, keepdim=True) / 2
        self.reached |= {f"least {bool(place)}" for place in q.argmin(1)}
        return q.min(1, keepdim=True).values

    def choose(self, s: Tensor, z: Tensor) -> Tensor:
        """The policy's chunks: its own network's, or the best of the flow's by the critics that learn."""
        if self.distils:
            return self.inside(run(self.mu, s, z.flatten(1)), "choice beyond")
        best, highest = torch.zeros(len(s), z[0, 0].numel()), torch.full((len(s), 1), -torch.inf)
        for number in range(z.shape[1]):
            a = self.transported(s, z[:, number].flatten(1))
            q = self.one(self.q, s, a)
            best, highest = torch.where(q > highest, a, best), torch.maximum(q, highest)
        return best

    def losses(self, batch: tuple[Tensor, ...], draws: tuple[Tensor, ...]) -> dict[str, Tensor]:
        """All terms of the one loss, at the same weights."""
        (s, a, r, s2, m, valid), (z1, x0, t, *z2) = batch, draws
        x0, h = x0.flatten(1), self.c.horizon_length
        self.reached |= {f"mask {bool(x)}" for x in m[:, -1]} | {f"valid {bool(x)}" for x in valid[:, -1]}
        with torch.no_grad():
            next_q = self.one(self.q_t, s2, self.choose(s2, z1))
            y = r[:, -1:] + self.c.discount**h * m[:, -1:] * next_q
        error = torch.cat([run(q, s, a) - y for q in self.q], 1)
        velocity = run(self.v, s, x0 + t * (a - x0), t)
        apart = ((a - x0 - velocity) ** 2).unflatten(1, (h, ACTION_DIM))
        found = {
            "critic_loss": (valid[:, -1:] * error**2).sum() / error.numel(),
            "flow_loss": torch.einsum("bh,bha->", valid, apart) / a.numel(),
        }
        if self.distils:
            z = z2[0].flatten(1)
            u = run(self.mu, s, z)
            with torch.no_grad():
                end = self.transported(s, z)
            inner = self.inside(u, "action beyond")
            found["distill_loss"] = ((end - u) ** 2).sum() / a.numel()
            found["q_loss"] = -torch.cat([run(fixed(q), s, inner) for q in self.q], 1).mean()
        return found

    def update(self, batch: tuple[Tensor, ...], draws: tuple[Tensor, ...]) -> dict[str, Tensor]:
        """The target follows the old critics; then one step of everything."""
        found, tau = self.losses(batch, draws), self.c.tau
        total = found["critic_loss"] + found["flow_loss"]
        if self.distils:
            found["actor_loss"] = self.c.distill_coef * found["distill_loss"] + found["q_loss"]
            total = total + found["actor_loss"]
        slopes = torch.autograd.grad(total, self.leaves)
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
    size, chunk = config.batch_size, (config.horizon_length, ACTION_DIM)
    if config.actor_type == "best-of-n":
        return (
            torch.randn(size, config.n_action_samples, *chunk),
            torch.randn(size, *chunk),
            torch.rand(size)[:, None],
        )
    return torch.randn(size, *chunk), torch.randn(size, *chunk), torch.rand(size)[:, None], torch.randn(size, *chunk)


def moved(trainer: Any, bound: float) -> None:
    """Moves biases, norms and targets away from their initial values, and actions to both sides of their bounds."""
    for network in (trainer.actor, trainer.flow, trainer.critic, trainer.critic_target):
        for parameter in network.parameters():
            parameter.data += (0.3 if parameter.dim() == 1 else 0.02) * torch.randn_like(parameter)
    for policy in (trainer.actor, trainer.flow):
        bias = policy.net[-1].bias.data
        bias += torch.linspace(-1.4 * bound, 1.4 * bound, len(bias))
    for critics in (trainer.critic, trainer.critic_target):
        for q in (critics.q1, critics.q2):
            q[-1].bias.data.zero_()


def rows_of(dataset: Batch, bound: float) -> EndedBatch:
    """The rows in double precision, whose episodes end at terminals and at some other rows."""
    columns = Batch(*(column.double() for column in dataset))
    torch.manual_seed(3)
    last = (columns.terminals > 0) | (torch.rand(len(columns.rewards)) < 0.1)
    return EndedBatch(*columns._replace(actions=bound * columns.actions), last.double())


@pytest.mark.parametrize("bound", [1.0, 2.0])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_acfql(dataset: Batch, settings: dict[str, Any], bound: float) -> None:
    """All weights, logs and actions are equal, and the batches reached both sides of each branch."""
    config, rows = acfql.TrainConfig(device="cpu", **settings), rows_of(dataset, bound)
    torch.manual_seed(7)
    trainer = acfql.create_trainer(config, STATE_DIM, ACTION_DIM, bound)
    moved(trainer, bound)
    reference = Reference(config, trainer, bound)
    logs, expected = [], []
    same_draws()
    for _ in range(UPDATES):
        indices, noise = acfql.draw_noise(config, ROWS, ACTION_DIM, CPU)
        logs.append(trainer.update(acfql.take_chunks(rows, indices, config), noise))
    state = torch.get_rng_state()
    same_draws()
    for _ in range(UPDATES):
        expected.append(reference.update(chunks_of(rows, config), drawn(config)))
    assert torch.equal(state, torch.get_rng_state())
    assert_same_log(logs, expected, LOG)
    assert trainer.total_it == UPDATES
    assert_same_acfql(trainer, reference)
    observations = rows.observations[:STATES]
    noise_of_acting = torch.randn(STATES, *acfql.noise_shape(config, ACTION_DIM))
    found = trainer.act(observations.numpy(), noise_of_acting.numpy())
    assert found.shape == (STATES, config.horizon_length, ACTION_DIM)
    right = reference.choose(observations, noise_of_acting).detach().reshape(found.shape)
    np.testing.assert_allclose(found, right.numpy(), rtol=0.0, atol=WEIGHTS)
    assert_both_sides(reference)


def assert_same_acfql(trainer: Any, reference: Reference) -> None:
    """Checks all weights of all networks."""
    ours = [trainer.critic.q1, trainer.critic.q2, trainer.critic_target.q1, trainer.critic_target.q2]
    theirs = [*reference.q, *reference.q_t, reference.v, reference.mu]
    for mine, other in zip([*ours, trainer.flow.net, trainer.actor.net], theirs, strict=True):
        for a, b in zip(mine.parameters(), chain(*other), strict=True):
            torch.testing.assert_close(a, b, rtol=0.0, atol=WEIGHTS)


def assert_both_sides(reference: Reference) -> None:
    """Checks that the batches reached both sides of each branch; a single row never goes on in another episode."""
    what = ["flow beyond", "mask", "valid", *(["choice beyond", "action beyond"] if reference.distils else [])]
    what += ["least"] if reference.c.q_agg == "min" else []
    expected = {f"{x} {way}" for x in what for way in (True, False)}
    assert reference.reached == expected - ({"valid False"} if reference.c.horizon_length == 1 else set())


@pytest.mark.parametrize(
    ("actor_type", "shape"), [("distill-ddpg", (2, ACTION_DIM)), ("best-of-n", (3, 2, ACTION_DIM))]
)
def test_what_acting_draws(actor_type: str, shape: tuple[int, ...]) -> None:
    """It draws a standard normal number for each component of each action of a chunk, or of several chunks."""
    config = acfql.TrainConfig(actor_type=actor_type, horizon_length=2, n_action_samples=3)
    found = acfql.draw_acting_noise(np.random.default_rng(3), config, ACTION_DIM)
    np.testing.assert_array_equal(found, np.random.default_rng(3).standard_normal(shape))


def test_weights_start_uniform() -> None:
    """Weights are within Glorot's bound, biases and shifts are 0, scales are 1, and the target is a copy."""
    torch.manual_seed(7)
    config = acfql.TrainConfig(
        device="cpu", actor_ln=True, actor_hidden_dims=(300, 200), critic_hidden_dims=(200, 100), horizon_length=3
    )
    trainer = acfql.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    chunk = 3 * ACTION_DIM
    assert_glorot(trainer.actor.net, STATE_DIM + chunk, (300, 200), chunk)
    assert_glorot(trainer.flow.net, STATE_DIM + chunk + 1, (300, 200), chunk)
    for q in (trainer.critic.q1, trainer.critic.q2):
        assert_glorot(q, STATE_DIM + chunk, (200, 100), 1)
    assert not torch.equal(trainer.critic.q1[0].weight, trainer.critic.q2[0].weight)
    for ours, target in zip(trainer.critic.parameters(), trainer.critic_target.parameters(), strict=True):
        assert torch.equal(ours, target)


@pytest.mark.parametrize("twin", [acfql, jax_twin], ids=["torch", "jax"])
def test_a_run_learns_from_actions_short_of_their_bounds(
    twin: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are short by 1e-5, although some of the bundled data's actions reach their bounds."""
    assert_actions_are_cut(twin, tmp_path, monkeypatch)
