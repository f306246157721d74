"""ReBRAC, offline to online, on the ladder."""

from dataclasses import replace
from typing import Any

from parity_tests.families import Family
from parity_tests.pair import Mistake, Pair
from parity_tests.pairs import rebrac
from shared.data.returns import extract_returns, online_rows

# The offline twin's ladder has the depths, and full size those of the defaults: fewer layers are compiled sooner.
SHALLOW = rebrac.SMALL | {"actor_n_hiddens": 1, "critic_n_hiddens": 1}


def call_statics(config: Any, start: int, num_updates: int) -> dict[str, int]:
    """The phase of the first update in a call, and how many steps of the warm-up lie before it."""
    idle = sum(step < config.switch + config.num_warmup_steps for step in range(start, start + num_updates))
    return {"phase": (start + idle) % config.policy_freq, "idle": idle}


PAIR = Pair(
    name="finetune/rebrac",
    title="ReBRAC, offline to online",
    family=Family.FINETUNING,
    use="The pull towards the data fades as steps come in.",
    paper="Tarasov et al. 2023",
    url="https://arxiv.org/abs/2305.09836",
    benchmark_updates=150,
    outputs=rebrac.PAIR.outputs,
    losses=rebrac.PAIR.losses,
    variants={
        "default": SHALLOW,
        # The switch comes with the first warm update; the weight falls after the warm-up's steps, which end within a
        # call. A quarter of a batch is new.
        "other": dict(rebrac.PAIR.variants["other"])
        | SHALLOW
        | {"offline_iterations": 30, "online_iterations": 8, "min_decay_coef": 0.3, "mixing_ratio": 0.25}
        | {"num_warmup_steps": 3}
        | {"use_calibration": True, "expl_noise": 0.2},
        # The weight is at its least from the first warm update on; exploration reaches the bounds.
        "plain": dict(rebrac.PAIR.variants["plain"])
        | {"offline_iterations": 20, "online_iterations": 5, "mixing_ratio": 0.75, "expl_noise": 1.0},
    },
    update_statics=rebrac.PAIR.update_statics,
    interval_statics=lambda config, start, num_updates: {"phase": start % config.policy_freq, "ring": None},
    call_statics=call_statics,
    load=extract_returns,
    explores=True,
    two_buffers=True,
    as_rows=online_rows,
    # When the actor steps is proven of the offline twin, and its phase by the shipped path.
    facts=replace(rebrac.PAIR.facts, first_delayed=None),
)

# Of the offline twin, as far as their texts stand here too; some that say something of what is new
SHARED = {
    "tanh forgotten",
    "inverted done flag",
    "noise not clipped",
    "target action not cut to the bounds",
    "online critics in the target",
    "policy's distance averaged over action dimensions",
    "missing stop_gradient",
    "target from the new actor",
}

MISTAKES = [
    *(replace(mistake, breaks="") for mistake in rebrac.MISTAKES if mistake.name in SHARED),
    Mistake("the data's weight in the target online", "where(online, 0.0, hp.critic_bc_coef)", "hp.critic_bc_coef",
            "loss", "plain"),
    Mistake("weight falls from the run's first update on", "        decay = where(online, maximum(hp.min_decay_coef,",
            "        decay = where(online | True, maximum(hp.min_decay_coef,", "loss"),
    Mistake("weight falls without an end", "maximum(hp.min_decay_coef, left / float(hp.online_iterations))",
            "left / float(hp.online_iterations)", "loss", "plain"),
    Mistake("weight at its least at once", "maximum(hp.min_decay_coef, left / float(hp.online_iterations))",
            "jnp.minimum(hp.min_decay_coef, left / float(hp.online_iterations))", "update", "other"),
    Mistake("switch an update late", "self.total_it >= hp.offline_iterations", "self.total_it > hp.offline_iterations",
            "update", "other"),
    Mistake("weight falls as if both phases were one", "left / float(hp.online_iterations))",
            "left / float(hp.offline_iterations + hp.online_iterations))", "log", "other"),
    Mistake("weights stand still", "state.replace(total_it=state.total_it + 1), metrics", "state, metrics",
            "trajectory", "other"),
    Mistake("calibration from above", "maximum(target, batch.returns)", "jnp.minimum(target, batch.returns)", "loss",
            "other"),
    Mistake("calibration although it is off", " if hp.use_calibration else target", "", "loss"),
    Mistake("shares of the two buffers swapped", "return hp.batch_size - online, online",
            "return online, hp.batch_size - online", "draws", "other"),
    Mistake("all of an online batch from the dataset", "    if online_size is not None:\n",
            "    if online_size is not None:\n        online_size = 1\n", "draws"),
    Mistake("both buffers drawn from with one key", "jax.random.randint(online_key, (online,)",
            "jax.random.randint(index_key, (online,)", "draws"),
    Mistake("rows beyond what is stored", "(online,), 0, online_size)", "(online,), 0, online_size + 1)", "draws"),
    Mistake("the same noise at every update", "_ = jax.random.split(jax.random.fold_in(key, step), 5)",
            "_ = jax.random.split(jax.random.fold_in(key, 0 * step), 5)", "draws"),
    Mistake("the same exploration at every step", "jax.random.split(jax.random.fold_in(key, step), 5)[4]",
            "jax.random.split(jax.random.fold_in(key, 0 * step), 5)[4]", "draws"),
    Mistake("exploration without noise", "self.actor(observations) + self.hp.expl_noise * noise.action",
            "self.actor(observations) + 0.0 * noise.action", "act", "other"),
    Mistake("exploration not cut", "self.hp.expl_noise * noise.action, -1.0, 1.0)",
            "self.hp.expl_noise * noise.action, -9.0, 9.0)", "act", "plain"),
    Mistake("noise on evaluation", '    """The policy\'s actions (E, A) for normalised observations (E, S)."""\n'
            "    return actor(observations)", "    return actor(observations) + 0.1", "act"),
    Mistake("batches of the dataset alone", "take(dataset, indices) if ring is None else",
            "take(dataset, indices % len(dataset)) if ring is None or True else", "shipped path",
            "plain"),
    Mistake("batches of what was there before", "online_size = None if ring is None else ring.size",
            "online_size = None if ring is None else jnp.maximum(ring.size - 1, 1)", "shipped path",
            "plain"),
    Mistake("the next step's draws are the last one's", "next_action(state, key, end, observation), history",
            "next_action(state, key, start, observation), history", "shipped path",
            "plain"),
    Mistake("targets reset at the switch", "    state = state.replace(total_it=state.total_it + idle)\n",
            "    state = state.replace(total_it=state.total_it + idle, critic_target=state.critic)\n", "shipped path",
            "plain"),
    Mistake("buffer overwritten from the wrong end", "ring, end = push(ring, rows), start + len(rows)",
            "ring, end = push(ring.replace(pointer=ring.pointer - 1), rows), start + len(rows)", "shipped path",
            "plain"),
    Mistake("phase of the updates that of the warm-up's first step", "return (start + idle) % config.policy_freq, idle",
            "return start % config.policy_freq, idle", "shipped path", "other"),
    Mistake("steps of the warm-up not counted", "    state = state.replace(total_it=state.total_it + idle)\n", "",
            "shipped path", "other"),
    Mistake("phase of the updates forgotten online",
            "train_interval(state, key, dataset, start + idle, len(rows) - idle, phase, ring)",
            "train_interval(state, key, dataset, start + idle, len(rows) - idle, 0, ring)", "shipped path"),
]  # fmt: skip
