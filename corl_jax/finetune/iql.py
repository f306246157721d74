"""IQL in JAX, offline to online: learns from data first, then in the environment with a policy that explores.

Its twin is `corl_torch/finetune/iql.py`. The losses and the update are from `corl_jax/iql.py`.

Kostrikov et al., Offline Reinforcement Learning with Implicit Q-Learning, 2021, https://arxiv.org/abs/2110.06169
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
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
from jax.numpy import broadcast_to, exp, log, minimum, sin, square, tanh

from shared.data.online import OnlineExperience
from shared.data.rewards import CorlRewards
from shared.data.transitions import Batch
from shared.errors import InputError
from shared.frameworks.jax_calls import History
from shared.frameworks.jax_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, take, to_device
from shared.frameworks.jax_layers import Linear, Network, clamp, dropout_mask, is_key
from shared.frameworks.jax_online import Online
from shared.frameworks.jax_ring import Ring, push
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

    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Rate at which the target critics follow the critics
    tau: float = bounded(0.005, low=0, high=1)
    # Inverse temperature of the policy: how steeply an action's weight grows with its advantage
    inverse_temperature: float = bounded(3.0, low=0)
    # Expectile of the values of the data's actions that V(s) regresses to; above 0.5, it is nearer to the best
    iql_tau: float = bounded(0.7, low=0, high=1)
    # Updates on the dataset alone, over which the policy's learning rate falls to 0; after that, it rises again
    offline_iterations: int = bounded(1_000_000, low=0)
    # Transitions in a batch
    batch_size: int = bounded(256, low=1)
    # Learning rate of V
    value_lr: float = positive(3e-4)
    # Learning rate of the critics
    critic_lr: float = positive(3e-4)
    # Initial learning rate of the policy
    actor_lr: float = positive(3e-4)
    # Dropout rate after the policy's hidden layers; 0: no dropout
    actor_dropout: float = bounded(0.0, low=0, high=0.99)
    # Standard deviation of the noise with which a deterministic policy explores
    expl_noise: float = bounded(0.03, low=0)
    # Largest size of that noise
    expl_noise_clip: float = bounded(0.5, low=0)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, FinetuneConfig):
    """The settings of a whole run."""

    group: str = "IQL-D4RL"
    name: str = "IQL"
    # Updates, offline or online, between two evaluations; one is also made at the end of the offline phase
    eval_freq: int = bounded(50_000, low=1)
    # Episodes in an evaluation
    n_episodes: int = bounded(100, low=1)
    # Seed of the weights, the batches, the dropout, the exploration and all start states
    seed: int = bounded(0, low=0, high=2**32 - 1)
    # Use a deterministic policy, which regresses to actions, instead of a Gaussian one
    iql_deterministic: bool = False
    # Normalise states to mean 0 and standard deviation 1
    normalize: bool = True
    # Scale rewards: by CORL's rule for D4RL's datasets; for your own data, so that returns span 1000
    normalize_reward: bool = False


# ---- networks ------------------------------------------------------------------------------------------------------


def dropout(inputs: Array) -> Array:
    """A placeholder for a dropout layer, because layer numbers are part of CORL's names; masks are passed in."""
    return inputs


class MLP(nn.Module):
    """Two hidden layers of 256 with ReLU: (B, I) to (B, O)."""

    output_dim: int
    has_dropout: bool = False

    def setup(self) -> None:
        dropout_layer = [dropout] if self.has_dropout else []
        self.net = nn.Sequential([
            Linear(256),
            nn.relu,
            *dropout_layer,
            Linear(256),
            nn.relu,
            *dropout_layer,
            Linear(self.output_dim),
        ])  # fmt: skip

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
        inputs = jnp.concatenate([observations, actions], axis=-1)
        return self.q1(inputs).squeeze(-1), self.q2(inputs).squeeze(-1)


class ValueFunction(nn.Module):
    """V(s)."""

    def setup(self) -> None:
        self.v = MLP(1)

    def __call__(self, observations: Array) -> Array:
        """The values (B,) of observations (B, S)."""
        return self.v(observations).squeeze(-1)


