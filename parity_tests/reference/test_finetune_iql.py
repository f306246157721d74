"""IQL, offline to online: six updates in each phase and a whole loop are bitwise equal; mistakes are caught."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from corl_torch.finetune import iql
from parity_tests.reference.common import (
    ACTION_DIM,
    CPU,
    ROWS,
    STATE_DIM,
    UPDATES,
    assert_same_bits,
    assert_same_log,
    columns_of,
    same_draws,
)
from parity_tests.reference.finetune import CAPACITY, assert_same_life, derived, patched, run_of, write_dataset
from parity_tests.reference.test_iql import ReferenceIQL, assert_acting, assert_bounded_deviation, assert_same_start
from shared.data import online
from shared.data.transitions import Batch
from shared.envs.stepping import Step, Stepper
from shared.frameworks.torch_data import take
from shared.frameworks.torch_ring import Ring

SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "dropout": {"actor_dropout": 0.1, "iql_tau": 0.9, "inverse_temperature": 100.0},
    "deterministic": {"iql_deterministic": True, "expl_noise": 0.4, "expl_noise_clip": 0.3, "normalize_reward": True},
}


def reference_of(config: iql.TrainConfig, trainer: iql.IQL) -> ReferenceIQL:
    """A derivation with the trainer's weights."""
    return ReferenceIQL(config, trainer, config.actor_dropout or None, config.offline_iterations)


def acting(reference: ReferenceIQL, config: iql.TrainConfig) -> Callable[[Tensor], Tensor]:
    """CORL's policy as it acts online: in training mode, with torch's own distribution."""

    def act(state: Tensor) -> Tensor:
        with torch.no_grad():
            mean = reference.mean(state)
            if config.iql_deterministic:
                noise = config.expl_noise * torch.randn_like(mean)
                return (mean + noise.clamp(-config.expl_noise_clip, config.expl_noise_clip)).clamp(-1.0, 1.0)
            return Normal(mean, reference.log_std.clamp(-20.0, 2.0).exp()).sample().clamp(-1.0, 1.0)

    return act


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_both_phases(dataset: Batch, settings: dict[str, Any]) -> None:
    """Six updates before the switch and six after it, when the policy's learning rate is 0 once and then rises."""
    config = iql.TrainConfig(device="cpu", offline_iterations=UPDATES, online_iterations=UPDATES, **settings)
    trainer = iql.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    reference, logs, rates = reference_of(config, trainer), [], []
    same_draws()
    for _ in range(2 * UPDATES):
        indices, noise = iql.draw_noise(config, ROWS, ACTION_DIM, CPU)
        rates.append(trainer.actor_optimizer.param_groups[0]["lr"])
        logs.append(trainer.update(take(dataset, indices), noise))
    same_draws()
    updates = [reference.update(*columns_of(dataset, config.batch_size)) for _ in range(2 * UPDATES)]
    assert_same_log(logs, updates)
    assert_same_bits(trainer, {"critic": reference.q, "critic_target": reference.q_t, "value": reference.v})
    assert_same_bits(trainer.actor, {"net": reference.mean})
    assert trainer.total_it == 2 * UPDATES
    if not config.iql_deterministic:
        assert torch.equal(trainer.actor.log_std, reference.log_std)
    assert rates[UPDATES] == pytest.approx(0.0, abs=1e-18)
    assert rates[UPDATES + 1] > 0.0
    for step, rate in enumerate(rates):
        assert rate == pytest.approx(3e-4 * (1.0 + math.cos(math.pi * step / UPDATES)) / 2.0, rel=1e-9, abs=1e-18)


def lives(folder: Path, settings: dict[str, Any]) -> tuple[Any, Any]:
    """Short runs of the twin and the derivation, with twenty online steps that overwrite the ring."""
    raw = write_dataset(folder / "line.hdf5")
    short: dict[str, Any] = {
        "offline_iterations": 6,
        "online_iterations": 20,
        "eval_freq": 13,
        "n_episodes": 1,
        "batch_size": 16,
    }
    config = iql.TrainConfig(
        env=str(folder / "line.hdf5"),
        runs_path=str(folder / "runs"),
        device="cpu",
        buffer_size=CAPACITY,
        **short | settings,
    )
    ours, fresh, as_it_was = run_of(iql, iql.IQL, config)
    reference = reference_of(config, fresh)
    as_it_was()
    return ours, derived(config, raw, acting(reference, config), reference.update)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_the_online_loop(settings: dict[str, Any], tmp_path: Path) -> None:
    """The twin's replay buffer and batches equal the derivation's."""
    assert_same_life(*lives(tmp_path, settings))


# ---- mistakes ------------------------------------------------------------------------------------------------------


