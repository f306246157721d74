"""ReBRAC on the ladder."""

from parity_tests.families import Family
from parity_tests.pair import Facts, Loss, Mistake, Pair, squared_error
from shared.data.transitions import extract_sarsa

SMALL = {"hidden_dim": 64}

PAIR = Pair(
    name="rebrac",
    title="ReBRAC",
    family=Family.CONSTRAINT,
    use="TD3+BC with the best scores of this family, for more numbers to tune.",
    paper="Tarasov et al. 2023",
    url="https://arxiv.org/abs/2305.09836",
    benchmark_updates=40,
    outputs=lambda twin, batch: {
        "actor": twin.actor(batch.observations),
        "critic": twin.critic(batch.observations, batch.actions),
    },
    losses={
        "critic_loss": Loss(of=("critic",)),
        "actor_loss": Loss(of=("actor",)),
    },
    variants={
        "default": SMALL,
        "other": SMALL
        | {"policy_freq": 3, "discount": 0.9, "tau": 0.1, "policy_noise": 0.5, "noise_clip": 0.3}
        | {"actor_bc_coef": 0.1, "critic_bc_coef": 0.01, "actor_learning_rate": 3e-4, "critic_learning_rate": 5e-4},
        # Other depths, the norms the other way round, the Q term as it is, noise that reaches the bounds
        "plain": SMALL
        | {"actor_n_hiddens": 1, "critic_n_hiddens": 2, "actor_ln": True, "critic_ln": False}
        | {"normalize_q": False, "policy_freq": 1, "policy_noise": 1.0, "noise_clip": 2.0},
    },
    update_statics=lambda config, step: {"delayed": (step - 1) % config.policy_freq == 0},
    interval_statics=lambda config, start, num_updates: {"phase": start % config.policy_freq},
    load=extract_sarsa,
    facts=Facts(
        rewarded="critic_loss",
        lagging=("actor_target",),
        first_delayed=1,
        imitation=squared_error,
        sharp={"actor_bc_coef": 0.01},
    ),
)

