"""What all tests share: compiled programs, an end to them, and a word on the memory that each process ends with."""

import gc
import itertools
import random
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from parity_tests.engine.caches import forget
from parity_tests.engine.compilation import share_programs
from shared.runs.machine import hardware

_tests = itertools.count(1)
_memory: dict[str, float] = {}


@pytest.fixture(scope="session", autouse=True)
def compilation_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests, and runs in processes of their own, share compiled programs with each other only."""
    share_programs(tmp_path_factory)


@pytest.fixture(scope="session")
def d3rlpy() -> Any:
    """The genuine library, where `make test-d3rlpy` has installed it and shows where."""
    return pytest.importorskip("d3rlpy", reason="the genuine d3rlpy is not installed: make test-d3rlpy")


@pytest.fixture(autouse=True)
def few_programs() -> Iterator[None]:
    """Programs are kept in memory for a while, since tests share them, but not for ever."""
    yield
    if next(_tests) % 50 == 0:
        forget()


@pytest.fixture(scope="module", autouse=True)
def no_programs_of_other_files() -> Iterator[None]:
    """A file's programs and results are of no use to the next one."""
    yield
    forget()


# ---- an end to the tests, whatever the machine's speed -------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--until`."""
    parser.addoption(
        "--until", type=int, metavar="SECONDS", help="begin no test after this time, in seconds since 1970; skip it"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files come in another order for each `--until`, so that other ones are skipped each time."""
    if (until := config.getoption("until")) is not None:
        files = sorted({item.path for item in items})
        random.Random(until).shuffle(files)
        items.sort(key=lambda item: files.index(item.path))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what is too late, before its fixtures are made; pytest's last line counts them."""
    until = item.config.getoption("until")
    if until is not None and time.time() > until:
        pytest.skip("the time for tests is up (--until)")


# ---- collections of garbage ----------------------------------------------------------------------------------------


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leaves everything imported so far out of later collections of garbage, because each would take about a second."""
    gc.collect()
    gc.freeze()
    # Hypothesis looks for the holder of trio's generator, a module, among the objects that are not frozen.
    session.config.addinivalue_line("filterwarnings", "ignore:It looks like `register_random` was passed")


# ---- several processes: `-n` ---------------------------------------------------------------------------------------


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Whatever `--dist` says."""
    from tests.scheduling import ByFile

    # By itself it would begin with the files of many tests, and `--until` would skip the same small ones each time.
    config.option.loadscopereorder = config.getoption("until") is None
    return ByFile(config, log)


# ---- what a JUnit file says of itself ------------------------------------------------------------------------------


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """`--junitxml` files say what they were measured on, which `python -m tests.cost` prints."""
    for plugin in config.pluginmanager.get_plugins():
        if hasattr(plugin, "add_global_property"):
            machine, workers = hardware(), len(getattr(config.option, "tx", None) or ["none but itself"])
            plugin.add_global_property(
                "hardware", f"{(machine['gpus'] or [machine['cpu']])[0]}, {machine['cores']} cores"
            )
            plugin.add_global_property("workers", f"{workers} worker{'s' if workers > 1 else ''}")


# ---- memory: each process tells what it holds at its end; workers tell it through pytest-xdist ---------------------


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Each process, a worker or the only one."""
    gigabytes = psutil.Process().memory_info().rss / 2**30
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["gigabytes"] = gigabytes
    elif not _memory:
        _memory["this process"] = gigabytes


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker has ended. One that did not come to its end, as where a test took too long, has told nothing."""
    if hasattr(node, "workeroutput"):
        _memory[node.gateway.id] = node.workeroutput["gigabytes"]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """After all tests."""
    held = ", ".join(f"{name} {gigabytes:.1f}" for name, gigabytes in sorted(_memory.items()))
    terminalreporter.write_line(f"memory at the end, in GiB: {held}")
