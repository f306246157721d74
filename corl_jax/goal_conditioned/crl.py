"""CRL in JAX: critics that tell the states that follow an action from others, and a policy that follows them.

Its twin is `corl_torch/goal_conditioned/crl.py`.

Eysenbach et al., Contrastive Learning as Goal-Conditioned Reinforcement Learning, 2022,
https://arxiv.org/abs/2206.07568, in the form of OGBench, https://arxiv.org/abs/2410.20092
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
from jax.numpy import amin, broadcast_to, concatenate, einsum, exp, eye, log, logaddexp, square, stack, zeros_like
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
    # Value goals are the critics' positive examples: later states, nearer ones more often
    value_p_curgoal: float = bounded(0.0, low=0, high=1)
    value_p_trajgoal: float = bounded(1.0, low=0, high=1)
    value_p_randomgoal: float = bounded(0.0, low=0, high=1)
    gc_negative: bool = False
    # The policy's loss: ddpgbc maximizes the critics and clones the data's actions; awr clones them with weights
    actor_loss: str = choice("ddpgbc", "awr")
    # Weight of cloning for ddpgbc; inverse temperature for awr
    alpha: float = bounded(0.1, low=0)
    # Use a standard deviation of 1 for the policy's actions instead of a learnt one
    const_std: bool = True
    # Transitions in a batch
    batch_size: int = bounded(1024, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, GoalConfig):
    """The settings of a whole run."""

    group: str = "CRL-OGBench"
    name: str = "CRL"
    # Widths of the policy's hidden layers
    actor_hidden_dims: tuple[int, ...] = widths(512, 512, 512)
    # Widths of the hidden layers of critics and V
    value_hidden_dims: tuple[int, ...] = widths(512, 512, 512)
    # LayerNorm after the hidden layers of critics and V
    value_ln: bool = True
    # Size of the codes whose products are values
    latent_dim: int = bounded(512, low=1)


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


class Codes(nn.Module):
    """The codes of states, or of states and actions, and of goals; their products are values."""

    hidden_dims: Sequence[int]
    layer_norm: bool
    latent_dim: int

    def setup(self) -> None:
        sizes = (self.hidden_dims, self.layer_norm, self.latent_dim)
        self.phi = mlp(*sizes)
        self.psi = mlp(*sizes)

    def __call__(self, goals: Array, *inputs: Array) -> tuple[Array, Array]:
        """The codes (B, D) of the inputs side by side, and the codes of goals (B, S)."""
        return self.phi(concatenate(inputs, axis=-1)), self.psi(goals)


class Critic(nn.Module):
    """Both critics, with separate weights."""

    hidden_dims: Sequence[int]
    layer_norm: bool
    latent_dim: int

    def setup(self) -> None:
        sizes = (self.hidden_dims, self.layer_norm, self.latent_dim)
        self.q1 = Codes(*sizes)
        self.q2 = Codes(*sizes)

    def __call__(self, goals: Array, observations: Array, actions: Array) -> tuple[Array, Array]:
        """The codes (2, B, D) of actions (B, A) in observations (B, S), and of goals (B, S)."""
        phi1, psi1 = self.q1(goals, observations, actions)
        phi2, psi2 = self.q2(goals, observations, actions)
        return stack([phi1, phi2]), stack([psi1, psi2])


def products(phi: Array, psi: Array) -> Array:
    """The values (..., B) of rows for their own goals, from codes (..., B, D)."""
    return (phi * psi).sum(axis=-1) / math.sqrt(phi.shape[-1])


def all_products(phi: Array, psi: Array) -> Array:
    """The values (..., B, B) of rows for the goals of all rows, from codes (..., B, D)."""
    return einsum("...id,...jd->...ij", phi, psi) / math.sqrt(phi.shape[-1])


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


def gradient_step(state: "CRL", part: str, gradient: Network) -> "CRL":
    """One step of Adam on one part of the state, down its gradient."""
    change, moments = adam(state.hp).update(gradient, getattr(state, f"{part}_optimizer"))
    return state.replace(**{part: optax.apply_updates(getattr(state, part), change), f"{part}_optimizer": moments})


def contrastive_loss(phi: Array, psi: Array) -> Array:
    """The binary cross-entropy of telling each row's own goal from the other rows' goals."""
    logits = all_products(phi, psi)
    own = eye(logits.shape[-1], dtype=logits.dtype)
    return (logaddexp(logits, zeros_like(logits)) - own * logits).mean()


class CRL(struct.PyTreeNode):
    """All that an update reads and writes."""

    critic: Network
    value: Network
    actor: Network
    critic_optimizer: optax.OptState
    value_optimizer: optax.OptState
    actor_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)

    def critic_loss(self, critic: Network, batch: GoalBatch) -> tuple[Array, dict[str, Array]]:
        """The contrastive loss of both critics, the mean over them."""
        phi, psi = critic(batch.value_goals, batch.observations, batch.actions)
        assert phi.shape == psi.shape
        return contrastive_loss(phi, psi), {"q": products(phi, psi).mean()}

    def value_loss(self, value: Network, batch: GoalBatch) -> tuple[Array, dict[str, Array]]:
        """The contrastive loss of V, which is a critic without actions; only `awr` uses it."""
        phi, psi = value(batch.value_goals, batch.observations)
        assert phi.shape == psi.shape
        return contrastive_loss(phi, psi), {}

    def q(self, batch: GoalBatch, actions: Array) -> Array:
        """The smaller value (B,) of actions (B, A) for the policy's goals."""
        return amin(products(*self.critic(batch.actor_goals, batch.observations, actions)), axis=0)

    def weight(self, batch: GoalBatch) -> Array:
        """The weight of each action (B,) for `awr`: the exponential of its advantage, up to `MAX_WEIGHT`."""
        v = products(*self.value(batch.actor_goals, batch.observations))
        return clamp(exp(self.hp.alpha * (self.q(batch, batch.actions) - v)), 0.0, MAX_WEIGHT)

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
        q = self.q(batch, cut(actor, actions))
        assert q.shape == log_prob.shape == batch.rewards.shape
        q_loss = -q.mean() / stop_gradient(jnp.abs(q).mean() + 1e-6)
        bc_loss = -hp.alpha * log_prob.mean()
        return q_loss + bc_loss, {"q_loss": q_loss, "bc_loss": bc_loss}

    def update(self, batch: GoalBatch, noise: Noise) -> tuple["CRL", dict[str, Array]]:
        """One gradient step of each network, all from the old weights; there are no targets."""
        state = self
        (critic_loss, aux), critic_gradient = value_and_grad(self.critic_loss, has_aux=True)(self.critic, batch)
        (actor_loss, of_actor), actor_gradient = value_and_grad(self.actor_loss, has_aux=True)(self.actor, batch, noise)
        metrics = {"critic_loss": critic_loss, "actor_loss": actor_loss} | aux | of_actor
        if self.hp.actor_loss == "awr":
            (value_loss, _), value_gradient = value_and_grad(self.value_loss, has_aux=True)(self.value, batch)
            metrics["value_loss"] = value_loss
            state = gradient_step(state, "value", value_gradient)
        state = gradient_step(state, "actor", actor_gradient)
        state = gradient_step(state, "critic", critic_gradient)
        return state, metrics


