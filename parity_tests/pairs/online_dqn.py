"""DQN on the ladder: what it learns from a dataset, and from what it has seen of an environment."""

from typing import Any

import numpy as np

from parity_tests.families import Family
from parity_tests.pair import Facts, Loss, Mistake, Pair, load_choices

SMALL = {"env": "CartPole-v1", "hidden_dims": (64, 48), "target_update_interval": 2, "learning_rate": 1e-3}
# Rows that count as experience so far: fewer than a dataset has, so that a draw beyond them shows.
FILLED = 150


def corner(trainer: Any) -> None:
    """Targets that prefer other actions than the critics do, and values of which some differ by more than 1."""
    for member in trainer.critics_target.members:
        member[-1].weight.data.mul_(-3.0)
    for number, member in enumerate(trainer.critics.members):
        member[-1].bias.data.add_(0.5 * number)


def explored(rng: Any, rows: int, action_dim: int) -> dict[str, Any]:
    """Uniform numbers on both sides of epsilon, and of its ends."""
    uniform, epsilon = rng.random(rows), rng.random(rows)
    uniform[0] = epsilon[0] = 0.5
    return {"random": rng.integers(action_dim, size=rows), "uniform": uniform, "epsilon": epsilon}


def schedules(twin: Any) -> dict[str, Any]:
    """Shares of random actions and numbers of updates, over the steps of a run."""
    config = twin.TrainConfig(
        batch_size=8, epsilon_start=0.9, epsilon_end=0.2, epsilon_steps=20, update_interval=4, n_updates=2
    )
    later = twin.TrainConfig(batch_size=8, learning_starts=11)
    return {
        "epsilons": twin.epsilons(config, 5, 30),
        "updates": np.array([[twin.updates_until(each, step) for step in range(40)] for each in (config, later)]),
    }


PAIR = Pair(
    name="online/dqn",
    title="DQN, online",
    family=Family.FINITE,
    use="It learns while it acts, or from data. Double DQN is a setting.",
    paper="Mnih et al. 2015",
    url="https://doi.org/10.1038/nature14236",
    benchmark_updates=2000,
    outputs=lambda twin, batch: {
        "critics": twin.critics(batch.observations),
        "acting": twin.acting(batch.observations),
    },
    corners=("acting",),
    losses={"critic_loss": Loss(of=("critics",), inputs=("batch",))},
    variants={
        "default": SMALL,
        "double": SMALL
        | {"double": True, "target_update_interval": 3, "n_critics": 3}
        | {"discount": 0.9, "learning_rate": 3e-3, "adam_eps": 3e-4},
        "ensemble": SMALL | {"n_critics": 2, "target_update_interval": 5},
    },
    corner=corner,
    load=load_choices,
    draw_inputs=lambda dataset, action_dim: (FILLED,),
    update_statics=lambda config, step: {"copied": (step - 1) % config.target_update_interval == 0},
    interval_statics=lambda config, start, num_updates: {
        "size": FILLED,
        "phase": start % config.target_update_interval,
    },
    other_draws=("draw_exploration",),
    explored=explored,
    prepared=schedules,
    facts=Facts(rewarded="critic_loss", target_inputs=("batch",), rate=""),
)

