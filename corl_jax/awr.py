"""AWR in JAX: V learns TD(lambda) returns, and the policy imitates actions by how far their returns exceed V.

An update is one iteration of the algorithm. It draws `batch_size` transitions, and computes their returns and weights
with the current V. Then V makes `value_updates` gradient steps and the policy `actor_updates`, on consecutive slices of
`minibatch_size` transitions, in whole passes. `max_timesteps` and `eval_freq` count such updates.

Its twin is `corl_torch/awr.py`.

Peng, Kumar, Zhang & Levine, Advantage-Weighted Regression: Simple and Scalable Off-Policy Reinforcement Learning, 2019,
https://arxiv.org/abs/1910.00177
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
from jax.lax import scan
from jax.numpy import arctanh, concatenate, exp, log, log1p, minimum, square, tanh, zeros_like

from shared.errors import InputError
from shared.frameworks.jax_calls import History
from shared.frameworks.jax_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, take, to_device
from shared.frameworks.jax_layers import Linear, Network, clamp
from shared.frameworks.jax_seeds import train_together
from shared.frameworks.jax_side import enable_compilation_cache, evaluate, narrow, resolve_device
from shared.runs.fields import bounded, positive, widths
from shared.runs.run import Run
from shared.runs.settings import ImitationConfig, RewardsConfig
from shared.runs.task import Extract, Preparation, load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Learning rate of V
    value_lr: float = positive(1e-4)
    # Learning rate of the policy
    actor_lr: float = positive(5e-5)
    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # TD(lambda): 0 bootstraps after each transition, 1 only at the end of its episode
    td_lambda: float = bounded(0.95, low=0, high=1)
    # Temperature: an action with advantage A has the weight exp(A / advantage_temperature)
    advantage_temperature: float = positive(1.0)
    # Largest weight of an action
    max_weight: float = positive(20.0)
    # Give a draw's advantages mean 0 and standard deviation 1; the paper's equations use them as they are
    normalize_advantages: bool = True
    # Most gradient steps of V in an update, which only makes whole passes over the slices
    value_updates: int = bounded(200, low=1)
    # Most gradient steps of the policy in an update, also in whole passes
    actor_updates: int = bounded(1000, low=1)
    # Transitions in a slice, on which one gradient step is made
    minibatch_size: int = bounded(256, low=1)
    # Transitions that an update draws
    batch_size: int = bounded(2048, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, RewardsConfig, ImitationConfig):
    """The settings of a whole run."""

    group: str = "AWR-D4RL"
    name: str = "AWR"
    # Updates between two evaluations
    eval_freq: int = bounded(5, low=1)
    # Updates in all, each of many gradient steps
    max_timesteps: int = bounded(1000, low=1)
    # Widths of V's hidden layers
    value_hidden_dims: tuple[int, ...] = widths(256, 256)
    # Widths of the policy's hidden layers
    actor_hidden_dims: tuple[int, ...] = widths(256, 256)
    # Normalise states to mean 0 and standard deviation 1
    normalize: bool = False


# ---- networks ------------------------------------------------------------------------------------------------------


def hidden(hidden_dims: Sequence[int]) -> list[Any]:
    """Hidden layers with ReLU."""
    return [layer for width in hidden_dims for layer in (Linear(width), nn.relu)]


class ValueFunction(nn.Module):
    """V(s): (B, S) to (B,)."""

    hidden_dims: Sequence[int]

    def setup(self) -> None:
        self.net = nn.Sequential([*hidden(self.hidden_dims), Linear(1)])

    def __call__(self, observations: Array) -> Array:
        """The values (B,) of observations (B, S)."""
        return self.net(observations).squeeze(-1)


class Actor(nn.Module):
    """The policy: a normal distribution whose samples are squashed by tanh to be within [-max_action, max_action]."""

    action_dim: int
    max_action: float
    hidden_dims: Sequence[int]

    def setup(self) -> None:
        self.net = nn.Sequential(hidden(self.hidden_dims))
        self.mean = Linear(self.action_dim)
        self.log_std = Linear(self.action_dim)

    def __call__(self, observations: Array) -> tuple[Array, Array]:
        """Mean and standard deviation (B, A) before the tanh, for observations (B, S)."""
        encoded = self.net(observations)
        return self.mean(encoded), exp(clamp(self.log_std(encoded), -20.0, 2.0))


# Actions are kept this far away from their bounds, where the inverse of tanh would be infinite.
LARGEST = 0.999999
LOG_SQRT_2PI = math.log(math.sqrt(2.0 * math.pi))


def log_prob(actor: Network, observations: Array, actions: Array) -> Array:
    """The log-density (B,) of actions (B, A), in units of the largest action, under the squashed distribution."""
    mean, std = actor(observations)
    squashed = clamp(actions / actor.module.max_action, -LARGEST, LARGEST)
    log_slope = log1p(squashed) + log1p(-squashed)
    log_density = -square(arctanh(squashed) - mean) / (2.0 * square(std)) - log(std) - LOG_SQRT_2PI
    return (log_density - log_slope).sum(axis=-1)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """An update draws nothing besides its batch."""


def draw_noise(key: Array, step: Array, hp: Hyperparameters, dataset_size: int) -> tuple[Array, Noise]:
    """An update's batch indices (B,), which depend on the key and on the update's number alone."""
    indices = jax.random.randint(jax.random.fold_in(key, step), (hp.batch_size,), 0, dataset_size)
    return indices, Noise()


# ---- episodes ------------------------------------------------------------------------------------------------------


class Episodes(NamedTuple):
    """A dataset's N transitions in their order, from which batches are drawn."""

    # All columns
    rows: PackedDataset
    # (N, S)
    next_observations: Array
    # (N,) each; `last` is 1 if an episode ends with the transition
    rewards: Array
    terminals: Array
    last: Array


