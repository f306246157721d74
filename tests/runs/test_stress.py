"""Ten processes start, resume and are killed in one folder of runs: none is lost, and none is trained by two.

All have equal settings and `--resume auto`, so that each may continue another's run. `STRESS` is the number of seconds;
continuous integration uses a few, and `STRESS=300 pytest -m thorough tests/runs/test_stress.py` takes minutes.
"""

import json
import multiprocessing
import os
import random
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from tqdm import tqdm

from shared.frameworks.twins import load_twin
from tests.runs.stopped_runs import assert_same_bits, config, only_run, rows, train

SECONDS = int(os.environ.get("STRESS", "30"))
pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600 + 10 * SECONDS)]
PROCESSES = 10
SETTINGS = {"max_timesteps": 40, "eval_freq": 5, "n_episodes": 1}


def work(folder: Path) -> None:
    """The work of a process, unless it is killed earlier."""
    torch.set_num_threads(1)
    # tqdm creates a lock that all forks share, so a process killed while holding it would block the others forever.
    tqdm.set_lock(threading.RLock())
    with open(os.devnull, "w") as nowhere:
        for descriptor in (1, 2):
            os.dup2(nowhere.fileno(), descriptor)
    load_twin("torch", "td3_bc").train(config("torch", "td3_bc", folder, **SETTINGS, resume="auto"))


def unfinished(folder: Path) -> list[Path]:
    """The runs that have started but have no result."""
    return [path.parent for path in folder.glob("*/config.yaml") if not (path.parent / "result.json").exists()]


class Tally(NamedTuple):
    """The processes' outcome: the runs that they started, and how many processes ended and were killed."""

    runs: set[Path]
    ended: int
    killed: int


def disturb(folder: Path, outcome: Connection) -> None:
    """Starts and kills processes in this folder, as forks of this one, and sends their tally."""
    # So that forks find everything imported.
    train("torch", "td3_bc", folder.parent / "warm", **SETTINGS)
    rng, runs, killed, ended = random.Random(0), set(), 0, 0
    context = multiprocessing.get_context("fork")
    # Each with the time at which it will be killed
    alive: list[tuple[multiprocessing.process.BaseProcess, float]] = []
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        while len(alive) < PROCESSES:
            process = context.Process(target=work, args=(folder,))
            process.start()
            alive.append((process, time.monotonic() + rng.expovariate(1 / 6)))
        time.sleep(0.02)
        for process, death in alive:
            if process.is_alive() and time.monotonic() > death:
                process.kill()
                process.join()
                killed += process.exitcode == -9
        assert not [process.exitcode for process, _ in alive if process.exitcode not in (None, 0, -9)]
        ended += sum(process.exitcode == 0 for process, _ in alive)
        alive = [(process, death) for process, death in alive if process.is_alive()]
        runs |= {path.parent for path in folder.glob("*/config.yaml")}
        assert all(path.is_dir() for path in runs)
    for process, _ in alive:
        process.kill()
        process.join()
    outcome.send(Tally(runs, ended, killed))


def tally_of_disturbed(folder: Path) -> Tally:
    """Runs in a process without threads, because a fork of pytest's could inherit a lock that a thread holds."""
    context = multiprocessing.get_context("spawn")
    outcome, sender = context.Pipe(duplex=False)
    process = context.Process(target=disturb, args=(folder, sender))
    process.start()
    # So that the end of that process is the end of the pipe.
    sender.close()
    tally = outcome.recv()
    process.join()
    return tally


def test_none_is_lost_and_none_is_trained_by_two(tmp_path: Path) -> None:
    """Whichever process finishes a run, its rows and its bits are those of an undisturbed one."""
    whole = train("torch", "td3_bc", tmp_path / "whole", **SETTINGS)
    folder = tmp_path / "runs"
    runs, ended, killed = tally_of_disturbed(folder)
    resumed = len(unfinished(folder))
    for _ in range(resumed):
        train("torch", "td3_bc", folder, **SETTINGS, resume="auto")
    assert unfinished(folder) == []
    assert {path.parent for path in folder.glob("*/result.json")} >= runs
    for run in runs:
        assert rows(run) == rows(whole), run
        assert json.loads((run / "result.json").read_text())["updates"] == SETTINGS["max_timesteps"]
        assert_same_bits(run, whole)
    print(f"{len(runs)} runs, {ended} processes ended, {killed} were killed, {resumed} runs finished afterwards")
    assert killed > SECONDS // 5
    assert ended > SECONDS // 15
    assert only_run(tmp_path / "whole") == whole
