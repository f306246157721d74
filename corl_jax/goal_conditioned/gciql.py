"""GCIQL in JAX: values of actions for goals by expectile regression, and a policy that follows Q near the data.

Its twin is `corl_torch/goal_conditioned/gciql.py`.

Park et al., OGBench: Benchmarking Offline Goal-Conditioned RL, 2024, https://arxiv.org/abs/2410.20092, which uses IQL,
https://arxiv.org/abs/2110.06169, with goals.
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
from jax.lax import stop_gradient
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
from shared.runs.fields import bounded, choice, positive, widths
from shared.runs.run import Run
from shared.runs.settings import GoalConfig, GoalSettings
from shared.runs.task import Extract, Preparation, load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters(GoalSettings):
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Learning rate of all networks
    learning_rate: float = positive(3e-4)
    # Rate at which the target critics follow the critics
    tau: float = bounded(0.005, low=0, high=1)
    # Expectile of the critics' values that V regresses to; above 0.5, it is nearer to the best
    iql_tau: float = bounded(0.9, low=0, high=1)
    # The policy's loss: ddpgbc maximizes Q and clones the data's actions; awr clones them with weights
    actor_loss: str = choice("ddpgbc", "awr")
    # Weight of cloning for ddpgbc; inverse temperature for awr
    alpha: float = bounded(0.3, low=0)
    # Use a standard deviation of 1 for the policy's actions instead of a learnt one
    const_std: bool = True
    # Transitions in a batch
    batch_size: int = bounded(1024, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, GoalConfig):
    """The settings of a whole run."""

    group: str = "GCIQL-OGBench"
    name: str = "GCIQL"
    # Widths of the policy's hidden layers
    actor_hidden_dims: tuple[int, ...] = widths(512, 512, 512)
    # Widths of the hidden layers of V and the critics
    value_hidden_dims: tuple[int, ...] = widths(512, 512, 512)
    # LayerNorm after the hidden layers of V and the critics
    value_ln: bool = True


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
    """V(s, g)."""

    hidden_dims: Sequence[int]
    layer_norm: bool

    def setup(self) -> None:
        self.v = mlp(self.hidden_dims, self.layer_norm, 1)

    def __call__(self, observations: Array, goals: Array) -> Array:
        """The values (B,) of observations (B, S) for goals (B, S)."""
        return self.v(concatenate([observations, goals], axis=-1)).squeeze(-1)


class Critic(nn.Module):
    """Both critics, with separate weights: (B, S), (B, S) and (B, A) to (2, B)."""

    hidden_dims: Sequence[int]
    layer_norm: bool

    def setup(self) -> None:
        sizes = (self.hidden_dims, self.layer_norm, 1)
        self.q1 = mlp(*sizes)
        self.q2 = mlp(*sizes)

    def __call__(self, observations: Array, goals: Array, actions: Array) -> Array:
        """The values (2, B) of actions (B, A) in observations (B, S) for goals (B, S)."""
        inputs = concatenate([observations, goals, actions], axis=-1)
        return stack([self.q1(inputs), self.q2(inputs)]).squeeze(-1)


def cut(actor: Network, actions: Array) -> Array:
    """Actions (B, A), clipped to [-max_action, max_action]."""
    return clamp(actions, -actor.module.max_action, actor.module.max_action)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its rows."""

    # Standard normal, (B, A): the noise of the actions for which the policy's loss maximizes Q; None if const_std
    action: Array | None = None


def draw_noise(key: Array, step: Array, hp: Hyperparameters, last: ArrayLike, action_dim: int) -> tuple[Array, Noise]:
    """An update's rows (3, B) and its noise, which depend on the key and on the update's number alone.

    Args:
        key: The run's key for draws.
        step: The update's number, from 0.
        hp: Contains the sizes and the kinds of goals.
        last: (N,), the last row of each row's trajectory.
        action_dim: A.

    Returns:
        The rows of the states, of the value goals and of the policy's goals; and the noise.
    """
    last = jnp.asarray(last)
    index_key, value_key, actor_key, action_key = jax.random.split(jax.random.fold_in(key, step), 4)
    rows = jax.random.randint(index_key, (hp.batch_size,), 0, len(last))
    value_goals = draw_goals(value_key, rows, last, hp.value_goals, hp.discount)
    actor_goals = draw_goals(actor_key, rows, last, hp.actor_goals, hp.discount)
    noise = Noise() if hp.const_std else Noise(jax.random.normal(action_key, (hp.batch_size, action_dim)))
    return stack([rows, value_goals, actor_goals]), noise


