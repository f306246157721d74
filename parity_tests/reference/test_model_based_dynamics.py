"""A dynamics ensemble as in OfflineRL-Kit (commit e3ce697): epochs, elites, weights, and steps of the model.

Here each member is a separate network, and nothing is batched over members. Therefore products round differently, and
are compared to 1e-12 in double precision. Everything computed with the same arithmetic is bitwise equal.
"""

import math
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from corl_torch.model_based import dynamics
from parity_tests.engine.precision import both_in
from parity_tests.reference.common import CPU, same_draws
from shared.data.dynamics import Draws, fit_scaler
from shared.data.transitions import Batch
from shared.envs.terminations import hopper
from shared.frameworks.torch_data import to_device

STATE_DIM, ACTION_DIM, EPOCHS = 5, 2, 5
SMALL: dict[str, Any] = {
    "hidden_dims": (24, 20),
    "dynamics_weight_decay": (1e-3, 2e-3, 5e-3),
    "n_ensemble": 4,
    "n_elites": 3,
    "batch_size": 64,
}
CASES: dict[str, dict[str, Any]] = {
    "a short last batch": {},
    "whole batches": {"holdout_ratio": 0.4, "batch_size": 60},
    "one batch, larger than the data": {"batch_size": 1000},
    "the reference's layers": {
        "hidden_dims": (24, 24, 24, 24),
        "dynamics_weight_decay": (2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4),
        "n_ensemble": 7,
        "n_elites": 5,
    },
    "other coefficients": {"logvar_loss_coef": 0.3, "learning_rate": 1e-2, "holdout_ratio": 0.1},
}
of_each_case = pytest.mark.parametrize("settings", CASES.values(), ids=CASES)


def made_up(rows: int = 400) -> Batch:
    """Transitions that can be learned: a damped drift that depends on actions, with noise in the reward."""
    rng = np.random.default_rng(1)
    states, actions = rng.normal(size=(rows, STATE_DIM)), rng.uniform(-1.0, 1.0, size=(rows, ACTION_DIM))
    moved = 0.9 * states + 0.3 * np.tanh(actions[:, :1]) * states[:, ::-1]
    rewards = states[:, 0] - np.square(actions).sum(axis=1) + 0.1 * rng.normal(size=rows)
    columns = states, actions, rewards, moved, np.zeros(rows)
    return Batch(*(column.astype(np.float32) for column in columns))


class Trained(NamedTuple):
    """The results of the derivation's training."""

    batches: list[list[np.ndarray]]
    train_losses: list[float]
    holdout_losses: list[np.ndarray]
    waited: list[int]
    best: list[list[tuple[Tensor, Tensor]]]
    bounds: tuple[Tensor, Tensor]
    elites: list[int]
    mean: np.ndarray
    std: np.ndarray


