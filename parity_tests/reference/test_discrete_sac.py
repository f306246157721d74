"""SAC of finite actions, as in d3rlpy 2.8.1 and in the paper: six updates and actions are bitwise equal."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn.functional import log_softmax

from corl_torch.discrete import sac
from parity_tests.reference.common import ACTION_DIM, adam, assert_same_weights
from parity_tests.reference.d3rlpy import stepped
from parity_tests.reference.finite import Critics, assert_acts, assert_six_updates, both
from parity_tests.reference.images import IMAGES, layers, shown
from shared.data.transitions import Batch

SMALL: dict[str, Any] = {"hidden_dims": (40, 30), "target_update_period": 3, "actor_lr": 3e-3, "critic_lr": 1e-2}
SMALL |= {"temperature_lr": 1e-2, "initial_temperature": 0.2}
OTHER: dict[str, Any] = SMALL | {"n_critics": 3, "batch_size": 32, "discount": 0.9, "entropy_share": 0.5}
CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "the paper's loss": SMALL,
    "d3rlpy's loss": SMALL | {"huber": True},
    "three critics": OTHER,
    "three critics, d3rlpy's loss": OTHER | {"huber": True},
    "a constant temperature": SMALL | {"temperature_lr": 0.0, "n_critics": 1},
    "targets follow at once": SMALL | {"target_update_period": 1, "huber": True},
    "images": SMALL | IMAGES["images"],
}


class Reference(Critics):
    """Critics, policy and temperature: updates and actions."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.policy = nn.Sequential(*layers(config, ACTION_DIM))
        self.log_temp = nn.Parameter(torch.full((1, 1), math.log(config.initial_temperature)))
        weights = [p for critic in self.critics for p in critic.parameters()]
        self.critics_adam = adam(weights, config.critic_lr)
        self.policy_adam = adam(self.policy.parameters(), config.actor_lr)
        self.temp_adam = adam([self.log_temp], config.temperature_lr)

    def chances(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """The probabilities of all actions and their logarithms, (B, A)."""
        found = Categorical(logits=self.policy(s))
        return found.probs, found.logits

    def q_loss(self, s: Tensor, a: Tensor, r: Tensor, s2: Tensor, d: Tensor) -> Tensor:
        """The sum of all critics' losses."""
        c, rows = self.config, torch.arange(len(a))
        with torch.no_grad():
            p, log_p = self.chances(s2)
            q = torch.stack([target(s2) for target in self.targets]).min(0).values
            y = r + c.discount * (p * (q - self.log_temp.exp() * log_p)).sum(1) * (1 - d)
        losses = []
        for critic in self.critics:
            error = critic(s)[rows, a] - y
            small = error.detach().abs() < 1
            self.corners |= {bool(each) for each in small}
            each = error**2 / 2
            losses.append((torch.where(small, each, error.abs() - 0.5) if c.huber else each).mean())
        return torch.stack(losses).sum()

    def update(self, s: Tensor, a: Tensor, r: Tensor, s2: Tensor, d: Tensor) -> dict[str, Tensor]:
        """A step of the critics, of the temperature and of the policy; then the copy if it is due."""
        c = self.config
        log = {"critic_loss": stepped(self.critics_adam, self.q_loss(s, a, r, s2, d))}
        with torch.no_grad():
            q = torch.stack([critic(s) for critic in self.critics]).min(0).values
        p, log_p = self.chances(s)
        if c.temperature_lr > 0:
            with torch.no_grad():
                short = (p * log_softmax(log_p, 1)).sum(1, keepdim=True) + c.entropy_share * math.log(ACTION_DIM)
            log["temp_loss"] = stepped(self.temp_adam, -(self.log_temp.exp() * short).mean())
        entropy = -(p * log_p).sum(1).mean()
        log["actor_loss"] = stepped(self.policy_adam, (p * (self.log_temp.exp() * log_p - q)).sum(1).mean())
        self.copy_when_due()
        return log | {"entropy": entropy, "temp": self.log_temp.exp()}


def assert_same_networks(trainer: sac.SAC, reference: Reference) -> None:
    """Checks that critics, targets, policy and temperature are equal."""
    ours = [*trainer.critic.members, *trainer.critic_target.members, trainer.actor]
    assert_same_weights(ours, [*reference.critics, *reference.targets, reference.policy])
    assert trainer.log_temperature().item() == reference.log_temp.item()


@pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
def test_six_updates(choices: Batch, settings: dict[str, Any]) -> None:
    """Losses, critics, targets, policy and temperature are equal; the policy is the likeliest action."""
    choices, (trainer, reference) = shown(choices, settings), both(sac, Reference, settings)
    assert_same_networks(trainer, reference)
    assert_six_updates(sac, choices, trainer, reference)
    assert_same_networks(trainer, reference)
    assert reference.corners == {True, False}
    assert_acts(trainer, choices, reference.policy(choices.observations).argmax(1))
