"""`corl-twins export`: the exported file acts as the run does, in runtimes that know nothing of this project."""

import dataclasses
import json
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from parity_tests.ladder.rungs import RUNGS
from parity_tests.pairs import PAIRS, is_finite
from parity_tests.pictures import pictures
from shared.commands import convert, export
from shared.commands.common import ended
from shared.data.sequences import PromptedPolicy
from shared.envs.evaluation import Evaluator, SampledPolicy
from shared.envs.spaces import Shape, axes, shape_of
from shared.frameworks.policy_files import PortablePolicy, to_npz
from shared.frameworks.saved_run import SavedRun
from shared.frameworks.twins import acting
from shared.runs.configs import dump
from shared.runs.encoders import ENCODERS, ResNet

ROOT = Path(__file__).resolve().parents[2]
# The actions of this environment are not within 1, so an unscaled one shows.
ENV_ID, STATE_DIM, ACTION_DIM, MAX_ACTION, SEQ_LEN = "Pusher-v5", 23, 7, 2.0, 5
# Components so different that an observation that is not normalised shows
STATISTICS = {
    "state_mean": np.linspace(-3, 5, STATE_DIM).astype(np.float32),
    "state_std": np.geomspace(0.1, 10, STATE_DIM).astype(np.float32),
    "environment": {"id": ENV_ID, "state_dim": STATE_DIM, "action_dim": ACTION_DIM, "max_action": MAX_ACTION},
}
SETTINGS = {
    "bcq": {"action_flexibility": 0.3},
    "dt": {"seq_len": SEQ_LEN, "embedding_dim": 16, "num_layers": 2, "episode_len": 50},
    "lb_sac": {"n_critics": 2},
    "plas": {"perturbation": True, "action_flexibility": 0.3},
    "rebrac": {"actor_ln": True},
}
NORMAL = np.random.default_rng(0).normal(size=(1000, STATE_DIM))
OBSERVATIONS = (STATISTICS["state_mean"] + STATISTICS["state_std"] * NORMAL).astype(np.float32)
# The parity ladder's tolerance for outputs in single precision, relative to the largest
TOLERANCE = RUNGS["act"].float32 * MAX_ACTION


def config_of(name: str) -> Any:
    """Small networks for that environment."""
    config_class, settings = PAIRS[name].torch.TrainConfig, PAIRS[name].variants["default"] | SETTINGS.get(name, {})
    own = {"max_action": MAX_ACTION, "env" if name == "sac" else "eval_env": ENV_ID}
    fields = {field.name for field in dataclasses.fields(config_class)}
    return config_class(device="cpu", seed=3, **{key: own[key] for key in own if key in fields}, **settings)


def run_folder(
    folder: Path,
    name: str,
    framework: str,
    facts: Mapping[str, Any] = STATISTICS,
    shape: Shape = STATE_DIM,
    **settings: Any,
) -> Path:
    """A run's files, without the training."""
    twin, path = PAIRS[name].torch, folder / "checkpoint.pt"
    config = dataclasses.replace(config_of(name), **settings)
    (folder / "config.yaml").write_text(dump(config))
    torch.manual_seed(1)
    twin.save(twin.create_trainer(config, shape, ACTION_DIM, MAX_ACTION), path, **facts)
    if framework == "jax":
        assert ended(convert.main, [str(folder), "--to", "jax"]) == 0
        path.unlink()
    return folder


@cache
def docs_reader() -> type:
    """The reader of recipes that docs/guides/deploy.md prints."""
    (code,) = re.findall(
        r"```python\n(import json.*?)```", (ROOT / "docs" / "guides" / "deploy.md").read_text(), re.DOTALL
    )
    names: dict[str, Any] = {}
    exec(code, names)
    return names["Policy"]


