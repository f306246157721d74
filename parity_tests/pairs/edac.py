"""EDAC on the ladder."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import Facts, Mistake, Pair
from parity_tests.pairs import ensemble
from parity_tests.pairs.ensemble import FLOAT32, FLOAT64, LOSSES, OTHER, SMALL, outputs
from shared.data.transitions import extract_transitions


def corner(trainer: Any) -> None:
    """A critic whose units are silent but in the rows of extreme states: elsewhere its gradient has no direction."""
    trainer.critic.critic[2].bias.data[0] -= 3.0


PAIR = Pair(
    name="edac",
    title="EDAC",
    family=Family.UNCERTAINTY,
    use="SAC-N with a tenth of its critics, which are made to differ.",
    paper="An et al. 2021",
    url="https://arxiv.org/abs/2110.01548",
    benchmark_updates=24,
    outputs=outputs,
    corners=("bounded std",),
    losses=LOSSES,
    variants={"default": SMALL, "other": OTHER | {"eta": 3.0}},
    corner=corner,
    # States are never normalised.
    load=extract_transitions,
    float32=FLOAT32,
    float64=FLOAT64,
    facts=Facts(rewarded="critic_loss"),
)

MISTAKES = [
    *ensemble.MISTAKES,
    Mistake("mean over the ensemble", ".mean(axis=1).sum()", ".mean()", "loss"),
    Mistake("targets broadcast to (B, B)", "square(q - target).mean(axis=1).sum()",
            "square(q[:, :, None] - target).mean(axis=(1, 2)).sum()", "loss"),
    Mistake("a critic compared with itself", " - square(directions).sum(axis=(0, -1))", "", "loss"),
    Mistake("pairs counted once", "pairs.mean() / (len(gradients) - 1)", "pairs.mean() / (len(gradients) - 1) / 2",
            "loss"),
    Mistake("divided by the number of critics", "pairs.mean() / (len(gradients) - 1)", "pairs.mean() / len(gradients)",
            "loss"),
    Mistake("diversity rewarded the wrong way", "+ self.hp.eta * alikeness", "- self.hp.eta * alikeness", "loss"),
    Mistake("eta ignored", "self.hp.eta * alikeness(gradients)", "alikeness(gradients)", "loss", "other"),
    Mistake("gradients not made directions", "directions = gradients / (norm(gradients) + 1e-10)",
            "directions = gradients", "loss"),
    Mistake("lengths not differentiated", "gradients / (norm(gradients) + 1e-10)",
            "gradients / (jax.lax.stop_gradient(norm(gradients)) + 1e-10)", "gradient"),
    Mistake("diversity not differentiated", "eta * alikeness(gradients)",
            "eta * alikeness(jax.lax.stop_gradient(gradients))", "gradient"),
    Mistake("every update from the first batch", "return state.update(take(dataset, indices), noise)",
            "return state.update(take(dataset, draws[0][0]), noise)", "shipped path"),
]  # fmt: skip
