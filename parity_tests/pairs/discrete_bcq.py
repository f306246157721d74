"""BCQ of finite actions on the ladder."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import Facts, Loss, Mistake, Pair, load_choices

SMALL = {"hidden_dims": (64, 48), "target_update_interval": 2, "learning_rate": 1e-3}


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """Values, the hidden layer that the imitator may stand on, and the imitator's logits."""
    q, features = twin.critics(batch.observations)
    return {"critics": q, "features": features, "imitator": twin.imitator(batch.observations, features)}


def corner(trainer: Any) -> None:
    """Targets that prefer other actions than the critics do, and critics that differ from each other by more than 1."""
    for member in trainer.critics_target.members:
        member.head.weight.data.mul_(-3.0)
    for number, member in enumerate(trainer.critics.members):
        member.head.bias.data.add_(0.5 * number)


PAIR = Pair(
    name="discrete/bcq",
    title="BCQ, finite actions",
    family=Family.FINITE,
    use="The data comes from narrow policies: only actions that it makes likely may be chosen.",
    paper="Fujimoto et al. 2019",
    url="https://arxiv.org/abs/1910.01708",
    benchmark_updates=2000,
    outputs=outputs,
    losses={"critic_loss": Loss(of=("critics", "imitator"), inputs=("batch",))},
    variants={
        "default": SMALL,
        # The form of d3rlpy 2.8.1, with several critics
        "own encoder": SMALL
        | {"share_encoder": False, "penalize_log_probs": True, "n_critics": 3, "target_update_interval": 3}
        | {"discount": 0.9, "learning_rate": 3e-3, "adam_eps": 3e-4, "beta": 0.1, "action_flexibility": 0.6},
        # The threshold itself is not above the threshold, so no action may be chosen
        "no flexibility": SMALL | {"action_flexibility": 1.0},
        "ensemble": SMALL | {"n_critics": 2, "target_update_interval": 5, "penalize_log_probs": True, "beta": 0.2},
        "images": SMALL | {"encoder": "minatar", "frame_stack": 2, "hidden_dims": (24,), "adam_eps": 3e-3},
    },
    corner=corner,
    load=load_choices,
    draw_inputs=lambda dataset, action_dim: (len(dataset[0]),),
    update_statics=lambda config, step: {"copied": (step - 1) % config.target_update_interval == 0},
    interval_statics=lambda config, start, num_updates: {"phase": start % config.target_update_interval},
    records_on_cpu=False,
    facts=Facts(rewarded="critic_loss", target_inputs=("batch",), rate=""),
)

