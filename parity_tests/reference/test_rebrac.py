"""ReBRAC: six updates agree in float64. CORL's own file is in JAX, and so is this derivation, with bare arrays."""

from collections.abc import Callable
from functools import cache, partial
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from corl_jax import rebrac as jax_twin
from corl_torch import rebrac
from parity_tests.engine.interpreter import interpreted
from parity_tests.engine.precision import both_in
from parity_tests.reference.common import ACTION_DIM, CPU, ROWS, STATE_DIM, UPDATES, assert_same_log, same_draws
from shared.data.transitions import SarsaBatch
from shared.frameworks.torch_data import take, to_device

BATCH_SIZE = 64


def rows() -> SarsaBatch:
    """Rows of random numbers, a tenth of them terminal."""
    rng = np.random.default_rng(0)
    return SarsaBatch(
        observations=rng.normal(size=(ROWS, STATE_DIM)),
        actions=rng.uniform(-1, 1, (ROWS, ACTION_DIM)),
        rewards=rng.normal(size=ROWS),
        next_observations=rng.normal(size=(ROWS, STATE_DIM)),
        terminals=(rng.random(ROWS) < 0.1).astype(float),
        next_actions=rng.uniform(-1, 1, (ROWS, ACTION_DIM)),
    )


def arrays_of(network: nn.Sequential) -> list[dict[str, jax.Array]]:
    """The layers with weights in a torch network, with kernels (in, out)."""
    return [
        {
            "weight": jnp.asarray(layer.weight.detach().numpy().T.copy()),
            "bias": jnp.asarray(layer.bias.detach().numpy()),
        }
        for layer in network
        if isinstance(layer, nn.Linear | nn.LayerNorm)
    ]


def apply(layers: list[dict[str, jax.Array]], x: jax.Array) -> jax.Array:
    """Applies linear layers with ReLU, except after the last one, and LayerNorm if the next weight is a vector."""
    for layer in layers[:-1]:
        if layer["weight"].ndim == 2:
            x = jax.nn.relu(jnp.dot(x, layer["weight"]) + layer["bias"])
        else:
            mean = jnp.mean(x, -1, keepdims=True)
            variance = jnp.mean(x * x, -1, keepdims=True) - mean * mean
            x = (x - mean) / jnp.sqrt(variance + 1e-6) * layer["weight"] + layer["bias"]
    return jnp.dot(x, layers[-1]["weight"]) + layers[-1]["bias"]


def pi(actor: Any, s: jax.Array) -> jax.Array:
    """The policy."""
    return jnp.tanh(apply(actor, s))


def qs(ensemble: Any, s: jax.Array, a: jax.Array) -> jax.Array:
    """The critics' values, (2, B), from weights with a leading axis of 2."""
    return jax.vmap(apply, (0, None))(ensemble, jnp.hstack([s, a]))[:, :, 0]


