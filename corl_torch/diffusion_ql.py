"""Diffusion-QL in PyTorch: a diffusion model imitates the data's actions, and its samples maximize the value.

Its twin is `corl_jax/diffusion_ql.py`.

Wang et al., Diffusion Policies as an Expressive Policy Class for Offline Reinforcement Learning, 2023,
https://arxiv.org/abs/2208.06193
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
from torch import (
    Tensor,
    amax,
    amin,
    argmax,
    clamp,
    concatenate,
    cos,
    exp,
    flip,
    full_like,
    nn,
    sin,
    square,
    stack,
    tile,
    where,
)

from shared.data.rewards import StandardRewards
from shared.data.transitions import Batch
from shared.envs.evaluation import SampledPolicy
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.torch_data import take, to_device
from shared.frameworks.torch_layers import pick
from shared.frameworks.torch_side import mean_metrics, on_arrays, resolve_device, seed_everything
from shared.runs.fields import bounded, choice, positive, widths
from shared.runs.run import Run
from shared.runs.settings import EpochsConfig, TransitionsConfig
from shared.runs.task import Preparation, load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Initial learning rate of the policy
    actor_lr: float = positive(3e-4)
    # Initial learning rate of the critics
    critic_lr: float = positive(3e-4)
    # How both learning rates fall: by a cosine to 0 at max_timesteps; by one that moves an epoch with each evaluation,
    # which is the authors' and hardly falls; or not
    opt_decay_schedule: str = choice("cosine", "by_evaluation", "none")
    # Updates in all, over which the learning rates fall
    max_timesteps: int = bounded(2_000_000, low=1)
    # Updates between two evaluations
    eval_freq: int = bounded(50_000, low=1)
    # Updates in an epoch, the unit of num_epochs
    num_updates_on_epoch: int = bounded(1000, low=1)
    # Largest norm of a network's gradient, which is clipped to it; null: no clipping
    clip_grad: float | None = positive(5.0)
    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Rate at which the target critics follow the critics
    tau: float = bounded(0.005, low=0, high=1)
    # Weight of the old moving average of the policy each time it moves; the target's actions come from this average
    ema_decay: float = bounded(0.995, low=0, high=1)
    # Updates between two moves of the average
    ema_period: int = bounded(5, low=1)
    # Updates before its first move. In the authors' code these are 1000, in which it stays the random initial policy
    ema_start: int = bounded(0, low=0)
    # Weight of the value in the policy's loss
    eta: float = bounded(1.0, low=0)
    # Steps in which the policy turns noise into an action
    diffusion_steps: int = bounded(5, low=1)
    # How the variances of the noise in these steps rise
    beta_schedule: str = choice("vp", "linear", "cosine")
    # Actions sampled in each next state, of which the target takes the best one
    n_target_actions: int = bounded(1, low=1)
    # Actions sampled in each state when acting, of which the policy takes one by its value
    n_action_samples: int = bounded(50, low=1)
    # Temperature of the softmax over their values; 0 takes the best one
    selection_temperature: float = bounded(1.0, low=0)
    # Transitions in a batch
    batch_size: int = bounded(256, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, EpochsConfig, TransitionsConfig):
    """The settings of a whole run."""

    group: str = "Diffusion-QL-D4RL"
    name: str = "Diffusion-QL"
    # Dataset: mini/pendulum-replay, a D4RL id, minari:NAME, ogbench:NAME, or a file
    env: str = "mini/pendulum-replay"
    # Widths of the hidden layers of the policy's noise network
    actor_hidden_dims: tuple[int, ...] = widths(256, 256, 256)
    # Widths of the critics' hidden layers
    critic_hidden_dims: tuple[int, ...] = widths(256, 256, 256)
    # Normalise states to mean 0 and standard deviation 1
    normalize: bool = False
    # Scale rewards to mean 0 and standard deviation 1
    normalize_reward: bool = False


# ---- diffusion -----------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """The factors in one step of the reverse chain."""

    # Shares of the action and of noise in a noised action
    signal: float
    noise: float
    # Shares of the estimated action and of the noised one in the mean of the next one, which is noised less
    of_action: float
    of_noised: float
    # Standard deviation around that mean; 0 at the last step
    std: float


def variances(schedule: str, n: int) -> list[float]:
    """The variances of the noise that n steps add to an action."""
    if schedule == "linear":
        return np.linspace(1e-4, 0.02, n).tolist()
    if schedule == "cosine":
        left = np.cos((np.linspace(0.0, 1.0, n + 1) + 0.008) / 1.008 * np.pi / 2.0) ** 2
        return np.minimum(1.0 - left[1:] / left[:-1], 0.999).tolist()
    # A rate that rises from 0.1 to 10, over a time of 1: the variance-preserving process of Song et al., 2021,
    # https://arxiv.org/abs/2011.13456
    rates = 0.1 + (10.0 - 0.1) * (np.arange(n) + 0.5) / n
    return (1.0 - np.exp(-rates / n)).tolist()


def diffusion(schedule: str, n: int) -> tuple[Step, ...]:
    """The n steps of the reverse chain by their number: it begins with the last one, and ends with step 0.

    Ho et al., Denoising Diffusion Probabilistic Models, 2020, https://arxiv.org/abs/2006.11239
    """
    steps: list[Step] = []
    action, noise = 1.0, 0.0  # their shares in the variance, before a step adds noise
    for beta in variances(schedule, n):
        action_after, noise_after = (1.0 - beta) * action, (1.0 - beta) * noise + beta
        step = Step(
            signal=math.sqrt(action_after),
            noise=math.sqrt(noise_after),
            of_action=beta * math.sqrt(action) / noise_after,
            of_noised=noise * math.sqrt(1.0 - beta) / noise_after,
            std=math.sqrt(beta * noise / noise_after),
        )
        steps.append(step)
        action, noise = action_after, noise_after
    return tuple(steps)


# ---- networks ------------------------------------------------------------------------------------------------------

# Size of the encoding of a step's number
TIME_DIM = 16


def mlp(input_dim: int, hidden_dims: Sequence[int], output_dim: int) -> nn.Sequential:
    """Hidden layers with Mish, then a linear layer."""
    dims = [input_dim, *hidden_dims]
    hidden = [layer for a, b in pairwise(dims) for layer in (nn.Linear(a, b), nn.Mish())]
    return nn.Sequential(*hidden, nn.Linear(dims[-1], output_dim))


def encoding(number: Tensor) -> Tensor:
    """Sines, then cosines (..., TIME_DIM) of steps' numbers (...), with frequencies from 1 to 1/10000."""
    half = TIME_DIM // 2
    frequencies = exp(torch.arange(0.0, half, device=number.device) * (-math.log(10000.0) / (half - 1)))
    angles = number[..., None] * frequencies
    return concatenate([sin(angles), cos(angles)], axis=-1)