# ---- losses and update ---------------------------------------------------------------------------------------------

# The largest weight of an action in the policy's loss
MAX_WEIGHT = 100.0
LOG_SQRT_2PI = math.log(math.sqrt(2.0 * math.pi))


def adam(hp: Hyperparameters) -> optax.GradientTransformation:
    """The optimiser of each part of the state."""
    return optax.adam(hp.learning_rate)


def gradient_step(state: "GCIQL", part: str, gradient: Network) -> "GCIQL":
    """One step of Adam on one part of the state, down its gradient."""
    change, moments = adam(state.hp).update(gradient, getattr(state, f"{part}_optimizer"))
    return state.replace(**{part: optax.apply_updates(getattr(state, part), change), f"{part}_optimizer": moments})


def soft_update(target: Network, source: Network, tau: float) -> Network:
    """Polyak averaging: the target, moved a step of size tau towards the source."""
    return jax.tree.map(lambda old, new: (1.0 - tau) * old + tau * new, target, source)


class GCIQL(struct.PyTreeNode):
    """All that an update reads and writes."""

    value: Network
    critic: Network
    actor: Network
    critic_target: Network
    value_optimizer: optax.OptState
    critic_optimizer: optax.OptState
    actor_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)

    def target_q(self, batch: GoalBatch) -> Array:
        """The smaller target value of the data's actions, (B,)."""
        return amin(self.critic_target(batch.observations, batch.value_goals, batch.actions), axis=0)

    def expectile_weight(self, adv: Array) -> Array:
        """The weight of each advantage (B,) in V's loss: `iql_tau` if it is at least 0, else 1 - `iql_tau`."""
        return where(adv >= 0.0, self.hp.iql_tau, 1.0 - self.hp.iql_tau)

    def value_loss(self, value: Network, batch: GoalBatch) -> tuple[Array, dict[str, Array]]:
        """Expectile regression of V to the values of the data's actions."""
        v = value(batch.observations, batch.value_goals)
        adv = self.target_q(batch) - v
        assert adv.shape == v.shape == batch.rewards.shape
        return (self.expectile_weight(adv) * square(adv)).mean(), {"v": v.mean()}

    def td_target(self, batch: GoalBatch) -> Array:
        """The regression target of both critics, (B,), for which no action is chosen."""
        next_v = self.value(batch.next_observations, batch.value_goals)
        assert next_v.shape == batch.rewards.shape == batch.masks.shape
        return batch.rewards + self.hp.discount * batch.masks * next_v

    def critic_loss(self, critic: Network, batch: GoalBatch) -> tuple[Array, dict[str, Array]]:
        """The squared error of both critics to the same target, summed over them."""
        target = self.td_target(batch)
        q = critic(batch.observations, batch.value_goals, batch.actions)
        assert q.shape == (2, *target.shape)
        return square(q - target).mean(axis=1).sum(), {}

    def weight(self, batch: GoalBatch) -> Array:
        """The weight of each action (B,) for `awr`: the exponential of its advantage, up to `MAX_WEIGHT`."""
        q = amin(self.critic(batch.observations, batch.actor_goals, batch.actions), axis=0)
        v = self.value(batch.observations, batch.actor_goals)
        return clamp(exp(self.hp.alpha * (q - v)), 0.0, MAX_WEIGHT)

    def actor_loss(self, actor: Network, batch: GoalBatch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """Cloning of the data's actions: beside the largest Q, which is scaled by its own size, or with weights."""
        hp = self.hp
        mean, std = actor(batch.observations, batch.actor_goals)
        assert mean.shape == batch.actions.shape
        log_prob = (-square((batch.actions - mean) / std) / 2.0 - log(std) - LOG_SQRT_2PI).sum(axis=-1)
        if hp.actor_loss == "awr":
            weight = self.weight(batch)
            assert weight.shape == log_prob.shape == batch.rewards.shape
            return -(weight * log_prob).mean(), {"bc_log_prob": log_prob.mean()}
        actions = mean if noise.action is None else mean + std * noise.action
        q = amin(self.critic(batch.observations, batch.actor_goals, cut(actor, actions)), axis=0)
        assert q.shape == log_prob.shape == batch.rewards.shape
        q_loss = -q.mean() / stop_gradient(jnp.abs(q).mean() + 1e-6)
        bc_loss = -hp.alpha * log_prob.mean()
        return q_loss + bc_loss, {"q_loss": q_loss, "bc_loss": bc_loss}

    def update(self, batch: GoalBatch, noise: Noise) -> tuple["GCIQL", dict[str, Array]]:
        """One gradient step of each network, and one step of the target critics, all from the old weights."""
        state = self
        (value_loss, of_value), value_gradient = value_and_grad(self.value_loss, has_aux=True)(self.value, batch)
        (critic_loss, _), critic_gradient = value_and_grad(self.critic_loss, has_aux=True)(self.critic, batch)
        (actor_loss, of_actor), actor_gradient = value_and_grad(self.actor_loss, has_aux=True)(self.actor, batch, noise)
        state = state.replace(critic_target=soft_update(state.critic_target, state.critic, self.hp.tau))
        state = gradient_step(state, "actor", actor_gradient)
        state = gradient_step(state, "value", value_gradient)
        state = gradient_step(state, "critic", critic_gradient)
        metrics = {"value_loss": value_loss, "critic_loss": critic_loss, "actor_loss": actor_loss} | of_value | of_actor
        return state, metrics


@jax.jit
def act(actor: Network, observations: Array, goals: Array) -> Array:
    """The policy's most likely actions (E, A) for observations (E, S) and goals (E, S)."""
    mean, _ = actor(observations, goals)
    return cut(actor, mean)


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="num_updates", donate_argnames="state")
def train_interval(
    state: GCIQL, key: Array, dataset: PackedDataset, start: Array, num_updates: int
) -> tuple[GCIQL, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates` as one program; draws are made for a hundred at once."""
    hp, last, action_dim = state.hp, last_rows(dataset), state.actor.module.action_dim

    def draw(step: Array) -> tuple[Array, Noise]:
        return draw_noise(key, step, hp, last, action_dim)

    def update(state: GCIQL, drawn: tuple[Array, Noise], place: int) -> tuple[GCIQL, dict[str, Array]]:
        indices, noise = drawn
        return state.update(take_goals(dataset, indices, hp.gc_negative), noise)

    return scan_updates(update, draw, state, start, num_updates)


def create_train_state(key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> GCIQL:
    """Fresh networks with Glorot's uniform weights."""
    hp, dims, layer_norm = narrow(config, Hyperparameters), config.value_hidden_dims, config.value_ln
    observations, actions = jnp.zeros((1, state_dim)), jnp.zeros((1, action_dim))
    value_key, critic_key, actor_key = jax.random.split(key, 3)
    value = Network.create(Value(dims, layer_norm), value_key, observations, observations)
    critic = Network.create(Critic(dims, layer_norm), critic_key, observations, observations, actions)
    actor_module = Actor(action_dim, max_action, config.actor_hidden_dims, config.const_std)
    actor = Network.create(actor_module, actor_key, observations, observations)
    return GCIQL(
        value=value,
        critic=critic,
        actor=actor,
        # A donated state must not contain an array twice, so the target is a copy.
        critic_target=jax.tree.map(jnp.copy, critic),
        value_optimizer=adam(hp).init(value),
        critic_optimizer=adam(hp).init(critic),
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
        run = Run(config, task, "goal_conditioned/gciql", "jax", device)
        state, total_it = restore(run, partial(load_checkpoint, algorithm="goal_conditioned/gciql", state=state), state)
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
                    save_checkpoint, algorithm="goal_conditioned/gciql", state=state, total_it=total_it + step
                )
                if run.is_due(step):
                    run.log(step, history.means())
                    run.save(step, write)
                    evaluate(run, step, act, state.actor)
                elif run.stopping:
                    run.save(step, partial(write, history=history.content()))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "goal_conditioned/gciql")
