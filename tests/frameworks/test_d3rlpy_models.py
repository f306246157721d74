"""d3rlpy's models, written by hand in its layout. The genuine library's are in `parity_tests/reference/genuine`."""

import functools
import math
import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from corl_jax import bcq as jax_bcq
from corl_torch import awac, bcq, iql, td3_bc
from shared.commands import convert
from shared.commands.common import ended
from shared.errors import InputError
from shared.frameworks.d3rlpy_models import translated
from shared.frameworks.exchange import blank_state, to_torch
from shared.frameworks.jax_checkpoints import load_checkpoint
from shared.frameworks.torch_layers import Scalar
from shared.runs.configs import dump

STATE_DIM, ACTION_DIM, STEP = 11, 3, 7.0
SMALL = {"actor_hidden_dims": (8,), "critic_hidden_dims": (8,), "vae_hidden_dims": (8,), "n_action_samples": 2}
CONFIG = bcq.TrainConfig(device="cpu", **SMALL)


def trainer_of(config: Any = CONFIG, twin: Any = bcq) -> Any:
    """A fresh trainer."""
    return twin.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)


def optimizer(*networks: Mapping[str, Tensor]) -> dict[str, Any]:
    """A d3rlpy optimiser over these networks; moments are hundredths that count up with the parameter's number."""
    tensors = [tensor for network in networks for tensor in network.values()]
    state = {
        number: {
            "step": torch.tensor(STEP),
            "exp_avg": torch.full_like(tensor, number / 100),
            "exp_avg_sq": torch.full_like(tensor, number / 100),
        }
        for number, tensor in enumerate(tensors)
    }
    group = {"params": list(range(len(tensors))), "lr": 0.5, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0}
    return {"optim": {"state": state, "param_groups": [group]}, "lr_scheduler": None}


def model_of(trainer: bcq.BCQ) -> dict[str, Any]:
    """BCQ's networks as d3rlpy saves them."""

    def renamed(network: nn.Module, *heads: str) -> dict[str, Tensor]:
        names = ["_encoder._layers.0", *heads]
        keys = [f"{name}.{kind}" for name in names for kind in ("weight", "bias")]
        return dict(zip(keys, (tensor.clone() for tensor in network.state_dict().values()), strict=True))

    def members(critics: bcq.Critics) -> dict[str, Tensor]:
        return {
            f"{number}.{key}": tensor
            for number, member in enumerate(critics.members)
            for key, tensor in renamed(member, "_fc").items()
        }

    model: dict[str, Any] = {
        "policy": renamed(trainer.actor, "_fc"),
        "q_funcs": members(trainer.critic),
        "targ_q_funcs": members(trainer.critic_target),
        "targ_policy": renamed(trainer.actor_target, "_fc"),
        "vae_encoder": renamed(trainer.encoder, "_mu", "_logstd"),
        "vae_decoder": renamed(trainer.decoder, "_fc"),
    }
    return model | {
        "actor_optim": optimizer(model["policy"]),
        "critic_optim": optimizer(model["q_funcs"]),
        "vae_optim": optimizer(model["vae_encoder"], model["vae_decoder"]),
    }


def test_networks_and_moments_find_their_places(tmp_path: Path) -> None:
    """Including those of one optimiser for several networks; learning rates are the run's own."""
    saved, trainer = trainer_of(), trainer_of()
    torch.save(model_of(saved), tmp_path / "model.pt")
    bcq.load(trainer, str(tmp_path / "model.pt"))
    for name, part in saved.parts().items():
        if isinstance(part, nn.Module):
            for ours, theirs in zip(getattr(trainer, name).parameters(), part.parameters(), strict=True):
                assert torch.equal(ours, theirs)
    behind = len(list(trainer.encoder.parameters()))
    for number, parameter in enumerate(trainer.decoder.parameters()):
        moments = trainer.decoder_optimizer.state[parameter]
        assert moments["step"] == STEP
        assert torch.equal(moments["exp_avg"], torch.full_like(parameter, (behind + number) / 100))
    assert [group["lr"] for group in trainer.critic_optimizer.param_groups] == [CONFIG.critic_lr]
    assert trainer.total_it == 0


def test_an_optimizer_that_has_made_no_step_stays_fresh(tmp_path: Path) -> None:
    trainer, model = trainer_of(), model_of(trainer_of())
    model["actor_optim"]["optim"]["state"] = {}
    torch.save(model, tmp_path / "model.pt")
    bcq.load(trainer, str(tmp_path / "model.pt"))
    assert not trainer.actor_optimizer.state
    assert trainer.critic_optimizer.state


