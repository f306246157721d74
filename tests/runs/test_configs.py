"""Where a setting comes from, which text is valid for it, and the message for other text."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Optional

import pyrallis
import pytest
import yaml

from shared.errors import InputError
from shared.runs import configs
from shared.runs.configs import cli, dataset_row, dump, parse
from shared.runs.fields import bounded, check, choice, multiple, numbers, positive, widths
from shared.runs.settings import RunConfig


@dataclasses.dataclass(frozen=True)
class Base:
    """A config that is inherited."""

    # Discount factor, 100% of which
    # goes into the return
    discount: float = bounded(0.99, low=0, high=1)
    # Transitions in a batch
    batch_size: int = positive(256)


@dataclasses.dataclass(frozen=True)
class Config(Base, RunConfig):
    """A config with one field of each kind."""

    # Dataset
    env: str = "mini/hopper-medium-expert"
    # Learning rate
    learning_rate: float = positive(3e-4)
    # Lower clamp
    clip: float = -math.inf
    # Scale rewards
    normalize_reward: bool = False
    # Seed
    seed: int = bounded(0, low=0)
    # Run name
    name: str = "CQL"
    # Folder of checkpoints
    checkpoints_path: str | None = None
    # Weights & Biases
    wandb_mode: str = choice("off", "offline", "online")
    # The older way to write that it may be null
    load_model: Optional[str] = None  # noqa: UP045
    # Rates of the moments
    betas: tuple[float, float] = numbers((0.9, 0.999), low=0.0, high=1.0)
    # Returns to ask for
    target_returns: tuple[float, ...] = numbers((12000.0, 6000.0))
    # Widths of hidden layers
    hidden_dims: tuple[int, ...] = widths(400, 300)
    # Largest gradient
    clip_grad: float | None = positive(0.25)
    # Numbers in a latent
    latent_dim: int = multiple(64, of=8)


@dataclasses.dataclass(frozen=True)
class Epochs:
    """A config whose counts are in epochs in CORL, but in updates here."""

    # Dataset
    env: str = "mini/hopper-medium-expert"
    # Updates in all
    max_timesteps: int = positive(3000)
    # Updates between two evaluations
    eval_freq: int = positive(500)
    # Updates in an epoch
    num_updates_on_epoch: int = positive(100)

    CORL_EPOCHS: ClassVar[dict[str, str]] = {"num_epochs": "max_timesteps", "eval_every": "eval_freq"}


@pytest.fixture(autouse=True)
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of datasets for the algorithm `toy`."""
    folder = tmp_path / "configs"
    folder.mkdir()
    (folder / "toy.yaml").write_text(
        "mini/hopper-medium-expert: {}\n"
        "hopper-medium-v2: &locomotion\n  batch_size: 100\n  learning_rate: 1e-4\n"
        "hopper-expert-v2: {<<: *locomotion, normalize_reward: true}\n"
        "walker2d-medium-v2: {batchsize: 3}\n"
        "walker2d-expert-v2: {batch_size: 1.5}\n"
    )
    monkeypatch.setattr(configs, "_TABLES", folder)
    return folder


@pytest.fixture
def yaml_file(tmp_path: Path) -> Callable[[str], str]:
    """Writes a file for --config_path."""

    def write(content: str) -> str:
        path = tmp_path / "settings.yaml"
        path.write_text(content)
        return str(path)

    return write


def read(*args: str) -> Config:
    """The config for a command line."""
    return parse(Config, "toy", args)


