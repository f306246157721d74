"""HIQL in JAX: one policy names the code of a subgoal on the way to the goal, and another one goes there.

Its twin is `corl_torch/goal_conditioned/hiql.py`.

Park et al., HIQL: Offline Goal-Conditioned RL with Latent States as Actions, 2023, https://arxiv.org/abs/2307.11949, in
the form of OGBench's code, 2024, https://arxiv.org/abs/2410.20092.
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
from jax.numpy import amin, broadcast_to, concatenate, exp, log, minimum, sqrt, square, stack, where
from jax.typing import ArrayLike

from shared.data.goals import HierarchicalBatch, later_rows
from shared.frameworks.jax_calls import History
from shared.frameworks.jax_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, to_device
from shared.frameworks.jax_goals import draw_goals, draw_later, last_rows, take_hierarchy
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
    iql_tau: float = bounded(0.7, low=0, high=1)
    # Inverse temperature of the low policy: how steeply an action's weight grows with its advantage
    low_inverse_temperature: float = bounded(3.0, low=0)
    # Inverse temperature of the high policy: how steeply a subgoal's weight grows with its advantage
    high_inverse_temperature: float = bounded(3.0, low=0)
    # Steps from a state to its subgoal
    subgoal_steps: int = bounded(25, low=1)
    # Whether the codes of subgoals are also learnt by the low policy, rather than by the values alone
    low_actor_rep_grad: bool = False
    # No effect, as in the authors' code, but the three shares of the policy's goals sum to 1
    actor_p_curgoal: float = bounded(0.0, low=0, high=1)
    # No effect, as in the authors' code: later states are all goals of the high policy that are not any states
    actor_p_trajgoal: float = bounded(1.0, low=0, high=1)
    # Share of the high policy's goals that are any states of the dataset
    actor_p_randomgoal: float = bounded(0.0, low=0, high=1)
    # Transitions in a batch
    batch_size: int = bounded(1024, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, GoalConfig):
    """The settings of a whole run."""

    group: str = "HIQL-OGBench"
    name: str = "HIQL"
    # Widths of both policies' hidden layers
    actor_hidden_dims: tuple[int, ...] = widths(512, 512, 512)
    # Widths of the hidden layers of the values and of the network that makes codes
    value_hidden_dims: tuple[int, ...] = widths(512, 512, 512)
    # LayerNorm after these hidden layers
    value_ln: bool = True
    # Numbers in a code
    rep_dim: int = bounded(10, low=1)
    # Use a standard deviation of 1 for actions and subgoals instead of learnt ones
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


def to_length(codes: Array) -> Array:
    """Codes (..., D) as vectors of the same direction and of the length sqrt(D)."""
    return math.sqrt(codes.shape[-1]) * codes / sqrt(square(codes).sum(axis=-1))[..., None]


class Actor(nn.Module):
    """One level of the policy: a normal distribution whose mean has no bounds, with one deviation for all states."""

    action_dim: int
    max_action: float
    hidden_dims: Sequence[int]
    const_std: bool

    def setup(self) -> None:
        self.net = mlp(self.hidden_dims, False, self.action_dim, gain=0.1)
        if not self.const_std:
            self.log_std = self.param("log_std", zeros, (self.action_dim,), float)

    def __call__(self, observations: Array, goals: Array) -> tuple[Array, Array]:
        """Mean and standard deviation of actions or of codes, for observations (B, S) and what is to be reached."""
        mean = self.net(concatenate([observations, goals], axis=-1))
        if self.const_std:
            return mean, jnp.ones_like(mean)
        return mean, broadcast_to(exp(clamp(self.log_std, -5.0, 2.0)), mean.shape)


class Representation(nn.Module):
    """The code of a goal as it is seen from a state, of the length sqrt(D)."""

    rep_dim: int
    hidden_dims: Sequence[int]
    layer_norm: bool

    def setup(self) -> None:
        self.net = mlp(self.hidden_dims, self.layer_norm, self.rep_dim)

    def __call__(self, observations: Array, goals: Array) -> Array:
        """The codes (B, D) of goals (B, S) for observations (B, S)."""
        return to_length(self.net(concatenate([observations, goals], axis=-1)))


class Value(nn.Module):
    """Two values with separate weights: (B, S) and (B, D) to (2, B)."""

    hidden_dims: Sequence[int]
    layer_norm: bool

    def setup(self) -> None:
        sizes = (self.hidden_dims, self.layer_norm, 1)
        self.v1 = mlp(*sizes)
        self.v2 = mlp(*sizes)

    def __call__(self, observations: Array, codes: Array) -> Array:
        """The values (2, B) of observations (B, S) for the codes (B, D) of goals."""
        inputs = concatenate([observations, codes], axis=-1)
        return stack([self.v1(inputs), self.v2(inputs)]).squeeze(-1)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its rows: none."""


