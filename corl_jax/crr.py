"""CRR in JAX: imitation of the data's actions that the critics prefer. Its twin is `corl_torch/crr.py`.

Wang et al., Critic Regularized Regression, 2020, https://arxiv.org/abs/2006.15134
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from shared.runs.start import cli

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax import struct
from jax import Array, value_and_grad
from jax.numpy import amax, amin, argmax, concatenate, exp, log, minimum, square, stack, tanh, tile, where

from shared.data.transitions import Batch
from shared.envs.evaluation import SampledPolicy
from shared.frameworks.jax_calls import History
from shared.frameworks.jax_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, take, to_device
from shared.frameworks.jax_layers import Linear, Network, clamp, pick
from shared.frameworks.jax_scan import scan_updates
from shared.frameworks.jax_seeds import train_together
from shared.frameworks.jax_side import enable_compilation_cache, evaluate, narrow, resolve_device
from shared.runs.fields import bounded, choice, positive, widths
from shared.runs.run import Run
from shared.runs.settings import TransitionsConfig
from shared.runs.task import Preparation, load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Learning rate of the policy
    actor_lr: float = positive(3e-4)
    # Learning rate of the critics
    critic_lr: float = positive(3e-4)
    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # How an advantage becomes a weight: 1 if it is positive, else 0; or exp(advantage / advantage_temperature)
    weight_type: str = choice("binary", "exp")
    # Temperature of the exponential weights
    advantage_temperature: float = positive(1.0)
    # Largest exponential weight
    max_weight: float = positive(20.0)
    # Value that an action is compared with: the mean of sampled actions' values, or the largest
    advantage_type: str = choice("mean", "max")
    # Actions sampled in each state, for the advantage and to choose from when acting
    n_action_samples: int = bounded(4, low=1)
    # How targets follow their networks: a little in each update, or as a copy after some updates
    target_update_type: str = choice("soft", "hard")
    # Rate at which the soft targets follow their networks
    tau: float = bounded(0.005, low=0, high=1)
    # Updates between two copies into the hard targets
    target_update_period: int = bounded(100, low=1)
    # Transitions in a batch
    batch_size: int = bounded(256, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, TransitionsConfig):
    """The settings of a whole run."""

    group: str = "CRR-D4RL"
    name: str = "CRR"
    # Updates between two evaluations
    eval_freq: int = bounded(1000, low=1)
    # Updates in all
    max_timesteps: int = bounded(500_000, low=1)
    # Critics
    n_critics: int = bounded(1, low=1)
    # Widths of the policy's hidden layers
    actor_hidden_dims: tuple[int, ...] = widths(256, 256)
    # Widths of the critics' hidden layers
    critic_hidden_dims: tuple[int, ...] = widths(256, 256)
    # Start the target policy as a copy; d3rlpy from 2.1.0 to 2.8.1 initialises it separately
    copy_target_policy: bool = True
    # Normalise states to mean 0 and standard deviation 1
    normalize: bool = False


# ---- networks ------------------------------------------------------------------------------------------------------


def hidden(hidden_dims: Sequence[int]) -> list[Any]:
    """Hidden layers with ReLU."""
    return [layer for width in hidden_dims for layer in (Linear(width), nn.relu)]


def mlp(hidden_dims: Sequence[int], output_dim: int) -> nn.Sequential:
    """Hidden layers with ReLU, then a linear layer."""
    return nn.Sequential([*hidden(hidden_dims), Linear(output_dim)])


class Actor(nn.Module):
    """The policy: a normal distribution around an action that tanh keeps within its bounds."""

    action_dim: int
    max_action: float
    hidden_dims: Sequence[int]

    def setup(self) -> None:
        self.net = nn.Sequential(hidden(self.hidden_dims))
        self.mean = Linear(self.action_dim)
        self.log_std = Linear(self.action_dim)

    def __call__(self, observations: Array) -> tuple[Array, Array]:
        """Mean and standard deviation (B, A) for observations (B, S)."""
        encoded = self.net(observations)
        std = exp(clamp(self.log_std(encoded), -20.0, 2.0))
        return self.max_action * tanh(self.mean(encoded)), self.max_action * std


class Critics(nn.Module):
    """N critics Q(s, a) with separate weights."""

    hidden_dims: Sequence[int]
    n_critics: int

    def setup(self) -> None:
        self.members = [mlp(self.hidden_dims, 1) for _ in range(self.n_critics)]

    def __call__(self, observations: Array, actions: Array) -> Array:
        """The values (N, ...) of actions (..., A) in observations (..., S)."""
        inputs = concatenate([observations, actions], axis=-1)
        return stack([member(inputs).squeeze(-1) for member in self.members])


def sample(actor: Network, observations: Array, noise: Array) -> Array:
    """Actions (B, n, A) for observations (B, S) and noise (B, n, A), clipped to [-max_action, max_action]."""
    mean, std = actor(observations)
    return clamp(mean[:, None] + std[:, None] * noise, -actor.module.max_action, actor.module.max_action)


def log_prob(actor: Network, observations: Array, actions: Array) -> Array:
    """The log-density (B,) of actions (B, A), which ignores that samples are clipped."""
    mean, std = actor(observations)
    log_density = -square(actions - mean) / (2.0 * square(std)) - log(std) - LOG_SQRT_2PI
    return log_density.sum(axis=-1)


LOG_SQRT_2PI = math.log(math.sqrt(2.0 * math.pi))


def repeat(observations: Array, n: int) -> Array:
    """The observations (B, S), each repeated n times: (B, n, S)."""
    return tile(observations[:, None], (1, n, 1))


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    # Standard normal, (B, 1, A): the target policy's next actions
    target: Array
    # Standard normal, (B, n, A): the policy's actions that the data's are compared with
    actor: Array


def draw_noise(key: Array, step: Array, hp: Hyperparameters, dataset_size: int, action_dim: int) -> tuple[Array, Noise]:
    """An update's batch indices (B,) and its noise, which depend on the key and on the update's number alone."""
    index_key, target_key, actor_key = jax.random.split(jax.random.fold_in(key, step), 3)
    indices = jax.random.randint(index_key, (hp.batch_size,), 0, dataset_size)
    noise = Noise(
        target=jax.random.normal(target_key, (hp.batch_size, 1, action_dim)),
        actor=jax.random.normal(actor_key, (hp.batch_size, hp.n_action_samples, action_dim)),
    )
    return indices, noise


def draw_acting_noise(generator: np.random.Generator, hp: Hyperparameters, action_dim: int) -> np.ndarray:
    """The policy's draws for one step of an episode, (n, A + 1): each action's normal noise and Gumbel noise."""
    normal = generator.standard_normal((hp.n_action_samples, action_dim))
    return np.concatenate([normal, generator.gumbel(size=(hp.n_action_samples, 1))], axis=-1)


# ---- losses and update ---------------------------------------------------------------------------------------------


def adam(part: str, hp: Hyperparameters) -> optax.GradientTransformation:
    """The optimiser of one part of the state."""
    return optax.adam({"actor": hp.actor_lr, "critic": hp.critic_lr}[part])


def gradient_step(state: "CRR", part: str, gradient: Network) -> "CRR":
    """One step of Adam on one part of the state, down its gradient."""
    change, moments = adam(part, state.hp).update(gradient, getattr(state, f"{part}_optimizer"))
    return state.replace(**{part: optax.apply_updates(getattr(state, part), change), f"{part}_optimizer": moments})


def soft_update(target: Network, source: Network, tau: float | Array) -> Network:
    """Polyak averaging: the target, moved a step of size tau towards the source."""
    return jax.tree.map(lambda old, new: (1.0 - tau) * old + tau * new, target, source)


def target_rate(hp: Hyperparameters, copies: bool | Array) -> float | Array:
    """The targets' step size: tau in each update, or 1 in an update that copies."""
    return hp.tau if hp.target_update_type == "soft" else where(copies, 1.0, 0.0)


