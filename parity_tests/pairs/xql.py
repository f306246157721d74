"""XQL on the ladder."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from parity_tests.families import Family
from parity_tests.pair import Facts, Loss, Mistake, Pair, unlikelihood


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """Every network's, and what few batches reach: the loss far beyond its clip, deviations beyond their bounds."""
    mean, std = twin.actor(batch.observations)
    q1, q2 = twin.qf(batch.observations, batch.actions)
    return {
        "mean": mean,
        "std": std,
        "q1": q1,
        "q2": q2,
        "v": twin.vf(batch.observations),
        "loss of large errors": twin.gumbel_loss(40.0 * batch.observations[:, 0] + 30.0),
        "loss of negative errors": twin.gumbel_loss(-3.0 - abs(batch.observations[:, 0])),
        "bounded std": bounded_std(twin.actor, batch.observations, mean.shape[-1]),
    }


def bounded_std(actor: Any, observations: Any, action_dim: int) -> Any:
    """The policy's standard deviations where its parameters lie below, between and above their bounds."""
    log_std = np.linspace(-8.0, 5.0, action_dim)
    if isinstance(actor, nn.Module):
        log_std = torch.as_tensor(log_std, dtype=torch.get_default_dtype())
        return torch.func.functional_call(actor, {"log_std": log_std}, (observations,))[1]
    return actor.replace(params={**actor.params, "log_std": jnp.asarray(log_std, dtype=float)})(observations)[1]


def corner(trainer: Any) -> None:
    """Target critics that bring errors beyond the loss's clip and weights to their cap."""
    for critic in (trainer.q_target.q1, trainer.q_target.q2):
        critic.net[-1].weight.data.mul_(8.0)


PAIR = Pair(
    name="xql",
    title="XQL",
    family=Family.WEIGHTED,
    use="Like IQL, but a temperature takes V from the mean value of the data's actions to the largest one.",
    paper="Garg et al. 2023",
    url="https://arxiv.org/abs/2301.02328",
    benchmark_updates=300,
    outputs=outputs,
    corners=("loss of large errors", "loss of negative errors", "bounded std"),
    corner=corner,
    losses={
        "value_loss": Loss(of=("vf",)),
        "actor_loss": Loss(of=("actor",)),
        "q_loss": Loss(of=("qf",), inputs=("batch",)),
    },
    variants={
        "default": {},
        # The other form of the loss, several steps of V on rows of which some are drawn
        "other": {"discount": 0.9, "tau": 0.1, "loss_temp": 0.5, "max_clip": 2.0, "gumbel_form": "log"}
        | {"num_v_updates": 3, "random_actions": 2, "noise": True, "noise_std": 0.3, "beta": 20.0}
        | {"vf_lr": 1e-3, "qf_lr": 1e-4, "actor_lr": 1e-3, "opt_decay_schedule": "none"},
        # The cosine's end lies within the ladder's trajectory; no clip.
        "dropout": {"actor_dropout": 0.1, "random_actions": 1, "max_clip": None, "loss_temp": 4.0, "beta": 0.5}
        | {"max_timesteps": 40},
    },
    # Exponentials of errors up to 7 multiply what rounding leaves: measured 2e-5 in a loss, 5e-5 in Adam's moments.
    float32={"loss": 5e-5, "update": 1e-4},
    # The schedule is a number of Python's, which a recording would fix.
    on_device={"opt_decay_schedule": "none"},
    drawn_inside=lambda twin, noise, hp: noise._replace(dropout=twin.dropout_masks(noise, hp)),
    facts=Facts(rewarded="q_loss", target_inputs=("batch",), imitation=unlikelihood, sharp={"beta": 100.0}),
)

