"""The files in a run's folder: settings, metrics, learning curve, the facts in a checkpoint, result."""

import contextlib
import dataclasses
import gc
import json
import shutil
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shared.data.online import Episode
from shared.envs.boxes import ActionBox
from shared.envs.scores import rounded
from shared.errors import InputError
from shared.files import write_atomically
from shared.runs import resuming, seeds
from shared.runs.checkpoints import Checkpoints
from shared.runs.configs import dump
from shared.runs.curves import AVERAGED, PICTURE, Curve, draw_curve
from shared.runs.evaluators import AnyEvaluation
from shared.runs.extras import Extra, policy_returns
from shared.runs.loggers import Loggers
from shared.runs.machine import hardware, versions
from shared.runs.metrics import DIVERGED, MetricsFile, finite
from shared.runs.phases import PhaseResults, Phases
from shared.runs.progress import Progress, say, warn
from shared.runs.rollouts import RolloutEvaluator
from shared.runs.settings import RecordConfig
from shared.runs.task import Task
from shared.runs.validation import ValidationEvaluator

_PACKAGES = {"torch": ("torch",), "jax": ("jax", "jaxlib", "flax", "optax")}
_SUFFIXES = {"torch": ".pt", "jax": ".msgpack"}
_SECONDS_BETWEEN_DRAWINGS = 10.0


