"""AWR on the ladder. An update is an iteration of many gradient steps, made few here."""

from typing import Any

import numpy as np

from parity_tests.families import Family
from parity_tests.pair import Facts, Loss, Mistake, Pair
from shared.data.returns import extract_episodes
from shared.data.transitions import normalise_states
from shared.frameworks.twins import load_twin

# Eight slices of the ladder's batches, and one of the smallest that any test draws. The last step of V and the last two
# of the policy fill no pass.
SMALL = {"vf_hidden_dims": (32, 24), "actor_hidden_dims": (24, 32)} | {
    "minibatch_size": 4,
    "vf_updates": 17,
    "actor_updates": 26,
}


def load(raw: dict[str, np.ndarray]) -> Any:
    """Transitions with normalised states, of episodes that a time limit cuts here and there.

    Rewards are tenths: from the ladder's largest ones plain gradient descent would not come back.
    """
    rows = np.arange(len(raw["timeouts"]))
    raw = raw | {"timeouts": raw["timeouts"] | (rows % 23 == 22), "rewards": 0.1 * raw["rewards"]}
    dataset: Any = extract_episodes(raw)
    return normalise_states(dataset)[0]


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """Every network's, and what an iteration computes with them once."""
    mean, std = twin.actor(batch.observations)
    returns = twin.lambda_returns(batch)
    return {
        "v": twin.vf(batch.observations),
        "mean": mean,
        "std": std,
        "returns": returns,
        "weights": twin.weights(batch, returns),
    }


def targets_and_weights(rng: np.random.Generator, size: int) -> dict[str, np.ndarray]:
    """Returns of both signs, and weights."""
    return {"returns": rng.normal(size=size, scale=10.0), "weights": rng.exponential(size=size)}


def unlikelihood(actor: Any, batch: Any) -> Any:
    """Behaviour cloning: the data's negative log-likelihood under the squashed normal policy."""
    return -load_twin("jax", "awr").log_prob(actor, batch.observations, batch.actions).mean()


PAIR = Pair(
    name="awr",
    title="AWR",
    family=Family.WEIGHTED,
    use="The simplest of its family: no critic of actions and no targets, but it needs whole episodes.",
    paper="Peng et al. 2019",
    url="https://arxiv.org/abs/1910.00177",
    benchmark_updates=2,
    outputs=outputs,
    losses={
        "value_loss": Loss(of=("vf",), inputs=("observations", "returns")),
        "actor_loss": Loss(of=("actor",), inputs=("observations", "actions", "weights")),
    },
    variants={
        "default": SMALL,
        # The paper's plain advantages, which reach the cap; slices that leave two rows of a batch out.
        "plain": SMALL
        | {"normalize_advantages": False, "beta": 0.5, "max_weight": 3.0, "lam": 0.7, "discount": 0.9}
        | {"minibatch_size": 5, "vf_updates": 13, "actor_updates": 7, "vf_lr": 2e-4, "actor_lr": 1e-4},
    },
    extra_inputs=targets_and_weights,
    draw_inputs=lambda dataset, action_dim: (len(dataset.actions),),
    take=lambda twin, dataset, indices, config: twin.take_of(dataset, indices),
    ready=lambda twin, dataset, config: twin.in_episodes(dataset),
    load=load,
    full_size={"vf_updates": 16, "actor_updates": 16},
    # At full size an update is 32 gradient steps, each of them rounded: 1.1e-5.
    float32={"update": 5e-5},
    facts=Facts(imitation=unlikelihood),
)

