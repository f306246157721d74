"""Checkpoints: what is saved comes back; CORL's files load; nothing else is ever unpickled."""

import os
import pickle
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from corl_jax import cql as jax_cql
from corl_jax import td3_bc as jax_td3_bc
from corl_torch import cql, td3_bc
from shared import jax_side, torch_side
from shared.data import Batch
from shared.errors import InputError

STATE_DIM, ACTION_DIM, ROWS = 5, 2, 40
TWINS = {"td3_bc": (td3_bc, jax_td3_bc), "cql": (cql, jax_cql)}


def dataset() -> Batch:
    """A few random rows."""
    rng = np.random.default_rng(0)
    shapes = ((ROWS, STATE_DIM), (ROWS, ACTION_DIM), (ROWS,), (ROWS, STATE_DIM), (ROWS,))
    return Batch(*(rng.uniform(size=shape).astype(np.float32) for shape in shapes))


def trained(twin: Any, updates: int, seed: int = 0) -> Any:
    """A torch twin after some updates."""
    torch.manual_seed(seed)
    config = twin.TrainConfig(device="cpu", batch_size=4)
    trainer = twin.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    proceed(twin, trainer, updates)
    return trainer


def proceed(twin: Any, trainer: Any, updates: int) -> None:
    """Further updates on draws that depend on nothing before."""
    np.random.seed(1)
    torch.manual_seed(1)
    rows = torch_side.to_device(dataset(), torch.device("cpu"))
    for _ in range(updates):
        indices, noise = twin.draw_noise(trainer.hp, ROWS, ACTION_DIM, torch.device("cpu"))
        trainer.update(torch_side.take(rows, indices), noise)


def numbers(trainer: Any) -> list[torch.Tensor]:
    """All parameters of all parts, targets included."""
    modules = [part for part in vars(trainer).values() if isinstance(part, nn.Module)]
    return [parameter.detach().clone() for module in modules for parameter in module.parameters()]


@pytest.mark.parametrize("name", TWINS)
def test_torch_goes_on_where_it_was_saved(name: str, tmp_path: Path) -> None:
    """Weights, targets, moments and the update's number: three more updates give the same bits."""
    twin, _ = TWINS[name]
    trainer, other = trained(twin, 3), trained(twin, 1, seed=9)
    twin.save(trainer, tmp_path / "checkpoint.pt")
    twin.load(other, str(tmp_path / "checkpoint.pt"))
    assert other.total_it == 3
    for each in (trainer, other):
        proceed(twin, each, 3)
    assert all(torch.equal(a, b) for a, b in zip(numbers(trainer), numbers(other), strict=True))


@pytest.mark.parametrize("name", TWINS)
def test_jax_goes_on_where_it_was_saved(name: str, tmp_path: Path) -> None:
    """The whole state and the update's number."""
    _, twin = TWINS[name]
    config = twin.TrainConfig(batch_size=4)
    state, other = (
        twin.create_train_state(jax.random.key(seed), config, STATE_DIM, ACTION_DIM, 1.0) for seed in (0, 1)
    )
    path = tmp_path / "checkpoint.msgpack"
    jax_side.save_checkpoint(path, name, state, total_it=7)
    restored, total_it = jax_side.load_checkpoint(str(path), name, other)
    assert total_it == 7
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    assert all(jnp.array_equal(a, b) for a, b in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True))


def test_corls_td3_bc_file_loads(tmp_path: Path) -> None:
    """CORL's keys alone; the targets, which CORL leaves out, start as copies."""
    trainer, other = trained(td3_bc, 4), trained(td3_bc, 1, seed=9)
    parts = {name: part for name, part in trainer.parts().items() if not name.endswith("_target")}
    assert set(parts) | {"total_it"} == {
        *("critic_1", "critic_1_optimizer", "critic_2", "critic_2_optimizer", "actor", "actor_optimizer", "total_it")
    }
    content = {name: part.state_dict() for name, part in parts.items()}
    torch.save({**content, "total_it": 4}, tmp_path / "checkpoint_4.pt")
    td3_bc.load(other, str(tmp_path / "checkpoint_4.pt"))
    assert other.total_it == 4
    assert sorted(other.actor.state_dict()) == [f"net.{i}.{kind}" for i in (0, 2, 4) for kind in ("bias", "weight")]
    for name in ("actor", "critic_1", "critic_2"):
        network, target = getattr(other, name), getattr(other, f"{name}_target")
        assert all(torch.equal(a, b) for a, b in zip(network.parameters(), target.parameters(), strict=True))
        assert torch.equal(next(network.parameters()), next(getattr(trainer, name).parameters()))


