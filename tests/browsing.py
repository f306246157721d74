"""Headless Chromium, for tests of pages."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium import webdriver

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "headless",
    "no-sandbox",
    "disable-gpu",
    "disable-quic",
    "no-first-run",
    "disable-background-networking",
    "disable-component-update",
    "disable-sync",
    "disable-dev-shm-usage",
)
PHONE, DESK = (390, 844), (1400, 900)


@contextmanager
def headless(profile: Path) -> Iterator[webdriver.Chrome]:
    """Headless Chromium with its own profile; if there is none, the test is skipped unless a browser is required."""
    binary = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = shutil.which("chromedriver")
    if not (binary and driver):
        reason = "needs chromium and chromedriver in the path (Debian: apt-get install chromium chromium-driver)"
        pytest.fail(reason) if os.environ.get("REQUIRE_BROWSER") else pytest.skip(reason)
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in (*FLAGS, f"user-data-dir={profile}"):
        options.add_argument(f"--{flag}")
    with webdriver.Chrome(options, webdriver.ChromeService(driver)) as chrome:
        yield chrome


def resize(browser: webdriver.Chrome, size: tuple[int, int]) -> None:
    """Gives the viewport this size, because the window of a headless browser cannot be as narrow as a phone."""
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
