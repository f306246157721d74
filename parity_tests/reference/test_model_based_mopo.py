"""MOPO as in OfflineRL-Kit (commit e3ce697): updates on two buffers, roll-outs of a model, and their ring.

Networks are the library's layers in its order, losses have its shapes (B, 1), and the model's rows are stored in lists.
Everything that is computed in the same order is bitwise equal.
"""

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal

from corl_torch.model_based import mopo
from parity_tests.reference.common import (
    ACTION_DIM,
    CPU,
    ROWS,
    STATE_DIM,
    UPDATES,
    adam,
    assert_same_actions,
    assert_same_log,
    assert_same_weights,
    at_the_weights_of,
    mlp,
    polyak,
    same_draws,
)
from shared.data.dynamics import ModelSizes, Step
from shared.data.transitions import Batch
from shared.frameworks.torch_ring import Ring

SIZES = ModelSizes(STATE_DIM, ACTION_DIM, 4, 3)
SMALL: dict[str, Any] = {
    "hidden_dims": (32, 24),
    "batch_size": 50,
    "rollout_batch_size": 40,
    "rollout_length": 3,
    "rollout_freq": 2,
    "model_retain_epochs": 2,
    "max_timesteps": 12,
    "num_updates_on_epoch": 2,
    "actor_lr": 1e-3,
}
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "no penalty, mostly real": {"penalty_coef": 0.0, "real_ratio": 0.75, "discount": 0.9, "tau": 0.1},
    "a target entropy, fast": {"target_entropy": -60.0, "temperature_lr": 1.0, "critic_lr": 1e-2, "rollout_length": 5},
    "a target entropy of 0": {"target_entropy": 0.0, "temperature_lr": 0.1, "uncertainty_mode": "pairwise-diff"},
    "a fixed temperature": {
        "tune_temperature": False,
        "fixed_temperature": 0.6,
        "rollout_length": 1,
        "real_ratio": 0.0,
    },
    "one long epoch": {"num_updates_on_epoch": 100, "max_timesteps": 200, "hidden_dims": (20, 20, 20)},
    "nothing but the dataset": {"real_ratio": 1.0, "rollout_freq": 1},
}
of_each_case = pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
bounds = pytest.mark.parametrize("bound", [1.0, 2.0])


class Made(NamedTuple):
    """A model given by a formula: each member moves states by another amount, and some states end a roll-out."""

    def step(self, observations: Tensor, actions: Tensor, draws: Any, coef: float, mode: str) -> Step:
        """A step of each row with the member that it draws."""
        assert draws.normals.shape == (4, len(observations), STATE_DIM + 1)
        scale = 0.1 * (1.0 + draws.chosen.to(observations.dtype))[:, None]
        noise = draws.normals[draws.chosen, torch.arange(len(observations))].to(observations.dtype)
        moved = 0.9 * observations + scale * (noise[:, :-1] + actions.sum(1, keepdim=True))
        other = mode == "pairwise-diff"
        raw, unsure = observations[:, 0] + noise[:, -1], 1.0 + scale[:, 0] + 90.0 * other
        # The largest number is in a state, or else it is a penalised reward.
        moved[:, 2] -= 12.0 * (not other)
        return Step(moved, raw - coef * unsure, moved[:, 1] > 0.6, raw, unsure)


