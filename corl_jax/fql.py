"""FQL in JAX: a flow imitates the data's actions, and a one-step policy follows the flow and maximizes the value.

Its twin is `corl_torch/fql.py`.

Park et al., Flow Q-Learning, 2025, https://arxiv.org/abs/2502.02538
"""

from collections.abc import Callable, Sequence
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
from jax.lax import stop_gradient
from jax.nn.initializers import glorot_uniform, zeros
from jax.numpy import amin, concatenate, full_like, square, stack

from shared.data.rewards import ShiftedRewards
from shared.data.transitions import Batch, cut_actions
from shared.envs.evaluation import SampledPolicy
from shared.frameworks.jax_calls import History
from shared.frameworks.jax_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, take, to_device
from shared.frameworks.jax_layers import Linear, Network, clamp
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

    # Learning rate of all networks
    learning_rate: float = positive(3e-4)
    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Rate at which the target critics follow the critics
    tau: float = bounded(0.005, low=0, high=1)
    # How the two critics' values make one target: their mean, or the smaller one
    q_agg: str = choice("mean", "min")
    # Weight of the distance to the flow's action in the policy's loss
    distill_coef: float = bounded(10.0, low=0)
    # Steps in which the flow turns noise into an action
    flow_steps: int = bounded(10, low=1)
    # Scale the Q term of the policy's loss by its own size
    normalize_q: bool = False
    # Transitions in a batch
    batch_size: int = bounded(256, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, TransitionsConfig):
    """The settings of a whole run."""

    group: str = "FQL-D4RL"
    name: str = "FQL"
    # Updates between two evaluations
    eval_freq: int = bounded(100_000, low=1)
    # Episodes in an evaluation
    n_episodes: int = bounded(50, low=1)
    # Widths of the hidden layers of policy and flow
    actor_hidden_dims: tuple[int, ...] = widths(512, 512, 512, 512)
    # Widths of the critics' hidden layers
    critic_hidden_dims: tuple[int, ...] = widths(512, 512, 512, 512)
    # LayerNorm after the hidden layers of policy and flow
    actor_ln: bool = False
    # LayerNorm after the critics' hidden layers
    critic_ln: bool = True
    # Normalise states to mean 0 and standard deviation 1
    normalize: bool = False
    # Subtract 1 from AntMaze's rewards; others stay as they are
    normalize_reward: bool = True


# ---- networks ------------------------------------------------------------------------------------------------------


def linear(output_dim: int) -> Linear:
    """A layer with Glorot's uniform weight and a bias of 0."""
    return Linear(output_dim, kernel_init=glorot_uniform(), bias_init=zeros)


def mlp(hidden_dims: Sequence[int], layer_norm: bool, output_dim: int) -> nn.Sequential:
    """Hidden layers with GELU in its tanh form, then LayerNorm if the settings say so; the last layer is linear."""
    layers: list[Callable[..., Any]] = []
    for width in hidden_dims:
        layers += [linear(width), nn.gelu]
        if layer_norm:
            layers += [nn.LayerNorm(epsilon=1e-6, use_fast_variance=False, param_dtype=float)]
    return nn.Sequential([*layers, linear(output_dim)])


class Actor(nn.Module):
    """The policy, which turns noise into an action in one step; `cut` puts it within its bounds."""

    action_dim: int
    max_action: float
    hidden_dims: Sequence[int]
    layer_norm: bool

    def setup(self) -> None:
        self.net = mlp(self.hidden_dims, self.layer_norm, self.action_dim)

    def __call__(self, observations: Array, noise: Array) -> Array:
        """The actions (B, A) for observations (B, S) and noise (B, A)."""
        return self.net(concatenate([observations, noise], axis=-1))


class Flow(nn.Module):
    """The flow, whose velocity moves noise at time 0 to one of the data's actions at time 1."""

    action_dim: int
    hidden_dims: Sequence[int]
    layer_norm: bool

    def setup(self) -> None:
        self.net = mlp(self.hidden_dims, self.layer_norm, self.action_dim)

    def __call__(self, observations: Array, actions: Array, times: Array) -> Array:
        """The velocities (B, A) at actions (B, A) and times (B,), for observations (B, S)."""
        return self.net(concatenate([observations, actions, times[:, None]], axis=-1))


class Critic(nn.Module):
    """Both critics, with separate weights: (B, S) and (B, A) to (2, B)."""

    hidden_dims: Sequence[int]
    layer_norm: bool

    def setup(self) -> None:
        sizes = (self.hidden_dims, self.layer_norm, 1)
        self.q1 = mlp(*sizes)
        self.q2 = mlp(*sizes)

    def __call__(self, observations: Array, actions: Array) -> Array:
        """The values (2, B) of actions (B, A) in observations (B, S)."""
        inputs = concatenate([observations, actions], axis=-1)
        return stack([self.q1(inputs), self.q2(inputs)]).squeeze(-1)


