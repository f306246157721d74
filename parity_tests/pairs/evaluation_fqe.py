"""Fitted Q evaluation on the ladder: of a small policy of TD3's, whose states and actions are scaled."""

from pathlib import Path
from typing import Any

import numpy as np

from parity_tests.families import Family
from parity_tests.pair import Facts, Loss, Mistake, Pair
from shared.data.transitions import SarsaBatch, extract_sarsa, normalise

# Learnt in a moment: `corl_torch/online/td3.py --env mini/hopper-mostly-expert --actor_hidden_dims [16]
# --critic_hidden_dims [8] --n_critics 1 --max_timesteps 300 --observation_scaler standard --action_scaler min_max`
POLICY = Path(__file__).parent / "policies" / "hopper.pt"
SMALL = {"critic_hidden_dims": (48, 64), "target_update_interval": 3, "policy": str(POLICY)}


def load(raw: dict[str, np.ndarray]) -> SarsaBatch:
    """Transitions with normalised states, and next actions of no policy: a rule that no row of the data follows."""
    sarsa = extract_sarsa(raw)
    mean, std = sarsa.observations.mean(axis=0), sarsa.observations.std(axis=0) + 1e-3
    states = normalise(sarsa.observations, mean, std), normalise(sarsa.next_observations, mean, std)
    return sarsa._replace(
        observations=states[0],
        next_observations=states[1],
        next_actions=np.tanh(states[1][:, : raw["actions"].shape[1]]),
    )


def corner(trainer: Any) -> None:
    """Target critics that differ, of which each is the smaller one somewhere."""
    for member in trainer.critics_target.members:
        member[-1].weight.data.mul_(20.0)


PAIR = Pair(
    name="evaluation/fqe",
    title="Fitted Q evaluation",
    family=Family.EVALUATION,
    use="It ranks policies by the value that the data gives them.",
    paper="Le et al. 2019",
    url="https://arxiv.org/abs/1903.08738",
    benchmark_updates=2000,
    outputs=lambda twin, batch: {"critics": twin.critics(batch.observations, batch.actions)},
    losses={"critic_loss": Loss(of=("critics",), inputs=("batch",))},
    variants={
        "default": SMALL,
        "other": SMALL | {"n_critics": 2, "target_update_interval": 8, "discount": 0.9, "critic_lr": 1e-3},
        "each": SMALL | {"n_critics": 3, "target_update_interval": 1},
    },
    corner=corner,
    draw_inputs=lambda dataset, action_dim: (len(dataset[0]),),
    update_statics=lambda config, step: {"copied": (step - 1) % config.target_update_interval == 0},
    interval_statics=lambda config, start, num_updates: {"phase": start % config.target_update_interval},
    load=load,
    # The first one, which copies, and two regressions
    counted_updates=201,
    full_size={"policy": str(POLICY)},
    metric="initial_state_value",
    facts=Facts(rewarded="critic_loss", target_inputs=("batch",)),
)

