"""COMBO as in OfflineRL-Kit (commit e3ce697): MOPO's program with a conservative term, on repeated rows.

Everything that is computed in the same order is bitwise equal.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from corl_torch.model_based import combo
from parity_tests.reference.common import ACTION_DIM, CPU, ROWS, STATE_DIM, adam, polyak
from parity_tests.reference.test_model_based_mopo import (
    SMALL,
    Library,
    Made,
    assert_ends,
    assert_falling_rate,
    assert_names,
    assert_same_run,
    assert_weights_start,
    moved,
)
from shared.data.dynamics import Draws, Step
from shared.data.transitions import Batch

OWN: dict[str, Any] = SMALL | {"cql_n_actions": 3, "batch_size": 40}
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "model states": {"rho_s": "model", "real_ratio": 0.7, "discount": 0.9, "tau": 0.1, "cql_alpha": 0.5},
    "entropy": {
        "backup_entropy": True,
        "cql_temp": 2.0,
        "target_entropy": -60.0,
        "temperature_lr": 1.0,
        "critic_lr": 1e-2,
    },
    "best of several": {
        "cql_max_target_backup": True,
        "backup_entropy": True,
        "tune_temperature": False,
        "fixed_temperature": 0.6,
    },
    "Lagrange": {"cql_lagrange": True, "cql_target_action_gap": 1.5, "alpha_prime_lr": 1e-2, "target_entropy": 0.0},
    "uniform roll-outs": {"uniform_rollout": True, "rollout_length": 5, "num_updates_on_epoch": 4},
    "three at a time": {"cql_joint_logsumexp": False, "cql_temp": 0.5, "backup_entropy": True, "temperature_lr": 0.1},
    "nothing but the dataset": {"real_ratio": 1.0, "rollout_freq": 1, "hidden_dims": (20, 20, 20)},
}
# Cases in which the largest action is not 1
WIDE = ("model states", "best of several", "uniform roll-outs", "three at a time")
# Cases in which a reward is the largest number in the roll-outs
HARSH = ("model states", "uniform roll-outs")
of_each_case = pytest.mark.parametrize("name", CASES)


class Harsh(NamedTuple):
    """The model given by a formula, with rewards far below 0."""

    def step(self, *args: Any) -> Step:
        """A step of the other model."""
        step = Made().step(*args)
        return step._replace(rewards=step.rewards - 100.0)


class Conservative(Library):
    """The reference's program, starting from the current generator states."""

    def __init__(self, config: Any, trainer: Any, dataset: Batch, bound: float, model: Any) -> None:
        super().__init__(config, trainer, dataset, bound)
        self.model = model
        self.log_alpha_prime = trainer.log_alpha_prime.constant.detach().clone().requires_grad_()
        self.alpha_prime_optim = adam([self.log_alpha_prime], config.alpha_prime_lr)

    @torch.no_grad()
    def roll_out(self) -> None:
        """Adds roll-outs from dataset states to the ring, row by row; rewards have no penalty."""
        states = self.data.observations[np.random.randint(0, ROWS, size=self.c.rollout_batch_size)]
        for _ in range(self.c.rollout_length):
            if self.c.uniform_rollout:
                uniform = np.random.uniform(-self.bound, self.bound, size=(len(states), ACTION_DIM))
                # The reference rounds after the model's input is scaled.
                actions = torch.as_tensor(uniform).float()
            else:
                actions, _ = self.policy(states, torch.randn(len(states), ACTION_DIM))
            normals = torch.as_tensor(np.random.normal(size=(4, len(states), STATE_DIM + 1)))
            chosen = torch.as_tensor(np.random.choice(np.arange(3), size=len(states)))
            step = self.model.step(states, actions, Draws(normals, chosen), 0.0, "aleatoric")
            assert actions.dtype == torch.float32
            for row in zip(states, actions, step.rewards, step.next_observations, step.terminals.float(), strict=True):
                self.held[self.next : self.next + 1] = [row]
                self.next = (self.next + 1) % self.capacity
            self.ends.append(int(step.terminals.sum()))
            states = step.next_observations[~step.terminals]
            if not len(states):
                break

    def update(self) -> dict[str, Any]:
        """One step of the program, including the roll-outs before it."""
        if self.updates % self.c.rollout_freq == 0:
            self.roll_out()
        s, a, r, s2, d = self.batch()
        found = self.learn_policy(s)
        y = self.target_value(r[:, None], s2, d[:, None])
        q1, q2, old1, old2 = self.q
        errors = [(q(torch.cat([s, a], 1)) - y).pow(2).mean() for q in (q1, q2)]
        terms = self.conservative(s, a, s2)
        found |= {"cql_gap_1": terms[0], "cql_gap_2": terms[1]}
        if self.c.cql_lagrange:
            weight = torch.clamp(self.log_alpha_prime.exp(), min=0.0, max=1e6)
            terms = [weight * (term - self.c.cql_target_action_gap) for term in terms]
            dual = -(terms[0] + terms[1]) * 0.5
            self.alpha_prime_optim.zero_grad()
            dual.backward(retain_graph=True)
            self.alpha_prime_optim.step()
            found |= {"alpha_prime_loss": dual, "alpha_prime": weight}
        losses = [error + term for error, term in zip(errors, terms, strict=True)]
        for loss, optim in zip(losses, self.q_optims, strict=True):
            optim.zero_grad()
            # The policy's samples have gradients too; the policy's next step clears them first.
            loss.backward(retain_graph=True)
            optim.step()
        polyak(old1, q1, self.c.tau)
        polyak(old2, q2, self.c.tau)
        self.updates += 1
        if self.updates % self.c.num_updates_on_epoch == 0:
            self.schedule.step()
        return found | {"critic_1_loss": losses[0], "critic_2_loss": losses[1]}

    def learn_policy(self, s: Tensor) -> dict[str, Any]:
        """A step of the actor with the current critics, then one of the unbounded temperature."""
        q1, q2 = self.q[:2]
        a, log_prob = self.policy(s, torch.randn(len(s), ACTION_DIM))
        loss = (self.alpha * log_prob - torch.min(q1(torch.cat([s, a], 1)), q2(torch.cat([s, a], 1)))).mean()
        self.actor_optim.zero_grad()
        loss.backward()
        self.actor_optim.step()
        found: dict[str, Any] = {"actor_loss": loss, "entropy": -log_prob.mean()}
        if self.c.tune_temperature:
            loss = -(self.log_alpha * (log_prob.detach() + self.target)).mean()
            self.alpha_optim.zero_grad()
            loss.backward()
            self.alpha_optim.step()
            self.alpha = self.log_alpha.detach().exp()
            found |= {"alpha_loss": loss, "alpha": self.alpha}
        return found

    @torch.no_grad()
    def target_value(self, r: Tensor, s2: Tensor, d: Tensor) -> Tensor:
        """The target of both critics, (B, 1)."""
        n, (old1, old2) = self.c.cql_n_actions, self.q[2:]
        if self.c.cql_max_target_backup:
            rows = repeated(s2, n)
            inputs = torch.cat([rows, self.policy(rows, torch.randn(len(rows), ACTION_DIM))[0]], 1)
            best = [old(inputs).view(-1, n).max(1, keepdim=True)[0] for old in (old1, old2)]
            value = torch.min(*best)
        else:
            a2, log_prob = self.policy(s2, torch.randn(len(s2), ACTION_DIM))
            value = torch.min(old1(torch.cat([s2, a2], 1)), old2(torch.cat([s2, a2], 1)))
            if self.c.backup_entropy:
                value = value - self.alpha * log_prob
        return r + self.c.discount * (1 - d) * value

    def conservative(self, s: Tensor, a: Tensor, s2: Tensor) -> list[Tensor]:
        """Both critics' conservative terms."""
        c, real = self.c, int(self.c.batch_size * self.c.real_ratio)
        first = real if c.rho_s == "model" else 0
        now, after = repeated(s[first:], c.cql_n_actions), repeated(s2[first:], c.cql_n_actions)
        random = torch.zeros(len(now), ACTION_DIM).uniform_(-self.bound, self.bound)
        at_now, at_after = (self.policy(x, torch.randn(len(x), ACTION_DIM)) for x in (now, after))
        terms = []
        for q in self.q[:2]:
            values = [
                q(torch.cat([now, at_now[0]], 1)) - at_now[1].detach(),
                q(torch.cat([now, at_after[0]], 1)) - at_after[1].detach(),
                q(torch.cat([now, random], 1)) - np.log(0.5**ACTION_DIM),
            ]
            if c.cql_joint_logsumexp:
                values = [column.view(-1, c.cql_n_actions) for column in values]
            soft_maximum = torch.logsumexp(torch.cat(values, 1) / c.cql_temp, dim=1).mean() * c.cql_alpha * c.cql_temp
            terms.append(soft_maximum - q(torch.cat([s[:real], a[:real]], 1)).mean() * c.cql_alpha)
        return terms


