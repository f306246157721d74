"""DQN and Double DQN as in d3rlpy 2.8.1: six updates, actions and exploration are bitwise equal."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from corl_torch.online import dqn
from parity_tests.reference.common import ACTION_DIM, ROWS, assert_same_weights
from parity_tests.reference.d3rlpy import stepped
from parity_tests.reference.finite import Critics, assert_acts, assert_six_updates, both, optimizer_of
from parity_tests.reference.images import IMAGES, shown
from shared.data.transitions import Batch

SMALL: dict[str, Any] = {"hidden_dims": (40, 30), "learning_rate": 1e-2, "target_update_period": 3}
OTHER: dict[str, Any] = SMALL | {"n_critics": 3, "batch_size": 64, "discount": 0.9, "adam_eps": 3e-4}
CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "DQN": SMALL,
    "DQN, three critics": OTHER,
    "DQN, targets follow at once": SMALL | {"target_update_period": 1},
    "Double DQN": SMALL | {"double": True},
    "Double DQN, three critics": OTHER | {"double": True},
    **{f"DQN, {kind}": SMALL | {"critic": kind} for kind in ("qr", "iqn")},
    "Double DQN, three critics, qr": OTHER | {"double": True, "critic": "qr", "n_quantiles": 5},
    "Double DQN, three critics, iqn": OTHER
    | {"double": True, "critic": "iqn", "n_quantiles": 7, "n_greedy_quantiles": 4, "embed_size": 9},
    **{f"DQN, {name}": SMALL | settings for name, settings in IMAGES.items()},
}
of_each_case = pytest.mark.parametrize("settings", CASES.values(), ids=CASES)


class Reference(Critics):
    """Updates of all critics."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.adam = optimizer_of([p for critic in self.critics for p in critic.parameters()], config)

    def update(self, s: Tensor, a: Tensor, r: Tensor, s2: Tensor, d: Tensor) -> dict[str, Tensor]:
        """A step of all critics, then the copy if it is due."""
        with torch.no_grad():
            a2 = self.best(self.critics if self.config.double else self.targets, s2, learns=True)
        log = {"loss": stepped(self.adam, self.td_loss(s, a, r, s2, d, a2))}
        self.copy_when_due()
        return log


def assert_same_networks(trainer: dqn.DQN, reference: Reference) -> None:
    """Checks that critics and targets are equal."""
    ours = [*trainer.critic.members, *trainer.critic_target.members]
    assert_same_weights(ours, [*reference.critics, *reference.targets])


@of_each_case
def test_six_updates(choices: Batch, settings: dict[str, Any]) -> None:
    """Losses, critics and targets are equal; the policy is the best action."""
    choices, (trainer, reference) = shown(choices, settings), both(dqn, Reference, settings)
    assert_same_networks(trainer, reference)
    assert_six_updates(dqn, choices, trainer, reference)
    assert_same_networks(trainer, reference)
    assert reference.corners == {True, False}
    assert trainer.acting is trainer.critic
    assert_acts(trainer, choices, reference.best(reference.critics, choices.observations))


def test_exploration(choices: Batch) -> None:
    """In d3rlpy's order, every step draws an action and then a number; below epsilon the action is taken."""
    trainer, reference = both(dqn, Reference, SMALL)
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
    """It depends on the step number, counted from 1, and then stays constant."""
    config = dqn.TrainConfig(epsilon_start=0.9, epsilon_end=0.2, epsilon_steps=7)
    expected = [0.2 if t >= 7 else (0.9 - 0.2) * (1.0 - t / 7) + 0.2 for t in range(1, 21)]
    assert dqn.epsilons(config, 0, 20).tolist() == expected
    assert dqn.epsilons(config, 5, 3).tolist() == expected[5:8]


@pytest.mark.parametrize("settings", [{}, {"learning_starts": 9}, {"update_interval": 3, "n_updates": 2}])
def test_updates_follow_the_steps(settings: dict[str, Any]) -> None:
    """There are updates every `update_interval` steps, after the start and once there is more than a batch."""
    config = dqn.TrainConfig(batch_size=4, **settings)
    made = 0
    for step in range(1, 31):
        if step > config.learning_starts and step > config.batch_size and step % config.update_interval == 0:
            made += config.n_updates
        assert dqn.updates_until(config, step) == made