class Actor(nn.Module):
    """The policy's noise network, which finds the noise in a noised action."""

    def __init__(
        self, state_dim: int, action_dim: int, max_action: float, hidden_dims: Sequence[int], steps: Sequence[Step]
    ) -> None:
        super().__init__()
        self.time = mlp(TIME_DIM, (2 * TIME_DIM,), TIME_DIM)
        self.net = mlp(action_dim + TIME_DIM + state_dim, hidden_dims, action_dim)
        self.action_dim, self.max_action, self.steps = action_dim, max_action, steps
        self.register_buffer("shares", torch.tensor([step[:2] for step in steps]), persistent=False)

    def forward(self, observations: Tensor, noised: Tensor, number: Tensor) -> Tensor:
        """The noise (..., A) in actions (..., A) before steps with these numbers (...), for observations (..., S)."""
        return self.net(concatenate([noised, self.time(encoding(number)), observations], axis=-1))


class Critic(nn.Module):
    """Both critics Q(s, a), with separate weights."""

    def __init__(self, state_dim: int, action_dim: int, hidden_dims: Sequence[int]) -> None:
        super().__init__()
        self.q1 = mlp(state_dim + action_dim, hidden_dims, 1)
        self.q2 = mlp(state_dim + action_dim, hidden_dims, 1)

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """The values (2, ...) of actions (..., A) in observations (..., S)."""
        inputs = concatenate([observations, actions], axis=-1)
        return stack([self.q1(inputs), self.q2(inputs)]).squeeze(-1)


def sample(actor: Actor, observations: Tensor, noise: Tensor) -> Tensor:
    """Actions (..., A) for observations (..., S) and noise (..., T, A): the reverse chain, for all rows together.

    Each step draws from a normal distribution, at first the standard one, and finds the next. All have a gradient. The
    last mean is the estimated action itself, which is within its bounds.
    """
    max_action = actor.max_action
    mean, std = full_like(noise[..., 0, :], 0.0), 1.0
    for number, step in reversed([*enumerate(actor.steps)]):
        noised = mean + std * noise[..., number, :]
        found = actor(observations, noised, full_like(noised[..., 0], number))
        action = clamp((noised - step.noise * found) / step.signal, -max_action, max_action)
        mean, std = step.of_action * action + step.of_noised * noised, step.std
    return mean


