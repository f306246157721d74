"""SPOT, offline to online, on the ladder."""

from typing import Any

import numpy as np

from parity_tests.families import Family
from parity_tests.pair import Facts, Loss, Mistake, Pair, squared_error
from parity_tests.pairs.finetune_iql import FILLED

SMALL = {"vae_hidden_dim": 32}


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """Every network's; the VAE's for the same code in each row, on both sides of its mean."""
    found: dict[str, Any] = {}
    for latent in (-0.5, 0.5):
        reconstruction, mean, std = twin.vae(batch.observations, batch.actions, latent)
        found |= {f"reconstruction {latent}": reconstruction, "code's mean": mean, "code's std": std}
    return found | {
        "actor": twin.actor(batch.observations),
        "critic_1": twin.critic_1(batch.observations, batch.actions),
        "critic_2": twin.critic_2(batch.observations, batch.actions),
    }


def pretrained(config: Any, start: int, num_updates: int) -> int:
    """How many updates of an interval are the VAE's."""
    return min(max(config.vae_iterations - start, 0), num_updates)


def update_statics(config: Any, step: int) -> dict[str, bool]:
    """Whether it is one of the VAE, or one in which the actor moves."""
    pretrains = step <= config.vae_iterations
    return {"pretrains": pretrains, "delayed": not pretrains and step % config.policy_freq == 0}


def interval_statics(config: Any, start: int, num_updates: int) -> dict[str, int]:
    """The rows that count, the updates of the VAE, and where those after them stand in the period."""
    vae_updates = pretrained(config, start, num_updates)
    return {"size": FILLED, "vae_updates": vae_updates, "phase": (start + vae_updates) % config.policy_freq}


PAIR = Pair(
    name="finetune/spot",
    title="SPOT, offline to online",
    family=Family.FINETUNING,
    use="A density model of the data holds the policy, less and less so.",
    paper="Wu et al. 2022",
    url="https://arxiv.org/abs/2202.06239",
    benchmark_updates=150,
    outputs=outputs,
    losses={
        "vae_loss": Loss(of=("vae",)),
        "critic_loss": Loss(of=("critic_1", "critic_2"), inputs=("batch", "noise", "discount")),
        "actor_loss": Loss(of=("actor",), inputs=("batch", "noise", "lambd")),
    },
    variants={
        "default": SMALL | {"vae_iterations": 3},
        # The switch lies within the ladder's trajectory; lambd comes to its floor in the updates after the warm ones.
        "other": SMALL
        | {"vae_iterations": 0, "offline_iterations": 20, "online_iterations": 22, "lambd_cool": True}
        | {"lambd": 2.0, "lambd_end": 0.48, "num_samples": 2, "beta": 2.0, "policy_freq": 3, "tau": 0.1}
        | {"discount": 0.9, "online_discount": 0.8, "policy_noise": 0.5, "noise_clip": 0.3, "expl_noise": 0.5}
        | {"actor_lr": 3e-4, "critic_lr": 1e-3, "actor_init_w": 1e-3, "critic_init_w": 3e-3},
        # The first warm update is the VAE's last one, as it were in a run without an online phase. Two updates later
        # lambd is at its end. The actions' likelihood is estimated from three codes.
        "vae": SMALL
        | {"vae_iterations": 31, "vae_lr": 3e-4, "beta": 0.1, "vae_latent_dim": 5, "iwae": True, "num_samples": 3}
        | {"offline_iterations": 1, "online_iterations": 0, "lambd_cool": True, "policy_freq": 1},
    },
    extra_inputs=lambda rng, size: {"discount": np.asarray(0.9), "lambd": np.asarray(0.4)},
    draw_inputs=lambda dataset, action_dim: (FILLED, action_dim),
    torch_phase=lambda trainer: (trainer.pretrains, trainer.delayed),
    update_statics=update_statics,
    numbered=True,
    interval_statics=interval_statics,
    call_statics=lambda config, start, num_updates: {"phase": start % config.policy_freq},
    full_size={"vae_iterations": 3},
    timed={"vae_iterations": 0},
    explores=True,
    facts=Facts(rewarded="critic_loss", target_inputs=("batch", "noise", "discount"), imitation=squared_error),
)

