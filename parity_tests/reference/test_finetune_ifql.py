"""IFQL, offline to online: six updates in each phase and a whole loop agree in float64; mistakes are caught.

The networks and the update come from the offline derivation. It uses bare arrays, which is why the last bits differ.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from corl_jax.finetune import ifql as jax_twin
from corl_torch.finetune import ifql
from parity_tests.engine.precision import both_in
from parity_tests.reference.common import ACTION_DIM, CPU, ROWS, STATE_DIM, UPDATES, assert_same_log, same_draws
from parity_tests.reference.finetune import ANTMAZE_ID
from parity_tests.reference.finetune_flows import assert_jax_sets_out_alike, assert_same_loop
from parity_tests.reference.test_fql import LOG, WEIGHTS
from parity_tests.reference.test_ifql import (
    SMALL,
    Reference,
    assert_both_sides,
    assert_same_ifql,
    assert_uniform_start,
    drawn,
    moved,
)
from shared.data.transitions import Batch
from shared.frameworks.torch_data import take
from shared.runs.configs import read_file

# The offline derivation has the default widths.
SETTINGS: dict[str, dict[str, Any]] = {
    "default": SMALL,
    "other": SMALL
    | {"iql_tau": 0.3, "n_action_samples": 3, "actor_ln": True, "critic_ln": False, "discount": 0.9, "tau": 0.1}
    | {"flow_steps": 4, "learning_rate": 1e-3},
}


class Derivation(Reference):
    """The textbook update, and the action of a step."""

    def act(self, states: Tensor) -> Tensor:
        """The actions (E, A) for states (E, S), each the best of the same n fresh draws of noise."""
        noise = torch.randn(self.c.n_action_samples, ACTION_DIM)
        return self.best(states, noise.expand(len(states), -1, -1))


@pytest.mark.parametrize(("settings", "bound"), [*zip(SETTINGS.values(), (1.0, 2.0), strict=True)], ids=SETTINGS)
def test_both_phases(dataset: Batch, settings: dict[str, Any], bound: float) -> None:
    """Weights, logs and actions agree within 1e-12, in six updates before the switch and six after it.

    Each online update draws from one more row.
    """
    with both_in("float64"):
        config = ifql.TrainConfig(device="cpu", **settings)
        dataset = Batch(*(column.double() for column in dataset))
        dataset = dataset._replace(actions=bound * dataset.actions)
        torch.manual_seed(7)
        trainer = ifql.create_trainer(config, STATE_DIM, ACTION_DIM, bound)
        moved(trainer, bound)
        reference, logs, expected, actions, others = Derivation(config, trainer, bound), [], [], [], []
        states, sizes = dataset.observations[:50], [ROWS - UPDATES + max(0, step) for step in range(-UPDATES, UPDATES)]
        same_draws()
        for step, size in enumerate(sizes):
            if step >= UPDATES:
                draw = ifql.draw_exploration(config, ACTION_DIM, CPU)
                actions.append(trainer.explore(states, draw._replace(action=draw.action.expand(len(states), -1, -1))))
            indices, noise = ifql.draw_noise(config, size, ACTION_DIM, CPU)
            logs.append(trainer.update(take(dataset, indices), noise))
        same_draws()
        for step, size in enumerate(sizes):
            if step >= UPDATES:
                others.append(reference.act(states))
            chosen = np.random.randint(0, size, size=config.batch_size)
            s, a, r, s2, d = (column[chosen] for column in dataset)
            expected.append(reference.update((s, a, r[:, None], s2, d[:, None]), drawn(config)))
        assert_same_log(logs, expected, LOG)
        assert_same_ifql(trainer, reference)
        torch.testing.assert_close(torch.cat(actions), torch.cat(others), rtol=0.0, atol=WEIGHTS)
        assert not any(action.requires_grad for action in actions)
        assert trainer.total_it == 2 * UPDATES
        acting = np.random.default_rng(3).standard_normal((ROWS, config.n_action_samples, ACTION_DIM))
        right = reference.best(dataset.observations, torch.tensor(acting))
        np.testing.assert_allclose(trainer.act(dataset.observations.numpy(), acting), right, rtol=0.0, atol=WEIGHTS)
        assert_both_sides(reference)


def test_a_tie_counts_as_a_gain() -> None:
    """An advantage of exactly 0 has the weight of a positive one."""
    trainer = ifql.create_trainer(ifql.TrainConfig(device="cpu", iql_tau=0.75), STATE_DIM, ACTION_DIM, 1.0)
    assert trainer.expectile_weight(torch.tensor([-1.0, 0.0, 1.0])).tolist() == [0.25, 0.75, 0.75]


def test_weights_start_uniform() -> None:
    """The same check as for the offline twin."""
    assert_uniform_start(ifql)


def test_what_an_evaluation_draws() -> None:
    """It draws standard normal numbers for each component of each sampled action."""
    found = ifql.draw_acting_noise(np.random.default_rng(3), ifql.TrainConfig(), ACTION_DIM)
    np.testing.assert_array_equal(found, np.random.default_rng(3).standard_normal((32, ACTION_DIM)))


# ---- the loop ------------------------------------------------------------------------------------------------------

LOOPS: dict[str, dict[str, Any]] = {
    # Locomotion's rewards stay unchanged.
    "default": {},
    "all that can be otherwise": SETTINGS["other"] | {"normalize": True, "eval_env": ANTMAZE_ID},
    "rewards as they are": {"normalize_reward": False, "eval_env": ANTMAZE_ID},
}


@pytest.mark.parametrize("settings", LOOPS.values(), ids=LOOPS)
def test_the_online_loop(settings: dict[str, Any], tmp_path: Path) -> None:
    """The buffer and batches equal the derivation's."""
    assert_same_loop(ifql, ifql.IFQL, Derivation, drawn, tmp_path, settings)


def test_the_jax_run_sets_out_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the same data, and stores the same experience."""
    assert_jax_sets_out_alike(jax_twin, tmp_path, monkeypatch)


def test_the_authors_names_are_understood(tmp_path: Path) -> None:
    """The names of their flags are understood."""
    text = "env_name: pen-cloned-v1\noffline_steps: 1000000\nonline_steps: 500000\nlr: 0.0003\nnum_samples: 128\n"
    text += "expectile: 0.7\neval_interval: 100000\neval_episodes: 50\nlayer_norm: true\nactor_layer_norm: false\n"
    text += "buffer_size: 2000000\nvalue_hidden_dims: [512, 512]\n"
    (tmp_path / "pen.yaml").write_text(text)
    config = read_file(ifql.TrainConfig, "finetune/ifql", tmp_path / "pen.yaml")
    assert (config.max_timesteps, config.offline_iterations, config.env) == (1_500_000, 1_000_000, "pen-cloned-v1")
    assert (config.eval_freq, config.n_episodes, config.critic_hidden_dims) == (100_000, 50, (512, 512))
    assert (config.n_action_samples, config.iql_tau) == (128, 0.7)
