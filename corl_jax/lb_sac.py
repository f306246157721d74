"""LB-SAC in JAX: SAC-N with large batches and a suitable learning rate, instead of hundreds of critics.

Its twin is `corl_torch/lb_sac.py`.

Nikulin et al., Q-Ensemble for Offline RL: Don't Scale the Ensemble, Scale the Batch Size, 2022,
https://arxiv.org/abs/2211.11092
"""

import math
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
from jax.nn.initializers import Initializer, constant
from jax.numpy import broadcast_to, concatenate, exp, log, square, std, tanh, where

from shared.data.transitions import Batch
from shared.frameworks.jax_calls import History
from shared.frameworks.jax_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, take, to_device
from shared.frameworks.jax_layers import Linear, Network, clamp
from shared.frameworks.jax_scan import scan_updates
from shared.frameworks.jax_seeds import train_together
from shared.frameworks.jax_side import enable_compilation_cache, evaluate, narrow, resolve_device
from shared.runs.fields import bounded, positive
from shared.runs.run import Run
from shared.runs.settings import EnsembleConfig
from shared.runs.task import Preparation, load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Rate at which the target critics follow the critics
    tau: float = bounded(5e-3, low=0, high=1)
    # Learning rate of the policy
    actor_lr: float = positive(0.0018)
    # Learning rate of the critics
    critic_lr: float = positive(0.0018)
    # Learning rate of the entropy temperature
    temperature_lr: float = positive(0.0018)
    # Transitions in a batch
    batch_size: int = bounded(10_000, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, EnsembleConfig):
    """The settings of a whole run."""

    group: str = "LB-SAC"
    name: str = "LB-SAC"
    max_timesteps: int = bounded(300_000, low=1)
    # Width of every hidden layer
    hidden_dim: int = bounded(256, low=1)
    # Critics in the ensemble
    n_critics: int = bounded(10, low=2)
    # Layer norm in the critics
    critic_ln: bool = False
    # Start as SAC-N and EDAC do, with values near 0; false: with PyTorch's defaults
    edac_init: bool = False
    # Bound of every action component
    max_action: float = positive(1.0)


# ---- networks ------------------------------------------------------------------------------------------------------


def within(bound: float) -> Initializer:
    """Uniform in [-bound, bound)."""
    return partial(jax.random.uniform, minval=-bound, maxval=bound)


class Actor(nn.Module):
    """The policy: a normal distribution, squashed by tanh."""

    action_dim: int
    hidden_dim: int
    max_action: float
    edac_init: bool

    def setup(self) -> None:
        hidden: dict[str, Any] = {"bias_init": constant(0.1)} if self.edac_init else {}
        head: dict[str, Any] = {"kernel_init": within(1e-3), "bias_init": within(1e-3)} if self.edac_init else {}
        self.trunk = nn.Sequential([
            Linear(self.hidden_dim, **hidden),
            nn.relu,
            Linear(self.hidden_dim, **hidden),
            nn.relu,
            Linear(self.hidden_dim, **hidden),
            nn.relu,
        ])  # fmt: skip
        self.mu = Linear(self.action_dim, **head)
        self.log_sigma = Linear(self.action_dim, **head)

    def __call__(self, observations: Array) -> tuple[Array, Array]:
        """Mean and standard deviation (B, A) before tanh, for observations (B, S)."""
        hidden = self.trunk(observations)
        return self.mu(hidden), exp(clamp(self.log_sigma(hidden), -5.0, 2.0))


def sample(actor: Network, observations: Array, noise: Array) -> tuple[Array, Array]:
    """Actions (B, A) and their log-probabilities (B,) for noise (B, A)."""
    mean, std = actor(observations)
    u = mean + noise * std
    squashed = tanh(u)
    log_prob = (-square(u - mean) / (2.0 * square(std)) - log(std) - LOG_SQRT_2PI).sum(axis=-1)
    log_prob = log_prob - log(1.0 - square(squashed) + 1e-6).sum(axis=-1)
    return actor.module.max_action * squashed, log_prob


LOG_SQRT_2PI = math.log(math.sqrt(2.0 * math.pi))


class VectorizedLinear(nn.Module):
    """A linear layer for each of E critics, as one batched product; weights are (E, in, out)."""

    features: int
    kernel_init: Initializer | None = None
    bias_init: Initializer | None = None

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """Maps (E, B, in) to (E, B, out)."""
        n_critics, _, fan_in = inputs.shape
        # PyTorch uses the second axis as the fan-in, which is the width of the output in this layout.
        default = within(1.0 / math.sqrt(self.features))
        kernel_shape, bias_shape = (n_critics, fan_in, self.features), (n_critics, 1, self.features)
        kernel = self.param("kernel", self.kernel_init or default, kernel_shape, inputs.dtype)
        bias = self.param("bias", self.bias_init or default, bias_shape, inputs.dtype)
        return inputs @ kernel + bias


LayerNorm = partial(nn.LayerNorm, epsilon=1e-5, use_fast_variance=False, param_dtype=float)


def identity(inputs: Array) -> Array:
    """The inputs as they are."""
    return inputs


