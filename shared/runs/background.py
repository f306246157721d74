"""Evaluations that a thread makes beside the training, and the waiting for them."""

from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import NamedTuple, SupportsFloat

from shared.envs.evaluation import ContextPolicy, Policy
from shared.runs.evaluators import AnyEvaluation, AnyEvaluator
from shared.runs.rollouts import Predict
from shared.runs.valuation import Value

# While an evaluation is awaited: for signals, and for the device, whose end begins what counts as waiting
_SECONDS_BETWEEN_LOOKS = 0.01


class Outcome(NamedTuple):
    """An evaluation after `step` updates, by a policy that was asked for the return `prompt`, if for one."""

    step: int
    prompt: float | None
    evaluation: AnyEvaluation


class Pending(NamedTuple):
    """An evaluation whose outcome is not yet known."""

    step: int
    prompt: float | None
    evaluation: Future[AnyEvaluation]


class BackgroundEvaluator:
    """A thread that evaluates, and what it was asked for; outcomes come in the order in which they were asked for.

    Attributes:
        pending: What was asked for and has not been handed out, the oldest first.
    """

    def __init__(self, evaluator: AnyEvaluator) -> None:
        """The thread begins with the first evaluation."""
        self.pending: deque[Pending] = deque()
        self._evaluator = evaluator
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="evaluation")

    def ask(self, step: int, policy: Policy | ContextPolicy | Value | Predict, prompt: float | None) -> None:
        """Has a policy evaluated, and returns at once."""
        self.pending.append(Pending(step, prompt, self._thread.submit(self._evaluator, policy)))

    def known(self) -> Iterator[Outcome]:
        """The outcomes that are known by now.

        Raises:
            Exception: Whatever an evaluation raised.
        """
        while self.pending and self.pending[0].evaluation.done():
            yield self.awaited()

    def known_before(self, values: Collection[SupportsFloat]) -> Iterator[Outcome]:
        """Each outcome as soon as it is known, while the device still computes these values.

        Raises:
            Exception: Whatever an evaluation raised.
        """
        while self.pending and not all(_is_ready(value) for value in values):
            wait([self.pending[0].evaluation], timeout=_SECONDS_BETWEEN_LOOKS)
            if self.pending[0].evaluation.done():
                yield self.awaited()

    def awaited(self, look: Callable[[], None] = lambda: None) -> Outcome:
        """The oldest that is pending, as soon as it is known.

        Args:
            look: Called while it is not; may raise.

        Raises:
            Exception: Whatever the evaluation raised.
        """
        step, prompt, evaluation = self.pending.popleft()
        # Python runs a signal's handler between two waits, but not always within one that has just begun.
        while not evaluation.done():
            look()
            wait([evaluation], timeout=_SECONDS_BETWEEN_LOOKS)
        return Outcome(step, prompt, evaluation.result())

    def close(self) -> None:
        """Ends the thread; what it has not begun it leaves, and an evaluation that goes on is waited for."""
        self._thread.shutdown(cancel_futures=True)


def _is_ready(value: SupportsFloat) -> bool:
    """Whether a device has computed it, where it tells."""
    return value.is_ready() if hasattr(value, "is_ready") else True
