"""Trains the agent and keeps snapshots of its policy on the way."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import flax.serialization
import gymnasium
import jax
import numpy as np
from tqdm import tqdm

from collect.rollouts import play_episodes, returns_of
from collect.sac import Actor, Params, Replay, SACState, act, create_state, update_block
from shared.envs import make_env

_BLOCK = 50  # environment steps, then as many updates in one compiled call


@dataclass(frozen=True)
class TrainSettings:
    """What decides the outcome of a training run."""

    env: str
    seed: int
    steps: int
    random_steps: int
    batch_size: int
    evaluate_every: int
    evaluation_episodes: int


class Snapshot(NamedTuple):
    """A policy as it was after some steps, and how it did in the evaluation at that time."""

    step: int
    return_mean: float
    fall_rate: float


def train(settings: TrainSettings, work_dir: Path) -> list[Snapshot]:
    """Trains SAC and writes snapshots to `work_dir`; a finished run with the same settings there is reused.

    Raises:
        InputError: The environment is unknown.
    """
    record = work_dir / "training.json"
    if record.exists():
        finished = json.loads(record.read_text())
        if finished["settings"] == asdict(settings):
            return [Snapshot(*values) for values in finished["snapshots"]]
    snapshots = _Trainer(settings, work_dir).run()
    _write_atomically(record, json.dumps({"settings": asdict(settings), "snapshots": snapshots}).encode())
    return snapshots


def load_actor(env: gymnasium.Env, work_dir: Path, step: int) -> Params:
    """Policy parameters of the snapshot taken after `step` steps."""
    template = Actor(env.action_space.shape[0]).init(jax.random.key(0), np.zeros(env.observation_space.shape))
    return flax.serialization.from_bytes(template, _actor_path(work_dir, step).read_bytes())


def rate(env: gymnasium.Env, actor: Params, step: int, count: int) -> Snapshot:
    """Describes the policy of training step `step` by `count` episodes, which the step's number seeds."""
    episodes = play_episodes(env, actor, step, count)
    falls = [bool(episode.terminals.any()) for episode in episodes]
    return Snapshot(step, float(returns_of(episodes).mean()), float(np.mean(falls)))


class _Trainer:
    """The state of one training run."""

    def __init__(self, settings: TrainSettings, work_dir: Path) -> None:
        self.settings, self.work_dir = settings, work_dir
        self.env, self.evaluation_env = make_env(settings.env), make_env(settings.env)
        dims = self.env.observation_space.shape[0], self.env.action_space.shape[0]
        self.replay = Replay(settings.steps, *dims)
        self.rng = np.random.default_rng(settings.seed)
        init_key, self.key = jax.random.split(jax.random.key(settings.seed))
        self.state: SACState = create_state(init_key, *dims)
        self.observation, _ = self.env.reset(seed=settings.seed)

    def run(self) -> list[Snapshot]:
        """All steps; returns one snapshot per evaluation."""
        snapshots = []
        bar = tqdm(range(1, self.settings.steps + 1), desc="train", unit="step", mininterval=1)
        for step in bar:
            self._interact(uniform=step <= self.settings.random_steps)
            if step % _BLOCK == 0 and step > self.settings.random_steps:
                self._learn(step)
            if step % self.settings.evaluate_every == 0:
                snapshots.append(self._snapshot(step))
                bar.set_postfix(return_mean=round(snapshots[-1].return_mean))
        return snapshots

    def _interact(self, uniform: bool) -> None:
        shape = self.env.action_space.shape
        if uniform:
            action = self.rng.uniform(-1, 1, shape).astype(np.float32)
        else:
            noise = self.rng.standard_normal(shape).astype(np.float32)
            action = np.asarray(act(self.state.actor, self.observation.astype(np.float32), noise))
        next_observation, reward, fell, timeout, _ = self.env.step(action)
        self.replay.add(self.observation, action, reward, next_observation, fell)
        self.observation = self.env.reset()[0] if fell or timeout else next_observation

    def _learn(self, step: int) -> None:
        batches = self.replay.sample(self.rng, (_BLOCK, self.settings.batch_size))
        self.state = update_block(self.state, batches, jax.random.fold_in(self.key, step))

    def _snapshot(self, step: int) -> Snapshot:
        _write_atomically(_actor_path(self.work_dir, step), flax.serialization.to_bytes(self.state.actor))
        return rate(self.evaluation_env, self.state.actor, step, self.settings.evaluation_episodes)


def _actor_path(work_dir: Path, step: int) -> Path:
    return work_dir / f"actor_{step:08d}.msgpack"


def _write_atomically(path: Path, content: bytes) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_bytes(content)
    os.replace(unfinished, path)
