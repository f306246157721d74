"""PLAS in PyTorch: a policy in the latent space of a VAE of the data's actions. Its twin is `corl_jax/plas.py`.

Zhou, Bajracharya & Held, PLAS: Latent Action Space for Offline Reinforcement Learning, 2020,
https://arxiv.org/abs/2011.07213
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from shared.runs.start import cli

import numpy as np
import torch
from torch import Tensor, amax, amin, clamp, concatenate, exp, log, nn, square, stack, tanh

from shared.data.transitions import Batch
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.torch_data import index_tensor, take, to_device
from shared.frameworks.torch_layers import probe
from shared.frameworks.torch_side import mean_metrics, on_arrays, resolve_device, seed_everything
from shared.runs.fields import bounded, positive, widths
from shared.runs.run import Run
from shared.runs.settings import TransitionsConfig
from shared.runs.task import Preparation, load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Learning rate of the policy
    actor_lr: float = positive(1e-4)
    # Learning rate of the critics
    critic_lr: float = positive(1e-3)
    # Learning rate of the VAE
    vae_lr: float = positive(1e-4)
    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Rate at which the targets follow their networks
    tau: float = bounded(0.005, low=0, high=1)
    # Weight of the smallest target value relative to the largest one
    lam: float = bounded(1.0, low=0, high=1)
    # Weight of the VAE's divergence from its prior relative to its reconstruction
    kl_weight: float = bounded(0.5, low=0)
    # Updates of the VAE alone, before all others
    vae_iterations: int = bounded(500_000, low=0)
    # Transitions in a batch
    batch_size: int = bounded(100, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, TransitionsConfig):
    """The settings of a whole run."""

    group: str = "PLAS-D4RL"
    name: str = "PLAS"
    # Updates in all, including the VAE's own
    max_timesteps: int = bounded(1_000_000, low=1)
    # Critics
    n_critics: int = bounded(2, low=1)
    # Widths of the hidden layers of the policy, and of its perturbation
    actor_hidden_dims: tuple[int, ...] = widths(400, 300)
    # Widths of the critics' hidden layers
    critic_hidden_dims: tuple[int, ...] = widths(400, 300)
    # Widths of the hidden layers of the VAE's encoder and decoder
    vae_hidden_dims: tuple[int, ...] = widths(750, 750)
    # Let a further network change the decoded action a little, as in PLAS+P
    perturbation: bool = False
    # Largest change of an action by the perturbation, in units of the largest action
    action_flexibility: float = bounded(0.05, low=0)
    # Squash the decoded action by tanh, as in the paper; d3rlpy from 2.1.0 to 2.8.1 does not
    vae_tanh: bool = True
    # Start the target policy as a copy; d3rlpy from 2.1.0 to 2.8.1 initialises it separately
    copy_target_policy: bool = True
    # Normalise states to mean 0 and standard deviation 1
    normalize: bool = False


# ---- networks ------------------------------------------------------------------------------------------------------


def hidden(inputs: Sequence[int], hidden_dims: Sequence[int]) -> list[nn.Module]:
    """Hidden layers with ReLU for concatenated inputs of these sizes, which d3rlpy then tries on random rows."""
    dims = [sum(inputs), *hidden_dims]
    layers = [layer for a, b in pairwise(dims) for layer in (nn.Linear(a, b), nn.ReLU())]
    probe(*inputs)
    return layers


def mlp(inputs: Sequence[int], hidden_dims: Sequence[int], output_dim: int) -> nn.Sequential:
    """Hidden layers with ReLU, then a linear layer."""
    return nn.Sequential(*hidden(inputs, hidden_dims), nn.Linear(hidden_dims[-1], output_dim))


class Encoder(nn.Module):
    """The VAE's encoder: from an action to a normal distribution of codes."""

    def __init__(self, state_dim: int, action_dim: int, hidden_dims: Sequence[int]) -> None:
        super().__init__()
        self.net = nn.Sequential(*hidden((state_dim, action_dim), hidden_dims))
        self.mean = nn.Linear(hidden_dims[-1], 2 * action_dim)
        self.log_std = nn.Linear(hidden_dims[-1], 2 * action_dim)

    def forward(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation (B, Z) of the codes of actions (B, A) in observations (B, S)."""
        encoded = self.net(concatenate([observations, actions], axis=-1))
        return self.mean(encoded), exp(clamp(self.log_std(encoded), -4.0, 15.0))


class Decoder(nn.Module):
    """The VAE's decoder: from a code to an action, within [-max_action, max_action] if it is squashed."""

    def __init__(
        self, state_dim: int, action_dim: int, max_action: float, hidden_dims: Sequence[int], squashed: bool
    ) -> None:
        super().__init__()
        self.net = mlp((state_dim, 2 * action_dim), hidden_dims, action_dim)
        self.max_action, self.squashed = max_action, squashed

    def forward(self, observations: Tensor, codes: Tensor) -> Tensor:
        """The actions (B, A) of codes (B, Z) in observations (B, S)."""
        actions = self.net(concatenate([observations, codes], axis=-1))
        return self.max_action * (tanh(actions) if self.squashed else actions)


class Actor(nn.Module):
    """The deterministic policy: it picks a code, and may change the decoded action a little."""

    def __init__(
        self, latent: nn.Module, perturbation: nn.Module | None, max_action: float, action_flexibility: float
    ) -> None:
        super().__init__()
        self.latent, self.perturbation = latent, perturbation
        self.max_action, self.action_flexibility = max_action, action_flexibility

    def forward(self, observations: Tensor, decoder: nn.Module) -> Tensor:
        """The actions (B, A) for observations (B, S)."""
        actions = decoder(observations, 2.0 * tanh(self.latent(observations)))
        if self.perturbation is None:
            return actions
        change = tanh(self.perturbation(concatenate([observations, actions], axis=-1)))
        scale = self.action_flexibility * self.max_action
        return clamp(actions + scale * change, -self.max_action, self.max_action)


class Critics(nn.Module):
    """N critics Q(s, a) with separate weights."""

    def __init__(self, state_dim: int, action_dim: int, hidden_dims: Sequence[int], n_critics: int) -> None:
        super().__init__()
        self.members = nn.ModuleList(mlp((state_dim, action_dim), hidden_dims, 1) for _ in range(n_critics))

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """The values (N, B) of actions (B, A) in observations (B, S)."""
        inputs = concatenate([observations, actions], axis=-1)
        return stack([member(inputs).squeeze(-1) for member in self.members])


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    # Standard normal, (B, Z): the VAE's codes; None in all other updates
    latent: Tensor | None


def draw_noise(
    hp: Hyperparameters, dataset_size: int, action_dim: int, device: torch.device, pretrains: bool
) -> tuple[Tensor, Noise]:
    """An update's batch indices (B,), from NumPy's global generator as in d3rlpy, and its noise, from torch's."""
    indices = np.random.randint(0, dataset_size, size=hp.batch_size)
    latent = torch.randn(hp.batch_size, 2 * action_dim, device=device) if pretrains else None
    return index_tensor(indices, device), Noise(latent)


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
    variance = square(std)
    return 0.5 * (variance + square(mean) - 1.0 - log(variance))


# Names of the networks in d3rlpy's files
D3RLPY_NAMES = {
    "actor": ("policy", "perturbation"),
    "actor_target": ("targ_policy", "targ_perturbation"),
    "critic": ("q_funcs",),
    "critic_target": ("targ_q_funcs",),
    "encoder": ("vae_encoder",),
    "decoder": ("vae_decoder",),
}


class PLAS:
    """All that an update reads and writes."""

    def __init__(
        self, hp: Hyperparameters, encoder: Encoder, decoder: Decoder, actor: Actor, target: Actor, critic: Critics
    ) -> None:
        self.hp = hp
        self.encoder, self.decoder, self.actor, self.critic = encoder, decoder, actor, critic
        self.actor_target, self.critic_target = target, copy.deepcopy(critic)
        self.encoder_optimizer = adam(encoder, hp.vae_lr)
        self.decoder_optimizer = adam(decoder, hp.vae_lr)
        self.actor_optimizer = adam(actor, hp.actor_lr)
        self.critic_optimizer = adam(critic, hp.critic_lr)
        self.total_it = 0

    def vae_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """The squared error of the reconstruction, and the code's divergence from its prior."""
        encoder, decoder = self.encoder, self.decoder
        assert noise.latent is not None
        mean, std = encoder(batch.observations, batch.actions)
        reconstruction = decoder(batch.observations, mean + std * noise.latent)
        assert reconstruction.shape == batch.actions.shape
        return square(reconstruction - batch.actions).mean() + self.hp.kl_weight * divergence(mean, std).mean(), {}

    @torch.no_grad()
    def td_target(self, batch: Batch) -> Tensor:
        """The regression target of all critics, (B,): a mix of the smallest and the largest target value."""
        hp, actor, decoder, critic = self.hp, self.actor_target, self.decoder, self.critic_target
        q = critic(batch.next_observations, actor(batch.next_observations, decoder))
        next_q = hp.lam * amin(q, axis=0) + (1.0 - hp.lam) * amax(q, axis=0)
        assert next_q.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + hp.discount * next_q * (1.0 - batch.terminals)

    def critic_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The squared errors of all critics to the same target, added up over the critics."""
        critic = self.critic
        target = self.td_target(batch)
        q = critic(batch.observations, batch.actions)
        assert q.shape[1:] == target.shape
        return square(q - target).mean(axis=1).sum(), {}

    def actor_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The value of the policy's actions under the first critic."""
        actor, decoder, critic = self.actor, self.decoder, self.critic
        q = critic(batch.observations, actor(batch.observations, decoder))
        return -q[0].mean(), {}

    @property
    def pretrains(self) -> bool:
        """Whether the next update is one of the VAE."""
        return self.total_it < self.hp.vae_iterations

    def update(self, batch: Batch, noise: Noise) -> dict[str, Tensor]:
        """One gradient step: of the VAE alone; later of the critics, of the policy on them, and the targets."""
        hp, pretrains = self.hp, self.pretrains
        self.total_it += 1
        if pretrains:
            loss, _ = self.vae_loss(batch, noise)
            gradient_step(loss, self.encoder_optimizer, self.decoder_optimizer)
            return {"vae_loss": loss.detach()}
        loss, _ = self.critic_loss(batch)
        gradient_step(loss, self.critic_optimizer)
        metrics = {"critic_loss": loss.detach()}
        loss, _ = self.actor_loss(batch)
        gradient_step(loss, self.actor_optimizer)
        metrics["actor_loss"] = loss.detach()
        soft_update(self.actor_target, self.actor, hp.tau)
        soft_update(self.critic_target, self.critic, hp.tau)
        return metrics

    @property
    def acting(self) -> nn.ModuleDict:
        """The networks that the policy needs."""
        return nn.ModuleDict({"actor": self.actor, "decoder": self.decoder})

    def act(self, observations: np.ndarray) -> np.ndarray:
        """Calls `policy` with NumPy arrays."""
        return on_arrays(policy, self.acting, observations)

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint, by name."""
        learning = ("encoder", "decoder", "actor", "critic")
        names = [*learning, "actor_target", "critic_target", *(f"{part}_optimizer" for part in learning)]
        return {name: getattr(self, name) for name in names}


def policy(acting: nn.ModuleDict, observations: Tensor) -> Tensor:
    """The policy's actions (E, A) for observations (E, S)."""
    return acting["actor"](observations, acting["decoder"])


# ---- training ------------------------------------------------------------------------------------------------------


def create_trainer(config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> PLAS:
    """Fresh networks, drawn from torch's generator on the CPU in d3rlpy's order, in which targets are drawn too."""
    dims, latent_dim = config.actor_hidden_dims, 2 * action_dim
    latents = [mlp((state_dim,), dims, latent_dim) for _ in range(2)]
    critic, _ = (Critics(state_dim, action_dim, config.critic_hidden_dims, config.n_critics) for _ in range(2))
    encoder = Encoder(state_dim, action_dim, config.vae_hidden_dims)
    decoder = Decoder(state_dim, action_dim, max_action, config.vae_hidden_dims, config.vae_tanh)
    perturbations = [mlp((state_dim, action_dim), dims, action_dim) if config.perturbation else None for _ in range(2)]
    actor, target = (
        Actor(latent, perturbation, max_action, config.action_flexibility)
        for latent, perturbation in zip(latents, perturbations, strict=True)
    )
    if config.copy_target_policy:
        target = copy.deepcopy(actor)
    networks = (network.to(resolve_device(config.device)) for network in (encoder, decoder, actor, target, critic))
    return PLAS(config, *networks)


def save(trainer: PLAS, path: Path, **facts: Any) -> None:
    """Writes a checkpoint."""
    save_checkpoint(path, "plas", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: PLAS, path: str) -> dict[str, Any]:
    """Loads a checkpoint of ours or a d3rlpy model; returns its contents."""
    content = load_checkpoint(path, "plas", trainer.parts(), d3rlpy=D3RLPY_NAMES)
    trainer.total_it = content["total_it"]
    return content


def train(config: TrainConfig) -> Run:
    """Trains the VAE, then the policy, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used.
    """
    task = load_task(config, Preparation(normalise=config.normalize))
    device = resolve_device(config.device)
    seed_everything(config.seed)
    trainer = create_trainer(config, task.state_dim, task.action_dim, task.max_action)
    run = Run(config, task, "plas", "torch", device)
    history = restore(run, partial(load, trainer), device)
    dataset = to_device(task.dataset, device)
    with run:
        if run.is_due(run.step):
            run.evaluate(run.step, trainer.act)
        for step in range(run.step + 1, config.max_timesteps + 1):
            indices, noise = draw_noise(config, len(dataset.rewards), task.action_dim, device, trainer.pretrains)
            history.append(trainer.update(take(dataset, indices), noise))
            run.advance(1)
            if run.is_due(step):
                run.log(step, mean_metrics(history))
                history.clear()
                run.save(step, partial(save, trainer))
                run.evaluate(step, trainer.act)
            elif run.stopping:
                run.save(step, partial(save, trainer, history=history))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "plas")