def draw_noise(key: Array, step: Array, hp: Hyperparameters, last: ArrayLike) -> tuple[Array, Noise]:
    """An update's rows (5, B), which depend on the key and on the update's number alone.

    Args:
        key: The run's key for draws.
        step: The update's number, from 0.
        hp: Contains the sizes and the kinds of goals.
        last: (N,), the last row of each row's trajectory.

    Returns:
        The rows of the states, of the value goals, of the low goals, of the high goals and of their targets; no noise.
    """
    last, size = jnp.asarray(last), (hp.batch_size,)
    index_key, value_key, later_key, anywhere_key, choice_key = jax.random.split(jax.random.fold_in(key, step), 5)
    rows = jax.random.randint(index_key, size, 0, len(last))
    value_goals = draw_goals(value_key, rows, last, hp.value_goals, hp.discount)
    low_goals = minimum(rows + hp.subgoal_steps, last[rows])
    geometric = hp.actor_geom_sample
    later = later_rows(rows, last[rows], draw_later(later_key, len(rows), geometric, hp.discount), geometric, jnp)
    anywhere = jax.random.randint(anywhere_key, size, 0, len(last))
    is_random = jax.random.uniform(choice_key, size) < hp.actor_p_randomgoal
    high_goals = where(is_random, anywhere, later)
    high_targets = where(is_random, low_goals, minimum(low_goals, later))
    return stack([rows, value_goals, low_goals, high_goals, high_targets]), Noise()


# ---- losses and update ---------------------------------------------------------------------------------------------

# The largest weight of an action or of a subgoal in a policy's loss
MAX_WEIGHT = 100.0
LOG_SQRT_2PI = math.log(math.sqrt(2.0 * math.pi))
# The networks that are learnt
LEARNING = ("value", "representation", "low_actor", "high_actor")


def adam(hp: Hyperparameters) -> optax.GradientTransformation:
    """The optimiser of each part of the state."""
    return optax.adam(hp.learning_rate)


def gradient_step(state: "HIQL", part: str, gradient: Network) -> "HIQL":
    """One step of Adam on one part of the state, down its gradient."""
    change, moments = adam(state.hp).update(gradient, getattr(state, f"{part}_optimizer"))
    return state.replace(**{part: optax.apply_updates(getattr(state, part), change), f"{part}_optimizer": moments})


def soft_update(target: Network, source: Network, tau: float) -> Network:
    """Polyak averaging: the target, moved a step of size tau towards the source."""
    return jax.tree.map(lambda old, new: (1.0 - tau) * old + tau * new, target, source)


def weighted_cloning(
    policy: tuple[Array, Array], actions: Array, adv: Array, inverse_temperature: float
) -> tuple[Array, Array]:
    """The negative mean of weighted log-probabilities, and the mean of the unweighted ones.

    Args:
        policy: Means and standard deviations, both (B, A).
        actions: (B, A), actions of the data, or codes of subgoals.
        adv: (B,), the advantages, whose exponentials are the weights.
        inverse_temperature: How steeply weights grow.
    """
    mean, std = policy
    assert mean.shape == actions.shape
    log_prob = (-square((actions - mean) / std) / 2.0 - log(std) - LOG_SQRT_2PI).sum(axis=-1)
    weight = clamp(exp(inverse_temperature * adv), 0.0, MAX_WEIGHT)
    assert weight.shape == log_prob.shape
    return -(weight * log_prob).mean(), log_prob.mean()


