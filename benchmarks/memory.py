"""Measures the peak memory of a process, as Linux reports it."""

import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

# The time between two looks at another process
_SECONDS = 0.05


def forget_peak() -> None:
    """Resets the peak of this process."""
    Path("/proc/self/clear_refs").write_text("5")


def peak(process: int | str = "self") -> float:
    """The peak memory of a process, given by its number, in GiB; 0 if it has just ended."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    return int(found[1]) / 2**20 if found else 0.0


def watched(command: list[str], folder: Path, environment: Mapping[str, str]) -> float:
    """Runs a command without its output, and returns the peak memory of its process, in GiB.

    `wait4` would include the process that started it.

    Raises:
        subprocess.CalledProcessError: The command failed.
    """
    highest = 0.0
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            highest = max(highest, peak(process.pid))
            time.sleep(_SECONDS)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return highest
