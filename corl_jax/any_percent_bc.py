"""Behaviour cloning in JAX, of a dataset's best trajectories or of all. Its twin is `corl_torch/any_percent_bc.py`.

Pomerleau, Efficient Training of Artificial Neural Networks for Autonomous Navigation, 1991; as a baseline of its best
tenth: Chen et al., Decision Transformer, 2021, https://arxiv.org/abs/2106.01345
"""

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
from jax.numpy import square

from shared.data.rewards import BestEpisodes
from shared.data.transitions import Batch
from shared.envs.spaces import Shape, axes
from shared.frameworks.jax_calls import History
from shared.frameworks.jax_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, take, to_device
from shared.frameworks.jax_encoders import convolutions, crop
from shared.frameworks.jax_layers import Linear, Network
from shared.frameworks.jax_seeds import train_together
from shared.frameworks.jax_side import enable_compilation_cache, evaluate, narrow, resolve_device
from shared.runs.fields import bounded, later
from shared.runs.run import Run
from shared.runs.settings import ImagesConfig, ImitationConfig
from shared.runs.task import Preparation, load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Transitions in a batch
    batch_size: int = bounded(256, low=1)
    # Most pixels that an update shifts an image by, at random: the image is padded with its edges, then cropped. DrQ
    # uses 4 for images of 84 x 84
    crop_padding: int = later(bounded(0, low=0, high=64))


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, ImagesConfig, ImitationConfig):
    """The settings of a whole run."""

    group: str = "BC-D4RL"
    name: str = "BC"
    # Seed of the weights, the batches and the evaluation's start states
    seed: int = bounded(0, low=0, high=2**32 - 1)
    # Share of the trajectories to learn from, those with the highest returns; 1 is plain behaviour cloning
    frac: float = bounded(0.1, low=0, high=1)
    # No effect, because CORL declares it but never uses it; kept so that CORL's files load. Trajectories are cut after
    # 1000 transitions
    max_traj_len: int = bounded(1000, low=1)
    # Normalise states to mean 0 and standard deviation 1
    normalize: bool = True
    # Discount factor of the returns by which trajectories are ranked
    discount: float = bounded(0.99, low=0, high=1)


# ---- networks ------------------------------------------------------------------------------------------------------


class Actor(nn.Module):
    """The deterministic policy: (B, S), or images, to (B, A), within [-max_action, max_action]."""

    action_dim: int
    max_action: float
    encoder: str

    def setup(self) -> None:
        self.net = nn.Sequential([
            *convolutions(self.encoder),
            Linear(256),
            nn.relu,
            Linear(256),
            nn.relu,
            Linear(self.action_dim),
            nn.tanh,
        ])  # fmt: skip

    def __call__(self, observations: Array) -> Array:
        """The actions (B, A) for observations (B, S)."""
        return self.max_action * self.net(observations)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    # With crop_padding: the row and column at which each padded image is cropped, (B, 2)
    crops: Array | None = None


def draw_noise(key: Array, step: Array, hp: Hyperparameters, dataset_size: int) -> tuple[Array, Noise]:
    """An update's batch indices (B,) and its crops, which depend on the key and on the update's number alone."""
    key = jax.random.fold_in(key, step)
    noise = Noise()
    if hp.crop_padding:
        key, crops_key = jax.random.split(key)
        noise = Noise(jax.random.randint(crops_key, (hp.batch_size, 2), 0, 2 * hp.crop_padding + 1))
    return jax.random.randint(key, (hp.batch_size,), 0, dataset_size), noise


# ---- losses and update ---------------------------------------------------------------------------------------------

ADAM = optax.adam(3e-4)


def gradient_step(state: "BC", part: str, gradient: Network) -> "BC":
    """One step of Adam on one part of the state, down its gradient."""
    change, moments = ADAM.update(gradient, getattr(state, f"{part}_optimizer"))
    return state.replace(**{part: optax.apply_updates(getattr(state, part), change), f"{part}_optimizer": moments})


class BC(struct.PyTreeNode):
    """All that an update reads and writes."""

    actor: Network
    actor_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)

    def actor_loss(self, actor: Network, batch: Batch) -> tuple[Array, dict[str, Array]]:
        """The squared distance to the data's actions."""
        actions = actor(batch.observations)
        assert actions.shape == batch.actions.shape
        return square(actions - batch.actions).mean(), {}

    def update(self, batch: Batch, noise: Noise) -> tuple["BC", dict[str, Array]]:
        """One gradient step; with `crop_padding`, on cropped images."""
        if noise.crops is not None:
            batch = batch._replace(observations=crop(batch.observations, noise.crops, self.hp.crop_padding))
        (loss, _), gradient = value_and_grad(self.actor_loss, has_aux=True)(self.actor, batch)
        return gradient_step(self, "actor", gradient), {"actor_loss": loss}


@jax.jit
def act(actor: Network, observations: Array) -> Array:
    """The policy's actions (E, A) for normalised observations (E, S)."""
    return actor(observations)


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="num_updates", donate_argnames="state")
def train_interval(
    state: BC, key: Array, dataset: PackedDataset, start: Array, num_updates: int
) -> tuple[BC, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates` as one scan, with batches drawn beforehand."""
    steps = start + jnp.arange(num_updates)
    draws = jax.vmap(lambda step: draw_noise(key, step, state.hp, len(dataset)))(steps)

    def step(state: BC, draw: Any) -> tuple[BC, dict[str, Array]]:
        indices, noise = draw
        return state.update(take(dataset, indices), noise)

    state, history = jax.lax.scan(step, state, draws, unroll=4)
    return state, [history]


def create_train_state(key: Array, config: TrainConfig, state_dim: Shape, action_dim: int, max_action: float) -> BC:
    """A fresh network with PyTorch's initialisation."""
    module = Actor(action_dim, max_action, config.encoder)
    actor = Network.create(module, key, jnp.zeros((1, *axes(state_dim))))
    return BC(actor=actor, actor_optimizer=ADAM.init(actor), hp=narrow(config, Hyperparameters))


def train(config: TrainConfig) -> Run:
    """Trains, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used.
    """
    preparation = Preparation(rewards=BestEpisodes(config.frac, config.discount), normalise=config.normalize)
    task = load_task(config, preparation)
    device = resolve_device(config.device)
    enable_compilation_cache()
    with jax.default_device(device):
        weights_key, draws_key = jax.random.split(jax.random.key(config.seed))
        state = create_train_state(weights_key, config, task.shape, task.action_dim, task.max_action)
        run = Run(config, task, "any_percent_bc", "jax", device)
        state, total_it = restore(run, partial(load_checkpoint, algorithm="any_percent_bc", state=state), state)
        dataset = to_device(task.dataset)
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, act, state.actor)
            history = History(run)
            for start, step in run.calls():
                num_updates = step - start
                state, found = train_together(train_interval, state, draws_key, dataset, start, num_updates)
                history.add(num_updates, found)
                write = partial(save_checkpoint, algorithm="any_percent_bc", state=state, total_it=total_it + step)
                if run.is_due(step):
                    run.log(step, history.means())
                    run.save(step, write)
                    evaluate(run, step, act, state.actor)
                elif run.stopping:
                    run.save(step, partial(write, history=history.content()))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "any_percent_bc")
