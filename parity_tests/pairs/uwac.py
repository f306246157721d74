"""UWAC on the ladder."""

import math
from typing import Any

import torch

from parity_tests.families import Family
from parity_tests.pair import Facts, Loss, Mistake, Pair
from parity_tests.pairs.plas import AS_WARM

WIDTHS = {"actor_hidden_dims": (32, 24), "critic_hidden_dims": (24, 32), "vae_hidden_dims": (32, 32)}
SMALL = WIDTHS | {"n_target_samples": 3, "n_passes": 4, "n_action_samples": 5}


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """Every network's; the decoder's for codes on both sides of the encoder's mean, the critics' without dropout."""
    mean, std = twin.encoder(batch.observations, batch.actions)
    below, raw_below = twin.decoder(batch.observations, mean - std)
    above, raw_above = twin.decoder(batch.observations, mean + std)
    action_mean, action_std = twin.actor(batch.observations)
    return {
        "code's mean": mean,
        "code's std": std,
        "below": below,
        "above": above,
        "below, raw": raw_below,
        "above, raw": raw_above,
        "action's mean": action_mean,
        "action's std": action_std,
        "critics": twin.critics(batch.observations, batch.actions, twin.directions(), [[1.0, 1.0]] * 2),
    }


def corner(trainer: Any) -> None:
    """Directions that are far from the largest stretch; without spectral norm, values of which critics may doubt."""
    generator = torch.Generator().manual_seed(0)
    for directions in (trainer.directions, trainer.target_directions):
        for vector in directions.parameters():
            moved = vector.data + torch.randn(vector.shape, generator=generator) / len(vector) ** 0.5
            vector.data = moved / moved.norm()
    for critic in (*trainer.critics.members, *trainer.critics_target.members):
        if not critic.spectral_norm:
            critic.net[-1].weight.data *= 300.0
            critic.net[-1].bias.data *= 300.0


def warms_up(config: Any) -> bool:
    """Whether an update behind the warm ones is still one of UWAC's own warm-up."""
    return config.warmup_steps >= AS_WARM


def statics(config: Any, step: int) -> dict[str, Any]:
    """Whether it is an update of the warm-up."""
    return {"warms_up": step <= config.warmup_steps}


def warm_updates(config: Any, start: int, num_updates: int) -> dict[str, Any]:
    """How many updates of an interval are."""
    return {"warm_updates": min(max(config.warmup_steps - start, 0), num_updates)}


PAIR = Pair(
    name="uwac",
    title="UWAC",
    family=Family.UNCERTAINTY,
    use="The data are narrow, and two critics shall tell where they guess: their dropout does.",
    paper="Wu et al. 2021",
    url="https://arxiv.org/abs/2105.08140",
    benchmark_updates=4,
    outputs=outputs,
    losses={
        "vae_loss": Loss(of=("encoder", "decoder")),
        "critic_loss": Loss(of=("critics",)),
        "mmd_loss": Loss(of=("actor",), used=warms_up),
        "actor_loss": Loss(of=("actor",), used=lambda config: not warms_up(config)),
        "alpha_loss": Loss(of=("log_alpha",), inputs=("mmd",)),
    },
    variants={
        "default": SMALL | {"warmup_steps": 0, "mmd_sigma": 1.0},
        # In the authors' form
        "authors": SMALL
        | {"copy_targets": False, "variance_at_best": False, "warmup_steps": 2, "lam": 0.3, "drop_rate": 0.4}
        | {"discount": 0.9, "tau": 0.1, "kl_weight": 2.0, "alpha_threshold": 0.3, "initial_alpha": 2.0}
        | {"n_mmd_action_samples": 3, "mmd_kernel": "laplacian", "mmd_sigma": 0.5, "weigh_actor": False}
        | {"actor_lr": 3e-4, "critic_lr": 2e-4, "vae_lr": 5e-4, "alpha_lr": 3e-3}
        | {"q_penalty": 0.1, "beta": 0.2, "clip_bottom": 0.1, "clip_top": 0.9},
        # The other weight, and weights as they are
        "inverse": SMALL
        | {"spectral_norm": False, "exp_weight": False, "exp_penalty": True, "q_penalty": 0.5, "warmup_steps": 0}
        | {"beta": 0.05, "clip_bottom": 0.2, "clip_top": 0.8},
        # At the end of the warm-up, the MMD's weight at its upper bound
        "warm": SMALL | {"warmup_steps": AS_WARM, "initial_alpha": math.exp(10.0)},
        # With its weight at the lower one
        "light": SMALL | {"warmup_steps": 0, "initial_alpha": math.exp(-5.0), "alpha_threshold": 2.0},
    },
    corner=corner,
    extra_inputs=lambda rng, size: {"mmd": rng.random(size)},
    update_statics=statics,
    interval_statics=warm_updates,
    drawn_inside=lambda twin, noise, hp: noise._replace(dropout=twin.draw_dropout(noise.dropout, hp)),
    draws_inside=True,
    # Also the variance of the target's best action
    gathers=2,
    in_a_run={"n_target_samples": 2, "n_passes": 2, "n_action_samples": 2},
    full_size={"warmup_steps": 3, "n_target_samples": 2, "n_passes": 3, "n_action_samples": 3},
    # A tenth of the passes: an update of the authors' size takes seconds.
    timed={"warmup_steps": 0, "n_passes": 10},
    compiled_in="float32",
    facts=Facts(rewarded="critic_loss"),
)