class Library:
    """The reference's program, starting from the current generator states."""

    def __init__(self, config: Any, trainer: Any, dataset: Batch, bound: float) -> None:
        self.c, self.bound, self.data = config, bound, dataset
        widths = config.hidden_dims
        self.trunk = at_the_weights_of(trainer.actor.backbone, nn.Sequential(mlp(STATE_DIM, *widths), nn.ReLU()))
        self.mu, self.sigma = nn.Linear(widths[-1], ACTION_DIM), nn.Linear(widths[-1], ACTION_DIM)
        self.mu.load_state_dict(trainer.actor.dist_net.mu.state_dict())
        self.sigma.load_state_dict(trainer.actor.dist_net.sigma.state_dict())
        twins = (trainer.critic_1, trainer.critic_2, trainer.critic_1_target, trainer.critic_2_target)
        self.q = [at_the_weights_of(twin, mlp(STATE_DIM + ACTION_DIM, *widths, 1)) for twin in twins]
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.alpha = torch.ones(1) if config.tune_temperature else torch.tensor([config.fixed_temperature])
        self.target = -ACTION_DIM if not config.target_entropy else config.target_entropy
        actor = [*self.trunk.parameters(), *self.mu.parameters(), *self.sigma.parameters()]
        self.actor_optim = adam(actor, config.actor_lr)
        epochs = config.max_timesteps // config.num_updates_on_epoch
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.actor_optim, epochs)
        self.q_optims = [adam(q.parameters(), config.critic_lr) for q in self.q[:2]]
        self.alpha_optim = adam([self.log_alpha], config.temperature_lr)
        # The model's rows, which overwrite the oldest ones
        self.capacity = config.rollout_batch_size * config.rollout_length * config.model_retain_epochs
        self.held: list[tuple[Tensor, ...]] = []
        self.next = self.updates = 0
        self.ends: list[int] = []

    def policy(self, s: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions and log-probabilities (B, 1)."""
        hidden = self.trunk(s)
        normal = Normal(self.mu(hidden), torch.clamp(self.sigma(hidden), min=-5.0, max=2.0).exp())
        raw = normal.mean + noise * normal.stddev
        squashed = torch.tanh(raw)
        log_prob = normal.log_prob(raw).sum(-1, keepdim=True)
        log_prob = log_prob - torch.log(self.bound * (1 - squashed.pow(2)) + 1e-6).sum(-1, keepdim=True)
        return squashed * self.bound, log_prob

    @torch.no_grad()
    def roll_out(self) -> None:
        """Adds roll-outs from dataset states to the ring, row by row."""
        states = self.data.observations[np.random.randint(0, ROWS, size=self.c.rollout_batch_size)]
        for _ in range(self.c.rollout_length):
            actions, _ = self.policy(states, torch.randn(len(states), ACTION_DIM))
            normals = torch.as_tensor(np.random.normal(size=(4, len(states), STATE_DIM + 1)))
            chosen = torch.as_tensor(np.random.choice(np.arange(3), size=len(states)))
            draws = mopo.Draws(normals, chosen)
            step = Made().step(states, actions, draws, self.c.penalty_coef, self.c.uncertainty_mode)
            for row in zip(states, actions, step.rewards, step.next_observations, step.terminals.float(), strict=True):
                if len(self.held) < self.capacity:
                    self.held.append(row)
                else:
                    self.held[self.next] = row
                self.next = (self.next + 1) % self.capacity
            self.ends.append(int(step.terminals.sum()))
            states = step.next_observations[~step.terminals]
            if not len(states):
                break

    def batch(self) -> list[Tensor]:
        """Real rows, then the model's."""
        real = int(self.c.batch_size * self.c.real_ratio)
        places = np.random.randint(0, ROWS, size=real)
        parts = [[column[places] for column in self.data]]
        if len(self.held):
            chosen = np.random.randint(0, len(self.held), size=self.c.batch_size - real)
            rows = [self.held[place] for place in chosen]
            if rows:
                parts.append([torch.stack(column).to(parts[0][0]) for column in zip(*rows, strict=True)])
        return [torch.cat(columns) for columns in zip(*parts, strict=True)]

    def update(self) -> dict[str, Any]:
        """One step of the program, including the roll-outs before it."""
        if self.updates % self.c.rollout_freq == 0:
            self.roll_out()
        s, a, r, s2, d = self.batch()
        r, d = r[:, None], d[:, None]
        q1, q2, old1, old2 = self.q
        # All of an update's noise is drawn at once, because the reference draws nothing in between.
        at_next, at_now = (torch.randn(len(s), ACTION_DIM) for _ in range(2))
        with torch.no_grad():
            a2, log_prob2 = self.policy(s2, at_next)
            next_q = torch.min(old1(torch.cat([s2, a2], 1)), old2(torch.cat([s2, a2], 1)))
            y = r + self.c.discount * (1 - d) * (next_q - self.alpha * log_prob2)
        losses = [((q(torch.cat([s, a], 1)) - y).pow(2)).mean() for q in (q1, q2)]
        for loss, optim in zip(losses, self.q_optims, strict=True):
            optim.zero_grad()
            loss.backward()
            optim.step()
        found: dict[str, Any] = {"critic_1_loss": losses[0], "critic_2_loss": losses[1]}
        a1, log_prob = self.policy(s, at_now)
        value = torch.min(q1(torch.cat([s, a1], 1)), q2(torch.cat([s, a1], 1)))
        actor_loss = -value.mean() + self.alpha * log_prob.mean()
        self.actor_optim.zero_grad()
        actor_loss.backward()
        self.actor_optim.step()
        found |= {"actor_loss": actor_loss, "entropy": -log_prob.mean()}
        if self.c.tune_temperature:
            loss = -(self.log_alpha * (log_prob.detach() + self.target)).mean()
            self.alpha_optim.zero_grad()
            loss.backward()
            self.alpha_optim.step()
            self.alpha = torch.clamp(self.log_alpha.detach().exp(), 0.0, 1.0)
            found |= {"alpha_loss": loss, "alpha": self.alpha}
        polyak(old1, q1, self.c.tau)
        polyak(old2, q2, self.c.tau)
        self.updates += 1
        if self.updates % self.c.num_updates_on_epoch == 0:
            self.schedule.step()
        return found


def twin_run(
    twin: ModuleType, config: Any, trainer: Any, dataset: Batch, model: Any
) -> tuple[list[dict[str, Tensor]], Ring]:
    """Runs the twin's loop; returns the logs of updates and the ring."""
    capacity = config.rollout_batch_size * config.rollout_length * config.model_retain_epochs
    ring, logs = Ring(dataset, capacity, keeps_dataset=False), []
    for number in range(UPDATES):
        if number % config.rollout_freq == 0:
            before = ring.size
            rolled = twin.imagine(trainer, model, dataset, ring, SIZES)
            assert rolled.keys() == {"rollout_transitions", "rollout_reward", "rollout_largest"}
            if before + float(rolled["rollout_transitions"]) <= capacity:
                latest = Batch(*(column[before : ring.size] for column in ring.rows))
                assert rolled["rollout_reward"] == pytest.approx(float(latest.rewards.mean()), rel=1e-5)
                largest = max(float(column.abs().max()) for column in (latest.rewards, latest.next_observations))
                assert float(rolled["rollout_largest"]) == pytest.approx(largest, rel=1e-6)
                assert len(latest.rewards) == float(rolled["rollout_transitions"])
        indices, noise = twin.draw_noise(config, ROWS, ring.size, ACTION_DIM, CPU)
        batch = twin.take_both(dataset, ring.rows, indices, twin.shares(config)[0])
        logs.append(trainer.update(batch, noise))
    return logs, ring


def rows_of(ring: Ring) -> list[tuple[Tensor, ...]]:
    """The contents of a ring, row by row."""
    return list(zip(*(column[: ring.size] for column in ring.rows), strict=True))


def moved(trainer: Any) -> None:
    """Moves deviations to both sides of their bounds, and targets away from their networks."""
    trainer.actor.dist_net.sigma.bias.data += torch.linspace(-7.0, 3.0, ACTION_DIM)
    for target in (trainer.critic_1_target, trainer.critic_2_target):
        for parameter in target.parameters():
            parameter.data += 0.05 * torch.randn_like(parameter)


@bounds
@of_each_case
def test_six_updates_and_their_roll_outs(dataset: Batch, settings: dict[str, Any], bound: float) -> None:
    """All weights, logs and rows of the ring are bitwise equal, with temperatures above and below their bound."""
    config = mopo.TrainConfig(device="cpu", **SMALL | settings)
    torch.manual_seed(7)
    trainer = mopo.create_trainer(config, STATE_DIM, ACTION_DIM, bound)
    moved(trainer)
    library = Library(config, trainer, dataset, bound)
    assert_same_run(mopo, config, trainer, library, dataset, Made())
    assert float(trainer.temperature()) == float(library.alpha)
    if config.target_entropy == -60.0:
        assert float(trainer.temperature()) < 0.5
    elif config.tune_temperature:
        assert library.log_alpha.item() > 0.0
        assert float(trainer.temperature()) == 1.0


def assert_same_run(
    twin: ModuleType, config: Any, trainer: Any, library: "Library", dataset: Batch, model: Any
) -> None:
    """Checks six updates of a twin and of the library's program with their roll-outs, and later actions."""
    same_draws()
    logs, ring = twin_run(twin, config, trainer, dataset, model)
    after = torch.rand(1), np.random.random()
    same_draws()
    expected = [library.update() for _ in range(UPDATES)]
    assert after == (torch.rand(1), np.random.random())
    assert_same_log(logs, expected)
    assert len(library.held) == ring.size
    assert ring.content()["pointer"] == library.next
    for ours, theirs in zip(rows_of(ring), library.held, strict=True):
        assert all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))
    critics = [trainer.critic_1, trainer.critic_2, trainer.critic_1_target, trainer.critic_2_target]
    assert_same_weights(
        [*critics, trainer.actor.backbone, *trainer.actor.dist_net.children()],
        [*library.q, library.trunk, library.mu, library.sigma],
    )
    assert trainer.log_temperature.constant.item() == library.log_alpha.item()
    assert trainer.total_it == UPDATES
    assert sum(library.ends) > 0
    mean = torch.tanh(library.mu(library.trunk(dataset.observations))) * library.bound
    assert_same_actions(trainer.act(dataset.observations.numpy()), mean)


