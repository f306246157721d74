"""BEAR on the ladder."""

import math
from typing import Any

from parity_tests.families import Family
from parity_tests.pair import Facts, Loss, Mistake, Pair
from parity_tests.pairs.plas import AS_WARM

SMALL = {"actor_hidden_dims": (32, 24), "critic_hidden_dims": (24, 32), "vae_hidden_dims": (32, 32)}
ENTROPY = {"temp_lr": 3e-3, "initial_temperature": 0.5}


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """Every network's; the decoder's for codes on both sides of the encoder's mean."""
    mean, std = twin.encoder(batch.observations, batch.actions)
    below, compared_below = twin.decoder(batch.observations, mean - std)
    above, compared_above = twin.decoder(batch.observations, mean + std)
    action_mean, action_std = twin.actor(batch.observations)
    return {
        "code's mean": mean,
        "code's std": std,
        "below": below,
        "above": above,
        "below, as compared": compared_below,
        "above, as compared": compared_above,
        "action's mean": action_mean,
        "action's std": action_std,
        "critics": twin.critics(batch.observations, batch.actions),
    }


def warms_up(config: Any) -> bool:
    """Whether an update behind the warm ones is still one of BEAR's own warm-up."""
    return config.warmup_steps >= AS_WARM


def temp_learns(config: Any) -> bool:
    """Whether such an update has a step of the temperature."""
    return config.temp_lr > 0.0 if config.mmd_in_actor else not warms_up(config)


def statics(config: Any, step: int) -> dict[str, Any]:
    """Whether it is an update of the warm-up."""
    return {"warms_up": step <= config.warmup_steps}


def warm_updates(config: Any, start: int, num_updates: int) -> dict[str, Any]:
    """How many updates of an interval are."""
    return {"warm_updates": min(max(config.warmup_steps - start, 0), num_updates)}


PAIR = Pair(
    name="bear",
    title="BEAR",
    family=Family.CONSTRAINT,
    use="The policy shall stay within the data's support, whatever their density there.",
    paper="Kumar et al. 2019",
    url="https://arxiv.org/abs/1906.00949",
    benchmark_updates=100,
    outputs=outputs,
    losses={
        "vae_loss": Loss(of=("encoder", "decoder")),
        "temp_loss": Loss(of=("log_temp",), used=temp_learns),
        "alpha_loss": Loss(of=("log_alpha",), used=lambda config: config.mmd_in_actor or not warms_up(config)),
        "critic_loss": Loss(of=("critics",)),
        "mmd_loss": Loss(of=("actor",), used=warms_up),
        "sac_loss": Loss(of=("actor",), used=lambda config: not config.mmd_in_actor and not warms_up(config)),
        "actor_loss": Loss(of=("actor",), used=lambda config: config.mmd_in_actor and not warms_up(config)),
    },
    variants={
        "default": SMALL | ENTROPY | {"warmup_steps": 0, "n_action_samples": 5, "mmd_sigma": 1.0},
        # In the form of d3rlpy 2.8.1
        "other": SMALL
        | ENTROPY
        | {"vae_tanh": False, "mmd_in_actor": False, "warmup_steps": 2, "lam": 0.3, "n_critics": 3}
        | {"n_action_samples": 4, "n_target_samples": 3, "n_mmd_action_samples": 3, "discount": 0.9, "tau": 0.1}
        | {"mmd_kernel": "gaussian", "mmd_sigma": 0.5, "actor_lr": 3e-4, "critic_lr": 2e-4, "vae_lr": 5e-4}
        | {"beta": 2.0, "alpha_threshold": 0.3, "initial_alpha": 2.0},
        # At the end of the warm-up, without entropy, the MMD's weight at its upper bound
        "warm": SMALL | {"warmup_steps": AS_WARM, "n_action_samples": 3, "initial_alpha": math.exp(10.0)},
        # With its weight at the lower one
        "light": SMALL
        | {"warmup_steps": 0, "n_action_samples": 3, "initial_alpha": math.exp(-5.0), "alpha_threshold": 2.0},
    },
    draw_statics=statics,
    update_statics=statics,
    interval_statics=warm_updates,
    # Also the log-density of the target's best action
    gathers=2,
    full_size={"warmup_steps": 3, "n_action_samples": 10},
    timed={"warmup_steps": 0},
    compiled_in="float32",
    facts=Facts(rewarded="critic_loss"),
)

