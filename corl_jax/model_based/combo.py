"""COMBO in JAX: soft actor-critic on data and a learnt model's roll-outs, with conservative critics.

Its twin is `corl_torch/model_based/combo.py`. The model is from `corl_jax/model_based/dynamics.py`.

Yu et al., COMBO: Conservative Offline Model-Based Policy Optimization, 2021, https://arxiv.org/abs/2102.08363
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

from shared.runs.start import cli

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct
from jax import Array, value_and_grad
from jax.lax import scan
from jax.nn import logsumexp
from jax.numpy import amax, concatenate, cos, exp, log, minimum, square, stack, tanh, where

from shared.data.dynamics import Draws, ModelSizes
from shared.data.transitions import Batch
from shared.frameworks.jax_calls import History
from shared.frameworks.jax_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, take, to_device
from shared.frameworks.jax_layers import Linear, Network, clamp
from shared.frameworks.jax_ring import Ring, Sources, push_kept, take_both
from shared.frameworks.jax_scan import scan_updates
from shared.frameworks.jax_seeds import train_together
from shared.frameworks.jax_side import enable_compilation_cache, evaluate, narrow, resolve_device
from shared.frameworks.learnt_model import check_roll_outs, check_shares, load_model_based_task, pieces
from shared.runs.fields import bounded, check, choice, positive, unbounded, widths
from shared.runs.run import Run
from shared.runs.settings import EpochsConfig, ImitationConfig, ModelledConfig

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update or a roll-out depends on; in JAX, they are compile-time constants."""

    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Rate at which the target critics follow the critics
    tau: float = bounded(0.005, low=0, high=1)
    # Initial learning rate of the policy, which falls to 0 along a cosine, epoch by epoch
    actor_lr: float = positive(1e-4)
    # Learning rate of the critics
    critic_lr: float = positive(3e-4)
    # Learning rate of the entropy temperature
    temperature_lr: float = positive(1e-4)
    # Tune the temperature towards the target entropy
    tune_temperature: bool = True
    # The temperature without automatic tuning
    fixed_temperature: float = bounded(0.2, low=0)
    # Target entropy; null or 0: minus the number of action dimensions
    target_entropy: float | None = unbounded(None)
    # Updates in all, over which the policy's learning rate falls to 0
    max_timesteps: int = bounded(1_000_000, low=1)
    # Updates in an epoch, in which the policy's learning rate is constant
    num_updates_on_epoch: int = bounded(1000, low=1)
    # Transitions in a batch
    batch_size: int = bounded(256, low=1)
    # Share of a batch that comes from the dataset; the rest comes from the model
    real_ratio: float = bounded(0.5, low=0, high=1)
    # Weight of the conservative term
    cql_alpha: float = bounded(5.0, low=0)
    # Temperature of the soft maximum over sampled actions
    cql_temp: float = positive(1.0)
    # Actions sampled per state for each part of the conservative term
    cql_n_actions: int = bounded(10, low=1)
    # The states whose values are pushed down: the whole batch's, or only the model's
    rho_s: str = choice("mix", "model")
    # One soft maximum over all 3 cql_n_actions actions of a state; false: one over each 3, as in the reference, where a
    # reshape is lost
    cql_joint_logsumexp: bool = True
    # Use the best of cql_n_actions next actions in the critics' target
    cql_max_target_backup: bool = False
    # Subtract the entropy term in the critics' target, except with cql_max_target_backup
    backup_entropy: bool = False
    # Tune the weight of the conservative term towards a target gap
    cql_lagrange: bool = False
    # Target gap between the values of out-of-distribution actions and of the data's, after multiplication by cql_alpha
    cql_target_action_gap: float = unbounded(10.0)
    # Learning rate of the Lagrange multiplier
    alpha_prime_lr: float = positive(3e-4)
    # States of the dataset that each round of roll-outs starts from
    rollout_batch_size: int = bounded(50_000, low=1)
    # Steps of a roll-out
    rollout_length: int = bounded(5, low=1)
    # Roll out with uniform actions instead of the policy's
    uniform_rollout: bool = False


