"""Behaviour cloning of finite actions in JAX: the policy takes the action that is most likely in the data.

Its twin is `corl_torch/discrete/bc.py`.

Pomerleau, Efficient Training of Artificial Neural Networks for Autonomous Navigation, 1991. The penalty on the outputs:
Fujimoto et al., Benchmarking Batch Deep Reinforcement Learning Algorithms, 2019, https://arxiv.org/abs/1910.01708
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from shared.runs.start import cli

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct
from jax import Array, value_and_grad
from jax.nn import log_softmax, one_hot
from jax.numpy import argmax, square

from shared.data.transitions import Batch
from shared.envs.spaces import Shape, axes
from shared.frameworks.jax_calls import History
from shared.frameworks.jax_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, take, to_device
from shared.frameworks.jax_encoders import convolutions
from shared.frameworks.jax_layers import Linear, Network
from shared.frameworks.jax_scan import scan_updates
from shared.frameworks.jax_seeds import train_together
from shared.frameworks.jax_side import enable_compilation_cache, evaluate, narrow, resolve_device
from shared.runs.fields import bounded, positive, widths
from shared.runs.run import Run
from shared.runs.settings import ImagesConfig, ImitationConfig
from shared.runs.task import Preparation, load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Learning rate
    learning_rate: float = positive(1e-3)
    # Adam's epsilon, which is added to the root in its step
    adam_eps: float = positive(1e-8)
    # Weight of the penalty on the policy's outputs
    logit_penalty: float = bounded(0.5, low=0)
    # Penalise log-probabilities, as d3rlpy 2.8.1 does; false: the policy's outputs, as BCQ's authors do
    penalize_log_probs: bool = False
    # Transitions in a batch
    batch_size: int = bounded(100, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, ImagesConfig, ImitationConfig):
    """The settings of a whole run."""

    group: str = "DiscreteBC"
    name: str = "DiscreteBC"
    # Dataset of finite actions: mini/cartpole-replay, minari:NAME, or the path of an HDF5 file
    env: str = "mini/cartpole-replay"
    # Updates between two evaluations
    eval_freq: int = bounded(10_000, low=1)
    # Widths of the hidden layers
    hidden_dims: tuple[int, ...] = widths(256, 256)


# ---- networks ------------------------------------------------------------------------------------------------------


def mlp(encoder: str, hidden_dims: Sequence[int], output_dim: int) -> nn.Sequential:
    """Convolutions if there are any, hidden layers with ReLU, then a linear layer."""
    hidden = [layer for width in hidden_dims for layer in (Linear(width), nn.relu)]
    return nn.Sequential([*convolutions(encoder), *hidden, Linear(output_dim)])


class Actor(nn.Module):
    """The policy, which gives a logit to each action."""

    action_dim: int
    encoder: str
    hidden_dims: Sequence[int]

    def setup(self) -> None:
        self.net = mlp(self.encoder, self.hidden_dims, self.action_dim)

    def __call__(self, observations: Array) -> Array:
        """The logits (B, A) of all actions in observations (B, S)."""
        return self.net(observations)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """An update draws nothing besides its batch."""


def draw_noise(key: Array, step: Array, hp: Hyperparameters, dataset_size: int) -> tuple[Array, Noise]:
    """An update's batch indices (B,), which depend on the key and on the update's number alone."""
    return jax.random.randint(jax.random.fold_in(key, step), (hp.batch_size,), 0, dataset_size), Noise()


# ---- losses and update ---------------------------------------------------------------------------------------------


def adam(hp: Hyperparameters) -> optax.GradientTransformation:
    """The optimiser of the policy."""
    return optax.adam(hp.learning_rate, eps=hp.adam_eps)


def gradient_step(state: "BC", gradient: Network) -> "BC":
    """One step of Adam on the policy, down its gradient."""
    change, moments = adam(state.hp).update(gradient, state.actor_optimizer)
    return state.replace(actor=optax.apply_updates(state.actor, change), actor_optimizer=moments)


class BC(struct.PyTreeNode):
    """All that an update reads and writes."""

    actor: Network
    actor_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)

    def actor_loss(self, actor: Network, batch: Batch) -> tuple[Array, dict[str, Array]]:
        """The cross-entropy of the policy against the data's actions, and the penalty."""
        hp = self.hp
        logits = actor(batch.observations)
        log_probs = log_softmax(logits)
        imitation_loss = -(log_probs * one_hot(batch.actions, logits.shape[-1])).sum(axis=-1).mean()
        regularization_loss = hp.logit_penalty * square(log_probs if hp.penalize_log_probs else logits).mean()
        terms = {"imitation_loss": imitation_loss, "regularization_loss": regularization_loss}
        return imitation_loss + regularization_loss, terms

    def update(self, batch: Batch, noise: Noise) -> tuple["BC", dict[str, Array]]:
        """One gradient step."""
        (loss, terms), gradient = value_and_grad(self.actor_loss, has_aux=True)(self.actor, batch)
        return gradient_step(self, gradient), {"loss": loss, **terms}


@jax.jit
def act(actor: Network, observations: Array) -> Array:
    """The most likely actions (E,) for observations (E, S)."""
    return argmax(actor(observations), axis=-1)


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="num_updates", donate_argnames="state")
def train_interval(
    state: BC, key: Array, dataset: PackedDataset, start: Array, num_updates: int
) -> tuple[BC, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates` as one scan."""

    def draw(step: Array) -> tuple[Array, Noise]:
        return draw_noise(key, step, state.hp, len(dataset))

    def update(state: BC, drawn: Any, place: int) -> tuple[BC, dict[str, Array]]:
        indices, noise = drawn
        return state.update(take(dataset, indices), noise)

    return scan_updates(update, draw, state, start, num_updates)


def create_train_state(key: Array, config: TrainConfig, state_dim: Shape, action_dim: int, max_action: float) -> BC:
    """A fresh network with PyTorch's initialisation."""
    hp = narrow(config, Hyperparameters)
    module = Actor(action_dim, config.encoder, config.hidden_dims)
    actor = Network.create(module, key, jnp.zeros((1, *axes(state_dim))))
    return BC(actor=actor, actor_optimizer=adam(hp).init(actor), hp=hp)


def train(config: TrainConfig) -> Run:
    """Trains, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: The dataset, the environment or the checkpoint cannot be used.
    """
    task = load_task(config, Preparation(normalise=False, finite=True))
    device = resolve_device(config.device)
    enable_compilation_cache()
    with jax.default_device(device):
        weights_key, draws_key = jax.random.split(jax.random.key(config.seed))
        state = create_train_state(weights_key, config, task.shape, task.action_dim, task.max_action)
        run = Run(config, task, "discrete/bc", "jax", device)
        state, total_it = restore(run, partial(load_checkpoint, algorithm="discrete/bc", state=state), state)
        dataset = to_device(task.dataset)
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, act, state.actor)
            history = History(run)
            for start, step in run.calls(cost=0.25):
                num_updates = step - start
                state, found = train_together(train_interval, state, draws_key, dataset, start, num_updates)
                history.add(num_updates, found)
                write = partial(save_checkpoint, algorithm="discrete/bc", state=state, total_it=total_it + step)
                if run.is_due(step):
                    run.log(step, history.means())
                    run.save(step, write)
                    evaluate(run, step, act, state.actor)
                elif run.stopping:
                    run.save(step, partial(write, history=history.content()))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "discrete/bc")
