"""CQL with a single loss function: its terms hold each other's parameters fixed, and one gradient serves them all."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

LEARNT = ("actor", "critic_1", "critic_2", "log_alpha", "log_alpha_prime")


class State(NamedTuple):
    actor: Any
    critic_1: Any
    critic_2: Any
    critic_1_target: Any
    critic_2_target: Any
    log_alpha: Any
    log_alpha_prime: Any
    actor_optimizer: Any
    critic_1_optimizer: Any
    critic_2_optimizer: Any
    log_alpha_optimizer: Any
    log_alpha_prime_optimizer: Any


# ---- networks ------------------------------------------------------------------------------------------------------


def create_mlp(key, sizes):
    keys = jax.random.split(key, len(sizes))
    return {
        f"layer_{i}": {"kernel": jax.random.normal(keys[i], (m, n)) / m**0.5, "bias": jnp.zeros(n)}
        for i, (m, n) in enumerate(pairwise(sizes))
    }


def mlp(layers, x):
    for i in range(len(layers)):
        layer = layers[f"layer_{i}"]
        x = x @ layer["kernel"] + layer["bias"]
        x = jax.nn.relu(x) if i < len(layers) - 1 else x
    return x


def policy(actor, observations):
    mean, log_std = jnp.split(mlp(actor["base"], observations), 2, axis=-1)
    log_std = actor["multiplier"] * log_std + actor["offset"]
    return mean, jnp.clip(log_std, -20.0, 2.0)


def sample(actor, observations, noise):
    """Actions and log-probabilities: one a state for noise (B, A), n a state for (B, n, A)."""
    mean, log_std = policy(actor, observations)
    if noise.ndim == 3:
        mean, log_std = mean[:, None, :], log_std[:, None, :]
    before = mean + jnp.exp(log_std) * noise
    # log(1 - tanh(u)^2) as twice log 2 - log(e^u + e^-u), which is as stable as the usual softplus
    log_slope = 2.0 * (jnp.log(2.0) - jnp.logaddexp(before, -before))
    log_density = -0.5 * (noise**2 + jnp.log(2.0 * jnp.pi)) - log_std
    return jnp.tanh(before), (log_density - log_slope).sum(-1)


def value(critic, observations, actions):
    if actions.ndim == 3:
        observations = jnp.repeat(observations[:, None], actions.shape[1], axis=1)
    return mlp(critic, jnp.concatenate([observations, actions], -1)).squeeze(-1)


def smaller(critic_1, critic_2, observations, actions):
    return jnp.minimum(value(critic_1, observations, actions), value(critic_2, observations, actions))


# ---- terms of the loss: each is differentiated by its first argument -----------------------------------------------


def temperature(log_alpha, config):
    tuned = config.tune_temperature
    return (jnp.exp(log_alpha) if tuned else 1.0) * config.alpha_multiplier


def actor_loss(actor, state, config, batch, noise):
    actions, log_prob = sample(actor, batch.observations, noise.actor)
    if noise.bc is None:
        q = smaller(state.critic_1, state.critic_2, batch.observations, actions)
    else:
        _, q = sample(actor, batch.observations, noise.bc)
    return jnp.mean(temperature(state.log_alpha, config) * log_prob - q), {"log_prob": log_prob}


def alpha_loss(log_alpha, state, log_prob):
    action_dim = state.actor["base"]["layer_3"]["bias"].size // 2
    return jnp.mean(log_alpha * (action_dim - log_prob))


def backup(state, config, batch, noise):
    actions, log_prob = sample(state.actor, batch.next_observations, noise.target)
    next_q = smaller(state.critic_1_target, state.critic_2_target, batch.next_observations, actions)
    if config.cql_max_target_backup:
        best = jax.nn.one_hot(next_q.argmax(1), next_q.shape[1])
        next_q, log_prob = jnp.sum(best * next_q, 1), jnp.sum(best * log_prob, 1)
    if config.backup_entropy:
        next_q = next_q - temperature(state.log_alpha, config) * log_prob
    return next_q


def conservative_gap(critic, state, config, batch, noise, q):
    """How far the soft maximum over sampled actions lies above the data's values, on average."""
    action_dim = batch.actions.shape[-1]
    current, current_log_prob = sample(state.actor, batch.observations, noise.current)
    following, next_log_prob = sample(state.actor, batch.next_observations, noise.next)
    values = [value(critic, batch.observations, a) for a in (noise.random, following, current)]
    if config.cql_importance_sample:
        densities = -action_dim * jnp.log(2.0), next_log_prob, current_log_prob
        values = [x - density for x, density in zip(values, densities, strict=True)]
    else:
        values.append(q[:, None])
    sampled = jnp.concatenate(values, axis=1) / config.cql_temp
    soft_maximum = config.cql_temp * jax.nn.logsumexp(sampled, axis=1)
    return jnp.mean(jnp.clip(soft_maximum - q, config.cql_clip_diff_min, config.cql_clip_diff_max))


def penalty(gap, log_alpha_prime, config):
    if not config.cql_lagrange:
        return config.cql_alpha * gap
    weight = jnp.clip(jnp.exp(log_alpha_prime), 0.0, 1e6)
    return weight * config.cql_alpha * (gap - config.cql_target_action_gap)


