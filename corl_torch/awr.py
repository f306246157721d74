"""AWR in PyTorch: V learns TD(lambda) returns, and the policy imitates actions by how far their returns exceed V.

An update is one iteration of the algorithm. It draws `batch_size` transitions, and computes their returns and weights
with the current V. Then V makes `value_updates` gradient steps and the policy `actor_updates`, on consecutive slices of
`minibatch_size` transitions, in whole passes. `max_timesteps` and `eval_freq` count such updates.

Its twin is `corl_jax/awr.py`.

Peng, Kumar, Zhang & Levine, Advantage-Weighted Regression: Simple and Scalable Off-Policy Reinforcement Learning, 2019,
https://arxiv.org/abs/1910.00177
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from shared.runs.start import cli

import numpy as np
import torch
from torch import Tensor, arctanh, clamp, concatenate, exp, log, log1p, nn, square, stack, tanh, zeros_like

from shared.data.returns import EndedBatch
from shared.errors import InputError
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.torch_data import index_tensor, take, to_device
from shared.frameworks.torch_side import mean_metrics, on_arrays, resolve_device, seed_everything
from shared.runs.fields import bounded, positive, widths
from shared.runs.run import Run
from shared.runs.settings import ImitationConfig, RewardsConfig
from shared.runs.task import Extract, Preparation, load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Learning rate of V
    value_lr: float = positive(1e-4)
    # Learning rate of the policy
    actor_lr: float = positive(5e-5)
    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # TD(lambda): 0 bootstraps after each transition, 1 only at the end of its episode
    td_lambda: float = bounded(0.95, low=0, high=1)
    # Temperature: an action with advantage A has the weight exp(A / advantage_temperature)
    advantage_temperature: float = positive(1.0)
    # Largest weight of an action
    max_weight: float = positive(20.0)
    # Give a draw's advantages mean 0 and standard deviation 1; the paper's equations use them as they are
    normalize_advantages: bool = True
    # Most gradient steps of V in an update, which only makes whole passes over the slices
    value_updates: int = bounded(200, low=1)
    # Most gradient steps of the policy in an update, also in whole passes
    actor_updates: int = bounded(1000, low=1)
    # Transitions in a slice, on which one gradient step is made
    minibatch_size: int = bounded(256, low=1)
    # Transitions that an update draws
    batch_size: int = bounded(2048, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, RewardsConfig, ImitationConfig):
    """The settings of a whole run."""

    group: str = "AWR-D4RL"
    name: str = "AWR"
    # Updates between two evaluations
    eval_freq: int = bounded(5, low=1)
    # Updates in all, each of many gradient steps
    max_timesteps: int = bounded(1000, low=1)
    # Widths of V's hidden layers
    value_hidden_dims: tuple[int, ...] = widths(256, 256)
    # Widths of the policy's hidden layers
    actor_hidden_dims: tuple[int, ...] = widths(256, 256)
    # Normalise states to mean 0 and standard deviation 1
    normalize: bool = False


# ---- networks ------------------------------------------------------------------------------------------------------


def hidden(input_dim: int, hidden_dims: Sequence[int]) -> list[nn.Module]:
    """Hidden layers with ReLU."""
    dims = [input_dim, *hidden_dims]
    return [layer for a, b in pairwise(dims) for layer in (nn.Linear(a, b), nn.ReLU())]


class ValueFunction(nn.Module):
    """V(s): (B, S) to (B,)."""

    def __init__(self, state_dim: int, hidden_dims: Sequence[int]) -> None:
        super().__init__()
        self.net = nn.Sequential(*hidden(state_dim, hidden_dims), nn.Linear(hidden_dims[-1], 1))

    def forward(self, observations: Tensor) -> Tensor:
        """The values (B,) of observations (B, S)."""
        return self.net(observations).squeeze(-1)


class Actor(nn.Module):
    """The policy: a normal distribution whose samples are squashed by tanh to be within [-max_action, max_action]."""

    def __init__(self, state_dim: int, action_dim: int, max_action: float, hidden_dims: Sequence[int]) -> None:
        super().__init__()
        self.net = nn.Sequential(*hidden(state_dim, hidden_dims))
        self.mean = nn.Linear(hidden_dims[-1], action_dim)
        self.log_std = nn.Linear(hidden_dims[-1], action_dim)
        self.max_action = max_action

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation (B, A) before the tanh, for observations (B, S)."""
        encoded = self.net(observations)
        return self.mean(encoded), exp(clamp(self.log_std(encoded), -20.0, 2.0))


