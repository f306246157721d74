"""CQL of finite actions on the ladder."""

from typing import Any

import torch

from parity_tests.families import Family
from parity_tests.pair import Facts, Loss, Mistake, Pair, load_choices

SMALL = {"hidden_dims": (64, 48), "target_update_interval": 2, "learning_rate": 1e-3}


def last_layer(member: Any) -> Any:
    """Of a critic, the layer that values actions."""
    return member.head if hasattr(member, "head") else member[-1]


def corner(trainer: Any) -> None:
    """Targets that prefer other actions than the critics do, and values of which some differ by more than 1.

    The targets' mean over states is 0, so no action is always the best and no critic always the smallest.
    """
    targets, first = trainer.critics_target, next(trainer.critics_target.parameters())
    for member in targets.members:
        last_layer(member).weight.data.mul_(-3.0)
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(500, first.shape[1], generator=generator, dtype=first.dtype)
    for member, quantiles in zip(targets.members, targets(states), strict=True):
        bias = last_layer(member).bias.data
        bias.view(quantiles.shape[1], -1).sub_(quantiles.detach().mean(axis=(0, 2))[:, None])
    for number, member in enumerate(trainer.critics.members):
        last_layer(member).bias.data.add_(0.5 * number)


PAIR = Pair(
    name="discrete/cql",
    title="CQL, finite actions",
    family=Family.FINITE,
    use="A first choice for mixed data: values of actions outside the data are held low.",
    paper="Kumar et al. 2020",
    url="https://arxiv.org/abs/2006.04779",
    benchmark_updates=2000,
    outputs=lambda twin, batch: {
        f"{name} {number}": quantiles
        for name in ("critics", "acting")
        for number, quantiles in enumerate(getattr(twin, name)(batch.observations), start=1)
    },
    corners=("acting",),
    losses={"critic_loss": Loss(of=("critics",))},
    variants={
        "default": SMALL,
        # The form of d3rlpy 2.8.1, with several critics
        "double": SMALL
        | {"double": True, "target_update_interval": 3, "n_critics": 3, "cql_alpha": 4.0}
        | {"discount": 0.9, "learning_rate": 3e-3, "adam_eps": 3e-4},
        "quantiles": SMALL | {"critic": "qr", "n_quantiles": 5, "n_critics": 3, "double": True, "learning_rate": 3e-3},
        "implicit": SMALL
        | {"critic": "iqn", "n_quantiles": 6, "n_greedy_quantiles": 4, "embed_size": 8, "n_critics": 2},
        "ensemble": SMALL | {"n_critics": 2, "target_update_interval": 5, "cql_alpha": 0.3},
    },
    corner=corner,
    load=load_choices,
    draw_inputs=lambda dataset, action_dim: (len(dataset[0]),),
    update_statics=lambda config, step: {"copied": (step - 1) % config.target_update_interval == 0},
    interval_statics=lambda config, start, num_updates: {"phase": start % config.target_update_interval},
    records_on_cpu=False,
    facts=Facts(rewarded="critic_loss", rate=""),
)

