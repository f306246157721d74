"""FQL in PyTorch, offline to online: learns from data first, then in the environment with the policy's own actions.

Its twin is `corl_jax/finetune/fql.py`. The networks, the losses and the update are from `corl_torch/fql.py`.

Park et al., Flow Q-Learning, 2025, https://arxiv.org/abs/2502.02538
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from shared.runs.start import cli

import numpy as np
import torch
from torch import Tensor, amin, clamp, concatenate, full_like, nn, square, stack

from shared.data.online import OnlineExperience
from shared.data.rewards import ShiftedRewards
from shared.data.transitions import Batch, cut_actions
from shared.envs.evaluation import SampledPolicy
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.torch_data import index_tensor, take, to_device
from shared.frameworks.torch_ring import Ring, room
from shared.frameworks.torch_side import mean_metrics, on_arrays, resolve_device, seed_everything
from shared.runs.fields import bounded, choice, positive, widths
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
class TrainConfig(Hyperparameters, FinetuneConfig):
    """The settings of a whole run."""

    group: str = "FQL-finetune"
    name: str = "FQL-finetune"
    # Updates, offline or online, between two evaluations; one is also made at the end of the offline phase
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


def linear(input_dim: int, output_dim: int) -> nn.Linear:
    """A layer with Glorot's uniform weight and a bias of 0."""
    layer = nn.Linear(input_dim, output_dim)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def mlp(input_dim: int, hidden_dims: Sequence[int], layer_norm: bool, output_dim: int) -> nn.Sequential:
    """Hidden layers with GELU in its tanh form, then LayerNorm if the settings say so; the last layer is linear."""
    layers: list[nn.Module] = []
    for width in hidden_dims:
        layers += [linear(input_dim, width), nn.GELU(approximate="tanh")]
        if layer_norm:
            layers += [nn.LayerNorm(width, eps=1e-6)]
        input_dim = width
    return nn.Sequential(*layers, linear(input_dim, output_dim))


class Actor(nn.Module):
    """The policy, which turns noise into an action in one step; `cut` puts it within its bounds."""

    def __init__(
        self, state_dim: int, action_dim: int, max_action: float, hidden_dims: Sequence[int], layer_norm: bool
    ) -> None:
        super().__init__()
        self.net = mlp(state_dim + action_dim, hidden_dims, layer_norm, action_dim)
        self.max_action = max_action

    def forward(self, observations: Tensor, noise: Tensor) -> Tensor:
        """The actions (B, A) for observations (B, S) and noise (B, A)."""
        return self.net(concatenate([observations, noise], axis=-1))


class Flow(nn.Module):
    """The flow, whose velocity moves noise at time 0 to one of the data's actions at time 1."""

    def __init__(self, state_dim: int, action_dim: int, hidden_dims: Sequence[int], layer_norm: bool) -> None:
        super().__init__()
        self.net = mlp(state_dim + action_dim + 1, hidden_dims, layer_norm, action_dim)

    def forward(self, observations: Tensor, actions: Tensor, times: Tensor) -> Tensor:
        """The velocities (B, A) at actions (B, A) and times (B,), for observations (B, S)."""
        return self.net(concatenate([observations, actions, times[:, None]], axis=-1))


class Critic(nn.Module):
    """Both critics, with separate weights: (B, S) and (B, A) to (2, B)."""

    def __init__(self, state_dim: int, action_dim: int, hidden_dims: Sequence[int], layer_norm: bool) -> None:
        super().__init__()
        sizes = (state_dim + action_dim, hidden_dims, layer_norm, 1)
        self.q1 = mlp(*sizes)
        self.q2 = mlp(*sizes)

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """The values (2, B) of actions (B, A) in observations (B, S)."""
        inputs = concatenate([observations, actions], axis=-1)
        return stack([self.q1(inputs), self.q2(inputs)]).squeeze(-1)


def cut(actor: Actor, actions: Tensor) -> Tensor:
    """Actions (B, A), clipped to [-max_action, max_action]."""
    return clamp(actions, -actor.max_action, actor.max_action)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    # Standard normal, (B, A): the noise of the policy's next actions
    target: Tensor
    # Standard normal, (B, A): where the flow to the data's actions begins
    start: Tensor
    # Uniform in [0, 1), (B,): the time that this flow has reached
    time: Tensor
    # Standard normal, (B, A): the noise that both the policy and the flow turn into an action
    actor: Tensor


