"""The repository's tables: a row for each of CORL's datasets, with CORL's values."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from shared.frameworks.twins import load_twin
from shared.names import OGBENCH, OGBENCH_TASKS, ogbench_set
from shared.runs.configs import dataset_row
from shared.runs.vocabulary import other_names
from tests.runs.test_vocabulary import CORL, files

REPOSITORY = Path(__file__).resolve().parents[2]
BUNDLED = "mini/hopper-medium-replay"


def rows(algorithm: str) -> dict[str, dict[str, Any]]:
    """One of our tables as plain YAML."""
    return yaml.safe_load((REPOSITORY / "configs" / f"{algorithm}.yaml").read_text())


@pytest.mark.parametrize("algorithm", CORL)
def test_the_tables_have_corls_datasets(algorithm: str) -> None:
    """No more and no fewer, and a bundled one; `tests/runs/test_vocabulary.py` compares every value."""
    found = [dataset for dataset in rows(algorithm) if not dataset.startswith(("mini/", OGBENCH))]
    assert any(dataset.startswith("mini/") for dataset in rows(algorithm))
    assert sorted(found) == sorted(dataset for dataset, _ in files(algorithm))


@pytest.mark.thorough
@pytest.mark.parametrize("algorithm", ["any_percent_bc", "fql", "ifql", "iql", "rebrac"])
def test_the_tables_have_ogbenchs_published_sets(algorithm: str) -> None:
    """Ten sets with one row each, for its five tasks; rewards and states are not changed."""
    mazes = ("antmaze-large", "antmaze-giant", "humanoidmaze-medium", "humanoidmaze-large", "antsoccer-arena")
    others = ("cube-single", "cube-double", "scene", "puzzle-3x3", "puzzle-4x4")
    sets = [*(f"{maze}-navigate" for maze in mazes), *(f"{other}-play" for other in others)]
    found = {dataset: row for dataset, row in rows(algorithm).items() if dataset.startswith(OGBENCH)}
    assert sorted(found) == sorted(f"{OGBENCH}{name}-singletask-v0" for name in sets)
    config_class = load_twin("torch", algorithm).TrainConfig
    for dataset, row in found.items():
        for task in OGBENCH_TASKS:
            named = dataset.replace("-v0", f"{task}-v0")
            assert ogbench_set(named)
            given = dataset_row(config_class, algorithm, named)
            assert given == row
            settings = config_class(**given)
            assert (settings.eval_freq, settings.n_episodes, settings.max_timesteps) == (100_000, 50, 1_000_000)
            assert not settings.normalize


def test_plass_table_has_the_datasets_of_d3rlpys_runs() -> None:
    """Its v0 data, the same values for v2, and the bundled datasets."""
    robots, kinds = ("halfcheetah", "hopper", "walker2d"), ("random", "medium", "medium-replay", "medium-expert")
    datasets = [f"{robot}-{kind}-v{version}" for robot in robots for kind in kinds for version in (0, 2)]
    mini = ("medium-expert", "mostly-expert")
    assert sorted(rows("plas")) == sorted([*datasets, *(f"mini/hopper-{kind}" for kind in mini)])
    for dataset in datasets:
        assert rows("plas")[dataset] == rows("plas")[dataset[:-1] + "0"]


def test_uwacs_row_holds_its_authors_settings() -> None:
    """Under their own names if these differ; 3000 epochs of 1000 updates, and 5000 steps in an evaluation."""
    authors = {"SN": True, "alpha_lr": 1e-3, "batch_size": 256, "beta": 0.5, "clip_bottom": 0.0, "clip_top": 1.0}
    authors |= {"discount": 0.99, "drop_rate": 0.1, "kernel_type": "gaussian", "mmd_sigma": 20.0, "num_samples": 100}
    authors |= {"num_samples_mmd_match": 4, "policy_lr": 1e-4, "q_penalty": 0.0, "qf_lr": 3e-4, "vae_lr": 3e-4}
    authors |= {"soft_target_tau": 5e-3, "target_mmd_thresh": 0.07, "use_exp_penalty": False, "use_exp_weight": True}
    authors |= {"var_Pi": True, "warmup_steps": 40_000}
    config_class = load_twin("torch", "uwac").TrainConfig
    config = config_class(**rows("uwac")["halfcheetah-medium-v0"])
    names = other_names([field.name for field in dataclasses.fields(config)], "uwac")
    assert {name: getattr(config, names.get(name, name)) for name in authors} == authors
    assert (config.max_timesteps, config.eval_freq, 1000 * config.n_episodes) == (3_000_000, 1000, 5000)


def test_balanced_replays_table_has_its_papers_kinds_of_data() -> None:
    """The networks are the same for all, and the whole of each dataset fits in."""
    kinds = ("random", "medium", "medium-replay", "medium-expert")
    datasets = [f"{env}-{kind}-v2" for env in ("halfcheetah", "hopper", "walker2d") for kind in kinds]
    found = rows("finetune/balanced_replay")
    assert sorted(found) == sorted([*datasets, "mini/hopper-medium-replay"])
    for dataset in datasets:
        settings = load_twin("torch", "finetune/balanced_replay").TrainConfig(**found[dataset])
        assert (settings.n_ensemble, settings.density_temperature, settings.online_share) == (5, 5.0, 0.75)
        assert (settings.offline_iterations, settings.online_iterations) == (1_000_000, 250_000)
        assert settings.buffer_size == 2_000_000


def test_rlpds_table_has_its_authors_commands() -> None:
    """AntMaze has three layers, a single critic in the target and no entropy in it; locomotion has the defaults."""
    kinds = ("umaze", "umaze-diverse", "medium-play", "medium-diverse", "large-play", "large-diverse")
    found = rows("finetune/rlpd")
    assert sorted(found) == sorted(
        [*(f"antmaze-{k}-v2" for k in kinds), "halfcheetah-expert-v0", "mini/pendulum-replay"]
    )
    del found["mini/pendulum-replay"]
    for dataset, row in found.items():
        c = load_twin("torch", "finetune/rlpd").TrainConfig(**row)
        own = (tuple(c.hidden_dims), c.n_target_critics, c.backup_entropy, c.online_iterations)
        maze = dataset.startswith("antmaze")
        assert own == (((256,) * 3, 1, False, 300_000) if maze else ((256,) * 2, 2, True, 250_000))
        assert (c.n_critics, c.critic_updates, c.batch_size, c.learning_starts) == (10, 20, 256, 5_000)
        assert (c.offline_iterations, c.eval_freq, c.n_episodes, c.critic_ln) == (0, 5_000, 10, True)


@pytest.mark.parametrize("algorithm", ["finetune/fql", "finetune/ifql"])
def test_the_tables_of_two_phases_have_fqls_papers_rows(algorithm: str) -> None:
    """A million updates, then a million steps, with 50 episodes every 100,000 updates; the whole dataset fits in."""
    sets = ("humanoidmaze-medium-navigate", "antsoccer-arena-navigate", "cube-double-play", "scene-play")
    found = {dataset: row for dataset, row in rows(algorithm).items() if dataset.startswith(OGBENCH)}
    assert sorted(found) == sorted(f"{OGBENCH}{name}-singletask-v0" for name in (*sets, "puzzle-4x4-play"))
    assert all(ogbench_set(dataset) for dataset in found)
    assert set(rows(algorithm)) - set(found) == {*(dataset for dataset, _ in files("finetune/iql")), BUNDLED}
    for dataset, row in rows(algorithm).items():
        if not dataset.startswith("mini/"):
            settings = load_twin("torch", algorithm).TrainConfig(**row)
            assert (settings.eval_freq, settings.n_episodes, settings.max_timesteps) == (100_000, 50, 2_000_000)
            assert (settings.normalize, settings.normalize_reward) == (False, True)
            assert settings.buffer_size > 2_000_000 * dataset.startswith(f"{OGBENCH}humanoidmaze")


NAVIGATE = {"eval_freq": 100_000, "n_episodes": 50}
WIDE = {"actor_lr": 3e-4, "critic_lr": 3e-4, "hidden_dim": 512, "actor_n_hiddens": 4, "critic_n_hiddens": 4}


@pytest.mark.parametrize(
    ("algorithm", "dataset", "row"),
    [
        ("plas", "hopper-random-v0", {"eval_freq": 1000, "action_flexibility": 0.5}),
        (
            "plas",
            "walker2d-medium-replay-v2",
            {"eval_freq": 1000, "action_flexibility": 0.05, "vae_hidden_dims": [128, 128]},
        ),
        ("acfql", "ogbench:puzzle-3x3-play-singletask-v0", {"sparse_rewards": True}),
        ("acfql", "ogbench:cube-triple-play-singletask-v0", {"buffer_size": 3_000_000}),
        ("fql", "ogbench:antmaze-giant-navigate-singletask-v0", {"discount": 0.995, "q_agg": "min"}),
        ("fql", "ogbench:puzzle-4x4-play-singletask-v0", {"distill_coef": 1000.0}),
        ("ifql", "ogbench:antsoccer-arena-navigate-singletask-v0", {"discount": 0.995, "n_action_samples": 64}),
        ("ifql", "door-cloned-v1", {"max_timesteps": 500_000, "n_action_samples": 128}),
        ("diffusion_ql", "walker2d-medium-v2", {"clip_grad": 1.0}),
        (
            "diffusion_ql",
            "antmaze-medium-play-v2",
            {
                "max_timesteps": 1_000_000,
                "n_episodes": 100,
                "reward_scaler": "shift",
                "reward_shift": -0.5,
                "reward_multiplier": 4.0,
                "n_target_actions": 10,
                "actor_lr": 1e-3,
                "eta": 2.0,
                "clip_grad": 2.0,
            },
        ),
        (
            "diffusion_ql",
            "kitchen-complete-v0",
            {"max_timesteps": 250_000, "n_episodes": 100, "eta": 0.005, "clip_grad": 9.0},
        ),
        ("model_based/mobile", "hopper-medium-replay-v2", {"penalty_coef": 0.1, "tune_temperature": False}),
        ("model_based/mobile", "walker2d-medium-expert-v2", {"rollout_length": 1, "penalty_coef": 1.5}),
        ("finetune/acfql", "ogbench:scene-play-singletask-v0", {"sparse_rewards": True}),
        ("finetune/acfql", "ogbench:cube-triple-play-singletask-v0", {"buffer_size": 3_000_001}),
        ("finetune/fql", "antmaze-umaze-v2", {}),
        ("finetune/fql", "antmaze-large-diverse-v2", {"distill_coef": 3.0}),
        ("finetune/fql", "door-cloned-v1", {"q_agg": "min", "distill_coef": 1000.0}),
        ("finetune/fql", "relocate-cloned-v1", {"q_agg": "min", "distill_coef": 10_000.0}),
        ("finetune/fql", "ogbench:antsoccer-arena-navigate-singletask-v0", {"distill_coef": 30.0, "discount": 0.995}),
        ("finetune/fql", "ogbench:scene-play-singletask-v0", {"distill_coef": 300.0}),
        ("finetune/ifql", "antmaze-large-play-v2", {}),
        ("finetune/ifql", "hammer-cloned-v1", {"n_action_samples": 128}),
        (
            "finetune/ifql",
            "ogbench:antsoccer-arena-navigate-singletask-v0",
            {"discount": 0.995, "n_action_samples": 64},
        ),
        (
            "iql",
            "ogbench:cube-double-play-singletask-v0",
            NAVIGATE | {"iql_tau": 0.9, "normalize": False, "inverse_temperature": 0.3},
        ),
        (
            "rebrac",
            "ogbench:humanoidmaze-large-navigate-singletask-v0",
            NAVIGATE | WIDE | {"batch_size": 256, "discount": 0.995, "actor_bc_coef": 0.01, "critic_bc_coef": 0.01},
        ),
    ],
)
def test_a_row_of_each_family(algorithm: str, dataset: str, row: dict[str, Any]) -> None:
    """Of the tables that are not CORL's."""
    assert rows(algorithm)[dataset] == row
