"""IQL in PyTorch: values of the data's own actions only, by expectile regression, and a policy that imitates them.

Its twin is `corl_jax/iql.py`.

Kostrikov et al., Offline Reinforcement Learning with Implicit Q-Learning, 2021, https://arxiv.org/abs/2110.06169
"""

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from shared.runs.start import cli

import numpy as np
import torch
from torch import Tensor, broadcast_to, clamp, exp, log, minimum, nn, square, tanh

from shared.data.rewards import CorlRewards
from shared.data.transitions import Batch
from shared.envs.spaces import Shape
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.torch_data import index_tensor, take, to_device
from shared.frameworks.torch_encoders import convolutions, cropped
from shared.frameworks.torch_layers import dropout_mask
from shared.frameworks.torch_side import mean_metrics, on_arrays, resolve_device, seed_everything
from shared.runs.fields import bounded, later, positive
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
    # Dropout rate after the policy's hidden layers; null: no dropout
    actor_dropout: float | None = bounded(None, low=0, high=0.99)
    # Most pixels that an update shifts an image by, at random: the image is padded with its edges, then cropped. DrQ
    # uses 4 for images of 84 x 84
    crop_padding: int = later(bounded(0, low=0, high=64))


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, ImagesConfig, TransitionsConfig):
    """The settings of a whole run."""

    group: str = "IQL-D4RL"
    name: str = "IQL"
    # Seed of the weights, the batches, the dropout and the evaluation's start states
    seed: int = bounded(0, low=0, high=2**32 - 1)
    # Use a deterministic policy, which regresses to actions, instead of a Gaussian one
    iql_deterministic: bool = False
    # Normalise states to mean 0 and standard deviation 1
    normalize: bool = True
    # Scale rewards: by CORL's rule for D4RL's datasets; for your own data, so that returns span 1000
    normalize_reward: bool = False


# ---- networks ------------------------------------------------------------------------------------------------------


class Dropout(nn.Identity):
    """A placeholder for a dropout layer, because layer numbers are part of CORL's names; masks are passed in."""


class MLP(nn.Module):
    """Convolutions if there are any, and two hidden layers of 256 with ReLU."""

    def __init__(
        self, state_dim: Shape, action_dim: int, output_dim: int, encoder: str, has_dropout: bool = False
    ) -> None:
        super().__init__()
        layers, features = convolutions(encoder, state_dim)
        self.readers = nn.Sequential(*layers)
        dropout = [Dropout()] if has_dropout else []
        self.net = nn.Sequential(
            nn.Linear(features + action_dim, 256),
            nn.ReLU(),
            *dropout,
            nn.Linear(256, 256),
            nn.ReLU(),
            *dropout,
            nn.Linear(256, output_dim),
        )

    def forward(
        self, observations: Tensor, actions: Tensor | None = None, masks: Iterable[Tensor] | None = None
    ) -> Tensor:
        """The outputs (B, O) for observations (B, S), or images, joined with actions (B, A), if any.

        Masks (B, 256), if any, multiply the hidden layers.
        """
        inputs = self.readers(observations)
        if actions is not None:
            inputs = torch.cat([inputs, actions], axis=-1)
        if masks is None:
            return self.net(inputs)
        masks = iter(masks)
        for layer in self.net:
            inputs = inputs * next(masks) if isinstance(layer, Dropout) else layer(inputs)
        return inputs


