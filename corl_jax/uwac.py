"""UWAC in JAX: BEAR with less weight on values that vary under dropout. Its twin is `corl_torch/uwac.py`.

Wu, Zhai, Srivastava, Susskind, Zhang, Salakhutdinov & Goh, Uncertainty Weighted Actor-Critic for Offline Reinforcement
Learning, 2021, https://arxiv.org/abs/2105.08140
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from shared.runs.start import cli

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax import struct
from jax import Array, value_and_grad
from jax.lax import stop_gradient
from jax.nn import relu
from jax.nn.initializers import Initializer, constant, variance_scaling
from jax.numpy import amax, amin, argmax, concatenate, exp, log, sqrt, square, stack, tanh, tile
from jax.numpy.linalg import norm

from shared.data.transitions import Batch
from shared.envs.evaluation import SampledPolicy
from shared.frameworks.jax_calls import History
from shared.frameworks.jax_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, take, to_device
from shared.frameworks.jax_layers import Linear, Network, clamp, is_key, linear, pick
from shared.frameworks.jax_scan import scan_updates
from shared.frameworks.jax_seeds import train_together
from shared.frameworks.jax_side import enable_compilation_cache, evaluate, narrow, resolve_device
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


def hidden(hidden_dims: Sequence[int]) -> list[Any]:
    """Hidden layers with ReLU."""
    return [layer for width in hidden_dims for layer in (Linear(width), nn.relu)]


class Encoder(nn.Module):
    """The VAE's encoder: from an action to a normal distribution of codes."""

    action_dim: int
    hidden_dims: Sequence[int]

    def setup(self) -> None:
        self.net = nn.Sequential(hidden(self.hidden_dims))
        self.mean = Linear(2 * self.action_dim)
        self.log_std = Linear(2 * self.action_dim)

    def __call__(self, observations: Array, actions: Array) -> tuple[Array, Array]:
        """Mean and standard deviation (B, Z) of the codes of actions (B, A) in observations (B, S)."""
        encoded = self.net(concatenate([observations, actions], axis=-1))
        return self.mean(encoded), exp(clamp(self.log_std(encoded), -4.0, 15.0))


class Decoder(nn.Module):
    """The VAE's decoder: from a code to an action."""

    action_dim: int
    max_action: float
    hidden_dims: Sequence[int]

    def setup(self) -> None:
        self.net = nn.Sequential([*hidden(self.hidden_dims), Linear(self.action_dim)])

    def __call__(self, observations: Array, codes: Array) -> tuple[Array, Array]:
        """The actions (..., A) of codes (..., Z) in observations (..., S), and the same before the tanh."""
        raw = self.net(concatenate([observations, codes], axis=-1))
        return self.max_action * tanh(raw), raw


# A hidden layer starts within plus or minus outputs^(-1/2), with a bias of 0.1; a last one, within a bound.
fan_out = variance_scaling(1 / 3, "fan_out", "uniform")


def within(bound: float) -> Initializer:
    """Draws from U(-bound, bound)."""
    return partial(jax.random.uniform, minval=-bound, maxval=bound)


class Actor(nn.Module):
    """The policy: a normal distribution whose samples are squashed by tanh to be within [-max_action, max_action]."""

    action_dim: int
    max_action: float
    hidden_dims: Sequence[int]

    def setup(self) -> None:
        layers = [layer for width in self.hidden_dims for layer in (Linear(width, fan_out, constant(0.1)), nn.relu)]
        self.net = nn.Sequential(layers)
        self.mean = Linear(self.action_dim, within(1e-3), within(1e-3))
        self.log_std = Linear(self.action_dim, within(1e-3), within(1e-3))

    def __call__(self, observations: Array) -> tuple[Array, Array]:
        """Mean and standard deviation (B, A) before the tanh, for observations (B, S)."""
        encoded = self.net(observations)
        return self.mean(encoded), exp(clamp(self.log_std(encoded), -5.0, 2.0))


# A direction in a layer's outputs, (out,), and one in its inputs, (in,)
Direction = tuple[Array, Array]


