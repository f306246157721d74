"""MOBILE in PyTorch: soft actor-critic on a learnt model's roll-outs, penalised where its members' values disagree.

Its twin is `corl_jax/model_based/mobile.py`. The model is from `corl_torch/model_based/dynamics.py`.

Sun et al., Model-Bellman Inconsistency Penalized Offline Policy Optimization, 2023,
https://proceedings.mlr.press/v202/sun23q.html
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from shared.runs.start import cli

import numpy as np
import torch
from torch import Tensor, amax, amin, clamp, concatenate, exp, log, nn, sqrt, square, stack, std, tanh, tile, zeros_like

from shared.data.dynamics import Draws, ModelSizes
from shared.data.transitions import Batch
from shared.errors import InputError
from shared.frameworks.learnt_model import check_roll_outs, load_model_based_task
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.torch_data import index_tensor, take, to_device
from shared.frameworks.torch_layers import Scalar
from shared.frameworks.torch_ring import Ring, take_both
from shared.frameworks.torch_side import mean_metrics, on_arrays, resolve_device, seed_everything
from shared.runs.fields import bounded, positive, unbounded, widths
from shared.runs.run import Run
from shared.runs.settings import EpochsConfig, ImitationConfig, ModelledConfig

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update or a roll-out depends on; in JAX, they are compile-time constants."""

    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Rate at which the target critics follow the critics
    tau: float = bounded(0.005, low=0, high=1)
    # Initial learning rate of the policy, which falls to 0 along a cosine, epoch by epoch
    actor_lr: float = positive(1e-4)
    # Learning rate of the critics
    critic_lr: float = positive(3e-4)
    # Learning rate of the entropy temperature
    temperature_lr: float = positive(1e-4)
    # Tune the temperature towards the target entropy
    tune_temperature: bool = True
    # The temperature without automatic tuning
    fixed_temperature: float = bounded(0.2, low=0)
    # Target entropy; null or 0: minus the number of action dimensions
    target_entropy: float | None = unbounded(None)
    # Updates in all, over which the policy's learning rate falls to 0
    max_timesteps: int = bounded(3_000_000, low=1)
    # Updates in an epoch, in which the policy's learning rate is constant
    num_updates_on_epoch: int = bounded(1000, low=1)
    # Transitions in a batch
    batch_size: int = bounded(256, low=1)
    # Share of a batch that comes from the dataset; the rest comes from the model
    real_ratio: float = bounded(0.05, low=0, high=1)
    # States of the dataset that each round of roll-outs starts from
    rollout_batch_size: int = bounded(50_000, low=1)
    # Steps of a roll-out
    rollout_length: int = bounded(5, low=1)
    # Weight of the penalty in the targets of the model's transitions; 0: none
    penalty_coef: float = bounded(1.0, low=0)
    # Next states that are drawn from each elite for the penalty
    n_state_samples: int = bounded(10, low=1)
    # Next actions from which each target critic takes the best one; 1: the policy's action
    n_target_actions: int = bounded(1, low=1)
    # Add the next action's entropy to targets; with several next actions, none is added
    backup_entropy: bool = False
    # Raise targets below 0 to 0, as the authors' code does; for rewards below 0, set it to false
    nonnegative_targets: bool = True


@dataclass(frozen=True)
class TrainConfig(ModelledConfig, Hyperparameters, EpochsConfig, ImitationConfig):
    """The settings of a whole run."""

    group: str = "MOBILE-D4RL"
    name: str = "MOBILE"
    # Dataset: mini/pendulum-replay, a D4RL id, minari:NAME, or the path of an HDF5 file
    env: str = "mini/pendulum-replay"
    # Run of model_based/dynamics in the same framework: its folder, or a checkpoint; empty: the one with this dataset
    # and seed below runs_path, which is made first if there is none
    dynamics: str = ""
    # Updates between two rounds of roll-outs
    rollout_freq: int = bounded(1000, low=1)
    # Rounds of roll-outs, none of which ends early, that the model's buffer can store; the oldest transitions are
    # overwritten
    model_retain_epochs: int = bounded(5, low=1)
    # Widths of the hidden layers of the policy and of the critics
    hidden_dims: tuple[int, ...] = widths(256, 256)
    # Critics, whose smallest value counts
    n_critics: int = bounded(2, low=1)
    CORL_EPOCHS: ClassVar[dict[str, str]] = {"epoch": "max_timesteps"}


