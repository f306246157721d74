"""What the exercises' tests share: the two fragments of their folder, in double precision.

A test that fails says one sentence. `--tb=short`, or any other style, shows the traceback.
"""

import importlib.util
from collections.abc import Generator, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from parity_tests.engine.precision import both_in

SOLUTIONS = Path(__file__).parent / "solutions"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--solution`."""
    parser.addoption("--solution", action="store_true", help="test exercises/solutions in place of your exercise.py")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """The report of a test, with a sentence in place of its traceback, unless somebody asked for that."""
    report = yield
    if call.excinfo is not None and report.failed and item.config.option.tbstyle == "auto":
        report.longrepr = sentence(call.excinfo)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how to see more."""
    if terminalreporter.stats.get("failed") and terminalreporter.config.option.tbstyle == "auto":
        terminalreporter.write_line("--tb=short shows where it happened")


def sentence(raised: pytest.ExceptionInfo) -> str:
    """What went wrong, in one line: what the test asserts in words, or the exception and where it was raised."""
    lines = [line.strip() for line in str(raised.value).splitlines()]
    # NumPy puts its own heading before the words.
    heard = [line for line in lines if line and not line.startswith(("Arrays are not", "Not equal to tolerance"))]
    first = heard[0] if heard else ""
    if raised.errisinstance(AssertionError) and first:
        return first
    places = [entry for entry in raised.traceback if entry.path.name == "exercise.py"]
    where = f", in line {places[-1].lineno + 1} of exercise.py" if places else ""
    return f"{raised.typename}{first and ': '}{first}{where}"


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
    """The port, in most exercises the JAX fragment: yours, or with `--solution` ours."""
    folder = request.path.parent
    solved = request.config.getoption("--solution")
    return load(SOLUTIONS / f"{folder.name}.py" if solved else folder / "exercise.py")


@pytest.fixture
def fragment(request: pytest.FixtureRequest) -> ModuleType:
    """The PyTorch fragment."""
    return load(request.path.parent / "torch_fragment.py")


@pytest.fixture
def reference(request: pytest.FixtureRequest) -> ModuleType:
    """The JAX fragment, where the exercise is to port it to PyTorch."""
    return load(request.path.parent / "jax_fragment.py")
