"""IQL of finite actions in PyTorch: values of the data's own actions only, and a policy that imitates them by weight.

Its twin is `corl_jax/discrete/iql.py`. The paper's actions are vectors. Here a critic values all actions at once, and
the policy gives a probability to each.

Kostrikov et al., Offline Reinforcement Learning with Implicit Q-Learning, 2021, https://arxiv.org/abs/2110.06169
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
from torch import Tensor, amin, argmax, clamp, exp, log_softmax, nn, square, stack, where
from torch.nn.functional import one_hot

from shared.data.transitions import Batch
from shared.envs.spaces import Shape
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.torch_data import index_tensor, take, to_device
from shared.frameworks.torch_encoders import convolutions
from shared.frameworks.torch_side import mean_metrics, on_arrays, resolve_device, seed_everything
from shared.runs.fields import bounded, choice, positive, widths
from shared.runs.run import Run
from shared.runs.settings import ImagesConfig, TransitionsConfig
from shared.runs.task import Preparation, load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Rate at which the target critics follow the critics
    tau: float = bounded(0.005, low=0, high=1)
    # Inverse temperature of the policy: how steeply an action's weight grows with its advantage
    inverse_temperature: float = bounded(3.0, low=0)
    # Expectile of the values of the data's actions that V(s) regresses to; above 0.5, it is nearer to the best
    iql_tau: float = bounded(0.7, low=0, high=1)
    # Updates in all, over which the policy's learning rate falls to 0
    max_timesteps: int = bounded(1_000_000, low=1)
    # Transitions in a batch
    batch_size: int = bounded(256, low=1)
    # Learning rate of V
    value_lr: float = positive(3e-4)
    # Learning rate of the critics
    critic_lr: float = positive(3e-4)
    # Initial learning rate of the policy
    actor_lr: float = positive(3e-4)
    # How the policy's learning rate falls: along a cosine, or not at all
    opt_decay_schedule: str = choice("cosine", "none")


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, ImagesConfig, TransitionsConfig):
    """The settings of a whole run."""

    group: str = "DiscreteIQL"
    name: str = "DiscreteIQL"
    # Dataset of finite actions: mini/cartpole-replay, minari:NAME, or the path of an HDF5 file
    env: str = "mini/cartpole-replay"
    # Updates between two evaluations
    eval_freq: int = bounded(10_000, low=1)
    # Widths of the hidden layers
    hidden_dims: tuple[int, ...] = widths(256, 256)


# ---- networks ------------------------------------------------------------------------------------------------------


def linear(input_dim: int, output_dim: int) -> nn.Linear:
    """A layer with Glorot's uniform weight and a bias of 0, even if it is a last layer."""
    layer = nn.Linear(input_dim, output_dim)
    nn.init.xavier_uniform_(layer.weight, gain=1.0)
    nn.init.zeros_(layer.bias)
    return layer


