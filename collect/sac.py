"""Soft actor-critic in JAX: the agent that the bundled datasets come from.

Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications": a squashed Gaussian policy, two critics with
Polyak-averaged targets, and a temperature learned so that the policy keeps an entropy of -action_dim.
"""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

LEARNING_RATE = 3e-4
DISCOUNT = 0.99
POLYAK = 0.005
LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
HIDDEN = (256, 256)

Params = dict


class Batch(NamedTuple):
    """Transitions, with any number of leading axes: observations (..., S), actions (..., A), the others (...)."""

    observations: jax.Array
    actions: jax.Array
    rewards: jax.Array
    next_observations: jax.Array
    terminals: jax.Array


class Actor(nn.Module):
    """Mean (..., A) and log standard deviation (..., A) of the Gaussian before the tanh."""

    action_dim: int

    @nn.compact
    def __call__(self, observations: jax.Array) -> tuple[jax.Array, jax.Array]:
        """For observations (..., S)."""
        x = observations
        for width in HIDDEN:
            x = nn.relu(nn.Dense(width)(x))
        mean, log_std = jnp.split(nn.Dense(2 * self.action_dim)(x), 2, axis=-1)
        return mean, jnp.clip(log_std, LOG_STD_MIN, LOG_STD_MAX)


class Critic(nn.Module):
    """The value (...) of an action (..., A) in a state (..., S)."""

    @nn.compact
    def __call__(self, observations: jax.Array, actions: jax.Array) -> jax.Array:
        """For observations (..., S) and actions (..., A)."""
        x = jnp.concatenate([observations, actions], axis=-1)
        for width in HIDDEN:
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(1)(x).squeeze(-1)


class SACState(NamedTuple):
    """All that an update reads and writes; `optimisers` are those of actor, critics and temperature."""

    actor: Params
    critics: tuple[Params, Params]
    targets: tuple[Params, Params]
    log_temperature: jax.Array
    optimisers: tuple[optax.OptState, optax.OptState, optax.OptState]


_OPTIMISER = optax.adam(LEARNING_RATE)


def create_state(key: jax.Array, observation_dim: int, action_dim: int) -> SACState:
    """Fresh networks and optimisers; the temperature starts at 1."""
    actor_key, *critic_keys = jax.random.split(key, 3)
    observation, action = jnp.zeros(observation_dim), jnp.zeros(action_dim)
    actor = Actor(action_dim).init(actor_key, observation)
    critics = tuple(Critic().init(k, observation, action) for k in critic_keys)
    log_temperature = jnp.zeros(())
    optimisers = tuple(_OPTIMISER.init(params) for params in (actor, critics, log_temperature))
    return SACState(actor, critics, critics, log_temperature, optimisers)


def squash(mean: jax.Array, log_std: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Actions (..., A) in (-1, 1) and their log probabilities (...), for standard normal noise (..., A)."""
    raw = mean + jnp.exp(log_std) * noise
    log_prob = -0.5 * noise**2 - log_std - 0.5 * jnp.log(2 * jnp.pi)
    log_prob -= 2 * (jnp.log(2.0) - raw - nn.softplus(-2 * raw))  # log(1 - tanh(raw)^2), stable for large raw
    return jnp.tanh(raw), log_prob.sum(-1)


def _policy(actor: Params, observations: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
    return squash(*Actor(noise.shape[-1]).apply(actor, observations), noise)


@jax.jit
def act(actor: Params, observations: jax.Array, noise: jax.Array) -> jax.Array:
    """Actions (..., A) for observations (..., S) and standard normal noise (..., A); zeros give the mode."""
    return _policy(actor, observations, noise)[0]


def _values(critics: tuple[Params, Params], observations: jax.Array, actions: jax.Array) -> tuple[jax.Array, jax.Array]:
    return tuple(Critic().apply(params, observations, actions) for params in critics)


def _update(state: SACState, inputs: tuple[Batch, jax.Array]) -> tuple[SACState, None]:
    """One gradient step of critics, actor and temperature; the noise is (2, B, A)."""
    batch, noise = inputs
    actor_opt, critic_opt, temperature_opt = state.optimisers
    temperature = jnp.exp(state.log_temperature)

    next_actions, next_log_prob = _policy(state.actor, batch.next_observations, noise[0])
    next_values = jnp.minimum(*_values(state.targets, batch.next_observations, next_actions))
    backup = batch.rewards + DISCOUNT * (1 - batch.terminals) * (next_values - temperature * next_log_prob)

    def critic_loss(critics: tuple[Params, Params]) -> jax.Array:
        return sum(((q - backup) ** 2).mean() for q in _values(critics, batch.observations, batch.actions))

    def actor_loss(actor: Params) -> tuple[jax.Array, jax.Array]:
        actions, log_prob = _policy(actor, batch.observations, noise[1])
        values = jnp.minimum(*_values(critics, batch.observations, actions))
        return (temperature * log_prob - values).mean(), log_prob.mean()

    critic_grad = jax.grad(critic_loss)(state.critics)
    critics, critic_opt = _adam_step(critic_grad, critic_opt, state.critics)
    actor_grad, log_prob = jax.grad(actor_loss, has_aux=True)(state.actor)
    actor, actor_opt = _adam_step(actor_grad, actor_opt, state.actor)
    entropy_gap = -log_prob + noise.shape[-1]  # above the target of -action_dim
    log_temperature, temperature_opt = _adam_step(entropy_gap, temperature_opt, state.log_temperature)
    targets = optax.incremental_update(critics, state.targets, POLYAK)
    return SACState(actor, critics, targets, log_temperature, (actor_opt, critic_opt, temperature_opt)), None


def _adam_step(gradient: Params, optimiser: optax.OptState, params: Params) -> tuple[Params, optax.OptState]:
    updates, optimiser = _OPTIMISER.update(gradient, optimiser)
    return optax.apply_updates(params, updates), optimiser


@jax.jit
def update_block(state: SACState, batches: Batch, key: jax.Array) -> SACState:
    """As many updates as `batches` has rows: one compiled call costs far less than one call per update."""
    noise = jax.random.normal(key, (batches.actions.shape[0], 2, *batches.actions.shape[1:]))
    return jax.lax.scan(_update, state, (batches, noise))[0]


class Replay:
    """A ring of transitions in NumPy memory."""

    def __init__(self, capacity: int, observation_dim: int, action_dim: int) -> None:
        """Allocates room for `capacity` transitions."""
        self._data = Batch(
            observations=np.zeros((capacity, observation_dim), np.float32),
            actions=np.zeros((capacity, action_dim), np.float32),
            rewards=np.zeros(capacity, np.float32),
            next_observations=np.zeros((capacity, observation_dim), np.float32),
            terminals=np.zeros(capacity, np.float32),
        )
        self._capacity = capacity
        self._added = 0

    def add(self, *transition: np.ndarray | float) -> None:
        """Stores one transition, fields in the order of `Batch`, over the oldest if there is no room."""
        for field, value in zip(self._data, transition, strict=True):
            field[self._added % self._capacity] = value
        self._added += 1

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Batch:
        """Uniform draws with replacement."""
        rows = rng.integers(min(self._added, self._capacity), size=shape)
        return Batch(*(field[rows] for field in self._data))
