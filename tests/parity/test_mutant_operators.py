"""The small changes that are made to a twin's source."""

import ast

import pytest

from parity_tests.mutants.operators import mutants

LOSS = '''
LIMIT = 2.0


class Learner:
    """Learns."""

    discount: float = 0.9

    def loss(self, critic_1: Network, critic_2: Network, batch: Batch, done: bool) -> Array:
        """A loss."""
        assert batch.rewards.ndim == 1
        values = {expression}
        return values


class TrainConfig:
    batch_size: int = 256
'''


def changes(expression: str) -> set[str]:
    """The changed text and its replacement, for all mutants of an expression."""
    found = mutants(LOSS.replace("{expression}", expression))
    return {f"{m.old} -> {m.new}" for m in found if m.function == "Learner.loss"}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("x - y", {"x - y -> (x + y)", "x - y -> x", "x - y -> y", "x - y -> (y - x)"}),
        ("a @ b", {"a @ b -> (b @ a)"}),
        ("-x", {"-x -> x"}),
        ("x > 0.5", {"x > 0.5 -> x >= 0.5", "x > 0.5 -> x < 0.5", "0.5 -> 0.55"}),
        ("3", {"3 -> 4", "3 -> 2"}),
        ("-1.5", {"-1.5 -> -1.65", "-1.5 -> 1.5"}),
        ("done and other", {"done and other -> (done or other)"}),
        ("x if done else y", {"x if done else y -> x", "x if done else y -> y"}),
        ("stop_gradient(x)", {"stop_gradient(x) -> (x)"}),
        ("x.mean(axis=1)", {"x.mean -> x.sum", "x.mean(axis=1) -> x", "x.mean(axis=1) -> x.mean()", "1 -> 0",
                            "1 -> -1"}),
        ("f(x, y)", {"f(x, y) -> f(y, x)"}),
        ("where(c, x, y)", {"where(c, x, y) -> x", "where(c, x, y) -> y", "where(c, x, y) -> where(x, c, y)",
                            "where(c, x, y) -> where(c, y, x)"}),
        ("critic_1(batch.rewards)", {"critic_1 -> critic_2"}),
        ("[a, b]", {"[a, b] -> [a]", "[a, b] -> [b]"}),
        ("scan(f, x, unroll=2)", set()),
    ],
)  # fmt: skip
def test_an_expression_is_changed_in_every_way(expression: str, expected: set[str]) -> None:
    assert changes(expression) == expected


def test_assertions_annotations_docstrings_and_settings_stay() -> None:
    found = mutants(LOSS.replace("{expression}", "values"))
    assert {(m.function, m.old, m.new) for m in found} == {
        ("", "2.0", "2.2"), ("Learner", "0.9", "0.99"),
    }  # fmt: skip


TORCH = """
class Learner:
    def __init__(self, critic):
        self.net = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
        self.critic_target = copy.deepcopy(critic)

    @torch.no_grad()
    def target(self, x):
        with torch.no_grad():
            y = x.detach().add_(1.5)
        return torch.cat([x, y], dim=-1).unsqueeze(-1)

    def parts(self):
        return {"x": 1, "y": 2}
"""


@pytest.mark.parametrize(
    "expected",
    [
        "nn.Sequential(nn.Linear(3, 4), nn.ReLU()) -> nn.Sequential(nn.Linear(3, 4))",
        "copy.deepcopy(critic) -> (critic)",
        "torch.no_grad() -> torch.enable_grad()",
        "torch.no_grad() -> torch.enable_grad() #2",
        "x.detach() -> x",
        "x.detach().add_ -> x.detach().add",
        "1.5 -> 1.65",
        "-1 -> -2",
        "torch.cat([x, y], dim=-1).unsqueeze(-1) -> torch.cat([x, y], dim=-1)",
    ],
)
def test_pytorchs_idioms_are_changed(expected: str) -> None:
    changed = [f"{m.old} -> {m.new}" for m in mutants(TORCH, "torch")]
    text, _, number = expected.partition(" #")
    assert changed.count(text) >= int(number or 1)
    assert not [m for m in mutants(TORCH, "torch") if "parts" in m.function]


def test_lines_that_set_what_had_a_value_may_go() -> None:
    source = "def update(state):\n    loss = 1 * state\n    state = step(state)\n    return state\n"
    assert "state = step(state)" in {m.old for m in mutants(source) if m.new == "pass"}
    assert "loss = 1 * state" not in {m.old for m in mutants(source) if m.new == "pass"}


def test_every_mutant_is_another_program_with_a_name_of_its_own() -> None:
    source = LOSS.replace("{expression}", "(x - y) * (x - y) + critic_1(batch.rewards)[-1]")
    found = mutants(source)
    trees = {ast.dump(ast.parse(mutant.applied(source))) for mutant in found}
    assert len(trees) == len(found) == len({mutant.name for mutant in found})
    assert ast.dump(ast.parse(source)) not in trees
