"""CQL of finite actions in JAX: Q-learning whose critics value what the data lack no higher than what they hold.

Its twin is `corl_torch/discrete/cql.py`. All actions of a state can be listed, so nothing is sampled.

Kumar et al., Conservative Q-Learning for Offline Reinforcement Learning, 2020, https://arxiv.org/abs/2006.04779
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

from shared.runs.start import cli

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct
from jax import Array, value_and_grad
from jax.nn import logsumexp, one_hot
from jax.numpy import abs, amin, argmax, square, stack, where

from shared.data.transitions import Batch
from shared.frameworks.jax_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, take, to_device
from shared.frameworks.jax_layers import Linear, Network
from shared.frameworks.jax_scan import scan_updates
from shared.frameworks.jax_seeds import train_together
from shared.frameworks.jax_side import enable_compilation_cache, evaluate, mean_metrics, narrow, resolve_device
from shared.runs.fields import bounded, positive, widths
from shared.runs.run import Run
from shared.runs.settings import TransitionsConfig
from shared.runs.task import load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """What an update depends on."""

    # Learning rate
    learning_rate: float = positive(6.25e-5)
    # Added to the root in Adam's step
    adam_eps: float = positive(1e-8)
    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Weight of the conservative term
    cql_alpha: float = bounded(1.0, low=0)
    # The critics choose the next action, which the targets then value, as in d3rlpy; else the targets do both, as in
    # the paper's experiments
    double: bool = False
    # Updates from one copy of the critics into the targets to the next, the first of which comes with the first update
    target_update_interval: int = bounded(8000, low=1)
    # Transitions in a batch
    batch_size: int = bounded(32, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, TransitionsConfig):
    """A whole run."""

    group: str = "DiscreteCQL"
    name: str = "DiscreteCQL"
    # Dataset of finite actions: mini/cartpole-replay, minari:NAME, or the path of an HDF5 file
    env: str = "mini/cartpole-replay"
    # Updates between two evaluations
    eval_freq: int = bounded(10_000, low=1)
    # Critics
    n_critics: int = bounded(1, low=1)
    # Widths of the hidden layers
    hidden_dims: tuple[int, ...] = widths(256, 256)

    REFERENCE_NAMES: ClassVar[dict[str, str]] = {
        "alpha": "cql_alpha",
        "gamma": "discount",
        "n_trials": "n_episodes",
        "dataset": "env",
    }


# ---- networks ------------------------------------------------------------------------------------------------------


def mlp(hidden_dims: Sequence[int], output_dim: int) -> nn.Sequential:
    """Hidden layers with ReLU, and a linear one."""
    return nn.Sequential([*(layer for width in hidden_dims for layer in (Linear(width), nn.relu)), Linear(output_dim)])


class Critics(nn.Module):
    """N critics Q(s, .), which value all actions at once, with weights of their own."""

    action_dim: int
    hidden_dims: Sequence[int]
    n_critics: int

    def setup(self) -> None:
        self.members = [mlp(self.hidden_dims, self.action_dim) for _ in range(self.n_critics)]

    def __call__(self, observations: Array) -> Array:
        """The values (N, B, A) of all actions in observations (B, S)."""
        return stack([member(observations) for member in self.members])


def value(q: Array, actions: Array) -> Array:
    """Of the values (..., B, A) of all actions those of these (B,), (..., B)."""
    return (q * one_hot(actions, q.shape[-1])).sum(axis=-1)


def greedy(q: Array) -> Array:
    """The actions (B,) that all critics together value most, by their values (N, B, A); of equal ones the first."""
    return argmax(q.mean(axis=0), axis=-1)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """An update draws nothing besides its batch."""


def draw_noise(key: Array, step: Array, hp: Hyperparameters, dataset_size: int) -> tuple[Array, Noise]:
    """An update's batch indices (B,), which depend on the key and on the update's number alone."""
    return jax.random.randint(jax.random.fold_in(key, step), (hp.batch_size,), 0, dataset_size), Noise()


# ---- losses and update ---------------------------------------------------------------------------------------------


def adam(hp: Hyperparameters) -> optax.GradientTransformation:
    """The optimiser of the critics."""
    return optax.adam(hp.learning_rate, eps=hp.adam_eps)


def gradient_step(state: "CQL", gradient: Network) -> "CQL":
    """One step of Adam on the critics, down their gradient."""
    change, moments = adam(state.hp).update(gradient, state.critics_optimizer)
    return state.replace(critics=optax.apply_updates(state.critics, change), critics_optimizer=moments)


def huber(error: Array) -> Array:
    """Half the square of errors below 1, and the absolute error less a half of all others."""
    return where(abs(error) < 1.0, 0.5 * square(error), abs(error) - 0.5)


def gap(q: Array, actions: Array) -> Array:
    """How far the soft maximum of all actions' mean values lies above the data's action, (B,), by values (N, B, A)."""
    mean = q.mean(axis=0)
    return logsumexp(mean, axis=-1) - value(mean, actions)


class CQL(struct.PyTreeNode):
    """All that an update reads and writes."""

    critics: Network
    critics_target: Network
    critics_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)

    @property
    def acting(self) -> Network:
        """What `act` takes."""
        return self.critics

    def td_target(self, batch: Batch) -> Array:
        """The regression target of all critics, (B,): the smallest target value of the best next action."""
        hp, critics, target = self.hp, self.critics, self.critics_target
        values = target(batch.next_observations)
        next_actions = greedy(critics(batch.next_observations) if hp.double else values)
        next_q = amin(value(values, next_actions), axis=0)
        assert next_q.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + hp.discount * next_q * (1.0 - batch.terminals)

    def critic_loss(self, critics: Network, batch: Batch) -> tuple[Array, dict[str, Array]]:
        """Huber's loss of all critics against one target, added up, and the conservative term with its weight."""
        target = self.td_target(batch)
        values = critics(batch.observations)
        q = value(values, batch.actions)
        assert q.shape[1:] == target.shape
        td_loss = huber(q - target).mean(axis=1).sum()
        conservative_loss = gap(values, batch.actions).mean()
        loss = td_loss + self.hp.cql_alpha * conservative_loss
        return loss, {"td_loss": td_loss, "conservative_loss": conservative_loss}

    def update(self, batch: Batch, noise: Noise, copied: bool | Array) -> tuple["CQL", dict[str, Array]]:
        """One gradient step; then, where `copied`, the targets become copies of the new critics."""
        state = self
        (loss, terms), gradient = value_and_grad(state.critic_loss, has_aux=True)(state.critics, batch)
        state = gradient_step(state, gradient)
        targets = jax.tree.map(partial(where, copied), state.critics, state.critics_target)
        return state.replace(critics_target=targets), {"loss": loss, **terms}


