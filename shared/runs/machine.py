"""Facts about the machine that a result depends on: hardware, its load, and versions of packages."""

import os
import platform
import subprocess
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

# Where Linux states this process's control group, and the limits of each group
_GROUP, _GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


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


def memory() -> int:
    """The most bytes that this process can use: RAM of the machine or its container, plus swap."""
    limits = [int(text) for path in _limit_files() if (text := _read(path).strip()).isdecimal()]
    return min([psutil.virtual_memory().total, *limits]) + psutil.swap_memory().total


def gpu_memory() -> int:
    """The memory of the largest NVIDIA GPU in bytes; 0 without NVIDIA's driver."""
    return max((int(mebibytes) * 2**20 for mebibytes in _ask("memory.total") if mebibytes.isdecimal()), default=0)


def load() -> float:
    """Processes that ran or waited to run, averaged over the last minute."""
    return os.getloadavg()[0]


def on_threads(number: int) -> dict[str, str]:
    """The environment variables with which a process of either framework uses this many threads."""
    return {"OMP_NUM_THREADS": str(number), "XLA_FLAGS": f"--xla_cpu_multi_thread_eigen={str(number > 1).lower()}"}


class OtherJobs:
    """Measures the processor time that other processes, or other guests, have taken since its creation."""

    def __init__(self) -> None:
        self._busy, self._own, self._begin = *self._seconds(), time.perf_counter()

    def share(self) -> float:
        """Their share of all cores' time, between 0 and 1."""
        busy, own = self._seconds()
        available = (time.perf_counter() - self._begin) * psutil.cpu_count()
        return max(0.0, (busy - self._busy) - (own - self._own)) / available

    @staticmethod
    def _seconds() -> tuple[float, float]:
        """Busy seconds of all cores, and this process's own seconds."""
        machine, own = psutil.cpu_times()._asdict(), psutil.Process().cpu_times()
        idle = ("idle", "iowait", "guest", "guest_nice")  # Linux counts guests as user time too
        return sum(seconds for kind, seconds in machine.items() if kind not in idle), own.user + own.system


def _cpu_model() -> str:
    lines = _read(Path("/proc/cpuinfo")).splitlines()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def _gpus() -> list[str]:
    """Names of the NVIDIA GPUs; empty without NVIDIA's driver."""
    return _ask("name")


def _ask(fact: str) -> list[str]:
    """What NVIDIA's driver answers for each GPU, sizes in MiB; empty without the driver."""
    try:
        query = ["nvidia-smi", f"--query-gpu={fact}", "--format=csv,noheader,nounits"]
        return subprocess.run(query, capture_output=True, text=True, check=True, timeout=10).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []


def _limit_files() -> Iterator[Path]:
    """The files with the memory limits of this process's group and its parent groups, for both versions of cgroups."""
    for line in _read(_GROUP).splitlines():
        _, controllers, name = line.split(":", 2)
        folder, file = _GROUPS, "memory.max"
        if controllers:
            folder, file = _GROUPS / "memory", "memory.limit_in_bytes"
        if controllers and "memory" not in controllers.split(","):
            continue
        group = Path(name.lstrip("/"))
        yield from (folder / around / file for around in (group, *group.parents))


def _read(path: Path) -> str:
    """A file's text; empty if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
