"""A reward belongs to its row."""

from types import ModuleType

import numpy as np
import torch

RNG = np.random.default_rng(0)
VALUES, NEXT_VALUES, REWARDS = RNG.normal(size=(6, 1)), RNG.normal(size=(6, 1)), RNG.normal(size=6)


def test_the_loss_is_pytorch_s(exercise: ModuleType, fragment: ModuleType) -> None:
    """For a batch of six rows."""
    given = (torch.as_tensor(x) for x in (VALUES, REWARDS, NEXT_VALUES))
    reference = fragment.critic_loss(*given, 0.99).item()
    ours = exercise.critic_loss(VALUES, REWARDS, NEXT_VALUES, 0.99)
    np.testing.assert_allclose(ours, reference, rtol=1e-12, err_msg="the loss differs")


def test_rewards_in_other_rows_are_another_loss(exercise: ModuleType) -> None:
    """Values (B, B) hold every reward against every value: the order of the rewards is lost."""
    here = exercise.critic_loss(VALUES, REWARDS, 0 * NEXT_VALUES, 0.99)
    there = exercise.critic_loss(VALUES, np.roll(REWARDS, 1), 0 * NEXT_VALUES, 0.99)
    assert abs(here - there) > 1e-6, "rewards handed to other rows change nothing"