MISTAKES = [
    Mistake("deviation for its logarithm", "exp(clamp(self.log_std(encoded), -5.0, 2.0))",
            "clamp(self.log_std(encoded), -5.0, 2.0)", "forward"),
    Mistake("BEAR's bounds of the deviation", "clamp(self.log_std(encoded), -5.0, 2.0)",
            "clamp(self.log_std(encoded), -20.0, 2.0)", "forward"),
    Mistake("no spectral norm", "kernel = kernel / (u @ (v @ kernel))", "kernel = kernel / 1.0", "forward"),
    Mistake("Frobenius' norm for the spectral one", "kernel / (u @ (v @ kernel))", "kernel / norm(kernel)", "forward"),
    Mistake("sigma without a gradient", "(u @ (v @ kernel))", "stop_gradient(u @ (v @ kernel))", "gradient"),
    Mistake("dropout off", "inputs * (kept / (1.0 - rate))", "inputs", "loss"),
    Mistake("dropout that does not scale", "inputs * (kept / (1.0 - rate))", "inputs * kept", "loss"),
    Mistake("one mask for all passes", "relu(layer(inputs, direction)), mask, self",
            "relu(layer(inputs, direction)), mask[..., :1, :] if mask.ndim > 2 else mask, self", "loss"),
    Mistake("one mask for both critics", "for member, layers, masks in members",
            "for member, layers, _ in members for masks in kept[:1]", "loss"),
    Mistake("biased variance", "q.var(axis=-1, ddof=1)", "q.var(axis=-1)", "loss"),
    Mistake("deviation for variance", "q.var(axis=-1, ddof=1)", "q.std(axis=-1, ddof=1)", "loss"),
    Mistake("the weight rises with the variance", "exp(-hp.beta * variance)", "exp(hp.beta * variance)", "loss",
            "authors"),
    Mistake("beta divided twice", "hp.beta / variance\n", "hp.beta / variance / variance\n", "loss", "inverse"),
    Mistake("weight not bounded", "return clamp(certainty, hp.clip_bottom, hp.clip_top)", "return certainty", "loss",
            "inverse"),
    Mistake("weight outside the square", "square((q - target) * certainty)", "(square(q - target) * certainty)",
            "loss"),
    Mistake("no weight", "square((q - target) * certainty)", "square(q - target)", "loss"),
    Mistake("variance of one critic", "variance = variances.sum(axis=0)", "variance = variances[0]", "loss"),
    Mistake("mean of both variances", "variance = variances.sum(axis=0)", "variance = variances.mean(axis=0)", "loss"),
    Mistake("the largest variance, as the authors", "if hp.variance_at_best:", "if False:", "loss"),
    Mistake("the best action's variance in the authors' form", "if hp.variance_at_best:", "if True:", "loss",
            "authors"),
    Mistake("lam on the maximum", "hp.lam * amin(q, axis=0) + (1.0 - hp.lam) * amax(q, axis=0)",
            "hp.lam * amax(q, axis=0) + (1.0 - hp.lam) * amin(q, axis=0)", "loss"),
    Mistake("the best action before the mix", "    mixed = hp.lam * amin",
            "    q = 0 * q + q.max(axis=-1, keepdims=True)\n        mixed = hp.lam * amin", "loss"),
    Mistake("tiles for repeats", "return tile(observations[:, None], (1, n, 1))",
            "return tile(observations, (n, 1)).reshape(len(observations), n, -1)", "loss"),
    Mistake("online critics in the target", "self.actor, self.critics_target, self.target_directions",
            "self.actor, self.critics, self.directions", "loss"),
    Mistake("the critics' directions in the target", "self.critics_target, self.target_directions",
            "self.critics_target, self.directions", "loss", "authors"),
    Mistake("inverted done flag", "(1.0 - batch.terminals)", "batch.terminals", "loss", breaks="terminals_are_masked"),
    Mistake("penalty on negative values", "relu(q) * doubt", "relu(-q) * doubt", "loss", "inverse"),
    Mistake("penalty always exponential", "exp(variance) if hp.exp_penalty else variance", "exp(variance)", "loss",
            "authors"),
    Mistake("divergence weighs 1", "self.hp.kl_weight * divergence", "divergence", "loss"),
    Mistake("divergence summed up", "divergence(mean, std).mean()", "divergence(mean, std).sum(axis=1).mean()", "loss"),
    Mistake("squashed samples in the MMD", "mmd = self.mmd(batch, noise, own)",
            "mmd = self.mmd(batch, noise, tanh(own))", "loss"),
    Mistake("squashed actions of the data's side", "_, data = decoder", "data, _ = decoder", "loss"),
    Mistake("sigma squared", "(2.0 * sigma)", "(2.0 * sigma**2)", "loss", "authors"),
    Mistake("kernels swapped", 'if name == "gaussian"', 'if name != "gaussian"', "loss"),
    Mistake("no root", "return sqrt(alike(own, own)", "return (alike(own, own)", "loss"),
    Mistake("1e-6 outside of the root", "alike(own, data) + 1e-6)", "alike(own, data)) + 1e-6", "loss"),
    Mistake("codes not cut", "clamp(noise.codes, -0.5, 0.5)", "noise.codes", "loss"),
    Mistake("the last sample's value", "tanh(own[:, 0])", "tanh(own[:, -1])", "loss"),
    Mistake("the samples' mean for the first", "tanh(own[:, 0])", "tanh(own.mean(axis=1))", "loss"),
    Mistake("mean of the critics in the policy's loss", "q = amin(values, axis=0)", "q = values.mean(axis=0)", "loss"),
    Mistake("the policy's weight has a gradient", "stop_gradient(variances)", "variances", "gradient"),
    Mistake("the policy's value never weighed", "if hp.weigh_actor:", "if False:", "loss"),
    Mistake("the MMD's weight falls where it should rise", "-(exp(log_alpha) * (mmd", "(exp(log_alpha) * (mmd", "loss"),
    Mistake("no iteration of the critics before the policy's loss",
            "whenever they are called, which is here the second time.\n        "
            "state = state.replace(directions=iterated(state.directions, state.critics))",
            "whenever they are called.", "update"),
    Mistake("no iteration of the targets",
            "state = state.replace(target_directions=iterated(state.target_directions, state.critics_target))\n",
            "pass\n", "update"),
    Mistake("half an iteration", '{"u": unit(v @ kernel), "v": v}', '{"u": direction["u"], "v": v}', "update"),
    Mistake("directions averaged with the targets", "hp.tau))\n        losses",
            "hp.tau))\n        state = state.replace(target_directions=soft_update(state.target_directions, "
            "state.directions, hp.tau))\n        losses", "update", "authors"),
    Mistake("the policy meets the new critics", "state.mmd_loss if warms_up else state.actor_loss",
            'state.mmd_loss if warms_up else gradient_step(state, "critics", critics_gradient).actor_loss', "update"),
    Mistake("the weight of the MMD not bounded", "clamp(state.log_alpha, -5.0, 10.0)", "state.log_alpha", "update",
            "warm"),
    Mistake("values in the warm-up too", "state.mmd_loss if warms_up else state.actor_loss", "state.actor_loss",
            "update", "warm"),
    Mistake("tau the wrong way round", "(1.0 - tau) * old + tau * new",
            "tau * old + (1.0 - tau) * new", "update", breaks="targets_move_once_when_due"),
    Mistake("targets copied in the authors' form", "copied if config.copy_targets else judge(target_key)", "copied",
            "start", "authors"),
    Mistake("same noise at every update", "jax.random.fold_in(key, step)", "jax.random.fold_in(key, 0 * step)",
            "draws"),
    Mistake("same dropout at every update", "behaviour, actor, dropout_key)", "behaviour, actor, key)", "draws"),
    Mistake("one key for all masks", "jax.random.bernoulli(next(keys),", "jax.random.bernoulli(key,", "draws"),
    Mistake("the share that is kept is dropped", "1.0 - hp.drop_rate, (*shape", "hp.drop_rate, (*shape", "draws"),
    Mistake("best by the last critic", "actions, [kept])\n    return pick(actions, argmax(q[0], axis=1))",
            "actions, [kept, kept])\n    return pick(actions, argmax(q[-1], axis=1))", "act"),
    Mistake("the first sample for the best", "pick(actions, argmax(q[0], axis=1))", "actions[:, 0]", "act"),
    Mistake("iterated in evaluation", "q, _ = mean_and_variance(critics, directions, repeat(observations, n)",
            "q, _ = mean_and_variance(critics, iterated(directions, critics), repeat(observations, n)", "act"),
    Mistake("the warm-up one update short", "scan(state, start, warm_updates, warms_up=True)",
            "scan(state, start, warm_updates - 1, warms_up=True)", "shipped path", "authors"),
    Mistake("the warm-up's draws once more", "start + warm_updates, num_updates - warm_updates",
            "start, num_updates - warm_updates", "shipped path", "authors"),
]  # fmt: skip
