"""RLPD in JAX: soft actor-critic online; half of each minibatch is from a dataset and half from its own steps.

Its twin is `corl_torch/finetune/rlpd.py`. After each step in the environment, ten critics with LayerNorm make
`critic_updates` gradient steps, and the policy and the temperature one.

Ball et al., Efficient Online Reinforcement Learning with Offline Data, 2023, https://arxiv.org/abs/2302.02948
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from shared.runs.start import cli

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct
from jax import Array, value_and_grad
from jax.lax import scan
from jax.nn.initializers import glorot_uniform, ones, zeros
from jax.numpy import amin, argsort, concatenate, exp, square, tanh, where

from shared.data.online import OnlineExperience
from shared.data.rewards import ShiftedRewards
from shared.data.transitions import Batch, cut_actions
from shared.errors import InputError
from shared.frameworks.jax_calls import History
from shared.frameworks.jax_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, take, to_device
from shared.frameworks.jax_layers import Linear, Network, clamp, softplus
from shared.frameworks.jax_online import Online
from shared.frameworks.jax_ring import Ring, push, take_either
from shared.frameworks.jax_scan import scan_updates
from shared.frameworks.jax_seeds import train_together
from shared.frameworks.jax_side import enable_compilation_cache, evaluate, narrow, resolve_device
from shared.runs.fields import bounded, positive, unbounded, widths
from shared.runs.run import Run
from shared.runs.settings import FinetuneConfig
from shared.runs.task import Preparation, load_task, training_environment

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Learning rate of the policy
    actor_lr: float = positive(3e-4)
    # Learning rate of the critics
    critic_lr: float = positive(3e-4)
    # Learning rate of the entropy temperature
    temperature_lr: float = positive(3e-4)
    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Rate at which the target critics follow the critics, in each of their gradient steps
    tau: float = bounded(0.005, low=0, high=1)
    # Critics
    n_critics: int = bounded(10, low=1)
    # Critics whose smallest target value is used, chosen at random for each gradient step
    n_target_critics: int = bounded(2, low=1)
    # Whether the policy's entropy is part of the critics' target
    backup_entropy: bool = True
    # Entropy that the temperature is tuned towards; null: minus half a nat for each action dimension
    target_entropy: float | None = unbounded(None)
    # Transitions in a minibatch, on which the critics make one gradient step
    batch_size: int = bounded(256, low=2)
    # Gradient steps of the critics in an update, the update-to-data ratio
    critic_updates: int = bounded(20, low=1)
    # Updates on the dataset alone
    offline_iterations: int = bounded(0, low=0)
    # Number of first environment steps, which have uniform actions and are not followed by updates
    learning_starts: int = bounded(5_000, low=0)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, FinetuneConfig):
    """The settings of a whole run."""

    group: str = "RLPD-D4RL"
    name: str = "RLPD"
    # Dataset to learn from as well: mini/pendulum-replay, a D4RL id, minari:NAME, ogbench:NAME, or a file
    env: str = "mini/pendulum-replay"
    # Largest dataset accepted, in transitions, and the capacity for the environment's, which overwrite the oldest
    buffer_size: int = bounded(2_000_000, low=1)
    # Environment steps after the updates on the dataset alone, each with an update
    online_iterations: int = bounded(250_000, low=0)
    seed: int = bounded(42, low=0, high=2**32 - 1)
    # Widths of the hidden layers of policy and critics
    hidden_dims: tuple[int, ...] = widths(256, 256)
    # LayerNorm before the activation of the critics' hidden layers
    critic_ln: bool = True
    # Initial entropy temperature
    initial_temperature: float = positive(1.0)
    # Normalise states to mean 0 and standard deviation 1
    normalize: bool = False
    # Subtract 1 from AntMaze's rewards; others stay as they are
    normalize_reward: bool = True


# ---- networks ------------------------------------------------------------------------------------------------------


def linear(output_dim: int) -> Linear:
    """A layer with Glorot's uniform weight and a bias of 0."""
    return Linear(output_dim, kernel_init=glorot_uniform(), bias_init=zeros)


