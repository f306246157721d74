"""Fitted Q evaluation as in d3rlpy 2.8.1: seven updates and values are bitwise equal."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from corl_torch.evaluation import fqe
from parity_tests.reference.common import (
    ACTION_DIM,
    CPU,
    ROWS,
    STATE_DIM,
    adam,
    assert_same_log,
    assert_same_weights,
    same_draws,
)
from parity_tests.reference.d3rlpy import stepped, tried
from shared.data.transitions import Batch, SarsaBatch
from shared.frameworks.torch_data import take

# Enough updates to reach every third one twice more after the first
UPDATES = 7
SMALL: dict[str, Any] = {"critic_hidden_dims": (50, 20), "batch_size": 64, "discount": 0.9, "learning_rate": 1e-3}
CASES: dict[str, dict[str, Any]] = {
    "d3rlpy's own settings": {},
    "two critics": {"n_critics": 2},
    "each": {"target_update_period": 1},
    "each, three critics": SMALL | {"target_update_period": 1, "n_critics": 3},
    "every third": SMALL | {"target_update_period": 3},
    "every third, two critics": SMALL | {"target_update_period": 3, "n_critics": 2},
}
of_each_case = pytest.mark.parametrize("settings", CASES.values(), ids=CASES)


class Reference:
    """d3rlpy's critics, drawn in its order from torch's generator, with its updates and values."""

    def __init__(self, config: Any) -> None:
        self.config, self.step = config, 0
        self.critics, _ = (
            [
                nn.Sequential(*tried(config.critic_hidden_dims, (STATE_DIM, ACTION_DIM), 1))
                for _ in range(config.n_critics)
            ]
            for _ in range(2)
        )
        self.targets = copy.deepcopy(self.critics)
        self.adam = adam([p for critic in self.critics for p in critic.parameters()], config.learning_rate)

    def update(self, s: Tensor, a: Tensor, r: Tensor, s2: Tensor, d: Tensor, a2: Tensor) -> dict[str, Tensor]:
        """A step of the regression, then the copy if it is due."""
        with torch.no_grad():
            v = torch.stack([target(torch.cat([s2, a2], 1)) for target in self.targets]).min(0).values
            y = r + self.config.discount * v * (1 - d)
        losses = [mse_loss(critic(torch.cat([s, a], 1)), y) for critic in self.critics]
        loss = stepped(self.adam, torch.stack(losses).sum())
        if self.step % self.config.target_update_period == 0:
            self.targets = copy.deepcopy(self.critics)
        self.step += 1
        return {"critic_loss": loss}

    def value(self, s: Tensor, a: Tensor) -> Tensor:
        """The mean of the critics, (B,)."""
        with torch.no_grad():
            return torch.stack([critic(torch.cat([s, a], 1)) for critic in self.critics]).mean(0)[:, 0]


def both(settings: dict[str, Any]) -> tuple[fqe.FQE, Reference]:
    """A fresh twin and its derivation, from the same seed."""
    config = fqe.TrainConfig(device="cpu", **settings)
    torch.manual_seed(7)
    trainer = fqe.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    torch.manual_seed(7)
    return trainer, Reference(config)


def with_next_actions(dataset: Batch) -> SarsaBatch:
    """The dataset with some policy's next actions."""
    return SarsaBatch(*dataset, torch.tanh(dataset.next_observations[:, :ACTION_DIM]))


@of_each_case
def test_seven_updates(dataset: Batch, settings: dict[str, Any]) -> None:
    """Critics, targets, logs and values are equal; batches use NumPy's generator, and nothing uses torch's."""
    trainer, reference = both(settings)
    sarsa = with_next_actions(dataset)
    logs, expected = [], []
    same_draws()
    untouched = torch.get_rng_state()
    for _ in range(UPDATES):
        indices, noise = fqe.draw_noise(trainer.hp, ROWS, CPU)
        logs.append(trainer.update(take(sarsa, indices), noise))
    assert torch.equal(untouched, torch.get_rng_state())
    same_draws()
    for _ in range(UPDATES):
        indices = np.random.randint(0, ROWS, size=reference.config.batch_size)
        s, a, r, s2, d, a2 = (column[indices] for column in sarsa)
        expected.append(reference.update(s, a, r[:, None], s2, d[:, None], a2))
    assert_same_log(logs, expected)
    ours = [*trainer.critic.members, *trainer.critic_target.members]
    assert_same_weights(ours, [*reference.critics, *reference.targets])
    assert trainer.total_it == UPDATES
    found = trainer.value(sarsa.observations.numpy(), sarsa.actions.numpy())
    assert torch.equal(torch.as_tensor(found), reference.value(sarsa.observations, sarsa.actions))


@of_each_case
def test_weights_start_where_the_seed_says(settings: dict[str, Any]) -> None:
    """The order is d3rlpy's, including its draws between layers and for targets, which then become copies."""
    trainer, reference = both(settings)
    ours = [*trainer.critic.members, *trainer.critic_target.members]
    assert_same_weights(ours, [*reference.critics, *reference.targets])
    # The next draws are the library's, because the targets' own draws are already made.
    torch.manual_seed(7)
    fqe.create_trainer(reference.config, STATE_DIM, ACTION_DIM, 1.0)
    after = torch.rand(1)
    torch.manual_seed(7)
    Reference(reference.config)
    assert torch.equal(after, torch.rand(1))
