"""IQL of finite actions in JAX: values of the data's own actions only, and a policy that imitates them by weight.

Its twin is `corl_torch/discrete/iql.py`. The paper's actions are vectors. Here a critic values all actions at once, and
the policy gives a probability to each.

Kostrikov et al., Offline Reinforcement Learning with Implicit Q-Learning, 2021, https://arxiv.org/abs/2110.06169
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
from jax.nn.initializers import zeros
from jax.numpy import amin, argmax, cos, exp, minimum, square, stack, where

from shared.data.transitions import Batch
from shared.envs.spaces import Shape, axes
from shared.frameworks.jax_calls import History
from shared.frameworks.jax_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, take, to_device
from shared.frameworks.jax_encoders import convolutions
from shared.frameworks.jax_layers import Linear, Network, xavier_uniform
from shared.frameworks.jax_scan import scan_updates
from shared.frameworks.jax_seeds import train_together
from shared.frameworks.jax_side import enable_compilation_cache, evaluate, narrow, resolve_device
from shared.runs.fields import bounded, choice, positive, widths
from shared.runs.run import Run
from shared.runs.settings import ImagesConfig, TransitionsConfig
from shared.runs.task import Preparation, load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Rate at which the target critics follow the critics
    tau: float = bounded(0.005, low=0, high=1)
    # Inverse temperature of the policy: how steeply an action's weight grows with its advantage
    inverse_temperature: float = bounded(3.0, low=0)
    # Expectile of the values of the data's actions that V(s) regresses to; above 0.5, it is nearer to the best
    iql_tau: float = bounded(0.7, low=0, high=1)
    # Updates in all, over which the policy's learning rate falls to 0
    max_timesteps: int = bounded(1_000_000, low=1)
    # Transitions in a batch
    batch_size: int = bounded(256, low=1)
    # Learning rate of V
    value_lr: float = positive(3e-4)
    # Learning rate of the critics
    critic_lr: float = positive(3e-4)
    # Initial learning rate of the policy
    actor_lr: float = positive(3e-4)
    # How the policy's learning rate falls: along a cosine, or not at all
    opt_decay_schedule: str = choice("cosine", "none")


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, ImagesConfig, TransitionsConfig):
    """The settings of a whole run."""

    group: str = "DiscreteIQL"
    name: str = "DiscreteIQL"
    # Dataset of finite actions: mini/cartpole-replay, minari:NAME, or the path of an HDF5 file
    env: str = "mini/cartpole-replay"
    # Updates between two evaluations
    eval_freq: int = bounded(10_000, low=1)
    # Widths of the hidden layers
    hidden_dims: tuple[int, ...] = widths(256, 256)


# ---- networks ------------------------------------------------------------------------------------------------------


def linear(output_dim: int) -> Linear:
    """A layer with Glorot's uniform weight and a bias of 0, even if it is a last layer."""
    return Linear(output_dim, kernel_init=xavier_uniform(gain=1.0), bias_init=zeros)


def mlp(encoder: str, hidden_dims: Sequence[int], output_dim: int) -> nn.Sequential:
    """Convolutions if there are any, hidden layers with ReLU, then a linear layer."""
    hidden = [layer for width in hidden_dims for layer in (linear(width), nn.relu)]
    return nn.Sequential([*convolutions(encoder), *hidden, linear(output_dim)])


class TwinQ(nn.Module):
    """Two critics Q(s, .), which value all actions at once, with separate weights."""

    action_dim: int
    encoder: str
    hidden_dims: Sequence[int]

    def setup(self) -> None:
        self.q1 = mlp(self.encoder, self.hidden_dims, self.action_dim)
        self.q2 = mlp(self.encoder, self.hidden_dims, self.action_dim)

    def __call__(self, observations: Array) -> Array:
        """The values (2, B, A) of all actions in observations (B, S)."""
        return stack([self.q1(observations), self.q2(observations)])


class ValueFunction(nn.Module):
    """V(s)."""

    encoder: str
    hidden_dims: Sequence[int]

    def setup(self) -> None:
        self.v = mlp(self.encoder, self.hidden_dims, 1)

    def __call__(self, observations: Array) -> Array:
        """The values (B,) of observations (B, S)."""
        return self.v(observations).squeeze(-1)


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


