"""The wheel, installed outside this clone: its command works from an empty folder, with the package's own files."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ["benchmarks", "configs", "corl_jax", "corl_torch", "datasets", "parity_tests", "port_checker", "shared"]
KINDS = ["py", "yaml", "json", "txt", "hdf5", "pt", "msgpack"]
SHORT = ["--max_timesteps", "4", "--eval_freq", "2", "--n_episodes", "1", "--device", "cpu"]
# Together these load modules of every top-level package, which then print their locations
LISTING = """
import sys
from corl_twins.__main__ import main
for command in ("tables", "check --template any_percent_bc"):
    sys.argv = ["corl-twins", *command.split()]
    assert main() == 0
for name, module in sorted(sys.modules.items()):
    if name.partition(".")[0] in ("shared", "corl_torch", "corl_jax", "parity_tests", "port_checker", "benchmarks"):
        print("module", name, module.__file__)
"""


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess:
    """Runs a program without any variable that leads to this clone."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


def succeed(*command: str | Path, cwd: Path) -> str:
    """Runs a program that must succeed; returns its output."""
    done = run(*command, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment with the wheel; this interpreter's environment provides the rest.

    An editable install of this clone does not count, because a `.pth` file in a folder that another one names isn't
    read.
    """
    folder = tmp_path_factory.mktemp("package")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    succeed(*pip, "wheel", ROOT, "--no-deps", "--no-index", "--no-build-isolation", "-w", folder, cwd=folder)
    succeed(sys.executable, "-m", "venv", "--without-pip", folder / "env", cwd=folder)
    (wheel,) = folder.glob("*.whl")
    python = folder / "env" / "bin" / "python"
    succeed(*pip, "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    (packages,) = (folder / "env" / "lib").glob("python*/site-packages")
    others = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (packages / "others.pth").write_text("\n".join(others))
    return python.parent


@pytest.fixture(scope="module")
def house(programs: Path) -> Path:
    """The folder of the wheel's files."""
    (found,) = programs.parent.glob("lib/python*/site-packages/corl_twins/house")
    return found


@pytest.fixture
def typed(programs: Path, tmp_path: Path) -> Callable[..., str]:
    """Runs a command line from an empty folder; returns its output."""
    return lambda *arguments: succeed(programs / "corl-twins", *arguments, cwd=tmp_path)


def test_only_one_name_is_taken_from_other_packages(programs: Path, house: Path, tmp_path: Path) -> None:
    assert sorted(path.name for path in house.iterdir()) == ROOMS
    names = [*ROOMS, "lessons", "tests", "docs", "exercises"]
    find = f"print([name for name in {names} if importlib.util.find_spec(name)], corl_twins.__file__)"
    found = succeed(programs / "python", "-c", f"import importlib.util, corl_twins; {find}", cwd=tmp_path)
    assert found == f"[] {house.parent / '__init__.py'}\n"
    tell = "from importlib.metadata import version; print(version('corl-twins'))"
    assert succeed(programs / "python", "-c", tell, cwd=tmp_path) == f"{version('corl-twins')}\n"


def test_the_wheel_has_what_commands_need_and_no_tests(house: Path) -> None:
    for room in ROOMS:
        kinds = {path for kind in KINDS for path in (ROOT / room).rglob(f"*.{kind}")}
        needed = {path.relative_to(ROOT) for path in kinds if not path.name.startswith(("test_", "conftest"))}
        there = {path.relative_to(house) for path in (house / room).rglob("*.*") if "__pycache__" not in path.parts}
        assert there <= needed
        left_out = {path.as_posix() for path in needed - there}
        assert all(path.startswith(("parity_tests/reference/", "parity_tests/engine/compilation")) for path in left_out)


def test_it_trains_and_draws(typed: Callable[..., str], tmp_path: Path) -> None:
    """In PyTorch; the tests below train in JAX."""
    typed("train", "torch", "any_percent_bc", *SHORT)
    (folder,) = (tmp_path / "runs").iterdir()
    assert json.loads((folder / "result.json").read_text())["metric"] == "d4rl_normalized_score"
    assert typed("plot", "runs").endswith("runs/curves.png\n")
    assert (tmp_path / "runs/curves.png").read_bytes().startswith(b"\x89PNG")


def test_it_is_called_from_python(programs: Path, house: Path, tmp_path: Path) -> None:
    """Its own settings and data are included, and type checkers see its types."""
    short = "max_timesteps=2, eval_freq=2, n_episodes=1, device='cpu', progress=False"
    program = f"import corl_twins; run = corl_twins.train('any_percent_bc', {short}); "
    program += "print(run.policy.framework, run.policy([0.0] * 11).shape)"
    assert succeed(programs / "python", "-c", program, cwd=tmp_path) == "jax (3,)\n"
    assert (house.parent / "py.typed").is_file()


def test_it_checks_a_port(typed: Callable[..., str], tmp_path: Path) -> None:
    """A port that imports `shared`, as the twins do."""
    (tmp_path / "port.py").write_text((ROOT / "corl_jax" / "any_percent_bc.py").read_text())
    printed = typed("check", "port.py", "--algorithm", "any_percent_bc", "--settings", "default")
    assert printed.endswith("port.py is any_percent_bc: all checks pass under the settings 'default'\n")


def test_it_starts_a_pair_and_compares_it(programs: Path, typed: Callable[..., str], tmp_path: Path) -> None:
    """In a project with its own table of settings, whose files find the installed package by themselves."""
    typed("new", "my_bc", "--from", "any_percent_bc", "--into", ".")
    assert typed("parity", "my_bc_torch.py", "my_bc_jax.py").endswith("my_bc_jax.py agree: all checks pass\n")
    said = succeed(programs / "python", "my_bc_jax.py", *SHORT, cwd=tmp_path)
    assert said.startswith("settings of configs/my_bc.yaml for mini/hopper-mostly-expert: frac=0.5")
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("MyBc-mini-hopper-mostly-expert-s0-jax-")


def test_what_it_runs_is_its_own(programs: Path, house: Path, tmp_path: Path) -> None:
    """Even next to a package of the user's with a generic name."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "__init__.py").write_text("raise ImportError")
    lines = succeed(programs / "python", "-c", LISTING, cwd=tmp_path).splitlines()
    assert any(line.startswith("| any_percent_bc |") for line in lines)
    modules = [line.split() for line in lines if line.startswith("module ")]
    assert {name.partition(".")[0] for _, name, _ in modules} == set(ROOMS) - {"configs", "datasets"}
    assert all(Path(path).is_relative_to(house) for _, _, path in modules)


def test_what_only_a_clone_has_is_said_in_one_line(programs: Path, tmp_path: Path) -> None:
    done = run(programs / "corl-twins", "tables", "--write", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "error: --write fills the README and the docs, which only a clone of the repository has\n"
