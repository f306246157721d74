"""CQL in JAX, offline to online: critics' values are pushed down where the policy acts, also in the environment.

Its twin is `corl_torch/finetune/cql.py`. The losses and the update are from `corl_jax/cql.py`.

Kumar et al., Conservative Q-Learning for Offline Reinforcement Learning, 2020, https://arxiv.org/abs/2006.04779
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
import optax
from flax import linen as nn
from flax import struct
from jax import Array, value_and_grad
from jax.nn import initializers, logsumexp
from jax.numpy import concatenate, exp, log, minimum, square, std, take_along_axis, tanh

from shared.data.online import OnlineExperience
from shared.data.rewards import ScaledRewards
from shared.data.transitions import Batch
from shared.frameworks.jax_calls import History
from shared.frameworks.jax_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.jax_data import PackedDataset, take, to_device
from shared.frameworks.jax_layers import Linear, Network, Scalar, clamp, softplus, xavier_uniform
from shared.frameworks.jax_online import Online
from shared.frameworks.jax_ring import Ring, push
from shared.frameworks.jax_scan import scan_updates
from shared.frameworks.jax_seeds import train_together
from shared.frameworks.jax_side import enable_compilation_cache, evaluate, narrow, resolve_device
from shared.runs.fields import bounded, positive
from shared.runs.run import Run
from shared.runs.settings import FinetuneConfig
from shared.runs.task import Preparation, load_task, training_environment

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update depends on; in JAX, they are compile-time constants."""

    # Transitions in a batch
    batch_size: int = bounded(256, low=1)
    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Factor on the entropy temperature; without automatic tuning, the temperature itself
    alpha_multiplier: float = bounded(1.0, low=0)
    # Tune the temperature towards an entropy of minus the number of action dimensions
    tune_temperature: bool = True
    # Subtract the entropy term in the critics' target
    backup_entropy: bool = False
    # Learning rate of the actor and of the entropy temperature
    actor_lr: float = positive(3e-5)
    # Learning rate of the critics and of the Lagrange multiplier
    critic_lr: float = positive(3e-4)
    # Rate at which the target critics follow the critics
    tau: float = bounded(5e-3, low=0, high=1)
    # Updates between two steps of the targets
    target_update_period: int = bounded(1, low=1)
    # Actions sampled per state for each part of the conservative term
    cql_n_actions: int = bounded(10, low=1)
    # Weigh the sampled actions by their density, CQL(H)
    cql_importance_sample: bool = True
    # Tune the weight of the conservative term towards a target gap
    cql_lagrange: bool = False
    # Target gap between the values of out-of-distribution actions and of the data's
    cql_target_action_gap: float = -1.0
    # Temperature of the soft maximum over sampled actions
    cql_temp: float = positive(1.0)
    # Weight of the conservative term, offline
    cql_alpha: float = bounded(10.0, low=0)
    # Weight of the conservative term, online
    cql_alpha_online: float = bounded(10.0, low=0)
    # Use the best of cql_n_actions next actions in the critics' target
    cql_max_target_backup: bool = False
    # Lower bound of a row's gap
    cql_clip_diff_min: float = -math.inf
    # Upper bound of a row's gap
    cql_clip_diff_max: float = math.inf
    # Number of first updates whose actor loss contains no value; despite the name, nothing is cloned, as in CORL
    bc_steps: int = bounded(0, low=0)
    # Updates on the dataset alone
    offline_iterations: int = bounded(1_000_000, low=0)


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, FinetuneConfig):
    """The settings of a whole run."""

    group: str = "CQL-D4RL"
    name: str = "CQL"
    # Orthogonal initialisation of every layer of the actor and of the critics, including the last ones
    orthogonal_init: bool = True
    # Normalise states to mean 0 and standard deviation 1
    normalize: bool = True
    # Scale rewards as CORL does for this kind of dataset, then by reward_scale and reward_bias; online too
    normalize_reward: bool = False
    # Hidden layers of each critic; the actor has three
    critic_n_hiddens: int = bounded(2, low=1)
    # Width of every hidden layer; CORL's is always 256
    hidden_dim: int = bounded(256, low=1)
    # Factor on rewards, if normalize_reward
    reward_scale: float = 1.0
    # Added to rewards after that, if normalize_reward
    reward_bias: float = 0.0


