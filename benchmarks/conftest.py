"""Gathers what the benchmarks measured into one results file for this machine, and prints it."""

import sys
from collections.abc import Iterator

import pytest

from benchmarks.results import Results


@pytest.fixture(scope="session")
def results(request: pytest.FixtureRequest) -> Iterator[Results]:
    """The session's measurements; written and printed when it ends."""
    gathered = Results(command=" ".join(["pytest", *sys.argv[1:]]))
    yield gathered
    if gathered.complete():
        path = gathered.write()
        with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(f"\n\n{gathered.table()}\n\n{path}")
