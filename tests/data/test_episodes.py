"""Episodes of the user's own data: cut where the file says so, the same everywhere; suspicious files are reported."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corl_torch import any_percent_bc
from shared import names
from shared.data import remarks, sources
from shared.data.episodes import of_rows, of_transitions
from shared.data.rewards import BestEpisodes, CorlRewards, return_range
from shared.data.scalers import episode_returns
from shared.data.sequences import split_trajectories
from shared.data.transitions import extract_transitions
from shared.errors import InputError
from shared.runs.settings import TransitionsConfig
from shared.runs.task import Preparation, load_task

WriteHDF5 = Callable[..., Path]
EPISODES, LENGTH = 40, 25
# A quarter of the episodes earn ten times as much, as their first state shows. Only time limits end them.
GOOD = np.arange(EPISODES) % 4 == 2


def limited(**changes: Any) -> dict[str, np.ndarray]:
    """Rows of episodes that end by time limits, shaped like Hopper's."""
    size, rng = EPISODES * LENGTH, np.random.default_rng(0)
    observations = rng.normal(size=(size, 11)).astype(np.float32)
    observations[:, 0] = np.repeat(GOOD, LENGTH)
    rows = {
        "observations": observations,
        "actions": rng.uniform(-1, 1, (size, 3)).astype(np.float32),
        "rewards": np.repeat(np.where(GOOD, 2.0, 0.2), LENGTH).astype(np.float32),
        "terminals": np.zeros(size, bool),
        "timeouts": np.arange(size) % LENGTH == LENGTH - 1,
    }
    return rows | changes


def test_all_that_speaks_of_episodes_cuts_them_alike() -> None:
    raw = limited()
    rows, transitions = of_rows(raw), of_transitions(raw)
    assert rows.lengths.tolist() == [LENGTH] * EPISODES
    assert transitions.lengths.tolist() == [LENGTH - 1] * EPISODES
    np.testing.assert_allclose(rows.returns, np.where(GOOD, 50, 5), rtol=1e-6)
    np.testing.assert_allclose(split_trajectories(raw).returns[rows.starts], rows.returns, rtol=1e-5)
    dataset = extract_transitions(raw)
    expected = pytest.approx((4.8, 48.0))
    assert return_range(dataset.rewards, dataset.terminals, episodes=transitions) == expected
    found = episode_returns(raw, None)
    assert (found.min(), found.max()) == expected


def test_the_time_limit_cuts_where_the_file_marks_none() -> None:
    raw = limited()
    del raw["timeouts"]
    np.testing.assert_array_equal(of_rows(raw, LENGTH).starts, of_rows(limited()).starts)
    assert len(np.unique(split_trajectories(raw, LENGTH).timesteps)) == LENGTH
    with pytest.raises(InputError, match="no array 'timeouts'"):
        split_trajectories(raw)


def test_an_episode_without_an_end_is_none() -> None:
    raw = limited(timeouts=np.arange(EPISODES * LENGTH) == 9)
    assert of_rows(raw).lengths.tolist() == [10]
    assert of_transitions(raw).lengths.tolist() == [9]
    raw["timeouts"][9] = False
    assert of_rows(raw).size == of_transitions(raw).size == 0


