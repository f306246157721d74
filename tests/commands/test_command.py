"""`corl-twins`: one help, every command under its name, and training that equals that of the twins' own files."""

import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.__main__ import COMMANDS, main
from shared.frameworks.twins import FRAMEWORKS, algorithms
from tests.runs.stopped_runs import assert_same_bits, only_run

ROOT = Path(__file__).resolve().parents[2]
SHORT = ["--max_timesteps", "4", "--eval_freq", "2", "--n_episodes", "1", "--batch_size", "8", "--device", "cpu"]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command line in this process; returns its exit status and the text of both streams."""

    def type_in(*arguments: str) -> tuple[int, str, str]:
        try:
            status = main(arguments)
        except SystemExit as stop:
            status = stop.code
        return (status or 0, *capsys.readouterr())

    return type_in


@pytest.fixture
def by_file(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a twin's file in this process as `python FILE ...` would; returns the same three values."""

    def run(script: Path, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", [str(script), *arguments])
        try:
            runpy.run_path(str(script), run_name="__main__")
            status = 0
        except SystemExit as stop:
            status = stop.code
        return (status or 0, *capsys.readouterr())

    return run


def test_help_has_a_line_for_each_command(typed: Callable[..., tuple[int, str, str]]) -> None:
    status, help_, error = typed("--help")
    assert (status, error) == (0, "")
    assert help_.startswith("usage: corl-twins COMMAND ...\n")
    assert typed("-h") == (0, help_, "")
    lines = help_.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == list(COMMANDS)
    assert max(map(len, lines)) <= 110


def test_help_loads_nothing_that_takes_time() -> None:
    script = "import sys; from shared.__main__ import main; main(['--help'])"
    script += "; assert not {'torch', 'jax', 'numpy', 'gymnasium', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, check=True, timeout=300)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_s_help_says_how_it_is_typed(command: str, typed: Callable[..., tuple[int, str, str]]) -> None:
    status, help_, error = typed(command, "--help")
    assert (status, error) == (0, "")
    assert help_.startswith(f"usage: corl-twins {command} ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a command; --help lists them"),
        (["plott"], "unknown command 'plott'; nearest: plot"),
        (["--verbose"], "unknown command '--verbose'"),
        *(([command, "--no-such-flag"], "; --help explains") for command in COMMANDS),
        (["train"], "required: FRAMEWORK, ALGORITHM"),
        (["train", "td3_bc"], "argument FRAMEWORK: invalid choice: 'td3_bc' (choose from"),
        (["train", "numpy", "cql"], "invalid choice: 'numpy' (choose from"),
        (["train", "jax", "cqll"], "unknown algorithm 'cqll'; nearest: cql"),
        (["train", "jax", "../shared/names"], "unknown algorithm '../shared/names'; "),
        (["train", "jax", "cql", "--discont", "1"], "unknown argument '--discont'; did you mean --discount?"),
    ],
)
def test_bad_command_lines_end_in_one_line(
    arguments: list[str], message: str, typed: Callable[..., tuple[int, str, str]]
) -> None:
    status, out, error = typed(*arguments)
    assert (status, out) == (2, "")
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_twin_s_file_trains_by_the_name_that_the_command_takes(framework: str) -> None:
    """`corl-twins train` and the file end in the same call."""
    for name, path in algorithms(framework).items():
        ending = f'\n\nif __name__ == "__main__":\n    cli(train, TrainConfig, "{name}")\n'
        assert path.read_text().endswith(ending), name


@pytest.mark.parametrize("algorithm", ["cql", "online/sac"])
def test_the_help_is_the_file_s_own(algorithm: str, typed: Callable, by_file: Callable) -> None:
    """Except for the name of the program."""
    script = ROOT / "corl_jax" / f"{algorithm}.py"
    status, ours, _ = typed("train", "jax", algorithm, "--help")
    assert status == 0
    usage, rest = ours.split("\n\n", 1)
    assert usage.startswith(f"usage: corl-twins train jax {script.stem} [--config_path FILE]")
    status, theirs, _ = by_file(script, "--help")
    assert (status, theirs.split("\n\n", 1)[1]) == (0, rest)


def test_the_run_is_the_file_s_own(
    typed: Callable, by_file: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bitwise equal weights, from any folder, in `runs` of that folder."""
    script, arguments = ROOT / "corl_torch" / "any_percent_bc.py", ["--seed", "3", *SHORT]
    found = {}
    for name, run in (("file", by_file), ("command", typed)):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        what = [script] if name == "file" else ["train", "torch", "any_percent_bc"]
        status, _, error = run(*what, *arguments)
        assert status == 0, error
        found[name] = only_run(tmp_path / name / "runs")
    assert found["command"].name.startswith("BC-mini-hopper-mostly-expert-s3-torch-")
    assert_same_bits(found["command"], found["file"])


def test_a_run_that_cannot_begin_ends_as_the_file_s_does(typed: Callable, by_file: Callable) -> None:
    bad = ["--env", "hoper-medium-v2"]
    ended = by_file(ROOT / "corl_jax" / "cql.py", *bad)
    assert (ended[0], ended[1]) == (2, "")
    assert ended[2].startswith("error: unknown dataset 'hoper-medium-v2'")
    assert typed("train", "jax", "cql", *bad) == ended
