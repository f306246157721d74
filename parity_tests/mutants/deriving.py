"""A mutant of a PyTorch twin against the second derivation of its updates: the first reference test that fails.

pytest collects the tests of a derivation once, with their parameters and fixtures. Then it runs them with one mutant
after the other in the twin's place.
"""

import contextlib
import io
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from parity_tests import conftest as of_the_pairs
from parity_tests.mutants.operators import Mutant
from parity_tests.mutants.planting import ENDLESS, IMPORT, PATIENCE, EndlessError, limited, lines_of, planted
from parity_tests.mutants.twins import SURVIVED, source_of
from parity_tests.pairs import PAIRS
from parity_tests.reference import conftest as of_the_derivations

FOLDER = Path(of_the_derivations.__file__).parent
# Pairs whose derivations stand in one file
TOGETHER = {
    "sac_n": "ensembles",
    "edac": "ensembles",
    "lb_sac": "ensembles",
    "prdc": "deterministic",
    "online/ddpg": "deterministic",
    "online/td3": "deterministic",
}
# Tests that plant mistakes of their own say so in their names.
OPTIONS = ("--noconftest", "-m", "", "-k", "not caught", "-s", "-o", "tmp_path_retention_policy=none")
WITHOUT = ("cacheprovider", "terminal", "warnings", "logging", "timeout", "xdist", "benchmark", "junitxml")


def climb(name: str, mutants: Sequence[Mutant], tell: Callable[[Mutant, str], None]) -> None:
    """Runs each mutant of a pair's PyTorch twin, and tells the test that notices it; empty: it survives.

    pytest collects the derivation's tests, and a plugin runs them.
    """
    options = [str(derivation_of(name)), *OPTIONS, *(f"-pno:{plugin}" for plugin in WITHOUT)]
    # Another pytest's end removes folders that none keeps from where they stand by default.
    with tempfile.TemporaryDirectory() as folder:
        options.append(f"--basetemp={folder}/tests")
        code = pytest.main(options, plugins=[of_the_pairs, of_the_derivations, _Derivation(name, mutants, tell)])
    assert code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), f"pytest ended with {code!r}"


def derivation_of(name: str) -> Path:
    """The file of a pair's second derivation."""
    return FOLDER / f"test_{TOGETHER.get(name, name.replace('/', '_'))}.py"


class _Derivation:
    """A plugin that runs the collected tests in its own way."""

    def __init__(self, name: str, mutants: Sequence[Mutant], tell: Callable[[Mutant, str], None]) -> None:
        self.name, self.mutants, self.tell = name, mutants, tell
        # What a test ended with, and the lines of the twin that each test comes by
        self.error: BaseException | None = None
        self.passed: dict[pytest.Item, frozenset[int]] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """In place of pytest's own loop."""
        self.passed = self.measured(session.items)
        for mutant in self.mutants:
            self.tell(mutant, self.noticed(mutant, session.items))
        # A test that fails whatever the twin notices nothing.
        for item in session.items:
            self.passes(item, session.items, PAIRS[self.name].torch)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo) -> pytest.TestReport:
        """Keeps the error, be it of the test, of what it needs or of what comes after it; nothing is formatted."""
        assert call.when != "collect"
        if call.excinfo is None:
            return pytest.TestReport(item.nodeid, item.location, {}, "passed", None, call.when)
        self.error = call.excinfo.value
        return pytest.TestReport(item.nodeid, item.location, {}, "failed", None, call.when)

    def measured(self, items: Sequence[pytest.Item]) -> dict[pytest.Item, frozenset[int]]:
        """The lines of the twin that each test comes by; those that come by none are left out, the fastest is first."""
        seconds, passed = {}, {}
        twin = planted(f"the twin {self.name}", source_of(self.name, "torch"))
        for item in items:
            begin = time.perf_counter()
            with lines_of(twin.__name__) as lines:
                self.passes(item, items, twin)
            seconds[item], passed[item] = time.perf_counter() - begin, frozenset(lines)
        return {item: passed[item] for item in sorted(items, key=lambda item: seconds[item]) if passed[item]}

    def passes(self, item: pytest.Item, items: Sequence[pytest.Item], twin: ModuleType) -> None:
        """Asserts that a test passes with the right twin."""
        self.run(item, items, twin)
        assert self.error is None, f"{item.name}: {self.error}"

    def noticed(self, mutant: Mutant, items: Sequence[pytest.Item]) -> str:
        """The first test that notices the mutant, the fastest first; those that never come by its line are left out."""
        try:
            twin = planted(f"a mutant of {self.name}", mutant.applied(source_of(self.name, "torch")))
        except Exception:
            return IMPORT
        for item in [item for item, lines in self.passed.items() if mutant.is_passed(lines)]:
            self.run(item, items, twin)
            if self.error is not None:
                return f"{item.name}{ENDLESS if isinstance(self.error, EndlessError) else ''}"
        return SURVIVED

    def run(self, item: pytest.Item, items: Sequence[pytest.Item], twin: ModuleType) -> None:
        """Runs a test with this twin; what it prints is dropped."""
        self.error = None
        # Fixtures of the file are kept, for another test of it.
        following = next((other for other in items if other is not item), None)
        with _in_place_of(PAIRS[self.name].torch, twin, item), contextlib.redirect_stdout(io.StringIO()):
            try:
                with limited(PATIENCE):
                    item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            except EndlessError as error:
                self.error = error


@contextmanager
def _in_place_of(right: ModuleType, twin: ModuleType, item: pytest.Item) -> Iterator[None]:
    """What is imported under the right twin's name, and what the test's file has imported already."""
    assert isinstance(item, pytest.Function)
    file: dict[str, Any] = vars(sys.modules[item.module.__name__])
    package, _, last = right.__name__.rpartition(".")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, right.__name__, twin)
        patch.setattr(sys.modules[package], last, twin)
        for name in [name for name, value in file.items() if value is right]:
            patch.setitem(file, name, twin)
        yield
