"""Explains how an update with correct gradients gives wrong weights, from the state before and after it.

Adam's moments reveal the gradient that it received, the weights reveal its learning rate and epsilon, and a target
network reveals its rate and its source.
"""

from collections.abc import Mapping, Sequence

from port_checker.explaining.steps.moments import betas_of, known_betas, of_forgetting, of_moments, tells
from port_checker.explaining.steps.step import VAGUE, Sentences, Step, same
from port_checker.explaining.steps.targets import of_target
from port_checker.explaining.steps.weights import of_weights
from port_checker.finding.figures import Figures
from port_checker.finding.questions import Question


def told_steps(asked: Sequence[Question], answers: Sequence[Figures], name: str) -> dict[str, Sentences]:
    """Explains each part that an update gets wrong, in sentences by the names of its groups."""
    told: dict[str, Sentences] = {}
    pairs = [(q, {part: x for part, x in figures.items() if x}) for q, figures in zip(asked, answers, strict=True)]
    parts = [part for part in asked[0].expected if not part.endswith("_optimizer")]
    for part in parts:
        steps = [Step(question, part, question.given.start, dict(question.expected), ours) for question, ours in pairs]
        trained = f"{part}_optimizer" in asked[0].expected
        if sentences := _of_optimizer(steps, name) if trained else of_target(steps):
            told[part] = sentences
    if any(not _is_vague(one) for sentences in told.values() for one in sentences):
        # Consequences of another part's mistake are not reported.
        told = {part: tuple(one for one in sentences if not _is_vague(one)) for part, sentences in told.items()}
        told = {part: sentences for part, sentences in told.items() if sentences}
    for part in parts:
        # If the network that a target follows goes wrong, so does the target.
        if (own := part.removesuffix("_target")) in told and part not in told:
            told[part] = told[own]
    spoken = {part: tuple(one.format(_names(one, told)) for one in sentences) for part, sentences in told.items()}
    return spoken | {f"{part}_optimizer": spoken[part] for part in spoken}


def _is_vague(sentence: str) -> bool:
    return sentence.startswith(VAGUE)


def _names(sentence: str, told: Mapping[str, Sentences]) -> str:
    """All parts that share a sentence, without targets that only follow their wrong network."""
    parts = [part for part, sentences in told.items() if sentence in sentences]
    return ", ".join(
        f"`{part}`" for part in parts if part.removesuffix("_target") not in parts or "_target" not in part
    )


def _of_optimizer(steps: Sequence[Step], name: str) -> Sentences:
    if not all(step.counted for step in steps):
        return ()
    for step in steps:
        moved, due = (step.steps(when) - step.steps("before") for when in ("ours", "right"))
        if moved != due:
            if moved < 0:
                return ("{}: the optimiser starts anew, what Adam had counted and averaged is lost",)
            if not moved:
                return (f"{{}}: no step in update {step.number}, in which the reference makes one",)
            if not due:
                return (f"{{}}: a step in update {step.number}, in which the reference makes none",)
            return (f"Adam's count of steps for {{}} goes up by {moved} in an update, the reference's by {due}",)
    steps = [step for step in steps if step.steps("right") > step.steps("before")]
    if not steps or not all(betas_of(step) for step in steps):
        return ()
    wrong = [s for s in steps if not all(same(s.moments("ours", kind), s.moments("right", kind)) for kind in "mv")]
    if not all(tells(step, "ours", known_betas(step)) for step in wrong):
        return of_forgetting(wrong)
    return (*(of_moments(wrong, name) if wrong else ()), *of_weights(steps))