# ---- networks ------------------------------------------------------------------------------------------------------


def mlp(output_dim: int, n_hidden_layers: int, hidden_dim: int, orthogonal: bool) -> nn.Sequential:
    """Hidden layers with ReLU; without orthogonal layers, the weights of the last one start near 0."""
    linear_init = [initializers.orthogonal(math.sqrt(2.0)), initializers.zeros] if orthogonal else []
    layers: list[Callable[..., Any]] = []
    for _ in range(n_hidden_layers):
        layers += [Linear(hidden_dim, *linear_init), nn.relu]
    return nn.Sequential([*layers, Linear(output_dim, *(linear_init or [xavier_uniform(gain=1e-2)]))])


class Actor(nn.Module):
    """The policy: a normal distribution, squashed by tanh."""

    action_dim: int
    max_action: float
    hidden_dim: int
    orthogonal_init: bool

    def setup(self) -> None:
        self.base_network = mlp(2 * self.action_dim, 3, self.hidden_dim, self.orthogonal_init)
        self.log_std_multiplier = Scalar(1.0)
        self.log_std_offset = Scalar(-1.0)

    def __call__(self, observations: Array) -> tuple[Array, Array]:
        """Mean and standard deviation (..., A) before tanh, for observations (..., S)."""
        mean, log_std = jnp.split(self.base_network(observations), 2, axis=-1)
        log_std = self.log_std_multiplier() * log_std + self.log_std_offset()
        return mean, exp(clamp(log_std, -20.0, 2.0))


def sample(actor: Network, observations: Array, noise: Array) -> tuple[Array, Array]:
    """Actions (B, A) and their log-probabilities (B,) for noise (B, A); n of each per state for (B, n, A)."""
    mean, std = actor(observations)
    if noise.ndim == 3:
        mean, std = mean[:, None], std[:, None]
    u = mean + noise * std
    actions = actor.module.max_action * tanh(u)
    log_prob = -2.0 * (math.log(2.0) - u - softplus(-2.0 * u))
    log_prob = log_prob + (-square(u - mean) / (2.0 * square(std)) - log(std) - math.log(math.sqrt(2.0 * math.pi)))
    return actions, log_prob.sum(axis=-1)


class Critic(nn.Module):
    """Q(s, a)."""

    n_hidden_layers: int
    hidden_dim: int
    orthogonal_init: bool

    def setup(self) -> None:
        self.network = mlp(1, self.n_hidden_layers, self.hidden_dim, self.orthogonal_init)

    def __call__(self, observations: Array, actions: Array) -> Array:
        """The values (B,) of actions (B, A) in observations (B, S), or (B, n) of actions (B, n, A)."""
        if actions.ndim == 3:
            observations = jnp.broadcast_to(observations[:, None], (*actions.shape[:2], observations.shape[-1]))
        inputs = concatenate([observations, actions], axis=-1)
        return self.network(inputs.reshape(-1, inputs.shape[-1])).reshape(actions.shape[:-1])  # two axes are faster


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch, with n = cql_n_actions."""

    # Standard normal, (B, A): the policy's action in each state
    actor: Array
    # Standard normal, (B, A), in the first `bc_steps` updates only
    bc: Array | None
    # Standard normal, (B, A), or (B, n, A) with cql_max_target_backup: the policy's next actions in the target
    target: Array
    # Uniform in [-1, 1), (B, n, A): random actions for the conservative term
    random: Array
    # Standard normal, (B, n, A): the policy's actions for the conservative term
    current: Array
    # Standard normal, (B, n, A): the policy's next actions for the conservative term
    next: Array


def draw_noise(
    key: Array, step: Array, hp: Hyperparameters, size: Array | int, action_dim: int, in_bc_steps: bool = False
) -> tuple[Array, Noise]:
    """An update's batch indices (B,) below `size` and its noise, which depend on the key and its number alone."""
    one, many = (hp.batch_size, action_dim), (hp.batch_size, hp.cql_n_actions, action_dim)
    keys = jax.random.split(jax.random.fold_in(key, step), 8)
    indices = jax.random.randint(keys[0], (hp.batch_size,), 0, size)
    noise = Noise(
        actor=jax.random.normal(keys[1], one),
        bc=jax.random.normal(keys[2], one) if in_bc_steps else None,
        target=jax.random.normal(keys[3], many if hp.cql_max_target_backup else one),
        random=jax.random.uniform(keys[4], many, minval=-1.0, maxval=1.0),
        current=jax.random.normal(keys[5], many),
        next=jax.random.normal(keys[6], many),
    )
    return indices, noise


