"""`import corl_twins`: its surface, and that on real data it does the same as the commands."""

import inspect
import itertools
import operator
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient
from numpy.testing import assert_allclose, assert_array_equal

import corl_twins
from shared.commands.play import play
from shared.errors import InputError
from shared.frameworks.saved_run import SavedRun, find
from shared.frameworks.twins import algorithms as files
from shared.runs.run import Run
from tests import ogbench_files

pytestmark = pytest.mark.usefixtures("in_haste")

# By name: the parameters of a call, without annotations, which mypy checks
SURFACE = {
    "Algorithm": "(name, title, family, use, paper, url)",
    "Dataset": "(arrays, env='')",
    "Evaluation": "(score, metric, returns, lengths)",
    "InputError": "(message)",
    "Policy": "(saved, framework, seed=None)",
    "Policy.__call__": "(self, observations, returns=None, lengths=None, goals=None)",
    "Run": "(folder)",
    "algorithms": "()",
    "evaluate": "(policy, env=None, episodes=10, seed=None)",
    "load_policy": "(run, framework=None, seed=None)",
    "make_dataset": "(arrays, env='')",
    "train": "(algorithm, *, framework='jax', env=None, progress=True, **settings)",
}
MEMBERS = {
    "Dataset": ["arrays", "env", "get_dataset"],
    "Policy": ["algorithm", "env", "framework", "path"],
    "Run": ["folder", "metric", "metrics", "policy", "result", "score"],
}
SHORT = {"max_timesteps": 6, "eval_freq": 3, "n_episodes": 2, "device": "cpu", "progress": False}
PENDULUM = "mini/pendulum-replay"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def train(folder: Path) -> Callable[..., corl_twins.Run]:
    """Returns a function that trains for a moment."""
    return lambda algorithm, **settings: corl_twins.train(algorithm, **SHORT | {"runs_path": folder} | settings)


@pytest.fixture(scope="module", params=["torch", "jax"])
def run(request: pytest.FixtureRequest, train: Callable[..., corl_twins.Run]) -> corl_twins.Run:
    return train("awac", framework=request.param, env=PENDULUM)


def arrays(rows: int = 300) -> dict[str, np.ndarray]:
    """Random rows of Pendulum's shape."""
    rng = np.random.default_rng(0)
    return {
        "observations": rng.normal(size=(rows, 3)),
        "actions": rng.uniform(-2, 2, size=(rows, 1)),
        "rewards": rng.normal(size=rows),
        "terminals": np.arange(rows) % 100 == 49,
        "timeouts": np.arange(rows) % 100 == 99,
    }


def taken(called: Callable) -> str:
    """The parameters of a call and their defaults, as text."""
    signature = inspect.signature(called)
    bare = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def test_the_surface_is_what_programs_rely_on() -> None:
    """A changed signature requires a change here too, as a reminder that it may break other people's programs."""
    assert {*corl_twins.__all__} == {"RunError", *(name for name in SURFACE if "." not in name)}
    assert {name: taken(operator.attrgetter(name)(corl_twins)) for name in SURFACE} == SURFACE
    for name, members in MEMBERS.items():
        own = getattr(corl_twins, name)
        assert sorted(each for each in {*vars(own), *own.__annotations__} if not each.startswith("_")) == members


def test_importing_it_loads_no_framework_and_takes_no_name() -> None:
    program = "import sys, corl_twins; print([name for name in ('torch', 'jax', 'shared') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_all_algorithms_are_listed_with_their_families() -> None:
    listed = corl_twins.algorithms()
    assert sorted(each.name for each in listed) == sorted(files("torch"))
    families = [each.family for each in listed]
    assert [family for family, _ in itertools.groupby(families)] == list(dict.fromkeys(families)), "family by family"
    assert next(each.family for each in listed if each.name == "iql") == "Weighted imitation"
    assert all(each.title and each.use and each.paper and each.url.startswith("https://") for each in listed)


@pytest.mark.thorough
def test_a_run_tells_what_it_logged(run: corl_twins.Run) -> None:
    assert run.score == run.result["final"]
    assert run.metric == run.result["metric"]
    metrics = run.metrics
    assert_array_equal(metrics["step"], [3, 6])
    assert metrics["returns"].shape == (2, 2)
    assert_array_equal(metrics["return_mean"], metrics["returns"].mean(axis=1))
    assert np.isfinite(metrics["critic_loss"]).all()
    assert metrics[run.metric][-1] == run.score


def test_a_policy_takes_what_the_environment_gives(run: corl_twins.Run) -> None:
    """One observation or several, in the framework that learned it; the actions are the same as in evaluations."""
    policy = run.policy
    assert policy.framework == run.result["framework"]
    assert policy.env == run.result["evaluation"]["env"]
    observations = np.random.default_rng(1).normal(size=(4, 3))
    actions = policy(observations)
    assert actions.shape == (4, 1)
    assert_allclose(policy(observations[2]), actions[2], rtol=1e-4)
    saved = SavedRun.open(find(run.folder))
    mean, std = saved.statistics()
    (own,) = saved.actions(((observations - mean) / std).astype(np.float32))
    action_mean, action_std = saved.action_statistics()
    assert action_std != 1.0, "the row of this dataset scales actions"
    assert_allclose(actions, own * action_std + action_mean, rtol=1e-4)
    assert_allclose(corl_twins.load_policy(str(run.folder), framework="torch")(observations), actions, rtol=1e-4)
    with pytest.raises(InputError, match=r"shape \(4,\): pass \(3,\)"):
        policy(np.zeros(4))


