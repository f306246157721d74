"""TD3+BC in PyTorch: TD3 whose actor is also pulled towards the data's actions. Its twin is `corl_jax/td3_bc.py`.

Fujimoto & Gu, A Minimalist Approach to Offline Reinforcement Learning, 2021, https://arxiv.org/abs/2106.06860
"""

import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from shared.runs.start import cli

import numpy as np
import torch
from torch import Tensor, clip, minimum, nn, square

from shared.data.rewards import CorlRewards
from shared.data.transitions import Batch
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.torch_data import index_tensor, take, to_device
from shared.frameworks.torch_side import mean_metrics, on_arrays, resolve_device, seed_everything
from shared.runs.fields import bounded
from shared.runs.run import Run
from shared.runs.settings import TransitionsConfig
from shared.runs.task import Preparation, load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Weight of the Q term relative to behaviour cloning
    alpha: float = bounded(2.5, low=0)
    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Rate at which the targets follow their networks
    tau: float = bounded(0.005, low=0, high=1)
    # Standard deviation of the noise on the target policy's action, in units of the largest action
    policy_noise: float = bounded(0.2, low=0)
    # That noise is clipped to plus or minus this, in units of the largest action
    noise_clip: float = bounded(0.5, low=0)
    # Critic updates per update of the actor and of the targets
    policy_freq: int = bounded(2, low=1)
    # Transitions in a batch
    batch_size: int = bounded(256, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, TransitionsConfig):
    """The settings of a whole run."""

    group: str = "TD3_BC-D4RL"
    name: str = "TD3_BC"
    # Exploration noise; no effect, because CORL declares it but never uses it; kept so that CORL's files load
    expl_noise: float = bounded(0.1, low=0)
    # Normalise states to mean 0 and standard deviation 1
    normalize: bool = True
    # Scale rewards: by CORL's rule for D4RL's datasets; for your own data, so that returns span 1000
    normalize_reward: bool = False


# ---- networks ------------------------------------------------------------------------------------------------------


class Actor(nn.Module):
    """The deterministic policy: (B, S) to (B, A), within [-max_action, max_action]."""

    def __init__(self, state_dim: int, action_dim: int, max_action: float) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(state_dim, 256),
            nn.ReLU(),
            nn.Linear(256, 256),
            nn.ReLU(),
            nn.Linear(256, action_dim),
            nn.Tanh(),
        )
        self.max_action = max_action

    def forward(self, observations: Tensor) -> Tensor:
        """The actions (B, A) for observations (B, S)."""
        return self.max_action * self.net(observations)


class Critic(nn.Module):
    """Q(s, a): (B, S) and (B, A) to (B,)."""

    def __init__(self, state_dim: int, action_dim: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(state_dim + action_dim, 256),
            nn.ReLU(),
            nn.Linear(256, 256),
            nn.ReLU(),
            nn.Linear(256, 1),
        )

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """The values (B,) of actions (B, A) in observations (B, S)."""
        return self.net(torch.cat([observations, actions], axis=-1)).squeeze(-1)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    # Standard normal, (B, A): smooths the target policy
    target: Tensor


def draw_noise(hp: Hyperparameters, dataset_size: int, action_dim: int, device: torch.device) -> tuple[Tensor, Noise]:
    """An update's batch indices (B,), from NumPy's global generator as in CORL, and its noise, from torch's."""
    indices = np.random.randint(0, dataset_size, size=hp.batch_size)
    noise = Noise(target=torch.randn(hp.batch_size, action_dim, device=device))
    return index_tensor(indices, device), noise


# ---- losses and update ---------------------------------------------------------------------------------------------


def adam(network: nn.Module) -> torch.optim.Optimizer:
    """Every network's optimiser."""
    return torch.optim.Adam(network.parameters(), lr=3e-4)


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


TARGETS = ("actor_target", "critic_1_target", "critic_2_target")


# Names of the networks in d3rlpy's files
D3RLPY_NAMES = {
    "actor": ("policy",),
    "actor_target": ("targ_policy",),
    "critic_1": ("q_funcs.0",),
    "critic_2": ("q_funcs.1",),
    "critic_1_target": ("targ_q_funcs.0",),
    "critic_2_target": ("targ_q_funcs.1",),
}