def repeat(observations: Tensor, n: int) -> Tensor:
    """The observations (B, S), each repeated n times: (B, n, S)."""
    return tile(observations[:, None], (1, n, 1))


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch; all but two are standard normal."""

    # (B, n, T, A): the chains to the next actions
    target: Tensor
    # Uniform in 0, ..., T - 1, (B,): the step before which the data's actions are noised
    number: Tensor
    # (B, A): the noise in them
    added: Tensor
    # (B, T, A): the chains to the policy's actions
    actor: Tensor
    # Uniform in [-0.5, 0.5), (): the policy learns from the first critic if it is positive, else from the second
    coin: Tensor


def draw_chain(steps: int, shape: Sequence[int], device: torch.device) -> Tensor:
    """The noise (R, T, A) of chains to actions (R, A): a row for each step, drawn from the last step to step 0.

    The authors draw once more, after step 0, and do not use it.
    """
    drawn = [torch.randn(shape, device=device) for _ in range(steps + 1)]
    return stack(drawn[:steps][::-1], axis=-2)


def draw_noise(hp: Hyperparameters, dataset_size: int, action_dim: int, device: torch.device) -> tuple[Tensor, Noise]:
    """An update's batch indices (B,) and its noise, in the authors' order; NumPy's generator draws the last number."""
    steps, size = hp.diffusion_steps, hp.batch_size
    indices = torch.randint(0, dataset_size, (size,), device=device)
    target = draw_chain(steps, (size * hp.n_target_actions, action_dim), device)
    noise = Noise(
        target=target.reshape(size, hp.n_target_actions, steps, action_dim),
        number=torch.randint(0, steps, (size,), device=device),
        added=torch.randn((size, action_dim), device=device),
        actor=draw_chain(steps, (size, action_dim), device),
        # Shifted by 0.5, because single precision keeps a sign, but not every number above 0.5.
        coin=torch.tensor(np.random.uniform() - 0.5, device=device),
    )
    return indices, noise


def draw_acting_noise(generator: np.random.Generator, hp: Hyperparameters, action_dim: int) -> np.ndarray:
    """The policy's draws for one step of an episode, (n, T A + 1): each action's chain, and Gumbel noise."""
    chains = generator.standard_normal((hp.n_action_samples, hp.diffusion_steps * action_dim))
    gumbel = generator.gumbel(size=(hp.n_action_samples, 1))
    return np.concatenate([chains, hp.selection_temperature * gumbel], axis=-1)


# ---- losses and update ---------------------------------------------------------------------------------------------


def learning_rate(hp: Hyperparameters, initial: float, updates: int) -> float:
    """The learning rate after so many updates: a cosine from the initial one to 0, or what the settings say."""
    if hp.opt_decay_schedule == "none":
        return initial
    if hp.opt_decay_schedule == "by_evaluation":
        updates = updates // hp.eval_freq * hp.num_updates_on_epoch
    return initial * (1.0 + math.cos(math.pi * updates / hp.max_timesteps)) / 2.0


def gradient_step(
    loss: Tensor, network: nn.Module, optimizer: torch.optim.Optimizer, lr: float, clip_grad: float | None
) -> None:
    """One step of the optimiser with this rate down the network's gradient of the loss, clipped to a norm."""
    optimizer.zero_grad()
    loss.backward()
    if clip_grad is not None:
        nn.utils.clip_grad_norm_(network.parameters(), clip_grad)
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()


