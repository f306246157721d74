"""TD3+BC on the ladder."""

from parity_tests.families import Family
from parity_tests.pair import Facts, Loss, Mistake, Pair, squared_error

PAIR = Pair(
    name="td3_bc",
    title="TD3+BC",
    family=Family.CONSTRAINT,
    use="One number to tune: it is TD3 with a pull towards the data's actions.",
    paper="Fujimoto & Gu 2021",
    url="https://arxiv.org/abs/2106.06860",
    benchmark_updates=400,
    outputs=lambda twin, batch: {
        "actor": twin.actor(batch.observations),
        "critic_1": twin.critic_1(batch.observations, batch.actions),
        "critic_2": twin.critic_2(batch.observations, batch.actions),
    },
    losses={
        "critic_loss": Loss(of=("critic_1", "critic_2")),
        "actor_loss": Loss(of=("actor",), inputs=("batch",)),
    },
    variants={
        "default": {},
        "other": {"policy_freq": 3, "discount": 0.9, "tau": 0.1, "alpha": 1.0, "policy_noise": 0.5, "noise_clip": 0.3},
    },
    update_statics=lambda config, step: {"delayed": step % config.policy_freq == 0},
    interval_statics=lambda config, start, num_updates: {"phase": start % config.policy_freq},
    facts=Facts(rewarded="critic_loss", first_delayed=2, imitation=squared_error),
)

MISTAKES = [
    Mistake("tanh forgotten", "            nn.tanh,\n", "", "forward"),
    Mistake("swapped input", "concatenate([observations, actions]", "concatenate([actions, observations]", "forward"),
    Mistake("mean for a sum", "square(q1 - target).mean() + square(q2 - target).mean()",
            "(square(q1 - target) + square(q2 - target)).mean() / 2", "loss"),
    Mistake("inverted done flag", "(1.0 - batch.terminals)", "batch.terminals", "loss", breaks="terminals_are_masked"),
    Mistake("maximum for minimum", "next_q = minimum(", "next_q = jnp.maximum(", "loss"),
    Mistake("no noise on the target action", "actor(batch.next_observations) + smoothing",
            "actor(batch.next_observations)", "loss"),
    Mistake("noise not clipped", "smoothing = clip(\n            noise.target * (hp.policy_noise * max_action), "
            "-hp.noise_clip * max_action, hp.noise_clip * max_action\n        )",
            "smoothing = noise.target * (hp.policy_noise * max_action)", "loss", "other"),
    Mistake("online actor in the target", "self.actor_target, self.critic_1_target",
            "self.actor, self.critic_1_target", "loss"),
    Mistake("missing stop_gradient", "stop_gradient(jnp.abs(q).mean())", "jnp.abs(q).mean()", "gradient"),
    Mistake("epsilon below |Q|", "stop_gradient(jnp.abs(q).mean())",
            "(stop_gradient(jnp.abs(q).mean()) + 1e-3)", "loss"),
    Mistake("sum over action dimensions", "square(actions - batch.actions).mean()",
            "square(actions - batch.actions).sum(-1).mean()", "loss"),
    Mistake("broadcast to (B, B)", "return batch.rewards + (1.0 - batch.terminals) * hp.discount * next_q",
            "return (batch.rewards[:, None] + (1.0 - batch.terminals[:, None]) * hp.discount * next_q).mean(1)",
            "loss"),
    Mistake("Adam's epsilon", "optax.adam(3e-4)", "optax.adam(3e-4, eps=1e-5)", "update"),
    Mistake("actor before critic", "value_and_grad(state.actor_loss,", "value_and_grad(self.actor_loss,", "update"),
    Mistake("target from the old network", "soft_update(state.critic_1_target, state.critic_1, hp.tau)",
            "soft_update(state.critic_1_target, critics[0], hp.tau)", "update"),
    Mistake("tau the wrong way round", "(1.0 - tau) * old + tau * new", "tau * old + (1.0 - tau) * new", "update",
            breaks="targets_move_once_when_due"),
    Mistake("targets moved at every step", "        if delayed:\n", "        state = state.replace(critic_1_target="
            "soft_update(state.critic_1_target, state.critic_1, hp.tau))\n        if delayed:\n", "trajectory",
            breaks="targets_move_once_when_due"),
    Mistake("delayed one step early", "delayed = (phase + i + 1) % hp.policy_freq == 0",
            "delayed = (phase + i) % hp.policy_freq == 0", "shipped path", breaks="actor_steps_once_in_its_period"),
    Mistake("same noise at every update", "jax.random.fold_in(key, step)", "jax.random.fold_in(key, 0 * step)",
            "draws"),
]  # fmt: skip