class Actor(nn.Module):
    """The policy: a normal distribution with one standard deviation for all states, or its mean alone."""

    action_dim: int
    max_action: float
    deterministic: bool
    has_dropout: bool

    def setup(self) -> None:
        self.net = MLP(self.action_dim, self.has_dropout)
        self.log_std = None if self.deterministic else self.param("log_std", zeros, (self.action_dim,), float)

    def __call__(self, observations: Array, masks: Iterable[Array] | None = None) -> tuple[Array, Array | None]:
        """Mean within [-1, 1] and standard deviation, None if deterministic, both (B, A), for observations (B, S)."""
        mean = tanh(self.net(observations, masks))
        if self.log_std is None:
            return mean, None
        return mean, broadcast_to(exp(clamp(self.log_std, -20.0, 2.0)), mean.shape)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    # Dropout masks for the policy's two hidden layers, (B, 256) each, or a key to draw them; None without dropout
    dropout: Array | tuple[Array, ...] | None


def draw_noise(key: Array, step: Array, hp: Hyperparameters, size: Array, action_dim: int) -> tuple[Array, Noise]:
    """An update's batch indices (B,) below `size` and a key for its dropout, from the key and the update's number.

    The masks of a whole interval would fill the memory, so each update draws its own.
    """
    index_key, dropout_key, _ = jax.random.split(jax.random.fold_in(key, step), 3)
    indices = jax.random.randint(index_key, (hp.batch_size,), 0, size)
    return indices, Noise(dropout=dropout_key if hp.actor_dropout > 0.0 else None)


def dropout_masks(noise: Noise, hp: Hyperparameters) -> tuple[Array, ...] | None:
    """The masks for the policy's hidden layers: the noise's own, or drawn from its key."""
    if not is_key(noise.dropout):
        assert not isinstance(noise.dropout, Array)
        return noise.dropout
    keys = jax.random.split(noise.dropout)
    return tuple(dropout_mask(key, hp.actor_dropout, (hp.batch_size, 256)) for key in keys)


class Exploration(NamedTuple):
    """The random numbers that a step in the environment draws."""

    # Dropout masks for the policy's hidden layers, (1, 256) each: it acts with dropout, too; None without dropout
    dropout: tuple[Array, ...] | None
    # Standard normal, (1, A)
    action: Array


def draw_exploration(key: Array, step: Array, hp: Hyperparameters, action_dim: int) -> Exploration:
    """The draws of one step in the environment, which depend on the key and the step's number alone."""
    # The third of these keys: the update of the same number draws from the first two.
    keys = jax.random.split(jax.random.split(jax.random.fold_in(key, step), 3)[2], 3)
    masks = None
    if hp.actor_dropout > 0.0:
        masks = tuple(dropout_mask(key, hp.actor_dropout, (1, 256)) for key in keys[:2])
    return Exploration(dropout=masks, action=jax.random.normal(keys[2], (1, action_dim)))


# ---- losses and update ---------------------------------------------------------------------------------------------

# The largest weight of an action in the policy's loss
MAX_WEIGHT = 100.0
LOG_SQRT_2PI = math.log(math.sqrt(2.0 * math.pi))


def actor_lr(hp: Hyperparameters, step: Array) -> Array:
    """The policy's learning rate after `step` updates: a cosine from `actor_lr` to 0 at the switch, and up again.

    In single precision, 1 + cos(x) has no correct digit near the switch. Half of it is therefore written as the squared
    sine of the distance to the switch, a whole number of updates. Optax's schedule would stay at 0.
    """
    missing = hp.offline_iterations - step
    return hp.actor_lr * square(sin(math.pi / 2.0 * missing / hp.offline_iterations))


def adam(part: str, hp: Hyperparameters) -> optax.GradientTransformation:
    """The optimiser of one part of the state."""
    rates = {"value": hp.value_lr, "critic": hp.critic_lr, "actor": partial(actor_lr, hp)}
    return optax.adam(rates[part])


def gradient_step(state: "IQL", part: str, gradient: Network) -> "IQL":
    """One step of Adam on one part of the state, down its gradient."""
    change, moments = adam(part, state.hp).update(gradient, getattr(state, f"{part}_optimizer"))
    return state.replace(**{part: optax.apply_updates(getattr(state, part), change), f"{part}_optimizer": moments})


def soft_update(target: Network, source: Network, tau: float) -> Network:
    """Polyak averaging: the target, moved a step of size tau towards the source."""
    return jax.tree.map(lambda old, new: (1.0 - tau) * old + tau * new, target, source)


