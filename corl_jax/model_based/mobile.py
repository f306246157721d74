"""MOBILE in JAX: soft actor-critic on a learnt model's roll-outs, penalised where its members' values disagree.

Its twin is `corl_torch/model_based/mobile.py`. The model is from `corl_jax/model_based/dynamics.py`.

Sun et al., Model-Bellman Inconsistency Penalized Offline Policy Optimization, 2023,
https://proceedings.mlr.press/v202/sun23q.html
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
from jax.numpy import amax, amin, concatenate, cos, exp, log, sqrt, square, stack, std, tanh, tile, where, zeros_like

from shared.data.dynamics import Draws, ModelSizes
from shared.data.transitions import Batch
from shared.errors import InputError
from shared.frameworks.jax_calls import History
from shared.frameworks.jax_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, take, to_device
from shared.frameworks.jax_layers import Linear, Network, clamp
from shared.frameworks.jax_ring import Ring, push_kept, take_both
from shared.frameworks.jax_scan import scan_updates
from shared.frameworks.jax_seeds import train_together
from shared.frameworks.jax_side import enable_compilation_cache, evaluate, narrow, resolve_device
from shared.frameworks.learnt_model import check_roll_outs, load_model_based_task, pieces
from shared.runs.fields import bounded, positive, unbounded, widths
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
    max_timesteps: int = bounded(3_000_000, low=1)
    # Updates in an epoch, in which the policy's learning rate is constant
    num_updates_on_epoch: int = bounded(1000, low=1)
    # Transitions in a batch
    batch_size: int = bounded(256, low=1)
    # Share of a batch that comes from the dataset; the rest comes from the model
    real_ratio: float = bounded(0.05, low=0, high=1)
    # States of the dataset that each round of roll-outs starts from
    rollout_batch_size: int = bounded(50_000, low=1)
    # Steps of a roll-out
    rollout_length: int = bounded(5, low=1)
    # Weight of the penalty in the targets of the model's transitions; 0: none
    penalty_coef: float = bounded(1.0, low=0)
    # Next states that are drawn from each elite for the penalty
    n_state_samples: int = bounded(10, low=1)
    # Next actions from which each target critic takes the best one; 1: the policy's action
    n_target_actions: int = bounded(1, low=1)
    # Add the next action's entropy to targets; with several next actions, none is added
    backup_entropy: bool = False
    # Raise targets below 0 to 0, as the authors' code does; for rewards below 0, set it to false
    nonnegative_targets: bool = True


@dataclass(frozen=True)
class TrainConfig(ModelledConfig, Hyperparameters, EpochsConfig, ImitationConfig):
    """The settings of a whole run."""

    group: str = "MOBILE-D4RL"
    name: str = "MOBILE"
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
    hidden_dims: tuple[int, ...] = widths(256, 256)
    # Critics, whose smallest value counts
    n_critics: int = bounded(2, low=1)
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
    """Actions (B, A) and their log-probabilities (B,) for noise (B, A)."""
    mean, std = actor(observations)
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

    def __call__(self, inputs: Array) -> Array:
        """The values (...) of states and actions (..., S + A)."""
        return self.last(self.backbone(inputs)).squeeze(-1)


class Critics(nn.Module):
    """N critics Q(s, a) with separate weights."""

    hidden_dims: Sequence[int]
    n_critics: int

    def setup(self) -> None:
        self.members = [Critic(self.hidden_dims) for _ in range(self.n_critics)]

    def __call__(self, observations: Array, actions: Array) -> Array:
        """The values (N, ...) of actions (..., A) in observations (..., S)."""
        inputs = concatenate([observations, actions], axis=-1)
        return stack([member(inputs) for member in self.members])


def smallest(q: Array) -> Array:
    """The smallest (...) of the critics' values (N, ...)."""
    return amin(q, axis=0)


def repeat(observations: Array, n: int) -> Array:
    """The observations (B, S), each repeated n times: (B, n, S)."""
    return tile(observations[:, None], (1, n, 1))


# ---- batches -------------------------------------------------------------------------------------------------------


class ModelledBatch(NamedTuple):
    """B transitions, the dataset's first, and the K elites' predictions for the model's M transitions."""

    observations: Array
    actions: Array
    rewards: Array
    next_observations: Array
    terminals: Array
    # (K, M, S): the means of the next states that the elites predict for the last M rows
    means: Array
    # (K, M, S): their standard deviations
    stds: Array


