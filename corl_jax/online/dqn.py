"""DQN in JAX: a value for each of finitely many actions, learnt from replayed steps with a frozen target network.

Its twin is `corl_torch/online/dqn.py`. It learns from a dataset, or collects its own data: environment steps and
updates then alternate. With `double` it is Double DQN.

Mnih et al., Human-level control through deep reinforcement learning, 2015, https://doi.org/10.1038/nature14236
van Hasselt, Guez & Silver, Deep Reinforcement Learning with Double Q-learning, 2015, https://arxiv.org/abs/1509.06461
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from shared.runs.start import cli

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax import struct
from jax import Array, value_and_grad
from jax.nn import one_hot
from jax.numpy import abs, argmax, argmin, square, stack, where

from shared.data.experience import Experience
from shared.data.transitions import Batch
from shared.envs.evaluation import epsilon_greedy
from shared.envs.registry import is_registered
from shared.envs.spaces import Shape, axes
from shared.errors import InputError
from shared.frameworks.jax_calls import History, as_saved, resumed
from shared.frameworks.jax_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, store, take, to_device
from shared.frameworks.jax_encoders import convolutions
from shared.frameworks.jax_layers import ImplicitQuantiles, Linear, Network
from shared.frameworks.jax_scan import scan_updates
from shared.frameworks.jax_seeds import train_together
from shared.frameworks.jax_side import enable_compilation_cache, evaluate, mean_metrics, narrow, resolve_device
from shared.runs.fields import bounded, choice, later, positive, widths
from shared.runs.online import load_online_task
from shared.runs.run import Run
from shared.runs.settings import ImagesConfig, TransitionsConfig
from shared.runs.task import Preparation, load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Learning rate
    learning_rate: float = positive(6.25e-5)
    # Adam's epsilon, which is added to the root in its step
    adam_eps: float = positive(1e-8)
    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Double DQN: the critics choose the next action and the targets give its value; false: the targets do both
    double: bool = False
    # Updates between two copies of the critics into the targets; the first update makes the first copy
    target_update_period: int = bounded(8000, low=1)
    # Transitions in a batch
    batch_size: int = bounded(32, low=1)
    # Critics
    n_critics: int = bounded(1, low=1)
    # The critics learn the return's mean (mean), its quantiles at fixed fractions (qr), or at any fraction (iqn)
    critic: str = later(choice("mean", "qr", "iqn"))
    # With qr and iqn: quantiles in an update
    n_quantiles: int = later(bounded(32, low=1))
    # With iqn: quantiles whose mean decides how to act
    n_greedy_quantiles: int = later(bounded(32, low=1))
    # With iqn: cosines that encode a fraction
    embed_size: int = later(bounded(64, low=1))


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, ImagesConfig, TransitionsConfig):
    """The settings of a whole run."""

    group: str = "DQN"
    name: str = "DQN"
    # Environment to learn in: CartPole-v1, or any that is registered with Gymnasium and has finite actions. Or dataset
    # to learn from: mini/cartpole-replay, minari:NAME, or the path of an HDF5 file
    env: str = "CartPole-v1"
    # Environment steps in all, or updates on a dataset
    max_timesteps: int = bounded(1_000_000, low=1)
    # Environment steps, or updates on a dataset, between two evaluations
    eval_freq: int = bounded(10_000, low=1)
    # Share of random actions in an evaluation
    eval_epsilon: float = bounded(0.0, low=0, high=1)
    # Checkpoint to start from; in an environment, with its experience beside it
    load_model: str = ""
    # Widths of the hidden layers
    hidden_dims: tuple[int, ...] = widths(256, 256)
    # In an environment: share of random actions at the beginning
    epsilon_start: float = bounded(1.0, low=0, high=1)
    # In an environment: share of random actions at the end
    epsilon_end: float = bounded(0.1, low=0, high=1)
    # In an environment: steps over which that share goes from its first to its last value
    epsilon_steps: int = bounded(1_000_000, low=1)
    # In an environment: steps before learning begins, or one batch's worth if that is more
    learning_starts: int = bounded(0, low=0)
    # In an environment: steps between two rounds of updates
    update_interval: int = bounded(1, low=1)
    # In an environment: updates in each of these rounds
    n_updates: int = bounded(1, low=1)


# ---- networks ------------------------------------------------------------------------------------------------------


def mlp(encoder: str, hidden_dims: Sequence[int], *outputs: int) -> nn.Sequential:
    """Convolutions if there are any, hidden layers with ReLU, and perhaps a linear layer."""
    hidden = [layer for width in hidden_dims for layer in (Linear(width), nn.relu)]
    return nn.Sequential([*convolutions(encoder), *hidden, *map(Linear, outputs)])


class Critics(nn.Module):
    """N critics Z(s, .) of all actions at once, with separate weights: the return's mean or quantiles."""

    action_dim: int
    encoder: str
    hidden_dims: Sequence[int]
    hp: Hyperparameters

    def setup(self) -> None:
        hp = self.hp
        self.implicit, self.n_quantiles = hp.critic == "iqn", hp.n_quantiles if hp.critic == "qr" else 1

        def member() -> nn.Module:
            if self.implicit:
                hidden = mlp(self.encoder, self.hidden_dims)
                return ImplicitQuantiles(hidden, self.action_dim, hp.embed_size, hp.n_greedy_quantiles)
            return mlp(self.encoder, self.hidden_dims, self.action_dim * self.n_quantiles)

        self.members = [member() for _ in range(hp.n_critics)]

    def __call__(self, observations: Array, fractions: Array | None = None) -> list[Array]:
        """Each critic's quantiles (B, A, K) of all actions in observations (B, S); a mean counts as one.

        IQN's are at the fractions (N, B, K), or, without these, at evenly spaced ones.
        """
        if not self.implicit:
            return [member(observations).reshape(-1, self.action_dim, self.n_quantiles) for member in self.members]
        given = [None] * len(self.members) if fractions is None else fractions
        return [member(observations, each) for member, each in zip(self.members, given, strict=True)]


