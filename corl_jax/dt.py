"""Decision Transformer in JAX: a sequence model that is given a return to reach, and predicts the actions for it.

Its twin is `corl_torch/dt.py`.

Chen et al., Decision Transformer: Reinforcement Learning via Sequence Modeling, 2021, https://arxiv.org/abs/2106.01345
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from shared.runs.start import cli

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct
from jax import Array, value_and_grad
from jax.lax import erf
from jax.nn import softmax
from jax.nn.initializers import normal, zeros
from jax.numpy import arange, einsum, square, stack, where

from shared.data.sequences import PromptedPolicy, Windows
from shared.errors import InputError
from shared.frameworks.jax_calls import History
from shared.frameworks.jax_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, take, to_device
from shared.frameworks.jax_layers import Linear, Network, dropout_mask, is_key, linear, xavier_uniform
from shared.frameworks.jax_seeds import train_together
from shared.frameworks.jax_side import enable_compilation_cache, evaluate, narrow, resolve_device
from shared.runs.fields import bounded, numbers, positive
from shared.runs.run import Run
from shared.runs.settings import DeterministicConfig, OfflineConfig
from shared.runs.task import Extract, Preparation, load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Width of a token
    embedding_dim: int = bounded(128, low=1)
    # Transformer blocks
    num_layers: int = bounded(3, low=1)
    # Attention heads, a divisor of embedding_dim
    num_heads: int = bounded(1, low=1)
    # Steps that the model sees at once; each is three tokens
    seq_len: int = bounded(20, low=1)
    # Share of the attention weights that dropout zeroes
    attention_dropout: float = bounded(0.1, low=0, high=0.99)
    # Share of each block's output that dropout zeroes before it is added to the tokens
    residual_dropout: float = bounded(0.1, low=0, high=0.99)
    # Share of the embedded tokens that dropout zeroes
    embedding_dropout: float = bounded(0.1, low=0, high=0.99)
    # Learning rate after the warm-up
    learning_rate: float = positive(1e-4)
    # Adam's decay rates: for the gradient, and for its square
    betas: tuple[float, float] = numbers((0.9, 0.999), low=0.0, high=1.0)
    # Weight decay of every parameter
    weight_decay: float = bounded(1e-4, low=0)
    # Largest norm of a gradient, which is clipped to it; null: no clipping
    clip_grad: float | None = positive(0.25)
    # Windows in a batch
    batch_size: int = bounded(64, low=1)
    # Updates over which the learning rate rises to its full value
    warmup_steps: int = bounded(10_000, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, DeterministicConfig, OfflineConfig):
    """The settings of a whole run."""

    group: str = "DT-D4RL"
    name: str = "DT"
    # Dataset: mini/pendulum-medium-expert, a D4RL id, minari:NAME, ogbench:NAME, or a file
    env: str = "mini/pendulum-medium-expert"
    max_timesteps: int = bounded(100_000, low=1)
    eval_freq: int = bounded(10_000, low=1)
    n_episodes: int = bounded(100, low=1)
    # Seed of the weights, the batches and dropout
    seed: int = bounded(10, low=0, high=2**32 - 1)
    # Refuse operations that are not deterministic, in PyTorch; no effect in JAX
    deterministic_torch: bool = False
    # Longest episode, in steps: evaluations cut episodes there, and the data's may be one step longer
    episode_len: int = bounded(1000, low=1)
    # Bound of every action component
    max_action: float = positive(1.0)
    # Factor on returns; null: CORL's 0.001 for D4RL's names, otherwise 1 / the largest return of the data
    reward_scale: float | None = positive(None)
    # Loader processes in CORL; no effect here; kept so that CORL's files load
    num_workers: int = bounded(4, low=0)
    # Returns to prompt for, each in a separate evaluation; the first one's score is the run's. Null: CORL's 12000 and
    # 6000, or, for your own data, the best return and the middle between the worst and the best
    target_returns: tuple[float, ...] | None = numbers(None)


# ---- windows -------------------------------------------------------------------------------------------------------


def take_windows(dataset: PackedDataset, indices: Array, seq_len: int) -> Windows:
    """The windows of K = `seq_len` steps that begin at the rows `indices` (B,), padded with zeros after the end."""
    steps = arange(seq_len)
    rows = take(dataset, (indices[:, None] + steps).clip(max=len(dataset) - 1))
    inside = steps < rows.remaining[:, :1]
    return Windows(
        observations=where(inside[..., None], rows.observations, 0.0),
        actions=where(inside[..., None], rows.actions, 0.0),
        returns=where(inside, rows.returns, 0.0),
        # The counting continues after the end, as in CORL.
        timesteps=rows.timesteps[:, :1].astype(steps.dtype) + steps,
        mask=inside.astype(rows.returns.dtype),
    )


# ---- networks ------------------------------------------------------------------------------------------------------


class BlockDropout(NamedTuple):
    """Masks to multiply by in a block, for Q queries: all 3K tokens, or only the K states in the last block."""

    # (B, H, Q, 3K): the attention weights
    attention: Array | None
    # (B, Q, E): attention's output, before it is added to the tokens
    output: Array | None
    # (B, Q, E): the MLP's output, before it is added to the tokens
    mlp: Array | None


class Dropout(NamedTuple):
    """Masks to multiply by; each is None at a rate of 0, and all of them are None when the policy acts."""

    # (B, 3K, E): the embedded tokens
    embedding: Array | None
    blocks: tuple[BlockDropout, ...]


def dropped(inputs: Array, mask: Array | None) -> Array:
    """The inputs, under a dropout mask of their shape if there is one."""
    return inputs if mask is None else inputs * mask


def gelu(inputs: Array) -> Array:
    """The exact GELU, as in PyTorch: `jax.nn.gelu` approximates by default, and its exact form is slower on a CPU."""
    return 0.5 * inputs * (1.0 + erf(inputs * 2**-0.5))


LayerNorm = partial(nn.LayerNorm, epsilon=1e-5, use_fast_variance=False, param_dtype=float)
SmallLinear = partial(Linear, kernel_init=normal(0.02), bias_init=zeros)


class Attention(nn.Module):
    """Multi-head attention with its dropout mask as an argument; queries, keys and values are projected by one leaf."""

    num_heads: int
    width: int

    def setup(self) -> None:
        self.in_proj_weight = self.param("in_proj_weight", xavier_uniform(1.0), (3 * self.width, self.width), float)
        self.in_proj_bias = self.param("in_proj_bias", zeros, (3 * self.width,), float)
        self.out_proj = SmallLinear(self.width)

    def __call__(self, queries: Array, tokens: Array, forbidden: Array, mask: Array | None) -> Array:
        """Attends from queries (B, Q, E) to tokens (B, T, E) and returns (B, Q, E); `forbidden` is (Q, T)."""
        head_dim = self.width // self.num_heads
        weights, biases = jnp.split(self.in_proj_weight, 3), jnp.split(self.in_proj_bias, 3)
        heads = []
        for inputs, weight, bias in zip((queries, tokens, tokens), weights, biases, strict=True):
            projected = linear(inputs, weight.T, bias)
            heads.append(projected.reshape(*inputs.shape[:2], self.num_heads, head_dim))
        q, k, v = heads
        scores = einsum("bqhd,bthd->bhqt", q * head_dim**-0.5, k)
        attention = dropped(softmax(where(forbidden, -jnp.inf, scores), axis=-1), mask)
        return self.out_proj(einsum("bhqt,bthd->bqhd", attention, v).reshape(queries.shape))


class Block(nn.Module):
    """Attention and an MLP, each of which reads the normalised tokens and adds its output to the tokens."""

    hp: Hyperparameters

    def setup(self) -> None:
        width = self.hp.embedding_dim
        self.norm1 = LayerNorm()
        self.norm2 = LayerNorm()
        self.attention = Attention(self.hp.num_heads, width)
        self.mlp = nn.Sequential([
            SmallLinear(4 * width),
            gelu,
            SmallLinear(width),
        ])  # fmt: skip

    def __call__(self, tokens: Array, queries: slice, dropout: BlockDropout) -> Array:
        """New values of the tokens `queries` (B, Q, E), which attend to all tokens (B, T, E) up to themselves."""
        num_tokens = tokens.shape[1]
        normed = self.norm1(tokens)
        forbidden = jnp.triu(jnp.ones((num_tokens, num_tokens), bool), 1)[queries]
        found = self.attention(normed[:, queries], normed, forbidden, dropout.attention)
        tokens = tokens[:, queries] + dropped(found, dropout.output)
        return tokens + dropped(self.mlp(self.norm2(tokens)), dropout.mlp)


ALL, STATES = slice(None), slice(1, None, 3)


class DecisionTransformer(nn.Module):
    """Predicts each step's action from its return-to-go, its state and all earlier steps."""

    hp: Hyperparameters
    action_dim: int
    episode_len: int
    max_action: float

    def setup(self) -> None:
        hp, width = self.hp, self.hp.embedding_dim
        self.emb_norm = LayerNorm()
        self.out_norm = LayerNorm()
        self.timestep_emb = nn.Embed(
            self.episode_len + hp.seq_len, width, embedding_init=normal(0.02), param_dtype=float
        )
        self.state_emb = SmallLinear(width)
        self.action_emb = SmallLinear(width)
        self.return_emb = SmallLinear(width)
        self.blocks = nn.Sequential([Block(hp) for _ in range(hp.num_layers)])
        self.action_head = nn.Sequential([SmallLinear(self.action_dim), nn.tanh])

    def __call__(
        self, observations: Array, actions: Array, returns: Array, timesteps: Array, dropout: Dropout
    ) -> Array:
        """The actions (B, T, A) for windows of T steps, see `Windows`; a step's action ignores all later tokens."""
        times = self.timestep_emb(timesteps)
        embedded = (self.return_emb(returns[..., None]), self.state_emb(observations), self.action_emb(actions))
        # A return, a state and an action for each step: (B, 3T, E)
        tokens = (stack(embedded, axis=2) + times[:, :, None]).reshape(-1, 3 * times.shape[1], times.shape[2])
        tokens = dropped(self.emb_norm(tokens), dropout.embedding)
        # Only the states are read from the last block.
        queries = [ALL] * (self.hp.num_layers - 1) + [STATES]
        for block, *arguments in zip(self.blocks.layers, queries, dropout.blocks, strict=True):
            tokens = block(tokens, *arguments)
        return self.action_head(self.out_norm(tokens)) * self.max_action


