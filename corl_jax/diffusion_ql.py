"""Diffusion-QL in JAX: a diffusion model imitates the data's actions, and its samples maximize the value.

Its twin is `corl_torch/diffusion_ql.py`.

Wang et al., Diffusion Policies as an Expressive Policy Class for Offline Reinforcement Learning, 2023,
https://arxiv.org/abs/2208.06193
"""

import math
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
from jax.nn import sigmoid
from jax.numpy import amax, amin, argmax, concatenate, cos, exp, flip, full_like, sin, square, stack, tile, where

from shared.data.rewards import StandardRewards
from shared.data.transitions import Batch
from shared.envs.evaluation import SampledPolicy
from shared.frameworks.jax_calls import History
from shared.frameworks.jax_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, take, to_device
from shared.frameworks.jax_layers import Linear, Network, clamp, pick
from shared.frameworks.jax_scan import scan_updates
from shared.frameworks.jax_seeds import train_together
from shared.frameworks.jax_side import enable_compilation_cache, evaluate, narrow, resolve_device
from shared.runs.fields import bounded, choice, positive, widths
from shared.runs.run import Run
from shared.runs.settings import EpochsConfig, TransitionsConfig
from shared.runs.task import Preparation, load_task

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Initial learning rate of the policy
    actor_lr: float = positive(3e-4)
    # Initial learning rate of the critics
    critic_lr: float = positive(3e-4)
    # How both learning rates fall: by a cosine to 0 at max_timesteps; by one that moves an epoch with each evaluation,
    # which is the authors' and hardly falls; or not
    opt_decay_schedule: str = choice("cosine", "by_evaluation", "none")
    # Updates in all, over which the learning rates fall
    max_timesteps: int = bounded(2_000_000, low=1)
    # Updates between two evaluations
    eval_freq: int = bounded(50_000, low=1)
    # Updates in an epoch, the unit of num_epochs
    num_updates_on_epoch: int = bounded(1000, low=1)
    # Largest norm of a network's gradient, which is clipped to it; null: no clipping
    clip_grad: float | None = positive(5.0)
    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Rate at which the target critics follow the critics
    tau: float = bounded(0.005, low=0, high=1)
    # Weight of the old moving average of the policy each time it moves; the target's actions come from this average
    ema_decay: float = bounded(0.995, low=0, high=1)
    # Updates between two moves of the average
    ema_period: int = bounded(5, low=1)
    # Updates before its first move. In the authors' code these are 1000, in which it stays the random initial policy
    ema_start: int = bounded(0, low=0)
    # Weight of the value in the policy's loss
    eta: float = bounded(1.0, low=0)
    # Steps in which the policy turns noise into an action
    diffusion_steps: int = bounded(5, low=1)
    # How the variances of the noise in these steps rise
    beta_schedule: str = choice("vp", "linear", "cosine")
    # Actions sampled in each next state, of which the target takes the best one
    n_target_actions: int = bounded(1, low=1)
    # Actions sampled in each state when acting, of which the policy takes one by its value
    n_action_samples: int = bounded(50, low=1)
    # Temperature of the softmax over their values; 0 takes the best one
    selection_temperature: float = bounded(1.0, low=0)
    # Transitions in a batch
    batch_size: int = bounded(256, low=1)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, EpochsConfig, TransitionsConfig):
    """The settings of a whole run."""

    group: str = "Diffusion-QL-D4RL"
    name: str = "Diffusion-QL"
    # Dataset: mini/pendulum-replay, a D4RL id, minari:NAME, ogbench:NAME, or a file
    env: str = "mini/pendulum-replay"
    # Widths of the hidden layers of the policy's noise network
    actor_hidden_dims: tuple[int, ...] = widths(256, 256, 256)
    # Widths of the critics' hidden layers
    critic_hidden_dims: tuple[int, ...] = widths(256, 256, 256)
    # Normalise states to mean 0 and standard deviation 1
    normalize: bool = False
    # Scale rewards to mean 0 and standard deviation 1
    normalize_reward: bool = False


# ---- diffusion -----------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """The factors in one step of the reverse chain."""

    # Shares of the action and of noise in a noised action
    signal: float
    noise: float
    # Shares of the estimated action and of the noised one in the mean of the next one, which is noised less
    of_action: float
    of_noised: float
    # Standard deviation around that mean; 0 at the last step
    std: float


