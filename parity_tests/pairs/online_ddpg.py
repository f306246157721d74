"""DDPG on the ladder: what it learns from a dataset, and from what it has seen of an environment."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import Facts, Loss, Mistake, Pair
from parity_tests.pairs import quantiles

SMALL = {"env": "mini/hopper-mostly-expert", "actor_hidden_dims": (64, 48), "critic_hidden_dims": (48, 64)}
# Rows that count as experience so far: fewer than a dataset has, so that a draw beyond them shows.
FILLED = 150


def corner(trainer: Any) -> None:
    """Actions near their bounds, which exploration crosses, and critics that differ."""
    for actor in (trainer.actor, trainer.actor_target):
        actor.net[-1].weight.data.mul_(20.0)
    for member in trainer.critics_target.members:
        quantiles.last_layer(member).weight.data.mul_(20.0)


PAIR = Pair(
    name="online/ddpg",
    title="DDPG, online",
    family=Family.ONLINE,
    use="The ancestor of TD3, for comparison.",
    paper="Lillicrap et al. 2015",
    url="https://arxiv.org/abs/1509.02971",
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
        "other": SMALL | {"n_critics": 2, "discount": 0.9, "tau": 0.1, "actor_lr": 1e-3, "critic_lr": 1e-4},
        **{name: SMALL | settings for name, settings in quantiles.CONTINUOUS.items()},
    },
    corner=corner,
    draw_inputs=lambda dataset, action_dim: (FILLED,),
    interval_statics=lambda config, start, num_updates: {"size": FILLED},
    other_draws=("draw_exploration",),
    records_on_cpu=False,
    facts=Facts(rewarded="critic_loss"),
)

MISTAKES = [
    Mistake("tanh forgotten", "return self.max_action * tanh(self.net(observations))",
            "return self.max_action * self.net(observations)", "forward"),
    Mistake("swapped input", "concatenate([observations, actions]", "concatenate([actions, observations]", "forward"),
    Mistake("mean over critics", "square(q - target).mean(axis=(1, 2)).sum()", "square(q - target).mean()", "loss",
            "other"),
    Mistake("half the squared error", "square(q - target).mean(axis=(1, 2)).sum()",
            "0.5 * square(q - target).mean(axis=(1, 2)).sum()", "loss"),
    Mistake("target broadcast to (B, B)", "square(q - target).mean(axis=(1, 2))",
            "square(q - target[:, 0]).mean(axis=(1, 2))", "loss"),
    Mistake("inverted done flag", "(1.0 - batch.terminals[:, None])", "batch.terminals[:, None]", "loss",
            breaks="terminals_are_masked"),
    Mistake("no discount", "hp.discount * next_q", "next_q", "loss"),
    Mistake("largest target value", "argmin(q.mean(axis=-1), axis=0)", "jnp.argmax(q.mean(axis=-1), axis=0)", "loss",
            "other"),
    Mistake("online actor in the target", "self.hp, self.actor_target, self.critics_target",
            "self.hp, self.actor, self.critics_target", "loss"),
    Mistake("online critics in the target", "self.hp, self.actor_target, self.critics_target",
            "self.hp, self.actor_target, self.critics", "loss"),
    Mistake("current states in the target", "actor(batch.next_observations)", "actor(batch.observations)", "loss"),
    Mistake("gradient through the target",
            "value_and_grad(state.critic_loss, has_aux=True)(state.critics, batch, noise)",
            "value_and_grad(lambda critics: state.replace(critics_target=critics).critic_loss(critics, batch, noise), "
            "has_aux=True)(state.critics)", "update"),
    Mistake("smallest critic for the policy", "actor(batch.observations), None, 1).mean(axis=-1).squeeze(0)",
            "actor(batch.observations)).mean(axis=-1).min(axis=0)", "loss", "other"),
    Mistake("policy on the data's actions", "critics(batch.observations, actor(batch.observations), None, 1)",
            "critics(batch.observations, batch.actions, None, 1)", "loss"),
    Mistake("policy down the value", "return -q.mean()", "return q.mean()", "loss"),
    Mistake("policy on the old critics", "value_and_grad(state.actor_loss,", "value_and_grad(self.actor_loss,",
            "update"),
    Mistake("rates exchanged", '{"actor": hp.actor_lr, "critics": hp.critic_lr}',
            '{"actor": hp.critic_lr, "critics": hp.actor_lr}', "update", "other"),
    Mistake("target from the old critics", "soft_update(state.critics_target, state.critics, hp.tau)",
            "soft_update(state.critics_target, self.critics, hp.tau)", "update",
            breaks="targets_move_once_when_due"),
    Mistake("tau the wrong way round", "(1.0 - tau) * old + tau * new", "tau * old + (1.0 - tau) * new", "update",
            breaks="targets_move_once_when_due"),
    Mistake("one target not moved",
            "            actor_target=soft_update(state.actor_target, state.actor, hp.tau),\n", "", "update",
            breaks="targets_move_once_when_due"),
    Mistake("exploration not clipped", "clip(actor(observations) + exploration_noise * max_action * noise, "
            "-max_action, max_action)", "actor(observations) + exploration_noise * max_action * noise", "act"),
    Mistake("draws beyond the experience", "draw_noise(key, step, hp, size)",
            "draw_noise(key, step, hp, len(dataset))", "shipped path"),
    Mistake("same batch at every update", "key = jax.random.fold_in(key, step)",
            "key = jax.random.fold_in(key, 0 * step)", "draws"),
    *quantiles.CONTINUOUS_MISTAKES,
]  # fmt: skip