@jax.jit
def act(critics: Network, observations: Array) -> Array:
    """The best actions (E,) for observations (E, S)."""
    return greedy(critics(observations))


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="num_updates", donate_argnames="state")
def train_interval(
    state: CQL, key: Array, dataset: PackedDataset, start: Array, num_updates: int, phase: Array
) -> tuple[CQL, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates` as one scan.

    `phase` counts the updates since the last copy of the targets. It is traced, so one program serves every interval.
    """
    hp = state.hp

    def draw(step: Array) -> tuple[Array, Array, Noise]:
        copied = (step - start + phase) % hp.target_update_interval == 0
        return copied, *draw_noise(key, step, hp, len(dataset))

    def update(state: CQL, drawn: Any, place: int) -> tuple[CQL, dict[str, Array]]:
        copied, indices, noise = drawn
        return state.update(take(dataset, indices), noise, copied)

    return scan_updates(update, draw, state, start, num_updates)


def create_train_state(key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> CQL:
    """Fresh networks with PyTorch's initialisation."""
    hp = narrow(config, Hyperparameters)
    module = Critics(action_dim, config.hidden_dims, config.n_critics)
    critics = Network.create(module, key, jnp.zeros((1, state_dim)))
    # A donated state may hold no array twice, so the targets are copies.
    critics_target = jax.tree.map(jnp.copy, critics)
    return CQL(critics=critics, critics_target=critics_target, critics_optimizer=adam(hp).init(critics), hp=hp)


def train(config: TrainConfig) -> Run:
    """Trains, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: The dataset, the environment or the checkpoint cannot be used.
    """
    task = load_task(config, None, normalize=False, finite=True)
    device = resolve_device(config.device)
    enable_compilation_cache()
    with jax.default_device(device):
        weights_key, draws_key = jax.random.split(jax.random.key(config.seed))
        state = create_train_state(weights_key, config, task.state_dim, task.action_dim, task.max_action)
        run = Run(config, task, "discrete/cql", "jax", device)
        state, total_it = restore(run, partial(load_checkpoint, algorithm="discrete/cql", state=state), state)
        dataset = to_device(task.dataset)
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, act, state.critics)
            for start in range(run.step, config.max_timesteps, config.eval_freq):
                num_updates = min(config.eval_freq, config.max_timesteps - start)
                phase = (total_it + start) % config.target_update_interval
                state, history = train_together(train_interval, state, draws_key, dataset, start, num_updates, phase)
                run.started()
                step = start + num_updates
                run.log(step, mean_metrics(history))
                run.advance(num_updates)
                write = partial(save_checkpoint, algorithm="discrete/cql", state=state, total_it=total_it + step)
                run.save(step, write)
                evaluate(run, step, act, state.critics)
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "discrete/cql")
