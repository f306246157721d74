"""Balanced replay in PyTorch: an ensemble of CQL agents learns from data, then online from the rows most like its own.

Its twin is `corl_jax/finetune/balanced_replay.py`. Offline, each member learns as in `corl_torch/finetune/cql.py`.

Lee et al., Offline-to-Online Reinforcement Learning via Balanced Replay and Pessimistic Q-Ensemble, 2021,
https://arxiv.org/abs/2107.00591
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
from torch import Tensor, clamp, concatenate, exp, log, logsumexp, minimum, nn, sqrt, square, tanh, where
from torch.nn.functional import softplus

from shared.data.online import OnlineExperience
from shared.data.rewards import ScaledRewards
from shared.data.transitions import Batch
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.torch_data import index_tensor, take, to_device
from shared.frameworks.torch_priorities import Priorities, fill, find, write
from shared.frameworks.torch_ring import Ring, room, take_both, take_either
from shared.frameworks.torch_side import mean_metrics, on_arrays, resolve_device, seed_everything
from shared.runs.fields import bounded, positive
from shared.runs.run import Run
from shared.runs.settings import FinetuneConfig
from shared.runs.task import Preparation, load_task, training_environment

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Members of the ensemble, each a policy with two critics
    n_ensemble: int = bounded(5, low=1)
    # Transitions in a batch
    batch_size: int = bounded(256, low=2)
    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Learning rate of the policies and of the entropy temperatures
    actor_lr: float = positive(3e-5)
    # Learning rate of the critics
    critic_lr: float = positive(3e-4)
    # Rate at which the target critics follow the critics
    tau: float = bounded(5e-3, low=0, high=1)
    # Actions sampled per state for each part of the conservative term
    cql_n_actions: int = bounded(10, low=1)
    # Weight of the conservative term, which is only used offline
    cql_alpha: float = bounded(10.0, low=0)
    # Learning rate of the network that tells the environment's rows from the dataset's
    density_lr: float = positive(3e-4)
    # Temperature of the density ratios: the higher it is, the more alike are the rows' priorities
    density_temperature: float = positive(5.0)
    # Share of the environment's rows in the first online batch, on average
    online_share: float = bounded(0.75, low=0.01, high=0.99)
    # Updates on the dataset alone
    offline_iterations: int = bounded(1_000_000, low=0)
    # Number of first environment steps that are not followed by updates
    learning_starts: int = bounded(1_000, low=0)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, FinetuneConfig):
    """The settings of a whole run."""

    group: str = "Balanced-Replay-D4RL"
    name: str = "Balanced-Replay"
    # Largest dataset accepted, in transitions, and the capacity for the environment's, which overwrite the oldest
    buffer_size: int = bounded(2_000_000, low=1)
    # Normalise states to mean 0 and standard deviation 1
    normalize: bool = True
    # Scale rewards as CORL does for this kind of dataset, then by reward_scale and reward_bias; online too
    normalize_reward: bool = False
    # Hidden layers of each critic; a policy has three, and the density ratio's network two
    critic_n_hiddens: int = bounded(3, low=1)
    # Width of every hidden layer
    hidden_dim: int = bounded(256, low=1)
    # Factor on rewards, if normalize_reward
    reward_scale: float = 1.0
    # Added to rewards after that, if normalize_reward
    reward_bias: float = 0.0


# ---- networks ------------------------------------------------------------------------------------------------------


class VectorizedLinear(nn.Module):
    """A linear layer for each of E members, as one batched product; weights are (E, in, out)."""

    def __init__(self, input_dim: int, output_dim: int, n_ensemble: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(input_dim)
        self.weight = nn.Parameter(torch.empty(n_ensemble, input_dim, output_dim).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(n_ensemble, 1, output_dim).uniform_(-bound, bound))

    def forward(self, inputs: Tensor) -> Tensor:
        """Maps (E, R, in) to (E, R, out)."""
        return inputs @ self.weight + self.bias


def mlp(n_ensemble: int, input_dim: int, output_dim: int, n_hidden_layers: int, hidden_dim: int) -> nn.Sequential:
    """Hidden layers with ReLU, of every member."""
    layers: list[nn.Module] = []
    for _ in range(n_hidden_layers):
        layers += [VectorizedLinear(input_dim, hidden_dim, n_ensemble), nn.ReLU()]
        input_dim = hidden_dim
    return nn.Sequential(*layers, VectorizedLinear(input_dim, output_dim, n_ensemble))


class Actor(nn.Module):
    """E policies, each a normal distribution that is squashed by tanh."""

    def __init__(self, state_dim: int, action_dim: int, max_action: float, hidden_dim: int, n_ensemble: int) -> None:
        super().__init__()
        self.base_network = mlp(n_ensemble, state_dim, 2 * action_dim, 3, hidden_dim)
        self.action_dim, self.max_action, self.n_ensemble = action_dim, max_action, n_ensemble

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Each member's mean and standard deviation (E, B, A) before tanh, for observations (B, S)."""
        outputs = self.base_network(observations.expand(self.n_ensemble, *observations.shape))
        mean, log_std = outputs.chunk(2, axis=-1)
        return mean, exp(clamp(log_std, -20.0, 2.0))


