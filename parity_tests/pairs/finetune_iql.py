"""IQL, offline to online, on the ladder."""

from parity_tests.families import Family
from parity_tests.pair import Mistake, Pair
from parity_tests.pairs import iql

# Rows that count as stored so far: fewer than a dataset has, so that a draw beyond them shows.
FILLED = 150

PAIR = Pair(
    name="finetune/iql",
    title="IQL, offline to online",
    family=Family.FINETUNING,
    use="The most stable start; it improves slowly online.",
    paper="Kostrikov et al. 2021",
    url="https://arxiv.org/abs/2110.06169",
    benchmark_updates=300,
    outputs=iql.PAIR.outputs,
    corners=iql.PAIR.corners,
    losses=iql.PAIR.losses,
    variants={
        "default": {},
        # The switch lies within the ladder's trajectory, after which the rate rises; weights reach their cap, and the
        # noise of exploration its bound.
        "other": {"discount": 0.9, "tau": 0.1, "beta": 20.0, "iql_tau": 0.9, "iql_deterministic": True}
        | {"offline_iterations": 40, "vf_lr": 1e-3, "qf_lr": 1e-4, "actor_lr": 1e-3, "expl_noise": 0.5},
        "dropout": {"actor_dropout": 0.1},
    },
    drawn_inside=iql.PAIR.drawn_inside,
    draw_inputs=lambda dataset, action_dim: (FILLED, action_dim),
    interval_statics=lambda config, start, num_updates: {"size": FILLED},
    extra_inputs=iql.PAIR.extra_inputs,
    explores=True,
    facts=iql.PAIR.facts,
)

# Of the call between two steps, in any twin with one ring
OF_A_CALL = [
    Mistake("batches of what was there before", "start, num_updates, ring.size)",
            "start, num_updates, ring.size - num_updates)", "shipped path"),
    Mistake("update before the step is stored", "ring, num_updates = push(ring, rows), len(rows)",
            "before, ring, num_updates = ring, push(ring, rows), len(rows)\n"
            "    ring = ring.replace(rows=before.rows)", "shipped path"),
    Mistake("the next step's draws are the last one's",
            "next_action(state, key, start + num_updates, observation), history",
            "next_action(state, key, start, observation), history", "shipped path"),
    Mistake("acts on the old weights",
            "    state, history = train_interval(state, key, ring, start, num_updates, ring.size)\n"
            "    return state, ring, next_action(state,",
            "    old = state\n"
            "    state, history = train_interval(state, key, ring, start, num_updates, ring.size)\n"
            "    return state, ring, next_action(old,", "shipped path"),
]  # fmt: skip

MISTAKES = [
    *OF_A_CALL,
    Mistake("mean not squashed", "mean = tanh(self.net(observations, masks))", "mean = self.net(observations, masks)",
            "forward"),
    Mistake("a tie counted as a loss", "(adv < 0.0)", "(adv <= 0.0)", "forward"),
    Mistake("expectile the wrong way round", "(adv < 0.0)", "(adv > 0.0)", "loss"),
    Mistake("online critics in the advantage", "self.q_target(batch.observations", "self.qf(batch.observations",
            "loss"),
    Mistake("inverted done flag", "(1.0 - batch.terminals)", "batch.terminals", "loss"),
    Mistake("sum over critics", "square(q2 - target).mean()) / 2.0", "square(q2 - target).mean())", "loss"),
    Mistake("weight not capped", "MAX_WEIGHT = 100.0", "MAX_WEIGHT = float('inf')", "loss"),
    Mistake("broadcast to (B, B)", "(weight * bc_loss).mean()", "(weight[:, None] * bc_loss).mean()", "loss"),
    Mistake("no dropout", "inputs * next(masks) if layer is dropout else", "inputs if layer is dropout else", "loss",
            "dropout"),
    Mistake("target from the old critics", "soft_update(state.q_target, state.qf,",
            "soft_update(state.q_target, self.qf,", "update"),
    Mistake("learning rate one step ahead", "missing = hp.offline_iterations - step",
            "missing = hp.offline_iterations - step - 1", "update", "other"),
    Mistake("learning rate 0 for good", "missing = hp.offline_iterations - step",
            "missing = jnp.maximum(hp.offline_iterations - step, 0)", "trajectory", "other"),
    Mistake("learning rate starts anew at the switch", "missing = hp.offline_iterations - step",
            "missing = hp.offline_iterations - step % hp.offline_iterations", "trajectory", "other"),
    Mistake("exploration without deviations", "action = mean + std * noise.action",
            "action = mean + noise.action + 0 * std", "act"),
    Mistake("exploration not bounded", "return clamp(max_action * action, -max_action, max_action)",
            "return max_action * action", "act"),
    Mistake("noise of exploration not clipped", "clamp(hp.expl_noise * noise.action, -hp.noise_clip, hp.noise_clip)",
            "hp.expl_noise * noise.action", "act", "other"),
    Mistake("exploration without dropout", "mean, std = actor(observations, noise.dropout)",
            "mean, std = actor(observations)", "act", "dropout"),
    Mistake("the same exploration at every step",
            "jax.random.split(jax.random.split(jax.random.fold_in(key, step), 3)[2], 3)",
            "jax.random.split(jax.random.split(jax.random.fold_in(key, 0 * step), 3)[2], 3)", "draws"),
    Mistake("one key for dropout and exploration", "action=jax.random.normal(keys[2], (1, action_dim))",
            "action=jax.random.normal(keys[0], (1, action_dim))", "draws", "dropout"),
    Mistake("batches from the whole ring", "draw_noise(key, step, hp, size, action_dim)",
            "draw_noise(key, step, hp, len(dataset), action_dim)", "shipped path"),
    Mistake("draws begin anew at each interval", "steps = start + jnp.arange(num_updates)",
            "steps = jnp.arange(num_updates)", "shipped path"),
    Mistake("same noise at every update",
            "index_key, dropout_key, _ = jax.random.split(jax.random.fold_in(key, step), 3)",
            "index_key, dropout_key, _ = jax.random.split(jax.random.fold_in(key, 0 * step), 3)", "draws"),
]  # fmt: skip
