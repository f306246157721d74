"""`python -m tests.cost results.xml`: the seconds that tests took, by room, file, pair and rung, in Markdown.

`pytest --junitxml=results.xml` writes such a file; the files of several machines are summed up. A file contains
hardware and workers if tests of `tests/` ran, because their `conftest.py` records them.
"""

import argparse
import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from parity_tests.ladder.rungs import RUNGS
from parity_tests.pairs import PAIRS
from shared.errors import InputError

NONE = "none named"
_PAIR = re.compile(rf"\b({'|'.join(PAIRS)})\b")
_LADDER = "parity_tests/ladder/test_ladder.py"


class Timed(NamedTuple):
    """A test that ran: its file, the id of its parameters ("" without any), and its seconds, including setup."""

    file: str
    id: str
    seconds: float


class Suite(NamedTuple):
    """One run of pytest: a line on how it ran, and its tests."""

    line: str
    tests: list[Timed]


def read(path: Path) -> Suite:
    """Reads a file that `pytest --junitxml` wrote.

    Raises:
        InputError: There is no such file, or it contains no tests.
    """
    try:
        suite = ET.parse(path).getroot().find("testsuite")
    except (OSError, ET.ParseError) as error:
        raise InputError(f"{path} cannot be read ({error}): write it with `pytest --junitxml={path}`") from error
    tests = [] if suite is None else [_test(case) for case in suite.iter("testcase")]
    if not tests:
        raise InputError(f"{path} holds no tests: write it with `pytest --junitxml={path}`")
    noted = {each.get("name"): each.get("value") for each in suite.iterfind("properties/property")}
    hardware, workers = (noted.get(name, f"{name} not noted") for name in ("hardware", "workers"))
    line = (
        f"{path.name}: {hardware}; {workers}; {suite.get('timestamp', '')[:10]}; {float(suite.get('time')):.0f} s wall"
    )
    return Suite(line, tests)


def _test(case: ET.Element) -> Timed:
    """A class is not part of the file's name; a file that could not be read counts as its own test."""
    module = [part for part in (case.get("classname") or case.get("name")).split(".") if not part[:1].isupper()]
    return Timed(
        "/".join(module) + ".py", case.get("name").partition("[")[2].removesuffix("]"), float(case.get("time"))
    )


def room(test: Timed) -> str:
    """The test's folder."""
    return str(Path(test.file).parent)


def pair(test: Timed) -> str:
    """The first pair named in the id of the parameters."""
    found = _PAIR.search(test.id)
    return found[1] if found else NONE


def rung(test: Timed) -> str:
    """The rung, for the parity ladder's tests, whose ids end in its name."""
    found = [name for name in RUNGS if test.file == _LADDER and test.id.endswith(f"-{name}")]
    return found[0] if found else NONE


VIEWS: dict[str, Callable[[Timed], str]] = {"room": room, "file": lambda test: test.file, "pair": pair, "rung": rung}


def table(view: str, tests: Sequence[Timed]) -> str:
    """A table with the highest cost first; shares are of all tests' seconds."""
    counts, seconds = Counter(map(VIEWS[view], tests)), Counter()
    for test in tests:
        seconds[VIEWS[view](test)] += test.seconds
    total = seconds.total() or 1.0
    rows = [f"| {name} | {counts[name]} | {took:.1f} | {took / total:.1%} |" for name, took in seconds.most_common()]
    return "\n".join(
        [
            f"| {view} | tests | seconds | share |",
            "|---|---|---|---|",
            *rows,
            f"| all | {len(tests)} | {seconds.total():.1f} | 100% |",
        ]
    )


def report(suites: Sequence[Suite]) -> str:
    """Every view of all suites together, below one line per suite."""
    tests = [test for suite in suites for test in suite.tests]
    heading = "# What the tests cost\n\nWall seconds within each test, while workers and other jobs share the cores:"
    lines = "\n".join(f"- {suite.line}, {len(suite.tests)} tests" for suite in suites)
    return "\n\n".join([f"{heading}\n\n{lines}", *(f"## By {view}\n\n{table(view, tests)}" for view in VIEWS)])


def main() -> None:
    """Prints the report; exits with 2 if a file is not pytest's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="what `pytest --junitxml=FILE` wrote")
    try:
        print(report([read(path) for path in parser.parse_args().files]))
    except InputError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