def no_dropout(hp: Hyperparameters) -> Dropout:
    """No masks, for when the policy acts."""
    return Dropout(None, (BlockDropout(None, None, None),) * hp.num_layers)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    # Masks, or the key that they are drawn from within the update, because they are millions of numbers
    dropout: Dropout | Array


def draw_noise(key: Array, step: Array, hp: Hyperparameters, dataset_size: int) -> tuple[Array, Noise]:
    """The rows (B,) at which an update's windows begin, and its noise.

    They depend on the key and on the update's number alone. Every row is equally likely, as if a trajectory were drawn
    in proportion to its length, and then one of its steps.
    """
    index_key, dropout_key = jax.random.split(jax.random.fold_in(key, step))
    indices = jax.random.randint(index_key, (hp.batch_size,), 0, dataset_size)
    return indices, Noise(dropout=dropout_key)


def draw_dropout(key: Array, hp: Hyperparameters) -> Dropout:
    """An update's masks."""
    size, width, num_tokens = hp.batch_size, hp.embedding_dim, 3 * hp.seq_len
    keys = iter(jax.random.split(key, 1 + 3 * hp.num_layers))

    def draw(rate: float, *shape: int) -> Array | None:
        return dropout_mask(next(keys), rate, shape) if rate > 0 else None

    embedding, blocks = draw(hp.embedding_dropout, size, num_tokens, width), []
    for num_queries in [num_tokens] * (hp.num_layers - 1) + [hp.seq_len]:
        attention = draw(hp.attention_dropout, size, hp.num_heads, num_queries, num_tokens)
        output = draw(hp.residual_dropout, size, num_queries, width)
        mlp = draw(hp.residual_dropout, size, num_queries, width)
        blocks.append(BlockDropout(attention, output, mlp))
    return Dropout(embedding, tuple(blocks))


