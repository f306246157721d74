"""HDF5 files that lie, point elsewhere or are damaged: refused in one line, with little memory and without a trace."""

import itertools
import multiprocessing
import re
import resource
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from shared.data import cache, hdf5, sources, transitions
from shared.errors import InputError

ROWS = 60
MEGABYTE = 2**20
KEYS = ("observations", "actions", "rewards", "terminals", "timeouts")


def terabytes_unwritten(file: h5py.File, _: Path) -> None:
    file.create_dataset("observations", shape=(10**11, 17), dtype="f4", chunks=(1000, 17))


def more_than_can_be_packed(file: h5py.File, _: Path) -> None:
    array = file.create_dataset("observations", shape=(10**8, 17), dtype="f4", chunks=(10**5, 17), compression="gzip")
    array[:100_000] = 0


def more_than_the_limit(file: h5py.File, _: Path) -> None:
    """Plausible for the stored bytes of each array, but too much in total."""
    packed = zlib.compress(bytes(4 * 10**6))
    for key in ("observations", "actions"):
        array = file.create_dataset(key, shape=(10**6 * 1200, 1), dtype="f4", chunks=(10**6, 1), compression="gzip")
        for chunk in range(1200):
            array.id.write_direct_chunk((chunk * 10**6, 0), packed)


def a_chunk_that_unpacks_to_far_more(file: h5py.File, _: Path) -> None:
    array = file.create_dataset("observations", shape=(ROWS, 11), dtype="f4", chunks=(ROWS, 11), compression="gzip")
    packer = zlib.compressobj(9)
    parts = [packer.compress(bytes(16 * MEGABYTE)) for _ in range(8)]
    array.id.write_direct_chunk((0, 0), b"".join([*parts, packer.flush()]))


def a_chunk_larger_than_its_array(file: h5py.File, _: Path) -> None:
    settings = {"maxshape": (None, 11), "chunks": (2 * 10**6, 11), "compression": "gzip"}
    array = file.create_dataset("observations", shape=(ROWS, 11), dtype="f4", **settings)
    array.id.write_direct_chunk((0, 0), zlib.compress(bytes(88 * 10**6), 1))


def a_soft_link_to_nothing(file: h5py.File, _: Path) -> None:
    file["observations"] = h5py.SoftLink("/nothing")


def a_link_to_another_file(file: h5py.File, folder: Path) -> None:
    with h5py.File(folder / "private.hdf5", "w") as private:
        private["observations"] = np.zeros((ROWS, 11))
    file["observations"] = h5py.ExternalLink(str(folder / "private.hdf5"), "/observations")


def bytes_of_another_file(file: h5py.File, folder: Path) -> None:
    (folder / "private").write_bytes(bytes(ROWS * 11 * 4))
    where = [(str(folder / "private"), 0, ROWS * 11 * 4)]
    file.create_dataset("observations", shape=(ROWS, 11), dtype="f4", external=where)


def a_view_of_another_file(file: h5py.File, folder: Path) -> None:
    a_link_to_another_file(file, folder)
    del file["observations"]
    layout = h5py.VirtualLayout(shape=(ROWS, 11), dtype="f8")
    layout[:] = h5py.VirtualSource(folder / "private.hdf5", "observations", shape=(ROWS, 11))
    file.create_virtual_dataset("observations", layout)


def array_of(values: Any, dtype: Any = None) -> Callable[[h5py.File, Path], None]:
    """Observations of these values, which no algorithm can learn from."""

    def wrong(file: h5py.File, _: Path) -> None:
        file["observations"] = values if dtype is None else np.zeros((ROWS, 11), dtype)

    return wrong


def rows_of_any_length(file: h5py.File, _: Path) -> None:
    array = file.create_dataset("observations", shape=(ROWS,), dtype=h5py.vlen_dtype(np.float32))
    array[0] = np.zeros(11, np.float32)


