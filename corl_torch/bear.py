"""BEAR in PyTorch: an MMD keeps the policy's distribution of actions near the data's. Its twin: `corl_jax/bear.py`.

Kumar, Fu, Tucker & Levine, Stabilizing Off-Policy Q-Learning via Bootstrapping Error Reduction, 2019,
https://arxiv.org/abs/1906.00949
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from shared.runs.start import cli

import numpy as np
import torch
from torch import Tensor, amax, amin, argmax, clamp, concatenate, exp, log, nn, sqrt, square, stack, tanh, tile
from torch.nn.functional import softplus

from shared.data.transitions import Batch
from shared.envs.evaluation import SampledPolicy
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.torch_data import index_tensor, take, to_device
from shared.frameworks.torch_layers import Scalar, pick, probe
from shared.frameworks.torch_side import mean_metrics, on_arrays, resolve_device, seed_everything
from shared.runs.fields import bounded, choice, positive, widths
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
    critic_lr: float = positive(3e-4)
    # Learning rate of the VAE
    vae_lr: float = positive(3e-4)
    # Learning rate of the temperature; 0: the temperature is constant
    temperature_lr: float = bounded(0.0, low=0)
    # Learning rate of the MMD's weight; without `mmd_in_actor`, the policy's is used instead
    alpha_lr: float = positive(1e-3)
    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Rate at which the target critics follow the critics
    tau: float = bounded(0.005, low=0, high=1)
    # Weight of the smallest target value relative to the largest one
    lam: float = bounded(0.75, low=0, high=1)
    # Weight of the VAE's divergence from its prior relative to its reconstruction
    kl_weight: float = bounded(0.5, low=0)
    # Largest MMD that the policy is allowed
    alpha_threshold: float = bounded(0.05, low=0)
    # Kernel of the MMD
    mmd_kernel: str = choice("laplacian", "gaussian")
    # Width of the kernel
    mmd_sigma: float = positive(20.0)
    # Actions sampled in each state for each side of the MMD
    n_mmd_action_samples: int = bounded(4, low=1)
    # Actions sampled in each next state for the critics' target
    n_target_samples: int = bounded(10, low=1)
    # Actions sampled in each state, of which the policy takes the best one
    n_action_samples: int = bounded(100, low=1)
    # Number of first updates, in which the policy only learns to imitate the data through the MMD
    imitation_steps: int = bounded(40_000, low=0)
    # Transitions in a batch
    batch_size: int = bounded(256, low=1)
    # Keep the MMD in the policy's loss after the warm-up, as in the paper; in d3rlpy from 2.3.0 to 2.8.1 it cancels out
    mmd_in_actor: bool = True


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, TransitionsConfig):
    """The settings of a whole run."""

    group: str = "BEAR-D4RL"
    name: str = "BEAR"
    # Updates between two evaluations
    eval_freq: int = bounded(1000, low=1)
    # Updates in all
    max_timesteps: int = bounded(500_000, low=1)
    # Critics
    n_critics: int = bounded(2, low=1)
    # Widths of the policy's hidden layers
    actor_hidden_dims: tuple[int, ...] = widths(256, 256)
    # Widths of the critics' hidden layers
    critic_hidden_dims: tuple[int, ...] = widths(256, 256)
    # Widths of the hidden layers of the VAE's encoder and decoder
    vae_hidden_dims: tuple[int, ...] = widths(750, 750)
    # Initial temperature of the policy's entropy; with this default, the entropy has no weight
    initial_temperature: float = positive(1e-20)
    # Initial weight of the MMD
    initial_alpha: float = positive(1.0)
    # Squash the VAE's actions by tanh but not the MMD's, as the authors do; d3rlpy from 2.1.0 to 2.8.1 does the
    # opposite
    vae_tanh: bool = True
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
    """The VAE's decoder: from a code to an action, with and without tanh."""

    def __init__(
        self, state_dim: int, action_dim: int, max_action: float, hidden_dims: Sequence[int], squashed: bool
    ) -> None:
        super().__init__()
        self.net = mlp((state_dim, 2 * action_dim), hidden_dims, action_dim)
        self.max_action, self.squashed = max_action, squashed

    def forward(self, observations: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """The actions (..., A) of codes (..., Z) in observations (..., S), and the form that the MMD compares."""
        raw = self.net(concatenate([observations, codes], axis=-1))
        actions, compared = (tanh(raw), raw) if self.squashed else (raw, tanh(raw))
        return self.max_action * actions, compared


class Actor(nn.Module):
    """The policy: a normal distribution whose samples are squashed by tanh to be within [-max_action, max_action]."""

    def __init__(self, state_dim: int, action_dim: int, max_action: float, hidden_dims: Sequence[int]) -> None:
        super().__init__()
        self.net = nn.Sequential(*hidden((state_dim,), hidden_dims))
        self.mean = nn.Linear(hidden_dims[-1], action_dim)
        self.log_std = nn.Linear(hidden_dims[-1], action_dim)
        self.max_action = max_action

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation (B, A) before the tanh, for observations (B, S)."""
        encoded = self.net(observations)
        return self.mean(encoded), exp(clamp(self.log_std(encoded), -20.0, 2.0))


class Critics(nn.Module):
    """N critics Q(s, a) with separate weights."""

    def __init__(self, state_dim: int, action_dim: int, hidden_dims: Sequence[int], n_critics: int) -> None:
        super().__init__()
        self.members = nn.ModuleList(mlp((state_dim, action_dim), hidden_dims, 1) for _ in range(n_critics))

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """The values (N, ...) of actions (..., A) in observations (..., S)."""
        inputs = concatenate([observations, actions], axis=-1)
        return stack([member(inputs).squeeze(-1) for member in self.members])


def raw_sample(actor: Actor, observations: Tensor, noise: Tensor) -> Tensor:
    """The policy's samples (B, n, A) before the tanh, for observations (B, S) and noise (B, n, A)."""
    mean, std = actor(observations)
    return mean[:, None] + std[:, None] * noise


def sample(actor: Actor, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The policy's actions (B, n, A) for observations (B, S) and noise (B, n, A), and their log-densities (B, n)."""
    mean, std = (moment[:, None] for moment in actor(observations))
    raw = mean + std * noise
    # The slope of the tanh comes first, as d3rlpy's does: a gradient's last bits depend on the order.
    log_slope = 2.0 * (LOG_2 - raw - softplus(-2.0 * raw))
    log_density = -square(raw - mean) / (2.0 * square(std)) - log(std) - LOG_SQRT_2PI
    return actor.max_action * tanh(raw), (log_density - log_slope).sum(axis=-1)


LOG_2, LOG_SQRT_2PI = math.log(2.0), math.log(math.sqrt(2.0 * math.pi))


def kernel(x: Tensor, y: Tensor, name: str, sigma: float) -> Tensor:
    """The kernel of actions x (B, n, A) and y (B, m, A), averaged over all pairs, (B,)."""
    difference = x[:, :, None] - y[:, None]
    distance = square(difference) if name == "gaussian" else abs(difference)
    return exp(-distance.sum(axis=-1) / (2.0 * sigma)).mean(axis=(1, 2))


def smallest(q: Tensor) -> Tensor:
    """The smallest (B,) of N values (N, B); its gradient goes to the first critic with this value."""
    return q.min(axis=0).values


def repeat(observations: Tensor, n: int) -> Tensor:
    """The observations (B, S), each repeated n times: (B, n, S)."""
    return tile(observations[:, None], (1, n, 1))


# ---- randomness ----------------------------------------------------------------------------------------------------


class Compared(NamedTuple):
    """The random numbers for an MMD."""

    # Standard normal, (B, n, Z): the codes of actions like the data's
    codes: Tensor
    # Standard normal, (B, n, A): the policy's actions
    actor: Tensor


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    # Standard normal, (B, Z): the VAE's codes
    latent: Tensor
    # Standard normal, (B, 1, A): the actions that the temperature learns from; None if it has no separate step
    temp: Tensor | None
    # The MMD that its weight learns from; None if the weight has no separate step
    alpha: Compared | None
    # Standard normal, (B, n, A): the target's next actions
    target: Tensor
    # Standard normal, (B, 1, A): the actions whose value the policy learns to raise; None in the warm-up
    actor: Tensor | None
    # The MMD that the policy learns from
    mmd: Compared


def draw_noise(
    hp: Hyperparameters, dataset_size: int, action_dim: int, device: torch.device, warms_up: bool
) -> tuple[Tensor, Noise]:
    """An update's batch indices (B,), from NumPy's global generator as in d3rlpy, and its noise, from torch's."""
    indices, code_dim = np.random.randint(0, dataset_size, size=hp.batch_size), 2 * action_dim

    def normal(n: int, size: int) -> Tensor:
        # d3rlpy draws one sample for all states, then the next.
        return torch.randn(n, hp.batch_size, size, device=device).swapaxes(0, 1)

    def compared() -> Compared:
        return Compared(normal(hp.n_mmd_action_samples, code_dim), normal(hp.n_mmd_action_samples, action_dim))

    noise = Noise(
        latent=normal(1, code_dim).squeeze(1),
        temp=normal(1, action_dim) if hp.mmd_in_actor and hp.temperature_lr > 0.0 else None,
        alpha=compared() if hp.mmd_in_actor else None,
        target=normal(hp.n_target_samples, action_dim),
        actor=None if warms_up else normal(1, action_dim),
        mmd=compared(),
    )
    return index_tensor(indices, device), noise


def draw_acting_noise(generator: np.random.Generator, hp: Hyperparameters, action_dim: int) -> np.ndarray:
    """The noise of the policy's actions for one step of an episode: standard normal, (n, A)."""
    return generator.standard_normal((hp.n_action_samples, action_dim))


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
    "actor": ("policy",),
    "critic": ("q_funcs",),
    "critic_target": ("targ_q_funcs",),
    "encoder": ("vae_encoder",),
    "decoder": ("vae_decoder",),
    "log_temperature": ("log_temp",),
    "log_alpha": ("log_alpha",),
}


class BEAR:
    """All that an update reads and writes."""

    def __init__(
        self,
        hp: Hyperparameters,
        encoder: Encoder,
        decoder: Decoder,
        actor: Actor,
        critic: Critics,
        log_temperature: Scalar,
        log_alpha: Scalar,
    ) -> None:
        self.hp = hp
        self.encoder, self.decoder, self.actor, self.critic = encoder, decoder, actor, critic
        self.log_temperature, self.log_alpha = log_temperature, log_alpha
        self.critic_target = copy.deepcopy(critic)
        self.encoder_optimizer = adam(encoder, hp.vae_lr)
        self.decoder_optimizer = adam(decoder, hp.vae_lr)
        self.actor_optimizer = adam(actor, hp.actor_lr)
        self.critic_optimizer = adam(critic, hp.critic_lr)
        self.log_temperature_optimizer = adam(log_temperature, hp.temperature_lr)
        self.log_alpha_optimizer = adam(log_alpha, hp.alpha_lr if hp.mmd_in_actor else hp.actor_lr)
        self.total_it = 0

    def vae_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """The squared error of the reconstruction, and the code's divergence from its prior."""
        encoder, decoder = self.encoder, self.decoder
        mean, std = encoder(batch.observations, batch.actions)
        reconstruction, _ = decoder(batch.observations, mean + std * noise.latent)
        assert reconstruction.shape == batch.actions.shape
        return square(reconstruction - batch.actions).mean() + self.hp.kl_weight * divergence(mean, std).mean(), {}

    @torch.no_grad()
    def td_target(self, batch: Batch, noise: Noise) -> Tensor:
        """The regression target of all critics, (B,): the best sample's mix of target values, with its entropy."""
        hp, actor, critic = self.hp, self.actor, self.critic_target
        actions, log_prob = sample(actor, batch.next_observations, noise.target)
        q = critic(repeat(batch.next_observations, hp.n_target_samples), actions)
        mixed = hp.lam * amin(q, axis=0) + (1.0 - hp.lam) * amax(q, axis=0)
        log_prob = pick(log_prob[..., None], argmax(mixed, axis=1)).squeeze(1)
        next_v = amax(mixed, axis=1) - exp(self.log_temperature()) * log_prob
        assert next_v.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + hp.discount * next_v * (1.0 - batch.terminals)

    def critic_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """The squared errors of all critics to the same target, added up over the critics."""
        critic = self.critic
        target = self.td_target(batch, noise)
        q = critic(batch.observations, batch.actions)
        assert q.shape[1:] == target.shape
        return square(q - target).mean(axis=1).sum(), {}

    def mmd(self, batch: Batch, noise: Compared) -> Tensor:
        """The MMD (B,) between the policy's samples and actions like the data's: the root of its square."""
        hp, actor, decoder = self.hp, self.actor, self.decoder
        with torch.no_grad():
            observations = repeat(batch.observations, hp.n_mmd_action_samples)
            _, data = decoder(observations, clamp(noise.codes, -0.5, 0.5))
        own = raw_sample(actor, batch.observations, noise.actor)
        alike = partial(kernel, name=hp.mmd_kernel, sigma=hp.mmd_sigma)
        return sqrt(alike(own, own) + alike(data, data) - 2.0 * alike(own, data) + 1e-6)

    def temp_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """Raises the temperature while the policy's entropy is below minus the number of action components."""
        actor, action_dim = self.actor, batch.actions.shape[1]
        drawn = noise.actor if noise.temp is None else noise.temp
        assert drawn is not None
        with torch.no_grad():
            _, log_prob = sample(actor, batch.observations, drawn)
        return -(exp(self.log_temperature()) * (log_prob - action_dim)).mean(), {}

    def alpha_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """Raises the MMD's weight while the MMD is above its limit."""
        with torch.no_grad():
            mmd = self.mmd(batch, noise.mmd if noise.alpha is None else noise.alpha)
        return -(exp(self.log_alpha()) * (mmd - self.hp.alpha_threshold)).mean(), {}

    def mmd_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """The policy's MMD beyond its limit, times its weight."""
        return (exp(self.log_alpha()) * (self.mmd(batch, noise.mmd) - self.hp.alpha_threshold)).mean(), {}

    def sac_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """The smallest value of the policy's action, plus its entropy."""
        actor, critic = self.actor, self.critic
        assert noise.actor is not None
        actions, log_prob = (drawn.squeeze(1) for drawn in sample(actor, batch.observations, noise.actor))
        q = smallest(critic(batch.observations, actions))
        assert q.shape == log_prob.shape
        return (exp(self.log_temperature()) * log_prob - q).mean(), {}

    def actor_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """The sum of the policy's two losses."""
        sac_loss, _ = self.sac_loss(batch, noise)
        mmd_loss, _ = self.mmd_loss(batch, noise)
        return sac_loss + mmd_loss, {}

    @property
    def warms_up(self) -> bool:
        """Whether the policy only learns from the MMD in the next update."""
        return self.total_it < self.hp.imitation_steps

    def step_temp(self, batch: Batch, noise: Noise) -> dict[str, Tensor]:
        """One step of the temperature."""
        loss, _ = self.temp_loss(batch, noise)
        gradient_step(loss, self.log_temperature_optimizer)
        return {"temp_loss": loss.detach(), "temp": exp(self.log_temperature().detach())}

    def bound_alpha(self) -> dict[str, Tensor]:
        """Keeps the MMD's weight within its bounds, after a step."""
        self.log_alpha.constant.data.clamp_(-5.0, 10.0)
        return {"alpha": exp(self.log_alpha().detach())}

    def step_weights(self, batch: Batch, noise: Noise) -> dict[str, Tensor]:
        """One step of the temperature, if it learns, and one of the MMD's weight."""
        metrics = self.step_temp(batch, noise) if self.hp.temperature_lr > 0.0 else {}
        loss, _ = self.alpha_loss(batch, noise)
        gradient_step(loss, self.log_alpha_optimizer)
        return {**metrics, "alpha_loss": loss.detach(), **self.bound_alpha()}

    def step_actor(self, batch: Batch, noise: Noise, warms_up: bool) -> dict[str, Tensor]:
        """One step of the policy, in the paper's form."""
        loss, _ = self.mmd_loss(batch, noise) if warms_up else self.actor_loss(batch, noise)
        gradient_step(loss, self.actor_optimizer)
        return {"actor_loss": loss.detach()}

    def step_all(self, batch: Batch, noise: Noise) -> dict[str, Tensor]:
        """One step of temperature, MMD's weight and policy, as in d3rlpy 2.8.1: the MMD only moves its weight.

        The weight's loss is the negative of the policy's. Its gradient reaches the policy too, and the policy's own
        loss then adds the same numbers with the opposite sign. Both passes are made, because rounding depends on them.
        """
        metrics = self.step_temp(batch, noise)
        sac_loss, _ = self.sac_loss(batch, noise)
        mmd_loss, _ = self.mmd_loss(batch, noise)
        loss = sac_loss + mmd_loss
        self.actor_optimizer.zero_grad()
        self.log_alpha_optimizer.zero_grad()
        (-mmd_loss).backward(retain_graph=True)
        self.log_alpha_optimizer.step()
        loss.backward()
        self.actor_optimizer.step()
        return {**metrics, "mmd_loss": mmd_loss.detach(), "actor_loss": loss.detach(), **self.bound_alpha()}

    def update(self, batch: Batch, noise: Noise) -> dict[str, Tensor]:
        """One gradient step: the VAE; temperature and MMD's weight; critics; policy; target critics."""
        hp, warms_up = self.hp, self.warms_up
        self.total_it += 1
        loss, _ = self.vae_loss(batch, noise)
        gradient_step(loss, self.encoder_optimizer, self.decoder_optimizer)
        metrics = {"vae_loss": loss.detach()}
        if hp.mmd_in_actor:
            metrics |= self.step_weights(batch, noise)
        loss, _ = self.critic_loss(batch, noise)
        gradient_step(loss, self.critic_optimizer)
        metrics["critic_loss"] = loss.detach()
        if hp.mmd_in_actor or warms_up:
            metrics |= self.step_actor(batch, noise, warms_up)
        else:
            metrics |= self.step_all(batch, noise)
        soft_update(self.critic_target, self.critic, hp.tau)
        return metrics

    @property
    def acting(self) -> nn.ModuleDict:
        """The networks that the policy needs."""
        return nn.ModuleDict({"actor": self.actor, "critic": self.critic})

    def act(self, observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Calls `policy` with NumPy arrays."""
        return on_arrays(policy, self.acting, observations, noise)

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint, by name."""
        learning = ("encoder", "decoder", "actor", "critic", "log_temperature", "log_alpha")
        names = [*learning, "critic_target", *(f"{part}_optimizer" for part in learning)]
        return {name: getattr(self, name) for name in names}


def policy(acting: nn.ModuleDict, observations: Tensor, noise: Tensor) -> Tensor:
    """The policy's actions (E, A) for observations (E, S) and noise (E, n, A): the best of n by the first critic."""
    actions, _ = sample(acting["actor"], observations, noise)
    best = argmax(acting["critic"](repeat(observations, noise.shape[1]), actions)[0], axis=1)
    return pick(actions, best)


# ---- training ------------------------------------------------------------------------------------------------------


def create_trainer(config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> BEAR:
    """Fresh networks, drawn from torch's generator on the CPU in d3rlpy's order, in which targets are drawn too."""
    dims, vae_dims = config.critic_hidden_dims, config.vae_hidden_dims
    actor = Actor(state_dim, action_dim, max_action, config.actor_hidden_dims)
    critic, _ = (Critics(state_dim, action_dim, dims, config.n_critics) for _ in range(2))
    encoder = Encoder(state_dim, action_dim, vae_dims)
    decoder = Decoder(state_dim, action_dim, max_action, vae_dims, config.vae_tanh)
    log_temperature, log_alpha = (
        Scalar(math.log(value)) for value in (config.initial_temperature, config.initial_alpha)
    )
    networks = (encoder, decoder, actor, critic, log_temperature, log_alpha)
    return BEAR(config, *(network.to(resolve_device(config.device)) for network in networks))


def save(trainer: BEAR, path: Path, **facts: Any) -> None:
    """Writes a checkpoint."""
    save_checkpoint(path, "bear", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: BEAR, path: str) -> dict[str, Any]:
    """Loads a checkpoint of ours or a d3rlpy model; returns its contents."""
    content = load_checkpoint(path, "bear", trainer.parts(), d3rlpy=D3RLPY_NAMES)
    trainer.total_it = content["total_it"]
    return content


def train(config: TrainConfig) -> Run:
    """Trains, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used.
    """
    task = load_task(config, Preparation(normalise=config.normalize))
    device = resolve_device(config.device)
    seed_everything(config.seed)
    trainer = create_trainer(config, task.state_dim, task.action_dim, task.max_action)
    run = Run(config, task, "bear", "torch", device)
    history = restore(run, partial(load, trainer), device)
    dataset = to_device(task.dataset, device)
    draw = partial(draw_acting_noise, hp=config, action_dim=task.action_dim)
    with run:
        if run.is_due(run.step):
            run.evaluate(run.step, SampledPolicy(trainer.act, draw, config.seed))
        for step in range(run.step + 1, config.max_timesteps + 1):
            indices, noise = draw_noise(config, len(dataset.rewards), task.action_dim, device, trainer.warms_up)
            history.append(trainer.update(take(dataset, indices), noise))
            run.advance(1)
            if run.is_due(step):
                run.log(step, mean_metrics(history))
                history.clear()
                run.save(step, partial(save, trainer))
                run.evaluate(step, SampledPolicy(trainer.act, draw, config.seed))
            elif run.stopping:
                run.save(step, partial(save, trainer, history=history))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "bear")