# Actions are kept this far away from their bounds, where the inverse of tanh would be infinite.
LARGEST = 0.999999
LOG_SQRT_2PI = math.log(math.sqrt(2.0 * math.pi))


def log_prob(actor: Actor, observations: Tensor, actions: Tensor) -> Tensor:
    """The log-density (B,) of actions (B, A), in units of the largest action, under the squashed distribution."""
    mean, std = actor(observations)
    squashed = clamp(actions / actor.max_action, -LARGEST, LARGEST)
    log_slope = log1p(squashed) + log1p(-squashed)
    log_density = -square(arctanh(squashed) - mean) / (2.0 * square(std)) - log(std) - LOG_SQRT_2PI
    return (log_density - log_slope).sum(axis=-1)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """An update draws nothing besides its batch."""


def draw_noise(hp: Hyperparameters, dataset_size: int, device: torch.device) -> tuple[Tensor, Noise]:
    """An update's batch indices (B,), from NumPy's global generator."""
    indices = np.random.randint(0, dataset_size, size=hp.batch_size)
    return index_tensor(indices, device), Noise()


# ---- episodes ------------------------------------------------------------------------------------------------------


class Episodes(NamedTuple):
    """A dataset's N transitions in their order, from which batches are drawn."""

    # All columns
    rows: EndedBatch
    # (N, S)
    next_observations: Tensor
    # (N,) each; `last` is 1 if an episode ends with the transition
    rewards: Tensor
    terminals: Tensor
    last: Tensor


class EpisodesBatch(NamedTuple):
    """A draw of B transitions, and all episodes, because returns are computed from the rest of an episode."""

    # (B, S)
    observations: Tensor
    # (B, A)
    actions: Tensor
    # (B,), integers: the rows of these transitions
    indices: Tensor
    episodes: Episodes


def in_episodes(dataset: EndedBatch) -> Episodes:
    """The dataset, with the columns that returns are computed from."""
    return Episodes(dataset, dataset.next_observations, dataset.rewards, dataset.terminals, dataset.last)


def take_of(episodes: Episodes, indices: Tensor) -> EpisodesBatch:
    """The transitions at `indices` (B,), and all episodes."""
    rows = take(episodes.rows, indices)
    return EpisodesBatch(rows.observations, rows.actions, indices, episodes)


def ahead(values: Tensor, rows: int) -> Tensor:
    """The values (N,) at this many rows later; 0 after the last row."""
    return concatenate([values[rows:], zeros_like(values[:rows])])


# ---- losses and update ---------------------------------------------------------------------------------------------

MOMENTUM = 0.9


def sgd(network: nn.Module, lr: float) -> torch.optim.Optimizer:
    """A network's optimiser."""
    return torch.optim.SGD(network.parameters(), lr=lr, momentum=MOMENTUM)


