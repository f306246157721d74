"""The pairs as the README and the site list them; `corl-twins report --write` enters them there."""

from pathlib import Path

from parity_tests.pairs import PAIRS
from shared.frameworks.twins import ROOT, page_of, path_of


def table() -> str:
    """A row for each pair, with links to its files, its page and its paper, as Markdown for the README."""
    lines = ["| algorithm | PyTorch | JAX | page | paper |", "|---|---|---|---|---|"]
    for name, pair in PAIRS.items():
        files = [f"[{side}]({_from_root(path_of(side, name))})" for side in ("torch", "jax")]
        cells = [pair.title, *files, f"[docs](docs/{page_of(name)}.md)", f"[{pair.paper}]({pair.url})"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def toctree() -> str:
    """The algorithms' pages in the site's menu, as a directive of Sphinx's."""
    return "\n".join(["```{toctree}", ":hidden:", ":caption: Algorithms", "", *map(page_of, PAIRS), "```"])


def _from_root(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
