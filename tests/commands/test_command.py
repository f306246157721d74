"""`corl-twins`: one help, every command under its name, and training as the twins' own files do it."""

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
TWINS = [(framework, name) for framework in FRAMEWORKS for name in algorithms(framework)]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command line in this process; its exit status and what it prints to either stream."""

    def type_in(*arguments: str) -> tuple[int, str, str]:
        try:
            status = main(arguments)
        except SystemExit as stop:
            status = int(stop.code or 0)
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return type_in


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess:
    """Runs Python in a process of its own."""
    return subprocess.run([sys.executable, *command], cwd=cwd, capture_output=True, text=True, timeout=300)


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
    done = run("-c", script, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_s_help_says_how_it_is_typed(command: str, typed: Callable[..., tuple[int, str, str]]) -> None:
    status, help_, error = typed(command, "--help")
    assert (status, error) == (0, "")
    assert help_.startswith(f"usage: corl-twins {command} ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a command; --help lists them"),
        (["plott"], "unknown command 'plott'; nearest: plot, "),
        (["--verbose"], "unknown command '--verbose'"),
        *(([command, "--no-such-flag"], "; --help explains") for command in COMMANDS),
        (["train"], "required: FRAMEWORK, ALGORITHM"),
        (["train", "numpy", "cql"], "invalid choice: 'numpy' (choose from"),
        (["train", "jax", "cqll"], "unknown algorithm 'cqll'; nearest: cql"),
        (["train", "jax", "../shared/names"], "unknown algorithm '../shared/names'; nearest: "),
        (["train", "jax", "cql", "--discont", "1"], "unknown argument '--discont'; nearest: --discount"),
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


@pytest.mark.parametrize(("framework", "name"), TWINS)
def test_a_twin_s_file_trains_by_the_name_that_the_command_takes(framework: str, name: str) -> None:
    """`corl-twins train` and the file end in the same call."""
    source = algorithms(framework)[name].read_text()
    assert source.endswith(f'\n\nif __name__ == "__main__":\n    cli(train, TrainConfig, "{name}")\n')


@pytest.mark.parametrize("algorithm", ["cql", "online/sac"])
def test_the_help_is_the_file_s_own(algorithm: str, tmp_path: Path) -> None:
    """But for the name of the program."""
    script = next(ROOT.glob(f"corl_jax/**/{Path(algorithm).name}.py"))
    by_file = run(str(script), "--help", cwd=tmp_path)
    by_command = run("-m", "shared", "train", "jax", algorithm, "--help", cwd=tmp_path)
    assert by_file.returncode == by_command.returncode == 0
    usage, rest = by_command.stdout.split("\n\n", 1)
    assert usage.startswith(f"usage: corl-twins train jax {script.stem} [--config_path FILE]")
    assert rest == by_file.stdout.split("\n\n", 1)[1]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_run_is_the_file_s_own(framework: str, tmp_path: Path) -> None:
    """The same weights to the bit, from any folder, in `runs` of that folder."""
    script = str(ROOT / f"corl_{framework}" / "any_percent_bc.py")
    for folder, program in (("file", [script]), ("command", ["-m", "shared", "train", framework, "any_percent_bc"])):
        (tmp_path / folder).mkdir()
        done = run(*program, "--seed", "3", *SHORT, cwd=tmp_path / folder)
        assert done.returncode == 0, done.stderr
    by_file, by_command = (only_run(tmp_path / folder / "runs") for folder in ("file", "command"))
    assert by_command.name.startswith(f"BC-mini-hopper-medium-expert-s3-{framework}-")
    assert_same_bits(by_command, by_file)


def test_a_run_that_cannot_begin_ends_as_the_file_s_does(tmp_path: Path) -> None:
    bad = ["--env", "hoper-medium-v2"]
    by_file = run(str(ROOT / "corl_jax" / "cql.py"), *bad, cwd=tmp_path)
    by_command = run("-m", "shared", "train", "jax", "cql", *bad, cwd=tmp_path)
    assert by_file.returncode == by_command.returncode == 2
    assert by_file.stderr == by_command.stderr
    assert by_command.stderr.startswith("error: unknown dataset 'hoper-medium-v2'")
