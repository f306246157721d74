"""SAC in JAX: an off-policy actor-critic that is rewarded for entropy. Its twin is `corl_torch/online/sac.py`.

It collects its own data: environment steps and updates alternate.

Haarnoja et al., Soft Actor-Critic Algorithms and Applications, 2018, https://arxiv.org/abs/1812.05905
"""

import math
from collections.abc import Callable
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
from jax.numpy import abs, argmin, concatenate, exp, minimum, square, stack, tanh, where

from shared.data.experience import Experience
from shared.data.transitions import Batch
from shared.envs.spaces import Shape, axes
from shared.errors import InputError
from shared.frameworks.jax_calls import as_saved, resumed
from shared.frameworks.jax_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, store, take, to_device
from shared.frameworks.jax_encoders import convolutions, cropped
from shared.frameworks.jax_layers import ImplicitQuantiles, Linear, Network, clamp, softplus
from shared.frameworks.jax_side import enable_compilation_cache, evaluate, mean_metrics, narrow, resolve_device
from shared.runs.fields import bounded, choice, later, positive
from shared.runs.online import load_online_task
from shared.runs.run import Run
from shared.runs.settings import ImagesConfig, RunConfig

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Learning rate of the policy, of both critics and of the temperature
    learning_rate: float = positive(3e-4)
    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Rate at which the targets follow their networks
    tau: float = bounded(0.005, low=0, high=1)
    # Transitions in a batch
    batch_size: int = bounded(256, low=1)
    # The critics learn the return's mean (mean), its quantiles at fixed fractions (qr), or at any fraction (iqn)
    critic: str = later(choice("mean", "qr", "iqn"))
    # With qr and iqn: quantiles in an update of the critics
    n_quantiles: int = later(bounded(32, low=1))
    # With iqn: quantiles whose mean the policy learns to raise
    n_greedy_quantiles: int = later(bounded(32, low=1))
    # With iqn: cosines that encode a fraction
    embed_size: int = later(bounded(64, low=1))
    # Most pixels that an update shifts an image by, at random: the image is padded with its edges, then cropped. DrQ
    # uses 4 for images of 84 x 84
    crop_padding: int = later(bounded(0, low=0, high=64))


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, ImagesConfig, RunConfig):
    """The settings of a whole run."""

    group: str = "SAC-D4RL"
    name: str = "SAC"
    # Environment to learn and to be evaluated in: d4rl/hopper-v2, or any that is registered with Gymnasium
    env: str = "d4rl/hopper-v2"
    # Environment steps in all
    max_timesteps: int = bounded(1_000_000, low=1)
    # Environment steps between two evaluations, each of which begins a new episode
    eval_freq: int = bounded(5000, low=1)
    # Folder for a checkpoint and the experience at each evaluation; null: only the last, in the run's folder
    checkpoints_path: str | None = None
    # Checkpoint to start from, with its experience beside it
    load_model: str = ""
    # Seed of the weights, the batches, the noise and the start states
    seed: int = bounded(0, low=0, high=2**32 - 1)
    # Width of both hidden layers
    hidden_dim: int = bounded(256, low=1)
    # Environment steps of uniform actions before learning begins
    random_steps: int = bounded(5000, low=0)
    # Environment steps that are followed by the same number of updates
    update_every: int = bounded(50, low=1)


# ---- networks ------------------------------------------------------------------------------------------------------


def mlp(hidden_dim: int, *outputs: int) -> nn.Sequential:
    """Two hidden layers with ReLU, and perhaps a linear layer."""
    return nn.Sequential([
        Linear(hidden_dim),
        nn.relu,
        Linear(hidden_dim),
        nn.relu,
        *map(Linear, outputs),
    ])  # fmt: skip


class Actor(nn.Module):
    """The policy: a normal distribution, squashed by tanh."""

    action_dim: int
    max_action: float
    encoder: str
    hidden_dim: int

    def setup(self) -> None:
        self.readers = convolutions(self.encoder)
        self.net = mlp(self.hidden_dim, 2 * self.action_dim)

    def __call__(self, observations: Array) -> tuple[Array, Array]:
        """Mean and log standard deviation (B, A) before tanh, for observations (B, S), or images."""
        for layer in self.readers:
            observations = layer(observations)
        mean, log_std = jnp.split(self.net(observations), 2, axis=-1)
        return mean, clamp(log_std, -20.0, 2.0)


