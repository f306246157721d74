"""The JAX twins start as the PyTorch twins do: the ladder hands weights across, and never sees how they start."""

import jax
import numpy as np
import pytest

from parity_tests.interpreter import interpreted
from parity_tests.pairs import PAIRS
from shared.frameworks.exchange import named, part_names, torch_part

# Numbers of a tensor from which on its spread is known to a few hundredths
MANY = 200


@pytest.mark.parametrize("name", PAIRS)
def test_weights_start_as_in_pytorch(name: str) -> None:
    """Tensor by tensor: what is constant is the same, what is drawn has the same spread."""
    pair = PAIRS[name]
    settings = pair.variants["default"]
    trainer = pair.torch.create_trainer(pair.torch.TrainConfig(device="cpu", **settings), 11, 3, 1.0)
    config = pair.jax.TrainConfig(device="cpu", **settings)
    state = interpreted(lambda key: pair.jax.create_train_state(key, config, 11, 3, 1.0))(jax.random.key(0))
    for part in part_names(state):
        reference = torch_part(trainer, part)
        for leaf, ours in named(getattr(state, part)).items():
            where, theirs = f"{part}.{leaf}", reference[leaf]
            if ours.size == 1 and leaf != "constant":
                continue  # one drawn number tells nothing
            if np.ptp(theirs) == 0.0:
                np.testing.assert_array_equal(ours, theirs, where)
            else:
                assert np.ptp(ours) > 0.0, where
            if ours.size >= MANY and np.ptp(theirs) > 0.0:
                assert ours.std() == pytest.approx(theirs.std(), rel=0.2), where
