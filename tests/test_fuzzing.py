"""Hundreds of files and variables that nobody would write: each command ends normally or in one line, and in time.

The cases are the same each time. Bytes of real files are cut, flipped, overwritten and repeated. Entries of real JSON
and YAML are replaced at any depth. Together with `tests/runs/test_hostile_settings.py` and
`tests/frameworks/test_hostile_checkpoints.py` there are many hundreds.
"""

import json
import random
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import matplotlib.image
import pytest
import yaml

from shared.__main__ import run as corl_twins
from shared.commands import convert, datasets, play, plot
from shared.commands.common import ended
from shared.frameworks.twins import load_twin
from shared.runs.configs import cli
from tests.frameworks.test_hostile_checkpoints import REMOVED, entry, places, replaced
from tests.runs.stopped_runs import config, only_run, rows, train
from tests.runs.test_resume import evaluation_fails

pytestmark = pytest.mark.thorough

SECONDS = 20
DATASETS, TRAININGS, CHECKPOINTS, METRICS, RESUMED, VARIABLES = 80, 6, 30, 24, 10, 40
VALUES = [REMOVED, None, True, -1, 0, 1e999, 10**400, 0.5, "", "text", "\n", "a$\\frac$", [], {}, [[1]], {"a": None}]


class TooSlowError(BaseException):
    """No answer in time; not an `Exception`, which a command might turn into a line."""


