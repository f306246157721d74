"""Fitted Q evaluation in PyTorch: learns a saved policy's value from a dataset, without an environment.

Its twin is `corl_jax/evaluation/fqe.py`. The policy is fixed, so its action in each state is computed beforehand.

Le, Voloshin & Yue, Batch Policy Learning under Constraints, 2019, https://arxiv.org/abs/1903.08738
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from shared.runs.start import cli

import numpy as np
import torch
from torch import Tensor, amin, concatenate, nn, square, stack

from shared.data.transitions import SarsaBatch
from shared.frameworks.evaluated_policy import load_evaluation_task, with_policy
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.torch_data import index_tensor, take, to_device
from shared.frameworks.torch_layers import probe
from shared.frameworks.torch_side import mean_metrics, on_arrays, resolve_device, seed_everything
from shared.runs.fields import bounded, positive, unbounded, widths
from shared.runs.run import Run
from shared.runs.settings import LimitsConfig, RecordConfig

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Learning rate of the critics
    learning_rate: float = positive(1e-4)
    # Discount factor of the return that is estimated, whatever the policy was trained with
    discount: float = bounded(0.99, low=0, high=1)
    # Updates in a regression: the targets are copied after the first update, and then each time this many have been
    # made
    target_update_period: int = bounded(100, low=1)
    # Transitions in a batch
    batch_size: int = bounded(100, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, LimitsConfig, RecordConfig):
    """The settings of a whole run."""

    group: str = "FQE-D4RL"
    name: str = "FQE"
    # Run whose policy is evaluated: its folder, or a checkpoint; empty: the latest finished run below runs_path whose
    # policy acts in the dataset's environment
    policy: str = ""
    # Dataset to evaluate it on: mini/hopper-mostly-expert, a D4RL id, minari:NAME, or the path of an HDF5 file
    env: str = "mini/hopper-mostly-expert"
    # Updates in all
    max_timesteps: int = bounded(100_000, low=1)
    # Critics
    n_critics: int = bounded(1, low=1)
    # Widths of the critics' hidden layers
    critic_hidden_dims: tuple[int, ...] = widths(256, 256)
    # Return that an episode of the dataset needs to be a success, for soft off-policy classification; null: the median
    return_threshold: float | None = unbounded(None)


# ---- networks ------------------------------------------------------------------------------------------------------


def mlp(inputs: Sequence[int], hidden_dims: Sequence[int], output_dim: int) -> nn.Sequential:
    """Hidden layers with ReLU, which d3rlpy tries on random rows of inputs of these sizes; then a linear layer."""
    dims = [sum(inputs), *hidden_dims]
    hidden = [layer for a, b in pairwise(dims) for layer in (nn.Linear(a, b), nn.ReLU())]
    probe(*inputs)
    return nn.Sequential(*hidden, nn.Linear(dims[-1], output_dim))


class Critics(nn.Module):
    """N critics Q(s, a) with separate weights."""

    def __init__(self, state_dim: int, action_dim: int, hidden_dims: Sequence[int], n_critics: int) -> None:
        super().__init__()
        self.members = nn.ModuleList(mlp((state_dim, action_dim), hidden_dims, 1) for _ in range(n_critics))

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """The values (N, B) of actions (B, A) in observations (B, S)."""
        inputs = concatenate([observations, actions], axis=-1)
        return stack([member(inputs).squeeze(-1) for member in self.members])


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """An update draws nothing besides its batch."""


def draw_noise(hp: Hyperparameters, dataset_size: int, device: torch.device) -> tuple[Tensor, Noise]:
    """An update's batch indices (B,), from NumPy's global generator as in d3rlpy."""
    indices = np.random.randint(0, dataset_size, size=hp.batch_size)
    return index_tensor(indices, device), Noise()


# ---- losses and update ---------------------------------------------------------------------------------------------


def gradient_step(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """One step of the optimiser down the gradient of the loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


# Names of the networks in d3rlpy's files
D3RLPY_NAMES = {"critic": ("q_funcs",), "critic_target": ("targ_q_funcs",)}