def test_it_is_converted_to_jax(tmp_path: Path) -> None:
    """With the settings of a file, because the model has none."""
    saved = trainer_of()
    torch.save(model_of(saved), tmp_path / "model.pt")
    (tmp_path / "config.yaml").write_text(dump(CONFIG))
    assert ended(convert.main, [str(tmp_path / "model.pt"), "--to", "jax", "--algorithm", "bcq"]) == 0
    empty = blank_state(jax_bcq, jax_bcq.TrainConfig(**vars(CONFIG)), STATE_DIM, ACTION_DIM, 1.0)
    state = load_checkpoint(str(tmp_path / "model.msgpack"), "bcq", empty)["state"]
    back = trainer_of()
    to_torch(state, back)
    assert torch.equal(back.decoder.net[0].weight, saved.decoder.net[0].weight)


# What replaces an entry of the file, below the keys that lead to it; None removes it
SPOILT: dict[str, tuple[tuple[Any, ...], Any, str]] = {
    "other widths": (
        ("policy", "_fc.weight"),
        torch.zeros(ACTION_DIM, 9),
        "does not fit this run's networks: actor net.2.weight has shape (3, 9), not (3, 8)",
    ),
    "more layers": (
        ("policy", "_encoder._layers.2.weight"),
        torch.zeros(8, 8),
        "does not fit this run's networks: actor has 5 tensors there and 4 here",
    ),
    "no decoder": (("vae_decoder",), None, "it is not as d3rlpy writes it (IndexError)"),
    "no critics' targets": (("targ_q_funcs",), None, "critic_target has 0 tensors there and 8 here"),
    "not finite": (("vae_encoder", "_mu.bias"), torch.full((2 * ACTION_DIM,), math.nan), "mean.bias is not finite"),
    "no moments": (("actor_optim", "optim"), {}, "it is not as d3rlpy writes it (KeyError)"),
    "moments of no parameter": (
        ("actor_optim", "optim", "state", 99),
        {},
        "it is not as d3rlpy writes it (IndexError)",
    ),
    "odd moments": (("actor_optim", "optim", "state", 0), 3, "actor_optimizer has no moments of parameter 0"),
    "no tensor": (("policy", "_fc.weight"), "text", "actor net.2.weight is no tensor"),
    "no network": (("policy",), 3, "it is not as d3rlpy writes it (TypeError)"),
}


@pytest.mark.parametrize("fault", SPOILT)
def test_what_does_not_fit_is_refused_in_one_line(fault: str, tmp_path: Path) -> None:
    """No part of it is loaded."""
    trainer, model = trainer_of(), model_of(trainer_of())
    before = [parameter.clone() for parameter in trainer.critic.parameters()]
    (*outer, last), value, message = SPOILT[fault]
    place = functools.reduce(operator.getitem, outer, model)
    if value is None:
        del place[last]
    else:
        place[last] = value
    torch.save(model, tmp_path / "model.pt")
    with pytest.raises(InputError) as refused:
        bcq.load(trainer, str(tmp_path / "model.pt"))
    assert message in str(refused.value)
    assert all(torch.equal(old, new) for old, new in zip(before, trainer.critic.parameters(), strict=True))


@pytest.mark.parametrize(
    ("twin", "message"),
    [(awac, "is d3rlpy's, whose networks"), (td3_bc, "does not fit this run's networks")],
)
def test_another_algorithms_model_is_refused(twin: Any, message: str, tmp_path: Path) -> None:
    torch.save(model_of(trainer_of()), tmp_path / "model.pt")
    with pytest.raises(InputError, match=message):
        twin.load(trainer_of(twin.TrainConfig(device="cpu"), twin), str(tmp_path / "model.pt"))


def test_a_deviation_that_is_no_tensor_is_refused(tmp_path: Path) -> None:
    """It is a single number of IQL's policy, from which another number is computed."""
    trainer = trainer_of(iql.TrainConfig(device="cpu"), iql)
    parts = {
        "policy": trainer.actor,
        "q_funcs": trainer.critic,
        "targ_q_funcs": trainer.critic_target,
        "value_func": trainer.value,
    }
    model: dict[str, Any] = {name: dict(part.state_dict()) for name, part in parts.items()}
    model["policy"]["log_std"] = "text"
    torch.save(model, tmp_path / "model.pt")
    with pytest.raises(InputError, match="actor log_std is no tensor"):
        iql.load(trainer, str(tmp_path / "model.pt"))


def test_a_single_number_has_two_axes_there() -> None:
    """A multiplier is loaded along with its moments."""
    number = {"_parameter": torch.full((1, 1), 3.0)}
    content = {"q_funcs": {}, "log_alpha": number, "alpha_optim": optimizer(number)}
    ours = Scalar(0.5)
    parts = {"log_alpha": ours, "log_alpha_optimizer": torch.optim.Adam(ours.parameters())}
    states = translated(content, parts, {"log_alpha": ["log_alpha"]})
    for name, part in parts.items():
        part.load_state_dict(states[name])
    assert ours().tolist() == 3.0
    moments = parts["log_alpha_optimizer"].state[ours.constant]
    assert moments["exp_avg"].shape == moments["exp_avg_sq"].shape == ours().shape
    assert moments["step"] == STEP
