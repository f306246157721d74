"""The trials of a search, in a file in its folder: their values and outcomes."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, FiniteFloat, ValidationError

from shared.commands.tuning.plan import Search
from shared.errors import InputError
from shared.files import write_atomically

# Name of the file in the search's folder
FILE = "trials.json"


class Trial(BaseModel):
    """A trial: values of the searched settings, and the outcome.

    Attributes:
        values: The values, by setting.
        score: The mean of its runs' scores; None before the end, or if a run failed.
        share: The share of the trial's updates that were made: below 1 if the trial was stopped early.
        diverged: Whether a run had a loss or an evaluation that was not finite; the trial has then ended without a
            score.
    """

    model_config = ConfigDict(extra="forbid")
    values: dict[str, int | float | str]
    score: FiniteFloat | None = None
    share: FiniteFloat = 0.0
    diverged: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether the trial need not be made again, because the outcome would be the same."""
        return self.score is not None or self.diverged


class _Content(BaseModel):
    """The contents of the file."""

    model_config = ConfigDict(extra="forbid")
    searched: dict[str, Any]
    trials: list[Trial]


class Record:
    """The trials of a search, stored in a file in its folder."""

    def __init__(self, search: Search) -> None:
        """Reads the trials of earlier calls, of which the unfinished ones will be made again.

        Raises:
            InputError: The file is damaged, or is another search's.
        """
        self._path = search.folder / FILE
        self._searched = json.loads(search.model_dump_json(exclude={"folder"}))
        found = self._read()
        self.trials = [trial for trial in found if trial.has_ended]
        self.unfinished = [trial.values for trial in found if not trial.has_ended]
        # Unfinished trials that have not been restarted stay in the file.
        self._waiting = list(self.unfinished)

    def begin(self, values: Mapping[str, Any]) -> Trial:
        """Records that a trial with these values begins."""
        trial = Trial(values=dict(values))
        self.trials.append(trial)
        if trial.values in self._waiting:
            self._waiting.remove(trial.values)
        self._write()
        return trial

    def end(self, trial: Trial, score: float | None, share: float) -> None:
        """Records a trial's score, or None if it has diverged, and the share of its updates that were made."""
        trial.score, trial.share, trial.diverged = score, share, score is None
        self._write()

    @property
    def ended(self) -> list[Trial]:
        """The trials that need not be made again; those that diverged have no score."""
        return [trial for trial in self.trials if trial.has_ended]

    @property
    def scored(self) -> list[Trial]:
        """The trials that have a score."""
        return [trial for trial in self.trials if trial.score is not None]

    @property
    def best(self) -> Trial | None:
        """The trial with the highest score among those that were made in full, or among all if there are none."""
        whole = [trial for trial in self.scored if trial.share >= 1]
        return max(whole or self.scored, key=lambda trial: trial.score or 0.0, default=None)

    def _read(self) -> list[Trial]:
        if not self._path.exists():
            return []
        try:
            content = _Content.model_validate_json(self._path.read_bytes())
        except ValidationError:
            raise InputError(f"{self._path} is damaged: remove it, or name another folder") from None
        if content.searched != self._searched:
            names = sorted(name for name in self._searched if content.searched.get(name) != self._searched[name])
            raise InputError(f"{self._path} is of a search with other {', '.join(names)}: name another folder")
        return content.trials

    def _write(self) -> None:
        waiting = [Trial(values=values) for values in self._waiting]
        content = _Content(searched=self._searched, trials=[*self.trials, *waiting])
        write_atomically(self._path, content.model_dump_json(indent=1).encode())
