"""A checksum at the end of a file, in a place that the file's own format allows.

The last 71 bytes of a sealed file are `sha256:` and the digest, in hexadecimal, of all bytes before them. In PyTorch's
checkpoints and NumPy's `.npz`, which are ZIP archives, these bytes are the archive's comment. In MessagePack they are
the last text of the outermost map. Therefore a single file, renamed in one step, contains its own checksum, and other
readers can still read it.
"""

import hashlib
from pathlib import Path

from shared.errors import InputError

_MARK = b"sha256:"
_SIZE = len(_MARK) + 2 * hashlib.sha256().digest_size
# Placeholder for the seal until all bytes before it are known
BLANK = _MARK.decode() + "0" * (_SIZE - len(_MARK))


def sealed(content: bytes) -> bytes:
    """Replaces the `BLANK` at the end of the content by the seal."""
    body = memoryview(content)[:-_SIZE]
    return b"".join([body, _seal(body)])


def sealed_zip(archive: bytes | memoryview) -> bytes:
    """Adds the seal to a ZIP archive without a comment, as its comment."""
    # An archive ends with the length of its comment, in two bytes.
    assert archive[-2:] == bytes(2), "the archive has a comment already"
    body = b"".join([memoryview(archive)[:-2], _SIZE.to_bytes(2, "little")])
    return b"".join([body, _seal(body)])


def read_verified(path: Path) -> bytes:
    """Reads a file and checks its seal; files without one, from before seals or from CORL, are accepted.

    Raises:
        InputError: The seal does not match the content.
        OSError: The file cannot be read.
    """
    content = path.read_bytes()
    end = content[-_SIZE:]
    if end.startswith(_MARK) and end != _seal(memoryview(content)[:-_SIZE]):
        raise InputError(f"{path} is damaged: its content does not fit its checksum")
    return content


def _seal(body: bytes | memoryview) -> bytes:
    return _MARK + hashlib.sha256(body).hexdigest().encode()
