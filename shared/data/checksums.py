"""The SHA-256 of D4RL's files, by file name: those that everyone knows here, and those that a user has recorded.

Both tables are text as `sha256sum` writes it: `sha256sum --check SHA256SUMS` reads a user's, and its lines can go into
the project's as they are.
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
    """Reads a table; empty lines and comments, from `#` on, are passed over.

    Returns:
        SHA-256 in 64 hexadecimal digits by file name.

    Raises:
        InputError: A line is none of `sha256sum`, or the file is no text.
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
    """The user's table; empty where there is none.

    Raises:
        InputError: It cannot be understood.
        OSError: It cannot be read.
    """
    try:
        return parse(user_table())
    except (FileNotFoundError, NotADirectoryError):
        return {}


def known(file_name: str) -> str | None:
    """SHA-256 of D4RL's file of that name if the project knows it, else if the user has recorded it, else None.

    Raises:
        InputError: The user's table cannot be understood.
        OSError: The user's table cannot be read.
    """
    return KNOWN.get(file_name) or recorded().get(file_name)


def record(sums: Mapping[str, str]) -> None:
    """Adds to the user's table: SHA-256 in 64 hexadecimal digits by file name. What is in it stays.

    Raises:
        InputError: The table cannot be understood.
        OSError: The table cannot be written.
    """
    path = user_table()
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f"{path.name}.lock")):
        table = {**sums, **recorded()}
        write_atomically(path, "".join(f"{digest}  {name}\n" for name, digest in sorted(table.items())).encode())
