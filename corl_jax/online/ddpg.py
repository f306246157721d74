"""DDPG in JAX: a critic, and a deterministic policy that climbs it.

Its twin is `corl_torch/online/ddpg.py`. It learns from a dataset, or makes its own data: environment steps and updates
then take turns.

Lillicrap et al., Continuous control with deep reinforcement learning, 2015, https://arxiv.org/abs/1509.02971
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from shared.runs.start import cli

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct
from jax import Array, value_and_grad
from jax.numpy import amin, clip, concatenate, square, stack, tanh

from shared.data.experience import Experience
from shared.data.transitions import Batch
from shared.envs.registry import is_registered
from shared.errors import InputError
from shared.frameworks.jax_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, store, take, to_device
from shared.frameworks.jax_layers import Linear, Network
from shared.frameworks.jax_seeds import train_together
from shared.frameworks.jax_side import enable_compilation_cache, evaluate, mean_metrics, narrow, resolve_device
from shared.runs.fields import bounded, positive, widths
from shared.runs.run import Run
from shared.runs.settings import TransitionsConfig
from shared.runs.task import load_environment, load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """What an update depends on."""

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


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, TransitionsConfig):
    """A whole run."""

    group: str = "DDPG-D4RL"
    name: str = "DDPG"
    # Environment to learn in: d4rl/halfcheetah-v2, or any that is registered with Gymnasium. Or dataset to learn from:
    # mini/hopper-medium-replay, a D4RL id, minari:NAME, or the path of an HDF5 file
    env: str = "d4rl/halfcheetah-v2"
    # Steps of the environment in all; updates on a dataset
    max_timesteps: int = bounded(500_000, low=1)
    # Steps of the environment, or updates on a dataset, between two evaluations
    eval_freq: int = bounded(5000, low=1)
    # Checkpoint to start from; in an environment, with its experience beside it
    load_model: str = ""
    # Critics: of several, the smallest target value counts
    n_critics: int = bounded(1, low=1)
    # Widths of the policy's hidden layers
    actor_hidden_dims: tuple[int, ...] = widths(256, 256)
    # Widths of the critics' hidden layers
    critic_hidden_dims: tuple[int, ...] = widths(256, 256)
    # In an environment: standard deviation of the policy's noise, in units of the largest action
    exploration_noise: float = bounded(0.1, low=0)
    # In an environment: steps of uniform actions before learning begins
    random_steps: int = bounded(10_000, low=0)
    # In an environment: steps before as many updates
    update_every: int = bounded(1, low=1)

    REFERENCE_NAMES: ClassVar[dict[str, str]] = {
        "gamma": "discount",
        "actor_learning_rate": "actor_lr",
        "critic_learning_rate": "critic_lr",
        "n_trials": "n_episodes",
        "dataset": "env",
    }


# ---- networks ------------------------------------------------------------------------------------------------------


def mlp(hidden_dims: Sequence[int], output_dim: int) -> nn.Sequential:
    """Hidden layers with ReLU, and a linear one."""
    return nn.Sequential([*(layer for width in hidden_dims for layer in (Linear(width), nn.relu)), Linear(output_dim)])


class Actor(nn.Module):
    """The policy: an action for each observation, (B, S) to (B, A)."""

    action_dim: int
    max_action: float
    hidden_dims: Sequence[int]

    def setup(self) -> None:
        self.net = mlp(self.hidden_dims, self.action_dim)

    def __call__(self, observations: Array) -> Array:
        """The actions (B, A) for observations (B, S), within [-max_action, max_action]."""
        return self.max_action * tanh(self.net(observations))


class Critics(nn.Module):
    """N critics Q(s, a) with weights of their own."""

    hidden_dims: Sequence[int]
    n_critics: int

    def setup(self) -> None:
        self.members = [mlp(self.hidden_dims, 1) for _ in range(self.n_critics)]

    def __call__(self, observations: Array, actions: Array, first: int | None = None) -> Array:
        """The values (N, B) of actions (B, A) in observations (B, S); only those of the first so many critics."""
        inputs = concatenate([observations, actions], axis=-1)
        return stack([member(inputs).squeeze(-1) for member in self.members[:first]])


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """An update draws nothing besides its batch."""


def draw_noise(key: Array, step: Array, hp: Hyperparameters, size: Array) -> tuple[Array, Noise]:
    """An update's batch indices (B,) below `size`; the key and the update's number decide the rest."""
    return jax.random.randint(jax.random.fold_in(key, step), (hp.batch_size,), 0, size), Noise()


class Exploration(NamedTuple):
    """What n environment steps draw."""

    # Uniform in [-1, 1), (n, A): the actions of the first `random_steps` steps, in units of max_action
    uniform: Array
    # Standard normal, (n, A): the noise on the policy's actions in all others
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
    return optax.adam({"actor": hp.actor_lr, "critics": hp.critic_lr}[part])


def gradient_step(state: "DDPG", part: str, gradient: Network) -> "DDPG":
    """One step of Adam on one part of the state, down its gradient."""
    change, moments = adam(part, state.hp).update(gradient, getattr(state, f"{part}_optimizer"))
    return state.replace(**{part: optax.apply_updates(getattr(state, part), change), f"{part}_optimizer": moments})


def soft_update(target: Network, source: Network, tau: float) -> Network:
    """Polyak: the target, a step of size tau nearer to the source."""
    return jax.tree.map(lambda old, new: (1.0 - tau) * old + tau * new, target, source)


class DDPG(struct.PyTreeNode):
    """All that an update reads and writes."""

    actor: Network
    critics: Network
    actor_target: Network
    critics_target: Network
    actor_optimizer: optax.OptState
    critics_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)

    def td_target(self, batch: Batch) -> Array:
        """The regression target of all critics, (B,): the smallest target value of the target policy's action."""
        hp, actor, critics = self.hp, self.actor_target, self.critics_target
        next_actions = actor(batch.next_observations)
        next_q = amin(critics(batch.next_observations, next_actions), axis=0)
        assert next_q.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + hp.discount * next_q * (1.0 - batch.terminals)

    def critic_loss(self, critics: Network, batch: Batch) -> tuple[Array, dict[str, Array]]:
        """The squared errors of all critics to the same target, added up over the critics."""
        target = self.td_target(batch)
        q = critics(batch.observations, batch.actions)
        assert q.shape[1:] == target.shape
        return square(q - target).mean(axis=1).sum(), {}

    def actor_loss(self, actor: Network, batch: Batch) -> tuple[Array, dict[str, Array]]:
        """The value of the policy's actions under the first critic, to be large."""
        critics = self.critics
        q = critics(batch.observations, actor(batch.observations), 1).squeeze(0)
        assert q.shape == batch.rewards.shape
        return -q.mean(), {}

    def update(self, batch: Batch, noise: Noise) -> tuple["DDPG", dict[str, Array]]:
        """One gradient step: the critics; the actor, on the new critics; the targets."""
        state, hp = self, self.hp
        (critic_loss, _), gradient = value_and_grad(state.critic_loss, has_aux=True)(state.critics, batch)
        state = gradient_step(state, "critics", gradient)
        (actor_loss, _), gradient = value_and_grad(state.actor_loss, has_aux=True)(state.actor, batch)
        state = gradient_step(state, "actor", gradient)
        state = state.replace(
            critics_target=soft_update(state.critics_target, state.critics, hp.tau),
            actor_target=soft_update(state.actor_target, state.actor, hp.tau),
        )
        return state, {"critic_loss": critic_loss, "actor_loss": actor_loss}