def adam(parameters: Any, gradient: Any, moments: Any, lr: float) -> tuple[Any, Any]:
    """A step of Adam."""
    m, v, t = moments
    t += 1
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, gradient)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, gradient)

    def step(p: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
        return p - lr * (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8)

    return jax.tree.map(step, parameters, m, v), (m, v, t)


def polyak(target: Any, source: Any, tau: float) -> Any:
    """The target update."""
    return jax.tree.map(lambda t, s: tau * s + (1 - tau) * t, target, source)


class Held(NamedTuple):
    """The state that an update changes: networks, targets, and each optimiser's moments and step count."""

    actor: Any
    critic: Any
    actor_t: Any
    critic_t: Any
    moments: dict[str, tuple[Any, Any, int]]


def held_by(trainer: Any) -> Held:
    """The state of a fresh trainer."""
    actor, critics = arrays_of(trainer.actor.net), map(arrays_of, (trainer.critic.q1, trainer.critic.q2))
    critic = jax.tree.map(lambda *pair: jnp.stack(pair), *critics)
    zeros = [jax.tree.map(jnp.zeros_like, part) for part in (actor, critic)]
    moments = {name: (zero, zero, 0) for name, zero in zip(("actor", "critic"), zeros, strict=True)}
    return Held(actor, critic, actor, critic, moments)


@cache
def updating(c: Any, of_both: bool) -> Callable[..., tuple[Held, dict[str, Any]]]:
    """`updated`, traced once: JAX would compile its operations one by one."""
    return interpreted(partial(updated, c, of_both))


def updated(
    c: Any, of_both: bool, held: Held, rows: tuple, normal: Any, uniform: Any, betas: tuple
) -> tuple[Held, dict[str, Any]]:
    """The state after an update of the critics, or `of_both` critics and actor, and its log."""
    (s, a, r, s2, d, a2_data, *g), (beta_1, beta_2) = rows, betas
    a2 = jnp.clip(pi(held.actor_t, s2) + jnp.clip(c.policy_noise * normal, -c.noise_clip, c.noise_clip), -1, 1)
    q2 = qs(held.critic_t, s2, a2).min(0) - beta_2 * ((a2 - a2_data) ** 2).sum(-1)
    y = r + (1 - d) * c.discount * q2
    if g and c.use_calibration:
        y = jnp.where(y > g[0], y, g[0])

    def critic_loss(critic: Any) -> jax.Array:
        return ((qs(critic, s, a) - y[None]) ** 2).mean(1).sum(0)

    log: dict[str, Any] = {"q_min": qs(held.critic, s, a).min(0).mean()}
    log["critic_loss"], gradient = jax.value_and_grad(critic_loss)(held.critic)
    critic, moments = adam(held.critic, gradient, held.moments["critic"], c.critic_lr)
    held = held._replace(critic=critic, moments=held.moments | {"critic": moments})
    if not of_both:
        return held, log
    before = held.actor

    def actor_loss(actor: Any) -> jax.Array:
        q = qs(critic, s, pi(actor, s)).min(0)
        scale = jax.lax.stop_gradient(1 / jnp.abs(q).mean()) if c.normalize_q else 1
        return (beta_1 * ((pi(actor, s) - a) ** 2).sum(-1) - scale * q).mean()

    log["bc_mse_policy"] = ((pi(before, s) - a) ** 2).sum(-1).mean()
    log["bc_mse_random"] = ((uniform - a) ** 2).sum(-1).mean()
    log["action_mse"] = ((pi(before, s) - a) ** 2).mean()
    log["actor_loss"], gradient = jax.value_and_grad(actor_loss)(before)
    actor, moments = adam(before, gradient, held.moments["actor"], c.actor_lr)
    targets = {"actor_t": polyak(held.actor_t, before, c.tau), "critic_t": polyak(held.critic_t, critic, c.tau)}
    return held._replace(actor=actor, moments=held.moments | {"actor": moments}, **targets), log


def derived(c: rebrac.TrainConfig, held: Held, data: SarsaBatch) -> tuple[Held, list[dict[str, Any]]]:
    """The state after `UPDATES` updates, and the log of each."""
    logs = []
    for i in range(UPDATES):
        chosen = np.random.randint(0, ROWS, size=c.batch_size)
        rows = tuple(column[chosen] for column in data)
        normal = torch.randn(c.batch_size, ACTION_DIM).numpy()
        uniform = torch.empty(c.batch_size, ACTION_DIM).uniform_(-1, 1).numpy()
        update = updating(c, i % c.policy_freq == 0)
        held, log = update(held, rows, normal, uniform, (c.actor_bc_coef, c.critic_bc_coef))
        logs.append(log)
    return held, logs


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"policy_freq": 3, "normalize_q": False, "actor_bc_coef": 0.1, "critic_bc_coef": 0.01, "actor_ln": True}
        | {"critic_ln": False, "critic_n_hiddens": 1, "discount": 0.9, "tau": 0.1, "critic_lr": 3e-4},
    ],
    ids=["default", "other"],
)
def test_rebrac(settings: dict[str, Any]) -> None:
    """All weights and logs agree within 1e-12."""
    with both_in("float64"):
        config = rebrac.TrainConfig(device="cpu", batch_size=BATCH_SIZE, **settings)
        trainer, data = rebrac.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0), rows()
        for policy in (trainer.actor, trainer.actor_target) if settings else ():
            # Actions close to their bounds, so that smoothing exceeds them
            policy.net[-1].weight.data.mul_(200.0)
        held, dataset, logs = held_by(trainer), to_device(data, CPU), []
        same_draws()
        for _ in range(UPDATES):
            indices, noise = rebrac.draw_noise(config, ROWS, ACTION_DIM, CPU)
            logs.append(trainer.update(take(dataset, indices), noise))
        same_draws()
        held, expected = derived(config, held, data)
        assert_same_log(logs, expected, tolerance=1e-12)
        for key, part in (("actor", trainer.actor), ("actor_t", trainer.actor_target)):
            compare(arrays_of(part.net), getattr(held, key), key)
        for key, part in (("critic", trainer.critic), ("critic_t", trainer.critic_target)):
            both = jax.tree.map(lambda *pair: jnp.stack(pair), *map(arrays_of, (part.q1, part.q2)))
            compare(both, getattr(held, key), key)
        assert trainer.total_it == UPDATES
        acted = trainer.act(data.observations[:100])
        np.testing.assert_allclose(acted, pi(held.actor, data.observations[:100]), rtol=0.0, atol=1e-12)


