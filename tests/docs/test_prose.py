"""Sentences are counted as a reader counts them."""

from pathlib import Path

import pytest

import prose

PAGE = """# A heading. It has two sentences

One two `three four` five. Six
seven (Eight et al. 2020) nine!

- Ten, *eleven* and [twelve](link.md). Thirteen is 1.5.

| a table. It counts nothing |
|---|

```
code. It counts nothing
```
"""


def test_sentences_are_those_of_paragraphs_and_lists() -> None:
    assert list(prose.sentences(PAGE)) == [
        "One two Code five.",
        "Six seven (Eight et al 2020) nine!",
        "Ten, eleven and twelve.",
        "Thirteen is 1.5.",
    ]


def test_words_are_counted() -> None:
    assert [prose.words(sentence) for sentence in prose.sentences(PAGE)] == [4, 7, 4, 3]


def test_a_long_sentence_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the longest that may be is not."""
    monkeypatch.setattr(prose, "ROOT", tmp_path.resolve())
    page = tmp_path / "page.md"
    page.write_text(" ".join(["Word"] * 25) + ".\n")
    assert prose.main([str(page)]) == 0
    page.write_text(" ".join(["Word"] * 26) + ".\n")
    assert prose.main([str(page)]) == 1
    assert capsys.readouterr().out.splitlines()[1].startswith("page.md: 26 words: Word Word")
