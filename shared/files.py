"""Writing files so that a reader, or a crash, never meets half of one."""

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file beside its final place, then moves it there in one step; makes missing folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    os.replace(partial, path)