MISTAKES = [
    Mistake("another activation", "(Linear(width), nn.relu)", "(Linear(width), nn.tanh)", "forward"),
    Mistake("the last critic's hidden layer", "return stack(values), features[0]", "return stack(values), features[-1]",
            "forward", "ensemble"),
    Mistake("squared error", "where(abs(error) < 1.0, 0.5 * square(error), abs(error) - 0.5)", "square(error)", "loss"),
    Mistake("mean over critics", "huber(q - target).mean(axis=1).sum()", "huber(q - target).mean()", "loss",
            "ensemble"),
    Mistake("target broadcast to (B, B)", "huber(q - target).mean(axis=1)",
            "huber(q[..., None] - target).mean(axis=(1, 2))", "loss"),
    Mistake("all actions are likely enough", "likelihood > imitator.module.action_flexibility", "likelihood > -1.0",
            "act"),
    Mistake("the likeliest action alone", "likelihood > imitator.module.action_flexibility", "likelihood >= 1.0",
            "act"),
    Mistake("actions at the threshold", "likelihood > imitator.module", "likelihood >= imitator.module", "act",
            "no flexibility"),
    Mistake("the unlikely actions", "likelihood > imitator.module", "likelihood < imitator.module", "act"),
    Mistake("likelihoods as they are", "exp(logits - amax(logits, axis=-1, keepdims=True))",
            "jax.nn.softmax(logits)", "act"),
    Mistake("likelihoods against the batch's largest", "amax(logits, axis=-1, keepdims=True)",
            "amax(logits)", "act"),
    Mistake("unlikely actions count as worth 0", "q.mean(axis=0), -math.inf)", "q.mean(axis=0), 0.0)", "act"),
    Mistake("choice by the smallest value", "q.mean(axis=0), -math.inf)", "q.min(axis=0), -math.inf)", "act",
            "ensemble"),
    Mistake("choice by the target", "constrained(critics, imitator, batch.next_observations)",
            "constrained(target, imitator, batch.next_observations)", "loss"),
    Mistake("the imitator in the present state", "constrained(critics, imitator, batch.next_observations)",
            "constrained(critics, imitator, batch.observations)", "loss"),
    Mistake("value by the critics", "value(target(batch.next_observations)[0], next_actions)",
            "value(critics(batch.next_observations)[0], next_actions)", "loss"),
    Mistake("largest target value", "next_q = amin(", "next_q = jnp.max(", "loss", "ensemble"),
    Mistake("inverted done flag", "(1.0 - batch.terminals)", "batch.terminals", "loss", breaks="terminals_are_masked"),
    Mistake("no discount", "hp.discount * next_q", "next_q", "loss"),
    Mistake("outputs for log-probabilities", "log_probs if hp.penalize_log_probs else logits", "logits", "loss",
            "ensemble"),
    Mistake("log-probabilities for outputs", "log_probs if hp.penalize_log_probs else logits", "log_probs", "loss"),
    Mistake("penalty summed over actions", "square(penalized).mean()", "square(penalized).sum(axis=-1).mean()",
            "loss"),
    Mistake("weight of the penalty forgotten", "hp.beta * square(penalized)", "square(penalized)", "loss"),
    Mistake("probabilities for logits", "log_probs = log_softmax(logits)", "log_probs = log_softmax(exp(logits))",
            "loss"),
    Mistake("the imitator's loss twice as much", "return td_loss + imitator_loss,",
            "return td_loss + 2.0 * imitator_loss,", "loss"),
    Mistake("hidden layers not moved by the imitator", "imitator(batch.observations, features), batch.actions",
            "imitator(batch.observations, jax.lax.stop_gradient(features)), batch.actions", "gradient"),
    Mistake("the imitator in the next state", "self.imitation(imitator(batch.observations, features)",
            "self.imitation(imitator(batch.next_observations, critics(batch.next_observations)[1])", "loss"),
    Mistake("gradient through the target", "value_and_grad(state.critic_loss, has_aux=True)(networks, batch)",
            "value_and_grad(lambda both: state.replace(critics_target=both[0]).critic_loss(both, batch), "
            "has_aux=True)(networks)", "update"),
    Mistake("actions counted from 1", "one_hot(actions, q.shape[-1])", "one_hot(actions - 1, q.shape[-1])", "loss"),
    Mistake("the imitator stands still", '        state = gradient_step(state, "imitator", gradients[1])\n', "",
            "update"),
    Mistake("target copied one update late", "copied = (step - start + phase) % hp.target_update_interval == 0",
            "copied = (step - start + phase + 1) % hp.target_update_interval == 0", "shipped path"),
    Mistake("target copied at every update", "partial(where, copied)", "partial(where, True)", "update",
            breaks="targets_move_once_when_due"),
    Mistake("target from the old critics", "partial(where, copied), state.critics, state.critics_target)",
            "partial(where, copied), self.critics, state.critics_target)", "update",
            breaks="targets_move_once_when_due"),
    Mistake("Adam's epsilon left at its default", "optax.adam(hp.learning_rate, eps=hp.adam_eps)",
            "optax.adam(hp.learning_rate)", "update", "own encoder"),
    Mistake("same rows at every update", "jax.random.randint(jax.random.fold_in(key, step),",
            "jax.random.randint(jax.random.fold_in(key, 0 * step),", "draws"),
]  # fmt: skip
