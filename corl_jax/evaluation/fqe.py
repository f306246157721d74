"""Fitted Q evaluation in JAX: learns a saved policy's value from a dataset, without an environment.

Its twin is `corl_torch/evaluation/fqe.py`. The policy is fixed, so its action in each state is computed beforehand.

Le, Voloshin & Yue, Batch Policy Learning under Constraints, 2019, https://arxiv.org/abs/1903.08738
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from shared.runs.start import cli

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct
from jax import Array, value_and_grad
from jax.numpy import amin, concatenate, square, stack

from shared.data.transitions import SarsaBatch
from shared.frameworks.evaluated_policy import load_evaluation_task, with_policy
from shared.frameworks.jax_calls import History
from shared.frameworks.jax_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, take, to_device
from shared.frameworks.jax_layers import Linear, Network
from shared.frameworks.jax_scan import scan_updates
from shared.frameworks.jax_seeds import train_together
from shared.frameworks.jax_side import enable_compilation_cache, evaluate, narrow, resolve_device
from shared.runs.fields import bounded, positive, unbounded, widths
from shared.runs.run import Run
from shared.runs.settings import LimitsConfig, RecordConfig

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Learning rate of the critics
    learning_rate: float = positive(1e-4)
    # Discount factor of the return that is estimated, whatever the policy was trained with
    discount: float = bounded(0.99, low=0, high=1)
    # Updates in a regression: the targets are copied after the first update, and then each time this many have been
    # made
    target_update_period: int = bounded(100, low=1)
    # Transitions in a batch
    batch_size: int = bounded(100, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, LimitsConfig, RecordConfig):
    """The settings of a whole run."""

    group: str = "FQE-D4RL"
    name: str = "FQE"
    # Run whose policy is evaluated: its folder, or a checkpoint; empty: the latest finished run below runs_path whose
    # policy acts in the dataset's environment
    policy: str = ""
    # Dataset to evaluate it on: mini/hopper-mostly-expert, a D4RL id, minari:NAME, or the path of an HDF5 file
    env: str = "mini/hopper-mostly-expert"
    # Updates in all
    max_timesteps: int = bounded(100_000, low=1)
    # Critics
    n_critics: int = bounded(1, low=1)
    # Widths of the critics' hidden layers
    critic_hidden_dims: tuple[int, ...] = widths(256, 256)
    # Return that an episode of the dataset needs to be a success, for soft off-policy classification; null: the median
    return_threshold: float | None = unbounded(None)


# ---- networks ------------------------------------------------------------------------------------------------------


def mlp(hidden_dims: Sequence[int], output_dim: int) -> nn.Sequential:
    """Hidden layers with ReLU, then a linear layer."""
    hidden = [layer for width in hidden_dims for layer in (Linear(width), nn.relu)]
    return nn.Sequential([*hidden, Linear(output_dim)])


class Critics(nn.Module):
    """N critics Q(s, a) with separate weights."""

    hidden_dims: Sequence[int]
    n_critics: int

    def setup(self) -> None:
        self.members = [mlp(self.hidden_dims, 1) for _ in range(self.n_critics)]

    def __call__(self, observations: Array, actions: Array) -> Array:
        """The values (N, B) of actions (B, A) in observations (B, S)."""
        inputs = concatenate([observations, actions], axis=-1)
        return stack([member(inputs).squeeze(-1) for member in self.members])


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """An update draws nothing besides its batch."""


def draw_noise(key: Array, step: Array, hp: Hyperparameters, dataset_size: int) -> tuple[Array, Noise]:
    """An update's batch indices (B,), which depend on the key and on the update's number alone."""
    indices = jax.random.randint(jax.random.fold_in(key, step), (hp.batch_size,), 0, dataset_size)
    return indices, Noise()


# ---- losses and update ---------------------------------------------------------------------------------------------


def adam(hp: Hyperparameters) -> optax.GradientTransformation:
    """The optimiser of the critics."""
    return optax.adam(hp.learning_rate)


def gradient_step(state: "FQE", gradient: Network) -> "FQE":
    """One step of Adam on the critics, down their gradient."""
    change, moments = adam(state.hp).update(gradient, state.critic_optimizer)
    return state.replace(critic=optax.apply_updates(state.critic, change), critic_optimizer=moments)


class FQE(struct.PyTreeNode):
    """All that an update reads and writes."""

    critic: Network
    critic_target: Network
    critic_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)

    def td_target(self, batch: SarsaBatch) -> Array:
        """The regression target of all critics, (B,): the smallest target value of the policy's next action."""
        hp, critic = self.hp, self.critic_target
        next_q = amin(critic(batch.next_observations, batch.next_actions), axis=0)
        assert next_q.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + hp.discount * next_q * (1.0 - batch.terminals)

    def critic_loss(self, critic: Network, batch: SarsaBatch) -> tuple[Array, dict[str, Array]]:
        """The squared errors of all critics to the same target, added up over the critics."""
        target = self.td_target(batch)
        q = critic(batch.observations, batch.actions)
        assert q.shape[1:] == target.shape
        return square(q - target).mean(axis=1).sum(), {}

    def update(self, batch: SarsaBatch, noise: Noise, copied: bool) -> tuple["FQE", dict[str, Array]]:
        """One gradient step; then, if `copied`, the targets become copies of the new critics."""
        state = self
        (loss, _), gradient = value_and_grad(state.critic_loss, has_aux=True)(state.critic, batch)
        state = gradient_step(state, gradient)
        if copied:
            state = state.replace(critic_target=state.critic)
        return state, {"critic_loss": loss}


