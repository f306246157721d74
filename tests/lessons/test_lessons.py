"""The commands around the teaching pages."""

import pytest

from lessons import pages
from lessons.ten_steps.__main__ import main


def test_a_place_is_filled_again_and_the_rest_stays() -> None:
    page = "# A\n<!-- lesson: torch adam -->\nold\n<!-- /lesson -->\nrest\n"
    filled = pages.filled(page)
    assert filled.startswith("# A\n<!-- lesson: torch adam -->\n\n```python\ndef adam(network")
    assert filled.endswith("```\n\n<!-- /lesson -->\nrest\n")
    assert "old" not in filled
    assert pages.filled(filled) == filled


@pytest.mark.parametrize("place", ["fable", "trap none", "torch none"])
def test_an_unknown_place_is_an_error(place: str) -> None:
    with pytest.raises(KeyError):
        pages.filled(f"<!-- lesson: {place} -->\n<!-- /lesson -->")


def test_a_method_is_shown_in_its_class_with_its_decorator() -> None:
    shown = pages.torch_source("TD3_BC.td_target")
    assert shown.startswith("```python\nclass TD3_BC:\n    ...\n\n    @torch.no_grad()\n    def td_target(")
    assert shown.endswith("* hp.discount * next_q\n```")


def test_a_step_prints_its_board(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["1"]) == 0
    out = capsys.readouterr().out
    assert "weights              green (new)" in out
    assert "forward              red, critic_1 is missing or of another shape" in out
    assert "draws                not there yet" in out


@pytest.mark.parametrize("step", ["0", "11", "three"])
def test_an_unknown_step_is_refused(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([step]) == 2
    assert capsys.readouterr().err.startswith("error: argument step: invalid")
