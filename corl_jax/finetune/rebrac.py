"""ReBRAC in JAX, offline to online: learns from data first, then in the environment, ever less tied to the data.

Its twin is `corl_torch/finetune/rebrac.py`. The networks and the losses are from `corl_jax/rebrac.py`.

Tarasov et al., Revisiting the Minimalist Approach to Offline Reinforcement Learning, 2023,
https://arxiv.org/abs/2305.09836
"""

from collections.abc import Callable, Sequence
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
from jax.lax import stop_gradient
from jax.nn.initializers import constant
from jax.numpy import amin, clip, concatenate, maximum, square, stack, tanh, where

from shared.data.online import OnlineExperience
from shared.data.returns import ReturnsBatch, online_rows
from shared.data.rewards import HundredfoldRewards
from shared.frameworks.jax_calls import History
from shared.frameworks.jax_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, take, to_device
from shared.frameworks.jax_layers import Linear, Network
from shared.frameworks.jax_online import Online
from shared.frameworks.jax_ring import Ring, push, take_both
from shared.frameworks.jax_scan import scan_updates
from shared.frameworks.jax_seeds import train_together
from shared.frameworks.jax_side import enable_compilation_cache, evaluate, narrow, resolve_device
from shared.runs.fields import bounded, positive
from shared.runs.run import Run
from shared.runs.settings import EvalSeedConfig, FinetuneConfig
from shared.runs.task import Extract, Preparation, load_task, training_environment

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Learning rate of the actor
    actor_lr: float = positive(3e-4)
    # Learning rate of the critics
    critic_lr: float = positive(3e-4)
    # Width of every hidden layer
    hidden_dim: int = bounded(256, low=1)
    # Hidden layers of the actor
    actor_n_hiddens: int = bounded(3, low=1)
    # Hidden layers of each critic
    critic_n_hiddens: int = bounded(3, low=1)
    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Rate at which the targets follow their networks
    tau: float = bounded(5e-3, low=0, high=1)
    # Weight of behaviour cloning in the actor's loss, the paper's beta_1
    actor_bc_coef: float = bounded(1.0, low=0)
    # Weight of the distance to the data's next action in the critics' target, the paper's beta_2
    critic_bc_coef: float = bounded(1.0, low=0)
    # LayerNorm after the actor's hidden layers
    actor_ln: bool = False
    # LayerNorm after the critics' hidden layers
    critic_ln: bool = True
    # Standard deviation of the noise on the target policy's action
    policy_noise: float = bounded(0.2, low=0)
    # That noise is clipped to plus or minus this
    noise_clip: float = bounded(0.5, low=0)
    # Critic updates per update of the actor and of the targets
    policy_freq: int = bounded(2, low=1)
    # Scale the Q term of the actor's loss by its own size
    normalize_q: bool = True
    # Transitions in a batch
    batch_size: int = bounded(256, low=1)
    # Share of the online phase's batches that comes from the environment; the rest comes from the dataset
    online_share: float = bounded(0.5, low=0, high=1)
    # Updates on the dataset alone
    offline_iterations: int = bounded(1_000_000, low=0)
    # Environment steps after those, over which `actor_bc_coef` falls
    online_iterations: int = bounded(1_000_000, low=0)
    # Number of first environment steps that are not followed by updates
    learning_starts: int = bounded(0, low=0)
    # Smallest share of `actor_bc_coef` that remains online
    min_decay_coef: float = bounded(0.5, low=0, high=1)
    # Standard deviation of the noise that the policy explores with
    expl_noise: float = bounded(0.0, low=0)
    # Bound targets from below by the data's return from that step on; by 0 for the environment's steps
    use_calibration: bool = False


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, FinetuneConfig, EvalSeedConfig):
    """The settings of a whole run."""

    group: str = "rebrac-finetune"
    name: str = "rebrac-finetune"
    # Largest dataset accepted, in transitions, and the capacity for the environment's, which overwrite the oldest
    buffer_size: int = bounded(2_000_000, low=1)
    # Updates, offline or online, between two evaluations; one is also made at the end of the offline phase
    eval_freq: int = bounded(5000, low=1)
    # Seed of the weights, the batches, the noise and the start states of the episodes to learn from
    seed: int = bounded(10, low=0, high=2**32 - 1)
    # Normalise states to mean 0 and standard deviation 1
    normalize: bool = False
    # Multiply AntMaze's rewards by 100; refused for other datasets
    normalize_reward: bool = False
    # No effect here or in CORL, whose optimisers continue in any case; kept so that CORL's files load
    reset_opts: bool = False