class TwinQ(nn.Module):
    """Two critics Q(s, a) with separate weights."""

    def __init__(self, state_dim: Shape, action_dim: int, encoder: str) -> None:
        super().__init__()
        self.q1 = MLP(state_dim, action_dim, 1, encoder)
        self.q2 = MLP(state_dim, action_dim, 1, encoder)

    def forward(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Both values, (B,) each, of actions (B, A) in observations (B, S)."""
        return self.q1(observations, actions).squeeze(-1), self.q2(observations, actions).squeeze(-1)


class ValueFunction(nn.Module):
    """V(s)."""

    def __init__(self, state_dim: Shape, encoder: str) -> None:
        super().__init__()
        self.v = MLP(state_dim, 0, 1, encoder)

    def forward(self, observations: Tensor) -> Tensor:
        """The values (B,) of observations (B, S)."""
        return self.v(observations).squeeze(-1)


class Actor(nn.Module):
    """The policy: a normal distribution with one standard deviation for all states, or its mean alone."""

    def __init__(
        self, state_dim: Shape, action_dim: int, max_action: float, encoder: str, deterministic: bool, has_dropout: bool
    ) -> None:
        super().__init__()
        self.net = MLP(state_dim, 0, action_dim, encoder, has_dropout)
        self.log_std = None if deterministic else nn.Parameter(torch.zeros(action_dim))
        self.max_action = max_action

    def forward(self, observations: Tensor, masks: Iterable[Tensor] | None = None) -> tuple[Tensor, Tensor | None]:
        """Mean within [-1, 1] and standard deviation, None if deterministic, both (B, A), for observations (B, S)."""
        mean = tanh(self.net(observations, masks=masks))
        if self.log_std is None:
            return mean, None
        return mean, broadcast_to(exp(clamp(self.log_std, -20.0, 2.0)), mean.shape)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    # Dropout masks for the policy's two hidden layers, (B, 256) each; None without dropout
    dropout: tuple[Tensor, ...] | None
    # With crop_padding: the row and column at which each padded image is cropped, (2, B, 2); observations first, then
    # next ones
    crops: Tensor | None = None


def draw_noise(hp: Hyperparameters, dataset_size: int, action_dim: int, device: torch.device) -> tuple[Tensor, Noise]:
    """An update's batch indices (B,), from NumPy's global generator as in CORL, and its noise, from torch's."""
    indices = np.random.randint(0, dataset_size, size=hp.batch_size)
    crops = masks = None
    if hp.crop_padding:
        crops = torch.randint(2 * hp.crop_padding + 1, (2, hp.batch_size, 2), device=device)
    if hp.actor_dropout is not None:
        masks = tuple(dropout_mask(hp.actor_dropout, (hp.batch_size, 256), device) for _ in range(2))
    return index_tensor(indices, device), Noise(masks, crops)


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


# Names of the networks in d3rlpy's files
D3RLPY_NAMES = {
    "actor": ("policy",),
    "qf": ("q_funcs",),
    "q_target": ("targ_q_funcs",),
    "vf": ("value_func",),
}


class IQL:
    """All that an update reads and writes."""

    def __init__(self, hp: Hyperparameters, critic: TwinQ, value: ValueFunction, actor: Actor) -> None:
        self.hp = hp
        self.critic, self.value, self.actor = critic, value, actor
        self.critic_target = copy.deepcopy(critic).requires_grad_(False)
        self.value_optimizer = torch.optim.Adam(value.parameters(), lr=hp.value_lr)
        self.critic_optimizer = torch.optim.Adam(critic.parameters(), lr=hp.critic_lr)
        self.actor_optimizer = torch.optim.Adam(actor.parameters(), lr=hp.actor_lr)
        self.actor_lr_schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.actor_optimizer, hp.max_timesteps)
        self.total_it = 0

    @torch.no_grad()
    def target_q(self, batch: Batch) -> Tensor:
        """The smaller target value of the data's actions, (B,)."""
        q1, q2 = self.critic_target(batch.observations, batch.actions)
        return minimum(q1, q2)

    def expectile_weight(self, adv: Tensor) -> Tensor:
        """The weight of each advantage (B,) in V's loss: `iql_tau` if it is positive or 0, otherwise 1 - `iql_tau`."""
        return abs(self.hp.iql_tau - 1.0 * (adv < 0.0))

    def value_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Expectile regression of V to the values of the data's actions."""
        value = self.value
        v = value(batch.observations)
        adv = self.target_q(batch) - v
        assert adv.shape == v.shape == batch.rewards.shape
        return (self.expectile_weight(adv) * square(adv)).mean(), {"adv": adv.detach()}

    @torch.no_grad()
    def td_target(self, batch: Batch) -> Tensor:
        """The regression target of both critics, (B,), for which no action is chosen."""
        next_v = self.value(batch.next_observations)
        assert next_v.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + (1.0 - batch.terminals) * self.hp.discount * next_v

    def q_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The squared error of both critics to the same target, averaged over them."""
        critic = self.critic
        target = self.td_target(batch)
        q1, q2 = critic(batch.observations, batch.actions)
        assert q1.shape == q2.shape == target.shape
        return (square(q1 - target).mean() + square(q2 - target).mean()) / 2.0, {}

    def actor_loss(self, batch: Batch, noise: Noise, adv: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Behaviour cloning, in which each action is weighted by the exponential of its advantage (B,)."""
        hp, actor = self.hp, self.actor
        # As in CORL, the mean is compared with the data's actions unscaled, whatever the largest action.
        mean, std = actor(batch.observations, noise.dropout)
        if std is None:
            bc_loss = square(mean - batch.actions).sum(axis=-1)
        else:
            log_prob = -square(batch.actions - mean) / (2.0 * square(std)) - log(std) - LOG_SQRT_2PI
            bc_loss = -log_prob.sum(axis=-1)
        weight = clamp(exp(hp.inverse_temperature * adv), 0.0, MAX_WEIGHT)
        assert mean.shape == batch.actions.shape
        assert weight.shape == bc_loss.shape == batch.rewards.shape
        return (weight * bc_loss).mean(), {}

    def update(self, batch: Batch, noise: Noise) -> dict[str, Tensor]:
        """One gradient step: every loss at the old parameters, then every optimiser's step; last the target critics."""
        hp = self.hp
        self.total_it += 1
        batch = cropped(batch, noise.crops, hp.crop_padding)
        value_loss, aux = self.value_loss(batch)
        q_loss, _ = self.q_loss(batch)
        actor_loss, _ = self.actor_loss(batch, noise, aux["adv"])
        gradient_step(value_loss, self.value_optimizer)
        gradient_step(q_loss, self.critic_optimizer)
        gradient_step(actor_loss, self.actor_optimizer)
        self.actor_lr_schedule.step()
        soft_update(self.critic_target, self.critic, hp.tau)
        metrics = {"value_loss": value_loss, "q_loss": q_loss, "actor_loss": actor_loss}
        return {name: value.detach() for name, value in metrics.items()}

    def act(self, observations: np.ndarray) -> np.ndarray:
        """Calls `policy` with NumPy arrays."""
        return on_arrays(policy, self.actor, observations)

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint, under CORL's keys. CORL leaves out the target critics; this twin saves them."""
        return {
            "qf": self.critic,
            "q_optimizer": self.critic_optimizer,
            "q_target": self.critic_target,
            "vf": self.value,
            "v_optimizer": self.value_optimizer,
            "actor": self.actor,
            "actor_optimizer": self.actor_optimizer,
            "actor_lr_schedule": self.actor_lr_schedule,
        }


