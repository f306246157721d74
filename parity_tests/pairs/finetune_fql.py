"""FQL, offline to online, on the ladder."""

from parity_tests.families import Family
from parity_tests.pair import Mistake, Pair
from parity_tests.pairs import fql
from parity_tests.pairs.finetune_iql import FILLED, OF_A_CALL

# The offline twin's ladder has the depths, and full size those of the defaults: fewer layers are compiled sooner.
SHALLOW = {"actor_hidden_dims": (24,), "critic_hidden_dims": (32,), "flow_steps": 3}

PAIR = Pair(
    name="finetune/fql",
    title="FQL, offline to online",
    family=Family.FINETUNING,
    use="The data's actions have several modes; the policy explores by its own noise.",
    paper="Park et al. 2025",
    url="https://arxiv.org/abs/2502.02538",
    benchmark_updates=10,
    outputs=fql.PAIR.outputs,
    losses=fql.PAIR.losses,
    variants={
        "default": SHALLOW,
        "other": dict(fql.PAIR.variants["other"])
        | {"actor_hidden_dims": (16, 24), "critic_hidden_dims": (24, 16), "flow_steps": 2},
    },
    draw_inputs=lambda dataset, action_dim: (FILLED, action_dim),
    interval_statics=lambda config, start, num_updates: {"size": FILLED},
    explores=True,
    facts=fql.PAIR.facts,
)

# Of the offline twin, as far as they say something of what is new
SHARED = {
    "times of the steps' ends",
    "the flow's end not cut",
    "inverted done flag",
    "the next action not cut",
    "online critics in the target",
    "sum over critics",
    "alpha on the Q term",
    "another noise for the flow",
    "policy on the new critics",
    "target from the new critics",
    "normal times",
    "acting without noise",
    "acting beyond the bounds",
}

EXPLORES = "return cut(self.actor, self.actor(observations, noise.action))"
STORES = "    ring, num_updates = push(ring, rows), len(rows)\n"

MISTAKES = [
    *(mistake for mistake in fql.MISTAKES if mistake.name in SHARED),
    *OF_A_CALL,
    Mistake("same noise at every update", "_ = jax.random.split(jax.random.fold_in(key, step), 6)",
            "_ = jax.random.split(jax.random.fold_in(key, 0 * step), 6)", "draws"),
    Mistake("rows beyond what is stored", "(hp.batch_size,), 0, size)", "(hp.batch_size,), 0, size + 1)", "draws"),
    Mistake("the same exploration at every step", "jax.random.split(jax.random.fold_in(key, step), 6)[5]",
            "jax.random.split(jax.random.fold_in(key, 0 * step), 6)[5]", "draws"),
    Mistake("exploration draws what the update draws", "fold_in(key, step), 6)[5]", "fold_in(key, step), 6)[4]",
            "draws"),
    Mistake("exploration with deviations of 2", "action=jax.random.normal(action_key, (1, action_dim))",
            "action=2.0 * jax.random.normal(action_key, (1, action_dim))", "draws"),
    Mistake("exploration without noise", EXPLORES,
            "return cut(self.actor, self.actor(observations, 0 * noise.action))", "act"),
    Mistake("exploration not cut", EXPLORES, "return self.actor(observations, noise.action)", "act"),
    Mistake("noise on top of the policy's", EXPLORES,
            "return cut(self.actor, self.actor(observations, noise.action) + 0.1 * noise.action)", "act"),
    Mistake("exploration by the flow", EXPLORES, "return self.flow_actions(observations, noise.action)", "act"),
    Mistake("batches from the whole ring", "draw_noise(key, step, hp, size, action_dim)",
            "draw_noise(key, step, hp, len(dataset), action_dim)", "shipped path"),
    Mistake("draws begin anew at each interval", "draw_noise(key, step, hp, size, action_dim)",
            "draw_noise(key, step - start, hp, size, action_dim)", "shipped path"),
    Mistake("buffer overwritten from the wrong end", STORES,
            "    ring, num_updates = push(ring.replace(pointer=ring.pointer - 1), rows), len(rows)\n", "shipped path"),
    Mistake("the newest step not stored", STORES,
            "    ring, num_updates = push(ring, rows[:-1]), len(rows)\n", "shipped path"),
    Mistake("targets reset at the switch", STORES, f"{STORES}    state = state.replace(critic_target=state.critic)\n",
            "shipped path"),
]  # fmt: skip
