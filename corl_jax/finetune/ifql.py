"""IFQL in JAX, offline to online: learns from data, then in the environment, with the best of the flow's actions.

Its twin is `corl_torch/finetune/ifql.py`. The networks, the losses and the update are from `corl_jax/ifql.py`.

A baseline of Park et al., Flow Q-Learning, 2025, https://arxiv.org/abs/2502.02538
"""

from collections.abc import Callable, Sequence
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
from jax.nn.initializers import glorot_uniform, zeros
from jax.numpy import amin, argmax, concatenate, full_like, square, stack, tile

from shared.data.online import OnlineExperience
from shared.data.rewards import ShiftedRewards
from shared.data.transitions import Batch, cut_actions
from shared.envs.evaluation import SampledPolicy
from shared.frameworks.jax_calls import History
from shared.frameworks.jax_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, take, to_device
from shared.frameworks.jax_layers import Linear, Network, clamp, pick
from shared.frameworks.jax_online import Online
from shared.frameworks.jax_ring import Ring, push
from shared.frameworks.jax_scan import scan_updates
from shared.frameworks.jax_seeds import train_together
from shared.frameworks.jax_side import enable_compilation_cache, evaluate, narrow, resolve_device
from shared.runs.fields import bounded, positive, widths
from shared.runs.run import Run
from shared.runs.settings import FinetuneConfig
from shared.runs.task import Preparation, load_task, training_environment

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
    # Expectile of the values of the data's actions that V(s) regresses to; above 0.5, it is nearer to the best
    iql_tau: float = bounded(0.9, low=0, high=1)
    # Actions sampled in each state, of which the policy takes the best one
    n_action_samples: int = bounded(32, low=1)
    # Transitions in a batch
    batch_size: int = bounded(256, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, FinetuneConfig):
    """The settings of a whole run."""

    group: str = "IFQL-finetune"
    name: str = "IFQL-finetune"
    # Updates, offline or online, between two evaluations; one is also made at the end of the offline phase
    eval_freq: int = bounded(100_000, low=1)
    # Episodes in an evaluation
    n_episodes: int = bounded(50, low=1)
    # Widths of the flow's hidden layers
    actor_hidden_dims: tuple[int, ...] = widths(512, 512, 512, 512)
    # Widths of the hidden layers of V and of the critics
    critic_hidden_dims: tuple[int, ...] = widths(512, 512, 512, 512)
    # LayerNorm after the flow's hidden layers
    actor_ln: bool = False
    # LayerNorm after the hidden layers of V and of the critics
    critic_ln: bool = True
    # Steps in which the flow turns noise into an action
    flow_steps: int = bounded(10, low=1)
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


class Value(nn.Module):
    """V(s)."""

    hidden_dims: Sequence[int]
    layer_norm: bool

    def setup(self) -> None:
        self.net = mlp(self.hidden_dims, self.layer_norm, 1)

    def __call__(self, observations: Array) -> Array:
        """The values (B,) of observations (B, S)."""
        return self.net(observations).squeeze(-1)


class Critic(nn.Module):
    """Both critics Q(s, a), with separate weights."""

    hidden_dims: Sequence[int]
    layer_norm: bool

    def setup(self) -> None:
        sizes = (self.hidden_dims, self.layer_norm, 1)
        self.q1 = mlp(*sizes)
        self.q2 = mlp(*sizes)

    def __call__(self, observations: Array, actions: Array) -> Array:
        """The values (2, ...) of actions (..., A) in observations (..., S)."""
        inputs = concatenate([observations, actions], axis=-1)
        return stack([self.q1(inputs), self.q2(inputs)]).squeeze(-1)


class Flow(nn.Module):
    """The flow, whose velocity moves noise at time 0 to one of the data's actions at time 1."""

    action_dim: int
    max_action: float
    hidden_dims: Sequence[int]
    layer_norm: bool
    flow_steps: int

    def setup(self) -> None:
        self.net = mlp(self.hidden_dims, self.layer_norm, self.action_dim)

    def __call__(self, observations: Array, actions: Array, times: Array) -> Array:
        """The velocities (..., A) at actions (..., A) and times (...), for observations (..., S)."""
        return self.net(concatenate([observations, actions, times[..., None]], axis=-1))


