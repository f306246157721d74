"""The site as it is built: in a browser, on a phone's width and a desk's, by keyboard, in light and in dark."""

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
# Into so many parts all pages are split, so that no test has to open each of them.
PARTS = 4
PAIRS = Checkout(ROOT, ROOT / "docs").names()
SECTIONS = ["config", "networks", "randomness", "losses-and-update", "training"]
SOURCE = "corl_jax/td3_bc.py"
LEFTOVERS = {".doctree", ".pickle", ".inv"}
LOOK = Path(__file__).with_name("look.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean build; a warning fails it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-E", "-W", "--keep-going", "-q", "-b", "html"]
    places = ["-d", folder / "doctrees", ROOT / "docs", folder / "html"]
    done = subprocess.run([*command, *places], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where the site is served."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


# Where there is code, the site's script gives it buttons.
SCRIPTS_RAN = """
const code = document.querySelector(".highlight > pre:not(.side), .piece .place:not(.missing)");
return !code || document.querySelector(".copy") !== null;
"""


def show(browser: webdriver.Chrome, url: str, size: tuple[int, int]) -> None:
    """Opens a page in a viewport of this size, and waits for its scripts: a busy machine may run them late."""
    resize(browser, size)
    browser.get("about:blank")
    browser.get(url)
    with suppress(TimeoutException):  # the tests tell what is missing then
        WebDriverWait(browser, 20).until(lambda page: page.execute_script(SCRIPTS_RAN))


def pages(site: Path) -> list[str]:
    """Every page's path within the site."""
    return sorted(str(path.relative_to(site)) for path in site.rglob("*.html"))


def test_every_link_within_the_site_leads_somewhere(site: Path) -> None:
    """And no page needs anything from elsewhere."""
    assert list(links.faults(site)) == []
    assert {f"side_by_side/{page_of(name)}.html" for name in PAIRS} | {"speed.html", "index.html"} <= set(pages(site))


@pytest.fixture(scope="module", params=range(PARTS))
def faults(request: pytest.FixtureRequest, browser: webdriver.Chrome, address: str, site: Path) -> dict[str, list[str]]:
    """What is wrong with a part's pages, by kind: each is opened on a phone, which then becomes as wide as a desk."""
    found: dict[str, list[str]] = {"console": []}
    for page in pages(site)[request.param :: PARTS]:
        show(browser, f"{address}/{page}", PHONE)
        for size in (PHONE, DESK):
            resize(browser, size)
            for kind, faults in browser.execute_async_script(LOOK).items():
                found.setdefault(kind, []).extend(f"{page} at {size[0]}: {fault}" for fault in faults)
        found["console"] += [f"{page}: {entry['message']}" for entry in browser.get_log("browser")]
    return found


def test_no_page_complains(faults: dict[str, list[str]]) -> None:
    assert faults["console"] == []


def test_no_page_scrolls_sideways(faults: dict[str, list[str]]) -> None:
    """Nor does a code block, a line, a table, a cell or a picture; a formula may, in its own box."""
    assert faults["sideways"] == []


def test_no_line_breaks_inside_a_name(faults: dict[str, list[str]]) -> None:
    """Neither in a code block nor in a piece of code in a sentence."""
    assert faults["broken"] == []


def test_every_button_has_a_name_and_is_as_large_as_a_finger(faults: dict[str, list[str]]) -> None:
    """At least 24 pixels each way: markers of notes, ways back, copy buttons, the theme's buttons, folds."""
    assert (faults["nameless"], faults["small"]) == ([], [])


def test_charts_are_read_on_a_phone_and_in_both_themes(faults: dict[str, list[str]]) -> None:
    """Their letters have nine pixels or more, and a contrast of three to one or more with what lies below them."""
    assert (faults["tiny"], faults["faint"]) == ([], [])


def test_every_block_of_code_has_a_copy_button(faults: dict[str, list[str]]) -> None:
    """Each side of a piece, too."""
    assert faults["no button"] == []


def test_a_file_that_is_linked_opens_as_a_page(browser: webdriver.Chrome, address: str) -> None:
    """Coloured, its lines numbered; what its button copies is the file, to the letter."""
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
    """A notebook alone is there to be saved."""
    text = (site / "check.html").read_text(encoding="utf-8")
    assert 'href="source/' in text
    assert {path.suffix for path in (site / "_downloads").rglob("*.*")} == {".ipynb"}


def test_nothing_but_the_site_is_served(site: Path) -> None:
    """No list for other builds, no trees, no sources of pages."""
    left = [path for path in site.rglob("*") if path.name.startswith((".", "_sources")) or path.suffix in LEFTOVERS]
    assert left == []
    assert "-d docs/_build/doctrees" in (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_has_all_sections_beside_each_other(browser: webdriver.Chrome, address: str, name: str) -> None:
    """Equal lines at one height and dimmed, PyTorch's on the left; every note that is pointed to is there."""
    show(browser, f"{address}/side_by_side/{page_of(name)}.html", DESK)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= DESK[0]
    assert all(browser.find_element(By.ID, section).is_displayed() for section in SECTIONS)
    rows = browser.execute_script("""
        const box = line => line.getBoundingClientRect();
        return [...document.querySelectorAll(".twin")].flatMap(twin => {
            const sides = ["torch", "jax"].map(side => [...twin.querySelectorAll(`.${side} .equal`)]);
            return sides[0].map((line, i) => [line, sides[1][i]]).filter(([line]) => box(line).height > 0)
                .map(([torch, jax]) => [box(torch).top - box(jax).top, box(jax).left - box(torch).right,
                    torch.querySelector(".src").textContent === jax.querySelector(".src").textContent,
                    Number(getComputedStyle(torch.querySelector(".src")).opacity)]);
        });
    """)
    assert len(rows) > 20
    assert all(abs(apart) < 1 and gap > -1 and same and opacity < 0.7 for apart, gap, same, opacity in rows)
    assert browser.execute_script("""
        return [...document.querySelectorAll(".different .src")].every(src => getComputedStyle(src).opacity === "1");
    """)
    assert len(browser.find_elements(By.CSS_SELECTOR, ".note[id]")) >= 10


def test_on_a_phone_changed_lines_follow_each_other(browser: webdriver.Chrome, address: str) -> None:
    """One column: an equal line stands once, PyTorch's lines above the JAX ones that replace them."""
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
    """Tab reaches a marker, Enter its note, Tab the way back, Enter the marker again; focus can be seen."""
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
    """All at once by the button, one by one by their own line."""
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
    """Of the page, of a keyword in code, and of a line that differs."""
    return tuple(
        browser.execute_script(f"return getComputedStyle(document.querySelector('{where}')).{what}")
        for where, what in (
            ("body", "backgroundColor"),
            (".piece .k, .piece .kn", "color"),
            (".torch .line.different", "backgroundColor"),
        )
    )


def test_the_theme_switches(browser: webdriver.Chrome, address: str) -> None:
    """By the button through light and dark, code too; and it stays on the next page."""
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
    """Where nothing was chosen the system's setting decides."""
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