class TD3_BC:
    """All that an update reads and writes."""

    def __init__(self, hp: Hyperparameters, actor: Actor, critic_1: Critic, critic_2: Critic) -> None:
        self.hp = hp
        self.max_action = actor.max_action
        self.actor, self.critic_1, self.critic_2 = actor, critic_1, critic_2
        self.actor_target, self.critic_1_target, self.critic_2_target = copy.deepcopy((actor, critic_1, critic_2))
        self.actor_optimizer = adam(actor)
        self.critic_1_optimizer = adam(critic_1)
        self.critic_2_optimizer = adam(critic_2)
        self.total_it = 0

    @torch.no_grad()
    def td_target(self, batch: Batch, noise: Noise) -> Tensor:
        """The regression target of both critics, (B,): the smaller target value of a smoothed target action."""
        hp, max_action = self.hp, self.max_action
        actor, critic_1, critic_2 = self.actor_target, self.critic_1_target, self.critic_2_target
        smoothing = clip(
            noise.target * (hp.policy_noise * max_action), -hp.noise_clip * max_action, hp.noise_clip * max_action
        )
        next_actions = clip(actor(batch.next_observations) + smoothing, -max_action, max_action)
        next_q = minimum(
            critic_1(batch.next_observations, next_actions), critic_2(batch.next_observations, next_actions)
        )
        assert next_q.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + (1.0 - batch.terminals) * hp.discount * next_q

    def critic_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """The squared error of both critics to the same target."""
        critic_1, critic_2 = self.critic_1, self.critic_2
        target = self.td_target(batch, noise)
        q1 = critic_1(batch.observations, batch.actions)
        q2 = critic_2(batch.observations, batch.actions)
        assert q1.shape == q2.shape == target.shape
        return square(q1 - target).mean() + square(q2 - target).mean(), {}

    def actor_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The value under critic 1, scaled by its own size, against the distance to the data's actions."""
        actor, critic_1 = self.actor, self.critic_1
        actions = actor(batch.observations)
        q = critic_1(batch.observations, actions)
        # There is no epsilon below |Q|, as in the authors' code.
        weight = self.hp.alpha / q.abs().mean().detach()
        assert actions.shape == batch.actions.shape
        return -weight * q.mean() + square(actions - batch.actions).mean(), {}

    def update(self, batch: Batch, noise: Noise) -> dict[str, Tensor]:
        """One gradient step: the critics; then, every `policy_freq` steps, the actor and the targets."""
        hp = self.hp
        self.total_it += 1
        loss, _ = self.critic_loss(batch, noise)
        gradient_step(loss, self.critic_1_optimizer, self.critic_2_optimizer)
        metrics = {"critic_loss": loss.detach()}
        if self.total_it % hp.policy_freq == 0:
            loss, _ = self.actor_loss(batch)
            gradient_step(loss, self.actor_optimizer)
            metrics["actor_loss"] = loss.detach()
            soft_update(self.critic_1_target, self.critic_1, hp.tau)
            soft_update(self.critic_2_target, self.critic_2, hp.tau)
            soft_update(self.actor_target, self.actor, hp.tau)
        return metrics

    def act(self, observations: np.ndarray) -> np.ndarray:
        """Calls `policy` with NumPy arrays."""
        return on_arrays(policy, self.actor, observations)

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint, under CORL's keys. CORL leaves out the targets; this twin saves them."""
        return {
            **{name: getattr(self, name) for name in TARGETS},
            "critic_1": self.critic_1,
            "critic_1_optimizer": self.critic_1_optimizer,
            "critic_2": self.critic_2,
            "critic_2_optimizer": self.critic_2_optimizer,
            "actor": self.actor,
            "actor_optimizer": self.actor_optimizer,
        }


def policy(actor: Actor, observations: Tensor) -> Tensor:
    """The policy's actions (E, A) for normalised observations (E, S)."""
    return actor(observations)


# ---- training ------------------------------------------------------------------------------------------------------


def create_trainer(config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> TD3_BC:
    """Fresh networks, drawn from torch's generator on the CPU in CORL's order: actor, critic 1, critic 2."""
    actor = Actor(state_dim, action_dim, max_action)
    critic_1 = Critic(state_dim, action_dim)
    critic_2 = Critic(state_dim, action_dim)
    device = resolve_device(config.device)
    return TD3_BC(config, actor.to(device), critic_1.to(device), critic_2.to(device))


def save(trainer: TD3_BC, path: Path, **facts: Any) -> None:
    """Writes a checkpoint that CORL's own code could load."""
    save_checkpoint(path, "td3_bc", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: TD3_BC, path: str) -> dict[str, Any]:
    """Loads a checkpoint, ours, d3rlpy's, or CORL's, whose targets start as copies; returns its contents."""
    content = load_checkpoint(path, "td3_bc", trainer.parts(), optional=TARGETS, d3rlpy=D3RLPY_NAMES)
    for name in TARGETS:
        if name not in content:
            getattr(trainer, name).load_state_dict(getattr(trainer, name.removesuffix("_target")).state_dict())
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
    trainer = create_trainer(config, task.state_dim, task.action_dim, task.max_action)
    run = Run(config, task, "td3_bc", "torch", device)
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
    cli(train, TrainConfig, "td3_bc")
