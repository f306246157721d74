"""A probabilistic ensemble in PyTorch that learns an environment's dynamics, for model-based algorithms.

Each member predicts a normal distribution of a step's change of state and reward. An update is one epoch: every member
takes its own bootstrapped rows in batches, then all are tested on held-out rows. `max_timesteps` counts epochs.

Its twin is `corl_jax/model_based/dynamics.py`.

Chua, Calandra, McAllister & Levine, Deep Reinforcement Learning in a Handful of Trials using Probabilistic Dynamics
Models, 2018, https://arxiv.org/abs/1805.12114

The penalties: Yu et al., MOPO: Model-based Offline Policy Optimization, 2020, https://arxiv.org/abs/2005.13239
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from shared.runs.start import cli

import numpy as np
import torch
from torch import Tensor, amax, argsort, concatenate, exp, nn, sigmoid, sqrt, square, stack, where, zeros_like
from torch.nn.functional import softplus

from shared.data.dynamics import Draws, Split, Step, fit_scaler, held_out_rows
from shared.data.transitions import Batch
from shared.envs.families import termination
from shared.envs.terminations import Terminated
from shared.frameworks.torch_checkpoints import load_checkpoint, read_checkpoint, restore, save_checkpoint
from shared.frameworks.torch_data import index_tensor, take, to_device
from shared.frameworks.torch_side import mean_metrics, resolve_device, seed_everything
from shared.runs.fields import bounded, choice, numbers, positive, widths
from shared.runs.modelling import check_model, load_model_task, settings_of
from shared.runs.run import Run
from shared.runs.settings import LimitsConfig, ModelledConfig, RecordConfig

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update or a step of the model depends on; in JAX, they are compile-time constants."""

    # Learning rate of all members
    learning_rate: float = positive(1e-3)
    # Weight decay of each layer, including the last one; it is a part of the loss
    dynamics_weight_decay: tuple[float, ...] = numbers((2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4), low=0.0)
    # Members of the ensemble
    n_ensemble: int = bounded(7, low=1)
    # Members that predict: the ones with the smallest errors on held-out rows
    n_elites: int = bounded(5, low=1)
    # Weight in the loss of the learnt bounds of the log-variance, which pulls them together
    logvar_loss_coef: float = bounded(0.01, low=0)
    # Share of the rows that is held out, at most a thousand rows
    holdout_ratio: float = bounded(0.2, low=0, high=1)
    # Epochs in a row without an improvement of any member by one per cent, after which training ends
    max_epochs_since_update: int = bounded(5, low=1)
    # Weight of the uncertainty that is subtracted from predicted rewards; 0: none
    penalty_coef: float = bounded(2.5, low=0)
    # That uncertainty: the members' own deviations, the distance between their means, or the deviation of those means
    uncertainty_mode: str = choice("aleatoric", "pairwise-diff", "ensemble_std")
    # Rows of each member in a batch
    batch_size: int = bounded(256, low=1)


@dataclass(frozen=True)
class TrainConfig(ModelledConfig, Hyperparameters, LimitsConfig, RecordConfig):
    """The settings of a whole run."""

    group: str = "Dynamics-D4RL"
    name: str = "Dynamics"
    # Dataset: mini/pendulum-replay, a D4RL id, minari:NAME, or the path of an HDF5 file
    env: str = "mini/pendulum-replay"
    # Epochs between two evaluations
    eval_freq: int = bounded(5, low=1)
    # Largest number of epochs
    max_timesteps: int = bounded(1000, low=1)
    # Widths of the hidden layers
    hidden_dims: tuple[int, ...] = widths(200, 200, 200, 200)
    # Steps of the roll-outs that an evaluation compares with the data
    rollout_length: int = bounded(20, low=1)
    # Roll-outs in an evaluation
    n_rollouts: int = bounded(200, low=1)


# ---- networks ------------------------------------------------------------------------------------------------------