def repeated(states: Tensor, n: int) -> Tensor:
    """Repeats each row n times in succession."""
    return states.unsqueeze(1).repeat(1, n, 1).view(-1, STATE_DIM)


@of_each_case
def test_six_updates_and_their_roll_outs(dataset: Batch, name: str) -> None:
    """All weights, logs and rows of the ring are bitwise equal; the temperature exceeds 1."""
    config, bound = combo.TrainConfig(device="cpu", **OWN | CASES[name]), 2.0 if name in WIDE else 1.0
    model = Harsh() if name in HARSH else Made()
    torch.manual_seed(7)
    trainer = combo.create_trainer(config, STATE_DIM, ACTION_DIM, bound)
    moved(trainer)
    # So small that any lower bound except 0 would be noticed
    trainer.log_alpha_prime.constant.data.fill_(start := -5.0 * config.cql_lagrange)
    library = Conservative(config, trainer, dataset, bound, model)
    assert_same_run(combo, config, trainer, library, dataset, model)
    assert trainer.log_alpha_prime.constant.item() == library.log_alpha_prime.item()
    assert (library.log_alpha_prime.item() == start) == (not config.cql_lagrange)
    assert float(trainer.temperature()) == float(library.alpha)
    if config.target_entropy == -60.0:
        assert float(trainer.temperature()) < 0.5
    elif config.tune_temperature:
        assert float(trainer.temperature()) > 1.0