class Actor(nn.Module):
    """The policy: a normal distribution, squashed by tanh."""

    action_dim: int
    max_action: float
    hidden_dims: Sequence[int]

    def setup(self) -> None:
        layers: list[Callable[..., Any]] = []
        for width in self.hidden_dims:
            layers += [linear(width), nn.relu]
        self.trunk = nn.Sequential(layers)
        self.mean = linear(self.action_dim)
        self.log_std = linear(self.action_dim)

    def __call__(self, observations: Array) -> tuple[Array, Array]:
        """Mean and log standard deviation (B, A) before tanh, for observations (B, S)."""
        hidden = self.trunk(observations)
        return self.mean(hidden), clamp(self.log_std(hidden), -20.0, 2.0)


def sample(actor: Network, observations: Array, noise: Array) -> tuple[Array, Array]:
    """Actions (B, A) for noise (B, A), and their log-probabilities (B,) in units of max_action."""
    mean, log_std = actor(observations)
    u = mean + noise * exp(log_std)
    log_density = -square(noise) / 2.0 - log_std - LOG_SQRT_2PI
    # log(1 - tanh(u)^2), which does not vanish where the tanh is 1
    log_slope = 2.0 * (math.log(2.0) - u - softplus(-2.0 * u))
    return actor.module.max_action * tanh(u), (log_density - log_slope).sum(axis=-1)


LOG_SQRT_2PI = math.log(math.sqrt(2.0 * math.pi))


class VectorizedLinear(nn.Module):
    """A linear layer for each of E critics, as one batched product; weights are (E, in, out)."""

    features: int
    n_critics: int

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """Maps (B, in), the same for all, or (E, B, in) to (E, B, out)."""
        kernel_shape, bias_shape = (self.n_critics, inputs.shape[-1], self.features), (self.n_critics, 1, self.features)
        kernel = self.param("kernel", glorot_uniform(batch_axis=0), kernel_shape, inputs.dtype)
        bias = self.param("bias", zeros, bias_shape, inputs.dtype)
        return inputs @ kernel + bias


class VectorizedLayerNorm(nn.Module):
    """LayerNorm with a scale and a bias for each of E critics."""

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """Maps (E, B, H) to (E, B, H)."""
        shape = (inputs.shape[0], 1, inputs.shape[2])
        scale = self.param("scale", ones, shape, inputs.dtype)
        bias = self.param("bias", zeros, shape, inputs.dtype)
        normalised = nn.LayerNorm(epsilon=1e-6, use_bias=False, use_scale=False, use_fast_variance=False)(inputs)
        return normalised * scale + bias


class Critic(nn.Module):
    """E critics Q(s, a) with weights of their own."""

    hidden_dims: Sequence[int]
    layer_norm: bool
    n_critics: int

    def setup(self) -> None:
        layers: list[Callable[..., Any]] = []
        for width in self.hidden_dims:
            layers += [VectorizedLinear(width, self.n_critics)]
            if self.layer_norm:
                layers += [VectorizedLayerNorm()]
            layers += [nn.relu]
        self.net = nn.Sequential([*layers, VectorizedLinear(1, self.n_critics)])

    def __call__(self, observations: Array, actions: Array) -> Array:
        """The values (E, B) of actions (B, A) in observations (B, S)."""
        return self.net(concatenate([observations, actions], axis=-1)).squeeze(-1)