HOSTILE: dict[str, tuple[Callable[[h5py.File, Path], None], str]] = {
    "terabytes unwritten": (terabytes_unwritten, "declares 6,800,000,000,000 bytes but 0 are stored"),
    "more than can be packed": (more_than_can_be_packed, "declares 6,800,000,000 bytes but"),
    "more than the limit": (
        more_than_the_limit,
        "declares 9,600,001,440 bytes of arrays; split it below 8,589,934,592",
    ),
    "a chunk that unpacks to far more": (a_chunk_that_unpacks_to_far_more, "for a chunk of 2,640: write it again"),
    "a chunk larger than its array": (
        a_chunk_larger_than_its_array,
        "has chunks of 88,000,000 bytes, more than the array",
    ),
    "a soft link": (a_soft_link_to_nothing, "observations is a link to elsewhere"),
    "a link to another file": (a_link_to_another_file, "observations is a link to elsewhere"),
    "bytes of another file": (bytes_of_another_file, "keeps its values in other files"),
    "a view of another file": (a_view_of_another_file, "keeps its values in other files"),
    "rows of any length": (rows_of_any_length, "observations holds object; write it as numbers"),
    "complex numbers": (array_of(None, complex), "observations holds complex128; write it as numbers"),
    "nothing": (array_of(h5py.Empty("f4")), r"observations has shape \(\)"),
    "no rows": (array_of(np.zeros((0, 11))), "arrays of unequal length"),
    "a type in place of an array": (array_of(np.dtype("f4")), "no array 'observations'"),
}


def write(folder: Path, spoil: Callable[[h5py.File, Path], None]) -> Path:
    """Writes a good file, then lets `spoil` write its observations or more."""
    path = folder / f"{spoil.__name__}.hdf5"
    good = {"actions": np.zeros((ROWS, 3)), **{key: np.zeros(ROWS) for key in KEYS[2:]}}
    with h5py.File(path, "w") as file:
        spoil(file, folder)
        for key, values in good.items():
            if key not in file:
                file[key] = values
    return path


def read_on_request(pipe: Connection) -> None:
    """Runs in a process of its own; for each path it sends the bytes by which its peak rose, and its message."""
    cache.LARGE = 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    while (path := pipe.recv()) is not None:
        try:
            sources.read(path)
            message = None
        except InputError as error:
            message = str(error)
        pipe.send(((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024, message))


@pytest.fixture(scope="module")
def reader() -> Iterator[Connection]:
    """The process that reads; it receives a path and sends memory and message."""
    pipe, far_end = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=read_on_request, args=(far_end,))
    process.start()
    yield pipe
    pipe.send(None)
    process.join(60)


