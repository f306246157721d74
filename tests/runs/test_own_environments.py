"""Users' own environments: found by `module:Id`, remembered by runs, and cut if they are endless."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
from gymnasium.spaces import Box

from shared.data.experience import Rows, load_rows
from shared.envs.evaluation import Evaluator
from shared.envs.film import film
from shared.envs.registry import is_registered, make_env, time_limit
from shared.envs.scores import SUCCESS
from shared.errors import InputError, RunError
from shared.frameworks.saved_run import SavedRun, find
from shared.frameworks.twins import ROOT, load_twin
from shared.runs import episodes
from shared.runs.task import load_task, training_environment
from tests.runs.stopped_runs import only_run, rows, train
from tests.runs.test_task import Config

SIDES = ("torch", "jax")
GLIDE, LEDGE, BOUNDLESS, REACH, PLACE = (
    f"tests.own_envs:own/{name}-v0" for name in ("Glide", "Ledge", "Boundless", "Reach", "ReachPlace")
)
# A module in the folder in which a user types commands
REGISTERS = "import gymnasium\ngymnasium.register('lab/Arm-v0', 'tests.own_envs:Glide', max_episode_steps=9)\n"
SHORT = {"max_timesteps": 4, "eval_freq": 4, "batch_size": 8, "n_episodes": 2, "device": "cpu"}


@pytest.fixture
def glided(tmp_path: Path) -> Callable[..., Path]:
    """Writes steps of a gliding point, in six episodes of ten rows that a time limit ended."""

    def write(env_id: str | None, **arrays: np.ndarray) -> Path:
        rng = np.random.default_rng(0)
        content = {
            "observations": rng.normal(size=(60, 2)).astype(np.float32),
            "actions": rng.uniform(-1, 1, size=(60, 1)).astype(np.float32),
            "rewards": rng.random(60).astype(np.float32),
            "terminals": np.zeros(60, bool),
            "timeouts": np.arange(60) % 10 == 9,
        }
        path = tmp_path / "glided.hdf5"
        with h5py.File(path, "w") as file:
            for key, values in (content | arrays).items():
                file[key] = values
            file.attrs.update({"env_id": env_id} if env_id else {})
        return path

    return write


@pytest.fixture(autouse=True)
def told_again() -> None:
    """Repeats a message in each test that is printed once per process."""
    episodes.tell_of_cut.cache_clear()


def lengths(run: Path) -> list[int]:
    """The number of steps in each episode of the last evaluation."""
    return next(row["lengths"] for row in reversed(rows(run)) if "lengths" in row)


@pytest.mark.usefixtures("in_haste")
def test_a_file_names_the_environment_of_a_module_and_the_run_remembers_it(
    glided: Callable[..., Path], tmp_path: Path
) -> None:
    run = train("torch", "td3_bc", tmp_path / "runs", env=str(glided(GLIDE)), **SHORT)
    assert lengths(run) == [12, 12]
    assert json.loads((run / "result.json").read_text())["evaluation"]["env"] == GLIDE
    saved = SavedRun.open(find(run))
    assert saved.facts["environment"]["id"] == saved.env_id == GLIDE
    played = saved.evaluator(2)
    assert played(saved.policy()).lengths.tolist() == [12, 12]
    played.close()


@pytest.mark.usefixtures("in_haste")
@pytest.mark.parametrize("side", SIDES)
def test_an_environment_that_sets_goals(glided: Callable[..., Path], tmp_path: Path, side: str) -> None:
    """Its policy is given them, and its score is the share of episodes that reach them, in percent."""
    run = train(side, "goal_conditioned/gcbc", tmp_path / "runs", env=str(glided(REACH)), **SHORT)
    found = next(row for row in reversed(rows(run)) if "lengths" in row)
    assert found["lengths"] == [12, 12]
    assert found["success_percent"] == 50.0 * sum(found["successes"])
    saved = SavedRun.open(find(run))
    played = saved.evaluator(20)
    assert played.scale == saved.scale == SUCCESS
    assert 0.0 < played(saved.policy()).outcomes.mean() < 1.0
    played.close()


@pytest.mark.parametrize(
    ("algorithm", "env_id", "message"),
    [
        ("goal_conditioned/gcbc", PLACE, r"goals have shape \(1,\), and its observations \(2,\): goals must be"),
        ("goal_conditioned/gcbc", GLIDE, "sets no goals"),
        ("td3_bc", REACH, "sets a goal in each episode: use a goal_conditioned algorithm"),
    ],
)
def test_goals_that_do_not_fit(
    glided: Callable[..., Path], tmp_path: Path, algorithm: str, env_id: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        train("torch", algorithm, tmp_path / "runs", env=str(glided(env_id)), **SHORT)


def run_beside(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in a folder; only this repository is on Python's path."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_a_module_is_found_where_the_user_types(glided: Callable[..., Path], tmp_path: Path) -> None:
    """By a program in another folder, and again by a command that is given only the run."""
    (tmp_path / "arm.py").write_text(REGISTERS)
    flags = [f"--{name}={value}" for name, value in SHORT.items()]
    program = [str(ROOT / "corl_torch" / "td3_bc.py"), "--env", str(glided("arm:lab/Arm-v0")), *flags]
    trained = run_beside(tmp_path, *program)
    assert trained.returncode == 0, trained.stderr
    run = only_run(tmp_path / "runs")
    assert lengths(run) == [9, 9]
    played = run_beside(tmp_path, "-m", "shared", "play", str(run), "--episodes", "1")
    assert "in 9 steps" in played.stdout, played.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("where", [[], ["--ray", "--threads", "1"]], ids=["processes", "ray"])
def test_a_sweeps_processes_import_it(where: list[str], tmp_path: Path) -> None:
    if where:
        pytest.importorskip("ray")
    (tmp_path / "arm.py").write_text(REGISTERS)
    asked = ["--algorithms", "online/td3", "--datasets", "arm:lab/Arm-v0", "--frameworks", "torch", "--folder", "swept"]
    flags = [f"--{name}={value}" for name, value in SHORT.items()]
    swept = run_beside(tmp_path, "-m", "shared", "sweep", *asked, *flags, "--random_steps=2", *where)
    assert swept.returncode == 0, swept.stderr
    (result,) = (tmp_path / "swept").glob("*/result.json")
    assert json.loads(result.read_text())["evaluation"]["env"] == "arm:lab/Arm-v0"


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("no_such_module:lab/Arm-v0", "needs the module 'no_such_module', which is not here: install it"),
        (
            "tests.own_envs:own/Glade-v0",
            "registers no environment 'own/Glade-v0': use tests.own_envs:own/Glide-v0",
        ),
        ("lab:", "'lab:' has no id after its module"),
        ("lab/Unregistered-v0", "unknown environment .*, or write module:lab/Unregistered-v0"),
    ],
)
def test_what_is_not_there_is_named(env_id: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        make_env(env_id)
    assert "\n" not in str(caught.value)
    assert time_limit(env_id) is None


def test_an_environment_that_takes_no_seed_is_refused() -> None:
    class Seedless(gymnasium.Env):
        def reset(self) -> tuple[np.ndarray, dict]:
            return np.zeros(2), {}

    gymnasium.register("lab/Seedless-v0", Seedless)
    with pytest.raises(InputError, match=r"takes no seed, .*: write it as reset\(self, \*, seed=None, options=None\)$"):
        make_env("lab/Seedless-v0")


class Faulty(gymnasium.Env):
    """Observations (2,) and actions (1,); a step does what `fault` says."""

    observation_space, action_space = Box(-1.0, 1.0, (2,), np.float32), Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Starts an episode, or fails."""
        if self.fault == "reset":
            raise KeyError("no start")
        return np.zeros(2, np.float32), {}

    def step(self, action: np.ndarray) -> Any:
        """Ends the episode, or fails."""
        if self.fault == "step":
            raise ValueError("no\nway")
        five = np.zeros(2, np.float32), np.array([1.5]), True, False, {}
        return five[:4] if self.fault == "four" else five


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("reset", r"failed in reset \(KeyError in test_own_environments.py, line \d+: 'no start'\); Gymnasium's reset"),
        ("step", r"failed in step \(ValueError in test_own_environments.py, line \d+: no way\); Gymnasium's step"),
        (
            "four",
            r"failed in step \(ValueError .*expected 5, got 4\)\); Gymnasium's step returns observation, reward, ter",
        ),
    ],
)
@pytest.mark.parametrize("limit", [3, None])
def test_an_environment_that_fails_is_told_in_one_line(fault: str, message: str, limit: int | None) -> None:
    """With and without a time limit, whose wrapper would notice missing values first."""
    gymnasium.register(f"lab/Faulty-{fault}-{limit}-v0", partial(Faulty, fault), max_episode_steps=limit)
    evaluate = Evaluator(f"lab/Faulty-{fault}-{limit}-v0", n_episodes=1, seed=0)
    with pytest.raises(RunError, match=message):
        evaluate(lambda observations: np.zeros((1, 1), np.float32))


