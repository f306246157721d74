"""A run's folder and everything that goes into it: settings, metrics, learning curve, checkpoints, result."""

import dataclasses
import json
import shutil
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self, SupportsFloat

import numpy as np
import psutil
from tqdm import tqdm

from shared.configs import dump
from shared.curves import AVERAGED, Curve, draw_curve
from shared.data import is_file_name
from shared.errors import InputError
from shared.evaluation import ContextPolicy, Policy
from shared.files import write_atomically
from shared.machine import hardware, versions
from shared.scores import scale
from shared.task import Task

_PACKAGES = {"torch": ("torch",), "jax": ("jax", "jaxlib", "flax", "optax")}
_SECONDS_BETWEEN_DRAWINGS = 10.0


class Run:
    """Records one run; a context manager.

    On entering it makes the folder `<runs_path>/<name>-<dataset>-s<seed>-<framework>-<8 hex digits>`, which holds

    - `config.yaml`: the settings, which `--config_path` reads back,
    - `metrics.jsonl`: one line for each call of `log` and `evaluate`, written at once,
    - `learning_curve.png`: redrawn while the run goes on,
    - `result.json`: written at the end: scores and what they depend on, versions, hardware, times.

    After an exception the metrics and the curve stay, there is no result, and the exception goes on.

    Attributes:
        folder: The run's folder.
        result: What `result.json` holds; empty before the end.
    """

    def __init__(
        self, config: Any, task: Task, algorithm: str, framework: str, device: object = None, unit: str = "update"
    ) -> None:
        """Makes nothing yet.

        Args:
            config: Has `name`, `env`, `seed`, `max_timesteps`, `runs_path`, `checkpoints_path`, `device`, `project`,
                `group` and `wandb_mode`.
            task: What is learnt and scored; its environments are closed when the run ends.
            algorithm: Such as `td3_bc`.
            framework: `torch` or `jax`.
            device: What the networks run on, for the result; the config's word for it if None.
            unit: What `max_timesteps` and the numbers of evaluations count: updates, or steps of an environment.

        Raises:
            InputError: Weights & Biases should be online but nobody is logged in.
        """
        self._dataset = Path(config.env).stem if is_file_name(config.env) else config.env
        name = f"{config.name}-{self._dataset}-s{config.seed}-{framework}-{uuid.uuid4().hex[:8]}".replace(
            "/", "-"
        ).replace(":", "-")
        self.folder = Path(config.runs_path) / name
        self.result: dict[str, Any] = {}
        self._config, self._task, self._algorithm, self._framework = config, task, algorithm, framework
        self._device = str(device or config.device)
        self._scale = scale(task.evaluator.fingerprint["env"])
        self._unit = unit
        self._wandb = _import_wandb(config.wandb_mode)
        self._steps: list[int] = []
        self._returns: list[np.ndarray] = []
        self._seconds_to_first_update: float | None = None
        self._updates = 0
        self._evaluating = 0.0

    def __enter__(self) -> Self:
        """Makes the folder.

        Raises:
            InputError: The folder cannot be made, or Weights & Biases cannot start; then no folder is left.
        """
        try:
            self.folder.mkdir(parents=True)
        except OSError as error:
            raise InputError(
                f"cannot make {self.folder} ({error.strerror}): set runs_path to a folder of yours"
            ) from error
        try:
            write_atomically(self.folder / "config.yaml", dump(self._config).encode())
            self._start_wandb()
        except BaseException:
            shutil.rmtree(self.folder)
            raise
        self._metrics = (self.folder / "metrics.jsonl").open("w", encoding="utf-8")
        # A bar redrawn into a log file would flood it, so there is one on terminals only.
        self._bar = tqdm(total=self._config.max_timesteps, unit=f" {self._unit}s", disable=None, dynamic_ncols=True)
        self._entered = self._drawn = time.perf_counter()
        _say(f"run folder: {self.folder}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes everything; draws the curve; without an exception also writes and prints the result."""
        try:
            self._bar.close()
            self._draw()
            if kind is None:
                self._finish()
        finally:
            self._metrics.close()
            self._task.evaluator.close()
            if self._wandb is not None:
                self._wandb.finish(exit_code=0 if kind is None else 1)

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
        self._bar.update(updates if steps is None else steps)
        if updates and self._updates == updates:
            self.started()
            self._warm = (self._updates, self._seconds_training())

    def log(self, step: int, metrics: Mapping[str, SupportsFloat]) -> None:
        """Writes the metrics of the update number `step` (from 1) as one line."""
        self._write(step, {name: float(value) for name, value in metrics.items()})

    def evaluate(self, step: int, policy: Policy | ContextPolicy, prompt: float | None = None) -> None:
        """Evaluates the policy after `step` updates, writes the outcome, prints it and redraws the curve.

        Args:
            step: Updates done.
            policy: From normalised observations (n_episodes, S) float32 to actions (n_episodes, A).
            prompt: The return that the policy was asked for, if it is asked for one. The run is scored by the first
                of several, as CORL's is; the others are written under their prompt's name alone.
        """
        begin = time.perf_counter()
        returns, lengths = self._task.evaluator(policy)
        row = {"return_mean": float(returns.mean()), "returns": returns.tolist(), "lengths": lengths.tolist()}
        score = row[self._scale.metric] = float(self._scale(returns).mean())
        first = not self._steps or self._steps[-1] != step
        if first:
            self._steps.append(step)
            self._returns.append(returns)
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
        self._evaluating += time.perf_counter() - begin
        self._bar.unpause()

    def checkpoint_path(self, step: int, suffix: str) -> Path:
        """Where the checkpoint after `step` updates goes: a folder of the run's name under `checkpoints_path`."""
        return Path(self._config.checkpoints_path) / self.folder.name / f"checkpoint_{step}{suffix}"

    def _seconds_training(self) -> float:
        """Since the run began, evaluations left out."""
        return time.perf_counter() - self._entered - self._evaluating

    def _updates_per_second(self) -> float | None:
        """Over all calls of `advance` but the first, or over that one while it is alone; evaluations left out."""
        if not self._updates:
            return None
        updates, seconds = self._warm if self._updates > self._warm[0] else (0, 0.0)
        return (self._updates - updates) / (self._seconds_training() - seconds)

    def _write(self, step: int, values: Mapping[str, Any]) -> None:
        seconds = time.perf_counter() - self._entered
        row = {"step": step, **values, "updates_per_second": self._updates_per_second(), "seconds": seconds}
        self._metrics.write(json.dumps(row) + "\n")
        self._metrics.flush()
        if self._wandb is not None:
            self._wandb.log(dict(row), step=step)

    def _start_wandb(self) -> None:
        if self._wandb is None:
            return
        config = self._config
        try:
            self._wandb.init(
                project=config.project,
                group=config.group,
                name=self.folder.name,
                config=dataclasses.asdict(config),
                dir=self.folder,
                mode=config.wandb_mode,
            )
        except self._wandb.Error as error:
            raise _no_wandb(error) from error

    def _curve(self) -> Curve:
        """All evaluations so far, on the scale of their environment."""
        names = [key.removesuffix("_return_mean") for key in self._task.attributes if key.endswith("_return_mean")]
        references = {name: float(self._task.attributes[f"{name}_return_mean"]) for name in sorted(names)}
        references = {name: float(self._scale(value)) for name, value in references.items()}
        return Curve(self._scale.metric, np.array(self._steps), self._scale(self._returns), references)

    def _draw(self) -> None:
        if self._steps:
            title = f"{self._algorithm} ({self._framework}) on {self._dataset}, seed {self._config.seed}"
            write_atomically(self.folder / "learning_curve.png", draw_curve(self._curve(), title, f"{self._unit}s"))
            self._drawn = time.perf_counter()

    def _finish(self) -> None:
        curve = self._curve()
        means = [float(values.mean()) for values in curve.values]
        self.result = {
            "algorithm": self._algorithm,
            "framework": self._framework,
            "seed": self._config.seed,
            "updates": self._updates,
            "metric": curve.metric,
            "final": means[-1] if means else None,
            f"mean_of_last_{AVERAGED}": float(np.mean(means[-AVERAGED:])) if means else None,
            "best": max(means, default=None),
            "final_return_mean": float(self._returns[-1].mean()) if means else None,
            "data_policies": curve.references,
            "dataset": self._task.fingerprint,
            "evaluation": self._task.evaluator.fingerprint,
            "versions": versions("numpy", "gymnasium", "mujoco", *_PACKAGES[self._framework]),
            "hardware": {"device": self._device, **hardware()},
            "seconds": {
                "total": time.perf_counter() - self._entered,
                "training": self._seconds_training(),
                "evaluating": self._evaluating,
                "to_first_update": self._seconds_to_first_update,
            },
            "updates_per_second": self._updates_per_second(),
        }
        write_atomically(self.folder / "result.json", (json.dumps(self.result, indent=2) + "\n").encode())
        self._summarise()

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


def _say(line: str) -> None:
    """Prints a line above the bar, at once also where output is buffered."""
    tqdm.write(line)
    sys.stdout.flush()


def _import_wandb(mode: str) -> ModuleType | None:
    """Weights & Biases if it is wanted, and able to go online without asking if it should."""
    if mode == "off":
        return None
    import wandb  # takes half a second, and most runs do without

    if mode == "online":
        try:
            ready = wandb.login(prompt=False)
        except wandb.Error as error:
            raise _no_wandb(error) from error
        if not ready:
            raise InputError("Weights & Biases has no API key: run `wandb login` once, or use --wandb_mode offline")
    return wandb


def _no_wandb(error: Exception) -> InputError:
    return InputError(f"Weights & Biases cannot start ({' '.join(str(error).split())}): use --wandb_mode offline")
