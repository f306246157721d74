"""TD3+BC as plain functions over dicts: kernels as PyTorch's, both critics in one pass, one optimiser for both."""

import jax
import jax.numpy as jnp
import optax

ADAM = optax.adam(3e-4)


def init_layers(key, sizes):
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        {"w": jax.random.normal(k, (n, m)) / m**0.5, "b": jnp.zeros(n)}
        for k, m, n in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def mlp(layers, x):
    *hidden, last = layers
    for layer in hidden:
        x = jax.nn.relu(x @ layer["w"].T + layer["b"])
    return x @ last["w"].T + last["b"]


def policy(layers, observations, max_action):
    return max_action * jnp.tanh(mlp(layers, observations))


def values(critics, observations, actions):
    """Of both critics at once, (2, B)."""
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *critics)
    inputs = jnp.concatenate([observations, actions], axis=1)
    return jax.vmap(mlp, in_axes=(0, None))(stacked, inputs)[..., 0]


def create_train_state(key, config, state_dim, action_dim, max_action):
    k1, k2, k3 = jax.random.split(key, 3)
    actor = init_layers(k1, [state_dim, 256, 256, action_dim])
    critics = tuple(init_layers(k, [state_dim + action_dim, 256, 256, 1]) for k in (k2, k3))
    return {
        "actor": actor,
        "critic_1": critics[0],
        "critic_2": critics[1],
        "actor_target": actor,
        "critic_1_target": critics[0],
        "critic_2_target": critics[1],
        "actor_optimizer": ADAM.init(actor),
        "critics_optimizer": ADAM.init(critics),
        "max_action": max_action,
    }


def outputs(state, batch):
    q1, q2 = values((state["critic_1"], state["critic_2"]), batch.observations, batch.actions)
    return {"actor": policy(state["actor"], batch.observations, state["max_action"]), "critic_1": q1, "critic_2": q2}


def critic_loss(params, state, batch, noise, config):
    bound = state["max_action"]
    smoothing = jnp.clip(
        config.policy_noise * bound * noise.target, -config.noise_clip * bound, config.noise_clip * bound
    )
    actions = jnp.clip(policy(state["actor_target"], batch.next_observations, bound) + smoothing, -bound, bound)
    next_q = values((state["critic_1_target"], state["critic_2_target"]), batch.next_observations, actions).min(0)
    target = batch.rewards + config.discount * jnp.where(batch.terminals > 0, 0.0, next_q)
    # A sum in another order than the reference's
    return jnp.square(values(params, batch.observations, batch.actions) - target).mean() * 2


def actor_loss(actor, critic_1, state, batch, config):
    actions = policy(actor, batch.observations, state["max_action"])
    q = values((critic_1, critic_1), batch.observations, actions)[0]
    scale = jax.lax.stop_gradient(jnp.abs(q).mean())
    return jnp.mean((actions - batch.actions) ** 2) - config.alpha * q.mean() / scale


def follow(target, source, tau):
    return jax.tree.map(lambda t, s: t + tau * (s - t), target, source)


def update(state, batch, noise, config, delayed):
    critics = state["critic_1"], state["critic_2"]
    loss, gradient = jax.value_and_grad(critic_loss)(critics, state, batch, noise, config)
    change, moments = ADAM.update(gradient, state["critics_optimizer"])
    critics = optax.apply_updates(critics, change)
    state = state | {"critic_1": critics[0], "critic_2": critics[1], "critics_optimizer": moments}
    metrics = {"critic_loss": loss}
    if delayed:
        loss, gradient = jax.value_and_grad(actor_loss)(state["actor"], critics[0], state, batch, config)
        change, moments = ADAM.update(gradient, state["actor_optimizer"])
        state = state | {"actor": optax.apply_updates(state["actor"], change), "actor_optimizer": moments}
        for name in ("actor", "critic_1", "critic_2"):
            state = state | {f"{name}_target": follow(state[f"{name}_target"], state[name], config.tau)}
        metrics["policy_loss"] = loss
    return state, metrics