def compare(ours: Any, reference: Any, name: str) -> None:
    """Compares two trees, leaf by leaf."""
    for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(reference), strict=True):
        assert np.abs(mine - other).max() <= 1e-12, f"{name}: {np.abs(mine - other).max():g} apart"


@pytest.mark.parametrize("side", ["torch", "jax"])
def test_weights_start_as_in_corl(side: str) -> None:
    """Both twins are checked."""
    assert_corls_start(rebrac, jax_twin, side)


def assert_corls_start(torch_twin: ModuleType, jax_twin: ModuleType, side: str) -> None:
    """Checks that hidden weights are uniform within 1 / sqrt(fan_in), biases 0.1, and last layers close to 0."""
    if side == "torch":
        config = torch_twin.TrainConfig(device="cpu", actor_ln=True)
        trainer = torch_twin.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
        parts = {"actor": trainer.actor.net, "q1": trainer.critic.q1, "q2": trainer.critic.q2}
        networks = {name: arrays_of(part) for name, part in parts.items()}
        assert not torch.equal(trainer.critic.q1[0].weight, trainer.critic.q2[0].weight)
    else:
        jax_config = jax_twin.TrainConfig(device="cpu", actor_ln=True)
        state = jax_twin.create_train_state(jax.random.key(0), jax_config, STATE_DIM, ACTION_DIM, 1.0)
        found = {"actor": state.actor.params["net"], **{q: state.critic.params[q] for q in ("q1", "q2")}}
        networks = {
            name: [
                {"weight": layer.get("kernel", layer.get("scale")), "bias": layer["bias"]}
                for _, layer in sorted(part.items(), key=lambda item: int(item[0].removeprefix("layers_")))
            ]
            for name, part in found.items()
        }
    for name, bound, first in (
        ("actor", 1e-3, STATE_DIM),
        ("q1", 3e-3, STATE_DIM + ACTION_DIM),
        ("q2", 3e-3, STATE_DIM + ACTION_DIM),
    ):
        *hidden, last = networks[name]
        assert [layer["weight"].shape for layer in hidden] == [(first, 256), (256,), *[(256, 256), (256,)] * 2]
        for linear, norm in zip(hidden[::2], hidden[1::2], strict=True):
            limit = linear["weight"].shape[0] ** -0.5
            assert 0.99 * limit < np.abs(linear["weight"]).max() <= limit
            np.testing.assert_array_equal(linear["bias"], np.float32(0.1))
            np.testing.assert_array_equal(norm["weight"], 1.0)
            np.testing.assert_array_equal(norm["bias"], 0.0)
        for values in last.values():
            assert np.abs(values).max() <= bound
        assert np.abs(last["weight"]).max() > 0.9 * bound
        assert last["bias"].any()
