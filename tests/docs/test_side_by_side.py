"""The pages that show two files side by side contain all of both, and nothing outdated."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from parity_tests.pairs import PAIRS
from side_by_side.align import Kind, Misaligned, align
from side_by_side.html import Page, blocks
from side_by_side.notes import NoteError, place, read_notes
from side_by_side.pairs import Checkout
from side_by_side.source import parse

ROOT = Path(__file__).resolve().parents[2]
CHECKOUT = Checkout(ROOT, ROOT / "docs")
CONTRACT = ["config", "networks", "randomness", "losses and update", "training"]

TORCH = """\"\"\"A twin.\"\"\"

import torch

# ---- losses and update ----

LIMIT = 1.0


class Algorithm:
    \"\"\"All.\"\"\"

    def __init__(self) -> None:
        self.x = 1

    @torch.no_grad()
    def loss(self, x: Tensor) -> Tensor:
        \"\"\"A text
        over two lines.\"\"\"
        return x.detach().mean()

    def update(self) -> None:
        \"\"\"A step.\"\"\"
        self.x.copy_(2)
"""
JAX = (
    TORCH.replace("import torch", "import jax")
    .replace("    @torch.no_grad()\n", "")
    .replace("Tensor", "Array")
    .replace("x.detach().mean()", "stop_gradient(x).mean()")
    .replace("self.x.copy_(2)", "return self.replace(x=2)")
)
NOTES = """
stop: {title: "`detach`", text: Text., torch: 'detach\\(', jax: stop_gradient}
update: {title: copy, text: Text., torch: copy_, jax: replace}
frame: {title: names, text: Text., torch: import torch, jax: import jax}
"""


def write(path: Path, text: str) -> Path:
    """A file with this text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.thorough
def test_a_page_holds_every_line_of_both_files() -> None:
    """Once, in order, in the sections of the contract, except for blank lines and the rules between sections."""
    for name in CHECKOUT.names():
        sections = CHECKOUT.pair(name).sections
        assert [section.name for section in sections if section.name in CONTRACT] == CONTRACT, name
        for side, path in zip(("torch", "jax"), CHECKOUT.files(name), strict=True):
            rows = [row for section in sections for piece in section.pieces for row in piece.rows]
            shown = {line.number: line.text.strip() for row in rows if (line := getattr(row, side))}
            assert list(shown) == sorted(shown), path
            lines = enumerate(path.read_text().splitlines(), start=1)
            expected = {
                number: text.strip() for number, text in lines if text.strip() and not text.startswith("# ----")
            }
            assert {number: text for number, text in shown.items() if text} == expected, path


def test_each_loss_and_the_update_have_a_row_of_their_own() -> None:
    """Under the names that the ladder uses; the algorithm's page quotes each loss below its formula."""
    for name, pair in PAIRS.items():
        sections = CHECKOUT.pair(name).sections
        pieces = {section.name: {piece.name for piece in section.pieces} for section in sections}
        assert {*pair.losses, "update"} <= pieces["losses and update"], name
        assert "draw_noise" in pieces["randomness"], name
        assert {"create_trainer", "train"} <= pieces["training"], name
        page = CHECKOUT.page(name).read_text()
        for loss in pair.losses:
            before, quoted, _ = page.partition(f"```{{side-by-side}} {name}\n:piece: {loss}\n```")
            assert quoted, f"{name} does not show {loss}"
            assert before.rstrip().endswith("$$"), f"{name} shows {loss} without a formula"


def test_the_idioms_of_a_port_are_named() -> None:
    """Those that every port from PyTorch runs into; a note could otherwise be removed unnoticed."""
    named = {found.note.name for notes in CHECKOUT.pair("td3_bc").notes.values() for found in notes}
    values = {"module-holds-weights", "weights-argument", "stop-gradient", "target-without-gradient", "draws"}
    steps = {"gradient-step", "value-and-grad", "polyak", "step-decides", "static-unroll", "scan", "gather"}
    assert values | steps <= named


