"""A Ray cluster: connecting to one, whether it has room, and what each run gets of it."""

import importlib
import logging
import os
import socket
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Self

from shared.commands.sweeping.processes import paths
from shared.errors import InputError, reason

# As Ray itself says it
LOCAL = "local"
# Ray's usage statistics go to a server of its makers, and its loggers write what the runs' own folders have.
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_USAGE_STATS_PROMPT_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
}
# A worker whose trial is stopped is used again once the trial's run has saved what it had; in seconds
_OF_WORKERS = {"TUNE_FUNCTION_THREAD_TIMEOUT_S": "60"}
# Of a Ray that this command starts: its share of the memory for objects, since runs share none
_OBJECTS = 80 * 2**20


class Share(NamedTuple):
    """The resources of a run.

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


class Cluster:
    """A Ray cluster: an existing one, or one of this machine for as long as the command takes."""

    def __init__(self, address: str, share: Share) -> None:
        """Connects.

        Args:
            address: Of a running cluster, `auto` for the one that this machine belongs to, or `LOCAL`.
            share: What a run gets.

        Raises:
            InputError: Ray is not there, or does not answer.
        """
        os.environ.update(_QUIET)
        self._ray = _import()
        self.share = share
        place = {"include_dashboard": False, "object_store_memory": _OBJECTS} if address == LOCAL else {}
        try:
            _knock(address)
            self._ray.init(
                address=address,
                runtime_env={"env_vars": {"PYTHONPATH": paths(), **_OF_WORKERS}},
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

    def resources(self) -> dict[str, float]:
        """The resources that Tune reserves for a trial."""
        return {"cpu": self.share.cpus, "gpu": self.share.gpus}

    def run_config(self, folder: Path, callback: Any) -> Any:
        """Tune's own settings: it says nothing, writes into the folder's `.ray`, and tells a callback."""
        from ray import tune

        return tune.RunConfig(
            name="tune",
            storage_path=str(folder / ".ray"),
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=self.share.attempts),
            callbacks=[callback],
        )

    def tune_config(self, **search: Any) -> Any:
        """Tune's settings of a search: how many trials at once, how long, and what `search` says."""
        from ray import tune

        budget = None if self.share.hours is None else 3600 * self.share.hours
        return tune.TuneConfig(reuse_actors=True, max_concurrent_trials=self.share.jobs, time_budget_s=budget, **search)

    def check_room(self) -> None:
        """Tune would wait for ever where no machine has what a run needs.

        Raises:
            InputError: None of the machines could ever make a run.
        """
        wanted = {"CPU": self.share.cpus, "GPU": self.share.gpus}
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if not any(all(node.get(name, 0) >= least for name, least in wanted.items()) for node in nodes):
            raise InputError(
                f"no machine of the Ray cluster has {self.share.cpus} CPUs and {self.share.gpus:g} GPUs for a run: "
                "set --threads and --gpus lower"
            )


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
        raise InputError(f"this needs Ray ({reason(error)}): pip install 'corl-twins[sweep]'") from error
