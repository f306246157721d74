"""BCQ of finite actions in PyTorch: Q-learning over the actions that an imitator of the data finds likely enough.

Its twin is `corl_jax/discrete/bcq.py`.

Fujimoto et al., Benchmarking Batch Deep Reinforcement Learning Algorithms, 2019, https://arxiv.org/abs/1910.01708
"""

import copy
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
from torch import Tensor, abs, amax, amin, argmax, exp, log_softmax, logsumexp, nn, square, stack, where
from torch.nn.functional import nll_loss, one_hot

from shared.data.transitions import Batch
from shared.envs.spaces import Shape
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.torch_data import index_tensor, take, to_device
from shared.frameworks.torch_encoders import convolutions
from shared.frameworks.torch_layers import probe
from shared.frameworks.torch_side import mean_metrics, on_arrays, resolve_device, seed_everything
from shared.runs.fields import bounded, positive, widths
from shared.runs.run import Run
from shared.runs.settings import ImagesConfig, TransitionsConfig
from shared.runs.task import Preparation, load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Learning rate
    learning_rate: float = positive(6.25e-5)
    # Adam's epsilon, which is added to the root in its step
    adam_eps: float = positive(1e-8)
    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Weight of the penalty on the imitator's outputs; the paper's is 0.01
    logit_penalty: float = bounded(0.5, low=0)
    # Penalise the imitator's log-probabilities, as d3rlpy 2.8.1 does; false: its outputs, as the paper's authors do
    penalize_log_probs: bool = False
    # Updates between two copies of the critics into the targets; the first update makes the first copy
    target_update_period: int = bounded(8000, low=1)
    # Transitions in a batch
    batch_size: int = bounded(32, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, ImagesConfig, TransitionsConfig):
    """The settings of a whole run."""

    group: str = "DiscreteBCQ"
    name: str = "DiscreteBCQ"
    # Dataset of finite actions: mini/cartpole-replay, minari:NAME, or the path of an HDF5 file
    env: str = "mini/cartpole-replay"
    # Updates between two evaluations
    eval_freq: int = bounded(10_000, low=1)
    # Critics
    n_critics: int = bounded(1, low=1)
    # Widths of the hidden layers
    hidden_dims: tuple[int, ...] = widths(256, 256)
    # Smallest probability of an action that may be chosen, as a share of the most likely action's
    likelihood_threshold: float = bounded(0.3, low=0, high=1)
    # Let the imitator share the first critic's hidden layers; false: it has its own
    share_encoder: bool = True


# ---- networks ------------------------------------------------------------------------------------------------------


def hidden(state_dim: Shape, encoder: str, hidden_dims: Sequence[int]) -> list[nn.Module]:
    """Convolutions if there are any, and hidden layers with ReLU."""
    layers, inputs = convolutions(encoder, state_dim)
    dims = [inputs, *hidden_dims]
    return [*layers, *(layer for a, b in pairwise(dims) for layer in (nn.Linear(a, b), nn.ReLU()))]


class Critic(nn.Module):
    """Q(s, .), which values all actions at once."""

    def __init__(self, state_dim: Shape, action_dim: int, encoder: str, hidden_dims: Sequence[int]) -> None:
        super().__init__()
        self.encoder = nn.Sequential(*hidden(state_dim, encoder, hidden_dims))
        probe(state_dim)
        self.head = nn.Linear(hidden_dims[-1], action_dim)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """The values (B, A) of all actions in observations (B, S), and the last hidden layer (B, H)."""
        features = self.encoder(observations)
        return self.head(features), features


class Critics(nn.Module):
    """N critics with separate weights."""

    def __init__(
        self, state_dim: Shape, action_dim: int, encoder: str, hidden_dims: Sequence[int], n_critics: int
    ) -> None:
        super().__init__()
        self.members = nn.ModuleList(Critic(state_dim, action_dim, encoder, hidden_dims) for _ in range(n_critics))

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """The values (N, B, A) of all actions in observations (B, S), and the first one's last hidden layer (B, H)."""
        values, features = zip(*(member(observations) for member in self.members), strict=True)
        return stack(values), features[0]