MISTAKES = [
    Mistake("another activation", "(Linear(width), nn.relu)", "(Linear(width), nn.tanh)", "forward"),
    Mistake("squared error", "where(abs(error) < 1.0, 0.5 * square(error), abs(error) - 0.5)", "square(error)", "loss"),
    Mistake("a jump between square and line", "abs(error) - 0.5)", "abs(error))", "loss"),
    Mistake("mean over critics", "target).mean(axis=1).sum()", "target).mean()", "loss", "double"),
    Mistake("target broadcast to (B, B)", "q[:, :, None]", "q[:, None]", "loss"),
    Mistake("soft maximum of the smallest critic", "values = expected(q)\n    return",
            "values = stack([each.mean(axis=-1) for each in q]).min(axis=0)\n    return", "loss", "ensemble"),
    Mistake("soft maximum of each critic", "logsumexp(values, axis=-1)",
            "logsumexp(stack([each.mean(axis=-1) for each in q]), axis=-1).mean(axis=0)", "loss", "ensemble"),
    Mistake("soft maximum of all quantiles", "logsumexp(values, axis=-1)",
            "logsumexp(jnp.concatenate(q, axis=-1), axis=(1, 2))", "loss", "quantiles"),
    Mistake("the mean over actions for the data's", "(values * one_hot(actions, values.shape[-1])).sum(axis=-1)",
            "values.mean(axis=-1)", "loss"),
    Mistake("soft maximum over the batch", "logsumexp(values, axis=-1)", "logsumexp(values, axis=0)[actions]", "loss"),
    Mistake("the number of actions subtracted", "logsumexp(values, axis=-1) -",
            "logsumexp(values, axis=-1) - jnp.log(values.shape[-1]) -", "loss"),
    Mistake("the largest value, not the soft one", "logsumexp(values, axis=-1)", "values.max(axis=-1)", "loss"),
    Mistake("no gradient through the data's action", "(values * one_hot", "(jax.lax.stop_gradient(values) * one_hot",
            "gradient"),
    Mistake("no gradient through the soft maximum", "logsumexp(values, axis=-1)",
            "jax.lax.stop_gradient(logsumexp(values, axis=-1))", "gradient"),
    Mistake("conservative about the targets", "gap(quantiles, batch.actions)",
            "gap(self.critics_target(batch.observations), batch.actions)", "loss"),
    Mistake("conservative in the next state", "gap(quantiles, batch.actions)",
            "gap(critics(batch.next_observations), batch.actions)", "loss"),
    Mistake("one pass for error and conservative term", "quantiles = critics(batch.observations, noise.conservative)",
            "pass", "loss", "implicit"),
    Mistake("sum over the batch", "gap(quantiles, batch.actions).mean()", "gap(quantiles, batch.actions).sum()",
            "loss"),
    Mistake("weight forgotten", "self.hp.cql_alpha * conservative_loss", "conservative_loss", "loss", "double"),
    Mistake("both terms weighted", "td_loss + self.hp.cql_alpha * conservative_loss",
            "self.hp.cql_alpha * (td_loss + conservative_loss)", "loss", "double"),
    Mistake("half of the temporal difference", "td_loss + self.hp.cql_alpha", "0.5 * td_loss + self.hp.cql_alpha",
            "loss"),
    Mistake("the weighted term in the log", '"conservative_loss": conservative_loss}',
            '"conservative_loss": self.hp.cql_alpha * conservative_loss}', "log", "double"),
    Mistake("inverted done flag", "(1.0 - batch.terminals[:, None])", "batch.terminals[:, None]", "loss",
            breaks="terminals_are_masked"),
    Mistake("no discount", "hp.discount * next_q", "next_q", "loss"),
    Mistake("largest target value", "argmin(q.mean(axis=-1), axis=0)", "argmax(q.mean(axis=-1), axis=0)", "loss",
            "double"),
    Mistake("choice by the smallest value", "argmax(expected(q), axis=-1)",
            "argmax(stack([each.mean(axis=-1) for each in q]).min(axis=0), axis=-1)", "loss", "double"),
    Mistake("worst action", "argmax(expected(q), axis=-1)", "argmin(expected(q), axis=-1)", "act"),
    Mistake("Double DQN's choice by the target", "chooser = critics if hp.double else target", "chooser = target",
            "loss", "double"),
    Mistake("DQN's choice by the critics", "chooser = critics if hp.double else target", "chooser = critics", "loss"),
    Mistake("gradient through the target",
            "value_and_grad(state.critic_loss, has_aux=True)(state.critics, batch, noise)",
            "value_and_grad(lambda critics: state.replace(critics_target=critics).critic_loss(critics, batch, noise), "
            "has_aux=True)(state.critics)", "update"),
    Mistake("actions counted from 1", "one_hot(actions, q[0].shape[1])", "one_hot(actions - 1, q[0].shape[1])", "loss"),
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
    Mistake("same rows at every update", "key = jax.random.fold_in(key, step)",
            "key = jax.random.fold_in(key, 0 * step)", "draws"),
    Mistake("fractions at the ends of their parts", "(bounds[1:] + bounds[:-1]) / 2.0", "bounds[1:]", "loss",
            "quantiles"),
    Mistake("mean over the critic's quantiles", "loss.sum(axis=-1).mean(axis=-1)", "loss.mean(axis=(2, 3))", "loss",
            "quantiles"),
    Mistake("reversed quantiles", "(error < 0.0)", "(error > 0.0)", "loss", "quantiles"),
    Mistake("absolute error of quantiles", "loss = abs(fractions[..., None, :] - (error < 0.0)) * loss",
            "loss = abs(fractions[..., None, :] - (error < 0.0)) * abs(error)", "loss", "quantiles"),
    Mistake("a fraction for each of the target's quantiles", "fractions[..., None, :]", "fractions[..., None]", "loss",
            "quantiles"),
    Mistake("each quantile against its own of the target", "target[:, :, None] - q[:, :, None]",
            "(target - q)[:, :, None]", "loss", "quantiles"),
    Mistake("outputs by quantile, then by action", "reshape(-1, self.action_dim, self.n_quantiles)",
            "reshape(-1, self.n_quantiles, self.action_dim).swapaxes(1, 2)", "forward", "quantiles"),
    Mistake("smallest quantiles of any critic", "(q * critic.T[..., None]).sum(axis=0)",
            "q.min(axis=0)", "loss", "quantiles"),
    Mistake("a critic chosen for the whole batch", "argmin(q.mean(axis=-1), axis=0)",
            "argmin(q.mean(axis=(1, 2)))[None].repeat(q.shape[1])", "loss", "quantiles"),
    Mistake("choice and value at the same fractions", "chooser(batch.next_observations, noise.choice)",
            "chooser(batch.next_observations, noise.target)", "loss", "implicit"),
    Mistake("the target at the fractions of the error", "target(batch.next_observations, noise.target)",
            "target(batch.next_observations, noise.error)", "loss", "implicit"),
    Mistake("the error's pass at the target's fractions", "critics(batch.observations, noise.error)",
            "critics(batch.observations, noise.target)", "loss", "implicit"),
    Mistake("the error weighed by the target's fractions", "fractions(self.hp, q, noise.error)",
            "fractions(self.hp, q, noise.target)", "loss", "implicit"),
    Mistake("one draw of fractions for all passes", "for each in keys]", "for each in [keys[0]] * len(keys)]", "draws",
            "implicit"),
]  # fmt: skip