def value(q: Sequence[Array], actions: Array) -> Array:
    """Selects the quantiles (N, B, K) of these actions (B,) from N critics' quantiles (B, A, K) of all actions."""
    chosen = one_hot(actions, q[0].shape[1])[..., None]
    return stack([(quantiles * chosen).sum(axis=1) for quantiles in q])


def expected(q: Sequence[Array]) -> Array:
    """The values (B, A) of all actions, averaged over all critics and their quantiles (B, A, K)."""
    return stack([quantiles.mean(axis=-1) for quantiles in q]).mean(axis=0)


def smallest(q: Array) -> Array:
    """Selects, in each row of the quantiles (N, B, K), the critic with the smallest mean, (B, K)."""
    critic = one_hot(argmin(q.mean(axis=-1), axis=0), len(q))
    return (q * critic.T[..., None]).sum(axis=0)


def greedy(q: Sequence[Array]) -> Array:
    """The actions (B,) with the highest value, by all critics' quantiles (B, A, K); the first of equal ones."""
    return argmax(expected(q), axis=-1)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """An update's draws besides its batch: with iqn, fractions uniform in [0, 1), (N, B, K), for each pass."""

    # For the choice of the next action
    choice: Array | None
    # For its value under the targets
    target: Array | None
    # For the value of the data's action
    error: Array | None


def draw_noise(key: Array, step: Array, hp: Hyperparameters, size: Array) -> tuple[Array, Noise]:
    """An update's batch indices (B,) below `size` and its fractions; the key and the update's number determine them."""
    key = jax.random.fold_in(key, step)
    if hp.critic != "iqn":
        return jax.random.randint(key, (hp.batch_size,), 0, size), Noise(*[None] * len(Noise._fields))
    key, *keys = jax.random.split(key, 1 + len(Noise._fields))
    indices = jax.random.randint(key, (hp.batch_size,), 0, size)
    passes = [jax.random.uniform(each, (hp.n_critics, hp.batch_size, hp.n_quantiles)) for each in keys]
    return indices, Noise(*passes)


