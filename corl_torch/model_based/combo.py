"""COMBO in PyTorch: soft actor-critic on data and a learnt model's roll-outs, with conservative critics.

Its twin is `corl_jax/model_based/combo.py`. The model is from `corl_torch/model_based/dynamics.py`.

Yu et al., COMBO: Conservative Offline Model-Based Policy Optimization, 2021, https://arxiv.org/abs/2102.08363
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from shared.runs.start import cli

import numpy as np
import torch
from torch import Tensor, amax, clamp, concatenate, exp, log, logsumexp, minimum, nn, square, stack, tanh

from shared.data.dynamics import Draws, ModelSizes
from shared.data.transitions import Batch
from shared.frameworks.learnt_model import check_roll_outs, check_shares, load_model_based_task
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.torch_data import index_tensor, take, to_device
from shared.frameworks.torch_layers import Scalar
from shared.frameworks.torch_ring import Ring, take_both
from shared.frameworks.torch_side import mean_metrics, on_arrays, resolve_device, seed_everything
from shared.runs.fields import bounded, check, choice, positive, unbounded, widths
from shared.runs.run import Run
from shared.runs.settings import EpochsConfig, ImitationConfig, ModelledConfig

# ---- config --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that an update or a roll-out depends on; in JAX, they are compile-time constants."""

    # Discount factor of the return
    discount: float = bounded(0.99, low=0, high=1)
    # Rate at which the target critics follow the critics
    tau: float = bounded(0.005, low=0, high=1)
    # Initial learning rate of the policy, which falls to 0 along a cosine, epoch by epoch
    actor_lr: float = positive(1e-4)
    # Learning rate of the critics
    critic_lr: float = positive(3e-4)
    # Learning rate of the entropy temperature
    temperature_lr: float = positive(1e-4)
    # Tune the temperature towards the target entropy
    tune_temperature: bool = True
    # The temperature without automatic tuning
    fixed_temperature: float = bounded(0.2, low=0)
    # Target entropy; null or 0: minus the number of action dimensions
    target_entropy: float | None = unbounded(None)
    # Updates in all, over which the policy's learning rate falls to 0
    max_timesteps: int = bounded(1_000_000, low=1)
    # Updates in an epoch, in which the policy's learning rate is constant
    num_updates_on_epoch: int = bounded(1000, low=1)
    # Transitions in a batch
    batch_size: int = bounded(256, low=1)
    # Share of a batch that comes from the dataset; the rest comes from the model
    real_ratio: float = bounded(0.5, low=0, high=1)
    # Weight of the conservative term
    cql_alpha: float = bounded(5.0, low=0)
    # Temperature of the soft maximum over sampled actions
    cql_temp: float = positive(1.0)
    # Actions sampled per state for each part of the conservative term
    cql_n_actions: int = bounded(10, low=1)
    # The states whose values are pushed down: the whole batch's, or only the model's
    rho_s: str = choice("mix", "model")
    # One soft maximum over all 3 cql_n_actions actions of a state; false: one over each 3, as in the reference, where a
    # reshape is lost
    cql_joint_logsumexp: bool = True
    # Use the best of cql_n_actions next actions in the critics' target
    cql_max_target_backup: bool = False
    # Subtract the entropy term in the critics' target, except with cql_max_target_backup
    backup_entropy: bool = False
    # Tune the weight of the conservative term towards a target gap
    cql_lagrange: bool = False
    # Target gap between the values of out-of-distribution actions and of the data's, after multiplication by cql_alpha
    cql_target_action_gap: float = unbounded(10.0)
    # Learning rate of the Lagrange multiplier
    alpha_prime_lr: float = positive(3e-4)
    # States of the dataset that each round of roll-outs starts from
    rollout_batch_size: int = bounded(50_000, low=1)
    # Steps of a roll-out
    rollout_length: int = bounded(5, low=1)
    # Roll out with uniform actions instead of the policy's
    uniform_rollout: bool = False


