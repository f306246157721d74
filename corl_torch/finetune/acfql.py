"""ACFQL in PyTorch, offline to online: learns from chunks of the data, then also from those that its policy plays.

Its twin is `corl_jax/finetune/acfql.py`. The networks, the losses and the update are from `corl_torch/acfql.py`.

Li et al., Reinforcement Learning with Action Chunking, 2025, https://arxiv.org/abs/2507.07969
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from shared.runs.start import cli

import numpy as np
import torch
from torch import Tensor, amax, amin, arange, argmax, clamp, concatenate, cumsum, full_like, nn, square, stack, tile

from shared.data.chunks import Chunks, check_length
from shared.data.online import OnlineExperience
from shared.data.returns import EndedBatch
from shared.data.rewards import ShiftedRewards, SparseRewards
from shared.data.transitions import cut_actions
from shared.envs.evaluation import ChunkedPolicy
from shared.frameworks.torch_checkpoints import load_checkpoint, restore, save_checkpoint
from shared.frameworks.torch_data import index_tensor, take, to_device
from shared.frameworks.torch_layers import pick
from shared.frameworks.torch_ring import Ring, room
from shared.frameworks.torch_side import mean_metrics, on_arrays, resolve_device, seed_everything
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


def take_chunks(buffer: EndedBatch, indices: Tensor, hp: Hyperparameters, size: int, first: int) -> Chunks:
    """The chunks of h rows that begin at the rows `indices` (B,), wherever episodes end.

    Rows are counted from the row `first` on, and row 0 follows the last one of the `size` rows in the buffer.
    """
    steps = arange(hp.horizon_length, device=indices.device)
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


def beside(observations: Tensor, chunks: Tensor, *others: Tensor) -> Tensor:
    """A network's inputs side by side: observations (..., S), chunks (..., h, A) step by step, others (..., O)."""
    return concatenate([observations, chunks.reshape(*chunks.shape[:-2], -1), *others], axis=-1)


class Actor(nn.Module):
    """The policy, which turns noise into a chunk in one step; `cut` puts it within its bounds."""

    def __init__(
        self,
        state_dim: int,
        chunk_shape: tuple[int, int],
        max_action: float,
        hidden_dims: Sequence[int],
        layer_norm: bool,
    ) -> None:
        super().__init__()
        chunk_dim = math.prod(chunk_shape)
        self.net = mlp(state_dim + chunk_dim, hidden_dims, layer_norm, chunk_dim)
        self.max_action = max_action

    def forward(self, observations: Tensor, noise: Tensor) -> Tensor:
        """The chunks (B, h, A) for observations (B, S) and noise (B, h, A)."""
        return self.net(beside(observations, noise)).reshape(noise.shape)


class Flow(nn.Module):
    """The flow, whose velocity moves noise at time 0 to one of the data's chunks at time 1."""

    def __init__(
        self,
        state_dim: int,
        chunk_shape: tuple[int, int],
        max_action: float,
        hidden_dims: Sequence[int],
        layer_norm: bool,
        flow_steps: int,
    ) -> None:
        super().__init__()
        chunk_dim = math.prod(chunk_shape)
        self.net = mlp(state_dim + chunk_dim + 1, hidden_dims, layer_norm, chunk_dim)
        self.max_action, self.flow_steps = max_action, flow_steps

    def forward(self, observations: Tensor, chunks: Tensor, times: Tensor) -> Tensor:
        """The velocities (..., h, A) at chunks (..., h, A) and times (...), for observations (..., S)."""
        return self.net(beside(observations, chunks, times[..., None])).reshape(chunks.shape)


class Critic(nn.Module):
    """Both critics, with separate weights: (..., S) and (..., h, A) to (2, ...)."""

    def __init__(
        self, state_dim: int, chunk_shape: tuple[int, int], hidden_dims: Sequence[int], layer_norm: bool, q_agg: str
    ) -> None:
        super().__init__()
        sizes = (state_dim + math.prod(chunk_shape), hidden_dims, layer_norm, 1)
        self.q1 = mlp(*sizes)
        self.q2 = mlp(*sizes)
        self.q_agg = q_agg

    def forward(self, observations: Tensor, chunks: Tensor) -> Tensor:
        """The values (2, ...) of chunks (..., h, A) that begin in observations (..., S)."""
        inputs = beside(observations, chunks)
        return stack([self.q1(inputs), self.q2(inputs)]).squeeze(-1)