class Exploration(NamedTuple):
    """The random numbers that a step in the environment draws."""

    # Standard normal, (1, A)
    action: Array


def draw_exploration(key: Array, step: Array, hp: Hyperparameters, action_dim: int) -> Exploration:
    """The draw of one step in the environment, which depends on the key and the step's number alone."""
    # The last of these keys: the update of the same number uses the others.
    action_key = jax.random.split(jax.random.fold_in(key, step), 8)[7]
    return Exploration(action=jax.random.normal(action_key, (1, action_dim)))


# ---- losses and update ---------------------------------------------------------------------------------------------


def gradient_step(state: "CQL", part: str, gradient: Any, lr: float) -> "CQL":
    """One step of Adam on one part of the state, down its gradient."""
    change, moments = optax.adam(lr).update(gradient, getattr(state, f"{part}_optimizer"))
    return state.replace(**{part: optax.apply_updates(getattr(state, part), change), f"{part}_optimizer": moments})


def soft_update(target: Network, source: Network, tau: float) -> Network:
    """Polyak averaging: the target, moved a step of size tau towards the source."""
    return jax.tree.map(lambda old, new: (1.0 - tau) * old + tau * new, target, source)


class CQL(struct.PyTreeNode):
    """All that an update reads and writes."""

    actor: Network
    critic_1: Network
    critic_2: Network
    critic_1_target: Network
    critic_2_target: Network
    log_temperature: Array
    log_alpha_prime: Array
    actor_optimizer: optax.OptState
    critic_1_optimizer: optax.OptState
    critic_2_optimizer: optax.OptState
    log_temperature_optimizer: optax.OptState
    log_alpha_prime_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)

    def temperature(self) -> Array:
        """The entropy temperature: a constant in every loss except its own."""
        if not self.hp.tune_temperature:
            return jnp.asarray(self.hp.alpha_multiplier)
        return exp(self.log_temperature) * self.hp.alpha_multiplier

    def alpha_loss(self, log_temperature: Array, log_prob: Array) -> tuple[Array, dict[str, Array]]:
        """Raises the temperature while the policy's entropy is below -A, minus one nat for each action dimension."""
        return -(log_temperature * (log_prob - self.actor.module.action_dim)).mean(), {}

    def actor_loss(self, actor: Network, batch: Batch, noise: Noise) -> tuple[Array, dict[str, Array]]:
        """Soft actor-critic's loss, which raises the smaller critic's value and the entropy."""
        critic_1, critic_2 = self.critic_1, self.critic_2
        actions, log_prob = sample(actor, batch.observations, noise.actor)
        q = minimum(critic_1(batch.observations, actions), critic_2(batch.observations, actions))
        if noise.bc is not None:
            # CORL's behaviour cloning scores a fresh sample of the policy, not the data's action.
            _, q = sample(actor, batch.observations, noise.bc)
        assert log_prob.shape == q.shape == batch.rewards.shape
        return (self.temperature() * log_prob - q).mean(), {"log_prob": log_prob}

    def td_target(self, batch: Batch, noise: Noise) -> tuple[Array, Array]:
        """The regression target of both critics and the next value in it, both (B,)."""
        hp, actor, critic_1, critic_2 = self.hp, self.actor, self.critic_1_target, self.critic_2_target
        actions, log_prob = sample(actor, batch.next_observations, noise.target)
        next_q = minimum(critic_1(batch.next_observations, actions), critic_2(batch.next_observations, actions))
        if hp.cql_max_target_backup:
            best = next_q.argmax(axis=-1)[:, None]
            next_q = take_along_axis(next_q, best, 1).squeeze(-1)
            log_prob = take_along_axis(log_prob, best, 1).squeeze(-1)
        if hp.backup_entropy:
            next_q = next_q - self.temperature() * log_prob
        assert next_q.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + (1.0 - batch.terminals) * hp.discount * next_q, next_q

    def gap(
        self, critic: Network, batch: Batch, q: Array, random: Array, samples: Sequence[tuple[Array, Array]]
    ) -> tuple[Array, dict[str, Array]]:
        """The mean gap between the soft maximum over sampled actions and the data's value q (B,)."""
        hp, (current, current_log_prob), (next, next_log_prob) = self.hp, *samples
        q_random = critic(batch.observations, random)
        q_current = critic(batch.observations, current)
        # The next actions are evaluated in the current states.
        q_next = critic(batch.observations, next)
        sampled = everything = concatenate([q_random, q[:, None], q_next, q_current], axis=1)
        if hp.cql_importance_sample:
            log_density = math.log(0.5 ** random.shape[-1])
            q_ratios = [q_random - log_density, q_next - next_log_prob, q_current - current_log_prob]
            sampled = concatenate(q_ratios, axis=1)
        ood = logsumexp(sampled / hp.cql_temp, axis=1) * hp.cql_temp
        assert ood.shape == q.shape
        gap = clamp(ood - q, hp.cql_clip_diff_min, hp.cql_clip_diff_max).mean()
        return gap, {
            "cql_std_q{}": std(everything, axis=1, ddof=1).mean(),
            "cql_q{}_rand": q_random.mean(),
            "cql_q{}_current_actions": q_current.mean(),
            "cql_q{}_next_actions": q_next.mean(),
        }

    def penalty(self, gap: Array, alpha_prime: Array, cql_alpha: float) -> Array:
        """The conservative term; as in CORL, cql_alpha also multiplies the Lagrange form."""
        hp = self.hp
        if hp.cql_lagrange:
            return alpha_prime * cql_alpha * (gap - hp.cql_target_action_gap)
        return cql_alpha * gap

    def alpha_prime_loss(
        self, log_alpha_prime: Array, gap_1: Array, gap_2: Array, cql_alpha: float
    ) -> tuple[Array, dict[str, Array]]:
        """Raises the conservative term's weight while the gaps are above their target."""
        alpha_prime = clamp(exp(log_alpha_prime), 0.0, 1e6)
        loss = -0.5 * (self.penalty(gap_1, alpha_prime, cql_alpha) + self.penalty(gap_2, alpha_prime, cql_alpha))
        return loss, {"alpha_prime": alpha_prime}

    def critic_loss(
        self, critics: Sequence[Network], batch: Batch, noise: Noise, cql_alpha: float
    ) -> tuple[Array, dict[str, Array]]:
        """Both critics' squared error to the same target, and their conservative terms."""
        target, next_q = self.td_target(batch, noise)
        current = sample(self.actor, batch.observations, noise.current)
        next = sample(self.actor, batch.next_observations, noise.next)
        alpha_prime = clamp(exp(self.log_alpha_prime), 0.0, 1e6)
        losses, metrics = [], {"average_target_q": next_q.mean()}
        for number, critic in enumerate(critics, start=1):
            q = critic(batch.observations, batch.actions)
            assert q.shape == target.shape
            td_loss = square(q - target).mean()
            gap, own = self.gap(critic, batch, q, noise.random, (current, next))
            penalty = self.penalty(gap, alpha_prime, cql_alpha)
            losses.append(td_loss + penalty)
            own |= {"qf{}_loss": td_loss, "average_qf{}": q.mean(), "cql_qf{}_diff": gap, "cql_min_qf{}_loss": penalty}
            metrics |= {name.format(number): value for name, value in own.items()}
        return losses[0] + losses[1], metrics

    def update(self, batch: Batch, noise: Noise, online: bool, move_targets: bool) -> tuple["CQL", dict[str, Array]]:
        """One gradient step: every loss at the old parameters, then every optimiser's step; last the targets."""
        state, hp = self, self.hp
        cql_alpha = hp.cql_alpha_online if online else hp.cql_alpha
        (loss, aux), actor_gradient = value_and_grad(state.actor_loss, has_aux=True)(state.actor, batch, noise)
        metrics = {"log_pi": aux["log_prob"].mean(), "policy_loss": loss, "alpha": state.temperature()}
        critics = (state.critic_1, state.critic_2)
        losses = value_and_grad(state.critic_loss, has_aux=True)
        (_, critic_metrics), gradients = losses(critics, batch, noise, cql_alpha)
        # As in CORL, these are logged as 0 if they are not tuned.
        untuned = dict.fromkeys(("alpha_loss", "alpha_prime", "alpha_prime_loss"), jnp.zeros_like(loss))
        metrics |= critic_metrics | untuned
        if hp.cql_lagrange:
            gaps = metrics["cql_qf1_diff"], metrics["cql_qf2_diff"]
            alpha_prime_loss = value_and_grad(state.alpha_prime_loss, has_aux=True)
            (loss, own), gradient = alpha_prime_loss(state.log_alpha_prime, *gaps, cql_alpha)
            state = gradient_step(state, "log_alpha_prime", gradient, hp.critic_lr)
            metrics |= {"alpha_prime_loss": loss, **own}
        if hp.tune_temperature:
            (loss, _), gradient = value_and_grad(state.alpha_loss, has_aux=True)(state.log_temperature, aux["log_prob"])
            state = gradient_step(state, "log_temperature", gradient, hp.actor_lr)
            metrics["alpha_loss"] = loss
        state = gradient_step(state, "actor", actor_gradient, hp.actor_lr)
        state = gradient_step(state, "critic_1", gradients[0], hp.critic_lr)
        state = gradient_step(state, "critic_2", gradients[1], hp.critic_lr)
        if move_targets:
            state = state.replace(
                critic_1_target=soft_update(state.critic_1_target, state.critic_1, hp.tau),
                critic_2_target=soft_update(state.critic_2_target, state.critic_2, hp.tau),
            )
        return state, metrics

    def explore(self, observations: Array, noise: Exploration) -> Array:
        """Actions (E, A) to learn from, for normalised observations (E, S): samples of the policy, nothing added."""
        actions, _ = sample(self.actor, observations, noise.action)
        return actions


