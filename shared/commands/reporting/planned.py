"""The runs that a sweep plans, in a file in its folder, so that a report knows which are missing."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shared.commands.sweeping.plan import Cell
from shared.errors import InputError
from shared.files import write_atomically
from shared.runs.configs import as_text

FILE = "planned.json"
"""The name of the file in the sweep's folder."""


class Planned(BaseModel):
    """Runs that only differ in their seeds.

    Attributes:
        framework: `torch` or `jax`.
        settings: All settings except for the seed, as text.
        seeds: The seeds of the runs, in ascending order.
    """

    model_config = ConfigDict(extra="forbid")
    framework: str
    settings: dict[str, object]
    seeds: Annotated[list[int], Field(min_length=1)]


class _Content(BaseModel):
    """The contents of the file."""

    model_config = ConfigDict(extra="forbid")
    runs: list[Planned]


def read_planned(folder: Path) -> list[Planned]:
    """The planned runs of sweeps into a folder; empty if there was no sweep.

    Raises:
        InputError: The file is damaged.
    """
    path = folder / FILE
    if not path.is_file():
        return []
    try:
        return _Content.model_validate_json(path.read_bytes()).runs
    except ValidationError:
        raise InputError(f"{path} is damaged: remove it, and call the sweep again") from None


def note_planned(folder: Path, cells: Sequence[Cell]) -> None:
    """Adds runs to the plan of sweeps into a folder.

    Raises:
        InputError: The file is damaged.
        OSError: The file cannot be written.
    """
    found: dict[str, Planned] = {}
    new = []
    for cell in cells:
        settings = as_text(cell.config)
        seed = int(str(settings.pop("seed")))
        new.append(Planned(framework=cell.framework, settings=settings, seeds=[seed]))
    for one in [*read_planned(folder), *new]:
        same = found.setdefault(json.dumps([one.framework, one.settings], sort_keys=True), one)
        same.seeds = sorted({*same.seeds, *one.seeds})
    write_atomically(folder / FILE, _Content(runs=list(found.values())).model_dump_json().encode())
