"""CQL of finite actions in PyTorch: Q-learning whose critics value what the data lack no higher than what they hold.

Its twin is `corl_jax/discrete/cql.py`. All actions of a state can be listed, so nothing is sampled.

Kumar et al., Conservative Q-Learning for Offline Reinforcement Learning, 2020, https://arxiv.org/abs/2006.04779
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from shared.runs.start import cli

import numpy as np
import torch
from torch import Tensor, abs, amin, argmax, logsumexp, nn, square, stack, where
from torch.nn.functional import one_hot

from shared.data.transitions import Batch
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.torch_data import index_tensor, take, to_device
from shared.frameworks.torch_layers import probe
from shared.frameworks.torch_side import mean_metrics, on_arrays, resolve_device, seed_everything
from shared.runs.fields import bounded, positive, widths
from shared.runs.run import Run
from shared.runs.settings import TransitionsConfig
from shared.runs.task import load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """What an update depends on."""

    # Learning rate
    learning_rate: float = positive(6.25e-5)
    # Added to the root in Adam's step
    adam_eps: float = positive(1e-8)
    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Weight of the conservative term
    cql_alpha: float = bounded(1.0, low=0)
    # The critics choose the next action, which the targets then value, as in d3rlpy; else the targets do both, as in
    # the paper's experiments
    double: bool = False
    # Updates from one copy of the critics into the targets to the next, the first of which comes with the first update
    target_update_interval: int = bounded(8000, low=1)
    # Transitions in a batch
    batch_size: int = bounded(32, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, TransitionsConfig):
    """A whole run."""

    group: str = "DiscreteCQL"
    name: str = "DiscreteCQL"
    # Dataset of finite actions: mini/cartpole-replay, minari:NAME, or the path of an HDF5 file
    env: str = "mini/cartpole-replay"
    # Updates between two evaluations
    eval_freq: int = bounded(10_000, low=1)
    # Critics
    n_critics: int = bounded(1, low=1)
    # Widths of the hidden layers
    hidden_dims: tuple[int, ...] = widths(256, 256)

    REFERENCE_NAMES: ClassVar[dict[str, str]] = {
        "alpha": "cql_alpha",
        "gamma": "discount",
        "n_trials": "n_episodes",
        "dataset": "env",
    }


# ---- networks ------------------------------------------------------------------------------------------------------


def mlp(inputs: int, hidden_dims: Sequence[int], output_dim: int) -> nn.Sequential:
    """Hidden layers with ReLU, which d3rlpy tries on random rows of this size; then a linear layer."""
    dims = [inputs, *hidden_dims]
    hidden = [layer for a, b in pairwise(dims) for layer in (nn.Linear(a, b), nn.ReLU())]
    probe(inputs)
    return nn.Sequential(*hidden, nn.Linear(dims[-1], output_dim))


class Critics(nn.Module):
    """N critics Q(s, .), which value all actions at once, with weights of their own."""

    def __init__(self, state_dim: int, action_dim: int, hidden_dims: Sequence[int], n_critics: int) -> None:
        super().__init__()
        self.members = nn.ModuleList(mlp(state_dim, hidden_dims, action_dim) for _ in range(n_critics))

    def forward(self, observations: Tensor) -> Tensor:
        """The values (N, B, A) of all actions in observations (B, S)."""
        return stack([member(observations) for member in self.members])


def value(q: Tensor, actions: Tensor) -> Tensor:
    """Of the values (..., B, A) of all actions those of these (B,), (..., B)."""
    return (q * one_hot(actions, q.shape[-1])).sum(axis=-1)


def greedy(q: Tensor) -> Tensor:
    """The actions (B,) that all critics together value most, by their values (N, B, A); of equal ones the first."""
    return argmax(q.mean(axis=0), axis=-1)


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


def huber(error: Tensor) -> Tensor:
    """Half the square of errors below 1, and the absolute error less a half of all others."""
    return where(abs(error) < 1.0, 0.5 * square(error), abs(error) - 0.5)


def gap(q: Tensor, actions: Tensor) -> Tensor:
    """How far the soft maximum of all actions' mean values lies above the data's action, (B,), by values (N, B, A)."""
    mean = q.mean(axis=0)
    return logsumexp(mean, axis=-1) - value(mean, actions)


# What d3rlpy calls the networks in its files
D3RLPY_NAMES = {"critics": ("q_funcs",), "critics_target": ("targ_q_funcs",)}


class CQL:
    """All that an update reads and writes."""

    def __init__(self, hp: Hyperparameters, critics: Critics) -> None:
        self.hp = hp
        self.critics, self.critics_target = critics, copy.deepcopy(critics)
        self.critics_optimizer = adam(critics, hp)
        self.total_it = 0

    @property
    def acting(self) -> Critics:
        """What `policy` takes."""
        return self.critics

    @torch.no_grad()
    def td_target(self, batch: Batch) -> Tensor:
        """The regression target of all critics, (B,): the smallest target value of the best next action."""
        hp, critics, target = self.hp, self.critics, self.critics_target
        values = target(batch.next_observations)
        next_actions = greedy(critics(batch.next_observations) if hp.double else values)
        next_q = amin(value(values, next_actions), axis=0)
        assert next_q.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + hp.discount * next_q * (1.0 - batch.terminals)

    def critic_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Huber's loss of all critics against one target, added up, and the conservative term with its weight."""
        critics = self.critics
        target = self.td_target(batch)
        q = value(critics(batch.observations), batch.actions)
        assert q.shape[1:] == target.shape
        td_loss = huber(q - target).mean(axis=1).sum()
        # As d3rlpy, a second time: so the gradients of both terms are added weight by weight.
        conservative_loss = gap(critics(batch.observations), batch.actions).mean()
        loss = td_loss + self.hp.cql_alpha * conservative_loss
        return loss, {"td_loss": td_loss.detach(), "conservative_loss": conservative_loss.detach()}

    def update(self, batch: Batch, noise: Noise) -> dict[str, Tensor]:
        """One gradient step; then, in the first of every `target_update_interval`, the targets become copies."""
        hp = self.hp
        loss, terms = self.critic_loss(batch)
        gradient_step(loss, self.critics_optimizer)
        if self.total_it % hp.target_update_interval == 0:
            self.critics_target.load_state_dict(self.critics.state_dict())
        self.total_it += 1
        return {"loss": loss.detach(), **terms}

    def act(self, observations: np.ndarray) -> np.ndarray:
        """What `policy` makes of NumPy's arrays."""
        return on_arrays(policy, self.critics, observations)

    def parts(self) -> dict[str, Any]:
        """What a checkpoint holds, by its name."""
        return {name: getattr(self, name) for name in ("critics", "critics_target", "critics_optimizer")}


