"""A run reconstructed from its checkpoint alone."""

from pathlib import Path

import numpy as np
import torch

from corl_torch import td3_bc
from shared.frameworks.saved_run import SavedRun
from shared.runs.configs import dump


def test_networks_are_made_for_what_the_file_says(tmp_path: Path) -> None:
    """The environment need not be installed, because its sizes are not read from it."""
    config, path = td3_bc.TrainConfig(device="cpu"), tmp_path / "checkpoint.pt"
    (tmp_path / "config.yaml").write_text(dump(config))
    trainer = td3_bc.create_trainer(config, 5, 2, 3.0)
    facts = {"id": "Nowhere-v0", "state_dim": 5, "action_dim": 2, "max_action": 3.0}
    td3_bc.save(trainer, path, environment=facts, state_mean=np.zeros(5), state_std=np.ones(5))
    source = SavedRun.open(path)
    assert (source.env_id, source.sizes) == ("Nowhere-v0", (5, 2, 3.0))
    assert torch.equal(source.trainer().actor.net[0].weight, trainer.actor.net[0].weight)
    assert source.trainer().actor.max_action == 3.0
