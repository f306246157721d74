"""Behaviour cloning: six updates, equal to the last bit."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from corl_torch import any_percent_bc
from parity_tests.reference.common import (
    ACTION_DIM,
    CPU,
    ROWS,
    UPDATES,
    adam,
    assert_same_actions,
    assert_same_bits,
    assert_same_log,
    assert_same_weights,
    at_the_weights_of,
    columns_of,
    mlp,
    same_draws,
)
from parity_tests.reference.images import moved, reader, shape_of, shown
from shared.data.transitions import Batch
from shared.frameworks.torch_data import take


def network(encoder: str = "none") -> nn.Sequential:
    """CORL's policy, before its actions are scaled, with convolutions if there is an encoder."""
    eyes, features = reader(encoder)
    return nn.Sequential(eyes, mlp(features, 256, 256, ACTION_DIM, end=nn.Tanh()))


@pytest.mark.parametrize(
    ("max_action", "encoder", "padding"), [(1.0, "none", 0), (2.0, "none", 0), (2.0, "minatar", 0), (2.0, "minatar", 2)]
)
def test_any_percent_bc(dataset: Batch, max_action: float, encoder: str, padding: int) -> None:
    """The policy and its later actions are equal."""
    settings: dict[str, Any] = {"encoder": encoder, "crop_padding": padding}
    dataset = shown(dataset, settings)
    config = any_percent_bc.TrainConfig(device="cpu", **settings)
    trainer = any_percent_bc.create_trainer(config, shape_of(settings), ACTION_DIM, max_action)
    actor = at_the_weights_of(trainer.actor, network(encoder))
    optimizer = adam(actor.parameters(), 3e-4)
    logs, expected = [], []
    same_draws()
    for _ in range(UPDATES):
        indices, noise = any_percent_bc.draw_noise(config, ROWS, CPU)
        logs.append(trainer.update(take(dataset, indices), noise))
    same_draws()
    for _ in range(UPDATES):
        s, a, _, _, _ = columns_of(dataset, config.batch_size)
        s = moved(s, padding) if padding else s
        loss = mse_loss(max_action * actor(s), a)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append({"actor_loss": loss})
    assert_same_log(logs, expected)
    assert_same_bits(trainer, {"actor": actor})
    assert_same_actions(trainer.act(dataset.observations.numpy()), max_action * actor(dataset.observations))
    assert trainer.total_it == UPDATES


@pytest.mark.parametrize("encoder", ["none", "minatar"])
def test_weights_start_where_the_seed_says(encoder: str) -> None:
    """There is a single network, whose layers are drawn in order."""
    settings: dict[str, Any] = {"encoder": encoder}
    config = any_percent_bc.TrainConfig(device="cpu", **settings)
    torch.manual_seed(7)
    trainer = any_percent_bc.create_trainer(config, shape_of(settings), ACTION_DIM, 1.0)
    torch.manual_seed(7)
    assert_same_weights([trainer.actor], [network(encoder)])