@jax.jit
def act(actor: Network, observations: Array) -> Array:
    """The policy's actions (E, A) for observations (E, S)."""
    return actor(observations)


@jax.jit
def explore(actor: Network, exploration_noise: float, observations: Array, noise: Array) -> Array:
    """The policy's actions (E, A) for observations (E, S), with a share of standard normal noise (E, A)."""
    max_action = actor.module.max_action
    return clip(actor(observations) + exploration_noise * max_action * noise, -max_action, max_action)


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="num_updates", donate_argnames="state")
def train_interval(
    state: DDPG, key: Array, dataset: PackedDataset, start: Array, num_updates: int, size: Array
) -> tuple[DDPG, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates` as one scan, on the first `size` rows of the dataset.

    The number of rows is traced: experience grows, the program stays.
    """
    draws = jax.vmap(lambda step: draw_noise(key, step, state.hp, size))(start + jnp.arange(num_updates))

    def step(state: DDPG, draw: Any) -> tuple[DDPG, dict[str, Array]]:
        indices, noise = draw
        return state.update(take(dataset, indices), noise)

    state, history = jax.lax.scan(step, state, draws, unroll=2)
    return state, [history]


def create_train_state(key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> DDPG:
    """Fresh networks with PyTorch's initialisation."""
    hp = narrow(config, Hyperparameters)
    observations, actions = jnp.zeros((1, state_dim)), jnp.zeros((1, action_dim))
    actor_key, critics_key = jax.random.split(key)
    actor = Network.create(Actor(action_dim, max_action, config.actor_hidden_dims), actor_key, observations)
    critics = Network.create(Critics(config.critic_hidden_dims, config.n_critics), critics_key, observations, actions)
    # A donated state may hold no array twice, so the targets are copies.
    actor_target, critics_target = jax.tree.map(jnp.copy, (actor, critics))
    return DDPG(
        actor=actor,
        critics=critics,
        actor_target=actor_target,
        critics_target=critics_target,
        actor_optimizer=adam("actor", hp).init(actor),
        critics_optimizer=adam("critics", hp).init(critics),
        hp=hp,
    )


def save(state: DDPG, path: Path, experience: Experience, **facts: Any) -> None:
    """Writes what is new of the experience, then a checkpoint beside it."""
    experience.save(path.parent)
    save_checkpoint(path, "online/ddpg", state, experience.size, **facts)


def load(state: DDPG, path: str, experience: Experience) -> dict[str, Any]:
    """Loads a checkpoint and its experience; returns what it holds."""
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
    task = load_task(config, None, normalize=False)
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
            for start in range(run.step, config.max_timesteps, config.eval_freq):
                num_updates = min(config.eval_freq, config.max_timesteps - start)
                given = draws_key, dataset, start, num_updates, len(dataset)
                state, history = train_together(train_interval, state, *given)
                run.started()
                step = start + num_updates
                run.log(step, mean_metrics(history))
                run.advance(num_updates)
                write = partial(save_checkpoint, algorithm="online/ddpg", state=state, total_it=total_it + step)
                run.save(step, write)
                evaluate(run, step, act, state.actor)
    return run


def train_in_environment(config: TrainConfig) -> Run:
    """Trains in an environment and evaluates every `eval_freq` of its steps.

    A run goes on from its train state, its experience and its number of steps alone. Each interval between evaluations
    begins with a new episode. The start of that episode follows from the seed and the number of steps.
    """
    task = load_environment(config)
    device = resolve_device(config.device)
    enable_compilation_cache()
    with jax.default_device(device):
        weights_key, draws_key, exploration_key = jax.random.split(jax.random.key(config.seed), 3)
        state = create_train_state(weights_key, config, task.state_dim, task.action_dim, task.max_action)
        experience = Experience(config.env, config.max_timesteps)
        run = Run(config, task, "online/ddpg", "jax", device, unit="step")
        state, _ = restore(run, partial(load, state, experience=experience), state)
        if experience.size == config.max_timesteps and not run.step:
            raise InputError(f"{config.load_model} has {experience.size} environment steps: set max_timesteps to more")
        dataset = store(to_device(task.dataset), experience.transitions(), 0)
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, act, state.actor)
            for start in range(experience.size, config.max_timesteps, config.eval_freq):
                end = min(start + config.eval_freq, config.max_timesteps)
                experience.begin(config.seed, start)
                history = []
                while experience.size < end:
                    first = experience.size
                    steps = min(config.update_every, end - first)
                    exploration = draw_exploration(exploration_key, first, steps, task.action_dim)
                    policy = partial(explore, state.actor, config.exploration_noise)
                    experience.play(policy, exploration, config.random_steps)
                    dataset = store(dataset, experience.transitions(first), first)
                    num_updates = steps if experience.size > config.random_steps else 0
                    if num_updates:
                        given = draws_key, dataset, first, num_updates, experience.size
                        state, metrics = train_interval(state, *given)
                        history += metrics
                    run.advance(num_updates, steps)
                experience.cut()
                run.log(end, mean_metrics(history))
                run.save(end, partial(save, state, experience=experience))
                evaluate(run, end, act, state.actor)
    experience.close()
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "online/ddpg")
