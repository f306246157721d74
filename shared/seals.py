"""A checksum at the end of a file, in a place where the file's own format has room for it.

The last 71 bytes of a sealed file are `sha256:` and the digest, in hexadecimal, of all bytes before them. PyTorch's
checkpoints and NumPy's `.npz` are ZIP archives: there these bytes are the archive's comment. In MessagePack they are
the last text of its outermost map. So one file, moved into place in one step, carries its own proof, and any other
reader still reads it.
"""

import hashlib
from pathlib import Path

from shared.errors import InputError

_MARK = b"sha256:"
_SIZE = len(_MARK) + 2 * hashlib.sha256().digest_size
# Stands in the place of the seal until all that comes before it is known
BLANK = _MARK.decode() + "0" * (_SIZE - len(_MARK))


def sealed(content: bytes) -> bytes:
    """Content that ends in `BLANK`, with the seal in its place."""
    body = memoryview(content)[:-_SIZE]
    return b"".join([body, _seal(body)])


def sealed_zip(archive: bytes | memoryview) -> bytes:
    """A ZIP archive without a comment, with the seal as its comment."""
    # An archive ends with the length of its comment, in two bytes.
    assert archive[-2:] == bytes(2), "the archive has a comment already"
    body = b"".join([memoryview(archive)[:-2], _SIZE.to_bytes(2, "little")])
    return b"".join([body, _seal(body)])


def read_verified(path: Path) -> bytes:
    """A file's content; one without a seal, older than seals or CORL's, is taken as it is.

    Raises:
        InputError: The seal does not fit the content.
        OSError: The file cannot be read.
    """
    content = path.read_bytes()
    end = content[-_SIZE:]
    if end.startswith(_MARK) and end != _seal(memoryview(content)[:-_SIZE]):
        raise InputError(f"{path} is damaged: its content does not fit its checksum")
    return content


def _seal(body: bytes | memoryview) -> bytes:
    return _MARK + hashlib.sha256(body).hexdigest().encode()