def policy(actor: Actor, observations: Tensor) -> Tensor:
    """The policy's most likely actions (E, A) for normalised observations (E, S), without dropout."""
    max_action = actor.max_action
    mean, _ = actor(observations)
    return clamp(max_action * mean, -max_action, max_action)


# ---- training ------------------------------------------------------------------------------------------------------


def create_trainer(config: TrainConfig, state_dim: Shape, action_dim: int, max_action: float) -> IQL:
    """Fresh networks, drawn from torch's generator on the CPU in CORL's order: critic 1, critic 2, V, policy."""
    critic = TwinQ(state_dim, action_dim, config.encoder)
    value = ValueFunction(state_dim, config.encoder)
    has_dropout = config.actor_dropout is not None
    actor = Actor(state_dim, action_dim, max_action, config.encoder, config.iql_deterministic, has_dropout)
    device = resolve_device(config.device)
    return IQL(config, critic.to(device), value.to(device), actor.to(device))


def save(trainer: IQL, path: Path, **facts: Any) -> None:
    """Writes a checkpoint that CORL's own code could load."""
    save_checkpoint(path, "iql", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: IQL, path: str) -> dict[str, Any]:
    """Loads a checkpoint, ours, d3rlpy's, or CORL's, whose target critics start as copies; returns its contents."""
    content = load_checkpoint(path, "iql", trainer.parts(), optional=["q_target"], d3rlpy=D3RLPY_NAMES)
    if "q_target" not in content:
        trainer.critic_target.load_state_dict(trainer.critic.state_dict())
    trainer.total_it = content["total_it"]
    return content


def train(config: TrainConfig) -> Run:
    """Trains, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used.
    """
    preparation = Preparation(rewards=CorlRewards().where(config.normalize_reward), normalise=config.normalize)
    task = load_task(config, preparation)
    device = resolve_device(config.device)
    seed_everything(config.seed)
    trainer = create_trainer(config, task.shape, task.action_dim, task.max_action)
    run = Run(config, task, "iql", "torch", device)
    history = restore(run, partial(load, trainer), device)
    dataset = to_device(task.dataset, device)
    with run:
        if run.is_due(run.step):
            run.evaluate(run.step, trainer.act)
        for step in range(run.step + 1, config.max_timesteps + 1):
            indices, noise = draw_noise(config, len(dataset.rewards), task.action_dim, device)
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
    cli(train, TrainConfig, "iql")
