"""GCBC in JAX: a policy that imitates the data's actions on the way to states that they led to.

Its twin is `corl_torch/goal_conditioned/gcbc.py`.

Park et al., OGBench: Benchmarking Offline Goal-Conditioned RL, 2024, https://arxiv.org/abs/2410.20092

Earlier: Ghosh et al., Learning to Reach Goals via Iterated Supervised Learning, https://arxiv.org/abs/1912.06088
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
from jax.numpy import broadcast_to, concatenate, exp, log, square, stack
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

    # Learning rate of the policy
    learning_rate: float = positive(3e-4)
    # The value goals are drawn as in the authors' code, and not used.
    value_p_curgoal: float = bounded(0.0, low=0, high=1)
    value_p_trajgoal: float = bounded(1.0, low=0, high=1)
    value_p_randomgoal: float = bounded(0.0, low=0, high=1)
    value_geom_sample: bool = False
    # Transitions in a batch
    batch_size: int = bounded(1024, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, GoalConfig):
    """The settings of a whole run."""

    group: str = "GCBC-OGBench"
    name: str = "GCBC"
    # Widths of the policy's hidden layers
    actor_hidden_dims: tuple[int, ...] = widths(512, 512, 512)
    # Use a standard deviation of 1 for the policy's actions instead of a learnt one
    const_std: bool = True


# ---- networks ------------------------------------------------------------------------------------------------------


def linear(output_dim: int, gain: float = 1.0) -> Linear:
    """A layer with Glorot's uniform weight, times `gain`, and a bias of 0."""
    return Linear(output_dim, kernel_init=xavier_uniform(gain), bias_init=zeros)


def mlp(hidden_dims: Sequence[int], output_dim: int) -> nn.Sequential:
    """Hidden layers with GELU in its tanh form, and a linear layer that is small at the beginning."""
    layers: list[Callable[..., Any]] = []
    for width in hidden_dims:
        layers += [linear(width), nn.gelu]
    return nn.Sequential([*layers, linear(output_dim, gain=0.1)])


class Actor(nn.Module):
    """The policy: a normal distribution whose mean has no bounds, with one standard deviation for all states."""

    action_dim: int
    max_action: float
    hidden_dims: Sequence[int]
    const_std: bool

    def setup(self) -> None:
        self.net = mlp(self.hidden_dims, self.action_dim)
        if not self.const_std:
            self.log_std = self.param("log_std", zeros, (self.action_dim,), float)

    def __call__(self, observations: Array, goals: Array) -> tuple[Array, Array]:
        """Mean and standard deviation, both (B, A), for observations (B, S) and goals (B, S)."""
        mean = self.net(concatenate([observations, goals], axis=-1))
        if self.const_std:
            return mean, jnp.ones_like(mean)
        return mean, broadcast_to(exp(clamp(self.log_std, -5.0, 2.0)), mean.shape)


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

LOG_SQRT_2PI = math.log(math.sqrt(2.0 * math.pi))


def adam(hp: Hyperparameters) -> optax.GradientTransformation:
    """The policy's optimiser."""
    return optax.adam(hp.learning_rate)


def gradient_step(state: "GCBC", part: str, gradient: Network) -> "GCBC":
    """One step of Adam on one part of the state, down its gradient."""
    change, moments = adam(state.hp).update(gradient, getattr(state, f"{part}_optimizer"))
    return state.replace(**{part: optax.apply_updates(getattr(state, part), change), f"{part}_optimizer": moments})


class GCBC(struct.PyTreeNode):
    """All that an update reads and writes."""

    actor: Network
    actor_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)

    def actor_loss(self, actor: Network, batch: GoalBatch) -> tuple[Array, dict[str, Array]]:
        """The negative logarithm of the likelihood of the data's actions, including its constant."""
        mean, std = actor(batch.observations, batch.actor_goals)
        assert mean.shape == batch.actions.shape
        log_prob = (-square((batch.actions - mean) / std) / 2.0 - log(std) - LOG_SQRT_2PI).sum(axis=-1)
        return -log_prob.mean(), {"mse": square(mean - batch.actions).mean()}

    def update(self, batch: GoalBatch, noise: Noise) -> tuple["GCBC", dict[str, Array]]:
        """One gradient step."""
        (actor_loss, aux), gradient = value_and_grad(self.actor_loss, has_aux=True)(self.actor, batch)
        return gradient_step(self, "actor", gradient), {"actor_loss": actor_loss} | aux


@jax.jit
def act(actor: Network, observations: Array, goals: Array) -> Array:
    """The policy's most likely actions (E, A) for observations (E, S) and goals (E, S)."""
    mean, _ = actor(observations, goals)
    return clamp(mean, -actor.module.max_action, actor.module.max_action)


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="num_updates", donate_argnames="state")
def train_interval(
    state: GCBC, key: Array, dataset: PackedDataset, start: Array, num_updates: int
) -> tuple[GCBC, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates` as one program; rows are drawn for a hundred at once."""
    hp, last = state.hp, last_rows(dataset)

    def draw(step: Array) -> tuple[Array, Noise]:
        return draw_noise(key, step, hp, last)

    def update(state: GCBC, drawn: tuple[Array, Noise], place: int) -> tuple[GCBC, dict[str, Array]]:
        indices, noise = drawn
        return state.update(take_goals(dataset, indices, hp.gc_negative), noise)

    return scan_updates(update, draw, state, start, num_updates)


def create_train_state(key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> GCBC:
    """A fresh network with Glorot's uniform weights."""
    hp, observations = narrow(config, Hyperparameters), jnp.zeros((1, state_dim))
    actor_module = Actor(action_dim, max_action, config.actor_hidden_dims, config.const_std)
    actor = Network.create(actor_module, key, observations, observations)
    return GCBC(actor=actor, actor_optimizer=adam(hp).init(actor), hp=hp)


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
        run = Run(config, task, "goal_conditioned/gcbc", "jax", device)
        state, total_it = restore(run, partial(load_checkpoint, algorithm="goal_conditioned/gcbc", state=state), state)
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
                    save_checkpoint, algorithm="goal_conditioned/gcbc", state=state, total_it=total_it + step
                )
                if run.is_due(step):
                    run.log(step, history.means())
                    run.save(step, write)
                    evaluate(run, step, act, state.actor)
                elif run.stopping:
                    run.save(step, partial(write, history=history.content()))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "goal_conditioned/gcbc")
