"""Properties that need no reference: each would have caught a mistake that was once published.

Both twins of a pair could share a mistake, which the ladder would not notice. These tests check what an algorithm must
do in any framework. They check the JAX twin, to which the ladder ties the PyTorch twin. `mutants/test_mistakes.py`
tries
each property on planted mistakes.
"""

import dataclasses
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from parity_tests.engine.precision import both_in
from parity_tests.families import Family
from parity_tests.ladder.rungs import given_of, loss_of
from parity_tests.ladder.scene import Scene, cornered_rows
from parity_tests.pairs import PAIRS
from shared.frameworks import torch_data
from shared.frameworks.exchange import blank_state, part_names


def scene_of(name: str, twin: ModuleType, variant: str = "default") -> tuple[Any, Any, Any, Scene]:
    """A warm state of the JAX twin, a batch with terminals, noise, and the scene that they come from."""
    scene = Scene.create(PAIRS[name], twin, variant, "cornered")
    indices, noise = next(scene.draws())
    return scene.state(), scene.jax_batch(indices), scene.jax_noise(noise), scene


def flat(tree: Any) -> np.ndarray:
    """All numbers of a tree in one array."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def given_to(scene: Scene, batch: Any, noise: Any) -> dict[str, Any]:
    """The inputs of losses, by name."""
    extra = scene.pair.extra_inputs(np.random.default_rng(0), len(batch.actions))
    return given_of(scene.pair, batch, noise) | {name: jnp.asarray(value) for name, value in extra.items()}


def gradient_of(scene: Scene, state: Any, loss: str, given: Mapping[str, Any]) -> np.ndarray:
    """The gradient of a loss at these inputs."""
    loss_and_state = loss_of(state, loss, scene.pair.losses[loss].of)
    _, gradient = scene.run(*loss_and_state, *(given[x] for x in scene.pair.losses[loss].inputs))
    return flat(gradient)


def rewards_belong_to_their_rows(name: str, twin: ModuleType) -> None:
    """Assigning the rewards to other rows changes the critics' gradient; with (B, 1) against (B,) it would not."""
    state, batch, noise, scene = scene_of(name, twin)
    rolled = batch._replace(rewards=jnp.roll(batch.rewards, 1))
    loss = scene.pair.facts.rewarded
    here, there = (gradient_of(scene, state, loss, given_to(scene, each, noise)) for each in (batch, rolled))
    assert np.abs(here - there).max() > 1e-3 * np.abs(here).max()


def terminals_are_masked(name: str, twin: ModuleType) -> None:
    """The state after a terminal row does not affect its target; the state after any other row does."""
    state, batch, noise, scene = scene_of(name, twin)
    # A target belongs to one minibatch, if an update has several.
    terminals = given_to(scene, batch, noise)["batch"].terminals
    assert 0 < terminals.sum() < len(terminals)

    def target(**columns: jax.Array) -> jax.Array:
        given = given_to(scene, batch._replace(**columns), noise)
        # CQL also returns the next values. A distribution has several quantiles for each row.
        found = scene.run(type(state).td_target, state, *(given[x] for x in scene.pair.facts.target_inputs))
        return jax.tree.leaves(found)[0].reshape(len(terminals), -1)

    # ReBRAC's batch also contains the next actions.
    for column in [column for column in batch._fields if column.startswith("next_")]:
        changed = (target() != target(**{column: getattr(batch, column) + 0.5})).any(axis=1)
        np.testing.assert_array_equal(changed, terminals == 0.0)


def actor_does_more_than_imitate(name: str, twin: ModuleType) -> None:
    """The policy's gradient has another direction than behaviour cloning's."""
    state, batch, noise, scene = scene_of(name, twin)
    facts = scene.pair.facts
    state = state.replace(hp=dataclasses.replace(state.hp, **facts.sharp))
    given = given_to(scene, batch, noise)
    if "adv" in scene.pair.losses["actor_loss"].inputs:
        given["adv"] = state.value_loss(state.value, batch)[1]["adv"]
    ours = gradient_of(scene, state, "actor_loss", given)
    assert facts.imitation is not None
    cloning = flat(scene.run(jax.grad(facts.imitation), state.actor, batch))
    cosine = ours @ cloning / (np.linalg.norm(ours) * np.linalg.norm(cloning))
    assert abs(cosine) < 0.99