def cut(actor: Network, actions: Array) -> Array:
    """Actions (B, A), clipped to [-max_action, max_action]."""
    return clamp(actions, -actor.module.max_action, actor.module.max_action)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    # Standard normal, (B, A): the noise of the policy's next actions
    target: Array
    # Standard normal, (B, A): where the flow to the data's actions begins
    start: Array
    # Uniform in [0, 1), (B,): the time that this flow has reached
    time: Array
    # Standard normal, (B, A): the noise that both the policy and the flow turn into an action
    actor: Array


def draw_noise(key: Array, step: Array, hp: Hyperparameters, dataset_size: int, action_dim: int) -> tuple[Array, Noise]:
    """An update's batch indices (B,) and its noise, which depend on the key and on the update's number alone."""
    shape = (hp.batch_size, action_dim)
    index_key, target_key, start_key, time_key, actor_key = jax.random.split(jax.random.fold_in(key, step), 5)
    indices = jax.random.randint(index_key, (hp.batch_size,), 0, dataset_size)
    noise = Noise(
        target=jax.random.normal(target_key, shape),
        start=jax.random.normal(start_key, shape),
        time=jax.random.uniform(time_key, (hp.batch_size,)),
        actor=jax.random.normal(actor_key, shape),
    )
    return indices, noise


def draw_acting_noise(generator: np.random.Generator, hp: Hyperparameters, action_dim: int) -> np.ndarray:
    """The noise that the policy turns into an action, (A,), drawn for one step of an episode."""
    return generator.standard_normal(action_dim)


# ---- losses and update ---------------------------------------------------------------------------------------------


def adam(hp: Hyperparameters) -> optax.GradientTransformation:
    """The optimiser of each part of the state."""
    return optax.adam(hp.learning_rate)


def gradient_step(state: "FQL", part: str, gradient: Network) -> "FQL":
    """One step of Adam on one part of the state, down its gradient."""
    change, moments = adam(state.hp).update(gradient, getattr(state, f"{part}_optimizer"))
    return state.replace(**{part: optax.apply_updates(getattr(state, part), change), f"{part}_optimizer": moments})


def soft_update(target: Network, source: Network, tau: float) -> Network:
    """Polyak averaging: the target, moved a step of size tau towards the source."""
    return jax.tree.map(lambda old, new: (1.0 - tau) * old + tau * new, target, source)