@pytest.mark.filterwarnings("error")
def test_an_environment_without_pictures_is_not_filmed(tmp_path: Path) -> None:
    gymnasium.register("lab/Blind-v0", partial(Faulty, ""))
    blind = "environment 'lab/Blind-v0' cannot be filmed: let it take render_mode 'rgb_array', or leave out --video"
    with pytest.raises(InputError, match=blind), film(tmp_path / "x.gif") as make:
        make("lab/Blind-v0")


def test_a_reward_may_be_an_array_of_one_number() -> None:
    gymnasium.register("lab/Unfaulty-v0", partial(Faulty, ""), max_episode_steps=3)
    found = Evaluator("lab/Unfaulty-v0", n_episodes=2, seed=0)(lambda observations: np.zeros((2, 1), np.float32))
    assert found.returns.tolist() == [1.5, 1.5]


def test_whole_numbers_are_no_box_of_actions() -> None:
    class Whole(Faulty):
        action_space = Box(0, 4, (2,), np.int32)

    gymnasium.register("lab/Whole-v0", partial(Whole, ""))
    with pytest.raises(InputError, match="neither a vector of real numbers nor finite"):
        Evaluator("lab/Whole-v0", n_episodes=1, seed=0)


def test_a_module_that_breaks_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("broken_envs.py").write_text("import nothing_like_it\n")
    Path("raising_envs.py").write_text("1 / 0\n")
    with pytest.raises(InputError, match=r"'broken_envs', which cannot be imported .*'nothing_like_it'"):
        make_env("broken_envs:lab/Arm-v0")
    with pytest.raises(InputError, match=r"'raising_envs', which cannot be imported .*ZeroDivisionError"):
        make_env("raising_envs:lab/Arm-v0")


