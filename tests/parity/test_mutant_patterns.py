"""Changes that are anchored in syntax: they match whatever the names are, and refuse ambiguous text."""

import pytest

from parity_tests.mutants.patterns import edit

TWIN = """
RATE = 0.1


class Learner:
    def loss(self, {net}, batch):
        {target} = self.target({net}(batch.next_observations))  # a comment
        {error} = {net}(
            batch.observations,
        ) - {target}
        return (
            {error}**2
        ).mean()

    def update(self, state, batch):
        state = step(state, "critic")
        state = step(state, "actor")
        if state.due:
            state = follow(state)
        return state
"""
NAMES = {"net": "critic", "target": "target", "error": "error"}
OTHERS = {"net": "q", "target": "aim", "error": "gap"}


@pytest.mark.parametrize("names", [NAMES, OTHERS])
@pytest.mark.parametrize(
    ("pattern", "replacement", "old", "new", "line"),
    [
        ("_net(_.observations)", "_net(self.observations)", "{net}(\n            batch.observations,\n        )",
         "{net}(self.observations)", 8),
        ("_error ** 2", "_error", "{error}**2", "{error}", 12),
        ("_y = self.target(_x)", "_y = self.target(stop(_x))",
         "{target} = self.target({net}(batch.next_observations))",
         "{target} = self.target(stop({net}(batch.next_observations)))", 7),
    ],
)  # fmt: skip
def test_names_of_variables_do_not_matter(
    names: dict[str, str], pattern: str, replacement: str, old: str, new: str, line: int
) -> None:
    """Neither do line breaks; lines after the change keep their numbers."""
    text = TWIN.format(**names)
    found = edit(text, "Learner.loss", pattern, replacement)
    assert (found.old, found.new, found.line) == (old.format(**names), new.format(**names), line)
    changed = found.applied(text)
    compile(changed, "a twin", "exec")
    assert changed.splitlines()[13:] == text.splitlines()[13:]


def test_statements_are_found_in_a_row() -> None:
    text = TWIN.format(**NAMES)
    pattern = '_s = step(_s, "critic")\n_s = step(_s, "actor")'
    found = edit(text, "Learner.update", pattern, '_s = step(_s, "actor")\n_s = step(_s, "critic")')
    assert found.new == "state = step(state, 'actor')\n        state = step(state, 'critic')"
    compile(found.applied(text), "a twin", "exec")
    gone = edit(text, "Learner.update", "_s = follow(_s)", "").applied(text)
    assert gone == text.replace("state = follow(state)", "pass")


def test_one_name_is_one_expression() -> None:
    """In `f(_x, _x)` both stand for the same expression."""
    assert edit("f(a.b, a.b)\nf(a, b)", "", "f(_x, _x)", "f(_x)").old == "f(a.b, a.b)"


def test_all_of_a_file_may_be_searched() -> None:
    assert edit(TWIN.format(**NAMES), "", "0.1", "0.2").line == 2


@pytest.mark.parametrize(
    ("function", "pattern", "replacement", "message"),
    [
        ("Learner.update", "step(_a, _b)", "_a", "stands there 2 times, in lines 16, 17"),
        ("Learner.loss", "step(_a, _b)", "_a", "stands there 0 times$"),
        ("Learner.fit", "step(_a, _b)", "_a", "there is no Learner.fit"),
        ("Learner.loss", "_net ** 2", "_other", "_other stands for nothing"),
    ],
)
def test_what_is_not_there_once_is_refused(function: str, pattern: str, replacement: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        edit(TWIN.format(**NAMES), function, pattern, replacement)