def mlp(state_dim: Shape, encoder: str, hidden_dims: Sequence[int], output_dim: int) -> nn.Sequential:
    """Convolutions if there are any, hidden layers with ReLU, then a linear layer."""
    layers, inputs = convolutions(encoder, state_dim)
    dims = [inputs, *hidden_dims]
    hidden = [layer for a, b in pairwise(dims) for layer in (linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, *hidden, linear(dims[-1], output_dim))


class TwinQ(nn.Module):
    """Two critics Q(s, .), which value all actions at once, with separate weights."""

    def __init__(self, state_dim: Shape, action_dim: int, encoder: str, hidden_dims: Sequence[int]) -> None:
        super().__init__()
        self.q1 = mlp(state_dim, encoder, hidden_dims, action_dim)
        self.q2 = mlp(state_dim, encoder, hidden_dims, action_dim)

    def forward(self, observations: Tensor) -> Tensor:
        """The values (2, B, A) of all actions in observations (B, S)."""
        return stack([self.q1(observations), self.q2(observations)])


class ValueFunction(nn.Module):
    """V(s)."""

    def __init__(self, state_dim: Shape, encoder: str, hidden_dims: Sequence[int]) -> None:
        super().__init__()
        self.v = mlp(state_dim, encoder, hidden_dims, 1)

    def forward(self, observations: Tensor) -> Tensor:
        """The values (B,) of observations (B, S)."""
        return self.v(observations).squeeze(-1)


class Actor(nn.Module):
    """The policy, which gives a logit to each action."""

    def __init__(self, state_dim: Shape, action_dim: int, encoder: str, hidden_dims: Sequence[int]) -> None:
        super().__init__()
        self.net = mlp(state_dim, encoder, hidden_dims, action_dim)

    def forward(self, observations: Tensor) -> Tensor:
        """The logits (B, A) of all actions in observations (B, S)."""
        return self.net(observations)


def value(q: Tensor, actions: Tensor) -> Tensor:
    """Selects the values (..., B) of these actions (B,) from the values (..., B, A) of all actions."""
    return (q * one_hot(actions, q.shape[-1])).sum(axis=-1)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """An update draws nothing besides its batch."""


def draw_noise(hp: Hyperparameters, dataset_size: int, device: torch.device) -> tuple[Tensor, Noise]:
    """An update's batch indices (B,), from NumPy's global generator."""
    return index_tensor(np.random.randint(0, dataset_size, size=hp.batch_size), device), Noise()


# ---- losses and update ---------------------------------------------------------------------------------------------

# The largest weight of an action in the policy's loss
MAX_WEIGHT = 100.0


def actor_lr(hp: Hyperparameters, updates: int) -> float:
    """The policy's learning rate after so many updates: a cosine from `actor_lr` to 0, where it stays."""
    if hp.opt_decay_schedule == "none":
        return hp.actor_lr
    return hp.actor_lr * (1.0 + math.cos(math.pi * min(updates, hp.max_timesteps) / hp.max_timesteps)) / 2.0


def gradient_step(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """One step of the optimiser down the gradient of the loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def soft_update(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Polyak averaging: the target moves a step of size tau towards the source, in place."""
    for old, new in zip(target.parameters(), source.parameters(), strict=True):
        old.data.copy_((1.0 - tau) * old.data + tau * new.data)


class IQL:
    """All that an update reads and writes."""

    def __init__(self, hp: Hyperparameters, critic: TwinQ, value: ValueFunction, actor: Actor) -> None:
        self.hp = hp
        self.critic, self.value, self.actor = critic, value, actor
        self.critic_target = copy.deepcopy(critic).requires_grad_(False)
        self.value_optimizer = torch.optim.Adam(value.parameters(), lr=hp.value_lr)
        self.critic_optimizer = torch.optim.Adam(critic.parameters(), lr=hp.critic_lr)
        self.actor_optimizer = torch.optim.Adam(actor.parameters(), lr=hp.actor_lr)
        self.total_it = 0

    @torch.no_grad()
    def target_q(self, batch: Batch) -> Tensor:
        """The smaller target value of the data's actions, (B,)."""
        return amin(value(self.critic_target(batch.observations), batch.actions), axis=0)

    def expectile_weight(self, adv: Tensor) -> Tensor:
        """The weight of each advantage (B,) in V's loss: `iql_tau` if it is positive, otherwise 1 - `iql_tau`."""
        return where(adv > 0.0, self.hp.iql_tau, 1.0 - self.hp.iql_tau)

    def value_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Expectile regression of V to the target values of the data's actions."""
        value = self.value
        v = value(batch.observations)
        adv = self.target_q(batch) - v
        assert adv.shape == v.shape == batch.rewards.shape
        return (self.expectile_weight(adv) * square(adv)).mean(), {}

    @torch.no_grad()
    def td_target(self, batch: Batch) -> Tensor:
        """The regression target of both critics, (B,), for which no action is chosen."""
        next_v = self.value(batch.next_observations)
        assert next_v.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + self.hp.discount * next_v * (1.0 - batch.terminals)

    def q_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The squared errors of both critics to the same target, added up over them."""
        critic = self.critic
        target = self.td_target(batch)
        q = value(critic(batch.observations), batch.actions)
        assert q.shape[1:] == target.shape
        return square(q - target).mean(axis=1).sum(), {}

    @torch.no_grad()
    def weights(self, batch: Batch) -> Tensor:
        """The weight of each of the data's actions, (B,): the exponential of its advantage, up to a cap."""
        q = amin(value(self.critic(batch.observations), batch.actions), axis=0)
        adv = q - self.value(batch.observations)
        assert adv.shape == batch.rewards.shape
        return clamp(exp(self.hp.inverse_temperature * adv), max=MAX_WEIGHT)

    def actor_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Weighted behaviour cloning of the data's actions."""
        actor = self.actor
        log_probs = log_softmax(actor(batch.observations), axis=-1)
        log_prob, weights = value(log_probs, batch.actions), self.weights(batch)
        assert log_prob.shape == weights.shape
        return -(weights * log_prob).mean(), {}

    def update(self, batch: Batch, noise: Noise) -> dict[str, Tensor]:
        """One gradient step: every loss, then the targets, at the old parameters; then every optimiser's step."""
        hp = self.hp
        value_loss, _ = self.value_loss(batch)
        q_loss, _ = self.q_loss(batch)
        actor_loss, _ = self.actor_loss(batch)
        soft_update(self.critic_target, self.critic, hp.tau)
        for group in self.actor_optimizer.param_groups:
            group["lr"] = actor_lr(hp, self.total_it)
        gradient_step(value_loss, self.value_optimizer)
        gradient_step(q_loss, self.critic_optimizer)
        gradient_step(actor_loss, self.actor_optimizer)
        self.total_it += 1
        metrics = {"value_loss": value_loss, "q_loss": q_loss, "actor_loss": actor_loss}
        return {name: value.detach() for name, value in metrics.items()}

    def act(self, observations: np.ndarray) -> np.ndarray:
        """Calls `policy` with NumPy arrays."""
        return on_arrays(policy, self.actor, observations)

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint, by name."""
        learning = ("critic", "value", "actor")
        return {
            name: getattr(self, name) for name in [*learning, "critic_target", *(f"{x}_optimizer" for x in learning)]
        }


def policy(actor: Actor, observations: Tensor) -> Tensor:
    """The most likely actions (E,) for observations (E, S)."""
    return argmax(actor(observations), axis=-1)


# ---- training ------------------------------------------------------------------------------------------------------


def create_trainer(config: TrainConfig, state_dim: Shape, action_dim: int, max_action: float) -> IQL:
    """Fresh networks, drawn from torch's generator on the CPU: critic 1, critic 2, V, policy."""
    critic = TwinQ(state_dim, action_dim, config.encoder, config.hidden_dims)
    value = ValueFunction(state_dim, config.encoder, config.hidden_dims)
    actor = Actor(state_dim, action_dim, config.encoder, config.hidden_dims)
    device = resolve_device(config.device)
    return IQL(config, critic.to(device), value.to(device), actor.to(device))


def save(trainer: IQL, path: Path, **facts: Any) -> None:
    """Writes a checkpoint."""
    save_checkpoint(path, "discrete/iql", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: IQL, path: str) -> dict[str, Any]:
    """Loads one of our checkpoints; returns its contents."""
    content = load_checkpoint(path, "discrete/iql", trainer.parts())
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
    run = Run(config, task, "discrete/iql", "torch", device)
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
    cli(train, TrainConfig, "discrete/iql")
