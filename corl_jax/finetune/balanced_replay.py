"""Balanced replay in JAX: an ensemble of CQL agents learns from data, then online from the rows most like its own.

Its twin is `corl_torch/finetune/balanced_replay.py`. Offline, each member learns as in `corl_jax/finetune/cql.py`.

Lee et al., Offline-to-Online Reinforcement Learning via Balanced Replay and Pessimistic Q-Ensemble, 2021,
https://arxiv.org/abs/2107.00591
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
from jax.nn import logsumexp
from jax.numpy import broadcast_to, concatenate, exp, log, minimum, sqrt, square, tanh, where

from shared.data.online import OnlineExperience
from shared.data.rewards import ScaledRewards
from shared.data.transitions import Batch
from shared.frameworks.jax_calls import History
from shared.frameworks.jax_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, take, to_device
from shared.frameworks.jax_layers import Linear, Network, clamp, softplus, torch_bias
from shared.frameworks.jax_online import Online
from shared.frameworks.jax_priorities import fill, find, no_priorities, write
from shared.frameworks.jax_ring import Ring, push, take_both, take_either
from shared.frameworks.jax_scan import scan_updates
from shared.frameworks.jax_seeds import train_together
from shared.frameworks.jax_side import enable_compilation_cache, evaluate, narrow, resolve_device
from shared.runs.fields import bounded, positive
from shared.runs.run import Run
from shared.runs.settings import FinetuneConfig
from shared.runs.task import Preparation, load_task, training_environment

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Members of the ensemble, each a policy with two critics
    n_ensemble: int = bounded(5, low=1)
    # Transitions in a batch
    batch_size: int = bounded(256, low=2)
    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Learning rate of the policies and of the entropy temperatures
    actor_lr: float = positive(3e-5)
    # Learning rate of the critics
    critic_lr: float = positive(3e-4)
    # Rate at which the target critics follow the critics
    tau: float = bounded(5e-3, low=0, high=1)
    # Actions sampled per state for each part of the conservative term
    cql_n_actions: int = bounded(10, low=1)
    # Weight of the conservative term, which is only used offline
    cql_alpha: float = bounded(10.0, low=0)
    # Learning rate of the network that tells the environment's rows from the dataset's
    density_lr: float = positive(3e-4)
    # Temperature of the density ratios: the higher it is, the more alike are the rows' priorities
    density_temperature: float = positive(5.0)
    # Share of the environment's rows in the first online batch, on average
    online_share: float = bounded(0.75, low=0.01, high=0.99)
    # Updates on the dataset alone
    offline_iterations: int = bounded(1_000_000, low=0)
    # Number of first environment steps that are not followed by updates
    learning_starts: int = bounded(1_000, low=0)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, FinetuneConfig):
    """The settings of a whole run."""

    group: str = "Balanced-Replay-D4RL"
    name: str = "Balanced-Replay"
    # Largest dataset accepted, in transitions, and the capacity for the environment's, which overwrite the oldest
    buffer_size: int = bounded(2_000_000, low=1)
    # Normalise states to mean 0 and standard deviation 1
    normalize: bool = True
    # Scale rewards as CORL does for this kind of dataset, then by reward_scale and reward_bias; online too
    normalize_reward: bool = False
    # Hidden layers of each critic; a policy has three, and the density ratio's network two
    critic_n_hiddens: int = bounded(3, low=1)
    # Width of every hidden layer
    hidden_dim: int = bounded(256, low=1)
    # Factor on rewards, if normalize_reward
    reward_scale: float = 1.0
    # Added to rewards after that, if normalize_reward
    reward_bias: float = 0.0


# ---- networks ------------------------------------------------------------------------------------------------------


class VectorizedLinear(nn.Module):
    """A linear layer for each of E members, as one batched product; weights are (E, in, out)."""

    features: int

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """Maps (E, R, in) to (E, R, out)."""
        n_ensemble, _, fan_in = inputs.shape
        uniform = torch_bias(fan_in)
        kernel = self.param("kernel", uniform, (n_ensemble, fan_in, self.features), inputs.dtype)
        bias = self.param("bias", uniform, (n_ensemble, 1, self.features), inputs.dtype)
        return inputs @ kernel + bias


def mlp(output_dim: int, n_hidden_layers: int, hidden_dim: int) -> nn.Sequential:
    """Hidden layers with ReLU, of every member."""
    layers: list[Callable[..., Any]] = []
    for _ in range(n_hidden_layers):
        layers += [VectorizedLinear(hidden_dim), nn.relu]
    return nn.Sequential([*layers, VectorizedLinear(output_dim)])


class Actor(nn.Module):
    """E policies, each a normal distribution that is squashed by tanh."""

    action_dim: int
    max_action: float
    hidden_dim: int
    n_ensemble: int

    def setup(self) -> None:
        self.base_network = mlp(2 * self.action_dim, 3, self.hidden_dim)

    def __call__(self, observations: Array) -> tuple[Array, Array]:
        """Each member's mean and standard deviation (E, B, A) before tanh, for observations (B, S)."""
        outputs = self.base_network(broadcast_to(observations, (self.n_ensemble, *observations.shape)))
        mean, log_std = jnp.split(outputs, 2, axis=-1)
        return mean, exp(clamp(log_std, -20.0, 2.0))


