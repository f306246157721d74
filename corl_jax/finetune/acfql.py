"""ACFQL in JAX, offline to online: learns from chunks of the data, then also from those that its policy plays.

Its twin is `corl_torch/finetune/acfql.py`. The networks, the losses and the update are from `corl_jax/acfql.py`.

Li et al., Reinforcement Learning with Action Chunking, 2025, https://arxiv.org/abs/2507.07969
"""

import math
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
from jax.numpy import amax, amin, arange, argmax, concatenate, cumsum, full_like, square, stack, tile

from shared.data.chunks import Chunks, check_length
from shared.data.online import OnlineExperience
from shared.data.rewards import ShiftedRewards, SparseRewards
from shared.data.transitions import cut_actions
from shared.envs.evaluation import ChunkedPolicy
from shared.frameworks.jax_calls import History
from shared.frameworks.jax_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, take, to_device
from shared.frameworks.jax_layers import Linear, Network, clamp, pick
from shared.frameworks.jax_online import Online
from shared.frameworks.jax_ring import Ring, push
from shared.frameworks.jax_scan import scan_updates
from shared.frameworks.jax_seeds import train_together
from shared.frameworks.jax_side import enable_compilation_cache, evaluate, narrow, resolve_device
from shared.runs.fields import bounded, choice, positive, widths
from shared.runs.run import Run
from shared.runs.settings import FinetuneConfig
from shared.runs.task import Extract, Preparation, load_task, training_environment

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Learning rate of all networks
    learning_rate: float = positive(3e-4)
    # Actions in a chunk, which the policy chooses at once and plays without looking; 1 is an action at a time
    horizon_length: int = bounded(5, low=1)
    # Policy: a network that follows the flow and maximises the value, or the best of several chunks of the flow
    actor_type: str = choice("distill-ddpg", "best-of-n")
    # Discount factor of the return, per step
    discount: float = bounded(0.99, low=0, high=1)
    # Rate at which the target critics follow the critics
    tau: float = bounded(0.005, low=0, high=1)
    # How both critics' values make one, in the target and for the best of n: their mean, or the smaller one
    q_agg: str = choice("mean", "min")
    # Weight of the distance to the flow's chunk in the policy's loss; no effect in best-of-n
    distill_coef: float = bounded(100.0, low=0)
    # Chunks of the flow in each state, of which best-of-n takes the best one
    n_action_samples: int = bounded(32, low=1)
    # Steps in which the flow turns noise into a chunk
    flow_steps: int = bounded(10, low=1)
    # Chunks in a batch
    batch_size: int = bounded(256, low=1)
    # Once the buffer is full, also take chunks from the newest rows on into the oldest, as the authors do
    chunks_across_newest: bool = False


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, FinetuneConfig):
    """The settings of a whole run."""

    group: str = "ACFQL-finetune"
    name: str = "ACFQL-finetune"
    # Dataset to begin with: mini/pendulum-replay, a D4RL id, minari:NAME, ogbench:NAME, or a file
    env: str = "mini/pendulum-replay"
    # Updates, offline or online, between two evaluations; one is also made at the end of the offline phase
    eval_freq: int = bounded(100_000, low=1)
    # Number of first environment steps that are not followed by updates
    learning_starts: int = bounded(4_999, low=0)
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
    # Make every reward -1 that is not 0 after that, where 0 is for a task that is done
    sparse_rewards: bool = False


# ---- chunks --------------------------------------------------------------------------------------------------------


def take_chunks(buffer: PackedDataset, indices: Array, hp: Hyperparameters, size: Array, first: Array) -> Chunks:
    """The chunks of h rows that begin at the rows `indices` (B,), wherever episodes end.

    Rows are counted from the row `first` on, and row 0 follows the last one of the `size` rows in the buffer.
    """
    steps = arange(hp.horizon_length)
    rows = take(buffer, (first + indices[:, None] + steps) % size)
    ends_before = cumsum(rows.last, axis=1) - rows.last
    return Chunks(
        observations=rows.observations[:, 0],
        actions=rows.actions,
        rewards=(rows.rewards * hp.discount**steps).sum(axis=1),
        next_observations=rows.next_observations[:, -1],
        terminals=amax(rows.terminals, axis=1),
        valid=1.0 * (ends_before == 0.0),
    )


