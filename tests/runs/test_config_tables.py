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

REPOSITORY = Path(__file__).resolve().parents[2]


def rows(algorithm: str) -> dict[str, dict[str, Any]]:
    """One of our tables as plain YAML."""
    return yaml.safe_load((REPOSITORY / "configs" / f"{algorithm}.yaml").read_text())


@pytest.mark.parametrize("algorithm", ["any_percent_bc", "td3_bc", "rebrac", "awac", "cql", "iql"])
def test_the_tables_have_corls_datasets(algorithm: str) -> None:
    kinds = ("random", "medium", "medium-replay", "medium-expert", "expert", "full-replay")
    mazes = ("umaze", "umaze-diverse", "medium-play", "medium-diverse", "large-play", "large-diverse")
    datasets = [f"{robot}-{kind}-v2" for robot in ("halfcheetah", "hopper", "walker2d") for kind in kinds]
    datasets += [f"antmaze-{maze}-v2" for maze in mazes]
    rewards = ("",) if algorithm == "rebrac" else ("", "-dense")
    datasets += [f"maze2d-{size}{kind}-v1" for size in ("umaze", "medium", "large") for kind in rewards]
    hands = ("pen", "door", "hammer", "relocate")
    datasets += [f"{hand}-{kind}-v1" for hand in hands for kind in ("human", "cloned", "expert")]
    found = [dataset for dataset in rows(algorithm) if not dataset.startswith(("mini/", OGBENCH))]
    assert sorted(found) == sorted(datasets)
    assert {"mini/hopper-mostly-expert", "mini/hopper-medium-expert"} <= set(rows(algorithm))


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


def test_the_ensembles_tables_have_corls_datasets() -> None:
    robots, hands = ("halfcheetah", "hopper", "walker2d"), ("pen", "door", "hammer", "relocate")
    mazes = ("umaze", "umaze-diverse", "medium-play", "medium-diverse", "large-play", "large-diverse")
    datasets = [f"{robot}-{kind}-v2" for robot in robots for kind in ("medium", "medium-replay", "medium-expert")]
    datasets += [f"antmaze-{maze}-v2" for maze in mazes]
    datasets += [f"maze2d-{size}-v1" for size in ("umaze", "medium", "large")]
    datasets += [f"{hand}-{kind}-v1" for hand in hands for kind in ("human", "cloned", "expert")]
    kinds = ("random", "medium", "medium-replay", "medium-expert", "expert", "full-replay")
    locomotion = [f"{robot}-{kind}-v2" for robot in robots for kind in kinds]
    for algorithm, expected in (("sac_n", datasets), ("edac", datasets), ("lb_sac", locomotion)):
        assert sorted(rows(algorithm)) == sorted([*expected, "mini/hopper-medium-replay", "mini/pendulum-replay"])


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


FINETUNED = [f"finetune/{name}" for name in ("awac", "cal_ql", "cql", "fql", "iql", "rebrac", "spot")]


@pytest.mark.parametrize("algorithm", FINETUNED)
def test_the_tables_of_two_phases_have_corls_datasets(algorithm: str) -> None:
    mazes = ("umaze", "umaze-diverse", "medium-play", "medium-diverse", "large-play", "large-diverse")
    datasets = [f"antmaze-{maze}-v2" for maze in mazes]
    datasets += [f"{hand}-cloned-v1" for hand in ("pen", "door", "hammer", "relocate")]
    found = [dataset for dataset in rows(algorithm) if not dataset.startswith(OGBENCH)]
    assert sorted(found) == sorted([*datasets, "mini/hopper-medium-replay"])


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