# ---- networks ------------------------------------------------------------------------------------------------------


def within(bound: float) -> Callable[..., Array]:
    """U(-bound, bound)."""

    def init(key: Array, shape: Sequence[int], dtype: Any = None) -> Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


def mlp(hidden_dim: int, n_hiddens: int, layer_norm: bool, output_dim: int, bound: float) -> nn.Sequential:
    """Hidden layers with ReLU, then LayerNorm if the settings say so; the last layer starts within the bound."""
    layers: list[Callable[..., Any]] = []
    for _ in range(n_hiddens):
        layers += [Linear(hidden_dim, bias_init=constant(0.1)), nn.relu]
        if layer_norm:
            layers += [nn.LayerNorm(epsilon=1e-6, param_dtype=float)]
    return nn.Sequential([*layers, Linear(output_dim, within(bound), within(bound))])


class Actor(nn.Module):
    """The deterministic policy: (B, S) to (B, A), within [-1, 1]."""

    hp: Hyperparameters
    action_dim: int

    def setup(self) -> None:
        hp = self.hp
        self.net = mlp(hp.hidden_dim, hp.actor_n_hiddens, hp.actor_ln, self.action_dim, bound=1e-3)

    def __call__(self, observations: Array) -> Array:
        """The actions (B, A) for observations (B, S)."""
        return tanh(self.net(observations))


class Critic(nn.Module):
    """Both critics, with separate weights: (B, S) and (B, A) to (2, B)."""

    hp: Hyperparameters

    def setup(self) -> None:
        sizes = (self.hp.hidden_dim, self.hp.critic_n_hiddens, self.hp.critic_ln, 1)
        self.q1 = mlp(*sizes, bound=3e-3)
        self.q2 = mlp(*sizes, bound=3e-3)

    def __call__(self, observations: Array, actions: Array) -> Array:
        """The values (2, B) of actions (B, A) in observations (B, S)."""
        inputs = concatenate([observations, actions], axis=-1)
        return stack([self.q1(inputs), self.q2(inputs)]).squeeze(-1)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    # Standard normal, (B, A): smooths the target policy
    target: Array
    # Uniform in [-1, 1), (B, A): random actions, only for the metrics
    random: Array


def shares(hp: Hyperparameters) -> tuple[int, int]:
    """How many rows of an online batch come from the dataset, and how many from the environment."""
    online = int(hp.online_share * hp.batch_size)
    return hp.batch_size - online, online


def draw_noise(
    key: Array, step: Array, hp: Hyperparameters, dataset_size: int, action_dim: int, online_size: Array | None = None
) -> tuple[Array, Noise]:
    """An update's batch indices (B,) and its noise, which depend on the key and on the update's number alone.

    The dataset's rows come first. The environment's, if there are any, are numbered from `dataset_size` on.
    """
    shape = (hp.batch_size, action_dim)
    index_key, online_key, target_key, random_key, _ = jax.random.split(jax.random.fold_in(key, step), 5)
    offline, online = shares(hp) if online_size is not None else (hp.batch_size, 0)
    indices = jax.random.randint(index_key, (offline,), 0, dataset_size)
    if online_size is not None:
        further = dataset_size + jax.random.randint(online_key, (online,), 0, online_size)
        indices = concatenate([indices, further])
    noise = Noise(
        target=jax.random.normal(target_key, shape),
        random=jax.random.uniform(random_key, shape, minval=-1.0, maxval=1.0),
    )
    return indices, noise


class Exploration(NamedTuple):
    """The random numbers that a step in the environment draws."""

    # Standard normal, (1, A)
    action: Array


