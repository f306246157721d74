"""AWAC in PyTorch, offline to online: learns from data first, then in the environment with the policy's own actions.

Its twin is `corl_jax/finetune/awac.py`. The losses and the update are from `corl_torch/awac.py`.

Nair et al., AWAC: Accelerating Online Reinforcement Learning with Offline Datasets, 2020,
https://arxiv.org/abs/2006.09359
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
from torch import Tensor, broadcast_to, clamp, concatenate, exp, log, minimum, nn, square

from shared.data.online import OnlineExperience
from shared.data.rewards import CorlRewards
from shared.data.transitions import Batch
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.torch_data import index_tensor, take, to_device
from shared.frameworks.torch_ring import Ring, room
from shared.frameworks.torch_side import mean_metrics, on_arrays, resolve_device, seed_everything
from shared.runs.fields import bounded, positive
from shared.runs.run import Run
from shared.runs.settings import DeterministicConfig, FinetuneConfig
from shared.runs.task import Preparation, load_task, training_environment

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Learning rate of the policy and of both critics
    learning_rate: float = positive(3e-4)
    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Rate at which the targets follow their networks
    tau: float = bounded(0.005, low=0, high=1)
    # Temperature: an action with advantage A has the weight exp(A / advantage_temperature), at most 100
    advantage_temperature: float = positive(1.0)
    # Transitions in a batch
    batch_size: int = bounded(256, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, FinetuneConfig, DeterministicConfig):
    """The settings of a whole run."""

    group: str = "AWAC-D4RL"
    name: str = "AWAC"
    buffer_size: int = bounded(20_000_000, low=1)
    # Updates, offline or online, between two evaluations; one is also made at the end of the offline phase
    eval_freq: int = bounded(1000, low=1)
    # Seed of the weights, the batches, the noise and the start states of the episodes to learn from
    seed: int = bounded(42, low=0, high=2**32 - 1)
    eval_seed: int = bounded(69, low=0)
    deterministic_torch: bool = True
    # Width of every hidden layer
    hidden_dim: int = bounded(256, low=1)
    # Scale rewards: by CORL's rule for D4RL's datasets; for your own data, so that returns span 1000
    normalize_reward: bool = False


# ---- networks ------------------------------------------------------------------------------------------------------


class Actor(nn.Module):
    """The policy: a normal distribution whose standard deviation is the same in every state."""

    def __init__(self, state_dim: int, action_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self._mlp = nn.Sequential(
            nn.Linear(state_dim, hidden_dim),
            nn.ReLU(),
            nn.Linear(hidden_dim, hidden_dim),
            nn.ReLU(),
            nn.Linear(hidden_dim, hidden_dim),
            nn.ReLU(),
            nn.Linear(hidden_dim, action_dim),
        )
        self._log_std = nn.Parameter(torch.zeros(action_dim))

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Unbounded mean (B, A) and standard deviation (B, A) for observations (B, S)."""
        mean = self._mlp(observations)
        return mean, broadcast_to(exp(clamp(self._log_std, -20.0, 2.0)), mean.shape)


def sample(actor: Actor, observations: Tensor, noise: Tensor) -> Tensor:
    """Actions (B, A) for noise (B, A), clipped to [-1, 1]."""
    mean, std = actor(observations)
    return clamp(mean + noise * std, -1.0, 1.0)


def log_prob(actor: Actor, observations: Tensor, actions: Tensor) -> Tensor:
    """The log-density (B,) of actions (B, A), which ignores that samples are clipped."""
    mean, std = actor(observations)
    log_density = -square(actions - mean) / (2.0 * square(std)) - log(std) - LOG_SQRT_2PI
    return log_density.sum(axis=-1)


LOG_SQRT_2PI = math.log(math.sqrt(2.0 * math.pi))


