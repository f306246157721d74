"""PRDC on the ladder. All rows of the dataset are searched for those nearest to the policy's actions."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import Facts, Loss, Mistake, Pair, squared_error

SMALL = {"env": "mini/hopper-mostly-expert", "actor_hidden_dims": (64, 48), "critic_hidden_dims": (48, 64)}


def corner(trainer: Any) -> None:
    """Actions near their bounds, which the noise crosses, and critics that differ."""
    for actor in (trainer.actor, trainer.actor_target):
        actor.net[-1].weight.data.mul_(20.0)
    for member in trainer.critics_target.members:
        member[-1].weight.data.mul_(20.0)


PAIR = Pair(
    name="prdc",
    title="PRDC",
    family=Family.CONSTRAINT,
    use="The nearest state-action pair of the data holds the policy, not that of the same state.",
    paper="Ran et al. 2023",
    url="https://arxiv.org/abs/2306.06569",
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
        | {
            "alpha": 10.0,
            "beta": 0.3,
            "search": "brute",
            "policy_noise": 0.5,
            "noise_clip": 0.3,
            "actor_lr": 1e-3,
            "critic_lr": 1e-4,
        },
        "each": SMALL | {"policy_freq": 1, "n_critics": 1, "tau": 0.1},
    },
    corner=corner,
    update_statics=lambda config, step: {"delayed": (step - 1) % config.policy_freq == 0},
    interval_statics=lambda config, start, num_updates: {"phase": start % config.policy_freq},
    take=lambda twin, dataset, indices, config: twin.take_constrained(dataset, indices),
    ready=lambda twin, dataset, config: twin.constrained(dataset, config),
    # Only where the policy learns is the nearest row searched.
    gathers=1.5,
    host_calls=0.5,
    on_device={"search": "brute"},
    facts=Facts(rewarded="critic_loss", first_delayed=1, imitation=squared_error, sharp={"alpha": 0.01}),
)

MISTAKES = [
    Mistake("tanh forgotten", "return self.max_action * tanh(self.net(observations))",
            "return self.max_action * self.net(observations)", "forward"),
    Mistake("swapped input", "concatenate([observations, actions]", "concatenate([actions, observations]", "forward"),
    Mistake("mean over critics", "square(q - target).mean(axis=1).sum()", "square(q - target).mean()", "loss"),
    Mistake("half the squared error", "square(q - target).mean(axis=1).sum()",
            "0.5 * square(q - target).mean(axis=1).sum()", "loss"),
    Mistake("inverted done flag", "(1.0 - batch.terminals)", "batch.terminals", "loss", breaks="terminals_are_masked"),
    Mistake("no discount", "hp.discount * next_q", "next_q", "loss"),
    Mistake("mean critic in the target", "next_q = amin(", "next_q = jnp.mean(", "loss"),
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
    Mistake("smallest critic for the policy", "actions, 1).squeeze(0)",
            "actions).min(axis=0)", "loss"),
    Mistake("policy on the data's actions", "critics(batch.observations, actions, 1)",
            "critics(batch.observations, batch.actions, 1)", "loss"),
    Mistake("states not weighed", "concatenate([beta * observations, actions]", "concatenate([observations, actions]",
            "loss"),
    Mistake("actions weighed, not states", "concatenate([beta * observations, actions]",
            "concatenate([observations, beta * actions]", "loss"),
    Mistake("states weighed by the square", "concatenate([beta * observations, actions]",
            "concatenate([beta**2 * observations, actions]", "loss"),
    Mistake("keys not weighed, rows are", "keys = search_keys(batch.observations, actions, self.hp.beta)",
            "keys = search_keys(batch.observations, actions, 1.0)", "loss"),
    Mistake("searched by the batch's actions", "nearest = self.nearest_actions(batch, stop_gradient(actions))",
            "nearest = self.nearest_actions(batch, batch.actions)", "loss"),
    Mistake("behaviour cloning for the nearest row", "distance = square(actions - nearest).mean()",
            "distance = square(actions - batch.actions).mean()", "loss", breaks="actor_does_more_than_imitate"),
    Mistake("gradient through the nearest action", "distance = square(actions - nearest).mean()",
            "distance = square(actions - (nearest + actions - stop_gradient(actions))).mean()", "gradient"),
    Mistake("distance summed over action dimensions", "distance = square(actions - nearest).mean()",
            "distance = square(actions - nearest).sum(axis=1).mean()", "loss"),
    Mistake("distance not squared", "distance = square(actions - nearest).mean()",
            "distance = abs(actions - nearest).mean()", "loss"),
    Mistake("size of the mean for the mean size", "abs(q).mean()", "abs(q.mean())", "loss"),
    Mistake("epsilon below |Q|", "stop_gradient(abs(q).mean())", "(stop_gradient(abs(q).mean()) + 1e-3)", "loss"),
    Mistake("weight with a gradient", "stop_gradient(abs(q).mean())", "abs(q).mean()", "gradient"),
    Mistake("distance not logged", 'metrics |= {"actor_loss": loss, **aux}', 'metrics |= {"actor_loss": loss}', "log"),
    Mistake("policy down the value", "return -weight * q.mean()", "return weight * q.mean()", "loss"),
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
    Mistake("policy in the second update, not in the first", "delayed = (phase + i) % hp.policy_freq == 0",
            "delayed = (phase + i + 1) % hp.policy_freq == 0", "shipped path",
            breaks="actor_steps_once_in_its_period"),
    Mistake("same noise at every update", "jax.random.split(jax.random.fold_in(key, step))\n    indices",
            "jax.random.split(jax.random.fold_in(key, 0 * step))\n    indices", "draws"),
]  # fmt: skip