MISTAKES = [
    Mistake("another activation", "(Linear(width), nn.relu)", "(Linear(width), nn.tanh)", "forward"),
    Mistake("squared error", "where(abs(error) < 1.0, 0.5 * square(error), abs(error) - 0.5)", "square(error)", "loss"),
    Mistake("doubled Huber", "where(abs(error) < 1.0, 0.5 * square(error), abs(error) - 0.5)",
            "2.0 * where(abs(error) < 1.0, 0.5 * square(error), abs(error) - 0.5)", "loss"),
    Mistake("a jump between square and line", "abs(error) - 0.5)", "abs(error))", "loss"),
    Mistake("mean over critics", "huber(q - target).mean(axis=1).sum()", "huber(q - target).mean()", "loss", "double"),
    Mistake("target broadcast to (B, B)", "huber(q - target).mean(axis=1)",
            "huber(q[..., None] - target).mean(axis=(1, 2))", "loss"),
    Mistake("inverted done flag", "(1.0 - batch.terminals)", "batch.terminals", "loss", breaks="terminals_are_masked"),
    Mistake("terminals forgotten", " * (1.0 - batch.terminals)", "", "loss", breaks="terminals_are_masked"),
    Mistake("no discount", "hp.discount * next_q", "next_q", "loss"),
    Mistake("largest target value", "next_q = amin(", "next_q = jnp.max(", "loss", "double"),
    Mistake("mean target value", "next_q = amin(", "next_q = jnp.mean(", "loss", "ensemble"),
    Mistake("choice by the smallest value", "argmax(q.mean(axis=0), axis=-1)", "argmax(q.min(axis=0), axis=-1)",
            "loss", "double"),
    Mistake("choice by the first critic", "argmax(q.mean(axis=0), axis=-1)", "argmax(q[0], axis=-1)", "act",
            "double"),
    Mistake("worst action", "argmax(q.mean(axis=0), axis=-1)", "jnp.argmin(q.mean(axis=0), axis=-1)", "act"),
    Mistake("choice over the batch", "argmax(q.mean(axis=0), axis=-1)", "argmax(q.mean(axis=0), axis=0)[:1]",
            "loss"),
    Mistake("Double DQN's choice by the target", "critics(batch.next_observations) if hp.double else values",
            "values", "loss", "double"),
    Mistake("DQN's choice by the critics", "critics(batch.next_observations) if hp.double else values",
            "critics(batch.next_observations)", "loss"),
    Mistake("Double DQN's value by the critics", "value(values, next_actions)",
            "value(critics(batch.next_observations), next_actions)", "loss", "double"),
    Mistake("current states in the target", "values = target(batch.next_observations)",
            "values = target(batch.observations)", "loss"),
    Mistake("gradient through the target", "value_and_grad(state.critic_loss, has_aux=True)(state.critics, batch)",
            "value_and_grad(lambda critics: state.replace(critics_target=critics).critic_loss(critics, batch), "
            "has_aux=True)(state.critics)", "update"),
    Mistake("action as a place in a row", "(q * one_hot(actions, q.shape[-1])).sum(axis=-1)",
            "q[..., 0] + 0.0 * actions", "loss"),
    Mistake("action as a number", "(q * one_hot(actions, q.shape[-1])).sum(axis=-1)",
            "(q * actions[:, None]).sum(axis=-1)", "loss"),
    Mistake("actions counted from 1", "one_hot(actions, q.shape[-1])", "one_hot(actions - 1, q.shape[-1])", "loss"),
    Mistake("target copied one update late", "copied = (step - start + phase) % hp.target_update_interval == 0",
            "copied = (step - start + phase + 1) % hp.target_update_interval == 0", "shipped path"),
    Mistake("phase forgotten", "(step - start + phase)", "(step - start)", "shipped path"),
    Mistake("target never copied", "partial(where, copied), state.critics, state.critics_target)",
            "partial(where, False), state.critics, state.critics_target)", "update",
            breaks="targets_move_once_when_due"),
    Mistake("target copied at every update", "partial(where, copied)", "partial(where, True)", "update",
            breaks="targets_move_once_when_due"),
    Mistake("target from the old critics", "partial(where, copied), state.critics, state.critics_target)",
            "partial(where, copied), self.critics, state.critics_target)", "update",
            breaks="targets_move_once_when_due"),
    Mistake("Adam's epsilon left at its default", "optax.adam(hp.learning_rate, eps=hp.adam_eps)",
            "optax.adam(hp.learning_rate)", "update", "double"),
    Mistake("Adam's epsilon within the root", "eps=hp.adam_eps", "eps=0.0, eps_root=hp.adam_eps", "update", "double"),
    Mistake("random where the number is above epsilon", "where(uniform < epsilon,", "where(uniform > epsilon,", "act"),
    Mistake("one epsilon for all", "where(uniform < epsilon,", "where(uniform < epsilon[0],", "act"),
    Mistake("random at epsilon itself", "where(uniform < epsilon,", "where(uniform <= epsilon,", "act"),
    Mistake("steps counted from 0", "(start + 1 + np.arange(steps))", "(start + np.arange(steps))", "rewards"),
    Mistake("epsilon beyond its end", "np.minimum((start + 1 + np.arange(steps)) / config.epsilon_steps, 1.0)",
            "(start + 1 + np.arange(steps)) / config.epsilon_steps", "rewards"),
    Mistake("learning with the first batch", "max(config.learning_starts, config.batch_size)",
            "max(config.learning_starts, config.batch_size - 1)", "rewards"),
    Mistake("the last action is never random", "randint(key, (), 0, action_dim)", "randint(key, (), 0, action_dim - 1)",
            "draws"),
    Mistake("the same exploration at each step", "jax.random.split(jax.random.fold_in(key, step)))(start",
            "jax.random.split(jax.random.fold_in(key, 0 * step)))(start", "draws"),
    Mistake("one key for action and number", "(jax.random.uniform)(keys[:, 1])", "(jax.random.uniform)(keys[:, 0])",
            "draws"),
    Mistake("draws beyond the experience", "draw_noise(key, step, hp, size)", "draw_noise(key, step, hp, len(dataset))",
            "shipped path"),
    Mistake("same rows at every update", "jax.random.randint(jax.random.fold_in(key, step),",
            "jax.random.randint(jax.random.fold_in(key, 0 * step),", "draws"),
]  # fmt: skip
