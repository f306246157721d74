"""RLPD in PyTorch: soft actor-critic online; half of each minibatch is from a dataset and half from its own steps.

Its twin is `corl_jax/finetune/rlpd.py`. After each step in the environment, ten critics with LayerNorm make
`critic_updates` gradient steps, and the policy and the temperature one.

Ball et al., Efficient Online Reinforcement Learning with Offline Data, 2023, https://arxiv.org/abs/2302.02948
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from shared.runs.start import cli

import numpy as np
import torch
from torch import Tensor, amin, argsort, clamp, concatenate, exp, nn, square, tanh
from torch.func import functional_call
from torch.nn.functional import layer_norm, softplus

from shared.data.online import OnlineExperience
from shared.data.rewards import ShiftedRewards
from shared.data.transitions import Batch, cut_actions
from shared.errors import InputError
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.torch_data import index_tensor, take, to_device
from shared.frameworks.torch_layers import Scalar
from shared.frameworks.torch_ring import Ring, room, take_either
from shared.frameworks.torch_side import mean_metrics, on_arrays, resolve_device, seed_everything
from shared.runs.fields import bounded, positive, unbounded, widths
from shared.runs.run import Run
from shared.runs.settings import FinetuneConfig
from shared.runs.task import Preparation, load_task, training_environment

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Learning rate of the policy
    actor_lr: float = positive(3e-4)
    # Learning rate of the critics
    critic_lr: float = positive(3e-4)
    # Learning rate of the entropy temperature
    temperature_lr: float = positive(3e-4)
    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Rate at which the target critics follow the critics, in each of their gradient steps
    tau: float = bounded(0.005, low=0, high=1)
    # Critics
    n_critics: int = bounded(10, low=1)
    # Critics whose smallest target value is used, chosen at random for each gradient step
    n_target_critics: int = bounded(2, low=1)
    # Whether the policy's entropy is part of the critics' target
    backup_entropy: bool = True
    # Entropy that the temperature is tuned towards; null: minus half a nat for each action dimension
    target_entropy: float | None = unbounded(None)
    # Transitions in a minibatch, on which the critics make one gradient step
    batch_size: int = bounded(256, low=2)
    # Gradient steps of the critics in an update, the update-to-data ratio
    critic_updates: int = bounded(20, low=1)
    # Updates on the dataset alone
    offline_iterations: int = bounded(0, low=0)
    # Number of first environment steps, which have uniform actions and are not followed by updates
    learning_starts: int = bounded(5_000, low=0)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, FinetuneConfig):
    """The settings of a whole run."""

    group: str = "RLPD-D4RL"
    name: str = "RLPD"
    # Dataset to learn from as well: mini/pendulum-replay, a D4RL id, minari:NAME, ogbench:NAME, or a file
    env: str = "mini/pendulum-replay"
    # Largest dataset accepted, in transitions, and the capacity for the environment's, which overwrite the oldest
    buffer_size: int = bounded(2_000_000, low=1)
    # Environment steps after the updates on the dataset alone, each with an update
    online_iterations: int = bounded(250_000, low=0)
    seed: int = bounded(42, low=0, high=2**32 - 1)
    # Widths of the hidden layers of policy and critics
    hidden_dims: tuple[int, ...] = widths(256, 256)
    # LayerNorm before the activation of the critics' hidden layers
    critic_ln: bool = True
    # Initial entropy temperature
    initial_temperature: float = positive(1.0)
    # Normalise states to mean 0 and standard deviation 1
    normalize: bool = False
    # Subtract 1 from AntMaze's rewards; others stay as they are
    normalize_reward: bool = True


# ---- networks ------------------------------------------------------------------------------------------------------


def linear(input_dim: int, output_dim: int) -> nn.Linear:
    """A layer with Glorot's uniform weight and a bias of 0."""
    layer = nn.Linear(input_dim, output_dim)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class Actor(nn.Module):
    """The policy: a normal distribution, squashed by tanh."""

    def __init__(self, state_dim: int, action_dim: int, max_action: float, hidden_dims: Sequence[int]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width in hidden_dims:
            layers += [linear(state_dim, width), nn.ReLU()]
            state_dim = width
        self.trunk = nn.Sequential(*layers)
        self.mean = linear(state_dim, action_dim)
        self.log_std = linear(state_dim, action_dim)
        self.action_dim, self.max_action = action_dim, max_action

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation (B, A) before tanh, for observations (B, S)."""
        hidden = self.trunk(observations)
        return self.mean(hidden), clamp(self.log_std(hidden), -20.0, 2.0)


def sample(actor: Actor, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions (B, A) for noise (B, A), and their log-probabilities (B,) in units of max_action."""
    mean, log_std = actor(observations)
    u = mean + noise * exp(log_std)
    log_density = -square(noise) / 2.0 - log_std - LOG_SQRT_2PI
    # log(1 - tanh(u)^2), which does not vanish where the tanh is 1
    log_slope = 2.0 * (math.log(2.0) - u - softplus(-2.0 * u))
    return actor.max_action * tanh(u), (log_density - log_slope).sum(axis=-1)


LOG_SQRT_2PI = math.log(math.sqrt(2.0 * math.pi))


class VectorizedLinear(nn.Module):
    """A linear layer for each of E critics, as one batched product; weights are (E, in, out)."""

    def __init__(self, input_dim: int, output_dim: int, n_critics: int) -> None:
        super().__init__()
        bound = math.sqrt(6.0 / (input_dim + output_dim))
        self.weight = nn.Parameter(torch.empty(n_critics, input_dim, output_dim).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(n_critics, 1, output_dim))

    def forward(self, inputs: Tensor) -> Tensor:
        """Maps (B, in), the same for all, or (E, B, in) to (E, B, out)."""
        return inputs @ self.weight + self.bias


class VectorizedLayerNorm(nn.Module):
    """LayerNorm with a scale and a bias for each of E critics."""

    def __init__(self, width: int, n_critics: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n_critics, 1, width))
        self.bias = nn.Parameter(torch.zeros(n_critics, 1, width))

    def forward(self, inputs: Tensor) -> Tensor:
        """Maps (E, B, H) to (E, B, H)."""
        return layer_norm(inputs, inputs.shape[-1:], eps=1e-6) * self.weight + self.bias