# ---- networks ------------------------------------------------------------------------------------------------------


class MLP(nn.Module):
    """Hidden layers, each followed by ReLU."""

    def __init__(self, input_dim: int, hidden_dims: Sequence[int]) -> None:
        super().__init__()
        dims = [input_dim, *hidden_dims]
        self.model = nn.Sequential(*(layer for a, b in pairwise(dims) for layer in (nn.Linear(a, b), nn.ReLU())))
        self.output_dim = dims[-1]

    def forward(self, inputs: Tensor) -> Tensor:
        """The last hidden layer (..., H)."""
        return self.model(inputs)


class Gaussian(nn.Module):
    """Means and log standard deviations of actions."""

    def __init__(self, input_dim: int, action_dim: int) -> None:
        super().__init__()
        self.mu = nn.Linear(input_dim, action_dim)
        self.sigma = nn.Linear(input_dim, action_dim)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation (..., A) for a hidden layer (..., H)."""
        return self.mu(hidden), exp(clamp(self.sigma(hidden), -5.0, 2.0))


class Actor(nn.Module):
    """The policy: a normal distribution, squashed by tanh."""

    def __init__(self, backbone: MLP, action_dim: int, max_action: float) -> None:
        super().__init__()
        self.backbone = backbone
        self.dist_net = Gaussian(backbone.output_dim, action_dim)
        self.action_dim, self.max_action = action_dim, max_action

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation (B, A) before tanh, for observations (B, S)."""
        return self.dist_net(self.backbone(observations))


