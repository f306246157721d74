"""ReBRAC in PyTorch, offline to online: learns from data first, then in the environment, ever less tied to the data.

Its twin is `corl_jax/finetune/rebrac.py`. The networks and the losses are from `corl_torch/rebrac.py`.

Tarasov et al., Revisiting the Minimalist Approach to Offline Reinforcement Learning, 2023,
https://arxiv.org/abs/2305.09836
"""

import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from shared.runs.start import cli

import numpy as np
import torch
from torch import Tensor, amin, clip, concatenate, maximum, nn, square, stack, tanh

from shared.data.online import OnlineExperience
from shared.data.returns import ReturnsBatch, online_rows
from shared.data.rewards import HundredfoldRewards
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.torch_data import index_tensor, take, to_device
from shared.frameworks.torch_ring import Ring, room, take_both
from shared.frameworks.torch_side import mean_metrics, on_arrays, resolve_device, seed_everything
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


def mlp(
    input_dim: int, hidden_dim: int, n_hiddens: int, layer_norm: bool, output_dim: int, bound: float
) -> nn.Sequential:
    """Hidden layers with ReLU, then LayerNorm if the settings say so; the last layer starts within the bound."""
    layers = []
    for _ in range(n_hiddens):
        hidden = nn.Linear(input_dim, hidden_dim)
        nn.init.constant_(hidden.bias, 0.1)
        layers += [hidden, nn.ReLU()]
        if layer_norm:
            layers += [nn.LayerNorm(hidden_dim, eps=1e-6)]
        input_dim = hidden_dim
    last = nn.Linear(input_dim, output_dim)
    for parameter in last.parameters():
        nn.init.uniform_(parameter, -bound, bound)
    return nn.Sequential(*layers, last)


class Actor(nn.Module):
    """The deterministic policy: (B, S) to (B, A), within [-1, 1]."""

    def __init__(self, hp: Hyperparameters, state_dim: int, action_dim: int) -> None:
        super().__init__()
        self.net = mlp(state_dim, hp.hidden_dim, hp.actor_n_hiddens, hp.actor_ln, action_dim, bound=1e-3)

    def forward(self, observations: Tensor) -> Tensor:
        """The actions (B, A) for observations (B, S)."""
        return tanh(self.net(observations))


class Critic(nn.Module):
    """Both critics, with separate weights: (B, S) and (B, A) to (2, B)."""

    def __init__(self, hp: Hyperparameters, state_dim: int, action_dim: int) -> None:
        super().__init__()
        sizes = (state_dim + action_dim, hp.hidden_dim, hp.critic_n_hiddens, hp.critic_ln, 1)
        self.q1 = mlp(*sizes, bound=3e-3)
        self.q2 = mlp(*sizes, bound=3e-3)

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """The values (2, B) of actions (B, A) in observations (B, S)."""
        inputs = concatenate([observations, actions], axis=-1)
        return stack([self.q1(inputs), self.q2(inputs)]).squeeze(-1)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    # Standard normal, (B, A): smooths the target policy
    target: Tensor
    # Uniform in [-1, 1), (B, A): random actions, only for the metrics
    random: Tensor


def shares(hp: Hyperparameters) -> tuple[int, int]:
    """How many rows of an online batch come from the dataset, and how many from the environment."""
    online = int(hp.online_share * hp.batch_size)
    return hp.batch_size - online, online


def draw_noise(
    hp: Hyperparameters, dataset_size: int, action_dim: int, device: torch.device, online_size: int | None = None
) -> tuple[Tensor, Noise]:
    """An update's batch indices (B,), from NumPy's global generator, and its noise, from torch's.

    The dataset's rows come first. The environment's, if there are any, are numbered from `dataset_size` on. CORL draws
    the noise in JAX, and no generator of PyTorch makes the same numbers; only the order is the same.
    """
    shape = (hp.batch_size, action_dim)
    offline, online = shares(hp) if online_size is not None else (hp.batch_size, 0)
    indices = np.random.randint(0, dataset_size, size=offline)
    if online_size is not None:
        indices = np.append(indices, dataset_size + np.random.randint(0, online_size, size=online))
    noise = Noise(
        target=torch.randn(shape, device=device),
        random=torch.empty(shape, device=device).uniform_(-1.0, 1.0),
    )
    return index_tensor(indices, device), noise