class Exploration(NamedTuple):
    """The random numbers that n environment steps draw, whether or not they need them."""

    # Integers below A, (n,): a random action for each step
    random: Array
    # Uniform in [0, 1), (n,): if it is below epsilon, the random action is taken
    uniform: Array


@partial(jax.jit, static_argnames=("steps", "action_dim"))
def draw_exploration(key: Array, start: Array, steps: int, action_dim: int) -> Exploration:
    """The draws of the environment steps from `start` on, which depend on the key and on each one's number alone."""
    keys = jax.vmap(lambda step: jax.random.split(jax.random.fold_in(key, step)))(start + jnp.arange(steps))
    random = jax.vmap(lambda key: jax.random.randint(key, (), 0, action_dim))(keys[:, 0])
    return Exploration(random, jax.vmap(jax.random.uniform)(keys[:, 1]))


def epsilons(config: TrainConfig, start: int, steps: int) -> np.ndarray:
    """The shares of random actions in the environment steps after the first `start`, (n,)."""
    passed = np.minimum((start + 1 + np.arange(steps)) / config.epsilon_steps, 1.0)
    return (config.epsilon_start - config.epsilon_end) * (1.0 - passed) + config.epsilon_end


# ---- losses and update ---------------------------------------------------------------------------------------------


def adam(hp: Hyperparameters) -> optax.GradientTransformation:
    """The optimiser of the critics."""
    return optax.adam(hp.learning_rate, eps=hp.adam_eps)


def gradient_step(state: "DQN", gradient: Network) -> "DQN":
    """One step of Adam on the critics, down their gradient."""
    change, moments = adam(state.hp).update(gradient, state.critic_optimizer)
    return state.replace(critic=optax.apply_updates(state.critic, change), critic_optimizer=moments)


def huber(error: Array) -> Array:
    """Huber's loss: half the square of errors below 1, and the absolute error minus a half for all others."""
    return where(abs(error) < 1.0, 0.5 * square(error), abs(error) - 0.5)


def fractions(hp: Hyperparameters, q: Array, drawn: Array | None) -> Array | None:
    """The fractions of the quantiles q (N, B, K): with qr the middles of equal parts (K,), with iqn the drawn ones."""
    if hp.critic != "qr":
        return drawn
    bounds = jnp.arange(q.shape[-1] + 1, dtype=q.dtype) / q.shape[-1]
    return (bounds[1:] + bounds[:-1]) / 2.0


def quantile_huber(q: Array, fractions: Array | None, target: Array) -> Array:
    """Huber's loss (N, B) of quantiles (N, B, K) against the target's (B, K'): summed over K, averaged over K'.

    Targets below a quantile have the weight 1 minus its fraction, and all others its fraction. Means have no fractions.
    """
    error = target[:, :, None] - q[:, :, None]
    loss = huber(error)
    if fractions is not None:
        loss = abs(fractions[..., None, :] - (error < 0.0)) * loss
    return loss.sum(axis=-1).mean(axis=-1)


