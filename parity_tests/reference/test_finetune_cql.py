"""CQL, offline to online: six updates in each phase and a whole loop are bitwise equal; mistakes are caught.

An update is that of the offline derivation. The additions in CORL's file for this algorithm are derived here.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from corl_torch.finetune import cql
from parity_tests.reference.common import (
    ACTION_DIM,
    CPU,
    ROWS,
    STATE_DIM,
    UPDATES,
    assert_same_bits,
    assert_same_log,
    columns_of,
    mlp,
    same_draws,
)
from parity_tests.reference.finetune import (
    CAPACITY,
    Lived,
    assert_same_life,
    derived,
    run_of,
    write_dataset,
)
from parity_tests.reference.test_cql import ReferenceCQL, assert_bounded_deviation, assert_bounded_multiplier
from shared.data.transitions import Batch
from shared.frameworks.torch_data import take

SMALL = {"hidden_dim": 16, "batch_size": 16, "cql_n_actions": 3}
SETTINGS: dict[str, dict[str, Any]] = {
    "full size": {"cql_alpha_online": 2.0},
    "antmaze": SMALL
    | {"cql_lagrange": True, "cql_max_target_backup": True, "cql_target_action_gap": 0.8, "cql_clip_diff_min": -200.0}
    | {"critic_n_hiddens": 5, "cql_alpha": 5.0, "cql_alpha_online": 3.0}
    # Unlike CORL's row: the best action's log-probability in the target, and a learned and scaled temperature
    | {"backup_entropy": True, "alpha_multiplier": 0.6, "cql_temp": 0.7},
    "other": SMALL
    | {"cql_importance_sample": False, "cql_temp": 2.0, "backup_entropy": True, "bc_steps": 8}
    | {"target_update_period": 5, "orthogonal_init": False, "tune_temperature": False}
    | {"alpha_multiplier": 0.3, "cql_alpha_online": 0.5, "cql_clip_diff_max": 4.0},
}
# Everything that the loop itself can do differently
LOOP = SETTINGS["antmaze"] | {"normalize_reward": True, "reward_scale": 0.3, "reward_bias": -0.7}


def networks(config: Any) -> list[nn.Sequential]:
    """Both critics and the policy."""
    hidden = [config.hidden_dim] * config.critic_n_hiddens
    critics = [mlp(STATE_DIM + ACTION_DIM, *hidden, 1) for _ in range(2)]
    return [*critics, mlp(STATE_DIM, *[config.hidden_dim] * 3, 2 * ACTION_DIM)]


class TwoPhases(ReferenceCQL):
    """CORL's trainer, which overwrites the weight of the conservative term at the switch."""

    def __init__(self, config: Any, trainer: Any) -> None:
        super().__init__(config, trainer, networks(config))
        # Updates of this run, and all updates: CORL's loop counts the former, its trainer the latter.
        self.t, self.total_it = 0, trainer.earlier

    def next(self, s: Tensor, a: Tensor, r: Tensor, s2: Tensor, d: Tensor) -> dict[str, Any]:
        """The update of CORL's loop index t."""
        if self.t == self.c.offline_iterations:
            self.c = replace(self.c, cql_alpha=self.c.cql_alpha_online)
        self.t, self.total_it = self.t + 1, self.total_it + 1
        return self.update(self.total_it, s, a, r, s2, d)

    def act(self, state: Tensor) -> Tensor:
        """A sample of the policy."""
        with torch.no_grad():
            return self.policy(state)[0]

    def parts(self) -> dict[str, Any]:
        """The derivation's networks and temperatures by the twin's names."""
        networks = {"critic_1": self.q1, "critic_2": self.q2}
        networks |= {"critic_1_target": self.q1_t, "critic_2_target": self.q2_t}
        return networks | {"log_temperature": self.log_alpha, "log_alpha_prime": self.log_alpha_prime}


def both_phases(dataset: Batch, settings: dict[str, Any], earlier: int = 0) -> tuple[list, list, cql.CQL, TwoPhases]:
    """The logs of each side for six updates before the switch and six after it, and both final states.

    `earlier` is the number of updates made in an earlier run.
    """
    config = cql.TrainConfig(device="cpu", offline_iterations=UPDATES, online_iterations=UPDATES, **settings)
    trainer = cql.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    trainer.total_it, trainer.earlier = trainer.total_it + earlier, trainer.earlier + earlier
    reference, logs = TwoPhases(config, trainer), []
    same_draws()
    for step in range(1, 2 * UPDATES + 1):
        indices, noise = cql.draw_noise(config, ROWS, ACTION_DIM, CPU, earlier + step <= config.bc_steps)
        logs.append(trainer.update(take(dataset, indices), noise))
    same_draws()
    expected = [reference.next(*columns_of(dataset, config.batch_size)) for _ in range(2 * UPDATES)]
    return logs, expected, trainer, reference


EARLIER = {"other": 3}


