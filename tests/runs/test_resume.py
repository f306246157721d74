"""A run that was stopped, or that its environment ended, continues to the same bits as an undisturbed one."""

import ast
import dataclasses
import inspect
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
import yaml

from parity_tests.pairs import PAIRS
from shared.data import sources
from shared.envs.evaluation import Evaluator
from shared.errors import InputError, Stopped
from shared.frameworks.jax_calls import History
from shared.frameworks.twins import load_twin
from shared.runs.configs import from_settings, parse
from shared.runs.fields import bounded, later
from shared.runs.phases import Phases
from shared.runs.rollouts import RolloutEvaluator
from shared.runs.run import Run
from shared.runs.valuation import DatasetEvaluator
from tests.runs.stopped_runs import assert_same_bits, config, last_checkpoint, only_run, read, rows, train

pytestmark = pytest.mark.usefixtures("in_haste")

SIDES = ["torch", "jax"]


@contextmanager
def stop_after(updates: int) -> Iterator[None]:
    """Sends SIGTERM in the middle of training, once this process has counted this many updates."""
    advance, seen = Run.advance, [0]

    def counting(self: Run, done: int, *args: Any) -> None:
        advance(self, done, *args)
        seen[0] += done
        if seen[0] - done < updates <= seen[0]:
            signal.raise_signal(signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "advance", counting)
        yield


@contextmanager
def short_calls() -> Iterator[set[tuple[int, int]]]:
    """Makes several compiled calls of an interval, in JAX; collects each call's start and number of updates."""
    calls, made = Phases.calls, set()

    def short(self: Phases, start: int, period: int, most: int) -> Iterator[tuple[int, int]]:
        for begin, end in calls(self, start, period, period):
            made.add((begin, end - begin))
            yield begin, end

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Phases, "calls", short)
        yield made


