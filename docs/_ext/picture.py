"""`python docs/_ext/picture.py FOLDER`: takes the README's picture of two twins from a built site.

The picture remembers the text that it shows, and a test fails when the files have moved on. It needs Chromium and
ChromeDriver, as the site's browser tests do.
"""

import shutil
import sys
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.common.by import By

from remembering import save

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "side_by_side.png"
FLAGS = ("headless", "no-sandbox", "disable-gpu", "disable-background-networking", "hide-scrollbars")
# Wide enough for two columns, drawn finely enough for a dense screen
VIEWPORT = {"width": 1400, "height": 900, "deviceScaleFactor": 1.5, "mobile": False}


def take(site: Path) -> None:
    """Writes the picture of the piece on the site's first page."""
    options = webdriver.ChromeOptions()
    for flag in FLAGS:
        options.add_argument(f"--{flag}")
    with webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver"))) as browser:
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", VIEWPORT)
        browser.get((site / "index.html").resolve().as_uri())
        shown = browser.find_element(By.CSS_SELECTOR, ".twins")
        save(PICTURE, shown.screenshot_as_png, shown_lines())


def shown_lines() -> dict[str, str]:
    """The policy's loss of TD3+BC in each framework's file."""
    found = {}
    for framework in ("torch", "jax"):
        text = (ROOT / f"corl_{framework}" / "td3_bc.py").read_text(encoding="utf-8")
        start = text.index("    def actor_loss(")
        found[framework] = text[start : text.index("\n\n", start)]
    return found


if __name__ == "__main__":
    take(Path(sys.argv[1]))
