"""`corl-twins parity`: the names of a pair without an adapter describe it, and its mistakes are found and fixed."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from parity_tests.ladder.scene import cornered_rows
from parity_tests.losses import state_of
from parity_tests.own import own_pair
from parity_tests.pairs import PAIRS
from port_checker import parity
from shared.commands.common import ended
from shared.errors import InputError
from shared.frameworks import torch_data
from shared.frameworks.exchange import part_names
from shared.frameworks.twins import FRAMEWORKS, path_of

Files = tuple[Path, Path]


@pytest.fixture
def files(tmp_path: Path) -> Callable[..., Files]:
    """Copies of TD3+BC's files with some of their text replaced; each old text must be there."""

    def write(jax: Sequence[tuple[str, str]] = (), torch: Sequence[tuple[str, str]] = ()) -> Files:
        paths = []
        for framework, changes in zip(FRAMEWORKS, (torch, jax), strict=True):
            source = path_of(framework, "td3_bc").read_text()
            for old, new in changes:
                assert old in source
                source = source.replace(old, new)
            paths.append(tmp_path / f"my_{framework}.py")
            paths[-1].write_text(source)
        return paths[0], paths[1]

    return write


# ---- facts from the names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAIRS)
def test_each_optimised_part_has_a_loss(name: str) -> None:
    """A loss whose signature is not understood would leave a part without one."""
    pair = PAIRS[name]
    parts = part_names(state_of(pair.jax))
    optimised = {part for part in parts if f"{part}_optimizer" in parts}
    assert optimised <= {part for loss in pair.losses.values() for part in loss.of}


@pytest.mark.parametrize("name", ["td3_bc", "rebrac"])
def test_what_a_step_decides_is_seen_in_the_loop(name: str) -> None:
    """The actor's period begins at another step in each of these."""
    pair = PAIRS[name]
    own = own_pair(pair.torch, pair.jax, name)
    config = pair.torch.TrainConfig(device="cpu", batch_size=8, policy_freq=3)
    for step in range(1, 5):
        assert own.update_statics(config, step) == pair.update_statics(config, step)
        assert own.draw_statics(config, step) == {}


def test_a_name_that_the_like_pairs_adapter_needs_is_told(tmp_path: Path) -> None:
    """A file that inlines a helper is not told that it stops with an exception of its own."""
    torch_file, jax_file = tmp_path / "my_torch.py", tmp_path / "my_jax.py"
    torch_file.write_text(path_of("torch", "ifql").read_text().replace("expectile_weight", "weight_of"))
    source = path_of("jax", "ifql").read_text()
    jax_file.write_text(source.replace("# ---- config", 'PARITY_LIKE = "ifql"\n# ---- config', 1))
    *_, last = parity.checked(parity.pair_of(torch_file, jax_file))
    assert last.stopped.startswith("pairs like ifql are compared by expectile_weight, which IFQL lacks: keep this name")


def test_goals_need_no_line() -> None:
    """Batches with goals are taken as in a run, and each network gets the goals that it learns from."""
    pair = PAIRS["goal_conditioned/gciql"]
    own, config = own_pair(pair.torch, pair.jax, "gciql"), pair.torch.TrainConfig(device="cpu", batch_size=8)
    dataset = own.load(cornered_rows(1.0))
    assert own.draw_inputs(dataset, 3) == (tuple(dataset.last.tolist()), 3)
    assert own.called(config).keys() == pair.losses.keys()
    rows = torch_data.to_device(dataset, torch.device("cpu"))
    batch = own.take(pair.torch, rows, torch.arange(24).reshape(3, 8), config)
    trainer = pair.torch.create_trainer(config, 11, 3, 1.0)
    found = own.outputs(trainer, batch)
    assert torch.equal(found["actor[0]"], trainer.actor(batch.observations, batch.actor_goals)[0])
    assert torch.equal(found["value"], trainer.value(batch.observations, batch.value_goals))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("crr", "`update_statics = lambda config, step: {...}`"),
        ("bcq", "`interval_statics = lambda config, start, num_updates: {'vae_updates': ...}`"),
        ("sac", "`interval_statics = lambda config, start, num_updates: {'size': ...}`"),
        ("model_based/mopo", "`draw_inputs = lambda dataset, action_dim: (...)`"),
        ("dt", "`load_columns = lambda raw, frame_stack: ...`"),
    ],
)
def test_a_line_is_asked_for(name: str, line: str) -> None:
    pair = PAIRS[name]
    own = own_pair(pair.torch, pair.jax, name)
    with pytest.raises(InputError) as error:
        own.update_statics(pair.torch.TrainConfig(device="cpu", batch_size=8), 1)
    assert f"add the line {line}" in str(error.value)


