"""Settings that nobody would write: whatever a command line or a file contains, the result is a config or one line."""

import dataclasses
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from shared.errors import InputError
from shared.frameworks.torch_side import seed_everything
from shared.frameworks.twins import load_twin
from shared.runs.configs import algorithms, dump, parse
from shared.runs.fields import check
from shared.runs.vocabulary import other_names

# It has every kind of field: numbers, lists of them, text, flags, and settings that may be null.
ALGORITHM = "dt"
TrainConfig = load_twin("torch", ALGORITHM).TrainConfig
SETTINGS = [field.name for field in dataclasses.fields(TrainConfig)]
NAMES = [*SETTINGS, *other_names(SETTINGS, ALGORITHM), "config_path"]

quick = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

# Any text that a shell can pass: undecodable bytes become lone surrogates, and NUL cannot occur.
typed = st.text(st.characters(exclude_characters="\0", exclude_categories=()))
numerals = st.one_of(st.integers().map(str), st.floats().map(str), st.sampled_from(["1e999", "0x10", "1_0", "٣", "-0"]))
words = st.sampled_from(["null", "true", "~", "", "[]", "[1, 2]", "[" * 5000, "{", "&a [*a]", "!!int x", "a\nb", "%s"])
values = st.one_of(typed, numerals, words)
names = st.one_of(st.sampled_from(NAMES), typed)
arguments = st.lists(
    st.one_of(
        st.builds("--{}={}".format, names, values).map(lambda argument: [argument]),
        st.tuples(names.map("--{}".format), values).map(list),
        typed.map(lambda argument: [argument]),
    ),
    max_size=4,
).map(lambda parts: [argument for part in parts for argument in part])


def config_or_line(read: Callable[[], Any]) -> None:
    """Checks the result: a config that passes its own check, one line, or the exit of `--help`."""
    config, lines, status = None, [], 0
    try:
        config = read()
    except InputError as error:
        lines = str(error).splitlines()
    except SystemExit as stop:
        status = stop.code
    if config is None:
        assert len(lines) == 1 or (not lines and status == 0), lines
        return
    check(config)
    dump(config).encode()


@pytest.mark.thorough
@quick
@given(arguments=arguments)
@example(arguments=["--config_path", "a\nb"])
@example(arguments=["--seed", "1\n2"])
@example(arguments=["a\nb"])
@example(arguments=["--name", "\udcff"])
@example(arguments=["--betas", "[" * 5000])
@example(arguments=["--env", "\udcff.hdf5"])
def test_any_command_line_gives_a_config_or_one_line(arguments: list[str]) -> None:
    config_or_line(lambda: parse(TrainConfig, ALGORITHM, arguments))


scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(max_size=9), st.dates())
trees = st.recursive(
    scalars,
    lambda below: st.one_of(st.lists(below, max_size=3), st.dictionaries(st.one_of(st.text(), scalars), below)),
    max_leaves=8,
)
documents = st.one_of(
    st.dictionaries(st.one_of(st.sampled_from(NAMES), st.text()), trees, max_size=4).map(yaml.dump),
    trees.map(yaml.dump),
    st.text(st.sampled_from(string.printable + "é\u2028"), max_size=60),
).map(lambda text: text.encode(errors="surrogatepass"))
# Each list contains the previous one twice, so that the last one would take a gigabyte if written out.
DOUBLED = "seed: [&a0 [x, x]" + "".join(f", &a{n + 1} [*a{n}, *a{n}]" for n in range(28)) + "]"


@quick
@given(document=st.one_of(documents, st.binary()))
@example(document=b"[" * 5000)
@example(document=b"seed: " + b"[" * 5000)
@example(document=b"seed: !!int x")
@example(document=b"seed: !!timestamp x")
@example(document=b"seed: !!float ''")
@example(document=b"seed: !!bool x")
@example(document=b"name: !!binary x")
@example(document=b"name: !!python/name:os.system")
@example(document=b'"a\\nb": 1')
@example(document=b"seed: &a [*a]")
@example(document=b"<<: 3")
@example(document=b"? [a, b]\n: 1")
def test_any_file_gives_a_config_or_one_line(document: bytes, tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_bytes(document)
    config_or_line(lambda: parse(TrainConfig, ALGORITHM, ["--config_path", str(path)]))


@quick
@given(name=st.text(), group=st.text(), scale=st.floats(min_value=0, exclude_min=True, allow_infinity=False))
def test_what_is_written_down_reads_as_it_was(name: str, group: str, scale: float, tmp_path: Path) -> None:
    """Whatever text a setting contains, `config.yaml` preserves it."""
    config = TrainConfig(name=name, group=group, reward_scale=scale, checkpoints_path=name)
    path = tmp_path / "config.yaml"
    path.write_text(dump(config))
    assert parse(TrainConfig, ALGORITHM, ["--config_path", str(path)]) == config


def test_a_short_file_cannot_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(DOUBLED)
    with pytest.raises(InputError, match="seed must be a whole number, not") as caught:
        parse(TrainConfig, ALGORITHM, ["--config_path", str(path)])
    assert len(str(caught.value)) < 2000


def test_a_seed_is_one_that_the_generators_take() -> None:
    """NumPy's global generator, from which CORL draws batches, takes 32 bits."""
    for name in algorithms():
        check(load_twin("torch", name).TrainConfig(seed=2**32 - 1))
        with pytest.raises(InputError, match="seed must be between 0 and 4294967295, not 4294967296"):
            check(load_twin("torch", name).TrainConfig(seed=2**32))
    seed_everything(2**32 - 1)
    jax.random.key(2**32 - 1)