def values_of(critic: Network, members: Array, observations: Array, actions: Array) -> Array:
    """The values (m, B) of the critics with the numbers `members` (m,); no others are computed."""
    weights = jax.tree.map(lambda weight: weight[members], critic.params)
    return Network(weights, critic.module.clone(n_critics=len(members)))(observations, actions)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch, with U = critic_updates."""

    # Standard normal, (U, B, A): the policy's next actions in the target of each minibatch
    target: Array
    # Uniform in [0, 1), (U, E): the critics with the smallest numbers make the target
    subset: Array
    # Standard normal, (B, A): the policy's actions in its own loss
    actor: Array


def draw_noise(
    key: Array, step: Array, hp: Hyperparameters, dataset_size: int, action_dim: int, online_size: Array | None = None
) -> tuple[Array, Noise]:
    """An update's batch indices (U * B,) and its noise, which depend on the key and on the update's number alone.

    Online, every second row is the environment's, numbered from `dataset_size` on, so that each minibatch is half and
    half.
    """
    keys = jax.random.split(jax.random.fold_in(key, step), 6)
    indices = jax.random.randint(keys[0], (hp.critic_updates * hp.batch_size,), 0, dataset_size)
    if online_size is not None:
        further = dataset_size + jax.random.randint(keys[1], (len(indices) // 2,), 0, online_size)
        indices = indices.at[1::2].set(further)
    noise = Noise(
        target=jax.random.normal(keys[2], (hp.critic_updates, hp.batch_size, action_dim)),
        subset=jax.random.uniform(keys[3], (hp.critic_updates, hp.n_critics)),
        actor=jax.random.normal(keys[4], (hp.batch_size, action_dim)),
    )
    return indices, noise


class Exploration(NamedTuple):
    """The random numbers that a step in the environment draws."""

    # Uniform in [-1, 1), (1, A): the action before learning starts, in units of max_action
    uniform: Array
    # Standard normal, (1, A): the policy's noise in all later steps
    action: Array


def draw_exploration(key: Array, step: Array, hp: Hyperparameters, action_dim: int) -> Exploration:
    """The draws of one step in the environment, which depend on the key and the step's number alone."""
    # The last of these keys: the update of the same number uses the others.
    uniform_key, action_key = jax.random.split(jax.random.split(jax.random.fold_in(key, step), 6)[5])
    uniform = jax.random.uniform(uniform_key, (1, action_dim), minval=-1.0, maxval=1.0)
    return Exploration(uniform, jax.random.normal(action_key, (1, action_dim)))


# ---- losses and update ---------------------------------------------------------------------------------------------


def gradient_step(state: "RLPD", part: str, gradient: Any, lr: float) -> "RLPD":
    """One step of Adam on one part of the state, down its gradient."""
    change, moments = optax.adam(lr).update(gradient, getattr(state, f"{part}_optimizer"))
    return state.replace(**{part: optax.apply_updates(getattr(state, part), change), f"{part}_optimizer": moments})


def soft_update(target: Network, source: Network, tau: float) -> Network:
    """Polyak averaging: the target, moved a step of size tau towards the source."""
    return jax.tree.map(lambda old, new: (1.0 - tau) * old + tau * new, target, source)


def minibatches(hp: Hyperparameters, batch: Batch) -> Batch:
    """A batch of U * B rows, split into U consecutive parts: columns (U, B, ...)."""
    return Batch(*(column.reshape(-1, hp.batch_size, *column.shape[1:]) for column in batch))


