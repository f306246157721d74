"""Behaviour cloning of finite actions from images, of flax's own layers: channels last, convolutions numbered."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn


class Actor(nn.Module):
    action_dim: int
    hidden_dims: tuple[int, ...]

    @nn.compact
    def __call__(self, observations: jax.Array) -> jax.Array:
        x = observations.transpose(0, 2, 3, 1) / 255.0
        x = nn.relu(nn.Conv(16, (3, 3), padding="VALID")(x)).reshape(len(x), -1)
        for width in self.hidden_dims:
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(self.action_dim)(x)


class State(NamedTuple):
    actor: Any
    actor_optimizer: Any


def actor_of(config, action_dim):
    return Actor(action_dim, config.hidden_dims)


def adam(config):
    return optax.adam(config.learning_rate, eps=config.adam_eps)


def create_train_state(key, config, state_dim, action_dim):
    images = jnp.zeros((1, *state_dim))
    # Shapes are all that the checker needs of fresh weights.
    shapes = jax.eval_shape(actor_of(config, action_dim).init, key, images)["params"]
    params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return State(params, adam(config).init(params))


def logits_of(actor, config, observations):
    return actor_of(config, actor[f"Dense_{len(config.hidden_dims)}"]["bias"].size).apply(
        {"params": actor}, observations
    )


def outputs(state, config, batch):
    return {"actor": logits_of(state.actor, config, batch.observations)}


def actor_loss(actor, config, batch):
    logits = logits_of(actor, config, batch.observations)
    imitation = optax.softmax_cross_entropy_with_integer_labels(logits, batch.actions).mean()
    penalised = jax.nn.log_softmax(logits) if config.penalize_log_probs else logits
    penalty = config.logit_penalty * jnp.square(penalised).mean()
    return imitation + penalty, {"imitation_loss": imitation, "regularization_loss": penalty}


def update(state, config, batch):
    (loss, terms), gradient = jax.value_and_grad(actor_loss, has_aux=True)(state.actor, config, batch)
    change, moments = adam(config).update(gradient, state.actor_optimizer)
    return State(optax.apply_updates(state.actor, change), moments), {"loss": loss, **terms}
