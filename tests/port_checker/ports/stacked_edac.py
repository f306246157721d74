"""EDAC with one flax critic that `nn.vmap` stacks into an ensemble, and einsum for what the ensemble has in common."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct

Dense = partial(nn.Dense, param_dtype=float)
HIDDEN_LAYERS = 3


class Actor(nn.Module):
    action_dim: int
    hidden_dim: int

    @nn.compact
    def __call__(self, observations):
        hidden = observations
        for i in range(HIDDEN_LAYERS):
            hidden = nn.relu(Dense(self.hidden_dim, name=f"trunk_{i}")(hidden))
        log_std = Dense(self.action_dim, name="log_sigma")(hidden)
        return Dense(self.action_dim, name="mu")(hidden), jnp.clip(log_std, -5.0, 2.0)


class Critic(nn.Module):
    hidden_dim: int

    @nn.compact
    def __call__(self, observations, actions):
        hidden = jnp.concatenate([observations, actions], axis=-1)
        for i in range(HIDDEN_LAYERS):
            hidden = nn.relu(Dense(self.hidden_dim, name=f"layer_{i}")(hidden))
        return Dense(1, name=f"layer_{HIDDEN_LAYERS}")(hidden)[..., 0]


def ensemble(hidden_dim, n_critics):
    """Critics with weights of their own, stacked along the first axis: values (E, B)."""
    stacked = nn.vmap(
        Critic, variable_axes={"params": 0}, split_rngs={"params": True}, in_axes=None, axis_size=n_critics
    )
    return stacked(hidden_dim)


class State(struct.PyTreeNode):
    actor: Any
    critic: Any
    critic_target: Any
    log_alpha: jax.Array
    actor_optimizer: Any
    critic_optimizer: Any
    log_alpha_optimizer: Any
    policy: Actor = struct.field(pytree_node=False)
    q: nn.Module = struct.field(pytree_node=False)


def create_train_state(key, config, state_dim, action_dim, max_action):
    policy, q = Actor(action_dim, config.hidden_dim), ensemble(config.hidden_dim, config.n_critics)
    keys, observations = jax.random.split(key), jnp.zeros((1, state_dim))
    actor = policy.init(keys[0], observations)["params"]
    critic = q.init(keys[1], observations, jnp.zeros((1, action_dim)))["params"]
    log_alpha = jnp.zeros(1)
    moments = (optax.adam(1e-3).init(part) for part in (actor, critic, log_alpha))
    return State(actor, critic, critic, log_alpha, *moments, policy=policy, q=q)


def from_torch(part, weights):
    if part == "log_alpha":
        return weights["constant"]
    if part == "actor":
        names = {f"trunk_{i}": f"trunk.{2 * i}" for i in range(HIDDEN_LAYERS)} | {"mu": "mu", "log_sigma": "log_sigma"}
        return {a: {"kernel": weights[f"{b}.weight"].T, "bias": weights[f"{b}.bias"]} for a, b in names.items()}
    numbers = range(HIDDEN_LAYERS + 1)
    return {
        f"layer_{i}": {
            "kernel": weights[f"critic.{2 * i}.weight"],
            "bias": weights[f"critic.{2 * i}.bias"].squeeze(1),
        }
        for i in numbers
    }


def outputs(state, batch):
    mean, log_std = state.policy.apply({"params": state.actor}, batch.observations)
    return {
        "mean": mean,
        "std": jnp.exp(log_std),
        "critic": values(state, state.critic, batch.observations, batch.actions),
        "critic_target": values(state, state.critic_target, batch.next_observations, batch.actions),
    }


def values(state, critic, observations, actions):
    return state.q.apply({"params": critic}, observations, actions)


def sample(state, actor, observations, noise):
    mean, log_std = state.policy.apply({"params": actor}, observations)
    before = mean + jnp.exp(log_std) * noise
    actions = jnp.tanh(before)
    density = -0.5 * noise**2 - log_std - 0.5 * jnp.log(2.0 * jnp.pi)
    return actions, (density - jnp.log(1.0 - actions**2 + 1e-6)).sum(-1)


# ---- losses --------------------------------------------------------------------------------------------------------


def alpha_loss(log_alpha, state, batch, noise):
    actions, log_prob = sample(state, state.actor, batch.observations, noise.alpha)
    target_entropy = -actions.shape[-1]
    return -jnp.mean(log_alpha * (log_prob + target_entropy))


def actor_loss(actor, state, batch, noise):
    actions, log_prob = sample(state, actor, batch.observations, noise.actor)
    q = values(state, state.critic, batch.observations, actions)
    loss = jnp.mean(jnp.exp(state.log_alpha) * log_prob - q.min(axis=0))
    return loss, {"batch_entropy": -log_prob.mean(), "q_policy_std": q.std(axis=0, ddof=1).mean()}


def target(state, config, batch, noise):
    actions, log_prob = sample(state, state.actor, batch.next_observations, noise.target)
    next_q = values(state, state.critic_target, batch.next_observations, actions).min(axis=0)
    soft_q = next_q - jnp.exp(state.log_alpha) * log_prob
    return batch.rewards + config.discount * (1.0 - batch.terminals) * soft_q


def slopes(state, critic, batch):
    """The gradient of each critic's value by the action, (E, B, A)."""

    def summed(actions):
        return values(state, critic, batch.observations, actions).sum(1)

    return jax.jacrev(summed)(batch.actions)