@jax.jit
def value(critic: Network, observations: Array, actions: Array) -> Array:
    """The estimated values (B,) of actions (B, A) in observations (B, S): the mean of the critics."""
    return critic(observations, actions).mean(axis=0)


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames=("num_updates", "phase"), donate_argnames="state")
def train_interval(
    state: FQE, key: Array, dataset: PackedDataset, start: Array, num_updates: int, phase: int
) -> tuple[FQE, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates` as one program: a scan of regressions, each a scan of updates.

    A regression ends with the update after which the critics are copied. `phase` counts the updates before the
    interval, modulo `target_update_period`. It determines where the first regression ends, so that no branch is needed.
    """
    hp, size = state.hp, len(dataset)

    def draw(step: Array) -> tuple[Array, Noise]:
        return draw_noise(key, step, hp, size)

    def update(state: FQE, drawn: tuple[Array, Noise], place: int) -> tuple[FQE, dict[str, Array]]:
        indices, noise = drawn
        return state.update(take(dataset, indices), noise, copied=False)

    def regress(state: FQE, first: Array, length: int, copied: bool) -> tuple[FQE, list[dict[str, Array]]]:
        """The updates from the number `first` on, `length` of them; if `copied`, the last one copies the critics."""
        state, history = scan_updates(update, draw, state, first, length - copied)
        if copied:
            indices, noise = draw(first + length - 1)
            state, metrics = state.update(take(dataset, indices), noise, copied)
            history.append(metrics)
        return state, history

    period = hp.target_update_period
    before = -phase % period
    head = min(num_updates, before + 1)
    whole, tail = divmod(num_updates - head, period)
    state, history = regress(state, start, head, head > before)
    starts = start + head + period * jnp.arange(whole)
    state, regressions = jax.lax.scan(partial(regress, length=period, copied=True), state, starts)
    state, rest = regress(state, start + num_updates - tail, tail, False)
    return state, [*history, *regressions, *rest]


def create_train_state(key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> FQE:
    """Fresh critics with PyTorch's initialisation."""
    hp = narrow(config, Hyperparameters)
    observations, actions = jnp.zeros((1, state_dim)), jnp.zeros((1, action_dim))
    critic = Network.create(Critics(config.critic_hidden_dims, config.n_critics), key, observations, actions)
    # A donated state must not contain an array twice, so the targets are copies.
    critic_target = jax.tree.map(jnp.copy, critic)
    return FQE(critic=critic, critic_target=critic_target, critic_optimizer=adam(hp).init(critic), hp=hp)


def train(config: TrainConfig) -> Run:
    """Learns the policy's value, evaluates it every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: The policy, the dataset or the checkpoint cannot be used.
    """
    config = with_policy(config)
    task = load_evaluation_task(config)
    device = resolve_device(config.device)
    enable_compilation_cache()
    with jax.default_device(device):
        weights_key, draws_key = jax.random.split(jax.random.key(config.seed))
        state = create_train_state(weights_key, config, task.state_dim, task.action_dim, task.max_action)
        run = Run(config, task, "evaluation/fqe", "jax", device)
        state, total_it = restore(run, partial(load_checkpoint, algorithm="evaluation/fqe", state=state), state)
        dataset = to_device(task.dataset)
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, value, state.critic)
            history = History(run)
            for start, step in run.calls(config.target_update_period):
                num_updates = step - start
                phase = (total_it + start) % config.target_update_period
                state, found = train_together(train_interval, state, draws_key, dataset, start, num_updates, phase)
                history.add(num_updates, found)
                write = partial(save_checkpoint, algorithm="evaluation/fqe", state=state, total_it=total_it + step)
                if run.is_due(step):
                    run.log(step, history.means())
                    run.save(step, write)
                    evaluate(run, step, value, state.critic)
                elif run.stopping:
                    run.save(step, partial(write, history=history.content()))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "evaluation/fqe")
