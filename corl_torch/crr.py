"""CRR in PyTorch: imitation of the data's actions that the critics prefer. Its twin is `corl_jax/crr.py`.

Wang et al., Critic Regularized Regression, 2020, https://arxiv.org/abs/2006.15134
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
from torch import Tensor, amax, amin, argmax, clamp, concatenate, exp, log, nn, square, stack, tanh, tile

from shared.data.transitions import Batch
from shared.envs.evaluation import SampledPolicy
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.torch_data import index_tensor, take, to_device
from shared.frameworks.torch_layers import pick, probe
from shared.frameworks.torch_side import mean_metrics, on_arrays, resolve_device, seed_everything
from shared.runs.fields import bounded, choice, positive, widths
from shared.runs.run import Run
from shared.runs.settings import TransitionsConfig
from shared.runs.task import Preparation, load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Learning rate of the policy
    actor_lr: float = positive(3e-4)
    # Learning rate of the critics
    critic_lr: float = positive(3e-4)
    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # How an advantage becomes a weight: 1 if it is positive, else 0; or exp(advantage / advantage_temperature)
    weight_type: str = choice("binary", "exp")
    # Temperature of the exponential weights
    advantage_temperature: float = positive(1.0)
    # Largest exponential weight
    max_weight: float = positive(20.0)
    # Value that an action is compared with: the mean of sampled actions' values, or the largest
    advantage_type: str = choice("mean", "max")
    # Actions sampled in each state, for the advantage and to choose from when acting
    n_action_samples: int = bounded(4, low=1)
    # How targets follow their networks: a little in each update, or as a copy after some updates
    target_update_type: str = choice("soft", "hard")
    # Rate at which the soft targets follow their networks
    tau: float = bounded(0.005, low=0, high=1)
    # Updates between two copies into the hard targets
    target_update_period: int = bounded(100, low=1)
    # Transitions in a batch
    batch_size: int = bounded(256, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, TransitionsConfig):
    """The settings of a whole run."""

    group: str = "CRR-D4RL"
    name: str = "CRR"
    # Updates between two evaluations
    eval_freq: int = bounded(1000, low=1)
    # Updates in all
    max_timesteps: int = bounded(500_000, low=1)
    # Critics
    n_critics: int = bounded(1, low=1)
    # Widths of the policy's hidden layers
    actor_hidden_dims: tuple[int, ...] = widths(256, 256)
    # Widths of the critics' hidden layers
    critic_hidden_dims: tuple[int, ...] = widths(256, 256)
    # Start the target policy as a copy; d3rlpy from 2.1.0 to 2.8.1 initialises it separately
    copy_target_policy: bool = True
    # Normalise states to mean 0 and standard deviation 1
    normalize: bool = False


# ---- networks ------------------------------------------------------------------------------------------------------


def hidden(inputs: Sequence[int], hidden_dims: Sequence[int]) -> list[nn.Module]:
    """Hidden layers with ReLU for concatenated inputs of these sizes, which d3rlpy then tries on random rows."""
    dims = [sum(inputs), *hidden_dims]
    layers = [layer for a, b in pairwise(dims) for layer in (nn.Linear(a, b), nn.ReLU())]
    probe(*inputs)
    return layers


def mlp(inputs: Sequence[int], hidden_dims: Sequence[int], output_dim: int) -> nn.Sequential:
    """Hidden layers with ReLU, then a linear layer."""
    return nn.Sequential(*hidden(inputs, hidden_dims), nn.Linear(hidden_dims[-1], output_dim))


class Actor(nn.Module):
    """The policy: a normal distribution around an action that tanh keeps within its bounds."""

    def __init__(self, state_dim: int, action_dim: int, max_action: float, hidden_dims: Sequence[int]) -> None:
        super().__init__()
        self.net = nn.Sequential(*hidden((state_dim,), hidden_dims))
        self.mean = nn.Linear(hidden_dims[-1], action_dim)
        self.log_std = nn.Linear(hidden_dims[-1], action_dim)
        self.max_action = max_action

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation (B, A) for observations (B, S)."""
        encoded = self.net(observations)
        std = exp(clamp(self.log_std(encoded), -20.0, 2.0))
        return self.max_action * tanh(self.mean(encoded)), self.max_action * std


class Critics(nn.Module):
    """N critics Q(s, a) with separate weights."""

    def __init__(self, state_dim: int, action_dim: int, hidden_dims: Sequence[int], n_critics: int) -> None:
        super().__init__()
        self.members = nn.ModuleList(mlp((state_dim, action_dim), hidden_dims, 1) for _ in range(n_critics))

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """The values (N, ...) of actions (..., A) in observations (..., S)."""
        inputs = concatenate([observations, actions], axis=-1)
        return stack([member(inputs).squeeze(-1) for member in self.members])