def value(q: Array, actions: Array) -> Array:
    """Selects the values (..., B) of these actions (B,) from the values (..., B, A) of all actions."""
    return (q * one_hot(actions, q.shape[-1])).sum(axis=-1)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """An update draws nothing besides its batch."""


def draw_noise(key: Array, step: Array, hp: Hyperparameters, dataset_size: int) -> tuple[Array, Noise]:
    """An update's batch indices (B,), which depend on the key and on the update's number alone."""
    return jax.random.randint(jax.random.fold_in(key, step), (hp.batch_size,), 0, dataset_size), Noise()


# ---- losses and update ---------------------------------------------------------------------------------------------

# The largest weight of an action in the policy's loss
MAX_WEIGHT = 100.0


def actor_lr(hp: Hyperparameters, updates: Array) -> Array | float:
    """The policy's learning rate after so many updates: a cosine from `actor_lr` to 0, where it stays."""
    if hp.opt_decay_schedule == "none":
        return hp.actor_lr
    return hp.actor_lr * (1.0 + cos(math.pi * minimum(updates, hp.max_timesteps) / hp.max_timesteps)) / 2.0


def adam(part: str, hp: Hyperparameters) -> optax.GradientTransformation:
    """The optimiser of one part of the state."""
    rates = {"value": hp.value_lr, "critic": hp.critic_lr, "actor": partial(actor_lr, hp)}
    return optax.adam(rates[part])


def gradient_step(state: "IQL", part: str, gradient: Network) -> "IQL":
    """One step of Adam on one part of the state, down its gradient."""
    change, moments = adam(part, state.hp).update(gradient, getattr(state, f"{part}_optimizer"))
    return state.replace(**{part: optax.apply_updates(getattr(state, part), change), f"{part}_optimizer": moments})


def soft_update(target: Network, source: Network, tau: float) -> Network:
    """Polyak averaging: the target, moved a step of size tau towards the source."""
    return jax.tree.map(lambda old, new: (1.0 - tau) * old + tau * new, target, source)


class IQL(struct.PyTreeNode):
    """All that an update reads and writes."""

    critic: Network
    value: Network
    actor: Network
    critic_target: Network
    value_optimizer: optax.OptState
    critic_optimizer: optax.OptState
    actor_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)

    def target_q(self, batch: Batch) -> Array:
        """The smaller target value of the data's actions, (B,)."""
        return amin(value(self.critic_target(batch.observations), batch.actions), axis=0)

    def expectile_weight(self, adv: Array) -> Array:
        """The weight of each advantage (B,) in V's loss: `iql_tau` if it is positive, otherwise 1 - `iql_tau`."""
        return where(adv > 0.0, self.hp.iql_tau, 1.0 - self.hp.iql_tau)

    def value_loss(self, value: Network, batch: Batch) -> tuple[Array, dict[str, Array]]:
        """Expectile regression of V to the target values of the data's actions."""
        v = value(batch.observations)
        adv = self.target_q(batch) - v
        assert adv.shape == v.shape == batch.rewards.shape
        return (self.expectile_weight(adv) * square(adv)).mean(), {}

    def td_target(self, batch: Batch) -> Array:
        """The regression target of both critics, (B,), for which no action is chosen."""
        next_v = self.value(batch.next_observations)
        assert next_v.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + self.hp.discount * next_v * (1.0 - batch.terminals)

    def q_loss(self, critic: Network, batch: Batch) -> tuple[Array, dict[str, Array]]:
        """The squared errors of both critics to the same target, added up over them."""
        target = self.td_target(batch)
        q = value(critic(batch.observations), batch.actions)
        assert q.shape[1:] == target.shape
        return square(q - target).mean(axis=1).sum(), {}

    def weights(self, batch: Batch) -> Array:
        """The weight of each of the data's actions, (B,): the exponential of its advantage, up to a cap."""
        q = amin(value(self.critic(batch.observations), batch.actions), axis=0)
        adv = q - self.value(batch.observations)
        assert adv.shape == batch.rewards.shape
        return minimum(exp(self.hp.inverse_temperature * adv), MAX_WEIGHT)

    def actor_loss(self, actor: Network, batch: Batch) -> tuple[Array, dict[str, Array]]:
        """Weighted behaviour cloning of the data's actions."""
        log_probs = log_softmax(actor(batch.observations), axis=-1)
        log_prob, weights = value(log_probs, batch.actions), self.weights(batch)
        assert log_prob.shape == weights.shape
        return -(weights * log_prob).mean(), {}

    def update(self, batch: Batch, noise: Noise) -> tuple["IQL", dict[str, Array]]:
        """One gradient step: every loss, then the targets, at the old parameters; then every optimiser's step."""
        state, hp = self, self.hp
        (value_loss, _), value_gradient = value_and_grad(state.value_loss, has_aux=True)(state.value, batch)
        (q_loss, _), critic_gradient = value_and_grad(state.q_loss, has_aux=True)(state.critic, batch)
        (actor_loss, _), actor_gradient = value_and_grad(state.actor_loss, has_aux=True)(state.actor, batch)
        state = state.replace(critic_target=soft_update(state.critic_target, state.critic, hp.tau))
        state = gradient_step(state, "value", value_gradient)
        state = gradient_step(state, "critic", critic_gradient)
        state = gradient_step(state, "actor", actor_gradient)
        return state, {"value_loss": value_loss, "q_loss": q_loss, "actor_loss": actor_loss}


