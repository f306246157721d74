"""QRL in JAX: a quasimetric of states, which grows as far as steps allow, and a policy that shortens the way.

Its twin is `corl_torch/goal_conditioned/qrl.py`.

Wang et al., Optimal Goal-Reaching Reinforcement Learning via Quasimetric Learning, 2023,
https://arxiv.org/abs/2304.01203, in the form of OGBench's code, 2024, https://arxiv.org/abs/2410.20092. The metrics are
IQE, https://arxiv.org/abs/2211.15120, and MRN, https://arxiv.org/abs/2208.08133.
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
from jax.nn import relu, sigmoid, softplus
from jax.nn.initializers import zeros
from jax.numpy import amax, broadcast_to, concatenate, exp, log, sqrt, square, stack, tril, where
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
from shared.runs.fields import bounded, choice, multiple, positive, widths
from shared.runs.run import Run
from shared.runs.settings import GoalConfig, GoalSettings
from shared.runs.task import Extract, Preparation, load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters(GoalSettings):
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Discount factor per step of the geometric distribution of goals, which has no other use here
    discount: float = bounded(0.99, low=0, high=0.9999)
    # Share of value goals that are the state itself
    value_p_curgoal: float = bounded(0.0, low=0, high=1)
    # Share of value goals that are later states of the same trajectory
    value_p_trajgoal: float = bounded(0.0, low=0, high=1)
    # Share of value goals that are any states of the dataset; the three shares sum to 1
    value_p_randomgoal: float = bounded(1.0, low=0, high=1)
    # No effect, because no loss has rewards
    gc_negative: bool = False
    # Learning rate of all networks
    learning_rate: float = positive(3e-4)
    # The metric of latents: iqe, by the union of intervals; or mrn, by a norm and a largest difference
    quasimetric_type: str = choice("iqe", "mrn")
    # The mean square by which the distance of a step may exceed 1
    eps: float = bounded(0.05, low=0)
    # The policy's loss: ddpgbc minimizes distances and clones the data's actions; awr clones them with weights
    actor_loss: str = choice("ddpgbc", "awr")
    # Weight of cloning for ddpgbc; inverse temperature for awr
    alpha: float = bounded(0.003, low=0)
    # Use a standard deviation of 1 for the policy's actions instead of a learnt one
    const_std: bool = True
    # Transitions in a batch
    batch_size: int = bounded(1024, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, GoalConfig):
    """The settings of a whole run."""

    group: str = "QRL-OGBench"
    name: str = "QRL"
    # Widths of the policy's hidden layers
    actor_hidden_dims: tuple[int, ...] = widths(512, 512, 512)
    # Widths of the hidden layers of the networks that make and predict latents
    value_hidden_dims: tuple[int, ...] = widths(512, 512, 512)
    # LayerNorm after these hidden layers
    value_ln: bool = True
    # Numbers in a latent, in groups of eight for iqe, in halves for mrn
    latent_dim: int = multiple(512, of=8)


# ---- networks ------------------------------------------------------------------------------------------------------

# Intervals in a group of `iqe`
GROUP = 8


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


def cut(actor: Network, actions: Array) -> Array:
    """Actions (B, A), clipped to [-max_action, max_action]."""
    return clamp(actions, -actor.module.max_action, actor.module.max_action)


class Quasimetric(nn.Module):
    """The latents of states, and the number by which `iqe` mixes the lengths of groups."""

    latent_dim: int
    hidden_dims: Sequence[int]
    layer_norm: bool
    quasimetric_type: str

    def setup(self) -> None:
        self.net = mlp(self.hidden_dims, self.layer_norm, self.latent_dim)
        if self.quasimetric_type == "iqe":
            self.mix = self.param("mix", zeros, (), float)

    def __call__(self, observations: Array) -> Array:
        """The latents (B, D) of observations (B, S)."""
        return self.net(observations)


class Dynamics(nn.Module):
    """The next state's latent."""

    latent_dim: int
    hidden_dims: Sequence[int]
    layer_norm: bool

    def setup(self) -> None:
        self.net = mlp(self.hidden_dims, self.layer_norm, self.latent_dim)

    def __call__(self, latents: Array, actions: Array) -> Array:
        """The latents (B, D) after actions (B, A) at latents (B, D)."""
        return latents + self.net(concatenate([latents, actions], axis=-1))


def iqe(x: Array, y: Array, mix: Array) -> Array:
    """Interval quasimetric embedding of latents (B, D), (B,): the lengths of groups, by their mean and their largest.

    A group's length is that of the union of its eight intervals from x to y, where x is less than y.
    """
    x, y = x.reshape(len(x), -1, GROUP), y.reshape(len(y), -1, GROUP)
    begins, others = x[..., :, None], x[..., None, :]
    # An interval adds what lies beyond all those that begin before it.
    begins_before = (others < begins) | tril(others == begins, -1)
    added_from = amax(where(begins_before, y[..., None, :], begins), axis=-1)
    lengths = relu(y - added_from).sum(axis=-1)
    share = sigmoid(mix)
    return share * lengths.mean(axis=-1) + (1.0 - share) * amax(lengths, axis=-1)