def test_fqls_table_of_two_phases_has_its_papers_rows() -> None:
    """A million updates, then a million steps, with 50 episodes every 100,000 updates; the whole dataset fits in."""
    sets = ("humanoidmaze-medium-navigate", "antsoccer-arena-navigate", "cube-double-play", "scene-play")
    found = {dataset: row for dataset, row in rows("finetune/fql").items() if dataset.startswith(OGBENCH)}
    assert sorted(found) == sorted(f"{OGBENCH}{name}-singletask-v0" for name in (*sets, "puzzle-4x4-play"))
    assert all(ogbench_set(dataset) for dataset in found)
    for dataset, row in rows("finetune/fql").items():
        if not dataset.startswith("mini/"):
            settings = load_twin("torch", "finetune/fql").TrainConfig(**row)
            assert (settings.eval_freq, settings.n_episodes, settings.max_timesteps) == (100_000, 50, 2_000_000)
            assert (settings.normalize, settings.normalize_reward) == (False, True)
            assert settings.buffer_size > 2_000_000 * dataset.startswith(f"{OGBENCH}humanoidmaze")


# Settings that CORL's two-phase CQL and Cal-QL share in AntMaze
CQL_ONLINE_ANTMAZE = {
    "buffer_size": 10_000_000,
    "eval_freq": 50_000,
    "n_episodes": 100,
    "actor_lr": 1e-4,
    "cql_alpha": 5.0,
    "cql_alpha_online": 5.0,
    "cql_lagrange": True,
    "cql_target_action_gap": 0.8,
    "cql_max_target_backup": True,
    "cql_clip_diff_min": -200.0,
    "normalize": False,
    "normalize_reward": True,
    "reward_scale": 10.0,
    "reward_bias": -5.0,
    "critic_n_hiddens": 5,
}


