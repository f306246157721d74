"""SAC of finite actions in JAX: an actor-critic that is rewarded for entropy, and sums over all actions.

Its twin is `corl_torch/discrete/sac.py`. It learns from a dataset, and nothing is sampled.

Christodoulou, Soft Actor-Critic for Discrete Action Settings, 2019, https://arxiv.org/abs/1910.07207
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
from jax.nn import logsumexp, one_hot, softmax
from jax.numpy import abs, amin, argmax, exp, square, stack, where

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

    # Learning rate of the policy
    actor_lr: float = positive(3e-4)
    # Learning rate of the critics
    critic_lr: float = positive(3e-4)
    # Learning rate of the temperature; 0: the temperature is constant
    temperature_lr: float = bounded(3e-4, low=0)
    # Target of the policy's entropy, as a share of the largest possible
    entropy_share: float = bounded(0.98, low=0, high=1)
    # Use Huber's loss for the critics, as in d3rlpy 2.8.1; false: half the squared error, as in the paper
    huber: bool = False
    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Updates between two copies of the critics into the targets; the first update makes the first copy
    target_update_period: int = bounded(8000, low=1)
    # Transitions in a batch
    batch_size: int = bounded(64, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, ImagesConfig, TransitionsConfig):
    """The settings of a whole run."""

    group: str = "DiscreteSAC"
    name: str = "DiscreteSAC"
    # Dataset of finite actions: mini/cartpole-replay, minari:NAME, or the path of an HDF5 file
    env: str = "mini/cartpole-replay"
    # Updates between two evaluations
    eval_freq: int = bounded(10_000, low=1)
    # Critics
    n_critics: int = bounded(2, low=1)
    # Widths of the hidden layers
    hidden_dims: tuple[int, ...] = widths(256, 256)
    # Initial temperature
    initial_temperature: float = positive(1.0)


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


class Critics(nn.Module):
    """N critics Q(s, .), which value all actions at once, with separate weights."""

    action_dim: int
    encoder: str
    hidden_dims: Sequence[int]
    n_critics: int

    def setup(self) -> None:
        self.members = [mlp(self.encoder, self.hidden_dims, self.action_dim) for _ in range(self.n_critics)]

    def __call__(self, observations: Array) -> Array:
        """The values (N, B, A) of all actions in observations (B, S)."""
        return stack([member(observations) for member in self.members])


def value(q: Array, actions: Array) -> Array:
    """Selects the values (N, B) of these actions (B,) from the values (N, B, A) of all actions."""
    return (q * one_hot(actions, q.shape[-1])).sum(axis=-1)


def distribution(actor: Network, observations: Array) -> tuple[Array, Array]:
    """The probabilities of all actions in observations (B, S), and their logarithms, (B, A) each."""
    logits = actor(observations)
    log_probs = logits - logsumexp(logits, axis=-1, keepdims=True)
    return softmax(log_probs, axis=-1), log_probs


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """An update draws nothing besides its batch."""


def draw_noise(key: Array, step: Array, hp: Hyperparameters, dataset_size: int) -> tuple[Array, Noise]:
    """An update's batch indices (B,), which depend on the key and on the update's number alone."""
    return jax.random.randint(jax.random.fold_in(key, step), (hp.batch_size,), 0, dataset_size), Noise()


# ---- losses and update ---------------------------------------------------------------------------------------------


def adam(part: str, hp: Hyperparameters) -> optax.GradientTransformation:
    """The optimiser of one part of the state."""
    return optax.adam({"actor": hp.actor_lr, "critic": hp.critic_lr, "log_temperature": hp.temperature_lr}[part])


def gradient_step(state: "SAC", part: str, gradient: Network | Array) -> "SAC":
    """One step of Adam on one part of the state, down its gradient."""
    change, moments = adam(part, state.hp).update(gradient, getattr(state, f"{part}_optimizer"))
    return state.replace(**{part: optax.apply_updates(getattr(state, part), change), f"{part}_optimizer": moments})


def huber(error: Array) -> Array:
    """Huber's loss: half the square of errors below 1, and the absolute error minus a half for all others."""
    return where(abs(error) < 1.0, 0.5 * square(error), abs(error) - 0.5)