def policy(critics: Critics, observations: Tensor) -> Tensor:
    """The best actions (E,) for observations (E, S)."""
    return greedy(critics(observations))


# ---- training ------------------------------------------------------------------------------------------------------


def create_trainer(config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> CQL:
    """Fresh networks, drawn from torch's generator on the CPU in d3rlpy's order, which draws targets of their own."""
    critics, _ = (Critics(state_dim, action_dim, config.hidden_dims, config.n_critics) for _ in range(2))
    return CQL(config, critics.to(resolve_device(config.device)))


def save(trainer: CQL, path: Path, **facts: Any) -> None:
    """Writes a checkpoint."""
    save_checkpoint(path, "discrete/cql", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: CQL, path: str) -> dict[str, Any]:
    """Loads a checkpoint of ours, or a model of d3rlpy's; returns what it holds."""
    content = load_checkpoint(path, "discrete/cql", trainer.parts(), d3rlpy=D3RLPY_NAMES)
    trainer.total_it = content["total_it"]
    return content


def train(config: TrainConfig) -> Run:
    """Trains, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: The dataset, the environment or the checkpoint cannot be used.
    """
    task = load_task(config, None, normalize=False, finite=True)
    device = resolve_device(config.device)
    seed_everything(config.seed)
    trainer = create_trainer(config, task.state_dim, task.action_dim, task.max_action)
    run = Run(config, task, "discrete/cql", "torch", device)
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
    cli(train, TrainConfig, "discrete/cql")