def sample(actor: Actor, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions (B, A) and their log-probabilities (B,) for noise (B, A)."""
    mean, std = actor(observations)
    u = mean + noise * std
    squashed = tanh(u)
    log_prob = (-square(u - mean) / (2.0 * square(std)) - log(std) - LOG_SQRT_2PI).sum(axis=-1)
    log_prob = log_prob - log(actor.max_action * (1.0 - square(squashed)) + 1e-6).sum(axis=-1)
    return actor.max_action * squashed, log_prob


LOG_SQRT_2PI = math.log(math.sqrt(2.0 * math.pi))


class Critic(nn.Module):
    """Q(s, a)."""

    def __init__(self, backbone: MLP) -> None:
        super().__init__()
        self.backbone = backbone
        self.last = nn.Linear(backbone.output_dim, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """The values (...) of states and actions (..., S + A)."""
        return self.last(self.backbone(inputs)).squeeze(-1)


class Critics(nn.Module):
    """N critics Q(s, a) with separate weights."""

    def __init__(self, input_dim: int, hidden_dims: Sequence[int], n_critics: int) -> None:
        super().__init__()
        self.members = nn.ModuleList(Critic(MLP(input_dim, hidden_dims)) for _ in range(n_critics))

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """The values (N, ...) of actions (..., A) in observations (..., S)."""
        inputs = concatenate([observations, actions], axis=-1)
        return stack([member(inputs) for member in self.members])


def smallest(q: Tensor) -> Tensor:
    """The smallest (...) of the critics' values (N, ...)."""
    return amin(q, axis=0)


def repeat(observations: Tensor, n: int) -> Tensor:
    """The observations (B, S), each repeated n times: (B, n, S)."""
    return tile(observations[:, None], (1, n, 1))


# ---- batches -------------------------------------------------------------------------------------------------------


class ModelledBatch(NamedTuple):
    """B transitions, the dataset's first, and the K elites' predictions for the model's M transitions."""

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    next_observations: Tensor
    terminals: Tensor
    # (K, M, S): the means of the next states that the elites predict for the last M rows
    means: Tensor
    # (K, M, S): their standard deviations
    stds: Tensor


class Sources(NamedTuple):
    """The sources of a batch."""

    # The dataset
    rows: Batch
    # The model's transitions
    ring: Batch
    # Has `dynamics`, `elites`, `mean` and `std`, as the `Model` of `corl_torch/model_based/dynamics.py`
    model: Any


def elite_predictions(model: Any, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """The elites' means and standard deviations (K, M, S) of the states after actions (M, A) in states (M, S)."""
    inputs = (concatenate([observations, actions], axis=-1) - model.mean) / model.std
    mean, log_var = model.dynamics(inputs)
    # The last number is the reward. The others are changes of the state.
    return mean[model.elites, :, :-1] + observations, sqrt(exp(log_var[model.elites, :, :-1]))


def take_modelled(sources: Sources, indices: Tensor, real: int) -> ModelledBatch:
    """A batch: the first `real` of the indices (B,) are rows of the dataset, the others of the model's transitions."""
    rows = take_both(sources.rows, sources.ring, indices, real)
    predictions = elite_predictions(sources.model, rows.observations[real:], rows.actions[real:])
    return ModelledBatch(*(*rows, *predictions))


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch; M of its B rows come from the model."""

    # Standard normal, (n, K, M, S): the elites' next states in the penalty
    states: Tensor
    # Standard normal, (n, K, M, A): the policy's actions in these states
    penalty: Tensor
    # Standard normal, (B, m, A): the policy's next actions in the target
    target: Tensor
    # Standard normal, (B, A): the policy's actions in the current states
    actor: Tensor


def shares(hp: Hyperparameters) -> tuple[int, int]:
    """How many rows of a batch come from the dataset, and how many from the model."""
    real = int(hp.batch_size * hp.real_ratio)
    return real, hp.batch_size - real


def draw_noise(
    hp: Hyperparameters,
    dataset_size: int,
    synthetic_size: int,
    n_elites: int,
    state_dim: int,
    action_dim: int,
    device: torch.device,
) -> tuple[Tensor, Noise]:
    """An update's batch indices (B,), from NumPy's global generator, and its noise, from torch's.

    The dataset's rows come first. The model's are numbered from `dataset_size` on. As in the reference, the penalty's
    noise is drawn for all rows and for the reward, but only the part for the model's rows and for the state is used.
    """
    real, synthetic = shares(hp)
    indices = np.random.randint(0, dataset_size, size=real)
    indices = np.append(indices, dataset_size + np.random.randint(0, synthetic_size, size=synthetic))
    n = hp.n_state_samples
    states = [torch.randn(n_elites, hp.batch_size, state_dim + 1, device=device) for _ in range(n)]
    penalty = torch.randn(n * n_elites * hp.batch_size, action_dim, device=device)
    target = torch.randn(hp.batch_size * hp.n_target_actions, action_dim, device=device)
    noise = Noise(
        states=stack(states)[:, :, real:, :-1],
        penalty=penalty.reshape(n, n_elites, hp.batch_size, action_dim)[:, :, real:],
        target=target.reshape(hp.batch_size, hp.n_target_actions, action_dim),
        actor=torch.randn(hp.batch_size, action_dim, device=device),
    )
    return index_tensor(indices, device), noise


class Starts(NamedTuple):
    """The first states of roll-outs."""

    # (n,), rows of the dataset
    indices: Tensor


def draw_starts(hp: Hyperparameters, dataset_size: int) -> Starts:
    """The first states of a round of roll-outs, from NumPy's global generator."""
    return Starts(torch.as_tensor(np.random.randint(0, dataset_size, size=hp.rollout_batch_size)))


class StepDraws(NamedTuple):
    """The random numbers that a step of n roll-outs draws."""

    # Standard normal, (n, A): the policy's actions
    actor: Tensor
    # The model's own draws
    model: Draws


def draw_step(hp: Hyperparameters, rows: int, sizes: ModelSizes) -> StepDraws:
    """The draws for a step of so many roll-outs: the policy's from torch's generator, the model's from NumPy's."""
    noise = torch.randn(rows, sizes.action_dim)
    normals = np.random.normal(size=(sizes.n_ensemble, rows, sizes.state_dim + 1))
    chosen = np.random.randint(0, sizes.n_elites, size=rows)
    return StepDraws(noise, Draws(torch.as_tensor(normals), torch.as_tensor(chosen)))


# ---- losses and update ---------------------------------------------------------------------------------------------


def actor_lr(hp: Hyperparameters, updates: int) -> float:
    """The policy's learning rate after so many updates: a cosine from `actor_lr` to 0, constant within an epoch."""
    done = updates // hp.num_updates_on_epoch * hp.num_updates_on_epoch
    return hp.actor_lr * (1.0 + math.cos(math.pi * done / hp.max_timesteps)) / 2.0


def gradient_step(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """One step of the optimiser down the gradient of the loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def soft_update(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Polyak averaging: the target moves a step of size tau towards the source, in place."""
    for old, new in zip(target.parameters(), source.parameters(), strict=True):
        old.data.copy_(old.data * (1.0 - tau) + new.data * tau)


class MOBILE:
    """All that an update reads and writes."""

    def __init__(self, hp: Hyperparameters, actor: Actor, critic: Critics) -> None:
        self.hp = hp
        self.actor, self.critic = actor, critic
        self.critic_target = copy.deepcopy(critic)
        self.log_temperature = Scalar(0.0).to(next(actor.parameters()).device)
        self.actor_optimizer = torch.optim.Adam(actor.parameters(), lr=hp.actor_lr)
        self.critic_optimizer = torch.optim.Adam(critic.parameters(), lr=hp.critic_lr)
        self.log_temperature_optimizer = torch.optim.Adam(self.log_temperature.parameters(), lr=hp.temperature_lr)
        self.total_it = 0

    def temperature(self) -> Tensor:
        """The entropy temperature, 1 at most: a constant in every loss except its own."""
        if not self.hp.tune_temperature:
            return torch.tensor(self.hp.fixed_temperature)
        return clamp(exp(self.log_temperature().detach()), 0.0, 1.0)

    def penalties(self, batch: ModelledBatch, noise: Noise) -> Tensor:
        """How much the elites disagree on the value of each row's next state, (B,); 0 for the dataset's rows.

        Each elite's value is a mean over n of its next states. The penalty is the deviation of these K means.
        """
        actor, critic = self.actor, self.critic_target
        next_states = batch.means + batch.stds * noise.states
        actions, _ = sample(actor, next_states, noise.penalty)
        values = smallest(critic(next_states, actions)).mean(axis=0)
        assert values.shape == batch.means.shape[:-1]
        disagreement = std(values, axis=0, correction=1)
        real = batch.rewards[: len(batch.rewards) - len(disagreement)]
        return concatenate([zeros_like(real), disagreement])

    @torch.no_grad()
    def td_target(self, batch: ModelledBatch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """The regression target of all critics, (B,): the penalised reward plus the next action's value."""
        hp, actor, critic = self.hp, self.actor, self.critic_target
        next_observations = repeat(batch.next_observations, hp.n_target_actions)
        actions, log_prob = sample(actor, next_observations, noise.target)
        next_q = smallest(amax(critic(next_observations, actions), axis=-1))
        if hp.backup_entropy and hp.n_target_actions == 1:
            next_q = next_q - self.temperature() * log_prob.squeeze(-1)
        penalties = self.penalties(batch, noise)
        assert next_q.shape == penalties.shape == batch.rewards.shape == batch.terminals.shape
        rewards = batch.rewards - hp.penalty_coef * penalties
        target = rewards + hp.discount * (1.0 - batch.terminals) * next_q
        metrics = {"penalty": penalties.mean()}
        if hp.nonnegative_targets:
            metrics["raised_targets"] = (target < 0.0).to(target.dtype).mean()
            target = clamp(target, min=0.0)
        return target, metrics

    def critic_loss(self, batch: ModelledBatch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean squared error of all critics to the same target."""
        critic = self.critic
        target, metrics = self.td_target(batch, noise)
        q = critic(batch.observations, batch.actions)
        assert q.shape[1:] == target.shape
        return square(q - target).mean(), metrics

    def actor_loss(self, batch: ModelledBatch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """Maximizes the value of the policy's actions under the smallest critic, and their entropy."""
        critic = self.critic
        actions, log_prob = sample(self.actor, batch.observations, noise.actor)
        q = smallest(critic(batch.observations, actions))
        assert q.shape == log_prob.shape == batch.rewards.shape
        return -q.mean() + self.temperature() * log_prob.mean(), {"log_prob": log_prob.detach()}

    def alpha_loss(self, log_prob: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Raises the temperature while the policy's entropy is below its target."""
        log_temperature = self.log_temperature()
        # As in the reference, a target of 0 means that none is set.
        target_entropy = self.hp.target_entropy or -self.actor.action_dim
        return -(log_temperature * (log_prob + target_entropy)).mean(), {}

    def update(self, batch: ModelledBatch, noise: Noise) -> dict[str, Tensor]:
        """One gradient step: the critics; the actor, on the new critics; the temperature; the targets."""
        hp = self.hp
        critic_loss, metrics = self.critic_loss(batch, noise)
        gradient_step(critic_loss, self.critic_optimizer)
        for group in self.actor_optimizer.param_groups:
            group["lr"] = actor_lr(hp, self.total_it)
        actor_loss, aux = self.actor_loss(batch, noise)
        gradient_step(actor_loss, self.actor_optimizer)
        metrics |= {"critic_loss": critic_loss, "actor_loss": actor_loss, "entropy": -aux["log_prob"].mean()}
        if hp.tune_temperature:
            alpha_loss, _ = self.alpha_loss(aux["log_prob"])
            gradient_step(alpha_loss, self.log_temperature_optimizer)
            metrics |= {"alpha_loss": alpha_loss, "alpha": self.temperature()}
        soft_update(self.critic_target, self.critic, hp.tau)
        self.total_it += 1
        return {name: value.detach() for name, value in metrics.items()}

    @torch.no_grad()
    def roll_out(self, model: Any, observations: Tensor, draw: Callable[[int, Tensor], StepDraws]) -> Batch:
        """The transitions of roll-outs from states (n, S), step by step; those that have ended take no further step.

        Rewards are the model's own, because the penalty is computed anew in each update.

        Args:
            model: Has `step`, as the `Model` of `corl_torch/model_based/dynamics.py`.
            observations: The first states.
            draw: From a step's number and the numbers of the roll-outs that continue to their draws.
        """
        hp, steps = self.hp, []
        rows = torch.arange(len(observations), device=observations.device)
        for number in range(hp.rollout_length):
            if not len(rows):
                break
            draws = draw(number, rows)
            actions, _ = sample(self.actor, observations, draws.actor)
            step = model.step(observations, actions, draws.model, 0.0, "aleatoric")
            terminals = step.terminals.to(step.rewards.dtype)
            steps.append(Batch(observations, actions, step.rewards, step.next_observations, terminals))
            observations, rows = step.next_observations[~step.terminals], rows[~step.terminals]
        return Batch(*(concatenate(columns) for columns in zip(*steps, strict=True)))

    def act(self, observations: np.ndarray) -> np.ndarray:
        """Calls `policy` with NumPy arrays."""
        return on_arrays(policy, self.actor, observations)

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint, by name."""
        optimizers = (f"{name}_optimizer" for name in ("actor", "critic", "log_temperature"))
        names = ("actor", "critic", "critic_target", "log_temperature", *optimizers)
        return {name: getattr(self, name) for name in names}


def policy(actor: Actor, observations: Tensor) -> Tensor:
    """The policy's most likely actions (E, A) for observations (E, S)."""
    mean, _ = actor(observations)
    return actor.max_action * tanh(mean)


# ---- training ------------------------------------------------------------------------------------------------------


def imagine(trainer: MOBILE, model: Any, dataset: Batch, ring: Ring, sizes: ModelSizes) -> dict[str, Tensor]:
    """Rolls the model out from states of the dataset and stores the transitions; returns the metrics."""

    def draw(number: int, rows: Tensor) -> StepDraws:
        drawn = draw_step(trainer.hp, len(rows), sizes)
        return StepDraws(drawn.actor.to(rows.device), Draws(*(column.to(rows.device) for column in drawn.model)))

    # PyTorch can index a GPU's tensors with indices on the CPU.
    starts = take(dataset, draw_starts(trainer.hp, len(dataset.rewards)).indices)
    found = trainer.roll_out(model, starts.observations, draw)
    ring.extend(found)
    largest = torch.maximum(found.next_observations.abs().max(), found.rewards.abs().max())
    number = torch.tensor(float(len(found.rewards)))
    return {"rollout_transitions": number, "rollout_reward": found.rewards.mean(), "rollout_largest": largest}


def create_trainer(config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> MOBILE:
    """Fresh networks, drawn from torch's generator on the CPU in the reference's order: actor, then each critic."""
    actor = Actor(MLP(state_dim, config.hidden_dims), action_dim, max_action)
    critic = Critics(state_dim + action_dim, config.hidden_dims, config.n_critics)
    device = resolve_device(config.device)
    return MOBILE(config, actor.to(device), critic.to(device))


def save(trainer: MOBILE, path: Path, **facts: Any) -> None:
    """Writes a checkpoint; its `synthetic` contains the transitions of the model's roll-outs."""
    save_checkpoint(path, "model_based/mobile", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: MOBILE, path: str) -> dict[str, Any]:
    """Loads one of our checkpoints; returns its contents."""
    content = load_checkpoint(path, "model_based/mobile", trainer.parts())
    trainer.total_it = content["total_it"]
    return content


def train(config: TrainConfig) -> Run:
    """Trains, evaluates every `eval_freq` updates and fills the run's folder; without a model, trains one first.

    Raises:
        InputError: The dataset, the environment, the model or the checkpoint cannot be used.
        RunError: The model's roll-outs or a loss diverge.
    """
    task, learnt = load_model_based_task(config, "torch")
    if learnt.sizes.n_elites < 2:
        raise InputError("the penalty compares elites, and the model has only one: learn one with more n_elites")
    device = resolve_device(config.device)
    seed_everything(config.seed)
    trainer = create_trainer(config, task.state_dim, task.action_dim, task.max_action)
    run = Run(config, task, "model_based/mobile", "torch", device)
    dataset = to_device(task.dataset, device)
    capacity = config.rollout_batch_size * config.rollout_length * config.model_retain_epochs
    ring = Ring(dataset, capacity, keeps_dataset=False)
    history = restore(run, partial(load, trainer), device, ring.go_on_from)
    sources, sizes = Sources(dataset, ring.rows, learnt.model), (learnt.sizes.n_elites, task.state_dim, task.action_dim)
    with run:
        if run.is_due(run.step):
            run.evaluate(run.step, trainer.act)
        for step in range(run.step + 1, config.max_timesteps + 1):
            if (step - 1) % config.rollout_freq == 0:
                history.append(imagine(trainer, learnt.model, dataset, ring, learnt.sizes))
            indices, noise = draw_noise(config, len(dataset.rewards), ring.size, *sizes, device)
            history.append(trainer.update(take_modelled(sources, indices, shares(config)[0]), noise))
            run.advance(1)
            if run.is_due(step):
                metrics = mean_metrics(history)
                check_roll_outs(step, metrics)
                run.log(step, metrics)
                history.clear()
                run.save(step, partial(save, trainer, synthetic=ring.content()))
                run.evaluate(step, trainer.act)
            elif run.stopping:
                run.save(step, partial(save, trainer, synthetic=ring.content(), history=history))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "model_based/mobile")
