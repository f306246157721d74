"""SAC in PyTorch: an off-policy actor-critic that is rewarded for entropy. Its twin is `corl_jax/online/sac.py`.

It collects its own data: environment steps and updates alternate.

Haarnoja et al., Soft Actor-Critic Algorithms and Applications, 2018, https://arxiv.org/abs/1812.05905
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from shared.runs.start import cli

import numpy as np
import torch
from torch import Tensor, abs, argmin, clamp, concatenate, exp, minimum, nn, square, stack, tanh, where
from torch.nn.functional import softplus

from shared.data.experience import Experience
from shared.data.transitions import Batch
from shared.envs.spaces import Shape
from shared.errors import InputError
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, restore_generators, save_checkpoint
from shared.frameworks.torch_data import index_tensor, store, take, to_device
from shared.frameworks.torch_encoders import convolutions, cropped
from shared.frameworks.torch_layers import ImplicitQuantiles, Scalar
from shared.frameworks.torch_side import mean_metrics, on_arrays, resolve_device, seed_everything
from shared.runs.fields import bounded, choice, later, positive
from shared.runs.online import load_online_task
from shared.runs.run import Run
from shared.runs.settings import ImagesConfig, RunConfig

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Learning rate of the policy, of both critics and of the temperature
    learning_rate: float = positive(3e-4)
    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Rate at which the targets follow their networks
    tau: float = bounded(0.005, low=0, high=1)
    # Transitions in a batch
    batch_size: int = bounded(256, low=1)
    # The critics learn the return's mean (mean), its quantiles at fixed fractions (qr), or at any fraction (iqn)
    critic: str = later(choice("mean", "qr", "iqn"))
    # With qr and iqn: quantiles in an update of the critics
    n_quantiles: int = later(bounded(32, low=1))
    # With iqn: quantiles whose mean the policy learns to raise
    n_greedy_quantiles: int = later(bounded(32, low=1))
    # With iqn: cosines that encode a fraction
    embed_size: int = later(bounded(64, low=1))
    # Most pixels that an update shifts an image by, at random: the image is padded with its edges, then cropped. DrQ
    # uses 4 for images of 84 x 84
    crop_padding: int = later(bounded(0, low=0, high=64))


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, ImagesConfig, RunConfig):
    """The settings of a whole run."""

    group: str = "SAC-D4RL"
    name: str = "SAC"
    # Environment to learn and to be evaluated in: d4rl/hopper-v2, or any that is registered with Gymnasium
    env: str = "d4rl/hopper-v2"
    # Environment steps in all
    max_timesteps: int = bounded(1_000_000, low=1)
    # Environment steps between two evaluations, each of which begins a new episode
    eval_freq: int = bounded(5000, low=1)
    # Folder for a checkpoint and the experience at each evaluation; null: only the last, in the run's folder
    checkpoints_path: str | None = None
    # Checkpoint to start from, with its experience beside it
    load_model: str = ""
    # Seed of the weights, the batches, the noise and the start states
    seed: int = bounded(0, low=0, high=2**32 - 1)
    # Width of both hidden layers
    hidden_dim: int = bounded(256, low=1)
    # Environment steps of uniform actions before learning begins
    random_steps: int = bounded(5000, low=0)
    # Environment steps that are followed by the same number of updates
    update_every: int = bounded(50, low=1)


# ---- networks ------------------------------------------------------------------------------------------------------


def mlp(input_dim: int, hidden_dim: int, *outputs: int) -> nn.Sequential:
    """Two hidden layers with ReLU, and perhaps a linear layer."""
    return nn.Sequential(
        nn.Linear(input_dim, hidden_dim),
        nn.ReLU(),
        nn.Linear(hidden_dim, hidden_dim),
        nn.ReLU(),
        *(nn.Linear(hidden_dim, output_dim) for output_dim in outputs),
    )


class Actor(nn.Module):
    """The policy: a normal distribution, squashed by tanh."""

    def __init__(self, state_dim: Shape, action_dim: int, max_action: float, encoder: str, hidden_dim: int) -> None:
        super().__init__()
        layers, inputs = convolutions(encoder, state_dim)
        self.readers = nn.Sequential(*layers)
        self.net = mlp(inputs, hidden_dim, 2 * action_dim)
        self.action_dim, self.max_action = action_dim, max_action

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation (B, A) before tanh, for observations (B, S), or images."""
        mean, log_std = self.net(self.readers(observations)).chunk(2, axis=-1)
        return mean, clamp(log_std, -20.0, 2.0)