class SAC(struct.PyTreeNode):
    """All that an update reads and writes."""

    actor: Network
    critic: Network
    log_temperature: Array
    critic_target: Network
    actor_optimizer: optax.OptState
    critic_optimizer: optax.OptState
    log_temperature_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)

    def temperature(self) -> Array:
        """The temperature: a constant in every loss except its own."""
        return exp(self.log_temperature)

    def td_target(self, batch: Batch) -> Array:
        """The regression target of all critics, (B,): the smallest values, averaged over the policy, plus entropy."""
        hp, actor, critic = self.hp, self.actor, self.critic_target
        probs, log_probs = distribution(actor, batch.next_observations)
        q = amin(critic(batch.next_observations), axis=0)
        next_v = (probs * (q - self.temperature() * log_probs)).sum(axis=-1)
        assert next_v.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + hp.discount * next_v * (1.0 - batch.terminals)

    def critic_loss(self, critic: Network, batch: Batch) -> tuple[Array, dict[str, Array]]:
        """The losses of all critics against the same target, added up over the critics."""
        target = self.td_target(batch)
        q = value(critic(batch.observations), batch.actions)
        assert q.shape[1:] == target.shape
        losses = huber(q - target) if self.hp.huber else 0.5 * square(q - target)
        return losses.mean(axis=1).sum(), {}

    def temp_loss(self, log_temperature: Array, batch: Batch) -> tuple[Array, dict[str, Array]]:
        """Raises the temperature while the policy's entropy is below its share of the maximum, log A."""
        probs, log_probs = distribution(self.actor, batch.observations)
        entropy = -(probs * log_probs).sum(axis=-1)
        target = self.hp.entropy_share * math.log(probs.shape[-1])
        return (exp(log_temperature) * (entropy - target)).mean(), {}

    def actor_loss(self, actor: Network, batch: Batch) -> tuple[Array, dict[str, Array]]:
        """Maximizes the smallest of the critics' values and the policy's entropy."""
        probs, log_probs = distribution(actor, batch.observations)
        q = amin(self.critic(batch.observations), axis=0)
        entropy = -(probs * log_probs).sum(axis=-1)
        loss = (probs * (self.temperature() * log_probs - q)).sum(axis=-1)
        return loss.mean(), {"entropy": entropy.mean()}

    def update(self, batch: Batch, noise: Noise, copied: bool | Array) -> tuple["SAC", dict[str, Array]]:
        """One gradient step: the critics; the temperature; the policy, with both; then perhaps the targets' copy."""
        state, hp = self, self.hp
        (loss, _), gradient = value_and_grad(state.critic_loss, has_aux=True)(state.critic, batch)
        state = gradient_step(state, "critic", gradient)
        metrics = {"critic_loss": loss}
        if hp.temperature_lr > 0.0:
            (loss, _), gradient = value_and_grad(state.temp_loss, has_aux=True)(state.log_temperature, batch)
            state = gradient_step(state, "log_temperature", gradient)
            metrics["temp_loss"] = loss
        (loss, aux), gradient = value_and_grad(state.actor_loss, has_aux=True)(state.actor, batch)
        state = gradient_step(state, "actor", gradient)
        targets = jax.tree.map(partial(where, copied), state.critic, state.critic_target)
        metrics |= {"actor_loss": loss, "temp": state.temperature(), **aux}
        return state.replace(critic_target=targets), metrics


@jax.jit
def act(actor: Network, observations: Array) -> Array:
    """The most likely actions (E,) for observations (E, S)."""
    return argmax(actor(observations), axis=-1)


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="num_updates", donate_argnames="state")
def train_interval(
    state: SAC, key: Array, dataset: PackedDataset, start: Array, num_updates: int, phase: Array
) -> tuple[SAC, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates` as one scan.

    `phase` counts the updates since the last copy of the targets. It is traced, so one program serves every interval.
    """
    hp = state.hp

    def draw(step: Array) -> tuple[Array, Array, Noise]:
        copied = (step - start + phase) % hp.target_update_period == 0
        return copied, *draw_noise(key, step, hp, len(dataset))

    def update(state: SAC, drawn: Any, place: int) -> tuple[SAC, dict[str, Array]]:
        copied, indices, noise = drawn
        return state.update(take(dataset, indices), noise, copied)

    return scan_updates(update, draw, state, start, num_updates)


def create_train_state(key: Array, config: TrainConfig, state_dim: Shape, action_dim: int, max_action: float) -> SAC:
    """Fresh networks with PyTorch's initialisation."""
    hp, observations = narrow(config, Hyperparameters), jnp.zeros((1, *axes(state_dim)))
    sizes = action_dim, config.encoder, config.hidden_dims
    actor_key, critics_key = jax.random.split(key)
    actor = Network.create(Actor(*sizes), actor_key, observations)
    critic = Network.create(Critics(*sizes, config.n_critics), critics_key, observations)
    log_temperature = jnp.asarray(math.log(config.initial_temperature), dtype=float)
    return SAC(
        actor=actor,
        critic=critic,
        log_temperature=log_temperature,
        # A donated state must not contain an array twice, so the targets are copies.
        critic_target=jax.tree.map(jnp.copy, critic),
        actor_optimizer=adam("actor", hp).init(actor),
        critic_optimizer=adam("critic", hp).init(critic),
        log_temperature_optimizer=adam("log_temperature", hp).init(log_temperature),
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
        run = Run(config, task, "discrete/sac", "jax", device)
        state, total_it = restore(run, partial(load_checkpoint, algorithm="discrete/sac", state=state), state)
        dataset = to_device(task.dataset)
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, act, state.actor)
            history = History(run)
            for start, step in run.calls():
                num_updates = step - start
                phase = (total_it + start) % config.target_update_period
                state, found = train_together(train_interval, state, draws_key, dataset, start, num_updates, phase)
                history.add(num_updates, found)
                write = partial(save_checkpoint, algorithm="discrete/sac", state=state, total_it=total_it + step)
                if run.is_due(step):
                    run.log(step, history.means())
                    run.save(step, write)
                    evaluate(run, step, act, state.actor)
                elif run.stopping:
                    run.save(step, partial(write, history=history.content()))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "discrete/sac")
