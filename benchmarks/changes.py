"""Tricks, as changes to the default code: patterns in a JAX twin's syntax with their replacements, or XLA flags.

`tests/benchmarks/test_tricks.py` checks that each gives the same updates; `python -m benchmarks.tricks` measures its
gain. `parity_tests/mutants/patterns.py` describes the syntax of patterns.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from benchmarks.subjects import Subject
from parity_tests.mutants.patterns import edit
from parity_tests.mutants.planting import planted
from parity_tests.pair import Pair
from parity_tests.pairs import PAIRS
from shared.frameworks.jax_products import NONE_FOR_YNNPACK


class Change(NamedTuple):
    """A pattern in a function of the twin (or anywhere, if the function is empty), and its replacement."""

    function: str
    pattern: str
    replacement: str


@dataclass(frozen=True)
class Trick:
    """A change to the default code.

    Attributes:
        of: The algorithm.
        changes: Changes to its JAX twin, applied in order.
        flags: Flags for XLA.
    """

    of: str
    changes: Sequence[Change] = ()
    flags: str = ""


_YNNPACK = [Change("", "EigenProgram", "jax.jit")]
_EIGEN = " ".join(f"--{option}={value}" for option, value in NONE_FOR_YNNPACK.items())
TRICKS = {
    "lax.cond decides whether an update is delayed": Trick("td3_bc", [Change(
        "train_interval",
        """
        _delayed = (phase + _i + 1) % _hp.policy_freq == 0
        _state, _metrics = _state.update(take(dataset, _indices), _noise, _delayed)
        """,
        """
        _delayed = (start + _i + 1) % _hp.policy_freq == 0
        batch = take(dataset, _indices)
        def early(state):
            state, metrics = state.update(batch, _noise, False)
            return state, metrics | {"actor_loss": jnp.nan}
        _state, _metrics = jax.lax.cond(_delayed, lambda state: state.update(batch, _noise, True), early, _state)
        """,
    )]),
    "indices and noise drawn in the loop": Trick("td3_bc", [
        Change("train_interval", "jax.vmap(_draw)(_steps)", "(_steps,)"),
        Change(
            "train_interval",
            "jax.tree.map(itemgetter(_i), _draws)",
            "draw_noise(key, _draws[0][_i], state.hp, len(dataset), state.actor.module.action_dim)",
        ),
    ]),
    "a gather for each column": Trick("td3_bc", [
        Change("train_interval", "take(dataset, _indices)", "jax.tree.map(itemgetter(_indices), columns)"),
        Change(
            "train_interval",
            "_steps = start + jnp.arange(num_updates)",
            "columns = take(dataset, jnp.arange(len(dataset)))\n_steps = start + jnp.arange(num_updates)",
        ),
    ]),
    "a metric told to the host at each update": Trick("td3_bc", [Change(
        "train_interval",
        "_history.append(_metrics)",
        '(jax.debug.callback(lambda loss: None, _metrics["critic_loss"]), _history.append(_metrics))',
    )]),
    "averages at the end of the same program": Trick("td3_bc", [
        Change("train_interval", "[*_history, *_rest]", "[mean_metrics([*_history, *_rest])]"),
        Change("", "_adam = optax.adam(_rate)",
               "from shared.frameworks.jax_side import mean_metrics\n_adam = optax.adam(_rate)"),
    ]),
    "a state that is not donated": Trick("td3_bc", [
        Change("", 'partial(jax.jit, static_argnames=_names, donate_argnames="state")',
               "partial(jax.jit, static_argnames=_names)"),
    ]),
    "one turn of the loop for each period": Trick("td3_bc", [
        Change("train_interval", "jax.lax.scan(_block, _state, _draws, unroll=2)",
               "jax.lax.scan(_block, _state, _draws)"),
    ]),
    "batches of three axes": Trick("cql", [Change(
        "Critic",
        "self.network(_inputs.reshape(-1, _inputs.shape[-1])).reshape(_shape)",
        "self.network(_inputs).reshape(_shape)",
    )]),
    "BCQ's products by YNNPACK": Trick("bcq", _YNNPACK),
    "CQL's products by YNNPACK": Trick("cql", _YNNPACK),
    "EDAC's products by YNNPACK": Trick("edac", _YNNPACK),
    "SAC-N's products by YNNPACK": Trick("sac_n", _YNNPACK),
    "a dynamics ensemble's products by YNNPACK": Trick("model_based/dynamics", _YNNPACK),
    "Adam over one flat vector": Trick("td3_bc", [Change("", "optax.adam(_rate)", "optax.flatten(optax.adam(_rate))")]),
    "both critics stacked": Trick("td3_bc", [
        Change(
            "TD3_BC.critic_loss",
            "_q1 = _one(_states, _actions)\n_q2 = _two(_states, _actions)",
            "_q1, _q2 = both((_one, _two), _states, _actions)",
        ),
        Change(
            "TD3_BC.td_target",
            "minimum(_one(_states, _actions), _two(_states, _actions))",
            "minimum(*both((_one, _two), _states, _actions))",
        ),
        Change(
            "",
            "_adam = optax.adam(_rate)",
            """
            def both(critics, *inputs):
                return jax.vmap(lambda critic: critic(*inputs))(jax.tree.map(lambda *w: jnp.stack(w), *critics))
            _adam = optax.adam(_rate)
            """,
        ),
    ]),
    "a first layer for states and one for actions": Trick("cql", [Change(
        "Critic",
        "if actions.ndim == 3:\n    _many = _repeated",
        """
        if not self.is_initializing():
            first, *rest = self.network.layers
            kernel, bias = first.variables["params"]["kernel"], first.variables["params"]["bias"]
            of_states, of_actions = jnp.split(kernel, [observations.shape[-1]])
            hidden = (observations @ of_states + bias)[:, None]
            flat = actions.reshape(-1, actions.shape[-1]) @ of_actions
            hidden = (hidden + flat.reshape(len(hidden), -1, flat.shape[-1])).reshape(flat.shape)
            for layer in rest:
                hidden = layer(hidden)
            return hidden.reshape(actions.shape[:-1])
        if actions.ndim == 3:
            _many = _repeated
        """,
    )]),
    "the critics' passes over sampled actions merged": Trick("cql", [Change(
        "",
        "_q1 = critic(_states, _random)\n_q2 = critic(_states, _current)\n_q3 = critic(_states, _next)",
        """
        merged = concatenate([_random, _current, _next], axis=1)
        _q1, _q2, _q3 = jnp.split(critic(_states, merged), 3, axis=1)
        """,
    )]),
    "one gradient of all losses together": Trick("iql", [Change(
        "IQL.update",
        """
        (_value_loss, _aux), _value_gradient = value_and_grad(_state.value_loss, has_aux=True)(_value, _batch)
        (_q_loss, _), _q_gradient = value_and_grad(_state.q_loss, has_aux=True)(_q, _batch)
        (_actor_loss, _), _actor_gradient = value_and_grad(_state.actor_loss, has_aux=True)(
            _actor, _batch, _noise, _aux["adv"]
        )
        """,
        """
        def total(parts):
            value_loss, found = _state.value_loss(parts[0], _batch)
            q_loss, _ = _state.q_loss(parts[1], _batch)
            adv = jax.lax.stop_gradient(found["adv"])
            actor_loss, _ = _state.actor_loss(parts[2], _batch, _noise, adv)
            return value_loss + q_loss + actor_loss, (value_loss, q_loss, actor_loss)
        (_, losses), gradients = value_and_grad(total, has_aux=True)((_value, _q, _actor))
        _value_loss, _q_loss, _actor_loss = losses
        _value_gradient, _q_gradient, _actor_gradient = gradients
        """,
    )]),
    "TD3+BC's products by Eigen": Trick("td3_bc", flags=_EIGEN),
    "XQL's products by Eigen": Trick("xql", flags=_EIGEN),
    "XLA's scheduler for concurrency": Trick("td3_bc", flags="--xla_cpu_enable_concurrency_optimized_scheduler=true"),
}  # fmt: skip


@dataclass(frozen=True)
class Tried(Subject):
    """A subject whose JAX twin has a trick's changes."""

    changes: Sequence[Change] = ()

    @cached_property
    def pair(self) -> Pair:
        """The parity adapter with the changed twin."""
        known = PAIRS[self.name]

        changed = type("Changed", (type(known),), {"jax": edited(known, self.changes)})
        return changed(**{part.name: getattr(known, part.name) for part in fields(Pair)})


def edited(pair: Pair, changes: Iterable[Change]) -> ModuleType:
    """A pair's JAX twin with the changes applied.

    Raises:
        ValueError: A pattern does not occur exactly once in the source.
    """
    assert pair.jax.__file__ is not None
    source = Path(pair.jax.__file__).read_text(encoding="utf-8")
    for change in changes:
        source = edit(source, *change).applied(source)
    return planted(f"{pair.name} with a trick", source)