def first_row(ring: Ring, hp: Hyperparameters) -> Any:
    """The row from which on rows are counted: the oldest, which is the next to be overwritten."""
    return 0 if hp.chunks_across_newest else ring.pointer


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


def beside(observations: Array, chunks: Array, *others: Array) -> Array:
    """A network's inputs side by side: observations (..., S), chunks (..., h, A) step by step, others (..., O)."""
    return concatenate([observations, chunks.reshape(*chunks.shape[:-2], -1), *others], axis=-1)


class Actor(nn.Module):
    """The policy, which turns noise into a chunk in one step; `cut` puts it within its bounds."""

    chunk_shape: tuple[int, int]
    max_action: float
    hidden_dims: Sequence[int]
    layer_norm: bool

    def setup(self) -> None:
        self.net = mlp(self.hidden_dims, self.layer_norm, math.prod(self.chunk_shape))

    def __call__(self, observations: Array, noise: Array) -> Array:
        """The chunks (B, h, A) for observations (B, S) and noise (B, h, A)."""
        return self.net(beside(observations, noise)).reshape(noise.shape)


class Flow(nn.Module):
    """The flow, whose velocity moves noise at time 0 to one of the data's chunks at time 1."""

    chunk_shape: tuple[int, int]
    max_action: float
    hidden_dims: Sequence[int]
    layer_norm: bool
    flow_steps: int

    def setup(self) -> None:
        self.net = mlp(self.hidden_dims, self.layer_norm, math.prod(self.chunk_shape))

    def __call__(self, observations: Array, chunks: Array, times: Array) -> Array:
        """The velocities (..., h, A) at chunks (..., h, A) and times (...), for observations (..., S)."""
        return self.net(beside(observations, chunks, times[..., None])).reshape(chunks.shape)


class Critic(nn.Module):
    """Both critics, with separate weights: (..., S) and (..., h, A) to (2, ...)."""

    hidden_dims: Sequence[int]
    layer_norm: bool
    q_agg: str

    def setup(self) -> None:
        sizes = (self.hidden_dims, self.layer_norm, 1)
        self.q1 = mlp(*sizes)
        self.q2 = mlp(*sizes)

    def __call__(self, observations: Array, chunks: Array) -> Array:
        """The values (2, ...) of chunks (..., h, A) that begin in observations (..., S)."""
        inputs = beside(observations, chunks)
        return stack([self.q1(inputs), self.q2(inputs)]).squeeze(-1)


def cut(actor: Network, chunks: Array) -> Array:
    """Chunks (..., h, A), clipped to [-max_action, max_action]."""
    return clamp(chunks, -actor.module.max_action, actor.module.max_action)


def flow_chunks(flow: Network, observations: Array, noise: Array) -> Array:
    """The flow's chunks from noise (..., h, A), by Euler's method; only the last point is clipped to the bounds."""
    flow_steps, chunks = flow.module.flow_steps, noise
    for step in range(flow_steps):
        times = full_like(chunks[..., 0, 0], step / flow_steps)
        chunks = chunks + flow(observations, chunks, times) / flow_steps
    return cut(flow, chunks)


def one_value(critic: Network, values: Array) -> Array:
    """One value (...) out of both critics' values (2, ...), their mean or the smaller one."""
    return values.mean(axis=0) if critic.module.q_agg == "mean" else amin(values, axis=0)


def best_of_n(flow: Network, critic: Network, observations: Array, noise: Array) -> Array:
    """The flow's chunk of highest value, (B, h, A), for observations (B, S) and noise (B, n, h, A)."""
    observations = tile(observations[:, None], (1, noise.shape[1], 1))
    chunks = flow_chunks(flow, observations, noise)
    best = argmax(one_value(critic, critic(observations, chunks)), axis=1)
    return pick(chunks.reshape(*chunks.shape[:2], -1), best).reshape(-1, *chunks.shape[2:])


def policy(acting: dict[str, Network], observations: Array, noise: Array) -> Array:
    """The policy's chunks (E, h, A) for observations (E, S) and noise (E, h, A), or (E, n, h, A) in best-of-n."""
    if "actor" in acting:
        return cut(acting["actor"], acting["actor"](observations, noise))
    return best_of_n(acting["flow"], acting["critic"], observations, noise)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    # Standard normal, (B, h, A): the noise of the policy's next chunks; (B, n, h, A) in best-of-n
    target: Array
    # Standard normal, (B, h, A): where the flow to the data's chunks begins
    start: Array
    # Uniform in [0, 1), (B,): the time that this flow has reached
    time: Array
    # Standard normal, (B, h, A): the noise that both the policy and the flow turn into a chunk; None in best-of-n
    actor: Array | None