def _taken(change: Callable[[Stepper, Step], Step]) -> tuple[Any, str, Any]:
    """Changes every step of the environment."""
    take_step = Stepper.step
    return Stepper, "step", lambda self, action, then=None: change(self, take_step(self, action, then))


class _FromTheWrongEnd(Ring):
    """Overwrites the newest row of the dataset first."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.pointer = self.size - 1


def _anew(experience: online.OnlineExperience) -> Batch:
    """Normalises the last step by the statistics of online steps."""
    last, seen = experience.transitions(experience.size - 1), experience.transitions().observations
    return last._replace(observations=(last.observations - seen.mean(0)) / (seen.std(0) + 1e-3))


MISTAKES = {
    "time limit stored as terminal": lambda: _taken(lambda _, s: s._replace(terminal=s.terminal or s.timeout)),
    "reward of an online step not scaled": lambda: _taken(lambda _, step: step._replace(reward=step.paid)),
    "reset's state stored as the next one": lambda: _taken(
        lambda stepper, step: step._replace(next_observation=stepper.observation)
    ),
    "statistics recomputed from online data": lambda: (online.OnlineExperience, "last", _anew),
    "buffer overwritten from the wrong end": lambda: (iql, "Ring", _FromTheWrongEnd),
    "no ring: the batches of the data alone": lambda: (Ring, "push", lambda self, columns: None),
    "exploration without noise": lambda: (
        iql.IQL, "explore", lambda self, s, noise: iql.policy(self.actor, s).detach()
    ),
    "mean kept, noise twice as large": lambda: (
        iql, "draw_exploration", lambda *args: iql.Exploration(None, 2.0 * torch.randn(1, ACTION_DIM))
    ),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_loop_is_caught(mistake: str, tmp_path: Path) -> None:
    """The comparison of the loops fails."""
    with patched(MISTAKES[mistake]()):
        ours, theirs = lives(tmp_path, SETTINGS["deterministic"])
    with pytest.raises(AssertionError):
        assert_same_life(ours, theirs)


def test_targets_reset_at_the_switch_are_caught(dataset: Batch) -> None:
    """They change the updates after the switch, but no batch."""
    config = iql.TrainConfig(device="cpu", offline_iterations=UPDATES, online_iterations=UPDATES)
    trainer = iql.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    reference = reference_of(config, trainer)
    same_draws()
    for _ in range(UPDATES):
        indices, noise = iql.draw_noise(config, ROWS, ACTION_DIM, CPU)
        trainer.update(take(dataset, indices), noise)
    same_draws()
    for _ in range(UPDATES):
        reference.update(*columns_of(dataset, config.batch_size))
    trainer.critic_target.load_state_dict(trainer.critic.state_dict())
    with pytest.raises(AssertionError):
        assert_same_bits(trainer, {"critic_target": reference.q_t})


def test_evaluation_has_no_noise(dataset: Batch) -> None:
    """It has no dropout either, like CORL's policy in evaluation mode, and differs from exploration."""
    assert_acting(iql, dataset.observations, without=0.0)
    config, states = iql.TrainConfig(device="cpu", actor_dropout=0.5), dataset.observations[:10]
    trainer = iql.create_trainer(config, STATE_DIM, ACTION_DIM, 2.0)
    explored = trainer.explore(states, iql.draw_exploration(config, ACTION_DIM, CPU))
    assert not np.allclose(explored, trainer.act(states.numpy()))


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_exploration_is_scaled_and_cut(dataset: Batch, settings: dict[str, Any]) -> None:
    """Noise is added to the mean before both are multiplied by the largest action."""
    config = iql.TrainConfig(device="cpu", **settings)
    trainer = iql.create_trainer(config, STATE_DIM, ACTION_DIM, 2.0)
    if trainer.actor.log_std is not None:
        trainer.actor.log_std.data += 0.5
    reference = reference_of(config, trainer)
    reference.log_std.data += 0.5
    for state in dataset.observations[:20, None]:
        same_draws()
        mine = trainer.explore(state, iql.draw_exploration(config, ACTION_DIM, CPU))
        same_draws()
        with torch.no_grad():
            mean = reference.mean(state)
            if config.iql_deterministic:
                noise = (config.expl_noise * torch.randn_like(mean)).clamp(
                    -config.expl_noise_clip, config.expl_noise_clip
                )
            else:
                noise = torch.randn_like(mean) * reference.log_std.exp()
        assert torch.equal(mine, (2.0 * (mean + noise)).clamp(-2.0, 2.0))
        assert not mine.requires_grad


def test_weights_start_where_the_seed_says() -> None:
    """The same check as for the offline twin."""
    assert_same_start(iql)


def test_the_deviation_is_bounded(dataset: Batch) -> None:
    """The same check as for the offline twin."""
    assert_bounded_deviation(iql, dataset.observations)
