"""What the exercises' tests share: the two fragments of their folder, in double precision."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from parity_tests.precision import both_in

SOLUTIONS = Path(__file__).parent / "solutions"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--solution`."""
    parser.addoption("--solution", action="store_true", help="test exercises/solutions in place of your exercise.py")


def load(path: Path) -> ModuleType:
    """The file as a module of its own: every folder has files of the same names."""
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    """So that differences are the exercise's own, not rounding."""
    with both_in("float64"):
        yield


@pytest.fixture
def exercise(request: pytest.FixtureRequest) -> ModuleType:
    """The JAX fragment: yours, or with `--solution` ours."""
    folder = request.path.parent
    solved = request.config.getoption("--solution")
    return load(SOLUTIONS / f"{folder.name}.py" if solved else folder / "exercise.py")


@pytest.fixture
def fragment(request: pytest.FixtureRequest) -> ModuleType:
    """The PyTorch fragment."""
    return load(request.path.parent / "torch_fragment.py")
