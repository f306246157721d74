"""QRL in PyTorch: a quasimetric of states, which grows as far as steps allow, and a policy that shortens the way.

Its twin is `corl_jax/goal_conditioned/qrl.py`.

Wang et al., Optimal Goal-Reaching Reinforcement Learning via Quasimetric Learning, 2023,
https://arxiv.org/abs/2304.01203, in the form of OGBench's code, 2024, https://arxiv.org/abs/2410.20092. The metrics are
IQE, https://arxiv.org/abs/2211.15120, and MRN, https://arxiv.org/abs/2208.08133.
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
from torch import (
    Tensor,
    amax,
    broadcast_to,
    clamp,
    concatenate,
    exp,
    log,
    nn,
    relu,
    sigmoid,
    sqrt,
    square,
    stack,
    tril,
    where,
)
from torch.nn.functional import softplus

from shared.data.goals import GoalBatch
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.torch_data import index_tensor, to_device
from shared.frameworks.torch_goals import draw_goals, take_goals
from shared.frameworks.torch_layers import Scalar
from shared.frameworks.torch_side import mean_metrics, on_arrays, resolve_device, seed_everything
from shared.runs.fields import bounded, choice, multiple, positive, widths
from shared.runs.run import Run
from shared.runs.settings import GoalConfig, GoalSettings
from shared.runs.task import Extract, Preparation, load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters(GoalSettings):
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Discount factor per step of the geometric distribution of goals, which has no other use here
    discount: float = bounded(0.99, low=0, high=0.9999)
    # Share of value goals that are the state itself
    value_p_curgoal: float = bounded(0.0, low=0, high=1)
    # Share of value goals that are later states of the same trajectory
    value_p_trajgoal: float = bounded(0.0, low=0, high=1)
    # Share of value goals that are any states of the dataset; the three shares sum to 1
    value_p_randomgoal: float = bounded(1.0, low=0, high=1)
    # No effect, because no loss has rewards
    gc_negative: bool = False
    # Learning rate of all networks
    learning_rate: float = positive(3e-4)
    # The metric of latents: iqe, by the union of intervals; or mrn, by a norm and a largest difference
    quasimetric_type: str = choice("iqe", "mrn")
    # The mean square by which the distance of a step may exceed 1
    eps: float = bounded(0.05, low=0)
    # The policy's loss: ddpgbc minimizes distances and clones the data's actions; awr clones them with weights
    actor_loss: str = choice("ddpgbc", "awr")
    # Weight of cloning for ddpgbc; inverse temperature for awr
    alpha: float = bounded(0.003, low=0)
    # Use a standard deviation of 1 for the policy's actions instead of a learnt one
    const_std: bool = True
    # Transitions in a batch
    batch_size: int = bounded(1024, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, GoalConfig):
    """The settings of a whole run."""

    group: str = "QRL-OGBench"
    name: str = "QRL"
    # Widths of the policy's hidden layers
    actor_hidden_dims: tuple[int, ...] = widths(512, 512, 512)
    # Widths of the hidden layers of the networks that make and predict latents
    value_hidden_dims: tuple[int, ...] = widths(512, 512, 512)
    # LayerNorm after these hidden layers
    value_ln: bool = True
    # Numbers in a latent, in groups of eight for iqe, in halves for mrn
    latent_dim: int = multiple(512, of=8)


# ---- networks ------------------------------------------------------------------------------------------------------

# Intervals in a group of `iqe`
GROUP = 8


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


def cut(actor: Actor, actions: Tensor) -> Tensor:
    """Actions (B, A), clipped to [-max_action, max_action]."""
    return clamp(actions, -actor.max_action, actor.max_action)


class Quasimetric(nn.Module):
    """The latents of states, and the number by which `iqe` mixes the lengths of groups."""

    def __init__(
        self, state_dim: int, latent_dim: int, hidden_dims: Sequence[int], layer_norm: bool, quasimetric_type: str
    ) -> None:
        super().__init__()
        self.net = mlp(state_dim, hidden_dims, layer_norm, latent_dim)
        self.mix = nn.Parameter(torch.zeros(())) if quasimetric_type == "iqe" else None

    def forward(self, observations: Tensor) -> Tensor:
        """The latents (B, D) of observations (B, S)."""
        return self.net(observations)


class Dynamics(nn.Module):
    """The next state's latent."""

    def __init__(self, latent_dim: int, action_dim: int, hidden_dims: Sequence[int], layer_norm: bool) -> None:
        super().__init__()
        self.net = mlp(latent_dim + action_dim, hidden_dims, layer_norm, latent_dim)

    def forward(self, latents: Tensor, actions: Tensor) -> Tensor:
        """The latents (B, D) after actions (B, A) at latents (B, D)."""
        return latents + self.net(concatenate([latents, actions], axis=-1))