def draw_exploration(key: Array, step: Array, hp: Hyperparameters, action_dim: int) -> Exploration:
    """The draw of one step in the environment, which depends on the key and the step's number alone."""
    # The last of these keys: the update of the same number uses the others.
    action_key = jax.random.split(jax.random.fold_in(key, step), 5)[4]
    return Exploration(action=jax.random.normal(action_key, (1, action_dim)))


# ---- losses and update ---------------------------------------------------------------------------------------------


def adam(part: str, hp: Hyperparameters) -> optax.GradientTransformation:
    """The optimiser of one part of the state."""
    rates = {"actor": hp.actor_lr, "critic": hp.critic_lr}
    return optax.adam(rates[part])


def gradient_step(state: "ReBRAC", part: str, gradient: Network) -> "ReBRAC":
    """One step of Adam on one part of the state, down its gradient."""
    change, moments = adam(part, state.hp).update(gradient, getattr(state, f"{part}_optimizer"))
    return state.replace(**{part: optax.apply_updates(getattr(state, part), change), f"{part}_optimizer": moments})


def soft_update(target: Network, source: Network, tau: float) -> Network:
    """Polyak averaging: the target, moved a step of size tau towards the source."""
    return jax.tree.map(lambda old, new: (1.0 - tau) * old + tau * new, target, source)


