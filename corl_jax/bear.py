"""BEAR in JAX: an MMD keeps the policy's distribution of actions near the data's. Its twin: `corl_torch/bear.py`.

Kumar, Fu, Tucker & Levine, Stabilizing Off-Policy Q-Learning via Bootstrapping Error Reduction, 2019,
https://arxiv.org/abs/1906.00949
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from shared.runs.start import cli

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax import struct
from jax import Array, value_and_grad
from jax.numpy import amax, amin, argmax, concatenate, exp, log, sqrt, square, stack, tanh, tile, where

from shared.data.transitions import Batch
from shared.envs.evaluation import SampledPolicy
from shared.frameworks.jax_calls import History
from shared.frameworks.jax_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, take, to_device
from shared.frameworks.jax_layers import Linear, Network, clamp, pick, softplus
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


def hidden(hidden_dims: Sequence[int]) -> list[Any]:
    """Hidden layers with ReLU."""
    return [layer for width in hidden_dims for layer in (Linear(width), nn.relu)]


def mlp(hidden_dims: Sequence[int], output_dim: int) -> nn.Sequential:
    """Hidden layers with ReLU, then a linear layer."""
    return nn.Sequential([*hidden(hidden_dims), Linear(output_dim)])


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
    """The VAE's decoder: from a code to an action, with and without tanh."""

    action_dim: int
    max_action: float
    hidden_dims: Sequence[int]
    squashed: bool

    def setup(self) -> None:
        self.net = mlp(self.hidden_dims, self.action_dim)

    def __call__(self, observations: Array, codes: Array) -> tuple[Array, Array]:
        """The actions (..., A) of codes (..., Z) in observations (..., S), and the form that the MMD compares."""
        raw = self.net(concatenate([observations, codes], axis=-1))
        actions, compared = (tanh(raw), raw) if self.squashed else (raw, tanh(raw))
        return self.max_action * actions, compared


class Actor(nn.Module):
    """The policy: a normal distribution whose samples are squashed by tanh to be within [-max_action, max_action]."""

    action_dim: int
    max_action: float
    hidden_dims: Sequence[int]

    def setup(self) -> None:
        self.net = nn.Sequential(hidden(self.hidden_dims))
        self.mean = Linear(self.action_dim)
        self.log_std = Linear(self.action_dim)

    def __call__(self, observations: Array) -> tuple[Array, Array]:
        """Mean and standard deviation (B, A) before the tanh, for observations (B, S)."""
        encoded = self.net(observations)
        return self.mean(encoded), exp(clamp(self.log_std(encoded), -20.0, 2.0))


class Critics(nn.Module):
    """N critics Q(s, a) with separate weights."""

    hidden_dims: Sequence[int]
    n_critics: int

    def setup(self) -> None:
        self.members = [mlp(self.hidden_dims, 1) for _ in range(self.n_critics)]

    def __call__(self, observations: Array, actions: Array) -> Array:
        """The values (N, ...) of actions (..., A) in observations (..., S)."""
        inputs = concatenate([observations, actions], axis=-1)
        return stack([member(inputs).squeeze(-1) for member in self.members])


def raw_sample(actor: Network, observations: Array, noise: Array) -> Array:
    """The policy's samples (B, n, A) before the tanh, for observations (B, S) and noise (B, n, A)."""
    mean, std = actor(observations)
    return mean[:, None] + std[:, None] * noise


def sample(actor: Network, observations: Array, noise: Array) -> tuple[Array, Array]:
    """The policy's actions (B, n, A) for observations (B, S) and noise (B, n, A), and their log-densities (B, n)."""
    mean, std = (moment[:, None] for moment in actor(observations))
    raw = mean + std * noise
    log_slope = 2.0 * (LOG_2 - raw - softplus(-2.0 * raw))
    log_density = -square(raw - mean) / (2.0 * square(std)) - log(std) - LOG_SQRT_2PI
    return actor.module.max_action * tanh(raw), (log_density - log_slope).sum(axis=-1)


LOG_2, LOG_SQRT_2PI = math.log(2.0), math.log(math.sqrt(2.0 * math.pi))


def kernel(x: Array, y: Array, name: str, sigma: float) -> Array:
    """The kernel of actions x (B, n, A) and y (B, m, A), averaged over all pairs, (B,)."""
    difference = x[:, :, None] - y[:, None]
    distance = square(difference) if name == "gaussian" else abs(difference)
    return exp(-distance.sum(axis=-1) / (2.0 * sigma)).mean(axis=(1, 2))


def smallest(q: Array) -> Array:
    """The smallest (B,) of N values (N, B); its gradient goes to the first critic with this value."""
    is_first = jnp.arange(len(q))[:, None] == q.argmin(axis=0)
    return where(is_first, q, 0.0).sum(axis=0)


