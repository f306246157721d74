"""Held-out episodes of an opened dataset, prepared in the same way as the training data."""

from typing import Any

import numpy as np

from shared.data import transitions
from shared.data.held_out import Raw, hold_out
from shared.errors import InputError
from shared.runs.opening import Opened
from shared.runs.progress import say
from shared.runs.validation import DEFAULT_SHARE, NO_ENVIRONMENT


def divided(opened: Opened, share: float | None) -> tuple[Raw, Raw | None]:
    """Splits a dataset into training rows and held-out rows, which are None if nothing is measured on them.

    Args:
        opened: The dataset.
        share: Fraction of the episodes to hold out; None holds episodes out only if there is no environment.

    Raises:
        InputError: You set a share, but no episode can be held out.
    """
    raw, alone = opened.read.raw, opened.env_id == NO_ENVIRONMENT
    asked = share is not None
    share = DEFAULT_SHARE * alone if share is None else share
    parts = hold_out(raw, opened.limit, share) if share else None
    if parts is not None:
        return parts
    if share:
        reason = "fewer than two episodes of the dataset are complete, so none can be held out"
        if asked:
            raise InputError(f"{reason}: set validation_share to 0")
        say(f"{reason}: actions are measured on the rows that are learnt from")
    return raw, raw if alone else None


def as_modified(others: Any, before: Any, after: Any) -> Any:
    """Changes held-out rewards in the same way as the training data's, or returns None if that is unknown.

    Every kind multiplies by a factor and adds a shift, so two transitions determine both. An exact function would
    change the last bits of older runs that you resume.
    """
    if type(before) is not type(after) or len(before.rewards) != len(after.rewards):
        return None
    low, high = int(before.rewards.argmin()), int(before.rewards.argmax())
    spread = float(before.rewards[high] - before.rewards[low])
    factor = float(after.rewards[high] - after.rewards[low]) / spread if spread else 1.0
    shift = float(after.rewards[low]) - factor * float(before.rewards[low])
    return others._replace(rewards=(factor * others.rewards + shift).astype(np.float32))


def normalised(rows: Any, mean: np.ndarray, std: np.ndarray) -> Any:
    """Normalises the states of held-out rows like the training data; images stay unchanged."""
    if rows.observations.ndim > 2:
        return rows
    named = ((name, getattr(rows, name, None)) for name in ("observations", "next_observations", "goals"))
    states = {name: column for name, column in named if column is not None}
    return rows._replace(**{name: transitions.normalise(column, mean, std) for name, column in states.items()})
