"""GCBC in PyTorch: a policy that imitates the data's actions on the way to states that they led to.

Its twin is `corl_jax/goal_conditioned/gcbc.py`.

Park et al., OGBench: Benchmarking Offline Goal-Conditioned RL, 2024, https://arxiv.org/abs/2410.20092

Earlier: Ghosh et al., Learning to Reach Goals via Iterated Supervised Learning, https://arxiv.org/abs/1912.06088
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from shared.runs.start import cli

import numpy as np
import torch
from torch import Tensor, broadcast_to, clamp, concatenate, exp, log, nn, square

from shared.data.goals import GoalBatch
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.torch_data import index_tensor, to_device
from shared.frameworks.torch_goals import draw_goals, take_goals
from shared.frameworks.torch_side import mean_metrics, on_arrays, resolve_device, seed_everything
from shared.runs.fields import bounded, positive, widths
from shared.runs.run import Run
from shared.runs.settings import GoalConfig, GoalSettings
from shared.runs.task import Extract, Preparation, load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters(GoalSettings):
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Learning rate of the policy
    learning_rate: float = positive(3e-4)
    # The value goals are drawn as in the authors' code, and not used.
    value_p_curgoal: float = bounded(0.0, low=0, high=1)
    value_p_trajgoal: float = bounded(1.0, low=0, high=1)
    value_p_randomgoal: float = bounded(0.0, low=0, high=1)
    value_geom_sample: bool = False
    # Transitions in a batch
    batch_size: int = bounded(1024, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, GoalConfig):
    """The settings of a whole run."""

    group: str = "GCBC-OGBench"
    name: str = "GCBC"
    # Widths of the policy's hidden layers
    actor_hidden_dims: tuple[int, ...] = widths(512, 512, 512)
    # Use a standard deviation of 1 for the policy's actions instead of a learnt one
    const_std: bool = True


# ---- networks ------------------------------------------------------------------------------------------------------


def linear(input_dim: int, output_dim: int, gain: float = 1.0) -> nn.Linear:
    """A layer with Glorot's uniform weight, times `gain`, and a bias of 0."""
    layer = nn.Linear(input_dim, output_dim)
    nn.init.xavier_uniform_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def mlp(input_dim: int, hidden_dims: Sequence[int], output_dim: int) -> nn.Sequential:
    """Hidden layers with GELU in its tanh form, and a linear layer that is small at the beginning."""
    layers: list[nn.Module] = []
    for width in hidden_dims:
        layers += [linear(input_dim, width), nn.GELU(approximate="tanh")]
        input_dim = width
    return nn.Sequential(*layers, linear(input_dim, output_dim, gain=0.1))


