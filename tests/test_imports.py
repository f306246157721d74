"""A twin needs its own framework alone, whatever it takes from `shared/`."""

import subprocess
import sys
from pathlib import Path

import pytest

from shared.frameworks.twins import algorithms

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(("side", "other"), [("torch", "jax"), ("jax", "torch")])
def test_no_twin_loads_the_other_framework(side: str, other: str) -> None:
    names = algorithms(side)
    assert len(names) >= 11
    lines = [
        "import sys",
        *(f"import corl_{side}.{name}".replace("/", ".") for name in names),
        f"assert {other!r} not in sys.modules",
    ]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=ROOT, check=True)