@dataclass(frozen=True)
class TrainConfig(ModelledConfig, Hyperparameters, EpochsConfig, ImitationConfig):
    """The settings of a whole run."""

    group: str = "COMBO-D4RL"
    name: str = "COMBO"
    # Dataset: mini/pendulum-replay, a D4RL id, minari:NAME, or the path of an HDF5 file
    env: str = "mini/pendulum-replay"
    # Run of model_based/dynamics in the same framework: its folder, or a checkpoint; empty: the one with this dataset
    # and seed below runs_path, which is made first if there is none
    dynamics: str = ""
    # Updates between two rounds of roll-outs
    rollout_freq: int = bounded(1000, low=1)
    # Rounds of roll-outs, none of which ends early, that the model's buffer can store; the oldest transitions are
    # overwritten
    model_retain_epochs: int = bounded(5, low=1)
    # Widths of the hidden layers of the policy and of the critics
    hidden_dims: tuple[int, ...] = widths(256, 256, 256)
    CORL_EPOCHS: ClassVar[dict[str, str]] = {"epoch": "max_timesteps"}


# ---- networks ------------------------------------------------------------------------------------------------------


class MLP(nn.Module):
    """Hidden layers, each followed by ReLU."""

    hidden_dims: Sequence[int]

    def setup(self) -> None:
        self.model = nn.Sequential([layer for width in self.hidden_dims for layer in (Linear(width), nn.relu)])

    def __call__(self, inputs: Array) -> Array:
        """The last hidden layer (..., H)."""
        return self.model(inputs)


class Gaussian(nn.Module):
    """Means and log standard deviations of actions."""

    action_dim: int

    def setup(self) -> None:
        self.mu = Linear(self.action_dim)
        self.sigma = Linear(self.action_dim)

    def __call__(self, hidden: Array) -> tuple[Array, Array]:
        """Mean and standard deviation (..., A) for a hidden layer (..., H)."""
        return self.mu(hidden), exp(clamp(self.sigma(hidden), -5.0, 2.0))


class Actor(nn.Module):
    """The policy: a normal distribution, squashed by tanh."""

    hidden_dims: Sequence[int]
    action_dim: int
    max_action: float

    def setup(self) -> None:
        self.backbone = MLP(self.hidden_dims)
        self.dist_net = Gaussian(self.action_dim)

    def __call__(self, observations: Array) -> tuple[Array, Array]:
        """Mean and standard deviation (B, A) before tanh, for observations (B, S)."""
        return self.dist_net(self.backbone(observations))


def sample(actor: Network, observations: Array, noise: Array) -> tuple[Array, Array]:
    """Actions (B, A) and their log-probabilities (B,) for noise (B, A); n of each per state for (B, n, A)."""
    mean, std = actor(observations)
    if noise.ndim == 3:
        mean, std = mean[:, None], std[:, None]
    u = mean + noise * std
    squashed = tanh(u)
    log_prob = (-square(u - mean) / (2.0 * square(std)) - log(std) - LOG_SQRT_2PI).sum(axis=-1)
    log_prob = log_prob - log(actor.module.max_action * (1.0 - square(squashed)) + 1e-6).sum(axis=-1)
    return actor.module.max_action * squashed, log_prob


LOG_SQRT_2PI = math.log(math.sqrt(2.0 * math.pi))