@contextmanager
def stop_in_the_first_call() -> Iterator[None]:
    """Sends SIGTERM while the first compiled call computes, in JAX and in this process."""
    add, calls = History.add, [0]

    def adding(self: History, updates: int, found: Any) -> None:
        calls[0] += 1
        if calls[0] == 1:
            signal.raise_signal(signal.SIGTERM)
        add(self, updates, found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(History, "add", adding)
        yield


@contextmanager
def evaluation_fails(number: int) -> Iterator[None]:
    """Makes the evaluation with this number, from 1, raise an error half way."""
    seen = [0]

    def failing(evaluate: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def evaluated(self: Any, policy: Any) -> Any:
            seen[0] += 1
            if seen[0] == number:
                raise ZeroDivisionError("the simulator")
            return evaluate(self, policy)

        return evaluated

    with pytest.MonkeyPatch.context() as patch:
        for kind in (Evaluator, DatasetEvaluator, RolloutEvaluator):
            patch.setattr(kind, "__call__", failing(kind.__call__))
        yield


def disturb() -> None:
    """Changes state that a separate process would not share."""
    np.random.seed(99)
    torch.manual_seed(99)


# ---- every twin ----------------------------------------------------------------------------------------------------


# Algorithms that collect their own data, and their environments
IN_AN_ENVIRONMENT = {"sac": "d4rl/hopper-v2", "online/dqn": "CartPole-v1"}
# One for each kind of loop, and of state beside the networks. TD3+BC's two come first, for what all have in common.
LOOPS = ["td3_bc", "plas", "dt", "evaluation/fqe", *IN_AN_ENVIRONMENT, "model_based/dynamics", "model_based/mopo"]
LOOPS += [f"finetune/{name}" for name in ("acfql", "balanced_replay", "cal_ql", "rebrac", "rlpd", "spot")]
# `tests/runs/test_finetune.py` stops IQL's in both of its phases.
STOPPED = [*LOOPS, "finetune/iql"]


ROLES = {"Run": "run", "History": "history", "restore": "history"}
# A name that is neither an attribute nor that of a keyword's argument
NAME = re.compile(r"(?<![.\w])[a-z_]\w*(?!\w*=[^=])")


def with_common_names(loop: ast.stmt) -> list[str]:
    """The lines of a function, in which its run and its history of metrics have their usual names."""
    usual = {
        node.targets[0].id: ROLES[node.value.func.id]
        for node in ast.walk(loop)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name) and node.value.func.id in ROLES
    }
    for node in ast.walk(loop):
        if isinstance(node, ast.Name):
            node.id = usual.get(node.id, node.id)
    return ast.unparse(loop).splitlines()


def without_other_names(loop: ast.stmt, lines: list[str]) -> tuple[str, ...]:
    """The lines with the function's other local variables numbered by their first use."""
    stored = {n.id for n in ast.walk(loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    text, numbers = "\n".join(lines), dict[str, str]()
    for name in NAME.findall(text):
        if name in stored - {*ROLES.values()}:
            numbers.setdefault(name, f"v{len(numbers)}")
    return tuple(NAME.sub(lambda found: numbers.get(found[0], found[0]), text).splitlines())


def saving(side: str, name: str) -> set[tuple[str, ...]]:
    """The lines of each of a twin's loops that use its run or its history of metrics, made comparable."""
    twin, found = load_twin(side, name), set()
    for way in ("train", "train_on_dataset", "train_in_environment"):
        source = inspect.getsource(getattr(twin, way)) if hasattr(twin, way) else ""
        if "Run(" not in source:  # one that only chooses between the other two
            continue
        loop = ast.parse(source).body[0]
        kept = [line for line in with_common_names(loop)[1:] if re.search(r"\brun\.|\brestore\(|history|save", line)]
        kept = [re.sub(r"'[\w/]+'|(?<=algorithm=)\w+", "NAME", line) for line in kept]
        kept = [re.sub(r"(evaluate|history\.append|run\.calls)\(.*", r"\1(", line) for line in kept]
        found.add(without_other_names(loop, kept))
    return found


@pytest.mark.parametrize("side", SIDES)
def test_every_other_loop_saves_and_goes_on_like_one_that_is_stopped(side: str) -> None:
    """`tests/runs/test_checkpoints.py` shows for every twin that its state survives a checkpoint."""
    known = set().union(*(saving(side, name) for name in STOPPED))
    assert len(known) < len(STOPPED)
    for name in PAIRS:
        assert saving(side, name) <= known, f"{name} saves in a way of its own: add it to LOOPS"


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(f"{name}-{side}", marks=[] if name == "td3_bc" else pytest.mark.thorough)
        for name in LOOPS
        for side in SIDES
    ],
)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, Path]:
    """A twin's framework and name, and an undisturbed run of it."""
    name, _, side = request.param.rpartition("-")
    if side == "jax":
        jax.clear_caches()
    # XLA compiles a loop of another length to other last bits, so all these runs have calls of the same length.
    with short_calls():
        return side, name, train(side, name, tmp_path_factory.mktemp(request.param.replace("/", "-")), n_episodes=1)