class IQL(struct.PyTreeNode):
    """All that an update reads and writes."""

    critic: Network
    value: Network
    actor: Network
    critic_target: Network
    value_optimizer: optax.OptState
    critic_optimizer: optax.OptState
    actor_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)

    def target_q(self, batch: Batch) -> Array:
        """The smaller target value of the data's actions, (B,)."""
        q1, q2 = self.critic_target(batch.observations, batch.actions)
        return minimum(q1, q2)

    def expectile_weight(self, adv: Array) -> Array:
        """The weight of each advantage (B,) in V's loss: `iql_tau` if it is positive or 0, otherwise 1 - `iql_tau`."""
        return abs(self.hp.iql_tau - 1.0 * (adv < 0.0))

    def value_loss(self, value: Network, batch: Batch) -> tuple[Array, dict[str, Array]]:
        """Expectile regression of V to the values of the data's actions."""
        v = value(batch.observations)
        adv = self.target_q(batch) - v
        assert adv.shape == v.shape == batch.rewards.shape
        return (self.expectile_weight(adv) * square(adv)).mean(), {"adv": adv}

    def td_target(self, batch: Batch) -> Array:
        """The regression target of both critics, (B,), for which no action is chosen."""
        next_v = self.value(batch.next_observations)
        assert next_v.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + (1.0 - batch.terminals) * self.hp.discount * next_v

    def q_loss(self, critic: Network, batch: Batch) -> tuple[Array, dict[str, Array]]:
        """The squared error of both critics to the same target, averaged over them."""
        target = self.td_target(batch)
        q1, q2 = critic(batch.observations, batch.actions)
        assert q1.shape == q2.shape == target.shape
        return (square(q1 - target).mean() + square(q2 - target).mean()) / 2.0, {}

    def actor_loss(self, actor: Network, batch: Batch, noise: Noise, adv: Array) -> tuple[Array, dict[str, Array]]:
        """Behaviour cloning, in which each action is weighted by the exponential of its advantage (B,)."""
        hp = self.hp
        # As in CORL, the mean is compared with the data's actions unscaled, whatever the largest action.
        mean, std = actor(batch.observations, dropout_masks(noise, hp))
        if std is None:
            bc_loss = square(mean - batch.actions).sum(axis=-1)
        else:
            log_prob = -square(batch.actions - mean) / (2.0 * square(std)) - log(std) - LOG_SQRT_2PI
            bc_loss = -log_prob.sum(axis=-1)
        weight = clamp(exp(hp.inverse_temperature * adv), 0.0, MAX_WEIGHT)
        assert mean.shape == batch.actions.shape
        assert weight.shape == bc_loss.shape == batch.rewards.shape
        return (weight * bc_loss).mean(), {}

    def update(self, batch: Batch, noise: Noise) -> tuple["IQL", dict[str, Array]]:
        """One gradient step: every loss at the old parameters, then every optimiser's step; last the target critics."""
        state, hp = self, self.hp
        (value_loss, aux), value_gradient = value_and_grad(state.value_loss, has_aux=True)(state.value, batch)
        (q_loss, _), critic_gradient = value_and_grad(state.q_loss, has_aux=True)(state.critic, batch)
        (actor_loss, _), actor_gradient = value_and_grad(state.actor_loss, has_aux=True)(
            state.actor, batch, noise, aux["adv"]
        )
        state = gradient_step(state, "value", value_gradient)
        state = gradient_step(state, "critic", critic_gradient)
        state = gradient_step(state, "actor", actor_gradient)
        state = state.replace(critic_target=soft_update(state.critic_target, state.critic, hp.tau))
        metrics = {"value_loss": value_loss, "q_loss": q_loss, "actor_loss": actor_loss}
        return state, metrics

    def explore(self, observations: Array, noise: Exploration) -> Array:
        """Actions (E, A) to learn from, for normalised observations (E, S): sampled, or with added noise."""
        hp, actor, max_action = self.hp, self.actor, self.actor.module.max_action
        mean, std = actor(observations, noise.dropout)
        if std is None:
            action = mean + clamp(hp.expl_noise * noise.action, -hp.expl_noise_clip, hp.expl_noise_clip)
        else:
            action = mean + std * noise.action
        return clamp(max_action * action, -max_action, max_action)


