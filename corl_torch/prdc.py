"""PRDC in PyTorch: TD3 whose actor is also pulled towards the action of the dataset's nearest row.

Its twin is `corl_jax/prdc.py`.

Ran, Li, Zhang, Zhang & Yu, Policy Regularization with Dataset Constraint for Offline Reinforcement Learning, 2023,
https://arxiv.org/abs/2306.06569
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
from torch import Tensor, amin, clip, concatenate, nn, square, stack, tanh

from shared.data.transitions import Batch
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.torch_data import index_tensor, take, to_device
from shared.frameworks.torch_layers import probe
from shared.frameworks.torch_neighbours import BruteForce, Tree, search_among
from shared.frameworks.torch_side import mean_metrics, on_arrays, resolve_device, seed_everything
from shared.runs.fields import bounded, choice, positive, widths
from shared.runs.run import Run
from shared.runs.settings import TransitionsConfig
from shared.runs.task import Preparation, load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Weight of the value relative to the distance to the nearest action
    alpha: float = bounded(2.5, low=0)
    # Weight of the states relative to the actions, in the search for the nearest row
    state_weight: float = bounded(2.0, low=0)
    # Learning rate of the policy
    actor_lr: float = positive(3e-4)
    # Learning rate of the critics
    critic_lr: float = positive(3e-4)
    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Rate at which the targets follow their networks
    tau: float = bounded(0.005, low=0, high=1)
    # Standard deviation of the target action's noise, in units of the largest action
    policy_noise: float = bounded(0.2, low=0)
    # Bound of that noise, in the same units
    noise_clip: float = bounded(0.5, low=0)
    # Critic updates per update of the policy and of the targets; the first update has both
    policy_freq: int = bounded(2, low=1)
    # Transitions in a batch
    batch_size: int = bounded(256, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, TransitionsConfig):
    """The settings of a whole run."""

    group: str = "PRDC-D4RL"
    name: str = "PRDC"
    max_timesteps: int = bounded(500_000, low=1)
    observation_scaler: str = choice("standard", "none", "min_max")
    # How the nearest row is found: with a tree on the host, from all distances on the device, or whichever is faster
    search: str = choice("auto", "tree", "brute")
    # Critics
    n_critics: int = bounded(2, low=1)
    # Widths of the policy's hidden layers
    actor_hidden_dims: tuple[int, ...] = widths(256, 256)
    # Widths of the critics' hidden layers
    critic_hidden_dims: tuple[int, ...] = widths(256, 256)


# ---- networks ------------------------------------------------------------------------------------------------------


def mlp(inputs: Sequence[int], hidden_dims: Sequence[int], output_dim: int) -> nn.Sequential:
    """Hidden layers with ReLU, which d3rlpy tries on random rows of inputs of these sizes; then a linear layer."""
    dims = [sum(inputs), *hidden_dims]
    hidden = [layer for a, b in pairwise(dims) for layer in (nn.Linear(a, b), nn.ReLU())]
    probe(*inputs)
    return nn.Sequential(*hidden, nn.Linear(dims[-1], output_dim))


class Actor(nn.Module):
    """The policy, which gives an action for each observation: (B, S) to (B, A)."""

    def __init__(self, state_dim: int, action_dim: int, max_action: float, hidden_dims: Sequence[int]) -> None:
        super().__init__()
        self.net = mlp((state_dim,), hidden_dims, action_dim)
        self.max_action = max_action

    def forward(self, observations: Tensor) -> Tensor:
        """The actions (B, A) for observations (B, S), within [-max_action, max_action]."""
        return self.max_action * tanh(self.net(observations))


class Critics(nn.Module):
    """N critics Q(s, a) with separate weights."""

    def __init__(self, state_dim: int, action_dim: int, hidden_dims: Sequence[int], n_critics: int) -> None:
        super().__init__()
        self.members = nn.ModuleList(mlp((state_dim, action_dim), hidden_dims, 1) for _ in range(n_critics))

    def forward(self, observations: Tensor, actions: Tensor, first: int | None = None) -> Tensor:
        """The values (N, B) of actions (B, A) in observations (B, S), by the first few critics (`first`), or by all."""
        inputs = concatenate([observations, actions], axis=-1)
        return stack([member(inputs).squeeze(-1) for member in self.members[:first]])


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    # Standard normal, (B, A): smooths the target policy
    target: Tensor


def draw_noise(hp: Hyperparameters, size: int, action_dim: int, device: torch.device) -> tuple[Tensor, Noise]:
    """An update's batch indices (B,) below `size`, from NumPy's global generator, and its noise, from torch's."""
    indices = np.random.randint(0, size, size=hp.batch_size)
    noise = Noise(target=torch.randn(hp.batch_size, action_dim, device=device))
    return index_tensor(indices, device), noise