def test_the_command_line_goes_before_the_file_before_the_row_before_the_default(
    yaml_file: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = yaml_file("env: hopper-expert-v2\nbatch_size: 7\nseed: 5\n")
    config = read("--config_path", path, "--seed", "9")
    assert config == Config(
        env="hopper-expert-v2", seed=9, batch_size=7, learning_rate=1e-4, normalize_reward=True, discount=0.99
    )
    printed = capsys.readouterr().out
    assert printed == "settings of configs/toy.yaml for hopper-expert-v2: learning_rate=0.0001, normalize_reward=true\n"
    assert read("--config_path", path, "--env", "hopper-medium-v2").normalize_reward is False


def test_a_known_dataset_without_a_row_and_a_file_take_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    for env in ("ant-medium-v2", "somewhere/own.hdf5"):
        assert read("--env", env) == Config(env=env)
        assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("flag", "text", "value"),
    [
        ("name", "yes", "yes"),
        ("name", "a: b", "a: b"),
        ("name", "", ""),
        ("normalize_reward", "true", True),
        ("normalize_reward", "False", False),
        ("seed", "12", 12),
        ("seed", "1e3", 1000),
        ("learning_rate", "3e-4", 3e-4),
        ("clip", "-inf", -math.inf),
        ("clip", "-200", -200.0),
        ("checkpoints_path", "null", None),
        ("load_model", "null", None),
        ("wandb_mode", "offline", "offline"),
        ("betas", "[0.8, 0.99]", (0.8, 0.99)),
        ("target_returns", "[1, 5e-1]", (1.0, 0.5)),
        ("clip_grad", "null", None),
        ("clip_grad", "1", 1.0),
    ],
)
def test_text_becomes_a_value_of_the_fields_type(flag: str, text: str, value: Any) -> None:
    actual = getattr(read(f"--{flag}={text}"), flag)
    assert actual == value
    assert type(actual) is type(value)


