"""The flat copies of large datasets equal the data that was read, and are never out of date or damaged."""

import hashlib
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import jax
import numpy as np
import pytest

from shared.data import cache, sources
from shared.data.cache import Source
from shared.data.rewards import CorlRewards
from shared.frameworks import jax_side
from shared.runs.task import Preparation, load_task
from tests.runs.test_task import Config

WriteHDF5 = Callable[..., Path]
ROWS = 60


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder that stores datasets of 60 rows or more."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "LARGE", ROWS)
    return tmp_path / "cache" / "corl-twins" / "datasets"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Paths of the files that were read, in order."""
    paths = []

    def read(path: Path, read_hdf5: Callable = sources.read_hdf5) -> dict[str, np.ndarray]:
        paths.append(path)
        return read_hdf5(path)

    monkeypatch.setattr(sources, "read_hdf5", read)
    return paths


def assert_equal(actual: Source, expected: Source) -> None:
    assert actual._replace(raw={}) == expected._replace(raw={})
    assert list(actual.raw) == list(expected.raw)
    for key, values in expected.raw.items():
        assert actual.raw[key].dtype == values.dtype, key
        np.testing.assert_array_equal(actual.raw[key], values, err_msg=key)


def test_the_second_start_reads_the_flat_copy(write_hdf5: WriteHDF5, reads: list[Path], own_cache: Path) -> None:
    path = write_hdf5({"env_id": "d4rl/hopper-v2", "expert_return_mean": 3000.5, "of": b"bytes"})
    first = sources.read(str(path))
    assert first.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert first.attributes == {"env_id": "d4rl/hopper-v2", "expert_return_mean": 3000.5, "of": "bytes"}
    assert_equal(sources.read(str(path)), first)
    assert reads == [path]
    assert len(list(own_cache.iterdir())) == 1


def test_small_datasets_are_not_kept(write_hdf5: WriteHDF5, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "LARGE", ROWS + 1)
    sources.read(str(write_hdf5()))
    assert not own_cache.exists()


def test_a_changed_file_is_read_again_and_replaces_the_copy(
    write_hdf5: WriteHDF5, reads: list[Path], own_cache: Path
) -> None:
    path = write_hdf5()
    sources.read(str(path))
    before = path.stat()
    write_hdf5(rewards=np.arange(ROWS, dtype=np.float32))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # as a copy that keeps times would have it
    assert path.stat().st_size == before.st_size
    assert sources.read(str(path)).raw["rewards"].tolist() == list(range(ROWS))
    assert sources.read(str(path)).raw["rewards"].tolist() == list(range(ROWS))
    assert len(reads) == 2
    assert len(list(own_cache.iterdir())) == 1


def test_a_copy_of_another_version_is_read_again(
    write_hdf5: WriteHDF5, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(write_hdf5())
    sources.read(path)
    monkeypatch.setattr(cache, "_VERSION", cache._VERSION + 1)
    sources.read(path)
    assert len(reads) == 2


@pytest.mark.parametrize("damage", ["empty", "short", "flipped", "folder"])
def test_a_damaged_copy_is_read_again_silently(
    write_hdf5: WriteHDF5, reads: list[Path], own_cache: Path, damage: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_hdf5()
    first = sources.read(str(path))
    entry = next(own_cache.iterdir())
    content = bytearray(entry.read_bytes())
    place = content.find(first.raw["observations"].tobytes())
    if damage == "folder":
        entry.unlink()
        entry.mkdir()
    else:
        content[place + 8] ^= 1
        entry.write_bytes({"empty": b"", "short": content[:-50], "flipped": content}[damage])
    assert_equal(sources.read(str(path)), first)
    assert len(reads) == 2
    assert capfd.readouterr() == ("", "")
    assert [left.suffix for left in own_cache.iterdir()] == [".npz"]


def test_a_cache_that_cannot_be_written_costs_time_only(
    write_hdf5: WriteHDF5, reads: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "cache").touch()
    path = str(write_hdf5())
    assert_equal(sources.read(path), sources.read(path))
    assert len(reads) == 2


def test_a_full_disk_leaves_no_half_of_a_copy(write_hdf5: WriteHDF5, own_cache: Path) -> None:
    path = str(write_hdf5())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))  # bytes of a file; writing more is an OSError
    try:
        sources.read(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(own_cache.iterdir()) == []


def test_the_time_limit_is_that_of_the_name_not_of_the_copy(
    write_hdf5: WriteHDF5, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path))
    path = write_hdf5().rename(tmp_path / "hopper_medium-v2.hdf5")
    assert sources.read("hopper-medium-v2").max_episode_steps == 1000
    assert sources.read(str(path)).max_episode_steps is None
    assert sources.read("hopper-medium-v2").max_episode_steps == 1000


@pytest.mark.thorough
def test_the_second_start_with_a_million_transitions_takes_less_than_two_thirds_of_the_first(tmp_path: Path) -> None:
    """The share of the first start, because the seconds depend on the processor."""
    rows, rng = 1_000_000, np.random.default_rng(0)
    path = tmp_path / "halfcheetah.hdf5"
    with h5py.File(path, "w") as file:
        for key, size in (("observations", 17), ("actions", 6)):
            values = rng.integers(0, 16, size=(rows, size)).astype(np.float32)
            file.create_dataset(key, data=values, compression="gzip", compression_opts=1)
        file["rewards"] = rng.normal(size=rows).astype(np.float32)
        file["terminals"] = np.arange(rows) % 2000 == 777
        file["timeouts"] = np.arange(rows) % 1000 == 999
    config = Config(env=str(path), eval_env="d4rl/halfcheetah-v2")
    seconds = []
    for _ in range(3):
        # This process's own time, which other jobs on the machine do not change
        start = time.process_time()
        task = load_task(config, Preparation(rewards=CorlRewards()))
        seconds.append(time.process_time() - start)
        task.evaluator.close()
    print(f"a million transitions: {seconds[0]:.2f} s at the first start, {min(seconds[1:]):.2f} s at later ones")
    assert len(task.dataset.rewards) == rows - 1000
    assert min(seconds[1:]) < seconds[0] * 2 / 3


@pytest.mark.parametrize("chosen", ["", ".", "cache"])
def test_the_caches_lie_in_no_working_folder(chosen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor that of compiled programs: only an absolute path counts."""
    monkeypatch.setenv("XDG_CACHE_HOME", chosen)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    given: dict[str, Any] = {}
    monkeypatch.setattr(jax.config, "update", given.__setitem__)
    jax_side.enable_compilation_cache()
    assert given["jax_compilation_cache_dir"] == str(tmp_path / ".cache" / "corl-twins" / "jax")
    assert cache.folder() == tmp_path / ".cache" / "corl-twins" / "datasets"