def run_onnx(path: Path) -> Callable[..., np.ndarray]:
    """Opens the file in ONNX Runtime."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    return lambda *inputs: session.run(None, dict(zip(names, inputs, strict=True)))[0]


def run_torchscript(path: Path) -> Callable[..., np.ndarray]:
    """Opens the file in plain PyTorch."""
    script = torch.jit.load(path)
    return lambda *inputs: script(*map(torch.as_tensor, inputs)).detach().numpy()


def run_npz(path: Path) -> Callable[..., np.ndarray]:
    """Opens the file in NumPy."""
    return docs_reader()(path)


RUN = {"onnx": run_onnx, "torchscript": run_torchscript, "npz": run_npz}
# Run without `--thorough`: a plain network, one with a tanh-squashed normal, one that samples, and a transformer
ON_THE_SPOT = ("td3_bc", "cql", "bcq", "dt")
# These are exported in every format. The others use no further operations.
FURTHER = (
    "acfql",
    "diffusion_ql",
    "discrete/bcq",
    "discrete/cql",
    "finetune/balanced_replay",
    "goal_conditioned/hiql",
    "ifql",
    "uwac",
)
EVERY_FORMAT = (*ON_THE_SPOT, *FURTHER)
# Pairs that learn a policy
ACTING = [name for name, pair in PAIRS.items() if hasattr(pair.torch, "policy")]


def marks(name: str) -> list[pytest.MarkDecorator]:
    """The marks for a case of this pair."""
    return [] if name in ON_THE_SPOT else [pytest.mark.thorough]


def formats(name: str) -> list[str]:
    """The formats that can store such a policy."""
    return [format for format in RUN if (name, format) != ("dt", "npz")]


def exported(folder: Path, format: str) -> Callable[..., np.ndarray]:
    """The command's file, opened in its runtime."""
    path = folder / f"policy.{format}"
    assert ended(export.main, [str(folder), "--format", format]) == 0
    return RUN[format](path)


def windows(observations: np.ndarray) -> tuple[np.ndarray, ...]:
    """The inputs of a transformer, with these observations in them."""
    rng, episodes = np.random.default_rng(1), len(observations) // SEQ_LEN
    steps = np.tile(np.arange(SEQ_LEN), (episodes, 1)) + rng.integers(0, 40, (episodes, 1))
    actions = rng.uniform(-2, 2, (episodes, SEQ_LEN, ACTION_DIM)).astype(np.float32)
    returns = rng.uniform(0, 3000, (episodes, SEQ_LEN)).astype(np.float32)
    return observations.reshape(episodes, SEQ_LEN, -1), actions, returns, steps


def given(name: str, observations: np.ndarray) -> tuple[np.ndarray, ...]:
    """The inputs of this pair's policy, with these observations in them."""
    if name == "dt":
        return windows(observations)
    if name.startswith("goal_conditioned/"):
        return observations, observations[::-1].copy()
    draw = getattr(PAIRS[name].torch, "draw_acting_noise", None)
    if draw is None:
        return (observations,)
    rng, hp = np.random.default_rng(2), config_of(name)
    noise = [draw(rng, hp=hp, action_dim=ACTION_DIM) for _ in observations]
    return observations, np.stack(noise).astype(np.float32)


def own_actions(source: SavedRun, inputs: tuple[np.ndarray, ...]) -> np.ndarray:
    """The run's own framework's actions for the inputs that its evaluator would pass."""
    observations, *context = inputs
    normal = normalised(observations)
    if source.is_prompted:
        context[1] = (context[1].astype(np.float64) * source.config.reward_scale).astype(np.float32)
    if source.takes_goals:
        context = [normalised(goals) for goals in context]
    if source.framework == "torch":
        return source.trainer().act(normal, *context)
    state, _ = source.state()
    return np.asarray(PAIRS[source.algorithm].jax.act(acting(state), normal, *context))


def normalised(observations: np.ndarray) -> np.ndarray:
    """Observations as evaluators normalise those of environments, which are in double precision."""
    return ((observations.astype(np.float64) - STATISTICS["state_mean"]) / STATISTICS["state_std"]).astype(np.float32)


