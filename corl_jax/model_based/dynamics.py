"""A probabilistic ensemble in JAX that learns an environment's dynamics, for model-based algorithms.

Each member predicts a normal distribution of a step's change of state and reward. An update is one epoch: every member
takes its own bootstrapped rows in batches, then all are tested on held-out rows. `max_timesteps` counts epochs.

Its twin is `corl_torch/model_based/dynamics.py`.

Chua, Calandra, McAllister & Levine, Deep Reinforcement Learning in a Handful of Trials using Probabilistic Dynamics
Models, 2018, https://arxiv.org/abs/1805.12114

The penalties: Yu et al., MOPO: Model-based Offline Policy Optimization, 2020, https://arxiv.org/abs/2005.13239
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from shared.runs.start import cli

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax import struct
from jax import Array, value_and_grad
from jax.lax import scan
from jax.nn import sigmoid
from jax.numpy import amax, argsort, concatenate, exp, sqrt, square, where, zeros_like

from shared.data.dynamics import Draws, Split, Step, fit_scaler, held_out_rows
from shared.data.transitions import Batch
from shared.envs.families import termination
from shared.envs.terminations import Terminated
from shared.frameworks.jax_calls import as_saved, resumed
from shared.frameworks.jax_checkpoints import load_checkpoint, read_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, take, to_device
from shared.frameworks.jax_layers import Network, softplus
from shared.frameworks.jax_products import EigenProgram
from shared.frameworks.jax_side import enable_compilation_cache, mean_metrics, narrow, resolve_device
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


def truncated_normal(key: Array, shape: Sequence[int], dtype: Any = None) -> Array:
    """Normal numbers with deviation 1 / (2 sqrt(in)) for weights (E, in, out), truncated to [-2, 2]."""
    std = 1.0 / (2.0 * shape[1] ** 0.5)
    return std * jax.random.truncated_normal(key, -2.0 / std, 2.0 / std, shape, dtype)


class EnsembleLinear(nn.Module):
    """A linear layer for each of E members: (B, in), the same for all, or (E, B, in) to (E, B, out)."""

    output_dim: int
    n_ensemble: int

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """Maps every member's inputs with its own weights."""
        shape = self.n_ensemble, inputs.shape[-1], self.output_dim
        weight = self.param("weight", truncated_normal, shape, inputs.dtype)
        bias = self.param("bias", nn.initializers.zeros, (self.n_ensemble, 1, self.output_dim), inputs.dtype)
        return inputs @ weight + bias


class Ensemble(nn.Module):
    """Members that predict means and log-variances of D numbers; the log-variances' bounds are learnt and shared."""

    hidden_dims: Sequence[int]
    output_dim: int
    n_ensemble: int

    def setup(self) -> None:
        self.backbones = [EnsembleLinear(width, self.n_ensemble) for width in self.hidden_dims]
        self.output_layer = EnsembleLinear(2 * self.output_dim, self.n_ensemble)
        self.max_logvar = self.param("max_logvar", nn.initializers.constant(0.5), (self.output_dim,), float)
        self.min_logvar = self.param("min_logvar", nn.initializers.constant(-10.0), (self.output_dim,), float)

    def __call__(self, inputs: Array) -> tuple[Array, Array]:
        """Mean and log-variance (E, B, D) for inputs (B, S + A) or (E, B, S + A)."""
        hidden = inputs
        for layer in self.backbones:
            hidden = layer(hidden)
            hidden = hidden * sigmoid(hidden)
        mean, log_var = jnp.split(self.output_layer(hidden), 2, axis=-1)
        log_var = self.max_logvar - softplus(self.max_logvar - log_var)
        return mean, self.min_logvar + softplus(log_var - self.min_logvar)


def layer_weights(dynamics: Network) -> list[Array]:
    """The weights (E, in, out) of each layer."""
    layers = [f"backbones_{number}" for number in range(len(dynamics.module.hidden_dims))]
    return [dynamics.params[layer]["weight"] for layer in (*layers, "output_layer")]


# ---- prediction ----------------------------------------------------------------------------------------------------


def norm(vectors: Array) -> Array:
    """The norms (...) of vectors (..., D)."""
    return sqrt(square(vectors).sum(axis=-1))


def uncertainty(mode: str, means: Array, stds: Array) -> Array:
    """The members' uncertainty (n,), from next states' means (E, n, S) and all predictions' deviations (E, n, D)."""
    apart = means - means.mean(axis=0)
    if mode == "aleatoric":
        return amax(norm(stds), axis=0)
    if mode == "pairwise-diff":
        return amax(norm(apart), axis=0)
    return sqrt(square(apart).mean(axis=(0, 2)))


