"""IFQL, offline to online: six updates in each phase and a whole loop agree in float64; mistakes are caught.

The networks and the update come from the offline derivation. It uses bare arrays, which is why the last bits differ.
"""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor

from corl_jax.finetune import ifql as jax_twin
from corl_torch.finetune import ifql
from parity_tests.engine.precision import both_in
from parity_tests.reference.common import ACTION_DIM, CPU, ROWS, STATE_DIM, UPDATES, assert_same_log, same_draws
from parity_tests.reference.finetune import (
    ANTMAZE_ID,
    CAPACITY,
    TABLE,
    Line,
    Lived,
    assert_close_life,
    derived,
    run_of,
    write_dataset,
)
from parity_tests.reference.test_fql import LOG, WEIGHTS, StopError
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
from shared.envs import families
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


def settings_of(twin: ModuleType, folder: Path, settings: dict[str, Any]) -> tuple[Any, dict[str, np.ndarray]]:
    """Settings for a short run with twenty online steps, and the dataset to learn from, except for rewards."""
    raw = write_dataset(folder / "line.hdf5")
    # Some of the data's actions reach their bounds.
    reaching = np.clip(1.5 * raw["actions"], -1.0, 1.0)
    with h5py.File(folder / "line.hdf5", "a") as file:
        file["actions"][...] = reaching
    sizes = {"actor_hidden_dims": (20,), "critic_hidden_dims": (30,), "batch_size": 16}
    config = twin.TrainConfig(
        env=str(folder / "line.hdf5"),
        runs_path=str(folder / "runs"),
        device="cpu",
        buffer_size=CAPACITY,
        offline_iterations=6,
        online_iterations=20,
        eval_freq=13,
        n_episodes=1,
        **settings | sizes,
    )
    cut = np.where(np.abs(reaching) > 1 - 1e-5, np.sign(reaching) * np.float32(1 - 1e-5), reaching)
    return config, raw | {"actions": cut}


def life(folder: Path, settings: dict[str, Any]) -> tuple[Lived, Callable[[], Lived]]:
    """A run of the twin that overwrites the ring, and a function that runs the derivation."""
    config, raw = settings_of(ifql, folder, settings)
    with both_in("float64"):
        ours, fresh, as_it_was = run_of(ifql, ifql.IFQL, config)

    def theirs() -> Lived:
        with both_in("float64"):
            as_it_was()
            reference = Derivation(config, fresh, 1.0)

            def update(*rows: Tensor) -> None:
                reference.update(tuple(column.double() for column in rows), drawn(config))

            added = -1.0 if config.normalize_reward and config.eval_env else 0.0
            return derived(config, raw, lambda state: reference.act(state.double()).float(), update, added)

    return ours, theirs


@pytest.mark.parametrize("settings", LOOPS.values(), ids=LOOPS)
def test_the_online_loop(settings: dict[str, Any], tmp_path: Path) -> None:
    """The buffer and batches equal the derivation's; actions of steps may be on their bound, the data's never are."""
    ours, theirs = life(tmp_path, settings)
    assert_close_life(ours, theirs())
    reached = np.abs(ours.ring[1]).max(axis=1) == 1.0
    assert reached.any()
    assert not reached[20 - (CAPACITY - 60) : 60].any()


def test_the_jax_run_sets_out_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the data's actions are clipped; 1 is subtracted from AntMaze's rewards in the data and online."""
    found: list[Any] = []

    def stop(run: Any, config: Any, experience: Any, *given: Any) -> None:
        found.append(experience)
        raise StopError

    config, raw = settings_of(jax_twin, tmp_path, {"eval_env": ANTMAZE_ID})
    monkeypatch.setattr(jax_twin, "create_train_state", lambda *given: None)
    monkeypatch.setattr(jax_twin, "to_device", found.append)
    monkeypatch.setattr(jax_twin, "Online", stop)
    monkeypatch.setattr(families, "TABLE", TABLE)
    with pytest.raises(StopError):
        jax_twin.train(config)
    data, experience = found
    np.testing.assert_array_equal(data.actions, raw["actions"][:-1])
    np.testing.assert_array_equal(data.rewards, raw["rewards"][:-1] - np.float32(1.0))
    action, env = np.ones(ACTION_DIM, np.float32), Line()
    env.reset()
    experience.step(action)
    np.testing.assert_array_equal(experience.last().actions, action[None])
    np.testing.assert_array_equal(experience.last().rewards, np.float32(env.step(action)[1] - 1.0))


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