class HIQL(struct.PyTreeNode):
    """All that an update reads and writes."""

    value: Network
    representation: Network
    low_actor: Network
    high_actor: Network
    value_target: Network
    value_optimizer: optax.OptState
    representation_optimizer: optax.OptState
    low_actor_optimizer: optax.OptState
    high_actor_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)

    def td_targets(self, batch: HierarchicalBatch) -> tuple[Array, Array]:
        """The regression targets of both values, (2, B), and the advantage of the data's step, (B,).

        Each value has its own target value in its target. The advantage uses the smaller one, and target values alone.
        The codes have no target network.
        """
        hp, value, code = self.hp, self.value_target, self.representation
        next_v = value(batch.next_observations, code(batch.next_observations, batch.value_goals))
        assert next_v.shape == (2, *batch.rewards.shape)
        adv = batch.rewards + hp.discount * batch.masks * amin(next_v, axis=0)
        adv = adv - value(batch.observations, code(batch.observations, batch.value_goals)).mean(axis=0)
        return batch.rewards + hp.discount * batch.masks * next_v, adv

    def expectile_weight(self, adv: Array) -> Array:
        """The weight of each advantage (B,) in the values' loss: `iql_tau` if it is at least 0, else 1 - `iql_tau`."""
        return where(adv >= 0.0, self.hp.iql_tau, 1.0 - self.hp.iql_tau)

    def value_loss(self, networks: Sequence[Network], batch: HierarchicalBatch) -> tuple[Array, dict[str, Array]]:
        """Expectile regression of both values, summed over them, from which the codes are learnt too."""
        value, representation = networks
        targets, adv = self.td_targets(batch)
        v = value(batch.observations, representation(batch.observations, batch.value_goals))
        assert v.shape == targets.shape == (2, *adv.shape)
        loss = (self.expectile_weight(adv) * square(targets - v)).mean(axis=1).sum()
        return loss, {"v": v.mean()}

    def advantage(self, later: Array, observations: Array, goals: Array) -> Array:
        """How much nearer to goals (B, S) the states `later` (B, S) are than observations (B, S): a difference (B,)."""
        value, code = self.value, self.representation
        later_v = value(later, code(later, goals)).mean(axis=0)
        return later_v - value(observations, code(observations, goals)).mean(axis=0)

    def low_actor_loss(self, networks: Sequence[Network], batch: HierarchicalBatch) -> tuple[Array, dict[str, Array]]:
        """Behaviour cloning for the codes of near subgoals, weighted by how much nearer a step brings them."""
        hp = self.hp
        low_actor, representation = networks
        adv = self.advantage(batch.next_observations, batch.observations, batch.low_goals)
        codes = representation(batch.observations, batch.low_goals)
        if not hp.low_actor_rep_grad:
            codes = stop_gradient(codes)
        policy = low_actor(batch.observations, codes)
        loss, log_prob = weighted_cloning(policy, batch.actions, adv, hp.low_inverse_temperature)
        return loss, {"low_adv": adv.mean(), "low_bc_log_prob": log_prob}

    def subgoals(self, batch: HierarchicalBatch) -> Array:
        """The codes (B, D) of the subgoals that the high policy imitates, as they are seen from the observations."""
        return self.representation(batch.observations, batch.high_targets)

    def high_actor_loss(self, high_actor: Network, batch: HierarchicalBatch) -> tuple[Array, dict[str, Array]]:
        """Cloning of the data's subgoals, weighted by how much nearer to the goal they are."""
        hp = self.hp
        adv = self.advantage(batch.high_targets, batch.observations, batch.high_goals)
        policy = high_actor(batch.observations, batch.high_goals)
        loss, log_prob = weighted_cloning(policy, self.subgoals(batch), adv, hp.high_inverse_temperature)
        return loss, {"high_adv": adv.mean(), "high_bc_log_prob": log_prob}

    def update(self, batch: HierarchicalBatch, noise: Noise) -> tuple["HIQL", dict[str, Array]]:
        """One gradient step of each network, and one step of the target values, all from the old weights."""
        state, code = self, self.representation
        (value_loss, of_value), (by_value, by_code) = value_and_grad(self.value_loss, has_aux=True)(
            (self.value, code), batch
        )
        (low_actor_loss, of_low), (by_low, also_by_code) = value_and_grad(self.low_actor_loss, has_aux=True)(
            (self.low_actor, code), batch
        )
        (high_actor_loss, of_high), by_high = value_and_grad(self.high_actor_loss, has_aux=True)(self.high_actor, batch)
        # The codes may be learnt from two of the losses.
        by_code = jax.tree.map(jnp.add, by_code, also_by_code)
        state = state.replace(value_target=soft_update(state.value_target, state.value, self.hp.tau))
        for part, gradient in zip(LEARNING, (by_value, by_code, by_low, by_high), strict=True):
            state = gradient_step(state, part, gradient)
        losses = {"value_loss": value_loss, "low_actor_loss": low_actor_loss, "high_actor_loss": high_actor_loss}
        return state, losses | of_value | of_low | of_high

    @property
    def acting(self) -> dict[str, Network]:
        """The networks that the policy needs."""
        return {"high_actor": self.high_actor, "low_actor": self.low_actor}


