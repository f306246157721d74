"""XQL in PyTorch: values of the data's own actions only, by Gumbel regression, and a policy that imitates them.

Its twin is `corl_jax/xql.py`.

Garg et al., Extreme Q-Learning: MaxEnt RL without Entropy, 2023, https://arxiv.org/abs/2301.02328
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
from torch import Tensor, broadcast_to, clamp, concatenate, exp, log, minimum, nn, square, tanh, tile, where

from shared.data.rewards import TrueEpisodeRewards
from shared.data.transitions import Batch
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.torch_data import index_tensor, take, to_device
from shared.frameworks.torch_layers import dropout_mask
from shared.frameworks.torch_side import mean_metrics, on_arrays, resolve_device, seed_everything
from shared.runs.fields import bounded, choice, positive, unbounded
from shared.runs.run import Run
from shared.runs.settings import TransitionsConfig
from shared.runs.task import Preparation, load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Rate at which the target critics follow the critics
    tau: float = bounded(0.005, low=0, high=1)
    # Temperature of the Gumbel loss, the paper's beta: towards 0, V(s) approaches the data's best action's value
    loss_temp: float = positive(1.0)
    # Largest error that the Gumbel loss sees, in units of its temperature; null: no bound
    max_clip: float | None = unbounded(7.0)
    # Form of the Gumbel loss: divided by the largest exponential in the batch, or the logarithm of its mean
    gumbel_form: str = choice("rescaled", "log")
    # Gradient steps of V in an update, all on the same rows
    value_updates: int = bounded(1, low=1)
    # Uniform actions per state that V learns from, in addition to the data's
    random_actions: int = bounded(0, low=0)
    # Add noise to the data's actions that V learns from
    noise: bool = False
    # Standard deviation of that noise
    noise_std: float = bounded(0.1, low=0)
    # Inverse temperature of the policy: how steeply an action's weight grows with its advantage
    inverse_temperature: float = bounded(3.0, low=0)
    # Updates in all, over which the policy's learning rate falls to 0
    max_timesteps: int = bounded(1_000_000, low=1)
    # Transitions in a batch
    batch_size: int = bounded(1024, low=1)
    # Learning rate of V
    value_lr: float = positive(3e-4)
    # Learning rate of the critics
    critic_lr: float = positive(3e-4)
    # Initial learning rate of the policy
    actor_lr: float = positive(3e-4)
    # How the policy's learning rate falls: along a cosine, or not at all
    opt_decay_schedule: str = choice("cosine", "none")
    # Dropout rate after the policy's hidden layers; null: no dropout
    actor_dropout: float | None = bounded(None, low=0, high=0.99)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, TransitionsConfig):
    """The settings of a whole run."""

    group: str = "XQL-D4RL"
    name: str = "XQL"
    # Seed of the weights, the batches, the noise, the dropout and the evaluation's start states
    seed: int = bounded(0, low=0, high=2**32 - 1)
    # Normalise states to mean 0 and standard deviation 1
    normalize: bool = False
    # Scale rewards so that returns of locomotion span 1000, and subtract 1 from AntMaze's
    normalize_reward: bool = True


# ---- networks ------------------------------------------------------------------------------------------------------


class Dropout(nn.Identity):
    """A placeholder for a dropout layer; masks are passed in."""


def linear(input_dim: int, output_dim: int) -> nn.Linear:
    """A layer with an orthogonal weight of gain sqrt(2) and a bias of 0, even if it is a last layer."""
    layer = nn.Linear(input_dim, output_dim)
    nn.init.orthogonal_(layer.weight, gain=math.sqrt(2.0))
    nn.init.zeros_(layer.bias)
    return layer


class MLP(nn.Module):
    """Two hidden layers of 256 with ReLU, after LayerNorm if the settings say so: (B, I) to (B, O)."""

    def __init__(self, input_dim: int, output_dim: int, layer_norm: bool = False, has_dropout: bool = False) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs in (input_dim, 256):
            layers += [linear(inputs, 256)]
            if layer_norm:
                layers += [nn.LayerNorm(256, eps=1e-6)]
            layers += [nn.ReLU()]
            if has_dropout:
                layers += [Dropout()]
        self.net = nn.Sequential(*layers, linear(256, output_dim))

    def forward(self, inputs: Tensor, masks: Iterable[Tensor] | None = None) -> Tensor:
        """The outputs (B, O) for inputs (B, I); masks (B, 256), if any, multiply the hidden layers."""
        if masks is None:
            return self.net(inputs)
        masks = iter(masks)
        for layer in self.net:
            inputs = inputs * next(masks) if isinstance(layer, Dropout) else layer(inputs)
        return inputs


class TwinQ(nn.Module):
    """Two critics Q(s, a) with separate weights."""

    def __init__(self, state_dim: int, action_dim: int) -> None:
        super().__init__()
        self.q1 = MLP(state_dim + action_dim, 1)
        self.q2 = MLP(state_dim + action_dim, 1)

    def forward(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Both values, (B,) each, of actions (B, A) in observations (B, S)."""
        inputs = concatenate([observations, actions], axis=-1)
        return self.q1(inputs).squeeze(-1), self.q2(inputs).squeeze(-1)