class EpisodesBatch(NamedTuple):
    """A draw of B transitions, and all episodes, because returns are computed from the rest of an episode."""

    # (B, S)
    observations: Array
    # (B, A)
    actions: Array
    # (B,), integers: the rows of these transitions
    indices: Array
    episodes: Episodes


def in_episodes(dataset: PackedDataset) -> Episodes:
    """The dataset, with the columns that returns are computed from."""
    columns = take(dataset, jnp.arange(len(dataset)))
    return Episodes(dataset, columns.next_observations, columns.rewards, columns.terminals, columns.last)


def take_of(episodes: Episodes, indices: Array) -> EpisodesBatch:
    """The transitions at `indices` (B,), and all episodes."""
    rows = take(episodes.rows, indices)
    return EpisodesBatch(rows.observations, rows.actions, indices, episodes)


def ahead(values: Array, rows: int) -> Array:
    """The values (N,) at this many rows later; 0 after the last row."""
    return concatenate([values[rows:], zeros_like(values[:rows])])


# ---- losses and update ---------------------------------------------------------------------------------------------

MOMENTUM = 0.9


def sgd(lr: float) -> optax.GradientTransformation:
    """A network's optimiser."""
    return optax.sgd(lr, momentum=MOMENTUM)


def gradient_step(state: "AWR", part: str, gradient: Network) -> "AWR":
    """One step of gradient descent with momentum on one part of the state."""
    lr = {"value": state.hp.value_lr, "actor": state.hp.actor_lr}[part]
    change, moments = sgd(lr).update(gradient, getattr(state, f"{part}_optimizer"))
    return state.replace(**{part: optax.apply_updates(getattr(state, part), change), f"{part}_optimizer": moments})


def slices(hp: Hyperparameters, *columns: Array) -> tuple[Array, ...]:
    """Columns (B, ...) in consecutive slices of `minibatch_size` rows, without the rows that are left over."""
    size = hp.minibatch_size
    number = hp.batch_size // size
    return tuple(column[: number * size].reshape(number, size, *column.shape[1:]) for column in columns)


def passes(step: Callable, state: "AWR", num_updates: int, parts: tuple[Array, ...]) -> tuple["AWR", Array]:
    """The state after as many whole passes over the slices as `num_updates` gradient steps allow, and their losses."""
    number = num_updates // len(parts[0])
    return scan(lambda state, _: scan(step, state, parts), state, length=number)


