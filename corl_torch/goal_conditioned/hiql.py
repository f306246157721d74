"""HIQL in PyTorch: one policy names the code of a subgoal on the way to the goal, and another one goes there.

Its twin is `corl_jax/goal_conditioned/hiql.py`.

Park et al., HIQL: Offline Goal-Conditioned RL with Latent States as Actions, 2023, https://arxiv.org/abs/2307.11949, in
the form of OGBench's code, 2024, https://arxiv.org/abs/2410.20092.
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
from torch import Tensor, amin, broadcast_to, clamp, concatenate, exp, log, nn, sqrt, square, stack, where

from shared.data.goals import HierarchicalBatch, later_rows
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.torch_data import index_tensor, to_device
from shared.frameworks.torch_goals import draw_goals, draw_later, take_hierarchy
from shared.frameworks.torch_side import mean_metrics, on_arrays, resolve_device, seed_everything
from shared.runs.fields import bounded, positive, widths
from shared.runs.run import Run
from shared.runs.settings import GoalConfig, GoalSettings
from shared.runs.task import Extract, Preparation, load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters(GoalSettings):
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Learning rate of all networks
    learning_rate: float = positive(3e-4)
    # Rate at which the target values follow the values
    tau: float = bounded(0.005, low=0, high=1)
    # Expectile that the values regress to; above 0.5, it is nearer to the best
    iql_tau: float = bounded(0.7, low=0, high=1)
    # Inverse temperature of the low policy: how steeply an action's weight grows with its advantage
    low_inverse_temperature: float = bounded(3.0, low=0)
    # Inverse temperature of the high policy: how steeply a subgoal's weight grows with its advantage
    high_inverse_temperature: float = bounded(3.0, low=0)
    # Steps from a state to its subgoal
    subgoal_steps: int = bounded(25, low=1)
    # Whether the codes of subgoals are also learnt by the low policy, rather than by the values alone
    low_actor_rep_grad: bool = False
    # No effect, as in the authors' code, but the three shares of the policy's goals sum to 1
    actor_p_curgoal: float = bounded(0.0, low=0, high=1)
    # No effect, as in the authors' code: later states are all goals of the high policy that are not any states
    actor_p_trajgoal: float = bounded(1.0, low=0, high=1)
    # Share of the high policy's goals that are any states of the dataset
    actor_p_randomgoal: float = bounded(0.0, low=0, high=1)
    # Transitions in a batch
    batch_size: int = bounded(1024, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, GoalConfig):
    """The settings of a whole run."""

    group: str = "HIQL-OGBench"
    name: str = "HIQL"
    # Widths of both policies' hidden layers
    actor_hidden_dims: tuple[int, ...] = widths(512, 512, 512)
    # Widths of the hidden layers of the values and of the network that makes codes
    value_hidden_dims: tuple[int, ...] = widths(512, 512, 512)
    # LayerNorm after these hidden layers
    value_ln: bool = True
    # Numbers in a code
    rep_dim: int = bounded(10, low=1)
    # Use a standard deviation of 1 for actions and subgoals instead of learnt ones
    const_std: bool = True


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


def to_length(codes: Tensor) -> Tensor:
    """Codes (..., D) as vectors of the same direction and of the length sqrt(D)."""
    return math.sqrt(codes.shape[-1]) * codes / sqrt(square(codes).sum(axis=-1))[..., None]


class Actor(nn.Module):
    """One level of the policy: a normal distribution whose mean has no bounds, with one deviation for all states."""

    def __init__(
        self, input_dim: int, action_dim: int, max_action: float, hidden_dims: Sequence[int], const_std: bool
    ) -> None:
        super().__init__()
        self.net = mlp(input_dim, hidden_dims, False, action_dim, gain=0.1)
        self.log_std = None if const_std else nn.Parameter(torch.zeros(action_dim))
        self.max_action = max_action

    def forward(self, observations: Tensor, goals: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of actions or of codes, for observations (B, S) and what is to be reached."""
        mean = self.net(concatenate([observations, goals], axis=-1))
        if self.log_std is None:
            return mean, torch.ones_like(mean)
        return mean, broadcast_to(exp(clamp(self.log_std, -5.0, 2.0)), mean.shape)