class Critic(nn.Module):
    """E critics Q(s, a)."""

    def __init__(self, state_dim: int, action_dim: int, n_hidden_layers: int, hidden_dim: int, n_ensemble: int) -> None:
        super().__init__()
        self.network = mlp(n_ensemble, state_dim + action_dim, 1, n_hidden_layers, hidden_dim)
        self.n_ensemble = n_ensemble

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Values (E, B) of actions (B, A) or (E, B, A) in observations (B, S), or (E, B, n) of actions (E, B, n, A)."""
        if actions.ndim == 4:
            observations = observations[:, None]
        actions = actions.expand(self.n_ensemble, *actions.shape[-2:]) if actions.ndim == 2 else actions
        observations = observations.expand(*actions.shape[:-1], observations.shape[-1])
        inputs = concatenate([observations, actions], axis=-1)
        return self.network(inputs.reshape(self.n_ensemble, -1, inputs.shape[-1])).reshape(actions.shape[:-1])


class Density(nn.Module):
    """The density ratio of the environment's rows to the dataset's, at a state and an action."""

    def __init__(self, state_dim: int, action_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(state_dim + action_dim, hidden_dim),
            nn.ReLU(),
            nn.Linear(hidden_dim, hidden_dim),
            nn.ReLU(),
            nn.Linear(hidden_dim, 1),
        )

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """The logarithm (B,) of the ratio w, which is a softplus, for observations (B, S) and actions (B, A)."""
        outputs = self.network(concatenate([observations, actions], axis=-1)).squeeze(-1)
        # Far below 0, a softplus is e^x to the last bit; in the end it would be 0, whose logarithm has no gradient.
        far = outputs < -40.0
        return where(far, outputs, log(softplus(where(far, 0.0, outputs))))


class Temperatures(nn.Module):
    """The logarithm of each member's entropy temperature."""

    def __init__(self, n_ensemble: int) -> None:
        super().__init__()
        self.constant = nn.Parameter(torch.zeros(n_ensemble))

    def forward(self) -> Tensor:
        """All the logarithms, (E,)."""
        return self.constant


def squash(mean: Tensor, std: Tensor, noise: Tensor, max_action: float) -> tuple[Tensor, Tensor]:
    """Actions (..., A) of normal distributions (..., A) under noise (..., A), and their log-probabilities (...)."""
    u = mean + noise * std
    log_prob = -2.0 * (math.log(2.0) - u - softplus(-2.0 * u))
    log_prob = log_prob + (-square(u - mean) / (2.0 * square(std)) - log(std) - math.log(math.sqrt(2.0 * math.pi)))
    return max_action * tanh(u), log_prob.sum(axis=-1)