class Critic(nn.Module):
    """E critics Q(s, a) with weights of their own."""

    hidden_dim: int
    n_critics: int
    layernorm: bool
    edac_init: bool

    def setup(self) -> None:
        # One for all critics; without it, an empty layer takes its place, because layer numbers are part of CORL's
        # names.
        norm = LayerNorm if self.layernorm else lambda: identity
        hidden: dict[str, Any] = {"bias_init": constant(0.1)} if self.edac_init else {}
        head: dict[str, Any] = {"kernel_init": within(3e-3), "bias_init": within(3e-3)} if self.edac_init else {}
        self.critic = nn.Sequential([
            VectorizedLinear(self.hidden_dim, **hidden),
            norm(),
            nn.relu,
            VectorizedLinear(self.hidden_dim, **hidden),
            norm(),
            nn.relu,
            VectorizedLinear(self.hidden_dim, **hidden),
            norm(),
            nn.relu,
            VectorizedLinear(1, **head),
        ])  # fmt: skip

    def __call__(self, observations: Array, actions: Array) -> Array:
        """The values (E, B) of actions (B, A) in observations (B, S)."""
        inputs = concatenate([observations, actions], axis=-1)
        return self.critic(broadcast_to(inputs, (self.n_critics, *inputs.shape))).squeeze(-1)


def smallest(q: Array) -> Array:
    """The smallest (B,) of E values (E, B); its gradient goes to the first critic with this value."""
    is_first = jnp.arange(len(q))[:, None] == q.argmin(axis=0)
    return where(is_first, q, 0.0).sum(axis=0)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    # Standard normal, (B, A): the policy's actions whose entropy the temperature learns from
    alpha: Array
    # Standard normal, (B, A): the policy's actions in its own loss
    actor: Array
    # Standard normal, (B, A): the policy's next actions in the target
    target: Array
    # Uniform in [0, 1), (B, A): random actions, only for the metrics
    random: Array


def draw_noise(key: Array, step: Array, hp: Hyperparameters, dataset_size: int, action_dim: int) -> tuple[Array, Noise]:
    """An update's batch indices (B,) and its noise, which depend on the key and on the update's number alone."""
    keys = jax.random.split(jax.random.fold_in(key, step), 5)
    indices = jax.random.randint(keys[0], (hp.batch_size,), 0, dataset_size)
    noise = Noise(
        alpha=jax.random.normal(keys[1], (hp.batch_size, action_dim)),
        actor=jax.random.normal(keys[2], (hp.batch_size, action_dim)),
        target=jax.random.normal(keys[3], (hp.batch_size, action_dim)),
        random=jax.random.uniform(keys[4], (hp.batch_size, action_dim)),
    )
    return indices, noise


# ---- losses and update ---------------------------------------------------------------------------------------------


def gradient_step(state: "LB_SAC", part: str, gradient: Any, lr: float) -> "LB_SAC":
    """One step of Adam on one part of the state, down its gradient."""
    change, moments = optax.adam(lr).update(gradient, getattr(state, f"{part}_optimizer"))
    return state.replace(**{part: optax.apply_updates(getattr(state, part), change), f"{part}_optimizer": moments})


def soft_update(target: Network, source: Network, tau: float) -> Network:
    """Polyak averaging: the target, moved a step of size tau towards the source."""
    return jax.tree.map(lambda old, new: (1.0 - tau) * old + tau * new, target, source)


