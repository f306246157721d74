"""Checkpoints: a saved state is restored; CORL's files load; nothing else is ever unpickled."""

import os
import pickle
import random
import re
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from corl_torch import cql, td3_bc
from parity_tests.ladder.scene import cornered_rows
from parity_tests.pair import Pair
from parity_tests.pairs import PAIRS
from shared.errors import InputError
from shared.frameworks import jax_checkpoints, torch_checkpoints, torch_data
from shared.frameworks.exchange import blank_state, parameters, part_names, to_jax

STATE_DIM, ACTION_DIM = 5, 2
pytestmark = pytest.mark.usefixtures("in_haste")

CPU = torch.device("cpu")
STATISTICS = {"state_mean": np.zeros(STATE_DIM, np.float32), "state_std": np.ones(STATE_DIM, np.float32)}

# The contents of CORL's files, by key
CORL_KEYS = {
    "any_percent_bc": ["actor", "actor_optimizer", "total_it"],
    "td3_bc": [
        *("critic_1", "critic_1_optimizer", "critic_2", "critic_2_optimizer", "actor", "actor_optimizer", "total_it"),
    ],
    "awac": ["actor", "critic_1", "critic_2"],
    "iql": ["qf", "q_optimizer", "vf", "v_optimizer", "actor", "actor_optimizer", "actor_lr_schedule", "total_it"],
    "dt": ["model_state"],
}
CORL_KEYS["finetune/iql"] = CORL_KEYS["iql"]
CORL_KEYS["finetune/awac"] = CORL_KEYS["awac"]
CORL_KEYS["finetune/spot"] = ["vae", "vae_optimizer", *CORL_KEYS["td3_bc"]]
# CORL's names for some of their tensors
CORL_TENSORS = {
    "any_percent_bc": ["actor.net.4.weight"],
    "td3_bc": ["actor.net.4.weight", "critic_1.net.0.bias"],
    "awac": ["actor._log_std", "actor._mlp.6.weight", "critic_2._mlp.0.bias"],
    "iql": ["qf.q1.net.0.weight", "qf.q2.net.4.bias", "vf.v.net.2.weight", "actor.log_std", "actor.net.net.4.weight"],
    "dt": ["model_state.timestep_emb.weight", "model_state.blocks.0.attention.in_proj_weight"],
}
CORL_TENSORS["finetune/iql"] = CORL_TENSORS["iql"]
CORL_TENSORS["finetune/awac"] = CORL_TENSORS["awac"]
CORL_TENSORS["finetune/spot"] = [
    *("vae.encoder_shared.0.weight", "vae.mean.bias", "vae.log_std.weight", "vae.decoder.4.bias"),
    *CORL_TENSORS["td3_bc"],
]


def settings(pair: Pair) -> dict[str, Any]:
    """Small sizes."""
    return dict(pair.variants["default"]) | {"batch_size": 4}


def trained(pair: Pair, updates: int, seed: int = 0) -> Any:
    """A trainer of the PyTorch twin after some updates."""
    torch.manual_seed(seed)
    trainer = pair.torch.create_trainer(
        pair.torch.TrainConfig(device="cpu", **settings(pair)), STATE_DIM, ACTION_DIM, 1.0
    )
    proceed(pair, trainer, updates)
    return trainer


def proceed(pair: Pair, trainer: Any, updates: int) -> None:
    """Makes further updates on draws that depend on nothing earlier."""
    np.random.seed(1)
    random.seed(1)
    torch.manual_seed(1)
    columns = pair.load(cornered_rows(1.0, STATE_DIM, ACTION_DIM))
    rows = pair.ready(pair.torch, torch_data.to_device(columns, CPU), trainer.hp)
    draw = pair.torch_draws(trainer.hp, columns, ACTION_DIM, CPU)
    for _ in range(updates):
        indices, noise = draw(**pair.draw_statics(trainer.hp, trainer.total_it + 1))
        trainer.update(pair.take(pair.torch, rows, indices, trainer.hp), noise)


def save(pair: Pair, trainer: Any, path: Path) -> None:
    """Saves as a run does, which also knows the statistics of the states."""
    pair.torch.save(trainer, path, **STATISTICS)


def numbers(trainer: Any) -> list[torch.Tensor]:
    """All parameters of all parts, including targets."""
    parts = [part for part in vars(trainer).values() if isinstance(part, nn.Module | torch.Tensor)]
    return [parameter.detach().clone() for part in parts for parameter in parameters(part).values()]


@pytest.mark.thorough
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_torch_goes_on_where_it_was_saved(pair: Pair, tmp_path: Path) -> None:
    """Weights, targets, moments, schedules and the update's number: three more updates are bitwise equal."""
    trainer, other = trained(pair, 3), trained(pair, 1, seed=9)
    save(pair, trainer, tmp_path / "checkpoint.pt")
    pair.torch.load(other, str(tmp_path / "checkpoint.pt"))
    assert other.total_it == 3
    for each in (trainer, other):
        proceed(pair, each, 3)
    assert all(torch.equal(a, b) for a, b in zip(numbers(trainer), numbers(other), strict=True))


