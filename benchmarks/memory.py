"""The most memory that a process has had, as Linux tells it."""

import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

# Between two looks at another process
_SECONDS = 0.05


def forget_peak() -> None:
    """From here on the peak of this process counts anew."""
    Path("/proc/self/clear_refs").write_text("5")


def peak(process: int | str = "self") -> float:
    """Of a process, by its number, in GiB; 0 where it has just ended."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    return int(found[1]) / 2**20 if found else 0.0


def watched(command: list[str], folder: Path, environment: Mapping[str, str]) -> float:
    """Runs a command, whose output goes nowhere; the most memory that its process had, in GiB.

    What `wait4` says of it would count the process that started it, too.

    Raises:
        subprocess.CalledProcessError: It failed.
    """
    highest = 0.0
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            highest = max(highest, peak(process.pid))
            time.sleep(_SECONDS)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return highest
