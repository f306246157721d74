"""IQL on the ladder."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from parity_tests.families import Family
from parity_tests.pair import Facts, Loss, Mistake, Pair, unlikelihood
from parity_tests.pairs import crops


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """Every network's, and what few batches reach: a tie in V's loss, standard deviations beyond their bounds."""
    mean, std = twin.actor(batch.observations)
    q1, q2 = twin.qf(batch.observations, batch.actions)
    v = twin.vf(batch.observations)
    found = {"mean": mean, "q1": q1, "q2": q2, "v": v, "weight at a tie": twin.expectile_weight(v - v)}
    if std is not None:
        found |= {"std": std, "bounded std": bounded_std(twin.actor, batch.observations, mean.shape[-1])}
    return found


def bounded_std(actor: Any, observations: Any, action_dim: int) -> Any:
    """The policy's standard deviations where its parameters lie below, between and above their bounds."""
    log_std = np.linspace(-25.0, 5.0, action_dim)
    if isinstance(actor, nn.Module):
        log_std = torch.as_tensor(log_std, dtype=torch.get_default_dtype())
        return torch.func.functional_call(actor, {"log_std": log_std}, (observations,))[1]
    return actor.replace(params={**actor.params, "log_std": jnp.asarray(log_std, dtype=float)})(observations)[1]


def advantages(rng: np.random.Generator, size: int) -> dict[str, np.ndarray]:
    """Some of which bring the policy's weight to its cap, whatever the temperature."""
    return {"adv": rng.normal(size=size, scale=10.0)}


PAIR = Pair(
    name="iql",
    title="IQL",
    family=Family.WEIGHTED,
    use="The first to try: it is stable, cheap, and asks for no action outside the data.",
    paper="Kostrikov et al. 2021",
    url="https://arxiv.org/abs/2110.06169",
    benchmark_updates=300,
    outputs=outputs,
    corners=("weight at a tie", "bounded std"),
    losses={
        "value_loss": Loss(of=("vf",), inputs=("batch",)),
        "q_loss": Loss(of=("qf",), inputs=("batch",)),
        "actor_loss": Loss(of=("actor",), inputs=("batch", "noise", "adv")),
    },
    variants={
        "default": {},
        # The cosine's end lies within the ladder's trajectory, then the rate rises again; weights reach their cap.
        "other": {"discount": 0.9, "tau": 0.1, "beta": 20.0, "iql_tau": 0.9, "iql_deterministic": True}
        | {"max_timesteps": 40, "vf_lr": 1e-3, "qf_lr": 1e-4, "actor_lr": 1e-3},
        "dropout": {"actor_dropout": 0.1},
        "images": {"encoder": "minatar", "frame_stack": 2, "crop_padding": 2},
    },
    drawn_inside=lambda twin, noise, hp: noise._replace(dropout=twin.dropout_masks(noise, hp)),
    extra_inputs=advantages,
    facts=Facts(rewarded="q_loss", target_inputs=("batch",), imitation=unlikelihood, sharp={"beta": 100.0}),
)

MISTAKES = [
    Mistake("mean not squashed", "mean = tanh(self.net(observations, masks=masks))",
            "mean = self.net(observations, masks=masks)",
            "forward"),
    Mistake("log-std bounded by -5", "clamp(self.log_std, -20.0, 2.0)", "clamp(self.log_std, -5.0, 2.0)", "forward"),
    Mistake("a tie counted as a loss", "(adv < 0.0)", "(adv <= 0.0)", "forward"),
    Mistake("swapped input", "concatenate([inputs, actions]", "concatenate([actions, inputs]", "forward"),
    Mistake("expectile the wrong way round", "(adv < 0.0)", "(adv > 0.0)", "loss"),
    Mistake("maximum for minimum", "return minimum(q1, q2)", "return jnp.maximum(q1, q2)", "loss"),
    Mistake("online critics in the advantage", "self.q_target(batch.observations", "self.qf(batch.observations",
            "loss"),
    Mistake("inverted done flag", "(1.0 - batch.terminals)", "batch.terminals", "loss"),
    Mistake("present states in the target", "self.vf(batch.next_observations)", "self.vf(batch.observations)", "loss"),
    Mistake("sum over critics", "square(q2 - target).mean()) / 2.0", "square(q2 - target).mean())", "loss"),
    Mistake("weight not capped", "MAX_WEIGHT = 100.0", "MAX_WEIGHT = float('inf')", "loss"),
    Mistake("divided by the inverse temperature", "exp(hp.beta * adv)", "exp(adv / hp.beta)", "loss"),
    Mistake("mean over action dimensions", "-log_prob.sum(axis=-1)", "-log_prob.mean(axis=-1)", "loss"),
    Mistake("half forgotten in the density", "(2.0 * square(std))", "square(std)", "loss"),
    Mistake("squares averaged over action dimensions", "square(mean - batch.actions).sum(axis=-1)",
            "square(mean - batch.actions).mean(axis=-1)", "loss", "other"),
    Mistake("broadcast to (B, B)", "(weight * bc_loss).mean()", "(weight[:, None] * bc_loss).mean()", "loss"),
    Mistake("no dropout", "inputs * next(masks) if layer is dropout else", "inputs if layer is dropout else", "loss",
            "dropout"),
    Mistake("masks the other way round", "masks = iter(masks)", "masks = iter(masks[::-1])", "loss", "dropout"),
    Mistake("critics learn from the new V", "value_and_grad(state.q_loss, has_aux=True)",
            "value_and_grad(gradient_step(state, 'vf', vf_gradient).q_loss, has_aux=True)", "update"),
    Mistake("policy sees the new V", 'batch, noise, aux["adv"]',
            "batch, noise, state.target_q(batch) - gradient_step(state, 'vf', vf_gradient).vf(batch.observations)",
            "update"),
    Mistake("target from the old critics", "soft_update(state.q_target, state.qf,",
            "soft_update(state.q_target, self.qf,", "update"),
    Mistake("tau the wrong way round", "(1.0 - tau) * old + tau * new", "tau * old + (1.0 - tau) * new", "update"),
    Mistake("learning rates swapped", '"vf": hp.vf_lr, "qf": hp.qf_lr', '"vf": hp.qf_lr, "qf": hp.vf_lr', "update",
            "other"),
    Mistake("constant learning rate", '"actor": partial(actor_lr, hp)', '"actor": hp.actor_lr', "update", "other"),
    Mistake("learning rate one step ahead", "math.pi * step / hp.max_timesteps",
            "math.pi * (step + 1) / hp.max_timesteps", "update", "other"),
    Mistake("learning rate 0 for good", '"actor": partial(actor_lr, hp)',
            '"actor": optax.cosine_decay_schedule(hp.actor_lr, hp.max_timesteps)', "trajectory", "other"),
    Mistake("draws begin anew at each interval", "steps = start + jnp.arange(num_updates)",
            "steps = jnp.arange(num_updates)", "shipped path"),
    Mistake("same noise at every update", "jax.random.fold_in(key, step)", "jax.random.fold_in(key, 0 * step)",
            "draws"),
    *crops.mistakes("hp.crop_padding", "update"),
]  # fmt: skip