@pytest.mark.thorough
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_jax_goes_on_where_it_was_saved(pair: Pair, tmp_path: Path) -> None:
    """The whole state and the update's number."""
    other = blank_state(pair.jax, pair.jax.TrainConfig(**settings(pair)), STATE_DIM, ACTION_DIM)
    state = to_jax(trained(pair, 3), other)
    path = tmp_path / "checkpoint.msgpack"
    jax_checkpoints.save_checkpoint(path, pair.name, state, total_it=7)
    content = jax_checkpoints.load_checkpoint(str(path), pair.name, other)
    restored = content["state"]
    assert content["total_it"] == 7
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    assert all(jnp.array_equal(a, b) for a, b in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True))


@pytest.mark.parametrize("name", CORL_KEYS)
def test_corls_file_loads(name: str, tmp_path: Path) -> None:
    """Only CORL's keys and tensor names; the targets, which CORL leaves out, start as copies."""
    pair = PAIRS[name]
    trainer, other = trained(pair, 4), trained(pair, 1, seed=9)
    ours = {key: part.state_dict() for key, part in trainer.parts().items()} | {"total_it": 4}
    content = {key: ours[key] for key in CORL_KEYS[name]}
    tensors = {f"{key}.{tensor}" for key, part in content.items() if key != "total_it" for tensor in part}
    assert set(CORL_TENSORS[name]) <= tensors
    torch.save(content | (STATISTICS if name == "dt" else {}), tmp_path / "checkpoint_3.pt")
    pair.torch.load(other, str(tmp_path / "checkpoint_3.pt"))
    assert other.total_it == content.get("total_it", 0)
    for key in content.keys() - {"total_it"}:
        restored = other.parts()[key]
        if isinstance(restored, nn.Module):
            assert all(
                torch.equal(a, b) for a, b in zip(restored.state_dict().values(), content[key].values(), strict=True)
            )
    for target in [part for part in vars(other) if part.endswith("_target")]:
        source = target.removesuffix("_target")
        parameters = (getattr(other, part).parameters() for part in (target, source))
        assert all(torch.equal(a, b) for a, b in zip(*parameters, strict=True))


def test_a_checkpoint_from_before_a_renaming_loads(tmp_path: Path) -> None:
    """BEAR's, whose `log_alpha` was not the temperature then either."""
    older = {"critic": "critics", "critic_target": "critics_target", "critic_optimizer": "critics_optimizer"}
    older |= {"log_temperature": "log_temp", "log_temperature_optimizer": "log_temp_optimizer"}
    pair, paths = PAIRS["bear"], (tmp_path / "checkpoint.pt", tmp_path / "checkpoint.msgpack")
    trainer, other = trained(pair, 4), trained(pair, 1, seed=9)
    blank = blank_state(pair.jax, pair.jax.TrainConfig(**settings(pair)), STATE_DIM, ACTION_DIM)
    state = to_jax(trainer, blank)
    parts = {older.get(name, name): part for name, part in trainer.parts().items()}
    torch_checkpoints.save_checkpoint(paths[0], "bear", {**parts, "total_it": 4})
    named = {older.get(name, name): getattr(state, name) for name in part_names(state)}
    jax_checkpoints.save_checkpoint(paths[1], "bear", named, 4)
    pair.torch.load(other, str(paths[0]))
    for found in (to_jax(other, blank), jax_checkpoints.load_checkpoint(str(paths[1]), "bear", blank)["state"]):
        jax.tree.map(np.testing.assert_array_equal, found, state)


class Scalar(nn.Module):
    """The class whose objects CORL pickles whole, as CORL's script defines it."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.constant = nn.Parameter(torch.tensor(value, dtype=torch.float32))


@pytest.mark.parametrize("name", ["cql", "finetune/cal_ql", "finetune/cql"])
def test_corls_cql_file_loads(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its two temperatures are pickled modules of the script's own class, under the name `__main__.Scalar`."""
    monkeypatch.setattr(Scalar, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "Scalar", Scalar, raising=False)
    trainer, other = trained(PAIRS[name], 2), trained(PAIRS[name], 1, seed=9)
    content = {name: part.state_dict() for name, part in trainer.parts().items()}
    content |= {"sac_log_alpha": Scalar(-0.25), "cql_log_alpha": Scalar(0.75), "total_it": 2}
    torch.save(content, tmp_path / "checkpoint_1.pt")
    PAIRS[name].torch.load(other, str(tmp_path / "checkpoint_1.pt"))
    assert (other.log_temperature().item(), other.log_alpha_prime().item()) == (-0.25, 0.75)
    assert "base_network.6.weight" in other.actor.state_dict()
    assert "log_std_multiplier.constant" in other.actor.state_dict()
    assert torch.equal(other.critic_1.network[0].weight, trainer.critic_1.network[0].weight)
    # The optimiser steps the parameter that is used, unlike CORL's after loading.
    before = other.log_temperature().item()
    proceed(PAIRS[name], other, 1)
    assert other.log_temperature().item() != before


