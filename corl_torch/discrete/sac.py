"""SAC of finite actions in PyTorch: an actor-critic that is rewarded for entropy, and sums over all actions.

Its twin is `corl_jax/discrete/sac.py`. It learns from a dataset, and nothing is sampled.

Christodoulou, Soft Actor-Critic for Discrete Action Settings, 2019, https://arxiv.org/abs/1910.07207
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
from torch import Tensor, abs, amin, argmax, exp, log_softmax, logsumexp, nn, softmax, square, stack, where
from torch.nn.functional import one_hot

from shared.data.transitions import Batch
from shared.envs.spaces import Shape
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.torch_data import index_tensor, take, to_device
from shared.frameworks.torch_encoders import convolutions
from shared.frameworks.torch_layers import Scalar, probe
from shared.frameworks.torch_side import mean_metrics, on_arrays, resolve_device, seed_everything
from shared.runs.fields import bounded, positive, widths
from shared.runs.run import Run
from shared.runs.settings import ImagesConfig, TransitionsConfig
from shared.runs.task import Preparation, load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Learning rate of the policy
    actor_lr: float = positive(3e-4)
    # Learning rate of the critics
    critic_lr: float = positive(3e-4)
    # Learning rate of the temperature; 0: the temperature is constant
    temperature_lr: float = bounded(3e-4, low=0)
    # Target of the policy's entropy, as a share of the largest possible
    entropy_share: float = bounded(0.98, low=0, high=1)
    # Use Huber's loss for the critics, as in d3rlpy 2.8.1; false: half the squared error, as in the paper
    huber: bool = False
    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Updates between two copies of the critics into the targets; the first update makes the first copy
    target_update_period: int = bounded(8000, low=1)
    # Transitions in a batch
    batch_size: int = bounded(64, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, ImagesConfig, TransitionsConfig):
    """The settings of a whole run."""

    group: str = "DiscreteSAC"
    name: str = "DiscreteSAC"
    # Dataset of finite actions: mini/cartpole-replay, minari:NAME, or the path of an HDF5 file
    env: str = "mini/cartpole-replay"
    # Updates between two evaluations
    eval_freq: int = bounded(10_000, low=1)
    # Critics
    n_critics: int = bounded(2, low=1)
    # Widths of the hidden layers
    hidden_dims: tuple[int, ...] = widths(256, 256)
    # Initial temperature
    initial_temperature: float = positive(1.0)


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


class Critics(nn.Module):
    """N critics Q(s, .), which value all actions at once, with separate weights."""

    def __init__(
        self, state_dim: Shape, action_dim: int, encoder: str, hidden_dims: Sequence[int], n_critics: int
    ) -> None:
        super().__init__()
        self.members = nn.ModuleList(mlp(state_dim, encoder, hidden_dims, action_dim) for _ in range(n_critics))

    def forward(self, observations: Tensor) -> Tensor:
        """The values (N, B, A) of all actions in observations (B, S)."""
        return stack([member(observations) for member in self.members])


def value(q: Tensor, actions: Tensor) -> Tensor:
    """Selects the values (N, B) of these actions (B,) from the values (N, B, A) of all actions."""
    return (q * one_hot(actions, q.shape[-1])).sum(axis=-1)


def distribution(actor: Actor, observations: Tensor) -> tuple[Tensor, Tensor]:
    """The probabilities of all actions in observations (B, S), and their logarithms, (B, A) each."""
    logits = actor(observations)
    log_probs = logits - logsumexp(logits, axis=-1, keepdims=True)
    return softmax(log_probs, axis=-1), log_probs


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """An update draws nothing besides its batch."""


def draw_noise(hp: Hyperparameters, dataset_size: int, device: torch.device) -> tuple[Tensor, Noise]:
    """An update's batch indices (B,), from NumPy's global generator as in d3rlpy."""
    return index_tensor(np.random.randint(0, dataset_size, size=hp.batch_size), device), Noise()


# ---- losses and update ---------------------------------------------------------------------------------------------


def adam(part: nn.Module, lr: float) -> torch.optim.Optimizer:
    """The optimiser of one part."""
    return torch.optim.Adam(part.parameters(), lr=lr)


def gradient_step(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """One step of the optimiser down the gradient of the loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def huber(error: Tensor) -> Tensor:
    """Huber's loss: half the square of errors below 1, and the absolute error minus a half for all others."""
    return where(abs(error) < 1.0, 0.5 * square(error), abs(error) - 0.5)


# Names of the networks in d3rlpy's files
D3RLPY_NAMES = {
    "actor": ("policy",),
    "critic": ("q_funcs",),
    "critic_target": ("targ_q_funcs",),
    "log_temperature": ("log_temp",),
}


