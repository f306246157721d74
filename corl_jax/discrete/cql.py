"""CQL of finite actions in JAX: Q-learning that pushes down the values of actions that are not in the data.

Its twin is `corl_torch/discrete/cql.py`. All actions of a state can be listed, so nothing is sampled.

Kumar et al., Conservative Q-Learning for Offline Reinforcement Learning, 2020, https://arxiv.org/abs/2006.04779
"""

from collections.abc import Sequence
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
from jax.nn import logsumexp, one_hot
from jax.numpy import abs, argmax, argmin, square, stack, where

from shared.data.transitions import Batch
from shared.envs.spaces import Shape, axes
from shared.frameworks.jax_calls import History
from shared.frameworks.jax_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, take, to_device
from shared.frameworks.jax_encoders import convolutions, cropped
from shared.frameworks.jax_layers import ImplicitQuantiles, Linear, Network
from shared.frameworks.jax_scan import scan_updates
from shared.frameworks.jax_seeds import train_together
from shared.frameworks.jax_side import enable_compilation_cache, evaluate, narrow, resolve_device
from shared.runs.fields import bounded, choice, later, positive, widths
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
    # Weight of the conservative term
    cql_alpha: float = bounded(1.0, low=0)
    # The critics choose the next action and the targets give its value, as in d3rlpy; false: the targets do both, as in
    # the paper's experiments
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
    # Most pixels that an update shifts an image by, at random: the image is padded with its edges, then cropped. DrQ
    # uses 4 for images of 84 x 84
    crop_padding: int = later(bounded(0, low=0, high=64))


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, ImagesConfig, TransitionsConfig):
    """The settings of a whole run."""

    group: str = "DiscreteCQL"
    name: str = "DiscreteCQL"
    # Dataset of finite actions: mini/cartpole-replay, minari:NAME, or the path of an HDF5 file
    env: str = "mini/cartpole-replay"
    # Updates between two evaluations
    eval_freq: int = bounded(10_000, low=1)
    # Widths of the hidden layers
    hidden_dims: tuple[int, ...] = widths(256, 256)


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
    choice: Array | None = None
    # For its value under the targets
    target: Array | None = None
    # For the value of the data's action
    error: Array | None = None
    # For the conservative term
    conservative: Array | None = None
    # With crop_padding: the row and column at which each padded image is cropped, (2, B, 2); observations first, then
    # next ones
    crops: Array | None = None


def draw_noise(key: Array, step: Array, hp: Hyperparameters, dataset_size: int) -> tuple[Array, Noise]:
    """An update's batch indices (B,) and its fractions, which depend on the key and on the update's number alone."""
    key = jax.random.fold_in(key, step)
    noise = Noise()
    if hp.crop_padding:
        key, crops_key = jax.random.split(key)
        noise = Noise(crops=jax.random.randint(crops_key, (2, hp.batch_size, 2), 0, 2 * hp.crop_padding + 1))
    if hp.critic == "iqn":
        key, *keys = jax.random.split(key, 5)
        shape = hp.n_critics, hp.batch_size, hp.n_quantiles
        choice, target, error, conservative = (jax.random.uniform(each, shape) for each in keys)
        noise = noise._replace(choice=choice, target=target, error=error, conservative=conservative)
    return jax.random.randint(key, (hp.batch_size,), 0, dataset_size), noise


# ---- losses and update ---------------------------------------------------------------------------------------------


def adam(hp: Hyperparameters) -> optax.GradientTransformation:
    """The optimiser of the critics."""
    return optax.adam(hp.learning_rate, eps=hp.adam_eps)


def gradient_step(state: "CQL", gradient: Network) -> "CQL":
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


def gap(q: Sequence[Array], actions: Array) -> Array:
    """The gap (B,) between the soft maximum of all actions' values and the data's, by quantiles (B, A, K)."""
    values = expected(q)
    return logsumexp(values, axis=-1) - (values * one_hot(actions, values.shape[-1])).sum(axis=-1)