def repeat(observations: Array, n: int) -> Array:
    """The observations (B, S), each repeated n times: (B, n, S)."""
    return tile(observations[:, None], (1, n, 1))


# ---- randomness ----------------------------------------------------------------------------------------------------


class Compared(NamedTuple):
    """The random numbers for an MMD."""

    # Standard normal, (B, n, Z): the codes of actions like the data's
    codes: Array
    # Standard normal, (B, n, A): the policy's actions
    actor: Array


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    # Standard normal, (B, Z): the VAE's codes
    latent: Array
    # Standard normal, (B, 1, A): the actions that the temperature learns from; None if it has no separate step
    temp: Array | None
    # The MMD that its weight learns from; None if the weight has no separate step
    alpha: Compared | None
    # Standard normal, (B, n, A): the target's next actions
    target: Array
    # Standard normal, (B, 1, A): the actions whose value the policy learns to raise; None in the warm-up
    actor: Array | None
    # The MMD that the policy learns from
    mmd: Compared


def draw_noise(
    key: Array, step: Array, hp: Hyperparameters, dataset_size: int, action_dim: int, warms_up: bool
) -> tuple[Array, Noise]:
    """An update's batch indices (B,) and its noise, which depend on the key and on the update's number alone."""
    index_key, *keys = jax.random.split(jax.random.fold_in(key, step), 9)
    indices, code_dim = jax.random.randint(index_key, (hp.batch_size,), 0, dataset_size), 2 * action_dim

    def normal(n: int, size: int) -> Array:
        return jax.random.normal(keys.pop(), (hp.batch_size, n, size))

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
    return indices, noise


def draw_acting_noise(generator: np.random.Generator, hp: Hyperparameters, action_dim: int) -> np.ndarray:
    """The noise of the policy's actions for one step of an episode: standard normal, (n, A)."""
    return generator.standard_normal((hp.n_action_samples, action_dim))


# ---- losses and update ---------------------------------------------------------------------------------------------


def adam(part: str, hp: Hyperparameters) -> optax.GradientTransformation:
    """The optimiser of one part of the state."""
    rates = {"encoder": hp.vae_lr, "decoder": hp.vae_lr, "actor": hp.actor_lr, "critic": hp.critic_lr}
    rates |= {"log_temperature": hp.temperature_lr, "log_alpha": hp.alpha_lr if hp.mmd_in_actor else hp.actor_lr}
    return optax.adam(rates[part])


def gradient_step(state: "BEAR", part: str, gradient: Network | Array) -> "BEAR":
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


