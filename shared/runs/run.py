"""A run's folder and everything that goes into it: settings, metrics, learning curve, checkpoints, result."""

import contextlib
import dataclasses
import json
import math
import shutil
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, SupportsFloat

import numpy as np
import psutil
from tqdm import tqdm

from shared.envs.evaluation import ContextPolicy, Evaluation, Policy
from shared.envs.scores import scale
from shared.errors import InputError, RunError, Stopped
from shared.files import write_atomically
from shared.names import is_file_name
from shared.runs import resuming, seeds
from shared.runs.checkpoints import Checkpoints
from shared.runs.configs import dump
from shared.runs.curves import AVERAGED, Curve, draw_curve
from shared.runs.machine import hardware, versions
from shared.runs.metrics import MetricsFile
from shared.runs.stopping import StopRequest
from shared.runs.task import Task
from shared.runs.wandb_side import import_wandb, start_wandb

_PACKAGES = {"torch": ("torch",), "jax": ("jax", "jaxlib", "flax", "optax")}
_SUFFIXES = {"torch": ".pt", "jax": ".msgpack"}
_SECONDS_BETWEEN_DRAWINGS = 10.0
# While an evaluation is awaited: for signals, and for the device, whose end begins what counts as waiting
_SECONDS_BETWEEN_LOOKS = 0.01


class _Moment(NamedTuple):
    """How far a run has come: updates, and seconds of training."""

    updates: int
    seconds: float