class Record:
    """The folder of one run, and the files in it that document the run.

    Attributes:
        folder: Path of the folder.
        suffix: Suffix of its checkpoints: `.pt` or `.msgpack`.
        checkpoints: The checkpoints in the folder.
        resumed: Whether this continues an unfinished run.
    """

    folder: Path
    checkpoints: Checkpoints
    resumed: bool
    # Set from the start for a resumed run, and by `open` for a new one
    _metrics: MetricsFile

    def __init__(
        self,
        config: RecordConfig,
        task: Task,
        algorithm: str,
        framework: str,
        device: str,
        unit: str,
        progress: Progress,
        phases: Phases,
    ) -> None:
        """Finds the folder of a run to resume, or names a new one, which `open` creates.

        Args:
            config: The config of the run, as for `Run`.
            task: The training data and the evaluator.
            algorithm: Name of the algorithm, such as `td3_bc`.
            framework: `torch` or `jax`.
            device: Device of the networks.
            unit: Unit in which evaluations are numbered: `update` or `step`.
            progress: The run's counts.
            phases: The run's phases.

        Raises:
            InputError: As for `Run`.
        """
        self._loggers = Loggers(config)
        self._dataset = resuming.dataset_name(config)
        new = Path(config.runs_path) / f"{resuming.run_name(config)}-{framework}-{uuid.uuid4().hex[:8]}"
        self.suffix = _SUFFIXES[framework]
        self._on_release = contextlib.ExitStack()
        self._new, self._unfinished = new, resuming.unfinished(config, algorithm, framework)
        self.next()
        self._config, self._task, self._algorithm, self._framework = config, task, algorithm, framework
        self._device, self._unit, self._progress = device, unit, progress
        self._scale, self._phases = task.evaluator.scale, phases
        self._phase_results = PhaseResults(self._phases, self._scale, task.evaluator.has_goals)
        stated = policy_returns(task.attributes) if self._scale.of == "returns" else {}
        self._references = {name: float(self._scale(value)) for name, value in stated.items()}
        self._picture = Extra(f"cannot draw {self.folder / PICTURE}")
        self._steps: list[int] = []
        self._outcomes: list[np.ndarray] = []
        self._final: Mapping[str, Any] = {}
        self._metrics_size = 0
        # The first step at which a value was not finite, and a description of the value
        self._diverged: tuple[int, str] | None = None

    # ---- the folder ------------------------------------------------------------------------------------------------

    def next(self) -> None:
        """Moves to the next run that `resume` may mean, or else to a new one."""
        found = next(self._unfinished, None)
        self.resumed = found is not None
        self.folder = found.folder if found else self._new
        if found:
            self._metrics = found.metrics
            self._on_release.callback(self._metrics.close)
        self.checkpoints = Checkpoints(self.folder / "checkpoints", self.suffix)

    def pass_over(self, error: InputError) -> None:
        """Skips a run that cannot be used, with a warning, and moves to the next one.

        Raises:
            InputError: The user named this run, so the error is raised again.
        """
        self.release()
        if self._config.resume != resuming.AUTO:
            raise error
        warn(f"{self.folder} is passed over: {error}")
        self.next()

    def open(self, step: int) -> None:
        """Creates the folder of a new run, or reopens the folder of a resumed run after `step` updates.

        Raises:
            InputError: The folder cannot be created or written, or a logger cannot start. No new folder is left behind.
        """
        if self.resumed:
            self._reopen(step)
        else:
            self._make()
        self._drawn = time.perf_counter()

    def _make(self) -> None:
        try:
            self.folder.mkdir(parents=True)
            try:
                # First, because other processes recognise a run by its settings, and skip it while this file is locked.
                self._metrics = MetricsFile(self.folder / "metrics.jsonl")
                self._on_release.callback(self._metrics.close)
                write_atomically(self.folder / "config.yaml", dump(self._config).encode())
                self._make_room_for_copies()
                self._loggers.start(self.folder, 0)
            except BaseException:
                self._remove()
                raise
        except OSError as error:
            reason = f"cannot make {self.folder} ({error.strerror})"
            raise InputError(f"{reason}: make room, or set runs_path to a folder of yours") from error

    def _remove(self) -> None:
        """Removes the new folder: renames it first, so that other processes never find half a run."""
        with contextlib.suppress(OSError):
            gone = self.folder.rename(self.folder.with_name(f".{self.folder.name}"))
            shutil.rmtree(gone)
        self.release()

    def copy_path(self, step: int) -> Path:
        """The path of a permanent copy of a checkpoint, in a folder with the run's name in `checkpoints_path`."""
        assert self._config.checkpoints_path, "whoever asks has a place for copies"
        return Path(self._config.checkpoints_path) / self.folder.name / f"checkpoint_{step}{self.suffix}"

    def _make_room_for_copies(self) -> None:
        """Creates the folder for copies of checkpoints, if `checkpoints_path` is set.

        Raises:
            InputError: The folder cannot be created or written.
        """
        if not self._config.checkpoints_path:
            return
        folder = self.copy_path(0).parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            reason = f"cannot write {folder} ({error.strerror})"
            raise InputError(f"{reason}: set checkpoints_path to a folder of yours") from error

    def _reopen(self, step: int) -> None:
        """Removes what was written after the checkpoint, because the resumed run writes it again."""
        try:
            self._make_room_for_copies()
            self._loggers.start(self.folder, step)
            self.checkpoints.tidy(step)
            self._metrics.truncate(self._metrics_size)
        except (InputError, OSError) as error:
            self.release()
            if isinstance(error, InputError):
                raise
            raise InputError(f"cannot continue {self.folder} ({error.strerror}): make it writable") from error

    def release(self) -> None:
        """Closes the metrics file, so that another process can use the folder."""
        self._on_release.close()

    def end_loggers(self, finished: bool) -> None:
        """Tells the loggers how the run ended."""
        self._loggers.finish(finished)

    # ---- a checkpoint's facts --------------------------------------------------------------------------------------

    def facts(self, step: int) -> dict[str, Any]:
        """The facts that every checkpoint contains, in addition to the algorithm's state."""
        progress = {
            "metrics_size": self._metrics.size,
            "updates": self._progress.updates,
            "seconds": self._progress.seconds(),
            "evaluating": self._progress.evaluating,
        }
        settings, where = dataclasses.asdict(self._config), self._task.evaluator.fingerprint
        if self._task.prompts.target_returns:
            settings |= self._task.prompts._asdict()  # so that a checkpoint can be used without the data
        return {
            "step": step,
            "settings": {name: list(v) if isinstance(v, tuple) else v for name, v in settings.items()},
            "dataset": self._task.fingerprint,
            "environment": {
                "id": where["env"],
                **{key: where[key] for key in ("max_episode_steps", "sets_goals") if key in where},
                "state_dim": shape if isinstance(shape := self._task.shape, int) else list(shape),
                "action_dim": self._task.action_dim,
                "max_action": float(self._task.max_action),
                **self._scale.references(),
            },
            "state_mean": self._task.mean,
            "state_std": self._task.std,
            "action_mean": self._task.action_mean,
            "action_std": self._task.action_std,
            **_bounds(self._task.box),
            "versions": self._versions(),
            "progress": progress,
        }

    def go_on_from(self, path: Path, content: Mapping[str, Any]) -> None:
        """Restores a run's progress from the facts in a checkpoint and from the rows written before it.

        Raises:
            InputError: The facts are missing, they name another dataset, or somebody has changed the rows.
        """
        try:
            dataset, progress, then = content["dataset"], content["progress"], content["versions"]
        except KeyError as error:
            raise InputError(f"{path} does not say how far its run had come: set load_model to it") from error
        if dataset != self._task.fingerprint:
            raise InputError(f"{self.folder} learnt from another dataset, {dataset}: put that one back")
        now = self._versions()
        if changed := [f"{name} {then.get(name)}, now {now[name]}" for name in now if then.get(name) != now[name]]:
            warn(f"other versions than before, so the last bits may differ: {', '.join(changed)}")
        self._metrics_size = progress["metrics_size"]
        self._progress.go_on_from(progress["updates"], progress["seconds"], progress["evaluating"])
        rows = self._metrics.rows(self._metrics_size)
        self._phase_results.go_on_from(rows)
        self._diverged = next(((row["step"], str(row[DIVERGED])) for row in rows if DIVERGED in row), None)
        for row, outcomes in self._metrics.evaluations(self._metrics_size, self._task.evaluator.outcomes):
            self._keep(row["step"], row, outcomes)

    def prune(self) -> None:
        """Removes all checkpoints except the last two and the best."""
        means = [float(outcomes.mean()) for outcomes in self._outcomes]
        self.checkpoints.prune(dict(zip(self._steps, means, strict=True)), self._scale.lower_is_better)

    def _versions(self) -> dict[str, str]:
        return versions("numpy", "gymnasium", "mujoco", *_PACKAGES[self._framework])

    # ---- rows and curve --------------------------------------------------------------------------------------------

    def write(self, step: int, values: Mapping[str, Any], diverged: str = "") -> None:
        """Writes a row of metrics; if the disk does not take it, the next write tries again.

        Args:
            step: Number of updates done.
            values: Values by name.
            diverged: A description of the value that is not finite; empty if all are finite.
        """
        self.append(self.row(step, values, diverged))

    def row(self, step: int, values: Mapping[str, Any], diverged: str = "") -> dict[str, Any]:
        """The row that `write` writes, with the current time."""
        seconds = self._progress.seconds()
        speed = {"updates_per_second": self._progress.updates_per_second(), "seconds": seconds}
        row = {"step": step, **self._phases.counted(step), **values, **speed}
        if diverged:
            row[DIVERGED] = diverged
            self._diverged = self._diverged or (step, diverged)
        return row

    def append(self, row: Mapping[str, Any]) -> None:
        """Writes a row that `row` has built."""
        try:
            self._metrics.write(row)
        except OSError as error:
            warn(f"cannot write {self.folder / 'metrics.jsonl'} ({error.strerror}): make room; it is tried again")
        self._loggers.log(row, row["step"])

    def write_episode(self, step: int, episode: Episode) -> None:
        """Writes the row of a training episode that ended with update `step`."""
        self.write(step, self._phase_results.of_episode(episode))

    def _keep(self, step: int, row: Mapping[str, Any], outcomes: np.ndarray) -> None:
        """Adds an evaluation's outcomes to the curve, and keeps the entries of its row that the result may need."""
        self._steps.append(step)
        self._outcomes.append(outcomes)
        self._final = {name: row[name] for name in self._task.evaluator.measures if name in row}

    def write_evaluation(self, step: int, prompt: float | None, evaluation: AnyEvaluation) -> str:
        """Writes an evaluation's row, prints it, and redraws the curve if the last drawing is some seconds old.

        Args:
            step: Number of updates done.
            prompt: The target return that the policy was prompted with, if any. After an update, the first prompt's
                outcome scores the run; the entries of the others are named after their prompts.
            evaluation: The evaluation.

        Returns:
            A description of the outcome that is not finite; empty if all are finite.
        """
        row, given = evaluation.row(), evaluation.outcomes
        outcomes = np.where(np.isfinite(given), given, np.nan)
        row[self._scale.metric] = float(self._scale(outcomes).mean())
        first = not self._steps or self._steps[-1] != step
        if first:
            row |= self._phase_results.of_evaluation(step, evaluation)
            self._keep(step, row, outcomes)
            self.prune()
        if prompt is not None:
            named_row = {f"eval/{prompt}_{name}": value for name, value in row.items()}
            row = named_row | row if first else named_row
        bad = given[~np.isfinite(given)]
        diverged = f"an evaluation's outcome is {bad[0]}" if bad.size else ""
        self.write(step, row, diverged)
        self._tell(step, prompt, outcomes)
        if time.perf_counter() - self._drawn > _SECONDS_BETWEEN_DRAWINGS:
            self.draw()
        return diverged

    def _tell(self, step: int, prompt: float | None, outcomes: np.ndarray) -> None:
        """Prints an evaluation."""
        asked = "" if prompt is None else f" (asked for {prompt:g})"
        episodes = f"{len(outcomes)} episode{'s' if len(outcomes) != 1 else ''}"
        say(f"{self._unit} {step}{asked}: {self._scale.told(outcomes)} ({episodes})")

    def sync(self) -> None:
        """Makes all rows survive a power cut.

        Raises:
            OSError: The disk cannot take them.
        """
        self._metrics.sync()

    def draw(self) -> None:
        """Draws the learning curve, if there are evaluations; only the first failure is reported."""
        if self._steps:
            title = f"{self._algorithm} ({self._framework}) on {self._dataset}, seed {self._config.seed}"
            with self._picture.spared():
                picture = draw_curve(self._curve(), title, f"{self._unit}s")
                write_atomically(self.folder / PICTURE, picture)
                self._draw_model(title)
            # A figure is 4 MB of objects with cyclic references. Python alone would keep about ten figures in memory.
            gc.collect(1)
            self._drawn = time.perf_counter()

    def _draw_model(self, title: str) -> None:
        """Draws a dynamics model's errors in a separate picture."""
        if isinstance(self._task.evaluator, RolloutEvaluator):
            picture = self._task.evaluator.draw(self._metrics.rows(self._metrics.size), title)
            if picture is not None:
                write_atomically(self.folder / "model.png", picture)

    def _curve(self) -> Curve:
        """All evaluations so far, on the scale of the evaluator."""
        values, switch = self._scale(self._outcomes), self._phases.switch
        return Curve(self._scale.metric, np.array(self._steps), values, self._references, switch)

    # ---- result ----------------------------------------------------------------------------------------------------

    def write_result(self) -> dict[str, Any]:
        """Writes `result.json`, which marks the run as finished, and returns its contents.

        Raises:
            OSError: It cannot be written.
        """
        result = finite(self._result())
        write_atomically(self.folder / "result.json", (json.dumps(result, indent=2, allow_nan=False) + "\n").encode())
        if self._diverged:
            say(f"diverged: {self._diverged[1]} at {self._unit} {self._diverged[0]}")
        return result

    def _result(self) -> dict[str, Any]:
        curve = self._curve()
        means = [float(values.mean()) for values in curve.values]
        numbers = [mean for mean in means if np.isfinite(mean)]
        return {
            "algorithm": self._algorithm,
            "framework": self._framework,
            "seed": self._config.seed,
            "seeds_at_once": seeds.count(),
            "updates": self._progress.updates,
            "metric": curve.metric,
            "final": means[-1] if means else None,
            f"mean_of_last_{AVERAGED}": float(np.mean(means[-AVERAGED:])) if means else None,
            "best": self._scale.best(numbers) if numbers else None,
            DIVERGED: self._diverged and dict(zip(("step", "what"), self._diverged, strict=True)),
            **{f"final_{name}": self._final.get(name) for name in self._task.evaluator.measures},
            **self._phase_results.result(self._steps, means),
            "data_policies": curve.references,
            "dataset": self._task.fingerprint,
            "evaluation": self._task.evaluator.fingerprint,
            "versions": self._versions(),
            "hardware": {"device": self._device, **hardware()},
            "seconds": {
                "total": self._progress.seconds(),
                "training": self._progress.seconds_training(),
                "evaluating": self._progress.evaluating,
                "to_first_update": self._progress.seconds_to_first_update,
            },
            "updates_per_second": self._progress.updates_per_second(),
        }

    def summarise(self, result: Mapping[str, Any]) -> None:
        """Prints the folder and the scores of a finished run, and the scores of the policies that recorded its data."""
        unit, places = self._scale.words, self._scale.places
        say(f"{self.folder}")
        scores = result["final"], result[f"mean_of_last_{AVERAGED}"], result["best"]
        if None not in scores:
            final, last, best = rounded(*scores, digits=places)
            count = min(AVERAGED, len(self._steps))
            # A single evaluation is all three.
            several = f", {last} over the last {count}, {best} at best" if count > 1 else ""
            say(f"{unit}: {final} at the end{several}")
        for name, value in result["data_policies"].items():
            say(f"{unit} of the data's {name} policy: {rounded(value)[0]}")
        if isinstance(self._task.evaluator, ValidationEvaluator):
            say(self._task.evaluator.then(self.folder))


def _bounds(box: ActionBox | None) -> dict[str, np.ndarray]:
    """The bounds of actions under their names in a checkpoint, which only stores finite numbers."""
    if box is None:
        return {}
    largest = np.finfo(np.float32).max
    low, high = (np.clip(bound, -largest, largest).astype(np.float32) for bound in (box.low, box.high))
    return {"action_low": low, "action_high": high}