def flow_actions(flow: Network, observations: Array, noise: Array) -> Array:
    """The flow's actions from noise (..., A), by Euler's method; only the last point is clipped to the bounds."""
    max_action, flow_steps = flow.module.max_action, flow.module.flow_steps
    actions = noise
    for step in range(flow_steps):
        times = full_like(actions[..., 0], step / flow_steps)
        actions = actions + flow(observations, actions, times) / flow_steps
    return clamp(actions, -max_action, max_action)


def repeat(observations: Array, n: int) -> Array:
    """The observations (B, S), each repeated n times: (B, n, S)."""
    return tile(observations[:, None], (1, n, 1))


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    # Standard normal, (B, A): where the flow to the data's actions begins
    start: Array
    # Uniform in [0, 1), (B,): the time that this flow has reached
    time: Array


def draw_noise(key: Array, step: Array, hp: Hyperparameters, size: Array, action_dim: int) -> tuple[Array, Noise]:
    """An update's batch indices (B,) below `size` and its noise, which the key and the update's number determine."""
    index_key, start_key, time_key, _ = jax.random.split(jax.random.fold_in(key, step), 4)
    indices = jax.random.randint(index_key, (hp.batch_size,), 0, size)
    noise = Noise(
        start=jax.random.normal(start_key, (hp.batch_size, action_dim)),
        time=jax.random.uniform(time_key, (hp.batch_size,)),
    )
    return indices, noise


class Exploration(NamedTuple):
    """The random numbers that a step in the environment draws."""

    # Standard normal, (1, n, A): the noise of the actions that the policy chooses from
    action: Array


def draw_exploration(key: Array, step: Array, hp: Hyperparameters, action_dim: int) -> Exploration:
    """The draw of one step in the environment, which depends on the key and the step's number alone."""
    # The last of these keys: the update of the same number uses the others.
    action_key = jax.random.split(jax.random.fold_in(key, step), 4)[3]
    return Exploration(action=jax.random.normal(action_key, (1, hp.n_action_samples, action_dim)))


def draw_acting_noise(generator: np.random.Generator, hp: Hyperparameters, action_dim: int) -> np.ndarray:
    """The noise of the actions that the policy chooses from, standard normal, (n, A), for one step of an episode."""
    return generator.standard_normal((hp.n_action_samples, action_dim))


# ---- losses and update ---------------------------------------------------------------------------------------------


def adam(hp: Hyperparameters) -> optax.GradientTransformation:
    """The optimiser of each part of the state."""
    return optax.adam(hp.learning_rate)


def gradient_step(state: "IFQL", part: str, gradient: Network) -> "IFQL":
    """One step of Adam on one part of the state, down its gradient."""
    change, moments = adam(state.hp).update(gradient, getattr(state, f"{part}_optimizer"))
    return state.replace(**{part: optax.apply_updates(getattr(state, part), change), f"{part}_optimizer": moments})


def soft_update(target: Network, source: Network, tau: float) -> Network:
    """Polyak averaging: the target, moved a step of size tau towards the source."""
    return jax.tree.map(lambda old, new: (1.0 - tau) * old + tau * new, target, source)


