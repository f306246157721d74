"""D4RL's own environments wrapped in Gymnasium's interface, without the packages that they need."""

import sys
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

from shared.envs import genuine
from shared.envs.evaluation import Evaluator
from shared.envs.registry import is_d4rl_exact, make_env
from shared.envs.scores import reference, scale, score
from shared.errors import InputError
from shared.runs.task import Preparation, load_task
from tests.runs.test_task import Config


class Box:
    """A box like `gym`'s: the same names, but not a class of Gymnasium."""

    def __init__(self, size: int) -> None:
        """Bounds of -1 and 1."""
        self.low, self.high = -np.ones(size, np.float32), np.ones(size, np.float32)
        self.shape, self.dtype = (size,), np.dtype(np.float32)


class OldEnv:
    """The result of `gym.make` before version 0.26: `seed`, four values from `step`, a limit of 5 steps.

    Like D4RL's antmaze it is a proxy that passes no seed on, draws a goal from NumPy's global generator, and prints it.
    An episode is over if an action is negative.
    """

    observation_space, action_space = Box(2), Box(1)

    def __init__(self) -> None:
        """Starts unseeded."""
        self.unwrapped, self.wrapped_env, self.closed = self, SimpleNamespace(seed=self._seed_inner), False
        self.model = SimpleNamespace(body_mass=np.array([0.5, 1.5]))

    def _seed_inner(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def seed(self, seed: int) -> None:
        """Seeds only the proxy."""
        self.proxy_seed = seed

    def reset(self) -> np.ndarray:
        """Draws the start noise and the goal."""
        self.steps = 0
        self.state = np.array([self.rng.uniform(), np.random.uniform()])
        print("Target Goal:", self.state[1])
        return self.state

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, dict[str, Any]]:
        """Reports the end as `gym`'s time limit does."""
        self.steps += 1
        fell = bool(action[0] < 0)
        info = {"TimeLimit.truncated": not fell} if self.steps == 5 else {}
        return self.state, 2.0, fell or self.steps == 5, info

    def close(self) -> None:
        """Records it."""
        self.closed = True


def test_a_seed_decides_the_episode_and_leaves_the_global_generator_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Start and goal, though D4RL's antmaze seeds neither; training's draws continue as if nobody had evaluated."""
    env = genuine.GymEnv(OldEnv())
    np.random.seed(7)
    before = np.random.get_state()[1].copy()
    first, again, other = (env.reset(seed=seed)[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).all()
    np.testing.assert_array_equal(np.random.get_state()[1], before)
    assert capsys.readouterr().out == ""


def test_resets_in_several_threads_do_not_share_their_draws() -> None:
    """As when several seeds are evaluated at once: a seed determines the goals in every thread."""
    expected = [genuine.GymEnv(OldEnv()).reset(seed=seed)[0].tolist() for seed in range(200)]

    def starts(env: genuine.GymEnv) -> list[list[float]]:
        return [env.reset(seed=seed)[0].tolist() for seed in range(200)]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor() as pool:
            assert list(pool.map(starts, [genuine.GymEnv(OldEnv()) for _ in range(4)])) == [expected] * 4
    finally:
        sys.setswitchinterval(interval)


def test_terminals_are_told_from_time_limits() -> None:
    """One flag for both becomes two."""
    env = genuine.GymEnv(OldEnv())
    env.reset(seed=0)
    ends = [env.step(np.ones(1))[2:4] for _ in range(5)]
    assert ends == [(False, False)] * 4 + [(False, True)]
    env.reset(seed=0)
    assert env.step(-np.ones(1))[1:4] == (2.0, True, False)
    for _ in range(3):
        env.step(np.ones(1))
    assert env.step(-np.ones(1))[2:4] == (True, False)  # on the last step: a fall is no time limit


@pytest.fixture
def stubs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Packages that return an `OldEnv` for any name; yields the names requested so far."""
    made: list[str] = []
    gym, versions = ModuleType("gym"), ModuleType("mujoco_py")
    gym.make = lambda name: made.append(name) or OldEnv()
    versions.functions = SimpleNamespace(mj_version=lambda: 210)
    modules = {"gym": gym, "mujoco_py": versions, "d4rl": ModuleType("d4rl")}
    for name, module in (modules | {name: ModuleType(name) for name in genuine._MODULES}).items():
        monkeypatch.setitem(sys.modules, name, module)
    return made