class Critic(nn.Module):
    """Q(s, a): (B, S) and (B, A) to (B,)."""

    def __init__(self, state_dim: int, action_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self._mlp = nn.Sequential(
            nn.Linear(state_dim + action_dim, hidden_dim),
            nn.ReLU(),
            nn.Linear(hidden_dim, hidden_dim),
            nn.ReLU(),
            nn.Linear(hidden_dim, hidden_dim),
            nn.ReLU(),
            nn.Linear(hidden_dim, 1),
        )

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """The values (B,) of actions (B, A) in observations (B, S)."""
        return self._mlp(concatenate([observations, actions], axis=-1)).squeeze(-1)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    # Standard normal, (B, A): the policy's next actions in the target
    target: Tensor
    # Standard normal, (B, A): the policy's actions that the data's are compared with
    actor: Tensor


def draw_noise(hp: Hyperparameters, size: int, action_dim: int, device: torch.device) -> tuple[Tensor, Noise]:
    """An update's batch indices (B,) below `size`, from NumPy's global generator, and its noise, from torch's."""
    indices = np.random.randint(0, size, size=hp.batch_size)
    noise = Noise(
        target=torch.randn(hp.batch_size, action_dim, device=device),
        actor=torch.randn(hp.batch_size, action_dim, device=device),
    )
    return index_tensor(indices, device), noise


class Exploration(NamedTuple):
    """The random numbers that a step in the environment draws."""

    # Standard normal, (1, A)
    action: Tensor


def draw_exploration(hp: Hyperparameters, action_dim: int, device: torch.device) -> Exploration:
    """The draw of one step in the environment, from torch's generator."""
    return Exploration(action=torch.randn(1, action_dim, device=device))


# ---- losses and update ---------------------------------------------------------------------------------------------

# The largest weight of an action
MAX_WEIGHT = 100.0


def gradient_step(loss: Tensor, *optimizers: torch.optim.Optimizer) -> None:
    """One step of each optimiser down the gradient of the loss."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()


def soft_update(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Polyak averaging: the target moves a step of size tau towards the source, in place."""
    for old, new in zip(target.parameters(), source.parameters(), strict=True):
        old.data.copy_((1.0 - tau) * old.data + tau * new.data)


# Missing in CORL's checkpoints
MISSING_IN_CORL = (
    *("critic_1_target", "critic_2_target", "total_it"),
    *("actor_optimizer", "critic_1_optimizer", "critic_2_optimizer"),
)


class AWAC:
    """All that an update reads and writes."""

    def __init__(self, hp: Hyperparameters, actor: Actor, critic_1: Critic, critic_2: Critic) -> None:
        self.hp = hp
        self.actor, self.critic_1, self.critic_2 = actor, critic_1, critic_2
        self.critic_1_target, self.critic_2_target = copy.deepcopy((critic_1, critic_2))
        self.actor_optimizer = torch.optim.Adam(actor.parameters(), lr=hp.learning_rate)
        self.critic_1_optimizer = torch.optim.Adam(critic_1.parameters(), lr=hp.learning_rate)
        self.critic_2_optimizer = torch.optim.Adam(critic_2.parameters(), lr=hp.learning_rate)
        self.total_it = 0

    @torch.no_grad()
    def td_target(self, batch: Batch, noise: Noise) -> Tensor:
        """The regression target of both critics, (B,): the smaller target value of a sampled next action."""
        hp, actor, critic_1, critic_2 = self.hp, self.actor, self.critic_1_target, self.critic_2_target
        next_actions = sample(actor, batch.next_observations, noise.target)
        next_q = minimum(
            critic_1(batch.next_observations, next_actions), critic_2(batch.next_observations, next_actions)
        )
        assert next_q.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + hp.discount * (1.0 - batch.terminals) * next_q

    def critic_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """The squared error of both critics to the same target."""
        critic_1, critic_2 = self.critic_1, self.critic_2
        target = self.td_target(batch, noise)
        q1 = critic_1(batch.observations, batch.actions)
        q2 = critic_2(batch.observations, batch.actions)
        assert q1.shape == q2.shape == target.shape
        return square(q1 - target).mean() + square(q2 - target).mean(), {}

    @torch.no_grad()
    def weights(self, batch: Batch, noise: Noise) -> Tensor:
        """The weight of each of the data's actions, (B,), from its advantage over a sampled action."""
        actor, critic_1, critic_2 = self.actor, self.critic_1, self.critic_2
        actions = sample(actor, batch.observations, noise.actor)
        value = minimum(critic_1(batch.observations, actions), critic_2(batch.observations, actions))
        q = minimum(critic_1(batch.observations, batch.actions), critic_2(batch.observations, batch.actions))
        assert q.shape == value.shape == batch.rewards.shape
        return clamp(exp((q - value) / self.hp.advantage_temperature), max=MAX_WEIGHT)

    def actor_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """Imitation of the data's actions, each with its weight."""
        actor = self.actor
        weights = self.weights(batch, noise)
        log_probs = log_prob(actor, batch.observations, batch.actions)
        assert log_probs.shape == weights.shape
        return (-log_probs * weights).mean(), {}

    def update(self, batch: Batch, noise: Noise) -> dict[str, Tensor]:
        """One gradient step: the critics; the actor, on the new critics; the targets."""
        hp = self.hp
        self.total_it += 1
        critic_loss, _ = self.critic_loss(batch, noise)
        gradient_step(critic_loss, self.critic_1_optimizer, self.critic_2_optimizer)
        actor_loss, _ = self.actor_loss(batch, noise)
        gradient_step(actor_loss, self.actor_optimizer)
        soft_update(self.critic_1_target, self.critic_1, hp.tau)
        soft_update(self.critic_2_target, self.critic_2, hp.tau)
        return {"critic_loss": critic_loss.detach(), "actor_loss": actor_loss.detach()}

    @torch.no_grad()
    def explore(self, observations: Tensor, noise: Exploration) -> Tensor:
        """Actions (E, A) to learn from, for normalised observations (E, S): the policy's samples, as in an update."""
        return sample(self.actor, observations, noise.action)

    def act(self, observations: np.ndarray) -> np.ndarray:
        """Calls `policy` with NumPy arrays."""
        return on_arrays(policy, self.actor, observations)

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint, under CORL's keys. CORL saves only the networks; this twin saves everything."""
        return {
            "actor": self.actor,
            "critic_1": self.critic_1,
            "critic_2": self.critic_2,
            "critic_1_target": self.critic_1_target,
            "critic_2_target": self.critic_2_target,
            "actor_optimizer": self.actor_optimizer,
            "critic_1_optimizer": self.critic_1_optimizer,
            "critic_2_optimizer": self.critic_2_optimizer,
        }


def policy(actor: Actor, observations: Tensor) -> Tensor:
    """The policy's most likely actions (E, A), unbounded, for normalised observations (E, S)."""
    mean, _ = actor(observations)
    return mean


# ---- training ------------------------------------------------------------------------------------------------------


def create_trainer(config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> AWAC:
    """Fresh networks, drawn from torch's generator on the CPU in CORL's order: actor, critic 1, critic 2."""
    actor = Actor(state_dim, action_dim, config.hidden_dim)
    critic_1 = Critic(state_dim, action_dim, config.hidden_dim)
    critic_2 = Critic(state_dim, action_dim, config.hidden_dim)
    device = resolve_device(config.device)
    return AWAC(config, actor.to(device), critic_1.to(device), critic_2.to(device))


def save(trainer: AWAC, path: Path, experience: OnlineExperience | None = None, **facts: Any) -> None:
    """Writes the new part of the experience, then, beside it, a checkpoint that CORL's own code could load."""
    if experience is not None:
        experience.save(path.parent)
    save_checkpoint(path, "finetune/awac", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: AWAC, path: str) -> dict[str, Any]:
    """Loads a checkpoint, ours, also of an offline run, or CORL's, which lacks targets, so that they start as copies.

    Returns the contents of the file.
    """
    content = load_checkpoint(path, ["finetune/awac", "awac"], trainer.parts(), optional=MISSING_IN_CORL)
    if "critic_1_target" not in content:
        trainer.critic_1_target.load_state_dict(trainer.critic_1.state_dict())
        trainer.critic_2_target.load_state_dict(trainer.critic_2.state_dict())
    trainer.total_it = content.get("total_it", 0)
    return content


def train(config: TrainConfig) -> Run:
    """Trains on the data, then in the environment, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used.
    """
    task = load_task(config, Preparation(rewards=CorlRewards().where(config.normalize_reward)))
    device = resolve_device(config.device)
    experience = training_environment(config, task)
    seed_everything(config.seed, config.deterministic_torch)
    trainer = create_trainer(config, task.state_dim, task.action_dim, task.max_action)
    run = Run(config, task, "finetune/awac", "torch", device)
    history = restore(run, partial(load, trainer), device, experience.go_on_from)
    dataset = to_device(task.dataset, device)
    ring = Ring(dataset, room(config, len(dataset.rewards)))
    ring.push(experience.transitions())
    with run:
        if run.is_due(run.step):
            run.evaluate(run.step, trainer.act)
        for step in range(run.step + 1, config.max_timesteps + 1):
            if step > config.offline_iterations:
                observation = torch.as_tensor(experience.observation[None]).to(dataset.observations)
                action = trainer.explore(observation, draw_exploration(config, task.action_dim, device))
                experience.step(action[0].cpu().numpy())
                ring.push(experience.last())
            indices, noise = draw_noise(config, ring.size, task.action_dim, device)
            history.append(trainer.update(take(ring.rows, indices), noise))
            run.advance(1)
            if run.is_due(step):
                run.log(step, mean_metrics(history), experience.episodes)
                history.clear()
                run.save(step, partial(save, trainer, experience=experience))
                run.evaluate(step, trainer.act)
            elif run.stopping:
                run.save(step, partial(save, trainer, experience=experience, history=history))
    experience.close()
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "finetune/awac")
