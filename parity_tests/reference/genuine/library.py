"""The original d3rlpy 2.8.1 as the tests use it: small networks, batches, and six updates to compare with ours.

`make test-d3rlpy` installs the library; without it these tests are skipped.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import fields
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from corl_torch.discrete import bcq as discrete_bcq
from corl_torch.discrete import sac as discrete_sac
from corl_torch.online import ddpg, dqn
from parity_tests.reference.common import (
    ACTION_DIM,
    CPU,
    ROWS,
    STATE_DIM,
    UPDATES,
    assert_same_log,
    columns_of,
    same_draws,
)
from shared.data.transitions import Batch
from shared.frameworks.torch_data import take
from shared.runs.vocabulary import other_names

BATCH_SIZE = 32
HIDDEN = {"actor": (40, 30), "critic": (50, 20), "imitator": (64, 48)}
# Critic settings that the library puts into a factory
OF_CRITICS = ("critic", "n_quantiles", "n_greedy_quantiles", "embed_size")
# Settings for d3rlpy 2.8.1's deviations from the paper
FAULTS: dict[str, Any] = {"vae_tanh": False, "copy_target_policy": False}


def created(
    d3rlpy: Any, config: str, networks: tuple[str, ...], shape: Sequence[int] = (STATE_DIM,), **settings: Any
) -> Any:
    """The library's algorithm with small networks for this observation shape, drawn from torch's generator."""
    factory = d3rlpy.models.VectorEncoderFactory
    encoders = {f"{part}_encoder_factory": factory(hidden_units=list(HIDDEN[part])) for part in networks}
    algorithm = getattr(d3rlpy.algos, config)(batch_size=BATCH_SIZE, **encoders, **settings).create(device="cpu:0")
    algorithm.create_impl(shape, ACTION_DIM)
    return algorithm


def names_of(config: Any) -> dict[str, str]:
    """Maps the references' names for the settings of a twin's config to ours."""
    algorithm = type(config).__module__.partition(".")[2].replace(".", "/")
    return other_names([field.name for field in fields(config)], algorithm)


def as_theirs(kind: type, config: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """A twin's settings under the names in this class of the library's configs."""
    known, others = inspect.signature(kind).parameters, names_of(config)
    found = {}
    for ours, value in settings.items():
        (name,) = (name for name in (ours, *(other for other in others if others[other] == ours)) if name in known)
        found[name] = value
    return found


def quantile_factory(d3rlpy: Any, config: Any) -> dict[str, Any]:
    """The library's arguments for quantile critics; empty for critics of means."""
    kind = getattr(config, "critic", "mean")
    if kind == "mean":
        return {}
    if kind == "qr":
        return {"q_func_factory": d3rlpy.models.QRQFunctionFactory(n_quantiles=config.n_quantiles)}
    sizes = {name: getattr(config, name) for name in ("n_quantiles", "n_greedy_quantiles", "embed_size")}
    return {"q_func_factory": d3rlpy.models.IQNQFunctionFactory(**sizes)}


def batch_of(d3rlpy: Any, dataset: Batch) -> Any:
    """A batch in the library's form; fields that its algorithms do not read repeat another column."""
    s, a, r, s2, d = columns_of(dataset, BATCH_SIZE)
    if s.dtype == torch.uint8:
        s, s2 = (column.float() / 255.0 for column in (s, s2))
    if a.ndim == 1:
        a = a[:, None].float()
    interval: Tensor = torch.ones(BATCH_SIZE, 1)
    return d3rlpy.torch_utility.TorchMiniBatch(s, a, r, s2, a, r, d, interval, "cpu:0")


def assert_same_updates(d3rlpy: Any, dataset: Batch, twin: ModuleType, trainer: Any, theirs: Any) -> None:
    """Checks that six updates of both with equal draws log the same numbers."""
    same_draws()
    logged = [theirs.impl.update(batch_of(d3rlpy, dataset), step) for step in range(UPDATES)]
    # BEAR's log uses another name for the VAE's loss than BCQ's and PLAS's logs.
    own = "imitator" if twin is discrete_bcq else "vae"
    expected = [{name.replace("imitator", own): value for name, value in log.items()} for log in logged]
    same_draws()
    logs = []
    for _ in range(UPDATES):
        # Whether the next update is for the VAE alone, or part of the warm-up, if the twin has such updates
        phase = [getattr(trainer, name) for name in ("pretrains", "warms_up") if hasattr(trainer, name)]
        sizes = (ROWS,) if twin in (ddpg, dqn) or "discrete" in twin.__name__ else (ROWS, ACTION_DIM)
        indices, noise = twin.draw_noise(trainer.hp, *sizes, CPU, *phase)
        logs.append(trainer.update(take(dataset, indices), noise))
    if twin is discrete_sac:
        # The library does not log temperature and entropy.
        logs = [{name: log[name] for name in ("critic_loss", "actor_loss")} for log in logs]
    assert_same_log(logs, expected)
