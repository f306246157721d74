"""Training runs and their results."""

import contextlib
import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from corl_twins.data import HasDataset, named
from corl_twins.place import enter

if TYPE_CHECKING:
    from corl_twins.policies import Policy


@dataclass(frozen=True)
class Run:
    """A run, given by its folder, whether `train`, a command or another process trained it.

    Attributes:
        folder: The run's folder. It contains settings, metrics, checkpoints, the learning curve and the result.

    Raises:
        InputError: There is no such folder.
    """

    folder: Path

    def __post_init__(self) -> None:
        from corl_twins import InputError

        object.__setattr__(self, "folder", Path(self.folder))
        if not self.folder.is_dir():
            raise InputError(f"there is no folder {self.folder}: name a run's folder")

    @cached_property
    def result(self) -> dict[str, Any]:
        """The content of `result.json`: scores, evaluation settings, versions, hardware and seconds.

        Raises:
            InputError: The run has not ended, or somebody changed the file.
        """
        from corl_twins import InputError

        path = self.folder / "result.json"
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise InputError(f"{self.folder} is not a finished run's folder: resume it, or name another") from error
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read: remove it and resume the run") from error

    @property
    def score(self) -> float | None:
        """The score of the last evaluation, on the scale that `metric` names; None if nothing was evaluated.

        Raises:
            InputError: As `result`.
        """
        return self.result["final"]

    @property
    def metric(self) -> str:
        """The score's metric: `d4rl_normalized_score`, `normalized_return`, `success_percent` or `return_mean`.

        Raises:
            InputError: As `result`.
        """
        return self.result["metric"]

    @cached_property
    def metrics(self) -> dict[str, np.ndarray]:
        """All logged metrics, by name: one entry for each logged step, NaN if a step did not log that name.

        `metrics["step"]` (n,) says after how many updates, or steps in the environment, the entries were logged. Most
        arrays are (n,). Arrays with a number for each evaluated episode, such as `returns`, are (n, episodes).

        Raises:
            InputError: The metrics cannot be read.
        """
        from corl_twins import InputError

        path = self.folder / "metrics.jsonl"
        try:
            # The last line of an unfinished run may be half written.
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            return _columns([json.loads(line) for line in lines if line.endswith("\n")])
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error.strerror}): name a run's folder") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path} is not what the run wrote: put its own file back") from error

    @cached_property
    def policy(self) -> "Policy":
        """The policy after the last checkpoint, see `load_policy`.

        Raises:
            InputError: As `load_policy`.
        """
        from corl_twins.policies import load_policy

        return load_policy(self)


def _columns(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Converts rows to arrays by name; rows of the same step become one entry."""
    merged: dict[int, dict[str, Any]] = {}
    for row in rows:
        merged.setdefault(row["step"], {}).update(row)
    entries = [merged[step] for step in sorted(merged)]
    columns = {"step": np.array([row["step"] for row in entries], np.int64)}
    for name in dict.fromkeys(name for row in entries for name in row if name != "step"):
        values = [None if row.get(name) is None else np.asarray(row[name], float) for row in entries]
        shape = next((value.shape for value in values if value is not None), ())
        columns[name] = np.stack([np.full(shape, np.nan) if value is None else value for value in values])
    return columns


def train(
    algorithm: str,
    *,
    framework: str = "jax",
    env: str | HasDataset | None = None,
    progress: bool = True,
    **settings: Any,
) -> Run:
    """Trains an algorithm, evaluates it on the way, and returns its run.

    This does what `python corl_jax/iql.py --env ...` does, under the same settings, and leaves the same folder. Ctrl-C,
    or a notebook's stop button, saves the state before it raises `KeyboardInterrupt`. The run can then be resumed with
    `resume=folder`.

    Args:
        algorithm: A name that `algorithms` lists.
        framework: `jax` or `torch`.
        env: The name of a dataset or of a file, such as `hopper-medium-v2`; what `make_dataset` returns; or an object
            with D4RL's `get_dataset()`. An online algorithm takes the name of an environment. None means the
            algorithm's default, a bundled dataset.
        progress: Whether to show a progress bar, and lines with scores.
        settings: Such as `max_timesteps=100_000` or `seed=3`; `corl-twins train jax iql --help` explains them all.
            Settings that you leave out come from the dataset's row in `configs/`, then from the algorithm's defaults.

    Raises:
        InputError: A name, a setting, the dataset or the environment cannot be used.
        RunError: The run cannot continue, for example because a loss is not finite.
        KeyboardInterrupt: You stopped it.
    """
    enter()
    from shared.errors import InputError
    from shared.frameworks.twins import FRAMEWORKS, load_twin, trainable
    from shared.runs.configs import from_settings
    from shared.runs.progress import silent

    if framework not in FRAMEWORKS:
        raise InputError(f"unknown framework {framework!r}: choose {' or '.join(map(repr, FRAMEWORKS))}")
    name = trainable(framework, algorithm)
    twin = load_twin(framework, name)
    with named(env) if env is not None else contextlib.nullcontext() as dataset:
        given: dict[str, Any] = {} if dataset is None else {"env": dataset}
        values = given | {setting: _plain(value) for setting, value in settings.items()}
        config = from_settings(twin.TrainConfig, name, _resumed(values) | values, "")
        with contextlib.nullcontext() if progress else silent():
            return Run(twin.train(config).folder)


def _plain(value: Any) -> Any:
    """Converts a setting to its form in a settings file: a run becomes its folder, and a path its text."""
    if isinstance(value, Run):
        value = value.folder
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _resumed(values: dict[str, Any]) -> dict[str, Any]:
    """The settings of the run that `resume` names, if it names one."""
    from shared.runs.configs import read_yaml
    from shared.runs.resuming import AUTO

    resume = values.get("resume")
    return {} if resume in (None, "", AUTO) else read_yaml(Path(resume) / "config.yaml")
