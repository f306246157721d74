"""D4RL's reference scores and the environments of its datasets."""

import json
import math
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from shared import names
from shared.envs import robotics
from shared.envs.registry import D4RL_ENVS
from shared.envs.scores import Reference, Scale, env_of, reference, rounded, scale, score
from shared.errors import InputError

FACTS = json.loads((Path(names.__file__).parent / "d4rl_infos.json").read_text())
RANGES = {  # minimum and maximum of D4RL's table
    "d4rl/halfcheetah-v2": (-280.178953, 12135.0),
    "d4rl/hopper-v2": (-20.272305, 3234.3),
    "d4rl/walker2d-v2": (1.629008, 4592.3),
    "d4rl/ant-v2": (-325.6, 3879.7),
}


def test_the_reference_of_a_dataset() -> None:
    """Also of one without an environment, because reading it needs the time limit."""
    assert reference("hopper-medium-v2") == Reference(-20.272305, 3234.3, 1000, "d4rl/hopper-v2")
    assert reference("antmaze-umaze-v2") == Reference(0.0, 1.0, 700, None)


@pytest.mark.parametrize("agent", ["halfcheetah", "hopper", "walker2d", "ant"])
def test_all_locomotion_datasets_share_their_agents_environment(agent: str) -> None:
    """Whatever the policy and the version; antmaze is not scored in Ant's."""
    datasets = [name for name in FACTS if name.startswith(f"{agent}-")]
    assert len(datasets) >= 17
    assert {env_of(name) for name in datasets} == {f"d4rl/{agent}-v2"}
    ranges = {(reference(name).min_score, reference(name).max_score) for name in datasets}
    assert ranges == {RANGES[f"d4rl/{agent}-v2"]}


@pytest.mark.parametrize(
    ("dataset_id", "env_id"),
    [
        ("antmaze-umaze-v2", "robotics/antmaze-umaze"),
        ("antmaze-umaze-diverse-v2", "robotics/antmaze-umaze"),
        ("antmaze-medium-play-v2", "robotics/antmaze-medium"),
        ("antmaze-large-diverse-v0", "robotics/antmaze-large"),
        ("maze2d-umaze-v1", "robotics/maze2d-umaze"),
        ("maze2d-large-dense-v1", "robotics/maze2d-large-dense"),
        ("pen-human-v1", "robotics/pen"),
        ("relocate-cloned-v1", "robotics/relocate"),
    ],
)
def test_other_families_are_scored_in_gymnasium_robotics(dataset_id: str, env_id: str) -> None:
    """The dataset's name gives the maze and the reward."""
    assert env_of(dataset_id) == env_id
    assert reference(dataset_id).env_id is None


def test_every_dataset_with_an_environment_has_its_time_limit() -> None:
    """136 datasets: 80 of locomotion, 44 here, and 12 with none."""
    limits = {name: gymnasium.spec(robotics.ENV_OF[name]).max_episode_steps for name in robotics.ENV_OF}
    assert limits == {name: FACTS[name]["max_episode_steps"] for name in robotics.ENV_OF}
    none = {name for name in FACTS if reference(name).env_id is None} - set(robotics.ENV_OF)
    assert {name.rpartition("-")[0] for name in none if not name.startswith("maze2d")} == {
        *(f"{task}-human-longhorizon" for task in ("pen", "door", "hammer", "relocate")),
        *(f"kitchen-{data}" for data in ("complete", "partial", "mixed")),
    }
    assert {name for name in none if name.startswith("maze2d")} == {
        f"maze2d-{maze}{dense}-v0" for maze in ("open", "umaze", "medium", "large") for dense in ("", "-dense")
    }


@pytest.mark.parametrize("dataset_id", ["kitchen-mixed-v0", "maze2d-open-v0", "pen-human-longhorizon-v1"])
def test_missing_environments_are_named_with_the_way_out(dataset_id: str) -> None:
    """One line says so and names the options."""
    with pytest.raises(InputError, match=f"{dataset_id}.*set eval_env.*set eval_backend to d4rl") as caught:
        env_of(dataset_id)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("look_up", [reference, env_of])
@pytest.mark.parametrize(
    ("dataset_id", "near"),
    [("hopper-medium-v3", "hopper-medium-v2"), ("halfchetah-expert-v2", "halfcheetah-expert-v2")],
)
def test_unknown_datasets_are_answered_with_the_nearest(look_up: object, dataset_id: str, near: str) -> None:
    """One line names the datasets that the user may have meant."""
    with pytest.raises(InputError, match=near) as caught:
        look_up(dataset_id)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("env_id", D4RL_ENVS)
def test_reference_returns_score_0_and_100(env_id: str) -> None:
    """And returns half way between them score 50, in any shape, in float64."""
    low, high = RANGES[env_id]
    found = scale(env_id)(np.array([[low, high], [(low + high) / 2, 2 * high - low]], np.float64))
    np.testing.assert_allclose(found, [[0, 100], [50, 200]], atol=1e-12)
    assert found.dtype == np.float64
    assert scale(env_id)(np.float32(high)) == pytest.approx(100, abs=1e-5)
    assert scale(env_id)(np.zeros(3, np.float32)).dtype == np.float64


@pytest.mark.parametrize("env_id", ["Hopper-v4", "Hopper-v5", "Hopper-v2", "hopper-medium-v2"])
def test_returns_measured_elsewhere_have_no_score(env_id: str) -> None:
    """A stock environment is a different task."""
    assert scale(env_id) == Scale("return_mean", "return")


@pytest.mark.parametrize("env_id", robotics.ENVS)
def test_returns_in_gymnasium_robotics_are_never_called_d4rl_scores(env_id: str) -> None:
    """They are on D4RL's scale, but under another name."""
    found = scale(env_id)
    assert (found.metric, found.words) == (
        "normalized_return_not_d4rl",
        "normalised return (not D4RL: Gymnasium-Robotics)",
    )
    dataset = next(name for name in FACTS if robotics.ENV_OF.get(name) == env_id)
    np.testing.assert_array_equal(found([[1.0, 2.0]]), score([[1.0, 2.0]], dataset))


def test_scales_of_maze2d_are_those_of_its_version_and_reward() -> None:
    """Its reference scores are all different, while those of an antmaze or a hand are equal."""
    for env_id in robotics.ENVS:
        ranges = {reference(name)[:2] for name in FACTS if robotics.ENV_OF.get(name) == env_id}
        assert len(ranges) == 1
    assert scale("robotics/maze2d-umaze")(161.86) == pytest.approx(100)


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ((-0.031, 0.0042), "-0.031 0.004"),
        ((0.4231, 0.4), "0.42 0.40"),
        ((99.16, 0.04), "99.2 0.0"),
        ((-0.0, 0.0), "0.0 0.0"),
        ((math.nan, 2.0), "nan 2.0"),
    ],
)
def test_small_returns_keep_their_digits(values: tuple[float, ...], shown: str) -> None:
    """A mean and its deviation have the same number of decimals."""
    assert " ".join(rounded(*values)) == shown