class FQE:
    """All that an update reads and writes."""

    def __init__(self, hp: Hyperparameters, critic: Critics) -> None:
        self.hp = hp
        self.critic = critic
        self.critic_target = copy.deepcopy(critic)
        self.critic_optimizer = torch.optim.Adam(critic.parameters(), lr=hp.learning_rate)
        self.total_it = 0

    @torch.no_grad()
    def td_target(self, batch: SarsaBatch) -> Tensor:
        """The regression target of all critics, (B,): the smallest target value of the policy's next action."""
        hp, critic = self.hp, self.critic_target
        next_q = amin(critic(batch.next_observations, batch.next_actions), axis=0)
        assert next_q.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + hp.discount * next_q * (1.0 - batch.terminals)

    def critic_loss(self, batch: SarsaBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """The squared errors of all critics to the same target, added up over the critics."""
        critic = self.critic
        target = self.td_target(batch)
        q = critic(batch.observations, batch.actions)
        assert q.shape[1:] == target.shape
        return square(q - target).mean(axis=1).sum(), {}

    def update(self, batch: SarsaBatch, noise: Noise) -> dict[str, Tensor]:
        """One gradient step; after the first, and every `target_update_period` later, the critics are copied."""
        hp = self.hp
        loss, _ = self.critic_loss(batch)
        gradient_step(loss, self.critic_optimizer)
        if self.total_it % hp.target_update_period == 0:
            self.critic_target.load_state_dict(self.critic.state_dict())
        self.total_it += 1
        return {"critic_loss": loss.detach()}

    def value(self, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Calls `estimate` with NumPy arrays."""
        return on_arrays(estimate, self.critic, observations, actions)

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint, by name."""
        return {name: getattr(self, name) for name in ("critic", "critic_target", "critic_optimizer")}


def estimate(critic: Critics, observations: Tensor, actions: Tensor) -> Tensor:
    """The estimated values (B,) of actions (B, A) in observations (B, S): the mean of the critics."""
    return critic(observations, actions).mean(axis=0)


# ---- training ------------------------------------------------------------------------------------------------------


def create_trainer(config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> FQE:
    """Fresh critics, drawn from torch's generator on the CPU in d3rlpy's order, in which targets are drawn too."""
    critic, _ = (Critics(state_dim, action_dim, config.critic_hidden_dims, config.n_critics) for _ in range(2))
    return FQE(config, critic.to(resolve_device(config.device)))


def save(trainer: FQE, path: Path, **facts: Any) -> None:
    """Writes a checkpoint."""
    save_checkpoint(path, "evaluation/fqe", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: FQE, path: str) -> dict[str, Any]:
    """Loads a checkpoint of ours or a d3rlpy model; returns its contents."""
    content = load_checkpoint(path, "evaluation/fqe", trainer.parts(), d3rlpy=D3RLPY_NAMES)
    trainer.total_it = content["total_it"]
    return content


def train(config: TrainConfig) -> Run:
    """Learns the policy's value, evaluates it every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: The policy, the dataset or the checkpoint cannot be used.
    """
    config = with_policy(config)
    task = load_evaluation_task(config)
    device = resolve_device(config.device)
    seed_everything(config.seed)
    trainer = create_trainer(config, task.state_dim, task.action_dim, task.max_action)
    run = Run(config, task, "evaluation/fqe", "torch", device)
    history = restore(run, partial(load, trainer), device)
    dataset = to_device(task.dataset, device)
    with run:
        if run.is_due(run.step):
            run.evaluate(run.step, trainer.value)
        for step in range(run.step + 1, config.max_timesteps + 1):
            indices, noise = draw_noise(config, len(dataset.rewards), device)
            history.append(trainer.update(take(dataset, indices), noise))
            run.advance(1)
            if run.is_due(step):
                run.log(step, mean_metrics(history))
                history.clear()
                run.save(step, partial(save, trainer))
                run.evaluate(step, trainer.value)
            elif run.stopping:
                run.save(step, partial(save, trainer, history=history))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "evaluation/fqe")
