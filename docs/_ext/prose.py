"""`python docs/_ext/prose.py [PAGE ...]`: names sentences that are too long to be read at once.

Paragraphs and list items count; headings, tables, formulas and code do not. A piece of code in a sentence is one word.
Without pages it looks at the README, CONTRIBUTING, docs/ and the exercises, and tells their mean as well.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.dollarmath import dollarmath_plugin

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "exercises").glob("*/README.md")),
]
LONGEST = 25
_END = re.compile(r"(?<=[.!?])[)\"]?\s+(?=[A-Z(\"*])")
# Full stops that end no sentence
_SHORT = re.compile(r"\b(et al|e\.g|i\.e|vs|cf)\.\s")


def sentences(page: str) -> Iterator[str]:
    """The sentences of a page's paragraphs and list items."""
    opened: list[str] = []
    for token in MarkdownIt("commonmark").enable("table").use(dollarmath_plugin).parse(page):
        if token.nesting:
            opened = [*opened, token.type] if token.nesting > 0 else opened[:-1]
        elif token.type == "inline" and not {"heading_open", "table_open"} & set(opened):
            text = _SHORT.sub(r"\1 ", "".join(map(_spoken, token.children or ())))
            yield from filter(None, map(str.strip, _END.split(text)))


def _spoken(token: Token) -> str:
    """What a reader says of a piece of text."""
    kinds = {"code_inline": "Code", "softbreak": " ", "hardbreak": " ", "text": token.content}
    return kinds.get(token.type, "")


def words(sentence: str) -> int:
    """How many words it has; a number is one."""
    return len(re.findall(r"\w[\w'.,:/%+-]*", sentence))


def main(arguments: Sequence[str]) -> int:
    """Prints what is too long, and the mean; 1 if anything is."""
    counted, long = [], 0
    for path in [Path(name).resolve() for name in arguments] or PAGES:
        for sentence in sentences(path.read_text(encoding="utf-8")):
            counted.append(words(sentence))
            if counted[-1] > LONGEST:
                long += 1
                print(f"{path.relative_to(ROOT)}: {counted[-1]} words: {sentence}")
    print(f"{len(counted)} sentences of {sum(counted) / len(counted):.1f} words; {long} have more than {LONGEST}")
    return int(long > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