class Critic(nn.Module):
    """E critics Q(s, a)."""

    n_hidden_layers: int
    hidden_dim: int
    n_ensemble: int

    def setup(self) -> None:
        self.network = mlp(1, self.n_hidden_layers, self.hidden_dim)

    def __call__(self, observations: Array, actions: Array) -> Array:
        """Values (E, B) of actions (B, A) or (E, B, A) in observations (B, S), or (E, B, n) of actions (E, B, n, A)."""
        if actions.ndim == 4:
            observations = observations[:, None]
        actions = broadcast_to(actions, (self.n_ensemble, *actions.shape)) if actions.ndim == 2 else actions
        observations = broadcast_to(observations, (*actions.shape[:-1], observations.shape[-1]))
        inputs = concatenate([observations, actions], axis=-1)
        return self.network(inputs.reshape(self.n_ensemble, -1, inputs.shape[-1])).reshape(actions.shape[:-1])


class Density(nn.Module):
    """The density ratio of the environment's rows to the dataset's, at a state and an action."""

    hidden_dim: int

    def setup(self) -> None:
        self.network = nn.Sequential([
            Linear(self.hidden_dim),
            nn.relu,
            Linear(self.hidden_dim),
            nn.relu,
            Linear(1),
        ])  # fmt: skip

    def __call__(self, observations: Array, actions: Array) -> Array:
        """The logarithm (B,) of the ratio w, which is a softplus, for observations (B, S) and actions (B, A)."""
        outputs = self.network(concatenate([observations, actions], axis=-1)).squeeze(-1)
        # Far below 0, a softplus is e^x to the last bit; in the end it would be 0, whose logarithm has no gradient.
        far = outputs < -40.0
        return where(far, outputs, log(softplus(where(far, 0.0, outputs))))


def squash(mean: Array, std: Array, noise: Array, max_action: float) -> tuple[Array, Array]:
    """Actions (..., A) of normal distributions (..., A) under noise (..., A), and their log-probabilities (...)."""
    u = mean + noise * std
    log_prob = -2.0 * (math.log(2.0) - u - softplus(-2.0 * u))
    log_prob = log_prob + (-square(u - mean) / (2.0 * square(std)) - log(std) - math.log(math.sqrt(2.0 * math.pi)))
    return max_action * tanh(u), log_prob.sum(axis=-1)


