"""CQL on the ladder."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import Facts, Loss, Mistake, Pair

SMALL = {"cql_n_actions": 4, "hidden_dim": 32}


def corner(trainer: Any) -> None:
    """The Lagrange multiplier beyond its bound, or so small that any bound but 0 would show."""
    trainer.log_alpha_prime.constant.data.fill_(14.5 if trainer.hp.use_automatic_entropy_tuning else -5.0)


PAIR = Pair(
    name="cql",
    title="CQL",
    family=Family.REGULARISATION,
    use="Overestimated values are the fear: it is cautious, and dear per update.",
    paper="Kumar et al. 2020",
    url="https://arxiv.org/abs/2006.04779",
    benchmark_updates=16,
    outputs=lambda twin, batch: {
        "mean": twin.actor(batch.observations)[0],
        "std": twin.actor(batch.observations)[1],
        "critic_1": twin.critic_1(batch.observations, batch.actions),
        "critic_2": twin.critic_2(batch.observations, batch.actions),
    },
    losses={
        "actor_loss": Loss(of=("actor",)),
        "alpha_loss": Loss(("log_alpha",), ("log_prob",), used=lambda config: config.use_automatic_entropy_tuning),
        "critic_loss": Loss(of=("critic_1", "critic_2")),
        "alpha_prime_loss": Loss(("log_alpha_prime",), ("gap_1", "gap_2"), used=lambda config: config.cql_lagrange),
    },
    variants={
        "default": SMALL,
        "antmaze": SMALL
        | {"cql_lagrange": True, "cql_max_target_backup": True, "cql_target_action_gap": 0.8, "cql_alpha": 5.0}
        | {"cql_clip_diff_min": -200.0, "q_n_hidden_layers": 5, "policy_lr": 1e-4},
        "unweighted": SMALL
        | {"cql_importance_sample": False, "cql_temp": 2.0, "backup_entropy": True, "bc_steps": 5}
        | {"orthogonal_init": False, "policy_log_std_multiplier": 0.5, "target_update_period": 3}
        | {"alpha_multiplier": 0.7},
        "fixed temperature": SMALL
        | {"use_automatic_entropy_tuning": False, "alpha_multiplier": 0.3}
        | {"backup_entropy": True, "cql_max_target_backup": True}
        | {"cql_clip_diff_min": 3.9, "cql_clip_diff_max": 4.3, "cql_lagrange": True},
    },
    corner=corner,
    extra_inputs=lambda rng, size: {"log_prob": rng.normal(size=size), "gap_1": rng.normal(), "gap_2": rng.normal()},
    draw_statics=lambda config, step: {"in_bc_steps": step <= config.bc_steps},
    update_statics=lambda config, step: {"move_targets": step % config.target_update_period == 0},
    interval_statics=lambda config, start, num_updates: {
        "phase": start % config.target_update_period,
        "bc_updates": min(max(config.bc_steps - start, 0), num_updates),
    },
    facts=Facts(rewarded="critic_loss", rate="soft_target_update_rate"),
)

MISTAKES = [
    Mistake("log-std not clamped", "exp(clamp(log_std, -20.0, 2.0))", "exp(clamp(log_std, -20.0, -1.0))", "forward"),
    Mistake("no tanh correction", "    log_prob = -2.0 * (math.log(2.0) - u - softplus(-2.0 * u))\n",
            "    log_prob = 0.0\n", "loss"),
    Mistake("mean for a sum over actions", "log_prob.sum(axis=-1)", "log_prob.mean(axis=-1)", "loss"),
    Mistake("temperature loss without a sign", "return -(log_alpha * ", "return (log_alpha * ", "loss"),
    Mistake("next samples judged in next states", "q_next = critic(batch.observations, next)",
            "q_next = critic(batch.next_observations, next)", "loss"),
    Mistake("densities swapped", "q_next - next_log_prob, q_current - current_log_prob",
            "q_next - current_log_prob, q_current - next_log_prob", "loss"),
    Mistake("count subtracted from the soft maximum", "ood = logsumexp(sampled / hp.cql_temp, axis=1) * hp.cql_temp",
            "ood = (logsumexp(sampled / hp.cql_temp, axis=1) - math.log(sampled.shape[1])) * hp.cql_temp", "loss"),
    Mistake("soft maximum over the batch", "logsumexp(sampled / hp.cql_temp, axis=1)",
            "logsumexp(sampled / hp.cql_temp, axis=0).mean()[None].repeat(len(q))", "loss"),
    Mistake("temperature applied once", "logsumexp(sampled / hp.cql_temp, axis=1) * hp.cql_temp",
            "logsumexp(sampled / hp.cql_temp, axis=1)", "loss", "unweighted"),
    Mistake("mean clipped, not the rows", "gap = clamp(ood - q, hp.cql_clip_diff_min, hp.cql_clip_diff_max).mean()",
            "gap = clamp((ood - q).mean(), hp.cql_clip_diff_min, hp.cql_clip_diff_max)", "loss", "fixed temperature"),
    Mistake("log-probability not of the best action",
            "(take_along_axis(values, best, 1).squeeze(-1) for values in (next_q, log_prob))",
            "take_along_axis(next_q, best, 1).squeeze(-1), log_prob[:, 0]", "loss", "fixed temperature"),
    Mistake("entropy not in the target", "next_q = next_q - self.alpha() * log_prob", "pass", "loss", "unweighted"),
    Mistake("policy samples not detached", "gap, own = self.gap(critic, batch, q, noise.random, (current, next))\n",
            "moved = critic(batch.observations, next[0])\n"
            "            moved = next[0], next[1] + moved - jax.lax.stop_gradient(moved)\n"
            "            gap, own = self.gap(critic, batch, q, noise.random, (current, moved))\n", "gradient"),
    Mistake("Lagrange without cql_alpha", "return alpha_prime * hp.cql_alpha * (gap", "return alpha_prime * (gap",
            "loss", "antmaze"),
    Mistake("biased standard deviation", "ddof=1", "ddof=0", "log"),
    Mistake("actor sees the new critics",
            '        state = gradient_step(state, "actor", actor_gradient, hp.policy_lr)\n'
            '        state = gradient_step(state, "critic_1", gradients[0], hp.qf_lr)\n',
            '        state = gradient_step(state, "critic_1", gradients[0], hp.qf_lr)\n'
            "        actor_gradient = jax.grad(state.actor_loss, has_aux=True)(state.actor, batch, noise)[0]\n"
            '        state = gradient_step(state, "actor", actor_gradient, hp.policy_lr)\n', "update"),
    Mistake("learning rates swapped", '"critic_1", gradients[0], hp.qf_lr', '"critic_1", gradients[0], hp.policy_lr',
            "update"),
    Mistake("targets from the old critics", "soft_update(state.critic_1_target, state.critic_1,",
            "soft_update(state.critic_1_target, critics[0],", "update", breaks="targets_move_once_when_due"),
    Mistake("target period ignored", "move_targets = (phase + place + 1) % hp.target_update_period == 0",
            "move_targets = True", "shipped path", "unweighted"),
    Mistake("same noise at every update", "jax.random.fold_in(key, step)", "jax.random.fold_in(key, 0 * step)",
            "draws"),
]  # fmt: skip