def noise_shape(hp: Hyperparameters, action_dim: int) -> tuple[int, ...]:
    """The shape of the noise from which the policy makes a chunk: (h, A), or (n, h, A) in best-of-n."""
    chunk = (hp.horizon_length, action_dim)
    return chunk if hp.actor_type == "distill-ddpg" else (hp.n_action_samples, *chunk)


def draw_noise(key: Array, step: Array, hp: Hyperparameters, rows: Array, action_dim: int) -> tuple[Array, Noise]:
    """The numbers (B,) of the rows at which an update's chunks begin, and its noise.

    A chunk may begin in any of the `rows` that enough others follow. The key and the update's number determine all.
    """
    size, distilled = hp.batch_size, hp.actor_type == "distill-ddpg"
    shape = (size, hp.horizon_length, action_dim)
    index_key, target_key, start_key, time_key, actor_key, _ = jax.random.split(jax.random.fold_in(key, step), 6)
    indices = jax.random.randint(index_key, (size,), 0, rows - hp.horizon_length + 1)
    noise = Noise(
        target=jax.random.normal(target_key, (size, *noise_shape(hp, action_dim))),
        start=jax.random.normal(start_key, shape),
        time=jax.random.uniform(time_key, (size,)),
        actor=jax.random.normal(actor_key, shape) if distilled else None,
    )
    return indices, noise


class Exploration(NamedTuple):
    """The random numbers that a step in the environment draws, used or not."""

    # Standard normal, (1, h, A): the noise from which the policy makes a chunk; (1, n, h, A) in best-of-n
    chunk: Array


def draw_exploration(key: Array, step: Array, hp: Hyperparameters, action_dim: int) -> Exploration:
    """The draw of one step in the environment, which depends on the key and the step's number alone."""
    # The last of these keys: the update of the same number uses the others.
    chunk_key = jax.random.split(jax.random.fold_in(key, step), 6)[5]
    return Exploration(chunk=jax.random.normal(chunk_key, (1, *noise_shape(hp, action_dim))))


def draw_acting_noise(generator: np.random.Generator, hp: Hyperparameters, action_dim: int) -> np.ndarray:
    """The noise from which the policy makes a chunk, standard normal, (h, A), or (n, h, A) in best-of-n."""
    return generator.standard_normal(noise_shape(hp, action_dim))


# ---- losses and update ---------------------------------------------------------------------------------------------


def adam(hp: Hyperparameters) -> optax.GradientTransformation:
    """The optimiser of each part of the state."""
    return optax.adam(hp.learning_rate)


def gradient_step(state: "ACFQL", part: str, gradient: Network) -> "ACFQL":
    """One step of Adam on one part of the state, down its gradient."""
    change, moments = adam(state.hp).update(gradient, getattr(state, f"{part}_optimizer"))
    return state.replace(**{part: optax.apply_updates(getattr(state, part), change), f"{part}_optimizer": moments})


def soft_update(target: Network, source: Network, tau: float) -> Network:
    """Polyak averaging: the target, moved a step of size tau towards the source."""
    return jax.tree.map(lambda old, new: (1.0 - tau) * old + tau * new, target, source)