def variances(schedule: str, n: int) -> list[float]:
    """The variances of the noise that n steps add to an action."""
    if schedule == "linear":
        return np.linspace(1e-4, 0.02, n).tolist()
    if schedule == "cosine":
        left = np.cos((np.linspace(0.0, 1.0, n + 1) + 0.008) / 1.008 * np.pi / 2.0) ** 2
        return np.minimum(1.0 - left[1:] / left[:-1], 0.999).tolist()
    # A rate that rises from 0.1 to 10, over a time of 1: the variance-preserving process of Song et al., 2021,
    # https://arxiv.org/abs/2011.13456
    rates = 0.1 + (10.0 - 0.1) * (np.arange(n) + 0.5) / n
    return (1.0 - np.exp(-rates / n)).tolist()


def diffusion(schedule: str, n: int) -> tuple[Step, ...]:
    """The n steps of the reverse chain by their number: it begins with the last one, and ends with step 0.

    Ho et al., Denoising Diffusion Probabilistic Models, 2020, https://arxiv.org/abs/2006.11239
    """
    steps: list[Step] = []
    action, noise = 1.0, 0.0  # their shares in the variance, before a step adds noise
    for beta in variances(schedule, n):
        action_after, noise_after = (1.0 - beta) * action, (1.0 - beta) * noise + beta
        step = Step(
            signal=math.sqrt(action_after),
            noise=math.sqrt(noise_after),
            of_action=beta * math.sqrt(action) / noise_after,
            of_noised=noise * math.sqrt(1.0 - beta) / noise_after,
            std=math.sqrt(beta * noise / noise_after),
        )
        steps.append(step)
        action, noise = action_after, noise_after
    return tuple(steps)


# ---- networks ------------------------------------------------------------------------------------------------------

# Size of the encoding of a step's number
TIME_DIM = 16


def mish(inputs: Array) -> Array:
    """Mish, x tanh(ln(1 + e^x)), by one logistic function instead of three transcendental ones."""
    share = sigmoid(inputs)
    return inputs * share * (2.0 - share) / (1.0 + square(1.0 - share))


def mlp(hidden_dims: Sequence[int], output_dim: int) -> nn.Sequential:
    """Hidden layers with Mish, then a linear layer."""
    hidden: list[Callable[..., Any]] = [layer for width in hidden_dims for layer in (Linear(width), mish)]
    return nn.Sequential([*hidden, Linear(output_dim)])


def encoding(number: Array) -> Array:
    """Sines, then cosines (..., TIME_DIM) of steps' numbers (...), with frequencies from 1 to 1/10000."""
    half = TIME_DIM // 2
    frequencies = exp(jnp.arange(0.0, half) * (-math.log(10000.0) / (half - 1)))
    angles = number[..., None] * frequencies
    return concatenate([sin(angles), cos(angles)], axis=-1)


class Actor(nn.Module):
    """The policy's noise network, which finds the noise in a noised action."""

    action_dim: int
    max_action: float
    hidden_dims: Sequence[int]
    steps: Sequence[Step]

    def setup(self) -> None:
        self.time = mlp((2 * TIME_DIM,), TIME_DIM)
        self.net = mlp(self.hidden_dims, self.action_dim)

    def __call__(self, observations: Array, noised: Array, number: Array) -> Array:
        """The noise (..., A) in actions (..., A) before steps with these numbers (...), for observations (..., S)."""
        return self.net(concatenate([noised, self.time(encoding(number)), observations], axis=-1))


class Critic(nn.Module):
    """Both critics Q(s, a), with separate weights."""

    hidden_dims: Sequence[int]

    def setup(self) -> None:
        self.q1 = mlp(self.hidden_dims, 1)
        self.q2 = mlp(self.hidden_dims, 1)

    def __call__(self, observations: Array, actions: Array) -> Array:
        """The values (2, ...) of actions (..., A) in observations (..., S)."""
        inputs = concatenate([observations, actions], axis=-1)
        return stack([self.q1(inputs), self.q2(inputs)]).squeeze(-1)


