"""The SHA-256 of D4RL's files, by file name: those that the project knows, and those that a user has recorded.

Both tables have `sha256sum`'s format. Therefore `sha256sum --check SHA256SUMS` reads a user's table, and its lines can
be added to the project's table unchanged.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from filelock import FileLock

from shared.errors import InputError
from shared.files import write_atomically
from shared.names import d4rl_folder

_LINE = re.compile(r"([0-9a-f]{64})(?:  | \*)(\S.*)")


def parse(path: Path) -> dict[str, str]:
    """Reads a table; empty lines and comments, from `#` on, are skipped.

    Returns:
        SHA-256 in 64 hexadecimal digits by file name.

    Raises:
        InputError: A line does not have `sha256sum`'s format, or the file is not text.
        OSError: The file cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise InputError(f"{path} is no text: delete it, or write it anew with sha256sum") from None
    table = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        if (parts := _LINE.fullmatch(line.rstrip())) is None:
            raise InputError(f"line {number} of {path} is no line of sha256sum: mend or delete it")
        table[parts[2]] = parts[1]
    return table


KNOWN = parse(Path(__file__).parent.parent / "d4rl_sha256sums.txt")
"""The project's table."""


def user_table() -> Path:
    """The path of a user's own table, in D4RL's folder; it need not exist."""
    return d4rl_folder() / "SHA256SUMS"


def recorded() -> dict[str, str]:
    """The user's table; empty if there is none.

    Raises:
        InputError: The table has the wrong format.
        OSError: The table cannot be read.
    """
    try:
        return parse(user_table())
    except (FileNotFoundError, NotADirectoryError):
        return {}


def known(file_name: str) -> str | None:
    """The SHA-256 of D4RL's file of this name, from the project's table or else the user's; None if in neither.

    Raises:
        InputError: The user's table has the wrong format.
        OSError: The user's table cannot be read.
    """
    return KNOWN.get(file_name) or recorded().get(file_name)


def record(sums: Mapping[str, str]) -> None:
    """Adds SHA-256 sums, as 64 hexadecimal digits by file name, to the user's table; existing entries stay.

    Raises:
        InputError: The table has the wrong format.
        OSError: The table cannot be written.
    """
    path = user_table()
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f"{path.name}.lock")):
        table = {**sums, **recorded()}
        write_atomically(path, "".join(f"{digest}  {name}\n" for name, digest in sorted(table.items())).encode())
