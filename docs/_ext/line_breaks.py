"""A Sphinx extension that marks where code may be broken, so that no line scrolls sideways on a phone.

A line breaks at its blanks. A long run without blanks also breaks at its punctuation. A name stays in one piece unless
it is longer than a phone is wide. Each place gets a `<wbr>`; the style sheet forbids all other breaks.
"""

import re
from collections.abc import Iterable, Iterator
from html import unescape
from itertools import pairwise
from typing import Any

from docutils import nodes
from pygments.formatters import HtmlFormatter
from sphinx.application import Sphinx
from sphinx.highlighting import PygmentsBridge
from sphinx.util.typing import ExtensionMetadata
from sphinx.writers.html5 import HTML5Translator

# A longer run without blanks breaks at punctuation.
LONG = 20
# A longer name breaks at its hyphens and underscores, because it is longer than a phone is wide.
LONGEST = 30

_TAG = re.compile(r"<[^>]*>")
_PIECE = re.compile(r"<[^>]*>|&[^;\s]+;|.", re.DOTALL)
_MARGIN = re.compile(r"(?:<[^>]*>|\s)*")
_GAP = re.compile(r" {2,}")
_ENDING = r"(?:py|ipynb|ya?ml|jsonl?|md|msgpack|pt|hdf5|npz|onnx|torchscript|png|svg|txt)\b"
# After an opening bracket, a comma, a slash, a colon or an equals sign; before the dot of an attribute
_PUNCTUATION = re.compile(
    rf"(?<=[(\[{{,/:|])(?=[\w\"'(\[{{*<-])|(?<=\w=)(?=[^=])|(?<=[\w)\]])(?=\.(?!{_ENDING})[A-Za-z_])"
)
_JOINT = re.compile(r"(?<=\w[-_])(?=\w)")


def breakable(line: str) -> str:
    """Marks all places where a line of code, given as HTML, may break.

    Several blanks in a row get an element of their own, which takes no room at the end of a line.
    """
    margin = _MARGIN.match(line).end()
    pieces = _PIECE.findall(line[:margin] + _GAP.sub(r'<span class="gap">\g<0></span>', line[margin:]))
    allowed = set(places("".join(unescape(piece) for piece in pieces if not _TAG.fullmatch(piece))))
    written, position = [], 0
    for piece in pieces:
        if not _TAG.fullmatch(piece):
            written += ["<wbr>"] if position in allowed else []
            position += 1
        written.append(piece)
    return "".join(written)


def places(text: str) -> Iterator[int]:
    """Yields the positions of the characters in plain text that may begin the next line."""
    # A comment's sign stays with its first word.
    for run in re.finditer(r"(?:# )?\S+", text):
        if text[: run.start()].strip():
            yield run.start()
        if len(run[0]) > LONG:
            yield from (run.start() + place for place in _inside(run[0]))


def _inside(run: str) -> Iterator[int]:
    """Yields the positions at which a long run without blanks may break."""
    edges = [0, *(found.start() for found in _PUNCTUATION.finditer(run)), len(run)]
    yield from edges[1:-1]
    for start, end in pairwise(edges):
        if end - start > LONGEST:
            yield from (start + found.start() for found in _JOINT.finditer(run[start:end]))


class Lines(HtmlFormatter):
    """Code with an element for each line, so that the rest of a broken line is indented more than its beginning."""

    def wrap(self, source: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
        """Wraps each line of code in an element."""
        return super().wrap((kind, _line(text) if kind else text) for kind, text in source)


def _line(html: str) -> str:
    """Wraps a line of code in an element with its indentation; a rule of dashes is cut at the end of the line."""
    text = unescape(_TAG.sub("", html))
    indent = len(re.match(r"[+-]? *", text)[0])
    if re.search(r"-{8,}$", text):
        return f'<span class="line rule" style="--indent:{indent}">{html}</span>'
    return f'<span class="line" style="--indent:{indent}">{breakable(html)}</span>'


def _literal(translator: HTML5Translator, node: nodes.literal) -> None:
    """Writes code in a sentence or a cell."""
    start = translator.starttag(node, "code", "", CLASS="docutils literal notranslate")
    translator.body.append(f"{start}{breakable(translator.encode(node.astext()))}</code>")
    raise nodes.SkipNode


def _nothing(*_: Any) -> None:
    """Sphinx calls this at the end of each element; a skipped one has none."""


def setup(app: Sphinx) -> ExtensionMetadata:
    """Registers the extension with Sphinx."""
    PygmentsBridge.html_formatter = Lines
    app.add_node(nodes.literal, override=True, html=(_literal, _nothing))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
