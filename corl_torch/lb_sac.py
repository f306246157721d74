"""LB-SAC in PyTorch: SAC-N with large batches and a suitable learning rate, instead of hundreds of critics.

Its twin is `corl_jax/lb_sac.py`.

Nikulin et al., Q-Ensemble for Offline RL: Don't Scale the Ensemble, Scale the Batch Size, 2022,
https://arxiv.org/abs/2211.11092
"""

import copy
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from shared.runs.start import cli

import numpy as np
import torch
from torch import Tensor, clamp, concatenate, exp, log, nn, square, std, tanh

from shared.data.transitions import Batch
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.torch_data import index_tensor, take, to_device
from shared.frameworks.torch_side import mean_metrics, on_arrays, resolve_device, seed_everything
from shared.runs.fields import bounded, positive
from shared.runs.run import Run
from shared.runs.settings import EnsembleConfig
from shared.runs.task import Preparation, load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Rate at which the target critics follow the critics
    tau: float = bounded(5e-3, low=0, high=1)
    # Learning rate of the policy
    actor_lr: float = positive(0.0018)
    # Learning rate of the critics
    critic_lr: float = positive(0.0018)
    # Learning rate of the entropy temperature
    temperature_lr: float = positive(0.0018)
    # Transitions in a batch
    batch_size: int = bounded(10_000, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, EnsembleConfig):
    """The settings of a whole run."""

    group: str = "LB-SAC"
    name: str = "LB-SAC"
    max_timesteps: int = bounded(300_000, low=1)
    # Width of every hidden layer
    hidden_dim: int = bounded(256, low=1)
    # Critics in the ensemble
    n_critics: int = bounded(10, low=2)
    # Layer norm in the critics
    critic_ln: bool = False
    # Start as SAC-N and EDAC do, with values near 0; false: with PyTorch's defaults
    edac_init: bool = False
    # Bound of every action component
    max_action: float = positive(1.0)


# ---- networks ------------------------------------------------------------------------------------------------------


class Actor(nn.Module):
    """The policy: a normal distribution, squashed by tanh."""

    def __init__(self, state_dim: int, action_dim: int, hidden_dim: int, max_action: float, edac_init: bool) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(state_dim, hidden_dim),
            nn.ReLU(),
            nn.Linear(hidden_dim, hidden_dim),
            nn.ReLU(),
            nn.Linear(hidden_dim, hidden_dim),
            nn.ReLU(),
        )
        self.mu = nn.Linear(hidden_dim, action_dim)
        self.log_sigma = nn.Linear(hidden_dim, action_dim)
        self.action_dim, self.max_action = action_dim, max_action
        if edac_init:
            for layer in self.trunk[::2]:
                nn.init.constant_(layer.bias, 0.1)
            for head in (self.mu, self.log_sigma):
                nn.init.uniform_(head.weight, -1e-3, 1e-3)
                nn.init.uniform_(head.bias, -1e-3, 1e-3)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation (B, A) before tanh, for observations (B, S)."""
        hidden = self.trunk(observations)
        return self.mu(hidden), exp(clamp(self.log_sigma(hidden), -5.0, 2.0))


def sample(actor: Actor, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions (B, A) and their log-probabilities (B,) for noise (B, A)."""
    mean, std = actor(observations)
    u = mean + noise * std
    squashed = tanh(u)
    log_prob = (-square(u - mean) / (2.0 * square(std)) - log(std) - LOG_SQRT_2PI).sum(axis=-1)
    log_prob = log_prob - log(1.0 - square(squashed) + 1e-6).sum(axis=-1)
    return actor.max_action * squashed, log_prob


LOG_SQRT_2PI = math.log(math.sqrt(2.0 * math.pi))


class VectorizedLinear(nn.Module):
    """A linear layer for each of E critics, as one batched product; weights are (E, in, out)."""

    def __init__(self, input_dim: int, output_dim: int, n_critics: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_critics, input_dim, output_dim))
        self.bias = nn.Parameter(torch.empty(n_critics, 1, output_dim))
        # PyTorch uses the second axis as the fan-in, which is the width of the output in this layout.
        for critic in range(n_critics):
            nn.init.kaiming_uniform_(self.weight[critic], a=math.sqrt(5.0))
        nn.init.uniform_(self.bias, -1.0 / math.sqrt(output_dim), 1.0 / math.sqrt(output_dim))

    def forward(self, inputs: Tensor) -> Tensor:
        """Maps (E, B, in) to (E, B, out)."""
        return inputs @ self.weight + self.bias


