"""XQL in JAX: values of the data's own actions only, by Gumbel regression, and a policy that imitates them.

Its twin is `corl_torch/xql.py`.

Garg et al., Extreme Q-Learning: MaxEnt RL without Entropy, 2023, https://arxiv.org/abs/2301.02328
"""

import math
from collections.abc import Callable, Iterable
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
from jax.nn.initializers import orthogonal, zeros
from jax.numpy import broadcast_to, concatenate, cos, exp, log, maximum, minimum, square, tanh, tile, where

from shared.data.rewards import TrueEpisodeRewards
from shared.data.transitions import Batch
from shared.frameworks.jax_calls import History
from shared.frameworks.jax_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, take, to_device
from shared.frameworks.jax_layers import Linear, Network, clamp, dropout_mask, is_key
from shared.frameworks.jax_seeds import train_together
from shared.frameworks.jax_side import enable_compilation_cache, evaluate, narrow, resolve_device
from shared.runs.fields import bounded, choice, positive, unbounded
from shared.runs.run import Run
from shared.runs.settings import TransitionsConfig
from shared.runs.task import Preparation, load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Rate at which the target critics follow the critics
    tau: float = bounded(0.005, low=0, high=1)
    # Temperature of the Gumbel loss, the paper's beta: towards 0, V(s) approaches the data's best action's value
    loss_temp: float = positive(1.0)
    # Largest error that the Gumbel loss sees, in units of its temperature; null: no bound
    max_clip: float | None = unbounded(7.0)
    # Form of the Gumbel loss: divided by the largest exponential in the batch, or the logarithm of its mean
    gumbel_form: str = choice("rescaled", "log")
    # Gradient steps of V in an update, all on the same rows
    value_updates: int = bounded(1, low=1)
    # Uniform actions per state that V learns from, in addition to the data's
    random_actions: int = bounded(0, low=0)
    # Add noise to the data's actions that V learns from
    noise: bool = False
    # Standard deviation of that noise
    noise_std: float = bounded(0.1, low=0)
    # Inverse temperature of the policy: how steeply an action's weight grows with its advantage
    inverse_temperature: float = bounded(3.0, low=0)
    # Updates in all, over which the policy's learning rate falls to 0
    max_timesteps: int = bounded(1_000_000, low=1)
    # Transitions in a batch
    batch_size: int = bounded(1024, low=1)
    # Learning rate of V
    value_lr: float = positive(3e-4)
    # Learning rate of the critics
    critic_lr: float = positive(3e-4)
    # Initial learning rate of the policy
    actor_lr: float = positive(3e-4)
    # How the policy's learning rate falls: along a cosine, or not at all
    opt_decay_schedule: str = choice("cosine", "none")
    # Dropout rate after the policy's hidden layers; null: no dropout
    actor_dropout: float | None = bounded(None, low=0, high=0.99)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, TransitionsConfig):
    """The settings of a whole run."""

    group: str = "XQL-D4RL"
    name: str = "XQL"
    # Seed of the weights, the batches, the noise, the dropout and the evaluation's start states
    seed: int = bounded(0, low=0, high=2**32 - 1)
    # Normalise states to mean 0 and standard deviation 1
    normalize: bool = False
    # Scale rewards so that returns of locomotion span 1000, and subtract 1 from AntMaze's
    normalize_reward: bool = True


# ---- networks ------------------------------------------------------------------------------------------------------


def dropout(inputs: Array) -> Array:
    """A placeholder for a dropout layer; masks are passed in."""
    return inputs


def linear(output_dim: int) -> Linear:
    """A layer with an orthogonal weight of gain sqrt(2) and a bias of 0, even if it is a last layer."""
    return Linear(output_dim, kernel_init=orthogonal(math.sqrt(2.0)), bias_init=zeros)


class MLP(nn.Module):
    """Two hidden layers of 256 with ReLU, after LayerNorm if the settings say so: (B, I) to (B, O)."""

    output_dim: int
    layer_norm: bool = False
    has_dropout: bool = False

    def setup(self) -> None:
        layers: list[Callable[..., Any]] = []
        for _ in range(2):
            layers += [linear(256)]
            if self.layer_norm:
                layers += [nn.LayerNorm(epsilon=1e-6, param_dtype=float)]
            layers += [nn.relu]
            if self.has_dropout:
                layers += [dropout]
        self.net = nn.Sequential([*layers, linear(self.output_dim)])

    def __call__(self, inputs: Array, masks: Iterable[Array] | None = None) -> Array:
        """The outputs (B, O) for inputs (B, I); masks (B, 256), if any, multiply the hidden layers."""
        if masks is None:
            return self.net(inputs)
        masks = iter(masks)
        for layer in self.net.layers:
            inputs = inputs * next(masks) if layer is dropout else layer(inputs)
        return inputs


