"""Decision Transformer in PyTorch: a sequence model that is given a return to reach, and predicts the actions for it.

Its twin is `corl_jax/dt.py`.

Chen et al., Decision Transformer: Reinforcement Learning via Sequence Modeling, 2021, https://arxiv.org/abs/2106.01345
"""

import random
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from shared.runs.start import cli

import numpy as np
import torch
from torch import Tensor, arange, einsum, nn, softmax, square, stack, where

from shared.data.sequences import PromptedPolicy, Trajectories, Windows, trajectory_lengths
from shared.errors import InputError
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.torch_data import index_tensor, take, to_device
from shared.frameworks.torch_layers import dropout_mask
from shared.frameworks.torch_side import mean_metrics, on_arrays, resolve_device, seed_everything
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


def take_windows(dataset: Trajectories, indices: Tensor, seq_len: int) -> Windows:
    """The windows of K = `seq_len` steps that begin at the rows `indices` (B,), padded with zeros after the end."""
    steps = arange(seq_len, device=indices.device)
    rows = take(dataset, (indices[:, None] + steps).clip(max=len(dataset.actions) - 1))
    inside = steps < rows.remaining[:, :1]
    return Windows(
        observations=where(inside[..., None], rows.observations, 0.0),
        actions=where(inside[..., None], rows.actions, 0.0),
        returns=where(inside, rows.returns, 0.0),
        # The counting continues after the end, as in CORL.
        timesteps=rows.timesteps[:, :1].to(steps.dtype) + steps,
        mask=inside.to(rows.returns.dtype),
    )


# ---- networks ------------------------------------------------------------------------------------------------------


class BlockDropout(NamedTuple):
    """Masks to multiply by in a block, for Q queries: all 3K tokens, or only the K states in the last block."""

    # (B, H, Q, 3K): the attention weights
    attention: Tensor | None
    # (B, Q, E): attention's output, before it is added to the tokens
    output: Tensor | None
    # (B, Q, E): the MLP's output, before it is added to the tokens
    mlp: Tensor | None


class Dropout(NamedTuple):
    """Masks to multiply by; each is None at a rate of 0, and all of them are None when the policy acts."""

    # (B, 3K, E): the embedded tokens
    embedding: Tensor | None
    blocks: tuple[BlockDropout, ...]


def dropped(inputs: Tensor, mask: Tensor | None) -> Tensor:
    """The inputs, under a dropout mask of their shape if there is one."""
    return inputs if mask is None else inputs * mask


class Attention(nn.MultiheadAttention):
    """Multi-head attention with its dropout mask as an argument; PyTorch's own module holds the weights."""

    def forward(self, queries: Tensor, tokens: Tensor, forbidden: Tensor, mask: Tensor | None) -> Tensor:
        """Attends from queries (B, Q, E) to tokens (B, T, E) and returns (B, Q, E); `forbidden` is (Q, T)."""
        weights, biases = self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3)
        heads = []
        for inputs, weight, bias in zip((queries, tokens, tokens), weights, biases, strict=True):
            projected = nn.functional.linear(inputs, weight, bias)
            heads.append(projected.reshape(*inputs.shape[:2], self.num_heads, self.head_dim))
        q, k, v = heads
        scores = einsum("bqhd,bthd->bhqt", q * self.head_dim**-0.5, k)
        weights = dropped(softmax(where(forbidden, -torch.inf, scores), axis=-1), mask)
        return self.out_proj(einsum("bhqt,bthd->bqhd", weights, v).reshape(queries.shape))


class Block(nn.Module):
    """Attention and an MLP, each of which reads the normalised tokens and adds its output to the tokens."""

    def __init__(self, hp: Hyperparameters) -> None:
        super().__init__()
        width = hp.embedding_dim
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.attention = Attention(width, hp.num_heads, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )
        # A buffer, because CORL's checkpoints contain it
        num_tokens = 3 * hp.seq_len
        self.register_buffer("causal_mask", torch.ones(num_tokens, num_tokens, dtype=torch.bool).triu(1))

    def forward(self, tokens: Tensor, queries: slice, dropout: BlockDropout) -> Tensor:
        """New values of the tokens `queries` (B, Q, E), which attend to all tokens (B, T, E) up to themselves."""
        num_tokens = tokens.shape[1]
        normed = self.norm1(tokens)
        forbidden = self.causal_mask[:num_tokens, :num_tokens][queries]
        found = self.attention(normed[:, queries], normed, forbidden, dropout.attention)
        tokens = tokens[:, queries] + dropped(found, dropout.output)
        return tokens + dropped(self.mlp(self.norm2(tokens)), dropout.mlp)


ALL, STATES = slice(None), slice(1, None, 3)


