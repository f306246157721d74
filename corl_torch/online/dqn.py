"""DQN in PyTorch: a value for each of finitely many actions, learnt from replayed steps with a frozen target network.

Its twin is `corl_jax/online/dqn.py`. It learns from a dataset, or collects its own data: environment steps and updates
then alternate. With `double` it is Double DQN.

Mnih et al., Human-level control through deep reinforcement learning, 2015, https://doi.org/10.1038/nature14236
van Hasselt, Guez & Silver, Deep Reinforcement Learning with Double Q-learning, 2015, https://arxiv.org/abs/1509.06461
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from shared.runs.start import cli

import numpy as np
import torch
from torch import Tensor, abs, argmax, argmin, nn, square, stack, where
from torch.nn.functional import one_hot

from shared.data.experience import Experience
from shared.data.transitions import Batch
from shared.envs.evaluation import epsilon_greedy
from shared.envs.registry import is_registered
from shared.envs.spaces import Shape
from shared.errors import InputError
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, restore_generators, save_checkpoint
from shared.frameworks.torch_data import index_tensor, store, take, to_device
from shared.frameworks.torch_encoders import convolutions
from shared.frameworks.torch_layers import ImplicitQuantiles, probe
from shared.frameworks.torch_side import mean_metrics, on_arrays, resolve_device, seed_everything
from shared.runs.fields import bounded, choice, later, positive, widths
from shared.runs.online import load_online_task
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
    # Double DQN: the critics choose the next action and the targets give its value; false: the targets do both
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


@dataclass(frozen=True)
class TrainConfig(Hyperparameters, ImagesConfig, TransitionsConfig):
    """The settings of a whole run."""

    group: str = "DQN"
    name: str = "DQN"
    # Environment to learn in: CartPole-v1, or any that is registered with Gymnasium and has finite actions. Or dataset
    # to learn from: mini/cartpole-replay, minari:NAME, or the path of an HDF5 file
    env: str = "CartPole-v1"
    # Environment steps in all, or updates on a dataset
    max_timesteps: int = bounded(1_000_000, low=1)
    # Environment steps, or updates on a dataset, between two evaluations
    eval_freq: int = bounded(10_000, low=1)
    # Share of random actions in an evaluation
    eval_epsilon: float = bounded(0.0, low=0, high=1)
    # Checkpoint to start from; in an environment, with its experience beside it
    load_model: str = ""
    # Widths of the hidden layers
    hidden_dims: tuple[int, ...] = widths(256, 256)
    # In an environment: share of random actions at the beginning
    epsilon_start: float = bounded(1.0, low=0, high=1)
    # In an environment: share of random actions at the end
    epsilon_end: float = bounded(0.1, low=0, high=1)
    # In an environment: steps over which that share goes from its first to its last value
    epsilon_steps: int = bounded(1_000_000, low=1)
    # In an environment: steps before learning begins, or one batch's worth if that is more
    learning_starts: int = bounded(0, low=0)
    # In an environment: steps between two rounds of updates
    update_interval: int = bounded(1, low=1)
    # In an environment: updates in each of these rounds
    n_updates: int = bounded(1, low=1)


# ---- networks ------------------------------------------------------------------------------------------------------


def mlp(state_dim: Shape, encoder: str, hidden_dims: Sequence[int]) -> nn.Sequential:
    """Convolutions if there are any, and hidden layers with ReLU, which d3rlpy tries on random observations."""
    layers, inputs = convolutions(encoder, state_dim)
    hidden = [layer for a, b in pairwise([inputs, *hidden_dims]) for layer in (nn.Linear(a, b), nn.ReLU())]
    probe(state_dim)
    return nn.Sequential(*layers, *hidden)


class Critics(nn.Module):
    """N critics Z(s, .) of all actions at once, with separate weights: the return's mean or quantiles."""

    def __init__(
        self, state_dim: Shape, action_dim: int, encoder: str, hidden_dims: Sequence[int], hp: Hyperparameters
    ) -> None:
        super().__init__()
        self.action_dim, width = action_dim, hidden_dims[-1]
        self.implicit, self.n_quantiles = hp.critic == "iqn", hp.n_quantiles if hp.critic == "qr" else 1

        def member() -> nn.Module:
            hidden = mlp(state_dim, encoder, hidden_dims)
            if self.implicit:
                return ImplicitQuantiles(hidden, width, action_dim, hp.embed_size, hp.n_greedy_quantiles)
            return hidden.append(nn.Linear(width, action_dim * self.n_quantiles))

        self.members = nn.ModuleList(member() for _ in range(hp.n_critics))

    def forward(self, observations: Tensor, fractions: Tensor | None = None) -> list[Tensor]:
        """Each critic's quantiles (B, A, K) of all actions in observations (B, S); a mean counts as one.

        IQN's are at the fractions (N, B, K), or, without these, at evenly spaced ones.
        """
        if not self.implicit:
            return [member(observations).reshape(-1, self.action_dim, self.n_quantiles) for member in self.members]
        given = [None] * len(self.members) if fractions is None else fractions
        return [member(observations, each) for member, each in zip(self.members, given, strict=True)]