class SAC:
    """All that an update reads and writes."""

    def __init__(self, hp: Hyperparameters, actor: Actor, critic: Critics, log_temperature: Scalar) -> None:
        self.hp = hp
        self.actor, self.critic, self.log_temperature = actor, critic, log_temperature
        self.critic_target = copy.deepcopy(critic)
        self.actor_optimizer = adam(actor, hp.actor_lr)
        self.critic_optimizer = adam(critic, hp.critic_lr)
        self.log_temperature_optimizer = adam(log_temperature, hp.temperature_lr)
        self.total_it = 0

    def temperature(self) -> Tensor:
        """The temperature: a constant in every loss except its own."""
        return exp(self.log_temperature().detach())

    @torch.no_grad()
    def td_target(self, batch: Batch) -> Tensor:
        """The regression target of all critics, (B,): the smallest values, averaged over the policy, plus entropy."""
        hp, actor, critic = self.hp, self.actor, self.critic_target
        probs, log_probs = distribution(actor, batch.next_observations)
        q = amin(critic(batch.next_observations), axis=0)
        next_v = (probs * (q - self.temperature() * log_probs)).sum(axis=-1)
        assert next_v.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + hp.discount * next_v * (1.0 - batch.terminals)

    def critic_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The losses of all critics against the same target, added up over the critics."""
        critic = self.critic
        target = self.td_target(batch)
        q = value(critic(batch.observations), batch.actions)
        assert q.shape[1:] == target.shape
        losses = huber(q - target) if self.hp.huber else 0.5 * square(q - target)
        return losses.mean(axis=1).sum(), {}

    def temp_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Raises the temperature while the policy's entropy is below its share of the maximum, log A."""
        with torch.no_grad():
            probs, log_probs = distribution(self.actor, batch.observations)
        # Normalised twice, as in d3rlpy, which only changes the last bit.
        entropy = -(probs * log_softmax(log_probs, axis=-1)).sum(axis=-1)
        target = self.hp.entropy_share * math.log(probs.shape[-1])
        return (exp(self.log_temperature()) * (entropy - target)).mean(), {}

    def actor_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Maximizes the smallest of the critics' values and the policy's entropy."""
        actor = self.actor
        probs, log_probs = distribution(actor, batch.observations)
        with torch.no_grad():
            q = amin(self.critic(batch.observations), axis=0)
        entropy = -(probs * log_probs).sum(axis=-1)
        loss = (probs * (self.temperature() * log_probs - q)).sum(axis=-1)
        return loss.mean(), {"entropy": entropy.mean().detach()}

    def update(self, batch: Batch, noise: Noise) -> dict[str, Tensor]:
        """One gradient step: the critics; the temperature; the policy, with both; then perhaps the targets' copy."""
        hp = self.hp
        loss, _ = self.critic_loss(batch)
        gradient_step(loss, self.critic_optimizer)
        metrics = {"critic_loss": loss.detach()}
        if hp.temperature_lr > 0.0:
            loss, _ = self.temp_loss(batch)
            gradient_step(loss, self.log_temperature_optimizer)
            metrics["temp_loss"] = loss.detach()
        loss, aux = self.actor_loss(batch)
        gradient_step(loss, self.actor_optimizer)
        if self.total_it % hp.target_update_period == 0:
            self.critic_target.load_state_dict(self.critic.state_dict())
        self.total_it += 1
        return {**metrics, "actor_loss": loss.detach(), "temp": self.temperature(), **aux}

    def act(self, observations: np.ndarray) -> np.ndarray:
        """Calls `policy` with NumPy arrays."""
        return on_arrays(policy, self.actor, observations)

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint, by name."""
        learning = ("actor", "critic", "log_temperature")
        names = [*learning, "critic_target", *(f"{part}_optimizer" for part in learning)]
        return {name: getattr(self, name) for name in names}


def policy(actor: Actor, observations: Tensor) -> Tensor:
    """The most likely actions (E,) for observations (E, S)."""
    return argmax(actor(observations), axis=-1)


# ---- training ------------------------------------------------------------------------------------------------------


def create_trainer(config: TrainConfig, state_dim: Shape, action_dim: int, max_action: float) -> SAC:
    """Fresh networks, drawn from torch's generator on the CPU in d3rlpy's order, in which targets are drawn too."""
    sizes = state_dim, action_dim, config.encoder, config.hidden_dims
    critic, _ = (Critics(*sizes, config.n_critics) for _ in range(2))
    actor = Actor(*sizes)
    log_temperature = Scalar(math.log(config.initial_temperature))
    return SAC(config, *(part.to(resolve_device(config.device)) for part in (actor, critic, log_temperature)))


def save(trainer: SAC, path: Path, **facts: Any) -> None:
    """Writes a checkpoint."""
    save_checkpoint(path, "discrete/sac", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: SAC, path: str) -> dict[str, Any]:
    """Loads a checkpoint of ours or a d3rlpy model; returns its contents."""
    content = load_checkpoint(path, "discrete/sac", trainer.parts(), d3rlpy=D3RLPY_NAMES)
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
    run = Run(config, task, "discrete/sac", "torch", device)
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
    cli(train, TrainConfig, "discrete/sac")
