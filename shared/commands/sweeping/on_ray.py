"""The runs of a sweep on a Ray cluster: Ray Tune places them, tries again what dies, and ends them when time is up.

Nothing of Tune's own state is ever read back: the runs' folders say what is missing. So no file that others could have
changed is unpickled.
"""

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from shared.commands.sweeping.cluster import Cluster, Share
from shared.commands.sweeping.plan import Cell
from shared.commands.sweeping.processes import Ended, Order, carry_out, last_words, make_room, order
from shared.runs.resuming import RunStatus, run_status

# Exit status of a run that no second attempt can help: its input cannot be used
_REFUSED = 2
# A dead worker's process may write for some seconds yet
_PATIENCE = 30.0


class OnRay(Cluster):
    """A Ray cluster that makes the runs of a sweep."""

    def __init__(self, address: str, share: Share, environment: dict[str, str], folder: Path) -> None:
        """Connects.

        Args:
            address: As `Cluster` takes it.
            share: What a run gets.
            environment: What the runs' processes see on top of their machine's.
            folder: The sweep's, which every machine sees under this name.

        Raises:
            InputError: Ray is not there, or does not answer.
        """
        super().__init__(address, share)
        self._environment, self._folder = environment, folder.absolute()

    def run(self, batches: Sequence[tuple[Cell, ...]], tell: Callable[[Ended], None]) -> None:
        """Makes the runs, a process for each batch, and tells of each process when it has ended.

        Raises:
            InputError: There is no room for what they print, or none of the machines could ever make a run.
        """
        from ray import tune

        self.check_room()
        logs = self._folder / "logs"
        make_room(logs)
        orders = [order(cells, self._environment, logs) for cells in batches]

        class Telling(tune.Callback):
            """Passes on what has ended."""

            def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
                number = trial.config["number"]
                if "status" in trial.last_result:  # else the time was up
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
    """Makes a batch of runs on the machine where Ray has placed it.

    Args:
        config: Its `number`.
        orders: Those of all batches.
        runs: The cells of all batches, packed, since to unpack them loads a framework.

    Raises:
        RuntimeError: Its process ended badly, and another attempt may help.
    """
    from ray import tune

    wanted = orders[config["number"]]
    # A worker may have died between the end of its runs and its word of it.
    begun = wanted.log.exists()
    status = 0 if begun and _are_finished(pickle.loads(runs[config["number"]])) else carry_out(wanted, _PATIENCE)
    if status not in (None, 0, _REFUSED):
        raise RuntimeError(last_words(wanted.log))
    tune.report({"status": status})


def _are_finished(cells: tuple[Cell, ...]) -> bool:
    """Whether all runs of a batch have their results."""
    return all(run_status(cell.config, cell.algorithm, cell.framework)[0] is RunStatus.FINISHED for cell in cells)