@dataclass(frozen=True)
class TrainConfig(ModelledConfig, Hyperparameters, EpochsConfig, ImitationConfig):
    """The settings of a whole run."""

    group: str = "COMBO-D4RL"
    name: str = "COMBO"
    # Dataset: mini/pendulum-replay, a D4RL id, minari:NAME, or the path of an HDF5 file
    env: str = "mini/pendulum-replay"
    # Run of model_based/dynamics in the same framework: its folder, or a checkpoint; empty: the one with this dataset
    # and seed below runs_path, which is made first if there is none
    dynamics: str = ""
    # Updates between two rounds of roll-outs
    rollout_freq: int = bounded(1000, low=1)
    # Rounds of roll-outs, none of which ends early, that the model's buffer can store; the oldest transitions are
    # overwritten
    model_retain_epochs: int = bounded(5, low=1)
    # Widths of the hidden layers of the policy and of the critics
    hidden_dims: tuple[int, ...] = widths(256, 256, 256)
    CORL_EPOCHS: ClassVar[dict[str, str]] = {"epoch": "max_timesteps"}


# ---- networks ------------------------------------------------------------------------------------------------------


class MLP(nn.Module):
    """Hidden layers, each followed by ReLU."""

    def __init__(self, input_dim: int, hidden_dims: Sequence[int]) -> None:
        super().__init__()
        dims = [input_dim, *hidden_dims]
        self.model = nn.Sequential(*(layer for a, b in pairwise(dims) for layer in (nn.Linear(a, b), nn.ReLU())))
        self.output_dim = dims[-1]

    def forward(self, inputs: Tensor) -> Tensor:
        """The last hidden layer (..., H)."""
        return self.model(inputs)


class Gaussian(nn.Module):
    """Means and log standard deviations of actions."""

    def __init__(self, input_dim: int, action_dim: int) -> None:
        super().__init__()
        self.mu = nn.Linear(input_dim, action_dim)
        self.sigma = nn.Linear(input_dim, action_dim)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation (..., A) for a hidden layer (..., H)."""
        return self.mu(hidden), exp(clamp(self.sigma(hidden), -5.0, 2.0))


class Actor(nn.Module):
    """The policy: a normal distribution, squashed by tanh."""

    def __init__(self, backbone: MLP, action_dim: int, max_action: float) -> None:
        super().__init__()
        self.backbone = backbone
        self.dist_net = Gaussian(backbone.output_dim, action_dim)
        self.action_dim, self.max_action = action_dim, max_action

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation (B, A) before tanh, for observations (B, S)."""
        return self.dist_net(self.backbone(observations))


