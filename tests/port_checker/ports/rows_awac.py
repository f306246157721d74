"""AWAC written for one transition at a time: `jax.vmap` runs it over a batch's rows, and means are taken outside."""

from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


class State(NamedTuple):
    """Weights are lists of (kernel, bias), the policy's beside its log-deviations."""

    actor: Any
    critic_1: Any
    critic_2: Any
    critic_1_target: Any
    critic_2_target: Any
    actor_optimizer: Any
    critics_optimizer: Any


def layers(key, sizes):
    keys = jax.random.split(key, len(sizes) - 1)
    shapes = zip(keys, pairwise(sizes), strict=True)
    return [(jax.random.normal(k, shape) / shape[0] ** 0.5, jnp.zeros(shape[1])) for k, shape in shapes]


def from_torch(part, weights):
    network = [(weights[f"_mlp.{i}.weight"].T, weights[f"_mlp.{i}.bias"]) for i in (0, 2, 4, 6)]
    return {"mean": network, "log_std": weights["_log_std"]} if part == "actor" else network


# ---- one row -------------------------------------------------------------------------------------------------------


def mlp(network, x):
    for kernel, bias in network[:-1]:
        x = jax.nn.relu(jnp.dot(x, kernel) + bias)
    kernel, bias = network[-1]
    return jnp.dot(x, kernel) + bias


def policy(actor, observation):
    """Mean and log-deviation (A,)."""
    return mlp(actor["mean"], observation), jnp.clip(actor["log_std"], -20, 2)


def sampled(actor, observation, noise):
    mean, log_std = policy(actor, observation)
    return jnp.clip(mean + jnp.exp(log_std) * noise, -1, 1)


def value(critic, observation, action):
    return mlp(critic, jnp.hstack([observation, action]))[0]


def smaller(critics, observation, action):
    return jnp.minimum(value(critics[0], observation, action), value(critics[1], observation, action))


def squared_errors(critics, state, config, row, noise):
    """Of both critics, added up."""
    next_action = sampled(state.actor, row.next_observations, noise.target)
    next_q = smaller((state.critic_1_target, state.critic_2_target), row.next_observations, next_action)
    target = row.rewards + config.discount * (1 - row.terminals) * next_q
    return sum((value(critic, row.observations, row.actions) - target) ** 2 for critic in critics)


def log_likelihood(actor, row):
    mean, log_std = policy(actor, row.observations)
    z = (row.actions - mean) / jnp.exp(log_std)
    return -0.5 * jnp.sum(z * z + 2 * log_std + jnp.log(2 * jnp.pi))


def advantage(state, row, noise):
    critics = state.critic_1, state.critic_2
    action = sampled(state.actor, row.observations, noise.actor)
    return smaller(critics, row.observations, row.actions) - smaller(critics, row.observations, action)


# ---- a batch -------------------------------------------------------------------------------------------------------


def critic_loss(critics, state, config, batch, noise):
    return jax.vmap(partial(squared_errors, critics, state, config))(batch, noise).mean()


def actor_loss(actor, state, config, batch, noise):
    advantages = jax.vmap(partial(advantage, state))(batch, noise)
    weights = jnp.minimum(jnp.exp(advantages / config.advantage_temperature), 100)
    log_likelihoods = jax.vmap(partial(log_likelihood, actor))(batch)
    return -jnp.mean(weights * log_likelihoods)


def adam(config):
    return optax.adam(config.learning_rate)


def create_train_state(key, config, state_dim, action_dim, max_action):
    k1, k2, k3 = jax.random.split(key, 3)
    hidden = [config.hidden_dim] * 3
    actor = {"mean": layers(k1, [state_dim, *hidden, action_dim]), "log_std": jnp.zeros(action_dim)}
    critics = tuple(layers(k, [state_dim + action_dim, *hidden, 1]) for k in (k2, k3))
    return State(actor, *critics, *critics, adam(config).init(actor), adam(config).init(critics))


def outputs(state, batch):
    mean, log_std = jax.vmap(partial(policy, state.actor))(batch.observations)
    found = {"mean": mean, "std": jnp.exp(log_std)}
    for name in ("critic_1", "critic_2"):
        found[name] = jax.vmap(partial(value, getattr(state, name)))(batch.observations, batch.actions)
    return found


def draw_noise(key, step, config, dataset_size, action_dim):
    row_key, *keys = jax.random.split(jax.random.fold_in(key, step), 3)
    rows = jax.random.randint(row_key, (config.batch_size,), 0, dataset_size)
    target, actor = (jax.random.normal(k, (config.batch_size, action_dim)) for k in keys)
    return rows, {"target": target, "actor": actor}


def update(state, config, batch, noise):
    critics = state.critic_1, state.critic_2
    q_loss, gradient = jax.value_and_grad(critic_loss)(critics, state, config, batch, noise)
    change, moments = adam(config).update(gradient, state.critics_optimizer, critics)
    critic_1, critic_2 = optax.apply_updates(critics, change)
    state = state._replace(critic_1=critic_1, critic_2=critic_2, critics_optimizer=moments)

    pi_loss, gradient = jax.value_and_grad(actor_loss)(state.actor, state, config, batch, noise)
    change, moments = adam(config).update(gradient, state.actor_optimizer, state.actor)
    state = state._replace(actor=optax.apply_updates(state.actor, change), actor_optimizer=moments)

    targets = state.critic_1_target, state.critic_2_target
    moved = jax.tree.map(lambda t, s: t + config.tau * (s - t), targets, (critic_1, critic_2))
    state = state._replace(critic_1_target=moved[0], critic_2_target=moved[1])
    return state, {"critic_loss": q_loss, "actor_loss": pi_loss}
