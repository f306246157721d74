"""Settings that every run has are declared once, and `--help` shows them for every algorithm."""

import dataclasses
import inspect
import re

import pytest

from shared.frameworks.twins import algorithms, load_twin
from shared.runs.configs import parse
from shared.runs.fields import bounded
from shared.runs.settings import EnsembleConfig, RecordConfig, TransitionsConfig


@dataclasses.dataclass(frozen=True)
class Hyperparameters:
    """The settings of an update."""

    # Transitions in a batch
    batch_size: int = bounded(256, low=1)


@dataclasses.dataclass(frozen=True)
class Config(Hyperparameters, EnsembleConfig):
    """Settings from several base classes."""

    name: str = "other"
    # Episodes, said anew
    n_episodes: int = bounded(3, low=1)
    # A dataset's rewards as they are
    raw: bool = True


@dataclasses.dataclass(frozen=True)
class Uncommented(Hyperparameters, TransitionsConfig):
    """A setting without a comment."""

    secret: int = 3


def explained(config_class: type, name: str, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, str]]:
    """The help of each setting, by group; empty if there is nothing but bounds and default."""
    with pytest.raises(SystemExit):
        parse(config_class, name, ["--help"])
    groups = re.split(r"\n(run|algorithm):\n", capsys.readouterr().out)
    return {group: _comments(lines) for group, lines in zip(groups[1::2], groups[2::2], strict=True)}


def _comments(lines: str) -> dict[str, str]:
    settings = [" ".join(setting.split()) for setting in re.split(r"\n(?=  --)", lines)]
    found = [re.match(r"--(\w+) [^\s,]+(?:, --\w+ [^\s,]+)* ?(.*?) ?\(", setting) for setting in settings]
    return dict(match.groups() for match in found if match)


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")


def declared(framework: str, name: str) -> list[str]:
    """The lines that declare a twin's own settings, with their comments."""
    twin = load_twin(framework, name)
    lines = (inspect.getsource(twin.Hyperparameters) + inspect.getsource(twin.TrainConfig)).splitlines()
    return [line for line in lines if not line.strip().startswith('"""')]


@pytest.mark.parametrize("name", algorithms("torch"))
def test_a_twins_settings_are_those_of_a_run_and_its_own(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each has a comment, and the same one in both frameworks."""
    config_class = load_twin("torch", name).TrainConfig
    assert issubclass(config_class, RecordConfig)
    found = explained(config_class, name, capsys)
    words = found["run"] | found["algorithm"]
    assert {field.name for field in dataclasses.fields(config_class)} <= words.keys()
    assert [setting for setting, comment in words.items() if not comment] == []
    assert {field.name for field in dataclasses.fields(RecordConfig)} <= found["run"].keys()
    assert words["runs_path"] == "Where run folders are made"
    assert declared("jax", name) == declared("torch", name)


def test_the_comment_is_that_of_the_class_that_says_it_last(capsys: pytest.CaptureFixture[str]) -> None:
    found = explained(Config, "cql", capsys)
    assert found["algorithm"] == {"batch_size": "Transitions in a batch", "raw": "A dataset's rewards as they are"}
    assert found["run"]["name"] == "First part of the run's name"
    assert found["run"]["n_episodes"] == "Episodes, said anew"
    assert found["run"]["seed"] == "Seed of the weights, the batches and the noise"
    assert found["run"]["env"].startswith("Dataset: mini/pendulum-replay, ")
    assert found["run"]["log_every"].startswith("Updates between two records in CORL; ")


def test_a_missing_comment_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    found = explained(Uncommented, "cql", capsys)
    assert [setting for setting, comment in found["algorithm"].items() if not comment] == ["secret"]
