"""Half-done ports are checked as far as they go, and a template is the starting point."""

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from parity_tests.engine.precision import both_in
from parity_tests.pairs import PAIRS
from port_checker import check
from port_checker.finding.template import template
from shared.commands.common import ended
from tests.port_checker.conftest import PLAIN


@pytest.mark.thorough
def test_a_half_done_file_is_checked_as_far_as_it_goes(checked: Callable) -> None:
    """One loss is compared with the reference, the other is named, and so is everything that the next rung needs."""
    body = '    actions = policy(actor, batch.observations, state["max_action"])\n'
    status, printed = checked(PLAIN, (body, "    raise NotImplementedError\n" + body))
    assert status == 1
    lines = {line.split()[0]: line for line in printed.splitlines()}
    assert "holds" in lines["loss"]
    assert lines["loss"].endswith("not written yet: actor_loss")
    assert lines["gradient"].endswith("not written yet: actor_loss by actor")
    assert lines["update"].startswith("update      not checked yet: write actor_loss")
    assert "all checks pass" not in printed


def test_a_rung_of_which_nothing_is_written_does_not_hold(checked: Callable) -> None:
    first = "    actions = policy(actor, batch.observations"
    bound = '    bound = state["max_action"]\n'
    changes = [(text, f"    raise NotImplementedError\n{text}") for text in (first, bound)]
    status, printed = checked(PLAIN, *changes)
    assert status == 1
    assert "\nloss        not written yet: critic_loss, actor_loss\n" in printed
    assert (
        "\ngradient    not written yet: critic_loss by critic_1, critic_loss by critic_2, actor_loss by actor\n"
        in printed
    )


@pytest.mark.parametrize("name", PAIRS)
def test_templates_name_all_that_is_checked(name: str) -> None:
    with both_in("float64"):
        tree = ast.parse(template(PAIRS[name]))
    functions = {node.name: [a.arg for a in node.args.args] for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert functions.keys() == {"create_train_state", "outputs", "draw_noise", "update", *PAIRS[name].losses}


def test_a_template_is_a_file_to_check(checked: Callable, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert ended(check.main, ["--template", "td3_bc"]) == 0
    path = tmp_path / "template.py"
    path.write_text(capsys.readouterr().out)
    assert checked(path) == (1, "weights     not checked yet: write create_train_state\n")
