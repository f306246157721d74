"""BCQ of finite actions in JAX: Q-learning over the actions that an imitator of the data finds likely enough.

Its twin is `corl_torch/discrete/bcq.py`.

Fujimoto et al., Benchmarking Batch Deep Reinforcement Learning Algorithms, 2019, https://arxiv.org/abs/1910.01708
"""

import math
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
from jax.numpy import abs, amax, amin, argmax, exp, square, stack, where

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
from shared.runs.settings import ImagesConfig, TransitionsConfig
from shared.runs.task import Preparation, load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Learning rate
    learning_rate: float = positive(6.25e-5)
    # Adam's epsilon, which is added to the root in its step
    adam_eps: float = positive(1e-8)
    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Weight of the penalty on the imitator's outputs; the paper's is 0.01
    logit_penalty: float = bounded(0.5, low=0)
    # Penalise the imitator's log-probabilities, as d3rlpy 2.8.1 does; false: its outputs, as the paper's authors do
    penalize_log_probs: bool = False
    # Updates between two copies of the critics into the targets; the first update makes the first copy
    target_update_period: int = bounded(8000, low=1)
    # Transitions in a batch
    batch_size: int = bounded(32, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, ImagesConfig, TransitionsConfig):
    """The settings of a whole run."""

    group: str = "DiscreteBCQ"
    name: str = "DiscreteBCQ"
    # Dataset of finite actions: mini/cartpole-replay, minari:NAME, or the path of an HDF5 file
    env: str = "mini/cartpole-replay"
    # Updates between two evaluations
    eval_freq: int = bounded(10_000, low=1)
    # Critics
    n_critics: int = bounded(1, low=1)
    # Widths of the hidden layers
    hidden_dims: tuple[int, ...] = widths(256, 256)
    # Smallest probability of an action that may be chosen, as a share of the most likely action's
    likelihood_threshold: float = bounded(0.3, low=0, high=1)
    # Let the imitator share the first critic's hidden layers; false: it has its own
    share_encoder: bool = True


# ---- networks ------------------------------------------------------------------------------------------------------


def hidden(encoder: str, hidden_dims: Sequence[int]) -> list[Any]:
    """Convolutions if there are any, and hidden layers with ReLU."""
    return [*convolutions(encoder), *(layer for width in hidden_dims for layer in (Linear(width), nn.relu))]


class Critic(nn.Module):
    """Q(s, .), which values all actions at once."""

    action_dim: int
    reader: str
    hidden_dims: Sequence[int]

    def setup(self) -> None:
        self.encoder = nn.Sequential(hidden(self.reader, self.hidden_dims))
        self.head = Linear(self.action_dim)

    def __call__(self, observations: Array) -> tuple[Array, Array]:
        """The values (B, A) of all actions in observations (B, S), and the last hidden layer (B, H)."""
        features = self.encoder(observations)
        return self.head(features), features


class Critics(nn.Module):
    """N critics with separate weights."""

    action_dim: int
    encoder: str
    hidden_dims: Sequence[int]
    n_critics: int

    def setup(self) -> None:
        self.members = [Critic(self.action_dim, self.encoder, self.hidden_dims) for _ in range(self.n_critics)]

    def __call__(self, observations: Array) -> tuple[Array, Array]:
        """The values (N, B, A) of all actions in observations (B, S), and the first one's last hidden layer (B, H)."""
        values, features = zip(*(member(observations) for member in self.members), strict=True)
        return stack(values), features[0]


class Imitator(nn.Module):
    """The imitator: how likely the data's actions are, on the first critic's hidden layers or its own."""

    action_dim: int
    encoder: str
    hidden_dims: Sequence[int]
    share_encoder: bool
    likelihood_threshold: float

    def setup(self) -> None:
        layers = [] if self.share_encoder else hidden(self.encoder, self.hidden_dims)
        self.net = nn.Sequential([*layers, Linear(self.action_dim)])

    def __call__(self, observations: Array, features: Array) -> Array:
        """Logits (B, A) for observations (B, S), or for the first critic's last hidden layer (B, H)."""
        return self.net(features if self.share_encoder else observations)


def value(q: Array, actions: Array) -> Array:
    """Selects the values (N, B) of these actions (B,) from the values (N, B, A) of all actions."""
    return (q * one_hot(actions, q.shape[-1])).sum(axis=-1)


def constrained(critic: Network, imitator: Network, observations: Array) -> Array:
    """The actions (B,) with the highest mean value among the likely enough ones, for observations (B, S)."""
    q, features = critic(observations)
    logits = imitator(observations, features)
    likelihood = exp(logits - amax(logits, axis=-1, keepdims=True))
    return argmax(where(likelihood > imitator.module.likelihood_threshold, q.mean(axis=0), -math.inf), axis=-1)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """An update draws nothing besides its batch."""


def draw_noise(key: Array, step: Array, hp: Hyperparameters, dataset_size: int) -> tuple[Array, Noise]:
    """An update's batch indices (B,), which depend on the key and on the update's number alone."""
    return jax.random.randint(jax.random.fold_in(key, step), (hp.batch_size,), 0, dataset_size), Noise()


# ---- losses and update ---------------------------------------------------------------------------------------------


def adam(hp: Hyperparameters) -> optax.GradientTransformation:
    """The optimiser of each network."""
    return optax.adam(hp.learning_rate, eps=hp.adam_eps)


def gradient_step(state: "BCQ", part: str, gradient: Network) -> "BCQ":
    """One step of Adam on one part of the state, down its gradient."""
    change, moments = adam(state.hp).update(gradient, getattr(state, f"{part}_optimizer"))
    return state.replace(**{part: optax.apply_updates(getattr(state, part), change), f"{part}_optimizer": moments})