class Critic(nn.Module):
    """Q(s, a)."""

    hidden_dims: Sequence[int]

    def setup(self) -> None:
        self.backbone = MLP(self.hidden_dims)
        self.last = Linear(1)

    def __call__(self, observations: Array, actions: Array) -> Array:
        """The values (B,) of actions (B, A) in observations (B, S), or (B, n) of actions (B, n, A)."""
        if actions.ndim == 3:
            observations = jnp.broadcast_to(observations[:, None], (*actions.shape[:2], observations.shape[-1]))
        inputs = concatenate([observations, actions], axis=-1).reshape(-1, observations.shape[-1] + actions.shape[-1])
        return self.last(self.backbone(inputs)).reshape(actions.shape[:-1])  # two axes are faster


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """An update's draws besides its batch, with n = cql_n_actions and D rows whose values are pushed down."""

    # Standard normal, (B, A): the policy's actions in the current states
    actor: Array
    # Standard normal, (B, A), or (B, n, A) with cql_max_target_backup: the policy's next actions in the target
    target: Array
    # Uniform in [-1, 1), (D, n, A): random actions for the conservative term, in units of the largest action
    random: Array
    # Standard normal, (D, n, A): the policy's actions for the conservative term
    current: Array
    # Standard normal, (D, n, A): the policy's next actions for the conservative term
    next: Array


def shares(hp: Hyperparameters) -> tuple[int, int]:
    """How many rows of a batch come from the dataset, and how many from the model."""
    real = int(hp.batch_size * hp.real_ratio)
    return real, hp.batch_size - real


def pushed_down(hp: Hyperparameters) -> int:
    """How many of a batch's last rows have states whose values are pushed down: all of them, or the model's."""
    return shares(hp)[1] if hp.rho_s == "model" else hp.batch_size


def draw_noise(
    key: Array, step: Array, hp: Hyperparameters, dataset_size: int, synthetic_size: Array, action_dim: int
) -> tuple[Array, Noise]:
    """An update's batch indices (B,) and its noise, which depend on the key and on the update's number alone.

    The dataset's rows come first. The model's are numbered from `dataset_size` on.
    """
    (real, synthetic), one = shares(hp), (hp.batch_size, action_dim)
    many, pushed = (hp.batch_size, hp.cql_n_actions, action_dim), (pushed_down(hp), hp.cql_n_actions, action_dim)
    keys = jax.random.split(jax.random.fold_in(key, step), 7)
    indices = jax.random.randint(keys[0], (real,), 0, dataset_size)
    indices = concatenate([indices, dataset_size + jax.random.randint(keys[1], (synthetic,), 0, synthetic_size)])
    noise = Noise(
        actor=jax.random.normal(keys[2], one),
        target=jax.random.normal(keys[3], many if hp.cql_max_target_backup else one),
        random=jax.random.uniform(keys[4], pushed, minval=-1.0, maxval=1.0),
        current=jax.random.normal(keys[5], pushed),
        next=jax.random.normal(keys[6], pushed),
    )
    return indices, noise


class Starts(NamedTuple):
    """The first states of roll-outs."""

    # (n,), rows of the dataset
    indices: Array


def draw_starts(key: Array, hp: Hyperparameters, dataset_size: int) -> Starts:
    """The first states of a round of roll-outs."""
    return Starts(jax.random.randint(key, (hp.rollout_batch_size,), 0, dataset_size))


class StepDraws(NamedTuple):
    """The random numbers that a step of n roll-outs draws."""

    # Standard normal, (n, A): the policy's actions; uniform in [-1, 1) with uniform_rollout: random ones
    actor: Array
    # The model's own draws
    model: Draws


def draw_step(key: Array, hp: Hyperparameters, rows: int, sizes: ModelSizes) -> StepDraws:
    """The draws for a step of so many roll-outs."""
    actor_key, normals_key, chosen_key = jax.random.split(key, 3)
    shape, uniform = (rows, sizes.action_dim), partial(jax.random.uniform, minval=-1.0, maxval=1.0)
    noise = uniform(actor_key, shape) if hp.uniform_rollout else jax.random.normal(actor_key, shape)
    normals = jax.random.normal(normals_key, (sizes.n_ensemble, rows, sizes.state_dim + 1))
    chosen = jax.random.randint(chosen_key, (rows,), 0, sizes.n_elites)
    return StepDraws(noise, Draws(normals, chosen))


