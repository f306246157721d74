"""CQL of finite actions, as in d3rlpy 2.8.1 and in the paper: six updates and actions are bitwise equal."""

from typing import Any

import pytest
import torch
from torch import Tensor

from corl_torch.discrete import cql
from parity_tests.reference.common import assert_same_weights
from parity_tests.reference.d3rlpy import stepped
from parity_tests.reference.finite import Critics, assert_acts, assert_six_updates, both, optimizer_of
from parity_tests.reference.images import IMAGES, moved, shown
from shared.data.transitions import Batch

SMALL: dict[str, Any] = {"hidden_dims": (40, 30), "learning_rate": 1e-2, "target_update_period": 3}
OTHER: dict[str, Any] = SMALL | {"n_critics": 3, "batch_size": 64, "discount": 0.9, "adam_eps": 3e-4, "cql_alpha": 4.0}
CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "the paper's target": SMALL,
    "three critics": OTHER,
    "targets follow at once": SMALL | {"target_update_period": 1},
    "d3rlpy's target": SMALL | {"double": True},
    "d3rlpy's target, three critics": OTHER | {"double": True},
    **{f"the paper's target, {kind}": SMALL | {"critic": kind} for kind in ("qr", "iqn")},
    "d3rlpy's target, three critics, qr": OTHER | {"double": True, "critic": "qr", "n_quantiles": 5},
    "d3rlpy's target, three critics, iqn": OTHER
    | {"double": True, "critic": "iqn", "n_quantiles": 7, "n_greedy_quantiles": 4, "embed_size": 9},
    **{
        f"{name}, three critics, iqn": OTHER | {"critic": "iqn"} | settings | {"crop_padding": padding}
        for (name, settings), padding in zip(IMAGES.items(), (2, 0), strict=True)
    },
    "cropped images": SMALL | IMAGES["images"] | {"crop_padding": 1},
}


class Reference(Critics):
    """Updates of all critics."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.adam = optimizer_of([p for critic in self.critics for p in critic.parameters()], config)

    def update(self, s: Tensor, a: Tensor, r: Tensor, s2: Tensor, d: Tensor) -> dict[str, Tensor]:
        """A step of all critics, then the copy if it is due."""
        c, rows = self.config, torch.arange(len(a))
        if c.crop_padding:
            s, s2 = (moved(images, c.crop_padding) for images in (s, s2))
        with torch.no_grad():
            a2 = self.best(self.critics if c.double else self.targets, s2, learns=True)
        td_loss = self.td_loss(s, a, r, s2, d, a2)
        # The conservative term for the mean critic, log(sum(exp(q))) - q[a], in a form that does not overflow
        q = torch.stack([self.quantiles(critic, s)[0].mean(2) for critic in self.critics]).mean(0)
        conservative = (torch.logsumexp(q, 1) - q[rows, a]).mean()
        log = {"loss": stepped(self.adam, td_loss + c.cql_alpha * conservative)}
        self.copy_when_due()
        return log | {"td_loss": td_loss, "conservative_loss": conservative}


def assert_same_networks(trainer: cql.CQL, reference: Reference) -> None:
    """Checks that critics and targets are equal."""
    ours = [*trainer.critic.members, *trainer.critic_target.members]
    assert_same_weights(ours, [*reference.critics, *reference.targets])


@pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
def test_six_updates(choices: Batch, settings: dict[str, Any]) -> None:
    """Losses, critics and targets are equal; the policy is the best action."""
    choices, (trainer, reference) = shown(choices, settings), both(cql, Reference, settings)
    assert_same_networks(trainer, reference)
    assert_six_updates(cql, choices, trainer, reference)
    assert_same_networks(trainer, reference)
    assert reference.corners == {True, False}
    assert trainer.acting is trainer.critic
    assert_acts(trainer, choices, reference.best(reference.critics, choices.observations))
