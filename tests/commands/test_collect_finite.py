"""Datasets of finite actions that `corl-twins collect` makes with DQN, and the three bundled CartPole sets."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from shared.commands.collect import Collection, main, parse_arguments
from shared.commands.collecting import agents
from shared.commands.collecting.choosing import Snapshot
from shared.commands.common import ended
from shared.data import sources
from shared.envs.scores import REFERENCES, scale
from shared.frameworks.saved_run import SavedRun

SHORT = ["--steps", "600", "--random_steps", "100", "--batch_size", "8", "--hidden_dim", "16", "--eval_freq", "200"]


@pytest.mark.thorough
def test_finite_actions_are_collected_by_dqn(tmp_path: Path) -> None:
    """Every row of the training, and for its policies whole episodes whose last row says how they ended."""
    made = {}
    for kind in ("full-replay", "medium-expert"):
        made[kind] = tmp_path / f"{kind}.hdf5"
        places = ["--work_dir", str(tmp_path / "work"), "--output", str(made[kind])]
        assert ended(main, [f"CartPole-v1-{kind}", *SHORT, "--size", "150", *places]) == 0
    replay, policies = (sources.read(str(path)) for path in made.values())
    assert policies.attributes["algorithm"] == "Double DQN"
    assert policies.attributes["training_settings"].startswith("{")
    assert {"expert_return_mean", "medium_training_steps", "n_actions"} <= policies.attributes.keys()
    ends = policies.raw["terminals"] | policies.raw["timeouts"]
    assert ends[-1]
    assert len(policies.raw["rewards"]) >= 300
    assert replay.raw["actions"].dtype == np.int64
    assert len(replay.raw["rewards"]) <= 150
    checkpoint = next(path for path in (tmp_path / "work").rglob("checkpoint*") if path.is_file())
    assert random_share(checkpoint) == pytest.approx(agents.EPSILON / 2, abs=0.01)


def random_share(checkpoint: Path) -> float:
    """How often a recorded policy deviates from the best action, as half of its random actions do."""
    observations = np.random.default_rng(1).normal(size=(4000, 4)).astype(np.float32)
    acting = agents.FiniteDQN("jax", "CartPole-v1", 0, {}).acting(checkpoint, 4, 2, 1.0)
    best = SavedRun.open(checkpoint).trainer().act(observations)
    return float(np.mean(acting(observations, np.random.default_rng(2)) != best))


@pytest.mark.parametrize(("by_chance", "stated"), [(21.0, (21.0, 500.0)), (500.0, None)])
def test_scores_are_between_random_play_and_the_expert(
    by_chance: float, stated: tuple[float, float] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file states no range if the expert is no better."""
    collection = Collection(parse_arguments(["CartPole-v1-medium", "--work_dir", str(tmp_path)]))
    chosen = {"medium": Snapshot(1, 160.0, 1.0), "expert": Snapshot(2, 500.0, 0.0)}
    monkeypatch.setattr(collection, "_paths", {1: tmp_path, 2: tmp_path})
    monkeypatch.setitem(vars(collection), "_chosen", chosen)
    monkeypatch.setattr(collection, "_rate", lambda step, parts: Snapshot(step, by_chance, 1.0))
    assert collection.references() == ({} if stated is None else dict(zip(REFERENCES, stated, strict=True)))


def test_a_random_set_of_finite_actions_is_of_uniform_ones(tmp_path: Path) -> None:
    """It needs no training."""
    output = tmp_path / "random.hdf5"
    places = ["--work_dir", str(tmp_path / "w"), "--output", str(output)]
    assert ended(main, ["Acrobot-v1-random", "--size", "900", *places]) == 0
    source = sources.read(str(output))
    shares = np.bincount(source.raw["actions"], minlength=3) / len(source.raw["actions"])
    np.testing.assert_allclose(shares, 1 / 3, atol=0.05)
    assert source.attributes["n_actions"] == 3
    assert source.attributes["policy"] == "random actions"
    assert source.attributes["command"] == "corl-twins collect Acrobot-v1-random --seed 0 --framework jax --size 900"
    assert source.attributes.keys().isdisjoint({"ref_min_score", "algorithm", "training_seed", "training_settings"})
    assert not (tmp_path / "w" / "runs").exists()


@pytest.mark.parametrize(
    ("game", "n_actions", "by_chance", "greatest"), [("cartpole", 2, 21.5, 500), ("spaceinvaders", 4, 4.1, 22.7)]
)
def test_the_sets_of_finite_actions_are_of_one_training(
    game: str, n_actions: int, by_chance: float, greatest: float
) -> None:
    """Their returns on the scale from random play to the expert, which all three files state identically."""
    sets = {kind: sources.read(f"mini/{game}-{kind}") for kind in ("replay", "medium", "expert")}
    facts = {kind: source.attributes for kind, source in sets.items()}
    for fact in ("env_id", "n_actions", "training_seed", "training_settings", "ref_min_score", "ref_max_score"):
        assert len({told[fact] for told in facts.values()}) == 1, fact
    assert facts["replay"]["n_actions"] == n_actions
    assert facts["replay"]["ref_min_score"] == pytest.approx(by_chance, abs=0.05)
    assert facts["expert"]["ref_max_score"] == pytest.approx(greatest, abs=0.05)
    score = scale(facts["medium"]["env_id"], facts["medium"])
    assert 10 < score(facts["medium"]["medium_return_mean"]) < 60
    assert score(facts["expert"]["expert_return_mean"]) == pytest.approx(100, abs=5)
    assert sets["medium"].raw["terminals"].sum() > 50


def test_sets_of_images_are_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are stored as bits, with many rows per chunk; read back they are the game's bytes, as are Minari's."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    output = tmp_path / "random.hdf5"
    places = ["--work_dir", str(tmp_path / "w"), "--output", str(output)]
    assert ended(main, ["MinAtar/Breakout-v1-random", "--size", "200", *places]) == 0
    with h5py.File(output) as file:
        images, following = file["observations"], file["next_observations"]
        assert images.dtype == following.dtype == np.bool_
        assert images.chunks == images.shape
        assert file.attrs["minatar_version"]
    raw = sources.read(str(output)).raw
    assert raw["observations"].shape[1:] == (4, 10, 10)
    assert set(np.unique(raw["observations"])) == {0, 255}
    given = [*places[:2], "--size", "200", "--format", "minari", "--output", "collected/breakout/random-v0"]
    assert ended(main, ["MinAtar/Breakout-v1-random", *given]) == 0
    assert ended(main, ["MinAtar/Breakout-v1-random", *given]) == 2, "there is a set of that name"
    of_minari = sources.read("minari:collected/breakout/random-v0")
    assert of_minari.attributes["env_id"] == "MinAtar/Breakout-v1"
    np.testing.assert_array_equal(of_minari.raw["observations"], raw["observations"])
    np.testing.assert_array_equal(of_minari.raw["actions"], raw["actions"])