def test_its_scores_are_d4rls(stubs: list[str]) -> None:
    """For the named dataset itself, since maze2d's reference scores differ between versions."""
    evaluator = Evaluator("gym/maze2d-umaze-v1", 2, 0)
    outcome = evaluator(lambda observations: np.ones((2, 1)))
    assert stubs == ["maze2d-umaze-v1"] * 2
    assert outcome.returns.tolist() == [10.0, 10.0]
    np.testing.assert_array_equal(scale("gym/maze2d-umaze-v1")(outcome.returns), score([10.0, 10.0], "maze2d-umaze-v1"))
    assert scale("gym/maze2d-umaze-v0").bounds == reference("maze2d-umaze-v0")[:2]
    assert scale("gym/maze2d-umaze-v0").metric == "d4rl_normalized_score"
    facts = {"env": "gym/maze2d-umaze-v1", "mujoco": "2.1.0", "total_mass": 2.0, "d4rl_exact": True}
    assert evaluator.fingerprint == facts | {"episodes": 2, "seed": 0}


def test_only_d4rls_own_ids_are_exact() -> None:
    """Other environments of `gym` have no D4RL score."""
    assert is_d4rl_exact("gym/kitchen-mixed-v0")
    assert not is_d4rl_exact("gym/Hopper-v2")
    assert scale("gym/Hopper-v2").bounds is None


@pytest.mark.parametrize("family", ["hopper-medium", "antmaze-umaze", "maze2d-umaze", "pen-human", "kitchen-mixed"])
def test_without_the_packages_one_line_names_the_fix(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gym", None)
    version = {"hopper-medium": 2, "antmaze-umaze": 2, "kitchen-mixed": 0}.get(family, 1)
    with pytest.raises(InputError, match=r"own .* cannot be made here .*install gym, mujoco_py and d4rl") as caught:
        make_env(f"gym/{family}-v{version}")
    assert "\n" not in str(caught.value)


def test_a_broken_mujoco_py_is_answered_in_one_line(stubs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It raises a bare exception of many lines when it does not find MuJoCo."""

    def fail(name: str) -> None:
        raise Exception("You appear to be missing MuJoCo.\nWe expected to find it here")

    monkeypatch.setattr(sys.modules["gym"], "make", fail)
    with pytest.raises(InputError, match=r"missing MuJoCo\. We expected.*docs/guides/environments\.md") as caught:
        make_env("gym/hopper-medium-v2")
    assert "\n" not in str(caught.value)


def test_every_dataset_of_d4rls_is_registered() -> None:
    """Every family has its module."""
    assert len(genuine.DATASETS) == 136
    assert {name.partition("-")[0] for name in genuine.DATASETS.values()} == set(genuine._MODULE_OF)
    assert all(env_id in gymnasium.registry for env_id in genuine.DATASETS)


def test_the_setting_chooses_the_datasets_own_environment(write_hdf5: Any, stubs: list[str], monkeypatch: Any) -> None:
    """`eval_backend` d4rl uses D4RL's name, from eval_env rather than from env."""
    monkeypatch.setattr(OldEnv, "observation_space", Box(11))
    monkeypatch.setattr(OldEnv, "action_space", Box(3))
    path = write_hdf5()
    task = load_task(
        Config(env=str(path), eval_env="hopper-medium-v2", eval_backend="d4rl"), Preparation(normalise=False)
    )
    assert task.evaluator.fingerprint["env"] == "gym/hopper-medium-v2"
    monkeypatch.setenv("D4RL_DATASET_DIR", str(path.parent))
    path.rename(path.parent / "hopper_medium-v2.hdf5")
    task = load_task(Config(env="hopper-medium-v2", eval_backend="d4rl"), Preparation(normalise=False))
    assert task.evaluator.fingerprint["env"] == "gym/hopper-medium-v2"


def test_the_setting_needs_a_name_of_d4rls(write_hdf5: Any) -> None:
    """Neither a file nor the bundled set has one."""
    with pytest.raises(InputError, match="no environment of D4RL's: set eval_env to one") as caught:
        load_task(Config(env=str(write_hdf5()), eval_backend="d4rl"))
    assert "\n" not in str(caught.value)
