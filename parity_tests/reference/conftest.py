"""Fixtures for all derivations: one thread and one dataset."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from parity_tests.reference.common import ACTION_DIM, ROWS, STATE_DIM
from shared.data.transitions import Batch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Uses one thread, because bits may depend on how a sum is split over threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def dataset() -> Batch:
    """Rows of random numbers, a tenth of them terminal."""
    rng = np.random.default_rng(0)
    columns = (
        rng.normal(size=(ROWS, STATE_DIM)),
        rng.uniform(-1, 1, (ROWS, ACTION_DIM)),
        rng.normal(size=ROWS),
        rng.normal(size=(ROWS, STATE_DIM)),
        rng.random(ROWS) < 0.1,
    )
    return Batch(*(torch.as_tensor(column, dtype=torch.float32) for column in columns))


@pytest.fixture(scope="module")
def choices(dataset: Batch) -> Batch:
    """The dataset with one of six actions in each row, and with rewards on both sides of the Huber loss's corner."""
    return dataset._replace(actions=dataset.actions.argmax(1), rewards=3 * dataset.rewards)
