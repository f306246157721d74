"""Chooses the expert and the medium policy among a training's checkpoints."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

_MEDIUM_SHARE = 1 / 3  # of the expert's return, as in D4RL, unless that is negative
_FINALISTS = 5
_FINAL_PARTS = 4  # of the recorder's episodes


class Snapshot(NamedTuple):
    """The policy after some environment steps of training, and its performance in a few episodes.

    Attributes:
        step: Number of environment steps.
        return_mean: Mean undiscounted return.
        fall_rate: Share of the episodes that ended before the time limit.
    """

    step: int
    return_mean: float
    fall_rate: float


def choose_policies(steps: Iterable[int], rate: Callable[[int, int], Snapshot]) -> dict[str, Snapshot]:
    """Picks the best policy, and an earlier one with about a third of its return.

    A few episodes of each policy only nominate finalists, and more episodes decide between those. A medium policy must
    fall in most episodes, because a robot that stands still until the time limit also earns a third. If no robot ever
    falls (HalfCheetah), this rule is ignored. If the expert's return is negative, a third of it would be a better one.
    In this case, the medium policy has come a third of the way from the first policy to the expert.

    Args:
        steps: The steps of the available policies, two or more.
        rate: Maps a policy's steps and a number of parts to play to the policy's performance.

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