class TwinQ(nn.Module):
    """Two critics Q(s, a) with separate weights."""

    def setup(self) -> None:
        self.q1 = MLP(1)
        self.q2 = MLP(1)

    def __call__(self, observations: Array, actions: Array) -> tuple[Array, Array]:
        """Both values, (B,) each, of actions (B, A) in observations (B, S)."""
        inputs = concatenate([observations, actions], axis=-1)
        return self.q1(inputs).squeeze(-1), self.q2(inputs).squeeze(-1)


class ValueFunction(nn.Module):
    """V(s), with LayerNorm."""

    def setup(self) -> None:
        self.v = MLP(1, layer_norm=True)

    def __call__(self, observations: Array) -> Array:
        """The values (B,) of observations (B, S)."""
        return self.v(observations).squeeze(-1)


class Actor(nn.Module):
    """The policy: a normal distribution with one standard deviation for all states."""

    action_dim: int
    max_action: float
    has_dropout: bool

    def setup(self) -> None:
        self.net = MLP(self.action_dim, has_dropout=self.has_dropout)
        self.log_std = self.param("log_std", zeros, (self.action_dim,), float)

    def __call__(self, observations: Array, masks: Iterable[Array] | None = None) -> tuple[Array, Array]:
        """Mean within [-max_action, max_action] and standard deviation, both (B, A), for observations (B, S)."""
        mean = self.max_action * tanh(self.net(observations, masks))
        return mean, broadcast_to(exp(clamp(self.log_std, -5.0, 2.0)), mean.shape)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    # Uniform within [-1, 1), (B, k, A): further actions that V learns from; None without them
    random: Array | None
    # Standard normal, (B, A): noise on the data's actions that V learns from; None without noise
    action: Array | None
    # Dropout masks for the policy's two hidden layers, (B, 256) each, or a key to draw them; None without dropout
    dropout: Array | tuple[Array, ...] | None


def draw_noise(key: Array, step: Array, hp: Hyperparameters, dataset_size: int, action_dim: int) -> tuple[Array, Noise]:
    """An update's batch indices (B,) and its noise, which depend on the key and the update's number alone.

    The masks of a whole interval would fill the memory, so each update draws its own from a key.
    """
    index_key, random_key, action_key, dropout_key = jax.random.split(jax.random.fold_in(key, step), 4)
    indices = jax.random.randint(index_key, (hp.batch_size,), 0, dataset_size)
    random = action = None
    if hp.random_actions:
        shape = (hp.batch_size, hp.random_actions, action_dim)
        random = jax.random.uniform(random_key, shape, minval=-1.0, maxval=1.0)
    if hp.noise:
        action = jax.random.normal(action_key, (hp.batch_size, action_dim))
    return indices, Noise(random, action, None if hp.actor_dropout is None else dropout_key)


def dropout_masks(noise: Noise, hp: Hyperparameters) -> tuple[Array, ...] | None:
    """The masks for the policy's hidden layers: the noise's own, or drawn from its key."""
    if not is_key(noise.dropout):
        assert not isinstance(noise.dropout, Array)
        return noise.dropout
    assert hp.actor_dropout is not None
    keys = jax.random.split(noise.dropout)
    return tuple(dropout_mask(key, hp.actor_dropout, (hp.batch_size, 256)) for key in keys)


# ---- losses and update ---------------------------------------------------------------------------------------------

# The largest weight of an action in the policy's loss
MAX_WEIGHT = 100.0
# Noise on the data's actions is clipped to plus or minus this
NOISE_CLIP = 0.5
# Errors of a critic count quadratically up to this size, and linearly beyond it
HUBER_DELTA = 20.0
LOG_SQRT_2PI = math.log(math.sqrt(2.0 * math.pi))


def huber(error: Array) -> Array:
    """Half the square of small errors (B,), and a line beyond `HUBER_DELTA`."""
    size = abs(error)
    return where(size <= HUBER_DELTA, square(error) / 2.0, HUBER_DELTA * (size - HUBER_DELTA / 2.0))


