"""IQL on the ladder."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from parity_tests.families import Family
from parity_tests.pair import Pair


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """Every network's output, and cases that few batches reach: a tie in V's loss, deviations beyond their bounds."""
    mean, std = twin.actor(batch.observations)
    q1, q2 = twin.critic(batch.observations, batch.actions)
    v = twin.value(batch.observations)
    found = {"mean": mean, "q1": q1, "q2": q2, "v": v, "weight at a tie": twin.expectile_weight(v - v)}
    if std is not None:
        found |= {"std": std, "bounded std": bounded_std(twin.actor, batch.observations, mean.shape[-1])}
    return found


def bounded_std(actor: Any, observations: Any, action_dim: int) -> Any:
    """The policy's standard deviations if its parameters are below, between and above their bounds."""
    log_std = np.linspace(-25.0, 5.0, action_dim)
    if isinstance(actor, nn.Module):
        log_std = torch.as_tensor(log_std, dtype=torch.get_default_dtype())
        return torch.func.functional_call(actor, {"log_std": log_std}, (observations,))[1]
    return actor.replace(params={**actor.params, "log_std": jnp.asarray(log_std, dtype=float)})(observations)[1]


def advantages(rng: np.random.Generator, size: int) -> dict[str, np.ndarray]:
    """Advantages, some of which bring the policy's weight to its cap at any temperature."""
    return {"adv": rng.normal(size=size, scale=10.0)}


class Adapter(Pair):
    """This pair's overrides."""

    corners = ("weight at a tie", "bounded std")

    outputs = staticmethod(outputs)

    def drawn_inside(self, twin: Any, noise: Any, hp: Any) -> Any:
        return noise._replace(dropout=twin.dropout_masks(noise, hp))

    extra_inputs = staticmethod(advantages)


PAIR = Adapter(
    name="iql",
    title="IQL",
    family=Family.WEIGHTED,
    use="Try this one first: it is stable, cheap, and never evaluates an action outside the data.",
    paper="Kostrikov et al. 2021",
    url="https://arxiv.org/abs/2110.06169",
    benchmark_updates=100,
    variants={
        "default": {},
        # The cosine ends within the ladder's trajectory, and the rate then rises again; weights reach their cap.
        "other": {"discount": 0.9, "tau": 0.1, "inverse_temperature": 20.0, "iql_tau": 0.9, "iql_deterministic": True}
        | {"max_timesteps": 40, "value_lr": 1e-3, "critic_lr": 1e-4, "actor_lr": 1e-3},
        "dropout": {"actor_dropout": 0.1},
        "images": {"encoder": "minatar", "frame_stack": 2, "crop_padding": 2},
    },
)