MISTAKES = [
    Mistake("mean not squashed", "tanh(self.net(observations, masks))", "self.net(observations, masks)", "forward"),
    Mistake("log-std bounded by -20", "clamp(self.log_std, -5.0, 2.0)", "clamp(self.log_std, -20.0, 2.0)", "forward"),
    Mistake("swapped input", "concatenate([observations, actions], axis", "concatenate([actions, observations], axis",
            "forward"),
    Mistake("LayerNorm's epsilon of PyTorch", "epsilon=1e-6", "epsilon=1e-5", "forward"),
    Mistake("Gumbel clip after exp",
            "growth, unit = exp(z - largest), exp(-largest)",
            "growth, unit = minimum(exp(error - largest), exp(hp.max_clip or 700.0)), exp(-largest)", "forward"),
    Mistake("clip after the maximum", "maximum(stop_gradient(z.max()), -1.0)",
            "maximum(stop_gradient(error.max()), -1.0)", "forward"),
    Mistake("no floor below the maximum", "maximum(stop_gradient(z.max()), -1.0)", "stop_gradient(z.max())",
            "forward"),
    Mistake("maximum of each row", "stop_gradient(z.max())", "stop_gradient(z)", "loss"),
    Mistake("not divided by the largest exponential", "growth, unit = exp(z - largest), exp(-largest)",
            "growth, unit = exp(z), 1.0", "loss"),
    Mistake("gradient through the maximum", "stop_gradient(z.max())", "z.max()", "gradient"),
    Mistake("gradient through the slope", "(stop_gradient(slope) * error)", "(slope * error)", "gradient", "other"),
    Mistake("slope of clipped errors 0", "(stop_gradient(slope) * error)", "(stop_gradient(slope) * z)", "gradient",
            "other"),
    Mistake("temperature multiplied", "(q - v) / self.hp.loss_temp", "(q - v) * self.hp.loss_temp", "loss", "other"),
    Mistake("temperatures exchanged", "(q - v) / self.hp.loss_temp", "(q - v) / self.hp.beta", "loss"),
    Mistake("online critics", "self.q_target(observations, actions)", "self.qf(observations, actions)", "loss"),
    Mistake("maximum for minimum", "return minimum(q1, q2)", "return maximum(q1, q2)", "loss"),
    Mistake("random actions in other rows' states", "noise.random.reshape(-1",
            "noise.random.swapaxes(0, 1).reshape(-1", "loss", "other"),
    Mistake("noise not clipped", "clamp(hp.noise_std * noise.action, -NOISE_CLIP, NOISE_CLIP)",
            "hp.noise_std * noise.action", "loss", "other"),
    Mistake("noisy actions not clipped", "actions = clamp(actions + max_action * change, -max_action, max_action)",
            "actions = actions + max_action * change", "loss", "other"),
    Mistake("weight not capped", "minimum(exp(self.hp.beta * adv), MAX_WEIGHT)", "exp(self.hp.beta * adv)", "loss",
            "other"),
    Mistake("cap before the exponential", "minimum(exp(self.hp.beta * adv), MAX_WEIGHT)",
            "exp(minimum(self.hp.beta * adv, MAX_WEIGHT))", "loss", "other"),
    Mistake("divided by the inverse temperature", "exp(self.hp.beta * adv)", "exp(adv / self.hp.beta)", "loss"),
    Mistake("mean over action dimensions", "log_density.sum(axis=-1)", "log_density.mean(axis=-1)", "loss"),
    Mistake("broadcast to (B, B)", "-(weights * log_prob).mean()", "-(weights[:, None] * log_prob).mean()", "loss"),
    Mistake("inverted done flag", "(1.0 - batch.terminals)", "batch.terminals", "loss", breaks="terminals_are_masked"),
    Mistake("present states in the target", "self.vf(batch.next_observations)", "self.vf(batch.observations)", "loss"),
    Mistake("squared error for Huber's", "where(size <= HUBER_DELTA, square(error) / 2.0, "
            "HUBER_DELTA * (size - HUBER_DELTA / 2.0))", "square(error) / 2.0", "loss"),
    Mistake("mean over critics", "huber(q1 - target).mean() + huber(q2 - target).mean(), {}",
            "(huber(q1 - target).mean() + huber(q2 - target).mean()) / 2.0, {}", "loss"),
    Mistake("no dropout", "inputs * next(masks) if layer is dropout else", "inputs if layer is dropout else", "loss",
            "dropout"),
    Mistake("policy sees the old V", "value_and_grad(state.actor_loss,", "value_and_grad(self.actor_loss,", "update"),
    Mistake("critics learn from the old V", "value_and_grad(state.q_loss,", "value_and_grad(self.q_loss,", "update"),
    Mistake("one step of V", "range(hp.num_v_updates)", "range(1)", "update", "other"),
    Mistake("target from the old critics", "soft_update(state.q_target, state.qf,",
            "soft_update(state.q_target, self.qf,", "update", breaks="targets_move_once_when_due"),
    Mistake("tau the wrong way round", "(1.0 - tau) * old + tau * new", "tau * old + (1.0 - tau) * new", "update"),
    Mistake("learning rates swapped", '"vf": hp.vf_lr, "qf": hp.qf_lr', '"vf": hp.qf_lr, "qf": hp.vf_lr', "update",
            "other"),
    Mistake("constant learning rate", '"actor": partial(actor_lr, hp)', '"actor": hp.actor_lr', "update", "dropout"),
    Mistake("learning rate rises again", "minimum(updates, hp.max_timesteps) / hp", "updates / hp", "trajectory",
            "dropout"),
    Mistake("draws begin anew at each interval", "steps = start + jnp.arange(num_updates)",
            "steps = jnp.arange(num_updates)", "shipped path"),
    Mistake("same noise at every update", "jax.random.fold_in(key, step)", "jax.random.fold_in(key, 0 * step)",
            "draws"),
]  # fmt: skip
