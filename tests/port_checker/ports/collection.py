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
REBRAC = ("modules_rebrac.py", "rebrac")
AWAC = ("rows_awac.py", "awac")
IQL = ("chains_iql.py", "iql")
EDAC = ("stacked_edac.py", "edac")
CQL = ("joint_cql.py", "cql")
DT = ("einsum_dt.py", "dt")

# fmt: off
FORWARD = (
    PortCase("layer norm by the unbiased variance", *REBRAC,
             (("jnp.square(centred).mean(-1, keepdims=True)",
               "jnp.square(centred).sum(-1, keepdims=True) / (x.shape[-1] - 1)"),),
             "default", "The variance of LayerNorm is divided by n - 1; the reference divides by n.",
             "forward", ("LayerNorm", "layer norm", "variance"), ("nn.LayerNorm(epsilon=1e-6",)),
    PortCase("layer norm before the ReLU", *REBRAC,
             (("            x = jax.nn.relu(layer(x))\n            x = self.norms[i](x) if self.norms else x\n",
               "            x = layer(x)\n            x = jax.nn.relu(self.norms[i](x) if self.norms else x)\n"),),
             "default", "LayerNorm stands between layer and ReLU; the reference has it behind the ReLU.",
             "forward", ("LayerNorm", "layer norm", "relu", "ReLU"),
             ("nn.LayerNorm(epsilon=1e-6", "bias_init=constant(0.1)), nn.relu]")),
    PortCase("leaky ReLU", *AWAC,
             (("jax.nn.relu(jnp.dot(x, kernel) + bias)", "jax.nn.leaky_relu(jnp.dot(x, kernel) + bias)"),),
             "default", "Hidden layers let a hundredth of what is negative through; the reference lets nothing.",
             "forward", ("relu", "ReLU", "activation"), ("nn.relu,",)),
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
    PortCase("discount squared in IQL", *IQL,
             (("config.discount * v_values(", "config.discount**2 * v_values("),),
             "default", "The next value is discounted twice.",
             "loss", ("discount",), ("self.hp.discount * next_v",), ("single precision",)),
    PortCase("reward discounted", *REBRAC,
             (("batch.rewards + config.discount * (1 - batch.terminals) * next_q",
               "config.discount * (batch.rewards + (1 - batch.terminals) * next_q)"),),
             "default", "The discount is applied to the reward as well as to the next value.",
             "loss", ("discount", "reward"), ("(1.0 - batch.terminals) * hp.discount * next_q",)),
    PortCase("reward of a last step masked", *EDAC,
             (("batch.rewards + config.discount * (1.0 - batch.terminals) * soft_q",
               "(1.0 - batch.terminals) * (batch.rewards + config.discount * soft_q)"),),
             "default", "At a terminal the target loses its reward together with the next value.",
             "loss", ("terminal", "reward"), ("hp.discount * (1.0 - batch.terminals) * next_q",)),
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
    PortCase("weights by a softmax", *AWAC,
             (("jnp.minimum(jnp.exp(advantages / config.advantage_temperature), 100)",
               "jax.nn.softmax(advantages / config.advantage_temperature)"),),
             "default", "The batch's weights are made to sum to 1; the reference takes the exponentials, cut at 100.",
             "loss", ("MAX_WEIGHT", "exp((q - value)", "softmax", "advantage_temperature", "exponential"),
             ("return minimum(exp((q - value) / self.hp.advantage_temperature)",)),
    PortCase("noise clipped before it is scaled", *TD3_BC,
             (("smoothing = jnp.clip(\n        config.policy_noise * bound * noise.target,",
               "smoothing = config.policy_noise * jnp.clip(\n        bound * noise.target,"),),
             "default", "The bounds are applied to standard normal noise, and its deviation only then.",
             "loss", ("noise_clip", "policy_noise", "smoothing"),
             ("noise.target * (hp.policy_noise * max_action), -hp.noise_clip",)),
    PortCase("distance of the wrong sign", *REBRAC,
             (("next_q - config.critic_bc_coef * distance", "next_q + config.critic_bc_coef * distance"),),
             "default", "The target is raised by the distance to the data's next action; the reference lowers it.",
             "loss", ("critic_bc_coef", "distance"), ("- hp.critic_bc_coef * distance",)),
    PortCase("errors broadcast in CQL", *CQL,
             (("jnp.mean((q - target) ** 2)", "jnp.mean((q[:, None] - target) ** 2)"),),
             "default", "Every value is compared with every row's target, (B, B).",
             "loss", ("(B, B)", "broadcast", "q - target"), ("td_loss = square(q - target).mean()",)),
    PortCase("quantile for an expectile", *IQL,
             (("config.iql_tau) * adv**2)", "config.iql_tau) * jnp.abs(adv))"),),
             "default", "The asymmetric loss is of absolute advantages; the reference's is of squared ones.",
             "loss", ("square(adv)", "squared", "quantile"), ("(self.expectile_weight(adv) * square(adv)).mean()",)),
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
    PortCase("the target's noise used twice", *AWAC,
             (("row.observations, noise.actor)", "row.observations, noise.target)"),),
             "default", "The advantage's actions are sampled with the noise of the critics' target.",
             "loss", ("noise.actor", "noise.target"), ("actions = sample(actor, batch.observations, noise.actor)",)),
)

