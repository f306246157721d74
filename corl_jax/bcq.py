"""BCQ in JAX: the best of several actions that a VAE makes like the data's. Its twin is `corl_torch/bcq.py`.

Fujimoto, Meger & Precup, Off-Policy Deep Reinforcement Learning without Exploration, 2018,
https://arxiv.org/abs/1812.02900
"""

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
from jax.numpy import amax, amin, argmax, concatenate, exp, log, square, stack, tanh, tile

from shared.data.transitions import Batch
from shared.envs.evaluation import SampledPolicy
from shared.frameworks.jax_calls import History
from shared.frameworks.jax_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, take, to_device
from shared.frameworks.jax_layers import Linear, Network, clamp, pick
from shared.frameworks.jax_products import EigenProgram
from shared.frameworks.jax_scan import scan_updates
from shared.frameworks.jax_seeds import train_together
from shared.frameworks.jax_side import enable_compilation_cache, evaluate, narrow, resolve_device
from shared.runs.fields import bounded, positive, widths
from shared.runs.run import Run
from shared.runs.settings import TransitionsConfig
from shared.runs.task import Preparation, load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Learning rate of the perturbation
    actor_lr: float = positive(1e-3)
    # Learning rate of the critics
    critic_lr: float = positive(1e-3)
    # Learning rate of the VAE
    vae_lr: float = positive(1e-3)
    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Rate at which the targets follow their networks
    tau: float = bounded(0.005, low=0, high=1)
    # Weight of the smallest target value relative to the largest one
    lam: float = bounded(0.75, low=0, high=1)
    # Weight of the VAE's divergence from its prior relative to its reconstruction
    kl_weight: float = bounded(0.5, low=0)
    # Updates of the VAE alone, before all others; the VAE continues to learn in those
    vae_iterations: int = bounded(0, low=0)
    # Actions sampled in each state, of which the policy takes the best one
    n_action_samples: int = bounded(100, low=1)
    # Actions sampled in each next state for the critics' target; null: the same number as the policy samples
    n_target_samples: int | None = bounded(None, low=1)
    # Transitions in a batch
    batch_size: int = bounded(100, low=1)

    @property
    def target_samples(self) -> int:
        """The number of actions sampled in each next state for the critics' target."""
        return self.n_target_samples or self.n_action_samples


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, TransitionsConfig):
    """The settings of a whole run."""

    group: str = "BCQ-D4RL"
    name: str = "BCQ"
    # Updates between two evaluations
    eval_freq: int = bounded(1000, low=1)
    # Updates in all, including the VAE's own
    max_timesteps: int = bounded(500_000, low=1)
    # Critics
    n_critics: int = bounded(2, low=1)
    # Widths of the perturbation's hidden layers
    actor_hidden_dims: tuple[int, ...] = widths(400, 300)
    # Widths of the critics' hidden layers
    critic_hidden_dims: tuple[int, ...] = widths(400, 300)
    # Widths of the hidden layers of the VAE's encoder and decoder
    vae_hidden_dims: tuple[int, ...] = widths(750, 750)
    # Largest change of an action by the perturbation, in units of the largest action
    action_flexibility: float = bounded(0.05, low=0)
    # Squash the decoded action by tanh, as in the authors' code; d3rlpy from 2.1.0 to 2.8.1 does not
    vae_tanh: bool = True
    # Start the target perturbation as a copy; d3rlpy from 2.1.0 to 2.8.1 initialises it separately
    copy_target_policy: bool = True
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
    """The VAE's decoder: from a code to an action, within [-max_action, max_action] if it is squashed."""

    action_dim: int
    max_action: float
    hidden_dims: Sequence[int]
    squashed: bool

    def setup(self) -> None:
        self.net = mlp(self.hidden_dims, self.action_dim)

    def __call__(self, observations: Array, codes: Array) -> Array:
        """The actions (..., A) of codes (..., Z) in observations (..., S)."""
        actions = self.net(concatenate([observations, codes], axis=-1))
        return self.max_action * (tanh(actions) if self.squashed else actions)


class Actor(nn.Module):
    """The perturbation: it changes an action by at most `action_flexibility`."""

    action_dim: int
    max_action: float
    hidden_dims: Sequence[int]
    action_flexibility: float

    def setup(self) -> None:
        self.net = mlp(self.hidden_dims, self.action_dim)

    def __call__(self, observations: Array, actions: Array) -> Array:
        """The given actions (..., A), changed within their bounds, in observations (..., S)."""
        change = tanh(self.net(concatenate([observations, actions], axis=-1)))
        scale = self.action_flexibility * self.max_action
        return clamp(actions + scale * change, -self.max_action, self.max_action)


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


def sample(actor: Network, decoder: Network, observations: Array, noise: Array) -> Array:
    """Actions (..., A) like the data's in observations (..., S): codes near the prior's mean, decoded and changed."""
    return actor(observations, decoder(observations, clamp(noise, -0.5, 0.5)))


