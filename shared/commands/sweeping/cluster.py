"""A Ray cluster: the connection, a check for sufficient resources, and the share of each run."""

import importlib
import logging
import os
import socket
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Self

from shared.commands.sweeping.processes import paths
from shared.errors import InputError, reason

# Ray's own word
LOCAL = "local"
# Turns off Ray's usage statistics, which it sends to its makers, and loggers that repeat the runs' own files.
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_USAGE_STATS_PROMPT_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
}
# Seconds for a stopped trial's run to save, before its worker is used again
_OF_WORKERS = {"TUNE_FUNCTION_THREAD_TIMEOUT_S": "60"}
# Memory for objects in a local Ray, which can be small because runs share none
_OBJECTS = 80 * 2**20


class Share(NamedTuple):
    """The resources of a run.

    Attributes:
        cpus: Processor cores, and threads.
        gpus: GPUs; several runs may share one.
        attempts: Further attempts if the run's process, worker or machine dies.
        hours: Time after which all runs are stopped, so that the next call resumes them; None for no limit.
        jobs: The most runs at a time; None for as many as fit.
    """

    cpus: int = 1
    gpus: float = 0.0
    attempts: int = 3
    hours: float | None = None
    jobs: int | None = None


class Cluster:
    """A Ray cluster: an existing one, or a local one that lives as long as the command."""

    def __init__(self, address: str, share: Share) -> None:
        """Connects to the cluster.

        Args:
            address: The address of a running cluster, `auto` for this machine's cluster, or `LOCAL`.
            share: The resources of a run.

        Raises:
            InputError: Ray is not installed, or does not answer.
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
        except Exception as error:  # Ray's own errors, its processes' and the network's
            raise InputError(f"Ray does not answer at {address} ({reason(error)}): start it, or mend --ray") from error
        # The death of a worker is reported through its missing run.
        logging.getLogger("ray").setLevel(logging.CRITICAL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leaves the cluster, or ends a local one; processes of unfinished runs end a moment later."""
        self._ray.shutdown()

    def resources(self) -> dict[str, float]:
        """The resources that Tune reserves for a trial."""
        return {"cpu": self.share.cpus, "gpu": self.share.gpus}

    def run_config(self, folder: Path, callback: Any) -> Any:
        """Tune's settings for runs: silent, with files in the folder's `.ray`, and with a callback."""
        from ray import tune

        return tune.RunConfig(
            name="tune",
            storage_path=str(folder / ".ray"),
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=self.share.attempts),
            callbacks=[callback],
        )

    def tune_config(self, **search: Any) -> Any:
        """Tune's settings for a search: the number of concurrent trials, the time limit, and those in `search`."""
        from ray import tune

        budget = None if self.share.hours is None else 3600 * self.share.hours
        return tune.TuneConfig(reuse_actors=True, max_concurrent_trials=self.share.jobs, time_budget_s=budget, **search)

    def check_room(self) -> None:
        """Checks that a machine has the resources of a run; otherwise Tune would wait forever.

        Raises:
            InputError: No machine of the cluster has them.
        """
        wanted = {"CPU": self.share.cpus, "GPU": self.share.gpus}
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if not any(all(node.get(name, 0) >= least for name, least in wanted.items()) for node in nodes):
            raise InputError(
                f"no machine of the Ray cluster has {self.share.cpus} CPUs and {self.share.gpus:g} GPUs for a run: "
                "set --threads and --gpus lower"
            )


def _knock(address: str) -> None:
    """Checks that HOST:PORT answers, because Ray itself would try for minutes.

    Raises:
        OSError: It does not answer.
    """
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=10).close()


def _import() -> ModuleType:
    """Imports Ray with Tune, which takes two seconds."""
    try:
        importlib.import_module("ray.tune")
        return importlib.import_module("ray")
    except ImportError as error:
        raise InputError(f"this needs Ray ({reason(error)}): pip install 'corl-twins[sweep]'") from error
