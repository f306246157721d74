"""Behaviour cloning of finite actions in PyTorch: the policy takes the action that is most likely in the data.

Its twin is `corl_jax/discrete/bc.py`.

Pomerleau, Efficient Training of Artificial Neural Networks for Autonomous Navigation, 1991. The penalty on the outputs:
Fujimoto et al., Benchmarking Batch Deep Reinforcement Learning Algorithms, 2019, https://arxiv.org/abs/1910.01708
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from shared.runs.start import cli

import numpy as np
import torch
from torch import Tensor, argmax, log_softmax, logsumexp, nn, square
from torch.nn.functional import nll_loss

from shared.data.transitions import Batch
from shared.envs.spaces import Shape
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.torch_data import index_tensor, take, to_device
from shared.frameworks.torch_encoders import convolutions
from shared.frameworks.torch_layers import probe
from shared.frameworks.torch_side import mean_metrics, on_arrays, resolve_device, seed_everything
from shared.runs.fields import bounded, positive, widths
from shared.runs.run import Run
from shared.runs.settings import ImagesConfig, ImitationConfig
from shared.runs.task import Preparation, load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Learning rate
    learning_rate: float = positive(1e-3)
    # Adam's epsilon, which is added to the root in its step
    adam_eps: float = positive(1e-8)
    # Weight of the penalty on the policy's outputs
    logit_penalty: float = bounded(0.5, low=0)
    # Penalise log-probabilities, as d3rlpy 2.8.1 does; false: the policy's outputs, as BCQ's authors do
    penalize_log_probs: bool = False
    # Transitions in a batch
    batch_size: int = bounded(100, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, ImagesConfig, ImitationConfig):
    """The settings of a whole run."""

    group: str = "DiscreteBC"
    name: str = "DiscreteBC"
    # Dataset of finite actions: mini/cartpole-replay, minari:NAME, or the path of an HDF5 file
    env: str = "mini/cartpole-replay"
    # Updates between two evaluations
    eval_freq: int = bounded(10_000, low=1)
    # Widths of the hidden layers
    hidden_dims: tuple[int, ...] = widths(256, 256)


# ---- networks ------------------------------------------------------------------------------------------------------


def mlp(state_dim: Shape, encoder: str, hidden_dims: Sequence[int], output_dim: int) -> nn.Sequential:
    """Convolutions if there are any, hidden layers with ReLU, which d3rlpy tries on random rows, and a linear layer."""
    layers, inputs = convolutions(encoder, state_dim)
    dims = [inputs, *hidden_dims]
    hidden = [layer for a, b in pairwise(dims) for layer in (nn.Linear(a, b), nn.ReLU())]
    probe(state_dim)
    return nn.Sequential(*layers, *hidden, nn.Linear(dims[-1], output_dim))


class Actor(nn.Module):
    """The policy, which gives a logit to each action."""

    def __init__(self, state_dim: Shape, action_dim: int, encoder: str, hidden_dims: Sequence[int]) -> None:
        super().__init__()
        self.net = mlp(state_dim, encoder, hidden_dims, action_dim)

    def forward(self, observations: Tensor) -> Tensor:
        """The logits (B, A) of all actions in observations (B, S)."""
        return self.net(observations)


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


def gradient_step(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """One step of the optimiser down the gradient of the loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


# Name of the network in d3rlpy's files
D3RLPY_NAMES = {"actor": ("imitator",)}


class BC:
    """All that an update reads and writes."""

    def __init__(self, hp: Hyperparameters, actor: Actor) -> None:
        self.hp = hp
        self.actor = actor
        self.actor_optimizer = adam(actor, hp)
        self.total_it = 0

    def actor_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The cross-entropy of the policy against the data's actions, and the penalty."""
        hp, actor = self.hp, self.actor
        logits = actor(batch.observations)
        log_probs = logits - logsumexp(logits, axis=-1, keepdims=True)
        # Normalised twice, as in d3rlpy, which only changes the last bit.
        imitation_loss = nll_loss(log_softmax(log_probs, axis=-1), batch.actions)
        regularization_loss = hp.logit_penalty * square(log_probs if hp.penalize_log_probs else logits).mean()
        terms = {"imitation_loss": imitation_loss.detach(), "regularization_loss": regularization_loss.detach()}
        return imitation_loss + regularization_loss, terms

    def update(self, batch: Batch, noise: Noise) -> dict[str, Tensor]:
        """One gradient step."""
        self.total_it += 1
        loss, terms = self.actor_loss(batch)
        gradient_step(loss, self.actor_optimizer)
        return {"loss": loss.detach(), **terms}

    def act(self, observations: np.ndarray) -> np.ndarray:
        """Calls `policy` with NumPy arrays."""
        return on_arrays(policy, self.actor, observations)

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint, by name."""
        return {"actor": self.actor, "actor_optimizer": self.actor_optimizer}


def policy(actor: Actor, observations: Tensor) -> Tensor:
    """The most likely actions (E,) for observations (E, S)."""
    return argmax(actor(observations), axis=-1)


# ---- training ------------------------------------------------------------------------------------------------------


def create_trainer(config: TrainConfig, state_dim: Shape, action_dim: int, max_action: float) -> BC:
    """A fresh network, drawn from torch's generator on the CPU in d3rlpy's order."""
    actor = Actor(state_dim, action_dim, config.encoder, config.hidden_dims)
    return BC(config, actor.to(resolve_device(config.device)))


def save(trainer: BC, path: Path, **facts: Any) -> None:
    """Writes a checkpoint."""
    save_checkpoint(path, "discrete/bc", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: BC, path: str) -> dict[str, Any]:
    """Loads a checkpoint of ours or a d3rlpy model; returns its contents."""
    content = load_checkpoint(path, "discrete/bc", trainer.parts(), d3rlpy=D3RLPY_NAMES)
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
    run = Run(config, task, "discrete/bc", "torch", device)
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
    cli(train, TrainConfig, "discrete/bc")
