"""AWAC in JAX, offline to online: learns from data first, then in the environment with the policy's own actions.

Its twin is `corl_torch/finetune/awac.py`. The losses and the update are from `corl_jax/awac.py`.

Nair et al., AWAC: Accelerating Online Reinforcement Learning with Offline Datasets, 2020,
https://arxiv.org/abs/2006.09359
"""

import math
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
from jax.nn.initializers import zeros
from jax.numpy import broadcast_to, concatenate, exp, log, minimum, square

from shared.data.online import OnlineExperience
from shared.data.rewards import CorlRewards
from shared.data.transitions import Batch
from shared.frameworks.jax_calls import History
from shared.frameworks.jax_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, take, to_device
from shared.frameworks.jax_layers import Linear, Network, clamp
from shared.frameworks.jax_online import Online
from shared.frameworks.jax_ring import Ring, push
from shared.frameworks.jax_seeds import train_together
from shared.frameworks.jax_side import enable_compilation_cache, evaluate, narrow, resolve_device
from shared.runs.fields import bounded, positive
from shared.runs.run import Run
from shared.runs.settings import DeterministicConfig, FinetuneConfig
from shared.runs.task import Preparation, load_task, training_environment

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Learning rate of the policy and of both critics
    learning_rate: float = positive(3e-4)
    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Rate at which the targets follow their networks
    tau: float = bounded(0.005, low=0, high=1)
    # Temperature: an action with advantage A has the weight exp(A / advantage_temperature), at most 100
    advantage_temperature: float = positive(1.0)
    # Transitions in a batch
    batch_size: int = bounded(256, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, FinetuneConfig, DeterministicConfig):
    """The settings of a whole run."""

    group: str = "AWAC-D4RL"
    name: str = "AWAC"
    buffer_size: int = bounded(20_000_000, low=1)
    # Updates, offline or online, between two evaluations; one is also made at the end of the offline phase
    eval_freq: int = bounded(1000, low=1)
    # Seed of the weights, the batches, the noise and the start states of the episodes to learn from
    seed: int = bounded(42, low=0, high=2**32 - 1)
    eval_seed: int = bounded(69, low=0)
    deterministic_torch: bool = True
    # Width of every hidden layer
    hidden_dim: int = bounded(256, low=1)
    # Scale rewards: by CORL's rule for D4RL's datasets; for your own data, so that returns span 1000
    normalize_reward: bool = False


# ---- networks ------------------------------------------------------------------------------------------------------


class Actor(nn.Module):
    """The policy: a normal distribution whose standard deviation is the same in every state."""

    action_dim: int
    hidden_dim: int

    def setup(self) -> None:
        self._mlp = nn.Sequential([
            Linear(self.hidden_dim),
            nn.relu,
            Linear(self.hidden_dim),
            nn.relu,
            Linear(self.hidden_dim),
            nn.relu,
            Linear(self.action_dim),
        ])  # fmt: skip
        self._log_std = self.param("_log_std", zeros, (self.action_dim,), float)

    def __call__(self, observations: Array) -> tuple[Array, Array]:
        """Unbounded mean (B, A) and standard deviation (B, A) for observations (B, S)."""
        mean = self._mlp(observations)
        return mean, broadcast_to(exp(clamp(self._log_std, -20.0, 2.0)), mean.shape)


def sample(actor: Network, observations: Array, noise: Array) -> Array:
    """Actions (B, A) for noise (B, A), clipped to [-1, 1]."""
    mean, std = actor(observations)
    return clamp(mean + noise * std, -1.0, 1.0)


def log_prob(actor: Network, observations: Array, actions: Array) -> Array:
    """The log-density (B,) of actions (B, A), which ignores that samples are clipped."""
    mean, std = actor(observations)
    log_density = -square(actions - mean) / (2.0 * square(std)) - log(std) - LOG_SQRT_2PI
    return log_density.sum(axis=-1)


LOG_SQRT_2PI = math.log(math.sqrt(2.0 * math.pi))


class Critic(nn.Module):
    """Q(s, a): (B, S) and (B, A) to (B,)."""

    hidden_dim: int

    def setup(self) -> None:
        self._mlp = nn.Sequential([
            Linear(self.hidden_dim),
            nn.relu,
            Linear(self.hidden_dim),
            nn.relu,
            Linear(self.hidden_dim),
            nn.relu,
            Linear(1),
        ])  # fmt: skip

    def __call__(self, observations: Array, actions: Array) -> Array:
        """The values (B,) of actions (B, A) in observations (B, S)."""
        return self._mlp(concatenate([observations, actions], axis=-1)).squeeze(-1)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    # Standard normal, (B, A): the policy's next actions in the target
    target: Array
    # Standard normal, (B, A): the policy's actions that the data's are compared with
    actor: Array


