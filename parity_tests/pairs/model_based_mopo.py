"""MOPO on the ladder: updates on two buffers, and roll-outs of a small model that is made up."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import Facts, Loss, Mistake, Pair
from parity_tests.pairs.imagined import COMMON, LEARNT, replays, rolled_out

SMALL: dict[str, Any] = {"hidden_dims": (48, 40), "rollout_batch_size": 30, "rollout_length": 3, "rollout_freq": 4} | {
    "model_retain_epochs": 2,
    "real_ratio": 0.3,
    **LEARNT,
}


def corner(trainer: Any) -> None:
    """A temperature beyond its bound, where it has no target of its own that brings it below."""
    if trainer.hp.target_entropy is None:
        trainer.log_alpha.constant.data.fill_(0.5)


PAIR = Pair(
    name="model_based/mopo",
    title="MOPO",
    family=Family.MODEL,
    use="Soft actor-critic on a model's roll-outs: it may leave the data where the model is sure.",
    paper="Yu et al. 2020",
    url="https://arxiv.org/abs/2005.13239",
    benchmark_updates=100,
    outputs=lambda twin, batch: {
        "mean": twin.actor(batch.observations)[0],
        "std": twin.actor(batch.observations)[1],
        "critic_1": twin.critic_1(batch.observations, batch.actions),
        "critic_2": twin.critic_2(batch.observations, batch.actions),
    },
    predicted=rolled_out,
    losses={
        "critic_loss": Loss(of=("critic_1", "critic_2")),
        "actor_loss": Loss(of=("actor",)),
        "alpha_loss": Loss(of=("log_alpha",), inputs=("log_prob",), used=lambda config: config.auto_alpha),
    },
    variants={
        "default": SMALL,
        "other": SMALL
        | {"discount": 0.9, "tau": 0.1, "actor_lr": 1e-2, "critic_lr": 3e-3, "alpha_lr": 1e-1, "target_entropy": -20.0}
        | {"real_ratio": 0.8, "rollout_length": 4, "penalty_coef": 0.0, "max_timesteps": 40, "num_updates_on_epoch": 8},
        "fixed temperature": SMALL
        | {
            "auto_alpha": False,
            "alpha": 0.7,
            "uncertainty_mode": "ensemble_std",
            "real_ratio": 0.5,
            "rollout_length": 1,
        },
    },
    corner=corner,
    extra_inputs=lambda rng, size: {"log_prob": rng.normal(size=size)},
    replays=replays("model_based/mopo", "MOPO"),
    **COMMON,
    # As of SAC-N: near an action's bound 1 - tanh(u)^2 has lost most of its digits, in each framework others. A loss
    # differs by up to 3e-11, after a step by 7e-10, a moment by 4e-10, a gradient by 1.2e-9. In single precision a last
    # bias, which is near 0, differs by 3e-4.
    float64={"loss": 1e-10, "gradient": 5e-9, "update": 2e-9, "log": 2e-9, "shipped path": 1e-8},
    float32={"update": 1e-3, "shipped path": 1e-3},
    facts=Facts(rewarded="critic_loss"),
)

ROLLED = "return (step.next_observations, alive & ~step.terminals), (batch, alive)"
MISTAKES = [
    Mistake("log-deviation bounded by -20", "clamp(self.sigma(hidden), -5.0, 2.0)",
            "clamp(self.sigma(hidden), -20.0, 2.0)", "forward"),
    Mistake("bound of actions outside the logarithm",
            "log(actor.module.max_action * (1.0 - square(squashed)) + 1e-6)",
            "log(1.0 - square(squashed) + 1e-6)", "loss"),
    Mistake("no tanh correction", "    log_prob = log_prob - log(actor.module.max_action * (1.0 - square(squashed)) + "
            "1e-6).sum(axis=-1)\n", "", "loss"),
    Mistake("inverted done flag", "(1.0 - batch.terminals)", "batch.terminals", "loss", breaks="terminals_are_masked"),
    Mistake("no entropy in the target", "(next_q - self.alpha() * log_prob)", "next_q", "loss"),
    Mistake("online critics in the target", "self.critic_1_target, self.critic_2_target\n",
            "self.critic_1, self.critic_2\n", "loss"),
    Mistake("targets broadcast to (B, B)", "square(q1 - target).mean()", "square(q1[:, None] - target).mean()", "loss"),
    Mistake("temperature not clamped", "return clamp(exp(self.log_alpha), 0.0, 1.0)", "return exp(self.log_alpha)",
            "loss"),
    Mistake("target entropy of 0", "self.hp.target_entropy or -self.actor.module.action_dim",
            "self.hp.target_entropy or 0.0", "loss"),
    Mistake("policy on the old critics", "value_and_grad(state.actor_loss,", "value_and_grad(self.actor_loss,",
            "update"),
    Mistake("policy on the mean of the critics", "q = minimum(critic_1(batch.observations, actions), "
            "critic_2(batch.observations, actions))", "q = (critic_1(batch.observations, actions) + "
            "critic_2(batch.observations, actions)) / 2.0", "loss"),
    Mistake("cosine per update", "done = updates // hp.num_updates_on_epoch * hp.num_updates_on_epoch",
            "done = updates", "update", "other"),
    Mistake("cosine over epochs of one update", "math.pi * done / hp.max_timesteps",
            "math.pi * (done // hp.num_updates_on_epoch) / hp.max_timesteps", "update", "other"),
    Mistake("cosine for the critics too", '"critic_1": hp.critic_lr, "critic_2": hp.critic_lr}',
            '"critic_1": partial(actor_lr, hp), "critic_2": partial(actor_lr, hp)}', "update", "other"),
    Mistake("temperature learns by the critics' rate", "rates.get(part, hp.alpha_lr)", "rates.get(part, hp.critic_lr)",
            "update", "other"),
    Mistake("fixed temperature tuned", "        if hp.auto_alpha:\n", "        if True:\n", "update",
            "fixed temperature"),
    Mistake("targets from the old critics", "soft_update(state.critic_1_target, state.critic_1, hp.tau)",
            "soft_update(state.critic_1_target, self.critic_1, hp.tau)", "update"),
    Mistake("one target not moved",
            "            critic_2_target=soft_update(state.critic_2_target, state.critic_2, hp.tau),\n", "", "update",
            breaks="targets_move_once_when_due"),
    Mistake("Polyak the wrong way round", "old * (1.0 - tau) + new * tau", "old * tau + new * (1.0 - tau)", "update"),
    Mistake("temperature logged before its step", '"alpha": state.alpha()}', '"alpha": self.alpha()}', "log", "other"),
    Mistake("real and synthetic shares swapped", "return real, hp.batch_size - real",
            "return hp.batch_size - real, real", "draws"),
    Mistake("real share rounded up", "int(hp.batch_size * hp.real_ratio)", "math.ceil(hp.batch_size * hp.real_ratio)",
            "rewards"),
    Mistake("synthetic rows beyond what is stored", "(synthetic,), 0, synthetic_size)",
            "(synthetic,), 0, synthetic_size + 10)", "draws"),
    Mistake("both buffers drawn from with one key", "jax.random.randint(keys[1], (synthetic,)",
            "jax.random.randint(keys[0], (synthetic,)", "draws"),
    Mistake("batches of the dataset alone", "take_both(dataset.rows, dataset.ring, indices, shares(hp)[0])",
            "take(dataset.rows, indices % len(dataset.rows))", "shipped path"),
    Mistake("same noise at every update", "jax.random.split(jax.random.fold_in(key, step), 4)",
            "jax.random.split(jax.random.fold_in(key, 0 * step), 4)", "draws"),
    Mistake("elites of all members", "(rows,), 0, sizes.n_elites)", "(rows,), 0, sizes.n_ensemble)", "draws"),
    Mistake("one draw for policy and model", "jax.random.normal(normals_key,", "jax.random.normal(actor_key,", "draws"),
    Mistake("roll-outs from the first rows alone", "(hp.rollout_batch_size,), 0, dataset_size)",
            "(hp.rollout_batch_size,), 0, dataset_size // 2)", "draws"),
    Mistake("termination ignored", ROLLED, ROLLED.replace("alive & ~step.terminals", "alive"), "act"),
    Mistake("an end forgotten a step later", ROLLED, ROLLED.replace("alive & ~step.terminals", "~step.terminals"),
            "act"),
    Mistake("the last row of an episode left out", ROLLED, ROLLED.replace("(batch, alive)",
            "(batch, alive & ~step.terminals)"), "act"),
    Mistake("roll-outs go on from where they began", ROLLED, ROLLED.replace("(step.next_observations,",
            "(observations,"), "act"),
    Mistake("penalty added", "model.step(observations, actions, draws.model, hp.penalty_coef,",
            "model.step(observations, actions, draws.model, -hp.penalty_coef,", "act"),
    Mistake("penalty taken off twice", "Batch(observations, actions, step.rewards, step.next_observations, terminals)",
            "Batch(observations, actions, step.rewards - hp.penalty_coef * step.penalties, step.next_observations, "
            "terminals)", "act"),
    Mistake("rewards without a penalty", "Batch(observations, actions, step.rewards,",
            "Batch(observations, actions, step.raw_rewards,", "act"),
    Mistake("the same roll-outs at every time", "jax.random.split(jax.random.fold_in(key, step))",
            "jax.random.split(jax.random.fold_in(key, 0 * step))", "shipped path"),
    Mistake("one key for all steps of a roll-out", "jax.random.fold_in(steps_key, number)", "steps_key",
            "shipped path"),
    Mistake("ended roll-outs stored too", "push_kept(ring, found, kept)", "push_kept(ring, found, jnp.ones_like(kept))",
            "shipped path"),
    Mistake("ring cleared at each time", "ring = push_kept(ring,",
            "ring = push_kept(ring.replace(size=0 * ring.size, pointer=0 * ring.pointer),", "shipped path"),
    Mistake("one draw for all steps", "draws = draw(number)", "draws = draw(0 * number)", "act"),
    Mistake("the mean action in roll-outs", "actions, _ = sample(self.actor, observations, draws.actor)",
            "actions, _ = sample(self.actor, observations, 0.0 * draws.actor)", "act"),
]  # fmt: skip
