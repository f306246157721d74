"""AWAC in JAX, in the style of flax's own examples: dense layers under their default names, TrainStates."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.training.train_state import TrainState


class Actor(nn.Module):
    """The policy: a normal distribution whose standard deviation is the same in every state."""

    action_dim: int
    hidden_dim: int

    @nn.compact
    def __call__(self, observations: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Mean (B, A) and standard deviation (B, A) for observations (B, S)."""
        hidden = observations
        for _ in range(3):
            hidden = nn.relu(nn.Dense(self.hidden_dim)(hidden))
        mean = nn.Dense(self.action_dim)(hidden)
        log_std = self.param("log_std", nn.initializers.zeros, (self.action_dim,))
        return mean, jnp.exp(jnp.clip(log_std, -20.0, 2.0)) * jnp.ones_like(mean)


class Critic(nn.Module):
    """Q(s, a)."""

    hidden_dim: int

    @nn.compact
    def __call__(self, observations: jax.Array, actions: jax.Array) -> jax.Array:
        """The values (B,) of actions (B, A) in observations (B, S)."""
        hidden = jnp.concatenate([observations, actions], axis=-1)
        for _ in range(3):
            hidden = nn.relu(nn.Dense(self.hidden_dim)(hidden))
        return nn.Dense(1)(hidden).squeeze(-1)


class State(NamedTuple):
    """All that an update reads and writes; a TrainState holds its part's optimiser too."""

    actor: TrainState
    critic_1: TrainState
    critic_2: TrainState
    critic_1_target: Any
    critic_2_target: Any


def create_train_state(key: jax.Array, config: Any, state_dim: int, action_dim: int, max_action: float) -> State:
    """A fresh state."""
    observations, actions = jnp.zeros((1, state_dim)), jnp.zeros((1, action_dim))
    actor_key, key_1, key_2 = jax.random.split(key, 3)

    def create(module: nn.Module, key: jax.Array, *inputs: jax.Array) -> TrainState:
        adam = optax.adam(config.learning_rate)
        return TrainState.create(apply_fn=module.apply, params=module.init(key, *inputs)["params"], tx=adam)

    actor = create(Actor(action_dim, config.hidden_dim), actor_key, observations)
    critic_1 = create(Critic(config.hidden_dim), key_1, observations, actions)
    critic_2 = create(Critic(config.hidden_dim), key_2, observations, actions)
    targets = jax.tree.map(jnp.copy, (critic_1.params, critic_2.params))
    return State(actor, critic_1, critic_2, *targets)


def outputs(state: State, batch: Any) -> dict[str, jax.Array]:
    """Every network's output by name."""
    mean, std = policy(state, state.actor.params, batch.observations)
    return {
        "mean": mean,
        "std": std,
        "critic_1": value(state, state.critic_1.params, batch.observations, batch.actions),
        "critic_2": value(state, state.critic_2.params, batch.observations, batch.actions),
    }


def policy(state: State, params: Any, observations: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The policy's mean and deviation, (B, A) each."""
    return state.actor.apply_fn({"params": params}, observations)


def sample(state: State, observations: jax.Array, noise: jax.Array) -> jax.Array:
    """Actions (B, A) of the state's own policy, cut to [-1, 1]."""
    mean, std = policy(state, state.actor.params, observations)
    return jnp.clip(mean + std * noise, -1.0, 1.0)


def value(state: State, params: Any, observations: jax.Array, actions: jax.Array) -> jax.Array:
    """Q (B,) under these parameters."""
    return state.critic_1.apply_fn({"params": params}, observations, actions)


def smaller_value(state: State, params: tuple[Any, Any], observations: jax.Array, actions: jax.Array) -> jax.Array:
    """The smaller value (B,) of two critics."""
    return jnp.minimum(*(value(state, critic, observations, actions) for critic in params))


class Noise(NamedTuple):
    """Standard normal, (B, A) each."""

    target: jax.Array
    actor: jax.Array


def draw_noise(key: jax.Array, step: Any, config: Any, dataset_size: int, action_dim: int) -> tuple[jax.Array, Noise]:
    """Row numbers (B,) and noise for an update."""
    row_key, noise_key = jax.random.split(jax.random.fold_in(key, step))
    rows = jax.random.choice(row_key, dataset_size, (config.batch_size,))
    return rows, Noise(*jax.random.normal(noise_key, (2, config.batch_size, action_dim)))


def critic_loss(critics: tuple[Any, Any], state: State, config: Any, batch: Any, noise: Any) -> jax.Array:
    """The squared error of both critics to the same target."""
    next_actions = sample(state, batch.next_observations, noise.target)
    targets = state.critic_1_target, state.critic_2_target
    next_q = smaller_value(state, targets, batch.next_observations, next_actions)
    target = batch.rewards + config.discount * (1.0 - batch.terminals) * next_q
    errors = [value(state, critic, batch.observations, batch.actions) - target for critic in critics]
    return sum(jnp.square(error).mean() for error in errors)


def actor_loss(actor: Any, state: State, config: Any, batch: Any, noise: Any) -> jax.Array:
    """Imitation of the data's actions, each weighted by its advantage."""
    critics = state.critic_1.params, state.critic_2.params
    sampled = sample(state, batch.observations, noise.actor)
    advantages = smaller_value(state, critics, batch.observations, batch.actions)
    advantages -= smaller_value(state, critics, batch.observations, sampled)
    weights = jnp.minimum(jnp.exp(advantages / config.advantage_temperature), 100.0)
    mean, std = policy(state, actor, batch.observations)
    log_probs = jax.scipy.stats.norm.logpdf(batch.actions, mean, std).sum(axis=-1)
    assert log_probs.shape == weights.shape
    return -(log_probs * weights).mean()


def update(state: State, config: Any, batch: Any, noise: Any) -> State:
    """The critics; the policy, on the new critics; the targets."""
    critics = state.critic_1.params, state.critic_2.params
    gradients = jax.grad(critic_loss)(critics, state, config, batch, noise)
    state = state._replace(
        critic_1=state.critic_1.apply_gradients(grads=gradients[0]),
        critic_2=state.critic_2.apply_gradients(grads=gradients[1]),
    )
    gradient = jax.grad(actor_loss)(state.actor.params, state, config, batch, noise)
    return state._replace(
        actor=state.actor.apply_gradients(grads=gradient),
        critic_1_target=optax.incremental_update(state.critic_1.params, state.critic_1_target, config.tau),
        critic_2_target=optax.incremental_update(state.critic_2.params, state.critic_2_target, config.tau),
    )