def columns(steps: Sequence[Step]) -> Step:
    """All steps as one, with arrays (T,)."""
    return jax.tree.map(lambda *column: jnp.array(column), *steps)


def sample(actor: Network, observations: Array, noise: Array) -> Array:
    """Actions (..., A) for observations (..., S) and noise (..., T, A): the reverse chain, for all rows together.

    Each step draws from a normal distribution, at first the standard one, and finds the next. All have a gradient. The
    last mean is the estimated action itself, which is within its bounds.
    """
    max_action, steps = actor.module.max_action, actor.module.steps

    def denoise(normal: Any, given: Any) -> tuple[Any, None]:
        (mean, std), (number, step, noise) = normal, given
        noised = mean + std * noise
        found = actor(observations, noised, full_like(noised[..., 0], number))
        action = clamp((noised - step.noise * found) / step.signal, -max_action, max_action)
        return (step.of_action * action + step.of_noised * noised, step.std), None

    numbered = jnp.arange(len(steps)), columns(steps), jnp.moveaxis(noise, -2, 0)
    start = jnp.zeros(noise[..., 0, :].shape), 1.0
    # Unrolled by the default number of steps, so that XLA compiles them without a loop.
    (mean, _), _ = jax.lax.scan(denoise, start, numbered, reverse=True, unroll=5)
    return mean


def repeat(observations: Array, n: int) -> Array:
    """The observations (B, S), each repeated n times: (B, n, S)."""
    return tile(observations[:, None], (1, n, 1))


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch; all but two are standard normal."""

    # (B, n, T, A): the chains to the next actions
    target: Array
    # Uniform in 0, ..., T - 1, (B,): the step before which the data's actions are noised
    number: Array
    # (B, A): the noise in them
    added: Array
    # (B, T, A): the chains to the policy's actions
    actor: Array
    # Uniform in [-0.5, 0.5), (): the policy learns from the first critic if it is positive, else from the second
    coin: Array


def draw_noise(key: Array, step: Array, hp: Hyperparameters, dataset_size: int, action_dim: int) -> tuple[Array, Noise]:
    """An update's batch indices (B,) and its noise, which depend on the key and on the update's number alone."""
    steps, size = hp.diffusion_steps, hp.batch_size
    rows, target, number, added, actor, coin = jax.random.split(jax.random.fold_in(key, step), 6)
    indices = jax.random.randint(rows, (size,), 0, dataset_size)
    noise = Noise(
        target=jax.random.normal(target, (size, hp.n_target_actions, steps, action_dim)),
        number=jax.random.randint(number, (size,), 0, steps),
        added=jax.random.normal(added, (size, action_dim)),
        actor=jax.random.normal(actor, (size, steps, action_dim)),
        coin=jax.random.uniform(coin, minval=-0.5, maxval=0.5),
    )
    return indices, noise


def draw_acting_noise(generator: np.random.Generator, hp: Hyperparameters, action_dim: int) -> np.ndarray:
    """The policy's draws for one step of an episode, (n, T A + 1): each action's chain, and Gumbel noise."""
    chains = generator.standard_normal((hp.n_action_samples, hp.diffusion_steps * action_dim))
    gumbel = generator.gumbel(size=(hp.n_action_samples, 1))
    return np.concatenate([chains, hp.selection_temperature * gumbel], axis=-1)


# ---- losses and update ---------------------------------------------------------------------------------------------


def learning_rate(hp: Hyperparameters, initial: float, updates: Array) -> Array | float:
    """The learning rate after so many updates: a cosine from the initial one to 0, or what the settings say."""
    if hp.opt_decay_schedule == "none":
        return initial
    if hp.opt_decay_schedule == "by_evaluation":
        updates = updates // hp.eval_freq * hp.num_updates_on_epoch
    return initial * (1.0 + cos(math.pi * updates / hp.max_timesteps)) / 2.0


def adam(part: str, hp: Hyperparameters) -> optax.GradientTransformation:
    """The optimiser of one part of the state."""
    return optax.adam(partial(learning_rate, hp, {"actor": hp.actor_lr, "critic": hp.critic_lr}[part]))


def clip_norm(gradient: Network, largest: float) -> Network:
    """PyTorch's `clip_grad_norm_`; optax adds no epsilon to the norm."""
    factor = jnp.minimum(largest / (optax.tree.norm(gradient) + 1e-6), 1.0)
    return jax.tree.map(lambda leaf: leaf * factor, gradient)


