"""GCIVL in JAX: values of states for goals by expectile regression, and a policy that imitates the way to them.

Its twin is `corl_torch/goal_conditioned/gcivl.py`.

Park et al., OGBench: Benchmarking Offline Goal-Conditioned RL, 2024, https://arxiv.org/abs/2410.20092. The values are
learnt as in HIQL, https://arxiv.org/abs/2307.11949, without its representation.
"""

import math
from collections.abc import Callable, Sequence
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
from jax.nn.initializers import zeros
from jax.numpy import amin, broadcast_to, concatenate, exp, log, square, stack, where
from jax.typing import ArrayLike

from shared.data.goals import GoalBatch
from shared.frameworks.jax_calls import History
from shared.frameworks.jax_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, to_device
from shared.frameworks.jax_goals import draw_goals, last_rows, take_goals
from shared.frameworks.jax_layers import Linear, Network, clamp, xavier_uniform
from shared.frameworks.jax_scan import scan_updates
from shared.frameworks.jax_seeds import train_together
from shared.frameworks.jax_side import enable_compilation_cache, evaluate, narrow, resolve_device
from shared.runs.fields import bounded, positive, widths
from shared.runs.run import Run
from shared.runs.settings import GoalConfig, GoalSettings
from shared.runs.task import Extract, Preparation, load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters(GoalSettings):
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Learning rate of all networks
    learning_rate: float = positive(3e-4)
    # Rate at which the target values follow the values
    tau: float = bounded(0.005, low=0, high=1)
    # Expectile that the values regress to; above 0.5, it is nearer to the best
    iql_tau: float = bounded(0.9, low=0, high=1)
    # Inverse temperature of the policy: how steeply an action's weight grows with its advantage
    inverse_temperature: float = bounded(10.0, low=0)
    # Transitions in a batch
    batch_size: int = bounded(1024, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, GoalConfig):
    """The settings of a whole run."""

    group: str = "GCIVL-OGBench"
    name: str = "GCIVL"
    # Widths of the policy's hidden layers
    actor_hidden_dims: tuple[int, ...] = widths(512, 512, 512)
    # Widths of the values' hidden layers
    value_hidden_dims: tuple[int, ...] = widths(512, 512, 512)
    # LayerNorm after the values' hidden layers
    value_ln: bool = True
    # Use a standard deviation of 1 for the policy's actions instead of a learnt one
    const_std: bool = True


# ---- networks ------------------------------------------------------------------------------------------------------


def linear(output_dim: int, gain: float = 1.0) -> Linear:
    """A layer with Glorot's uniform weight, times `gain`, and a bias of 0."""
    return Linear(output_dim, kernel_init=xavier_uniform(gain), bias_init=zeros)


def mlp(hidden_dims: Sequence[int], layer_norm: bool, output_dim: int, gain: float = 1.0) -> nn.Sequential:
    """Hidden layers with GELU in its tanh form, then LayerNorm if the settings say so; the last layer is linear."""
    layers: list[Callable[..., Any]] = []
    for width in hidden_dims:
        layers += [linear(width), nn.gelu]
        if layer_norm:
            layers += [nn.LayerNorm(epsilon=1e-6, use_fast_variance=False, param_dtype=float)]
    return nn.Sequential([*layers, linear(output_dim, gain)])


class Actor(nn.Module):
    """The policy: a normal distribution whose mean has no bounds, with one standard deviation for all states."""

    action_dim: int
    max_action: float
    hidden_dims: Sequence[int]
    const_std: bool

    def setup(self) -> None:
        self.net = mlp(self.hidden_dims, False, self.action_dim, gain=0.1)
        if not self.const_std:
            self.log_std = self.param("log_std", zeros, (self.action_dim,), float)

    def __call__(self, observations: Array, goals: Array) -> tuple[Array, Array]:
        """Mean and standard deviation, both (B, A), for observations (B, S) and goals (B, S)."""
        mean = self.net(concatenate([observations, goals], axis=-1))
        if self.const_std:
            return mean, jnp.ones_like(mean)
        return mean, broadcast_to(exp(clamp(self.log_std, -5.0, 2.0)), mean.shape)