def huber(error: Array) -> Array:
    """Huber's loss: half the square of errors below 1, and the absolute error minus a half for all others."""
    return where(abs(error) < 1.0, 0.5 * square(error), abs(error) - 0.5)


class BCQ(struct.PyTreeNode):
    """All that an update reads and writes."""

    critic: Network
    imitator: Network
    critic_target: Network
    critic_optimizer: optax.OptState
    imitator_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)

    def td_target(self, batch: Batch) -> Array:
        """The regression target of all critics, (B,): the smallest target value of the best likely next action."""
        hp, critic, imitator, target = self.hp, self.critic, self.imitator, self.critic_target
        next_actions = constrained(critic, imitator, batch.next_observations)
        next_q = amin(value(target(batch.next_observations)[0], next_actions), axis=0)
        assert next_q.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + hp.discount * next_q * (1.0 - batch.terminals)

    def imitation(self, logits: Array, actions: Array) -> Array:
        """The cross-entropy of logits (B, A) against the data's actions (B,), and the penalty."""
        hp = self.hp
        log_probs = log_softmax(logits)
        penalized = log_probs if hp.penalize_log_probs else logits
        return -value(log_probs, actions).mean() + hp.logit_penalty * square(penalized).mean()

    def critic_loss(self, networks: tuple[Network, Network], batch: Batch) -> tuple[Array, dict[str, Array]]:
        """Huber's loss of all critics against one target, added up, and the imitator's loss."""
        critic, imitator = networks
        target = self.td_target(batch)
        values, features = critic(batch.observations)
        q = value(values, batch.actions)
        assert q.shape[1:] == target.shape
        td_loss = huber(q - target).mean(axis=1).sum()
        imitator_loss = self.imitation(imitator(batch.observations, features), batch.actions)
        return td_loss + imitator_loss, {"td_loss": td_loss, "imitator_loss": imitator_loss}

    def update(self, batch: Batch, noise: Noise, copied: bool | Array) -> tuple["BCQ", dict[str, Array]]:
        """One gradient step; then, if `copied`, the targets become copies of the new critics."""
        state = self
        networks = state.critic, state.imitator
        (loss, terms), gradients = value_and_grad(state.critic_loss, has_aux=True)(networks, batch)
        state = gradient_step(state, "critic", gradients[0])
        state = gradient_step(state, "imitator", gradients[1])
        targets = jax.tree.map(partial(where, copied), state.critic, state.critic_target)
        return state.replace(critic_target=targets), {"loss": loss, **terms}

    @property
    def acting(self) -> dict[str, Network]:
        """The networks that the policy needs."""
        return {"critic": self.critic, "imitator": self.imitator}


@jax.jit
def act(acting: dict[str, Network], observations: Array) -> Array:
    """The best likely actions (E,) for observations (E, S)."""
    return constrained(acting["critic"], acting["imitator"], observations)


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="num_updates", donate_argnames="state")
def train_interval(
    state: BCQ, key: Array, dataset: PackedDataset, start: Array, num_updates: int, phase: Array
) -> tuple[BCQ, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates` as one scan.

    `phase` counts the updates since the last copy of the targets. It is traced, so one program serves every interval.
    """
    hp = state.hp

    def draw(step: Array) -> tuple[Array, Array, Noise]:
        copied = (step - start + phase) % hp.target_update_period == 0
        return copied, *draw_noise(key, step, hp, len(dataset))

    def update(state: BCQ, drawn: Any, place: int) -> tuple[BCQ, dict[str, Array]]:
        copied, indices, noise = drawn
        return state.update(take(dataset, indices), noise, copied)

    return scan_updates(update, draw, state, start, num_updates)


def create_train_state(key: Array, config: TrainConfig, state_dim: Shape, action_dim: int, max_action: float) -> BCQ:
    """Fresh networks with PyTorch's initialisation."""
    hp, sizes = narrow(config, Hyperparameters), (action_dim, config.encoder, config.hidden_dims)
    observations, features = jnp.zeros((1, *axes(state_dim))), jnp.zeros((1, config.hidden_dims[-1]))
    critics_key, imitator_key = jax.random.split(key)
    imitator_module = Imitator(*sizes, config.share_encoder, config.likelihood_threshold)
    critic = Network.create(Critics(*sizes, config.n_critics), critics_key, observations)
    imitator = Network.create(imitator_module, imitator_key, observations, features)
    return BCQ(
        critic=critic,
        imitator=imitator,
        # A donated state must not contain an array twice, so the targets are copies.
        critic_target=jax.tree.map(jnp.copy, critic),
        critic_optimizer=adam(hp).init(critic),
        imitator_optimizer=adam(hp).init(imitator),
        hp=hp,
    )


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
        run = Run(config, task, "discrete/bcq", "jax", device)
        state, total_it = restore(run, partial(load_checkpoint, algorithm="discrete/bcq", state=state), state)
        dataset = to_device(task.dataset)
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, act, state.acting)
            history = History(run)
            for start, step in run.calls(cost=0.25):
                num_updates = step - start
                phase = (total_it + start) % config.target_update_period
                state, found = train_together(train_interval, state, draws_key, dataset, start, num_updates, phase)
                history.add(num_updates, found)
                write = partial(save_checkpoint, algorithm="discrete/bcq", state=state, total_it=total_it + step)
                if run.is_due(step):
                    run.log(step, history.means())
                    run.save(step, write)
                    evaluate(run, step, act, state.acting)
                elif run.stopping:
                    run.save(step, partial(write, history=history.content()))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "discrete/bcq")