def test_a_stopped_run_ends_as_one_that_was_not(whole: tuple[str, str, Path], tmp_path: Path) -> None:
    """Stopped within its first interval, then after an error in an evaluation; with the same seed, the same bits.

    The state is whole after any update in PyTorch, between steps in an environment, and after a call in JAX.
    """
    side, name, reference = whole
    in_calls = side == "jax" and name not in (*IN_AN_ENVIRONMENT, "model_based/dynamics")
    with short_calls() as calls:
        with stop_in_the_first_call() if in_calls else stop_after(1), pytest.raises(Stopped):
            train(side, name, tmp_path, n_episodes=1)
        run = only_run(tmp_path)
        (saved,) = (run / "checkpoints").glob("step_*")
        assert int(saved.stem.removeprefix("step_")) < 4
        disturb()
        with evaluation_fails(2), pytest.raises(ZeroDivisionError):
            train(side, name, tmp_path, n_episodes=1, resume=str(run))
        assert not (run / "result.json").exists()
        disturb()
        assert train(side, name, tmp_path, n_episodes=1, resume="auto") == run
    assert_same_bits(run, reference)
    if side == "jax":
        # All evaluations after all these starts are one program, and so are all calls that need no other one.
        twin, given = load_twin("jax", name), config("jax", name, tmp_path)
        traced = [
            p.name for p in inspect.signature(twin.train_interval).parameters.values() if p.annotation is jax.Array
        ]
        offline = {call for call in calls if call[0] < getattr(given, "switch", given.max_timesteps)}
        every = [(call[1], PAIRS[name].interval_statics(given, *call)) for call in offline or {(0, 4), (4, 4), (8, 4)}]
        kinds = {(size, *((key, value) for key, value in found.items() if key not in traced)) for size, found in every}
        evaluated = next(getattr(twin, way) for way in ("act", "value", "predict") if hasattr(twin, way))
        assert (twin.train_interval._cache_size(), evaluated._cache_size()) == (len(kinds), 1)


def returns_for_0_and_100(name: str, env_id: str, dataset: str) -> dict[str, float]:
    """D4RL's, or those stated by a dataset; empty if values or returns are reported unscaled."""
    if name.startswith("evaluation/") or name == "model_based/dynamics":
        return {}
    if env_id == "d4rl/hopper-v2":
        return {"ref_min_score": -20.272305, "ref_max_score": 3234.3}
    stated = {} if name in IN_AN_ENVIRONMENT else sources.read(dataset).attributes
    return {key: value for key, value in stated.items() if key in ("ref_min_score", "ref_max_score")}


def test_a_checkpoint_says_what_it_belongs_to(whole: tuple[str, str, Path]) -> None:
    """Settings, dataset, versions, normalisation and update, which the framework's own reader can read."""
    side, name, run = whole
    content = read(last_checkpoint(run))
    assert (content["algorithm"], content["step"]) == (name, 12)
    assert content["settings"].items() >= PAIRS[name].lasting(12).items()
    assert content["settings"]["seed"] == 1
    dataset = content["settings"]["env"]
    env_id = IN_AN_ENVIRONMENT.get(name) or sources.read(dataset).attributes["env_id"]
    known = {"d4rl/hopper-v2": (11, 3, 1.0), "Pendulum-v1": (3, 1, 1.0), "CartPole-v1": (4, 2, 1.0)}
    state_dim, action_dim, max_action = known[env_id]
    sizes = {"state_dim": state_dim, "action_dim": action_dim, "max_action": max_action}
    sizes |= returns_for_0_and_100(name, env_id, dataset)
    assert content["environment"] == sizes | {"id": env_id}
    assert {"python", "numpy", "torch" if side == "torch" else "jax"} <= content["versions"].keys()
    if name in IN_AN_ENVIRONMENT:
        assert content["dataset"] == {"name": env_id}
    else:
        assert len(content["dataset"]["sha256"]) == 64
    size = len(np.ravel(content["state_mean"]))
    assert size == len(np.ravel(content["state_std"])) == state_dim
    # DQN's first step makes no update.
    assert content["total_it"] == (11 if name == "online/dqn" else 12)


# ---- resuming ------------------------------------------------------------------------------------------------------


def test_nothing_is_lost_when_the_first_evaluation_fails(tmp_path: Path) -> None:
    """The training before it is saved, and its evaluation comes first when the run is resumed."""
    with evaluation_fails(1), pytest.raises(ZeroDivisionError):
        train("torch", "td3_bc", tmp_path)
    run = only_run(tmp_path)
    assert [row["step"] for row in rows(run)] == [4]
    assert "returns" not in rows(run)[0]
    assert [path.stem for path in (run / "checkpoints").iterdir()] == ["step_4"]
    train("torch", "td3_bc", tmp_path, resume=str(run))
    assert [row["step"] for row in rows(run)] == [4, 4, 8, 8, 12, 12]