def sample_each(actor: Network, observations: Array, noise: Array) -> tuple[Array, Array]:
    """Each member's actions and their log-probabilities, (E, B) for noise (E, B, A), or n per state."""
    mean, std = actor(observations)
    if noise.ndim == 4:
        mean, std = mean[:, :, None], std[:, :, None]
    return squash(mean, std, noise, actor.module.max_action)


def mixture(actor: Network, observations: Array) -> tuple[Array, Array]:
    """Mean and standard deviation (B, A) before tanh of the ensemble: the moments of the members' uniform mixture."""
    means, stds = actor(observations)
    mean = means.mean(axis=0)
    # The mean of squares minus the squared mean, in a form that rounding cannot make negative
    variance = (square(stds) + square(means - mean)).mean(axis=0)
    return mean, sqrt(variance)


def sample(actor: Network, observations: Array, noise: Array) -> tuple[Array, Array]:
    """The ensemble's actions (B, A) and their log-probabilities (B,) for noise (B, A)."""
    mean, std = mixture(actor, observations)
    return squash(mean, std, noise, actor.module.max_action)


def pessimistic(critic_1: Network, critic_2: Network, observations: Array, actions: Array) -> Array:
    """The ensemble's values (B,): each member's smaller value, averaged over the members."""
    return minimum(critic_1(observations, actions), critic_2(observations, actions)).mean(axis=0)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """An update's draws besides its batch, with n = cql_n_actions: the first five offline, the others online."""

    # Standard normal, (E, B, A): each member's action in each state
    each_actor: Any
    # Standard normal, (E, B, A): each member's next actions in its target
    each_target: Any
    # Uniform in [-1, 1), (E, B, n, A): random actions for the conservative terms
    random: Any
    # Standard normal, (E, B, n, A): each member's actions for its conservative terms
    current: Any
    # Standard normal, (E, B, n, A): each member's next actions for its conservative terms
    next: Any
    # Standard normal, (B, A): the ensemble's action in each state
    actor: Any
    # Standard normal, (B, A): the ensemble's next actions in the target
    target: Any
    # Uniform in [0, 1), (B,): they choose rows by priority
    row: Any


def shares(hp: Hyperparameters) -> tuple[int, int]:
    """How many rows are drawn uniformly, to learn the density ratio, from the dataset and from the environment."""
    offline = hp.batch_size // 2
    return offline, hp.batch_size - offline


def draw_noise(
    key: Array,
    step: Array,
    hp: Hyperparameters,
    dataset_size: int,
    action_dim: int,
    online_size: Array | None = None,
) -> tuple[Array, Noise]:
    """An update's indices (B,) and its noise, which depend on the key and on the update's number alone.

    Offline, the indices are its batch. Online, they are the rows that the density ratio learns from. The dataset's come
    first; the environment's are numbered from `dataset_size` on.
    """
    one = (hp.batch_size, action_dim)
    each, many = (hp.n_ensemble, *one), (hp.n_ensemble, hp.batch_size, hp.cql_n_actions, action_dim)
    keys = jax.random.split(jax.random.fold_in(key, step), 8)
    if online_size is None:
        indices = jax.random.randint(keys[0], (hp.batch_size,), 0, dataset_size)
        noise = Noise(
            each_actor=jax.random.normal(keys[1], each),
            each_target=jax.random.normal(keys[2], each),
            random=jax.random.uniform(keys[3], many, minval=-1.0, maxval=1.0),
            current=jax.random.normal(keys[4], many),
            next=jax.random.normal(keys[5], many),
            actor=None,
            target=None,
            row=None,
        )
        return indices, noise
    offline, online = shares(hp)
    indices = jax.random.randint(keys[0], (offline,), 0, dataset_size)
    indices = concatenate([indices, dataset_size + jax.random.randint(keys[6], (online,), 0, online_size)])
    noise = Noise(
        each_actor=None,
        each_target=None,
        random=None,
        current=None,
        next=None,
        actor=jax.random.normal(keys[1], one),
        target=jax.random.normal(keys[2], one),
        row=jax.random.uniform(keys[3], (hp.batch_size,)),
    )
    return indices, noise


