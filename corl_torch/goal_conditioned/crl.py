"""CRL in PyTorch: critics that tell the states that follow an action from others, and a policy that follows them.

Its twin is `corl_jax/goal_conditioned/crl.py`.

Eysenbach et al., Contrastive Learning as Goal-Conditioned Reinforcement Learning, 2022,
https://arxiv.org/abs/2206.07568, in the form of OGBench, https://arxiv.org/abs/2410.20092
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from shared.runs.start import cli

import numpy as np
import torch
from torch import (
    Tensor,
    amin,
    broadcast_to,
    clamp,
    concatenate,
    einsum,
    exp,
    eye,
    log,
    logaddexp,
    nn,
    square,
    stack,
    zeros_like,
)

from shared.data.goals import GoalBatch
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.torch_data import index_tensor, to_device
from shared.frameworks.torch_goals import draw_goals, take_goals
from shared.frameworks.torch_side import mean_metrics, on_arrays, resolve_device, seed_everything
from shared.runs.fields import bounded, choice, positive, widths
from shared.runs.run import Run
from shared.runs.settings import GoalConfig, GoalSettings
from shared.runs.task import Extract, Preparation, load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters(GoalSettings):
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Learning rate of all networks
    learning_rate: float = positive(3e-4)
    # Value goals are the critics' positive examples: later states, nearer ones more often
    value_p_curgoal: float = bounded(0.0, low=0, high=1)
    value_p_trajgoal: float = bounded(1.0, low=0, high=1)
    value_p_randomgoal: float = bounded(0.0, low=0, high=1)
    gc_negative: bool = False
    # The policy's loss: ddpgbc maximizes the critics and clones the data's actions; awr clones them with weights
    actor_loss: str = choice("ddpgbc", "awr")
    # Weight of cloning for ddpgbc; inverse temperature for awr
    alpha: float = bounded(0.1, low=0)
    # Use a standard deviation of 1 for the policy's actions instead of a learnt one
    const_std: bool = True
    # Transitions in a batch
    batch_size: int = bounded(1024, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, GoalConfig):
    """The settings of a whole run."""

    group: str = "CRL-OGBench"
    name: str = "CRL"
    # Widths of the policy's hidden layers
    actor_hidden_dims: tuple[int, ...] = widths(512, 512, 512)
    # Widths of the hidden layers of critics and V
    value_hidden_dims: tuple[int, ...] = widths(512, 512, 512)
    # LayerNorm after the hidden layers of critics and V
    value_ln: bool = True
    # Size of the codes whose products are values
    latent_dim: int = bounded(512, low=1)


# ---- networks ------------------------------------------------------------------------------------------------------


def linear(input_dim: int, output_dim: int, gain: float = 1.0) -> nn.Linear:
    """A layer with Glorot's uniform weight, times `gain`, and a bias of 0."""
    layer = nn.Linear(input_dim, output_dim)
    nn.init.xavier_uniform_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def mlp(
    input_dim: int, hidden_dims: Sequence[int], layer_norm: bool, output_dim: int, gain: float = 1.0
) -> nn.Sequential:
    """Hidden layers with GELU in its tanh form, then LayerNorm if the settings say so; the last layer is linear."""
    layers: list[nn.Module] = []
    for width in hidden_dims:
        layers += [linear(input_dim, width), nn.GELU(approximate="tanh")]
        if layer_norm:
            layers += [nn.LayerNorm(width, eps=1e-6)]
        input_dim = width
    return nn.Sequential(*layers, linear(input_dim, output_dim, gain))


