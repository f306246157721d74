"""Tricks, as changes to what ships: texts of a JAX twin and what replaces them, or a flag of XLA's.

`tests/benchmarks/test_tricks.py` holds each to the updates that ship; `python -m benchmarks.tricks` measures what they
are worth.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from types import ModuleType

from benchmarks.subjects import Subject
from parity_tests.mutants.planting import planted
from parity_tests.pair import Pair
from parity_tests.pairs import PAIRS
from shared.frameworks.jax_products import NONE_FOR_YNNPACK


@dataclass(frozen=True)
class Trick:
    """A change to what ships.

    Attributes:
        of: The algorithm.
        changes: Texts of its JAX twin, and what replaces them.
        flags: For XLA.
    """

    of: str
    changes: Sequence[tuple[str, str]] = ()
    flags: str = ""


_YNNPACK = [("@partial(EigenProgram, ", "@partial(jax.jit, ")]
_EIGEN = " ".join(f"--{option}={value}" for option, value in NONE_FOR_YNNPACK.items())
_DRAWS_AHEAD = """\
    draws = jax.vmap(lambda step: draw_noise(key, step, hp, len(dataset), state.actor.module.action_dim))(steps)
"""
_TWO_PASSES = """\
        q1 = critic_1(batch.observations, batch.actions)
        q2 = critic_2(batch.observations, batch.actions)
"""
_TWO_TARGETS = """\
        next_q = minimum(
            critic_1(batch.next_observations, next_actions), critic_2(batch.next_observations, next_actions)
        )
"""
_THREE_PASSES = """\
        q_random = critic(batch.observations, random)
        q_current = critic(batch.observations, current)
        # The next actions are judged in the current states.
        q_next = critic(batch.observations, next)
"""
_THREE_GRADIENTS = """\
        (value_loss, aux), value_gradient = value_and_grad(state.value_loss, has_aux=True)(state.value, batch)
        (q_loss, _), critic_gradient = value_and_grad(state.q_loss, has_aux=True)(state.critic, batch)
        (actor_loss, _), actor_gradient = value_and_grad(state.actor_loss, has_aux=True)(
            state.actor, batch, noise, aux["adv"]
        )
