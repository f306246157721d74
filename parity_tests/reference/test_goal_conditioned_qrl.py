"""QRL in its authors' arrangement: one loss, one gradient, one Adam, in bare arrays."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from corl_torch.goal_conditioned import qrl
from parity_tests.reference.common import ACTION_DIM, STATE_DIM
from parity_tests.reference.goals import (
    WEIGHTS,
    Adam,
    Batch,
    File,
    Policy,
    assert_same_layers,
    assert_same_policy,
    fixed,
    layers_of,
    leaves_of,
    moved,
    rows_of_a_file,
    run,
    six_updates,
)
from parity_tests.reference.test_fql import assert_glorot
from shared.frameworks.torch_goals import take_goals

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

    def __init__(self, config: Any, trainer: Any, bound: float) -> None:
        self.c, self.file, self.policy = config, File(config), Policy(trainer.actor, bound)
        self.phi, self.dynamics = layers_of(trainer.quasimetric.net), layers_of(trainer.dynamics.net)
        norms = [1] if config.value_ln else []
        for layers in (self.phi, self.dynamics):
            assert [weight.dim() for weight, _ in layers] == [2, *norms] * len(config.value_hidden_dims) + [2]
        self.l = torch.zeros((), requires_grad=True)
        mix = trainer.quasimetric.mix
        self.mix = None if mix is None else mix.detach().clone().requires_grad_()
        numbers = [self.l] if self.mix is None else [self.l, self.mix]
        leaves = leaves_of([self.phi, self.dynamics]) + self.policy.leaves() + numbers
        self.adam = Adam(leaves, config.learning_rate)
        # The branches that batches reach
        self.reached: set[str] = set()

    def reach(self, what: str, where: Tensor) -> None:
        """Notes the branches of all rows."""
        self.reached |= {f"{what} {x}" for x in where.flatten().tolist()}

    def d(self, x: Tensor, y: Tensor, mix: Tensor | None) -> Tensor:
        """The distance from x to y, (B,)."""
        if mix is not None:
            lengths = union(x.unflatten(1, (-1, 8)), y.unflatten(1, (-1, 8)))
            w = 1 / (1 + torch.exp(-mix))
            return w * lengths.mean(1) + (1 - w) * lengths.amax(1)
        half = x.shape[1] // 2
        norm = ((x - y)[:, :half] ** 2).sum(1).clamp(min=1e-12).sqrt()
        return norm + (x - y)[:, half:].amax(1).clamp(min=0)

    def apart(self, s: Tensor, g: Tensor, n: Tensor) -> dict[str, Tensor]:
        """The terms that push apart and hold together."""
        z = run(self.phi, s)
        far, step = self.d(z, run(self.phi, g), self.mix), self.d(z, run(self.phi, n), self.mix)
        self.reach("long step", step > 1)
        c, multiplier = ((step - 1).clamp(min=0) ** 2).mean(), self.l.exp()
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

    def predicted(self, s: Tensor, a: Tensor, n: Tensor) -> Tensor:
        """The mean distance between true and predicted next latents."""
        z, there = run(self.phi, s), run(self.phi, n)
        p = z + run(self.dynamics, z, a)
        return (self.d(there, p, self.mix) + self.d(p, there, self.mix)).sum() / 2 / len(s)

    def left(self, s: Tensor, h: Tensor) -> Tensor:
        """The distance to the goal after the policy's actions, with everything but the policy fixed."""
        phi, mix = fixed(self.phi), None if self.mix is None else self.mix.detach()
        u = run(self.policy.mu, s, h)
        if not self.c.const_std:
            u = u + self.policy.deviation() * torch.randn(u.shape)
        self.reach("tried beyond", u.abs() > self.policy.bound)
        z = run(phi, s)
        return self.d(z + run(fixed(self.dynamics), z, self.policy.inside(u)), run(phi, h), mix)

    def weights(self, s: Tensor, h: Tensor, n: Tensor) -> Tensor:
        """The weights of the data's actions, (B,)."""
        with torch.no_grad():
            z, there, goal = (run(self.phi, states) for states in (s, n, h))
            exponent = self.c.alpha * (self.d(z, goal, self.mix) - self.d(there, goal, self.mix))
        self.reach("capped", exponent > math.log(100))
        return exponent.clamp(max=math.log(100)).exp()

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """All terms of the one loss, at the same weights, and the other entries of the log."""
        s, a, n, g, h = (batch[name] for name in "sangh")
        found, likely = self.apart(s, g, n), self.policy.log_density(s, h, a)
        if self.c.actor_loss == "awr":
            loss = -(self.weights(s, h, n) * likely).mean()
            return found | {"actor_loss": loss, "bc_log_prob": likely.mean()}
        left = self.left(s, h)
        terms = {"q_loss": left.mean() / (left.detach().mean() + 1e-6), "bc_loss": -self.c.alpha * likely.mean()}
        losses = {"dynamics_loss": self.predicted(s, a, n), "actor_loss": terms["q_loss"] + terms["bc_loss"]}
        return found | terms | losses

    def update(self) -> dict[str, Tensor]:
        """One step of everything; the log is from before it."""
        found = self.terms(self.file.batch())
        parts = ("distance_loss", "lambda_loss", "dynamics_loss", "actor_loss")
        total = torch.stack([found[part] for part in parts if part in found]).sum()
        self.adam.step(total)
        return found


@pytest.mark.parametrize("bound", [1.0, 2.0])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_qrl(settings: dict[str, Any], bound: float) -> None:
    """All weights, logs and actions are equal, and the batches reached both sides of each branch."""
    config = qrl.TrainConfig(device="cpu", **settings)
    torch.manual_seed(7)
    trainer = qrl.create_trainer(config, STATE_DIM, ACTION_DIM, bound)
    moved(trainer, ["quasimetric", "dynamics", "actor"], bound)
    unit(trainer.quasimetric)
    reference = Reference(config, trainer, bound)
    six_updates(qrl, config, trainer, take_goals, reference)
    if config.actor_loss == "awr":
        # No distance depends on this bias. Its gradient is rounding, by which Adam divides.
        bias, other = trainer.quasimetric.net[-1].bias.data, reference.phi[-1][1].data
        torch.testing.assert_close(bias, other, rtol=0.0, atol=1e-9)
        other.copy_(bias)
    assert_same_layers([trainer.quasimetric.net, trainer.dynamics.net], [reference.phi, reference.dynamics])
    torch.testing.assert_close(trainer.log_lambda(), reference.l, rtol=0.0, atol=WEIGHTS)
    if reference.mix is not None:
        torch.testing.assert_close(trainer.quasimetric.mix, reference.mix, rtol=0.0, atol=WEIGHTS)
    assert_same_policy(trainer, reference.policy)
    what = ("long step", "tried beyond" if config.actor_loss == "ddpgbc" else "capped")
    assert reference.reached == {f"{x} {way}" for x in what for way in (True, False)}


def unit(quasimetric: Any) -> None:
    """Scales distances so that some steps are longer than 1 and others shorter."""
    s = torch.tensor(rows_of_a_file()["observations"]).double()
    z = quasimetric(s).detach()
    scale = qrl.distance(quasimetric, z[:-1], z[1:]).median().item()
    quasimetric.net[-1].weight.data /= scale
    quasimetric.net[-1].bias.data /= scale


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
