"""The lesson `docs/port/port_your_own.md`: its changes fit the files, and the checks say what the page shows."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from port_checker import new, parity
from shared.__main__ import main
from shared.frameworks.twins import FRAMEWORKS, ROOT, load_twin

PAGE = ROOT / "docs" / "port" / "port_your_own.md"
FILES = ["sql_torch.py", "sql_jax.py"]
SHORT = ["--max_timesteps=4", "--eval_freq=4", "--n_episodes=1", "--device=cpu"]

pytestmark = pytest.mark.thorough


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The project of step 2 as the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert new.main(["sql", "--from", "iql", "--into", "."]) == 0
    yield
    load_twin.cache_clear()
    for framework in FRAMEWORKS:
        sys.modules.pop(f"sql_{framework}", None)


def apply(change: str) -> None:
    """Makes a change: after the file's name, each hunk is found by its text, which occurs once."""
    head, *hunks = change.split("@@\n")
    file = Path(head.removeprefix("--- ").strip())
    text = file.read_text()
    for hunk in hunks:
        lines = hunk.splitlines(keepends=True)
        old, new_ = ("".join(line[1:] for line in lines if line[0] in signs) for signs in (" -", " +"))
        old, new_ = (part.removesuffix("\n") for part in (old, new_))
        assert text.count(old) == 1, old
        text = text.replace(old, new_)
    file.write_text(text)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """The output of `corl-twins parity`."""
    capsys.readouterr()
    parity.main(FILES)
    return capsys.readouterr().out


def test_the_ten_steps(project: None, capsys: pytest.CaptureFixture[str]) -> None:
    page = PAGE.read_text()
    blocks = re.findall(r"```(\w*)\n(.*?)```\n", page, re.DOTALL)
    checks = [index for index, (_, text) in enumerate(blocks) if text.startswith("corl-twins parity")]
    for index, (language, text) in enumerate(blocks):
        if language == "diff":
            apply(text)
        if index in checks:
            found = said(capsys)
            assert all(part in found for part in blocks[index + 1][1].split("...\n"))
            assert (index == checks[-1]) == found.endswith("agree: all checks pass\n")
    for framework in FRAMEWORKS:
        assert main(["train", framework, "sql", *SHORT]) == 0
