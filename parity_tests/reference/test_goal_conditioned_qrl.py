"""QRL in its authors' arrangement, in bare arrays: one loss, one gradient, one Adam. Six updates agree within 1e-12.

The layers come from FQL's derivation, and the draws of goals from HIQL's.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from corl_torch.goal_conditioned import qrl
from parity_tests.reference.common import ACTION_DIM, ROWS, STATE_DIM, Log
from parity_tests.reference.test_fql import WEIGHTS, Layer, assert_glorot, fixed, layers_of, run
from parity_tests.reference.test_goal_conditioned_hiql import (
    Descent,
    assert_same_layers,
    goals_of,
    in_trajectories,
    leaves_of,
    log_density,
    moved,
    six_updates_with_goals,
    spread_of,
    value_goals_of,
)
from shared.data.goals import GoalTransitions
from shared.data.transitions import Batch

SMALL: dict[str, Any] = {"actor_hidden_dims": (40, 30), "value_hidden_dims": (30, 40), "batch_size": 64}
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {"batch_size": 16},
    "the other metric": SMALL | {"quasimetric_type": "mrn", "latent_dim": 16, "const_std": False, "eps": 0.4},
    "weights": SMALL
    | {"actor_loss": "awr", "alpha": 20.0, "latent_dim": 48, "value_ln": False, "learning_rate": 1e-3}
    | {"value_p_curgoal": 0.4, "value_p_trajgoal": 0.3, "value_p_randomgoal": 0.3, "value_geom_sample": False}
    | {"actor_p_curgoal": 0.1, "actor_p_trajgoal": 0.4, "actor_p_randomgoal": 0.5, "actor_geom_sample": True},
    "drawn actions": SMALL | {"const_std": False, "latent_dim": 8, "alpha": 0.1, "discount": 0.9},
    "weights, the other metric": SMALL
    | {"actor_loss": "awr", "quasimetric_type": "mrn", "alpha": 10.0, "value_ln": False},
}


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    """Makes a mistake a thousand million times larger than rounding."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def union(x: Tensor, y: Tensor) -> Tensor:
    """The length (...) of the union of intervals (..., n): the gaps between sorted ends in which any is open."""
    is_one = (x < y).double()
    ends = torch.cat([x, y], -1)
    sorted_ends, order = torch.sort(ends, dim=-1, stable=True)
    is_open = torch.cat([is_one, -is_one], -1).gather(-1, order).cumsum(-1)[..., :-1] > 0
    return (sorted_ends.diff(dim=-1) * is_open).sum(-1)