class LB_SAC(struct.PyTreeNode):
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
        """The entropy temperature, (1,): a constant in every loss except its own."""
        return exp(self.log_temperature)

    def alpha_loss(self, log_temperature: Array, batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """Raises the temperature while the policy's entropy is below -A, minus one nat for each action dimension."""
        actor = self.actor
        _, log_prob = sample(actor, batch.observations, noise.alpha)
        return (-log_temperature * (log_prob - actor.module.action_dim)).mean(), {}

    def actor_loss(self, actor: Network, batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """Soft actor-critic's loss, which raises the smallest critic's value and the entropy."""
        critic = self.critic
        actions, log_prob = sample(actor, batch.observations, noise.actor)
        q = critic(batch.observations, actions)
        assert q.shape[1:] == log_prob.shape == batch.rewards.shape
        loss = (self.temperature() * log_prob - smallest(q)).mean()
        return loss, {"batch_entropy": -log_prob.mean(), "q_policy_std": std(q, axis=0, ddof=1).mean()}

    def td_target(self, batch: Batch, noise: Noise) -> Array:
        """The regression target of all critics, (B,): the least target value of a sampled next action, plus entropy."""
        hp, actor, critic = self.hp, self.actor, self.critic_target
        next_actions, next_log_prob = sample(actor, batch.next_observations, noise.target)
        next_q = smallest(critic(batch.next_observations, next_actions)) - self.temperature() * next_log_prob
        assert next_q.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + hp.discount * (1.0 - batch.terminals) * next_q

    def critic_loss(self, critic: Network, batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """The critics' squared errors to the same target, averaged over the ensemble too, unlike SAC-N's."""
        target = self.td_target(batch, noise)
        q = critic(batch.observations, batch.actions)
        assert q.shape[1:] == target.shape
        return square(q - target).mean(), {}

    def update(self, batch: Batch, noise: Noise) -> tuple["LB_SAC", dict[str, Array]]:
        """One gradient step: temperature, policy, critics, each with the parts updated before it; then the targets."""
        state, hp = self, self.hp
        (alpha_loss, _), gradient = value_and_grad(state.alpha_loss, has_aux=True)(state.log_temperature, batch, noise)
        state = gradient_step(state, "log_temperature", gradient, hp.temperature_lr)
        (actor_loss, metrics), gradient = value_and_grad(state.actor_loss, has_aux=True)(state.actor, batch, noise)
        state = gradient_step(state, "actor", gradient, hp.actor_lr)
        (critic_loss, _), gradient = value_and_grad(state.critic_loss, has_aux=True)(state.critic, batch, noise)
        state = gradient_step(state, "critic", gradient, hp.critic_lr)
        state = state.replace(critic_target=soft_update(state.critic_target, state.critic, hp.tau))
        metrics |= {"alpha_loss": alpha_loss, "actor_loss": actor_loss, "critic_loss": critic_loss}
        metrics |= {"alpha": state.temperature(), "q_random_std": state.random_std(batch, noise)}
        return state, metrics

    def random_std(self, batch: Batch, noise: Noise) -> Array:
        """How much the critics disagree on random actions, a measure of their uncertainty."""
        critic, max_action = self.critic, self.actor.module.max_action
        actions = -max_action + 2.0 * max_action * noise.random
        return std(critic(batch.observations, actions), axis=0, ddof=1).mean()


@jax.jit
def act(actor: Network, observations: Array) -> Array:
    """The policy's most likely actions (E, A) for observations (E, S)."""
    mean, _ = actor(observations)
    return actor.module.max_action * tanh(mean)


# ---- training ------------------------------------------------------------------------------------------------------

# Updates whose noise is drawn at once: enough to keep the draws outside the loop, few enough to fit into any memory
CHUNK = 8


@partial(jax.jit, static_argnames="num_updates", donate_argnames="state")
def train_interval(
    state: LB_SAC, key: Array, dataset: PackedDataset, start: Array, num_updates: int
) -> tuple[LB_SAC, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates` as scans over chunks, each with its noise drawn before it."""
    hp, action_dim = state.hp, state.actor.module.action_dim

    def draw(step: Array) -> tuple[Array, Noise]:
        return draw_noise(key, step, hp, len(dataset), action_dim)

    def update(state: LB_SAC, drawn: tuple[Array, Noise], _: int) -> tuple[LB_SAC, dict[str, Array]]:
        indices, noise = drawn
        return state.update(take(dataset, indices), noise)

    return scan_updates(update, draw, state, start, num_updates, chunk=CHUNK)


def create_train_state(key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> LB_SAC:
    """Fresh networks with CORL's initialisation."""
    observations, actions = jnp.zeros((1, state_dim)), jnp.zeros((1, action_dim))
    actor_key, critic_key = jax.random.split(key)
    actor_module = Actor(action_dim, config.hidden_dim, max_action, config.edac_init)
    actor = Network.create(actor_module, actor_key, observations)
    critic_module = Critic(config.hidden_dim, config.n_critics, config.critic_ln, config.edac_init)
    critic = Network.create(critic_module, critic_key, observations, actions)
    log_temperature = jnp.zeros(1, dtype=float)
    return LB_SAC(
        actor=actor,
        critic=critic,
        # A donated state must not contain an array twice, so the target is a copy.
        critic_target=jax.tree.map(jnp.copy, critic),
        log_temperature=log_temperature,
        actor_optimizer=optax.adam(config.actor_lr).init(actor),
        critic_optimizer=optax.adam(config.critic_lr).init(critic),
        log_temperature_optimizer=optax.adam(config.temperature_lr).init(log_temperature),
        hp=narrow(config, Hyperparameters),
    )


def train(config: TrainConfig) -> Run:
    """Trains, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used.
    """
    task = load_task(config, Preparation(normalise=False))
    device = resolve_device(config.device)
    enable_compilation_cache()
    with jax.default_device(device):
        weights_key, draws_key = jax.random.split(jax.random.key(config.seed))
        state = create_train_state(weights_key, config, task.state_dim, task.action_dim, config.max_action)
        run = Run(config, task, "lb_sac", "jax", device)
        state, total_it = restore(run, partial(load_checkpoint, algorithm="lb_sac", state=state), state)
        dataset = to_device(task.dataset)
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, act, state.actor)
            history = History(run)
            for start, step in run.calls():
                num_updates = step - start
                state, found = train_together(train_interval, state, draws_key, dataset, start, num_updates)
                history.add(num_updates, found)
                write = partial(save_checkpoint, algorithm="lb_sac", state=state, total_it=total_it + step)
                if run.is_due(step):
                    run.log(step, history.means())
                    run.save(step, write)
                    evaluate(run, step, act, state.actor)
                elif run.stopping:
                    run.save(step, partial(write, history=history.content()))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "lb_sac")
