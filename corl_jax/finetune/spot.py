"""SPOT in JAX, offline to online: TD3 with actions that must be likely under a VAE; online, less and less so.

Its twin is `corl_torch/finetune/spot.py`.

Wu et al., Supported Policy Optimization for Offline Reinforcement Learning, 2022, https://arxiv.org/abs/2202.06239
"""

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from shared.runs.start import cli

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct
from jax import Array, value_and_grad
from jax.lax import stop_gradient
from jax.numpy import broadcast_to, clip, concatenate, exp, log, maximum, minimum, square, tanh
from jax.scipy.special import logsumexp

from shared.data.online import OnlineExperience
from shared.data.rewards import CorlRewards
from shared.data.transitions import Batch
from shared.frameworks.jax_calls import History
from shared.frameworks.jax_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, take, to_device
from shared.frameworks.jax_layers import Linear, Network, clamp
from shared.frameworks.jax_online import Online
from shared.frameworks.jax_ring import Ring, push
from shared.frameworks.jax_scan import scan_updates
from shared.frameworks.jax_seeds import train_together
from shared.frameworks.jax_side import enable_compilation_cache, evaluate, narrow, resolve_device
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

    action_dim: int
    latent_dim: int
    max_action: float
    hidden_dim: int

    def setup(self) -> None:
        self.encoder_shared = nn.Sequential([*hidden(self.hidden_dim)])
        self.mean = Linear(self.latent_dim)
        self.log_std = Linear(self.latent_dim)
        self.decoder = nn.Sequential([*hidden(self.hidden_dim), Linear(self.action_dim)])

    def __call__(self, observations: Array, actions: Array, latent: Array) -> tuple[Array, Array, Array]:
        """Reconstructed actions (B, K, A) for noise (B, K, Z); the code's mean and standard deviation, (B, Z) each."""
        encoded = self.encoder_shared(concatenate([observations, actions], axis=-1))
        mean, std = self.mean(encoded), exp(clamp(self.log_std(encoded), -4.0, 15.0))
        codes = mean[:, None] + std[:, None] * latent
        states = broadcast_to(observations[:, None], (*codes.shape[:-1], observations.shape[-1]))
        return self.max_action * tanh(self.decoder(concatenate([states, codes], axis=-1))), mean, std


class Actor(nn.Module):
    """The deterministic policy: (B, S) to (B, A), within [-max_action, max_action]."""

    action_dim: int
    max_action: float
    init_w: float | None

    def setup(self) -> None:
        last = head(self.action_dim, self.init_w)
        self.net = nn.Sequential([*hidden(256), last, nn.tanh])

    def __call__(self, observations: Array) -> Array:
        """The actions (B, A) for observations (B, S)."""
        return self.max_action * self.net(observations)


class Critic(nn.Module):
    """Q(s, a): (B, S) and (B, A) to (B,)."""

    init_w: float | None

    def setup(self) -> None:
        last = head(1, self.init_w)
        self.net = nn.Sequential([*hidden(256), last])

    def __call__(self, observations: Array, actions: Array) -> Array:
        """The values (B,) of actions (B, A) in observations (B, S)."""
        return self.net(concatenate([observations, actions], axis=-1)).squeeze(-1)


def hidden(width: int) -> list[Any]:
    """Two hidden layers with ReLU."""
    return [Linear(width), nn.relu, Linear(width), nn.relu]


def head(outputs: int, init_w: float | None) -> Linear:
    """The last layer, initially within plus or minus `init_w`; its weights are drawn before the other layers'."""
    if init_w is None:
        return Linear(outputs)
    within = partial(jax.random.uniform, minval=-init_w, maxval=init_w)
    return Linear(outputs, kernel_init=within, bias_init=within)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    # Standard normal, (B, A): smooths the target policy; not used in the VAE's updates
    target: Array
    # Standard normal, (B, K, Z): the VAE's codes; its own updates use the first of K, and critics use none
    latent: Array


def draw_noise(key: Array, step: Array, hp: Hyperparameters, size: Array, action_dim: int) -> tuple[Array, Noise]:
    """An update's batch indices (B,) below `size` and its noise, which the key and the update's number decide.

    Noise that an update does not use is drawn too, so that all updates have the same shapes.
    """
    index_key, target_key, latent_key, _ = jax.random.split(jax.random.fold_in(key, step), 4)
    indices = jax.random.randint(index_key, (hp.batch_size,), 0, size)
    noise = Noise(
        target=jax.random.normal(target_key, (hp.batch_size, action_dim)),
        latent=jax.random.normal(latent_key, (hp.batch_size, hp.num_samples, latent_dim(hp, action_dim))),
    )
    return indices, noise


