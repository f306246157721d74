"""Behaviour cloning in PyTorch, of a dataset's best trajectories or of all. Its twin is `corl_jax/any_percent_bc.py`.

Pomerleau, Efficient Training of Artificial Neural Networks for Autonomous Navigation, 1991; as a baseline of its best
tenth: Chen et al., Decision Transformer, 2021, https://arxiv.org/abs/2106.01345
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from shared.runs.start import cli

import numpy as np
import torch
from torch import Tensor, nn, square

from shared.data.rewards import BestEpisodes
from shared.data.transitions import Batch
from shared.envs.spaces import Shape
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.torch_data import index_tensor, take, to_device
from shared.frameworks.torch_encoders import convolutions, crop
from shared.frameworks.torch_side import mean_metrics, on_arrays, resolve_device, seed_everything
from shared.runs.fields import bounded, later
from shared.runs.run import Run
from shared.runs.settings import ImagesConfig, ImitationConfig
from shared.runs.task import Preparation, load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Transitions in a batch
    batch_size: int = bounded(256, low=1)
    # Most pixels that an update shifts an image by, at random: the image is padded with its edges, then cropped. DrQ
    # uses 4 for images of 84 x 84
    crop_padding: int = later(bounded(0, low=0, high=64))


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, ImagesConfig, ImitationConfig):
    """The settings of a whole run."""

    group: str = "BC-D4RL"
    name: str = "BC"
    # Seed of the weights, the batches and the evaluation's start states
    seed: int = bounded(0, low=0, high=2**32 - 1)
    # Share of the trajectories to learn from, those with the highest returns; 1 is plain behaviour cloning
    frac: float = bounded(0.1, low=0, high=1)
    # No effect, because CORL declares it but never uses it; kept so that CORL's files load. Trajectories are cut after
    # 1000 transitions
    max_traj_len: int = bounded(1000, low=1)
    # Normalise states to mean 0 and standard deviation 1
    normalize: bool = True
    # Discount factor of the returns by which trajectories are ranked
    discount: float = bounded(0.99, low=0, high=1)


# ---- networks ------------------------------------------------------------------------------------------------------


class Actor(nn.Module):
    """The deterministic policy: (B, S), or images, to (B, A), within [-max_action, max_action]."""

    def __init__(self, state_dim: Shape, action_dim: int, max_action: float, encoder: str) -> None:
        super().__init__()
        layers, inputs = convolutions(encoder, state_dim)
        self.net = nn.Sequential(
            *layers,
            nn.Linear(inputs, 256),
            nn.ReLU(),
            nn.Linear(256, 256),
            nn.ReLU(),
            nn.Linear(256, action_dim),
            nn.Tanh(),
        )
        self.max_action = max_action

    def forward(self, observations: Tensor) -> Tensor:
        """The actions (B, A) for observations (B, S)."""
        return self.max_action * self.net(observations)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    # With crop_padding: the row and column at which each padded image is cropped, (B, 2)
    crops: Tensor | None = None


def draw_noise(hp: Hyperparameters, dataset_size: int, device: torch.device) -> tuple[Tensor, Noise]:
    """An update's batch indices (B,), from NumPy's global generator as in CORL, and its crops, from torch's."""
    indices = np.random.randint(0, dataset_size, size=hp.batch_size)
    noise = Noise()
    if hp.crop_padding:
        noise = Noise(torch.randint(2 * hp.crop_padding + 1, (hp.batch_size, 2), device=device))
    return index_tensor(indices, device), noise


# ---- losses and update ---------------------------------------------------------------------------------------------


def gradient_step(loss: Tensor, *optimizers: torch.optim.Optimizer) -> None:
    """One step of each optimiser down the gradient of the loss."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()


class BC:
    """All that an update reads and writes."""

    def __init__(self, hp: Hyperparameters, actor: Actor) -> None:
        self.hp = hp
        self.actor = actor
        self.actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4)
        self.total_it = 0

    def actor_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The squared distance to the data's actions."""
        actor = self.actor
        actions = actor(batch.observations)
        assert actions.shape == batch.actions.shape
        return square(actions - batch.actions).mean(), {}

    def update(self, batch: Batch, noise: Noise) -> dict[str, Tensor]:
        """One gradient step; with `crop_padding`, on cropped images."""
        if noise.crops is not None:
            batch = batch._replace(observations=crop(batch.observations, noise.crops, self.hp.crop_padding))
        self.total_it += 1
        loss, _ = self.actor_loss(batch)
        gradient_step(loss, self.actor_optimizer)
        return {"actor_loss": loss.detach()}

    def act(self, observations: np.ndarray) -> np.ndarray:
        """Calls `policy` with NumPy arrays."""
        return on_arrays(policy, self.actor, observations)

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint, under CORL's keys."""
        return {"actor": self.actor, "actor_optimizer": self.actor_optimizer}


def policy(actor: Actor, observations: Tensor) -> Tensor:
    """The policy's actions (E, A) for normalised observations (E, S)."""
    return actor(observations)


# ---- training ------------------------------------------------------------------------------------------------------


def create_trainer(config: TrainConfig, state_dim: Shape, action_dim: int, max_action: float) -> BC:
    """A fresh network, drawn from torch's generator on the CPU."""
    actor = Actor(state_dim, action_dim, max_action, config.encoder)
    device = resolve_device(config.device)
    return BC(config, actor.to(device))


def save(trainer: BC, path: Path, **facts: Any) -> None:
    """Writes a checkpoint that CORL's own code could load."""
    save_checkpoint(path, "any_percent_bc", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: BC, path: str) -> dict[str, Any]:
    """Loads a checkpoint, ours or CORL's; returns its contents."""
    content = load_checkpoint(path, "any_percent_bc", trainer.parts())
    trainer.total_it = content["total_it"]
    return content


def train(config: TrainConfig) -> Run:
    """Trains, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used.
    """
    preparation = Preparation(rewards=BestEpisodes(config.frac, config.discount), normalise=config.normalize)
    task = load_task(config, preparation)
    device = resolve_device(config.device)
    seed_everything(config.seed)
    trainer = create_trainer(config, task.shape, task.action_dim, task.max_action)
    run = Run(config, task, "any_percent_bc", "torch", device)
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
    cli(train, TrainConfig, "any_percent_bc")