def operations(path: Path) -> set[tuple[str, int]]:
    """The operations of a recipe, each with its number of inputs."""
    return {(operation, len(inputs)) for _, operation, *inputs in json.loads(str(np.load(path)["recipe"]))}


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> set[tuple[str, int]]:
    """All operations of the policies that are exported in every format."""
    found = set()
    for name in (name for name in EVERY_FORMAT if "npz" in formats(name)):
        folder = run_folder(tmp_path_factory.mktemp(name.replace("/", "-")), name, "torch")
        exported(folder, "npz")
        found |= operations(folder / "policy.npz")
    return found


def assert_it_acts_as_the_run(name: str, framework: str, format: str, folder: Path) -> None:
    """Compares an exported file with its run, on a thousand observations."""
    inputs = given(name, OBSERVATIONS)
    run_folder(folder, name, framework)
    expected = own_actions(SavedRun.open(next(folder.glob("checkpoint.*"))), inputs)
    assert np.ptp(expected, axis=0).min() > 1e-3
    found = exported(folder, format)(*inputs)
    assert (found.dtype, found.shape) == (np.int64 if is_finite(name) else np.float32, expected.shape)
    # TorchScript fuses operations of the transformer; for the others its numbers are exactly equal.
    exact = format == "torchscript" and name != "dt"
    np.testing.assert_allclose(found, expected, rtol=0, atol=0 if exact else TOLERANCE)


@pytest.mark.parametrize(
    ("name", "format"),
    [pytest.param(name, format, marks=marks(name)) for name in EVERY_FORMAT for format in formats(name)],
)
def test_it_acts_as_the_run_on_a_thousand_observations(name: str, format: str, tmp_path: Path) -> None:
    assert_it_acts_as_the_run(name, "torch", format, tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in ACTING if name not in EVERY_FORMAT])
def test_every_policy_is_exported(name: str, tried: set[tuple[str, int]], tmp_path: Path) -> None:
    """In one format. It uses only operations that were tested in all of them."""
    assert_it_acts_as_the_run(name, "torch", "npz", tmp_path)
    assert operations(tmp_path / "policy.npz") <= tried, "one more policy for EVERY_FORMAT"


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*ON_THE_SPOT, pytest.param("discrete/cql", marks=pytest.mark.thorough)])
def test_a_jax_run_is_exported_too(name: str, tmp_path: Path) -> None:
    """Through the PyTorch twin, but compared with JAX's own computation."""
    assert_it_acts_as_the_run(name, "jax", "onnx" if name == "dt" else "npz", tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "format"), [("td3_bc", "torchscript"), ("bcq", "npz"), ("dt", "onnx")])
def test_scaled_actions_come_out_as_the_environment_takes_them(name: str, format: str, tmp_path: Path) -> None:
    """A policy that remembers actions also reads them in the environment's units. No action leaves the box."""
    scale = np.linspace(0.2, 1.4, ACTION_DIM).astype(np.float32)
    low, high = np.full(ACTION_DIM, -0.8, np.float32), np.full(ACTION_DIM, 0.05, np.float32)
    actions = {"action_mean": 0.3 - scale, "action_std": scale, "action_low": low, "action_high": high}
    folder = run_folder(tmp_path, name, "torch", STATISTICS | actions, action_scaler="min_max")
    source, inputs = SavedRun.open(folder / "checkpoint.pt"), given(name, OBSERVATIONS)
    evaluator = source.evaluator(2)
    np.testing.assert_array_equal(evaluator.units.std, scale)
    np.testing.assert_array_equal(evaluator.units.mean, 0.3 - scale)
    scaled = list(inputs)
    if name == "dt":
        scaled[1] = (inputs[1] - actions["action_mean"]) / scale
    expected = own_actions(source, tuple(scaled)) * scale + actions["action_mean"]
    assert (expected < low).any()
    assert (expected > high).any()
    found = exported(folder, format)(*inputs)
    assert ((low <= found) & (found <= high)).all()
    np.testing.assert_allclose(found, np.clip(expected, low, high), rtol=0, atol=2 * TOLERANCE)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "format", "framework"),
    [("cql", "torchscript", "torch"), ("bcq", "npz", "jax"), ("dt", "onnx", "torch")],
)
def test_it_earns_what_the_run_earns(name: str, format: str, framework: str, tmp_path: Path) -> None:
    """The same episodes; the environment's raw observations go in, so only the file can normalise them."""
    folder = run_folder(tmp_path, name, framework)
    source, policy = SavedRun.open(next(folder.glob("checkpoint.*"))), exported(folder, format)
    if name == "dt":
        config = source.config
        policy = PromptedPolicy(policy, config.target_returns[0], 1.0, config.seq_len, ACTION_DIM)
    if source.draw is not None:
        policy = SampledPolicy(policy, source.draw, source.evaluation_seed)
    raw = Evaluator(source.env_id, 3, source.evaluation_seed, max_steps=50)
    expected = source.evaluator(3, max_steps=50)(source.policy())
    found = raw(policy)
    np.testing.assert_array_equal(found.lengths, expected.lengths)
    np.testing.assert_allclose(found.returns, expected.returns, rtol=1e-5)