def sample(actor: Network, observations: Array, noise: Array) -> tuple[Array, Array]:
    """Actions (B, A) for noise (B, A), and their log-probabilities (B,) in units of max_action."""
    mean, log_std = actor(observations)
    u = mean + noise * exp(log_std)
    log_density = -square(noise) / 2.0 - log_std - LOG_SQRT_2PI
    # log(1 - tanh(u)^2), which does not vanish where the tanh is 1
    log_slope = 2.0 * (math.log(2.0) - u - softplus(-2.0 * u))
    return actor.module.max_action * tanh(u), (log_density - log_slope).sum(axis=-1)


LOG_SQRT_2PI = math.log(math.sqrt(2.0 * math.pi))


class Critic(nn.Module):
    """Z(s, a): the mean or quantiles of the return."""

    encoder: str
    hidden_dim: int
    hp: Hyperparameters

    def setup(self) -> None:
        hp = self.hp
        self.readers = convolutions(self.encoder)
        self.implicit, n_quantiles = hp.critic == "iqn", hp.n_quantiles if hp.critic == "qr" else 1
        self.net: nn.Module
        if self.implicit:
            hidden = mlp(self.hidden_dim)
            self.net = ImplicitQuantiles(hidden, 1, hp.embed_size, hp.n_greedy_quantiles)
        else:
            self.net = mlp(self.hidden_dim, n_quantiles)

    def __call__(self, observations: Array, actions: Array, fractions: Array | None = None) -> Array:
        """The quantiles (B, K) of actions (B, A) in observations (B, S); a mean counts as one.

        IQN's are at the fractions (B, K), or, without these, at evenly spaced ones.
        """
        for layer in self.readers:
            observations = layer(observations)
        inputs = concatenate([observations, actions], axis=-1)
        return self.net(inputs, fractions).squeeze(1) if self.implicit else self.net(inputs)


def quantiles(
    critics: tuple[Network, Network], observations: Array, actions: Array, fractions: Array | None = None
) -> Array:
    """The quantiles (2, B, K) of both critics; IQN's are at fractions (2, B, K) or at evenly spaced ones."""
    given = (None, None) if fractions is None else fractions
    return stack([critic(observations, actions, each) for critic, each in zip(critics, given, strict=True)])


def smaller(q: Array) -> Array:
    """Selects, in each row of the quantiles (2, B, K), the critic with the smaller mean, (B, K)."""
    critic = argmin(q.mean(axis=-1), axis=0)
    return where(critic[:, None] == 0, q[0], q[1])


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    # Standard normal, (B, A): the policy's next actions in the target
    target: Array
    # Standard normal, (B, A): the policy's actions in the current states
    actor: Array
    # With crop_padding: the row and column at which each padded image is cropped, (2, B, 2); observations first, then
    # next ones
    crops: Array | None = None
    # With iqn, fractions uniform in [0, 1), (2, B, K): for the value of the next action under the targets
    target_fractions: Array | None = None
    # The same for the value of the data's action
    error_fractions: Array | None = None


def draw_noise(key: Array, step: Array, hp: Hyperparameters, size: Array, action_dim: int) -> tuple[Array, Noise]:
    """An update's batch indices (B,) below `size`, and its noise, which the key and the update's number determine."""
    key, crops = jax.random.fold_in(key, step), None
    if hp.crop_padding:
        key, crops_key = jax.random.split(key)
        crops = jax.random.randint(crops_key, (2, hp.batch_size, 2), 0, 2 * hp.crop_padding + 1)
    count = 5 if hp.critic == "iqn" else 3
    index_key, target_key, actor_key, *fraction_keys = jax.random.split(key, count)
    indices = jax.random.randint(index_key, (hp.batch_size,), 0, size)
    target = jax.random.normal(target_key, (hp.batch_size, action_dim))
    actor = jax.random.normal(actor_key, (hp.batch_size, action_dim))
    shape = 2, hp.batch_size, hp.n_quantiles
    drawn = (jax.random.uniform(each, shape) for each in fraction_keys)
    return indices, Noise(target, actor, crops, *drawn)