GRADIENTS = (
    PortCase("entropy detached in EDAC", *EDAC,
             (("exp(state.log_alpha) * log_prob - q", "exp(state.log_alpha) * jax.lax.stop_gradient(log_prob) - q"),),
             "default", "The policy's loss has no gradient through its log-probability: one stop_gradient too many.",
             "gradient", ("log_prob", "entropy"), ("loss = (self.temperature() * log_prob - smallest(q)).mean()",),
             ("missing stop_gradient",)),
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
    PortCase("second moments forget too fast", *IQL,
             (("optax.chain(optax.scale_by_adam(), optax.scale(-rate))",
               "optax.chain(optax.scale_by_adam(b2=0.99), optax.scale(-rate))"),),
             "default", "Adam's b2 is 0.99 for V and the critics; the reference has 0.999.",
             "update", ("b2", "0.999", "second moment"), ("return optax.adam(rates[part])",)),
    PortCase("weight decay in AWAC", *AWAC,
             (("optax.adam(config.learning_rate)", "optax.adamw(config.learning_rate)"),),
             "default", "AdamW decays the weights by its default of 1e-4; the reference has no decay.",
             "update", ("decay",), ("adam = optax.adam(state.hp.learning_rate)",), ("single precision",)),
    PortCase("decay within the gradient", *DT,
             (("optax.scale_by_adam(*config.betas),\n        optax.add_decayed_weights(config.weight_decay),",
               "optax.add_decayed_weights(config.weight_decay),\n        optax.scale_by_adam(*config.betas),"),),
             "default", "The decay is added to the gradient before Adam sees it; AdamW adds it behind.",
             "update", ("decay",), ("return optax.adamw(",)),
    PortCase("entries clipped, not the norm", *DT,
             (("else clip_by_torch_norm(config.clip_grad)", "else optax.clip(config.clip_grad)"),),
             "default", "Each entry of the gradient is clipped alone; the reference bounds the norm of all of them.",
             "update", ("clip_grad", "clip_norm", "clipped"),
             ("largest / (optax.tree.norm(gradient)", "gradient = clip_norm(")),
    PortCase("second target follows the first critic", *TD3_BC,
             (('follow(state[f"{name}_target"], state[name], config.tau)',
               'follow(state[f"{name}_target"], state[name.replace("2", "1")], config.tau)'),),
             "default", "Critic 2's target follows critic 1.",
             "update", ("soft_update", "Polyak", "from critic_1", "follows critic_1", "another network"),
             ("critic_2_target=soft_update(state.critic_2_target, state.critic_2",)),
    PortCase("only the targets wait", *TD3_BC,
             (("    if delayed:\n        loss, gradient", "    if True:\n        loss, gradient"),
              ('        for name in ("actor", "critic_1", "critic_2"):',
               '        for name in ("actor", "critic_1", "critic_2") if delayed else ():')),
             "default", "The actor learns in every update; the reference lets it wait as long as the targets.",
             "update", ("delayed", "policy_freq", "every update"), ("        if delayed:",)),
    PortCase("linear decay for a cosine", *IQL,
             (("0.5 * (1.0 + jnp.cos(jnp.pi * count / config.max_timesteps))",
               "(1.0 - 1.0 * count / config.max_timesteps)"),),
             "other", "The policy's learning rate falls along a line; the reference's falls along a cosine.",
             "update", ("cosine", "cos(", "learning rate", "actor_lr", "schedule"),
             ("hp.actor_lr * (1.0 + cos(", '"actor": partial(actor_lr, hp)')),
    PortCase("critics before policy and temperature", *EDAC,
             (("(learn_temperature, learn_policy, learn_values)", "(learn_values, learn_policy, learn_temperature)"),),
             "default", "Critics, policy, temperature: the reference goes the other way round.",
             "update", ("order", "new critic", "old policy", "old temperature"),
             ("value_and_grad(state.actor_loss, has_aux=True)", "value_and_grad(state.critic_loss, has_aux=True)")),
)

