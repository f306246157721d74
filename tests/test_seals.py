"""Checksums in checkpoints: any changed byte is found, and any other reader can still read the file."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgpack
import numpy as np
import pytest
import torch
from flax import serialization

from shared.errors import InputError
from shared.seals import BLANK, read_verified, sealed, sealed_zip


def of_torch() -> bytes:
    content = io.BytesIO()
    torch.save({"weight": torch.arange(100.0), "total_it": 3}, content)
    return sealed_zip(content.getbuffer())


def of_numpy() -> bytes:
    content = io.BytesIO()
    np.savez(content, rewards=np.arange(100.0))
    return sealed_zip(content.getbuffer())


def of_jax() -> bytes:
    return sealed(serialization.msgpack_serialize({"weight": np.arange(100.0), "seal": BLANK}, in_place=True))


KINDS = [of_torch, of_numpy, of_jax]


def test_other_readers_read_the_file(tmp_path: Path) -> None:
    """PyTorch's, Python's for archives, NumPy's and MessagePack's own."""
    path = tmp_path / "file"
    path.write_bytes(of_torch())
    assert torch.equal(torch.load(path, weights_only=True)["weight"], torch.arange(100.0))
    assert zipfile.ZipFile(path).testzip() is None
    path.write_bytes(of_numpy())
    assert np.load(path)["rewards"].tolist() == list(range(100))
    assert msgpack.unpackb(of_jax())["seal"].startswith("sha256:")


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_file_is_read(kind: Callable[[], bytes], tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(kind())
    assert read_verified(path) == kind()


@pytest.mark.parametrize("kind", KINDS)
def test_any_changed_byte_is_found(kind: Callable[[], bytes], tmp_path: Path) -> None:
    """Wherever it is, except in the mark itself, without which a file counts as older than seals."""
    content, path = kind(), tmp_path / "file"
    mark = range(len(content) - 71, len(content) - 64)
    places = sorted({0, len(content) - 1, len(content) - 64, mark[0] - 1, *range(0, len(content), 37)} - {*mark})
    for place in places:
        damaged = bytearray(content)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(InputError, match="damaged: its content does not fit its checksum"):
            read_verified(path)


def test_a_file_without_a_seal_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"older")
    assert read_verified(path) == b"older"


def test_an_archive_with_a_comment_is_not_sealed() -> None:
    with pytest.raises(AssertionError, match="comment already"):
        sealed_zip(of_torch()[:-1] + b"x")
