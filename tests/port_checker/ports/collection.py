"""Ports by other hands, wrong and right, to try the checker with.

Each is one of the files beside this one, some with a text or two replaced. They were written without a look at what the
checker says of them.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class PortCase:
    """A port that is wrong in one thing, or right.

    Attributes:
        name: What is unlike its base, in a few words; for a base itself its style.
        base: The file that is changed.
        algorithm: What it is a port of.
        changes: Texts that stand in the base exactly once, each with what is put in its place.
        settings: A variant of the ladder's under which a mistake shows.
        truth: What is wrong, or why it is right, in a sentence.
        rung: The first rung that a mistake can be seen at; empty for a right port.
        words: A diagnosis, which is what is indented below the rung that fails, points at the place with any of these.
        lines: So does one that shows a line of the JAX twin with any of these in it.
        wrong_words: A diagnosis that holds any of these leads astray.
    """

    name: str
    base: str
    algorithm: str
    changes: tuple[tuple[str, str], ...]
    settings: str
    truth: str
    rung: str = ""
    words: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    wrong_words: tuple[str, ...] = ()


TD3_BC = ("plain_td3_bc.py", "td3_bc")
AWAC = ("rows_awac.py", "awac")
EDAC = ("stacked_edac.py", "edac")
CQL = ("joint_cql.py", "cql")
DT = ("einsum_dt.py", "dt")

# fmt: off
FORWARD = (
    PortCase("time added behind the norm", *DT,
             (("jnp.stack([x + times for x in embedded], 2)", "jnp.stack(embedded, 2)"),
              ('drop(layer_norm(model["emb_norm"], tokens), ',
               'drop(layer_norm(model["emb_norm"], tokens) + jnp.repeat(times, 3, axis=1), ')),
             "default", "The embedded time steps are added to normalised tokens; the reference normalises the sum.",
             "forward", ("times[", "timestep", "emb_norm"),
             ("tokens = (stack(embedded, axis=2) + times", "dropped(self.emb_norm(tokens), dropout.embedding)")),
    PortCase("GELU by a logistic function", *DT,
             (("x * jax.scipy.stats.norm.cdf(x)", "x * jax.nn.sigmoid(1.702 * x)"),),
             "default", "GELU is approximated by x * sigmoid(1.702 x); the reference takes the exact one.",
             "forward", ("gelu", "GELU", "erf("), ("return 0.5 * inputs * (1.0 + erf(",)),
    PortCase("offset multiplied too", *CQL,
             (('["multiplier"] * log_std + actor["offset"]', '["multiplier"] * (log_std + actor["offset"])'),),
             "default", "The multiplier of log-deviations is applied to their offset too.",
             "forward", ("multiplier", "offset"), ("log_std = self.log_std_multiplier() * log_std",)),
)

LOSSES = (
    PortCase("entropy outside of mask and discount", *EDAC,
             (("batch.rewards + config.discount * (1.0 - batch.terminals) * soft_q",
               "batch.rewards + config.discount * (1.0 - batch.terminals) * next_q + soft_q - next_q"),),
             "default", "The target's entropy term is neither discounted nor left out at a terminal.",
             "loss", ("entropy", "log_prob"),
             ("smallest(critic(batch.next_observations, next_actions)) - self.temperature() * next_log_prob",
              "hp.discount * (1.0 - batch.terminals) * next_q")),
    PortCase("log-likelihoods summed over the batch", *AWAC,
             (("jnp.mean(weights * log_likelihoods)", "jnp.mean(weights * log_likelihoods.sum())"),),
             "default", "Each weight meets the sum of all rows' log-likelihoods in place of its own row's.",
             "loss", ("log_probs", "over the batch", "broadcast"), ("return (-log_probs * weights).mean()",)),
    PortCase("noise clipped before it is scaled", *TD3_BC,
             (("smoothing = jnp.clip(\n        config.policy_noise * bound * noise.target,",
               "smoothing = config.policy_noise * jnp.clip(\n        bound * noise.target,"),),
             "default", "The bounds are applied to standard normal noise, and its deviation only then.",
             "loss", ("noise_clip", "policy_noise", "smoothing"),
             ("noise.target * (hp.policy_noise * max_action), -hp.noise_clip",)),
    PortCase("lengths over the ensemble", *EDAC,
             (("jnp.linalg.norm(slopes, axis=-1, keepdims=True)", "jnp.linalg.norm(slopes, axis=0, keepdims=True)"),),
             "default", "Gradients are divided by their length along the ensemble's axis, not along the action's.",
             "loss", ("directions", "norm(gradients)", "length"),
             ("directions = gradients / (norm(gradients) + 1e-10)",
              "squared = square(vectors).sum(axis=-1, keepdims=True)")),
    PortCase("least value of the whole batch", *EDAC,
             (("actions).min(axis=0)\n    soft_q", "actions).min()\n    soft_q"),),
             "default", "The target takes one least value over critics and rows; the reference one for each row.",
             "loss", ("smallest", "least", "minimum"),
             ("next_q = smallest(critic(batch.next_observations, next_actions))", "== q.argmin(axis=0)")),
    PortCase("density of random actions the wrong way", *CQL,
             (("densities = -action_dim * jnp.log(2.0),", "densities = action_dim * jnp.log(2.0),"),),
             "default", "Random actions have the log-density -A log 2; its sign is lost.",
             "loss", ("log_density", "q_random", "random actions"),
             ("log_density = math.log(0.5 ** random.shape[-1])", "sampled = concatenate([q_random - log_density")),
    PortCase("data's value in the weighted soft maximum", *CQL,
             (("    else:\n        values.append(q[:, None])", "    values.append(q[:, None])"),),
             "default", "With densities, too, the data's own value takes part in the soft maximum.",
             "loss", ("q_random - log_density", "q[:, None]", "data's value"),
             ("sampled = concatenate([q_random - log_density",)),
    PortCase("dropout before the norm", *DT,
             (('drop(layer_norm(model["emb_norm"], tokens), dropout and dropout.embedding)',
               'layer_norm(model["emb_norm"], drop(tokens, dropout and dropout.embedding))'),),
             "default", "Embedded tokens are dropped before they are normalised; the reference drops them behind.",
             "loss", ("emb_norm", "dropout.embedding"), ("dropped(self.emb_norm(tokens), dropout.embedding)",)),
)

GRADIENTS = (
    PortCase("one side of each pair detached", *EDAC,
             (("directions, directions)", "directions, jax.lax.stop_gradient(directions))"),),
             "default", "Of the cosine of two critics only one of them learns: half of the diversity's gradient.",
             "gradient", ("directions", "alikeness", "diversity"),
             ("pairs = square(directions.sum(axis=0))", "self.hp.eta * alikeness(gradients)"),
             ("missing stop_gradient",)),
    PortCase("deviation detached", *AWAC,
             (("mean, log_std = policy(actor, row.observations)\n",
               "mean, log_std = policy(actor, row.observations)\n    log_std = jax.lax.stop_gradient(log_std)\n"),),
             "default", "The policy's deviations learn nothing: the likelihood is differentiated by its mean alone.",
             "gradient", ("log_std", "deviation"), ("log_density = -square(actions - mean) / (2.0 * square(std))",),
             ("missing stop_gradient",)),
    PortCase("imitation detached", *TD3_BC,
             (("((actions - batch.actions) ** 2)", "((jax.lax.stop_gradient(actions) - batch.actions) ** 2)"),),
             "default", "The distance to the data's actions has no gradient, so that the policy does not imitate.",
             "gradient", ("square(actions - batch.actions)", "imitation", "behaviour cloning"),
             ("square(actions - batch.actions).mean()",), ("missing stop_gradient",)),
    PortCase("nothing held fixed in the joint loss", *CQL,
             (("jax.lax.stop_gradient(params))", "params)"),),
             "default", "In the joint loss each term is differentiated by the other terms' parameters too.",
             "update", ("stop_gradient", "held fixed", "detach")),
    PortCase("temperature's loss reaches the policy", *CQL,
             (('jax.lax.stop_gradient(aux["log_prob"]))', 'aux["log_prob"])'),),
             "default", "The loss of the temperature is differentiated by the policy through its log-probability.",
             "update", ("stop_gradient", "alpha_loss", "log_prob"),
             ("(state.log_temperature, aux[\"log_prob\"])", "return -(log_temperature * (log_prob")),
)

UPDATES = (
    PortCase("entries clipped, not the norm", *DT,
             (("else clip_by_torch_norm(config.clip_grad)", "else optax.clip(config.clip_grad)"),),
             "default", "Each entry of the gradient is clipped alone; the reference bounds the norm of all of them.",
             "update", ("clip_grad", "clip_norm", "clipped"),
             ("largest / (optax.tree.norm(gradient)", "gradient = clip_norm(")),
    PortCase("critics before policy and temperature", *EDAC,
             (("(learn_temperature, learn_policy, learn_values)", "(learn_values, learn_policy, learn_temperature)"),),
             "default", "Critics, policy, temperature: the reference goes the other way round.",
             "update", ("order", "new critic", "old policy", "old temperature"),
             ("value_and_grad(state.actor_loss, has_aux=True)", "value_and_grad(state.critic_loss, has_aux=True)")),
)

DRAWS = (
    PortCase("last row never drawn", *AWAC,
             (("(config.batch_size,), 0, dataset_size)", "(config.batch_size,), 0, dataset_size - 1)"),),
             "default", "randint leaves its upper bound out, so that the last row is never drawn.",
             "draws", ("dataset_size", "last row"),
             ("jax.random.randint(index_key, (hp.batch_size,), 0, dataset_size)",)),
)

WRONG = (*FORWARD, *LOSSES, *GRADIENTS, *UPDATES, *DRAWS)

BASES = (
    PortCase("functions over dicts", *TD3_BC, (), "default",
             "Kernels as PyTorch's, both critics in one pass, one optimiser for both."),
    PortCase("one row at a time", *AWAC, (), "default", "Losses are of a single row; vmap and means stand outside."),
    PortCase("critics stacked by nn.vmap", *EDAC, (), "default", "Weights are stacked, and diversity is an einsum."),
    PortCase("one loss for all parts", *CQL, (), "default", "One gradient serves all, with stop_gradient between."),
    PortCase("einsum without modules", *DT, (), "default", "The clipping and the decay are links of optax's chain."),
)

RIGHT = (
    *BASES,
    PortCase("optax's incremental update", *TD3_BC,
             (("jax.tree.map(lambda t, s: t + tau * (s - t), target, source)",
               "optax.incremental_update(source, target, tau)"),),
             "default", "The same step towards the source, rounded otherwise."),
    PortCase("critics computed twice to save memory", *TD3_BC,
             (("jnp.square(values(params", "jnp.square(jax.checkpoint(values)(params"),),
             "default", "jax.checkpoint computes the same values anew for the gradient."),
    PortCase("targets moved by lax.cond", *TD3_BC,
             (('follow(state[f"{name}_target"], state[name], config.tau)',
               'jax.lax.cond(delayed, follow, lambda t, *_: t, state[f"{name}_target"], state[name], config.tau)'),),
             "default", "Both branches are traced and one is run."),
    PortCase("clip by two comparisons", *TD3_BC,
             (('jnp.clip(policy(state["actor_target"], batch.next_observations, bound) + smoothing, -bound, bound)',
               'policy(state["actor_target"], batch.next_observations, bound) + smoothing\n'
               "    actions = jnp.where(jnp.abs(actions) > bound, bound * jnp.sign(actions), actions)"),),
             "default", "What lies beyond a bound is put on it."),
    PortCase("slope of tanh by cosh", *EDAC,
             (("jnp.log(1.0 - actions**2 + 1e-6)", "jnp.log(1.0 / jnp.cosh(before) ** 2 + 1e-6)"),),
             "default", "1 - tanh(u)^2 is 1 / cosh(u)^2."),
)

# What the checker once passed or led astray with. `test_diagnosis.py` holds more, which were of TD3+BC.
KNOWN = (
    PortCase("log-deviation bounded by -5 in CQL", *CQL,
             (("jnp.clip(log_std, -20.0, 2.0)", "jnp.clip(log_std, -5.0, 2.0)"),),
             "default", "The policy's log-deviation is bounded below by -5; the reference's by -20.",
             "forward", ("-20.0", "-5.0", "clamp", "bounded"), ("exp(clamp(log_std, -20.0, 2.0))",)),
    PortCase("rows and noise share a key", *AWAC,
             (("row_key, *keys = jax.random.split(jax.random.fold_in(key, step), 3)",
               "keys = jax.random.split(jax.random.fold_in(key, step))\n    row_key = keys[0]"),),
             "default", "The rows and noise.target are drawn from one key.",
             "draws", ("key of its own", "same key", "one key"),
             ("jax.random.split(jax.random.fold_in(key, step), 3)",)),
    PortCase("each critic its own target", *EDAC,
             (("actions).min(axis=0)\n    soft_q", "actions)\n    soft_q"),),
             "default", "Each critic learns from its own target; the reference takes the least value for all of them.",
             "loss", ("smallest", "least", "minimum", "own target", "`q - target`"),
             ("next_q = smallest(critic(batch.next_observations, next_actions))",), ("single precision",)),
)
# fmt: on