class DQN(struct.PyTreeNode):
    """All that an update reads and writes."""

    critic: Network
    critic_target: Network
    critic_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)

    @property
    def acting(self) -> Network:
        """The networks that `act` takes."""
        return self.critic

    def td_target(self, batch: Batch, noise: Noise) -> Array:
        """The regression target of all critics, (B, K): the smallest target quantiles of the best next action."""
        hp, critic, target = self.hp, self.critic, self.critic_target
        chooser = critic if hp.double else target
        next_actions = greedy(chooser(batch.next_observations, noise.choice))
        next_q = smallest(value(target(batch.next_observations, noise.target), next_actions))
        assert next_q.shape[:1] == batch.rewards.shape == batch.terminals.shape
        return batch.rewards[:, None] + hp.discount * next_q * (1.0 - batch.terminals[:, None])

    def critic_loss(self, critic: Network, batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """Huber's loss of all critics against the same target, added up over the critics."""
        target = self.td_target(batch, noise)
        q = value(critic(batch.observations, noise.error), batch.actions)
        assert q.shape[1] == len(target)
        return quantile_huber(q, fractions(self.hp, q, noise.error), target).mean(axis=1).sum(), {}

    def update(self, batch: Batch, noise: Noise, copied: bool | Array) -> tuple["DQN", dict[str, Array]]:
        """One gradient step; then, if `copied`, the targets become copies of the new critics."""
        state = self
        (loss, _), gradient = value_and_grad(state.critic_loss, has_aux=True)(state.critic, batch, noise)
        state = gradient_step(state, gradient)
        targets = jax.tree.map(partial(where, copied), state.critic, state.critic_target)
        return state.replace(critic_target=targets), {"loss": loss}


@jax.jit
def act(critic: Network, observations: Array) -> Array:
    """The best actions (E,) for observations (E, S)."""
    return greedy(critic(observations))


@jax.jit
def explore(critic: Network, observations: Array, random: Array, uniform: Array, epsilon: Array) -> Array:
    """The best actions (E,) for observations (E, S), or random ones if a uniform number is below epsilon."""
    return where(uniform < epsilon, random, greedy(critic(observations)))


# ---- training ------------------------------------------------------------------------------------------------------


def updates_until(config: TrainConfig, step: int) -> int:
    """The number of updates made after so many environment steps."""
    first = min(step, max(config.learning_starts, config.batch_size))
    return config.n_updates * (step // config.update_interval - first // config.update_interval)


@partial(jax.jit, static_argnames="num_updates", donate_argnames="state")
def train_interval(
    state: DQN, key: Array, dataset: PackedDataset, start: Array, num_updates: int, size: Array, phase: Array
) -> tuple[DQN, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates` as one scan, on the first `size` rows of the dataset.

    `phase` counts the updates since the last copy of the targets. Both numbers are traced, so that one program serves
    any amount of experience and any phase.
    """
    hp = state.hp

    def draw(step: Array) -> tuple[Array, Array, Noise]:
        copied = (step - start + phase) % hp.target_update_period == 0
        return copied, *draw_noise(key, step, hp, size)

    def update(state: DQN, drawn: Any, place: int) -> tuple[DQN, dict[str, Array]]:
        copied, indices, noise = drawn
        return state.update(take(dataset, indices), noise, copied)

    return scan_updates(update, draw, state, start, num_updates)


def create_train_state(key: Array, config: TrainConfig, state_dim: Shape, action_dim: int, max_action: float) -> DQN:
    """Fresh networks with PyTorch's initialisation."""
    hp = narrow(config, Hyperparameters)
    module = Critics(action_dim, config.encoder, config.hidden_dims, hp)
    critic = Network.create(module, key, jnp.zeros((1, *axes(state_dim))))
    # A donated state must not contain an array twice, so the targets are copies.
    critic_target = jax.tree.map(jnp.copy, critic)
    return DQN(critic=critic, critic_target=critic_target, critic_optimizer=adam(hp).init(critic), hp=hp)


def save(state: DQN, path: Path, total_it: int, experience: Experience, **facts: Any) -> None:
    """Writes the new part of the experience, then a checkpoint beside it."""
    experience.save(path.parent)
    save_checkpoint(path, "online/dqn", state, total_it, **facts)


def load(state: DQN, path: str, experience: Experience) -> dict[str, Any]:
    """Loads a checkpoint and its experience; returns its contents."""
    content = load_checkpoint(path, "online/dqn", state)
    experience.load(Path(path).parent, content.get("step", 0))
    return content


def train(config: TrainConfig) -> Run:
    """Trains on the dataset or in the environment that `env` names, evaluates and fills the run's folder.

    Raises:
        InputError: The dataset, the environment or the checkpoint cannot be used.
    """
    return train_in_environment(config) if is_registered(config.env) else train_on_dataset(config)


def train_on_dataset(config: TrainConfig) -> Run:
    """Trains on a dataset and evaluates every `eval_freq` updates."""
    task = load_task(config, Preparation(normalise=False, finite=True))
    device = resolve_device(config.device)
    enable_compilation_cache()
    with jax.default_device(device):
        weights_key, draws_key = jax.random.split(jax.random.key(config.seed))
        state = create_train_state(weights_key, config, task.shape, task.action_dim, task.max_action)
        asking = partial(epsilon_greedy, epsilon=config.eval_epsilon, action_dim=task.action_dim, seed=config.seed)
        run = Run(config, task, "online/dqn", "jax", device)
        state, total_it = restore(run, partial(load_checkpoint, algorithm="online/dqn", state=state), state)
        dataset = to_device(task.dataset)
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, act, state.critic, asking=asking)
            history = History(run)
            for start, step in run.calls():
                num_updates = step - start
                given = len(dataset), (total_it + start) % config.target_update_period
                state, found = train_together(train_interval, state, draws_key, dataset, start, num_updates, *given)
                history.add(num_updates, found)
                write = partial(save_checkpoint, algorithm="online/dqn", state=state, total_it=total_it + step)
                if run.is_due(step):
                    run.log(step, history.means())
                    run.save(step, write)
                    evaluate(run, step, act, state.critic, asking=asking)
                elif run.stopping:
                    run.save(step, partial(write, history=history.content()))
    return run


def train_in_environment(config: TrainConfig) -> Run:
    """Trains in an environment and evaluates every `eval_freq` of its steps.

    To resume, a run only needs its train state, its experience and its number of steps. Each interval between
    evaluations begins with a new episode. The start of that episode depends on the seed and the number of steps.
    """
    task = load_online_task(config, finite=True)
    device = resolve_device(config.device)
    enable_compilation_cache()
    with jax.default_device(device):
        weights_key, draws_key, exploration_key = jax.random.split(jax.random.key(config.seed), 3)
        state = create_train_state(weights_key, config, task.shape, task.action_dim, task.max_action)
        asking = partial(epsilon_greedy, epsilon=config.eval_epsilon, action_dim=task.action_dim, seed=config.seed)
        experience = Experience(config.env, config.max_timesteps, config.frame_stack, config.max_episode_steps)
        run = Run(config, task, "online/dqn", "jax", device, unit="step")
        state, before = restore(run, partial(load, state, experience=experience), state)
        if experience.size == config.max_timesteps and not run.step:
            raise InputError(f"{config.load_model} has {experience.size} environment steps: set max_timesteps to more")
        dataset, total_it = store(to_device(task.dataset), experience.transitions(), 0), before + run.step
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, act, state.critic, asking=asking)
            history = resumed(run)
            for start, end in experience.intervals(config, run.began):
                while experience.size < end and not run.stopping:
                    first = experience.size
                    steps = min(config.update_interval - first % config.update_interval, end - first)
                    draws = draw_exploration(exploration_key, first, steps, task.action_dim)
                    experience.follow(partial(explore, state.critic), *draws, epsilons(config, first, steps))
                    dataset = store(dataset, experience.transitions(first), first)
                    num_updates = updates_until(config, experience.size) - updates_until(config, first)
                    phase = total_it % config.target_update_period
                    if num_updates:
                        given = total_it, num_updates, experience.size, phase
                        state, metrics = train_interval(state, draws_key, dataset, *given)
                        history += metrics
                    total_it += num_updates
                    run.advance(num_updates, steps)
                if experience.size < end:
                    write = partial(save, state, total_it=total_it, experience=experience)
                    run.save(experience.size, partial(write, history=as_saved(history), began=start))
                experience.cut()
                run.log(end, mean_metrics(history))
                history.clear()
                run.save(end, partial(save, state, total_it=total_it, experience=experience))
                evaluate(run, end, act, state.critic, asking=asking)
    experience.close()
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "online/dqn")
