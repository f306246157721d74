"""`python -m parity_tests.likeness`: how many lines `diff` finds equal in the two files of each pair."""

import subprocess
from pathlib import Path

from parity_tests.pairs import PAIRS
from shared.frameworks.twins import path_of


def equal_lines(first: Path, second: Path) -> tuple[int, int, int]:
    """The lines that `diff` leaves unmarked, and the lines of either file; white space counts.

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


def of_pair(name: str) -> tuple[int, int, int]:
    """`equal_lines` of a pair's twins."""
    return equal_lines(path_of("torch", name), path_of("jax", name))


def mean_share() -> float:
    """The average over all pairs."""
    return sum(share(*of_pair(name)) for name in PAIRS) / len(PAIRS)


def table() -> str:
    """A row for each pair, and the average, as Markdown."""
    lines = ["| pair | equal lines | lines in PyTorch | lines in JAX | equal share |", "|---|---|---|---|---|"]
    for name in PAIRS:
        equal, torch_lines, jax_lines = of_pair(name)
        lines.append(f"| {name} | {equal} | {torch_lines} | {jax_lines} | {share(equal, torch_lines, jax_lines):.0%} |")
    return "\n".join([*lines, f"| average | | | | {mean_share():.0%} |"])


if __name__ == "__main__":
    print(table())