class CRR(struct.PyTreeNode):
    """All that an update reads and writes."""

    actor: Network
    critic: Network
    actor_target: Network
    critic_target: Network
    actor_optimizer: optax.OptState
    critic_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)

    def td_target(self, batch: Batch, noise: Noise) -> Array:
        """The regression target of all critics, (B,): the smallest target value of the target policy's sample."""
        hp, actor, critic = self.hp, self.actor_target, self.critic_target
        next_actions = sample(actor, batch.next_observations, noise.target).squeeze(1)
        next_q = amin(critic(batch.next_observations, next_actions), axis=0)
        assert next_q.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + hp.discount * next_q * (1.0 - batch.terminals)

    def critic_loss(self, critic: Network, batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """The squared errors of all critics to the same target, added up over the critics."""
        target = self.td_target(batch, noise)
        q = critic(batch.observations, batch.actions)
        assert q.shape[1:] == target.shape
        return square(q - target).mean(axis=1).sum(), {}

    def advantage(self, batch: Batch, noise: Noise) -> Array:
        """The advantage (B,) of each of the data's actions over sampled ones."""
        hp, actor, critic = self.hp, self.actor, self.critic
        actions = sample(actor, batch.observations, noise.actor)
        values = critic(repeat(batch.observations, hp.n_action_samples), actions).mean(axis=0)
        value = values.mean(axis=1) if hp.advantage_type == "mean" else amax(values, axis=1)
        q = critic(batch.observations, batch.actions).mean(axis=0)
        assert q.shape == value.shape == batch.rewards.shape
        return q - value

    def weights(self, advantage: Array) -> Array:
        """The weight (B,) of each of the data's actions, from its advantage (B,)."""
        hp = self.hp
        if hp.weight_type == "binary":
            return (advantage > 0.0).astype(advantage.dtype)
        return minimum(exp(advantage / hp.advantage_temperature), hp.max_weight)

    def actor_loss(self, actor: Network, batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """Imitation of the data's actions, each with its weight."""
        weights = self.weights(self.advantage(batch, noise))
        log_probs = log_prob(actor, batch.observations, batch.actions)
        assert log_probs.shape == weights.shape
        return -(log_probs * weights).mean(), {}

    def update(self, batch: Batch, noise: Noise, copies: bool | Array) -> tuple["CRR", dict[str, Array]]:
        """One gradient step: the critics; the policy, on the new critics; the targets."""
        state = self
        (critic_loss, _), gradient = value_and_grad(state.critic_loss, has_aux=True)(state.critic, batch, noise)
        state = gradient_step(state, "critic", gradient)
        (actor_loss, _), gradient = value_and_grad(state.actor_loss, has_aux=True)(state.actor, batch, noise)
        state = gradient_step(state, "actor", gradient)
        rate = target_rate(state.hp, copies)
        state = state.replace(
            critic_target=soft_update(state.critic_target, state.critic, rate),
            actor_target=soft_update(state.actor_target, state.actor, rate),
        )
        return state, {"critic_loss": critic_loss, "actor_loss": actor_loss}

    @property
    def acting(self) -> dict[str, Network]:
        """The networks that the policy needs."""
        return {"actor": self.actor, "critic": self.critic}


@jax.jit
def act(acting: dict[str, Network], observations: Array, noise: Array) -> Array:
    """The policy's actions (E, A) for observations (E, S) and noise (E, n, A + 1).

    One of n samples is drawn with the critics' values as logits, as the argmax of value plus Gumbel noise.
    """
    actions = sample(acting["actor"], observations, noise[..., :-1])
    values = acting["critic"](repeat(observations, noise.shape[1]), actions).mean(axis=0)
    return pick(actions, argmax(values + noise[..., -1], axis=1))


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="num_updates", donate_argnames="state")
def train_interval(
    state: CRR, key: Array, dataset: PackedDataset, start: Array, num_updates: int, phase: Array
) -> tuple[CRR, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates` as one scan.

    `phase` counts the updates since the last copy of the targets. It is traced, so one program serves every interval.
    """
    hp, action_dim = state.hp, state.actor.module.action_dim

    def draw(step: Array) -> tuple[Array, Array, Noise]:
        copies = (step - start + phase) % hp.target_update_period == 0
        return copies, *draw_noise(key, step, hp, len(dataset), action_dim)

    def update(state: CRR, drawn: Any, place: int) -> tuple[CRR, dict[str, Array]]:
        copies, indices, noise = drawn
        return state.update(take(dataset, indices), noise, copies)

    return scan_updates(update, draw, state, start, num_updates)


def create_train_state(key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> CRR:
    """Fresh networks with PyTorch's initialisation."""
    hp = narrow(config, Hyperparameters)
    observations, actions = jnp.zeros((1, state_dim)), jnp.zeros((1, action_dim))
    actor_key, target_key, critics_key = jax.random.split(key, 3)
    actor_module = Actor(action_dim, max_action, config.actor_hidden_dims)
    actor = Network.create(actor_module, actor_key, observations)
    critic = Network.create(Critics(config.critic_hidden_dims, config.n_critics), critics_key, observations, actions)
    # A donated state must not contain an array twice, so the targets are copies.
    actor_target, critic_target = jax.tree.map(jnp.copy, (actor, critic))
    if not config.copy_target_policy:
        actor_target = Network.create(actor_module, target_key, observations)
    return CRR(
        actor=actor,
        critic=critic,
        actor_target=actor_target,
        critic_target=critic_target,
        actor_optimizer=adam("actor", hp).init(actor),
        critic_optimizer=adam("critic", hp).init(critic),
        hp=hp,
    )


def train(config: TrainConfig) -> Run:
    """Trains, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used.
    """
    task = load_task(config, Preparation(normalise=config.normalize))
    device = resolve_device(config.device)
    enable_compilation_cache()
    with jax.default_device(device):
        weights_key, draws_key = jax.random.split(jax.random.key(config.seed))
        state = create_train_state(weights_key, config, task.state_dim, task.action_dim, task.max_action)
        run = Run(config, task, "crr", "jax", device)
        state, total_it = restore(run, partial(load_checkpoint, algorithm="crr", state=state), state)
        dataset = to_device(task.dataset)
        draw = partial(draw_acting_noise, hp=state.hp, action_dim=task.action_dim)
        sampling = partial(SampledPolicy, draw=draw, seed=config.seed)
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, act, state.acting, asking=sampling)
            history = History(run)
            for start, step in run.calls(cost=5):
                num_updates = step - start
                phase = (total_it + start) % config.target_update_period
                state, found = train_together(train_interval, state, draws_key, dataset, start, num_updates, phase)
                history.add(num_updates, found)
                write = partial(save_checkpoint, algorithm="crr", state=state, total_it=total_it + step)
                if run.is_due(step):
                    run.log(step, history.means())
                    run.save(step, write)
                    evaluate(run, step, act, state.acting, asking=sampling)
                elif run.stopping:
                    run.save(step, partial(write, history=history.content()))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "crr")