def test_the_best_episodes_are_good_ones(
    write_hdf5: WriteHDF5, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Measured on the data that a twin's own training loads."""
    found, twin = [], any_percent_bc

    def load_and_leave(*args: Any, **kwargs: Any) -> Any:
        found.append(load_task(*args, **kwargs))
        found[0].evaluator.close()
        raise InputError("enough")

    monkeypatch.setattr(twin, "load_task", load_and_leave)
    config = twin.TrainConfig(env=str(write_hdf5(**limited())), frac=0.25, normalize=False)
    with pytest.raises(InputError, match="enough"):
        twin.train(config)
    assert "240 of 960 transitions are kept" in capsys.readouterr().out
    assert len(found[0].dataset.rewards) == 10 * (LENGTH - 1)
    assert (found[0].dataset.observations[:, 0] == 1).all()


@pytest.mark.parametrize("env", ["d4rl/hopper-v2", "Reach-v0"])
def test_rewards_are_scaled_by_the_episodes_of_the_file(env: str) -> None:
    """For any family of tasks; if CORL's pieces count, only for locomotion."""
    dataset, episodes = extract_transitions(limited()), of_transitions(limited())
    scaled = CorlRewards().modified(dataset, env, episodes)
    np.testing.assert_allclose(scaled.rewards, dataset.rewards / 43.2 * 1000, rtol=1e-5)
    assert CorlRewards().change(dataset, env, episodes)(2.0) == pytest.approx(2 / 43.2 * 1000, rel=1e-6)
    equal = of_transitions(limited(rewards=np.ones(EPISODES * LENGTH, np.float32)))
    assert CorlRewards().modified(dataset, "Reach-v0", equal).rewards is dataset.rewards


def test_a_run_says_how_rewards_are_scaled(write_hdf5: WriteHDF5, capsys: pytest.CaptureFixture[str]) -> None:
    load_task(Config(env=str(write_hdf5(**limited()))), Preparation(rewards=CorlRewards())).evaluator.close()
    assert "40 episodes return 4.8 to 48, and then 111.111 to 1111.11" in capsys.readouterr().out


def test_corls_cuts_count_for_its_own_names() -> None:
    known = {name: names.has_published_results(name) for name in ("hopper-medium-v2", "mini/hopper-mostly-expert")}
    assert all(known.values())
    for name in ("mini/pendulum-replay", "minari:mujoco/hopper/medium-v0", "hopper-medium-v2.hdf5", "ogbench:any-v0"):
        assert not names.has_published_results(name)


@dataclasses.dataclass(frozen=True)
class Config(TransitionsConfig):
    """The settings of a run that can scale its rewards."""

    eval_env: str = "d4rl/hopper-v2"
    n_episodes: int = 1


def test_published_names_keep_corls_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bitwise equal, although the true episodes differ."""
    best = BestEpisodes(0.5, 1.0)
    loaded = load_task(Config(env="mini/hopper-mostly-expert"), Preparation(rewards=best))
    loaded.evaluator.close()
    raw = sources.read("mini/hopper-mostly-expert").raw
    pieces = best.modified(extract_transitions(raw), "").rewards
    np.testing.assert_array_equal(loaded.dataset.rewards, pieces)
    assert len(best.modified(extract_transitions(raw), "", of_transitions(raw)).rewards) != len(pieces)


# ---- suspicious files ----------------------------------------------------------------------------------------------


def said(raw: dict[str, np.ndarray], limit: int | None = None) -> list[str]:
    return list(remarks.on_episodes(raw, limit))


def as_terminals(*falls: int) -> dict[str, Any]:
    """Episodes whose time limits are stored as terminals, after some that ended after fewer steps."""
    rest = (EPISODES * LENGTH - sum(falls)) // LENGTH
    ends = np.cumsum([*falls, *[LENGTH] * rest]) - 1
    return limited(terminals=np.isin(np.arange(EPISODES * LENGTH), ends), timeouts=None)


@pytest.mark.parametrize(("falls", "words"), [((), "all 40 terminals"), ((7, 20, 23), "38 of 41 terminals")])
def test_time_limits_that_are_stored_as_terminals(
    falls: tuple[int, ...], words: str, write_hdf5: WriteHDF5, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = as_terminals(*falls)
    whole = {key: values for key, values in raw.items() if values is not None}
    (line,) = said(whole, 1000)
    assert line.startswith(f"{words} come after exactly 25 steps")
    path = str(write_hdf5(**raw))
    for stays in (True, False):
        loaded = load_task(Config(env=path, limits_as_terminals=stays), Preparation(normalise=False))
        loaded.evaluator.close()
        # The file's last row, a terminal, is not among the transitions.
        assert loaded.dataset.terminals.sum() == (raw["terminals"].sum() - 1 if stays else len(falls))
        assert ("come after exactly 25 steps" in capsys.readouterr().err) == stays


def test_a_setting_without_effect_is_refused(write_hdf5: WriteHDF5) -> None:
    for env in (str(write_hdf5()), "mini/hopper-mostly-expert"):
        with pytest.raises(InputError, match="leave limits_as_terminals out"):
            load_task(Config(env=env, limits_as_terminals=False))


@pytest.mark.parametrize(
    ("ends", "limit"),
    [
        ([5, 12, 30, 47, 80, 99], None),  # falls after various numbers of steps
        ([5, 12, 30, 47, 80, 99], 200),
        (np.cumsum([4, 5, 6] * 6) - 1, None),  # the same number of each length
        ([0, 1, 2, 3], None),  # bandits
    ],
)
def test_ordinary_terminals_are_none_of_that(ends: Any, limit: int | None) -> None:
    raw = limited(terminals=np.isin(np.arange(EPISODES * LENGTH), ends), timeouts=np.zeros(EPISODES * LENGTH, bool))
    assert not remarks.time_limits(raw, limit).any()


def walk(*ends: int) -> np.ndarray:
    """States (N, 11) that move slowly, and jump after the ends."""
    rng = np.random.default_rng(1)
    steps = 0.02 * rng.normal(size=(EPISODES * LENGTH, 11))
    starts = np.append(0, np.array(ends, int) + 1)
    steps[starts[starts < len(steps)]] = rng.normal(size=(int((starts < len(steps)).sum()), 11))
    states = np.cumsum(steps, axis=0)
    return (states - np.repeat(states[starts] - steps[starts], np.diff([*starts, len(states)]), axis=0)).astype("f4")


def test_terminals_inside_episodes() -> None:
    size = EPISODES * LENGTH
    goals = [120, 330, 555, 777, 901]
    marked = {"terminals": np.isin(np.arange(size), goals), "timeouts": np.arange(size) == size - 1}
    (line,) = said(limited(observations=walk(), **marked))
    assert "behind 5 of 5 terminals the states go on" in line
    assert said(limited(observations=walk(*goals), **marked)) == []
    reached = {"terminals": np.arange(size) % LENGTH > 20, "timeouts": np.zeros(size, bool)}
    assert "120 of 160 terminals follow another one directly" in said(limited(**reached))[0]


def test_a_last_piece_that_is_cut() -> None:
    timeouts = limited()["timeouts"].copy()
    timeouts[-1] = False
    (line,) = said(limited(timeouts=timeouts))
    assert line.startswith("the last 25 rows end in no terminal and no time limit")
    (line,) = said(limited(timeouts=np.zeros_like(timeouts)))
    assert line.startswith("no terminal and no time limit ends an episode")


def test_terminals_of_other_numbers() -> None:
    raw = limited()
    (line,) = said(raw | {"terminals": np.where(np.arange(len(raw["terminals"])) == 3, 0.5, 0.0)})
    assert line == "1 of the terminals are neither 0 nor 1, and end an episode as 1 does"


def test_good_data_are_not_talked_about() -> None:
    assert said(limited()) == []
    assert said(sources.read("mini/pendulum-replay").raw) == []
