"""What a result depends on besides its settings: hardware, its load, and versions of packages."""

import os
import platform
import subprocess
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