class EnsembleLinear(nn.Module):
    """A linear layer for each of E members: (B, in), the same for all, or (E, B, in) to (E, B, out)."""

    def __init__(self, input_dim: int, output_dim: int, n_ensemble: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_ensemble, input_dim, output_dim))
        self.bias = nn.Parameter(torch.zeros(n_ensemble, 1, output_dim))
        # Truncated to [-2, 2], the function's default bounds
        nn.init.trunc_normal_(self.weight, std=1.0 / (2.0 * input_dim**0.5))

    def forward(self, inputs: Tensor) -> Tensor:
        """Maps every member's inputs with its own weights."""
        return inputs @ self.weight + self.bias


class Ensemble(nn.Module):
    """Members that predict means and log-variances of D numbers; the log-variances' bounds are learnt and shared."""

    def __init__(self, input_dim: int, hidden_dims: Sequence[int], output_dim: int, n_ensemble: int) -> None:
        super().__init__()
        dims = [input_dim, *hidden_dims]
        self.backbones = nn.ModuleList(EnsembleLinear(a, b, n_ensemble) for a, b in pairwise(dims))
        self.output_layer = EnsembleLinear(dims[-1], 2 * output_dim, n_ensemble)
        self.max_logvar = nn.Parameter(torch.full((output_dim,), 0.5))
        self.min_logvar = nn.Parameter(torch.full((output_dim,), -10.0))

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance (E, B, D) for inputs (B, S + A) or (E, B, S + A)."""
        hidden = inputs
        for layer in self.backbones:
            hidden = layer(hidden)
            hidden = hidden * sigmoid(hidden)
        mean, log_var = self.output_layer(hidden).chunk(2, dim=-1)
        log_var = self.max_logvar - softplus(self.max_logvar - log_var)
        return mean, self.min_logvar + softplus(log_var - self.min_logvar)

    @property
    def weights(self) -> list[Tensor]:
        """The weights (E, in, out) of each layer."""
        return [layer.weight for layer in (*self.backbones, self.output_layer)]


# ---- prediction ----------------------------------------------------------------------------------------------------


def norm(vectors: Tensor) -> Tensor:
    """The norms (...) of vectors (..., D)."""
    return sqrt(square(vectors).sum(axis=-1))


def uncertainty(mode: str, means: Tensor, stds: Tensor) -> Tensor:
    """The members' uncertainty (n,), from next states' means (E, n, S) and all predictions' deviations (E, n, D)."""
    apart = means - means.mean(axis=0)
    if mode == "aleatoric":
        return amax(norm(stds), axis=0)
    if mode == "pairwise-diff":
        return amax(norm(apart), axis=0)
    return sqrt(square(apart).mean(axis=(0, 2)))


class Model(NamedTuple):
    """A learnt model that can be rolled out."""

    dynamics: Ensemble
    # (K,), the members that predict, best first
    elites: Tensor
    # (S + A,) each, to scale inputs
    mean: Tensor
    std: Tensor
    terminated: Terminated

    def step(self, observations: Tensor, actions: Tensor, draws: Draws, penalty_coef: float, mode: str) -> Step:
        """A step from states (n, S) with actions (n, A); each row is a sample from the elite member chosen for it."""
        rows, state_dim = observations.shape
        mean, log_var = self.dynamics(scaled(observations, actions, self.mean, self.std))
        # Changes of the state become states; the last number is the reward.
        mean = concatenate([mean[..., :-1] + observations, mean[..., -1:]], axis=-1)
        std = sqrt(exp(log_var))
        samples = (mean + draws.normals * std).to(mean.dtype)
        sample = samples[self.elites[draws.chosen], torch.arange(rows, device=mean.device)]
        next_observations, raw_rewards = sample[:, :state_dim], sample[:, state_dim]
        terminals = self.terminated(next_observations)
        if penalty_coef == 0.0:
            return Step(next_observations, raw_rewards, terminals, raw_rewards, zeros_like(raw_rewards))
        penalties = uncertainty(mode, mean[..., :state_dim], std)
        return Step(next_observations, raw_rewards - penalty_coef * penalties, terminals, raw_rewards, penalties)