def likeness(slopes):
    """The cosine between each two critics' slopes: mean over rows, sum over pairs, over E - 1."""
    directions = slopes / (jnp.linalg.norm(slopes, axis=-1, keepdims=True) + 1e-10)
    cosines = jnp.einsum("ibk,jbk->bij", directions, directions)
    others = 1.0 - jnp.eye(len(slopes))
    return jnp.einsum("bij,ij->", cosines, others) / (cosines.shape[0] * (len(slopes) - 1))


def critic_loss(critic, state, config, batch, noise):
    errors = values(state, critic, batch.observations, batch.actions) - target(state, config, batch, noise)
    return jnp.einsum("eb,eb->", errors, errors) / errors.shape[1] + config.eta * likeness(slopes(state, critic, batch))


# ---- update --------------------------------------------------------------------------------------------------------


def step(state, part, gradient, rate):
    change, moments = optax.adam(rate).update(gradient, getattr(state, f"{part}_optimizer"))
    return state.replace(**{part: optax.apply_updates(getattr(state, part), change), f"{part}_optimizer": moments})


def learn_temperature(state, config, batch, noise):
    loss, gradient = jax.value_and_grad(alpha_loss)(state.log_alpha, state, batch, noise)
    return step(state, "log_alpha", gradient, config.temperature_lr), {"alpha_loss": loss}


def learn_policy(state, config, batch, noise):
    (loss, aux), gradient = jax.value_and_grad(actor_loss, has_aux=True)(state.actor, state, batch, noise)
    return step(state, "actor", gradient, config.actor_lr), {"actor_loss": loss, **aux}


def learn_values(state, config, batch, noise):
    loss, gradient = jax.value_and_grad(critic_loss)(state.critic, state, config, batch, noise)
    return step(state, "critic", gradient, config.critic_lr), {"critic_loss": loss}


def update(state, config, batch, noise):
    metrics = {}
    for learn in (learn_temperature, learn_policy, learn_values):
        state, more = learn(state, config, batch, noise)
        metrics |= more
    critic_target = jax.tree.map(lambda t, s: t + config.tau * (s - t), state.critic_target, state.critic)
    random = values(state, state.critic, batch.observations, 2.0 * noise.random - 1.0)
    metrics |= {"alpha": jnp.exp(state.log_alpha), "q_random_std": random.std(axis=0, ddof=1).mean()}
    return state.replace(critic_target=critic_target), metrics


def draw_noise(key, step, config, dataset_size, action_dim):
    index_key, *keys = jax.random.split(jax.random.fold_in(key, step), 5)
    shape = (config.batch_size, action_dim)
    noise = {name: jax.random.normal(k, shape) for name, k in zip(("alpha", "actor", "target"), keys[:3], strict=True)}
    noise["random"] = jax.random.uniform(keys[3], shape)
    return jax.random.randint(index_key, shape[:1], 0, dataset_size), noise