@pytest.mark.parametrize(
    ("algorithm", "dataset", "row"),
    [
        ("plas", "hopper-random-v0", {"eval_freq": 1000, "action_flexibility": 0.5}),
        (
            "plas",
            "walker2d-medium-replay-v2",
            {"eval_freq": 1000, "action_flexibility": 0.05, "vae_hidden_dims": [128, 128]},
        ),
        ("sac_n", "hopper-medium-v2", {"n_critics": 500}),
        ("sac_n", "halfcheetah-medium-v2", {}),
        ("sac_n", "maze2d-large-v1", {"n_critics": 25, "buffer_size": 4_000_000}),
        ("sac_n", "door-expert-v1", {"n_critics": 100, "buffer_size": 2_000_000}),
        ("edac", "walker2d-medium-expert-v2", {"eta": 5.0, "buffer_size": 2_000_000}),
        ("edac", "antmaze-umaze-v2", {}),
        ("edac", "pen-human-v1", {"n_critics": 20, "eta": 1000.0, "buffer_size": 2_000_000}),
        ("edac", "relocate-cloned-v1", {"n_critics": 50, "eta": 200.0, "buffer_size": 2_000_000}),
        (
            "lb_sac",
            "hopper-medium-v2",
            {"n_critics": 25, "critic_ln": True, "max_timesteps": 200_000},
        ),
        ("lb_sac", "walker2d-expert-v2", {"n_critics": 30, "edac_init": True, "max_timesteps": 350_000}),
        ("td3_bc", "hopper-medium-v2", {"buffer_size": 10_000_000}),
        ("td3_bc", "relocate-expert-v1", {"buffer_size": 10_000_000}),
        ("td3_bc", "maze2d-large-dense-v1", {"buffer_size": 10_000_000, "n_episodes": 100}),
        (
            "td3_bc",
            "antmaze-large-diverse-v2",
            {"buffer_size": 10_000_000, "normalize_reward": True, "n_episodes": 100},
        ),
        ("rebrac", "walker2d-random-v2", {"actor_bc_coef": 0.01, "critic_bc_coef": 0.0}),
        (
            "rebrac",
            "antmaze-large-play-v2",
            {
                "actor_lr": 3e-4,
                "critic_lr": 5e-5,
                "batch_size": 256,
                "discount": 0.999,
                "normalize_reward": True,
                "n_episodes": 100,
                "eval_freq": 50_000,
                "actor_bc_coef": 0.002,
                "critic_bc_coef": 0.001,
            },
        ),
        (
            "rebrac",
            "maze2d-large-v1",
            {
                "actor_lr": 3e-4,
                "critic_lr": 3e-4,
                "batch_size": 256,
                "n_episodes": 100,
                "actor_bc_coef": 0.003,
                "critic_bc_coef": 0.001,
            },
        ),
        (
            "rebrac",
            "relocate-cloned-v1",
            {
                "actor_lr": 3e-4,
                "critic_lr": 3e-4,
                "batch_size": 256,
                "actor_bc_coef": 0.1,
                "critic_bc_coef": 0.01,
            },
        ),
        ("any_percent_bc", "hopper-random-v2", {"buffer_size": 10_000_000, "discount": 1.0}),
        ("any_percent_bc", "maze2d-large-v1", {"buffer_size": 10_000_000, "discount": 1.0, "n_episodes": 100}),
        (
            "awac",
            "walker2d-medium-replay-v2",
            {"buffer_size": 10_000_000, "advantage_temperature": 0.3333, "deterministic_torch": True},
        ),
        (
            "awac",
            "antmaze-umaze-v2",
            {"buffer_size": 10_000_000, "advantage_temperature": 0.1, "normalize_reward": True, "n_episodes": 100},
        ),
        ("awac", "hammer-human-v1", {"buffer_size": 10_000_000, "advantage_temperature": 0.1}),
        ("iql", "walker2d-medium-v2", {"buffer_size": 10_000_000}),
        ("iql", "hopper-medium-expert-v2", {"buffer_size": 10_000_000, "inverse_temperature": 6.0, "iql_tau": 0.5}),
        (
            "iql",
            "hopper-medium-v2",
            {"buffer_size": 10_000_000, "iql_deterministic": True, "normalize_reward": True, "tau": 0.001},
        ),
        ("iql", "pen-human-v1", {"buffer_size": 10_000_000, "iql_tau": 0.8, "actor_dropout": 0.1}),
        (
            "finetune/awac",
            "antmaze-large-play-v2",
            {
                "deterministic_torch": False,
                "buffer_size": 10_000_000,
                "advantage_temperature": 0.1,
                "normalize_reward": True,
                "eval_freq": 50_000,
                "n_episodes": 100,
            },
        ),
        (
            "finetune/awac",
            "door-cloned-v1",
            {"deterministic_torch": False, "buffer_size": 10_000_000, "advantage_temperature": 0.1, "eval_freq": 5000},
        ),
        (
            "finetune/iql",
            "antmaze-large-play-v2",
            {"buffer_size": 10_000_000, "inverse_temperature": 10.0, "iql_tau": 0.9, "normalize_reward": True},
        ),
        (
            "finetune/iql",
            "door-cloned-v1",
            {"buffer_size": 10_000_000, "actor_dropout": 0.1, "iql_tau": 0.8, "eval_freq": 5000, "n_episodes": 10},
        ),
        (
            "finetune/spot",
            "antmaze-medium-play-v2",
            {
                "buffer_size": 2_000_000,
                "eval_freq": 50_000,
                "n_episodes": 100,
                "actor_init_w": 1e-3,
                "critic_init_w": 3e-3,
                "lambd": 0.05,
                "lambd_cool": True,
            },
        ),
        (
            "finetune/spot",
            "pen-cloned-v1",
            {
                "buffer_size": 2_000_000,
                "actor_init_w": 1e-3,
                "critic_init_w": 3e-3,
                "lambd_cool": True,
                "lambd_end": 0.5,
                "normalize_reward": False,
                "online_discount": 0.99,
            },
        ),
        (
            "finetune/rebrac",
            "antmaze-medium-diverse-v2",
            {
                "critic_lr": 5e-5,
                "discount": 0.999,
                "normalize_reward": True,
                "eval_freq": 50_000,
                "n_episodes": 100,
                "seed": 0,
                "actor_bc_coef": 0.001,
                "critic_bc_coef": 0.0,
            },
        ),
        (
            "finetune/rebrac",
            "relocate-cloned-v1",
            {"eval_freq": 50_000, "n_episodes": 100, "seed": 0, "actor_bc_coef": 0.1, "critic_bc_coef": 0.01},
        ),
        (
            "finetune/cql",
            "antmaze-medium-diverse-v2",
            CQL_ONLINE_ANTMAZE,
        ),
        (
            "finetune/cal_ql",
            "antmaze-large-play-v2",
            CQL_ONLINE_ANTMAZE | {"is_sparse_reward": True},
        ),
        (
            "finetune/cql",
            "relocate-cloned-v1",
            {
                "buffer_size": 10_000_000,
                "actor_lr": 1e-4,
                "cql_alpha": 1.0,
                "cql_alpha_online": 1.0,
                "cql_target_action_gap": 0.8,
                "cql_max_target_backup": True,
                "cql_clip_diff_min": -200.0,
                "normalize": False,
                "critic_n_hiddens": 3,
            },
        ),
        ("fql", f"{OGBENCH}antmaze-giant-navigate-singletask-v0", {"discount": 0.995, "q_agg": "min"}),
        ("fql", f"{OGBENCH}puzzle-4x4-play-singletask-v0", {"distill_coef": 1000.0}),
        ("ifql", f"{OGBENCH}antsoccer-arena-navigate-singletask-v0", {"discount": 0.995, "n_action_samples": 64}),
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
        ("finetune/fql", "antmaze-umaze-v2", {}),
        ("finetune/fql", "antmaze-large-diverse-v2", {"distill_coef": 3.0}),
        ("finetune/fql", "door-cloned-v1", {"q_agg": "min", "distill_coef": 1000.0}),
        ("finetune/fql", "relocate-cloned-v1", {"q_agg": "min", "distill_coef": 10_000.0}),
        ("finetune/fql", f"{OGBENCH}antsoccer-arena-navigate-singletask-v0", {"distill_coef": 30.0, "discount": 0.995}),
        ("finetune/fql", f"{OGBENCH}scene-play-singletask-v0", {"distill_coef": 300.0}),
        (
            "iql",
            f"{OGBENCH}cube-double-play-singletask-v0",
            {"iql_tau": 0.9, "normalize": False, "eval_freq": 100_000, "n_episodes": 50, "inverse_temperature": 0.3},
        ),
        (
            "rebrac",
            f"{OGBENCH}humanoidmaze-large-navigate-singletask-v0",
            {
                "actor_lr": 3e-4,
                "critic_lr": 3e-4,
                "hidden_dim": 512,
                "actor_n_hiddens": 4,
                "critic_n_hiddens": 4,
                "batch_size": 256,
                "eval_freq": 100_000,
                "n_episodes": 50,
                "discount": 0.995,
                "actor_bc_coef": 0.01,
                "critic_bc_coef": 0.01,
            },
        ),
        ("cql", "hopper-random-v2", {"buffer_size": 10_000_000, "reward_scale": 1.0, "reward_bias": 0.0}),
        (
            "cql",
            "hopper-medium-v2",
            {"buffer_size": 10_000_000, "reward_scale": 1.0, "reward_bias": 0.0, "normalize_reward": True},
        ),
        (
            "cql",
            "door-cloned-v1",
            {
                "buffer_size": 10_000_000,
                "reward_scale": 1.0,
                "reward_bias": 0.0,
                "actor_lr": 1e-4,
                "cql_alpha": 1.0,
            },
        ),
        (
            "cql",
            "maze2d-umaze-v1",
            {
                "buffer_size": 10_000_000,
                "reward_scale": 1.0,
                "reward_bias": 0.0,
                "cql_lagrange": True,
                "cql_target_action_gap": 5.0,
                "n_episodes": 100,
            },
        ),
        (
            "cql",
            "antmaze-medium-play-v2",
            {
                "buffer_size": 10_000_000,
                "normalize": False,
                "normalize_reward": True,
                "reward_scale": 10.0,
                "reward_bias": -5.0,
                "actor_lr": 1e-4,
                "critic_n_hiddens": 5,
                "cql_alpha": 5.0,
                "cql_lagrange": True,
                "cql_target_action_gap": 0.8,
                "cql_max_target_backup": True,
                "cql_clip_diff_min": -200.0,
                "eval_freq": 50_000,
                "n_episodes": 100,
            },
        ),
    ],
)
def test_a_row_of_each_family(algorithm: str, dataset: str, row: dict[str, Any]) -> None:
    assert rows(algorithm)[dataset] == row
