"""TD3 in PyTorch: targets from the smaller of two values, at a smoothed target action, and a delayed policy.

Its twin is `corl_jax/online/td3.py`. It learns from a dataset, or collects its own data: environment steps and updates
then alternate.

Fujimoto, van Hoof & Meger, Addressing Function Approximation Error in Actor-Critic Methods, 2018,
https://arxiv.org/abs/1802.09477
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from shared.runs.start import cli

import numpy as np
import torch
from torch import Tensor, abs, argmin, clip, concatenate, nn, square, stack, tanh, where
from torch.nn.functional import one_hot

from shared.data.experience import Experience
from shared.data.transitions import Batch
from shared.envs.registry import is_registered
from shared.errors import InputError
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, restore_generators, save_checkpoint
from shared.frameworks.torch_data import index_tensor, store, take, to_device
from shared.frameworks.torch_layers import ImplicitQuantiles, probe
from shared.frameworks.torch_side import mean_metrics, on_arrays, resolve_device, seed_everything
from shared.runs.fields import bounded, choice, later, positive, widths
from shared.runs.online import load_online_task
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
    # Rate at which the targets follow their networks
    tau: float = bounded(0.005, low=0, high=1)
    # Standard deviation of the target action's noise, in units of the largest action
    policy_noise: float = bounded(0.2, low=0)
    # Bound of that noise, in the same units
    noise_clip: float = bounded(0.5, low=0)
    # Critic updates per update of the policy and of the targets; the first update has both
    policy_freq: int = bounded(2, low=1)
    # Transitions in a batch
    batch_size: int = bounded(256, low=1)
    # Critics
    n_critics: int = bounded(2, low=1)
    # The critics learn the return's mean (mean), its quantiles at fixed fractions (qr), or at any fraction (iqn)
    critic: str = later(choice("mean", "qr", "iqn"))
    # With qr and iqn: quantiles in an update of the critics
    n_quantiles: int = later(bounded(32, low=1))
    # With iqn: quantiles whose mean the policy learns to raise
    n_greedy_quantiles: int = later(bounded(32, low=1))
    # With iqn: cosines that encode a fraction
    embed_size: int = later(bounded(64, low=1))


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, TransitionsConfig):
    """The settings of a whole run."""

    group: str = "TD3-D4RL"
    name: str = "TD3"
    # Environment to learn in: d4rl/halfcheetah-v2, or any that is registered with Gymnasium. Or dataset to learn from:
    # mini/hopper-medium-replay, a D4RL id, minari:NAME, or the path of an HDF5 file
    env: str = "d4rl/halfcheetah-v2"
    # Environment steps in all, or updates on a dataset
    max_timesteps: int = bounded(500_000, low=1)
    # Environment steps, or updates on a dataset, between two evaluations
    eval_freq: int = bounded(5000, low=1)
    # Checkpoint to start from; in an environment, with its experience beside it
    load_model: str = ""
    # Widths of the policy's hidden layers
    actor_hidden_dims: tuple[int, ...] = widths(256, 256)
    # Widths of the critics' hidden layers
    critic_hidden_dims: tuple[int, ...] = widths(256, 256)
    # In an environment: standard deviation of the policy's noise, in units of the largest action
    expl_noise: float = bounded(0.1, low=0)
    # In an environment: steps of uniform actions before learning begins
    random_steps: int = bounded(10_000, low=0)
    # In an environment: steps that are followed by the same number of updates
    update_every: int = bounded(1, low=1)


# ---- networks ------------------------------------------------------------------------------------------------------


def mlp(inputs: Sequence[int], hidden_dims: Sequence[int], *outputs: int) -> nn.Sequential:
    """Hidden layers with ReLU, which d3rlpy tries on random rows of inputs of these sizes; perhaps a linear layer."""
    dims = [sum(inputs), *hidden_dims]
    hidden = [layer for a, b in pairwise(dims) for layer in (nn.Linear(a, b), nn.ReLU())]
    probe(*inputs)
    return nn.Sequential(*hidden, *(nn.Linear(dims[-1], output_dim) for output_dim in outputs))


class Actor(nn.Module):
    """The policy, which gives an action for each observation: (B, S) to (B, A)."""

    def __init__(self, state_dim: int, action_dim: int, max_action: float, hidden_dims: Sequence[int]) -> None:
        super().__init__()
        self.net = mlp((state_dim,), hidden_dims, action_dim)
        self.max_action = max_action

    def forward(self, observations: Tensor) -> Tensor:
        """The actions (B, A) for observations (B, S), within [-max_action, max_action]."""
        return self.max_action * tanh(self.net(observations))


class Critics(nn.Module):
    """N critics Z(s, a) with separate weights: the return's mean or quantiles."""

    def __init__(self, state_dim: int, action_dim: int, hidden_dims: Sequence[int], hp: Hyperparameters) -> None:
        super().__init__()
        self.implicit, n_quantiles = hp.critic == "iqn", hp.n_quantiles if hp.critic == "qr" else 1

        def member() -> nn.Module:
            inputs = state_dim, action_dim
            if self.implicit:
                hidden = mlp(inputs, hidden_dims)
                return ImplicitQuantiles(hidden, hidden_dims[-1], 1, hp.embed_size, hp.n_greedy_quantiles)
            return mlp(inputs, hidden_dims, n_quantiles)

        self.members = nn.ModuleList(member() for _ in range(hp.n_critics))

    def forward(
        self, observations: Tensor, actions: Tensor, fractions: Tensor | None = None, first: int | None = None
    ) -> Tensor:
        """The quantiles (N, B, K) of actions (B, A) in observations (B, S), by the first few critics (`first`) or all.

        A mean counts as one quantile. IQN's are at the fractions (N, B, K), or, without these, at evenly spaced ones.
        """
        inputs, members = concatenate([observations, actions], axis=-1), self.members[:first]
        if not self.implicit:
            return stack([member(inputs) for member in members])
        given = [None] * len(members) if fractions is None else fractions
        return stack([member(inputs, each).squeeze(1) for member, each in zip(members, given, strict=True)])


