"""One name for each idea: every other name is understood, no file uses one, and CORL's files load unchanged."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.errors import InputError
from shared.frameworks.twins import algorithms, load_twin
from shared.runs.configs import dataset_row, dump, from_settings, parse
from shared.runs.own_data import with_corls_prompts
from shared.runs.resuming import begun, run_name
from shared.runs.vocabulary import IDEAS, check_once, in_house, other_names, suggestion

# By CORL's file: the contents common to its YAML files of all datasets, and what some of them add or change
CORL: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("corl_settings.json").read_text())
TWINS = list(algorithms("torch"))


def settings_of(name: str) -> list[str]:
    """The names of a twin's settings."""
    return [field.name for field in dataclasses.fields(load_twin("torch", name).TrainConfig)]


def files(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """CORL's files for an algorithm: each one's dataset, and its settings under CORL's names."""
    for datasets, own in CORL[name]["some"]:
        yield from ((dataset, CORL[name]["all"] | own) for dataset in datasets)


@pytest.mark.parametrize("name", TWINS)
def test_no_twin_has_a_setting_by_another_name(name: str) -> None:
    """Nor does one name refer to two of a twin's settings."""
    settings = settings_of(name)
    ideas = [idea for idea in IDEAS if idea.name in settings]
    others = [other for idea in ideas for other in (*idea.others, *idea.only.get(name, ()))]
    anywhere = {other for idea in IDEAS for other in idea.others}
    assert anywhere.isdisjoint(settings)
    doubled = {other for other in others if others.count(other) > 1}
    # d3rlpy's name for the MMD's weight in BEAR is its name for the temperature elsewhere.
    assert doubled == ({"alpha_learning_rate"} if name == "bear" else set())


def test_every_idea_is_a_setting_of_some_twin() -> None:
    known = {name: set(settings_of(name)) for name in TWINS}
    for idea in IDEAS:
        assert any(idea.name in settings for settings in known.values()), idea.name
        for algorithm in idea.only:
            assert idea.name in known[algorithm]
    assert len({idea.name for idea in IDEAS}) == len(IDEAS)


def test_there_are_all_of_corls_files() -> None:
    assert sum(1 for name in CORL for _ in files(name)) == 417


@pytest.mark.parametrize("name", CORL)
def test_corls_files_load_to_the_values_of_our_tables(name: str) -> None:
    """Every value, under whatever name, equals that of the dataset's row or of the defaults."""
    config_class = load_twin("torch", name).TrainConfig
    for dataset, values in files(name):
        given = from_settings(config_class, name, {"env": dataset, **values}, f"{dataset}: ")
        ours = config_class(**{"env": dataset} | dataset_row(config_class, name, dataset))
        # DT's own defaults for these names are CORL's prompts.
        assert given == with_corls_prompts(ours), dataset


@pytest.mark.parametrize(
    ("name", "given", "meant"),
    [
        ("cql", {"policy_lr": 2e-4, "qf_lr": 1e-3, "soft_target_update_rate": 0.1}, ("actor_lr", "critic_lr", "tau")),
        ("edac", {"num_critics": 7, "gamma": 0.9}, ("n_critics", "discount")),
        ("bear", {"alpha_learning_rate": 2e-3, "temp_learning_rate": 1e-3}, ("alpha_lr", "temperature_lr")),
        ("awr", {"critic_learning_rate": 2e-3, "beta": 2.0}, ("value_lr", "advantage_temperature")),
        ("model_based/combo", {"alpha": 0.3, "temperature": 2.0}, ("fixed_temperature", "cql_temp")),
        ("xql", {"temperature": 2.0, "temp": 3.0, "vf_lr": 1e-3}, ("inverse_temperature", "loss_temp", "value_lr")),
        ("plas", {"warmup_steps": 5, "beta": 0.1}, ("vae_iterations", "kl_weight")),
        ("uwac", {"beta": 0.1, "warmup_steps": 5}, ("variance_scale", "imitation_steps")),
        (
            "acfql",
            {"alpha": 3.0, "actor_num_samples": 8, "sparse": True, "offline_steps": 9},
            ("distill_coef", "n_action_samples", "sparse_rewards", "max_timesteps"),
        ),
        ("finetune/acfql", {"start_training": 5, "offline_steps": 9}, ("learning_starts", "offline_iterations")),
        ("ifql", {"num_samples": 8, "offline_steps": 9}, ("n_action_samples", "max_timesteps")),
        (
            "diffusion_ql",
            {"lr": 1e-3, "gn": 2.5, "T": 7, "step_start_ema": 9, "update_ema_every": 3},
            ("actor_lr", "clip_grad", "diffusion_steps", "ema_start", "ema_period"),
        ),
        (
            "model_based/mobile",
            {"num_samples": 3, "num_q_ensemble": 4, "alpha": 0.1, "alpha_lr": 1e-3},
            ("n_state_samples", "n_critics", "fixed_temperature", "temperature_lr"),
        ),
        ("discrete/bcq", {"beta": 0.1, "action_flexibility": 0.2}, ("logit_penalty", "likelihood_threshold")),
        ("finetune/rebrac", {"mixing_ratio": 0.1, "num_warmup_steps": 5}, ("online_share", "learning_starts")),
        ("evaluation/fqe", {"critic_lr": 1e-3, "target_update_interval": 5}, ("learning_rate", "target_update_period")),
    ],
)
def test_each_name_means_its_idea(name: str, given: dict[str, Any], meant: tuple[str, ...]) -> None:
    """On the command line, where an algorithm's own meaning comes first, and one of both names is enough."""
    config_class = load_twin("torch", name).TrainConfig
    config = parse(config_class, name, [f"--{setting}={value}" for setting, value in given.items()])
    assert [getattr(config, setting) for setting in meant] == list(given.values())
    first = next(iter(given))
    with pytest.raises(InputError, match=f"--{first} and {meant[0]} are the same setting: give one of them"):
        parse(config_class, name, [f"--{first}={given[first]}", f"--{meant[0]}={given[first]}"])


def test_the_help_tells_all_names(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit):
        parse(load_twin("jax", "cql").TrainConfig, "cql", ["--help"])
    printed = capsys.readouterr().out
    assert "default: 3e-05; also: policy_lr, actor_learning_rate)" in printed
    assert "--policy_lr" not in printed


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("--lr", ["actor_lr", "critic_lr"]),
        ("learning_rate", ["actor_lr", "critic_lr"]),
        ("Actor-LR", ["actor_lr"]),
        ("gama", ["discount"]),
        ("batchsize", ["batch_size"]),
        ("q_n_hidden_layer", ["critic_n_hiddens"]),
        ("--zqx", []),
    ],
)
def test_an_unknown_name_is_answered_by_those_meant(given: str, meant: list[str]) -> None:
    settings = settings_of("cql")
    assert suggestion(given, settings, other_names(settings, "cql")) == meant


