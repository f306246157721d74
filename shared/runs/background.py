"""Evaluations that run in a thread beside training."""

from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import NamedTuple, SupportsFloat

from shared.envs.evaluation import ContextPolicy, Policy
from shared.runs.evaluators import AnyEvaluation, AnyEvaluator
from shared.runs.rollouts import Predict
from shared.runs.valuation import Value

# Polling interval while waiting for an evaluation: signals are handled, and the device is checked, between two polls
_SECONDS_BETWEEN_LOOKS = 0.01


class Outcome(NamedTuple):
    """An evaluation after `step` updates, of a policy prompted with the return `prompt`, or None without a prompt."""

    step: int
    prompt: float | None
    evaluation: AnyEvaluation


class Pending(NamedTuple):
    """An evaluation that has not finished yet."""

    step: int
    prompt: float | None
    evaluation: Future[AnyEvaluation]


class BackgroundEvaluator:
    """Runs evaluations in a thread, and hands out their outcomes in the order of the requests.

    Attributes:
        pending: The requests whose outcomes have not been handed out yet, the oldest first.
    """

    def __init__(self, evaluator: AnyEvaluator) -> None:
        """Prepares the thread, which starts with the first evaluation."""
        self.pending: deque[Pending] = deque()
        self._evaluator = evaluator
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="evaluation")

    def ask(self, step: int, policy: Policy | ContextPolicy | Value | Predict, prompt: float | None) -> None:
        """Requests an evaluation of a policy, and returns at once."""
        self.pending.append(Pending(step, prompt, self._thread.submit(self._evaluator, policy)))

    def known(self) -> Iterator[Outcome]:
        """Yields the outcomes that are available now.

        Raises:
            Exception: Whatever an evaluation raised.
        """
        while self.pending and self.pending[0].evaluation.done():
            yield self.awaited()

    def known_before(self, values: Collection[SupportsFloat]) -> Iterator[Outcome]:
        """Yields each outcome as soon as it is available, until the device has computed these values.

        Raises:
            Exception: Whatever an evaluation raised.
        """
        while self.pending and not all(_is_ready(value) for value in values):
            wait([self.pending[0].evaluation], timeout=_SECONDS_BETWEEN_LOOKS)
            if self.pending[0].evaluation.done():
                yield self.awaited()

    def awaited(self, look: Callable[[], None] = lambda: None) -> Outcome:
        """Waits for the oldest pending evaluation and returns its outcome.

        Args:
            look: Called repeatedly while waiting; may raise.

        Raises:
            Exception: Whatever the evaluation raised.
        """
        step, prompt, evaluation = self.pending.popleft()
        # Python runs a signal's handler between two waits, but not always within a wait that has just begun.
        while not evaluation.done():
            look()
            wait([evaluation], timeout=_SECONDS_BETWEEN_LOOKS)
        return Outcome(step, prompt, evaluation.result())

    def close(self) -> None:
        """Ends the thread: waits for an evaluation that has begun, and cancels the others."""
        self._thread.shutdown(cancel_futures=True)


def _is_ready(value: SupportsFloat) -> bool:
    """Whether a device has computed a value; True for values that cannot tell."""
    return value.is_ready() if hasattr(value, "is_ready") else True