def sample(actor: Actor, observations: Tensor, noise: Tensor) -> Tensor:
    """Actions (B, n, A) for observations (B, S) and noise (B, n, A), clipped to [-max_action, max_action]."""
    mean, std = actor(observations)
    return clamp(mean[:, None] + std[:, None] * noise, -actor.max_action, actor.max_action)


def log_prob(actor: Actor, observations: Tensor, actions: Tensor) -> Tensor:
    """The log-density (B,) of actions (B, A), which ignores that samples are clipped."""
    mean, std = actor(observations)
    log_density = -square(actions - mean) / (2.0 * square(std)) - log(std) - LOG_SQRT_2PI
    return log_density.sum(axis=-1)


LOG_SQRT_2PI = math.log(math.sqrt(2.0 * math.pi))


def repeat(observations: Tensor, n: int) -> Tensor:
    """The observations (B, S), each repeated n times: (B, n, S)."""
    return tile(observations[:, None], (1, n, 1))


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    # Standard normal, (B, 1, A): the target policy's next actions
    target: Tensor
    # Standard normal, (B, n, A): the policy's actions that the data's are compared with
    actor: Tensor


def draw_noise(hp: Hyperparameters, dataset_size: int, action_dim: int, device: torch.device) -> tuple[Tensor, Noise]:
    """An update's batch indices (B,), from NumPy's global generator as in d3rlpy, and its noise, from torch's."""
    indices = np.random.randint(0, dataset_size, size=hp.batch_size)
    target = torch.randn(1, hp.batch_size, action_dim, device=device)
    # d3rlpy draws one sample for all states, then the next.
    actor = torch.randn(hp.n_action_samples, hp.batch_size, action_dim, device=device)
    return index_tensor(indices, device), Noise(target.swapaxes(0, 1), actor.swapaxes(0, 1))


def draw_acting_noise(generator: np.random.Generator, hp: Hyperparameters, action_dim: int) -> np.ndarray:
    """The policy's draws for one step of an episode, (n, A + 1): each action's normal noise and Gumbel noise."""
    normal = generator.standard_normal((hp.n_action_samples, action_dim))
    return np.concatenate([normal, generator.gumbel(size=(hp.n_action_samples, 1))], axis=-1)


# ---- losses and update ---------------------------------------------------------------------------------------------


def adam(network: nn.Module, lr: float) -> torch.optim.Optimizer:
    """A network's optimiser."""
    return torch.optim.Adam(network.parameters(), lr=lr)


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


def target_rate(hp: Hyperparameters, copies: bool) -> float:
    """The targets' step size: tau in each update, or 1 in an update that copies."""
    return hp.tau if hp.target_update_type == "soft" else float(copies)


# Names of the networks in d3rlpy's files
D3RLPY_NAMES = {
    "actor": ("policy",),
    "actor_target": ("targ_policy",),
    "critic": ("q_funcs",),
    "critic_target": ("targ_q_funcs",),
}