@jax.jit
def act(actor: Network, observations: Array, goals: Array) -> Array:
    """The policy's most likely actions (E, A) for observations (E, S) and goals (E, S)."""
    mean, _ = actor(observations, goals)
    return cut(actor, mean)


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="num_updates", donate_argnames="state")
def train_interval(
    state: CRL, key: Array, dataset: PackedDataset, start: Array, num_updates: int
) -> tuple[CRL, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates` as one program; draws are made for a hundred at once."""
    hp, last, action_dim = state.hp, last_rows(dataset), state.actor.module.action_dim

    def draw(step: Array) -> tuple[Array, Noise]:
        return draw_noise(key, step, hp, last, action_dim)

    def update(state: CRL, drawn: tuple[Array, Noise], place: int) -> tuple[CRL, dict[str, Array]]:
        indices, noise = drawn
        return state.update(take_goals(dataset, indices, hp.gc_negative), noise)

    return scan_updates(update, draw, state, start, num_updates)


def create_train_state(key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> CRL:
    """Fresh networks with Glorot's uniform weights."""
    hp = narrow(config, Hyperparameters)
    observations, actions = jnp.zeros((1, state_dim)), jnp.zeros((1, action_dim))
    critic_key, value_key, actor_key = jax.random.split(key, 3)
    sizes = (config.value_hidden_dims, config.value_ln, config.latent_dim)
    critic = Network.create(Critic(*sizes), critic_key, observations, observations, actions)
    value = Network.create(Codes(*sizes), value_key, observations, observations)
    actor_module = Actor(action_dim, max_action, config.actor_hidden_dims, config.const_std)
    actor = Network.create(actor_module, actor_key, observations, observations)
    return CRL(
        critic=critic,
        value=value,
        actor=actor,
        critic_optimizer=adam(hp).init(critic),
        value_optimizer=adam(hp).init(value),
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
        run = Run(config, task, "goal_conditioned/crl", "jax", device)
        state, total_it = restore(run, partial(load_checkpoint, algorithm="goal_conditioned/crl", state=state), state)
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
                    save_checkpoint, algorithm="goal_conditioned/crl", state=state, total_it=total_it + step
                )
                if run.is_due(step):
                    run.log(step, history.means())
                    run.save(step, write)
                    evaluate(run, step, act, state.actor)
                elif run.stopping:
                    run.save(step, partial(write, history=history.content()))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "goal_conditioned/crl")