def test_our_cql_file_fits_corls_modules(tmp_path: Path) -> None:
    """CORL loads the temperatures from the file as modules; such a module can load ours."""
    trainer = trained(PAIRS["cql"], 2)
    cql.save(trainer, tmp_path / "checkpoint.pt")
    content = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert {*trainer.parts(), "total_it"} <= set(content)
    assert "base_network.6.weight" in content["actor"]
    for key, part in (("sac_log_alpha", trainer.log_temperature), ("cql_log_alpha", trainer.log_alpha_prime)):
        module = Scalar(9.0)
        module.load_state_dict(content[key])
        assert torch.equal(module.constant, part())


@pytest.mark.parametrize("name", ["sac_n", "edac", "lb_sac"])
def test_corls_ensemble_file_loads(name: str, tmp_path: Path) -> None:
    """Its temperature is a plain number, and it does not record the number of updates."""
    pair = PAIRS[name]
    trainer, other = trained(pair, 4), trained(pair, 1, seed=9)
    content = {key: part.state_dict() for key, part in trainer.parts().items()} | {"log_alpha": -0.25}
    keys = ("actor", "critic", "target_critic", "log_alpha", "actor_optim", "critic_optim", "alpha_optim")
    assert set(content) == set(keys)
    last = "critic.9" if name == "lb_sac" else "critic.6"
    tensors = {"trunk.4.weight", "mu.bias", "log_sigma.weight"}, {"critic.0.weight", f"{last}.bias"}
    assert tensors[0] <= set(content["actor"])
    assert tensors[1] <= set(content["critic"])
    assert content["critic"][f"{last}.bias"].shape == (5, 1, 1)
    torch.save(content, tmp_path / "9.pt")
    pair.torch.load(other, str(tmp_path / "9.pt"))
    assert (other.total_it, other.log_temperature.item()) == (0, -0.25)
    assert torch.equal(other.critic_target.critic[0].weight, trainer.critic_target.critic[0].weight)
    before = other.log_temperature.item()
    proceed(pair, other, 1)
    assert other.log_temperature.item() != before


class Hostile:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.path),)


def _script(_: Any, path: Path) -> None:
    torch.jit.save(torch.jit.script(nn.Linear(2, 2)), path)


@pytest.mark.parametrize("write", [torch.save, lambda content, path: path.write_bytes(pickle.dumps(content)), _script])
@pytest.mark.filterwarnings("ignore")  # TorchScript is deprecated
def test_nothing_else_is_unpickled(write: Any, tmp_path: Path) -> None:
    """A file that would run code is refused, its code does not run, and the message doesn't say how to run it."""
    path = tmp_path / "checkpoint.pt"
    write({"actor": Hostile(tmp_path / "owned")}, path)
    with pytest.raises(InputError, match="cannot be read: it is damaged or holds more than data") as caught:
        cql.load(trained(PAIRS["cql"], 1), str(path))
    assert not (tmp_path / "owned").exists()
    assert not re.search("weights.only|trust|torch.load", str(caught.value))


@pytest.mark.parametrize(
    ("load", "file", "to"), [(torch_checkpoints, "a.msgpack", "torch"), (jax_checkpoints, "a.pt", "jax")]
)
def test_the_other_frameworks_checkpoint_is_to_be_converted(load: Any, file: str, to: str) -> None:
    with pytest.raises(InputError, match=f"run `corl-twins convert` on it, with --to {to}"):
        load.read_checkpoint(file)


def test_a_file_that_lacks_a_part_is_refused(tmp_path: Path) -> None:
    """The message names the missing part, including the update's number."""
    trainer = trained(PAIRS["td3_bc"], 1)
    content = {name: part.state_dict() for name, part in trainer.parts().items() if name != "critic_2"}
    torch.save(content, tmp_path / "checkpoint.pt")
    with pytest.raises(InputError, match="it has no critic_2, total_it"):
        td3_bc.load(trainer, str(tmp_path / "checkpoint.pt"))


@pytest.mark.parametrize("name", ["td3_bc", "edac", "dt", "finetune/spot"])
def test_other_shapes_are_refused(name: str, tmp_path: Path) -> None:
    """As in a checkpoint from another environment."""
    pair = PAIRS[name]
    save(pair, trained(pair, 1), tmp_path / "checkpoint.pt")
    config = pair.torch.TrainConfig(device="cpu", **settings(pair))
    wider = pair.torch.create_trainer(config, STATE_DIM + 1, ACTION_DIM, 1.0)
    with pytest.raises(InputError, match="does not fit"):
        pair.torch.load(wider, str(tmp_path / "checkpoint.pt"))
    config = pair.jax.TrainConfig(**settings(pair))
    narrow, wide = (blank_state(pair.jax, config, size, ACTION_DIM) for size in (STATE_DIM, STATE_DIM + 1))
    jax_checkpoints.save_checkpoint(tmp_path / "checkpoint.msgpack", pair.name, narrow, 1)
    with pytest.raises(InputError, match="does not fit"):
        jax_checkpoints.load_checkpoint(str(tmp_path / "checkpoint.msgpack"), pair.name, wide)
