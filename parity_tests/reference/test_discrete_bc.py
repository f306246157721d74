"""Behaviour cloning of finite actions, as in d3rlpy 2.8.1 and with BCQ's penalty: six updates and actions."""

from typing import Any

import pytest
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn.functional import cross_entropy

from corl_torch.discrete import bc
from parity_tests.reference.common import ACTION_DIM, assert_same_weights
from parity_tests.reference.d3rlpy import stepped
from parity_tests.reference.finite import assert_acts, assert_six_updates, both, optimizer_of
from parity_tests.reference.images import IMAGES, layers, shown
from shared.data.transitions import Batch

SMALL: dict[str, Any] = {"hidden_dims": (40, 30), "learning_rate": 1e-2}
CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "BCQ's penalty": SMALL | {"logit_penalty": 0.1},
    "d3rlpy's penalty": SMALL | {"penalize_log_probs": True},
    "without a penalty": SMALL | {"logit_penalty": 0.0, "batch_size": 64, "adam_eps": 3e-4},
    "images": SMALL | IMAGES["images"],
}


class Reference:
    """d3rlpy's network, drawn in its order from torch's generator, with its updates and actions."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.network = nn.Sequential(*layers(config, ACTION_DIM))
        self.adam = optimizer_of(self.network.parameters(), config)

    def update(self, s: Tensor, a: Tensor, *others: Tensor) -> dict[str, Tensor]:
        """A gradient step on cross-entropy and penalty."""
        outputs = self.network(s)
        # Its logits are already log-probabilities.
        normalised = Categorical(logits=outputs).logits
        penalised = normalised if self.config.penalize_log_probs else outputs
        imitation, penalty = cross_entropy(normalised, a), self.config.logit_penalty * (penalised**2).mean()
        loss = stepped(self.adam, imitation + penalty)
        return {"loss": loss, "imitation_loss": imitation, "regularization_loss": penalty}


@pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
def test_six_updates(choices: Batch, settings: dict[str, Any]) -> None:
    """Losses and weights are equal; the policy is the likeliest action."""
    choices, (trainer, reference) = shown(choices, settings), both(bc, Reference, settings)
    assert_same_weights([trainer.actor], [reference.network])
    assert_six_updates(bc, choices, trainer, reference)
    assert_same_weights([trainer.actor], [reference.network])
    assert_acts(trainer, choices, reference.network(choices.observations).argmax(1))