class Actor(nn.Module):
    """The policy: a normal distribution whose mean has no bounds, with one standard deviation for all states."""

    def __init__(
        self, state_dim: int, action_dim: int, max_action: float, hidden_dims: Sequence[int], const_std: bool
    ) -> None:
        super().__init__()
        self.net = mlp(2 * state_dim, hidden_dims, False, action_dim, gain=0.1)
        self.log_std = None if const_std else nn.Parameter(torch.zeros(action_dim))
        self.max_action = max_action

    def forward(self, observations: Tensor, goals: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation, both (B, A), for observations (B, S) and goals (B, S)."""
        mean = self.net(concatenate([observations, goals], axis=-1))
        if self.log_std is None:
            return mean, torch.ones_like(mean)
        return mean, broadcast_to(exp(clamp(self.log_std, -5.0, 2.0)), mean.shape)


class Codes(nn.Module):
    """The codes of states, or of states and actions, and of goals; their products are values."""

    def __init__(
        self, input_dim: int, state_dim: int, hidden_dims: Sequence[int], layer_norm: bool, latent_dim: int
    ) -> None:
        super().__init__()
        self.phi = mlp(input_dim, hidden_dims, layer_norm, latent_dim)
        self.psi = mlp(state_dim, hidden_dims, layer_norm, latent_dim)

    def forward(self, goals: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The codes (B, D) of the inputs side by side, and the codes of goals (B, S)."""
        return self.phi(concatenate(inputs, axis=-1)), self.psi(goals)


class Critic(nn.Module):
    """Both critics, with separate weights."""

    def __init__(
        self, state_dim: int, action_dim: int, hidden_dims: Sequence[int], layer_norm: bool, latent_dim: int
    ) -> None:
        super().__init__()
        sizes = (state_dim + action_dim, state_dim, hidden_dims, layer_norm, latent_dim)
        self.q1 = Codes(*sizes)
        self.q2 = Codes(*sizes)

    def forward(self, goals: Tensor, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """The codes (2, B, D) of actions (B, A) in observations (B, S), and of goals (B, S)."""
        phi1, psi1 = self.q1(goals, observations, actions)
        phi2, psi2 = self.q2(goals, observations, actions)
        return stack([phi1, phi2]), stack([psi1, psi2])


def products(phi: Tensor, psi: Tensor) -> Tensor:
    """The values (..., B) of rows for their own goals, from codes (..., B, D)."""
    return (phi * psi).sum(axis=-1) / math.sqrt(phi.shape[-1])


def all_products(phi: Tensor, psi: Tensor) -> Tensor:
    """The values (..., B, B) of rows for the goals of all rows, from codes (..., B, D)."""
    return einsum("...id,...jd->...ij", phi, psi) / math.sqrt(phi.shape[-1])


def cut(actor: Actor, actions: Tensor) -> Tensor:
    """Actions (B, A), clipped to [-max_action, max_action]."""
    return clamp(actions, -actor.max_action, actor.max_action)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its rows."""

    # Standard normal, (B, A): the noise of the actions for which the policy's loss maximizes Q; None if const_std
    action: Tensor | None = None


def draw_noise(hp: Hyperparameters, last: np.ndarray, action_dim: int, device: torch.device) -> tuple[Tensor, Noise]:
    """An update's rows (3, B), from NumPy's global generator as in the authors' code, and its noise, from torch's.

    Args:
        hp: Contains the sizes and the kinds of goals.
        last: (N,), the last row of each row's trajectory.
        action_dim: A.
        device: The device of the results.

    Returns:
        The rows of the states, of the value goals and of the policy's goals; and the noise.
    """
    rows = np.random.randint(len(last), size=hp.batch_size)
    value_goals = draw_goals(rows, last, hp.value_goals, hp.discount)
    actor_goals = draw_goals(rows, last, hp.actor_goals, hp.discount)
    # The authors' code draws whether to crop images, even if there are none.
    np.random.random_sample()
    noise = Noise() if hp.const_std else Noise(torch.randn((hp.batch_size, action_dim), device=device))
    return index_tensor(np.stack([rows, value_goals, actor_goals]), device), noise


# ---- losses and update ---------------------------------------------------------------------------------------------

# The largest weight of an action in the policy's loss
MAX_WEIGHT = 100.0
LOG_SQRT_2PI = math.log(math.sqrt(2.0 * math.pi))


def gradient_step(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """One step of the optimiser down the gradient of the loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def contrastive_loss(phi: Tensor, psi: Tensor) -> Tensor:
    """The binary cross-entropy of telling each row's own goal from the other rows' goals."""
    logits = all_products(phi, psi)
    own = eye(logits.shape[-1], dtype=logits.dtype, device=logits.device)
    return (logaddexp(logits, zeros_like(logits)) - own * logits).mean()


class CRL:
    """All that an update reads and writes."""

    def __init__(self, hp: Hyperparameters, critic: Critic, value: Codes, actor: Actor) -> None:
        self.hp = hp
        self.critic, self.value, self.actor = critic, value, actor
        self.critic_optimizer = torch.optim.Adam(critic.parameters(), lr=hp.learning_rate)
        self.value_optimizer = torch.optim.Adam(value.parameters(), lr=hp.learning_rate)
        self.actor_optimizer = torch.optim.Adam(actor.parameters(), lr=hp.learning_rate)
        self.total_it = 0

    def critic_loss(self, batch: GoalBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """The contrastive loss of both critics, the mean over them."""
        critic = self.critic
        phi, psi = critic(batch.value_goals, batch.observations, batch.actions)
        assert phi.shape == psi.shape
        return contrastive_loss(phi, psi), {"q": products(phi, psi).detach().mean()}

    def value_loss(self, batch: GoalBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """The contrastive loss of V, which is a critic without actions; only `awr` uses it."""
        value = self.value
        phi, psi = value(batch.value_goals, batch.observations)
        assert phi.shape == psi.shape
        return contrastive_loss(phi, psi), {}

    def q(self, batch: GoalBatch, actions: Tensor) -> Tensor:
        """The smaller value (B,) of actions (B, A) for the policy's goals."""
        return amin(products(*self.critic(batch.actor_goals, batch.observations, actions)), axis=0)

    @torch.no_grad()
    def weight(self, batch: GoalBatch) -> Tensor:
        """The weight of each action (B,) for `awr`: the exponential of its advantage, up to `MAX_WEIGHT`."""
        v = products(*self.value(batch.actor_goals, batch.observations))
        return clamp(exp(self.hp.alpha * (self.q(batch, batch.actions) - v)), 0.0, MAX_WEIGHT)

    def actor_loss(self, batch: GoalBatch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """Cloning of the data's actions: beside the largest Q, which is scaled by its own size, or with weights."""
        hp, actor = self.hp, self.actor
        mean, std = actor(batch.observations, batch.actor_goals)
        assert mean.shape == batch.actions.shape
        log_prob = (-square((batch.actions - mean) / std) / 2.0 - log(std) - LOG_SQRT_2PI).sum(axis=-1)
        if hp.actor_loss == "awr":
            weight = self.weight(batch)
            assert weight.shape == log_prob.shape == batch.rewards.shape
            return -(weight * log_prob).mean(), {"bc_log_prob": log_prob.detach().mean()}
        actions = mean if noise.action is None else mean + std * noise.action
        q = self.q(batch, cut(actor, actions))
        assert q.shape == log_prob.shape == batch.rewards.shape
        q_loss = -q.mean() / (q.abs().mean() + 1e-6).detach()
        bc_loss = -hp.alpha * log_prob.mean()
        return q_loss + bc_loss, {"q_loss": q_loss.detach(), "bc_loss": bc_loss.detach()}

    def update(self, batch: GoalBatch, noise: Noise) -> dict[str, Tensor]:
        """One gradient step of each network, all from the old weights; there are no targets."""
        critic_loss, aux = self.critic_loss(batch)
        actor_loss, of_actor = self.actor_loss(batch, noise)
        metrics = {"critic_loss": critic_loss, "actor_loss": actor_loss} | aux | of_actor
        if self.hp.actor_loss == "awr":
            metrics["value_loss"], _ = self.value_loss(batch)
            gradient_step(metrics["value_loss"], self.value_optimizer)
        # The policy's gradient passes through the critics, so they step last.
        gradient_step(actor_loss, self.actor_optimizer)
        gradient_step(critic_loss, self.critic_optimizer)
        self.total_it += 1
        return {name: value.detach() for name, value in metrics.items()}

    def act(self, observations: np.ndarray, goals: np.ndarray) -> np.ndarray:
        """Calls `policy` with NumPy arrays."""
        return on_arrays(policy, self.actor, observations, goals)

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint, by name."""
        learning = ("critic", "value", "actor")
        names = [*learning, *(f"{part}_optimizer" for part in learning)]
        return {name: getattr(self, name) for name in names}


def policy(actor: Actor, observations: Tensor, goals: Tensor) -> Tensor:
    """The policy's most likely actions (E, A) for observations (E, S) and goals (E, S)."""
    mean, _ = actor(observations, goals)
    return cut(actor, mean)


# ---- training ------------------------------------------------------------------------------------------------------


def create_trainer(config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> CRL:
    """Fresh networks, drawn from torch's generator on the CPU: critics, V, policy."""
    sizes = (config.value_hidden_dims, config.value_ln, config.latent_dim)
    critic = Critic(state_dim, action_dim, *sizes)
    value = Codes(state_dim, state_dim, *sizes)
    actor = Actor(state_dim, action_dim, max_action, config.actor_hidden_dims, config.const_std)
    device = resolve_device(config.device)
    return CRL(config, critic.to(device), value.to(device), actor.to(device))


def save(trainer: CRL, path: Path, **facts: Any) -> None:
    """Writes a checkpoint."""
    save_checkpoint(path, "goal_conditioned/crl", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: CRL, path: str) -> dict[str, Any]:
    """Loads one of our checkpoints; returns its contents."""
    content = load_checkpoint(path, "goal_conditioned/crl", trainer.parts())
    trainer.total_it = content["total_it"]
    return content


def train(config: TrainConfig) -> Run:
    """Trains, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used.
    """
    task = load_task(config, Preparation(Extract.GOALS, normalise=False))
    device = resolve_device(config.device)
    seed_everything(config.seed)
    trainer = create_trainer(config, task.state_dim, task.action_dim, task.max_action)
    run = Run(config, task, "goal_conditioned/crl", "torch", device)
    history = restore(run, partial(load, trainer), device)
    dataset, last = to_device(task.dataset, device), task.dataset.last
    with run:
        if run.is_due(run.step):
            run.evaluate(run.step, trainer.act)
        for step in range(run.step + 1, config.max_timesteps + 1):
            indices, noise = draw_noise(config, last, task.action_dim, device)
            history.append(trainer.update(take_goals(dataset, indices, config.gc_negative), noise))
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
    cli(train, TrainConfig, "goal_conditioned/crl")