def scaled(observations: Tensor, actions: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """The model's inputs (..., S + A)."""
    return (concatenate([observations, actions], axis=-1) - mean) / std


def targets(batch: Batch) -> Tensor:
    """The targets of the predictions, (..., S + 1): how the state changes, and the reward."""
    return concatenate([batch.next_observations - batch.observations, batch.rewards[..., None]], axis=-1)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """An update draws nothing besides its order."""


def draw_split(hp: Hyperparameters, num_rows: int) -> Split:
    """A permutation of the rows from torch's generator, and the bootstrap from NumPy's global one."""
    held_out = held_out_rows(hp.holdout_ratio, num_rows)
    order, size = torch.randperm(num_rows).numpy(), num_rows - held_out
    bootstrap = np.random.randint(0, size, size=(hp.n_ensemble, size))
    return Split(order[:size], order[size:], bootstrap)


class Shuffle:
    """The order (E, n) in which members take their n rows: as drawn at first, then shuffled for each epoch."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.order: np.ndarray | None = None

    def next(self, n_ensemble: int) -> np.ndarray:
        """The order of the next epoch: the last one's, each member's row shuffled by NumPy's global generator."""
        if self.order is None:
            self.order = np.tile(np.arange(self.size), (n_ensemble, 1))
        else:
            places = np.argsort(np.random.uniform(size=self.order.shape), axis=-1)
            self.order = np.take_along_axis(self.order, places, axis=-1)
        return self.order


def draw_noise(hp: Hyperparameters, shuffle: Shuffle, device: torch.device) -> tuple[Tensor, Noise]:
    """An epoch's order (E, n)."""
    return index_tensor(shuffle.next(hp.n_ensemble), device), Noise()


# ---- rows ----------------------------------------------------------------------------------------------------------


class Parts(NamedTuple):
    """A dataset for an ensemble."""

    # All columns
    rows: Batch
    # (E, n), each member's rows
    members: Tensor
    # (H,), rows that no member learns from
    holdout: Batch


class Epoch(NamedTuple):
    """An update's data: all rows, the order in which each member takes its own (E, n), and the held-out rows."""

    rows: Batch
    indices: Tensor
    holdout: Batch


def in_parts(dataset: Batch, split: Split) -> Parts:
    """The dataset on the device, split into each member's rows and the held-out rows."""
    device = dataset.rewards.device
    members, holdout = split.training[split.bootstrap], index_tensor(split.holdout, device)
    return Parts(dataset, index_tensor(members, device), take(dataset, holdout))


def take_epoch(parts: Parts, order: Tensor) -> Epoch:
    """An epoch in the order (E, n) that was drawn for it."""
    return Epoch(parts.rows, parts.members.gather(1, order), parts.holdout)


# ---- losses and update ---------------------------------------------------------------------------------------------

# Relative improvement on a member's best loss that counts
IMPROVEMENT = 0.01


def gradient_step(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """One step of the optimiser down the gradient of the loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Dynamics:
    """All that an update reads and writes.

    `best_dynamics` has each member's weights from its smallest error on held-out rows, and the current bounds.
    """

    def __init__(self, hp: Hyperparameters, dynamics: Ensemble, num_inputs: int) -> None:
        device = dynamics.max_logvar.device
        self.hp = hp
        self.dynamics, self.best_dynamics = dynamics, copy.deepcopy(dynamics).requires_grad_(False)
        self.dynamics_optimizer = torch.optim.Adam(dynamics.parameters(), lr=hp.learning_rate)
        self.mean, self.std = torch.zeros(num_inputs, device=device), torch.ones(num_inputs, device=device)
        self.best_loss = torch.full((hp.n_ensemble,), 1e10, device=device)
        self.epochs_since_update = torch.zeros((), dtype=torch.int64, device=device)
        # These change in place, so that a checkpoint contains them as the buffers of a module.
        self.numbers = nn.Module()
        for name in ("mean", "std", "best_loss", "epochs_since_update"):
            self.numbers.register_buffer(name, getattr(self, name))
        self.total_it = 0

    def inputs(self, batch: Batch) -> Tensor:
        """The ensemble's inputs, (..., S + A), from a batch."""
        return scaled(batch.observations, batch.actions, self.mean, self.std)

    def model_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The negative log-likelihood of each member's rows (E, B), or of shared rows (B,); plus decay and bounds.

        Both are a part of the loss, so Adam scales their gradients as well.
        """
        hp, dynamics = self.hp, self.dynamics
        mean, log_var = dynamics(self.inputs(batch))
        target = targets(batch)
        assert target.shape == mean.shape[-target.ndim :]
        likelihood = (square(mean - target) * exp(-log_var)).mean(axis=(1, 2)).sum()
        loss = likelihood + log_var.mean(axis=(1, 2)).sum()
        decays = zip(hp.dynamics_weight_decay, dynamics.weights, strict=True)
        loss = loss + sum(decay * 0.5 * square(weight).sum() for decay, weight in decays)
        loss = loss + hp.logvar_loss_coef * dynamics.max_logvar.sum() - hp.logvar_loss_coef * dynamics.min_logvar.sum()
        return loss, {}

    @torch.no_grad()
    def holdout_losses(self, holdout: Batch) -> Tensor:
        """The squared error (E,) of each member's means on held-out rows; log-variances do not count."""
        mean, _ = self.dynamics(self.inputs(holdout))
        return square(mean - targets(holdout)).mean(axis=(1, 2))

    @torch.no_grad()
    def keep_best(self, losses: Tensor) -> None:
        """Keeps the members (E,) that have improved enough, and counts epochs in which none has."""
        improved = (self.best_loss - losses) / self.best_loss > IMPROVEMENT
        self.best_loss.copy_(where(improved, losses, self.best_loss))
        for best, now in zip(self.best_dynamics.parameters(), self.dynamics.parameters(), strict=True):
            best.copy_(where(improved[:, None, None], now, best) if now.ndim == 3 else now)
        self.epochs_since_update.copy_(where(improved.any(), 0, self.epochs_since_update + 1))

    def update(self, batch: Epoch, noise: Noise) -> dict[str, Tensor]:
        """One epoch: a gradient step on each batch of columns, the last one shorter; then a test on held-out rows."""
        hp = self.hp
        losses = []
        for columns in batch.indices.split(hp.batch_size, dim=1):
            loss, _ = self.model_loss(take(batch.rows, columns))
            gradient_step(loss, self.dynamics_optimizer)
            losses.append(loss.detach())
        held_out = self.holdout_losses(batch.holdout)
        self.keep_best(held_out)
        self.total_it += 1
        metrics = {"train_loss": stack(losses).mean(), "holdout_loss": held_out.sort().values[: hp.n_elites].mean()}
        return metrics | {f"holdout_loss_{member}": loss for member, loss in enumerate(held_out)}

    @property
    def converged(self) -> bool:
        """Whether no member has improved for `max_epochs_since_update` epochs."""
        return int(self.epochs_since_update) >= self.hp.max_epochs_since_update

    def model(self, terminated: Terminated) -> Model:
        """The model learnt so far, with the members of the smallest errors, best first."""
        elites = argsort(self.best_loss, stable=True)[: self.hp.n_elites]
        return Model(self.best_dynamics, elites, self.mean, self.std, terminated)

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint, by name."""
        names = ("dynamics", "best_dynamics", "dynamics_optimizer", "numbers")
        return {name: getattr(self, name) for name in names}


def predict(model: Model, hp: Hyperparameters, *columns: np.ndarray) -> Step:
    """Calls `Model.step` with NumPy arrays: observations, actions, and both draws."""
    tensors = [torch.as_tensor(column, device=model.mean.device) for column in columns]
    observations, actions, normals, chosen = tensors
    inputs = observations.to(model.mean.dtype), actions.to(model.mean.dtype), Draws(normals, chosen)
    return Step(*(column.cpu().numpy() for column in model.step(*inputs, hp.penalty_coef, hp.uncertainty_mode)))


# ---- training ------------------------------------------------------------------------------------------------------


def create_trainer(config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> Dynamics:
    """Fresh members, drawn from torch's generator on the CPU layer by layer, each for all members at once."""
    num_inputs, device = state_dim + action_dim, resolve_device(config.device)
    dynamics = Ensemble(num_inputs, config.hidden_dims, state_dim + 1, config.n_ensemble)
    return Dynamics(config, dynamics.to(device), num_inputs)


def save(trainer: Dynamics, path: Path, **facts: Any) -> None:
    """Writes a checkpoint."""
    save_checkpoint(path, "model_based/dynamics", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: Dynamics, path: str) -> dict[str, Any]:
    """Loads one of our checkpoints; returns its contents."""
    content = load_checkpoint(path, "model_based/dynamics", trainer.parts())
    trainer.total_it = content["total_it"]
    return content


def load_dynamics(path: Path, device: str = "auto", given: str = "") -> Model:
    """The model of a run of this twin, from the run's folder or a checkpoint; `given` is the setting `termination`.

    Raises:
        InputError: There is none, or the file is damaged or of another algorithm.
    """
    file = check_model(path, ".pt")
    content = read_checkpoint(str(file))
    config, sizes, env_id = settings_of(content, TrainConfig, file, device)
    trainer = create_trainer(config, *sizes)
    load(trainer, str(file))
    return trainer.model(termination(env_id, given or config.termination))


def train(config: TrainConfig) -> Run:
    """Trains until no member improves, evaluates every `eval_freq` epochs and fills the run's folder.

    Raises:
        InputError: The dataset or the checkpoint cannot be used, or a setting contradicts another.
    """
    task = load_model_task(config)
    device = resolve_device(config.device)
    seed_everything(config.seed)
    trainer = create_trainer(config, task.state_dim, task.action_dim, task.max_action)
    split = draw_split(config, len(task.dataset.rewards))
    for statistic, column in zip((trainer.mean, trainer.std), fit_scaler(task.dataset, split.training), strict=True):
        statistic.copy_(torch.as_tensor(column))
    shuffle = Shuffle(len(split.training))
    run = Run(config, task, "model_based/dynamics", "torch", device, unit="epoch")

    def go_on(path: str, content: Mapping[str, Any]) -> None:
        shuffle.order = content["order"].numpy()

    history = restore(run, partial(load, trainer), device, go_on)
    dataset = in_parts(to_device(task.dataset, device), split)
    terminated = termination(task.evaluator.fingerprint["env"], config.termination)
    with run:
        if run.step and (run.is_due(run.step) or trainer.converged):
            run.evaluate(run.step, partial(predict, trainer.model(terminated), config))
        for step in range(run.step + 1, config.max_timesteps + 1):
            if trainer.converged:
                break
            order, noise = draw_noise(config, shuffle, device)
            history.append(trainer.update(take_epoch(dataset, order), noise))
            run.advance(1)
            if run.is_due(step) or trainer.converged:
                run.log(step, mean_metrics(history))
                history.clear()
                run.save(step, partial(save, trainer, order=shuffle.order))
                run.evaluate(step, partial(predict, trainer.model(terminated), config))
            elif run.stopping:
                run.save(step, partial(save, trainer, order=shuffle.order, history=history))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "model_based/dynamics")
