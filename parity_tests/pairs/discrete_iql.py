"""IQL of finite actions on the ladder."""

from typing import Any

import jax.numpy as jnp
from jax.nn import log_softmax

from parity_tests.families import Family
from parity_tests.pair import Facts, Loss, Mistake, Pair, load_choices

SMALL = {"hidden_dims": (64, 48)}


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """Every network's, and what few batches reach: a tie in V's loss."""
    v = twin.vf(batch.observations)
    return {
        "actor": twin.actor(batch.observations),
        "qf": twin.qf(batch.observations),
        "v": v,
        "weight at a tie": twin.expectile_weight(v - v),
    }


def corner(trainer: Any) -> None:
    """Critics that bring the policy's weights to their cap, and targets of another opinion."""
    for critic in (trainer.qf.q1, trainer.qf.q2):
        critic[-1].weight.data.mul_(3.0)
    for critic in (trainer.q_target.q1, trainer.q_target.q2):
        critic[-1].weight.data.mul_(-2.0)


def unlikelihood(actor: Any, batch: Any) -> Any:
    """Behaviour cloning: the data's negative log-likelihood."""
    return -jnp.take_along_axis(log_softmax(actor(batch.observations)), batch.actions[:, None], axis=-1).mean()


PAIR = Pair(
    name="discrete/iql",
    title="IQL, finite actions",
    family=Family.FINITE,
    use="It is stable, and asks for the value of no action outside the data.",
    paper="Kostrikov et al. 2021",
    url="https://arxiv.org/abs/2110.06169",
    benchmark_updates=1000,
    outputs=outputs,
    corners=("weight at a tie",),
    corner=corner,
    losses={
        "value_loss": Loss(of=("vf",), inputs=("batch",)),
        "q_loss": Loss(of=("qf",), inputs=("batch",)),
        "actor_loss": Loss(of=("actor",), inputs=("batch",)),
    },
    variants={
        "default": SMALL,
        # The cosine's end lies within the ladder's trajectory.
        "other": SMALL
        | {"discount": 0.9, "tau": 0.1, "beta": 10.0, "iql_tau": 0.9, "max_timesteps": 40}
        | {"vf_lr": 1e-3, "qf_lr": 2e-3, "actor_lr": 3e-3},
        "constant rate": SMALL
        | {"opt_decay_schedule": "none", "max_timesteps": 40, "beta": 0.5, "iql_tau": 0.5, "actor_lr": 1e-3},
        "images": SMALL | {"encoder": "minatar", "frame_stack": 2, "hidden_dims": (24,)},
    },
    load=load_choices,
    draw_inputs=lambda dataset, action_dim: (len(dataset[0]),),
    # The schedule is a number of Python's, which a recording would fix.
    on_device={"opt_decay_schedule": "none"},
    records_on_cpu=False,
    facts=Facts(
        rewarded="q_loss",
        target_inputs=("batch",),
        lagging=("q_target",),
        imitation=unlikelihood,
        sharp={"beta": 100.0},
    ),
)