def mrn(x: Array, y: Array) -> Array:
    """Metric residual network of latents (B, D), (B,): a norm of the first half, and the other's largest difference."""
    half = x.shape[-1] // 2
    squared = square(x[:, :half] - y[:, :half]).sum(axis=-1)
    # Below this the gradient would be too large.
    norm = sqrt(where(squared > 1e-12, squared, 1e-12))
    return norm + relu(amax(x[:, half:] - y[:, half:], axis=-1))


def distance(quasimetric: Network, x: Array, y: Array) -> Array:
    """The distances (B,) from latents x (B, D) to latents y (B, D), which differ in the other direction."""
    mix = quasimetric.params.get("mix")
    return mrn(x, y) if mix is None else iqe(x, y, mix)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its rows."""

    # Standard normal, (B, A): the noise of the actions whose distances the policy minimizes; None if const_std
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


def gradient_step(state: "QRL", part: str, gradient: Any) -> "QRL":
    """One step of Adam on one part of the state, down its gradient."""
    change, moments = adam(state.hp).update(gradient, getattr(state, f"{part}_optimizer"))
    return state.replace(**{part: optax.apply_updates(getattr(state, part), change), f"{part}_optimizer": moments})


class QRL(struct.PyTreeNode):
    """All that an update reads and writes."""

    quasimetric: Network
    dynamics: Network
    # The logarithm of the multiplier lambda
    log_lambda: Array
    actor: Network
    quasimetric_optimizer: optax.OptState
    dynamics_optimizer: optax.OptState
    log_lambda_optimizer: optax.OptState
    actor_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)

    def distance_loss(self, quasimetric: Network, batch: GoalBatch) -> tuple[Array, dict[str, Array]]:
        """Pushes states and goals apart, while a penalty holds the distance of a step down to 1."""
        latents, next_latents = quasimetric(batch.observations), quasimetric(batch.next_observations)
        d_goal = distance(quasimetric, latents, quasimetric(batch.value_goals))
        d_step = distance(quasimetric, latents, next_latents)
        assert d_goal.shape == d_step.shape == batch.rewards.shape
        # The slope is almost -1 until distances come near 500.
        push = (100.0 * softplus(5.0 - d_goal / 100.0)).mean()
        violation = square(relu(d_step - 1.0)).mean()
        lambd = exp(self.log_lambda)
        metrics = {
            "push": push,
            "violation": violation,
            "lambda": lambd,
            "d_goal": d_goal.mean(),
            "d_step": d_step.mean(),
        }
        return push + lambd * violation, metrics

    def lambda_loss(self, log_lambda: Array, violation: Array) -> tuple[Array, dict[str, Array]]:
        """Raises the penalty's weight while steps are longer than `eps` allows."""
        return exp(log_lambda) * (self.hp.eps - violation), {}

    def dynamics_loss(self, networks: Sequence[Network], batch: GoalBatch) -> tuple[Array, dict[str, Array]]:
        """The distance between predicted and true next latents in both directions, from which both are learnt."""
        quasimetric, dynamics = networks
        latents, next_latents = quasimetric(batch.observations), quasimetric(batch.next_observations)
        predicted = dynamics(latents, batch.actions)
        back, forth = distance(quasimetric, next_latents, predicted), distance(quasimetric, predicted, next_latents)
        assert back.shape == forth.shape == batch.rewards.shape
        return (back + forth).mean() / 2.0, {}

    def latents(self, observations: Array) -> Array:
        """The latents (B, D) of observations (B, S) as constants."""
        return self.quasimetric(observations)

    def weight(self, batch: GoalBatch) -> Array:
        """The weight of each action (B,) for `awr`: the exponential of how much nearer it comes, up to `MAX_WEIGHT`."""
        quasimetric, goals = self.quasimetric, self.latents(batch.actor_goals)
        before = distance(quasimetric, self.latents(batch.observations), goals)
        after = distance(quasimetric, self.latents(batch.next_observations), goals)
        return clamp(exp(self.hp.alpha * (before - after)), 0.0, MAX_WEIGHT)

    def actor_loss(self, actor: Network, batch: GoalBatch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """Cloning of the data's actions: beside the least distance, scaled by its own size, or with weights."""
        hp = self.hp
        mean, std = actor(batch.observations, batch.actor_goals)
        assert mean.shape == batch.actions.shape
        log_prob = (-square((batch.actions - mean) / std) / 2.0 - log(std) - LOG_SQRT_2PI).sum(axis=-1)
        if hp.actor_loss == "awr":
            weight = self.weight(batch)
            assert weight.shape == log_prob.shape == batch.rewards.shape
            return -(weight * log_prob).mean(), {"bc_log_prob": log_prob.mean()}
        actions = mean if noise.action is None else mean + std * noise.action
        latents, goals = self.latents(batch.observations), self.latents(batch.actor_goals)
        q = -distance(self.quasimetric, self.dynamics(latents, cut(actor, actions)), goals)
        assert q.shape == log_prob.shape == batch.rewards.shape
        q_loss = -q.mean() / stop_gradient(jnp.abs(q).mean() + 1e-6)
        bc_loss = -hp.alpha * log_prob.mean()
        return q_loss + bc_loss, {"q_loss": q_loss, "bc_loss": bc_loss}

    def update(self, batch: GoalBatch, noise: Noise) -> tuple["QRL", dict[str, Array]]:
        """One gradient step of each network and of lambda, all from the old weights."""
        state, quasimetric = self, self.quasimetric
        (distance_loss, of_distance), by_latents = value_and_grad(self.distance_loss, has_aux=True)(quasimetric, batch)
        (lambda_loss, _), by_lambda = value_and_grad(self.lambda_loss, has_aux=True)(
            self.log_lambda, of_distance["violation"]
        )
        (actor_loss, of_actor), by_actor = value_and_grad(self.actor_loss, has_aux=True)(self.actor, batch, noise)
        losses = {"distance_loss": distance_loss, "lambda_loss": lambda_loss}
        if self.hp.actor_loss == "ddpgbc":
            networks = quasimetric, self.dynamics
            (losses["dynamics_loss"], _), (also_by_latents, by_dynamics) = value_and_grad(
                self.dynamics_loss, has_aux=True
            )(networks, batch)
            by_latents = jax.tree.map(jnp.add, by_latents, also_by_latents)
            state = gradient_step(state, "dynamics", by_dynamics)
        state = gradient_step(state, "actor", by_actor)
        state = gradient_step(state, "quasimetric", by_latents)
        state = gradient_step(state, "log_lambda", by_lambda)
        return state, losses | {"actor_loss": actor_loss} | of_distance | of_actor


@jax.jit
def act(actor: Network, observations: Array, goals: Array) -> Array:
    """The policy's most likely actions (E, A) for observations (E, S) and goals (E, S)."""
    mean, _ = actor(observations, goals)
    return cut(actor, mean)


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="num_updates", donate_argnames="state")
def train_interval(
    state: QRL, key: Array, dataset: PackedDataset, start: Array, num_updates: int
) -> tuple[QRL, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates` as one program; draws are made for a hundred at once."""
    hp, last, action_dim = state.hp, last_rows(dataset), state.actor.module.action_dim

    def draw(step: Array) -> tuple[Array, Noise]:
        return draw_noise(key, step, hp, last, action_dim)

    def update(state: QRL, drawn: tuple[Array, Noise], place: int) -> tuple[QRL, dict[str, Array]]:
        indices, noise = drawn
        return state.update(take_goals(dataset, indices, hp.gc_negative), noise)

    return scan_updates(update, draw, state, start, num_updates)


def create_train_state(key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> QRL:
    """Fresh networks with Glorot's uniform weights."""
    hp, dims, layer_norm = narrow(config, Hyperparameters), config.value_hidden_dims, config.value_ln
    observations, actions = jnp.zeros((1, state_dim)), jnp.zeros((1, action_dim))
    latents = jnp.zeros((1, config.latent_dim))
    quasimetric_key, dynamics_key, actor_key = jax.random.split(key, 3)
    quasimetric_module = Quasimetric(config.latent_dim, dims, layer_norm, config.quasimetric_type)
    quasimetric = Network.create(quasimetric_module, quasimetric_key, observations)
    dynamics = Network.create(Dynamics(config.latent_dim, dims, layer_norm), dynamics_key, latents, actions)
    actor_module = Actor(action_dim, max_action, config.actor_hidden_dims, config.const_std)
    actor = Network.create(actor_module, actor_key, observations, observations)
    log_lambda = jnp.zeros(())
    return QRL(
        quasimetric=quasimetric,
        dynamics=dynamics,
        log_lambda=log_lambda,
        actor=actor,
        quasimetric_optimizer=adam(hp).init(quasimetric),
        dynamics_optimizer=adam(hp).init(dynamics),
        log_lambda_optimizer=adam(hp).init(log_lambda),
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
        run = Run(config, task, "goal_conditioned/qrl", "jax", device)
        state, total_it = restore(run, partial(load_checkpoint, algorithm="goal_conditioned/qrl", state=state), state)
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
                    save_checkpoint, algorithm="goal_conditioned/qrl", state=state, total_it=total_it + step
                )
                if run.is_due(step):
                    run.log(step, history.means())
                    run.save(step, write)
                    evaluate(run, step, act, state.actor)
                elif run.stopping:
                    run.save(step, partial(write, history=history.content()))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "goal_conditioned/qrl")