class Value(nn.Module):
    """Two values with separate weights: (B, S) and (B, S) to (2, B)."""

    hidden_dims: Sequence[int]
    layer_norm: bool

    def setup(self) -> None:
        sizes = (self.hidden_dims, self.layer_norm, 1)
        self.v1 = mlp(*sizes)
        self.v2 = mlp(*sizes)

    def __call__(self, observations: Array, goals: Array) -> Array:
        """The values (2, B) of observations (B, S) for goals (B, S)."""
        inputs = concatenate([observations, goals], axis=-1)
        return stack([self.v1(inputs), self.v2(inputs)]).squeeze(-1)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its rows: none."""


def draw_noise(key: Array, step: Array, hp: Hyperparameters, last: ArrayLike) -> tuple[Array, Noise]:
    """An update's rows (3, B), which depend on the key and on the update's number alone.

    Args:
        key: The run's key for draws.
        step: The update's number, from 0.
        hp: Contains the sizes and the kinds of goals.
        last: (N,), the last row of each row's trajectory.

    Returns:
        The rows of the states, of the value goals and of the policy's goals; and no noise.
    """
    last = jnp.asarray(last)
    index_key, value_key, actor_key = jax.random.split(jax.random.fold_in(key, step), 3)
    rows = jax.random.randint(index_key, (hp.batch_size,), 0, len(last))
    value_goals = draw_goals(value_key, rows, last, hp.value_goals, hp.discount)
    actor_goals = draw_goals(actor_key, rows, last, hp.actor_goals, hp.discount)
    return stack([rows, value_goals, actor_goals]), Noise()


# ---- losses and update ---------------------------------------------------------------------------------------------

# The largest weight of an action in the policy's loss
MAX_WEIGHT = 100.0
LOG_SQRT_2PI = math.log(math.sqrt(2.0 * math.pi))


def adam(hp: Hyperparameters) -> optax.GradientTransformation:
    """The optimiser of each part of the state."""
    return optax.adam(hp.learning_rate)


def gradient_step(state: "GCIVL", part: str, gradient: Network) -> "GCIVL":
    """One step of Adam on one part of the state, down its gradient."""
    change, moments = adam(state.hp).update(gradient, getattr(state, f"{part}_optimizer"))
    return state.replace(**{part: optax.apply_updates(getattr(state, part), change), f"{part}_optimizer": moments})


def soft_update(target: Network, source: Network, tau: float) -> Network:
    """Polyak averaging: the target, moved a step of size tau towards the source."""
    return jax.tree.map(lambda old, new: (1.0 - tau) * old + tau * new, target, source)


class GCIVL(struct.PyTreeNode):
    """All that an update reads and writes."""

    value: Network
    actor: Network
    value_target: Network
    value_optimizer: optax.OptState
    actor_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)

    def td_targets(self, batch: GoalBatch) -> tuple[Array, Array]:
        """The regression targets of both values, (2, B), and the advantage of the data's step, (B,).

        Each value has its own target value in its target. The advantage uses the smaller one, and target values alone.
        """
        hp, value = self.hp, self.value_target
        next_v = value(batch.next_observations, batch.value_goals)
        assert next_v.shape == (2, *batch.rewards.shape)
        adv = batch.rewards + hp.discount * batch.masks * amin(next_v, axis=0)
        adv = adv - value(batch.observations, batch.value_goals).mean(axis=0)
        return batch.rewards + hp.discount * batch.masks * next_v, adv

    def expectile_weight(self, adv: Array) -> Array:
        """The weight of each advantage (B,) in the values' loss: `iql_tau` if it is at least 0, else 1 - `iql_tau`."""
        return where(adv >= 0.0, self.hp.iql_tau, 1.0 - self.hp.iql_tau)

    def value_loss(self, value: Network, batch: GoalBatch) -> tuple[Array, dict[str, Array]]:
        """Expectile regression of both values, summed over them."""
        targets, adv = self.td_targets(batch)
        v = value(batch.observations, batch.value_goals)
        assert v.shape == targets.shape == (2, *adv.shape)
        loss = (self.expectile_weight(adv) * square(targets - v)).mean(axis=1).sum()
        return loss, {"v": v.mean()}

    def advantage(self, batch: GoalBatch) -> Array:
        """How much nearer a step brings the policy's goal, (B,): a difference of values, without a reward."""
        value = self.value
        next_v = value(batch.next_observations, batch.actor_goals).mean(axis=0)
        return next_v - value(batch.observations, batch.actor_goals).mean(axis=0)

    def actor_loss(self, actor: Network, batch: GoalBatch) -> tuple[Array, dict[str, Array]]:
        """Behaviour cloning, in which each action is weighted by the exponential of its advantage."""
        hp = self.hp
        adv = self.advantage(batch)
        mean, std = actor(batch.observations, batch.actor_goals)
        assert mean.shape == batch.actions.shape
        log_prob = (-square((batch.actions - mean) / std) / 2.0 - log(std) - LOG_SQRT_2PI).sum(axis=-1)
        weight = clamp(exp(hp.inverse_temperature * adv), 0.0, MAX_WEIGHT)
        assert weight.shape == log_prob.shape == batch.rewards.shape
        return -(weight * log_prob).mean(), {"adv": adv.mean(), "bc_log_prob": log_prob.mean()}

    def update(self, batch: GoalBatch, noise: Noise) -> tuple["GCIVL", dict[str, Array]]:
        """One gradient step of values and policy, and one step of the target values, all from the old weights."""
        state = self
        (value_loss, of_value), value_gradient = value_and_grad(self.value_loss, has_aux=True)(self.value, batch)
        (actor_loss, of_actor), actor_gradient = value_and_grad(self.actor_loss, has_aux=True)(self.actor, batch)
        state = state.replace(value_target=soft_update(state.value_target, state.value, self.hp.tau))
        state = gradient_step(state, "value", value_gradient)
        state = gradient_step(state, "actor", actor_gradient)
        return state, {"value_loss": value_loss, "actor_loss": actor_loss} | of_value | of_actor