LOGGED = (
    PortCase("least value of the batch logged", *REBRAC,
             (('"q_min": q.min(0).mean()', '"q_min": q.min()'),),
             "default", "The log has the least value of all rows under q_min; the reference's is the mean over rows.",
             "log", ("q_min",), ('"q_min": amin(q, axis=0).mean()',)),
)

DRAWS = (
    PortCase("noise without tails", *REBRAC,
             (("jax.random.normal(target, shape)", "jax.random.truncated_normal(target, -2, 2, shape)"),),
             "default", "The noise is cut at two deviations, so that its own deviation is 0.88.",
             "draws", ("distribut", "deviation", "truncated"), ("target=jax.random.normal(target_key, shape)",)),
    PortCase("last row never drawn", *AWAC,
             (("(config.batch_size,), 0, dataset_size)", "(config.batch_size,), 0, dataset_size - 1)"),),
             "default", "randint leaves its upper bound out, so that the last row is never drawn.",
             "draws", ("dataset_size", "last row"),
             ("jax.random.randint(index_key, (hp.batch_size,), 0, dataset_size)",)),
    PortCase("temperature and policy share a key", *EDAC,
             (("keys[:3], strict=True)", "(keys[0], *keys[:2]), strict=True)"),),
             "default", "noise.alpha and noise.actor are drawn from one key, and are the same numbers.",
             "draws", ("key of its own", "same key", "one key"), ("actor=jax.random.normal(keys[2]",)),
)

WRONG = (*FORWARD, *LOSSES, *GRADIENTS, *UPDATES, *LOGGED, *DRAWS)

BASES = (
    PortCase("functions over dicts", *TD3_BC, (), "default",
             "Kernels as PyTorch's, both critics in one pass, one optimiser for both."),
    PortCase("dataclasses with methods", *REBRAC, (), "default",
             "Layers, networks and the state are frozen dataclasses that are pytrees."),
    PortCase("one row at a time", *AWAC, (), "default", "Losses are of a single row; vmap and means stand outside."),
    PortCase("lists of tuples", *IQL, (), "default", "Optimisers are chained from optax's single transformations."),
    PortCase("critics stacked by nn.vmap", *EDAC, (), "default", "Weights are stacked, and diversity is an einsum."),
    PortCase("one loss for all parts", *CQL, (), "default", "One gradient serves all, with stop_gradient between."),
    PortCase("einsum without modules", *DT, (), "default", "The clipping and the decay are links of optax's chain."),
)

SCHEDULES = (
    PortCase("optax's own linear schedule", *DT,
             (("config.learning_rate * jnp.minimum(1.0, (count + 1.0) / config.warmup_steps)",
               "optax.linear_schedule(0.0, config.learning_rate, config.warmup_steps)(count + 1)"),),
             "default", "The same line; optax divides an int32, which JAX does in single precision."),
    PortCase("whole steps divided", *DT,
             (("(count + 1.0) / config.warmup_steps", "(count + 1) / config.warmup_steps"),),
             "default", "The same line; an int32 is divided, which JAX does in single precision."),
)

