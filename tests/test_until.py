"""`pytest --until`, with which CI ends in time on a slow machine."""

import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.scheduling import ByFile

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(("seconds", "skipped"), [(-1, True), (3600, False)])
def test_only_what_is_too_late_is_skipped(seconds: int, skipped: bool, request: pytest.FixtureRequest) -> None:
    conftest = request.config.pluginmanager.get_plugin(str(ROOT / "conftest.py"))
    item = SimpleNamespace(config=SimpleNamespace(getoption=lambda name: int(time.time()) + seconds))
    with pytest.raises(pytest.skip.Exception) if skipped else nullcontext():
        conftest.pytest_runtest_setup(item)


def test_files_come_in_another_order_for_each_end(request: pytest.FixtureRequest) -> None:
    conftest = request.config.pluginmanager.get_plugin(str(ROOT / "conftest.py"))
    found = set()
    for until in range(9):
        items = [SimpleNamespace(path=Path(name)) for name in "abba"]
        conftest.pytest_collection_modifyitems(SimpleNamespace(getoption=lambda name, until=until: until), items)
        found.add("".join(str(item.path) for item in items))
    assert found == {"aabb", "bbaa"}


def test_each_pair_of_the_ladder_has_a_scope_of_its_own() -> None:
    ladder = "parity_tests/ladder/test_ladder.py"
    scope = ByFile._split_scope
    assert scope(None, f"{ladder}::test_twins_agree[iql-a-b]") == scope(None, f"{ladder}::test_full[iql]")
    assert scope(None, f"{ladder}::test_twins_agree[iql-a-b]") != scope(None, f"{ladder}::test_twins_agree[cql-a-b]")
    assert scope(None, "tests/test_a.py::test_b[iql-a]") == scope(None, "tests/test_a.py::test_c")
