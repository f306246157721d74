"""BCQ on the ladder."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import Facts, Loss, Mistake, Pair
from parity_tests.pairs.finetune_spot import pretrained
from parity_tests.pairs.plas import AS_WARM

SMALL = {"actor_hidden_dims": (32, 24), "critic_hidden_dims": (24, 32), "vae_hidden_dims": (32, 32)}


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """Every network's; the decoder's for codes on both sides of the encoder's mean."""
    mean, std = twin.encoder(batch.observations, batch.actions)
    return {
        "code's mean": mean,
        "code's std": std,
        "below": twin.decoder(batch.observations, mean - std),
        "above": twin.decoder(batch.observations, mean + std),
        "actor": twin.actor(batch.observations, batch.actions),
        "critics": twin.critics(batch.observations, batch.actions),
    }


def learns(config: Any) -> bool:
    """Whether an update behind the warm ones is one of all parts."""
    return config.vae_iterations < AS_WARM


PAIR = Pair(
    name="bcq",
    title="BCQ",
    family=Family.CONSTRAINT,
    use="The data comes from a narrow policy: a generative model proposes the actions.",
    paper="Fujimoto et al. 2018",
    url="https://arxiv.org/abs/1812.02900",
    benchmark_updates=60,
    outputs=outputs,
    losses={
        "vae_loss": Loss(of=("encoder", "decoder")),
        # The VAE's own updates draw no noise for these.
        "critic_loss": Loss(of=("critics",), used=learns),
        "actor_loss": Loss(of=("actor",), used=learns),
    },
    variants={
        "default": SMALL | {"n_action_samples": 5},
        # In the form of d3rlpy 2.8.1: decoded actions without a bound, a target perturbation of its own
        "other": SMALL
        | {"vae_iterations": 2, "vae_tanh": False, "copy_target_policy": False, "lam": 0.3, "n_critics": 3}
        | {"n_action_samples": 4, "n_target_samples": 3, "action_flexibility": 0.3, "discount": 0.9, "tau": 0.1}
        | {"actor_lr": 3e-4, "critic_lr": 2e-4, "vae_lr": 5e-4, "beta": 2.0},
        # At the end of the updates of the VAE alone
        "vae": SMALL | {"vae_iterations": AS_WARM, "n_action_samples": 3},
    },
    draw_statics=lambda config, step: {"pretrains": step <= config.vae_iterations},
    update_statics=lambda config, step: {"pretrains": step <= config.vae_iterations},
    interval_statics=lambda config, start, num_updates: {"vae_updates": pretrained(config, start, num_updates)},
    full_size={"n_action_samples": 10},
    facts=Facts(rewarded="critic_loss"),
)