class Scalar(nn.Module):
    """The class whose objects CORL pickles whole, as its script defines it."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.constant = nn.Parameter(torch.tensor(value, dtype=torch.float32))


def test_corls_cql_file_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its two temperatures are pickled modules of the script's own class, under the name `__main__.Scalar`."""
    monkeypatch.setattr(Scalar, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "Scalar", Scalar, raising=False)
    trainer, other = trained(cql, 2), trained(cql, 1, seed=9)
    content = {name: part.state_dict() for name, part in trainer.parts().items()}
    content |= {"sac_log_alpha": Scalar(-0.25), "cql_log_alpha": Scalar(0.75), "total_it": 2}
    torch.save(content, tmp_path / "checkpoint_1.pt")
    cql.load(other, str(tmp_path / "checkpoint_1.pt"))
    assert (float(other.log_alpha()), float(other.log_alpha_prime())) == (-0.25, 0.75)
    assert "base_network.6.weight" in other.actor.state_dict()
    assert "log_std_multiplier.constant" in other.actor.state_dict()
    assert torch.equal(other.critic_1.network[0].weight, trainer.critic_1.network[0].weight)
    # The optimiser steps the parameter that is used, unlike CORL's after a load.
    before = float(other.log_alpha())
    proceed(cql, other, 1)
    assert float(other.log_alpha()) != before


class Hostile:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("write", [torch.save, lambda content, path: path.write_bytes(pickle.dumps(content))])
def test_nothing_else_is_unpickled(write: Any, tmp_path: Path) -> None:
    """A file that would run code is refused, and its code does not run."""
    path = tmp_path / "checkpoint.pt"
    write({"actor": Hostile(tmp_path / "owned")}, path)
    with pytest.raises(InputError, match="cannot be read"):
        cql.load(trained(cql, 1), str(path))
    assert not (tmp_path / "owned").exists()


def test_a_file_that_lacks_a_part_is_refused(tmp_path: Path) -> None:
    """It names what is missing, the update's number too."""
    trainer = trained(td3_bc, 1)
    content = {name: part.state_dict() for name, part in trainer.parts().items() if name != "critic_2"}
    torch.save(content, tmp_path / "checkpoint.pt")
    with pytest.raises(InputError, match="it has no critic_2, total_it"):
        td3_bc.load(trainer, str(tmp_path / "checkpoint.pt"))


@pytest.mark.parametrize("name", TWINS)
def test_other_shapes_are_refused(name: str, tmp_path: Path) -> None:
    """A checkpoint of another environment."""
    twin, jax_twin = TWINS[name]
    twin.save(trained(twin, 1), tmp_path / "checkpoint.pt")
    wider = twin.create_trainer(twin.TrainConfig(device="cpu"), STATE_DIM + 1, ACTION_DIM, 1.0)
    with pytest.raises(InputError, match="does not fit"):
        twin.load(wider, str(tmp_path / "checkpoint.pt"))
    narrow, wide = (
        jax_twin.create_train_state(jax.random.key(0), jax_twin.TrainConfig(), size, ACTION_DIM, 1.0)
        for size in (STATE_DIM, STATE_DIM + 1)
    )
    jax_side.save_checkpoint(tmp_path / "checkpoint.msgpack", name, narrow, 1)
    with pytest.raises(InputError, match="does not fit"):
        jax_side.load_checkpoint(str(tmp_path / "checkpoint.msgpack"), name, wide)