class AWR(struct.PyTreeNode):
    """All that an update reads and writes."""

    value: Network
    actor: Network
    value_optimizer: optax.OptState
    actor_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)

    def lambda_returns(self, batch: EpisodesBatch) -> Array:
        """The TD(lambda) returns (B,) over the rest of each transition's episode, with V's values of next states.

        A return is `earned` plus `kept` times the next transition's return. Each round of the loop doubles the number
        of transitions that both cover.
        """
        hp, episodes = self.hp, batch.episodes
        next_v = (1.0 - episodes.terminals) * self.value(episodes.next_observations)
        assert next_v.shape == episodes.rewards.shape == episodes.last.shape
        kept = hp.discount * hp.td_lambda * (1.0 - episodes.last)
        # After an episode's last transition, the value counts in full.
        earned = episodes.rewards + (hp.discount - kept) * next_v
        for doubling in range(len(kept).bit_length()):
            earned = earned + kept * ahead(earned, 2**doubling)
            kept = kept * ahead(kept, 2**doubling)
        return earned[batch.indices]

    def weights(self, batch: EpisodesBatch, returns: Array) -> Array:
        """The weight of each drawn action, (B,): the exponential of its advantage, up to a cap."""
        hp = self.hp
        adv = returns - self.value(batch.observations)
        assert adv.shape == batch.indices.shape
        if hp.normalize_advantages:
            adv = (adv - adv.mean()) / (adv.std() + 1e-5)
        return minimum(exp(adv / hp.advantage_temperature), hp.max_weight)

    def value_loss(self, value: Network, observations: Array, returns: Array) -> tuple[Array, dict[str, Array]]:
        """The squared error of V to the returns."""
        v = value(observations)
        assert v.shape == returns.shape
        return square(v - returns).mean(), {}

    def actor_loss(
        self, actor: Network, observations: Array, actions: Array, weights: Array
    ) -> tuple[Array, dict[str, Array]]:
        """Imitation of the data's actions, each with its weight."""
        log_probs = log_prob(actor, observations, actions)
        assert log_probs.shape == weights.shape
        return -(weights * log_probs).mean(), {}

    def update(self, batch: EpisodesBatch, noise: Noise) -> tuple["AWR", dict[str, Array]]:
        """One iteration: returns and weights from the current V; then V's gradient steps, and the policy's."""
        state, hp = self, self.hp
        returns = state.lambda_returns(batch)
        weights = state.weights(batch, returns)

        def value_step(state: AWR, part: tuple[Array, ...]) -> tuple[AWR, Array]:
            (loss, _), gradient = value_and_grad(state.value_loss, has_aux=True)(state.value, *part)
            return gradient_step(state, "value", gradient), loss

        def actor_step(state: AWR, part: tuple[Array, ...]) -> tuple[AWR, Array]:
            (loss, _), gradient = value_and_grad(state.actor_loss, has_aux=True)(state.actor, *part)
            return gradient_step(state, "actor", gradient), loss

        parts = slices(hp, batch.observations, returns)
        state, value_losses = passes(value_step, state, hp.value_updates, parts)
        parts = slices(hp, batch.observations, batch.actions, weights)
        state, actor_losses = passes(actor_step, state, hp.actor_updates, parts)
        return state, {"value_loss": value_losses.mean(), "actor_loss": actor_losses.mean()}


@jax.jit
def act(actor: Network, observations: Array) -> Array:
    """The policy's actions (E, A) without noise, for observations (E, S)."""
    mean, _ = actor(observations)
    return actor.module.max_action * tanh(mean)


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="num_updates", donate_argnames="state")
def train_interval(
    state: AWR, key: Array, dataset: Episodes, start: Array, num_updates: int
) -> tuple[AWR, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates` as one scan, with batches drawn beforehand."""
    steps = start + jnp.arange(num_updates)
    draws = jax.vmap(lambda step: draw_noise(key, step, state.hp, len(dataset.rows)))(steps)

    def step(state: AWR, draw: Any) -> tuple[AWR, dict[str, Array]]:
        indices, noise = draw
        return state.update(take_of(dataset, indices), noise)

    state, history = scan(step, state, draws)
    return state, [history]


def create_train_state(key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> AWR:
    """Fresh networks with PyTorch's initialisation."""
    vf_key, actor_key = jax.random.split(key)
    observations = jnp.zeros((1, state_dim))
    value = Network.create(ValueFunction(config.value_hidden_dims), vf_key, observations)
    actor = Network.create(Actor(action_dim, max_action, config.actor_hidden_dims), actor_key, observations)
    return AWR(
        value=value,
        actor=actor,
        value_optimizer=sgd(config.value_lr).init(value),
        actor_optimizer=sgd(config.actor_lr).init(actor),
        hp=narrow(config, Hyperparameters),
    )


def train(config: TrainConfig) -> Run:
    """Trains, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used, or a setting contradicts another.
    """
    parts = config.batch_size // config.minibatch_size
    if not 1 <= parts <= min(config.value_updates, config.actor_updates):
        raise InputError(
            f"an update has {parts} slices: set minibatch_size to at most batch_size, value_updates and actor_updates "
            "to at least batch_size / minibatch_size"
        )
    task = load_task(config, Preparation(Extract.EPISODES, normalise=config.normalize))
    device = resolve_device(config.device)
    enable_compilation_cache()
    with jax.default_device(device):
        weights_key, draws_key = jax.random.split(jax.random.key(config.seed))
        state = create_train_state(weights_key, config, task.state_dim, task.action_dim, task.max_action)
        run = Run(config, task, "awr", "jax", device)
        state, total_it = restore(run, partial(load_checkpoint, algorithm="awr", state=state), state)
        dataset = in_episodes(to_device(task.dataset))
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, act, state.actor)
            history = History(run)
            for start, step in run.calls():
                num_updates = step - start
                state, found = train_together(train_interval, state, draws_key, dataset, start, num_updates)
                history.add(num_updates, found)
                write = partial(save_checkpoint, algorithm="awr", state=state, total_it=total_it + step)
                if run.is_due(step):
                    run.log(step, history.means())
                    run.save(step, write)
                    evaluate(run, step, act, state.actor)
                elif run.stopping:
                    run.save(step, partial(write, history=history.content()))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "awr")