def test_a_line_in_the_file_is_followed(tmp_path: Path) -> None:
    """It overrides what the names say."""
    line = 'update_statics = lambda config, step: {"copies": (step - 1) % config.target_update_period == 0}'
    source = path_of("jax", "crr").read_text().replace("# ---- config", f"{line}\n# ---- config")
    (tmp_path / "my_crr.py").write_text(source)
    own, config = parity.pair_of(path_of("torch", "crr"), tmp_path / "my_crr.py"), PAIRS["crr"].torch.TrainConfig()
    assert [own.update_statics(config, step)["copies"] for step in (1, 2, 101)] == [True, False, True]


def test_settings_are_moved_within_their_bounds() -> None:
    pair = PAIRS["td3_bc"]
    moved = own_pair(pair.torch, pair.jax, "td3_bc").variants["moved"]
    assert moved == {
        "alpha": 2.0,
        "discount": 0.792,
        "tau": 0.004,
        "policy_noise": 0.16,
        "noise_clip": 0.4,
        "policy_freq": 3,
    }


def test_a_long_schedule_becomes_short() -> None:
    """Within the checks' few updates, a cosine over a million would hardly change."""
    pair = PAIRS["iql"]
    assert own_pair(pair.torch, pair.jax, "iql").variants["moved"]["max_timesteps"] == 40