def actor_lr(hp: Hyperparameters, updates: Array) -> Array | float:
    """The policy's learning rate after so many updates: a cosine from `actor_lr` to 0, where it stays."""
    if hp.opt_decay_schedule == "none":
        return hp.actor_lr
    return hp.actor_lr * (1.0 + cos(math.pi * minimum(updates, hp.max_timesteps) / hp.max_timesteps)) / 2.0


def adam(part: str, hp: Hyperparameters) -> optax.GradientTransformation:
    """The optimiser of one part of the state."""
    rates = {"value": hp.value_lr, "critic": hp.critic_lr, "actor": partial(actor_lr, hp)}
    return optax.adam(rates[part])


def gradient_step(state: "XQL", part: str, gradient: Network) -> "XQL":
    """One step of Adam on one part of the state, down its gradient."""
    change, moments = adam(part, state.hp).update(gradient, getattr(state, f"{part}_optimizer"))
    return state.replace(**{part: optax.apply_updates(getattr(state, part), change), f"{part}_optimizer": moments})


def soft_update(target: Network, source: Network, tau: float) -> Network:
    """Polyak averaging: the target, moved a step of size tau towards the source."""
    return jax.tree.map(lambda old, new: (1.0 - tau) * old + tau * new, target, source)


class XQL(struct.PyTreeNode):
    """All that an update reads and writes."""

    critic: Network
    value: Network
    actor: Network
    critic_target: Network
    value_optimizer: optax.OptState
    critic_optimizer: optax.OptState
    actor_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)

    def target_q(self, observations: Array, actions: Array) -> Array:
        """The smaller target value of each action, (N,)."""
        q1, q2 = self.critic_target(observations, actions)
        return minimum(q1, q2)

    def value_rows(self, batch: Batch, noise: Noise) -> tuple[Array, Array]:
        """V's inputs: observations (N, S) and actions (N, A), the batch's, then k random actions in each state."""
        hp, max_action = self.hp, self.actor.module.max_action
        observations, actions = batch.observations, batch.actions
        if noise.action is not None:
            change = clamp(hp.noise_std * noise.action, -NOISE_CLIP, NOISE_CLIP)
            actions = clamp(actions + max_action * change, -max_action, max_action)
        if noise.random is not None:
            repeated = tile(observations[:, None], (1, hp.random_actions, 1))
            observations = concatenate([observations, repeated.reshape(-1, observations.shape[1])])
            actions = concatenate([actions, max_action * noise.random.reshape(-1, actions.shape[1])])
        assert len(observations) == len(actions) == hp.batch_size * (1 + hp.random_actions)
        return observations, actions

    def gumbel_loss(self, error: Array) -> Array:
        """Gumbel regression: e^z - z - 1 of errors z (N,), scaled so that its exponentials cannot overflow."""
        hp = self.hp
        z = error if hp.max_clip is None else minimum(error, hp.max_clip)
        # One number for all rows, and a constant: the gradient does not pass through it.
        largest = maximum(stop_gradient(z.max()), -1.0)
        growth, unit = exp(z - largest), exp(-largest)
        if hp.gumbel_form == "rescaled":
            return (growth - z * unit - unit).mean()
        # The gradient of log(mean(e^z - z)), even if z is clipped
        slope = (growth - unit) / (growth - z * unit).mean()
        return (stop_gradient(slope) * error).mean()

    def value_loss(self, value: Network, batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """Gumbel regression of V to the values of the data's actions, in units of the loss's temperature."""
        observations, actions = self.value_rows(batch, noise)
        q, v = self.target_q(observations, actions), value(observations)
        assert q.shape == v.shape
        return self.gumbel_loss((q - v) / self.hp.loss_temp), {}

    def weights(self, batch: Batch) -> Array:
        """The weight of each of the data's actions, (B,): the exponential of its advantage, up to a cap."""
        adv = self.target_q(batch.observations, batch.actions) - self.value(batch.observations)
        assert adv.shape == batch.rewards.shape
        return minimum(exp(self.hp.inverse_temperature * adv), MAX_WEIGHT)

    def actor_loss(self, actor: Network, batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """Weighted behaviour cloning of the data's actions."""
        mean, std = actor(batch.observations, dropout_masks(noise, self.hp))
        log_density = -square(batch.actions - mean) / (2.0 * square(std)) - log(std) - LOG_SQRT_2PI
        log_prob, weights = log_density.sum(axis=-1), self.weights(batch)
        assert mean.shape == batch.actions.shape
        assert log_prob.shape == weights.shape
        return -(weights * log_prob).mean(), {}

    def td_target(self, batch: Batch) -> Array:
        """The regression target of both critics, (B,), for which no action is chosen."""
        next_v = self.value(batch.next_observations)
        assert next_v.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + (1.0 - batch.terminals) * self.hp.discount * next_v

    def q_loss(self, critic: Network, batch: Batch) -> tuple[Array, dict[str, Array]]:
        """The Huber losses of both critics to the same target, added up over them."""
        target = self.td_target(batch)
        q1, q2 = critic(batch.observations, batch.actions)
        assert q1.shape == q2.shape == target.shape
        return huber(q1 - target).mean() + huber(q2 - target).mean(), {}

    def update(self, batch: Batch, noise: Noise) -> tuple["XQL", dict[str, Array]]:
        """One gradient step: V; the policy and then the critics, with the new V; the target critics."""
        state, hp = self, self.hp
        for _ in range(hp.value_updates):
            (value_loss, _), gradient = value_and_grad(state.value_loss, has_aux=True)(state.value, batch, noise)
            state = gradient_step(state, "value", gradient)
        (actor_loss, _), gradient = value_and_grad(state.actor_loss, has_aux=True)(state.actor, batch, noise)
        state = gradient_step(state, "actor", gradient)
        (q_loss, _), gradient = value_and_grad(state.q_loss, has_aux=True)(state.critic, batch)
        state = gradient_step(state, "critic", gradient)
        state = state.replace(critic_target=soft_update(state.critic_target, state.critic, hp.tau))
        metrics = {"value_loss": value_loss, "actor_loss": actor_loss, "q_loss": q_loss}
        return state, metrics


@jax.jit
def act(actor: Network, observations: Array) -> Array:
    """The policy's most likely actions (E, A) for normalised observations (E, S), without dropout."""
    mean, _ = actor(observations)
    return mean


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="num_updates", donate_argnames="state")
def train_interval(
    state: XQL, key: Array, dataset: PackedDataset, start: Array, num_updates: int
) -> tuple[XQL, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates` as one scan."""
    hp = state.hp
    steps = start + jnp.arange(num_updates)
    draws = jax.vmap(lambda step: draw_noise(key, step, hp, len(dataset), state.actor.module.action_dim))(steps)

    def step(state: XQL, draws: tuple[Array, Noise]) -> tuple[XQL, dict[str, Array]]:
        indices, noise = draws
        return state.update(take(dataset, indices), noise)

    state, history = jax.lax.scan(step, state, draws)
    return state, [history]


def create_train_state(key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> XQL:
    """Fresh networks with orthogonal weights."""
    hp = narrow(config, Hyperparameters)
    observations, actions = jnp.zeros((1, state_dim)), jnp.zeros((1, action_dim))
    qf_key, vf_key, actor_key = jax.random.split(key, 3)
    critic = Network.create(TwinQ(), qf_key, observations, actions)
    value = Network.create(ValueFunction(), vf_key, observations)
    actor_module = Actor(action_dim, max_action, has_dropout=config.actor_dropout is not None)
    actor = Network.create(actor_module, actor_key, observations)
    return XQL(
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
        InputError: the dataset, the environment or the checkpoint cannot be used.
    """
    preparation = Preparation(rewards=TrueEpisodeRewards().where(config.normalize_reward), normalise=config.normalize)
    task = load_task(config, preparation)
    device = resolve_device(config.device)
    enable_compilation_cache()
    with jax.default_device(device):
        weights_key, draws_key = jax.random.split(jax.random.key(config.seed))
        state = create_train_state(weights_key, config, task.state_dim, task.action_dim, task.max_action)
        run = Run(config, task, "xql", "jax", device)
        state, total_it = restore(run, partial(load_checkpoint, algorithm="xql", state=state), state)
        dataset = to_device(task.dataset)
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, act, state.actor)
            history = History(run)
            for start, step in run.calls():
                num_updates = step - start
                state, found = train_together(train_interval, state, draws_key, dataset, start, num_updates)
                history.add(num_updates, found)
                write = partial(save_checkpoint, algorithm="xql", state=state, total_it=total_it + step)
                if run.is_due(step):
                    run.log(step, history.means())
                    run.save(step, write)
                    evaluate(run, step, act, state.actor)
                elif run.stopping:
                    run.save(step, partial(write, history=history.content()))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "xql")
