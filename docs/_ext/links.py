"""`python docs/_ext/links.py FOLDER`: checks a built site without a network.

Sphinx checks the links that it makes itself and, with its `linkcheck`, links that leave the site. It does not check
HTML
that a theme or an extension writes. Here every link within the site must have a target, and a browser must not need
anything from elsewhere to show a page.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Resources that a browser fetches by itself; links are excluded, because a reader follows them on purpose.
_FETCHED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}

# Links of the document's head that name a page and fetch nothing
_NAMES_ONLY = {"canonical", "next", "prev", "search", "index", "author", "copyright"}


_FETCHING_CSS = re.compile(r"@import|url\([\"']?(https?:)?//")


class Page(HTMLParser):
    """A page's anchors, its links, the resources that it fetches, and the target if it redirects."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.leads_to = ""
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collects the data of a tag."""
        attributes = {key: value or "" for key, value in attrs}
        if "id" in attributes:
            self.ids.append(attributes["id"])
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        if tag == "meta" and attributes.get("http-equiv") == "refresh":
            self.leads_to = attributes["content"].partition("url=")[2]
            self.links.append(self.leads_to)
        fetched = attributes.get(_FETCHED.get(tag, ""))
        if fetched and not (tag == "link" and attributes.get("rel") in _NAMES_ONLY):
            self.fetched.append(fetched)


def faults(folder: Path) -> Iterator[str]:
    """Yields one line for each broken link, each duplicate id, and each file from elsewhere."""
    pages = {path: Page(path) for path in sorted(folder.resolve().rglob("*.html"))}
    for path, page in pages.items():
        for fault in _of_page(path, pages):
            yield f"{path.relative_to(folder.resolve())}: {fault}"
        yield from (f"{path.name}: fetches {link}" for link in page.fetched if _leaves(link))
    for path in sorted(folder.rglob("*.css")):
        if _FETCHING_CSS.search(path.read_text()):
            yield f"{path.name}: fetches from elsewhere"


def _of_page(path: Path, pages: Mapping[Path, Page]) -> Iterator[str]:
    """The faults of one page within the site."""
    page = pages[path]
    yield from (f"two elements have the id {one}" for one, count in Counter(page.ids).items() if count > 1)
    for link in [*page.links, *page.fetched]:
        url = urlsplit(link)
        if not (url.scheme or url.netloc):
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            if not target.is_file():
                yield f"{link} leads nowhere"
            elif url.fragment and target in pages and unquote(url.fragment) not in pages[target].ids:
                yield f"{link} names no element of that page"


def _leaves(link: str) -> bool:
    """Whether a link leaves the site; data in the page itself does not."""
    url = urlsplit(link)
    return bool(url.scheme or url.netloc) and url.scheme != "data"


if __name__ == "__main__":
    found = list(faults(Path(sys.argv[1])))
    print("\n".join(found) or "every link within the site leads somewhere, and nothing is fetched from elsewhere")
    sys.exit(bool(found))