def test_a_run_without_a_checkpoint_begins_again_in_its_folder(tmp_path: Path) -> None:
    """As after a kill in the first interval; half a checkpoint and half a row are removed."""
    reference = train("torch", "td3_bc", tmp_path / "whole")
    with stop_after(1), pytest.raises(Stopped):
        train("torch", "td3_bc", tmp_path / "cut")
    run = only_run(tmp_path / "cut")
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "step_4.pt.partial").write_bytes(b"PK")
    (run / "metrics.jsonl").write_text('{"step": 4, "cri')
    train("torch", "td3_bc", tmp_path / "cut", resume="auto")
    assert_same_bits(run, reference)
    assert not list(run.rglob("*.partial"))


def test_auto_takes_the_latest_unfinished_run_of_the_same_settings(tmp_path: Path) -> None:
    """Not another seed's, nor a finished, running or older one; if there is none, a new one starts.

    Another version may have ordered the settings in `config.yaml` differently.
    """
    train("torch", "td3_bc", tmp_path)
    (finished,) = tmp_path.iterdir()
    with evaluation_fails(1), pytest.raises(ZeroDivisionError):
        train("torch", "td3_bc", tmp_path, seed=2)
    (other,) = set(tmp_path.iterdir()) - {finished}
    new = train("torch", "td3_bc", tmp_path, resume="auto")
    assert new not in (finished, other)
    settings = yaml.safe_load((other / "config.yaml").read_text())
    (other / "config.yaml").write_text(yaml.safe_dump(dict(reversed(settings.items())), sort_keys=False))
    older = shutil.copytree(other, other.with_name(f"{other.name[:-8]}00000000"))
    os.utime(older / "config.yaml", (0, 0))
    assert train("torch", "td3_bc", tmp_path, seed=2, resume="auto") == other


