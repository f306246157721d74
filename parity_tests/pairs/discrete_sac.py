"""SAC of finite actions on the ladder."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import Facts, Loss, Mistake, Pair, load_choices

SMALL = {"hidden_dims": (64, 48), "target_update_interval": 2, "actor_lr": 1e-3, "critic_lr": 1e-3}


def corner(trainer: Any) -> None:
    """Targets of another opinion than the critics, and critics that differ from each other by more than 1."""
    for member in trainer.critics_target.members:
        member[-1].weight.data.mul_(-3.0)
    for number, member in enumerate(trainer.critics.members):
        member[-1].bias.data.add_(0.5 * number)


PAIR = Pair(
    name="discrete/sac",
    title="SAC, finite actions",
    family=Family.FINITE,
    use="The data is broad, as a replay buffer's, since nothing holds the policy to it.",
    paper="Christodoulou 2019",
    url="https://arxiv.org/abs/1910.07207",
    benchmark_updates=1000,
    outputs=lambda twin, batch: {
        "actor": twin.actor(batch.observations),
        "critics": twin.critics(batch.observations),
    },
    losses={
        "critic_loss": Loss(of=("critics",), inputs=("batch",)),
        "temp_loss": Loss(of=("log_temp",), inputs=("batch",), used=lambda config: config.temp_lr > 0.0),
        "actor_loss": Loss(of=("actor",), inputs=("batch",)),
    },
    variants={
        "default": SMALL | {"initial_temperature": 0.5, "temp_lr": 1e-2},
        # The form of d3rlpy 2.8.1, with several critics
        "huber": SMALL
        | {"huber": True, "n_critics": 3, "target_update_interval": 3, "discount": 0.9, "entropy_share": 0.5}
        | {"actor_lr": 3e-3, "critic_lr": 2e-3, "temp_lr": 3e-3, "initial_temperature": 0.2},
        "constant temperature": SMALL
        | {"temp_lr": 0.0, "initial_temperature": 2.0, "n_critics": 1, "target_update_interval": 5},
        "images": SMALL | {"encoder": "minatar", "frame_stack": 2, "hidden_dims": (24,)},
    },
    corner=corner,
    load=load_choices,
    draw_inputs=lambda dataset, action_dim: (len(dataset[0]),),
    update_statics=lambda config, step: {"copied": (step - 1) % config.target_update_interval == 0},
    interval_statics=lambda config, start, num_updates: {"phase": start % config.target_update_interval},
    records_on_cpu=False,
    compiled_in="float32",
    facts=Facts(rewarded="critic_loss", target_inputs=("batch",), rate=""),
)

MISTAKES = [
    Mistake("another activation", "(Linear(width), nn.relu)", "(Linear(width), nn.tanh)", "forward"),
    Mistake("Huber's loss in the paper's form", "if self.hp.huber else", "if True else", "loss"),
    Mistake("the paper's loss in d3rlpy's form", "if self.hp.huber else", "if False else", "loss", "huber"),
    Mistake("the square not halved", "else 0.5 * square(q - target)", "else square(q - target)", "loss"),
    Mistake("a jump between square and line", "abs(error) - 0.5)", "abs(error))", "loss", "huber"),
    Mistake("mean over critics", "losses.mean(axis=1).sum()", "losses.mean()", "loss"),
    Mistake("target broadcast to (B, B)", "losses.mean(axis=1).sum()",
            "(0.5 * square(q[..., None] - target)).mean(axis=(1, 2)).sum()", "loss"),
    Mistake("actions counted from 1", "one_hot(actions, q.shape[-1])", "one_hot(actions - 1, q.shape[-1])", "loss"),
    Mistake("outputs for log-probabilities", "log_probs = logits - logsumexp(logits, axis=-1, keepdims=True)",
            "log_probs = logits", "loss"),
    Mistake("log-probabilities over the batch", "logsumexp(logits, axis=-1, keepdims=True)",
            "logsumexp(logits, axis=0, keepdims=True)", "loss"),
    Mistake("online critics in the target", "self.actor, self.critics_target", "self.actor, self.critics", "loss"),
    Mistake("the policy in the present state", "distribution(actor, batch.next_observations)",
            "distribution(actor, batch.observations)", "loss"),
    Mistake("smallest of the expected values", "q = amin(critics(batch.next_observations), axis=0)\n"
            "        next_v = (probs * (q - self.temp() * log_probs)).sum(axis=-1)",
            "q = critics(batch.next_observations)\n"
            "        next_v = amin((probs * (q - self.temp() * log_probs)).sum(axis=-1), axis=0)", "loss"),
    Mistake("mean of the targets", "q = amin(critics(batch.next_observations), axis=0)",
            "q = critics(batch.next_observations).mean(axis=0)", "loss"),
    Mistake("the best next action's value", "next_v = (probs * (q - self.temp() * log_probs)).sum(axis=-1)",
            "next_v = q.max(axis=-1)", "loss"),
    Mistake("mean over next actions", "next_v = (probs * (q - self.temp() * log_probs)).sum(axis=-1)",
            "next_v = (probs * (q - self.temp() * log_probs)).mean(axis=-1)", "loss"),
    Mistake("no entropy in the target", "(q - self.temp() * log_probs)", "q", "loss"),
    Mistake("entropy taken away in the target", "(q - self.temp() * log_probs)", "(q + self.temp() * log_probs)",
            "loss"),
    Mistake("the logarithm of the temperature", "return exp(self.log_temp)", "return self.log_temp", "loss"),
    Mistake("inverted done flag", "(1.0 - batch.terminals)", "batch.terminals", "loss", breaks="terminals_are_masked"),
    Mistake("no discount", "hp.discount * next_v", "next_v", "loss"),
    Mistake("the logarithm learns", "(exp(log_temp) * (entropy", "(log_temp * (entropy", "loss"),
    Mistake("the greatest entropy itself", "self.hp.entropy_share * math.log", "math.log", "loss"),
    Mistake("the entropy of vectors of actions", "self.hp.entropy_share * math.log(probs.shape[-1])",
            "-probs.shape[-1]", "loss"),
    Mistake("the temperature rises with the entropy", "(entropy - target)).mean()", "(target - entropy)).mean()",
            "loss"),
    Mistake("entropy by the data's action", "        entropy = -(probs * log_probs).sum(axis=-1)\n        target",
            "        entropy = -value(log_probs, batch.actions)\n        target", "loss"),
    Mistake("mean of the critics for the policy", "q = amin(self.critics(batch.observations), axis=0)",
            "q = self.critics(batch.observations).mean(axis=0)", "loss"),
    Mistake("the targets for the policy", "q = amin(self.critics(", "q = amin(self.critics_target(", "loss"),
    Mistake("entropy to be small", "(self.temp() * log_probs - q)", "(-self.temp() * log_probs - q)", "loss"),
    Mistake("mean over actions", "(self.temp() * log_probs - q)).sum(axis=-1)",
            "(self.temp() * log_probs - q)).mean(axis=-1)", "loss"),
    Mistake("no gradient through the probabilities", "loss = (probs * (self.temp()",
            "loss = (jax.lax.stop_gradient(probs) * (self.temp()", "gradient"),
    Mistake("the policy on the old critics", "(loss, aux), gradient = value_and_grad(state.actor_loss,",
            "(loss, aux), gradient = value_and_grad(state.replace(critics=self.critics).actor_loss,", "update"),
    Mistake("the policy by the old temperature", "(loss, aux), gradient = value_and_grad(state.actor_loss,",
            "(loss, aux), gradient = value_and_grad(state.replace(log_temp=self.log_temp).actor_loss,", "update"),
    Mistake("the temperature last", 'state = gradient_step(state, "critics", gradient)\n',
            'state = gradient_step(state, "critics", gradient)\n'
            "        _, early = value_and_grad(state.actor_loss, has_aux=True)(state.actor, batch)\n"
            '        state = gradient_step(state, "actor", early)\n', "update"),
    Mistake("a constant temperature that learns", "if hp.temp_lr > 0.0:", "if True:", "log", "constant temperature"),
    Mistake("one rate for all", '"critics": hp.critic_lr', '"critics": hp.actor_lr', "update", "huber"),
    Mistake("entropy logged as its negative", '"entropy": entropy.mean()', '"entropy": -entropy.mean()', "log"),
    Mistake("the old temperature logged", '"temp": state.temp()', '"temp": self.temp()', "log"),
    Mistake("target copied one update late", "copied = (step - start + phase) % hp.target_update_interval == 0",
            "copied = (step - start + phase + 1) % hp.target_update_interval == 0", "shipped path"),
    Mistake("phase forgotten", "(step - start + phase)", "(step - start)", "shipped path"),
    Mistake("target copied at every update", "partial(where, copied)", "partial(where, True)", "update",
            breaks="targets_move_once_when_due"),
    Mistake("Polyak's step in place of a copy", "jax.tree.map(partial(where, copied), state.critics, "
            "state.critics_target)", "jax.tree.map(lambda new, old: 0.995 * old + 0.005 * new, state.critics, "
            "state.critics_target)", "update", breaks="targets_move_once_when_due"),
    Mistake("target from the old critics", "partial(where, copied), state.critics, state.critics_target)",
            "partial(where, copied), self.critics, state.critics_target)", "update",
            breaks="targets_move_once_when_due"),
    Mistake("same rows at every update", "jax.random.randint(jax.random.fold_in(key, step),",
            "jax.random.randint(jax.random.fold_in(key, 0 * step),", "draws"),
]  # fmt: skip
