"""`corl-twins new`: files under another name that pass all checks, or no files at all."""

import ast
import json
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from parity_tests.own import LIKE
from parity_tests.pairs import PAIRS
from port_checker import new, parity
from shared.commands.common import ended
from shared.errors import InputError
from shared.frameworks.twins import ROOT, page_of


@pytest.mark.parametrize("source", PAIRS)
def test_nothing_of_the_old_name_is_left(source: str, tmp_path: Path) -> None:
    """In the six files of any pair, which are all that CONTRIBUTING.md lists."""
    name = source.rpartition("/")[0] + "/my_own" if "/" in source else "my_own"
    files = {
        path.relative_to(tmp_path).as_posix(): text for path, text in new.six_files(tmp_path, source, name).items()
    }
    page = page_of(name)
    assert list(files) == [
        *(f"corl_{framework}/{name}.py" for framework in ("torch", "jax")),
        f"parity_tests/pairs/{page}.py",
        f"parity_tests/reference/test_{page}.py",
        f"configs/{name}.yaml",
        f"docs/algorithms/{page}.md",
    ]
    for path, text in files.items():
        if path.endswith(".py"):
            ast.parse(text)
            assert not re.search(rf"""["']{source}["']""", text)
    twins = [files[f"corl_{framework}/{name}.py"] for framework in ("torch", "jax")]
    assert all(f'cli(train, TrainConfig, "{name}")' in text for text in twins)
    assert all(re.search('name: str = "(MyOwn|my_own)"', text) and "class MyOwn" in text for text in twins)
    assert f'name="{name}"' in files[f"parity_tests/pairs/{page}.py"]
    assert 'title="MyOwn"' in files[f"parity_tests/pairs/{page}.py"]
    rows = yaml.safe_load((ROOT / "configs" / f"{source}.yaml").read_text())
    expected = {dataset: row or {} for dataset, row in rows.items() if dataset.startswith("mini/")}
    assert yaml.safe_load(files[f"configs/{name}.yaml"]) == expected


def test_all_files_are_written_or_none(tmp_path: Path) -> None:
    (tmp_path / "b.py").write_text("mine")
    files = {tmp_path / name: "text" for name in ("a.py", "b.py")}
    with pytest.raises(InputError, match=r"b\.py is there already: choose another name or another folder"):
        new.write_all(files)
    assert sorted(tmp_path.iterdir()) == [tmp_path / "b.py"]
    assert (tmp_path / "b.py").read_text() == "mine"
    with pytest.raises(InputError, match=r"b\.py is no folder, because a file is there: name another one"):
        new.write_all({tmp_path / "a.py": "text", tmp_path / "b.py" / "c.py": "text"})
    assert not (tmp_path / "a.py").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["My-TD3", "--from", "td3_bc"], "'My-TD3' cannot be a name: use small letters, digits and underscores"),
        (["my_td3", "--from", "td3bc"], "unknown algorithm 'td3bc'; nearest: td3_bc"),
        (["td3_bc", "--from", "iql", "--into", "."], "there is an algorithm td3_bc already: choose another name"),
        (["my_td3", "--from", "td3_bc"], "this is no clone of the repository: name a folder for a project"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ended(new.main, arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("origin", "needed"),
    [
        (None, "corl-twins"),
        ({"url": "file:///lab/corl_twins.whl", "archive_info": {}}, "corl-twins @ file:///lab/corl_twins.whl"),
        (
            {"url": "https://lab.org/twins.git", "vcs_info": {"vcs": "git", "commit_id": "ab12"}},
            "corl-twins @ git+https://lab.org/twins.git@ab12",
        ),
    ],
)
def test_a_project_depends_on_what_was_installed(
    origin: dict | None, needed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From an index of packages, a file or a repository, as pip recorded it."""
    recorded = None if origin is None else json.dumps(origin)
    monkeypatch.setattr(new, "distribution", lambda name: SimpleNamespace(read_text=lambda file: recorded))
    written = tomllib.loads(new.project(tmp_path, "td3_bc", "my_own")[tmp_path / "pyproject.toml"])
    assert written["project"]["dependencies"] == [needed]


@pytest.mark.thorough
@pytest.mark.parametrize("source", ["any_percent_bc", "finetune/iql"])
def test_a_project_passes_at_once(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a pair whose names say everything, and for one whose adapter is named in a line."""
    monkeypatch.chdir(tmp_path)
    assert new.main(["my_own", "--from", source, "--into", "project"]) == 0
    asks = f'{LIKE} = "{source}"' in Path("project/my_own_jax.py").read_text()
    assert asks == (source != "any_percent_bc")
    assert parity.main(["project/my_own_torch.py", "project/my_own_jax.py"]) == 0
