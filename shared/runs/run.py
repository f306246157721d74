"""A run from its beginning to its end: what it begins with, is told, saves and leaves, whatever happens meanwhile."""

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

    On entering it makes the folder `<runs_path>/<name>-<dataset>-s<seed>-<framework>-<8 hex digits>`, which holds

    - `config.yaml`: the settings, which `--config_path` reads back,
    - `metrics.jsonl`: one line for each call of `log` and `evaluate`, written at once,
    - `learning_curve.png`: redrawn while the run goes on,
    - `checkpoints/step_<n>`: what the run can go on from; the last two, and the one that was evaluated best,
    - `checkpoint`: the last one of all, written at the end,
    - `result.json`: written last: scores and what they depend on, versions, hardware, times; its seconds of evaluating
      are those that the run waited for evaluations.

    After an exception metrics, curve and checkpoints stay, there is no result, and the exception goes on. With the
    setting `resume` such a run goes on in its own folder, from its last whole checkpoint.

    Between updates the state is whole. There the run may be saved, and there it ends after Ctrl-C or SIGTERM:
    `save` raises `Stopped` then.

    Attributes:
        step: Updates, or steps of the environment, that were done when the run was entered; 0 for a new one.
        counted: The same, and those that `advance` has counted since.
        unfinished: What a resumed run's checkpoint holds of the interval that it was stopped in, under `history`.
        began: Steps of the environment before that interval, of an online run; None for one that was not stopped so.
        measures: From a trainer or a train state to what is measured on held-out rows; None where none are held out.
        result: What `result.json` holds; empty before the end.
    """

    def __init__(
        self, config: Any, task: Task, algorithm: str, framework: str, device: object = None, unit: str = "update"
    ) -> None:
        """Makes nothing yet.

        Args:
            config: Has `name`, `env`, `seed`, `max_timesteps`, `eval_freq`, `runs_path`, `checkpoints_path`,
                `load_model`, `resume`, `device`, `project`, `group` and `wandb_mode`.
            task: What is learnt and scored; its environments are closed when the run ends.
            algorithm: Such as `td3_bc`.
            framework: `torch` or `jax`.
            device: What the networks run on, for the result; the config's word for it if None.
            unit: What `max_timesteps` and the numbers of evaluations count: updates, or steps of an environment.

        Raises:
            InputError: A logger could not start, or `resume` names no run that can go on with these settings.
        """
        self._config, self._task, self._unit = config, task, unit
        self._stop = StopRequest(self._what_is_saved)
        self._progress, self._phases = Progress(), Phases(config)
        named_device = str(device or config.device)
        # JAX's devices say their platform; PyTorch's loop is stopped after any update, so that it needs no calls.
        self._accelerated = getattr(device, "platform", "cpu") != "cpu"
        self._record = Record(config, task, algorithm, framework, named_device, unit, self._progress, self._phases)
        self._background = BackgroundEvaluator(task.evaluator)
        self._saved: Path | None = None
        self._not_saved: OSError | None = None
        # Whether the run has said that it has diverged and continues
        self._lost = False
        # Rows that wait until an evaluation beside training has written its own
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
        """After how many updates, or steps, the checkpoints of a resumed run were saved; None for a new one."""
        return self._record.checkpoints.steps() if self._record.resumed else None

    def restore(
        self,
        load: Callable[[str], Mapping[str, Any]],
        last: int | None = None,
        go_on: Callable[[str, Mapping[str, Any]], None] = lambda path, content: None,
    ) -> Mapping[str, Any]:
        """Loads what the run begins with; comes before the run is entered.

        A resumed run begins with its last checkpoint. Where the last is damaged, a line says so, and the run begins
        with the one before. A run that has no checkpoint yet, and a new run, begin with `load_model`.

        Args:
            load: Loads the checkpoint at a path and returns what it holds, by key. What `save` was told to write by
                keyword is there again.
            last: Checkpoints after more updates, or steps, than these are left alone; None: there are none.
            go_on: Loads what a resumed run alone goes on with, from a checkpoint's path and what `load` returned of it.

        Returns:
            What `load` returned; nothing if there was nothing to load.

        Raises:
            InputError: The checkpoint of `load_model`, or every one of a resumed run, cannot be used, or is of another
                dataset.
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
        """The contents of the last complete checkpoint of the first resumed run that has one; None if none has."""
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
        """Makes the folder, or takes up that of a resumed run.

        Raises:
            InputError: The folder cannot be made, or a logger cannot start; then no folder is left.
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
        """Closes everything; draws the curve; without an exception also writes and prints the result.

        Raises:
            RunError: The last checkpoint, the metrics or the result could not be written, or memory has run out.
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
            # Last, since what is closed may hang, and a run that was asked to end does end.
            self._stop.__exit__(kind, error, trace)

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self._record.folder

    @property
    def stopping(self) -> bool:
        """Whether the run was asked to end: the next `save` ends it."""
        return seeds.agreed(self._stop.number is not None)

    def is_due(self, step: int) -> bool:
        """Whether an evaluation follows this many updates: every `eval_freq`, and the last of each phase."""
        return self._phases.is_due(step)

    def intervals(self) -> Iterator[tuple[int, int]]:
        """From each evaluation to the next, from where the run is entered: updates before, and at the end."""
        return self._phases.intervals(self.step)

    def calls(self, period: int = 1, cost: float = 1.0) -> Iterator[tuple[int, int]]:
        """The same in calls of a compiled program, short enough for a signal to be heard in time after each.

        Args:
            period: Every call but an interval's last has a multiple of so many updates.
            cost: About how many times as long an update takes as TD3+BC's with a batch of the same size.

        Raises:
            Stopped: Ctrl-C or SIGTERM asked for it, and there is nothing to save.
        """
        most = updates_a_call(self._config, cost, self._accelerated)
        for start, end in self._phases.calls(self.step, period, most):
            if start == self.step or self.is_due(start):
                self._stop.obey()
            yield start, end

    def started(self) -> None:
        """Prints, once, how long after the process started the first update was done; `advance` calls it too."""
        self._progress.started()

    def advance(self, updates: int, steps: int | None = None) -> None:
        """Counts updates that are done, and moves the bar by them, or by steps of the environment if that is its unit.

        The first call with updates is left out of the rate, since it may have compiled.
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
        """Lets `advance` log the mean of a history at each `log_freq`, and empty it."""

        def means() -> Mapping[str, SupportsFloat]:
            found = mean(history)
            history.clear()
            return found

        self._means = means

    def logged(self, number: int) -> list[int]:
        """The steps among the next `number` at which `log_between` logs metrics."""
        return self._phases.logged(self.counted, number)

    def log_between(self, step: int, metrics: Mapping[str, SupportsFloat]) -> None:
        """Like `log`, but without an evaluation, and without waiting for one that is still running.

        Raises:
            RunError: One of the metrics is not finite.
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
        """Writes the rows that came after an evaluation, once its own is written."""
        if not self._background.pending:
            for row in self._held:
                self._record.append(row)
            self._held.clear()

    def log(self, step: int, metrics: Mapping[str, SupportsFloat], episodes: Sequence[Episode] = ()) -> None:
        """Writes the metrics of the update number `step` (from 1) as one line, after the evaluations before it.

        Args:
            step: As above; an evaluation follows.
            metrics: By name.
            episodes: All training episodes that are over; those since the evaluation before are written first.

        Raises:
            RunError: One of them, or an evaluation before them, is not finite.
        """
        for outcome in self._background.known_before(metrics.values()):
            self._write_evaluation(outcome)
        # The device has done its updates when these are numbers: what an evaluation takes after that is waited for.
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
        """Ends a run that has diverged, if it says what is lost, unless it shall continue.

        Raises:
            RunError: It has diverged.
        """
        if lost and self._config.on_nan == "stop":
            raise RunError(f"{lost} at {self._unit} {step}; {self._what_is_saved()}")
        if lost and not self._lost:
            self._lost = True
            warn(f"{lost} at {self._unit} {step}; the run continues, as on_nan asks")

    def save(self, step: int, write: Callable[..., None]) -> None:
        """Saves what the run can go on from, then ends it if that was asked for.

        A run outlives a save that fails: it says so, and tries again at its next evaluation.

        Args:
            step: Updates, or steps of the environment, that are done. Where an evaluation follows them, a run that goes
                on from here begins with it.
            write: Writes the checkpoint to a path, atomically, with all that it is given by keyword in it. A partial
                of a function that takes the trainer first, or the train state first or as `state`.

        Raises:
            RunError: The state is not finite, and nobody asked that the run continue.
            Stopped: Ctrl-C or SIGTERM asked for it.
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
        """Writes the checkpoint to `checkpoints_path` too, if that is set; without this copy the run is as whole."""
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

        Beside the training a thread evaluates, and this returns at once. The next `log`, or `save`, waits for the
        outcome and writes it as soon as it is known. So all is written in the order in which it was asked for, and
        whatever the evaluation raises is raised there. After the last update nothing is left to train beside the
        evaluation, which is then waited for here.

        Args:
            step: Updates done.
            policy: From normalised observations (n_episodes, S) float32 to actions (n_episodes, A). Where a dataset
                takes the place of an environment: from observations and actions to values, or a model's step.
            prompt: The return that the policy was asked for, if it is asked for one. The run is scored by the first
                of several, as CORL's is; the others are written under their prompt's name alone.
            beside: The policy needs nothing that the next updates use up or overwrite, and no device of theirs.

        Raises:
            RunError: An outcome is not finite.
            Stopped: Ctrl-C or SIGTERM asked for it; an evaluation has nothing to save.
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
        """Waits, within `waiting`, for all that were asked for, and writes them.

        A run that is asked to end gives them a few seconds. Then they come again when it goes on, from the checkpoint
        that they are of.
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
        """For the last line of a run that ends early."""
        if self._saved is None:
            return "nothing was saved yet"
        fault = f", a later one could not be written ({self._not_saved.strerror})" if self._not_saved else ""
        return f"last checkpoint: {self._saved}{fault}; --resume {self.folder} goes on from it"

    def _finish(self) -> None:
        """Writes the last checkpoint and the result, which says that the run is over.

        Raises:
            RunError: It cannot.
        """
        try:
            if self._not_saved:
                raise self._not_saved
            # A seed that is over cannot be resumed, so none of them is before all are.
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
    """The first metric that is not finite, in words; empty if all are."""
    return next((f"{name} is {value}" for name, value in values.items() if not math.isfinite(value)), "")


def _learner(write: Any) -> Any:
    """The trainer or the train state that a checkpoint is written of."""
    return write.args[0] if write.args else write.keywords["state"]


def _load_all(
    load: Callable[[str], Mapping[str, Any]], go_on: Callable[[str, Mapping[str, Any]], None], path: str
) -> Mapping[str, Any]:
    content = load(path)
    go_on(path, content)
    return content