class Members:
    """The members of an ensemble as separate networks, drawn layer by layer for all members."""

    def __init__(self, config: Any) -> None:
        sizes = [STATE_DIM + ACTION_DIM, *config.hidden_dims, 2 * (STATE_DIM + 1)]
        drawn = []
        for inputs, outputs in pairwise(sizes):
            weight = torch.empty(config.n_ensemble, inputs, outputs)
            drawn.append(torch.nn.init.trunc_normal_(weight, 0.0, 1 / (2 * math.sqrt(inputs)), -2.0, 2.0))
        self.layers = [
            [(w[e].clone().requires_grad_(), torch.zeros(w.shape[2]).requires_grad_()) for w in drawn]
            for e in range(config.n_ensemble)
        ]
        self.high = torch.full((STATE_DIM + 1,), 0.5).requires_grad_()
        self.low = torch.full((STATE_DIM + 1,), -10.0).requires_grad_()

    def parameters(self) -> list[Tensor]:
        """All networks."""
        return [p for member in self.layers for layer in member for p in layer] + [self.high, self.low]

    def __call__(self, member: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """One member's mean and log-variance for some rows."""
        *hidden, (last, shift) = self.layers[member]
        for weight, bias in hidden:
            x = x @ weight + bias
            x = x / (1 + torch.exp(-x))
        out = x @ last + shift
        mean, log_var = out[:, : STATE_DIM + 1], out[:, STATE_DIM + 1 :]
        log_var = self.high - torch.log1p(torch.exp(self.high - log_var))
        return mean, self.low + torch.log1p(torch.exp(log_var - self.low))


def trained(config: Any, dataset: Batch, epochs: int, patience: int = 10**6) -> tuple[Trained, Members]:
    """A whole training run as in the reference's code, starting from the current generator states."""
    members = Members(config)
    number = len(dataset.rewards)
    held = min(int(number * config.holdout_ratio), 1000)
    order = torch.randperm(number).numpy()
    rows, holdout = order[: number - held], order[number - held :]
    x = np.concatenate([dataset.observations, dataset.actions], axis=1)
    mean, std = x[rows].mean(axis=0), x[rows].std(axis=0)
    s, _, r, s2, _ = (column.astype(np.float64) for column in dataset)
    y = np.concatenate([s2 - s, r[:, None]], axis=1)
    inputs, wanted = (torch.as_tensor(part) for part in ((x.astype(np.float64) - mean) / std, y))
    matrix = np.random.randint(0, len(rows), size=(config.n_ensemble, len(rows)))
    adam = torch.optim.Adam(members.parameters(), lr=config.learning_rate)
    best, waiting = [1e10] * config.n_ensemble, 0
    saved: list[Any] = [None] * config.n_ensemble
    batches, train_losses, holdout_losses, waited = [], [], [], []
    for _ in range(epochs):
        seen, losses = [], []
        for first in range(0, len(rows), config.batch_size):
            columns = matrix[:, first : first + config.batch_size]
            seen.append(rows[columns])
            loss = torch.zeros(())
            for e in range(config.n_ensemble):
                m, v = members(e, inputs[rows[columns[e]]])
                error = (m - wanted[rows[columns[e]]]) ** 2
                loss = loss + (error / torch.exp(v)).mean() + v.mean()
                for decay, (weight, _) in zip(config.dynamics_weight_decay, members.layers[e], strict=True):
                    loss = loss + decay / 2 * (weight**2).sum()
            loss = loss + config.logvar_loss_coef * (members.high - members.low).sum()
            adam.zero_grad()
            loss.backward()
            adam.step()
            losses.append(loss.item())
        with torch.no_grad():
            off = [((members(e, inputs[holdout])[0] - wanted[holdout]) ** 2).mean().item() for e in range(len(best))]
        places = np.argsort(np.random.uniform(size=matrix.shape), axis=1)
        matrix = np.stack([row[place] for row, place in zip(matrix, places, strict=True)])
        improved = [(old - new) / old > 0.01 for old, new in zip(best, off, strict=True)]
        for e in (member for member, better in enumerate(improved) if better):
            best[e] = off[e]
            saved[e] = [(w.detach().clone(), b.detach().clone()) for w, b in members.layers[e]]
        waiting = 0 if any(improved) else waiting + 1
        batches.append(seen)
        train_losses.append(float(np.mean(losses)))
        holdout_losses.append(np.array(off))
        waited.append(waiting)
        if waiting >= patience:
            break
    elites = sorted(range(len(best)), key=best.__getitem__)[: config.n_elites]
    bounds = members.high.detach(), members.low.detach()
    return Trained(batches, train_losses, holdout_losses, waited, saved, bounds, elites, mean, std), members


def twin_trained(config: Any, dataset: Batch, epochs: int) -> tuple[Any, list[Any], list[dict[str, Tensor]]]:
    """The twin's training from the current generator states until it has converged: trainer, epochs and logs."""
    trainer = dynamics.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    split = dynamics.draw_split(config, len(dataset.rewards))
    for statistic, column in zip((trainer.mean, trainer.std), fit_scaler(dataset, split.training), strict=True):
        statistic.copy_(torch.as_tensor(column))
    shuffle = dynamics.Shuffle(len(split.training))
    parts = dynamics.in_parts(to_device(dataset, CPU), split)
    taken, logs = [], []
    for _ in range(epochs):
        order, noise = dynamics.draw_noise(config, shuffle, CPU)
        taken.append(dynamics.take_epoch(parts, order))
        logs.append(trainer.update(taken[-1], noise))
        if trainer.converged:
            break
    return trainer, taken, logs


def both(settings: dict[str, Any], epochs: int) -> tuple[Any, list[Any], list[dict[str, Tensor]], Trained, Any]:
    """Both trainings, from one seed."""
    config = dynamics.TrainConfig(device="cpu", **{"max_epochs_since_update": 1000} | SMALL | settings)
    same_draws()
    trainer, taken, logs = twin_trained(config, made_up(), epochs)
    same_draws()
    reference, members = trained(config, made_up(), epochs, config.max_epochs_since_update)
    return trainer, taken, logs, reference, members


def near(found: Any, expected: Any) -> bool:
    """Whether two arrays agree within 1e-12, relative to the largest entry."""
    found, expected = (np.asarray(x.detach() if isinstance(x, Tensor) else x) for x in (found, expected))
    return np.abs(found - expected).max() <= 1e-12 * max(1.0, np.abs(expected).max())


@of_each_case
def test_five_epochs(settings: dict[str, Any]) -> None:
    """All members' batches in order, losses, elites and best weights are equal."""
    with both_in("float64"):
        trainer, taken, logs, reference, _ = both(settings, EPOCHS)
        size = trainer.hp.batch_size
        for epoch, batches in zip(taken, reference.batches, strict=True):
            for columns, expected in zip(epoch.indices.split(size, dim=1), batches, strict=True):
                assert np.array_equal(columns.numpy(), expected)
        for log, loss, off in zip(logs, reference.train_losses, reference.holdout_losses, strict=True):
            members = [log[f"holdout_loss_{e}"] for e in range(len(off))]
            assert near(log["train_loss"], loss)
            assert near(torch.stack(members), off)
            assert near(log["holdout_loss"], np.sort(off)[: trainer.hp.n_elites].mean())
        model = trainer.model(hopper)
        assert model.elites.tolist() == reference.elites
        assert near(trainer.mean, reference.mean.astype(np.float64))
        layers = [*model.dynamics.backbones, model.dynamics.output_layer]
        for e, member in enumerate(reference.best):
            for layer, (weight, bias) in zip(layers, member, strict=True):
                assert near(layer.weight[e], weight)
                assert near(layer.bias[e, 0], bias)
        assert near(model.dynamics.max_logvar, reference.bounds[0])
        assert near(model.dynamics.min_logvar, reference.bounds[1])
        assert trainer.total_it == EPOCHS
        constants = *trainer.best_dynamics.parameters(), logs[-1]["holdout_loss"], logs[-1]["train_loss"]
        assert not any(value.requires_grad for value in constants)


def test_an_improvement_is_more_than_one_per_cent() -> None:
    """A member whose error falls by exactly one per cent has not improved."""
    with both_in("float64"):
        trainer = dynamics.create_trainer(dynamics.TrainConfig(device="cpu", **SMALL), STATE_DIM, ACTION_DIM, 1.0)
        trainer.best_loss.fill_(100.0)
        trainer.keep_best(torch.tensor([99.0, 101.0, 98.9, 99.1]))
        assert trainer.best_loss.tolist() == [100.0, 100.0, 98.9, 100.0]
        trainer.keep_best(torch.tensor([99.0, 101.0, 98.9, 99.1]))
        assert int(trainer.epochs_since_update) == 1


def test_the_best_weights_are_not_always_the_last() -> None:
    """A large step makes some members worse: their best and current weights differ, except for the bounds."""
    with both_in("float64"):
        trainer, _, logs, reference, _ = both({"learning_rate": 0.1, "logvar_loss_coef": 1.0}, 15)
        layer, best = trainer.dynamics.output_layer, trainer.best_dynamics.output_layer
        same = [torch.equal(layer.weight[e], best.weight[e]) for e in range(4)]
        assert any(same)
        assert not all(same)
        assert torch.equal(trainer.dynamics.max_logvar, trainer.best_dynamics.max_logvar)
        assert trainer.model(hopper).elites.tolist() == reference.elites
        last = np.argsort([float(logs[-1][f"holdout_loss_{e}"]) for e in range(4)], kind="stable")[:3].tolist()
        assert last != reference.elites


def test_a_saved_trainer_goes_on(tmp_path: Path) -> None:
    """A fresh trainer has neutral statistics and no waiting epochs; after loading a saved one, both learn the same."""
    with both_in("float64"):
        trainer, taken, *_ = both({"learning_rate": 0.02}, 3)
        dynamics.save(trainer, tmp_path / "saved.pt", note=5)
        fresh = dynamics.create_trainer(trainer.hp, STATE_DIM, ACTION_DIM, 1.0)
        assert (fresh.mean.unique().tolist(), fresh.std.unique().tolist()) == ([0.0], [1.0])
        assert (int(fresh.epochs_since_update), fresh.epochs_since_update.dtype) == (0, torch.int64)
        assert fresh.best_loss.unique().tolist() == [1e10]
        assert not any(weight.requires_grad for weight in fresh.best_dynamics.parameters())
        assert dynamics.load(fresh, str(tmp_path / "saved.pt"))["note"] == 5
        assert fresh.total_it == trainer.total_it == 3
        logs = [each.update(taken[0], dynamics.Noise()) for each in (trainer, fresh)]
        assert logs[0] == logs[1]
        saved = [
            (each.best_loss, each.epochs_since_update, *each.best_dynamics.parameters()) for each in (trainer, fresh)
        ]
        assert all(torch.equal(a, b) for a, b in zip(*saved, strict=True))


def test_a_saved_model_predicts(tmp_path: Path) -> None:
    """It predicts from NumPy arrays as the trainer's own model does, with the settings and sizes in its file."""
    with both_in("float64"):
        trainer, *_ = both({"learning_rate": 0.02}, 2)
        environment = {"id": "Hopper-v5", "state_dim": STATE_DIM, "action_dim": ACTION_DIM, "max_action": 1.0}
        dynamics.save(trainer, tmp_path / "model.pt", settings=asdict(trainer.hp), environment=environment)
        model = dynamics.load_dynamics(tmp_path / "model.pt", device="cpu")
        rng = np.random.default_rng(2)
        states, actions = rng.normal(size=(50, STATE_DIM)), rng.normal(size=(50, ACTION_DIM))
        draws = rng.normal(size=(4, 50, STATE_DIM + 1)), rng.integers(3, size=50)
        found = dynamics.predict(model, trainer.hp, states, actions, *draws)
        given = (torch.as_tensor(column, dtype=torch.float64) for column in (states, actions))
        hp = trainer.hp
        expected = trainer.model(hopper).step(
            *given, Draws(*map(torch.as_tensor, draws)), hp.penalty_coef, hp.uncertainty_mode
        )
        for ours, theirs in zip(found, expected, strict=True):
            assert isinstance(ours, np.ndarray)
            assert not theirs.requires_grad
            assert np.array_equal(ours, theirs.numpy())


@pytest.mark.parametrize("patience", [1, 3])
def test_training_ends_when_no_member_improves(patience: int) -> None:
    """It ends after the same number of epochs as the derivation, which counts them the same way."""
    with both_in("float64"):
        settings = {"max_epochs_since_update": patience, "learning_rate": 0.02}
        trainer, taken, _, reference, _ = both(settings, 300)
        assert trainer.converged
        assert len(taken) == len(reference.waited) < 300
        assert int(trainer.epochs_since_update) == reference.waited[-1] == patience
        assert trainer.model(hopper).elites.tolist() == reference.elites


@of_each_case
def test_weights_start_where_the_seed_says(settings: dict[str, Any]) -> None:
    """Weights are bitwise equal, layer by layer, and nothing else is drawn."""
    config = dynamics.TrainConfig(device="cpu", **SMALL | settings)
    same_draws()
    trainer = dynamics.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    after = torch.rand(1)
    same_draws()
    members = Members(config)
    assert torch.equal(after, torch.rand(1))
    for number, layer in enumerate([*trainer.dynamics.backbones, trainer.dynamics.output_layer]):
        for e in range(config.n_ensemble):
            assert torch.equal(layer.weight[e], members.layers[e][number][0])
            assert not layer.bias[e].any()


def test_a_thousand_rows_are_held_out_at_most() -> None:
    """Of 6001 rows 1000 are held out, and of 400 a fifth; the bootstrap is drawn from the others."""
    config = dynamics.TrainConfig(device="cpu")
    for rows, expected in ((6001, 1000), (400, 80), (402, 80)):
        same_draws()
        split = dynamics.draw_split(config, rows)
        same_draws()
        order = torch.randperm(rows).numpy()
        assert len(split.holdout) == expected
        assert np.array_equal(np.concatenate([split.training, split.holdout]), order)
        assert np.array_equal(split.bootstrap, np.random.randint(0, rows - expected, size=(7, rows - expected)))


def fallen(state: np.ndarray) -> bool:
    """Whether Hopper's episode ends in a state, as in the reference's code."""
    upright = state[0] > 0.7 and abs(state[1]) < 0.2
    return not (np.isfinite(state).all() and all(s < 100 for s in state[1:]) and upright)


@pytest.mark.parametrize("coef", [0.0, 1.5])
@pytest.mark.parametrize("mode", ["aleatoric", "pairwise-diff", "ensemble_std"])
def test_a_step_of_the_model(mode: str, coef: float) -> None:
    """Each row has its drawn elite's sample, the right termination, and the penalty of the mode."""
    with both_in("float64"):
        trainer, _, _, reference, members = both({"learning_rate": 0.02}, 4)
        for e, member in enumerate(reference.best):
            members.layers[e] = member
        rng = np.random.default_rng(2)
        states, actions = rng.normal(size=(50, STATE_DIM)), rng.normal(size=(50, ACTION_DIM))
        states[:, 0] = rng.uniform(0.5, 1.5, size=50)
        states[:, 1] *= 0.2
        states[::9, 2] = 200.0
        states[1::9, 2] = -200.0
        draws = Draws(rng.normal(size=(4, 50, STATE_DIM + 1)), rng.integers(3, size=50))
        given = (torch.as_tensor(column) for column in (states, actions))
        found = trainer.model(hopper).step(*given, Draws(*map(torch.as_tensor, draws)), coef, mode)
        with torch.no_grad():
            x = torch.as_tensor((np.concatenate([states, actions], axis=1) - reference.mean) / reference.std)
            predicted = [members(e, x) for e in range(4)]
        means = np.stack([mean.numpy() for mean, _ in predicted])
        means[:, :, :-1] += states
        stds = np.stack([np.sqrt(np.exp(log_var.numpy())) for _, log_var in predicted])
        for row in range(50):
            e = reference.elites[draws.chosen[row]]
            sample = means[e, row] + draws.normals[e, row] * stds[e, row]
            centre = means[:, row, :-1].mean(axis=0)
            apart = [np.linalg.norm(means[i, row, :-1] - centre) for i in range(4)]
            penalties: dict[str, float] = {
                "aleatoric": max(float(np.linalg.norm(stds[i, row])) for i in range(4)),
                "pairwise-diff": float(max(apart)),
                "ensemble_std": math.sqrt(np.mean([means[:, row, j].var() for j in range(STATE_DIM)])),
            }
            penalty = penalties[mode]
            assert near(found.next_observations[row], sample[:-1])
            assert near(found.raw_rewards[row], sample[-1])
            assert near(found.rewards[row], sample[-1] - coef * penalty)
            assert bool(found.terminals[row]) == fallen(sample[:-1])
            assert near(found.penalties[row], penalty if coef else 0.0)
        assert 0 < int(found.terminals.sum()) < 50