MISTAKES = [
    Mistake("another activation", "(linear(width), nn.relu)", "(linear(width), nn.tanh)", "forward"),
    Mistake("a tie counted as a gain", "where(adv > 0.0", "where(adv >= 0.0", "forward"),
    Mistake("PyTorch's weights", "kernel_init=xavier_uniform(gain=1.0), bias_init=zeros", "bias_init=zeros", "start"),
    Mistake("PyTorch's biases", "xavier_uniform(gain=1.0), bias_init=zeros", "xavier_uniform(gain=1.0)", "start"),
    Mistake("a small last layer", "linear(output_dim)])", "Linear(output_dim, kernel_init=xavier_uniform(gain=0.1), "
            "bias_init=zeros)])", "start"),
    Mistake("expectile the wrong way round", "where(adv > 0.0", "where(adv < 0.0", "loss"),
    Mistake("absolute error of V", "(self.expectile_weight(adv) * square(adv)).mean()",
            "(self.expectile_weight(adv) * abs(adv)).mean()", "loss"),
    Mistake("maximum for minimum", "amin(value(self.q_target(batch.observations), batch.actions), axis=0)",
            "value(self.q_target(batch.observations), batch.actions).max(axis=0)", "loss"),
    Mistake("smallest critic of all actions", "amin(value(self.q_target(batch.observations), batch.actions), axis=0)",
            "self.q_target(batch.observations).min(axis=(0, 2))", "loss"),
    Mistake("online critics in V's loss", "amin(value(self.q_target(", "amin(value(self.qf(", "loss"),
    Mistake("target critics in the advantage", "q = amin(value(self.qf(batch", "q = amin(value(self.q_target(batch",
            "loss"),
    Mistake("inverted done flag", "(1.0 - batch.terminals)", "batch.terminals", "loss", breaks="terminals_are_masked"),
    Mistake("no discount", "self.hp.discount * next_v", "next_v", "loss"),
    Mistake("present states in the target", "self.vf(batch.next_observations)", "self.vf(batch.observations)", "loss"),
    Mistake("mean over critics", "square(q - target).mean(axis=1).sum()", "square(q - target).mean()", "loss"),
    Mistake("half of the squared error", "square(q - target).mean(axis=1).sum()",
            "0.5 * square(q - target).mean(axis=1).sum()", "loss"),
    Mistake("target broadcast to (B, B)", "square(q - target).mean(axis=1)",
            "square(q[..., None] - target).mean(axis=(1, 2))", "loss"),
    Mistake("actions counted from 1", "one_hot(actions, q.shape[-1])", "one_hot(actions - 1, q.shape[-1])", "loss"),
    Mistake("weight not capped", "MAX_WEIGHT = 100.0", "MAX_WEIGHT = float('inf')", "loss"),
    Mistake("capped before the exponential", "minimum(exp(self.hp.beta * adv), MAX_WEIGHT)",
            "exp(minimum(self.hp.beta * adv, MAX_WEIGHT))", "loss"),
    Mistake("divided by the inverse temperature", "exp(self.hp.beta * adv)", "exp(adv / self.hp.beta)", "loss"),
    Mistake("no weight", "-(weights * log_prob).mean()", "-log_prob.mean()", "loss"),
    Mistake("outputs for log-probabilities", "log_softmax(actor(batch.observations), axis=-1)",
            "actor(batch.observations)", "loss"),
    Mistake("log-probabilities over the batch", "log_softmax(actor(batch.observations), axis=-1)",
            "log_softmax(actor(batch.observations), axis=0)", "loss"),
    Mistake("gradient through the advantage", "value_and_grad(state.q_loss, has_aux=True)(state.qf, batch)",
            "value_and_grad(lambda qf, batch: (state.q_loss(qf, batch)[0] + "
            "state.replace(qf=qf).actor_loss(state.actor, batch)[0], {}), has_aux=True)(state.qf, batch)", "update"),
    Mistake("critics learn from the new V", "value_and_grad(state.q_loss, has_aux=True)",
            "value_and_grad(gradient_step(state, 'vf', vf_gradient).q_loss, has_aux=True)", "update"),
    Mistake("policy sees the new critics", "value_and_grad(state.actor_loss, has_aux=True)",
            "value_and_grad(gradient_step(state, 'qf', qf_gradient).actor_loss, has_aux=True)", "update"),
    Mistake("target from the new critics", "soft_update(state.q_target, state.qf,",
            "soft_update(state.q_target, gradient_step(state, 'qf', qf_gradient).qf,", "update",
            breaks="targets_move_once_when_due"),
    Mistake("tau the wrong way round", "(1.0 - tau) * old + tau * new", "tau * old + (1.0 - tau) * new", "update",
            breaks="targets_move_once_when_due"),
    Mistake("learning rates swapped", '"vf": hp.vf_lr, "qf": hp.qf_lr', '"vf": hp.qf_lr, "qf": hp.vf_lr', "update",
            "other"),
    Mistake("constant learning rate", '"actor": partial(actor_lr, hp)', '"actor": hp.actor_lr', "update", "other"),
    Mistake("learning rate one step ahead", "math.pi * minimum(updates,", "math.pi * minimum(updates + 1,", "update",
            "other"),
    Mistake("learning rate rises again", "minimum(updates, hp.max_timesteps) / hp", "updates / hp", "trajectory",
            "other"),
    Mistake("a schedule that was not asked for", 'if hp.opt_decay_schedule == "none":', "if False:", "update",
            "constant rate"),
    Mistake("the unlikeliest action", "return argmax(actor(observations), axis=-1)",
            "return jnp.argmin(actor(observations), axis=-1)", "act"),
    Mistake("same rows at every update", "jax.random.fold_in(key, step)", "jax.random.fold_in(key, 0 * step)",
            "draws"),
]  # fmt: skip
