"""The built site in a browser: at the width of a phone and of a desktop, by keyboard, in light and in dark."""

import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

import links
from shared.frameworks.twins import page_of
from side_by_side.pairs import Checkout
from tests.browsing import DESK, PHONE, resize

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[2]
PAIRS = Checkout(ROOT, ROOT / "docs").names()
BESIDE_PAGES = {f"side_by_side/{page_of(name)}.html" for name in PAIRS}
SECTIONS = ["config", "networks", "randomness", "losses-and-update", "training"]
SOURCE = "corl_jax/td3_bc.py"
LEFTOVERS = {".doctree", ".pickle", ".inv"}
LOOK = Path(__file__).with_name("look.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean build, which any warning fails."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-E", "-W", "--keep-going", "-q", "-b", "html"]
    places = ["-d", folder / "doctrees", ROOT / "docs", folder / "html"]
    done = subprocess.run([*command, *places], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The address at which the site is served."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


# The site's script adds buttons to code.
SCRIPTS_RAN = """
const code = document.querySelector(".highlight > pre:not(.side), .piece .place:not(.missing)");
return !code || document.querySelector(".copy") !== null;
"""


def show(browser: webdriver.Chrome, url: str, size: tuple[int, int]) -> None:
    """Opens a page in a viewport of this size, and waits for its scripts: a busy machine may run them late."""
    resize(browser, size)
    browser.get("about:blank")
    browser.get(url)
    with suppress(TimeoutException):  # the tests then report what is missing
        WebDriverWait(browser, 20).until(lambda page: page.execute_script(SCRIPTS_RAN))


def pages(site: Path) -> list[str]:
    """Every page's path within the site, except for those that redirect."""
    found = {str(path.relative_to(site)): path for path in site.rglob("*.html")}
    return sorted(name for name, path in found.items() if not links.Page(path).leads_to)


def test_every_link_within_the_site_leads_somewhere(site: Path) -> None:
    """And no page needs anything from another site."""
    assert list(links.faults(site)) == []
    assert BESIDE_PAGES | {"speed/speed.html", "index.html"} <= set(pages(site))


def test_an_address_of_before_leads_to_its_page(site: Path) -> None:
    """All pages were once in one folder."""
    moved = runpy.run_path(str(ROOT / "docs" / "conf.py"))["redirects"]
    assert len(moved) >= 59
    known = set(pages(site))
    for name, target in moved.items():
        assert links.Page(site / f"{name}.html").leads_to == target
        assert target in known, f"{name}.html leads nowhere"


# Of pages that one template makes for every pair or file, a few are walked. An algorithm's page has charts of its own.
MANY = ("side_by_side/", "source/")
FEW = {"td3_bc", "dt", "finetune_cal_ql", "discrete_bc", "td3_bc.py", "test_traps.py"}


def walked(site: Path) -> list[str]:
    """The pages in which the browser looks for faults."""
    return [page for page in pages(site) if not page.startswith(MANY) or Path(page).stem in FEW]


# On a pair's page, equal lines are level and dimmed, PyTorch's are on the left, and nothing else is dimmed.
BESIDE = """
    const sides = (twin) => ["torch", "jax"].map((side) => [...twin.querySelectorAll(`.${side} .equal`)]);
    const rows = [...document.querySelectorAll(".twin")].flatMap((twin) => {
        const [left, right] = sides(twin);
        return left.map((line, i) => [line, right[i]]).filter(([line]) => line.getBoundingClientRect().height > 0);
    });
    const faults = rows.length > 20 ? [] : [`only ${rows.length} equal lines`];
    for (const [torch, jax] of rows) {
        const [left, right] = [torch, jax].map((line) => line.getBoundingClientRect());
        const [text, other] = [torch, jax].map((line) => line.querySelector(".src"));
        if (Math.abs(left.top - right.top) >= 1) faults.push(`not at one height: ${text.textContent}`);
        if (right.left - left.right <= -1) faults.push(`not on the left: ${text.textContent}`);
        if (text.textContent !== other.textContent) faults.push(`not equal: ${text.textContent}`);
        if (getComputedStyle(text).opacity >= 0.7) faults.push(`not dimmed: ${text.textContent}`);
    }
    for (const src of document.querySelectorAll(".different .src"))
        if (getComputedStyle(src).opacity !== "1") faults.push(`dimmed: ${src.textContent}`);
    for (const name of arguments[0])
        if (!document.getElementById(name)?.getBoundingClientRect().height) faults.push(`no section ${name}`);
    const notes = document.querySelectorAll(".note[id]").length;
    return notes < 10 ? [...faults, `only ${notes} notes`] : faults;
"""


@pytest.fixture(scope="module")
def faults(browser: webdriver.Chrome, address: str, site: Path) -> dict[str, list[str]]:
    """The pages' faults, by kind: each page is opened once on a phone, which then becomes as wide as a desktop."""
    found: dict[str, list[str]] = {"console": [], "beside": []}
    for page in walked(site):
        show(browser, f"{address}/{page}", PHONE)
        if page in BESIDE_PAGES:
            # Before the check below, which unfolds all lines and changes the theme
            resize(browser, DESK)
            found["beside"] += [f"{page}: {fault}" for fault in browser.execute_script(BESIDE, SECTIONS)]
        for size in (PHONE, DESK):
            resize(browser, size)
            for kind, faults in browser.execute_async_script(LOOK).items():
                found.setdefault(kind, []).extend(f"{page} at {size[0]}: {fault}" for fault in faults)
        found["console"] += [f"{page}: {entry['message']}" for entry in browser.get_log("browser")]
    return found


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "kind",
    [
        "console",  # no page complains
        "beside",  # a pair has all sections beside each other, and its notes
        "sideways",  # no page scrolls so, nor any part of it but a formula, in its own box
        "broken",  # no line of code breaks inside a name
        "nameless",  # every button has a name
        "small",  # and is as large as a finger: at least 24 pixels each way
        "tiny",  # letters of charts have nine pixels or more
        "faint",  # and a contrast of three to one or more with what lies below them, in both themes
        "no button",  # every block of code has a copy button, and each side of a piece
    ],
)
def test_no_page_has_a_fault(faults: dict[str, list[str]], kind: str) -> None:
    assert faults[kind] == []


def test_a_file_that_is_linked_opens_as_a_page(browser: webdriver.Chrome, address: str) -> None:
    """With colours and numbered lines; its button copies the file exactly."""
    browser.execute_cdp_cmd(
        "Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    )
    show(browser, f"{address}/source/{SOURCE}.html", DESK)
    assert browser.find_element(By.TAG_NAME, "h1").text == SOURCE
    assert browser.find_elements(By.CSS_SELECTOR, ".numbered .k, .numbered .kn")
    numbered = "return getComputedStyle(document.querySelector('.numbered .line'), '::before').content"
    assert browser.execute_script(numbered) == "counter(line)"
    browser.find_element(By.CSS_SELECTOR, ".copy").click()
    WebDriverWait(browser, 5).until(lambda found: found.find_elements(By.CSS_SELECTOR, ".copy.copied"))
    copied = browser.execute_async_script("navigator.clipboard.readText().then(arguments[0])")
    assert copied == (ROOT / SOURCE).read_text(encoding="utf-8")


def test_links_to_files_lead_to_their_pages(site: Path) -> None:
    """Only a notebook is meant to be saved."""
    text = (site / "port" / "check.html").read_text(encoding="utf-8")
    assert 'href="../source/' in text
    assert {path.suffix for path in (site / "_downloads").rglob("*.*")} == {".ipynb"}


def test_nothing_but_the_site_is_served(site: Path) -> None:
    """No inventory for other builds, no doctrees, no sources of pages."""
    left = [path for path in site.rglob("*") if path.name.startswith((".", "_sources")) or path.suffix in LEFTOVERS]
    assert left == []
    assert "-d docs/_build/doctrees" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_on_a_phone_changed_lines_follow_each_other(browser: webdriver.Chrome, address: str) -> None:
    """In one column, an equal line appears once, and PyTorch's lines are above the JAX lines that replace them."""
    show(browser, f"{address}/side_by_side/td3_bc.html", PHONE)
    lines = browser.execute_script("""
        const piece = document.querySelector("[data-piece=actor_loss]");
        return [...piece.querySelectorAll(".line")].filter(line => line.getBoundingClientRect().height > 0)
            .sort((a, b) => a.getBoundingClientRect().top - b.getBoundingClientRect().top)
            .map(line => [line.closest(".side").classList[1], line.querySelector(".src").textContent.trim()]);
    """)
    texts = [text for _, text in lines]
    assert sum("actions = actor(batch.observations)" in text for text in texts) == 1
    detached = next(i for i, text in enumerate(texts) if ".detach()" in text)
    assert lines[detached][0] == "torch"
    assert lines[detached + 1][0] == "jax"
    assert "stop_gradient(" in texts[detached + 1]


def test_a_note_is_reached_by_keyboard_alone(browser: webdriver.Chrome, address: str) -> None:
    """Tab reaches a marker, Enter its note, Tab the way back, Enter the marker again; the focus is visible."""
    show(browser, f"{address}/side_by_side/td3_bc.html", DESK)
    for _ in range(400):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        focused = browser.switch_to.active_element
        if "marker" in (focused.get_attribute("class") or ""):
            break
    name = focused.get_attribute("href").split("#note-")[1]
    assert focused.value_of_css_property("outline-style") == "solid"
    focused.send_keys(Keys.ENTER)
    note = browser.find_element(By.ID, f"note-{name}")
    assert browser.switch_to.active_element == note
    bar = browser.find_element(By.CLASS_NAME, "twins-bar")
    boxes = "return [arguments[0].getBoundingClientRect().bottom, arguments[1].getBoundingClientRect()]"

    def in_view(_: webdriver.Chrome) -> bool:
        below, box = browser.execute_script(boxes, bar, note)
        return below <= box["top"] and box["bottom"] <= DESK[1]

    WebDriverWait(browser, 5).until(in_view, "the note is below the bar and above the window's end")
    note.send_keys(Keys.TAB)
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    assert browser.current_url.endswith(f"#mark-{name}")


def test_equal_lines_unfold_and_fold(browser: webdriver.Chrome, address: str) -> None:
    """All at once with the button, or one by one with their own line."""
    show(browser, f"{address}/side_by_side/td3_bc.html", DESK)
    folds = browser.find_elements(By.CSS_SELECTOR, "details.fold")
    button = browser.find_element(By.CSS_SELECTOR, ".twins-bar .unfold")
    assert folds
    assert not any(fold.get_attribute("open") for fold in folds)
    button.send_keys(Keys.ENTER)
    assert all(fold.get_attribute("open") for fold in folds)
    button.send_keys(Keys.ENTER)
    folds[0].find_element(By.TAG_NAME, "summary").send_keys(Keys.ENTER)
    assert [bool(fold.get_attribute("open")) for fold in folds] == [True] + [False] * (len(folds) - 1)


def colours(browser: webdriver.Chrome) -> tuple[str, ...]:
    """The colours of the page, of a keyword in code, and of a line that differs."""
    return tuple(
        browser.execute_script(f"return getComputedStyle(document.querySelector('{where}')).{what}")
        for where, what in (
            ("body", "backgroundColor"),
            (".piece .k, .piece .kn", "color"),
            (".torch .line.different", "backgroundColor"),
        )
    )


def test_the_theme_switches(browser: webdriver.Chrome, address: str) -> None:
    """The button switches through light and dark, for code too, and the theme stays on the next page."""
    show(browser, f"{address}/side_by_side/td3_bc.html", DESK)
    seen = {}
    for _ in range(3):
        browser.find_element(By.CSS_SELECTOR, ".content-icon-container .theme-toggle").click()
        seen[browser.find_element(By.TAG_NAME, "body").get_attribute("data-theme")] = colours(browser)
    assert set(seen) == {"auto", "light", "dark"}
    assert all(light != dark for light, dark in zip(seen["light"], seen["dark"], strict=True))
    while browser.find_element(By.TAG_NAME, "body").get_attribute("data-theme") != "dark":
        browser.find_element(By.CSS_SELECTOR, ".content-icon-container .theme-toggle").click()
    show(browser, f"{address}/side_by_side/iql.html", DESK)
    assert colours(browser) == seen["dark"]


def test_a_system_that_is_dark_gets_a_dark_page(browser: webdriver.Chrome, address: str) -> None:
    """Unless the reader has chosen a theme, the system's setting decides."""
    backgrounds = []
    for scheme in ("light", "dark"):
        feature = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", feature)
        show(browser, f"{address}/index.html", DESK)
        browser.execute_script("localStorage.clear()")
        show(browser, f"{address}/index.html", DESK)
        backgrounds.append(colours(browser))
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert all(light != dark for light, dark in zip(*backgrounds, strict=True))