MISTAKES = [
    Mistake("tanh forgotten", "return tanh(self.net(observations))", "return self.net(observations)", "forward"),
    Mistake("LayerNorm's epsilon", "epsilon=1e-6", "epsilon=1e-5", "forward"),
    Mistake("swapped input", "concatenate([observations, actions]", "concatenate([actions, observations]", "forward"),
    Mistake("one critic twice", "stack([self.q1(inputs), self.q2(inputs)])",
            "stack([self.q1(inputs), self.q1(inputs) + 0 * self.q2(inputs)])", "forward"),
    Mistake("mean over critics", "square(q - target).mean(axis=1).sum()", "square(q - target).mean()", "loss"),
    Mistake("inverted done flag", "(1.0 - batch.terminals)", "batch.terminals", "loss"),
    Mistake("maximum for minimum", "next_q = amin(", "next_q = jnp.amax(", "loss"),
    Mistake("no noise on the target action", "actor(batch.next_observations) + smoothing",
            "actor(batch.next_observations)", "loss"),
    Mistake("noise not clipped", "clip(hp.policy_noise * noise.target, -hp.noise_clip, hp.noise_clip)",
            "hp.policy_noise * noise.target", "loss", "other"),
    Mistake("target action not cut to the bounds", "clip(actor(batch.next_observations) + smoothing, -1.0, 1.0)",
            "actor(batch.next_observations) + smoothing", "loss", "plain"),
    Mistake("online actor in the target", "self.actor_target, self.critic_target\n",
            "self.actor, self.critic_target\n", "loss"),
    Mistake("online critics in the target", "self.actor_target, self.critic_target\n",
            "self.actor_target, self.critic\n", "loss"),
    Mistake("target pulled to the present action", "square(next_actions - batch.next_actions)",
            "square(next_actions - batch.actions)", "loss"),
    Mistake("target's distance averaged over action dimensions",
            "square(next_actions - batch.next_actions).sum(axis=-1)",
            "square(next_actions - batch.next_actions).mean(axis=-1)", "loss"),
    Mistake("target's distance without the noise", "square(next_actions - batch.next_actions)",
            "square(actor(batch.next_observations) - batch.next_actions)", "loss"),
    Mistake("target's distance not masked", "(1.0 - batch.terminals) * hp.discount * next_q",
            "hp.discount * ((1.0 - batch.terminals) * (next_q + hp.critic_bc_coef * distance) "
            "- hp.critic_bc_coef * distance)", "trajectory", breaks="terminals_are_masked"),
    Mistake("distances weighed the other way round", "- hp.critic_bc_coef * distance",
            "- hp.actor_bc_coef * distance", "loss", "other"),
    Mistake("broadcast to (B, B)", "square(q - target).mean(axis=1)",
            "square(q[..., None] - target).mean(axis=(1, 2))", "loss"),
    Mistake("policy's distance averaged over action dimensions", "distance = square(actions - batch.actions).sum(",
            "distance = square(actions - batch.actions).mean(", "loss"),
    Mistake("policy judged by the first critic alone", "q = amin(critic(batch.observations, actions), axis=0)",
            "q = critic(batch.observations, actions)[0]", "loss"),
    Mistake("epsilon below |Q|", "stop_gradient(jnp.abs(q).mean())", "(stop_gradient(jnp.abs(q).mean()) + 1e-3)",
            "loss"),
    Mistake("size of the mean for the mean size", "stop_gradient(jnp.abs(q).mean())",
            "stop_gradient(jnp.abs(q.mean()))", "loss"),
    Mistake("scaled although it should not be", " if hp.normalize_q else 1.0", "", "loss", "plain"),
    Mistake("missing stop_gradient", "stop_gradient(jnp.abs(q).mean())", "jnp.abs(q).mean()", "gradient"),
    Mistake("Adam's epsilon", "optax.adam(rates[part])", "optax.adam(rates[part], eps=1e-5)", "update"),
    Mistake("learning rates swapped",
            '{"actor": hp.actor_learning_rate, "critic": hp.critic_learning_rate}',
            '{"actor": hp.critic_learning_rate, "critic": hp.actor_learning_rate}', "update", "other"),
    Mistake("actor on the old critics", "value_and_grad(state.actor_loss,", "value_and_grad(self.actor_loss,",
            "update"),
    Mistake("target from the new actor", "            state = gradient_step(state, \"actor\", gradient)\n",
            "            state = gradient_step(state, \"actor\", gradient)\n            state = state.replace("
            "actor_target=soft_update(self.actor_target, state.actor, hp.tau))\n", "update",
            breaks="targets_move_once_when_due"),
    Mistake("target from the old critics", "soft_update(state.critic_target, state.critic, hp.tau)",
            "soft_update(state.critic_target, self.critic, hp.tau)", "update"),
    Mistake("tau the wrong way round", "(1.0 - tau) * old + tau * new", "tau * old + (1.0 - tau) * new", "update"),
    Mistake("targets moved at every step", "        if delayed:\n", "        state = state.replace(critic_target="
            "soft_update(state.critic_target, state.critic, hp.tau))\n        if delayed:\n", "trajectory"),
    Mistake("averaged where it should be summed, in the log alone", '"bc_mse_policy": distance.mean()',
            '"bc_mse_policy": square(actions - batch.actions).mean()', "log"),
    Mistake("first full update one too late", "delayed = (phase + place) % hp.policy_freq == 0",
            "delayed = (phase + place + 1) % hp.policy_freq == 0", "shipped path",
            breaks="actor_steps_once_in_its_period"),
    Mistake("phase forgotten", "delayed = (phase + place) % hp.policy_freq == 0",
            "delayed = place % hp.policy_freq == 0", "shipped path"),
    Mistake("draws begin anew at each interval", "return draw_noise(key, step, hp,",
            "return draw_noise(key, step - start, hp,", "shipped path"),
    Mistake("same noise at every update", "jax.random.fold_in(key, step)", "jax.random.fold_in(key, 0 * step)",
            "draws"),
    Mistake("random actions without a sign", "minval=-1.0, maxval=1.0", "minval=0.0, maxval=1.0", "draws"),
]  # fmt: skip
