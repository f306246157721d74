"""The flat copies of large datasets: equal to what was read, and never older or worse than it."""

import hashlib
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from shared import cache, sources
from shared.cache import Source

WriteHDF5 = Callable[..., Path]
ROWS = 60


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder that keeps datasets of 60 rows."""
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


def test_a_million_transitions_are_there_within_a_second_at_the_second_start(tmp_path: Path) -> None:
    raw = {
        "observations": np.zeros((1_000_000, 17), np.float32),
        "actions": np.zeros((1_000_000, 6), np.float32),
        "rewards": np.zeros(1_000_000, np.float32),
        "terminals": np.zeros(1_000_000, bool),
        "timeouts": np.zeros(1_000_000, bool),
    }
    file = tmp_path / "large.hdf5"
    file.write_bytes(b"large")
    cache.cached([file], lambda: Source(raw, {}))
    start = time.perf_counter()
    kept = cache.cached([file], lambda: pytest.fail("the copy was not used"))
    assert time.perf_counter() - start < 1
    assert kept.raw["observations"].shape == (1_000_000, 17)