@of_each_case
def test_weights_start_where_the_seed_says(settings: dict[str, Any]) -> None:
    """The order of draws is the library's."""
    assert_weights_start(mopo, SMALL | settings)


def assert_weights_start(twin: ModuleType, settings: dict[str, Any]) -> None:
    """Checks that all hidden layers are drawn before all last ones and nothing else is, and that targets are copies."""
    config = twin.TrainConfig(device="cpu", **settings)
    same_draws()
    trainer = twin.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    after = torch.rand(1)
    same_draws()
    sizes, last = (STATE_DIM, *[STATE_DIM + ACTION_DIM] * 2), config.hidden_dims[-1]
    trunks = [mlp(size, *config.hidden_dims) for size in sizes]
    heads = [nn.Linear(last, size) for size in (ACTION_DIM, ACTION_DIM, 1, 1)]
    assert torch.equal(after, torch.rand(1))
    ours = [trainer.actor.backbone, trainer.critic_1.backbone, trainer.critic_2.backbone]
    assert_same_weights(
        [*ours, *trainer.actor.dist_net.children(), trainer.critic_1.last, trainer.critic_2.last], [*trunks, *heads]
    )
    critics = [trainer.critic_1, trainer.critic_2]
    assert_same_weights(critics, [trainer.critic_1_target, trainer.critic_2_target])