def smallest(q: Tensor) -> Tensor:
    """Selects, in each row of the quantiles (N, B, K), the critic with the smallest mean, (B, K)."""
    critic = one_hot(argmin(q.mean(axis=-1), axis=0), len(q))
    return (q * critic.T[..., None]).sum(axis=0)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    # Standard normal, (B, A): smooths the target policy
    target: Tensor
    # With iqn, fractions uniform in [0, 1), (N, B, K): for the value of the next action under the targets
    target_fractions: Tensor | None = None
    # The same for the value of the data's action
    error_fractions: Tensor | None = None


def draw_noise(hp: Hyperparameters, size: int, action_dim: int, device: torch.device) -> tuple[Tensor, Noise]:
    """An update's batch indices (B,) below `size`, from NumPy's global generator, and its noise, from torch's."""
    indices = index_tensor(np.random.randint(0, size, size=hp.batch_size), device)
    target = torch.randn(hp.batch_size, action_dim, device=device)
    if hp.critic != "iqn":
        return indices, Noise(target)
    shape = hp.batch_size, hp.n_quantiles
    passes = [stack([torch.rand(shape, device=device) for _ in range(hp.n_critics)]) for _ in range(2)]
    return indices, Noise(target, *passes)


class Exploration(NamedTuple):
    """The random numbers that n environment steps draw."""

    # Uniform in [-1, 1), (n, A): the actions of the first `random_steps` steps, in units of max_action
    uniform: np.ndarray
    # Standard normal, (n, A): the noise on the policy's actions in all later steps
    normal: np.ndarray


def draw_exploration(steps: int, action_dim: int) -> Exploration:
    """The draws of some environment steps, from NumPy's global generator."""
    uniform = np.random.uniform(-1.0, 1.0, size=(steps, action_dim))
    return Exploration(uniform, np.random.standard_normal(size=(steps, action_dim)))


# ---- losses and update ---------------------------------------------------------------------------------------------


def adam(network: nn.Module, lr: float) -> torch.optim.Optimizer:
    """A network's optimiser."""
    return torch.optim.Adam(network.parameters(), lr=lr)