def draw_noise(hp: Hyperparameters, size: int, action_dim: int, device: torch.device) -> tuple[Tensor, Noise]:
    """An update's batch indices (B,) below `size`, from NumPy's global generator, and its noise, from torch's.

    The authors' code draws the noise in JAX, and no generator of PyTorch makes the same numbers.
    """
    shape = (hp.batch_size, action_dim)
    indices = np.random.randint(0, size, size=hp.batch_size)
    noise = Noise(
        target=torch.randn(shape, device=device),
        start=torch.randn(shape, device=device),
        time=torch.rand(hp.batch_size, device=device),
        actor=torch.randn(shape, device=device),
    )
    return index_tensor(indices, device), noise


class Exploration(NamedTuple):
    """The random numbers that a step in the environment draws."""

    # Standard normal, (1, A): the noise that the policy turns into an action
    action: Tensor


def draw_exploration(hp: Hyperparameters, action_dim: int, device: torch.device) -> Exploration:
    """The draw of one step in the environment, from torch's generator, like an update's noise."""
    return Exploration(action=torch.randn(1, action_dim, device=device))


def draw_acting_noise(generator: np.random.Generator, hp: Hyperparameters, action_dim: int) -> np.ndarray:
    """The noise that the policy turns into an action, (A,), drawn for one step of an episode."""
    return generator.standard_normal(action_dim)


# ---- losses and update ---------------------------------------------------------------------------------------------


