"""Shared parts of the checker's tests: ports to check, changed ports, and a check within the test's own process."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from port_checker import check
from shared.commands.common import ended

ROOT = Path(__file__).resolve().parents[2]
PORTS = ROOT / "tests" / "port_checker" / "ports"
PLAIN = PORTS / "plain_td3_bc.py"
AWAC = ROOT / "exercises" / "solutions" / "17_awac.py"


def write_port(folder: Path, base: Path, changes: Sequence[tuple[str, str]] = ()) -> Path:
    """Writes `port.py`: a file with some of its text replaced; each old text must occur exactly once."""
    source = base.read_text(encoding="utf-8")
    for old, new in changes:
        assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {base.name}"
        source = source.replace(old, new)
    path = folder / "port.py"
    path.write_text(source, encoding="utf-8")
    return path


def check_here(path: Path, algorithm: str, settings: str | None = None) -> tuple[int, str]:
    """Checks in this process; returns the exit status and the checker's lines, however the file redefines `print`."""
    lines: list[str] = []

    def tell(kind: str, value: str) -> None:
        if kind == "line":
            lines.append(f"{value}\n")

    arguments = [str(path), "--algorithm", algorithm, *(("--settings", settings) if settings else ())]
    status = ended(lambda arguments: check.main(arguments, tell), arguments)
    return status, "".join(lines)


@pytest.fixture
def checked(tmp_path: Path, capsys: pytest.CaptureFixture) -> Callable[..., tuple[int, str]]:
    """Checks a file with some of its text replaced; returns the exit status, and the output followed by the error.

    It uses the default settings unless others are named, because each further set takes as long again.
    """

    def run(
        base: Path, *changes: tuple[str, str], algorithm: str = "td3_bc", settings: str = "default"
    ) -> tuple[int, str]:
        status, told = check_here(write_port(tmp_path, base, changes), algorithm, settings)
        return status, told + capsys.readouterr().err

    return run
