"""The trials of a search on a Ray cluster: Optuna chooses their values, ASHA stops poor ones, Ray Tune runs them.

As in a sweep, nothing of Tune's own state is read back: `trials.json` and the runs' folders contain all that is needed.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from shared.commands.reporting.evaluations import read_run
from shared.commands.sweeping.cluster import Cluster
from shared.commands.sweeping.plan import Cell, batches, in_text
from shared.commands.sweeping.processes import Ended, Processes, last_words, order
from shared.commands.tuning.plan import Interval, Search
from shared.commands.tuning.record import Record, Trial
from shared.errors import InputError, reason
from shared.runs.curves import LARGEST
from shared.runs.resuming import RunStatus, begun, run_status

# ASHA continues the better half of the trials after a quarter and after half of their updates. A run's first
# evaluations say too little for an earlier choice.
_HALVES, _PARTS = 2, 4
# The score of a trial that has diverged, for Optuna and ASHA: below all others, and both only use the order
_WORST = -LARGEST
# Seconds for which the orphaned process of a dead worker may still make a run
_PATIENCE = 30.0


class Way(NamedTuple):
    """How a search is carried out.

    Attributes:
        number: The number of trials that should have ended when the search is complete.
        early: Whether to stop poor trials early.
        together: The number of seeds of a JAX run in one program.
        environment: Environment variables of the runs' processes, in addition to their machine's.
    """

    number: int
    early: bool
    together: int
    environment: dict[str, str]


def search_on(
    cluster: Cluster, search: Search, record: Record, sampler: Any, way: Way, tell: Callable[[Trial, str], None]
) -> None:
    """Makes trials until enough have ended.

    Args:
        cluster: The cluster to use.
        search: The search.
        record: The trials of earlier calls, to which the new trials are added.
        sampler: The sampler of values, from `optuna_sampler`.
        way: How the search is carried out.
        tell: Called with each trial that has ended and the reason if it failed, otherwise an empty text.

    Raises:
        InputError: No machine has the resources of a run.
    """
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler

    cluster.check_room()
    known: dict[str, Trial] = {}
    stopped: set[str] = set()

    class Scheduler(ASHAScheduler):
        """Records the trials that it has stopped; other trials that end early have run out of time."""

        def on_trial_result(self, controller: Any, trial: Any, result: dict) -> str:
            action = super().on_trial_result(controller, trial, result) if way.early else self.CONTINUE
            if action == self.STOP:
                stopped.add(trial.trial_id)
            return action

    class Telling(tune.Callback):
        """Records and reports trials that have started or ended."""

        def on_trial_start(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
            if trial.trial_id not in known:  # otherwise it is another attempt
                known[trial.trial_id] = record.begin(trial.config)

        def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
            share, score = trial.last_result.get("share", 0.0), trial.last_result.get("score")
            if score == _WORST:
                record.end(known[trial.trial_id], None, share)
                tell(known[trial.trial_id], "")
            elif share >= 1 or trial.trial_id in stopped:
                record.end(known[trial.trial_id], score, share)
                tell(known[trial.trial_id], "")

        def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
            tell(known[trial.trial_id], why_it_failed(search, trial.config))

    tune.Tuner(
        tune.with_resources(
            tune.with_parameters(make_trial, search=search, way=way),
            cluster.resources(),
        ),
        tune_config=cluster.tune_config(
            metric="score",
            mode="max",
            num_samples=way.number - len(record.ended),
            search_alg=sampler,
            scheduler=Scheduler(time_attr="parts", max_t=_PARTS, grace_period=1, reduction_factor=_HALVES),
        ),
        run_config=cluster.run_config(search.folder.absolute(), Telling()),
    ).fit()


def optuna_sampler(search: Search, record: Record) -> Any:
    """Creates Optuna's sampler, which knows all earlier trials; unfinished trials are made first.

    Raises:
        InputError: Ray or Optuna is not installed.
    """
    try:
        import optuna
        from ray.tune.search.optuna import OptunaSearch
    except ImportError as error:
        raise InputError(f"a search needs Ray and Optuna ({reason(error)}): pip install 'corl-twins[sweep]'") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    found = OptunaSearch(
        {name: _distribution(space) for name, space in search.search.items()},
        metric="score",
        mode="max",
        points_to_evaluate=record.unfinished or None,
        # With the same seed, a second call would draw the first call's values again.
        seed=len(record.ended),
    )
    for trial in record.ended:
        found.add_evaluated_point(trial.values, _WORST if trial.score is None else trial.score)
    return found


def _distribution(space: Interval | Sequence[Any]) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if not isinstance(space, Interval):
        return CategoricalDistribution(list(map(in_text, space)))
    if isinstance(space.low, int) and isinstance(space.high, int):
        return IntDistribution(space.low, space.high, log=space.log)
    return FloatDistribution(space.low, space.high, log=space.log)


class _DivergedError(Exception):
    """A run of a trial had a loss or an evaluation that was not finite, after a share of the trial's updates."""

    def __init__(self, share: float) -> None:
        super().__init__(share)
        self.share = share


def make_trial(config: dict[str, Any], search: Search, way: Way) -> None:
    """Makes the runs of a trial one after another, and reports their score so far after each evaluation.

    Args:
        config: The values of the searched settings.
        search: The search.
        way: How the search is carried out.

    Raises:
        RuntimeError: A run failed, and another attempt may help.
    """
    from ray import tune

    runs = search.runs(config)
    told = 0.0

    def look() -> None:
        nonlocal told
        share, score = so_far(runs)
        if score == _WORST:
            raise _DivergedError(share)
        if share > told:
            told = share
            tune.report({"share": share, "parts": _PARTS * share, "score": score})

    def check(ended: Ended) -> None:
        if ended.status or not all(map(_is_finished, ended.cells)):
            raise RuntimeError(last_words(ended.log))

    # Tune ends a trial by an exception in `report`; the runs then save their progress.
    try:
        look()
        with Processes(1, way.environment, search.folder.absolute() / "logs", _PATIENCE) as processes:
            processes.run(batches([cell for cell in runs if not _is_finished(cell)], way.together), check, look)
        look()
    except _DivergedError as error:
        # It would diverge again, so the trial ends here, without its remaining runs.
        tune.report({"share": error.share, "parts": _PARTS * error.share, "score": _WORST})


def why_it_failed(search: Search, values: dict[str, Any]) -> str:
    """The last line that a run of a trial with these values printed."""
    logs = [order((cell,), {}, search.folder / "logs").log for cell in search.runs(values)]
    begun = [log for log in logs if log.exists()]
    return last_words(max(begun, key=lambda log: log.stat().st_mtime)) if begun else "its worker died"


def _is_finished(cell: Cell) -> bool:
    return run_status(cell.config, cell.algorithm, cell.framework)[0] is RunStatus.FINISHED


def so_far(runs: Sequence[Cell]) -> tuple[float, float]:
    """The share of a trial's updates that has been evaluated, and the mean of its runs' scores at that point.

    The mean is the lowest possible number if a run has diverged.
    """
    done, scores = 0, []
    for cell in runs:
        found = [
            evaluated
            for folder in begun(cell.config, cell.algorithm, cell.framework)
            if (evaluated := read_run(folder))
        ]
        if found:
            furthest = max(found, key=lambda evaluated: evaluated.reached)
            done += furthest.reached
            scores.append(_WORST if furthest.diverged else furthest.score())
    share = done / sum(cell.config.max_timesteps for cell in runs)
    if _WORST in scores:
        return share, _WORST
    return share, float(np.mean(scores)) if scores else float("nan")