MISTAKES = [
    Mistake("deviation for its logarithm", "exp(clamp(self.log_std(encoded), -20.0, 2.0))",
            "clamp(self.log_std(encoded), -20.0, 2.0)", "forward"),
    Mistake("log-std bounded by -5", "clamp(self.log_std(encoded), -20.0, 2.0)",
            "clamp(self.log_std(encoded), -5.0, 2.0)", "forward"),
    Mistake("no slope of tanh in the density", "(log_density - log_slope).sum", "(log_density + 0.0 * log_slope).sum",
            "loss"),
    Mistake("epsilon beside the slope of tanh", "log_slope = log1p(squashed) + log1p(-squashed)",
            "log_slope = log(1.0 - square(squashed) + 1e-6)", "loss"),
    Mistake("slope of tanh added", "(log_density - log_slope).sum", "(log_density + log_slope).sum", "loss"),
    Mistake("density of the squashed action", "square(arctanh(squashed) - mean)", "square(squashed - mean)", "loss"),
    Mistake("mean of the log-density over the action", "log_slope).sum(axis=-1)", "log_slope).mean(axis=-1)", "loss"),
    Mistake("actions not scaled back", "clamp(actions / actor.module.max_action,", "clamp(actions,", "loss"),
    Mistake("actions cut elsewhere", "LARGEST = 0.999999", "LARGEST = 0.99999", "loss"),
    Mistake("bootstrap after a terminal", "(1.0 - episodes.terminals) * self.vf(", "self.vf(", "forward"),
    Mistake("no bootstrap after a time limit", "(1.0 - episodes.terminals) * self.vf(",
            "(1.0 - episodes.last) * self.vf(", "forward"),
    Mistake("returns run over time limits", "hp.lam * (1.0 - episodes.last)", "hp.lam * (1.0 - episodes.terminals)",
            "forward"),
    Mistake("last weight 1 - lambda", "(hp.discount - kept) * next_v", "hp.discount * (1.0 - hp.lam) * next_v",
            "forward"),
    Mistake("values not discounted", "(hp.discount - kept) * next_v", "(1.0 - kept / hp.discount) * next_v",
            "forward"),
    Mistake("values discounted twice", "(hp.discount - kept) * next_v", "hp.discount * (hp.discount - kept) * next_v",
            "forward"),
    Mistake("rewards of the future not discounted", "kept = hp.discount * hp.lam", "kept = hp.lam", "forward"),
    Mistake("lambda the wrong way round", "kept = hp.discount * hp.lam", "kept = hp.discount * (1.0 - hp.lam)",
            "forward"),
    Mistake("values of the present states", "Episodes(dataset, columns.next_observations,",
            "Episodes(dataset, columns.observations,", "forward"),
    Mistake("returns of eight transitions at most", "len(kept).bit_length()", "3", "forward"),
    Mistake("advantages normalised slice by slice", "            adv = (adv - adv.mean()) / (adv.std() + 1e-5)",
            "            adv = adv.reshape(-1, hp.minibatch_size)\n"
            "            adv = (adv - adv.mean(axis=1, keepdims=True)) / (adv.std(axis=1, keepdims=True) + 1e-5)\n"
            "            adv = adv.reshape(-1)", "forward"),
    Mistake("deviation of a sample", "adv.std()", "adv.std(ddof=1)", "forward"),
    Mistake("epsilon within the root", "(adv.std() + 1e-5)", "jnp.sqrt(adv.var() + 1e-5)", "forward"),
    Mistake("advantages not centred", "(adv - adv.mean()) / (adv.std()", "adv / (adv.std()", "forward"),
    Mistake("normalised all the same", "if hp.normalize_advantages:", "if True:", "forward", "plain"),
    Mistake("temperature multiplied", "exp(adv / hp.beta)", "exp(adv * hp.beta)", "forward", "plain"),
    Mistake("no cap", "minimum(exp(adv / hp.beta), hp.max_weight)", "exp(adv / hp.beta)", "forward", "plain"),
    Mistake("cap before the exponential", "minimum(exp(adv / hp.beta), hp.max_weight)",
            "exp(minimum(adv / hp.beta, hp.max_weight))", "forward", "plain"),
    Mistake("half the squared error", "square(v - returns).mean()", "0.5 * square(v - returns).mean()", "loss"),
    Mistake("returns broadcast to (B, B)", "square(v - returns).mean()", "square(v[:, None] - returns).mean()", "loss"),
    Mistake("weights broadcast to (B, B): behaviour cloning", "-(weights * log_probs).mean()",
            "-(weights[:, None] * log_probs).mean()", "gradient", breaks="actor_does_more_than_imitate"),
    Mistake("weights by the trained V", "slices(hp, batch.observations, batch.actions, weights)",
            "slices(hp, batch.observations, batch.actions, state.weights(batch, returns))", "update"),
    Mistake("rows dealt to the slices in turn", ".reshape(number, size, *column.shape[1:]) for",
            ".reshape(size, number, *column.shape[1:]).swapaxes(0, 1) for", "update"),
    Mistake("slices in another order", "column[: number * size].reshape", "column[: number * size][::-1].reshape",
            "update"),
    Mistake("the first rows left out", "column[: number * size].reshape", "column[-number * size :].reshape", "update",
            "plain"),
    Mistake("a last pass beyond the steps", "number = num_updates // len(parts[0])",
            "number = -(-num_updates // len(parts[0]))", "update"),
    Mistake("passes for steps", "number = num_updates // len(parts[0])", "number = num_updates", "update"),
    Mistake("steps of V and of the policy exchanged", "passes(value_step, state, hp.vf_updates, parts)",
            "passes(value_step, state, hp.actor_updates, parts)", "update"),
    Mistake("plain gradient descent", "momentum=MOMENTUM)", "momentum=0.0)", "update"),
    Mistake("momentum dampened", "return optax.sgd(lr, momentum=MOMENTUM)",
            "return optax.chain(optax.scale(1.0 - MOMENTUM), optax.sgd(lr, momentum=MOMENTUM))", "update"),
    Mistake("Nesterov's momentum", "momentum=MOMENTUM)", "momentum=MOMENTUM, nesterov=True)", "update"),
    Mistake("steps of one length, as Adam's", "return optax.sgd(lr, momentum=MOMENTUM)",
            "return optax.chain(optax.normalize_by_update_norm(), optax.sgd(lr, momentum=MOMENTUM))", "update"),
    Mistake("rates exchanged", '{"vf": state.hp.vf_lr, "actor": state.hp.actor_lr}',
            '{"vf": state.hp.actor_lr, "actor": state.hp.vf_lr}', "update"),
    Mistake("momentum lost between updates", "        state, hp = self, self.hp\n        returns",
            "        state, hp = self, self.hp\n        state = state.replace(vf_optimizer=jax.tree.map("
            "jnp.zeros_like, state.vf_optimizer))\n        returns", "update"),
    Mistake("the last step's loss", "value_losses.mean()", "value_losses[-1, -1]", "log"),
    Mistake("action not squashed", "actor.module.max_action * tanh(mean)", "actor.module.max_action * mean", "act"),
    Mistake("action not scaled", "actor.module.max_action * tanh(mean)", "tanh(mean)", "act"),
    Mistake("every update from the first batch", "return state.update(take_of(dataset, indices), noise)",
            "return state.update(take_of(dataset, draws[0][0]), noise)", "shipped path"),
    Mistake("same batch at every update", "jax.random.fold_in(key, step)", "jax.random.fold_in(key, 0 * step)",
            "draws"),
]  # fmt: skip