class CQL(struct.PyTreeNode):
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
        """Huber's loss of all critics against one target, added up, plus the weighted conservative term."""
        batch = cropped(batch, noise.crops, self.hp.crop_padding)
        target = self.td_target(batch, noise)
        quantiles = critic(batch.observations, noise.error)
        q = value(quantiles, batch.actions)
        assert q.shape[1] == len(target)
        td_loss = quantile_huber(q, fractions(self.hp, q, noise.error), target).mean(axis=1).sum()
        # Without fractions, a second pass would equal the first.
        if noise.conservative is not None:
            quantiles = critic(batch.observations, noise.conservative)
        conservative_loss = gap(quantiles, batch.actions).mean()
        loss = td_loss + self.hp.cql_alpha * conservative_loss
        return loss, {"td_loss": td_loss, "conservative_loss": conservative_loss}

    def update(self, batch: Batch, noise: Noise, copied: bool | Array) -> tuple["CQL", dict[str, Array]]:
        """One gradient step; then, if `copied`, the targets become copies of the new critics."""
        state = self
        (loss, terms), gradient = value_and_grad(state.critic_loss, has_aux=True)(state.critic, batch, noise)
        state = gradient_step(state, gradient)
        targets = jax.tree.map(partial(where, copied), state.critic, state.critic_target)
        return state.replace(critic_target=targets), {"loss": loss, **terms}


@jax.jit
def act(critic: Network, observations: Array) -> Array:
    """The best actions (E,) for observations (E, S)."""
    return greedy(critic(observations))


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="num_updates", donate_argnames="state")
def train_interval(
    state: CQL, key: Array, dataset: PackedDataset, start: Array, num_updates: int, phase: Array
) -> tuple[CQL, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates` as one scan.

    `phase` counts the updates since the last copy of the targets. It is traced, so one program serves every interval.
    """
    hp = state.hp

    def draw(step: Array) -> tuple[Array, Array, Noise]:
        copied = (step - start + phase) % hp.target_update_period == 0
        return copied, *draw_noise(key, step, hp, len(dataset))

    def update(state: CQL, drawn: Any, place: int) -> tuple[CQL, dict[str, Array]]:
        copied, indices, noise = drawn
        return state.update(take(dataset, indices), noise, copied)

    return scan_updates(update, draw, state, start, num_updates)


def create_train_state(key: Array, config: TrainConfig, state_dim: Shape, action_dim: int, max_action: float) -> CQL:
    """Fresh networks with PyTorch's initialisation."""
    hp = narrow(config, Hyperparameters)
    module = Critics(action_dim, config.encoder, config.hidden_dims, hp)
    critic = Network.create(module, key, jnp.zeros((1, *axes(state_dim))))
    # A donated state must not contain an array twice, so the targets are copies.
    critic_target = jax.tree.map(jnp.copy, critic)
    return CQL(critic=critic, critic_target=critic_target, critic_optimizer=adam(hp).init(critic), hp=hp)


def train(config: TrainConfig) -> Run:
    """Trains, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: The dataset, the environment or the checkpoint cannot be used.
    """
    task = load_task(config, Preparation(normalise=False, finite=True))
    device = resolve_device(config.device)
    enable_compilation_cache()
    with jax.default_device(device):
        weights_key, draws_key = jax.random.split(jax.random.key(config.seed))
        state = create_train_state(weights_key, config, task.shape, task.action_dim, task.max_action)
        run = Run(config, task, "discrete/cql", "jax", device)
        state, total_it = restore(run, partial(load_checkpoint, algorithm="discrete/cql", state=state), state)
        dataset = to_device(task.dataset)
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, act, state.critic)
            history = History(run)
            for start, step in run.calls(cost=0.25):
                num_updates = step - start
                phase = (total_it + start) % config.target_update_period
                state, found = train_together(train_interval, state, draws_key, dataset, start, num_updates, phase)
                history.add(num_updates, found)
                write = partial(save_checkpoint, algorithm="discrete/cql", state=state, total_it=total_it + step)
                if run.is_due(step):
                    run.log(step, history.means())
                    run.save(step, write)
                    evaluate(run, step, act, state.critic)
                elif run.stopping:
                    run.save(step, partial(write, history=history.content()))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "discrete/cql")