def sample_each(actor: Actor, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Each member's actions and their log-probabilities, (E, B) for noise (E, B, A), or n per state."""
    mean, std = actor(observations)
    if noise.ndim == 4:
        mean, std = mean[:, :, None], std[:, :, None]
    return squash(mean, std, noise, actor.max_action)


def mixture(actor: Actor, observations: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (B, A) before tanh of the ensemble: the moments of the members' uniform mixture."""
    means, stds = actor(observations)
    mean = means.mean(axis=0)
    # The mean of squares minus the squared mean, in a form that rounding cannot make negative
    variance = (square(stds) + square(means - mean)).mean(axis=0)
    return mean, sqrt(variance)


def sample(actor: Actor, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The ensemble's actions (B, A) and their log-probabilities (B,) for noise (B, A)."""
    mean, std = mixture(actor, observations)
    return squash(mean, std, noise, actor.max_action)


def pessimistic(critic_1: Critic, critic_2: Critic, observations: Tensor, actions: Tensor) -> Tensor:
    """The ensemble's values (B,): each member's smaller value, averaged over the members."""
    return minimum(critic_1(observations, actions), critic_2(observations, actions)).mean(axis=0)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """An update's draws besides its batch, with n = cql_n_actions: the first five offline, the others online."""

    # Standard normal, (E, B, A): each member's action in each state
    each_actor: Any
    # Standard normal, (E, B, A): each member's next actions in its target
    each_target: Any
    # Uniform in [-1, 1), (E, B, n, A): random actions for the conservative terms
    random: Any
    # Standard normal, (E, B, n, A): each member's actions for its conservative terms
    current: Any
    # Standard normal, (E, B, n, A): each member's next actions for its conservative terms
    next: Any
    # Standard normal, (B, A): the ensemble's action in each state
    actor: Any
    # Standard normal, (B, A): the ensemble's next actions in the target
    target: Any
    # Uniform in [0, 1), (B,): they choose rows by priority
    row: Any


def shares(hp: Hyperparameters) -> tuple[int, int]:
    """How many rows are drawn uniformly, to learn the density ratio, from the dataset and from the environment."""
    offline = hp.batch_size // 2
    return offline, hp.batch_size - offline


def draw_noise(
    hp: Hyperparameters, dataset_size: int, action_dim: int, device: torch.device, online_size: int | None = None
) -> tuple[Tensor, Noise]:
    """An update's indices (B,), from NumPy's global generator, and its noise, from torch's.

    Offline, the indices are its batch. Online, they are the rows that the density ratio learns from. The dataset's come
    first; the environment's are numbered from `dataset_size` on.
    """
    one = (hp.batch_size, action_dim)
    each, many = (hp.n_ensemble, *one), (hp.n_ensemble, hp.batch_size, hp.cql_n_actions, action_dim)
    if online_size is None:
        indices = np.random.randint(0, dataset_size, size=hp.batch_size)
        noise = Noise(
            each_actor=torch.randn(each, device=device),
            each_target=torch.randn(each, device=device),
            random=torch.empty(many, device=device).uniform_(-1.0, 1.0),
            current=torch.randn(many, device=device),
            next=torch.randn(many, device=device),
            actor=None,
            target=None,
            row=None,
        )
        return index_tensor(indices, device), noise
    offline, online = shares(hp)
    indices = np.random.randint(0, dataset_size, size=offline)
    indices = np.append(indices, dataset_size + np.random.randint(0, online_size, size=online))
    noise = Noise(
        each_actor=None,
        each_target=None,
        random=None,
        current=None,
        next=None,
        actor=torch.randn(one, device=device),
        target=torch.randn(one, device=device),
        row=torch.rand(hp.batch_size, device=device),
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


class BalancedBatch(NamedTuple):
    """An online update's rows: a batch that is drawn by priority, and the rows that the density ratio learns from."""

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    next_observations: Tensor
    terminals: Tensor
    # The index of each row's priority, (B,)
    places: Tensor
    # 1 if a row is the environment's, 0 if it is the dataset's, (B,)
    seen: Tensor
    # States (B, S) and actions (B, A), drawn uniformly: the dataset's rows, then the environment's
    compared_observations: Tensor
    compared_actions: Tensor


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


class BalancedReplay:
    """All that an update reads and writes."""

    def __init__(
        self,
        hp: Hyperparameters,
        actor: Actor,
        critic_1: Critic,
        critic_2: Critic,
        density: Density,
        priorities: Priorities,
    ) -> None:
        self.hp = hp
        self.action_dim = actor.action_dim
        self.actor, self.critic_1, self.critic_2 = actor, critic_1, critic_2
        self.critic_1_target, self.critic_2_target = copy.deepcopy((critic_1, critic_2))
        self.density, self.priorities = density, priorities
        self.log_temperature = Temperatures(hp.n_ensemble).to(next(actor.parameters()).device)
        self.actor_optimizer = torch.optim.Adam(actor.parameters(), lr=hp.actor_lr)
        self.critic_1_optimizer = torch.optim.Adam(critic_1.parameters(), lr=hp.critic_lr)
        self.critic_2_optimizer = torch.optim.Adam(critic_2.parameters(), lr=hp.critic_lr)
        self.density_optimizer = torch.optim.Adam(density.parameters(), lr=hp.density_lr)
        self.log_temperature_optimizer = torch.optim.Adam(self.log_temperature.parameters(), lr=hp.actor_lr)
        self.total_it = 0
        # The number of those updates that were made before this run
        self.earlier = 0

    # -- offline: each member by itself --

    def each_alpha_loss(self, each_log_prob: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Raises each temperature while its member's entropy is below -A, minus one nat for each dimension."""
        log_temperature = self.log_temperature()[:, None]
        return -(log_temperature * (each_log_prob - self.action_dim)).mean(axis=1).sum(), {}

    def each_actor_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """Soft actor-critic's loss for every member, which raises its smaller critic's value and the entropy."""
        actor, critic_1, critic_2 = self.actor, self.critic_1, self.critic_2
        actions, log_prob = sample_each(actor, batch.observations, noise.each_actor)
        q = minimum(critic_1(batch.observations, actions), critic_2(batch.observations, actions))
        assert log_prob.shape[1:] == q.shape[1:] == batch.rewards.shape
        alpha = exp(self.log_temperature().detach())[:, None]
        return (alpha * log_prob - q).mean(axis=1).sum(), {"log_prob": log_prob.detach()}

    @torch.no_grad()
    def each_target(self, batch: Batch, noise: Noise) -> Tensor:
        """The regression target of each member's critics, (E, B), without entropy, as in CQL."""
        critic_1, critic_2 = self.critic_1_target, self.critic_2_target
        actions, _ = sample_each(self.actor, batch.next_observations, noise.each_target)
        next_q = minimum(critic_1(batch.next_observations, actions), critic_2(batch.next_observations, actions))
        assert next_q.shape[1:] == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + (1.0 - batch.terminals) * self.hp.discount * next_q

    def gap(
        self, critic: Critic, batch: Batch, q: Tensor, random: Tensor, samples: tuple[tuple[Tensor, Tensor], ...]
    ) -> Tensor:
        """The mean gap (E,) between the soft maximum over sampled actions and the data's values q (E, B)."""
        (current, current_log_prob), (next, next_log_prob) = samples
        log_density = math.log(0.5 ** random.shape[-1])
        q_ratios = [
            critic(batch.observations, random) - log_density,
            # The next actions are evaluated in the current states.
            critic(batch.observations, next) - next_log_prob,
            critic(batch.observations, current) - current_log_prob,
        ]
        ood = logsumexp(concatenate(q_ratios, axis=2), axis=2)
        assert ood.shape == q.shape
        return (ood - q).mean(axis=1)

    def each_critic_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """Every member's two critics' squared errors to its own target, and their conservative terms."""
        target = self.each_target(batch, noise)
        with torch.no_grad():
            current = sample_each(self.actor, batch.observations, noise.current)
            next = sample_each(self.actor, batch.next_observations, noise.next)
        losses, metrics = [], {"average_target_q": target.mean()}
        for number, critic in enumerate((self.critic_1, self.critic_2), start=1):
            q = critic(batch.observations, batch.actions)
            assert q.shape == target.shape
            td_loss = square(q - target).mean(axis=1)
            gap = self.gap(critic, batch, q, noise.random, (current, next))
            losses.append((td_loss + self.hp.cql_alpha * gap).sum())
            own = {"qf{}_loss": td_loss.mean(), "average_qf{}": q.mean(), "cql_qf{}_diff": gap.mean()}
            metrics |= {name.format(number): value for name, value in own.items()}
        return losses[0] + losses[1], metrics

    # -- online: the ensemble as one agent --

    def temperature(self) -> Tensor:
        """The ensemble's temperature, the geometric mean of its members': a constant in every loss except its own."""
        return exp(self.log_temperature().detach().mean())

    def alpha_loss(self, log_prob: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Raises the temperature while the ensemble's entropy is below -A."""
        return -(self.log_temperature().mean() * (log_prob - self.action_dim)).mean(), {}

    def actor_loss(self, batch: BalancedBatch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """Soft actor-critic's loss, which raises the mean of the members' smaller values and the mixture's entropy."""
        critic_1, critic_2 = self.critic_1, self.critic_2
        actions, log_prob = sample(self.actor, batch.observations, noise.actor)
        q = pessimistic(critic_1, critic_2, batch.observations, actions)
        assert log_prob.shape == q.shape == batch.rewards.shape
        return (self.temperature() * log_prob - q).mean(), {"log_prob": log_prob.detach()}

    @torch.no_grad()
    def td_target(self, batch: BalancedBatch, noise: Noise) -> Tensor:
        """The regression target of all critics, (B,): the ensemble's value of its next action, plus entropy."""
        actions, log_prob = sample(self.actor, batch.next_observations, noise.target)
        next_q = pessimistic(self.critic_1_target, self.critic_2_target, batch.next_observations, actions)
        assert next_q.shape == log_prob.shape == batch.rewards.shape == batch.terminals.shape
        next_value = next_q - self.temperature() * log_prob
        return batch.rewards + (1.0 - batch.terminals) * self.hp.discount * next_value

    def critic_loss(self, batch: BalancedBatch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """Every critic's squared error to the same target, without conservative terms."""
        target = self.td_target(batch, noise)
        losses, metrics = [], {"average_target_q": target.mean()}
        for number, critic in enumerate((self.critic_1, self.critic_2), start=1):
            q = critic(batch.observations, batch.actions)
            assert q.shape[1:] == target.shape
            td_loss = square(q - target).mean(axis=1)
            losses.append(td_loss.sum())
            metrics |= {f"qf{number}_loss": td_loss.mean(), f"average_qf{number}": q.mean()}
        return losses[0] + losses[1], metrics

    def density_loss(self, batch: BalancedBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Minus the bound of the Jensen-Shannon divergence, which is largest at the ratio of both densities.

        With f'(w) = log(2w / (w + 1)) and f*(f'(w)) = log((w + 1) / 2), both are softplus functions of log w.
        """
        offline, _ = shares(self.hp)
        log_w = self.density(batch.compared_observations, batch.compared_actions)
        slope = math.log(2.0) - softplus(-log_w[offline:])
        conjugate = softplus(log_w[:offline]) - math.log(2.0)
        return conjugate.mean() - slope.mean(), {}

    @torch.no_grad()
    def ratios(self, batch: BalancedBatch) -> Tensor:
        """The batch's new priorities, (B,): tempered ratios, divided by their mean over the dataset's rows."""
        (offline, _), temperature = shares(self.hp), self.hp.density_temperature
        log_w = self.density(batch.observations, batch.actions)
        offline_log_w = self.density(batch.compared_observations[:offline], batch.compared_actions[:offline])
        # A difference of logarithms, because in single precision the ratios themselves may all be 0.
        log_mean = logsumexp(offline_log_w / temperature, axis=0) - math.log(offline)
        return exp(log_w / temperature - log_mean)

    # -- priorities --

    def begin(self, dataset_size: int) -> None:
        """Every row of the dataset has the priority 1, and there are no other rows."""
        fill(self.priorities(), dataset_size, 1.0)

    def enter(self, place: int, dataset_size: int) -> None:
        """Gives a new row of the environment, at this place, its first priority.

        At the first online update, `online_share` of the sum of priorities belongs to the environment's rows.
        """
        hp = self.hp
        odds = hp.online_share / (1.0 - hp.online_share)
        priority = odds * dataset_size / (hp.learning_starts + 1)
        tree = self.priorities()
        write(tree, torch.tensor([place], device=tree.device), torch.full_like(tree[:1], priority))

    def balanced(self, dataset: Batch, ring: Batch, indices: Tensor, noise: Noise) -> BalancedBatch:
        """An online update's batch: rows by priority, and the rows at the indices (B,) for the density ratio."""
        places = find(self.priorities(), noise.row)
        rows, compared = take_either(dataset, ring, places), take_both(dataset, ring, indices, shares(self.hp)[0])
        seen = (places >= len(dataset.rewards)).to(dataset.rewards)
        batch = rows.observations, rows.actions, rows.rewards, rows.next_observations, rows.terminals
        return BalancedBatch(*batch, places, seen, compared.observations, compared.actions)

    # -- update --

    @property
    def online(self) -> bool:
        """Whether the next update is one of the online phase."""
        return self.total_it - self.earlier >= self.hp.offline_iterations

    def update(self, batch: Any, noise: Noise) -> dict[str, Tensor]:
        """One gradient step, on a `Batch` offline and on a `BalancedBatch` online; last the targets.

        Every loss is computed at the old parameters. Priorities are computed from the new density ratio.
        """
        hp = self.hp
        online = self.online
        self.total_it += 1
        actor_loss, aux = (self.actor_loss if online else self.each_actor_loss)(batch, noise)
        critic_loss, metrics = (self.critic_loss if online else self.each_critic_loss)(batch, noise)
        alpha_loss, _ = (self.alpha_loss if online else self.each_alpha_loss)(aux["log_prob"])
        metrics |= {"log_pi": aux["log_prob"].mean(), "policy_loss": actor_loss, "alpha": self.temperature()}
        metrics |= {"alpha_loss": alpha_loss}
        if online:
            density_loss, _ = self.density_loss(batch)
            gradient_step(density_loss, self.density_optimizer)
            priorities = self.ratios(batch)
            write(self.priorities(), batch.places, priorities)
            metrics |= {"density_loss": density_loss, "priority": priorities.mean(), "online_share": batch.seen.mean()}
        gradient_step(actor_loss, self.actor_optimizer)
        gradient_step(critic_loss, self.critic_1_optimizer, self.critic_2_optimizer)
        gradient_step(alpha_loss, self.log_temperature_optimizer)
        soft_update(self.critic_1_target, self.critic_1, hp.tau)
        soft_update(self.critic_2_target, self.critic_2, hp.tau)
        return {name: value.detach() for name, value in metrics.items()}

    @torch.no_grad()
    def explore(self, observations: Tensor, noise: Exploration) -> Tensor:
        """Actions (E, A) to learn from, for normalised observations (E, S): samples of the ensemble, nothing added."""
        actions, _ = sample(self.actor, observations, noise.action)
        return actions

    def act(self, observations: np.ndarray) -> np.ndarray:
        """Calls `policy` with NumPy arrays."""
        return on_arrays(policy, self.actor, observations)

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint."""
        names = ("actor", "critic_1", "critic_2", "critic_1_target", "critic_2_target", "density", "priorities")
        optimizers = [f"{name}_optimizer" for name in ("actor", "critic_1", "critic_2", "density", "log_temperature")]
        return {name: getattr(self, name) for name in (*names, "log_temperature", *optimizers)}


def policy(actor: Actor, observations: Tensor) -> Tensor:
    """The ensemble's most likely actions (E, A) for normalised observations (E, S)."""
    mean, _ = mixture(actor, observations)
    return actor.max_action * tanh(mean)


# ---- training ------------------------------------------------------------------------------------------------------


def create_trainer(config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> BalancedReplay:
    """Fresh networks, drawn from torch's generator on the CPU: critics 1, critics 2, policies, density ratio."""
    critics = config.critic_n_hiddens, config.hidden_dim, config.n_ensemble
    critic_1 = Critic(state_dim, action_dim, *critics)
    critic_2 = Critic(state_dim, action_dim, *critics)
    actor = Actor(state_dim, action_dim, max_action, config.hidden_dim, config.n_ensemble)
    density = Density(state_dim, action_dim, config.hidden_dim)
    parts = actor, critic_1, critic_2, density, Priorities(2 * config.buffer_size)
    device = resolve_device(config.device)
    return BalancedReplay(config, *(part.to(device) for part in parts))


def save(trainer: BalancedReplay, path: Path, experience: OnlineExperience | None = None, **facts: Any) -> None:
    """Writes the new part of the experience, then a checkpoint beside it."""
    if experience is not None:
        experience.save(path.parent)
    save_checkpoint(path, "finetune/balanced_replay", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: BalancedReplay, path: str) -> dict[str, Any]:
    """Loads a checkpoint; returns its contents."""
    content = load_checkpoint(path, "finetune/balanced_replay", trainer.parts())
    trainer.total_it = content["total_it"]
    return content


def train(config: TrainConfig) -> Run:
    """Trains on the data, then in the environment, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used.
    """
    preparation = Preparation(
        rewards=ScaledRewards(config.reward_scale, config.reward_bias).where(config.normalize_reward),
        normalise=config.normalize,
    )
    task = load_task(config, preparation)
    device = resolve_device(config.device)
    experience = training_environment(config, task)
    seed_everything(config.seed)
    trainer = create_trainer(config, task.state_dim, task.action_dim, task.max_action)
    run = Run(config, task, "finetune/balanced_replay", "torch", device)
    history = restore(run, partial(load, trainer), device, experience.go_on_from)
    trainer.earlier = trainer.total_it - run.step
    dataset = to_device(task.dataset, device)
    ring = Ring(dataset, room(config, 0), keeps_dataset=False)
    ring.push(experience.transitions())
    switch, size = config.offline_iterations, len(dataset.rewards)
    if run.step <= switch:
        trainer.begin(size)
    with run:
        if run.is_due(run.step):
            run.evaluate(run.step, trainer.act)
        for step in range(run.step + 1, config.max_timesteps + 1):
            if step > switch:
                observation = torch.as_tensor(experience.observation[None]).to(dataset.observations)
                action = trainer.explore(observation, draw_exploration(config, task.action_dim, device))
                experience.step(action[0].cpu().numpy())
                ring.push(experience.last())
                trainer.enter(size + (experience.size - 1) % len(ring.rows.rewards), size)
            if switch < step <= switch + config.learning_starts:
                trainer.total_it += 1
            else:
                online_size = ring.size if step > switch else None
                indices, noise = draw_noise(config, size, task.action_dim, device, online_size)
                online = step > switch
                batch = trainer.balanced(dataset, ring.rows, indices, noise) if online else take(dataset, indices)
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
    cli(train, TrainConfig, "finetune/balanced_replay")
