"""The runs of a sweep on a Ray cluster: Ray Tune places them, retries those that die, and enforces the time limit.

Nothing of Tune's own state is ever read back, because the runs' folders show what is missing. Therefore no file is
unpickled that others could have changed.
"""

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from shared.commands.sweeping.cluster import Cluster, Share
from shared.commands.sweeping.plan import Cell
from shared.commands.sweeping.processes import Ended, Order, carry_out, last_words, make_room, order
from shared.runs.resuming import RunStatus, run_status

# Exit status for unusable input, after which another attempt is pointless
_REFUSED = 2
# Seconds for which the process of a dead worker may still write
_PATIENCE = 30.0


class OnRay(Cluster):
    """A Ray cluster that makes the runs of a sweep."""

    def __init__(self, address: str, share: Share, environment: dict[str, str], folder: Path) -> None:
        """Connects to the cluster.

        Args:
            address: The address, as for `Cluster`.
            share: The resources of a run.
            environment: Environment variables of the runs' processes, in addition to their machine's.
            folder: The sweep's folder, which every machine must have under this path.

        Raises:
            InputError: Ray is not installed, or does not answer.
        """
        super().__init__(address, share)
        self._environment, self._folder = environment, folder.absolute()

    def run(self, batches: Sequence[tuple[Cell, ...]], tell: Callable[[Ended], None]) -> None:
        """Makes the runs, in one process for each batch, and calls `tell` when a process has ended.

        Raises:
            InputError: The folder of logs cannot be created, or no machine has the resources of a run.
        """
        from ray import tune

        self.check_room()
        logs = self._folder / "logs"
        make_room(logs)
        orders = [order(cells, self._environment, logs) for cells in batches]

        class Telling(tune.Callback):
            """Reports trials that have ended."""

            def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
                number = trial.config["number"]
                if "status" in trial.last_result:  # otherwise the time was over
                    tell(Ended(batches[number], trial.last_result["status"], orders[number].log))

            def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
                number = trial.config["number"]
                tell(Ended(batches[number], 1, orders[number].log))

        tune.Tuner(
            tune.with_resources(
                tune.with_parameters(make_run, orders=orders, runs=[pickle.dumps(cells) for cells in batches]),
                self.resources(),
            ),
            param_space={"number": tune.grid_search(list(range(len(batches))))},
            tune_config=self.tune_config(),
            run_config=self.run_config(self._folder, Telling()),
        ).fit()


def make_run(config: dict[str, int], orders: Sequence[Order], runs: Sequence[bytes]) -> None:
    """Makes a batch of runs on the machine that Ray has chosen.

    Args:
        config: Contains the `number` of the batch.
        orders: The orders of all batches.
        runs: The cells of all batches, pickled, because unpickling them loads a framework.

    Raises:
        RuntimeError: The process failed, and another attempt may help.
    """
    from ray import tune

    wanted = orders[config["number"]]
    # A worker may have died after finishing its runs but before reporting them.
    begun = wanted.log.exists()
    status = 0 if begun and _are_finished(pickle.loads(runs[config["number"]])) else carry_out(wanted, _PATIENCE)
    if status not in (None, 0, _REFUSED):
        raise RuntimeError(last_words(wanted.log))
    tune.report({"status": status})


def _are_finished(cells: tuple[Cell, ...]) -> bool:
    """Whether all runs of a batch have their results."""
    return all(run_status(cell.config, cell.algorithm, cell.framework)[0] is RunStatus.FINISHED for cell in cells)