class ReBRAC(struct.PyTreeNode):
    """All that an update reads and writes."""

    actor: Network
    critic: Network
    actor_target: Network
    critic_target: Network
    actor_optimizer: optax.OptState
    critic_optimizer: optax.OptState
    # Updates so far, plus the steps of the warm-up, which have none
    total_it: Array
    hp: Hyperparameters = struct.field(pytree_node=False)

    def bc_coefs(self) -> tuple[Array, Array]:
        """The current weights of both distances: in the actor's loss, and in the critics' target.

        Online, the first falls linearly to its smallest share, and the second is 0 at once.
        """
        hp = self.hp
        online = self.total_it >= hp.offline_iterations
        left = hp.offline_iterations + hp.learning_starts + hp.online_iterations - self.total_it
        # Divided by a float, because JAX would divide integers in half the precision.
        decay = where(online, maximum(hp.min_decay_coef, left / float(hp.online_iterations)), 1.0)
        return hp.actor_bc_coef * decay, where(online, 0.0, hp.critic_bc_coef)

    def td_target(self, batch: ReturnsBatch, noise: Noise) -> Array:
        """The regression target of both critics, (B,): the smaller target value of a smoothed target action.

        The further that action is from the data's next action, the lower its value.
        """
        hp, actor, critic = self.hp, self.actor_target, self.critic_target
        _, critic_bc_coef = self.bc_coefs()
        smoothing = clip(hp.policy_noise * noise.target, -hp.noise_clip, hp.noise_clip)
        next_actions = clip(actor(batch.next_observations) + smoothing, -1.0, 1.0)
        distance = square(next_actions - batch.next_actions).sum(axis=-1)
        next_q = amin(critic(batch.next_observations, next_actions), axis=0) - critic_bc_coef * distance
        assert next_q.shape == distance.shape == batch.rewards.shape == batch.terminals.shape
        target = batch.rewards + (1.0 - batch.terminals) * hp.discount * next_q
        return maximum(target, batch.returns) if hp.use_calibration else target

    def critic_loss(self, critic: Network, batch: ReturnsBatch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """The squared error of both critics to the same target."""
        target = self.td_target(batch, noise)
        q = critic(batch.observations, batch.actions)
        assert q.shape == (2, *target.shape)
        return square(q - target).mean(axis=1).sum(), {"q_min": amin(q, axis=0).mean()}

    def actor_loss(self, actor: Network, batch: ReturnsBatch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """The distance to the data's actions against the smaller value, scaled by its own size."""
        hp, critic = self.hp, self.critic
        actor_bc_coef, _ = self.bc_coefs()
        actions = actor(batch.observations)
        distance = square(actions - batch.actions).sum(axis=-1)
        q = amin(critic(batch.observations, actions), axis=0)
        assert q.shape == distance.shape == batch.rewards.shape
        # There is no epsilon below |Q|, as in the authors' code.
        weight = 1.0 / stop_gradient(jnp.abs(q).mean()) if hp.normalize_q else 1.0
        metrics = {
            "bc_mse_policy": distance.mean(),
            "bc_mse_random": square(noise.random - batch.actions).sum(axis=-1).mean(),
            "action_mse": square(actions - batch.actions).mean(),
        }
        return (actor_bc_coef * distance - weight * q).mean(), metrics

    def update(self, batch: ReturnsBatch, noise: Noise, delayed: bool) -> tuple["ReBRAC", dict[str, Array]]:
        """One gradient step: the critics; if `delayed`, also the actor, on the new critics, and the targets."""
        state, hp = self, self.hp
        actor_bc_coef, critic_bc_coef = self.bc_coefs()
        (loss, aux), gradient = value_and_grad(state.critic_loss, has_aux=True)(state.critic, batch, noise)
        state = gradient_step(state, "critic", gradient)
        metrics = {"actor_bc_coef": actor_bc_coef, "critic_bc_coef": critic_bc_coef, "critic_loss": loss} | aux
        if delayed:
            (loss, aux), gradient = value_and_grad(state.actor_loss, has_aux=True)(state.actor, batch, noise)
            # As in CORL, the actor's target follows the actor before this step, and the critics' the new critics.
            state = state.replace(actor_target=soft_update(state.actor_target, state.actor, hp.tau))
            state = gradient_step(state, "actor", gradient)
            state = state.replace(critic_target=soft_update(state.critic_target, state.critic, hp.tau))
            metrics |= {"actor_loss": loss} | aux
        return state.replace(total_it=state.total_it + 1), metrics

    def explore(self, observations: Array, noise: Exploration) -> Array:
        """Actions (E, A) to learn from, for normalised observations (E, S): the policy's, with added noise."""
        return clip(self.actor(observations) + self.hp.expl_noise * noise.action, -1.0, 1.0)


@jax.jit
def act(actor: Network, observations: Array) -> Array:
    """The policy's actions (E, A) for normalised observations (E, S)."""
    return actor(observations)


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames=("num_updates", "phase"), donate_argnames="state")
def train_interval(
    state: ReBRAC, key: Array, dataset: PackedDataset, start: Array, num_updates: int, phase: int, ring: Ring | None
) -> tuple[ReBRAC, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates` as one program, scanned in chunks whose noise is drawn at once.

    An update's place in the scanned block and `phase` tell whether it is delayed. `phase` counts the updates before the
    interval, modulo `policy_freq`. Both are known when the program is compiled, so no branch is left in it. Batches
    come from the dataset alone, or are mixed with the ring's rows.
    """
    hp, action_dim = state.hp, state.actor.module.action_dim
    online_size = None if ring is None else ring.size

    def draw(step: Array) -> tuple[Array, Noise]:
        return draw_noise(key, step, hp, len(dataset), action_dim, online_size)

    def update(state: ReBRAC, drawn: tuple[Array, Noise], place: int) -> tuple[ReBRAC, dict[str, Array]]:
        indices, noise = drawn
        batch = take(dataset, indices) if ring is None else take_both(dataset, ring, indices, shares(hp)[0])
        delayed = (phase + place) % hp.policy_freq == 0
        return state.update(batch, noise, delayed)

    return scan_updates(update, draw, state, start, num_updates, hp.policy_freq, unroll=2)


@jax.jit
def next_action(state: ReBRAC, key: Array, step: Array, observation: Array) -> Array:
    """The action (1, A) for the environment step with this number, in a normalised observation (1, S)."""
    return state.explore(observation, draw_exploration(key, step, state.hp, state.actor.module.action_dim))


@partial(jax.jit, static_argnames=("phase", "idle"), donate_argnames=("state", "ring"))
def train_online(
    state: ReBRAC,
    key: Array,
    ring: Ring,
    start: Array,
    rows: Array,
    observation: Array,
    dataset: PackedDataset,
    phase: int,
    idle: int,
) -> tuple[ReBRAC, Ring, Array, list[dict[str, Array]]]:
    """Everything between two environment steps: stores n transitions (n, W), makes n updates, and chooses an action.

    The first `idle` of those updates are skipped, because they belong to the warm-up.
    """
    ring, end = push(ring, rows), start + len(rows)
    state = state.replace(total_it=state.total_it + idle)
    state, history = train_interval(state, key, dataset, start + idle, len(rows) - idle, phase, ring)
    return state, ring, next_action(state, key, end, observation), history


def of_a_call(config: TrainConfig, start: int, num_updates: int) -> tuple[int, int]:
    """A call after `start` updates is compiled for the phase of its updates, and for the number that are idle."""
    idle = min(max(config.offline_iterations + config.learning_starts - start, 0), num_updates)
    return (start + idle) % config.policy_freq, idle


def create_train_state(key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> ReBRAC:
    """Fresh networks with CORL's initialisation; whatever `max_action`, the policy's bound is 1, as in CORL."""
    hp = narrow(config, Hyperparameters)
    observations, actions = jnp.zeros((1, state_dim)), jnp.zeros((1, action_dim))
    actor_key, critic_key = jax.random.split(key)
    actor = Network.create(Actor(hp, action_dim), actor_key, observations)
    critic = Network.create(Critic(hp), critic_key, observations, actions)
    # A donated state must not contain an array twice, so the targets are copies.
    actor_target, critic_target = jax.tree.map(jnp.copy, (actor, critic))
    return ReBRAC(
        actor=actor,
        critic=critic,
        actor_target=actor_target,
        critic_target=critic_target,
        actor_optimizer=adam("actor", hp).init(actor),
        critic_optimizer=adam("critic", hp).init(critic),
        total_it=jnp.zeros((), jnp.int32),
        hp=hp,
    )


def save(state: ReBRAC, path: Path, total_it: int, experience: OnlineExperience, **facts: Any) -> None:
    """Writes the new part of the experience, then a checkpoint beside it."""
    experience.save(path.parent)
    save_checkpoint(path, "finetune/rebrac", state, total_it, **facts)


def load(state: ReBRAC, path: str) -> dict[str, Any]:
    """Loads a checkpoint, also of an offline run, which does not count updates; returns its contents."""
    return load_checkpoint(path, ["finetune/rebrac", "rebrac"], state, optional=["total_it"])


def train(config: TrainConfig) -> Run:
    """Trains on the data, then in the environment, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used.
    """
    preparation = Preparation(
        Extract.RETURNS, rewards=HundredfoldRewards().where(config.normalize_reward), normalise=config.normalize
    )
    task = load_task(config, preparation)
    device = resolve_device(config.device)
    experience = training_environment(config, task)
    enable_compilation_cache()
    with jax.default_device(device):
        weights_key, draws_key = jax.random.split(jax.random.key(config.seed))
        state = create_train_state(weights_key, config, task.state_dim, task.action_dim, task.max_action)
        run = Run(config, task, "finetune/rebrac", "jax", device)
        state, _ = restore(run, partial(load, state), state, experience.go_on_from)
        # The weights of the distances only depend on this run's own steps, even if it began with a checkpoint.
        state = state.replace(total_it=jnp.asarray(run.step, jnp.int32))
        dataset = to_device(task.dataset)
        call = partial(of_a_call, config)
        online = Online(run, config, experience, draws_key, next_action, train_online, online_rows, call, [dataset])
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, act, state.actor)
            offline = History(run)
            history: History | Online = offline
            for start, end in run.calls(config.policy_freq):
                if start < config.offline_iterations:
                    statics = end - start, start % config.policy_freq, None
                    state, found = train_together(train_interval, state, draws_key, dataset, start, *statics)
                    offline.add(end - start, found)
                else:
                    online.begin(dataset, keeps_dataset=False)
                    history, (state, end) = online, online.play(state, start, end)
                write = partial(save, state, total_it=end, experience=experience)
                if run.is_due(end):
                    run.log(end, history.means(), experience.episodes)
                    run.save(end, write)
                    evaluate(run, end, act, state.actor)
                elif run.stopping:
                    run.save(end, partial(write, history=history.content()))
    experience.close()
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "finetune/rebrac")
