"""IQL as pure functions over lists of tuples, with optimisers that are chained from optax's single transformations."""

from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


class State(NamedTuple):
    """A network is a list of (kernel, bias); the policy is one, and its log-deviations unless it is deterministic."""

    vf: Any
    qf: Any
    actor: Any
    q_target: Any
    vf_optimizer: Any
    qf_optimizer: Any
    actor_optimizer: Any


def network(key, sizes):
    keys = jax.random.split(key, len(sizes) - 1)
    shapes = zip(keys, pairwise(sizes), strict=True)
    return [(jax.random.normal(k, (m, n)) / m**0.5, jnp.zeros(n)) for k, (m, n) in shapes]


def from_torch(part, weights):
    def layers(prefix):
        numbers = sorted({int(name.split(".")[-2]) for name in weights if name.startswith(prefix)})
        return [(weights[f"{prefix}.{i}.weight"].T, weights[f"{prefix}.{i}.bias"]) for i in numbers]

    if part == "vf":
        return layers("v.net")
    if part == "actor":
        return (layers("net.net"), *([weights["log_std"]] if "log_std" in weights else []))
    return layers("q1.net"), layers("q2.net")


def mlp(layers, x, masks=None):
    (w1, b1), (w2, b2), (w3, b3) = layers
    first, second = (1.0, 1.0) if masks is None else masks
    h = jnp.maximum(x @ w1 + b1, 0.0) * first
    h = jnp.maximum(h @ w2 + b2, 0.0) * second
    return h @ w3 + b3


def q_values(qf, batch):
    """Of both critics for the data's actions, (2, B)."""
    inputs = jnp.concatenate([batch.observations, batch.actions], -1)
    return jnp.stack([mlp(layers, inputs)[:, 0] for layers in qf])


def v_values(vf, observations):
    return mlp(vf, observations)[:, 0]


def deviations(log_std):
    return jnp.exp(jnp.clip(log_std, -20.0, 2.0))


# ---- optimisers ----------------------------------------------------------------------------------------------------


def constant(rate):
    return optax.chain(optax.scale_by_adam(), optax.scale(-rate))


def with_cosine(config):
    def rate(count):
        return -config.actor_lr * 0.5 * (1.0 + jnp.cos(jnp.pi * count / config.max_timesteps))

    return optax.chain(optax.scale_by_adam(), optax.scale_by_schedule(rate))


def optimisers(config):
    return {"vf": constant(config.value_lr), "qf": constant(config.critic_lr), "actor": with_cosine(config)}


def create_train_state(key, config, state_dim, action_dim, max_action):
    keys = jax.random.split(key, 4)
    vf = network(keys[0], [state_dim, 256, 256, 1])
    qf = tuple(network(k, [state_dim + action_dim, 256, 256, 1]) for k in keys[1:3])
    mean = network(keys[3], [state_dim, 256, 256, action_dim])
    actor = (mean,) if config.iql_deterministic else (mean, jnp.zeros(action_dim))
    parts = {"vf": vf, "qf": qf, "actor": actor}
    moments = {f"{name}_optimizer": chain.init(parts[name]) for name, chain in optimisers(config).items()}
    return State(**parts, q_target=qf, **moments)


def outputs(state, batch):
    q1, q2 = q_values(state.qf, batch)
    mean = jnp.tanh(mlp(state.actor[0], batch.observations))
    found = {"mean": mean, "q1": q1, "q2": q2, "v": v_values(state.vf, batch.observations)}
    if len(state.actor) == 2:
        found["std"] = jnp.tile(deviations(state.actor[1]), (len(mean), 1))
    return found


# ---- losses --------------------------------------------------------------------------------------------------------


def advantages(vf, state, batch):
    return q_values(state.q_target, batch).min(0) - v_values(vf, batch.observations)


def value_loss(vf, state, config, batch):
    adv = advantages(vf, state, batch)
    return jnp.mean(jnp.where(adv < 0, 1 - config.iql_tau, config.iql_tau) * adv**2)


def q_loss(qf, state, config, batch):
    bootstrapped = config.discount * v_values(state.vf, batch.next_observations)
    target = batch.rewards + bootstrapped * (batch.terminals == 0)
    return jnp.mean((q_values(qf, batch) - target) ** 2)


def actor_loss(actor, config, batch, noise, adv):
    mean = jnp.tanh(mlp(actor[0], batch.observations, noise.dropout))
    if len(actor) == 2:
        std = deviations(actor[1])
        cost = -jax.scipy.stats.norm.logpdf(batch.actions, mean, std).sum(-1)
    else:
        cost = jnp.sum((mean - batch.actions) ** 2, -1)
    return jnp.mean(jnp.minimum(jnp.exp(config.inverse_temperature * adv), 100.0) * cost)


def draw_noise(key, step, config, dataset_size):
    row_key, mask_key = jax.random.split(jax.random.fold_in(key, step))
    rows = jnp.floor(dataset_size * jax.random.uniform(row_key, (config.batch_size,))).astype(int)
    return rows, {"dropout": None if config.actor_dropout is None else mask_key}


def update(state, config, batch, noise):
    # Every loss at the parameters before the update
    losses, gradients = {}, {}
    losses["vf"], gradients["vf"] = jax.value_and_grad(value_loss)(state.vf, state, config, batch)
    losses["qf"], gradients["qf"] = jax.value_and_grad(q_loss)(state.qf, state, config, batch)
    adv = advantages(state.vf, state, batch)
    losses["actor"], gradients["actor"] = jax.value_and_grad(actor_loss)(state.actor, config, batch, noise, adv)
    for name, chain in optimisers(config).items():
        change, moments = chain.update(gradients[name], getattr(state, f"{name}_optimizer"))
        weights = optax.apply_updates(getattr(state, name), change)
        state = state._replace(**{name: weights, f"{name}_optimizer": moments})
    q_target = jax.tree.map(lambda t, s: (1 - config.tau) * t + config.tau * s, state.q_target, state.qf)
    names = {"vf": "value_loss", "qf": "q_loss", "actor": "actor_loss"}
    return state._replace(q_target=q_target), {names[part]: loss for part, loss in losses.items()}