# ---- unusable input ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("jax", "torch", "message"),
    [
        ([("def draw_noise", "def draw_it")], [], "my_jax.py has no draw_noise ("),
        ([], [("class Noise", "class Draws"), ("Noise", "Draws")], "my_torch.py has no Noise ("),
        ([("_loss(", "_it(")], [], "TD3_BC in my_jax.py and TD3_BC in my_torch.py have no loss in common"),
        ([("    critic_1, critic_2 = critics", "    critic_1, critic_2 = tuple(pair)"), ("critics:", "pair:")], [],
         "critic_loss is differentiated by `pair`: unpack it"),
        ([("# ---- config", 'PARITY_LIKE = "td3"\n# ---- config')], [], "PARITY_LIKE = 'td3' is no pair; nearest: "),
        ([("# ---- config", 'PARITY_VARIANTS = {"other": {}}\n# ---- config')], [], "has no settings called default"),
        ([("# ---- config", 'PARITY_VARIANTS = {"default": {"taau": 1}}\n#')], [], "taau is not a setting"),
        ([("import optax", "import optaxe")], [], "my_jax.py does not run: ModuleNotFoundError"),
        ([("-> TD3_BC:\n    \"\"\"Fresh", ":\n    \"\"\"Fresh")], [], "create_train_state doesn't say what it returns"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_told_in_one_line(
    jax: list, torch: list, message: str, files: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(parity.main, [*map(str, files(jax, torch))]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_no_file_and_files_the_other_way_round(files: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    torch_file, jax_file = map(str, files())
    for arguments, message in (
        ([torch_file, "none.py"], "error: there is no Python file none.py: give PyTorch's file, then JAX's\n"),
        (
            [jax_file, torch_file],
            f"error: {jax_file} is the JAX file and {torch_file} PyTorch's: give PyTorch's first\n",
        ),
    ):
        assert ended(parity.main, arguments) == 2
        assert capsys.readouterr().err == message


# ---- mistakes ------------------------------------------------------------------------------------------------------


def first_failure(paths: Files) -> tuple[parity.Checked, str]:
    """The first check that fails, and its explanation."""
    pair = parity.pair_of(*paths)
    failed = next(one for one in parity.checked(pair) if not one.passed)
    return failed, "\n".join(parity.explained(pair, failed))


def test_a_setting_is_compared_by_name(files: Callable) -> None:
    failed, told = first_failure(files([("bounded(0.2, low=0)", "bounded(0.1, low=0)")]))
    assert failed.check == "settings"
    assert "TrainConfig.policy_noise" in told


def test_a_setting_that_one_file_lacks_is_all_that_is_told(files: Callable) -> None:
    """Because no other check can give both files the same settings."""
    pair = parity.pair_of(*files([("    policy_noise: float", "    other_noise: float")]))
    (settings,) = parity.checked(pair)
    assert "TrainConfig.policy_noise" in settings.line()
    assert not settings.passed


ACTOR_STEP = '            state = gradient_step(state, "actor", gradient)\n'
LOGGED = '            metrics["actor_loss"] = loss\n'
TARGETS = """            state = state.replace(
                critic_1_target=soft_update(state.critic_1_target, state.critic_1, hp.tau),
                critic_2_target=soft_update(state.critic_2_target, state.critic_2, hp.tau),
                actor_target=soft_update(state.actor_target, state.actor, hp.tau),
            )
"""
MISTAKES = {
    "a sign": ("return -weight * q.mean()", "return weight * q.mean()", "loss", "actor_loss", "(-"),
    "a network that is not differentiated": (
        "actor(batch.observations)",
        "self.actor(batch.observations)",
        "gradient",
        "actor_loss",
        " actor(batch.observations)",
    ),
    "a stale critic": (
        "critic_1_target, state.critic_1,",
        "critic_1_target, self.critic_1,",
        "update",
        "critic_1",
        "state",
    ),
    "a delayed step that is late": ("(phase + i + 1)", "(phase + i)", "update", "actor", "(phase + i + 1)"),
    "targets that move before the actor": (
        f"{ACTOR_STEP}{LOGGED}{TARGETS}",
        f"{TARGETS}{ACTOR_STEP}{LOGGED}",
        "update",
        "actor_target",
        'state = gradient_step(state, "actor", gradient)',
    ),
    "a factor that only PyTorch's file has": (
        "(1.0 - batch.terminals) * hp.discount",
        "hp.discount",
        "loss",
        "critic_loss",
        "(1.0 - batch.terminals) * hp.discount",
    ),
    "two at once": ("optax.adam(3e-4)", "optax.adam(1e-3, eps=1e-5)", "update", "", ""),
}


@pytest.mark.thorough
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found_and_mended(mistake: str, files: Callable) -> None:
    right, wrong, check, what, new = MISTAKES[mistake]
    failed, told = first_failure(files([(right, wrong)]))
    assert failed.check == check
    assert what in failed.wrong[0][1]
    if new:
        assert "With " in told
        assert any(line.startswith("    + ") and new in line for line in told.splitlines())
    else:
        assert ("No single change" in told) == (failed.check in parity.MENDED)


@pytest.mark.thorough
def test_a_file_that_stops_ends_the_checks(files: Callable) -> None:
    """The file, the line and the exception are told, and nothing is said of what was not compared."""
    pair = parity.pair_of(*files(torch=[("q1 = critic_1(", "q1 = critic_3(")]))
    found = list(parity.checked(pair))
    assert [one.passed for one in found] == [True, False]
    assert "my_torch.py: NameError: name 'critic_3' is not defined (line " in found[-1].line()
    assert parity.explained(pair, found[-1]) == [
        "weights: not checked, and neither is what follows, because a file stops with an exception."
    ]


@pytest.mark.thorough
def test_a_pair_passes_and_fails_as_a_command(
    files: Callable, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 0 and 1, the table, and the same as JSON."""
    paths, result = [*map(str, files())], tmp_path / "result.json"
    assert ended(parity.main, [*paths, "--json", str(result)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:12].strip() for line in lines[1:-1]] == list(parity.CHECKS)
    assert lines[-1] == "my_torch.py and my_jax.py agree: all checks pass"
    assert json.loads(result.read_text())["passed"]
    files([("1.0 - batch.terminals", "1.0 + batch.terminals")])
    assert ended(parity.main, [*paths, "--json", str(result)]) == 1
    found = json.loads(result.read_text())
    assert not found["passed"]
    assert next(check["check"] for check in found["checks"] if not check["passed"]) == "loss"
    assert "\n".join(found["explanation"]) in capsys.readouterr().out