def test_an_evaluation_is_that_of_the_run(run: corl_twins.Run) -> None:
    """The same start states and the same score; the score of the user's own function is computed in the same way."""
    again = corl_twins.evaluate(run.policy, episodes=2)
    assert again.metric == run.metric
    assert_allclose(again.score, run.score, rtol=1e-3)
    assert_allclose(again.returns, run.metrics["returns"][-1], rtol=1e-3)
    as_function = corl_twins.evaluate(lambda seen: run.policy(seen), PENDULUM, 2, run.result["evaluation"]["seed"])
    assert_allclose(as_function.score, run.score, rtol=1e-3)
    assert as_function.metric == run.metric
    played = play(SavedRun.open(find(run.folder)), 3, 5, None)
    assert_allclose(corl_twins.evaluate(run.policy, episodes=3, seed=5).returns, played.returns, rtol=1e-3)


@ogbench_files.NEEDS_OGBENCH
def test_a_goal_conditioned_policy_is_given_goals(train: Callable[..., corl_twins.Run]) -> None:
    """In evaluations by the environment, from Python by the caller."""
    small = {"actor_hidden_dims": (8,), "batch_size": 4, "max_episode_steps": 20}
    run = train("goal_conditioned/gcbc", framework="torch", **small)
    observations = np.random.default_rng(1).normal(size=(4, 2))
    actions = run.policy(observations, goals=observations[::-1])
    assert actions.shape == (4, 2)
    assert_allclose(run.policy(observations[1], goals=observations[2]), actions[1], rtol=1e-4)
    both = {"observation": observations[1], "desired_goal": observations[2]}
    assert_allclose(run.policy(both), actions[1], rtol=1e-4)
    assert run.metric == "success_percent"

    def toward(seen: np.ndarray, goals: np.ndarray) -> np.ndarray:
        assert seen.shape == goals.shape == (5, 2)
        return np.clip(goals - seen, -1.0, 1.0)

    assert len(corl_twins.evaluate(toward, run.policy.env, episodes=5).returns) == 5
    with pytest.raises(InputError, match="learns a policy with goals: pass goals of the shape of the observations"):
        run.policy(observations)
    with pytest.raises(InputError, match=r"goals have shape \(2,\): pass \(4, 2\), as for observations"):
        run.policy(observations, goals=observations[0])


@pytest.mark.thorough
def test_arrays_take_the_place_of_a_name(train: Callable[..., corl_twins.Run]) -> None:
    """Equal arrays are the same dataset, so a run can continue with them; other arrays are refused."""
    dataset = corl_twins.make_dataset(arrays(), env="Pendulum-v1")
    assert len(dataset) == 300
    run = train("any_percent_bc", env=dataset)
    assert run.metric == "return_mean"
    assert run.policy.env == "Pendulum-v1"
    name = run.result["dataset"]["name"]
    assert name.startswith("arrays:")
    again = train("any_percent_bc", env=corl_twins.make_dataset(arrays(), env="Pendulum-v1"), seed=1)
    assert again.result["dataset"] == run.result["dataset"]
    with pytest.raises(InputError, match=r"hand them to corl_twins\.train again"):
        train("any_percent_bc", env=name)
    assert corl_twins.evaluate(lambda seen: np.zeros((1, 1)), dataset, episodes=1).lengths == [200]


def test_what_d4rl_makes_takes_the_place_of_a_name(train: Callable[..., corl_twins.Run]) -> None:
    """An object with `get_dataset()` is named after its own id if that is one of D4RL's."""
    raw = {**arrays(), "observations": np.zeros((300, 11)), "actions": np.zeros((300, 3)), "infos/qpos": np.zeros(300)}
    env = SimpleNamespace(spec=SimpleNamespace(id="hopper-medium-v2"), get_dataset=lambda: raw)
    run = train("any_percent_bc", env=env, max_timesteps=1, n_episodes=1)
    assert run.result["dataset"]["name"] == "hopper-medium-v2"
    assert run.metric == "d4rl_normalized_score"