def latent_dim(hp: Hyperparameters, action_dim: int) -> int:
    """Z, the size of the VAE's code."""
    return hp.vae_latent_dim or 2 * action_dim


class Exploration(NamedTuple):
    """The random numbers that a step in the environment draws."""

    # Standard normal, (1, A)
    action: Array


def draw_exploration(key: Array, step: Array, hp: Hyperparameters, action_dim: int) -> Exploration:
    """The draw of one step in the environment, which depends on the key and the step's number alone."""
    # The last of these keys: the update of the same number uses the others.
    action_key = jax.random.split(jax.random.fold_in(key, step), 4)[3]
    return Exploration(action=jax.random.normal(action_key, (1, action_dim)))


# ---- losses and update ---------------------------------------------------------------------------------------------


def adam(part: str, hp: Hyperparameters) -> optax.GradientTransformation:
    """The optimiser of one part of the state."""
    rates = {"vae": hp.vae_lr, "actor": hp.actor_lr, "critic_1": hp.critic_lr, "critic_2": hp.critic_lr}
    return optax.adam(rates[part])


def gradient_step(state: "SPOT", part: str, gradient: Network) -> "SPOT":
    """One step of Adam on one part of the state, down its gradient."""
    change, moments = adam(part, state.hp).update(gradient, getattr(state, f"{part}_optimizer"))
    return state.replace(**{part: optax.apply_updates(getattr(state, part), change), f"{part}_optimizer": moments})


def soft_update(target: Network, source: Network, tau: float) -> Network:
    """Polyak averaging: the target, moved a step of size tau towards the source."""
    return jax.tree.map(lambda old, new: (1.0 - tau) * old + tau * new, target, source)


def divergence(mean: Array, std: Array) -> Array:
    """The KL divergence (B, Z) of normal codes from the prior, for each component of the codes."""
    return -0.5 * (1.0 + log(square(std)) - square(mean) - square(std))


def cooled(hp: Hyperparameters, online_it: Array) -> Array:
    """The weight of the support constraint in the online update with this number, counted from 1; 0: offline."""
    if not hp.lambd_cool:
        return jnp.asarray(hp.lambd, dtype=float)
    # CORL divides by 0 if there is no online phase.
    return hp.lambd * maximum(hp.lambd_end, 1.0 - online_it / max(hp.online_iterations, 1))


# The networks that learn offline and online, each with a target
LEARNERS = ("actor", "critic_1", "critic_2")