@jax.jit
def act(actor: Network, observations: Array, goals: Array) -> Array:
    """The policy's most likely actions (E, A) for observations (E, S) and goals (E, S)."""
    mean, _ = actor(observations, goals)
    return clamp(mean, -actor.module.max_action, actor.module.max_action)


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="num_updates", donate_argnames="state")
def train_interval(
    state: GCIVL, key: Array, dataset: PackedDataset, start: Array, num_updates: int
) -> tuple[GCIVL, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates` as one program; rows are drawn for a hundred at once."""
    hp, last = state.hp, last_rows(dataset)

    def draw(step: Array) -> tuple[Array, Noise]:
        return draw_noise(key, step, hp, last)

    def update(state: GCIVL, drawn: tuple[Array, Noise], place: int) -> tuple[GCIVL, dict[str, Array]]:
        indices, noise = drawn
        return state.update(take_goals(dataset, indices, hp.gc_negative), noise)

    return scan_updates(update, draw, state, start, num_updates)


def create_train_state(key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> GCIVL:
    """Fresh networks with Glorot's uniform weights."""
    hp, observations = narrow(config, Hyperparameters), jnp.zeros((1, state_dim))
    value_key, actor_key = jax.random.split(key)
    value_module = Value(config.value_hidden_dims, config.value_ln)
    value = Network.create(value_module, value_key, observations, observations)
    actor_module = Actor(action_dim, max_action, config.actor_hidden_dims, config.const_std)
    actor = Network.create(actor_module, actor_key, observations, observations)
    return GCIVL(
        value=value,
        actor=actor,
        # A donated state must not contain an array twice, so the target is a copy.
        value_target=jax.tree.map(jnp.copy, value),
        value_optimizer=adam(hp).init(value),
        actor_optimizer=adam(hp).init(actor),
        hp=hp,
    )


def train(config: TrainConfig) -> Run:
    """Trains, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used.
    """
    task = load_task(config, Preparation(Extract.GOALS, normalise=False))
    device = resolve_device(config.device)
    enable_compilation_cache()
    with jax.default_device(device):
        weights_key, draws_key = jax.random.split(jax.random.key(config.seed))
        state = create_train_state(weights_key, config, task.state_dim, task.action_dim, task.max_action)
        run = Run(config, task, "goal_conditioned/gcivl", "jax", device)
        state, total_it = restore(run, partial(load_checkpoint, algorithm="goal_conditioned/gcivl", state=state), state)
        dataset = to_device(task.dataset)
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, act, state.actor)
            history = History(run)
            for start, step in run.calls(cost=5):
                num_updates = step - start
                state, found = train_together(train_interval, state, draws_key, dataset, start, num_updates)
                history.add(num_updates, found)
                write = partial(
                    save_checkpoint, algorithm="goal_conditioned/gcivl", state=state, total_it=total_it + step
                )
                if run.is_due(step):
                    run.log(step, history.means())
                    run.save(step, write)
                    evaluate(run, step, act, state.actor)
                elif run.stopping:
                    run.save(step, partial(write, history=history.content()))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "goal_conditioned/gcivl")