class ACFQL(struct.PyTreeNode):
    """All that an update reads and writes."""

    actor: Network
    flow: Network
    critic: Network
    critic_target: Network
    actor_optimizer: optax.OptState
    flow_optimizer: optax.OptState
    critic_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)

    def td_target(self, batch: Chunks, noise: Noise) -> Array:
        """The regression target of both critics, (B,), from their target values of the policy's next chunk."""
        hp, critic = self.hp, self.critic_target
        next_chunks = policy(self.acting, batch.next_observations, noise.target)
        next_q = one_value(critic, critic(batch.next_observations, next_chunks))
        assert next_q.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + (1.0 - batch.terminals) * hp.discount**hp.horizon_length * next_q

    def critic_loss(self, critic: Network, batch: Chunks, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """The squared error of both critics to the same target, the mean over both.

        A chunk that reaches into the next episode counts with an error of 0.
        """
        target = self.td_target(batch, noise)
        q = critic(batch.observations, batch.actions)
        valid = batch.valid[:, -1]
        assert q.shape == (2, *target.shape)
        assert valid.shape == target.shape
        return (valid * square(q - target)).mean(), {}

    def flow_loss(self, flow: Network, batch: Chunks, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """Flow matching: on the straight line from noise to the data's chunk, the velocity is their difference.

        Actions of the next episode count with an error of 0, although the flow sees them.
        """
        time = noise.time[:, None, None]
        on_the_way = (1.0 - time) * noise.start + time * batch.actions
        velocity = flow(batch.observations, on_the_way, noise.time)
        assert velocity.shape == noise.start.shape == batch.actions.shape
        assert velocity.shape[:-1] == batch.valid.shape
        return (batch.valid[..., None] * square(velocity - (batch.actions - noise.start))).mean(), {}

    def actor_loss(self, actor: Network, batch: Chunks, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """The distance to the flow's chunk from the same noise, against the critics' mean value."""
        hp, critic = self.hp, self.critic
        assert noise.actor is not None, "drawn for this actor_type"
        chunks = actor(batch.observations, noise.actor)
        followed = flow_chunks(self.flow, batch.observations, noise.actor)
        # Only the distance pulls back actions beyond the bounds, because the value has no gradient there.
        distill_loss = square(chunks - followed).mean()
        q = critic(batch.observations, cut(actor, chunks)).mean(axis=0)
        assert q.shape == batch.rewards.shape
        q_loss = -q.mean()
        return hp.distill_coef * distill_loss + q_loss, {"distill_loss": distill_loss, "q_loss": q_loss}

    def update(self, batch: Chunks, noise: Noise) -> tuple["ACFQL", dict[str, Array]]:
        """One gradient step of each network, and one step of the target critics, all from the old weights."""
        state, hp = self, self.hp
        (critic_loss, _), of_critic = value_and_grad(self.critic_loss, has_aux=True)(self.critic, batch, noise)
        (flow_loss, _), of_flow = value_and_grad(self.flow_loss, has_aux=True)(self.flow, batch, noise)
        metrics = {"critic_loss": critic_loss, "flow_loss": flow_loss}
        state = state.replace(critic_target=soft_update(state.critic_target, state.critic, hp.tau))
        if hp.actor_type == "distill-ddpg":
            (actor_loss, aux), of_actor = value_and_grad(self.actor_loss, has_aux=True)(self.actor, batch, noise)
            metrics |= {"actor_loss": actor_loss} | aux
            state = gradient_step(state, "actor", of_actor)
        state = gradient_step(state, "flow", of_flow)
        state = gradient_step(state, "critic", of_critic)
        return state, metrics

    @property
    def acting(self) -> dict[str, Network]:
        """The networks that the policy needs: its own, or the flow and the critics that choose."""
        if self.hp.actor_type == "distill-ddpg":
            return {"actor": self.actor}
        return {"flow": self.flow, "critic": self.critic}

    def explore(self, observations: Array, noise: Exploration) -> Array:
        """Chunks (E, h, A) to learn from, for observations (E, S): the policy's, as in an evaluation."""
        return policy(self.acting, observations, noise.chunk)


@jax.jit
def act(acting: dict[str, Network], observations: Array, noise: Array) -> Array:
    """Calls `policy`, compiled."""
    return policy(acting, observations, noise)


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="num_updates", donate_argnames="state")
def train_interval(
    state: ACFQL, key: Array, buffer: PackedDataset, start: Array, num_updates: int, size: Array, first: Array
) -> tuple[ACFQL, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates` as one program, their chunks from the buffer's `size` rows.

    Rows are counted from the row `first` on. The noise of a hundred updates is drawn at once.
    """
    hp, (_, action_dim) = state.hp, state.actor.module.chunk_shape

    def draw(step: Array) -> tuple[Array, Noise]:
        return draw_noise(key, step, hp, size, action_dim)

    def update(state: ACFQL, drawn: tuple[Array, Noise], place: int) -> tuple[ACFQL, dict[str, Array]]:
        indices, noise = drawn
        return state.update(take_chunks(buffer, indices, hp, size, first), noise)

    return scan_updates(update, draw, state, start, num_updates)


@jax.jit
def next_action(state: ACFQL, key: Array, step: Array, observation: Array) -> Array:
    """The chunk (1, h, A) that begins with the environment step of this number, in an observation (1, S)."""
    _, action_dim = state.actor.module.chunk_shape
    return state.explore(observation, draw_exploration(key, step, state.hp, action_dim))


@partial(jax.jit, static_argnames="idle", donate_argnames=("state", "ring"))
def train_online(
    state: ACFQL, key: Array, ring: Ring, start: Array, rows: Array, observation: Array, idle: int
) -> tuple[ACFQL, Ring, None, list[dict[str, Array]]]:
    """Everything between two environment steps but a choice: stores n transitions (n, W), and makes n updates.

    The first `idle` of those updates are skipped, because they come before learning starts. `next_action` chooses, but
    only where a chunk begins.
    """
    ring, num_updates = push(ring, rows), len(rows) - idle
    first = first_row(ring, state.hp)
    state, history = train_interval(state, key, ring, start + idle, num_updates, ring.size, first)
    return state, ring, None, history


def of_a_call(config: TrainConfig, start: int, num_updates: int) -> tuple[int]:
    """A call after `start` updates is compiled for the number of its updates that are idle."""
    return (min(max(config.offline_iterations + config.learning_starts - start, 0), num_updates),)


def create_train_state(key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> ACFQL:
    """Fresh networks with Glorot's uniform weights."""
    hp, shape = narrow(config, Hyperparameters), (config.horizon_length, action_dim)
    dims, layer_norm = config.actor_hidden_dims, config.actor_ln
    observations, chunks, times = jnp.zeros((1, state_dim)), jnp.zeros((1, *shape)), jnp.zeros(1)
    actor_key, flow_key, critic_key = jax.random.split(key, 3)
    actor = Network.create(Actor(shape, max_action, dims, layer_norm), actor_key, observations, chunks)
    flow_module = Flow(shape, max_action, dims, layer_norm, config.flow_steps)
    flow = Network.create(flow_module, flow_key, observations, chunks, times)
    critic_module = Critic(config.critic_hidden_dims, config.critic_ln, config.q_agg)
    critic = Network.create(critic_module, critic_key, observations, chunks)
    return ACFQL(
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


def save(state: ACFQL, path: Path, total_it: int, experience: OnlineExperience, **facts: Any) -> None:
    """Writes the new part of the experience, then a checkpoint beside it, with the rest of the chunk that is played."""
    experience.save(path.parent)
    save_checkpoint(path, "finetune/acfql", state, total_it, queue=experience.queue, **facts)


def train(config: TrainConfig) -> Run:
    """Trains on the data, then in the environment, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used.
    """
    shifted = ShiftedRewards().where(config.normalize_reward)
    rewards = SparseRewards(shifted) if config.sparse_rewards else shifted
    task = load_task(config, Preparation(Extract.IN_ORDER, rewards=rewards, normalise=config.normalize))
    check_length(task.dataset, config.horizon_length)
    device = resolve_device(config.device)
    experience = training_environment(config, task)
    enable_compilation_cache()
    with jax.default_device(device):
        weights_key, draws_key = jax.random.split(jax.random.key(config.seed))
        state = create_train_state(weights_key, config, task.state_dim, task.action_dim, task.max_action)
        run = Run(config, task, "finetune/acfql", "jax", device)
        # An offline run can be continued online, too.
        load = partial(load_checkpoint, algorithm=["finetune/acfql", "acfql"], state=state)
        state, total_it = restore(run, load, state, experience.go_on_from)
        # The data's actions are clipped; the environment's steps are stored with the actions as they were taken.
        dataset = to_device(cut_actions(task.dataset, task.max_action))
        statics, steps_of = partial(of_a_call, config), OnlineExperience.in_order
        online = Online(
            run, config, experience, draws_key, next_action, train_online, statics=statics, steps_of=steps_of
        )
        draw = partial(draw_acting_noise, hp=state.hp, action_dim=task.action_dim)
        sampling = partial(ChunkedPolicy, draw=draw, seed=config.seed, horizon_length=config.horizon_length)
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, act, state.acting, asking=sampling)
            offline = History(run)
            history: History | Online = offline
            for start, end in run.calls(cost=5):
                if start < config.offline_iterations:
                    updates, size = end - start, len(dataset)
                    state, found = train_together(train_interval, state, draws_key, dataset, start, updates, size, 0)
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
    cli(train, TrainConfig, "finetune/acfql")
