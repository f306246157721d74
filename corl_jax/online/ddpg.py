"""DDPG in JAX: a critic, and a deterministic policy that maximizes its value.

Its twin is `corl_torch/online/ddpg.py`. It learns from a dataset, or collects its own data: environment steps and
updates then alternate.

Lillicrap et al., Continuous control with deep reinforcement learning, 2015, https://arxiv.org/abs/1509.02971
"""

from collections.abc import Sequence
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
from jax.nn import one_hot
from jax.numpy import abs, argmin, clip, concatenate, square, stack, tanh, where

from shared.data.experience import Experience
from shared.data.transitions import Batch
from shared.envs.registry import is_registered
from shared.errors import InputError
from shared.frameworks.jax_calls import History, as_saved, resumed
from shared.frameworks.jax_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, store, take, to_device
from shared.frameworks.jax_layers import ImplicitQuantiles, Linear, Network
from shared.frameworks.jax_scan import scan_updates
from shared.frameworks.jax_seeds import train_together
from shared.frameworks.jax_side import enable_compilation_cache, evaluate, mean_metrics, narrow, resolve_device
from shared.runs.fields import bounded, choice, later, positive, widths
from shared.runs.online import load_online_task
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
    # Rate at which the targets follow their networks
    tau: float = bounded(0.005, low=0, high=1)
    # Transitions in a batch
    batch_size: int = bounded(256, low=1)
    # Critics; with several, the smallest target value is used
    n_critics: int = bounded(1, low=1)
    # The critics learn the return's mean (mean), its quantiles at fixed fractions (qr), or at any fraction (iqn)
    critic: str = later(choice("mean", "qr", "iqn"))
    # With qr and iqn: quantiles in an update of the critics
    n_quantiles: int = later(bounded(32, low=1))
    # With iqn: quantiles whose mean the policy learns to raise
    n_greedy_quantiles: int = later(bounded(32, low=1))
    # With iqn: cosines that encode a fraction
    embed_size: int = later(bounded(64, low=1))


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, TransitionsConfig):
    """The settings of a whole run."""

    group: str = "DDPG-D4RL"
    name: str = "DDPG"
    # Environment to learn in: d4rl/halfcheetah-v2, or any that is registered with Gymnasium. Or dataset to learn from:
    # mini/hopper-medium-replay, a D4RL id, minari:NAME, or the path of an HDF5 file
    env: str = "d4rl/halfcheetah-v2"
    # Environment steps in all, or updates on a dataset
    max_timesteps: int = bounded(500_000, low=1)
    # Environment steps, or updates on a dataset, between two evaluations
    eval_freq: int = bounded(5000, low=1)
    # Checkpoint to start from; in an environment, with its experience beside it
    load_model: str = ""
    # Widths of the policy's hidden layers
    actor_hidden_dims: tuple[int, ...] = widths(256, 256)
    # Widths of the critics' hidden layers
    critic_hidden_dims: tuple[int, ...] = widths(256, 256)
    # In an environment: standard deviation of the policy's noise, in units of the largest action
    expl_noise: float = bounded(0.1, low=0)
    # In an environment: steps of uniform actions before learning begins
    random_steps: int = bounded(10_000, low=0)
    # In an environment: steps that are followed by the same number of updates
    update_every: int = bounded(1, low=1)


# ---- networks ------------------------------------------------------------------------------------------------------


def mlp(hidden_dims: Sequence[int], *outputs: int) -> nn.Sequential:
    """Hidden layers with ReLU, and perhaps a linear layer."""
    hidden = [layer for width in hidden_dims for layer in (Linear(width), nn.relu)]
    return nn.Sequential([*hidden, *map(Linear, outputs)])


class Actor(nn.Module):
    """The policy, which gives an action for each observation: (B, S) to (B, A)."""

    action_dim: int
    max_action: float
    hidden_dims: Sequence[int]

    def setup(self) -> None:
        self.net = mlp(self.hidden_dims, self.action_dim)

    def __call__(self, observations: Array) -> Array:
        """The actions (B, A) for observations (B, S), within [-max_action, max_action]."""
        return self.max_action * tanh(self.net(observations))


