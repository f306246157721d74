"""Behaviour cloning of finite actions in the form of d3rlpy 2.8.1 and with BCQ's penalty: six updates and actions."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn.functional import cross_entropy

from corl_torch.discrete import bc
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

SMALL: dict[str, Any] = {"hidden_dims": (40, 30), "learning_rate": 1e-2}
CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "BCQ's penalty": SMALL | {"beta": 0.1},
    "d3rlpy's penalty": SMALL | {"penalize_log_probs": True},
    "without a penalty": SMALL | {"beta": 0.0, "batch_size": 64, "adam_eps": 3e-4},
}


@pytest.fixture(scope="module")
def choices(dataset: Batch) -> Batch:
    """The dataset with an action of six in each row."""
    return dataset._replace(actions=dataset.actions.argmax(1))


class Reference:
    """d3rlpy's network in its order, from torch's generator; updates and actions."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.network = nn.Sequential(*tried(config.hidden_dims, (STATE_DIM,), ACTION_DIM))
        self.adam = adam(self.network.parameters(), config.learning_rate)
        self.adam.param_groups[0]["eps"] = config.adam_eps

    def update(self, s: Tensor, a: Tensor, *others: Tensor) -> dict[str, Tensor]:
        """A step down cross-entropy and penalty."""
        outputs = self.network(s)
        # Its logits are log-probabilities already.
        normalised = Categorical(logits=outputs).logits
        penalised = normalised if self.config.penalize_log_probs else outputs
        imitation, penalty = cross_entropy(normalised, a), self.config.beta * (penalised**2).mean()
        loss = stepped(self.adam, imitation + penalty)
        return {"loss": loss, "imitation_loss": imitation, "regularization_loss": penalty}


@pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
def test_six_updates(choices: Batch, settings: dict[str, Any]) -> None:
    """Losses and weights; the policy is the likeliest action."""
    config = bc.TrainConfig(device="cpu", **settings)
    torch.manual_seed(7)
    trainer = bc.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    torch.manual_seed(7)
    reference = Reference(config)
    assert_same_weights([trainer.actor], [reference.network])
    logs, expected = [], []
    same_draws()
    for _ in range(UPDATES):
        indices, noise = bc.draw_noise(trainer.hp, ROWS, CPU)
        logs.append(trainer.update(take(choices, indices), noise))
    same_draws()
    for _ in range(UPDATES):
        rows = np.random.randint(0, ROWS, size=config.batch_size)
        expected.append(reference.update(*(column[rows] for column in choices)))
    assert_same_log(logs, expected)
    assert_same_weights([trainer.actor], [reference.network])
    assert trainer.total_it == UPDATES
    actions = trainer.act(choices.observations.numpy())
    assert actions.dtype == np.int64
    assert_same_actions(actions, reference.network(choices.observations).argmax(1))
