"""HIQL in its authors' arrangement, in bare arrays: one loss, one gradient, one Adam. Six updates agree within 1e-12.

The layers come from FQL's derivation.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, cycle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from corl_torch.goal_conditioned import hiql
from parity_tests.reference.common import (
    ACTION_DIM,
    CPU,
    ROWS,
    STATE_DIM,
    UPDATES,
    Log,
    assert_same_log,
)
from parity_tests.reference.test_fql import LOG, WEIGHTS, Layer, assert_glorot, fixed, layers_of, mixed, run
from shared.data.goals import GoalTransitions
from shared.data.transitions import Batch

SMALL: dict[str, Any] = {"actor_hidden_dims": (40, 30), "value_hidden_dims": (30, 40), "batch_size": 64}
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {"batch_size": 64},
    "codes from both losses": SMALL
    | {"low_actor_rep_grad": True, "const_std": False, "actor_p_trajgoal": 0.5, "actor_p_randomgoal": 0.5},
    "other goals, no norms": SMALL
    | {"value_ln": False, "gc_negative": False, "rep_dim": 4, "subgoal_steps": 3, "iql_tau": 0.3}
    | {"value_p_curgoal": 0.4, "value_p_trajgoal": 0.6, "value_p_randomgoal": 0.0, "value_geom_sample": False}
    | {"actor_p_trajgoal": 0.0, "actor_p_randomgoal": 1.0, "low_inverse_temperature": 5.0, "discount": 0.9, "tau": 0.1}
    | {"learning_rate": 1e-3, "actor_hidden_dims": (20, 30, 20), "value_hidden_dims": (30, 20, 30)},
    "geometric goals of the policy": SMALL
    | {"value_p_curgoal": 1.0, "value_p_trajgoal": 0.0, "value_p_randomgoal": 0.0}
    | {"actor_geom_sample": True, "high_inverse_temperature": 2.0, "discount": 0.95},
}
# Lengths of the made-up trajectories, in turn
LENGTHS = (1, 2, 40, 7, 150)


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    """Makes a mistake a thousand million times larger than rounding."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


# ---- what the derivations of goal-conditioned algorithms share -----------------------------------------------------


def in_trajectories(dataset: Batch, bound: float) -> GoalTransitions:
    """The random rows, cut into trajectories, with actions up to a bound."""
    last: list[int] = []
    for length in cycle(LENGTHS):
        last += [len(last) + length - 1] * length
        if len(last) >= ROWS:
            break
    s, a, s2 = (column.double() for column in (dataset.observations, dataset.actions, dataset.next_observations))
    return GoalTransitions(s, bound * a, s2, torch.tensor(last[:ROWS]).clamp(max=ROWS - 1))


def futures(rows: np.ndarray, last: np.ndarray, geometric: bool, discount: float) -> np.ndarray:
    """A later row for each row: a geometric number of steps later, or any of the trajectory's rest."""
    if geometric:
        return np.minimum(rows + np.random.geometric(p=1 - discount, size=rows.shape), last)
    u = np.random.rand(*rows.shape)
    return np.rint(np.minimum(rows + 1, last) * u + last * (1 - u)).astype(int)


def goals_of(rows: np.ndarray, ends: np.ndarray, shares: Sequence[float], geometric: bool, discount: float) -> Any:
    """Rows of goals, for the shares of rows themselves, of later rows, and of any rows."""
    anywhere = np.random.randint(0, len(ends), rows.shape)
    later = futures(rows, ends[rows], geometric, discount)
    if shares[0] == 1:
        return rows
    goals = np.where(np.random.rand(*rows.shape) < shares[1] / (1 - shares[0]), later, anywhere)
    return np.where(np.random.rand(*rows.shape) < shares[0], rows, goals)


def value_goals_of(c: Any, rows: np.ndarray, ends: np.ndarray) -> Any:
    """Rows of value goals."""
    shares = c.value_p_curgoal, c.value_p_trajgoal, c.value_p_randomgoal
    return goals_of(rows, ends, shares, c.value_geom_sample, c.discount)


