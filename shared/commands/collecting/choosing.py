"""Which of a training's policies is the expert, and which is the medium one."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

_MEDIUM_SHARE = 1 / 3  # of the expert's return, as in D4RL; of the way there where returns are negative
_FINALISTS = 5
_FINAL_PARTS = 4  # of the recorder's episodes


class Snapshot(NamedTuple):
    """The policy after some environment steps of training, and how it did in a few episodes.

    Attributes:
        step: Environment steps.
        return_mean: Mean undiscounted return.
        fall_rate: Share of the episodes that ended before the time limit.
    """

    step: int
    return_mean: float
    fall_rate: float


def choose_policies(steps: Iterable[int], rate: Callable[[int, int], Snapshot]) -> dict[str, Snapshot]:
    """Picks the best policy, and an earlier one with about a third of its return.

    A few episodes of each policy only nominate finalists; more episodes decide between those. A medium policy must fall
    in most episodes, for a robot that stands still to the time limit earns a third too. Where no robot ever falls
    (HalfCheetah), this rule says nothing and is left out. A third of a negative return is a better one than all of it.
    Where the expert's is negative, the medium policy has come a third of the way there from the first policy.

    Args:
        steps: Of the policies there are, two or more.
        rate: From a policy's steps and a number of parts to play to how it does.

    Returns:
        `medium` and `expert`, in this order.
    """
    snapshots = [rate(step, 1) for step in steps]
    best = sorted(snapshots[1:], key=lambda s: -s.return_mean)[:_FINALISTS]
    expert = max((rate(s.step, _FINAL_PARTS) for s in best), key=lambda s: s.return_mean)
    start = snapshots[0].return_mean if expert.return_mean < 0 else 0.0
    goal = start + _MEDIUM_SHARE * (expert.return_mean - start)

    def distance(snapshot: Snapshot) -> float:
        return abs(snapshot.return_mean - goal)

    earlier = [s for s in snapshots if s.step < expert.step]
    nominated = sorted(_falling(earlier), key=distance)[:_FINALISTS]
    medium = min(_falling([rate(s.step, _FINAL_PARTS) for s in nominated]), key=distance)
    return {"medium": medium, "expert": expert}


def _falling(snapshots: list[Snapshot]) -> list[Snapshot]:
    return [s for s in snapshots if s.fall_rate > 0.5] or snapshots
