"""BCQ of finite actions, as in d3rlpy 2.8.1 and in the paper: six updates and actions are bitwise equal."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn.functional import cross_entropy, log_softmax

from corl_torch.discrete import bcq
from parity_tests.reference.common import ACTION_DIM, assert_same_weights
from parity_tests.reference.d3rlpy import stepped
from parity_tests.reference.finite import Critics, assert_acts, assert_six_updates, both, optimizer_of
from parity_tests.reference.images import IMAGES, SHAPES, layers, shown
from shared.data.transitions import Batch

SMALL: dict[str, Any] = {"hidden_dims": (40, 30), "learning_rate": 1e-2, "target_update_period": 3}
SMALL |= {"logit_penalty": 0.05, "likelihood_threshold": 0.7}
OTHER: dict[str, Any] = SMALL | {"n_critics": 3, "batch_size": 64, "discount": 0.9, "adam_eps": 3e-4}
CASES: dict[str, dict[str, Any]] = {
    "defaults": {"likelihood_threshold": 0.9},
    "the paper's penalty": SMALL,
    "d3rlpy's penalty": SMALL | {"penalize_log_probs": True},
    "its own encoder": SMALL | {"share_encoder": False},
    "no flexibility": SMALL | {"likelihood_threshold": 1.0},
    "three critics": OTHER | {"target_update_period": 1},
    "three critics, its own encoder": OTHER | {"share_encoder": False, "penalize_log_probs": True},
    "images": SMALL | IMAGES["images"],
    "images, its own encoder": OTHER | IMAGES["images"] | {"share_encoder": False},
}


class Reference(Critics):
    """Critics and imitator: updates and actions."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        if config.share_encoder:
            body = self.critics[0][0]
            # d3rlpy runs it once more.
            torch.rand(2, *SHAPES[config.encoder])
        else:
            (body,) = layers(config)
        self.head = nn.Linear(config.hidden_dims[-1], ACTION_DIM)
        self.imitator = nn.Sequential(body, self.head)
        # One optimiser, which contains the shared layers once
        weights = dict.fromkeys(p for network in [*self.critics, self.imitator] for p in network.parameters())
        self.adam = optimizer_of(list(weights), config)
        self.kept: set[int] = set()

    @torch.no_grad()
    def likely_best(self, s: Tensor) -> Tensor:
        """d3rlpy's choice: values above the smallest one, times 0 for actions that are too unlikely, (B,)."""
        chances = log_softmax(Categorical(logits=self.imitator(s)).logits, dim=1)
        kept = chances - chances.max(1, keepdim=True).values > math.log(self.config.likelihood_threshold)
        self.kept |= set(kept.sum(1).tolist())
        q = torch.stack([critic(s) for critic in self.critics]).mean(0)
        return ((q - q.min(1, keepdim=True).values + 1e-5) * kept).argmax(1)

    def update(self, s: Tensor, a: Tensor, r: Tensor, s2: Tensor, d: Tensor) -> dict[str, Tensor]:
        """A step of critics and imitator, then the copy if it is due."""
        c = self.config
        td_loss = self.td_loss(s, a, r, s2, d, self.likely_best(s2))
        outputs = self.imitator(s)
        normalised = Categorical(logits=outputs).logits
        penalised = normalised if c.penalize_log_probs else outputs
        imitation = cross_entropy(normalised, a) + c.logit_penalty * (penalised**2).mean()
        log = {"loss": stepped(self.adam, td_loss + imitation)}
        self.copy_when_due()
        return log | {"td_loss": td_loss, "imitator_loss": imitation}


def assert_same_networks(trainer: bcq.BCQ, reference: Reference) -> None:
    """Checks that critics, targets and imitator are equal."""
    ours = [*trainer.critic.members, *trainer.critic_target.members, trainer.imitator]
    imitator = reference.head if trainer.imitator.share_encoder else reference.imitator
    assert_same_weights(ours, [*reference.critics, *reference.targets, imitator])


@pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
def test_six_updates(choices: Batch, settings: dict[str, Any]) -> None:
    """Losses, critics, targets and imitator are equal; the policy is the best of the likely actions."""
    choices, (trainer, reference) = shown(choices, settings), both(bcq, Reference, settings)
    assert_same_networks(trainer, reference)
    assert_six_updates(bcq, choices, trainer, reference)
    assert_same_networks(trainer, reference)
    assert reference.corners == {True, False}
    assert_acts(trainer, choices, reference.likely_best(choices.observations))
    # Some actions were masked, in different numbers from state to state; without any flexibility all were.
    if trainer.imitator.likelihood_threshold == 1.0:
        assert reference.kept == {0}
    else:
        assert min(reference.kept) < ACTION_DIM
        assert len(reference.kept) > 1
