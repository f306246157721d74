"""The docstrings and comments of a Python file, each as a piece of Markdown.

Notes to tools (`# noqa`), licences and code that is commented out are left out.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator

_SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields):")
# Sections with a single entry, which does not begin with a name
_SINGLE = ("Returns", "Yields")
# A comment's sign, and a note to a tool; a reason after the note is for readers again.
_SIGN = re.compile(r"#+:?\s?((!|-\*-|noqa\b|(type|fmt|mypy|ruff|pragma):)[^#(]*#*\s?)?")
_LICENCE = re.compile(r"copyright|licen[cs]ed under|SPDX-", re.IGNORECASE)


def remarks(source: str) -> Iterator[str]:
    """A file's docstrings, then its comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield "\n".join(_itemised(ast.get_docstring(node) or ""))
    for comment in _comments(source):
        if not _is_code(comment) and not _LICENCE.search(comment):
            yield comment


def _itemised(docstring: str) -> Iterator[str]:
    """The lines of a docstring, with the entries of its sections as list items."""
    section = ""
    for line in docstring.splitlines():
        if line and not line.startswith(" "):
            found = _SECTION.fullmatch(line)
            section = found[1] if found else ""
            yield "" if found else line
        elif not section:
            yield line
        else:
            text = line.removeprefix("    ")
            begins = text and not text.startswith(" ") and section not in _SINGLE
            yield f"- {text}" if begins else f"  {text.removeprefix('    ')}"


def _comments(source: str) -> Iterator[str]:
    """Comments; several comment lines below each other count as one comment, and its first line may follow code."""
    found: list[list[str]] = []
    below = (0, 0)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            beside_code = token.line[:column].strip()
            if beside_code or token.start != below:
                found.append([])
            found[-1].append(_SIGN.sub("", token.string, count=1))
            below = (row + 1, column)
    yield from map("\n".join, found)


def _is_code(comment: str) -> bool:
    """Whether a comment is valid Python. This also includes single words, which are headings."""
    try:
        ast.parse(comment)
    except SyntaxError:
        return False
    return True
