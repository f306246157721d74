"""Draws without a bit in common with PyTorch's: right ones pass, and wrong ones are distinguished from each other."""

import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from parity_tests.engine.precision import both_in
from parity_tests.pairs import PAIRS
from port_checker.explaining.naming import Diagnosis, diagnose
from port_checker.finding.answers import answer
from port_checker.finding.figures import Figures
from port_checker.finding.loading import load_module
from port_checker.finding.port import Port
from port_checker.finding.questions import questions
from shared.errors import InputError

pytestmark = pytest.mark.thorough

HEAD = """
from functools import partial
import jax, numpy as np
import jax.numpy as jnp

def draw_noise(key, step, config, dataset_size, action_dim):
    shape = config.batch_size, action_dim
    row_key, *keys = jax.random.split(jax.random.fold_in(key, step), 4)
    rows = jax.random.randint(row_key, shape[:1], 0, dataset_size)
    {body}
    return rows, dict(target=target, actor=actor)
"""
BOTH = "target, actor = (jax.random.normal(key, shape) for key in keys[:2])"


def port_of(folder: Path, source: str, name: str = "awac") -> Port:
    (folder / "port.py").write_text(source)
    return Port("port.py", load_module(folder / "port.py"), PAIRS[name])


def awac(folder: Path, body: str) -> Port:
    """A port of AWAC with these lines instead of its draws of noise."""
    return port_of(folder, HEAD.format(body=textwrap.indent(textwrap.dedent(body), "    ").strip()))


def judged(port: Port, variant: str = "default") -> tuple[list[Figures], tuple[Diagnosis, ...]]:
    """The figures of its draws, and their diagnoses."""
    with both_in("float64"):
        asked = questions(port.pair.name, "draws", (variant,))
        answers = [answer(port, question) for question in asked]
        return answers, tuple(diagnose(port, "draws", asked, answers, (variant,)))


def wrong(port: Port, variant: str = "default") -> dict[str, list[str]]:
    """The faults, by the draw in which they are found."""
    (figures,), _ = judged(port, variant)
    found = {group: [name for name, value in values.items() if value.any()] for group, values in figures.items()}
    return {group: names for group, names in found.items() if names}


# ---- right ones ----------------------------------------------------------------------------------------------------

RIGHT = {
    "plainly": BOTH,
    "rows of a fraction": f"{BOTH}\nrows = (jax.random.uniform(keys[2], shape[:1]) * dataset_size).astype(int)",
    "no row twice": f"{BOTH}\nrows = jax.random.permutation(keys[2], dataset_size)[:config.batch_size]",
    "step before purpose": "target, actor = (jax.random.normal(jax.random.fold_in(keys[0], i), shape) for i in (0, 1))",
    "purpose before step": """
        step_keys = [jax.random.fold_in(jax.random.fold_in(key, i), step) for i in range(3)]
        target, actor = (jax.random.normal(k, shape) for k in step_keys[:2])
        rows = jax.random.randint(step_keys[2], shape[:1], 0, dataset_size)
    """,
    "a key for each step": """
        row_key, *keys = jax.random.split(jax.random.split(key, 1000)[step - 1], 3)
        rows = jax.random.randint(row_key, shape[:1], 0, dataset_size)
        target, actor = (jax.random.normal(key, shape) for key in keys)
    """,
    "both at once": "target, actor = jax.random.normal(keys[0], (2, *shape))",
    "unsigned rows": f"{BOTH}\nrows = rows.astype(jnp.uint32)",
    "another generator": """
        key = jax.random.wrap_key_data(jnp.tile(jax.random.key_data(keys[0]), 2), impl="rbg")
        target, actor = jax.random.normal(key, (2, *shape))
    """,
}


@pytest.mark.parametrize("body", RIGHT.values(), ids=RIGHT)
def test_right_draws_are_not_accused(tmp_path: Path, body: str) -> None:
    assert wrong(awac(tmp_path, body)) == {}


