"""Small files in D4RL's layout, caches separate from the user's, and quick runs."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from matplotlib.figure import Figure

from parity_tests.engine.compilation import hardly_optimised

ROWS = 60


@pytest.fixture(scope="session", autouse=True)
def dataset_folders(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keeps tests away from the user's datasets and from the hosts of D4RL's and Minari's."""
    for variable in ("XDG_CACHE_HOME", "D4RL_DATASET_DIR", "MINARI_DATASETS_PATH"):
        os.environ[variable] = str(tmp_path_factory.mktemp(variable.lower()))
    os.environ.update({"D4RL_DATASET_URL": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "1"})


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Headless Chromium."""
    from tests.browsing import headless

    with headless(tmp_path_factory.mktemp("profile")) as chrome:
        yield chrome


@pytest.fixture(scope="module")
def in_haste() -> Iterator[None]:
    """Compiles JAX's programs faster and leaves curves empty, for files that need neither speed nor a picture.

    In a PyTorch run of a few updates, drawing takes a third of the time.
    """
    with hardly_optimised(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda *_, **__: None)
        yield


@pytest.fixture
def write_hdf5(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file shaped like Hopper's data; keywords replace arrays, None leaves one out.

    It contains six episodes of ten rows, which end alternately with a terminal and a timeout.
    """

    def write(attributes: dict[str, Any] | None = None, **arrays: Any) -> Path:
        rng = np.random.default_rng(0)
        content = {
            "observations": rng.normal(size=(ROWS, 11)).astype(np.float32),
            "actions": rng.uniform(-1, 1, size=(ROWS, 3)).astype(np.float32),
            "rewards": rng.normal(1, 1, size=ROWS).astype(np.float32),
            "terminals": np.arange(ROWS) % 20 == 9,
            "timeouts": np.arange(ROWS) % 20 == 19,
        }
        path = tmp_path / "hopper.hdf5"
        with h5py.File(path, "w") as file:
            for key, values in (content | arrays).items():
                if values is not None:
                    file[key] = values
            file.attrs.update({"env_id": "d4rl/hopper-v2"} if attributes is None else attributes)
        return path

    return write