class Reference:
    """The textbook update."""

    def __init__(self, config: Any, trainer: Any, dataset: GoalTransitions, bound: float) -> None:
        self.c, self.data, self.bound = config, dataset, bound
        self.phi, self.dynamics, self.pi = (
            layers_of(part.net) for part in (trainer.quasimetric, trainer.dynamics, trainer.actor)
        )
        values = config.value_ln, len(config.value_hidden_dims)
        actors = False, len(config.actor_hidden_dims)
        for layers, (has_norms, hidden) in ((self.phi, values), (self.dynamics, values), (self.pi, actors)):
            assert [weight.dim() for weight, _ in layers] == [*([2, 1] if has_norms else [2]) * hidden, 2]
        self.log_lambda = torch.zeros(())
        numbers = trainer.quasimetric.mix, trainer.actor.log_std
        self.mix, self.spread = (None if number is None else number.detach().clone() for number in numbers)
        present = [number for number in (self.mix, self.spread) if number is not None]
        networks = [self.phi, self.pi, *([self.dynamics] if config.actor_loss == "ddpgbc" else [])]
        self.descent = Descent([*leaves_of(*networks), self.log_lambda, *present], config.learning_rate)
        # The branches that batches and actions reach
        self.reached: set[str] = set()

    def reach(self, what: str, where: Tensor) -> None:
        """Notes the branches of all rows."""
        self.reached |= {f"{what} {x}" for x in where.flatten().tolist()}

    def d(self, x: Tensor, y: Tensor, mix: Tensor | None) -> Tensor:
        """The distance from x to y, (B, 1)."""
        if mix is not None:
            lengths = union(x.unflatten(1, (-1, 8)), y.unflatten(1, (-1, 8)))
            w = 1 / (1 + torch.exp(-mix))
            return (w * lengths.mean(1) + (1 - w) * lengths.amax(1))[:, None]
        half = x.shape[1] // 2
        norm = ((x - y)[:, :half] ** 2).sum(1).clamp(min=1e-12).sqrt()
        return (norm + (x - y)[:, half:].amax(1).clamp(min=0))[:, None]

    def batch(self) -> tuple[Tensor, ...]:
        """A batch with numbers drawn in the authors' order, and the noise of actions."""
        c, ends, observations = self.c, self.data.last.numpy(), self.data.observations
        rows = np.random.randint(0, ROWS, c.batch_size)
        own = value_goals_of(c, rows, ends)
        shares = c.actor_p_curgoal, c.actor_p_trajgoal, c.actor_p_randomgoal
        aim = goals_of(rows, ends, shares, c.actor_geom_sample, c.discount)
        np.random.rand()
        noise = torch.zeros(c.batch_size, ACTION_DIM) if c.const_std else torch.randn(c.batch_size, ACTION_DIM)
        states = (observations[chosen] for chosen in (rows, own, aim))
        return *states, self.data.actions[rows], self.data.next_observations[rows], noise

    def apart(self, s: Tensor, g: Tensor, s2: Tensor) -> dict[str, Tensor]:
        """The terms that push apart and hold together."""
        z = run(self.phi, s)
        far, step = self.d(z, run(self.phi, g), self.mix), self.d(z, run(self.phi, s2), self.mix)
        self.reach("long step", step > 1)
        excess = (step - 1).clamp(min=0)
        c, multiplier = (excess**2).mean(), self.log_lambda.exp()
        push = (100 * torch.log(1 + torch.exp(5 - far / 100))).mean()
        return {
            "distance_loss": push + multiplier.detach() * c,
            "lambda_loss": multiplier * (self.c.eps - c.detach()),
            "push": push,
            "violation": c,
            "lambda": multiplier,
            "d_goal": far.mean(),
            "d_step": step.mean(),
        }

    def predicted(self, s: Tensor, a: Tensor, s2: Tensor) -> Tensor:
        """The mean distance between true and predicted next latents."""
        z, z2 = run(self.phi, s), run(self.phi, s2)
        p = z + run(self.dynamics, z, a)
        return (self.d(z2, p, self.mix) + self.d(p, z2, self.mix)).sum() / 2 / len(s)

    def shortened(self, s: Tensor, h: Tensor, u: Tensor) -> Tensor:
        """The negative distance to the goal after actions u, with everything but the actions fixed."""
        phi, mix = fixed(self.phi), None if self.mix is None else self.mix.detach()
        edge = torch.full_like(u, self.bound)
        self.reach("drawn beyond", u.abs() > self.bound)
        u = torch.where(u > edge, edge, torch.where(u < -edge, -edge, u))
        z = run(phi, s)
        q = -self.d(z + run(fixed(self.dynamics), z, u), run(phi, h), mix)
        return -q.mean() / (q.detach().abs().mean() + 1e-6)

    def weights(self, s: Tensor, h: Tensor, s2: Tensor) -> Tensor:
        """The weights of the data's actions, (B, 1)."""
        with torch.no_grad():
            z, z2, goal = (run(self.phi, states) for states in (s, s2, h))
            nearer = self.d(z, goal, self.mix) - self.d(z2, goal, self.mix)
        self.reach("capped", self.c.alpha * nearer > math.log(100))
        return (self.c.alpha * nearer).clamp(max=math.log(100)).exp()

    def losses(self, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        """All terms of the one loss, at the same weights, and the log."""
        s, g, h, a, s2, noise = batch
        found, mean = self.apart(s, g, s2), run(self.pi, s, h)
        std = spread_of(self.spread, mean)
        likely = log_density(mean, std, a)
        if self.c.actor_loss == "awr":
            return found | {
                "actor_loss": -(self.weights(s, h, s2) * likely).mean(),
                "bc_log_prob": likely.mean(),
            }
        q_loss, bc_loss = self.shortened(s, h, mean + std * noise), -self.c.alpha * likely.mean()
        return found | {
            "dynamics_loss": self.predicted(s, a, s2),
            "actor_loss": q_loss + bc_loss,
            "q_loss": q_loss,
            "bc_loss": bc_loss,
        }

    def update(self) -> Log:
        """One step of everything."""
        found = self.losses(self.batch())
        parts = ("distance_loss", "lambda_loss", "dynamics_loss", "actor_loss")
        total = sum((found[part] for part in parts if part in found), torch.zeros(()))
        logged = {name: value.detach().clone() for name, value in found.items()}
        self.descent.step(torch.autograd.grad(total, self.descent.leaves))
        return logged

    @torch.no_grad()
    def action(self, s: Tensor, g: Tensor) -> Tensor:
        """The likeliest action within the bounds."""
        a = run(self.pi, s, g)
        self.reach("beyond", a.abs() > self.bound)
        return a.clamp(-self.bound, self.bound)


@pytest.mark.parametrize("bound", [1.0, 2.0])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_qrl(dataset: Batch, settings: dict[str, Any], bound: float) -> None:
    """All weights, logs and actions are equal, and the batches reached both sides of each branch."""
    config = qrl.TrainConfig(device="cpu", **settings)
    rows = in_trajectories(dataset, bound)
    # Steps of all lengths, the shortest of them 0
    share = torch.linspace(0, 1, ROWS)[:, None]
    rows = rows._replace(next_observations=torch.lerp(rows.observations, rows.next_observations, share))
    torch.manual_seed(7)
    trainer = qrl.create_trainer(config, STATE_DIM, ACTION_DIM, bound)
    moved([trainer.quasimetric, trainer.dynamics, trainer.actor])
    trainer.actor.net[-1].bias.data += torch.linspace(-2 * bound, 2 * bound, ACTION_DIM)
    reference = Reference(config, trainer, rows, bound)
    six_updates_with_goals(qrl, config, trainer, rows, qrl.take_goals, reference.update)
    assert_same_qrl(trainer, reference)
    observations, goals = rows.observations[:500], rows.observations[500:1000]
    found = trainer.act(observations.numpy(), goals.numpy())
    np.testing.assert_allclose(found, reference.action(observations, goals).numpy(), rtol=0.0, atol=WEIGHTS)
    what = ("long step", "beyond", "drawn beyond" if config.actor_loss == "ddpgbc" else "capped")
    assert reference.reached == {f"{x} {way}" for x in what for way in (True, False)}


def assert_same_qrl(trainer: Any, reference: Reference) -> None:
    """Checks all weights of all networks, and all numbers beside them."""
    ours = [trainer.quasimetric.net, trainer.dynamics.net, trainer.actor.net]
    theirs: list[list[Layer]] = [reference.phi, reference.dynamics, reference.pi]
    if reference.c.actor_loss == "awr":
        # No distance depends on this bias. Its gradient is rounding, by which Adam divides.
        bias, other = trainer.quasimetric.net[-1].bias.data, reference.phi[-1][1].data
        torch.testing.assert_close(bias, other, rtol=0.0, atol=1e-9)
        other.copy_(bias)
    assert_same_layers(ours, theirs)
    numbers = (trainer.quasimetric.mix, reference.mix), (trainer.actor.log_std, reference.spread)
    for mine, other in (*numbers, (trainer.log_lambda(), reference.log_lambda)):
        assert (mine is None) == (other is None)
        if mine is not None:
            torch.testing.assert_close(mine, other, rtol=0.0, atol=WEIGHTS)


def test_intervals_that_begin_together() -> None:
    """Equal ends, empty intervals and intervals within others count once, in the length and in the gradient."""
    x = torch.tensor([[0.0, 0.0, 2.0, 2.0, 2.5, 5.0, 7.0, 7.0]], requires_grad=True)
    y = torch.tensor([[1.0, 1.5, 3.0, 3.0, 2.75, 5.0, 6.0, 9.0]], requires_grad=True)
    # One group, whose mean and largest are the same
    found = qrl.iqe(x, y, torch.zeros(()))
    assert found.item() == union(x, y).item() == 1.5 + 1.0 + 2.0
    found.sum().backward()
    assert x.grad is not None
    assert y.grad is not None
    # A step from an interval's beginning to another's end: of two that begin together, the longer one counts.
    assert (x.grad.sum(), y.grad.sum()) == (-3.0, 3.0)
    assert y.grad.tolist() == [[0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0]]
    assert (qrl.iqe(x, x, torch.zeros(())) == 0.0).all()


def test_weights_start_uniform() -> None:
    """Weights are within Glorot's bound, a tenth of it in the policy's last layer; all numbers start at 0."""
    torch.manual_seed(7)
    dims: dict[str, Any] = {"actor_hidden_dims": (300, 200), "value_hidden_dims": (200, 100), "latent_dim": 64}
    trainer = qrl.create_trainer(qrl.TrainConfig(device="cpu", const_std=False, **dims), STATE_DIM, ACTION_DIM, 1.0)
    assert_glorot(trainer.quasimetric.net, STATE_DIM, (200, 100), 64)
    assert_glorot(trainer.dynamics.net, 64 + ACTION_DIM, (200, 100), 64)
    trainer.actor.net[-1].weight.data *= 10
    assert_glorot(trainer.actor.net, 2 * STATE_DIM, (300, 200), ACTION_DIM)
    for number in (trainer.log_lambda(), trainer.quasimetric.mix, trainer.actor.log_std):
        assert number is not None
        assert not number.any()