class RLPD(struct.PyTreeNode):
    """All that an update reads and writes."""

    actor: Network
    critic: Network
    critic_target: Network
    log_temperature: Array
    actor_optimizer: optax.OptState
    critic_optimizer: optax.OptState
    log_temperature_optimizer: optax.OptState
    # Updates so far, plus the steps before learning starts, which have none
    total_it: Array
    hp: Hyperparameters = struct.field(pytree_node=False)

    def temperature(self) -> Array:
        """The entropy temperature: a constant in every loss except its own."""
        return exp(self.log_temperature)

    def td_target(self, batch: Batch, noise: Array, subset: Array) -> Array:
        """The regression target of all critics, (B,): the smallest value of the next action under a few of them.

        The same few are used for all rows. The noise (B, A) determines the policy's next actions.
        """
        hp, actor, critic = self.hp, self.actor, self.critic_target
        actions, log_prob = sample(actor, batch.next_observations, noise)
        members = argsort(subset)[: hp.n_target_critics]
        next_q = amin(values_of(critic, members, batch.next_observations, actions), axis=0)
        assert next_q.shape == log_prob.shape == batch.rewards.shape == batch.terminals.shape
        if hp.backup_entropy:
            next_q = next_q - self.temperature() * log_prob
        return batch.rewards + hp.discount * (1.0 - batch.terminals) * next_q

    def critic_loss(self, critic: Network, batch: Batch, noise: Array, subset: Array) -> tuple[Array, dict[str, Array]]:
        """The squared error of all critics to the same target, averaged over them."""
        target = self.td_target(batch, noise, subset)
        q = critic(batch.observations, batch.actions)
        assert q.shape == (self.hp.n_critics, *target.shape)
        return square(q - target).mean(), {"q": q.mean()}

    def actor_loss(self, actor: Network, batch: Batch, noise: Array) -> tuple[Array, dict[str, Array]]:
        """Maximizes the mean value of the policy's actions under all critics, and their entropy."""
        critic = self.critic
        actions, log_prob = sample(actor, batch.observations, noise)
        q = critic(batch.observations, actions).mean(axis=0)
        assert q.shape == log_prob.shape == batch.rewards.shape
        return (self.temperature() * log_prob - q).mean(), {"log_prob": log_prob}

    def alpha_loss(self, log_temperature: Array, log_prob: Array) -> tuple[Array, dict[str, Array]]:
        """Raises the temperature while the policy's entropy is below its target."""
        hp = self.hp
        target_entropy = -self.actor.module.action_dim / 2.0 if hp.target_entropy is None else hp.target_entropy
        return -exp(log_temperature) * (log_prob.mean() + target_entropy), {}

    def update(self, batch: Batch, noise: Noise) -> tuple["RLPD", dict[str, Array]]:
        """The critics' gradient steps, each followed by their targets; then one of the policy, and of the temperature.

        The policy and the temperature learn from the last minibatch, and the critics' metrics are from it, too.
        """
        hp = self.hp

        def critic_step(state: RLPD, given: tuple[Batch, Array, Array]) -> tuple[RLPD, dict[str, Array]]:
            (loss, aux), gradient = value_and_grad(state.critic_loss, has_aux=True)(state.critic, *given)
            state = gradient_step(state, "critic", gradient, hp.critic_lr)
            state = state.replace(critic_target=soft_update(state.critic_target, state.critic, hp.tau))
            return state, {"critic_loss": loss, "alpha": state.temperature(), **aux}

        parts = minibatches(hp, batch)
        state, history = scan(critic_step, self, (parts, noise.target, noise.subset))
        batch, metrics = jax.tree.map(lambda values: values[-1], (parts, history))
        (actor_loss, aux), gradient = value_and_grad(state.actor_loss, has_aux=True)(state.actor, batch, noise.actor)
        state = gradient_step(state, "actor", gradient, hp.actor_lr)
        (alpha_loss, _), gradient = value_and_grad(state.alpha_loss, has_aux=True)(
            state.log_temperature, aux["log_prob"]
        )
        state = gradient_step(state, "log_temperature", gradient, hp.temperature_lr)
        metrics |= {"actor_loss": actor_loss, "entropy": -aux["log_prob"].mean(), "alpha_loss": alpha_loss}
        return state.replace(total_it=state.total_it + 1), metrics

    def explore(self, observations: Array, noise: Exploration) -> Array:
        """Actions (E, A) to learn from, for observations (E, S): uniform before learning starts, then the policy's."""
        hp, actor = self.hp, self.actor
        uniform = self.total_it < hp.offline_iterations + hp.learning_starts
        actions, _ = sample(actor, observations, noise.action)
        return where(uniform, actor.module.max_action * noise.uniform, actions)