def cut(actor: Actor | Flow, chunks: Tensor) -> Tensor:
    """Chunks (..., h, A), clipped to [-max_action, max_action]."""
    return clamp(chunks, -actor.max_action, actor.max_action)


def flow_chunks(flow: Flow, observations: Tensor, noise: Tensor) -> Tensor:
    """The flow's chunks from noise (..., h, A), by Euler's method; only the last point is clipped to the bounds."""
    flow_steps, chunks = flow.flow_steps, noise
    for step in range(flow_steps):
        times = full_like(chunks[..., 0, 0], step / flow_steps)
        chunks = chunks + flow(observations, chunks, times) / flow_steps
    return cut(flow, chunks)


def one_value(critic: Critic, values: Tensor) -> Tensor:
    """One value (...) out of both critics' values (2, ...), their mean or the smaller one."""
    return values.mean(axis=0) if critic.q_agg == "mean" else amin(values, axis=0)


def best_of_n(flow: Flow, critic: Critic, observations: Tensor, noise: Tensor) -> Tensor:
    """The flow's chunk of highest value, (B, h, A), for observations (B, S) and noise (B, n, h, A)."""
    observations = tile(observations[:, None], (1, noise.shape[1], 1))
    chunks = flow_chunks(flow, observations, noise)
    best = argmax(one_value(critic, critic(observations, chunks)), axis=1)
    return pick(chunks.reshape(*chunks.shape[:2], -1), best).reshape(-1, *chunks.shape[2:])


def policy(acting: nn.ModuleDict, observations: Tensor, noise: Tensor) -> Tensor:
    """The policy's chunks (E, h, A) for observations (E, S) and noise (E, h, A), or (E, n, h, A) in best-of-n."""
    if "actor" in acting:
        return cut(acting["actor"], acting["actor"](observations, noise))
    return best_of_n(acting["flow"], acting["critic"], observations, noise)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    # Standard normal, (B, h, A): the noise of the policy's next chunks; (B, n, h, A) in best-of-n
    target: Tensor
    # Standard normal, (B, h, A): where the flow to the data's chunks begins
    start: Tensor
    # Uniform in [0, 1), (B,): the time that this flow has reached
    time: Tensor
    # Standard normal, (B, h, A): the noise that both the policy and the flow turn into a chunk; None in best-of-n
    actor: Tensor | None


def noise_shape(hp: Hyperparameters, action_dim: int) -> tuple[int, ...]:
    """The shape of the noise from which the policy makes a chunk: (h, A), or (n, h, A) in best-of-n."""
    chunk = (hp.horizon_length, action_dim)
    return chunk if hp.actor_type == "distill-ddpg" else (hp.n_action_samples, *chunk)


def draw_noise(hp: Hyperparameters, rows: int, action_dim: int, device: torch.device) -> tuple[Tensor, Noise]:
    """The numbers (B,) of the rows at which an update's chunks begin, from NumPy's global generator, and its noise.

    A chunk may begin in any of the `rows` that enough others follow. The authors' code draws the noise in JAX, and no
    generator of PyTorch makes the same numbers.
    """
    size, distilled = hp.batch_size, hp.actor_type == "distill-ddpg"
    shape = (size, hp.horizon_length, action_dim)
    indices = np.random.randint(0, rows - hp.horizon_length + 1, size=size)
    noise = Noise(
        target=torch.randn((size, *noise_shape(hp, action_dim)), device=device),
        start=torch.randn(shape, device=device),
        time=torch.rand(size, device=device),
        actor=torch.randn(shape, device=device) if distilled else None,
    )
    return index_tensor(indices, device), noise


class Exploration(NamedTuple):
    """The random numbers that a step in the environment draws, used or not."""

    # Standard normal, (1, h, A): the noise from which the policy makes a chunk; (1, n, h, A) in best-of-n
    chunk: Tensor