class Exploration(NamedTuple):
    """The random numbers that n environment steps draw."""

    # Uniform in [-1, 1), (n, A): the actions of the first `random_steps` steps, in units of max_action
    uniform: Array
    # Standard normal, (n, A): the policy's noise in all later steps
    normal: Array


@partial(jax.jit, static_argnames=("steps", "action_dim"))
def draw_exploration(key: Array, start: Array, steps: int, action_dim: int) -> Exploration:
    """The draws of the environment steps from `start` on, which depend on the key and on each one's number alone."""
    keys = jax.vmap(lambda step: jax.random.split(jax.random.fold_in(key, step)))(start + jnp.arange(steps))
    uniform = jax.vmap(lambda key: jax.random.uniform(key, (action_dim,), minval=-1.0, maxval=1.0))(keys[:, 0])
    return Exploration(uniform, jax.vmap(lambda key: jax.random.normal(key, (action_dim,)))(keys[:, 1]))


# ---- losses and update ---------------------------------------------------------------------------------------------


def gradient_step(state: "SAC", part: str, gradient: Any) -> "SAC":
    """One step of Adam on one part of the state, down its gradient."""
    adam = optax.adam(state.hp.learning_rate)
    change, moments = adam.update(gradient, getattr(state, f"{part}_optimizer"))
    return state.replace(**{part: optax.apply_updates(getattr(state, part), change), f"{part}_optimizer": moments})


def soft_update(target: Network, source: Network, tau: float) -> Network:
    """Polyak averaging: the target, moved a step of size tau towards the source."""
    return jax.tree.map(lambda old, new: (1.0 - tau) * old + tau * new, target, source)


def huber(error: Array) -> Array:
    """Huber's loss: half the square of errors below 1, and the absolute error minus a half for all others."""
    return where(abs(error) < 1.0, 0.5 * square(error), abs(error) - 0.5)


def fractions(q: Array, drawn: Array | None) -> Array:
    """The fractions of the quantiles q (2, B, K): the drawn ones, or with qr the middles of equal parts (K,)."""
    if drawn is not None:
        return drawn
    bounds = jnp.arange(q.shape[-1] + 1, dtype=q.dtype) / q.shape[-1]
    return (bounds[1:] + bounds[:-1]) / 2.0


def quantile_huber(q: Array, fractions: Array, target: Array) -> Array:
    """Huber's loss (2, B) of quantiles (2, B, K) against the target's (B, K'): summed over K, averaged over K'.

    Targets below a quantile have the weight 1 minus its fraction, and all others its fraction.
    """
    error = target[:, :, None] - q[:, :, None]
    loss = abs(fractions[..., None, :] - (error < 0.0)) * huber(error)
    return loss.sum(axis=-1).mean(axis=-1)