@jax.jit
def act(actor: Network, observations: Array) -> Array:
    """The policy's most likely actions (E, A) for observations (E, S)."""
    mean, _ = actor(observations)
    return actor.module.max_action * tanh(mean)


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="num_updates", donate_argnames="state")
def train_interval(
    state: RLPD, key: Array, dataset: PackedDataset, start: Array, num_updates: int, ring: Ring | None
) -> tuple[RLPD, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates` as one program; in each, the critics' steps are a scan.

    Batches come from the dataset alone, or half from the ring's rows.
    """
    hp, action_dim = state.hp, state.actor.module.action_dim
    online_size = None if ring is None else ring.size

    def draw(step: Array) -> tuple[Array, Noise]:
        return draw_noise(key, step, hp, len(dataset), action_dim, online_size)

    def update(state: RLPD, drawn: tuple[Array, Noise], place: int) -> tuple[RLPD, dict[str, Array]]:
        indices, noise = drawn
        batch = take(dataset, indices) if ring is None else take_either(dataset, ring, indices)
        return state.update(batch, noise)

    return scan_updates(update, draw, state, start, num_updates)


@jax.jit
def next_action(state: RLPD, key: Array, step: Array, observation: Array) -> Array:
    """The action (1, A) for the environment step with this number, in an observation (1, S)."""
    return state.explore(observation, draw_exploration(key, step, state.hp, state.actor.module.action_dim))


@partial(jax.jit, static_argnames="idle", donate_argnames=("state", "ring"))
def train_online(
    state: RLPD,
    key: Array,
    ring: Ring,
    start: Array,
    rows: Array,
    observation: Array,
    dataset: PackedDataset,
    idle: int,
) -> tuple[RLPD, Ring, Array, list[dict[str, Array]]]:
    """Everything between two environment steps: stores n transitions (n, W), makes n updates, and chooses an action.

    The first `idle` of those updates are skipped, because they come before learning starts.
    """
    ring, end = push(ring, rows), start + len(rows)
    state = state.replace(total_it=state.total_it + idle)
    state, history = train_interval(state, key, dataset, start + idle, len(rows) - idle, ring)
    return state, ring, next_action(state, key, end, observation), history


def of_a_call(config: TrainConfig, start: int, num_updates: int) -> tuple[int]:
    """A call after `start` updates is compiled for the number of its updates that are idle."""
    return (min(max(config.offline_iterations + config.learning_starts - start, 0), num_updates),)


def create_train_state(key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> RLPD:
    """Fresh networks with Glorot's uniform weights."""
    observations, actions = jnp.zeros((1, state_dim)), jnp.zeros((1, action_dim))
    actor_key, critic_key = jax.random.split(key)
    actor = Network.create(Actor(action_dim, max_action, config.hidden_dims), actor_key, observations)
    critic_module = Critic(config.hidden_dims, config.critic_ln, config.n_critics)
    critic = Network.create(critic_module, critic_key, observations, actions)
    log_temperature = jnp.asarray(math.log(config.initial_temperature), dtype=float)
    return RLPD(
        actor=actor,
        critic=critic,
        # A donated state must not contain an array twice, so the target is a copy.
        critic_target=jax.tree.map(jnp.copy, critic),
        log_temperature=log_temperature,
        actor_optimizer=optax.adam(config.actor_lr).init(actor),
        critic_optimizer=optax.adam(config.critic_lr).init(critic),
        log_temperature_optimizer=optax.adam(config.temperature_lr).init(log_temperature),
        total_it=jnp.zeros((), jnp.int32),
        hp=narrow(config, Hyperparameters),
    )


def save(state: RLPD, path: Path, total_it: int, experience: OnlineExperience, **facts: Any) -> None:
    """Writes the new part of the experience, then a checkpoint beside it."""
    experience.save(path.parent)
    save_checkpoint(path, "finetune/rlpd", state, total_it, **facts)


def train(config: TrainConfig) -> Run:
    """Trains on the data and in the environment, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used, or a setting contradicts another.
    """
    if config.n_target_critics > config.n_critics:
        raise InputError(f"n_target_critics is {config.n_target_critics}: set at most n_critics, {config.n_critics}")
    preparation = Preparation(rewards=ShiftedRewards().where(config.normalize_reward), normalise=config.normalize)
    task = load_task(config, preparation)
    device = resolve_device(config.device)
    experience = training_environment(config, task)
    enable_compilation_cache()
    with jax.default_device(device):
        weights_key, draws_key = jax.random.split(jax.random.key(config.seed))
        state = create_train_state(weights_key, config, task.state_dim, task.action_dim, task.max_action)
        run = Run(config, task, "finetune/rlpd", "jax", device)
        load = partial(load_checkpoint, algorithm="finetune/rlpd", state=state)
        state, _ = restore(run, load, state, experience.go_on_from)
        # The start of learning only depends on this run's own steps, even if it began with a checkpoint.
        state = state.replace(total_it=jnp.asarray(run.step, jnp.int32))
        # The data's actions are clipped; the environment's steps are stored with the actions as they were taken.
        dataset = to_device(cut_actions(task.dataset, task.max_action))
        call = partial(of_a_call, config)
        online = Online(run, config, experience, draws_key, next_action, train_online, statics=call, shared=[dataset])
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, act, state.actor)
            offline = History(run)
            history: History | Online = offline
            for start, end in run.calls(cost=5 * config.critic_updates):
                if start < config.offline_iterations:
                    statics = end - start, None
                    state, found = train_together(train_interval, state, draws_key, dataset, start, *statics)
                    offline.add(end - start, found)
                else:
                    online.begin(dataset, keeps_dataset=False)
                    history, (state, end) = online, online.play(state, start, end)
                write = partial(save, state, total_it=end, experience=experience)
                if run.is_due(end):
                    run.log(end, history.means(), experience.episodes)
                    run.save(end, write)
                    evaluate(run, end, act, state.actor)
                elif run.stopping:
                    run.save(end, partial(write, history=history.content()))
    experience.close()
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "finetune/rlpd")