def draw_noise(key: Array, step: Array, hp: Hyperparameters, size: Array, action_dim: int) -> tuple[Array, Noise]:
    """An update's batch indices (B,) below `size` and its noise, which the key and the update's number determine."""
    index_key, target_key, actor_key, _ = jax.random.split(jax.random.fold_in(key, step), 4)
    indices = jax.random.randint(index_key, (hp.batch_size,), 0, size)
    noise = Noise(
        target=jax.random.normal(target_key, (hp.batch_size, action_dim)),
        actor=jax.random.normal(actor_key, (hp.batch_size, action_dim)),
    )
    return indices, noise


class Exploration(NamedTuple):
    """The random numbers that a step in the environment draws."""

    # Standard normal, (1, A)
    action: Array


def draw_exploration(key: Array, step: Array, hp: Hyperparameters, action_dim: int) -> Exploration:
    """The draw of one step in the environment, which depends on the key and the step's number alone."""
    # The last of these keys: the update of the same number uses the others.
    action_key = jax.random.split(jax.random.fold_in(key, step), 4)[3]
    return Exploration(action=jax.random.normal(action_key, (1, action_dim)))


# ---- losses and update ---------------------------------------------------------------------------------------------

# The largest weight of an action
MAX_WEIGHT = 100.0


def gradient_step(state: "AWAC", part: str, gradient: Network) -> "AWAC":
    """One step of Adam on one part of the state, down its gradient."""
    adam = optax.adam(state.hp.learning_rate)
    change, moments = adam.update(gradient, getattr(state, f"{part}_optimizer"))
    return state.replace(**{part: optax.apply_updates(getattr(state, part), change), f"{part}_optimizer": moments})


def soft_update(target: Network, source: Network, tau: float) -> Network:
    """Polyak averaging: the target, moved a step of size tau towards the source."""
    return jax.tree.map(lambda old, new: (1.0 - tau) * old + tau * new, target, source)


