"""Sentences are counted as a reader would count them."""

from pathlib import Path

import pytest

import prose

PAGE = """# A heading. It has two sentences

One two `three four` five. Six
seven (Eight et al. 2020) nine!

- Ten, *eleven* and [twelve](link.md). Thirteen is 1.5.

![Fourteen. And fifteen](picture.svg)

*Sixteen.*

| a table. It counts nothing |
|---|

```
code. It counts nothing
```
"""


PYTHON = '''"""A module's title.

One two `three` four. Five
six seven:

    code("It counts nothing. As little as this")
"""

# Copyright of somebody. All rights are reserved.

import json  # noqa: F401 (a reason)

TEXT = "A string is code. It counts nothing"  # Beside one line
MORE = 8  # Beside the next line
# Eight nine
# ten. Eleven:
# - an item,
#   of two lines
# - another item

# MORE = call(TEXT)


class Thing:
    """A class's title.

    Attributes:
        first: An entry
            of two lines. And of two sentences.
        second: Another entry.

    Twelve thirteen.
    """

    def method(self):  # type: ignore
        """A method's title.

        Returns:
            A mapping
            of numbers.

        Raises:
            ValueError: Always.
        """
'''
LONG = " ".join(["Word"] * 31)


def test_sentences_of_python_are_those_of_docstrings_and_comments(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(PYTHON)
    assert list(prose.sentences_of(file)) == [
        *["A module's title.", "One two Code four.", "Five six seven:"],
        *["A class's title.", "first: An entry of two lines.", "And of two sentences.", "second: Another entry."],
        *["Twelve thirteen.", "A method's title.", "A mapping of numbers.", "ValueError: Always."],
        *["(a reason)", "Beside one line", "Beside the next line"],
        *["Eight nine ten.", "Eleven:", "an item, of two lines", "another item"],
    ]


@pytest.mark.parametrize(
    "planted",
    [
        f'"""{LONG}."""',
        f'class Thing:\n    """A title.\n\n    Attributes:\n        first: Short.\n        second: {LONG}.\n    """',
        f'def call():\n    """A title.\n\n    Returns:\n        {LONG[:64]}\n        {LONG[65:]}.\n    """',
        f'async def call():\n    """A title.\n\n    Raises:\n        ValueError: Short. {LONG}.\n    """',
        f"# {LONG[:64]}\n# {LONG[65:]}",
        f"MORE = [\n    8,  # {LONG}\n]",
        f"import json  # noqa: F401 ({LONG})",
        f"# Items:\n# - short\n# - {LONG}",
    ],
)
def test_a_long_sentence_in_python_is_named(planted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prose, "ROOT", tmp_path.resolve())
    file = tmp_path / "module.py"
    file.write_text(f"{planted}\n")
    assert prose.main([str(file)]) == 1
    file.write_text(f"{planted}\n".replace("Word Word Word", "Word"))
    assert prose.main([str(file)]) == 0


@pytest.mark.parametrize(
    "planted",
    [
        f'TEXT = "{LONG}"',
        f'"""A title.\n\nA call:\n\n    {LONG}\n"""',
        f"# {'call(MORE) + ' * 26}8",
        f"MORE = 8  # {LONG[:64]}\nLESS = 7  # {LONG[65:]}",
        f"# {LONG[:64]}\n\n# {LONG[65:]}",
        f'def f(*two):\n    """A title.\n\n    Args:\n        first: {LONG[:64]}\n        second: {LONG[65:]}\n    """',
    ],
)
def test_code_is_not_counted_and_neighbours_are_not_joined(
    planted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prose, "ROOT", tmp_path.resolve())
    file = tmp_path / "module.py"
    file.write_text(f"{planted}\n")
    assert prose.main([str(file)]) == 0


def test_pages_and_python_are_summed_up_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prose, "ROOT", tmp_path.resolve())
    page, file = tmp_path / "page.md", tmp_path / "module.py"
    page.write_text("One two.\n")
    file.write_text('"""One two three four."""\n')
    assert prose.main([str(page), str(file)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "pages: 1 sentences of 2.0 words; 0 have more than 30",
        "Python files: 1 sentences of 4.0 words; 0 have more than 30",
    ]


def test_every_python_file_is_looked_at() -> None:
    """But none in a virtual environment."""
    found = {path.relative_to(prose.ROOT).as_posix() for path in prose.python_files()}
    assert {"conftest.py", "docs/_ext/prose.py", "corl_jax/cql.py", "exercises/17_awac/exercise.py"} < found
    assert not [name for name in found if name.startswith(".")]


def test_sentences_are_those_of_paragraphs_and_lists() -> None:
    assert list(prose.sentences(PAGE)) == [
        "One two Code five.",
        "Six seven (Eight et al 2020) nine!",
        "Ten, eleven and twelve.",
        "Thirteen is 1.5.",
        *["Fourteen.", "And fifteen.", "Sixteen."],
    ]
    assert [prose.words(sentence) for sentence in prose.sentences(PAGE)] == [4, 7, 4, 3, 1, 2, 1]


def test_a_long_sentence_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the maximum length is not."""
    monkeypatch.setattr(prose, "ROOT", tmp_path.resolve())
    page = tmp_path / "page.md"
    page.write_text(" ".join(["Word"] * 30) + ".\n")
    assert prose.main([str(page)]) == 0
    page.write_text(" ".join(["Word"] * 31) + ".\n")
    assert prose.main([str(page)]) == 1
    assert capsys.readouterr().out.splitlines()[1].startswith("page.md: 31 words: Word Word")


@pytest.mark.parametrize(
    ("habit", "fine"),
    [
        ("Weights are those of CORL.", "Weights are CORL's."),
        ("What ships is fast.", "What ships?"),
        ("It is slow. So it ends.", "So far, it runs."),
        ("The run goes on.", "The going is slow on a CPU."),
        ("The row behind the last is cut.", "That seed is behind."),
        ("| a |\n|---|\n| it stands in a table |", "| a |\n|---|\n| it stands in for V |"),
        ("JAX is told a shape.", "You told JAX a shape."),
        ("The last rung fails.", "Read [a/ladder/rungs.py](x) and `rungs`."),
    ],
)
def test_a_habit_is_named_with_its_fix(
    habit: str, fine: str, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pages for users; other pages are not checked."""
    monkeypatch.setattr(prose, "ROOT", tmp_path.resolve())
    page, other = tmp_path / "README.md", tmp_path / "CONTRIBUTING.md"
    for path, text, status in ((page, habit, 1), (page, fine, 0), (other, habit, 0)):
        path.write_text(f"{text}\n")
        assert prose.main([str(path)]) == status
    assert capsys.readouterr().out.count(", better ") == 1
