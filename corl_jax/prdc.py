"""PRDC in JAX: TD3 whose actor is also pulled towards the action of the dataset's nearest row.

Its twin is `corl_torch/prdc.py`.

Ran, Li, Zhang, Zhang & Yu, Policy Regularization with Dataset Constraint for Offline Reinforcement Learning, 2023,
https://arxiv.org/abs/2306.06569
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

from shared.runs.start import cli

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct
from jax import Array, value_and_grad
from jax.lax import stop_gradient
from jax.numpy import amin, clip, concatenate, square, stack, tanh

from shared.frameworks.jax_calls import History
from shared.frameworks.jax_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, take, to_device
from shared.frameworks.jax_layers import Linear, Network
from shared.frameworks.jax_neighbours import BruteForce, Tree, search_among
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

    # Weight of the value relative to the distance to the nearest action
    alpha: float = bounded(2.5, low=0)
    # Weight of the states relative to the actions, in the search for the nearest row
    state_weight: float = bounded(2.0, low=0)
    # Learning rate of the policy
    actor_lr: float = positive(3e-4)
    # Learning rate of the critics
    critic_lr: float = positive(3e-4)
    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Rate at which the targets follow their networks
    tau: float = bounded(0.005, low=0, high=1)
    # Standard deviation of the target action's noise, in units of the largest action
    policy_noise: float = bounded(0.2, low=0)
    # Bound of that noise, in the same units
    noise_clip: float = bounded(0.5, low=0)
    # Critic updates per update of the policy and of the targets; the first update has both
    policy_freq: int = bounded(2, low=1)
    # Transitions in a batch
    batch_size: int = bounded(256, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, TransitionsConfig):
    """The settings of a whole run."""

    group: str = "PRDC-D4RL"
    name: str = "PRDC"
    max_timesteps: int = bounded(500_000, low=1)
    observation_scaler: str = choice("standard", "none", "min_max")
    # How the nearest row is found: with a tree on the host, from all distances on the device, or whichever is faster
    search: str = choice("auto", "tree", "brute")
    # Critics
    n_critics: int = bounded(2, low=1)
    # Widths of the policy's hidden layers
    actor_hidden_dims: tuple[int, ...] = widths(256, 256)
    # Widths of the critics' hidden layers
    critic_hidden_dims: tuple[int, ...] = widths(256, 256)


# ---- networks ------------------------------------------------------------------------------------------------------


def mlp(hidden_dims: Sequence[int], output_dim: int) -> nn.Sequential:
    """Hidden layers with ReLU, then a linear layer."""
    return nn.Sequential([*(layer for width in hidden_dims for layer in (Linear(width), nn.relu)), Linear(output_dim)])


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
    """N critics Q(s, a) with separate weights."""

    hidden_dims: Sequence[int]
    n_critics: int

    def setup(self) -> None:
        self.members = [mlp(self.hidden_dims, 1) for _ in range(self.n_critics)]

    def __call__(self, observations: Array, actions: Array, first: int | None = None) -> Array:
        """The values (N, B) of actions (B, A) in observations (B, S), by the first few critics (`first`), or by all."""
        inputs = concatenate([observations, actions], axis=-1)
        return stack([member(inputs).squeeze(-1) for member in self.members[:first]])


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    # Standard normal, (B, A): smooths the target policy
    target: Array


def draw_noise(key: Array, step: Array, hp: Hyperparameters, size: int, action_dim: int) -> tuple[Array, Noise]:
    """An update's batch indices (B,) below `size`, and its noise, which the key and the update's number determine."""
    index_key, target_key = jax.random.split(jax.random.fold_in(key, step))
    indices = jax.random.randint(index_key, (hp.batch_size,), 0, size)
    noise = Noise(target=jax.random.normal(target_key, (hp.batch_size, action_dim)))
    return indices, noise


# ---- the dataset that constrains the policy -------------------------------------------------------------------------


class ConstrainedDataset(struct.PyTreeNode):
    """A dataset, and the search for the nearest of its rows."""

    rows: PackedDataset
    search: Tree | BruteForce


class ConstrainedBatch(NamedTuple):
    """A batch, as `Batch`, and the whole dataset, which the policy's actions are compared with."""

    observations: Array
    actions: Array
    rewards: Array
    next_observations: Array
    terminals: Array
    dataset: ConstrainedDataset