def gradient_step(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """One step of the optimiser down the gradient of the loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def soft_update(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Polyak averaging: the target moves a step of size tau towards the source, in place."""
    for old, new in zip(target.parameters(), source.parameters(), strict=True):
        old.data.copy_((1.0 - tau) * old.data + tau * new.data)


class FQL:
    """All that an update reads and writes."""

    def __init__(self, hp: Hyperparameters, actor: Actor, flow: Flow, critic: Critic) -> None:
        self.hp = hp
        self.actor, self.flow, self.critic = actor, flow, critic
        self.critic_target = copy.deepcopy(critic)
        self.actor_optimizer = torch.optim.Adam(actor.parameters(), lr=hp.learning_rate)
        self.flow_optimizer = torch.optim.Adam(flow.parameters(), lr=hp.learning_rate)
        self.critic_optimizer = torch.optim.Adam(critic.parameters(), lr=hp.learning_rate)
        self.total_it = 0

    @torch.no_grad()
    def td_target(self, batch: Batch, noise: Noise) -> Tensor:
        """The regression target of both critics, (B,), from their target values of the policy's next action."""
        hp, actor, critic = self.hp, self.actor, self.critic_target
        next_actions = cut(actor, actor(batch.next_observations, noise.target))
        values = critic(batch.next_observations, next_actions)
        next_q = values.mean(axis=0) if hp.q_agg == "mean" else amin(values, axis=0)
        assert next_q.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + (1.0 - batch.terminals) * hp.discount * next_q

    def critic_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """The squared error of both critics to the same target, the mean over both."""
        critic = self.critic
        target = self.td_target(batch, noise)
        q = critic(batch.observations, batch.actions)
        assert q.shape == (2, *target.shape)
        return square(q - target).mean(), {}

    def flow_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """Flow matching: on the straight line from noise to the data's action, the velocity is their difference."""
        flow = self.flow
        time = noise.time[:, None]
        on_the_way = (1.0 - time) * noise.start + time * batch.actions
        velocity = flow(batch.observations, on_the_way, noise.time)
        assert velocity.shape == noise.start.shape == batch.actions.shape
        return square(velocity - (batch.actions - noise.start)).mean(), {}

    @torch.no_grad()
    def flow_actions(self, observations: Tensor, noise: Tensor) -> Tensor:
        """The flow's actions from noise (B, A), by Euler's method; only the last point is clipped to the bounds."""
        hp, flow = self.hp, self.flow
        actions = noise
        for step in range(hp.flow_steps):
            times = full_like(actions[:, 0], step / hp.flow_steps)
            actions = actions + flow(observations, actions, times) / hp.flow_steps
        return cut(self.actor, actions)

    def actor_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """The distance to the flow's action from the same noise, against the critics' mean value."""
        hp, actor, critic = self.hp, self.actor, self.critic
        actions = actor(batch.observations, noise.actor)
        # Only the distance pulls back actions beyond the bounds, because the value has no gradient there.
        distill_loss = square(actions - self.flow_actions(batch.observations, noise.actor)).mean()
        q = critic(batch.observations, cut(actor, actions)).mean(axis=0)
        assert q.shape == batch.rewards.shape
        # There is no epsilon below |Q|, as in the authors' code.
        weight = 1.0 / q.abs().mean().detach() if hp.normalize_q else 1.0
        q_loss = -(weight * q).mean()
        return hp.distill_coef * distill_loss + q_loss, {"distill_loss": distill_loss, "q_loss": q_loss}

    def update(self, batch: Batch, noise: Noise) -> dict[str, Tensor]:
        """One gradient step of each network, and one step of the target critics, all from the old weights."""
        hp = self.hp
        critic_loss, _ = self.critic_loss(batch, noise)
        flow_loss, _ = self.flow_loss(batch, noise)
        actor_loss, aux = self.actor_loss(batch, noise)
        soft_update(self.critic_target, self.critic, hp.tau)
        # The policy's gradient passes through the critics, so they step last.
        gradient_step(actor_loss, self.actor_optimizer)
        gradient_step(flow_loss, self.flow_optimizer)
        gradient_step(critic_loss, self.critic_optimizer)
        self.total_it += 1
        metrics = {"critic_loss": critic_loss, "flow_loss": flow_loss, "actor_loss": actor_loss} | aux
        return {name: value.detach() for name, value in metrics.items()}

    @torch.no_grad()
    def explore(self, observations: Tensor, noise: Exploration) -> Tensor:
        """Actions (E, A) to learn from, for observations (E, S): the policy's, as in an evaluation."""
        return policy(self.actor, observations, noise.action)

    def act(self, observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Calls `policy` with NumPy arrays."""
        return on_arrays(policy, self.actor, observations, noise)

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint, by name."""
        learning = ("actor", "flow", "critic")
        names = [*learning, "critic_target", *(f"{part}_optimizer" for part in learning)]
        return {name: getattr(self, name) for name in names}


def policy(actor: Actor, observations: Tensor, noise: Tensor) -> Tensor:
    """The policy's actions (E, A) for observations (E, S) and noise (E, A)."""
    return cut(actor, actor(observations, noise))


# ---- training ------------------------------------------------------------------------------------------------------


def create_trainer(config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> FQL:
    """Fresh networks, drawn from torch's generator on the CPU: policy, flow, critics."""
    dims, layer_norm = config.actor_hidden_dims, config.actor_ln
    actor = Actor(state_dim, action_dim, max_action, dims, layer_norm)
    flow = Flow(state_dim, action_dim, dims, layer_norm)
    critic = Critic(state_dim, action_dim, config.critic_hidden_dims, config.critic_ln)
    device = resolve_device(config.device)
    return FQL(config, actor.to(device), flow.to(device), critic.to(device))


def save(trainer: FQL, path: Path, experience: OnlineExperience | None = None, **facts: Any) -> None:
    """Writes the new part of the experience, then a checkpoint beside it."""
    if experience is not None:
        experience.save(path.parent)
    save_checkpoint(path, "finetune/fql", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: FQL, path: str) -> dict[str, Any]:
    """Loads one of our checkpoints, also of an offline run; returns its contents."""
    content = load_checkpoint(path, ["finetune/fql", "fql"], trainer.parts())
    trainer.total_it = content["total_it"]
    return content


def train(config: TrainConfig) -> Run:
    """Trains on the data, then in the environment, evaluates every `eval_freq` updates and fills the run's folder.

    Raises:
        InputError: the dataset, the environment or the checkpoint cannot be used.
    """
    preparation = Preparation(rewards=ShiftedRewards().where(config.normalize_reward), normalise=config.normalize)
    task = load_task(config, preparation)
    device = resolve_device(config.device)
    experience = training_environment(config, task)
    seed_everything(config.seed)
    trainer = create_trainer(config, task.state_dim, task.action_dim, task.max_action)
    run = Run(config, task, "finetune/fql", "torch", device)
    history = restore(run, partial(load, trainer), device, experience.go_on_from)
    # The data's actions are clipped; the environment's steps are stored with the actions as they were taken.
    dataset = to_device(cut_actions(task.dataset, task.max_action), device)
    ring = Ring(dataset, room(config, len(dataset.rewards)))
    ring.push(experience.transitions())
    draw = partial(draw_acting_noise, hp=config, action_dim=task.action_dim)
    with run:
        if run.is_due(run.step):
            run.evaluate(run.step, SampledPolicy(trainer.act, draw, config.seed))
        for step in range(run.step + 1, config.max_timesteps + 1):
            if step > config.offline_iterations:
                observation = torch.as_tensor(experience.observation[None]).to(dataset.observations)
                action = trainer.explore(observation, draw_exploration(config, task.action_dim, device))
                experience.step(action[0].cpu().numpy())
                ring.push(experience.last())
            indices, noise = draw_noise(config, ring.size, task.action_dim, device)
            history.append(trainer.update(take(ring.rows, indices), noise))
            run.advance(1)
            if run.is_due(step):
                run.log(step, mean_metrics(history), experience.episodes)
                history.clear()
                run.save(step, partial(save, trainer, experience=experience))
                run.evaluate(step, SampledPolicy(trainer.act, draw, config.seed))
            elif run.stopping:
                run.save(step, partial(save, trainer, experience=experience, history=history))
    experience.close()
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "finetune/fql")