# ---- losses and update ---------------------------------------------------------------------------------------------


def actor_lr(hp: Hyperparameters, updates: Array) -> Array:
    """The policy's learning rate after so many updates: a cosine from `actor_lr` to 0, constant within an epoch."""
    done = updates // hp.num_updates_on_epoch * hp.num_updates_on_epoch
    return hp.actor_lr * (1.0 + cos(math.pi * done / hp.max_timesteps)) / 2.0


def adam(part: str, hp: Hyperparameters) -> optax.GradientTransformation:
    """The optimiser of one part of the state."""
    rates = {"actor": partial(actor_lr, hp), "log_temperature": hp.temperature_lr, "log_alpha_prime": hp.alpha_prime_lr}
    return optax.adam(rates.get(part, hp.critic_lr))


def gradient_step(state: "COMBO", part: str, gradient: Any) -> "COMBO":
    """One step of Adam on one part of the state, down its gradient."""
    change, moments = adam(part, state.hp).update(gradient, getattr(state, f"{part}_optimizer"))
    return state.replace(**{part: optax.apply_updates(getattr(state, part), change), f"{part}_optimizer": moments})


def soft_update(target: Network, source: Network, tau: float) -> Network:
    """Polyak averaging: the target, moved a step of size tau towards the source."""
    return jax.tree.map(lambda old, new: old * (1.0 - tau) + new * tau, target, source)