MISTAKES = [
    Mistake("deviation for its logarithm", "exp(clamp(self.log_std(encoded), -4.0, 15.0))",
            "clamp(self.log_std(encoded), -4.0, 15.0)", "forward"),
    Mistake("log-deviation not bounded", "exp(clamp(self.log_std(encoded), -4.0, 15.0))",
            "exp(self.log_std(encoded))", "forward"),
    Mistake("reconstruction not squashed", "self.max_action * tanh(", "self.max_action * (", "forward"),
    Mistake("divergence weighs 1", "return error + self.hp.beta * kl,", "return error + kl,", "loss"),
    Mistake("divergence summed over the code", "divergence(mean, std).mean()\n",
            "divergence(mean, std).sum(-1).mean()\n", "loss"),
    Mistake("variance for its square root", "log(square(std)) - square(mean) - square(std)",
            "log(std) - square(mean) - std", "loss"),
    Mistake("VAE on the mean of its codes", "noise.latent[:, :1])", "noise.latent.mean(1, keepdims=True))", "loss",
            "vae"),
    Mistake("code without noise in the constraint", "self.vae(observations, actions, latent)",
            "self.vae(observations, actions, 0 * latent)", "loss"),
    Mistake("the data's actions in the constraint", "self.neg_log_beta(batch.observations, actions, noise.latent)",
            "self.neg_log_beta(batch.observations, batch.actions, noise.latent)", "gradient"),
    Mistake("estimate not divided by the number of codes", "math.log(latent.shape[1]) - logsumexp",
            "-logsumexp", "loss", "vae"),
    Mistake("missing stop_gradient", "stop_gradient(jnp.abs(q).mean())", "jnp.abs(q).mean()", "gradient"),
    Mistake("inverted done flag", "(1.0 - batch.terminals)", "batch.terminals", "loss"),
    Mistake("noise of the target not clipped",
            "clip(noise.target * (hp.policy_noise * max_action), -limit, limit)",
            "noise.target * (hp.policy_noise * max_action)", "loss", "other"),
    Mistake("VAE not frozen", '            state = gradient_step(state, "actor", gradient)\n',
            '            state = gradient_step(state, "actor", gradient)\n'
            "            _, by_vae = value_and_grad(state.vae_loss, has_aux=True)(state.vae, batch, noise)\n"
            '            state = gradient_step(state, "vae", by_vae)\n', "update"),
    Mistake("actor on the old critic", "value_and_grad(state.actor_loss,", "value_and_grad(self.actor_loss,",
            "update"),
    Mistake("target from the old critic", "soft_update(state.critic_1_target, state.critic_1, hp.tau)",
            "soft_update(state.critic_1_target, self.critic_1, hp.tau)", "update"),
    Mistake("policy's target not moved",
            "                actor_target=soft_update(state.actor_target, state.actor, hp.tau),\n", "", "update"),
    Mistake("lambd not cooled", "    if not hp.lambd_cool:\n", "    if True:\n", "log", "other"),
    Mistake("the floor is of lambd, not of its share",
            "hp.lambd * maximum(hp.lambd_end, 1.0 - online_it / max(hp.online_iterations, 1))",
            "maximum(hp.lambd_end, hp.lambd * (1.0 - online_it / max(hp.online_iterations, 1)))", "log", "other"),
    Mistake("lambd cools one update late", "online_it = maximum(step - hp.switch, 0)",
            "online_it = maximum(step - hp.switch - 1, 0)", "trajectory", "other"),
    Mistake("offline discount online", "jnp.where(online_it > 0, hp.online_discount, hp.discount)", "hp.discount",
            "update", "other"),
    Mistake("moments kept at the switch", "return self.replace(**fresh)", "return self", "update"),
    Mistake("the VAE's moments dropped too at the switch", "self.replace(**fresh)",
            'self.replace(vae_optimizer=adam("vae", self.hp).init(self.vae), **fresh)', "update", "vae"),
    Mistake("the policy at the critics' rate", '"actor": hp.actor_lr', '"actor": hp.critic_lr', "update"),
    Mistake("exploration without noise", "clip(hp.expl_noise * noise.action, -hp.noise_clip, hp.noise_clip)",
            "0.0 * noise.action", "act"),
    Mistake("noise of exploration not clipped",
            "clip(hp.expl_noise * noise.action, -hp.noise_clip, hp.noise_clip)", "hp.expl_noise * noise.action", "act",
            "other"),
    Mistake("exploration not bounded", "return clip(max_action * action, -max_action, max_action)",
            "return max_action * action", "act"),
    Mistake("same noise at every update",
            "index_key, target_key, latent_key, _ = jax.random.split(jax.random.fold_in(key, step), 4)",
            "index_key, target_key, latent_key, _ = jax.random.split(jax.random.fold_in(key, 0 * step), 4)", "draws"),
    Mistake("one key for both noises", "jax.random.normal(latent_key,", "jax.random.normal(target_key,", "draws"),
    Mistake("the same exploration at every step", "jax.random.split(jax.random.fold_in(key, step), 4)[3]",
            "jax.random.split(jax.random.fold_in(key, 0 * step), 4)[3]", "draws"),
    Mistake("delayed one step early", "delayed = (phase + place + 1) % hp.policy_freq == 0",
            "delayed = (phase + place) % hp.policy_freq == 0", "shipped path"),
    Mistake("the period begins anew behind the VAE", "start, rest = start + vae_updates, num_updates - vae_updates",
            "start, rest = start + vae_updates, num_updates - vae_updates\n    phase = 0", "shipped path"),
    Mistake("the VAE's draws once more", "start, rest = start + vae_updates, num_updates - vae_updates",
            "rest = num_updates - vae_updates", "shipped path"),
    Mistake("batches from the whole ring", "draw_noise(key, step, hp, size, action_dim)",
            "draw_noise(key, step, hp, len(dataset), action_dim)", "shipped path"),
    Mistake("update before the step is stored", "ring, num_updates = push(ring, rows), len(rows)",
            "before, ring, num_updates = ring, push(ring, rows), len(rows)\n"
            "    ring = ring.replace(rows=before.rows)", "shipped path"),
]  # fmt: skip