class Imitator(nn.Module):
    """The imitator: how likely the data's actions are, on the first critic's hidden layers or its own."""

    def __init__(
        self,
        state_dim: Shape,
        action_dim: int,
        encoder: str,
        hidden_dims: Sequence[int],
        share_encoder: bool,
        likelihood_threshold: float,
    ) -> None:
        super().__init__()
        layers = [] if share_encoder else hidden(state_dim, encoder, hidden_dims)
        probe(state_dim)
        self.net = nn.Sequential(*layers, nn.Linear(hidden_dims[-1], action_dim))
        self.share_encoder, self.likelihood_threshold = share_encoder, likelihood_threshold

    def forward(self, observations: Tensor, features: Tensor) -> Tensor:
        """Logits (B, A) for observations (B, S), or for the first critic's last hidden layer (B, H)."""
        return self.net(features if self.share_encoder else observations)


def value(q: Tensor, actions: Tensor) -> Tensor:
    """Selects the values (N, B) of these actions (B,) from the values (N, B, A) of all actions."""
    return (q * one_hot(actions, q.shape[-1])).sum(axis=-1)


def constrained(critic: Critics, imitator: Imitator, observations: Tensor) -> Tensor:
    """The actions (B,) with the highest mean value among the likely enough ones, for observations (B, S)."""
    q, features = critic(observations)
    logits = imitator(observations, features)
    likelihood = exp(logits - amax(logits, axis=-1, keepdims=True))
    return argmax(where(likelihood > imitator.likelihood_threshold, q.mean(axis=0), -math.inf), axis=-1)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """An update draws nothing besides its batch."""


def draw_noise(hp: Hyperparameters, dataset_size: int, device: torch.device) -> tuple[Tensor, Noise]:
    """An update's batch indices (B,), from NumPy's global generator as in d3rlpy."""
    return index_tensor(np.random.randint(0, dataset_size, size=hp.batch_size), device), Noise()


# ---- losses and update ---------------------------------------------------------------------------------------------


def adam(network: nn.Module, hp: Hyperparameters) -> torch.optim.Optimizer:
    """A network's optimiser."""
    return torch.optim.Adam(network.parameters(), lr=hp.learning_rate, eps=hp.adam_eps)


def gradient_step(loss: Tensor, *optimizers: torch.optim.Optimizer) -> None:
    """One step of each optimiser down the gradient of the loss."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()


def huber(error: Tensor) -> Tensor:
    """Huber's loss: half the square of errors below 1, and the absolute error minus a half for all others."""
    return where(abs(error) < 1.0, 0.5 * square(error), abs(error) - 0.5)


# Names of the networks in d3rlpy's files
D3RLPY_NAMES = {"critic": ("q_funcs",), "critic_target": ("targ_q_funcs",), "imitator": ("imitator",)}