class Model(struct.PyTreeNode):
    """A learnt model that can be rolled out."""

    dynamics: Network
    # (K,), the members that predict, best first
    elites: Array
    # (S + A,) each, to scale inputs
    mean: Array
    std: Array
    terminated: Terminated = struct.field(pytree_node=False)

    def step(self, observations: Array, actions: Array, draws: Draws, penalty_coef: float, mode: str) -> Step:
        """A step from states (n, S) with actions (n, A); each row is a sample from the elite member chosen for it."""
        rows, state_dim = observations.shape
        mean, log_var = self.dynamics(scaled(observations, actions, self.mean, self.std))
        # Changes of the state become states; the last number is the reward.
        mean = concatenate([mean[..., :-1] + observations, mean[..., -1:]], axis=-1)
        std = sqrt(exp(log_var))
        samples = (mean + draws.normals * std).astype(mean.dtype)
        sample = samples[self.elites[draws.chosen], jnp.arange(rows)]
        next_observations, raw_rewards = sample[:, :state_dim], sample[:, state_dim]
        terminals = self.terminated(next_observations)
        if penalty_coef == 0.0:
            return Step(next_observations, raw_rewards, terminals, raw_rewards, zeros_like(raw_rewards))
        penalties = uncertainty(mode, mean[..., :state_dim], std)
        return Step(next_observations, raw_rewards - penalty_coef * penalties, terminals, raw_rewards, penalties)


def scaled(observations: Array, actions: Array, mean: Array, std: Array) -> Array:
    """The model's inputs (..., S + A)."""
    return (concatenate([observations, actions], axis=-1) - mean) / std


def targets(batch: Batch) -> Array:
    """The targets of the predictions, (..., S + 1): how the state changes, and the reward."""
    return concatenate([batch.next_observations - batch.observations, batch.rewards[..., None]], axis=-1)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """An update draws nothing besides its order."""


def draw_split(key: Array, hp: Hyperparameters, num_rows: int) -> Split:
    """A permutation of the rows, and the bootstrap."""
    order_key, bootstrap_key = jax.random.split(key)
    held_out = held_out_rows(hp.holdout_ratio, num_rows)
    order, size = np.asarray(jax.random.permutation(order_key, num_rows)), num_rows - held_out
    bootstrap = np.asarray(jax.random.randint(bootstrap_key, (hp.n_ensemble, size), 0, size))
    return Split(order[:size], order[size:], bootstrap)


def draw_noise(key: Array, step: Array, hp: Hyperparameters, size: int) -> tuple[Array, Noise]:
    """An epoch's order (E, n) of each member's n rows, which depends on the key and on the epoch's number alone."""
    uniforms = jax.random.uniform(jax.random.fold_in(key, step), (hp.n_ensemble, size))
    return argsort(uniforms, axis=-1), Noise()


# ---- rows ----------------------------------------------------------------------------------------------------------


class Parts(NamedTuple):
    """A dataset for an ensemble."""

    # All columns
    rows: PackedDataset
    # (E, n), each member's rows
    members: Array
    # (H,), rows that no member learns from
    holdout: Batch


class Epoch(NamedTuple):
    """An update's data: all rows, the order in which each member takes its own (E, n), and the held-out rows."""

    rows: PackedDataset
    indices: Array
    holdout: Batch


def in_parts(dataset: PackedDataset, split: Split) -> Parts:
    """The dataset on the device, split into each member's rows and the held-out rows."""
    members = split.training[split.bootstrap]
    return Parts(dataset, jnp.asarray(members), take(dataset, jnp.asarray(split.holdout)))


def take_epoch(parts: Parts, order: Array) -> Epoch:
    """An epoch in the order (E, n) that was drawn for it."""
    return Epoch(parts.rows, jnp.take_along_axis(parts.members, order, axis=1), parts.holdout)


# ---- losses and update ---------------------------------------------------------------------------------------------

# Relative improvement on a member's best loss that counts
IMPROVEMENT = 0.01


def adam(hp: Hyperparameters) -> optax.GradientTransformation:
    """The optimiser of all members."""
    return optax.adam(hp.learning_rate)


def gradient_step(state: "Dynamics", gradient: Network) -> "Dynamics":
    """One step of Adam on the ensemble, down its gradient."""
    change, moments = adam(state.hp).update(gradient, state.dynamics_optimizer)
    return state.replace(dynamics=optax.apply_updates(state.dynamics, change), dynamics_optimizer=moments)


