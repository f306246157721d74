"""`corl-twins report runs`: a report on many runs as one page, as Markdown and as LaTeX."""

import argparse
import importlib.util
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from shared.commands import statistics
from shared.commands.common import Parser
from shared.commands.reporting.runs import Gathered, gather
from shared.errors import InputError
from shared.files import write_atomically

_NEEDED = ("bokeh", "tabulate")


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the command line; `--help` explains it.

    Raises:
        InputError: The command line cannot be used.
    """
    parser = Parser(
        prog="corl-twins report",
        description="Writes a report of many runs: scores by dataset and algorithm next to CORL's, performance "
        "profiles, PyTorch against JAX, zoomable learning curves, costs, and missing runs. The page is a single "
        "HTML file; the tables are written as Markdown and LaTeX as well.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="FOLDER", help="a run's folder, or a folder of runs")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="page to write; the others go next to it (default: FOLDER/report.html)",
    )
    parser.add_argument(
        "--margin",
        type=float,
        default=statistics.MARGIN,
        help=f"largest difference of means that counts as equal (default: {statistics.MARGIN:g})",
    )
    parser.add_argument("--watch", action="store_true", help="serve the page on this machine, and follow the runs")
    parser.add_argument("--port", type=int, default=8000, help="port of the served page; 0: any (default: 8000)")
    options = parser.parse_args(arguments)
    if not options.margin > 0:
        parser.error("--margin must be greater than 0")
    if not 0 <= options.port < 2**16:
        parser.error("--port must lie between 0 and 65535")
    return options


def about(gathered: Gathered) -> str:
    """A summary of the runs in a report."""
    counted = sum(map(len, gathered.groups.values()))
    now = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    others = len(gathered.runs) + len(gathered.faults) - counted
    left_out = f", {others} are left out and named below" if others else ""
    return f"{counted + others} runs, {counted} of them count{left_out}; {now}."


def page_of(gathered: Gathered, title: str, margin: float, digest: str | None = None) -> str:
    """The HTML page."""
    from shared.commands.reporting import charts, page, tables

    means = tables.interquartile_means(tables.by_task(gathered.groups))
    drawn = charts.every(gathered, means)
    return page.html(title, about(gathered), tables.every(gathered, margin, means), drawn, digest)


def write(gathered: Gathered, title: str, margin: float, output: Path) -> None:
    """Writes the page, and next to it its tables as Markdown and LaTeX.

    Raises:
        InputError: A file cannot be written.
    """
    from shared.commands.reporting import charts, page, tables

    means = tables.interquartile_means(tables.by_task(gathered.groups))
    found = tables.every(gathered, margin, means)
    contents = {
        ".html": page.html(title, about(gathered), found, charts.every(gathered, means)),
        ".md": page.markdown(title, about(gathered), found),
        ".tex": page.latex(found),
    }
    try:
        for suffix, content in contents.items():
            write_atomically(output.with_suffix(suffix), content.encode())
    except OSError as error:
        raise InputError(f"cannot write {output} ({error.strerror}): set --output") from error


def main(arguments: Sequence[str]) -> None:
    """Runs the command.

    Raises:
        InputError: The command line or the runs cannot be used.
    """
    options = parse_arguments(arguments)
    if lacking := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise InputError(f"a report needs {' and '.join(lacking)}: pip install 'corl-twins[report]'")
    title = ", ".join(path.resolve().name for path in options.runs)
    if options.watch:
        from shared.commands.reporting.watching import serve

        serve(options.runs, lambda gathered, digest: page_of(gathered, title, options.margin, digest), options.port)
        return
    gathered = gather(options.runs)
    if not gathered.runs:
        raise InputError("none of these runs has been evaluated yet: wait for its first evaluation, or give --watch")
    output = options.output or options.runs[0] / "report.html"
    write(gathered, title, options.margin, output)
    print(output)