def test_a_run_is_taken_up_where_it_stopped(
    train: Callable[..., corl_twins.Run], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its folder alone, with the settings that it began with."""

    def no_room(run: Run) -> None:
        raise InputError("no room")

    dataset = corl_twins.make_dataset(arrays(), env="Pendulum-v1")
    with monkeypatch.context() as patch:
        patch.setattr(Run, "_finish", no_room)
        with pytest.raises(InputError, match="no room"):
            train("any_percent_bc", env=dataset, seed=7)
    (left,) = folder.glob("*-s7-*")
    with pytest.raises(InputError, match="not a finished run's folder"):
        corl_twins.Run(left).score  # noqa: B018
    assert_array_equal(corl_twins.Run(left).metrics["step"], [3, 6])
    assert corl_twins.train("any_percent_bc", env=dataset, resume=left, progress=False).folder == left


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ({"algorithm": "ipl"}, "unknown algorithm 'ipl'; nearest: iql"),
        ({"framework": "tensorflow"}, "unknown framework 'tensorflow': choose 'torch' or 'jax'"),
        ({"discont": 0.9}, "discont is not a setting; did you mean discount"),
        ({"env": "hoper-medium-v2"}, "unknown dataset 'hoper-medium-v2'; nearest: hopper-medium-v2"),
        ({"env": 3}, r"a source must have D4RL's get_dataset\(\), int has none"),
        ({"env": {"rewards": [1.0]}}, "dict has none: name a dataset, or pass arrays through corl_twins.make_dataset"),
        ({"algorithm": "gcivl", "env": "nowhere.hdf5"}, "'nowhere.hdf5' does not exist: check its path"),
        ({"resume": "nowhere"}, "cannot read nowhere/config.yaml"),
    ],
)
def test_what_cannot_be_used_is_said_in_a_line(asked: dict, answer: str) -> None:
    with pytest.raises(corl_twins.InputError, match=answer) as caught:
        corl_twins.train(**{"algorithm": "awac", **SHORT, **asked})
    assert "\n" not in str(caught.value)


def test_bad_arrays_and_policies_are_refused() -> None:
    with pytest.raises(InputError, match="the dataset has no array 'terminals'"):
        corl_twins.make_dataset({name: values for name, values in arrays().items() if name != "terminals"})
    no_arrays: Any = 3
    with pytest.raises(InputError, match="a dataset is a mapping of names to arrays, not int: pass a dict"):
        corl_twins.make_dataset(no_arrays)
    with pytest.raises(InputError, match="there is no folder nowhere: name a run's folder"):
        corl_twins.Run(Path("nowhere"))
    with pytest.raises(InputError, match="names no environment: pass env"):
        corl_twins.evaluate(lambda seen: seen, corl_twins.make_dataset(arrays()))
    with pytest.raises(InputError, match=r"neither an environment nor a dataset .*write module:lab/Nope-v0"):
        corl_twins.evaluate(lambda seen: seen, "lab/Nope-v0")
    with pytest.raises(InputError, match="nor a dataset 'hoper-medium-v2'; use hopper-medium-v2"):
        corl_twins.evaluate(lambda seen: seen, "hoper-medium-v2")
    with pytest.raises(InputError, match="pass the name of an environment"):
        corl_twins.evaluate(lambda seen: seen)
    with pytest.raises(InputError, match=r"shape \(2, 3\): return \(2, 1\)"):
        corl_twins.evaluate(lambda seen: seen, "Pendulum-v1", episodes=2)
    with pytest.raises(InputError, match="return whole numbers"):
        corl_twins.evaluate(lambda seen: seen[:, 0], "CartPole-v1", episodes=2)
    with pytest.raises(InputError, match="there is no checkpoint at nowhere"):
        corl_twins.load_policy("nowhere")


def test_a_folder_of_runs_is_no_run(tmp_path: Path) -> None:
    """The message names one of its runs."""
    (tmp_path / "IQL-x-s0-jax-0123abcd").mkdir()
    with pytest.raises(InputError, match=f"name a run's folder such as {tmp_path}/IQL-x-s0-jax-0123abcd, or a .pt"):
        corl_twins.load_policy(tmp_path)


def test_a_policy_is_not_evaluated_where_it_does_not_fit(run: corl_twins.Run) -> None:
    with pytest.raises(InputError, match="name an environment like Pendulum"):
        corl_twins.evaluate(run.policy, "d4rl/hopper-v2", episodes=1)


@pytest.mark.thorough
def test_a_notebook_shows_a_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even though its output is not a terminal."""
    monkeypatch.setenv("PYTHONPATH", str(Path(corl_twins.__file__).resolve().parents[1]))
    settings = ", ".join(f"{name}={value!r}" for name, value in SHORT.items() if name != "progress")
    code = f"import corl_twins\ncorl_twins.train('any_percent_bc', framework='torch', {settings})"
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    (cell,) = NotebookClient(book, resources={"metadata": {"path": str(tmp_path)}}).execute().cells
    assert "6/6" in "".join(str(output.get("text", output.get("data"))) for output in cell.outputs)


@pytest.mark.thorough
def test_no_line_is_printed_without_progress(
    train: Callable[..., corl_twins.Run], capsys: pytest.CaptureFixture[str]
) -> None:
    train("any_percent_bc", env=PENDULUM)
    assert capsys.readouterr().out == ""
    train("any_percent_bc", env=PENDULUM, progress=True)
    assert "run folder: " in capsys.readouterr().out