# ---- the dataset that constrains the policy -------------------------------------------------------------------------


class ConstrainedDataset(NamedTuple):
    """A dataset, and the search for the nearest of its rows."""

    rows: Batch
    search: Tree | BruteForce


class ConstrainedBatch(NamedTuple):
    """A batch, as `Batch`, and the whole dataset, which the policy's actions are compared with."""

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    next_observations: Tensor
    terminals: Tensor
    dataset: ConstrainedDataset


def search_keys(observations: Tensor, actions: Tensor, state_weight: float) -> Tensor:
    """The search keys (B, S + A): observations (B, S), multiplied by state_weight, joined with actions (B, A)."""
    return concatenate([state_weight * observations, actions], axis=-1)


def constrained(dataset: Batch, config: "TrainConfig") -> ConstrainedDataset:
    """The dataset of N rows, and a search among all of them."""
    keys = search_keys(dataset.observations, dataset.actions, config.state_weight)
    return ConstrainedDataset(dataset, search_among(keys, config.search))


def take_constrained(dataset: ConstrainedDataset, indices: Tensor) -> ConstrainedBatch:
    """The rows `indices` (B,) of the dataset, and the dataset."""
    return ConstrainedBatch(**take(dataset.rows, indices)._asdict(), dataset=dataset)


# ---- losses and update ---------------------------------------------------------------------------------------------


def adam(network: nn.Module, lr: float) -> torch.optim.Optimizer:
    """A network's optimiser."""
    return torch.optim.Adam(network.parameters(), lr=lr)


