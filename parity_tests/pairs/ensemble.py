"""Shared parts of the adapters for SAC-N, EDAC and LB-SAC: actor, temperature and an ensemble of critics."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from parity_tests.pair import Loss

SMALL = {"hidden_dim": 64, "n_critics": 5}


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """Every network's output, and a case that few batches reach: standard deviations beyond their bounds."""
    mean, std = twin.actor(batch.observations)
    return {
        "mean": mean,
        "std": std,
        "bounded std": bounded_std(twin.actor, batch.observations, mean.shape[-1]),
        "critic": twin.critic(batch.observations, batch.actions),
        "critic_target": twin.critic_target(batch.next_observations, batch.actions),
    }


def bounded_std(actor: Any, observations: Any, action_dim: int) -> Any:
    """The policy's standard deviations if its head's biases are below, between and above their bounds."""
    bias = np.linspace(-8.0, 5.0, action_dim)
    if isinstance(actor, nn.Module):
        bias = torch.as_tensor(bias, dtype=torch.get_default_dtype())
        return torch.func.functional_call(actor, {"log_sigma.bias": bias}, (observations,))[1]
    head = {**actor.params["log_sigma"], "bias": jnp.asarray(bias, dtype=float)}
    return actor.replace(params={**actor.params, "log_sigma": head})(observations)[1]


LOSSES = {
    "alpha_loss": Loss(of=("log_temperature",)),
    "actor_loss": Loss(of=("actor",)),
    "critic_loss": Loss(of=("critic",)),
}
OTHER = SMALL | {"n_critics": 2, "discount": 0.9, "tau": 0.1}
OTHER |= {"actor_lr": 1e-3, "critic_lr": 3e-3, "temperature_lr": 1e-2}
# Near an action's bound, 1 - tanh(u)^2 loses most of its digits, differently in each framework. The policy's moments
# differ by up to 3.4e-5 in one update. They differ by 1.7e-5 in an interval, which XLA rounds differently from single
# updates.
FLOAT32 = {"update": 1e-4, "shipped path": 1e-4}
# For the same reason, double precision keeps ten digits if actions are stretched to their bounds. A loss differs by up
# to 4e-12, a gradient or a moment by 2e-10, and an interval's results by 2e-9.
FLOAT64 = {"loss": 1e-11, "gradient": 1e-9, "update": 1e-9, "shipped path": 1e-8}