class FQL(struct.PyTreeNode):
    """All that an update reads and writes."""

    actor: Network
    flow: Network
    critic: Network
    critic_target: Network
    actor_optimizer: optax.OptState
    flow_optimizer: optax.OptState
    critic_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)

    def td_target(self, batch: Batch, noise: Noise) -> Array:
        """The regression target of both critics, (B,), from their target values of the policy's next action."""
        hp, actor, critic = self.hp, self.actor, self.critic_target
        next_actions = cut(actor, actor(batch.next_observations, noise.target))
        values = critic(batch.next_observations, next_actions)
        next_q = values.mean(axis=0) if hp.q_agg == "mean" else amin(values, axis=0)
        assert next_q.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + (1.0 - batch.terminals) * hp.discount * next_q

    def critic_loss(self, critic: Network, batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """The squared error of both critics to the same target, the mean over both."""
        target = self.td_target(batch, noise)
        q = critic(batch.observations, batch.actions)
        assert q.shape == (2, *target.shape)
        return square(q - target).mean(), {}

    def flow_loss(self, flow: Network, batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """Flow matching: on the straight line from noise to the data's action, the velocity is their difference."""
        time = noise.time[:, None]
        on_the_way = (1.0 - time) * noise.start + time * batch.actions
        velocity = flow(batch.observations, on_the_way, noise.time)
        assert velocity.shape == noise.start.shape == batch.actions.shape
        return square(velocity - (batch.actions - noise.start)).mean(), {}

    def flow_actions(self, observations: Array, noise: Array) -> Array:
        """The flow's actions from noise (B, A), by Euler's method; only the last point is clipped to the bounds."""
        hp, flow = self.hp, self.flow
        actions = noise
        for step in range(hp.flow_steps):
            times = full_like(actions[:, 0], step / hp.flow_steps)
            actions = actions + flow(observations, actions, times) / hp.flow_steps
        return cut(self.actor, actions)

    def actor_loss(self, actor: Network, batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """The distance to the flow's action from the same noise, against the critics' mean value."""
        hp, critic = self.hp, self.critic
        actions = actor(batch.observations, noise.actor)
        # Only the distance pulls back actions beyond the bounds, because the value has no gradient there.
        distill_loss = square(actions - self.flow_actions(batch.observations, noise.actor)).mean()
        q = critic(batch.observations, cut(actor, actions)).mean(axis=0)
        assert q.shape == batch.rewards.shape
        # There is no epsilon below |Q|, as in the authors' code.
        weight = 1.0 / stop_gradient(jnp.abs(q).mean()) if hp.normalize_q else 1.0
        q_loss = -(weight * q).mean()
        return hp.distill_coef * distill_loss + q_loss, {"distill_loss": distill_loss, "q_loss": q_loss}

    def update(self, batch: Batch, noise: Noise) -> tuple["FQL", dict[str, Array]]:
        """One gradient step of each network, and one step of the target critics, all from the old weights."""
        state, hp = self, self.hp
        (critic_loss, _), of_critic = value_and_grad(self.critic_loss, has_aux=True)(self.critic, batch, noise)
        (flow_loss, _), of_flow = value_and_grad(self.flow_loss, has_aux=True)(self.flow, batch, noise)
        (actor_loss, aux), of_actor = value_and_grad(self.actor_loss, has_aux=True)(self.actor, batch, noise)
        state = state.replace(critic_target=soft_update(state.critic_target, state.critic, hp.tau))
        state = gradient_step(state, "actor", of_actor)
        state = gradient_step(state, "flow", of_flow)
        state = gradient_step(state, "critic", of_critic)
        metrics = {"critic_loss": critic_loss, "flow_loss": flow_loss, "actor_loss": actor_loss} | aux
        return state, metrics


@jax.jit
def act(actor: Network, observations: Array, noise: Array) -> Array:
    """The policy's actions (E, A) for observations (E, S) and noise (E, A)."""
    return cut(actor, actor(observations, noise))


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="num_updates", donate_argnames="state")
def train_interval(
    state: FQL, key: Array, dataset: PackedDataset, start: Array, num_updates: int
) -> tuple[FQL, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates` as one program; noise is drawn for a hundred at once."""
    hp, action_dim = state.hp, state.actor.module.action_dim

    def draw(step: Array) -> tuple[Array, Noise]:
        return draw_noise(key, step, hp, len(dataset), action_dim)

    def update(state: FQL, drawn: tuple[Array, Noise], place: int) -> tuple[FQL, dict[str, Array]]:
        indices, noise = drawn
        return state.update(take(dataset, indices), noise)

    return scan_updates(update, draw, state, start, num_updates)


def create_train_state(key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> FQL:
    """Fresh networks with Glorot's uniform weights."""
    hp, dims, layer_norm = narrow(config, Hyperparameters), config.actor_hidden_dims, config.actor_ln
    observations, actions, times = jnp.zeros((1, state_dim)), jnp.zeros((1, action_dim)), jnp.zeros(1)
    actor_key, flow_key, critic_key = jax.random.split(key, 3)
    actor = Network.create(Actor(action_dim, max_action, dims, layer_norm), actor_key, observations, actions)
    flow = Network.create(Flow(action_dim, dims, layer_norm), flow_key, observations, actions, times)
    critic_module = Critic(config.critic_hidden_dims, config.critic_ln)
    critic = Network.create(critic_module, critic_key, observations, actions)
    return FQL(
        actor=actor,
        flow=flow,
        critic=critic,
        # A donated state must not contain an array twice, so the target is a copy.
        critic_target=jax.tree.map(jnp.copy, critic),
        actor_optimizer=adam(hp).init(actor),
        flow_optimizer=adam(hp).init(flow),
        critic_optimizer=adam(hp).init(critic),
        hp=hp,
    )


def train(config: TrainConfig) -> Run:
    """Trains, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used.
    """
    preparation = Preparation(rewards=ShiftedRewards().where(config.normalize_reward), normalise=config.normalize)
    task = load_task(config, preparation)
    device = resolve_device(config.device)
    enable_compilation_cache()
    with jax.default_device(device):
        weights_key, draws_key = jax.random.split(jax.random.key(config.seed))
        state = create_train_state(weights_key, config, task.state_dim, task.action_dim, task.max_action)
        run = Run(config, task, "fql", "jax", device)
        state, total_it = restore(run, partial(load_checkpoint, algorithm="fql", state=state), state)
        dataset = to_device(cut_actions(task.dataset, task.max_action))
        draw = partial(draw_acting_noise, hp=state.hp, action_dim=task.action_dim)
        sampling = partial(SampledPolicy, draw=draw, seed=config.seed)
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, act, state.actor, asking=sampling)
            history = History(run)
            for start, step in run.calls(cost=5):
                num_updates = step - start
                state, found = train_together(train_interval, state, draws_key, dataset, start, num_updates)
                history.add(num_updates, found)
                write = partial(save_checkpoint, algorithm="fql", state=state, total_it=total_it + step)
                if run.is_due(step):
                    run.log(step, history.means())
                    run.save(step, write)
                    evaluate(run, step, act, state.actor, asking=sampling)
                elif run.stopping:
                    run.save(step, partial(write, history=history.content()))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "fql")