def sample(actor: Actor, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions (B, A) and their log-probabilities (B,) for noise (B, A); n of each per state for (B, n, A)."""
    if noise.ndim == 3:
        observations = observations[:, None].repeat(1, noise.shape[1], 1)
    mean, std = actor(observations)
    u = mean + noise * std
    squashed = tanh(u)
    log_prob = (-square(u - mean) / (2.0 * square(std)) - log(std) - LOG_SQRT_2PI).sum(axis=-1)
    log_prob = log_prob - log(actor.max_action * (1.0 - square(squashed)) + 1e-6).sum(axis=-1)
    return actor.max_action * squashed, log_prob


LOG_SQRT_2PI = math.log(math.sqrt(2.0 * math.pi))


class Critic(nn.Module):
    """Q(s, a)."""

    def __init__(self, backbone: MLP) -> None:
        super().__init__()
        self.backbone = backbone
        self.last = nn.Linear(backbone.output_dim, 1)

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """The values (B,) of actions (B, A) in observations (B, S), or (B, n) of actions (B, n, A)."""
        if actions.ndim == 3:
            observations = observations[:, None].expand(-1, actions.shape[1], -1)
        return self.last(self.backbone(concatenate([observations, actions], axis=-1))).squeeze(-1)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """An update's draws besides its batch, with n = cql_n_actions and D rows whose values are pushed down."""

    # Standard normal, (B, A): the policy's actions in the current states
    actor: Tensor
    # Standard normal, (B, A), or (B, n, A) with cql_max_target_backup: the policy's next actions in the target
    target: Tensor
    # Uniform in [-1, 1), (D, n, A): random actions for the conservative term, in units of the largest action
    random: Tensor
    # Standard normal, (D, n, A): the policy's actions for the conservative term
    current: Tensor
    # Standard normal, (D, n, A): the policy's next actions for the conservative term
    next: Tensor


def shares(hp: Hyperparameters) -> tuple[int, int]:
    """How many rows of a batch come from the dataset, and how many from the model."""
    real = int(hp.batch_size * hp.real_ratio)
    return real, hp.batch_size - real


def pushed_down(hp: Hyperparameters) -> int:
    """How many of a batch's last rows have states whose values are pushed down: all of them, or the model's."""
    return shares(hp)[1] if hp.rho_s == "model" else hp.batch_size


def draw_noise(
    hp: Hyperparameters, dataset_size: int, synthetic_size: int, action_dim: int, device: torch.device
) -> tuple[Tensor, Noise]:
    """An update's batch indices (B,), from NumPy's global generator, and its noise, from torch's.

    The dataset's rows come first. The model's are numbered from `dataset_size` on.
    """
    (real, synthetic), one = shares(hp), (hp.batch_size, action_dim)
    many, pushed = (hp.batch_size, hp.cql_n_actions, action_dim), (pushed_down(hp), hp.cql_n_actions, action_dim)
    indices = np.random.randint(0, dataset_size, size=real)
    indices = np.append(indices, dataset_size + np.random.randint(0, synthetic_size, size=synthetic))
    noise = Noise(
        actor=torch.randn(one, device=device),
        target=torch.randn(many if hp.cql_max_target_backup else one, device=device),
        random=torch.empty(pushed, device=device).uniform_(-1.0, 1.0),
        current=torch.randn(pushed, device=device),
        next=torch.randn(pushed, device=device),
    )
    return index_tensor(indices, device), noise


class Starts(NamedTuple):
    """The first states of roll-outs."""

    # (n,), rows of the dataset
    indices: Tensor


def draw_starts(hp: Hyperparameters, dataset_size: int) -> Starts:
    """The first states of a round of roll-outs, from NumPy's global generator."""
    return Starts(torch.as_tensor(np.random.randint(0, dataset_size, size=hp.rollout_batch_size)))


class StepDraws(NamedTuple):
    """The random numbers that a step of n roll-outs draws."""

    # Standard normal, (n, A): the policy's actions; uniform in [-1, 1) with uniform_rollout: random ones
    actor: Tensor
    # The model's own draws
    model: Draws


def draw_step(hp: Hyperparameters, rows: int, sizes: ModelSizes) -> StepDraws:
    """The draws for a step of so many roll-outs: the policy's from torch's generator, all others from NumPy's."""
    shape = rows, sizes.action_dim
    noise = torch.as_tensor(np.random.uniform(-1.0, 1.0, shape)) if hp.uniform_rollout else torch.randn(shape)
    normals = np.random.normal(size=(sizes.n_ensemble, rows, sizes.state_dim + 1))
    chosen = np.random.randint(0, sizes.n_elites, size=rows)
    return StepDraws(noise, Draws(torch.as_tensor(normals), torch.as_tensor(chosen)))


# ---- losses and update ---------------------------------------------------------------------------------------------


def actor_lr(hp: Hyperparameters, updates: int) -> float:
    """The policy's learning rate after so many updates: a cosine from `actor_lr` to 0, constant within an epoch."""
    done = updates // hp.num_updates_on_epoch * hp.num_updates_on_epoch
    return hp.actor_lr * (1.0 + math.cos(math.pi * done / hp.max_timesteps)) / 2.0


def gradient_step(loss: Tensor, *optimizers: torch.optim.Optimizer) -> None:
    """One step of each optimiser down the gradient of the loss."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()


def soft_update(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Polyak averaging: the target moves a step of size tau towards the source, in place."""
    for old, new in zip(target.parameters(), source.parameters(), strict=True):
        old.data.copy_(old.data * (1.0 - tau) + new.data * tau)


class COMBO:
    """All that an update reads and writes."""

    def __init__(self, hp: Hyperparameters, actor: Actor, critic_1: Critic, critic_2: Critic) -> None:
        self.hp = hp
        self.actor, self.critic_1, self.critic_2 = actor, critic_1, critic_2
        self.critic_1_target, self.critic_2_target = copy.deepcopy((critic_1, critic_2))
        device = next(actor.parameters()).device
        self.log_temperature, self.log_alpha_prime = Scalar(0.0).to(device), Scalar(0.0).to(device)
        self.actor_optimizer = torch.optim.Adam(actor.parameters(), lr=hp.actor_lr)
        self.critic_1_optimizer = torch.optim.Adam(critic_1.parameters(), lr=hp.critic_lr)
        self.critic_2_optimizer = torch.optim.Adam(critic_2.parameters(), lr=hp.critic_lr)
        self.log_temperature_optimizer = torch.optim.Adam(self.log_temperature.parameters(), lr=hp.temperature_lr)
        self.log_alpha_prime_optimizer = torch.optim.Adam(self.log_alpha_prime.parameters(), lr=hp.alpha_prime_lr)
        self.total_it = 0

    def temperature(self) -> Tensor:
        """The entropy temperature: a constant in every loss except its own."""
        if not self.hp.tune_temperature:
            return torch.tensor(self.hp.fixed_temperature)
        return exp(self.log_temperature().detach())

    def actor_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """Maximizes the value of the policy's actions under the smaller critic, and their entropy."""
        critic_1, critic_2 = self.critic_1, self.critic_2
        actions, log_prob = sample(self.actor, batch.observations, noise.actor)
        q = minimum(critic_1(batch.observations, actions), critic_2(batch.observations, actions))
        assert q.shape == log_prob.shape == batch.rewards.shape
        return (self.temperature() * log_prob - q).mean(), {"log_prob": log_prob.detach()}

    def alpha_loss(self, log_prob: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Raises the temperature while the policy's entropy is below its target."""
        log_temperature = self.log_temperature()
        # As in the reference, a target of 0 means that none is set.
        target_entropy = self.hp.target_entropy or -self.actor.action_dim
        return -(log_temperature * (log_prob + target_entropy)).mean(), {}

    @torch.no_grad()
    def td_target(self, batch: Batch, noise: Noise) -> Tensor:
        """The regression target of both critics, (B,): the smaller target value of a sampled action, or of the best."""
        hp, actor, critic_1, critic_2 = self.hp, self.actor, self.critic_1_target, self.critic_2_target
        actions, log_prob = sample(actor, batch.next_observations, noise.target)
        q1, q2 = critic_1(batch.next_observations, actions), critic_2(batch.next_observations, actions)
        if hp.cql_max_target_backup:
            next_q = minimum(amax(q1, axis=1), amax(q2, axis=1))
        else:
            next_q = minimum(q1, q2) - self.temperature() * log_prob if hp.backup_entropy else minimum(q1, q2)
        assert next_q.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + hp.discount * (1.0 - batch.terminals) * next_q

    def gap(self, critic: Critic, batch: Batch, random: Tensor, samples: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """The mean gap between the soft maximum over sampled actions and the data's value, and the weighted gap."""
        hp, (current, current_log_prob), (next, next_log_prob) = self.hp, *samples
        states, real = batch.observations[-len(random) :], shares(hp)[0]
        q_current = critic(states, current)
        # The next actions are evaluated in the current states.
        q_next = critic(states, next)
        q_random = critic(states, random)
        assert q_current.shape == q_next.shape == q_random.shape == current_log_prob.shape == next_log_prob.shape
        log_density = math.log(0.5 ** random.shape[-1])
        values = q_current - current_log_prob, q_next - next_log_prob, q_random - log_density
        sampled = concatenate(values, axis=1) if hp.cql_joint_logsumexp else stack(values, axis=-1)
        soft_maximum = logsumexp(sampled / hp.cql_temp, axis=-1).mean()
        q = critic(batch.observations[:real], batch.actions[:real])
        return soft_maximum * hp.cql_alpha * hp.cql_temp - q.mean() * hp.cql_alpha

    def penalty(self, gap: Tensor, alpha_prime: Tensor) -> Tensor:
        """The conservative term of a critic's loss."""
        return alpha_prime * (gap - self.hp.cql_target_action_gap) if self.hp.cql_lagrange else gap

    def alpha_prime_loss(self, gap_1: Tensor, gap_2: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Raises the conservative term's weight while the gaps are above their target."""
        alpha_prime = clamp(exp(self.log_alpha_prime()), 0.0, 1e6)
        loss = -0.5 * (self.penalty(gap_1, alpha_prime) + self.penalty(gap_2, alpha_prime))
        return loss, {"alpha_prime": alpha_prime}

    def critic_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """Both critics' squared error to the same target, and their conservative terms."""
        target, pushed = self.td_target(batch, noise), pushed_down(self.hp)
        with torch.no_grad():
            current = sample(self.actor, batch.observations[-pushed:], noise.current)
            next = sample(self.actor, batch.next_observations[-pushed:], noise.next)
            alpha_prime = clamp(exp(self.log_alpha_prime()), 0.0, 1e6)
        losses = []
        metrics: dict[str, Tensor] = {}
        for number, critic in enumerate((self.critic_1, self.critic_2), start=1):
            q = critic(batch.observations, batch.actions)
            assert q.shape == target.shape
            gap = self.gap(critic, batch, self.actor.max_action * noise.random, (current, next))
            losses.append(square(q - target).mean() + self.penalty(gap, alpha_prime))
            metrics |= {f"critic_{number}_loss": losses[-1], f"cql_gap_{number}": gap}
        return losses[0] + losses[1], metrics

    def update(self, batch: Batch, noise: Noise) -> dict[str, Tensor]:
        """One gradient step: the actor; the temperature; the critics, on the new actor and temperature; the targets."""
        hp = self.hp
        for group in self.actor_optimizer.param_groups:
            group["lr"] = actor_lr(hp, self.total_it)
        actor_loss, aux = self.actor_loss(batch, noise)
        gradient_step(actor_loss, self.actor_optimizer)
        metrics = {"actor_loss": actor_loss, "entropy": -aux["log_prob"].mean()}
        if hp.tune_temperature:
            alpha_loss, _ = self.alpha_loss(aux["log_prob"])
            gradient_step(alpha_loss, self.log_temperature_optimizer)
            metrics |= {"alpha_loss": alpha_loss, "alpha": self.temperature()}
        critic_loss, critic_metrics = self.critic_loss(batch, noise)
        metrics |= critic_metrics
        if hp.cql_lagrange:
            gaps = metrics["cql_gap_1"].detach(), metrics["cql_gap_2"].detach()
            loss, own = self.alpha_prime_loss(*gaps)
            gradient_step(loss, self.log_alpha_prime_optimizer)
            metrics |= {"alpha_prime_loss": loss, **own}
        gradient_step(critic_loss, self.critic_1_optimizer, self.critic_2_optimizer)
        soft_update(self.critic_1_target, self.critic_1, hp.tau)
        soft_update(self.critic_2_target, self.critic_2, hp.tau)
        self.total_it += 1
        return {name: value.detach() for name, value in metrics.items()}

    @torch.no_grad()
    def roll_out(self, model: Any, observations: Tensor, draw: Callable[[int, Tensor], StepDraws]) -> Batch:
        """The transitions of roll-outs from states (n, S), step by step; those that have ended take no further step.

        Args:
            model: Has `step`, as the `Model` of `corl_torch/model_based/dynamics.py`.
            observations: The first states.
            draw: From a step's number and the numbers of the roll-outs that continue to their draws.
        """
        hp, steps = self.hp, []
        rows = torch.arange(len(observations), device=observations.device)
        for number in range(hp.rollout_length):
            if not len(rows):
                break
            draws = draw(number, rows)
            if hp.uniform_rollout:
                actions = (self.actor.max_action * draws.actor).to(observations.dtype)
            else:
                actions, _ = sample(self.actor, observations, draws.actor)
            step = model.step(observations, actions, draws.model, 0.0, "aleatoric")
            terminals = step.terminals.to(step.rewards.dtype)
            steps.append(Batch(observations, actions, step.rewards, step.next_observations, terminals))
            observations, rows = step.next_observations[~step.terminals], rows[~step.terminals]
        return Batch(*(concatenate(columns) for columns in zip(*steps, strict=True)))

    def act(self, observations: np.ndarray) -> np.ndarray:
        """Calls `policy` with NumPy arrays."""
        return on_arrays(policy, self.actor, observations)

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint, by name."""
        critics = ("critic_1", "critic_2", "critic_1_target", "critic_2_target")
        temperatures = ("log_temperature", "log_alpha_prime")
        optimizers = (f"{name}_optimizer" for name in ("actor", "critic_1", "critic_2", *temperatures))
        return {name: getattr(self, name) for name in ("actor", *critics, *temperatures, *optimizers)}


def policy(actor: Actor, observations: Tensor) -> Tensor:
    """The policy's most likely actions (E, A) for observations (E, S)."""
    mean, _ = actor(observations)
    return actor.max_action * tanh(mean)


# ---- training ------------------------------------------------------------------------------------------------------


def imagine(trainer: COMBO, model: Any, dataset: Batch, ring: Ring, sizes: ModelSizes) -> dict[str, Tensor]:
    """Rolls the model out from states of the dataset and stores the transitions; returns the metrics."""

    def draw(number: int, rows: Tensor) -> StepDraws:
        drawn = draw_step(trainer.hp, len(rows), sizes)
        return StepDraws(drawn.actor.to(rows.device), Draws(*(column.to(rows.device) for column in drawn.model)))

    # PyTorch can index a GPU's tensors with indices on the CPU.
    starts = take(dataset, draw_starts(trainer.hp, len(dataset.rewards)).indices)
    found = trainer.roll_out(model, starts.observations, draw)
    ring.extend(found)
    largest = torch.maximum(found.next_observations.abs().max(), found.rewards.abs().max())
    number = torch.tensor(float(len(found.rewards)))
    return {"rollout_transitions": number, "rollout_reward": found.rewards.mean(), "rollout_largest": largest}


def create_trainer(config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> COMBO:
    """Fresh networks, drawn from torch's generator on the CPU: all hidden layers, then all last ones."""
    inputs, device = (state_dim, state_dim + action_dim, state_dim + action_dim), resolve_device(config.device)
    backbones = [MLP(size, config.hidden_dims) for size in inputs]
    actor = Actor(backbones[0], action_dim, max_action)
    critic_1, critic_2 = (Critic(backbone) for backbone in backbones[1:])
    return COMBO(config, actor.to(device), critic_1.to(device), critic_2.to(device))


def save(trainer: COMBO, path: Path, **facts: Any) -> None:
    """Writes a checkpoint; its `synthetic` contains the transitions of the model's roll-outs."""
    save_checkpoint(path, "model_based/combo", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: COMBO, path: str) -> dict[str, Any]:
    """Loads one of our checkpoints; returns its contents."""
    content = load_checkpoint(path, "model_based/combo", trainer.parts())
    trainer.total_it = content["total_it"]
    return content


def train(config: TrainConfig) -> Run:
    """Trains, evaluates every `eval_freq` updates and fills the run's folder; without a model, trains one first.

    Raises:
        InputError: The dataset, the environment, the model or the checkpoint cannot be used.
        RunError: The model's roll-outs or a loss diverge.
    """
    check(config)
    check_shares(config.real_ratio, shares(config)[0], pushed_down(config))
    task, learnt = load_model_based_task(config, "torch")
    device = resolve_device(config.device)
    seed_everything(config.seed)
    trainer = create_trainer(config, task.state_dim, task.action_dim, task.max_action)
    run = Run(config, task, "model_based/combo", "torch", device)
    dataset = to_device(task.dataset, device)
    capacity = config.rollout_batch_size * config.rollout_length * config.model_retain_epochs
    ring = Ring(dataset, capacity, keeps_dataset=False)
    history = restore(run, partial(load, trainer), device, ring.go_on_from)
    with run:
        if run.is_due(run.step):
            run.evaluate(run.step, trainer.act)
        for step in range(run.step + 1, config.max_timesteps + 1):
            if (step - 1) % config.rollout_freq == 0:
                history.append(imagine(trainer, learnt.model, dataset, ring, learnt.sizes))
            indices, noise = draw_noise(config, len(dataset.rewards), ring.size, task.action_dim, device)
            history.append(trainer.update(take_both(dataset, ring.rows, indices, shares(config)[0]), noise))
            run.advance(1)
            if run.is_due(step):
                metrics = mean_metrics(history)
                check_roll_outs(step, metrics)
                run.log(step, metrics)
                history.clear()
                run.save(step, partial(save, trainer, synthetic=ring.content()))
                run.evaluate(step, trainer.act)
            elif run.stopping:
                run.save(step, partial(save, trainer, synthetic=ring.content(), history=history))
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "model_based/combo")