class Picky(torch.nn.Module):
    """Returns part of its input."""

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """One of a stack, without its last column."""
        return torch.stack([observations, 2.0 * observations, 3.0 * observations])[1][:, :-1] + 0.0


def test_a_recipe_takes_what_the_policy_takes(tmp_path: Path) -> None:
    """The right element of a stack, and the right slice of an axis."""
    policy = PortablePolicy(lambda network, inputs: network(inputs), Picky(), np.zeros(3), np.ones(3))
    path = tmp_path / "policy.npz"
    path.write_bytes(to_npz(policy, {"observations": torch.zeros(2, 3)}, {}))
    observations = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(run_npz(path)(observations), 2 * observations[:, :2])


def metadata_of(path: Path) -> dict[str, Any]:
    """A file's own metadata."""
    if path.suffix == ".onnx":
        return {entry.key: json.loads(entry.value) for entry in onnx.load(path).metadata_props}
    if path.suffix == ".npz":
        return json.loads(str(np.load(path)["metadata"]))
    extra = {"metadata.json": ""}
    torch.jit.load(path, _extra_files=extra)
    return json.loads(extra["metadata.json"])


@pytest.mark.parametrize("format", RUN)
def test_it_says_what_it_is(format: str, tmp_path: Path) -> None:
    """And its score, if a run ended with this checkpoint."""
    result = {"evaluation": {"env": ENV_ID}, "metric": "return_mean", "final": -38.5}
    folder = run_folder(tmp_path, "td3_bc", "torch")
    (folder / "result.json").write_text(json.dumps(result))
    exported(folder, format)
    assert metadata_of(folder / f"policy.{format}") == {
        "algorithm": "td3_bc",
        "framework": "torch",
        "dataset": "mini/hopper-mostly-expert",
        "seed": 3,
        "env": ENV_ID,
        "metric": "return_mean",
        "score": -38.5,
        "state_mean": STATISTICS["state_mean"].tolist(),
        "state_std": STATISTICS["state_std"].tolist(),
        "action_mean": [0.0] * ACTION_DIM,
        "action_std": [1.0] * ACTION_DIM,
        "max_action": MAX_ACTION,
        "inputs": {"observations": {"shape": ["episodes", STATE_DIM], "type": "float32"}},
        "outputs": {"actions": {"shape": ["episodes", ACTION_DIM], "type": "float32"}},
    }