class SpectralLinear(nn.Module):
    """A linear layer whose weight W is divided by u W v, which is its largest singular value for the right u and v."""

    features: int
    kernel_init: Initializer
    bias_init: Initializer

    @nn.compact
    def __call__(self, inputs: Array, direction: Direction | None) -> Array:
        """Maps (..., in) to (..., out); without a direction, the weight is used as it is."""
        kernel = self.param("kernel", self.kernel_init, (inputs.shape[-1], self.features), inputs.dtype)
        bias = self.param("bias", self.bias_init, (self.features,), inputs.dtype)
        if direction is not None:
            u, v = direction
            kernel = kernel / (u @ (v @ kernel))
        return linear(inputs, kernel, bias)


def dropped(inputs: Array, kept: Array, rate: float) -> Array:
    """The kept inputs, scaled up to make up for the others, which are 0."""
    return inputs * (kept / (1.0 - rate))


class Critic(nn.Module):
    """A critic with dropout after each hidden layer."""

    hidden_dims: Sequence[int]
    drop_rate: float
    spectral_norm: bool

    def setup(self) -> None:
        last = SpectralLinear(1, within(3e-3), within(3e-3))
        self.net = nn.Sequential([*(SpectralLinear(width, fan_out, constant(0.1)) for width in self.hidden_dims), last])

    def __call__(self, inputs: Array, directions: Sequence[Direction], kept: Sequence[Array]) -> Array:
        """The values (...) of inputs (..., S + A), with the hidden units (..., H) of each layer that are kept."""
        net = self.net.layers
        used = directions if self.spectral_norm else [None] * len(directions)
        for layer, direction, mask in zip(net[:-1], used[:-1], kept, strict=True):
            inputs = dropped(relu(layer(inputs, direction)), mask, self.drop_rate)
        return net[-1](inputs, used[-1]).squeeze(-1)


class Critics(nn.Module):
    """Two critics Q(s, a) with separate weights."""

    hidden_dims: Sequence[int]
    drop_rate: float
    spectral_norm: bool

    def setup(self) -> None:
        self.members = [Critic(self.hidden_dims, self.drop_rate, self.spectral_norm) for _ in range(2)]

    def __call__(
        self,
        observations: Array,
        actions: Array,
        directions: Sequence[Sequence[Direction]],
        kept: Sequence[Sequence[Array]],
    ) -> Array:
        """The values (N, ...) of actions (..., A) in observations (..., S), from the first N critics, which have masks.

        Observations and actions may have length 1 along the axis of the masks' passes. Inputs of a hidden layer are
        then only computed once.
        """
        inputs = concatenate([observations, actions], axis=-1)
        members = zip(self.members, directions, kept, strict=False)
        return stack([member(inputs, layers, masks) for member, layers, masks in members])


class LayerDirections(nn.Module):
    """The directions of one layer, of length 1. They are not trained."""

    inputs: int
    outputs: int

    def setup(self) -> None:
        # A single output has only one direction, whose sign cancels.
        self.u = self.param("u", drawn if self.outputs > 1 else nn.initializers.ones, (self.outputs,), float)
        self.v = self.param("v", drawn, (self.inputs,), float)

    def __call__(self) -> Direction:
        """In the outputs and in the inputs."""
        return self.u, self.v


class Directions(nn.Module):
    """Estimates, for each layer of two critics, of the directions in which its weight stretches most."""

    input_dim: int
    hidden_dims: Sequence[int]

    def setup(self) -> None:
        dims = (self.input_dim, *self.hidden_dims, 1)
        self.members = [nn.Sequential([LayerDirections(a, b) for a, b in pairwise(dims)]) for _ in range(2)]

    def __call__(self) -> list[list[Direction]]:
        """By critic and layer."""
        return [[layer() for layer in layers.layers] for layers in self.members]


def unit(vector: Array) -> Array:
    """The vector, scaled to length 1."""
    return vector / norm(vector)


def drawn(key: Array, shape: Sequence[int], dtype: Any) -> Array:
    """A random direction; all are equally likely."""
    return unit(jax.random.normal(key, shape, dtype))


def iterated(directions: Network, critic: Network) -> Network:
    """One power iteration: each direction turns towards the one that the weight stretches most."""

    def iterate(direction: dict[str, Array], kernel: Array) -> dict[str, Array]:
        v = unit(kernel @ direction["u"])
        return {"u": unit(v @ kernel), "v": v}

    params = {}
    for member, layers in directions.params.items():
        net = critic.params[member]["net"]
        params[member] = {name: iterate(direction, net[name]["kernel"]) for name, direction in layers.items()}
    return directions.replace(params=params)