class Exploration(NamedTuple):
    """The random numbers that a step in the environment draws."""

    # Standard normal, (1, A)
    action: Array


def draw_exploration(key: Array, step: Array, hp: Hyperparameters, action_dim: int) -> Exploration:
    """The draw of one step in the environment, which depends on the key and the step's number alone."""
    # The last of these keys: the update of the same number uses the others.
    action_key = jax.random.split(jax.random.fold_in(key, step), 8)[7]
    return Exploration(action=jax.random.normal(action_key, (1, action_dim)))


# ---- losses and update ---------------------------------------------------------------------------------------------


class BalancedBatch(NamedTuple):
    """An online update's rows: a batch that is drawn by priority, and the rows that the density ratio learns from."""

    observations: Array
    actions: Array
    rewards: Array
    next_observations: Array
    terminals: Array
    # The index of each row's priority, (B,)
    places: Array
    # 1 if a row is the environment's, 0 if it is the dataset's, (B,)
    seen: Array
    # States (B, S) and actions (B, A), drawn uniformly: the dataset's rows, then the environment's
    compared_observations: Array
    compared_actions: Array


def gradient_step(state: "BalancedReplay", part: str, gradient: Any, lr: float) -> "BalancedReplay":
    """One step of Adam on one part of the state, down its gradient."""
    change, moments = optax.adam(lr).update(gradient, getattr(state, f"{part}_optimizer"))
    return state.replace(**{part: optax.apply_updates(getattr(state, part), change), f"{part}_optimizer": moments})


def soft_update(target: Network, source: Network, tau: float) -> Network:
    """Polyak averaging: the target, moved a step of size tau towards the source."""
    return jax.tree.map(lambda old, new: (1.0 - tau) * old + tau * new, target, source)


