"""The genuine d4rl package and our reader on the same files: the same arrays, to the byte."""

import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shared import names
from shared.data import download, sequences, transitions
from shared.envs.registry import D4RL_ENVS
from shared.envs.scores import reference, scale, score
from shared.errors import InputError
from tests.data.conformance.conftest import CORNERS, LIMIT, d4rl_environment, differences, example, same_bytes, write

pytestmark = pytest.mark.d4rl


def compare(d4rl: ModuleType, path: Path) -> None:
    """Fails unless both find the same transitions in the file."""
    theirs = d4rl.qlearning_dataset(d4rl_environment(d4rl, path))
    if len(theirs["rewards"]) == 0:
        with pytest.raises(InputError, match="holds no transition"):
            transitions.extract_transitions(transitions.read_hdf5(path), LIMIT)
        return
    assert differences(theirs, lambda: transitions.extract_transitions(transitions.read_hdf5(path), LIMIT)) == []


@pytest.mark.parametrize("corner", CORNERS)
def test_the_transitions_of_every_corner_are_d4rls(d4rl: ModuleType, tmp_path: Path, corner: str) -> None:
    compare(d4rl, write(tmp_path / "corner.hdf5", CORNERS[corner]))


@st.composite
def files(draw: st.DrawFn) -> dict[str, Any]:
    """Arrays of a file with any flags, in any types and shapes that D4RL's files use."""
    rows = draw(st.integers(2, 40))
    # Large enough for rounding to show, but not so large that our reader refuses them because of float32.
    kinds = {np.float32: st.floats(-(2.0**49), 2.0**49, width=32), np.float64: st.floats(-(2.0**49), 2.0**49)}
    shapes = {"observations": (rows, draw(st.integers(1, 4))), "actions": (rows, draw(st.integers(1, 3)))}
    shapes["rewards"] = draw(st.sampled_from([(rows,), (rows, 1)]))
    changes: dict[str, Any] = {}
    for key, shape in shapes.items():
        kind = draw(st.sampled_from(list(kinds)))
        changes[key] = draw(hnp.arrays(kind, shape, elements=kinds[kind]))
    for key in ("terminals", "timeouts"):
        shape = draw(st.sampled_from([(rows,), (rows, 1)]))
        kind = draw(st.sampled_from([bool, np.float32, np.uint8]))
        changes[key] = draw(hnp.arrays(kind, shape, elements=st.sampled_from([0, 0, 1])))
    if draw(st.booleans()):
        changes["timeouts"] = None
    if draw(st.booleans()):
        changes |= {"metadata/iteration": np.int32(7), "next_observations": np.zeros(shapes["observations"])}
    return example(rows, **changes)


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(raw=files())
def test_the_transitions_of_any_file_are_d4rls(
    d4rl: ModuleType, tmp_path_factory: pytest.TempPathFactory, raw: dict[str, Any]
) -> None:
    compare(d4rl, write(tmp_path_factory.getbasetemp() / "any.hdf5", raw))


@pytest.mark.parametrize("corner", [corner for corner, raw in CORNERS.items() if "timeouts" in raw])
def test_episodes_end_where_d4rls_sequences_end(d4rl: ModuleType, tmp_path: Path, corner: str) -> None:
    path = write(tmp_path / "corner.hdf5", CORNERS[corner])
    env = d4rl_environment(d4rl, path)
    # sequence_dataset cannot split a file without rows.
    arrays = {key: values for key, values in env.get_dataset().items() if not key.startswith("metadata")}
    theirs = list(d4rl.sequence_dataset(env, dataset=arrays))
    raw = transitions.read_hdf5(path)
    if not theirs:
        with pytest.raises(InputError, match="no complete trajectory"):
            sequences.split_trajectories(raw)
        return
    ours, lengths = sequences.split_trajectories(raw), [len(episode["rewards"]) for episode in theirs]
    assert sequences.trajectory_lengths(ours).tolist() == lengths
    for key in ("observations", "actions"):
        assert same_bytes(getattr(ours, key), np.concatenate([episode[key] for episode in theirs]).astype(np.float32))
    assert ours.timesteps.tolist() == [step for length in lengths for step in range(length)]
    to_go = [sequences.returns_to_go(episode["rewards"].astype(np.float32)) for episode in theirs]
    assert same_bytes(ours.returns, np.concatenate(to_go))


def test_reference_scores_and_addresses_are_d4rls(d4rl: ModuleType) -> None:
    named = names.D4RL_FACTS.keys() & d4rl.infos.REF_MIN_SCORE.keys()
    assert len(named) == 115, "d4rl has the other 21 in the registrations of its environments only"
    for name in named:
        ours = reference(name)
        theirs = (d4rl.infos.REF_MIN_SCORE[name], d4rl.infos.REF_MAX_SCORE[name])
        assert (ours.min_score, ours.max_score) == theirs, name
        assert d4rl.infos.DATASET_URLS[name] == download.HOSTS[-1] + names.D4RL_FACTS[name]["url_path"]


def test_normalised_scores_are_d4rls(d4rl: ModuleType) -> None:
    returns = np.random.default_rng(0).normal(1000, 2000, size=10_000)
    scored = [name for name in d4rl.infos.REF_MIN_SCORE if name in names.D4RL_FACTS]
    assert {reference(name).env_id for name in scored} - {None} == set(D4RL_ENVS)
    for name in scored:
        theirs = d4rl.get_normalized_score(name, returns) * 100
        assert same_bytes(score(returns, name), theirs), name
        if env_id := reference(name).env_id:
            assert same_bytes(scale(env_id)(returns), theirs), name


def test_ours_is_fifteen_times_as_fast_on_a_million_rows(d4rl: ModuleType) -> None:
    rows = 1_000_000
    raw = example(rows, timeouts=np.arange(rows) % 1000 == 999, terminals=np.arange(rows) % 2000 == 777)
    rng = np.random.default_rng(0)
    raw |= {
        "observations": rng.normal(size=(rows, 17)).astype("f4"),
        "actions": rng.normal(size=(rows, 6)).astype("f4"),
    }
    ours = []
    for _ in range(3):
        start = time.perf_counter()
        transitions.extract_transitions(raw)
        ours.append(time.perf_counter() - start)
    start = time.perf_counter()
    theirs = d4rl.qlearning_dataset(None, dataset=raw)
    seconds = time.perf_counter() - start
    print(f"a million rows: d4rl {seconds:.2f} s, ours {min(ours):.3f} s, {seconds / min(ours):.0f} times as fast")
    assert differences(theirs, lambda: transitions.extract_transitions(raw)) == []
    assert seconds >= 15 * min(ours)
