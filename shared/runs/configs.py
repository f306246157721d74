"""Configurations: dataclasses filled from the command line, a YAML file, a table of datasets and their defaults.

The first of these that gives a setting wins. A setting's flag has the field's name, and its help is the comment above
the field. Its text must be valid for the field's type, because pyrallis would silently turn `maybe` into True, `1.5`
into 1 and `007` into 7. Modules with config classes must not use `from __future__ import annotations`, because pyrallis
needs types.
"""

import argparse
import dataclasses
import inspect
import reprlib
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pyrallis
import yaml
from pyrallis.wrappers.docstring import get_attribute_docstring

from shared.envs.registry import is_registered, registered_name
from shared.errors import InputError, RunError, Stopped
from shared.interrupts import raise_again
from shared.names import OWN_FILE, check_imported, is_known, nearest, row_name
from shared.runs.fields import base_type, check, entry_types, in_words, is_optional, scalar_or_tuple
from shared.runs.memory import advice, is_exhausted
from shared.runs.seeds import summary, train_seeds
from shared.runs.settings import RunConfig
from shared.runs.stopping import StopRequest
from shared.runs.vocabulary import check_once, other_names, suggestion

Config = TypeVar("Config", bound=Any)

# Shortens bad values in messages: a few lines of YAML can expand to gigabytes of text.
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 3, 200, 200

_TABLES = Path(__file__).resolve().parents[2] / "configs"
_METAVARS = {bool: "true|false", int: "INT", float: "FLOAT", str: "TEXT"}


class _Parser(argparse.ArgumentParser):
    """Reports a bad command line as an InputError."""

    def error(self, message: str) -> typing.NoReturn:
        hint = "; write --flag=VALUE if the value begins with a minus" if "expected one argument" in message else ""
        raise InputError(message + hint)


# Not a setting of a run, but the number of runs
_SEEDS = _Parser(add_help=False, allow_abbrev=False)
_SEEDS.add_argument(
    "--seeds",
    type=int,
    metavar="INT",
    default=argparse.SUPPRESS,
    help="Seeds to train, counted from the one given: in JAX as one program, in PyTorch one after another (default: 1)",
)


def dump(config: Any) -> str:
    """The config as YAML, in the order of its fields; `--config_path` reads it back."""
    return pyrallis.dump(config, sort_keys=False)


def as_text(config: Any) -> dict[str, Any]:
    """The config's settings as text, as `read_yaml` reads them from a run's `config.yaml`."""
    return yaml.load(dump(config), _TextLoader)


def parse(
    config_class: type[Config], algorithm: str, args: Sequence[str] | None = None, prog: str | None = None
) -> Config:
    """Builds a config, and prints the settings that came from the dataset's row in one line.

    A setting is taken from the command line, else from the file given as `--config_path`. Otherwise it is taken from
    the dataset's row in `configs/<algorithm>.yaml`, else from the dataclass. `--help` prints the settings and exits. If
    `--resume` names a run's folder, its `config.yaml` takes the place of a missing `--config_path`.

    Settings that CORL, d3rlpy and others name differently from file to file have one name here, but the other names are
    accepted too (`shared/runs/vocabulary.py`). A config class may also have `CORL_EPOCHS`, for settings that CORL
    counts in epochs of `num_updates_on_epoch` updates and we count in updates.

    Args:
        config_class: A dataclass with a field `env`: a dataset, or an environment if the algorithm collects its own
            data.
        algorithm: Names the table of datasets, such as `cql`.
        args: The command line without the program's name; None means `sys.argv`.
        prog: The program's name in the help; None means the name of the file that runs.

    Raises:
        InputError: A flag, key, value, file or dataset cannot be used.
    """
    flags = _read_flags(_parser(config_class, algorithm, prog), config_class, algorithm, args)
    path = flags.pop("config_path", None)
    if path is None and (path := _settings_of_run(flags.get("resume"))) is not None:
        _check_kept(config_class, algorithm, path)
    given = {} if path is None else _decode(config_class, algorithm, read_yaml(Path(path)), f"{path}: ")
    given = _in_updates(config_class, given | _decode(config_class, algorithm, flags, "--"))
    config, row = _completed(config_class, algorithm, given)
    used = [f"{name}={_text(value)}" for name, value in row.items() if name not in given]
    if used:
        print(f"settings of configs/{algorithm}.yaml for {config.env}: {', '.join(used)}")
    return config


def read_file(config_class: type[Config], algorithm: str, path: Path) -> Config:
    """Reads a config from a run's `config.yaml`, or from one of CORL's files, as `--config_path` does.

    Raises:
        InputError: The file, a key or a value cannot be used.
    """
    return from_settings(config_class, algorithm, read_yaml(path), f"{path}: ")


def from_settings(config_class: type[Config], algorithm: str, values: Mapping[str, Any], where: str) -> Config:
    """Builds a config from settings by name, as text or as values; `where` is the prefix of error messages.

    Raises:
        InputError: A key or a value cannot be used.
    """
    return _completed(
        config_class, algorithm, _in_updates(config_class, _decode(config_class, algorithm, values, where))
    )[0]


def _completed(config_class: type[Config], algorithm: str, given: dict[str, Any]) -> tuple[Config, dict[str, Any]]:
    """Completes the given settings with the row of their dataset; returns the config and the row."""
    row = dataset_row(config_class, algorithm, given.get("env", config_class.env))
    config = config_class(**(row | given))
    check(config)
    return config, row


def algorithms() -> list[str]:
    """The names of all algorithms, each of which has a table of datasets."""
    return sorted(path.relative_to(_TABLES).with_suffix("").as_posix() for path in _TABLES.rglob("*.yaml"))


def _settings_of_run(resume: str | None) -> str | None:
    """The path of the settings of the run to resume, if `--resume` names a folder."""
    return None if resume in (None, "", "auto") else str(Path(resume) / "config.yaml")


def _check_kept(config_class: type, algorithm: str, path: str) -> None:
    """Checks that the settings in a run's folder are settings of this algorithm.

    Raises:
        InputError: Some are not.
    """
    known = {*_field_types(config_class), *_other_names(config_class, algorithm)}
    if others := [name for name in read_yaml(Path(path)) if name not in known]:
        raise InputError(
            f"{path} is not of {algorithm}, which has no setting {others[0]}: resume this run with the algorithm that "
            "began it"
        )


def dataset_row(config_class: type[Config], algorithm: str, dataset: str) -> dict[str, Any]:
    """The decoded settings in a dataset's row of `configs/<algorithm>.yaml`; empty for a known dataset without a row.

    The row of an OGBench dataset also applies to each of its tasks without a row of its own.

    Raises:
        InputError: The dataset is unknown, or its row has a key or value that the config does not allow.
    """
    table = read_yaml(_table(config_class, algorithm))
    if dataset not in table and not is_known(dataset) and not is_registered(dataset):
        check_imported(dataset)
        if is_registered(config_class.env):  # the algorithm collects its own data
            registered_name(dataset)
        raise InputError(f"unknown dataset {dataset!r}; {nearest(dataset, table)}; {OWN_FILE}")
    row = table.get(dataset, table.get(row_name(dataset)))
    return _decode(config_class, algorithm, row or {}, f"configs/{algorithm}.yaml, {dataset}: ")


def _table(config_class: type, algorithm: str) -> Path:
    """The file of an algorithm's table: ours, or the one in `configs` next to a user's own twin."""
    ours = _TABLES / f"{algorithm}.yaml"
    return ours if ours.exists() else Path(inspect.getfile(config_class)).parent / "configs" / f"{algorithm}.yaml"


def cli(
    train: Callable[[Config], Any],
    config_class: type[Config],
    algorithm: str,
    args: Sequence[str] | None = None,
    prog: str | None = None,
) -> list[Any]:
    """Runs `train` with the config of the command line: the body of `python corl_jax/<algorithm>.py`.

    It returns each seed's run.

    An error or a signal ends the process with one line on stderr. The status is 2 for input that cannot be used, 1 for
    a run that cannot continue, 130 for Ctrl-C and 143 for SIGTERM. `args` and `prog` are passed to `parse`.
    """
    try:
        raise_again()
        # Before a run begins there is nothing to save; during a run, its own request handles signals.
        stop = StopRequest(lambda: "nothing was saved yet")
        with stop, stop.obeyed_at_once():
            command, settings = _SEEDS.parse_known_args(args)
            number = getattr(command, "seeds", 1)
            config = parse(config_class, algorithm, settings, prog)
            runs = _trained(train, config, number)
        if number > 1:
            print(summary([run.result for run in runs]))
        return runs
    except (InputError, RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, InputError) else 1)
    except Stopped as stop:
        print(stop, file=sys.stderr)
        sys.exit(stop.exit_status)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def _trained(train: Callable[[Config], Any], config: Config, number: int) -> list[Any]:
    """Calls `train_seeds`, and turns running out of memory outside of a run into a RunError."""
    try:
        return train_seeds(train, config, number)
    except Exception as error:
        if not is_exhausted(error):
            raise
        saved = "nothing was saved yet" if number == 1 else "each seed keeps its checkpoints"
        raise RunError(f"{advice(config)}; {saved}") from error


class _GivenTwiceError(yaml.YAMLError):
    """A mapping contains the same key twice."""


class _TextLoader(yaml.SafeLoader):
    """Leaves every plain scalar except `null` as text, which the type of its field decodes.

    It only builds text, `null`, lists and mappings, because PyYAML's constructors for other types raise arbitrary
    errors on bad text.
    """

    yaml_constructors: typing.ClassVar = {
        tag: build
        for tag, build in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.rpartition(":")[2] in ("str", "null", "seq", "map")
    }

    yaml_implicit_resolvers: typing.ClassVar = {
        first: [rule for rule in rules if rule[0] in ("tag:yaml.org,2002:null", "tag:yaml.org,2002:merge")]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: dict[Any, Any]) -> yaml.MappingNode:
        """Rejects duplicate keys, of which PyYAML would silently use the last."""
        node, lines = super().compose_mapping_node(anchor), dict[str, int]()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            line = key.start_mark.line + 1
            if key.value in lines:
                raise _GivenTwiceError(f"{key.value} is given at line {lines[key.value]} and again at line {line}")
            lines[key.value] = line
        return node


def read_yaml(path: Path) -> dict[str, Any]:
    """Reads a YAML mapping; its scalars are text, except for `null`.

    Raises:
        InputError: The file cannot be read, or is not a YAML mapping.
    """
    try:
        content = yaml.load(path.read_bytes(), _TextLoader)
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror}): check the path") from error
    except _GivenTwiceError as error:
        raise InputError(f"{path}: {error}; keep one of them") from error
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" at line {mark.line + 1}"
        raise InputError(f"{path} is not valid YAML{where}: correct it") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InputError(f"{path} must hold lines such as `batch_size: 256`, one for each setting")
    return content


def _read_flags(
    parser: argparse.ArgumentParser, config_class: type, algorithm: str, args: Sequence[str] | None
) -> dict[str, str | None]:
    """The settings on the command line, as text, under the names that the user gave."""
    flags, unknown = parser.parse_known_args(args)
    if unknown:
        flag = unknown[0].partition("=")[0]
        hint = _hint(config_class, algorithm, flag, ("config_path", "seeds", "help"), "--")
        raise InputError(f"unknown argument {flag!r}; {hint}")
    return vars(flags)


def _parser(config_class: type, algorithm: str, prog: str | None) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=prog,
        parents=[_SEEDS],
        usage="%(prog)s [--config_path FILE] [--seeds INT] [--setting VALUE ...]",
        description=(inspect.getdoc(inspect.getmodule(config_class)) or algorithm).partition("\n")[0],
        epilog="A setting is looked up on the command line, then in the file of --config_path, then in the dataset's "
        f"row of configs/{algorithm}.yaml, then in the defaults shown here.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=36),
    )
    parser.add_argument("--config_path", metavar="FILE", help="YAML file of settings, such as a run's config.yaml")
    groups = {True: parser.add_argument_group("run"), False: parser.add_argument_group("algorithm")}
    run_settings, others = _run_settings(config_class), other_names(_field_types(config_class), algorithm)
    for field in dataclasses.fields(config_class):
        groups[field.name in run_settings].add_argument(
            f"--{field.name}",
            metavar=_metavar(field.type),
            type=_text_or_null if is_optional(field.type) else str,
            help=_help(config_class, field, [other for other, name in others.items() if name == field.name]),
        )
    for other, name in others.items():
        kind = _text_or_null if is_optional(_field_types(config_class)[name]) else str
        parser.add_argument(f"--{other}", type=kind, help=argparse.SUPPRESS)
    for corl, ours in _epochs(config_class).items():
        groups[True].add_argument(f"--{corl}", metavar="INT", help=f"{ours}, in epochs")
    return parser


def _metavar(kind: Any) -> str:
    """The placeholder for a value of this type in the help."""
    if scalar_or_tuple(kind) is tuple:
        return f"[{_METAVARS[entry_types(kind)[0]]},...]"
    return _METAVARS[base_type(kind)]


def _run_settings(config_class: type) -> set[str]:
    """The settings that `shared/runs/settings.py` declares: settings of the run rather than of its algorithm."""
    shared = (base for base in inspect.getmro(config_class) if base.__module__ == RunConfig.__module__)
    return {field.name for base in shared for field in dataclasses.fields(base)}


@cache  # pyrallis parses the whole source for each comment
def _comment(config_class: type, name: str) -> str:
    """The comment above a field, from the most derived class whose declaration of the field has a comment."""
    for base in inspect.getmro(config_class):
        declares = name in inspect.get_annotations(base)
        if declares and (comment := get_attribute_docstring(base, name).comment_above):
            return comment.replace("\n", " ")
    return ""


