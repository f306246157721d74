"""AWAC on the ladder."""

from parity_tests.families import Family
from parity_tests.pair import Facts, Loss, Mistake, Pair, unlikelihood

SMALL = {"hidden_dim": 64}

PAIR = Pair(
    name="awac",
    title="AWAC",
    family=Family.WEIGHTED,
    use="Data is scarce and steps in the environment will follow.",
    paper="Nair et al. 2020",
    url="https://arxiv.org/abs/2006.09359",
    benchmark_updates=150,
    outputs=lambda twin, batch: {
        "mean": twin.actor(batch.observations)[0],
        "std": twin.actor(batch.observations)[1],
        "critic_1": twin.critic_1(batch.observations, batch.actions),
        "critic_2": twin.critic_2(batch.observations, batch.actions),
    },
    losses={
        "critic_loss": Loss(of=("critic_1", "critic_2")),
        "actor_loss": Loss(of=("actor",)),
    },
    variants={
        "default": SMALL,
        # With so low a temperature weights reach their cap; with so large a rate the deviations move.
        "sharp": SMALL | {"awac_lambda": 0.01, "discount": 0.9, "tau": 0.1, "learning_rate": 3e-3},
    },
    facts=Facts(rewarded="critic_loss", imitation=unlikelihood, sharp={"awac_lambda": 0.01}),
)

MISTAKES = [
    Mistake("another activation", "            nn.relu,\n            Linear(self.action_dim)",
            "            nn.tanh,\n            Linear(self.action_dim)", "forward"),
    Mistake("mean squashed", "mean = self._mlp(observations)", "mean = nn.tanh(self._mlp(observations))",
            "forward"),
    Mistake("deviation for its logarithm", "exp(clamp(self._log_std, -20.0, 2.0))",
            "clamp(self._log_std, -20.0, 2.0)", "forward"),
    Mistake("actions sampled in the current states", "sample(actor, batch.next_observations, noise.target)",
            "sample(actor, batch.observations, noise.target)", "loss"),
    Mistake("samples not cut", "return clamp(mean + noise * std, -1.0, 1.0)", "return mean + noise * std", "loss"),
    Mistake("inverted done flag", "(1.0 - batch.terminals)", "batch.terminals", "loss", breaks="terminals_are_masked"),
    Mistake("targets broadcast to (B, B)", "square(q1 - target).mean() + square(q2 - target).mean()",
            "square(q1[:, None] - target).mean() + square(q2[:, None] - target).mean()", "loss",
            breaks="rewards_belong_to_their_rows"),
    Mistake("weights broadcast to (B, B): behaviour cloning", "(-log_probs * weights).mean()",
            "(-log_probs * weights[:, None]).mean()", "gradient", breaks="actor_does_more_than_imitate"),
    Mistake("no cap", "return minimum(exp((q - value) / self.hp.awac_lambda), MAX_WEIGHT)",
            "return exp((q - value) / self.hp.awac_lambda)", "loss", "sharp"),
    Mistake("temperature multiplied", "(q - value) / self.hp.awac_lambda", "(q - value) * self.hp.awac_lambda",
            "loss", "sharp"),
    Mistake("advantage over the target critics",
            "actor, critic_1, critic_2 = self.actor, self.critic_1, self.critic_2\n",
            "actor, critic_1, critic_2 = self.actor, self.critic_1_target, self.critic_2_target\n", "loss"),
    Mistake("weights differentiated", "        weights = self.weights(batch, noise)\n",
            "        weights = self.replace(actor=actor).weights(batch, noise)\n", "gradient"),
    Mistake("mean over actions", "log_density.sum(axis=-1)", "log_density.mean(axis=-1)", "loss"),
    Mistake("actor on the old critics", "value_and_grad(state.actor_loss, has_aux=True)",
            "value_and_grad(self.actor_loss, has_aux=True)", "update"),
    Mistake("target from the old critic", "soft_update(state.critic_1_target, state.critic_1, hp.tau)",
            "soft_update(state.critic_1_target, self.critic_1, hp.tau)", "update"),
    Mistake("one target not moved",
            "            critic_2_target=soft_update(state.critic_2_target, state.critic_2, hp.tau),\n", "", "update",
            breaks="targets_move_once_when_due"),
    Mistake("every update from the first batch", "return state.update(take(dataset, indices), noise)",
            "return state.update(take(dataset, draws[0][0]), noise)", "shipped path"),
    Mistake("same noise at every update", "jax.random.fold_in(key, step)", "jax.random.fold_in(key, 0 * step)",
            "draws"),
]  # fmt: skip