def critic_loss(critics, state, config, batch, noise):
    next_q = backup(state, config, batch, noise)
    target = batch.rewards + config.discount * (1.0 - batch.terminals) * next_q
    loss, aux = 0.0, {"average_target_q": next_q.mean()}
    for i, critic in enumerate(critics, start=1):
        q = value(critic, batch.observations, batch.actions)
        gap = conservative_gap(critic, state, config, batch, noise, q)
        error = jnp.mean((q - target) ** 2)
        loss += error + penalty(gap, state.log_alpha_prime, config)
        aux |= {f"qf{i}_loss": error, f"average_qf{i}": q.mean(), f"cql_qf{i}_diff": gap}
    return loss, aux


def alpha_prime_loss(log_alpha_prime, config, gap_1, gap_2):
    return -0.5 * sum(penalty(gap, log_alpha_prime, config) for gap in (gap_1, gap_2))


# ---- all of them at once -------------------------------------------------------------------------------------------


def total_loss(params, state, config, batch, noise):
    state = SimpleNamespace(**state._asdict() | jax.lax.stop_gradient(params))
    policy_loss, aux = actor_loss(params["actor"], state, config, batch, noise)
    critics = params["critic_1"], params["critic_2"]
    value_loss, more = critic_loss(critics, state, config, batch, noise)
    aux |= more | {"policy_loss": policy_loss}
    loss = policy_loss + value_loss
    if config.tune_temperature:
        aux["alpha_loss"] = alpha_loss(params["log_alpha"], state, jax.lax.stop_gradient(aux["log_prob"]))
        loss += aux["alpha_loss"]
    if config.cql_lagrange:
        gaps = jax.lax.stop_gradient((aux["cql_qf1_diff"], aux["cql_qf2_diff"]))
        aux["alpha_prime_loss"] = alpha_prime_loss(params["log_alpha_prime"], config, *gaps)
        loss += aux["alpha_prime_loss"]
    return loss, aux | {"log_pi": aux["log_prob"].mean()}


def optimisers(config):
    slow, fast = optax.adam(config.actor_lr), optax.adam(config.critic_lr)
    found = {"actor": slow, "critic_1": fast, "critic_2": fast}
    found |= {"log_alpha": slow} if config.tune_temperature else {}
    return found | ({"log_alpha_prime": fast} if config.cql_lagrange else {})


def update(state, config, batch, noise, move_targets):
    params = {name: getattr(state, name) for name in LEARNT}
    gradients, metrics = jax.grad(total_loss, has_aux=True)(params, state, config, batch, noise)
    for name, optimiser in optimisers(config).items():
        change, moments = optimiser.update(gradients[name], getattr(state, f"{name}_optimizer"))
        weights = optax.apply_updates(params[name], change)
        state = state._replace(**{name: weights, f"{name}_optimizer": moments})
    if move_targets:
        for critic in ("critic_1", "critic_2"):
            targets = getattr(state, critic), getattr(state, f"{critic}_target")
            moved = optax.incremental_update(*targets, config.tau)
            state = state._replace(**{f"{critic}_target": moved})
    return state, metrics


def create_train_state(key, config, state_dim, action_dim, max_action):
    k0, k1, k2 = jax.random.split(key, 3)
    constants = {"multiplier": jnp.array(config.policy_log_std_multiplier), "offset": jnp.array(-1.0)}
    actor = {"base": create_mlp(k0, [state_dim, *[config.hidden_dim] * 3, 2 * action_dim]), **constants}
    both = state_dim + action_dim
    critics = tuple(
        create_mlp(k, [both, *[config.hidden_dim] * depth, 1]) for k, depth in ((k1, config.critic_n_hiddens), (k2, 3))
    )
    parts = dict(zip(LEARNT, (actor, *critics, jnp.array(0.0), jnp.array(1.0)), strict=True))
    moments = {f"{name}_optimizer": optax.adam(1e-3).init(part) for name, part in parts.items()}
    return State(**parts, **moments, critic_1_target=critics[0], critic_2_target=critics[1])


def from_torch(part, weights):
    if part.startswith("log"):
        return weights["constant"]
    numbers = sorted({int(name.split(".")[1]) for name in weights if "network" in name})
    stem = "base_network" if part == "actor" else "network"
    layers = {
        f"layer_{i}": {"kernel": weights[f"{stem}.{n}.weight"].T, "bias": weights[f"{stem}.{n}.bias"]}
        for i, n in enumerate(numbers)
    }
    if part != "actor":
        return layers
    constants = (weights[f"log_std_{name}.constant"] for name in ("multiplier", "offset"))
    return {"base": layers, **dict(zip(("multiplier", "offset"), constants, strict=True))}


def outputs(state, batch):
    mean, log_std = policy(state.actor, batch.observations)
    critics = {name: value(getattr(state, name), batch.observations, batch.actions) for name in LEARNT[1:3]}
    return {"mean": mean, "std": jnp.exp(log_std), **critics}


def draw_noise(key, step, config, dataset_size, action_dim, in_bc_steps):
    key = jax.random.fold_in(key, step)
    one, many = (config.batch_size, action_dim), (config.batch_size, config.cql_n_actions, action_dim)
    shapes = {"actor": one, "bc": one, "target": many if config.cql_max_target_backup else one}
    shapes |= {"current": many, "next": many}
    noise = {name: jax.random.normal(jax.random.fold_in(key, i), shapes[name]) for i, name in enumerate(shapes)}
    noise["random"] = jax.random.uniform(jax.random.fold_in(key, 5), many, minval=-1.0)
    noise["bc"] = noise["bc"] if in_bc_steps else None
    return jax.random.randint(jax.random.fold_in(key, 6), one[:1], 0, dataset_size), noise