class Critic(nn.Module):
    """E critics Q(s, a) with weights of their own."""

    def __init__(
        self, state_dim: int, action_dim: int, hidden_dims: Sequence[int], layer_norm: bool, n_critics: int
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        input_dim = state_dim + action_dim
        for width in hidden_dims:
            layers += [VectorizedLinear(input_dim, width, n_critics)]
            if layer_norm:
                layers += [VectorizedLayerNorm(width, n_critics)]
            layers += [nn.ReLU()]
            input_dim = width
        self.net = nn.Sequential(*layers, VectorizedLinear(input_dim, 1, n_critics))

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """The values (E, B) of actions (B, A) in observations (B, S)."""
        return self.net(concatenate([observations, actions], axis=-1)).squeeze(-1)


def values_of(critic: Critic, members: Tensor, observations: Tensor, actions: Tensor) -> Tensor:
    """The values (m, B) of the critics with the numbers `members` (m,); no others are computed."""
    weights = {name: weight[members] for name, weight in critic.named_parameters()}
    return functional_call(critic, weights, (observations, actions))


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch, with U = critic_updates."""

    # Standard normal, (U, B, A): the policy's next actions in the target of each minibatch
    target: Tensor
    # Uniform in [0, 1), (U, E): the critics with the smallest numbers make the target
    subset: Tensor
    # Standard normal, (B, A): the policy's actions in its own loss
    actor: Tensor


def draw_noise(
    hp: Hyperparameters, dataset_size: int, action_dim: int, device: torch.device, online_size: int | None = None
) -> tuple[Tensor, Noise]:
    """An update's batch indices (U * B,), from NumPy's global generator, and its noise, from torch's.

    Online, every second row is the environment's, numbered from `dataset_size` on, so that each minibatch is half and
    half. The authors' code draws the noise in JAX, and no generator of PyTorch makes the same numbers.
    """
    indices = np.random.randint(0, dataset_size, size=hp.critic_updates * hp.batch_size)
    if online_size is not None:
        indices[1::2] = dataset_size + np.random.randint(0, online_size, size=len(indices) // 2)
    noise = Noise(
        target=torch.randn(hp.critic_updates, hp.batch_size, action_dim, device=device),
        subset=torch.rand(hp.critic_updates, hp.n_critics, device=device),
        actor=torch.randn(hp.batch_size, action_dim, device=device),
    )
    return index_tensor(indices, device), noise


class Exploration(NamedTuple):
    """The random numbers that a step in the environment draws."""

    # Uniform in [-1, 1), (1, A): the action before learning starts, in units of max_action
    uniform: Tensor
    # Standard normal, (1, A): the policy's noise in all later steps
    action: Tensor


def draw_exploration(hp: Hyperparameters, action_dim: int, device: torch.device) -> Exploration:
    """The draws of one step in the environment, from torch's generator."""
    uniform = torch.empty(1, action_dim, device=device).uniform_(-1.0, 1.0)
    return Exploration(uniform, torch.randn(1, action_dim, device=device))


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


def minibatches(hp: Hyperparameters, batch: Batch) -> list[Batch]:
    """A batch of U * B rows, split into U consecutive parts."""
    parts = (column.split(hp.batch_size) for column in batch)
    return [Batch(*columns) for columns in zip(*parts, strict=True)]


class RLPD:
    """All that an update reads and writes."""

    def __init__(self, hp: Hyperparameters, actor: Actor, critic: Critic, log_temperature: Scalar) -> None:
        self.hp = hp
        self.actor, self.critic, self.log_temperature = actor, critic, log_temperature
        self.critic_target = copy.deepcopy(critic)
        self.actor_optimizer = torch.optim.Adam(actor.parameters(), lr=hp.actor_lr)
        self.critic_optimizer = torch.optim.Adam(critic.parameters(), lr=hp.critic_lr)
        self.log_temperature_optimizer = torch.optim.Adam(log_temperature.parameters(), lr=hp.temperature_lr)
        self.total_it = 0

    def temperature(self) -> Tensor:
        """The entropy temperature: a constant in every loss except its own."""
        return exp(self.log_temperature().detach())

    @torch.no_grad()
    def td_target(self, batch: Batch, noise: Tensor, subset: Tensor) -> Tensor:
        """The regression target of all critics, (B,): the smallest value of the next action under a few of them.

        The same few are used for all rows. The noise (B, A) determines the policy's next actions.
        """
        hp, actor, critic = self.hp, self.actor, self.critic_target
        actions, log_prob = sample(actor, batch.next_observations, noise)
        members = argsort(subset)[: hp.n_target_critics]
        next_q = amin(values_of(critic, members, batch.next_observations, actions), axis=0)
        assert next_q.shape == log_prob.shape == batch.rewards.shape == batch.terminals.shape
        if hp.backup_entropy:
            next_q = next_q - self.temperature() * log_prob
        return batch.rewards + hp.discount * (1.0 - batch.terminals) * next_q

    def critic_loss(self, batch: Batch, noise: Tensor, subset: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The squared error of all critics to the same target, averaged over them."""
        critic = self.critic
        target = self.td_target(batch, noise, subset)
        q = critic(batch.observations, batch.actions)
        assert q.shape == (self.hp.n_critics, *target.shape)
        return square(q - target).mean(), {"q": q.mean()}

    def actor_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Maximizes the mean value of the policy's actions under all critics, and their entropy."""
        actor, critic = self.actor, self.critic
        actions, log_prob = sample(actor, batch.observations, noise)
        q = critic(batch.observations, actions).mean(axis=0)
        assert q.shape == log_prob.shape == batch.rewards.shape
        return (self.temperature() * log_prob - q).mean(), {"log_prob": log_prob.detach()}

    def alpha_loss(self, log_prob: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Raises the temperature while the policy's entropy is below its target."""
        hp, log_temperature = self.hp, self.log_temperature()
        target_entropy = -self.actor.action_dim / 2.0 if hp.target_entropy is None else hp.target_entropy
        return -exp(log_temperature) * (log_prob.mean() + target_entropy), {}

    def update(self, batch: Batch, noise: Noise) -> dict[str, Tensor]:
        """The critics' gradient steps, each followed by their targets; then one of the policy, and of the temperature.

        The policy and the temperature learn from the last minibatch, and the critics' metrics are from it, too.
        """
        hp = self.hp
        metrics: dict[str, Tensor] = {}
        for part, target, subset in zip(minibatches(hp, batch), noise.target, noise.subset, strict=True):
            critic_loss, aux = self.critic_loss(part, target, subset)
            gradient_step(critic_loss, self.critic_optimizer)
            soft_update(self.critic_target, self.critic, hp.tau)
            batch, metrics = part, {"critic_loss": critic_loss, "alpha": self.temperature(), **aux}
        actor_loss, aux = self.actor_loss(batch, noise.actor)
        gradient_step(actor_loss, self.actor_optimizer)
        alpha_loss, _ = self.alpha_loss(aux["log_prob"])
        gradient_step(alpha_loss, self.log_temperature_optimizer)
        self.total_it += 1
        metrics |= {"actor_loss": actor_loss, "entropy": -aux["log_prob"].mean(), "alpha_loss": alpha_loss}
        return {name: value.detach() for name, value in metrics.items()}

    @torch.no_grad()
    def explore(self, observations: Tensor, noise: Exploration) -> Tensor:
        """Actions (E, A) to learn from, for observations (E, S): uniform before learning starts, then the policy's."""
        hp, actor = self.hp, self.actor
        if self.total_it < hp.offline_iterations + hp.learning_starts:
            return actor.max_action * noise.uniform
        actions, _ = sample(actor, observations, noise.action)
        return actions

    def act(self, observations: np.ndarray) -> np.ndarray:
        """Calls `policy` with NumPy arrays."""
        return on_arrays(policy, self.actor, observations)

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint, by name."""
        learning = ("actor", "critic", "log_temperature")
        names = [*learning, "critic_target", *(f"{part}_optimizer" for part in learning)]
        return {name: getattr(self, name) for name in names}


def policy(actor: Actor, observations: Tensor) -> Tensor:
    """The policy's most likely actions (E, A) for observations (E, S)."""
    mean, _ = actor(observations)
    return actor.max_action * tanh(mean)


# ---- training ------------------------------------------------------------------------------------------------------


def create_trainer(config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> RLPD:
    """Fresh networks, drawn from torch's generator on the CPU: policy, critics."""
    actor = Actor(state_dim, action_dim, max_action, config.hidden_dims)
    critic = Critic(state_dim, action_dim, config.hidden_dims, config.critic_ln, config.n_critics)
    log_temperature = Scalar(math.log(config.initial_temperature))
    device = resolve_device(config.device)
    return RLPD(config, actor.to(device), critic.to(device), log_temperature.to(device))


def save(trainer: RLPD, path: Path, experience: OnlineExperience | None = None, **facts: Any) -> None:
    """Writes the new part of the experience, then a checkpoint beside it."""
    if experience is not None:
        experience.save(path.parent)
    save_checkpoint(path, "finetune/rlpd", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: RLPD, path: str) -> dict[str, Any]:
    """Loads a checkpoint; returns its contents."""
    content = load_checkpoint(path, "finetune/rlpd", trainer.parts())
    trainer.total_it = content["total_it"]
    return content


def train(config: TrainConfig) -> Run:
    """Trains on the data and in the environment, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used, or a setting contradicts another.
    """
    if config.n_target_critics > config.n_critics:
        raise InputError(f"n_target_critics is {config.n_target_critics}: set at most n_critics, {config.n_critics}")
    preparation = Preparation(rewards=ShiftedRewards().where(config.normalize_reward), normalise=config.normalize)
    task = load_task(config, preparation)
    device = resolve_device(config.device)
    experience = training_environment(config, task)
    seed_everything(config.seed)
    trainer = create_trainer(config, task.state_dim, task.action_dim, task.max_action)
    run = Run(config, task, "finetune/rlpd", "torch", device)
    history = restore(run, partial(load, trainer), device, experience.go_on_from)
    # The start of learning only depends on this run's own steps, even if it began with a checkpoint.
    trainer.total_it = run.step
    # The data's actions are clipped; the environment's steps are stored with the actions as they were taken.
    dataset = to_device(cut_actions(task.dataset, task.max_action), device)
    ring = Ring(dataset, room(config, 0), keeps_dataset=False)
    ring.push(experience.transitions())
    switch, size = config.offline_iterations, len(dataset.rewards)
    with run:
        if run.is_due(run.step):
            run.evaluate(run.step, trainer.act)
        for step in range(run.step + 1, config.max_timesteps + 1):
            if step > switch:
                observation = torch.as_tensor(experience.observation[None]).to(dataset.observations)
                action = trainer.explore(observation, draw_exploration(config, task.action_dim, device))
                experience.step(action[0].cpu().numpy())
                ring.push(experience.last())
            if switch < step <= switch + config.learning_starts:
                trainer.total_it += 1
            else:
                online_size = ring.size if step > switch else None
                indices, noise = draw_noise(config, size, task.action_dim, device, online_size)
                batch = take(dataset, indices) if step <= switch else take_either(dataset, ring.rows, indices)
                history.append(trainer.update(batch, noise))
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
    cli(train, TrainConfig, "finetune/rlpd")
