"""PLAS on the ladder."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import Facts, Loss, Mistake, Pair
from parity_tests.pairs.finetune_spot import pretrained

# One more than the ladder's warm updates: the first update after those is the VAE's last one.
AS_WARM = 31
SMALL = {"actor_hidden_dims": (32, 24), "critic_hidden_dims": (24, 32), "vae_hidden_dims": (32, 32)}


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """Every network's; the decoder's for codes on both sides of the encoder's mean."""
    mean, std = twin.encoder(batch.observations, batch.actions)
    return {
        "code's mean": mean,
        "code's std": std,
        "below": twin.decoder(batch.observations, mean - std),
        "above": twin.decoder(batch.observations, mean + std),
        "actor": twin.actor(batch.observations, twin.decoder),
        "critics": twin.critics(batch.observations, batch.actions),
    }


PAIR = Pair(
    name="plas",
    title="PLAS",
    family=Family.CONSTRAINT,
    use="The policy acts in the latent space of a generative model of the data.",
    paper="Zhou et al. 2020",
    url="https://arxiv.org/abs/2011.07213",
    benchmark_updates=300,
    outputs=outputs,
    losses={
        # The VAE's codes are drawn for its own updates only.
        "vae_loss": Loss(of=("encoder", "decoder"), used=lambda config: config.vae_iterations >= AS_WARM),
        "critic_loss": Loss(of=("critics",), inputs=("batch",)),
        "actor_loss": Loss(of=("actor",), inputs=("batch",)),
    },
    variants={
        "default": SMALL | {"vae_iterations": 3},
        # PLAS+P in the form of d3rlpy 2.8.1: decoded actions without a bound, a target policy of its own
        "other": SMALL
        | {"vae_iterations": 0, "vae_tanh": False, "copy_target_policy": False, "lam": 0.3, "n_critics": 3}
        | {"perturbation": True, "action_flexibility": 0.3, "discount": 0.9, "tau": 0.1}
        | {"actor_lr": 1e-3, "critic_lr": 3e-4},
        # PLAS+P in the form of the paper, at the end of the VAE's updates
        "vae": SMALL
        | {"vae_iterations": AS_WARM, "vae_lr": 3e-4, "beta": 2.0, "lam": 0.75}
        | {"perturbation": True, "action_flexibility": 0.2},
    },
    draw_statics=lambda config, step: {"pretrains": step <= config.vae_iterations},
    update_statics=lambda config, step: {"pretrains": step <= config.vae_iterations},
    interval_statics=lambda config, start, num_updates: {"vae_updates": pretrained(config, start, num_updates)},
    full_size={"vae_iterations": 3},
    timed={"vae_iterations": 0},
    facts=Facts(rewarded="critic_loss", target_inputs=("batch",)),
)

MISTAKES = [
    Mistake("deviation for its logarithm", "exp(clamp(self.log_std(encoded), -4.0, 15.0))",
            "clamp(self.log_std(encoded), -4.0, 15.0)", "forward"),
    Mistake("log-deviation not bounded", "exp(clamp(self.log_std(encoded), -4.0, 15.0))",
            "exp(self.log_std(encoded))", "forward"),
    Mistake("the tanh flag inverted", "tanh(actions) if self.squashed else actions",
            "actions if self.squashed else tanh(actions)", "forward"),
    Mistake("no tanh in either form", "tanh(actions) if self.squashed else actions", "actions", "forward"),
    Mistake("code not scaled", "2.0 * tanh(self.latent(observations))", "tanh(self.latent(observations))", "forward"),
    Mistake("code clipped as in BCQ", "2.0 * tanh(self.latent(observations))",
            "jnp.clip(self.latent(observations), -0.5, 0.5)", "forward"),
    Mistake("perturbation of the code, not of its action",
            "self.perturbation(concatenate([observations, actions], axis=-1))",
            "self.perturbation(concatenate([observations, tanh(self.latent(observations))[:, : self.action_dim]], "
            "axis=-1))", "forward", "vae"),
    Mistake("perturbation not bounded", "clamp(actions + scale * change, -self.max_action, self.max_action)",
            "actions + scale * change", "forward", "other"),
    Mistake("perturbation sees no gradient of its input", "concatenate([observations, actions], axis=-1)))\n"
            "        scale", "concatenate([observations, jax.lax.stop_gradient(actions)], axis=-1)))\n        scale",
            "gradient", "vae"),
    Mistake("divergence weighs 1", "self.hp.beta * divergence", "divergence", "loss", "vae"),
    Mistake("divergence summed over the code", "divergence(mean, std).mean(), {}",
            "divergence(mean, std).sum(-1).mean(), {}", "loss", "vae"),
    Mistake("code without noise", "mean + std * noise.latent", "mean + 0.0 * noise.latent", "loss", "vae"),
    Mistake("lam on the maximum", "hp.lam * amin(q, axis=0) + (1.0 - hp.lam) * amax(q, axis=0)",
            "hp.lam * amax(q, axis=0) + (1.0 - hp.lam) * amin(q, axis=0)", "loss"),
    Mistake("online policy in the target", "self.hp, self.actor_target, self.decoder",
            "self.hp, self.actor, self.decoder", "loss"),
    Mistake("online critics in the target", "self.decoder, self.critics_target", "self.decoder, self.critics", "loss"),
    Mistake("inverted done flag", "(1.0 - batch.terminals)", "batch.terminals", "loss", breaks="terminals_are_masked"),
    Mistake("mean over critics", "square(q - target).mean(axis=1).sum()", "square(q - target).mean()", "loss"),
    Mistake("smallest critic in the policy's loss", "-q[0].mean(), {}", "-amin(q, axis=0).mean(), {}", "loss"),
    Mistake("decoder stepped by the policy's loss", '        metrics["actor_loss"] = loss\n',
            '        metrics["actor_loss"] = loss\n        state = state.replace(decoder=jax.tree.map(lambda x: '
            "0.999 * x, state.decoder))\n", "update"),
    Mistake("policy on the old critics", "value_and_grad(state.actor_loss,", "value_and_grad(self.actor_loss,",
            "update"),
    Mistake("target from the old critics", "soft_update(state.critics_target, state.critics, hp.tau)",
            "soft_update(state.critics_target, self.critics, hp.tau)", "update"),
    Mistake("policy's target not moved",
            "            actor_target=soft_update(state.actor_target, state.actor, hp.tau),\n", "", "update",
            breaks="targets_move_once_when_due"),
    Mistake("tau the wrong way round", "(1.0 - tau) * old + tau * new", "tau * old + (1.0 - tau) * new", "update",
            breaks="targets_move_once_when_due"),
    Mistake("the VAE at the policy's rate", '"decoder": hp.vae_lr', '"decoder": hp.actor_lr', "update", "vae"),
    Mistake("the target starts as a copy", "    if not config.copy_target_policy:\n", "    if False:\n", "start",
            "other"),
    Mistake("the target starts with numbers of its own", "    if not config.copy_target_policy:\n", "    if True:\n",
            "start"),
    Mistake("same noise at every update", "jax.random.fold_in(key, step)", "jax.random.fold_in(key, 0 * step)",
            "draws"),
    Mistake("the VAE one update short", "scan(state, start, vae_updates, pretrains=True)",
            "scan(state, start, vae_updates - 1, pretrains=True)", "shipped path"),
    Mistake("the VAE's draws once more", "start + vae_updates, num_updates - vae_updates",
            "start, num_updates - vae_updates", "shipped path"),
]  # fmt: skip