def test_lines_are_equal_renamed_or_different() -> None:
    """A line that differs only in a word for the same thing has a kind of its own; tokens are marked."""
    imports, losses = align(parse(TORCH), parse(JAX))
    assert [piece.name for piece in losses.pieces] == ["LIMIT", "Algorithm", "loss", "update"]
    assert [row.kind for row in losses.pieces[0].rows] == [Kind.EQUAL]
    assert not losses.pieces[1].differs
    rows = losses.pieces[2].rows
    kinds = [Kind.DIFFERENT, Kind.RENAMED, Kind.EQUAL, Kind.EQUAL, Kind.DIFFERENT]
    assert [row.kind for row in rows] == kinds
    assert rows[0].jax is None
    assert [rows[1].torch.tokens[i][1] for i in sorted(rows[1].changed[0])] == ["Tensor", "Tensor"]
    assert imports.pieces[0].differs


def test_a_string_over_lines_is_coloured_as_one() -> None:
    """A file is lexed as a whole; its methods are shown without indentation."""
    (_, losses) = align(parse(TORCH), parse(JAX))
    rows = losses.pieces[2].rows
    assert [row.torch.tokens[-1][0] for row in rows[2:4]] == ["sd", "sd"]
    assert rows[1].torch.text == "def loss(self, x: Tensor) -> Tensor:"


def test_names_in_another_order_cannot_stand_beside_each_other() -> None:
    """The contract requires the same order."""
    swapped = (
        TORCH.replace("def loss", "def other").replace("def update", "def loss").replace("def other", "def update")
    )
    with pytest.raises(Misaligned, match="another order"):
        align(parse(TORCH), parse(swapped))
    with pytest.raises(Misaligned, match="sections"):
        align(parse(TORCH), parse(JAX.replace("losses and update", "losses")))


def test_long_equal_runs_are_folded_and_nothing_else() -> None:
    """Except for two lines next to each difference; imports are folded as a whole."""
    same = "".join(f"a{i} = {i}\n" for i in range(30))
    files = [parse(f"import torch\n# ---- config ----\n{same}x = {value}\n{same}") for value in ("first", "'second'")]
    imports, config = (section.pieces[0] for section in align(*files))
    assert [bool(block.summary) for block in blocks(imports)] == [True]
    folded = [(len(block.rows), bool(block.summary)) for block in blocks(config)]
    assert folded == [(28, True), (5, False), (28, True)]
    assert [row for block in blocks(config) for row in block.rows] == list(config.rows)


