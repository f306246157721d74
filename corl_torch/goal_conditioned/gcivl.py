"""GCIVL in PyTorch: values of states for goals by expectile regression, and a policy that imitates the way to them.

Its twin is `corl_jax/goal_conditioned/gcivl.py`.

Park et al., OGBench: Benchmarking Offline Goal-Conditioned RL, 2024, https://arxiv.org/abs/2410.20092. The values are
learnt as in HIQL, https://arxiv.org/abs/2307.11949, without its representation.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from shared.runs.start import cli

import numpy as np
import torch
from torch import Tensor, amin, broadcast_to, clamp, concatenate, exp, log, nn, square, stack, where

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

    # Learning rate of all networks
    learning_rate: float = positive(3e-4)
    # Rate at which the target values follow the values
    tau: float = bounded(0.005, low=0, high=1)
    # Expectile that the values regress to; above 0.5, it is nearer to the best
    iql_tau: float = bounded(0.9, low=0, high=1)
    # Inverse temperature of the policy: how steeply an action's weight grows with its advantage
    inverse_temperature: float = bounded(10.0, low=0)
    # Transitions in a batch
    batch_size: int = bounded(1024, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, GoalConfig):
    """The settings of a whole run."""

    group: str = "GCIVL-OGBench"
    name: str = "GCIVL"
    # Widths of the policy's hidden layers
    actor_hidden_dims: tuple[int, ...] = widths(512, 512, 512)
    # Widths of the values' hidden layers
    value_hidden_dims: tuple[int, ...] = widths(512, 512, 512)
    # LayerNorm after the values' hidden layers
    value_ln: bool = True
    # Use a standard deviation of 1 for the policy's actions instead of a learnt one
    const_std: bool = True


# ---- networks ------------------------------------------------------------------------------------------------------


def linear(input_dim: int, output_dim: int, gain: float = 1.0) -> nn.Linear:
    """A layer with Glorot's uniform weight, times `gain`, and a bias of 0."""
    layer = nn.Linear(input_dim, output_dim)
    nn.init.xavier_uniform_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def mlp(
    input_dim: int, hidden_dims: Sequence[int], layer_norm: bool, output_dim: int, gain: float = 1.0
) -> nn.Sequential:
    """Hidden layers with GELU in its tanh form, then LayerNorm if the settings say so; the last layer is linear."""
    layers: list[nn.Module] = []
    for width in hidden_dims:
        layers += [linear(input_dim, width), nn.GELU(approximate="tanh")]
        if layer_norm:
            layers += [nn.LayerNorm(width, eps=1e-6)]
        input_dim = width
    return nn.Sequential(*layers, linear(input_dim, output_dim, gain))