class Actor(nn.Module):
    """The policy: a normal distribution whose mean has no bounds, with one standard deviation for all states."""

    def __init__(
        self, state_dim: int, action_dim: int, max_action: float, hidden_dims: Sequence[int], const_std: bool
    ) -> None:
        super().__init__()
        self.net = mlp(2 * state_dim, hidden_dims, action_dim)
        self.log_std = None if const_std else nn.Parameter(torch.zeros(action_dim))
        self.max_action = max_action

    def forward(self, observations: Tensor, goals: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation, both (B, A), for observations (B, S) and goals (B, S)."""
        mean = self.net(concatenate([observations, goals], axis=-1))
        if self.log_std is None:
            return mean, torch.ones_like(mean)
        return mean, broadcast_to(exp(clamp(self.log_std, -5.0, 2.0)), mean.shape)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its rows: none."""


def draw_noise(hp: Hyperparameters, last: np.ndarray, device: torch.device) -> tuple[Tensor, Noise]:
    """An update's rows (3, B), from NumPy's global generator as in the authors' code.

    Args:
        hp: Contains the sizes and the kinds of goals.
        last: (N,), the last row of each row's trajectory.
        device: The device of the result.

    Returns:
        The rows of the states, of the value goals and of the policy's goals; and no noise.
    """
    rows = np.random.randint(len(last), size=hp.batch_size)
    value_goals = draw_goals(rows, last, hp.value_goals, hp.discount)
    actor_goals = draw_goals(rows, last, hp.actor_goals, hp.discount)
    # The authors' code draws whether to crop images, even if there are none.
    np.random.random_sample()
    return index_tensor(np.stack([rows, value_goals, actor_goals]), device), Noise()


# ---- losses and update ---------------------------------------------------------------------------------------------

LOG_SQRT_2PI = math.log(math.sqrt(2.0 * math.pi))


def gradient_step(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """One step of the optimiser down the gradient of the loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class GCBC:
    """All that an update reads and writes."""

    def __init__(self, hp: Hyperparameters, actor: Actor) -> None:
        self.hp = hp
        self.actor = actor
        self.actor_optimizer = torch.optim.Adam(actor.parameters(), lr=hp.learning_rate)
        self.total_it = 0

    def actor_loss(self, batch: GoalBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """The negative logarithm of the likelihood of the data's actions, including its constant."""
        actor = self.actor
        mean, std = actor(batch.observations, batch.actor_goals)
        assert mean.shape == batch.actions.shape
        log_prob = (-square((batch.actions - mean) / std) / 2.0 - log(std) - LOG_SQRT_2PI).sum(axis=-1)
        return -log_prob.mean(), {"mse": square(mean.detach() - batch.actions).mean()}

    def update(self, batch: GoalBatch, noise: Noise) -> dict[str, Tensor]:
        """One gradient step."""
        actor_loss, aux = self.actor_loss(batch)
        gradient_step(actor_loss, self.actor_optimizer)
        self.total_it += 1
        return {"actor_loss": actor_loss.detach()} | aux

    def act(self, observations: np.ndarray, goals: np.ndarray) -> np.ndarray:
        """Calls `policy` with NumPy arrays."""
        return on_arrays(policy, self.actor, observations, goals)

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint, by name."""
        return {"actor": self.actor, "actor_optimizer": self.actor_optimizer}


def policy(actor: Actor, observations: Tensor, goals: Tensor) -> Tensor:
    """The policy's most likely actions (E, A) for observations (E, S) and goals (E, S)."""
    mean, _ = actor(observations, goals)
    return clamp(mean, -actor.max_action, actor.max_action)


# ---- training ------------------------------------------------------------------------------------------------------


def create_trainer(config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> GCBC:
    """A fresh network, drawn from torch's generator on the CPU."""
    actor = Actor(state_dim, action_dim, max_action, config.actor_hidden_dims, config.const_std)
    device = resolve_device(config.device)
    return GCBC(config, actor.to(device))


def save(trainer: GCBC, path: Path, **facts: Any) -> None:
    """Writes a checkpoint."""
    save_checkpoint(path, "goal_conditioned/gcbc", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: GCBC, path: str) -> dict[str, Any]:
    """Loads one of our checkpoints; returns its contents."""
    content = load_checkpoint(path, "goal_conditioned/gcbc", trainer.parts())
    trainer.total_it = content["total_it"]
    return content


def train(config: TrainConfig) -> Run:
    """Trains, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used.
    """
    task = load_task(config, Preparation(Extract.GOALS, normalise=False))
    device = resolve_device(config.device)
    seed_everything(config.seed)
    trainer = create_trainer(config, task.state_dim, task.action_dim, task.max_action)
    run = Run(config, task, "goal_conditioned/gcbc", "torch", device)
    history = restore(run, partial(load, trainer), device)
    dataset, last = to_device(task.dataset, device), task.dataset.last
    with run:
        if run.is_due(run.step):
            run.evaluate(run.step, trainer.act)
        for step in range(run.step + 1, config.max_timesteps + 1):
            indices, noise = draw_noise(config, last, device)
            history.append(trainer.update(take_goals(dataset, indices, config.gc_negative), noise))
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
    cli(train, TrainConfig, "goal_conditioned/gcbc")
