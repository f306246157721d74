"""AWAC, offline to online: six updates in each phase and a whole loop are bitwise equal; mistakes are caught."""

from pathlib import Path
from typing import Any

import pytest
import torch

from corl_torch.finetune import awac
from parity_tests.reference.common import (
    ACTION_DIM,
    CPU,
    ROWS,
    STATE_DIM,
    UPDATES,
    assert_same_log,
    columns_of,
    same_draws,
)
from parity_tests.reference.finetune import CAPACITY, Lived, assert_same_life, derived, run_of, write_dataset
from parity_tests.reference.test_awac import (
    OTHER,
    ReferenceAWAC,
    assert_bounded_deviation,
    assert_same_awac,
    assert_same_start,
)
from shared.data.transitions import Batch
from shared.frameworks.torch_data import take
from shared.runs.configs import read_file

SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "weights at their cap": OTHER | {"advantage_temperature": 0.001, "tau": 0.1, "normalize_reward": True},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_both_phases(dataset: Batch, settings: dict[str, Any]) -> None:
    """Six updates before the switch and six after it, with an action drawn before each online update."""
    config = awac.TrainConfig(device="cpu", **settings)
    torch.manual_seed(7)
    trainer = awac.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    reference, logs, expected, actions, others = ReferenceAWAC(config, trainer), [], [], [], []
    state = dataset.observations[:1]
    same_draws()
    for step in range(2 * UPDATES):
        if step >= UPDATES:
            actions.append(trainer.explore(state, awac.draw_exploration(config, ACTION_DIM, CPU)))
        indices, noise = awac.draw_noise(config, ROWS, ACTION_DIM, CPU)
        logs.append(trainer.update(take(dataset, indices), noise))
    same_draws()
    for step in range(2 * UPDATES):
        if step >= UPDATES:
            others.append(reference.sample(state))
        expected.append(reference.update(*columns_of(dataset, config.batch_size)))
    assert_same_log(logs, expected)
    assert_same_awac(trainer, reference, dataset.observations)
    assert trainer.total_it == 2 * UPDATES
    assert all(torch.equal(mine, other) for mine, other in zip(actions, others, strict=True))
    assert (reference.at_cap > 0) == bool(settings)


def test_weights_start_where_the_seed_says() -> None:
    """The same check as for the offline twin."""
    assert_same_start(awac)


def test_the_deviation_is_bounded(dataset: Batch) -> None:
    """The same check as for the offline twin."""
    assert_bounded_deviation(awac, dataset.observations)


def lives(folder: Path, settings: dict[str, Any]) -> tuple[Lived, Lived]:
    """Short runs of the twin and the derivation, with twenty online steps that overwrite the ring."""
    raw = write_dataset(folder / "line.hdf5")
    config = awac.TrainConfig(
        env=str(folder / "line.hdf5"),
        runs_path=str(folder / "runs"),
        device="cpu",
        buffer_size=CAPACITY,
        offline_iterations=6,
        online_iterations=20,
        eval_freq=13,
        n_episodes=1,
        **settings | {"batch_size": 16},
    )
    ours, fresh, as_it_was = run_of(awac, awac.AWAC, config)
    reference = ReferenceAWAC(config, fresh)
    as_it_was()
    return ours, derived(config, raw, reference.sample, reference.update)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_the_online_loop(settings: dict[str, Any], tmp_path: Path) -> None:
    """The twin's replay buffer and batches equal the derivation's."""
    assert_same_life(*lives(tmp_path, settings))


def test_corls_file_loads(tmp_path: Path) -> None:
    """The settings keep CORL's names."""
    text = "env_name: pen-cloned-v1\ngamma: 0.9\neval_frequency: 5000\nn_test_episodes: 10\ntest_seed: 70\nseed: 42\n"
    text += "hidden_dim: 256\nlearning_rate: 0.0003\nawac_lambda: 0.1\ndeterministic_torch: false\ntau: 0.005\n"
    text += "offline_iterations: 1000000\nonline_iterations: 500000\nbatch_size: 256\nbuffer_size: 10000000\n"
    text += "checkpoints_path: null\nproject: CORL\ngroup: awac\ndevice: cuda\nnormalize_reward: false\n"
    (tmp_path / "pen.yaml").write_text(text)
    config = read_file(awac.TrainConfig, "finetune/awac", tmp_path / "pen.yaml")
    assert (config.max_timesteps, config.discount, config.eval_seed) == (1_500_000, 0.9, 70)
