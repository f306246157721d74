"""The plan of a search for settings, as its file and flags describe it, and the runs of a trial."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator

from shared.commands.sweeping.plan import Cell, Plan, cells, in_text
from shared.errors import InputError
from shared.runs.validation import NO_ENVIRONMENT


class Interval(BaseModel):
    """The values between two ends, both included; whole numbers if both ends are.

    Attributes:
        low: The lower end.
        high: The upper end.
        log: Whether to draw values on a logarithmic scale, as for learning rates.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    low: int | float
    high: int | float
    log: bool = False

    @model_validator(mode="after")
    def _has_an_inside(self) -> Self:
        if not self.low < self.high:
            raise ValueError("low must be less than high")
        if self.log and self.low <= 0:
            raise ValueError("with log, low must be above 0")
        return self


Choices = Annotated[list[Any], Field(min_length=2)]


class Search(BaseModel):
    """A search: trials of one algorithm, with different values of some settings, but the same runs for each trial.

    Attributes:
        algorithm: The name of the algorithm.
        datasets: Names that `--env` accepts.
        framework: `torch` or `jax`.
        seeds: The number of seeds from 0, or the seeds themselves.
        settings: The settings of all runs, as text.
        search: The possible values of each searched setting: an interval, or a list.
        folder: The folder of all runs.
    """

    model_config = ConfigDict(extra="forbid")
    algorithm: str
    datasets: Annotated[list[str], Field(min_length=1)]
    framework: Literal["torch", "jax"] = "jax"
    seeds: PositiveInt | Annotated[list[NonNegativeInt], Field(min_length=1)] = 1
    settings: dict[str, Any] = {}
    search: Annotated[dict[str, Interval | Choices], Field(min_length=1)]
    folder: Path

    def runs(self, values: Mapping[str, Any]) -> list[Cell]:
        """The runs of a trial with these values of the searched settings.

        Raises:
            InputError: An algorithm, dataset or setting is unknown, or a value cannot be used.
        """
        return cells(
            Plan(
                algorithms=[self.algorithm],
                datasets=self.datasets,
                frameworks=[self.framework],
                seeds=self.seeds,
                settings=self.settings | {name: in_text(value) for name, value in values.items()},
                folder=self.folder,
            )
        )

    def check(self) -> None:
        """Checks that every possible value can be used in a run, including the ends of intervals.

        Raises:
            InputError: A value cannot be used, a setting is both given and searched, or no environment scores the runs.
        """
        if twice := sorted(self.settings.keys() & self.search.keys()):
            raise InputError(f"{twice[0]} is given and searched: drop it from one of them")
        ends = {name: _ends(space) for name, space in self.search.items()}
        first = {name: several[0] for name, several in ends.items()}
        for name, several in ends.items():
            for value in several:
                cells = self.runs(first | {name: value})
                if any(getattr(cell.config, "eval_env", "") == NO_ENVIRONMENT for cell in cells):
                    raise InputError(
                        "a search ranks policies by their return, which eval_env none doesn't measure: set another"
                    )


def _ends(space: Interval | Sequence[Any]) -> list[Any]:
    return [space.low, space.high] if isinstance(space, Interval) else list(map(in_text, space))