def search_keys(observations: Array, actions: Array, state_weight: float) -> Array:
    """The search keys (B, S + A): observations (B, S), multiplied by state_weight, joined with actions (B, A)."""
    return concatenate([state_weight * observations, actions], axis=-1)


def constrained(dataset: PackedDataset, config: "TrainConfig") -> ConstrainedDataset:
    """The dataset of N rows, and a search among all of them."""
    rows = take(dataset, jnp.arange(len(dataset)))
    keys = search_keys(rows.observations, rows.actions, config.state_weight)
    return ConstrainedDataset(dataset, search_among(keys, config.search))


def take_constrained(dataset: ConstrainedDataset, indices: Array) -> ConstrainedBatch:
    """The rows `indices` (B,) of the dataset, and the dataset."""
    return ConstrainedBatch(**take(dataset.rows, indices)._asdict(), dataset=dataset)


# ---- losses and update ---------------------------------------------------------------------------------------------


def adam(part: str, hp: Hyperparameters) -> optax.GradientTransformation:
    """The optimiser of one part of the state."""
    return optax.adam({"actor": hp.actor_lr, "critic": hp.critic_lr}[part])


def gradient_step(state: "PRDC", part: str, gradient: Network) -> "PRDC":
    """One step of Adam on one part of the state, down its gradient."""
    change, moments = adam(part, state.hp).update(gradient, getattr(state, f"{part}_optimizer"))
    return state.replace(**{part: optax.apply_updates(getattr(state, part), change), f"{part}_optimizer": moments})


def soft_update(target: Network, source: Network, tau: float) -> Network:
    """Polyak averaging: the target, moved a step of size tau towards the source."""
    return jax.tree.map(lambda old, new: (1.0 - tau) * old + tau * new, target, source)


