"""A Decision Transformer in einsum over a dict of arrays, without a module; its optimiser is one chain of optax."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct


class State(struct.PyTreeNode):
    model: Any
    model_optimizer: Any
    num_heads: int = struct.field(pytree_node=False)


def from_torch(part, weights):
    def pair(name):
        return {"w": weights[f"{name}.weight"], "b": weights[f"{name}.bias"]}

    def block(name):
        packed = (jnp.split(weights[f"{name}.attention.in_proj_{x}"], 3) for x in ("weight", "bias"))
        found = {f"{letter}_proj": {"w": w, "b": b} for letter, w, b in zip("qkv", *packed, strict=True)}
        found |= {"norm1": pair(f"{name}.norm1"), "norm2": pair(f"{name}.norm2")}
        found |= {"up": pair(f"{name}.mlp.0"), "down": pair(f"{name}.mlp.2")}
        return found | {"out_proj": pair(f"{name}.attention.out_proj")}

    model = {name: pair(name) for name in ("emb_norm", "out_norm", "state_emb", "action_emb", "return_emb")}
    num_layers = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blocks."))
    model |= {"times": weights["timestep_emb.weight"], "head": pair("action_head.0")}
    return model | {"blocks": [block(f"blocks.{i}") for i in range(num_layers)]}


def create_train_state(key, config, state_dim, action_dim, max_action):
    width, keys = config.embedding_dim, iter(jax.random.split(key, 100))

    def linear(fan_in, fan_out):
        return {"w": 0.02 * jax.random.normal(next(keys), (fan_out, fan_in)), "b": jnp.zeros(fan_out)}

    def norm():
        return {"w": jnp.ones(width), "b": jnp.zeros(width)}

    def block():
        found = {name: linear(width, width) for name in ("q_proj", "k_proj", "v_proj", "out_proj")}
        found |= {"up": linear(width, 4 * width), "down": linear(4 * width, width)}
        return found | {"norm1": norm(), "norm2": norm()}

    sizes = {"state_emb": state_dim, "action_emb": action_dim, "return_emb": 1}
    model = {name: linear(size, width) for name, size in sizes.items()}
    model |= {"emb_norm": norm(), "out_norm": norm(), "head": linear(width, action_dim)}
    model["times"] = 0.02 * jax.random.normal(next(keys), (config.episode_len + config.seq_len, width))
    model["blocks"] = [block() for _ in range(config.num_layers)]
    return State(model, optimiser(config).init(model), config.num_heads)


# ---- model ---------------------------------------------------------------------------------------------------------


def affine(layer, x):
    return jnp.einsum("...i,oi->...o", x, layer["w"]) + layer["b"]


def layer_norm(layer, x):
    mean = x.mean(-1, keepdims=True)
    variance = jnp.mean((x - mean) ** 2, -1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * layer["w"] + layer["b"]


def gelu(x):
    return x * jax.scipy.stats.norm.cdf(x)


def drop(x, mask):
    return x if mask is None else x * mask


def attention(block, queries, tokens, positions, num_heads, mask):
    """What queries (B, Q, E), which stand at these positions, find in the tokens (B, T, E) up to themselves."""
    inputs = {"q_proj": queries, "k_proj": tokens, "v_proj": tokens}
    q, k, v = (jnp.stack(jnp.split(affine(block[name], x), num_heads, -1)) for name, x in inputs.items())
    scores = jnp.einsum("hbqd,hbtd->bhqt", q, k) / jnp.sqrt(q.shape[-1])
    seen = positions[:, None] >= jnp.arange(tokens.shape[1])
    shares = drop(jax.nn.softmax(scores, where=seen, axis=-1), mask)
    found = jnp.einsum("bhqt,hbtd->bqhd", shares, v)
    return affine(block["out_proj"], found.reshape(queries.shape))


def predict(model, num_heads, batch, dropout):
    """The actions (B, K, A)."""
    embedded = [
        affine(model["return_emb"], batch.returns[..., None]),
        affine(model["state_emb"], batch.observations),
        affine(model["action_emb"], batch.actions),
    ]
    times = model["times"][batch.timesteps]
    tokens = jnp.stack([x + times for x in embedded], 2)
    tokens = tokens.reshape(len(times), -1, times.shape[-1])
    tokens = drop(layer_norm(model["emb_norm"], tokens), dropout and dropout.embedding)
    every = jnp.arange(tokens.shape[1])
    for i, block in enumerate(model["blocks"]):
        masks = dropout.blocks[i] if dropout else BlockMasks(None, None, None)
        # Only the states are read from the last block.
        positions = every[1::3] if i == len(model["blocks"]) - 1 else every
        normed = layer_norm(block["norm1"], tokens)
        found = attention(block, normed[:, positions], normed, positions, num_heads, masks.attention)
        tokens = tokens[:, positions] + drop(found, masks.output)
        inner = gelu(affine(block["up"], layer_norm(block["norm2"], tokens)))
        tokens = tokens + drop(affine(block["down"], inner), masks.mlp)
    return jnp.tanh(affine(model["head"], layer_norm(model["out_norm"], tokens)))


def outputs(state, batch):
    return {"actions": predict(state.model, state.num_heads, batch, None)}


# ---- randomness ----------------------------------------------------------------------------------------------------


class BlockMasks(NamedTuple):
    attention: Any
    output: Any
    mlp: Any


class Masks(NamedTuple):
    embedding: Any
    blocks: Any


def draw_noise(key, step, config, dataset_size):
    size, width, steps = config.batch_size, config.embedding_dim, config.seq_len
    row_key, *keys = jax.random.split(jax.random.fold_in(key, step), 2 + 3 * config.num_layers)
    keys = iter(keys)

    def mask(rate, *shape):
        kept = jax.random.uniform(next(keys), shape) >= rate
        return jnp.where(kept, 1 / (1 - rate), 0.0) if rate else None

    embedding, blocks = mask(config.embedding_dropout, size, 3 * steps, width), []
    for num_queries in [3 * steps] * (config.num_layers - 1) + [steps]:
        attention = mask(config.attention_dropout, size, config.num_heads, num_queries, 3 * steps)
        output, mlp = (mask(config.residual_dropout, size, num_queries, width) for _ in range(2))
        blocks.append(BlockMasks(attention, output, mlp))
    rows = jax.random.randint(row_key, (size,), 0, dataset_size)
    return rows, {"dropout": Masks(embedding, tuple(blocks))}


# ---- learning ------------------------------------------------------------------------------------------------------


def action_loss(model, state, batch, noise):
    errors = predict(model, state.num_heads, batch, noise.dropout) - batch.actions
    return jnp.einsum("bka,bka,bk->", errors, errors, batch.mask) / errors.size


def clip_by_torch_norm(largest):
    """PyTorch's, with an epsilon beside the norm that optax's own does not have."""

    def clip(gradient, _):
        factor = jnp.minimum(1.0, largest / (optax.tree.norm(gradient) + 1e-6))
        return jax.tree.map(lambda leaf: factor * leaf, gradient)

    return optax.stateless(clip)


def warmed_up(config):
    def rate(count):
        return config.learning_rate * jnp.minimum(1.0, (count + 1.0) / config.warmup_steps)

    return rate


def optimiser(config):
    return optax.chain(
        optax.identity() if config.clip_grad is None else clip_by_torch_norm(config.clip_grad),
        optax.scale_by_adam(*config.betas),
        optax.add_decayed_weights(config.weight_decay),
        optax.scale_by_learning_rate(warmed_up(config)),
    )


def update(state, config, batch, noise):
    loss, gradient = jax.value_and_grad(action_loss)(state.model, state, batch, noise)
    change, moments = optimiser(config).update(gradient, state.model_optimizer, state.model)
    state = state.replace(model=optax.apply_updates(state.model, change), model_optimizer=moments)
    # What the next update's will be
    return state, {"train_loss": loss, "learning_rate": warmed_up(config)(moments[-1].count)}