class COMBO(struct.PyTreeNode):
    """All that an update reads and writes."""

    actor: Network
    critic_1: Network
    critic_2: Network
    critic_1_target: Network
    critic_2_target: Network
    log_temperature: Array
    log_alpha_prime: Array
    actor_optimizer: optax.OptState
    critic_1_optimizer: optax.OptState
    critic_2_optimizer: optax.OptState
    log_temperature_optimizer: optax.OptState
    log_alpha_prime_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)

    def temperature(self) -> Array:
        """The entropy temperature: a constant in every loss except its own."""
        if not self.hp.tune_temperature:
            return jnp.asarray(self.hp.fixed_temperature)
        return exp(self.log_temperature)

    def actor_loss(self, actor: Network, batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """Maximizes the value of the policy's actions under the smaller critic, and their entropy."""
        critic_1, critic_2 = self.critic_1, self.critic_2
        actions, log_prob = sample(actor, batch.observations, noise.actor)
        q = minimum(critic_1(batch.observations, actions), critic_2(batch.observations, actions))
        assert q.shape == log_prob.shape == batch.rewards.shape
        return (self.temperature() * log_prob - q).mean(), {"log_prob": log_prob}

    def alpha_loss(self, log_temperature: Array, log_prob: Array) -> tuple[Array, dict[str, Array]]:
        """Raises the temperature while the policy's entropy is below its target."""
        # As in the reference, a target of 0 means that none is set.
        target_entropy = self.hp.target_entropy or -self.actor.module.action_dim
        return -(log_temperature * (log_prob + target_entropy)).mean(), {}

    def td_target(self, batch: Batch, noise: Noise) -> Array:
        """The regression target of both critics, (B,): the smaller target value of a sampled action, or of the best."""
        hp, actor, critic_1, critic_2 = self.hp, self.actor, self.critic_1_target, self.critic_2_target
        actions, log_prob = sample(actor, batch.next_observations, noise.target)
        q1, q2 = critic_1(batch.next_observations, actions), critic_2(batch.next_observations, actions)
        if hp.cql_max_target_backup:
            next_q = minimum(amax(q1, axis=1), amax(q2, axis=1))
        else:
            next_q = minimum(q1, q2) - self.temperature() * log_prob if hp.backup_entropy else minimum(q1, q2)
        assert next_q.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + hp.discount * (1.0 - batch.terminals) * next_q

    def gap(self, critic: Network, batch: Batch, random: Array, samples: Sequence[tuple[Array, Array]]) -> Array:
        """The mean gap between the soft maximum over sampled actions and the data's value, and the weighted gap."""
        hp, (current, current_log_prob), (next, next_log_prob) = self.hp, *samples
        states, real = batch.observations[-len(random) :], shares(hp)[0]
        q_current = critic(states, current)
        # The next actions are evaluated in the current states.
        q_next = critic(states, next)
        q_random = critic(states, random)
        assert q_current.shape == q_next.shape == q_random.shape == current_log_prob.shape == next_log_prob.shape
        log_density = math.log(0.5 ** random.shape[-1])
        values = q_current - current_log_prob, q_next - next_log_prob, q_random - log_density
        sampled = concatenate(values, axis=1) if hp.cql_joint_logsumexp else stack(values, axis=-1)
        soft_maximum = logsumexp(sampled / hp.cql_temp, axis=-1).mean()
        q = critic(batch.observations[:real], batch.actions[:real])
        return soft_maximum * hp.cql_alpha * hp.cql_temp - q.mean() * hp.cql_alpha

    def penalty(self, gap: Array, alpha_prime: Array) -> Array:
        """The conservative term of a critic's loss."""
        return alpha_prime * (gap - self.hp.cql_target_action_gap) if self.hp.cql_lagrange else gap

    def alpha_prime_loss(self, log_alpha_prime: Array, gap_1: Array, gap_2: Array) -> tuple[Array, dict[str, Array]]:
        """Raises the conservative term's weight while the gaps are above their target."""
        alpha_prime = clamp(exp(log_alpha_prime), 0.0, 1e6)
        loss = -0.5 * (self.penalty(gap_1, alpha_prime) + self.penalty(gap_2, alpha_prime))
        return loss, {"alpha_prime": alpha_prime}

    def critic_loss(self, critics: Sequence[Network], batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """Both critics' squared error to the same target, and their conservative terms."""
        target, pushed = self.td_target(batch, noise), pushed_down(self.hp)
        current = sample(self.actor, batch.observations[-pushed:], noise.current)
        next = sample(self.actor, batch.next_observations[-pushed:], noise.next)
        alpha_prime = clamp(exp(self.log_alpha_prime), 0.0, 1e6)
        losses = []
        metrics: dict[str, Array] = {}
        for number, critic in enumerate(critics, start=1):
            q = critic(batch.observations, batch.actions)
            assert q.shape == target.shape
            gap = self.gap(critic, batch, self.actor.module.max_action * noise.random, (current, next))
            losses.append(square(q - target).mean() + self.penalty(gap, alpha_prime))
            metrics |= {f"critic_{number}_loss": losses[-1], f"cql_gap_{number}": gap}
        return losses[0] + losses[1], metrics

    def update(self, batch: Batch, noise: Noise) -> tuple["COMBO", dict[str, Array]]:
        """One gradient step: the actor; the temperature; the critics, on the new actor and temperature; the targets."""
        state, hp = self, self.hp
        (actor_loss, aux), gradient = value_and_grad(state.actor_loss, has_aux=True)(state.actor, batch, noise)
        state = gradient_step(state, "actor", gradient)
        metrics = {"actor_loss": actor_loss, "entropy": -aux["log_prob"].mean()}
        if hp.tune_temperature:
            (alpha_loss, _), gradient = value_and_grad(state.alpha_loss, has_aux=True)(
                state.log_temperature, aux["log_prob"]
            )
            state = gradient_step(state, "log_temperature", gradient)
            metrics |= {"alpha_loss": alpha_loss, "alpha": state.temperature()}
        critics = state.critic_1, state.critic_2
        (_, critic_metrics), gradients = value_and_grad(state.critic_loss, has_aux=True)(critics, batch, noise)
        metrics |= critic_metrics
        if hp.cql_lagrange:
            gaps = metrics["cql_gap_1"], metrics["cql_gap_2"]
            (loss, own), gradient = value_and_grad(state.alpha_prime_loss, has_aux=True)(state.log_alpha_prime, *gaps)
            state = gradient_step(state, "log_alpha_prime", gradient)
            metrics |= {"alpha_prime_loss": loss, **own}
        state = gradient_step(state, "critic_1", gradients[0])
        state = gradient_step(state, "critic_2", gradients[1])
        state = state.replace(
            critic_1_target=soft_update(state.critic_1_target, state.critic_1, hp.tau),
            critic_2_target=soft_update(state.critic_2_target, state.critic_2, hp.tau),
        )
        return state, metrics

    def roll_out(self, model: Any, observations: Array, draw: Callable[[Array], StepDraws]) -> tuple[Batch, Array]:
        """The transitions (h, n, ...) of roll-outs from states (n, S), and which of them count, (h, n).

        All roll-outs continue to the end, so that shapes are fixed. Transitions after a roll-out's end do not count.

        Args:
            model: Has `step`, as the `Model` of `corl_jax/model_based/dynamics.py`.
            observations: The first states.
            draw: From a step's number to the draws of all roll-outs.
        """
        hp = self.hp

        def go_on(standing: tuple[Array, Array], number: Array) -> tuple[tuple[Array, Array], tuple[Batch, Array]]:
            observations, alive = standing
            draws = draw(number)
            if hp.uniform_rollout:
                actions = (self.actor.module.max_action * draws.actor).astype(observations.dtype)
            else:
                actions, _ = sample(self.actor, observations, draws.actor)
            step = model.step(observations, actions, draws.model, 0.0, "aleatoric")
            terminals = step.terminals.astype(step.rewards.dtype)
            batch = Batch(observations, actions, step.rewards, step.next_observations, terminals)
            return (step.next_observations, alive & ~step.terminals), (batch, alive)

        _, found = scan(go_on, (observations, jnp.ones(len(observations), bool)), jnp.arange(hp.rollout_length))
        return found


@jax.jit
def act(actor: Network, observations: Array) -> Array:
    """The policy's most likely actions (E, A) for observations (E, S)."""
    mean, _ = actor(observations)
    return actor.module.max_action * tanh(mean)


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="sizes", donate_argnames="ring")
def imagine(
    state: COMBO, model: Any, dataset: PackedDataset, ring: Ring, key: Array, step: Array, sizes: ModelSizes
) -> tuple[Ring, dict[str, Array]]:
    """Rolls the model out from states of the dataset and stores the transitions; returns the metrics.

    What is drawn depends on the key, on the number of updates before and on a step's number alone.
    """
    hp, (start_key, steps_key) = state.hp, jax.random.split(jax.random.fold_in(key, step))

    def draw(number: Array) -> StepDraws:
        return draw_step(jax.random.fold_in(steps_key, number), hp, hp.rollout_batch_size, sizes)

    starts = draw_starts(start_key, hp, len(dataset)).indices
    found, kept = state.roll_out(model, take(dataset, starts).observations, draw)
    ring = push_kept(ring, found, kept)
    size = jnp.maximum(abs(found.next_observations).max(axis=-1), abs(found.rewards))
    number = kept.sum().astype(found.rewards.dtype)
    reward = where(kept, found.rewards, 0.0).sum() / number
    largest = where(kept, size, 0.0).max()
    return ring, {"rollout_transitions": number, "rollout_reward": reward, "rollout_largest": largest}


@partial(jax.jit, static_argnames="num_updates", donate_argnames="state")
def train_interval(
    state: COMBO, key: Array, dataset: Sources, start: Array, num_updates: int
) -> tuple[COMBO, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates`, with no roll-outs between them, as one scan."""
    hp, sizes = state.hp, (len(dataset.rows), dataset.ring.size, state.actor.module.action_dim)

    def draw(step: Array) -> tuple[Array, Noise]:
        return draw_noise(key, step, hp, *sizes)

    def update(state: COMBO, drawn: tuple[Array, Noise], place: int) -> tuple[COMBO, dict[str, Array]]:
        indices, noise = drawn
        return state.update(take_both(dataset.rows, dataset.ring, indices, shares(hp)[0]), noise)

    return scan_updates(update, draw, state, start, num_updates)


def create_train_state(key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> COMBO:
    """Fresh networks with PyTorch's initialisation."""
    hp, observations, actions = narrow(config, Hyperparameters), jnp.zeros((1, state_dim)), jnp.zeros((1, action_dim))
    actor_key, critic_1_key, critic_2_key = jax.random.split(key, 3)
    critic = Critic(config.hidden_dims)
    parts: dict[str, Any] = {
        "actor": Network.create(Actor(config.hidden_dims, action_dim, max_action), actor_key, observations),
        "critic_1": Network.create(critic, critic_1_key, observations, actions),
        "critic_2": Network.create(critic, critic_2_key, observations, actions),
        "log_temperature": jnp.asarray(0.0, dtype=float),
        "log_alpha_prime": jnp.asarray(0.0, dtype=float),
    }
    # A donated state must not contain an array twice, so the targets are copies.
    targets = {f"{name}_target": jax.tree.map(jnp.copy, parts[name]) for name in ("critic_1", "critic_2")}
    moments = {f"{name}_optimizer": adam(name, hp).init(part) for name, part in parts.items()}
    return COMBO(**parts, **targets, **moments, hp=hp)


def train(config: TrainConfig) -> Run:
    """Trains, evaluates every `eval_freq` updates and fills the run's folder; without a model, trains one first.

    Raises:
        InputError: The dataset, the environment, the model or the checkpoint cannot be used.
        RunError: The model's roll-outs or a loss diverge.
    """
    check(config)
    check_shares(config.real_ratio, shares(config)[0], pushed_down(config))
    task, learnt = load_model_based_task(config, "jax")
    device = resolve_device(config.device)
    enable_compilation_cache()
    with jax.default_device(device):
        weights_key, draws_key, model_key = jax.random.split(jax.random.key(config.seed), 3)
        state = create_train_state(weights_key, config, task.state_dim, task.action_dim, task.max_action)
        run = Run(config, task, "model_based/combo", "jax", device)
        dataset = to_device(task.dataset)
        capacity = config.rollout_batch_size * config.rollout_length * config.model_retain_epochs
        rings = [Ring.create(dataset, capacity, keeps_dataset=False)]
        load = partial(load_checkpoint, algorithm="model_based/combo", state=state)
        state, total_it = restore(
            run, load, state, lambda path, content: rings.append(rings[0].refilled(path, content))
        )
        ring = rings.pop()
        rings.clear()
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, act, state.actor)
            history = History(run)
            for start, end in pieces(run.calls(cost=5), config.rollout_freq):
                if start % config.rollout_freq == 0:
                    ring, rolled = imagine(state, learnt.model, dataset, ring, model_key, start, learnt.sizes)
                    history.add(0, [rolled])
                given = draws_key, Sources(dataset, ring), start, end - start
                state, found = train_together(train_interval, state, *given, own=["ring"])
                history.add(end - start, found)
                write = partial(save_checkpoint, algorithm="model_based/combo", state=state, total_it=total_it + end)
                if run.is_due(end):
                    metrics = history.means()
                    check_roll_outs(end, metrics)
                    run.log(end, metrics)
                    run.save(end, partial(write, synthetic=ring.content()))
                    evaluate(run, end, act, state.actor)
                elif run.stopping:
                    run.save(end, partial(write, synthetic=ring.content(), history=history.content()))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "model_based/combo")