# ---- losses and update ---------------------------------------------------------------------------------------------


def learning_rate(hp: Hyperparameters, updates: Array) -> Array:
    """The learning rate after so many updates."""
    return hp.learning_rate * jnp.minimum((updates + 1.0) / hp.warmup_steps, 1.0)


def adamw(hp: Hyperparameters) -> optax.GradientTransformation:
    """The model's optimiser; it decays every parameter."""
    return optax.adamw(partial(learning_rate, hp), *hp.betas, weight_decay=hp.weight_decay)


def clip_norm(gradient: Network, largest: float) -> Network:
    """PyTorch's `clip_grad_norm_`; optax adds no epsilon to the norm."""
    factor = jnp.minimum(largest / (optax.tree.norm(gradient) + 1e-6), 1.0)
    return jax.tree.map(lambda leaf: leaf * factor, gradient)


class DT(struct.PyTreeNode):
    """All that an update reads and writes."""

    model: Network
    model_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)

    def action_loss(self, model: Network, batch: Windows, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """The squared error to the data's actions; steps after a trajectory's end count, with an error of 0."""
        predicted = model(batch.observations, batch.actions, batch.returns, batch.timesteps, noise.dropout)
        assert predicted.shape == batch.actions.shape
        assert predicted.shape[:-1] == batch.mask.shape
        return (square(predicted - batch.actions) * batch.mask[..., None]).mean(), {}

    def update(self, batch: Windows, noise: Noise) -> tuple["DT", dict[str, Array]]:
        """One gradient step."""
        state, hp = self, self.hp
        if is_key(noise.dropout):
            noise = Noise(draw_dropout(noise.dropout, hp))
        (loss, _), gradient = value_and_grad(state.action_loss, has_aux=True)(state.model, batch, noise)
        if hp.clip_grad is not None:
            gradient = clip_norm(gradient, hp.clip_grad)
        change, moments = adamw(hp).update(gradient, state.model_optimizer, state.model)
        state = state.replace(model=optax.apply_updates(state.model, change), model_optimizer=moments)
        # As in CORL, this is the next update's learning rate.
        return state, {"train_loss": loss, "learning_rate": learning_rate(hp, moments[0].count)}


@jax.jit
def act(model: Network, observations: Array, actions: Array, returns: Array, timesteps: Array) -> Array:
    """The model's actions (E, K, A) for windows of K steps of E episodes, see `Windows`."""
    return model(observations, actions, returns, timesteps, no_dropout(model.module.hp))


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="num_updates", donate_argnames="state")
def train_interval(
    state: DT, key: Array, dataset: PackedDataset, start: Array, num_updates: int
) -> tuple[DT, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates` as one scan."""
    hp = state.hp
    steps = start + arange(num_updates)
    draws = jax.vmap(lambda step: draw_noise(key, step, hp, len(dataset)))(steps)

    def step(state: DT, draws: Any) -> tuple[DT, dict[str, Array]]:
        indices, noise = draws
        return state.update(take_windows(dataset, indices, hp.seq_len), noise)

    state, history = jax.lax.scan(step, state, draws)
    return state, [history]


def create_train_state(key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> DT:
    """A fresh model with CORL's initialisation."""
    hp = narrow(config, Hyperparameters)
    module = DecisionTransformer(hp, action_dim, config.episode_len, max_action)
    window = (jnp.zeros((1, 1, state_dim)), jnp.zeros((1, 1, action_dim)), jnp.zeros((1, 1)), jnp.zeros((1, 1), int))
    model = Network.create(module, key, *window, no_dropout(hp))
    return DT(model=model, model_optimizer=adamw(hp).init(model), hp=hp)


def train(config: TrainConfig) -> Run:
    """Trains, evaluates every `eval_freq` updates, once for each return to prompt for, and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used, or a setting contradicts another.
    """
    if config.embedding_dim % config.num_heads:
        raise InputError(f"embedding_dim must be a multiple of num_heads ({config.num_heads}): change either")
    task = load_task(config, Preparation(Extract.TRAJECTORIES))
    device = resolve_device(config.device)
    enable_compilation_cache()
    with jax.default_device(device):
        weights_key, draws_key = jax.random.split(jax.random.key(config.seed))
        state = create_train_state(weights_key, config, task.state_dim, task.action_dim, config.max_action)
        run = Run(config, task, "dt", "jax", device)
        state, total_it = restore(run, partial(load_checkpoint, algorithm="dt", state=state), state)
        dataset = to_device(task.dataset)

        def evaluate_prompts(step: int) -> None:
            for prompt in task.prompts.target_returns:
                asking = partial(
                    PromptedPolicy,
                    prompt=prompt,
                    reward_scale=task.prompts.reward_scale,
                    seq_len=config.seq_len,
                    action_dim=task.action_dim,
                )
                evaluate(run, step, act, state.model, prompt, asking)

        with run:
            if run.is_due(run.step):
                evaluate_prompts(run.step)
            history = History(run)
            for start, step in run.calls(cost=5):
                num_updates = step - start
                state, found = train_together(train_interval, state, draws_key, dataset, start, num_updates)
                history.add(num_updates, found)
                write = partial(save_checkpoint, algorithm="dt", state=state, total_it=total_it + step)
                if run.is_due(step):
                    run.log(step, history.means())
                    run.save(step, write)
                    evaluate_prompts(step)
                elif run.stopping:
                    run.save(step, partial(write, history=history.content()))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "dt")
