"""`python docs/_ext/links.py FOLDER`: checks a built site without a network.

Sphinx checks the links that it makes itself and, with its `linkcheck`, those that leave the site; nobody checks the
HTML that a theme or an extension writes. Here every page must find what it links to within the site, and a browser must
need nothing from elsewhere to show it.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser fetches by itself; a link is followed by a reader who wants to leave.
_FETCHED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}

# Links of the document's head that name a page and fetch nothing
_NAMES_ONLY = {"canonical", "next", "prev", "search", "index", "author", "copyright"}


class Page(HTMLParser):
    """A page's anchors, its links, and what a browser fetches to show it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collects from a tag."""
        attributes = {key: value or "" for key, value in attrs}
        if "id" in attributes:
            self.ids.append(attributes["id"])
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        fetched = attributes.get(_FETCHED.get(tag, ""))
        if fetched and not (tag == "link" and attributes.get("rel") in _NAMES_ONLY):
            self.fetched.append(fetched)


def faults(folder: Path) -> Iterator[str]:
    """One line for each link that leads nowhere, each id that stands twice, and each file from elsewhere."""
    pages = {path.resolve(): Page(path) for path in sorted(folder.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(folder.resolve())
        yield from (f"{name}: two elements have the id {one}" for one, count in Counter(page.ids).items() if count > 1)
        for link in [*page.links, *page.fetched]:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                if link in page.fetched and url.scheme != "data":
                    yield f"{name}: fetches {link}"
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            if not target.is_file():
                yield f"{name}: {link} leads nowhere"
            elif url.fragment and target in pages and unquote(url.fragment) not in pages[target].ids:
                yield f"{name}: {link} names no element of that page"
    for path in sorted(folder.rglob("*.css")):
        text = path.read_text()
        if "url(http" in text or "@import" in text or "url(//" in text:
            yield f"{path.relative_to(folder)}: fetches from elsewhere"


if __name__ == "__main__":
    found = list(faults(Path(sys.argv[1])))
    print("\n".join(found) or "every link within the site leads somewhere, and nothing is fetched from elsewhere")
    sys.exit(bool(found))