@jax.jit
def act(actor: Network, observations: Array) -> Array:
    """The most likely actions (E,) for observations (E, S)."""
    return argmax(actor(observations), axis=-1)


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="num_updates", donate_argnames="state")
def train_interval(
    state: IQL, key: Array, dataset: PackedDataset, start: Array, num_updates: int
) -> tuple[IQL, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates` as one scan."""

    def draw(step: Array) -> tuple[Array, Noise]:
        return draw_noise(key, step, state.hp, len(dataset))

    def update(state: IQL, drawn: Any, place: int) -> tuple[IQL, dict[str, Array]]:
        indices, noise = drawn
        return state.update(take(dataset, indices), noise)

    return scan_updates(update, draw, state, start, num_updates)


def create_train_state(key: Array, config: TrainConfig, state_dim: Shape, action_dim: int, max_action: float) -> IQL:
    """Fresh networks."""
    hp, observations = narrow(config, Hyperparameters), jnp.zeros((1, *axes(state_dim)))
    layers = config.encoder, config.hidden_dims
    qf_key, vf_key, actor_key = jax.random.split(key, 3)
    critic = Network.create(TwinQ(action_dim, *layers), qf_key, observations)
    value = Network.create(ValueFunction(*layers), vf_key, observations)
    actor = Network.create(Actor(action_dim, *layers), actor_key, observations)
    return IQL(
        critic=critic,
        value=value,
        actor=actor,
        # A donated state must not contain an array twice, so the target is a copy.
        critic_target=jax.tree.map(jnp.copy, critic),
        value_optimizer=adam("value", hp).init(value),
        critic_optimizer=adam("critic", hp).init(critic),
        actor_optimizer=adam("actor", hp).init(actor),
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
        run = Run(config, task, "discrete/iql", "jax", device)
        state, total_it = restore(run, partial(load_checkpoint, algorithm="discrete/iql", state=state), state)
        dataset = to_device(task.dataset)
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, act, state.actor)
            history = History(run)
            for start, step in run.calls():
                num_updates = step - start
                state, found = train_together(train_interval, state, draws_key, dataset, start, num_updates)
                history.add(num_updates, found)
                write = partial(save_checkpoint, algorithm="discrete/iql", state=state, total_it=total_it + step)
                if run.is_due(step):
                    run.log(step, history.means())
                    run.save(step, write)
                    evaluate(run, step, act, state.actor)
                elif run.stopping:
                    run.save(step, partial(write, history=history.content()))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "discrete/iql")
