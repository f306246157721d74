"""CRR on the ladder."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import Facts, Loss, Mistake, Pair, unlikelihood

SMALL = {"actor_hidden_dims": (32, 24), "critic_hidden_dims": (24, 32)}


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """Every network's, and the weight where there is no advantage, which batches do not reach."""
    mean, std = twin.actor(batch.observations)
    q = twin.critics(batch.observations, batch.actions)
    return {"mean": mean, "std": std, "critics": q, "weight at a tie": twin.weights(q[0] - q[0])}


def corner(trainer: Any) -> None:
    """Critics to whom samples are as far apart as Gumbel numbers are: else no draw would depend on values."""
    for critics in (trainer.critics, trainer.critics_target):
        for member in critics.members:
            member[-1].weight.data.mul_(30.0)


PAIR = Pair(
    name="crr",
    title="CRR",
    family=Family.WEIGHTED,
    use="Like AWAC, but actions that are worse than the policy's own can count for nothing.",
    paper="Wang et al. 2020",
    url="https://arxiv.org/abs/2006.15134",
    benchmark_updates=300,
    outputs=outputs,
    corners=("weight at a tie",),
    corner=corner,
    losses={"critic_loss": Loss(of=("critics",)), "actor_loss": Loss(of=("actor",))},
    variants={
        "default": SMALL,
        # In the form of d3rlpy 2.8.1, whose defaults these are: hard targets, which start with weights of their own
        "other": SMALL
        | {"copy_target_policy": False, "target_update_type": "hard", "target_update_interval": 7}
        | {"weight_type": "exp", "beta": 0.1, "max_weight": 3.0, "n_critics": 3, "n_action_samples": 3}
        | {"discount": 0.9, "actor_lr": 1e-3, "critic_lr": 1e-4},
        # Copies at other updates, against the best of the samples
        "max": SMALL
        | {"advantage_type": "max", "target_update_type": "hard", "target_update_interval": 3, "tau": 0.1}
        | {"n_critics": 2, "n_action_samples": 2},
    },
    update_statics=lambda config, step: {"copies": (step - 1) % config.target_update_interval == 0},
    interval_statics=lambda config, start, num_updates: {"phase": start % config.target_update_interval},
    facts=Facts(rewarded="critic_loss", imitation=unlikelihood),
)

MISTAKES = [
    Mistake("mean not squashed", "tanh(self.mean(encoded)), self.max", "self.mean(encoded), self.max", "forward"),
    Mistake("deviation for its logarithm", "exp(clamp(self.log_std(encoded), -20.0, 2.0))",
            "clamp(self.log_std(encoded), -20.0, 2.0)", "forward"),
    Mistake("deviation not scaled", "self.max_action * std", "std", "forward"),
    Mistake("samples not cut", "return clamp(mean[:, None] + std[:, None] * noise, -actor.module.max_action, "
            "actor.module.max_action)", "return mean[:, None] + std[:, None] * noise", "loss"),
    Mistake("mean of the log-density over the action", "log_density.sum(axis=-1)", "log_density.mean(axis=-1)",
            "loss"),
    Mistake("density of a squashed normal", "log(std) - LOG_SQRT_2PI", "log(std) - LOG_SQRT_2PI - "
            "log(1.0 - square(actions / (1.01 * actor.module.max_action)))", "loss"),
    Mistake("the online policy in the target", "self.hp, self.actor_target, self.critics_target",
            "self.hp, self.actor, self.critics_target", "loss"),
    Mistake("online critics in the target", "self.hp, self.actor_target, self.critics_target",
            "self.hp, self.actor_target, self.critics", "loss"),
    Mistake("mean critic in the target", "next_q = amin(critics(batch.next_observations, next_actions), axis=0)",
            "next_q = critics(batch.next_observations, next_actions).mean(axis=0)", "loss", "other"),
    Mistake("inverted done flag", "(1.0 - batch.terminals)", "batch.terminals", "loss", breaks="terminals_are_masked"),
    Mistake("mean over critics", "square(q - target).mean(axis=1).sum()", "square(q - target).mean()", "loss", "other"),
    Mistake("smallest critic in the advantage", "q = critics(batch.observations, batch.actions).mean(axis=0)",
            "q = critics(batch.observations, batch.actions).min(axis=0)", "loss", "other"),
    Mistake("target critics in the advantage", "self.hp, self.actor, self.critics\n        actions",
            "self.hp, self.actor, self.critics_target\n        actions", "loss"),
    Mistake("the best sample for the mean one", 'values.mean(axis=1) if hp.advantage_type == "mean"',
            'amax(values, axis=1) if hp.advantage_type == "mean"', "loss"),
    Mistake("one sample's noise for all states", "sample(actor, batch.observations, noise.actor)",
            "sample(actor, batch.observations, noise.actor[:1])", "loss"),
    Mistake("no advantage counts", "(advantage > 0.0)", "(advantage >= 0.0)", "forward"),
    Mistake("every advantage counts", "(advantage > 0.0)", "(advantage > -1e9)", "loss"),
    Mistake("disadvantages count", "(advantage > 0.0)", "(advantage < 0.0)", "loss"),
    Mistake("temperature forgotten", "exp(advantage / hp.beta)", "exp(advantage)", "loss", "other"),
    Mistake("weights not capped", "minimum(exp(advantage / hp.beta), hp.max_weight)", "exp(advantage / hp.beta)",
            "loss", "other"),
    Mistake("cap before the exponential", "minimum(exp(advantage / hp.beta), hp.max_weight)",
            "exp(minimum(advantage / hp.beta, hp.max_weight))", "loss", "other"),
    Mistake("weights not used", "-(log_probs * weights)", "-(log_probs + 0.0 * weights)", "loss",
            breaks="actor_does_more_than_imitate"),
    Mistake("gradient through the weights", "weights = self.weights(self.advantage(batch, noise))",
            "weights = self.weights(self.replace(actor=actor).advantage(batch, noise))", "gradient", "other"),
    Mistake("policy on the old critics", "value_and_grad(state.actor_loss,", "value_and_grad(self.actor_loss,",
            "update", "other"),
    Mistake("copies at all other updates", "where(copies, 1.0, 0.0)", "where(copies, 0.0, 1.0)", "update", "other"),
    Mistake("hard targets for soft ones", 'hp.tau if hp.target_update_type == "soft" else',
            'hp.tau if hp.target_update_type == "hard" else', "update"),
    Mistake("the policy's target not moved",
            "            actor_target=soft_update(state.actor_target, state.actor, rate),\n", "", "update",
            breaks="targets_move_once_when_due"),
    Mistake("tau the wrong way round", "(1.0 - tau) * old + tau * new", "tau * old + (1.0 - tau) * new", "update",
            breaks="targets_move_once_when_due"),
    Mistake("the critics at the policy's rate", '"critics": hp.critic_lr', '"critics": hp.actor_lr', "update", "other"),
    Mistake("the target starts as a copy", "    if not config.copy_target_policy:\n", "    if False:\n", "start",
            "other"),
    Mistake("same noise at every update", "jax.random.fold_in(key, step)", "jax.random.fold_in(key, 0 * step)",
            "draws"),
    Mistake("the best sample, not a drawn one", "argmax(values + noise[..., -1], axis=1)", "argmax(values, axis=1)",
            "act"),
    Mistake("exponential for Gumbel numbers", "generator.gumbel(", "generator.exponential(", "act"),
    Mistake("copies counted from 1", "copies = (step - start + phase)", "copies = (step + 1 - start + phase)",
            "shipped path", "other"),
]  # fmt: skip
