"""`python -m parity_tests.likeness`: counts the lines that `diff` finds equal in the two files of each pair.

The lines are counted twice: in whole files, and without the settings, which are the same in both files and therefore
say nothing about the port.
"""

import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from parity_tests.pairs import PAIRS
from shared.frameworks.twins import path_of


def equal_lines(first: Path, second: Path) -> tuple[int, int, int]:
    """Counts the lines that `diff` leaves unmarked, and the lines of each file; white space counts.

    Raises:
        FileNotFoundError: There is no `diff` on this machine, or one of the files is missing.
    """
    in_first, in_second = (len(path.read_text().splitlines()) for path in (first, second))
    marked = subprocess.run(["diff", first, second], capture_output=True, text=True, check=False).stdout
    removed = sum(line.startswith("<") for line in marked.splitlines())
    return in_first - removed, in_first, in_second


def share(equal: int, first: int, second: int) -> float:
    """Equal lines as a share of all lines: twice the equal ones over the lines of both files."""
    return 2 * equal / (first + second)


def without_settings(text: str) -> str:
    """Removes the section `config` from a twin's text.

    Raises:
        ValueError: There is no such section, or no other section after it.
    """
    before, config, rest = text.partition("# ---- config ")
    _, section, behind = rest.partition("\n# ---- ")
    if not config or not section:
        raise ValueError("a twin has a section `config` and others behind it")
    return before + section.lstrip() + behind


def of_pair(name: str) -> tuple[int, int, int]:
    """`equal_lines` of a pair's twins."""
    return equal_lines(path_of("torch", name), path_of("jax", name))


def of_pair_without_settings(name: str) -> tuple[int, int, int]:
    """`equal_lines` of a pair's twins without their settings."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / framework for framework in ("torch", "jax")]
        for path in paths:
            path.write_text(without_settings(path_of(path.name, name).read_text()))
        return equal_lines(*paths)


def mean_share(count: Callable[[str], tuple[int, int, int]] = of_pair) -> float:
    """The average share over all pairs."""
    return sum(share(*count(name)) for name in PAIRS) / len(PAIRS)


def table() -> str:
    """A Markdown table with one row for each pair, and the average."""
    lines = [
        "| pair | equal lines | lines in PyTorch | lines in JAX | equal share | without settings |",
        "|---|---|---|---|---|---|",
    ]
    for name in PAIRS:
        equal, torch_lines, jax_lines = counts = of_pair(name)
        shares = f"{share(*counts):.0%} | {share(*of_pair_without_settings(name)):.0%}"
        lines.append(f"| {name} | {equal} | {torch_lines} | {jax_lines} | {shares} |")
    averages = f"{mean_share():.0%} | {mean_share(of_pair_without_settings):.0%}"
    return "\n".join([*lines, f"| average | | | | {averages} |"])


if __name__ == "__main__":
    print(table())