@pytest.mark.parametrize(
    ("flag", "text", "message"),
    [
        ("normalize_reward", "maybe", "--normalize_reward must be true or false, not 'maybe'"),
        ("seed", "1.5", "--seed must be a whole number, not '1.5'"),
        ("seed", "", "must be a whole number"),
        ("learning_rate", "fast", "--learning_rate must be a number, not 'fast'"),
        ("learning_rate", "nan", "learning_rate must be a number, not nan"),
        ("learning_rate", "inf", "learning_rate must be finite and greater than 0, not inf"),
        ("learning_rate", "-0.1", "learning_rate must be finite and greater than 0, not -0.1"),
        ("batch_size", "-256", "batch_size must be greater than 0, not -256"),
        ("discount", "7", "discount must be between 0 and 1, not 7.0"),
        ("seed", "-1", "seed must be at least 0, not -1"),
        ("wandb_mode", "on", "wandb_mode must be one of off, offline, online, not 'on'"),
        ("betas", "[0.9]", "betas must be a list of 2 numbers, not (0.9,)"),
        ("betas", "[0.9, 1.5]", "betas must be one or more finite numbers between 0.0 and 1.0, not (0.9, 1.5)"),
        ("target_returns", "12000", "--target_returns must be a list of numbers, not '12000'"),
        ("target_returns", "[1, fast]", "--target_returns must be a list of numbers, not '[1, fast]'"),
        ("target_returns", "[]", "target_returns must be one or more finite numbers, not ()"),
        ("hidden_dims", "[64, 0]", "hidden_dims must be one or more numbers of at least 1, not (64, 0)"),
        ("hidden_dims", "[64, 1.5]", "--hidden_dims must be a list of whole numbers, not '[64, 1.5]'"),
        ("clip_grad", "0", "clip_grad must be finite and greater than 0, not 0.0"),
        ("latent_dim", "12", "latent_dim must be a multiple of 8, not 12"),
        ("latent_dim", "0", "latent_dim must be a multiple of 8, not 0"),
    ],
)
def test_a_bad_value_is_refused(flag: str, text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read(f"--{flag}={text}")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "value"), [(int, 1.5), (int, True), (float, True), (bool, 1), (bool, "maybe"), (str, 7), (str, True)]
)
def test_pyrallis_by_itself_coerces_nothing_silently_either(kind: type, value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        pyrallis.decode(kind, value)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--learning_rat", "1"], "unknown argument '--learning_rat'; did you mean --learning_rate?"),
        (["stray"], "unknown argument 'stray'"),
        (["--rate", "1"], "unknown argument '--rate'; did you mean --learning_rate?"),
        (["--train_seed", "1", "--seed=2"], "--train_seed and seed are the same setting: give one of them"),
        (["--seed"], "argument --seed: expected one argument"),
        (["--clip", "-inf"], "write --flag=VALUE if the value begins with a minus"),
        (["--env", "hoper-medium-v2"], "unknown dataset 'hoper-medium-v2'; nearest: hopper-medium-v2"),
        (
            ["--env", "walker2d-medium-v2"],
            "toy.yaml, walker2d-medium-v2: batchsize is not a setting; did you mean batch_size?",
        ),
        (["--env", "walker2d-expert-v2"], "toy.yaml, walker2d-expert-v2: batch_size must be a whole number, not '1.5'"),
        (["--config_path", "nowhere.yaml"], "cannot read nowhere.yaml (No such file or directory): check the path"),
    ],
)
def test_a_bad_command_line_is_refused(args: list[str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        read(*args)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_environment_is_called_one() -> None:
    """By an algorithm that collects its own data, whose `env` is no dataset."""

    @dataclasses.dataclass(frozen=True)
    class Online(Config):
        """A config of such an algorithm."""

        env: str = "Hopper-v5"

    with pytest.raises(InputError, match="unknown environment 'Hoper-v5'; use Hopper-v5"):
        dataset_row(Online, "toy", "Hoper-v5")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("learning-rate: 1", "learning-rate is not a setting; did you mean learning_rate?"),
        ("seed: 1.5", "seed must be a whole number, not '1.5'"),
        ("seed: null", "seed must be a whole number, not None"),
        ("name:", "name must be text, not None"),
        ("checkpoints_path: [a]", "checkpoints_path must be text or null, not ['a']"),
        ("normalize_reward: yes", "normalize_reward must be true or false, not 'yes'"),
        ("{seed: 1, seed: 2}", "seed is given at line 1 and again at line 1"),
        ("seed: 1\n: : [", "is not valid YAML at line 2"),
        ("- seed", "must hold lines such as"),
        ("name: \0", "is not valid YAML"),
        ("1: 2", "1 is not a setting"),
        ("train_seed: x", "train_seed must be a whole number, not 'x'"),
        ("seed: 1\ntrain_seed: 2", "seed and train_seed are the same setting: give one of them"),
    ],
)
def test_a_bad_file_is_refused(yaml_file: Callable[[str], str], content: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read("--config_path", yaml_file(content))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_corls_names_are_understood(yaml_file: Callable[[str], str]) -> None:
    path = yaml_file("env_name: hopper-medium-v2\ntrain_seed: 4\ntarget_returns: [2900, 1450]\n")
    expected = Config(
        env="hopper-medium-v2", seed=4, batch_size=100, learning_rate=1e-4, target_returns=(2900.0, 1450.0)
    )
    assert read("--config_path", path) == expected
    assert read("--config_path", path, "--train_seed", "5").seed == 5
    assert read("--env_name", "hopper-medium-v2") == read("--env", "hopper-medium-v2")


@pytest.mark.parametrize(
    ("content", "args", "expected"),
    [
        ("num_epochs: 20\neval_every: 2\n", [], (2000, 200, 100)),
        ("num_epochs: 20\nnum_updates_on_epoch: 50\n", [], (1000, 500, 50)),
        ("num_epochs: 20\n", ["--num_updates_on_epoch", "10"], (200, 500, 10)),
        ("num_updates_on_epoch: 10\n", ["--num_epochs", "3"], (30, 500, 10)),
        ("num_epochs: 20\neval_every: 2\n", ["--max_timesteps", "7"], (7, 200, 100)),
        ("max_timesteps: 7\n", ["--eval_every", "3"], (7, 300, 100)),
    ],
)
def test_epochs_become_updates(
    yaml_file: Callable[[str], str], content: str, args: list[str], expected: tuple[int, int, int]
) -> None:
    config = parse(Epochs, "toy", ["--config_path", yaml_file(content), *args])
    assert (config.max_timesteps, config.eval_freq, config.num_updates_on_epoch) == expected
    assert parse(Epochs, "toy", ["--config_path", yaml_file(dump(config))]) == config


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--num_epochs", "2.5"], "--num_epochs must be a whole number, not '2.5'"),
        (["--num_epochs", "0"], "max_timesteps must be greater than 0, not 0"),
        (
            ["--num_epochs", "2", "--max_timesteps", "2"],
            "--num_epochs and max_timesteps are the same setting: give one",
        ),
        (["--num_epoch", "2"], "unknown argument '--num_epoch'; did you mean --num_epochs?"),
    ],
)
def test_bad_epochs_are_refused(args: list[str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(Epochs, "toy", args)
    assert message in str(caught.value)


def test_a_file_of_corl_loads(yaml_file: Callable[[str], str]) -> None:
    path = yaml_file(
        "checkpoints_path: null\nclip: -.inf\nenv: hopper-medium-v2\nlearning_rate: 3e-4\nname: 007\n"
        "normalize_reward: True\nseed: 10_0\nwandb_mode: 'off'\n"
    )
    assert read("--config_path", path) == Config(
        env="hopper-medium-v2", learning_rate=3e-4, normalize_reward=True, seed=100, batch_size=100, name="007"
    )
    assert read("--config_path", yaml_file("")) == Config()


@pytest.mark.parametrize("name", ["CQL", "007", "yes", "null", "a: b", "1e-3", "", "~", "x" * 200 + " y" * 100])
def test_a_dumped_config_loads_as_an_equal_one(yaml_file: Callable[[str], str], name: str) -> None:
    config = Config(
        env="hopper-medium-v2", name=name, clip=math.inf, learning_rate=1e-45, discount=0.1 + 0.2, checkpoints_path=name
    )
    text = dump(config)
    assert read("--config_path", yaml_file(text)) == config
    assert read("--config_path", yaml_file(dump(Config()))) == Config()
    assert list(yaml.safe_load(text)) == [field.name for field in dataclasses.fields(Config)]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"discount": math.nan}, "discount must be a number, not nan"),
        ({"discount": "0.9"}, "discount must be a number, not '0.9'"),
        ({"batch_size": 2.0}, "batch_size must be a whole number, not 2.0"),
        ({"batch_size": True}, "batch_size must be a whole number, not True"),
        ({"normalize_reward": 1}, "normalize_reward must be true or false, not 1"),
        ({"name": None}, "name must be text, not None"),
        ({"checkpoints_path": 3}, "checkpoints_path must be text or null, not 3"),
    ],
)
def test_a_config_built_in_python_is_checked_too(values: dict[str, Any], message: str) -> None:
    check(Config(discount=0, seed=0))
    check(Config(discount=1, clip=math.inf, checkpoints_path="x"))
    with pytest.raises(InputError) as caught:
        check(Config(**values))
    assert message in str(caught.value)