class Critics(nn.Module):
    """N critics Z(s, a) with separate weights: the return's mean or quantiles."""

    hidden_dims: Sequence[int]
    hp: Hyperparameters

    def setup(self) -> None:
        hp = self.hp
        self.implicit, n_quantiles = hp.critic == "iqn", hp.n_quantiles if hp.critic == "qr" else 1

        def member() -> nn.Module:
            if self.implicit:
                return ImplicitQuantiles(mlp(self.hidden_dims), 1, hp.embed_size, hp.n_greedy_quantiles)
            return mlp(self.hidden_dims, n_quantiles)

        self.members = [member() for _ in range(hp.n_critics)]

    def __call__(
        self, observations: Array, actions: Array, fractions: Array | None = None, first: int | None = None
    ) -> Array:
        """The quantiles (N, B, K) of actions (B, A) in observations (B, S), by the first few critics (`first`) or all.

        A mean counts as one quantile. IQN's are at the fractions (N, B, K), or, without these, at evenly spaced ones.
        """
        inputs, members = concatenate([observations, actions], axis=-1), self.members[:first]
        if not self.implicit:
            return stack([member(inputs) for member in members])
        given = [None] * len(members) if fractions is None else fractions
        return stack([member(inputs, each).squeeze(1) for member, each in zip(members, given, strict=True)])


def smallest(q: Array) -> Array:
    """Selects, in each row of the quantiles (N, B, K), the critic with the smallest mean, (B, K)."""
    critic = one_hot(argmin(q.mean(axis=-1), axis=0), len(q))
    return (q * critic.T[..., None]).sum(axis=0)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """An update's draws besides its batch: with iqn, fractions uniform in [0, 1), (N, B, K), for each pass."""

    # For the value of the next action under the targets
    target_fractions: Array | None = None
    # For the value of the data's action
    error_fractions: Array | None = None


def draw_noise(key: Array, step: Array, hp: Hyperparameters, size: Array) -> tuple[Array, Noise]:
    """An update's batch indices (B,) below `size` and its fractions; the key and the update's number determine them."""
    key = jax.random.fold_in(key, step)
    if hp.critic != "iqn":
        return jax.random.randint(key, (hp.batch_size,), 0, size), Noise()
    key, *fraction_keys = jax.random.split(key, 1 + len(Noise._fields))
    indices = jax.random.randint(key, (hp.batch_size,), 0, size)
    shape = hp.n_critics, hp.batch_size, hp.n_quantiles
    return indices, Noise(*(jax.random.uniform(each, shape) for each in fraction_keys))


class Exploration(NamedTuple):
    """The random numbers that n environment steps draw."""

    # Uniform in [-1, 1), (n, A): the actions of the first `random_steps` steps, in units of max_action
    uniform: Array
    # Standard normal, (n, A): the noise on the policy's actions in all later steps
    normal: Array


@partial(jax.jit, static_argnames=("steps", "action_dim"))
def draw_exploration(key: Array, start: Array, steps: int, action_dim: int) -> Exploration:
    """The draws of the environment steps from `start` on, which depend on the key and on each one's number alone."""
    keys = jax.vmap(lambda step: jax.random.split(jax.random.fold_in(key, step)))(start + jnp.arange(steps))
    uniform = jax.vmap(lambda key: jax.random.uniform(key, (action_dim,), minval=-1.0, maxval=1.0))(keys[:, 0])
    return Exploration(uniform, jax.vmap(lambda key: jax.random.normal(key, (action_dim,)))(keys[:, 1]))


# ---- losses and update ---------------------------------------------------------------------------------------------


def adam(part: str, hp: Hyperparameters) -> optax.GradientTransformation:
    """The optimiser of one part of the state."""
    return optax.adam({"actor": hp.actor_lr, "critic": hp.critic_lr}[part])


def gradient_step(state: "DDPG", part: str, gradient: Network) -> "DDPG":
    """One step of Adam on one part of the state, down its gradient."""
    change, moments = adam(part, state.hp).update(gradient, getattr(state, f"{part}_optimizer"))
    return state.replace(**{part: optax.apply_updates(getattr(state, part), change), f"{part}_optimizer": moments})


def soft_update(target: Network, source: Network, tau: float) -> Network:
    """Polyak averaging: the target, moved a step of size tau towards the source."""
    return jax.tree.map(lambda old, new: (1.0 - tau) * old + tau * new, target, source)


def huber(error: Array) -> Array:
    """Huber's loss: half the square of errors below 1, and the absolute error minus a half for all others."""
    return where(abs(error) < 1.0, 0.5 * square(error), abs(error) - 0.5)


def fractions(q: Array, drawn: Array | None) -> Array:
    """The fractions of the quantiles q (N, B, K): the drawn ones, or with qr the middles of equal parts (K,)."""
    if drawn is not None:
        return drawn
    bounds = jnp.arange(q.shape[-1] + 1, dtype=q.dtype) / q.shape[-1]
    return (bounds[1:] + bounds[:-1]) / 2.0