def draw_exploration(hp: Hyperparameters, action_dim: int, device: torch.device) -> Exploration:
    """The draw of one step in the environment, from torch's generator, like an update's noise."""
    return Exploration(chunk=torch.randn((1, *noise_shape(hp, action_dim)), device=device))


def draw_acting_noise(generator: np.random.Generator, hp: Hyperparameters, action_dim: int) -> np.ndarray:
    """The noise from which the policy makes a chunk, standard normal, (h, A), or (n, h, A) in best-of-n."""
    return generator.standard_normal(noise_shape(hp, action_dim))


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


class ACFQL:
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
    def td_target(self, batch: Chunks, noise: Noise) -> Tensor:
        """The regression target of both critics, (B,), from their target values of the policy's next chunk."""
        hp, critic = self.hp, self.critic_target
        next_chunks = policy(self.acting, batch.next_observations, noise.target)
        next_q = one_value(critic, critic(batch.next_observations, next_chunks))
        assert next_q.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + (1.0 - batch.terminals) * hp.discount**hp.horizon_length * next_q

    def critic_loss(self, batch: Chunks, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """The squared error of both critics to the same target, the mean over both.

        A chunk that reaches into the next episode counts with an error of 0.
        """
        critic = self.critic
        target = self.td_target(batch, noise)
        q = critic(batch.observations, batch.actions)
        valid = batch.valid[:, -1]
        assert q.shape == (2, *target.shape)
        assert valid.shape == target.shape
        return (valid * square(q - target)).mean(), {}

    def flow_loss(self, batch: Chunks, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """Flow matching: on the straight line from noise to the data's chunk, the velocity is their difference.

        Actions of the next episode count with an error of 0, although the flow sees them.
        """
        flow = self.flow
        time = noise.time[:, None, None]
        on_the_way = (1.0 - time) * noise.start + time * batch.actions
        velocity = flow(batch.observations, on_the_way, noise.time)
        assert velocity.shape == noise.start.shape == batch.actions.shape
        assert velocity.shape[:-1] == batch.valid.shape
        return (batch.valid[..., None] * square(velocity - (batch.actions - noise.start))).mean(), {}

    def actor_loss(self, batch: Chunks, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """The distance to the flow's chunk from the same noise, against the critics' mean value."""
        hp, actor, critic = self.hp, self.actor, self.critic
        assert noise.actor is not None, "drawn for this actor_type"
        chunks = actor(batch.observations, noise.actor)
        with torch.no_grad():
            followed = flow_chunks(self.flow, batch.observations, noise.actor)
        # Only the distance pulls back actions beyond the bounds, because the value has no gradient there.
        distill_loss = square(chunks - followed).mean()
        q = critic(batch.observations, cut(actor, chunks)).mean(axis=0)
        assert q.shape == batch.rewards.shape
        q_loss = -q.mean()
        return hp.distill_coef * distill_loss + q_loss, {"distill_loss": distill_loss, "q_loss": q_loss}

    def update(self, batch: Chunks, noise: Noise) -> dict[str, Tensor]:
        """One gradient step of each network, and one step of the target critics, all from the old weights."""
        hp = self.hp
        critic_loss, _ = self.critic_loss(batch, noise)
        flow_loss, _ = self.flow_loss(batch, noise)
        metrics = {"critic_loss": critic_loss, "flow_loss": flow_loss}
        if hp.actor_type == "distill-ddpg":
            actor_loss, aux = self.actor_loss(batch, noise)
            metrics |= {"actor_loss": actor_loss} | aux
        soft_update(self.critic_target, self.critic, hp.tau)
        # The policy's gradient passes through the critics, so they step last.
        if hp.actor_type == "distill-ddpg":
            gradient_step(actor_loss, self.actor_optimizer)
        gradient_step(flow_loss, self.flow_optimizer)
        gradient_step(critic_loss, self.critic_optimizer)
        self.total_it += 1
        return {name: value.detach() for name, value in metrics.items()}

    @property
    def acting(self) -> nn.ModuleDict:
        """The networks that the policy needs: its own, or the flow and the critics that choose."""
        if self.hp.actor_type == "distill-ddpg":
            return nn.ModuleDict({"actor": self.actor})
        return nn.ModuleDict({"flow": self.flow, "critic": self.critic})

    @torch.no_grad()
    def explore(self, observations: Tensor, noise: Exploration) -> Tensor:
        """Chunks (E, h, A) to learn from, for observations (E, S): the policy's, as in an evaluation."""
        return policy(self.acting, observations, noise.chunk)

    def act(self, observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Calls `policy` with NumPy arrays."""
        return on_arrays(policy, self.acting, observations, noise)

    def parts(self) -> dict[str, Any]:
        """The contents of a checkpoint, by name."""
        learning = ("actor", "flow", "critic")
        names = [*learning, "critic_target", *(f"{part}_optimizer" for part in learning)]
        return {name: getattr(self, name) for name in names}


# ---- training ------------------------------------------------------------------------------------------------------


def create_trainer(config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> ACFQL:
    """Fresh networks, drawn from torch's generator on the CPU: policy, flow, critics."""
    dims, layer_norm, shape = config.actor_hidden_dims, config.actor_ln, (config.horizon_length, action_dim)
    actor = Actor(state_dim, shape, max_action, dims, layer_norm)
    flow = Flow(state_dim, shape, max_action, dims, layer_norm, config.flow_steps)
    critic = Critic(state_dim, shape, config.critic_hidden_dims, config.critic_ln, config.q_agg)
    device = resolve_device(config.device)
    return ACFQL(config, actor.to(device), flow.to(device), critic.to(device))


def save(trainer: ACFQL, path: Path, experience: OnlineExperience | None = None, **facts: Any) -> None:
    """Writes the new part of the experience, then a checkpoint beside it, with the rest of the chunk that is played."""
    if experience is not None:
        experience.save(path.parent)
        facts["queue"] = experience.queue
    save_checkpoint(path, "finetune/acfql", {**trainer.parts(), "total_it": trainer.total_it, **facts})


def load(trainer: ACFQL, path: str) -> dict[str, Any]:
    """Loads one of our checkpoints, also of an offline run; returns its contents."""
    content = load_checkpoint(path, ["finetune/acfql", "acfql"], trainer.parts())
    trainer.total_it = content["total_it"]
    return content


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
    seed_everything(config.seed)
    trainer = create_trainer(config, task.state_dim, task.action_dim, task.max_action)
    run = Run(config, task, "finetune/acfql", "torch", device)
    history = restore(run, partial(load, trainer), device, experience.go_on_from)
    # The data's actions are clipped; the environment's steps are stored with the actions as they were taken.
    dataset = to_device(cut_actions(task.dataset, task.max_action), device)
    ring = Ring(dataset, room(config, len(dataset.rewards)))
    ring.push(experience.in_order())
    draw = partial(draw_acting_noise, hp=config, action_dim=task.action_dim)
    switch = config.offline_iterations
    with run:
        if run.is_due(run.step):
            run.evaluate(run.step, ChunkedPolicy(trainer.act, draw, config.seed, config.horizon_length))
        for step in range(run.step + 1, config.max_timesteps + 1):
            if step > switch:
                exploration = draw_exploration(config, task.action_dim, device)
                if not len(experience.queue):
                    observation = torch.as_tensor(experience.observation[None]).to(dataset.observations)
                    experience.choose(trainer.explore(observation, exploration)[0].cpu().numpy())
                experience.play()
                ring.push(experience.in_order(experience.size - 1))
            if switch < step <= switch + config.learning_starts:
                trainer.total_it += 1
            else:
                indices, noise = draw_noise(config, ring.size, task.action_dim, device)
                batch = take_chunks(ring.rows, indices, config, ring.size, first_row(ring, config))
                history.append(trainer.update(batch, noise))
            run.advance(1)
            if run.is_due(step):
                run.log(step, mean_metrics(history), experience.episodes)
                history.clear()
                run.save(step, partial(save, trainer, experience=experience))
                run.evaluate(step, ChunkedPolicy(trainer.act, draw, config.seed, config.horizon_length))
            elif run.stopping:
                run.save(step, partial(save, trainer, experience=experience, history=history))
    experience.close()
    return run


if __name__ == "__main__":
    cli(train, TrainConfig, "finetune/acfql")
