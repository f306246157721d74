"""TD3 on the ladder: what it learns from a dataset, and from what it has seen of an environment."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import Facts, Loss, Mistake, Pair
from parity_tests.pairs import quantiles

SMALL = {"env": "mini/hopper-mostly-expert", "actor_hidden_dims": (64, 48), "critic_hidden_dims": (48, 64)}
# Rows that count as experience so far: fewer than a dataset has, so that a draw beyond them shows.
FILLED = 150


def corner(trainer: Any) -> None:
    """Actions near their bounds, which the noise crosses, and critics that differ."""
    for actor in (trainer.actor, trainer.actor_target):
        actor.net[-1].weight.data.mul_(20.0)
    for member in trainer.critics_target.members:
        quantiles.last_layer(member).weight.data.mul_(20.0)


PAIR = Pair(
    name="online/td3",
    title="TD3, online",
    family=Family.ONLINE,
    use="Deterministic policies, and the ground on which TD3+BC and ReBRAC stand.",
    paper="Fujimoto et al. 2018",
    url="https://arxiv.org/abs/1802.09477",
    benchmark_updates=400,
    outputs=lambda twin, batch: {
        "actor": twin.actor(batch.observations),
        "critics": twin.critics(batch.observations, batch.actions),
    },
    losses={
        "critic_loss": Loss(of=("critics",)),
        "actor_loss": Loss(of=("actor",), inputs=("batch",)),
    },
    variants={
        "default": SMALL,
        "other": SMALL
        | {"policy_freq": 3, "n_critics": 3, "discount": 0.9, "tau": 0.1}
        | {"policy_noise": 0.5, "noise_clip": 0.3, "actor_lr": 1e-3, "critic_lr": 1e-4},
        "each": SMALL | {"policy_freq": 1, "n_critics": 1, "tau": 0.1},
        **{name: SMALL | settings for name, settings in quantiles.CONTINUOUS.items()},
    },
    corner=corner,
    draw_inputs=lambda dataset, action_dim: (FILLED, action_dim),
    update_statics=lambda config, step: {"delayed": (step - 1) % config.policy_freq == 0},
    interval_statics=lambda config, start, num_updates: {"size": FILLED, "phase": start % config.policy_freq},
    other_draws=("draw_exploration",),
    records_on_cpu=False,
    facts=Facts(rewarded="critic_loss", first_delayed=1),
)

MISTAKES = [
    Mistake("tanh forgotten", "return self.max_action * tanh(self.net(observations))",
            "return self.max_action * self.net(observations)", "forward"),
    Mistake("swapped input", "concatenate([observations, actions]", "concatenate([actions, observations]", "forward"),
    Mistake("mean over critics", "square(q - target).mean(axis=(1, 2)).sum()", "square(q - target).mean()", "loss"),
    Mistake("half the squared error", "square(q - target).mean(axis=(1, 2)).sum()",
            "0.5 * square(q - target).mean(axis=(1, 2)).sum()", "loss"),
    Mistake("inverted done flag", "(1.0 - batch.terminals[:, None])", "batch.terminals[:, None]", "loss",
            breaks="terminals_are_masked"),
    Mistake("no discount", "hp.discount * next_q", "next_q", "loss"),
    Mistake("mean critic in the target", "(q * critic.T[..., None]).sum(axis=0)", "q.mean(axis=0)", "loss"),
    Mistake("no noise on the target action", "actor(batch.next_observations) + smoothing",
            "actor(batch.next_observations)", "loss"),
    Mistake("noise not clipped", "smoothing = clip(\n            noise.target * (hp.policy_noise * max_action), "
            "-hp.noise_clip * max_action, hp.noise_clip * max_action\n        )",
            "smoothing = noise.target * (hp.policy_noise * max_action)", "loss", "other"),
    Mistake("noise clipped before it is scaled", "smoothing = clip(\n            noise.target * "
            "(hp.policy_noise * max_action), -hp.noise_clip * max_action, hp.noise_clip * max_action\n        )",
            "smoothing = hp.policy_noise * max_action * clip(noise.target, -hp.noise_clip, hp.noise_clip)", "loss"),
    Mistake("target action not clipped", "next_actions = clip(actor(batch.next_observations) + smoothing, "
            "-max_action, max_action)", "next_actions = actor(batch.next_observations) + smoothing", "loss"),
    Mistake("online actor in the target", "self.actor_target, self.critics_target\n",
            "self.actor, self.critics_target\n", "loss"),
    Mistake("online critics in the target", "self.actor_target, self.critics_target\n",
            "self.actor_target, self.critics\n", "loss"),
    Mistake("gradient through the target", "value_and_grad(state.critic_loss, has_aux=True)(state.critics, batch, "
            "noise)", "value_and_grad(lambda critics: state.replace(critics_target=critics).critic_loss(critics, "
            "batch, noise), has_aux=True)(state.critics)", "update"),
    Mistake("smallest critic for the policy", "actor(batch.observations), None, 1).mean(axis=-1).squeeze(0)",
            "actor(batch.observations)).mean(axis=-1).min(axis=0)", "loss"),
    Mistake("policy on the data's actions", "critics(batch.observations, actor(batch.observations), None, 1)",
            "critics(batch.observations, batch.actions, None, 1)", "loss"),
    Mistake("policy down the value", "return -q.mean()", "return q.mean()", "loss"),
    Mistake("policy on the old critics", "value_and_grad(state.actor_loss,", "value_and_grad(self.actor_loss,",
            "update"),
    Mistake("rates exchanged", '{"actor": hp.actor_lr, "critics": hp.critic_lr}',
            '{"actor": hp.critic_lr, "critics": hp.actor_lr}', "update", "other"),
    Mistake("target from the old critics", "soft_update(state.critics_target, state.critics, hp.tau)",
            "soft_update(state.critics_target, self.critics, hp.tau)", "update"),
    Mistake("tau the wrong way round", "(1.0 - tau) * old + tau * new", "tau * old + (1.0 - tau) * new", "update",
            breaks="targets_move_once_when_due"),
    Mistake("targets moved at every update", "        if delayed:\n", "        state = state.replace(critics_target="
            "soft_update(state.critics_target, state.critics, hp.tau))\n        if delayed:\n", "trajectory",
            breaks="targets_move_once_when_due"),
    Mistake("policy in the second update, not in the first", "(phase + place) % hp.policy_freq == 0",
            "(phase + place + 1) % hp.policy_freq == 0", "shipped path",
            breaks="actor_steps_once_in_its_period"),
    Mistake("exploration not clipped", "clip(actor(observations) + exploration_noise * max_action * noise, "
            "-max_action, max_action)", "actor(observations) + exploration_noise * max_action * noise", "act"),
    Mistake("exploration without noise", "actor(observations) + exploration_noise * max_action * noise",
            "actor(observations)", "act"),
    Mistake("draws beyond the experience", "draw_noise(key, step, hp, size, action_dim)",
            "draw_noise(key, step, hp, len(dataset), action_dim)", "shipped path"),
    Mistake("same noise at every update", "jax.random.split(jax.random.fold_in(key, step), count)",
            "jax.random.split(jax.random.fold_in(key, 0 * step), count)", "draws"),
    *quantiles.CONTINUOUS_MISTAKES,
]  # fmt: skip