@contextmanager
def in_time(what: str) -> Iterator[None]:
    """Fails a case that hangs."""

    def late(*_: object) -> None:
        raise TooSlowError(f"{what}: no answer within {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


Outcome = Callable[[Callable[[], int], str], int]


@pytest.fixture
def status_of(capsys: pytest.CaptureFixture[str]) -> Outcome:
    """Runs a command and returns its exit status: 0, or 1 or 2 with one line on stderr that starts with `error:`."""

    def run(command: Callable[[], int], what: str) -> int:
        capsys.readouterr()
        try:
            with in_time(what):
                status = command()
        except Exception as error:
            pytest.fail(f"{what}: {type(error).__name__}: {error}")
        told = capsys.readouterr().err
        errors = [line for line in told.splitlines() if line.startswith("error:")]
        assert status in (0, 1, 2), what
        assert len(errors) == (status != 0), (what, told)
        assert "Traceback" not in told, what
        return status

    return run


def training(arguments: Sequence[str]) -> int:
    """The exit status of TD3+BC's command in PyTorch."""
    twin = load_twin("torch", "td3_bc")
    try:
        cli(twin.train, twin.TrainConfig, "td3_bc", arguments, "td3_bc.py")
    except SystemExit as stop:
        return stop.code
    return 0


def mutated(content: bytes, rng: random.Random) -> bytes:
    """The content with a few bytes or a part of it changed."""
    size, at = len(content), rng.randrange(len(content))
    part = content[at : at + rng.choice([1, 2, 8, 64, 1024])]
    way = rng.choice(["cut", "turn", "turn", "turn", "overwrite", "repeat", "drop", "empty"])
    if way == "cut":
        return content[:at]
    if way == "turn":
        changed = bytearray(content)
        for _ in range(rng.choice([1, 1, 4, 64])):
            changed[rng.randrange(size)] ^= 1 << rng.randrange(8)
        return bytes(changed)
    if way == "overwrite":
        return content[:at] + rng.randbytes(len(part)) + content[at + len(part) :]
    if way == "repeat":
        return content[:at] + part + content[at:]
    return content[:at] + content[at + len(part) :] if way == "drop" else b""


def with_another_entry(text: str, rng: random.Random, read: Callable, write: Callable) -> str:
    """A document with one entry replaced, at any depth."""
    content = read(text)
    where = rng.choice(list(places(content)))
    assert entry(content, where) is not REMOVED
    return write(replaced(content, where, rng.choice(VALUES)))


def changed_lines(text: str, rng: random.Random) -> str:
    """Rows of JSON, one of them changed."""
    lines = text.splitlines()
    at = rng.randrange(len(lines))
    lines[at] = with_another_entry(lines[at], rng, json.loads, json.dumps)
    return "\n".join(lines) + "\n"


# ---- datasets ------------------------------------------------------------------------------------------------------


def test_damaged_datasets(
    write_hdf5: Callable[..., Path], status_of: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are described or refused, and some are trained on."""
    monkeypatch.chdir(tmp_path)
    path, rng = write_hdf5({"env_id": "d4rl/hopper-v2", "expert_return_mean": 3000.0}), random.Random(0)
    content, outcomes = path.read_bytes(), []
    for case in range(DATASETS):
        path.write_bytes(mutated(content, rng))
        what = f"dataset {case}"
        outcomes.append(status_of(lambda: ended(datasets.main, ["show", str(path)]), what))
        if case < TRAININGS:
            flags = ["--max_timesteps=1", "--n_episodes=1", "--batch_size=4", f"--runs_path={path.parent / 'runs'}"]
            arguments = [f"--env={path}", "--device=cpu", *flags]
            status = status_of(lambda arguments=arguments: training(arguments), what)
            # A file that can be described but not trained on lacks an environment, or fits none.
            assert status in (0, 2)
            assert outcomes[-1] == 0 or status == 2, what
    assert {0, 2} == set(outcomes)


# ---- the files of runs ---------------------------------------------------------------------------------------------


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """The folder of a short run."""
    return train("torch", "td3_bc", tmp_path / "runs")


def test_damaged_checkpoints(finished: Path, status_of: Outcome) -> None:
    """They are played and converted, or refused; half of them lose their seal, because strangers' files have none."""
    path, rng, outcomes = finished / "checkpoint.pt", random.Random(0), set()
    whole = path.read_bytes()
    for case in range(CHECKPOINTS):
        content = whole if case % 2 else whole[: -2 - 71] + bytes(2)
        path.write_bytes(mutated(content, rng))
        target = finished.parent / f"other-{case}.msgpack"
        arguments = [str(finished), "--to", "jax", "--output", str(target)]
        outcomes.add(status_of(lambda arguments=arguments: ended(convert.main, arguments), f"checkpoint {case}"))
        if case < 10:
            arguments = [str(finished), "--episodes", "1"]
            status_of(lambda arguments=arguments: ended(play.main, arguments), f"checkpoint {case}")
    assert outcomes == {0, 2}


def test_changed_metrics(finished: Path, tmp_path: Path, status_of: Outcome) -> None:
    """They are drawn or refused; a picture that is reported can be opened."""
    path, rng, outcomes = finished / "metrics.jsonl", random.Random(0), set()
    text = path.read_text()
    for case in range(METRICS):
        changed = changed_lines(text, rng).encode() if case % 3 else mutated(text.encode(), rng)
        path.write_bytes(changed)
        picture = tmp_path / f"{case}.png"
        arguments = [str(finished), "--output", str(picture)]
        status = status_of(lambda arguments=arguments: ended(plot.main, arguments), f"metrics {case}: {changed!r}")
        assert picture.exists() == (status == 0)
        if status == 0:
            assert matplotlib.image.imread(picture).size
        outcomes.add(status)
    assert outcomes == {0, 2}


def test_changed_runs_that_go_on(tmp_path: Path, status_of: Outcome) -> None:
    """`auto` resumes what it can, or starts again, so each command ends with a whole run."""
    settings = {"max_timesteps": 8}
    with evaluation_fails(2), pytest.raises(ZeroDivisionError):
        train("torch", "td3_bc", tmp_path / "cut", **settings)
    cut, rng, resumed = only_run(tmp_path / "cut"), random.Random(0), set()
    names = ["config.yaml", "metrics.jsonl", *(f"checkpoints/{path.name}" for path in (cut / "checkpoints").iterdir())]
    for case in range(RESUMED):
        runs = tmp_path / str(case)
        run = runs / cut.name
        shutil.copytree(cut, run)
        file = run / rng.choice(names)
        if file.suffix == ".pt" or case % 4 == 0:
            file.write_bytes(mutated(file.read_bytes(), rng))
        elif file.suffix == ".yaml":
            file.write_text(with_another_entry(file.read_text(), rng, yaml.safe_load, yaml.safe_dump))
        else:
            file.write_text(changed_lines(file.read_text(), rng))
        wanted = config("torch", "td3_bc", runs, **settings, resume="auto")
        given = {name: value if isinstance(value, str) else json.dumps(value) for name, value in vars(wanted).items()}
        flags = [f"--{name}={value}" for name, value in given.items()]
        assert status_of(lambda flags=flags: training(flags), f"run {case}, {file.name}") == 0
        (done,) = [result.parent for result in runs.glob("*/result.json")]
        assert rows(done)[-1]["step"] == 8
        resumed.add(done == run)
    assert resumed == {True, False}


# ---- the environment ------------------------------------------------------------------------------------------------

NAMES = [
    "XDG_CACHE_HOME",
    "D4RL_DATASET_DIR",
    "D4RL_DATASET_URL",
    "MINARI_DATASETS_PATH",
    "HOME",
    "http_proxy",
    "TMPDIR",
]
WORDS = ["", " ", ".", "/", "/dev/null", "/dev/null/x", "~", "~nobody/x", "relative", "\udcff", "a" * 5000, "%s", "\n"]
WORDS += [
    "http://",
    "http://[",
    "ftp://x",
    "http://127.0.0.1:99999",
    "http://127.0.0.1:0",
    "http://user:pw@127.0.0.1:9",
]
COMMANDS = [
    ["list"],
    ["show", "mini/hopper-medium-expert"],
    ["show", "hopper-medium-v2"],
    ["verify", "hopper-medium-v2"],
]


def test_strange_variables(status_of: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are used, or refused in one line."""
    monkeypatch.chdir(tmp_path)
    rng, outcomes = random.Random(0), set()
    for case in range(VARIABLES):
        with monkeypatch.context() as patch:
            for _ in range(rng.choice([1, 1, 2])):
                patch.setenv(rng.choice(NAMES), rng.choice(WORDS))
            arguments = ["datasets", *COMMANDS[case % len(COMMANDS)]]
            outcomes.add(status_of(lambda arguments=arguments: ended(corl_twins, arguments), f"variables {case}"))
    assert outcomes == {0, 2}