class _Pending(NamedTuple):
    """An evaluation that a thread makes beside the training."""

    step: int
    prompt: float | None
    evaluation: Future[Evaluation]


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
        folder: The run's folder.
        step: Updates, or steps of the environment, that were done when the run was entered; 0 for a new one.
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
            InputError: Weights & Biases should be online but nobody is logged in, or `resume` names no run that can go
                on with these settings.
        """
        self._dataset = Path(config.env).stem if is_file_name(config.env) else config.env
        self._wandb_module = import_wandb(config.wandb_mode)
        self._wandb = None
        name = f"{config.name}-{self._dataset}-s{config.seed}".replace("/", "-").replace(":", "-")
        new = Path(config.runs_path) / f"{name}-{framework}-{uuid.uuid4().hex[:8]}"
        self._resumed = resuming.find(config, name, framework)
        self.folder = self._resumed.folder if self._resumed else new
        self.step = 0
        self.result: dict[str, Any] = {}
        self._suffix = _SUFFIXES[framework]
        self._checkpoints = Checkpoints(self.folder / "checkpoints", self._suffix)
        self._saved: Path | None = None
        self._not_saved: OSError | None = None
        self._stop = StopRequest(self._what_is_saved)
        self._config, self._task, self._algorithm, self._framework = config, task, algorithm, framework
        self._device = str(device or config.device)
        self._scale = scale(task.evaluator.fingerprint["env"])
        self._unit = unit
        self._steps: list[int] = []
        self._returns: list[np.ndarray] = []
        self._seconds_to_first_update: float | None = None
        self._metrics_size = 0
        self._updates = 0
        self._seconds_before = 0.0
        self._evaluating = 0.0
        self._pending: deque[_Pending] = deque()
        self._beside = ThreadPoolExecutor(max_workers=1, thread_name_prefix="evaluation")
        self._warm: _Moment | None = None
        self._latest = _Moment(0, 0.0)

    def restore(self, load: Callable[[str], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Loads what the run begins with; comes before the run is entered.

        That is the last checkpoint of a resumed run, or the one before it where the last is damaged, which is said; for
        a run that has none yet, and for a new one, `load_model`.

        Args:
            load: Loads the checkpoint at a path and returns what it holds, by key. What `save` was told to write by
                keyword is there again.

        Returns:
            What `load` returned; nothing if there was nothing to load.

        Raises:
            InputError: The checkpoint of `load_model`, or every one of a resumed run, cannot be used, or is of another
                dataset.
        """
        try:
            content = self._load_last(load) if self._resumed else None
            if content is None:
                return load(self._config.load_model) if self._config.load_model else {}
            return content
        except BaseException:
            if self._resumed:
                self._resumed.metrics.close()
            raise

    def _load_last(self, load: Callable[[str], Mapping[str, Any]]) -> Mapping[str, Any] | None:
        """What the last whole checkpoint of a resumed run holds; None if it has none at all."""
        faults = []
        for step in reversed(self._checkpoints.steps()):
            try:
                content = load(str(self._checkpoints.path(step)))
            except InputError as error:
                faults.append(error)
                continue
            self._go_on_from(step, content)
            for fault in faults:
                _warn(f"{fault}; going on from {self._saved} instead")
            return content
        if faults:
            raise InputError(f"no checkpoint of {self.folder} can be used ({faults[0]}): begin a new run")
        return None

    def __enter__(self) -> Self:
        """Makes the folder, or takes up that of a resumed run.

        Raises:
            InputError: The folder cannot be made, or Weights & Biases cannot start; then no folder is left.
        """
        if self._resumed:
            self._reopen(self._resumed.metrics)
        else:
            self._make()
        # A bar redrawn into a log file would flood it, so there is one on terminals only.
        self._bar = tqdm(
            total=self._config.max_timesteps,
            initial=self.step,
            unit=f" {self._unit}s",
            desc=seeds.label().removesuffix(": ") or None,
            disable=None,
            dynamic_ncols=True,
        )
        self._drawn = time.perf_counter()
        self._entered = self._drawn - self._seconds_before
        self._begun = _Moment(self._updates, self._seconds_training())
        _say(f"run folder: {self.folder}")
        if self._resumed:
            _say(f"going on after {self._unit} {self.step}")
        self._stop.__enter__()
        return self

    def _make(self) -> None:
        try:
            self.folder.mkdir(parents=True)
        except OSError as error:
            raise InputError(
                f"cannot make {self.folder} ({error.strerror}): set runs_path to a folder of yours"
            ) from error
        try:
            write_atomically(self.folder / "config.yaml", dump(self._config).encode())
            self._wandb = start_wandb(self._wandb_module, self._config, self.folder)
            self._metrics = MetricsFile(self.folder / "metrics.jsonl")
        except BaseException:
            shutil.rmtree(self.folder)
            raise

    def _reopen(self, metrics: MetricsFile) -> None:
        """Removes what was written after the checkpoint, since it comes again."""
        self._metrics = metrics
        try:
            self._wandb = start_wandb(self._wandb_module, self._config, self.folder)
            self._checkpoints.tidy(self.step)
            self._metrics.truncate(self._metrics_size)
        except (InputError, OSError) as error:
            self._metrics.close()
            if isinstance(error, InputError):
                raise
            raise InputError(f"cannot go on with {self.folder} ({error.strerror}): make it writable") from error

    def _go_on_from(self, step: int, content: Mapping[str, Any]) -> None:
        """Takes over how far a run had come."""
        path = self._checkpoints.path(step)
        try:
            dataset, progress, then = content["dataset"], content["progress"], content["versions"]
        except KeyError as error:
            raise InputError(f"{path} does not say how far its run had come: give it as --load_model") from error
        if dataset != self._task.fingerprint:
            raise InputError(f"{self.folder} learnt from another dataset, {dataset}: put that one back")
        now = self._versions()
        if changed := [f"{name} {then.get(name)}, now {now[name]}" for name in now if then.get(name) != now[name]]:
            _warn(f"other versions than before, so the last bits may differ: {', '.join(changed)}")
        self.step, self._saved = step, path
        self._metrics_size = progress["metrics_size"]
        self._updates = progress["updates"]
        self._seconds_before = progress["seconds"]
        self._evaluating = progress["evaluating"]
        for row in self._resumed.metrics.rows(self._metrics_size):
            if "returns" in row:
                self._steps.append(row["step"])
                self._returns.append(np.array(row["returns"]))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes everything; draws the curve; without an exception also writes and prints the result.

        Raises:
            RunError: The last checkpoint, the metrics or the result could not be written.
        """
        finished = False
        try:
            self._bar.close()
            self._draw()
            if kind is None:
                self._finish()
                finished = True
            elif not issubclass(kind, InputError | RunError | Stopped):
                _warn(f"the run has failed; {self._what_is_saved()}")
        finally:
            self._stop.__exit__(kind, error, trace)
            self._metrics.close()
            self._task.evaluator.close()
            self._beside.shutdown(cancel_futures=True)
            if self._wandb is not None:
                self._wandb.finish(exit_code=0 if finished else 1)

    @property
    def stopping(self) -> bool:
        """Whether the run was asked to end: the next `save` ends it."""
        return self._stop.number is not None

    def is_due(self, step: int) -> bool:
        """Whether an evaluation follows this many updates: every `eval_freq`, and the last."""
        return step > 0 and (step % self._config.eval_freq == 0 or step == self._config.max_timesteps)

    def started(self) -> None:
        """Prints, once, how long after the process started the first update was done; `advance` calls it too."""
        if self._seconds_to_first_update is None:
            self._seconds_to_first_update = time.time() - psutil.Process().create_time()
            _say(f"first update {self._seconds_to_first_update:.1f} s after the process started")

    def advance(self, updates: int, steps: int | None = None) -> None:
        """Counts updates that are done, and moves the bar by them, or by steps of the environment if that is its unit.

        The first call with updates is left out of the rate, since it may have compiled.
        """
        self._updates += updates
        self._latest = _Moment(self._updates, self._seconds_training())
        self._bar.update(updates if steps is None else steps)
        if updates and self._warm is None:
            self.started()
            self._warm = self._latest

    def log(self, step: int, metrics: Mapping[str, SupportsFloat]) -> None:
        """Writes the metrics of the update number `step` (from 1) as one line, after the evaluations before it.

        Raises:
            RunError: One of them is not finite.
        """
        self._record_meanwhile(metrics.values())
        # The device has done its updates when these are numbers: what an evaluation takes after that is waited for.
        values = {name: float(value) for name, value in metrics.items()}
        self._record_pending()
        for name, value in values.items():
            if not math.isfinite(value):
                raise RunError(f"{name} is {value} at {self._unit} {step}; {self._what_is_saved()}")
        self._write(step, values)

    def save(self, step: int, write: Callable[..., None]) -> None:
        """Saves what the run can go on from, then ends it if that was asked for.

        A run outlives a save that fails: it says so, and tries again at its next evaluation.

        Args:
            step: Updates, or steps of the environment, that are done. Where an evaluation follows them, a run that goes
                on from here begins with it.
            write: Writes the checkpoint to a path, atomically, with all that it is given by keyword in it.

        Raises:
            RunError: The state is not finite.
            Stopped: Ctrl-C or SIGTERM asked for it.
        """
        self._record_pending()
        self._not_saved = None
        path = self._checkpoints.path(step)
        try:
            self._metrics.sync()
            facts = self._facts(step)
            write(path, **facts)
            self._saved = path
            if self._config.checkpoints_path:
                write(self.checkpoint_path(step), **facts)
            self._prune()
        except RunError as error:
            raise RunError(f"{error} after {self._unit} {step}; {self._what_is_saved()}") from error
        except OSError as error:
            self._not_saved = error
            _warn(f"cannot save {path} ({error.strerror}): make room, or the folder writable; training goes on")
        self._stop.obey()

    def evaluate(
        self, step: int, policy: Policy | ContextPolicy, prompt: float | None = None, beside: bool = False
    ) -> None:
        """Evaluates the policy after `step` updates, writes the outcome, prints it and redraws the curve.

        Beside the training a thread evaluates: this returns at once, and the next `log`, or `save`, writes the outcome
        as soon as it is known and waits for it. So all is written in the order in which it was asked for, and whatever
        the evaluation raises is raised there. After the last update nothing is left to train beside it, and it is
        waited for here.

        Args:
            step: Updates done.
            policy: From normalised observations (n_episodes, S) float32 to actions (n_episodes, A).
            prompt: The return that the policy was asked for, if it is asked for one. The run is scored by the first
                of several, as CORL's is; the others are written under their prompt's name alone.
            beside: The policy needs nothing that the next updates use up or overwrite, and no device of theirs.

        Raises:
            Stopped: Ctrl-C or SIGTERM asked for it; an evaluation has nothing to save.
        """
        self._stop.obey()
        self._bar.set_postfix_str(f"evaluating {step}")
        evaluator = self._task.evaluator
        if beside:
            self._pending.append(_Pending(step, prompt, self._beside.submit(evaluator, policy)))
            if step == self._config.max_timesteps:
                self._record_pending(self._stop.obeyed_at_once)
            return
        with self._left_out():
            with self._stop.obeyed_at_once():
                evaluation = evaluator(policy)
            self._record(step, prompt, evaluation)

    def _record_meanwhile(self, values: Collection[SupportsFloat]) -> None:
        """Writes what is evaluated as soon as it is known, while the device still computes these values."""
        while self._pending and not all(_is_ready(value) for value in values):
            wait([self._pending[0].evaluation], timeout=_SECONDS_BETWEEN_LOOKS)
            if self._pending[0].evaluation.done():
                step, prompt, evaluation = self._pending.popleft()
                self._record(step, prompt, evaluation.result())

    def _record_pending(
        self, waiting: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext
    ) -> None:
        """Waits, within `waiting`, for all that were asked for, and writes them."""
        while self._pending:
            step, prompt, evaluation = self._pending.popleft()
            with self._left_out():
                with waiting():
                    outcome = _awaited(evaluation)
                self._record(step, prompt, outcome)

    @contextlib.contextmanager
    def _left_out(self) -> Iterator[None]:
        """A stretch that counts as evaluating: it is left out of the rate, the bar's too."""
        begin = time.perf_counter()
        yield
        seconds = time.perf_counter() - begin
        self._evaluating += seconds
        if not self._bar.disable:
            self._bar.start_t += seconds
            self._bar.last_print_t += seconds

    def _record(self, step: int, prompt: float | None, evaluation: Evaluation) -> None:
        self._bar.set_postfix_str("", refresh=False)
        returns, lengths = evaluation
        row = {"return_mean": float(returns.mean()), "returns": returns.tolist(), "lengths": lengths.tolist()}
        score = row[self._scale.metric] = float(self._scale(returns).mean())
        first = not self._steps or self._steps[-1] != step
        if first:
            self._steps.append(step)
            self._returns.append(returns)
            self._prune()
        if prompt is not None:
            named_row = {f"eval/{prompt}_{name}": value for name, value in row.items()}
            row = named_row | row if first else named_row
        self._write(step, row)
        asked = "" if prompt is None else f" (asked for {prompt:g})"
        named_score = f"{self._scale.words} {score:.1f}, " if self._scale.dataset_id else ""
        spread = f"return {returns.mean():.1f} +- {returns.std():.1f}"
        _say(f"{self._unit} {step}{asked}: {named_score}{spread} ({len(returns)} episodes)")
        if time.perf_counter() - self._drawn > _SECONDS_BETWEEN_DRAWINGS:
            self._draw()

    def checkpoint_path(self, step: int) -> Path:
        """Where a further copy of the checkpoint goes and stays: a folder of the run's name in `checkpoints_path`."""
        return Path(self._config.checkpoints_path) / self.folder.name / f"checkpoint_{step}{self._suffix}"

    def _facts(self, step: int) -> dict[str, Any]:
        """What every checkpoint holds besides an algorithm's state."""
        progress = {
            "metrics_size": self._metrics.size,
            "updates": self._updates,
            "seconds": time.perf_counter() - self._entered,
            "evaluating": self._evaluating,
        }
        settings = dataclasses.asdict(self._config)
        return {
            "step": step,
            "settings": {name: list(v) if isinstance(v, tuple) else v for name, v in settings.items()},
            "dataset": self._task.fingerprint,
            "state_mean": self._task.mean,
            "state_std": self._task.std,
            "versions": self._versions(),
            "progress": progress,
        }

    def _versions(self) -> dict[str, str]:
        return versions("numpy", "gymnasium", "mujoco", *_PACKAGES[self._framework])

    def _prune(self) -> None:
        means = [float(returns.mean()) for returns in self._returns]
        self._checkpoints.prune(dict(zip(self._steps, means, strict=True)))

    def _what_is_saved(self) -> str:
        """For the last line of a run that ends early."""
        if self._saved is None:
            return "nothing was saved yet"
        fault = f", a later one could not be written ({self._not_saved.strerror})" if self._not_saved else ""
        return f"last checkpoint: {self._saved}{fault}; --resume {self.folder} goes on from it"

    def _seconds_training(self) -> float:
        """Since the run began, evaluations left out."""
        return time.perf_counter() - self._entered - self._evaluating

    def _updates_per_second(self) -> float | None:
        """Over all calls of `advance` but the first, or over that one while it is alone; evaluations left out."""
        if self._warm is None:
            return None
        since = self._warm if self._latest.updates > self._warm.updates else self._begun
        return (self._latest.updates - since.updates) / (self._latest.seconds - since.seconds)

    def _write(self, step: int, values: Mapping[str, Any]) -> None:
        seconds = time.perf_counter() - self._entered
        row = {"step": step, **values, "updates_per_second": self._updates_per_second(), "seconds": seconds}
        try:
            self._metrics.write(row)
        except OSError as error:
            _warn(f"cannot write {self.folder / 'metrics.jsonl'} ({error.strerror}): make room; it is tried again")
        if self._wandb is not None:
            self._wandb.log(dict(row), step=step)

    def _curve(self) -> Curve:
        """All evaluations so far, on the scale of their environment."""
        names = [key.removesuffix("_return_mean") for key in self._task.attributes if key.endswith("_return_mean")]
        references = {name: float(self._task.attributes[f"{name}_return_mean"]) for name in sorted(names)}
        references = {name: float(self._scale(value)) for name, value in references.items()}
        return Curve(self._scale.metric, np.array(self._steps), self._scale(self._returns), references)

    def _draw(self) -> None:
        if self._steps:
            title = f"{self._algorithm} ({self._framework}) on {self._dataset}, seed {self._config.seed}"
            picture, path = draw_curve(self._curve(), title, f"{self._unit}s"), self.folder / "learning_curve.png"
            try:
                write_atomically(path, picture)
            except OSError as error:
                _warn(f"cannot write {path} ({error.strerror}): it is drawn again later")
            self._drawn = time.perf_counter()

    def _finish(self) -> None:
        """Writes the last checkpoint and the result, which says that the run is over.

        Raises:
            RunError: It cannot.
        """
        try:
            if self._not_saved:
                raise self._not_saved
            self._metrics.sync()
            if self._saved:
                write_atomically(self.folder / f"checkpoint{self._suffix}", self._saved.read_bytes())
            self._compile_result()
            write_atomically(self.folder / "result.json", (json.dumps(self.result, indent=2) + "\n").encode())
        except OSError as error:
            self.result = {}
            reason = f"the end of the run cannot be written ({error.strerror})"
            raise RunError(f"{reason}; {self._what_is_saved()}") from error
        self._summarise()

    def _compile_result(self) -> None:
        curve = self._curve()
        means = [float(values.mean()) for values in curve.values]
        self.result = {
            "algorithm": self._algorithm,
            "framework": self._framework,
            "seed": self._config.seed,
            "seeds_at_once": seeds.count(),
            "updates": self._updates,
            "metric": curve.metric,
            "final": means[-1] if means else None,
            f"mean_of_last_{AVERAGED}": float(np.mean(means[-AVERAGED:])) if means else None,
            "best": max(means, default=None),
            "final_return_mean": float(self._returns[-1].mean()) if means else None,
            "data_policies": curve.references,
            "dataset": self._task.fingerprint,
            "evaluation": self._task.evaluator.fingerprint,
            "versions": self._versions(),
            "hardware": {"device": self._device, **hardware()},
            "seconds": {
                "total": time.perf_counter() - self._entered,
                "training": self._seconds_training(),
                "evaluating": self._evaluating,
                "to_first_update": self._seconds_to_first_update,
            },
            "updates_per_second": self._updates_per_second(),
        }

    def _summarise(self) -> None:
        result = self.result
        unit = self._scale.words
        _say(f"{self.folder}")
        if result["final"] is not None:
            last = result[f"mean_of_last_{AVERAGED}"]
            best = result["best"]
            count = min(AVERAGED, len(self._steps))
            _say(f"{unit}: {result['final']:.1f} at the end, {last:.1f} over the last {count}, {best:.1f} at best")
        for name, value in result["data_policies"].items():
            _say(f"{unit} of the data's {name} policy: {value:.1f}")


def _is_ready(value: SupportsFloat) -> bool:
    """Whether a device has computed it, where it tells."""
    return value.is_ready() if hasattr(value, "is_ready") else True


def _awaited(evaluation: Future[Evaluation]) -> Evaluation:
    """Its outcome. Python runs a signal's handler between two waits, but not always within one that has just begun."""
    while not evaluation.done():
        wait([evaluation], timeout=_SECONDS_BETWEEN_LOOKS)
    return evaluation.result()


def _say(line: str) -> None:
    """Prints a line above the bar, at once also where output is buffered."""
    tqdm.write(seeds.label() + line)
    sys.stdout.flush()


def _warn(line: str) -> None:
    """Likewise to standard error."""
    tqdm.write(seeds.label() + line, file=sys.stderr)
    sys.stderr.flush()