class Sources(NamedTuple):
    """The sources of a batch."""

    # The dataset
    rows: PackedDataset
    # The model's transitions
    ring: Ring
    # Has `dynamics`, `elites`, `mean` and `std`, as the `Model` of `corl_jax/model_based/dynamics.py`
    model: Any


def elite_predictions(model: Any, observations: Array, actions: Array) -> tuple[Array, Array]:
    """The elites' means and standard deviations (K, M, S) of the states after actions (M, A) in states (M, S)."""
    inputs = (concatenate([observations, actions], axis=-1) - model.mean) / model.std
    mean, log_var = model.dynamics(inputs)
    # The last number is the reward. The others are changes of the state.
    return mean[model.elites, :, :-1] + observations, sqrt(exp(log_var[model.elites, :, :-1]))


def take_modelled(sources: Sources, indices: Array, real: int) -> ModelledBatch:
    """A batch: the first `real` of the indices (B,) are rows of the dataset, the others of the model's transitions."""
    rows = take_both(sources.rows, sources.ring, indices, real)
    predictions = elite_predictions(sources.model, rows.observations[real:], rows.actions[real:])
    return ModelledBatch(*(*rows, *predictions))


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch; M of its B rows come from the model."""

    # Standard normal, (n, K, M, S): the elites' next states in the penalty
    states: Array
    # Standard normal, (n, K, M, A): the policy's actions in these states
    penalty: Array
    # Standard normal, (B, m, A): the policy's next actions in the target
    target: Array
    # Standard normal, (B, A): the policy's actions in the current states
    actor: Array


def shares(hp: Hyperparameters) -> tuple[int, int]:
    """How many rows of a batch come from the dataset, and how many from the model."""
    real = int(hp.batch_size * hp.real_ratio)
    return real, hp.batch_size - real


def draw_noise(
    key: Array,
    step: Array,
    hp: Hyperparameters,
    dataset_size: int,
    synthetic_size: Array,
    n_elites: int,
    state_dim: int,
    action_dim: int,
) -> tuple[Array, Noise]:
    """An update's batch indices (B,) and its noise, which depend on the key and on the update's number alone.

    The dataset's rows come first. The model's are numbered from `dataset_size` on.
    """
    real, synthetic = shares(hp)
    keys = jax.random.split(jax.random.fold_in(key, step), 6)
    indices = jax.random.randint(keys[0], (real,), 0, dataset_size)
    indices = concatenate([indices, dataset_size + jax.random.randint(keys[1], (synthetic,), 0, synthetic_size)])
    penalised = hp.n_state_samples, n_elites, synthetic
    noise = Noise(
        states=jax.random.normal(keys[2], (*penalised, state_dim)),
        penalty=jax.random.normal(keys[3], (*penalised, action_dim)),
        target=jax.random.normal(keys[4], (hp.batch_size, hp.n_target_actions, action_dim)),
        actor=jax.random.normal(keys[5], (hp.batch_size, action_dim)),
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

    # Standard normal, (n, A): the policy's actions
    actor: Array
    # The model's own draws
    model: Draws


def draw_step(key: Array, hp: Hyperparameters, rows: int, sizes: ModelSizes) -> StepDraws:
    """The draws for a step of so many roll-outs."""
    actor_key, normals_key, chosen_key = jax.random.split(key, 3)
    noise = jax.random.normal(actor_key, (rows, sizes.action_dim))
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
    rates = {"actor": partial(actor_lr, hp), "critic": hp.critic_lr}
    return optax.adam(rates.get(part, hp.temperature_lr))


def gradient_step(state: "MOBILE", part: str, gradient: Any) -> "MOBILE":
    """One step of Adam on one part of the state, down its gradient."""
    change, moments = adam(part, state.hp).update(gradient, getattr(state, f"{part}_optimizer"))
    return state.replace(**{part: optax.apply_updates(getattr(state, part), change), f"{part}_optimizer": moments})


def soft_update(target: Network, source: Network, tau: float) -> Network:
    """Polyak averaging: the target, moved a step of size tau towards the source."""
    return jax.tree.map(lambda old, new: old * (1.0 - tau) + new * tau, target, source)


class MOBILE(struct.PyTreeNode):
    """All that an update reads and writes."""

    actor: Network
    critic: Network
    critic_target: Network
    log_temperature: Array
    actor_optimizer: optax.OptState
    critic_optimizer: optax.OptState
    log_temperature_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)

    def temperature(self) -> Array:
        """The entropy temperature, 1 at most: a constant in every loss except its own."""
        if not self.hp.tune_temperature:
            return jnp.asarray(self.hp.fixed_temperature)
        return clamp(exp(self.log_temperature), 0.0, 1.0)

    def penalties(self, batch: ModelledBatch, noise: Noise) -> Array:
        """How much the elites disagree on the value of each row's next state, (B,); 0 for the dataset's rows.

        Each elite's value is a mean over n of its next states. The penalty is the deviation of these K means.
        """
        actor, critic = self.actor, self.critic_target
        next_states = batch.means + batch.stds * noise.states
        actions, _ = sample(actor, next_states, noise.penalty)
        values = smallest(critic(next_states, actions)).mean(axis=0)
        assert values.shape == batch.means.shape[:-1]
        disagreement = std(values, axis=0, ddof=1)
        real = batch.rewards[: len(batch.rewards) - len(disagreement)]
        return concatenate([zeros_like(real), disagreement])

    def td_target(self, batch: ModelledBatch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """The regression target of all critics, (B,): the penalised reward plus the next action's value."""
        hp, actor, critic = self.hp, self.actor, self.critic_target
        next_observations = repeat(batch.next_observations, hp.n_target_actions)
        actions, log_prob = sample(actor, next_observations, noise.target)
        next_q = smallest(amax(critic(next_observations, actions), axis=-1))
        if hp.backup_entropy and hp.n_target_actions == 1:
            next_q = next_q - self.temperature() * log_prob.squeeze(-1)
        penalties = self.penalties(batch, noise)
        assert next_q.shape == penalties.shape == batch.rewards.shape == batch.terminals.shape
        rewards = batch.rewards - hp.penalty_coef * penalties
        target = rewards + hp.discount * (1.0 - batch.terminals) * next_q
        metrics = {"penalty": penalties.mean()}
        if hp.nonnegative_targets:
            metrics["raised_targets"] = (target < 0.0).astype(target.dtype).mean()
            target = jnp.maximum(target, 0.0)
        return target, metrics

    def critic_loss(self, critic: Network, batch: ModelledBatch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """The mean squared error of all critics to the same target."""
        target, metrics = self.td_target(batch, noise)
        q = critic(batch.observations, batch.actions)
        assert q.shape[1:] == target.shape
        return square(q - target).mean(), metrics

    def actor_loss(self, actor: Network, batch: ModelledBatch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """Maximizes the value of the policy's actions under the smallest critic, and their entropy."""
        critic = self.critic
        actions, log_prob = sample(actor, batch.observations, noise.actor)
        q = smallest(critic(batch.observations, actions))
        assert q.shape == log_prob.shape == batch.rewards.shape
        return -q.mean() + self.temperature() * log_prob.mean(), {"log_prob": log_prob}

    def alpha_loss(self, log_temperature: Array, log_prob: Array) -> tuple[Array, dict[str, Array]]:
        """Raises the temperature while the policy's entropy is below its target."""
        # As in the reference, a target of 0 means that none is set.
        target_entropy = self.hp.target_entropy or -self.actor.module.action_dim
        return -(log_temperature * (log_prob + target_entropy)).mean(), {}

    def update(self, batch: ModelledBatch, noise: Noise) -> tuple["MOBILE", dict[str, Array]]:
        """One gradient step: the critics; the actor, on the new critics; the temperature; the targets."""
        state, hp = self, self.hp
        (critic_loss, metrics), gradient = value_and_grad(state.critic_loss, has_aux=True)(state.critic, batch, noise)
        state = gradient_step(state, "critic", gradient)
        (actor_loss, aux), gradient = value_and_grad(state.actor_loss, has_aux=True)(state.actor, batch, noise)
        state = gradient_step(state, "actor", gradient)
        metrics |= {"critic_loss": critic_loss, "actor_loss": actor_loss, "entropy": -aux["log_prob"].mean()}
        if hp.tune_temperature:
            (alpha_loss, _), gradient = value_and_grad(state.alpha_loss, has_aux=True)(
                state.log_temperature, aux["log_prob"]
            )
            state = gradient_step(state, "log_temperature", gradient)
            metrics |= {"alpha_loss": alpha_loss, "alpha": state.temperature()}
        return state.replace(critic_target=soft_update(state.critic_target, state.critic, hp.tau)), metrics

    def roll_out(self, model: Any, observations: Array, draw: Callable[[Array], StepDraws]) -> tuple[Batch, Array]:
        """The transitions (h, n, ...) of roll-outs from states (n, S), and which of them count, (h, n).

        All roll-outs continue to the end, so that shapes are fixed. Transitions after a roll-out's end do not count.
        Rewards are the model's own, because the penalty is computed anew in each update.

        Args:
            model: Has `step`, as the `Model` of `corl_jax/model_based/dynamics.py`.
            observations: The first states.
            draw: From a step's number to the draws of all roll-outs.
        """
        hp = self.hp

        def go_on(standing: tuple[Array, Array], number: Array) -> tuple[tuple[Array, Array], tuple[Batch, Array]]:
            observations, alive = standing
            draws = draw(number)
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

# Updates whose noise is drawn at once and kept in memory: at the default sizes, an update has 180,000 numbers in Hopper
CHUNK = 10


@partial(jax.jit, static_argnames="sizes", donate_argnames="ring")
def imagine(
    state: MOBILE, model: Any, dataset: PackedDataset, ring: Ring, key: Array, step: Array, sizes: ModelSizes
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
    state: MOBILE, key: Array, dataset: Sources, start: Array, num_updates: int
) -> tuple[MOBILE, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates`, with no roll-outs between them, as one scan."""
    hp, model, action_dim = state.hp, dataset.model, state.actor.module.action_dim
    sizes = len(dataset.rows), dataset.ring.size, len(model.elites), len(model.mean) - action_dim, action_dim

    def draw(step: Array) -> tuple[Array, Noise]:
        return draw_noise(key, step, hp, *sizes)

    def update(state: MOBILE, drawn: tuple[Array, Noise], place: int) -> tuple[MOBILE, dict[str, Array]]:
        indices, noise = drawn
        return state.update(take_modelled(dataset, indices, shares(hp)[0]), noise)

    return scan_updates(update, draw, state, start, num_updates, chunk=CHUNK)


def create_train_state(key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> MOBILE:
    """Fresh networks with PyTorch's initialisation."""
    hp, observations, actions = narrow(config, Hyperparameters), jnp.zeros((1, state_dim)), jnp.zeros((1, action_dim))
    actor_key, critic_key = jax.random.split(key)
    critic = Network.create(Critics(config.hidden_dims, config.n_critics), critic_key, observations, actions)
    parts: dict[str, Any] = {
        "actor": Network.create(Actor(config.hidden_dims, action_dim, max_action), actor_key, observations),
        "critic": critic,
        "log_temperature": jnp.asarray(0.0, dtype=float),
    }
    moments = {f"{name}_optimizer": adam(name, hp).init(part) for name, part in parts.items()}
    # A donated state must not contain an array twice, so the target is a copy.
    return MOBILE(**parts, critic_target=jax.tree.map(jnp.copy, critic), **moments, hp=hp)


def train(config: TrainConfig) -> Run:
    """Trains, evaluates every `eval_freq` updates and fills the run's folder; without a model, trains one first.

    Raises:
        InputError: The dataset, the environment, the model or the checkpoint cannot be used.
        RunError: The model's roll-outs or a loss diverge.
    """
    task, learnt = load_model_based_task(config, "jax")
    if learnt.sizes.n_elites < 2:
        raise InputError("the penalty compares elites, and the model has only one: learn one with more n_elites")
    device = resolve_device(config.device)
    enable_compilation_cache()
    with jax.default_device(device):
        weights_key, draws_key, model_key = jax.random.split(jax.random.key(config.seed), 3)
        state = create_train_state(weights_key, config, task.state_dim, task.action_dim, task.max_action)
        run = Run(config, task, "model_based/mobile", "jax", device)
        dataset = to_device(task.dataset)
        capacity = config.rollout_batch_size * config.rollout_length * config.model_retain_epochs
        rings = [Ring.create(dataset, capacity, keeps_dataset=False)]
        load = partial(load_checkpoint, algorithm="model_based/mobile", state=state)
        state, total_it = restore(
            run, load, state, lambda path, content: rings.append(rings[0].refilled(path, content))
        )
        ring = rings.pop()
        rings.clear()
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, act, state.actor)
            history = History(run)
            for start, end in pieces(run.calls(), config.rollout_freq):
                if start % config.rollout_freq == 0:
                    ring, rolled = imagine(state, learnt.model, dataset, ring, model_key, start, learnt.sizes)
                    history.add(0, [rolled])
                given = draws_key, Sources(dataset, ring, learnt.model), start, end - start
                state, found = train_together(train_interval, state, *given, own=["ring", "model"])
                history.add(end - start, found)
                write = partial(save_checkpoint, algorithm="model_based/mobile", state=state, total_it=total_it + end)
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
    cli(train, TrainConfig, "model_based/mobile")