class Critic(nn.Module):
    """E critics Q(s, a) with weights of their own."""

    def __init__(
        self,
        state_dim: int,
        action_dim: int,
        hidden_dim: int,
        n_critics: int,
        layernorm: bool,
        edac_init: bool,
    ) -> None:
        super().__init__()
        # One for all critics; without it, an empty layer takes its place, because layer numbers are part of CORL's
        # names.
        norm = partial(nn.LayerNorm, hidden_dim) if layernorm else nn.Identity
        self.critic = nn.Sequential(
            VectorizedLinear(state_dim + action_dim, hidden_dim, n_critics),
            norm(),
            nn.ReLU(),
            VectorizedLinear(hidden_dim, hidden_dim, n_critics),
            norm(),
            nn.ReLU(),
            VectorizedLinear(hidden_dim, hidden_dim, n_critics),
            norm(),
            nn.ReLU(),
            VectorizedLinear(hidden_dim, 1, n_critics),
        )
        self.n_critics = n_critics
        if edac_init:
            for layer in self.critic[::3]:
                nn.init.constant_(layer.bias, 0.1)
            nn.init.uniform_(self.critic[-1].weight, -3e-3, 3e-3)
            nn.init.uniform_(self.critic[-1].bias, -3e-3, 3e-3)

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """The values (E, B) of actions (B, A) in observations (B, S)."""
        inputs = concatenate([observations, actions], axis=-1)
        return self.critic(inputs.expand(self.n_critics, *inputs.shape)).squeeze(-1)


def smallest(q: Tensor) -> Tensor:
    """The smallest (B,) of E values (E, B); its gradient goes to the first critic with this value."""
    return q.min(axis=0).values


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    # Standard normal, (B, A): the policy's actions whose entropy the temperature learns from
    alpha: Tensor
    # Standard normal, (B, A): the policy's actions in its own loss
    actor: Tensor
    # Standard normal, (B, A): the policy's next actions in the target
    target: Tensor
    # Uniform in [0, 1), (B, A): random actions, only for the metrics
    random: Tensor


def draw_noise(hp: Hyperparameters, dataset_size: int, action_dim: int, device: torch.device) -> tuple[Tensor, Noise]:
    """An update's batch indices (B,), from NumPy's global generator as in CORL, and its noise, from torch's."""
    indices = np.random.randint(0, dataset_size, size=hp.batch_size)
    noise = Noise(
        alpha=torch.randn(hp.batch_size, action_dim, device=device),
        actor=torch.randn(hp.batch_size, action_dim, device=device),
        target=torch.randn(hp.batch_size, action_dim, device=device),
        random=torch.rand(hp.batch_size, action_dim, device=device),
    )
    return index_tensor(indices, device), noise


# ---- losses and update ---------------------------------------------------------------------------------------------