def iqe(x: Tensor, y: Tensor, mix: Tensor) -> Tensor:
    """Interval quasimetric embedding of latents (B, D), (B,): the lengths of groups, by their mean and their largest.

    A group's length is that of the union of its eight intervals from x to y, where x is less than y.
    """
    x, y = x.reshape(len(x), -1, GROUP), y.reshape(len(y), -1, GROUP)
    begins, others = x[..., :, None], x[..., None, :]
    # An interval adds what lies beyond all those that begin before it.
    begins_before = (others < begins) | tril(others == begins, -1)
    added_from = amax(where(begins_before, y[..., None, :], begins), axis=-1)
    lengths = relu(y - added_from).sum(axis=-1)
    share = sigmoid(mix)
    return share * lengths.mean(axis=-1) + (1.0 - share) * amax(lengths, axis=-1)


def mrn(x: Tensor, y: Tensor) -> Tensor:
    """Metric residual network of latents (B, D), (B,): a norm of the first half, and the other's largest difference."""
    half = x.shape[-1] // 2
    squared = square(x[:, :half] - y[:, :half]).sum(axis=-1)
    # Below this the gradient would be too large.
    norm = sqrt(where(squared > 1e-12, squared, 1e-12))
    return norm + relu(amax(x[:, half:] - y[:, half:], axis=-1))


def distance(quasimetric: Quasimetric, x: Tensor, y: Tensor) -> Tensor:
    """The distances (B,) from latents x (B, D) to latents y (B, D), which differ in the other direction."""
    mix = quasimetric.mix
    return mrn(x, y) if mix is None else iqe(x, y, mix)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its rows."""

    # Standard normal, (B, A): the noise of the actions whose distances the policy minimizes; None if const_std
    action: Tensor | None = None


def draw_noise(hp: Hyperparameters, last: np.ndarray, action_dim: int, device: torch.device) -> tuple[Tensor, Noise]:
    """An update's rows (3, B), from NumPy's global generator as in the authors' code, and its noise, from torch's.

    Args:
        hp: Contains the sizes and the kinds of goals.
        last: (N,), the last row of each row's trajectory.
        action_dim: A.
        device: The device of the results.

    Returns:
        The rows of the states, of the value goals and of the policy's goals; and the noise.
    """
    rows = np.random.randint(len(last), size=hp.batch_size)
    value_goals = draw_goals(rows, last, hp.value_goals, hp.discount)
    actor_goals = draw_goals(rows, last, hp.actor_goals, hp.discount)
    # The authors' code draws whether to crop images, even if there are none.
    np.random.random_sample()
    noise = Noise() if hp.const_std else Noise(torch.randn((hp.batch_size, action_dim), device=device))
    return index_tensor(np.stack([rows, value_goals, actor_goals]), device), noise


# ---- losses and update ---------------------------------------------------------------------------------------------

# The largest weight of an action in the policy's loss
MAX_WEIGHT = 100.0
LOG_SQRT_2PI = math.log(math.sqrt(2.0 * math.pi))


def gradient_step(loss: Tensor, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """One step of each optimiser down the gradient of the loss."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()