class DecisionTransformer(nn.Module):
    """Predicts each step's action from its return-to-go, its state and all earlier steps."""

    def __init__(
        self, hp: Hyperparameters, state_dim: int, action_dim: int, episode_len: int, max_action: float
    ) -> None:
        super().__init__()
        width = hp.embedding_dim
        self.emb_norm = nn.LayerNorm(width)
        self.out_norm = nn.LayerNorm(width)
        self.timestep_emb = nn.Embedding(episode_len + hp.seq_len, width)
        self.state_emb = nn.Linear(state_dim, width)
        self.action_emb = nn.Linear(action_dim, width)
        self.return_emb = nn.Linear(1, width)
        self.blocks = nn.ModuleList([Block(hp) for _ in range(hp.num_layers)])
        self.action_head = nn.Sequential(nn.Linear(width, action_dim), nn.Tanh())
        self.hp, self.max_action = hp, max_action
        self.apply(reset_parameters)

    def forward(
        self, observations: Tensor, actions: Tensor, returns: Tensor, timesteps: Tensor, dropout: Dropout
    ) -> Tensor:
        """The actions (B, T, A) for windows of T steps, see `Windows`; a step's action ignores all later tokens."""
        times = self.timestep_emb(timesteps)
        embedded = (self.return_emb(returns[..., None]), self.state_emb(observations), self.action_emb(actions))
        # A return, a state and an action for each step: (B, 3T, E)
        tokens = (stack(embedded, axis=2) + times[:, :, None]).reshape(-1, 3 * times.shape[1], times.shape[2])
        tokens = dropped(self.emb_norm(tokens), dropout.embedding)
        # Only the states are read from the last block.
        queries = [ALL] * (len(self.blocks) - 1) + [STATES]
        for block, *arguments in zip(self.blocks, queries, dropout.blocks, strict=True):
            tokens = block(tokens, *arguments)
        return self.action_head(self.out_norm(tokens)) * self.max_action


def reset_parameters(module: nn.Module) -> None:
    """CORL's initialisation; the packed projection of attention, a bare parameter, keeps its Xavier-uniform values."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, mean=0.0, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


def no_dropout(hp: Hyperparameters) -> Dropout:
    """No masks, for when the policy acts."""
    return Dropout(None, (BlockDropout(None, None, None),) * hp.num_layers)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    dropout: Dropout


def draw_noise(hp: Hyperparameters, lengths: np.ndarray, device: torch.device) -> tuple[Tensor, Noise]:
    """The rows (B,) at which an update's windows begin, and its dropout masks.

    CORL draws the same without loader processes. NumPy's global generator draws a trajectory for each window, in
    proportion to its length. Python's generator draws a step of that trajectory. Then torch's generator draws the
    masks.

    Args:
        hp: Contains the sizes.
        lengths: The number of rows of each trajectory.
        device: The device of both results.
    """
    shares = np.cumsum(lengths / lengths.sum())
    chosen = np.searchsorted(shares / shares[-1], np.random.random_sample(hp.batch_size), side="right")
    firsts = (np.cumsum(lengths) - lengths)[chosen]
    steps = [random.randint(0, length - 1) for length in lengths[chosen].tolist()]
    return index_tensor(firsts + steps, device), Noise(draw_dropout(hp, device))


def draw_dropout(hp: Hyperparameters, device: torch.device) -> Dropout:
    """An update's masks in CORL's order, drawn in full although the last block uses only a part."""
    size, width, num_tokens = hp.batch_size, hp.embedding_dim, 3 * hp.seq_len
    scores = (size, hp.num_heads, num_tokens, num_tokens)

    def draw(rate: float, *shape: int) -> Tensor | None:
        return dropout_mask(rate, shape, device) if rate > 0 else None

    embedding, blocks = draw(hp.embedding_dropout, size, num_tokens, width), []
    for _ in range(hp.num_layers):
        attention = draw(hp.attention_dropout, *scores)
        # PyTorch's attention returns a transposed array, and dropout draws in memory order.
        output = draw(hp.residual_dropout, num_tokens, size, width)
        mlp = draw(hp.residual_dropout, size, num_tokens, width)
        blocks.append(BlockDropout(attention, output if output is None else output.transpose(0, 1), mlp))
    attention, output, mlp = (mask if mask is None else mask[..., STATES, :] for mask in blocks[-1])
    return Dropout(embedding, (*blocks[:-1], BlockDropout(attention, output, mlp)))


# ---- losses and update ---------------------------------------------------------------------------------------------


def learning_rate(hp: Hyperparameters, updates: int) -> float:
    """The learning rate after so many updates."""
    return hp.learning_rate * min((updates + 1.0) / hp.warmup_steps, 1.0)


def adamw(hp: Hyperparameters, model: nn.Module) -> torch.optim.Optimizer:
    """The model's optimiser; it decays every parameter."""
    return torch.optim.AdamW(model.parameters(), betas=hp.betas, weight_decay=hp.weight_decay)


