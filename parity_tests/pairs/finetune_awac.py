"""AWAC, offline to online, on the ladder."""

from parity_tests.pair import Facts, Loss, Mistake, Pair, unlikelihood
from parity_tests.pairs import awac
from parity_tests.pairs.finetune_iql import FILLED

PAIR = Pair(
    name="finetune/awac",
    title="AWAC, offline to online",
    paper="Nair et al. 2020",
    url="https://arxiv.org/abs/2006.09359",
    benchmark_updates=150,
    outputs=awac.PAIR.outputs,
    losses={
        "critic_loss": Loss(of=("critic_1", "critic_2")),
        "actor_loss": Loss(of=("actor",)),
    },
    variants=awac.PAIR.variants,
    draw_inputs=lambda dataset, action_dim: (FILLED, action_dim),
    interval_statics=lambda config, start, num_updates: {"size": FILLED},
    explores=True,
    facts=Facts(rewarded="critic_loss", imitation=unlikelihood, sharp={"awac_lambda": 0.01}),
)

MISTAKES = [
    Mistake("mean squashed", "mean = self._mlp(observations)", "mean = nn.tanh(self._mlp(observations))",
            "forward"),
    Mistake("deviation for its logarithm", "exp(clamp(self._log_std, -20.0, 2.0))",
            "clamp(self._log_std, -20.0, 2.0)", "forward"),
    Mistake("actions sampled in the current states", "sample(actor, batch.next_observations, noise.target)",
            "sample(actor, batch.observations, noise.target)", "loss"),
    Mistake("samples not cut", "return clamp(mean + noise * std, -1.0, 1.0)", "return mean + noise * std", "loss"),
    Mistake("inverted done flag", "(1.0 - batch.terminals)", "batch.terminals", "loss"),
    Mistake("weights broadcast to (B, B): behaviour cloning", "(-log_probs * weights).mean()",
            "(-log_probs * weights[:, None]).mean()", "gradient"),
    Mistake("no cap", "return minimum(exp((q - value) / self.hp.awac_lambda), MAX_WEIGHT)",
            "return exp((q - value) / self.hp.awac_lambda)", "loss", "sharp"),
    Mistake("temperature multiplied", "(q - value) / self.hp.awac_lambda", "(q - value) * self.hp.awac_lambda",
            "loss", "sharp"),
    Mistake("advantage over the target critics",
            "actor, critic_1, critic_2 = self.actor, self.critic_1, self.critic_2\n",
            "actor, critic_1, critic_2 = self.actor, self.critic_1_target, self.critic_2_target\n", "loss"),
    Mistake("weights differentiated", "        weights = self.weights(batch, noise)\n",
            "        weights = self.replace(actor=actor).weights(batch, noise)\n", "gradient"),
    Mistake("actor on the old critics", "value_and_grad(state.actor_loss, has_aux=True)",
            "value_and_grad(self.actor_loss, has_aux=True)", "update"),
    Mistake("target from the old critic", "soft_update(state.critic_1_target, state.critic_1, hp.tau)",
            "soft_update(state.critic_1_target, self.critic_1, hp.tau)", "update"),
    Mistake("same noise at every update",
            "index_key, target_key, actor_key, _ = jax.random.split(jax.random.fold_in(key, step), 4)",
            "index_key, target_key, actor_key, _ = jax.random.split(jax.random.fold_in(key, 0 * step), 4)", "draws"),
    Mistake("exploration without noise", "return sample(self.actor, observations, noise.action)",
            "return sample(self.actor, observations, 0 * noise.action)", "act"),
    Mistake("noise on evaluation", "    mean, _ = actor(observations)\n    return mean\n",
            "    mean, std = actor(observations)\n    return mean + 0.1 * std\n", "act"),
    Mistake("the same exploration at every step", "jax.random.split(jax.random.fold_in(key, step), 4)[3]",
            "jax.random.split(jax.random.fold_in(key, 0 * step), 4)[3]", "draws"),
    Mistake("exploration with deviations of 2", "action=jax.random.normal(action_key, (1, action_dim))",
            "action=2.0 * jax.random.normal(action_key, (1, action_dim))", "draws"),
    Mistake("batches from the whole ring", "draw_noise(key, step, state.hp, size, action_dim)",
            "draw_noise(key, step, state.hp, len(dataset), action_dim)", "shipped path"),
    Mistake("batches of what was there before", "start, num_updates, ring.size)",
            "start, num_updates, ring.size - num_updates)", "shipped path"),
    Mistake("update before the step is stored", "ring, num_updates = push(ring, rows), len(rows)",
            "before, ring, num_updates = ring, push(ring, rows), len(rows)\n"
            "    ring = ring.replace(rows=before.rows)", "shipped path"),
    Mistake("buffer overwritten from the wrong end", "ring, num_updates = push(ring, rows), len(rows)",
            "ring, num_updates = push(ring.replace(pointer=ring.pointer - 1), rows), len(rows)", "shipped path"),
    Mistake("the next step's draws are the last one's",
            "next_action(state, key, start + num_updates, observation), history",
            "next_action(state, key, start, observation), history", "shipped path"),
    Mistake("acts on the old weights",
            "    state, history = train_interval(state, key, ring, start, num_updates, ring.size)\n"
            "    return state, ring, next_action(state,",
            "    old = state\n"
            "    state, history = train_interval(state, key, ring, start, num_updates, ring.size)\n"
            "    return state, ring, next_action(old,", "shipped path"),
    Mistake("draws begin anew at each interval", "steps, action_dim = start + jnp.arange(num_updates),",
            "steps, action_dim = jnp.arange(num_updates),", "shipped path"),
    Mistake("targets reset at the switch", "    ring, num_updates = push(ring, rows), len(rows)\n",
            "    ring, num_updates = push(ring, rows), len(rows)\n"
            "    state = state.replace(critic_1_target=state.critic_1)\n", "shipped path"),
]  # fmt: skip