class Representation(nn.Module):
    """The code of a goal as it is seen from a state, of the length sqrt(D)."""

    def __init__(self, state_dim: int, rep_dim: int, hidden_dims: Sequence[int], layer_norm: bool) -> None:
        super().__init__()
        self.net = mlp(2 * state_dim, hidden_dims, layer_norm, rep_dim)

    def forward(self, observations: Tensor, goals: Tensor) -> Tensor:
        """The codes (B, D) of goals (B, S) for observations (B, S)."""
        return to_length(self.net(concatenate([observations, goals], axis=-1)))


class Value(nn.Module):
    """Two values with separate weights: (B, S) and (B, D) to (2, B)."""

    def __init__(self, state_dim: int, rep_dim: int, hidden_dims: Sequence[int], layer_norm: bool) -> None:
        super().__init__()
        sizes = (state_dim + rep_dim, hidden_dims, layer_norm, 1)
        self.v1 = mlp(*sizes)
        self.v2 = mlp(*sizes)

    def forward(self, observations: Tensor, codes: Tensor) -> Tensor:
        """The values (2, B) of observations (B, S) for the codes (B, D) of goals."""
        inputs = concatenate([observations, codes], axis=-1)
        return stack([self.v1(inputs), self.v2(inputs)]).squeeze(-1)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its rows: none."""


def draw_noise(hp: Hyperparameters, last: np.ndarray, device: torch.device) -> tuple[Tensor, Noise]:
    """An update's rows (5, B), from NumPy's global generator as in the authors' code.

    Args:
        hp: Contains the sizes and the kinds of goals.
        last: (N,), the last row of each row's trajectory.
        device: The device of the result.

    Returns:
        The rows of the states, of the value goals, of the low goals, of the high goals and of their targets; no noise.
    """
    rows = np.random.randint(len(last), size=hp.batch_size)
    value_goals = draw_goals(rows, last, hp.value_goals, hp.discount)
    low_goals = np.minimum(rows + hp.subgoal_steps, last[rows])
    geometric = hp.actor_geom_sample
    later = later_rows(rows, last[rows], draw_later(len(rows), geometric, hp.discount), geometric)
    anywhere = np.random.randint(len(last), size=len(rows))
    is_random = np.random.random_sample(len(rows)) < hp.actor_p_randomgoal
    # The authors' code draws whether to crop images, even if there are none.
    np.random.random_sample()
    high_goals = np.where(is_random, anywhere, later)
    high_targets = np.where(is_random, low_goals, np.minimum(low_goals, later))
    return index_tensor(np.stack([rows, value_goals, low_goals, high_goals, high_targets]), device), Noise()


# ---- losses and update ---------------------------------------------------------------------------------------------

# The largest weight of an action or of a subgoal in a policy's loss
MAX_WEIGHT = 100.0
LOG_SQRT_2PI = math.log(math.sqrt(2.0 * math.pi))
# The networks that are learnt
LEARNING = ("value", "representation", "low_actor", "high_actor")


def gradient_step(loss: Tensor, optimizers: Sequence[torch.optim.Optimizer]) -> None:
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


def weighted_cloning(
    policy: tuple[Tensor, Tensor], actions: Tensor, adv: Tensor, inverse_temperature: float
) -> tuple[Tensor, Tensor]:
    """The negative mean of weighted log-probabilities, and the mean of the unweighted ones.

    Args:
        policy: Means and standard deviations, both (B, A).
        actions: (B, A), actions of the data, or codes of subgoals.
        adv: (B,), the advantages, whose exponentials are the weights.
        inverse_temperature: How steeply weights grow.
    """
    mean, std = policy
    assert mean.shape == actions.shape
    log_prob = (-square((actions - mean) / std) / 2.0 - log(std) - LOG_SQRT_2PI).sum(axis=-1)
    weight = clamp(exp(inverse_temperature * adv), 0.0, MAX_WEIGHT)
    assert weight.shape == log_prob.shape
    return -(weight * log_prob).mean(), log_prob.detach().mean()


class HIQL:
    """All that an update reads and writes."""

    def __init__(
        self, hp: Hyperparameters, value: Value, representation: Representation, low_actor: Actor, high_actor: Actor
    ) -> None:
        self.hp = hp
        self.value, self.representation = value, representation
        self.low_actor, self.high_actor = low_actor, high_actor
        self.value_target = copy.deepcopy(value)
        self.value_optimizer = torch.optim.Adam(value.parameters(), lr=hp.learning_rate)
        self.representation_optimizer = torch.optim.Adam(representation.parameters(), lr=hp.learning_rate)
        self.low_actor_optimizer = torch.optim.Adam(low_actor.parameters(), lr=hp.learning_rate)
        self.high_actor_optimizer = torch.optim.Adam(high_actor.parameters(), lr=hp.learning_rate)
        self.total_it = 0

    @torch.no_grad()
    def td_targets(self, batch: HierarchicalBatch) -> tuple[Tensor, Tensor]:
        """The regression targets of both values, (2, B), and the advantage of the data's step, (B,).

        Each value has its own target value in its target. The advantage uses the smaller one, and target values alone.
        The codes have no target network.
        """
        hp, value, code = self.hp, self.value_target, self.representation
        next_v = value(batch.next_observations, code(batch.next_observations, batch.value_goals))
        assert next_v.shape == (2, *batch.rewards.shape)
        adv = batch.rewards + hp.discount * batch.masks * amin(next_v, axis=0)
        adv = adv - value(batch.observations, code(batch.observations, batch.value_goals)).mean(axis=0)
        return batch.rewards + hp.discount * batch.masks * next_v, adv

    def expectile_weight(self, adv: Tensor) -> Tensor:
        """The weight of each advantage (B,) in the values' loss: `iql_tau` if it is at least 0, else 1 - `iql_tau`."""
        return where(adv >= 0.0, self.hp.iql_tau, 1.0 - self.hp.iql_tau)

    def value_loss(self, batch: HierarchicalBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Expectile regression of both values, summed over them, from which the codes are learnt too."""
        value, representation = self.value, self.representation
        targets, adv = self.td_targets(batch)
        v = value(batch.observations, representation(batch.observations, batch.value_goals))
        assert v.shape == targets.shape == (2, *adv.shape)
        loss = (self.expectile_weight(adv) * square(targets - v)).mean(axis=1).sum()
        return loss, {"v": v.detach().mean()}

    @torch.no_grad()
    def advantage(self, later: Tensor, observations: Tensor, goals: Tensor) -> Tensor:
        """How much nearer to goals (B, S) the states `later` (B, S) are than observations (B, S): a difference (B,)."""
        value, code = self.value, self.representation
        later_v = value(later, code(later, goals)).mean(axis=0)
        return later_v - value(observations, code(observations, goals)).mean(axis=0)

    def low_actor_loss(self, batch: HierarchicalBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Behaviour cloning for the codes of near subgoals, weighted by how much nearer a step brings them."""
        hp, low_actor, representation = self.hp, self.low_actor, self.representation
        adv = self.advantage(batch.next_observations, batch.observations, batch.low_goals)
        codes = representation(batch.observations, batch.low_goals)
        if not hp.low_actor_rep_grad:
            codes = codes.detach()
        policy = low_actor(batch.observations, codes)
        loss, log_prob = weighted_cloning(policy, batch.actions, adv, hp.low_inverse_temperature)
        return loss, {"low_adv": adv.mean(), "low_bc_log_prob": log_prob}

    @torch.no_grad()
    def subgoals(self, batch: HierarchicalBatch) -> Tensor:
        """The codes (B, D) of the subgoals that the high policy imitates, as they are seen from the observations."""
        return self.representation(batch.observations, batch.high_targets)

    def high_actor_loss(self, batch: HierarchicalBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Cloning of the data's subgoals, weighted by how much nearer to the goal they are."""
        hp, high_actor = self.hp, self.high_actor
        adv = self.advantage(batch.high_targets, batch.observations, batch.high_goals)
        policy = high_actor(batch.observations, batch.high_goals)
        loss, log_prob = weighted_cloning(policy, self.subgoals(batch), adv, hp.high_inverse_temperature)
        return loss, {"high_adv": adv.mean(), "high_bc_log_prob": log_prob}

    def update(self, batch: HierarchicalBatch, noise: Noise) -> dict[str, Tensor]:
        """One gradient step of each network, and one step of the target values, all from the old weights."""
        value_loss, of_value = self.value_loss(batch)
        low_actor_loss, of_low = self.low_actor_loss(batch)
        high_actor_loss, of_high = self.high_actor_loss(batch)
        soft_update(self.value_target, self.value, self.hp.tau)
        optimizers = [getattr(self, f"{part}_optimizer") for part in LEARNING]
        # The codes may be learnt from two of the losses, so one gradient is taken of the sum.
        gradient_step(value_loss + low_actor_loss + high_actor_loss, optimizers)
        self.total_it += 1
        losses = {"value_loss": value_loss, "low_actor_loss": low_actor_loss, "high_actor_loss": high_actor_loss}
        return {name: value.detach() for name, value in (losses | of_value | of_low | of_high).items()}

    @property
    def acting(self) -> nn.ModuleDict:
        """The networks that the policy needs."""
        return nn.ModuleDict({"high_actor": self.high_actor, "low_actor": self.low_actor})

    def act(self, observations: np.ndarray, goals: np.ndarray) -> np.ndarray:
        """Calls `policy` with NumPy arrays."""
        return on_arrays(policy, self.acting, observations, goals)

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint, by name."""
        names = [*LEARNING, "value_target", *(f"{part}_optimizer" for part in LEARNING)]
        return {name: getattr(self, name) for name in names}


def policy(acting: nn.ModuleDict, observations: Tensor, goals: Tensor) -> Tensor:
    """The most likely actions (E, A) on the way to the most likely subgoals, for observations and goals, both (E, S).

    Each step has a new subgoal.
    """
    codes, _ = acting["high_actor"](observations, goals)
    low_actor = acting["low_actor"]
    mean, _ = low_actor(observations, to_length(codes))
    return clamp(mean, -low_actor.max_action, low_actor.max_action)


# ---- training ------------------------------------------------------------------------------------------------------


def create_trainer(config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> HIQL:
    """Fresh networks, drawn from torch's generator on the CPU: values, codes, low policy, high policy."""
    dims, layer_norm, rep_dim = config.value_hidden_dims, config.value_ln, config.rep_dim
    value = Value(state_dim, rep_dim, dims, layer_norm)
    representation = Representation(state_dim, rep_dim, dims, layer_norm)
    actor_dims, const_std = config.actor_hidden_dims, config.const_std
    low_actor = Actor(state_dim + rep_dim, action_dim, max_action, actor_dims, const_std)
    # Codes have no bounds
    high_actor = Actor(2 * state_dim, rep_dim, math.inf, actor_dims, const_std)
    device = resolve_device(config.device)
    return HIQL(config, value.to(device), representation.to(device), low_actor.to(device), high_actor.to(device))


def save(trainer: HIQL, path: Path, **facts: Any) -> None:
    """Writes a checkpoint."""
    save_checkpoint(path, "goal_conditioned/hiql", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: HIQL, path: str) -> dict[str, Any]:
    """Loads one of our checkpoints; returns its contents."""
    content = load_checkpoint(path, "goal_conditioned/hiql", trainer.parts())
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
    run = Run(config, task, "goal_conditioned/hiql", "torch", device)
    history = restore(run, partial(load, trainer), device)
    dataset, last = to_device(task.dataset, device), task.dataset.last
    with run:
        if run.is_due(run.step):
            run.evaluate(run.step, trainer.act)
        for step in range(run.step + 1, config.max_timesteps + 1):
            indices, noise = draw_noise(config, last, device)
            history.append(trainer.update(take_hierarchy(dataset, indices, config.gc_negative), noise))
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
    cli(train, TrainConfig, "goal_conditioned/hiql")