class SAC(struct.PyTreeNode):
    """All that an update reads and writes."""

    actor: Network
    critic_1: Network
    critic_2: Network
    critic_1_target: Network
    critic_2_target: Network
    log_temperature: Array
    actor_optimizer: optax.OptState
    critic_1_optimizer: optax.OptState
    critic_2_optimizer: optax.OptState
    log_temperature_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)

    def temperature(self) -> Array:
        """The entropy temperature: a constant in every loss except its own."""
        return exp(self.log_temperature)

    def td_target(self, batch: Batch, noise: Noise) -> Array:
        """The target of both critics, (B, K): the smaller target quantiles of a sampled action, plus entropy."""
        hp, actor, critics = self.hp, self.actor, (self.critic_1_target, self.critic_2_target)
        actions, log_prob = sample(actor, batch.next_observations, noise.target)
        next_q = smaller(quantiles(critics, batch.next_observations, actions, noise.target_fractions))
        assert next_q.shape[:1] == log_prob.shape == batch.rewards.shape == batch.terminals.shape
        soft_value = next_q - self.temperature() * log_prob[:, None]
        return batch.rewards[:, None] + hp.discount * (1.0 - batch.terminals[:, None]) * soft_value

    def critic_loss(
        self, critics: tuple[Network, Network], batch: Batch, noise: Noise
    ) -> tuple[Array, dict[str, Array]]:
        """The errors of both critics to the same target: squared, or Huber's of quantiles."""
        target = self.td_target(batch, noise)
        q = quantiles(critics, batch.observations, batch.actions, noise.error_fractions)
        assert q.shape[1] == len(target)
        if self.hp.critic == "mean":
            loss = square(q - target).mean(axis=(1, 2)).sum()
        else:
            loss = quantile_huber(q, fractions(q, noise.error_fractions), target).mean(axis=1).sum()
        return loss, {"q": q[0].mean()}

    def actor_loss(self, actor: Network, batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """Maximizes the mean value of the policy's actions under the smaller critic, and their entropy."""
        critics = self.critic_1, self.critic_2
        actions, log_prob = sample(actor, batch.observations, noise.actor)
        q = minimum(*quantiles(critics, batch.observations, actions).mean(axis=-1))
        assert q.shape == log_prob.shape == batch.rewards.shape
        return (self.temperature() * log_prob - q).mean(), {"log_prob": log_prob}

    def alpha_loss(self, log_temperature: Array, log_prob: Array) -> tuple[Array, dict[str, Array]]:
        """Raises the temperature while the policy's entropy is below -A, minus one nat for each action dimension."""
        return -(log_temperature * (log_prob - self.actor.module.action_dim)).mean(), {}

    def update(self, batch: Batch, noise: Noise) -> tuple["SAC", dict[str, Array]]:
        """One gradient step: the critics; the actor, on the new critics; the temperature; the targets."""
        state, hp = self, self.hp
        batch = cropped(batch, noise.crops, hp.crop_padding)
        alpha, critics = state.temperature(), (state.critic_1, state.critic_2)
        (critic_loss, aux), gradients = value_and_grad(state.critic_loss, has_aux=True)(critics, batch, noise)
        metrics = {"critic_loss": critic_loss, "alpha": alpha, **aux}
        state = gradient_step(state, "critic_1", gradients[0])
        state = gradient_step(state, "critic_2", gradients[1])
        (actor_loss, aux), gradient = value_and_grad(state.actor_loss, has_aux=True)(state.actor, batch, noise)
        metrics |= {"actor_loss": actor_loss, "entropy": -aux["log_prob"].mean()}
        state = gradient_step(state, "actor", gradient)
        (alpha_loss, _), gradient = value_and_grad(state.alpha_loss, has_aux=True)(
            state.log_temperature, aux["log_prob"]
        )
        metrics["alpha_loss"] = alpha_loss
        state = gradient_step(state, "log_temperature", gradient)
        state = state.replace(
            critic_1_target=soft_update(state.critic_1_target, state.critic_1, hp.tau),
            critic_2_target=soft_update(state.critic_2_target, state.critic_2, hp.tau),
        )
        return state, metrics


@jax.jit
def act(actor: Network, observations: Array) -> Array:
    """The policy's most likely actions (E, A) for observations (E, S)."""
    mean, _ = actor(observations)
    return actor.module.max_action * tanh(mean)


@jax.jit
def explore(actor: Network, observations: Array, noise: Array) -> Array:
    """The policy's actions (E, A) for observations (E, S) and standard normal noise (E, A)."""
    actions, _ = sample(actor, observations, noise)
    return actions


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="num_updates", donate_argnames="state")
def train_interval(
    state: SAC, key: Array, dataset: PackedDataset, start: Array, num_updates: int, size: Array
) -> tuple[SAC, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates` as one scan, with batches and noise drawn beforehand.

    Batches are drawn from the first `size` rows of the dataset. This number is traced, so that the program stays the
    same while the experience grows.
    """
    steps, action_dim = start + jnp.arange(num_updates), state.actor.module.action_dim
    draws = jax.vmap(lambda step: draw_noise(key, step, state.hp, size, action_dim))(steps)

    def step(state: SAC, draw: Any) -> tuple[SAC, dict[str, Array]]:
        indices, noise = draw
        return state.update(take(dataset, indices), noise)

    state, history = jax.lax.scan(step, state, draws, unroll=2)
    return state, [history]


def create_train_state(key: Array, config: TrainConfig, state_dim: Shape, action_dim: int, max_action: float) -> SAC:
    """Fresh networks with PyTorch's initialisation."""
    hp, sizes = narrow(config, Hyperparameters), (config.encoder, config.hidden_dim)
    observations, actions = jnp.zeros((1, *axes(state_dim))), jnp.zeros((1, action_dim))
    actor_key, critic_1_key, critic_2_key = jax.random.split(key, 3)
    actor = Network.create(Actor(action_dim, max_action, *sizes), actor_key, observations)
    critic_1 = Network.create(Critic(*sizes, hp), critic_1_key, observations, actions)
    critic_2 = Network.create(Critic(*sizes, hp), critic_2_key, observations, actions)
    # A donated state must not contain an array twice, so the targets are copies.
    critic_1_target, critic_2_target = jax.tree.map(jnp.copy, (critic_1, critic_2))
    log_temperature = jnp.asarray(0.0, dtype=float)
    adam = optax.adam(config.learning_rate)
    return SAC(
        actor=actor,
        critic_1=critic_1,
        critic_2=critic_2,
        critic_1_target=critic_1_target,
        critic_2_target=critic_2_target,
        log_temperature=log_temperature,
        actor_optimizer=adam.init(actor),
        critic_1_optimizer=adam.init(critic_1),
        critic_2_optimizer=adam.init(critic_2),
        log_temperature_optimizer=adam.init(log_temperature),
        hp=hp,
    )


def save(state: SAC, path: Path, experience: Experience, **facts: Any) -> None:
    """Writes the new part of the experience, then a checkpoint beside it."""
    experience.save(path.parent)
    save_checkpoint(path, "sac", state, experience.size, **facts)


def load(state: SAC, path: str, experience: Experience) -> dict[str, Any]:
    """Loads a checkpoint and its experience; returns its contents."""
    content = load_checkpoint(path, "sac", state)
    experience.load(Path(path).parent, content["total_it"])
    return content


def load_policy(config: TrainConfig, state_dim: Shape, action_dim: int, max_action: float) -> Callable:
    """The exploring policy of the checkpoint `load_model`, or a fresh one: from observations and noise to actions."""
    key = jax.random.key(config.seed)
    state = create_train_state(key, config, state_dim, action_dim, max_action)
    if config.load_model:
        state = load_checkpoint(config.load_model, "sac", state)["state"]
    return partial(explore, state.actor)


def train(config: TrainConfig) -> Run:
    """Trains, evaluates every `eval_freq` environment steps and fills the run's folder.

    To resume, a run only needs its train state, its experience and its number of steps. Each interval between
    evaluations begins with a new episode. The start of that episode depends on the seed and the number of steps.

    Raises:
        InputError: the environment or the checkpoint cannot be used.
    """
    task = load_online_task(config)
    device = resolve_device(config.device)
    enable_compilation_cache()
    with jax.default_device(device):
        weights_key, draws_key, exploration_key = jax.random.split(jax.random.key(config.seed), 3)
        state = create_train_state(weights_key, config, task.shape, task.action_dim, task.max_action)
        cut = config.max_episode_steps
        experience = Experience(config.env, config.max_timesteps, config.frame_stack, cut, task.units)
        run = Run(config, task, "sac", "jax", device, unit="step")
        state, _ = restore(run, partial(load, state, experience=experience), state)
        if experience.size == config.max_timesteps and not run.step:
            raise InputError(f"{config.load_model} has {experience.size} environment steps: set max_timesteps to more")
        dataset = store(to_device(task.dataset), experience.transitions(), 0)
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, act, state.actor)
            history = resumed(run)
            for start, end in experience.intervals(config, run.began):
                while experience.size < end and not run.stopping:
                    first = experience.size
                    steps = min(config.update_every, end - first)
                    exploration = draw_exploration(exploration_key, first, steps, task.action_dim)
                    experience.play(partial(explore, state.actor), exploration, config.random_steps)
                    dataset = store(dataset, experience.transitions(first), first)
                    num_updates = steps if experience.size > config.random_steps else 0
                    if num_updates:
                        state, metrics = train_interval(state, draws_key, dataset, first, num_updates, experience.size)
                        history += metrics
                    run.advance(num_updates, steps)
                if experience.size < end:
                    write = partial(save, state, experience=experience, history=as_saved(history), began=start)
                    run.save(experience.size, write)
                experience.cut()
                run.log(end, mean_metrics(history))
                history.clear()
                run.save(end, partial(save, state, experience=experience))
                evaluate(run, end, act, state.actor)
    experience.close()
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "sac")