class PRDC(struct.PyTreeNode):
    """All that an update reads and writes."""

    actor: Network
    critic: Network
    actor_target: Network
    critic_target: Network
    actor_optimizer: optax.OptState
    critic_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)
    max_action: float = struct.field(pytree_node=False)

    def td_target(self, batch: ConstrainedBatch, noise: Noise) -> Array:
        """The regression target of all critics, (B,): the smallest target value of a smoothed target action."""
        hp, max_action = self.hp, self.max_action
        actor, critic = self.actor_target, self.critic_target
        smoothing = clip(
            noise.target * (hp.policy_noise * max_action), -hp.noise_clip * max_action, hp.noise_clip * max_action
        )
        next_actions = clip(actor(batch.next_observations) + smoothing, -max_action, max_action)
        next_q = amin(critic(batch.next_observations, next_actions), axis=0)
        assert next_q.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + hp.discount * next_q * (1.0 - batch.terminals)

    def critic_loss(self, critic: Network, batch: ConstrainedBatch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """The squared errors of all critics to the same target, added up over the critics."""
        target = self.td_target(batch, noise)
        q = critic(batch.observations, batch.actions)
        assert q.shape[1:] == target.shape
        return square(q - target).mean(axis=1).sum(), {}

    def actor_loss(self, actor: Network, batch: ConstrainedBatch) -> tuple[Array, dict[str, Array]]:
        """The value under the first critic, scaled by its own size, against the distance to the nearest actions."""
        critic = self.critic
        actions = actor(batch.observations)
        q = critic(batch.observations, actions, 1).squeeze(0)
        # There is no epsilon below |Q|.
        weight = self.hp.alpha / stop_gradient(abs(q).mean())
        nearest = self.nearest_actions(batch, stop_gradient(actions))
        assert q.shape == batch.rewards.shape
        assert actions.shape == nearest.shape
        distance = square(actions - nearest).mean()
        return -weight * q.mean() + distance, {"dc_loss": distance}

    def nearest_actions(self, batch: ConstrainedBatch, actions: Array) -> Array:
        """The actions (B, A) of the dataset's rows that are nearest to these states with these actions (B, A)."""
        keys = search_keys(batch.observations, actions, self.hp.state_weight)
        return take(batch.dataset.rows, batch.dataset.search.nearest(keys)).actions

    def update(self, batch: ConstrainedBatch, noise: Noise, delayed: bool) -> tuple["PRDC", dict[str, Array]]:
        """One gradient step: the critics; if `delayed`, also the actor, on the new critics, and the targets."""
        state, hp = self, self.hp
        (loss, _), gradient = value_and_grad(state.critic_loss, has_aux=True)(state.critic, batch, noise)
        state = gradient_step(state, "critic", gradient)
        metrics = {"critic_loss": loss}
        if delayed:
            (loss, aux), gradient = value_and_grad(state.actor_loss, has_aux=True)(state.actor, batch)
            state = gradient_step(state, "actor", gradient)
            metrics |= {"actor_loss": loss, **aux}
            state = state.replace(
                critic_target=soft_update(state.critic_target, state.critic, hp.tau),
                actor_target=soft_update(state.actor_target, state.actor, hp.tau),
            )
        return state, metrics


@jax.jit
def act(actor: Network, observations: Array) -> Array:
    """The policy's actions (E, A) for observations (E, S)."""
    return actor(observations)


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames=("num_updates", "phase"), donate_argnames="state")
def train_interval(
    state: PRDC, key: Array, dataset: ConstrainedDataset, start: Array, num_updates: int, phase: int
) -> tuple[PRDC, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates` as one scan.

    An update's place in the scanned block and `phase` tell whether it is delayed. `phase` counts the updates before the
    interval, modulo `policy_freq`. Both are known when the program is compiled, so no branch is left in it.
    """
    hp, size, action_dim = state.hp, len(dataset.rows), state.actor.module.action_dim
    draws = jax.vmap(lambda step: draw_noise(key, step, hp, size, action_dim))(start + jnp.arange(num_updates))

    def block(state: PRDC, draws: Any) -> tuple[PRDC, list[dict[str, Array]]]:
        history = []
        for i in range(len(draws[0])):
            indices, noise = jax.tree.map(itemgetter(i), draws)
            delayed = (phase + i) % hp.policy_freq == 0
            state, metrics = state.update(take_constrained(dataset, indices), noise, delayed)
            history.append(metrics)
        return state, history

    history: list[dict[str, Array]] = []
    if whole := num_updates - num_updates % hp.policy_freq:
        blocks = jax.tree.map(lambda draw: draw[:whole].reshape(-1, hp.policy_freq, *draw.shape[1:]), draws)
        state, history = jax.lax.scan(block, state, blocks, unroll=2)
    state, remainder = block(state, jax.tree.map(lambda draw: draw[whole:], draws))
    return state, [*history, *remainder]


def create_train_state(key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> PRDC:
    """Fresh networks with PyTorch's initialisation."""
    hp = narrow(config, Hyperparameters)
    observations, actions = jnp.zeros((1, state_dim)), jnp.zeros((1, action_dim))
    actor_key, critics_key = jax.random.split(key)
    actor = Network.create(Actor(action_dim, max_action, config.actor_hidden_dims), actor_key, observations)
    critic = Network.create(Critics(config.critic_hidden_dims, config.n_critics), critics_key, observations, actions)
    # A donated state must not contain an array twice, so the targets are copies.
    actor_target, critic_target = jax.tree.map(jnp.copy, (actor, critic))
    return PRDC(
        actor=actor,
        critic=critic,
        actor_target=actor_target,
        critic_target=critic_target,
        actor_optimizer=adam("actor", hp).init(actor),
        critic_optimizer=adam("critic", hp).init(critic),
        hp=hp,
        max_action=max_action,
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
        state = create_train_state(weights_key, config, task.state_dim, task.action_dim, task.max_action)
        run = Run(config, task, "prdc", "jax", device)
        state, total_it = restore(run, partial(load_checkpoint, algorithm="prdc", state=state), state)
        dataset = constrained(to_device(task.dataset), config)
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, act, state.actor)
            history = History(run)
            for start, step in run.calls(config.policy_freq, cost=5):
                num_updates = step - start
                phase = (total_it + start) % config.policy_freq
                state, found = train_together(train_interval, state, draws_key, dataset, start, num_updates, phase)
                history.add(num_updates, found)
                write = partial(save_checkpoint, algorithm="prdc", state=state, total_it=total_it + step)
                if run.is_due(step):
                    run.log(step, history.means())
                    run.save(step, write)
                    evaluate(run, step, act, state.actor)
                elif run.stopping:
                    run.save(step, partial(write, history=history.content()))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "prdc")
