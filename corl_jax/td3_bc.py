"""TD3+BC in JAX: TD3 whose actor is also pulled towards the data's actions. Its twin is `corl_torch/td3_bc.py`.

Fujimoto & Gu, A Minimalist Approach to Offline Reinforcement Learning, 2021, https://arxiv.org/abs/2106.06860
"""

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
from jax.numpy import clip, minimum, square

from shared.data.rewards import CorlRewards
from shared.data.transitions import Batch
from shared.frameworks.jax_calls import History
from shared.frameworks.jax_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, take, to_device
from shared.frameworks.jax_layers import Linear, Network
from shared.frameworks.jax_seeds import train_together
from shared.frameworks.jax_side import enable_compilation_cache, evaluate, narrow, resolve_device
from shared.runs.fields import bounded
from shared.runs.run import Run
from shared.runs.settings import TransitionsConfig
from shared.runs.task import Preparation, load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Weight of the Q term relative to behaviour cloning
    alpha: float = bounded(2.5, low=0)
    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Rate at which the targets follow their networks
    tau: float = bounded(0.005, low=0, high=1)
    # Standard deviation of the noise on the target policy's action, in units of the largest action
    policy_noise: float = bounded(0.2, low=0)
    # That noise is clipped to plus or minus this, in units of the largest action
    noise_clip: float = bounded(0.5, low=0)
    # Critic updates per update of the actor and of the targets
    policy_freq: int = bounded(2, low=1)
    # Transitions in a batch
    batch_size: int = bounded(256, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, TransitionsConfig):
    """The settings of a whole run."""

    group: str = "TD3_BC-D4RL"
    name: str = "TD3_BC"
    # Exploration noise; no effect, because CORL declares it but never uses it; kept so that CORL's files load
    expl_noise: float = bounded(0.1, low=0)
    # Normalise states to mean 0 and standard deviation 1
    normalize: bool = True
    # Scale rewards: by CORL's rule for D4RL's datasets; for your own data, so that returns span 1000
    normalize_reward: bool = False


# ---- networks ------------------------------------------------------------------------------------------------------