class IFQL(struct.PyTreeNode):
    """All that an update reads and writes."""

    value: Network
    critic: Network
    flow: Network
    critic_target: Network
    value_optimizer: optax.OptState
    critic_optimizer: optax.OptState
    flow_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)

    def target_q(self, batch: Batch) -> Array:
        """The smaller target value of the data's actions, (B,)."""
        return amin(self.critic_target(batch.observations, batch.actions), axis=0)

    def expectile_weight(self, adv: Array) -> Array:
        """The weight of each advantage (B,) in V's loss: `iql_tau` if it is positive or 0, otherwise 1 - `iql_tau`."""
        return abs(self.hp.iql_tau - 1.0 * (adv < 0.0))

    def value_loss(self, value: Network, batch: Batch) -> tuple[Array, dict[str, Array]]:
        """Expectile regression of V to the values of the data's actions."""
        v = value(batch.observations)
        adv = self.target_q(batch) - v
        assert adv.shape == v.shape == batch.rewards.shape
        return (self.expectile_weight(adv) * square(adv)).mean(), {}

    def td_target(self, batch: Batch) -> Array:
        """The regression target of both critics, (B,), for which no action is chosen."""
        next_v = self.value(batch.next_observations)
        assert next_v.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + (1.0 - batch.terminals) * self.hp.discount * next_v

    def critic_loss(self, critic: Network, batch: Batch) -> tuple[Array, dict[str, Array]]:
        """The squared errors of both critics to the same target, added up over the critics."""
        target = self.td_target(batch)
        q = critic(batch.observations, batch.actions)
        assert q.shape == (2, *target.shape)
        return square(q - target).mean(axis=1).sum(), {}

    def flow_loss(self, flow: Network, batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """Flow matching: on the straight line from noise to the data's action, the velocity is their difference."""
        time = noise.time[:, None]
        on_the_way = (1.0 - time) * noise.start + time * batch.actions
        velocity = flow(batch.observations, on_the_way, noise.time)
        assert velocity.shape == noise.start.shape == batch.actions.shape
        return square(velocity - (batch.actions - noise.start)).mean(), {}

    def update(self, batch: Batch, noise: Noise) -> tuple["IFQL", dict[str, Array]]:
        """One gradient step of each network, and one step of the target critics, all from the old weights."""
        state, hp = self, self.hp
        (value_loss, _), of_value = value_and_grad(self.value_loss, has_aux=True)(self.value, batch)
        (critic_loss, _), of_critic = value_and_grad(self.critic_loss, has_aux=True)(self.critic, batch)
        (flow_loss, _), of_flow = value_and_grad(self.flow_loss, has_aux=True)(self.flow, batch, noise)
        state = state.replace(critic_target=soft_update(state.critic_target, state.critic, hp.tau))
        state = gradient_step(state, "value", of_value)
        state = gradient_step(state, "critic", of_critic)
        state = gradient_step(state, "flow", of_flow)
        metrics = {"value_loss": value_loss, "critic_loss": critic_loss, "flow_loss": flow_loss}
        return state, metrics

    @property
    def acting(self) -> dict[str, Network]:
        """The networks that the policy needs."""
        return {"flow": self.flow, "critic": self.critic}

    def explore(self, observations: Array, noise: Exploration) -> Array:
        """Actions (E, A) to learn from, for observations (E, S): the policy's, as in an evaluation."""
        return act(self.acting, observations, noise.action)


@jax.jit
def act(acting: dict[str, Network], observations: Array, noise: Array) -> Array:
    """The policy's actions (E, A) for observations (E, S) and noise (E, n, A): the best of n by the smaller value."""
    observations = repeat(observations, noise.shape[1])
    actions = flow_actions(acting["flow"], observations, noise)
    best = argmax(amin(acting["critic"](observations, actions), axis=0), axis=1)
    return pick(actions, best)


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="num_updates", donate_argnames="state")
def train_interval(
    state: IFQL, key: Array, dataset: PackedDataset, start: Array, num_updates: int, size: Array
) -> tuple[IFQL, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates` as one program, their batches from the first `size` rows.

    The noise of a hundred updates is drawn at once.
    """
    hp, action_dim = state.hp, state.flow.module.action_dim

    def draw(step: Array) -> tuple[Array, Noise]:
        return draw_noise(key, step, hp, size, action_dim)

    def update(state: IFQL, drawn: tuple[Array, Noise], place: int) -> tuple[IFQL, dict[str, Array]]:
        indices, noise = drawn
        return state.update(take(dataset, indices), noise)

    return scan_updates(update, draw, state, start, num_updates)


@jax.jit
def next_action(state: IFQL, key: Array, step: Array, observation: Array) -> Array:
    """The action (1, A) for the environment step with this number, in an observation (1, S)."""
    return state.explore(observation, draw_exploration(key, step, state.hp, state.flow.module.action_dim))


@partial(jax.jit, donate_argnames=("state", "ring"))
def train_online(
    state: IFQL, key: Array, ring: Ring, start: Array, rows: Array, observation: Array
) -> tuple[IFQL, Ring, Array, list[dict[str, Array]]]:
    """Everything between two environment steps: stores n transitions (n, W), makes n updates, and chooses an action."""
    ring, num_updates = push(ring, rows), len(rows)
    state, history = train_interval(state, key, ring, start, num_updates, ring.size)
    return state, ring, next_action(state, key, start + num_updates, observation), history


def create_train_state(key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> IFQL:
    """Fresh networks with Glorot's uniform weights."""
    hp, dims, layer_norm = narrow(config, Hyperparameters), config.critic_hidden_dims, config.critic_ln
    observations, actions, times = jnp.zeros((1, state_dim)), jnp.zeros((1, action_dim)), jnp.zeros(1)
    value_key, critic_key, flow_key = jax.random.split(key, 3)
    value = Network.create(Value(dims, layer_norm), value_key, observations)
    critic = Network.create(Critic(dims, layer_norm), critic_key, observations, actions)
    flow_module = Flow(action_dim, max_action, config.actor_hidden_dims, config.actor_ln, config.flow_steps)
    flow = Network.create(flow_module, flow_key, observations, actions, times)
    return IFQL(
        value=value,
        critic=critic,
        flow=flow,
        # A donated state must not contain an array twice, so the target is a copy.
        critic_target=jax.tree.map(jnp.copy, critic),
        value_optimizer=adam(hp).init(value),
        critic_optimizer=adam(hp).init(critic),
        flow_optimizer=adam(hp).init(flow),
        hp=hp,
    )


def save(state: IFQL, path: Path, total_it: int, experience: OnlineExperience, **facts: Any) -> None:
    """Writes the new part of the experience, then a checkpoint beside it."""
    experience.save(path.parent)
    save_checkpoint(path, "finetune/ifql", state, total_it, **facts)


def train(config: TrainConfig) -> Run:
    """Trains on the data, then in the environment, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used.
    """
    preparation = Preparation(rewards=ShiftedRewards().where(config.normalize_reward), normalise=config.normalize)
    task = load_task(config, preparation)
    device = resolve_device(config.device)
    experience = training_environment(config, task)
    enable_compilation_cache()
    with jax.default_device(device):
        weights_key, draws_key = jax.random.split(jax.random.key(config.seed))
        state = create_train_state(weights_key, config, task.state_dim, task.action_dim, task.max_action)
        run = Run(config, task, "finetune/ifql", "jax", device)
        # An offline run can be continued online, too.
        load = partial(load_checkpoint, algorithm=["finetune/ifql", "ifql"], state=state)
        state, total_it = restore(run, load, state, experience.go_on_from)
        # The data's actions are clipped; the environment's steps are stored with the actions as they were taken.
        dataset = to_device(cut_actions(task.dataset, task.max_action))
        online = Online(run, config, experience, draws_key, next_action, train_online)
        draw = partial(draw_acting_noise, hp=state.hp, action_dim=task.action_dim)
        sampling = partial(SampledPolicy, draw=draw, seed=config.seed)
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, act, state.acting, asking=sampling)
            offline = History(run)
            history: History | Online = offline
            for start, end in run.calls(cost=5):
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
                    evaluate(run, end, act, state.acting, asking=sampling)
                elif run.stopping:
                    run.save(end, partial(write, history=history.content()))
    experience.close()
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "finetune/ifql")
