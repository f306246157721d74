"""CQL of finite actions on the ladder."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import Facts, Loss, Mistake, Pair, load_choices

SMALL = {"hidden_dims": (64, 48), "target_update_interval": 2, "learning_rate": 1e-3}


def corner(trainer: Any) -> None:
    """Targets that prefer other actions than the critics do, and critics that differ from each other by more than 1."""
    for member in trainer.critics_target.members:
        member[-1].weight.data.mul_(-3.0)
    for number, member in enumerate(trainer.critics.members):
        member[-1].bias.data.add_(0.5 * number)


PAIR = Pair(
    name="discrete/cql",
    title="CQL, finite actions",
    family=Family.FINITE,
    use="A first choice for mixed data: values of actions outside the data are held low.",
    paper="Kumar et al. 2020",
    url="https://arxiv.org/abs/2006.04779",
    benchmark_updates=2000,
    outputs=lambda twin, batch: {
        "critics": twin.critics(batch.observations),
        "acting": twin.acting(batch.observations),
    },
    corners=("acting",),
    losses={"critic_loss": Loss(of=("critics",), inputs=("batch",))},
    variants={
        "default": SMALL,
        # The form of d3rlpy 2.8.1, with several critics
        "double": SMALL
        | {"double": True, "target_update_interval": 3, "n_critics": 3, "cql_alpha": 4.0}
        | {"discount": 0.9, "learning_rate": 3e-3, "adam_eps": 3e-4},
        "ensemble": SMALL | {"n_critics": 2, "target_update_interval": 5, "cql_alpha": 0.3},
    },
    corner=corner,
    load=load_choices,
    draw_inputs=lambda dataset, action_dim: (len(dataset[0]),),
    update_statics=lambda config, step: {"copied": (step - 1) % config.target_update_interval == 0},
    interval_statics=lambda config, start, num_updates: {"phase": start % config.target_update_interval},
    facts=Facts(rewarded="critic_loss", target_inputs=("batch",), rate=""),
)

MISTAKES = [
    Mistake("another activation", "(Linear(width), nn.relu)", "(Linear(width), nn.tanh)", "forward"),
    Mistake("squared error", "where(abs(error) < 1.0, 0.5 * square(error), abs(error) - 0.5)", "square(error)", "loss"),
    Mistake("a jump between square and line", "abs(error) - 0.5)", "abs(error))", "loss"),
    Mistake("mean over critics", "huber(q - target).mean(axis=1).sum()", "huber(q - target).mean()", "loss", "double"),
    Mistake("target broadcast to (B, B)", "huber(q - target).mean(axis=1)",
            "huber(q[..., None] - target).mean(axis=(1, 2))", "loss"),
    Mistake("soft maximum of the smallest critic", "mean = q.mean(axis=0)\n    return",
            "mean = q.min(axis=0)\n    return", "loss", "ensemble"),
    Mistake("soft maximum of each critic", "mean = q.mean(axis=0)\n    return logsumexp(mean, axis=-1)",
            "mean = q.mean(axis=0)\n    return logsumexp(q, axis=-1).mean(axis=0)", "loss", "ensemble"),
    Mistake("the mean over actions for the data's", "- value(mean, actions)", "- mean.mean(axis=-1)", "loss"),
    Mistake("soft maximum over the batch", "logsumexp(mean, axis=-1)", "logsumexp(mean, axis=0)[actions]", "loss"),
    Mistake("the number of actions subtracted", "logsumexp(mean, axis=-1) -",
            "logsumexp(mean, axis=-1) - jnp.log(mean.shape[-1]) -", "loss"),
    Mistake("the largest value, not the soft one", "logsumexp(mean, axis=-1)", "mean.max(axis=-1)", "loss"),
    Mistake("no gradient through the data's action", "- value(mean, actions)",
            "- jax.lax.stop_gradient(value(mean, actions))", "gradient"),
    Mistake("no gradient through the soft maximum", "logsumexp(mean, axis=-1)",
            "jax.lax.stop_gradient(logsumexp(mean, axis=-1))", "gradient"),
    Mistake("conservative about the targets", "gap(values, batch.actions)",
            "gap(self.critics_target(batch.observations), batch.actions)", "loss"),
    Mistake("conservative in the next state", "gap(values, batch.actions)",
            "gap(critics(batch.next_observations), batch.actions)", "loss"),
    Mistake("sum over the batch", "gap(values, batch.actions).mean()", "gap(values, batch.actions).sum()", "loss"),
    Mistake("weight forgotten", "self.hp.cql_alpha * conservative_loss", "conservative_loss", "loss", "double"),
    Mistake("both terms weighted", "td_loss + self.hp.cql_alpha * conservative_loss",
            "self.hp.cql_alpha * (td_loss + conservative_loss)", "loss", "double"),
    Mistake("half of the temporal difference", "td_loss + self.hp.cql_alpha", "0.5 * td_loss + self.hp.cql_alpha",
            "loss"),
    Mistake("the weighted term in the log", '"conservative_loss": conservative_loss}',
            '"conservative_loss": self.hp.cql_alpha * conservative_loss}', "log", "double"),
    Mistake("inverted done flag", "(1.0 - batch.terminals)", "batch.terminals", "loss", breaks="terminals_are_masked"),
    Mistake("no discount", "hp.discount * next_q", "next_q", "loss"),
    Mistake("largest target value", "next_q = amin(", "next_q = jnp.max(", "loss", "double"),
    Mistake("choice by the smallest value", "argmax(q.mean(axis=0), axis=-1)", "argmax(q.min(axis=0), axis=-1)",
            "loss", "double"),
    Mistake("worst action", "argmax(q.mean(axis=0), axis=-1)", "jnp.argmin(q.mean(axis=0), axis=-1)", "act"),
    Mistake("Double DQN's choice by the target", "critics(batch.next_observations) if hp.double else values",
            "values", "loss", "double"),
    Mistake("DQN's choice by the critics", "critics(batch.next_observations) if hp.double else values",
            "critics(batch.next_observations)", "loss"),
    Mistake("gradient through the target", "value_and_grad(state.critic_loss, has_aux=True)(state.critics, batch)",
            "value_and_grad(lambda critics: state.replace(critics_target=critics).critic_loss(critics, batch), "
            "has_aux=True)(state.critics)", "update"),
    Mistake("actions counted from 1", "one_hot(actions, q.shape[-1])", "one_hot(actions - 1, q.shape[-1])", "loss"),
    Mistake("target copied one update late", "copied = (step - start + phase) % hp.target_update_interval == 0",
            "copied = (step - start + phase + 1) % hp.target_update_interval == 0", "shipped path"),
    Mistake("phase forgotten", "(step - start + phase)", "(step - start)", "shipped path"),
    Mistake("target copied at every update", "partial(where, copied)", "partial(where, True)", "update",
            breaks="targets_move_once_when_due"),
    Mistake("target from the old critics", "partial(where, copied), state.critics, state.critics_target)",
            "partial(where, copied), self.critics, state.critics_target)", "update",
            breaks="targets_move_once_when_due"),
    Mistake("Adam's epsilon left at its default", "optax.adam(hp.learning_rate, eps=hp.adam_eps)",
            "optax.adam(hp.learning_rate)", "update", "double"),
    Mistake("same rows at every update", "jax.random.randint(jax.random.fold_in(key, step),",
            "jax.random.randint(jax.random.fold_in(key, 0 * step),", "draws"),
]  # fmt: skip
