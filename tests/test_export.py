"""`python -m shared.export`: the file acts as the run does, in runtimes that know nothing of this project."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from parity_tests.pairs import PAIRS
from shared import convert, export
from shared.commands import ended
from shared.configs import dump
from shared.evaluation import Evaluator
from shared.saved import Saved
from shared.sequences import PromptedPolicy

ROOT = Path(__file__).resolve().parent.parent
STATE_DIM, ACTION_DIM, SEQ_LEN = 11, 3, 5
# Hopper's, about: of components so far apart that an observation that is not normalised shows
STATISTICS = {
    "state_mean": np.linspace(-3, 5, STATE_DIM).astype(np.float32),
    "state_std": np.geomspace(0.1, 10, STATE_DIM).astype(np.float32),
}
SETTINGS = {
    "dt": {"seq_len": SEQ_LEN, "embedding_dim": 16, "num_layers": 2, "episode_len": 50},
    "lb_sac": {"num_critics": 2},
}
OBSERVATIONS = (np.random.default_rng(0).normal(size=(1000, STATE_DIM)) * 5).astype(np.float32)


def config_of(name: str) -> Any:
    """Small networks, on Hopper."""
    pair = PAIRS[name]
    return pair.torch.TrainConfig(device="cpu", **dict(pair.variants["default"]) | SETTINGS.get(name, {}))


def run_folder(folder: Path, name: str, framework: str) -> Path:
    """What a run leaves, without the training: weights as they were drawn, of some size."""
    twin, config, path = PAIRS[name].torch, config_of(name), folder / "checkpoint.pt"
    (folder / "config.yaml").write_text(dump(config))
    torch.manual_seed(1)
    twin.save(twin.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0), path, **STATISTICS)
    if framework == "jax":
        assert ended(convert.main, [str(folder), "--to", "jax"]) == 0
        path.unlink()
    return folder


@cache
def docs_reader() -> type:
    """The reader of recipes that docs/deploy.md prints."""
    (code,) = re.findall(r"```python\n(import json.*?)```", (ROOT / "docs" / "deploy.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    return names["Policy"]


def run_onnx(path: Path) -> Callable[..., np.ndarray]:
    """The file in ONNX Runtime."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    return lambda *inputs: session.run(None, dict(zip(names, inputs, strict=True)))[0]


def run_torchscript(path: Path) -> Callable[..., np.ndarray]:
    """The file in plain PyTorch."""
    script = torch.jit.load(path)
    return lambda *inputs: script(*map(torch.as_tensor, inputs)).detach().numpy()


def run_npz(path: Path) -> Callable[..., np.ndarray]:
    """The file in NumPy."""
    return docs_reader()(path)


RUN = {"onnx": run_onnx, "torchscript": run_torchscript, "npz": run_npz}
CASES = [(name, format) for name in PAIRS for format in RUN if (name, format) != ("dt", "npz")]


def exported(folder: Path, format: str) -> Callable[..., np.ndarray]:
    """The command's file, in its runtime."""
    path = folder / f"policy.{format}"
    assert ended(export.main, [str(folder), "--format", format]) == 0
    return RUN[format](path)


def windows(observations: np.ndarray) -> tuple[np.ndarray, ...]:
    """What a transformer is given, with these observations in it."""
    rng, episodes = np.random.default_rng(1), len(observations) // SEQ_LEN
    steps = np.tile(np.arange(SEQ_LEN), (episodes, 1)) + rng.integers(0, 40, (episodes, 1))
    actions = rng.uniform(-1, 1, (episodes, SEQ_LEN, ACTION_DIM)).astype(np.float32)
    returns = rng.uniform(0, 3000, (episodes, SEQ_LEN)).astype(np.float32)
    return observations.reshape(episodes, SEQ_LEN, -1), actions, returns, steps


def own_actions(source: Saved, inputs: tuple[np.ndarray, ...]) -> np.ndarray:
    """What the run's own framework makes of what its evaluator would hand over."""
    observations, *context = inputs
    # Environments speak in double precision.
    normal = (observations.astype(np.float64) - STATISTICS["state_mean"]) / STATISTICS["state_std"]
    if source.is_prompted:
        context[1] = (context[1].astype(np.float64) * source.config.reward_scale).astype(np.float32)
    if source.framework == "torch":
        return source.trainer().act(normal.astype(np.float32), *context)
    state, _ = source.state()
    network = state.model if source.is_prompted else state.actor
    return np.asarray(PAIRS[source.algorithm].jax.act(network, normal.astype(np.float32), *context))


@pytest.mark.parametrize(("name", "format"), CASES)
def test_it_acts_as_the_run_on_a_thousand_observations(name: str, format: str, tmp_path: Path) -> None:
    folder = run_folder(tmp_path, name, "torch")
    inputs = windows(OBSERVATIONS) if name == "dt" else (OBSERVATIONS,)
    expected = own_actions(Saved.open(folder / "checkpoint.pt"), inputs)
    assert np.ptp(expected, axis=0).min() > 1e-3
    found = exported(folder, format)(*inputs)
    assert (found.dtype, found.shape) == (np.float32, expected.shape)
    # TorchScript joins operations of the transformer; of the others it makes the very numbers.
    exact = format == "torchscript" and name != "dt"
    np.testing.assert_allclose(found, expected, rtol=0, atol=0 if exact else 2e-6)


@pytest.mark.parametrize("name", ["td3_bc", "dt"])
def test_a_jax_run_is_exported_too(name: str, tmp_path: Path) -> None:
    """Through the PyTorch twin: what is compared with is JAX's own computation."""
    folder = run_folder(tmp_path, name, "jax")
    inputs = windows(OBSERVATIONS) if name == "dt" else (OBSERVATIONS,)
    expected = own_actions(Saved.open(folder / "checkpoint.msgpack"), inputs)
    np.testing.assert_allclose(exported(folder, "torchscript")(*inputs), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("name", "format", "framework"),
    [*(("cql", format, "torch") for format in RUN), ("cql", "onnx", "jax"), ("dt", "onnx", "torch")],
)
def test_it_earns_what_the_run_earns(name: str, format: str, framework: str, tmp_path: Path) -> None:
    """The same episodes; the environment's own observations go in, nothing else knows of their normalisation."""
    folder = run_folder(tmp_path, name, framework)
    source, policy = Saved.open(next(folder.glob("checkpoint.*"))), exported(folder, format)
    if name == "dt":
        config = source.config
        policy = PromptedPolicy(policy, config.target_returns[0], 1.0, config.seq_len, ACTION_DIM)
    raw = Evaluator(source.env_id, 3, source.evaluation_seed, max_steps=50)
    expected = source.evaluator(3, max_steps=50)(source.policy())
    found = raw(policy)
    np.testing.assert_array_equal(found.lengths, expected.lengths)
    np.testing.assert_allclose(found.returns, expected.returns, rtol=1e-5)
