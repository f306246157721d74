"""HIQL in its authors' arrangement: one loss, one gradient, one Adam, in bare arrays."""

import math
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from corl_torch.goal_conditioned import hiql
from parity_tests.reference.common import ACTION_DIM, STATE_DIM
from parity_tests.reference.goals import (
    WEIGHTS,
    Adam,
    Batch,
    File,
    Layer,
    Policy,
    assert_same_layers,
    fixed,
    layers_of,
    leaves_of,
    mixed,
    rows_of_a_file,
    run,
    six_updates,
)
from parity_tests.reference.test_fql import assert_glorot
from shared.frameworks.torch_goals import take_hierarchy

SMALL: dict[str, Any] = {"actor_hidden_dims": (40, 30), "value_hidden_dims": (30, 40), "batch_size": 64}
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {"batch_size": 32},
    "codes from both losses": SMALL
    | {"low_actor_rep_grad": True, "const_std": False, "actor_p_trajgoal": 0.5, "actor_p_randomgoal": 0.5},
    "other goals, no norms": SMALL
    | {"value_ln": False, "gc_negative": False, "rep_dim": 4, "subgoal_steps": 3, "iql_tau": 0.3}
    | {"value_p_curgoal": 0.4, "value_p_trajgoal": 0.6, "value_p_randomgoal": 0.0, "value_geom_sample": False}
    | {"actor_p_trajgoal": 0.0, "actor_p_randomgoal": 1.0, "low_inverse_temperature": 5.0, "discount": 0.9, "tau": 0.1}
    | {"learning_rate": 1e-3, "actor_hidden_dims": (20, 30, 20), "value_hidden_dims": (30, 20, 30)},
    "geometric goals": SMALL
    | {"value_p_curgoal": 1.0, "value_p_trajgoal": 0.0, "value_p_randomgoal": 0.0}
    | {"actor_geom_sample": True, "high_inverse_temperature": 2.0, "discount": 0.95},
}


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    """Makes a mistake a thousand million times larger than rounding."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Hierarchy(File):
    """The same rows with goals for two levels."""

    def batch(self) -> Batch:
        """The next batch: w is the low goal, h the high goal, and t its target."""
        i = self.anywhere()
        g = self.goals(i, "value")
        h = self.later(i, self.c.actor_geom_sample)
        anywhere = self.anywhere()
        is_random = np.random.rand(len(i)) < self.c.actor_p_randomgoal
        np.random.rand()  # whether to crop images
        ahead = i + self.c.subgoal_steps
        w, t = np.minimum(ahead, self.last(i)), np.minimum(ahead, h)
        chosen = {"w": w, "h": np.where(is_random, anywhere, h), "t": np.where(is_random, w, t)}
        return self.columns(i, g) | {name: torch.tensor(self.s[rows]) for name, rows in chosen.items()}


def normalised(x: Tensor) -> Tensor:
    """Rows whose mean square is 1."""
    return x / ((x**2).mean(1, keepdim=True)) ** 0.5


class Reference:
    """The textbook update."""

    def __init__(self, config: Any, trainer: Any, bound: float) -> None:
        self.c, self.file = config, Hierarchy(config)
        self.v, self.t = ([layers_of(x.v1), layers_of(x.v2)] for x in (trainer.value, trainer.value_target))
        self.phi = layers_of(trainer.representation.net)
        self.low, self.high = Policy(trainer.low_actor, bound), Policy(trainer.high_actor, math.inf)
        norms = [1] if config.value_ln else []
        for layers in (self.v[0], self.phi):
            assert [weight.dim() for weight, _ in layers] == [2, *norms] * len(config.value_hidden_dims) + [2]
        leaves = leaves_of([*self.v, self.phi]) + self.low.leaves() + self.high.leaves()
        self.adam = Adam(leaves, config.learning_rate)
        # The branches that batches reach
        self.reached: set[str] = set()

    def reach(self, what: str, where: Tensor) -> None:
        """Notes the branches of all rows."""
        self.reached |= {f"{what} {x}" for x in where.flatten().tolist()}

    def values(self, members: list[list[Layer]], phi: list[Layer], s: Tensor, g: Tensor) -> Tensor:
        """The values of both members, (B, 2)."""
        code = normalised(run(phi, s, g))
        return torch.cat([run(member, s, code) for member in members], 1)

    def nearer(self, later: Tensor, s: Tensor, g: Tensor) -> Tensor:
        """How much nearer later states are, (B,)."""
        return (self.values(self.v, self.phi, later, g) - self.values(self.v, self.phi, s, g)).sum(1) / 2

    def weight(self, exponent: Tensor, what: str) -> Tensor:
        """The exponential, of 100 at most."""
        self.reach(f"{what} capped", exponent > math.log(100))
        return exponent.clamp(max=math.log(100)).exp()

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """All terms of the one loss, at the same weights, and the other entries of the log."""
        c, still = self.c, fixed(self.phi)
        s, a, n, g, w, h, t, r, m = (batch[name] for name in "sangwhtrm")
        with torch.no_grad():
            following = self.values(self.t, still, n, g)
            gain = r + c.discount * m * following.min(1, keepdim=True).values
            gain = gain - self.values(self.t, still, s, g).sum(1, keepdim=True) / 2
            y = r + c.discount * m * following
            near, far, subgoal = self.nearer(n, s, w), self.nearer(t, s, h), normalised(run(still, s, t))
        self.reach("gain", gain >= 0)
        self.reach("lesser", following[:, 0] < following[:, 1])
        v = self.values(self.v, self.phi, s, g)
        z = normalised(run(self.phi if c.low_actor_rep_grad else still, s, w))
        low, high = self.low.log_density(s, z, a), self.high.log_density(s, h, subgoal)
        return {
            "value_loss": (torch.where(gain < 0, 1 - c.iql_tau, c.iql_tau) * (y - v) ** 2).sum() / len(s),
            "low_actor_loss": -(self.weight(c.low_inverse_temperature * near, "low") * low).mean(),
            "high_actor_loss": -(self.weight(c.high_inverse_temperature * far, "high") * high).mean(),
            "v": v.mean(),
            "low_adv": near.mean(),
            "low_bc_log_prob": low.mean(),
            "high_adv": far.mean(),
            "high_bc_log_prob": high.mean(),
        }

    def update(self) -> dict[str, Tensor]:
        """The target follows the old values; then one step of everything."""
        found = self.terms(self.file.batch())
        self.t = [mixed(old, new, self.c.tau) for old, new in zip(self.t, self.v, strict=True)]
        self.adam.step(found["value_loss"] + found["low_actor_loss"] + found["high_actor_loss"])
        return found

    @torch.no_grad()
    def free(self, s: Tensor, g: Tensor) -> Tensor:
        """The likeliest action for the likeliest subgoal, without bounds."""
        return run(self.low.mu, s, normalised(run(self.high.mu, s, g)))


def moved(trainer: Any, bound: float) -> None:
    """Moves all weights away from their initial values, so that every branch is reached."""
    names = ("value", "value_target", "representation", "low_actor", "high_actor")
    for parameter in chain(*(getattr(trainer, name).parameters() for name in names)):
        parameter.data += (0.3 if parameter.dim() == 1 else 0.02) * torch.randn_like(parameter)
    for value in (trainer.value, trainer.value_target):
        for member in (value.v1, value.v2):
            # Large enough differences that some weights reach their cap, and either member is the lesser one
            member[-1].weight.data *= 5
            member[-1].bias.data.zero_()
    trainer.low_actor.net[-1].bias.data += torch.linspace(-2 * bound, 2 * bound, ACTION_DIM)
    for level in (trainer.low_actor, trainer.high_actor):
        if level.log_std is not None:
            level.log_std.data = torch.linspace(-6.0, 3.0, len(level.log_std))


@pytest.mark.parametrize("bound", [1.0, 2.0])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_hiql(settings: dict[str, Any], bound: float) -> None:
    """All weights, logs and actions are equal, and the batches reached both sides of each branch."""
    config = hiql.TrainConfig(device="cpu", **settings)
    torch.manual_seed(7)
    trainer = hiql.create_trainer(config, STATE_DIM, ACTION_DIM, bound)
    moved(trainer, bound)
    reference = Reference(config, trainer, bound)
    six_updates(hiql, config, trainer, take_hierarchy, reference)
    assert_same_hiql(trainer, reference)
    s = torch.tensor(rows_of_a_file()["observations"]).double()
    free = reference.free(s, s.flip(0))
    reference.reach("beyond", free.abs() > bound)
    found = trainer.act(s.numpy(), s.flip(0).numpy())
    assert found == pytest.approx(reference.low.inside(free).numpy(), rel=0.0, abs=WEIGHTS)
    what = ("gain", "lesser", "low capped", "high capped", "beyond")
    assert reference.reached == {f"{x} {way}" for x in what for way in (True, False)}


def assert_same_hiql(trainer: Any, reference: Reference) -> None:
    """Checks all weights of all networks, and all deviations."""
    values = [trainer.value.v1, trainer.value.v2, trainer.value_target.v1, trainer.value_target.v2]
    others = [trainer.representation.net, trainer.low_actor.net, trainer.high_actor.net]
    theirs = [*reference.v, *reference.t, reference.phi, reference.low.mu, reference.high.mu]
    assert_same_layers([*values, *others], theirs)
    for level, policy in ((trainer.low_actor, reference.low), (trainer.high_actor, reference.high)):
        if policy.rho is not None:
            torch.testing.assert_close(level.log_std, policy.rho, rtol=0.0, atol=WEIGHTS)


def test_a_tie_counts_as_a_gain() -> None:
    """An advantage of exactly 0 has the weight of a positive one."""
    trainer = hiql.create_trainer(hiql.TrainConfig(device="cpu", iql_tau=0.75), STATE_DIM, ACTION_DIM, 1.0)
    assert trainer.expectile_weight(torch.tensor([-1.0, 0.0, 1.0])).tolist() == [0.25, 0.75, 0.75]


def test_weights_start_uniform() -> None:
    """Weights are within Glorot's bound, a tenth of it in the policies' last layers, and the target is a copy."""
    torch.manual_seed(7)
    dims: dict[str, Any] = {"actor_hidden_dims": (300, 200), "value_hidden_dims": (200, 100)}
    config = hiql.TrainConfig(device="cpu", const_std=False, **dims)
    trainer = hiql.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    assert_glorot(trainer.value.v1, STATE_DIM + 10, (200, 100), 1)
    assert_glorot(trainer.value.v2, STATE_DIM + 10, (200, 100), 1)
    assert_glorot(trainer.representation.net, 2 * STATE_DIM, (200, 100), 10)
    low, high = trainer.low_actor, trainer.high_actor
    for level, first, last in ((low, STATE_DIM + 10, ACTION_DIM), (high, 2 * STATE_DIM, 10)):
        assert level.log_std is not None
        assert not level.log_std.any()
        level.net[-1].weight.data *= 10
        assert_glorot(level.net, first, (300, 200), last)
    assert not torch.equal(trainer.value.v1[0].weight, trainer.value.v2[0].weight)
    for ours, target in zip(trainer.value.parameters(), trainer.value_target.parameters(), strict=True):
        assert torch.equal(ours, target)
