"""Cal-QL in PyTorch, offline to online: conservative critics, bounded from below by the data's returns.

Its twin is `corl_jax/finetune/cal_ql.py`. All except the bound and the buffers is from `corl_torch/finetune/cql.py`.

Nakamoto et al., Cal-QL: Calibrated Offline RL Pre-Training for Efficient Online Fine-Tuning, 2023,
https://arxiv.org/abs/2303.05479
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from shared.runs.start import cli

import numpy as np
import torch
from torch import (
    Tensor,
    clamp,
    concatenate,
    exp,
    log,
    logsumexp,
    maximum,
    minimum,
    nn,
    square,
    std,
    take_along_dim,
    tanh,
)
from torch.nn.functional import softplus

from shared.data.episodes import Episodes
from shared.data.online import OnlineExperience
from shared.data.returns import CalibrationBatch, EndedBatch, unknown_returns, with_returns
from shared.data.rewards import Rewards, ScaledRewards
from shared.envs.scores import reference
from shared.errors import InputError
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.torch_data import index_tensor, take, to_device
from shared.frameworks.torch_layers import Scalar
from shared.frameworks.torch_ring import Ring, room, take_both
from shared.frameworks.torch_side import mean_metrics, on_arrays, resolve_device, seed_everything
from shared.runs.fields import bounded, positive
from shared.runs.run import Run
from shared.runs.settings import FinetuneConfig
from shared.runs.task import Extract, Preparation, load_task, training_environment

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Transitions in a batch
    batch_size: int = bounded(256, low=1)
    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Factor on the entropy temperature; without automatic tuning, the temperature itself
    alpha_multiplier: float = bounded(1.0, low=0)
    # Tune the temperature towards an entropy of minus the number of action dimensions
    tune_temperature: bool = True
    # Subtract the entropy term in the critics' target
    backup_entropy: bool = False
    # Learning rate of the actor and of the entropy temperature
    actor_lr: float = positive(3e-5)
    # Learning rate of the critics and of the Lagrange multiplier
    critic_lr: float = positive(3e-4)
    # Rate at which the target critics follow the critics
    tau: float = bounded(5e-3, low=0, high=1)
    # Updates between two steps of the targets
    target_update_period: int = bounded(1, low=1)
    # Actions sampled per state for each part of the conservative term
    cql_n_actions: int = bounded(10, low=1)
    # Weigh the sampled actions by their density, CQL(H)
    cql_importance_sample: bool = True
    # Tune the weight of the conservative term towards a target gap
    cql_lagrange: bool = False
    # Target gap between the values of out-of-distribution actions and of the data's
    cql_target_action_gap: float = -1.0
    # Temperature of the soft maximum over sampled actions
    cql_temp: float = positive(1.0)
    # Weight of the conservative term, offline
    cql_alpha: float = bounded(10.0, low=0)
    # Weight of the conservative term, online
    cql_alpha_online: float = bounded(10.0, low=0)
    # Use the best of cql_n_actions next actions in the critics' target
    cql_max_target_backup: bool = False
    # Lower bound of a row's gap
    cql_clip_diff_min: float = -math.inf
    # Upper bound of a row's gap
    cql_clip_diff_max: float = math.inf
    # Number of first updates whose actor loss contains no value; despite the name, nothing is cloned, as in CORL
    bc_steps: int = bounded(0, low=0)
    # Updates on the dataset alone
    offline_iterations: int = bounded(1_000_000, low=0)
    # Share of the online phase's batches that comes from the dataset; the rest comes from the environment
    offline_share: float = bounded(0.5, low=0, high=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, FinetuneConfig):
    """The settings of a whole run."""

    group: str = "Cal-QL-D4RL"
    name: str = "Cal-QL"
    # Largest dataset accepted, in transitions, and the capacity for the environment's, which overwrite the oldest
    buffer_size: int = bounded(2_000_000, low=1)
    # Orthogonal initialisation of every layer of the actor and of the critics, including the last ones
    orthogonal_init: bool = True
    # Normalise states to mean 0 and standard deviation 1
    normalize: bool = True
    # Scale rewards as CORL does for this kind of dataset, then by reward_scale and reward_bias; online too
    normalize_reward: bool = False
    # Hidden layers of each critic; the actor has three
    critic_n_hiddens: int = bounded(2, low=1)
    # Width of every hidden layer; CORL's is always 256
    hidden_dim: int = bounded(256, low=1)
    # Factor on rewards, if normalize_reward
    reward_scale: float = 1.0
    # Added to rewards after that, if normalize_reward
    reward_bias: float = 0.0
    # Treat trajectories that end with the smallest possible reward as failed: in their returns, it continues forever
    is_sparse_reward: bool = False


# ---- networks ------------------------------------------------------------------------------------------------------


def mlp(input_dim: int, output_dim: int, n_hidden_layers: int, hidden_dim: int, orthogonal: bool) -> nn.Sequential:
    """Hidden layers with ReLU; without orthogonal layers, the weights of the last one start near 0."""
    layers = []
    for _ in range(n_hidden_layers):
        layers += [nn.Linear(input_dim, hidden_dim), nn.ReLU()]
        input_dim = hidden_dim
    network = nn.Sequential(*layers, nn.Linear(input_dim, output_dim))
    if not orthogonal:
        nn.init.xavier_uniform_(network[-1].weight, gain=1e-2)
        return network
    for layer in network[::2]:
        nn.init.orthogonal_(layer.weight, gain=math.sqrt(2.0))
        nn.init.zeros_(layer.bias)
    return network


class Actor(nn.Module):
    """The policy: a normal distribution, squashed by tanh."""

    def __init__(
        self, state_dim: int, action_dim: int, max_action: float, hidden_dim: int, orthogonal_init: bool
    ) -> None:
        super().__init__()
        self.base_network = mlp(state_dim, 2 * action_dim, 3, hidden_dim, orthogonal_init)
        self.log_std_multiplier = Scalar(1.0)
        self.log_std_offset = Scalar(-1.0)
        self.action_dim, self.max_action = action_dim, max_action

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation (..., A) before tanh, for observations (..., S)."""
        mean, log_std = self.base_network(observations).chunk(2, axis=-1)
        log_std = self.log_std_multiplier() * log_std + self.log_std_offset()
        return mean, exp(clamp(log_std, -20.0, 2.0))


