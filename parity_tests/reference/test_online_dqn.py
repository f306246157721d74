"""DQN and Double DQN in the form of d3rlpy 2.8.1: six updates, actions and exploration, equal to the last bit."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from corl_torch.online import dqn
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
    same_draws,
)
from parity_tests.reference.d3rlpy import stepped, tried
from shared.data.transitions import Batch
from shared.frameworks.torch_data import take

SMALL: dict[str, Any] = {"hidden_dims": (40, 30), "learning_rate": 1e-2, "target_update_interval": 3}
OTHER: dict[str, Any] = SMALL | {"n_critics": 3, "batch_size": 64, "discount": 0.9, "adam_eps": 3e-4}
CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "DQN": SMALL,
    "DQN, three critics": OTHER,
    "DQN, targets follow at once": SMALL | {"target_update_interval": 1},
    "Double DQN": SMALL | {"double": True},
    "Double DQN, three critics": OTHER | {"double": True},
}
of_each_case = pytest.mark.parametrize("settings", CASES.values(), ids=CASES)


@pytest.fixture(scope="module")
def choices(dataset: Batch) -> Batch:
    """The dataset with an action of six in each row, and rewards on both sides of the loss's corner."""
    return dataset._replace(actions=dataset.actions.argmax(1), rewards=3 * dataset.rewards)


class Reference:
    """d3rlpy's networks in its order, from torch's generator; updates and actions."""

    def __init__(self, config: Any) -> None:
        self.config, self.step = config, 0
        self.critics, self.targets = (
            [nn.Sequential(*tried(config.hidden_dims, (STATE_DIM,), ACTION_DIM)) for _ in range(config.n_critics)]
            for _ in range(2)
        )
        self.copy()
        self.adam = adam([p for critic in self.critics for p in critic.parameters()], config.learning_rate)
        self.adam.param_groups[0]["eps"] = config.adam_eps
        self.corners: set[bool] = set()

    def copy(self) -> None:
        """The targets take over every weight."""
        for target, critic in zip(self.targets, self.critics, strict=True):
            for old, new in zip(target.parameters(), critic.parameters(), strict=True):
                old.data.copy_(new.data)

    def best(self, networks: list[nn.Sequential], s: Tensor) -> Tensor:
        """The action with the greatest mean value, (B,)."""
        return sum(network(s) for network in networks).argmax(1)

    def update(self, s: Tensor, a: Tensor, r: Tensor, s2: Tensor, d: Tensor) -> dict[str, Tensor]:
        """A step on all critics, then perhaps the copy."""
        c, rows = self.config, torch.arange(len(a))
        with torch.no_grad():
            a2 = self.best(self.critics if c.double else self.targets, s2)
            v = torch.stack([target(s2)[rows, a2] for target in self.targets]).min(0).values
            y = r + c.discount * v * (1 - d)
        losses = []
        for critic in self.critics:
            error = critic(s)[rows, a] - y
            small = error.detach().abs() < 1
            self.corners |= {bool(each) for each in small}
            losses.append(torch.where(small, error**2 / 2, error.abs() - 0.5).mean())
        log = {"loss": stepped(self.adam, torch.stack(losses).sum())}
        if self.step % c.target_update_interval == 0:
            self.copy()
        self.step += 1
        return log


def both(settings: dict[str, Any]) -> tuple[dqn.DQN, Reference]:
    """Twin and derivation, fresh from one seed."""
    config = dqn.TrainConfig(device="cpu", **settings)
    torch.manual_seed(7)
    trainer = dqn.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    torch.manual_seed(7)
    return trainer, Reference(config)


def assert_same_networks(trainer: dqn.DQN, reference: Reference) -> None:
    """Critics and targets."""
    ours = [*trainer.critics.members, *trainer.critics_target.members]
    assert_same_weights(ours, [*reference.critics, *reference.targets])


@of_each_case
def test_six_updates(choices: Batch, settings: dict[str, Any]) -> None:
    """Losses, critics and targets; the policy is the best action."""
    trainer, reference = both(settings)
    assert_same_networks(trainer, reference)
    logs, expected = [], []
    same_draws()
    for _ in range(UPDATES):
        indices, noise = dqn.draw_noise(trainer.hp, ROWS, CPU)
        logs.append(trainer.update(take(choices, indices), noise))
    same_draws()
    for _ in range(UPDATES):
        rows = np.random.randint(0, ROWS, size=reference.config.batch_size)
        expected.append(reference.update(*(column[rows] for column in choices)))
    assert_same_log(logs, expected)
    assert_same_networks(trainer, reference)
    assert reference.corners == {True, False}
    assert trainer.total_it == UPDATES
    assert trainer.acting is trainer.critics
    actions = trainer.act(choices.observations.numpy())
    assert actions.dtype == np.int64
    assert_same_actions(actions, reference.best(reference.critics, choices.observations))


def test_exploration(choices: Batch) -> None:
    """In d3rlpy's order: an action, then a number, in every step; below epsilon the action is taken."""
    trainer, reference = both(SMALL)
    rng = np.random.RandomState(3)
    steps = [(rng.randint(ACTION_DIM, size=1)[0], rng.random_sample()) for _ in range(ROWS)]
    np.random.seed(3)
    drawn = dqn.draw_exploration(ROWS, ACTION_DIM)
    np.testing.assert_array_equal(np.stack(drawn, axis=1), steps)
    assert drawn.random.dtype == np.int64
    greedy = reference.best(reference.critics, choices.observations).numpy()
    epsilon = np.linspace(0, 1, ROWS)
    expected = [random if u < share else best for (random, u), share, best in zip(steps, epsilon, greedy, strict=True)]
    found = trainer.explore(choices.observations.numpy(), drawn.random, drawn.uniform, epsilon)
    np.testing.assert_array_equal(found, expected)
    at_epsilon = trainer.explore(choices.observations.numpy(), drawn.random, epsilon, epsilon)
    np.testing.assert_array_equal(at_epsilon, greedy)


def test_epsilon_falls_on_a_line() -> None:
    """By the number of the step, from 1; then it stays."""
    config = dqn.TrainConfig(epsilon_start=0.9, epsilon_end=0.2, epsilon_steps=7)
    expected = [0.2 if t >= 7 else (0.9 - 0.2) * (1.0 - t / 7) + 0.2 for t in range(1, 21)]
    assert dqn.epsilons(config, 0, 20).tolist() == expected
    assert dqn.epsilons(config, 5, 3).tolist() == expected[5:8]


@pytest.mark.parametrize("settings", [{}, {"learning_starts": 9}, {"update_interval": 3, "n_updates": 2}])
def test_updates_follow_the_steps(settings: dict[str, Any]) -> None:
    """In every step of the interval once the start is over and there is more than a batch."""
    config = dqn.TrainConfig(batch_size=4, **settings)
    made = 0
    for step in range(1, 31):
        if step > config.learning_starts and step > config.batch_size and step % config.update_interval == 0:
            made += config.n_updates
        assert dqn.updates_until(config, step) == made