MISTAKES = [
    Mistake("deviation for its logarithm", "exp(clamp(self.log_std(encoded), -4.0, 15.0))",
            "clamp(self.log_std(encoded), -4.0, 15.0)", "forward"),
    Mistake("the tanh flag inverted", "tanh(actions) if self.squashed else actions",
            "actions if self.squashed else tanh(actions)", "forward"),
    Mistake("changed action not bounded", "clamp(actions + scale * change, -self.max_action, self.max_action)",
            "actions + scale * change", "forward", "other"),
    Mistake("the perturbation makes the action itself", "clamp(actions + scale * change,", "clamp(scale * change,",
            "forward"),
    Mistake("codes not cut", "clamp(noise, -0.5, 0.5)", "noise", "loss"),
    Mistake("codes cut in the VAE's loss too", "mean + std * noise.latent", "mean + std * clamp(noise.latent, -0.5, "
            "0.5)", "loss"),
    Mistake("divergence summed over the code", "divergence(mean, std).mean(), {}",
            "divergence(mean, std).sum(-1).mean(), {}", "loss"),
    Mistake("divergence weighs 1", "self.hp.beta * divergence", "divergence", "loss"),
    Mistake("lam on the maximum", "hp.lam * amin(q, axis=0) + (1.0 - hp.lam) * amax(q, axis=0)",
            "hp.lam * amax(q, axis=0) + (1.0 - hp.lam) * amin(q, axis=0)", "loss"),
    Mistake("the best action of each extreme for itself",
            "amax(hp.lam * amin(q, axis=0) + (1.0 - hp.lam) * amax(q, axis=0), axis=1)",
            "hp.lam * amax(amin(q, axis=0), axis=1) + (1.0 - hp.lam) * amax(amax(q, axis=0), axis=1)", "loss"),
    Mistake("the mean of the sampled actions", "next_q = amax(hp.lam", "next_q = jnp.mean(hp.lam", "loss"),
    Mistake("one code for all samples of a state", "next_observations, noise.target)",
            "next_observations, jnp.repeat(noise.target[:, :1], hp.target_samples, axis=1))", "loss"),
    Mistake("online perturbation in the target", "self.hp, self.actor_target, self.decoder",
            "self.hp, self.actor, self.decoder", "loss"),
    Mistake("online critics in the target", "self.decoder, self.critics_target", "self.decoder, self.critics", "loss"),
    Mistake("inverted done flag", "(1.0 - batch.terminals)", "batch.terminals", "loss", breaks="terminals_are_masked"),
    Mistake("mean over critics", "square(q - target).mean(axis=1).sum()", "square(q - target).mean()", "loss"),
    Mistake("smallest critic in the perturbation's loss", "-q[0].mean(), {}", "-amin(q, axis=0).mean(), {}", "loss"),
    Mistake("observations tiled in another order", "tile(observations[:, None], (1, n, 1))",
            "tile(observations, (n, 1)).reshape(len(observations), n, -1)", "loss"),
    Mistake("old decoder for the critics", "value_and_grad(state.critic_loss,", "value_and_grad(self.critic_loss,",
            "update"),
    Mistake("perturbation on the old critics", "value_and_grad(state.actor_loss,", "value_and_grad(self.actor_loss,",
            "update"),
    Mistake("decoder stepped by the perturbation's loss", '        metrics["actor_loss"] = loss\n',
            '        metrics["actor_loss"] = loss\n        state = state.replace(decoder=jax.tree.map(lambda x: '
            "0.999 * x, state.decoder))\n", "update"),
    Mistake("the VAE stops to learn", "        if pretrains:\n            return state, metrics\n",
            "        if pretrains:\n            return state, metrics\n        state = state.replace("
            "encoder=self.encoder, decoder=self.decoder)\n", "update"),
    Mistake("perturbation's target not moved",
            "            actor_target=soft_update(state.actor_target, state.actor, hp.tau),\n", "", "update",
            breaks="targets_move_once_when_due"),
    Mistake("tau the wrong way round", "(1.0 - tau) * old + tau * new", "tau * old + (1.0 - tau) * new", "update",
            breaks="targets_move_once_when_due"),
    Mistake("the target starts as a copy", "    if not config.copy_target_policy:\n", "    if False:\n", "start",
            "other"),
    Mistake("same noise at every update", "jax.random.fold_in(key, step)", "jax.random.fold_in(key, 0 * step)",
            "draws"),
    Mistake("best by the last critic", "observations, actions)[0], axis=1)", "observations, actions)[-1], axis=1)",
            "act"),
    Mistake("the first sample for the best", "pick(actions, best)", "pick(actions, 0 * best)", "act"),
    Mistake("acting by the worst sample", "best = argmax(", "best = argmax(-1.0 * ", "act"),
    Mistake("the VAE alone for one update less", "scan(state, start, vae_updates, pretrains=True)",
            "scan(state, start, vae_updates - 1, pretrains=True)", "shipped path", "other"),
    Mistake("the VAE's draws once more", "start + vae_updates, num_updates - vae_updates",
            "start, num_updates - vae_updates", "shipped path", "other"),
]  # fmt: skip