@jax.jit
def act(actor: Network, observations: Array) -> Array:
    """The policy's most likely actions (E, A) for normalised observations (E, S)."""
    mean, _ = actor(observations)
    return actor.module.max_action * tanh(mean)


# ---- training ------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames=("num_updates", "phase", "bc_updates", "online"), donate_argnames="state")
def train_interval(
    state: CQL,
    key: Array,
    dataset: PackedDataset,
    start: Array,
    num_updates: int,
    size: Array,
    phase: int,
    bc_updates: int,
    online: bool,
) -> tuple[CQL, list[dict[str, Array]]]:
    """The updates `start + 1` to `start + num_updates`, their batches from the first `size` rows.

    The first `bc_updates` of them have `bc` noise. An update's place in the scanned block and `phase` tell whether it
    moves the targets. `phase` counts the updates before the interval, modulo `target_update_period`. Both are known
    when the program is compiled.
    """
    hp, action_dim = state.hp, state.actor.module.action_dim

    def draw(in_bc_steps: bool, step: Array) -> tuple[Array, Noise]:
        return draw_noise(key, step, hp, size, action_dim, in_bc_steps)

    def update(phase: int, state: CQL, drawn: tuple[Array, Noise], place: int) -> tuple[CQL, dict[str, Array]]:
        indices, noise = drawn
        move_targets = (phase + place + 1) % hp.target_update_period == 0
        return state.update(take(dataset, indices), noise, online, move_targets)

    scan = partial(scan_updates, period=hp.target_update_period)
    state, bc_history = scan(partial(update, phase), partial(draw, True), state, start, bc_updates)
    start, phase, num_updates = start + bc_updates, phase + bc_updates, num_updates - bc_updates
    state, history = scan(partial(update, phase), partial(draw, False), state, start, num_updates)
    return state, bc_history + history