def value(q: Sequence[Tensor], actions: Tensor) -> Tensor:
    """Selects the quantiles (N, B, K) of these actions (B,) from N critics' quantiles (B, A, K) of all actions."""
    chosen = one_hot(actions, q[0].shape[1])[..., None]
    return stack([(quantiles * chosen).sum(axis=1) for quantiles in q])


def expected(q: Sequence[Tensor]) -> Tensor:
    """The values (B, A) of all actions, averaged over all critics and their quantiles (B, A, K)."""
    return stack([quantiles.mean(axis=-1) for quantiles in q]).mean(axis=0)


def smallest(q: Tensor) -> Tensor:
    """Selects, in each row of the quantiles (N, B, K), the critic with the smallest mean, (B, K)."""
    critic = one_hot(argmin(q.mean(axis=-1), axis=0), len(q))
    return (q * critic.T[..., None]).sum(axis=0)


def greedy(q: Sequence[Tensor]) -> Tensor:
    """The actions (B,) with the highest value, by all critics' quantiles (B, A, K); the first of equal ones."""
    return argmax(expected(q), axis=-1)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """An update's draws besides its batch: with iqn, fractions uniform in [0, 1), (N, B, K), for each pass."""

    # For the choice of the next action
    choice: Tensor | None
    # For its value under the targets
    target: Tensor | None
    # For the value of the data's action
    error: Tensor | None


def draw_noise(hp: Hyperparameters, size: int, device: torch.device) -> tuple[Tensor, Noise]:
    """An update's batch indices (B,) below `size`, from NumPy's global generator; its fractions from torch's."""
    indices = index_tensor(np.random.randint(0, size, size=hp.batch_size), device)
    if hp.critic != "iqn":
        return indices, Noise(*[None] * len(Noise._fields))
    shape = hp.batch_size, hp.n_quantiles
    passes = [stack([torch.rand(shape, device=device) for _ in range(hp.n_critics)]) for _ in Noise._fields]
    return indices, Noise(*passes)


class Exploration(NamedTuple):
    """The random numbers that n environment steps draw, whether or not they need them."""

    # Integers below A, (n,): a random action for each step
    random: np.ndarray
    # Uniform in [0, 1), (n,): if it is below epsilon, the random action is taken
    uniform: np.ndarray


def draw_exploration(steps: int, action_dim: int) -> Exploration:
    """The draws of some environment steps, step by step, from NumPy's global generator."""
    draws = [(np.random.randint(action_dim, size=1), np.random.uniform(size=1)) for _ in range(steps)]
    return Exploration(*map(np.concatenate, zip(*draws, strict=True)))


def epsilons(config: TrainConfig, start: int, steps: int) -> np.ndarray:
    """The shares of random actions in the environment steps after the first `start`, (n,)."""
    passed = np.minimum((start + 1 + np.arange(steps)) / config.epsilon_steps, 1.0)
    return (config.epsilon_start - config.epsilon_end) * (1.0 - passed) + config.epsilon_end


# ---- losses and update ---------------------------------------------------------------------------------------------


def adam(network: nn.Module, hp: Hyperparameters) -> torch.optim.Optimizer:
    """A network's optimiser."""
    return torch.optim.Adam(network.parameters(), lr=hp.learning_rate, eps=hp.adam_eps)