def test_a_note_is_explained_once_and_numbered_in_order(tmp_path: Path) -> None:
    """Its markers are at its lines on both sides, and link to it."""
    notes = read_notes(write(tmp_path / "notes.yaml", NOTES), {"one": []})
    sections = align(parse(TORCH), parse(JAX))
    placed = place(notes, "one", sections)
    page = Page("one")
    html = "".join(page.piece(piece, placed[piece.name]) for section in sections for piece in section.pieces)
    assert page.numbers == {"frame": 1, "stop": 2, "update": 3}
    for name in page.numbers:
        assert html.count(f'id="note-{name}"') == 1
        assert html.count(f'id="mark-{name}"') == 1
        assert html.count(f'class="marker" href="#note-{name}"') == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((" jax: stop_gradient", " jax: lax.stop"), r"^stop: one has no line .* 'lax.stop' in jax"),
        (("torch: copy_", "torch: nowhere"), r"^update: one has no line .* 'nowhere' in torch"),
        (("update: {", "other: {within: [loss], "), "^other: one has no line"),
        (("update: {", "two: {named: true, "), "^one: no note says how the twins differ in update"),
        (("update: {", "other: {named: true, "), "^other: no page names it"),
        (("title: copy, ", ""), "^update: lacks"),
        (("title: copy, ", "title: copy, pattern: x, "), "^update: unknown"),
        (("title: copy, ", "title: copy, pairs: [one], "), "^update: unknown"),
        (("torch: copy_", "torch: '('"), "^update: the pattern for torch is no regular expression"),
    ],
)
def test_a_note_that_has_lost_its_code_is_named(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    """So is a malformed note, and a difference that no note explains."""
    assert change[0] in NOTES
    path = write(tmp_path / "notes.yaml", NOTES.replace(*change))
    named = {"one": [], "two": ["two"] if "two: {" in path.read_text() else []}
    with pytest.raises(NoteError, match=message):
        place(read_notes(path, named), "one", align(parse(TORCH), parse(JAX)))


@pytest.mark.parametrize(
    "change",
    [
        ("first", "one"),
        ("        first = 1\n", "        # A comment\n        first = 1\n"),
        ("        first = 1\n        second = 2\n", "        second = 2\n        first = 1\n"),
    ],
)
def test_names_comments_and_order_need_no_note(change: tuple[str, str]) -> None:
    """A note explains only a difference between the frameworks."""
    head = "import torch\n# ---- losses and update ----\nclass Algorithm:\n    def loss(self):\n"
    torch = f"{head}        first = 1\n        second = 2\n        return torch.add(first, second)\n"
    assert torch.replace(*change) != torch
    place([], "one", align(parse(torch), parse(torch.replace(*change))))
    with pytest.raises(NoteError, match="no note says how the twins differ"):
        place([], "one", align(parse(torch), parse(torch.replace("torch.add", "jnp.add"))))


def test_a_line_that_both_share_carries_no_note(tmp_path: Path) -> None:
    """A note is about a difference."""
    path = write(tmp_path / "notes.yaml", NOTES + "limit: {title: limit, text: Text., torch: LIMIT, jax: LIMIT}\n")
    with pytest.raises(NoteError, match=r"^limit: one"):
        place(read_notes(path, {"one": []}), "one", align(parse(TORCH), parse(JAX)))


@pytest.mark.parametrize("name", ["nowhere", "stop"])
def test_a_page_names_notes_for_such_pages_only(name: str, tmp_path: Path) -> None:
    """A note that does not exist, and one that is about every pair."""
    path = write(tmp_path / "notes.yaml", NOTES)
    with pytest.raises(NoteError, match=r"^one: its page names"):
        read_notes(path, {"one": [name]})


def notes_on(pair: str) -> dict[str, dict]:
    """The notes about a pair, for a site without other pairs."""
    notes, named = yaml.safe_load((ROOT / "docs/notes.yaml").read_text()), CHECKOUT.named_notes(pair)
    return {
        name: {key: value for key, value in note.items() if key != "named"}
        for name, note in notes.items()
        if name in named or not note.get("named")
    }


def test_a_build_fails_where_a_note_has_lost_its_code(tmp_path: Path) -> None:
    """The file changes, the note does not, and the build names the note."""
    for side in ("corl_torch", "corl_jax"):
        write(tmp_path / side / "td3_bc.py", (ROOT / side / "td3_bc.py").read_text())
    docs = tmp_path / "docs"
    shutil.copytree(ROOT / "docs/_ext", docs / "_ext", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "docs/_static", docs / "_static")
    shutil.copy(ROOT / "docs/conf.py", docs)
    write(docs / "algorithms/td3_bc.md", "# TD3+BC\n")
    text = "# Side by side\n\n```{toctree}\n:glob:\n\n/algorithms/td3_bc\n/side_by_side/*\n```\n"
    write(docs / "port/side_by_side.md", text)
    write(docs / "index.md", "# Index\n\n```{toctree}\nport/side_by_side\n```\n")
    write(docs / "notes.yaml", yaml.safe_dump(notes_on("td3_bc")))
    jax = tmp_path / "corl_jax/td3_bc.py"
    jax.write_text(jax.read_text().replace("stop_gradient(jnp.abs(q).mean())", "jnp.abs(q).mean()"))
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", docs, tmp_path / "html"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode != 0
    assert "stop-gradient: td3_bc has no line" in done.stderr