def sample(actor: Actor, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions (B, A) for noise (B, A), and their log-probabilities (B,) in units of max_action."""
    mean, log_std = actor(observations)
    u = mean + noise * exp(log_std)
    log_density = -square(noise) / 2.0 - log_std - LOG_SQRT_2PI
    # log(1 - tanh(u)^2), which does not vanish where the tanh is 1
    log_slope = 2.0 * (math.log(2.0) - u - softplus(-2.0 * u))
    return actor.max_action * tanh(u), (log_density - log_slope).sum(axis=-1)


LOG_SQRT_2PI = math.log(math.sqrt(2.0 * math.pi))


class Critic(nn.Module):
    """Z(s, a): the mean or quantiles of the return."""

    def __init__(self, state_dim: Shape, action_dim: int, encoder: str, hidden_dim: int, hp: Hyperparameters) -> None:
        super().__init__()
        layers, features = convolutions(encoder, state_dim)
        self.readers = nn.Sequential(*layers)
        input_dim = features + action_dim
        self.implicit, n_quantiles = hp.critic == "iqn", hp.n_quantiles if hp.critic == "qr" else 1
        self.net: nn.Module
        if self.implicit:
            hidden = mlp(input_dim, hidden_dim)
            self.net = ImplicitQuantiles(hidden, hidden_dim, 1, hp.embed_size, hp.n_greedy_quantiles)
        else:
            self.net = mlp(input_dim, hidden_dim, n_quantiles)

    def forward(self, observations: Tensor, actions: Tensor, fractions: Tensor | None = None) -> Tensor:
        """The quantiles (B, K) of actions (B, A) in observations (B, S); a mean counts as one.

        IQN's are at the fractions (B, K), or, without these, at evenly spaced ones.
        """
        inputs = concatenate([self.readers(observations), actions], axis=-1)
        return self.net(inputs, fractions).squeeze(1) if self.implicit else self.net(inputs)


def quantiles(
    critics: tuple[Critic, Critic], observations: Tensor, actions: Tensor, fractions: Tensor | None = None
) -> Tensor:
    """The quantiles (2, B, K) of both critics; IQN's are at fractions (2, B, K) or at evenly spaced ones."""
    given = (None, None) if fractions is None else fractions
    return stack([critic(observations, actions, each) for critic, each in zip(critics, given, strict=True)])


def smaller(q: Tensor) -> Tensor:
    """Selects, in each row of the quantiles (2, B, K), the critic with the smaller mean, (B, K)."""
    critic = argmin(q.mean(axis=-1), axis=0)
    return where(critic[:, None] == 0, q[0], q[1])


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    # Standard normal, (B, A): the policy's next actions in the target
    target: Tensor
    # Standard normal, (B, A): the policy's actions in the current states
    actor: Tensor
    # With crop_padding: the row and column at which each padded image is cropped, (2, B, 2); observations first, then
    # next ones
    crops: Tensor | None = None
    # With iqn, fractions uniform in [0, 1), (2, B, K): for the value of the next action under the targets
    target_fractions: Tensor | None = None
    # The same for the value of the data's action
    error_fractions: Tensor | None = None


def draw_noise(hp: Hyperparameters, size: int, action_dim: int, device: torch.device) -> tuple[Tensor, Noise]:
    """An update's batch indices (B,) below `size`, from NumPy's global generator, and its noise, from torch's."""
    indices = index_tensor(np.random.randint(0, size, size=hp.batch_size), device)
    crops = None
    if hp.crop_padding:
        crops = torch.randint(2 * hp.crop_padding + 1, (2, hp.batch_size, 2), device=device)
    target = torch.randn(hp.batch_size, action_dim, device=device)
    shape, passes = (2, hp.batch_size, hp.n_quantiles), 2 if hp.critic == "iqn" else 0
    # The critics learn before the policy, and their fractions are drawn before its noise.
    drawn = [torch.rand(shape, device=device) for _ in range(passes)]
    actor = torch.randn(hp.batch_size, action_dim, device=device)
    return indices, Noise(target, actor, crops, *drawn)


class Exploration(NamedTuple):
    """The random numbers that n environment steps draw."""

    # Uniform in [-1, 1), (n, A): the actions of the first `random_steps` steps, in units of max_action
    uniform: np.ndarray
    # Standard normal, (n, A): the policy's noise in all later steps
    normal: np.ndarray


def draw_exploration(steps: int, action_dim: int) -> Exploration:
    """The draws of some environment steps, from NumPy's global generator."""
    uniform = np.random.uniform(-1.0, 1.0, size=(steps, action_dim))
    return Exploration(uniform, np.random.standard_normal(size=(steps, action_dim)))


# ---- losses and update ---------------------------------------------------------------------------------------------


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


def huber(error: Tensor) -> Tensor:
    """Huber's loss: half the square of errors below 1, and the absolute error minus a half for all others."""
    return where(abs(error) < 1.0, 0.5 * square(error), abs(error) - 0.5)


def fractions(q: Tensor, drawn: Tensor | None) -> Tensor:
    """The fractions of the quantiles q (2, B, K): the drawn ones, or with qr the middles of equal parts (K,)."""
    if drawn is not None:
        return drawn
    bounds = torch.arange(q.shape[-1] + 1, dtype=q.dtype, device=q.device) / q.shape[-1]
    return (bounds[1:] + bounds[:-1]) / 2.0


def quantile_huber(q: Tensor, fractions: Tensor, target: Tensor) -> Tensor:
    """Huber's loss (2, B) of quantiles (2, B, K) against the target's (B, K'): summed over K, averaged over K'.

    Targets below a quantile have the weight 1 minus its fraction, and all others its fraction.
    """
    error = target[:, :, None] - q[:, :, None]
    loss = abs(fractions[..., None, :] - (error < 0.0).to(error.dtype)) * huber(error)
    return loss.sum(axis=-1).mean(axis=-1)


class SAC:
    """All that an update reads and writes."""

    def __init__(self, hp: Hyperparameters, actor: Actor, critic_1: Critic, critic_2: Critic) -> None:
        self.hp = hp
        self.actor, self.critic_1, self.critic_2 = actor, critic_1, critic_2
        self.critic_1_target, self.critic_2_target = copy.deepcopy((critic_1, critic_2))
        self.log_temperature = Scalar(0.0).to(next(actor.parameters()).device)
        self.actor_optimizer = torch.optim.Adam(actor.parameters(), lr=hp.learning_rate)
        self.critic_1_optimizer = torch.optim.Adam(critic_1.parameters(), lr=hp.learning_rate)
        self.critic_2_optimizer = torch.optim.Adam(critic_2.parameters(), lr=hp.learning_rate)
        self.log_temperature_optimizer = torch.optim.Adam(self.log_temperature.parameters(), lr=hp.learning_rate)
        # The number of the last update: the number of the environment step that it followed
        self.total_it = 0

    def temperature(self) -> Tensor:
        """The entropy temperature: a constant in every loss except its own."""
        return exp(self.log_temperature().detach())

    @torch.no_grad()
    def td_target(self, batch: Batch, noise: Noise) -> Tensor:
        """The target of both critics, (B, K): the smaller target quantiles of a sampled action, plus entropy."""
        hp, actor, critics = self.hp, self.actor, (self.critic_1_target, self.critic_2_target)
        actions, log_prob = sample(actor, batch.next_observations, noise.target)
        next_q = smaller(quantiles(critics, batch.next_observations, actions, noise.target_fractions))
        assert next_q.shape[:1] == log_prob.shape == batch.rewards.shape == batch.terminals.shape
        soft_value = next_q - self.temperature() * log_prob[:, None]
        return batch.rewards[:, None] + hp.discount * (1.0 - batch.terminals[:, None]) * soft_value

    def critic_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """The errors of both critics to the same target: squared, or Huber's of quantiles."""
        critics = self.critic_1, self.critic_2
        target = self.td_target(batch, noise)
        q = quantiles(critics, batch.observations, batch.actions, noise.error_fractions)
        assert q.shape[1] == len(target)
        if self.hp.critic == "mean":
            loss = square(q - target).mean(axis=(1, 2)).sum()
        else:
            loss = quantile_huber(q, fractions(q, noise.error_fractions), target).mean(axis=1).sum()
        return loss, {"q": q[0].mean()}

    def actor_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """Maximizes the mean value of the policy's actions under the smaller critic, and their entropy."""
        actor, critics = self.actor, (self.critic_1, self.critic_2)
        actions, log_prob = sample(actor, batch.observations, noise.actor)
        q = minimum(*quantiles(critics, batch.observations, actions).mean(axis=-1))
        assert q.shape == log_prob.shape == batch.rewards.shape
        return (self.temperature() * log_prob - q).mean(), {"log_prob": log_prob.detach()}

    def alpha_loss(self, log_prob: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Raises the temperature while the policy's entropy is below -A, minus one nat for each action dimension."""
        log_temperature = self.log_temperature()
        return -(log_temperature * (log_prob - self.actor.action_dim)).mean(), {}

    def update(self, batch: Batch, noise: Noise) -> dict[str, Tensor]:
        """One gradient step: the critics; the actor, on the new critics; the temperature; the targets."""
        hp = self.hp
        self.total_it += 1
        batch = cropped(batch, noise.crops, hp.crop_padding)
        alpha = self.temperature()
        critic_loss, aux = self.critic_loss(batch, noise)
        metrics = {"critic_loss": critic_loss, "alpha": alpha, **aux}
        gradient_step(critic_loss, self.critic_1_optimizer, self.critic_2_optimizer)
        actor_loss, aux = self.actor_loss(batch, noise)
        metrics |= {"actor_loss": actor_loss, "entropy": -aux["log_prob"].mean()}
        gradient_step(actor_loss, self.actor_optimizer)
        alpha_loss, _ = self.alpha_loss(aux["log_prob"])
        metrics["alpha_loss"] = alpha_loss
        gradient_step(alpha_loss, self.log_temperature_optimizer)
        soft_update(self.critic_1_target, self.critic_1, hp.tau)
        soft_update(self.critic_2_target, self.critic_2, hp.tau)
        return {name: value.detach() for name, value in metrics.items()}

    def act(self, observations: np.ndarray) -> np.ndarray:
        """Calls `policy` with NumPy arrays."""
        return on_arrays(policy, self.actor, observations)

    @torch.no_grad()
    def explore(self, observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """The policy's actions (E, A) for observations (E, S) and standard normal noise (E, A)."""
        weight = next(self.actor.parameters())
        inputs = (torch.as_tensor(x, dtype=weight.dtype, device=weight.device) for x in (observations, noise))
        actions, _ = sample(self.actor, *inputs)
        return actions.cpu().numpy()

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint, by name."""
        return {
            "actor": self.actor,
            "critic_1": self.critic_1,
            "critic_2": self.critic_2,
            "critic_1_target": self.critic_1_target,
            "critic_2_target": self.critic_2_target,
            "log_temperature": self.log_temperature,
            "actor_optimizer": self.actor_optimizer,
            "critic_1_optimizer": self.critic_1_optimizer,
            "critic_2_optimizer": self.critic_2_optimizer,
            "log_temperature_optimizer": self.log_temperature_optimizer,
        }


def policy(actor: Actor, observations: Tensor) -> Tensor:
    """The policy's most likely actions (E, A) for observations (E, S)."""
    mean, _ = actor(observations)
    return actor.max_action * tanh(mean)


# ---- training ------------------------------------------------------------------------------------------------------


def create_trainer(config: TrainConfig, state_dim: Shape, action_dim: int, max_action: float) -> SAC:
    """Fresh networks, drawn from torch's generator on the CPU in this order: actor, critic 1, critic 2."""
    sizes = config.encoder, config.hidden_dim
    actor = Actor(state_dim, action_dim, max_action, *sizes)
    critic_1 = Critic(state_dim, action_dim, *sizes, config)
    critic_2 = Critic(state_dim, action_dim, *sizes, config)
    device = resolve_device(config.device)
    return SAC(config, actor.to(device), critic_1.to(device), critic_2.to(device))


def save(trainer: SAC, path: Path, experience: Experience | None = None, **facts: Any) -> None:
    """Writes the new part of the experience, then a checkpoint beside it."""
    if experience is not None:
        experience.save(path.parent)
    save_checkpoint(path, "sac", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: SAC, path: str, experience: Experience | None = None) -> dict[str, Any]:
    """Loads a checkpoint and its experience, and restores the generators' states; returns its contents."""
    content = load_checkpoint(path, "sac", trainer.parts())
    trainer.total_it = content["total_it"]
    if experience is not None:
        experience.load(Path(path).parent, trainer.total_it)
    restore_generators(content["generators"])
    return content


def load_policy(config: TrainConfig, state_dim: Shape, action_dim: int, max_action: float) -> Callable:
    """The exploring policy of the checkpoint `load_model`, or a fresh one: from observations and noise to actions."""
    seed_everything(config.seed)
    trainer = create_trainer(config, state_dim, action_dim, max_action)
    if config.load_model:
        load(trainer, config.load_model)
    return trainer.explore


def train(config: TrainConfig) -> Run:
    """Trains, evaluates every `eval_freq` environment steps and fills the run's folder.

    To resume, a run only needs its train state, its experience and its number of steps. Each interval between
    evaluations begins with a new episode. The start of that episode depends on the seed and the number of steps.

    Raises:
        InputError: the environment or the checkpoint cannot be used.
    """
    task = load_online_task(config)
    device = resolve_device(config.device)
    seed_everything(config.seed)
    trainer = create_trainer(config, task.shape, task.action_dim, task.max_action)
    cut = config.max_episode_steps
    experience = Experience(config.env, config.max_timesteps, config.frame_stack, cut, task.units)
    run = Run(config, task, "sac", "torch", device, unit="step")
    history = restore(run, partial(load, trainer, experience=experience), device)
    if experience.size == config.max_timesteps and not run.step:
        raise InputError(f"{config.load_model} has {experience.size} environment steps: set max_timesteps to more")
    dataset = store(to_device(task.dataset, device), experience.transitions(), 0)
    with run:
        if run.is_due(run.step):
            run.evaluate(run.step, trainer.act)
        for start, end in experience.intervals(config, run.began):
            while experience.size < end and not run.stopping:
                first = experience.size
                steps = min(config.update_every, end - first)
                exploration = draw_exploration(steps, task.action_dim)
                experience.play(trainer.explore, exploration, config.random_steps)
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
    cli(train, TrainConfig, "sac")
