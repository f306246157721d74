"""The faults that are looked for in every page of the built site."""

from pathlib import Path

import pytest

import links


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('<a href="b.html">', "b.html leads nowhere"),
        ('<a href="#b">', "#b names no element"),
        ('<meta http-equiv="refresh" content="0; url=b.html">', "b.html leads nowhere"),
        ('<p id="a"><p id="a">', "two elements have the id a"),
        ('<script src="https://example.org/a.js">', "fetches https://example.org/a.js"),
        ('<link rel="stylesheet" href="//example.org/a.css">', "fetches //example.org/a.css"),
    ],
)
def test_a_broken_link_is_found(text: str, fault: str, tmp_path: Path) -> None:
    """So is anything that would be fetched from a network."""
    (tmp_path / "page.html").write_text(f'<a href="https://example.org"></a><a href="page.html"></a>{text}')
    (found,) = links.faults(tmp_path)
    assert fault in found