@pytest.mark.parametrize("name", ["minari:own/glide-v0", "ogbench:cube-single-play-singletask-v0", "C:own.hdf5"])
def test_names_of_datasets_are_no_modules(name: str) -> None:
    assert not is_registered(name)


@pytest.mark.parametrize(("given", "expected"), [(None, 10), (7, 7)])
def test_an_endless_environment_is_cut_at_the_datas_longest_episode_or_as_asked(
    given: int | None, expected: int, glided: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both in evaluations and in films; one line says so once."""
    run = train(
        "torch", "td3_bc", tmp_path, env=str(glided(BOUNDLESS)), max_episode_steps=given, max_timesteps=8, eval_freq=4
    )
    assert lengths(run) == [expected, expected]
    said = capsys.readouterr().err
    assert said.count(f"{BOUNDLESS} has no time limit: an episode is cut after {expected} steps") == 1
    saved = SavedRun.open(find(run))
    assert saved.facts["environment"]["max_episode_steps"] == expected
    played = saved.evaluator(1)
    assert played(saved.policy()).lengths.tolist() == [expected]
    played.close()


def test_a_time_limit_of_its_own_counts_and_nothing_is_said(
    glided: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    task = load_task(Config(env=str(glided(GLIDE))))
    task.evaluator.close()
    assert "max_episode_steps" not in task.evaluator.fingerprint
    assert "time limit" not in capsys.readouterr().err


@pytest.mark.thorough
@pytest.mark.usefixtures("in_haste")
@pytest.mark.parametrize(("side", "given", "expected"), [("torch", 5, [5, 10, 12]), ("jax", None, [12])])
def test_steps_of_an_endless_environment_are_cut_too(
    side: str, given: int | None, expected: list[int], tmp_path: Path
) -> None:
    """As timeouts, like the run's last step. Unless the user says otherwise, that is after 1000 steps."""
    settings = {"env": BOUNDLESS, "random_steps": 3, "max_episode_steps": given, "n_episodes": 1, "eval_freq": 12}
    run = train(side, "online/td3", tmp_path, **settings)
    kept = load_rows(run, 12, Rows)
    assert (np.flatnonzero(kept.timeouts) + 1).tolist() == expected
    assert not kept.terminals.any()
    assert lengths(run) == [given or 1000]


def test_a_run_that_goes_on_in_an_endless_environment_is_cut_as_its_evaluations(glided: Callable[..., Path]) -> None:
    config = Config(env=str(glided(BOUNDLESS)))
    task = load_task(config)
    object.__setattr__(config, "online_iterations", 25)
    object.__setattr__(config, "switch", 0)
    experience = training_environment(config, task)
    for _ in range(25):
        experience.step(np.zeros(1, np.float32))
    assert [episode.length for episode in experience.episodes] == [10, 10]
    experience.close()
    task.evaluator.close()


@pytest.mark.thorough
@pytest.mark.usefixtures("in_haste")
@pytest.mark.parametrize("side", SIDES)
def test_a_model_of_an_environment_of_ones_own_asks_where_episodes_end(
    side: str, glided: Callable[..., Path], tmp_path: Path
) -> None:
    env = str(glided(LEDGE))
    settings = {"env": env, "max_timesteps": 2, "eval_freq": 2, "rollout_length": 3}
    with pytest.raises(InputError, match=r"set termination to none .* or to module:function"):
        train(side, "model_based/dynamics", tmp_path / "refused", **settings)
    ended = {}
    for given in ("none", "tests.own_envs:over_the_edge"):
        run = train(side, "model_based/dynamics", tmp_path / given[:4], **settings, termination=given)
        ended[given] = rows(run)[-1]["ended"]
        twin = load_twin(side, "model_based/dynamics")
        found = twin.load_dynamics(run, "cpu").terminated
        assert np.asarray(found(np.array([[0.0, 0.0], [0.4, 0.0]]))).tolist() == [False, given != "none"]
    assert ended["none"] == 0.0 < ended["tests.own_envs:over_the_edge"]


def test_a_rule_that_does_not_fit_is_refused_before_anything_is_trained(
    glided: Callable[..., Path], tmp_path: Path
) -> None:
    for given, message in (
        ("numpy:abs", "let it return a boolean"),
        ("tests.own_envs:fell", "cannot read states"),
    ):
        with pytest.raises(InputError, match=message):
            train("torch", "model_based/dynamics", tmp_path / "runs", env=str(glided(LEDGE)), termination=given)
    assert not (tmp_path / "runs").exists()
