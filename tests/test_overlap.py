"""Evaluation beside the training, on two simulated devices: the tests of `tests/on_two_devices.py`, in their own process.

JAX learns how many devices a CPU is before it is first used.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_on_two_devices() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/on_two_devices.py"]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"XLA_FLAGS": flags}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