def gradient_step(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """One step of the optimiser down the gradient of the loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def soft_update(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Polyak averaging: the target moves a step of size tau towards the source, in place."""
    for old, new in zip(target.parameters(), source.parameters(), strict=True):
        old.data.copy_((1.0 - tau) * old.data + tau * new.data)


class LB_SAC:
    """All that an update reads and writes."""

    def __init__(self, hp: Hyperparameters, actor: Actor, critic: Critic) -> None:
        self.hp = hp
        self.actor, self.critic = actor, critic
        self.critic_target = copy.deepcopy(critic)
        self.log_temperature = torch.zeros(1, device=actor.mu.weight.device, requires_grad=True)
        self.actor_optimizer = torch.optim.Adam(actor.parameters(), lr=hp.actor_lr)
        self.critic_optimizer = torch.optim.Adam(critic.parameters(), lr=hp.critic_lr)
        self.log_temperature_optimizer = torch.optim.Adam([self.log_temperature], lr=hp.temperature_lr)
        self.total_it = 0

    def temperature(self) -> Tensor:
        """The entropy temperature, (1,): a constant in every loss except its own."""
        return exp(self.log_temperature.detach())

    def alpha_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """Raises the temperature while the policy's entropy is below -A, minus one nat for each action dimension."""
        log_temperature, actor = self.log_temperature, self.actor
        with torch.no_grad():
            _, log_prob = sample(actor, batch.observations, noise.alpha)
        return (-log_temperature * (log_prob - actor.action_dim)).mean(), {}

    def actor_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """Soft actor-critic's loss, which raises the smallest critic's value and the entropy."""
        actor, critic = self.actor, self.critic
        actions, log_prob = sample(actor, batch.observations, noise.actor)
        q = critic(batch.observations, actions)
        assert q.shape[1:] == log_prob.shape == batch.rewards.shape
        loss = (self.temperature() * log_prob - smallest(q)).mean()
        return loss, {"batch_entropy": -log_prob.mean(), "q_policy_std": std(q, axis=0, correction=1).mean()}

    @torch.no_grad()
    def td_target(self, batch: Batch, noise: Noise) -> Tensor:
        """The regression target of all critics, (B,): the least target value of a sampled next action, plus entropy."""
        hp, actor, critic = self.hp, self.actor, self.critic_target
        next_actions, next_log_prob = sample(actor, batch.next_observations, noise.target)
        next_q = smallest(critic(batch.next_observations, next_actions)) - self.temperature() * next_log_prob
        assert next_q.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + hp.discount * (1.0 - batch.terminals) * next_q

    def critic_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """The critics' squared errors to the same target, averaged over the ensemble too, unlike SAC-N's."""
        critic = self.critic
        target = self.td_target(batch, noise)
        q = critic(batch.observations, batch.actions)
        assert q.shape[1:] == target.shape
        return square(q - target).mean(), {}

    def update(self, batch: Batch, noise: Noise) -> dict[str, Tensor]:
        """One gradient step: temperature, policy, critics, each with the parts updated before it; then the targets."""
        hp = self.hp
        self.total_it += 1
        alpha_loss, _ = self.alpha_loss(batch, noise)
        gradient_step(alpha_loss, self.log_temperature_optimizer)
        actor_loss, metrics = self.actor_loss(batch, noise)
        gradient_step(actor_loss, self.actor_optimizer)
        critic_loss, _ = self.critic_loss(batch, noise)
        gradient_step(critic_loss, self.critic_optimizer)
        soft_update(self.critic_target, self.critic, hp.tau)
        metrics |= {"alpha_loss": alpha_loss, "actor_loss": actor_loss, "critic_loss": critic_loss}
        metrics |= {"alpha": self.temperature(), "q_random_std": self.random_std(batch, noise)}
        return {name: value.detach() for name, value in metrics.items()}

    @torch.no_grad()
    def random_std(self, batch: Batch, noise: Noise) -> Tensor:
        """How much the critics disagree on random actions, a measure of their uncertainty."""
        critic, max_action = self.critic, self.actor.max_action
        actions = -max_action + 2.0 * max_action * noise.random
        return std(critic(batch.observations, actions), axis=0, correction=1).mean()

    def act(self, observations: np.ndarray) -> np.ndarray:
        """Calls `policy` with NumPy arrays."""
        return on_arrays(policy, self.actor, observations)

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint besides two numbers, under CORL's keys."""
        return {
            "actor": self.actor,
            "critic": self.critic,
            "target_critic": self.critic_target,
            "actor_optim": self.actor_optimizer,
            "critic_optim": self.critic_optimizer,
            "alpha_optim": self.log_temperature_optimizer,
        }


def policy(actor: Actor, observations: Tensor) -> Tensor:
    """The policy's most likely actions (E, A) for observations (E, S)."""
    mean, _ = actor(observations)
    return actor.max_action * tanh(mean)


# ---- training ------------------------------------------------------------------------------------------------------


def create_trainer(config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> LB_SAC:
    """Fresh networks, drawn from torch's generator on the CPU in CORL's order: actor, critics."""
    actor = Actor(state_dim, action_dim, config.hidden_dim, max_action, config.edac_init)
    sizes = config.hidden_dim, config.n_critics
    critic = Critic(state_dim, action_dim, *sizes, config.critic_ln, config.edac_init)
    device = resolve_device(config.device)
    return LB_SAC(config, actor.to(device), critic.to(device))


def save(trainer: LB_SAC, path: Path, **facts: Any) -> None:
    """Writes a checkpoint that CORL's own code could load."""
    numbers = {"log_alpha": trainer.log_temperature.item(), "total_it": trainer.total_it}
    save_checkpoint(path, "lb_sac", {**trainer.parts(), **numbers, **facts})


def load(trainer: LB_SAC, path: str) -> dict[str, Any]:
    """Loads a checkpoint, ours or CORL's, which does not count its updates; returns its contents."""
    content = load_checkpoint(path, "lb_sac", trainer.parts(), optional=["total_it"], numbers=["log_alpha"])
    nn.init.constant_(trainer.log_temperature, content["log_alpha"])
    trainer.total_it = content.get("total_it", 0)
    return content


def train(config: TrainConfig) -> Run:
    """Trains, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used.
    """
    task = load_task(config, Preparation(normalise=False))
    device = resolve_device(config.device)
    seed_everything(config.seed, config.deterministic_torch)
    trainer = create_trainer(config, task.state_dim, task.action_dim, config.max_action)
    run = Run(config, task, "lb_sac", "torch", device)
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
    cli(train, TrainConfig, "lb_sac")