def gradient_step(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """One step of the optimiser down the gradient of the loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def slices(hp: Hyperparameters, *columns: Tensor) -> list[tuple[Tensor, ...]]:
    """Columns (B, ...) in consecutive slices of `minibatch_size` rows, without the rows that are left over."""
    size = hp.minibatch_size
    starts = range(0, hp.batch_size - size + 1, size)
    return [tuple(column[start : start + size] for column in columns) for start in starts]


def passes(num_updates: int, parts: list[tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
    """The slices of as many whole passes as `num_updates` gradient steps allow."""
    return parts * (num_updates // len(parts))


class AWR:
    """All that an update reads and writes."""

    def __init__(self, hp: Hyperparameters, value: ValueFunction, actor: Actor) -> None:
        self.hp = hp
        self.value, self.actor = value, actor
        self.value_optimizer = sgd(value, hp.value_lr)
        self.actor_optimizer = sgd(actor, hp.actor_lr)
        self.total_it = 0

    @torch.no_grad()
    def lambda_returns(self, batch: EpisodesBatch) -> Tensor:
        """The TD(lambda) returns (B,) over the rest of each transition's episode, with V's values of next states.

        A return is `earned` plus `kept` times the next transition's return. Each round of the loop doubles the number
        of transitions that both cover.
        """
        hp, episodes = self.hp, batch.episodes
        next_v = (1.0 - episodes.terminals) * self.value(episodes.next_observations)
        assert next_v.shape == episodes.rewards.shape == episodes.last.shape
        kept = hp.discount * hp.td_lambda * (1.0 - episodes.last)
        # After an episode's last transition, the value counts in full.
        earned = episodes.rewards + (hp.discount - kept) * next_v
        for doubling in range(len(kept).bit_length()):
            earned = earned + kept * ahead(earned, 2**doubling)
            kept = kept * ahead(kept, 2**doubling)
        return earned[batch.indices]

    @torch.no_grad()
    def weights(self, batch: EpisodesBatch, returns: Tensor) -> Tensor:
        """The weight of each drawn action, (B,): the exponential of its advantage, up to a cap."""
        hp = self.hp
        adv = returns - self.value(batch.observations)
        assert adv.shape == batch.indices.shape
        if hp.normalize_advantages:
            adv = (adv - adv.mean()) / (adv.std(correction=0) + 1e-5)
        return clamp(exp(adv / hp.advantage_temperature), max=hp.max_weight)

    def value_loss(self, observations: Tensor, returns: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The squared error of V to the returns."""
        value = self.value
        v = value(observations)
        assert v.shape == returns.shape
        return square(v - returns).mean(), {}

    def actor_loss(self, observations: Tensor, actions: Tensor, weights: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Imitation of the data's actions, each with its weight."""
        actor = self.actor
        log_probs = log_prob(actor, observations, actions)
        assert log_probs.shape == weights.shape
        return -(weights * log_probs).mean(), {}

    def update(self, batch: EpisodesBatch, noise: Noise) -> dict[str, Tensor]:
        """One iteration: returns and weights from the current V; then V's gradient steps, and the policy's."""
        hp = self.hp
        returns = self.lambda_returns(batch)
        weights = self.weights(batch, returns)
        value_losses, actor_losses = [], []
        for part in passes(hp.value_updates, slices(hp, batch.observations, returns)):
            loss, _ = self.value_loss(*part)
            gradient_step(loss, self.value_optimizer)
            value_losses.append(loss.detach())
        for part in passes(hp.actor_updates, slices(hp, batch.observations, batch.actions, weights)):
            loss, _ = self.actor_loss(*part)
            gradient_step(loss, self.actor_optimizer)
            actor_losses.append(loss.detach())
        self.total_it += 1
        return {"value_loss": stack(value_losses).mean(), "actor_loss": stack(actor_losses).mean()}

    def act(self, observations: np.ndarray) -> np.ndarray:
        """Calls `policy` with NumPy arrays."""
        return on_arrays(policy, self.actor, observations)

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint, by name."""
        return {name: getattr(self, name) for name in ("value", "actor", "value_optimizer", "actor_optimizer")}


def policy(actor: Actor, observations: Tensor) -> Tensor:
    """The policy's actions (E, A) without noise, for observations (E, S)."""
    mean, _ = actor(observations)
    return actor.max_action * tanh(mean)


# ---- training ------------------------------------------------------------------------------------------------------


def create_trainer(config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> AWR:
    """Fresh networks, drawn from torch's generator on the CPU: V, policy."""
    value = ValueFunction(state_dim, config.value_hidden_dims)
    actor = Actor(state_dim, action_dim, max_action, config.actor_hidden_dims)
    device = resolve_device(config.device)
    return AWR(config, value.to(device), actor.to(device))


def save(trainer: AWR, path: Path, **facts: Any) -> None:
    """Writes a checkpoint."""
    save_checkpoint(path, "awr", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: AWR, path: str) -> dict[str, Any]:
    """Loads one of our checkpoints; returns its contents."""
    content = load_checkpoint(path, "awr", trainer.parts())
    trainer.total_it = content["total_it"]
    return content


def train(config: TrainConfig) -> Run:
    """Trains, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used, or a setting contradicts another.
    """
    parts = config.batch_size // config.minibatch_size
    if not 1 <= parts <= min(config.value_updates, config.actor_updates):
        raise InputError(
            f"an update has {parts} slices: set minibatch_size to at most batch_size, value_updates and actor_updates "
            "to at least batch_size / minibatch_size"
        )
    task = load_task(config, Preparation(Extract.EPISODES, normalise=config.normalize))
    device = resolve_device(config.device)
    seed_everything(config.seed)
    trainer = create_trainer(config, task.state_dim, task.action_dim, task.max_action)
    run = Run(config, task, "awr", "torch", device)
    history = restore(run, partial(load, trainer), device)
    dataset = in_episodes(to_device(task.dataset, device))
    with run:
        if run.is_due(run.step):
            run.evaluate(run.step, trainer.act)
        for step in range(run.step + 1, config.max_timesteps + 1):
            indices, noise = draw_noise(config, len(dataset.rewards), device)
            history.append(trainer.update(take_of(dataset, indices), noise))
            run.advance(1)
            if run.is_due(step):
                run.log(step, mean_metrics(history))
                history.clear()
                run.save(step, partial(save, trainer))
                run.evaluate(step, trainer.act)
            elif run.stopping:
                run.save(step, partial(save, trainer, history=history))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "awr")