class BalancedReplay(struct.PyTreeNode):
    """All that an update reads and writes."""

    actor: Network
    critic_1: Network
    critic_2: Network
    critic_1_target: Network
    critic_2_target: Network
    density: Network
    priorities: Array
    log_temperature: Array
    actor_optimizer: optax.OptState
    critic_1_optimizer: optax.OptState
    critic_2_optimizer: optax.OptState
    density_optimizer: optax.OptState
    log_temperature_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)

    # -- offline: each member by itself --

    def each_alpha_loss(self, log_temperature: Array, each_log_prob: Array) -> tuple[Array, dict[str, Array]]:
        """Raises each temperature while its member's entropy is below -A, minus one nat for each dimension."""
        log_temperature = log_temperature[:, None]
        return -(log_temperature * (each_log_prob - self.actor.module.action_dim)).mean(axis=1).sum(), {}

    def each_actor_loss(self, actor: Network, batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """Soft actor-critic's loss for every member, which raises its smaller critic's value and the entropy."""
        critic_1, critic_2 = self.critic_1, self.critic_2
        actions, log_prob = sample_each(actor, batch.observations, noise.each_actor)
        q = minimum(critic_1(batch.observations, actions), critic_2(batch.observations, actions))
        assert log_prob.shape[1:] == q.shape[1:] == batch.rewards.shape
        alpha = exp(self.log_temperature)[:, None]
        return (alpha * log_prob - q).mean(axis=1).sum(), {"log_prob": log_prob}

    def each_target(self, batch: Batch, noise: Noise) -> Array:
        """The regression target of each member's critics, (E, B), without entropy, as in CQL."""
        critic_1, critic_2 = self.critic_1_target, self.critic_2_target
        actions, _ = sample_each(self.actor, batch.next_observations, noise.each_target)
        next_q = minimum(critic_1(batch.next_observations, actions), critic_2(batch.next_observations, actions))
        assert next_q.shape[1:] == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + (1.0 - batch.terminals) * self.hp.discount * next_q

    def gap(
        self, critic: Network, batch: Batch, q: Array, random: Array, samples: tuple[tuple[Array, Array], ...]
    ) -> Array:
        """The mean gap (E,) between the soft maximum over sampled actions and the data's values q (E, B)."""
        (current, current_log_prob), (next, next_log_prob) = samples
        log_density = math.log(0.5 ** random.shape[-1])
        q_ratios = [
            critic(batch.observations, random) - log_density,
            # The next actions are evaluated in the current states.
            critic(batch.observations, next) - next_log_prob,
            critic(batch.observations, current) - current_log_prob,
        ]
        ood = logsumexp(concatenate(q_ratios, axis=2), axis=2)
        assert ood.shape == q.shape
        return (ood - q).mean(axis=1)

    def each_critic_loss(
        self, critics: Sequence[Network], batch: Batch, noise: Noise
    ) -> tuple[Array, dict[str, Array]]:
        """Every member's two critics' squared errors to its own target, and their conservative terms."""
        target = self.each_target(batch, noise)
        current = sample_each(self.actor, batch.observations, noise.current)
        next = sample_each(self.actor, batch.next_observations, noise.next)
        losses, metrics = [], {"average_target_q": target.mean()}
        for number, critic in enumerate(critics, start=1):
            q = critic(batch.observations, batch.actions)
            assert q.shape == target.shape
            td_loss = square(q - target).mean(axis=1)
            gap = self.gap(critic, batch, q, noise.random, (current, next))
            losses.append((td_loss + self.hp.cql_alpha * gap).sum())
            own = {"qf{}_loss": td_loss.mean(), "average_qf{}": q.mean(), "cql_qf{}_diff": gap.mean()}
            metrics |= {name.format(number): value for name, value in own.items()}
        return losses[0] + losses[1], metrics

    # -- online: the ensemble as one agent --

    def temperature(self) -> Array:
        """The ensemble's temperature, the geometric mean of its members': a constant in every loss except its own."""
        return exp(self.log_temperature.mean())

    def alpha_loss(self, log_temperature: Array, log_prob: Array) -> tuple[Array, dict[str, Array]]:
        """Raises the temperature while the ensemble's entropy is below -A."""
        return -(log_temperature.mean() * (log_prob - self.actor.module.action_dim)).mean(), {}

    def actor_loss(self, actor: Network, batch: BalancedBatch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """Soft actor-critic's loss, which raises the mean of the members' smaller values and the mixture's entropy."""
        critic_1, critic_2 = self.critic_1, self.critic_2
        actions, log_prob = sample(actor, batch.observations, noise.actor)
        q = pessimistic(critic_1, critic_2, batch.observations, actions)
        assert log_prob.shape == q.shape == batch.rewards.shape
        return (self.temperature() * log_prob - q).mean(), {"log_prob": log_prob}

    def td_target(self, batch: BalancedBatch, noise: Noise) -> Array:
        """The regression target of all critics, (B,): the ensemble's value of its next action, plus entropy."""
        actions, log_prob = sample(self.actor, batch.next_observations, noise.target)
        next_q = pessimistic(self.critic_1_target, self.critic_2_target, batch.next_observations, actions)
        assert next_q.shape == log_prob.shape == batch.rewards.shape == batch.terminals.shape
        next_value = next_q - self.temperature() * log_prob
        return batch.rewards + (1.0 - batch.terminals) * self.hp.discount * next_value

    def critic_loss(
        self, critics: Sequence[Network], batch: BalancedBatch, noise: Noise
    ) -> tuple[Array, dict[str, Array]]:
        """Every critic's squared error to the same target, without conservative terms."""
        target = self.td_target(batch, noise)
        losses, metrics = [], {"average_target_q": target.mean()}
        for number, critic in enumerate(critics, start=1):
            q = critic(batch.observations, batch.actions)
            assert q.shape[1:] == target.shape
            td_loss = square(q - target).mean(axis=1)
            losses.append(td_loss.sum())
            metrics |= {f"qf{number}_loss": td_loss.mean(), f"average_qf{number}": q.mean()}
        return losses[0] + losses[1], metrics

    def density_loss(self, density: Network, batch: BalancedBatch) -> tuple[Array, dict[str, Array]]:
        """Minus the bound of the Jensen-Shannon divergence, which is largest at the ratio of both densities.

        With f'(w) = log(2w / (w + 1)) and f*(f'(w)) = log((w + 1) / 2), both are softplus functions of log w.
        """
        offline, _ = shares(self.hp)
        log_w = density(batch.compared_observations, batch.compared_actions)
        slope = math.log(2.0) - softplus(-log_w[offline:])
        conjugate = softplus(log_w[:offline]) - math.log(2.0)
        return conjugate.mean() - slope.mean(), {}

    def ratios(self, batch: BalancedBatch) -> Array:
        """The batch's new priorities, (B,): tempered ratios, divided by their mean over the dataset's rows."""
        (offline, _), temperature = shares(self.hp), self.hp.density_temperature
        log_w = self.density(batch.observations, batch.actions)
        offline_log_w = self.density(batch.compared_observations[:offline], batch.compared_actions[:offline])
        # A difference of logarithms, because in single precision the ratios themselves may all be 0.
        log_mean = logsumexp(offline_log_w / temperature, axis=0) - math.log(offline)
        return exp(log_w / temperature - log_mean)

    # -- priorities --

    def begin(self, dataset_size: int) -> "BalancedReplay":
        """Every row of the dataset has the priority 1, and there are no other rows."""
        return self.replace(priorities=fill(self.priorities, dataset_size, 1.0))

    def enter(self, places: Array, dataset_size: int) -> "BalancedReplay":
        """Gives new rows of the environment, at these places (n,), their first priority.

        At the first online update, `online_share` of the sum of priorities belongs to the environment's rows.
        """
        hp = self.hp
        odds = hp.online_share / (1.0 - hp.online_share)
        priority = odds * dataset_size / (hp.learning_starts + 1)
        return self.replace(priorities=write(self.priorities, places, jnp.full(places.shape, priority)))

    def balanced(self, dataset: PackedDataset, ring: Ring, indices: Array, noise: Noise) -> BalancedBatch:
        """An online update's batch: rows by priority, and the rows at the indices (B,) for the density ratio."""
        places = find(self.priorities, noise.row)
        rows, compared = take_either(dataset, ring, places), take_both(dataset, ring, indices, shares(self.hp)[0])
        seen = (places >= len(dataset)).astype(compared.rewards.dtype)
        batch = rows.observations, rows.actions, rows.rewards, rows.next_observations, rows.terminals
        return BalancedBatch(*batch, places, seen, compared.observations, compared.actions)

    # -- update --

    def update(self, batch: Any, noise: Noise, online: bool) -> tuple["BalancedReplay", dict[str, Array]]:
        """One gradient step, on a `Batch` offline and on a `BalancedBatch` online; last the targets.

        Every loss is computed at the old parameters. Priorities are computed from the new density ratio.
        """
        state, hp = self, self.hp
        losses = value_and_grad(state.actor_loss if online else state.each_actor_loss, has_aux=True)
        (actor_loss, aux), actor_gradient = losses(state.actor, batch, noise)
        losses = value_and_grad(state.critic_loss if online else state.each_critic_loss, has_aux=True)
        (_, metrics), critic_gradients = losses((state.critic_1, state.critic_2), batch, noise)
        losses = value_and_grad(state.alpha_loss if online else state.each_alpha_loss, has_aux=True)
        (alpha_loss, _), alpha_gradient = losses(state.log_temperature, aux["log_prob"])
        metrics |= {"log_pi": aux["log_prob"].mean(), "policy_loss": actor_loss, "alpha": state.temperature()}
        metrics |= {"alpha_loss": alpha_loss}
        if online:
            (density_loss, _), gradient = value_and_grad(state.density_loss, has_aux=True)(state.density, batch)
            state = gradient_step(state, "density", gradient, hp.density_lr)
            priorities = state.ratios(batch)
            state = state.replace(priorities=write(state.priorities, batch.places, priorities))
            metrics |= {"density_loss": density_loss, "priority": priorities.mean(), "online_share": batch.seen.mean()}
        state = gradient_step(state, "actor", actor_gradient, hp.actor_lr)
        state = gradient_step(state, "critic_1", critic_gradients[0], hp.critic_lr)
        state = gradient_step(state, "critic_2", critic_gradients[1], hp.critic_lr)
        state = gradient_step(state, "log_temperature", alpha_gradient, hp.actor_lr)
        state = state.replace(
            critic_1_target=soft_update(state.critic_1_target, state.critic_1, hp.tau),
            critic_2_target=soft_update(state.critic_2_target, state.critic_2, hp.tau),
        )
        return state, metrics

    def explore(self, observations: Array, noise: Exploration) -> Array:
        """Actions (E, A) to learn from, for normalised observations (E, S): samples of the ensemble, nothing added."""
        actions, _ = sample(self.actor, observations, noise.action)
        return actions


@jax.jit
def act(actor: Network, observations: Array) -> Array:
    """The ensemble's most likely actions (E, A) for normalised observations (E, S)."""
    mean, _ = mixture(actor, observations)
    return actor.module.max_action * tanh(mean)


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="num_updates", donate_argnames="state")
def train_interval(
    state: BalancedReplay, key: Array, dataset: PackedDataset, start: Array, num_updates: int, ring: Ring | None
) -> tuple[BalancedReplay, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates` as one program: offline, or online if there is a ring.

    Offline, everything is drawn before the loop. Online, only random numbers are; they choose rows by the priorities at
    that moment.
    """
    hp, action_dim = state.hp, state.actor.module.action_dim
    online_size = None if ring is None else ring.size

    def draw(step: Array) -> tuple[Array, Noise]:
        return draw_noise(key, step, hp, len(dataset), action_dim, online_size)

    def update(
        state: BalancedReplay, drawn: tuple[Array, Noise], place: int
    ) -> tuple[BalancedReplay, dict[str, Array]]:
        indices, noise = drawn
        if ring is None:
            return state.update(take(dataset, indices), noise, online=False)
        return state.update(state.balanced(dataset, ring, indices, noise), noise, online=True)

    return scan_updates(update, draw, state, start, num_updates)


@jax.jit
def next_action(state: BalancedReplay, key: Array, step: Array, observation: Array) -> Array:
    """The action (1, A) for the environment step with this number, in a normalised observation (1, S)."""
    return state.explore(observation, draw_exploration(key, step, state.hp, state.actor.module.action_dim))


@partial(jax.jit, static_argnames="idle", donate_argnames=("state", "ring"))
def train_online(
    state: BalancedReplay,
    key: Array,
    ring: Ring,
    start: Array,
    rows: Array,
    observation: Array,
    dataset: PackedDataset,
    idle: int,
) -> tuple[BalancedReplay, Ring, Array, list[dict[str, Array]]]:
    """Everything between two environment steps: stores n transitions (n, W), makes n updates, and chooses an action.

    The first `idle` of those updates are skipped, because they belong to the warm-up.
    """
    places, end = len(dataset) + (ring.pointer + jnp.arange(len(rows))) % len(ring), start + len(rows)
    ring, state = push(ring, rows), state.enter(places, len(dataset))
    state, history = train_interval(state, key, dataset, start + idle, len(rows) - idle, ring)
    return state, ring, next_action(state, key, end, observation), history


def of_a_call(config: TrainConfig, start: int, num_updates: int) -> tuple[int]:
    """A call after `start` updates is compiled for the number of its updates that are idle."""
    return (min(max(config.offline_iterations + config.learning_starts - start, 0), num_updates),)


def create_train_state(
    key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float
) -> BalancedReplay:
    """Fresh networks with PyTorch's initialisation."""
    inputs = jnp.zeros((1, state_dim)), jnp.zeros((1, action_dim))
    critic_1_key, critic_2_key, actor_key, density_key = jax.random.split(key, 4)
    layers = config.hidden_dim, config.n_ensemble
    parts: dict[str, Any] = {
        "actor": Network.create(Actor(action_dim, max_action, *layers), actor_key, inputs[0]),
        "critic_1": Network.create(Critic(config.critic_n_hiddens, *layers), critic_1_key, *inputs),
        "critic_2": Network.create(Critic(config.critic_n_hiddens, *layers), critic_2_key, *inputs),
        "density": Network.create(Density(config.hidden_dim), density_key, *inputs),
        "log_temperature": jnp.zeros(config.n_ensemble, dtype=float),
    }
    # A donated state must not contain an array twice, so the targets are copies.
    targets = {f"{name}_target": jax.tree.map(jnp.copy, parts[name]) for name in ("critic_1", "critic_2")}
    # Fresh moments are zeros, whatever the learning rate.
    moments = {f"{name}_optimizer": optax.adam(0.0).init(part) for name, part in parts.items()}
    priorities = no_priorities(2 * config.buffer_size)
    return BalancedReplay(**parts, **targets, **moments, priorities=priorities, hp=narrow(config, Hyperparameters))


def save(state: BalancedReplay, path: Path, total_it: int, experience: OnlineExperience, **facts: Any) -> None:
    """Writes the new part of the experience, then a checkpoint beside it."""
    experience.save(path.parent)
    save_checkpoint(path, "finetune/balanced_replay", state, total_it, **facts)


def load(state: BalancedReplay, path: str) -> dict[str, Any]:
    """Loads a checkpoint; returns its contents."""
    return load_checkpoint(path, "finetune/balanced_replay", state)


def train(config: TrainConfig) -> Run:
    """Trains on the data, then in the environment, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used.
    """
    preparation = Preparation(
        rewards=ScaledRewards(config.reward_scale, config.reward_bias).where(config.normalize_reward),
        normalise=config.normalize,
    )
    task = load_task(config, preparation)
    device = resolve_device(config.device)
    experience = training_environment(config, task)
    enable_compilation_cache()
    with jax.default_device(device):
        weights_key, draws_key = jax.random.split(jax.random.key(config.seed))
        state = create_train_state(weights_key, config, task.state_dim, task.action_dim, task.max_action)
        run = Run(config, task, "finetune/balanced_replay", "jax", device)
        state, total_it = restore(run, partial(load, state), state, experience.go_on_from)
        dataset = to_device(task.dataset)
        if run.step <= config.offline_iterations:
            state = state.begin(len(dataset))
        call = partial(of_a_call, config)
        online = Online(run, config, experience, draws_key, next_action, train_online, statics=call, shared=[dataset])
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, act, state.actor)
            offline = History(run)
            history: History | Online = offline
            for start, end in run.calls(cost=5):
                if start < config.offline_iterations:
                    statics = end - start, None
                    state, found = train_together(train_interval, state, draws_key, dataset, start, *statics)
                    offline.add(end - start, found)
                else:
                    online.begin(dataset, keeps_dataset=False)
                    history, (state, end) = online, online.play(state, start, end)
                write_down = partial(save, state, total_it=total_it + end, experience=experience)
                if run.is_due(end):
                    run.log(end, history.means(), experience.episodes)
                    run.save(end, write_down)
                    evaluate(run, end, act, state.actor)
                elif run.stopping:
                    run.save(end, partial(write_down, history=history.content()))
    experience.close()
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "finetune/balanced_replay")