def repeat(observations: Array, n: int) -> Array:
    """The observations (B, S), each repeated n times: (B, n, S)."""
    return tile(observations[:, None], (1, n, 1))


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    # Standard normal, (B, Z): the VAE's codes
    latent: Array
    # Standard normal, (B, n, Z): the codes of the target's actions; None in updates of the VAE alone
    target: Array | None
    # Standard normal, (B, Z): the code of the action that the perturbation learns to change; None in the same updates
    actor: Array | None


def draw_noise(
    key: Array, step: Array, hp: Hyperparameters, dataset_size: int, action_dim: int, pretrains: bool
) -> tuple[Array, Noise]:
    """An update's batch indices (B,) and its noise, which depend on the key and on the update's number alone."""
    index_key, latent_key, target_key, actor_key = jax.random.split(jax.random.fold_in(key, step), 4)
    indices, code_dim = jax.random.randint(index_key, (hp.batch_size,), 0, dataset_size), 2 * action_dim
    latent = jax.random.normal(latent_key, (hp.batch_size, code_dim))
    if pretrains:
        return indices, Noise(latent, None, None)
    target = jax.random.normal(target_key, (hp.batch_size, hp.target_samples, code_dim))
    actor = jax.random.normal(actor_key, (hp.batch_size, code_dim))
    return indices, Noise(latent, target, actor)


def draw_acting_noise(generator: np.random.Generator, hp: Hyperparameters, action_dim: int) -> np.ndarray:
    """The codes of the policy's actions for one step of an episode: standard normal, (n, Z)."""
    return generator.standard_normal((hp.n_action_samples, 2 * action_dim))


# ---- losses and update ---------------------------------------------------------------------------------------------


def adam(part: str, hp: Hyperparameters) -> optax.GradientTransformation:
    """The optimiser of one part of the state."""
    rates = {"encoder": hp.vae_lr, "decoder": hp.vae_lr, "actor": hp.actor_lr, "critic": hp.critic_lr}
    return optax.adam(rates[part])


def gradient_step(state: "BCQ", part: str, gradient: Network) -> "BCQ":
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