@pytest.mark.parametrize("name", SETTINGS)
def test_both_phases(dataset: Batch, name: str) -> None:
    """All weights, both temperatures and all logs are equal."""
    logs, expected, trainer, reference = both_phases(dataset, SETTINGS[name], EARLIER.get(name, 0))
    assert_same_log(logs, expected)
    assert_same_bits(trainer, reference.parts())
    theirs = [*reference.base.parameters(), reference.multiplier, reference.offset]
    assert all(torch.equal(mine, other) for mine, other in zip(trainer.actor.parameters(), theirs, strict=True))


def assert_seeded_weights(twin: ModuleType, orthogonal: bool) -> None:
    """Checks the order critic 1, critic 2, policy; a network's layers become orthogonal after all are drawn."""
    torch.manual_seed(7)
    config = twin.TrainConfig(device="cpu", orthogonal_init=orthogonal, critic_n_hiddens=2)
    trainer = twin.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    torch.manual_seed(7)
    inputs = STATE_DIM + ACTION_DIM
    critic = [(inputs, 256), (256, 256), (256, 1)]
    networks = [critic, critic, [(STATE_DIM, 256), (256, 256), (256, 256), (256, 2 * ACTION_DIM)]]
    expected = []
    for sizes in networks:
        layers = [nn.Linear(*size) for size in sizes]
        for layer in layers if orthogonal else []:
            nn.init.orthogonal_(layer.weight, gain=math.sqrt(2.0))
            nn.init.constant_(layer.bias, 0.0)
        if not orthogonal:
            nn.init.xavier_uniform_(layers[-1].weight, gain=0.01)
        expected += layers
    built = [trainer.critic_1.network, trainer.critic_2.network, trainer.actor.base_network]
    ours = [layer for network in built for layer in network if isinstance(layer, nn.Linear)]
    for mine, other in zip(ours, expected, strict=True):
        assert torch.equal(mine.weight, other.weight)
        assert torch.equal(mine.bias, other.bias)
    assert (trainer.actor.log_std_multiplier.constant, trainer.actor.log_std_offset.constant) == (1.0, -1.0)


@pytest.mark.parametrize("orthogonal", [True, False])
def test_weights_start_where_the_seed_says(orthogonal: bool) -> None:
    """Both scalars of the policy are checked too."""
    assert_seeded_weights(cql, orthogonal)


def test_the_deviation_is_bounded(dataset: Batch) -> None:
    """The same check as for the offline twin."""
    assert_bounded_deviation(cql, dataset.observations)


def test_the_multiplier_is_bounded(dataset: Batch) -> None:
    """The same check as for the offline twin."""
    assert_bounded_multiplier(cql, dataset)


def assert_acts(twin: ModuleType, dataset: Batch) -> None:
    """Checks that it acts by the mean in evaluation and by a sample in training, within the largest action."""
    config = twin.TrainConfig(device="cpu", hidden_dim=16)
    trainer = twin.create_trainer(config, STATE_DIM, ACTION_DIM, 2.0)
    reference, states = TwoPhases(config, trainer), dataset.observations[:1]
    mean = torch.split(reference.base(states), ACTION_DIM, dim=-1)[0]
    assert torch.equal(torch.as_tensor(trainer.act(states.numpy())), 2.0 * torch.tanh(mean).detach())
    same_draws()
    ours = trainer.explore(states, twin.draw_exploration(config, ACTION_DIM, CPU))
    same_draws()
    assert torch.equal(ours, 2.0 * reference.act(states))


def test_the_policy_acts(dataset: Batch) -> None:
    """The largest action is not 1."""
    assert_acts(cql, dataset)


# ---- the loop ------------------------------------------------------------------------------------------------------


def life(folder: Path, settings: dict[str, Any]) -> tuple[Lived, Callable[[], Lived]]:
    """A short run of the twin, with twenty online steps that overwrite the ring, and a function for the derivation."""
    raw = write_dataset(folder / "line.hdf5")
    config = cql.TrainConfig(
        env=str(folder / "line.hdf5"),
        runs_path=str(folder / "runs"),
        device="cpu",
        buffer_size=CAPACITY,
        offline_iterations=6,
        online_iterations=20,
        eval_freq=13,
        n_episodes=1,
        **settings,
    )
    ours, fresh, as_it_was = run_of(cql, cql.CQL, config)

    def theirs() -> Lived:
        reference = TwoPhases(config, fresh)
        as_it_was()
        return derived(config, raw, reference.act, reference.next)

    return ours, theirs


@pytest.mark.parametrize("settings", [LOOP, SETTINGS["other"] | {"normalize": False}], ids=["antmaze", "other"])
def test_the_online_loop(settings: dict[str, Any], tmp_path: Path) -> None:
    """The twin's replay buffer and batches equal the derivation's."""
    ours, theirs = life(tmp_path, settings)
    assert_same_life(ours, theirs())
