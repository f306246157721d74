"""A report's page in a browser, at the width of a phone and of a desktop."""

from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

from shared.commands.report import main
from tests.browsing import DESK, PHONE, resize
from tests.commands.test_run_reports import write_run

pytestmark = pytest.mark.thorough

DATASETS = [f"{robot}-medium-expert-replay-{kind}-v2" for robot in ("hopper", "walker2d") for kind in "abcde"]
LARGEST = 5_000_000
# Other tests may keep both cores busy; alone, the page opens in less than a second.
SECONDS = 10.0
DRAWN = "return arguments[0].children.length"
TICKS = "return Bokeh.documents[0].roots()[0].below[0].formatter.doFormat(arguments[0], {loc: 0})"
NAMES = "return Math.max(...[...document.querySelectorAll('td:first-child')].map(cell => cell.offsetWidth))"
READY = "return document.readyState === 'complete' && Bokeh.documents.every(page => page.is_idle)"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with 500 runs."""
    folder = tmp_path_factory.mktemp("runs")
    for number, dataset in enumerate(DATASETS):
        for algorithm in ("AWAC", "CQL", "IQL", "PLAS", "TD3_BC"):
            for framework in ("torch", "jax"):
                for seed in range(5):
                    write_run(folder, algorithm, dataset, framework, seed, 10.0 * number + seed)
    main([str(folder)])
    return folder / "report.html"


@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_five_hundred_runs_open(browser: webdriver.Chrome, page: Path, size: tuple[int, int]) -> None:
    """It opens quickly, every chart is drawn when it scrolls into view, and the browser reports no problem."""
    assert page.stat().st_size < LARGEST
    resize(browser, size)
    browser.get(page.as_uri())
    WebDriverWait(browser, SECONDS).until(lambda shown: shown.execute_script(READY))
    assert browser.execute_script("return performance.now()") < 1000 * SECONDS
    places = browser.find_elements("css selector", ".chart")
    assert len(places) == len(DATASETS) + 2
    for place in places:
        browser.execute_script("arguments[0].scrollIntoView()", place)
        WebDriverWait(browser, SECONDS).until(lambda shown, place=place: shown.execute_script(DRAWN, place))
    WebDriverWait(browser, SECONDS).until(lambda shown: shown.execute_script(READY))
    assert browser.execute_script("return document.documentElement.scrollWidth") <= size[0]
    assert browser.execute_script(NAMES) < size[0] / 2
    ticks = [500, 1000, 1500, 2000, 2500, 3000, 1_250_000, 1_260_000]
    shown = browser.execute_script(TICKS, ticks)
    assert shown == ["500", "1k", "1.5k", "2k", "2.5k", "3k", "1.25m", "1.26m"]
    assert [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