def gradient_step(state: "DiffusionQL", part: str, gradient: Network) -> "DiffusionQL":
    """One step of Adam on one part of the state, down its gradient, which is clipped to a norm."""
    if state.hp.clip_grad is not None:
        gradient = clip_norm(gradient, state.hp.clip_grad)
    change, moments = adam(part, state.hp).update(gradient, getattr(state, f"{part}_optimizer"))
    return state.replace(**{part: optax.apply_updates(getattr(state, part), change), f"{part}_optimizer": moments})


def soft_update(target: Network, source: Network, tau: float | Array) -> Network:
    """Polyak averaging: the target, moved a step of size tau towards the source."""
    return jax.tree.map(lambda old, new: (1.0 - tau) * old + tau * new, target, source)


class DiffusionQL(struct.PyTreeNode):
    """All that an update reads and writes."""

    actor: Network
    critic: Network
    actor_target: Network
    critic_target: Network
    actor_optimizer: optax.OptState
    critic_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)

    def td_target(self, batch: Batch, noise: Noise) -> Array:
        """The regression target of both critics, (B,): the smaller of their best values of the average's actions."""
        hp, actor, critic = self.hp, self.actor_target, self.critic_target
        observations = repeat(batch.next_observations, hp.n_target_actions)
        values = critic(observations, sample(actor, observations, noise.target))
        next_q = amin(amax(values, axis=2), axis=0)
        assert next_q.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + (1.0 - batch.terminals) * hp.discount * next_q

    def critic_loss(self, critic: Network, batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """The squared errors of both critics to the same target, added up over the critics."""
        target = self.td_target(batch, noise)
        q = critic(batch.observations, batch.actions)
        assert q.shape == (2, *target.shape)
        return square(q - target).mean(axis=1).sum(), {}

    def bc_loss(self, actor: Network, batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """Behaviour cloning: the squared error of the noise found in the data's noised actions."""
        shares = jnp.array([step[:2] for step in actor.module.steps])[noise.number]
        noised = shares[:, :1] * batch.actions + shares[:, 1:] * noise.added
        found = actor(batch.observations, noised, noise.number)
        assert found.shape == noise.added.shape == batch.actions.shape
        return square(found - noise.added).mean(), {}

    def q_loss(self, actor: Network, batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """The value of the policy's actions by one critic, on the scale of the other one's values."""
        values = self.critic(batch.observations, sample(actor, batch.observations, noise.actor))
        q, other = where(noise.coin > 0.0, values, flip(values, (0,)))
        assert q.shape == other.shape == batch.rewards.shape
        return -q.mean() / stop_gradient(abs(other).mean()), {}

    def actor_loss(self, actor: Network, batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """Behaviour cloning, and the value with its weight."""
        bc_loss, _ = self.bc_loss(actor, batch, noise)
        q_loss, _ = self.q_loss(actor, batch, noise)
        return bc_loss + self.hp.eta * q_loss, {"bc_loss": bc_loss, "q_loss": q_loss}

    def update(self, batch: Batch, noise: Noise) -> tuple["DiffusionQL", dict[str, Array]]:
        """One gradient step: the critics; the policy, on the new critics; the average if it is due, and the targets."""
        state, hp, updates = self, self.hp, self.actor_optimizer[0].count
        (critic_loss, _), gradient = value_and_grad(state.critic_loss, has_aux=True)(state.critic, batch, noise)
        state = gradient_step(state, "critic", gradient)
        (actor_loss, aux), gradient = value_and_grad(state.actor_loss, has_aux=True)(state.actor, batch, noise)
        state = gradient_step(state, "actor", gradient)
        is_due = (updates >= hp.ema_start) & (updates % hp.ema_period == 0)
        rate = where(is_due, 1.0 - hp.ema_decay, 0.0)
        state = state.replace(
            actor_target=soft_update(state.actor_target, state.actor, rate),
            critic_target=soft_update(state.critic_target, state.critic, hp.tau),
        )
        return state, {"critic_loss": critic_loss, "actor_loss": actor_loss} | aux

    @property
    def acting(self) -> dict[str, Network]:
        """The networks that the policy needs: the policy itself, not its average, but the target critics."""
        return {"actor": self.actor, "critic": self.critic_target}


@jax.jit
def act(acting: dict[str, Network], observations: Array, noise: Array) -> Array:
    """The policy's actions (E, A) for observations (E, S) and noise (E, n, T A + 1).

    One of n samples is drawn with the smaller values as logits, as the argmax of value plus Gumbel noise.
    """
    actor, observations = acting["actor"], repeat(observations, noise.shape[1])
    chains = noise[..., :-1].reshape(*noise.shape[:2], -1, actor.module.action_dim)
    actions = sample(actor, observations, chains)
    values = amin(acting["critic"](observations, actions), axis=0)
    return pick(actions, argmax(values + noise[..., -1], axis=1))


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="num_updates", donate_argnames="state")
def train_interval(
    state: DiffusionQL, key: Array, dataset: PackedDataset, start: Array, num_updates: int
) -> tuple[DiffusionQL, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates` as one program; noise is drawn for a hundred at once."""
    hp, action_dim = state.hp, state.actor.module.action_dim

    def draw(step: Array) -> tuple[Array, Noise]:
        return draw_noise(key, step, hp, len(dataset), action_dim)

    def update(state: DiffusionQL, drawn: tuple[Array, Noise], place: int) -> tuple[DiffusionQL, dict[str, Array]]:
        indices, noise = drawn
        return state.update(take(dataset, indices), noise)

    return scan_updates(update, draw, state, start, num_updates)


def create_train_state(
    key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float
) -> DiffusionQL:
    """Fresh networks with PyTorch's initialisation."""
    hp = narrow(config, Hyperparameters)
    observations, actions, number = jnp.zeros((1, state_dim)), jnp.zeros((1, action_dim)), jnp.zeros(1)
    actor_key, critic_key = jax.random.split(key)
    steps = diffusion(config.beta_schedule, config.diffusion_steps)
    actor_module = Actor(action_dim, max_action, config.actor_hidden_dims, steps)
    actor = Network.create(actor_module, actor_key, observations, actions, number)
    critic = Network.create(Critic(config.critic_hidden_dims), critic_key, observations, actions)
    return DiffusionQL(
        actor=actor,
        critic=critic,
        # A donated state must not contain an array twice, so the targets are copies.
        actor_target=jax.tree.map(jnp.copy, actor),
        critic_target=jax.tree.map(jnp.copy, critic),
        actor_optimizer=adam("actor", hp).init(actor),
        critic_optimizer=adam("critic", hp).init(critic),
        hp=hp,
    )


def train(config: TrainConfig) -> Run:
    """Trains, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used.
    """
    preparation = Preparation(rewards=StandardRewards().where(config.normalize_reward), normalise=config.normalize)
    task = load_task(config, preparation)
    device = resolve_device(config.device)
    enable_compilation_cache()
    with jax.default_device(device):
        weights_key, draws_key = jax.random.split(jax.random.key(config.seed))
        state = create_train_state(weights_key, config, task.state_dim, task.action_dim, task.max_action)
        run = Run(config, task, "diffusion_ql", "jax", device)
        state, total_it = restore(run, partial(load_checkpoint, algorithm="diffusion_ql", state=state), state)
        dataset = to_device(task.dataset)
        draw = partial(draw_acting_noise, hp=state.hp, action_dim=task.action_dim)
        sampling = partial(SampledPolicy, draw=draw, seed=config.seed)
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, act, state.acting, asking=sampling)
            history = History(run)
            for start, step in run.calls(cost=5):
                num_updates = step - start
                state, found = train_together(train_interval, state, draws_key, dataset, start, num_updates)
                history.add(num_updates, found)
                write = partial(save_checkpoint, algorithm="diffusion_ql", state=state, total_it=total_it + step)
                if run.is_due(step):
                    run.log(step, history.means())
                    run.save(step, write)
                    evaluate(run, step, act, state.acting, asking=sampling)
                elif run.stopping:
                    run.save(step, partial(write, history=history.content()))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "diffusion_ql")