class BCQ:
    """All that an update reads and writes."""

    def __init__(self, hp: Hyperparameters, critic: Critics, imitator: Imitator) -> None:
        self.hp = hp
        self.critic, self.imitator = critic, imitator
        self.critic_target = copy.deepcopy(critic)
        self.critic_optimizer = adam(critic, hp)
        self.imitator_optimizer = adam(imitator, hp)
        self.total_it = 0

    @torch.no_grad()
    def td_target(self, batch: Batch) -> Tensor:
        """The regression target of all critics, (B,): the smallest target value of the best likely next action."""
        hp, critic, imitator, target = self.hp, self.critic, self.imitator, self.critic_target
        next_actions = constrained(critic, imitator, batch.next_observations)
        next_q = amin(value(target(batch.next_observations)[0], next_actions), axis=0)
        assert next_q.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + hp.discount * next_q * (1.0 - batch.terminals)

    def imitation(self, logits: Tensor, actions: Tensor) -> Tensor:
        """The cross-entropy of logits (B, A) against the data's actions (B,), and the penalty."""
        hp = self.hp
        log_probs = logits - logsumexp(logits, axis=-1, keepdims=True)
        penalized = log_probs if hp.penalize_log_probs else logits
        # Normalised twice, as in d3rlpy, which only changes the last bit.
        return nll_loss(log_softmax(log_probs, axis=-1), actions) + hp.logit_penalty * square(penalized).mean()

    def critic_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Huber's loss of all critics against one target, added up, and the imitator's loss."""
        critic, imitator = self.critic, self.imitator
        target = self.td_target(batch)
        values, _ = critic(batch.observations)
        q = value(values, batch.actions)
        assert q.shape[1:] == target.shape
        td_loss = huber(q - target).mean(axis=1).sum()
        # As d3rlpy, a second time, so that the gradients of both losses are added weight by weight.
        _, features = critic(batch.observations)
        imitator_loss = self.imitation(imitator(batch.observations, features), batch.actions)
        return td_loss + imitator_loss, {"td_loss": td_loss.detach(), "imitator_loss": imitator_loss.detach()}

    def update(self, batch: Batch, noise: Noise) -> dict[str, Tensor]:
        """One gradient step; then, in the first of every `target_update_period` updates, the targets become copies."""
        hp = self.hp
        loss, terms = self.critic_loss(batch)
        gradient_step(loss, self.critic_optimizer, self.imitator_optimizer)
        if self.total_it % hp.target_update_period == 0:
            self.critic_target.load_state_dict(self.critic.state_dict())
        self.total_it += 1
        return {"loss": loss.detach(), **terms}

    @property
    def acting(self) -> nn.ModuleDict:
        """The networks that the policy needs."""
        return nn.ModuleDict({"critic": self.critic, "imitator": self.imitator})

    def act(self, observations: np.ndarray) -> np.ndarray:
        """Calls `policy` with NumPy arrays."""
        return on_arrays(policy, self.acting, observations)

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint, by name."""
        names = ("critic", "imitator", "critic_target", "critic_optimizer", "imitator_optimizer")
        return {name: getattr(self, name) for name in names}


def policy(acting: nn.ModuleDict, observations: Tensor) -> Tensor:
    """The best likely actions (E,) for observations (E, S)."""
    return constrained(acting["critic"], acting["imitator"], observations)


# ---- training ------------------------------------------------------------------------------------------------------


def create_trainer(config: TrainConfig, state_dim: Shape, action_dim: int, max_action: float) -> BCQ:
    """Fresh networks, drawn from torch's generator on the CPU in d3rlpy's order, in which targets are drawn too."""
    sizes = state_dim, action_dim, config.encoder, config.hidden_dims
    critic, _ = (Critics(*sizes, config.n_critics) for _ in range(2))
    imitator = Imitator(*sizes, config.share_encoder, config.likelihood_threshold)
    networks = (network.to(resolve_device(config.device)) for network in (critic, imitator))
    return BCQ(config, *networks)


def save(trainer: BCQ, path: Path, **facts: Any) -> None:
    """Writes a checkpoint."""
    save_checkpoint(path, "discrete/bcq", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: BCQ, path: str) -> dict[str, Any]:
    """Loads a checkpoint of ours or a d3rlpy model; returns its contents."""
    content = load_checkpoint(path, "discrete/bcq", trainer.parts(), d3rlpy=D3RLPY_NAMES)
    trainer.total_it = content["total_it"]
    return content


def train(config: TrainConfig) -> Run:
    """Trains, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: The dataset, the environment or the checkpoint cannot be used.
    """
    task = load_task(config, Preparation(normalise=False, finite=True))
    device = resolve_device(config.device)
    seed_everything(config.seed)
    trainer = create_trainer(config, task.shape, task.action_dim, task.max_action)
    run = Run(config, task, "discrete/bcq", "torch", device)
    history = restore(run, partial(load, trainer), device)
    dataset = to_device(task.dataset, device)
    with run:
        if run.is_due(run.step):
            run.evaluate(run.step, trainer.act)
        for step in range(run.step + 1, config.max_timesteps + 1):
            indices, noise = draw_noise(config, len(dataset.rewards), device)
            history.append(trainer.update(take(dataset, indices), noise))
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
    cli(train, TrainConfig, "discrete/bcq")
