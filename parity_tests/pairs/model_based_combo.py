"""COMBO on the ladder: MOPO's roll-outs without a penalty, and CQL's conservative term on two kinds of rows."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import Facts, Loss, Mistake, Pair
from parity_tests.pairs.imagined import COMMON, LEARNT, replays, rolled_out

SMALL: dict[str, Any] = {"hidden_dims": (32, 24, 20), "cql_n_actions": 4, "rollout_batch_size": 30} | {
    "rollout_length": 3,
    "rollout_freq": 4,
    "model_retain_epochs": 2,
    "real_ratio": 0.3,
    **LEARNT,
}


def corner(trainer: Any) -> None:
    """A temperature beyond 1; the Lagrange multiplier beyond its bound, or so small that any bound but 0 would show."""
    trainer.log_alpha.constant.data.fill_(0.5)
    trainer.log_alpha_prime.constant.data.fill_(14.5 if trainer.hp.auto_alpha else -5.0)


PAIR = Pair(
    name="model_based/combo",
    title="COMBO",
    family=Family.MODEL,
    use="MOPO without a measure of what the model knows: values are pushed down where it wanders, as CQL does.",
    paper="Yu et al. 2021",
    url="https://arxiv.org/abs/2102.08363",
    benchmark_updates=10,
    outputs=lambda twin, batch: {
        "mean": twin.actor(batch.observations)[0],
        "std": twin.actor(batch.observations)[1],
        "critic_1": twin.critic_1(batch.observations, batch.actions),
        "critic_2": twin.critic_2(batch.observations, batch.actions),
    },
    predicted=rolled_out,
    losses={
        "actor_loss": Loss(of=("actor",)),
        "alpha_loss": Loss(of=("log_alpha",), inputs=("log_prob",), used=lambda config: config.auto_alpha),
        "critic_loss": Loss(of=("critic_1", "critic_2")),
        "alpha_prime_loss": Loss(("log_alpha_prime",), ("gap_1", "gap_2"), used=lambda config: config.cql_lagrange),
    },
    variants={
        "default": SMALL,
        "model states": SMALL
        | {"rho_s": "model", "real_ratio": 0.6, "discount": 0.9, "tau": 0.1, "cql_alpha": 0.5, "rollout_length": 4}
        | {"actor_lr": 1e-2, "critic_lr": 3e-3, "alpha_lr": 1e-1, "target_entropy": -20.0}
        | {"backup_entropy": True, "cql_temp": 2.0}
        | {"max_timesteps": 40, "num_updates_on_epoch": 8},
        "best of several": SMALL
        | {"cql_max_target_backup": True, "backup_entropy": True, "auto_alpha": False, "alpha": 0.7}
        | {"cql_lagrange": True, "cql_target_action_gap": 1.5, "real_ratio": 0.5}
        | {"rollout_length": 1},
        "three at a time": SMALL
        | {"cql_joint_logsumexp": False, "cql_temp": 0.5, "uniform_rollout": True}
        | {"cql_lagrange": True, "alpha_prime_lr": 1e-2},
    },
    corner=corner,
    extra_inputs=lambda rng, size: {"log_prob": rng.normal(size=size), "gap_1": rng.normal(), "gap_2": rng.normal()},
    replays=replays("model_based/combo", "COMBO"),
    **COMMON,
    # As of MOPO: near an action's bound 1 - tanh(u)^2 has lost most of its digits, in each framework others.
    float64={"loss": 1e-10, "gradient": 5e-9, "update": 2e-9, "log": 2e-9, "shipped path": 1e-8},
    float32={"update": 1e-3, "shipped path": 1e-3},
    facts=Facts(rewarded="critic_loss"),
)

JOINT = "concatenate(values, axis=1) if hp.cql_joint_logsumexp else stack(values, axis=-1)"
ROLLED = "return (step.next_observations, alive & ~step.terminals), (batch, alive)"
ACTOR_STEP = """\
        (actor_loss, aux), gradient = value_and_grad(state.actor_loss, has_aux=True)(state.actor, batch, noise)
        state = gradient_step(state, "actor", gradient)