def targets_move_once_when_due(name: str, twin: ModuleType) -> None:
    """Each target takes one Polyak step in an update that moves it, and does not move in any other."""
    # If there is a target update period, use a variant in which targets do not move in some updates, but not one in
    # which CRR copies them. RLPD's targets move with each critic step, so an update must make just one
    suited = (
        variant
        for variant, settings in PAIRS[name].variants.items()
        if settings.get("critic_updates") == 1
        or (settings.get("target_update_period", 1) > 1 and settings.get("target_update_type") != "hard")
    )
    state, batch, noise, scene = scene_of(name, twin, next(suited, "default"))
    facts = scene.pair.facts
    tau = getattr(state.hp, facts.rate, 1.0)
    targets = [part for part in part_names(state) if part.endswith("_target")]
    assert targets
    for step in range(scene.updates + 1, scene.updates + 7):
        statics = PAIRS[name].update_statics(scene.config, step)
        due = all(value for name, value in statics.items() if name not in ("pretrains", "warms_up", "online", "copies"))
        after, _ = scene.run(type(state).update, state, batch, noise, *PAIRS[name].number(step), **statics)
        for target in targets:
            source = target.removesuffix("_target")
            followed = state if target in facts.lagging else after
            old, moved, new = (flat(getattr(s, x)) for s, x in ((state, target), (after, target), (followed, source)))
            expected = (1.0 - tau) * old + tau * new if due else old
            np.testing.assert_allclose(moved, expected, rtol=1e-12, atol=1e-15)
            assert np.array_equal(moved, old) != due
        state = after


def actor_steps_once_in_its_period(name: str, twin: ModuleType) -> None:
    """The actor learns in updates 2, 4, 6, ... or 1, 3, 5, ..., regardless of the interval's start and length."""
    _, _, _, scene = scene_of(name, twin)
    period = scene.config.policy_freq
    for start, num_updates in ((0, 1), (1, 1), (0, 5), (1, 4), (3, 8)):
        statics = PAIRS[name].interval_statics(scene.config, start, num_updates)
        state = scene.state()
        before = int(jax.tree.leaves(state.actor_optimizer)[0])
        key = jax.random.key(0)
        statics = {"num_updates": num_updates, **statics}
        after, _ = scene.run(twin.train_interval, state, key, scene.jax_dataset, start, **statics)
        first = scene.pair.facts.first_delayed or 0
        steps = sum((step - first) % period == 0 for step in range(start + 1, start + num_updates + 1))
        assert int(jax.tree.leaves(after.actor_optimizer)[0]) == before + steps


REWARDED = [name for name, pair in PAIRS.items() if pair.facts.rewarded]
# Each property with the pairs that it applies to
PROPERTIES: dict[Callable[[str, ModuleType], None], list[str]] = {
    rewards_belong_to_their_rows: REWARDED,
    terminals_are_masked: REWARDED,
    actor_does_more_than_imitate: [name for name, pair in PAIRS.items() if pair.facts.imitation],
    targets_move_once_when_due: REWARDED,
    actor_steps_once_in_its_period: [name for name, pair in PAIRS.items() if pair.facts.first_delayed],
}
BY_NAME = {check.__name__: check for check in PROPERTIES}


@pytest.mark.parametrize(
    ("check", "name"),
    [pytest.param(check, name, id=f"{check.__name__}-{name}") for check, names in PROPERTIES.items() for name in names],
)
def test_property_holds(check: Callable[[str, ModuleType], None], name: str) -> None:
    """The unchanged JAX twin has the property."""
    with both_in("float64"):
        check(name, PAIRS[name].jax)


def test_a_time_limit_is_no_terminal() -> None:
    """Rows that end in a true terminal are masked; rows cut by a time limit are left out."""
    rows = cornered_rows(1.0)
    rows["timeouts"] = rows["timeouts"] | (np.arange(len(rows["timeouts"])) % 11 == 10)
    rows["rewards"] = np.arange(len(rows["rewards"]), dtype=float)
    for name in REWARDED:
        dataset = PAIRS[name].load(rows)
        kept = dataset.rewards.astype(int)
        np.testing.assert_array_equal(dataset.terminals, rows["terminals"][kept])
        assert not rows["timeouts"][kept].any()
        # A model may not learn the state after a terminal if the file does not contain it.
        unknown = rows["terminals"].astype(bool) & (PAIRS[name].family is Family.MODEL)
        assert len(kept) == (~(rows["timeouts"] | unknown)[:-1]).sum()


# ---- learning rates ------------------------------------------------------------------------------------------------


def applied_rates(name: str, part: str, settings: dict[str, Any], steps: int) -> np.ndarray:
    """The learning rate that the JAX twin applies in each of its first updates.

    If the gradient is 1 everywhere, both of Adam's corrected moments are 1, so the step equals the learning rate.
    """
    twin = PAIRS[name].jax
    config = twin.TrainConfig(**PAIRS[name].variants["default"], **settings)
    state = blank_state(twin, config, 5, 2)
    rates = []
    for _ in range(steps):
        before = getattr(state, part)
        after = twin.gradient_step(state, part, jax.tree.map(jnp.ones_like, before))
        change = flat(before) - flat(getattr(after, part))
        assert np.ptp(change) <= 1e-12
        rates.append(change[0])
        state = after
    return np.array(rates) * (1.0 + 1e-8)


