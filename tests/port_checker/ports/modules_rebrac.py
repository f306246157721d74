"""ReBRAC as frozen dataclasses that are pytrees: layers, networks and the state itself carry their own methods."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax


def module(cls):
    """A class whose fields are a pytree's leaves."""
    return jax.tree_util.register_dataclass(dataclass(frozen=True)(cls))


@module
class Linear:
    weight: jax.Array
    bias: jax.Array

    @classmethod
    def create(cls, key, fan_in, fan_out):
        return cls(jax.random.normal(key, (fan_out, fan_in)) / fan_in**0.5, jnp.full(fan_out, 0.1))

    def __call__(self, x):
        return x @ self.weight.T + self.bias


@module
class LayerNorm:
    gain: jax.Array
    shift: jax.Array

    def __call__(self, x):
        centred = x - x.mean(-1, keepdims=True)
        variance = jnp.square(centred).mean(-1, keepdims=True)
        return self.gain * centred / jnp.sqrt(variance + 1e-6) + self.shift


@module
class MLP:
    layers: tuple[Linear, ...]
    # One behind each hidden layer, or none at all
    norms: tuple[LayerNorm, ...]

    @classmethod
    def create(cls, key, sizes, normed):
        keys = jax.random.split(key, len(sizes) - 1)
        norms = tuple(LayerNorm(jnp.ones(n), jnp.zeros(n)) for n in sizes[1:-1]) if normed else ()
        return cls(tuple(map(Linear.create, keys, sizes[:-1], sizes[1:])), norms)

    def __call__(self, x):
        for i, layer in enumerate(self.layers[:-1]):
            x = jax.nn.relu(layer(x))
            x = self.norms[i](x) if self.norms else x
        return self.layers[-1](x)


@module
class Actor:
    net: MLP

    def __call__(self, observations):
        return jnp.tanh(self.net(observations))


@module
class Critic:
    q1: MLP
    q2: MLP

    def __call__(self, observations, actions):
        inputs = jnp.concatenate([observations, actions], axis=-1)
        return jnp.concatenate([self.q1(inputs), self.q2(inputs)], axis=-1).T


def from_torch(part, weights):
    def mlp(net):
        numbers = sorted({int(name.split(".")[1]) for name in weights if name.startswith(f"{net}.")})
        pairs = [(weights[f"{net}.{i}.weight"], weights[f"{net}.{i}.bias"]) for i in numbers]
        layers, norms = ([pair for pair in pairs if pair[0].ndim == axes] for axes in (2, 1))
        return MLP(tuple(Linear(*pair) for pair in layers), tuple(LayerNorm(*pair) for pair in norms))

    return Actor(mlp("net")) if part.startswith("actor") else Critic(mlp("q1"), mlp("q2"))


def optimiser(rate):
    return optax.adam(rate)


def draw_noise(key, step, config, dataset_size, action_dim):
    rows, target, random = jax.random.split(jax.random.fold_in(key, step), 3)
    shape = (config.batch_size, action_dim)
    return jax.random.choice(rows, dataset_size, shape[:1]), {
        "target": jax.random.normal(target, shape),
        "random": jax.random.uniform(random, shape, minval=-1, maxval=1),
    }


@module
class State:
    actor: Actor
    critic: Critic
    actor_target: Actor
    critic_target: Critic
    actor_optimizer: Any
    critic_optimizer: Any

    def target(self, config, batch, noise):
        smoothing = jnp.clip(config.policy_noise * noise.target, -config.noise_clip, config.noise_clip)
        actions = jnp.clip(self.actor_target(batch.next_observations) + smoothing, -1, 1)
        distance = jnp.square(actions - batch.next_actions).sum(-1)
        next_q = self.critic_target(batch.next_observations, actions).min(0)
        next_q = next_q - config.critic_bc_coef * distance
        return batch.rewards + config.discount * (1 - batch.terminals) * next_q

    def critic_loss(self, critic, config, batch, noise):
        q = critic(batch.observations, batch.actions)
        errors = jnp.square(q - self.target(config, batch, noise))
        return errors.mean(1).sum(), {"q_min": q.min(0).mean()}

    def actor_loss(self, actor, config, batch):
        actions = actor(batch.observations)
        distance = jnp.square(actions - batch.actions).sum(-1)
        q = self.critic(batch.observations, actions).min(0)
        if config.normalize_q:
            q = q / jax.lax.stop_gradient(jnp.abs(q).mean())
        return (config.actor_bc_coef * distance - q).mean(), {"bc_mse_policy": distance.mean()}

    def stepped(self, part, gradient, rate):
        change, moments = optimiser(rate).update(gradient, getattr(self, f"{part}_optimizer"))
        weights = optax.apply_updates(getattr(self, part), change)
        return replace(self, **{part: weights, f"{part}_optimizer": moments})

    def followed(self, part, tau):
        ours, theirs = getattr(self, f"{part}_target"), getattr(self, part)
        return replace(self, **{f"{part}_target": jax.tree.map(lambda t, s: t - tau * (t - s), ours, theirs)})

    def learn_policy(self, config, batch):
        (loss, aux), gradient = jax.value_and_grad(self.actor_loss, has_aux=True)(self.actor, config, batch)
        # The actor's target follows it before its step, the critics' after theirs.
        state = self.followed("actor", config.tau).stepped("actor", gradient, config.actor_lr)
        return state.followed("critic", config.tau), {"actor_loss": loss} | aux

    def update(self, config, batch, noise, delayed):
        (loss, aux), gradient = jax.value_and_grad(self.critic_loss, has_aux=True)(self.critic, config, batch, noise)
        state = self.stepped("critic", gradient, config.critic_lr)
        metrics = {"critic_loss": loss} | aux
        if delayed:
            state, more = state.learn_policy(config, batch)
            metrics |= more
        return state, metrics


def create_train_state(key, config, state_dim, action_dim, max_action):
    k1, k2, k3 = jax.random.split(key, 3)
    hidden, both = [config.hidden_dim], state_dim + action_dim
    actor = Actor(MLP.create(k1, [state_dim, *hidden * config.actor_n_hiddens, action_dim], config.actor_ln))
    sizes = [both, *hidden * config.critic_n_hiddens, 1]
    critic = Critic(*(MLP.create(k, sizes, config.critic_ln) for k in (k2, k3)))
    moments = (optimiser(1e-3).init(part) for part in (actor, critic))
    return State(actor, critic, actor, critic, *moments)


def outputs(state, batch):
    return {"actor": state.actor(batch.observations), "critic": state.critic(batch.observations, batch.actions)}