def test_the_library_names_its_tensors_so() -> None:
    """MOPO has two hidden layers."""
    assert_names(mopo, (0, 2))


def assert_names(twin: ModuleType, layers: tuple[int, ...]) -> None:
    """Checks the names `backbone.model`, `dist_net.mu` and `last`."""
    trainer = twin.create_trainer(twin.TrainConfig(device="cpu"), STATE_DIM, ACTION_DIM, 1.0)
    hidden = [f"backbone.model.{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]
    heads = [f"dist_net.{head}.{kind}" for head in ("mu", "sigma") for kind in ("weight", "bias")]
    assert list(trainer.actor.state_dict()) == hidden + heads
    assert list(trainer.critic_1.state_dict()) == [*hidden, "last.weight", "last.bias"]


def test_the_rate_falls_epoch_by_epoch() -> None:
    """It is 0 at the end of the run."""
    assert_falling_rate(mopo)


def assert_falling_rate(twin: ModuleType) -> None:
    """Checks that the rate follows PyTorch's schedule, with one step per epoch, within its accumulated rounding."""
    config = twin.TrainConfig(max_timesteps=300, num_updates_on_epoch=10, actor_lr=1e-3)
    optimizer = torch.optim.Adam([torch.zeros(1, requires_grad=True)], lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
    for updates in range(300):
        assert twin.actor_lr(config, updates) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12, abs=1e-18)
        optimizer.step()
        if (updates + 1) % 10 == 0:
            schedule.step()


def test_a_roll_out_that_is_over_takes_no_draws() -> None:
    """The model takes none either."""
    assert_ends(mopo)


def assert_ends(twin: ModuleType) -> None:
    """Checks that the model is not called once all rows have ended; the draws' row numbers show which rows end when."""

    class Ending(NamedTuple):
        def step(self, observations: Tensor, actions: Tensor, draws: Any, coef: float, mode: str) -> Step:
            ends = observations[:, 0] >= 2.0
            return Step(observations + 1.0, observations[:, 0], ends, observations[:, 0], observations[:, 0])

    config = twin.TrainConfig(device="cpu", **SMALL | {"rollout_length": 9})
    trainer = twin.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    asked = []

    def draw(number: int, rows: Tensor) -> Any:
        asked.append((number, rows.tolist()))
        return twin.StepDraws(torch.zeros(len(rows), ACTION_DIM), twin.Draws(None, None))

    states = torch.zeros(3, STATE_DIM) + torch.tensor([[1.0], [2.0], [0.0]])
    found = trainer.roll_out(Ending(), states, draw)
    assert asked == [(0, [0, 1, 2]), (1, [0, 2]), (2, [2])]
    assert found.rewards.tolist() == [1.0, 2.0, 0.0, 2.0, 1.0, 2.0]
    assert found.terminals.tolist() == [0.0, 1.0, 0.0, 1.0, 0.0, 1.0]