def six_updates_with_goals(
    twin: Any, config: Any, trainer: Any, dataset: GoalTransitions, take: Callable, derived: Callable[[], Log]
) -> None:
    """Checks that updates of the twin and of a derivation draw the same numbers, and log the same.

    Args:
        twin: The module.
        config: Its settings.
        trainer: Its state.
        dataset: Tensors.
        take: Takes a batch of the twin's.
        derived: Draws a batch, makes an update on it, and returns its log.
    """
    logs, last = [], dataset.last.numpy()
    np.random.seed(5)
    torch.manual_seed(5)
    for _ in range(UPDATES):
        indices, noise = twin.draw_noise(config, last, *twin_sizes(twin), CPU)
        logs.append(trainer.update(take(dataset, indices, config.gc_negative), noise))
    after = np.random.rand(), torch.rand(()).item()
    np.random.seed(5)
    torch.manual_seed(5)
    expected = [derived() for _ in range(UPDATES)]
    assert after == (np.random.rand(), torch.rand(()).item())
    assert_same_log(logs, expected, LOG)
    assert trainer.total_it == UPDATES


def twin_sizes(twin: Any) -> tuple[int, ...]:
    """The number of an action's components, for a twin that draws noise for actions."""
    return (ACTION_DIM,) if twin.Noise._fields else ()


class Descent:
    """One Adam for all leaves."""

    def __init__(self, leaves: Sequence[Tensor], rate: float) -> None:
        self.leaves, self.rate, self.steps = [leaf.requires_grad_() for leaf in leaves], rate, 0
        self.moments = [(torch.zeros_like(leaf), torch.zeros_like(leaf)) for leaf in self.leaves]

    def step(self, slopes: Sequence[Tensor]) -> None:
        """Moves all leaves down their slopes."""
        self.steps += 1
        for place, (leaf, g) in enumerate(zip(self.leaves, slopes, strict=True)):
            m, v = self.moments[place]
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            self.moments[place] = m, v
            unbiased = m / (1 - 0.9**self.steps), v / (1 - 0.999**self.steps)
            leaf.data -= self.rate * unbiased[0] / (unbiased[1].sqrt() + 1e-8)


def spread_of(log_std: Tensor | None, like: Tensor) -> Tensor:
    """The deviation of a policy, one for all rows, whose logarithm is a constant beyond -5 and 2."""
    if log_std is None:
        return torch.ones_like(like)
    top, bottom = torch.full_like(log_std, 2.0), torch.full_like(log_std, -5.0)
    return torch.where(log_std > 2, top, torch.where(log_std < -5, bottom, log_std)).exp().expand(like.shape)


def log_density(mean: Tensor, std: Tensor, x: Tensor) -> Tensor:
    """The logarithm of a normal density, (B, 1)."""
    each = -0.5 * ((x - mean) / std) ** 2 - std.log() - 0.5 * math.log(2 * math.pi)
    return each.sum(1, keepdim=True)


def assert_same_layers(ours: Sequence[nn.Sequential], theirs: Sequence[list[Layer]]) -> None:
    """Checks all weights of all networks."""
    for mine, other in zip(ours, theirs, strict=True):
        for a, b in zip(mine.parameters(), chain(*other), strict=True):
            torch.testing.assert_close(a, b, rtol=0.0, atol=WEIGHTS)


def leaves_of(*networks: list[Layer]) -> list[Tensor]:
    """All weights of these networks."""
    return [leaf for layers in networks for layer in layers for leaf in layer]


def moved(networks: Sequence[nn.Module]) -> None:
    """Moves biases, norms and targets away from their initial values, and deviations to both sides of their bounds."""
    for network in networks:
        for name, parameter in network.named_parameters():
            parameter.data += (0.3 if parameter.dim() == 1 else 0.02) * torch.randn_like(parameter)
            if name == "log_std":
                parameter.data[:3] = torch.tensor([-6.0, 3.0, 0.5])


# ---- HIQL ----------------------------------------------------------------------------------------------------------