@jax.jit
def act(acting: dict[str, Network], observations: Array, goals: Array) -> Array:
    """The most likely actions (E, A) on the way to the most likely subgoals, for observations and goals, both (E, S).

    Each step has a new subgoal.
    """
    codes, _ = acting["high_actor"](observations, goals)
    low_actor = acting["low_actor"]
    mean, _ = low_actor(observations, to_length(codes))
    return clamp(mean, -low_actor.module.max_action, low_actor.module.max_action)


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="num_updates", donate_argnames="state")
def train_interval(
    state: HIQL, key: Array, dataset: PackedDataset, start: Array, num_updates: int
) -> tuple[HIQL, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates` as one program; rows are drawn for a hundred at once."""
    hp, last = state.hp, last_rows(dataset)

    def draw(step: Array) -> tuple[Array, Noise]:
        return draw_noise(key, step, hp, last)

    def update(state: HIQL, drawn: tuple[Array, Noise], place: int) -> tuple[HIQL, dict[str, Array]]:
        indices, noise = drawn
        return state.update(take_hierarchy(dataset, indices, hp.gc_negative), noise)

    return scan_updates(update, draw, state, start, num_updates)


def create_train_state(key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> HIQL:
    """Fresh networks with Glorot's uniform weights."""
    hp, dims, layer_norm = narrow(config, Hyperparameters), config.value_hidden_dims, config.value_ln
    observations, codes = jnp.zeros((1, state_dim)), jnp.zeros((1, config.rep_dim))
    value_key, representation_key, low_key, high_key = jax.random.split(key, 4)
    value = Network.create(Value(dims, layer_norm), value_key, observations, codes)
    representation_module = Representation(config.rep_dim, dims, layer_norm)
    representation = Network.create(representation_module, representation_key, observations, observations)
    actor_dims, const_std = config.actor_hidden_dims, config.const_std
    low_actor = Network.create(Actor(action_dim, max_action, actor_dims, const_std), low_key, observations, codes)
    # Codes have no bounds
    high_module = Actor(config.rep_dim, math.inf, actor_dims, const_std)
    high_actor = Network.create(high_module, high_key, observations, observations)
    return HIQL(
        value=value,
        representation=representation,
        low_actor=low_actor,
        high_actor=high_actor,
        # A donated state must not contain an array twice, so the target is a copy.
        value_target=jax.tree.map(jnp.copy, value),
        value_optimizer=adam(hp).init(value),
        representation_optimizer=adam(hp).init(representation),
        low_actor_optimizer=adam(hp).init(low_actor),
        high_actor_optimizer=adam(hp).init(high_actor),
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
        run = Run(config, task, "goal_conditioned/hiql", "jax", device)
        state, total_it = restore(run, partial(load_checkpoint, algorithm="goal_conditioned/hiql", state=state), state)
        dataset = to_device(task.dataset)
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, act, state.acting)
            history = History(run)
            for start, step in run.calls(cost=5):
                num_updates = step - start
                state, found = train_together(train_interval, state, draws_key, dataset, start, num_updates)
                history.add(num_updates, found)
                write = partial(
                    save_checkpoint, algorithm="goal_conditioned/hiql", state=state, total_it=total_it + step
                )
                if run.is_due(step):
                    run.log(step, history.means())
                    run.save(step, write)
                    evaluate(run, step, act, state.acting)
                elif run.stopping:
                    run.save(step, partial(write, history=history.content()))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "goal_conditioned/hiql")
