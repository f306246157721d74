"""CQL of finite actions in the form of d3rlpy 2.8.1 and in the paper's: six updates and actions, equal to the bit."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from corl_torch.discrete import cql
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
OTHER: dict[str, Any] = SMALL | {"n_critics": 3, "batch_size": 64, "discount": 0.9, "adam_eps": 3e-4, "cql_alpha": 4.0}
CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "the paper's target": SMALL,
    "three critics": OTHER,
    "targets follow at once": SMALL | {"target_update_interval": 1},
    "d3rlpy's target": SMALL | {"double": True},
    "d3rlpy's target, three critics": OTHER | {"double": True},
}


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
        td = []
        for critic in self.critics:
            error = critic(s)[rows, a] - y
            small = error.detach().abs() < 1
            self.corners |= {bool(each) for each in small}
            td.append(torch.where(small, error**2 / 2, error.abs() - 0.5).mean())
        td_loss = torch.stack(td).sum()
        # The conservative term, of the mean critic: log(sum(exp(q))) - q[a], in numbers that do not overflow
        q = torch.stack([critic(s) for critic in self.critics]).mean(0)
        conservative = (torch.logsumexp(q, 1) - q[rows, a]).mean()
        log = {"loss": stepped(self.adam, td_loss + c.cql_alpha * conservative)}
        if self.step % c.target_update_interval == 0:
            self.copy()
        self.step += 1
        return log | {"td_loss": td_loss, "conservative_loss": conservative}


def both(settings: dict[str, Any]) -> tuple[cql.CQL, Reference]:
    """Twin and derivation, fresh from one seed."""
    config = cql.TrainConfig(device="cpu", **settings)
    torch.manual_seed(7)
    trainer = cql.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    torch.manual_seed(7)
    return trainer, Reference(config)


def assert_same_networks(trainer: cql.CQL, reference: Reference) -> None:
    """Critics and targets."""
    ours = [*trainer.critics.members, *trainer.critics_target.members]
    assert_same_weights(ours, [*reference.critics, *reference.targets])


@pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
def test_six_updates(choices: Batch, settings: dict[str, Any]) -> None:
    """Losses, critics and targets; the policy is the best action."""
    trainer, reference = both(settings)
    assert_same_networks(trainer, reference)
    logs, expected = [], []
    same_draws()
    for _ in range(UPDATES):
        indices, noise = cql.draw_noise(trainer.hp, ROWS, CPU)
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