def test_a_run_that_goes_on_elsewhere_is_left_alone(tmp_path: Path) -> None:
    """If it is named, it is refused; `auto` starts another."""
    found = []
    evaluate = Evaluator.__call__

    def meanwhile(self: Evaluator, policy: Any) -> Any:
        if not found:
            run = only_run(tmp_path)
            found.append(run)
            with pytest.raises(InputError, match="is still running in another process"):
                train("torch", "td3_bc", tmp_path, resume=str(run))
            found.append(train("torch", "td3_bc", tmp_path, resume="auto"))
        return evaluate(self, policy)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Evaluator, "__call__", meanwhile)
        run = train("torch", "td3_bc", tmp_path)
    assert found[0] == run != found[1]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of TD3+BC in PyTorch that was stopped at its seventh update."""
    folder = tmp_path_factory.mktemp("stopped")
    with stop_after(7), pytest.raises(Stopped):
        train("torch", "td3_bc", folder)
    return only_run(folder)


@pytest.fixture
def unfinished(stopped: Path, tmp_path: Path) -> Path:
    """A copy of that run, for one test."""
    return shutil.copytree(stopped, tmp_path / stopped.name)


REFUSED = {
    "other settings": ({"discount": 0.9, "seed": 1}, "has discount 0.99, not 0.9: give the same"),
    "no run": ({"resume": "nowhere"}, "nowhere is no run's folder"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_what_cannot_go_on_is_refused(fault: str, unfinished: Path) -> None:
    """In one line, with nothing changed."""
    settings, word = REFUSED[fault]
    before = {path: path.stat().st_mtime_ns for path in unfinished.rglob("*")}
    with pytest.raises(InputError, match=word):
        train("torch", "td3_bc", unfinished.parent, **{"resume": str(unfinished)} | settings)
    assert before == {path: path.stat().st_mtime_ns for path in unfinished.parent.glob("*/**/*")}


def test_a_setting_that_came_after_a_run_had_its_default_value(unfinished: Path) -> None:
    """If the setting is marked so, a run of an earlier version can be resumed, but not with another value."""
    settings = config("torch", "td3_bc", unfinished.parent, resume=str(unfinished))
    cls = type(settings)
    marked, unmarked = (
        dataclasses.make_dataclass(cls.__name__, [("extra", int, kind)], bases=(cls,), frozen=True)
        for kind in (later(bounded(3, low=0)), bounded(3, low=0))
    )
    found = vars(settings)
    with pytest.raises(InputError, match="has extra None, not 3"):
        load_twin("torch", "td3_bc").train(unmarked(**found))
    with pytest.raises(InputError, match="has extra 3, not 4"):
        load_twin("torch", "td3_bc").train(marked(**found, extra=4))
    load_twin("torch", "td3_bc").train(marked(**found))
    assert (unfinished / "result.json").exists()


def test_settings_that_are_cut_off_are_refused(unfinished: Path) -> None:
    """A file that lost its end is not resumed with defaults for the missing settings."""
    path = unfinished / "config.yaml"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(InputError, match="None, not"):
        train("torch", "td3_bc", unfinished.parent, resume=str(unfinished))


def test_a_twins_run_is_not_the_other_twins(unfinished: Path) -> None:
    with pytest.raises(InputError, match="was not trained with JAX"):
        train("jax", "td3_bc", unfinished.parent, resume=str(unfinished))


def test_a_finished_run_says_so(tmp_path: Path) -> None:
    run = train("torch", "td3_bc", tmp_path, max_timesteps=4)
    with pytest.raises(InputError, match="is finished: to train on from its weights, set load_model to its checkpoi"):
        train("torch", "td3_bc", tmp_path, max_timesteps=4, resume=str(run))


def test_another_dataset_is_refused(write_hdf5: Callable[..., Path], tmp_path: Path) -> None:
    """A file with the same name but other numbers."""
    path = write_hdf5()
    with stop_after(7), pytest.raises(Stopped):
        train("torch", "td3_bc", tmp_path / "runs", env=str(path))
    write_hdf5(rewards=np.ones(60, np.float32))
    run = only_run(tmp_path / "runs")
    for _ in range(2):  # and the refused run does not count as running
        with pytest.raises(InputError, match="learnt from another dataset"):
            train("torch", "td3_bc", tmp_path / "runs", env=str(path), resume=str(run))


def test_the_folder_alone_names_the_settings(unfinished: Path) -> None:
    """`--resume FOLDER` needs no other flag, and one that differs is noticed."""
    cls = type(config("torch", "td3_bc", unfinished))
    found = parse(cls, "td3_bc", ["--resume", str(unfinished)])
    wanted = from_settings(cls, "td3_bc", yaml.safe_load((unfinished / "config.yaml").read_text()), "")
    assert found == dataclasses.replace(wanted, resume=str(unfinished))
    assert parse(cls, "td3_bc", ["--resume", str(unfinished), "--seed", "7"]).seed == 7
    with pytest.raises(InputError, match="cannot read nowhere"):
        parse(cls, "td3_bc", ["--resume", "nowhere"])
    assert parse(cls, "td3_bc", ["--resume", "auto"]).max_timesteps != wanted.max_timesteps


# ---- kept checkpoints ----------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_the_last_two_and_the_best_are_kept(tmp_path: Path) -> None:
    """CORL's own setting keeps them all, in another folder."""
    copies = tmp_path / "copies"
    run = train("torch", "td3_bc", tmp_path / "runs", max_timesteps=24, checkpoints_path=str(copies))
    means = {row["step"]: row["return_mean"] for row in rows(run) if "returns" in row}
    best = max(means, key=means.__getitem__)
    kept = {path.stem for path in (run / "checkpoints").iterdir()}
    assert kept == {f"step_{step}" for step in (20, 24, best)}
    assert {path.stem for path in copies.glob("*/*")} == {f"checkpoint_{step}" for step in range(4, 28, 4)}
    (last,) = (run / "checkpoints").glob("step_24.*")
    assert last.read_bytes() == last_checkpoint(run).read_bytes()