MISTAKES = [
    Mistake("swapped input", "concatenate([observations, actions]", "concatenate([actions, observations]", "forward"),
    Mistake("one critic for all", "[member(inputs).squeeze(-1) for member in self.members]",
            "[self.members[0](inputs).squeeze(-1) + 0.0 * member(inputs).squeeze(-1) for member in self.members]",
            "forward", "other"),
    Mistake("an activation forgotten", "for layer in (Linear(width), nn.relu)]",
            "for layer in (Linear(width), lambda x: x)]", "forward"),
    Mistake("mean over critics", "square(q - target).mean(axis=1).sum()", "square(q - target).mean()", "loss", "other"),
    Mistake("half the squared error", "square(q - target).mean(axis=1).sum()",
            "0.5 * square(q - target).mean(axis=1).sum()", "loss"),
    Mistake("Huber loss, as of finite actions", "square(q - target).mean(axis=1).sum()",
            "optax.huber_loss(q - target).mean(axis=1).sum()", "loss"),
    Mistake("broadcast to (B, B)", "square(q - target).mean(axis=1)",
            "square(q[..., None] - target).mean(axis=(1, 2))", "loss"),
    Mistake("inverted done flag", "(1.0 - batch.terminals)", "batch.terminals", "loss", breaks="terminals_are_masked"),
    Mistake("terminals forgotten", "hp.discount * next_q * (1.0 - batch.terminals)", "hp.discount * next_q", "loss",
            breaks="terminals_are_masked"),
    Mistake("no discount", "hp.discount * next_q", "next_q", "loss"),
    Mistake("discount of another setting", "hp.discount * next_q", "0.99 * next_q", "loss", "other"),
    Mistake("mean of the target critics", "next_q = amin(", "next_q = jnp.mean(", "loss", "other"),
    Mistake("largest target critic", "next_q = amin(", "next_q = jnp.amax(", "loss", "other"),
    Mistake("online critics in the target", "self.hp, self.critics_target\n", "self.hp, self.critics\n", "loss"),
    Mistake("action of the present state", "critics(batch.next_observations, batch.next_actions)",
            "critics(batch.next_observations, batch.actions)", "loss"),
    Mistake("present state in the target", "critics(batch.next_observations, batch.next_actions)",
            "critics(batch.observations, batch.next_actions)", "loss"),
    Mistake("value of the policy's action for the data's", "q = critics(batch.observations, batch.actions)",
            "q = critics(batch.observations, batch.next_actions)", "loss"),
    Mistake("gradient through the target", "value_and_grad(state.critic_loss, has_aux=True)(state.critics, batch)",
            "value_and_grad(lambda critics: state.replace(critics_target=critics).critic_loss(critics, batch), "
            "has_aux=True)(state.critics)", "update"),
    Mistake("another learning rate", "optax.adam(hp.critic_lr)", "optax.adam(3e-4)", "update"),
    Mistake("Adam's epsilon", "optax.adam(hp.critic_lr)", "optax.adam(hp.critic_lr, eps=1e-5)", "update"),
    Mistake("moments not kept", "critics_optimizer=moments", "critics_optimizer=adam(state.hp).init(gradient)",
            "update"),
    Mistake("copy of the old critics", "critics_target=state.critics)", "critics_target=self.critics)", "update",
            breaks="targets_move_once_when_due"),
    Mistake("half a copy", "critics_target=state.critics)", "critics_target=jax.tree.map(lambda old, new: 0.5 * old + "
            "0.5 * new, state.critics_target, state.critics))", "update", breaks="targets_move_once_when_due"),
    Mistake("never copied", "critics_target=state.critics)", "critics_target=state.critics_target)", "update",
            breaks="targets_move_once_when_due"),
    Mistake("always copied", "        if copied:\n            state = ", "        if True:\n            state = ",
            "trajectory", breaks="targets_move_once_when_due"),
    Mistake("smallest critic for the value", "critics(observations, actions).mean(axis=0)",
            "critics(observations, actions).min(axis=0)", "act", "other"),
    Mistake("copy one update late", "before = -phase % period", "before = (1 - phase) % period", "shipped path"),
    Mistake("phase forgotten", "before = -phase % period", "before = 0", "shipped path"),
    Mistake("copied after the first regression alone", "partial(regress, length=period, copied=True)",
            "partial(regress, length=period, copied=False)", "shipped path"),
    Mistake("copied at the end of an interval", "start + num_updates - tail, tail, False)",
            "start + num_updates - tail, tail, tail > 0)", "shipped path"),
    Mistake("draws begin anew at each interval", "return draw_noise(key, step, hp, size)",
            "return draw_noise(key, step - start, hp, size)", "shipped path"),
    Mistake("regressions on the same batches", "starts = start + head + period * jnp.arange(whole)",
            "starts = start + head + 0 * jnp.arange(whole)", "shipped path"),
    Mistake("same batch at every update", "jax.random.fold_in(key, step)", "jax.random.fold_in(key, 0 * step)",
            "draws"),
    Mistake("rows beyond the data", "(hp.batch_size,), 0, dataset_size)",
            "(hp.batch_size,), dataset_size, 2 * dataset_size)", "draws"),
]  # fmt: skip
