"""The page of a report in a browser, on a phone's width and a desk's."""

from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

from shared.commands.report import main
from tests.browsing import DESK, PHONE, resize
from tests.commands.test_run_reports import write_run

pytestmark = pytest.mark.thorough

DATASETS = [f"{robot}-{kind}-v2" for robot in ("hopper", "walker2d") for kind in "abcde"]
LARGEST = 5_000_000
# On an idle machine 1.2 s; other tests keep both cores busy.
SECONDS = 10.0
DRAWN = "return Bokeh.documents.length > 0 && Bokeh.documents.every(page => page.is_idle)"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 500 runs."""
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
    """Every chart is drawn, wide tables scroll by themselves, and the browser has nothing to complain of."""
    assert page.stat().st_size < LARGEST
    resize(browser, size)
    browser.get(page.as_uri())
    WebDriverWait(browser, SECONDS).until(lambda shown: shown.execute_script(DRAWN))
    assert browser.execute_script("return performance.now()") < 1000 * SECONDS
    assert len(browser.find_elements("css selector", ".charts > div")) == len(DATASETS) + 2
    assert browser.execute_script("return document.documentElement.scrollWidth") <= size[0]
    assert [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
