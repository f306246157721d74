"""SPOT in PyTorch, offline to online: TD3 with actions that must be likely under a VAE; online, less and less so.

Its twin is `corl_jax/finetune/spot.py`.

Wu et al., Supported Policy Optimization for Offline Reinforcement Learning, 2022, https://arxiv.org/abs/2202.06239
"""

import copy
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from shared.runs.start import cli

import numpy as np
import torch
from torch import Tensor, broadcast_to, clamp, concatenate, exp, log, logsumexp, minimum, nn, square, tanh

from shared.data.online import OnlineExperience
from shared.data.rewards import CorlRewards
from shared.data.transitions import Batch
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.torch_data import index_tensor, take, to_device
from shared.frameworks.torch_ring import Ring, room
from shared.frameworks.torch_side import mean_metrics, on_arrays, resolve_device, seed_everything
from shared.runs.fields import bounded, positive
from shared.runs.run import Run
from shared.runs.settings import FinetuneConfig
from shared.runs.task import Preparation, load_task, training_environment

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Learning rate of the policy
    actor_lr: float = positive(1e-4)
    # Learning rate of both critics
    critic_lr: float = positive(3e-4)
    # Discount factor of the return, offline
    discount: float = bounded(0.99, low=0, high=1)
    # Discount factor of the return, online
    online_discount: float = bounded(0.995, low=0, high=1)
    # Rate at which the targets follow their networks
    tau: float = bounded(0.005, low=0, high=1)
    # Standard deviation of the noise on the target policy's action, in units of the largest action
    policy_noise: float = bounded(0.2, low=0)
    # That noise is clipped to plus or minus this, in units of the largest action; exploration noise, to this itself
    noise_clip: float = bounded(0.5, low=0)
    # Critic updates per update of the actor and of the targets
    policy_freq: int = bounded(2, low=1)
    # Standard deviation of the noise that the policy explores with
    expl_noise: float = bounded(0.1, low=0)
    # Learning rate of the VAE
    vae_lr: float = positive(1e-3)
    # Size of the VAE's code; null: twice the size of an action
    vae_latent_dim: int | None = bounded(None, low=1)
    # Weight of the VAE's divergence from its prior relative to its reconstruction
    kl_weight: float = bounded(0.5, low=0)
    # Updates of the VAE, before all others
    vae_iterations: int = bounded(100_000, low=0)
    # Updates on the dataset alone, after the VAE's updates
    offline_iterations: int = bounded(1_000_000, low=0)
    # Environment steps after those, each with an update; the weight of the support constraint falls over these steps
    online_iterations: int = bounded(1_000_000, low=0)
    # Weight of the support constraint relative to the value
    lambd: float = bounded(1.0, low=0)
    # Codes drawn for each action whose likelihood is estimated
    num_samples: int = bounded(1, low=1)
    # Estimate the likelihood by importance sampling, instead of its lower bound
    iwae: bool = False
    # Let lambd fall in the online phase
    lambd_cool: bool = False
    # Share of lambd that remains at the end of the fall
    lambd_end: float = bounded(0.2, low=0)
    # Transitions in a batch
    batch_size: int = bounded(256, low=1)

    @property
    def switch(self) -> int:
        """Updates before the first step in the environment."""
        return self.vae_iterations + self.offline_iterations


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, FinetuneConfig):
    """The settings of a whole run."""

    group: str = "SPOT-D4RL"
    name: str = "SPOT"
    buffer_size: int = bounded(20_000_000, low=1)
    # Updates between two evaluations, including the VAE's; one is also made at the end of the offline phase
    eval_freq: int = bounded(5000, low=1)
    # Seed of the weights, the batches, the noise and all start states
    seed: int = bounded(0, low=0, high=2**32 - 1)
    # No effect, because CORL's evaluation uses `seed` too; kept so that CORL's files load
    eval_seed: int = bounded(0, low=0)
    # Width of the VAE's hidden layers
    vae_hidden_dim: int = bounded(750, low=1)
    # The policy's last layer starts within plus or minus this; null: PyTorch's default
    actor_init_w: float | None = positive(None)
    # The same for the critics' last layers
    critic_init_w: float | None = positive(None)
    # Normalise states to mean 0 and standard deviation 1
    normalize: bool = False
    # Scale rewards: by CORL's rule for D4RL's datasets; for your own data, so that returns span 1000
    normalize_reward: bool = True


