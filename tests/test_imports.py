"""A twin needs only its own framework, whatever it uses from `shared/`."""

import subprocess
import sys
from pathlib import Path

import pytest

from shared.frameworks.twins import algorithms

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.thorough
@pytest.mark.parametrize(("side", "other"), [("torch", "jax"), ("jax", "torch")])
def test_no_twin_loads_the_other_framework(side: str, other: str) -> None:
    names = algorithms(side)
    assert len(names) >= 11
    load = "from shared.frameworks.twins import load_twin"
    lines = ["import sys", load, *(f"load_twin({side!r}, {name!r})" for name in names)]
    script = "\n".join([*lines, f"assert {other!r} not in sys.modules"])
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