def run_cli(monkeypatch: pytest.MonkeyPatch, train: Callable[[Config], None], *args: str) -> int | str | None:
    """The exit status of a command."""
    monkeypatch.setattr("sys.argv", ["toy.py", *args])
    with pytest.raises(SystemExit) as caught:
        cli(train, Config, "toy")
    return caught.value.code


def refuse(config: Config) -> None:
    """Training that finds a fault in its input."""
    raise InputError("no dataset")


def interrupt(config: Config) -> None:
    """Training that is stopped with Ctrl-C."""
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("train", "args", "status", "message"),
    [
        (refuse, [], 2, "error: no dataset\n"),
        (refuse, ["--discount", "7"], 2, "error: discount must be between 0 and 1, not 7.0\n"),
        (interrupt, [], 130, "interrupted\n"),
    ],
)
def test_the_command_ends_with_one_line_and_a_status(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    train: Callable[[Config], None],
    args: list[str],
    status: int,
    message: str,
) -> None:
    assert run_cli(monkeypatch, train, *args) == status
    assert capsys.readouterr().err == message


def test_the_command_trains_with_its_config(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr("sys.argv", ["toy.py", "--seed", "3"])
    cli(seen.append, Config, "toy")
    assert seen == [Config(seed=3)]


def test_help_names_every_setting(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert run_cli(monkeypatch, refuse, "--help") == 0
    printed = capsys.readouterr().out
    for field in dataclasses.fields(Config):
        assert f"--{field.name} " in printed
    assert "100% of which goes into the return (between 0 and 1; default: 0.99; also: gamma)" in printed
    assert "Scale rewards (default: false)" in printed
    assert "Folder of checkpoints (default: null)" in printed
    assert printed.index("\nrun:") < printed.index("--seed ") < printed.index("\nalgorithm:") < printed.index("--clip ")


def test_a_row_is_decoded(tables: Path) -> None:
    assert dataset_row(Config, "toy", "hopper-medium-v2") == {"batch_size": 100, "learning_rate": 1e-4}
    assert dataset_row(Config, "toy", "mini/hopper-medium-expert") == {}