class Exploration(NamedTuple):
    """The random numbers that a step in the environment draws."""

    # Standard normal, (1, A)
    action: Tensor


def draw_exploration(hp: Hyperparameters, action_dim: int, device: torch.device) -> Exploration:
    """The draw of one step in the environment, from NumPy's generator and in double precision, as in CORL.

    CORL also draws noise for a next action, which has no weight online.
    """
    noise = np.random.normal(size=(2, action_dim))
    return Exploration(action=torch.as_tensor(noise[:1], device=device))


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


class ReBRAC:
    """All that an update reads and writes."""

    def __init__(self, hp: Hyperparameters, actor: Actor, critic: Critic) -> None:
        self.hp = hp
        self.actor, self.critic = actor, critic
        self.actor_target, self.critic_target = copy.deepcopy((actor, critic))
        self.actor_optimizer = torch.optim.Adam(actor.parameters(), lr=hp.actor_lr)
        self.critic_optimizer = torch.optim.Adam(critic.parameters(), lr=hp.critic_lr)
        self.total_it = 0

    def bc_coefs(self) -> tuple[float, float]:
        """The current weights of both distances: in the actor's loss, and in the critics' target.

        Online, the first falls linearly to its smallest share, and the second is 0 at once.
        """
        hp = self.hp
        if self.total_it < hp.offline_iterations:
            return hp.actor_bc_coef, hp.critic_bc_coef
        left = hp.offline_iterations + hp.learning_starts + hp.online_iterations - self.total_it
        return hp.actor_bc_coef * max(hp.min_decay_coef, left / hp.online_iterations), 0.0

    @torch.no_grad()
    def td_target(self, batch: ReturnsBatch, noise: Noise) -> Tensor:
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

    def critic_loss(self, batch: ReturnsBatch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """The squared error of both critics to the same target."""
        critic = self.critic
        target = self.td_target(batch, noise)
        q = critic(batch.observations, batch.actions)
        assert q.shape == (2, *target.shape)
        return square(q - target).mean(axis=1).sum(), {"q_min": amin(q, axis=0).mean()}

    def actor_loss(self, batch: ReturnsBatch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """The distance to the data's actions against the smaller value, scaled by its own size."""
        hp, actor, critic = self.hp, self.actor, self.critic
        actor_bc_coef, _ = self.bc_coefs()
        actions = actor(batch.observations)
        distance = square(actions - batch.actions).sum(axis=-1)
        q = amin(critic(batch.observations, actions), axis=0)
        assert q.shape == distance.shape == batch.rewards.shape
        # There is no epsilon below |Q|, as in the authors' code.
        weight = 1.0 / q.abs().mean().detach() if hp.normalize_q else 1.0
        metrics = {
            "bc_mse_policy": distance.mean(),
            "bc_mse_random": square(noise.random - batch.actions).sum(axis=-1).mean(),
            "action_mse": square(actions - batch.actions).mean(),
        }
        return (actor_bc_coef * distance - weight * q).mean(), metrics

    def update(self, batch: ReturnsBatch, noise: Noise) -> dict[str, Tensor]:
        """One gradient step: the critics; in the first and every `policy_freq` later, the actor and the targets."""
        hp = self.hp
        actor_bc_coef, critic_bc_coef = map(torch.tensor, self.bc_coefs())
        loss, aux = self.critic_loss(batch, noise)
        gradient_step(loss, self.critic_optimizer)
        metrics = {"actor_bc_coef": actor_bc_coef, "critic_bc_coef": critic_bc_coef, "critic_loss": loss} | aux
        if self.total_it % hp.policy_freq == 0:
            loss, aux = self.actor_loss(batch, noise)
            # As in CORL, the actor's target follows the actor before this step, and the critics' the new critics.
            soft_update(self.actor_target, self.actor, hp.tau)
            gradient_step(loss, self.actor_optimizer)
            soft_update(self.critic_target, self.critic, hp.tau)
            metrics |= {"actor_loss": loss} | aux
        self.total_it += 1
        return {name: value.detach() for name, value in metrics.items()}

    @torch.no_grad()
    def explore(self, observations: Tensor, noise: Exploration) -> Tensor:
        """Actions (E, A) to learn from, for normalised observations (E, S): the policy's, with added noise."""
        return clip(self.actor(observations) + self.hp.expl_noise * noise.action, -1.0, 1.0)

    def act(self, observations: np.ndarray) -> np.ndarray:
        """Calls `policy` with NumPy arrays."""
        return on_arrays(policy, self.actor, observations)

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint; CORL writes none."""
        return {
            "actor": self.actor,
            "critic": self.critic,
            "actor_target": self.actor_target,
            "critic_target": self.critic_target,
            "actor_optimizer": self.actor_optimizer,
            "critic_optimizer": self.critic_optimizer,
        }


def policy(actor: Actor, observations: Tensor) -> Tensor:
    """The policy's actions (E, A) for normalised observations (E, S)."""
    return actor(observations)


# ---- training ------------------------------------------------------------------------------------------------------


def create_trainer(config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> ReBRAC:
    """Fresh networks with CORL's initialisation; whatever `max_action`, the policy's bound is 1, as in CORL."""
    actor = Actor(config, state_dim, action_dim)
    critic = Critic(config, state_dim, action_dim)
    device = resolve_device(config.device)
    return ReBRAC(config, actor.to(device), critic.to(device))


def save(trainer: ReBRAC, path: Path, experience: OnlineExperience | None = None, **facts: Any) -> None:
    """Writes the new part of the experience, then a checkpoint beside it."""
    if experience is not None:
        experience.save(path.parent)
    save_checkpoint(path, "finetune/rebrac", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: ReBRAC, path: str) -> dict[str, Any]:
    """Loads one of our checkpoints, also of an offline run; returns its contents."""
    content = load_checkpoint(path, ["finetune/rebrac", "rebrac"], trainer.parts())
    trainer.total_it = content["total_it"]
    return content


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
    seed_everything(config.seed)
    trainer = create_trainer(config, task.state_dim, task.action_dim, task.max_action)
    run = Run(config, task, "finetune/rebrac", "torch", device)
    history = restore(run, partial(load, trainer), device, experience.go_on_from)
    # The weights of the distances only depend on this run's own steps, even if it began with a checkpoint.
    trainer.total_it = run.step
    dataset = to_device(task.dataset, device)
    ring = Ring(dataset, room(config, 0), keeps_dataset=False)
    ring.push(online_rows(experience.transitions()))
    switch, size, (offline, _) = config.offline_iterations, len(dataset.rewards), shares(config)
    with run:
        if run.is_due(run.step):
            run.evaluate(run.step, trainer.act)
        for step in range(run.step + 1, config.max_timesteps + 1):
            if step > switch:
                observation = torch.as_tensor(experience.observation[None]).to(dataset.observations)
                action = trainer.explore(observation, draw_exploration(config, task.action_dim, device))
                experience.step(action[0].cpu().numpy())
                ring.push(online_rows(experience.last()))
            if switch < step <= switch + config.learning_starts:
                trainer.total_it += 1
            else:
                online_size = ring.size if step > switch else None
                indices, noise = draw_noise(config, size, task.action_dim, device, online_size)
                batch = take(dataset, indices) if step <= switch else take_both(dataset, ring.rows, indices, offline)
                history.append(trainer.update(batch, noise))
            run.advance(1)
            if run.is_due(step):
                run.log(step, mean_metrics(history), experience.episodes)
                history.clear()
                run.save(step, partial(save, trainer, experience=experience))
                run.evaluate(step, trainer.act)
            elif run.stopping:
                run.save(step, partial(save, trainer, experience=experience, history=history))
    experience.close()
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "finetune/rebrac")