# ---- networks ------------------------------------------------------------------------------------------------------


class VAE(nn.Module):
    """A VAE of the data's actions given the state: an encoder to a code, and a decoder back to an action."""

    def __init__(self, state_dim: int, action_dim: int, latent_dim: int, max_action: float, hidden_dim: int) -> None:
        super().__init__()
        self.encoder_shared = nn.Sequential(*hidden(state_dim + action_dim, hidden_dim))
        self.mean = nn.Linear(hidden_dim, latent_dim)
        self.log_std = nn.Linear(hidden_dim, latent_dim)
        self.decoder = nn.Sequential(*hidden(state_dim + latent_dim, hidden_dim), nn.Linear(hidden_dim, action_dim))
        self.max_action = max_action

    def forward(self, observations: Tensor, actions: Tensor, latent: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Reconstructed actions (B, K, A) for noise (B, K, Z); the code's mean and standard deviation, (B, Z) each."""
        encoded = self.encoder_shared(concatenate([observations, actions], axis=-1))
        mean, std = self.mean(encoded), exp(clamp(self.log_std(encoded), -4.0, 15.0))
        codes = mean[:, None] + std[:, None] * latent
        states = broadcast_to(observations[:, None], (*codes.shape[:-1], observations.shape[-1]))
        return self.max_action * tanh(self.decoder(concatenate([states, codes], axis=-1))), mean, std


class Actor(nn.Module):
    """The deterministic policy: (B, S) to (B, A), within [-max_action, max_action]."""

    def __init__(self, state_dim: int, action_dim: int, max_action: float, init_w: float | None) -> None:
        super().__init__()
        last = head(action_dim, init_w)
        self.net = nn.Sequential(*hidden(state_dim, 256), last, nn.Tanh())
        self.max_action = max_action

    def forward(self, observations: Tensor) -> Tensor:
        """The actions (B, A) for observations (B, S)."""
        return self.max_action * self.net(observations)


class Critic(nn.Module):
    """Q(s, a): (B, S) and (B, A) to (B,)."""

    def __init__(self, state_dim: int, action_dim: int, init_w: float | None) -> None:
        super().__init__()
        last = head(1, init_w)
        self.net = nn.Sequential(*hidden(state_dim + action_dim, 256), last)

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """The values (B,) of actions (B, A) in observations (B, S)."""
        return self.net(concatenate([observations, actions], axis=-1)).squeeze(-1)


def hidden(input_dim: int, width: int) -> list[nn.Module]:
    """Two hidden layers with ReLU."""
    return [nn.Linear(input_dim, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]


def head(outputs: int, init_w: float | None) -> nn.Linear:
    """The last layer, initially within plus or minus `init_w`; its weights are drawn before the other layers'."""
    layer = nn.Linear(256, outputs)
    if init_w is not None:
        nn.init.uniform_(layer.weight, -init_w, init_w)
        nn.init.uniform_(layer.bias, -init_w, init_w)
    return layer


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    # Standard normal, (B, A): smooths the target policy; not used in the VAE's updates
    target: Tensor | None
    # Standard normal, (B, K, Z): the VAE's codes; its own updates use the first of K, and critics use none
    latent: Tensor | None


def draw_noise(
    hp: Hyperparameters, size: int, action_dim: int, device: torch.device, pretrains: bool = False, delayed: bool = True
) -> tuple[Tensor, Noise]:
    """An update's batch indices (B,) below `size`, from NumPy's global generator, and its noise, from torch's.

    As in CORL, noise that an update does not use is not drawn.
    """
    indices, target, latent = np.random.randint(0, size, size=hp.batch_size), None, None
    if not pretrains:
        target = torch.randn(hp.batch_size, action_dim, device=device)
    if pretrains or delayed:
        # CORL's codes are stored sample by sample in memory, and the layout decides how PyTorch draws them.
        shape = (1 if pretrains else hp.num_samples, hp.batch_size, latent_dim(hp, action_dim))
        latent = torch.empty(shape, device=device).transpose(0, 1).normal_()
    return index_tensor(indices, device), Noise(target, latent)


def latent_dim(hp: Hyperparameters, action_dim: int) -> int:
    """Z, the size of the VAE's code."""
    return hp.vae_latent_dim or 2 * action_dim


class Exploration(NamedTuple):
    """The random numbers that a step in the environment draws."""

    # Standard normal, (1, A)
    action: Tensor


def draw_exploration(hp: Hyperparameters, action_dim: int, device: torch.device) -> Exploration:
    """The draw of one step in the environment, from torch's generator."""
    return Exploration(action=torch.randn(1, action_dim, device=device))


# ---- losses and update ---------------------------------------------------------------------------------------------


def adam(network: nn.Module, lr: float) -> torch.optim.Optimizer:
    """A network's optimiser."""
    return torch.optim.Adam(network.parameters(), lr=lr)


def gradient_step(loss: Tensor, *optimizers: torch.optim.Optimizer) -> None:
    """One step of each optimiser down the gradient of the loss."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()


def soft_update(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Polyak averaging: the target moves a step of size tau towards the source, in place."""
    for old, new in zip(target.parameters(), source.parameters(), strict=True):
        old.data.copy_((1.0 - tau) * old.data + tau * new.data)


def divergence(mean: Tensor, std: Tensor) -> Tensor:
    """The KL divergence (B, Z) of normal codes from the prior, for each component of the codes."""
    return -0.5 * (1.0 + log(square(std)) - square(mean) - square(std))


def cooled(hp: Hyperparameters, online_it: int) -> float:
    """The weight of the support constraint in the online update with this number, counted from 1; 0: offline."""
    if not hp.lambd_cool:
        return hp.lambd
    # CORL divides by 0 if there is no online phase.
    return hp.lambd * max(hp.lambd_end, 1.0 - online_it / max(hp.online_iterations, 1))


# The networks that learn offline and online, each with a target
LEARNERS = ("actor", "critic_1", "critic_2")


class SPOT:
    """All that an update reads and writes."""

    def __init__(self, hp: Hyperparameters, vae: VAE, actor: Actor, critic_1: Critic, critic_2: Critic) -> None:
        self.hp = hp
        self.max_action = actor.max_action
        self.vae, self.actor, self.critic_1, self.critic_2 = vae, actor, critic_1, critic_2
        self.actor_target, self.critic_1_target, self.critic_2_target = copy.deepcopy((actor, critic_1, critic_2))
        self.vae_optimizer = adam(vae, hp.vae_lr)
        self.go_online()
        # All updates, including `earlier` ones, which the checkpoint that the run began with had made
        self.total_it = self.earlier = 0

    def go_online(self) -> None:
        """Gives the actor and the critics fresh optimisers, as at the beginning; nothing else changes."""
        self.actor_optimizer = adam(self.actor, self.hp.actor_lr)
        self.critic_1_optimizer = adam(self.critic_1, self.hp.critic_lr)
        self.critic_2_optimizer = adam(self.critic_2, self.hp.critic_lr)

    def vae_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """The squared error of the reconstruction, and the code's divergence from its prior."""
        vae = self.vae
        assert noise.latent is not None
        reconstruction, mean, std = vae(batch.observations, batch.actions, noise.latent[:, :1])
        assert reconstruction.shape == batch.actions[:, None].shape
        error, kl = square(reconstruction - batch.actions[:, None]).mean(), divergence(mean, std).mean()
        return error + self.hp.kl_weight * kl, {"VAE/reconstruction_loss": error.detach(), "VAE/KL_loss": kl.detach()}

    @torch.no_grad()
    def td_target(self, batch: Batch, noise: Noise, discount: float) -> Tensor:
        """The regression target of both critics, (B,): the smaller target value of a smoothed target action."""
        hp, max_action = self.hp, self.max_action
        actor, critic_1, critic_2 = self.actor_target, self.critic_1_target, self.critic_2_target
        assert noise.target is not None
        limit = hp.noise_clip * max_action
        smoothing = clamp(noise.target * (hp.policy_noise * max_action), -limit, limit)
        next_actions = clamp(actor(batch.next_observations) + smoothing, -max_action, max_action)
        next_q = minimum(
            critic_1(batch.next_observations, next_actions), critic_2(batch.next_observations, next_actions)
        )
        assert next_q.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + (1.0 - batch.terminals) * discount * next_q

    def critic_loss(self, batch: Batch, noise: Noise, discount: float) -> tuple[Tensor, dict[str, Tensor]]:
        """The squared error of both critics to the same target."""
        critic_1, critic_2 = self.critic_1, self.critic_2
        target = self.td_target(batch, noise, discount)
        q1 = critic_1(batch.observations, batch.actions)
        q2 = critic_2(batch.observations, batch.actions)
        assert q1.shape == q2.shape == target.shape
        return square(q1 - target).mean() + square(q2 - target).mean(), {}

    def neg_log_beta(self, observations: Tensor, actions: Tensor, latent: Tensor) -> Tensor:
        """How unlikely actions (B, A) are under the VAE, (B,): its loss in each row, or an estimate of the likelihood.

        The VAE's loss corresponds to a decoder with the variance `kl_weight` A / (2 Z). Codes from the encoder are
        weighted by their densities, in which all terms except these cancel.
        """
        hp = self.hp
        reconstruction, mean, std = self.vae(observations, actions, latent)
        errors = square(reconstruction - actions[:, None])
        if not hp.iwae:
            return errors.mean(axis=(1, 2)) + hp.kl_weight * divergence(mean, std).mean(axis=-1)
        variance = 0.5 * hp.kl_weight * actions.shape[-1] / mean.shape[-1]
        codes = mean[:, None] + std[:, None] * latent
        log_decoder = -0.5 * (errors / variance + math.log(2.0 * math.pi * variance)).sum(axis=-1)
        log_weights = (0.5 * (square(latent) - square(codes)) + log(std)[:, None]).sum(axis=-1)
        return math.log(latent.shape[1]) - logsumexp(log_decoder + log_weights, axis=1)

    def actor_loss(self, batch: Batch, noise: Noise, lambd: float) -> tuple[Tensor, dict[str, Tensor]]:
        """The value under critic 1, scaled by its own size, against how unlikely the actions are in the data."""
        actor, critic_1 = self.actor, self.critic_1
        actions = actor(batch.observations)
        q = critic_1(batch.observations, actions)
        neg_log_beta = self.neg_log_beta(batch.observations, actions, noise.latent)
        # There is no epsilon below |Q|, as in the authors' code.
        weight = 1.0 / q.abs().mean().detach()
        assert q.shape == neg_log_beta.shape == batch.rewards.shape
        aux = {"neg_log_beta_mean": neg_log_beta.mean().detach(), "neg_log_beta_max": neg_log_beta.max().detach()}
        return -weight * q.mean() + lambd * neg_log_beta.mean(), aux

    @property
    def pretrains(self) -> bool:
        """Whether the next update is one of the VAE."""
        return self.total_it - self.earlier < self.hp.vae_iterations

    @property
    def delayed(self) -> bool:
        """Whether the actor and the targets move in the next update, if it is not the VAE's; the VAE's count, too."""
        return (self.total_it + 1) % self.hp.policy_freq == 0

    def update(self, batch: Batch, noise: Noise) -> dict[str, Tensor]:
        """One gradient step: of the VAE alone; later the critics, and every `policy_freq` steps actor and targets."""
        hp = self.hp
        pretrains, delayed = self.pretrains, self.delayed
        self.total_it += 1
        if pretrains:
            loss, aux = self.vae_loss(batch, noise)
            gradient_step(loss, self.vae_optimizer)
            return {"VAE/vae_loss": loss.detach(), **aux}
        online_it = max(self.total_it - self.earlier - hp.switch, 0)
        lambd = cooled(hp, online_it)
        loss, _ = self.critic_loss(batch, noise, hp.online_discount if online_it > 0 else hp.discount)
        gradient_step(loss, self.critic_1_optimizer, self.critic_2_optimizer)
        metrics = {"critic_loss": loss.detach()}
        if delayed:
            loss, aux = self.actor_loss(batch, noise, lambd)
            gradient_step(loss, self.actor_optimizer)
            metrics |= {"actor_loss": loss.detach(), **aux, "lambd": torch.full_like(loss, lambd)}
            soft_update(self.critic_1_target, self.critic_1, hp.tau)
            soft_update(self.critic_2_target, self.critic_2, hp.tau)
            soft_update(self.actor_target, self.actor, hp.tau)
        return metrics

    @torch.no_grad()
    def explore(self, observations: Tensor, noise: Exploration) -> Tensor:
        """Actions (E, A) to learn from, for normalised observations (E, S): the policy's, with clipped noise."""
        hp, actor, max_action = self.hp, self.actor, self.max_action
        action = actor(observations) + clamp(hp.expl_noise * noise.action, -hp.noise_clip, hp.noise_clip)
        # As in CORL, the policy's action is multiplied by the largest one a second time.
        return clamp(max_action * action, -max_action, max_action)

    def act(self, observations: np.ndarray) -> np.ndarray:
        """Calls `policy` with NumPy arrays."""
        return on_arrays(policy, self.actor, observations)

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint, under CORL's keys. CORL leaves out the targets; this twin saves them."""
        networks = ("vae", *LEARNERS)
        names = [*networks, *(f"{part}_target" for part in LEARNERS), *(f"{part}_optimizer" for part in networks)]
        return {name: getattr(self, name) for name in names}


def policy(actor: Actor, observations: Tensor) -> Tensor:
    """The policy's actions (E, A) for normalised observations (E, S)."""
    return actor(observations)


# ---- training ------------------------------------------------------------------------------------------------------


def create_trainer(config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> SPOT:
    """Fresh networks, drawn from torch's generator on the CPU in CORL's order: VAE, actor, critic 1, critic 2."""
    vae = VAE(state_dim, action_dim, latent_dim(config, action_dim), max_action, config.vae_hidden_dim)
    actor = Actor(state_dim, action_dim, max_action, config.actor_init_w)
    critic_1 = Critic(state_dim, action_dim, config.critic_init_w)
    critic_2 = Critic(state_dim, action_dim, config.critic_init_w)
    device = resolve_device(config.device)
    return SPOT(config, vae.to(device), actor.to(device), critic_1.to(device), critic_2.to(device))


def save(trainer: SPOT, path: Path, experience: OnlineExperience | None = None, **facts: Any) -> None:
    """Writes the new part of the experience, then, beside it, a checkpoint that CORL's own code could load."""
    if experience is not None:
        experience.save(path.parent)
    save_checkpoint(path, "finetune/spot", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: SPOT, path: str) -> dict[str, Any]:
    """Loads a checkpoint, ours or CORL's, which lacks targets, so that they start as copies; returns its contents."""
    targets = {f"{part}_target": part for part in LEARNERS}
    content = load_checkpoint(path, "finetune/spot", trainer.parts(), optional=[*targets])
    for target in targets.keys() - content.keys():
        getattr(trainer, target).load_state_dict(getattr(trainer, targets[target]).state_dict())
    trainer.total_it = content["total_it"]
    return content


def train(config: TrainConfig) -> Run:
    """Trains the VAE and the policy on the data, then in the environment, evaluates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used.
    """
    preparation = Preparation(rewards=CorlRewards().where(config.normalize_reward), normalise=config.normalize)
    task = load_task(config, preparation)
    device = resolve_device(config.device)
    experience = training_environment(config, task)
    seed_everything(config.seed)
    trainer = create_trainer(config, task.state_dim, task.action_dim, task.max_action)
    run = Run(config, task, "finetune/spot", "torch", device)
    history = restore(run, partial(load, trainer), device, experience.go_on_from)
    trainer.earlier = trainer.total_it - run.step
    dataset = to_device(task.dataset, device)
    ring = Ring(dataset, room(config, len(dataset.rewards)))
    ring.push(experience.transitions())
    with run:
        if run.is_due(run.step):
            run.evaluate(run.step, trainer.act)
        for step in range(run.step + 1, config.max_timesteps + 1):
            if step == config.switch + 1:
                trainer.go_online()
            if step > config.switch:
                observation = torch.as_tensor(experience.observation[None]).to(dataset.observations)
                action = trainer.explore(observation, draw_exploration(config, task.action_dim, device))
                experience.step(action[0].cpu().numpy())
                ring.push(experience.last())
            phase = trainer.pretrains, trainer.delayed
            indices, noise = draw_noise(config, ring.size, task.action_dim, device, *phase)
            history.append(trainer.update(take(ring.rows, indices), noise))
            run.advance(1)
            if run.is_due(step):
                run.log(step, mean_metrics(history), experience.episodes)
                history.clear()
                run.save(step, partial(save, trainer, experience=experience))
                run.evaluate(step, trainer.act)
            elif run.stopping:
                run.save(step, partial(save, trainer, experience=experience, history=history))
    experience.close()
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "finetune/spot")