class Dynamics(struct.PyTreeNode):
    """All that an update reads and writes.

    `best_dynamics` has each member's weights from its smallest error on held-out rows, and the current bounds.
    """

    dynamics: Network
    best_dynamics: Network
    dynamics_optimizer: optax.OptState
    mean: Array
    std: Array
    best_loss: Array
    epochs_since_update: Array
    hp: Hyperparameters = struct.field(pytree_node=False)

    def inputs(self, batch: Batch) -> Array:
        """The ensemble's inputs, (..., S + A), from a batch."""
        return scaled(batch.observations, batch.actions, self.mean, self.std)

    def model_loss(self, dynamics: Network, batch: Batch) -> tuple[Array, dict[str, Array]]:
        """The negative log-likelihood of each member's rows (E, B), or of shared rows (B,); plus decay and bounds.

        Both are a part of the loss, so Adam scales their gradients as well.
        """
        hp = self.hp
        mean, log_var = dynamics(self.inputs(batch))
        target = targets(batch)
        assert target.shape == mean.shape[-target.ndim :]
        likelihood = (square(mean - target) * exp(-log_var)).mean(axis=(1, 2)).sum()
        loss = likelihood + log_var.mean(axis=(1, 2)).sum()
        decays = zip(hp.dynamics_weight_decay, layer_weights(dynamics), strict=True)
        loss = loss + sum(decay * 0.5 * square(weight).sum() for decay, weight in decays)
        low, high = dynamics.params["min_logvar"], dynamics.params["max_logvar"]
        loss = loss + hp.logvar_loss_coef * high.sum() - hp.logvar_loss_coef * low.sum()
        return loss, {}

    def holdout_losses(self, holdout: Batch) -> Array:
        """The squared error (E,) of each member's means on held-out rows; log-variances do not count."""
        mean, _ = self.dynamics(self.inputs(holdout))
        return square(mean - targets(holdout)).mean(axis=(1, 2))

    def keep_best(self, losses: Array) -> "Dynamics":
        """Keeps the members (E,) that have improved enough, and counts epochs in which none has."""
        improved = (self.best_loss - losses) / self.best_loss > IMPROVEMENT

        def kept(best: Array, now: Array) -> Array:
            return where(improved[:, None, None], now, best) if now.ndim == 3 else now

        return self.replace(
            best_dynamics=jax.tree.map(kept, self.best_dynamics, self.dynamics),
            best_loss=where(improved, losses, self.best_loss),
            epochs_since_update=where(improved.any(), 0, self.epochs_since_update + 1),
        )

    def update(self, batch: Epoch, noise: Noise) -> tuple["Dynamics", dict[str, Array]]:
        """One epoch: a gradient step on each batch of columns, the last one shorter; then a test on held-out rows."""
        hp = self.hp

        def learn(state: Dynamics, columns: Array) -> tuple[Dynamics, Array]:
            rows = take(batch.rows, columns)
            (loss, _), gradient = value_and_grad(state.model_loss, has_aux=True)(state.dynamics, rows)
            return gradient_step(state, gradient), loss

        whole, rest = batches(batch.indices, hp.batch_size)
        state, losses = scan(learn, self, whole)
        if rest.size:
            state, loss = learn(state, rest)
            losses = jnp.append(losses, loss)
        held_out = state.holdout_losses(batch.holdout)
        state = state.keep_best(held_out)
        metrics = {"train_loss": losses.mean(), "holdout_loss": jnp.sort(held_out)[: hp.n_elites].mean()}
        return state, metrics | {f"holdout_loss_{member}": loss for member, loss in enumerate(held_out)}

    @property
    def converged(self) -> bool:
        """Whether no member has improved for `max_epochs_since_update` epochs."""
        return int(self.epochs_since_update) >= self.hp.max_epochs_since_update

    def model(self, terminated: Terminated) -> Model:
        """The model learnt so far, with the members of the smallest errors, best first."""
        elites = argsort(self.best_loss, stable=True)[: self.hp.n_elites]
        return Model(self.best_dynamics, elites, self.mean, self.std, terminated)


def batches(indices: Array, size: int) -> tuple[Array, Array]:
    """The columns of indices (E, n) in whole batches (k, E, size), and the columns that are left over."""
    members, columns = indices.shape
    number = columns // size
    whole = indices[:, : number * size].reshape(members, number, size).swapaxes(0, 1)
    return whole, indices[:, number * size :]


