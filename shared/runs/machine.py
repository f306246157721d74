"""What a result depends on besides its settings: hardware, its load, and versions of packages."""

import os
import platform
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python and of these installed packages."""
    return {"python": platform.python_version(), **{package: version(package) for package in packages}}


def hardware() -> dict[str, Any]:
    """Processor, cores, memory (GiB) and GPUs of this machine."""
    return {
        "machine": platform.platform(),
        "cpu": _cpu_model(),
        "cores": psutil.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpus": _gpus(),
    }


def load() -> float:
    """Processes that ran or waited to run, averaged over the last minute."""
    return os.getloadavg()[0]


class OtherJobs:
    """How much of the machine's processor time others took since this was made: other processes, or other guests."""

    def __init__(self) -> None:
        self._busy, self._own, self._begin = *self._seconds(), time.perf_counter()

    def share(self) -> float:
        """Between 0 and 1, of all cores."""
        busy, own = self._seconds()
        available = (time.perf_counter() - self._begin) * psutil.cpu_count()
        return max(0.0, (busy - self._busy) - (own - self._own)) / available

    @staticmethod
    def _seconds() -> tuple[float, float]:
        """Busy seconds of all cores, and this process's own."""
        machine, own = psutil.cpu_times()._asdict(), psutil.Process().cpu_times()
        idle = ("idle", "iowait", "guest", "guest_nice")  # Linux counts guests as user time too
        return sum(seconds for kind, seconds in machine.items() if kind not in idle), own.user + own.system


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def _gpus() -> list[str]:
    """Names of NVIDIA's GPUs; none without its driver."""
    try:
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, check=True, timeout=10).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []
