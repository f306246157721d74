"""The plan of a sweep, as its file and flags describe it, and its runs."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

from shared.errors import InputError
from shared.frameworks.twins import load_twin, trainable
from shared.interrupts import ended_at_once
from shared.names import dataset_path, is_file_name
from shared.runs.configs import dump, from_settings
from shared.runs.resuming import AUTO
from shared.runs.vocabulary import in_house

# More runs than anyone wants, but few enough to list quickly
LARGEST = 10_000
# Settings that the sweep itself determines
_DECIDED = ("env", "seed", "runs_path", "resume")

Asked = TypeVar("Asked", bound=BaseModel)

_Some = Annotated[list[Any], Field(min_length=1)]


class Changes(BaseModel):
    """The settings of runs that differ from the defaults.

    Attributes:
        settings: One value for each setting, as text.
        grid: Several values for each setting; every combination is a run.
    """

    model_config = ConfigDict(extra="forbid")
    settings: dict[str, Any] = {}
    grid: dict[str, _Some] = {}


class Plan(Changes):
    """A sweep: each algorithm on each dataset, in each framework, with each seed and each combination of the grid.

    Attributes:
        algorithms: Their names, or a mapping from names to changes for one algorithm.
        datasets: Names that `--env` accepts.
        frameworks: `torch` and `jax`, or one of them.
        seeds: The number of seeds from 0, or the seeds themselves.
        folder: The folder of all runs.
    """

    algorithms: Annotated[list[str], Field(min_length=1)] | dict[str, Changes | None]
    datasets: Annotated[list[str], Field(min_length=1)]
    frameworks: Annotated[list[Literal["torch", "jax"]], Field(min_length=1)] = ["jax"]
    seeds: PositiveInt | Annotated[list[NonNegativeInt], Field(min_length=1)] = 1
    folder: Path


class Cell(NamedTuple):
    """One run of a sweep.

    Attributes:
        framework: `torch` or `jax`.
        algorithm: The name of the algorithm.
        config: All settings.
        flags: The command line flags that produce this config.
        label: A description of the run in one line.
    """

    framework: str
    algorithm: str
    config: Any
    flags: tuple[str, ...]
    label: str


def read(values: Mapping[str, Any], where: str) -> Plan:
    """Validates the values of a sweep, which are text, or lists and mappings of text.

    Raises:
        InputError: A value is missing, unknown or has the wrong type; `where` is the prefix of the message.
    """
    return validated(Plan, values, where)


def validated(kind: type[Asked], values: Mapping[str, Any], where: str) -> Asked:
    """Validates values, by name, as a model of this class; see `read`."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if str(part) in values or isinstance(part, int))
        raise InputError(f"{where}{place or first['loc'][0]}: {first['msg'].lower()}; --help shows a file") from None


def cells(plan: Plan) -> list[Cell]:
    """The runs of a plan, in the order of its lists; all of them are checked before any process is started.

    Raises:
        InputError: An algorithm, dataset or setting is unknown, a value cannot be used, there are too many runs, or two
            of them are the same.
    """
    number = _count(plan)
    if number > LARGEST:
        raise InputError(f"the sweep has {number} runs, and {LARGEST} at most are made: split it, or shorten its grid")
    found = list(_cells(plan))
    seen: dict[tuple[str, str, str], Cell] = {}
    for cell in found:
        key = cell.framework, cell.algorithm, dump(cell.config)
        if key in seen:
            raise InputError(f"two runs of the sweep are the same, {seen[key].label} and {cell.label}: drop one")
        seen[key] = cell
    return found


def batches(missing: Sequence[Cell], together: int) -> list[tuple[Cell, ...]]:
    """Groups runs by process: in JAX up to `together` runs with consecutive seeds, otherwise one each."""
    found: list[tuple[Cell, ...]] = []
    for cell in missing:
        last = found[-1] if found else ()
        if cell.framework == "jax" and 0 < len(last) < together and _follows(last[-1], cell):
            found[-1] = (*last, cell)
        else:
            found.append((cell,))
    return found


def _follows(first: Cell, second: Cell) -> bool:
    """Whether the second run is the first one with the next seed."""
    alike = first.framework, first.algorithm, dataclasses.replace(first.config, seed=first.config.seed + 1)
    return alike == (second.framework, second.algorithm, second.config)


def _count(plan: Plan) -> int:
    """The number of runs, without creating them."""
    grids = [math.prod(map(len, (plan.grid | own.grid).values())) for own in _algorithms(plan).values()]
    seeds = plan.seeds if isinstance(plan.seeds, int) else len(plan.seeds)
    return sum(grids) * len(plan.datasets) * len(plan.frameworks) * seeds


def _algorithms(plan: Plan) -> dict[str, Changes]:
    if isinstance(plan.algorithms, dict):
        return {name: own or Changes() for name, own in plan.algorithms.items()}
    if repeated := {name for name in plan.algorithms if plan.algorithms.count(name) > 1}:
        raise InputError(f"algorithms has {', '.join(sorted(repeated))} twice: drop one")
    return {name: Changes() for name in plan.algorithms}


def _cells(plan: Plan) -> Iterator[Cell]:
    seeds = range(plan.seeds) if isinstance(plan.seeds, int) else plan.seeds
    for dataset in filter(is_file_name, plan.datasets):
        dataset_path(dataset)
    for algorithm, own in _algorithms(plan).items():
        for framework in plan.frameworks:
            name = trainable(framework, algorithm)
            with ended_at_once():
                config_class = load_twin(framework, name).TrainConfig
            known = [field.name for field in dataclasses.fields(config_class)]
            fixed, grid = (
                in_house(first, known, name) | in_house(then, known, name)
                for first, then in ((plan.settings, own.settings), (plan.grid, own.grid))
            )
            for combination, dataset in product(product(*grid.values()), plan.datasets):
                varied = dict(zip(grid, combination, strict=True))
                given = fixed | varied
                config = _config(config_class, name, given, dataset, plan.folder)
                for seed in seeds:
                    yield Cell(
                        framework,
                        name,
                        dataclasses.replace(config, seed=seed),
                        _flags(given, dataset, seed, plan.folder),
                        _label(framework, name, dataset, seed, varied),
                    )


def _config(config_class: type, algorithm: str, given: Mapping[str, Any], dataset: str, folder: Path) -> Any:
    """The settings of a run, except for its seed."""
    if decided := [name for name in given if name in _DECIDED]:
        raise InputError(
            f"{decided[0]} is no setting of a sweep, which decides it itself: give datasets, seeds, folder"
        )
    whole = {**given, "env": dataset, "runs_path": str(folder), "resume": AUTO}
    return from_settings(config_class, algorithm, whole, f"{algorithm}: ")


def _flags(given: Mapping[str, Any], dataset: str, seed: int, folder: Path) -> tuple[str, ...]:
    whole = {"env": dataset, "seed": seed, "runs_path": folder, "resume": AUTO, **given}
    return tuple(f"--{name}={in_text(value)}" for name, value in whole.items())


def _label(framework: str, algorithm: str, dataset: str, seed: int, varied: Mapping[str, Any]) -> str:
    return ", ".join(
        [f"{algorithm} ({framework}) on {dataset}", f"seed {seed}", *(f"{k} {in_text(v)}" for k, v in varied.items())]
    )


def in_text(value: Any) -> str:
    """Formats a value from a file as a flag's value."""
    if value is None:
        return "null"
    return f"[{','.join(map(in_text, value))}]" if isinstance(value, list) else str(value)