def gradient_step(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """One step of the optimiser down the gradient of the loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def soft_update(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Polyak averaging: the target moves a step of size tau towards the source, in place."""
    for old, new in zip(target.parameters(), source.parameters(), strict=True):
        old.data.copy_((1.0 - tau) * old.data + tau * new.data)


def huber(error: Tensor) -> Tensor:
    """Huber's loss: half the square of errors below 1, and the absolute error minus a half for all others."""
    return where(abs(error) < 1.0, 0.5 * square(error), abs(error) - 0.5)


def fractions(q: Tensor, drawn: Tensor | None) -> Tensor:
    """The fractions of the quantiles q (N, B, K): the drawn ones, or with qr the middles of equal parts (K,)."""
    if drawn is not None:
        return drawn
    bounds = torch.arange(q.shape[-1] + 1, dtype=q.dtype, device=q.device) / q.shape[-1]
    return (bounds[1:] + bounds[:-1]) / 2.0


def quantile_huber(q: Tensor, fractions: Tensor, target: Tensor) -> Tensor:
    """Huber's loss (N, B) of quantiles (N, B, K) against the target's (B, K'): summed over K, averaged over K'.

    Targets below a quantile have the weight 1 minus its fraction, and all others its fraction.
    """
    error = target[:, :, None] - q[:, :, None]
    loss = abs(fractions[..., None, :] - (error < 0.0).to(error.dtype)) * huber(error)
    return loss.sum(axis=-1).mean(axis=-1)


# Names of the networks in d3rlpy's files
D3RLPY_NAMES = {
    "actor": ("policy",),
    "actor_target": ("targ_policy",),
    "critic": ("q_funcs",),
    "critic_target": ("targ_q_funcs",),
}


class TD3:
    """All that an update reads and writes."""

    def __init__(self, hp: Hyperparameters, actor: Actor, critic: Critics) -> None:
        self.hp = hp
        self.max_action = actor.max_action
        self.actor, self.critic = actor, critic
        self.actor_target, self.critic_target = copy.deepcopy((actor, critic))
        self.actor_optimizer = adam(actor, hp.actor_lr)
        self.critic_optimizer = adam(critic, hp.critic_lr)
        self.total_it = 0

    @torch.no_grad()
    def td_target(self, batch: Batch, noise: Noise) -> Tensor:
        """The regression target of all critics, (B, K): the smallest target quantiles of a smoothed target action."""
        hp, max_action = self.hp, self.max_action
        actor, critic = self.actor_target, self.critic_target
        smoothing = clip(
            noise.target * (hp.policy_noise * max_action), -hp.noise_clip * max_action, hp.noise_clip * max_action
        )
        next_actions = clip(actor(batch.next_observations) + smoothing, -max_action, max_action)
        next_q = smallest(critic(batch.next_observations, next_actions, noise.target_fractions))
        assert next_q.shape[:1] == batch.rewards.shape == batch.terminals.shape
        return batch.rewards[:, None] + hp.discount * next_q * (1.0 - batch.terminals[:, None])

    def critic_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """The errors of all critics to the same target, added up over the critics: squared, or Huber's of quantiles."""
        critic = self.critic
        target = self.td_target(batch, noise)
        q = critic(batch.observations, batch.actions, noise.error_fractions)
        assert q.shape[1] == len(target)
        if self.hp.critic == "mean":
            return square(q - target).mean(axis=(1, 2)).sum(), {}
        return quantile_huber(q, fractions(q, noise.error_fractions), target).mean(axis=1).sum(), {}

    def actor_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Maximizes the mean value of the policy's actions under the first critic."""
        actor, critic = self.actor, self.critic
        q = critic(batch.observations, actor(batch.observations), None, 1).mean(axis=-1).squeeze(0)
        assert q.shape == batch.rewards.shape
        return -q.mean(), {}

    def update(self, batch: Batch, noise: Noise) -> dict[str, Tensor]:
        """One gradient step: the critics; then, in the first of every `policy_freq`, the actor and the targets."""
        hp = self.hp
        loss, _ = self.critic_loss(batch, noise)
        gradient_step(loss, self.critic_optimizer)
        metrics = {"critic_loss": loss.detach()}
        if self.total_it % hp.policy_freq == 0:
            loss, _ = self.actor_loss(batch)
            gradient_step(loss, self.actor_optimizer)
            metrics["actor_loss"] = loss.detach()
            soft_update(self.critic_target, self.critic, hp.tau)
            soft_update(self.actor_target, self.actor, hp.tau)
        self.total_it += 1
        return metrics

    def act(self, observations: np.ndarray) -> np.ndarray:
        """Calls `policy` with NumPy arrays."""
        return on_arrays(policy, self.actor, observations)

    def explore(self, expl_noise: float, observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """The policy's actions (E, A) for observations (E, S), with a share of standard normal noise (E, A)."""
        noise = expl_noise * self.max_action * noise
        return np.clip(self.act(observations) + noise, -self.max_action, self.max_action)

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint, by name."""
        names = ("actor", "critic", "actor_target", "critic_target", "actor_optimizer", "critic_optimizer")
        return {name: getattr(self, name) for name in names}


def policy(actor: Actor, observations: Tensor) -> Tensor:
    """The policy's actions (E, A) for observations (E, S)."""
    return actor(observations)


# ---- training ------------------------------------------------------------------------------------------------------


def create_trainer(config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> TD3:
    """Fresh networks, drawn from torch's generator on the CPU in d3rlpy's order, in which targets are drawn too."""
    actor, _ = (Actor(state_dim, action_dim, max_action, config.actor_hidden_dims) for _ in range(2))
    critic, _ = (Critics(state_dim, action_dim, config.critic_hidden_dims, config) for _ in range(2))
    device = resolve_device(config.device)
    return TD3(config, actor.to(device), critic.to(device))


def save(trainer: TD3, path: Path, experience: Experience | None = None, **facts: Any) -> None:
    """Writes the new part of the experience, if there is any, then a checkpoint beside it."""
    if experience is not None:
        experience.save(path.parent)
    save_checkpoint(path, "online/td3", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: TD3, path: str, experience: Experience | None = None) -> dict[str, Any]:
    """Loads a checkpoint of ours or a d3rlpy model; returns its contents.

    Also restores the experience, if there is any, and the generators' states.
    """
    content = load_checkpoint(path, "online/td3", trainer.parts(), d3rlpy=D3RLPY_NAMES)
    trainer.total_it = content["total_it"]
    if experience is not None:
        experience.load(Path(path).parent, trainer.total_it)
        restore_generators(content["generators"])
    return content


def train(config: TrainConfig) -> Run:
    """Trains on the dataset or in the environment that `env` names, evaluates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used.
    """
    return train_in_environment(config) if is_registered(config.env) else train_on_dataset(config)


def train_on_dataset(config: TrainConfig) -> Run:
    """Trains on a dataset and evaluates every `eval_freq` updates."""
    task = load_task(config, Preparation(normalise=False))
    device = resolve_device(config.device)
    seed_everything(config.seed)
    trainer = create_trainer(config, task.state_dim, task.action_dim, task.max_action)
    run = Run(config, task, "online/td3", "torch", device)
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


def train_in_environment(config: TrainConfig) -> Run:
    """Trains in an environment and evaluates every `eval_freq` of its steps.

    To resume, a run only needs its train state, its experience and its number of steps. Each interval between
    evaluations begins with a new episode. The start of that episode depends on the seed and the number of steps.
    """
    task = load_online_task(config)
    device = resolve_device(config.device)
    seed_everything(config.seed)
    trainer = create_trainer(config, task.state_dim, task.action_dim, task.max_action)
    cut = config.max_episode_steps
    experience = Experience(config.env, config.max_timesteps, max_episode_steps=cut, units=task.units)
    run = Run(config, task, "online/td3", "torch", device, unit="step")
    history = restore(run, partial(load, trainer, experience=experience), device)
    if experience.size == config.max_timesteps and not run.step:
        raise InputError(f"{config.load_model} has {experience.size} environment steps: set max_timesteps to more")
    dataset = store(to_device(task.dataset, device), experience.transitions(), 0)
    with run:
        if run.is_due(run.step):
            run.evaluate(run.step, trainer.act)
        for start, end in experience.intervals(config, run.began):
            while experience.size < end and not run.stopping:
                first = trainer.total_it = experience.size
                steps = min(config.update_every, end - first)
                exploration = draw_exploration(steps, task.action_dim)
                explore = partial(trainer.explore, config.expl_noise)
                experience.play(explore, exploration, config.random_steps)
                dataset = store(dataset, experience.transitions(first), first)
                num_updates = steps if experience.size > config.random_steps else 0
                for _ in range(num_updates):
                    indices, noise = draw_noise(config, experience.size, task.action_dim, device)
                    history.append(trainer.update(take(dataset, indices), noise))
                run.advance(num_updates, steps)
            if experience.size < end:
                trainer.total_it = experience.size
                write = partial(save, trainer, experience=experience, history=history, began=start)
                run.save(experience.size, write)
            experience.cut()
            trainer.total_it = end
            run.log(end, mean_metrics(history))
            history.clear()
            run.save(end, partial(save, trainer, experience=experience))
            run.evaluate(end, trainer.act)
    experience.close()
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "online/td3")
