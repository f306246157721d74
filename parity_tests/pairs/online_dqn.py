"""DQN on the ladder: what it learns from a dataset, and from what it has seen of an environment."""

from typing import Any

import numpy as np

from parity_tests.families import Family
from parity_tests.pair import Facts, Loss, Mistake, Pair, load_choices
from parity_tests.pairs import quantiles

SMALL = {"env": "CartPole-v1", "hidden_dims": (64, 48), "target_update_interval": 2, "learning_rate": 1e-3}
# Rows that count as experience so far: fewer than a dataset has, so that a draw beyond them shows.
FILLED = 150


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
    use="It learns while it acts, or from data. Double DQN, QR-DQN and IQN are settings.",
    paper="Mnih et al. 2015",
    url="https://doi.org/10.1038/nature14236",
    benchmark_updates=2000,
    outputs=quantiles.outputs,
    corners=("acting",),
    losses={"critic_loss": Loss(of=("critics",))},
    variants={
        "default": SMALL,
        "double": SMALL
        | {"double": True, "target_update_interval": 3, "n_critics": 3}
        | {"discount": 0.9, "learning_rate": 3e-3, "adam_eps": 3e-4},
        **{name: SMALL | settings for name, settings in quantiles.VARIANTS.items()},
        "images": SMALL | quantiles.VARIANTS["images"] | {"encoder": "nature", "frame_stack": 1, "n_critics": 1},
        "ensemble": SMALL | {"n_critics": 2, "target_update_interval": 5},
    },
    corner=quantiles.corner,
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
    records_on_cpu=False,
    facts=Facts(rewarded="critic_loss", rate=""),
)

MISTAKES = [
    Mistake("another activation", "(Linear(width), nn.relu)", "(Linear(width), nn.tanh)", "forward"),
    Mistake("squared error", "where(abs(error) < 1.0, 0.5 * square(error), abs(error) - 0.5)", "square(error)", "loss"),
    Mistake("doubled Huber", "where(abs(error) < 1.0, 0.5 * square(error), abs(error) - 0.5)",
            "2.0 * where(abs(error) < 1.0, 0.5 * square(error), abs(error) - 0.5)", "loss"),
    Mistake("a jump between square and line", "abs(error) - 0.5)", "abs(error))", "loss"),
    Mistake("mean over critics", "target).mean(axis=1).sum()", "target).mean()", "loss", "double"),
    Mistake("target broadcast to (B, B)", "q[:, :, None]", "q[:, None]", "loss"),
    Mistake("inverted done flag", "(1.0 - batch.terminals[:, None])", "batch.terminals[:, None]", "loss",
            breaks="terminals_are_masked"),
    Mistake("terminals forgotten", " * (1.0 - batch.terminals[:, None])", "", "loss", breaks="terminals_are_masked"),
    Mistake("no discount", "hp.discount * next_q", "next_q", "loss"),
    Mistake("largest target value", "argmin(q.mean(axis=-1), axis=0)", "argmax(q.mean(axis=-1), axis=0)", "loss",
            "double"),
    Mistake("mean target value", "(q * critic.T[..., None]).sum(axis=0)", "q.mean(axis=0)", "loss",
            "ensemble"),
    Mistake("choice by the smallest value", "argmax(expected(q), axis=-1)",
            "argmax(stack([each.mean(axis=-1) for each in q]).min(axis=0), axis=-1)", "loss", "double"),
    Mistake("choice by the first critic", "argmax(expected(q), axis=-1)", "argmax(q[0].mean(axis=-1), axis=-1)", "act",
            "double"),
    Mistake("worst action", "argmax(expected(q), axis=-1)", "argmin(expected(q), axis=-1)", "act"),
    Mistake("choice over the batch", "argmax(expected(q), axis=-1)", "argmax(expected(q), axis=0)[:1]", "loss"),
    Mistake("Double DQN's choice by the target", "chooser = critics if hp.double else target", "chooser = target",
            "loss", "double"),
    Mistake("DQN's choice by the critics", "chooser = critics if hp.double else target", "chooser = critics", "loss"),
    Mistake("Double DQN's value by the critics", "value(target(batch.next_observations,",
            "value(critics(batch.next_observations,", "loss", "double"),
    Mistake("current states in the target", "value(target(batch.next_observations,",
            "value(target(batch.observations,", "loss"),
    Mistake("gradient through the target",
            "value_and_grad(state.critic_loss, has_aux=True)(state.critics, batch, noise)",
            "value_and_grad(lambda critics: state.replace(critics_target=critics).critic_loss(critics, batch, noise), "
            "has_aux=True)(state.critics)", "update"),
    Mistake("action as a place in a row", "(quantiles * chosen).sum(axis=1)", "quantiles[:, 0]", "loss"),
    Mistake("action as a number", "(quantiles * chosen).sum(axis=1)",
            "(quantiles * actions[:, None, None]).sum(axis=1)", "loss"),
    Mistake("actions counted from 1", "one_hot(actions, q[0].shape[1])", "one_hot(actions - 1, q[0].shape[1])", "loss"),
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
    Mistake("same rows at every update", "key = jax.random.fold_in(key, step)",
            "key = jax.random.fold_in(key, 0 * step)", "draws"),
    *quantiles.MISTAKES,
]  # fmt: skip
