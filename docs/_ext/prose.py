"""`python docs/_ext/prose.py [FILE ...]`: names sentences that are too long, and habits that are not plain English.

The length is checked in paragraphs, list items and picture texts of Markdown pages, and in docstrings and comments of
Python files. Headings, tables, formulas and code are not included. A piece of code in a sentence is one word. Habits
are looked for in the README and in docs/, also in tables. Without files, it checks all pages (the README,
CONTRIBUTING, docs/ and the exercises) and every Python file.
"""

import re
import statistics
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.dollarmath import dollarmath_plugin

from remarks import remarks

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    ROOT / "docs" / "index.md",
    *(path for path in sorted((ROOT / "docs").glob("*/*.md")) if path.parent.name != "side_by_side"),
    *sorted((ROOT / "exercises").glob("*/README.md")),
]
LONGEST = 30
# A habit, and what an American engineer would say
HABITS = {
    r"\b(those|that) of\b": "repeat the noun, or use a possessive (`CORL's`)",
    r"^What\b[^?]*$": "begin with the subject, not with a clause",
    r"^So\b(?! far)": "because, therefore, or for this reason",
    r"\b(go|goes|going|gone|went) on\b": "continue, resume",
    r"\bbehind (a|all|an|each|every|it|its|such|that|the|them|which|Code)\b": "after",
    r"\b(stands?|stood|lies|lay) (at|before|below|beside|between|here|in(?! for)|near|on|there|within)\b": "is",
    r"\b(are|be|is|was|were) told\b": "say who tells, or use get or learn",
    r"\bask(s|ed) for\b": "need, require",
    r"\bbut for\b": "except for",
    r"(?<![/\w])(climb\w*|ladders?|rungs?)(?!/|\w|\.\w)": "variant (benchmarks), check (parity)",
}
_END = re.compile(r"(?<=[.!?])[)\"]?\s+(?=[A-Z(\"*])")
# Full stops that end no sentence
_SHORT = re.compile(r"\b(et al|e\.g|i\.e|vs|cf)\.\s")
_MARKDOWN = MarkdownIt("commonmark").enable("table").use(dollarmath_plugin)


def python_files() -> list[Path]:
    """The Python files that ruff checks, without those that git ignores; also works without git."""
    command = [sys.executable, "-m", "ruff", "check", "--show-files"]
    shown = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sorted(path for path in map(Path, shown.splitlines()) if path.suffix == ".py")


def sentences_of(path: Path) -> Iterator[str]:
    """The sentences of a page, or of a Python file's docstrings and comments."""
    text = path.read_text(encoding="utf-8")
    for piece in remarks(text) if path.suffix == ".py" else [text]:
        yield from sentences(piece)


def sentences(page: str, without: Collection[str] = ("heading_open", "table_open")) -> Iterator[str]:
    """The sentences of a page's paragraphs, list items and other blocks, without the excluded blocks."""
    opened: list[str] = []
    for token in _MARKDOWN.parse(page):
        if token.nesting:
            opened = [*opened, token.type] if token.nesting > 0 else opened[:-1]
        elif token.type == "inline" and not set(without) & set(opened):
            text = _SHORT.sub(r"\1 ", "".join(map(_spoken, token.children or ())))
            yield from filter(None, map(str.strip, _END.split(text)))


def _spoken(token: Token) -> str:
    """The words of a token as a reader would say them."""
    # A picture's text is a sentence of its own.
    kinds = {"code_inline": "Code", "softbreak": " ", "hardbreak": " ", "text": token.content}
    kinds["image"] = f"{token.content.rstrip('.')}. "
    return kinds.get(token.type, "")


def habits(path: Path) -> Iterator[str]:
    """Yields each habit in a page for users: its words, the fix and the sentence."""
    page = path.suffix == ".md" and path.relative_to(ROOT).parts[0] in ("README.md", "docs")
    for sentence in sentences(path.read_text(encoding="utf-8"), ["heading_open"]) if page else ():
        for pattern, fix in HABITS.items():
            if found := re.search(pattern, sentence):
                yield f"{found[0]!r}, better {fix}: {sentence}"


def words(sentence: str) -> int:
    """The number of words in a sentence; a number counts as one."""
    return len(re.findall(r"\w[\w'.,:/%+-]*", sentence))


def main(arguments: Sequence[str]) -> int:
    """Prints long sentences and habits, then counts and means for pages and Python files; returns 1 if it found any."""
    counts: dict[str, list[int]] = {}
    met = 0
    for path in [Path(name).resolve() for name in arguments] or [*PAGES, *python_files()]:
        counted = counts.setdefault("Python files" if path.suffix == ".py" else "pages", [])
        for sentence in sentences_of(path):
            counted.append(words(sentence))
            if counted[-1] > LONGEST:
                print(f"{path.relative_to(ROOT)}: {counted[-1]} words: {sentence}")
        for habit in habits(path):
            print(f"{path.relative_to(ROOT)}: {habit}")
            met += 1
    found = [summarised(kind, counted) for kind, counted in counts.items()]
    return int(sum(found) + met > 0)


def summarised(kind: str, counted: Sequence[int]) -> int:
    """Prints the number and mean length of the sentences in such files; returns how many are too long."""
    long, mean = sum(number > LONGEST for number in counted), statistics.fmean(counted or [0])
    print(f"{kind}: {len(counted)} sentences of {mean:.1f} words; {long} have more than {LONGEST}")
    return long


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