class CRR:
    """All that an update reads and writes."""

    def __init__(self, hp: Hyperparameters, actor: Actor, target: Actor, critic: Critics) -> None:
        self.hp = hp
        self.actor, self.critic = actor, critic
        self.actor_target, self.critic_target = target, copy.deepcopy(critic)
        self.actor_optimizer = adam(actor, hp.actor_lr)
        self.critic_optimizer = adam(critic, hp.critic_lr)
        self.total_it = 0

    @torch.no_grad()
    def td_target(self, batch: Batch, noise: Noise) -> Tensor:
        """The regression target of all critics, (B,): the smallest target value of the target policy's sample."""
        hp, actor, critic = self.hp, self.actor_target, self.critic_target
        next_actions = sample(actor, batch.next_observations, noise.target).squeeze(1)
        next_q = amin(critic(batch.next_observations, next_actions), axis=0)
        assert next_q.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + hp.discount * next_q * (1.0 - batch.terminals)

    def critic_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """The squared errors of all critics to the same target, added up over the critics."""
        critic = self.critic
        target = self.td_target(batch, noise)
        q = critic(batch.observations, batch.actions)
        assert q.shape[1:] == target.shape
        return square(q - target).mean(axis=1).sum(), {}

    @torch.no_grad()
    def advantage(self, batch: Batch, noise: Noise) -> Tensor:
        """The advantage (B,) of each of the data's actions over sampled ones."""
        hp, actor, critic = self.hp, self.actor, self.critic
        actions = sample(actor, batch.observations, noise.actor)
        values = critic(repeat(batch.observations, hp.n_action_samples), actions).mean(axis=0)
        value = values.mean(axis=1) if hp.advantage_type == "mean" else amax(values, axis=1)
        q = critic(batch.observations, batch.actions).mean(axis=0)
        assert q.shape == value.shape == batch.rewards.shape
        return q - value

    def weights(self, advantage: Tensor) -> Tensor:
        """The weight (B,) of each of the data's actions, from its advantage (B,)."""
        hp = self.hp
        if hp.weight_type == "binary":
            return (advantage > 0.0).to(advantage.dtype)
        return clamp(exp(advantage / hp.advantage_temperature), max=hp.max_weight)

    def actor_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """Imitation of the data's actions, each with its weight."""
        actor = self.actor
        weights = self.weights(self.advantage(batch, noise))
        log_probs = log_prob(actor, batch.observations, batch.actions)
        assert log_probs.shape == weights.shape
        return -(log_probs * weights).mean(), {}

    def update(self, batch: Batch, noise: Noise) -> dict[str, Tensor]:
        """One gradient step: the critics; the policy, on the new critics; the targets."""
        hp, copies = self.hp, self.total_it % self.hp.target_update_period == 0
        self.total_it += 1
        critic_loss, _ = self.critic_loss(batch, noise)
        gradient_step(critic_loss, self.critic_optimizer)
        actor_loss, _ = self.actor_loss(batch, noise)
        gradient_step(actor_loss, self.actor_optimizer)
        if rate := target_rate(hp, copies):
            soft_update(self.critic_target, self.critic, rate)
            soft_update(self.actor_target, self.actor, rate)
        return {"critic_loss": critic_loss.detach(), "actor_loss": actor_loss.detach()}

    @property
    def acting(self) -> nn.ModuleDict:
        """The networks that the policy needs."""
        return nn.ModuleDict({"actor": self.actor, "critic": self.critic})

    def act(self, observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Calls `policy` with NumPy arrays."""
        return on_arrays(policy, self.acting, observations, noise)

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint, by name."""
        learning = ("actor", "critic")
        names = [*learning, "actor_target", "critic_target", *(f"{part}_optimizer" for part in learning)]
        return {name: getattr(self, name) for name in names}


def policy(acting: nn.ModuleDict, observations: Tensor, noise: Tensor) -> Tensor:
    """The policy's actions (E, A) for observations (E, S) and noise (E, n, A + 1).

    One of n samples is drawn with the critics' values as logits, as the argmax of value plus Gumbel noise.
    """
    actions = sample(acting["actor"], observations, noise[..., :-1])
    values = acting["critic"](repeat(observations, noise.shape[1]), actions).mean(axis=0)
    return pick(actions, argmax(values + noise[..., -1], axis=1))


# ---- training ------------------------------------------------------------------------------------------------------


def create_trainer(config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> CRR:
    """Fresh networks, drawn from torch's generator on the CPU in d3rlpy's order, in which targets are drawn too."""
    dims, critic_dims = config.actor_hidden_dims, config.critic_hidden_dims
    actor, target = (Actor(state_dim, action_dim, max_action, dims) for _ in range(2))
    critic, _ = (Critics(state_dim, action_dim, critic_dims, config.n_critics) for _ in range(2))
    if config.copy_target_policy:
        target = copy.deepcopy(actor)
    networks = (network.to(resolve_device(config.device)) for network in (actor, target, critic))
    return CRR(config, *networks)


def save(trainer: CRR, path: Path, **facts: Any) -> None:
    """Writes a checkpoint."""
    save_checkpoint(path, "crr", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: CRR, path: str) -> dict[str, Any]:
    """Loads a checkpoint of ours or a d3rlpy model; returns its contents."""
    content = load_checkpoint(path, "crr", trainer.parts(), d3rlpy=D3RLPY_NAMES)
    trainer.total_it = content["total_it"]
    return content


def train(config: TrainConfig) -> Run:
    """Trains, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used.
    """
    task = load_task(config, Preparation(normalise=config.normalize))
    device = resolve_device(config.device)
    seed_everything(config.seed)
    trainer = create_trainer(config, task.state_dim, task.action_dim, task.max_action)
    run = Run(config, task, "crr", "torch", device)
    history = restore(run, partial(load, trainer), device)
    dataset = to_device(task.dataset, device)
    draw = partial(draw_acting_noise, hp=config, action_dim=task.action_dim)
    with run:
        if run.is_due(run.step):
            run.evaluate(run.step, SampledPolicy(trainer.act, draw, config.seed))
        for step in range(run.step + 1, config.max_timesteps + 1):
            indices, noise = draw_noise(config, len(dataset.rewards), task.action_dim, device)
            history.append(trainer.update(take(dataset, indices), noise))
            run.advance(1)
            if run.is_due(step):
                run.log(step, mean_metrics(history))
                history.clear()
                run.save(step, partial(save, trainer))
                run.evaluate(step, SampledPolicy(trainer.act, draw, config.seed))
            elif run.stopping:
                run.save(step, partial(save, trainer, history=history))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "crr")