class DT:
    """All that an update reads and writes."""

    def __init__(self, hp: Hyperparameters, model: DecisionTransformer) -> None:
        self.hp = hp
        self.model = model
        self.model_optimizer = adamw(hp, model)
        self.total_it = 0

    def action_loss(self, batch: Windows, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """The squared error to the data's actions; steps after a trajectory's end count, with an error of 0."""
        model = self.model
        predicted = model(batch.observations, batch.actions, batch.returns, batch.timesteps, noise.dropout)
        assert predicted.shape == batch.actions.shape
        assert predicted.shape[:-1] == batch.mask.shape
        return (square(predicted - batch.actions) * batch.mask[..., None]).mean(), {}

    def update(self, batch: Windows, noise: Noise) -> dict[str, Tensor]:
        """One gradient step."""
        hp = self.hp
        loss, _ = self.action_loss(batch, noise)
        self.model_optimizer.zero_grad()
        loss.backward()
        if hp.clip_grad is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), hp.clip_grad)
        for group in self.model_optimizer.param_groups:
            group["lr"] = learning_rate(hp, self.total_it)
        self.model_optimizer.step()
        self.total_it += 1
        # As in CORL, this is the next update's learning rate.
        return {"train_loss": loss.detach(), "learning_rate": torch.tensor(learning_rate(hp, self.total_it))}

    def act(self, *windows: np.ndarray) -> np.ndarray:
        """Calls `policy` with NumPy arrays."""
        return on_arrays(policy, self.model, *windows)

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint: the model, under CORL's key, and the optimiser, which CORL leaves out."""
        return {"model_state": self.model, "model_optimizer": self.model_optimizer}


def policy(
    model: DecisionTransformer, observations: Tensor, actions: Tensor, returns: Tensor, timesteps: Tensor
) -> Tensor:
    """The model's actions (E, K, A) for windows of K steps of E episodes, see `Windows`."""
    return model(observations, actions, returns, timesteps, no_dropout(model.hp))


# ---- training ------------------------------------------------------------------------------------------------------


def create_trainer(config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> DT:
    """A fresh model, drawn from torch's generator on the CPU in CORL's order."""
    model = DecisionTransformer(config, state_dim, action_dim, config.episode_len, max_action)
    return DT(config, model.to(resolve_device(config.device)))


def save(trainer: DT, path: Path, state_mean: np.ndarray, state_std: np.ndarray, **facts: Any) -> None:
    """Writes a checkpoint with CORL's keys and the statistics (S,) that states were normalised by."""
    statistics = {"state_mean": state_mean[None], "state_std": state_std[None]}
    save_checkpoint(path, "dt", {**trainer.parts(), **statistics, "total_it": trainer.total_it, **facts})


def load(trainer: DT, path: str) -> dict[str, Any]:
    """Loads a checkpoint, ours or CORL's, which only contains the model; returns its contents."""
    content = load_checkpoint(path, "dt", trainer.parts(), optional=("model_optimizer", "total_it"))
    trainer.total_it = content.get("total_it", 0)
    return content


def train(config: TrainConfig) -> Run:
    """Trains, evaluates every `eval_freq` updates, once for each return to prompt for, and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used, or a setting contradicts another.
    """
    if config.embedding_dim % config.num_heads:
        raise InputError(f"embedding_dim must be a multiple of num_heads ({config.num_heads}): change either")
    task = load_task(config, Preparation(Extract.TRAJECTORIES))
    device = resolve_device(config.device)
    torch.use_deterministic_algorithms(config.deterministic_torch)
    seed_everything(config.seed)
    trainer = create_trainer(config, task.state_dim, task.action_dim, config.max_action)
    # CORL's data loader first makes a draw of its own.
    torch.empty((), dtype=torch.int64).random_()
    run = Run(config, task, "dt", "torch", device)
    history = restore(run, partial(load, trainer), device)
    dataset, lengths = to_device(task.dataset, device), trajectory_lengths(task.dataset)

    def evaluate(step: int) -> None:
        for prompt in task.prompts.target_returns:
            policy = PromptedPolicy(trainer.act, prompt, task.prompts.reward_scale, config.seq_len, task.action_dim)
            run.evaluate(step, policy, prompt)

    with run:
        if run.is_due(run.step):
            evaluate(run.step)
        for step in range(run.step + 1, config.max_timesteps + 1):
            indices, noise = draw_noise(config, lengths, device)
            history.append(trainer.update(take_windows(dataset, indices, config.seq_len), noise))
            run.advance(1)
            if run.is_due(step):
                run.log(step, mean_metrics(history))
                history.clear()
                run.save(step, partial(save, trainer))
                evaluate(step)
            elif run.stopping:
                run.save(step, partial(save, trainer, history=history))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "dt")