def sample(actor: Actor, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions (B, A) and their log-probabilities (B,) for noise (B, A); n of each per state for (B, n, A)."""
    if noise.ndim == 3:
        observations = observations[:, None].repeat(1, noise.shape[1], 1)
    mean, std = actor(observations)
    u = mean + noise * std
    actions = actor.max_action * tanh(u)
    # The order of these terms is the order in which their gradients are added: a different one changes the last bits.
    log_prob = -2.0 * (math.log(2.0) - u - softplus(-2.0 * u))
    log_prob = log_prob + (-square(u - mean) / (2.0 * square(std)) - log(std) - math.log(math.sqrt(2.0 * math.pi)))
    return actions, log_prob.sum(axis=-1)


class Critic(nn.Module):
    """Q(s, a)."""

    def __init__(
        self, state_dim: int, action_dim: int, n_hidden_layers: int, hidden_dim: int, orthogonal_init: bool
    ) -> None:
        super().__init__()
        self.network = mlp(state_dim + action_dim, 1, n_hidden_layers, hidden_dim, orthogonal_init)

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """The values (B,) of actions (B, A) in observations (B, S), or (B, n) of actions (B, n, A)."""
        if actions.ndim == 3:
            observations = observations[:, None].expand(-1, actions.shape[1], -1)
        return self.network(torch.cat([observations, actions], axis=-1)).squeeze(-1)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch, with n = cql_n_actions."""

    # Standard normal, (B, A): the policy's action in each state
    actor: Tensor
    # Standard normal, (B, A), in the first `bc_steps` updates only
    bc: Tensor | None
    # Standard normal, (B, A), or (B, n, A) with cql_max_target_backup: the policy's next actions in the target
    target: Tensor
    # Uniform in [-1, 1), (B, n, A): random actions for the conservative term
    random: Tensor
    # Standard normal, (B, n, A): the policy's actions for the conservative term
    current: Tensor
    # Standard normal, (B, n, A): the policy's next actions for the conservative term
    next: Tensor


def shares(hp: Hyperparameters) -> tuple[int, int]:
    """How many rows of an online batch come from the dataset, and how many from the environment."""
    offline = int(hp.batch_size * hp.offline_share)
    return offline, hp.batch_size - offline


def draw_noise(
    hp: Hyperparameters,
    dataset_size: int,
    action_dim: int,
    device: torch.device,
    online_size: int | None = None,
    in_bc_steps: bool = False,
) -> tuple[Tensor, Noise]:
    """An update's batch indices (B,), from NumPy's global generator, and its noise, from torch's.

    The dataset's rows come first. The environment's, if there are any, are numbered from `dataset_size` on.
    """
    one, many = (hp.batch_size, action_dim), (hp.batch_size, hp.cql_n_actions, action_dim)
    offline, online = shares(hp) if online_size is not None else (hp.batch_size, 0)
    indices = np.random.randint(0, dataset_size, size=offline)
    if online_size is not None:
        indices = np.append(indices, dataset_size + np.random.randint(0, online_size, size=online))
    noise = Noise(
        actor=torch.randn(one, device=device),
        bc=torch.randn(one, device=device) if in_bc_steps else None,
        target=torch.randn(many if hp.cql_max_target_backup else one, device=device),
        random=torch.empty(many, device=device).uniform_(-1.0, 1.0),
        current=torch.randn(many, device=device),
        next=torch.randn(many, device=device),
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


class CalQL:
    """All that an update reads and writes."""

    def __init__(self, hp: Hyperparameters, actor: Actor, critic_1: Critic, critic_2: Critic) -> None:
        self.hp = hp
        self.action_dim = actor.action_dim
        self.actor, self.critic_1, self.critic_2 = actor, critic_1, critic_2
        self.critic_1_target, self.critic_2_target = copy.deepcopy((critic_1, critic_2))
        device = next(actor.parameters()).device
        self.log_temperature, self.log_alpha_prime = Scalar(0.0).to(device), Scalar(1.0).to(device)
        self.actor_optimizer = torch.optim.Adam(actor.parameters(), lr=hp.actor_lr)
        self.critic_1_optimizer = torch.optim.Adam(critic_1.parameters(), lr=hp.critic_lr)
        self.critic_2_optimizer = torch.optim.Adam(critic_2.parameters(), lr=hp.critic_lr)
        self.log_temperature_optimizer = torch.optim.Adam(self.log_temperature.parameters(), lr=hp.actor_lr)
        self.log_alpha_prime_optimizer = torch.optim.Adam(self.log_alpha_prime.parameters(), lr=hp.critic_lr)
        self.total_it = 0
        # The number of those updates that were made before this run
        self.earlier = 0

    def temperature(self) -> Tensor:
        """The entropy temperature: a constant in every loss except its own."""
        if not self.hp.tune_temperature:
            return torch.tensor(self.hp.alpha_multiplier)
        return exp(self.log_temperature().detach()) * self.hp.alpha_multiplier

    def alpha_loss(self, log_prob: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Raises the temperature while the policy's entropy is below -A, minus one nat for each action dimension."""
        log_temperature = self.log_temperature()
        return -(log_temperature * (log_prob - self.action_dim)).mean(), {}

    def actor_loss(self, batch: CalibrationBatch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """Soft actor-critic's loss, which raises the smaller critic's value and the entropy."""
        actor, critic_1, critic_2 = self.actor, self.critic_1, self.critic_2
        actions, log_prob = sample(actor, batch.observations, noise.actor)
        q = minimum(critic_1(batch.observations, actions), critic_2(batch.observations, actions))
        if noise.bc is not None:
            # CORL's behaviour cloning scores a fresh sample of the policy, not the data's action.
            _, q = sample(actor, batch.observations, noise.bc)
        assert log_prob.shape == q.shape == batch.rewards.shape
        return (self.temperature() * log_prob - q).mean(), {"log_prob": log_prob.detach()}

    @torch.no_grad()
    def td_target(self, batch: CalibrationBatch, noise: Noise) -> tuple[Tensor, Tensor]:
        """The regression target of both critics and the next value in it, both (B,)."""
        hp, actor, critic_1, critic_2 = self.hp, self.actor, self.critic_1_target, self.critic_2_target
        actions, log_prob = sample(actor, batch.next_observations, noise.target)
        next_q = minimum(critic_1(batch.next_observations, actions), critic_2(batch.next_observations, actions))
        if hp.cql_max_target_backup:
            best = next_q.argmax(axis=-1)[:, None]
            next_q = take_along_dim(next_q, best, 1).squeeze(-1)
            log_prob = take_along_dim(log_prob, best, 1).squeeze(-1)
        if hp.backup_entropy:
            next_q = next_q - self.temperature() * log_prob
        assert next_q.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + (1.0 - batch.terminals) * hp.discount * next_q, next_q

    def gap(
        self,
        critic: Critic,
        batch: CalibrationBatch,
        q: Tensor,
        random: Tensor,
        samples: Sequence[tuple[Tensor, Tensor]],
        floor: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean gap between the soft maximum over sampled actions and the data's value q (B,).

        The policy's actions count as worth at least the floor (B,), so that they are not pushed below it.
        """
        hp, (current, current_log_prob), (next, next_log_prob) = self.hp, *samples
        q_random = critic(batch.observations, random)
        q_current = critic(batch.observations, current)
        # The next actions are evaluated in the current states.
        q_next = critic(batch.observations, next)
        earned, floor = batch.returns[:, None], floor[:, None]
        bound_current, bound_next = 1.0 * (q_current < earned), 1.0 * (q_next < earned)
        q_current, q_next = maximum(q_current, floor), maximum(q_next, floor)
        sampled = everything = concatenate([q_random, q[:, None], q_next, q_current], axis=1)
        if hp.cql_importance_sample:
            log_density = math.log(0.5 ** random.shape[-1])
            q_ratios = [q_random - log_density, q_next - next_log_prob, q_current - current_log_prob]
            sampled = concatenate(q_ratios, axis=1)
        ood = logsumexp(sampled / hp.cql_temp, axis=1) * hp.cql_temp
        assert ood.shape == q.shape
        gap = clamp(ood - q, hp.cql_clip_diff_min, hp.cql_clip_diff_max).mean()
        return gap, {
            "cql_std_q{}": std(everything, axis=1, correction=1).mean(),
            "cql_q{}_rand": q_random.mean(),
            "cql_q{}_current_actions": q_current.mean(),
            "cql_q{}_next_actions": q_next.mean(),
            "bound_rate_cql_q{}_current_actions": bound_current.mean(),
            "bound_rate_cql_q{}_next_actions": bound_next.mean(),
        }

    def penalty(self, gap: Tensor, alpha_prime: Tensor, cql_alpha: float) -> Tensor:
        """The conservative term; as in CORL, cql_alpha also multiplies the Lagrange form."""
        hp = self.hp
        if hp.cql_lagrange:
            return alpha_prime * cql_alpha * (gap - hp.cql_target_action_gap)
        return cql_alpha * gap

    def alpha_prime_loss(self, gap_1: Tensor, gap_2: Tensor, cql_alpha: float) -> tuple[Tensor, dict[str, Tensor]]:
        """Raises the conservative term's weight while the gaps are above their target."""
        alpha_prime = clamp(exp(self.log_alpha_prime()), 0.0, 1e6)
        loss = -0.5 * (self.penalty(gap_1, alpha_prime, cql_alpha) + self.penalty(gap_2, alpha_prime, cql_alpha))
        return loss, {"alpha_prime": alpha_prime}

    def critic_loss(
        self, batch: CalibrationBatch, noise: Noise, cql_alpha: float, floor: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Both critics' squared error to the same target, and their conservative terms."""
        target, next_q = self.td_target(batch, noise)
        with torch.no_grad():
            current = sample(self.actor, batch.observations, noise.current)
            next = sample(self.actor, batch.next_observations, noise.next)
            alpha_prime = clamp(exp(self.log_alpha_prime()), 0.0, 1e6)
        losses, metrics = [], {"average_target_q": next_q.mean()}
        for number, critic in enumerate((self.critic_1, self.critic_2), start=1):
            q = critic(batch.observations, batch.actions)
            assert q.shape == target.shape == floor.shape == batch.returns.shape
            td_loss = square(q - target).mean()
            gap, own = self.gap(critic, batch, q, noise.random, (current, next), floor)
            penalty = self.penalty(gap, alpha_prime, cql_alpha)
            losses.append(td_loss + penalty)
            own |= {"qf{}_loss": td_loss, "average_qf{}": q.mean(), "cql_qf{}_diff": gap, "cql_min_qf{}_loss": penalty}
            metrics |= {name.format(number): value for name, value in own.items()}
        return losses[0] + losses[1], metrics

    @property
    def online(self) -> bool:
        """Whether the next update is one of the online phase."""
        return self.total_it - self.earlier >= self.hp.offline_iterations

    def update(self, batch: CalibrationBatch, noise: Noise) -> dict[str, Tensor]:
        """One gradient step: every loss at the old parameters, then every optimiser's step; last the targets."""
        hp = self.hp
        # As in CORL, nothing is calibrated online.
        floor = torch.full_like(batch.returns, -math.inf) if self.online else batch.returns
        cql_alpha = hp.cql_alpha_online if self.online else hp.cql_alpha
        self.total_it += 1
        actor_loss, aux = self.actor_loss(batch, noise)
        metrics = {"log_pi": aux["log_prob"].mean(), "policy_loss": actor_loss, "alpha": self.temperature()}
        critic_loss, critic_metrics = self.critic_loss(batch, noise, cql_alpha, floor)
        # As in CORL, these are logged as 0 if they are not tuned.
        untuned = dict.fromkeys(("alpha_loss", "alpha_prime", "alpha_prime_loss"), torch.zeros_like(critic_loss))
        metrics |= critic_metrics | untuned
        if hp.cql_lagrange:
            gaps = metrics["cql_qf1_diff"].detach(), metrics["cql_qf2_diff"].detach()
            loss, own = self.alpha_prime_loss(*gaps, cql_alpha)
            gradient_step(loss, self.log_alpha_prime_optimizer)
            metrics |= {"alpha_prime_loss": loss, **own}
        if hp.tune_temperature:
            loss, _ = self.alpha_loss(aux["log_prob"])
            gradient_step(loss, self.log_temperature_optimizer)
            metrics["alpha_loss"] = loss
        gradient_step(actor_loss, self.actor_optimizer)
        gradient_step(critic_loss, self.critic_1_optimizer, self.critic_2_optimizer)
        if self.total_it % hp.target_update_period == 0:
            soft_update(self.critic_1_target, self.critic_1, hp.tau)
            soft_update(self.critic_2_target, self.critic_2, hp.tau)
        return {name: value.detach() for name, value in metrics.items()}

    @torch.no_grad()
    def explore(self, observations: Tensor, noise: Exploration) -> Tensor:
        """Actions (E, A) to learn from, for normalised observations (E, S): samples of the policy, nothing added."""
        actions, _ = sample(self.actor, observations, noise.action)
        return actions

    def act(self, observations: np.ndarray) -> np.ndarray:
        """Calls `policy` with NumPy arrays."""
        return on_arrays(policy, self.actor, observations)

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint, under CORL's keys."""
        return {
            "actor": self.actor,
            "critic1": self.critic_1,
            "critic2": self.critic_2,
            "critic1_target": self.critic_1_target,
            "critic2_target": self.critic_2_target,
            "critic_1_optimizer": self.critic_1_optimizer,
            "critic_2_optimizer": self.critic_2_optimizer,
            "actor_optim": self.actor_optimizer,
            "sac_log_alpha": self.log_temperature,
            "sac_log_alpha_optim": self.log_temperature_optimizer,
            "cql_log_alpha": self.log_alpha_prime,
            "cql_log_alpha_optim": self.log_alpha_prime_optimizer,
        }


def policy(actor: Actor, observations: Tensor) -> Tensor:
    """The policy's most likely actions (E, A) for normalised observations (E, S)."""
    mean, _ = actor(observations)
    return actor.max_action * tanh(mean)


# ---- training ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CalibratedRewards(Rewards):
    """CQL's scaled rewards, and the data's return from each step on."""

    config: TrainConfig

    def change(self, dataset: Any, env: str, episodes: Episodes | None = None) -> Callable[[Any], Any]:
        """The rewards as CQL changes them."""
        kind = ScaledRewards(self.config.reward_scale, self.config.reward_bias).where(self.config.normalize_reward)
        return kind.change(dataset, env, episodes)

    def modified(self, dataset: EndedBatch, env: str, episodes: Episodes | None = None) -> CalibrationBatch:
        """The transitions with changed rewards, and with their returns.

        Raises:
            InputError: The returns have no range, or the environment's smallest reward is unknown. Or the task is
                sparse and its rewards have a scaler.
        """
        config = self.config
        if config.is_sparse_reward and config.reward_scaler != "none":
            raise InputError(
                "failures are told by the least reward as it is: set reward_scaler to none on sparse tasks"
            )
        dataset = super().modified(dataset, env, episodes)
        failure = None
        if config.is_sparse_reward:
            failure = reference(env).min_score * config.reward_scale + config.reward_bias
        return with_returns(dataset, config.discount, failure)


def create_trainer(config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> CalQL:
    """Fresh networks, drawn from torch's generator on the CPU in CORL's order: critic 1, critic 2, actor."""
    layers = config.hidden_dim, config.orthogonal_init
    critic_1 = Critic(state_dim, action_dim, config.critic_n_hiddens, *layers)
    critic_2 = Critic(state_dim, action_dim, config.critic_n_hiddens, *layers)
    actor = Actor(state_dim, action_dim, max_action, *layers)
    device = resolve_device(config.device)
    return CalQL(config, actor.to(device), critic_1.to(device), critic_2.to(device))


def save(trainer: CalQL, path: Path, experience: OnlineExperience | None = None, **facts: Any) -> None:
    """Writes the new part of the experience, then, beside it, a checkpoint under CORL's keys."""
    if experience is not None:
        experience.save(path.parent)
    save_checkpoint(path, "finetune/cal_ql", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: CalQL, path: str) -> dict[str, Any]:
    """Loads a checkpoint, ours, also of an offline run, or CORL's, whose two temperatures are pickled modules.

    Returns its contents.
    """
    content = load_checkpoint(path, ["finetune/cal_ql", "finetune/cql", "cql"], trainer.parts(), pickled=[Scalar])
    trainer.total_it = content["total_it"]
    return content


def train(config: TrainConfig) -> Run:
    """Trains on the data, then in the environment, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used.
    """
    task = load_task(config, Preparation(Extract.ENDED, rewards=CalibratedRewards(config), normalise=config.normalize))
    device = resolve_device(config.device)
    experience = training_environment(config, task)
    seed_everything(config.seed)
    trainer = create_trainer(config, task.state_dim, task.action_dim, task.max_action)
    run = Run(config, task, "finetune/cal_ql", "torch", device)
    history = restore(run, partial(load, trainer), device, experience.go_on_from)
    trainer.earlier = trainer.total_it - run.step
    dataset = to_device(task.dataset, device)
    size, (offline, _) = len(dataset.rewards), shares(config)
    ring = Ring(dataset, room(config, 0), keeps_dataset=False)
    ring.push(unknown_returns(experience.transitions()))
    with run:
        if run.is_due(run.step):
            run.evaluate(run.step, trainer.act)
        for step in range(run.step + 1, config.max_timesteps + 1):
            if trainer.online:
                observation = torch.as_tensor(experience.observation[None]).to(dataset.observations)
                action = trainer.explore(observation, draw_exploration(config, task.action_dim, device))
                experience.step(action[0].cpu().numpy())
                ring.push(unknown_returns(experience.last()))
            online_size = ring.size if trainer.online else None
            in_bc_steps = trainer.total_it < config.bc_steps
            indices, noise = draw_noise(config, size, task.action_dim, device, online_size, in_bc_steps)
            batch = take_both(dataset, ring.rows, indices, offline) if trainer.online else take(dataset, indices)
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
    cli(train, TrainConfig, "finetune/cal_ql")
