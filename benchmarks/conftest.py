"""Gathers what the benchmarks measured into one results file for this machine, and prints it."""

import shlex
import sys
from collections.abc import Iterator

import pytest

from benchmarks.results import Results
from benchmarks.subjects import UPDATES
from benchmarks.work import full_precision


@pytest.fixture(scope="session")
def results(request: pytest.FixtureRequest) -> Iterator[Results]:
    """The session's measurements, printed when it ends; written too, unless a part would replace the whole."""
    full_precision()
    gathered = Results(command=shlex.join(["pytest", *sys.argv[1:]]))
    yield gathered
    if gathered.complete(gathered.blocks):
        place = gathered.write() if gathered.complete(UPDATES) else "not written: these are not all algorithms"
        with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(f"\n\n{gathered.table()}\n\n{place}")