class Actor(nn.Module):
    """The policy: a normal distribution whose mean has no bounds, with one standard deviation for all states."""

    def __init__(
        self, state_dim: int, action_dim: int, max_action: float, hidden_dims: Sequence[int], const_std: bool
    ) -> None:
        super().__init__()
        self.net = mlp(2 * state_dim, hidden_dims, False, action_dim, gain=0.1)
        self.log_std = None if const_std else nn.Parameter(torch.zeros(action_dim))
        self.max_action = max_action

    def forward(self, observations: Tensor, goals: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation, both (B, A), for observations (B, S) and goals (B, S)."""
        mean = self.net(concatenate([observations, goals], axis=-1))
        if self.log_std is None:
            return mean, torch.ones_like(mean)
        return mean, broadcast_to(exp(clamp(self.log_std, -5.0, 2.0)), mean.shape)


class Value(nn.Module):
    """Two values with separate weights: (B, S) and (B, S) to (2, B)."""

    def __init__(self, state_dim: int, hidden_dims: Sequence[int], layer_norm: bool) -> None:
        super().__init__()
        sizes = (2 * state_dim, hidden_dims, layer_norm, 1)
        self.v1 = mlp(*sizes)
        self.v2 = mlp(*sizes)

    def forward(self, observations: Tensor, goals: Tensor) -> Tensor:
        """The values (2, B) of observations (B, S) for goals (B, S)."""
        inputs = concatenate([observations, goals], axis=-1)
        return stack([self.v1(inputs), self.v2(inputs)]).squeeze(-1)


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

# The largest weight of an action in the policy's loss
MAX_WEIGHT = 100.0
LOG_SQRT_2PI = math.log(math.sqrt(2.0 * math.pi))


def gradient_step(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """One step of the optimiser down the gradient of the loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def soft_update(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Polyak averaging: the target moves a step of size tau towards the source, in place."""
    for old, new in zip(target.parameters(), source.parameters(), strict=True):
        old.data.copy_((1.0 - tau) * old.data + tau * new.data)


class GCIVL:
    """All that an update reads and writes."""

    def __init__(self, hp: Hyperparameters, value: Value, actor: Actor) -> None:
        self.hp = hp
        self.value, self.actor = value, actor
        self.value_target = copy.deepcopy(value)
        self.value_optimizer = torch.optim.Adam(value.parameters(), lr=hp.learning_rate)
        self.actor_optimizer = torch.optim.Adam(actor.parameters(), lr=hp.learning_rate)
        self.total_it = 0

    @torch.no_grad()
    def td_targets(self, batch: GoalBatch) -> tuple[Tensor, Tensor]:
        """The regression targets of both values, (2, B), and the advantage of the data's step, (B,).

        Each value has its own target value in its target. The advantage uses the smaller one, and target values alone.
        """
        hp, value = self.hp, self.value_target
        next_v = value(batch.next_observations, batch.value_goals)
        assert next_v.shape == (2, *batch.rewards.shape)
        adv = batch.rewards + hp.discount * batch.masks * amin(next_v, axis=0)
        adv = adv - value(batch.observations, batch.value_goals).mean(axis=0)
        return batch.rewards + hp.discount * batch.masks * next_v, adv

    def expectile_weight(self, adv: Tensor) -> Tensor:
        """The weight of each advantage (B,) in the values' loss: `iql_tau` if it is at least 0, else 1 - `iql_tau`."""
        return where(adv >= 0.0, self.hp.iql_tau, 1.0 - self.hp.iql_tau)

    def value_loss(self, batch: GoalBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Expectile regression of both values, summed over them."""
        value = self.value
        targets, adv = self.td_targets(batch)
        v = value(batch.observations, batch.value_goals)
        assert v.shape == targets.shape == (2, *adv.shape)
        loss = (self.expectile_weight(adv) * square(targets - v)).mean(axis=1).sum()
        return loss, {"v": v.detach().mean()}

    @torch.no_grad()
    def advantage(self, batch: GoalBatch) -> Tensor:
        """How much nearer a step brings the policy's goal, (B,): a difference of values, without a reward."""
        value = self.value
        next_v = value(batch.next_observations, batch.actor_goals).mean(axis=0)
        return next_v - value(batch.observations, batch.actor_goals).mean(axis=0)

    def actor_loss(self, batch: GoalBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Behaviour cloning, in which each action is weighted by the exponential of its advantage."""
        hp, actor = self.hp, self.actor
        adv = self.advantage(batch)
        mean, std = actor(batch.observations, batch.actor_goals)
        assert mean.shape == batch.actions.shape
        log_prob = (-square((batch.actions - mean) / std) / 2.0 - log(std) - LOG_SQRT_2PI).sum(axis=-1)
        weight = clamp(exp(hp.inverse_temperature * adv), 0.0, MAX_WEIGHT)
        assert weight.shape == log_prob.shape == batch.rewards.shape
        return -(weight * log_prob).mean(), {"adv": adv.mean(), "bc_log_prob": log_prob.detach().mean()}

    def update(self, batch: GoalBatch, noise: Noise) -> dict[str, Tensor]:
        """One gradient step of values and policy, and one step of the target values, all from the old weights."""
        value_loss, of_value = self.value_loss(batch)
        actor_loss, of_actor = self.actor_loss(batch)
        soft_update(self.value_target, self.value, self.hp.tau)
        gradient_step(value_loss, self.value_optimizer)
        gradient_step(actor_loss, self.actor_optimizer)
        self.total_it += 1
        metrics = {"value_loss": value_loss, "actor_loss": actor_loss} | of_value | of_actor
        return {name: value.detach() for name, value in metrics.items()}

    def act(self, observations: np.ndarray, goals: np.ndarray) -> np.ndarray:
        """Calls `policy` with NumPy arrays."""
        return on_arrays(policy, self.actor, observations, goals)

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint, by name."""
        names = ("value", "actor", "value_target", "value_optimizer", "actor_optimizer")
        return {name: getattr(self, name) for name in names}


def policy(actor: Actor, observations: Tensor, goals: Tensor) -> Tensor:
    """The policy's most likely actions (E, A) for observations (E, S) and goals (E, S)."""
    mean, _ = actor(observations, goals)
    return clamp(mean, -actor.max_action, actor.max_action)


# ---- training ------------------------------------------------------------------------------------------------------


def create_trainer(config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> GCIVL:
    """Fresh networks, drawn from torch's generator on the CPU: values, policy."""
    value = Value(state_dim, config.value_hidden_dims, config.value_ln)
    actor = Actor(state_dim, action_dim, max_action, config.actor_hidden_dims, config.const_std)
    device = resolve_device(config.device)
    return GCIVL(config, value.to(device), actor.to(device))


def save(trainer: GCIVL, path: Path, **facts: Any) -> None:
    """Writes a checkpoint."""
    save_checkpoint(path, "goal_conditioned/gcivl", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: GCIVL, path: str) -> dict[str, Any]:
    """Loads one of our checkpoints; returns its contents."""
    content = load_checkpoint(path, "goal_conditioned/gcivl", trainer.parts())
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
    run = Run(config, task, "goal_conditioned/gcivl", "torch", device)
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
    cli(train, TrainConfig, "goal_conditioned/gcivl")
