"""Ctrl-C while a program is still importing its packages."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.interrupts import end_at_once, ended_at_once, raise_again

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def ctrl_c_is_heard() -> Iterator[None]:
    """Makes programs react to Ctrl-C, even if the tests themselves are a shell's background job."""
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, old)


@pytest.mark.parametrize(
    ("command", "loading"),
    [
        (["corl_torch/cql.py"], "torch"),
        (["corl_jax/cql.py"], "jax"),
        (["-m", "corl_twins", "train", "jax", "cql"], "jax"),
        (["-m", "corl_twins", "plot", "runs"], "numpy"),
    ],
)
def test_ends_with_a_line(command: list[str], loading: str) -> None:
    """Python itself reports how far the imports have come."""
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    )
    while f"| {loading}." not in " ".join(process.stderr.readline().decode().split()):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    lines = process.stderr.read().decode().splitlines()
    assert process.wait(timeout=60) == 130
    process.stdout.close()
    process.stderr.close()
    assert [line for line in lines if not line.startswith("import time:")] == ["interrupted"]


def test_raises_again_afterwards() -> None:
    with ended_at_once():
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda number, frame: None])
def test_what_somebody_else_decided_stays(handler: object) -> None:
    signal.signal(signal.SIGINT, handler)
    end_at_once()
    assert signal.getsignal(signal.SIGINT) is handler
    raise_again()
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_twin_that_is_imported_leaves_ctrl_c_alone() -> None:
    """Not even its first import changes the handler."""
    script = "import signal, shared.runs.start; assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
