"""The runs of a sweep on a Ray cluster: Ray Tune places them, tries again what dies, and ends them when time is up.

Nothing of Tune's own state is ever read back: the runs' folders say what is missing. So no file that others could have
changed is unpickled.
"""

import importlib
import logging
import os
import pickle
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Self

from shared.commands.sweeping.plan import Cell
from shared.commands.sweeping.processes import Ended, Order, carry_out, last_words, make_room, order, paths
from shared.errors import InputError, reason
from shared.runs.resuming import Standing, standing

# As Ray itself says it
LOCAL = "local"
# Exit status of a run that no second attempt can help: its input cannot be used
_REFUSED = 2
# A dead worker's process may write for some seconds yet
_PATIENCE = 30.0
# Ray's usage statistics go to a server of its makers, and its loggers write what the runs' own folders have.
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_USAGE_STATS_PROMPT_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
}
# Of a Ray that this command starts: its share of the memory for objects, since runs share none
_OBJECTS = 80 * 2**20


class Share(NamedTuple):
    """What a run gets.

    Attributes:
        cpus: Processor cores, and threads.
        gpus: GPUs; a fraction shares one.
        attempts: Further ones where its process, worker or machine dies.
        hours: After which all runs are ended, to go on with the next call; None: never.
        jobs: Runs side by side at most; None: as many as there is room for.
    """

    cpus: int = 1
    gpus: float = 0.0
    attempts: int = 3
    hours: float | None = None
    jobs: int | None = None


class OnRay:
    """A Ray cluster that makes runs: an existing one, or one of this machine for as long as the sweep takes."""

    def __init__(self, address: str, share: Share, environment: dict[str, str], folder: Path) -> None:
        """Connects.

        Args:
            address: Of a running cluster, `auto` for the one that this machine belongs to, or `LOCAL`.
            share: What a run gets.
            environment: What the runs' processes see on top of their machine's.
            folder: The sweep's, which every machine sees under this name.

        Raises:
            InputError: Ray is not there, or does not answer.
        """
        os.environ.update(_QUIET)
        self._ray = _import()
        self._share, self._environment, self._folder = share, environment, folder.absolute()
        place = {"include_dashboard": False, "object_store_memory": _OBJECTS} if address == LOCAL else {}
        try:
            _knock(address)
            self._ray.init(
                address=address,
                runtime_env={"env_vars": {"PYTHONPATH": paths()}},
                log_to_driver=False,
                logging_level="ERROR",
                **place,
            )
        except Exception as error:  # its own, its processes' and the network's
            raise InputError(f"Ray does not answer at {address} ({reason(error)}): start it, or mend --ray") from error
        # A worker that dies is told by the run that does not come of it.
        logging.getLogger("ray").setLevel(logging.CRITICAL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leaves the cluster, or ends it; the processes of runs that have not ended end a moment later."""
        self._ray.shutdown()

    def run(self, batches: Sequence[tuple[Cell, ...]], tell: Callable[[Ended], None]) -> None:
        """Makes the runs, a process for each batch, and tells of each process when it has ended.

        Raises:
            InputError: There is no room for what they print, or none of the machines could ever make a run.
        """
        from ray import tune

        self._check_room()
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
                {"cpu": self._share.cpus, "gpu": self._share.gpus},
            ),
            param_space={"number": tune.grid_search(list(range(len(batches))))},
            tune_config=tune.TuneConfig(
                reuse_actors=True,
                max_concurrent_trials=self._share.jobs,
                time_budget_s=None if self._share.hours is None else 3600 * self._share.hours,
            ),
            run_config=tune.RunConfig(
                name="tune",
                storage_path=str(self._folder / ".ray"),
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=self._share.attempts),
                callbacks=[Telling()],
            ),
        ).fit()

    def _check_room(self) -> None:
        """Tune would wait for ever where no machine has what a run needs."""
        wanted = {"CPU": self._share.cpus, "GPU": self._share.gpus}
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if not any(all(node.get(name, 0) >= least for name, least in wanted.items()) for node in nodes):
            raise InputError(
                f"no machine of the Ray cluster has {self._share.cpus} CPUs and {self._share.gpus:g} GPUs for a run: "
                "set --threads and --gpus lower"
            )


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
    return all(standing(cell.config, cell.framework)[0] is Standing.FINISHED for cell in cells)


def _knock(address: str) -> None:
    """Ray itself would try for minutes.

    Raises:
        OSError: Nobody listens at HOST:PORT.
    """
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=10).close()


def _import() -> ModuleType:
    """Ray, where its Tune is there too; together they take two seconds."""
    try:
        importlib.import_module("ray.tune")
        return importlib.import_module("ray")
    except ImportError as error:
        raise InputError(f"--ray needs Ray ({reason(error)}): pip install 'corl-twins[sweep]'") from error