def gradient_step(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """One step of the optimiser down the gradient of the loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def soft_update(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Polyak averaging: the target moves a step of size tau towards the source, in place."""
    for old, new in zip(target.parameters(), source.parameters(), strict=True):
        old.data.copy_((1.0 - tau) * old.data + tau * new.data)


# Names of the networks in d3rlpy's files
D3RLPY_NAMES = {
    "actor": ("policy",),
    "actor_target": ("targ_policy",),
    "critic": ("q_funcs",),
    "critic_target": ("targ_q_funcs",),
}


class PRDC:
    """All that an update reads and writes."""

    def __init__(self, hp: Hyperparameters, actor: Actor, critic: Critics) -> None:
        self.hp = hp
        self.max_action = actor.max_action
        self.actor, self.critic = actor, critic
        self.actor_target, self.critic_target = copy.deepcopy((actor, critic))
        self.actor_optimizer = adam(actor, hp.actor_lr)
        self.critic_optimizer = adam(critic, hp.critic_lr)
        self.total_it = 0

    @torch.no_grad()
    def td_target(self, batch: ConstrainedBatch, noise: Noise) -> Tensor:
        """The regression target of all critics, (B,): the smallest target value of a smoothed target action."""
        hp, max_action = self.hp, self.max_action
        actor, critic = self.actor_target, self.critic_target
        smoothing = clip(
            noise.target * (hp.policy_noise * max_action), -hp.noise_clip * max_action, hp.noise_clip * max_action
        )
        next_actions = clip(actor(batch.next_observations) + smoothing, -max_action, max_action)
        next_q = amin(critic(batch.next_observations, next_actions), axis=0)
        assert next_q.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + hp.discount * next_q * (1.0 - batch.terminals)

    def critic_loss(self, batch: ConstrainedBatch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """The squared errors of all critics to the same target, added up over the critics."""
        critic = self.critic
        target = self.td_target(batch, noise)
        q = critic(batch.observations, batch.actions)
        assert q.shape[1:] == target.shape
        return square(q - target).mean(axis=1).sum(), {}

    def actor_loss(self, batch: ConstrainedBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """The value under the first critic, scaled by its own size, against the distance to the nearest actions."""
        actor, critic = self.actor, self.critic
        actions = actor(batch.observations)
        q = critic(batch.observations, actions, 1).squeeze(0)
        # There is no epsilon below |Q|.
        weight = self.hp.alpha / abs(q).mean().detach()
        nearest = self.nearest_actions(batch, actions.detach())
        assert q.shape == batch.rewards.shape
        assert actions.shape == nearest.shape
        distance = square(actions - nearest).mean()
        return -weight * q.mean() + distance, {"dc_loss": distance.detach()}

    def nearest_actions(self, batch: ConstrainedBatch, actions: Tensor) -> Tensor:
        """The actions (B, A) of the dataset's rows that are nearest to these states with these actions (B, A)."""
        keys = search_keys(batch.observations, actions, self.hp.state_weight)
        return take(batch.dataset.rows, batch.dataset.search.nearest(keys)).actions

    def update(self, batch: ConstrainedBatch, noise: Noise) -> dict[str, Tensor]:
        """One gradient step: the critics; then, in the first of every `policy_freq`, the actor and the targets."""
        hp = self.hp
        loss, _ = self.critic_loss(batch, noise)
        gradient_step(loss, self.critic_optimizer)
        metrics = {"critic_loss": loss.detach()}
        if self.total_it % hp.policy_freq == 0:
            loss, aux = self.actor_loss(batch)
            gradient_step(loss, self.actor_optimizer)
            metrics |= {"actor_loss": loss.detach(), **aux}
            soft_update(self.critic_target, self.critic, hp.tau)
            soft_update(self.actor_target, self.actor, hp.tau)
        self.total_it += 1
        return metrics

    def act(self, observations: np.ndarray) -> np.ndarray:
        """Calls `policy` with NumPy arrays."""
        return on_arrays(policy, self.actor, observations)

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint, by name."""
        names = ("actor", "critic", "actor_target", "critic_target", "actor_optimizer", "critic_optimizer")
        return {name: getattr(self, name) for name in names}


def policy(actor: Actor, observations: Tensor) -> Tensor:
    """The policy's actions (E, A) for observations (E, S)."""
    return actor(observations)


# ---- training ------------------------------------------------------------------------------------------------------


def create_trainer(config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> PRDC:
    """Fresh networks, drawn from torch's generator on the CPU in d3rlpy's order, in which targets are drawn too."""
    actor, _ = (Actor(state_dim, action_dim, max_action, config.actor_hidden_dims) for _ in range(2))
    critic, _ = (Critics(state_dim, action_dim, config.critic_hidden_dims, config.n_critics) for _ in range(2))
    device = resolve_device(config.device)
    return PRDC(config, actor.to(device), critic.to(device))


def save(trainer: PRDC, path: Path, **facts: Any) -> None:
    """Writes a checkpoint."""
    save_checkpoint(path, "prdc", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: PRDC, path: str) -> dict[str, Any]:
    """Loads a checkpoint of ours or a d3rlpy model; returns its contents."""
    content = load_checkpoint(path, "prdc", trainer.parts(), d3rlpy=D3RLPY_NAMES)
    trainer.total_it = content["total_it"]
    return content


def train(config: TrainConfig) -> Run:
    """Trains, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used.
    """
    task = load_task(config, Preparation(normalise=False))
    device = resolve_device(config.device)
    seed_everything(config.seed)
    trainer = create_trainer(config, task.state_dim, task.action_dim, task.max_action)
    run = Run(config, task, "prdc", "torch", device)
    history = restore(run, partial(load, trainer), device)
    dataset = constrained(to_device(task.dataset, device), config)
    with run:
        if run.is_due(run.step):
            run.evaluate(run.step, trainer.act)
        for step in range(run.step + 1, config.max_timesteps + 1):
            indices, noise = draw_noise(config, len(task.dataset.rewards), task.action_dim, device)
            history.append(trainer.update(take_constrained(dataset, indices), noise))
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
    cli(train, TrainConfig, "prdc")