def soft_update(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Polyak averaging: the target moves a step of size tau towards the source, in place."""
    for old, new in zip(target.parameters(), source.parameters(), strict=True):
        old.data.copy_((1.0 - tau) * old.data + tau * new.data)


class DiffusionQL:
    """All that an update reads and writes."""

    def __init__(self, hp: Hyperparameters, actor: Actor, critic: Critic) -> None:
        self.hp = hp
        self.actor, self.critic = actor, critic
        self.actor_target, self.critic_target = copy.deepcopy(actor), copy.deepcopy(critic)
        self.actor_optimizer = torch.optim.Adam(actor.parameters())
        self.critic_optimizer = torch.optim.Adam(critic.parameters())
        self.total_it = 0

    @torch.no_grad()
    def td_target(self, batch: Batch, noise: Noise) -> Tensor:
        """The regression target of both critics, (B,): the smaller of their best values of the average's actions."""
        hp, actor, critic = self.hp, self.actor_target, self.critic_target
        observations = repeat(batch.next_observations, hp.n_target_actions)
        values = critic(observations, sample(actor, observations, noise.target))
        next_q = amin(amax(values, axis=2), axis=0)
        assert next_q.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + (1.0 - batch.terminals) * hp.discount * next_q

    def critic_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """The squared errors of both critics to the same target, added up over the critics."""
        critic = self.critic
        target = self.td_target(batch, noise)
        q = critic(batch.observations, batch.actions)
        assert q.shape == (2, *target.shape)
        return square(q - target).mean(axis=1).sum(), {}

    def bc_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """Behaviour cloning: the squared error of the noise found in the data's noised actions."""
        actor = self.actor
        shares = actor.shares[noise.number]
        noised = shares[:, :1] * batch.actions + shares[:, 1:] * noise.added
        found = actor(batch.observations, noised, noise.number)
        assert found.shape == noise.added.shape == batch.actions.shape
        return square(found - noise.added).mean(), {}

    def q_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """The value of the policy's actions by one critic, on the scale of the other one's values."""
        actor = self.actor
        values = self.critic(batch.observations, sample(actor, batch.observations, noise.actor))
        q, other = where(noise.coin > 0.0, values, flip(values, (0,)))
        assert q.shape == other.shape == batch.rewards.shape
        return -q.mean() / abs(other).mean().detach(), {}

    def actor_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """Behaviour cloning, and the value with its weight."""
        bc_loss, _ = self.bc_loss(batch, noise)
        q_loss, _ = self.q_loss(batch, noise)
        return bc_loss + self.hp.eta * q_loss, {"bc_loss": bc_loss.detach(), "q_loss": q_loss.detach()}

    def update(self, batch: Batch, noise: Noise) -> dict[str, Tensor]:
        """One gradient step: the critics; the policy, on the new critics; the average if it is due, and the targets."""
        hp, updates = self.hp, self.total_it
        critic_loss, _ = self.critic_loss(batch, noise)
        critic_lr = learning_rate(hp, hp.critic_lr, updates)
        gradient_step(critic_loss, self.critic, self.critic_optimizer, critic_lr, hp.clip_grad)
        actor_loss, aux = self.actor_loss(batch, noise)
        actor_lr = learning_rate(hp, hp.actor_lr, updates)
        gradient_step(actor_loss, self.actor, self.actor_optimizer, actor_lr, hp.clip_grad)
        if updates >= hp.ema_start and updates % hp.ema_period == 0:
            soft_update(self.actor_target, self.actor, 1.0 - hp.ema_decay)
        soft_update(self.critic_target, self.critic, hp.tau)
        self.total_it += 1
        return {"critic_loss": critic_loss.detach(), "actor_loss": actor_loss.detach()} | aux

    @property
    def acting(self) -> nn.ModuleDict:
        """The networks that the policy needs: the policy itself, not its average, but the target critics."""
        return nn.ModuleDict({"actor": self.actor, "critic": self.critic_target})

    def act(self, observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Calls `policy` with NumPy arrays."""
        return on_arrays(policy, self.acting, observations, noise)

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint, by name."""
        learning = ("actor", "critic")
        names = [*learning, "actor_target", "critic_target", *(f"{part}_optimizer" for part in learning)]
        return {name: getattr(self, name) for name in names}


def policy(acting: nn.ModuleDict, observations: Tensor, noise: Tensor) -> Tensor:
    """The policy's actions (E, A) for observations (E, S) and noise (E, n, T A + 1).

    One of n samples is drawn with the smaller values as logits, as the argmax of value plus Gumbel noise.
    """
    actor, observations = acting["actor"], repeat(observations, noise.shape[1])
    chains = noise[..., :-1].reshape(*noise.shape[:2], -1, actor.action_dim)
    actions = sample(actor, observations, chains)
    values = amin(acting["critic"](observations, actions), axis=0)
    return pick(actions, argmax(values + noise[..., -1], axis=1))


# ---- training ------------------------------------------------------------------------------------------------------


def create_trainer(config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> DiffusionQL:
    """Fresh networks, drawn from torch's generator on the CPU: policy, critics."""
    steps = diffusion(config.beta_schedule, config.diffusion_steps)
    actor = Actor(state_dim, action_dim, max_action, config.actor_hidden_dims, steps)
    critic = Critic(state_dim, action_dim, config.critic_hidden_dims)
    device = resolve_device(config.device)
    return DiffusionQL(config, actor.to(device), critic.to(device))


def save(trainer: DiffusionQL, path: Path, **facts: Any) -> None:
    """Writes a checkpoint."""
    save_checkpoint(path, "diffusion_ql", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: DiffusionQL, path: str) -> dict[str, Any]:
    """Loads one of our checkpoints; returns its contents."""
    content = load_checkpoint(path, "diffusion_ql", trainer.parts())
    trainer.total_it = content["total_it"]
    return content


def train(config: TrainConfig) -> Run:
    """Trains, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used.
    """
    preparation = Preparation(rewards=StandardRewards().where(config.normalize_reward), normalise=config.normalize)
    task = load_task(config, preparation)
    device = resolve_device(config.device)
    seed_everything(config.seed)
    trainer = create_trainer(config, task.state_dim, task.action_dim, task.max_action)
    run = Run(config, task, "diffusion_ql", "torch", device)
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
    cli(train, TrainConfig, "diffusion_ql")
