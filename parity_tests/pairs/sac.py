"""SAC on the ladder."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import Facts, Loss, Mistake, Pair
from parity_tests.pairs import crops, quantiles

# Learning begins within the first block of the short runs, after a few uniform actions.
SMALL = {"hidden_dim": 64, "random_steps": 3, "update_every": 5}
# Rows that count as experience so far: fewer than a dataset has, so that a draw beyond them shows.
FILLED = 150


def corner(trainer: Any) -> None:
    """Actions so near their lower bound that a softplus is the identity, and targets that differ."""
    trainer.actor.net[-1].bias.data[0] -= 12.0
    for critic in (trainer.critic_1_target, trainer.critic_2_target):
        quantiles.last_layer(critic.net).weight.data.mul_(20.0)


PAIR = Pair(
    name="sac",
    title="SAC, online",
    family=Family.ONLINE,
    use="The first to try for vectors of actions: it tunes its own exploration.",
    paper="Haarnoja et al. 2018",
    url="https://arxiv.org/abs/1812.05905",
    benchmark_updates=300,
    outputs=lambda twin, batch: {
        "mean": twin.actor(batch.observations)[0],
        "log_std": twin.actor(batch.observations)[1],
        "critic_1": twin.critic_1(batch.observations, batch.actions),
        "critic_2": twin.critic_2(batch.observations, batch.actions),
    },
    losses={
        "critic_loss": Loss(of=("critic_1", "critic_2")),
        "actor_loss": Loss(of=("actor",)),
        "alpha_loss": Loss(of=("log_alpha",), inputs=("log_prob",)),
    },
    variants={
        "default": SMALL,
        # With so large a rate the temperature moves away from 1, and deviations towards their clamp.
        "fast": SMALL | {"discount": 0.9, "tau": 0.1, "learning_rate": 1e-2},
        "quantiles": SMALL | {"critic": "qr", "n_quantiles": 5, "learning_rate": 3e-3},
        "implicit": SMALL | {"critic": "iqn", "n_quantiles": 6, "n_greedy_quantiles": 4, "embed_size": 8},
        "images": SMALL | {"encoder": "minatar", "frame_stack": 2, "crop_padding": 2, "hidden_dim": 24},
    },
    corner=corner,
    extra_inputs=lambda rng, size: {"log_prob": rng.normal(size=size)},
    draw_inputs=lambda dataset, action_dim: (FILLED, action_dim),
    interval_statics=lambda config, start, num_updates: {"size": FILLED},
    other_draws=("draw_exploration",),
    compiled_in="float32",
    facts=Facts(rewarded="critic_loss"),
)

MISTAKES = [
    Mistake("tanh for ReLU", "        Linear(hidden_dim),\n        nn.relu,\n        *map(",
            "        Linear(hidden_dim),\n        nn.tanh,\n        *map(", "forward"),
    Mistake("mean and deviation swapped", "        mean, log_std = jnp.split(", "        log_std, mean = jnp.split(",
            "forward"),
    Mistake("deviation not clamped", "clamp(log_std, -20.0, 2.0)", "clamp(log_std, -20.0, -0.1)", "forward"),
    Mistake("deviation for its logarithm", "u = mean + noise * exp(log_std)", "u = mean + noise * log_std", "loss"),
    Mistake("no tanh correction", "(log_density - log_slope).sum(", "log_density.sum(", "loss"),
    Mistake("mean over action dimensions", "log_slope).sum(axis=-1)", "log_slope).mean(axis=-1)", "loss"),
    Mistake("inverted done flag", "(1.0 - batch.terminals[:, None])", "batch.terminals[:, None]", "loss",
            breaks="terminals_are_masked"),
    Mistake("no entropy in the target", "next_q - self.alpha() * log_prob[:, None]", "next_q", "loss"),
    Mistake("online critics in the target", "(self.critic_1_target, self.critic_2_target)\n",
            "(self.critic_1, self.critic_2)\n", "loss"),
    Mistake("target broadcast to (B, B)", "square(q - target)", "square(q - target[:, 0])", "loss"),
    Mistake("one critic for the policy",
            "minimum(*quantiles(critics, batch.observations, actions).mean(axis=-1))",
            "quantiles(critics, batch.observations, actions)[0].mean(axis=-1)", "loss"),
    Mistake("mean over critics", "square(q - target).mean(axis=(1, 2)).sum()", "square(q - target).mean()", "loss"),
    Mistake("larger critic in the target", "critic[:, None] == 0", "critic[:, None] == 1", "loss"),
    Mistake("current noise in the target", "sample(actor, batch.next_observations, noise.target)",
            "sample(actor, batch.next_observations, noise.actor)", "loss"),
    Mistake("entropy without its gradient", "return (self.alpha() * log_prob - q).mean()",
            "return (self.alpha() * jax.lax.stop_gradient(log_prob) - q).mean()", "gradient"),
    Mistake("target entropy of the wrong sign", "(log_prob - self.actor.module.action_dim)",
            "(log_prob + self.actor.module.action_dim)", "loss"),
    Mistake("temperature loss without a sign", "return -(log_alpha * ", "return (log_alpha * ", "loss"),
    Mistake("policy on the old critics", "value_and_grad(state.actor_loss,", "value_and_grad(self.actor_loss,",
            "update"),
    Mistake("temperature first", "        alpha, critics = state.alpha(),",
            "        _, early = sample(state.actor, batch.observations, noise.actor)\n"
            "        (_, _), gradient = value_and_grad(state.alpha_loss, has_aux=True)(state.log_alpha, early)\n"
            '        state = gradient_step(state, "log_alpha", gradient)\n'
            "        alpha, critics = state.alpha(),", "update"),
    Mistake("targets from the old critics", "soft_update(state.critic_1_target, state.critic_1, hp.tau)",
            "soft_update(state.critic_1_target, self.critic_1, hp.tau)", "update"),
    Mistake("one target not moved",
            "            critic_2_target=soft_update(state.critic_2_target, state.critic_2, hp.tau),\n", "", "update",
            breaks="targets_move_once_when_due"),
    Mistake("entropy logged as its negative", '"entropy": -aux', '"entropy": aux', "log"),
    Mistake("draws beyond the experience", "draw_noise(key, step, state.hp, size, action_dim)",
            "draw_noise(key, step, state.hp, len(dataset), action_dim)", "shipped path"),
    Mistake("same noise at every update", "jax.random.split(jax.random.fold_in(key, step), count)",
            "jax.random.split(jax.random.fold_in(key, 0 * step), count)", "draws"),
    *quantiles.ANY_CONTINUOUS_MISTAKES,
    Mistake("smaller quantiles of either critic", "where(critic[:, None] == 0, q[0], q[1])", "minimum(*q)", "loss",
            "quantiles"),
    Mistake("a critic chosen for the whole batch", "argmin(q.mean(axis=-1), axis=0)",
            "argmin(q.mean(axis=(1, 2)))[None].repeat(q.shape[1])", "loss", "quantiles"),
    Mistake("no entropy in the quantiles of the target", "soft_value = next_q - self.alpha() * log_prob[:, None]",
            'soft_value = next_q - (hp.critic == "mean") * self.alpha() * log_prob[:, None]', "loss", "quantiles"),
    Mistake("the entropy shared out among the quantiles", "self.alpha() * log_prob[:, None]",
            "self.alpha() * log_prob[:, None] / next_q.shape[1]", "loss", "quantiles"),
    Mistake("smaller quantiles of either critic for the policy",
            "minimum(*quantiles(critics, batch.observations, actions).mean(axis=-1))",
            "minimum(*quantiles(critics, batch.observations, actions)).mean(axis=-1)", "loss", "quantiles"),
    Mistake("the policy raises the highest quantile", "actions).mean(axis=-1))", "actions)[..., -1])", "loss",
            "quantiles"),
    Mistake("the policy's values at drawn fractions", "quantiles(critics, batch.observations, actions).mean",
            "quantiles(critics, batch.observations, actions, noise.error_fractions).mean", "loss", "implicit"),
    Mistake("even fractions in the target", "actions, noise.target_fractions)", "actions)", "loss", "implicit"),
    Mistake("the target at the fractions of the error", "actions, noise.target_fractions)",
            "actions, noise.error_fractions)", "loss", "implicit"),
    Mistake("the first critic's fractions for both", "zip(critics, given, strict=True)",
            "zip(critics, [given[0]] * 2, strict=True)", "loss", "implicit"),
    *crops.mistakes("hp.crop_padding", "update"),
    *crops.DRAWN,
]  # fmt: skip