class BCQ(struct.PyTreeNode):
    """All that an update reads and writes."""

    encoder: Network
    decoder: Network
    actor: Network
    critic: Network
    actor_target: Network
    critic_target: Network
    encoder_optimizer: optax.OptState
    decoder_optimizer: optax.OptState
    actor_optimizer: optax.OptState
    critic_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)

    def vae_loss(self, vae: tuple[Network, Network], batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """The squared error of the reconstruction, and the code's divergence from its prior."""
        encoder, decoder = vae
        mean, std = encoder(batch.observations, batch.actions)
        reconstruction = decoder(batch.observations, mean + std * noise.latent)
        assert reconstruction.shape == batch.actions.shape
        return square(reconstruction - batch.actions).mean() + self.hp.kl_weight * divergence(mean, std).mean(), {}

    def td_target(self, batch: Batch, noise: Noise) -> Array:
        """The regression target of all critics, (B,): the best sampled action's mix of target values."""
        hp, actor, decoder, critic = self.hp, self.actor_target, self.decoder, self.critic_target
        assert noise.target is not None
        next_observations = repeat(batch.next_observations, hp.target_samples)
        q = critic(next_observations, sample(actor, decoder, next_observations, noise.target))
        next_q = amax(hp.lam * amin(q, axis=0) + (1.0 - hp.lam) * amax(q, axis=0), axis=1)
        assert next_q.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + hp.discount * next_q * (1.0 - batch.terminals)

    def critic_loss(self, critic: Network, batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """The squared errors of all critics to the same target, added up over the critics."""
        target = self.td_target(batch, noise)
        q = critic(batch.observations, batch.actions)
        assert q.shape[1:] == target.shape
        return square(q - target).mean(axis=1).sum(), {}

    def actor_loss(self, actor: Network, batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """The first critic's value of a sampled action, after the perturbation's change."""
        decoder, critic = self.decoder, self.critic
        assert noise.actor is not None
        q = critic(batch.observations, sample(actor, decoder, batch.observations, noise.actor))
        return -q[0].mean(), {}

    def update(self, batch: Batch, noise: Noise, pretrains: bool) -> tuple["BCQ", dict[str, Array]]:
        """One gradient step: the VAE; later also the critics, on its new decoder, the perturbation and the targets."""
        state, hp = self, self.hp
        vae = (state.encoder, state.decoder)
        (loss, _), gradients = value_and_grad(state.vae_loss, has_aux=True)(vae, batch, noise)
        state = gradient_step(state, "encoder", gradients[0])
        state = gradient_step(state, "decoder", gradients[1])
        metrics = {"vae_loss": loss}
        if pretrains:
            return state, metrics
        (loss, _), gradient = value_and_grad(state.critic_loss, has_aux=True)(state.critic, batch, noise)
        state = gradient_step(state, "critic", gradient)
        metrics["critic_loss"] = loss
        (loss, _), gradient = value_and_grad(state.actor_loss, has_aux=True)(state.actor, batch, noise)
        state = gradient_step(state, "actor", gradient)
        metrics["actor_loss"] = loss
        state = state.replace(
            actor_target=soft_update(state.actor_target, state.actor, hp.tau),
            critic_target=soft_update(state.critic_target, state.critic, hp.tau),
        )
        return state, metrics

    @property
    def acting(self) -> dict[str, Network]:
        """The networks that the policy needs."""
        return {"actor": self.actor, "decoder": self.decoder, "critic": self.critic}


@jax.jit
def act(acting: dict[str, Network], observations: Array, noise: Array) -> Array:
    """The policy's actions (E, A) for observations (E, S) and noise (E, n, Z): the best of n by the first critic."""
    observations = repeat(observations, noise.shape[1])
    actions = sample(acting["actor"], acting["decoder"], observations, noise)
    best = argmax(acting["critic"](observations, actions)[0], axis=1)
    return pick(actions, best)


# ---- training ------------------------------------------------------------------------------------------------------


@partial(EigenProgram, static_argnames=("num_updates", "vae_updates"), donate_argnames="state")
def train_interval(
    state: BCQ, key: Array, dataset: PackedDataset, start: Array, num_updates: int, vae_updates: int
) -> tuple[BCQ, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates`; the updates of the VAE alone are a separate scan."""
    action_dim = state.actor.module.action_dim

    def scan(state: BCQ, start: Array, number: int, pretrains: bool) -> tuple[BCQ, list[dict[str, Array]]]:
        def draw(step: Array) -> tuple[Array, Noise]:
            return draw_noise(key, step, state.hp, len(dataset), action_dim, pretrains)

        def update(state: BCQ, drawn: Any, place: int) -> tuple[BCQ, dict[str, Array]]:
            indices, noise = drawn
            return state.update(take(dataset, indices), noise, pretrains)

        return scan_updates(update, draw, state, start, number)

    state, pretraining = scan(state, start, vae_updates, pretrains=True)
    state, history = scan(state, start + vae_updates, num_updates - vae_updates, pretrains=False)
    return state, pretraining + history


def create_train_state(key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> BCQ:
    """Fresh networks with PyTorch's initialisation."""
    hp, dims = narrow(config, Hyperparameters), config.actor_hidden_dims
    observations, actions, codes = (jnp.zeros((1, size)) for size in (state_dim, action_dim, 2 * action_dim))
    encoder_key, decoder_key, actor_key, target_key, critics_key = jax.random.split(key, 5)
    encoder = Network.create(Encoder(action_dim, config.vae_hidden_dims), encoder_key, observations, actions)
    decoder_module = Decoder(action_dim, max_action, config.vae_hidden_dims, config.vae_tanh)
    decoder = Network.create(decoder_module, decoder_key, observations, codes)
    actor_module = Actor(action_dim, max_action, dims, config.action_flexibility)
    actor = Network.create(actor_module, actor_key, observations, actions)
    critic = Network.create(Critics(config.critic_hidden_dims, config.n_critics), critics_key, observations, actions)
    networks = {"encoder": encoder, "decoder": decoder, "actor": actor, "critic": critic}
    optimizers = {f"{part}_optimizer": adam(part, hp).init(network) for part, network in networks.items()}
    # A donated state must not contain an array twice, so the targets are copies.
    actor_target, critic_target = jax.tree.map(jnp.copy, (actor, critic))
    if not config.copy_target_policy:
        actor_target = Network.create(actor_module, target_key, observations, actions)
    return BCQ(**networks, actor_target=actor_target, critic_target=critic_target, **optimizers, hp=hp)


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
        run = Run(config, task, "bcq", "jax", device)
        state, total_it = restore(run, partial(load_checkpoint, algorithm="bcq", state=state), state)
        dataset = to_device(task.dataset)
        draw = partial(draw_acting_noise, hp=state.hp, action_dim=task.action_dim)
        sampling = partial(SampledPolicy, draw=draw, seed=config.seed)
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, act, state.acting, asking=sampling)
            history = History(run)
            for start, step in run.calls(cost=5):
                num_updates = step - start
                vae_updates = min(max(config.vae_iterations - total_it - start, 0), num_updates)
                state, found = train_together(
                    train_interval, state, draws_key, dataset, start, num_updates, vae_updates
                )
                history.add(num_updates, found)
                write = partial(save_checkpoint, algorithm="bcq", state=state, total_it=total_it + step)
                if run.is_due(step):
                    run.log(step, history.means())
                    run.save(step, write)
                    evaluate(run, step, act, state.acting, asking=sampling)
                elif run.stopping:
                    run.save(step, partial(write, history=history.content()))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "bcq")