"""
TRICKS = {
    "lax.cond decides whether an update is delayed": Trick("td3_bc", [(
        "            delayed = (phase + i + 1) % hp.policy_freq == 0\n"
        "            state, metrics = state.update(take(dataset, indices), noise, delayed)\n",
        "            delayed = (start + i + 1) % hp.policy_freq == 0\n"
        "            batch = take(dataset, indices)\n"
        "            def early(state):\n"
        "                state, metrics = state.update(batch, noise, False)\n"
        '                return state, metrics | {"actor_loss": jnp.nan}\n'
        "            state, metrics = jax.lax.cond(delayed, lambda s: s.update(batch, noise, True), early, state)\n",
    )]),
    "indices and noise drawn in the loop": Trick("td3_bc", [
        (_DRAWS_AHEAD, "    draws = (steps,)\n"),
        ("            indices, noise = jax.tree.map(itemgetter(i), draws)",
         "            indices, noise = draw_noise(key, draws[0][i], hp, len(dataset), state.actor.module.action_dim)"),
    ]),
    "a gather for each column": Trick("td3_bc", [
        ("    hp = state.hp\n    steps =",
         "    hp = state.hp\n    columns = take(dataset, jnp.arange(len(dataset)))\n    steps ="),
        ("take(dataset, indices), noise, delayed", "jax.tree.map(itemgetter(indices), columns), noise, delayed"),
    ]),
    "a metric told to the host at each update": Trick("td3_bc", [(
        "            history.append(metrics)",
        '            jax.debug.callback(lambda loss: None, metrics["critic_loss"])\n'
        "            history.append(metrics)",
    )]),
    "averages at the end of the same program": Trick("td3_bc", [
        ("    return state, [*history, *remainder]", "    return state, [mean_metrics([*history, *remainder])]"),
    ]),
    "a state that is not donated": Trick("td3_bc", [(', donate_argnames="state"', "")]),
    "one turn of the loop for each period": Trick("td3_bc", [("blocks, unroll=2)", "blocks)")]),
    "batches of three axes": Trick("cql", [(
        "self.network(inputs.reshape(-1, inputs.shape[-1])).reshape(actions.shape[:-1])",
        "self.network(inputs).reshape(actions.shape[:-1])",
    )]),
    "BCQ's products by YNNPACK": Trick("bcq", _YNNPACK),
    "CQL's products by YNNPACK": Trick("cql", _YNNPACK),
    "EDAC's products by YNNPACK": Trick("edac", _YNNPACK),
    "SAC-N's products by YNNPACK": Trick("sac_n", _YNNPACK),
    "a dynamics ensemble's products by YNNPACK": Trick("model_based/dynamics", _YNNPACK),
    "Adam over one flat vector": Trick("td3_bc", [
        ("ADAM = optax.adam(3e-4)", "ADAM = optax.flatten(optax.adam(3e-4))"),
    ]),
    "both critics stacked": Trick("td3_bc", [
        (_TWO_PASSES, "        q1, q2 = both(critics, batch.observations, batch.actions)\n"),
        (_TWO_TARGETS,
         "        next_q = minimum(*both((critic_1, critic_2), batch.next_observations, next_actions))\n"),
        ("def soft_update(",
         "def both(critics, *inputs):\n"
         "    return jax.vmap(lambda critic: critic(*inputs))(jax.tree.map(lambda *w: jnp.stack(w), *critics))\n\n\n"
         "def soft_update("),
    ]),
    "a first layer for states and one for actions": Trick("cql", [(
        "        if actions.ndim == 3:\n            observations",
        "        if not self.is_initializing():\n"
        "            first, *rest = self.network.layers\n"
        '            kernel, bias = first.variables["params"]["kernel"], first.variables["params"]["bias"]\n'
        "            of_states, of_actions = jnp.split(kernel, [observations.shape[-1]])\n"
        "            hidden = (observations @ of_states + bias)[:, None]\n"
        "            flat = actions.reshape(-1, actions.shape[-1]) @ of_actions\n"
        "            hidden = (hidden + flat.reshape(len(hidden), -1, flat.shape[-1])).reshape(flat.shape)\n"
        "            for layer in rest:\n"
        "                hidden = layer(hidden)\n"
        "            return hidden.reshape(actions.shape[:-1])\n"
        "        if actions.ndim == 3:\n            observations",
    )]),
    "the critics' passes over sampled actions merged": Trick("cql", [(
        _THREE_PASSES,
        "        actions = concatenate([random, current, next], axis=1)\n"
        "        q_random, q_current, q_next = jnp.split(critic(batch.observations, actions), 3, axis=1)\n",
    )]),
    "one gradient of all losses together": Trick("iql", [(
        _THREE_GRADIENTS,
        "        def total(parts):\n"
        "            value, critic, actor = parts\n"
        "            value_loss, aux = state.value_loss(value, batch)\n"
        "            q_loss, _ = state.q_loss(critic, batch)\n"
        '            adv = jax.lax.stop_gradient(aux["adv"])\n'
        "            actor_loss, _ = state.actor_loss(actor, batch, noise, adv)\n"
        "            return value_loss + q_loss + actor_loss, (value_loss, q_loss, actor_loss)\n"
        "        learnt = state.value, state.critic, state.actor\n"
        "        (_, losses), gradients = value_and_grad(total, has_aux=True)(learnt)\n"
        "        value_loss, q_loss, actor_loss = losses\n"
        "        value_gradient, critic_gradient, actor_gradient = gradients\n",
    )]),
    "TD3+BC's products by Eigen": Trick("td3_bc", flags=_EIGEN),
    "XQL's products by Eigen": Trick("xql", flags=_EIGEN),
    "XLA's scheduler for concurrency": Trick("td3_bc", flags="--xla_cpu_enable_concurrency_optimized_scheduler=true"),
}  # fmt: skip


@dataclass(frozen=True)
class Tried(Subject):
    """A subject whose JAX twin has the texts of a trick."""

    changes: Sequence[tuple[str, str]] = ()

    @cached_property
    def pair(self) -> Pair:
        """The ladder's adapter, around the changed twin."""
        known = PAIRS[self.name]

        changed = type("Changed", (type(known),), {"jax": edited(known, self.changes)})
        return changed(**{part.name: getattr(known, part.name) for part in fields(Pair)})


def edited(pair: Pair, changes: Iterable[tuple[str, str]]) -> ModuleType:
    """A pair's JAX twin with texts of its source replaced by others.

    Raises:
        ValueError: A text to be changed does not stand in the source exactly once.
    """
    assert pair.jax.__file__ is not None
    source = Path(pair.jax.__file__).read_text(encoding="utf-8")
    for old, new in changes:
        if (count := source.count(old)) != 1:
            raise ValueError(f"{old!r} stands {count} times in {pair.jax.__file__}")
        source = source.replace(old, new)
    return planted(f"{pair.name} with a trick", source)