class Actor(nn.Module):
    """The deterministic policy: (B, S) to (B, A), within [-max_action, max_action]."""

    action_dim: int
    max_action: float

    def setup(self) -> None:
        self.net = nn.Sequential([
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


class Critic(nn.Module):
    """Q(s, a): (B, S) and (B, A) to (B,)."""

    def setup(self) -> None:
        self.net = nn.Sequential([
            Linear(256),
            nn.relu,
            Linear(256),
            nn.relu,
            Linear(1),
        ])  # fmt: skip

    def __call__(self, observations: Array, actions: Array) -> Array:
        """The values (B,) of actions (B, A) in observations (B, S)."""
        return self.net(jnp.concatenate([observations, actions], axis=-1)).squeeze(-1)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    # Standard normal, (B, A): smooths the target policy
    target: Array


def draw_noise(key: Array, step: Array, hp: Hyperparameters, dataset_size: int, action_dim: int) -> tuple[Array, Noise]:
    """An update's batch indices (B,) and its noise, which depend on the key and on the update's number alone."""
    index_key, target_key = jax.random.split(jax.random.fold_in(key, step))
    indices = jax.random.randint(index_key, (hp.batch_size,), 0, dataset_size)
    noise = Noise(target=jax.random.normal(target_key, (hp.batch_size, action_dim)))
    return indices, noise


# ---- losses and update ---------------------------------------------------------------------------------------------

# Every network's optimiser
ADAM = optax.adam(3e-4)


def gradient_step(state: "TD3_BC", part: str, gradient: Network) -> "TD3_BC":
    """One step of Adam on one part of the state, down its gradient."""
    change, moments = ADAM.update(gradient, getattr(state, f"{part}_optimizer"))
    return state.replace(**{part: optax.apply_updates(getattr(state, part), change), f"{part}_optimizer": moments})


def soft_update(target: Network, source: Network, tau: float) -> Network:
    """Polyak averaging: the target, moved a step of size tau towards the source."""
    return jax.tree.map(lambda old, new: (1.0 - tau) * old + tau * new, target, source)


class TD3_BC(struct.PyTreeNode):
    """All that an update reads and writes."""

    actor: Network
    critic_1: Network
    critic_2: Network
    actor_target: Network
    critic_1_target: Network
    critic_2_target: Network
    actor_optimizer: optax.OptState
    critic_1_optimizer: optax.OptState
    critic_2_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)
    max_action: float = struct.field(pytree_node=False)

    def td_target(self, batch: Batch, noise: Noise) -> Array:
        """The regression target of both critics, (B,): the smaller target value of a smoothed target action."""
        hp, max_action = self.hp, self.max_action
        actor, critic_1, critic_2 = self.actor_target, self.critic_1_target, self.critic_2_target
        smoothing = clip(
            noise.target * (hp.policy_noise * max_action), -hp.noise_clip * max_action, hp.noise_clip * max_action
        )
        next_actions = clip(actor(batch.next_observations) + smoothing, -max_action, max_action)
        next_q = minimum(
            critic_1(batch.next_observations, next_actions), critic_2(batch.next_observations, next_actions)
        )
        assert next_q.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + (1.0 - batch.terminals) * hp.discount * next_q

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

    def actor_loss(self, actor: Network, batch: Batch) -> tuple[Array, dict[str, Array]]:
        """The value under critic 1, scaled by its own size, against the distance to the data's actions."""
        critic_1 = self.critic_1
        actions = actor(batch.observations)
        q = critic_1(batch.observations, actions)
        # There is no epsilon below |Q|, as in the authors' code.
        weight = self.hp.alpha / stop_gradient(jnp.abs(q).mean())
        assert actions.shape == batch.actions.shape
        return -weight * q.mean() + square(actions - batch.actions).mean(), {}

    def update(self, batch: Batch, noise: Noise, delayed: bool) -> tuple["TD3_BC", dict[str, Array]]:
        """One gradient step: the critics; if `delayed`, also the actor, on the new critic, and the targets."""
        state, hp = self, self.hp
        critics = (state.critic_1, state.critic_2)
        (loss, _), gradients = value_and_grad(state.critic_loss, has_aux=True)(critics, batch, noise)
        state = gradient_step(state, "critic_1", gradients[0])
        state = gradient_step(state, "critic_2", gradients[1])
        metrics = {"critic_loss": loss}
        if delayed:
            (loss, _), gradient = value_and_grad(state.actor_loss, has_aux=True)(state.actor, batch)
            state = gradient_step(state, "actor", gradient)
            metrics["actor_loss"] = loss
            state = state.replace(
                critic_1_target=soft_update(state.critic_1_target, state.critic_1, hp.tau),
                critic_2_target=soft_update(state.critic_2_target, state.critic_2, hp.tau),
                actor_target=soft_update(state.actor_target, state.actor, hp.tau),
            )
        return state, metrics


@jax.jit
def act(actor: Network, observations: Array) -> Array:
    """The policy's actions (E, A) for normalised observations (E, S)."""
    return actor(observations)


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames=("num_updates", "phase"), donate_argnames="state")
def train_interval(
    state: TD3_BC, key: Array, dataset: PackedDataset, start: Array, num_updates: int, phase: int
) -> tuple[TD3_BC, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates` as one scan.

    An update's place in the scanned block and `phase` tell whether it is delayed. `phase` counts the updates before the
    interval, modulo `policy_freq`. Both are known when the program is compiled, so no branch is left in it.
    """
    hp = state.hp
    steps = start + jnp.arange(num_updates)
    draws = jax.vmap(lambda step: draw_noise(key, step, hp, len(dataset), state.actor.module.action_dim))(steps)

    def block(state: TD3_BC, draws: Any) -> tuple[TD3_BC, list[dict[str, Array]]]:
        history = []
        for i in range(len(draws[0])):
            indices, noise = jax.tree.map(itemgetter(i), draws)
            delayed = (phase + i + 1) % hp.policy_freq == 0
            state, metrics = state.update(take(dataset, indices), noise, delayed)
            history.append(metrics)
        return state, history

    history: list[dict[str, Array]] = []
    if whole := num_updates - num_updates % hp.policy_freq:
        blocks = jax.tree.map(lambda draw: draw[:whole].reshape(-1, hp.policy_freq, *draw.shape[1:]), draws)
        state, history = jax.lax.scan(block, state, blocks, unroll=2)
    state, remainder = block(state, jax.tree.map(lambda draw: draw[whole:], draws))
    return state, [*history, *remainder]


def create_train_state(key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> TD3_BC:
    """Fresh networks with PyTorch's initialisation."""
    observations, actions = jnp.zeros((1, state_dim)), jnp.zeros((1, action_dim))
    actor_key, critic_1_key, critic_2_key = jax.random.split(key, 3)
    actor = Network.create(Actor(action_dim, max_action), actor_key, observations)
    critic_1 = Network.create(Critic(), critic_1_key, observations, actions)
    critic_2 = Network.create(Critic(), critic_2_key, observations, actions)
    # A donated state must not contain an array twice, so the targets are copies.
    actor_target, critic_1_target, critic_2_target = jax.tree.map(jnp.copy, (actor, critic_1, critic_2))
    return TD3_BC(
        actor=actor,
        critic_1=critic_1,
        critic_2=critic_2,
        actor_target=actor_target,
        critic_1_target=critic_1_target,
        critic_2_target=critic_2_target,
        actor_optimizer=ADAM.init(actor),
        critic_1_optimizer=ADAM.init(critic_1),
        critic_2_optimizer=ADAM.init(critic_2),
        hp=narrow(config, Hyperparameters),
        max_action=max_action,
    )


def train(config: TrainConfig) -> Run:
    """Trains, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used.
    """
    preparation = Preparation(rewards=CorlRewards().where(config.normalize_reward), normalise=config.normalize)
    task = load_task(config, preparation)
    device = resolve_device(config.device)
    enable_compilation_cache()
    with jax.default_device(device):
        weights_key, draws_key = jax.random.split(jax.random.key(config.seed))
        state = create_train_state(weights_key, config, task.state_dim, task.action_dim, task.max_action)
        run = Run(config, task, "td3_bc", "jax", device)
        state, total_it = restore(run, partial(load_checkpoint, algorithm="td3_bc", state=state), state)
        dataset = to_device(task.dataset)
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, act, state.actor)
            history = History(run)
            for start, step in run.calls(config.policy_freq):
                num_updates = step - start
                phase = (total_it + start) % config.policy_freq
                state, found = train_together(train_interval, state, draws_key, dataset, start, num_updates, phase)
                history.add(num_updates, found)
                write = partial(save_checkpoint, algorithm="td3_bc", state=state, total_it=total_it + step)
                if run.is_due(step):
                    run.log(step, history.means())
                    run.save(step, write)
                    evaluate(run, step, act, state.actor)
                elif run.stopping:
                    run.save(step, partial(write, history=history.content()))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "td3_bc")
