"""BCQ of finite actions in the form of d3rlpy 2.8.1 and in the paper's: six updates and actions, equal to the bit."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn.functional import cross_entropy, log_softmax

from corl_torch.discrete import bcq
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
SMALL |= {"beta": 0.05, "action_flexibility": 0.7}
OTHER: dict[str, Any] = SMALL | {"n_critics": 3, "batch_size": 64, "discount": 0.9, "adam_eps": 3e-4}
CASES: dict[str, dict[str, Any]] = {
    "defaults": {"action_flexibility": 0.9},
    "the paper's penalty": SMALL,
    "d3rlpy's penalty": SMALL | {"penalize_log_probs": True},
    "its own encoder": SMALL | {"share_encoder": False},
    "no flexibility": SMALL | {"action_flexibility": 1.0},
    "three critics": OTHER | {"target_update_interval": 1},
    "three critics, its own encoder": OTHER | {"share_encoder": False, "penalize_log_probs": True},
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
        own = nn.Sequential(*tried(() if config.share_encoder else config.hidden_dims, (STATE_DIM,)))
        body = self.critics[0][0] if config.share_encoder else own
        self.head = nn.Linear(config.hidden_dims[-1], ACTION_DIM)
        self.imitator = nn.Sequential(body, self.head)
        # One optimiser, in which the shared layers stand once
        weights = dict.fromkeys(p for network in [*self.critics, self.imitator] for p in network.parameters())
        self.adam = adam(list(weights), config.learning_rate)
        self.adam.param_groups[0]["eps"] = config.adam_eps
        self.corners: set[bool] = set()
        self.kept: set[int] = set()

    def copy(self) -> None:
        """The targets take over every weight."""
        for target, critic in zip(self.targets, self.critics, strict=True):
            for old, new in zip(target.parameters(), critic.parameters(), strict=True):
                old.data.copy_(new.data)

    @torch.no_grad()
    def best(self, s: Tensor) -> Tensor:
        """d3rlpy's: values above the least one, times 0 for actions that are too unlikely, (B,)."""
        chances = log_softmax(Categorical(logits=self.imitator(s)).logits, dim=1)
        kept = chances - chances.max(1, keepdim=True).values > math.log(self.config.action_flexibility)
        self.kept |= set(kept.sum(1).tolist())
        q = torch.stack([critic(s) for critic in self.critics]).mean(0)
        return ((q - q.min(1, keepdim=True).values + 1e-5) * kept).argmax(1)

    def update(self, s: Tensor, a: Tensor, r: Tensor, s2: Tensor, d: Tensor) -> dict[str, Tensor]:
        """A step on critics and imitator, then perhaps the copy."""
        c, rows = self.config, torch.arange(len(a))
        with torch.no_grad():
            a2 = self.best(s2)
            v = torch.stack([target(s2)[rows, a2] for target in self.targets]).min(0).values
            y = r + c.discount * v * (1 - d)
        td = []
        for critic in self.critics:
            error = critic(s)[rows, a] - y
            small = error.detach().abs() < 1
            self.corners |= {bool(each) for each in small}
            td.append(torch.where(small, error**2 / 2, error.abs() - 0.5).mean())
        td_loss = torch.stack(td).sum()
        outputs = self.imitator(s)
        normalised = Categorical(logits=outputs).logits
        penalised = normalised if c.penalize_log_probs else outputs
        imitation = cross_entropy(normalised, a) + c.beta * (penalised**2).mean()
        log = {"loss": stepped(self.adam, td_loss + imitation)}
        if self.step % c.target_update_interval == 0:
            self.copy()
        self.step += 1
        return log | {"td_loss": td_loss, "imitator_loss": imitation}


def both(settings: dict[str, Any]) -> tuple[bcq.BCQ, Reference]:
    """Twin and derivation, fresh from one seed."""
    config = bcq.TrainConfig(device="cpu", **settings)
    torch.manual_seed(7)
    trainer = bcq.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    torch.manual_seed(7)
    return trainer, Reference(config)


def assert_same_networks(trainer: bcq.BCQ, reference: Reference) -> None:
    """Critics, targets and imitator."""
    ours = [*trainer.critics.members, *trainer.critics_target.members, trainer.imitator]
    imitator = reference.head if trainer.imitator.share_encoder else reference.imitator
    assert_same_weights(ours, [*reference.critics, *reference.targets, imitator])


@pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
def test_six_updates(choices: Batch, settings: dict[str, Any]) -> None:
    """Losses, critics, targets and imitator; the policy is the best of the likely actions."""
    trainer, reference = both(settings)
    assert_same_networks(trainer, reference)
    logs, expected = [], []
    same_draws()
    for _ in range(UPDATES):
        indices, noise = bcq.draw_noise(trainer.hp, ROWS, CPU)
        logs.append(trainer.update(take(choices, indices), noise))
    same_draws()
    for _ in range(UPDATES):
        rows = np.random.randint(0, ROWS, size=reference.config.batch_size)
        expected.append(reference.update(*(column[rows] for column in choices)))
    assert_same_log(logs, expected)
    assert_same_networks(trainer, reference)
    assert reference.corners == {True, False}
    assert trainer.total_it == UPDATES
    actions = trainer.act(choices.observations.numpy())
    assert actions.dtype == np.int64
    assert_same_actions(actions, reference.best(choices.observations))
    # Some actions were masked, and not as many in each state; without any flexibility all were.
    if trainer.imitator.action_flexibility == 1.0:
        assert reference.kept == {0}
    else:
        assert min(reference.kept) < ACTION_DIM
        assert len(reference.kept) > 1