@pytest.mark.parametrize(("spoil", "says"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_refused_in_one_line_and_little_memory(
    spoil: Callable[[h5py.File, Path], None], says: str, tmp_path: Path, reader: Connection
) -> None:
    path = write(tmp_path, spoil)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    reader.send(str(path))
    assert reader.poll(60)
    grown, message = reader.recv()
    assert message is not None, "the file was read"
    assert re.search(says, message), message
    assert "\n" not in message
    assert grown < 50 * MEGABYTE
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_good_files_of_every_layout_are_read(tmp_path: Path) -> None:
    layouts: dict[str, dict[str, Any]] = {
        "plain": {},
        "chunks": {"chunks": (7, 11)},
        "gzip": {"compression": "gzip", "compression_opts": 9, "shuffle": True},
        "lzf": {"compression": "lzf", "fletcher32": True},
        "growing": {"maxshape": (None, 11)},
    }
    for (name, layout), values in itertools.product(layouts.items(), (np.zeros((ROWS, 11)), np.eye(ROWS, 11))):

        def good(file: h5py.File, _: Path, values: np.ndarray = values, layout: dict[str, Any] = layout) -> None:
            file.create_dataset("observations", data=values, **layout)

        np.testing.assert_array_equal(
            transitions.read_hdf5(write(tmp_path, good))["observations"], values, err_msg=name
        )


def test_zeros_that_pack_as_tightly_as_can_be_are_read(tmp_path: Path) -> None:
    """D4RL's mazes have a million terminals, all of them 0."""
    path = tmp_path / "zeros.hdf5"
    with h5py.File(path, "w") as file:
        for key in KEYS:
            shape = (10**6, 2) if key in KEYS[:2] else (10**6,)
            options = {"compression": "gzip", "compression_opts": 9, "chunks": shape}
            file.create_dataset(key, data=np.zeros(shape, np.float32), **options)
    assert not any(values.any() for values in transitions.read_hdf5(path).values())


def test_attributes_other_than_plain_ones_are_left_out(write_hdf5: Callable[..., Path]) -> None:
    plain = {"env_id": "Hopper-v4", "fixed": np.bytes_(b"text"), "number": 3, "flag": np.True_}
    path = write_hdf5({**plain, "list": [1, 2], "nothing": h5py.Empty("f4"), "texts": ["a", "b"]})
    with h5py.File(path, "a") as file:
        file.attrs["reference"] = file["actions"].ref
    assert hdf5.read_attributes(path) == {"env_id": "Hopper-v4", "fixed": "text", "number": 3, "flag": True}


def test_flipped_and_missing_bytes_are_refused_or_harmless(write_hdf5: Callable[..., Path]) -> None:
    path = write_hdf5()
    content, rng = path.read_bytes(), np.random.default_rng(0)
    refusals = []
    for attempt in range(200):
        damaged = bytearray(content)
        for place in rng.integers(0, len(content), 1 + attempt % 8):
            damaged[place] ^= 1 << int(rng.integers(8))
        # The first bytes describe the rest, so damage there affects the most code.
        damaged[int(rng.integers(0, 4096))] = int(rng.integers(256))
        if attempt % 5 == 0:
            del damaged[int(rng.integers(len(damaged))) :]
        path.write_bytes(damaged)
        try:
            raw = transitions.read_hdf5(path)
            hdf5.read_attributes(path)
            assert len({len(values) for values in raw.values()}) == 1
        except InputError as error:
            refusals.append(str(error))
    assert len(refusals) > 50
    assert not any("\n" in refusal for refusal in refusals)


def test_a_file_that_another_process_writes_is_locked(write_hdf5: Callable[..., Path]) -> None:
    path = write_hdf5()
    code = "import h5py, sys; file = h5py.File(sys.argv[1], 'a'); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        writer.stdout.readline()
        with pytest.raises(InputError, match="is locked: another process is writing it; wait") as caught:
            sources.read(str(path))
        writer.stdin.close()
    assert "\n" not in str(caught.value)
    assert "truncated" not in str(caught.value)
    sources.read(str(path))


@pytest.mark.parametrize(("code", "words"), [(32015, "zstd"), (32001, "blosc"), (32026, "blosc2"), (300, "number 300")])
def test_a_filter_that_is_not_installed_is_named(code: int, words: str, tmp_path: Path) -> None:
    """Along with the package that provides it, if there is one."""

    def packed(file: h5py.File, _: Path) -> None:
        space, settings = h5py.h5s.create_simple((ROWS, 11)), h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        settings.set_chunk((ROWS, 11))
        settings.set_filter(code, h5py.h5z.FLAG_OPTIONAL, (3,))
        array = h5py.h5d.create(file.id, b"observations", h5py.h5t.IEEE_F32LE, space, settings)
        array.write_direct_chunk((0, 0), b"packed", 0)

    if h5py.h5z.filter_avail(code):
        pytest.skip("the filter is installed")
    with pytest.raises(
        InputError, match=f"observations is packed by the HDF5 filter {words}, which is missing"
    ) as caught:
        sources.read(str(write(tmp_path, packed)))
    assert str(caught.value).endswith("with gzip" if code == 300 else "pip install hdf5plugin")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"PK\x03\x04", "is an archive, as NumPy's .npz files are"),
        (b"version https://git-lfs.github.com/spec/v1", "`git lfs pull`"),
        (b"<!doctype html>", "is a page of a web site"),
        (b"anything else", "is truncated or not an HDF5 file"),
    ],
)
def test_what_is_no_hdf5_file_is_named_for_what_it_is(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "own.hdf5").write_bytes(content)
    with pytest.raises(InputError) as caught:
        sources.read(str(tmp_path / "own.hdf5"))
    assert words in str(caught.value)