@partial(jax.jit, static_argnames="hp")
def predict(
    model: Model, hp: Hyperparameters, observations: Array, actions: Array, normals: Array, chosen: Array
) -> Step:
    """Calls `Model.step` with observations, actions, and both draws."""
    return model.step(observations, actions, Draws(normals, chosen), hp.penalty_coef, hp.uncertainty_mode)


# ---- training ------------------------------------------------------------------------------------------------------


@partial(EigenProgram, static_argnames="num_updates", donate_argnames="state")
def train_interval(
    state: Dynamics, key: Array, dataset: Parts, start: Array, num_updates: int
) -> tuple[Dynamics, list[dict[str, Array]]]:
    """The epochs `start + 1` to `start + num_updates` as one scan, each of them a scan of batches."""

    def epoch(state: Dynamics, step: Array) -> tuple[Dynamics, dict[str, Array]]:
        order, noise = draw_noise(key, step, state.hp, dataset.members.shape[1])
        return state.update(take_epoch(dataset, order), noise)

    state, history = scan(epoch, state, start + jnp.arange(num_updates))
    return state, [history]


def create_train_state(key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> Dynamics:
    """Fresh members."""
    hp, num_inputs = narrow(config, Hyperparameters), state_dim + action_dim
    module = Ensemble(config.hidden_dims, state_dim + 1, config.n_ensemble)
    dynamics = Network.create(module, key, jnp.zeros((1, num_inputs)))
    return Dynamics(
        dynamics=dynamics,
        # A donated state must not contain an array twice, so these are copies.
        best_dynamics=jax.tree.map(jnp.copy, dynamics),
        dynamics_optimizer=adam(hp).init(dynamics),
        mean=jnp.zeros(num_inputs),
        std=jnp.ones(num_inputs),
        best_loss=jnp.full(config.n_ensemble, 1e10, float),
        epochs_since_update=jnp.zeros((), int),
        hp=hp,
    )


def load_dynamics(path: Path, device: str = "auto", given: str = "") -> Model:
    """The model of a run of this twin, from the run's folder or a checkpoint; `given` is the setting `termination`.

    Raises:
        InputError: There is none, or the file is damaged or of another algorithm.
    """
    file = check_model(path, ".msgpack")
    content = read_checkpoint(str(file))
    config, sizes, env_id = settings_of(content, TrainConfig, file, device)
    with jax.default_device(resolve_device(config.device)):
        state = create_train_state(jax.random.key(0), config, *sizes)
        state = load_checkpoint(str(file), "model_based/dynamics", state)["state"]
        return state.model(termination(env_id, given or config.termination))


def train(config: TrainConfig) -> Run:
    """Trains until no member improves, evaluates every `eval_freq` epochs and fills the run's folder.

    Raises:
        InputError: The dataset or the checkpoint cannot be used, or a setting contradicts another.
    """
    task = load_model_task(config)
    device = resolve_device(config.device)
    enable_compilation_cache()
    with jax.default_device(device):
        weights_key, split_key, draws_key = jax.random.split(jax.random.key(config.seed), 3)
        state = create_train_state(weights_key, config, task.state_dim, task.action_dim, task.max_action)
        split = draw_split(split_key, state.hp, len(task.dataset.rewards))
        mean, std = (jnp.asarray(column, dtype=float) for column in fit_scaler(task.dataset, split.training))
        state = state.replace(mean=mean, std=std)
        run = Run(config, task, "model_based/dynamics", "jax", device, unit="epoch")
        state, total_it = restore(run, partial(load_checkpoint, algorithm="model_based/dynamics", state=state), state)
        dataset = in_parts(to_device(task.dataset), split)
        terminated = termination(task.evaluator.fingerprint["env"], config.termination)
        with run:
            history = resumed(run)
            if run.step and (run.is_due(run.step) or state.converged):
                run.evaluate(run.step, partial(predict, state.model(terminated), state.hp))
            for step in range(run.step + 1, config.max_timesteps + 1):
                if state.converged:
                    break
                state, metrics = train_interval(state, draws_key, dataset, step - 1, 1)
                history += metrics
                run.advance(1)
                write = partial(
                    save_checkpoint, algorithm="model_based/dynamics", state=state, total_it=total_it + step
                )
                if run.is_due(step) or state.converged:
                    run.log(step, mean_metrics(history))
                    history.clear()
                    run.save(step, write)
                    run.evaluate(step, partial(predict, state.model(terminated), state.hp))
                elif run.stopping:
                    run.save(step, partial(write, history=as_saved(history)))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "model_based/dynamics")
