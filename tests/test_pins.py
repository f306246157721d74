"""constraints.txt fits every Python and platform that pyproject.toml allows, and contains nothing but versions."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from itertools import product
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "constraints.txt"
PLATFORMS = ("linux", "macos", "windows")
# PyTorch's wheels for macOS need 14; uv would assume 13.
OLDEST_MACOS = {"MACOSX_DEPLOYMENT_TARGET": "14.0"}


def pins(path: Path) -> list[Requirement]:
    """The file's pins, without its comments."""
    return [Requirement(line) for line in path.read_text().splitlines() if not line.startswith("#")]


def lowest_and_highest() -> tuple[str, str]:
    """The first release of the oldest allowed Python, and the newest Python, since there must be an upper bound."""
    admitted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    versions = [f"3.{minor}" for minor in range(100) if f"3.{minor}.0" in SpecifierSet(admitted)]
    assert len(versions) < 50, f"{admitted} has no end"
    return f"{versions[0]}.0", versions[-1]


def start(arguments: list[str]) -> subprocess.Popen[str]:
    """Starts uv with wheels only, so that it runs no package's code and sees what cannot be installed."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    uv = shutil.which("uv", path=path)
    if uv is None:
        pytest.skip("uv is missing: pip install uv")
    options = ["--no-config", "--no-python-downloads", "--no-build", "--no-annotate", "--no-header", "--quiet"]
    return subprocess.Popen(
        [uv, "pip", "compile", *options, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | OLDEST_MACOS,
    )


def complaints(path: Path, only: tuple[str, str] | None = None) -> list[str]:
    """Reasons why `path` fails for each Python and platform, or for one: no solution, or a version left open."""
    pairs = [only] if only else list(product(lowest_and_highest(), PLATFORMS))
    wanted = [str(ROOT / "pyproject.toml"), "--extra", "dev", "--constraint", str(path)]
    started = [start([*wanted, "--python-version", python, "--python-platform", name]) for python, name in pairs]
    known, found = {f"{pin.name}{pin.specifier}" for pin in pins(path)}, []
    for (python, name), process in zip(pairs, started, strict=True):
        out, err = process.communicate(timeout=120)
        words = err if process.returncode else " ".join(sorted(set(out.split()) - known))
        found += [f"Python {python}, {name}: {words}"] if words else []
    return found


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips tests that need a registry if there is none."""
    one = tmp_path_factory.mktemp("registry") / "one.in"
    one.write_text("packaging\n")
    process = start([str(one)])
    if process.communicate(timeout=120) and process.returncode:
        pytest.skip("no package registry can be reached")


@pytest.mark.usefixtures("registry")
def test_the_pins_resolve_everywhere() -> None:
    assert complaints(PINS) == [], "`make pins` writes constraints.txt anew"


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    ("package", "pin", "where"),
    [
        ("mujoco", "mujoco==3.4.0", ("3.14", "linux")),  # it has no wheel there
        ("colorama", "", ("3.11.0", "windows")),
    ],
)
def test_a_pin_that_does_not_hold_is_found(package: str, pin: str, where: tuple[str, str], tmp_path: Path) -> None:
    others = [line for line in PINS.read_text().splitlines() if not line.startswith(f"{package}==")]
    path = tmp_path / "constraints.txt"
    path.write_text("\n".join([*others, pin]).strip() + "\n")
    assert package in "".join(complaints(path, where))


def test_a_pin_is_a_name_a_version_and_a_marker() -> None:
    """No address, path, hash, extra or local build: pip accepts none of the last three in a constraint."""
    for pin in pins(PINS):
        assert not pin.url
        assert not pin.extras
        (version,) = pin.specifier
        assert version.operator == "=="
        assert re.fullmatch(r"[0-9a-z.]+", version.version), pin
    assert not re.search(r"//|@|--", PINS.read_text())