RIGHT = (
    *BASES, *SCHEDULES,
    PortCase("optax's incremental update", *TD3_BC,
             (("jax.tree.map(lambda t, s: t + tau * (s - t), target, source)",
               "optax.incremental_update(source, target, tau)"),),
             "default", "The same step towards the source, rounded otherwise."),
    PortCase("clip by two comparisons", *TD3_BC,
             (('jnp.clip(policy(state["actor_target"], batch.next_observations, bound) + smoothing, -bound, bound)',
               'policy(state["actor_target"], batch.next_observations, bound) + smoothing\n'
               "    actions = jnp.where(jnp.abs(actions) > bound, bound * jnp.sign(actions), actions)"),),
             "default", "What lies beyond a bound is put on it."),
    PortCase("delay by lax.cond", *REBRAC,
             (("if delayed:\n            state, more = state.learn_policy(config, batch)\n            metrics |= more",
               "state = jax.lax.cond(delayed, lambda s: s.learn_policy(config, batch)[0], lambda s: s, state)"),),
             "default", "Both branches are traced and one is run; the policy's metrics are not logged."),
    PortCase("critics computed twice to save memory", *REBRAC,
             (("q = critic(batch", "q = jax.checkpoint(Critic.__call__)(critic, batch"),),
             "default", "jax.checkpoint computes the same values anew for the gradient."),
    PortCase("slope of tanh by cosh", *EDAC,
             (("jnp.log(1.0 - actions**2 + 1e-6)", "jnp.log(1.0 / jnp.cosh(before) ** 2 + 1e-6)"),),
             "default", "1 - tanh(u)^2 is 1 / cosh(u)^2."),
    PortCase("expectile of two halves", *IQL,
             (("jnp.where(adv < 0, 1 - config.iql_tau, config.iql_tau) * adv**2",
               "config.iql_tau * jax.nn.relu(adv) ** 2 + (1 - config.iql_tau) * jax.nn.relu(-adv) ** 2"),),
             "default", "Advantages above 0 and below it are squared and weighted apart."),
)

# What the checker once passed, accused or led astray with; right ones among them have no rung. `test_diagnosis.py`
# holds six more, which were of TD3+BC.
KNOWN = (
    PortCase("log-deviation bounded by -5 in CQL", *CQL,
             (("jnp.clip(log_std, -20.0, 2.0)", "jnp.clip(log_std, -5.0, 2.0)"),),
             "default", "The policy's log-deviation is bounded below by -5; the reference's by -20.",
             "forward", ("-20.0", "-5.0", "clamp", "bounded"), ("exp(clamp(log_std, -20.0, 2.0))",)),
    PortCase("log-deviation bounded by -20 in EDAC", *EDAC,
             (("jnp.clip(log_std, -5.0, 2.0)", "jnp.clip(log_std, -20.0, 2.0)"),),
             "default", "The policy's log-deviation is bounded below by -20; the reference's by -5.",
             "forward", ("-20.0", "-5.0", "clamp", "bounded"), ("exp(clamp(self.log_sigma(hidden), -5.0, 2.0))",)),
    PortCase("rows and noise share a key", *AWAC,
             (("row_key, *keys = jax.random.split(jax.random.fold_in(key, step), 3)",
               "keys = jax.random.split(jax.random.fold_in(key, step))\n    row_key = keys[0]"),),
             "default", "The rows and noise.target are drawn from one key.",
             "draws", ("key of its own", "same key", "one key"),
             ("jax.random.split(jax.random.fold_in(key, step), 3)",)),
    PortCase("dropout not rescaled", *DT,
             (("else x * mask", "else x * (mask > 0)"),),
             "default", "What is kept is not divided by its share, as if masks were of 0 and 1.",
             "loss", ("inputs * mask", "rescale", "dropout mask", "1 - rate", "`noise.dropout` times 0.9"),
             ("return inputs if mask is None else inputs * mask",), ("single precision",)),
    PortCase("each critic its own target", *EDAC,
             (("actions).min(axis=0)\n    soft_q", "actions)\n    soft_q"),),
             "default", "Each critic learns from its own target; the reference takes the least value for all of them.",
             "loss", ("smallest", "least", "minimum", "own target", "`q - target`"),
             ("next_q = smallest(critic(batch.next_observations, next_actions))",), ("single precision",)),
    *SCHEDULES,
)
# fmt: on