@jax.jit
def act(actor: Network, observations: Array) -> Array:
    """The policy's most likely actions (E, A) for normalised observations (E, S), without dropout."""
    max_action = actor.module.max_action
    mean, _ = actor(observations)
    return clamp(max_action * mean, -max_action, max_action)


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="num_updates", donate_argnames="state")
def train_interval(
    state: IQL, key: Array, dataset: PackedDataset, start: Array, num_updates: int, size: Array
) -> tuple[IQL, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates` as one scan, their batches from the first `size` rows."""
    hp, action_dim = state.hp, state.actor.module.action_dim
    steps = start + jnp.arange(num_updates)
    draws = jax.vmap(lambda step: draw_noise(key, step, hp, size, action_dim))(steps)

    def step(state: IQL, draws: tuple[Array, Noise]) -> tuple[IQL, dict[str, Array]]:
        indices, noise = draws
        return state.update(take(dataset, indices), noise)

    state, history = jax.lax.scan(step, state, draws)
    return state, [history]


@jax.jit
def next_action(state: IQL, key: Array, step: Array, observation: Array) -> Array:
    """The action (1, A) for the environment step with this number, in a normalised observation (1, S)."""
    return state.explore(observation, draw_exploration(key, step, state.hp, state.actor.module.action_dim))


@partial(jax.jit, donate_argnames=("state", "ring"))
def train_online(
    state: IQL, key: Array, ring: Ring, start: Array, rows: Array, observation: Array
) -> tuple[IQL, Ring, Array, list[dict[str, Array]]]:
    """Everything between two environment steps: stores n transitions (n, W), makes n updates, and chooses an action."""
    ring, num_updates = push(ring, rows), len(rows)
    state, history = train_interval(state, key, ring, start, num_updates, ring.size)
    return state, ring, next_action(state, key, start + num_updates, observation), history


def create_train_state(key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> IQL:
    """Fresh networks with PyTorch's initialisation."""
    hp = narrow(config, Hyperparameters)
    observations, actions = jnp.zeros((1, state_dim)), jnp.zeros((1, action_dim))
    qf_key, vf_key, actor_key = jax.random.split(key, 3)
    critic = Network.create(TwinQ(), qf_key, observations, actions)
    value = Network.create(ValueFunction(), vf_key, observations)
    has_dropout = config.actor_dropout > 0.0
    actor_module = Actor(action_dim, max_action, config.iql_deterministic, has_dropout)
    actor = Network.create(actor_module, actor_key, observations)
    return IQL(
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


def save(state: IQL, path: Path, total_it: int, experience: OnlineExperience, **facts: Any) -> None:
    """Writes the new part of the experience, then a checkpoint beside it."""
    experience.save(path.parent)
    save_checkpoint(path, "finetune/iql", state, total_it, lr_period=state.hp.offline_iterations, **facts)


def load(state: IQL, path: str) -> dict[str, Any]:
    """Loads a checkpoint, also of an offline run; returns its contents.

    The learning rate's schedule continues where it was, with the same period.
    """
    content = load_checkpoint(path, ["finetune/iql", "iql"], state)
    settings = content.get("settings", {})
    own = settings.get("offline_iterations", settings.get("max_timesteps", state.hp.offline_iterations))
    hp = replace(state.hp, offline_iterations=content.get("lr_period", own))
    return {**content, "state": content["state"].replace(hp=hp)}


def train(config: TrainConfig) -> Run:
    """Trains on the data, then in the environment, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used. Or there is no offline phase, and no
            checkpoint contains the schedule of the policy's learning rate.
    """
    if not config.offline_iterations and not config.load_model:
        raise InputError("the policy's learning rate has a period of offline_iterations: set it to 1 or more")
    preparation = Preparation(rewards=CorlRewards().where(config.normalize_reward), normalise=config.normalize)
    task = load_task(config, preparation)
    device = resolve_device(config.device)
    experience = training_environment(config, task)
    enable_compilation_cache()
    with jax.default_device(device):
        weights_key, draws_key = jax.random.split(jax.random.key(config.seed))
        state = create_train_state(weights_key, config, task.state_dim, task.action_dim, task.max_action)
        run = Run(config, task, "finetune/iql", "jax", device)
        state, total_it = restore(run, partial(load, state), state, experience.go_on_from)
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
    cli(train, TrainConfig, "finetune/iql")