class BEAR(struct.PyTreeNode):
    """All that an update reads and writes."""

    encoder: Network
    decoder: Network
    actor: Network
    critic: Network
    log_temperature: Array
    log_alpha: Array
    critic_target: Network
    encoder_optimizer: optax.OptState
    decoder_optimizer: optax.OptState
    actor_optimizer: optax.OptState
    critic_optimizer: optax.OptState
    log_temperature_optimizer: optax.OptState
    log_alpha_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)

    def vae_loss(self, vae: tuple[Network, Network], batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """The squared error of the reconstruction, and the code's divergence from its prior."""
        encoder, decoder = vae
        mean, std = encoder(batch.observations, batch.actions)
        reconstruction, _ = decoder(batch.observations, mean + std * noise.latent)
        assert reconstruction.shape == batch.actions.shape
        return square(reconstruction - batch.actions).mean() + self.hp.kl_weight * divergence(mean, std).mean(), {}

    def td_target(self, batch: Batch, noise: Noise) -> Array:
        """The regression target of all critics, (B,): the best sample's mix of target values, with its entropy."""
        hp, actor, critic = self.hp, self.actor, self.critic_target
        actions, log_prob = sample(actor, batch.next_observations, noise.target)
        q = critic(repeat(batch.next_observations, hp.n_target_samples), actions)
        mixed = hp.lam * amin(q, axis=0) + (1.0 - hp.lam) * amax(q, axis=0)
        log_prob = pick(log_prob[..., None], argmax(mixed, axis=1)).squeeze(1)
        next_v = amax(mixed, axis=1) - exp(self.log_temperature) * log_prob
        assert next_v.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + hp.discount * next_v * (1.0 - batch.terminals)

    def critic_loss(self, critic: Network, batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """The squared errors of all critics to the same target, added up over the critics."""
        target = self.td_target(batch, noise)
        q = critic(batch.observations, batch.actions)
        assert q.shape[1:] == target.shape
        return square(q - target).mean(axis=1).sum(), {}

    def mmd(self, actor: Network, batch: Batch, noise: Compared) -> Array:
        """The MMD (B,) between the policy's samples and actions like the data's: the root of its square."""
        hp, decoder = self.hp, self.decoder
        observations = repeat(batch.observations, hp.n_mmd_action_samples)
        _, data = decoder(observations, clamp(noise.codes, -0.5, 0.5))
        own = raw_sample(actor, batch.observations, noise.actor)
        alike = partial(kernel, name=hp.mmd_kernel, sigma=hp.mmd_sigma)
        return sqrt(alike(own, own) + alike(data, data) - 2.0 * alike(own, data) + 1e-6)

    def temp_loss(self, log_temperature: Array, batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """Raises the temperature while the policy's entropy is below minus the number of action components."""
        actor, action_dim = self.actor, batch.actions.shape[1]
        drawn = noise.actor if noise.temp is None else noise.temp
        assert drawn is not None
        _, log_prob = sample(actor, batch.observations, drawn)
        return -(exp(log_temperature) * (log_prob - action_dim)).mean(), {}

    def alpha_loss(self, log_alpha: Array, batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """Raises the MMD's weight while the MMD is above its limit."""
        mmd = self.mmd(self.actor, batch, noise.mmd if noise.alpha is None else noise.alpha)
        return -(exp(log_alpha) * (mmd - self.hp.alpha_threshold)).mean(), {}

    def mmd_loss(self, actor: Network, batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """The policy's MMD beyond its limit, times its weight."""
        return (exp(self.log_alpha) * (self.mmd(actor, batch, noise.mmd) - self.hp.alpha_threshold)).mean(), {}

    def sac_loss(self, actor: Network, batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """The smallest value of the policy's action, plus its entropy."""
        critic = self.critic
        assert noise.actor is not None
        actions, log_prob = (drawn.squeeze(1) for drawn in sample(actor, batch.observations, noise.actor))
        q = smallest(critic(batch.observations, actions))
        assert q.shape == log_prob.shape
        return (exp(self.log_temperature) * log_prob - q).mean(), {}

    def actor_loss(self, actor: Network, batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """The sum of the policy's two losses."""
        sac_loss, _ = self.sac_loss(actor, batch, noise)
        mmd_loss, _ = self.mmd_loss(actor, batch, noise)
        return sac_loss + mmd_loss, {}

    def step_temp(self, batch: Batch, noise: Noise) -> tuple["BEAR", dict[str, Array]]:
        """One step of the temperature."""
        (loss, _), gradient = value_and_grad(self.temp_loss, has_aux=True)(self.log_temperature, batch, noise)
        state = gradient_step(self, "log_temperature", gradient)
        return state, {"temp_loss": loss, "temp": exp(state.log_temperature)}

    def step_alpha(self, batch: Batch, noise: Noise) -> tuple["BEAR", dict[str, Array]]:
        """One step of the MMD's weight, which stays within its bounds."""
        (loss, _), gradient = value_and_grad(self.alpha_loss, has_aux=True)(self.log_alpha, batch, noise)
        state = gradient_step(self, "log_alpha", gradient)
        state = state.replace(log_alpha=clamp(state.log_alpha, -5.0, 10.0))
        return state, {"alpha_loss": loss, "alpha": exp(state.log_alpha)}

    def step_weights(self, batch: Batch, noise: Noise) -> tuple["BEAR", dict[str, Array]]:
        """One step of the temperature, if it learns, and one of the MMD's weight."""
        state, metrics = self.step_temp(batch, noise) if self.hp.temperature_lr > 0.0 else (self, {})
        state, own = state.step_alpha(batch, noise)
        return state, metrics | own

    def step_actor(self, batch: Batch, noise: Noise, warms_up: bool) -> tuple["BEAR", dict[str, Array]]:
        """One step of the policy, in the paper's form."""
        loss_of = self.mmd_loss if warms_up else self.actor_loss
        (loss, _), gradient = value_and_grad(loss_of, has_aux=True)(self.actor, batch, noise)
        return gradient_step(self, "actor", gradient), {"actor_loss": loss}

    def step_all(self, batch: Batch, noise: Noise) -> tuple["BEAR", dict[str, Array]]:
        """One step of temperature, policy and MMD's weight, as in d3rlpy 2.8.1: the MMD only moves its weight.

        The weight's loss is the negative of the policy's, so that the MMD's two gradients cancel in the policy.
        """
        state, metrics = self.step_temp(batch, noise)
        (sac_loss, _), gradient = value_and_grad(state.sac_loss, has_aux=True)(state.actor, batch, noise)
        state, own = state.step_alpha(batch, noise)
        state = gradient_step(state, "actor", gradient)
        mmd_loss = -own["alpha_loss"]
        return state, {**metrics, "mmd_loss": mmd_loss, "actor_loss": sac_loss + mmd_loss, "alpha": own["alpha"]}

    def update(self, batch: Batch, noise: Noise, warms_up: bool) -> tuple["BEAR", dict[str, Array]]:
        """One gradient step: the VAE; temperature and MMD's weight; critics; policy; target critics."""
        state, hp = self, self.hp
        vae = (state.encoder, state.decoder)
        (loss, _), gradients = value_and_grad(state.vae_loss, has_aux=True)(vae, batch, noise)
        state = gradient_step(state, "encoder", gradients[0])
        state = gradient_step(state, "decoder", gradients[1])
        metrics = {"vae_loss": loss}
        if hp.mmd_in_actor:
            state, own = state.step_weights(batch, noise)
            metrics |= own
        (loss, _), gradient = value_and_grad(state.critic_loss, has_aux=True)(state.critic, batch, noise)
        state = gradient_step(state, "critic", gradient)
        metrics["critic_loss"] = loss
        if hp.mmd_in_actor or warms_up:
            state, own = state.step_actor(batch, noise, warms_up)
        else:
            state, own = state.step_all(batch, noise)
        state = state.replace(critic_target=soft_update(state.critic_target, state.critic, hp.tau))
        return state, metrics | own

    @property
    def acting(self) -> dict[str, Network]:
        """The networks that the policy needs."""
        return {"actor": self.actor, "critic": self.critic}


@jax.jit
def act(acting: dict[str, Network], observations: Array, noise: Array) -> Array:
    """The policy's actions (E, A) for observations (E, S) and noise (E, n, A): the best of n by the first critic."""
    actions, _ = sample(acting["actor"], observations, noise)
    best = argmax(acting["critic"](repeat(observations, noise.shape[1]), actions)[0], axis=1)
    return pick(actions, best)


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames=("num_updates", "warm_updates"), donate_argnames="state")
def train_interval(
    state: BEAR, key: Array, dataset: PackedDataset, start: Array, num_updates: int, warm_updates: int
) -> tuple[BEAR, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates`; the warm-up's updates are a separate scan."""
    action_dim = state.actor.module.action_dim

    def scan(state: BEAR, start: Array, number: int, warms_up: bool) -> tuple[BEAR, list[dict[str, Array]]]:
        def draw(step: Array) -> tuple[Array, Noise]:
            return draw_noise(key, step, state.hp, len(dataset), action_dim, warms_up)

        def update(state: BEAR, drawn: Any, place: int) -> tuple[BEAR, dict[str, Array]]:
            indices, noise = drawn
            return state.update(take(dataset, indices), noise, warms_up)

        return scan_updates(update, draw, state, start, number)

    state, warm = scan(state, start, warm_updates, warms_up=True)
    state, history = scan(state, start + warm_updates, num_updates - warm_updates, warms_up=False)
    return state, warm + history


def create_train_state(key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> BEAR:
    """Fresh networks with PyTorch's initialisation."""
    hp = narrow(config, Hyperparameters)
    observations, actions, codes = (jnp.zeros((1, size)) for size in (state_dim, action_dim, 2 * action_dim))
    encoder_key, decoder_key, actor_key, critics_key = jax.random.split(key, 4)
    encoder = Network.create(Encoder(action_dim, config.vae_hidden_dims), encoder_key, observations, actions)
    decoder_module = Decoder(action_dim, max_action, config.vae_hidden_dims, config.vae_tanh)
    decoder = Network.create(decoder_module, decoder_key, observations, codes)
    actor = Network.create(Actor(action_dim, max_action, config.actor_hidden_dims), actor_key, observations)
    critic = Network.create(Critics(config.critic_hidden_dims, config.n_critics), critics_key, observations, actions)
    log_temperature, log_alpha = (
        jnp.asarray(math.log(x), dtype=float) for x in (config.initial_temperature, config.initial_alpha)
    )
    parts: dict[str, Any] = {"encoder": encoder, "decoder": decoder, "actor": actor, "critic": critic}
    parts |= {"log_temperature": log_temperature, "log_alpha": log_alpha}
    optimizers = {f"{name}_optimizer": adam(name, hp).init(part) for name, part in parts.items()}
    # A donated state must not contain an array twice, so the target is a copy.
    return BEAR(**parts, critic_target=jax.tree.map(jnp.copy, critic), **optimizers, hp=hp)


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
        run = Run(config, task, "bear", "jax", device)
        state, total_it = restore(run, partial(load_checkpoint, algorithm="bear", state=state), state)
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
                write = partial(save_checkpoint, algorithm="bear", state=state, total_it=total_it + step)
                if run.is_due(step):
                    run.log(step, history.means())
                    run.save(step, write)
                    evaluate(run, step, act, state.acting, asking=sampling)
                elif run.stopping:
                    run.save(step, partial(write, history=history.content()))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "bear")