@jax.jit
def next_action(state: CQL, key: Array, step: Array, observation: Array) -> Array:
    """The action (1, A) for the environment step with this number, in a normalised observation (1, S)."""
    return state.explore(observation, draw_exploration(key, step, state.hp, state.actor.module.action_dim))


@partial(jax.jit, static_argnames=("phase", "bc_updates"), donate_argnames=("state", "ring"))
def train_online(
    state: CQL, key: Array, ring: Ring, start: Array, rows: Array, observation: Array, phase: int, bc_updates: int
) -> tuple[CQL, Ring, Array, list[dict[str, Array]]]:
    """Everything between two environment steps: stores n transitions (n, W), makes n updates, and chooses an action."""
    ring, num_updates = push(ring, rows), len(rows)
    state, history = train_interval(state, key, ring, start, num_updates, ring.size, phase, bc_updates, online=True)
    return state, ring, next_action(state, key, start + num_updates, observation), history


def of_a_call(config: TrainConfig, before: int, num_updates: int) -> tuple[int, int]:
    """Updates are compiled for the phase of the period before them, and for the number within `bc_steps`."""
    return before % config.target_update_period, min(max(config.bc_steps - before, 0), num_updates)


def create_train_state(key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> CQL:
    """Fresh networks with PyTorch's initialisation."""
    inputs = jnp.zeros((1, state_dim)), jnp.zeros((1, action_dim))
    critic_1_key, critic_2_key, actor_key = jax.random.split(key, 3)
    layers = config.hidden_dim, config.orthogonal_init
    parts: dict[str, Any] = {
        "actor": Network.create(Actor(action_dim, max_action, *layers), actor_key, inputs[0]),
        "critic_1": Network.create(Critic(config.critic_n_hiddens, *layers), critic_1_key, *inputs),
        "critic_2": Network.create(Critic(config.critic_n_hiddens, *layers), critic_2_key, *inputs),
        "log_temperature": jnp.asarray(0.0, dtype=float),
        "log_alpha_prime": jnp.asarray(1.0, dtype=float),
    }
    # A donated state must not contain an array twice, so the targets are copies.
    targets = {f"{name}_target": jax.tree.map(jnp.copy, parts[name]) for name in ("critic_1", "critic_2")}
    # Fresh moments are zeros, whatever the learning rate.
    moments = {f"{name}_optimizer": optax.adam(0.0).init(part) for name, part in parts.items()}
    return CQL(**parts, **targets, **moments, hp=narrow(config, Hyperparameters))


def save(state: CQL, path: Path, total_it: int, experience: OnlineExperience, **facts: Any) -> None:
    """Writes the new part of the experience, then a checkpoint beside it."""
    experience.save(path.parent)
    save_checkpoint(path, "finetune/cql", state, total_it, **facts)


def load(state: CQL, path: str) -> dict[str, Any]:
    """Loads a checkpoint, also of an offline run; returns its contents."""
    return load_checkpoint(path, ["finetune/cql", "cql"], state)


def train(config: TrainConfig) -> Run:
    """Trains on the data, then in the environment, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used.
    """
    preparation = Preparation(
        rewards=ScaledRewards(config.reward_scale, config.reward_bias).where(config.normalize_reward),
        normalise=config.normalize,
    )
    task = load_task(config, preparation)
    device = resolve_device(config.device)
    experience = training_environment(config, task)
    enable_compilation_cache()
    with jax.default_device(device):
        weights_key, draws_key = jax.random.split(jax.random.key(config.seed))
        state = create_train_state(weights_key, config, task.state_dim, task.action_dim, task.max_action)
        run = Run(config, task, "finetune/cql", "jax", device)
        state, total_it = restore(run, partial(load, state), state, experience.go_on_from)
        dataset = to_device(task.dataset)

        def call(start: int, num_updates: int) -> tuple[int, int]:
            return of_a_call(config, total_it + start, num_updates)

        online = Online(run, config, experience, draws_key, next_action, train_online, statics=call)
        with run:
            if run.is_due(run.step):
                evaluate(run, run.step, act, state.actor)
            offline = History(run)
            history: History | Online = offline
            for start, end in run.calls(config.target_update_period, cost=5):
                if start < config.offline_iterations:
                    statics = end - start, len(dataset), *call(start, end - start), False
                    state, found = train_together(train_interval, state, draws_key, dataset, start, *statics)
                    offline.add(end - start, found)
                else:
                    online.begin(dataset)
                    history, (state, end) = online, online.play(state, start, end)
                write = partial(save, state, total_it=total_it + end, experience=experience)
                if run.is_due(end):
                    run.log(end, history.means(), experience.episodes)
                    run.save(end, write)
                    evaluate(run, end, act, state.actor)
                elif run.stopping:
                    run.save(end, partial(write, history=history.content()))
    experience.close()
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "finetune/cql")