def test_iqls_policy_rate_follows_a_cosine() -> None:
    """Full at the first update, half at half time, 0 at the end, and rising again after it, as in PyTorch."""
    with both_in("float64"):
        rates = applied_rates("iql", "actor", {"max_timesteps": 20}, 31)
    np.testing.assert_allclose(rates, 3e-4 * (1 + np.cos(np.pi * np.arange(31) / 20)) / 2, rtol=1e-6, atol=1e-15)
    assert rates[[0, 1, 10, 20]] == pytest.approx([3e-4, 2.98153e-4, 1.5e-4, 0.0], rel=1e-5)
    assert rates[21] > rates[20]


def test_the_transformers_rate_warms_up_and_stays() -> None:
    """A tenth at the first of ten updates, full at the tenth and ever after; the rate does not decay."""
    twin = PAIRS["dt"].jax
    config = twin.TrainConfig(**PAIRS["dt"].variants["default"] | {"learning_rate": 1e-2, "warmup_steps": 10})
    with both_in("float64"):
        optimizer, weights = twin.adamw(config), {"weight": jnp.zeros(3)}
        moments, rates = optimizer.init(weights), []
        for _ in range(30):
            # Starting from 0 keeps weight decay out of the step.
            change, moments = optimizer.update({"weight": jnp.ones(3)}, moments, weights)
            rates.append(-float(change["weight"][0]) * (1.0 + 1e-8))
    assert rates[:2] + rates[8:11] + rates[-1:] == pytest.approx([1e-3, 2e-3, 9e-3, 1e-2, 1e-2, 1e-2], rel=1e-6)


@pytest.mark.parametrize(
    ("name", "part", "rate"),
    [
        *(("td3_bc", "actor", 3e-4), ("awac", "critic_1", 3e-4), ("iql", "value", 3e-4)),
        *(("rebrac", "actor", 1e-3), ("rebrac", "critic", 1e-3)),
    ],
)
def test_other_rates_are_constant(name: str, part: str, rate: float) -> None:
    """They are constant from the first update."""
    with both_in("float64"):
        assert applied_rates(name, part, {}, 5) == pytest.approx([rate] * 5, rel=1e-6)


@pytest.mark.parametrize("name", ["iql", "dt"])
def test_pytorch_applies_the_same_rates(name: str) -> None:
    """The PyTorch twin's optimiser steps with these rates, beyond the end of the warm-up or of the cosine."""
    settings = {"iql": {"max_timesteps": 20}, "dt": {"warmup_steps": 10}}[name]
    pair, part = PAIRS[name], {"iql": "actor", "dt": "model"}[name]
    config = pair.torch.TrainConfig(device="cpu", **dict(pair.variants["default"]) | {"batch_size": 4} | settings)
    columns = pair.load(cornered_rows(1.0))
    trainer = pair.torch.create_trainer(config, 11, 3, 1.0)
    dataset, rates = torch_data.to_device(columns, torch.device("cpu")), []
    optimizer = getattr(trainer, f"{part}_optimizer")
    optimizer.register_step_pre_hook(lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"]))
    draw = pair.torch_draws(config, columns, 3, torch.device("cpu"))
    for _ in range(25):
        indices, noise = draw()
        trainer.update(pair.take(pair.torch, dataset, indices, config), noise)
    expected = {
        "iql": lambda k: 3e-4 * (1 + np.cos(np.pi * k / 20)) / 2,
        "dt": lambda k: config.learning_rate * min((k + 1) / 10, 1.0),
    }
    np.testing.assert_allclose(rates, [expected[name](step) for step in range(25)], rtol=1e-9, atol=1e-15)


# ---- mistakes that the ladder cannot see ---------------------------------------------------------------------------


def test_returns_are_what_the_transformer_is_asked_for() -> None:
    """Assigning the returns-to-go to other rows changes the transformer's gradient."""
    state, batch, noise, scene = scene_of("dt", PAIRS["dt"].jax)
    rolled = batch._replace(returns=jnp.roll(batch.returns, 1, axis=0))
    here, there = (
        gradient_of(scene, state, "action_loss", {"batch": each, "noise": noise}) for each in (batch, rolled)
    )
    assert np.abs(here - there).max() > 1e-4 * np.abs(here).max()


def test_masks_drawn_from_a_key_differ_and_keep_the_mean() -> None:
    """The ladder passes masks in, but a run draws them from a key, each from its own."""
    iql = PAIRS["iql"].jax
    first, second = iql.dropout_masks(iql.Noise(jax.random.key(0)), iql.TrainConfig(actor_dropout=0.1))
    assert first.shape == second.shape == (256, 256)
    assert not np.array_equal(first, second)
    for mask in (first, second):
        assert set(np.unique(np.asarray(mask)).tolist()) == {0.0, float(np.float32(1 / 0.9))}
        assert float(mask.mean()) == pytest.approx(1.0, abs=0.01)
