"""Finds the first reference test that notices a mutant of a PyTorch twin.

pytest collects the tests of a second derivation once, with their parameters and fixtures. Then it runs them with one
mutant after another in the twin's place.
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
from shared.frameworks.twins import load_twin

FOLDER = Path(of_the_derivations.__file__).parent
# Pairs whose derivations share one file
TOGETHER = {
    "sac_n": "ensembles",
    "edac": "ensembles",
    "lb_sac": "ensembles",
    "prdc": "deterministic",
    "online/ddpg": "deterministic",
    "online/td3": "deterministic",
    **dict.fromkeys((f"goal_conditioned/{name}" for name in ("crl", "gcbc", "gciql", "gcivl")), "goal_conditioned"),
}
# Tests that plant mistakes themselves say so in their names.
OPTIONS = ("--noconftest", "-m", "", "-k", "not caught", "-s", "-o", "tmp_path_retention_policy=none")
WITHOUT = ("cacheprovider", "terminal", "warnings", "logging", "timeout", "xdist", "benchmark", "junitxml")


def climb(name: str, mutants: Sequence[Mutant], tell: Callable[[Mutant, str], None]) -> None:
    """Runs each mutant of a pair's PyTorch twin, and reports the test that notices it; empty if it survives.

    pytest collects the derivation's tests, and a plugin runs them.
    """
    options = [str(derivation_of(name)), *OPTIONS, *(f"-pno:{plugin}" for plugin in WITHOUT)]
    # In the default place, the end of another pytest process could remove this one's folders.
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
        # The error of the last test, and the lines of the twin that each test runs
        self.error: BaseException | None = None
        self.passed: dict[pytest.Item, frozenset[int]] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Replaces pytest's own loop."""
        self.passed = self.measured(session.items)
        for mutant in self.mutants:
            self.tell(mutant, self.noticed(mutant, session.items))
        # A test that fails with any twin notices nothing.
        for item in session.items:
            self.passes(item, session.items, PAIRS[self.name].torch)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo) -> pytest.TestReport:
        """Keeps the error of the test, its setup or its teardown, without formatting it."""
        assert call.when != "collect"
        if call.excinfo is None:
            return pytest.TestReport(item.nodeid, item.location, {}, "passed", None, call.when)
        self.error = call.excinfo.value
        return pytest.TestReport(item.nodeid, item.location, {}, "failed", None, call.when)

    def measured(self, items: Sequence[pytest.Item]) -> dict[pytest.Item, frozenset[int]]:
        """The lines of the twin that each test runs, fastest test first; tests that run none are left out."""
        seconds, passed = {}, {}
        twin = planted(f"the twin {self.name}", source_of(self.name, "torch"))
        for item in items:
            begin = time.perf_counter()
            with lines_of(twin.__name__) as lines:
                self.passes(item, items, twin)
            seconds[item], passed[item] = time.perf_counter() - begin, frozenset(lines)
        return {item: passed[item] for item in sorted(items, key=lambda item: seconds[item]) if passed[item]}

    def passes(self, item: pytest.Item, items: Sequence[pytest.Item], twin: ModuleType) -> None:
        """Asserts that a test passes with the correct twin."""
        self.run(item, items, twin)
        assert self.error is None, f"{item.name}: {self.error}"

    def noticed(self, mutant: Mutant, items: Sequence[pytest.Item]) -> str:
        """The first test that notices the mutant, fastest first; tests that never run its line are left out."""
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
        """Runs a test with this twin, without its output."""
        self.error = None
        # The file's fixtures are kept for its next test.
        following = next((other for other in items if other is not item), None)
        with _in_place_of(PAIRS[self.name].torch, twin, item), contextlib.redirect_stdout(io.StringIO()):
            try:
                with limited(PATIENCE):
                    item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            except EndlessError as error:
                self.error = error


@contextmanager
def _in_place_of(right: ModuleType, twin: ModuleType, item: pytest.Item) -> Iterator[None]:
    """Replaces the correct twin, both for later imports and in the test's file."""
    assert isinstance(item, pytest.Function)
    file: dict[str, Any] = vars(sys.modules[item.module.__name__])
    package, _, last = right.__name__.rpartition(".")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, right.__name__, twin)
        patch.setattr(sys.modules[package], last, twin)
        for name in [name for name, value in file.items() if value is right]:
            patch.setitem(file, name, twin)
        load_twin.cache_clear()
        try:
            yield
        finally:
            load_twin.cache_clear()
