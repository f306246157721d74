"""Fixtures for all derivations: one thread and one dataset; and which of their cases are quick."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from parity_tests.reference.common import ACTION_DIM, ROWS, STATE_DIM
from shared.data.transitions import Batch

# The cases of a test that `make test` runs, the default settings among them
QUICK_CASES = 2


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks all further cases of a derivation's test as thorough."""
    seen: Counter[tuple[Path, str]] = Counter()
    for item in items:
        if isinstance(item, pytest.Function) and item.path.is_relative_to(Path(__file__).parent):
            seen[item.path, item.originalname] += 1
            if seen[item.path, item.originalname] > QUICK_CASES:
                item.add_marker(pytest.mark.thorough)


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