"""
DUAL = """\
            (loss, own), gradient = value_and_grad(state.alpha_prime_loss, has_aux=True)(state.log_alpha_prime, *gaps)
            state = gradient_step(state, "log_alpha_prime", gradient)
"""
EARLY = """\
        early = jax.grad(state.critic_loss, has_aux=True)((state.critic_1, state.critic_2), batch, noise)[0]
        fresh = gradient_step(gradient_step(state, "critic_1", early[0]), "critic_2", early[1])
"""
MISTAKES = [
    Mistake("log-deviation bounded by -20", "clamp(self.sigma(hidden), -5.0, 2.0)",
            "clamp(self.sigma(hidden), -20.0, 2.0)", "forward"),
    Mistake("soft maximum over three at a time", JOINT, "stack(values, axis=-1)", "loss"),
    Mistake("soft maximum over all, whatever the setting", JOINT, "concatenate(values, axis=1)", "loss",
            "three at a time"),
    Mistake("states tiled, not repeated", "observations = jnp.broadcast_to(observations[:, None], (*actions.shape[:2], "
            "observations.shape[-1]))", "observations = jnp.tile(observations, (actions.shape[1], 1)).reshape("
            "*actions.shape[:2], -1)", "loss"),
    Mistake("next samples judged in next states", "q_next = critic(states, next)",
            "q_next = critic(batch.next_observations[-len(random) :], next)", "loss"),
    Mistake("next samples in the present states",
            "next = sample(self.actor, batch.next_observations[-pushed:], noise.next)",
            "next = sample(self.actor, batch.observations[-pushed:], noise.next)", "loss"),
    Mistake("data's value over all rows", "q = critic(batch.observations[:real], batch.actions[:real])",
            "q = critic(batch.observations, batch.actions)", "loss"),
    Mistake("data's value over the model's rows", "q = critic(batch.observations[:real], batch.actions[:real])",
            "q = critic(batch.observations[real:], batch.actions[real:])", "loss"),
    Mistake("densities left out", "q_current - current_log_prob, q_next - next_log_prob, ", "q_current, q_next, ",
            "loss"),
    Mistake("policy samples not detached", "gap = self.gap(critic, batch, self.actor.module.max_action * noise.random, "
            "(current, next))\n", "drawn = self.actor.module.max_action * noise.random\n"
            "            moved = critic(batch.observations[-pushed:], next[0])\n"
            "            moved = next[0], next[1] + moved - jax.lax.stop_gradient(moved)\n"
            "            gap = self.gap(critic, batch, drawn, (current, moved))\n", "gradient"),
    Mistake("uniform density with the wrong sign", "q_random - log_density", "q_random + log_density", "loss"),
    Mistake("uniform density left out", "q_random - log_density", "q_random", "loss"),
    Mistake("random actions within 1", "self.actor.module.max_action * noise.random, (current",
            "noise.random, (current", "loss"),
    Mistake("soft maximum's weight without the temperature", "soft_maximum * hp.cql_alpha * hp.cql_temp",
            "soft_maximum * hp.cql_alpha", "loss", "model states"),
    Mistake("data's value weighted by the temperature", "- q.mean() * hp.cql_alpha",
            "- q.mean() * hp.cql_alpha * hp.cql_temp", "loss", "model states"),
    Mistake("actor by the new critics", ACTOR_STEP, EARLY + ACTOR_STEP.replace("state.actor_loss", "fresh.actor_loss"),
            "update"),
    Mistake("critics by the old policy", "value_and_grad(state.critic_loss, has_aux=True)",
            "value_and_grad(self.critic_loss, has_aux=True)", "update"),
    Mistake("temperature clamped as MOPO's", "        return exp(self.log_alpha)\n",
            "        return clamp(exp(self.log_alpha), 0.0, 1.0)\n", "loss"),
    Mistake("entropy in the target by default", " if hp.backup_entropy else minimum(q1, q2)", "", "loss"),
    Mistake("no entropy where it is asked for", "minimum(q1, q2) - self.alpha() * log_prob if hp.backup_entropy else "
            "minimum(q1, q2)", "minimum(q1, q2)", "loss", "model states"),
    Mistake("maximum and minimum exchanged", "minimum(amax(q1, axis=1), amax(q2, axis=1))",
            "amax(minimum(q1, q2), axis=1)", "loss", "best of several"),
    Mistake("inverted done flag", "(1.0 - batch.terminals)", "batch.terminals", "loss", breaks="terminals_are_masked"),
    Mistake("online critics in the target", "self.critic_1_target, self.critic_2_target\n",
            "self.critic_1, self.critic_2\n", "loss"),
    Mistake("targets broadcast to (B, B)", "square(q - target).mean()", "square(q[:, None] - target).mean()", "loss"),
    Mistake("dual step seen by the critics", DUAL, DUAL + "            critics = state.critic_1, state.critic_2\n"
            "            gradients = jax.grad(state.critic_loss, has_aux=True)(critics, batch, noise)[0]\n", "update",
            "best of several"),
    Mistake("Lagrange multiplier without a bound", "alpha_prime = clamp(exp(self.log_alpha_prime), 0.0, 1e6)",
            "alpha_prime = exp(self.log_alpha_prime)", "loss", "three at a time"),
    Mistake("target gap forgotten", "alpha_prime * (gap - self.hp.cql_target_action_gap)", "alpha_prime * gap", "loss",
            "best of several"),
    Mistake("multiplier learns by the critics' rate", '"log_alpha_prime": hp.alpha_prime_lr}',
            '"log_alpha_prime": hp.critic_lr}', "update", "three at a time"),
    Mistake("real states pushed down", "states, real = batch.observations[-len(random) :]",
            "states, real = batch.observations[: len(random)]", "loss", "model states"),
    Mistake("samples in the real states", "sample(self.actor, batch.observations[-pushed:], noise.current)",
            "sample(self.actor, batch.observations[:pushed], noise.current)", "loss", "model states"),
    Mistake("cosine per update", "done = updates // hp.num_updates_on_epoch * hp.num_updates_on_epoch",
            "done = updates", "update", "model states"),
    Mistake("fixed temperature tuned", "        if hp.auto_alpha:\n", "        if True:\n", "update",
            "best of several"),
    Mistake("targets from the old critics", "soft_update(state.critic_1_target, state.critic_1, hp.tau)",
            "soft_update(state.critic_1_target, self.critic_1, hp.tau)", "update"),
    Mistake("one target not moved",
            "            critic_2_target=soft_update(state.critic_2_target, state.critic_2, hp.tau),\n", "", "update",
            breaks="targets_move_once_when_due"),
    Mistake("real and synthetic shares swapped", "return real, hp.batch_size - real",
            "return hp.batch_size - real, real", "draws"),
    Mistake("random and policy's samples from one key", "jax.random.uniform(keys[4], pushed",
            "jax.random.uniform(keys[6], pushed", "draws"),
    Mistake("random actions above 0 alone", "pushed, minval=-1.0, maxval=1.0)", "pushed, minval=0.0, maxval=1.0)",
            "draws"),
    Mistake("batches of the dataset alone", "take_both(dataset.rows, dataset.ring, indices, shares(hp)[0])",
            "take(dataset.rows, indices % len(dataset.rows))", "shipped path"),
    Mistake("penalised rewards", "step = model.step(observations, actions, draws.model, 0.0,",
            "step = model.step(observations, actions, draws.model, 2.5,", "act"),
    Mistake("uniform actions within 1", "actions = (self.actor.module.max_action * draws.actor)",
            "actions = (1.0 * draws.actor)", "act", "three at a time"),
    Mistake("the policy's roll-outs in place of uniform ones", "            if hp.uniform_rollout:\n",
            "            if False:\n", "act", "three at a time"),
    Mistake("the mean action in roll-outs", "actions, _ = sample(self.actor, observations, draws.actor)",
            "actions, _ = sample(self.actor, observations, 0.0 * draws.actor)", "act"),
    Mistake("termination ignored", ROLLED, ROLLED.replace("alive & ~step.terminals", "alive"), "act"),
    Mistake("ended roll-outs stored too", "push_kept(ring, found, kept)", "push_kept(ring, found, jnp.ones_like(kept))",
            "shipped path"),
]  # fmt: skip
