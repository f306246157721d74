"""The pairs as the README and the site list them; `corl-twins report --write` enters them there."""

from collections.abc import Sequence
from pathlib import Path

from parity_tests.pairs import PAIRS
from shared.frameworks.twins import ROOT, page_of, path_of


def table() -> str:
    """A row for each algorithm, with links to its files, its page and its paper, as Markdown for the README.

    A pair that goes on online stands in the row of its offline form, where there is one.
    """
    lines = ["| algorithm | PyTorch | JAX | page | paper |", "|---|---|---|---|---|"]
    for name, pair in PAIRS.items():
        if name.startswith("finetune/") and name.removeprefix("finetune/") in PAIRS:
            continue
        links = _links(name, ("torch", "jax", "docs"))
        if (online := f"finetune/{name}") in PAIRS:
            links = [", ".join(both) for both in zip(links, _links(online, ["online"] * 3), strict=True)]
        lines.append(f"| {' | '.join([pair.title, *links, f'[{pair.paper}]({pair.url})'])} |")
    return "\n".join(lines)


def toctree() -> str:
    """The algorithms' pages in the site's menu, as a directive of Sphinx's."""
    return "\n".join(["```{toctree}", ":hidden:", ":caption: Algorithms", "", *map(page_of, PAIRS), "```"])


def _links(name: str, words: Sequence[str]) -> list[str]:
    """To a pair's two files and its page, under these words."""
    targets = [*(_from_root(path_of(side, name)) for side in ("torch", "jax")), f"docs/{page_of(name)}.md"]
    return [f"[{word}]({target})" for word, target in zip(words, targets, strict=True)]


def _from_root(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
