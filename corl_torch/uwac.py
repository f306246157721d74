"""UWAC in PyTorch: BEAR with less weight on values that vary under dropout. Its twin is `corl_jax/uwac.py`.

Wu, Zhai, Srivastava, Susskind, Zhang, Salakhutdinov & Goh, Uncertainty Weighted Actor-Critic for Offline Reinforcement
Learning, 2021, https://arxiv.org/abs/2105.08140
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
from torch import Tensor, amax, amin, argmax, clamp, concatenate, exp, log, nn, relu, sqrt, square, stack, tanh, tile
from torch.linalg import norm

from shared.data.transitions import Batch
from shared.envs.evaluation import SampledPolicy
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.torch_data import index_tensor, take, to_device
from shared.frameworks.torch_layers import Scalar, pick
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
    # Learning rate of the MMD's weight
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
    alpha_threshold: float = bounded(0.07, low=0)
    # Kernel of the MMD
    mmd_kernel: str = choice("gaussian", "laplacian")
    # Width of the kernel
    mmd_sigma: float = positive(20.0)
    # Actions sampled in each state for each side of the MMD
    n_mmd_action_samples: int = bounded(4, low=1)
    # Actions sampled in each next state for the critics' target
    n_target_samples: int = bounded(10, low=1)
    # Actions sampled in each state, of which the policy takes the best one
    n_action_samples: int = bounded(100, low=1)
    # Widths of the critics' hidden layers
    critic_hidden_dims: tuple[int, ...] = widths(256, 256)
    # Share of the critics' hidden units that dropout zeroes, also when they are only evaluated
    drop_rate: float = bounded(0.1, low=0, high=0.99)
    # Passes of a critic, each with its own dropout, whose variance is the critic's uncertainty
    n_passes: int = bounded(100, low=2)
    # How fast the weight falls with the variance, or the number that the variance divides
    variance_scale: float = bounded(0.5, low=0)
    # Weights are the exponential of -variance_scale * variance; false: variance_scale / variance
    exp_weight: bool = True
    # Smallest weight
    clip_bottom: float = bounded(0.0, low=0)
    # Largest weight
    clip_top: float = bounded(1.0, low=0)
    # Weight the values in the policy's loss, too
    weigh_actor: bool = True
    # Penalty on positive values, multiplied by the variance of their target
    q_penalty: float = bounded(0.0, low=0)
    # Let the penalty grow with the exponential of the variance
    exp_penalty: bool = False
    # Number of first updates, in which the policy only learns to imitate the data through the MMD
    imitation_steps: int = bounded(40_000, low=0)
    # Transitions in a batch
    batch_size: int = bounded(256, low=1)
    # Use the best action's variance in the target, as in the paper; false: the largest one, as in the authors' code
    variance_at_best: bool = True


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, TransitionsConfig):
    """The settings of a whole run."""

    group: str = "UWAC-D4RL"
    name: str = "UWAC"
    # Updates between two evaluations
    eval_freq: int = bounded(1000, low=1)
    # Updates in all
    max_timesteps: int = bounded(3_000_000, low=1)
    # Widths of the policy's hidden layers
    actor_hidden_dims: tuple[int, ...] = widths(256, 256)
    # Widths of the hidden layers of the VAE's encoder and decoder
    vae_hidden_dims: tuple[int, ...] = widths(750, 750)
    # Initial weight of the MMD
    initial_alpha: float = positive(1.0)
    # Divide each of the critics' weights by its largest singular value
    spectral_norm: bool = True
    # Start with target critics that equal the critics, as is usual; the authors' code draws them separately
    copy_targets: bool = True
    # Normalise states to mean 0 and standard deviation 1
    normalize: bool = False


# ---- networks ------------------------------------------------------------------------------------------------------


def hidden(input_dim: int, hidden_dims: Sequence[int]) -> list[nn.Module]:
    """Hidden layers with ReLU."""
    dims = [input_dim, *hidden_dims]
    return [layer for a, b in pairwise(dims) for layer in (nn.Linear(a, b), nn.ReLU())]


class Encoder(nn.Module):
    """The VAE's encoder: from an action to a normal distribution of codes."""

    def __init__(self, state_dim: int, action_dim: int, hidden_dims: Sequence[int]) -> None:
        super().__init__()
        self.net = nn.Sequential(*hidden(state_dim + action_dim, hidden_dims))
        self.mean = nn.Linear(hidden_dims[-1], 2 * action_dim)
        self.log_std = nn.Linear(hidden_dims[-1], 2 * action_dim)

    def forward(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation (B, Z) of the codes of actions (B, A) in observations (B, S)."""
        encoded = self.net(concatenate([observations, actions], axis=-1))
        return self.mean(encoded), exp(clamp(self.log_std(encoded), -4.0, 15.0))


class Decoder(nn.Module):
    """The VAE's decoder: from a code to an action."""

    def __init__(self, state_dim: int, action_dim: int, max_action: float, hidden_dims: Sequence[int]) -> None:
        super().__init__()
        last = nn.Linear(hidden_dims[-1], action_dim)
        self.net = nn.Sequential(*hidden(state_dim + 2 * action_dim, hidden_dims), last)
        self.max_action = max_action

    def forward(self, observations: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """The actions (..., A) of codes (..., Z) in observations (..., S), and the same before the tanh."""
        raw = self.net(concatenate([observations, codes], axis=-1))
        return self.max_action * tanh(raw), raw


def reset(layer: nn.Linear, bound: float | None = None) -> None:
    """A last layer starts within a bound; a hidden one, within plus or minus outputs^(-1/2), with a bias of 0.1."""
    if bound is None:
        nn.init.uniform_(layer.weight, -(layer.out_features**-0.5), layer.out_features**-0.5)
        nn.init.constant_(layer.bias, 0.1)
    else:
        nn.init.uniform_(layer.weight, -bound, bound)
        nn.init.uniform_(layer.bias, -bound, bound)


class Actor(nn.Module):
    """The policy: a normal distribution whose samples are squashed by tanh to be within [-max_action, max_action]."""

    def __init__(self, state_dim: int, action_dim: int, max_action: float, hidden_dims: Sequence[int]) -> None:
        super().__init__()
        self.net = nn.Sequential(*hidden(state_dim, hidden_dims))
        for layer in self.net[::2]:
            reset(layer)
        self.mean = nn.Linear(hidden_dims[-1], action_dim)
        self.log_std = nn.Linear(hidden_dims[-1], action_dim)
        for layer in (self.mean, self.log_std):
            reset(layer, 1e-3)
        self.action_dim, self.max_action = action_dim, max_action

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation (B, A) before the tanh, for observations (B, S)."""
        encoded = self.net(observations)
        return self.mean(encoded), exp(clamp(self.log_std(encoded), -5.0, 2.0))


# A direction in a layer's outputs, (out,), and one in its inputs, (in,)
Direction = tuple[Tensor, Tensor]


class SpectralLinear(nn.Linear):
    """A linear layer whose weight W is divided by u W v, which is its largest singular value for the right u and v."""

    def forward(self, inputs: Tensor, direction: Direction | None) -> Tensor:
        """Maps (..., in) to (..., out); without a direction, the weight is used as it is."""
        weight = self.weight
        if direction is not None:
            u, v = direction
            weight = weight / (u @ (weight @ v))
        return nn.functional.linear(inputs, weight, self.bias)


def dropped(inputs: Tensor, kept: Tensor, rate: float) -> Tensor:
    """The kept inputs, scaled up to make up for the others, which are 0."""
    return inputs * (kept / (1.0 - rate))


class Critic(nn.Module):
    """A critic with dropout after each hidden layer."""

    def __init__(self, input_dim: int, hidden_dims: Sequence[int], drop_rate: float, spectral_norm: bool) -> None:
        super().__init__()
        self.net = nn.ModuleList(SpectralLinear(a, b) for a, b in pairwise((input_dim, *hidden_dims, 1)))
        for layer in self.net[:-1]:
            reset(layer)
        reset(self.net[-1], 3e-3)
        self.drop_rate, self.spectral_norm = drop_rate, spectral_norm

    def forward(self, inputs: Tensor, directions: Sequence[Direction], kept: Sequence[Tensor]) -> Tensor:
        """The values (...) of inputs (..., S + A), with the hidden units (..., H) of each layer that are kept."""
        used = directions if self.spectral_norm else [None] * len(directions)
        for layer, direction, mask in zip(self.net[:-1], used[:-1], kept, strict=True):
            inputs = dropped(relu(layer(inputs, direction)), mask, self.drop_rate)
        return self.net[-1](inputs, used[-1]).squeeze(-1)


class Critics(nn.Module):
    """Two critics Q(s, a) with separate weights."""

    def __init__(
        self, state_dim: int, action_dim: int, hidden_dims: Sequence[int], drop_rate: float, spectral_norm: bool
    ) -> None:
        super().__init__()
        sizes = (state_dim + action_dim, hidden_dims, drop_rate, spectral_norm)
        self.members = nn.ModuleList(Critic(*sizes) for _ in range(2))
        self.hidden_dims = hidden_dims

    def forward(
        self,
        observations: Tensor,
        actions: Tensor,
        directions: Sequence[Sequence[Direction]],
        kept: Sequence[Sequence[Tensor]],
    ) -> Tensor:
        """The values (N, ...) of actions (..., A) in observations (..., S), from the first N critics, which have masks.

        Observations and actions may have length 1 along the axis of the masks' passes. Inputs of a hidden layer are
        then only computed once.
        """
        inputs = concatenate([observations, actions], axis=-1)
        members = zip(self.members, directions, kept, strict=False)
        return stack([member(inputs, layers, masks) for member, layers, masks in members])


class LayerDirections(nn.Module):
    """The directions of one layer, of length 1. They are not trained."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        # A single output has only one direction, whose sign cancels.
        u = unit(torch.randn(outputs)) if outputs > 1 else torch.ones(1)
        self.u = nn.Parameter(u, requires_grad=False)
        self.v = nn.Parameter(unit(torch.randn(inputs)), requires_grad=False)


class Directions(nn.Module):
    """Estimates, for each layer of two critics, of the directions in which its weight stretches most."""

    def __init__(self, input_dim: int, hidden_dims: Sequence[int]) -> None:
        super().__init__()
        dims = (input_dim, *hidden_dims, 1)
        self.members = nn.ModuleList(nn.ModuleList(LayerDirections(a, b) for a, b in pairwise(dims)) for _ in range(2))

    def forward(self) -> list[list[Direction]]:
        """By critic and layer."""
        return [[(layer.u, layer.v) for layer in layers] for layers in self.members]


def unit(vector: Tensor) -> Tensor:
    """The vector, scaled to length 1."""
    return vector / norm(vector)


@torch.no_grad()
def iterate(directions: Directions, critic: Critics) -> None:
    """One power iteration, in place: each direction turns towards the one that the weight stretches most."""
    for layers, member in zip(directions.members, critic.members, strict=True):
        for direction, layer in zip(layers, member.net, strict=True):
            direction.v.copy_(unit(direction.u @ layer.weight))
            direction.u.copy_(unit(layer.weight @ direction.v))


def mean_and_variance(
    critic: Critics, directions: Directions, observations: Tensor, actions: Tensor, kept: Sequence[Sequence[Tensor]]
) -> tuple[Tensor, Tensor]:
    """Mean and unbiased variance (N, ...) over K passes, for actions (..., A) and kept units (..., K, H)."""
    q = critic(observations[..., None, :], actions[..., None, :], directions(), kept)
    return q.mean(axis=-1), q.var(axis=-1, correction=1)


def weight(hp: Hyperparameters, variance: Tensor) -> Tensor:
    """The weights (...) of values with these variances (...)."""
    certainty = exp(-hp.variance_scale * variance) if hp.exp_weight else hp.variance_scale / variance
    return clamp(certainty, hp.clip_bottom, hp.clip_top)


def raw_sample(actor: Actor, observations: Tensor, noise: Tensor) -> Tensor:
    """The policy's samples (B, n, A) before the tanh, for observations (B, S) and noise (B, n, A)."""
    mean, std = actor(observations)
    return mean[:, None] + std[:, None] * noise


def kernel(x: Tensor, y: Tensor, name: str, sigma: float) -> Tensor:
    """The kernel of actions x (B, n, A) and y (B, m, A), averaged over all pairs, (B,)."""
    difference = x[:, :, None] - y[:, None]
    distance = square(difference) if name == "gaussian" else abs(difference)
    return exp(-distance.sum(axis=-1) / (2.0 * sigma)).mean(axis=(1, 2))


def repeat(observations: Tensor, n: int) -> Tensor:
    """The observations (B, S), each repeated n times: (B, n, S)."""
    return tile(observations[:, None], (1, n, 1))


# ---- randomness ----------------------------------------------------------------------------------------------------


# By critic and hidden layer: the units that are kept, (..., H)
Masks = tuple[tuple[Tensor, ...], ...]


class Dropout(NamedTuple):
    """The hidden units that are kept."""

    # (B, n, K, H) each: for the target critics
    target: Masks
    # (B, H) each: for the critics, when they learn
    critic: Masks
    # (B, K, H) each: for the critics, when the policy learns
    actor: Masks


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    # Standard normal, (B, Z): the VAE's codes
    latent: Tensor
    # Standard normal, (B, n, A): the target's next actions
    target: Tensor
    # Standard normal, (B, m, Z): the codes of actions like the data's, for the MMD
    codes: Tensor
    # Standard normal, (B, m, A): the policy's actions, for the MMD; the policy also learns from the first one's value
    actor: Tensor
    dropout: Dropout


def draw_noise(hp: Hyperparameters, dataset_size: int, action_dim: int, device: torch.device) -> tuple[Tensor, Noise]:
    """An update's batch indices (B,) and its noise, in the order of the authors' code.

    Indices and codes come from NumPy's global generator, all else from torch's.
    """
    size, n, m, passes = hp.batch_size, hp.n_target_samples, hp.n_mmd_action_samples, hp.n_passes

    def codes(*shape: int) -> Tensor:
        drawn = np.random.normal(size=(*shape, 2 * action_dim))
        return torch.as_tensor(drawn, dtype=torch.get_default_dtype(), device=device)

    def masks(*shape: int) -> Masks:
        def kept(width: int) -> Tensor:
            return torch.empty(*shape, width, dtype=torch.bool, device=device).bernoulli_(1.0 - hp.drop_rate)

        return tuple(tuple(kept(width) for width in hp.critic_hidden_dims) for _ in range(2))

    indices = np.random.randint(0, dataset_size, size=size)
    latent = codes(size)
    target, target_masks = torch.randn(size, n, action_dim, device=device), masks(size, n, passes)
    critic_masks = masks(size)
    behaviour, actor = codes(size, m), torch.randn(size, m, action_dim, device=device)
    dropout = Dropout(target_masks, critic_masks, masks(size, passes))
    return index_tensor(indices, device), Noise(latent, target, behaviour, actor, dropout)


def draw_acting_noise(generator: np.random.Generator, hp: Hyperparameters, action_dim: int) -> np.ndarray:
    """The policy's draws for one step of an episode, (n, A + K H), for the H hidden units of a critic in K passes.

    Each action has its noise, standard normal, and 1 for each unit that is kept, 0 for the others.
    """
    units = hp.n_passes * sum(hp.critic_hidden_dims)
    noise = generator.standard_normal((hp.n_action_samples, action_dim), np.float32)
    kept = generator.random((hp.n_action_samples, units), np.float32) >= hp.drop_rate
    return np.concatenate([noise, kept], axis=1, dtype=np.float32)


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


def differentiate(loss: Tensor, network: nn.Module) -> None:
    """Stores the loss's gradient in this network, and in none of the networks that it passed through."""
    parameters = list(network.parameters())
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = gradient


def soft_update(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Polyak averaging: the target moves a step of size tau towards the source, in place."""
    for old, new in zip(target.parameters(), source.parameters(), strict=True):
        old.data.copy_((1.0 - tau) * old.data + tau * new.data)


def divergence(mean: Tensor, std: Tensor) -> Tensor:
    """The KL divergence (B, Z) of normal codes from the prior, for each component of the codes."""
    variance = square(std)
    return 0.5 * (variance + square(mean) - 1.0 - log(variance))


class UWAC:
    """All that an update reads and writes."""

    def __init__(
        self,
        hp: Hyperparameters,
        encoder: Encoder,
        decoder: Decoder,
        actor: Actor,
        critic: Critics,
        directions: Directions,
        critic_target: Critics,
        target_directions: Directions,
        log_alpha: Scalar,
    ) -> None:
        self.hp = hp
        self.encoder, self.decoder, self.actor, self.critic = encoder, decoder, actor, critic
        self.directions, self.log_alpha = directions, log_alpha
        self.critic_target, self.target_directions = critic_target, target_directions
        self.encoder_optimizer = adam(encoder, hp.vae_lr)
        self.decoder_optimizer = adam(decoder, hp.vae_lr)
        self.actor_optimizer = adam(actor, hp.actor_lr)
        self.critic_optimizer = adam(critic, hp.critic_lr)
        self.log_alpha_optimizer = adam(log_alpha, hp.alpha_lr)
        self.total_it = 0

    def vae_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """The squared error of the reconstruction, and the code's divergence from its prior."""
        encoder, decoder = self.encoder, self.decoder
        mean, std = encoder(batch.observations, batch.actions)
        reconstruction, _ = decoder(batch.observations, mean + std * noise.latent)
        assert reconstruction.shape == batch.actions.shape
        return square(reconstruction - batch.actions).mean() + self.hp.kl_weight * divergence(mean, std).mean(), {}

    @torch.no_grad()
    def td_target(self, batch: Batch, noise: Noise) -> tuple[Tensor, Tensor]:
        """The regression target of both critics, (B,), and its variance (B,): the best sample's mix of values."""
        hp, actor, critic, directions = self.hp, self.actor, self.critic_target, self.target_directions
        actions = actor.max_action * tanh(raw_sample(actor, batch.next_observations, noise.target))
        observations = repeat(batch.next_observations, hp.n_target_samples)
        q, variances = mean_and_variance(critic, directions, observations, actions, noise.dropout.target)
        mixed = hp.lam * amin(q, axis=0) + (1.0 - hp.lam) * amax(q, axis=0)
        variance = variances.sum(axis=0)
        if hp.variance_at_best:
            variance = pick(variance[..., None], argmax(mixed, axis=1)).squeeze(1)
        else:
            variance = amax(variance, axis=1)
        next_v = amax(mixed, axis=1)
        assert next_v.shape == variance.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + hp.discount * next_v * (1.0 - batch.terminals), variance

    def critic_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted squared errors of both critics to the same target, and a penalty on uncertain values."""
        hp, critic, directions = self.hp, self.critic, self.directions
        target, variance = self.td_target(batch, noise)
        q = critic(batch.observations, batch.actions, directions(), noise.dropout.critic)
        certainty = weight(hp, variance)
        assert q.shape[1:] == target.shape == certainty.shape
        doubt = exp(variance) if hp.exp_penalty else variance
        loss = square((q - target) * certainty).mean(axis=1) + hp.q_penalty * (relu(q) * doubt).mean(axis=1)
        return loss.sum(), {"weight": certainty.mean()}

    def mmd(self, batch: Batch, noise: Noise, own: Tensor) -> Tensor:
        """The MMD (B,) between the policy's samples (B, m, A) and actions like the data's: the root of MMD^2."""
        hp, decoder = self.hp, self.decoder
        with torch.no_grad():
            observations = repeat(batch.observations, hp.n_mmd_action_samples)
            _, data = decoder(observations, clamp(noise.codes, -0.5, 0.5))
        alike = partial(kernel, name=hp.mmd_kernel, sigma=hp.mmd_sigma)
        return sqrt(alike(own, own) + alike(data, data) - 2.0 * alike(own, data) + 1e-6)

    def mmd_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """The policy's MMD beyond its limit, times its weight."""
        actor = self.actor
        mmd = self.mmd(batch, noise, raw_sample(actor, batch.observations, noise.actor))
        return (exp(self.log_alpha()) * (mmd - self.hp.alpha_threshold)).mean(), {"mmd": mmd.detach()}

    def actor_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """The same, and the smaller value of the first sample, weighted by the critics' certainty."""
        hp, actor, critic, directions = self.hp, self.actor, self.critic, self.directions
        own = raw_sample(actor, batch.observations, noise.actor)
        mmd = self.mmd(batch, noise, own)
        actions = actor.max_action * tanh(own[:, 0])
        values, variances = mean_and_variance(critic, directions, batch.observations, actions, noise.dropout.actor)
        q = amin(values, axis=0)
        if hp.weigh_actor:
            q = q * weight(hp, variances.detach().sum(axis=0))
        assert q.shape == mmd.shape
        return (exp(self.log_alpha()) * (mmd - hp.alpha_threshold) - q).mean(), {"mmd": mmd.detach()}

    def alpha_loss(self, mmd: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Raises the MMD's weight while the MMD (B,) is above its limit."""
        return -(exp(self.log_alpha()) * (mmd - self.hp.alpha_threshold)).mean(), {}

    @property
    def warms_up(self) -> bool:
        """Whether the policy only learns from the MMD in the next update."""
        return self.total_it < self.hp.imitation_steps

    def update(self, batch: Batch, noise: Noise) -> dict[str, Tensor]:
        """One gradient step: the VAE; critics, policy and MMD's weight, all from the same networks; target critics."""
        hp, warms_up = self.hp, self.warms_up
        self.total_it += 1
        vae_loss, _ = self.vae_loss(batch, noise)
        gradient_step(vae_loss, self.encoder_optimizer, self.decoder_optimizer)
        iterate(self.target_directions, self.critic_target)
        iterate(self.directions, self.critic)
        critic_loss, metrics = self.critic_loss(batch, noise)
        differentiate(critic_loss, self.critic)
        # The authors' networks iterate whenever they are called, and this is the second call.
        iterate(self.directions, self.critic)
        actor_loss, aux = self.mmd_loss(batch, noise) if warms_up else self.actor_loss(batch, noise)
        differentiate(actor_loss, self.actor)
        alpha_loss, _ = self.alpha_loss(aux["mmd"])
        differentiate(alpha_loss, self.log_alpha)
        for optimizer in (self.critic_optimizer, self.actor_optimizer, self.log_alpha_optimizer):
            optimizer.step()
        self.log_alpha.constant.data.clamp_(-5.0, 10.0)
        soft_update(self.critic_target, self.critic, hp.tau)
        losses = {"vae": vae_loss, "critic": critic_loss, "actor": actor_loss, "alpha": alpha_loss}
        metrics |= {f"{name}_loss": loss.detach() for name, loss in losses.items()}
        return metrics | {"alpha": exp(self.log_alpha().detach())}

    @property
    def acting(self) -> nn.ModuleDict:
        """The networks that the policy needs."""
        return nn.ModuleDict({"actor": self.actor, "critic": self.critic, "directions": self.directions})

    def act(self, observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Calls `policy` with NumPy arrays."""
        return on_arrays(policy, self.acting, observations, noise)

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint, by name."""
        learning = ("encoder", "decoder", "actor", "critic", "log_alpha")
        names = [*learning, "directions", "critic_target", "target_directions"]
        return {name: getattr(self, name) for name in [*names, *(f"{part}_optimizer" for part in learning)]}


def policy(acting: nn.ModuleDict, observations: Tensor, noise: Tensor) -> Tensor:
    """The best of n actions by the first critic, (E, A), for observations (E, S) and noise (E, n, A + K H)."""
    actor, critic, directions = acting["actor"], acting["critic"], acting["directions"]
    n, dims = noise.shape[1], list(critic.hidden_dims)
    actions = actor.max_action * tanh(raw_sample(actor, observations, noise[..., : actor.action_dim]))
    units = noise[..., actor.action_dim :].reshape(*noise.shape[:2], -1, sum(dims))
    q, _ = mean_and_variance(critic, directions, repeat(observations, n), actions, [units.split(dims, dim=-1)])
    return pick(actions, argmax(q[0], axis=1))


# ---- training ------------------------------------------------------------------------------------------------------


def create_trainer(config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> UWAC:
    """Fresh networks, drawn from torch's generator on the CPU."""
    sizes = (state_dim, action_dim, config.critic_hidden_dims, config.drop_rate, config.spectral_norm)
    critic = Critics(*sizes)
    directions = Directions(state_dim + action_dim, config.critic_hidden_dims)
    target: tuple[Critics, Directions] = copy.deepcopy((critic, directions))
    if not config.copy_targets:
        target = Critics(*sizes), Directions(state_dim + action_dim, config.critic_hidden_dims)
    actor = Actor(state_dim, action_dim, max_action, config.actor_hidden_dims)
    encoder = Encoder(state_dim, action_dim, config.vae_hidden_dims)
    decoder = Decoder(state_dim, action_dim, max_action, config.vae_hidden_dims)
    log_alpha = Scalar(math.log(config.initial_alpha))
    networks = (encoder, decoder, actor, critic, directions, *target, log_alpha)
    return UWAC(config, *(network.to(resolve_device(config.device)) for network in networks))


def save(trainer: UWAC, path: Path, **facts: Any) -> None:
    """Writes a checkpoint."""
    save_checkpoint(path, "uwac", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: UWAC, path: str) -> dict[str, Any]:
    """Loads a checkpoint; returns its contents."""
    content = load_checkpoint(path, "uwac", trainer.parts())
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
    run = Run(config, task, "uwac", "torch", device)
    history = restore(run, partial(load, trainer), device)
    dataset = to_device(task.dataset, device)
    draw = partial(draw_acting_noise, hp=config, action_dim=task.action_dim)
    with run:
        if run.is_due(run.step):
            run.evaluate(run.step, SampledPolicy(trainer.act, draw, config.seed))
        for step in range(run.step + 1, config.max_timesteps + 1):
            indices, noise = draw_noise(config, len(dataset.rewards), task.action_dim, device)
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
    cli(train, TrainConfig, "uwac")