def test_an_earlier_runs_folder_is_a_run_of_the_same_settings(tmp_path: Path) -> None:
    """`auto` finds it, and it can be named."""
    config_class = load_twin("torch", "cql").TrainConfig
    config = config_class(critic_lr=1e-3, tau=0.1, runs_path=str(tmp_path))
    folder = tmp_path / f"{run_name(config)}-torch-0123abcd"
    folder.mkdir()
    earlier = dump(config).replace("critic_lr:", "qf_lr:").replace("\ntau:", "\nsoft_target_update_rate:")
    (folder / "config.yaml").write_text(earlier)
    assert "qf_lr: 0.001" in earlier
    assert begun(config, "cql", "torch") == [folder]
    assert begun(dataclasses.replace(config, critic_lr=2e-3), "cql", "torch") == []
    assert parse(config_class, "cql", ["--resume", str(folder)]) == dataclasses.replace(config, resume=str(folder))


def test_settings_of_an_earlier_run_become_the_houses() -> None:
    settings = settings_of("cql")
    assert in_house({"qf_lr": 1, "nothing": 2}, settings, "cql") == {"critic_lr": 1, "nothing": 2}
    with pytest.raises(InputError, match="x: qf_lr and critic_lr are the same setting"):
        check_once(["qf_lr", "critic_lr"], other_names(settings, "cql"), "x: ")
