"""What SAC-N, EDAC and LB-SAC have in common on the ladder: actor, temperature and an ensemble of critics."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from parity_tests.pair import Loss, Mistake

SMALL = {"hidden_dim": 64, "num_critics": 5}


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """Every network's, and what few batches reach: standard deviations beyond their bounds."""
    mean, std = twin.actor(batch.observations)
    return {
        "mean": mean,
        "std": std,
        "bounded std": bounded_std(twin.actor, batch.observations, mean.shape[-1]),
        "critic": twin.critic(batch.observations, batch.actions),
        "critic_target": twin.critic_target(batch.next_observations, batch.actions),
    }


def bounded_std(actor: Any, observations: Any, action_dim: int) -> Any:
    """The policy's standard deviations where its head's biases lie below, between and above their bounds."""
    bias = np.linspace(-8.0, 5.0, action_dim)
    if isinstance(actor, nn.Module):
        bias = torch.as_tensor(bias, dtype=torch.get_default_dtype())
        return torch.func.functional_call(actor, {"log_sigma.bias": bias}, (observations,))[1]
    head = {**actor.params["log_sigma"], "bias": jnp.asarray(bias, dtype=float)}
    return actor.replace(params={**actor.params, "log_sigma": head})(observations)[1]


LOSSES = {
    "alpha_loss": Loss(of=("log_alpha",)),
    "actor_loss": Loss(of=("actor",)),
    "critic_loss": Loss(of=("critic",)),
}
OTHER = SMALL | {"num_critics": 2, "discount": 0.9, "tau": 0.1}
OTHER |= {"actor_learning_rate": 1e-3, "critic_learning_rate": 3e-3, "alpha_learning_rate": 1e-2}
# Near an action's bound 1 - tanh(u)^2 has lost most of its digits, in each framework others. The policy's moments
# differ by up to 3.4e-5 in one update. They differ by 1.7e-5 in an interval, which XLA rounds otherwise than single
# updates.
FLOAT32 = {"update": 1e-4, "shipped path": 1e-4}
# For the same reason double precision keeps ten digits where actions are stretched to their bounds. A loss differs by
# up to 4e-12, a gradient or a moment by 2e-10, and what an interval gives by 2e-9.
FLOAT64 = {"loss": 1e-11, "gradient": 1e-9, "update": 1e-9, "shipped path": 1e-8}

MISTAKES = [
    Mistake("log-deviation bounded by -20", "clamp(self.log_sigma(hidden), -5.0, 2.0)",
            "clamp(self.log_sigma(hidden), -20.0, 2.0)", "forward"),
    Mistake("swapped input", "concatenate([observations, actions]", "concatenate([actions, observations]", "forward"),
    Mistake("no tanh correction", "    log_prob = log_prob - log(1.0 - square(squashed) + 1e-6).sum(axis=-1)\n", "",
            "loss"),
    Mistake("tanh correction without its epsilon", "square(squashed) + 1e-6)", "square(squashed))", "loss"),
    Mistake("mean for a sum over actions", "LOG_SQRT_2PI).sum(axis=-1)", "LOG_SQRT_2PI).mean(axis=-1)", "loss"),
    Mistake("mean of the critics for their least", "next_q = smallest(critic(batch.next_observations, next_actions))",
            "next_q = critic(batch.next_observations, next_actions).mean(axis=0)", "loss"),
    Mistake("largest value for the least", "q.argmin(axis=0)", "q.argmax(axis=0)", "loss"),
    Mistake("no entropy in the target", " - self.alpha() * next_log_prob", "", "loss"),
    Mistake("online critics in the target", "self.hp, self.actor, self.critic_target",
            "self.hp, self.actor, self.critic", "loss"),
    Mistake("inverted done flag", "(1.0 - batch.terminals)", "batch.terminals", "loss", breaks="terminals_are_masked"),
    Mistake("next actions sampled in the current states", "sample(actor, batch.next_observations, noise.target)",
            "sample(actor, batch.observations, noise.target)", "loss"),
    Mistake("temperature's loss without a sign", "return (-log_alpha * ", "return (log_alpha * ", "loss"),
    Mistake("target entropy of 0", "(log_prob - actor.module.action_dim)", "log_prob", "loss"),
    Mistake("one sample for temperature and policy", "sample(actor, batch.observations, noise.alpha)",
            "sample(actor, batch.observations, noise.actor)", "loss"),
    Mistake("temperature for its logarithm", "return exp(self.log_alpha)", "return self.log_alpha", "loss"),
    Mistake("actions not differentiated", "q = critic(batch.observations, actions)\n        assert q.shape[1:] == log",
            "q = critic(batch.observations, jax.lax.stop_gradient(actions))\n        assert q.shape[1:] == log",
            "gradient"),
    Mistake("every critic's gradient", "return where(is_first, q, 0.0).sum(axis=0)",
            "return q.min(axis=0) + q.mean(axis=0) - jax.lax.stop_gradient(q.mean(axis=0))", "gradient"),
    Mistake("policy's loss with the old temperature", "value_and_grad(state.actor_loss, has_aux=True)",
            "value_and_grad(self.actor_loss, has_aux=True)", "update"),
    Mistake("target by the old policy", "value_and_grad(state.critic_loss, has_aux=True)",
            "value_and_grad(self.critic_loss, has_aux=True)", "update"),
    Mistake("learning rates swapped", '"critic", gradient, hp.critic_learning_rate',
            '"critic", gradient, hp.actor_learning_rate', "update", "other"),
    Mistake("targets from the old critics", "soft_update(state.critic_target, state.critic, hp.tau)",
            "soft_update(state.critic_target, self.critic, hp.tau)", "update"),
    Mistake("biased standard deviation", "std(q, axis=0, ddof=1)", "std(q, axis=0)", "log"),
    Mistake("random actions of one sign", "-max_action + 2.0 * max_action * noise.random", "max_action * noise.random",
            "log"),
    Mistake("spread of the old critics", "state.random_std(batch, noise)", "self.random_std(batch, noise)", "log"),
    Mistake("same noise at every update", "jax.random.fold_in(key, step)", "jax.random.fold_in(key, 0 * step)",
            "draws"),
]  # fmt: skip