def mean_and_variance(
    critic: Network, directions: Network, observations: Array, actions: Array, kept: Sequence[Sequence[Array]]
) -> tuple[Array, Array]:
    """Mean and unbiased variance (N, ...) over K passes, for actions (..., A) and kept units (..., K, H)."""
    q = critic(observations[..., None, :], actions[..., None, :], directions(), kept)
    return q.mean(axis=-1), q.var(axis=-1, ddof=1)


def weight(hp: Hyperparameters, variance: Array) -> Array:
    """The weights (...) of values with these variances (...)."""
    certainty = exp(-hp.variance_scale * variance) if hp.exp_weight else hp.variance_scale / variance
    return clamp(certainty, hp.clip_bottom, hp.clip_top)


def raw_sample(actor: Network, observations: Array, noise: Array) -> Array:
    """The policy's samples (B, n, A) before the tanh, for observations (B, S) and noise (B, n, A)."""
    mean, std = actor(observations)
    return mean[:, None] + std[:, None] * noise


def kernel(x: Array, y: Array, name: str, sigma: float) -> Array:
    """The kernel of actions x (B, n, A) and y (B, m, A), averaged over all pairs, (B,)."""
    difference = x[:, :, None] - y[:, None]
    distance = square(difference) if name == "gaussian" else abs(difference)
    return exp(-distance.sum(axis=-1) / (2.0 * sigma)).mean(axis=(1, 2))


def repeat(observations: Array, n: int) -> Array:
    """The observations (B, S), each repeated n times: (B, n, S)."""
    return tile(observations[:, None], (1, n, 1))


# ---- randomness ----------------------------------------------------------------------------------------------------


# By critic and hidden layer: the units that are kept, (..., H)
Masks = tuple[tuple[Array, ...], ...]


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
    latent: Array
    # Standard normal, (B, n, A): the target's next actions
    target: Array
    # Standard normal, (B, m, Z): the codes of actions like the data's, for the MMD
    codes: Array
    # Standard normal, (B, m, A): the policy's actions, for the MMD; the policy also learns from the first one's value
    actor: Array
    # `Dropout`, or the key that it is drawn from within the update, because its masks are millions of numbers
    dropout: Any


def draw_noise(key: Array, step: Array, hp: Hyperparameters, dataset_size: int, action_dim: int) -> tuple[Array, Noise]:
    """An update's batch indices (B,) and its noise, which depend on the key and on the update's number alone."""
    index_key, dropout_key, *keys = jax.random.split(jax.random.fold_in(key, step), 6)
    size, n, m = hp.batch_size, hp.n_target_samples, hp.n_mmd_action_samples

    def normal(*shape: int) -> Array:
        return jax.random.normal(keys.pop(), shape)

    indices = jax.random.randint(index_key, (size,), 0, dataset_size)
    latent = normal(size, 2 * action_dim)
    target = normal(size, n, action_dim)
    behaviour, actor = normal(size, m, 2 * action_dim), normal(size, m, action_dim)
    return indices, Noise(latent, target, behaviour, actor, dropout_key)


def draw_dropout(key: Array, hp: Hyperparameters) -> Dropout:
    """An update's masks."""
    size, n, passes = hp.batch_size, hp.n_target_samples, hp.n_passes
    keys = iter(jax.random.split(key, 6 * len(hp.critic_hidden_dims)))

    def masks(*shape: int) -> Masks:
        def kept(width: int) -> Array:
            return jax.random.bernoulli(next(keys), 1.0 - hp.drop_rate, (*shape, width))

        return tuple(tuple(kept(width) for width in hp.critic_hidden_dims) for _ in range(2))

    return Dropout(masks(size, n, passes), masks(size), masks(size, passes))


def draw_acting_noise(generator: np.random.Generator, hp: Hyperparameters, action_dim: int) -> np.ndarray:
    """The policy's draws for one step of an episode, (n, A + K H), for the H hidden units of a critic in K passes.

    Each action has its noise, standard normal, and 1 for each unit that is kept, 0 for the others.
    """
    units = hp.n_passes * sum(hp.critic_hidden_dims)
    noise = generator.standard_normal((hp.n_action_samples, action_dim), np.float32)
    kept = generator.random((hp.n_action_samples, units), np.float32) >= hp.drop_rate
    return np.concatenate([noise, kept], axis=1, dtype=np.float32)