MASKS = """
import jax

def draw_noise(key, step, config, dataset_size):
    row_key, *keys = jax.random.split(jax.random.fold_in(key, step), 3)
    shape, keep = (config.batch_size, 256), 1.0 - config.actor_dropout
    masks = [jax.random.bernoulli(key, keep, shape) / keep for key in keys]
    return jax.random.randint(row_key, shape[:1], 0, dataset_size), dict(dropout=masks)
"""


def test_masks_may_be_drawn_at_once(tmp_path: Path) -> None:
    """Instead of a key for them, as in our twin."""
    assert wrong(port_of(tmp_path, MASKS, "iql"), "dropout") == {}


def test_the_transformers_masks_may_be_drawn_at_once(tmp_path: Path) -> None:
    """The masks of every layer."""
    source = """
from corl_jax.dt import Noise, draw_dropout, draw_noise as draw

def draw_noise(key, step, config, dataset_size):
    rows, noise = draw(key, step, config, dataset_size)
    return rows, Noise(draw_dropout(noise.dropout, config))
"""
    assert wrong(port_of(tmp_path, source, "dt")) == {}


# ---- wrong ones ----------------------------------------------------------------------------------------------------

ALL = ("indices", "noise.target", "noise.actor")
WRONG: Mapping[str, tuple[str, dict[str, list[str]]]] = {
    "the last row left out": (
        f"{BOTH}\nrows = jax.random.choice(keys[2], dataset_size - 1, shape[:1]).astype(jnp.uint32)",
        {"indices": ["range"]},
    ),
    "a row behind the last": (
        f"{BOTH}\nrows = jax.random.randint(keys[2], shape[:1], 0, dataset_size + 1)",
        {"indices": ["range"]},
    ),
    "rows in the middle preferred": (
        f"{BOTH}\nrows = jnp.where(rows % 2 == 1, rows, (rows + dataset_size // 2) // 2).at[:2].set(rows[:2])",
        {"indices": ["spread"]},
    ),
    "one key for both": (
        "target, actor = jax.random.normal(keys[0], shape), jax.random.normal(keys[0], shape)",
        {"noise.actor": ["ties"]},
    ),
    "one key for rows and noise": (
        "rows = jnp.floor(jax.random.uniform(keys[0], shape[:1]) * dataset_size).astype(int)\n" + BOTH,
        {"noise.target": ["ties"]},
    ),
    "uniform": (f"{BOTH}\nactor = jax.random.uniform(keys[1], shape, minval=-1.0)", {"noise.actor": ["spread"]}),
    "without a sign": (f"{BOTH}\nactor = abs(actor)", {"noise.actor": ["spread"]}),
    "scaled": (f"{BOTH}\ntarget = 0.5 * target", {"noise.target": ["spread"]}),
    "without tails": (
        f"{BOTH}\ntarget = jax.random.truncated_normal(keys[2], -2.0, 2.0, shape)",
        {"noise.target": ["spread"]},
    ),
    "the same at every second update": (
        "keys = jax.random.split(jax.random.fold_in(key, step // 2))\n" + BOTH,
        {"noise.target": ["repeats"], "noise.actor": ["repeats"]},
    ),
    "not a number": (f"{BOTH}\nactor = actor.at[0].set(jnp.nan)", {"noise.actor": ["spread"]}),
    "a key of its own": (
        "keys = jax.random.split(jax.random.fold_in(jax.random.key(0), step))\n" + BOTH,
        {"noise.target": ["key"], "noise.actor": ["key"]},
    ),
    "NumPy's generator": (
        f"{BOTH}\ntarget = np.random.normal(size=shape)\nrows = np.random.randint(0, dataset_size, shape[:1])",
        {"indices": ["purity"], "noise.target": ["purity"]},
    ),
}