class SPOT(struct.PyTreeNode):
    """All that an update reads and writes."""

    vae: Network
    actor: Network
    critic_1: Network
    critic_2: Network
    actor_target: Network
    critic_1_target: Network
    critic_2_target: Network
    vae_optimizer: optax.OptState
    actor_optimizer: optax.OptState
    critic_1_optimizer: optax.OptState
    critic_2_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)
    max_action: float = struct.field(pytree_node=False)

    def go_online(self) -> "SPOT":
        """Gives the actor and the critics fresh optimisers, as at the beginning; nothing else changes."""
        fresh = {f"{part}_optimizer": adam(part, self.hp).init(getattr(self, part)) for part in LEARNERS}
        return self.replace(**fresh)

    def vae_loss(self, vae: Network, batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """The squared error of the reconstruction, and the code's divergence from its prior."""
        reconstruction, mean, std = vae(batch.observations, batch.actions, noise.latent[:, :1])
        assert reconstruction.shape == batch.actions[:, None].shape
        error, kl = square(reconstruction - batch.actions[:, None]).mean(), divergence(mean, std).mean()
        return error + self.hp.kl_weight * kl, {"VAE/reconstruction_loss": error, "VAE/KL_loss": kl}

    def td_target(self, batch: Batch, noise: Noise, discount: Array) -> Array:
        """The regression target of both critics, (B,): the smaller target value of a smoothed target action."""
        hp, max_action = self.hp, self.max_action
        actor, critic_1, critic_2 = self.actor_target, self.critic_1_target, self.critic_2_target
        limit = hp.noise_clip * max_action
        smoothing = clip(noise.target * (hp.policy_noise * max_action), -limit, limit)
        next_actions = clip(actor(batch.next_observations) + smoothing, -max_action, max_action)
        next_q = minimum(
            critic_1(batch.next_observations, next_actions), critic_2(batch.next_observations, next_actions)
        )
        assert next_q.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + (1.0 - batch.terminals) * discount * next_q

    def critic_loss(
        self, critics: tuple[Network, Network], batch: Batch, noise: Noise, discount: Array
    ) -> tuple[Array, dict[str, Array]]:
        """The squared error of both critics to the same target."""
        critic_1, critic_2 = critics
        target = self.td_target(batch, noise, discount)
        q1 = critic_1(batch.observations, batch.actions)
        q2 = critic_2(batch.observations, batch.actions)
        assert q1.shape == q2.shape == target.shape
        return square(q1 - target).mean() + square(q2 - target).mean(), {}

    def neg_log_beta(self, observations: Array, actions: Array, latent: Array) -> Array:
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

    def actor_loss(self, actor: Network, batch: Batch, noise: Noise, lambd: Array) -> tuple[Array, dict[str, Array]]:
        """The value under critic 1, scaled by its own size, against how unlikely the actions are in the data."""
        critic_1 = self.critic_1
        actions = actor(batch.observations)
        q = critic_1(batch.observations, actions)
        neg_log_beta = self.neg_log_beta(batch.observations, actions, noise.latent)
        # There is no epsilon below |Q|, as in the authors' code.
        weight = 1.0 / stop_gradient(jnp.abs(q).mean())
        assert q.shape == neg_log_beta.shape == batch.rewards.shape
        aux = {"neg_log_beta_mean": neg_log_beta.mean(), "neg_log_beta_max": neg_log_beta.max()}
        return -weight * q.mean() + lambd * neg_log_beta.mean(), aux

    def update(
        self, batch: Batch, noise: Noise, step: Array, pretrains: bool, delayed: bool
    ) -> tuple["SPOT", dict[str, Array]]:
        """One gradient step: of the VAE alone; later the critics, and every `policy_freq` steps actor and targets."""
        state, hp = self, self.hp
        if pretrains:
            (loss, aux), gradient = value_and_grad(state.vae_loss, has_aux=True)(state.vae, batch, noise)
            return gradient_step(state, "vae", gradient), {"VAE/vae_loss": loss, **aux}
        online_it = maximum(step - hp.switch, 0)
        lambd = cooled(hp, online_it)
        discount = jnp.where(online_it > 0, hp.online_discount, hp.discount)
        critics = (state.critic_1, state.critic_2)
        (loss, _), gradients = value_and_grad(state.critic_loss, has_aux=True)(critics, batch, noise, discount)
        state = gradient_step(state, "critic_1", gradients[0])
        state = gradient_step(state, "critic_2", gradients[1])
        metrics = {"critic_loss": loss}
        if delayed:
            (loss, aux), gradient = value_and_grad(state.actor_loss, has_aux=True)(state.actor, batch, noise, lambd)
            state = gradient_step(state, "actor", gradient)
            metrics |= {"actor_loss": loss, **aux, "lambd": lambd}
            state = state.replace(
                critic_1_target=soft_update(state.critic_1_target, state.critic_1, hp.tau),
                critic_2_target=soft_update(state.critic_2_target, state.critic_2, hp.tau),
                actor_target=soft_update(state.actor_target, state.actor, hp.tau),
            )
        return state, metrics

    def explore(self, observations: Array, noise: Exploration) -> Array:
        """Actions (E, A) to learn from, for normalised observations (E, S): the policy's, with clipped noise."""
        hp, actor, max_action = self.hp, self.actor, self.max_action
        action = actor(observations) + clip(hp.expl_noise * noise.action, -hp.noise_clip, hp.noise_clip)
        # As in CORL, the policy's action is multiplied by the largest one a second time.
        return clip(max_action * action, -max_action, max_action)


@jax.jit
def act(actor: Network, observations: Array) -> Array:
    """The policy's actions (E, A) for normalised observations (E, S)."""
    return actor(observations)


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames=("num_updates", "vae_updates", "phase"), donate_argnames="state")
def train_interval(
    state: SPOT,
    key: Array,
    dataset: PackedDataset,
    start: Array,
    num_updates: int,
    size: Array,
    vae_updates: int,
    phase: int,
) -> tuple[SPOT, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates`, their batches from the first `size` rows.

    The VAE's updates come first and are a separate scan. For any other update, its place in its block and `phase` tell
    whether it is delayed. `phase` counts the updates before these others, modulo `policy_freq`. Both are known when the
    program is compiled, so no branch is left in it.
    """
    hp, action_dim = state.hp, state.actor.module.action_dim

    def draw(step: Array) -> tuple[Array, Array, Noise]:
        return step + 1, *draw_noise(key, step, hp, size, action_dim)

    def update(state: SPOT, drawn: Any, place: int, pretrains: bool = False) -> tuple[SPOT, dict[str, Array]]:
        step, indices, noise = drawn
        delayed = (phase + place + 1) % hp.policy_freq == 0
        return state.update(take(dataset, indices), noise, step, pretrains, delayed)

    state, pretraining = scan_updates(partial(update, pretrains=True), draw, state, start, vae_updates)
    start, rest = start + vae_updates, num_updates - vae_updates
    state, history = scan_updates(update, draw, state, start, rest, hp.policy_freq, unroll=2)
    return state, pretraining + history


@jax.jit
def next_action(state: SPOT, key: Array, step: Array, observation: Array) -> Array:
    """The action (1, A) for the environment step with this number, in a normalised observation (1, S)."""
    return state.explore(observation, draw_exploration(key, step, state.hp, state.actor.module.action_dim))


@partial(jax.jit, static_argnames="phase", donate_argnames=("state", "ring"))
def train_online(
    state: SPOT, key: Array, ring: Ring, start: Array, rows: Array, observation: Array, phase: int
) -> tuple[SPOT, Ring, Array, list[dict[str, Array]]]:
    """Everything between two environment steps: stores n transitions (n, W), makes n updates, and chooses an action."""
    ring, num_updates = push(ring, rows), len(rows)
    state, history = train_interval(state, key, ring, start, num_updates, ring.size, vae_updates=0, phase=phase)
    return state, ring, next_action(state, key, start + num_updates, observation), history


def create_train_state(key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> SPOT:
    """Fresh networks with PyTorch's initialisation."""
    hp = narrow(config, Hyperparameters)
    observations, actions = jnp.zeros((1, state_dim)), jnp.zeros((1, action_dim))
    latent = jnp.zeros((1, 1, latent_dim(hp, action_dim)))
    vae_key, actor_key, critic_1_key, critic_2_key = jax.random.split(key, 4)
    vae_module = VAE(action_dim, latent_dim(hp, action_dim), max_action, config.vae_hidden_dim)
    vae = Network.create(vae_module, vae_key, observations, actions, latent)
    actor = Network.create(Actor(action_dim, max_action, config.actor_init_w), actor_key, observations)
    critic_1 = Network.create(Critic(config.critic_init_w), critic_1_key, observations, actions)
    critic_2 = Network.create(Critic(config.critic_init_w), critic_2_key, observations, actions)
    networks = {"vae": vae, "actor": actor, "critic_1": critic_1, "critic_2": critic_2}
    # A donated state must not contain an array twice, so the targets are copies.
    targets = {f"{part}_target": jax.tree.map(jnp.copy, networks[part]) for part in LEARNERS}
    optimizers = {f"{part}_optimizer": adam(part, hp).init(network) for part, network in networks.items()}
    return SPOT(**networks, **targets, **optimizers, hp=hp, max_action=max_action)


def save(state: SPOT, path: Path, total_it: int, experience: OnlineExperience, **facts: Any) -> None:
    """Writes the new part of the experience, then a checkpoint beside it."""
    experience.save(path.parent)
    save_checkpoint(path, "finetune/spot", state, total_it, **facts)


def train(config: TrainConfig) -> Run:
    """Trains the VAE and the policy on the data, then in the environment, evaluates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used.
    """
    preparation = Preparation(rewards=CorlRewards().where(config.normalize_reward), normalise=config.normalize)
    task = load_task(config, preparation)
    device = resolve_device(config.device)
    experience = training_environment(config, task)
    enable_compilation_cache()
    with jax.default_device(device):
        weights_key, draws_key = jax.random.split(jax.random.key(config.seed))
        state = create_train_state(weights_key, config, task.state_dim, task.action_dim, task.max_action)
        run = Run(config, task, "finetune/spot", "jax", device)
        load = partial(load_checkpoint, algorithm="finetune/spot", state=state)
        state, total_it = restore(run, load, state, experience.go_on_from)
        dataset = to_device(task.dataset)

        def phase(start: int, updates: int) -> tuple[int]:
            return ((total_it + start) % config.policy_freq,)

        online = Online(run, config, experience, draws_key, next_action, train_online, statics=phase)
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, act, state.actor)
            offline = History(run)
            history: History | Online = offline
            for start, end in run.calls(config.policy_freq, cost=5):
                if start == config.switch:
                    state = state.go_online()
                if start < config.switch:
                    vae_updates = min(max(config.vae_iterations - start, 0), end - start)
                    statics = end - start, len(dataset), vae_updates, *phase(start + vae_updates, end)
                    state, found = train_together(train_interval, state, draws_key, dataset, start, *statics)
                    offline.add(end - start, found)
                else:
                    online.begin(dataset)
                    history, (state, end) = online, online.play(state, start, end)
                write = partial(save, state, total_it=total_it + end, experience=experience)
                if run.is_due(end):
                    run.log(end, history.means(), experience.episodes)
                    run.save(end, write)
                    evaluate(run, end, act, state.actor)
                elif run.stopping:
                    run.save(end, partial(write, history=history.content()))
    experience.close()
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "finetune/spot")