# ---- losses and update ---------------------------------------------------------------------------------------------


def adam(part: str, hp: Hyperparameters) -> optax.GradientTransformation:
    """The optimiser of one part of the state."""
    rates = {"encoder": hp.vae_lr, "decoder": hp.vae_lr, "actor": hp.actor_lr, "critic": hp.critic_lr}
    return optax.adam((rates | {"log_alpha": hp.alpha_lr})[part])


def gradient_step(state: "UWAC", part: str, gradient: Network | Array) -> "UWAC":
    """One step of Adam on one part of the state, down its gradient."""
    change, moments = adam(part, state.hp).update(gradient, getattr(state, f"{part}_optimizer"))
    return state.replace(**{part: optax.apply_updates(getattr(state, part), change), f"{part}_optimizer": moments})


def soft_update(target: Network, source: Network, tau: float) -> Network:
    """Polyak averaging: the target, moved a step of size tau towards the source."""
    return jax.tree.map(lambda old, new: (1.0 - tau) * old + tau * new, target, source)


def divergence(mean: Array, std: Array) -> Array:
    """The KL divergence (B, Z) of normal codes from the prior, for each component of the codes."""
    variance = square(std)
    return 0.5 * (variance + square(mean) - 1.0 - log(variance))


class UWAC(struct.PyTreeNode):
    """All that an update reads and writes."""

    encoder: Network
    decoder: Network
    actor: Network
    critic: Network
    directions: Network
    critic_target: Network
    target_directions: Network
    log_alpha: Array
    encoder_optimizer: optax.OptState
    decoder_optimizer: optax.OptState
    actor_optimizer: optax.OptState
    critic_optimizer: optax.OptState
    log_alpha_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)

    def vae_loss(self, vae: tuple[Network, Network], batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """The squared error of the reconstruction, and the code's divergence from its prior."""
        encoder, decoder = vae
        mean, std = encoder(batch.observations, batch.actions)
        reconstruction, _ = decoder(batch.observations, mean + std * noise.latent)
        assert reconstruction.shape == batch.actions.shape
        return square(reconstruction - batch.actions).mean() + self.hp.kl_weight * divergence(mean, std).mean(), {}

    def td_target(self, batch: Batch, noise: Noise) -> tuple[Array, Array]:
        """The regression target of both critics, (B,), and its variance (B,): the best sample's mix of values."""
        hp, actor, critic, directions = self.hp, self.actor, self.critic_target, self.target_directions
        actions = actor.module.max_action * tanh(raw_sample(actor, batch.next_observations, noise.target))
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

    def critic_loss(self, critic: Network, batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """The weighted squared errors of both critics to the same target, and a penalty on uncertain values."""
        hp, directions = self.hp, self.directions
        target, variance = self.td_target(batch, noise)
        q = critic(batch.observations, batch.actions, directions(), noise.dropout.critic)
        certainty = weight(hp, variance)
        assert q.shape[1:] == target.shape == certainty.shape
        doubt = exp(variance) if hp.exp_penalty else variance
        loss = square((q - target) * certainty).mean(axis=1) + hp.q_penalty * (relu(q) * doubt).mean(axis=1)
        return loss.sum(), {"weight": certainty.mean()}

    def mmd(self, batch: Batch, noise: Noise, own: Array) -> Array:
        """The MMD (B,) between the policy's samples (B, m, A) and actions like the data's: the root of MMD^2."""
        hp, decoder = self.hp, self.decoder
        observations = repeat(batch.observations, hp.n_mmd_action_samples)
        _, data = decoder(observations, clamp(noise.codes, -0.5, 0.5))
        alike = partial(kernel, name=hp.mmd_kernel, sigma=hp.mmd_sigma)
        return sqrt(alike(own, own) + alike(data, data) - 2.0 * alike(own, data) + 1e-6)

    def mmd_loss(self, actor: Network, batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """The policy's MMD beyond its limit, times its weight."""
        mmd = self.mmd(batch, noise, raw_sample(actor, batch.observations, noise.actor))
        return (exp(self.log_alpha) * (mmd - self.hp.alpha_threshold)).mean(), {"mmd": mmd}

    def actor_loss(self, actor: Network, batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """The same, and the smaller value of the first sample, weighted by the critics' certainty."""
        hp, critic, directions = self.hp, self.critic, self.directions
        own = raw_sample(actor, batch.observations, noise.actor)
        mmd = self.mmd(batch, noise, own)
        actions = actor.module.max_action * tanh(own[:, 0])
        values, variances = mean_and_variance(critic, directions, batch.observations, actions, noise.dropout.actor)
        q = amin(values, axis=0)
        if hp.weigh_actor:
            q = q * weight(hp, stop_gradient(variances).sum(axis=0))
        assert q.shape == mmd.shape
        return (exp(self.log_alpha) * (mmd - hp.alpha_threshold) - q).mean(), {"mmd": mmd}

    def alpha_loss(self, log_alpha: Array, mmd: Array) -> tuple[Array, dict[str, Array]]:
        """Raises the MMD's weight while the MMD (B,) is above its limit."""
        return -(exp(log_alpha) * (mmd - self.hp.alpha_threshold)).mean(), {}

    def update(self, batch: Batch, noise: Noise, warms_up: bool) -> tuple["UWAC", dict[str, Array]]:
        """One gradient step: the VAE; critics, policy and MMD's weight, all from the same networks; target critics."""
        state, hp = self, self.hp
        if is_key(noise.dropout):
            noise = noise._replace(dropout=draw_dropout(noise.dropout, hp))
        vae = (state.encoder, state.decoder)
        (vae_loss, _), gradients = value_and_grad(state.vae_loss, has_aux=True)(vae, batch, noise)
        state = gradient_step(state, "encoder", gradients[0])
        state = gradient_step(state, "decoder", gradients[1])
        state = state.replace(target_directions=iterated(state.target_directions, state.critic_target))
        state = state.replace(directions=iterated(state.directions, state.critic))
        differentiate = value_and_grad(state.critic_loss, has_aux=True)
        (critic_loss, metrics), critic_gradient = differentiate(state.critic, batch, noise)
        # The authors' networks iterate whenever they are called, and this is the second call.
        state = state.replace(directions=iterated(state.directions, state.critic))
        differentiate = value_and_grad(state.mmd_loss if warms_up else state.actor_loss, has_aux=True)
        (actor_loss, aux), actor_gradient = differentiate(state.actor, batch, noise)
        differentiate = value_and_grad(state.alpha_loss, has_aux=True)
        (alpha_loss, _), alpha_gradient = differentiate(state.log_alpha, aux["mmd"])
        state = gradient_step(state, "critic", critic_gradient)
        state = gradient_step(state, "actor", actor_gradient)
        state = gradient_step(state, "log_alpha", alpha_gradient)
        state = state.replace(log_alpha=clamp(state.log_alpha, -5.0, 10.0))
        state = state.replace(critic_target=soft_update(state.critic_target, state.critic, hp.tau))
        losses = {"vae": vae_loss, "critic": critic_loss, "actor": actor_loss, "alpha": alpha_loss}
        metrics |= {f"{name}_loss": loss for name, loss in losses.items()}
        return state, metrics | {"alpha": exp(state.log_alpha)}

    @property
    def acting(self) -> dict[str, Network]:
        """The networks that the policy needs."""
        return {"actor": self.actor, "critic": self.critic, "directions": self.directions}


@jax.jit
def act(acting: dict[str, Network], observations: Array, noise: Array) -> Array:
    """The best of n actions by the first critic, (E, A), for observations (E, S) and noise (E, n, A + K H)."""
    actor, critic, directions = acting["actor"], acting["critic"], acting["directions"]
    n, dims, action_dim = noise.shape[1], critic.module.hidden_dims, actor.module.action_dim
    actions = actor.module.max_action * tanh(raw_sample(actor, observations, noise[..., :action_dim]))
    units = noise[..., action_dim:].reshape(*noise.shape[:2], -1, sum(dims))
    kept = jnp.split(units, [*accumulate(dims[:-1])], axis=-1)
    q, _ = mean_and_variance(critic, directions, repeat(observations, n), actions, [kept])
    return pick(actions, argmax(q[0], axis=1))


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames=("num_updates", "warm_updates"), donate_argnames="state")
def train_interval(
    state: UWAC, key: Array, dataset: PackedDataset, start: Array, num_updates: int, warm_updates: int
) -> tuple[UWAC, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates`; the warm-up's updates are a separate scan."""
    action_dim = state.actor.module.action_dim

    def scan(state: UWAC, start: Array, number: int, warms_up: bool) -> tuple[UWAC, list[dict[str, Array]]]:
        def draw(step: Array) -> tuple[Array, Noise]:
            return draw_noise(key, step, state.hp, len(dataset), action_dim)

        def update(state: UWAC, draws: Any, place: int) -> tuple[UWAC, dict[str, Array]]:
            indices, noise = draws
            return state.update(take(dataset, indices), noise, warms_up)

        return scan_updates(update, draw, state, start, number)

    state, warm = scan(state, start, warm_updates, warms_up=True)
    state, history = scan(state, start + warm_updates, num_updates - warm_updates, warms_up=False)
    return state, warm + history


def create_train_state(key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> UWAC:
    """Fresh networks with the authors' initialisation."""
    hp, dims = narrow(config, Hyperparameters), config.critic_hidden_dims
    observations, actions, codes = (jnp.zeros((1, size)) for size in (state_dim, action_dim, 2 * action_dim))
    encoder_key, decoder_key, actor_key, critics_key, target_key = jax.random.split(key, 5)
    encoder = Network.create(Encoder(action_dim, config.vae_hidden_dims), encoder_key, observations, actions)
    decoder = Network.create(Decoder(action_dim, max_action, config.vae_hidden_dims), decoder_key, observations, codes)
    actor = Network.create(Actor(action_dim, max_action, config.actor_hidden_dims), actor_key, observations)

    def judge(key: Array) -> tuple[Network, Network]:
        critics_key, directions_key = jax.random.split(key)
        directions = Network.create(Directions(state_dim + action_dim, dims), directions_key)
        masks = [[jnp.ones((1, width)) for width in dims]] * 2
        module = Critics(dims, config.drop_rate, config.spectral_norm)
        return Network.create(module, critics_key, observations, actions, directions(), masks), directions

    critic, directions = judge(critics_key)
    # A donated state must not contain an array twice, so the target is a copy.
    copied = jax.tree.map(jnp.copy, (critic, directions))
    critic_target, target_directions = copied if config.copy_targets else judge(target_key)
    log_alpha = jnp.asarray(math.log(config.initial_alpha), dtype=float)
    parts: dict[str, Any] = {"encoder": encoder, "decoder": decoder, "actor": actor, "critic": critic}
    parts |= {"log_alpha": log_alpha}
    optimizers = {f"{name}_optimizer": adam(name, hp).init(part) for name, part in parts.items()}
    parts |= {"directions": directions, "critic_target": critic_target, "target_directions": target_directions}
    return UWAC(**parts, **optimizers, hp=hp)


def train(config: TrainConfig) -> Run:
    """Trains, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used.
    """
    task = load_task(config, Preparation(normalise=config.normalize))
    device = resolve_device(config.device)
    enable_compilation_cache()
    with jax.default_device(device):
        weights_key, draws_key = jax.random.split(jax.random.key(config.seed))
        state = create_train_state(weights_key, config, task.state_dim, task.action_dim, task.max_action)
        run = Run(config, task, "uwac", "jax", device)
        state, total_it = restore(run, partial(load_checkpoint, algorithm="uwac", state=state), state)
        dataset = to_device(task.dataset)
        draw = partial(draw_acting_noise, hp=state.hp, action_dim=task.action_dim)
        sampling = partial(SampledPolicy, draw=draw, seed=config.seed)
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, act, state.acting, asking=sampling)
            history = History(run)
            for start, step in run.calls(cost=5):
                num_updates = step - start
                warm_updates = min(max(config.imitation_steps - total_it - start, 0), num_updates)
                state, found = train_together(
                    train_interval, state, draws_key, dataset, start, num_updates, warm_updates
                )
                history.add(num_updates, found)
                write = partial(save_checkpoint, algorithm="uwac", state=state, total_it=total_it + step)
                if run.is_due(step):
                    run.log(step, history.means())
                    run.save(step, write)
                    evaluate(run, step, act, state.acting, asking=sampling)
                elif run.stopping:
                    run.save(step, partial(write, history=history.content()))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "uwac")
