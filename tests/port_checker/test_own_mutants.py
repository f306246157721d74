"""`corl-twins mutants`: mistakes that nothing notices are shown as changes of lines, and no file is changed."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from parity_tests.mutants.operators import Mutant, mutants
from port_checker import mutants as command
from shared.errors import InputError
from shared.frameworks.twins import path_of

pytestmark = pytest.mark.thorough


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Copies of TD3+BC's files in a project of their own, which is the current folder."""
    monkeypatch.chdir(tmp_path)
    paths = tmp_path / "my_torch.py", tmp_path / "my_jax.py"
    for framework, path in zip(("torch", "jax"), paths, strict=True):
        path.write_text(path_of(framework, "td3_bc").read_text())
    return paths


def only(*texts: str) -> Callable[..., list[Mutant]]:
    """For each of these texts, the first mutant that changes it."""

    def few(source: str, framework: str) -> list[Mutant]:
        every = mutants(source, framework)
        return [next(mutant for mutant in every if mutant.old == text) for text in texts]

    return few


def test_the_checks_notice_what_changes_numbers(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`strict=True` changes none: it states a fact about networks of the same shape."""
    before = [path.read_text() for path in files]
    monkeypatch.setattr(command, "mutants", only("q.abs().mean().detach()", "True"))
    monkeypatch.setattr(command, "ORDER", ("gradient", "update"))
    assert command.main([*map(str, files), "--side", "torch"]) == 1
    printed = capsys.readouterr().out
    assert re.match(r"  \* in `soft_update` \(my_torch\.py:\d+\)\n    - .*=True.*\n    \+ .*=False.*\nEach", printed)
    assert printed.endswith("2 mistakes, 1 noticed, 1 not\n")
    assert [path.read_text() for path in files] == before


def test_files_that_do_not_agree_are_refused(files: tuple[Path, Path]) -> None:
    """Otherwise, every mistake would count as noticed."""
    torch_file, jax_file = files
    jax_file.write_text(jax_file.read_text().replace("(1.0 - batch.terminals)", "(2.0 - batch.terminals)"))
    with pytest.raises(InputError, match=r"do not agree yet \(\w+\): run `corl-twins parity`"):
        command.main([str(torch_file), str(jax_file), "--sample", "1"])


@pytest.mark.parametrize(
    ("test", "ending"),
    [
        ("assert my_jax.TrainConfig().tau == 0.005", "1 mistake, 0 noticed, 1 not\n"),
        ("assert open(my_jax.__file__).read() == open('right.txt').read()", "1 mistake, 1 noticed, 0 not\n"),
    ],
)
def test_own_tests_must_notice_them(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str], test: str, ending: str
) -> None:
    """They import the copy with the mistake."""
    Path("right.txt").write_text(files[1].read_text())
    Path("test_mine.py").write_text(f"import my_jax\n\n\ndef test_mine():\n    {test}\n")
    tests = f"{sys.executable} -m pytest -q -p no:cacheprovider test_mine.py"
    asked = ["--side", "jax", "--sample", "1", "--seed", "0", "--tests", tests, "--verbose"]
    status = command.main([*map(str, files), *asked])
    printed = capsys.readouterr().out
    assert printed.endswith(ending)
    assert f"    noticed by: {'nothing' if '0 noticed' in ending else 'your tests'}\n" in printed
    assert status == int("0 noticed" in ending)


def test_tests_that_fail_anyway_are_refused(files: tuple[Path, Path]) -> None:
    """In the same way as a command that doesn't exist, and as a file outside the project."""
    tests = f"{sys.executable} -c 'raise SystemExit(1)'"
    for arguments, message in [
        ([*map(str, files), "--tests", tests], "fails without a mutant"),
        ([*map(str, files), "--tests", "no-such-command"], "cannot run no-such-command"),
        ([str(files[0]), str(path_of("jax", "td3_bc")), "--side", "jax", "--tests", tests], "is not below"),
        (["missing.py", str(files[1])], "there is no Python file missing.py"),
    ]:
        with pytest.raises(InputError, match=message):
            command.main(arguments)