@pytest.mark.parametrize(("body", "faults"), WRONG.values(), ids=WRONG)
def test_wrong_draws_are_told_apart(tmp_path: Path, body: str, faults: dict[str, list[str]]) -> None:
    """None of these is in AWAC's library, so none is named; the faults are described."""
    port = awac(tmp_path, body)
    assert wrong(port) == faults
    _, diagnoses = judged(port)
    told = [group for diagnosis in diagnoses for group in diagnosis.groups]
    assert sorted(told) == sorted(group for group in ALL if group in faults)
    assert all(not diagnosis.mistakes and diagnosis.hints for diagnosis in diagnoses)


@pytest.mark.parametrize(
    ("old", "new", "faults"),
    [
        ("bernoulli(key, keep, ", "bernoulli(key, 1 - keep, ", ["spread"]),
        (" / keep for", " * 1.0 for", ["spread"]),
        ("(key, keep, shape)", "(keys[0], keep, shape)", ["ties"]),
        ("dict(dropout=masks)", "dict(dropout=jax.random.key(0))", ["repeats", "key"]),
    ],
)
def test_wrong_masks_are_told_apart(tmp_path: Path, old: str, new: str, faults: list[str]) -> None:
    assert MASKS.count(old) == 1
    assert wrong(port_of(tmp_path, MASKS.replace(old, new), "iql"), "dropout") == {"noise.dropout": faults}


def test_one_key_for_two_shapes_is_seen(tmp_path: Path) -> None:
    """Both begin with the same numbers."""
    source = """
import jax
from corl_jax.cql import draw_noise as draw

def draw_noise(key, step, config, dataset_size, action_dim):
    rows, noise = draw(key, step, config, dataset_size, action_dim)
    key, shape = jax.random.fold_in(key, step), noise.next.shape
    return rows, noise._replace(target=jax.random.normal(key, shape[::2]), next=jax.random.normal(key, shape))
"""
    assert wrong(port_of(tmp_path, source, "cql")) == {"noise.next": ["ties"]}


# ---- unusable input ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return jnp.zeros(3)", r"draw_noise gives .*: expected \(indices, noise\)"),
        (f"{BOTH}\nactor = actor[0]", r"gives noise.actor \(3,\): expected \(32, 3\)$"),
        (f"{BOTH}\nrows = rows[:, None]", r"gives indices \(32, 1\): expected \(32,\) of whole numbers"),
        (f"{BOTH}\nrows = 1.0 * rows", r"gives indices \(32,\) of fractions: expected \(32,\) of whole numbers"),
        (f"{BOTH}\nreturn rows, dict(target=target)", r"gives noise.actor nothing: expected \(32, 3\)"),
        (f"{BOTH}\nreturn rows, target", r"gives noise.target nothing: expected \(32, 3\)"),
        ("target = nothing", "draw_noise stops with NameError: name 'nothing' is not defined"),
    ],
)
def test_what_is_expected_is_said(tmp_path: Path, body: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        judged(awac(tmp_path, body))


def test_arguments_go_by_name(tmp_path: Path) -> None:
    source = "def draw_noise(rng, step, config, dataset_size, action_dim):\n    pass\n"
    with pytest.raises(InputError, match="draw_noise asks for rng: arguments go by name, out of key, step, config, "):
        judged(port_of(tmp_path, source))


def test_noise_of_the_first_updates_alone_is_looked_at(tmp_path: Path) -> None:
    """CQL's noise in the updates that clone behaviour."""
    source = """
from corl_jax.cql import draw_noise as draw

def draw_noise(key, step, config, dataset_size, action_dim, in_bc_steps):
    rows, noise = draw(key, step, config, dataset_size, action_dim, in_bc_steps)
    return rows, noise._replace(bc=FACTOR * noise.bc if in_bc_steps else None)
"""
    assert wrong(port_of(tmp_path, source.replace("FACTOR", "1.0"), "cql"), "unweighted") == {}
    assert wrong(port_of(tmp_path, source.replace("FACTOR", "0.1"), "cql"), "unweighted") == {"noise.bc": ["spread"]}
    assert "noise.bc" in judged(port_of(tmp_path, source.replace("FACTOR", "1.0"), "cql"), "unweighted")[0][0]