def gradient_step(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """One step of the optimiser down the gradient of the loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def huber(error: Tensor) -> Tensor:
    """Huber's loss: half the square of errors below 1, and the absolute error minus a half for all others."""
    return where(abs(error) < 1.0, 0.5 * square(error), abs(error) - 0.5)


def fractions(hp: Hyperparameters, q: Tensor, drawn: Tensor | None) -> Tensor | None:
    """The fractions of the quantiles q (N, B, K): with qr the middles of equal parts (K,), with iqn the drawn ones."""
    if hp.critic != "qr":
        return drawn
    bounds = torch.arange(q.shape[-1] + 1, dtype=q.dtype, device=q.device) / q.shape[-1]
    return (bounds[1:] + bounds[:-1]) / 2.0


def quantile_huber(q: Tensor, fractions: Tensor | None, target: Tensor) -> Tensor:
    """Huber's loss (N, B) of quantiles (N, B, K) against the target's (B, K'): summed over K, averaged over K'.

    Targets below a quantile have the weight 1 minus its fraction, and all others its fraction. Means have no fractions.
    """
    error = target[:, :, None] - q[:, :, None]
    loss = huber(error)
    if fractions is not None:
        loss = abs(fractions[..., None, :] - (error < 0.0).to(error.dtype)) * loss
    return loss.sum(axis=-1).mean(axis=-1)


# Names of the networks in d3rlpy's files
D3RLPY_NAMES = {"critic": ("q_funcs",), "critic_target": ("targ_q_funcs",)}


class DQN:
    """All that an update reads and writes."""

    def __init__(self, hp: Hyperparameters, critic: Critics) -> None:
        self.hp = hp
        self.critic, self.critic_target = critic, copy.deepcopy(critic)
        self.critic_optimizer = adam(critic, hp)
        self.total_it = 0

    @property
    def acting(self) -> Critics:
        """The networks that `policy` takes."""
        return self.critic

    @torch.no_grad()
    def td_target(self, batch: Batch, noise: Noise) -> Tensor:
        """The regression target of all critics, (B, K): the smallest target quantiles of the best next action."""
        hp, critic, target = self.hp, self.critic, self.critic_target
        chooser = critic if hp.double else target
        next_actions = greedy(chooser(batch.next_observations, noise.choice))
        next_q = smallest(value(target(batch.next_observations, noise.target), next_actions))
        assert next_q.shape[:1] == batch.rewards.shape == batch.terminals.shape
        return batch.rewards[:, None] + hp.discount * next_q * (1.0 - batch.terminals[:, None])

    def critic_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """Huber's loss of all critics against the same target, added up over the critics."""
        critic = self.critic
        target = self.td_target(batch, noise)
        q = value(critic(batch.observations, noise.error), batch.actions)
        assert q.shape[1] == len(target)
        return quantile_huber(q, fractions(self.hp, q, noise.error), target).mean(axis=1).sum(), {}

    def update(self, batch: Batch, noise: Noise) -> dict[str, Tensor]:
        """One gradient step; then, in the first of every `target_update_period` updates, the targets become copies."""
        hp = self.hp
        loss, _ = self.critic_loss(batch, noise)
        gradient_step(loss, self.critic_optimizer)
        if self.total_it % hp.target_update_period == 0:
            self.critic_target.load_state_dict(self.critic.state_dict())
        self.total_it += 1
        return {"loss": loss.detach()}

    def act(self, observations: np.ndarray) -> np.ndarray:
        """Calls `policy` with NumPy arrays."""
        return on_arrays(policy, self.critic, observations)

    def explore(
        self, observations: np.ndarray, random: np.ndarray, uniform: np.ndarray, epsilon: np.ndarray
    ) -> np.ndarray:
        """The best actions (E,) for observations (E, S), or random ones if a uniform number is below epsilon."""
        return np.where(uniform < epsilon, random, self.act(observations))

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint, by name."""
        return {name: getattr(self, name) for name in ("critic", "critic_target", "critic_optimizer")}


def policy(critic: Critics, observations: Tensor) -> Tensor:
    """The best actions (E,) for observations (E, S)."""
    return greedy(critic(observations))


# ---- training ------------------------------------------------------------------------------------------------------


def updates_until(config: TrainConfig, step: int) -> int:
    """The number of updates made after so many environment steps."""
    first = min(step, max(config.learning_starts, config.batch_size))
    return config.n_updates * (step // config.update_interval - first // config.update_interval)


def create_trainer(config: TrainConfig, state_dim: Shape, action_dim: int, max_action: float) -> DQN:
    """Fresh networks, drawn from torch's generator on the CPU in d3rlpy's order, in which targets are drawn too."""
    critic, _ = (Critics(state_dim, action_dim, config.encoder, config.hidden_dims, config) for _ in range(2))
    return DQN(config, critic.to(resolve_device(config.device)))


def save(trainer: DQN, path: Path, experience: Experience | None = None, **facts: Any) -> None:
    """Writes the new part of the experience, if there is any, then a checkpoint beside it."""
    if experience is not None:
        experience.save(path.parent)
    save_checkpoint(path, "online/dqn", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: DQN, path: str, experience: Experience | None = None) -> dict[str, Any]:
    """Loads a checkpoint of ours or a d3rlpy model; returns its contents.

    Also restores the experience, if there is any, and the generators' states.
    """
    content = load_checkpoint(path, "online/dqn", trainer.parts(), d3rlpy=D3RLPY_NAMES)
    trainer.total_it = content["total_it"]
    if experience is not None:
        experience.load(Path(path).parent, content.get("step", 0))
        restore_generators(content["generators"])
    return content


def train(config: TrainConfig) -> Run:
    """Trains on the dataset or in the environment that `env` names, evaluates and fills the run's folder.

    Raises:
        InputError: The dataset, the environment or the checkpoint cannot be used.
    """
    return train_in_environment(config) if is_registered(config.env) else train_on_dataset(config)


def train_on_dataset(config: TrainConfig) -> Run:
    """Trains on a dataset and evaluates every `eval_freq` updates."""
    task = load_task(config, Preparation(normalise=False, finite=True))
    device = resolve_device(config.device)
    seed_everything(config.seed)
    trainer = create_trainer(config, task.shape, task.action_dim, task.max_action)
    acting = epsilon_greedy(trainer.act, config.eval_epsilon, task.action_dim, config.seed)
    run = Run(config, task, "online/dqn", "torch", device)
    history = restore(run, partial(load, trainer), device)
    dataset = to_device(task.dataset, device)
    with run:
        if run.is_due(run.step):
            run.evaluate(run.step, acting)
        for step in range(run.step + 1, config.max_timesteps + 1):
            indices, noise = draw_noise(config, len(dataset.rewards), device)
            history.append(trainer.update(take(dataset, indices), noise))
            run.advance(1)
            if run.is_due(step):
                run.log(step, mean_metrics(history))
                history.clear()
                run.save(step, partial(save, trainer))
                run.evaluate(step, acting)
            elif run.stopping:
                run.save(step, partial(save, trainer, history=history))
    return run


def train_in_environment(config: TrainConfig) -> Run:
    """Trains in an environment and evaluates every `eval_freq` of its steps.

    To resume, a run only needs its train state, its experience and its number of steps. Each interval between
    evaluations begins with a new episode. The start of that episode depends on the seed and the number of steps.
    """
    task = load_online_task(config, finite=True)
    device = resolve_device(config.device)
    seed_everything(config.seed)
    trainer = create_trainer(config, task.shape, task.action_dim, task.max_action)
    acting = epsilon_greedy(trainer.act, config.eval_epsilon, task.action_dim, config.seed)
    experience = Experience(config.env, config.max_timesteps, config.frame_stack, config.max_episode_steps)
    run = Run(config, task, "online/dqn", "torch", device, unit="step")
    history = restore(run, partial(load, trainer, experience=experience), device)
    if experience.size == config.max_timesteps and not run.step:
        raise InputError(f"{config.load_model} has {experience.size} environment steps: set max_timesteps to more")
    dataset = store(to_device(task.dataset, device), experience.transitions(), 0)
    with run:
        if run.is_due(run.step):
            run.evaluate(run.step, acting)
        for start, end in experience.intervals(config, run.began):
            while experience.size < end and not run.stopping:
                first = experience.size
                steps = min(config.update_interval - first % config.update_interval, end - first)
                draws = draw_exploration(steps, task.action_dim)
                experience.follow(trainer.explore, *draws, epsilons(config, first, steps))
                dataset = store(dataset, experience.transitions(first), first)
                num_updates = updates_until(config, experience.size) - updates_until(config, first)
                for _ in range(num_updates):
                    indices, noise = draw_noise(config, experience.size, device)
                    history.append(trainer.update(take(dataset, indices), noise))
                run.advance(num_updates, steps)
            if experience.size < end:
                write = partial(save, trainer, experience=experience, history=history, began=start)
                run.save(experience.size, write)
            experience.cut()
            run.log(end, mean_metrics(history))
            history.clear()
            run.save(end, partial(save, trainer, experience=experience))
            run.evaluate(end, acting)
    experience.close()
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "online/dqn")