class ValueFunction(nn.Module):
    """V(s), with LayerNorm."""

    def __init__(self, state_dim: int) -> None:
        super().__init__()
        self.v = MLP(state_dim, 1, layer_norm=True)

    def forward(self, observations: Tensor) -> Tensor:
        """The values (B,) of observations (B, S)."""
        return self.v(observations).squeeze(-1)


class Actor(nn.Module):
    """The policy: a normal distribution with one standard deviation for all states."""

    def __init__(self, state_dim: int, action_dim: int, max_action: float, has_dropout: bool) -> None:
        super().__init__()
        self.net = MLP(state_dim, action_dim, has_dropout=has_dropout)
        self.log_std = nn.Parameter(torch.zeros(action_dim))
        self.max_action = max_action

    def forward(self, observations: Tensor, masks: Iterable[Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Mean within [-max_action, max_action] and standard deviation, both (B, A), for observations (B, S)."""
        mean = self.max_action * tanh(self.net(observations, masks))
        return mean, broadcast_to(exp(clamp(self.log_std, -5.0, 2.0)), mean.shape)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    # Uniform within [-1, 1), (B, k, A): further actions that V learns from; None without them
    random: Tensor | None
    # Standard normal, (B, A): noise on the data's actions that V learns from; None without noise
    action: Tensor | None
    # Dropout masks for the policy's two hidden layers, (B, 256) each; None without dropout
    dropout: tuple[Tensor, ...] | None


def draw_noise(hp: Hyperparameters, dataset_size: int, action_dim: int, device: torch.device) -> tuple[Tensor, Noise]:
    """An update's batch indices (B,), from NumPy's global generator, and its noise, from torch's."""
    indices = np.random.randint(0, dataset_size, size=hp.batch_size)
    random = action = masks = None
    if hp.random_actions:
        random = 2.0 * torch.rand(hp.batch_size, hp.random_actions, action_dim, device=device) - 1.0
    if hp.noise:
        action = torch.randn(hp.batch_size, action_dim, device=device)
    if hp.actor_dropout is not None:
        masks = tuple(dropout_mask(hp.actor_dropout, (hp.batch_size, 256), device) for _ in range(2))
    return index_tensor(indices, device), Noise(random, action, masks)


# ---- losses and update ---------------------------------------------------------------------------------------------

# The largest weight of an action in the policy's loss
MAX_WEIGHT = 100.0
# Noise on the data's actions is clipped to plus or minus this
NOISE_CLIP = 0.5
# Errors of a critic count quadratically up to this size, and linearly beyond it
HUBER_DELTA = 20.0
LOG_SQRT_2PI = math.log(math.sqrt(2.0 * math.pi))


def huber(error: Tensor) -> Tensor:
    """Half the square of small errors (B,), and a line beyond `HUBER_DELTA`."""
    size = abs(error)
    return where(size <= HUBER_DELTA, square(error) / 2.0, HUBER_DELTA * (size - HUBER_DELTA / 2.0))


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


class XQL:
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
    def target_q(self, observations: Tensor, actions: Tensor) -> Tensor:
        """The smaller target value of each action, (N,)."""
        q1, q2 = self.critic_target(observations, actions)
        return minimum(q1, q2)

    def value_rows(self, batch: Batch, noise: Noise) -> tuple[Tensor, Tensor]:
        """V's inputs: observations (N, S) and actions (N, A), the batch's, then k random actions in each state."""
        hp, max_action = self.hp, self.actor.max_action
        observations, actions = batch.observations, batch.actions
        if noise.action is not None:
            change = clamp(hp.noise_std * noise.action, -NOISE_CLIP, NOISE_CLIP)
            actions = clamp(actions + max_action * change, -max_action, max_action)
        if noise.random is not None:
            repeated = tile(observations[:, None], (1, hp.random_actions, 1))
            observations = concatenate([observations, repeated.reshape(-1, observations.shape[1])])
            actions = concatenate([actions, max_action * noise.random.reshape(-1, actions.shape[1])])
        assert len(observations) == len(actions) == hp.batch_size * (1 + hp.random_actions)
        return observations, actions

    def gumbel_loss(self, error: Tensor) -> Tensor:
        """Gumbel regression: e^z - z - 1 of errors z (N,), scaled so that its exponentials cannot overflow."""
        hp = self.hp
        z = error if hp.max_clip is None else minimum(error, torch.full_like(error, hp.max_clip))
        # One number for all rows, and a constant: the gradient does not pass through it.
        largest = clamp(z.max().detach(), min=-1.0)
        growth, unit = exp(z - largest), exp(-largest)
        if hp.gumbel_form == "rescaled":
            return (growth - z * unit - unit).mean()
        # The gradient of log(mean(e^z - z)), even if z is clipped
        slope = (growth - unit) / (growth - z * unit).mean()
        return (slope.detach() * error).mean()

    def value_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """Gumbel regression of V to the values of the data's actions, in units of the loss's temperature."""
        value = self.value
        observations, actions = self.value_rows(batch, noise)
        q, v = self.target_q(observations, actions), value(observations)
        assert q.shape == v.shape
        return self.gumbel_loss((q - v) / self.hp.loss_temp), {}

    @torch.no_grad()
    def weights(self, batch: Batch) -> Tensor:
        """The weight of each of the data's actions, (B,): the exponential of its advantage, up to a cap."""
        adv = self.target_q(batch.observations, batch.actions) - self.value(batch.observations)
        assert adv.shape == batch.rewards.shape
        return clamp(exp(self.hp.inverse_temperature * adv), max=MAX_WEIGHT)

    def actor_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """Weighted behaviour cloning of the data's actions."""
        actor = self.actor
        mean, std = actor(batch.observations, noise.dropout)
        log_density = -square(batch.actions - mean) / (2.0 * square(std)) - log(std) - LOG_SQRT_2PI
        log_prob, weights = log_density.sum(axis=-1), self.weights(batch)
        assert mean.shape == batch.actions.shape
        assert log_prob.shape == weights.shape
        return -(weights * log_prob).mean(), {}

    @torch.no_grad()
    def td_target(self, batch: Batch) -> Tensor:
        """The regression target of both critics, (B,), for which no action is chosen."""
        next_v = self.value(batch.next_observations)
        assert next_v.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + (1.0 - batch.terminals) * self.hp.discount * next_v

    def q_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The Huber losses of both critics to the same target, added up over them."""
        critic = self.critic
        target = self.td_target(batch)
        q1, q2 = critic(batch.observations, batch.actions)
        assert q1.shape == q2.shape == target.shape
        return huber(q1 - target).mean() + huber(q2 - target).mean(), {}

    def update(self, batch: Batch, noise: Noise) -> dict[str, Tensor]:
        """One gradient step: V; the policy and then the critics, with the new V; the target critics."""
        hp = self.hp
        for _ in range(hp.value_updates):
            value_loss, _ = self.value_loss(batch, noise)
            gradient_step(value_loss, self.value_optimizer)
        for group in self.actor_optimizer.param_groups:
            group["lr"] = actor_lr(hp, self.total_it)
        actor_loss, _ = self.actor_loss(batch, noise)
        gradient_step(actor_loss, self.actor_optimizer)
        q_loss, _ = self.q_loss(batch)
        gradient_step(q_loss, self.critic_optimizer)
        soft_update(self.critic_target, self.critic, hp.tau)
        self.total_it += 1
        metrics = {"value_loss": value_loss, "actor_loss": actor_loss, "q_loss": q_loss}
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
    """The policy's most likely actions (E, A) for normalised observations (E, S), without dropout."""
    mean, _ = actor(observations)
    return mean


# ---- training ------------------------------------------------------------------------------------------------------


def create_trainer(config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> XQL:
    """Fresh networks, drawn from torch's generator on the CPU: critic 1, critic 2, V, policy."""
    critic = TwinQ(state_dim, action_dim)
    value = ValueFunction(state_dim)
    actor = Actor(state_dim, action_dim, max_action, has_dropout=config.actor_dropout is not None)
    device = resolve_device(config.device)
    return XQL(config, critic.to(device), value.to(device), actor.to(device))


def save(trainer: XQL, path: Path, **facts: Any) -> None:
    """Writes a checkpoint."""
    save_checkpoint(path, "xql", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: XQL, path: str) -> dict[str, Any]:
    """Loads one of our checkpoints; returns its contents."""
    content = load_checkpoint(path, "xql", trainer.parts())
    trainer.total_it = content["total_it"]
    return content


def train(config: TrainConfig) -> Run:
    """Trains, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used.
    """
    preparation = Preparation(rewards=TrueEpisodeRewards().where(config.normalize_reward), normalise=config.normalize)
    task = load_task(config, preparation)
    device = resolve_device(config.device)
    seed_everything(config.seed)
    trainer = create_trainer(config, task.state_dim, task.action_dim, task.max_action)
    run = Run(config, task, "xql", "torch", device)
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
    cli(train, TrainConfig, "xql")