class QRL:
    """All that an update reads and writes."""

    def __init__(self, hp: Hyperparameters, quasimetric: Quasimetric, dynamics: Dynamics, actor: Actor) -> None:
        self.hp = hp
        self.quasimetric, self.dynamics, self.actor = quasimetric, dynamics, actor
        # The logarithm of the multiplier lambda
        self.log_lambda = Scalar(0.0).to(next(actor.parameters()).device)
        self.quasimetric_optimizer = torch.optim.Adam(quasimetric.parameters(), lr=hp.learning_rate)
        self.dynamics_optimizer = torch.optim.Adam(dynamics.parameters(), lr=hp.learning_rate)
        self.log_lambda_optimizer = torch.optim.Adam(self.log_lambda.parameters(), lr=hp.learning_rate)
        self.actor_optimizer = torch.optim.Adam(actor.parameters(), lr=hp.learning_rate)
        self.total_it = 0

    def distance_loss(self, batch: GoalBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Pushes states and goals apart, while a penalty holds the distance of a step down to 1."""
        quasimetric = self.quasimetric
        latents, next_latents = quasimetric(batch.observations), quasimetric(batch.next_observations)
        d_goal = distance(quasimetric, latents, quasimetric(batch.value_goals))
        d_step = distance(quasimetric, latents, next_latents)
        assert d_goal.shape == d_step.shape == batch.rewards.shape
        # The slope is almost -1 until distances come near 500.
        push = (100.0 * softplus(5.0 - d_goal / 100.0)).mean()
        violation = square(relu(d_step - 1.0)).mean()
        lambd = exp(self.log_lambda().detach())
        metrics = {
            "push": push,
            "violation": violation,
            "lambda": lambd,
            "d_goal": d_goal.mean(),
            "d_step": d_step.mean(),
        }
        return push + lambd * violation, {name: value.detach() for name, value in metrics.items()}

    def lambda_loss(self, violation: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Raises the penalty's weight while steps are longer than `eps` allows."""
        log_lambda = self.log_lambda()
        return exp(log_lambda) * (self.hp.eps - violation), {}

    def dynamics_loss(self, batch: GoalBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """The distance between predicted and true next latents in both directions, from which both are learnt."""
        quasimetric, dynamics = self.quasimetric, self.dynamics
        latents, next_latents = quasimetric(batch.observations), quasimetric(batch.next_observations)
        predicted = dynamics(latents, batch.actions)
        back, forth = distance(quasimetric, next_latents, predicted), distance(quasimetric, predicted, next_latents)
        assert back.shape == forth.shape == batch.rewards.shape
        return (back + forth).mean() / 2.0, {}

    @torch.no_grad()
    def latents(self, observations: Tensor) -> Tensor:
        """The latents (B, D) of observations (B, S) as constants."""
        return self.quasimetric(observations)

    @torch.no_grad()
    def weight(self, batch: GoalBatch) -> Tensor:
        """The weight of each action (B,) for `awr`: the exponential of how much nearer it comes, up to `MAX_WEIGHT`."""
        quasimetric, goals = self.quasimetric, self.latents(batch.actor_goals)
        before = distance(quasimetric, self.latents(batch.observations), goals)
        after = distance(quasimetric, self.latents(batch.next_observations), goals)
        return clamp(exp(self.hp.alpha * (before - after)), 0.0, MAX_WEIGHT)

    def actor_loss(self, batch: GoalBatch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """Cloning of the data's actions: beside the least distance, scaled by its own size, or with weights."""
        hp, actor = self.hp, self.actor
        mean, std = actor(batch.observations, batch.actor_goals)
        assert mean.shape == batch.actions.shape
        log_prob = (-square((batch.actions - mean) / std) / 2.0 - log(std) - LOG_SQRT_2PI).sum(axis=-1)
        if hp.actor_loss == "awr":
            weight = self.weight(batch)
            assert weight.shape == log_prob.shape == batch.rewards.shape
            return -(weight * log_prob).mean(), {"bc_log_prob": log_prob.detach().mean()}
        actions = mean if noise.action is None else mean + std * noise.action
        latents, goals = self.latents(batch.observations), self.latents(batch.actor_goals)
        q = -distance(self.quasimetric, self.dynamics(latents, cut(actor, actions)), goals)
        assert q.shape == log_prob.shape == batch.rewards.shape
        q_loss = -q.mean() / (q.abs().mean() + 1e-6).detach()
        bc_loss = -hp.alpha * log_prob.mean()
        return q_loss + bc_loss, {"q_loss": q_loss.detach(), "bc_loss": bc_loss.detach()}

    def update(self, batch: GoalBatch, noise: Noise) -> dict[str, Tensor]:
        """One gradient step of each network and of lambda, all from the old weights."""
        distance_loss, of_distance = self.distance_loss(batch)
        lambda_loss, _ = self.lambda_loss(of_distance["violation"])
        actor_loss, of_actor = self.actor_loss(batch, noise)
        losses = {"distance_loss": distance_loss, "lambda_loss": lambda_loss}
        learning = ["quasimetric", "log_lambda"]
        if self.hp.actor_loss == "ddpgbc":
            losses["dynamics_loss"], _ = self.dynamics_loss(batch)
            learning.append("dynamics")
        # The policy's gradient passes through the other networks, so they step last, down the gradient of a sum.
        gradient_step(actor_loss, [self.actor_optimizer])
        gradient_step(stack([*losses.values()]).sum(), [getattr(self, f"{part}_optimizer") for part in learning])
        self.total_it += 1
        metrics = losses | {"actor_loss": actor_loss} | of_distance | of_actor
        return {name: value.detach() for name, value in metrics.items()}

    def act(self, observations: np.ndarray, goals: np.ndarray) -> np.ndarray:
        """Calls `policy` with NumPy arrays."""
        return on_arrays(policy, self.actor, observations, goals)

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint, by name."""
        learning = ("quasimetric", "dynamics", "log_lambda", "actor")
        names = [*learning, *(f"{part}_optimizer" for part in learning)]
        return {name: getattr(self, name) for name in names}


def policy(actor: Actor, observations: Tensor, goals: Tensor) -> Tensor:
    """The policy's most likely actions (E, A) for observations (E, S) and goals (E, S)."""
    mean, _ = actor(observations, goals)
    return cut(actor, mean)


# ---- training ------------------------------------------------------------------------------------------------------


def create_trainer(config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> QRL:
    """Fresh networks, drawn from torch's generator on the CPU: latents, dynamics, policy."""
    dims, layer_norm, latent_dim = config.value_hidden_dims, config.value_ln, config.latent_dim
    quasimetric = Quasimetric(state_dim, latent_dim, dims, layer_norm, config.quasimetric_type)
    dynamics = Dynamics(latent_dim, action_dim, dims, layer_norm)
    actor = Actor(state_dim, action_dim, max_action, config.actor_hidden_dims, config.const_std)
    device = resolve_device(config.device)
    return QRL(config, quasimetric.to(device), dynamics.to(device), actor.to(device))


def save(trainer: QRL, path: Path, **facts: Any) -> None:
    """Writes a checkpoint."""
    save_checkpoint(path, "goal_conditioned/qrl", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: QRL, path: str) -> dict[str, Any]:
    """Loads one of our checkpoints; returns its contents."""
    content = load_checkpoint(path, "goal_conditioned/qrl", trainer.parts())
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
    run = Run(config, task, "goal_conditioned/qrl", "torch", device)
    history = restore(run, partial(load, trainer), device)
    dataset, last = to_device(task.dataset, device), task.dataset.last
    with run:
        if run.is_due(run.step):
            run.evaluate(run.step, trainer.act)
        for step in range(run.step + 1, config.max_timesteps + 1):
            indices, noise = draw_noise(config, last, task.action_dim, device)
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
    cli(train, TrainConfig, "goal_conditioned/qrl")