@pytest.mark.thorough
def test_onnx_names_and_sizes_are_those_of_its_metadata(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """For the transformer, which has the most inputs; any number of episodes can go in.

    The command prints its file and nothing else, though PyTorch's exporter would print a page about itself.
    """
    folder = run_folder(tmp_path, "dt", "torch")
    capfd.readouterr()
    exported(folder, "onnx")
    assert capfd.readouterr() == (f"{folder / 'policy.onnx'}\n", "")
    session, said = onnxruntime.InferenceSession(folder / "policy.onnx"), metadata_of(folder / "policy.onnx")
    kinds = {"tensor(float)": "float32", "tensor(int64)": "int64"}
    for kind, found in (("inputs", session.get_inputs()), ("outputs", session.get_outputs())):
        assert {each.name: {"shape": each.shape, "type": kinds[each.type]} for each in found} == said[kind]
    assert list(said["outputs"]) == ["next_actions"]


def without_onnxscript(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    return [str(folder), "--format", "onnx"]


def there_already(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    (folder / "policy.npz").write_bytes(b"mine")
    return [str(folder), "--format", "npz"]


def a_transformer_for_numpy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return [str(run_folder(folder, "dt", "torch")), "--format", "npz"]


REFUSED = {
    without_onnxscript: "ONNX needs onnxscript: pip install 'corl-twins[export]'",
    there_already: "policy.npz is there already: name another file, or replace it with --overwrite",
    a_transformer_for_numpy: "npz holds networks without memory",
    lambda folder, _: [str(folder), "--format", "tflite"]: "invalid choice",
    lambda folder, _: [str(folder / "none"), "--format", "npz"]: "there is no checkpoint at",
    lambda folder, _: [str(folder), "--format", "npz", "--output", "/proc/x.npz"]: "cannot write /proc/x.npz",
}


@pytest.mark.parametrize(("spoil", "message"), REFUSED.items())
def test_what_cannot_be_used_is_refused(
    spoil: Callable[..., list[str]],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = spoil(run_folder(tmp_path, "td3_bc", "torch"), monkeypatch)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert ended(export.main, arguments) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert message in printed
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.thorough
@pytest.mark.parametrize(("critic", "format"), [("qr", "npz"), *(("iqn", format) for format in RUN)])
def test_critics_of_quantiles_are_exported_too(critic: str, format: str, tmp_path: Path) -> None:
    """They act by the mean of their quantiles; implicit quantiles are taken at even fractions."""
    folder = run_folder(tmp_path, "discrete/cql", "torch", critic=critic, n_quantiles=5, n_greedy_quantiles=4)
    expected = own_actions(SavedRun.open(folder / "checkpoint.pt"), (OBSERVATIONS,))
    assert np.ptp(expected) > 1e-3
    np.testing.assert_array_equal(exported(folder, format)(OBSERVATIONS), expected)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("encoder", "format"),
    [
        *(("minatar", format) for format in RUN),
        *(pytest.param("resnet", format, marks=pytest.mark.thorough) for format in RUN),
        *(pytest.param(encoder, "npz", marks=pytest.mark.thorough) for encoder in ("nature", "impala")),
    ],
)
def test_policies_that_see_images_are_exported_too(
    encoder: str, format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take images as the environment returns them, with numbers from 0 to 255."""
    # The full size has the same layers, only more of them.
    monkeypatch.setitem(ENCODERS, "resnet", ResNet(width=16, units=(1, 2), groups=8))
    images = pictures(3 * np.random.default_rng(0).normal(size=(300, 11)), encoder)
    shape = shape_of(images)
    facts = {"state_mean": np.zeros(1, np.float32), "state_std": np.ones(1, np.float32)}
    facts["environment"] = STATISTICS["environment"] | {"state_dim": list(axes(shape))}
    folder = run_folder(tmp_path, "discrete/cql", "jax", facts, shape, encoder=encoder, hidden_dims=(20,))
    state, _ = SavedRun.open(folder / "checkpoint.msgpack").state()
    expected = np.asarray(PAIRS["discrete/cql"].jax.act(acting(state), images))
    assert np.ptp(expected) > 0
    np.testing.assert_array_equal(exported(folder, format)(images.astype(np.float32)), expected)