class AWAC(struct.PyTreeNode):
    """All that an update reads and writes."""

    actor: Network
    critic_1: Network
    critic_2: Network
    critic_1_target: Network
    critic_2_target: Network
    actor_optimizer: optax.OptState
    critic_1_optimizer: optax.OptState
    critic_2_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)

    def td_target(self, batch: Batch, noise: Noise) -> Array:
        """The regression target of both critics, (B,): the smaller target value of a sampled next action."""
        hp, actor, critic_1, critic_2 = self.hp, self.actor, self.critic_1_target, self.critic_2_target
        next_actions = sample(actor, batch.next_observations, noise.target)
        next_q = minimum(
            critic_1(batch.next_observations, next_actions), critic_2(batch.next_observations, next_actions)
        )
        assert next_q.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + hp.discount * (1.0 - batch.terminals) * next_q

    def critic_loss(
        self, critics: tuple[Network, Network], batch: Batch, noise: Noise
    ) -> tuple[Array, dict[str, Array]]:
        """The squared error of both critics to the same target."""
        critic_1, critic_2 = critics
        target = self.td_target(batch, noise)
        q1 = critic_1(batch.observations, batch.actions)
        q2 = critic_2(batch.observations, batch.actions)
        assert q1.shape == q2.shape == target.shape
        return square(q1 - target).mean() + square(q2 - target).mean(), {}

    def weights(self, batch: Batch, noise: Noise) -> Array:
        """The weight of each of the data's actions, (B,), from its advantage over a sampled action."""
        actor, critic_1, critic_2 = self.actor, self.critic_1, self.critic_2
        actions = sample(actor, batch.observations, noise.actor)
        value = minimum(critic_1(batch.observations, actions), critic_2(batch.observations, actions))
        q = minimum(critic_1(batch.observations, batch.actions), critic_2(batch.observations, batch.actions))
        assert q.shape == value.shape == batch.rewards.shape
        return minimum(exp((q - value) / self.hp.advantage_temperature), MAX_WEIGHT)

    def actor_loss(self, actor: Network, batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """Imitation of the data's actions, each with its weight."""
        # The weights come from the state's own actor, which is not differentiated here.
        weights = self.weights(batch, noise)
        log_probs = log_prob(actor, batch.observations, batch.actions)
        assert log_probs.shape == weights.shape
        return (-log_probs * weights).mean(), {}

    def update(self, batch: Batch, noise: Noise) -> tuple["AWAC", dict[str, Array]]:
        """One gradient step: the critics; the actor, on the new critics; the targets."""
        state, hp = self, self.hp
        critics = (state.critic_1, state.critic_2)
        (critic_loss, _), gradients = value_and_grad(state.critic_loss, has_aux=True)(critics, batch, noise)
        state = gradient_step(state, "critic_1", gradients[0])
        state = gradient_step(state, "critic_2", gradients[1])
        (actor_loss, _), gradient = value_and_grad(state.actor_loss, has_aux=True)(state.actor, batch, noise)
        state = gradient_step(state, "actor", gradient)
        state = state.replace(
            critic_1_target=soft_update(state.critic_1_target, state.critic_1, hp.tau),
            critic_2_target=soft_update(state.critic_2_target, state.critic_2, hp.tau),
        )
        return state, {"critic_loss": critic_loss, "actor_loss": actor_loss}

    def explore(self, observations: Array, noise: Exploration) -> Array:
        """Actions (E, A) to learn from, for normalised observations (E, S): the policy's samples, as in an update."""
        return sample(self.actor, observations, noise.action)


@jax.jit
def act(actor: Network, observations: Array) -> Array:
    """The policy's most likely actions (E, A), unbounded, for normalised observations (E, S)."""
    mean, _ = actor(observations)
    return mean


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="num_updates", donate_argnames="state")
def train_interval(
    state: AWAC, key: Array, dataset: PackedDataset, start: Array, num_updates: int, size: Array
) -> tuple[AWAC, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates` as one scan, their batches from the first `size` rows."""
    steps, action_dim = start + jnp.arange(num_updates), state.actor.module.action_dim
    draws = jax.vmap(lambda step: draw_noise(key, step, state.hp, size, action_dim))(steps)

    def step(state: AWAC, draw: Any) -> tuple[AWAC, dict[str, Array]]:
        indices, noise = draw
        return state.update(take(dataset, indices), noise)

    state, history = jax.lax.scan(step, state, draws, unroll=2)
    return state, [history]


@jax.jit
def next_action(state: AWAC, key: Array, step: Array, observation: Array) -> Array:
    """The action (1, A) for the environment step with this number, in a normalised observation (1, S)."""
    return state.explore(observation, draw_exploration(key, step, state.hp, state.actor.module.action_dim))


@partial(jax.jit, donate_argnames=("state", "ring"))
def train_online(
    state: AWAC, key: Array, ring: Ring, start: Array, rows: Array, observation: Array
) -> tuple[AWAC, Ring, Array, list[dict[str, Array]]]:
    """Everything between two environment steps: stores n transitions (n, W), makes n updates, and chooses an action."""
    ring, num_updates = push(ring, rows), len(rows)
    state, history = train_interval(state, key, ring, start, num_updates, ring.size)
    return state, ring, next_action(state, key, start + num_updates, observation), history


def create_train_state(key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> AWAC:
    """Fresh networks with PyTorch's initialisation."""
    observations, actions = jnp.zeros((1, state_dim)), jnp.zeros((1, action_dim))
    actor_key, critic_1_key, critic_2_key = jax.random.split(key, 3)
    actor = Network.create(Actor(action_dim, config.hidden_dim), actor_key, observations)
    critic_1 = Network.create(Critic(config.hidden_dim), critic_1_key, observations, actions)
    critic_2 = Network.create(Critic(config.hidden_dim), critic_2_key, observations, actions)
    # A donated state must not contain an array twice, so the targets are copies.
    critic_1_target, critic_2_target = jax.tree.map(jnp.copy, (critic_1, critic_2))
    adam = optax.adam(config.learning_rate)
    return AWAC(
        actor=actor,
        critic_1=critic_1,
        critic_2=critic_2,
        critic_1_target=critic_1_target,
        critic_2_target=critic_2_target,
        actor_optimizer=adam.init(actor),
        critic_1_optimizer=adam.init(critic_1),
        critic_2_optimizer=adam.init(critic_2),
        hp=narrow(config, Hyperparameters),
    )


def save(state: AWAC, path: Path, total_it: int, experience: OnlineExperience, **facts: Any) -> None:
    """Writes the new part of the experience, then a checkpoint beside it."""
    experience.save(path.parent)
    save_checkpoint(path, "finetune/awac", state, total_it, **facts)


def train(config: TrainConfig) -> Run:
    """Trains on the data, then in the environment, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used.
    """
    task = load_task(config, Preparation(rewards=CorlRewards().where(config.normalize_reward)))
    device = resolve_device(config.device)
    experience = training_environment(config, task)
    enable_compilation_cache()
    with jax.default_device(device):
        weights_key, draws_key = jax.random.split(jax.random.key(config.seed))
        state = create_train_state(weights_key, config, task.state_dim, task.action_dim, task.max_action)
        run = Run(config, task, "finetune/awac", "jax", device)
        # An offline run can be continued online, too.
        load = partial(load_checkpoint, algorithm=["finetune/awac", "awac"], state=state)
        state, total_it = restore(run, load, state, experience.go_on_from)
        dataset = to_device(task.dataset)
        online = Online(run, config, experience, draws_key, next_action, train_online)
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, act, state.actor)
            offline = History(run)
            history: History | Online = offline
            for start, end in run.calls():
                if start < config.offline_iterations:
                    updates, size = end - start, len(dataset)
                    state, found = train_together(train_interval, state, draws_key, dataset, start, updates, size)
                    offline.add(end - start, found)
                else:
                    online.begin(dataset)
                    history, (state, end) = online, online.play(state, start, end)
                write = partial(save, state, total_it=total_it + end, experience=experience)
                if run.is_due(end):
                    run.log(end, history.means(), experience.episodes)
                    run.save(end, write)
                    evaluate(run, end, act, state.actor)
                elif run.stopping:
                    run.save(end, partial(write, history=history.content()))
    experience.close()
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "finetune/awac")