@of_each_case
def test_weights_start_where_the_seed_says(name: str) -> None:
    """The order of draws is the library's; both temperatures start at 1."""
    assert_weights_start(combo, OWN | CASES[name])
    trainer = combo.create_trainer(combo.TrainConfig(device="cpu"), STATE_DIM, ACTION_DIM, 1.0)
    assert [trainer.log_temperature().item(), trainer.log_alpha_prime().item()] == [0.0, 0.0]


def test_the_library_names_its_tensors_so() -> None:
    """COMBO has three hidden layers."""
    assert_names(combo, (0, 2, 4))


def test_the_rate_falls_epoch_by_epoch() -> None:
    """It is 0 at the end of the run."""
    assert_falling_rate(combo)


def test_a_roll_out_that_is_over_takes_no_draws() -> None:
    """The model takes none either."""
    assert_ends(combo)


def test_the_multiplier_is_bounded(dataset: Batch) -> None:
    """The Lagrange multiplier ends at a million, beyond which it is not learned; other losses are small there."""
    config = combo.TrainConfig(device="cpu", cql_lagrange=True, **OWN | {"real_ratio": 1.0})
    for start, expected in ((13.0, math.exp(13.0)), (15.0, 1e6)):
        trainer = combo.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
        trainer.log_alpha_prime.constant.data.fill_(start)
        indices, noise = combo.draw_noise(config, ROWS, 1, ACTION_DIM, CPU)
        log = trainer.update(Batch(*(column[indices] for column in dataset)), noise)
        assert log["alpha_prime"].item() == pytest.approx(expected, rel=1e-6)
        terms = [expected * (log[f"cql_gap_{i}"].item() - config.cql_target_action_gap) for i in (1, 2)]
        assert log["alpha_prime_loss"].item() == pytest.approx(-0.5 * sum(terms), rel=1e-5)
        for i, term in enumerate(terms, start=1):
            assert log[f"critic_{i}_loss"].item() == pytest.approx(term, rel=1e-2)
        assert (trainer.log_alpha_prime().item() == start) == (start > math.log(1e6))