def quantile_huber(q: Array, fractions: Array, target: Array) -> Array:
    """Huber's loss (N, B) of quantiles (N, B, K) against the target's (B, K'): summed over K, averaged over K'.

    Targets below a quantile have the weight 1 minus its fraction, and all others its fraction.
    """
    error = target[:, :, None] - q[:, :, None]
    loss = abs(fractions[..., None, :] - (error < 0.0)) * huber(error)
    return loss.sum(axis=-1).mean(axis=-1)


class DDPG(struct.PyTreeNode):
    """All that an update reads and writes."""

    actor: Network
    critic: Network
    actor_target: Network
    critic_target: Network
    actor_optimizer: optax.OptState
    critic_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)

    def td_target(self, batch: Batch, noise: Noise) -> Array:
        """The regression target of all critics, (B, K): the smallest target quantiles of the target policy's action."""
        hp, actor, critic = self.hp, self.actor_target, self.critic_target
        next_actions = actor(batch.next_observations)
        next_q = smallest(critic(batch.next_observations, next_actions, noise.target_fractions))
        assert next_q.shape[:1] == batch.rewards.shape == batch.terminals.shape
        return batch.rewards[:, None] + hp.discount * next_q * (1.0 - batch.terminals[:, None])

    def critic_loss(self, critic: Network, batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """The errors of all critics to the same target, added up over the critics: squared, or Huber's of quantiles."""
        target = self.td_target(batch, noise)
        q = critic(batch.observations, batch.actions, noise.error_fractions)
        assert q.shape[1] == len(target)
        if self.hp.critic == "mean":
            return square(q - target).mean(axis=(1, 2)).sum(), {}
        return quantile_huber(q, fractions(q, noise.error_fractions), target).mean(axis=1).sum(), {}

    def actor_loss(self, actor: Network, batch: Batch) -> tuple[Array, dict[str, Array]]:
        """Maximizes the mean value of the policy's actions under the first critic."""
        critic = self.critic
        q = critic(batch.observations, actor(batch.observations), None, 1).mean(axis=-1).squeeze(0)
        assert q.shape == batch.rewards.shape
        return -q.mean(), {}

    def update(self, batch: Batch, noise: Noise) -> tuple["DDPG", dict[str, Array]]:
        """One gradient step: the critics; the actor, on the new critics; the targets."""
        state, hp = self, self.hp
        (critic_loss, _), gradient = value_and_grad(state.critic_loss, has_aux=True)(state.critic, batch, noise)
        state = gradient_step(state, "critic", gradient)
        (actor_loss, _), gradient = value_and_grad(state.actor_loss, has_aux=True)(state.actor, batch)
        state = gradient_step(state, "actor", gradient)
        state = state.replace(
            critic_target=soft_update(state.critic_target, state.critic, hp.tau),
            actor_target=soft_update(state.actor_target, state.actor, hp.tau),
        )
        return state, {"critic_loss": critic_loss, "actor_loss": actor_loss}


@jax.jit
def act(actor: Network, observations: Array) -> Array:
    """The policy's actions (E, A) for observations (E, S)."""
    return actor(observations)


@jax.jit
def explore(actor: Network, expl_noise: float, observations: Array, noise: Array) -> Array:
    """The policy's actions (E, A) for observations (E, S), with a share of standard normal noise (E, A)."""
    max_action = actor.module.max_action
    return clip(actor(observations) + expl_noise * max_action * noise, -max_action, max_action)


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="num_updates", donate_argnames="state")
def train_interval(
    state: DDPG, key: Array, dataset: PackedDataset, start: Array, num_updates: int, size: Array
) -> tuple[DDPG, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates` as one scan, on the first `size` rows of the dataset.

    The number of rows is traced, so that the program stays the same while the experience grows.
    """
    hp = state.hp

    def draw(step: Array) -> tuple[Array, Noise]:
        return draw_noise(key, step, hp, size)

    def update(state: DDPG, drawn: Any, place: int) -> tuple[DDPG, dict[str, Array]]:
        indices, noise = drawn
        return state.update(take(dataset, indices), noise)

    return scan_updates(update, draw, state, start, num_updates, unroll=2)


def create_train_state(key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> DDPG:
    """Fresh networks with PyTorch's initialisation."""
    hp = narrow(config, Hyperparameters)
    observations, actions = jnp.zeros((1, state_dim)), jnp.zeros((1, action_dim))
    actor_key, critics_key = jax.random.split(key)
    actor = Network.create(Actor(action_dim, max_action, config.actor_hidden_dims), actor_key, observations)
    critic = Network.create(Critics(config.critic_hidden_dims, hp), critics_key, observations, actions)
    # A donated state must not contain an array twice, so the targets are copies.
    actor_target, critic_target = jax.tree.map(jnp.copy, (actor, critic))
    return DDPG(
        actor=actor,
        critic=critic,
        actor_target=actor_target,
        critic_target=critic_target,
        actor_optimizer=adam("actor", hp).init(actor),
        critic_optimizer=adam("critic", hp).init(critic),
        hp=hp,
    )


def save(state: DDPG, path: Path, experience: Experience, **facts: Any) -> None:
    """Writes the new part of the experience, then a checkpoint beside it."""
    experience.save(path.parent)
    save_checkpoint(path, "online/ddpg", state, experience.size, **facts)


def load(state: DDPG, path: str, experience: Experience) -> dict[str, Any]:
    """Loads a checkpoint and its experience; returns its contents."""
    content = load_checkpoint(path, "online/ddpg", state)
    experience.load(Path(path).parent, content["total_it"])
    return content


def train(config: TrainConfig) -> Run:
    """Trains on the dataset or in the environment that `env` names, evaluates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used.
    """
    return train_in_environment(config) if is_registered(config.env) else train_on_dataset(config)


def train_on_dataset(config: TrainConfig) -> Run:
    """Trains on a dataset and evaluates every `eval_freq` updates."""
    task = load_task(config, Preparation(normalise=False))
    device = resolve_device(config.device)
    enable_compilation_cache()
    with jax.default_device(device):
        weights_key, draws_key = jax.random.split(jax.random.key(config.seed))
        state = create_train_state(weights_key, config, task.state_dim, task.action_dim, task.max_action)
        run = Run(config, task, "online/ddpg", "jax", device)
        state, total_it = restore(run, partial(load_checkpoint, algorithm="online/ddpg", state=state), state)
        dataset = to_device(task.dataset)
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, act, state.actor)
            history = History(run)
            for start, step in run.calls():
                num_updates = step - start
                given = draws_key, dataset, start, num_updates, len(dataset)
                state, found = train_together(train_interval, state, *given)
                history.add(num_updates, found)
                write = partial(save_checkpoint, algorithm="online/ddpg", state=state, total_it=total_it + step)
                if run.is_due(step):
                    run.log(step, history.means())
                    run.save(step, write)
                    evaluate(run, step, act, state.actor)
                elif run.stopping:
                    run.save(step, partial(write, history=history.content()))
    return run


def train_in_environment(config: TrainConfig) -> Run:
    """Trains in an environment and evaluates every `eval_freq` of its steps.

    To resume, a run only needs its train state, its experience and its number of steps. Each interval between
    evaluations begins with a new episode. The start of that episode depends on the seed and the number of steps.
    """
    task = load_online_task(config)
    device = resolve_device(config.device)
    enable_compilation_cache()
    with jax.default_device(device):
        weights_key, draws_key, exploration_key = jax.random.split(jax.random.key(config.seed), 3)
        state = create_train_state(weights_key, config, task.state_dim, task.action_dim, task.max_action)
        cut = config.max_episode_steps
        experience = Experience(config.env, config.max_timesteps, max_episode_steps=cut, units=task.units)
        run = Run(config, task, "online/ddpg", "jax", device, unit="step")
        state, _ = restore(run, partial(load, state, experience=experience), state)
        if experience.size == config.max_timesteps and not run.step:
            raise InputError(f"{config.load_model} has {experience.size} environment steps: set max_timesteps to more")
        dataset = store(to_device(task.dataset), experience.transitions(), 0)
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, act, state.actor)
            history = resumed(run)
            for start, end in experience.intervals(config, run.began):
                while experience.size < end and not run.stopping:
                    first = experience.size
                    steps = min(config.update_every, end - first)
                    exploration = draw_exploration(exploration_key, first, steps, task.action_dim)
                    policy = partial(explore, state.actor, config.expl_noise)
                    experience.play(policy, exploration, config.random_steps)
                    dataset = store(dataset, experience.transitions(first), first)
                    num_updates = steps if experience.size > config.random_steps else 0
                    if num_updates:
                        given = draws_key, dataset, first, num_updates, experience.size
                        state, metrics = train_interval(state, *given)
                        history += metrics
                    run.advance(num_updates, steps)
                if experience.size < end:
                    write = partial(save, state, experience=experience, history=as_saved(history), began=start)
                    run.save(experience.size, write)
                experience.cut()
                run.log(end, mean_metrics(history))
                history.clear()
                run.save(end, partial(save, state, experience=experience))
                evaluate(run, end, act, state.actor)
    experience.close()
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "online/ddpg")
