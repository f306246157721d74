"""Behaviour cloning of finite actions on the ladder."""

from parity_tests.families import Family
from parity_tests.pair import Loss, Mistake, Pair, load_choices

SMALL = {"hidden_dims": (64, 48)}

PAIR = Pair(
    name="discrete/bc",
    title="BC, finite actions",
    family=Family.FINITE,
    use="A baseline for the others: it copies the data's likeliest action.",
    paper="Pomerleau 1991",
    url="https://doi.org/10.1162/neco.1991.3.1.88",
    benchmark_updates=4000,
    outputs=lambda twin, batch: {"actor": twin.actor(batch.observations)},
    losses={"actor_loss": Loss(of=("actor",), inputs=("batch",))},
    variants={
        "default": SMALL,
        # The form of d3rlpy 2.8.1
        "log-probabilities": SMALL | {"penalize_log_probs": True, "beta": 0.1, "learning_rate": 3e-3, "adam_eps": 3e-4},
        "images": SMALL | {"encoder": "minatar", "frame_stack": 2, "hidden_dims": (24,), "adam_eps": 3e-3},
    },
    load=load_choices,
    draw_inputs=lambda dataset, action_dim: (len(dataset[0]),),
)

MISTAKES = [
    Mistake("another activation", "(Linear(width), nn.relu)", "(Linear(width), nn.tanh)", "forward"),
    Mistake("probabilities for logits", "log_probs = log_softmax(logits)", "log_probs = log_softmax(jnp.exp(logits))",
            "loss"),
    Mistake("log-probabilities over the batch", "log_softmax(logits)", "log_softmax(logits, axis=0)", "loss"),
    Mistake("sum over the batch", ".sum(axis=-1).mean()", ".sum(axis=-1).sum()", "loss"),
    Mistake("mean over actions", ".sum(axis=-1).mean()", ".mean(axis=-1).mean()", "loss"),
    Mistake("actions counted from 1", "one_hot(batch.actions,", "one_hot(batch.actions - 1,", "loss"),
    Mistake("smoothed labels", "one_hot(batch.actions, logits.shape[-1])",
            "(0.9 * one_hot(batch.actions, logits.shape[-1]) + 0.1 / logits.shape[-1])", "loss"),
    Mistake("outputs for log-probabilities", "log_probs if hp.penalize_log_probs else logits", "logits", "loss",
            "log-probabilities"),
    Mistake("log-probabilities for outputs", "log_probs if hp.penalize_log_probs else logits", "log_probs", "loss"),
    Mistake("penalty summed over actions", "else logits).mean()", "else logits).sum(axis=-1).mean()", "loss"),
    Mistake("weight of the penalty forgotten", "hp.beta * square(", "square(", "loss"),
    Mistake("penalty left out", "return imitation_loss + regularization_loss, terms", "return imitation_loss, terms",
            "loss"),
    Mistake("next observations", "logits = actor(batch.observations)", "logits = actor(batch.next_observations)",
            "loss"),
    Mistake("no gradient through the penalty", "square(log_probs if hp.penalize_log_probs else logits)",
            "square(jax.lax.stop_gradient(log_probs if hp.penalize_log_probs else logits))", "gradient"),
    Mistake("the unlikeliest action", "return argmax(actor(observations), axis=-1)",
            "return jnp.argmin(actor(observations), axis=-1)", "act"),
    Mistake("the weight missing in the log", '"regularization_loss": regularization_loss}',
            '"regularization_loss": regularization_loss / hp.beta}', "log"),
    Mistake("another learning rate", "optax.adam(hp.learning_rate,", "optax.adam(1e-3,", "update",
            "log-probabilities"),
    Mistake("Adam's epsilon left at its default", "optax.adam(hp.learning_rate, eps=hp.adam_eps)",
            "optax.adam(hp.learning_rate)", "update", "log-probabilities"),
    Mistake("same rows at every update", "jax.random.fold_in(key, step)", "jax.random.fold_in(key, 0 * step)",
            "draws"),
    Mistake("rows beyond the data", "(hp.batch_size,), 0, dataset_size)",
            "(hp.batch_size,), dataset_size, 2 * dataset_size)", "draws"),
]  # fmt: skip