MISTAKES = [
    Mistake("the tanh on the wrong side", "(tanh(raw), raw) if self.squashed else (raw, tanh(raw))",
            "(raw, tanh(raw)) if self.squashed else (tanh(raw), raw)", "forward"),
    Mistake("deviation for its logarithm", "exp(clamp(self.log_std(encoded), -20.0, 2.0))",
            "clamp(self.log_std(encoded), -20.0, 2.0)", "forward"),
    Mistake("code's log-deviation not bounded", "exp(clamp(self.log_std(encoded), -4.0, 15.0))",
            "exp(self.log_std(encoded))", "forward"),
    Mistake("the policy's samples squashed for the MMD", "return mean[:, None] + std[:, None] * noise",
            "return tanh(mean[:, None] + std[:, None] * noise)", "loss"),
    Mistake("the density before the tanh", "(log_density - log_slope).sum(axis=-1)",
            "log_density.sum(axis=-1)", "loss"),
    Mistake("the slope of the tanh added", "(log_density - log_slope)", "(log_density + log_slope)", "loss"),
    Mistake("actions not squashed", "return actor.module.max_action * tanh(raw),",
            "return actor.module.max_action * raw,", "loss"),
    Mistake("sigma squared", "(2.0 * sigma)", "(2.0 * sigma**2)", "loss", "other"),
    Mistake("mean over the action's components", "-distance.sum(axis=-1)", "-distance.mean(axis=-1)", "loss"),
    Mistake("kernels swapped", 'if name == "gaussian"', 'if name != "gaussian"', "loss"),
    Mistake("an action with its own alone", "x[:, :, None] - y[:, None]", "(x - y)[:, :, None]", "loss"),
    Mistake("the whole batch's pairs", ".mean(axis=(1, 2))", ".mean(axis=(0, 1, 2))", "loss"),
    Mistake("cross term once", "- 2.0 * alike(own, data)", "- alike(own, data)", "loss"),
    Mistake("no root", "return sqrt(alike(own, own)", "return (alike(own, own)", "loss"),
    Mistake("1e-6 outside of the root", "alike(own, data) + 1e-6)", "alike(own, data)) + 1e-6", "loss"),
    Mistake("codes not cut", "clamp(noise.codes, -0.5, 0.5)", "noise.codes", "loss"),
    Mistake("codes cut in the VAE's loss too", "mean + std * noise.latent", "mean + std * clamp(noise.latent, -0.5, "
            "0.5)", "loss"),
    Mistake("divergence weighs 1", "self.hp.beta * divergence", "divergence", "loss"),
    Mistake("lam on the maximum", "hp.lam * amin(q, axis=0) + (1.0 - hp.lam) * amax(q, axis=0)",
            "hp.lam * amax(q, axis=0) + (1.0 - hp.lam) * amin(q, axis=0)", "loss"),
    Mistake("the first sample's density", "pick(log_prob[..., None], argmax(mixed, axis=1))",
            "pick(log_prob[..., None], 0 * argmax(mixed, axis=1))", "loss"),
    Mistake("the best with its entropy", "argmax(mixed, axis=1))",
            "argmax(mixed - exp(self.log_temp) * log_prob, axis=1))", "loss", "other"),
    Mistake("entropy taken away in the target", "amax(mixed, axis=1) - exp", "amax(mixed, axis=1) + exp", "loss"),
    Mistake("online critics in the target", "self.actor, self.critics_target", "self.actor, self.critics", "loss"),
    Mistake("inverted done flag", "(1.0 - batch.terminals)", "batch.terminals", "loss", breaks="terminals_are_masked"),
    Mistake("mean over critics", "square(q - target).mean(axis=1).sum()", "square(q - target).mean()", "loss"),
    Mistake("target entropy plus the action's size", "(log_prob - action_dim)", "(log_prob + action_dim)", "loss"),
    Mistake("the temperature itself learns", "-(exp(log_temp) * (log_prob", "-(log_temp * (log_prob", "loss"),
    Mistake("no threshold", "-(exp(log_alpha) * (mmd - self.hp.alpha_threshold))", "-(exp(log_alpha) * mmd)", "loss"),
    Mistake("the MMD's weight falls where it should rise", "-(exp(log_alpha) * (mmd", "(exp(log_alpha) * (mmd", "loss"),
    Mistake("the policy's MMD not weighed", "exp(self.log_alpha) * (self.mmd", "(self.mmd", "loss", "warm"),
    Mistake("mean of the critics in the policy's loss", "q = smallest(critics(batch.observations, actions))",
            "q = critics(batch.observations, actions).mean(axis=0)", "loss"),
    Mistake("the policy meets the old critics", "state, own = state.step_actor(batch, noise, warms_up)",
            "state, own = state.replace(critics=self.critics).step_actor(batch, noise, warms_up)", "update"),
    Mistake("the old weight in the policy's loss", "            state, own = state.step_actor(batch",
            "            state, own = state.replace(log_alpha=self.log_alpha).step_actor(batch", "update"),
    Mistake("MMD held in the policy of d3rlpy's form", "value_and_grad(state.sac_loss,",
            "value_and_grad(state.actor_loss,", "update", "other"),
    Mistake("MMD left out of the policy", "else self.actor_loss\n", "else self.sac_loss\n", "update"),
    Mistake("the temperature of before its step", "        state, metrics = self.step_temp(batch, noise)\n        (sac",
            "        state, metrics = self.step_temp(batch, noise)\n        "
            "state = state.replace(log_temp=self.log_temp)\n        (sac", "update", "other"),
    Mistake("the weight at a rate of its own", "hp.alpha_lr if hp.mmd_in_actor else hp.actor_lr", "hp.alpha_lr",
            "update", "other"),
    Mistake("the weight stays in the warm-up", "        if hp.mmd_in_actor:\n",
            "        if hp.mmd_in_actor and not warms_up:\n", "update", "warm"),
    Mistake("tau the wrong way round", "(1.0 - tau) * old + tau * new",
            "tau * old + (1.0 - tau) * new", "update", breaks="targets_move_once_when_due"),
    Mistake("target critics not moved", "soft_update(state.critics_target, state.critics, hp.tau)",
            "state.critics_target", "update", breaks="targets_move_once_when_due"),
    Mistake("same noise at every update", "jax.random.fold_in(key, step)", "jax.random.fold_in(key, 0 * step)",
            "draws"),
    Mistake("one key for all", "jax.random.normal(keys.pop(),", "jax.random.normal(keys[0],", "draws"),
    Mistake("best by the last critic", "observations, noise.shape[1]), actions)[0], axis=1)",
            "observations, noise.shape[1]), actions)[-1], axis=1)", "act"),
    Mistake("the first sample for the best", "pick(actions, best)", "pick(actions, 0 * best)", "act"),
    Mistake("the warm-up one update short", "scan(state, start, warm_updates, warms_up=True)",
            "scan(state, start, warm_updates - 1, warms_up=True)", "shipped path", "other"),
    Mistake("the warm-up's draws once more", "start + warm_updates, num_updates - warm_updates",
            "start, num_updates - warm_updates", "shipped path", "other"),
]  # fmt: skip
