"""A run from beginning to end: what it starts from, records, saves and reports, however it ends."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, SupportsFloat

from shared.data.online import Episode
from shared.envs.evaluation import ContextPolicy, Policy
from shared.errors import InputError, RunError, Stopped
from shared.files import write_atomically
from shared.runs import seeds
from shared.runs.background import BackgroundEvaluator, Outcome
from shared.runs.memory import advice, is_exhausted
from shared.runs.phases import Phases, updates_a_call
from shared.runs.progress import Progress, say, warn
from shared.runs.record import Record
from shared.runs.rollouts import Predict
from shared.runs.stopping import StopRequest
from shared.runs.task import Task
from shared.runs.valuation import Value


class Run:
    """Records one run; a context manager.

    Entering it creates the folder `<runs_path>/<name>-<dataset>-s<seed>-<framework>-<8 hex digits>`, which contains

    - `config.yaml`: the settings, which `--config_path` reads back,
    - `metrics.jsonl`: one line for each call of `log` and `evaluate`, written at once,
    - `learning_curve.png`: redrawn during the run,
    - `checkpoints/step_<n>`: the last two checkpoints, from which the run can be resumed, and the best,
    - `checkpoint`: the final checkpoint, written at the end,
    - `result.json`: written last: scores and what they depend on, versions, hardware, times; its seconds of evaluating
      are the time that the run waited for evaluations.

    After an exception the metrics, curve and checkpoints stay, but no result is written, and the exception propagates.
    The setting `resume` continues such a run in its own folder, from its last complete checkpoint.

    Between updates the train state is consistent. Only there can the run be saved, and only there does it end after
    Ctrl-C or SIGTERM: `save` then raises `Stopped`.

    Attributes:
        step: Updates, or environment steps, done when the run was entered; 0 for a new run.
        counted: `step` plus the updates or steps that `advance` has counted.
        unfinished: For a resumed run, its checkpoint's `history` of the interval in which the run was stopped.
        began: Environment steps before that interval, for an online run; None if it was not stopped in an interval.
        measures: Maps a trainer or a train state to measurements on held-out rows; None without held-out rows.
        result: The contents of `result.json`; empty before the end.
    """

    def __init__(
        self, config: Any, task: Task, algorithm: str, framework: str, device: object = None, unit: str = "update"
    ) -> None:
        """Finds or names the run's folder, but creates nothing yet.

        Args:
            config: Has `name`, `env`, `seed`, `max_timesteps`, `eval_freq`, `runs_path`, `checkpoints_path`,
                `load_model`, `resume`, `device`, `project`, `group` and `wandb_mode`.
            task: The training data and the evaluator; its environments are closed when the run ends.
            algorithm: Name of the algorithm, such as `td3_bc`.
            framework: `torch` or `jax`.
            device: Device of the networks, for the result; None means the config's setting.
            unit: Unit of `max_timesteps` and of the evaluations' numbers: updates, or environment steps.

        Raises:
            InputError: A logger cannot start, or `resume` names no run that can be resumed with these settings.
        """
        self._config, self._task, self._unit = config, task, unit
        self._stop = StopRequest(self._what_is_saved)
        self._progress, self._phases = Progress(), Phases(config)
        named_device = str(device or config.device)
        # JAX's devices name their platform. PyTorch's loop can stop after any update, so it needs no calls.
        self._accelerated = getattr(device, "platform", "cpu") != "cpu"
        self._record = Record(config, task, algorithm, framework, named_device, unit, self._progress, self._phases)
        self._background = BackgroundEvaluator(task.evaluator)
        self._saved: Path | None = None
        self._not_saved: OSError | None = None
        # Whether the run has already reported that it diverged and continues
        self._lost = False
        # Rows that wait until a background evaluation has written its own
        self._held: list[Mapping[str, Any]] = []
        self.step = self.counted = 0
        self.unfinished: Any = None
        self.began: int | None = None
        self.measures: Callable[[Any], Mapping[str, float]] | None = None
        self._means: Callable[[], Mapping[str, SupportsFloat]] | None = None
        self.result: dict[str, Any] = {}

    @property
    def held_out(self) -> Any:
        """Held-out rows as the algorithm would learn from them; None if there are none."""
        return self._task.held_out

    @property
    def saved_steps(self) -> list[int] | None:
        """Steps of a resumed run's checkpoints; None for a new run."""
        return self._record.checkpoints.steps() if self._record.resumed else None

    def restore(
        self,
        load: Callable[[str], Mapping[str, Any]],
        last: int | None = None,
        go_on: Callable[[str, Mapping[str, Any]], None] = lambda path, content: None,
    ) -> Mapping[str, Any]:
        """Loads the checkpoint that the run starts from; call it before entering the run.

        A resumed run starts from its last checkpoint. If this is damaged, it prints a warning and uses the previous
        one. A new run, and a resumed run without a checkpoint, start from `load_model`.

        Args:
            load: Loads the checkpoint at a path and returns its contents by key, including `save`'s keyword arguments.
            last: Checkpoints after later steps than this are ignored; None uses all.
            go_on: Loads what only a resumed run needs, from a checkpoint's path and the contents that `load` returned.

        Returns:
            What `load` returned; empty if there was nothing to load.

        Raises:
            InputError: The checkpoint of `load_model`, or every checkpoint of a resumed run, cannot be used, or is from
                another dataset.
        """
        try:
            content = self._load_resumed(partial(_load_all, load, go_on), last)
            if content is None:
                return load(self._config.load_model) if self._config.load_model else {}
            return content
        except BaseException:
            if self._record.resumed:
                self._record.release()
            raise

    def _load_resumed(self, load: Callable[[str], Mapping[str, Any]], last: int | None) -> Mapping[str, Any] | None:
        """The contents of the last complete checkpoint of the first resumable run that has one; None if none has."""
        while self._record.resumed:
            try:
                return self._load_last(load, last)
            except InputError as error:
                self._record.pass_over(error)
        return None

    def _load_last(self, load: Callable[[str], Mapping[str, Any]], last: int | None) -> Mapping[str, Any] | None:
        """The contents of a resumed run's last complete checkpoint; None if it has none."""
        faults = []
        for step in reversed([step for step in self._record.checkpoints.steps() if last is None or step <= last]):
            path = self._record.checkpoints.path(step)
            try:
                content = load(str(path))
            except InputError as error:
                faults.append(error)
                continue
            self._record.go_on_from(path, content)
            self.step, self._saved = step, path
            self.unfinished, self.began = content.get("history"), content.get("began")
            for fault in faults:
                warn(f"{fault}; going on from {path} instead")
            return content
        if faults:
            raise InputError(f"no checkpoint of {self.folder} can be used ({faults[0]}): begin a new run")
        return None

    def __enter__(self) -> Self:
        """Creates the folder, or reopens a resumed run's folder.

        Raises:
            InputError: The folder cannot be created, or a logger cannot start. No new folder is left behind.
        """
        self._record.open(self.step)
        self._progress.begin(self._config.max_timesteps, self.step, self._unit)
        self.counted = self.step
        say(f"run folder: {self.folder}")
        if self._record.resumed:
            say(f"going on after {self._unit} {self.step}")
        self._stop.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes everything and draws the curve; without an exception, also writes and prints the result.

        Raises:
            RunError: The last checkpoint, the metrics or the result could not be written, or memory ran out.
        """
        finished = False
        try:
            self._progress.bar.close()
            self._record.draw()
            if kind is None:
                self._finish()
                finished = True
            elif is_exhausted(error):
                raise RunError(f"{advice(self._config)}; {self._what_is_saved()}") from error
            elif not issubclass(kind, InputError | RunError | Stopped):
                warn(f"the run has failed; {self._what_is_saved()}")
        finally:
            self._record.release()
            self._task.evaluator.close()
            self._background.close()
            self._record.end_loggers(finished)
            # Last, because closing may hang, and until here a second signal still ends the run.
            self._stop.__exit__(kind, error, trace)

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self._record.folder

    @property
    def stopping(self) -> bool:
        """Whether a signal has asked the run to end; the next `save` ends it."""
        return seeds.agreed(self._stop.number is not None)

    def is_due(self, step: int) -> bool:
        """Whether to evaluate after this many updates: at multiples of `eval_freq`, and at the end of each phase."""
        return self._phases.is_due(step)

    def intervals(self) -> Iterator[tuple[int, int]]:
        """Yields the interval before each evaluation, from `step`: the updates done before it, and at its end."""
        return self._phases.intervals(self.step)

    def calls(self, period: int = 1, cost: float = 1.0) -> Iterator[tuple[int, int]]:
        """Splits the intervals into calls of a compiled program, short enough to react to a signal after each.

        Args:
            period: The length of every call but an interval's last is a multiple of this number.
            cost: Rough time of an update, relative to TD3+BC's with the same batch size.

        Raises:
            Stopped: A signal arrived, and there is nothing to save.
        """
        most = updates_a_call(self._config, cost, self._accelerated)
        for start, end in self._phases.calls(self.step, period, most):
            if start == self.step or self.is_due(start):
                self._stop.obey()
            yield start, end

    def started(self) -> None:
        """Prints, once, the time from the start of the process to the first update; `advance` calls it too."""
        self._progress.started()

    def advance(self, updates: int, steps: int | None = None) -> None:
        """Counts updates, and moves the bar by them, or by environment steps if these are its unit.

        The rate excludes the first call with updates, because it may include compilation.
        """
        steps = updates if steps is None else steps
        self._progress.advance(updates, steps)
        for outcome in self._background.known():
            self._write_evaluation(outcome)
        self._write_held()
        due = self.logged(steps)
        self.counted += steps
        if due and self._means is not None:
            self.log_between(self.counted, self._means())

    def take_from(self, history: list[Any], mean: Callable[[list[Any]], Mapping[str, SupportsFloat]]) -> None:
        """Makes `advance` log the mean of a history at every `log_freq`, and then clear the history."""

        def means() -> Mapping[str, SupportsFloat]:
            found = mean(history)
            history.clear()
            return found

        self._means = means

    def logged(self, number: int) -> list[int]:
        """The steps among the next `number` at which `log_between` logs metrics."""
        return self._phases.logged(self.counted, number)

    def log_between(self, step: int, metrics: Mapping[str, SupportsFloat]) -> None:
        """Logs metrics between evaluations; does not wait for an evaluation that is still running.

        Raises:
            RunError: A metric is not finite.
        """
        values = {name: float(value) for name, value in metrics.items()}
        if not values:  # no update was made yet
            return
        lost = _lost(values)
        self._held.append(self._record.row(step, values, lost))
        if lost:
            self._write_pending()
        self._write_held()
        self._end_if(lost, step)

    def _write_held(self) -> None:
        """Writes the rows that waited for a background evaluation, once its own row is written."""
        if not self._background.pending:
            for row in self._held:
                self._record.append(row)
            self._held.clear()

    def log(self, step: int, metrics: Mapping[str, SupportsFloat], episodes: Sequence[Episode] = ()) -> None:
        """Writes the metrics of update number `step`, counted from 1, as one line after all earlier evaluations.

        Args:
            step: The number of the update; an evaluation follows.
            metrics: Metrics by name.
            episodes: All finished training episodes; those since the last evaluation are written first.

        Raises:
            RunError: A metric, or the outcome of an earlier evaluation, is not finite.
        """
        for outcome in self._background.known_before(metrics.values()):
            self._write_evaluation(outcome)
        # float() waits for the device's updates; only the time that an evaluation takes beyond these counts as waiting.
        values = {name: float(value) for name, value in metrics.items()}
        self._write_pending()
        since = self._phases.steps_since_evaluation(step)
        for episode in episodes:
            if episode.step in since:
                self._record.write_episode(episode.step + (self._phases.switch or 0), episode)
        lost = _lost(values)
        self._record.write(step, values, lost)
        self._end_if(lost, step)

    def _end_if(self, lost: str, step: int) -> None:
        """Ends a run that has diverged, unless it should continue; `lost` describes what is not finite, if anything.

        Raises:
            RunError: The run has diverged.
        """
        if lost and self._config.on_nan == "stop":
            raise RunError(f"{lost} at {self._unit} {step}; {self._what_is_saved()}")
        if lost and not self._lost:
            self._lost = True
            warn(f"{lost} at {self._unit} {step}; the run continues, as on_nan asks")

    def save(self, step: int, write: Callable[..., None]) -> None:
        """Saves a checkpoint, then ends the run if a signal has arrived.

        If saving fails, the run prints a warning, continues, and tries again at its next evaluation.

        Args:
            step: Updates, or environment steps, done. If an evaluation is due here, a run resumed from this checkpoint
                begins with it.
            write: Writes the checkpoint to a path, atomically, together with its keyword arguments. It is a partial of
                a function whose first argument is the trainer or the train state, or which takes the latter as `state`.

        Raises:
            RunError: The state is not finite, and the run should stop then.
            Stopped: Ctrl-C or SIGTERM has arrived.
        """
        self._write_pending()
        if self.measures is not None and self.is_due(step):
            self._write_measures(step, self.measures(_learner(write)))
        self._not_saved = None
        path = self._record.checkpoints.path(step)
        try:
            self._record.sync()
            facts = self._record.facts(step)
            with self._stop.writing():
                write(path, **facts)
                self._saved = path
                self._record.prune()
                self._copy(step, partial(write, **facts))
        except RunError as error:
            self._record.write(step, {}, str(error))
            self._end_if(str(error), step)
        except OSError as error:
            self._not_saved = error
            warn(f"cannot save {path} ({error.strerror}): make room, or the folder writable; training goes on")
        self._stop.obey()

    def _write_measures(self, step: int, measures: Mapping[str, float]) -> None:
        finite = {f"held_out/{name}": value for name, value in measures.items() if math.isfinite(value)}
        if finite:
            self._record.write(step, finite)

    def _copy(self, step: int, write: Callable[[Path], None]) -> None:
        """Also writes the checkpoint to `checkpoints_path`, if it is set; a failure does not affect the run."""
        if not self._config.checkpoints_path:
            return
        copy = self._record.copy_path(step)
        try:
            write(copy)
        except OSError as error:
            warn(f"cannot write {copy} ({error.strerror}): make room, or the folder writable; {self._saved} is there")

    def evaluate(
        self,
        step: int,
        policy: Policy | ContextPolicy | Value | Predict,
        prompt: float | None = None,
        beside: bool = False,
    ) -> None:
        """Evaluates the policy after `step` updates, writes the outcome, prints it and redraws the curve.

        An evaluation beside training runs in a thread, and this method returns at once. The next `log` or `save` waits
        for the outcome and writes it as soon as it is known. Rows therefore stay in order, and the evaluation's errors
        are raised there. After the last update there is no more training, so this method waits for the evaluation.

        Args:
            step: Number of updates done.
            policy: Maps normalised observations (n_episodes, S) float32 to actions (n_episodes, A). If a dataset
                replaces the environment, it maps observations and actions to values, or it is a model's step.
            prompt: The target return that the policy is prompted with, if any. The first of several prompts scores the
                run, as in CORL; the entries of the others are named after their prompts.
            beside: Whether to evaluate beside training. The policy must not need memory that the next updates
                overwrite, nor their device.

        Raises:
            RunError: An outcome is not finite.
            Stopped: Ctrl-C or SIGTERM has arrived; there is nothing to save during an evaluation.
        """
        self._stop.obey()
        self._progress.bar.set_postfix_str(f"evaluating {step}")
        if beside:
            self._background.ask(step, policy, prompt)
            if step == self._config.max_timesteps:
                self._write_pending(self._stop.obeyed_at_once)
            return
        with self._progress.left_out():
            with self._stop.obeyed_at_once():
                evaluation = self._task.evaluator(policy)
            self._write_evaluation(Outcome(step, prompt, evaluation))

    def _write_pending(self, waiting: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext) -> None:
        """Waits, within `waiting`, for all pending evaluations, and writes their outcomes.

        A run that should end waits a few seconds for them. Evaluations that take longer are repeated when the run
        resumes from their checkpoint.
        """
        while self._background.pending:
            with self._progress.left_out():
                with waiting():
                    outcome = self._background.awaited(self._stop.obey_after_grace)
                self._write_evaluation(outcome)
        self._write_held()

    def _write_evaluation(self, outcome: Outcome) -> None:
        self._progress.bar.set_postfix_str("", refresh=False)
        self._end_if(self._record.write_evaluation(*outcome), outcome.step)

    def _what_is_saved(self) -> str:
        """Describes what is saved, for the last line of a run that ends early."""
        if self._saved is None:
            return "nothing was saved yet"
        fault = f", a later one could not be written ({self._not_saved.strerror})" if self._not_saved else ""
        return f"last checkpoint: {self._saved}{fault}; --resume {self.folder} continues from it"

    def _finish(self) -> None:
        """Writes the last checkpoint and the result, which marks the run as finished.

        Raises:
            RunError: A file cannot be written.
        """
        try:
            if self._not_saved:
                raise self._not_saved
            # A finished seed cannot be resumed, so every seed waits here until all are done.
            seeds.meet_at_the_end()
            with self._stop.writing():
                self._record.sync()
                if self._saved:
                    write_atomically(self.folder / f"checkpoint{self._record.suffix}", self._saved.read_bytes())
                self.result = self._record.write_result()
        except OSError as error:
            reason = f"the end of the run cannot be written ({error.strerror})"
            raise RunError(f"{reason}; {self._what_is_saved()}") from error
        self._record.summarise(self.result)


def _lost(values: Mapping[str, float]) -> str:
    """Describes the first metric that is not finite; empty if all are finite."""
    return next((f"{name} is {value}" for name, value in values.items() if not math.isfinite(value)), "")


def _learner(write: Any) -> Any:
    """The trainer or the train state that a checkpoint is written from."""
    return write.args[0] if write.args else write.keywords["state"]


def _load_all(
    load: Callable[[str], Mapping[str, Any]], go_on: Callable[[str, Mapping[str, Any]], None], path: str
) -> Mapping[str, Any]:
    content = load(path)
    go_on(path, content)
    return content