def _help(config_class: type, field: dataclasses.Field, others: Sequence[str]) -> str:
    """A field's help: its comment, bounds, default and other names, escaped for argparse."""
    comment = _comment(config_class, field.name)
    facts = [field.metadata["words"]] if "words" in field.metadata else []
    facts += [f"default: {_text(field.default)}", *([f"also: {', '.join(others)}"] if others else [])]
    return f"{comment} ({'; '.join(facts)})".replace("%", "%%")


def _text(value: Any) -> str:
    """Formats a value as a user would type it."""
    if value is None:
        return "null"
    if isinstance(value, tuple):
        return f"[{','.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value) or "empty"


def _text_or_null(text: str) -> str | None:
    return None if text == "null" else text


def _decode(config_class: type, algorithm: str, values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Decodes settings according to the types of their fields; `where` is the prefix of error messages."""
    types, others, epochs = _field_types(config_class), _other_names(config_class, algorithm), _epochs(config_class)
    alone = {field.name for field in dataclasses.fields(config_class) if "alone" in field.metadata}
    check_once(values, others, where)
    decoded = {}
    for given, value in values.items():
        name = others.get(given, given)
        if name not in types:
            raise InputError(f"{where}{given} is not a setting; {_hint(config_class, algorithm, str(given))}")
        if name in alone and isinstance(value, str) and not value.strip().startswith("["):
            value = f"[{value}]"
        try:
            decoded[name] = _Epochs(pyrallis.decode(int, value)) if given in epochs else _decoded(types[name], value)
        except (TypeError, ValueError, yaml.YAMLError, RecursionError) as error:
            raise InputError(f"{where}{given} must be {in_words(types[name])}, not {_SHORT.repr(value)}") from error
    return decoded


class _Epochs(int):
    """A number of updates given in epochs, as in some of CORL's files."""


def _in_updates(config_class: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Multiplies settings given in epochs by the updates in an epoch."""
    epoch = given.get("num_updates_on_epoch", getattr(config_class, "num_updates_on_epoch", 1))
    return {name: epoch * value if isinstance(value, _Epochs) else value for name, value in given.items()}


def _decoded(kind: Any, value: Any) -> Any:
    """Decodes a value of a field's type; pyrallis supports neither `str | None` nor `tuple[float, ...]`."""
    if value is None and is_optional(kind):
        return None
    if scalar_or_tuple(kind) is not tuple:
        return pyrallis.decode(base_type(kind), value)
    entries = yaml.load(value, _TextLoader) if isinstance(value, str) else value
    if not isinstance(entries, list | tuple):
        raise TypeError(value)
    return tuple(pyrallis.decode(entry_types(kind)[0], entry) for entry in entries)


def _field_types(config_class: type) -> dict[str, Any]:
    return {field.name: field.type for field in dataclasses.fields(config_class)}


def _other_names(config_class: type, algorithm: str) -> dict[str, str]:
    return other_names(_field_types(config_class), algorithm) | _epochs(config_class)


def _hint(config_class: type, algorithm: str, name: str, further: Sequence[str] = (), dashes: str = "") -> str:
    """Suggests what the user may have meant by an unknown name; `further` names are also possible."""
    settings = _field_types(config_class)
    meant = suggestion(name, [*settings, *_epochs(config_class), *further], other_names(settings, algorithm))
    return f"did you mean {', '.join(dashes + name for name in meant)}?" if meant else "--help lists the settings"


def _epochs(config_class: type) -> dict[str, str]:
    """The settings that CORL counts in epochs: CORL's names, and ours."""
    return getattr(config_class, "CORL_EPOCHS", {})


@pyrallis.decode.register
def _decode_bool(value: bool) -> bool:
    words = {"true": True, "false": False}
    if str(value).lower() not in words:
        raise ValueError(value)
    return words[str(value).lower()]


@pyrallis.decode.register
def _decode_int(value: int) -> int:
    if isinstance(value, bool | float):
        raise TypeError(value)
    try:
        return int(value)
    except ValueError:
        number = float(value)  # such as 1e6
        if not number.is_integer():
            raise
        return int(number)


@pyrallis.decode.register
def _decode_float(value: float) -> float:
    if isinstance(value, bool):
        raise TypeError(value)
    return float(value.lower().replace(".inf", "inf") if isinstance(value, str) else value)


@pyrallis.decode.register
def _decode_str(value: str) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    value.encode()  # invalid text, possible in a file's name, could be neither printed nor written
    return value