class Reference:
    """The textbook update."""

    def __init__(self, config: Any, trainer: Any, dataset: GoalTransitions, bound: float) -> None:
        self.c, self.data, self.bound = config, dataset, bound
        self.v = [layers_of(trainer.value.v1), layers_of(trainer.value.v2)]
        self.v_t = [layers_of(trainer.value_target.v1), layers_of(trainer.value_target.v2)]
        self.phi, self.low, self.high = (
            layers_of(network.net) for network in (trainer.representation, trainer.low_actor, trainer.high_actor)
        )
        values = config.value_ln, len(config.value_hidden_dims)
        actors = False, len(config.actor_hidden_dims)
        networks = (self.v[0], values), (self.phi, values), (self.low, actors), (self.high, actors)
        for layers, (has_norms, hidden) in networks:
            assert [weight.dim() for weight, _ in layers] == [*([2, 1] if has_norms else [2]) * hidden, 2]
        levels = trainer.low_actor, trainer.high_actor
        self.spreads = [None if level.log_std is None else level.log_std.detach().clone() for level in levels]
        spreads = [spread for spread in self.spreads if spread is not None]
        self.descent = Descent([*leaves_of(*self.v, self.phi, self.low, self.high), *spreads], config.learning_rate)
        # The branches that batches and actions reach
        self.reached: set[str] = set()

    def reach(self, what: str, where: Tensor) -> None:
        """Notes the branches of all rows."""
        self.reached |= {f"{what} {x}" for x in where.flatten().tolist()}

    def code(self, phi: list[Layer], s: Tensor, w: Tensor) -> Tensor:
        """The code of w seen from s."""
        return normalised(run(phi, s, w))

    def values(self, members: list[list[Layer]], phi: list[Layer], s: Tensor, g: Tensor) -> Tensor:
        """The values of both members, (B, 2)."""
        code = self.code(phi, s, g)
        return torch.cat([run(member, s, code) for member in members], 1)

    def batch(self) -> tuple[Tensor, ...]:
        """A batch with numbers drawn in the authors' order."""
        c, ends = self.c, self.data.last.numpy()
        rows = np.random.randint(0, ROWS, c.batch_size)
        own = value_goals_of(c, rows, ends)
        h = futures(rows, ends[rows], c.actor_geom_sample, c.discount)
        anywhere = np.random.randint(0, ROWS, c.batch_size)
        is_random = np.random.rand(c.batch_size) < c.actor_p_randomgoal
        np.random.rand()
        near = np.minimum(rows + c.subgoal_steps, ends[rows])
        goal = np.where(is_random, anywhere, h)
        target = np.where(is_random, near, np.minimum(rows + c.subgoal_steps, h))
        success = torch.as_tensor(own == rows)[:, None]
        reward = success.double() - (1 if c.gc_negative else 0)
        observations = self.data.observations
        states = (observations[chosen] for chosen in (rows, own, near, goal, target))
        return *states, self.data.actions[rows], self.data.next_observations[rows], reward, 1 - success.double()

    def losses(self, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        """All terms of the one loss, at the same weights, and the log."""
        c, (s, g, w, h, t, a, s2, r, m), still = self.c, batch, fixed(self.phi)
        with torch.no_grad():
            following = self.values(self.v_t, still, s2, g)
            lesser = following.min(1, keepdim=True).values
            gain = r + c.discount * m * lesser - self.values(self.v_t, still, s, g).sum(1, keepdim=True) / 2
            y = r + c.discount * m * following
            near = (self.values(self.v, still, s2, w) - self.values(self.v, still, s, w)).mean(1, keepdim=True)
            far = (self.values(self.v, still, t, h) - self.values(self.v, still, s, h)).mean(1, keepdim=True)
            subgoal = self.code(still, s, t)
        self.reach("gain", gain >= 0)
        self.reach("lesser", following[:, 0] < following[:, 1])
        v = self.values(self.v, self.phi, s, g)
        expectile = torch.where(gain >= 0, c.iql_tau, 1 - c.iql_tau)
        z = self.code(self.phi if c.low_actor_rep_grad else still, s, w)
        mean, top = run(self.low, s, z), run(self.high, s, h)
        low = log_density(mean, spread_of(self.spreads[0], mean), a)
        high = log_density(top, spread_of(self.spreads[1], top), subgoal)
        return {
            "value_loss": (expectile * (y - v) ** 2).sum() / len(s),
            "low_actor_loss": -(self.weight(c.low_inverse_temperature * near, "low") * low).mean(),
            "high_actor_loss": -(self.weight(c.high_inverse_temperature * far, "high") * high).mean(),
            "v": v.mean(),
            "low_adv": near.mean(),
            "low_bc_log_prob": low.mean(),
            "high_adv": far.mean(),
            "high_bc_log_prob": high.mean(),
        }

    def weight(self, exponent: Tensor, what: str) -> Tensor:
        """The exponential, of 100 at most."""
        self.reach(f"{what} capped", exponent > math.log(100))
        return exponent.clamp(max=math.log(100)).exp()

    def update(self) -> Log:
        """The target follows the old values; then one step of everything."""
        found = self.losses(self.batch())
        total = found["value_loss"] + found["low_actor_loss"] + found["high_actor_loss"]
        slopes = torch.autograd.grad(total, self.descent.leaves)
        self.v_t = [mixed(old, new, self.c.tau) for old, new in zip(self.v_t, self.v, strict=True)]
        self.descent.step(slopes)
        return found

    @torch.no_grad()
    def action(self, s: Tensor, g: Tensor) -> Tensor:
        """The likeliest action for the likeliest subgoal, within the bounds."""
        a = run(self.low, s, normalised(run(self.high, s, g)))
        self.reach("beyond", a.abs() > self.bound)
        return a.clamp(-self.bound, self.bound)


def normalised(x: Tensor) -> Tensor:
    """Rows of the length of the square root of their size."""
    return x / ((x**2).mean(1, keepdim=True)) ** 0.5


@pytest.mark.parametrize("bound", [1.0, 2.0])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_hiql(dataset: Batch, settings: dict[str, Any], bound: float) -> None:
    """All weights, logs and actions are equal, and the batches reached both sides of each branch."""
    config = hiql.TrainConfig(device="cpu", **settings)
    rows = in_trajectories(dataset, bound)
    torch.manual_seed(7)
    trainer = hiql.create_trainer(config, STATE_DIM, ACTION_DIM, bound)
    moved([trainer.value, trainer.value_target, trainer.representation, trainer.low_actor, trainer.high_actor])
    for value in (trainer.value, trainer.value_target):
        # Differences large enough for weights at their cap
        value.v1[-1].weight.data *= 5
        value.v2[-1].weight.data *= 5
    trainer.low_actor.net[-1].bias.data += torch.linspace(-2 * bound, 2 * bound, ACTION_DIM)
    reference = Reference(config, trainer, rows, bound)
    six_updates_with_goals(hiql, config, trainer, rows, hiql.take_hierarchy, reference.update)
    assert_same_hiql(trainer, reference)
    observations, goals = rows.observations[:500], rows.observations[500:1000]
    found = trainer.act(observations.numpy(), goals.numpy())
    np.testing.assert_allclose(found, reference.action(observations, goals).numpy(), rtol=0.0, atol=WEIGHTS)
    what = ("gain", "lesser", "low capped", "high capped", "beyond")
    assert reference.reached == {f"{x} {way}" for x in what for way in (True, False)}


def assert_same_hiql(trainer: Any, reference: Reference) -> None:
    """Checks all weights of all networks, and all deviations."""
    values = [trainer.value.v1, trainer.value.v2, trainer.value_target.v1, trainer.value_target.v2]
    others = [trainer.representation.net, trainer.low_actor.net, trainer.high_actor.net]
    theirs = [*reference.v, *reference.v_t, reference.phi, reference.low, reference.high]
    assert_same_layers([*values, *others], theirs)
    for level, spread in zip((trainer.low_actor, trainer.high_actor), reference.spreads, strict=True):
        if spread is None:
            assert level.log_std is None
        else:
            torch.testing.assert_close(level.log_std, spread, rtol=0.0, atol=WEIGHTS)


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
    for level, first, last in (
        (trainer.low_actor, STATE_DIM + 10, ACTION_DIM),
        (trainer.high_actor, 2 * STATE_DIM, 10),
    ):
        assert level.log_std is not None
        assert not level.log_std.any()
        level.net[-1].weight.data *= 10
        assert_glorot(level.net, first, (300, 200), last)
    assert not torch.equal(trainer.value.v1[0].weight, trainer.value.v2[0].weight)
    for ours, target in zip(trainer.value.parameters(), trainer.value_target.parameters(), strict=True):
        assert torch.equal(ours, target)
